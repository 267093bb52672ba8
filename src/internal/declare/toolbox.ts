/** The tools of a run by name. Few of them are a list that is gone through: each run has one, and a table is large. */
import type * as Tool from "../../Tool.ts"
import * as Lists from "../lists.ts"
import * as Handler from "./handler.ts"

/** Each name is there once, in the order in which the model is told of them. */
export type Toolbox = ReadonlyArray<Tool.Any> | ReadonlyMap<string, Tool.Any>

const isList = (tools: Toolbox): tools is ReadonlyArray<Tool.Any> => Array.isArray(tools)

export const empty: Toolbox = Lists.none

/**
 * The application's, replaced in place by the caller's, and then the others. Throws for a handler that cannot be called.
 */
export const make = (defaults: ReadonlyArray<Tool.Any>, given: ReadonlyArray<Tool.Any>): Toolbox => {
  const tools = defaults.concat(given)
  for (const tool of tools) {
    const mistake = Handler.misuse(tool.name, tool.handler)
    if (mistake !== undefined) throw mistake
  }
  const isFirst = ({ name }: Tool.Any, index: number): boolean =>
    tools.findIndex((tool) => tool.name === name) === index
  return tools.length < Lists.many && tools.every(isFirst) ? tools : new Map(tools.map((tool) => [tool.name, tool]))
}

/** Each call asks for its tool some times. */
export const find = (tools: Toolbox, name: string): Tool.Any | undefined => {
  if (!isList(tools)) return tools.get(name)
  for (let index = 0; index < tools.length; index++) if (tools[index]?.name === name) return tools[index]
  return undefined
}

export const all = (tools: Toolbox): ReadonlyArray<Tool.Any> => isList(tools) ? tools : Array.from(tools.values())
