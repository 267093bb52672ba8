/**
 * The SQL layer of the session store on a real Postgres server, whose database orders words as a dictionary does: the suite
 * for stores, also where the database demands a stricter isolation, and writers and owners on several connections. And that
 * a server which a killed run left is stopped.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import * as Statement from "effect/sql/Statement"
import * as Stream from "effect/Stream"
import { Journal, Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { Conformance, Script, StoreSuite } from "heddle/testing"
import { fork } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import { fileURLToPath } from "node:url"
import * as Postgres from "../support/postgres.ts"
import { reap } from "../support/postgresServer.ts"
import { bound, limit } from "../support/until.ts"
import * as Contract from "./support/contract.ts"
import * as Proxies from "./support/proxy.ts"

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const connect = Effect.map(Postgres.database, (url) => Postgres.client(url))

/** One database for all cases. */
const kept = (options: Parameters<typeof Postgres.client>[1] = {}) => {
  const url = Effect.runSync(Effect.cached(Postgres.database))
  const client = Layer.unwrap(Effect.map(url, (url) => Postgres.client(url, options)))
  return Layer.provide(SessionStore.layer, client)
}

describe("the suite for stores on Postgres", () => {
  describe("Postgres with default settings", () => Conformance.register(StoreSuite.all, kept(), it))

  describe("Postgres with serializable transactions", () =>
    Conformance.register(
      StoreSuite.all,
      kept({ startupParameters: { default_transaction_isolation: "serializable" } }),
      it
    ))
})

describe("the SQL contract on Postgres", () => Contract.register(connect))

describe("a process cut off from the network during a change", { timeout: limit }, () => {
  it.live("D-11: a process cut off during a change blocks neither the next append nor the next claim", () =>
    Effect.gen(function*() {
      const url = yield* Postgres.database
      const layer = (url: string) => Layer.fresh(Layer.provide(SessionStore.layer, Postgres.client(url)))
      const next = Context.get(yield* Layer.build(layer(url)), Session.Store)
      const changes: Record<string, (store: Journal.Service, id: string) => Effect.Effect<unknown, unknown>> = {
        append: (store, id) => store.append(id, 2, [said("c"), said("d")]),
        truncate: (store, id) => store.truncate(id, 2),
        claim: (store, id) => store.claim(id, "frozen", 60_000),
        renew: (store, id) => store.renew(id, "frozen", 60_000),
        claimUnfinished: (store) => store.claimUnfinished("frozen", 60_000, 10)
      }
      for (const [name, change] of Object.entries(changes)) {
        // A change has fewer messages than this.
        for (let messages = 0; messages < 5; messages++) {
          const id = `${name} ${messages}`
          yield* next.append(id, 0, [said("a"), { _tag: "Opened", format: 1, session: Session.make({ id }) }])
          yield* Effect.gen(function*() {
            const proxy = yield* Proxies.make(url)
            const cut = Context.get(yield* Layer.build(layer(proxy.url)), Session.Store)
            // Its statements are prepared, its connection is open.
            yield* next.append(`${id} before`, 0, [said("a"), {
              _tag: "Opened",
              format: 1,
              session: Session.make({ id })
            }])
            yield* change(cut, `${id} before`)
            proxy.cutAfter(messages)
            yield* Effect.forkScoped(Effect.ignore(change(cut, id)))
            yield* proxy.isCut
            const version = yield* next.version(id)
            const appended = next.append(id, version, [said("e")]).pipe(
              Effect.catchTag("SessionConflict", Effect.succeed)
            )
            yield* Effect.timeout(appended, bound)
            yield* Effect.timeout(next.claim(id, "next", 60_000), bound)
            yield* proxy.hangUp
          }).pipe(Effect.scoped)
        }
      }
    }).pipe(Effect.scoped))
})

describe("the cost of an idle poll", () => {
  it.live("N-16: an idle poll reads no ended and no waiting sessions", () =>
    Effect.gen(function*() {
      const client = yield* connect
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const sql = yield* SqlClient.SqlClient
        yield* sql`INSERT INTO heddle_journals (id, version, next, status, due)
          SELECT 's' || n, 1, CASE WHEN n % 2 = 0 THEN 'wait' ELSE 'nothing' END, 'completed',
            CASE WHEN n % 2 = 0 THEN 1e15 END FROM generate_series(1, 20000) n`
        yield* store.append("free", 0, [said("a")], { summary: { next: "reply", status: "idle" } })
        yield* sql`ANALYZE`
        const sent: Array<Statement.Statement<unknown>> = []
        yield* Effect.andThen(Stream.runDrain(store.unfinished), store.claimUnfinished("me", 60_000, 5)).pipe(
          Effect.provideService(
            Statement.CurrentTransformer,
            (statement) => Effect.sync(() => (sent.push(statement), statement))
          )
        )
        assert.strictEqual(sent.length, 3)
        for (const statement of sent) {
          const [text, parameters] = statement.compile()
          const rows = yield* sql.unsafe<Record<"QUERY PLAN", string>>(
            `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ${text}`,
            parameters
          )
          const plan = rows.map((row) => row["QUERY PLAN"]).join("\n")
          assert.include(plan, "heddle_journals_unfinished", plan)
          const removed = Array.from(plan.matchAll(/Rows Removed by .*: (\d+)/g), ([, count]) => Number(count))
          assert.isTrue(removed.every((count) => count < 10), plan)
        }
      }).pipe(Effect.provide(Layer.provideMerge(SessionStore.layer, client), { local: true }))
    }).pipe(Effect.scoped))
})

