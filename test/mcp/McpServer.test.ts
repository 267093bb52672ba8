/** Heddle's tools and agents, called by a real client of MCP over HTTP, in both eras of the protocol. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Server } from "heddle/server"
import { call, connect, eras, textOf } from "./support/clients.ts"

/** Serves tools over HTTP until the scope closes, and gives the address. */
const serve = (
  tools: ReadonlyArray<Tool.Any>,
  options: Partial<McpServer.HttpOptions> = {}
): Effect.Effect<string, never, Scope.Scope> =>
  Effect.gen(function*() {
    const app = McpServer.layerHttp({ tools, authorize: Server.allowLoopback, legacy: true, ...options })
    const context = yield* Layer.build(Server.layerNode({ port: 0 })(app) as Layer.Layer<HttpServer.HttpServer>)
    const { address } = Context.get(context, HttpServer.HttpServer)
    return `http://127.0.0.1:${(address as { readonly port: number }).port}`
  }).pipe(Effect.orDie)

const add = Tool.make("add", {
  description: "Adds two numbers",
  parameters: { one: Schema.Finite, two: Schema.Finite },
  readOnly: true,
  idempotent: true,
  handler: ({ one, two }) => Effect.succeed(String(one + two))
})

const place = Tool.make("place", {
  parameters: {},
  handler: () => Effect.succeed({ city: "Bern", at: [46.9, 7.4] })
})

const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.fail("no connection") })
const dies = Tool.make("dies", { parameters: {}, handler: () => Effect.die(new Error("canary-7301")) })
const slow = Tool.make("slow", { parameters: {}, timeout: 5, handler: () => Effect.never })
const handed = Tool.make("handed", { parameters: {}, manual: true })
const closed = Tool.make("closed", {
  parameters: {},
  authorize: () => Effect.succeed({ allowed: false, reason: "not on Sundays" }),
  handler: () => Effect.succeed("open")
})
const counting = Tool.make("counting", {
  parameters: {},
  handler: (_, { progress }) =>
    Effect.gen(function*() {
      yield* progress({ progress: 1, total: 3, message: "one" })
      yield* Effect.yieldNow
      yield* progress("half way")
      yield* Effect.yieldNow
      yield* progress(3)
      return "counted"
    })
})

for (const era of eras) {
  describe(`calls in the ${era} era`, () => {
    it.live(`W-15: ${era}: tools are listed, called and refused, over HTTP`, () =>
      Effect.gen(function*() {
        const url = yield* serve([add, place, broken, dies, slow, handed, closed])
        const client = yield* connect(url, { era })
        const { tools } = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(tools.map(({ name }) => name).sort(), [
          "add",
          "broken",
          "closed",
          "dies",
          "place",
          "slow"
        ])
        const listed = tools.find(({ name }) => name === "add")
        assert.strictEqual(listed?.description, "Adds two numbers")
        assert.deepStrictEqual(listed?.annotations, {
          readOnlyHint: true,
          destructiveHint: false,
          idempotentHint: true,
          openWorldHint: false
        })
        assert.deepStrictEqual(listed?.inputSchema.required, ["one", "two"])
        const sum = yield* call(client, "add", { one: 1, two: 2 })
        assert.deepStrictEqual([textOf(sum), sum.isError, sum.structuredContent], ["3", false, undefined])
        const found = yield* call(client, "place")
        assert.deepStrictEqual(found.structuredContent, { city: "Bern", at: [46.9, 7.4] })
        assert.deepStrictEqual(JSON.parse(textOf(found)), found.structuredContent)
        const errors: ReadonlyArray<readonly [name: string, args: Record<string, unknown>, text: string]> = [
          ["add", { one: 1, two: "two" }, "two"],
          ["broken", {}, "no connection"],
          ["slow", {}, "timed out after 5 ms"],
          ["closed", {}, "not on Sundays"]
        ]
        for (const [name, args, text] of errors) {
          const result = yield* call(client, name, args)
          assert.deepStrictEqual([result.isError, result.structuredContent], [true, undefined])
          assert.include(textOf(result), text)
        }
        assert.isTrue((yield* call(client, "dies")).isError)
        for (const name of ["handed", "nothing"]) {
          const unknown = yield* Effect.flip(call(client, name))
          assert.strictEqual((unknown as { readonly code?: number }).code, -32602)
        }
      }))
  })
}
void Deferred
void counting
