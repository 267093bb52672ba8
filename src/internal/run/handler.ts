/**
 * One call's handler, from its first attempt to its outcome: what the handler is given, the executor that runs it, and
 * further attempts as the tool's schedule says. An executor that breaks its contract costs this one call.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import { described } from "../answer/errorFields.ts"
import type * as Plan from "../decide/plan.ts"
import { toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as Cancellation from "../stop/cancellation.ts"

/** What the handlers of a step know of their run. */
interface Settings {
  readonly context: Json.JsonObject
  readonly requestId: string
  readonly sessionId: string | null
}

/** What a handler is given about its call. */
export const callContext = (
  { call, index }: Plan.Run,
  { context, requestId, sessionId }: Settings,
  stepIndex: number,
  progress: (value: unknown) => void,
  updateContext: (values: Json.JsonObject) => void
): Tool.CallContext => ({
  id: call.id,
  name: call.name,
  index,
  stepIndex,
  attempt: 1,
  idempotencyKey: `${requestId}:${stepIndex}:${index}:${call.id}`,
  requestId,
  sessionId,
  context,
  toolCall: copyOf(call),
  progress: (value) => Effect.sync(() => progress(value)),
  updateContext: (values: unknown) =>
    Effect.sync(() => {
      if (!Json.isObject(values)) throw new TypeError("call.updateContext takes an object of context values")
      updateContext(values)
    }),
  promise
})

const copyOf = (call: Message.ToolCall): Message.ToolCall => ({
  ...call,
  arguments: Json.copy(call.arguments),
  metadata: Json.copy(call.metadata)
})

/**
 * Runs a Promise API. Interruption fires the signal and then waits until the promise has settled, so that nothing of it
 * is alive when the call has ended.
 */
export const promise = <A>(run: (signal: AbortSignal) => PromiseLike<A>): Effect.Effect<A, Cause.UnknownError> =>
  Effect.callback<A, Cause.UnknownError>((resume) => {
    const controller = new AbortController()
    // An API that throws has rejected.
    const settled = new Promise<A>((resolve) => resolve(run(controller.signal))).then(
      (value) => resume(Effect.succeed(value)),
      (cause: unknown) => resume(Effect.fail(new Cause.UnknownError(cause, rejection(cause))))
    )
    return Effect.suspend(() => {
      controller.abort()
      return Effect.promise(() => settled)
    })
  })

const rejection = (cause: unknown): string =>
  cause === undefined || cause === null ? "the promise was rejected without a reason" : described(cause).text

/**
 * What the executor makes of the handler. `inner` is the soft stop of a handler that is left to its end: no attempt
 * starts after it. `again` says whether another attempt may start.
 */
export const execute = (
  job: Plan.Run,
  context: Tool.CallContext,
  executor: Executor.Service,
  inner: Cancellation.Cancellation | undefined,
  again: () => boolean
): Effect.Effect<unknown, never, any> => {
  const { retry } = job.tool
  if (retry === undefined) return ToolOptions.attempt(() => once(job, context, executor))
  const attempt = (number: number) =>
    Effect.suspend(() =>
      once(
        // What an attempt does to its arguments is no concern of the next one.
        { ...job, args: Json.copy(job.args) },
        number === 1 ? context : { ...context, attempt: number, toolCall: copyOf(job.call) },
        executor
      )
    )
  return retrying(retry, inner, again, attempt)
}

const once = (
  { args, call, tool }: Plan.Run,
  context: Tool.CallContext,
  executor: Executor.Service
): Effect.Effect<unknown, never, any> => {
  const given: unknown = executor.execute(tool, args, context)
  if (Effect.isEffect(given)) return given as Effect.Effect<unknown, never, any>
  const error = ToolOptions.promisedOutcome("the executor", given, call)
  return Effect.succeed(error === undefined ? given : { _tag: "Error", error })
}

/**
 * Repeats a failed attempt as the tool's schedule says, which sees what failed; the last failure is the outcome. A stop
 * ends the wait for the next attempt at once.
 */
const retrying = (
  schedule: NonNullable<Tool.Any["retry"]>,
  inner: Cancellation.Cancellation | undefined,
  again: () => boolean,
  attempt: (number: number) => Effect.Effect<unknown, never, any>
): Effect.Effect<unknown, never, any> =>
  Effect.flatMap(Schedule.toStepWithMetadata(schedule), (step) => {
    const from = (number: number, metadata: Schedule.Metadata): Effect.Effect<unknown, never, any> =>
      Effect.flatMap(Effect.provideService(attempt(number), Schedule.CurrentMetadata, metadata), (outcome) => {
        if (!isFailure(outcome)) return Effect.succeed(outcome)
        const granted = Pull.catchDone(step(outcome.error), () => Effect.succeed(undefined))
        return Effect.flatMap(
          Cancellation.orElse(granted, inner, () => undefined),
          (next) => next !== undefined && again() ? from(number + 1, next) : Effect.succeed(outcome)
        )
      })
    return from(1, Schedule.CurrentMetadata.defaultValue())
  })

/** The outcome of an executor that failed, died or was interrupted. */
export const crashed = (call: Message.ToolCall, cause: Cause.Cause<unknown>): Tool.Outcome => ({
  _tag: "Error",
  error: toolError(Cause.hasInterruptsOnly(cause) ? "handler_exit" : "handler_raised", call, {
    cause: Cause.squash(cause)
  })
})

export const isFailure = (outcome: unknown): outcome is Tool.Error =>
  Json.isObject(outcome) && outcome["_tag"] === "Error" && "error" in outcome
