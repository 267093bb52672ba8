/**
 * Toolkits of effect/ai as Heddle's tools: schemas, hints and handlers, what they report and how they crash, progress,
 * approvals, and that nothing of a handler outlives its call.
 */
import { assert, describe, it } from "@effect/vitest"
import * as AiError from "effect/ai/AiError"
import * as Prompt from "effect/ai/Prompt"
import * as AiTool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Chat, type Event, Message, Tool, ToolRunner } from "heddle"
import * as EffectAi from "heddle/bridges/effect-ai"
import { Script } from "heddle/testing"

class NoSuchCity extends Schema.TaggedError<NoSuchCity>("test/NoSuchCity")("NoSuchCity", { city: Schema.String }) {
  override get message(): string {
    return `there is no ${this.city}`
  }
}

class Thermometer extends Context.Service<Thermometer, { readonly read: (city: string) => Effect.Effect<number> }>()(
  "test/Thermometer"
) {}

const thermometer = Layer.succeed(Thermometer, { read: () => Effect.succeed(7) })

const weather = AiTool.make("weather", {
  description: "Temperature of a city",
  parameters: Schema.Struct({ city: Schema.NonEmptyString, day: Schema.optionalKey(Schema.DateFromString) }),
  success: Schema.Struct({ celsius: Schema.Finite, at: Schema.DateFromString }),
  failure: NoSuchCity,
  dependencies: [Thermometer]
})

const toolkit = Toolkit.make(weather)

const handlers = toolkit.toLayer({
  weather: ({ city, day = new Date(0) }) =>
    city === "Atlantis"
      ? Effect.fail(new NoSuchCity({ city }))
      : Effect.map(Thermometer.use(({ read }) => read(city)), (celsius) => ({ celsius, at: day }))
})

/** Runs one call of a toolkit's only tool: its events, its answer and what it came to. */
const running = <T extends Toolkit.Any, R>(
  kit: T,
  layer: Layer.Layer<any, never, R>,
  args: Readonly<Record<string, unknown>> = {},
  options: EffectAi.ToolsOptions<any> = {}
) =>
  Effect.gen(function*() {
    const tools: ReadonlyArray<Tool.Tool<string, any, any, any, never>> = yield* EffectAi.tools(
      kit as any,
      options
    ) as any
    const call = Message.toolCall("call_1", tools[0]!.name, args)
    const events = yield* Stream.runCollect(ToolRunner.stream([call], tools))
    const completed = events.find((event): event is Event.Of<"ToolExecutionCompleted"> =>
      event._tag === "ToolExecutionCompleted"
    )
    const encoded = events.find((event): event is Event.Of<"ToolResultEncoded"> => event._tag === "ToolResultEncoded")
    return { events, tags: events.map(({ _tag }) => _tag), result: completed?.result, content: encoded?.content }
  }).pipe(Effect.provide(layer), Effect.scoped) as unknown as Effect.Effect<{
    readonly events: ReadonlyArray<Event.Event>
    readonly tags: ReadonlyArray<string>
    readonly result: Tool.Outcome | undefined
    readonly content: Message.Content | undefined
  }>

const weatherOf = (args: Readonly<Record<string, unknown>>) =>
  running(toolkit, Layer.merge(handlers, thermometer), args)

/** The error of a call that crashed. */
const crash = (result: Tool.Outcome | undefined): Tool.ToolError => {
  assert.isTrue(result?._tag === "Error" && result.error instanceof Tool.ToolError, JSON.stringify(result))
  return (result as Tool.Error).error as Tool.ToolError
}

