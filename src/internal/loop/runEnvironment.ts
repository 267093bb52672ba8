/**
 * What all steps of one run share. It is made once, before anything starts, and owned by the pull that drives the run.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Schedule from "effect/Schedule"
import type * as Types from "effect/Types"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import type * as Settings from "../ask/options.ts"
import * as Request from "../ask/request.ts"
import type * as ToolOptions from "../declare/toolOptions.ts"
import * as Payload from "../fold/payload.ts"
import type * as Fold from "../fold/state.ts"
import * as ToolCalls from "../hear/toolCalls.ts"
import * as Json from "../json.ts"
import * as Now from "../now.ts"
import type { Ambient } from "../stop/inherited.ts"
import type { Running } from "../stop/ownedFibers.ts"
import { Worker } from "../stop/worker.ts"
import type * as Telemetry from "../telemetry.ts"

/** What a consumer wants to see of the stream. The fold sees everything. */
export interface View<R> {
  /** Whether the stream has the pieces of text and reasoning. The result is the same. `true` by default. */
  readonly emitTextDeltas?: boolean
  /** Whether the stream has the pieces of calls. The result is the same. `true` by default. */
  readonly emitToolDeltas?: boolean
  /** Whether the stream has the provider's own chunks. Those that report usage are always there. `false` by default. */
  readonly includeRawChunks?: boolean
  /**
   * Sees every event, in order and before the three options above are applied. The run waits for the effect that it may
   * return. None by default.
   */
  readonly onEvent?: (event: Event.Event) => Effect.Effect<void, never, R> | void
}

export interface Run<E, R> {
  readonly adapter: Adapter.Adapter["Service"]
  readonly system: string | undefined
  readonly mode: "auto" | "manual"
  readonly settings: Settings.Settings<E, R>
  readonly template: Request.Template
  readonly tools: ToolOptions.Toolbox
  /** Whether a call of any of them may start while the model still speaks. */
  readonly startsEarly: boolean
  readonly view: View<R>
  readonly retryReply: Schedule.Schedule<unknown, Adapter.AdapterError> | undefined
  readonly running: Running
  readonly ambient: Ambient
  readonly state: Fold.State
  readonly isTraced: boolean
  readonly within: Telemetry.Within
}

/** The run as its last step is made: the model is to answer, and calls it makes all the same are answered unrun. */
export const closing = <E, R>(run: Run<E, R>): Run<E, R> => ({
  ...run,
  tools: new Map(),
  template: run.template.tools.length === 0 ? run.template : { ...run.template, toolChoice: "none" },
  settings: { ...run.settings, policy: { ...run.settings.policy, unknownTool: "answer" } }
})

/** The run as it begins. One that goes on after calls of an earlier run were settled has had its first turn. */
export const begun = <E, R>(run: Run<E, R>): Run<E, R> =>
  run.running.operation?.continued === run.settings.requestId ? unforced(run) : run

/** The run after its first turn: the model chooses whether to call tools, unless the policy keeps a forced choice. */
export const unforced = <E, R>(run: Run<E, R>): Run<E, R> =>
  run.settings.policy.toolChoice === "first" && Request.isForced(run.template.toolChoice)
    ? { ...run, template: { ...run.template, toolChoice: "auto" } }
    : run

/** The run with what its handlers added to the context. */
export const withContext = <E, R>(run: Run<E, R>, update: Readonly<Record<string, unknown>>): Run<E, R> => ({
  ...run,
  settings: { ...run.settings, context: { ...run.settings.context, ...update } }
})

/** What an event is to a run, besides what the fold makes of it. They may be added up. */
export const Look = {
  /** It is hidden from the consumer, which changes nothing about what the run does with it. */
  hidden: 1,
  /** It makes a call final, or says how the reply ended. */
  final: 2
} as const

const look = <R>(view: View<R>, event: Event.Event): number => {
  switch (event._tag) {
    case "TextDelta":
    case "ReasoningDelta":
      return view.emitTextDeltas === false ? Look.hidden : 0
    case "ToolCallDelta":
      return view.emitToolDeltas === false ? Look.hidden : 0
    case "RawChunk":
      return view.includeRawChunks === true || Payload.isUsage(event) ? 0 : Look.hidden
    case "ToolCallCompleted":
    case "MessageCompleted":
    case "Error":
      return Look.final
    default:
      return 0
  }
}

/** What there is among some events. */
export const lookAt = <R>(view: View<R>, events: ReadonlyArray<Event.Event>): number => {
  let seen = 0
  for (let index = 0; index < events.length; index++) seen |= look(view, events[index] as Event.Event)
  return seen
}

