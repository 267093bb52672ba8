/**
 * The layer of telemetry: metrics that agree with the spans, content that is written only if it is asked for, and what
 * viewers need.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Config from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Otlp from "effect/observability/Otlp"
import * as Redacted from "effect/Redacted"
import * as References from "effect/References"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Adapter, Chat, Message, Policy, type Response, Session, Step, Tool, ToolRunner } from "heddle"
import { Telemetry } from "heddle/telemetry"
import { everyStep, Script } from "heddle/testing"
import { annotateCall, names, version } from "../../src/internal/telemetry.ts"
import * as Adapters from "../support/adapters.ts"
import { collector } from "../support/collector.ts"
import * as OpenAiChat from "../support/openAiChat.ts"
import { overTime } from "../support/scenarios.ts"
import * as Server from "../support/server.ts"
import { readSource } from "../support/source.ts"
import { modelOf, recording, secondsOf, statusOf } from "../support/spans.ts"

const { delay, finish, text, toolCall, usage } = Script

const parameters = { type: "object" } as const

interface Seen {
  readonly spans: ReadonlyArray<Tracer.NativeSpan>
  readonly metrics: ReadonlyArray<Metric.Metric.Snapshot>
  readonly logs: ReadonlyArray<{ readonly level: string; readonly message: unknown; readonly attributes: any }>
}

/** The layer of a test, which does not read the environment unless it is to. */
const layerOf = (options: Telemetry.Options = {}): Layer.Layer<never> =>
  Telemetry.layer("capture" in options ? options : { ...options, capture: "none" })

/** The options that leave the capture to the environment. */
const byEnvironment = { capture: undefined } as unknown as Telemetry.Options

/** Runs a program under the layer, and returns all that can be seen of it. */
const watched = <A, E>(
  program: Effect.Effect<A, E, Adapter.Adapter>,
  model: Layer.Layer<Adapter.Adapter>,
  options: Telemetry.Options = {},
  further: ReadonlyArray<Logger.Logger<unknown, unknown>> = []
): Effect.Effect<Seen> =>
  Effect.gen(function*() {
    const { spans, tracer } = recording()
    const logs: Array<Seen["logs"][number]> = []
    const logger = Logger.make(({ fiber, logLevel, message }) =>
      void logs.push({ level: logLevel, message, attributes: fiber.getRef(References.CurrentLogAnnotations) })
    )
    const registry = new Map()
    const metrics = yield* Effect.andThen(Effect.exit(program), Metric.snapshot).pipe(
      Effect.provide([model, layerOf(options), Logger.layer([logger, ...further])]),
      Effect.provideService(Metric.MetricRegistry, registry),
      Effect.withTracer(tracer),
      overTime
    )
    return { spans, metrics, logs } as Seen
  }) as Effect.Effect<Seen>

const attribute = (span: Tracer.NativeSpan, name: string) => span.attributes.get(name)

const named = (spans: ReadonlyArray<Tracer.NativeSpan>, operation: string) =>
  spans.filter((span) => attribute(span, names.operation) === operation)

const histogram = (metrics: Seen["metrics"], id: string) =>
  metrics.flatMap((metric) => metric.id === id && metric.type === "Histogram" ? [metric] : [])

const sumOf = (metrics: Seen["metrics"], id: string, type?: string) =>
  histogram(metrics, id).filter(({ attributes }) => type === undefined || attributes?.["gen_ai.token.type"] === type)
    .reduce((sum, { state }) => sum + state.sum, 0)

const total = (values: ReadonlyArray<unknown>) => values.reduce<number>((sum, value) => sum + Number(value ?? 0), 0)

const visible = (seen: Seen) =>
  JSON.stringify([
    seen.spans.map((span) => [span.name, [...span.attributes], span.events, span.status, span.links.length]),
    seen.metrics,
    seen.logs
  ], (_, value) => typeof value === "bigint" ? String(value) : value)

const broken = Tool.make("broken", { parameters, handler: () => Effect.delay(Effect.fail("no"), 300) })
const slow = Tool.make("slow", { parameters, handler: () => Effect.as(Effect.sleep(700), "ok") })

const counted = (inputTokens: number) => usage({ inputTokens, outputTokens: 5, totalCost: 0.5 })

const twoTurns = modelOf(
  [
    delay(250),
    toolCall("c0", "broken"),
    toolCall("c1", "slow"),
    toolCall("c2", "ghost"),
    counted(10),
    finish("tool_calls")
  ],
  [delay(100), text("It"), delay(50), text(" is."), counted(30), finish("stop")]
)

const run = Chat.run("Go", { tools: [broken, slow], agent: { name: "clerk" } })

