/** What a request gets before it is let in: nothing of its body is read, and nothing is taken that others share. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as TestClock from "effect/testing/TestClock"
import type { Session } from "heddle"
import { McpServer } from "heddle/mcp"
import { Agent, type Server } from "heddle/server"
import { until } from "../support/until.ts"
import { bearer, byToken, codeOf, memory, obedient, send } from "./support/hostile.ts"
import { addressOf, bodyOf, hasBody, headersOf, isOpen, isPosted, type Route, table } from "./support/routes.ts"
import { serve } from "./support/site.ts"
import { connected, headOf } from "./support/sockets.ts"

const agents = [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })]

const site = (options: Partial<Server.Options> = {}) =>
  Effect.gen(function*() {
    const store = yield* memory
    const { url } = yield* serve(agents, obedient, {
      authorize: byToken(),
      hosts: ["127.0.0.1"],
      mcp: McpServer.routes({ legacy: true }),
      joinMillis: 0,
      store: store.layer as Layer.Layer<Session.Store>,
      ...options
    })
    const post = (route: Route, token: string, id = "s1") =>
      send(url, {
        // A stream of events has no end.
        method: route.method === "GET" ? "HEAD" : route.method,
        path: addressOf(route, id),
        headers: { ...headersOf(route), ...bearer(token) },
        ...(isPosted(route) ? { body: bodyOf(route, id) } : {})
      })
    /** Opens a request whose body does not come, with the beginning of one. */
    const slow = (route: Route, token: string | undefined, begun = "{") =>
      Effect.gen(function*() {
        const connection = yield* connected(url)
        const headers = { ...headersOf(route), ...(token === undefined ? {} : bearer(token)) }
        const sent = { "content-type": "application/json", "content-length": "100000", ...headers }
        yield* connection.write(headOf(route.method, addressOf(route), sent) + begun)
        return connection
      })
    return { url, post, slow, contents: store.contents }
  })

/** Waits until the server has begun to read bodies: the next one of the principal is refused. */
const full = ({ post }: Effect.Success<ReturnType<typeof site>>, route: Route, token: string) =>
  until("the places of a principal", post(route, token), (answered) => codeOf(answered) === "busy")

const messages: Route = { method: "POST", path: "/agents/:agent/sessions/:id/messages" }

