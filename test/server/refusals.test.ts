/** Requests that a server refuses: each with a status, a code and a sentence that has nothing of the request. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import * as net from "node:net"
import * as CallPaths from "../../src/internal/answer/callPath.ts"
import { until } from "../support/until.ts"
import { type Asked, bearer, byToken, codeOf, memory, obedient, send, type Sending } from "./support/hostile.ts"
import { ledgerOf, requireAsBefore } from "./support/ledger.ts"
import { type Answered, partsOf, serve, workers } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** A mark that no response may have. */
const canary = "CANARY-5f1c"

/** `made` is waited for before a run has its tools. */
const site = (
  options: Partial<Server.Options> = {},
  model: Layer.Layer<Adapter.Adapter> = obedient,
  made: Effect.Effect<void> = Effect.void
) =>
  Effect.gen(function*() {
    const paid: Array<unknown> = []
    const store = yield* memory
    const gate = Deferred.makeUnsafe<void>()
    const began = Deferred.makeUnsafe<void>()
    const tools = [
      Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: ({ amount }) => Effect.sync(() => (paid.push(amount), `paid ${amount}`))
      }),
      Tool.make("ask", {
        parameters: {},
        handler: () => Effect.succeed(Tool.askUser("How many?", { answer: Schema.Int }))
      }),
      Tool.make("brief", {
        parameters: {},
        handler: () => Effect.succeed(Tool.askUser("Now?", { answer: Schema.Int, expiresIn: 1 }))
      }),
      Tool.make("wait", {
        parameters: {},
        handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
      })
    ]
    const agents = [
      Agent.make({ name: "helper", description: "Helps", run: () => Effect.as(made, { tools }) }),
      Agent.make({ name: "other", description: "Helps", run: () => Effect.succeed({}) })
    ]
    const { open, url } = yield* serve(agents, model, {
      authorize: byToken(),
      hosts: ["127.0.0.1"],
      bounds: { writes: 10_000, ...options.bounds },
      joinMillis: 0,
      store: store.layer as Layer.Layer<Session.Store>,
      ...options
    })
    const ask = (sending: Sending, token = "ann") =>
      send(url, { ...sending, headers: { ...bearer(token), ...sending.headers } })
    const say = (id: string, content: string | ReadonlyArray<Asked>, token = "ann") =>
      ask({
        path: `${at}/${id}/messages`,
        body: { content: typeof content === "string" ? content : JSON.stringify(content) }
      }, token)
    const suspensions = (id: string, token = "ann") =>
      Effect.map(ask({ path: `${at}/${id}` }, token), ({ text }) => JSON.parse(text).suspensions as Array<any>)
    const denied = (key: string, call: string) =>
      Effect.gen(function*() {
        const kept = (yield* Session.load(key))!
        yield* Session.keep(kept, (session) => Session.deny(session, call))
      })
    const { contents, layer, records } = store
    return { url, open, paid, gate, began, ask, say, suspensions, contents, records, layer, denied }
  })

type Site = Effect.Success<ReturnType<typeof site>>

/** Requires that a request is refused so, that nothing was changed or is held for it, and that the response has nothing of the request. */
const refused = (
  { ask, contents, paid, url }: Site,
  name: string,
  sending: Sending,
  status: number,
  code: string | undefined,
  token = "ann"
) =>
  Effect.gen(function*() {
    const before = [yield* contents, [...paid]]
    const [parts, worker] = [partsOf({ url }), workers.get(url)!]
    const ledger = ledgerOf(parts)
    const answered = yield* ask(sending, token)
    assert.deepStrictEqual([answered.status, codeOf(answered)], [status, code], `${name}: ${answered.text}`)
    assert.deepStrictEqual([yield* contents, [...paid]], before, `${name}: something was changed`)
    yield* requireAsBefore(parts, worker, name, ledger)
    assert.notInclude(answered.text, canary, name)
    if (code !== undefined) assert.match(JSON.parse(answered.text).error.message, /^[A-Z\w].{8,}/, name)
    return answered
  })

const seen = ({ headers, status, text }: Answered) => {
  const shown = Object.fromEntries(headers)
  delete shown["date"]
  return { status, text, shown }
}

const ui = (id: string, parts: ReadonlyArray<unknown>, role = "user", more: object = {}) => ({
  id,
  trigger: "submit-message",
  messages: [{ id: "m1", role, parts }],
  ...more
})

const agui = (threadId: string, more: object = {}) => ({ threadId, runId: "r1", messages: [], tools: [], ...more })

