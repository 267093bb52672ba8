/** What stays after many short sessions: nothing, in memory, places, logs, claims, listeners, timers and sockets. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session, Tool } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent } from "heddle/server"
import * as v8 from "node:v8"
import * as vm from "node:vm"
import * as Writers from "../../src/internal/session/writer.ts"
import { share, shareOf } from "../support/property.ts"
import { until } from "../support/until.ts"
import { bearer, byToken, obedient, send } from "./support/hostile.ts"
import { heldBy, nothingHeld } from "./support/ledger.ts"
import { bodyOf, headersOf, type Route } from "./support/routes.ts"
import { partsOf, serve } from "./support/site.ts"
import { connected, headOf } from "./support/sockets.ts"

const collect = Effect.sync(() => {
  v8.setFlagsFromString("--expose-gc")
  const gc: () => void = vm.runInNewContext("gc")
  gc()
  gc()
})

/** Ten thousand where all runs are made, and else a hundred or more. */
const sessions = share < 1 ? Math.max(100, shareOf(3_000)) : 10_000

/**
 * Bytes that a session may leave in the heap: the times of its principal's writes, which are remembered for a minute. The
 * fold of a journal, which is the smallest thing that could stay, takes 2,000.
 */
const noise = 1_000

describe("ten thousand short sessions", () => {
  it.live("ten thousand short sessions leave nothing behind, however they end", () =>
    Effect.gen(function*() {
      // The observer that every test has keeps the fold of each journal.
      Writers.observed.by = undefined
      const store = Context.get(yield* Layer.build(Session.Store.layerMemory), Session.Store)
      const never = Tool.make("never", { parameters: {}, handler: () => Effect.never })
      const agents = [
        Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [never] }) })
      ]
      const site = yield* serve(agents, obedient, {
        authorize: byToken(),
        hosts: ["127.0.0.1"],
        bounds: { writes: 1e9, lists: 1e9, runs: 1_000, streams: 1_000, sessions: 1e6 },
        joinMillis: 0,
        mcp: McpServer.routes(),
        store: Layer.succeed(Session.Store, store)
      })
      const { url } = site
      const at = "/agents/helper/sessions"
      const endless = JSON.stringify([{ id: "c0", name: "never" }])
      const ways = [
        { method: "POST", path: `${at}/:id/messages` },
        { method: "POST", path: at },
        { method: "POST", path: "/agui/helper" },
        { method: "POST", path: "/mcp" }
      ] as const
      const remove = (id: string, headers: Record<string, string>) =>
        until(
          `the removal of ${id}`,
          send(url, { method: "DELETE", path: `${at}/${id}`, headers }),
          ({ status }) => status === 204 || status === 404
        )
      /** Begins a session, ends it in one of several ways, and removes it. */
      const one = (index: number) =>
        Effect.scoped(Effect.gen(function*() {
          const id = `s${index}`
          // Each has a principal of its own.
          const headers = bearer(`user${index}`)
          const route: Route = ways[index % 4]!
          const path = route.path.replace(":id", id)
          if (index % 8 < 5) {
            const sent = { path, body: bodyOf(route, id), headers: { ...headersOf(route), ...headers } }
            const { status, text } = yield* send(url, sent)
            assert.strictEqual(status, 200, text)
          } else if (index % 8 === 5) {
            yield* send(url, { path: `${at}/${id}/messages?wait=false`, body: { content: endless }, headers })
            yield* send(url, { path: `${at}/${id}/stop`, method: "POST", headers })
          } else {
            // Left in the middle of its response, or of its body.
            const body = JSON.stringify(bodyOf(route, id))
            const length = index % 8 === 6 ? body.length : body.length + 10
            const more = { "content-type": "application/json", "content-length": `${length}` }
            const connection = yield* connected(url)
            yield* connection.write(headOf("POST", path, { ...headersOf(route), ...headers, ...more }) + body)
            if (index % 8 === 6) yield* connection.status
            yield* connection.leave
          }
          if (index % 16 === 0) yield* send(url, { path: `${at}/nosuch/stop`, method: "POST", headers })
          yield* remove(id, headers)
        }))
      const many = (from: number, count: number) =>
        Effect.forEach(Array.from({ length: count }, (_, index) => from + index), one, {
          concurrency: 8,
          discard: true
        })
      const measure = Effect.gen(function*() {
        yield* nothingHeld([partsOf(site)])
        yield* collect
        const resources: Record<string, number> = {}
        for (const name of process.getActiveResourcesInfo()) resources[name] = (resources[name] ?? 0) + 1
        return { heap: process.memoryUsage().heapUsed, resources, listeners: process.eventNames().length }
      })
      yield* many(0, Math.ceil(sessions / 4))
      const before = yield* measure
      yield* many(sessions, sessions)
      const after = yield* until(
        "what stays",
        measure,
        ({ resources }) => Object.entries(resources).every(([name, count]) => count <= (before.resources[name] ?? 0))
      )
      assert.strictEqual(after.listeners, before.listeners)
      assert.isBelow(after.heap - before.heap, 8_000_000 + sessions * noise)
      for (let index = sessions; index < 2 * sessions; index += 7) {
        assert.isUndefined(yield* store.claimOf(`user${index}:s${index}`), `the claim of s${index}`)
      }
      assert.deepStrictEqual(Object.values(heldBy(partsOf(site))).filter((count) => count !== 0), [])
    }), 600_000)
})