describe("a transaction of the application", () => {
  it.live("a failed append inside a transaction leaves the transaction usable, and its error has the cause", () =>
    Effect.gen(function*() {
      const client = yield* connect
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const sql = yield* SqlClient.SqlClient
        yield* store.append("s", 0, [said("a")])
        yield* sql`CREATE TABLE mine (a INTEGER)`
        yield* sql`CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
          'BEGIN IF NEW.id = ''full'' THEN RAISE EXCEPTION ''full'' USING ERRCODE = ''53100''; END IF; RETURN NEW; END'`
        yield* sql`CREATE TRIGGER no_room BEFORE INSERT ON heddle_records FOR EACH ROW EXECUTE FUNCTION no_room()`
        yield* sql.withTransaction(Effect.gen(function*() {
          yield* sql`INSERT INTO mine VALUES (1)`
          const full = yield* Effect.flip(store.append("full", 0, [said("b")]))
          assert.deepInclude(full, { _tag: "StoreError", reason: "full" })
          assert.strictEqual(yield* store.append("s", 1, [said("b")]), 2)
        }))
        assert.deepStrictEqual(yield* sql`SELECT a FROM mine`, [{ a: 1 }])
        // Another writer is faster.
        const began = yield* Deferred.make<void>()
        const written = yield* Deferred.make<void>()
        const slow = sql.withTransaction(Effect.gen(function*() {
          yield* sql`SELECT a FROM mine`
          yield* Deferred.succeed(began, undefined)
          yield* Deferred.await(written)
          return yield* Effect.flip(store.append("s", 2, [said("c")]))
        })).pipe(Effect.provideService(SqlClient.BeginTransaction, "BEGIN ISOLATION LEVEL REPEATABLE READ"))
        const fiber = yield* Effect.forkChild(slow)
        yield* Deferred.await(began)
        yield* store.append("s", 2, [said("d")])
        yield* Deferred.succeed(written, undefined)
        const { cause } = (yield* Fiber.join(fiber)) as Journal.StoreError
        assert.strictEqual((cause as SqlError.SqlError).reason._tag, "SerializationError")
      }).pipe(Effect.provide(Layer.provideMerge(SessionStore.layer, client), { local: true }))
    }).pipe(Effect.scoped))
})

describe("a server that refuses records", () => {
  it.live("an append to a full or read-only server fails with that reason", () =>
    Effect.gen(function*() {
      const url = yield* Postgres.database
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const sql = yield* SqlClient.SqlClient
        yield* store.append("s", 0, [said("a")])
        // A trigger reports what the server does where its disk is full.
        yield* sql`CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
          'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''53100''; END'`
        yield* sql`CREATE TRIGGER no_room BEFORE INSERT ON heddle_records EXECUTE FUNCTION no_room()`
        const full = yield* Effect.flip(store.append("s", 1, [said("b")]))
        assert.deepInclude(full, { _tag: "StoreError", reason: "full", operation: "append", id: "s" })
        assert.strictEqual(yield* store.version("s"), 1)
      }).pipe(Effect.provide(Layer.provideMerge(SessionStore.layer, Postgres.client(url)), { local: true }))
      const reader = Postgres.client(url, { startupParameters: { default_transaction_read_only: "on" } })
      yield* Effect.gen(function*() {
        const store = yield* SessionStore.make
        const refused = yield* Effect.flip(store.append("s", 1, [said("b")]))
        assert.deepInclude(refused, { _tag: "StoreError", reason: "read_only", operation: "append", id: "s" })
        assert.strictEqual((yield* Stream.runCollect(store.read("s"))).length, 1)
      }).pipe(Effect.provide(reader, { local: true }))
    }))
})

