/**
 * Compact tools: the model is offered one line per tool instead of a schema, and a `tool_help` tool that tells the
 * schema. Help is answered from the tool list; a compact tool that is called without a required argument answers with
 * its usage, so that the model learns the schema from its mistake.
 */
import type * as Message from "../../Message.ts"
import type * as Tool from "../../Tool.ts"
import * as Toolbox from "./toolbox.ts"

const helpName = "tool_help"

const requiredOf = (tool: Tool.Any): ReadonlyArray<string> => {
  const { required } = tool.parameters.jsonSchema
  return Array.isArray(required) ? required : []
}

const argumentNames = (tool: Tool.Any): ReadonlyArray<string> =>
  Object.keys(tool.parameters.jsonSchema["properties"] ?? {})

const usage = (tool: Tool.Any): string =>
  `usage of ${tool.name}: ${tool.description}\n${JSON.stringify(tool.parameters.jsonSchema)}`

const stub = (tool: Tool.Any): Tool.Definition => ({
  name: tool.name,
  description: `${tool.summary ?? tool.description} (${argumentNames(tool).join(", ") || "no arguments"})`,
  parameters: { type: "object", properties: {} }
})

const full = (tool: Tool.Any): Tool.Definition => ({
  name: tool.name,
  description: tool.description,
  parameters: tool.parameters.jsonSchema
})

const helpTool: Tool.Definition = {
  name: helpName,
  description: "The full description and parameters of the named tools",
  parameters: {
    type: "object",
    properties: { names: { type: "array", items: { type: "string" } } },
    required: ["names"]
  }
}

/** What the model is told of the tools. A tool that is forced by name is told in full; one named like ours is theirs. */
export const definitions = (
  list: ReadonlyArray<Tool.Any>,
  forced: string | undefined
): ReadonlyArray<Tool.Definition> => {
  const told = list.map((tool) => tool.compact && tool.name !== forced ? stub(tool) : full(tool))
  const needsHelp = list.some((tool) => tool.compact) && !list.some((tool) => tool.name === helpName)
  return needsHelp ? [...told, helpTool] : told
}

/** The answer to a call of `tool_help`, when there is a compact tool to help with. */
export const help = (call: Message.ToolCall, tools: Toolbox.Toolbox): Tool.Outcome | undefined => {
  const compact = Toolbox.all(tools).filter((tool) => tool.compact)
  if (call.name !== helpName || compact.length === 0) return undefined
  const { names } = call.arguments
  const wanted = Array.isArray(names) ? compact.filter((tool) => names.includes(tool.name)) : compact
  return wanted.length === 0
    ? {
      _tag: "Error",
      error: `there is no help for that; ask for one of ${compact.map((tool) => tool.name).join(", ")}`
    }
    : { _tag: "Ok", value: wanted.map(full) }
}

/** The usage of a compact tool that was called without a required argument. */
export const missing = (call: Message.ToolCall, tool: Tool.Any): string | undefined => {
  if (!tool.compact) return undefined
  return requiredOf(tool).some((name) => !Object.hasOwn(call.arguments ?? {}, name)) ? usage(tool) : undefined
}
