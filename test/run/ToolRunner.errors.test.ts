/**
 * Failing calls: what the model reads of each failure, what the error policy receives and how often, and what its
 * decisions lead to.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { Encoder, Executor, Message, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { contents, elapsed, only, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const all: ReadonlyArray<Tool.Any> = [
  Tools.echo,
  Tools.fail,
  Tools.failS,
  Tools.boom,
  Tools.weird,
  Tools.fn,
  Tools.none,
  Tools.slow(200)
]

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

/** The content of the only answer, and the halt. */
const answerOf = <E>(name: string, options: ToolRunner.Options<E> = {}) =>
  Effect.map(
    ToolRunner.run(calling(name), all, options),
    ({ messages, halt }) => ({ content: messages[0]?.content, halt })
  )

/** The error policy that decides as given, and what it was asked. */
const policyOf = <E = never>(decide: () => unknown) => {
  const asked: Array<{ readonly call: Message.ToolCall; readonly error: unknown }> = []
  const onToolError = (call: Message.ToolCall, error: unknown): Effect.Effect<Tool.ErrorDecision<E>> => {
    asked.push({ call, error })
    return decide() as Effect.Effect<Tool.ErrorDecision<E>>
  }
  return { asked, onToolError, options: { onToolError } }
}

const toolError = (error: unknown): Tool.ToolError => {
  assert.instanceOf(error, Tool.ToolError)
  return error as Tool.ToolError
}

const allmEncoder = Effect.provide(Encoder.layer(Encoder.allm))

