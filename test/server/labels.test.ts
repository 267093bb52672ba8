/** Titles and pins over HTTP: who may give them, what a body may say, and what lists make of them. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import { bearer, byToken, memory, obedient, send } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const { finish, text, toolCall } = Script

const helper = Agent.make({ name: "helper", description: "Helps", run: () => ({}) })
const other = Agent.make({ name: "other", description: "Helps as well", run: () => ({}) })

const at = "/agents/helper/sessions"

const site = (options: Partial<Server.Options> & { readonly store?: Layer.Layer<Session.Store> } = {}) =>
  Effect.gen(function*() {
    const { url } = yield* serve([helper, other], obedient, {
      authorize: byToken(),
      hosts: ["127.0.0.1"],
      joinMillis: 0,
      ...options
    })
    const ask = (method: string, path: string, body?: unknown, token = "ann") =>
      Effect.map(
        send(url, { method, path, headers: bearer(token), ...(body === undefined ? {} : { body }) }),
        ({ status, text }) => ({ status, body: text.startsWith("{") ? JSON.parse(text) : text })
      )
    const say = (id: string, content: string) => ask("POST", `${at}/${id}/messages`, { content })
    const label = (id: string, body: unknown, token = "ann") => ask("PATCH", `${at}/${id}`, body, token)
    const list = (parameters = "", token = "ann") =>
      Effect.map(
        ask("GET", `${at}${parameters}`, undefined, token),
        ({ body }) => body as { readonly sessions: ReadonlyArray<Record<string, unknown>>; readonly next?: string }
      )
    return { url, ask, say, label, list }
  })

const stores = {
  memory: Session.Store.layerMemory,
  sqlite: Layer.orDie(SessionStore.layerSqlite({ filename: ":memory:" }))
}

describe("PATCH of a session", () => {
  for (const [name, store] of Object.entries(stores)) {
    it.live(`W-33: PATCH sets a title and a pin, which lists show, and removes them again, on ${name}`, () =>
      Effect.gen(function*() {
        const { label, list, say } = yield* site({ store })
        for (const id of ["s1", "s2", "s3"]) yield* say(id, `Hi from ${id}`)
        assert.deepStrictEqual(yield* label("s1", { title: " Rain ", pinned: true }), {
          status: 200,
          body: { title: "Rain", pinned: true }
        })
        const [first, ...rest] = (yield* list()).sessions
        assert.deepInclude(first, { id: "s1", title: "Rain", pinned: true })
        assert.deepStrictEqual(rest.map(({ id, pinned }) => [id, pinned]), [["s3", undefined], ["s2", undefined]])
        // The given title is searched, and the one in whose place it is given is not.
        assert.deepStrictEqual((yield* list("?query=RAIN")).sessions.map(({ id }) => id), ["s1"])
        assert.deepStrictEqual((yield* list("?query=from s1".replace(" ", "%20"))).sessions.map(({ id }) => id), ["s1"])
        assert.deepStrictEqual((yield* label("s1", { pinned: false })).body, { title: "Rain", pinned: false })
        assert.deepStrictEqual((yield* list()).sessions.map(({ id }) => id), ["s3", "s2", "s1"])
        assert.deepStrictEqual((yield* label("s1", { title: null })).body, { title: "Hi from s1", pinned: false })
        // What the session says and reads is as before.
        assert.strictEqual((yield* say("s1", "Again")).status, 200)
      }))
  }

  it.live("W-33: pinned sessions come before all pages, and each session is on one page", () =>
    Effect.gen(function*() {
      const kept = yield* memory
      const ids = Array.from({ length: 45 }, (_, index) => `s${index}`)
      yield* Effect.provide(
        Effect.forEach(ids, (id, index) =>
          Effect.andThen(
            Session.open(`ann:${id}`, { origin: { principal: "ann", agent: "helper" } }),
            Session.label(`ann:${id}`, { pinned: index < 25 })
          )),
        kept.layer
      )
      const { list } = yield* site({ store: kept.layer as Layer.Layer<Session.Store> })
      const seen: Array<Record<string, unknown>> = []
      let next: string | undefined = ""
      for (let pages = 0; next !== undefined; pages++) {
        assert.isBelow(pages, 4)
        const page: Effect.Success<ReturnType<typeof list>> = yield* list(`?next=${next}`)
        seen.push(...page.sessions)
        next = page.next
      }
      assert.deepStrictEqual(seen.map(({ pinned }) => pinned === true), ids.map((_, index) => index < 25))
      assert.deepStrictEqual(seen.map(({ id }) => id).toSorted(), ids.toSorted())
    }))

  it.live("W-33: only principals that may write can PATCH, and only their own sessions of that agent", () =>
    Effect.gen(function*() {
      const { ask, label, list, say } = yield* site()
      yield* say("s1", "Hi")
      const change = { title: "Rain" }
      const codes: ReadonlyArray<readonly [number, string, Effect.Effect<{ status: number; body: any }>]> = [
        [403, "forbidden", label("s1", change, "ann:read,list,answer,approve,stop,delete")],
        [404, "unknown_session", label("s1", change, "eve")],
        [404, "unknown_session", label("s2", change)],
        [404, "unknown_session", ask("PATCH", "/agents/other/sessions/s1", change)],
        [404, "unknown_agent", ask("PATCH", "/agents/none/sessions/s1", change)],
        [400, "invalid_session_id", ask("PATCH", `${at}/s%31`, change)]
      ]
      for (const [status, code, asked] of codes) {
        const { body, status: found } = yield* asked
        assert.deepStrictEqual([found, body.error?.code], [status, code])
      }
      assert.strictEqual((yield* list()).sessions[0]?.["title"], "Hi")
      assert.deepStrictEqual((yield* label("s1", change, "ann:write")).body, { title: "Rain", pinned: false })
      // An operator changes the session of another principal, and the journal has both.
      assert.strictEqual((yield* label("s1", { title: "Snow" }, "operator@ann")).status, 200)
      assert.strictEqual((yield* list()).sessions[0]?.["title"], "Snow")
    }))

  it.live("W-11: an invalid body is refused with the field's name, without the field's value, and changes nothing", () =>
    Effect.gen(function*() {
      const kept = yield* memory
      const { label, say } = yield* site({ store: kept.layer as Layer.Layer<Session.Store>, bounds: { writes: 1_000 } })
      yield* say("s1", "Hi")
      const wrong: ReadonlyArray<readonly [field: string, body: unknown]> = [
        ["the body", {}],
        ["the body", { titel: "CANARY" }],
        ["the body", []],
        ["the body", "\"CANARY\""],
        ["title", { title: 1, pinned: true }],
        ["title", { title: ["CANARY"] }],
        ["title", { title: "" }],
        ["title", { title: " \u200b " }],
        ["title", { title: `CANARY${"x".repeat(120)}` }],
        ["title", { title: "CANARY\nsnow" }],
        ["title", { title: "CANARY\u202e" }],
        ["title", { title: "\ud83d CANARY", pinned: true }],
        ["pinned", { pinned: "CANARY" }],
        ["pinned", { pinned: null, title: "CANARY" }],
        ["text", { title: "x".repeat(2_000_000) }]
      ]
      const before = yield* kept.contents
      for (const [field, body] of wrong) {
        const answered = yield* label("s1", body)
        const name = JSON.stringify(body).slice(0, 80)
        assert.include([400, 413], answered.status, name)
        assert.include(answered.body.error.message, field, name)
        assert.notInclude(JSON.stringify(answered.body), "CANARY", name)
      }
      assert.deepStrictEqual(yield* kept.contents, before)
      assert.strictEqual((yield* label("s1", { "__proto__": { title: "CANARY" }, pinned: true })).status, 200)
      assert.isUndefined(({} as Record<string, unknown>)["title"])
    }))

  it.live("W-33: a PATCH counts as a write, and a full session refuses it", () =>
    Effect.gen(function*() {
      const few = yield* site({ bounds: { writes: 3 } })
      yield* few.say("s1", "Hi")
      for (const title of ["One", "Two"]) assert.strictEqual((yield* few.label("s1", { title })).status, 200)
      const { body, status } = yield* few.label("s1", { title: "Three" })
      assert.deepStrictEqual([status, body.error.code], [429, "too_many_writes"])
      const full = yield* site({ bounds: { sessionTurns: 1 } })
      yield* full.say("s1", "Hi")
      const refused = yield* full.label("s1", { title: "One" })
      assert.deepStrictEqual([refused.status, refused.body.error.code], [413, "session_full"])
      // Labels that it has already write nothing.
      assert.strictEqual((yield* full.label("s1", { pinned: false })).status, 200)
    }))

  it.live("W-33: a PATCH during a run takes effect, and the run's readers do not see it", () =>
    Effect.gen(function*() {
      const began = Deferred.makeUnsafe<void>()
      const gate = Deferred.makeUnsafe<void>()
      const tool = Tool.make("wait", {
        parameters: {},
        handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "waited")
      })
      const waiting = Agent.make({ name: "helper", description: "Helps", run: () => ({ tools: [tool] }) })
      const served = yield* serve(
        [waiting],
        Script.layer([
          [toolCall("c0", "wait"), finish("tool_calls")],
          [text("Done"), finish("stop")]
        ])
      )
      const reader = yield* Effect.promise(() => served.open("POST", `${at}/s1/messages`, { content: "Go" }))
      yield* Deferred.await(began)
      const patched = yield* Effect.promise(() => served.ask("PATCH", `${at}/s1`, { title: "Under way", pinned: true }))
      assert.strictEqual(patched.text, JSON.stringify({ title: "Under way", pinned: true }))
      const listed = yield* Effect.promise(() => served.ask("GET", at))
      assert.deepInclude(JSON.parse(listed.text).sessions[0], { title: "Under way", next: "resume", pinned: true })
      yield* Deferred.succeed(gate, undefined)
      const sent = yield* Effect.promise(reader.end)
      assert.deepStrictEqual(sent.filter(({ data }) => data._tag === "Reset"), [])
      assert.strictEqual(sent.at(-1)?.data._tag, "ChatCompleted")
      // A reader of the run that has ended, from its journal, gets the same.
      const again = yield* Effect.promise(() => served.ask("GET", `${at}/s1/runs`))
      const { runs, session } = JSON.parse(again.text)
      assert.deepStrictEqual([runs.length, session.title], [1, "Under way"])
    }))
})
