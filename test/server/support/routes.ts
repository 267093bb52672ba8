/** The routes of a server, read from its router: a route that is added is in every test over all of them. */
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent, Server } from "heddle/server"
import { obedient } from "./hostile.ts"

/** A route as the router has it. */
export interface Route {
  readonly method: string
  readonly path: string
}

const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

/** All routes of a server with all of its protocols. */
export const table: Effect.Effect<ReadonlyArray<Route>> = Effect.scoped(Effect.gen(function*() {
  const routes: Array<Route> = []
  const recording = Effect.map(HttpRouter.make, (router) =>
    HttpRouter.HttpRouter.of({
      ...router,
      add: (method, path, handler, options) => {
        // The endpoint of MCP takes all methods.
        for (const each of method === "*" ? ["GET", "POST", "DELETE"] : [method]) routes.push({ method: each, path })
        return router.add(method, path, handler, options)
      }
    }))
  const app = Server.layer({ agents, authorize: Server.allowLoopback, mcp: McpServer.routes({ legacy: true }) })
  yield* Layer.build(
    Layer.provide(app, [Layer.effect(HttpRouter.HttpRouter, recording), obedient, Session.Store.layerMemory])
  )
  return routes
})) as Effect.Effect<ReadonlyArray<Route>>

/** Routes that are asked for without `authorize`. */
export const isOpen = ({ method, path }: Route): boolean =>
  method === "OPTIONS" || path === "/health" || path === "/ready"

/** Routes to which a client may send a body. */
export const isPosted = ({ method }: Pick<Route, "method">): boolean => method === "POST" || method === "PATCH"

/** Routes whose body is read. */
export const hasBody = ({ method, path }: Route): boolean =>
  isPosted({ method }) && !path.endsWith("/stop") && !path.endsWith("/resume")

/** The address of a route, for an agent and a session. */
export const addressOf = ({ path }: Route, id = "s1"): string =>
  path.replace(":agent", "helper").replace(":id", id).replace(":message", "m1")

/** A body that a route takes as a message. */
export const bodyOf = ({ method, path }: Route, id = "s1", text = "Hi"): unknown => {
  if (method === "PATCH") return { title: text }
  const message = { id: "m1", role: "user", content: text, parts: [{ type: "text", text }] }
  if (path === "/mcp") {
    return {
      jsonrpc: "2.0",
      id: 1,
      method: "tools/call",
      params: {
        name: "helper",
        arguments: { task: text },
        _meta: {
          "io.modelcontextprotocol/protocolVersion": "2026-07-28",
          "io.modelcontextprotocol/clientInfo": { name: "raw", version: "1" },
          "io.modelcontextprotocol/clientCapabilities": {}
        }
      }
    }
  }
  if (path.startsWith("/agui")) return { threadId: id, runId: "r1", messages: [message], tools: [] }
  if (path.endsWith("/fork")) return { id: "forked", before: "m1", content: text }
  return path.includes(":id") ? { content: text } : { id, trigger: "submit-message", messages: [message] }
}

/** The headers that a route wants beside those of every request. */
export const headersOf = ({ path }: Route): Readonly<Record<string, string>> =>
  path === "/mcp"
    ? {
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": "2026-07-28",
      "mcp-method": "tools/call",
      "mcp-name": "helper"
    }
    : {}
