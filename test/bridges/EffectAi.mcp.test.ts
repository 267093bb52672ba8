/**
 * The tools of an MCP server as Heddle's: effect/ai's client makes a toolkit of them, over HTTP, and the toolkit's
 * handlers run under Heddle like any other.
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { assert, describe, it } from "@effect/vitest"
import * as McpClient from "effect/ai/McpClient"
import * as McpProtocol from "effect/ai/McpProtocol"
import * as McpServer from "effect/ai/McpServer"
import * as AiTool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Chat, Message, Session, Tool } from "heddle"
import * as EffectAi from "heddle/bridges/effect-ai"
import { Script } from "heddle/testing"
import * as http from "node:http"

const remote = Toolkit.make(
  AiTool.make("celsius", {
    description: "Temperature of a city",
    parameters: Schema.Struct({ city: Schema.String }),
    success: Schema.Struct({ celsius: Schema.Finite }),
    failure: Schema.String
  })
)

const server = HttpRouter.serve(
  McpServer.layerHttp({
    name: "weather",
    version: "1.0.0",
    path: "/mcp",
    protocols: [McpProtocol.v2026_07_28],
    registrations: McpServer.toolkit(remote).pipe(
      Layer.provide(remote.toLayer({
        celsius: ({ city }) => city === "Atlantis" ? Effect.fail("no such city") : Effect.succeed({ celsius: 7 })
      }))
    )
  }),
  { disableLogger: true, disableListenLog: true }
).pipe(Layer.provideMerge(NodeHttpServer.layer(() => http.createServer(), { port: 0, host: "127.0.0.1" })))

const client = Layer.unwrap(Effect.gen(function*() {
  const { address } = yield* HttpServer.HttpServer
  return McpClient.layerHttp({
    name: "heddle",
    version: "1.0.0",
    protocol: McpProtocol.v2026_07_28,
    url: `${HttpServer.formatAddress(address)}/mcp`
  }).pipe(Layer.provide(FetchHttpClient.layer))
})).pipe(Layer.provide(server))

describe("MCP", () => {
  it.live("the tools of a server are offered, run and answered", () =>
    Effect.gen(function*() {
      const tools = yield* EffectAi.tools(McpClient.toolkit(yield* McpClient.McpClient))
      assert.deepStrictEqual(tools.map(({ description, name }) => [name, description]), [
        ["celsius", "Temperature of a city"]
      ])
      assert.deepInclude(Tool.definition(tools[0]!).parameters, { type: "object", required: ["city"] })
      const model = Script.layer([
        [
          Script.toolCall("a", "celsius", { city: "Oslo" }),
          Script.toolCall("b", "celsius", { city: "Atlantis" }),
          Script.finish("tool_calls")
        ],
        [Script.text("Seven"), Script.finish("stop")]
      ])
      const result = yield* Chat.run("How warm is it?", { tools }).pipe(Effect.provide(model))
      const [, , oslo, atlantis] = result.thread.messages
      assert.include(Message.text(oslo!), "7")
      assert.isUndefined(oslo?.isError)
      assert.isTrue(atlantis?.isError)
    }).pipe(Effect.provide(client)))

  it.live("N-37: a tool of a server waits for an approval where it is given one, as the page says", () =>
    Effect.gen(function*() {
      const tools = yield* EffectAi.tools(McpClient.toolkit(yield* McpClient.McpClient))
      const gated = tools.map((tool) => ({ ...tool, approval: true }))
      const model = Script.layer([
        [Script.toolCall("a", "celsius", { city: "Oslo" }), Script.finish("tool_calls")],
        [Script.text("Seven"), Script.finish("stop")]
      ])
      yield* Effect.gen(function*() {
        const asked = yield* Session.start("How warm is it?", { tools: gated })
        assert.deepStrictEqual(asked.session.suspensions.map(({ id, kind }) => [id, kind]), [["a", "approval"]])
        const allowed = yield* Session.approve(asked.session, "a")
        const done = yield* Session.continue(allowed, null, { tools: gated })
        assert.include(Message.text(done.session.thread.messages[2]!), "7")
      }).pipe(Effect.provide(model))
    }).pipe(Effect.provide(client)))
})
