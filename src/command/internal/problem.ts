/**
 * One-sentence problems for a person to read, and texts free of control characters, for a terminal to show.
 */
import type * as Config from "effect/Config"
import * as Data from "effect/Data"

/** A problem a person can fix. Its message is one sentence. */
export class Problem extends Data.TaggedError("Problem")<{
  readonly message: string
  /** The exit code. 1 by default. */
  readonly code?: number
}> {}

/** Returns a problem. */
export const problem = (message: string, code = 1): Problem => new Problem({ message, code })

/** Removes the characters able to control a terminal or to reverse the reading direction. */
export const harmless = (text: string): string => text.replaceAll(/[^\P{Cc}\n\t]|\p{Bidi_Control}/gu, "")

const longest = 300

/** Returns a text as one line of bounded length. */
export const oneLine = (text: string): string => {
  const line = harmless(text.replaceAll(/\s+/g, " ")).trim()
  return line.length <= longest ? line : `${line.slice(0, longest)} …`
}

/** Describes a configuration fault: the setting's name, and what is wrong. */
const settingOf = ({ cause }: Config.ConfigError): string => {
  const path = cause._tag === "SchemaError" && cause.issue._tag === "Pointer" ? cause.issue.path : undefined
  // The rest of the message would repeat the path in other words.
  const [what = ""] = cause.message.split("\n")
  return path === undefined ? `the configuration cannot be read: ${what}` : `${path.map(String).join("_")}: ${what}`
}

const isConfigError = (error: unknown): error is Config.ConfigError =>
  typeof error === "object" && error !== null && "_tag" in error && error._tag === "ConfigError" && "cause" in error

/** Returns an error's message as one line. */
export const detailOf = (error: unknown): string => {
  if (isConfigError(error)) return oneLine(settingOf(error))
  return oneLine(error instanceof Error && error.message !== "" ? error.message : String(error))
}
