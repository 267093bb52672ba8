/**
 * The conformance suites hold what is right and find what is broken: each case of each suite is failed by at least one
 * implementation that breaks what the case is about.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Ref from "effect/Ref"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Encoder, type Event, Executor, Message, Tool } from "heddle"
import { AdapterSuite, Conformance, EncoderSuite, ExecutorSuite, Script } from "heddle/testing"

/** The names of the cases that an implementation fails. */
const failedBy = <R, E>(suite: Conformance.Suite<R>, layer: Layer.Layer<NoInfer<R>, E>) =>
  Effect.map(Conformance.failures(suite, layer), (errors) => errors.map((error) => error.case))

const namesOf = <R>(suite: Conformance.Suite<R>) => suite.map(({ name }) => name)

/** Asserts that each mutant fails a case that starts as it is named, and that no case is left that none fails. */
const assertEachFails = <A, R, E>(
  suite: Conformance.Suite<R>,
  mutants: ReadonlyArray<readonly [prefix: string, mutant: A]>,
  layer: (mutant: A) => Layer.Layer<NoInfer<R>, E>
) =>
  Effect.gen(function*() {
    const found = new Set<string | undefined>()
    for (const [prefix, mutant] of mutants) {
      const failed = yield* failedBy(suite, layer(mutant))
      assert.isTrue(failed.some((name) => name?.startsWith(prefix)), `${prefix}: failed ${JSON.stringify(failed)}`)
      for (const name of failed) if (name?.startsWith(prefix)) found.add(name)
    }
    assert.deepStrictEqual(namesOf(suite).filter((name) => !found.has(name)), [])
  })

describe("Conformance", () => {
  const passing = Conformance.make("passing", Conformance.equals("same", { a: [1] }, { a: [1] }))
  const failing = Conformance.make("failing", Conformance.equals("one is two", 1, 2))
  const refused = Conformance.make("refused", Conformance.holds("never", false))
  const dying = Conformance.make("dying", Effect.die(new Error("kaboom")))

  it.effect("a failed case reports its name, the compared values and its defect", () =>
    Effect.gen(function*() {
      const errors = yield* Conformance.failures([passing, failing, refused, dying], Layer.empty)
      assert.deepStrictEqual(errors.slice(0, 2).map((error) => error.message), [
        "failing: one is two; expected 2, got 1",
        "refused: never"
      ])
      assert.match(errors[2]!.message, /^dying: .*kaboom/)
      assert.strictEqual((errors[2]!.cause as Error).message, "kaboom")
    }))

  it.effect("a case fails when the implementation interrupts or breaks its caller, and an interrupted case only stops", () =>
    Effect.gen(function*() {
      const suicidal = Conformance.make("suicidal", Effect.interrupt)
      const broken = Conformance.make("broken", Effect.suspend((): Effect.Effect<void> => 42 as never))
      const errors = yield* Conformance.failures([suicidal, broken, failing], Layer.empty)
      assert.deepStrictEqual(errors.map((error) => error.case), ["suicidal", "broken", "failing"])
      let stopped = 0
      const body = Effect.onInterrupt(Effect.never, () => Effect.sync(() => stopped++))
      const fiber = yield* Effect.forkChild(Conformance.make("endless", body).run, { startImmediately: true })
      yield* Effect.yieldNow
      yield* Fiber.interrupt(fiber)
      const exit = yield* Fiber.await(fiber)
      assert.isTrue(Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause))
      assert.strictEqual(stopped, 1)
    }))

  it("a runner receives each case by name, with a Promise of its result", async () => {
    const registered: Array<readonly [string, () => Promise<void>]> = []
    Conformance.register([passing, failing], Layer.empty, (name, run) => registered.push([name, run]))
    assert.deepStrictEqual(registered.map(([name]) => name), ["passing", "failing"])
    await registered[0]![1]()
    const error = await registered[1]![1]().then(() => undefined, (error: unknown) => error)
    assert.instanceOf(error, Conformance.ConformanceError)
  })

  it.effect("Conformance builds the layer anew for each case", () =>
    Effect.gen(function*() {
      const builds = yield* Ref.make(0)
      const layer = Layer.effectDiscard(Ref.update(builds, (count) => count + 1))
      yield* Conformance.failures([passing, passing], layer)
      assert.strictEqual(yield* Ref.get(builds), 2)
    }))
})

