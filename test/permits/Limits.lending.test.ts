/**
 * A permit that a handler lends to its nested runs is returned, however a run ends and wherever it is stopped: once, not
 * to a handler that was stopped, and not before the run is over.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { Chat, Limits, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { sampleOf } from "../support/property.ts"
import { contents } from "../support/runs.ts"

type AnyTool = Tool.Tool<string, any, any, any, never>

/** What is noted of handlers: who is at work, how many there are, and how many there were at most. */
class Floor {
  readonly log: Array<string> = []
  now = 0
  most = 0

  readonly note = (what: string): Effect.Effect<void> =>
    Effect.clockWith((clock) => Effect.sync(() => void this.log.push(`${clock.currentTimeMillisUnsafe()} ${what}`)))

  readonly work = (millis: number): Effect.Effect<void> =>
    Effect.acquireUseRelease(
      Effect.sync(() => this.most = Math.max(this.most, ++this.now)),
      () => Effect.sleep(millis),
      () => Effect.sync(() => this.now--)
    )
}

const tool = <E>(
  name: string,
  handler: Effect.Effect<unknown, E>,
  declared: Omit<Tool.Options<{}, never, E, never>, "parameters" | "handler" | "success"> = {}
): AnyTool => Tool.make(name, { parameters: {}, ...declared, handler: () => handler }) as AnyTool

const callsOf = (...names: ReadonlyArray<string>) => names.map((name, index) => Message.toolCall(`c${index}`, name))

/** A run of so many calls of one tool. */
const runOf = (given: AnyTool, calls = 1) =>
  ToolRunner.run(callsOf(...Array.from({ length: calls }, () => given.name)), [given])

const chatOf = (given: AnyTool, calls: number) =>
  Stream.provide(
    Chat.stream("go", { tools: [given] }),
    Script.layer([
      [
        ...callsOf(...Array.from({ length: calls }, () => given.name)).map(({ id, name }) => Script.toolCall(id, name)),
        Script.finish("tool_calls")
      ],
      [Script.text("done"), Script.finish("stop")]
    ])
  )

const valueOf = <A, E>({ exit }: Simulation.Report<A, E>): A =>
  exit?._tag === "Success" ? exit.value : assert.fail(`the run did not succeed: ${String(exit)}`)

describe("a handler's permit, lent to one run after another", () => {
  it.effect("law 3: a batch that a handler gives up stops first, and then the handler gets its permit back", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const leaf = tool("leaf", Effect.never)
      const parent = tool("parent", Effect.andThen(Effect.timeoutOption(runOf(leaf), 20), floor.note("goes on")))
      const report = yield* Simulation.run(ToolRunner.run(callsOf("parent"), [parent], { maxConcurrency: 1 }))
      assert.deepStrictEqual(contents(valueOf(report)), [["c0", "null"]])
      assert.deepStrictEqual(floor.log, ["20 goes on"])
    }))

  it.effect("law 3: an executor whose scope closes stops first, and then the handler gets its permit back", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const leaf = tool("leaf", Effect.never)
      const left = Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ policy: Policy.standard })
        yield* executor.addTool(Message.toolCall("l0", "leaf"), leaf)
        yield* Effect.sleep(20)
      }))
      const parent = tool("parent", Effect.andThen(left, floor.note("goes on")))
      const report = yield* Simulation.run(ToolRunner.run(callsOf("parent"), [parent], { maxConcurrency: 1 }))
      assert.deepStrictEqual(contents(valueOf(report)), [["c0", "null"]])
      assert.deepStrictEqual(floor.log, ["20 goes on"])
    }))

  it.effect("law 4: a handler stopped while it waits for its permit does nothing more", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const leaf = tool("leaf", Effect.sleep(10))
      const hog = tool("hog", Effect.sleep(100))
      const parent = tool("parent", Effect.andThen(runOf(leaf), floor.note("goes on")), { timeout: 50 })
      const report = yield* Simulation.run(
        ToolRunner.run(callsOf("parent", "hog"), [parent, hog], { maxConcurrency: 2 }).pipe(
          Effect.provide(Limits.layer({ permits: 1 }))
        )
      )
      const [[, first] = [], [, second] = []] = contents(valueOf(report))
      assert.match(String(first), /timeout/)
      assert.strictEqual(second, "null")
      assert.deepStrictEqual(floor.log, [])
    }))

  it.effect("law 11: an interrupted handler that waits for its permit after two concurrent runs stops", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const leaf = tool("leaf", Effect.sleep(10))
      const hog = tool("hog", Effect.sleep(10_000))
      const later = Effect.andThen(Effect.sleep(50), ToolRunner.run([], []))
      const both = Effect.all([runOf(leaf), later], { concurrency: 2 })
      const parent = tool("parent", Effect.ensuring(both, floor.note("has stopped")), { timeout: 1000 })
      const report = yield* Simulation.run(
        ToolRunner.run(callsOf("parent", "hog"), [parent, hog], { maxConcurrency: 2 }).pipe(
          Effect.provide(Limits.layer({ permits: 1 }))
        )
      )
      assert.isUndefined(valueOf(report).abandoned)
      assert.deepStrictEqual(floor.log, ["1000 has stopped"])
    }))
})

