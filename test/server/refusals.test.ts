/** Requests that a server refuses: each with a status, a code and a sentence that has nothing of the request. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { type Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { type Asked, bearer, byToken, codeOf, memory, obedient, send, type Sending } from "./support/hostile.ts"
import { type Answered, serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

/** A mark that no response may have. */
const canary = "CANARY-5f1c"

const site = (options: Partial<Server.Options> = {}) =>
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
      Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) }),
      Agent.make({ name: "other", description: "Helps", run: () => Effect.succeed({}) })
    ]
    const { open, url } = yield* serve(agents, obedient, {
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
    return { url, open, paid, gate, began, ask, say, suspensions, contents: store.contents }
  })

type Site = Effect.Success<ReturnType<typeof site>>

/** Requires that a request is refused so, that nothing was changed, and that the response has nothing of the request. */
const refused = (
  { ask, contents, paid }: Site,
  name: string,
  sending: Sending,
  status: number,
  code: string | undefined,
  token = "ann"
) =>
  Effect.gen(function*() {
    const before = [yield* contents, [...paid]]
    const answered = yield* ask(sending, token)
    assert.deepStrictEqual([answered.status, codeOf(answered)], [status, code], `${name}: ${answered.text}`)
    assert.deepStrictEqual([yield* contents, [...paid]], before, `${name}: something was changed`)
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
  it.live("W-11: a foreign session answers on every route as one that does not exist", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ answerId }] = yield* all.suspensions("s1")
      const [runId] = answerId.split("~")
      const before = yield* all.contents
      const answers = [{ id: answerId, approve: true }]
      const routes = (id: string): ReadonlyArray<Sending> => [
        { path: `${at}/${id}` },
        { path: `${at}/${id}`, method: "DELETE" },
        { path: `${at}/${id}/stream` },
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
            approval: { id: answerId, approved: true }
          }], "assistant")
        },
        {
          path: "/agui/helper",
          body: agui(id, {
            resume: [{
              interruptId: answerId,
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
        assert.strictEqual(one.status, 404, name)
        assert.deepStrictEqual(seen(one), seen(other), name)
        // The other agent does not run it either.
        const elsewhere = yield* all.ask({
          ...foreign,
          path: foreign.path.replace("/helper", "/other")
        })
        assert.deepStrictEqual(seen(elsewhere), seen(other), `${name} of the other agent`)
      }
      const listed = yield* all.ask({ path: at }, "eve")
      assert.deepStrictEqual(JSON.parse(listed.text).sessions, [])
      assert.deepStrictEqual(yield* all.contents, before)
      assert.deepStrictEqual(all.paid, [])
    }))

  it.live("W-11: an offset of a run of another session is refused as one of no run", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      yield* all.say("s2", "Hi")
      const [{ answerId }] = yield* all.suspensions("s1")
      const of = (runId: string) => ({ path: `${at}/s2/events?after=${runId}.1.0` })
      const own = yield* refused(all, "the run of another session", of(answerId.split("~")[0]), 400, "invalid_offset")
      const none = yield* refused(all, "no run", of("nosuch"), 400, "invalid_offset")
      assert.deepStrictEqual(seen(own), seen(none))
    }))

  it.live("W-11: one who may not approve does not approve, by none of the ways in", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ answerId: id }] = yield* all.suspensions("s1")
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

  it.live("W-11: a forged result of a call that waits for a permission is refused", () =>
    Effect.gen(function*() {
      const all = yield* site()
      yield* all.say("s1", [{ id: "c0", name: "pay", args: { amount: 1 } }])
      const [{ answerId: id }] = yield* all.suspensions("s1")
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
        400,
        "invalid_body"
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

  it.live("W-11: who acts on the session of another principal is named in the journal, and needs the permission", () =>
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
      assert.deepStrictEqual(JSON.parse((yield* all.ask({ path: at }, "bob@ann")).text).sessions.length, 1)
      assert.deepStrictEqual(JSON.parse((yield* all.ask({ path: at }, "bob")).text).sessions.length, 0)
    }))
})

describe("authorization", () => {
  it.live("W-11: a check that fails or dies refuses, and so does a request without a token", () =>
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

  it.effect("W-11: a check that never answers refuses after ten seconds", () =>
    Effect.gen(function*() {
      const asked = Deferred.makeUnsafe<void>()
      const all = yield* site({
        authorize: () => Effect.andThen(Deferred.succeed(asked, undefined), Effect.never)
      })
      const pending = yield* Effect.forkChild(
        all.ask({ path: `${at}/s1/messages`, body: { content: "Hi" } })
      )
      yield* Deferred.await(asked)
      yield* TestClock.adjust("10 seconds")
      const answered = yield* Fiber.join(pending)
      assert.deepStrictEqual([answered.status, codeOf(answered)], [403, "forbidden"])
    }))

  it.live("W-11: a stream ends once its token has ended, in each form, and so does one of another principal", () =>
    Effect.gen(function*() {
      const ended = new Set<string>()
      let principal = "ann"
      const all = yield* site({
        authorize: (request, question) =>
          Effect.map(byToken(ended)(request, question), (grant) => ({ ...grant, principal })),
        bounds: { authorization: 20 },
        raw: true
      })
      const content = JSON.stringify([{ id: "c0", name: "wait" }])
      const message = { method: "POST", path: `${at}/s1/messages`, body: { content, id: "m1" } }
      const forms: ReadonlyArray<Sending> = [
        message,
        { path: `${at}/s1/events` },
        { path: `${at}/s1/events?raw=true` },
        { path: `${at}/s1/stream` }
      ]
      for (const end of [() => ended.add("ann"), () => (principal = "eve")]) {
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
          assert.isFalse(sent.some(({ data }) => data._tag === "ChatCompleted"))
        }
        ended.clear()
        principal = "ann"
      }
      const { text } = yield* all.ask({ path: `${at}/s1` })
      assert.isTrue(JSON.parse(text).isRunning)
    }))
})

describe("ids and agents", () => {
  it.live("W-11: an id that names no session is refused on every route", () =>
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
        for (const path of [`${at}/${id}`, `${at}/${id}/events`, `${at}/${id}/stream`]) {
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

  it.live("W-11: ids that programs know as names of their own are ids like any other", () =>
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

  it.live("W-11: an agent that does not exist is refused, whatever its name", () =>
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

describe("browsers", () => {
  const body = { content: canary }
  const path = `${at}/s1/messages`
  const none = { host: "127.0.0.1" }

  it.live("W-11: another host, origin or site is refused before anything else is looked at", () =>
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

  it.live("W-11: a body of another type is refused, and so is a form without fields", () =>
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

  it.live("W-11: a write without a page needs a token, also where a cookie would do", () =>
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

  it.live("W-11: preflights are answered for listed pages only, and before the principal is asked for", () =>
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

  it.live("W-11: what was forwarded is not of this machine", () =>
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

  it.live("W-11: other methods find nothing, and HEAD reads what GET does and holds nothing open", () =>
    Effect.gen(function*() {
      const all = yield* site({ bounds: { streams: 1 } })
      yield* all.ask({
        path: `${at}/s1/messages?wait=false`,
        body: { content: JSON.stringify([{ id: "c0", name: "wait" }]) }
      })
      yield* Deferred.await(all.began)
      for (const method of ["PUT", "PATCH", "TRACE", "PROPFIND"]) {
        for (const to of [at, `${at}/s1`, path, `${at}/s1/events`]) {
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
