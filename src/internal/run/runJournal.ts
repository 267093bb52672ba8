/**
 * The journal of a run, as seen by the loop and its calls: a value passed to the loop by a recorded run. It knows the
 * calls of a resumed turn, completes the run's intents once they are durable, and records events before anything
 * follows from them. A call already started when its process died has an unknown effect: `resolveUnknown` follows its
 * tool's policy.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Types from "effect/Types"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as Plan from "../decide/plan.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import type { Wait, Waited } from "../permits/permits.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import type * as Inherited from "../stop/inherited.ts"
import type { Running } from "../stop/ownedFibers.ts"

/** Recorded part of a call. */
export interface Replayed {
  /** `true` if the handler had started. The call then passed its gates and approval, which are not repeated. */
  readonly hasStarted: boolean
  /** `true` if the call's effect is unknown: it is never reported as not run. */
  readonly isUnknown?: boolean
  /** Ids of calls that halted, asked or failed while this call was running. */
  readonly beside?: ReadonlyArray<string> | undefined
  /** The answer. An answered call does not run again. */
  readonly answer?: Answers.Answer
  /** The suspension. A suspended call keeps waiting. */
  readonly waits?: Event.Of<"AskUserRequested" | "ToolApprovalRequested" | "ToolSuspended">
  /** Idempotency key of the call. */
  readonly idempotencyKey?: string | undefined
  /** Number of started attempts. */
  readonly attempt: number
  /** Tool version for the run that asked for the call. */
  readonly version?: string | undefined
  /** Answer for the next attempt, with the state left by the previous attempt. */
  readonly resumed?: Tool.CallContext["resumed"] | undefined
}

/** A call waiting for its turn: the reason, and since when, in milliseconds since 1970. */
export interface Waits extends Wait {
  readonly id: string
  readonly since: number
}

type Handled = Effect.Effect<unknown, never, any>

/** The decision about an attempt about to start. */
export type Begun =
  /**
   * The start is durable. `handler` provides the services its nested runs find: their journals, and the usage account.
   */
  | { readonly _tag: "Start"; readonly handler: (handler: Handled) => Handled }
  /** An earlier process started the call: its tool decides, and may restart it. */
  | { readonly _tag: "Resolve" }
  /** The next owner of the run starts the call: it waits here until the run ends. */
  | { readonly _tag: "Park" }
  /** The call does not start, and has this outcome. */
  | { readonly _tag: "Answer"; readonly instead: Tool.Outcome }

/**
 * The journal of a run. An intent (`admits`, `prepares`, `starts`) completes only once durable, never if refused or
 * given up. A report records something that has happened, and may be given up with a stop's grace period. Anything
 * without waiting is done when called, and returns an `Exit`.
 */
export interface Journal {
  /** Returns the recorded part of a call, if any. Other calls run as usual. */
  readonly find: (call: Message.ToolCall) => Replayed | undefined
  /** Intends a model request, even with nothing to record. */
  readonly admits: () => Effect.Effect<void>
  /** Notes an outgoing request. Left out if the run is not kept. */
  readonly requested?: ((request: Requested) => void) | undefined
  /**
   * Intends a request with notes or messages from rules. Returns `false` if the run was stopped before, or a delivered
   * message was withdrawn.
   */
  readonly prepares: (prepared: Prepared) => Effect.Effect<boolean>
  /** Notes when a call was complete in the reply, in milliseconds since 1970. Left out if not kept. */
  readonly asked?: ((id: string, millis: number) => void) | undefined
  /**
   * Intends an attempt. `isHandled`: the tool has decided to restart a call started by an earlier process. `waited` has
   * the waits before the first attempt.
   */
  readonly starts: (
    call: Tool.CallContext,
    tool: Tool.Any,
    isHandled: boolean,
    waited?: ReadonlyArray<Waited>
  ) => Effect.Effect<Begun>
  /**
   * Returns whether a remembered approval covers a call to a tool with this hash. Left out if no approvals are
   * remembered: in nested runs, and outside sessions.
   */
  readonly allows?: (call: Message.ToolCall, tool: string) => boolean
  /** Reports that the step's whole reply was discarded: the model is asked again. */
  readonly discarded: (prepared: Prepared) => Effect.Effect<void>
  /** Reports a whole reply before its calls start. Early calls have started before. */
  readonly replied: (response: Response.Response, stepIndex: number) => Effect.Effect<void>
  /** Reports a call's answer. Nothing follows from the answer before this is done. */
  readonly answered: (call: Message.ToolCall, answer: Answers.Answer) => Effect.Effect<void>
  /** Reports a call's suspension. */
  readonly waits: (
    call: Message.ToolCall,
    event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">
  ) => Effect.Effect<void>
  /** Reports a failed attempt with another one granted. */
  readonly failed: (call: Message.ToolCall) => Effect.Effect<void>
  /** Reports the end of a step. */
  readonly step: (event: Event.Of<"StepCompleted">, step: Stepped) => Effect.Effect<void>
  /** Reports the end of the run. Returns the event, with work abandoned by the journal. */
  readonly ended: (event: Event.Of<"ChatCompleted">) => Effect.Effect<Event.Of<"ChatCompleted">>
  /** Takes the function returning the waiting calls of the current batch. */
  readonly working: (waits: () => ReadonlyArray<Waits>) => void
  /** Policy for a call with an unknown effect, if its tool sets no policy. */
  readonly afterCrash: Declared.AfterCrash | undefined
}

