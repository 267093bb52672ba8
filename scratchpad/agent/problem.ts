/**
 * What is wrong with a file, in the system's own words and without the calls around them, so that a model and a person
 * can both do something about it.
 */
import type * as PlatformError from "effect/PlatformError"
import * as Schema from "effect/Schema"

/**
 * Why a path cannot be used: it is not there, leads out of the folder, is no file (or no folder), holds no text, is
 * too large, or the system refuses to read or write it. Only a refusal is a fault of the folder and not of the question.
 */
export class FileProblem extends Schema.TaggedError<FileProblem>("heddle-agent/Workspace/FileProblem")("FileProblem", {
  reason: Schema.Literals(["missing", "outside", "wrong_kind", "no_text", "too_large", "unreadable", "unwritable"]),
  path: Schema.String,
  detail: Schema.String
}) {
  override get message(): string {
    return `cannot ${this.reason === "unwritable" ? "write" : "read"} ${this.path}: ${this.detail}`
  }
}

const details: Partial<Record<PlatformError.SystemErrorTag | "BadArgument", string>> = {
  PermissionDenied: "permission denied",
  Busy: "it is in use",
  TimedOut: "it took too long"
}

/** The system's own word for a failure, without the paths and calls around it. */
export const detailOf = (error: PlatformError.PlatformError): string => {
  const known = details[error.reason._tag]
  if (known !== undefined) return known
  const { cause } = error.reason
  return (cause instanceof Error ? cause.message : error.message).replace(/^E\w+: /, "").replace(/, \w+ '.*$/, "")
}

/** The failure of reading a path. */
export const problem = (path: string) => (error: PlatformError.PlatformError): FileProblem =>
  error.reason._tag === "NotFound"
    ? new FileProblem({ reason: "missing", path, detail: "there is no such file or folder" })
    : new FileProblem({ reason: "unreadable", path, detail: detailOf(error) })
