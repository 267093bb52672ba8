/**
 * What a Gemini request says besides its turns: the tools and which of them may be called, the form of the answer, and
 * how much the model may think.
 */
import type * as Adapter from "../../Adapter.ts"
import * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"
import * as GeminiSchema from "./geminiSchema.ts"
import type * as Protocol from "./protocol.ts"
import * as Wire from "./wire.ts"

/** How much a model may think, and whether it tells. */
export interface Reasoning extends Protocol.Reasoning {
  readonly includeThoughts?: boolean
}

/** How schemas are written, and whether the model is always held to them. */
export interface Options {
  readonly schemas?: "jsonSchema" | "openApi"
  readonly strict?: boolean
}

export const tools = (options: Options, { toolChoice, tools }: Adapter.Request): Json.JsonObject => {
  if (tools.length === 0) return {}
  const functionCallingConfig = callingMode(options, toolChoice)
  return {
    tools: [{ functionDeclarations: tools.map((tool) => declaration(options, tool)) }],
    ...(functionCallingConfig === undefined ? {} : { toolConfig: { functionCallingConfig } })
  }
}

const declaration = (options: Options, { description, name, parameters }: Tool.Definition): Json.JsonObject => ({
  name,
  description,
  ...(options.schemas === "openApi"
    ? { parameters: GeminiSchema.openApi(parameters) }
    : { parametersJsonSchema: GeminiSchema.jsonSchema(parameters) })
})

const callingMode = (options: Options, choice: Adapter.ToolChoice = "auto"): Json.JsonObject | undefined => {
  if (typeof choice === "object") return { mode: "ANY", allowedFunctionNames: [choice.name] }
  if (choice === "auto") return options.strict === true ? { mode: "VALIDATED" } : undefined
  return { mode: choice === "none" ? "NONE" : "ANY" }
}

export const responseFormat = (options: Options, format: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (format === undefined || format.type === "text") return {}
  const responseMimeType = "application/json"
  if (format.type === "json_object") return { responseMimeType }
  return options.schemas === "openApi"
    ? { responseMimeType, responseSchema: GeminiSchema.openApi(format.schema) }
    : { responseMimeType, responseJsonSchema: GeminiSchema.jsonSchema(format.schema) }
}

/** What Google's own compatibility layer takes the words for, where a model knows none. */
const budgets: { readonly [effort: string]: number } = { none: 0, minimal: 1024, low: 1024, medium: 8192, high: 24_576 }

export const thinking = (reasoning: Reasoning | undefined, model: string): Json.JsonObject => {
  if (reasoning === undefined) return {}
  const { effort, includeThoughts = true, maxTokens } = reasoning
  const isWord = effort !== undefined && effort !== "none" && !/gemini-[12]\b/.test(model)
  const budget = maxTokens ?? (effort === undefined || isWord ? undefined : budgets[effort])
  const level = budget === undefined ? Wire.given("thinkingLevel", effort) : { thinkingBudget: budget }
  return { thinkingConfig: { ...level, includeThoughts } }
}

/** A caller's own members over ours: objects are merged, and tools are added. */
export const merged = (base: Json.JsonObject, extra: Json.JsonObject = {}): Json.JsonObject => {
  const members = Object.entries(extra).map(([key, value]) => {
    const known = base[key]
    if (key === "tools" && Array.isArray(known) && Array.isArray(value)) return [key, [...known, ...value]]
    return [key, Json.isObject(known) && Json.isObject(value) ? merged(known, value) : value]
  })
  return { ...base, ...Object.fromEntries(members) }
}
