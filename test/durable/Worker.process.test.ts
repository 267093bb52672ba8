/**
 * Workers as real processes over one SQLite file and over a real Postgres: owners that are killed, frozen and stopped from
 * outside, and what becomes of the sessions that they had. `npm run crash` kills more often.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Reactivity from "effect/reactivity/Reactivity"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { type Journal, Session } from "heddle"
import { SqliteClient } from "heddle/sql"
import * as path from "node:path"
import * as Postgres from "../support/postgres.ts"
import * as Processes from "./support/processes.ts"
import { type Act, acts as actsIn, type Place, stored } from "./support/work.ts"

const term = 1000

const files: Effect.Effect<string, never, Scope.Scope> = Effect.map(
  Processes.folder,
  (folder) => path.join(folder, "sessions.db")
)

const stores = { SQLite: files, Postgres: Postgres.database } as const

/** Whether no process holds the lock of a SQLite file. Postgres has no lock that outlasts a statement. */
const isFree = (store: string): Effect.Effect<boolean> =>
  store.startsWith("postgres:") ? Effect.succeed(true) : SqliteClient.make({ filename: store, busyTimeout: 50 }).pipe(
    Effect.flatMap((sql) => sql.withTransaction(Effect.void)),
    Effect.scoped,
    Effect.isSuccess,
    Effect.provide(Reactivity.layer)
  )

/**
 * Freezes a process where it holds no lock: the lock of a SQLite file belongs to a process until it goes on, or is killed.
 */
const freeze = ({ store }: Place, { signal }: Processes.Worker): Effect.Effect<void> =>
  Effect.gen(function*() {
    signal("SIGSTOP")
    if (yield* isFree(store)) return true
    signal("SIGCONT")
    return false
  }).pipe(Effect.repeat({ schedule: often, until: (isFrozen) => isFrozen }))

/** A test with a place of its own, and the store of it. */
const test = (
  title: string,
  makeStore: Effect.Effect<string, never, Scope.Scope>,
  program: (place: Place) => Effect.Effect<void, unknown, Session.Store | Scope.Scope>
) =>
  it.live(title, () =>
    Effect.gen(function*() {
      const place = { store: yield* makeStore, world: yield* Processes.world, term }
      yield* Effect.provide(program(place), stored(place.store))
    }).pipe(Effect.scoped), 60_000)

const often = Schedule.spaced("10 millis")

const journal = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.read(id))).map(({ record }) => record)
  })

const until = <A, E, R>(effect: Effect.Effect<A, E, R>, isSo: (value: A) => boolean) =>
  Effect.repeat(effect, { schedule: often, until: isSo })

/** Waits for an act of a session, and gives the first that is so. */
const untilActed = ({ world }: Place, session: string, isSo: (act: Act) => boolean) =>
  Effect.map(until(Effect.sync(() => actsIn(world, session).find(isSo)), (act) => act !== undefined), (act) => act!)

const untilStatus = (id: string, status: Session.Status) =>
  until(Session.load(id), (kept) => kept?.session.status === status && kept.submitted === undefined)

const isEndOf = (record: Journal.Record, id: string) => record._tag === "CallEnded" && record.message.toolCallId === id

const median = (values: ReadonlyArray<number>): number =>
  values.toSorted((left, right) => left - right)[Math.floor(values.length / 2)]!

const charges = (acts: ReadonlyArray<Act>) => acts.filter(({ what }) => what.startsWith("charge"))

/** What the tests find, for the reader of their output. */
const note = (line: string) => Effect.sync(() => process.stderr.write(`${line}\n`))

