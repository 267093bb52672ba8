/**
 * Commands on a cluster at their edges: what is said while a question is open, and what comes again when the cluster has
 * forgotten it. On the live clock, since the loops of the cluster sleep between their looks.
 */
import { assert, describe, it } from "@effect/vitest"
import * as TestRunner from "effect/cluster/TestRunner"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Journal, Session, Tool } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { ledger } from "../durable/support/ledger.ts"
import { driven, errands, holding, linesOf, placesOf, wrapped } from "../support/edges.ts"
import { acting, agent, casting, type Turn } from "../support/nests.ts"
import type { Deed } from "../support/survivor.ts"
import { until } from "../support/until.ts"

ledger()

const client = SessionClient.SessionClient

const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Wipe the disk?")) })
const typed = Tool.make("ask", {
  parameters: {},
  handler: () => Effect.succeed(Tool.askUser("How many?", { answer: Schema.Int }))
})

const asking: Readonly<Record<string, ReadonlyArray<Turn>>> = { go: [[["ask", "ask", {}]], "Done", "Later"] }

const services = (tool: Tool.Any, parts = asking, term: Duration.Input = "5 seconds") =>
  Layer.mergeAll(Cluster.layer({ run: () => ({ tools: [tool] as unknown as [] }), term }), SessionClient.layer).pipe(
    Layer.provide(casting(parts)),
    Layer.provideMerge(Session.Store.layerMemory),
    Layer.provideMerge(TestRunner.layer)
  )

const loaded = Effect.map(Session.load("ann"), (kept) => kept!)

