/**
 * One call and its outcome: what the default executor makes of everything a handler can do, and what the runner makes
 * of executors of other people.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Executor, Message, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { callOf } from "../support/calls.ts"

const toolOf = (name: string, handler?: (args: never, call: Tool.CallContext) => unknown) =>
  Tool.make(name, { parameters: {}, ...(handler === undefined ? {} : { handler: handler as never }) })

const execute = (
  tool: Tool.Any,
  args: unknown = {},
  call: Partial<Tool.CallContext> = {}
): Effect.Effect<Tool.Outcome> =>
  Executor.direct.execute(tool, args, callOf(tool.name, call)) as Effect.Effect<Tool.Outcome>

/** The ToolError that a call ended with. */
const crash = (tool: Tool.Any) =>
  Effect.map(execute(tool), (outcome) => {
    assert.strictEqual(outcome._tag, "Error")
    const error = (outcome as Tool.Error).error
    assert.instanceOf(error, Tool.ToolError)
    return error as Tool.ToolError
  })

/** The defect that executing a tool dies with. */
const defect = (tool: Tool.Any) =>
  Effect.map(Effect.exit(execute(tool)), (exit) => {
    assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause))
    return Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
  })

const notFound = Symbol.for("not_found")
const kaboom = new Error("kaboom")

