/**
 * Programs over stores that record what they are given: every kill is a store that has the first appends of all journals, so
 * that a program is tried again at each of them, with nested runs as deep as they go.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { check } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"
import { acting, agent, casting } from "./nests.ts"
import { sampleOf } from "./property.ts"
import type { Deed } from "./survivor.ts"

/** The records of one append, and the journal that they are of. */
export interface Append {
  readonly id: string
  readonly records: Journal.Records
  readonly options: Journal.AppendOptions | undefined
}

/** The stores that come with the package and need no server. */
export const stores = {
  "in memory": Session.Store.layerMemory,
  "on SQLite": SessionStore.layerSqlite({ filename: ":memory:" })
} as const

type Layers = (typeof stores)[keyof typeof stores]

/** A store with another `append`. */
export const wrapped = (
  around: (store: Journal.Service) => Journal.Service["append"],
  base: Layers = Session.Store.layerMemory
): Layer.Layer<Session.Store> =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) => Session.Store.of({ ...store, append: around(store) }))
  ).pipe(Layer.provide(base), Layer.orDie)

/** A store before whose appends something else happens. */
export const raced = (
  store: Journal.Service,
  before: (...append: Parameters<Journal.Service["append"]>) => Effect.Effect<unknown>
): Journal.Service => ({
  ...store,
  append: (...append) => Effect.andThen(Effect.suspend(() => before(...append)), store.append(...append))
})

/** A store before one of whose appends, by its number from 0, something else happens. */
export const racedAt = (store: Journal.Service, at: number, other: Effect.Effect<unknown>): Journal.Service => {
  let count = 0
  return raced(store, () => count++ === at ? other : Effect.void)
}

/** A store that lists what is appended to it. */
export const listing = (appends: Array<Append>, base?: Layers): Layer.Layer<Session.Store> =>
  wrapped((store) => (id, expected, records, options) =>
    Effect.tap(
      store.append(id, expected, records, options),
      () => Effect.sync(() => void appends.push({ id, records, options }))
    ), base)

/** A store that takes its time for each append. */
export const slow = (millis: number, base?: Layers): Layer.Layer<Session.Store> =>
  wrapped((store) => (...append) => Effect.andThen(Effect.sleep(millis), store.append(...append)), base)

/** A store that has these appends, and lists what is appended behind them. */
export const holding = (
  before: ReadonlyArray<Append>,
  after: Array<Append> = [],
  base?: Layers
): Layer.Layer<Session.Store> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const store = yield* Session.Store
    for (const { id, options, records } of before) {
      yield* store.append(id, yield* store.version(id), records, options)
    }
    after.length = 0
  })).pipe(Layer.provideMerge(listing(after, base)), Layer.orDie)

/** Lets time pass until an effect has ended. */
export const passing = <A, E, R>(effect: Effect.Effect<A, E, R>, step = 10) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect)
    for (let turn = 0; turn < 5_000 && fiber.pollUnsafe() === undefined; turn++) {
      for (let yields = 0; yields < 20; yields++) yield* Effect.yieldNow
      if (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(step)
    }
    assert.isDefined(fiber.pollUnsafe(), "it does not end")
    return yield* Fiber.join(fiber)
  })

/** Lets time pass until a condition holds. */
export const until = <E, R>(condition: Effect.Effect<boolean, E, R>, step = 10) =>
  Effect.gen(function*() {
    for (let turn = 0; turn < 5_000; turn++) {
      for (let yields = 0; yields < 20; yields++) yield* Effect.yieldNow
      if (yield* condition) return
      yield* TestClock.adjust(step)
    }
    assert.fail("the condition does not come to hold")
  })

/** Places from `first` to `last`: those of a sample. `HEDDLE_RUNS=1` is all. */
export const placesOf = (first: number, last: number): ReadonlyArray<number> =>
  sampleOf(Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index))

/** The records of a journal. */
export const recordsOf = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return Array.from(yield* Stream.runCollect(store.read(id)), ({ record }) => record)
  })

/** Fails where a journal is not in order. */
export const inOrder = Effect.gen(function*() {
  const listed = yield* Stream.runCollect(Session.list())
  for (const { id } of listed) assert.isEmpty(Journal.check(yield* recordsOf(id)), id)
})

