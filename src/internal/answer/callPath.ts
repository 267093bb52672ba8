/**
 * Public names for calls and replies. A call's name is its path: the ids of the enclosing calls and its own. With the
 * run where the call began to wait, the name identifies one wait. Only `format` and `parse` know the separators.
 */

import * as Values from "../declare/values.ts"

/** The calls leading to a call, outermost first, and the run where it began to wait. */
export interface CallPath {
  /** The run id. Left out if the reader knows the run. */
  readonly run?: string | undefined
  /** Call ids, at least one entry. */
  readonly path: ReadonlyArray<string>
}

const written = (id: string): string => id.replace(/[%/~]/g, (mark) => codes[mark as keyof typeof codes])

const codes = { "%": "%25", "/": "%2F", "~": "%7E" } as const

/** Returns the name of a call. Models and clients choose ids freely, so separators inside ids are percent-encoded. */
export const format = ({ path, run }: CallPath): string => {
  const calls = path.map(written).join("/")
  return run === undefined ? calls : `${written(run)}~${calls}`
}

/** Parses a name. Returns `undefined` for an invalid name: clients may send anything. */
export const parse = (name: unknown): CallPath | undefined => {
  if (typeof name !== "string") return undefined
  const parts = name.split("~")
  const [calls = "", run] = parts.toReversed()
  if (parts.length > 2 || run?.includes("/") === true || /%(?!25|2F|7E)/.test(name)) return undefined
  const path = calls.split("/").map(decodeURIComponent)
  return run === undefined ? { path } : { run: decodeURIComponent(run), path }
}

/** Returns `true` if a text is a call path without a run. */
export const isPath = (name: unknown): name is string => {
  const parsed = parse(name)
  return parsed !== undefined && parsed.run === undefined && parsed.path.every((id) => id !== "")
}

/** Option kind for call paths. */
export const kind: Values.Kind = new Values.Kind("a call path, such as \"c0\" or \"c0/c1\"", isPath)

/** Returns the id of a call named alone, or `undefined` for a call in a nested run. */
export const ownCall = (name: string): string | undefined => {
  const { path: [id, ...nested] = [] } = parse(name) ?? {}
  return nested.length > 0 ? undefined : id
}

/** Returns a reply id for pages: the run, and the turn number within it. */
export const replyId = (run: string, turn: number): string => `${run}-${turn}`

/** Returns the id of the reply following a discarded reply in the same turn. */
export const nextReplyId = (id: string): string => `${id}r`

/** Returns the run of a reply, by reply id. */
export const runOfReply = (id: string): string => id.replace(/-\d+r*$/, "")