describe("Telemetry: metrics", () => {
  it.effect("W-17: the sums of the metrics equal those of the spans, and failures have an error.type", () =>
    Effect.gen(function*() {
      const { metrics, spans } = yield* watched(run, twoTurns)
      const sums = (operation: string) => total(named(spans, operation).map(secondsOf))
      assert.closeTo(sumOf(metrics, "gen_ai.client.operation.duration"), sums("chat"), 1e-9)
      assert.closeTo(sumOf(metrics, "gen_ai.invoke_agent.duration"), sums("invoke_agent"), 1e-9)
      assert.closeTo(sumOf(metrics, "gen_ai.execute_tool.duration"), sums("execute_tool"), 1e-9)
      assert.closeTo(sums("execute_tool"), 1, 1e-9)
      const tokens = (name: string) => total(named(spans, "chat").map((span) => attribute(span, name)))
      assert.strictEqual(sumOf(metrics, "gen_ai.client.token.usage", "input"), tokens(names.inputTokens))
      assert.strictEqual(sumOf(metrics, "gen_ai.client.token.usage", "output"), tokens(names.outputTokens))
      assert.strictEqual(tokens(names.inputTokens), 40)
      assert.strictEqual(total(named(spans, "invoke_agent").map((span) => attribute(span, names.inputTokens))), 40)
      assert.strictEqual(sumOf(metrics, "gen_ai.invoke_agent.inference_calls"), 2)
      assert.strictEqual(sumOf(metrics, "gen_ai.invoke_agent.tool_calls"), 3)
      const first = named(spans, "chat").map((span) => attribute(span, names.timeToFirstChunk))
      assert.closeTo(sumOf(metrics, "gen_ai.client.operation.time_to_first_chunk"), total(first), 1e-9)
      const cost = metrics.find(({ id }) => id === names.totalCost)
      assert.strictEqual(cost?.type === "Counter" && cost.state.count, 1)
      assert.deepStrictEqual(
        histogram(metrics, "gen_ai.execute_tool.duration").map(({ attributes }) => [
          attributes?.["gen_ai.tool.name"],
          attributes?.["error.type"],
          attributes?.["unit"]
        ]).toSorted(),
        [["_OTHER", "unknown_tool", "s"], ["broken", "tool_error", "s"], ["slow", undefined, "s"]]
      )
    }))

  it.effect("W-17: the buckets and the units of the metrics are those of the conventions", () =>
    Effect.gen(function*() {
      const { metrics } = yield* watched(run, twoTurns)
      const shape = (id: string) => {
        const [metric] = histogram(metrics, id)
        const bounds = metric!.state.buckets.map(([bound]) => bound).filter(Number.isFinite)
        return [metric!.attributes?.["unit"], bounds[0], bounds[1], bounds.at(-1), bounds.length]
      }
      assert.deepStrictEqual(shape("gen_ai.client.operation.duration"), ["s", 0.01, 0.02, 81.92, 14])
      assert.deepStrictEqual(shape("gen_ai.client.operation.time_to_first_chunk"), ["s", 0.01, 0.02, 81.92, 14])
      assert.deepStrictEqual(shape("gen_ai.client.operation.time_per_output_chunk"), ["s", 0.01, 0.02, 81.92, 14])
      assert.deepStrictEqual(shape("gen_ai.client.token.usage"), ["{token}", 1, 4, 67_108_864, 14])
      assert.deepStrictEqual(shape("gen_ai.invoke_agent.duration"), ["s", 0.1, 0.2, 409.6, 13])
      assert.deepStrictEqual(shape("gen_ai.execute_tool.duration"), ["s", 0.01, 0.02, 81.92, 14])
      assert.deepStrictEqual(shape("gen_ai.invoke_agent.inference_calls"), ["{inference_call}", 1, 2, 128, 8])
      assert.deepStrictEqual(shape("gen_ai.invoke_agent.tool_calls"), ["{tool_call}", 1, 2, 128, 8])
    }))

  it.live("W-17: a run cancelled at any step ends every span, and each started call has exactly one span", () =>
    Effect.gen(function*() {
      interface World {
        readonly spans: ReadonlyArray<Tracer.NativeSpan>
        readonly started: Set<string>
      }
      const worlds: Array<World> = []
      const report = yield* everyStep(({ cancel }) =>
        Stream.suspend(() => {
          const { spans, tracer } = recording()
          const started = new Set<string>()
          worlds.push({ spans, started })
          const quick = Tool.make("quick", { parameters, handler: (_, { id }) => Effect.sync(() => started.add(id)) })
          const waiting = Tool.make("waiting", {
            parameters,
            retry: Schedule.recurs(1),
            handler: (_, { id }) => {
              started.add(id)
              return Effect.andThen(Effect.sleep(20), Effect.fail("no"))
            }
          })
          const tools = [quick, waiting]
          return Chat.stream("go", { tools, cancel, maxConcurrency: 1 }).pipe(
            Stream.provideService(Tracer.Tracer, tracer)
          )
        }), {
        layer: Script.layer([
          [toolCall("c0", "quick"), toolCall("c1", "waiting"), toolCall("c2", "ghost"), finish("tool_calls")],
          [text("done"), finish("stop")]
        ]),
        maxOpsBeforeYield: 5,
        limit: 60
      })
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(worlds.length, 40)
      assert.isTrue(worlds.some(({ started }) => started.has("c1")))
      for (const { spans, started } of worlds) {
        for (const span of spans) assert.strictEqual(span.status._tag, "Ended", span.name)
        const called = named(spans, "execute_tool").map((span) => attribute(span, names.toolCall))
        assert.strictEqual(new Set(called).size, called.length)
        for (const id of started) assert.include(called, id)
      }
    }))
})

describe("Telemetry: spans of calls", () => {
  it.effect("W-18: toolSpans: failed writes spans of failed calls alone, with times and retries, and none writes no call spans", () =>
    Effect.gen(function*() {
      let left = 1
      const flaky = Tool.make("flaky", {
        parameters,
        retry: Schedule.spaced(100).pipe(Schedule.upTo({ times: 1 })),
        handler: () => left-- > 0 ? Effect.fail("busy") : Effect.die("broken")
      })
      const asked = modelOf(
        [delay(50), toolCall("c0", "slow"), toolCall("c1", "flaky"), toolCall("c2", "ghost"), finish("tool_calls")],
        [text("ok"), finish("stop")]
      )
      const program = Chat.run("Go", { tools: [slow, flaky] })
      const failed = yield* watched(program, asked, { toolSpans: "failed" })
      assert.deepStrictEqual(
        named(failed.spans, "execute_tool").map((span) => [
          span.name,
          Number(span.status.startTime) / 1e6,
          secondsOf(span),
          statusOf(span),
          span.events.map(([name, at]) => `${name} ${Number(at) / 1e6}`)
        ]),
        [
          ["execute_tool _OTHER", 50, 0, "ERROR unknown_tool", []],
          ["execute_tool flaky", 50, 0.1, "ERROR handler_raised", ["heddle.retry 150"]]
        ]
      )
      assert.closeTo(sumOf(failed.metrics, "gen_ai.execute_tool.duration"), 0.8, 1e-9)
      left = 1
      const none = yield* watched(program, asked, { toolSpans: "none" })
      assert.deepStrictEqual(named(none.spans, "execute_tool"), [])
      assert.closeTo(sumOf(none.metrics, "gen_ai.execute_tool.duration"), 0.8, 1e-9)
    }))

  it.effect("W-16: the span of a call shows an early start, and the time spent in the queue", () =>
    Effect.gen(function*() {
      const look = Tool.make("look", { parameters, readOnly: true, handler: () => Effect.sleep(300) })
      const model = modelOf(
        [toolCall("c0", "look"), delay(100), toolCall("c1", "look"), delay(50), finish("tool_calls")],
        [text("ok"), finish("stop")]
      )
      const { spans } = yield* watched(Chat.run("Go", { tools: [look], maxConcurrency: 1 }), model)
      assert.deepStrictEqual(
        named(spans, "execute_tool").map((span) => [
          Number(span.status.startTime) / 1e6,
          attribute(span, names.early),
          attribute(span, names.queued)
        ]),
        [[0, true, undefined], [300, true, 200]]
      )
    }))

  it.effect("W-16: a nested run has its own span, also under the request id of the outer run", () =>
    Effect.gen(function*() {
      const inner = Tool.make("inner", {
        parameters,
        handler: (_, { requestId }) =>
          Effect.map(Chat.run("Look", { requestId: requestId! }), ({ outcome }) => outcome._tag)
      })
      const model = modelOf(
        [toolCall("c0", "inner"), finish("tool_calls")],
        [text("found"), finish("stop")],
        [text("ok"), finish("stop")]
      )
      const { spans } = yield* watched(Chat.run("Go", { tools: [inner], requestId: "r" }), model)
      assert.deepStrictEqual(named(spans, "invoke_agent").map(({ name }) => name), [
        "invoke_agent",
        "invoke_agent inner"
      ])
    }))

  it.effect("W-18: the layer alone records metrics without a tracer", () =>
    Effect.gen(function*() {
      const metrics = yield* Effect.andThen(run, Metric.snapshot).pipe(
        Effect.provide([twoTurns, layerOf()]),
        Effect.provideService(Metric.MetricRegistry, new Map()),
        overTime
      )
      assert.strictEqual(sumOf((metrics as any).value ?? metrics, "gen_ai.invoke_agent.tool_calls"), 3)
    }))

  it.effect("W-16: a handler adds attributes to the span of its call from inside its own spans", () =>
    Effect.gen(function*() {
      const remote = Tool.make("remote", {
        parameters,
        handler: () => Effect.withSpan(annotateCall({ [names.mcpMethod]: "tools/call" }), "connect")
      })
      const { spans } = yield* watched(
        ToolRunner.run([Message.toolCall("c0", "remote")], [remote]),
        twoTurns
      )
      const [call] = named(spans, "execute_tool")
      assert.strictEqual(attribute(call!, "mcp.method.name"), "tools/call")
      yield* annotateCall({ [names.mcpMethod]: "outside of a call" })
    }))
})

