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
import * as fs from "node:fs"
import * as path from "node:path"
import * as Postgres from "../support/postgres.ts"
import { find, limit, until } from "../support/until.ts"
import * as Processes from "./support/processes.ts"
import { type Act, acts as actsIn, letGo, logOf, type Place, stored } from "./support/work.ts"

const term = 3000

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
    }).pipe(Effect.scoped), limit)

const often = Schedule.spaced("10 millis")

const journal = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.read(id))).map(({ record }) => record)
  })

/** Waits for an act of a session, and gives the first that is so. */
const untilActed = ({ world }: Place, session: string, isSo: (act: Act) => boolean) =>
  find(`an act of ${session}`, Effect.sync(() => actsIn(world, session).find(isSo)))

const untilStatus = (id: string, status: Session.Status) =>
  until(
    `${id} is ${status}`,
    Effect.map(Session.load(id), (kept) => [kept?.session.status, kept?.submitted] as const),
    ([is, submitted]) => is === status && submitted === undefined
  )

const untilRecorded = (id: string, isSo: (record: Journal.Record) => boolean) =>
  until(`a record of ${id}`, journal(id), (records) => records.some(isSo))

const isEndOf = (record: Journal.Record, id: string) => record._tag === "CallEnded" && record.message.toolCallId === id

const charges = (acts: ReadonlyArray<Act>) => acts.filter(({ what }) => what.startsWith("charge"))

/** What the tests find, for the reader of their output. */
const note = (line: string) => Effect.sync(() => process.stderr.write(`${line}\n`))

for (const [name, makeStore] of Object.entries(stores)) {
  describe(`worker processes over ${name}`, () => {
    test(
      `worker processes take over the sessions of a killed worker when its term is over, ${name}`,
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const store = yield* Session.Store
          const takeovers: Array<number> = []
          let owner = yield* Processes.start(place)
          for (let kill = 0; kill < 3; kill++) {
            const id = `s${kill}`
            yield* Session.submit(id, "charge 1, hold 1 then charge 2")
            yield* untilActed(place, id, ({ what }) => what === "hold 1")
            const killed = Date.now()
            owner.signal("SIGKILL")
            yield* owner.ended
            // The next one is started behind the kill: it has taken over nothing before it on a busy machine.
            const claim = yield* store.claimOf(id)
            const next = yield* Processes.start(place)
            const again = yield* untilActed(place, id, ({ pid, what }) => pid === next.pid && what === "hold 1")
            assert.isAtLeast(again.at, claim!.until, "nothing acts while the claim holds")
            takeovers.push(again.at - killed)
            owner = next
            assert.deepStrictEqual(charges(actsIn(place.world, id)).map(({ what }) => what), ["charge 1"])
            const { ended } = yield* Session.stop(id)
            yield* ended
          }
          yield* note(`takeover over ${name}, ms: ${takeovers.join(" ")}`)
        })
    )

    test(
      `D-25: a stop ends a run of another process at once, and no effect follows its end, ${name}`,
      makeStore,
      (place) =>
        Effect.gen(function*() {
          yield* Processes.start({ ...place, term: 600_000 })
          const ends: Array<readonly [id: string, accepted: number, ended: number]> = []
          for (let stop = 0; stop < 5; stop++) {
            const id = `s${stop}`
            yield* Session.submit(id, "charge 1, hold 1 then charge 2")
            yield* untilActed(place, id, ({ what }) => what === "hold 1")
            yield* untilRecorded(id, (record) => isEndOf(record, "charge-0-0"))
            const asked = Date.now()
            const { ended } = yield* Session.stop(id)
            const accepted = Date.now() - asked
            const report = yield* ended
            ends.push([id, accepted, Date.now() - asked])
            assert.deepStrictEqual(report, { stopped: ["hold-0-1"], ended: ["charge-0-0"], refused: [], unknown: [] })
            assert.strictEqual((yield* Session.load(id))?.session.status, "stopped")
          }
          yield* note(`stop over ${name}, ms: ${ends.map(([, accepted, ended]) => `${accepted}/${ended}`).join(" ")}`)
          // What was stopped does not go on while the worker does something else.
          letGo(place.world, 1)
          yield* Session.submit("next", "charge 3")
          yield* untilStatus("next", "completed")
          for (const [id] of ends) {
            assert.deepStrictEqual(actsIn(place.world, id).map(({ what }) => what), ["charge 1", "hold 1"])
          }
        })
    )

    test(
      `D-10: of two processes that resume at once one gets the claim, and the other starts nothing, ${name}`,
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const first = yield* Processes.start(place)
          yield* Session.submit("s", "charge 1, hold 1 then charge 2")
          yield* untilActed(place, "s", ({ what }) => what === "hold 1")
          first.signal("SIGKILL")
          yield* first.ended
          const store = yield* Session.Store
          yield* until("the end of the claim", store.claimOf("s"), (claim) => claim!.until < Date.now())
          // An owner that lives keeps its claim on a busy machine.
          const resuming = { ...place, term: 30_000, resumes: "s" }
          const both = yield* Effect.all([Processes.start(resuming), Processes.start(resuming)], { concurrency: 2 })
          for (const { tell } of both) tell()
          const saying = yield* Effect.forEach(both, ({ said }) => Effect.forkChild(said))
          // The one with the claim does not end before the other has asked for it.
          const isSaid = Effect.sync(() => saying.some((fiber) => fiber.pollUnsafe() !== undefined))
          yield* until("the word of the one without the claim", isSaid, (isSaid) => isSaid)
          letGo(place.world, 1)
          const words = yield* Effect.forEach(saying, Fiber.join)
          assert.sameMembers(words, ["completed", "SessionClaimed"])
          const after = actsIn(place.world, "s").filter(({ pid }) => pid !== first.pid)
          assert.deepStrictEqual(new Set(after.map(({ pid }) => pid)), new Set([both[words.indexOf("completed")]!.pid]))
          assert.deepStrictEqual(charges(actsIn(place.world, "s")).map(({ what }) => what), ["charge 1", "charge 2"])
        })
    )

    test(
      `D-11: a frozen owner that wakes up records nothing behind the next owner, ${name}`,
      makeStore,
      (place) =>
        Effect.gen(function*() {
          // An owner that lives keeps its claim on a busy machine.
          const patient = { ...place, term: 3000 }
          const frozen = yield* Processes.start(patient)
          yield* Session.submit("s", "charge 1, hold 1 then charge 2, hold 2 then charge 3")
          yield* untilActed(place, "s", ({ what }) => what === "hold 1")
          yield* freeze(place, frozen)
          letGo(place.world, 1)
          const next = yield* Processes.start(patient)
          yield* untilActed(place, "s", ({ pid, what }) => pid === next.pid && what === "hold 2")
          yield* untilRecorded("s", (record) => isEndOf(record, "charge-1-0"))
          // What it held is let go: it would go on with the second charge.
          frozen.signal("SIGCONT")
          yield* Session.submit("t", "charge 4")
          yield* untilStatus("t", "completed")
          letGo(place.world, 2)
          yield* untilStatus("s", "completed")
          // It is a worker like any other, and has come to the end of what it had begun.
          next.signal("SIGKILL")
          yield* Session.submit("u", "charge 5")
          yield* untilStatus("u", "completed")
          assert.strictEqual(actsIn(place.world, "u")[0]?.pid, frozen.pid)
          const records = yield* journal("s")
          const started = records.flatMap((record) => record._tag === "RunStarted" ? [record.owner] : [])
          assert.strictEqual(started.length, 2)
          assert.notStrictEqual(started[0], started[1])
          assert.deepStrictEqual(charges(actsIn(place.world, "s")).map(({ pid, what }) => [pid, what]), [
            [frozen.pid, "charge 1"],
            [next.pid, "charge 2"],
            [next.pid, "charge 3"]
          ])
          assert.lengthOf(records.filter(({ _tag }) => _tag === "RunEnded"), 1)
        })
    )

    test(
      `D-12: the next owner honors a stop requested during a takeover, ${name}`,
      makeStore,
      (place) =>
        Effect.gen(function*() {
          const first = yield* Processes.start(place)
          yield* Session.submit("s", "charge 1, hold 1 then charge 2")
          yield* untilActed(place, "s", ({ what }) => what === "hold 1")
          yield* untilRecorded("s", (record) => isEndOf(record, "charge-0-0"))
          first.signal("SIGKILL")
          yield* first.ended
          const { ended } = yield* Session.stop("s")
          const waiting = yield* Effect.forkChild(ended)
          assert.isEmpty((yield* journal("s")).filter(({ _tag }) => _tag === "RunEnded"), "no owner lives")
          const next = yield* Processes.start(place)
          const report = yield* Fiber.join(waiting)
          assert.deepStrictEqual(report.ended, ["charge-0-0"])
          assert.strictEqual((yield* Session.load("s"))?.session.status, "stopped")
          assert.isEmpty(actsIn(place.world, "s").filter(({ pid }) => pid === next.pid), "nothing new starts")
        })
    )

    test(
      `D-14, D-16: all runs on three workers, one killed at a time, end and charge once, ${name}`,
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
          yield* until("the last record", Effect.sync(() => seen.at(-1)), (last) => last === version)
          yield* Fiber.interrupt(reader)
          assert.deepStrictEqual(seen, Array.from({ length: version - 2 }, (_, index) => index + 3))
        })
    )
  })
}