describe("a server that goes away", { timeout: limit }, () => {
  it.live("D-15: every operation is unavailable while the server is down, and no appended record is lost", () =>
    Effect.gen(function*() {
      const server = yield* Postgres.server
      const context = yield* Layer.build(Layer.provide(SessionStore.layer, Postgres.client(server.url)))
      const store = Context.get(context, Session.Store)
      yield* store.append("s", 0, [said("a")])
      yield* server.stop
      const operations: Record<Journal.StoreError["operation"], Effect.Effect<unknown, unknown>> = {
        append: store.append("s", 1, [said("b")]),
        version: store.version("s"),
        read: Stream.runDrain(store.read("s")),
        unfinished: Stream.runDrain(store.unfinished),
        list: Stream.runDrain(store.list()),
        count: store.count(),
        truncate: store.truncate("s", 2),
        delete: store.delete("s"),
        claim: store.claim("s", "me", 1000),
        renew: store.renew("s", "me", 1000),
        claimOf: store.claimOf("s"),
        release: store.release("s", "me"),
        claimUnfinished: store.claimUnfinished("me", 1000, 1)
      }
      for (const [operation, effect] of Object.entries(operations)) {
        const error = yield* Effect.flip(effect).pipe(Effect.timeout(bound))
        assert.instanceOf(error, Journal.StoreError, operation)
        assert.deepStrictEqual([error.reason, error.operation], ["unavailable", operation])
      }
      yield* server.start
      const back = store.append("s", 1, [said("b")]).pipe(Effect.retry(Schedule.spaced(50)))
      assert.strictEqual(yield* back, 2)
      assert.strictEqual((yield* Stream.runCollect(store.read("s"))).length, 2)
    }).pipe(Effect.scoped))
})

describe("a run whose server goes away", () => {
  it.live(
    "D-15: a run fails with StoreError when its server goes away, and resumes later with no call lost or repeated",
    () =>
      Effect.gen(function*() {
        const server = yield* Postgres.server
        const charged: Array<number> = []
        const charge = Tool.make("charge", {
          parameters: { amount: Schema.Finite },
          handler: ({ amount }) => Effect.sync(() => charged.push(amount)).pipe(Effect.as(`charged ${amount}`))
        })
        const stopped = yield* Deferred.make<void>()
        const stop = Effect.forkDetach(Effect.andThen(server.stop, Deferred.succeed(stopped, undefined)))
        // The first call has ended when the second one takes the server away.
        const unplug = Tool.make("unplug", {
          parameters: {},
          concurrency: "exclusive",
          handler: () => stop.pipe(Effect.andThen(Deferred.await(stopped)), Effect.as("unplugged"))
        })
        const tools = [charge, unplug]
        const calling = (...calls: ReadonlyArray<readonly [string, string, { readonly amount?: number }]>) => [
          ...calls.map(([id, name, args]) => Script.toolCall(id, name, args)),
          Script.finish("tool_calls")
        ]
        const first = Script.layer([calling(["c0", "charge", { amount: 1 }], ["u0", "unplug", {}])])
        const second = Script.layer([
          calling(["c1", "charge", { amount: 2 }]),
          [Script.text("All charged."), Script.finish("stop")]
        ])
        yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          const run = Session.keep(opened, (session) => Session.reply(session, "Charge", { tools }))
          const error = yield* Effect.flip(Effect.provide(run, first)).pipe(Effect.timeout(bound))
          assert.deepInclude(error, { _tag: "StoreError", reason: "unavailable", operation: "append", id: "s" })
          assert.deepStrictEqual(charged, [1])
          yield* server.start
          const cut = yield* Session.load("s").pipe(Effect.retry(Schedule.spaced(100)))
          assert.deepStrictEqual(
            cut?.interrupted?.calls.map((call) => [call.toolCall.id, call.message !== undefined]),
            [["c0", true], ["u0", false]]
          )
          if (cut === undefined) return
          const ended = yield* Effect.provide(Session.resume(cut, { tools, takeOver: true }), second)
          assert.deepStrictEqual([ended.session.status, charged], ["completed", [1, 2]])
          const loaded = yield* Session.load("s")
          assert.deepStrictEqual(loaded?.session.thread, ended.session.thread)
          const answers = ended.session.thread.messages.flatMap(({ content, toolCallId }) =>
            toolCallId === undefined ? [] : [`${toolCallId}: ${content}`]
          )
          assert.deepStrictEqual([answers[0], answers[2]], ["c0: charged 1", "c1: charged 2"])
          assert.include(answers[1], "unknown_effect")
        }).pipe(
          Effect.provide(Layer.provide(SessionStore.layer, Postgres.client(server.url)), { local: true })
        )
      }).pipe(Effect.scoped),
    limit
  )
})

describe("a server left by a killed run", { timeout: limit }, () => {
  it.live("the next run stops a server left by a killed run, and removes its folder", () =>
    Effect.gen(function*() {
      const program = fileURLToPath(new URL("./support/leaver.ts", import.meta.url))
      const child = fork(program, [], { execArgv: ["--conditions=source"] })
      const [folder, pid] = yield* Effect.promise(() => once(child, "message")).pipe(Effect.map(([left]) => left))
      yield* Effect.promise(() => once(child, "close"))
      assert.isTrue(fs.existsSync(folder))
      process.kill(pid, 0)
      assert.include(yield* Effect.promise(reap), folder)
      assert.isFalse(fs.existsSync(folder))
      // Where the first process of a machine does not wait for its children, an ended one still has its entry.
      const status = fs.existsSync(`/proc/${pid}/stat`) ? fs.readFileSync(`/proc/${pid}/stat`, "utf8") : ""
      if (process.platform === "linux") assert.match(status, /^$|\) Z /)
      else assert.throws(() => process.kill(pid, 0))
    }))
})
