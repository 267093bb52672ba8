/** The modules that the guide to a chat in the browser shows, as a user has them: called, and run over loopback. */
import { Chat } from "@ai-sdk/react"
import { assert, describe, it } from "@effect/vitest"
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses, type UIMessage } from "ai"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Session } from "heddle"
import { Agent, Server } from "heddle/server"
import { Script } from "heddle/testing"
import { Body } from "heddle/ui"
import * as http from "node:http"
import * as Bounds from "../../src/server/internal/bounds.ts"
import { temporaryFile } from "../sql/support/files.ts"
import * as Chunks from "../support/openAiChat.ts"
import { serve } from "../support/server.ts"
import { readSource, readSources } from "../support/source.ts"
import { until } from "../support/until.ts"
import * as Guide from "./support/guide.ts"

const guide = "docs/chat-in-the-browser.md"

type Handler = (request: Request) => Promise<Response>

/** Loads the module of the guide that has a text, changed by the test where it names a port or a file. */
const load = (text: string, change: (code: string) => string = (code) => code): Effect.Effect<any> => {
  const example = Guide.exampleOf(guide, text)
  const file = Guide.write(`${example.place.replaceAll(/\W+/g, "-")}.ts`, { ...example, code: change(example.code) })
  return Effect.promise(() => import(file))
}

/** Says something in a chat of the AI SDK, and returns the text of the reply. */
const converse = async (origin: string, fetch?: typeof globalThis.fetch): Promise<string> => {
  const api = `${origin}/agents/shop/sessions`
  const transport = new DefaultChatTransport<UIMessage>(fetch === undefined ? { api } : { api, fetch })
  const chat = new Chat<UIMessage>({ id: "chat-1", transport })
  await chat.sendMessage({ text: "Hi" })
  if (chat.error !== undefined) throw chat.error
  return textOf(chat.messages.at(-1))
}

const textOf = (message: UIMessage | undefined): string =>
  (message?.parts ?? []).map((part) => part.type === "text" ? part.text : "").join("")

/** Runs a server of Node until the scope closes. Succeeds with its address. */
const run = (server: http.Server) =>
  Effect.acquireRelease(
    Effect.callback<string>((resume) => {
      server.listen(0, "127.0.0.1", () => {
        const address = server.address() as { readonly port: number }
        resume(Effect.succeed(`http://127.0.0.1:${address.port}`))
      })
    }),
    () =>
      Effect.callback<void>((resume) => {
        server.closeAllConnections()
        server.close(() => resume(Effect.void))
      })
  )

const textAt = (url: string): Promise<string> => fetch(url).then((response) => response.text())

/** The cells of the first table of a page whose head has these words. */
const table = (page: string, ...head: ReadonlyArray<string>): ReadonlyArray<ReadonlyArray<string>> => {
  const rows = readSource(page).text.split("\n").map((line) =>
    line.startsWith("|") ? line.slice(1, -1).split("|").map((cell) => cell.trim().replaceAll("`", "")) : []
  )
  const start = rows.findIndex((cells) => head.every((word, index) => cells[index] === word))
  const end = rows.findIndex((cells, index) => index > start && cells.length === 0)
  return rows.slice(start + 2, end)
}

/** The statuses of the functions that make refusals. */
const statuses: Readonly<Record<string, number>> = {
  badRequest: 400,
  forbidden: 403,
  notFound: 404,
  conflict: 409,
  tooLarge: 413,
  tooMany: 429
}

