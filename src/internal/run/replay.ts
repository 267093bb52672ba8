/**
 * The calls of a turn that is taken up after its process ended. What is known of them travels as a Context reference: a
 * call that had started has passed its gates, one that was answered has that answer, and one that is tried again keeps its
 * key and counts on. An executor gives the outcomes that were recorded; for a call whose handler had started, and of which
 * nothing tells whether it had its effect, it asks `resolveUnknown`, which acts by the policy of the call's tool.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Event from "../../Event.ts"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as ErrorFields from "../answer/errorFields.ts"
import type { Tail } from "../answer/openCalls.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"

/** What is known of a call from before. */
export interface Replayed {
  /** Whether its handler had started. Its gates and its approval were passed then, and are not asked again. */
  readonly hasStarted: boolean
  /** Whether its handler had ended. The executor then gives the recorded outcome. */
  readonly hasEnded?: boolean
  /** The events with which a timeout or a cancellation had answered it. It has that answer again, and does not run. */
  readonly answer?: {
    readonly completed: Event.Of<"ToolExecutionCompleted">
    readonly tail: Tail
  }
  /** The key that its handler was given. */
  readonly idempotencyKey?: string
  /** The last attempt that had started. A call that had not ended goes on with the next one. */
  readonly attempt?: number
}

/** Knows the calls of a turn that is taken up. A call of which it knows nothing runs like any other. */
export interface Service {
  readonly find: (call: Message.ToolCall, place: Place) => Replayed | undefined
}

/** Where a call stands: a model may use an id in one turn after the other. */
interface Place {
  readonly requestId: string
  readonly stepIndex: number
  /** Whether it is one of the calls that were approved before, with which a run begins. */
  readonly isApproved: boolean
}

/** What is known of the calls of the run. The runs that handlers start have none of it. */
export const CurrentReplay: Context.Reference<Service | undefined> = Context.Reference<Service | undefined>(
  "heddle/internal/Replay",
  { defaultValue: () => undefined }
)

/** The services of handlers, in whose runs no call is replayed. */
export const withoutReplay = <R>(services: Context.Context<R>): Context.Context<R> =>
  Context.get(services, CurrentReplay) === undefined ? services : Context.add(services, CurrentReplay, undefined)

/** What a handler is given about its call in place of the usual: the recorded key, and the attempt that comes next. */
export const recalled = ({ attempt = 0, hasEnded, idempotencyKey }: Replayed) => ({
  ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
  ...(attempt === 0 ? {} : { attempt: hasEnded === true ? attempt : attempt + 1 })
})

// Calls of which it is not known whether they had their effect.

export const unknownEffect = (call: Pick<Message.ToolCall, "id" | "name">): Tool.Error<Tool.ToolError> => ({
  _tag: "Error",
  error: toolError("unknown_effect", call, {
    detail: "the process that ran the call ended before its result was known: it may have had its effect, or not"
  })
})

/** The most characters of its arguments that the question about a call shows. */
const longestArguments = 1_000

const answers = ["It had its effect", "It had no effect"]

/** The question about a call. What the person answers is the result of the call. */
const asked = ({ name, toolCall }: Tool.CallContext): Tool.AskUser => {
  const json = JSON.stringify(toolCall.arguments)
  const shown = json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
  const question = `The process ended while the call ${name}(${shown}) ran. Did the call have its effect?`
  return ToolOutcomes.brand(ToolOutcomes.question(question, answers))
}

type Resolved = Effect.Effect<Tool.Outcome, never, any>

/** What a tool finds of the call. A search that fails finds out nothing. */
const lookedUp = (
  lookUp: NonNullable<Declared.Any["lookUp"]>,
  args: unknown,
  call: Tool.CallContext,
  run: Resolved
): Resolved =>
  Effect.matchCauseEffect(Effect.scoped(Effect.suspend(() => found(lookUp(args, call)))), {
    onSuccess: (option) => Option.isNone(option) ? run : Effect.succeed(outcomeOf(option.value)),
    onFailure: (cause) => Effect.as(ErrorFields.warnOfLookUp(call, cause), unknownEffect(call))
  })

const found = (
  given: Effect.Effect<Option.Option<unknown>, unknown, any>
): Effect.Effect<Option.Option<unknown>, unknown, any> =>
  Effect.flatMap(ToolOptions.toEffect<unknown, unknown, any>(given, "lookUp"), (option) =>
    Option.isOption(option)
      ? Effect.succeed(option)
      : Effect.die(new TypeError("lookUp must return an Effect of an Option: Option.some(result) or Option.none()")))

/** As of a handler: a value is a result, and a question or a halt is that. */
const outcomeOf = (value: unknown): Tool.Outcome => ToolOutcomes.isBranded(value) ? value : { _tag: "Ok", value }

/**
 * What a call comes to of which it is not known whether it had its effect: by `lookUp` of its tool, by `unknown`, by the
 * flags, or else by `otherwise`. It is what the executor gives for the first attempt of such a call; `executor` runs the handler where that is the
 * answer.
 */
export const resolveUnknown = (
  tool: Tool.Any,
  args: unknown,
  call: Tool.CallContext,
  executor: Executor.Service,
  otherwise?: Declared.Unknown
): Resolved => {
  const run: Resolved = Effect.suspend(() => executor.execute(tool, args, call))
  if (tool.lookUp !== undefined) return lookedUp(tool.lookUp, args, call, run)
  switch (ToolOptions.unknownPolicyOf(tool, otherwise)) {
    case "ask":
      return Effect.sync(() => asked(call))
    case "fail":
      return Effect.sync(() => ToolOutcomes.endingRun(unknownEffect(call)))
    case "retry":
      return run
    default:
      return Effect.sync(() => unknownEffect(call))
  }
}
