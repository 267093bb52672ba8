/**
 * The journal of a run, as the loop and its calls see it: a value that a recorded run passes to the loop. It knows the
 * calls of a resumed turn, completes the intents of the run once they are durable, and records what has happened before
 * anything follows from it. A call that had started when its process died has an unknown effect: `resolveUnknown`
 * follows the policy of its tool.
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

/** The recorded part of a call. */
export interface Replayed {
  /**
   * Tells whether the handler had started. The call has then passed its gates and its approval, which are not asked
   * again.
   */
  readonly hasStarted: boolean
  /** Tells whether the effect of the call is unknown: it is not reported as a call that did not run. */
  readonly isUnknown?: boolean
  /** The calls that halted, asked or failed while it was started, by their ids. */
  readonly beside?: ReadonlyArray<string> | undefined
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

type Handled = Effect.Effect<unknown, never, any>

/** The consequence of an attempt that is about to start. */
export type Begun =
  /** The start is durable. `handler` gives the handler what its runs find: their journals, and the account of usage. */
  | { readonly _tag: "Start"; readonly handler: (handler: Handled) => Handled }
  /** An earlier process started the call: its tool decides, and may start it again. */
  | { readonly _tag: "Resolve" }
  /** The next owner of the run starts the call: it waits here until the run ends. */
  | { readonly _tag: "Park" }
  /** The call does not start, and has this outcome. */
  | { readonly _tag: "Answer"; readonly instead: Tool.Outcome }

/**
 * The journal of a run. An intent (`admits`, `starts`) completes only once it is durable, never where it is refused or
 * given up. A report tells what has happened, and may be given up with the grace period of a stop. What needs no time
 * is done when it is called, and returns an `Exit`.
 */
export interface Journal {
  /** Returns the recorded part of a call, if there is one. Any other call runs as usual. */
  readonly find: (call: Message.ToolCall) => Replayed | undefined
  /** Intends a request to the model, also where there is nothing to record. */
  readonly admits: () => Effect.Effect<void>
  /** Notes that a request goes out. Left out where the run is not kept. */
  readonly requested?: ((request: Requested) => void) | undefined
  /**
   * Intends a request about which rules have notes or messages. `false`: the run was stopped before, or one of the
   * delivered messages was withdrawn.
   */
  readonly prepares: (prepared: Prepared) => Effect.Effect<boolean>
  /**
   * Notes the time at which a call stood whole in the reply, in milliseconds since 1970. Left out where it is not kept.
   */
  readonly asked?: ((id: string, millis: number) => void) | undefined
  /**
   * Intends an attempt. `isHandled`: the tool has decided to start a call again that an earlier process started.
   * `waited` are the waits before the first attempt.
   */
  readonly starts: (
    call: Tool.CallContext,
    tool: Tool.Any,
    isHandled: boolean,
    waited?: ReadonlyArray<Waited>
  ) => Effect.Effect<Begun>
  /**
   * Tells whether a remembered approval covers a call of a tool with this hash. Left out where no approval is
   * remembered: in a run inside another one, and outside of a session.
   */
  readonly allows?: (call: Message.ToolCall, tool: string) => boolean
  /** Reports that the whole reply of the step was discarded: the model is asked again. */
  readonly discarded: (prepared: Prepared) => Effect.Effect<void>
  /** Reports a whole reply before its calls start. Those that started early have started before. */
  readonly replied: (response: Response.Response, stepIndex: number) => Effect.Effect<void>
  /** Reports the answer of a call. Nothing follows from the answer before this is done. */
  readonly answered: (call: Message.ToolCall, answer: Answers.Answer) => Effect.Effect<void>
  /** Reports a suspension of a call. */
  readonly waits: (
    call: Message.ToolCall,
    event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">
  ) => Effect.Effect<void>
  /** Reports that an attempt of a call failed and that another one is granted. */
  readonly failed: (call: Message.ToolCall) => Effect.Effect<void>
  /** Reports the end of a step. */
  readonly step: (event: Event.Of<"StepCompleted">, step: Stepped) => Effect.Effect<void>
  /** Reports the end of the run. Returns it with what the journal has abandoned. */
  readonly ended: (event: Event.Of<"ChatCompleted">) => Effect.Effect<Event.Of<"ChatCompleted">>
  /** Takes the function that returns the calls which wait for their turn, of the batch that begins. */
  readonly working: (waits: () => ReadonlyArray<Waits>) => void
  /** Policy for a call whose effect is unknown, where its tool does not set one. */
  readonly afterCrash: Declared.AfterCrash | undefined
}

/** A request to the model. */
export interface Requested {
  /** The time at which it went out, in milliseconds since 1970. */
  readonly at: number
  /** The time of the first event of its reply. `undefined` until then. */
  first: number | undefined
  /** The number of the request within its step, from 1. */
  readonly attempt: number
  /** The model that it asks, and its provider, if they are known. */
  readonly model: string | undefined
  readonly provider: string | undefined
}

/** Notes of rules, by their names. */
type Notes = NonNullable<Event.Of<"StepCompleted">["notes"]>

/** Notes and messages of rules for a request, which are recorded before it is made. */
export interface Prepared {
  readonly stepIndex: number
  readonly attempt: number
  readonly notes: Notes
  readonly messages: ReadonlyArray<Message.Message>
  /** The ids of submitted messages among these. */
  readonly delivered: ReadonlyArray<string>
  /** Usage of the discarded replies of the step. */
  readonly spent: Response.Usage | null
}

/** The recorded part of a run, with which it begins. */
export interface Start {
  /** The whole steps, in order. */
  readonly steps: ReadonlyArray<{
    readonly result: Event.StepResult
    readonly notes: Notes
  }>
  /** The events of calls that were settled since the last run, which are shown first. */
  readonly settled: ReadonlyArray<Event.Event>
  /** Notes of rules about the step in progress. */
  readonly noted: Notes
  /** The number of requests that it has made, as far as they are recorded. */
  readonly attempt: number
  /** Usage of its discarded replies, as far as it is recorded. That of an open turn is in its reply. */
  readonly spent: Response.Usage | null
  /** The number of messages at the end of the thread that rules added for it. */
  readonly introduced: number
  /** The notes that rules keep for the session. */
  readonly kept: Notes
  /** The open turn of the run, in which it begins: its recorded reply, and its table of calls. */
  readonly turn: Turn | undefined
  /** The turn of an earlier run that waited, and whose settled calls run first. */
  readonly earlier: Earlier | undefined
  /** Returns the steps of the runs inside its calls. Left out for a run that begins. */
  readonly inside: Effect.Effect<ReadonlyArray<Inside>> | undefined
  /** Tells whether an earlier run asked for the turn that the run begins in: its first turn is over. */
  readonly hasBegun: boolean
  /** The reason to end the run with its open turn: nothing new starts. */
  readonly ends: Ends | undefined
}

/** The reason to end a resumed run: a requested stop, a passed deadline, or an error. */
export type Ends = { readonly _tag: "Stop" | "Deadline" } | { readonly _tag: "Failure"; readonly error: unknown }

/** Returns the reason for which nothing starts in a run that ends. */
export const endOf = ({ _tag }: Ends): string =>
  _tag === "Deadline" ? "the deadline of the run has passed" : "the run was stopped"

/** Requests the end of a run. */
export const end = (cancellation: Cancellation.Cancellation | undefined, { _tag }: Ends): void =>
  _tag === "Deadline"
    ? cancellation?.request("deadline", Deadline.cause)
    : cancellation?.request("stop", Cancellation.stopCause)

/** The open turn in which a resumed run begins. */
export interface Turn {
  readonly calls: Plan.RecordedCalls
  /** The events that repeat the reply. */
  readonly events: ReadonlyArray<Event.Event>
}

/** The turn of an earlier run in which a run begins. It is none of the steps of the run, which follow it. */
export interface Earlier {
  /** The calls that may begin, or that have begun. */
  readonly calls: Plan.RecordedCalls
  /** The halt of one of its calls, from before the run was resumed. */
  readonly halt: Event.Halt | undefined
  /** Tells whether the run ends with these calls: it was a run of one step. */
  readonly isLast: boolean
}

/** A step of a run inside a call, as its journal has it. */
export interface Inside {
  readonly notes: Notes
  readonly usage?: Response.Usage | null
}

/** A recorded run as the loop gets it: its start and its journal. */
export interface Recorded {
  readonly start: Start
  readonly journal: Journal
  /** Owns the appends to the store. When the reader of the run leaves, they share its grace period. */
  readonly appends: Running | undefined
  /** The stops and the account of usage of the operation, which are those of the run. */
  readonly given: Inherited.Given
}

/** A whole step. */
export interface Stepped {
  readonly result: Event.StepResult
  readonly index: number
  /** Usage of the nested runs of the run so far. */
  readonly nestedUsage: Response.Usage | null
  /** Notes that rules keep for the session, where the step is the whole run. */
  readonly kept?: Event.Of<"ChatCompleted">["kept"]
}

/** The start of a call whose handler runs as it is. */
export const start: Begun = { _tag: "Start", handler: (handler) => handler }

/** Returns a journal that knows calls, and records nothing. */
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
const asked = ({ name, toolCall }: Tool.CallContext): ToolOutcomes.Suspended => {
  const json = JSON.stringify(toolCall.arguments)
  const shown = json.length > longestArguments ? `${json.slice(0, longestArguments)}…` : json
  const question = `The run was interrupted during the call ${name}(${shown}). Did the call have its effect?`
  const id = CallPaths.format({ path: [toolCall.id] })
  const suspension: Event.Suspension = { id, kind: "unknown", toolCall, question, opts: answers }
  return ToolOutcomes.suspended([suspension])
}

/** Returns the outcome that `lookUp` of the tool finds. If it fails, nothing is found. */
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

/** Returns the outcome of a handler's value: a plain value is a result, and a question or a halt keeps its kind. */
const outcomeOf = (value: unknown): Tool.Outcome => ToolOutcomes.isBranded(value) ? value : { _tag: "Ok", value }

/**
 * Resolves a call whose effect is unknown: by `lookUp` of its tool, by `afterCrash`, by the flags, or else by
 * `otherwise`. `run` starts the handler where the call is tried again. Without it nothing of the tool runs.
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