describe("Executor: the outcome of a handler", () => {
  it.effect("R-001: results and failures of a handler are outcomes, never failures of the caller", () =>
    Effect.gen(function*() {
      const handlers: ReadonlyArray<readonly [tag: string, () => unknown]> = [
        ["Ok", () => Effect.succeed({ x: 1 })],
        ["Error", () => Effect.fail(notFound)],
        ["Error", () => Effect.die(kaboom)],
        ["Error", () => Effect.interrupt],
        ["Error", () => 42],
        ["Error", () => undefined],
        ["Error", () => Promise.resolve(42)],
        ["AskUser", () => Effect.succeed(Tool.askUser("Which city?"))],
        ["Halt", () => Effect.succeed(Tool.halt("done_early", { v: 1 }))]
      ]
      for (const [tag, handler] of handlers) {
        const exit = yield* Effect.exit(execute(toolOf("any", handler)))
        assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "no outcome", tag)
      }
    }))

  it.effect("R-001: a handler may return an outcome, and data shaped like an outcome stays data", () =>
    Effect.gen(function*() {
      const returning = (value: unknown) => execute(toolOf("any", () => Effect.succeed(value)))
      assert.deepInclude(yield* returning(Tool.ok(null)), { _tag: "Ok", value: null })
      assert.deepInclude(yield* returning(Tool.error("nope")), { _tag: "Error", error: "nope" })
      const lookAlike = { _tag: "Halt", reason: "paid", result: { by: "card" } }
      assert.deepStrictEqual(yield* returning(lookAlike), { _tag: "Ok", value: lookAlike })
    }))

  it.effect("S-01, R-002: a tool without a handler ends as not_found", () =>
    Effect.gen(function*() {
      const error = yield* crash(toolOf("bare"))
      assert.deepInclude(error, { reason: "not_found", toolName: "bare" })
      assert.strictEqual(error.message, "tool error (bare): not_found")
    }))

  it.effect("S-02, R-006: a handler that raises ends as handler_raised, with the raised value as its cause", () =>
    Effect.gen(function*() {
      const raising: ReadonlyArray<() => unknown> = [
        () => Effect.die(kaboom),
        () => {
          throw kaboom
        },
        () =>
          Effect.sync(() => {
            throw kaboom
          }),
        () => Effect.promise(() => Promise.reject(kaboom))
      ]
      for (const handler of raising) {
        const error = yield* crash(toolOf("boom", handler))
        assert.strictEqual(error.reason, "handler_raised")
        assert.strictEqual(error.cause, kaboom)
        assert.strictEqual(error.message, "tool error (boom): handler_raised")
      }
    }))

  it.effect("S-03, R-008: a thrown value other than an Error is kept, marked as thrown", () =>
    Effect.gen(function*() {
      for (const value of ["x", null, undefined, { message: "looks like one" }]) {
        const error = yield* crash(toolOf("thrower", () => {
          throw value
        }))
        assert.strictEqual(error.reason, "handler_raised")
        assert.deepStrictEqual(error.cause, { _tag: "Thrown", value })
      }
    }))

  it.effect("S-04, R-007: a handler that interrupts itself ends as handler_exit, with the reason", () =>
    Effect.gen(function*() {
      const joining = () => Effect.flatMap(Effect.forkChild(Effect.interrupt), Fiber.join)
      for (const handler of [() => Effect.interrupt, joining]) {
        const error = yield* crash(toolOf("exits", handler))
        assert.strictEqual(error.reason, "handler_exit")
        assert.match(String(error.cause), /interrupt/i)
      }
    }))

  it.effect("S-04: interruption by the caller stops the handler and yields no outcome", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const outcomes: Array<unknown> = []
      const tool = toolOf("endless", recorder.handler(() => Effect.never))
      const execution = Effect.map(execute(tool), (outcome) => outcomes.push(outcome))
      const fiber = yield* Effect.forkChild(execution)
      yield* recorder.started("endless")
      yield* Fiber.interrupt(fiber)
      const exit = yield* Fiber.await(fiber)
      assert.isTrue(Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause))
      assert.deepStrictEqual(outcomes, [])
      assert.deepInclude(yield* recorder.counts(), { starts: 1, live: 0, interrupts: 1, finalizers: 1 })
    }))

  it.effect("S-05, R-009: an illegal result ends as invalid_return, with the value as its cause", () =>
    Effect.gen(function*() {
      assert.deepInclude(yield* crash(toolOf("weird", () => 42)), { reason: "invalid_return", cause: 42 })
      const malformed = [
        Tool.askUser(123 as any),
        Tool.askUser("Which city?", "pick" as any),
        Tool.askUser("Which city?", null as any),
        Tool.halt(123 as any, "x"),
        Tool.halt("", "x")
      ]
      for (const value of malformed) {
        const error = yield* crash(toolOf("weird", () => Effect.succeed(value)))
        assert.strictEqual(error.reason, "invalid_return")
        assert.strictEqual(error.cause, value)
      }
    }))

  it.effect("R-009: null and undefined are legal results and reports", () =>
    Effect.gen(function*() {
      for (const value of [null, undefined]) {
        assert.deepStrictEqual(yield* execute(toolOf("any", () => Effect.succeed(value))), { _tag: "Ok", value })
        assert.deepStrictEqual(yield* execute(toolOf("any", () => Effect.fail(value))), { _tag: "Error", error: value })
      }
      const halted = yield* execute(toolOf("any", () => Effect.succeed(Tool.halt("done", null))))
      assert.deepInclude(halted, { _tag: "Halt", result: null })
    }))

  it.effect("S-06, R-010: a failure reported by a handler passes unchanged, also an error object", () =>
    Effect.gen(function*() {
      class NoSuchUser extends Data.TaggedError("NoSuchUser")<{ readonly id: number }> {}
      const own = new Tool.ToolError({ reason: "timeout", toolName: "inner" })
      for (const reason of [notFound, "nope", kaboom, new NoSuchUser({ id: 7 }), own]) {
        const outcome = yield* execute(toolOf("fail", () => Effect.fail(reason)))
        assert.strictEqual(outcome._tag, "Error")
        assert.strictEqual((outcome as Tool.Error).error, reason)
      }
    }))

  it.effect("S-07, R-003: a handler receives the very arguments and call context, with nothing added", () =>
    Effect.gen(function*() {
      const args = { city: "Oslo" }
      const context = { a: 1 }
      const seen: Array<unknown> = []
      const tool = toolOf("two", (given: unknown, call: Tool.CallContext) =>
        Effect.sync(() => {
          seen.push(given, call.context, call.sessionId, call.requestId)
        }))
      yield* execute(tool, args, { context })
      assert.strictEqual(seen[0], args)
      assert.strictEqual(seen[1], context)
      assert.deepStrictEqual(seen.slice(2), [null, null])
      const one = yield* execute(toolOf("one", (given: unknown) => Effect.succeed(given)), args)
      assert.deepStrictEqual(one, { _tag: "Ok", value: { city: "Oslo" } })
    }))

  it.effect("S-08, R-005: a handler that takes three arguments, or is no function, is a defect that names the tool", () =>
    Effect.gen(function*() {
      const arity = yield* defect(toolOf("three", ((_a: unknown, _b: unknown, _c: unknown) => Effect.void) as never))
      assert.instanceOf(arity, RangeError)
      assert.match((arity as Error).message, /handler of tool "three" takes 3 arguments.*\(args, call\)/)
      const kind = yield* defect(toolOf("pair", { module: "m", function: "f" } as never))
      assert.instanceOf(kind, TypeError)
      assert.match((kind as Error).message, /handler of tool "pair" must be a function.*got: object/)
    }))

  it.effect("R-011: an executor neither repeats a handler nor bounds its time", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const failing = Tool.make("failing", {
        parameters: {},
        retry: Schedule.recurs(3),
        timeout: "1 second",
        handler: recorder.handler(() => Effect.andThen(Effect.sleep("1 hour"), Effect.fail("late")))
      })
      const fiber = yield* Effect.forkChild(execute(failing))
      yield* recorder.started("failing")
      yield* TestClock.adjust("1 hour")
      assert.deepInclude(yield* Fiber.join(fiber), { _tag: "Error", error: "late" })
      assert.strictEqual(yield* Clock.currentTimeMillis, 3_600_000)
      assert.deepInclude(yield* recorder.counts("failing"), { starts: 1, ends: 1, finalizers: 1 })
    }))

  it.effect("each call has its own scope, which closes before its outcome is returned", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const tool = toolOf("scoped", () =>
        Effect.as(Effect.addFinalizer(() => Effect.sync(() => log.push("closed"))), "opened"))
      yield* Effect.scoped(Effect.gen(function*() {
        log.push((yield* execute(tool) as Effect.Effect<{ readonly value: string }>).value)
      }))
      assert.deepStrictEqual(log, ["closed", "opened"])
      const broken = toolOf("broken", () =>
        Effect.addFinalizer(() => Effect.die(kaboom)))
      assert.deepInclude(yield* crash(broken), { reason: "handler_raised", cause: kaboom })
    }))
})