for (const [name, makeStore] of Object.entries(stores)) {
  describe(`worker processes over ${name}`, () => {
    test(
      "take over the sessions of one that was killed, when its term is over",
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const takeovers: Array<number> = []
          let owner = yield* Processes.start(place)
          for (let kill = 0; kill < 3; kill++) {
            const id = `s${kill}`
            yield* Session.submit(id, "charge 1, wait 100000 then charge 2")
            yield* untilActed(place, id, ({ what }) => what === "wait 100000")
            const next = yield* Processes.start(place)
            const killed = Date.now()
            owner.signal("SIGKILL")
            const again = yield* untilActed(place, id, ({ pid, what }) => pid === next.pid && what === "wait 100000")
            takeovers.push(again.at - killed)
            owner = next
            assert.deepStrictEqual(charges(actsIn(place.world, id)).map(({ what }) => what), ["charge 1"])
            const { ended } = yield* Session.stop(id)
            yield* ended
          }
          yield* note(`takeover over ${name}, ms: ${takeovers.join(" ")}`)
          assert.isAtLeast(Math.min(...takeovers), term / 2, "nothing acts while the claim holds")
          // Other tests run at the same time.
          assert.isAtMost(median(takeovers), term + 2000)
        })
    )

    test(
      "D-25: stop a run of another process: at once, and no effect after its end",
      makeStore,
      (place) =>
        Effect.gen(function*() {
          yield* Processes.start(place)
          const ends: Array<readonly [id: string, accepted: number, ended: number]> = []
          for (let stop = 0; stop < 5; stop++) {
            const id = `s${stop}`
            yield* Session.submit(id, "charge 1, wait 6000 then charge 2")
            yield* untilActed(place, id, ({ what }) => what === "wait 6000")
            yield* until(journal(id), (records) => records.some((record) => isEndOf(record, "charge-0-0")))
            const asked = Date.now()
            const { ended } = yield* Session.stop(id)
            const accepted = Date.now() - asked
            const report = yield* ended
            ends.push([id, accepted, Date.now() - asked])
            assert.deepStrictEqual(report, { stopped: ["wait-0-1"], ended: ["charge-0-0"], refused: [], unknown: [] })
            assert.strictEqual((yield* Session.load(id))?.session.status, "stopped")
          }
          yield* note(`stop over ${name}, ms: ${ends.map(([, accepted, ended]) => `${accepted}/${ended}`).join(" ")}`)
          // Other tests run at the same time.
          assert.isAtMost(median(ends.map(([, accepted]) => accepted)), 500)
          assert.isAtMost(median(ends.map(([, , ended]) => ended)), 1500)
          yield* Effect.sleep(500)
          for (const [id] of ends) {
            assert.deepStrictEqual(actsIn(place.world, id).map(({ what }) => what), ["charge 1", "wait 6000"])
          }
        })
    )

    test(
      "D-10: of two processes that resume at once one has the claim, and the other starts nothing",
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const first = yield* Processes.start(place)
          yield* Session.submit("s", "charge 1, wait 500 then charge 2")
          yield* untilActed(place, "s", ({ what }) => what === "wait 500")
          first.signal("SIGKILL")
          yield* Effect.sleep(term)
          const both = yield* Effect.all([
            Processes.start({ ...place, resumes: "s" }),
            Processes.start({ ...place, resumes: "s" })
          ], { concurrency: 2 })
          for (const { tell } of both) tell()
          const words = yield* Effect.all(both.map(({ said }) => said), { concurrency: 2 })
          assert.sameMembers(words, ["completed", "SessionClaimed"])
          const after = actsIn(place.world, "s").filter(({ pid }) => pid !== first.pid)
          assert.deepStrictEqual(new Set(after.map(({ pid }) => pid)), new Set([both[words.indexOf("completed")]!.pid]))
          assert.deepStrictEqual(charges(actsIn(place.world, "s")).map(({ what }) => what), ["charge 1", "charge 2"])
        })
    )

    test(
      "D-11: an owner that was frozen and wakes up records nothing behind the next one",
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const frozen = yield* Processes.start(place)
          yield* Session.submit("s", "charge 1, wait 300 then charge 2, wait 3000 then charge 3")
          yield* untilActed(place, "s", ({ what }) => what === "wait 300")
          yield* freeze(place, frozen)
          const next = yield* Processes.start(place)
          yield* untilActed(place, "s", ({ pid, what }) => pid === next.pid && what === "wait 3000")
          yield* until(journal("s"), (records) => records.some((record) => isEndOf(record, "charge-1-0")))
          const before = (yield* journal("s")).length
          frozen.signal("SIGCONT")
          // Its own wait is over long since: it would go on with the charge now.
          yield* Effect.sleep(1000)
          assert.strictEqual((yield* journal("s")).length, before)
          yield* untilStatus("s", "completed")
          const records = yield* journal("s")
          const started = records.flatMap((record) => record._tag === "RunStarted" ? [record.owner] : [])
          assert.strictEqual(started.length, 2)
          assert.notStrictEqual(started[0], started[1])
          assert.deepStrictEqual(charges(actsIn(place.world, "s")).map(({ pid, what }) => [pid, what]), [
            [frozen.pid, "charge 1"],
            [next.pid, "charge 2"],
            [next.pid, "charge 3"]
          ])
          // It is a worker like any other.
          next.signal("SIGKILL")
          yield* Session.submit("t", "charge 4")
          yield* untilStatus("t", "completed")
          assert.strictEqual(actsIn(place.world, "t")[0]?.pid, frozen.pid)
        })
    )

    test("D-12: a stop during a takeover is honoured by the next owner", makeStore, (place) =>
      Effect.gen(function*() {
        const first = yield* Processes.start(place)
        yield* Session.submit("s", "charge 1, wait 6000 then charge 2")
        yield* untilActed(place, "s", ({ what }) => what === "wait 6000")
        yield* until(journal("s"), (records) => records.some((record) => isEndOf(record, "charge-0-0")))
        first.signal("SIGKILL")
        const { ended } = yield* Session.stop("s")
        const waiting = yield* Effect.forkChild(ended)
        yield* Effect.sleep(300)
        assert.isUndefined(waiting.pollUnsafe(), "no owner lives")
        const next = yield* Processes.start(place)
        const report = yield* Fiber.join(waiting)
        assert.deepStrictEqual(report.ended, ["charge-0-0"])
        assert.strictEqual((yield* Session.load("s"))?.session.status, "stopped")
        assert.isEmpty(actsIn(place.world, "s").filter(({ pid }) => pid === next.pid), "nothing new starts")
      }))

    test(
      "D-14, D-16: runs on three workers of which one is killed at a time all end, and charge once",
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const store = yield* Session.Store
          const ids = Array.from({ length: 12 }, (_, index) => `s${index}`)
          let workers = yield* Effect.all([1, 2, 3].map(() => Processes.start(place)), { concurrency: 3 })
          for (const id of ids) {
            yield* Session.submit(id, "charge 1, wait 200 then charge 2, wait 400 then charge 3, wait 200")
          }
          // A reader that follows one session from an offset.
          const seen: Array<number> = []
          const reader = yield* Stream.runForEach(
            Stream.suspend(() => store.read("s0", seen.at(-1) ?? 2)),
            ({ version }) => Effect.sync(() => seen.push(version))
          ).pipe(Effect.repeat(often), Effect.forkChild)
          for (let kill = 0; kill < 3; kill++) {
            const id = ids[kill * 4]!
            const { pid } = yield* untilActed(place, id, ({ what }) => what.startsWith("wait"))
            const victim = workers.find((worker) => worker.pid === pid) ?? workers[0]!
            victim.signal("SIGKILL")
            workers = [...workers.filter((worker) => worker !== victim), yield* Processes.start(place)]
          }
          yield* Effect.forEach(ids, (id) => untilStatus(id, "completed"), { concurrency: "unbounded" })
          for (const id of ids) {
            const done = charges(actsIn(place.world, id))
            assert.sameMembers(done.map(({ what }) => what), ["charge 1", "charge 2", "charge 3"], id)
            assert.strictEqual((yield* journal(id)).filter(({ _tag }) => _tag === "RunEnded").length, 1, id)
          }
          const version = yield* store.version("s0")
          yield* until(Effect.sync(() => seen.at(-1)), (last) => last === version)
          yield* Fiber.interrupt(reader)
          assert.deepStrictEqual(seen, Array.from({ length: version - 2 }, (_, index) => index + 3))
        })
    )
  })
}

