/**
 * Event stream responses, for browsers and agent clients.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Json from "../../internal/json.ts"
import * as Journal from "../../Journal.ts"
import type * as Reading from "./reading.ts"
import * as Refusals from "./refusal.ts"

const headers = {
  "cache-control": "no-cache, no-transform",
  "x-accel-buffering": "no",
  "x-content-type-options": "nosniff"
}

/** Returns an event stream response from texts. */
export const respond = (
  texts: Stream.Stream<string>,
  more: Readonly<Record<string, string>> = {}
): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.stream(
    Stream.encodeText(Stream.filter(texts, (text) => text !== "")),
    { contentType: "text/event-stream", headers: { ...more, ...headers } }
  )

const broken = (cause: Cause.Cause<unknown>) => {
  const { code, message } = Option.match(Cause.findErrorOption(cause), {
    onNone: () => Refusals.broken,
    onSome: (error) => error instanceof Journal.StoreError ? Refusals.ofStore(error) : Refusals.broken
  })
  const frame: Reading.Frame = { _tag: "Broken", code, message }
  return Effect.as(Effect.logWarning("a session's stream broke", Cause.map(cause, Json.nameOf)), frame)
}

/** Ends a stream at an error with a frame about the error, and logs the error. */
export const quietly = (stream: Stream.Stream<Reading.Frame, unknown>): Stream.Stream<Reading.Frame> =>
  Stream.catchCause(stream, (cause) => Stream.fromEffect(broken(cause)))

/** Ends a stream of texts at an error with a text about the error, and logs the error. */
export const telling = (texts: Stream.Stream<string, unknown>): Stream.Stream<string> =>
  Stream.catchCause(texts, (cause) => Stream.fromEffect(Effect.map(broken(cause), lines)))

/** A comment, ignored by clients. */
export const comment = ": quiet\n\n"

/** Formats a value as an event. */
export const data = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

/** Formats a frame as event stream lines. */
export const lines = (frame: Reading.Frame): string => {
  switch (frame._tag) {
    case "Quiet":
      return comment
    case "Reset":
      return `event: reset\n${data({ runId: frame.runId })}`
    case "Broken":
      return `event: error\n${data({ error: { code: frame.code, message: frame.message } })}`
    case "Event":
      return `${frame.offset === "" ? "" : `id: ${frame.offset}\n`}data: ${frame.text}\n\n`
  }
}