describe("authorization before the body", () => {
  it.live("O-41: the server reads no byte of a body while a request waits for authorize or is refused, on any route", () =>
    Effect.gen(function*() {
      const gate = Deferred.makeUnsafe<void>()
      const asked: Array<string> = []
      const all = yield* site({
        authorize: (request, question) =>
          Effect.gen(function*() {
            asked.push(`${request.method} ${request.url}`)
            if (request.headers["authorization"] === "Bearer waits") yield* Deferred.await(gate)
            return yield* byToken(new Set(["ended", "waits"]))(request, question)
          })
      })
      const before = yield* all.contents
      const routes = (yield* table).filter((route) => !isOpen(route))
      assert.isAbove(routes.length, 14)
      for (const route of routes) {
        const name = `${route.method} ${route.path}`
        for (const [token, status] of [[undefined, 401], ["ended", 403]] as const) {
          if (token === undefined && route.method !== "GET") continue
          const connection = yield* all.slow(route, token, "")
          assert.strictEqual(yield* connection.status, status, name)
        }
        // A body that is read is asked for first.
        const headers = { ...headersOf(route), ...bearer("waits"), expect: "100-continue" }
        const waits = yield* connected(all.url)
        const sent = { "content-type": "application/json", "content-length": "10", ...headers }
        yield* waits.write(headOf(route.method, addressOf(route), sent))
        const address = `${route.method} ${addressOf(route)}`
        yield* until("the question", Effect.sync(() => asked.includes(address)), (isAsked) => isAsked)
        assert.strictEqual(waits.text(), "", name)
        yield* Deferred.succeed(gate, undefined)
        assert.strictEqual(yield* waits.status, 403, name)
        assert.notInclude(waits.text(), "100 Continue", name)
      }
      // One who is let in is asked for the body.
      for (const route of routes.filter(hasBody)) {
        const connection = yield* connected(all.url)
        const headers = { ...headersOf(route), ...bearer("ann"), expect: "100-continue" }
        const sent = { "content-type": "application/json", "content-length": "10", ...headers }
        yield* connection.write(headOf(route.method, addressOf(route), sent))
        yield* connection.until((text) => text.includes("100 Continue"))
      }
      assert.deepStrictEqual(yield* all.contents, before)
    }))

  it.live("O-41: the server interrupts authorize for a client that leaves, on each route", () =>
    Effect.gen(function*() {
      let [asked, left] = [0, 0]
      const all = yield* site({
        authorize: () =>
          Effect.andThen(
            Effect.sync(() => asked++),
            Effect.onInterrupt(Effect.never, () => Effect.sync(() => left++))
          )
      })
      const routes = (yield* table).filter((route) => !isOpen(route))
      for (const [index, route] of routes.entries()) {
        const connection = yield* all.slow(route, "ann", "")
        yield* until("the question", Effect.sync(() => asked), (count) => count === index + 1)
        yield* connection.leave
        yield* until(
          `${route.method} ${route.path}: the interruption`,
          Effect.sync(() => left),
          (count) => count === index + 1
        )
      }
    }))

  it.live("O-41: a hundred refused or waiting requests take no place from authorized requests", () =>
    Effect.gen(function*() {
      const routes = (yield* table).filter((route) => !isOpen(route))
      for (const token of ["ended", "waits"]) {
        const all = yield* site({
          authorize: (request, question) =>
            request.headers["authorization"] === "Bearer waits"
              ? Effect.never
              : byToken(new Set(["ended"]))(request, question),
          bounds: { bodies: 1, streams: 2, writes: routes.length, lists: 1, runs: 1, sessions: 20 }
        })
        for (const route of routes) {
          yield* Effect.forEach(Array.from({ length: 8 }), () => all.slow(route, token), { concurrency: "unbounded" })
        }
        for (const [index, route] of routes.filter(({ method }) => method !== "DELETE").entries()) {
          const { status, text } = yield* all.post(route, "ann", hasBody(route) ? `s${index}` : "s1")
          assert.notInclude([401, 403, 408, 429, 503], status, `${token}: ${route.method} ${route.path}: ${text}`)
        }
      }
    }))

  it.live("O-41: authorize is asked before the body without the body's names, and after the body with all names", () =>
    Effect.gen(function*() {
      const asked: Array<Server.Question> = []
      const all = yield* site({
        authorize: (request, question) => {
          asked.push(question)
          return byToken()(request, question)
        },
        bounds: { writes: 1_000 }
      })
      for (const route of (yield* table).filter(hasBody)) {
        asked.length = 0
        const { status } = yield* all.post(route, "ann")
        // An answer cannot be a message.
        assert.include([200, 201, 409], status, route.path)
        const before = route.path === "/mcp" ? { action: "write" } : { agent: "helper", action: "write" }
        const after = route.path === "/mcp" ? [] : [{ agent: "helper", session: "s1", action: "write" }]
        assert.deepStrictEqual(asked.slice(0, 1 + after.length), [before, ...after] as never, route.path)
        if (route.path === "/mcp") {
          assert.deepStrictEqual(asked.slice(1, 2), [{ agent: "helper", action: "write" }])
        }
      }
    }))

  it.live("O-41: a principal that may only answer, approve or list gets in, and does only that", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const answers = { answers: [{ id: "r1~c0", approve: true }] }
      const path = "/agents/helper/sessions/s1/answers"
      for (const [token, status] of [["ann:approve", 404], ["ann:answer", 403], ["ann:read", 403]] as const) {
        const answered = yield* send(all.url, { path, body: answers, headers: bearer(token) })
        assert.strictEqual(answered.status, status, token)
      }
      const said = yield* send(all.url, { path, body: { content: "Hi" }, headers: bearer("ann:approve,answer") })
      assert.strictEqual(said.status, 403)
      const route: Route = { method: "POST", path: "/mcp" }
      const list = { ...bodyOf(route) as object, method: "tools/list" }
      const headers = { ...headersOf(route), "mcp-method": "tools/list", ...bearer("ann:list") }
      assert.strictEqual((yield* send(all.url, { path: "/mcp", body: list, headers })).status, 200)
      assert.strictEqual((yield* all.post(route, "ann:list")).status, 403)
      assert.deepStrictEqual(yield* all.contents, [])
    }))

  it.effect("O-41: authorize has ten seconds before a body", () =>
    Effect.gen(function*() {
      for (const route of (yield* table).filter(hasBody)) {
        const asked = Deferred.makeUnsafe<void>()
        const all = yield* site({ authorize: () => Effect.andThen(Deferred.succeed(asked, undefined), Effect.never) })
        const pending = yield* all.slow(route, "ann")
        yield* Deferred.await(asked)
        yield* TestClock.adjust("10 seconds")
        assert.strictEqual(yield* pending.status, 403, route.path)
      }
    }))

  it.live("O-41: waiting requests of an address are bounded, and authorized requests do not count", () =>
    Effect.gen(function*() {
      let [isSlow, again] = [false, 0]
      const all = yield* site({
        authorize: (request, question) => {
          if (question.action === "read") again++
          const isLate = isSlow && request.headers["authorization"] !== "Bearer ann"
          return isLate ? Effect.never : byToken()(request, question)
        },
        bounds: { undecided: 2, authorization: 20, streams: 10 }
      })
      yield* all.post(messages, "ann")
      const reader = yield* connected(all.url)
      yield* reader.write(headOf("GET", "/agents/helper/sessions/s1/events", bearer("ann")))
      yield* reader.status
      const begun = yield* Effect.forEach(["1", "2", "3"], () => all.slow(messages, "ann"))
      isSlow = true
      yield* all.slow(messages, "eve")
      yield* all.slow(messages, "eve")
      const refused = yield* until("the bound", all.post(messages, "ann"), (answered) => codeOf(answered) === "busy")
      assert.strictEqual(refused.status, 503)
      // The stream was authorised again meanwhile, many times, and bodies that were let in are still read.
      const checks = again
      yield* until("checks of the stream", Effect.sync(() => again), (now) => now > checks + 2)
      assert.isFalse(reader.isClosed())
      for (const body of begun) assert.strictEqual(body.text(), "")
    }))
})