describe("ToolRunner: failures under continue", () => {
  it.effect("B-06, R-066: the model reads an identifier as its encoder writes symbols, and the run does not halt", () =>
    Effect.gen(function*() {
      const answer = yield* allmEncoder(answerOf("fail", { onToolError: "continue" }))
      assert.deepStrictEqual(answer, { content: "{\"error\":\":not_found\"}", halt: undefined })
      assert.deepStrictEqual(yield* answerOf("fail"), { content: "{\"error\":\"Symbol(not_found)\"}", halt: undefined })
    }))

  it.effect("B-07, R-066: the model reads a reported string unchanged", () =>
    Effect.gen(function*() {
      const expected = { content: "{\"error\":\"nope\"}", halt: undefined }
      assert.deepStrictEqual(yield* answerOf("failS"), expected)
      assert.deepStrictEqual(yield* allmEncoder(answerOf("failS")), expected)
    }))

  it.effect("R-036: the model reads an error of the runtime in one stable envelope, without the thrown value", () =>
    Effect.gen(function*() {
      const { content } = yield* answerOf("boom")
      assert.deepStrictEqual(JSON.parse(String(content)), {
        error: "tool error (boom): handler_raised",
        code: "handler_raised"
      })
      assert.notInclude(String(content), "kaboom")
      const missing = yield* answerOf("no_handler")
      assert.deepStrictEqual(JSON.parse(String(missing.content)), {
        error: "tool error (no_handler): not_found",
        code: "not_found"
      })
    }))

  it.effect("R-036: the encoder of allm renders the whole error", () =>
    Effect.gen(function*() {
      const { content } = yield* allmEncoder(answerOf("boom"))
      const { error } = JSON.parse(String(content)) as { readonly error: string }
      assert.match(error, /^tool error \(boom\): handler_raised \{/)
      assert.include(error, "kaboom")
    }))

  it.effect("R-035: the encoder receives the message of a reported Error, and other reported values unchanged", () =>
    Effect.gen(function*() {
      class Missing extends Data.TaggedError("Missing")<{ readonly what: string }> {}
      const encoded: Array<unknown> = []
      const spy = Encoder.layer({
        encode: (value) =>
          Effect.suspend(() => {
            encoded.push(value)
            return Encoder.json.encode(value)
          })
      })
      const reasons = [new Error("gone"), { code: 7 }, new Missing({ what: "page" })]
      for (const reason of reasons) {
        const tool = Tool.make("t", { parameters: {}, handler: () => Effect.fail(reason) })
        yield* ToolRunner.run(calling("t"), [tool]).pipe(Effect.provide(spy))
      }
      assert.deepStrictEqual(encoded, [Tool.error("gone"), Tool.error(reasons[1]), Tool.error(reasons[2])])
    }))

  it.effect("R-035: the model reads a literal error where the encoder fails on an error", () =>
    Effect.gen(function*() {
      const broken = Encoder.layer({ encode: () => Effect.fail("no pen") })
      for (
        const [name, expected] of [
          ["failS", { error: "nope" }],
          ["boom", { error: "tool error (boom): handler_raised", code: "handler_raised" }],
          ["fail", { error: "Symbol(not_found)" }]
        ] as const
      ) {
        const { content } = yield* answerOf(name).pipe(Effect.provide(broken))
        assert.deepStrictEqual(JSON.parse(String(content)), expected)
      }
    }))

  it.effect("B-23, R-057, R-013: a call whose executor yields no outcome ends as invalid_return", () =>
    Effect.gen(function*() {
      for (
        const odd of ["odd", Effect.succeed("odd"), undefined, Effect.succeed(null), Effect.succeed({ _tag: "Ok" })]
      ) {
        const executor = Executor.layer({ execute: (() => odd) as never })
        const { content } = yield* answerOf("echo").pipe(Effect.provide(executor))
        assert.include(String(content), "invalid_return")
      }
    }))

  it.effect("B-24, R-014: an executor that throws, dies or fails costs one call, and no other", () =>
    Effect.gen(function*() {
      const execute = (tool: Tool.Any, args: unknown, context: Tool.CallContext) => {
        if (context.index === 1) throw Tools.kaboom
        if (context.index === 2) return Effect.die(Tools.kaboom)
        if (context.index === 3) return Effect.fail("typed all the same")
        return Executor.direct.execute(tool, args, context)
      }
      const { value } = yield* elapsed(
        ToolRunner.run(calling("echo", "echo", "echo", "echo", "echo"), all).pipe(
          Effect.provide(Executor.layer({ execute: execute as never }))
        )
      )
      const raised = "{\"error\":\"tool error (echo): handler_raised\",\"code\":\"handler_raised\"}"
      assert.deepStrictEqual(contents(value).map(([, content]) => content), ["{}", raised, raised, raised, "{}"])
    }))

  it.effect("R-014: an unreadable value is a crash of its handler, and the error names its call", () =>
    Effect.gen(function*() {
      const unreadable = Tool.make("unreadable", {
        parameters: {},
        handler: () =>
          Effect.sync(() => {
            const { proxy, revoke } = Proxy.revocable({}, {})
            revoke()
            return proxy
          })
      })
      for (const executor of [Executor.direct, { execute: Executor.direct.execute }]) {
        const { asked, onToolError } = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue("mended")))
        yield* ToolRunner.run(calling("unreadable"), [unreadable], { onToolError }).pipe(
          Effect.provide(Executor.layer(executor))
        )
        const error = asked[0]?.error as Tool.ToolError
        assert.deepInclude(error, { reason: "handler_raised", toolName: "unreadable", toolCallId: "c0" })
        assert.instanceOf(error.cause, TypeError)
      }
    }))

  it.effect("R-057: a call whose fiber is interrupted by its own handler ends as handler_exit with the cause", () =>
    Effect.gen(function*() {
      const suicide = Tool.make("suicide", {
        parameters: {},
        handler: () =>
          Effect.withFiber((fiber) => Effect.andThen(Effect.sync(() => fiber.interruptUnsafe()), Effect.never))
      })
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue("mended")))
      const { value } = yield* elapsed(
        ToolRunner.run(calling("suicide", "echo"), [suicide, Tools.echo], policy.options)
      )
      assert.deepStrictEqual(contents(value), [["c0", "mended"], ["c1", "{}"]])
      assert.deepStrictEqual(policy.asked.map(({ error }) => toolError(error).reason), ["handler_exit"])
      assert.deepInclude(toolError(policy.asked[0]?.error), { toolName: "suicide", toolCallId: "c0" })
      assert.isDefined(toolError(policy.asked[0]?.error).cause)
    }))

  it.effect("R-057: a call whose fiber dies while its answer is written is still answered", () =>
    Effect.gen(function*() {
      const mine: Array<{ readonly interruptUnsafe: () => void }> = []
      const victim = Tool.make("victim", {
        parameters: {},
        handler: () => Effect.withFiber((fiber) => Effect.sync(() => void mine.push(fiber)))
      })
      const killer = Tool.make("killer", {
        parameters: {},
        handler: () => Effect.andThen(Effect.sleep(5), Effect.sync(() => mine[0]?.interruptUnsafe()))
      })
      const patient = Encoder.layer({ encode: (value) => Effect.delay(Encoder.json.encode(value), 10) })
      const policies = [["continue", undefined], ["halt", undefined], ["halt", "continue"], [
        "continue",
        "halt"
      ]] as const
      for (const [onToolError, own] of policies) {
        mine.length = 0
        const tools = [own === undefined ? victim : { ...victim, onToolError: own }, killer]
        const { value } = yield* elapsed(
          ToolRunner.run(calling("victim", "killer"), tools, { onToolError }).pipe(Effect.provide(patient))
        )
        assert.strictEqual(value.messages.length, 2)
        assert.match(String(value.messages[0]?.content), /handler_exit/)
        // The tool's own policy goes before that of the run.
        assert.strictEqual(value.halt?.haltedReason, (own ?? onToolError) === "halt" ? "tool_error" : undefined)
      }
    }))
})

