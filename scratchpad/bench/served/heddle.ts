/** A server of agents over the memory store, joining off. Writes its address. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Message, Session } from "heddle"
import { Agent, Server } from "heddle/server"
import { delta, deltas, gap } from "./script.ts"

const said = Stream.fromIterable(Array.from({ length: deltas }, (_, index) => index)).pipe(
  Stream.rechunk(1),
  Stream.mapEffect((index) => Effect.as(Effect.sleep(gap), index)),
  Stream.map((index) => ({ _tag: "TextDelta" as const, id: null, delta: delta(index) }))
)

const model = Adapter.layer({
  stream: () =>
    Stream.make({ _tag: "MessageStarted" as const, message: Message.assistant("") }).pipe(
      Stream.concat(said),
      Stream.concat(Stream.make({
        _tag: "MessageCompleted" as const,
        message: Message.assistant("done"),
        finishReason: "stop" as const,
        metadata: {}
      }))
    )
})

const agent = Agent.make({ name: "helper", description: "Says", run: () => Effect.succeed({}) })
const most = 100_000
const bounds = { runs: most, streams: most, writes: most, sessions: most, bodies: most }
const app = Server.layer({ agents: [agent], authorize: Server.allowLoopback, joinMillis: 0, bounds }).pipe(
  Layer.provide([model, Session.Store.layerMemory]),
  Server.layerNode({ port: 0 })
)

process.on("message", () => {
  const { system, user } = process.cpuUsage()
  process.send?.({ cpu: (system + user) / 1_000, memory: process.memoryUsage.rss() })
})

const program = Effect.andThen(
  HttpServer.addressFormattedWith((url) => Effect.sync(() => process.send?.({ url: `${url}/agents/helper/sessions` }))),
  Effect.never
)

NodeRuntime.runMain(Effect.provide(program, app))
