/**
 * Writes run frames in a protocol's format. Clients of these protocols cannot discard a run: after a resumption they
 * first discard the open step, and then get it again.
 */
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import * as AgUi from "../../ui/AgUi.ts"
import * as UiStream from "../../ui/UiStream.ts"
import * as EventStream from "./eventStream.ts"
import type * as Reading from "./reading.ts"

type PublicEvent = Event.PublicEvent

/** Events without a counterpart on pages. A run unable to start may emit some of them, but has no message. */
const unsaid: ReadonlySet<string> = new Set(["RequestStarted", "RequestRetried", "StopAccepted"])

/** Omits steps already sent to the client when a run begins again. */
class Continued {
  /** Number of the run's whole steps already sent. */
  private whole = 0
  private skipped = 0
  private isOpen = false
  /** `true` once the client has an event of the run. */
  private isSaid = false
  private run: string | undefined

  events(frame: Exclude<Reading.Frame, { readonly _tag: "Quiet" | "Broken" }>): ReadonlyArray<PublicEvent> {
    if (frame._tag === "Reset") {
      this.skipped = this.whole
      const { isOpen } = this
      this.isOpen = false
      return isOpen ? [{ _tag: "StepReset", error: { code: "resumed", message: "The run was resumed." } }] : []
    }
    const { event } = frame
    if (event._tag === "RunStarted") {
      const { run } = this
      this.run = event.runId
      if (run === event.runId) return []
      this.whole = 0
      // A run unable to start has no assistant message: the run taking over its user message names that message.
      return this.isSaid ? [] : [event]
    }
    if (unsaid.has(event._tag)) return []
    if (this.skipped > 0) {
      if (event._tag === "StepCompleted") this.skipped--
      return []
    }
    this.isSaid = true
    if (event._tag === "MessageStarted") this.isOpen = true
    if (event._tag === "StepCompleted") {
      this.whole++
      this.isOpen = false
    }
    return [event]
  }
}

/** Writes one run's events in a protocol's format. */
interface Encoder {
  readonly push: (event: PublicEvent) => ReadonlyArray<unknown>
  readonly end: () => ReadonlyArray<unknown>
}

/** Writes frames with one encoder per run, which gets its run id. `last` comes at the end. */
const written = (
  frames: Stream.Stream<Reading.Frame>,
  make: (run: { readonly messageId?: string }) => Encoder,
  last: string
): Stream.Stream<string> =>
  Stream.suspend(() => {
    const continued = new Continued()
    let encoder: Encoder | undefined
    const texts = (values: ReadonlyArray<unknown>): string => values.map(EventStream.data).join("")
    const write = (event: PublicEvent): string => {
      if (event._tag !== "RunStarted") return texts((encoder ??= make({})).push(event))
      encoder = make({ messageId: event.runId })
      return ""
    }
    const push = (frame: Reading.Frame): string => {
      if (frame._tag === "Quiet") return EventStream.comment
      // The encoder's end reports the break of a run without an end.
      return frame._tag === "Broken" ? "" : continued.events(frame).map(write).join("")
    }
    const end = Stream.suspend(() => Stream.succeed(texts((encoder ?? make({})).end()) + last))
    return Stream.concat(Stream.map(frames, push), end)
  })

/** Returns the response for an AI SDK client. Its message has the run's id, or the continued message's id. */
export const ui = (frames: Stream.Stream<Reading.Frame>, options: UiStream.Options) => {
  const texts = written(frames, (run) => UiStream.make({ ...run, ...options }), "data: [DONE]\n\n")
  return EventStream.respond(texts, UiStream.headers)
}

/** Response for an AI SDK client already reading the reply through another request. */
export const uiNothing = EventStream.respond(Stream.succeed("data: [DONE]\n\n"), UiStream.headers)

/**
 * Returns the response for an AG-UI client already reading the reply through another request: a run without messages.
 */
export const agUiNothing = (run: { readonly runId: string; readonly threadId: string }) => {
  const events = ["RUN_STARTED", "RUN_FINISHED"].map((type) => EventStream.data({ type, ...run }))
  return EventStream.respond(Stream.succeed(events.join("")), AgUi.headers)
}

/** Returns the response for an AG-UI client, whose messages have the run id. Answers refer to that id. */
export const agUi = (frames: Stream.Stream<Reading.Frame>, options: AgUi.Options) =>
  EventStream.respond(written(frames, (run) => AgUi.make({ ...options, ...run }), ""), AgUi.headers)

/** Returns the response for a client reading plain events. */
export const plain = (frames: Stream.Stream<Reading.Frame>) =>
  EventStream.respond(Stream.map(frames, EventStream.lines))