describe("ExecutorSuite", () => {
  Conformance.register(ExecutorSuite.suite, Executor.layer(Executor.direct), (name, run) => {
    it(`R-015: the direct executor passes the case: ${name}`, run)
  })

  type Execute = (
    tool: Tool.Any,
    args: unknown,
    call: Tool.CallContext
  ) => Effect.Effect<Tool.Outcome, unknown, unknown>

  const direct = Executor.direct.execute as Execute

  const mapped = (change: (outcome: Tool.Outcome, tool: Tool.Any) => unknown): Execute => (tool, args, call) =>
    Effect.map(direct(tool, args, call), (outcome) => change(outcome, tool) as Tool.Outcome)

  const withError = (change: (error: Tool.ToolError) => unknown) =>
    mapped((outcome) =>
      outcome._tag === "Error" && outcome.error instanceof Tool.ToolError
        ? { ...outcome, error: change(outcome.error) }
        : outcome
    )

  const wrap = (error: unknown) => new Tool.ToolError({ reason: "handler_raised", cause: error, toolName: "subject" })

  const remade = (from: Tool.ToolError["reason"], reason: Tool.ToolError["reason"]) =>
    withError((error) =>
      error.reason === from ? new Tool.ToolError({ reason, toolName: "subject", cause: error.cause }) : error
    )

  const mutants: ReadonlyArray<readonly [string, Execute]> = [
    ["ok: the success", mapped((outcome) => outcome._tag === "Ok" ? { _tag: "Ok", value: [outcome.value] } : outcome)],
    ["ok: null", mapped((outcome) => outcome._tag === "Ok" ? { _tag: "Ok", value: outcome.value ?? {} } : outcome)],
    [
      "error: the error",
      mapped((outcome) => outcome._tag === "Error" ? { _tag: "Ok", value: outcome.error } : outcome)
    ],
    ["error: null", mapped((outcome) => outcome._tag === "Error" && !outcome.error ? wrap(null) : outcome)],
    [
      "error: an exception",
      mapped((outcome) =>
        outcome._tag === "Error" && !(outcome.error instanceof Tool.ToolError)
          ? { _tag: "Error", error: wrap(outcome.error) }
          : outcome
      )
    ],
    [
      "ask-user: a question without",
      mapped((outcome) =>
        outcome._tag === "AskUser" && outcome.opts.length === 0 ? { ...outcome, opts: null } : outcome
      )
    ],
    [
      "ask-user: a question with",
      mapped((outcome) => outcome._tag === "AskUser" ? { ...outcome, opts: [] } : outcome)
    ],
    ["halt", mapped((outcome) => outcome._tag === "Halt" ? { _tag: "Ok", value: outcome.result } : outcome)],
    ["raise", (tool, args, call) => {
      const effect: unknown = tool.handler === undefined || tool.handler.length > 2
        ? undefined
        : tool.handler(args, call)
      return direct(effect === undefined ? tool : { ...tool, handler: () => effect as never }, args, call)
    }],
    [
      "raise",
      withError((error) => error.reason === "handler_raised" ? wrap(new Error("another")) : error)
    ],
    [
      "rejection",
      mapped((outcome) =>
        outcome._tag === "Error" && Cause.isUnknownError(outcome.error)
          ? { ...outcome, error: wrap(outcome.error.cause) }
          : outcome
      )
    ],
    ["exit", remade("handler_exit", "handler_raised")],
    [
      "throw",
      withError((error) => (error.cause as any)?._tag === "Thrown" ? wrap((error.cause as any).value) : error)
    ],
    ["invalid return: a return", remade("invalid_return", "handler_raised")],
    [
      "invalid return: a malformed",
      (tool, args, call) =>
        Effect.suspend(() => tool.handler!(args, call)).pipe(
          Effect.scoped,
          Effect.map((value) => value as Tool.Outcome),
          Effect.catchCause(() => direct(tool, args, call))
        )
    ],
    ["no handler", remade("not_found", "handler_raised")],
    [
      "misuse",
      (tool, args, call) => Effect.catchDefect(direct(tool, args, call), () => Effect.succeed(Tool.error("no")))
    ],
    [
      "misuse",
      (tool, args, call) => Effect.catchDefect(direct(tool, args, call), () => Effect.die(new TypeError("no")))
    ],
    ["context", (tool, args, call) => direct(tool, { ...args as object }, call)],
    ["context", (tool, args, call) => direct(tool, args, { ...call })],
    [
      "services",
      (tool, args, call) =>
        Effect.updateContext(
          direct(tool, args, call),
          (services: Context.Context<any>) => Context.pick(Scope.Scope)(services) as Context.Context<any>
        )
    ],
    [
      "once",
      (tool, args, call) =>
        Effect.flatMap(
          direct(tool, args, call),
          (outcome) => outcome._tag === "Error" ? direct(tool, args, call) : Effect.succeed(outcome)
        )
    ],
    [
      "scope",
      (tool, args, call) =>
        Effect.suspend(() => tool.handler!(args, call)).pipe(
          Effect.map((value) => Tool.ok(value)),
          Effect.catchCause(() => Effect.succeed(Tool.error("failed")))
        )
    ],
    ["interruption", (tool, args, call) => Effect.flatMap(Effect.forkDetach(direct(tool, args, call)), Fiber.join)]
  ]

  it.effect("R-015: each executor case finds an executor that breaks its rule", () =>
    assertEachFails(ExecutorSuite.suite, mutants, (execute) => Executor.layer({ execute: execute as never })))
})