/** The attributes of Heddle's spans. */
const known = new Set<string>(Object.values(names))

describe("Telemetry: failures", () => {
  it.effect("W-23: a failed run ends its spans with status and error.type, and without a stack or error text", () =>
    Effect.gen(function*() {
      const refusal = new Adapter.AdapterError({ reason: "authentication_failed", detail: "secret detail" })
      const breaks: ReadonlyArray<readonly [Layer.Layer<Adapter.Adapter>, ReadonlyArray<string>]> = [
        [Adapter.layer({ stream: () => Stream.fail(refusal) }), ["authentication_failed"]],
        [Adapter.layer({ stream: () => Stream.die(new TypeError("secret detail")) }), ["TypeError", "unknown"]],
        [modelOf([toolCall("c0", "slow"), finish("tool_calls")], [Script.preflightError("timeout")]), ["timeout"]],
        [modelOf([text("a"), toolCall("c0", "slow"), Script.streamError("network_error")]), ["network_error"]]
      ]
      for (const [model, codes] of breaks) {
        const { spans } = yield* watched(Chat.run("Go", { tools: [slow] }), model)
        const [failing] = named(spans, "invoke_agent")
        const inference = named(spans, "chat").at(-1)
        for (const span of [failing!, inference!]) {
          assert.include(codes, attribute(span, names.error), span.name)
          assert.strictEqual(statusOf(span), `ERROR ${attribute(span, names.error)}`)
        }
        assert.strictEqual(attribute(failing!, names.outcome), "failed")
        for (const call of named(spans, "execute_tool").filter((span) => statusOf(span) !== "OK")) {
          assert.strictEqual(statusOf(call), "ERROR cancelled")
        }
        for (const span of spans) {
          assert.isTrue([...span.attributes.keys()].every((name) => known.has(name)), span.name)
        }
        const all = visible({ spans, metrics: [], logs: [] })
        assert.notInclude(all, "secret detail")
        assert.notInclude(all, "    at ")
      }
    }))

  it.effect("W-23: a failed run of a session ends its spans with status and error.type", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const opened = yield* Session.open("s1")
        yield* Session.keep(opened, (session) => Session.reply(session, "Go"))
      }).pipe(Effect.provide(Session.Store.layerMemory))
      const { spans } = yield* watched(program, modelOf([Script.preflightError("timeout")]))
      assert.deepStrictEqual(spans.map((span) => [span.name, statusOf(span), attribute(span, names.error)]), [
        ["invoke_agent", "ERROR timeout", "timeout"],
        ["heddle.step", "ERROR timeout", "timeout"],
        ["chat gpt-9", "ERROR timeout", "timeout"]
      ])
    }))

  it.effect("W-16: a provider has its name from the conventions", () =>
    Effect.gen(function*() {
      const providerOf = (options: object) =>
        Adapter.Adapter.useSync(({ provider }) => provider).pipe(
          Effect.provide(Adapters.openAiChat.layer("http://unused", options))
        )
      const named = [
        [{ baseUrl: "https://api.mistral.ai/v1" }, "mistral_ai"],
        [{ baseUrl: "https://x.openai.azure.com/v1" }, "azure.ai.openai"],
        [{ baseUrl: "https://openrouter.ai/api/v1" }, "openrouter"],
        [{ baseUrl: "http://localhost:11434/v1" }, "openai"],
        [{ baseUrl: "http://localhost:11434/v1", provider: "ollama" }, "ollama"],
        [{ baseUrl: "http://localhost:8000/v1", vendor: "deepseek" }, "deepseek"]
      ] as const
      for (const [options, name] of named) assert.strictEqual(yield* providerOf(options), name)
    }))

  it.effect("W-23: a turn that fails for an unknown tool has a span for each call", () =>
    Effect.gen(function*() {
      const options = {
        tools: [slow],
        policy: { ...Policy.standard, start: "afterTurn", unknownTool: "failTurn" }
      } as const
      const model = modelOf([toolCall("c0", "slow"), toolCall("c1", "ghost"), finish("tool_calls")])
      const { spans } = yield* watched(Chat.run("Go", options), model)
      assert.deepStrictEqual(named(spans, "execute_tool").map((span) => [span.name, statusOf(span)]), [
        ["execute_tool slow", "ERROR cancelled"],
        ["execute_tool _OTHER", "ERROR unknown_tool"]
      ])
      assert.strictEqual(statusOf(named(spans, "invoke_agent")[0]!), "ERROR unknown_tool")
    }))

  it.effect("W-23: the spans of a cancelled operation have no status, and their outcome is cancelled", () =>
    Effect.gen(function*() {
      const never = Tool.make("never", { parameters, handler: () => Effect.never })
      const cancel = Effect.sleep(400)
      const model = modelOf([toolCall("c0", "never"), finish("tool_calls")])
      const inTool = yield* watched(Chat.run("Go", { tools: [never], cancel }), model)
      const state = ({ spans }: Seen) =>
        spans.filter(({ name }) => name !== "heddle.step").map((span) => [
          span.name,
          statusOf(span),
          attribute(span, names.outcome)
        ])
      assert.deepStrictEqual(state(inTool), [
        ["invoke_agent", "UNSET", "cancelled"],
        ["chat gpt-9", "OK", undefined],
        ["execute_tool never", "UNSET", "cancelled"]
      ])
      const inReply = yield* watched(Chat.run("Go", { cancel }), modelOf([text("a"), delay(1_000), finish("stop")]))
      assert.deepStrictEqual(state(inReply), [
        ["invoke_agent", "UNSET", "cancelled"],
        ["chat gpt-9", "UNSET", "cancelled"]
      ])
    }))

  it.effect("W-23: the span of a single step has the step's outcome", () =>
    Effect.gen(function*() {
      const asks = Tool.make("asks", { parameters, handler: () => Effect.succeed(Tool.askUser("Which?")) })
      const outcomes: Array<unknown> = []
      for (const tool of [slow, asks]) {
        const model = modelOf([toolCall("c0", tool.name), finish("tool_calls")])
        const { spans } = yield* watched(Step.run("Go", { tools: [tool] }), model)
        outcomes.push(...named(spans, "invoke_agent").map((span) => [attribute(span, names.outcome), statusOf(span)]))
      }
      assert.deepStrictEqual(outcomes, [["step_completed", "OK"], ["ask_user", "OK"]])
    }))

  it.effect("W-23: a failed model call is a log record with its error type", () =>
    Effect.gen(function*() {
      const { logs } = yield* watched(run, modelOf([Script.preflightError("timeout")]))
      const record = logs.find(({ message }) => String(message) === "gen_ai.client.operation.exception")
      assert.strictEqual(record?.level, "Warn")
      assert.deepInclude(record?.attributes, { "exception.type": "timeout", "error.type": "timeout" })
    }))

  it("W-16: the version on the spans is the package version", () => {
    assert.strictEqual(JSON.parse(readSource("package.json").text).version, version)
  })
})

