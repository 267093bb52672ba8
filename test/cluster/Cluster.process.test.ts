/**
 * A cluster of real processes over a real Postgres: owners that are killed, frozen and asked to leave, and what becomes of
 * the sessions that they had. Here each kind of end comes once; `npm run crash -- --store cluster` kills at every boundary.
 */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { type Journal, Message, Session } from "heddle"
import { SessionClient } from "heddle/cluster"
import * as Postgres from "../support/postgres.ts"
import * as Processes from "./support/processes.ts"
import { siege } from "./support/siege.ts"
import { type Act, acts as actsIn, openGate } from "./support/work.ts"

type Services = SessionClient.SessionClient | Session.Store

const scope = Scope.makeUnsafe()

let services: Context.Context<Services>
let database: string
let runners: ReadonlyArray<Processes.Runner>
let world: string
/** Number of sessions so far. */
let count = 0

beforeAll(() =>
  Effect.gen(function*() {
    database = yield* Postgres.database
    world = yield* Processes.world
    runners = yield* Effect.forEach([1, 2, 3], () => Processes.start({ database, world }), { concurrency: 3 })
    services = yield* Layer.build(Processes.client(database))
  }).pipe(Scope.provide(scope), Effect.runPromise), 300_000)

afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))

/** What is seen of the sessions of a test, for one whose time is up. */
const seen = (sessions: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const lines = yield* Effect.forEach(sessions, (id) =>
      Effect.gen(function*() {
        const entries = yield* Stream.runCollect(store.read(id))
        const did = acts(id).map(({ at, pid, what }) => `${at} ${pid} ${what}`)
        return [`${id}: ${entries.map(({ record }) => record._tag).join(" ")}`, ...did].join("\n  ")
      }))
    const shards = runners.map(({ pid, shards }) => `${pid} has ${shards()} shards`)
    return [...shards, ...lines].join("\n")
  })

/** A test of the cluster. However busy the machine is, it waits for what is to happen, and says what it saw if it does not. */
const test = <E>(title: string, program: () => Effect.Effect<void, E, Services>) =>
  it.live(title, () => {
    const from = count
    return Effect.suspend(program).pipe(
      Effect.timeoutOrElse({
        duration: "4 minutes",
        orElse: () => {
          const sessions = Array.from({ length: count - from }, (_, index) => `session-${from + index + 1}`)
          return Effect.flatMap(seen(sessions), (text) => Effect.die(new Error(`it does not happen:\n${text}`)))
        }
      }),
      (test) => Effect.suspend(() => Effect.provideContext(test, services))
    )
  }, 300_000)

/** Prints how long something took, which is no matter of right and wrong. */
const took = (what: string, from: number) => Effect.sync(() => console.log(`${what}: ${Date.now() - from} ms`))

const client = SessionClient.SessionClient

/** Milliseconds that no test waits. */
const forever = 3_600_000

const acts = (session: string): ReadonlyArray<Act> => actsIn(world, session)

/** Waits for an act of a session, the first that is so. */
const until = (session: string, isSo: (act: Act) => boolean) =>
  Effect.sync(() => acts(session).find(isSo)).pipe(
    Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: (act) => act !== undefined }),
    Effect.map((act) => act!)
  )

/** Waits until the journal of a session has a record of a kind since its last run began. */
const untilRecorded = (id: string, tag: Journal.Record["_tag"]) =>
  Session.Store.pipe(
    Effect.flatMap((store) => Stream.runCollect(store.read(id))),
    Effect.map((entries) => entries.map(({ record }) => record._tag)),
    Effect.repeat({
      schedule: Schedule.spaced("10 millis"),
      until: (tags) => tags.lastIndexOf(tag) > tags.lastIndexOf("RunStarted")
    })
  )

const texts = (id: string) =>
  Effect.map(Session.load(id), (loaded) => loaded!.session.thread.messages.map(Message.text))

/** Sessions with the same owner, which has done nothing for them but a charge of 0, and that owner. */
const together = (size: number) =>
  Effect.gen(function*() {
    const { reply } = yield* client
    yield* Processes.settled(runners)
    const owned = new Map<number, Array<string>>()
    while (true) {
      const id = `session-${++count}`
      yield* reply(id, "charge 0")
      const { pid } = acts(id).at(-1)!
      const ids = owned.get(pid) ?? []
      owned.set(pid, ids)
      ids.push(id)
      if (ids.length === size) return { ids, owner: runners.find((runner) => runner.pid === pid)! }
    }
  })

/** Ends a runner by a signal. */
const end = (gone: Processes.Runner, signal: NodeJS.Signals) =>
  Effect.sync(() => {
    gone.signal(signal)
    runners = runners.filter((runner) => runner !== gone)
    return Date.now()
  })

