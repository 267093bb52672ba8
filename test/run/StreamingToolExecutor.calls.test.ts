/**
 * What an executor takes: options and calls, usable or not, and how each call is read when it comes up.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Message, Policy, StreamingToolExecutor, Tool } from "heddle"
import { Simulation } from "heddle/testing"
import { type AnyTool, Floor, safe, takes } from "../support/floor.ts"
import { defectOf } from "../support/runs.ts"
import { assertClean, assertSeen, failed, ok, seenOf, timedUpdates, valueOf } from "../support/seen.ts"

type Call = readonly [call: Message.ToolCall, tool: AnyTool | undefined]

/** What calls come to that are handed over one after the other, at once. */
const played = (calls: ReadonlyArray<Call>, options: StreamingToolExecutor.Options = {}) =>
  Effect.map(
    Simulation.run(Effect.scoped(Effect.gen(function*() {
      const executor = yield* StreamingToolExecutor.make(options)
      for (const [call, tool] of calls) yield* executor.addTool(call, tool)
      yield* executor.noMoreCalls
      return yield* timedUpdates(executor)
    }))),
    valueOf
  )

const seen = (calls: ReadonlyArray<Call>, options?: StreamingToolExecutor.Options) =>
  Effect.map(played(calls, options), (told) => told.flatMap(([at, update]) => seenOf(update, at)))

describe("StreamingToolExecutor: options", () => {
  it.effect("R-420: a bound that allows no call is a defect that names the option", () =>
    Effect.gen(function*() {
      for (const maxParallel of [0, -1, 1.5, Number.NaN, Infinity]) {
        const defect = yield* defectOf(Effect.scoped(StreamingToolExecutor.make({ maxParallel })))
        assert.instanceOf(defect, TypeError)
        assert.match(defect.message, /: maxParallel must be a positive integer; got: /)
      }
    }))

  it.effect("an unusable toolTimeout, grace, deadline or signal is a defect that names the option", () =>
    Effect.gen(function*() {
      const mistakes = { toolTimeout: 0, grace: -1, deadline: "soon", signal: "stop" } as const
      for (const [name, value] of Object.entries(mistakes)) {
        const defect = yield* defectOf(Effect.scoped(StreamingToolExecutor.make({ [name]: value })))
        assert.include(defect.message, name)
      }
    }))

  it.effect("J-05, R-382: ten calls run concurrently under a policy without a bound of its own", () =>
    Effect.gen(function*() {
      for (const [policy, peak] of [[Policy.standard, 10], [{ ...Policy.falai, maxConcurrency: 4 }, 4]] as const) {
        const floor = new Floor()
        const tool = floor.tool("a", takes(1), safe)
        yield* played(Array.from({ length: 60 }, (_, index): Call => [Message.toolCall(`c${index}`, "a"), tool]), {
          policy
        })
        assert.strictEqual(floor.peak, peak)
      }
    }))

  it.effect("R-386, R-387: results come in call order and progress comes at once, whatever the policy says", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const loud = floor.tool("loud", (_args, call) => Effect.andThen(call.progress("here"), takes(1)), safe)
      const slow = floor.tool("slow", takes(5), safe)
      const policy: Policy.Policy = { ...Policy.standard, resultOrder: "completion", toolEvents: "grouped" }
      const told = yield* played([[Message.toolCall("a", "slow"), slow], [Message.toolCall("b", "loud"), loud]], {
        policy
      })
      assert.deepStrictEqual(told.map(([at, { progress, toolCallId }]) => [at, toolCallId, progress]), [
        [0, "b", "here"],
        [5, "a", undefined],
        [5, "b", undefined]
      ])
    }))

  it.effect("R-410: a handler has the timeout of its tool, the caller or the application, or 30 seconds", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const plain = floor.tool("plain", Effect.never)
      const own = floor.tool("own", Effect.never, { timeout: 5 })
      const calls: ReadonlyArray<Call> = [plain, own].map((tool) => [Message.toolCall(tool.name, tool.name), tool])
      const timeouts = (plainAt: number) => [failed("plain", plainAt, "timeout"), failed("own", plainAt + 5, "timeout")]
      assertSeen(yield* seen(calls), timeouts(30_000))
      assertSeen(yield* seen(calls, { toolTimeout: 20 }), timeouts(20))
      const application = Layer.succeed(Policy.Defaults, { toolTimeout: 50 })
      assertSeen(yield* Effect.provide(seen(calls), application), timeouts(50))
      assertSeen(yield* Effect.provide(seen(calls, { toolTimeout: 20 }), application), timeouts(20))
      assertClean(floor, 0)
    }))

  it.effect("an executor takes the context of the application, but not its policy", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = ["a", "b"].map((name) =>
        floor.tool(name, (_args, call) => Effect.as(Effect.sleep(5), call.context["who"]))
      )
      const calls = tools.map((tool): Call => [Message.toolCall(tool.name, tool.name), tool])
      const application = Layer.succeed(Policy.Defaults, { policy: Policy.standard, context: { who: "all" } })
      assertSeen(yield* Effect.provide(seen(calls), application), [ok("a", 5, "all"), ok("b", 10, "all")])
      assertSeen(yield* Effect.provide(seen(calls, { context: { who: "one" } }), application), [
        ok("a", 5, "one"),
        ok("b", 10, "one")
      ])
    }))

  it.effect("a deadline ends calls and results, also without `noMoreCalls`", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const work = floor.tool("a", Effect.never, { interrupt: "cancel" })
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ deadline: { after: 100, reserve: 30 } })
        yield* executor.addTool(Message.toolCall("a", "a"), work)
        return yield* timedUpdates(executor)
      })))
      const told = valueOf(report).flatMap(([at, update]) => seenOf(update, at))
      assert.deepInclude(told[0], { id: "a", at: 70, cancelled: true })
      assert.strictEqual(report.millis, 100)
      assertClean(floor, report.sleeping)
    }))

  it.effect("tool services are taken where the executor is made", () =>
    Effect.gen(function*() {
      class Weather extends Context.Service<Weather, { readonly celsius: number }>()("test/Weather") {}
      const tool = Tool.make("weather", {
        parameters: {},
        handler: () => Effect.map(Weather, ({ celsius }) => celsius)
      })
      const told = yield* Effect.scoped(Effect.gen(function*() {
        const executor = yield* Effect.provideService(StreamingToolExecutor.make<Weather>(), Weather, { celsius: 7 })
        yield* executor.addTool(Message.toolCall("a", "weather"), tool)
        yield* executor.noMoreCalls
        return yield* Stream.runCollect(executor.remainingResults)
      }))
      assert.deepStrictEqual(told.map(({ result }) => result?.data), [7])
    }))
})