// What may be secret: it stands in every place that a run takes data from.

const canary = "canary-7f3a"

const leaking = Tool.make("leaking", {
  parameters: { value: Schema.Unknown },
  handler: ({ value }) => {
    if (value === "fails") return Effect.fail({ _tag: "Leak", reason: canary, message: canary } as const)
    if (value === "dies") return Effect.die(new Error(canary, { cause: canary }))
    return Effect.succeed({ [canary]: canary })
  }
})

const guarded = Tool.make("guarded", {
  parameters,
  authorize: () => Effect.fail(canary),
  handler: () => Effect.void
})

const leak = Chat.run(`Hello ${canary}`, {
  system: `Obey ${canary}`,
  tools: [leaking, guarded],
  context: { canary },
  sessionId: "s1",
  responseFormat: { type: "json_schema", name: "out", schema: { type: "object", title: canary } }
})

const leakingTurns = [
  [
    toolCall("c0", "leaking", { value: canary, [canary]: 1 }),
    toolCall("c1", "leaking", { value: "fails" }),
    toolCall("c2", "leaking", { value: "dies" }),
    toolCall("c3", "guarded", { secret: canary }),
    finish("tool_calls")
  ],
  [text(`Said ${canary}`), finish("stop")]
]

const leakingModel = modelOf(...leakingTurns)

const everything = { dialects: ["langfuse", "openinference"] } as const

const providers: Readonly<Record<string, string>> = {
  OpenAiChat: "openai",
  OpenAiResponses: "openai",
  Anthropic: "anthropic",
  Gemini: "gcp.gemini"
}