describe("ToolRunner: onToolError as a function", () => {
  it.effect("B-17, R-069, R-074: a replacement by the error policy is the result, and the policy is asked once", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue({ fallback: true })))
      const { events } = yield* watched(ToolRunner.stream([call("c0", "boom", { x: 1 })], all, policy.options))
      assert.strictEqual(policy.asked.length, 1)
      assert.deepStrictEqual(policy.asked[0]?.call, call("c0", "boom", { x: 1 }))
      const error = toolError(policy.asked[0]?.error)
      assert.deepInclude(error, { reason: "handler_raised", toolName: "boom", cause: Tools.kaboom })
      assert.deepStrictEqual(only(events, "ToolExecutionCompleted").result, { _tag: "Ok", value: { fallback: true } })
      assert.deepStrictEqual(only(events, "ToolResultEncoded"), {
        _tag: "ToolResultEncoded",
        id: "c0",
        content: "{\"fallback\":true}"
      })
    }))

  it.effect("B-18, R-068: the error policy receives the very failure reported by the handler", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue("so be it")))
      assert.strictEqual((yield* answerOf("fail", policy.options)).content, "so be it")
      assert.deepStrictEqual(policy.asked.map(({ error }) => error), [Tools.notFound])
    }))

  it.effect("R-068, R-074: the error policy is asked once about every kind of failure, with an error of that kind", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue("ok")))
      const lost = { ...call("c6", "echo"), argumentsLost: "json_decode_error" } as const
      const truncated = { ...call("c7", "echo"), argumentsLost: "truncated" } as const
      const calls = [...calling("boom", "weird", "no_handler", "fn", "slow", "ghost"), lost, truncated]
      const { value } = yield* elapsed(ToolRunner.run(calls, all, { ...policy.options, toolTimeout: 50 }))
      assert.deepStrictEqual(value.messages.map(({ content }) => content), calls.map(() => "ok"))
      const reasons = new Map(policy.asked.map(({ call, error }) => [call.id, toolError(error).reason]))
      assert.strictEqual(policy.asked.length, calls.length)
      assert.deepStrictEqual(calls.map(({ id }) => reasons.get(id)), [
        "handler_raised",
        "invalid_return",
        "not_found",
        "encoding_failed",
        "timeout",
        "unknown_tool",
        "invalid_arguments",
        "truncated_arguments"
      ])
    }))

  it.effect("R-070: an error policy that decides halt acts like onToolError: \"halt\"", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.halt))
      for (const name of ["boom", "fail", "failS"]) {
        assert.deepStrictEqual(yield* answerOf(name, policy.options), yield* answerOf(name, { onToolError: "halt" }))
      }
      assert.strictEqual(policy.asked.length, 3)
    }))

  it.effect("B-19, R-071, R-074: an error policy that throws halts the run, and the halt reports the exception", () =>
    Effect.gen(function*() {
      const exception = new Error("policy broke")
      for (
        const thrower of [() => {
          throw exception
        }, () => Effect.die(exception)]
      ) {
        const policy = policyOf(thrower)
        const { events } = yield* watched(ToolRunner.stream(calling("boom"), all, policy.options))
        assert.strictEqual(policy.asked.length, 1)
        const { result: raw } = only(events, "ToolExecutionCompleted")
        const error = toolError(raw._tag === "Error" ? raw.error : undefined)
        assert.deepInclude(error, { reason: "invalid_return", cause: exception })
        assert.deepStrictEqual(error.metadata, { onToolErrorRaised: true, onToolErrorException: exception })
        assert.deepInclude(only(events, "ToolHalt"), { reason: "tool_error", onToolErrorException: exception })
        const { halt } = yield* answerOf("boom", policy.options)
        assert.deepStrictEqual(halt, {
          haltedReason: "tool_error",
          haltToolCallId: "c0",
          onToolErrorException: exception
        })
      }
    }))

  it.effect("R-071, R-075: an error policy that interrupts itself or fails halts the run", () =>
    Effect.gen(function*() {
      const stops = [
        Effect.interrupt,
        Effect.withFiber((fiber) => Effect.sync(() => fiber.interruptUnsafe())),
        Effect.fail("typed")
      ]
      for (const stop of stops) {
        const policy = policyOf(() => stop)
        const { value } = yield* elapsed(ToolRunner.run(calling("boom", "echo"), all, policy.options))
        assert.strictEqual(value.messages.length, 2)
        assert.deepInclude(value.halt, { haltedReason: "tool_error", haltToolCallId: "c0" })
        assert.strictEqual(policy.asked.length, 1)
      }
    }))

  it.effect("B-20, R-072, R-074: a decision of no known shape halts the run without an exception", () =>
    Effect.gen(function*() {
      for (
        const odd of [
          "?",
          undefined,
          Effect.succeed("?"),
          Effect.succeed(null),
          Effect.succeed({ _tag: "Retry" }),
          Promise.resolve()
        ]
      ) {
        const policy = policyOf(() => odd)
        const { events } = yield* watched(ToolRunner.stream(calling("boom"), all, policy.options))
        assert.strictEqual(policy.asked.length, 1)
        const halt = only(events, "ToolHalt")
        assert.notProperty(halt, "onToolErrorException")
        assert.deepStrictEqual(toolError(halt.result).metadata, { onToolErrorInvalid: true })
        assert.deepStrictEqual((yield* answerOf("boom", policy.options)).halt, {
          haltedReason: "tool_error",
          haltToolCallId: "c0"
        })
      }
    }))

  it.effect("B-21, R-073, R-074: a replacement that cannot be encoded halts the run as encoding_failed", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.succeed(Tool.ErrorDecision.continue(Tools.unwritable)))
      const { events } = yield* watched(ToolRunner.stream(calling("boom"), all, policy.options))
      assert.strictEqual(policy.asked.length, 1)
      assert.strictEqual(toolError(only(events, "ToolHalt").result).reason, "encoding_failed")
    }))

  it.effect("R-075: the error policy runs outside the timeout of the tool, and holds up no other call", () =>
    Effect.gen(function*() {
      const policy = policyOf(() => Effect.as(Effect.sleep(500), Tool.ErrorDecision.continue("decided")))
      const options = { ...policy.options, toolTimeout: 50 }
      const { line, at } = yield* watched(ToolRunner.stream(calling("boom", "slow", "echo"), all, options))
      assert.strictEqual(at, 550)
      assert.strictEqual(policy.asked.length, 2)
      const encoded = line.flatMap(([at, tag, id]) => tag === "ToolResultEncoded" ? [[at, id]] : [])
      assert.deepStrictEqual(encoded, [[0, "c2"], [500, "c0"], [550, "c1"]])
    }))

  it.effect("R-075: a decision to fail fails the run after the siblings' finalizers have run once", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const wait = Tool.make("wait", { parameters: {}, handler: recorder.handler(() => Effect.never) })
      const late = Tool.make("late", {
        parameters: {},
        handler: () => Effect.andThen(Effect.sleep(10), Effect.fail("late"))
      })
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.succeed(Tool.ErrorDecision.fail({ fatal: error }))
      const calls = calling("wait", "late", "wait", "wait")
      const run = ToolRunner.run(calls, [wait, late], { onToolError, maxConcurrency: 3 })
      const { at, value } = yield* elapsed(Effect.flip(run))
      assert.strictEqual(at, 10)
      assert.deepStrictEqual(value, { fatal: "late" })
      assert.deepInclude(yield* recorder.counts("wait"), { starts: 2, interrupts: 2, finalizers: 2, live: 0 })
    }))

  it.effect("R-075: no queued handler starts after a decision to fail", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const echo = Tool.make("echo", { parameters: {}, handler: recorder.handler(() => Effect.succeed("ran")) })
      const onToolError = () => Effect.succeed(Tool.ErrorDecision.fail("over" as const))
      for (const calls of [calling("failS", "echo", "echo"), calling("ghost", "echo")]) {
        const exit = yield* Effect.exit(ToolRunner.run(calls, [Tools.failS, echo], { onToolError, maxConcurrency: 1 }))
        assert.deepStrictEqual(exit, Exit.failCause(Cause.fail("over" as const)))
      }
      assert.strictEqual((yield* recorder.counts("echo")).starts, 0)
    }))
})
