/**
 * A server as a process of its own: `node serving.ts FOLDER [DATABASE PORT]`. It serves one agent over a store in the
 * folder, or on a cluster over a database, where its runner has the port. It writes the address to its standard output,
 * and what its tools do to a file.
 */
import * as NodeClusterHttp from "@effect/platform-node/NodeClusterHttp"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Adapter, Message, Tool } from "heddle"
import { Cluster } from "heddle/cluster"
import { Agent, Server } from "heddle/server"
import { SessionStore } from "heddle/sql"
import * as fs from "node:fs"
import * as path from "node:path"
import { stored } from "../../cluster/support/work.ts"

const [, , folder = ".", database, port] = process.argv
const did = (what: string) => fs.appendFileSync(path.join(folder, "log"), `${what}\n`)

/**
 * Says which process it is where it is asked for it. Else it says words one by one, calls a tool that charges and one that
 * waits for a file, and then says more words.
 */
const model = Adapter.layer({
  stream: ({ messages }) => {
    const answers = messages.filter(({ role }) => role === "tool").length
    const said = messages.findLast(({ role }) => role === "user")
    const isWho = said !== undefined && Message.text(said) === "Who?"
    const words = isWho ? [`${process.pid}`] : answers === 0 ? ["one ", "two "] : ["three ", "four "]
    const calls = isWho || answers > 0 ? [] : ["charge", "hold"].map((name, index) => ({
      id: `c${index}`,
      name,
      arguments: {},
      rawArguments: "{}",
      metadata: {}
    }))
    const message = Message.assistant(words.join(""), calls)
    return Stream.fromIterable([
      { _tag: "MessageStarted" as const, message: Message.assistant("") },
      ...words.map((delta) => ({ _tag: "TextDelta" as const, id: null, delta })),
      ...calls.flatMap((call) => [
        { _tag: "ToolCallStarted" as const, id: call.id, name: call.name },
        { _tag: "ToolCallCompleted" as const, ...call }
      ]),
      {
        _tag: "MessageCompleted" as const,
        message,
        finishReason: calls.length === 0 ? "stop" as const : "tool_calls" as const
      }
    ])
  }
})

const charge = Tool.make("charge", {
  parameters: {},
  handler: () => Effect.sync(() => (did("charge"), "charged"))
})

const hold = Tool.make("hold", {
  parameters: {},
  idempotent: true,
  handler: () =>
    Effect.suspend(() => {
      did("hold")
      const look: Effect.Effect<string> = Effect.suspend(() =>
        fs.existsSync(path.join(folder, "go")) ? Effect.succeed("held") : Effect.andThen(Effect.sleep(20), look)
      )
      return look
    })
})

const helper = Agent.make({
  name: "helper",
  description: "Helps",
  run: () => Effect.succeed({ tools: [charge, hold] })
})

const server = Server.layer({ agents: [helper], authorize: Server.allowLoopback, term: "2 seconds" }).pipe(
  Layer.provide(model),
  Server.layerNode({ port: 0 })
)

const app: Layer.Layer<HttpServer.HttpServer, unknown> = database === undefined
  ? Layer.provide(server, SessionStore.layerSqlite({ filename: path.join(folder, "store") }))
  : server.pipe(
    Layer.provide(Cluster.servers),
    Layer.provide(NodeClusterHttp.layer(Cluster.transport({ host: "127.0.0.1", port: Number(port) }))),
    Layer.provide(stored(database)),
    Layer.provide(Logger.layer([]))
  )

const program = Effect.andThen(
  HttpServer.addressFormattedWith((url) => Effect.sync(() => process.stdout.write(`${url}\n`))),
  Effect.never
)

NodeRuntime.runMain(Effect.provide(program, app))
