/**
 * Batches of calls: what is checked before anything runs, that calls run concurrently and are answered in their order,
 * and what a handler receives.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Executor, Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { contents, defectOf, elapsed, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const { allm, standard } = Policy
const call = Message.toolCall

/** The contexts handlers of a tool are called with. */
const told = (options: ToolRunner.Options = {}, args: unknown = {}) =>
  Effect.gen(function*() {
    const calls: Array<{ readonly args: unknown; readonly call: Tool.CallContext }> = []
    const spy = Tool.make("spy", {
      parameters: Tools.anything,
      handler: (args, call) => Effect.sync(() => void calls.push({ args, call }))
    })
    const request = [{ id: "c0", name: "spy", arguments: args as never }, { id: "c1", name: "spy" }]
    yield* ToolRunner.run(request, [spy], options)
    return calls
  })

describe("ToolRunner: before anything runs", () => {
  it.effect("B-01, R-051: an onToolError of another arity is a defect that names the signature, even without calls", () =>
    Effect.gen(function*() {
      for (
        const onToolError of [(_one: unknown) => Effect.void, (_a: unknown, _b: unknown, _c: unknown) => Effect.void]
      ) {
        for (
          const run of [
            ToolRunner.run,
            (...args: Parameters<typeof ToolRunner.run>) => Stream.runDrain(ToolRunner.stream(...args))
          ]
        ) {
          const defect = yield* defectOf(run([], [], { onToolError: onToolError as never }))
          assert.match(
            defect.message,
            /^onToolError must take \(call, error\); got: a function of (1 argument|3 arguments)$/
          )
        }
      }
    }))

  it.effect("R-051: continue, halt, undefined and functions of two or no arguments are accepted, and other values are defects", () =>
    Effect.gen(function*() {
      const twoArguments = (_call: Message.ToolCall, _error: unknown) => Effect.succeed(Tool.ErrorDecision.halt)
      for (
        const onToolError of [
          "continue",
          "halt",
          undefined,
          twoArguments,
          () => Effect.succeed(Tool.ErrorDecision.halt)
        ] as const
      ) {
        assert.deepStrictEqual(yield* ToolRunner.run([], [], { onToolError }), { messages: [] })
      }
      const circular: Record<string, unknown> = {}
      circular["self"] = circular
      for (const onToolError of ["stop", 1, true, {}, circular, 10n]) {
        const defect = yield* defectOf(ToolRunner.run([], [], { onToolError: onToolError as never }))
        assert.include(defect.message, "onToolError must be")
      }
    }))

  it.effect("B-02, R-050, R-052: a batch without calls has no messages and no halt, and starts no fiber", () =>
    Effect.gen(function*() {
      const before = yield* Effect.forkChild(Effect.void)
      const result = yield* ToolRunner.run([], [Tools.echo], { onToolError: "continue" })
      const after = yield* Effect.forkChild(Effect.void)
      assert.deepStrictEqual(result, { messages: [] })
      assert.strictEqual(after.id - before.id, 1)
    }))

  it.effect("B-03, R-053: under allm an unknown tool name fails the batch, and no tool runs", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", {
        parameters: Tools.anything,
        handler: recorder.handler((args) => Effect.succeed(args))
      })
      const calls = [call("c0", "echo"), call("c1", "ghost"), call("c2", "spectre")]
      const error = yield* Effect.flip(ToolRunner.run(calls, [echo], { policy: allm }))
      assert.strictEqual(error.reason, "unknown_tool")
      assert.deepStrictEqual(error.metadata, { toolName: "ghost" })
      assert.strictEqual(error.message, "the model called \"ghost\", not one of the run's tools (echo)")
      assert.strictEqual((yield* recorder.counts()).starts, 0)
    }))

  it.effect("B-04, R-053: by default a call of an unknown tool is answered, and the other calls run", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", {
        parameters: Tools.anything,
        handler: recorder.handler((args) => Effect.succeed(args))
      })
      const result = yield* ToolRunner.run([call("c0", "echo", { x: 1 }), call("c1", "ghost")], [echo])
      assert.deepStrictEqual(result, {
        messages: [
          { role: "tool", toolCallId: "c0", content: "{\"x\":1}", metadata: {} },
          {
            role: "tool",
            toolCallId: "c1",
            content: "{\"error\":\"tool error (ghost): unknown_tool: the tools are echo\",\"code\":\"unknown_tool\"}",
            isError: true,
            code: "unknown_tool",
            metadata: {}
          }
        ]
      })
      assert.strictEqual((yield* recorder.counts("echo")).starts, 1)
    }))

  it.effect("B-30, R-054: a maxConcurrency other than a positive integer is a defect", () =>
    Effect.gen(function*() {
      for (const maxConcurrency of [0, -1, 1.5, Number.NaN, Infinity, "8"]) {
        const defect = yield* defectOf(ToolRunner.run([], [], { maxConcurrency: maxConcurrency as never }))
        assert.include(defect.message, "maxConcurrency must be a positive integer")
      }
    }))

  it.effect("R-055: a timeout or a grace period other than a duration above zero is a defect", () =>
    Effect.gen(function*() {
      for (const option of ["toolTimeout", "grace"] as const) {
        for (const value of [0, -1, "soon", Number.NaN, {}]) {
          const defect = yield* defectOf(ToolRunner.run([], [], { [option]: value as never }))
          assert.include(defect.message, `${option} must be a duration above zero`)
        }
      }
    }))

  it.effect("R-055: a handler of three arguments is a defect before any call runs", () =>
    Effect.gen(function*() {
      const broken = {
        ...Tools.echo,
        name: "broken",
        handler: ((_a: unknown, _b: unknown, _c: unknown) => Effect.void) as never
      }
      const defect = yield* defectOf(ToolRunner.run([call("c0", "echo")], [Tools.echo, broken]))
      assert.include(defect.message, "handler of tool \"broken\" takes 3 arguments")
    }))
})