describe("worker processes over a Postgres that goes away", () => {
  it.live(
    "D-15: worker processes wait for a stopped Postgres, lose no run and charge once",
    () =>
      Effect.gen(function*() {
        const server = yield* Postgres.server
        const place = { store: server.url, world: yield* Processes.world, term }
        yield* Effect.gen(function*() {
          const workers = yield* Effect.all([Processes.start(place), Processes.start(place)], { concurrency: 2 })
          const ids = Array.from({ length: 6 }, (_, index) => `s${index}`)
          for (const id of ids) yield* Session.submit(id, "charge 1, wait 300 then charge 2, wait 300 then charge 3")
          yield* untilActed(place, "s5", ({ what }) => what === "wait 300")
          yield* server.stop
          // Each of them has asked in vain.
          const warned = Effect.sync(() => fs.readFileSync(logOf(place.world), "utf8"))
          yield* until("warnings", warned, (text) =>
            workers.every(({ pid }) =>
              text.includes(`${pid} the store could not`)
            ))
          yield* server.start
          const patiently = { schedule: Schedule.spaced("100 millis") }
          yield* Effect.forEach(ids, (id) => Effect.retry(untilStatus(id, "completed"), patiently), {
            concurrency: "unbounded"
          })
          for (const id of ids) {
            const done = charges(actsIn(place.world, id)).map(({ what }) => what)
            assert.sameMembers(done, ["charge 1", "charge 2", "charge 3"], id)
          }
        }).pipe(Effect.provide(stored(place.store)))
      }).pipe(Effect.scoped),
    limit
  )
})
