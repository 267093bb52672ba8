/**
 * The law of stores: after any operations, in any order and repeated, a store gives what a plain model of journals gives:
 * in memory, and on SQLite through two connections, with few kept statements, in transactions of the application, and
 * after a connection was opened again.
 */
import { assert, describe } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as SqlClient from "effect/sql/SqlClient"
import * as Stream from "effect/Stream"
import { type Journal, Message, Session } from "heddle"
import { SessionStore, SqliteClient } from "heddle/sql"
import { temporaryFile } from "../sql/support/files.ts"
import { drawing, type Draws, draws } from "../support/drawing.ts"
import { property } from "../support/property.ts"

/** Times are far apart, so that no law depends on how long anything takes. */
const [past, future, short, long] = [1, 1e14, 1e9, 1e12]

interface Claim {
  readonly owner: string
  /** 0 for a claim that has ended at once. */
  readonly term: number
}

interface Kept {
  readonly tags: ReadonlyArray<string>
  readonly first: number
  readonly summary: Journal.Summary
  /** The last named append: its name, the version that it followed, and the one that it led to. */
  readonly named: readonly [name: string, expected: number, version: number] | undefined
}

/** The model: journals and claims as plain data. */
interface Model {
  readonly journals: Readonly<Record<string, Kept>>
  readonly claims: Readonly<Record<string, Claim>>
}

const without = <A>(all: Readonly<Record<string, A>>, id: string): Readonly<Record<string, A>> =>
  Object.fromEntries(Object.entries(all).filter(([other]) => other !== id))

const versionIn = ({ journals }: Model, id: string): number => journals[id]?.tags.length ?? 0

const isHeld = ({ claims }: Model, id: string): boolean => (claims[id]?.term ?? 0) > 0

const isDue = ({ expiresAt = future, next }: Journal.Summary): boolean =>
  next === "resume" || next === "reply" || next === "continue" || next === "wait" && expiresAt === past

const ids = ["a", "a/b", "a%", "ö\ud83d"] as const
const owners = ["one", "two"] as const
const statuses = ["idle", "awaiting_user", "awaiting_tools", "completed", "stopped", "error"] as const
const nexts = ["nothing", "reply", "continue", "resume", "wait", "wait"] as const

type Store = Journal.Service

/** One operation: what it does to a store, and what the model says that comes of it. */
interface Step {
  readonly what: string
  /** What comes of it. Succeeds with the model afterwards and what is wrong. */
  readonly take: (store: Store, model: Model) => Effect.Effect<readonly [Model, ReadonlyArray<string>], unknown>
}

const told = (actual: unknown, expected: unknown): ReadonlyArray<string> => {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)]
  return left === right ? [] : [`${left}, and ${right} in the model`]
}

const opened: Journal.Record = { _tag: "Opened", format: 1, session: Session.make({ id: "s" }) }

const recordsOf = (kind: number): readonly [Journal.Record, ...ReadonlyArray<Journal.Record>] => {
  const said: Journal.Record = { _tag: "MessagesAppended", messages: [Message.user("x")] }
  if (kind === 0) return [opened]
  if (kind === 1) return [{ _tag: "MessageSubmitted", id: "m", message: Message.user("hi") }]
  return kind === 2 ? [opened, ...Array.from({ length: 127 + kind }, () => said)] : [said, said]
}

const summaryAfter = (before: Journal.Summary, tags: ReadonlyArray<string>, summary: Journal.Summary | undefined) => {
  if (summary !== undefined) return summary
  return before.next === "nothing" && tags.includes("MessageSubmitted") ? { ...before, next: "reply" as const } : before
}

