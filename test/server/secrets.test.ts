/** Marks in all that is secret: none of them is in a log, in a span or in a response that must not have it. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Redacted from "effect/Redacted"
import * as References from "effect/References"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Adapter, Tool } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import { Agent, type Server } from "heddle/server"
import { Script } from "heddle/testing"
import * as http from "node:http"
import { inspect } from "node:util"
import { bearer, byToken, send, type Sending } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** A mark: it names what it stands in, so that a failure says what leaked. */
const mark = (name: string) => `CANARY-${name}-7d1e`

const marks = (text: string): ReadonlyArray<string> => Array.from(new Set(text.match(/CANARY-[\w]+-7d1e/g) ?? []))

/** Everything that a program logs at Info and above, and all that its spans have. */
const observed = () => {
  const lines: Array<string> = []
  const spans: Array<Tracer.NativeSpan> = []
  const logger = Logger.make(({ cause, fiber, logLevel, message }) => {
    const notes = fiber.getRef(References.CurrentLogAnnotations)
    lines.push(
      `${logLevel} ${inspect([message, notes], { depth: 20 })} ${Cause.pretty(cause)} ${inspect(cause, { depth: 20 })}`
    )
  })
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      spans.push(span)
      return span
    }
  })
  const texts = () =>
    spans.map(({ attributes, events, kind, links, name, status }) => {
      const failure = status._tag === "Ended" && Exit.isFailure(status.exit) ? status.exit : undefined
      // The address of a request is the client's own.
      const own = Array.from(attributes).filter(([key]) => kind !== "server" || !key.startsWith("url."))
      return inspect([name, own, events, links.map((link) => link.attributes), failure], {
        depth: 20,
        maxStringLength: null
      })
    })
  const within = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    effect.pipe(
      Effect.provide(Logger.layer([logger])),
      Effect.provideService(References.MinimumLogLevel, "Info"),
      Effect.withTracer(tracer)
    )
  return { lines, spans, texts, within }
}

const asks = (url: string) => (sending: Sending, token = mark("key")) =>
  Effect.map(
    send(url, { ...sending, headers: { ...bearer(token), ...sending.headers } }),
    ({ headers, status, text }) => ({ status, text, whole: `${status} ${JSON.stringify([...headers])} ${text}` })
  )

const principal: Server.Authorize = ({ headers }) =>
  headers["authorization"] === `Bearer ${mark("key")}`
    ? Effect.succeed({ principal: "ann" })
    : Effect.fail(mark("token"))