describe("worker processes over a Postgres that goes away", () => {
  it.live("D-15: wait for it, lose nothing and do nothing twice", () =>
    Effect.gen(function*() {
      const server = yield* Postgres.server
      const place = { store: server.url, world: yield* Processes.world, term }
      yield* Effect.gen(function*() {
        yield* Effect.all([Processes.start(place), Processes.start(place)], { concurrency: 2 })
        const ids = Array.from({ length: 6 }, (_, index) => `s${index}`)
        for (const id of ids) yield* Session.submit(id, "charge 1, wait 300 then charge 2, wait 300 then charge 3")
        yield* untilActed(place, "s5", ({ what }) => what === "wait 300")
        yield* server.stop
        yield* Effect.sleep(1500)
        yield* server.start
        yield* Effect.forEach(ids, (id) =>
          Effect.retry(untilStatus(id, "completed"), { schedule: Schedule.spaced("100 millis"), times: 300 }), {
          concurrency: "unbounded"
        })
        for (const id of ids) {
          const done = charges(actsIn(place.world, id)).map(({ what }) =>
            what
          )
          assert.sameMembers(done, ["charge 1", "charge 2", "charge 3"], id)
        }
      }).pipe(Effect.provide(stored(place.store)))
    }).pipe(Effect.scoped), 60_000)
})
