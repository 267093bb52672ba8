/** Span of a client's call: `tools/call NAME`, within the client's trace if the client sends a trace context. */
import type * as McpSchema from "effect/ai/McpSchema"
import * as Effect from "effect/Effect"
import * as Headers from "effect/http/Headers"
import * as TraceContext from "effect/http/HttpTraceContext"
import * as Option from "effect/Option"
import type * as Tracer from "effect/Tracer"
import { names } from "../../internal/telemetry.ts"
import * as Caller from "./caller.ts"

/** Returns the client's span, if the request's `traceparent` is valid. */
const parentOf = ({ requestMetadata }: McpSchema.McpRequestContext["Service"]): Tracer.ExternalSpan | undefined => {
  const { traceparent } = { ...requestMetadata } as { readonly traceparent?: unknown }
  return typeof traceparent === "string"
    ? Option.getOrUndefined(TraceContext.w3c(Headers.fromInput({ traceparent })))
    : undefined
}

/** Runs a call under its span. */
export const within = <A extends McpSchema.CallToolResult | McpSchema.InputRequired, E, R>(
  name: string,
  context: McpSchema.McpRequestContext["Service"],
  call: Effect.Effect<A, E, R>
) =>
  Effect.flatMap(Caller.Current, ({ messageId, transport }) => {
    const parent = parentOf(context)
    const attributes = {
      [names.mcpMethod]: "tools/call",
      [names.mcpVersion]: context.protocolVersion,
      [names.toolName]: name,
      [names.transport]: transport,
      ...(messageId === undefined ? {} : { [names.jsonRpcId]: messageId })
    }
    return call.pipe(
      Effect.tap((result) =>
        "isError" in result && result.isError === true
          ? Effect.annotateCurrentSpan(names.error, "tool_error")
          : Effect.void
      ),
      Effect.withSpan(
        `tools/call ${name}`,
        { kind: "server", attributes, ...(parent === undefined ? {} : { parent }) },
        { captureStackTrace: false }
      )
    )
  })
