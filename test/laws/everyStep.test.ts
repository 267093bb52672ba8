/**
 * Runs of every kind, stopped at each of their steps, hard and softly: as they take them by themselves, and with fibers
 * that are made to pause between any few operations.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Channel from "effect/Channel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Encoder, Limits, Message, Policy, Step, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { type EveryStep, everyStep, Script } from "heddle/testing"
import { shareOf } from "../support/property.ts"

const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.sleep("1 second") })
const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.sleep("2 seconds") })
const write = Tool.make("write", { parameters: {}, concurrency: "exclusive", handler: () => Effect.sleep("1 second") })
const block = Tool.make("block", { parameters: {}, interrupt: "block", handler: () => Effect.sleep("3 seconds") })
const never = Tool.make("never", { parameters: {}, timeout: "4 seconds", handler: () => Effect.never })
const refuse = Tool.make("refuse", {
  parameters: {},
  timeout: "4 seconds",
  handler: () => Effect.uninterruptible(Effect.sleep("1 minute"))
})
const flaky = Tool.make("flaky", {
  parameters: {},
  retry: Schedule.spaced("1 second").pipe(Schedule.upTo({ times: 2 })),
  handler: (_args, call) => Effect.andThen(Effect.sleep(10), call.attempt < 3 ? Effect.fail("again") : Effect.void)
})
const gated = Tool.make("gated", {
  parameters: {},
  validate: () => Effect.as(Effect.sleep(50), true),
  authorize: () => Effect.as(Effect.sleep(50), { allowed: false, reason: "no" }),
  handler: () => Effect.void
})
const told = Tool.make("told", {
  parameters: {},
  handler: (_args, call) =>
    Effect.forEach([1, 2, 3], (n) => Effect.andThen(call.progress(n), Effect.sleep(10)), { discard: true })
})
const promised = Tool.make("promised", {
  parameters: {},
  handler: (_args, call) => call.promise(() => Promise.resolve("kept").then((word) => `${word}!`))
})
const boom = Tool.make("boom", { parameters: {}, handler: () => Effect.andThen(Effect.sleep(500), Effect.die("boom")) })
const stop = Tool.make("stop", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", 1)) })
const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
const keyed = Tool.make("keyed", {
  parameters: {},
  limits: [{ key: "one", permits: 1 }],
  handler: () => Effect.sleep("1 second")
})

const tools = [wait, look, write, block, never, refuse, flaky, gated, told, promised, boom, stop, ask, keyed] as const

type Name = (typeof tools)[number]["name"]

/** A turn that calls tools, with a moment of silence after each call. */
const turn = (names: ReadonlyArray<Name>, end = Script.finish("tool_calls")): ReadonlyArray<Script.Entry> => [
  Script.text("So"),
  ...names.flatMap((name, index) => [Script.toolCall(`c${index}`, name), Script.delay(5)]),
  end
]

const answer: ReadonlyArray<Script.Entry> = [Script.text("Done."), Script.finish("stop")]

type Tried = Effect.Effect<EveryStep.Report>

interface Scenario {
  readonly name: string
  readonly tried: (options: EveryStep.Options) => Tried
}

/** A chat over turns that call the tools of these names. */
const chat = (
  name: string,
  turns: ReadonlyArray<ReadonlyArray<Script.Entry>>,
  more: Partial<Chat.Options<typeof tools>> = {},
  services: Layer.Layer<never> = Layer.empty
): Scenario => ({
  name,
  tried: (options) =>
    everyStep(({ cancel }) => Chat.stream("go", { tools, maxConcurrency: 3, cancel, ...more }), {
      ...options,
      bound: 3,
      layer: Layer.merge(Script.layer(turns), services),
      ...(more.policy === undefined || more.policy === null ? {} : { policy: more.policy })
    })
})

type AnyTool = Tool.Tool<string, any, any, any, never>

/** A tool that is a run of its own, whose model calls tools once and then answers. */
const agent = (
  name: string,
  tools: ReadonlyArray<AnyTool>,
  declared: Partial<Pick<Tool.Any, "interrupt" | "limits" | "timeout">> = {},
  policy: Policy.Policy = Policy.standard
): AnyTool =>
  Tool.fromChat(name, {
    parameters: {},
    ...declared,
    chat: () =>
      Stream.provide(
        Chat.stream("go", { tools: Array.from(new Set(tools)), policy }),
        Script.layer([
          [...tools.map((tool, index) => Script.toolCall(`i${index}`, tool.name)), Script.finish("tool_calls")],
          answer
        ])
      )
  }) as unknown as AnyTool