class Tag extends Context.Service<Tag, string>()("test/Tag") {}

/** An executor that says its name. */
const named = (name: string): Executor.Service => ({
  execute: ((tool: Tool.Any) => Effect.succeed(Tool.ok(`${name} ran ${tool.name}`))) as never
})

const echo = Tool.make("echo", { parameters: { x: Schema.Finite }, handler: (args) => Effect.succeed(args) })

const call = (id: string, name: string, args: Record<string, unknown> = {}) => Message.toolCall(id, name, args)

const contents = (result: ToolRunner.Result) => result.messages.map((message) => message.content)

describe("Executor in a run", () => {
  const one = Effect.map(ToolRunner.run([call("c0", "echo", { x: 1 })], [echo]), contents)

  it.effect("R-012: the nearest executor runs a call, and without a provided executor the default runs the call", () =>
    Effect.gen(function*() {
      const [app, nearer] = [Executor.layer(named("app")), Executor.layer(named("call"))]
      assert.deepStrictEqual(yield* one, ["{\"x\":1}"])
      assert.deepStrictEqual(yield* Effect.provide(one, app), ["app ran echo"])
      assert.deepStrictEqual(yield* one.pipe(Effect.provide(nearer), Effect.provide(app)), ["call ran echo"])
      assert.strictEqual(yield* Executor.Executor, Executor.direct)
    }))

  it.effect("R-004: a handler receives its call, its run and the caller's context", () =>
    Effect.gen(function*() {
      const seen: Array<Tool.CallContext> = []
      const tell = toolOf("tell", (_args: unknown, context: Tool.CallContext) => Effect.sync(() => seen.push(context)))
      const calls = [call("c0", "echo", { x: 1 }), call("c1", "tell", { y: 2 })]
      const options = { context: { a: 1 }, requestId: "req_1", sessionId: "s_1", stepIndex: 3 }
      yield* ToolRunner.run(calls, [echo, tell], options)
      assert.lengthOf(seen, 1)
      const { context, requestId, sessionId, toolCall, ...rest } = seen[0]!
      assert.deepStrictEqual({ context, requestId, sessionId }, {
        context: { a: 1 },
        requestId: "req_1",
        sessionId: "s_1"
      })
      assert.deepStrictEqual(toolCall, calls[1])
      assert.deepInclude(rest, { id: "c1", name: "tell", index: 1, stepIndex: 3, attempt: 1 })
      assert.isNotEmpty(rest.idempotencyKey)
    }))

  it.effect("R-013: a value of an executor that is no outcome reaches the model as invalid_return", () =>
    Effect.gen(function*() {
      for (const odd of ["odd", 42, null, undefined, {}, { _tag: "Ok" }, { _tag: "Halt", reason: "", result: 1 }]) {
        const layer = Executor.layer({ execute: (() => Effect.succeed(odd)) as never })
        const result = yield* Effect.provide(ToolRunner.run([call("c0", "echo", { x: 1 })], [echo]), layer)
        assert.match(contents(result)[0] as string, /invalid_return/)
        assert.deepInclude(result.messages[0], { toolCallId: "c0", isError: true })
      }
    }))

  it.effect("R-014: an executor that breaks fails one call, and no other", () =>
    Effect.gen(function*() {
      const breaks: ReadonlyArray<readonly [reason: string, () => unknown]> = [
        ["handler_raised", () => Effect.die(kaboom)],
        ["handler_raised", () => Effect.fail("a failure that its type denies")],
        ["handler_raised", () => {
          throw kaboom
        }],
        ["handler_exit", () => Effect.interrupt],
        ["invalid_return", () => 42]
      ]
      const calls = [call("c0", "echo", { x: 0 }), call("c1", "echo", { x: 1 }), call("c2", "echo", { x: 2 })]
      for (const [reason, broken] of breaks) {
        const execute = (tool: Tool.Any, args: { readonly x: number }, context: Tool.CallContext) =>
          args.x === 1 ? broken() : Executor.direct.execute(tool, args, context)
        const layer = Executor.layer({ execute: execute as never })
        const result = yield* Effect.provide(ToolRunner.run(calls, [echo]), layer)
        assert.deepStrictEqual(result.messages.map((message) => message.toolCallId), ["c0", "c1", "c2"])
        assert.strictEqual(contents(result)[0], "{\"x\":0}")
        assert.include(contents(result)[1] as string, reason)
        assert.strictEqual(contents(result)[2], "{\"x\":2}")
      }
    }))

  it.effect("R-012, R-003: a custom executor receives decoded arguments, the call context and the services", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const tagged = Tool.make("tagged", {
        parameters: { at: Schema.FiniteFromString },
        handler: ({ at }) => Effect.map(Tag, (tag) => `${tag} ${at + 1}`)
      })
      const logging = Executor.layer({
        execute: (tool, args, context) =>
          Effect.andThen(
            Effect.sync(() => log.push(`${context.id} ${JSON.stringify(args)}`)),
            Executor.direct.execute(tool, args, context)
          )
      })
      const result = yield* ToolRunner.run([call("c0", "tagged", { at: "41" })], [tagged]).pipe(
        Effect.provideService(Tag, "no."),
        Effect.provide(logging)
      )
      assert.deepStrictEqual(contents(result), ["no. 42"])
      assert.deepStrictEqual(log, ["c0 {\"at\":41}"])
    }))
})