/** Fails where nothing is open and the thread is one that no provider takes. */
export const isValid = ({ approved, suspensions, thread }: Session.Session, where = "") => {
  if (approved.length === 0 && suspensions.length === 0) assert.isEmpty(check.thread(thread), where)
}

const plain = Schema.encodeSync(Schema.toCodecJson(Session.Session))

/** Fails where the store has anything else than what an operation came to. */
export const isLoaded = (kept: Session.Kept, where = "") =>
  Effect.gen(function*() {
    const loaded = (yield* Session.load(kept.id))!
    // Foreign values, as an error in the metadata, are plain data in a store.
    assert.deepStrictEqual(plain(loaded.session), plain(kept.session), where)
    assert.deepStrictEqual([loaded.version, Session.next(loaded)], [kept.version, Session.next(kept)], where)
    isValid(kept.session, where)
    // The summary that the store lists says what the fold of the journal says.
    const listed = yield* Stream.runHead(Stream.filter(Session.list({ prefix: kept.id }), ({ id }) => id === kept.id))
    if (loaded.interrupted === undefined && Option.isSome(listed)) {
      const { claim: _, id: __, since: ___, version: ____, ...summary } = listed.value
      assert.deepStrictEqual(summary, States.summaryOf(loaded.state), where)
    }
    yield* inOrder
  })

/** Renders a thread, a line for each message. */
export const linesOf = ({ thread }: Session.Session): ReadonlyArray<string> =>
  thread.messages.map(({ content, role, toolCallId, toolCalls = [] }) => {
    const calls = toolCalls.map(({ id }) => ` +${id}`).join("")
    return `${role}${toolCallId === undefined ? "" : ` ${toolCallId}`}${calls}: ${
      typeof content === "string" ? content : JSON.stringify(content)
    }`
  })

// The program of a user that does what is left to do.

/** Does what is left to do, as a program without a worker does. */
export const driven = (id: string, tools: []) =>
  Effect.gen(function*() {
    let kept = (yield* Session.load(id))!
    while (true) {
      const options = { tools, takeOver: true }
      const next = Session.next(kept)
      const [message] = kept.submitted ?? []
      if (next === "resume") kept = yield* Session.resume(kept, options)
      else if (next === "reply" && message !== undefined) {
        kept = yield* Session.keep(kept, (session) =>
          Session.reply(Session.recover(session), message.message.content, { ...options, takes: message.id }))
      } else if (next === "continue") {
        kept = yield* Session.keep(kept, (session) =>
          Session.continue(session, null, options))
      } else return kept
    }
  })

const errandModel = casting({
  go: [[["act", "act", {}], ["sub", "sub", {}]], "Done", [["gated", "gated", {}]], "More", "Last"],
  sub: [[["inner", "inner", {}]], "Sub"]
})

const errandTools = (world: Array<Deed>) =>
  [
    { ...acting(world, "act"), idempotent: true as const },
    agent("sub", [{ ...acting(world, "inner"), readOnly: true as const }]),
    { ...acting(world, "gated"), approval: true as const, idempotent: true as const }
  ] as unknown as []

/** A session of three messages and an approval, with a sub-agent. */
export const errands = {
  model: errandModel,
  toolsOf: errandTools,
  /** All that is appended where nothing goes wrong. */
  appends: Effect.suspend(() => {
    const appends: Array<Append> = []
    return Effect.gen(function*() {
      const tools = errandTools([])
      yield* Session.submit("s", "go", { id: "m1" })
      yield* driven("s", tools)
      yield* Session.submit("s", "more", { id: "m2" })
      const asked = yield* driven("s", tools)
      yield* Session.submit("s", "and then", { id: "m3" })
      yield* Session.keep(
        (yield* Session.load("s"))!,
        (session) => Session.approve(session, "gated", { command: "v1" })
      )
      const done = yield* driven("s", tools)
      assert.strictEqual(asked.session.suspensions.length, 1)
      assert.strictEqual(done.session.thread.messages.length, 10)
      const all: ReadonlyArray<Append> = appends
      return all
    }).pipe(Effect.provide([errandModel, listing(appends)]))
  })
}
