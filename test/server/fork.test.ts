/** Branches over HTTP: a session that continues another one from before a message, which stays as it is. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { SessionStore } from "heddle/sql"
import * as Sessions from "../../src/server/internal/sessions.ts"
import { temporaryFile } from "../sql/support/files.ts"
import { type Asked, bearer, byToken, codeOf, hearing, send, type Sending } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

const [began, gate] = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()]

const tools = (ran: Array<string>) => [
  Tool.make("look", {
    parameters: {},
    readOnly: true,
    handler: (_, { id }) => Effect.sync(() => (ran.push(id), "looked"))
  }),
  Tool.make("pay", {
    parameters: { amount: Schema.Finite },
    readOnly: ({ amount }) => amount === 0,
    handler: (_, { id }) => Effect.sync(() => (ran.push(id), "paid"))
  }),
  Tool.make("refuse", {
    parameters: {},
    authorize: () => Effect.succeed(false),
    handler: (_, { id }) => Effect.sync(() => (ran.push(id), "ran"))
  }),
  Tool.make("wait", {
    parameters: {},
    handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
  }),
  Tool.make("ask", { parameters: {}, approval: true, handler: () => Effect.succeed("asked") })
]

const site = (store: Layer.Layer<Session.Store>, options: Partial<Server.Options> = {}) =>
  Effect.gen(function*() {
    const ran: Array<string> = []
    const agents = [
      Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: tools(ran) }) }),
      Agent.make({ name: "other", description: "Helps", run: () => Effect.succeed({}) })
    ]
    const { url } = yield* serve(agents, hearing([]), {
      authorize: byToken(),
      hosts: ["127.0.0.1"],
      joinMillis: 0,
      store,
      ...options,
      bounds: { writes: 10_000, ...options.bounds }
    })
    const ask = (sending: Sending, token = "ann") =>
      send(url, { ...sending, headers: { ...bearer(token), ...sending.headers } })
    const say = (session: string, id: string, content: string | ReadonlyArray<Asked>) =>
      ask({
        path: `${at}/${session}/messages`,
        body: { id, content: typeof content === "string" ? content : JSON.stringify(content) }
      })
    const fork = (session: string, body: unknown, token?: string) => ask({ path: `${at}/${session}/fork`, body }, token)
    const thread = (session: string) =>
      Effect.map(ask({ path: `${at}/${session}` }), ({ text }) =>
        (JSON.parse(text).messages as Array<any>).map(({ id, parts, role }) => [
          id,
          role,
          parts.flatMap((part: any) =>
            part.type === "text" ? [part.text] : []
          ).join("")
        ]))
    return { ask, began, fork, gate, ran, say, thread }
  })

/** A store of a file, and what its journals have. */
const file = Effect.gen(function*() {
  const filename = yield* temporaryFile
  const layer = SessionStore.layerSqlite({ filename }) as Layer.Layer<Session.Store>
  const journal = (key: string) =>
    Effect.orDie(Effect.provide(
      Effect.flatMap(Session.Store, (store) => Effect.map(Stream.runCollect(store.read(key)), JSON.stringify)),
      layer,
      { local: true }
    ))
  const forks = (id: string) =>
    Effect.orDie(Effect.provide(Sessions.forksOf({ key: `ann:${id}`, principal: "ann" }), layer, { local: true }))
  return { forks, journal, layer }
})

/** Waits until the run of a branch has ended, by a message that follows it. */
const settled =
  (say: (session: string, id: string, content: string) => Effect.Effect<{ readonly status: number }>) =>
  (session: string) => Effect.repeat(say(session, "after", "after"), { until: ({ status }) => status === 200 })