describe("Telemetry: content", () => {
  it.effect("W-12: with capture off no span, metric or log holds text of prompts, arguments, results and errors", () =>
    Effect.gen(function*() {
      const seen = yield* watched(leak, leakingModel, everything)
      assert.isAbove(seen.spans.length, 7)
      assert.notInclude(visible(seen), canary)
    }))

  it.live("W-12: no span holds a key, a header, a URL query or a provider's error text, in any protocol", () =>
    Effect.gen(function*() {
      for (const protocol of Adapters.all) {
        const body = JSON.stringify({ error: { message: canary, code: canary, status: canary } })
        const answers: ReadonlyArray<Server.Answer> = [
          { status: 500, headers: { "content-type": "application/json" }, pieces: [body] },
          { pieces: [protocol.whole] },
          { status: 401, headers: { "content-type": "application/json" }, pieces: [body] }
        ]
        const server = yield* Server.serve((_, index) => answers[index]!)
        const model = protocol.layer(`${server.url}/${canary}?key=${canary}`, {
          apiKey: Redacted.make(canary),
          headers: { "x-token": canary },
          retryDelay: 1
        })
        const { spans, tracer } = recording()
        const program = Effect.andThen(Chat.run(canary), Effect.exit(Chat.run(canary))).pipe(
          Effect.provide([model, layerOf(everything)]),
          Effect.provideService(Metric.MetricRegistry, new Map()),
          Effect.withTracer(tracer)
        )
        yield* Effect.provide(program, Logger.layer([]))
        assert.notInclude(visible({ spans, metrics: [], logs: [] }), canary, protocol.name)
        const chats = spans.filter(({ kind, name }) => kind === "client" && name !== "POST")
        const operation = protocol.name === "Gemini" ? "generate_content" : "chat"
        assert.strictEqual(chats[0]!.name, `${operation} test-model`)
        assert.strictEqual(attribute(chats[0]!, names.operation), operation)
        assert.strictEqual(attribute(chats[0]!, names.provider), providers[protocol.name])
        assert.deepStrictEqual(chats.map(statusOf), ["OK", "ERROR authentication_failed"], protocol.name)
        assert.deepStrictEqual(chats[0]!.events.map(([name, , attributes]) => [name, attributes?.["heddle.attempt"]]), [
          ["heddle.retry", 2]
        ])
        assert.strictEqual(attribute(chats[0]!, names.address), "127.0.0.1")
        assert.strictEqual(attribute(chats[0]!, names.port), Number(new URL(server.url).port))
        assert.lengthOf(spans.filter(({ name }) => name === "POST"), 3)
      }
    }).pipe(Effect.scoped))

  it.effect("W-12: with capture on the content is written, redacted by the redact option, and hidden when redact throws", () =>
    Effect.gen(function*() {
      const plain = yield* watched(leak, leakingModel, { ...everything, capture: "spans-and-events" })
      assert.include(visible(plain), canary)
      const redact = (text: string) => text.replaceAll(canary, "[hidden]")
      const seen = yield* watched(leak, leakingModel, { ...everything, capture: "spans-and-events", redact })
      assert.notInclude(visible(seen), canary)
      assert.include(visible(seen), "[hidden]")
      const throwing = yield* watched(leak, leakingModel, {
        capture: "spans-and-events",
        redact: () => {
          throw new Error("of the redaction")
        }
      })
      assert.notInclude(visible(throwing), canary)
      assert.include(visible(throwing), "[redaction failed]")
    }))

  // The options of a layer, each with each other.
  for (const capture of ["none", "spans", "events", "spans-and-events"] as const) {
    it.effect(`W-12: content goes only where capture ${capture} says under all other options, and the program's log events stay`, () =>
      Effect.gen(function*() {
        // The logger that writes log lines as events of spans is one of those that a program has by default.
        const own = Effect.log("before").pipe(
          Effect.andThen(leak),
          Effect.andThen(Effect.log("between")),
          Effect.andThen(leak),
          Effect.andThen(Effect.log("after")),
          Effect.withSpan("own")
        )
        for (const dialects of [[], ["langfuse"], ["openinference"], ["langfuse", "openinference"]] as const) {
          for (const toolSpans of ["all", "failed", "none"] as const) {
            for (const maxPartLength of [undefined, 30]) {
              const options = {
                capture,
                dialects,
                toolSpans,
                ...(maxPartLength === undefined ? {} : { maxPartLength })
              }
              const twice = [...leakingTurns, ...leakingTurns]
              const seen = yield* watched(own, modelOf(...twice), options, [Logger.tracerLogger])
              const hint = JSON.stringify(options)
              const holds = (part: Partial<Seen>) =>
                visible({ spans: [], metrics: [], logs: [], ...part }).includes(canary)
              assert.strictEqual(holds({ spans: seen.spans }), capture.startsWith("spans"), hint)
              assert.strictEqual(holds({ logs: seen.logs }), capture.endsWith("events"), hint)
              assert.isFalse(holds({ metrics: seen.metrics }), hint)
              const events = seen.spans.find(({ name }) => name === "own")?.events.map(([name]) => name)
              assert.deepStrictEqual(events, ["before", "between", "after"], hint)
            }
          }
        }
      }))
  }

  it.effect("W-12: a text is cut after its redaction, and no part of a secret goes out at any length", () =>
    Effect.gen(function*() {
      const redact = (text: string) => text.replaceAll(canary, "[hidden]")
      for (const maxPartLength of Array.from({ length: 24 }, (_, index) => index)) {
        const seen = yield* watched(leak, leakingModel, {
          ...everything,
          capture: "spans-and-events",
          redact,
          maxPartLength
        })
        assert.notInclude(visible(seen), canary.slice(0, 5), String(maxPartLength))
        const plain = { ...everything, capture: "spans-and-events", maxPartLength } as const
        const same = { ...plain, redact: (text: string) => text }
        const written = (options: Telemetry.Options) =>
          Effect.map(
            watched(leak, leakingModel, options),
            (seen) => visible(seen).replaceAll(/"heddle.request.id","[^"]+"/g, "")
          )
        const isSame = (yield* written(same)) === (yield* written(plain))
        assert.isTrue(isSame, `a redaction that changes nothing, ${maxPartLength}`)
      }
    }))

  it.effect("W-12: the content of a model call, a run and a tool call is one JSON text for each attribute", () =>
    Effect.gen(function*() {
      const echo = Tool.make("echo", { description: "Says it", parameters, handler: (args) => Effect.succeed(args) })
      const model = modelOf(
        [text("Hm"), toolCall("c0", "echo", { x: 1 }), finish("tool_calls")],
        [text("Done"), finish("stop")]
      )
      const input = [Message.user([
        { type: "text", text: "Look" },
        { type: "image", data: "aGk=", mediaType: "image/png" },
        { type: "file", url: "https://example.com/a.pdf", mediaType: "application/pdf" }
      ])]
      const program = Chat.run(input, { tools: [echo], system: "Be brief" })
      const { logs, spans } = yield* watched(program, model, { capture: "spans-and-events" })
      const json = (span: Tracer.NativeSpan | undefined, name: string) => JSON.parse(String(span?.attributes.get(name)))
      const [first, second] = named(spans, "chat")
      const [agent] = named(spans, "invoke_agent")
      const [tool] = named(spans, "execute_tool")
      const user = {
        role: "user",
        parts: [
          { type: "text", content: "Look" },
          { type: "blob", modality: "image", mime_type: "image/png", content: "aGk=" },
          { type: "uri", modality: "application", mime_type: "application/pdf", uri: "https://example.com/a.pdf" }
        ]
      }
      const call = {
        role: "assistant",
        parts: [{ type: "text", content: "Hm" }, { type: "tool_call", id: "c0", name: "echo", arguments: { x: 1 } }]
      }
      const answer = { role: "tool", parts: [{ type: "tool_call_response", id: "c0", response: "{\"x\":1}" }] }
      const reply = { role: "assistant", parts: [{ type: "text", content: "Done" }], finish_reason: "stop" }
      for (const span of [first, agent]) {
        assert.deepStrictEqual(json(span, "gen_ai.system_instructions"), [{ type: "text", content: "Be brief" }])
        assert.deepStrictEqual(json(span, "gen_ai.input.messages"), [user])
        assert.deepStrictEqual(json(span, "gen_ai.tool.definitions"), [
          { type: "function", name: "echo", description: "Says it", parameters }
        ])
      }
      assert.deepStrictEqual(json(first, "gen_ai.output.messages"), [{ ...call, finish_reason: "tool_call" }])
      assert.deepStrictEqual(json(second, "gen_ai.input.messages"), [user, call, answer])
      assert.deepStrictEqual(json(second, "gen_ai.output.messages"), [reply])
      assert.deepStrictEqual(json(agent, "gen_ai.output.messages"), [reply])
      assert.deepStrictEqual(json(tool, "gen_ai.tool.call.arguments"), { x: 1 })
      assert.deepStrictEqual(json(tool, "gen_ai.tool.call.result"), { x: 1 })
      const details = logs.filter(({ message }) => String(message) === "gen_ai.client.inference.operation.details")
      assert.strictEqual(details.length, 2)
      assert.deepStrictEqual(JSON.parse(details[1]!.attributes["gen_ai.output.messages"]), [reply])
    }))

  it.effect("W-12: the captured reply of a model call has its finish reason", () =>
    Effect.gen(function*() {
      const written: Readonly<Record<Response.FinishReason, string>> = {
        stop: "stop",
        length: "length",
        tool_calls: "tool_call",
        content_filter: "content_filter",
        error: "error",
        other: "stop"
      }
      for (const [reason, shown] of Object.entries(written)) {
        const model = modelOf([text("Done"), finish(reason as Response.FinishReason)])
        const { spans } = yield* watched(Effect.exit(Chat.run("Go")), model, { capture: "spans" })
        const [reply] = JSON.parse(String(attribute(named(spans, "chat")[0]!, "gen_ai.output.messages")))
        assert.strictEqual(reply.finish_reason, shown, reason)
      }
    }))

  it.effect("W-12: a logger that throws does not change the outcome of a run", () =>
    Effect.gen(function*() {
      const throwing = Logger.make(({ message }) => {
        if (String(message).startsWith("gen_ai.")) throw new Error("of the logger")
      })
      const model = modelOf([text("Done"), finish("stop")])
      const { outcome } = yield* Chat.run("Go").pipe(
        Effect.provide([model, layerOf({ capture: "events" }), Logger.layer([throwing])]),
        Effect.provideService(Metric.MetricRegistry, new Map())
      )
      assert.strictEqual(outcome._tag, "Completed")
    }))

  it.effect("W-12: an overlong part is cut, and so are overlong arguments and results", () =>
    Effect.gen(function*() {
      const long = Tool.make("long", { parameters, handler: () => Effect.succeed({ text: "r".repeat(500) }) })
      const model = modelOf(
        [toolCall("c0", "long", { text: "a".repeat(500) }), finish("tool_calls")],
        [text("t".repeat(500)), finish("stop")]
      )
      const { spans } = yield* watched(Chat.run("p".repeat(500), { tools: [long] }), model, {
        capture: "spans",
        maxPartLength: 20
      })
      const written = visible({ spans, metrics: [], logs: [] })
      for (const letter of "rapt") assert.notInclude(written, letter.repeat(21))
      assert.include(written, `${"p".repeat(20)}…`)
    }))

  it.effect("W-12: capture follows the environment unless the option is set", () =>
    Effect.gen(function*() {
      const under = (value: string, options = byEnvironment) => {
        const provider = Config.layer(
          Config.fromUnknown({ OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: value })
        )
        return Effect.map(Effect.provide(watched(leak, leakingModel, options), provider), (seen) => [
          seen.spans.some((span) => span.attributes.has("gen_ai.input.messages")),
          seen.logs.some(({ message }) => String(message) === "gen_ai.client.inference.operation.details")
        ])
      }
      assert.deepStrictEqual(yield* under("true"), [true, false])
      assert.deepStrictEqual(yield* under("SPAN_ONLY"), [true, false])
      assert.deepStrictEqual(yield* under("EVENT_ONLY"), [false, true])
      assert.deepStrictEqual(yield* under("SPAN_AND_EVENT"), [true, true])
      assert.deepStrictEqual(yield* under("NO_CONTENT"), [false, false])
      assert.deepStrictEqual(yield* under("something"), [false, false])
      assert.deepStrictEqual(yield* under("true", { capture: "none" }), [false, false])
    }))

  it.effect("the dialects write the kind, session, input and output of an operation", () =>
    Effect.gen(function*() {
      const { spans } = yield* watched(leak, leakingModel, { ...everything, capture: "spans" })
      const of = (operation: string, ...keys: ReadonlyArray<string>) =>
        keys.map((key) => attribute(named(spans, operation)[0]!, key))
      const kinds = ["langfuse.observation.type", "openinference.span.kind", "session.id"]
      assert.deepStrictEqual(of("invoke_agent", ...kinds), ["agent", "AGENT", "s1"])
      assert.deepStrictEqual(of("chat", ...kinds), ["generation", "LLM", "s1"])
      assert.deepStrictEqual(of("execute_tool", ...kinds), ["tool", "TOOL", "s1"])
      assert.deepStrictEqual(of("chat", "input.value", "llm.model_name"), [
        ...of("chat", "gen_ai.input.messages"),
        "gpt-9"
      ])
      assert.deepStrictEqual(
        of("execute_tool", "langfuse.observation.output"),
        of("execute_tool", "gen_ai.tool.call.result")
      )
      const answering = modelOf([text("Done"), finish("stop", { model: "gpt-9-mini" })])
      const { spans: answered } = yield* watched(Chat.run("Go"), answering, everything)
      assert.strictEqual(
        attribute(named(answered, "chat")[0]!, "llm.model_name"),
        "gpt-9-mini",
        "the model that has answered"
      )
      const off = yield* watched(leak, leakingModel, everything)
      for (const span of off.spans) assert.isFalse(span.attributes.has("input.value"), span.name)
    }))

  it("an invalid option throws an error that says what is right", () => {
    const refused: ReadonlyArray<readonly [object, string]> = [
      [{ captures: "spans" }, "Telemetry.layer has no option \"captures\"; did you mean \"capture\"?"],
      [
        { capture: true },
        "Telemetry.layer: capture must be \"none\", \"spans\", \"events\" or \"spans-and-events\"; got: true"
      ],
      [{ toolSpans: "some" }, "Telemetry.layer: toolSpans must be \"all\", \"failed\" or \"none\"; got: \"some\""],
      [
        { dialects: ["jaeger"] },
        "Telemetry.layer: dialects[0] must be \"langfuse\" or \"openinference\"; got: \"jaeger\""
      ],
      [{ maxPartLength: -1 }, "Telemetry.layer: maxPartLength must be a number, 0 or more; got: -1"],
      [{ redact: "all" }, "Telemetry.layer: redact must be a function of a string; got: \"all\""]
    ]
    for (const [options, message] of refused) {
      assert.throws(() => Telemetry.layer(options as Telemetry.Options), message)
    }
  })
})

