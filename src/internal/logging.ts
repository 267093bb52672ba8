/**
 * Log records, and the words in them and in spans that are a provider's or a model's: one word at most, so that no text
 * of a user leaves with them.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Json from "./json.ts"

/** The value of an attribute for any text that is not one of those that are known. */
export const other = "_OTHER"

/** Returns an id or a name that a provider or a model gave, if it is one word, and nothing of any other text. */
export const wordOf = (text: string | null | undefined): string | undefined =>
  typeof text === "string" && /^[!-~]{1,256}$/.test(text) ? text : undefined

/** The attribute of the id of a call, where it is a word. */
export const callId = (id: string): Record<string, string> => {
  const word = wordOf(id)
  return word === undefined ? {} : { "gen_ai.tool.call.id": word }
}

/** Logs what an operator should see. A run does not depend on its loggers: one that throws changes nothing of it. */
export const logged = (record: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.catchDefect(record, () => Effect.void)

/**
 * Logs a warning with the name of what broke. The words of that, which may be a user's, are logged at debug level. The
 * other attributes are the caller's.
 */
export const warned = (
  message: string,
  cause: Cause.Cause<unknown>,
  attributes: Readonly<Record<string, unknown>> = {}
): Effect.Effect<void> =>
  logged(
    Effect.logWarning(message).pipe(
      Effect.andThen(Effect.logDebug(message, cause)),
      Effect.annotateLogs({ "error.type": Json.nameOf(Cause.squash(cause)), ...attributes })
    )
  )
