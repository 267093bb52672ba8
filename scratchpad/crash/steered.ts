/** A worker whose runs make three calls and then answer, for `steers.ts` to send messages into and to kill. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Adapter, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as Database from "./database.ts"
import { settings } from "./session.ts"

const look = Tool.make("look", {
  parameters: {},
  idempotent: true,
  handler: () => Effect.as(Effect.sleep("40 millis"), "seen")
})

const replyTo = ({ messages }: Adapter.Request) => {
  const replies = messages.filter(({ role }) => role === "assistant")
  const answered = replies.findLastIndex(({ toolCalls = [] }) => toolCalls.length === 0)
  const reply = replies.length - answered - 1 < 3
    ? [Script.toolCall(`c${messages.length}`, "look"), Script.finish("tool_calls")]
    : [Script.text("Done."), Script.finish("stop")]
  return Script.make([reply])
}

const model = Adapter.layer({
  stream: (request) => Stream.unwrap(Effect.map(replyTo(request), (script) => script.stream(request)))
})

const store = Layer.provide(SessionStore.layer, Database.client(settings.server))

const worker = Worker.layer({ run: () => ({ tools: [look] }), term: "1 second", poll: "50 millis" })

await Effect.runPromise(
  Effect.andThen(
    Database.made(settings.server),
    Layer.launch(Layer.provide(worker, Layer.merge(store, model)))
  ).pipe(Effect.provide(Logger.layer([])))
)