const appending = (
  id: string,
  way: "next" | "stale" | "repeated",
  kind: number,
  name: string | undefined,
  summary: Journal.Summary | undefined
): Step => ({
  what: `append to ${id}, kind ${kind}, name ${name}, ${way}`,
  take: (store, model) =>
    Effect.gen(function*() {
      const [actual, known] = [versionIn(model, id), model.journals[id]]
      const named = way === "repeated" ? known?.named : undefined
      const expected = named?.[1] ?? (way === "stale" ? Math.max(actual - 1, 0) : actual)
      const ownName = named?.[0] ?? name
      const records = recordsOf(kind)
      const options = {
        ...(ownName === undefined ? {} : { name: ownName }),
        ...(summary === undefined ? {} : { summary })
      }
      const result = yield* Effect.match(store.append(id, expected, records, options), {
        onSuccess: (version): unknown => version,
        onFailure: (error) =>
          error._tag === "SessionConflict" ? ["conflict", error.expected, error.actual] : error.message
      })
      // A repetition adds nothing.
      if (named !== undefined) return [model, told(result, named[2])] as const
      if (actual !== expected) return [model, told(result, ["conflict", expected, actual])] as const
      const tags = records.map(({ _tag }) => _tag)
      const version = actual + tags.length
      const kept: Kept = {
        tags: [...known?.tags ?? [], ...tags],
        first: known?.first ?? 1,
        summary: summaryAfter(known?.summary ?? { next: "nothing", status: "idle" }, tags, summary),
        named: name === undefined ? known?.named : [name, expected, version]
      }
      return [{ ...model, journals: { ...model.journals, [id]: kept } }, told(result, version)] as const
    })
})

const claiming = (id: string, owner: string, term: number): Step => ({
  what: `claim ${id} by ${owner} for ${term}`,
  take: (store, model) =>
    Effect.gen(function*() {
      const held = model.claims[id]
      const isFree = held === undefined || held.owner === owner || held.term === 0
      const claim = isFree ? { owner, term } : held
      const given = yield* store.claim(id, owner, term)
      return [{ ...model, claims: { ...model.claims, [id]: claim } }, told(given.owner, claim.owner)] as const
    })
})

const renewing = (id: string, owner: string, term: number): Step => ({
  what: `renew ${id} by ${owner} for ${term}`,
  take: (store, model) =>
    Effect.gen(function*() {
      const isOwn = model.claims[id]?.owner === owner
      const claims = isOwn ? { ...model.claims, [id]: { owner, term } } : model.claims
      return [{ ...model, claims }, told(yield* store.renew(id, owner, term), isOwn)] as const
    })
})

const releasing = (id: string, owner: string): Step => ({
  what: `release ${id} by ${owner}`,
  take: (store, model) =>
    Effect.gen(function*() {
      yield* store.release(id, owner)
      const isOwn = model.claims[id]?.owner === owner
      return [isOwn ? { ...model, claims: without(model.claims, id) } : model, []] as const
    })
})

const claimingUnfinished = (owner: string, term: number, limit: number): Step => ({
  what: `claim ${limit} unfinished by ${owner} for ${term}`,
  take: (store, model) =>
    Effect.gen(function*() {
      const free = Object.entries(model.journals).flatMap(([id, { summary }]) =>
        isDue(summary) && !isHeld(model, id) ? [id] : []
      )
      const taken = yield* store.claimUnfinished(owner, term, limit)
      const left = free.filter((id) => !taken.includes(id))
      const isBehind = left.some((id) => model.claims[id] === undefined) && taken.some((id) => id in model.claims)
      const claims = { ...model.claims, ...Object.fromEntries(taken.map((id) => [id, { owner, term }])) }
      return [{ ...model, claims }, [
        ...told(taken.length, Math.min(limit, free.length)),
        ...told(taken.filter((id) => !free.includes(id)), []),
        ...(isBehind ? [`${taken.join()} before ${left.join()}, which were never claimed`] : [])
      ]] as const
    })
})

const truncating = (id: string): Step => ({
  what: `truncate ${id}`,
  take: (store, model) =>
    Effect.gen(function*() {
      const known = model.journals[id]
      const before = (known?.tags.lastIndexOf("Opened") ?? -1) + 1
      if (known === undefined || before <= known.first) return [model, []] as const
      yield* store.truncate(id, before)
      return [{ ...model, journals: { ...model.journals, [id]: { ...known, first: before } } }, []] as const
    })
})

