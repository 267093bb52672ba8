/** Trace context sent to a server by layers with `propagate: true`. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as TraceContext from "effect/http/HttpTraceContext"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

/** The `traceparent` of the current span. Undefined without a span, or if the span disables propagation. */
export const traceparent: Effect.Effect<string | undefined> = Effect.map(
  Effect.option(Effect.currentSpan),
  (current) => {
    const span = Option.getOrUndefined(current)
    return span === undefined || Context.get(span.annotations, Tracer.DisablePropagation)
      ? undefined
      : TraceContext.toHeaders(span).traceparent
  }
)