describe("a stop of an owner elsewhere", () => {
  test("D-25: a client stops an owner elsewhere while its tool runs", () =>
    Effect.gen(function*() {
      const { reply, stop } = yield* client
      const { ids: [id] } = yield* together(1)
      for (const round of [1, 2]) {
        const wait = `wait ${forever + round}`
        const report = yield* Effect.forkChild(reply(id!, wait))
        yield* until(id!, ({ what }) => what === wait)
        const askedAt = Date.now()
        const { ended } = yield* stop(id!)
        // A call of the second round has an id of its own.
        const stopped = [round === 1 ? "wait-0" : "wait-0_2"]
        assert.deepStrictEqual(yield* ended, { stopped, ended: [], refused: [], unknown: [] })
        yield* took("stopped", askedAt)
        assert.strictEqual((yield* Fiber.join(report)).status, "stopped")
      }
    }))
})

/** What became of submitted messages. */
const fates = (id: string, messages: ReadonlyArray<string>) =>
  Effect.map(Session.open(id), (kept) => messages.map((message) => Session.receipt(kept, message)?.became))

describe("messages into a run of an owner elsewhere", () => {
  test("G45, G49: a steer is in the owner's next request, a follow after its answer, and a withdrawn message in no request", () =>
    Effect.gen(function*() {
      const { reply, submit, withdraw } = yield* client
      const { ids: [id], owner } = yield* together(1)
      const report = yield* Effect.forkChild(reply(id!, "gate 6"))
      assert.strictEqual((yield* until(id!, ({ what }) => what === "gate 6")).pid, owner.pid)
      yield* submit(id!, "not that", { id: "m1", mode: "steer" })
      yield* submit(id!, "nor that", { id: "m2", mode: "steer" })
      yield* submit(id!, "and then", { id: "m3", mode: "follow" })
      assert.isTrue(yield* withdraw(id!, "m2"))
      assert.isFalse(yield* withdraw(id!, "m2"))
      yield* openGate(world, 6)
      assert.strictEqual((yield* Fiber.join(report)).outputText, "You said and then")
      assert.isFalse(yield* withdraw(id!, "m1"))
      assert.deepStrictEqual((yield* texts(id!)).slice(-6), [
        "",
        "passed 6",
        "not that",
        "You said not that",
        "and then",
        "You said and then"
      ])
      assert.deepStrictEqual(yield* fates(id!, ["m1", "m2", "m3"]), ["delivered", "withdrawn", "delivered"])
    }))
})

describe("a killed owner", () => {
  // One kill for all of them: each takes as long as a lock lasts.
  test("D-01, D-12, D-13, D-16, G50, N-06: a killed owner's run continues elsewhere, and commands sent meanwhile wait for the next owner", () =>
    Effect.gen(function*() {
      const { answer, follow, reply, stop, submit, withdraw } = yield* client
      const { ids: [running, asking, stopping, steering], owner } = yield* together(4)
      assert.strictEqual((yield* reply(asking!, "book 4")).status, "awaiting_user")
      const store = yield* Session.Store
      const offset = yield* store.version(running!)
      const work = reply(running!, "charge 1, gate 1", { command: "work" })

      const read: Array<number> = []
      const readOn = Effect.suspend(() =>
        Stream.runForEach(
          store.read(running!, read.at(-1) ?? offset),
          ({ version }) => Effect.sync(() => read.push(version))
        )
      )
      const followed = yield* follow(running!, work).pipe(
        Stream.tap(({ _tag }) => _tag === "Connected" ? readOn : Effect.void),
        Stream.runCollect,
        Effect.forkChild
      )
      const late = yield* Effect.provideService(Processes.read(database, running!), Scope.Scope, scope)
      yield* late.until("Connected")
      const stopped = yield* Effect.forkChild(reply(stopping!, `wait ${forever}`))
      const steered = yield* Effect.forkChild(reply(steering!, "gate 7", { command: "steered" }))
      const { pid } = yield* until(running!, ({ what }) => what === "gate 1")
      assert.strictEqual(pid, owner.pid)
      yield* until(stopping!, ({ what }) => what === `wait ${forever}`)
      yield* untilRecorded(running!, "CallEnded")
      const { requestId } = (yield* Session.load(running!))!.interrupted!
      yield* until(steering!, ({ what }) => what === "gate 7")
      yield* submit(steering!, "not that", { id: "m1", mode: "steer" })
      yield* submit(steering!, "nor that", { id: "m2", mode: "steer" })
      // It is held up at the takeover, and finds the next owner when its run has ended.
      late.signal("SIGSTOP")
      const killedAt = yield* end(owner, "SIGKILL")
      const { ended } = yield* stop(stopping!)
      yield* took("the stop is accepted", killedAt)
      yield* submit(steering!, "and then", { id: "m3", mode: "follow" })
      assert.isTrue(yield* withdraw(steering!, "m2"))
      const answers = yield* Effect.forEach(
        [4, 5],
        (seats) => answer(asking!, "book-0", seats, { command: `${seats} seats` }).pipe(Effect.exit, Effect.forkChild)
      )

      yield* until(running!, (act) => act.what === "gate 1" && act.pid !== owner.pid)
      yield* took("taken over", killedAt)
      yield* openGate(world, 1)
      yield* untilRecorded(running!, "RunEnded")
      const again = yield* work
      assert.strictEqual(again.outputText, "charged 1, passed 1")
      late.signal("SIGCONT")
      // What had ended is not repeated, and what had not is tried again under its key.
      const [charge, ...charges] = acts(running!).filter(({ what }) => what === "charge 1")
      assert.deepStrictEqual([charge?.pid, charges], [owner.pid, []])
      const gates = acts(running!).filter(({ what }) => what === "gate 1")
      assert.isAbove(gates.length, 1)
      assert.strictEqual(new Set(gates.map(({ key }) => key)).size, 1)

      assert.strictEqual((yield* Fiber.join(stopped)).status, "stopped")
      assert.deepStrictEqual(yield* ended, { stopped: [], ended: [], refused: [], unknown: ["wait-0"] })
      assert.strictEqual(acts(stopping!).filter(({ what }) => what === `wait ${forever}`).length, 1)

      const [four, five] = [yield* Fiber.join(answers[0]!), yield* Fiber.join(answers[1]!)]
      assert.deepStrictEqual([four, five].map(Exit.isSuccess).toSorted(), [false, true])
      const seats = Exit.isSuccess(four) ? 4 : 5
      assert.deepStrictEqual((yield* texts(asking!)).slice(-2), [`${seats}`, `You said ${seats}`])
      const repeated = yield* answer(asking!, "book-0", seats, { command: `${seats} seats` })
      assert.strictEqual(repeated.outputText, `You said ${seats}`)

      yield* openGate(world, 7)
      assert.strictEqual((yield* Fiber.join(steered)).outputText, "You said and then")
      const said = (yield* texts(steering!)).slice(-5)
      assert.deepStrictEqual(said, ["passed 7", "not that", "You said not that", "and then", "You said and then"])
      assert.deepStrictEqual(yield* fates(steering!, ["m1", "m2", "m3"]), ["delivered", "withdrawn", "delivered"])

      const last = yield* store.version(running!)
      const seen = yield* Fiber.join(followed)
      assert.deepStrictEqual(seen.at(-1), { _tag: "Reported", report: again })
      const points = seen.filter((event) => event._tag === "Connected").slice(1)
      assert.isAbove(points.length, 0)
      // Where it finds the next owner after the end of the run, none is under way.
      for (const point of points) assert.strictEqual(point.requestId, point.version === last ? undefined : requestId)
      // Who reads the journal where the feed says so has each record once.
      yield* readOn
      assert.deepStrictEqual(read, Array.from({ length: last - offset }, (_, index) => offset + index + 1))

      yield* late.ended
      assert.notInclude(late.read.map(({ _tag }) => _tag), "ChatCompleted")
      assert.deepStrictEqual(late.read.at(-1), { _tag: "Connected", version: last })
    }))
})

