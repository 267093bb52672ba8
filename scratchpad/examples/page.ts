/** A page that shows a run as it happens: server-sent events, and a run that ends when the reader leaves. */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Chat, Event } from "heddle"
import { Script } from "heddle/testing"
import { createServer } from "node:http"

const html = `<!doctype html><pre id="text"></pre><script>
  const source = new EventSource("/chat")
  source.onmessage = ({ data }) => {
    const event = JSON.parse(data)
    if (event._tag === "TextDelta") text.textContent += event.delta
    if (event._tag === "ChatCompleted") source.close()
  }
</script>`

const model = Script.layer(
  [Script.text("A heddle "), Script.delay("100 millis"), Script.text("lifts the warp."), Script.finish("stop")]
)

const chat = Effect.sync(() => {
  const events = Chat.stream("What is a heddle?").pipe(
    Stream.map((event) => `data: ${JSON.stringify(Event.toWire(event))}\n\n`),
    Stream.ensuring(Effect.sync(() => console.log("the run is over"))),
    Stream.encodeText,
    Stream.provide(model)
  )
  return HttpServerResponse.stream(events, { contentType: "text/event-stream" })
})

const routes = Layer.merge(
  HttpRouter.add("GET", "/", HttpServerResponse.html(html)),
  HttpRouter.add("GET", "/chat", chat)
)

const address = HttpServer.addressFormattedWith((address) => Effect.sync(() => console.log(address)))

const server = HttpRouter.serve(routes, { disableLogger: true, disableListenLog: true })

await Effect.runPromise(
  Layer.launch(
    Layer.merge(server, Layer.effectDiscard(address)).pipe(
      Layer.provide(NodeHttpServer.layer(createServer, { port: Number(process.argv[2] ?? 8080) }))
    )
  )
)