describe("a reply on a cluster", () => {
  for (const [what, tool] of Object.entries({ plain: ask, typed })) {
    it.live(`N-38: a reply whose sender has not seen a ${what} question waits for its answer`, () =>
      Effect.gen(function*() {
        const { answer, reply } = yield* client
        const asked = yield* reply("ann", "go", { command: "m1" })
        assert.deepStrictEqual(asked.suspensions.map(({ id }) => id), ["ask"])
        const said = yield* reply("ann", "order pizza", { command: "m2" })
        assert.deepStrictEqual(said.suspensions.map(({ id }) => id), ["ask"])
        const waiting = yield* loaded
        assert.strictEqual(Session.next(waiting), "wait")
        assert.strictEqual(Session.receipt(waiting, "m2")?.became, "queued")
        const done = yield* answer("ann", "ask", 2, { command: "v1" })
        assert.deepStrictEqual([done.status, done.outputText], ["completed", "Done"])
        const kept = yield* loaded
        assert.strictEqual(linesOf(kept.session).filter((line) => line === "user: order pizza").length, 1)
        assert.strictEqual(Session.receipt(kept, "m2")?.became, "completed")
      }).pipe(Effect.provide(services(tool))))
  }

  it.live("N-38: a reply whose sender has not seen a nested run's question waits for its answer", () =>
    Effect.gen(function*() {
      const { answer, reply } = yield* client
      const asked = yield* reply("ann", "go", { command: "m1" })
      assert.deepStrictEqual(asked.suspensions.map(({ id }) => id), ["a/q"])
      const said = yield* reply("ann", "order pizza", { command: "m2" })
      assert.deepStrictEqual(said.suspensions.map(({ id }) => id), ["a/q"])
      assert.strictEqual(Session.receipt(yield* loaded, "m2")?.became, "queued")
      const done = yield* answer("ann", "a/q", "no", { command: "v1" })
      assert.deepStrictEqual([done.status, done.outputText], ["completed", "Done"])
      const kept = yield* loaded
      assert.strictEqual(linesOf(kept.session).filter((line) => line === "user: order pizza").length, 1)
      assert.strictEqual(Session.receipt(kept, "m2")?.became, "completed")
    }).pipe(Effect.provide(services(agent("only", [ask]), {
      go: [[["a", "only", {}]], "Done", "Later"],
      only: [[["q", "ask", {}]], "only is done"]
    }))))

  it.live("N-38: a reply waits while a call waits that no message can answer", () =>
    Effect.gen(function*() {
      const { answer, reply } = yield* client
      const asked = yield* reply("ann", "go", { command: "m1" })
      assert.deepStrictEqual(asked.suspensions.map(({ kind }) => kind), ["manual"])
      yield* reply("ann", "order pizza", { command: "m2", after: asked.version })
      assert.strictEqual(Session.receipt(yield* loaded, "m2")?.became, "queued")
      yield* answer("ann", "ask", 2, { command: "v1" })
      const kept = yield* loaded
      assert.strictEqual(linesOf(kept.session).filter((line) => line === "user: order pizza").length, 1)
      assert.strictEqual(Session.receipt(kept, "m2")?.became, "completed")
    }).pipe(Effect.provide(services(Tool.make("ask", { parameters: {}, manual: true })))))

  it.live("N-38: a reply waits for the answer to a question in a snapshot, unless its sender has seen the question", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      yield* reply("ann", "go", { command: "m1" })
      const { version } = yield* Session.snapshot(yield* loaded)
      for (const [command, options] of [["m2", {}], ["m3", { after: version - 1 }]] as const) {
        yield* reply("ann", "order pizza", { command, ...options })
        assert.strictEqual(Session.receipt(yield* loaded, command)?.became, "queued")
      }
      yield* reply("ann", "no", { command: "m4", after: version })
      assert.include(linesOf((yield* loaded).session), "user: no")
      assert.strictEqual(Session.receipt(yield* loaded, "m4")?.became, "completed")
    }).pipe(Effect.provide(services(ask, { go: [[["ask", "ask", {}]], ...Array.from({ length: 6 }, () => "Done")] }))))

  it.live("N-38: a reply whose sender has seen the question answers it", () =>
    Effect.gen(function*() {
      const { reply } = yield* client
      const asked = yield* reply("ann", "go", { command: "m1" })
      const done = yield* reply("ann", "no", { command: "m2", after: asked.version })
      assert.deepStrictEqual([done.status, done.outputText], ["completed", "Done"])
      assert.deepStrictEqual(linesOf((yield* loaded).session).slice(-3), [
        "assistant ask: Wipe the disk?",
        "user: no",
        "assistant: Done"
      ])
    }).pipe(Effect.provide(services(ask))))
})

describe("a redelivered command", () => {
  it.live("N-13: a command redelivered after a snapshot, when the cluster has forgotten it, does nothing, and other content is refused", () =>
    Effect.gen(function*() {
      const { answer, forget, reply } = yield* client
      const asked = yield* reply("ann", "go", { command: "m1" })
      yield* Session.snapshot(yield* loaded)
      yield* forget("ann")
      const again = yield* reply("ann", "go", { command: "m1", after: asked.version })
      assert.deepStrictEqual(again.suspensions.map(({ id }) => id), ["ask"])
      yield* answer("ann", "ask", "yes", { command: "v1" })
      const kept = yield* Session.snapshot(yield* loaded)
      yield* forget("ann")
      const reports = [
        yield* reply("ann", "go", { command: "m1" }),
        yield* answer("ann", "ask", "yes", { command: "v1" })
      ]
      for (const { outputText, version } of reports) {
        assert.deepStrictEqual([version, outputText], [kept.version, "Done"])
      }
      yield* forget("ann")
      const refused = yield* Effect.flip(reply("ann", "something else", { command: "m1" }))
      assert.deepInclude(refused, { _tag: "CommandError", reason: "id_taken" })
      assert.strictEqual((yield* loaded).version, kept.version)
    }).pipe(Effect.provide(services(ask))))
})