/** A model request. */
export interface Requested {
  /** Time it went out, in milliseconds since 1970. */
  readonly at: number
  /** Time of its reply's first event. `undefined` until then. */
  first: number | undefined
  /** Request number within the step, from 1. */
  readonly attempt: number
  /** Requested model and its provider, if known. */
  readonly model: string | undefined
  readonly provider: string | undefined
}

/** Rule notes, by rule name. */
type Notes = NonNullable<Event.Of<"StepCompleted">["notes"]>

/** Rule notes and messages for a request, recorded before the request is made. */
export interface Prepared {
  readonly stepIndex: number
  readonly attempt: number
  readonly notes: Notes
  readonly messages: ReadonlyArray<Message.Message>
  /** Ids of submitted messages among these. */
  readonly delivered: ReadonlyArray<string>
  /** Usage of the step's discarded replies. */
  readonly spent: Response.Usage | null
}

/** Recorded part of a run at its start. */
export interface Start {
  /** Whole steps, in order. */
  readonly steps: ReadonlyArray<{
    readonly result: Event.StepResult
    readonly notes: Notes
  }>
  /** Events of calls settled since the last run, shown first. */
  readonly settled: ReadonlyArray<Event.Event>
  /** Rule notes on the current step. */
  readonly noted: Notes
  /** Number of requests made in the current step, as far as recorded. */
  readonly attempt: number
  /** Usage of its discarded replies, as far as recorded. An open turn's usage is in its reply. */
  readonly spent: Response.Usage | null
  /** Number of messages added by rules for this step, at the end of the thread. */
  readonly introduced: number
  /** Rule notes kept for the session. */
  readonly kept: Notes
  /** Open turn where the run begins: its recorded reply, and its table of calls. */
  readonly turn: Turn | undefined
  /** Turn of an earlier, waiting run, whose settled calls run first. */
  readonly earlier: Earlier | undefined
  /** Returns the steps of runs inside its calls. Left out for a new run. */
  readonly inside: Effect.Effect<ReadonlyArray<Inside>> | undefined
  /** `true` if an earlier run asked for the turn where this run begins: its first turn is over. */
  readonly hasBegun: boolean
  /** Reason to end the run with its open turn: nothing new starts. */
  readonly ends: Ends | undefined
}

/** Reason to end a resumed run: a requested stop, a passed deadline, or an error. */
export type Ends = { readonly _tag: "Stop" | "Deadline" } | { readonly _tag: "Failure"; readonly error: unknown }

/** Returns the reason nothing starts in an ending run. */
export const endOf = ({ _tag }: Ends): string =>
  _tag === "Deadline" ? "the deadline of the run has passed" : "the run was stopped"

/** Requests the end of a run. */
export const end = (cancellation: Cancellation.Cancellation | undefined, { _tag }: Ends): void =>
  _tag === "Deadline"
    ? cancellation?.request("deadline", Deadline.cause)
    : cancellation?.request("stop", Cancellation.stopCause)

/** The open turn where a resumed run begins. */
export interface Turn {
  readonly calls: Plan.RecordedCalls
  /** Events repeating the reply. */
  readonly events: ReadonlyArray<Event.Event>
}

/** An earlier run's turn where a run begins. It is not a step of this run, whose steps follow. */
export interface Earlier {
  /** Calls that may begin or have begun. */
  readonly calls: Plan.RecordedCalls
  /** Halt by one of its calls, from before the run was resumed. */
  readonly halt: Event.Halt | undefined
  /** `true` if the run ends with these calls: it was a run of one step. */
  readonly isLast: boolean
}

/** A step of a run inside a call, as journaled. */
export interface Inside {
  readonly notes: Notes
  readonly usage?: Response.Usage | null
}

/** A recorded run, as passed to the loop: its start and its journal. */
export interface Recorded {
  readonly start: Start
  readonly journal: Journal
  /** Owns the appends to the store. When the run's reader leaves, they share its grace period. */
  readonly appends: Running | undefined
  /** Stops and usage account of the operation, shared by the run. */
  readonly given: Inherited.Given
}

/** A whole step. */
export interface Stepped {
  readonly result: Event.StepResult
  readonly index: number
  /** Nested usage of the run so far. */
  readonly nestedUsage: Response.Usage | null
  /** Rule notes kept for the session, if the step is the whole run. */
  readonly kept?: Event.Of<"ChatCompleted">["kept"]
}

/** Start of a call with an unchanged handler. */
export const start: Begun = { _tag: "Start", handler: (handler) => handler }