describe("principals", () => {
  it.live("W-11: another principal's session answers on every route like a session that does not exist", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id }] = yield* all.suspensions("s1")
      const [runId] = id.split("~")
      const before = yield* all.contents
      const answers = [{ id, approve: true }]
      const routes = (id: string): ReadonlyArray<Sending> => [
        { path: `${at}/${id}` },
        { path: `${at}/${id}`, method: "DELETE" },
        { path: `${at}/${id}/stream` },
        { path: `/agui/helper/${id}?runId=r1` },
        { path: `${at}/${id}/events` },
        { path: `${at}/${id}/events?after=${runId}.1.0` },
        { path: `${at}/${id}/events?after=x.1.0` },
        { path: `${at}/${id}/events`, headers: { "last-event-id": `${runId}.1.0` } },
        { path: `${at}/${id}/messages`, body: { answers } },
        { path: `${at}/${id}/answers`, body: { answers } },
        { path: `${at}/${id}/stop`, method: "POST" },
        { path: `${at}/${id}/stop?wait=false`, method: "POST" },
        { path: `${at}/${id}/resume`, method: "POST" },
        {
          path: at,
          body: ui(id, [{
            type: "tool-pay",
            state: "approval-responded",
            toolCallId: "c0",
            approval: { id, approved: true }
          }], "assistant")
        },
        {
          path: "/agui/helper",
          body: agui(id, {
            resume: [{
              interruptId: id,
              status: "resolved",
              payload: {
                approved: true
              }
            }]
          })
        }
      ]
      const unknown = routes("nosuch")
      for (const [index, foreign] of routes("s1").entries()) {
        const name = `${foreign.method ?? ""} ${foreign.path}`
        const [one, other] = [yield* all.ask(foreign, "eve"), yield* all.ask(unknown[index]!, "eve")]
        // The page of a new chat asks for what is under way before there is a session.
        const isJoining = foreign.path.startsWith("/agui/helper/")
        assert.strictEqual(one.status, foreign.path.endsWith("/stream") ? 204 : isJoining ? 200 : 404, name)
        // The id of the thread is that of the request.
        if (isJoining) Object.assign(one, { text: one.text.replaceAll("\"s1\"", "\"nosuch\"") })
        assert.deepStrictEqual(seen(one), seen(other), name)
        // The other agent does not run it either.
        const elsewhere = yield* all.ask({
          ...foreign,
          path: foreign.path.replace("/helper", "/other")
        })
        if (isJoining) Object.assign(elsewhere, { text: elsewhere.text.replaceAll("\"s1\"", "\"nosuch\"") })
        assert.deepStrictEqual(seen(elsewhere), seen(other), `${name} of the other agent`)
      }
      const listed = yield* all.ask({ path: at }, "eve")
      assert.deepStrictEqual(JSON.parse(listed.text).sessions, [])
      assert.deepStrictEqual(yield* all.contents, before)
      assert.deepStrictEqual(all.paid, [])
    }))

  it.live("W-11: an offset of another session's run is refused like an offset of no run", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      yield* all.say("s2", "Hi")
      const [{ id }] = yield* all.suspensions("s1")
      const of = (runId: string) => ({ path: `${at}/s2/events?after=${runId}.1.0` })
      const own = yield* refused(all, "the run of another session", of(id.split("~")[0]), 400, "invalid_offset")
      const none = yield* refused(all, "no run", of("nosuch"), 400, "invalid_offset")
      assert.deepStrictEqual(seen(own), seen(none))
    }))

  it.live("W-11: a principal that may not approve cannot approve by any route", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id }] = yield* all.suspensions("s1")
      const part = { type: "tool-pay", toolCallId: "c0", input: { amount: 1 } }
      const responded = (approval: object) => [{ ...part, state: "approval-responded", approval: { id, ...approval } }]
      const question = { type: "data-heddle-question", id, data: { toolCallId: "c0", kind: "approval" } }
      const resume = (entry: object) => agui("s1", { resume: [{ interruptId: id, ...entry }] })
      const ways: Record<string, Sending> = {
        "messages, approval": { path: `${at}/s1/messages`, body: { answers: [{ id, approve: true }] } },
        "messages, denial": { path: `${at}/s1/messages`, body: { answers: [{ id, approve: false }] } },
        "answers, approval": { path: `${at}/s1/answers`, body: { answers: [{ id, approve: true }] } },
        "answers, edits": {
          path: `${at}/s1/answers`,
          body: { answers: [{ id, approve: true, arguments: { amount: 2 } }] }
        },
        "AI SDK, approval": { path: at, body: ui("s1", responded({ approved: true }), "assistant") },
        "AI SDK, denial": { path: at, body: ui("s1", responded({ approved: false }), "assistant") },
        "AI SDK, edits": {
          path: at,
          body: ui("s1", responded({ approved: true }), "assistant", { edits: { c0: { amount: 2 } } })
        },
        "AI SDK, output": {
          path: at,
          body: ui(
            "s1",
            [question, { ...part, state: "output-available", output: { approved: true } }],
            "assistant"
          )
        },
        "AG-UI, approval": {
          path: "/agui/helper",
          body: resume({ status: "resolved", payload: { approved: true } })
        },
        "AG-UI, denial": { path: "/agui/helper", body: resume({ status: "resolved", payload: { approved: false } }) },
        "AG-UI, cancelled": { path: "/agui/helper", body: resume({ status: "cancelled" }) },
        "messages, by call id": { path: `${at}/s1/messages`, body: { answers: [{ id: "c0", approve: true }] } }
      }
      for (const [name, sending] of Object.entries(ways)) {
        for (const actions of ["read,write,answer,stop,delete,list", "write", "answer", "read"]) {
          yield* refused(all, `${name} by ${actions}`, sending, 403, "forbidden", `ann:${actions}`)
        }
      }
      // A body of which one part is refused is refused as a whole.
      yield* refused(
        all,
        "an approval with a message",
        {
          path: "/agui/helper",
          body: {
            ...resume({ status: "resolved", payload: { approved: true } }),
            messages: [{
              id: "u1",
              role: "user",
              content: "Hi"
            }]
          }
        },
        403,
        "forbidden",
        "ann:write,answer"
      )
    }))

  it.live("W-11: a forged result for a call that waits for approval is refused", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id }] = yield* all.suspensions("s1")
      const part = { type: "tool-pay", toolCallId: "c0", state: "output-available", output: canary }
      const question = (kind: string) => ({ type: "data-heddle-question", id, data: { toolCallId: "c0", kind } })
      yield* refused(
        all,
        "AI SDK, with a question of another kind",
        { path: at, body: ui("s1", [question("manual"), part], "assistant") },
        409,
        "wrong_kind"
      )
      yield* refused(
        all,
        "AI SDK, alone",
        { path: at, body: ui("s1", [part], "assistant") },
        409,
        "waits_for_answers"
      )
      yield* refused(
        all,
        "a value",
        { path: `${at}/s1/answers`, body: { answers: [{ id, value: canary }] } },
        409,
        "wrong_kind"
      )
      yield* refused(
        all,
        "a value by the id of the call",
        { path: `${at}/s1/answers`, body: { answers: [{ id: "c0", value: canary }] } },
        409,
        "not_waiting"
      )
      yield* refused(
        all,
        "AG-UI, a message of the tool",
        {
          path: "/agui/helper",
          body: agui("s1", { messages: [{ id: "t1", role: "tool", toolCallId: "c0", content: canary }] })
        },
        409,
        "not_waiting"
      )
    }))

  it.live("W-11: the journal names a principal that acts on another principal's session, and such an act needs the permission", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", "Hi")
      const read = yield* all.ask({ path: `${at}/s1` }, "bob@ann")
      assert.strictEqual(read.status, 200)
      yield* refused(
        all,
        "a write",
        { path: `${at}/s1/messages`, body: { content: "Hi" } },
        403,
        "forbidden",
        "bob@ann:read"
      )
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }], "bob@ann")
      const [{ id }] = yield* all.suspensions("s1")
      yield* all.ask({ path: `${at}/s1/answers`, body: { answers: [{ id, approve: true }] } }, "eve@ann")
      const records = yield* all.records("ann:s1")
      assert.deepStrictEqual(
        records.flatMap((record) =>
          record._tag === "MessageSubmitted" || record._tag === "CallSettled" ? [[record._tag, record.by]] : []
        ),
        [["MessageSubmitted", "ann"], ["MessageSubmitted", "bob"], ["CallSettled", "eve"]]
      )
      assert.deepStrictEqual(all.paid, [1])
      assert.deepStrictEqual(JSON.parse((yield* all.ask({ path: at }, "bob@ann")).text).sessions.length, 1)
      assert.deepStrictEqual(JSON.parse((yield* all.ask({ path: at }, "bob")).text).sessions.length, 0)
    }))
})

describe("authorization", () => {
  it.live("W-11: a check that fails or dies refuses the request, and so does a missing token", () =>
    Effect.gen(function*() {
      const all = yield* site()
      for (const path of [at, `${at}/s1`, `${at}/s1/events`, `${at}/s1/stream`]) {
        yield* refused(all, path, { path }, 403, "forbidden", "dies")
        const bare = yield* send(all.url, { path })
        assert.deepStrictEqual([bare.status, codeOf(bare)], [401, "unauthorized"], path)
        assert.strictEqual(bare.headers.get("www-authenticate"), "Bearer")
      }
      yield* refused(all, "a write", { path: `${at}/s1/messages`, body: { content: canary } }, 403, "forbidden", "dies")
    }))

  it.effect("W-11: a check that never answers refuses the request after ten seconds", () =>
    Effect.gen(function*() {
      for (const never of [Effect.never, Effect.uninterruptible(Effect.never)]) {
        const asked = Deferred.makeUnsafe<void>()
        const all = yield* site({ authorize: () => Effect.andThen(Deferred.succeed(asked, undefined), never) })
        const pending = yield* Effect.forkChild(all.ask({ path: `${at}/s1/messages`, body: { content: "Hi" } }))
        yield* Deferred.await(asked)
        yield* TestClock.adjust("10 seconds")
        const answered = yield* Fiber.join(pending)
        assert.deepStrictEqual([answered.status, codeOf(answered)], [403, "forbidden"])
      }
    }))

  it.live("W-11: a stream ends in each format once its token has expired, or authorize names another principal or owner", () =>
    Effect.gen(function*() {
      const ended = new Set<string>()
      let [principal, of] = ["ann", "ann"]
      const all = yield* site({
        authorize: (request, question) =>
          Effect.map(byToken(ended)(request, question), (grant) => ({ ...grant, principal, of })),
        bounds: { authorization: 20 },
        raw: true
      })
      const content = JSON.stringify([{ id: "c0", name: "wait" }])
      const message = { method: "POST", path: `${at}/s1/messages`, body: { content, id: "m1" } }
      const forms: ReadonlyArray<Sending> = [
        message,
        { path: `${at}/s1/events` },
        { path: `${at}/s1/events?raw=true` },
        { path: `${at}/s1/stream` },
        { path: "/agui/helper/s1" }
      ]
      for (const end of [() => ended.add("ann"), () => (principal = "eve"), () => (of = "eve")]) {
        const readers = []
        for (const { body, method = "GET", path } of forms) {
          const reader = yield* Effect.promise(() => all.open(method, path, body, bearer("ann")))
          assert.strictEqual(reader.status, 200, path)
          readers.push(reader)
          yield* Deferred.await(all.began)
        }
        end()
        for (const reader of readers) {
          const sent = yield* Effect.promise(reader.end)
          assert.isFalse(sent.some(({ data }) => data._tag === "ChatCompleted" || data.type === "RUN_FINISHED"))
        }
        ended.clear()
        principal = of = "ann"
      }
      const { text } = yield* all.ask({ path: `${at}/s1` })
      assert.isTrue(JSON.parse(text).isRunning)
    }))
})

