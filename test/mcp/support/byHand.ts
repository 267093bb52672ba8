/** A server of MCP over HTTP by hand, on the loopback interface. */
import * as Effect from "effect/Effect"
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import type { AddressInfo } from "node:net"

/** A server by hand, whose one tool says something of a length. `answering` may answer in its place, with a status or itself. */
export const byHand = (
  answering: (
    method: string,
    request: IncomingMessage,
    response: ServerResponse,
    id: unknown
  ) => number | "held" | undefined | void,
  type = "application/json",
  tools: ReadonlyArray<unknown> = [{ name: "say", inputSchema: { type: "object" } }],
  read: (message: any) => void = () => undefined
) =>
  Effect.gen(function*() {
    const server = createServer((request, response) => {
      let body = ""
      request.on("data", (chunk) => void (body += String(chunk))).on("end", () => {
        const received = body === "" ? {} as any : JSON.parse(body)
        const { id, method, params } = received
        read(received)
        const results: Record<string, object> = {
          "server/discover": {
            supportedVersions: ["2026-07-28"],
            capabilities: { tools: {} },
            ttlMs: 0,
            cacheScope: "private"
          },
          initialize: {
            protocolVersion: "2025-11-25",
            capabilities: { tools: {} },
            serverInfo: { name: "hand", version: "1" }
          },
          "tools/list": { tools, ttlMs: 0, cacheScope: "private" },
          "tools/call": { content: [{ type: "text", text: "x".repeat(params?.arguments?.length ?? 0) }] }
        }
        const message = JSON.stringify({ jsonrpc: "2.0", id, result: { resultType: "complete", ...results[method] } })
        const answered = answering(String(method), request, response, id)
        if (answered === "held") return
        const status = answered ?? (method === undefined ? 405 : 200)
        response.writeHead(status, { "content-type": type })
        response.end(type === "application/json" ? message : `data: ${message}\n\n`)
      })
    })
    yield* Effect.acquireRelease(
      Effect.callback<void>((resume) => void server.listen(0, "127.0.0.1", () => resume(Effect.void))),
      () =>
        Effect.sync(() => {
          server.close()
          server.closeAllConnections()
        })
    )
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`
  })
