/**
 * Folds events into results: a response, step results, a chat result. The fold is pure, total, and linear in the number
 * of events; unknown tags and malformed payloads change nothing. The loop uses the same fold, so an awaited result
 * equals one assembled from the stream.
 */
import * as Result from "effect/Result"
import type * as Event from "./Event.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as Values from "./internal/declare/values.ts"
import * as EventJson from "./internal/fold/eventJson.ts"
import * as Fold from "./internal/fold/fold.ts"
import * as Outcomes from "./internal/fold/runOutcome.ts"
import * as SharedMessages from "./internal/fold/sharedMessages.ts"
import * as Json from "./internal/json.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import type * as Response from "./Response.ts"
import * as Thread from "./Thread.ts"

/**
 * State of the fold. Read it through {@link toResponse}, {@link toStepResult} and {@link toChatResult}.
 *
 * @category models
 */
export interface State extends Fold.Opaque {
  /** Completed steps. */
  readonly steps: ReadonlyArray<Event.StepResult>
}

/** Exposes a state's fields, private to the runtime. */
const of = (state: State): Fold.State => state as Fold.State

/**
 * Options for starting a fold.
 *
 * @category models
 */
export interface Options {
  /** Thread at the start of the run. Required for the results of an unfinished step or run. */
  readonly thread?: Thread.Thread
  /** The run's policy. `Policy.standard` by default. */
  readonly policy?: Policy.Policy
  /** Id of the run, for the responses; without it they have `null`. */
  readonly requestId?: string | undefined
}

/**
 * Returns the state before the first event.
 *
 * **Example** (Nothing has been folded)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * Collector.toResponse(Collector.initial()).outputText // => null
 * ```
 *
 * @category constructors
 */
export const initial = (options: Options = {}): State => {
  checkNames("Collector", options, knownOptions)
  return Fold.initial(options.policy ?? Policy.standard, options)
}

const knownOptions = {
  thread: Values.record,
  policy: Values.policyOf(Policy.Policy),
  requestId: Values.text
} satisfies NamesOf<Options>

/**
 * Returns the state after one event. The given state does not change; an event without new information returns the same
 * reference.
 *
 * **Example** (The completed text is authoritative)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const streamed = Collector.applyEvent(Collector.initial(), { _tag: "TextDelta", id: null, delta: "ab" })
 * const completed = Collector.applyEvent(streamed, { _tag: "TextCompleted", id: null, text: "AB!" })
 *
 * Collector.toResponse(completed).outputText // => "AB!"
 * Collector.toResponse(streamed).outputText // => "ab"
 * ```
 *
 * @category folding
 */
export const applyEvent = (state: State, event: Event.Event): State => applyAll(state, [event])

/**
 * Returns the state after several events, in order.
 *
 * **Example** (Folding what was read)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const state = Collector.applyAll(Collector.initial(), [
 *   { _tag: "TextDelta", id: null, delta: "Hel" },
 *   { _tag: "TextDelta", id: null, delta: "lo" }
 * ])
 *
 * Collector.toResponse(state).outputText // => "Hello"
 * ```
 *
 * @category folding
 */
export const applyAll = (state: State, events: ReadonlyArray<Event.Event>): State => Fold.applied(of(state), events)

/**
 * Returns the answers to the current step's calls, in call order.
 *
 * **Example** (The answer of a call)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const state = Collector.applyAll(Collector.initial(), [
 *   { _tag: "ToolCallStarted", id: "c0", name: "stop" },
 *   { _tag: "ToolCallCompleted", id: "c0", name: "stop", arguments: {}, rawArguments: "{}" },
 *   { _tag: "ToolHalt", toolCallId: "c0", reason: "done_early", result: 42, content: "42" }
 * ])
 *
 * Collector.answers(state).map((message) => message.content) // => ["42"]
 * ```
 *
 * @category getters
 */
export const answers = (state: State): ReadonlyArray<Message.Message> => Fold.answers(of(state))

/**
 * Returns the halt deciding the current step, if a tool halted the step: by default the first call's halt, under
 * `haltPrecedence: "completion"` the earliest.
 *
 * **Example** (A tool that halted)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const state = Collector.applyAll(Collector.initial(), [
 *   { _tag: "ToolCallStarted", id: "c0", name: "stop" },
 *   { _tag: "ToolCallCompleted", id: "c0", name: "stop", arguments: {}, rawArguments: "{}" },
 *   { _tag: "ToolHalt", toolCallId: "c0", reason: "done_early", result: 42, content: "42" }
 * ])
 *
 * Collector.halt(state) // => { haltedReason: "done_early", haltToolCallId: "c0", haltResult: 42 }
 * ```
 *
 * @category getters
 */
