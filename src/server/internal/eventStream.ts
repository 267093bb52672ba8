/**
 * Responses of events, one after another, as browsers and clients of agents read them.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Stream from "effect/Stream"
import * as Json from "../../internal/json.ts"
import type * as Reading from "./reading.ts"

const headers = {
  "cache-control": "no-cache, no-transform",
  "x-accel-buffering": "no",
  "x-content-type-options": "nosniff"
}

/** Returns a response of texts of an event stream. */
export const respond = (
  texts: Stream.Stream<string>,
  more: Readonly<Record<string, string>> = {}
): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.stream(
    Stream.encodeText(Stream.filter(texts, (text) => text !== "")),
    { contentType: "text/event-stream", headers: { ...headers, ...more } }
  )

/** Returns a stream that an error ends, which is logged. */
export const quietly = <A>(stream: Stream.Stream<A, unknown>): Stream.Stream<A> =>
  Stream.catchCause(stream, (cause) =>
    Stream.unwrap(Effect.as(
      Effect.logWarning("a stream of a session broke", Cause.map(cause, Json.nameOf)),
      Stream.empty
    )))

/** A comment, which clients pass over. */
export const comment = ": quiet\n\n"

/** Returns a value as an event. */
export const data = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

/** Returns a frame as lines of an event stream. */
export const lines = (frame: Reading.Frame): string => {
  switch (frame._tag) {
    case "Quiet":
      return comment
    case "Reset":
      return `event: reset\n${data({ runId: frame.runId })}`
    case "Event":
      return `${frame.offset === "" ? "" : `id: ${frame.offset}\n`}data: ${frame.text}\n\n`
  }
}