describe("request bodies", () => {
  it.live("O-41: slow bodies take only the places of their own principal", () =>
    Effect.gen(function*() {
      const routes = (yield* table).filter(hasBody)
      for (const slow of routes) {
        const all = yield* site({ bounds: { bodies: 2, writes: 1_000 } })
        const held = [yield* all.slow(slow, "eve"), yield* all.slow(slow, "eve@ann")]
        const refused = yield* full(all, messages, "eve")
        assert.strictEqual(refused.status, 503)
        for (const route of routes) {
          assert.strictEqual(codeOf(yield* all.post(route, "eve")), "busy", route.path)
          const answered = yield* all.post(route, "ann")
          assert.include([200, 201, 409], answered.status, `${slow.path}: ${route.path}: ${answered.text}`)
        }
        // A place is given back however a body ends.
        yield* held[0]!.leave
        yield* until("a place", all.post(messages, "eve"), ({ status }) => status === 200)
      }
    }))

  it.effect("O-41: the time limit of a body depends on its progress", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const body = `{"content":"Hi","id":"m1"}`
      const length = { "content-length": `${body.length}`, expect: "100-continue" }
      const headers = { ...bearer("ann"), "content-type": "application/json", ...length }
      const head = headOf("POST", "/agents/helper/sessions/s1/messages?wait=false", headers)
      /** Waits until the server has read what was written. */
      const turn = Effect.forEach(Array.from({ length: 20 }), () =>
        Effect.promise(() => new Promise((resolve) => setImmediate(resolve))))
      const begin = Effect.gen(function*() {
        const connection = yield* connected(all.url)
        yield* connection.write(head)
        yield* connection.until((text) =>
          text.includes("100 Continue")
        )
        const reply = Effect.map(connection.status, () => connection.text().split("HTTP/1.1 ").at(-1)?.slice(0, 3))
        return {
          write: connection.write,
          text: () => connection.text().replace(/^HTTP\/1.1 100 .*\r\n\r\n/, ""),
          reply
        }
      })
      const piecewise = yield* begin
      for (const piece of [body.slice(0, 5), body.slice(5, 15), body.slice(15)]) {
        yield* TestClock.adjust("29 seconds")
        yield* piecewise.write(piece)
        yield* turn
      }
      assert.strictEqual(yield* piecewise.reply, "202")
      const stops = yield* begin
      yield* TestClock.adjust("20 seconds")
      yield* stops.write("{")
      yield* turn
      yield* TestClock.adjust("29 seconds")
      assert.strictEqual(stops.text(), "")
      yield* TestClock.adjust("1 second")
      assert.strictEqual(yield* stops.reply, "408")
      const drips = yield* begin
      for (let seconds = 0; seconds < 120; seconds += 10) {
        assert.strictEqual(drips.text(), "")
        yield* drips.write(" ")
        yield* turn
        yield* TestClock.adjust("10 seconds")
      }
      yield* TestClock.adjust("1 second")
      assert.strictEqual(yield* drips.reply, "408")
    }))

  it.live("O-41: when all bodies together are too large, the server refuses a body of the principal with the most bytes", () =>
    Effect.gen(function*() {
      const all = yield* site({ bounds: { bodyBytes: 20_000 } })
      const held = yield* all.slow(messages, "ann", " ".repeat(8_000))
      const first = yield* all.slow(messages, "eve", " ".repeat(9_000))
      const second = yield* all.slow(messages, "eve", " ".repeat(9_000))
      assert.strictEqual(yield* second.status, 503)
      assert.deepStrictEqual([held.text(), first.text()], ["", ""])
      assert.strictEqual((yield* all.post(messages, "bob")).status, 200)
    }))
})
