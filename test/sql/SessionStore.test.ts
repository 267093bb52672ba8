/**
 * The SQL layer of the session store on Node's SQLite: the suite for stores, what an append costs, what a user's client
 * may do to names and transactions, and what a damaged database gives.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Reactivity from "effect/reactivity/Reactivity"
import * as SqlClient from "effect/sql/SqlClient"
import * as Statement from "effect/sql/Statement"
import * as Stream from "effect/Stream"
import { Journal, Message, Session, Thread } from "heddle"
import { SessionStore, SqliteClient } from "heddle/sql"
import { Conformance, Script, StoreSuite } from "heddle/testing"
import { calling, done, payer, throughJson } from "../support/sessions.ts"
import * as Contract from "./support/contract.ts"
import { temporaryFile } from "./support/files.ts"

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const memory = SqliteClient.layer({ filename: ":memory:" })

/** The store and the client it uses. */
const both = Layer.provideMerge(SessionStore.layer, memory)

describe("the suite for stores on SQLite", () => {
  describe("a store in memory", () =>
    Conformance.register(StoreSuite.all, SessionStore.layerSqlite({ filename: ":memory:" }), it))

  describe("a store in a file", () =>
    Conformance.register(
      StoreSuite.all,
      Layer.unwrap(Effect.map(temporaryFile, (filename) => SessionStore.layerSqlite({ filename }))),
      it
    ))
})

describe("the SQL contract on SQLite", () =>
  Contract.register(Effect.map(temporaryFile, (filename) => SqliteClient.layer({ filename }))))

/** The statements that an effect runs, as they are sent. */
const statementsOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const sent: Array<readonly [sql: string, parameters: ReadonlyArray<unknown>]> = []
    yield* Effect.provideService(effect, Statement.CurrentTransformer, (statement) =>
      Effect.sync(() => {
        sent.push(statement.compile())
        return statement
      }))
    return sent
  })

describe("the cost of a store operation", () => {
  it.effect("an append runs the same statements at any history length, and each statement searches by key", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      const append = (id: string, version: number) => statementsOf(store.append(id, version, [said("x"), said("y")]))
      yield* store.append("short", 0, [said("x")])
      const short = yield* append("short", 1)
      const many = Array.from({ length: 4999 }, () => said("x"))
      yield* store.append("long", 0, [said("x"), ...many])
      const long = yield* append("long", 5000)
      assert.deepStrictEqual(long.map(([text]) => text), short.map(([text]) => text))
      assert.deepStrictEqual(
        long.map(([text]) => text.split(" ").slice(0, 3).join(" ")),
        ["UPDATE heddle_journals SET", "INSERT INTO heddle_records"]
      )
      for (const [text, parameters] of long) {
        const plan = yield* sql.unsafe<{ detail: string }>(`EXPLAIN QUERY PLAN ${text}`, parameters)
        const reads = plan.map(({ detail }) => detail).filter((detail) =>
          !/^SCAN (json_each|CONSTANT ROW)/.test(detail)
        )
        assert.deepStrictEqual(
          reads,
          text.startsWith("UPDATE")
            ? ["SEARCH heddle_journals USING INDEX sqlite_autoindex_heddle_journals_1 (id=?)"]
            : []
        )
      }
    }).pipe(Effect.provide(both)))

  it.effect("unfinished sessions are found through an index", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      yield* store.append("s", 0, [said("a")], { summary: { next: "reply", status: "idle" } })
      const found = [
        ...(yield* statementsOf(Stream.runDrain(store.unfinished))),
        ...(yield* statementsOf(store.claimUnfinished("me", 1000, 5)))
      ]
      assert.strictEqual(found.length, 3)
      for (const [text, parameters] of found) {
        const plan = yield* sql.unsafe<{ detail: string }>(`EXPLAIN QUERY PLAN ${text}`, parameters)
        const details = plan.map(({ detail }) => detail).filter((detail) => detail.includes("journals"))
        assert.strictEqual(details.length, 1)
        assert.match(details[0]!, /^SEARCH .* heddle_journals_unfinished .*due</)
      }
    }).pipe(Effect.provide(both, { local: true })))

  it.effect("the write-ahead log grows by the same number of pages at any history length", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      const pages = (version: number) =>
        Effect.gen(function*() {
          yield* sql`PRAGMA wal_checkpoint(TRUNCATE)`
          yield* store.append("s", version, [said("x".repeat(200))])
          const [row] = yield* sql<{ log: number }>`PRAGMA wal_checkpoint(PASSIVE)`
          return row!.log
        })
      const first = yield* pages(0)
      const rest = Array.from({ length: 4999 }, () => said("x".repeat(200)))
      yield* store.append("s", 1, [said("x"), ...rest])
      const last = yield* pages(5001)
      // A place in a tree of 5,000 lies one page deeper, and a page may just be full.
      assert.isAtMost(last, first + 4)
    }).pipe(
      Effect.provide(
        Layer.unwrap(
          Effect.map(
            temporaryFile,
            (filename) => Layer.provideMerge(SessionStore.layer, SqliteClient.layer({ filename }))
          )
        )
      )
    ))

  it.effect("reading fetches one page of records at a time", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      yield* store.append("s", 0, [said("x"), ...Array.from({ length: 999 }, () => said("x"))])
      const few = yield* statementsOf(Stream.runDrain(Stream.take(store.read("s"), 3)))
      const all = yield* statementsOf(Stream.runDrain(store.read("s")))
      // Its version is read first.
      assert.strictEqual(few.length, 2)
      assert.strictEqual(all.length, 9)
    }).pipe(Effect.provide(both)))
})

