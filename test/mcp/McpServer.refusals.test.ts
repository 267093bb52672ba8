/** Clients of MCP that a server must withstand: forged states, foreign principals, wrong messages, too many sessions. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Policy, Tool } from "heddle"
import * as RequestState from "../../src/mcp/internal/requestState.ts"
import { bearer, byToken, send } from "../server/support/hostile.ts"
import { call, connect, eras, sendRaw, textOf } from "./support/clients.ts"
import { paying, serve } from "./support/serving.ts"

const yes = { approval: { action: "accept", content: { approve: true } } }

/** A tool without a limit of time that runs until it is stopped, and tells when it began and ended. */
const endless = () => {
  const began = Deferred.makeUnsafe<void>()
  const ended = Deferred.makeUnsafe<void>()
  const tool = Tool.make("endless", {
    parameters: {},
    timeout: "infinity",
    handler: () =>
      Effect.ensuring(
        Effect.andThen(Deferred.succeed(began, undefined), Effect.never),
        Deferred.succeed(ended, undefined)
      )
  })
  return { began, ended, tool }
}

const echo = Tool.make("echo", {
  parameters: { type: "object", properties: { value: {} } },
  handler: (args) => Effect.succeed({ own: Object.keys(args as object), polluted: ({} as any).polluted ?? null })
})

/** Calls `pay` until it waits, and returns the state that the client holds. */
const waiting = (url: string, amount: number, headers: Record<string, string> = {}) =>
  Effect.map(sendRaw(url, { params: { name: "pay", arguments: { amount } }, headers }), ({ message }) => {
    assert.strictEqual(message.result.resultType, "input_required")
    return String(message.result.requestState)
  })

const answering = (
  url: string,
  requestState: string,
  amount: number,
  headers: Record<string, string> = {},
  inputResponses: unknown = yes
) => sendRaw(url, { params: { name: "pay", arguments: { amount }, requestState, inputResponses }, headers })

const tokens = { authorize: byToken(), hosts: ["127.0.0.1"] }

