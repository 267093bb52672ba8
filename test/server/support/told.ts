/** A model that says what a test has it say. */
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { Adapter, Message } from "heddle"

/** A model that says what the test tells it, and counts its replies. */
export const told = () => {
  const words = Effect.runSync(Queue.unbounded<string | undefined>())
  let opened = 0
  const model = Adapter.layer({
    stream: () =>
      Stream.suspend(() => {
        opened++
        let said = ""
        const deltas = Stream.fromEffectRepeat(Queue.take(words)).pipe(
          Stream.takeWhile((word) => word !== undefined),
          Stream.map((delta) => {
            said += delta
            return { _tag: "TextDelta" as const, id: null, delta: String(delta) }
          })
        )
        return Stream.make({ _tag: "MessageStarted" as const, message: Message.assistant("") }).pipe(
          Stream.concat(deltas),
          Stream.concat(Stream.suspend(() =>
            Stream.make({
              _tag: "MessageCompleted" as const,
              message: Message.assistant(said),
              finishReason: "stop" as const,
              metadata: {}
            })
          ))
        )
      })
  })
  const say = (...said: ReadonlyArray<string | undefined>) => Queue.offerAll(words, said)
  return { model, say, opened: () => opened }
}