export const halt = (state: State): Event.Halt | undefined => Fold.halt(of(state))

/**
 * Returns the response so far. Works without a thread and never fails; a reply's error is in `error`.
 *
 * **Example** (The text so far)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const state = Collector.applyEvent(Collector.initial(), { _tag: "ToolCallStarted", id: "c0", name: "search" })
 *
 * Collector.toResponse(state).toolCalls.map((call) => call.name) // => ["search"]
 * ```
 *
 * @category results
 */
export const toResponse = (state: State): Response.Response => Fold.toResponse(of(state))

/**
 * Returns `true` if the runtime has tools to run after a response. The policy lets the response's calls decide, or the
 * finish reason alone. A filtered reply, or one ending in an error, never leads to a call.
 *
 * **Example** (A reply with a call)
 *
 * ```ts import.meta.vitest
 * import { Collector, Message, Policy } from "heddle"
 *
 * const response = Collector.toResponse(
 *   Collector.applyAll(Collector.initial(), [
 *     { _tag: "ToolCallCompleted", id: "c0", name: "search", arguments: {}, rawArguments: "{}" },
 *     { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
 *   ])
 * )
 *
 * Collector.isToolTurn(Policy.standard, response) // => true
 * ```
 *
 * @category getters
 */
export const isToolTurn: (policy: Policy.Policy, response: Response.Response) => boolean = Fold.isToolTurn

/**
 * Returns `true` if the model has nothing more to do after a response without a halt.
 *
 * **Example** (A reply with a call)
 *
 * ```ts import.meta.vitest
 * import { Collector, Message, Policy } from "heddle"
 *
 * const response = Collector.toResponse(
 *   Collector.applyAll(Collector.initial(), [
 *     { _tag: "ToolCallCompleted", id: "c0", name: "search", arguments: {}, rawArguments: "{}" },
 *     { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
 *   ])
 * )
 *
 * Collector.isDone(Policy.standard, response) // => false
 * ```
 *
 * @category getters
 */
export const isDone: (policy: Policy.Policy, response: Response.Response) => boolean = Fold.isDone

/**
 * Returns the last completed step, or else the current step so far. The latter throws if the fold was started without a
 * thread.
 *
 * **Example** (A step in progress)
 *
 * ```ts import.meta.vitest
 * import { Collector, Thread } from "heddle"
 *
 * const state = Collector.initial({ thread: Thread.empty })
 * const step = Collector.toStepResult(Collector.applyEvent(state, { _tag: "TextDelta", id: null, delta: "Hi" }))
 *
 * step.response.outputText // => "Hi"
 * ```
 *
 * @category results
 */
export const toStepResult = (state: State): Event.StepResult => Fold.toStepResult(of(state))

/**
 * Returns the chat result. For a complete run it is the run's own. For a truncated stream it contains everything seen,
 * with the outcome `Failed` if an error was held, else `Cancelled`; this throws if the fold was started without a
 * thread.
 *
 * **Example** (A stream that was cut)
 *
 * ```ts import.meta.vitest
 * import { Collector, Thread } from "heddle"
 *
 * const result = Collector.toChatResult(Collector.initial({ thread: Thread.empty }))
 *
 * result.outcome // => { _tag: "Cancelled", reason: "interrupt" }
 * ```
 *
 * @category results
 */
export const toChatResult = (state: State): Event.ChatResult => {
  const fold = of(state)
  return fold.chatResult ?? Outcomes.ofCut(fold, Fold.threadOf(fold, "toChatResult"))
}

/**
 * Builds a chat result from its parts, for both the loop and the fold of a truncated stream.
 *
 * **Example** (A result from its parts)
 *
 * ```ts import.meta.vitest
 * import { Collector, Thread } from "heddle"
 *
 * const result = Collector.chatResult({
 *   thread: Thread.empty,
 *   steps: [],
 *   outcome: { _tag: "MaxTurns", maxTurns: 8 }
 * })
 *
 * result.haltedReason // => "max_turns"
 * ```
 *
 * @category results
 */
export const chatResult: (parts: {
  readonly thread: Thread.Thread
  readonly steps: ReadonlyArray<Event.StepResult>
  readonly outcome: Event.Outcome
  readonly finalResponse?: Response.Response
  readonly finalized?: Event.ChatResult["finalized"] | undefined
  readonly suspensions?: Event.ChatResult["suspensions"] | undefined
  readonly totalUsage?: Event.ChatResult["totalUsage"]
  readonly nestedUsage?: Response.Usage | null
}) => Event.ChatResult = Outcomes.chatResult