describe("a frozen owner", () => {
  test("D-11: the session of a frozen owner is taken over, and nothing that the owner does afterwards is recorded", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      const { ids: [id], owner } = yield* together(1)
      const report = yield* Effect.forkChild(reply(id!, "gate 2"))
      yield* until(id!, ({ what }) => what === "gate 2")
      owner.signal("SIGSTOP")
      yield* until(id!, ({ pid, what }) => what === "gate 2" && pid !== owner.pid)
      yield* openGate(world, 2)
      const { outputText, version } = yield* Fiber.join(report)
      assert.strictEqual(outputText, "passed 2")
      owner.signal("SIGCONT")
      // It is back once it has shards again.
      yield* Processes.settled(runners)
      const loaded = yield* Session.load(id!)
      assert.deepStrictEqual([loaded!.version, loaded!.session.status], [version, "completed"])
      assert.strictEqual((yield* reply(id!, "Hello")).outputText, "You said Hello")
    }))
})

describe("owners killed at random", () => {
  test("D-14: every run of randomly killed owners ends, and charges once", () =>
    Effect.gen(function*() {
      const besieged = siege({ database, world, runs: 8, kills: 1, every: 0, over: 1250, wait: 1250 }, runners)
      const { resumptions, ...report } = yield* Effect.provideService(besieged, Scope.Scope, scope)
      runners = report.runners
      assert.deepStrictEqual(report, { kills: 1, completed: 8, broken: [], charges: 8, twice: 0, runners })
      assert.isAbove(resumptions.all, 0)
    }))
})

describe("an owner asked to leave", () => {
  test("N-05: an owner asked to leave ends its running calls, and hands over sessions without calls at once", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      const { ids: [working, resting], owner } = yield* together(2)
      const report = yield* Effect.forkChild(reply(working!, "gate 3"))
      yield* until(working!, ({ what }) => what === "gate 3")
      const leftAt = yield* end(owner, "SIGTERM")
      assert.strictEqual((yield* reply(resting!, "charge 2")).outputText, "charged 2")
      yield* took("handed over without a call", leftAt)
      assert.notStrictEqual(acts(resting!).at(-1)!.pid, owner.pid)
      const openedAt = Date.now()
      yield* openGate(world, 3)
      assert.strictEqual((yield* Fiber.join(report)).outputText, "passed 3")
      yield* took("handed over after its call", openedAt)
      assert.deepStrictEqual(acts(working!).slice(1).map(({ pid, what }) => [pid, what]), [[owner.pid, "gate 3"]])
      yield* owner.ended
      yield* took("gone", openedAt)
    }))
})