describe("EncoderSuite", () => {
  Conformance.register(EncoderSuite.json, Encoder.layer(Encoder.json), (name, run) => {
    it(`R-031, R-037, M-10: the json encoder passes the case: ${name}`, run)
  })

  Conformance.register(EncoderSuite.json, Encoder.layer(Encoder.allm), (name, run) => {
    it(`R-031, R-037, M-10: the allm encoder passes the case: ${name}`, run)
  })

  Conformance.register(EncoderSuite.contract, Encoder.layer(Encoder.falai), (name, run) => {
    it(`CF-13, R-037, M-10: the falai encoder passes the case: ${name}`, run)
  })

  const json = Encoder.json.encode
  let runs = 0

  const mutants: ReadonlyArray<readonly [string, Encoder.Service["encode"]]> = [
    ["every", (value) => value === null ? Effect.succeed(null as never) : json(value)],
    ["every", (value) => value === true ? Effect.fail("no") : json(value)],
    ["the same", (value) => Effect.map(json(value), (text) => `${text} ${runs++}`)],
    [
      "encoding does",
      (value) =>
        Effect.tap(json(value), () =>
          Effect.sync(() => {
            if (Array.isArray(value)) value.push("mark")
          }))
    ],
    ["nothing", (value) => Effect.succeed(Effect.runSync(json(value)))],
    ["a string", (value) => Effect.map(json(value), (text) => typeof value === "string" ? JSON.stringify(text) : text)],
    ["a string", (value) => Effect.map(json(value), (text) => text.trim().normalize("NFKD").replace("\n", " "))],
    ["ok(x)", (value) => Effect.map(json(value), (text) => text.replace("\"ok\"", "\"value\""))],
    ["error(text)", (value) => Effect.map(json(value), (text) => text === "{\"error\":\"nope\"}" ? "nope" : text)],
    ["error(anything", (value) => Effect.map(json(value), (text) => text.startsWith("{\"error\":") ? "{}" : text)],
    [
      "an error's",
      (value) =>
        Effect.map(json(value), (text) => {
          const { error } = (value ?? {}) as { readonly error?: { readonly cause?: unknown } }
          return error?.cause instanceof Error ? `${text} ${error.cause.message}` : text
        })
    ],
    ["error(an error)", (value) => Effect.map(json(value), (text) => text.replace(/,"details".*/, "}"))],
    ["objects", (value) => Effect.map(json(value), (text) => text.startsWith("[") ? text.slice(1) : text)],
    ["null", (value) => Effect.map(json(value), (text) => value === 42 ? "42.0" : text)],
    ["a function", (value) => Effect.catchCause(json(value), () => Effect.succeed("?"))]
  ]

  it.effect("R-037: each encoder case finds an encoder that breaks its rule", () =>
    assertEachFails(EncoderSuite.json, mutants, (encode) => Encoder.layer({ encode })))

  it.effect("R-037: an encoder that changes its values does not spoil the suite for the next one", () =>
    Effect.gen(function*() {
      const changing = (value: unknown) =>
        Effect.tap(json(value), () =>
          Effect.sync(() => {
            if (Array.isArray(value)) value.push("mark")
          }))
      yield* Conformance.failures(EncoderSuite.json, Encoder.layer({ encode: changing }))
      assert.deepStrictEqual(yield* Conformance.failures(EncoderSuite.json, Encoder.layer(Encoder.json)), [])
    }))
})