describe("permits of handlers that refuse to stop", () => {
  const ends: { readonly [how: string]: (given: AnyTool) => Effect.Effect<unknown, unknown> } = {
    "is interrupted": (given) => Effect.timeoutOption(runOf(given), 50),
    "is stopped softly": (given) => ToolRunner.run(callsOf(given.name), [given], { cancel: Effect.sleep(50) }),
    "gives the call up": (given) => ToolRunner.run(callsOf(given.name), [given], { toolTimeout: 50 })
  }
  for (const [how, end] of Object.entries(ends)) {
    for (const limits of [undefined, [{ key: "one", permits: 1 }]]) {
      it.effect(`law 11: other calls get the permits of a handler that refuses to stop, when its run ${how} (${limits === undefined ? "permits of the tree" : "permits by name"})`, () =>
        Effect.gen(function*() {
          const floor = new Floor()
          const declared = limits === undefined ? {} : { limits }
          const deaf = tool("deaf", Effect.uninterruptible(Effect.never), declared)
          const next = tool("next", floor.note("next"), declared)
          const report = yield* Simulation.run(
            Effect.andThen(end(deaf), runOf(next)).pipe(
              Effect.provide(Limits.layer({ permits: 1 })),
              Effect.timeoutOption("1 hour")
            )
          )
          valueOf(report)
          assert.deepStrictEqual(floor.log, ["5050 next"])
        }))
    }
  }
})

const keyed: Parameters<typeof tool>[2] = { limits: [{ key: "b", permits: 1 }, { key: "a", permits: 2 }] }

