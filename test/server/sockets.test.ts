/** Requests end with their sockets, whatever their headers, and a server that leaves ends them before its store. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { Session } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent, Server } from "heddle/server"
import { SessionStore } from "heddle/sql"
import * as http from "node:http"
import { until } from "../support/until.ts"
import { bearer, byToken, obedient } from "./support/hostile.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { addressOf, bodyOf, hasBody, headersOf, isOpen, type Route, table } from "./support/routes.ts"
import { partsOf, serve } from "./support/site.ts"
import { connected, headOf } from "./support/sockets.ts"
import { told } from "./support/told.ts"

const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

const key = { "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13" }

/** Headers by which a client asks for another protocol, and versions of this one. */
const forms: Readonly<Record<string, readonly [headers: Record<string, string>, version: string]>> = {
  plain: [{}, "1.1"],
  websocket: [{ connection: "Upgrade", upgrade: "websocket", ...key }, "1.1"],
  h2c: [{ connection: "Upgrade, HTTP2-Settings", upgrade: "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk" }, "1.1"],
  unknown: [{ connection: "upgrade", upgrade: "x/1, y" }, "1.1"],
  "keep-alive": [{ connection: "keep-alive" }, "1.1"],
  close: [{ connection: "close" }, "1.1"],
  "HTTP/1.0": [{}, "1.0"],
  "HTTP/1.0, kept": [{ connection: "keep-alive" }, "1.0"]
}

const site = Effect.gen(function*() {
  const { model, say } = told()
  const served = yield* serve(agents, model, {
    authorize: byToken(),
    hosts: ["127.0.0.1"],
    bounds: { writes: 10_000, streams: 1_000, runs: 1_000 },
    mcp: McpServer.routes({ legacy: true }),
    joinMillis: 0
  })
  // A run that does not end while the clients come and go.
  yield* Effect.promise(() =>
    served.ask("POST", "/agents/helper/sessions/s1/messages?wait=false", { content: "Go" }, bearer("ann"))
  )
  const { hub } = partsOf(served)
  yield* until("the run", Effect.sync(() => hub.current("ann:s1") !== undefined), (isBegun) => isBegun)
  return { ...served, say }
})

/** The request of a route as it is sent, with its whole body. */
const textOf = (route: Route, [headers, version]: readonly [Record<string, string>, string], id: string): string => {
  const body = hasBody(route) ? JSON.stringify(bodyOf(route, id)) : ""
  const length = body === "" ? {} : { "content-type": "application/json", "content-length": `${body.length}` }
  const sent = { ...headersOf(route), ...bearer("ann"), ...length, ...headers }
  return headOf(route.method, addressOf(route, id), sent, version) + body
}

describe("sockets", () => {
  it.live(
    "O-42: a request ends with its socket on every route, with every kind of header, however the client leaves",
    () =>
      Effect.gen(function*() {
        const all = yield* site
        const ledger = Effect.sync(() => {
          const { logBytes: _, logs: _logs, ...held } = heldBy(partsOf(all))
          return held
        })
        const before = yield* ledger
        const routes = (yield* table).filter((route) => !isOpen(route) && route.method !== "DELETE")
        for (const [name, form] of Object.entries(forms)) {
          for (const route of routes) {
            const what = `${name}: ${route.method} ${route.path}`
            // A stop would end the run of the others.
            const id = route.path.endsWith("/stop") || hasBody(route) ? "s2" : "s1"
            for (const way of ["leave", "end"] as const) {
              yield* Effect.scoped(Effect.gen(function*() {
                const connection = yield* connected(all.url)
                yield* connection.write(textOf(route, form, id))
                if (route.path === "/mcp" && route.method === "POST") {
                  // A call has its answer once its run has ended.
                  yield* until(what, ledger, ({ streams }) => streams === 1)
                } else assert.notInclude([0, 101, 500, 503], yield* connection.status, what)
                yield* connection[way]
                // One who ends its own side alone is answered by an end, too, and by no stream without one.
                yield* connection.closed
                yield* until(what, ledger, (held) => JSON.stringify(held) === JSON.stringify(before))
              }))
            }
          }
        }
        yield* all.say("Done", undefined)
      }),
    120_000
  )

  it.live("O-42: a body cut in the middle ends its request", () =>
    Effect.gen(function*() {
      const all = yield* site
      for (const [name, [headers, version]] of Object.entries(forms)) {
        for (const route of (yield* table).filter(hasBody)) {
          for (const way of ["leave", "end"] as const) {
            yield* Effect.scoped(Effect.gen(function*() {
              const connection = yield* connected(all.url)
              const length = { "content-type": "application/json", "content-length": "100" }
              const sent = { ...headersOf(route), ...bearer("ann"), ...length, ...headers }
              yield* connection.write(headOf(route.method, addressOf(route), sent, version) + "{")
              const bodies = Effect.sync(() => heldBy(partsOf(all))["bodies"])
              yield* until(`${name}: the body of ${route.path}`, bodies, (count) => count === 1)
              yield* connection[way]
              yield* until(`${name}: the end of it`, bodies, (count) => count === 0)
            }))
          }
        }
      }
      yield* all.say("Done", undefined)
      yield* nothingHeld([partsOf(all)])
    }), 120_000)

  it.live("O-42: a request for a protocol upgrade has the same answer as a request without upgrade", () =>
    Effect.gen(function*() {
      const { url } = yield* serve(agents, obedient, { authorize: byToken(), hosts: ["127.0.0.1"], joinMillis: 0 })
      const route: Route = { method: "POST", path: "/agents/:agent/sessions/:id/messages" }
      for (const name of ["plain", "websocket", "h2c", "unknown"]) {
        const connection = yield* connected(url)
        yield* connection.write(textOf(route, forms[name]!, "s1"))
        assert.strictEqual(yield* connection.status, 200, name)
        yield* connection.until((text) => text.includes("Heard: Hi") && text.includes("ChatCompleted"))
        // The connection is as good as before.
        yield* connection.write(headOf("GET", "/agents", bearer("ann")))
        yield* connection.until((text) => text.includes("\"agents\""))
      }
    }))
})

