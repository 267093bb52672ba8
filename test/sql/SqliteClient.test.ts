/**
 * The client over Node's SQLite: rows, values, raw results and streams, transactions, waiting for the lock of
 * another connection, big integers, and its error where it cannot work.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as SqlClient from "effect/sql/SqlClient"
import type { SqlError } from "effect/sql/SqlError"
import * as Stream from "effect/Stream"
import { SqliteClient } from "heddle/sql"
import * as fs from "node:fs"
import * as path from "node:path"
import { DatabaseSync } from "node:sqlite"
import { until } from "../support/until.ts"
import { temporaryFile } from "./support/files.ts"

const memory = Effect.provide(SqliteClient.layer({ filename: ":memory:" }), { local: true })

/** The client of a file, for as long as the effect runs. */
const open = (options: SqliteClient.Options) => <A, E>(body: (sql: SqlClient.SqlClient) => Effect.Effect<A, E>) =>
  Effect.provide(Effect.flatMap(SqlClient.SqlClient, body), SqliteClient.layer(options), { local: true })

const things = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)`
  return sql
})

/** Another connection, which takes the write lock of a file and keeps it until the scope closes. */
const holding = (filename: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const database = new DatabaseSync(filename)
      database.exec("BEGIN IMMEDIATE")
      return database
    }),
    (database) => Effect.sync(() => database.close())
  )

const big = 9_007_199_254_740_993n

describe("the statements of SqliteClient", () => {
  it.effect("a statement gives rows, values or raw results", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      const inserted = yield* sql`INSERT INTO things ${sql.insert([{ name: "a" }, { name: "b" }])} RETURNING id`
      assert.deepStrictEqual(inserted.map((row) => ({ ...row })), [{ id: 1 }, { id: 2 }])
      assert.deepStrictEqual(yield* sql`SELECT id, name, name FROM things`.values, [[1, "a", "a"], [2, "b", "b"]])
      const rows = yield* sql`SELECT name FROM things`.raw
      assert.deepStrictEqual((rows as ReadonlyArray<object>).map((row) => ({ ...row })), [{ name: "a" }, { name: "b" }])
      const raw = yield* sql`DELETE FROM things`.raw
      assert.deepStrictEqual({ ...(raw as object) }, { changes: 2n, lastInsertRowid: 2n })
      assert.deepStrictEqual(yield* sql`INSERT INTO things (name) VALUES (${"c"})`, [])
    })))

  it.effect("a failed statement has an error with a message and a reason", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      yield* sql`INSERT INTO things (name) VALUES ('a')`
      const twice = yield* Effect.flip(sql`INSERT INTO things (name) VALUES ('a')`)
      assert.deepStrictEqual([twice.reason._tag, twice.message], [
        "UniqueViolation",
        "UNIQUE constraint failed: things.name"
      ])
      assert.match((yield* Effect.flip(sql`SELEKT 1`)).message, /syntax error/)
      assert.match((yield* Effect.flip(sql`SELECT ${Symbol("x") as never}`)).message, /cannot be bound/)
    })))

  it.effect("a transaction is committed whole or rolled back, and so is a nested transaction", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      const insert = (name: string) => sql`INSERT INTO things (name) VALUES (${name})`
      const undone = sql.withTransaction(Effect.andThen(insert("b"), Effect.fail("no")))
      yield* sql.withTransaction(Effect.andThen(insert("a"), Effect.flip(undone)))
      yield* Effect.flip(sql.withTransaction(Effect.andThen(insert("c"), Effect.fail("no"))))
      yield* Effect.exit(sql.withTransaction(Effect.andThen(insert("d"), Effect.die("no"))))
      assert.deepStrictEqual(yield* sql`SELECT name FROM things`.values, [["a"]])
    })))

  it.effect("a transaction ended by SQLite leaves the client usable", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      const failure = yield* Effect.flip(sql.withTransaction(Effect.andThen(sql`ROLLBACK`, Effect.fail("no"))))
      assert.strictEqual(failure, "no")
      yield* sql.withTransaction(sql`INSERT INTO things (name) VALUES ('a')`)
      assert.deepStrictEqual(yield* sql`SELECT name FROM things`.values, [["a"]])
    })))

  it.effect("a failed commit is rolled back, and the client stays usable", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      yield* sql`CREATE TABLE parts (thing INTEGER REFERENCES things (id) DEFERRABLE INITIALLY DEFERRED)`
      const failure = yield* Effect.flip(sql.withTransaction(sql`INSERT INTO parts VALUES (7)`))
      assert.strictEqual(failure.reason._tag, "ConstraintError")
      yield* sql.withTransaction(sql`INSERT INTO things (name) VALUES ('a')`)
      assert.deepStrictEqual(yield* sql`SELECT count(*) FROM parts`.values, [[0]])
    })))

  it.effect("a row id beyond the safe integers is written, and read in the requested type", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      yield* sql.withTransaction(sql`INSERT INTO things (id) VALUES (${big})`)
      yield* sql.withTransaction(sql`UPDATE things SET name = 'a'`)
      yield* sql`INSERT INTO things (name) VALUES ('b')`.raw
      assert.match((yield* Effect.flip(sql`SELECT id FROM things`)).message, /too large/)
      const ids = yield* Effect.provideService(sql`SELECT id FROM things`.values, SqlClient.SafeIntegers, true)
      assert.deepStrictEqual(ids, [[big], [big + 1n]])
      assert.deepStrictEqual(yield* sql`SELECT count(*) FROM things`.values, [[2]])
    })))

  it.effect("a stream gives its rows as they are pulled, and frees the client when its reader leaves", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      const numbers = (to: number) =>
        sql<{ n: number }>`
          WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ${to}) SELECT n FROM numbers
        `.stream
      const all = yield* Stream.runCollect(numbers(1000))
      assert.deepStrictEqual(all.map(({ n }) => n), Array.from({ length: 1000 }, (_, index) => index + 1))
      // So many rows would not fit.
      const few = yield* Stream.runCollect(Stream.take(numbers(1e15), 3))
      assert.deepStrictEqual(few.map(({ n }) => n), [1, 2, 3])
      yield* sql`INSERT INTO things (name) VALUES ('a')`
      const broken = yield* Effect.flip(Stream.runDrain(sql`SELECT nowhere`.stream))
      assert.match(broken.message, /no such column/)
    })))

  it.effect("a stream left early, failed or interrupted keeps no statement open", () =>
    memory(Effect.gen(function*() {
      const sql = yield* things
      const names = sql<{ name: string }>`SELECT name FROM things`.stream
      const left: { readonly [how: string]: Effect.Effect<unknown, unknown> } = {
        "for want of more": Stream.runDrain(Stream.take(names, 1)),
        "by a failure": Effect.exit(Stream.runForEach(names, () => Effect.fail("no"))),
        "by an interruption": Effect.flatMap(
          Effect.forkChild(Stream.runForEach(names, () => Effect.never), { startImmediately: true }),
          Fiber.interrupt
        )
      }
      for (const [how, leaving] of Object.entries(left)) {
        yield* Effect.forEach(Array.from({ length: 300 }), (_, index) =>
          sql`INSERT INTO things (name) VALUES (${`${how} ${index}`})`)
        yield* leaving
        // SQLite does this where no statement is open.
        const exit = yield* Effect.exit(sql`VACUUM`)
        assert.isTrue(Exit.isSuccess(exit), how)
      }
    })))

  it.effect("a client runs more statements than its statement cache holds", () =>
    open({ filename: ":memory:", preparedStatements: 2 })((sql) =>
      Effect.gen(function*() {
        for (let round = 0; round < 3; round++) {
          for (let n = 0; n < 5; n++) assert.deepStrictEqual(yield* sql.unsafe(`SELECT ${n}`).values, [[n]])
        }
      })
    ))
})

describe("the file of SqliteClient", () => {
  it.effect("a file is in write-ahead mode, with synchronous writes by default", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      const modes = (sql: SqlClient.SqlClient) =>
        Effect.all([sql`PRAGMA journal_mode`.values, sql`PRAGMA synchronous`.values])
      assert.deepStrictEqual(yield* open({ filename })(modes), [[["wal"]], [[2]]])
      assert.deepStrictEqual(yield* open({ filename, synchronous: "normal" })(modes), [[["wal"]], [[1]]])
    }))

  it.live("a transaction waits for the lock of another connection while other fibers run", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      yield* open({ filename })((sql) =>
        Effect.gen(function*() {
          yield* sql`CREATE TABLE things (name TEXT)`
          const other = yield* holding(filename)
          const clock = yield* Clock.Clock
          let waits = 0
          const counting: Clock.Clock = Object.assign(Object.create(clock), {
            sleep: (duration: Duration.Duration) => {
              waits++
              return clock.sleep(duration)
            }
          })
          const insert = sql.withTransaction(sql`INSERT INTO things VALUES ('a')`)
          const fiber = yield* Effect.forkChild(Effect.provideService(insert, Clock.Clock, counting))
          yield* until("the waits of the transaction", Effect.sync(() => waits), (waits) => waits >= 3)
          assert.isUndefined(fiber.pollUnsafe())
          other.exec("COMMIT")
          yield* Fiber.join(fiber)
          assert.deepStrictEqual(yield* sql`SELECT name FROM things`.values, [["a"]])
        }).pipe(Effect.scoped)
      )
    }))

  it.effect("invalid options are defects, and the message says how to fix them", () =>
    Effect.gen(function*() {
      const mistakes: ReadonlyArray<readonly [options: object, message: string]> = [
        [{ synchronous: "off; DROP TABLE things" }, "synchronous must be \"full\" or \"normal\"; got: \"off"],
        [{ preparedStatements: -1 }, "preparedStatements must be a whole number, 0 or more; got: -1"],
        [
          { busyTimeout: "soon" },
          "busyTimeout must be a duration of zero or more (milliseconds, \"30 seconds\", \"infinity\"); got: \"soon\""
        ],
        [{ busyTimeout: Number.NaN }, "busyTimeout must be a duration"]
      ]
      for (const [options, message] of mistakes) {
        const opening = open({ filename: ":memory:", ...options })(() => Effect.void)
        const exit = yield* Effect.exit(opening)
        assert.isTrue(Exit.hasDies(exit), message)
        assert.include(String(exit), message)
      }
    }))

  it.live("a transaction fails with LockTimeoutError after the busy timeout, and the client works afterwards", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      yield* open({ filename, busyTimeout: "30 millis" })((sql) =>
        Effect.gen(function*() {
          yield* sql`CREATE TABLE things (name TEXT)`
          const insert = sql.withTransaction(sql`INSERT INTO things VALUES ('a')`)
          const failure = yield* Effect.scoped(Effect.andThen(holding(filename), Effect.flip(insert)))
          assert.strictEqual(failure.reason._tag, "LockTimeoutError")
          yield* insert
        })
      )
    }))

  it.live("eight concurrent first openings of a file all succeed", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      const opening = Array.from({ length: 8 }, () => open({ filename })((sql) => sql`SELECT 1`.values))
      assert.strictEqual((yield* Effect.all(opening, { concurrency: "unbounded" })).length, 8)
    }))

  it.effect("a file that cannot be opened is a ConnectionError", () =>
    Effect.gen(function*() {
      const filename = path.join(yield* temporaryFile, "missing/store.db")
      const failure = yield* Effect.flip(open({ filename })(() => Effect.void))
      assert.deepStrictEqual([failure.reason._tag, failure.message], [
        "ConnectionError",
        "unable to open database file"
      ])
    }))
})

describe("the mode of a created file", () => {
  const modeOf = (file: string) => (fs.statSync(file).mode & 0o777).toString(8)
  const modesOf = (filename: string) => [filename, `${filename}-wal`, `${filename}-shm`].map(modeOf)

  it.effect("N-40: a created file and its side files have mode 600", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      yield* open({ filename })(() =>
        Effect.andThen(
          things,
          Effect.sync(() => {
            assert.deepStrictEqual(modesOf(filename), ["600", "600", "600"])
          })
        ).pipe(Effect.provide(SqliteClient.layer({ filename }), { local: true }))
      )
    }).pipe(Effect.scoped))

  it.effect("N-40: a file created by a file URI has mode 600, and a URI of another database creates no file", () =>
    Effect.gen(function*() {
      const folder = path.dirname(yield* temporaryFile)
      const create = (sql: SqlClient.SqlClient) => sql`CREATE TABLE things (id INTEGER)`
      const uris = [`file:${folder}/a%20b.db?cache=private`, `file://localhost${folder}/c.db#part`]
      yield* Effect.forEach(uris, (filename) => open({ filename })(create))
      assert.deepStrictEqual(["a b.db", "c.db"].map((name) => modeOf(path.join(folder, name))), ["600", "600"])
      const others = [`file:${folder}/d.db?mode=memory`, `file:${folder}/e.db?vfs=memdb`]
      yield* Effect.forEach(others, (filename) => Effect.exit(open({ filename })(create)))
      yield* Effect.exit(open({ filename: `file:${folder}/f.db?mode=rw` })(create))
      assert.deepStrictEqual(fs.readdirSync(folder).toSorted(), ["a b.db", "c.db"])
    }).pipe(Effect.scoped))

  it.effect("N-40: an existing file keeps its mode", () =>
    Effect.gen(function*() {
      const filename = yield* temporaryFile
      fs.writeFileSync(filename, "")
      fs.chmodSync(filename, 0o644)
      yield* open({ filename })(() => Effect.void)
      assert.strictEqual(modeOf(filename), "644")
    }).pipe(Effect.scoped))
})