describe("request states", () => {
  it.live("W-15: a request state allows its own call once: no other arguments, no other tool, no replay, no forgery", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const other = Tool.make("other", { parameters: { amount: Schema.Finite }, handler: () => Effect.succeed("done") })
      const url = yield* serve([tool, other])
      const state = yield* waiting(url, 5)
      const [id = "", until = "", code = ""] = state.split(".")
      const forged = [
        `${id}.${until}.${"0".repeat(64)}`,
        `${id}.${Number(until) + 60_000}.${code}`,
        `${globalThis.crypto.randomUUID()}.${until}.${code}`,
        `${state}0`,
        "",
        "x".repeat(10_000)
      ]
      for (const text of forged) {
        const { message } = yield* answering(url, text, 5)
        assert.strictEqual(message.error?.code, -32602, text.slice(0, 200))
      }
      assert.strictEqual((yield* answering(url, state, 500)).message.error?.code, -32602)
      const params = { name: "other", arguments: { amount: 5 }, requestState: state, inputResponses: yes }
      assert.strictEqual((yield* sendRaw(url, { params })).message.error?.code, -32602)
      assert.deepStrictEqual(paid, [])
      const [one, two] = yield* Effect.all([answering(url, state, 5), answering(url, state, 5)], { concurrency: 2 })
      assert.deepStrictEqual([one, two].filter(({ message }) => message.error?.code === -32602).length, 1)
      assert.strictEqual((yield* answering(url, state, 5)).message.error?.code, -32602)
      assert.deepStrictEqual(paid, [5])
    }))

  it.live("W-15: a request state without an answer, or with an answer of another kind, ends its call with an error", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool])
      const answers = [{}, { other: yes.approval }, { approval: { action: "accept" } }]
      for (const given of answers) {
        const state = yield* waiting(url, 5)
        const { message } = yield* answering(url, state, 5, {}, given)
        assert.isTrue(message.result.isError)
      }
      const params = { name: "pay", arguments: { amount: 5 }, requestState: yield* waiting(url, 5) }
      assert.isTrue((yield* sendRaw(url, { params })).message.result.isError)
      assert.deepStrictEqual(paid, [])
    }))

  it.effect("W-15: a request state is valid for ten minutes", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool])
      const early = yield* waiting(url, 1)
      yield* TestClock.adjust("9 minutes")
      assert.strictEqual((yield* answering(url, early, 1)).message.result?.content[0].text, "paid 1")
      const late = yield* waiting(url, 2)
      yield* TestClock.adjust("10 minutes")
      assert.strictEqual((yield* answering(url, late, 2)).message.error?.code, -32602)
      assert.deepStrictEqual(paid, [1])
    }))

  it.effect("W-15: an expired question has its default answer, and an expired approval is denied", () =>
    Effect.gen(function*() {
      const drink = Tool.make("drink", {
        parameters: {},
        handler: () => Effect.succeed(Tool.askUser("Which?", { expiresIn: "1 minute", defaultAnswer: "tea" }))
      })
      const pay = Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        answerWithin: "1 minute",
        handler: () => Effect.succeed("paid")
      })
      const url = yield* serve([drink, pay])
      const rows = [["drink", {}, "tea"], ["pay", { amount: 1 }, "time for an answer is up"]] as const
      for (const [name, args, text] of rows) {
        const asked = Deferred.makeUnsafe<void>()
        const never = () => (Deferred.doneUnsafe(asked, Effect.void), new Promise<never>(() => {}))
        const legacy = yield* connect(url, { era: "legacy", answer: never })
        const under = yield* Effect.forkChild(call(legacy, name, args))
        yield* Deferred.await(asked)
        yield* TestClock.adjust("1 minute")
        assert.include(textOf(yield* Fiber.join(under)), text)
        const waits = yield* sendRaw(url, { params: { name, arguments: args } })
        yield* TestClock.adjust("1 minute")
        const { inputRequests, requestState } = waits.message.result
        const reply = { action: "accept", content: { answer: "coffee", approve: true } }
        const inputResponses = Object.fromEntries(Object.keys(inputRequests).map((key) => [key, reply]))
        const params = { name, arguments: args, requestState, inputResponses }
        assert.include((yield* sendRaw(url, { params })).message.result.content[0].text, text)
      }
    }))

  it.live("W-15: a server refuses another principal's request state, and a principal that may only write cannot approve", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool], tokens)
      const state = yield* waiting(url, 5, bearer("ann"))
      assert.strictEqual((yield* answering(url, state, 5, bearer("bob"))).message.error?.code, -32602)
      const refused = yield* answering(url, state, 5, bearer("ann:list,write"))
      assert.isTrue(refused.message.result.isError)
      assert.deepStrictEqual(paid, [])
      const again = yield* waiting(url, 6, bearer("ann:list,write"))
      yield* answering(url, again, 6, bearer("ann"))
      assert.deepStrictEqual(paid, [6])
    }))
})

