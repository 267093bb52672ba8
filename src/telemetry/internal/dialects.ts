/**
 * Attributes that viewers read beside those of the conventions: what an operation is, its session, and its input and
 * output, which are there only if the content is captured.
 */
import type * as Telemetry from "../../internal/telemetry.ts"
import { names } from "../../internal/telemetry.ts"

/**
 * The viewers with attributes of their own.
 *
 * @category models
 * @since 0.1.0
 */
export type Dialect = "langfuse" | "openinference"

type Attributes = Readonly<Record<string, unknown>>

type Kind = Telemetry.Operation["kind"]

/** The input and the output among the attributes of the content, as each kind of operation has them. */
const sides = (kind: Kind, content: Attributes) => ({
  input: content[kind === "execute_tool" ? "gen_ai.tool.call.arguments" : "gen_ai.input.messages"],
  output: content[kind === "execute_tool" ? "gen_ai.tool.call.result" : "gen_ai.output.messages"]
})

const langfuseTypes: Readonly<Record<Kind, string>> = {
  invoke_agent: "agent",
  inference: "generation",
  execute_tool: "tool",
  step: "span"
}

const langfuse = (
  { attributes, kind }: Telemetry.Operation,
  { input, output }: ReturnType<typeof sides>
): Attributes => {
  const cost = attributes[names.totalCost]
  return {
    "langfuse.observation.type": langfuseTypes[kind],
    "langfuse.observation.input": input,
    "langfuse.observation.output": output,
    "langfuse.observation.cost_details": kind === "inference" && cost !== undefined
      ? JSON.stringify({ total: cost })
      : undefined,
    "session.id": attributes[names.conversation]
  }
}

const openInferenceKinds: Readonly<Record<Kind, string>> = {
  invoke_agent: "AGENT",
  inference: "LLM",
  execute_tool: "TOOL",
  step: "CHAIN"
}

const mimeOf = (text: unknown): string | undefined =>
  typeof text !== "string" ? undefined : /^[[{]/.test(text) ? "application/json" : "text/plain"

const openInference = (
  { attributes, kind }: Telemetry.Operation,
  { input, output }: ReturnType<typeof sides>
): Attributes => {
  const isCounted = kind === "inference"
  const prompt = attributes[names.inputTokens]
  const completion = attributes[names.outputTokens]
  return {
    "openinference.span.kind": openInferenceKinds[kind],
    "input.value": input,
    "input.mime_type": mimeOf(input),
    "output.value": output,
    "output.mime_type": mimeOf(output),
    "session.id": attributes[names.conversation],
    "tool.name": attributes[names.toolName],
    ...(isCounted
      ? {
        "llm.model_name": attributes[names.responseModel] ?? attributes[names.model],
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": completion,
        "llm.token_count.total": typeof prompt === "number" && typeof completion === "number"
          ? prompt + completion
          : undefined,
        "llm.cost.total": attributes[names.totalCost]
      }
      : {})
  }
}

const writers: Readonly<Record<Dialect, typeof langfuse>> = { langfuse, openinference: openInference }

/**
 * Tells whether a viewer adds up the usage of all spans of a trace, the span of a run included, which has the sum of
 * its model calls. Langfuse did so until July 2026 (https://github.com/langfuse/langfuse/pull/14808); a viewer that
 * reads OpenInference counts tokens of model calls, and others add up whatever has usage
 * (https://github.com/strands-agents/harness-sdk/issues/3602).
 */
export const addsUp = (chosen: ReadonlyArray<Dialect>): boolean => chosen.length > 0

/** All dialects, by name. */
export const dialects = Object.keys(writers) as ReadonlyArray<Dialect>

/** Returns the attributes of an operation in the given dialects. `content` holds those of its content. */
export const attributesOf = (
  operation: Telemetry.Operation,
  content: Attributes,
  chosen: ReadonlyArray<Dialect>
): Attributes =>
  Object.assign({}, ...chosen.map((dialect) => writers[dialect](operation, sides(operation.kind, content))))