/** A chat that calls each of some tools once. */
const tree = (
  name: string,
  bound: number,
  called: ReadonlyArray<AnyTool>,
  more: Partial<Chat.Options<ReadonlyArray<AnyTool>>> = {},
  services: Layer.Layer<never> = Layer.empty
): Scenario => ({
  name,
  tried: (options) => {
    const names = called.map((tool, index) => Script.toolCall(`c${index}`, tool.name))
    const model = Script.layer([[...names, Script.finish("tool_calls")], answer, answer])
    const tools = Array.from(new Set(called))
    return everyStep(({ cancel }) => Chat.stream("go", { tools, maxConcurrency: bound, cancel, ...more }), {
      ...options,
      // A run whose deadline passes before it has a permit leaves nothing that would distinguish it from a handler.
      ...(more.deadline === undefined ? { bound } : {}),
      layer: Layer.merge(model, services),
      ...(more.policy === undefined || more.policy === null ? {} : { policy: more.policy })
    })
  }
})

const inner = agent("inner", [wait, refuse, write], { interrupt: "block" })
const outer = agent("outer", [inner, wait], { interrupt: "block" })
const sharing = agent("sharing", [keyed, wait, keyed], { limits: [{ key: "one", permits: 1 }] })
const idle = Duration.millis(1_500)
const waiting = agent("waiting", [keyed, told], { timeout: { idle } })
const hanging = agent("hanging", [keyed, never], { interrupt: "block", timeout: { idle, total: Duration.seconds(10) } })
const asFalai = agent("asFalai", [wait, gated, write], {}, Policy.falai)

/** A tool whose gate, whose handler and whose failure each start a batch. */
const batch = Effect.orDie(ToolRunner.run([Message.toolCall("b0", "wait")], [wait]))
const busy = Tool.make("busy", {
  parameters: {},
  validate: () => Effect.as(batch, true),
  handler: () => Effect.andThen(batch, Effect.fail("no"))
})

const slowEncoder = Encoder.layer({
  encode: (value) => Effect.andThen(Effect.sleep(20), Encoder.json.encode(value))
})

const scenarios: ReadonlyArray<Scenario> = [
  chat("calls that overlap, wait for each other and block", [turn(["wait", "look", "write", "block", "wait"]), answer]),
  chat("tools that start early, and a reply that breaks", [
    turn(["look", "wait", "look"], Script.streamError("network_error"))
  ]),
  chat("tools that start early, and a reply that is cut off", [turn(["look", "look"], Script.finish("length"))]),
  chat("all tools start early", [turn(["wait", "write", "told"]), answer], {
    policy: { ...Policy.standard, start: "onCallReady" }
  }),
  chat("timeouts, and a handler that refuses to stop", [turn(["never", "refuse", "wait"]), turn(["write"]), answer]),
  chat("retries, progress, promises, gates", [turn(["flaky", "told", "promised", "gated"]), answer]),
  chat("failures that halt", [turn(["boom", "wait", "block"])], { onToolError: "halt" }),
  chat("failures that stop siblings", [turn(["wait", "boom", "wait", "look", "write"]), answer], {
    policy: Policy.falai
  }),
  chat("failures that stop everything else", [turn(["boom", "wait", "block", "keyed"]), answer], {
    policy: {
      ...Policy.standard,
      siblings: { onHalt: "abortAll", onToolError: "abortAll", queued: "skip", trigger: "crashedOrReported" }
    }
  }),
  chat("a policy and an encoder that take their time", [turn(["boom", "wait"]), answer], {
    onToolError: () => Effect.as(Effect.sleep(30), Tool.ErrorDecision.continue("mended"))
  }, slowEncoder),
  chat("halts and questions", [turn(["wait", "stop", "ask", "look"])]),
  chat(
    "permits by name and for all",
    [turn(["keyed", "keyed", "wait", "wait"]), answer],
    {},
    Limits.layer({ permits: 2 })
  ),
  chat("a deadline", [turn(["wait", "never", "look"]), answer], { deadline: "2 seconds" }),
  chat("a structured answer", [turn(["wait"]), answer, answer], {
    structuredFinalize: true,
    responseFormat: { type: "json_object" }
  }),
  {
    name: "a run as a tool",
    tried: (options) => {
      const research = Tool.fromChat("research", {
        parameters: { topic: Schema.String },
        chat: ({ topic }) => Chat.stream(topic, { tools: [wait, write] })
      })
      return everyStep(({ cancel }) => Chat.stream("go", { tools: [research, wait], maxConcurrency: 2, cancel }), {
        ...options,
        bound: 2,
        layer: Script.layer([
          [
            Script.toolCall("c0", "research", { topic: "looms" }),
            Script.toolCall("c1", "wait"),
            Script.toolCall("c2", "wait"),
            Script.finish("tool_calls")
          ],
          turn(["wait", "write", "wait"]),
          answer,
          answer
        ])
      })
    }
  },
  tree("runs within runs that block interruption", 2, [outer, wait]),
  tree("runs that share permits by name", 1, [sharing, keyed, sharing], {}, Limits.layer({ permits: 1 })),
  tree("runs that wait for permits longer than they may be idle, and one that hangs", 2, [
    keyed,
    keyed,
    waiting,
    hanging
  ]),
  tree("runs under Policy.falai", 2, [asFalai, gated, asFalai], { policy: Policy.falai }),
  tree("runs under a deadline", 2, [outer, wait], { deadline: "2 seconds" }),
  tree("batches in gates, in handlers and in the error policy", 1, [busy, wait], {
    onToolError: () => Effect.as(batch, Tool.ErrorDecision.continue("mended"))
  }),
  {
    name: "one step, streamed",
    tried: (options) =>
      everyStep(({ cancel }) => Step.stream("go", { tools, cancel }), {
        ...options,
        layer: Script.layer([turn(["look", "wait", "write"])])
      })
  },
  {
    name: "an awaited run",
    tried: (options) =>
      everyStep(({ cancel }) => Chat.run("go", { tools, cancel }), {
        ...options,
        layer: Script.layer([turn(["look", "wait", "write"]), answer])
      })
  },
  {
    name: "a batch of its own",
    tried: (options) =>
      everyStep(({ cancel }) => {
        const calls = ["wait", "write", "block", "ghost"].map((name, index) => Message.toolCall(`c${index}`, name))
        return ToolRunner.stream(calls, tools, { maxConcurrency: 2, cancel })
      }, { ...options, bound: 2 })
  },
  {
    name: "calls handed over one by one",
    tried: (options) =>
      everyStep(
        ({ cancel }) =>
          Effect.gen(function*() {
            const executor = yield* StreamingToolExecutor.make({ signal: cancel, policy: Policy.standard })
            yield* executor.addTool(Message.toolCall("c0", "wait"), wait)
            yield* Effect.sleep(100)
            yield* executor.addTool(Message.toolCall("c1", "write"), write)
            yield* executor.addTool(Message.toolCall("c2", "look"), look)
            yield* executor.noMoreCalls
            yield* Stream.runDrain(executor.remainingResults)
          }),
        options
      )
  }
]

