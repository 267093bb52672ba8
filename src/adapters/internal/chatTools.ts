/**
 * What a Chat Completions request says of tools and of the form of the answer. Schemas are rewritten where the model is
 * to be held to them.
 */
import * as Option from "effect/Option"
import type * as Adapter from "../../Adapter.ts"
import type * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"
import type * as Vendors from "./chatVendors.ts"
import * as StrictSchema from "./strictSchema.ts"
import * as Wire from "./wire.ts"

/** Servers refuse what concerns tools in a request without any. */
export const write = (
  request: Adapter.Request,
  vendor: Vendors.Vendor,
  options: { readonly strict?: boolean; readonly parallelToolCalls?: boolean }
): Json.JsonObject =>
  request.tools.length === 0 ? {} : {
    tools: request.tools.map((definition) => ({
      type: "function",
      function: tool(definition, options.strict === true)
    })),
    ...toolChoice(request.toolChoice, vendor),
    ...Wire.given("parallel_tool_calls", options.parallelToolCalls)
  }

const tool = ({ description, name, parameters }: Tool.Definition, isStrict: boolean): Json.JsonObject => ({
  name,
  ...(description === "" ? {} : { description }),
  ...Option.match(isStrict ? StrictSchema.rewrite(parameters, StrictSchema.openAi) : Option.none(), {
    onNone: () => ({ parameters }),
    onSome: ({ schema }) => ({ parameters: schema, strict: true })
  })
})

const toolChoice = (choice: Adapter.ToolChoice | undefined, vendor: Vendors.Vendor): Json.JsonObject => {
  if (choice === undefined) return {}
  if (typeof choice !== "string") return { tool_choice: { type: "function", function: { name: choice.name } } }
  return { tool_choice: choice === "required" ? vendor.required : choice }
}

/** The form of the answer. A model that is held to a schema writes null for what may be missing. */
export const responseFormat = (format: Adapter.ResponseFormat | undefined): Json.JsonObject => {
  if (format === undefined || format.type === "text") return {}
  if (format.type === "json_object") return { response_format: { type: format.type } }
  const { type, ...json_schema } = format
  return { response_format: { type, json_schema: { ...json_schema, ...strictFormat(format) } } }
}

/** A schema without a strict form goes out as it is: whether it can be held to is the server's to say. */
const strictFormat = ({ schema, strict }: Extract<Adapter.ResponseFormat, { readonly schema: unknown }>) =>
  strict !== true ? {} : Option.match(StrictSchema.rewrite(schema, StrictSchema.openAi), {
    onNone: () => ({}),
    onSome: (strict) => ({ schema: strict.schema })
  })