describe("a server that shuts down", () => {
  /** A client that keeps its connection and asks again and again, until it is refused the connection. */
  const asking = (port: number, statuses: Array<number>, bodies: Array<string>) => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
    const once = (method: string, path: string, body?: string) =>
      new Promise<number>((resolve) => {
        const headers = { host: "127.0.0.1", ...(body === undefined ? {} : { "content-type": "application/json" }) }
        const request = http.request({ agent, port, host: "127.0.0.1", method, path, headers }, (response) => {
          let text = ""
          response.on("data", (data) => (text += data))
          response.on("error", () => resolve(0))
          response.on("close", () => {
            if (!response.complete) return resolve(0)
            bodies.push(text)
            resolve(response.statusCode ?? 0)
          })
        })
        request.on("error", () => resolve(0))
        request.end(body)
      })
    const loop = async () => {
      for (let count = 0;; count++) {
        const status = count % 3 === 0
          ? await once("POST", "/agents/helper/sessions/s1/messages?wait=false", JSON.stringify({ content: "Hi" }))
          : await once("GET", count % 3 === 1 ? "/agents/helper/sessions" : "/agents/helper/sessions/s1")
        if (status === 0) return agent.destroy()
        statuses.push(status)
      }
    }
    return loop()
  }

  it.live("O-49: while a server shuts down, clients with kept connections get complete answers or no answer", () =>
    Effect.gen(function*() {
      for (const store of [SessionStore.layerSqlite({ filename: ":memory:" }), Session.Store.layerMemory]) {
        let isReleased = false
        const watched = Layer.effectDiscard(Effect.addFinalizer(() => Effect.sync(() => (isReleased = true))))
        const scope = yield* Scope.make()
        const app = Server.layer({
          agents,
          authorize: Server.allowLoopback,
          bounds: { writes: 1e6, lists: 1e6 },
          whileRunning: "follow",
          drain: 100
        }).pipe(
          Layer.provide([obedient, Layer.provideMerge(store, watched)]),
          Server.layerNode({ port: 0 })
        )
        const context = yield* Layer.buildWithScope(app as Layer.Layer<HttpServer.HttpServer>, scope)
        const { address } = Context.get(context, HttpServer.HttpServer)
        const { port } = address as { readonly port: number }
        const [statuses, bodies]: [Array<number>, Array<string>] = [[], []]
        const clients = Array.from({ length: 4 }, () => asking(port, statuses, bodies))
        const reader = yield* connected(`http://127.0.0.1:${port}`)
        yield* until("answers", Effect.sync(() => statuses.length), (count) => count > 20)
        yield* reader.write(headOf("GET", "/agents/helper/sessions/s1/events", {}))
        yield* reader.status
        yield* Scope.close(scope, Exit.void)
        assert.isTrue(isReleased)
        yield* Effect.promise(() => Promise.all(clients))
        yield* reader.closed
        const bad = statuses.filter((status) => status !== 200 && status !== 202)
        assert.deepStrictEqual(bad, [], bodies.filter((body) => body.includes("error")).join())
      }
    }))
})