describe("the handlers of a toolkit", () => {
  it.effect("a call is decoded, runs with its services, and its result is encoded with the success schema", () =>
    Effect.gen(function*() {
      const { content, result, tags } = yield* weatherOf({ city: "Oslo", day: "2020-02-02T00:00:00.000Z" })
      const at = new Date("2020-02-02T00:00:00.000Z")
      assert.deepStrictEqual(result, { _tag: "Ok", value: { celsius: 7, at } })
      assert.strictEqual(content, "{\"celsius\":7,\"at\":\"2020-02-02T00:00:00.000Z\"}")
      assert.deepStrictEqual(tags, ["ToolExecutionStarted", "ToolExecutionCompleted", "ToolResultEncoded"])
    }))

  it.effect("invalid arguments are answered before the handler starts", () =>
    Effect.gen(function*() {
      const { result, tags } = yield* weatherOf({ city: "" })
      assert.strictEqual(crash(result).reason, "invalid_arguments")
      assert.notInclude(tags, "ToolExecutionStarted")
    }))

  it.effect("M-10, design, law 8: a handler's failure is encoded with its failure schema, in both failure modes", () =>
    Effect.gen(function*() {
      const { content, result } = yield* weatherOf({ city: "Atlantis" })
      assert.deepStrictEqual(result, { _tag: "Error", error: new NoSuchCity({ city: "Atlantis" }) })
      assert.deepStrictEqual(JSON.parse(String(content)), {
        error: "there is no Atlantis",
        details: { _tag: "NoSuchCity", city: "Atlantis" }
      })
      for (const failureMode of ["error", "return"] as const) {
        const kit = Toolkit.make(AiTool.make("fail", { failure: Schema.String, failureMode }))
        const failed = yield* running(kit, kit.toLayer({ fail: () => Effect.fail("nope") }))
        assert.deepStrictEqual(failed.result, { _tag: "Error", error: "nope" })
        const failure = Schema.Struct({ code: Schema.Literal("late"), at: Schema.Date })
        const dated = Toolkit.make(AiTool.make("fail", { failure, failureMode }))
        const late = yield* running(
          dated,
          dated.toLayer({ fail: () => Effect.fail({ code: "late", at: new Date(0) }) })
        )
        assert.deepStrictEqual(JSON.parse(String(late.content)), {
          error: "{\"code\":\"late\",\"at\":\"1970-01-01T00:00:00.000Z\"}"
        })
        const reason = new AiError.RateLimitError({})
        const limited = yield* running(kit, kit.toLayer({ fail: () => Effect.fail(reason) }))
        assert.isTrue(limited.result?._tag === "Error" && AiError.isAiError(limited.result.error))
      }
    }))

  it.effect("design, law 8: a defect and a result that does not match its schema are crashes in both failure modes", () =>
    Effect.gen(function*() {
      for (const failureMode of ["error", "return"] as const) {
        const kit = Toolkit.make(AiTool.make("count", { success: Schema.Finite, failureMode }))
        const dying = yield* running(kit, kit.toLayer({ count: () => Effect.die(new Error("kaboom")) }))
        assert.strictEqual(crash(dying.result).reason, "handler_raised")
        const lying = yield* running(kit, kit.toLayer({ count: () => Effect.succeed("many" as never) }))
        assert.strictEqual(crash(lying.result).reason, "handler_raised")
        assert.isTrue(AiError.isAiError(crash(lying.result).cause))
      }
    }))

  it.effect("a handler that interrupts itself is reported as handler_exit", () =>
    Effect.gen(function*() {
      const kit = Toolkit.make(AiTool.make("stop"))
      const { result } = yield* running(kit, kit.toLayer({ stop: () => Effect.interrupt }))
      assert.strictEqual(crash(result).reason, "handler_exit")
    }))

  it.effect("a tool without parameters and success schema answers null", () =>
    Effect.gen(function*() {
      const kit = Toolkit.make(AiTool.make("ping"))
      const { content, result } = yield* running(kit, kit.toLayer({ ping: () => Effect.void }))
      assert.deepStrictEqual([result?._tag, content], ["Ok", "null"])
    }))

  it.effect("parameters that are not JSON types reach the handler decoded", () =>
    Effect.gen(function*() {
      const kit = Toolkit.make(
        AiTool.make("year", { parameters: Schema.Struct({ day: Schema.Date }), success: Schema.Finite })
      )
      const layer = kit.toLayer({ year: ({ day }) => Effect.succeed(day.getUTCFullYear()) })
      assert.strictEqual((yield* running(kit, layer, { day: "2020-02-02T00:00:00.000Z" })).content, "2020")
    }))

  it.effect("a dynamic tool accepts what its schema accepts, or any object without a schema", () =>
    Effect.gen(function*() {
      const parameters = { type: "object", properties: { q: { type: "string" } }, required: ["q"] } as const
      const kit = Toolkit.make(AiTool.dynamic("remote", { parameters }))
      const [tool] = yield* EffectAi.tools(kit).pipe(
        Effect.provide(kit.toLayer({ remote: (args) => Effect.succeed(args) }))
      )
      assert.deepStrictEqual(Tool.definition(tool!).parameters, parameters)
      const { content } = yield* running(kit, kit.toLayer({ remote: (args) => Effect.succeed(args) }), { q: "x" })
      assert.strictEqual(content, "{\"q\":\"x\"}")
      const open = Toolkit.make(AiTool.dynamic("anything"))
      const [any] = yield* EffectAi.tools(open).pipe(Effect.provide(open.toLayer({ anything: () => Effect.void })))
      assert.deepStrictEqual(Tool.definition(any!).parameters, { type: "object" })
    }))

  it.effect("M-19: the model reads the output of toModelOutput, and the caller gets the result", () =>
    Effect.gen(function*() {
      const kit = Toolkit.make(AiTool.make("draw", {
        success: Schema.Struct({ png: Schema.String }),
        toModelOutput: ({ png }) => [
          Prompt.textPart({ text: "A cat" }),
          Prompt.filePart({ mediaType: "image/png", data: png })
        ]
      }))
      const { content, result } = yield* running(kit, kit.toLayer({ draw: () => Effect.succeed({ png: "iVBO" }) }))
      assert.deepStrictEqual(result, { _tag: "Ok", value: { png: "iVBO" } })
      assert.deepStrictEqual(content, [
        { type: "text", text: "A cat" },
        { type: "image", mediaType: "image/png", data: "iVBO" }
      ])
    }))

  it.effect("M-19: files of toModelOutput may be bytes, addresses and names, and texts alone become a single text", () =>
    Effect.gen(function*() {
      const contentFor = (parts: ReadonlyArray<Prompt.ToolModelOutputPart>) => {
        const kit = Toolkit.make(AiTool.make("draw", { success: Schema.Finite, toModelOutput: () => parts }))
        return Effect.map(running(kit, kit.toLayer({ draw: () => Effect.succeed(1) })), ({ content }) => content)
      }
      const url = new URL("https://example.com/a.pdf")
      assert.deepStrictEqual(
        yield* contentFor([
          Prompt.filePart({ mediaType: "application/pdf", fileName: "a.pdf", data: url }),
          Prompt.filePart({ mediaType: "application/pdf", data: url.href }),
          Prompt.filePart({ mediaType: "image/png", data: new Uint8Array([1, 2, 3]) })
        ]),
        [
          { type: "file", mediaType: "application/pdf", url: url.href, filename: "a.pdf" },
          { type: "file", mediaType: "application/pdf", url: url.href },
          { type: "image", mediaType: "image/png", data: "AQID" }
        ]
      )
      assert.strictEqual(
        yield* contentFor([Prompt.textPart({ text: "one" }), Prompt.textPart({ text: "two" })]),
        "one\ntwo"
      )
    }))

  it.effect("the handlers of an already built toolkit run unchanged", () =>
    Effect.gen(function*() {
      const tools = yield* Effect.flatMap(toolkit, (built) => EffectAi.tools(built)).pipe(Effect.provide(handlers))
      const { messages } = yield* ToolRunner.run([Message.toolCall("a", "weather", { city: "Oslo" })], tools).pipe(
        Effect.provide(thermometer)
      )
      assert.include(messages[0]?.content as string, "\"celsius\":7")
    }))
})

