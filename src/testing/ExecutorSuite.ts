/**
 * Contract for executors as runnable cases: the outcome of everything a handler can do, and what an executor must not
 * do by itself.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Executor from "../Executor.ts"
import { promise } from "../internal/run/call.ts"
import * as Message from "../Message.ts"
import * as Tool from "../Tool.ts"
import * as Conformance from "./Conformance.ts"
import * as Cases from "./internal/cases.ts"

/** A third-party handler, typed or not. */
type AnyHandler = (args: any, call: Tool.CallContext) => unknown

const toolOf = (handler: AnyHandler | undefined): Tool.Any =>
  Tool.make("subject", { parameters: {}, ...(handler === undefined ? {} : { handler: handler as any }) })

const callContext: Tool.CallContext = {
  id: "call_1",
  name: "subject",
  index: 0,
  stepIndex: 0,
  attempt: 1,
  idempotencyKey: "key_1",
  requestId: "request_1",
  sessionId: null,
  context: { a: 1 },
  toolCall: Message.toolCall("call_1", "subject"),
  progress: () => Effect.void,
  updateContext: () => Effect.void,
  cancelCall: () => Effect.succeed(false),
  promise
}

const execute = (handler: AnyHandler | undefined, args: unknown = {}) =>
  Effect.flatMap(
    Executor.Executor,
    (executor): Effect.Effect<unknown> => executor.execute(toolOf(handler), args, callContext) as Effect.Effect<unknown>
  )

const field = (value: unknown, name: string): unknown =>
  typeof value === "object" && value !== null && name in value ? (value as Record<string, unknown>)[name] : undefined

/** Makes a case: the handler's outcome must equal the given outcome, field by field. */
const yields = (name: string, handler: AnyHandler, expected: Readonly<Record<string, unknown>>) =>
  Cases.of(name, function*() {
    const outcome = yield* execute(handler)
    for (const key of Object.keys(expected)) {
      yield* Conformance.equals(`${key} of the outcome`, field(outcome, key), expected[key])
    }
  })

/** Fails unless the outcome is a `ToolError` with the given reason. Returns the error. */
const toolError = (outcome: unknown, reason: Tool.ToolError["reason"]) =>
  Effect.gen(function*() {
    yield* Conformance.equals("_tag of the outcome", field(outcome, "_tag"), "Error")
    const error = field(outcome, "error")
    yield* Conformance.holds("the error is a ToolError", error instanceof Tool.ToolError)
    yield* Conformance.equals("reason of the error", field(error, "reason"), reason)
    yield* Conformance.equals("toolName of the error", field(error, "toolName"), "subject")
    return error as Tool.ToolError
  })

const boom = new Error("kaboom")

const reported = new Error("no such user")

/** A service for a handler. */
class Greeting extends Context.Service<Greeting, string>()("heddle/testing/ExecutorSuite/Greeting") {}

/** Returns the defect from executing a tool with this handler. Fails if there is no defect. */
const defect = (handler: unknown): Effect.Effect<unknown, Conformance.ConformanceError> =>
  Effect.gen(function*() {
    const exit = yield* Effect.exit(execute(handler as AnyHandler))
    yield* Conformance.holds("the execution dies", Exit.isFailure(exit) && Cause.hasDies(exit.cause))
    return Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
  })

const results: Conformance.Suite = [
  yields("ok: the success of a handler is the outcome's value", () => Effect.succeed({ x: 1 }), {
    _tag: "Ok",
    value: { x: 1 }
  }),
  yields("ok: null is a value", () => Effect.succeed(null), { _tag: "Ok", value: null }),
  yields("error: the error of a handler passes unchanged", () => Effect.fail("nope"), { _tag: "Error", error: "nope" }),
  yields("error: null is an error", () => Effect.fail(null), { _tag: "Error", error: null }),
  Cases.of("error: an exception as an error is not wrapped", function*() {
    const outcome = yield* execute(() => Effect.fail(reported))
    yield* Conformance.equals("_tag of the outcome", field(outcome, "_tag"), "Error")
    yield* Conformance.holds("the error is the same object", field(outcome, "error") === reported)
  }),
  yields("ask-user: a question without options", () => Effect.succeed(Tool.askUser("Which city?")), {
    _tag: "AskUser",
    question: "Which city?",
    opts: []
  }),
  yields("ask-user: a question with options", () => Effect.succeed(Tool.askUser("Which city?", [{ kind: "pick" }])), {
    _tag: "AskUser",
    question: "Which city?",
    opts: [{ kind: "pick" }]
  }),
  yields("halt: a reason and a last result", () => Effect.succeed(Tool.halt("done_early", { v: 1 })), {
    _tag: "Halt",
    reason: "done_early",
    result: { v: 1 }
  })
]

