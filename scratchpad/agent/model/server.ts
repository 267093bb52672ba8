/**
 * The embedded model behind a real HTTP server on the loopback interface, so that a run without a key goes the whole
 * way through the adapter. It streams at a pace, as a model does, and is gone with the layer that made it.
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as HttpServerRequest from "effect/http/HttpServerRequest"
import * as HttpServerResponse from "effect/http/HttpServerResponse"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { createServer } from "node:http"
import * as Reply from "./reply.ts"
import * as Wire from "./wire.ts"

/** Where the embedded model is served, for a client that speaks the protocol. */
export class Endpoint extends Context.Service<Endpoint, { readonly baseUrl: string }>()("heddle-agent/Endpoint") {}

const refused = (message: string) =>
  HttpServerResponse.jsonUnsafe({ error: { message, type: "invalid_request_error", param: null, code: null } }, {
    status: 400
  })

const framed = (event: object | string): string =>
  `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`

/** What is said comes piece by piece, each when the pace allows; the end comes at once, as it does from real servers. */
const streamed = ({ last, spoken }: Wire.Chunks, pace: Effect.Effect<void>) => {
  const body = Stream.fromIterable(spoken).pipe(
    Stream.rechunk(1),
    Stream.mapEffect((event) => Effect.as(pace, framed(event))),
    Stream.concat(Stream.succeed([...last, "[DONE]"].map(framed).join(""))),
    Stream.encodeText
  )
  return HttpServerResponse.stream(body, { contentType: "text/event-stream", headers: { "cache-control": "no-cache" } })
}

/** Answers one request to `chat/completions`. */
const complete = (pace: Effect.Effect<void>) =>
  Effect.gen(function*() {
    const body = yield* HttpServerRequest.schemaBodyJson(Wire.Body)
    if (body.stream !== true) return refused("the embedded model only streams: send \"stream\": true")
    const seconds = Math.floor((yield* Clock.currentTimeMillis) / 1000)
    return streamed(Wire.chunks(body, Reply.reply(Wire.toRequest(body)), seconds), pace)
  }).pipe(
    Effect.catch((error) =>
      Effect.succeed(refused(Schema.isSchemaError(error) ? error.message : "the request is no JSON"))
    )
  )

/** The embedded model, served on a free port of the loopback interface. `pace` is awaited before each piece it says. */
export const layer = (options: { readonly pace: Effect.Effect<void> }): Layer.Layer<Endpoint, unknown> => {
  const server = NodeHttpServer.layer(createServer, { host: "127.0.0.1", port: 0, gracefulShutdownTimeout: "1 second" })
  const routes = HttpRouter.add("POST", "/v1/chat/completions", complete(options.pace))
  const endpoint = Layer.effect(
    Endpoint,
    Effect.map(
      HttpServer.HttpServer,
      ({ address }) => Endpoint.of({ baseUrl: `${HttpServer.formatAddress(address)}/v1` })
    )
  )
  return endpoint.pipe(
    Layer.provideMerge(HttpRouter.serve(routes, { disableListenLog: true, disableLogger: true })),
    Layer.provide(server)
  )
}
