/**
 * What is said of calls whose arguments did not arrive whole: the tool, the call, the reason and how much had arrived,
 * and never the text itself, which may be anybody's secret.
 */
import * as Effect from "effect/Effect"
import type * as Message from "../../Message.ts"

export interface LostArguments {
  readonly id: string
  readonly name: string
  readonly reason: Message.ArgumentsLost
  /** The length of what arrived, in bytes of UTF-8. */
  readonly bytes: number
}

/** The bytes of a text in UTF-8, counted without writing them. */
const bytesOf = (text: string): number => {
  let bytes = 0
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    const isPair = unit >= 0xd800 && unit < 0xdc00 && (text.charCodeAt(index + 1) & 0xfc00) === 0xdc00
    bytes += unit < 0x80 ? 1 : unit < 0x800 ? 2 : isPair ? 4 : 3
    if (isPair) index++
  }
  return bytes
}

/** One for each call that has to be answered here and lost its arguments. */
export const of = (calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<LostArguments> =>
  calls.flatMap(({ argumentsLost, id, name, providerExecuted, rawArguments = "" }) =>
    argumentsLost === undefined || providerExecuted === true
      ? []
      : [{ id, name, reason: argumentsLost, bytes: bytesOf(rawArguments) }]
  )

const warning = ({ bytes, id, name, reason }: LostArguments): Effect.Effect<void> =>
  Effect.logWarning(`the arguments of a call of "${name}" were lost: ${reason}`).pipe(
    Effect.annotateLogs({
      "gen_ai.tool.name": name,
      "gen_ai.tool.call.id": id,
      "heddle.arguments.lost": reason,
      "heddle.arguments.bytes": bytes
    })
  )

/** What was said, after one warning for each of its calls that lost its arguments. */
export const reported = <A extends { readonly toolCalls: ReadonlyArray<Message.ToolCall> }>(
  said: A
): Effect.Effect<A> => {
  const lost = of(said.toolCalls)
  return lost.length === 0 ? Effect.succeed(said) : Effect.as(Effect.forEach(lost, warning, { discard: true }), said)
}
