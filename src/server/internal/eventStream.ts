/**
 * Responses of events, one after another, as browsers and clients of agents read them.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Stream from "effect/Stream"
import type * as Reading from "./reading.ts"

const headers = {
  "cache-control": "no-cache, no-transform",
  "x-accel-buffering": "no",
  "x-content-type-options": "nosniff"
}

/** Interval of the comments by which a quiet connection is kept. */
const quiet = "15 seconds"

/** Returns a response of lines of an event stream, with a comment at once and in every quiet interval. */
export const respond = (
  lines: Stream.Stream<string>,
  more: Readonly<Record<string, string>> = {}
): HttpServerResponse.HttpServerResponse => {
  const comments = Stream.concat(
    Stream.succeed(": open\n\n"),
    Stream.fromEffectRepeat(Effect.delay(Effect.succeed(": quiet\n\n"), quiet))
  )
  return HttpServerResponse.stream(
    Stream.encodeText(Stream.merge(lines, comments, { haltStrategy: "left" })),
    { contentType: "text/event-stream", headers: { ...headers, ...more } }
  )
}

/** Returns a frame as lines of an event stream. */
export const lines = (frame: Reading.Frame): string =>
  frame._tag === "Reset"
    ? `event: reset\ndata: ${JSON.stringify({ runId: frame.runId })}\n\n`
    : `${frame.offset === "" ? "" : `id: ${frame.offset}\n`}data: ${frame.text}\n\n`
