/**
 * The hints of tools before clients. One that a tool does not declare is left out: for a client it has the default of
 * the protocol, by which a tool may destroy something. Effect's registry writes the defaults into what it lists, so
 * that the hints are put into the list when it leaves.
 *
 * @since 0.1.0
 */
import * as Result from "effect/Result"
import * as ToolOptions from "../../internal/declare/toolOptions.ts"
import * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"

/** Returns the hints that a tool declares. One that depends on the arguments is the careful one. */
export const declared = (tool: Tool.Any): Json.JsonObject =>
  Object.fromEntries(
    Object.entries({
      readOnlyHint: ToolOptions.declared(tool, "readOnly"),
      destructiveHint: ToolOptions.declared(tool, "destructive"),
      idempotentHint: tool.idempotent,
      openWorldHint: tool.openWorld
    }).filter(([, value]) => value !== undefined)
  )

/** Returns a function that puts the hints of tools, by their names, into the text of a message that lists them. */
export const listed = (hints: ReadonlyMap<string, Json.JsonObject>) => (text: string): string => {
  const message = Result.getOrUndefined(Json.parse(text))
  const result = Json.isObject(message) ? message["result"] : undefined
  if (!Json.isObject(message) || !Json.isObject(result) || !Array.isArray(result["tools"])) return text
  const tools = result["tools"].map((each) => {
    const { annotations: _, ...tool } = each
    const annotations = hints.get(tool.name) ?? Json.none
    return Object.keys(annotations).length === 0 ? tool : { ...tool, annotations }
  })
  return JSON.stringify({ ...message, result: { ...result, tools } })
}