const text = (delta: string): Event.AdapterEvent => ({ _tag: "TextDelta", id: null, delta })
const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }
const ended = (content: string): Event.AdapterEvent => ({
  _tag: "MessageCompleted",
  message: Message.assistant(content),
  finishReason: "stop"
})
const call = (fragments: ReadonlyArray<string>, completed: Partial<Event.Of<"ToolCallCompleted">> = {}) =>
  [
    { _tag: "ToolCallStarted", id: "c0", name: "echo" },
    ...fragments.map((argumentsDelta) => ({ _tag: "ToolCallDelta", id: "c0", argumentsDelta } as const)),
    { _tag: "ToolCallCompleted", id: "c0", name: "echo", arguments: { x: 1 }, rawArguments: "{\"x\":1}", ...completed }
  ] as ReadonlyArray<Event.AdapterEvent>

const spoken: ReadonlyArray<Event.AdapterEvent> = [text("a"), text("b"), {
  _tag: "TextCompleted",
  id: null,
  text: "ab"
}]

/** What a layer's connections are counted in. */
class Connections extends Context.Service<Connections, { opened: number; closed: number }>()("test/Connections") {}

const connections = Effect.map(Connections, ({ closed, opened }) => ({ closed, opened }))

describe("AdapterSuite", () => {
  const counted = (make: (count: Connections["Service"]) => Adapter.Adapter["Service"]) =>
    Layer.effectContext(Effect.sync(() => {
      const count = { opened: 0, closed: 0 }
      return Context.make(Connections, count).pipe(Context.add(Adapter.Adapter, make(count)))
    }))

  const scripted = (input: Script.Input) =>
    Layer.effectContext(Effect.gen(function*() {
      const model = yield* Script.make(input)
      const count = {
        get opened() {
          return Effect.runSync(model.opens)
        },
        get closed() {
          return Effect.runSync(model.cleanups)
        }
      }
      return Context.make(Connections, count).pipe(Context.add(Adapter.Adapter, { stream: model.stream }))
    }))

  const again: Script.Cursor = { next: Effect.succeed(0), position: Effect.succeed(0) }

  const scripts: ReadonlyArray<readonly [string, ReadonlyArray<Script.Entry>]> = [
    ["text", [Script.text("a"), Script.text("b"), Script.finish("stop")]],
    ["calls", [
      Script.text("a"),
      Script.toolCall("c0", "echo", { x: 1 }),
      Script.event({ _tag: "ToolCallStarted", id: "c1", name: "echo" }),
      Script.toolCallDelta("c1", "{\"y\":"),
      Script.toolCallDelta("c1", "2}"),
      Script.finish("tool_calls")
    ]],
    ["nothing", []],
    ["a pause", [Script.delay(1), Script.text("a")]],
    ["an error", [Script.text("a"), Script.error("timeout"), Script.text("b")]]
  ]

  for (const [name, script] of scripts) {
    it.live(`R-240, R-245: a scripted adapter with ${name} keeps the adapter contract`, () =>
      Effect.gen(function*() {
        for (const chunkSize of [1, 100]) {
          const layer = scripted({ script, cursor: again, chunkSize })
          assert.deepStrictEqual(yield* failedBy(AdapterSuite.answering({ connections }), layer), [])
        }
        assert.deepStrictEqual(yield* failedBy(AdapterSuite.answering(), Script.layer(script)), [])
      }))
  }

  it.effect("R-243, R-244: a scripted adapter whose open fails keeps the failure contract", () =>
    Effect.gen(function*() {
      const suite = AdapterSuite.failing()
      assert.deepStrictEqual(yield* failedBy(suite, Script.layer([Script.preflightError("rate_limited")])), [])
      assert.deepStrictEqual(yield* failedBy(suite, Script.layer({})), [])
    }))

  const says = (...events: ReadonlyArray<unknown>) => (count: Connections["Service"]): Adapter.Adapter["Service"] => ({
    stream: () =>
      Stream.unwrap(Effect.as(
        Effect.acquireRelease(Effect.sync(() => count.opened++), () => Effect.sync(() => count.closed++)),
        Stream.fromArray(events as ReadonlyArray<Event.AdapterEvent>)
      ))
  })

  const right = says(started, ...spoken, ended("ab"))

  const around = (
    change: (
      stream: Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>,
      count: Connections["Service"]
    ) => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>
  ) =>
  (count: Connections["Service"]): Adapter.Adapter["Service"] => {
    const adapter = right(count)
    return { stream: (request) => change(adapter.stream(request), count) }
  }

  const nested = (levels: number): Readonly<Record<string, unknown>> => levels === 1 ? {} : { a: nested(levels - 1) }

  const mutants: ReadonlyArray<readonly [string, (count: Connections["Service"]) => Adapter.Adapter["Service"]]> = [
    ["frame", says(...spoken, ended("ab"))],
    ["frame", says(started, ...spoken)],
    ["frame", says(started, started, ...spoken, ended("ab"))],
    ["frame", says(started, ended("ab"), ...spoken, ended("ab"))],
    ["tags", says(started, { _tag: "ToolExecutionStarted", id: "c0", name: "echo", arguments: {} }, ended(""))],
    ["data", says(started, { _tag: "TextDelta", delta: 1 }, ended(""))],
    ["text", says(started, text("a"), ended("a"))],
    ["text", says(started, text("a"), { _tag: "TextCompleted", id: null, text: "b" }, ended("a"))],
    ["text", says(started, ...spoken, ended(""))],
    ["text", says(started, ...spoken, text("c"), ended("abc"))],
    ["text", says(started, { _tag: "TextCompleted", id: null, text: "" }, ended(""))],
    ["order", says(started, ...call([]).toReversed(), ended(""))],
    ["order", says(started, ...call([]), ...call(["{"]).slice(1, 2), ended(""))],
    ["order", says(started, ...call([]), ...call([]), ended(""))],
    ["arguments", says(started, ...call(["{\"x\"", ":2}"]), ended(""))],
    ["arguments", says(started, ...call([], { arguments: {} }), ended(""))],
    ["arguments", says(started, ...call([], { arguments: {}, rawArguments: "{" }), ended(""))],
    [
      "arguments: in a whole reply",
      says(started, ...call([], { arguments: {}, rawArguments: "", argumentsLost: "missing_fragments" }), ended(""))
    ],
    [
      "arguments: a call's arguments nest at most 256 levels deep",
      says(started, ...call([], { arguments: nested(257), rawArguments: JSON.stringify(nested(257)) }), ended(""))
    ],
    ["cold: nothing", (count) => {
      const adapter = right(count)
      return {
        stream: (request) => {
          count.opened++
          count.closed++
          return adapter.stream(request)
        }
      }
    }],
    ["cold: each", (count) => {
      const stream = right(count).stream({ messages: [], tools: [] })
      let answer: ReadonlyArray<Event.AdapterEvent> | undefined
      return {
        stream: () =>
          Stream.unwrap(Effect.suspend(() =>
            answer === undefined
              ? Effect.map(Stream.runCollect(stream), (events) => Stream.fromArray(answer = events))
              : Effect.succeed(Stream.fromArray(answer))
          ))
      }
    }],
    ["release: a drained", around((stream, count) => Stream.onEnd(stream, Effect.sync(() => count.closed++)))],
    ["release: a reader leaving", (count) => ({
      stream: () =>
        Stream.fromArray([started, ...spoken, ended("ab")]).pipe(
          Stream.rechunk(1),
          Stream.onStart(Effect.sync(() => count.opened++)),
          Stream.onEnd(Effect.sync(() => count.closed++))
        )
    })],
    ["release: an interrupted reader", (count) => ({
      stream: () =>
        Stream.unwrap(Effect.as(
          Effect.acquireRelease(Effect.sync(() => count.opened++), (_, exit) =>
            Effect.sync(() => Exit.isSuccess(exit) && count.closed++)),
          Stream.fromArray([started, ...spoken, ended("ab")])
        ))
    })]
  ]

  it.effect("a correct adapter keeps the adapter contract, with text, calls and lost arguments", () =>
    Effect.gen(function*() {
      const suite = AdapterSuite.answering({ connections })
      const lost = call(["{"], { arguments: {}, rawArguments: "{", argumentsLost: "json_decode_error" })
      for (const events of [[...spoken], call(["{\"x\"", ":1}"]), call([]), lost]) {
        const content = events === lost || events.length !== 3 || events[0]!._tag !== "TextDelta" ? "" : "ab"
        assert.deepStrictEqual(yield* failedBy(suite, counted(says(started, ...events, ended(content)))), [])
      }
    }))

  it.effect("each adapter case finds an adapter that breaks its rule", () =>
    assertEachFails(AdapterSuite.answering({ connections }), mutants, counted))

  it.effect("AdapterSuite has no connection cases where connections cannot be counted", () =>
    Effect.gen(function*() {
      const names = namesOf(AdapterSuite.answering())
      assert.isTrue(names.length > 0 && names.every((name) => !name.startsWith("cold") && !name.startsWith("release")))
      assert.strictEqual(AdapterSuite.failing().length, 1)
    }))

  it.effect("each failure case finds an adapter that breaks its rule", () =>
    Effect.gen(function*() {
      const broken: ReadonlyArray<readonly [string, (count: Connections["Service"]) => Adapter.Adapter["Service"]]> = [
        ["failure: the stream", right],
        [
          "failure: the stream",
          around((stream) =>
            Stream.concat(Stream.take(stream, 1), Stream.fail(new Adapter.AdapterError({ reason: "timeout" })))
          )
        ],
        ["failure: the stream", around(() => Stream.fail("no AdapterError" as never))],
        ["failure: the stream", around(() => Stream.die("kaboom"))],
        [
          "failure: no connection",
          around((_, count) =>
            Stream.unwrap(Effect.sync(() => {
              count.opened++
              return Stream.fail(new Adapter.AdapterError({ reason: "timeout" }))
            }))
          )
        ]
      ]
      yield* assertEachFails(AdapterSuite.failing({ connections }), broken, counted)
    }))

  it.effect("AdapterSuite sends the given request", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({ script: [Script.text("a")], cursor: again })
      const request: Adapter.Request = { messages: [Message.user("Call echo twice")], tools: [], model: "m1" }
      yield* Conformance.failures(AdapterSuite.answering({ request }), model.layer)
      const asked = yield* model.requests
      assert.isAbove(asked.length, 0)
      assert.isTrue(asked.every((one) => one === request))
    }))
})