// Where telemetry may break: a run goes on as if there were none.

const throws = (): never => {
  throw new Error("of the telemetry")
}

/** A tracer whose spans have other methods. */
const tracerWith = (methods: object): Tracer.Tracer =>
  Tracer.make({ span: (options) => Object.assign(new Tracer.NativeSpan(options), methods) })

const registryWith = (methods: object) => Object.assign(new Map(), methods)

const eventful = Effect.suspend(() => {
  let left = 1
  const flaky = Tool.make("flaky", {
    parameters,
    retry: Schedule.recurs(1),
    handler: () => Effect.suspend(() => left-- > 0 ? Effect.fail("busy") : Effect.succeed("ok"))
  })
  const inner = Tool.make("inner", {
    parameters,
    handler: () => Effect.map(Chat.run("Look"), ({ outcome }) => outcome._tag)
  })
  const dying = Tool.make("dying", { parameters, handler: () => Effect.die(new Error("broken")) })
  const tools = [flaky, inner, dying]
  return Stream.runCollect(Chat.stream("Go", { tools, requestId: "run", maxConcurrency: 1 }))
})

const eventfulModel = modelOf(
  [
    toolCall("c0", "flaky"),
    toolCall("c1", "inner"),
    toolCall("c2", "dying"),
    toolCall("c3", "ghost"),
    counted(10),
    finish("tool_calls")
  ],
  [text("in"), finish("stop")],
  [text("It"), delay(50), text(" is."), counted(30), finish("stop")]
)

describe("Telemetry: a broken part", () => {
  const everywhere: Telemetry.Options = { capture: "spans-and-events", ...everything }
  const breaking: Readonly<
    Record<
      string,
      | readonly [Telemetry.Options, Effect.Effect<any>]
      | readonly [
        Telemetry.Options,
        (run: Effect.Effect<any, any>) => Effect.Effect<any, any>
      ]
    >
  > = {
    "a tracer": [everywhere, Effect.withTracer(Tracer.make({ span: throws }))],
    "a span attribute": [everywhere, Effect.withTracer(tracerWith({ attribute: throws }))],
    "a span event": [everywhere, Effect.withTracer(tracerWith({ event: throws }))],
    "the end of a span": [everywhere, Effect.withTracer(tracerWith({ end: throws }))],
    "a logger": [everywhere, Effect.provide(Logger.layer([Logger.make(throws)]))],
    "a read of the metric registry": [
      everywhere,
      Effect.provideService(Metric.MetricRegistry, registryWith({ get: throws }))
    ],
    "a write to the metric registry": [
      everywhere,
      Effect.provideService(Metric.MetricRegistry, registryWith({ set: throws }))
    ],
    "a redaction": [{ ...everywhere, redact: throws }, (run) => run],
    "the promise of a redaction": [{ ...everywhere, redact: (async () => throws()) as never }, (run) => run]
  }
  for (const [name, [options, under]] of Object.entries(breaking)) {
    it.effect(`W-12: a run has the same events although ${name} fails`, () =>
      Effect.gen(function*() {
        const quiet = Effect.provide(eventful, [eventfulModel, Logger.layer([])])
        const plain = yield* overTime(quiet)
        const broken = (under as (run: typeof quiet) => typeof quiet)(
          Effect.provide(Effect.provide(eventful, eventfulModel), layerOf(options))
        ).pipe(
          Effect.provideService(Metric.MetricRegistry, new Map()),
          Effect.provide(Logger.layer([]))
        )
        assert.deepStrictEqual(JSON.stringify(yield* overTime(broken)), JSON.stringify(plain))
      }))
  }

  it.live("W-12: an adapter sends its request although the tracer throws", () =>
    Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [Adapters.openAiChat.whole] }))
      for (const methods of [{ attribute: throws }, { end: throws }, undefined]) {
        const tracer = methods === undefined ? Tracer.make({ span: throws }) : tracerWith(methods)
        const { outcome } = yield* Chat.run("Hi").pipe(
          Effect.provide(Adapters.openAiChat.layer(server.url, { propagate: true } as object)),
          Effect.withTracer(tracer)
        )
        assert.strictEqual(outcome._tag, "Completed")
      }
    }).pipe(Effect.scoped))
})