describe("the fields of a request state", () => {
  const whole = { principal: "team", by: "ann", name: "pay", arguments: { to: { iban: "1" }, amounts: [1, 2] } }
  const id = "00000000-0000-4000-8000-000000000000"

  it.effect("W-15: a change of any field makes a request state invalid, and the order of members does not", () =>
    Effect.gen(function*() {
      const { open, sign } = yield* RequestState.signer(Redacted.make("key"))
      const text = yield* sign(id, 1_000, whole)
      assert.strictEqual(yield* open(text, whole), id)
      assert.strictEqual(
        yield* open(text, { ...whole, arguments: { amounts: [1, 2], to: { iban: "1" } } }),
        id
      )
      const others = {
        principal: { principal: "teal" },
        by: { by: "bob" },
        "by and principal": { by: "team", principal: "ann" },
        name: { name: "pays" },
        arguments: { arguments: {} },
        "a member": { arguments: { ...whole.arguments, to: { iban: "2" } } },
        "one more": { arguments: { ...whole.arguments, more: null } },
        "an order": { arguments: { ...whole.arguments, amounts: [2, 1] } }
      }
      for (const [field, change] of Object.entries(others)) {
        assert.isUndefined(yield* open(text, { ...whole, ...change }), field)
      }
      const [own = "", until = "", code = ""] = text.split(".")
      const forged = {
        id: [own.replace("4", "5"), until, code],
        "the time": [own, "2000", code],
        "a longer time": [own, `0${until}`, code],
        code: [own, until, code.replace(/^./, (first) => first === "0" ? "1" : "0")],
        "the end of the code": [own, until, code.slice(0, -2)],
        "no code": [own, until, ""]
      }
      for (const [field, parts] of Object.entries(forged)) {
        assert.isUndefined(yield* open(parts.join("."), whole), field)
      }
      const other = yield* RequestState.signer(Redacted.make("yek"))
      assert.isUndefined(yield* other.open(text, whole))
      yield* TestClock.adjust(999)
      assert.strictEqual(yield* open(text, whole), id)
      yield* TestClock.adjust(1)
      assert.isUndefined(yield* open(text, whole))
    }))

  it.live("W-15: a request state allows nothing once its caller or its principal differs", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool], tokens)
      for (const other of ["bob@team", "ann@crew", "ann", "team", "team@ann"]) {
        const state = yield* waiting(url, 5, bearer("ann@team"))
        assert.strictEqual((yield* answering(url, state, 5, bearer(other))).message.error?.code, -32602, other)
      }
      assert.deepStrictEqual(paid, [])
      yield* answering(url, yield* waiting(url, 6, bearer("ann@team")), 6, bearer("ann@team"))
      assert.deepStrictEqual(paid, [6])
    }))

  it("O-59: a full memory of request states drops the oldest state of the principal with the most states", () => {
    const memory = new RequestState.Memory<number>(4)
    memory.put("b1", "bob", 1)
    for (const [index, id] of ["a1", "a2", "a3", "a4", "a5"].entries()) memory.put(id, "ann", index)
    assert.deepStrictEqual(["a1", "a2", "a3"].map((id) => memory.take(id)), [undefined, undefined, 2])
    assert.deepStrictEqual([memory.take("b1"), memory.take("b1")], [1, undefined])
    // A state that is taken counts no more.
    for (const id of ["c1", "c2"]) memory.put(id, "cas", 9)
    assert.deepStrictEqual(["a4", "a5", "c1", "c2"].map((id) => memory.take(id)), [3, 4, 9, 9])
  })
})