describe("the declarations of a toolkit", () => {
  const declared = (tool: AiTool.Any) =>
    Effect.map(
      EffectAi.tools({ tools: { [tool.name]: tool }, handle: () => Effect.die("not run") }),
      ([made]) => made as Tool.Any
    )

  it.effect("hints are those of effect/ai with its defaults, and a read-only tool is not destructive", () =>
    Effect.gen(function*() {
      const hints = (tool: AiTool.Any) =>
        Effect.map(declared(tool), ({ destructive, idempotent, openWorld, readOnly }) => ({
          readOnly,
          destructive,
          idempotent,
          openWorld
        }))
      const plain = AiTool.make("plain")
      assert.deepStrictEqual(yield* hints(plain), {
        readOnly: false,
        destructive: true,
        idempotent: false,
        openWorld: true
      })
      assert.deepStrictEqual(
        yield* hints(
          plain.annotate(AiTool.Readonly, true).annotate(AiTool.Idempotent, true).annotate(AiTool.OpenWorld, false)
        ),
        { readOnly: true, destructive: false, idempotent: true, openWorld: false }
      )
      assert.isFalse((yield* hints(plain.annotate(AiTool.Destructive, false))).destructive)
    }))

  it.effect("a tool keeps its description, title and meta", () =>
    Effect.gen(function*() {
      const parameters = Schema.Struct({ q: Schema.String }).annotate({ description: "Finds things" })
      const tool = AiTool.make("find", { parameters }).annotate(AiTool.Title, "Find").annotate(AiTool.Meta, { a: 1 })
      const made = yield* declared(tool)
      assert.strictEqual(made.description, "Finds things")
      assert.deepStrictEqual(made.metadata, { effectAi: { title: "Find", meta: { a: 1 } } })
      assert.deepInclude(Tool.definition(made).parameters, { type: "object", required: ["q"] })
    }))

  const defined = (requiresHandler: boolean) =>
    AiTool.providerDefined({
      id: "acme.shell",
      customName: "shell",
      providerName: "shell",
      parameters: Schema.Struct({ command: Schema.String }),
      success: Schema.String,
      requiresHandler
    })({} as never)

  it.effect("a tool run by its provider is refused by name, and a provider-defined tool with a handler is accepted", () =>
    Effect.gen(function*() {
      const exit = yield* Effect.exit(declared(defined(false)))
      const defect = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
      assert.instanceOf(defect, TypeError)
      assert.match((defect as TypeError).message, /"shell" is run by its provider.*providerTools/)
      const made = yield* declared(defined(true))
      assert.deepInclude(Tool.definition(made).parameters, { type: "object", required: ["command"] })
    }))

  it.effect("a name that no provider accepts is refused", () =>
    Effect.gen(function*() {
      const exit = yield* Effect.exit(declared(AiTool.make("get weather")))
      assert.match(String(Exit.isFailure(exit) && Cause.squash(exit.cause)), /get weather/)
    }))
})