describe("Telemetry: a broken part and the other parts", () => {
  it.effect("W-12: a throwing logger or metric registry does not prevent other metrics, content and failure records", () =>
    Effect.gen(function*() {
      const failing = modelOf([Script.preflightError("timeout")], [Script.preflightError("timeout")])
      const program = Effect.andThen(Effect.exit(Chat.run("Go")), Chat.run("Go"))
      const seen = (registry: Map<string, any>, further: Logger.Logger<unknown, unknown>) =>
        Effect.gen(function*() {
          const { spans, tracer } = recording()
          const logs: Array<unknown> = []
          const logger = Logger.make(({ message }) => void logs.push(String(message)))
          yield* Effect.exit(program).pipe(
            Effect.provide([
              failing,
              layerOf({ capture: "spans-and-events", dialects: ["langfuse"] }),
              Logger.layer([logger, further])
            ]),
            Effect.provideService(Metric.MetricRegistry, registry),
            Effect.withTracer(tracer),
            overTime
          )
          const chats = named(spans, "chat")
          const metrics = new Set([...registry.keys()].map((key) => key.split(":")[0]))
          return {
            isRecorded: metrics.size > 0,
            contents: chats.map((span) => [
              span.attributes.has("gen_ai.input.messages"),
              attribute(span, "langfuse.observation.type")
            ]),
            logs: logs.filter((message) => String(message).startsWith("gen_ai."))
          }
        })
      const whole = {
        isRecorded: true,
        contents: [[true, "generation"], [true, "generation"]],
        logs: [
          "gen_ai.client.inference.operation.details",
          "gen_ai.client.operation.exception",
          "gen_ai.client.inference.operation.details",
          "gen_ai.client.operation.exception"
        ]
      }
      const nothing = Logger.make(() => undefined)
      const throwing = Logger.make(({ message }) => {
        if (String(message).endsWith("details")) throw new Error("of the logger")
      })
      assert.deepStrictEqual(yield* seen(new Map(), nothing), whole)
      assert.deepStrictEqual(yield* seen(new Map(), throwing), whole)
      assert.deepStrictEqual(yield* seen(registryWith({ get: throws }), nothing), { ...whole, isRecorded: false })
    }))

  it.effect("W-17: the times between chunks count for each reply from its own first chunk", () =>
    Effect.gen(function*() {
      const chunks = [delay(100), text("a"), delay(30), text("b"), delay(500), text("c"), finish("stop")]
      const model = modelOf([...chunks.slice(0, -1), toolCall("c0", "slow"), finish("tool_calls")], chunks, chunks)
      const program = Effect.andThen(Chat.run("Go", { tools: [slow] }), Chat.run("Go"))
      const { metrics, spans } = yield* watched(program, model)
      // The head of a reply is its first chunk.
      assert.closeTo(sumOf(metrics, "gen_ai.client.operation.time_per_output_chunk"), 3 * 0.63, 1e-9)
      const firsts = named(spans, "chat").map((span) => attribute(span, names.timeToFirstChunk))
      assert.deepStrictEqual(firsts, [0, 0, 0])
    }))
})

describe("Telemetry: a hostile model", () => {
  const ghost = `ghost-${canary}`

  it.effect("W-12: a tool name made up by a model is in no span, metric or log record", () =>
    Effect.gen(function*() {
      const scripts: ReadonlyArray<readonly [object, ReadonlyArray<Script.Entry>]> = [
        [{}, [toolCall("c0", ghost), finish("tool_calls")]],
        [{}, [toolCall("c0", ghost), finish("content_filter")]],
        [{}, [{ ...toolCall("c0", ghost), argumentsLost: "json_decode_error" }, finish("tool_calls")]],
        [{ maxTurns: 0 }, [toolCall("c0", ghost), finish("tool_calls")]],
        [{ policy: { ...Policy.standard, start: "afterTurn", unknownTool: "failTurn" } }, [
          toolCall("c0", ghost),
          finish("tool_calls")
        ]]
      ]
      for (const [options, reply] of scripts) {
        const model = modelOf(reply, [text("ok"), finish("stop")])
        const seen = yield* watched(Chat.run("Go", { tools: [slow], ...options }), model, everything)
        assert.notInclude(visible(seen), canary, JSON.stringify(options))
        for (const span of named(seen.spans, "execute_tool")) {
          assert.deepStrictEqual([span.name, attribute(span, names.toolName)], ["execute_tool _OTHER", "_OTHER"])
        }
      }
    }))

  it.effect("W-12: a reply id, model or call id that is not a word is in no span, metric or log record", () =>
    Effect.gen(function*() {
      const words = `some words ${canary}`
      const reply: ReadonlyArray<Script.Entry> = [
        toolCall(words, "slow"),
        finish("tool_calls", { rawFinishReason: words, responseId: words, model: words })
      ]
      const model = modelOf(reply, [text("ok"), finish("stop")])
      assert.notInclude(visible(yield* watched(Chat.run("Go", { tools: [slow] }), model, everything)), canary)
    }))

  it.effect("W-12: an error thrown by a tool option is in no log record above debug", () =>
    Effect.gen(function*() {
      const leaks = (): never => {
        throw Object.assign(new Error(canary), { name: `Odd ${canary}` })
      }
      const handler = () => Effect.void
      const tools = [
        Tool.make("a", { parameters, approval: leaks, handler }),
        Tool.make("b", { parameters, readOnly: leaks, handler }),
        Tool.make("c", { parameters, concurrency: leaks, handler }),
        Tool.make("d", { parameters, authorize: leaks, handler }),
        Tool.make("e", { parameters, handler: leaks })
      ]
      const model = modelOf([...tools.map(({ name }) => toolCall(name, name)), finish("tool_calls")])
      const { logs, spans } = yield* watched(Chat.run("Go", { tools }), model)
      const shown = logs.filter(({ level }) => level !== "Debug")
      assert.isAbove(shown.length, 3)
      assert.notInclude(visible({ spans, metrics: [], logs: shown }), canary)
    }))

  it.effect("W-12: a log record of content does not become a span event", () =>
    Effect.gen(function*() {
      const { spans, tracer } = recording()
      yield* leak.pipe(
        Effect.provide([leakingModel, layerOf({ capture: "events" }), Logger.layer([Logger.tracerLogger])]),
        Effect.provideService(Metric.MetricRegistry, new Map()),
        Effect.withTracer(tracer),
        overTime
      )
      assert.isAbove(spans.length, 7)
      assert.notInclude(visible({ spans, metrics: [], logs: [] }), canary)
    }))

  it.effect("W-12: the redaction gets names and ids made up by a model, numbers and media types", () =>
    Effect.gen(function*() {
      const card = 4000123412341234
      const model = modelOf(
        [toolCall(canary, ghost, { card, [canary]: [card] }), finish("tool_calls")],
        [text("ok"), finish("stop")]
      )
      const input = [Message.user([{ type: "image", data: "aGk=", mediaType: `image/${canary}` }])]
      const redact = (text: string) => text.replaceAll(canary, "[hidden]").replaceAll(String(card), "[card]")
      const { logs, spans } = yield* watched(Chat.run(input, { tools: [slow] }), model, {
        capture: "spans-and-events",
        redact
      })
      const written = [...logs.map(({ attributes }) => attributes), ...spans.map(({ attributes }) => [...attributes])]
      const content = JSON.stringify(written).replaceAll(JSON.stringify(["gen_ai.tool.call.id", canary]), "")
      assert.notInclude(content, canary)
      assert.notInclude(content, String(card))
      assert.include(content, "[card]")
    }))

  it.effect("W-12: a text is not cut inside a character", () =>
    Effect.gen(function*() {
      const echo = Tool.make("echo", { parameters, handler: () => Effect.succeed("😀😀") })
      const model = modelOf([toolCall("c0", "echo"), finish("tool_calls")], [text("ok"), finish("stop")])
      const { spans } = yield* watched(Chat.run("Go", { tools: [echo] }), model, { capture: "spans", maxPartLength: 3 })
      assert.strictEqual(attribute(named(spans, "execute_tool")[0]!, "gen_ai.tool.call.result"), "😀…")
    }))

  it.effect("W-17: a metric attribute has at most 101 values, whatever names a provider makes up", () =>
    Effect.gen(function*() {
      const replies = Array.from({ length: 300 }, (_, index) => [
        toolCall("c0", `ghost-${index}`),
        counted(1),
        finish("tool_calls", { model: `model-${index}` })
      ])
      // Over all runs of the program together.
      const run = Chat.run("Go", { tools: [slow], maxTurns: 150 })
      const { metrics } = yield* watched(Effect.andThen(run, run), modelOf(...replies))
      const durations = histogram(metrics, "gen_ai.client.operation.duration")
      assert.strictEqual(new Set(durations.map(({ attributes }) => attributes?.[names.responseModel])).size, 101)
      assert.lengthOf(histogram(metrics, "gen_ai.execute_tool.duration"), 1)
      assert.strictEqual(sumOf(metrics, "gen_ai.client.token.usage", "input"), 300)
    }))

  it.effect("W-17: token counts and costs that are not finite or are negative do not count", () =>
    Effect.gen(function*() {
      const reply = (inputTokens: number, totalCost: number) => [
        usage({ inputTokens, totalCost }),
        toolCall("c0", "slow"),
        finish("tool_calls")
      ]
      const model = modelOf(reply(NaN, NaN), reply(-3, -3), reply(Infinity, Infinity), reply(2, 2), [finish("stop")])
      const { metrics } = yield* watched(Chat.run("Go", { tools: [slow] }), model)
      assert.strictEqual(sumOf(metrics, "gen_ai.client.token.usage", "input"), 2)
      const cost = metrics.find(({ id }) => id === names.totalCost)
      assert.strictEqual(cost?.type === "Counter" && cost.state.count, 2)
    }))

  it.effect("W-17: a call with endless retries has at most 128 span events", () =>
    Effect.gen(function*() {
      const flaky = Tool.make("flaky", { parameters, retry: Schedule.recurs(200), handler: () => Effect.fail("busy") })
      const model = modelOf([toolCall("c0", "flaky"), finish("tool_calls")], [text("ok"), finish("stop")])
      const { spans } = yield* watched(Chat.run("Go", { tools: [flaky] }), model)
      const [call] = named(spans, "execute_tool")
      assert.lengthOf(call!.events, 128)
      assert.strictEqual(attribute(call!, names.attempts), 201)
    }))
})

