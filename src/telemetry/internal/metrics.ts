/**
 * Metrics for model calls, runs and tool calls, with the conventions' bounds and units. A duration equals the span's,
 * to the nanosecond.
 */
import * as Context from "effect/Context"
import * as Metric from "effect/Metric"
import type * as Telemetry from "../../internal/telemetry.ts"
import { names, other } from "../../internal/telemetry.ts"

/** Returns `count` bounds, each `factor` times the previous. */
const bounds = (first: number, factor: number, count: number): ReadonlyArray<number> =>
  Array.from({ length: count }, (_, index) => Number((first * factor ** index).toPrecision(12)))

interface Histogram {
  readonly name: string
  readonly unit: string
  readonly description: string
  readonly boundaries: ReadonlyArray<number>
}

const seconds = { unit: "s", boundaries: bounds(0.01, 2, 14) }
const calls = bounds(1, 2, 8)

const histograms = {
  inference: {
    ...seconds,
    name: "gen_ai.client.operation.duration",
    description: "Duration of a model call, with its retries"
  },
  tokens: {
    name: "gen_ai.client.token.usage",
    unit: "{token}",
    boundaries: bounds(1, 4, 14),
    description: "Tokens of a model call"
  },
  firstChunk: {
    ...seconds,
    name: "gen_ai.client.operation.time_to_first_chunk",
    description: "Time until the first chunk of a reply"
  },
  nextChunk: {
    ...seconds,
    name: "gen_ai.client.operation.time_per_output_chunk",
    description: "Time between two chunks of a reply"
  },
  run: {
    name: "gen_ai.invoke_agent.duration",
    unit: "s",
    boundaries: bounds(0.1, 2, 13),
    description: "Duration of a run"
  },
  inferences: {
    name: "gen_ai.invoke_agent.inference_calls",
    unit: "{inference_call}",
    boundaries: calls,
    description: "Model calls of a run"
  },
  tools: {
    name: "gen_ai.invoke_agent.tool_calls",
    unit: "{tool_call}",
    boundaries: calls,
    description: "Tool calls of a run"
  },
  tool: { ...seconds, name: "gen_ai.execute_tool.duration", description: "Duration of a tool call" }
} as const satisfies Readonly<Record<string, Histogram>>

/** Maximum number of values per metric attribute. A registry keeps every value for its lifetime. */
const mostValues = 100

/** Attribute values known to a registry, by name. */
const known = new WeakMap<object, Map<string, Set<string>>>()

/** Returns the value, or `_OTHER` beyond the limit: providers and servers may invent any number. */
const bounded = (name: string, value: string, context: Context.Context<never>): string => {
  const registry = Context.get(context, Metric.MetricRegistry)
  const byName = known.get(registry) ?? new Map<string, Set<string>>()
  known.set(registry, byName)
  const values = byName.get(name) ?? new Set()
  byName.set(name, values)
  return values.has(value) || values.size < mostValues && values.add(value) ? value : other
}

/** Returns metric attributes as texts, picked from the operation's attributes. */
const chosen = (
  { attributes, tracing: { context } }: Telemetry.Operation,
  keys: ReadonlyArray<string>
): Record<string, string> => {
  const out: Record<string, string> = {}
  for (const key of keys) if (attributes[key] !== undefined) out[key] = bounded(key, String(attributes[key]), context)
  return out
}

const ofInference = [
  names.operation,
  names.provider,
  names.model,
  names.responseModel,
  names.address,
  names.port,
  names.error
]
const ofRun = [names.operation, names.provider, names.agentName, names.model, names.error]
const ofCounts = [names.agentName]
const ofTool = [names.operation, names.toolName, names.toolType, names.agentName, names.error]

/** Returns `true` for a figure usable in a sum. A provider may report any number. */
const isCounted = (value: unknown): value is number => typeof value === "number" && value >= 0 && value < Infinity

const record = (
  { boundaries, description, name, unit }: Histogram,
  value: unknown,
  attributes: Record<string, string>,
  context: Context.Context<never>
): void => {
  if (!isCounted(value)) return
  Metric.histogram(name, { boundaries, description, attributes: { ...attributes, unit } }).updateUnsafe(value, context)
}

/** Records the time between two chunks. */
export const chunk = (operation: Telemetry.Operation, seconds: number): void =>
  record(histograms.nextChunk, seconds, chosen(operation, ofInference), operation.tracing.context)

const inferenceEnded = (operation: Telemetry.Operation): void => {
  const { attributes, seconds, tracing: { context } } = operation
  const own = chosen(operation, ofInference)
  record(histograms.inference, seconds, own, context)
  record(histograms.firstChunk, attributes[names.timeToFirstChunk], own, context)
  const tokens = { input: attributes[names.inputTokens], output: attributes[names.outputTokens] }
  for (const [type, count] of Object.entries(tokens)) {
    record(histograms.tokens, count, { ...own, "gen_ai.token.type": type }, context)
  }
  const cost = attributes[names.totalCost]
  if (isCounted(cost)) {
    const description = "Cost of model calls, as providers report it"
    Metric.counter(names.totalCost, { description, incremental: true, attributes: own }).updateUnsafe(cost, context)
  }
}

const runEnded = (operation: Telemetry.Operation, { inferenceCalls, toolCalls }: Telemetry.RunFacts): void => {
  const { seconds, tracing: { context } } = operation
  record(histograms.run, seconds, chosen(operation, ofRun), context)
  const own = chosen(operation, ofCounts)
  record(histograms.inferences, inferenceCalls, own, context)
  record(histograms.tools, toolCalls, own, context)
}

const toolEnded = (operation: Telemetry.Operation): void =>
  record(histograms.tool, operation.seconds, chosen(operation, ofTool), operation.tracing.context)

/** Records the metrics of a finished operation. */
export const ended = (operation: Telemetry.Operation): void => {
  switch (operation.facts.kind) {
    case "inference":
      return inferenceEnded(operation)
    case "invoke_agent":
      return runEnded(operation, operation.facts)
    case "execute_tool":
      return toolEnded(operation)
    case "step":
      return
  }
}
