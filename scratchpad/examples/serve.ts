/**
 * A worker process as it is deployed: it reports its health over HTTP, and loses no call when it is asked to leave. Start
 * `serve.ts work` with `node --conditions=source` in two terminals, and `submit` an order in a third one. One of the two
 * asks for the order to be packed: press Ctrl-C there, then Enter, and the other one continues the run.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { createServer } from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [command, filename = join(tmpdir(), "heddle-serve.db"), port = "0"] = process.argv.slice(2)

/** A model that has an order packed, and then says so, whichever process asks it. */
const turns = [
  [Script.toolCall("c0", "pack"), Script.finish("tool_calls")],
  [Script.text("It is packed."), Script.finish("stop")]
]
const model = Adapter.layer({
  stream: (request) =>
    Stream.unwrap(
      Effect.map(Script.make([turns[request.messages.length > 1 ? 1 : 0]!]), ({ stream }) => stream(request))
    )
})

const pack = Tool.make("pack", {
  parameters: {},
  handler: (_, { sessionId }) =>
    Effect.callback<string>((resume) => {
      console.log(`pack ${sessionId}, and press Enter`)
      process.stdin.once("data", () => resume(Effect.succeed("packed")))
    })
})

const worker = Worker.layer({
  run: () => ({ tools: [pack] }),
  onEnd: (id, { finalResponse }) => Effect.sync(() => console.log(`${id}: ${finalResponse?.outputText}`))
})

/** The server is open until the process ends, so that the leave is reported as well. */
const health = Layer.effectDiscard(Effect.map(Worker.Worker, (worker) => {
  const server = createServer((_, response) => {
    const health = Effect.runSync(worker.health)
    response.writeHead(health.isReady ? 200 : 503).end(JSON.stringify(health))
  })
  server.listen(Number(port), "127.0.0.1", () => console.log("health:", server.address()))
}))

const app = command === "submit"
  ? Session.submit("order-7", "Pack my order")
  : Layer.launch(Layer.provide(health, worker)).pipe(Effect.provide(model))
NodeRuntime.runMain(app.pipe(Effect.provide(SessionStore.layerSqlite({ filename }))))
