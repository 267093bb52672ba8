/**
 * The journal of the calls of a run, as the calls see it, in a Context reference. It knows the calls of a resumed
 * turn, and records the outcome of each call before anything follows from it. For a call that had started when its
 * process died, and whose effect is unknown, an executor calls `resolveUnknown`, which follows the policy of the
 * call's tool.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as Plan from "../decide/plan.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import type { Wait } from "../permits/permits.ts"

/** The recorded part of a call. */
export interface Replayed {
  /**
   * Tells whether the handler had started. The call has then passed its gates and its approval, which are not asked
   * again.
   */
  readonly hasStarted: boolean
  /** Tells whether the effect of the call is unknown: it is not reported as a call that did not run. */
  readonly isUnknown?: boolean
  /** The answer. A call with an answer does not run again. */
  readonly answer?: Answers.Answer
  /** The suspension. A suspended call keeps waiting. */
  readonly waits?: Event.Of<"AskUserRequested" | "ToolApprovalRequested" | "ToolSuspended">
  /** The key of the call. */
  readonly idempotencyKey?: string | undefined
  /** Number of started attempts. */
  readonly attempt: number
  /** The version that the tool had for the run that asked for the call. */
  readonly version?: string | undefined
  /** The answer that the next attempt gets, and the state that the last one left. */
  readonly resumed?: Tool.CallContext["resumed"] | undefined
}

/** A call that waits for its turn: what it waits for, and since when, in milliseconds since 1970. */
export interface Waits extends Wait {
  readonly id: string
  readonly since: number
}

/** The journal of the calls of a run. */
export interface Service {
  /** Returns the recorded part of a call, if there is one. Any other call runs as usual. */
  readonly find: (call: Message.ToolCall, place: Place) => Replayed | undefined
  /** Records the answer of a call. Nothing follows from the answer before this is done. */
  readonly answered: (call: Message.ToolCall, answer: Answers.Answer) => Effect.Effect<void>
  /** Records a suspension of a call. */
  readonly waits: (
    call: Message.ToolCall,
    event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">
  ) => Effect.Effect<void>
  /** Records that an attempt of a call failed and that another one is granted. */
  readonly attemptFailed: (call: Message.ToolCall) => Effect.Effect<void>
  /** Takes the function that returns the calls which wait for their turn, of the batch that begins. */
  readonly working?: (waits: () => ReadonlyArray<Waits>) => void
}

/** The position of a call: a model may use the same id in several turns. */
interface Place {
  readonly requestId: string
  readonly stepIndex: number
  /** Tells whether the call was approved earlier, and a run begins with it. */
  readonly isApproved: boolean
}

/** The journal of the calls of the run. Runs that handlers start have journals of their own. */
export const CurrentCalls: Context.Reference<Service | undefined> = Context.Reference<Service | undefined>(
  "heddle/internal/Calls",
  { defaultValue: () => undefined }
)

/** Returns the services without the journal of calls, for handlers. */
export const withoutCalls = <R>(services: Context.Context<R>): Context.Context<R> =>
  Context.get(services, CurrentCalls) === undefined ? services : Context.add(services, CurrentCalls, undefined)

/**
 * Returns the fields of a resumed call that its handler receives: the recorded key, the number of the next attempt, and
 * the answer to its question.
 */
export const recalled = ({ attempt, idempotencyKey, resumed }: Replayed) => ({
  ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
  ...(resumed === undefined ? {} : { resumed }),
  attempt: attempt + 1
})

/** Returns the event of the start of a call, also of one that had started before its run was resumed. */
export const startOf = (
  { arguments: args, id, name }: Message.ToolCall,
  known: Replayed | undefined,
  { callFacts }: Pick<Policy.Policy, "callFacts">
): Event.Of<"ToolExecutionStarted"> => {
  const event: Types.Mutable<Event.Of<"ToolExecutionStarted">> = {
    _tag: "ToolExecutionStarted",
    id,
    name,
    arguments: args ?? {}
  }
  if (known?.hasStarted !== true) return event
  if (known.attempt > 1 && callFacts === "told") event.attempt = known.attempt
  event.replayed = true
  return event
}

// Calls whose effect is unknown.

export const unknownEffect = (call: Pick<Message.ToolCall, "id" | "name">): Tool.Error<Tool.ToolError> => ({
  _tag: "Error",
  error: toolError("unknown_effect", call, {
    detail: "the run was interrupted before the result of the call was recorded: it may have had its effect, or not"
  })
})

/** Limit of the characters of the arguments in the question about a call. */
const longestArguments = 1_000

const answers = ["It had its effect", "It had no effect"]

/** Returns the question about a call, which waits for the verdict of a person. */
const asked = ({ id, name, toolCall }: Tool.CallContext): ToolOutcomes.Suspended => {
  const json = JSON.stringify(toolCall.arguments)
  const shown = json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
  const question = `The run was interrupted during the call ${name}(${shown}). Did the call have its effect?`
  const suspension: Event.Suspension = { id, kind: "unknown", toolCall, question, opts: answers }
  return ToolOutcomes.suspended([suspension])
}

type Resolved = Effect.Effect<Tool.Outcome | ToolOutcomes.Suspended, never, any>

/** Returns the outcome that `lookUp` of the tool finds. If it fails, nothing is found. */
const lookedUp = (
  lookUp: NonNullable<Declared.Any["lookUp"]>,
  args: unknown,
  call: Tool.CallContext,
  run: Resolved
): Resolved =>
  Effect.matchCauseEffect(Effect.scoped(Effect.suspend(() => found(lookUp(args, call)))), {
    onSuccess: (option) => Option.isNone(option) ? run : Effect.succeed(outcomeOf(option.value)),
    onFailure: (cause) => Effect.as(Answers.warnOfLookUp(call, cause), unknownEffect(call))
  })

const found = (
  given: Effect.Effect<Option.Option<unknown>, unknown, any>
): Effect.Effect<Option.Option<unknown>, unknown, any> =>
  Effect.flatMap(ToolOptions.toEffect<unknown, unknown, any>(given, "lookUp"), (option) =>
    Option.isOption(option)
      ? Effect.succeed(option)
      : Effect.die(new TypeError("lookUp must return an Effect of an Option: Option.some(result) or Option.none()")))

/** Returns the outcome of a handler's value: a plain value is a result, and a question or a halt keeps its kind. */
const outcomeOf = (value: unknown): Tool.Outcome => ToolOutcomes.isBranded(value) ? value : { _tag: "Ok", value }

/**
 * Resolves a call whose effect is unknown: by `lookUp` of its tool, by `afterCrash`, by the flags, or else by
 * `otherwise`. The executor returns this outcome for the first attempt of such a call; `executor` runs the handler
 * where the call is tried again.
 */
export const resolveUnknown = (
  tool: Tool.Any,
  args: unknown,
  call: Tool.CallContext,
  executor: Executor.Service,
  otherwise?: Declared.AfterCrash
): Resolved => {
  const run: Resolved = Effect.suspend(() => executor.execute(tool, args, call))
  if (tool.lookUp !== undefined) return lookedUp(tool.lookUp, args, call, run)
  return Effect.flatMap(Plan.afterCrashOf(tool, args, otherwise), (policy): Resolved => {
    switch (policy) {
      case "ask":
        return Effect.sync(() => asked(call))
      case "fail":
        return Effect.sync(() => ToolOutcomes.endingRun(unknownEffect(call)))
      case "retry":
        return run
      case "report":
        return Effect.sync(() => unknownEffect(call))
    }
  })
}