describe("approvals of a toolkit", () => {
  const kit = (needsApproval: AiTool.NeedsApproval<any>) =>
    Toolkit.make(
      AiTool.make("remove", {
        parameters: Schema.Struct({ path: Schema.String }),
        success: Schema.String,
        needsApproval
      })
    )

  const removing = (needsApproval: AiTool.NeedsApproval<any>, options: EffectAi.ToolsOptions = {}, path = "/tmp/x") => {
    const removable = kit(needsApproval)
    return running(removable, removable.toLayer({ remove: () => Effect.succeed("removed") }), { path }, options)
  }

  it.effect("a tool that may need an approval is manual, unless `approve` is set", () =>
    Effect.gen(function*() {
      for (const needsApproval of [true, () => false]) {
        const removable = kit(needsApproval)
        const model = Script.layer([Script.toolCall("a", "remove", { path: "x" }), Script.finish("tool_calls")])
        const program = Effect.gen(function*() {
          const tools = yield* EffectAi.tools(removable)
          const result = yield* Chat.run("Tidy up", { tools })
          assert.strictEqual(result.outcome._tag, "ManualToolCalls")
          assert.deepStrictEqual(tools[0]?.metadata["effectAi"], { needsApproval: true })
          const approved = tools.map((tool) => ({ ...tool, manual: false }))
          const { messages } = yield* ToolRunner.run([Message.toolCall("a", "remove", { path: "x" })], approved)
          assert.strictEqual(messages[0]?.content, "removed")
        })
        yield* program.pipe(
          Effect.provide([removable.toLayer({ remove: () => Effect.succeed("removed") }), model])
        )
      }
      assert.strictEqual((yield* removing(false)).content, "removed")
    }))

  it.effect("`approve` gets the calls that need an approval, with their arguments, and may be an effect", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const approve = (args: unknown, call: Tool.CallContext) => {
        asked.push([args, call.id])
        return Effect.succeed({ allowed: (args as { path: string }).path !== "/", reason: "not the root" })
      }
      const depends = ({ path }: { readonly path: string }) => Effect.succeed(path !== "/tmp/x")
      assert.strictEqual((yield* removing(true, { approve })).content, "removed")
      assert.strictEqual((yield* removing(depends, { approve })).content, "removed")
      assert.deepStrictEqual(asked, [[{ path: "/tmp/x" }, "call_1"]])
      const denied = yield* removing(depends, { approve }, "/")
      assert.deepStrictEqual([crash(denied.result).reason, asked.length], ["denied", 2])
      assert.match(String(denied.content), /not the root/)
      assert.strictEqual((yield* removing(() => true, { approve: () => true })).content, "removed")
    }))

  it.effect("a tool with a failing approval function does not run", () =>
    Effect.gen(function*() {
      const { result } = yield* removing(() => Effect.die("cannot tell"), { approve: () => true })
      assert.strictEqual(crash(result).reason, "denied")
    }))
})