describe("POST …/fork", () => {
  it.live("R-560: a fork continues from before a message, and leaves the journal unchanged, byte for byte", () =>
    Effect.gen(function*() {
      const { forks, journal, layer } = yield* file
      const calls = [
        { id: "c1", name: "look" },
        { id: "c2", name: "pay", args: { amount: 5 } },
        { id: "c3", name: "pay", args: { amount: 0 } },
        { id: "c4", name: "refuse" },
        { id: "c5", name: "none" }
      ]
      const made = yield* Effect.scoped(Effect.gen(function*() {
        const { fork, ran, say, thread } = yield* site(layer)
        yield* say("s1", "m1", "one")
        yield* say("s1", "m2", calls)
        yield* say("s1", "m3", "three")
        const before = yield* journal("ann:s1")
        const runs = ran.slice()
        const forked = yield* fork("s1", { id: "s2", before: "m2", content: "other" })
        assert.strictEqual(forked.status, 201, forked.text)
        assert.strictEqual(forked.headers.get("cache-control"), "no-store")
        const { forkedFrom, ...rest } = JSON.parse(forked.text)
        assert.deepStrictEqual(rest, { id: "s2", calls: [{ id: "c2", name: "pay" }] })
        assert.deepInclude(forkedFrom, { id: "s1", message: "m2" })
        yield* settled(say)("s2")
        const [, , ...own] = yield* thread("s2")
        assert.deepStrictEqual(own.map(([, role, text]) => [role, text]), [
          ["user", "other"],
          ["assistant", "Heard: other"],
          ["user", "after"],
          ["assistant", "Heard: after"]
        ])
        assert.deepStrictEqual([yield* journal("ann:s1"), ran], [before, runs])
        return { before, forked: forked.text }
      }))
      // Another process answers the same command as the first one did, and lists the branches.
      const { ask, fork, ran, say } = yield* site(layer)
      const again = yield* fork("s1", { id: "s2", before: "m2", content: "other" })
      assert.deepStrictEqual([again.status, again.text], [201, made.forked])
      assert.deepStrictEqual((yield* fork("s1", { id: "s3", before: "m1" })).status, 201)
      const both = [{ id: "s2", message: "m2" }, { id: "s3", message: "m1" }]
      assert.deepStrictEqual(yield* forks("s1"), both)
      assert.deepStrictEqual(JSON.parse((yield* ask({ path: `${at}/s1/runs` })).text).session.forks, both)
      // Of a branch, a message of the earlier session is branched from there, and its own one from the branch.
      assert.deepInclude(JSON.parse((yield* fork("s2", { id: "s4", before: "message-0" })).text).forkedFrom, {
        id: "s1",
        message: "m1"
      })
      assert.strictEqual((yield* fork("s2", { id: "s5", before: "s2", content: "third" })).status, 201)
      yield* settled(say)("s5")
      assert.deepStrictEqual(yield* forks("s2"), [{ id: "s5", message: "s2" }])
      assert.deepStrictEqual([yield* journal("ann:s1"), ran], [made.before, []])
    }))

  it.live("R-560: a fork that cannot be made is refused with the field's name, and writes nothing", () =>
    Effect.gen(function*() {
      const { journal, layer } = yield* file
      const { ask, fork, say } = yield* site(layer, { bounds: { body: 20_000, taken: 10_000, sessions: 4 } })
      yield* say("s1", "m1", "one")
      yield* say("s2", "m1", "two")
      yield* say("s3", "m1", [{ id: "c1", name: "ask" }])
      const asked = { id: "new", before: "m1" }
      const refusals: ReadonlyArray<readonly [string, unknown, number, string, RegExp]> = [
        ["s1", { ...asked, before: "m9" }, 404, "unknown_message", /^before: /],
        ["s1", { ...asked, before: "message-1" }, 404, "unknown_message", /^before: /],
        ["s1", { ...asked, before: "message-99" }, 404, "unknown_message", /^before: /],
        ["s1", { ...asked, before: "" }, 400, "invalid_body", /^before: /],
        ["s1", { ...asked, before: 1 }, 400, "invalid_body", /^before: /],
        ["s1", { ...asked, before: "heddle:answer:x" }, 400, "invalid_body", /^before: /],
        ["s1", { before: "m1" }, 400, "invalid_body", /^id: /],
        ["s1", { ...asked, id: "a/b" }, 400, "invalid_body", /^id: /],
        ["s1", { ...asked, id: "s2" }, 409, "id_taken", /^id: /],
        ["s1", { ...asked, id: "s1" }, 409, "id_taken", /^id: /],
        ["s1", { ...asked, content: "" }, 400, "invalid_body", /^content: /],
        ["s1", { ...asked, content: 7 }, 400, "invalid_body", /^content: /],
        ["s1", { ...asked, content: "x".repeat(11_000) }, 413, "too_large", /^content: /],
        ["s1", { ...asked, content: "x".repeat(21_000) }, 413, "body_too_large", /body/],
        ["s1", { ...asked, clientTools: [{ name: "pay", description: "" }] }, 400, "tool_name_taken", /tool/],
        ["s1", [], 400, "invalid_body", /^the body: /],
        ["s3", asked, 409, "waits_for_answers", /answers/],
        ["s9", asked, 404, "unknown_session", /session/]
      ]
      const journals = () => Effect.forEach(["ann:s1", "ann:s2", "ann:s3", "ann:new"], journal)
      const before = yield* journals()
      for (const [session, body, status, code, message] of refusals) {
        const refused = yield* fork(session, body)
        assert.deepStrictEqual([refused.status, codeOf(refused)], [status, code], JSON.stringify(body))
        assert.match(JSON.parse(refused.text).error.message, message)
      }
      const others: ReadonlyArray<readonly [string, number]> = [["ann:read", 403], ["ann:approve", 403], ["bob", 404]]
      for (const [token, status] of others) {
        assert.strictEqual((yield* fork("s1", asked, token)).status, status, token)
      }
      const { status } = yield* ask({ path: "/agents/other/sessions/s1/fork", body: asked })
      assert.strictEqual(status, 404)
      assert.deepStrictEqual(yield* journals(), before)
      assert.strictEqual((yield* fork("s1", asked, "ann:write")).status, 201)
      const full = yield* fork("s1", { ...asked, id: "more" })
      assert.deepStrictEqual([full.status, codeOf(full)], [429, "too_many_sessions"])
    }))

  it.live("R-560: a fork is refused while a run is active, and when the branch would be full", () =>
    Effect.gen(function*() {
      const { journal, layer } = yield* file
      yield* Effect.scoped(Effect.gen(function*() {
        const { began, fork, gate, say } = yield* site(layer)
        yield* say("s1", "m1", "one")
        yield* say("s1", "m2", "two")
        const run = yield* Effect.forkChild(say("s1", "m3", [{ id: "c1", name: "wait" }]))
        yield* Deferred.await(began)
        const refused = yield* fork("s1", { id: "s2", before: "m1" })
        assert.deepStrictEqual([refused.status, codeOf(refused)], [409, "running"])
        yield* Deferred.succeed(gate, undefined)
        yield* Fiber.join(run)
      }))
      const { fork } = yield* site(layer, { bounds: { sessionTurns: 1 } })
      const full = yield* fork("s1", { id: "s2", before: "m2" })
      assert.deepStrictEqual([full.status, codeOf(full)], [413, "session_full"])
      assert.strictEqual(yield* journal("ann:s2"), "[]")
      assert.strictEqual((yield* fork("s1", { id: "s2", before: "m1" })).status, 201)
    }))

  it.live("R-560: a fork names the later calls even if the agent's tools are unknown", () =>
    Effect.gen(function*() {
      const { layer } = yield* file
      let isBroken = false
      const { url } = yield* serve(
        [Agent.make({
          name: "helper",
          description: "Helps",
          run: () => isBroken ? Effect.die(new Error("no tools")) : Effect.succeed({ tools: tools([]) })
        })],
        hearing([]),
        { store: layer }
      )
      const ask = (path: string, body: unknown) => send(url, { path: `${at}/s1/${path}`, body })
      yield* ask("messages", { id: "m1", content: JSON.stringify([{ id: "c1", name: "look" }]) })
      isBroken = true
      const forked = yield* ask("fork", { id: "s2", before: "m1" })
      assert.deepStrictEqual([forked.status, JSON.parse(forked.text).calls], [201, [{ id: "c1", name: "look" }]])
    }))
})