describe("Telemetry: over the wire", () => {
  it.live("W-16: a collector gets the spans, metrics and logs of a run with a real adapter", () =>
    Effect.gen(function*() {
      const { bodies, url } = yield* collector
      const body = OpenAiChat.body(
        OpenAiChat.said("a"),
        OpenAiChat.finish("stop"),
        OpenAiChat.usage({ prompt_tokens: 7, completion_tokens: 2, total_tokens: 9, cost: 0.25 })
      )
      const server = yield* Server.serve(() => ({ pieces: [body] }))
      const exporter = Otlp.layerJson({ baseUrl: url, resource: { serviceName: "clerk" } })
      yield* Chat.run("Hi", { agent: { name: "clerk" } }).pipe(
        Effect.provide([Adapters.openAiChat.layer(server.url), Telemetry.layer({ capture: "events" })]),
        Effect.provide(exporter.pipe(Layer.provide(FetchHttpClient.layer))),
        Effect.provideService(Metric.MetricRegistry, new Map())
      )
      const spans = (bodies.get("/v1/traces") ?? []).flatMap((body) => body.resourceSpans[0].scopeSpans[0].spans)
      const byName = new Map(spans.map((span: any) => [span.name, span]))
      const chat = byName.get("chat test-model")
      assert.strictEqual(byName.get("POST").parentSpanId, chat.spanId)
      assert.strictEqual(chat.parentSpanId, byName.get("heddle.step").spanId)
      assert.strictEqual(byName.get("heddle.step").parentSpanId, byName.get("invoke_agent clerk").spanId)
      assert.strictEqual(chat.kind, 3)
      assert.isUndefined(byName.get("POST").attributes.find(({ key }: any) => key === "url.full"))
      const value = (name: string) => chat.attributes.find(({ key }: any) => key === name).value
      assert.isAbove(value(names.timeToFirstChunk).doubleValue, 0)
      assert.deepStrictEqual(value(names.totalCost), { doubleValue: 0.25 })
      assert.deepStrictEqual(value(names.inputTokens), { intValue: 7 })
      const metrics = bodies.get("/v1/metrics")!.at(-1).resourceMetrics[0].scopeMetrics[0].metrics
      const duration = metrics.find(({ name }: any) => name === "gen_ai.client.operation.duration")
      assert.strictEqual(duration.unit, "s")
      assert.strictEqual(duration.histogram.dataPoints[0].explicitBounds.length, 14)
      const records = bodies.get("/v1/logs")!.flatMap((body) => body.resourceLogs[0].scopeLogs[0].logRecords)
      const details = records.find(({ body }: any) => body.stringValue === "gen_ai.client.inference.operation.details")
      assert.strictEqual(details.spanId, chat.spanId)
    }).pipe(Effect.scoped))

  it.live("W-16: an adapter sends traceparent only with propagate", () =>
    Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [Adapters.openAiChat.whole] }))
      const { spans, tracer } = recording()
      const asked = (options: object) =>
        Chat.run("Hi").pipe(
          Effect.provide(Adapters.openAiChat.layer(server.url, options)),
          Effect.withTracer(tracer)
        )
      yield* asked({})
      yield* asked({ propagate: true })
      yield* Effect.withTracerEnabled(asked({ propagate: true }), false)
      const [without, sent, disabled] = server.requests.map(({ headers }) => headers["traceparent"])
      assert.isUndefined(without)
      assert.isUndefined(disabled)
      const post = spans.findLast(({ name }) => name === "POST")!
      assert.strictEqual(sent, `00-${post.traceId.padStart(32, "0")}-${post.spanId}-01`)
      assert.deepStrictEqual(server.requests.map(({ headers }) => headers["b3"]), [undefined, undefined, undefined])
      assert.throws(
        () => Adapters.openAiChat.layer("http://a", { propagate: "yes" } as never),
        "propagate must be true or false; got: \"yes\""
      )
    }).pipe(Effect.scoped))
})
