/**
 * Attributes for viewers, beside the conventions' own: operation type, session, and, with captured content, input and
 * output.
 */
import type * as Telemetry from "../../internal/telemetry.ts"
import { names } from "../../internal/telemetry.ts"

/**
 * Viewers with their own attributes.
 *
 * @category models
 */
export type Dialect = "langfuse" | "openinference"

type Attributes = Readonly<Record<string, unknown>>

type Kind = Telemetry.Operation["kind"]

/** Picks input and output from the content attributes, depending on the operation. */
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
 * Returns `true` if a viewer may add up the usage of all spans in a trace. The run's span already sums its model calls,
 * so they would count twice. Every dialect has such viewers: Langfuse before July 2026
 * (https://github.com/langfuse/langfuse/pull/14808), and some readers of OpenInference
 * (https://github.com/strands-agents/harness-sdk/issues/3602).
 */
export const addsUp = (chosen: ReadonlyArray<Dialect>): boolean => chosen.length > 0

/** All dialects, by name. */
export const dialects = Object.keys(writers) as ReadonlyArray<Dialect>

/** Returns an operation's attributes in the given dialects. `content` holds its content attributes. */
export const attributesOf = (
  operation: Telemetry.Operation,
  content: Attributes,
  chosen: ReadonlyArray<Dialect>
): Attributes =>
  Object.assign({}, ...chosen.map((dialect) => writers[dialect](operation, sides(operation.kind, content))))
