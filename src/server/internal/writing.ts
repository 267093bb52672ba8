/**
 * Writes the frames of a run in the words of a protocol. Clients of these protocols cannot discard a run: of one that
 * was resumed they get the open step again, and what they have of it is discarded first.
 *
 * @since 0.1.0
 */
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import * as AgUi from "../../ui/AgUi.ts"
import * as UiStream from "../../ui/UiStream.ts"
import * as EventStream from "./eventStream.ts"
import type * as Reading from "./reading.ts"

type PublicEvent = Event.PublicEvent

/** Writes frames as texts of an event stream, and what closes it. */
interface Writer {
  readonly push: (frame: Reading.Frame) => string
  readonly end: () => string
}

/** Leaves out the steps that the client has where a run begins again. */
class Continued {
  /** Number of whole steps of the run that the client has. */
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
      // A run that could not start has no message: the run that takes its message names it.
      return this.isSaid ? [] : [event]
    }
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

const writerOf = (
  push: (event: PublicEvent) => ReadonlyArray<unknown>,
  end: () => ReadonlyArray<unknown>,
  last: string
): Writer => {
  const continued = new Continued()
  const texts = (values: ReadonlyArray<unknown>): string => values.map(EventStream.data).join("")
  return {
    push: (frame) => {
      if (frame._tag === "Quiet") return EventStream.comment
      // The end of a run that has none says that it broke off.
      return frame._tag === "Broken" ? "" : continued.events(frame).map((event) => texts(push(event))).join("")
    },
    end: () => texts(end()) + last
  }
}

/** Writes for the AI SDK. The message of a response has the id of its run, unless it continues another one. */
const uiWriter = (options: UiStream.Options): Writer => {
  let encoder: UiStream.Encoder | undefined
  return writerOf(
    (event) => {
      if (event._tag === "RunStarted") {
        encoder = UiStream.make({ messageId: event.runId, ...options })
        return []
      }
      encoder ??= UiStream.make(options)
      return encoder.push(event)
    },
    () => (encoder ?? UiStream.make(options)).end(),
    "data: [DONE]\n\n"
  )
}

/** Writes for AG-UI. The messages have the id of the run, by which answers of the client name it. */
const agUiWriter = (options: AgUi.Options): Writer => {
  let encoder: AgUi.Encoder | undefined
  return writerOf(
    (event) => {
      if (event._tag === "RunStarted") {
        encoder = AgUi.make({ ...options, messageId: event.runId })
        return []
      }
      encoder ??= AgUi.make(options)
      return encoder.push(event)
    },
    () => (encoder ?? AgUi.make(options)).end(),
    ""
  )
}

const written = (frames: Stream.Stream<Reading.Frame>, make: () => Writer): Stream.Stream<string> =>
  Stream.suspend(() => {
    const writer = make()
    return Stream.concat(Stream.map(frames, writer.push), Stream.suspend(() => Stream.succeed(writer.end())))
  })

/** Returns the response to a client of the AI SDK. */
export const ui = (frames: Stream.Stream<Reading.Frame>, options: UiStream.Options) =>
  EventStream.respond(written(frames, () => uiWriter(options)), UiStream.headers)

/** Returns the response to a client of AG-UI. */
export const agUi = (frames: Stream.Stream<Reading.Frame>, options: AgUi.Options) =>
  EventStream.respond(written(frames, () => agUiWriter(options)), AgUi.headers)

/** Returns the response to a client of plain events. */
export const plain = (frames: Stream.Stream<Reading.Frame>) =>
  EventStream.respond(Stream.map(frames, EventStream.lines))