/** The codes of the refusals that the sources make, each with its status. */
const refusals = (): ReadonlyArray<string> => {
  const made = readSources("src/server").flatMap(({ text }) => {
    const byName = Array.from(
      text.matchAll(/\b(\w+)\(\s*"(\w+)",/g),
      ([, make = "", code = ""]) => [code, statuses[make]]
    )
    const whole = Array.from(text.matchAll(/status: (\d{3}),\s*code: "(\w+)"/g), ([, status, code]) => [code, status])
    return [...byName, ...whole].filter(([, status]) => status !== undefined)
  })
  const ofBodies = Body.BodyError.fields.reason.literals.map((code) => [code, code === "too_large" ? 413 : 400])
  return [...new Set([...made, ...ofBodies].map(([code, status]) => `${code} ${status}`))].sort()
}

describe("the guide to production", () => {
  it.live("W-21: a server that no request can address is a defect that says which option to give", () =>
    Effect.gen(function*() {
      const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({}) })
      const authorize: Server.Authorize = () => Effect.succeed({ principal: "ann" })
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [shop], authorize }).pipe(Layer.provide([Script.layer([]), Session.Store.layerMemory]))
      )
      const refused = yield* Effect.promise(() => handler(new Request("http://localhost/health")).then(String, String))
      yield* Effect.promise(() => dispose().catch(() => undefined))
      assert.include(refused, "Server.layer: hosts is empty")
    }))

  it.live("W-11: a message whose reply would exceed the stream bound is refused and not recorded", () =>
    Effect.gen(function*() {
      const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({}) })
      const bounds = { streams: 0 }
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [shop], authorize: Server.allowLoopback, bounds }).pipe(
          Layer.provide([
            Script.layer([[Script.text("Hello."), Script.finish("stop")]]),
            Session.Store.layerMemory
          ])
        )
      )
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const post = async (path: string, body: unknown) => {
        const headers = { "content-type": "application/json" }
        const sent = { method: "POST", headers, body: JSON.stringify(body) }
        const response = await handler(new Request(`http://localhost${path}`, sent))
        return [response.status, await response.text()] as const
      }
      const message = { id: "m1", role: "user", parts: [{ type: "text", text: "Hi" }] }
      const agUi = { threadId: "s3", runId: "r", messages: [{ id: "m1", role: "user", content: "Hi" }] }
      const refused = yield* Effect.promise(() =>
        Promise.all([
          post("/agents/shop/sessions/s1/messages", { content: "Hi" }),
          post("/agents/shop/sessions", { id: "s2", messages: [message] }),
          post("/agui/shop", agUi)
        ])
      )
      assert.deepStrictEqual(refused.map(([status]) => status), [429, 429, 429])
      for (const [, text] of refused) assert.include(text, "too_many_streams")
      const kept = yield* Effect.promise(() => handler(new Request("http://localhost/agents/shop/sessions")))
      assert.deepStrictEqual(yield* Effect.promise(() => kept.json()), { sessions: [] })
      const [taken] = yield* Effect.promise(() =>
        post("/agents/shop/sessions/s1/messages?wait=false", { content: "Hi" })
      )
      assert.strictEqual(taken, 202)
    }).pipe(Effect.scoped))

  it("W-21: the guide lists every refusal code with its status", () => {
    const listed = table("docs/in-production.md", "Code", "Status").map(([code, status]) => `${code} ${status}`)
    assert.deepStrictEqual(listed.toSorted(), refusals())
    assert.isAbove(listed.length, 25)
  })

  it("W-21: the guide lists every option", () => {
    const listed = table("docs/in-production.md", "Option of Server.layer").map(([option = ""]) => option)
    const fieldsOf = (file: string, name: string) => {
      const { text } = readSource(`src/server/${file}.ts`)
      const [, fields = ""] = new RegExp(`export interface ${name}<[^]*?\\{\\n([^]*?)\\n\\}`).exec(text) ?? []
      return Array.from(fields.matchAll(/^  readonly (\w+)\??:/gm), ([, field]) => field)
    }
    const known = [...fieldsOf("Server", "Options"), ...fieldsOf("internal/hosting", "Settings")]
    assert.deepStrictEqual(listed.toSorted(), known.toSorted())
  })

  it("W-21: the guide lists every bound", () => {
    const listed = table("docs/in-production.md", "Bound", "Default").map(([bound = ""]) => bound)
    assert.deepStrictEqual(listed.toSorted(), Object.keys(Bounds.standard).toSorted())
  })
})