describe("W-12", () => {
  it.live("W-12: with publish names, no response has arguments, results, progress or defaults, also two agents deep", () =>
    Effect.gen(function*() {
      const { lines, spans, texts, within } = observed()
      const seen: Array<string> = []
      const secretive = Tool.make("secretive", {
        parameters: { card: Schema.String },
        handler: (_, call) => Effect.as(call.progress({ note: mark("progress") }), { secret: mark("result") })
      })
      const failing = Tool.make("failing", {
        parameters: { card: Schema.String },
        handler: () => Effect.fail(new Error(mark("failure")))
      })
      const dying = Tool.make("dying", {
        parameters: { card: Schema.String },
        handler: () => Effect.die(new Error(mark("defect")))
      })
      const pay = Tool.make("pay", {
        parameters: { card: Schema.String },
        approval: true,
        handler: () => Effect.succeed(mark("paid"))
      })
      const ask = Tool.make("ask", {
        parameters: { card: Schema.String },
        handler: () =>
          Effect.succeed(
            Tool.askUser("How many?", { answer: Schema.String, expiresIn: "1 day", defaultAnswer: mark("default") })
          )
      })
      const leaf = Agent.make({
        name: "leaf",
        description: "Works",
        run: () => Effect.succeed({ system: mark("system"), tools: [secretive, failing, dying] })
      })
      const middle = Agent.make({
        name: "middle",
        description: "Asks",
        run: () => Effect.succeed({ system: mark("system"), tools: [Agent.toTool(leaf)] })
      })
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: () =>
          Effect.succeed({ system: mark("system"), tools: [Agent.toTool(middle), secretive, failing, dying, pay, ask] })
      })
      const card = { card: mark("arguments") }
      const calls = (...asked: ReadonlyArray<readonly [string, object]>) => [
        ...asked.map(([name, args], index) => Script.toolCall(`c${index}`, name, args as never)),
        Script.finish("tool_calls")
      ]
      const said = (text: string) => [Script.text(text), Script.finish("stop")]
      const model = Script.layer([
        calls(["middle", { task: mark("arguments") }]),
        calls(["leaf", { task: mark("arguments") }]),
        calls(["secretive", card], ["failing", card], ["dying", card]),
        said(mark("nested")),
        said(mark("nested")),
        said("Done"),
        calls(["secretive", card], ["failing", card], ["dying", card], ["pay", card], ["ask", card]),
        said("Done"),
        said("Done")
      ])
      const { url } = yield* within(serve([agent], model, {
        authorize: principal,
        hosts: ["127.0.0.1"],
        publish: "names",
        raw: false,
        joinMillis: 0
      }))
      const ask_ = asks(url)
      const read = (sending: Sending) =>
        Effect.map(ask_(sending), (answered) => {
          seen.push(`${sending.path} ${answered.whole}`)
          return answered
        })
      const everywhere = Effect.gen(function*() {
        for (const path of [at, `${at}/s1`, `${at}/s1/stream`, "/agents/helper/sessions?next="]) yield* read({ path })
        const { text } = yield* ask_({ path: `${at}/s1` })
        return JSON.parse(text)
      })
      const user = (id: string) => [{ id, role: "user", parts: [{ type: "text", text: "Go" }] }]
      yield* read({ path: at, body: { id: "s1", messages: user("m1") } })
      yield* everywhere
      // The message again is answered with the run as the journal has it.
      yield* read({ path: `${at}/s1/messages`, body: { content: "Go", id: "m1" } })
      yield* read({
        path: "/agui/helper",
        body: { threadId: "s1", runId: "r2", tools: [], messages: [{ id: "m2", role: "user", content: "Go" }] }
      })
      const { runId, suspensions } = yield* everywhere
      assert.strictEqual(runId, undefined)
      assert.strictEqual(suspensions.length, 2)
      const [first, second] = suspensions
      yield* read({
        path: `${at}/s1/answers`,
        body: { answers: [{ id: first.id, approve: true }, { id: second.id, value: "3" }] }
      })
      yield* everywhere
      yield* read({ path: `${at}/s1/messages`, body: { content: "Go", id: "m2" } })
      const all = seen.join("\n")
      assert.include(all, "How many?")
      assert.include(all, "\"secretive\"")
      assert.deepStrictEqual(marks(all), [])
      assert.isNotEmpty(spans)
      assert.deepStrictEqual(marks(texts().join("\n")), [])
      assert.deepStrictEqual(marks(lines.join("\n")), [])
    }))

  it.live("W-12: no log, span or error body has keys, prompts, arguments, results or provider errors", () =>
    Effect.gen(function*() {
      const { lines, spans, texts, within } = observed()
      const pay = Tool.make("pay", {
        parameters: { card: Schema.String },
        handler: () => Effect.succeed(mark("result"))
      })
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: () => Effect.succeed({ system: mark("system"), tools: [pay] })
      })
      // A provider whose errors repeat what it was sent.
      const requests: Array<string> = []
      const provider = http.createServer((request, response) => {
        requests.push(`${request.url} ${JSON.stringify(request.headers)}`)
        request.resume()
        request.on("end", () => {
          response.writeHead(400, { "content-type": "application/json", "x-request-id": mark("requestid") })
          response.end(JSON.stringify({
            error: {
              message: `bad key ${mark("apikey")} at https://x/${mark("url")}?key=${mark("apikey")}`,
              code: mark("code")
            }
          }))
        })
      })
      yield* Effect.acquireRelease(
        Effect.callback<void>((resume) => void provider.listen(0, "127.0.0.1", () => resume(Effect.void))),
        () => Effect.sync(() => (provider.closeAllConnections(), provider.close()))
      )
      const { port } = provider.address() as { readonly port: number }
      const model = OpenAiChat.layer({
        baseUrl: `http://127.0.0.1:${port}/${mark("path")}/v1?tenant=${mark("query")}`,
        apiKey: Redacted.make(mark("apikey")),
        model: "m"
      }).pipe(Layer.provide(FetchHttpClient.layer))
      const { url } = yield* within(
        serve([agent], model, { authorize: principal, hosts: ["127.0.0.1"], joinMillis: 0 })
      )
      const ask = asks(url)
      const prompt = mark("prompt")
      const failed = yield* ask({ path: `${at}/s1/messages`, body: { content: prompt } })
      assert.isNotEmpty(requests)
      assert.include(failed.text, "Failed")
      const bodies = [failed.whole]
      bodies.push(
        (yield* ask({
          path: at,
          body: { id: "s2", messages: [{ id: "m1", role: "user", parts: [{ type: "text", text: prompt }] }] }
        })).whole
      )
      const agui = { threadId: "s3", runId: "r1", tools: [], messages: [] as Array<object> }
      const ag = yield* ask({
        path: "/agui/helper",
        body: { ...agui, messages: [{ id: "u1", role: "user", content: "Hi" }] }
      })
      bodies.push(ag.whole)
      bodies.push((yield* ask({ path: `${at}/s1/resume`, method: "POST" })).whole)
      for (
        const sending of [
          { path: `${at}/s1?key=${mark("query")}` },
          { path: `${at}/${mark("query")}` },
          { path: `${at}/s1/events?after=${mark("query")}` },
          { path: `${at}/s1/messages`, body: `{"content": ${mark("body")}` },
          { path: `${at}/s1/messages`, body: { content: [{ type: mark("body"), text: mark("body") }] } },
          { path: `${at}/s1/messages`, body: { [mark("body")]: 1 } },
          { path: `${at}/s1/answers`, body: { answers: [{ id: mark("body"), value: mark("body") }] } }
        ] as ReadonlyArray<Sending>
      ) {
        const answered = yield* ask(sending)
        if (answered.status >= 400) bodies.push(answered.whole)
      }
      bodies.push((yield* ask({ path: `${at}/s1` }, mark("wrong"))).whole)
      const texted = bodies.join("\n").replaceAll(prompt, "")
      assert.deepStrictEqual(marks(texted), [])
      const asked = spans.filter(({ kind, name }) => kind === "client" && name === "POST")
      assert.isNotEmpty(asked)
      for (const { attributes } of asked) {
        assert.deepStrictEqual(Object.fromEntries(attributes), {
          "http.request.method": "POST",
          "server.address": "127.0.0.1",
          "http.response.status_code": 400,
          "error.type": "invalid_request"
        })
      }
      assert.deepStrictEqual(marks(texts().join("\n")), [])
      assert.deepStrictEqual(marks(lines.join("\n")), [])
      assert.isTrue(lines.some((line) => line.includes("AdapterError: invalid_request")))
    }))

  it.live("W-12: a request span has the path, and no query", () =>
    Effect.gen(function*() {
      const { spans, within } = observed()
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: ({ clientTools }) => clientTools.length > 0 ? Effect.die(new Error("no tools here")) : Effect.succeed({})
      })
      const script = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
      const { url } = yield* within(serve([agent], script, { authorize: principal, hosts: ["127.0.0.1"] }))
      const ask = asks(url)
      const behind = `?${mark("name")}=${mark("query")}&wait=true`
      const clientTools = [{ name: "t", description: "d" }]
      for (
        const [path, status, body] of [
          [`${at}/s1/messages`, 200, { content: "Hi" }],
          [`${at}/s1/events`, 403],
          [`${at}/s1`, 200],
          [`${at}/s2`, 404],
          ["/nowhere", 404],
          [`${at}/s3/messages`, 500, { content: "Hi", clientTools }]
        ] as const
      ) {
        const answered = yield* ask(
          { path: path + behind, ...(body === undefined ? {} : { body }) },
          status === 403 ? mark("wrong") : undefined
        )
        assert.strictEqual(answered.status, status, path)
        const span = spans.findLast(({ kind }) => kind === "server")
        assert.strictEqual(span?.attributes.get("url.path"), path)
        assert.strictEqual(span?.attributes.get("http.response.status_code"), status)
        assert.strictEqual(span?.attributes.get("url.full"), url + path)
      }
      // An exporter writes the message of a failure, and may read the address of its request.
      const failures = spans.flatMap(({ status }) =>
        status._tag === "Ended" && Exit.isFailure(status.exit)
          ? [Cause.pretty(status.exit.cause), (Cause.squash(status.exit.cause) as any).reason?.request?.url]
          : []
      )
      assert.include(failures, `${at}/s3/messages`)
      const all = [failures, spans.map(({ attributes, events, links, name }) => [name, attributes, events, links])]
      assert.deepStrictEqual(marks(inspect(all, { depth: 20, maxStringLength: null })), [])
    }))

  it.live("W-12: a broken store and a dying agent answer with a code, and their logs have nothing of the request", () =>
    Effect.gen(function*() {
      const { lines, within, texts } = observed()
      const agent = Agent.make({
        name: "helper",
        description: "Helps",
        run: ({ clientTools }) => clientTools.length > 0 ? Effect.die(new Error("no tools here")) : Effect.succeed({})
      })
      const model = Adapter.layer({
        stream: () => Stream.fail(new Adapter.AdapterError({ reason: "invalid_request", detail: mark("detail") }))
      })
      const { url } = yield* within(
        serve([agent], model, { authorize: byToken(), hosts: ["127.0.0.1"], joinMillis: 0 })
      )
      const ask = asks(url)
      const died = yield* ask({
        path: `${at}/s1/messages`,
        body: { content: mark("prompt"), clientTools: [{ name: "t", description: mark("body") }] }
      }, "ann")
      assert.strictEqual(died.status, 500)
      assert.deepStrictEqual(JSON.parse(died.text).error.code, "internal")
      const failed = yield* ask({ path: `${at}/s1/messages`, body: { content: mark("prompt") } }, "ann")
      assert.strictEqual(failed.status, 200)
      assert.deepStrictEqual(marks(died.whole + failed.whole), [])
      assert.isTrue(lines.some((line) => line.includes("no tools here")))
      assert.deepStrictEqual(marks(lines.join("\n")), [])
      assert.deepStrictEqual(marks(texts().join("\n")), [])
    }))
})