/** The events that are not hidden. */
export const shown = <R>(view: View<R>, events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event> =>
  events.filter((event) => (look(view, event) & Look.hidden) === 0)

/** A run as its observer concerns it. */
export interface Observed<R> {
  readonly view: View<R>
  readonly running: Running
  readonly settings: { readonly requestId: string }
}

/** Shows events to the caller's observer, one after the other. The run goes on when it is done with them. */
export const observed = <R>(run: Observed<R>, events: ReadonlyArray<Event.Event>): Effect.Effect<void, never, R> =>
  run.view.onEvent === undefined ? Effect.void : Effect.suspend(() => observedFrom(run, events, 0))

/** What an observer has seen at once takes no step. What takes its time is done beside the reader, who may leave. */
const observedFrom = <R>(
  run: Observed<R>,
  events: ReadonlyArray<Event.Event>,
  from: number
): Effect.Effect<void, never, R> => {
  const { onEvent } = run.view
  if (onEvent === undefined) return Effect.void
  for (let index = from; index < events.length; index++) {
    const seen = Now.toEffect<unknown, never, R>(onEvent(events[index] as Event.Event), "onEvent")
    if (Now.isDone(seen)) continue
    return Effect.flatMap(hooks(run).do(seen, Exit.void), () => observedFrom(run, events, index + 1))
  }
  return Effect.void
}

/** A condition that is asked when the run is asked to stop softly is not waited for. */
const asCondition = { name: "haltWhen", onSoftStop: "none" } as const

/** What the caller's condition comes to, in the fiber of the observer, or nothing if a soft stop came first. */
export const asked = <A, R>(
  run: Observed<R>,
  condition: Effect.Effect<A, never, R>
): Effect.Effect<A | undefined, never, R> => {
  if (Now.isDone(condition)) return condition
  const { running } = run
  const told = hooks(run).do<A | undefined, never, R>(condition, Exit.succeed(undefined), asCondition)
  return Effect.map(told, (answer) => {
    // What it still cleans up does not keep the observer from the end of the run.
    if (answer === undefined) running.hooks = undefined
    return answer
  })
}

/** The fiber in which the observer runs, and the condition: one for the whole run. */
const hooks = <R>({ running, settings }: Observed<R>): Worker => {
  const { requestId: id } = settings
  return running.hooks ??= new Worker(running, { kind: "hook", id, name: "onEvent", onSoftStop: "grace" })
}

/** Names that every provider takes back: a model may have made up one that none would. */
const sendable = (call: Message.ToolCall): Message.ToolCall =>
  /^[A-Za-z0-9_-]{1,64}$/.test(call.name)
    ? call
    : { ...call, name: call.name.replaceAll(/[^A-Za-z0-9_-]/g, "_").slice(0, 64) }

/** The assistant message of a turn: what was streamed, not what the provider repeats at the end. */
export const assistantMessage = (
  response: { readonly outputText: string | null; readonly finishReason: Message.Message["finishReason"] },
  toolCalls: ReadonlyArray<Message.ToolCall>,
  reasoning: Message.Message["reasoning"]
): Message.Message => {
  const message: Types.Mutable<Message.Message> = {
    role: "assistant",
    content: response.outputText ?? "",
    finishReason: response.finishReason ?? null,
    metadata: Json.none
  }
  if (toolCalls.length > 0) message.toolCalls = toolCalls.map(sendable)
  if (reasoning !== undefined) message.reasoning = reasoning
  return message
}

/** What was heard of a reply. One that was cut short by a cancellation says so. */
export const heard = <E, R>(response: Response.Response, { ambient, state }: Run<E, R>): Response.Response =>
  ambient.cancellation?.isRequested === true && state.message === null && response.error === undefined
    ? { ...response, finishReason: "other", rawFinishReason: "cancelled" }
    : response

/** What was heard, after a warning for each call that lost its arguments. */
export const reported: (response: Response.Response) => Effect.Effect<Response.Response> = ToolCalls.reported

/** Whether a message says nothing. */
export const isEmpty = (message: Message.Message): boolean => message.content === "" && message.toolCalls === undefined

/** The last event of a step. A turn that a tool halted is done, whatever the model meant to do. */
export const stepCompleted = (
  step: Pick<Event.Of<"StepCompleted">, "response" | "thread" | "messages" | "mode" | "manualToolCalls">,
  isToolTurn: boolean,
  isDone: boolean,
  halt: Event.Halt | undefined,
  suspensions: ReadonlyArray<Event.Suspension>
): Event.Of<"StepCompleted"> => {
  const { manualToolCalls, messages, mode, response, thread } = step
  const event: Types.Mutable<Event.Of<"StepCompleted">> = {
    _tag: "StepCompleted",
    response,
    thread,
    messages,
    mode,
    manualToolCalls,
    done: halt !== undefined || isDone
  }
  if (mode === "manual") event.isToolTurn = isToolTurn
  if (halt !== undefined) event.halt = halt
  if (suspensions.length > 0) event.suspensions = suspensions
  return event
}