describe("ToolRunner: a batch", () => {
  it.effect("B-05, R-050, R-058: calls run concurrently, and their answers come in call order", () =>
    Effect.gen(function*() {
      const calls = [call("c0", "slow"), call("c1", "echo", { x: 1 })]
      const { at, value } = yield* elapsed(ToolRunner.run(calls, [Tools.slow(60), Tools.echo]))
      assert.strictEqual(at, 60)
      assert.deepStrictEqual(value, {
        messages: [
          { role: "tool", toolCallId: "c0", content: "slow", metadata: {} },
          { role: "tool", toolCallId: "c1", content: "{\"x\":1}", metadata: {} }
        ]
      })
    }))

  it.effect("R-054: without a bound as many handlers run as twice the cores, at most one for each call", () =>
    Effect.gen(function*() {
      const cores = navigator.hardwareConcurrency
      for (const count of [1, 2 * cores, 2 * cores + 3]) {
        const recorder = yield* Recorder.make
        const wait = Tool.make("wait", { parameters: {}, handler: recorder.handler(() => Effect.sleep(10)) })
        const calls = Array.from({ length: count }, (_, index) => call(`c${index}`, "wait"))
        yield* elapsed(ToolRunner.run(calls, [wait]))
        assert.strictEqual((yield* recorder.counts()).peak, Math.min(count, 2 * cores))
      }
    }))

  it.effect("B-25, R-054: a bound of two is kept, and no call waits longer than the bound requires", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const wait = Tool.make("slow", { parameters: {}, handler: recorder.handler(() => Effect.sleep(30)) })
      const calls = Array.from({ length: 8 }, (_, index) => call(`c${index}`, "slow"))
      const { at, value } = yield* elapsed(ToolRunner.run(calls, [wait], { maxConcurrency: 2 }))
      assert.strictEqual(at, 120)
      assert.strictEqual(value.messages.length, 8)
      assert.deepInclude(yield* recorder.counts(), { peak: 2, starts: 8, live: 0 })
    }))

  it.effect("R-054: the application's bound applies without an option, and an option wins", () =>
    Effect.gen(function*() {
      const calls = Array.from({ length: 4 }, (_, index) => call(`c${index}`, "slow"))
      const defaults = Effect.provide(Layer.succeed(Policy.Defaults, { maxConcurrency: 1 }))
      const run = (options: ToolRunner.Options) =>
        Effect.map(elapsed(defaults(ToolRunner.run(calls, [Tools.slow(10)], options))), ({ at }) => at)
      assert.strictEqual(yield* run({}), 40)
      assert.strictEqual(yield* run({ maxConcurrency: undefined }), 40)
      assert.strictEqual(yield* run({ maxConcurrency: 4 }), 10)
    }))

  it.effect("B-29, R-082: two calls with one id are two calls, two runs and two messages", () =>
    Effect.gen(function*() {
      const calls = [call("c0", "echo", { x: 1 }), call("c0", "echo", { x: 2 })]
      const result = yield* ToolRunner.run(calls, [Tools.echo])
      assert.deepStrictEqual(contents(result), [["c0", "{\"x\":1}"], ["c0", "{\"x\":2}"]])
      const slow = [call("c0", "slow"), call("c0", "echo", { x: 2 })]
      const { value } = yield* elapsed(ToolRunner.run(slow, [Tools.echo, Tools.slow(10)]))
      assert.deepStrictEqual(contents(value)[1], ["c0", "{\"x\":2}"], "also where the second is answered first")
    }))

  it.effect("R-082: of two calls with one id, one call may wait for an approval while the other is answered", () =>
    Effect.gen(function*() {
      const asked = Tool.make("asked", { parameters: {}, approval: true, handler: () => Effect.succeed("run") })
      const calls = [call("c0", "slow"), call("c1", "echo", { x: 1 }), call("c0", "asked")]
      for (const order of [calls, calls.toReversed()]) {
        const result = yield* elapsed(ToolRunner.run(order, [Tools.slow(10), Tools.echo, asked]))
        const waiting = result.value.suspensions?.map(({ id, kind, toolCall }) => [id, kind, toolCall.name])
        assert.deepStrictEqual(waiting, [["c0", "approval", "asked"]])
        const answered = order.filter(({ name }) => name !== "asked").map(({ id }) => id)
        assert.deepStrictEqual(contents(result.value).map(([id]) => id), answered)
      }
    }))

  it.effect("R-078: awaited and streamed runs of the same calls give the same answers", () =>
    Effect.gen(function*() {
      const all = [
        Tools.echo,
        Tools.fail,
        Tools.failS,
        Tools.boom,
        Tools.weird,
        Tools.ask,
        Tools.stop1,
        Tools.fn,
        Tools.none,
        Tools.big
      ]
      const calls = [...all.map((tool) => call(`id-${tool.name}`, tool.name, { x: 1 })), call("id-ghost", "ghost")]
      for (const policy of [standard, { ...standard, resultOrder: "request", toolEvents: "grouped" } as const]) {
        for (const onToolError of ["continue", "halt"] as const) {
          const run = yield* ToolRunner.run(calls, all, { onToolError, policy })
          const { events } = yield* watched(ToolRunner.stream(calls, all, { onToolError, policy }))
          const streamed = events.flatMap((event): ReadonlyArray<readonly [string | undefined, unknown]> => {
            if (event._tag === "ToolResultEncoded") return [[event.id, event.content]]
            if (event._tag === "ToolHalt") return [[event.toolCallId, event.content]]
            return event._tag === "AskUserRequested" ? [[event.toolCallId, "<awaiting user response>"]] : []
          })
          const byId = (a: readonly [string | undefined, unknown], b: typeof a) =>
            String(a[0]).localeCompare(String(b[0]))
          assert.deepStrictEqual(streamed.toSorted(byId), contents(run).toSorted(byId))
        }
      }
    }))
})

