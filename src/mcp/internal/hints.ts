/**
 * Tool hints for clients. Undeclared hints are omitted: the client then applies the protocol's default, which treats a
 * tool as destructive. Effect's registry writes defaults into its lists, so the declared hints replace them on the way
 * out.
 */
import * as Result from "effect/Result"
import * as ToolOptions from "../../internal/declare/toolOptions.ts"
import * as Json from "../../internal/json.ts"
import type * as Tool from "../../Tool.ts"

/** Returns a tool's declared hints. A hint depending on arguments takes its cautious value. */
export const declared = (tool: Tool.Any): Json.JsonObject =>
  Object.fromEntries(
    Object.entries({
      readOnlyHint: ToolOptions.declared(tool, "readOnly"),
      destructiveHint: ToolOptions.declared(tool, "destructive"),
      idempotentHint: tool.idempotent,
      openWorldHint: tool.openWorld
    }).filter(([, value]) => value !== undefined)
  )

/** Returns a function writing the tools' hints into the text of a tool list. */
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