describe("a command whose claim is revoked", () => {
  it.live("a command whose claim is revoked is carried out again at once under a new claim", () => {
    const attempts: Array<number> = []
    let isInterrupted = false
    const work = Tool.make("ask", {
      parameters: {},
      idempotent: true,
      handler: (_, { attempt }) =>
        Effect.suspend(() => {
          attempts.push(attempt)
          return attempt > 1
            ? Effect.succeed("worked")
            : Effect.onInterrupt(Effect.never, () => Effect.sync(() => void (isInterrupted = true)))
        })
    })
    return Effect.gen(function*() {
      const { reply } = yield* client
      const report = yield* Effect.forkChild(reply("ann", "go", { command: "m1" }))
      yield* until("the call", Effect.sync(() => attempts.length), (count) => count === 1)
      assert.isTrue(yield* Session.revoke("ann"))
      // The wait is shorter than the term.
      yield* until("the next attempt", Effect.sync(() => attempts.length), (count) => count === 2)
      assert.isTrue(isInterrupted)
      const { outputText, status } = yield* Fiber.join(report)
      assert.deepStrictEqual([attempts, status, outputText], [[1, 2], "completed", "Done"])
    }).pipe(Effect.provide(services(work, asking, "1 hour")))
  })
})

describe("the remaining work of a session", () => {
  it.live("Q-07: the cluster and a program of ten lines do the same remaining work, from each append of all journals", () =>
    Effect.gen(function*() {
      const { model, toolsOf } = errands
      const appends = yield* errands.appends
      for (const length of placesOf(1, appends.length)) {
        const where = `behind append ${length}, ${appends[length - 1]?.records.map(({ _tag }) => _tag).join(" ")}`
        const before = appends.slice(0, length)
        const [world, other]: [Array<Deed>, Array<Deed>] = [[], []]
        const own = yield* driven("s", toolsOf(world)).pipe(Effect.provide([model, holding(before)]))
        const services = Layer.mergeAll(
          Cluster.layer({ run: () => ({ tools: toolsOf(other) }) }),
          SessionClient.layer
        ).pipe(
          Layer.provide(model),
          Layer.provideMerge(holding(before)),
          Layer.provideMerge(TestRunner.layer)
        )
        yield* Effect.gen(function*() {
          const { resume } = yield* client
          const report = yield* resume("s")
          const kept = (yield* Session.load("s"))!
          assert.deepStrictEqual(kept.session, own.session, where)
          assert.deepStrictEqual([report.version, Session.next(kept)], [kept.version, Session.next(own)], where)
          assert.deepStrictEqual(other.map(({ tool }) => tool), world.map(({ tool }) => tool), where)
        }).pipe(Effect.provide(services))
      }
    }))
})

describe("a reply that the store refuses", () => {
  it.live("O-57: a reply that the store refuses is kept while the command is carried out again, and the model is asked once", () => {
    const asked: Array<string> = []
    const world: Array<Deed> = []
    let refusals = 0
    const store = wrapped((base) => (...append) =>
      Effect.suspend(() => {
        const isReplied = append[2].some(({ _tag }) => _tag === "ReplyReceived" || _tag === "StepCompleted")
        return isReplied && refusals++ % 4 < 3
          ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "append", id: append[0] }))
          : base.append(...append)
      })
    )
    const model = casting({ go: [[["a", "act", {}]], "Done"] }, asked)
    const layer = Layer.mergeAll(
      Cluster.layer({ run: () => ({ tools: [acting(world, "act")] as unknown as [] }), term: "3 seconds" }),
      SessionClient.layer
    ).pipe(Layer.provide(model), Layer.provideMerge(store), Layer.provideMerge(TestRunner.layer))
    return Effect.gen(function*() {
      const { reply } = yield* client
      const done = yield* reply("ann", "go", { command: "m1" })
      assert.deepStrictEqual([done.status, done.outputText], ["completed", "Done"])
      assert.deepStrictEqual(asked, ["go 0", "go 1"])
      assert.lengthOf(world, 1)
    }).pipe(Effect.provide(layer))
  })
})
