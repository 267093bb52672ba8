/**
 * Public names of calls and of replies. The name of a call is its path: the ids of the calls that lead to it, and its
 * own. With the run in which the call began to wait, it names one wait. Only `format` and `parse` know what stands
 * between ids.
 */

import * as Values from "../declare/values.ts"

/** The calls that lead to a call, from the outermost one to the call itself, and the run in which it began to wait. */
export interface CallPath {
  /** The run id. Left out where the reader knows the run. */
  readonly run?: string | undefined
  /** The call ids, at least one. */
  readonly path: ReadonlyArray<string>
}

const written = (id: string): string => id.replace(/[%/~]/g, (mark) => codes[mark as keyof typeof codes])

const codes = { "%": "%25", "/": "%2F", "~": "%7E" } as const

/**
 * Returns the name of a call. Ids may be any texts, since models and clients choose them: a mark that separates ids is
 * written as in a URL.
 */
export const format = ({ path, run }: CallPath): string => {
  const calls = path.map(written).join("/")
  return run === undefined ? calls : `${written(run)}~${calls}`
}

/** Returns the path that has this name, or nothing where no path has it. Clients may send anything as a name. */
export const parse = (name: unknown): CallPath | undefined => {
  if (typeof name !== "string") return undefined
  const parts = name.split("~")
  const [calls = "", run] = parts.toReversed()
  if (parts.length > 2 || run?.includes("/") === true || /%(?!25|2F|7E)/.test(name)) return undefined
  const path = calls.split("/").map(decodeURIComponent)
  return run === undefined ? { path } : { run: decodeURIComponent(run), path }
}

/** Tells whether a text is the path of a call, without a run. */
export const isPath = (name: unknown): name is string => {
  const parsed = parse(name)
  return parsed !== undefined && parsed.run === undefined && parsed.path.every((id) => id !== "")
}

/** The kind of an option that is the path of a call. */
export const kind: Values.Kind = new Values.Kind("the path of a call, such as \"c0\" or \"c0/c1\"", isPath)

/** Returns the id of the call that a name names alone, or nothing where it names a call of a nested run. */
export const ownCall = (name: string): string | undefined => {
  const { path: [id, ...nested] = [] } = parse(name) ?? {}
  return nested.length > 0 ? undefined : id
}

/** Returns the id of a reply for pages: the run, and the number of the turn in it. */
export const replyId = (run: string, turn: number): string => `${run}-${turn}`

/** Returns the id of the reply that follows a discarded one in its turn. */
export const nextReplyId = (id: string): string => `${id}r`

/** Returns the run of a reply, by the id of the reply. */
export const runOfReply = (id: string): string => id.replace(/-\d+r*$/, "")
