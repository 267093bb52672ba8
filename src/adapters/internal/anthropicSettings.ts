/**
 * What an Anthropic request says of the model's work, other than the thread: its tools and which of them it may call,
 * how it may think, how long its answer may be and what form it has.
 */
import * as Option from "effect/Option"
import type * as Adapter from "../../Adapter.ts"
import type * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"
import * as Messages from "./anthropicMessages.ts"
import type * as Protocol from "./protocol.ts"
import * as StrictSchema from "./strictSchema.ts"
import { given } from "./wire.ts"

type Objects = ReadonlyArray<Json.JsonObject>

/** The options that settle it. */
export interface Options extends Pick<Protocol.Options, "parallelToolCalls" | "strict"> {
  readonly maxTokens?: number
  readonly reasoning?: Protocol.Reasoning & { readonly display?: "summarized" | "omitted" }
}

/**
 * The tools of a request and, after them, the provider's own. A thread with calls is refused when no tools are declared:
 * then those that it calls are.
 */
export const tools = ({ strict = false }: Options, { messages, tools }: Adapter.Request, hosted: Objects): Objects =>
  tools.length > 0 || hosted.length > 0
    ? [...tools.map((definition) => tool(definition, strict)), ...hosted]
    : Messages.calledNames(messages).map((name) => ({ name, input_schema: { type: "object" } }))

/** A schema that cannot be held strictly goes out as it is. The root has to be an object by its type. */
const tool = ({ description, name, parameters }: Tool.Definition, isStrict: boolean): Json.JsonObject => {
  const strict = isStrict ? StrictSchema.rewrite(parameters, StrictSchema.anthropic) : Option.none()
  return {
    name,
    ...(description === "" ? {} : { description }),
    ...Option.match(strict, {
      onNone: () => ({ input_schema: { type: "object", ...parameters } }),
      onSome: ({ schema }) => ({ input_schema: { type: "object", ...schema }, strict: true })
    })
  }
}

const choices = { auto: "auto", none: "none", required: "any" } as const

/** Which tool may be called, and whether only one: none, if the thread's own calls are all that is declared. */
export const toolChoice = (options: Options, request: Adapter.Request, hosted: Objects): Json.JsonObject => {
  const isDeclared = request.tools.length > 0 || hosted.length > 0
  if (!isDeclared && Messages.calledNames(request.messages).length === 0) return {}
  const choice = isDeclared ? request.toolChoice : "none"
  const isOne = options.parallelToolCalls === false && choice !== "none"
  if (choice === undefined && !isOne) return {}
  const chosen = typeof choice === "object" ? { type: "tool", name: choice.name } : { type: choices[choice ?? "auto"] }
  return { tool_choice: { ...chosen, ...(isOne ? { disable_parallel_tool_use: true } : {}) } }
}

/** How the model may think, where the protocol lets it: not when a tool is forced, nor in a turn that began without. */
export const thinking = ({ reasoning }: Options, request: Adapter.Request): Json.JsonObject | undefined => {
  const { toolChoice } = request
  if (reasoning === undefined || toolChoice === "required" || typeof toolChoice === "object") return undefined
  const { display, effort, maxTokens } = reasoning
  if (effort === "none") return { type: "disabled" }
  const shown = given("display", display)
  if (maxTokens === undefined) return { type: "adaptive", ...shown }
  return Messages.isThoughtless(request.messages) ? undefined : { type: "enabled", budget_tokens: maxTokens, ...shown }
}

/** A model that thinks chooses its own temperature. */
export const temperature = (
  { temperature }: Adapter.Request,
  thinking: Json.JsonObject | undefined
): Json.JsonObject => thinking === undefined || thinking["type"] === "disabled" ? given("temperature", temperature) : {}

/** How much work goes into an answer, and its form. */
export const output = ({ reasoning }: Options, { responseFormat }: Adapter.Request): Json.JsonObject => ({
  ...given("effort", reasoning?.effort === "none" ? undefined : reasoning?.effort),
  ...(responseFormat?.type === "json_schema" ? { format: format(responseFormat.schema) } : {})
})

const format = (schema: Json.JsonObject): Json.JsonObject => ({
  type: "json_schema",
  schema: Option.match(StrictSchema.rewrite(schema, StrictSchema.anthropic), {
    onNone: () => schema,
    onSome: (strict) => strict.schema
  })
})

/** The limit of an answer, which the protocol wants to be told. */
export const maxTokens = (
  options: Options,
  request: Adapter.Request,
  model: string,
  thinking: Json.JsonObject | undefined
): number =>
  request.maxTokens ?? options.maxTokens ??
    Math.max(longestAnswer(model), Number(thinking?.["budget_tokens"] ?? 0) + 4096)

/** What every model of a family can do, without asking for more than some of them allow. */
const longestAnswer = (model: string): number => {
  if (/claude-(3-(opus|sonnet|haiku)|2|instant)/.test(model)) return 4096
  return /claude-3-5/.test(model) || !model.includes("claude") ? 8192 : 32_000
}

/** Whether a model is known to take system messages after the first user message: Claude Opus from 4.8 on, and above. */
export const takesInlineSystem = (model: string): boolean => /claude-(opus-(4-[89]|[5-9])|fable|mythos)/.test(model)