describe("a runtime without node:sqlite", () => {
  const as = <A, E>(process: object | undefined, body: Effect.Effect<A, E>) =>
    Effect.acquireUseRelease(
      Effect.sync(() => {
        const own = globalThis.process
        Object.defineProperty(globalThis, "process", { value: process, configurable: true, writable: true })
        return own
      }),
      () => body,
      (own) =>
        Effect.sync(() =>
          Object.defineProperty(globalThis, "process", { value: own, configurable: true, writable: true })
        )
    )

  it.effect("the layer fails with an error that names the required Node version and the running runtime", () =>
    Effect.gen(function*() {
      const building: Effect.Effect<unknown, SqlError> = Effect.scoped(
        Layer.build(SqliteClient.layer({ filename: ":memory:" }))
      )
      const message = (here: string) =>
        `heddle/sql needs node:sqlite, which Node 22.13 and later include; this is ${here}`
      for (
        const [process, here] of [
          [{ versions: { node: "22.12.0" }, getBuiltinModule: () => undefined }, "Node 22.12.0"],
          [{ versions: { node: "24.3.0", bun: "1.2.19" }, getBuiltinModule: () => undefined }, "Bun 1.2.19"],
          [{ versions: { node: "22.5.1", deno: "2.1.0" } }, "Deno 2.1.0"],
          [{}, "another runtime"],
          [undefined, "another runtime"]
        ] as const
      ) {
        const exit = yield* as(process, Effect.exit(building))
        assert.isTrue(Exit.isFailure(exit))
        const failure = yield* Effect.flip(exit)
        assert.deepStrictEqual([failure.reason._tag, failure.message], ["ConnectionError", message(here)])
      }
    }))
})
