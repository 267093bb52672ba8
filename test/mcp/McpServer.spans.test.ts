/** The spans of calls that clients make: their parents, and what they say. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { Tool } from "heddle"
import { recording } from "../support/spans.ts"
import { call, connect, eras, sendRaw } from "./support/clients.ts"
import { serve } from "./support/serving.ts"

const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.fail("no connection") })

const traceId = "0af7651916cd43dd8448eb211c80319c"
const spanId = "b7ad6b7169203331"

describe("the span of a call", () => {
  for (const era of eras) {
    it.live(`W-16: ${era}: the span of a call belongs to the client's trace, and names the method, the tool and the protocol version`, () =>
      Effect.gen(function*() {
        const { ended, tracer } = recording()
        const client = yield* connect(yield* Effect.withTracer(serve([ping, broken]), tracer), { era })
        const meta = { _meta: { traceparent: `00-${traceId}-${spanId}-01` } }
        yield* Effect.promise(() => client.callTool({ name: "ping", arguments: {}, ...meta }))
        yield* call(client, "broken")
        const spans = ended.filter(({ name }) => name.startsWith("tools/call"))
        const [first, second] = spans
        assert.deepStrictEqual(spans.map(({ kind, name }) => [kind, name]), [
          ["server", "tools/call ping"],
          ["server", "tools/call broken"]
        ])
        assert.strictEqual(first?.traceId, traceId)
        assert.strictEqual(Option.getOrUndefined(first!.parent)?.spanId, spanId)
        const { "jsonrpc.request.id": id, ...attributes } = Object.fromEntries(first!.attributes)
        assert.match(String(id), /^\d+$/)
        assert.deepStrictEqual(attributes, {
          "mcp.method.name": "tools/call",
          "mcp.protocol.version": era === "modern" ? "2026-07-28" : "2025-11-25",
          "gen_ai.tool.name": "ping",
          "network.transport": "tcp"
        })
        assert.strictEqual(second?.attributes.get("error.type"), "tool_error")
        const run = ended.find(({ name }) => name === "execute_tool ping")
        assert.strictEqual(Option.getOrUndefined(run!.parent)?.spanId, first?.spanId)
      }))
  }

  it.live("W-16: the span of a call takes no malformed traceparent from the client", () =>
    Effect.gen(function*() {
      const { ended, tracer } = recording()
      const url = yield* Effect.withTracer(serve([ping]), tracer)
      const wrong: ReadonlyArray<unknown> = [
        `00-${traceId}-${spanId}`,
        `01-${traceId}-${spanId}-01`,
        `00-${traceId.toUpperCase()}-${spanId}-01`,
        `00-${"0".repeat(32)}-${spanId}-01`,
        `00-${traceId}-${"0".repeat(16)}-01`,
        `00-${traceId}-${spanId}-01\r\nx-key: 1`,
        [traceId],
        { traceparent: spanId },
        7,
        "x".repeat(100_000)
      ]
      for (const traceparent of wrong) {
        const _meta = {
          "io.modelcontextprotocol/protocolVersion": "2026-07-28",
          "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
          "io.modelcontextprotocol/clientCapabilities": {},
          traceparent
        }
        yield* sendRaw(url, { params: { name: "ping", arguments: {}, _meta } })
      }
      const spans = ended.filter(({ name }) => name === "tools/call ping")
      assert.isAtLeast(spans.length, 1)
      assert.isTrue(spans.every((span) => span.traceId !== traceId))
    }))
})