describe("the guide to a chat in the browser", () => {
  it("W-21: the guide's server has at most 20 lines, and each of its handlers at most 30", () => {
    const lines = (text: string) => Guide.linesOf(Guide.exampleOf(guide, text))
    assert.isAtMost(lines("runMain"), 20)
    for (const text of ["createServer(", "new Hono()", "force-dynamic"]) assert.isAtMost(lines(text), 30, text)
  })

  it.live("W-21: the guide's server streams to the AI SDK chat, and runs an approved call", () =>
    Effect.gen(function*() {
      const call = Chunks.call({ index: 0, id: "c0", name: "order", arguments: `{"title":"Emma"}` })
      const replies = [
        Chunks.body(call, Chunks.finish("tool_calls")),
        Chunks.body(Chunks.said("Done."), Chunks.finish("stop"))
      ]
      const model = yield* serve((_, index) => ({ pieces: [replies[index]!] }))
      const filename = yield* temporaryFile
      const { app } = yield* load("runMain", (code) => {
        const changed = code.replace("port: 3000", "port: 0").replace(`"chat.db"`, JSON.stringify(filename))
        assert.notInclude(changed, "3000")
        assert.notInclude(changed, `"chat.db"`)
        return changed
      })
      const config = ConfigProvider.fromUnknown({ OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: `${model.url}/v1` })
      const services = yield* Effect.provideService(
        Layer.build(app as Layer.Layer<HttpServer.HttpServer>),
        ConfigProvider.ConfigProvider,
        config
      )
      const { address } = yield* Effect.provide(HttpServer.HttpServer, services)
      const api = `http://127.0.0.1:${"port" in address ? address.port : 0}/agents/shop/sessions`
      const chat = new Chat<UIMessage>({
        id: "chat-1",
        transport: new DefaultChatTransport({ api }),
        sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses
      })
      yield* Effect.promise(() => chat.sendMessage({ text: "Order Emma" }))
      const part = () => chat.messages[1]?.parts.find(({ type }) => type === "dynamic-tool") as any
      assert.strictEqual(part().state, "approval-requested")
      yield* Effect.promise(async () => chat.addToolApprovalResponse({ id: part().approval.id, approved: true }))
      yield* until(
        "the reply",
        Effect.sync(() => [chat.status, textOf(chat.messages.at(-1))]),
        ([status, text]) => status === "ready" && text === "Done."
      )
      assert.deepStrictEqual([part().state, part().output], ["output-available", "Emma is on its way"])
      assert.strictEqual(chat.messages.length, 2)
      assert.strictEqual(model.requests.length, 2)
    }).pipe(Effect.scoped))

  it.live("W-21: the guide's handler answers in a Node server beside that server's own pages", () =>
    Effect.gen(function*() {
      const { server } = yield* load("createServer(")
      const origin = yield* run(server)
      assert.strictEqual(yield* Effect.promise(() => textAt(origin)), "a page of your own")
      assert.strictEqual(yield* Effect.promise(() => converse(origin)), "Hello.")
      const refused = yield* Effect.promise(() => fetch(`${origin}/agents/shop/sessions/none`))
      assert.strictEqual(refused.status, 404)
    }).pipe(Effect.scoped))

  it.live("W-21: the guide's Hono handler answers a request, and runs in a Node server", () =>
    Effect.gen(function*() {
      const { default: web, dispose } = yield* load("new Hono()")
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const { listener } = yield* load("createServer(")
      const own = yield* Effect.promise(async () => (await web.request("http://localhost/")).text())
      assert.strictEqual(own, "a page of your own")
      const health = yield* Effect.promise(async () =>
        (await web.request("http://localhost/agents/shop/sessions")).json()
      )
      assert.deepStrictEqual(health, { sessions: [] })
      const origin = yield* run(http.createServer(listener(web.fetch)))
      assert.strictEqual(yield* Effect.promise(() => converse(origin)), "Hello.")
    }).pipe(Effect.scoped))

  it.live("W-21: the guide's Next.js handlers answer the logged in user, behind forwarded headers", () =>
    Effect.gen(function*() {
      const next: { readonly GET: Handler; readonly POST: Handler } = yield* load("force-dynamic")
      const kept = globalThis as { agents?: ReturnType<typeof Server.toWebHandler> }
      assert.isUndefined(kept.agents)
      yield* Effect.addFinalizer(() =>
        Effect.promise(async () => {
          await kept.agents?.dispose()
          delete kept.agents
        })
      )
      const origin = "https://chat.example.com"
      const sent = (headers: Readonly<Record<string, string>>) => (url: unknown, init?: RequestInit) => {
        const all = {
          ...Object.fromEntries(new Headers(init?.headers)),
          origin,
          "x-forwarded-for": "10.0.0.7",
          ...headers
        }
        return next.POST(new Request(String(url), { ...init, headers: all }))
      }
      const said = yield* Effect.promise(() => converse(origin, sent({ cookie: "login=ann-7f3a" })))
      assert.strictEqual(said, "Hello.")
      const stranger = yield* Effect.promise(() => converse(origin, sent({})).then(String, String))
      assert.include(stranger, "Authorization is required.")
      const elsewhere = { cookie: "login=ann-7f3a", host: "evil.example" }
      const refused = yield* Effect.promise(() =>
        next.GET(new Request(`${origin}/agents/shop/sessions`, { headers: elsewhere }))
      )
      assert.strictEqual(refused.status, 421)
    }).pipe(Effect.scoped))

  it.live("W-21: the guide's reader of plain events continues after a broken connection, and has each word once", () =>
    Effect.gen(function*() {
      const more = yield* Deferred.make<void>()
      const scripted = yield* Script.make([
        Script.text("one "),
        Script.text("two "),
        Script.text("three"),
        Script.finish("stop")
      ])
      const model = Adapter.layer({
        stream: (request) =>
          Stream.tap(
            scripted.stream(request),
            (event) => event._tag === "TextDelta" && event.delta === "two " ? Deferred.await(more) : Effect.void
          )
      })
      const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({}) })
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [shop], authorize: Server.allowLoopback, joinMillis: 0 }).pipe(
          Layer.provide([model, Session.Store.layerMemory])
        )
      )
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const { listener } = yield* load("createServer(")
      const { makeReader } = yield* load("last-event-id")
      const { follow, runs } = makeReader()
      const server = http.createServer(listener(handler))
      const session = `${yield* run(server)}/agents/shop/sessions/chat-1`
      yield* Effect.promise(() =>
        fetch(`${session}/messages?wait=false`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ content: "Count" })
        })
      )
      const words = Effect.sync(() => {
        const events: ReadonlyArray<Event.PublicEvent> = [...runs.values()].at(-1) ?? []
        const deltas = events.map((event) => event._tag === "TextDelta" ? event.delta : "").join("")
        // A run that has ended before the reader is back comes as a whole.
        const texts = events.map((event) => event._tag === "TextCompleted" ? event.text : "").join("")
        const text = deltas === "" ? texts : deltas
        return { text, last: events.at(-1)?._tag, runs: runs.size }
      })
      const following: Promise<unknown> = follow(`${session}/events`, "t").catch(() => undefined)
      yield* until("the first word", words, ({ text }) => text === "one ")
      server.closeAllConnections()
      yield* Effect.promise(() => following)
      yield* Deferred.succeed(more, undefined)
      const again: Promise<unknown> = follow(`${session}/events`, "t").catch(() => undefined)
      const seen = yield* until("the end", words, ({ last }) => last === "ChatCompleted")
      assert.deepStrictEqual(seen, { text: "one two three", last: "ChatCompleted", runs: 1 })
      server.closeAllConnections()
      yield* Effect.promise(() => again)
    }).pipe(Effect.scoped))

  it.live("W-21: a chat that does not exist, or belongs to another principal, has no stream to resume", () =>
    Effect.gen(function*() {
      const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({}) })
      const authorize: Server.Authorize = ({ headers }) =>
        Effect.succeed({ principal: headers["authorization"] === "Bearer ann" ? "ann" : "bob" })
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [shop], authorize, hosts: ["localhost"] }).pipe(
          Layer.provide([
            Script.layer([[Script.toolCall("c0", "none"), Script.delay("10 minutes"), Script.finish("stop")]]),
            Session.Store.layerMemory
          ])
        )
      )
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const url = "http://localhost/agents/shop/sessions"
      const ann = { "authorization": "Bearer ann", "content-type": "application/json" }
      const body = JSON.stringify({ content: "Hi" })
      const statuses = yield* Effect.promise(async () => {
        const said = await handler(new Request(`${url}/s1/messages?wait=false`, { method: "POST", headers: ann, body }))
        const own = await handler(new Request(`${url}/s1/stream`, { headers: ann }))
        await own.body?.cancel()
        const foreign = await handler(new Request(`${url}/s1/stream`))
        const unknown = await handler(new Request(`${url}/s2/stream`))
        return [said, own, foreign, unknown].map(({ status }) => status)
      })
      assert.deepStrictEqual(statuses, [202, 200, 204, 204])
    }).pipe(Effect.scoped))

  it.live("W-21: a request without a Host header has the host of its address, and a request with a Host header keeps it", () =>
    Effect.gen(function*() {
      const shop = Agent.make({ name: "shop", description: "Sells books", run: () => Effect.succeed({}) })
      const { dispose, handler } = Server.toWebHandler(
        Server.layer({ agents: [shop], authorize: Server.allowLoopback }).pipe(
          Layer.provide([Script.layer([]), Session.Store.layerMemory])
        )
      )
      yield* Effect.addFinalizer(() => Effect.promise(dispose))
      const status = (url: string, headers = {}) => handler(new Request(url, { headers })).then(({ status }) => status)
      const path = "/agents/shop/sessions"
      const statuses = yield* Effect.promise(() =>
        Promise.all([
          status(`http://localhost${path}`),
          status(`http://evil.example${path}`),
          status(`http://localhost${path}`, { host: "evil.example" }),
          status(`http://evil.example${path}`, { host: "localhost" })
        ])
      )
      assert.deepStrictEqual(statuses, [200, 421, 421, 200])
    }).pipe(Effect.scoped))
})