describe("a session in a file", () => {
  it.effect("the next process that opens the file resumes a session, and a second process gets SessionConflict", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      /** As a process of its own has it: the client and the store are built anew. */
      const opened = <A, E>(effect: Effect.Effect<A, E, Session.Store>) =>
        Effect.provide(effect, SessionStore.layerSqlite({ filename }), { local: true })
      const { pay, runs } = payer()
      const left = yield* opened(Effect.gen(function*() {
        const begun = yield* Session.open("s", { thread: Thread.fromMessages([Message.user("go")]) })
        return yield* Session.keep(
          begun,
          (session) => Effect.provide(Session.start(session, { tools: [pay] }), Script.layer([calling("pay:p")]))
        )
      }))
      assert.strictEqual(left.session.status, "awaiting_tools")
      const goOn = opened(Effect.gen(function*() {
        const loaded = (yield* Session.load("s"))!
        assert.deepStrictEqual(loaded.session, throughJson(left.session))
        const approved = yield* Session.keep(loaded, (session) => Session.approve(session, "p"))
        return yield* Session.keep(
          approved,
          (session) => Effect.provide(Session.continue(session, null, { tools: [pay] }), Script.layer([done]))
        )
      }))
      const ended = yield* goOn
      assert.deepStrictEqual([ended.session.status, runs], ["completed", [{ amount: 5 }]])
      const late = yield* Effect.flip(opened(Session.keep(left, (session) => Session.approve(session, "p"))))
      assert.strictEqual(late._tag, "SessionConflict")
      assert.strictEqual(runs.length, 1)
      assert.deepStrictEqual((yield* opened(Session.load("s")))?.session, throughJson(ended.session))
    }))
})