describe("StreamingToolExecutor: calls", () => {
  it.effect("J-06, R-383: the arguments determine once, when a call is added, whether the call is safe", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const starts: Array<string> = []
      const file = Tool.make("file", {
        parameters: { mode: Schema.String },
        concurrency: (args) => {
          asked.push(args)
          return args.mode === "read" ? "shared" : "exclusive"
        },
        handler: (_args, call) => Effect.andThen(Effect.sync(() => starts.push(call.id)), Effect.sleep(10))
      })
      const modes = ["read", "read", "write", "read"]
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        for (const [index, mode] of modes.entries()) {
          yield* executor.addTool(Message.toolCall(`c${index}`, "file", { mode }), file)
        }
        assert.deepStrictEqual(asked, modes.map((mode) => ({ mode })), "before anything has ended")
        assert.deepStrictEqual(starts, ["c0", "c1"], "and what may start has started")
        yield* executor.noMoreCalls
        return yield* timedUpdates(executor)
      })))
      assert.deepStrictEqual(valueOf(report).map(([at]) => at), [10, 10, 20, 30])
      assert.strictEqual(asked.length, 4)
    }))

  it.effect("R-385: a call whose concurrency function throws, or returns an invalid value, runs by itself", () =>
    Effect.gen(function*() {
      const warnings: Array<unknown> = []
      const logger = Logger.make<unknown, void>(({ logLevel, message }) => void warnings.push([logLevel, message]))
      const answers: ReadonlyArray<() => unknown> = [() => undefined, () => true, () => {
        throw new Error("secret")
      }]
      for (const concurrency of answers) {
        const floor = new Floor()
        const odd = floor.tool("odd", takes(5), { concurrency: concurrency as () => Tool.Concurrency })
        const odds = { ...odd, handler: () => takes(5) } as AnyTool
        const plain = floor.tool("plain", takes(5), safe)
        const calls: ReadonlyArray<Call> = [
          [Message.toolCall("a", "plain"), plain],
          [Message.toolCall("b", "odd"), odds],
          [Message.toolCall("c", "odd"), odds]
        ]
        const told = yield* Effect.provide(seen(calls), Logger.layer([logger]))
        assertSeen(told, [ok("a", 5, "after 5"), ok("b", 10, "after 5"), ok("c", 15, "after 5")])
      }
      assert.strictEqual(warnings.length, 2)
      assert.include(JSON.stringify(warnings), "the call runs alone")
    }))

  it.effect("R-380: a call starts while it is added, before the results are read", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tool = floor.tool("a", takes(5))
      const report = yield* Simulation.run(Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* Effect.sleep(3)
        yield* executor.addTool(Message.toolCall("a", "a"), tool)
        assert.deepStrictEqual(floor.marks, [[3, "start", "a"]])
        yield* Effect.sleep(10)
        return yield* executor.completedResults
      })))
      assert.strictEqual(valueOf(report).length, 1)
      assert.deepStrictEqual(floor.marks, [[3, "start", "a"], [8, "end", "a"]])
    }))

  it.effect("R-411: a call without a tool is answered in its place, and stops no other call", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tool = floor.tool("a", takes(5), { ...safe, interrupt: "cancel" })
      const told = yield* seen([
        [Message.toolCall("a", "a"), tool],
        [Message.toolCall("b", "ghost"), undefined],
        [Message.toolCall("c", "a"), tool]
      ])
      assertSeen(told, [
        ok("a", 5, "after 5"),
        failed("b", 5, "tool error (ghost): unknown_tool"),
        ok("c", 5, "after 5")
      ])
    }))

  it.effect("R-357, R-392: a call with lost or invalid arguments is answered, and stops no other call", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tool = floor.tool("a", takes(5), { ...safe, interrupt: "cancel" })
      const strict = Tool.make("strict", {
        parameters: { n: Schema.Finite },
        handler: () => Effect.die("must not run")
      })
      const told = yield* seen([
        [Message.toolCall("a", "a"), tool],
        [{ ...Message.toolCall("b", "a"), argumentsLost: "truncated" }, tool],
        [Message.toolCall("c", "strict", { n: "one" }), strict]
      ])
      assertSeen(told, [
        ok("a", 5, "after 5"),
        failed("b", 5, "truncated_arguments"),
        failed("c", 5, "invalid_arguments")
      ])
    }))

  it.effect("J-13, R-408: a gate is asked about a call without arguments", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const asked: Array<unknown> = []
      const tool = floor.tool("a", takes(5), {
        authorize: (args) => {
          asked.push(args)
          return { allowed: false, reason: "never" }
        }
      })
      const bare = { id: "a", name: "a" } as Message.ToolCall
      const told = yield* played([[bare, tool], [{ ...bare, id: "b", arguments: null as never }, tool]])
      assert.deepStrictEqual(told.map(([, { result }]) => result?.error), [
        "Permission denied: never",
        "Permission denied: never"
      ])
      assert.deepStrictEqual(asked, [{}, {}])
      assert.deepStrictEqual(floor.marks, [])
    }))

  it.effect("R-408: a handler receives a complete call, with defaults for missing fields", () =>
    Effect.gen(function*() {
      const tool = new Floor().tool("a", (args, { toolCall }) => Effect.succeed([args, toolCall]))
      const [told] = yield* played([[{ id: "a", name: "a" } as Message.ToolCall, tool]])
      assert.deepStrictEqual(told?.[1].result?.data, [{}, { id: "a", name: "a", arguments: {}, metadata: {} }])
    }))

  it.effect("J-30, R-419: two calls with one tool, even with one id, have two results", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tool = floor.tool("a", ({ n }, call) => Effect.as(call.progress(n), n), safe)
      const told = yield* played([
        [Message.toolCall("same", "a", { n: 1 }), tool],
        [Message.toolCall("same", "a", { n: 2 }), tool],
        [Message.toolCall("other", "a", { n: 3 }), tool]
      ])
      const results = told.flatMap(([, { result, toolCallId }]) =>
        result === undefined ? [] : [[toolCallId, result.data]]
      )
      assert.deepStrictEqual(results, [["same", 1], ["same", 2], ["other", 3]])
      assert.deepStrictEqual(told.flatMap(([, { progress }]) => progress ?? []), [1, 2, 3])
    }))

  it.effect("R-397, R-404, R-406: result metadata names the tool, and how the call ended", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = {
        fine: floor.tool("fine", Effect.succeed("0123456789"), safe),
        cut: floor.tool("cut", Effect.succeed("0123456789"), { ...safe, maxResultChars: 5 }),
        asked: floor.tool("asked", Effect.succeed(1), { authorize: () => ({ allowed: false, canOverride: false }) }),
        stopped: floor.tool("stopped", Effect.never, { ...safe, interrupt: "cancel" }),
        failing: floor.tool("failing", Effect.fail("no"), safe)
      }
      const calls = Object.entries(tools).map(([id, tool]): Call => [Message.toolCall(id, tool.name), tool])
      const told = yield* played(calls)
      const metadata = Object.fromEntries(told.map(([, { result, toolCallId }]) => [toolCallId, result?.metadata]))
      assert.deepStrictEqual(metadata, {
        fine: { toolId: "fine" },
        cut: { truncated: true, originalLength: 10, toolId: "cut" },
        asked: { gate: "authorize", canOverride: false, toolId: "asked" },
        stopped: { cancelled: true, toolId: "stopped" },
        failing: { toolId: "failing" }
      })
    }))

  it.effect("R-404: a halt and a question are successful results", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const halt = floor.tool("halt", Effect.succeed(Tool.halt("enough", { v: 1 })))
      const ask = floor.tool("ask", Effect.succeed(Tool.askUser("Which one?", ["a"])))
      const told = yield* played([[Message.toolCall("a", "halt"), halt], [Message.toolCall("b", "ask"), ask]])
      const results = told.map(([, { result }]) => [result?.success, result?.data, result?.content])
      assert.deepStrictEqual(results, [
        [true, { v: 1 }, "{\"v\":1}"],
        [true, { _tag: "AskUser", question: "Which one?", opts: ["a"] }, "Which one?"]
      ])
    }))
})