describe("MCP requests", () => {
  it.live("W-15: a server refuses a request without permission, from another page, or to another host", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool], tokens)
      const params = { name: "pay", arguments: { amount: 1 } }
      const rows: ReadonlyArray<readonly [headers: Record<string, string>, status: number]> = [
        [{}, 401],
        [bearer("ann:list"), 403],
        [{ ...bearer("ann"), origin: "https://evil.example" }, 403],
        [{ ...bearer("ann"), "sec-fetch-site": "cross-site" }, 403],
        [{ ...bearer("ann"), host: "evil.example" }, 421],
        [{ ...bearer("ann"), "content-type": "text/plain" }, 415]
      ]
      for (const [headers, status] of rows) {
        assert.strictEqual((yield* sendRaw(url, { params, headers })).status, status, JSON.stringify(headers))
      }
      for (const [method, expected] of [["GET", 405], ["PUT", 405], ["DELETE", 400]] as const) {
        const { status } = yield* send(url, { method, path: "/mcp", headers: bearer("ann") })
        assert.strictEqual(status, expected, method)
      }
      assert.deepStrictEqual(paid, [])
    }))

  it.live("W-15: a client lists and calls the tools that it may list and call, and handlers read its principal", () =>
    Effect.gen(function*() {
      const named = (name: string) =>
        Tool.make(name, { parameters: {}, handler: (_, { context }) => Effect.succeed(context) })
      const url = yield* serve([named("open"), named("hidden")], {
        hosts: ["127.0.0.1"],
        authorize: (_, { action, agent }) =>
          agent === "hidden" && action === "list" || agent === "open" && action === "write"
            ? Effect.fail("not this one")
            : Effect.succeed({ principal: "ann" })
      }).pipe(Effect.provide(Policy.layer({ context: { shop: 7 } })))
      for (const era of eras) {
        const client = yield* connect(url, { era, headers: bearer("ann") })
        const { tools } = yield* Effect.promise(() => client.listTools())
        assert.deepStrictEqual(tools.map(({ name }) => name), ["open"])
        assert.deepStrictEqual((yield* call(client, "hidden")).structuredContent, { shop: 7, principal: "ann" })
        assert.strictEqual((yield* Effect.exit(call(client, "open")))._tag, "Failure")
      }
    }))

  it.live("W-15: a server answers wrong messages, versions, headers and too large bodies with an error, and runs nothing", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool], { bounds: { body: 4_096 } })
      const params = { name: "pay", arguments: { amount: 1 } }
      const rows: ReadonlyArray<readonly [raw: Parameters<typeof sendRaw>[1], status: number]> = [
        // An error of JSON-RPC, of which the protocol does not say the status.
        [{ body: "{" }, 200],
        [{ body: "[]" }, 400],
        [{ body: [{ jsonrpc: "2.0", id: 1, method: "tools/list" }] }, 400],
        [{ body: "null" }, 400],
        [{ body: { jsonrpc: "1.0", id: 1, method: "tools/call" } }, 400],
        [{ params, headers: { "mcp-protocol-version": "2099-01-01" } }, 400],
        [{ params, headers: { "mcp-method": "tools/list" } }, 400],
        [{ params, headers: { "mcp-name": "other" } }, 400],
        [{ params, headers: { accept: "text/html" } }, 406],
        [{ method: "tools/unknown" }, 404],
        [{ params: { name: "pay", arguments: { amount: "1".repeat(5_000) } } }, 413]
      ]
      for (const [raw, status] of rows) {
        const answer = yield* sendRaw(url, raw)
        assert.strictEqual(answer.status, status, JSON.stringify(raw).slice(0, 200) + answer.text)
      }
      const later = { "mcp-protocol-version": "2099-01-01" }
      const { message } = yield* sendRaw(url, {
        params: {
          ...params,
          _meta: {
            "io.modelcontextprotocol/protocolVersion": "2099-01-01",
            "io.modelcontextprotocol/clientCapabilities": {}
          }
        },
        headers: later
      })
      assert.strictEqual(message.error.code, -32022)
      assert.strictEqual(message.error.data.supported[0], "2026-07-28")
      assert.deepStrictEqual(paid, [])
    }))

  it.live("W-15: prototype names in arguments are dropped, and change nothing", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo])
      const text = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call" }).replace(
        /\}$/,
        `,"params":{"name":"echo","arguments":{"__proto__":{"polluted":1},"value":{"__proto__":{"polluted":1},`
          + `"constructor":{"prototype":{"polluted":1}}}},"_meta":{`
          + `"io.modelcontextprotocol/protocolVersion":"2026-07-28",`
          + `"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},`
          + `"io.modelcontextprotocol/clientCapabilities":{}}}}`
      )
      const { message } = yield* sendRaw(url, { body: text, headers: { "mcp-name": "echo" } })
      assert.deepStrictEqual(message.result.structuredContent, { own: ["value"], polluted: null })
      assert.isUndefined(({} as { readonly polluted?: unknown }).polluted)
    }))

  it.effect("W-15: a running call is authorized again, and is interrupted once it is not allowed any more", () =>
    Effect.gen(function*() {
      const { began, ended, tool } = endless()
      const over = new Set<string>()
      const url = yield* serve([tool], { authorize: byToken(over), hosts: ["127.0.0.1"] })
      const client = yield* connect(url, { era: "modern", headers: bearer("ann") })
      const under = yield* Effect.forkChild(call(client, "endless"))
      yield* Deferred.await(began)
      yield* TestClock.adjust("61 seconds")
      assert.isFalse(yield* Deferred.isDone(ended))
      over.add("ann")
      yield* TestClock.adjust("61 seconds")
      yield* Deferred.await(ended)
      const result = yield* Fiber.join(under)
      assert.deepStrictEqual([result.isError, textOf(result)], [true, "This is not allowed."])
    }))

  it.live("W-15: calls count as writes and streams of their principal", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], { bounds: { writes: 2 } })
      const client = yield* connect(url, { era: "modern" })
      for (let count = 0; count < 2; count++) assert.isFalse((yield* call(client, "echo")).isError)
      const refused = yield* call(client, "echo")
      assert.isTrue(refused.isError)
      assert.include(textOf(refused), "too many requests")
    }))
})