describe("session ids and agent names", () => {
  it.live("W-11: an invalid session id is refused on every route", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const bad = [
        "..",
        "%2e%2e",
        "a%2fb",
        "a%00b",
        "a%20b",
        "a.b",
        "a:b",
        "a~b",
        "%C3%A4",
        "a".repeat(129),
        "a%0ab",
        "ann%3as1"
      ]
      for (const id of bad) {
        for (const path of [`${at}/${id}`, `${at}/${id}/events`, `${at}/${id}/stream`, `/agui/helper/${id}`]) {
          const answered = yield* all.ask({ path })
          assert.include([400, 404], answered.status, path)
          if (answered.status === 404) assert.strictEqual(answered.text, "", path)
        }
      }
      for (const id of ["", "..", "a/b", "a b", "a".repeat(129), "ann:s1", "s1\n", null, 1, ["s1"], { id: "s1" }]) {
        const text = [{ type: "text", text: canary }]
        yield* refused(all, `AI SDK ${String(id)}`, { path: at, body: ui(id as string, text) }, 400, "invalid_body")
        yield* refused(
          all,
          `AG-UI ${String(id)}`,
          {
            path: "/agui/helper",
            body: agui(id as string, { messages: [{ id: "u1", role: "user", content: canary }] })
          },
          400,
          "invalid_body"
        )
      }
      for (const path of [`${at}/%zz`, `${at}/%`, `${at}/%c0%ae`, `${at}/s1/..%2f..%2fhealth`, "//", `${at}//events`]) {
        const answered = yield* all.ask({ path })
        assert.include([400, 404], answered.status, path)
      }
    }))

  it.live("W-11: session ids that equal JavaScript property names are ordinary ids", () =>
    Effect.gen(function*() {
      const all = yield* site()
      for (const id of ["__proto__", "constructor", "prototype", "toString", "a".repeat(128), "-", "_"]) {
        yield* refused(all, id, { path: `${at}/${id}` }, 404, "unknown_session")
        const said = yield* all.say(id, "Hi")
        assert.include(said.text, "Heard: Hi", id)
        assert.strictEqual((yield* all.ask({ path: `${at}/${id}` })).status, 200, id)
        assert.strictEqual((yield* all.ask({ path: `${at}/${id}`, method: "DELETE" })).status, 204, id)
      }
      assert.deepStrictEqual(yield* all.contents, [])
    }))

  it.live("W-11: an unknown agent is refused, whatever its name", () =>
    Effect.gen(function*() {
      const all = yield* site()
      for (const agent of ["nosuch", "__proto__", "constructor", "helper%00", "HELPER", "%2e%2e"]) {
        const path = `/agents/${agent}/sessions`
        yield* refused(all, path, { path }, 404, "unknown_agent")
        yield* refused(all, `${path}/s1`, { path: `${path}/s1` }, 404, "unknown_agent")
        yield* refused(
          all,
          `${path}/s1/messages`,
          { path: `${path}/s1/messages`, body: { content: canary } },
          404,
          "unknown_agent"
        )
        yield* refused(all, path, { path, body: ui("s1", [{ type: "text", text: canary }]) }, 404, "unknown_agent")
      }
    }))
})

describe("requests of browsers", () => {
  const body = { content: canary }
  const path = `${at}/s1/messages`
  const none = { host: "127.0.0.1" }

  it.live("W-11: another host, origin or site is refused before any other check", () =>
    Effect.gen(function*() {
      const all = yield* site({ origins: ["https://app.example.com"] })
      const { host } = new URL(all.url)
      for (const name of ["evil.example", "127.0.0.1.evil.example", "localhost", "127.0.0.1@evil.example", "[::1]"]) {
        yield* refused(all, `host ${name}`, { path, body, headers: { host: name } }, 421, "unknown_host")
        yield* refused(all, `host ${name}`, { path: at, headers: { host: name } }, 421, "unknown_host")
      }
      const origins = [
        "null",
        "https://evil.example",
        "https://app.example.com.evil.example",
        "http://app.example.com",
        "https://app.example.com:444",
        "https://app.example.com/",
        `http://${host}.evil.example`,
        `http://evil@${host}x`,
        "http://127.0.0.1:1",
        "file://",
        ""
      ]
      for (const origin of origins) {
        for (const sending of [{ path, body }, { path: at }, { path: `${at}/s1`, method: "DELETE" }]) {
          const answered = yield* refused(
            all,
            `origin ${origin}`,
            { ...sending, headers: { origin } },
            403,
            "unknown_origin"
          )
          assert.isNull(answered.headers.get("access-control-allow-origin"))
        }
      }
      for (const site of ["cross-site", "same-site", "CROSS-SITE", "unknown", "cross-site, same-origin"]) {
        for (const sending of [{ path, body }, { path: at }]) {
          yield* refused(
            all,
            `site ${site}`,
            { ...sending, headers: { "sec-fetch-site": site } },
            403,
            "unknown_origin"
          )
        }
      }
      const own = yield* all.ask({ path: at, headers: { origin: `http://${host}` } })
      const listed = yield* all.ask({ path: at, headers: { origin: "https://app.example.com" } })
      const plain = yield* all.ask({ path: at, headers: { "sec-fetch-site": "same-origin" } })
      assert.deepStrictEqual([own.status, listed.status, plain.status], [200, 200, 200])
      assert.strictEqual(listed.headers.get("access-control-allow-origin"), "https://app.example.com")
      assert.isNull(own.headers.get("access-control-allow-origin"))
    }))

  it.live("W-11: a body of another content type is refused, and so is a form without fields", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", "Hi")
      const types = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/json",
        "application/json-patch+json",
        "text/plain; application/json",
        ""
      ]
      for (const type of types) {
        const headers = { "content-type": type }
        const text = JSON.stringify(body)
        for (
          const [to, sent] of [
            [path, text],
            [at, text],
            ["/agui/helper", text],
            [`${at}/s1/stop`, text],
            [`${at}/s1/stop`, ""],
            [`${at}/s1/resume`, ""],
            [`${at}/s1/stop?wait=false`, text]
          ] as const
        ) {
          const sending = { path: to, body: sent, headers }
          yield* refused(all, `${type} to ${to}`, sending, 415, "unsupported_media_type")
        }
        yield* refused(
          all,
          `${type} of a removal`,
          { path: `${at}/s1`, method: "DELETE", headers, body: text },
          415,
          "unsupported_media_type"
        )
      }
    }))

  it.live("W-11: a write without a page needs a token, even if a cookie would do", () =>
    Effect.gen(function*() {
      const all = yield* site({ authorize: () => Effect.succeed({ principal: "ann" }) })
      for (const authorization of [undefined, "", "Basic YW5uOmFubg==", "Bearer", "Bearer "]) {
        const headers = { ...none, cookie: "session=1", ...(authorization === undefined ? {} : { authorization }) }
        const before = yield* all.contents
        for (
          const sending of [
            { path, body },
            { path: `${at}/s1`, method: "DELETE" },
            { path: `${at}/s1/stop`, method: "POST" }
          ]
        ) {
          const answered = yield* send(all.url, { ...sending, headers })
          assert.deepStrictEqual([answered.status, codeOf(answered)], [403, "token_required"])
        }
        assert.deepStrictEqual(yield* all.contents, before)
        assert.strictEqual((yield* send(all.url, { path: at, headers })).status, 200)
      }
    }))

  it.live("W-11: preflights are answered for listed pages only, and before authorize is asked", () =>
    Effect.gen(function*() {
      const all = yield* site({ origins: ["https://app.example.com"], authorize: () => Effect.die("asked") })
      const preflight = (origin: string, to: string) =>
        send(all.url, {
          method: "OPTIONS",
          path: to,
          headers: { origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type" }
        })
      for (const to of [at, path, `${at}/s1`, `${at}/s1/stop`, "/agui/helper"]) {
        const listed = yield* preflight("https://app.example.com", to)
        assert.strictEqual(listed.status, 204, to)
        assert.strictEqual(listed.headers.get("access-control-allow-origin"), "https://app.example.com")
        for (const origin of ["https://evil.example", "null", "*"]) {
          const { headers } = yield* preflight(origin, to)
          assert.isNull(headers.get("access-control-allow-origin"), `${origin} ${to}`)
          assert.isNull(headers.get("access-control-allow-methods"), `${origin} ${to}`)
        }
      }
    }))

  it.live("W-11: a forwarded request is not taken for a request of this machine", () =>
    Effect.gen(function*() {
      const { url } = yield* serve(
        [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({}) })],
        obedient
      )
      const headers = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-server",
        "x-real-ip",
        "x-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "via"
      ]
      for (const name of headers) {
        for (
          const sending of [{ path }, { path, body }].map((each) => ({ ...each, path: "body" in each ? path : at }))
        ) {
          const answered = yield* send(url, { ...sending, headers: { [name]: "127.0.0.1" } })
          assert.deepStrictEqual([answered.status, codeOf(answered)], [401, "unauthorized"], name)
        }
      }
      assert.strictEqual((yield* send(url, { path: at })).status, 200)
      assert.strictEqual((yield* send(url, { path: at, headers: { host: "evil.example" } })).status, 421)
    }))

  it.live("W-11: other methods get 404 or 405, and HEAD has the status of GET and holds nothing open", () =>
    Effect.gen(function*() {
      const all = yield* site({ bounds: { streams: 1 } })
      yield* all.ask({
        path: `${at}/s1/messages?wait=false`,
        body: { content: JSON.stringify([{ id: "c0", name: "wait" }]) }
      })
      yield* Deferred.await(all.began)
      for (const method of ["PUT", "PATCH", "TRACE", "PROPFIND"]) {
        for (const to of [at, `${at}/s1`, path, `${at}/s1/events`]) {
          // A session is labelled by PATCH.
          if (method === "PATCH" && to === `${at}/s1`) continue
          const { status } = yield* all.ask({ method, path: to })
          assert.include([404, 405], status, `${method} ${to}`)
        }
      }
      for (let times = 0; times < 3; times++) {
        for (const to of [`${at}/s1/events`, `${at}/s1/stream`, `${at}/s1`]) {
          const { status, text } = yield* all.ask({ method: "HEAD", path: to })
          assert.deepStrictEqual([status, text], [200, ""], to)
        }
      }
      assert.strictEqual((yield* all.ask({ method: "HEAD", path: `${at}/s1/events` }, "eve")).status, 404)
      yield* Deferred.succeed(all.gate, undefined)
    }))
})