describe("ToolRunner: what a handler receives", () => {
  it.effect("B-27, R-076: the caller's context replaces the application's context, without a merge", () =>
    Effect.gen(function*() {
      const defaults = Effect.provide(Layer.succeed(Policy.Defaults, { context: { b: 2 } }))
      const context = { a: 1 }
      const [given] = yield* defaults(told({ context }))
      assert.strictEqual(given?.call.context, context)
      const [application] = yield* defaults(told())
      assert.deepStrictEqual(application?.call.context, { b: 2 })
      const [neither] = yield* told()
      assert.deepStrictEqual(neither?.call.context, {})
    }))

  it.effect("R-076: a handler receives session id and request id, and a request id is generated by default", () =>
    Effect.gen(function*() {
      const [given] = yield* told({ requestId: "r1", sessionId: "s1", stepIndex: 3 })
      assert.deepInclude(given?.call, {
        requestId: "r1",
        sessionId: "s1",
        stepIndex: 3,
        index: 0,
        id: "c0",
        attempt: 1
      })
      const [first, second] = yield* told()
      assert.strictEqual(first?.call.sessionId, null)
      assert.match(String(first?.call.requestId), /^[A-Za-z0-9_-]{22}$/)
      assert.strictEqual(first?.call.requestId, second?.call.requestId)
      assert.notStrictEqual(first?.call.idempotencyKey, second?.call.idempotencyKey)
      const [other] = yield* told()
      assert.notStrictEqual(first?.call.requestId, other?.call.requestId)
    }))

  it.effect("B-28, R-077: null or missing arguments reach the handler as an empty object", () =>
    Effect.gen(function*() {
      const calls = yield* told({}, null)
      assert.deepStrictEqual(calls.map(({ args }) => args), [{}, {}])
      assert.deepStrictEqual(calls.map(({ call }) => call.toolCall.arguments), [{}, {}])
    }))

  it.effect("R-076: the executor of a run serves every call, also a call that starts later", () =>
    Effect.gen(function*() {
      const dry = Executor.layer({
        execute: (tool, _args, call) => Effect.succeed(Tool.ok(`${tool.name} ${call.index}`)) as never
      })
      const calls = [call("c0", "echo"), call("c1", "echo")]
      const result = yield* ToolRunner.run(calls, [Tools.echo], { maxConcurrency: 1 }).pipe(Effect.provide(dry))
      assert.deepStrictEqual(contents(result), [["c0", "echo 0"], ["c1", "echo 1"]])
    }))

  it.effect("R-058: arguments are decoded by the tool's parameters, and invalid arguments are answered without a run", () =>
    Effect.gen(function*() {
      const double = Tool.make("double", {
        parameters: { n: Schema.FiniteFromString },
        handler: ({ n }) => Effect.succeed(n * 2)
      })
      const { events, exit } = yield* watched(
        ToolRunner.stream([call("c0", "double", { n: "21" }), call("c1", "double", { n: "many" })], [double])
      )
      assert.isTrue(exit._tag === "Success")
      assert.deepStrictEqual(events.map((event) => event._tag), [
        "ToolExecutionCompleted",
        "ToolResultEncoded",
        "ToolExecutionStarted",
        "ToolExecutionCompleted",
        "ToolResultEncoded"
      ])
      const texts = events.flatMap((event) => event._tag === "ToolResultEncoded" ? [[event.id, event.content]] : [])
      assert.strictEqual(texts[0]?.[0], "c1")
      assert.match(String(texts[0]?.[1]), /invalid_arguments/)
      assert.deepStrictEqual(texts[1], ["c0", "42"])
    }))
})