const removing = (id: string): Step => ({
  what: `delete ${id}`,
  take: (store, model) =>
    Effect.as(
      store.delete(id),
      [
        { journals: without(model.journals, id), claims: without(model.claims, id) },
        []
      ] as const
    )
})

const stepsOf = ({ count, seed }: Draws): ReadonlyArray<Step> => {
  const below = drawing(seed)
  const among = <A>(all: ReadonlyArray<A>): A => all[below(all.length)]!
  const step = (index: number): Step => {
    const [id, owner, kind] = [among(ids), among(owners), below(20)]
    const term = among([0, 0, short, long])
    if (kind < 9) {
      const next = among(nexts)
      const expiresAt = below(2) === 0 ? past : future
      const summary = { next, status: among(statuses), ...(next === "wait" && below(3) > 0 ? { expiresAt } : {}) }
      const name = below(2) === 0 ? undefined : `n${index}`
      return appending(
        id,
        among(["next", "next", "next", "next", "stale", "repeated"]),
        below(6),
        name,
        below(3) === 0 ? undefined : summary
      )
    }
    if (kind < 12) return claiming(id, owner, term)
    if (kind < 14) return renewing(id, owner, term)
    if (kind < 15) return releasing(id, owner)
    if (kind < 17) return claimingUnfinished(owner, term, 1 + below(3))
    return kind < 19 ? truncating(id) : removing(id)
  }
  return Array.from({ length: count }, (_, index) => step(index))
}

/** Compares all that can be read of a store with the model. `since` holds as long as `next` does. */
const compared = (store: Store, model: Model, sinces: Map<string, readonly [next: string, since: number]>) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    const note = (what: string, actual: unknown, expected: unknown) =>
      problems.push(...told(actual, expected).map((text) => `${what}: ${text}`))
    const listed = Array.from(yield* Stream.runCollect(store.list())).toSorted((one, other) =>
      one.id < other.id ? -1 : 1
    )
    const known = Object.entries(model.journals).toSorted(([one], [other]) => one < other ? -1 : 1)
    note(
      "list",
      listed.map((
        { claim, expiresAt, id, next, status, version }
      ) => [id, version, next, status, expiresAt, claim?.owner]),
      known.map(([id, { summary: { expiresAt, next, status }, tags }]) => [
        id,
        tags.length,
        next,
        status,
        expiresAt,
        isHeld(model, id) ? model.claims[id]?.owner : undefined
      ])
    )
    for (const { id, next, since } of listed) {
      const [before, earlier] = sinces.get(id) ?? []
      if (before === next) note(`since of ${id}`, since, earlier)
      sinces.set(id, [next, since])
    }
    for (const id of sinces.keys()) if (!(id in model.journals)) sinces.delete(id)
    const unfinished = yield* Stream.runCollect(store.unfinished)
    note(
      "unfinished",
      unfinished.toSorted(),
      known.flatMap(([id, { summary }]) => isDue(summary) ? [id] : []).toSorted()
    )
    for (const prefix of ["a", "a/", "ö", "x"]) {
      const own = known.filter(([id]) => id.startsWith(prefix))
      const found = yield* Stream.runCollect(store.list({ prefix, status: "idle" }))
      note(
        `list of ${prefix}`,
        found.map(({ id }) => id).toSorted(),
        own.flatMap(([id, { summary }]) => summary.status === "idle" ? [id] : [])
      )
      const counts = Object.fromEntries(
        statuses.map((status) => [status, own.filter(([, { summary }]) => summary.status === status).length])
      )
      note(`count of ${prefix}`, yield* store.count({ prefix }), counts)
    }
    for (const id of ids) {
      note(`version of ${id}`, yield* store.version(id), versionIn(model, id))
      const { first = 1, tags = [] } = model.journals[id] ?? {}
      for (const after of [0, first, tags.length - 1]) {
        const from = Math.max(after, first - 1, 0)
        const read = yield* Stream.runCollect(store.read(id, Math.max(after, 0)))
        note(
          `read of ${id} after ${after}`,
          read.map(({ record, version }) => `${version} ${record._tag}`),
          tags.slice(from).map((tag, index) => `${from + index + 1} ${tag}`)
        )
      }
      const claim = yield* store.claimOf(id)
      const own = model.claims[id]
      note(`claim of ${id}`, claim?.owner, own?.owner)
      if (claim === undefined || own === undefined) continue
      // The terms are far from each other.
      const left = claim.until - Date.now()
      const isNear = own.term === 0 ? left < short / 2 : Math.abs(left - own.term) < own.term / 2
      if (!isNear) problems.push(`the claim of ${id} lasts ${left} ms, and ${own.term} in the model`)
    }
    return problems
  })

