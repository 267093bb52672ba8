/** A run whose process ended while a call ran, resumed with the question about the effect of the call. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { journalOf, prefixed } from "./survivor.ts"

/** Returns the events of the resumed run, whose call has the text as its argument. */
export const upToCallStarted = (text: string) =>
  Effect.gen(function*() {
    const pay = Tool.make("pays", {
      parameters: { card: Schema.String },
      afterCrash: "ask",
      handler: () => Effect.succeed("paid")
    })
    const options = { tools: [pay] as unknown as [] }
    const model = Script.layer([
      [Script.toolCall("c", "pays", { card: text }), Script.finish("tool_calls")],
      [Script.text("done"), Script.finish("stop")]
    ])
    const records = yield* Effect.gen(function*() {
      const opened = yield* Session.open("s")
      yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
      return yield* journalOf("s")
    }).pipe(Effect.provide([model, Session.Store.layerMemory]))
    const until = records.findIndex(({ _tag }) => _tag === "CallStarted") + 1
    return yield* Effect.gen(function*() {
      const cut = yield* Session.load("s")
      return yield* Stream.runCollect(Session.streamResume(cut!, { takeOver: true, ...options }))
    }).pipe(Effect.provide([Script.layer([]), prefixed("s", records.slice(0, until))]))
  })
