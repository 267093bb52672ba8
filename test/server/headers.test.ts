/** The headers of good answers, whole: those that a listed page needs and no others, on every route. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import { bearer, byToken, obedient, send } from "./support/hostile.ts"
import { addressOf, bodyOf, headersOf, isPosted, type Route, table } from "./support/routes.ts"
import { serve } from "./support/site.ts"

const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

const app = "https://app.example.com"

const cors = {
  "access-control-allow-credentials": "true",
  "access-control-allow-origin": app,
  "access-control-expose-headers": "mcp-session-id",
  vary: "origin"
}

const quiet = { "cache-control": "no-store", "x-content-type-options": "nosniff" }

const events = {
  "cache-control": "no-cache, no-transform",
  "content-type": "text/event-stream",
  "x-accel-buffering": "no",
  "x-content-type-options": "nosniff"
}

/** The headers of a good answer of a route, without those of the connection. */
const expected = ({ method, path }: Route): Readonly<Record<string, string>> => {
  if (path === "/health" || path === "/ready") return {}
  if (method === "OPTIONS") {
    return {
      "access-control-allow-headers":
        "authorization, content-type, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id",
      "access-control-allow-methods": "GET, POST, PATCH, DELETE",
      "access-control-max-age": "600"
    }
  }
  if (method === "DELETE" && !path.endsWith("/:message")) return {}
  if (method === "POST" && path === "/agents/:agent/sessions") {
    return { ...events, "x-vercel-ai-ui-message-stream": "v1" }
  }
  const isStream = path.startsWith("/agui") || path.endsWith("/events") || method === "POST"
  if (isStream && !path.endsWith("/fork")) return events
  return { ...quiet, "content-type": "application/json" }
}

const shown = (headers: Headers): Record<string, string> => {
  const all = Object.fromEntries(headers)
  for (const name of ["date", "connection", "keep-alive", "transfer-encoding", "content-length"]) delete all[name]
  return all
}

describe("headers of successful responses", () => {
  it.live("W-11: a successful response has exactly these headers on each route, for a listed page, the server's own page and a program", () =>
    Effect.gen(function*() {
      const { url } = yield* serve(agents, obedient, {
        authorize: byToken(),
        hosts: ["127.0.0.1"],
        origins: [app],
        joinMillis: 0,
        bounds: { writes: 1_000 },
        mcp: McpServer.routes()
      })
      const own = `http://${new URL(url).host}`
      const routes = (yield* table).filter(({ path }) =>
        path !== "/mcp" && !/\/resume$|\/allowed\/|\/calls\//.test(path)
      )
      for (const origin of [app, own, undefined]) {
        for (const route of routes) {
          const headers = {
            ...headersOf(route),
            ...bearer("ann"),
            ...(origin === undefined ? {} : { origin }),
            ...(route.method === "OPTIONS" ? { "access-control-request-method": "POST" } : {})
          }
          yield* send(url, {
            path: "/agents/helper/sessions/s1/messages",
            body: { content: "Hi", ...(/\/fork$|\/:message$/.test(route.path) ? { id: "m1" } : {}) },
            headers: bearer("ann")
          })
          const isStream = route.method === "GET" && (route.path.endsWith("/events") || route.path.startsWith("/agui"))
          // Nothing runs, so that there is nothing to resume.
          if (route.path.endsWith("/stream")) continue
          const answered = yield* send(url, {
            method: isStream ? "HEAD" : route.method,
            path: addressOf(route),
            headers,
            ...(isPosted(route) ? { body: bodyOf(route) } : {})
          })
          const isOpen = route.path === "/health" || route.path === "/ready"
          const allowed = origin === app && !isOpen ? cors : {}
          const name = `${origin}: ${route.method} ${route.path}`
          assert.isBelow(answered.status, 300, name)
          assert.deepStrictEqual(shown(answered.headers), { ...expected(route), ...allowed }, name)
        }
      }
    }))
})
