/** A worker whose tool takes long, for `stops.ts` to stop from another process. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as Database from "./database.ts"
import { settings } from "./session.ts"

const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.sleep("30 seconds") })

const reply: Script.Input = [[Script.toolCall("c0", "wait"), Script.finish("tool_calls")]]

const model = Adapter.layer({
  stream: (request) => Stream.unwrap(Effect.map(Script.make(reply), (script) => script.stream(request)))
})

const store = Layer.provide(SessionStore.layer, Database.client(settings.server))

const worker = Worker.layer({ run: () => ({ tools: [wait] }), term: "3 seconds", poll: "100 millis" })

await Effect.runPromise(Effect.andThen(
  Database.made(settings.server),
  Layer.launch(Layer.provide(worker, Layer.merge(store, model)))
))
