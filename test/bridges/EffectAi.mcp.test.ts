/**
 * The tools of an MCP server as Heddle's: effect/ai's client makes a toolkit of them, over HTTP, and the toolkit's
 * handlers run under Heddle like any other.
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { assert, describe, it } from "@effect/vitest"
import * as McpClient from "effect/ai/McpClient"
import * as McpClientError from "effect/ai/McpClientError"
import * as McpProtocol from "effect/ai/McpProtocol"
import * as McpSchema from "effect/ai/McpSchema"
import * as McpServer from "effect/ai/McpServer"
import * as AiTool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpRouter from "effect/http/HttpRouter"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Chat, Message, Session, Tool, ToolRunner } from "heddle"
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

const png = Uint8Array.from([137, 80, 78, 71, 13, 10, 26, 10])
const base64 = Base64.encode(png)

const text = (value: string) => ({ type: "text" as const, text: value })
const image = { type: "image" as const, mimeType: "image/png", data: png }
const audio = { type: "audio" as const, mimeType: "audio/wav", data: png }
const resource = (contents: object) => ({ type: "resource" as const, resource: contents })

/** The results of the server's other tools, by their names. */
const results: { readonly [name: string]: object } = {
  chart: { content: [text("The week:"), text("rising"), image] },
  picture: { content: [image], structuredContent: { width: 1 } },
  mixed: {
    content: [
      audio,
      resource({ uri: "file:///notes/a.pdf?x=1", mimeType: "application/pdf", blob: png }),
      resource({ uri: "file:///b.png", mimeType: "image/png", blob: png }),
      resource({ uri: "file:///c.txt", mimeType: "text/plain", text: "noted" }),
      { type: "resource_link", uri: "https://weather.test/oslo", name: "oslo", description: "The station" }
    ]
  },
  plain: { content: [text("only"), text("words")] },
  broken: { isError: true, content: [text("the lens is dirty"), image, text("clean it")] },
  mute: { isError: true, content: [] },
  detailed: { isError: true, content: [text("no lens")], structuredContent: { line: 3 } },
  repeated: { isError: true, content: [text("{\"line\": 3}")], structuredContent: { line: 3 } }
}

const others = Layer.effectDiscard(Effect.gen(function*() {
  const { addTool } = yield* McpServer.McpServer
  for (const [name, result] of Object.entries(results)) {
    yield* addTool({
      tool: new McpSchema.Tool({ name, inputSchema: { type: "object", properties: {} } }),
      annotations: Context.empty(),
      handle: () => Effect.succeed(new McpSchema.CallToolResult(result as McpSchema.CallToolResult))
    })
  }
}))

