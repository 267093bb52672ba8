/**
 * Plays a script's entries: events, pauses and failures in order, as a stream. Reading entries is pure; the clock is
 * used only while the stream is pulled.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Teller from "../../internal/answer/teller.ts"
import * as Message from "../../Message.ts"
import * as Response from "../../Response.ts"
import type { Entry, Options } from "./entry.ts"

/** Stream action at one pull. */
type Action =
  | { readonly _tag: "Emit"; readonly events: Arr.NonEmptyReadonlyArray<Event.AdapterEvent> }
  | { readonly _tag: "Wait"; readonly millis: number }
  | { readonly _tag: "Fail"; readonly error: Adapter.AdapterError }

/** Settings for reading entries. `errors` decides whether a scripted error is an event or fails the call. */
interface Reading {
  readonly errors: "emit" | "fail"
  readonly usage: Readonly<Record<string, unknown>> | undefined
  readonly chunkSize: number
}

type Scripted = Extract<Entry, { readonly _tag: "Error" | "ErrorThenContinue" }>

const isReason = Schema.is(Adapter.AdapterError.fields.reason)

/** Returns the error of an `Error` event. */
const emittedError = ({ details, error }: Scripted): Adapter.AdapterError => {
  if (error instanceof Adapter.AdapterError) return error
  return isReason(error)
    ? new Adapter.AdapterError({ reason: error, ...details })
    : new Adapter.AdapterError({ reason: "unknown", cause: error, ...details })
}

/** Returns the error of a reply awaited as a whole. Without details it only reports that it was scripted. */
const awaitedError = (entry: Scripted): Adapter.AdapterError =>
  entry.details !== undefined || entry.error instanceof Adapter.AdapterError
    ? emittedError(entry)
    : new Adapter.AdapterError({ reason: "unknown", detail: "scripted error", cause: entry.error })

/** Returns the events of an entry. Entries without events control the playback. */
const eventsOf = (entry: Entry): ReadonlyArray<Event.AdapterEvent> => {
  switch (entry._tag) {
    case "Text":
      return [{ _tag: "TextDelta", id: null, delta: entry.text }]
    case "Reasoning":
      return [{ _tag: "ReasoningDelta", id: null, delta: entry.text }]
    case "ToolCall": {
      const { _tag: _, ...call } = entry
      return Teller.ofCall({ rawArguments: JSON.stringify(call.arguments), ...call })
    }
    case "ToolCallDelta":
      return [entry]
    case "RawChunk":
      return [entry]
    case "Event":
      return [entry.event]
    case "Error":
    case "ErrorThenContinue":
      return [{ _tag: "Error", error: emittedError(entry) }]
    default:
      return []
  }
}

type Finish = Omit<Extract<Entry, { readonly _tag: "Finish" }>, "_tag">

const closing = (
  deltas: ReadonlyArray<string>,
  { metadata, model, paused, rawFinishReason, reason, responseId }: Finish,
  usage: Readonly<Record<string, unknown>> | undefined
): ReadonlyArray<Event.AdapterEvent> => {
  const text = deltas.join("")
  return [
    ...(deltas.length === 0 ? [] : [{ _tag: "TextCompleted", id: null, text } as const]),
    {
      _tag: "MessageCompleted",
      message: Message.assistant(text),
      finishReason: reason,
      ...(rawFinishReason === undefined ? {} : { rawFinishReason }),
      ...(paused === undefined ? {} : { paused }),
      ...(usage === undefined ? {} : { usage: Response.usage(usage) }),
      ...(responseId === undefined ? {} : { responseId }),
      ...(model === undefined ? {} : { model }),
      ...(metadata === undefined || Object.keys(metadata).length === 0 ? {} : { metadata })
    }
  ]
}

/** Reads a call's entries as actions. */
const read = (entries: ReadonlyArray<Entry>, reading: Reading): ReadonlyArray<Action> => {
  const actions: Array<Action> = []
  const deltas: Array<string> = []
  let events: Array<Event.AdapterEvent> = [{ _tag: "MessageStarted", message: Message.assistant("") }]
  let usage = reading.usage
  let end: Finish = { reason: null }
  const then = (...actionsAfter: ReadonlyArray<Action>): ReadonlyArray<Action> => {
    for (const action of emits(events, reading.chunkSize)) actions.push(action)
    actions.push(...actionsAfter)
    events = []
    return actions
  }
  for (const entry of entries) {
    const isError = entry._tag === "Error" || entry._tag === "ErrorThenContinue"
    if (isError && reading.errors === "fail") return then({ _tag: "Fail", error: awaitedError(entry) })
    if (entry._tag === "StreamError") return then({ _tag: "Fail", error: failure(entry) })
    if (entry._tag === "Delay") then({ _tag: "Wait", millis: entry.millis })
    if (entry._tag === "Usage") usage = reading.usage ?? entry.usage
    for (const event of eventsOf(entry)) {
      if (event._tag === "TextDelta") deltas.push(event.delta)
      events.push(event)
    }
    if (entry._tag === "Finish") end = entry
    if (entry._tag === "Finish" || entry._tag === "Error") break
  }
  events.push(...closing(deltas, end, usage))
  return then()
}

const emits = (events: ReadonlyArray<Event.AdapterEvent>, size: number): Array<Action> => {
  const actions: Array<Action> = []
  for (let start = 0; start < events.length; start += size) {
    const chunk = events.slice(start, start + size)
    if (Arr.isReadonlyArrayNonEmpty(chunk)) actions.push({ _tag: "Emit", events: chunk })
  }
  return actions
}

/** Returns the failure of an entry. */
export const failure = (entry: { readonly reason: Adapter.AdapterError["reason"]; readonly details: object }) =>
  new Adapter.AdapterError({ reason: entry.reason, ...entry.details })

/** Streams the entries of one call. */
export const play = (
  entries: ReadonlyArray<Entry>,
  { chunkSize, usage }: Options,
  errors: Reading["errors"]
): Stream.Stream<Event.AdapterEvent, Adapter.AdapterError> =>
  Stream.fromPull(Effect.sync(() => {
    const actions = read(entries, { errors, usage, chunkSize: chunkSize ?? Infinity })
    let position = 0
    const next: Pull.Pull<Arr.NonEmptyReadonlyArray<Event.AdapterEvent>, Adapter.AdapterError> = Effect.suspend(() => {
      const action = actions[position++]
      if (action === undefined) return Cause.done()
      if (action._tag === "Emit") return Effect.succeed(action.events)
      return action._tag === "Fail" ? Effect.fail(action.error) : Effect.andThen(Effect.sleep(action.millis), next)
    })
    return next
  }))
