/**
 * What a developer learns of code of his that broke in a call: a warning that names the call and the error and shows
 * nothing of it, the whole of it at debug level, and what may be shown of it in the event that completes the call.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Message from "../../Message.ts"
import type * as Json from "../json.ts"
import { causeFields } from "./errorFields.ts"
import { isCrash, ToolError, toolError } from "./toolError.ts"

type Call = Pick<Message.ToolCall, "id" | "name">

const errorName = (cause: unknown): string => {
  const { _tag, name } = causeFields(cause)
  return typeof name === "string" ? ` (${name})` : typeof _tag === "string" ? ` (${_tag})` : ""
}

/** One warning without the error's own words, which may hold a user's data; those are logged at debug level. */
const warned = (subject: string, call: Call, code: string, error: unknown, cause: Cause.Cause<unknown>) =>
  Effect.logWarning(`${subject} of tool "${call.name}" broke: ${code}${errorName(error)}`).pipe(
    Effect.andThen(Effect.logDebug(`what ${subject} of tool "${call.name}" broke with`, cause)),
    Effect.annotateLogs({ "gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id, "error.type": code })
  )

/** The warning for a call that crashed. One that took too long did not break. */
export const ofCall = (call: Call, error: unknown): Effect.Effect<void> =>
  isCrash(error) && error.reason !== "timeout"
    ? warned("a call", call, error.reason, error.cause, Cause.die(error.cause ?? error))
    : Effect.void

/** What the completing event says of what a call crashed with. */
export const inEvent = (error: unknown): { readonly cause?: Json.JsonObject } =>
  isCrash(error) && error.cause !== undefined ? { cause: causeFields(error.cause) } : {}

/**
 * How a failure ends the span of its call: a report ends it well. Of another one a span has the reason, and nothing of
 * what was thrown, since spans carry no data.
 */
export const spanExit = (error: unknown): Exit.Exit<void, ToolError> => {
  if (!(error instanceof ToolError)) return Exit.void
  const { detail, reason, toolCallId = "", toolName = "" } = error
  const shown = reason === "timeout" && detail !== undefined ? { detail } : {}
  return Exit.fail(toolError(reason, { id: toolCallId, name: toolName }, shown))
}

/** The warning for a gate that died. One that fails has explained its denial and is as it is to be. */
export const ofGate = (gate: string, call: Call, cause: Cause.Cause<unknown>): Effect.Effect<void> =>
  Cause.hasDies(cause) ? warned(gate, call, "denied", Cause.squash(cause), cause) : Effect.void