describe("message bodies", () => {
  const to = `${at}/s1/messages`
  const message = (content: unknown) => ({ path: to, body: { content } })
  const png = (bytes: number) => Buffer.alloc(bytes).toString("base64")

  it.live("W-11: an empty or meaningless body is refused in all protocols", () =>
    Effect.gen(function*() {
      const all = yield* site()
      for (
        const text of ["", "{", "nul", `{"content":"${canary}`, `{"content":${canary}}`, "\u0000", "{'content':'x'}"]
      ) {
        for (const path of [to, `${at}/s1/answers`, at, "/agui/helper"]) {
          const headers = { "content-type": "application/json" }
          yield* refused(all, `${path} ${text}`, { path, body: text, method: "POST", headers }, 400, "invalid_json")
        }
      }
      const values = [null, [], "x", 1, true, {}, [canary], { [canary]: canary }]
      for (const body of values) {
        const text = JSON.stringify(body)
        for (const path of [to, `${at}/s1/answers`, at, "/agui/helper"]) {
          yield* refused(all, `${path} ${text}`, { path, body: text }, 400, "invalid_body")
        }
      }
      const fields: ReadonlyArray<unknown> = [
        { content: null },
        { content: "" },
        { content: [] },
        { content: [{ type: "text", text: "" }] },
        { content: 1 },
        { content: { type: "text", text: canary } },
        { content: [{ type: "audio", data: canary }] },
        { content: [{ type: "text", text: { [canary]: 1 } }] },
        { content: "Hi", answers: [] },
        { content: "Hi", id: "" },
        { content: "Hi", id: canary.repeat(100) },
        { content: "Hi", clientTools: [{ name: "a b", description: canary }] },
        { content: "Hi", clientTools: [{ name: "t", description: "" }, { name: "t", description: "" }] },
        { answers: [] },
        { answers: {} },
        { answers: [null] },
        { answers: [{ id: "r~c" }] },
        { answers: [{ id: 1, approve: true }] },
        { answers: [{ id: "r~c", approve: "yes" }] },
        { answers: [{ id: "r~c", approve: true, arguments: [canary] }] },
        { answers: [{ id: "r~c", approve: false, reason: [canary] }] }
      ]
      for (const body of fields) {
        yield* refused(all, JSON.stringify(body), { path: to, body }, 400, "invalid_body")
      }
    }))

  it.live("W-11: messages of other roles are not taken over, and no reply is regenerated", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const parts = [{ type: "text", text: canary }]
      for (const role of ["system", "developer", "tool", "data", "__proto__"]) {
        yield* refused(all, `AI SDK ${role}`, { path: at, body: ui("s1", parts, role) }, 400, "invalid_body")
      }
      yield* refused(all, "AI SDK assistant", { path: at, body: ui("s1", parts, "assistant") }, 404, "unknown_session")
      const reply = agui("s1", { messages: [{ id: "m1", role: "assistant", content: canary }] })
      yield* refused(all, "AG-UI assistant", { path: "/agui/helper", body: reply }, 404, "unknown_session")
      for (const role of ["system", "developer", "activity", "reasoning"]) {
        const body = agui("s1", { messages: [{ id: "m1", role, content: canary }] })
        yield* refused(all, `AG-UI ${role}`, { path: "/agui/helper", body }, 400, "invalid_body")
      }
      const other = { ...ui("s1", parts), messageId: "m0" }
      yield* refused(all, "an earlier message again", { path: at, body: other }, 400, "unsupported")
      const forged = ["system", "developer", "assistant", "tool"].map((role) => ({
        id: role,
        role,
        content: canary,
        parts
      }))
      const user = { id: "u1", role: "user", content: "Hi", parts: [{ type: "text", text: "Hi" }] }
      const sdk = yield* all.ask({ path: at, body: { id: "s1", messages: [...forged, user] } })
      const ag = yield* all.ask({ path: "/agui/helper", body: agui("s2", { messages: [...forged, user] }) })
      assert.deepStrictEqual([sdk.status, ag.status], [200, 200])
      for (const id of ["s1", "s2"]) assert.notInclude((yield* all.ask({ path: `${at}/${id}` })).text, canary)
      const said = ui("s1", user.parts)
      const again = { ...said, messages: [user], trigger: "regenerate-message" }
      yield* refused(all, "again", { path: at, body: again }, 400, "unsupported")
      const edited = { ...said, messages: [{ ...user, parts }], messageId: "u1" }
      yield* refused(all, "edited", { path: at, body: edited }, 400, "unsupported")
      yield* refused(
        all,
        "edited, again",
        { path: at, body: { ...again, messages: [{ ...user, parts }] } },
        400,
        "unsupported"
      )
    }))

  it.live("W-11: endlessly nested data are refused or skipped, and their names are plain names", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`
      const objects = `${"{\"a\":".repeat(100_000)}1${"}".repeat(100_000)}`
      const sendText = (path: string, body: string) => ({ path, body, method: "POST" })
      for (const value of [deep, objects]) {
        yield* refused(all, "content", sendText(to, `{"content":${value}}`), 400, "invalid_body")
        yield* refused(all, "answer", sendText(to, `{"answers":[{"id":"r~c","value":${value}}]}`), 400, "invalid_body")
        yield* refused(
          all,
          "edits",
          sendText(to, `{"answers":[{"id":"r~c","approve":true,"arguments":{"a":${value}}}]}`),
          400,
          "invalid_body"
        )
        yield* refused(
          all,
          "tool",
          sendText(to, `{"content":"Hi","clientTools":[{"name":"t","description":"","parameters":{"a":${value}}}]}`),
          400,
          "invalid_body"
        )
        const history = `{"id":"s9","messages":[{"id":"a","role":"assistant","parts":[${value}]},`
          + `{"id":"b","role":"user","parts":[{"type":"text","text":"Hi"}]}]}`
        assert.strictEqual((yield* all.ask(sendText(at, history))).status, 200)
        yield* all.ask({ path: `${at}/s9`, method: "DELETE" })
      }
      const polluted =
        `{"content":"Hi","__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}},"id":"m1"}`
      assert.strictEqual((yield* all.ask(sendText(to, polluted))).status, 200)
      assert.isUndefined(({} as Record<string, unknown>)["polluted"])
    }))

  it.live("W-11: each bound of a body is answered with a status, with and without a length", () =>
    Effect.gen(function*() {
      const all = yield* site({
        bounds: { body: 20_000, taken: 1_000, files: 2, file: 100, clientTools: 2, clientTool: 200, writes: 10_000 }
      })
      const tool = (name: string, more: object = {}) => ({ name, description: "Does", parameters: {}, ...more })
      const file = (data: string) => ({ type: "image", mediaType: "image/png", data })
      yield* refused(all, "a body", message("x".repeat(20_000)), 413, "body_too_large")
      const chunked = { ...message("x".repeat(20_000)), headers: { "transfer-encoding": "chunked" } }
      yield* refused(all, "a body in chunks", chunked, 413, "body_too_large")
      yield* refused(all, "text", message("x".repeat(1_001)), 413, "too_large")
      yield* refused(all, "text of more bytes than characters", message("ä".repeat(600)), 413, "too_large")
      yield* refused(
        all,
        "text in parts",
        message([{ type: "text", text: "x".repeat(600) }, { type: "text", text: "x".repeat(600) }]),
        413,
        "too_large"
      )
      const answers = [{ id: "r~a", value: "x".repeat(600) }, {
        id: "r~b",
        approve: true,
        arguments: { a: "x".repeat(600) }
      }]
      yield* refused(all, "answers and edits", { path: to, body: { answers } }, 413, "too_large")
      yield* refused(all, "files", message([file(png(1)), file(png(1)), file(png(1))]), 413, "too_large")
      yield* refused(all, "a file", message([file(png(101))]), 413, "too_large")
      yield* refused(all, "no base64", message([file("****")]), 400, "invalid_body")
      for (const url of ["http://10.0.0.1/x", "file:///etc/passwd", "javascript:1", "data:image/png,x", canary]) {
        const part = { type: "image", mediaType: "image/png", url }
        yield* refused(all, url, message([part]), 400, "invalid_body")
        const sdk = ui("s1", [{ ...part, type: "file" }])
        yield* refused(all, `AI SDK ${url}`, { path: at, body: sdk }, 400, "invalid_body")
      }
      const withTools = (tools: ReadonlyArray<unknown>) => ({ path: to, body: { content: "Hi", clientTools: tools } })
      yield* refused(all, "tools", withTools(["a", "b", "c"].map((name) => tool(name))), 413, "too_large")
      yield* refused(all, "a tool", withTools([tool("a", { description: "x".repeat(201) })]), 413, "too_large")
      const schema = { parameters: { description: "x".repeat(201) } }
      yield* refused(all, "a schema", withTools([tool("a", schema)]), 413, "too_large")
      for (const name of ["pay", "ask", "wait"]) {
        yield* refused(all, `a tool ${name}`, withTools([tool(name)]), 400, "tool_name_taken")
        const body = agui("s1", { tools: [tool(name)], messages: [{ id: "u1", role: "user", content: "Hi" }] })
        yield* refused(all, `a tool ${name} by AG-UI`, { path: "/agui/helper", body }, 400, "tool_name_taken")
      }
      for (const name of ["__proto__", "constructor", "toString"]) {
        const said = yield* all.ask({
          path: `${at}/${name}/messages`,
          body: { content: "Hi", clientTools: [tool(name)] }
        })
        assert.include(said.text, "Heard: Hi", name)
      }
      // Exactly the bound is taken.
      assert.strictEqual((yield* all.ask(message("x".repeat(1_000)))).status, 200)
      assert.strictEqual((yield* all.ask({ ...message([file(png(100))]), path: `${at}/s2/messages` })).status, 200)
    }))

  it.live("W-11: sessions, runs, streams and writes are bounded for each principal, apart from the others", () =>
    Effect.gen(function*() {
      const waiting = JSON.stringify([{ id: "c0", name: "wait" }])
      const quietly = (id: string, content: string) => ({ path: `${at}/${id}/messages?wait=false`, body: { content } })
      const few = yield* site({ bounds: { sessions: 2 } })
      yield* few.say("s1", "Hi")
      yield* few.say("s2", "Hi")
      yield* refused(few, "a session", { path: `${at}/s3/messages`, body: { content: "Hi" } }, 429, "too_many_sessions")
      assert.strictEqual((yield* few.say("s2", "Hi")).status, 200)
      assert.strictEqual((yield* few.say("s3", "Hi", "bob")).status, 200)

      const busy = yield* site({ bounds: { runs: 2 } })
      const begun = yield* Effect.all(
        Array.from({ length: 10 }, (_, index) => busy.ask(quietly(`s${index}`, waiting))),
        { concurrency: "unbounded" }
      )
      assert.strictEqual(begun.filter(({ status }) => status === 202).length, 2)
      assert.strictEqual(begun.filter((answered) => codeOf(answered) === "too_many_runs").length, 8)
      assert.strictEqual((yield* busy.ask(quietly("s1", waiting), "bob")).status, 202)
      yield* Deferred.succeed(busy.gate, undefined)

      const watching = yield* site({ bounds: { streams: 2 } })
      yield* watching.ask(quietly("s1", waiting))
      yield* Deferred.await(watching.began)
      const open = () => Effect.promise(() => watching.open("GET", `${at}/s1/events`, undefined, bearer("ann")))
      const [one] = [yield* open(), yield* open()]
      for (
        const sending of [
          { path: `${at}/s1/events` },
          { path: `${at}/s1/stream` },
          { path: `${at}/s1/stop`, method: "POST" },
          { path: `${at}/s2/messages`, body: { content: "Hi" } },
          { path: at, body: ui("s2", [{ type: "text", text: "Hi" }]) }
        ]
      ) yield* refused(watching, sending.path, sending, 429, "too_many_streams")
      assert.strictEqual((yield* watching.say("s2", "Hi", "bob")).status, 200)
      one.leave()
      yield* until(
        "the place of a reader that left",
        watching.ask({ path: `${at}/s1/events`, method: "HEAD" }),
        ({ status }) => status === 200
      )

      const writing = yield* site({ bounds: { writes: 3 } })
      for (const id of ["s1", "s2", "s3"]) assert.strictEqual((yield* writing.say(id, "Hi")).status, 200)
      const last = yield* refused(
        writing,
        "a write",
        { path: `${at}/s1/messages`, body: { content: "Hi" } },
        429,
        "too_many_writes"
      )
      assert.strictEqual(last.headers.get("retry-after"), "60")
      assert.strictEqual((yield* writing.say("s1", "Hi", "bob")).status, 200)
    }))

  it.live("W-11: a run about to begin counts, whatever else is refused before it begins", () =>
    Effect.gen(function*() {
      const made = Deferred.makeUnsafe<void>()
      const all = yield* site({ bounds: { runs: 1, taken: 1_000 } }, obedient, Deferred.await(made))
      const saying = (id: string, content: string): Sending => ({ path: `${at}/${id}/messages`, body: { content } })
      const begun = yield* all.ask({ ...saying("s1", "one"), path: `${at}/s1/messages?wait=false` })
      assert.strictEqual(begun.status, 202)
      const text = [{ type: "text", text: "two" }]
      const answers = [{ id: "r1~c0", approve: true }]
      const said = { messages: [{ id: "u2", role: "user", content: "two" }] }
      const own: Record<string, readonly [sending: Sending, status: number, code: string]> = {
        "a message": [saying("s1", "two"), 409, "running"],
        "a message of the AI SDK": [{ path: at, body: ui("s1", text, "user", {}) }, 409, "running"],
        "a message of AG-UI": [{ path: "/agui/helper", body: agui("s1", said) }, 409, "running"],
        "a message that is too long": [saying("s1", "x".repeat(1_001)), 413, "too_large"],
        "a body that is none": [{ path: `${at}/s1/messages`, body: {} }, 400, "invalid_body"],
        "an answer": [{ path: `${at}/s1/answers`, body: { answers } }, 409, "not_waiting"],
        "an answer with a message": [
          {
            path: "/agui/helper",
            body: agui("s1", { ...said, resume: [{ interruptId: "r1~c0", status: "cancelled" }] })
          },
          409,
          "not_waiting"
        ]
      }
      for (const round of [1, 2]) {
        for (const [name, [sending, status, code]] of Object.entries(own)) {
          yield* refused(all, `${name}, round ${round}`, sending, status, code)
          yield* refused(all, `another run after ${name}`, saying("s2", "three"), 429, "too_many_runs")
        }
      }
      yield* Deferred.succeed(made, undefined)
      yield* until("the end of the run", all.say("s2", "three"), ({ status }) => status === 200)
    }))

  it.effect("W-11: a write or list refused for its rate does not count", () =>
    Effect.gen(function*() {
      const all = yield* site({ bounds: { writes: 3, lists: 3 } })
      const write = Effect.map(all.ask({ path: `${at}/nosuch/resume`, method: "POST" }), ({ status }) => status)
      const list = Effect.map(all.ask({ path: at }), ({ status }) => status)
      for (const [one, good] of [[write, 404], [list, 200]] as const) {
        for (let count = 0; count < 3; count++) assert.strictEqual(yield* one, good)
        for (let count = 0; count < 5; count++) {
          yield* TestClock.adjust("11 seconds")
          assert.strictEqual(yield* one, 429)
        }
        yield* TestClock.adjust("6 seconds")
        for (let count = 0; count < 3; count++) assert.strictEqual(yield* one, good)
      }
    }))

  it.effect("W-11: slow bodies are bounded in number and in time", () =>
    Effect.gen(function*() {
      const all = yield* site({ bounds: { bodies: 32 } })
      const { port } = new URL(all.url)
      const slow = Effect.callback<string>((resume) => {
        const socket = net.connect(Number(port), "127.0.0.1", () => {
          socket.write(
            `POST ${to} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer ann\r\ncontent-type: application/json\r\n`
              + "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
          )
        })
        socket.once("data", (data) => {
          socket.destroy()
          resume(Effect.succeed(data.toString().split("\r\n")[0] ?? ""))
        })
        socket.on("error", () => {})
        return Effect.sync(() => socket.destroy())
      })
      const pending = yield* Effect.forEach(Array.from({ length: 40 }), () => Effect.forkChild(slow))
      const busy = () => pending.filter((fiber) => fiber.pollUnsafe() !== undefined)
      while (busy().length < 8) yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      assert.strictEqual(codeOf(yield* all.ask(message("Hi"))), "busy")
      yield* TestClock.adjust("30 seconds")
      const lines = yield* Effect.forEach(pending, Fiber.join)
      const statuses = lines.map((line) => line.split(" ")[1])
      assert.strictEqual(statuses.filter((status) => status === "503").length, 8)
      assert.strictEqual(statuses.filter((status) => status === "408").length, 32)
      assert.strictEqual((yield* all.ask({ ...message("Hi"), path: `${to}?wait=false` })).status, 202)
    }))
})