describe("progress and lifetime of a handler", () => {
  it.effect("preliminary results are encoded as progress, and the last result is the answer", () =>
    Effect.gen(function*() {
      const kit = Toolkit.make(AiTool.make("count", { success: Schema.Struct({ at: Schema.DateFromString }) }))
      const layer = kit.toLayer({
        count: (_, { preliminary, toolCallId }) =>
          Effect.gen(function*() {
            assert.strictEqual(toolCallId, "call_1")
            yield* preliminary({ at: new Date(0) })
            yield* preliminary({ at: new Date(1000) })
            return { at: new Date(2000) }
          })
      })
      const { content, events } = yield* running(kit, layer)
      const progress = events.flatMap((event) => event._tag === "ToolProgress" ? [event.progress] : [])
      assert.deepStrictEqual(progress, [{ at: "1970-01-01T00:00:00.000Z" }, { at: "1970-01-01T00:00:01.000Z" }])
      assert.strictEqual(content, "{\"at\":\"1970-01-01T00:00:02.000Z\"}")
    }))

  it.effect("design, law 10: a handler that reports faster than its reader waits", () =>
    Effect.gen(function*() {
      let reported = 0
      const gate = yield* Latch.make()
      const kit = Toolkit.make(AiTool.make("count", { success: Schema.Finite }))
      const layer = kit.toLayer({
        count: (_, { preliminary }) =>
          Effect.forEach(
            Array.from({ length: 1000 }, (_, index) => index),
            (index) => Effect.andThen(preliminary(index), Effect.sync(() => reported++))
          ).pipe(Effect.as(-1))
      })
      const [tool] = yield* EffectAi.tools(kit).pipe(Effect.provide(layer))
      const call = {
        id: "a",
        toolCall: Message.toolCall("a", "count"),
        progress: () => gate.await
      } as unknown as Tool.CallContext
      const fiber = yield* Effect.forkChild(tool!.handler!({}, call) as Effect.Effect<unknown>, {
        startImmediately: true
      })
      yield* Effect.yieldNow
      assert.isBelow(reported, 40)
      yield* gate.open
      assert.strictEqual(yield* Fiber.join(fiber), -1)
      assert.strictEqual(reported, 1000)
    }))

  it.effect("design, law 3: an interruption reaches the handler, and its finalizers run first", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const started = yield* Latch.make()
      const kit = Toolkit.make(AiTool.make("wait"))
      const layer = kit.toLayer({
        wait: () =>
          Effect.andThen(started.open, Effect.never).pipe(
            Effect.onInterrupt(() => Effect.sync(() => log.push("stopped")))
          )
      })
      const fiber = yield* Effect.forkChild(running(kit, layer))
      yield* started.await
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(log, ["stopped"])
    }))

  it.effect("the span of a call omits its arguments and has the handler's annotations", () =>
    Effect.gen(function*() {
      const spans: Array<Tracer.NativeSpan> = []
      const tracer = Tracer.make({
        span: (options) => {
          const span = new Tracer.NativeSpan(options)
          spans.push(span)
          return span
        }
      })
      const kit = Toolkit.make(AiTool.make("login", { parameters: Schema.Struct({ password: Schema.String }) }))
      const layer = kit.toLayer({
        login: () =>
          Effect.withSpan(Effect.annotateCurrentSpan("inner", 1), "inner").pipe(
            Effect.andThen(Effect.annotateCurrentSpan("outer", 1))
          )
      })
      yield* running(kit, layer, { password: "hunter2" }).pipe(Effect.withTracer(tracer))
      const span = spans.find(({ name }) => name === "execute_tool login")
      assert.strictEqual(span?.attributes.get("outer"), 1)
      assert.strictEqual(span?.attributes.get("tool"), "login")
      const inner = spans.find(({ name }) => name === "inner")
      assert.strictEqual(Option.getOrUndefined(inner!.parent)?.spanId, span?.spanId)
      assert.notInclude(JSON.stringify(spans.map(({ attributes }) => [...attributes])), "hunter2")
    }))
})