/** Runs whose handlers start runs, in every way in which they may come to an end. */
const scenarios: { readonly [name: string]: (floor: Floor) => Effect.Effect<unknown, unknown> } = {
  "chats that are given up": (floor) => {
    const leaf = tool("leaf", floor.work(30))
    const parent = Effect.gen(function*() {
      yield* floor.work(3)
      yield* Effect.timeoutOption(Stream.runDrain(chatOf(leaf, 2)), 10)
      yield* floor.work(3)
      yield* Stream.runDrain(chatOf(leaf, 2))
      yield* floor.work(3)
    })
    return runOf(tool("parent", parent), 2)
  },
  "batches that are given up": (floor) => {
    const leaf = tool("leaf", floor.work(30))
    const parent = Effect.gen(function*() {
      yield* floor.work(3)
      yield* Effect.timeoutOption(runOf(leaf, 2), 10)
      yield* floor.work(3)
      yield* runOf(leaf, 2)
      yield* floor.work(3)
    })
    return runOf(tool("parent", parent), 3)
  },
  "permits by name": (floor) => {
    const leaf = tool("leaf", floor.work(30), keyed)
    const parent = Effect.andThen(
      floor.work(3),
      Effect.andThen(Effect.timeoutOption(runOf(leaf, 2), 40), floor.work(3))
    )
    return runOf(tool("parent", parent, { limits: [{ key: "a", permits: 2 }, { key: "b", permits: 1 }] }), 3)
  },
  "runs that overlap": (floor) => {
    const leaf = tool("leaf", floor.work(5))
    const parent = Effect.gen(function*() {
      yield* Effect.race(runOf(leaf, 2), Effect.andThen(Effect.sleep(7), runOf(leaf)))
      yield* floor.work(3)
      const run = yield* Effect.forkChild(runOf(leaf, 4))
      yield* Effect.sleep(4)
      yield* Fiber.interrupt(run)
      yield* floor.work(3)
    })
    return runOf(tool("parent", parent), 3)
  },
  "a run that its handler leaves behind": (floor) => {
    const leaf = tool("leaf", floor.work(20))
    const parent = tool("parent", Effect.andThen(Effect.forkChild(runOf(leaf, 2)), Effect.sleep(4)))
    return ToolRunner.run(callsOf("parent", "parent", "leaf"), [parent, leaf])
  },
  "runs in gates and in the error policy": (floor) => {
    const leaf = tool("leaf", floor.work(5))
    const asked = Effect.as(Effect.orDie(runOf(leaf)), true)
    const parent = tool("parent", Effect.andThen(floor.work(5), Effect.fail("no")), {
      validate: () => asked,
      authorize: () => Effect.as(Effect.timeoutOption(asked, 2), true)
    })
    const late = tool("late", Effect.andThen(runOf(leaf), Effect.never), { timeout: 17 })
    return ToolRunner.run(callsOf("parent", "late", "parent", "leaf"), [parent, late, leaf], {
      onToolError: (_call, _error) => Effect.as(asked, Tool.ErrorDecision.continue("mended"))
    })
  },
  "handlers that time out over their runs": (floor) => {
    const leaf = tool("leaf", floor.work(20))
    const parent = tool("parent", Effect.andThen(runOf(leaf, 2), floor.work(20)), { timeout: 23 })
    return ToolRunner.run(callsOf("parent", "parent", "leaf"), [parent, leaf])
  }
}

/** A scenario under a bound, stopped at a step: what is wrong with what is left. */
const left = (scenario: (floor: Floor) => Effect.Effect<unknown, unknown>, bound: number, ops: number, at: number) =>
  Effect.gen(function*() {
    const floor = new Floor()
    const permits = Semaphore.makeUnsafe(bound)
    const keys = yield* Effect.provide(Effect.service(Limits.Keyed), Limits.layer({ permits: 1 }))
    const report = yield* Simulation.run(
      scenario(floor).pipe(
        Effect.provideService(Limits.Permits, permits),
        Effect.provideService(Limits.Keyed, keys),
        Effect.provideService(Scheduler.MaxOpsBeforeYield, ops)
      ),
      { interruptAt: at }
    )
    const free = yield* permits.takeIfAvailable(bound)
    const { exit, fibers, sleeping, steps } = report
    const found = {
      hasEnded: exit !== undefined,
      isFree: free,
      names: keys.size,
      isBounded: floor.most <= bound,
      atWork: floor.now,
      fibers,
      sleeping
    }
    return { found, steps }
  })

const nothing = { hasEnded: true, isFree: true, names: 0, isBounded: true, atWork: 0, fibers: 0, sleeping: 0 }

describe("lending, wherever a run is stopped", () => {
  for (const [name, scenario] of Object.entries(scenarios)) {
    it.effect(`laws 3 and 4: every permit comes back and the bound holds, wherever a run is stopped: ${name}`, () =>
      Effect.gen(function*() {
        for (
          const [bound, ops] of sampleOf(
            [1, 2].flatMap((bound) => [2048, 11, 5, 3].map((ops) => [bound, ops] as const))
          )
        ) {
          const how = `under ${bound}, with ${ops} operations at once`
          const whole = yield* left(scenario, bound, ops, Infinity)
          assert.deepStrictEqual(whole.found, nothing, `undisturbed, ${how}`)
          const stride = Math.max(1, Math.floor(whole.steps / 20))
          const stops = Array.from({ length: Math.ceil(whole.steps / stride) }, (_, index) => index * stride)
          for (const at of sampleOf(stops)) {
            const { found } = yield* left(scenario, bound, ops, at)
            assert.deepStrictEqual(found, nothing, `stopped at ${at}, ${how}`)
          }
        }
      }))
  }
})