/** A place in which a step is taken: the store to use, and what becomes of it. */
type Around = (
  index: number,
  step: (store: Store) => Effect.Effect<readonly [Model, ReadonlyArray<string>], unknown>
) => Effect.Effect<
  readonly [Model, ReadonlyArray<string>] | undefined,
  unknown
>

const playing = (steps: ReadonlyArray<Step>, around: Around, seen: () => Store) =>
  Effect.gen(function*() {
    let model: Model = { journals: {}, claims: {} }
    const sinces = new Map<string, readonly [next: string, since: number]>()
    for (const [index, { take, what }] of steps.entries()) {
      const came = yield* around(index, (store) => take(store, model))
      // A step that was undone has changed nothing.
      if (came !== undefined) model = came[0]
      const problems = [...came?.[1] ?? [], ...yield* compared(seen(), model, sinces)]
      if (problems.length > 0) return problems.map((text) => `step ${index + 1}, ${what}: ${text}`)
    }
    return []
  })

const inMemory = (steps: ReadonlyArray<Step>) =>
  Effect.flatMap(Session.Store, (store) => playing(steps, (_, step) => step(store), () => store)).pipe(
    Effect.provide(Session.Store.layerMemory, { local: true })
  )

/** Each step on one of two connections, alone or in a transaction that is committed or undone. One is opened again. */
const onSqlite = (steps: ReadonlyArray<Step>, preparedStatements: number) =>
  Effect.gen(function*() {
    const filename = yield* temporaryFile
    const opened = Effect.gen(function*() {
      const scope = yield* Scope.fork(yield* Effect.scope)
      const client = SqliteClient.layer({ filename, preparedStatements, synchronous: "normal" })
      const layer = Layer.fresh(SessionStore.layer.pipe(Layer.provideMerge(client)))
      const context = yield* Layer.buildWithScope(layer, scope)
      return {
        close: Scope.close(scope, Exit.void),
        sql: Context.get(context, SqlClient.SqlClient),
        store: Context.get(context, Session.Store)
      }
    })
    const second = yield* opened
    let first = yield* opened
    const scope = yield* Effect.scope
    const around: Around = (index, step) =>
      Effect.gen(function*() {
        if (index % 11 === 10) {
          yield* first.close
          first = yield* Scope.provide(opened, scope)
        }
        const { sql, store } = index % 3 === 2 ? second : first
        if (index % 7 === 3) return yield* sql.withTransaction(step(store))
        if (index % 7 !== 5) return yield* step(store)
        const undone = yield* Effect.flip(sql.withTransaction(Effect.flatMap(step(store), () => Effect.fail("undone"))))
        assert.strictEqual(undone, "undone")
        return undefined
      })
    let reads = 0
    return yield* playing(steps, around, () => reads++ % 2 === 0 ? first.store : second.store)
  }).pipe(Effect.scoped)

describe("stores beside their model", () => {
  property("a store in memory gives what the model gives", draws, (draws) => inMemory(stepsOf(draws)), 500)

  property(
    "a store on SQLite gives what the model gives, through two connections, in transactions and opened again",
    draws,
    (draws) => onSqlite(stepsOf(draws), draws.seed % 2 === 0 ? 200 : 1),
    60
  )
})
