/**
 * What holds of the SQL layer on every database, as tests over a client: what the suite for stores cannot ask, since it needs
 * the tables, or several connections.
 */
import { assert, it } from "@effect/vitest"
import type * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as SqlClient from "effect/sql/SqlClient"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Journal, Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { shareOf } from "../../support/property.ts"

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const started: Journal.Record = { _tag: "RunStarted", requestId: "r", operation: "start", startedAt: 0, messages: [] }

/** Runs an effect, and returns the statements that it sends, with those that begin and end transactions. */
const statementsOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const spans: Array<Tracer.NativeSpan> = []
    const tracer = Tracer.make({
      span: (options) => {
        const span = new Tracer.NativeSpan(options)
        spans.push(span)
        return span
      }
    })
    yield* Effect.provideService(effect, Tracer.Tracer, tracer)
    return spans.map((span) => String(span.attributes.get("db.query.text") ?? span.name))
  })

/**
 * Registers the tests. `connect` makes a client of a database that is new in each scope: two clients of one scope share
 * it.
 */
export const register = (
  connect: Effect.Effect<Layer.Layer<SqlClient.SqlClient, unknown>, unknown, Scope.Scope>
): void => {
  it.live("list, count and unfinished find all of 600 sessions, in whatever order the database sorts ids", () =>
    Effect.gen(function*() {
      const client = yield* connect
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const sql = yield* SqlClient.SqlClient
        const rows = Array.from({ length: 600 }, (_, index) => ({
          id: `${"aB_bAä"[index % 6]}${index}`,
          version: 1,
          next: "resume",
          status: index % 2 === 0 ? "error" : "stopped",
          due: 0
        }))
        const ids = rows.map(({ id }) => id)
        yield* sql`INSERT INTO heddle_journals ${sql.insert(rows as Arr.NonEmptyArray<typeof rows[number]>)}`
        const all = yield* Stream.runCollect(store.list())
        assert.deepStrictEqual(all.map(({ id }) => id).toSorted(), ids.toSorted())
        assert.strictEqual((yield* Stream.runCollect(store.unfinished)).length, 600)
        for (const [index, status] of ["error", "stopped"].entries()) {
          const found = yield* Stream.runCollect(store.list({ status: status as Session.Status }))
          const own = ids.filter((_, place) => place % 2 === index)
          assert.deepStrictEqual(found.map(({ id }) => id).toSorted(), own.toSorted())
        }
        assert.deepInclude(yield* store.count(), { error: 300, stopped: 300, idle: 0 })
        for (const prefix of ["a", "B", "_", "b", "A", "ä"]) {
          const found = yield* Stream.runCollect(store.list({ prefix }))
          assert.deepStrictEqual(
            found.map(({ id }) => id).toSorted(),
            ids.filter((id) => id.startsWith(prefix)).toSorted()
          )
          const { error, stopped } = yield* store.count({ prefix })
          assert.strictEqual(error + stopped, found.length)
        }
      }).pipe(Effect.provide(Layer.provideMerge(SessionStore.layer, client), { local: true }))
    }).pipe(Effect.scoped))

  it.live("of two connections that append at the same version one wins, and the other gets SessionConflict", () =>
    Effect.gen(function*() {
      const client = yield* connect
      const layer = Layer.provide(SessionStore.layer, client)
      const contexts = yield* Effect.all([Layer.build(Layer.fresh(layer)), Layer.build(Layer.fresh(layer))])
      const wins = [0, 0]
      for (let round = 0; round < 100; round++) {
        const exits = yield* Effect.forEach(
          contexts,
          (context, index) =>
            Effect.flatMap(
              Session.Store,
              (store) => store.append("s", 2 * round, [said(`${index}a`), said(`${index}b`)])
            )
              .pipe(Effect.provideContext(context), Effect.exit),
          { concurrency: "unbounded" }
        )
        const winner = exits.findIndex(Exit.isSuccess)
        const loser = exits[1 - winner]
        assert.deepStrictEqual(
          loser,
          Exit.fail(new Journal.SessionConflict({ id: "s", expected: 2 * round, actual: 2 * round + 2 }))
        )
        wins[winner === 0 ? 0 : 1]!++
      }
      assert.strictEqual(wins[0]! + wins[1]!, 100)
    }).pipe(Effect.scoped))

  it.live("connections that claim unfinished sessions at once get each session once", () =>
    Effect.gen(function*() {
      const client = yield* connect
      const layer = Layer.provide(SessionStore.layer, client)
      const contexts = yield* Effect.all(Array.from({ length: 3 }, () => Layer.build(Layer.fresh(layer))))
      const stores = yield* Effect.forEach(contexts, (context) => Effect.provideContext(Session.Store, context))
      const ids = Array.from({ length: 60 }, (_, index) => `s${index}`)
      yield* Effect.forEach(ids, (id) =>
        stores[0]!.append(id, 0, [started], { summary: { next: "resume", status: "idle" } }), {
        concurrency: 8
      })
      const take = (owner: number) =>
        Effect.gen(function*() {
          const found: Array<string> = []
          let empty = 0
          while (empty < 3) {
            const some = yield* stores[owner]!.claimUnfinished(`${owner}`, 60_000, 3)
            empty = some.length === 0 ? empty + 1 : 0
            found.push(...some)
          }
          return found
        })
      const found = yield* Effect.all([take(0), take(1), take(2)], { concurrency: "unbounded" })
      assert.deepStrictEqual(found.flat().toSorted(), ids.toSorted())
      for (const [owner, ids] of found.entries()) {
        for (const id of ids) {
          assert.strictEqual((yield* stores[0]!.claim(id, "other", 1000)).owner, `${owner}`)
        }
      }
    }).pipe(Effect.scoped))

  it.live("N-16: an idle poll is a single SELECT statement", () =>
    Effect.gen(function*() {
      const client = yield* connect
      const store = yield* Effect.provideContext(
        Session.Store,
        yield* Layer.build(Layer.provide(SessionStore.layer, client))
      )
      const poll = store.claimUnfinished("me", 60_000, 10)
      const isOneRead = (sent: ReadonlyArray<string>) => sent.length === 1 && sent[0]!.startsWith("SELECT")
      const empty = yield* statementsOf(poll)
      assert.isTrue(isOneRead(empty), empty.join(";\n"))
      yield* store.append("done", 0, [started], { summary: { next: "nothing", status: "idle" } })
      yield* store.append("waits", 0, [started], { summary: { next: "wait", status: "idle" } })
      yield* store.append("claimed", 0, [started], { summary: { next: "resume", status: "idle" } })
      yield* store.claim("claimed", "other", 600_000)
      const idle = yield* statementsOf(poll)
      assert.isTrue(isOneRead(idle), idle.join(";\n"))
      yield* store.release("claimed", "other")
      assert.deepStrictEqual(yield* poll, ["claimed"])
    }).pipe(Effect.scoped))

  it.live(
    "a session opened or written as a snapshot during its deletion is either whole or deleted",
    () =>
      Effect.gen(function*() {
        const client = yield* connect
        const layer = Layer.provide(SessionStore.layer, client)
        const contexts = yield* Effect.all([Layer.build(Layer.fresh(layer)), Layer.build(Layer.fresh(layer))])
        const [first, second] = yield* Effect.forEach(
          contexts,
          (context) => Effect.provideContext(Session.Store, context)
        )
        const within = Effect.provideService(Session.Store, first!)
        for (let round = 0; round < shareOf(100); round++) {
          const id = `s${round}`
          yield* Effect.all([second!.delete(id), within(Session.open(id))], { concurrency: "unbounded" })
          const opened = yield* within(Session.open(id))
          assert.strictEqual(opened.version, 1)
          yield* Effect.all([second!.delete(id), Effect.exit(within(Session.snapshot(opened)))], {
            concurrency: "unbounded"
          }).pipe(Effect.map(([, exit]) => {
            if (Exit.isFailure(exit)) assert.strictEqual(exit.cause.reasons[0]?._tag, "Fail", String(exit.cause))
          }))
          yield* within(Session.open(id))
        }
      }).pipe(Effect.scoped),
    60_000
  )
}