const crashes: Conformance.Suite = [
  Cases.of("raise: a thrown exception gives handler_raised, with the exception as the cause", function*() {
    const died = yield* toolError(yield* execute(() => Effect.die(boom)), "handler_raised")
    yield* Conformance.holds("the cause is the same exception", died.cause === boom)
    const thrown = execute(() => {
      throw boom
    })
    const error = yield* toolError(yield* thrown, "handler_raised")
    yield* Conformance.holds(
      "the cause is the same exception, thrown before the handler returned an Effect",
      error.cause === boom
    )
  }),
  Conformance.make(
    "rejection: a rejected promise of call.promise is an error of the handler, not a crash",
    Effect.forEach([
      () => Promise.reject(boom),
      () => {
        throw boom
      }
    ], (run) =>
      Effect.gen(function*() {
        const outcome = yield* execute((_args, call) => call.promise(run))
        const error = field(outcome, "error")
        yield* Conformance.equals("_tag of the outcome", field(outcome, "_tag"), "Error")
        yield* Conformance.holds("the error is not a ToolError", !(error instanceof Tool.ToolError))
        yield* Conformance.holds("the cause is the same rejection", field(error, "cause") === boom)
      }))
  ),
  Conformance.make(
    "exit: a handler interrupting itself gives handler_exit",
    Effect.flatMap(execute(() => Effect.interrupt), (outcome) => toolError(outcome, "handler_exit"))
  ),
  Cases.of("throw: a thrown value other than an exception gives handler_raised, with a marked cause", function*() {
    const error = yield* toolError(yield* execute(() => Effect.die("x")), "handler_raised")
    yield* Conformance.equals("the cause", error.cause, { _tag: "Thrown", value: "x" })
  }),
  Cases.of("invalid return: a return value other than an Effect is refused", function*() {
    const error = yield* toolError(yield* execute(() => 42), "invalid_return")
    yield* Conformance.equals("the cause", error.cause, 42)
  }),
  Conformance.make(
    "invalid return: a malformed question or halt is refused",
    Effect.forEach([
      Tool.askUser(123 as any),
      Tool.askUser("Which city?", "no list" as any),
      Tool.halt(123 as any, null),
      Tool.halt("", null)
    ], (outcome) =>
      Effect.gen(function*() {
        const error = yield* toolError(yield* execute(() => Effect.succeed(outcome)), "invalid_return")
        yield* Conformance.holds("the cause is the returned value", error.cause === outcome)
      }))
  ),
  Conformance.make(
    "no handler: a tool without a handler gives not_found",
    Effect.flatMap(execute(undefined), (outcome) => toolError(outcome, "not_found"))
  ),
  Cases.of(
    "misuse: a handler with too many parameters, and a handler other than a function, are two different defects",
    function*() {
      const excess = yield* defect((_args: unknown, _call: unknown, _more: unknown) => Effect.void)
      const kind = yield* defect({ module: "m", function: "f" })
      yield* Conformance.holds("the two defects differ in kind", field(excess, "name") !== field(kind, "name"))
    }
  )
]

const conduct: Conformance.Suite = [
  Cases.of("context: the handler receives the arguments and the call context unchanged", function*() {
    const args = { n: 1 }
    const seen: Array<unknown> = []
    yield* execute((...given) => Effect.sync(() => seen.push(...given)), args)
    yield* Conformance.equals("number of handler arguments", seen.length, 2)
    yield* Conformance.holds("the arguments are the same object", seen[0] === args)
    yield* Conformance.holds("the call context is the same object", seen[1] === callContext)
  }),
  Cases.of("services: the handler runs with the caller's services", function*() {
    const outcome = yield* execute(() => Greeting).pipe(Effect.provideService(Greeting, "hello"))
    yield* Conformance.equals("value of the outcome", field(outcome, "value"), "hello")
  }),
  Cases.of("once: running the execution calls the handler once, also after a failure", function*() {
    let calls = 0
    const execution = execute(() => {
      calls++
      return Effect.fail("nope")
    })
    yield* Conformance.equals("calls before the run", calls, 0)
    yield* execution
    yield* Conformance.equals("calls after the run", calls, 1)
  }),
  Cases.of("scope: the handler's resources are closed once, before its outcome is returned", function*() {
    let closed = 0
    const close = Effect.sync(() => {
      closed++
    })
    yield* Effect.scoped(Effect.gen(function*() {
      yield* execute(() => Effect.addFinalizer(() => close))
      yield* Conformance.equals("finalizers after the outcome", closed, 1)
    }))
    yield* Conformance.equals("finalizers after the caller's scope", closed, 1)
  }),
  Cases.of("interruption: interrupting the caller interrupts the handler, and gives no outcome", function*() {
    const started = yield* Deferred.make<void>()
    let stopped = 0
    const handler = () =>
      Deferred.succeed(started, undefined).pipe(
        Effect.andThen(Effect.never),
        Effect.onInterrupt(() => Effect.sync(() => stopped++))
      )
    const fiber = yield* Effect.forkChild(execute(handler))
    yield* Deferred.await(started)
    yield* Fiber.interrupt(fiber)
    const exit = yield* Fiber.await(fiber)
    yield* Conformance.equals("times the handler was stopped", stopped, 1)
    yield* Conformance.holds(
      "the execution is interrupted",
      Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause)
    )
  })
]

/**
 * Contract for executors. Run it with your own layer:
 * `Conformance.register(ExecutorSuite.suite, Executor.layer(mine), it)`.
 *
 * **Example** (The executor that is there by default)
 *
 * ```ts import.meta.vitest
 * import { Conformance, ExecutorSuite } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * await Effect.runPromise(Conformance.failures(ExecutorSuite.suite, Layer.empty)) // => []
 * ```
 *
 * @category suites
 */
export const suite: Conformance.Suite = [...results, ...crashes, ...conduct]