describe("a file locked by another connection", () => {
  /** Two stores over clients of their own on one file. The second waits for the lock as long as a test may take. */
  const two = Effect.gen(function*() {
    const filename = yield* temporaryFile
    const build = (options: SqliteClient.Options) =>
      Effect.map(
        Layer.build(Layer.fresh(Layer.provideMerge(SessionStore.layer, SqliteClient.layer(options)))),
        (context) => ({ store: Context.get(context, Session.Store), sql: Context.get(context, SqlClient.SqlClient) })
      )
    return [yield* build({ filename }), yield* build({ filename, busyTimeout: "10 minutes" })] as const
  })

  /** A lock that is held from now on until the scope closes. */
  const held = (sql: SqlClient.SqlClient) =>
    Effect.gen(function*() {
      const isHeld = yield* Deferred.make<void>()
      yield* Effect.forkScoped(sql.withTransaction(Effect.andThen(Deferred.succeed(isHeld, undefined), Effect.never)))
      yield* Deferred.await(isHeld)
    })

  it.live("N-16: an idle poll does not wait for the lock", () =>
    Effect.gen(function*() {
      const [other, mine] = yield* two
      yield* mine.store.append("s", 0, [said("a")])
      yield* held(other.sql)
      assert.deepStrictEqual(yield* mine.store.claimUnfinished("me", 60_000, 10), [])
    }).pipe(Effect.scoped))

  it.live("N-16: an owner waiting for the lock does not block its own client", () =>
    Effect.gen(function*() {
      const [other, mine] = yield* two
      yield* mine.store.append("s", 0, [said("a")], { summary: { next: "reply", status: "idle" } })
      const claimed = yield* Effect.scoped(Effect.gen(function*() {
        yield* held(other.sql)
        const looked = yield* Deferred.make<void>()
        const fiber = yield* Effect.forkDetach(
          Effect.provideService(
            mine.store.claimUnfinished("me", 60_000, 10),
            Statement.CurrentTransformer,
            (statement) => Effect.as(Deferred.succeed(looked, undefined), statement)
          )
        )
        yield* Deferred.await(looked)
        for (let turn = 0; turn < 100; turn++) {
          yield* Effect.yieldNow
          assert.strictEqual(yield* mine.store.version("s"), 1)
        }
        return fiber
      }))
      assert.deepStrictEqual(yield* Fiber.join(claimed), ["s"])
    }).pipe(Effect.scoped))

  it.live("N-16: an owner whose session another owner takes returns without the lock", () =>
    Effect.gen(function*() {
      const [other, mine] = yield* two
      yield* mine.store.append("s", 0, [said("a")], { summary: { next: "reply", status: "idle" } })
      const looked = yield* Deferred.make<void>()
      const fiber = yield* other.sql.withTransaction(Effect.gen(function*() {
        assert.deepStrictEqual(yield* other.store.claimUnfinished("other", 600_000, 10), ["s"])
        const fiber = yield* Effect.forkChild(
          Effect.provideService(
            mine.store.claimUnfinished("me", 60_000, 10),
            Statement.CurrentTransformer,
            (statement) => Effect.as(Deferred.succeed(looked, undefined), statement)
          )
        )
        yield* Deferred.await(looked)
        return fiber
      }))
      yield* held(other.sql)
      assert.deepStrictEqual(yield* Fiber.join(fiber), [])
    }).pipe(Effect.scoped))
})

describe("a client of the application", () => {
  it.live("a client may transform names on the way in and out", () =>
    Effect.gen(function*() {
      const shouting = Layer.effect(
        SqlClient.SqlClient,
        Effect.gen(function*() {
          const plain = yield* SqlClient.SqlClient
          return yield* SqlClient.make({
            acquirer: plain.reserve,
            compiler: Statement.makeCompilerSqlite((name) => `_${name}`),
            driver: "test",
            spanAttributes: [],
            transformRows: Statement.defaultTransforms((name) => name.toUpperCase()).array
          })
        })
      ).pipe(Layer.provide([memory, Reactivity.layer]))
      const failures = yield* Conformance.failures(StoreSuite.all, Layer.provide(SessionStore.layer, shouting))
      assert.deepStrictEqual(failures.map(({ message }) => message), [])
    }))

  it.effect("an append inside a transaction is rolled back with the transaction", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      const inside = Effect.andThen(store.append("s", 0, [said("x")]), Effect.fail("changed my mind"))
      assert.strictEqual(yield* Effect.flip(sql.withTransaction(inside)), "changed my mind")
      assert.strictEqual(yield* store.version("s"), 0)
      assert.strictEqual(yield* sql.withTransaction(store.append("s", 0, [said("y")])), 1)
      assert.strictEqual(yield* store.version("s"), 1)
    }).pipe(Effect.provide(both)))

  it.effect("four concurrent openings create the tables once, and a later opening finds them", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      const open = <A, E>(effect: Effect.Effect<A, E, Session.Store>) =>
        Effect.provide(effect, SessionStore.layerSqlite({ filename }), { local: true })
      const opening = Array.from(
        { length: 4 },
        () => open(Effect.flatMap(Session.Store, (store) => store.version("s")))
      )
      assert.deepStrictEqual(yield* Effect.all(opening, { concurrency: "unbounded" }), [0, 0, 0, 0])
      yield* open(Effect.flatMap(Session.Store, (store) => store.append("s", 0, [said("x")])))
      assert.strictEqual(yield* open(Effect.flatMap(Session.Store, (store) => store.version("s"))), 1)
    }).pipe(Effect.scoped))
})

describe("session ids", () => {
  it.effect("ids that are not well-formed texts stay distinct", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const ids = ["\ud800", "\ud801", "a\u0000b", "a\u0000c", "\\ud800", "\"", "\\\"", ""]
      yield* Effect.forEach(ids, (id, index) => store.append(id, 0, [said(`${index}`)]))
      for (const [index, id] of ids.entries()) {
        const [entry] = yield* Stream.runCollect(store.read(id))
        assert.deepStrictEqual(entry, { version: 1, record: said(`${index}`) })
      }
    }).pipe(Effect.provide(both)))
})