/** Returns a journal that knows calls but records nothing. */
export const recalling = (find: Journal["find"], reports: Partial<Journal> = {}): Journal => ({
  find,
  admits: () => Effect.void,
  prepares: () => Effect.succeed(true),
  discarded: () => Effect.void,
  starts: (call, _tool, isHandled) => {
    const known = find(call.toolCall)
    const isUnknown = !isHandled && known?.isUnknown === true && call.attempt === known.attempt + 1
    return isUnknown ? Effect.succeed({ _tag: "Resolve" }) : Effect.succeed(start)
  },
  replied: () => Effect.void,
  answered: () => Effect.void,
  waits: () => Effect.void,
  failed: () => Effect.void,
  step: () => Effect.void,
  ended: (event) => Effect.succeed(event),
  working: () => {},
  afterCrash: undefined,
  ...reports
})

/**
 * Waits until the run is interrupted or asked to stop: a blocking call has nothing to finish. The next owner of the run
 * answers the call.
 */
export const parked = (
  call: Pick<Message.ToolCall, "id" | "name">,
  stop: Cancellation.Cancellation | undefined
): Effect.Effect<Tool.Outcome> =>
  Cancellation.orElse<Tool.Outcome, never, never>(
    Effect.never,
    stop,
    () => ({ _tag: "Error", error: toolError("cancelled", call, { detail: "not run" }) })
  )

/**
 * Returns a resumed call's fields for its handler: the recorded key, the next attempt number, and the answer to its
 * question.
 */
export const recalled = ({ attempt, idempotencyKey, resumed }: Replayed) => ({
  ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
  ...(resumed === undefined ? {} : { resumed }),
  attempt: attempt + 1
})

/** Returns the event of a starting attempt. `waited` has the waits before the call's first attempt. */
export const startOf = (
  { arguments: args, id, name }: Message.ToolCall,
  attempt: number,
  { callFacts }: Pick<Policy.Policy, "callFacts">,
  waited?: ReadonlyArray<Waited>
): Event.Of<"ToolExecutionStarted"> => {
  const event: Types.Mutable<Event.Of<"ToolExecutionStarted">> = {
    _tag: "ToolExecutionStarted",
    id,
    name,
    arguments: args ?? {}
  }
  if (waited !== undefined && callFacts === "told") event.waited = waited
  if (attempt > 1 && callFacts === "told") event.attempt = attempt
  return event
}

/** Returns the event repeating a call's last start from before its run was resumed. A new attempt has its own start. */
export const startBefore = (
  call: Message.ToolCall,
  { attempt }: Replayed,
  policy: Pick<Policy.Policy, "callFacts">
): Event.Of<"ToolExecutionStarted"> => ({ ...startOf(call, attempt, policy), replayed: true })

// Calls with an unknown effect.

export const unknownEffect = (call: Pick<Message.ToolCall, "id" | "name">): Tool.Error<Tool.ToolError> => ({
  _tag: "Error",
  error: toolError("unknown_effect", call, {
    detail: "the run was interrupted before the result of the call was recorded: it may have had its effect, or not"
  })
})

/** Longest arguments shown in the question about a call, in characters. */
const longestArguments = 1_000

const answers = ["It had its effect", "It had no effect"]

/** Returns the question about a call, waiting for a person's verdict. */
const asked = ({ name, toolCall }: Tool.CallContext): ToolOutcomes.Suspended => {
  const json = JSON.stringify(toolCall.arguments)
  const shown = json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
  const question = `The run was interrupted during the call ${name}(${shown}). Did the call have its effect?`
  const id = CallPaths.format({ path: [toolCall.id] })
  const suspension: Event.Suspension = { id, kind: "unknown", toolCall, question, opts: answers }
  return ToolOutcomes.suspended([suspension])
}

/** Returns the outcome found by the tool's `lookUp`. A failing look-up finds nothing. */
const lookedUp = (
  lookUp: NonNullable<Declared.Any["lookUp"]>,
  args: unknown,
  call: Tool.CallContext,
  run: Handled
): Handled =>
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

/** Converts a handler's value to an outcome: a plain value is a result, a question or a halt keeps its kind. */
const outcomeOf = (value: unknown): Tool.Outcome => ToolOutcomes.isBranded(value) ? value : { _tag: "Ok", value }

/**
 * Resolves a call with an unknown effect: by its tool's `lookUp`, by `afterCrash`, by the flags, or else by
 * `otherwise`. `run` starts the handler for a retry. Without `run`, no tool code runs.
 */
export const resolveUnknown = (
  tool: Tool.Any,
  args: unknown,
  call: Tool.CallContext,
  run: Handled | undefined,
  otherwise: Declared.AfterCrash | undefined
): Handled => {
  const reported = Effect.sync(() => unknownEffect(call))
  if (tool.lookUp !== undefined && run !== undefined) return lookedUp(tool.lookUp, args, call, run)
  return Effect.flatMap(Plan.afterCrashOf(tool, args, otherwise), (policy): Handled => {
    switch (policy) {
      case "ask":
        return Effect.sync(() => asked(call))
      case "fail":
        return Effect.sync(() => ToolOutcomes.endingRun(unknownEffect(call)))
      case "retry":
        return run ?? reported
      case "report":
        return reported
    }
  })
}
