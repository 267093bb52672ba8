/**
 * One call's handler, from its first attempt to its outcome: the executor with what the handler is told, repeated as the
 * tool's schedule says. An executor that breaks its contract costs this one call.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import type * as Plan from "../decide/plan.ts"
import { toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import * as Now from "../now.ts"
import * as Cancellation from "../stop/cancellation.ts"
import type { Workshop } from "./batchEnvironment.ts"

/** Who decides whether a call is attempted again. */
interface Attempts {
  /** The soft stop of a handler that is left to its end: no attempt starts after it. */
  readonly inner: Cancellation.Cancellation | undefined
  /** Whether another attempt may start. What the failed one had to add does not count then. */
  readonly again: () => boolean
}

/** It is called in a step of the call's fiber: what the executor throws there is a crash like any other. */
export const execute = (
  job: Plan.Run,
  context: Tool.CallContext,
  executor: Executor.Service,
  attempts: Attempts
): Effect.Effect<unknown, never, any> => {
  const { retry } = job.tool
  if (retry === undefined) return Now.attempt(() => once(job, context, executor))
  return retrying(
    retry,
    attempts,
    // What an attempt does to its arguments is no concern of the next one.
    (attempt) =>
      once(
        { ...job, args: Json.copy(job.args) },
        attempt === 1 ? context : { ...context, attempt, toolCall: Json.copy(job.call) },
        executor
      )
  )
}

const once = ({ args, call, tool }: Plan.Run, context: Tool.CallContext, executor: Executor.Service) => {
  const given: unknown = executor.execute(tool, args, context)
  const error = Now.isEffect(given) ? undefined : ToolOptions.promisedOutcome("the executor", given, call)
  return Now.asEffect<unknown, never, any>(error === undefined ? given : { _tag: "Error", error })
}

export const crashed = (call: Message.ToolCall, cause: Cause.Cause<unknown>): Tool.Outcome => ({
  _tag: "Error",
  error: toolError(Cause.hasInterruptsOnly(cause) ? "handler_exit" : "handler_raised", call, {
    cause: Cause.squash(cause)
  })
})

export const isFailure = (outcome: unknown): outcome is Tool.Error =>
  Json.isObject(outcome) && outcome["_tag"] === "Error" && "error" in outcome

/**
 * Repeats a failed attempt as the tool's schedule says, which sees what failed; the last failure is the outcome. A stop
 * ends the wait for the next attempt at once.
 */
const retrying = (
  schedule: NonNullable<Tool.Any["retry"]>,
  attempts: Attempts,
  attempt: (number: number) => Effect.Effect<unknown, never, any>
): Effect.Effect<unknown, never, any> =>
  Effect.flatMap(Schedule.toStepWithMetadata(schedule), (step) => {
    const from = (number: number, metadata: Schedule.Metadata): Effect.Effect<unknown, never, any> =>
      Effect.suspend(() => attempt(number)).pipe(
        Effect.provideService(Schedule.CurrentMetadata, metadata),
        Effect.flatMap((outcome) => {
          if (!isFailure(outcome)) return Effect.succeed(outcome)
          const waited = Cancellation.orElse(
            Pull.catchDone(step(outcome.error), isOver),
            attempts.inner,
            () => undefined
          )
          return Effect.flatMap(
            waited,
            (next) => next !== undefined && attempts.again() ? from(number + 1, next) : Effect.succeed(outcome)
          )
        })
      )
    return from(1, Schedule.CurrentMetadata.defaultValue())
  })

/** The schedule grants no further attempt. */
const isOver = (): Effect.Effect<undefined> => Effect.succeed(undefined)

export const spanAttributes = (
  call: Message.ToolCall,
  { settings, stepIndex }: Pick<Workshop<unknown>, "settings" | "stepIndex">
): Readonly<Record<string, unknown>> => ({
  "gen_ai.operation.name": "execute_tool",
  "gen_ai.tool.name": call.name,
  "gen_ai.tool.call.id": call.id,
  "heddle.request.id": settings.requestId,
  "heddle.step.index": stepIndex
})

/** An outcome in one word, for a span. */
export const outcomeName = (outcome: unknown): string => {
  const tag = Json.isObject(outcome) ? outcome["_tag"] : undefined
  return names.get(tag) ?? "invalid"
}

const names: ReadonlyMap<unknown, string> = new Map([
  ["Ok", "ok"],
  ["Error", "error"],
  ["AskUser", "ask_user"],
  ["Halt", "halt"]
])