const server = HttpRouter.serve(
  McpServer.layerHttp({
    name: "weather",
    version: "1.0.0",
    path: "/mcp",
    protocols: [McpProtocol.v2026_07_28],
    registrations: McpServer.toolkit(remote).pipe(
      Layer.provide(remote.toLayer({
        celsius: ({ city }) => city === "Atlantis" ? Effect.fail("no such city") : Effect.succeed({ celsius: 7 })
      })),
      Layer.merge(others)
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

describe("the tools of an MCP client of effect/ai", () => {
  it.live("a run offers, runs and answers the tools of a server", () =>
    Effect.gen(function*() {
      const tools = yield* EffectAi.tools(McpClient.toolkit(yield* McpClient.McpClient))
      assert.deepStrictEqual(tools.map(({ name }) => name), ["celsius", ...Object.keys(results)])
      assert.strictEqual(tools[0]?.description, "Temperature of a city")
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

  /** The answers to one call of each tool, and what the next request holds of them. */
  const answersOf = (...names: ReadonlyArray<string>) =>
    Effect.gen(function*() {
      const tools = yield* EffectAi.tools(McpClient.toolkit(yield* McpClient.McpClient))
      const model = yield* Script.make([
        [...names.map((name) => Script.toolCall(name, name, {})), Script.finish("tool_calls")],
        [Script.text("ok"), Script.finish("stop")]
      ])
      const result = yield* Chat.run("Go", { tools }).pipe(Effect.provide(model.layer))
      assert.strictEqual(result.outcome._tag, "Completed")
      const messages = result.thread.messages.slice(2, 2 + names.length)
      assert.deepStrictEqual((yield* model.requests)[1]?.messages.slice(2), messages)
      return messages
    })

  it.live("N-25: images, audio and files of a tool result are parts of the answer", () =>
    Effect.gen(function*() {
      const [chart, picture, mixed, plain] = yield* answersOf("chart", "picture", "mixed", "plain")
      const shown: Message.Part = { type: "image", data: base64, mediaType: "image/png" }
      assert.deepStrictEqual(chart?.content, [{ type: "text", text: "The week:\nrising" }, shown])
      assert.deepStrictEqual(picture?.content, [shown])
      assert.deepStrictEqual(mixed?.content, [
        { type: "file", data: base64, mediaType: "audio/wav" },
        { type: "file", data: base64, mediaType: "application/pdf", filename: "a.pdf" },
        shown,
        { type: "text", text: "noted\noslo: https://weather.test/oslo\nThe station" }
      ])
      assert.strictEqual(plain?.content, "only\nwords")
      for (const message of [chart, picture, mixed, plain]) assert.isUndefined(message?.isError)
    }).pipe(Effect.provide(client)))

  it.live("N-25: the model reads a failure once, without the data of its images", () =>
    Effect.gen(function*() {
      const [broken, mute] = yield* answersOf("broken", "mute")
      assert.deepStrictEqual([broken?.isError, mute?.isError], [true, true])
      assert.strictEqual(
        broken?.content,
        JSON.stringify({ error: "the lens is dirty\n[image: image/png, 8 bytes]\nclean it" })
      )
      assert.strictEqual(mute?.content, "{\"error\":\"MCP tool reported an error\"}")
    }).pipe(Effect.provide(client)))

  it.live("O-10: the model reads the details of a failure once, whether or not a text repeats them", () =>
    Effect.gen(function*() {
      const [detailed, repeated] = yield* answersOf("detailed", "repeated")
      assert.strictEqual(detailed?.content, JSON.stringify({ error: "no lens\n{\"line\":3}" }))
      assert.strictEqual(repeated?.content, JSON.stringify({ error: "{\"line\": 3}" }))
    }).pipe(Effect.provide(client)))

  it.live("N-25: the model reads a tool's own failure and a lost connection once", () =>
    Effect.gen(function*() {
      const mcp = yield* McpClient.McpClient
      const [celsius] = yield* EffectAi.tools(McpClient.toolkit(mcp))
      const told = (tool: Tool.Any, args: object) =>
        Effect.map(
          ToolRunner.run([Message.toolCall("a", tool.name, args as Record<string, unknown>)], [tool]),
          ({ messages }) => [messages[0]?.isError, messages[0]?.content]
        )
      assert.deepStrictEqual(yield* told(celsius!, { city: "Atlantis" }), [
        true,
        JSON.stringify({ error: "\"no such city\"" })
      ])
      const gone = { ...mcp, callTool: () => Effect.fail(closed) } as unknown as McpClient.McpClient
      const [lost] = yield* EffectAi.tools(McpClient.toolkit(gone))
      assert.deepStrictEqual(yield* told(lost!, { city: "Oslo" }), [true, "{\"error\":\"MCP connection closed\"}"])
    }).pipe(Effect.provide(client)))

  it.live("`onToolError` gets the error of an MCP tool, and its decision is the answer", () =>
    Effect.gen(function*() {
      const tools = yield* EffectAi.tools(McpClient.toolkit(yield* McpClient.McpClient))
      const seen: Array<unknown> = []
      const { messages } = yield* ToolRunner.run([Message.toolCall("a", "broken", {})], tools, {
        onToolError: (_call, error) => {
          seen.push(error)
          return Effect.succeed(Tool.ErrorDecision.continue("never mind"))
        }
      })
      assert.isTrue(McpClientError.isMcpClientError(seen[0]) && seen[0].reason._tag === "ToolError")
      assert.strictEqual(messages[0]?.content, "never mind")
    }).pipe(Effect.provide(client)))

  it.live("N-37: an MCP tool with `approval` waits for an approval", () =>
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

const closed = new McpClientError.McpClientError({ reason: new McpClientError.ClosedError({}) })