describe("runs of every kind", () => {
  for (const { name, tried } of scenarios) {
    it.effect(`laws 1 to 5, 9 and 11, U-1 to U-5, hold wherever a run is stopped: ${name}`, () =>
      Effect.gen(function*() {
        const limit = Math.max(10, shareOf(1000))
        const report = yield* tried({ limit })
        assert.deepStrictEqual(report.violations, [])
        assert.isAbove(report.points, 3)
        assert.strictEqual(report.attempts, 2 + 2 * Math.min(report.points, limit))
        for (const maxOpsBeforeYield of [50, 11]) {
          const fine = yield* tried({ maxOpsBeforeYield, limit: Math.max(10, shareOf(30)) })
          assert.deepStrictEqual(fine.violations, [])
        }
      }))
  }

  it.effect("a run stopped behind any three operations breaks no law", () =>
    Effect.gen(function*() {
      const everything = { policy: { ...Policy.standard, start: "onCallReady" }, deadline: "3 seconds" } as const
      const { tried } = chat("everything", [turn(["look", "refuse"])], { ...everything, grace: "1 second" })
      const report = yield* tried({ maxOpsBeforeYield: 3, grace: "1 second", limit: Math.max(10, shareOf(1000)) })
      assert.deepStrictEqual(report.violations, [])
    }))

  it.effect("a run closes a slowly opening connection exactly once, wherever the run is stopped", () =>
    Effect.gen(function*() {
      let opened = 0
      let closed = 0
      const opening = Effect.andThen(Effect.sleep(100), Effect.sync(() => opened++))
      const closing = Effect.sync(() => closed++)
      const slow = Layer.effect(
        Adapter.Adapter,
        Adapter.Adapter.useSync(({ stream }) => ({
          stream: (request) =>
            Stream.fromChannel(
              Channel.acquireUseRelease(opening, () => Stream.toChannel(stream(request)), () => closing)
            )
        }))
      )
      const layer = Layer.provide(slow, Script.layer([turn(["look", "wait"]), answer]))
      const report = yield* everyStep(({ cancel }) => Chat.stream("go", { tools, cancel }), { layer })
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(opened, report.points)
      assert.strictEqual(closed, opened)
    }))
})