describe("answers to suspensions", () => {
  const to = `${at}/s1/answers`
  const answer = (...answers: ReadonlyArray<object>) => ({ path: to, body: { answers } })

  it.live("W-11: an answer of the wrong kind or form, or to nothing, is refused with its whole body", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [
        { id: "c0", name: "pay", args: { amount: 1 } },
        { id: "c1", name: "ask" }
      ])
      const [pay, ask] = (yield* all.suspensions("s1")).map(({ id }) => id as string)
      const [run] = pay!.split("~")
      const rows: ReadonlyArray<readonly [object, number, string]> = [
        [{ id: pay, value: 1 }, 409, "wrong_kind"],
        [{ id: pay, error: canary }, 409, "wrong_kind"],
        [{ id: ask, approve: true }, 409, "wrong_kind"],
        [{ id: ask, approve: false, reason: canary }, 409, "wrong_kind"],
        [{ id: ask, approve: true, arguments: { answer: 1 } }, 409, "wrong_kind"],
        [{ id: ask, value: canary }, 400, "invalid_answer"],
        [{ id: ask, value: null }, 400, "invalid_answer"],
        [{ id: ask, value: { __proto__: 1 } }, 400, "invalid_answer"],
        [{ id: `${run}~nosuch`, value: 1 }, 409, "not_waiting"],
        [{ id: `${run}~`, value: 1 }, 409, "not_waiting"],
        [{ id: "nosuch~c0", approve: true }, 409, "not_waiting"],
        [{ id: "~c0", approve: true }, 409, "not_waiting"],
        [{ id: "c0", approve: true }, 409, "not_waiting"],
        [{ id: "c1", value: 1 }, 409, "not_waiting"],
        [{ id: `${run}~c0~c0`, approve: true }, 409, "not_waiting"]
      ]
      for (const [given, status, code] of rows) {
        yield* refused(all, JSON.stringify(given), answer(given), status, code)
        // None of a body is taken where one answer of it is refused.
        yield* refused(
          all,
          `after another, ${JSON.stringify(given)}`,
          answer({ id: pay, approve: true }, given),
          status,
          code
        )
      }
      yield* refused(
        all,
        "two answers",
        answer({ id: pay, approve: true }, { id: pay, approve: false }),
        409,
        "already_answered"
      )
      const many = Array.from({ length: 100_000 }, () => ({ id: "nosuch~c0", approve: true }))
      yield* refused(all, "very many", answer(...many), 409, "not_waiting")
      const message = { messages: [{ id: "u1", role: "user", content: "Hi" }] }
      yield* refused(
        all,
        "an answer with a new message",
        {
          path: "/agui/helper",
          body: agui("s1", { ...message, resume: [{ interruptId: ask, status: "resolved", payload: 3 }] })
        },
        409,
        "running"
      )
      yield* refused(all, "a message", { path: `${at}/s1/messages`, body: { content: "Hi" } }, 409, "waits_for_answers")
    }))

  it.live("O-55: no message has an answer's id, so that a principal that may write cannot take an answer away", () =>
    Effect.gen(function*() {
      const reply = Deferred.makeUnsafe<void>()
      const late = Layer.effect(
        Adapter.Adapter,
        Effect.map(Adapter.Adapter, (adapter) => ({
          ...adapter,
          stream: (request: Adapter.Request) => Stream.unwrap(Effect.as(Deferred.await(reply), adapter.stream(request)))
        }))
      )
      const all = yield* site({ whileRunning: "follow" }, Layer.provide(late, obedient))
      const content = JSON.stringify([{ id: "c0", name: "pay", args: { amount: 1 } }])
      yield* all.ask({ path: `${at}/s1/messages?wait=false`, body: { content, id: "m1" } })
      const begun = yield* until(
        "the run",
        all.ask({ path: `${at}/s1` }),
        ({ text }) => JSON.parse(text).runId !== undefined
      )
      const id = `${JSON.parse(begun.text).runId}~c0`
      const mallory = "eve@ann:read,write"
      const user = (id: string) => ({ id, role: "user", content: "x", parts: [{ type: "text", text: "x" }] })
      const ways = (id: string): ReadonlyArray<Sending> => [
        { path: `${at}/s1/messages?wait=false`, body: { content: "x", id } },
        { path: at, body: { id: "s1", trigger: "submit-message", messages: [user(id)] } },
        { path: "/agui/helper", body: agui("s1", { messages: [user(id)] }) }
      ]
      // The ids of the server's own commands cannot be taken, whatever stands behind their beginning.
      const receipts = (yield* all.records("ann:s1")).length
      for (const own of [`heddle:answer:${id}`, "heddle:", "heddle:x"]) {
        for (const way of ways(own)) yield* refused(all, own, way, 400, "invalid_body", mallory)
      }
      assert.strictEqual((yield* all.records("ann:s1")).length, receipts)
      const given = [`answer:${id}`, id, "c0", "stop", "__proto__"]
      for (const other of given) {
        const said = yield* all.ask(
          { path: `${at}/s1/messages?wait=false`, body: { content: "x", id: other } },
          mallory
        )
        assert.strictEqual(said.status, 202, other)
      }
      yield* Deferred.succeed(reply, undefined)
      const [open] = yield* until("the call", all.suspensions("s1"), (open) => open.length > 0)
      assert.strictEqual(open.id, id)
      const approved = yield* all.ask({ ...answer({ id, approve: true }), path: `${to}?wait=false` })
      assert.strictEqual(approved.status, 202, approved.text)
      yield* until("the payment", Effect.sync(() => all.paid.length), (count) => count === 1)
      // A body with an answer says nothing under the id of something else.
      const again = {
        ...agui("s1", { messages: [user("m1")] }),
        resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }]
      }
      yield* refused(all, "another message", { path: "/agui/helper", body: again }, 409, "id_taken")
    }))

  it.live("O-18: a suspension is answered by the id that the session shows", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id }] = yield* all.suspensions("s1")
      const approved = yield* all.ask(answer({ id, approve: true }))
      assert.strictEqual(approved.status, 200, approved.text)
      assert.deepStrictEqual(all.paid, [1])
    }))

  it.live("O-18: a suspension's id answers the suspension on each route, whatever call ids the model chose", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const ids = [
        "a/b",
        "a~b",
        "100%",
        "%2F",
        "~",
        "\u00e9\ud83d\ude00",
        "__proto__",
        "heddle:answer:x",
        "x/".repeat(3_000)
      ]
      const ways = (id: string, callId: string, session: string): ReadonlyArray<Sending> => [
        { path: `${at}/${session}/answers`, body: { answers: [{ id, approve: true }] } },
        {
          path: at,
          body: ui(session, [{
            type: "dynamic-tool",
            toolName: "pay",
            toolCallId: callId,
            state: "approval-responded",
            approval: { id, approved: true }
          }], "assistant")
        },
        {
          path: "/agui/helper",
          body: agui(session, { resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] })
        }
      ]
      let amount = 0
      for (const callId of ids) {
        for (const way of [0, 1, 2]) {
          const session = `s${++amount}`
          yield* all.say(session, [{ id: callId, name: "pay", args: { amount } }])
          const [open] = yield* all.suspensions(session)
          assert.strictEqual(open.toolCall.id, callId)
          const sending = ways(open.id, callId, session)[way]!
          const approved = yield* all.ask(sending)
          assert.strictEqual(approved.status, 200, `${sending.path} ${callId.slice(0, 20)}: ${approved.text}`)
          assert.strictEqual(all.paid.at(-1), amount, `${sending.path} ${callId.slice(0, 20)}`)
        }
      }
    }))

  it.live("R-527: an id that names no suspension is refused on each route, and the refusal lists the waiting ids", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id: old }] = yield* all.suspensions("s1")
      assert.strictEqual((yield* all.ask(answer({ id: old, approve: true }))).status, 200)
      yield* all.say("s1", [{ id: "c1", name: "pay", args: { amount: 2 } }])
      const [{ id: waits }] = yield* all.suspensions("s1")
      const [run] = waits.split("~")
      const ways: Readonly<Record<string, (id: string) => Sending>> = {
        plain: (id) => answer({ id, approve: false }),
        useChat: (id) => ({
          path: at,
          body: ui("s1", [{
            type: "dynamic-tool",
            toolName: "pay",
            // The part is that of the call which the id names.
            toolCallId: CallPaths.ownCall(id) ?? "c1",
            state: "approval-responded",
            approval: { id, approved: false }
          }], "assistant")
        }),
        "AG-UI": (id) => ({
          path: "/agui/helper",
          body: agui("s1", { resume: [{ interruptId: id, status: "resolved", payload: { approved: false } }] })
        })
      }
      const rows: Readonly<Record<string, readonly [id: string, code: string]>> = {
        "an unknown call": [`${run}~nosuch`, "not_waiting"],
        "a call id without its run": ["c1", "not_waiting"],
        "an answered call of an earlier run": [old, "already_answered"],
        "a call of an earlier run": [`${old.split("~")[0]}~c1`, "not_waiting"],
        "a separator inside": [`${run}~c1~c1`, "not_waiting"],
        "a separator at the end": [`${waits}/`, "not_waiting"],
        "another way to write it": [`${run}~%631`, "not_waiting"],
        "a path that leads nowhere": [`${run}~c1/c1/c1`, "not_waiting"],
        "a name of JavaScript": [`${run}~__proto__`, "not_waiting"],
        "a command of the server": [`heddle:answer:${waits}`, "not_waiting"],
        "a long one": [`${run}~${"x/".repeat(50_000)}`, "not_waiting"]
      }
      for (const [way, sending] of Object.entries(ways)) {
        for (const [row, [id, code]] of Object.entries(rows)) {
          const { text } = yield* refused(all, `${way}: ${row}`, sending(id), 409, code)
          const { message } = JSON.parse(text).error
          assert.include(message, `These wait: ${JSON.stringify(waits)}.`, `${way}: ${row}`)
          assert.isBelow(message.length, 1_000, `${way}: ${row}`)
        }
      }
      for (const other of ["answerId", "toolCallId"]) {
        yield* refused(all, other, answer({ id: waits, [other]: "c1", approve: true }), 400, "invalid_body")
      }
      // A call that was answered elsewhere has the verdict that stands.
      const store = Effect.provide(all.denied("ann:s1", "c1"), all.layer)
      yield* store
      const late = all.ask(answer({ id: waits, approve: true }))
      const said = /^The call was denied at .* No call waits\.$/
      assert.match(JSON.parse((yield* late).text).error.message, said)
      // Also once the session has continued behind it.
      yield* until("the next run", all.ask({ path: `${at}/s1` }), ({ text }) => JSON.parse(text).next === "nothing")
      assert.match(JSON.parse((yield* late).text).error.message, said)
      assert.deepStrictEqual(all.paid, [1])
    }))

  it.live("W-11: an answer after its time limit is refused", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const { text } = yield* all.say("s1", [{ id: "c0", name: "brief" }])
      const id = /"id":"([^"]+)"/.exec(text)?.[1]
      const late = yield* all.ask(answer({ id, value: 1 }))
      assert.strictEqual(late.status, 409, late.text)
      const read = yield* until(
        "the end of the question",
        all.ask({ path: `${at}/s1` }),
        ({ text }) => JSON.parse(text).next === "nothing"
      )
      assert.include(read.text, "within the time there was")
    }))

  it.live("W-11: a repeated answer counts once, a different answer is refused, and an old answer stays old", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const asking: ReadonlyArray<Asked> = [{ id: "c0", name: "pay", args: { amount: 1 } }]
      yield* all.say("s1", asking)
      const [{ id }] = yield* all.suspensions("s1")
      const approved = answer({ id, approve: true, arguments: { amount: 7 } })
      for (let times = 0; times < 3; times++) assert.strictEqual((yield* all.ask(approved)).status, 200)
      assert.strictEqual(
        (yield* all.ask(
          answer({ id, approve: true, arguments: { amount: 7 } }, { id, approve: true, arguments: { amount: 7 } })
        )).status,
        200
      )
      for (const other of [{ approve: true }, { approve: false }, { approve: true, arguments: { amount: 8 } }]) {
        yield* refused(all, JSON.stringify(other), answer({ id, ...other }), 409, "already_answered")
      }
      assert.deepStrictEqual(all.paid, [7])
      yield* all.say("s1", asking)
      yield* refused(all, "the old call", answer({ id, approve: false }), 409, "already_answered")
      assert.strictEqual((yield* all.ask(approved)).status, 200)
      assert.deepStrictEqual(all.paid, [7])
      assert.strictEqual((yield* all.suspensions("s1")).length, 1)
    }))

  it.live("O-40: the refusal of a different answer says which answer stands, and since when", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ id }] = yield* all.suspensions("s1")
      const today = () => new Date().toISOString().slice(0, 10)
      const before = today()
      assert.strictEqual((yield* all.ask(answer({ id, approve: true }))).status, 200)
      const after = today()
      const { error } = JSON.parse((yield* all.ask(answer({ id, approve: false }))).text)
      assert.strictEqual(error.code, "already_answered")
      assert.match(error.message, /approved/)
      // The answer may have been given at midnight.
      assert.isTrue([before, after].some((day) => error.message.includes(day)), error.message)
    }))

  it.live("W-11: an approval while another call of the turn runs counts once, as soon as it can apply", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const content = JSON.stringify([{ id: "c0", name: "pay", args: { amount: 1 } }, { id: "c1", name: "wait" }])
      const reader = yield* Effect.promise(() => all.open("POST", `${at}/s1/messages`, { content }, bearer("ann")))
      const sent = yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolApprovalRequested"))
      const { suspensions } = sent.find(({ data }) => data._tag === "ToolApprovalRequested")!.data
      const id = suspensions[0].id
      yield* Deferred.await(all.began)
      yield* refused(all, "a value", answer({ id, value: 1 }), 409, "wrong_kind")
      const early = yield* all.ask({ ...answer({ id, approve: true }), path: `${to}?wait=false` })
      assert.strictEqual(early.status, 202)
      yield* refused(all, "another word", answer({ id, approve: false }), 409, "already_answered")
      // The server has the answer before the run that it waits for may end.
      const following = yield* Effect.promise(() =>
        all.open("POST", to, { answers: [{ id, approve: true }] }, bearer("ann"))
      )
      yield* Deferred.succeed(all.gate, undefined)
      assert.strictEqual(following.status, 200)
      const paid = yield* Effect.promise(() => following.until(() => false))
      assert.include(JSON.stringify(paid), "paid 1")
      assert.deepStrictEqual(all.paid, [1])
    }))

  it.live("W-11: the result of a call with unknown effect is accepted from a principal that may approve", () =>
    Effect.gen(function*() {
      const { layer } = yield* memory
      const began = Deferred.makeUnsafe<void>()
      const risky = Tool.make("risky", {
        parameters: {},
        afterCrash: "ask",
        handler: () => Effect.andThen(Deferred.succeed(began, undefined), Effect.never)
      })
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [risky] }) })
      const options = {
        authorize: byToken(),
        hosts: ["127.0.0.1"],
        store: layer,
        drain: 1,
        poll: 20,
        joinMillis: 0
      }
      const content = JSON.stringify([{ id: "c0", name: "risky" }])
      yield* Effect.scoped(Effect.gen(function*() {
        const { url } = yield* serve([agent], obedient, options)
        yield* send(url, { path: `${at}/s1/messages?wait=false`, body: { content }, headers: bearer("ann") })
        yield* Deferred.await(began)
      }))
      // The call was at work, so that the claim stays until it ends, or is taken away.
      assert.isTrue(yield* Effect.provide(Session.revoke("ann:s1"), layer))
      const { url } = yield* serve([agent], obedient, options)
      const ask = (sending: Sending, token = "ann") => send(url, { ...sending, headers: bearer(token) })
      const { text } = yield* until(
        "the call",
        ask({ path: `${at}/s1` }),
        ({ text }) => JSON.parse(text).suspensions.length > 0
      )
      const [{ id, kind }] = JSON.parse(text).suspensions
      assert.strictEqual(kind, "unknown")
      for (const given of [{ value: canary }, { error: canary }, { approve: true }, { approve: false }]) {
        const forged = yield* ask({ path: to, body: { answers: [{ id, ...given }] } }, "ann:answer,write,read")
        assert.deepStrictEqual([forged.status, codeOf(forged)], [403, "forbidden"])
      }
      const cancelled = { interruptId: id, status: "cancelled" }
      const given = yield* ask(
        { path: "/agui/helper", body: agui("s1", { resume: [cancelled] }) },
        "ann:answer,write,read"
      )
      assert.deepStrictEqual([given.status, codeOf(given)], [403, "forbidden"])
      const taken = yield* ask({ path: to, body: { answers: [{ id, value: "it was done" }] } })
      assert.include(taken.text, "Heard: it was done")
    }))

  it.live("W-11: a call that waits again after a kill has a new id, and the same answer counts again", () =>
    Effect.gen(function*() {
      const { layer } = yield* memory
      const began = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()]
      let attempts = 0
      const risky = Tool.make("risky", {
        parameters: {},
        approval: true,
        afterCrash: "ask",
        handler: () =>
          Effect.suspend(() => {
            const first = began[attempts++]
            return first === undefined
              ? Effect.succeed("done at last")
              : Effect.andThen(Deferred.succeed(first, undefined), Effect.never)
          })
      })
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [risky] }) })
      const options = { store: layer, drain: 1, poll: 20, joinMillis: 0 }
      const ids: Array<string> = []
      /** Approves what waits in a process, and leaves it as it was left by the one before. */
      const approve = (url: string, query = "") =>
        Effect.gen(function*() {
          const { text } = yield* until(
            "the call",
            send(url, { path: `${at}/s1` }),
            ({ text }) => JSON.parse(text).suspensions.length > 0
          )
          const [{ id }] = JSON.parse(text).suspensions
          ids.push(id)
          return yield* send(url, { path: to + query, body: { answers: [{ id, approve: true }] } })
        })
      for (const attempt of began) {
        yield* Effect.scoped(Effect.gen(function*() {
          const { url } = yield* serve([agent], obedient, options)
          const content = JSON.stringify([{ id: "c0", name: "risky" }])
          if (ids.length === 0) yield* send(url, { path: `${at}/s1/messages`, body: { content } })
          yield* approve(url, "?wait=false")
          yield* Deferred.await(attempt)
        }))
        assert.isTrue(yield* Effect.provide(Session.revoke("local:s1"), layer))
      }
      const { url } = yield* serve([agent], obedient, options)
      const open = (text: string) => JSON.parse(text).suspensions.map(({ id }: any) => id)
      const read = send(url, { path: `${at}/s1` })
      const isAtRest = (text: string) => open(text).length > 0 && JSON.parse(text).isRunning === false
      const { text: before } = yield* until("the call", read, ({ text }) => isAtRest(text))
      // A snapshot removes the records of the wait, and keeps its name.
      yield* Effect.provide(Effect.flatMap(Session.load("local:s1"), (kept) => Session.snapshot(kept!)), layer)
      assert.deepStrictEqual(open((yield* read).text), open(before))
      const approved = yield* approve(url)
      assert.include(approved.text, "done at last")
      assert.strictEqual(attempts, 3)
      assert.strictEqual(new Set(ids).size, 3, ids.join())
      // The names of the earlier waits are known, and change nothing.
      for (const id of ids) {
        const again = yield* send(url, { path: to, body: { answers: [{ id, approve: true }] } })
        assert.strictEqual(again.status, 200, again.text)
      }
      assert.strictEqual(attempts, 3)
    }))

  it.live("W-11: an approved call that then asks a question is answered, too, each time for the current suspension", () =>
    Effect.gen(function*() {
      const both = Tool.make("both", {
        parameters: {},
        approval: true,
        handler: () => Effect.succeed(Tool.askUser("Which?", { answer: Schema.Int }))
      })
      const agent = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [both] }) })
      const { url } = yield* serve([agent], obedient, { joinMillis: 0 })
      const content = JSON.stringify([{ id: "c0", name: "both" }])
      yield* send(url, { path: `${at}/s1/messages`, body: { content } })
      const waiting = Effect.map(send(url, { path: `${at}/s1` }), ({ text }) => JSON.parse(text).suspensions)
      const [permission] = yield* waiting
      assert.strictEqual(permission.kind, "approval")
      const approved = { path: to, body: { answers: [{ id: permission.id, approve: true }] } }
      assert.strictEqual((yield* send(url, approved)).status, 200)
      const [question] = yield* waiting
      assert.strictEqual(question.kind, "question")
      // The permission again, in the same words, is no answer to the question.
      const again = yield* send(url, approved)
      assert.strictEqual((yield* waiting).length, 1, again.text)
      const answered = yield* send(url, { path: to, body: { answers: [{ id: question.id, value: 3 }] } })
      assert.strictEqual(answered.status, 200, answered.text)
      assert.include(answered.text, "Heard: 3")
    }))

  it.live("W-11: a client tool's result is taken once, from the message with the call", () =>
    Effect.gen(function*() {
      const all = yield* site()
      const tools = [{ name: "locate", description: "Locates", parameters: {} }]
      const content = JSON.stringify([{ id: "c0", name: "locate" }])
      const began = yield* all.ask({
        path: "/agui/helper",
        body: agui("s1", { tools, messages: [{ id: "u1", role: "user", content }] })
      })
      const messageId = /"parentMessageId":"([^"]+)"/.exec(began.text)?.[1]
      assert.isString(messageId, began.text)
      const result = (owner: string | undefined, content: string, toolCallId = "c0") => ({
        path: "/agui/helper",
        body: agui("s1", {
          tools,
          messages: [
            ...(owner === undefined ? [] : [{ id: owner, role: "assistant", toolCalls: [] }]),
            { id: "t1", role: "tool", toolCallId, content }
          ]
        })
      })
      const unknown = yield* refused(all, "no such call", result(messageId, canary, "nosuch"), 409, "not_waiting")
      const [, interrupt] = /"id":"([^"]+~c0)"/.exec(began.text) ?? []
      assert.include(JSON.parse(unknown.text).error.message, `These wait: "${interrupt}".`)
      for (const owner of [undefined, "", "r1-0", "message-1", `x${messageId}`]) {
        yield* refused(all, `a result of ${owner}`, result(owner, canary), 409, "not_waiting")
      }
      const taken = yield* all.ask(result(messageId, "Oslo"))
      assert.include(taken.text, "Heard: Oslo")
      assert.strictEqual((yield* all.ask(result(messageId, "Oslo"))).status, 200)
      yield* refused(all, "another result", result(messageId, canary), 409, "already_answered")
    }))
})