describe("sessions of the legacy era", () => {
  const initialize = (url: string, headers: Record<string, string> = {}) =>
    Effect.map(
      send(url, {
        path: "/mcp",
        headers: { accept: "application/json, text/event-stream", ...headers },
        body: {
          jsonrpc: "2.0",
          id: 1,
          method: "initialize",
          params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "raw", version: "1" } }
        }
      }),
      ({ headers, status, text }) => ({ status, text, id: headers.get("mcp-session-id") ?? "" })
    )

  const list = (url: string, id: string, headers: Record<string, string> = {}) =>
    send(url, {
      path: "/mcp",
      headers: {
        accept: "application/json, text/event-stream",
        "mcp-session-id": id,
        "mcp-protocol-version": "2025-11-25",
        ...headers
      },
      body: { jsonrpc: "2.0", id: 2, method: "tools/list" }
    })

  it.live("W-15: a server serves legacy sessions only with the option legacy", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], { legacy: undefined as never })
      const refused = yield* initialize(url)
      assert.strictEqual(refused.status, 400)
      const { error, id } = JSON.parse(refused.text)
      assert.deepStrictEqual([id, error.code], [1, -32020])
      for (const remedy of ["versionNegotiation: { mode: \"auto\" }", "legacy: true"]) {
        assert.include(error.message, remedy)
      }
      const modern = yield* connect(url, { era: "modern" })
      assert.isFalse((yield* call(modern, "echo")).isError)
    }))

  it.live("W-15: a session belongs to its principal, and is unknown to others", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], tokens)
      const { id } = yield* initialize(url, bearer("ann"))
      assert.strictEqual((yield* list(url, id, bearer("ann"))).status, 200)
      assert.strictEqual((yield* list(url, id, bearer("bob"))).status, 404)
      assert.strictEqual((yield* list(url, globalThis.crypto.randomUUID(), bearer("ann"))).status, 404)
      const ending = (token: string) =>
        send(url, { method: "DELETE", path: "/mcp", headers: { ...bearer(token), "mcp-session-id": id } })
      assert.strictEqual((yield* ending("bob")).status, 404)
      assert.strictEqual((yield* list(url, id, bearer("ann"))).status, 200)
      assert.strictEqual((yield* ending("ann")).status, 204)
      assert.strictEqual((yield* list(url, id, bearer("ann"))).status, 404)
    }))

  it.effect("W-15: the number of sessions is bounded, and an unused session ends", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], { legacy: { maxSessions: 2, idle: "30 minutes" } })
      const first = yield* initialize(url)
      yield* TestClock.adjust("20 minutes")
      const second = yield* initialize(url)
      assert.strictEqual((yield* initialize(url)).status, 429)
      yield* TestClock.adjust("9 minutes")
      assert.strictEqual((yield* list(url, first.id)).status, 200)
      yield* TestClock.adjust("25 minutes")
      assert.strictEqual((yield* list(url, second.id)).status, 404)
      assert.strictEqual((yield* list(url, first.id)).status, 200)
      assert.strictEqual((yield* initialize(url)).status, 200)
    }))

  it.effect("W-15: a session ends when idle and frees its place, whether it was used never, once or often, again and again", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], { legacy: { maxSessions: 1, idle: "30 minutes" } })
      for (const uses of [0, 1, 3, 1]) {
        const { id, status } = yield* initialize(url)
        assert.strictEqual(status, 200)
        for (let use = 0; use < uses; use++) {
          yield* TestClock.adjust("29 minutes")
          assert.strictEqual((yield* list(url, id)).status, 200)
        }
        assert.strictEqual((yield* initialize(url)).status, 429)
        yield* TestClock.adjust("31 minutes")
        assert.strictEqual((yield* list(url, id)).status, 404)
      }
    }))

  it.effect("O-59: perPrincipal bounds the sessions of each principal, also while they open, and an ended session frees its place", () =>
    Effect.gen(function*() {
      const url = yield* serve([echo], { ...tokens, legacy: { maxSessions: 6, perPrincipal: 2 } })
      const opening = (token: string, count: number) =>
        Effect.all(Array.from({ length: count }, () => initialize(url, bearer(token))), { concurrency: "unbounded" })
      const statuses = (all: ReadonlyArray<{ readonly status: number }>) => all.map(({ status }) => status).sort()
      // One that is refused by the protocol takes no place.
      for (let count = 0; count < 5; count++) {
        const refused = yield* send(url, {
          path: "/mcp",
          headers: { accept: "application/json, text/event-stream", ...bearer("ann") },
          body: { jsonrpc: "2.0", id: 1, method: "initialize", params: {} }
        })
        assert.strictEqual(refused.headers.get("mcp-session-id"), null)
      }
      const anns = yield* opening("ann", 5)
      assert.deepStrictEqual(statuses(anns), [200, 200, 429, 429, 429])
      // Who acts for another principal has the bound of its own.
      assert.deepStrictEqual(statuses(yield* opening("bob@ann", 3)), [200, 200, 429])
      assert.deepStrictEqual(statuses(yield* opening("cas", 3)), [200, 200, 429])
      assert.deepStrictEqual(statuses(yield* opening("dan", 1)), [429])
      const one = anns.find(({ status }) => status === 200)
      const ended = yield* send(url, {
        method: "DELETE",
        path: "/mcp",
        headers: { ...bearer("ann"), "mcp-session-id": one!.id }
      })
      assert.strictEqual(ended.status, 204)
      assert.deepStrictEqual(statuses(yield* opening("ann", 2)), [200, 429])
      yield* TestClock.adjust("31 minutes")
      assert.deepStrictEqual(statuses(yield* opening("ann", 3)), [200, 200, 429])
      assert.deepStrictEqual(statuses(yield* opening("dan", 3)), [200, 200, 429])
    }))

  it("O-59: a wrong bound of legacy sessions is a defect that names legacy", () => {
    const make = (legacy: object) => Effect.runPromise(Effect.scoped(serve([echo], { legacy })))
    const wrong = [
      { maxSessions: 0 },
      { maxSessions: "9" },
      { perPrincipal: 1.5 },
      { perPrincipal: NaN },
      { idle: 0 },
      { idel: 1 }
    ]
    return Promise.all(wrong.map((legacy) =>
      make(legacy).then(
        () => assert.fail(`accepted: ${JSON.stringify(legacy)}`),
        (error) => assert.match(String(error), /legacy/)
      )
    ))
  })

  it.effect("W-15: a session with a running call does not become idle", () =>
    Effect.gen(function*() {
      const { began, ended, tool } = endless()
      const url = yield* serve([tool, echo], { legacy: { idle: "30 minutes" } })
      const client = yield* connect(url, { era: "legacy" })
      const controller = new AbortController()
      yield* Effect.forkChild(Effect.exit(call(client, "endless", {}, { signal: controller.signal })))
      yield* Deferred.await(began)
      yield* TestClock.adjust("40 minutes")
      assert.strictEqual((yield* initialize(url)).status, 200)
      assert.isFalse((yield* call(client, "echo")).isError)
      assert.isFalse(yield* Deferred.isDone(ended))
      controller.abort("enough")
      yield* Deferred.await(ended)
    }))

  it.live("W-15: a session takes an approval only from a principal that may approve", () =>
    Effect.gen(function*() {
      const { paid, tool } = paying()
      const url = yield* serve([tool], tokens)
      // The client answers with the token of the moment: first one that may not approve, then one that may.
      const sent: Array<number> = []
      let token = "ann"
      let stray: ((as: string) => Promise<Response>) | undefined
      const fetch: typeof globalThis.fetch = async (input, init) => {
        const isAnswer = typeof init?.body === "string" && init.body.includes(`"result"`)
        const headers = new Headers(init?.headers)
        const post = (as: string, body = init?.body) => {
          headers.set("authorization", `Bearer ${as}`)
          return globalThis.fetch(input, { ...init, headers, body: body ?? null })
        }
        stray = (as) => post(as, JSON.stringify({ jsonrpc: "2.0", id: "stray", result: {} }))
        if (!isAnswer) return post(token)
        const disguised = { ...JSON.parse(String(init.body)), method: "tools/call", params: { name: "pay" } }
        for (const body of [init.body, JSON.stringify(disguised)]) {
          sent.push((await post("ann:list,write", body)).status)
        }
        return post("ann")
      }
      const client = yield* connect(url, {
        era: "legacy",
        fetch,
        answer: () => ({ action: "accept", content: { approve: true } })
      })
      const result = yield* call(client, "pay", { amount: 7 })
      assert.deepStrictEqual([textOf(result), paid, sent], ["paid 7", [7], [403, 403]])
      // Nothing waits any more: an answer to nothing is one that who may list may send, and the second approval is asked for.
      assert.strictEqual((yield* Effect.promise(() => stray!("ann:list,write"))).status, 202)
      assert.strictEqual(textOf(yield* call(client, "pay", { amount: 9 })), "paid 9")
      assert.deepStrictEqual([paid.splice(1), sent], [[9], [403, 403, 403, 403]])
      token = "ann:list"
      assert.isTrue((yield* Effect.exit(call(client, "pay", { amount: 8 })))._tag === "Failure")
      assert.deepStrictEqual(paid, [7])
    }))
})
