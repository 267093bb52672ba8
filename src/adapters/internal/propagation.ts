/** The trace context that a server is sent, where its layer has `propagate: true`. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as TraceContext from "effect/http/HttpTraceContext"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

/** The `traceparent` of the span around this. There is none without a span that is made and may be told of. */
export const traceparent: Effect.Effect<string | undefined> = Effect.map(
  Effect.option(Effect.currentSpan),
  (current) => {
    const span = Option.getOrUndefined(current)
    return span === undefined || Context.get(span.annotations, Tracer.DisablePropagation)
      ? undefined
      : TraceContext.toHeaders(span).traceparent
  }
)