describe("a damaged or limited database", () => {
  const damaged = (damage: (sql: SqlClient.SqlClient) => Effect.Effect<unknown, unknown>) =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      yield* store.append("s", 0, [said("a"), said("b"), said("c")])
      yield* damage(yield* SqlClient.SqlClient)
      return yield* Effect.all([
        Effect.exit(store.append("s", 3, [said("x")])),
        Effect.exit(store.version("s")),
        Effect.exit(Stream.runCollect(store.read("s")))
      ])
    }).pipe(Effect.provide(both, { local: true }))

  const errorOf = (exit: Exit.Exit<unknown, unknown>): Journal.StoreError => {
    const error = Option.getOrUndefined(Exit.findErrorOption(exit))
    assert.instanceOf(error, Journal.StoreError)
    return error
  }

  it.effect("reading a session with a missing or invalid record fails as unreadable", () =>
    Effect.gen(function*() {
      const gap = yield* damaged((sql) => sql`DELETE FROM heddle_records WHERE version = 2`)
      const changed = yield* damaged((sql) => sql`UPDATE heddle_records SET record = '{"_tag":7}' WHERE version = 2`)
      for (const [, , read] of [gap, changed]) {
        const { operation, reason } = errorOf(read)
        assert.deepStrictEqual([reason, operation], ["unreadable", "read"])
      }
    }))

  const damages: Record<string, readonly [(sql: SqlClient.SqlClient) => Effect.Effect<unknown, unknown>, number]> = {
    "the loss of its last record": [(sql) => sql`DELETE FROM heddle_records WHERE version = 3`, 3],
    "the loss of all records": [(sql) => sql`DELETE FROM heddle_records`, 1],
    "the loss of a record in the middle": [(sql) => sql`DELETE FROM heddle_records WHERE version = 2`, 2],
    "a swap of two records": [(sql) =>
      sql`UPDATE heddle_records SET version = -version WHERE version > 1`.pipe(
        Effect.andThen(sql`UPDATE heddle_records SET version = 5 + version WHERE version < 0`)
      ), 2],
    "an unknown record": [(sql) => sql`UPDATE heddle_records SET record = '{"_tag":7}' WHERE version = 2`, 2],
    "a record without a required field": [
      (sql) => sql`UPDATE heddle_records SET record = '{"_tag":"CallSettled"}' WHERE version = 2`,
      2
    ],
    "a truncated record": [
      (sql) => sql`UPDATE heddle_records SET record = substr(record, 1, 20) WHERE version = 2`,
      2
    ],
    "a lower record count": [(sql) => sql`UPDATE heddle_journals SET version = 2`, 3],
    "the loss of the record count": [(sql) => sql`DELETE FROM heddle_journals`, 1]
  }

  for (const [damage, [inflict, version]] of Object.entries(damages)) {
    it.effect(`M-25, M-26: reading, loading and opening a journal report the damaged version after ${damage}`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        yield* store.append("s", 0, [said("a"), said("b"), said("c")])
        yield* inflict(yield* SqlClient.SqlClient)
        const reads: ReadonlyArray<Effect.Effect<unknown, Journal.StoreError, Session.Store>> = [
          Stream.runDrain(store.read("s")),
          Session.load("s"),
          Session.open("s")
        ]
        for (const read of reads) {
          const error = errorOf(yield* Effect.exit(read))
          assert.deepStrictEqual([error.reason, error.operation, error.version], ["unreadable", "read", version])
          assert.strictEqual(error.message, `the journal of session "s" is damaged at version ${version}`)
        }
      }).pipe(Effect.provide(both, { local: true })))
  }

  it.effect("a record or a table written by a newer release fails as newer_version or asks for an upgrade", () =>
    Effect.gen(function*() {
      const [, , read] = yield* damaged((sql) =>
        sql`UPDATE heddle_records SET record = '{"version":2,"_tag":"Steered","text":"left"}' WHERE version = 2`
      )
      const error = errorOf(read)
      assert.deepStrictEqual([error.reason, error.version], ["newer_version", 2])
      assert.strictEqual(
        error.message,
        "a newer release of Heddle has written the journal of session \"s\" at version 2: upgrade to read it"
      )
      assert.strictEqual(error.cause, "this release does not know the record Steered")
      const filename = yield* temporaryFile
      const open = Effect.provide(Effect.void, SessionStore.layerSqlite({ filename }), { local: true })
      yield* open
      yield* Effect.flatMap(
        SqlClient.SqlClient,
        (sql) => sql`INSERT INTO heddle_migrations (migration_id, name) VALUES (99, 'later')`
      ).pipe(
        Effect.provide(SqliteClient.layer({ filename }), { local: true })
      )
      const refused = yield* Effect.flip(open)
      assert.strictEqual(
        refused.message,
        "a newer release of Heddle has changed the store's tables: upgrade Heddle to use this store"
      )
    }).pipe(Effect.scoped))

  it.effect("an append to a full file fails as full, and succeeds once there is room", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      yield* store.append("s", 0, [said("a")])
      const [row] = yield* sql<{ page_count: number }>`PRAGMA page_count`
      yield* sql.unsafe(`PRAGMA max_page_count = ${row!.page_count}`)
      const large = Array.from({ length: 50 }, () => said("x".repeat(1000))) as never
      const error = errorOf(yield* Effect.exit(store.append("s", 1, large)))
      assert.deepStrictEqual([error.reason, error.operation, error.id], ["full", "append", "s"])
      assert.match(error.message, /^the store is full \(append of session "s"\): nothing was written; make room/)
      assert.strictEqual(yield* store.version("s"), 1)
      yield* sql`PRAGMA max_page_count = 1000000`
      assert.strictEqual(yield* store.append("s", 1, large), 51)
    }).pipe(Effect.provide(both, { local: true })))

  it.effect("a read-only file can be read, and every write fails as read_only", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      yield* store.append("s", 0, [said("a")], { summary: { next: "reply", status: "idle" } })
      yield* sql`PRAGMA query_only = 1`
      const writes = {
        append: store.append("s", 1, [said("b")]),
        delete: store.delete("s"),
        claim: store.claim("s", "me", 1000),
        renew: store.renew("s", "me", 1000),
        claimUnfinished: store.claimUnfinished("me", 1000, 1)
      }
      for (const [operation, write] of Object.entries(writes)) {
        const error = errorOf(yield* Effect.exit(write))
        assert.deepStrictEqual([error.reason, error.operation], ["read_only", operation])
        assert.match(error.message, /^the store is read-only .*: nothing was written; open it for writing$/)
      }
      assert.strictEqual((yield* Stream.runCollect(store.read("s"))).length, 1)
    }).pipe(Effect.provide(both, { local: true })))

  it.effect("M-26: an append during a read does not damage what is read", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const many = (from: number) => Array.from({ length: 200 }, (_, index) => said(`${from + index}`)) as never
      yield* store.append("s", 0, many(0))
      let version = 200
      const seen = yield* Stream.runCollect(Stream.mapArrayEffect(store.read("s"), (entries) =>
        version < 1000
          ? Effect.as(Effect.map(store.append("s", version, many(version)), (next) => version = next), entries)
          : Effect.succeed(entries)))
      assert.deepStrictEqual(seen.map((entry) => entry.version), seen.map((_, index) => index + 1))
      assert.isAtLeast(seen.length, 200)
      assert.deepStrictEqual(yield* Stream.runCollect(store.read("s", 999)), [{ version: 1000, record: said("999") }])
      assert.deepStrictEqual(yield* Stream.runCollect(store.read("s", 5000)), [])
    }).pipe(Effect.provide(both, { local: true })))

  it.effect("an append never overwrites records, and a failed append writes nothing", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const sql = yield* SqlClient.SqlClient
      yield* store.append("s", 0, [said("a"), said("b")])
      yield* sql`UPDATE heddle_journals SET version = 1`
      assert.strictEqual(errorOf(yield* Effect.exit(store.append("s", 1, [said("x")]))).reason, "unavailable")
      assert.strictEqual(yield* store.version("s"), 1)
    }).pipe(Effect.provide(both)))

  it.effect("without its tables every operation is unavailable, with the cause", () =>
    Effect.gen(function*() {
      const exits = yield* damaged((sql) =>
        Effect.andThen(sql`DROP TABLE heddle_records`, sql`DROP TABLE heddle_journals`)
      )
      for (const [index, operation] of (["append", "version", "read"] as const).entries()) {
        const error = errorOf(exits[index]!)
        assert.deepStrictEqual([error.reason, error.operation, error.id], ["unavailable", operation, "s"])
        assert.match(String(error.cause), /no such table/)
      }
    }))
})