/**
 * Classifies events in hand like `Adapter.classify` does for an arriving reply: they ask for tools or are the final
 * answer. Nothing runs. An iterator can be read once: classifying it again throws, rather than finding nothing.
 *
 * **Example** (Whether a reply asks for tools)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const reply = Collector.classify([{ _tag: "TextDelta", id: null, delta: "Hello" }])
 *
 * reply.type // => "final_answer"
 * reply.text // => "Hello"
 * ```
 *
 * @category results
 */
export const classify = (events: Iterable<Event.Event>, options: Options = {}): Outcomes.Classification => {
  const state = of(initial(options))
  for (const event of once(events)) Outcomes.heard(state, event)
  return Outcomes.classification(state)
}

/** One-shot iterators already read. */
const read = new WeakSet<object>()

/** Returns an iterable's events. Throws for an already read iterator, which would otherwise appear empty. */
const once = (events: Iterable<Event.Event>): Iterable<Event.Event> => {
  const iterator = events[Symbol.iterator]()
  if (iterator as unknown !== events) return events
  if (read.has(iterator)) throw new Error("Collector.classify: these events have been read already")
  read.add(iterator)
  return events
}

/**
 * Returns the thread after a step. A session step running only approved calls has no reply: their answers follow the
 * reply with the calls.
 */
const grownBy = (state: Fold.State, messages: ReadonlyArray<Message.Message>): Thread.Thread => {
  const { thread = Thread.empty } = state
  return messages.length === 0 && !Fold.hasPartial(state)
    ? SharedMessages.placed(thread, state.tools.inOrder([]))
    : SharedMessages.appendedShared(thread, messages)
}

/** Folds a wire event. No schema decodes it first: the fold itself accepts only well-formed events. */
const foldReceived = (state: Fold.State, wire: unknown): void => {
  const read = EventJson.toJson(wire)
  if (!Json.isObject(read)) return
  const event = read as unknown as Event.WireEvent
  if (event._tag === "StepCompleted") {
    if (!Array.isArray(event.messages)) return
    Fold.apply(state, [{ ...event, thread: grownBy(state, event.messages) }])
  } else if (event._tag === "ChatCompleted") {
    if (!Json.isObject(event.result)) return
    Fold.foldOpening(state)
    const steps = state.steps.slice()
    const messages = Array.isArray(event.messages) ? event.messages : []
    const result = {
      finalResponse: steps.at(-1)?.response ?? null,
      ...event.result,
      thread: SharedMessages.plain(SharedMessages.appendedShared(state.thread ?? Thread.empty, messages)),
      steps
    }
    Fold.apply(state, [{ ...event, result }])
  } else Fold.apply(state, [event])
}

/**
 * Rebuilds a run's result from the wire form of its events (`Event.toWire`): the same thread, steps, outcome and usage
 * as in the run.
 *
 * **Details**
 *
 * `input` is the run's input, since no event contains the earlier thread. For a session operation, pass the session's
 * thread, from before or after its calls were settled, plus the user message sent to the session, unless the message
 * only answered a question. Values other than wire events are ignored, so later versions' events can be read.
 *
 * If a run's events end before its `ChatCompleted`, the result is {@link toChatResult}'s. This includes a run whose
 * stream failed, since a stream failure is no event. Send the failure yourself, or the result is `Cancelled` with the
 * reason `"interrupt"`. Errors and the caller's own values are the plain data as written: match errors on `_tag` and
 * `reason`, not by `instanceof`. Throws a `Thread.ValidationError` if the input is not a conversation.
 *
 * **Example** (Reading a log)
 *
 * ```ts import.meta.vitest
 * import { Collector } from "heddle"
 *
 * const result = Collector.fromWire("Hi", [{ _tag: "TextDelta", id: null, delta: "Hel" }])
 *
 * result.outcome // => { _tag: "Cancelled", reason: "interrupt" }
 * result.finalResponse?.outputText // => "Hel"
 * ```
 *
 * @category folding
 */
export const fromWire = (
  input: Thread.Input,
  wires: Iterable<unknown>,
  options: Pick<Options, "policy"> = {}
): Event.ChatResult => {
  checkNames("Collector.fromWire", options, { policy: knownOptions.policy })
  const state = of(initial({ ...options, thread: Result.getOrThrow(Thread.validate(input)) }))
  for (const wire of wires) foldReceived(state, wire)
  return toChatResult(state)
}
