/**
 * The arguments of a call, read once for all protocols, bridges and the fold: what a text or an object comes to, and when
 * arguments count as lost. Arguments are bounded in depth, because what nests deeper overflows the stack of whoever
 * writes, compares or validates it.
 */
import * as Result from "effect/Result"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Json from "../json.ts"

/** How many levels arguments may nest, the object itself included. */
export const deepest = 256

/** What arguments come to: none in place of those that were lost. */
export type Arguments = Pick<Message.ToolCall, "arguments" | "argumentsLost">

export const lost = (reason: Message.ArgumentsLost): Arguments => ({ arguments: {}, argumentsLost: reason })

/** Whether a text has come to its end: it can be read, or could be but for its depth. */
export const isFinal = ({ argumentsLost }: Arguments): boolean =>
  argumentsLost === undefined || argumentsLost === "too_deep"

/** How a reply ended: well, by the token limit, or by something else that cut it. */
export type Ending = "whole" | "truncated" | "broken"

/** The ending that a finish reason stands for, in a reply that has one. */
export const endingOf = (finishReason: Response.FinishReason | null): Ending => {
  if (finishReason === "length") return "truncated"
  return finishReason === "error" || finishReason === "content_filter" ? "broken" : "whole"
}

/** Arguments that were parsed elsewhere. */
export const ofValue = (value: unknown): Arguments => {
  if (!Json.isObject(value)) return lost("not_an_object")
  return Json.isDeeper(value, deepest) ? lost("too_deep") : { arguments: value }
}

/** Whether what was read can be trusted. */
export const isWhole = ({ argumentsLost }: Arguments): boolean => argumentsLost === undefined

/** The text of arguments, where `null` stands for a call that has none. */
export const nullAsNone = (text: string): string => text.trim() === "null" ? "" : text

/** The arguments in a text that is whole. An empty text is a call without parameters. */
export const ofText = (text: string): Arguments => {
  if (text.trim() === "") return { arguments: {} }
  const parsed = Json.parse(text)
  if (Result.isFailure(parsed)) return lost("json_decode_error")
  // Every level takes two characters.
  return text.length <= 2 * deepest && Json.isObject(parsed.success)
    ? { arguments: parsed.success }
    : ofValue(parsed.success)
}

/**
 * The arguments of a call that the wire never completed, when its reply has ended. Without any fragment there are none,
 * unless the reply was cut.
 */
export const atEnd = (text: string, isObserved: boolean, ending: Ending): Arguments => {
  if (!isObserved && ending !== "whole") return lost(ending === "truncated" ? "truncated" : "missing_fragments")
  const found = ofText(text)
  return isFinal(found) || ending !== "truncated" ? found : lost("truncated")
}
