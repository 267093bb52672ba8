/**
 * What a Responses request says of tools and of the form of the answer. The provider's own tools come with the options
 * and stand beside those of the run; schemas are rewritten where the model is to be held to them.
 */
import * as Option from "effect/Option"
import type * as Adapter from "../../Adapter.ts"
import type * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"
import * as StrictSchema from "./strictSchema.ts"
import * as Wire from "./wire.ts"

interface Options {
  readonly strict?: boolean
  readonly parallelToolCalls?: boolean
}

/**
 * The names of the tools that are declared to take a text instead of arguments, among the provider's own; nothing if
 * there are none of its own.
 */
export const custom = (given: ReadonlyArray<Json.JsonObject>): ReadonlySet<string> | undefined =>
  given.length === 0
    ? undefined
    : new Set(given.flatMap(({ name, type }) => type === "custom" && typeof name === "string" ? [name] : []))

/** Servers refuse what concerns tools in a request without any. */
export const write = (
  request: Adapter.Request,
  given: ReadonlyArray<Json.JsonObject>,
  options: Options
): Json.JsonObject => {
  const texts = custom(given)
  const own = request.tools.filter(({ name }) => texts?.has(name) !== true).map((one) => tool(one, options))
  return own.length + given.length === 0 ? {} : {
    tools: [...own, ...given],
    ...toolChoice(request.toolChoice, texts),
    ...Wire.given("parallel_tool_calls", options.parallelToolCalls)
  }
}

/** Not to say whether a schema is strict would have the provider rewrite it. */
const tool = ({ description, name, parameters }: Tool.Definition, options: Options): Json.JsonObject => {
  const strict = options.strict === true ? StrictSchema.rewrite(parameters, StrictSchema.openAi) : Option.none()
  return {
    type: "function",
    name,
    ...(description === "" ? {} : { description }),
    parameters: Option.match(strict, { onNone: () => parameters, onSome: ({ schema }) => schema }),
    strict: Option.isSome(strict)
  }
}

const toolChoice = (
  choice: Adapter.ToolChoice | undefined,
  texts: ReadonlySet<string> | undefined
): Json.JsonObject => {
  if (choice === undefined) return {}
  if (typeof choice === "string") return { tool_choice: choice }
  return { tool_choice: { type: texts?.has(choice.name) === true ? "custom" : "function", name: choice.name } }
}

/** The form of the answer. A schema without a strict form goes out as it is: whether it will do is the server's to say. */
export const format = (wanted: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (wanted === undefined || wanted.type === "text") return {}
  const strict = wanted.type === "json_schema" && wanted.strict === true
    ? StrictSchema.rewrite(wanted.schema, StrictSchema.openAi)
    : Option.none()
  return { format: Option.match(strict, { onNone: () => wanted, onSome: ({ schema }) => ({ ...wanted, schema }) }) }
}
