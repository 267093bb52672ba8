/** A model that gives a typed answer in the pieces that a test has it give. */
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message } from "heddle"

/** How the answer comes: as the text of the reply, or as the arguments of the tool for it. */
export type By = "text" | "call"

/**
 * A model whose one reply is the answer, in pieces. The time between two pieces is longer than that between two parts of
 * an answer, so that each piece has its part.
 */
export const answering = (by: By) => {
  const pieces = Effect.runSync(Queue.unbounded<string | undefined>())
  const stream = (): Stream.Stream<Event.AdapterEvent> =>
    Stream.suspend(() => {
      let whole = ""
      const begun: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "MessageStarted", message: Message.assistant("") },
        ...(by === "call" ? [{ _tag: "ToolCallStarted", id: "c", name: "final_answer" } as const] : [])
      ]
      const deltas = Stream.fromEffectRepeat(Queue.take(pieces)).pipe(
        Stream.takeWhile((piece) => piece !== undefined),
        Stream.mapEffect((piece) => Effect.as(Effect.sleep("60 millis"), String(piece))),
        Stream.map((delta): Event.AdapterEvent => {
          whole += delta
          return by === "text"
            ? { _tag: "TextDelta", id: null, delta }
            : { _tag: "ToolCallDelta", id: "c", argumentsDelta: delta }
        })
      )
      const end = Stream.suspend(() => {
        if (by === "text") {
          return Stream.fromIterable<Event.AdapterEvent>([
            { _tag: "TextCompleted", id: null, text: whole },
            { _tag: "MessageCompleted", message: Message.assistant(whole), finishReason: "stop" }
          ])
        }
        const call = { ...Message.toolCall("c", "final_answer", JSON.parse(whole)), rawArguments: whole }
        return Stream.fromIterable<Event.AdapterEvent>([
          { _tag: "ToolCallCompleted", ...call },
          { _tag: "MessageCompleted", message: Message.assistant("", [call]), finishReason: "tool_calls" }
        ])
      })
      return Stream.fromIterable(begun).pipe(Stream.concat(deltas), Stream.concat(end))
    })
  const model = Adapter.layer({
    ...(by === "text" ? { output: { native: "always", forced: true } as const } : {}),
    stream
  })
  /** Gives pieces. `undefined` ends the reply. */
  const give = (...given: ReadonlyArray<string | undefined>) => Queue.offerAll(pieces, given)
  return { model, give }
}
