/** Lists of sessions: searched by their texts, filtered by status, and read page by page while sessions change. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Message, Session, Tool } from "heddle"
import { Agent } from "heddle/server"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as Lists from "../../src/server/internal/lists.ts"
import { obedient } from "./support/hostile.ts"
import { serve, type Site } from "./support/site.ts"

const helper = Agent.make({ name: "helper", description: "Helps", run: () => ({}) })

const get = (site: Site, parameters: string) =>
  Effect.map(
    Effect.promise(() => site.ask("GET", `/agents/helper/sessions${parameters}`)),
    ({ status, text }) => ({ status, body: JSON.parse(text) })
  )

/** A session whose title and last line are these texts. */
const kept = (id: string, title: string, lastLine = title, agent = "helper") => {
  const key = `local:${id}`
  const thread = { metadata: {}, messages: [Message.user(title), Message.assistant(lastLine)] }
  return Session.open(key, { thread, origin: { principal: "local", agent } })
}

/** A store that tells of which journals it was asked. */
const watched = (layer: Layer.Layer<Session.Store, unknown>) =>
  Effect.gen(function*() {
    const store = Context.get(yield* Effect.orDie(Layer.build(layer)), Session.Store)
    const read: Array<string> = []
    const layerOf = Layer.succeed(Session.Store, {
      ...store,
      read: (id, after) => Stream.suspend(() => (read.push(id), store.read(id, after)))
    })
    return { layer: layerOf, read }
  })

const stores = {
  memory: Session.Store.layerMemory,
  sqlite: SessionStore.layerSqlite({ filename: ":memory:" })
}

describe("a list of sessions", () => {
  for (const [name, layer] of Object.entries(stores)) {
    it.live(`W-32: a query finds text in the title or the last line in any case, on ${name}, and reads no journal`, () =>
      Effect.gen(function*() {
        const store = yield* watched(layer)
        yield* Effect.provide(
          Effect.gen(function*() {
            yield* kept("s1", "A trip to Zürich", "It rains there")
            yield* kept("s2", "Books", "Emma is on its way to ZÜRICH")
            yield* kept("s3", "100% of _all_", "Done")
            yield* kept("s4", "A trip to Zürich", "It rains there", "other")
          }),
          store.layer
        )
        const site = yield* serve([helper, { ...helper, name: "other" }], obedient, { store: store.layer })
        store.read.length = 0
        const found = (query: string) =>
          Effect.map(
            get(site, `?query=${encodeURIComponent(query)}`),
            ({ body }) => body.sessions.map(({ id }: { readonly id: string }) => id).toSorted()
          )
        assert.deepStrictEqual(yield* found("zürich"), ["s1", "s2"])
        assert.deepStrictEqual(yield* found(" TO\t zu\u0308rich "), ["s1", "s2"])
        assert.deepStrictEqual(yield* found("emma"), ["s2"])
        // Signs of patterns are letters like any other.
        assert.deepStrictEqual(yield* found("%"), ["s3"])
        assert.deepStrictEqual(yield* found("_ALL_"), ["s3"])
        assert.deepStrictEqual(yield* found(".*"), [])
        assert.deepStrictEqual(yield* found("s1"), [])
        assert.deepStrictEqual(yield* found("helper"), [])
        assert.deepStrictEqual(yield* found(" "), ["s1", "s2", "s3"])
        assert.deepStrictEqual(store.read, [])
      }))

    it.live(`W-32: a list can have the sessions of one status, and names the branch of each session, on ${name}`, () =>
      Effect.gen(function*() {
        const store = yield* watched(layer)
        yield* Effect.provide(
          Effect.gen(function*() {
            yield* kept("s1", "One")
            const forkedFrom = { id: "local:s1", version: 4, message: "m1" }
            yield* Session.open("local:s2", { origin: { principal: "local", agent: "helper", forkedFrom } })
            const failed = yield* kept("s3", "Three")
            const bad = Tool.make("bad", { parameters: {}, onToolError: "halt", handler: () => Effect.die("no") })
            yield* Session.keep(failed, (session) => Session.reply(session, "Hi", { tools: [bad] })).pipe(
              Effect.provide(Script.layer([[Script.toolCall("c0", "bad"), Script.finish("tool_calls")]]))
            )
          }),
          store.layer
        )
        const site = yield* serve([helper], obedient, { store: store.layer })
        const of = (status: string) =>
          Effect.map(
            get(site, `?status=${status}`),
            ({ body }) => body.sessions.map(({ forkedFrom, id }: Lists.Listed) => [id, forkedFrom]).toSorted()
          )
        assert.deepStrictEqual(yield* of("error"), [["s3", undefined]])
        assert.deepStrictEqual(yield* of("idle"), [["s1", undefined], ["s2", { id: "s1", version: 4, message: "m1" }]])
        assert.deepStrictEqual(yield* of("awaiting_user"), [])
        assert.lengthOf(yield* of(""), 3)
      }))
  }

  it.effect("W-32: a list has each session once, page by page, while sessions are removed, begun and changed", () =>
    Effect.gen(function*() {
      for (let index = 0; index < 65; index++) {
        // Two sessions each are equally old.
        if (index % 2 === 0) yield* TestClock.adjust("1 second")
        yield* kept(`s${index}`, index % 3 === 0 ? "Third" : "Other")
      }
      const pages = (query: string, between: (page: number) => Effect.Effect<unknown, unknown, Session.Store>) =>
        Effect.gen(function*() {
          const ids: Array<string> = []
          let next: string | undefined = ""
          for (let page = 0; next !== undefined; page++) {
            const search = Lists.searchOf(new URLSearchParams({ query, next }))
            const found: Lists.Page = yield* Lists.list("local", "helper", yield* Effect.fromResult(search))
            ids.push(...found.sessions.map(({ id }) => id))
            next = found.next
            yield* between(page)
          }
          return ids
        })
      const all = yield* pages("", () => Effect.void)
      const newest = Array.from({ length: 65 }, (_, index) => `s${64 - index}`)
      const sorted = newest.toSorted((left, right) => {
        const age = (id: string) => Math.floor(Number(id.slice(1)) / 2)
        return age(right) - age(left) || (left < right ? -1 : 1)
      })
      assert.deepStrictEqual(all, sorted)
      assert.deepStrictEqual(
        yield* pages("THIRD", () => Effect.void),
        sorted.filter((id) => Number(id.slice(1)) % 3 === 0)
      )
      // The last session of the first page, by which the next one begins, is gone, and one of the rest comes up.
      const changed = yield* pages("", (page) =>
        page > 0 ? Effect.void : Effect.gen(function*() {
          yield* Session.delete(`local:${sorted[19]}`)
          yield* TestClock.adjust("1 second")
          yield* kept("new", "New")
          yield* Session.submit(`local:${sorted[40]}`, "Hi")
        }))
      assert.deepStrictEqual(changed, sorted.filter((_, index) => index !== 40))
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("W-32: a page is the last page if only sessions of other agents follow", () =>
    Effect.gen(function*() {
      yield* kept("old", "Old", "Old", "other")
      for (let index = 0; index < 20; index++) {
        yield* TestClock.adjust("1 second")
        yield* kept(`s${index}`, "Hi")
      }
      const { next, sessions } = yield* Lists.list("local", "helper")
      assert.lengthOf(sessions, 20)
      assert.isUndefined(next)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.live("W-32: a wrong parameter is refused with its name, without its value", () =>
    Effect.gen(function*() {
      const site = yield* serve([helper], obedient)
      const wrong = {
        query: [`query=${"q".repeat(201)}`, "query=a&query=b"],
        status: ["status=failed", "status=unreadable", "status=__proto__", "status=idle&status=idle"],
        next: ["next=2", "next=-1.s1", "next=1.a%2Fb", "next=1e9.s1", `next=${"9".repeat(16)}.s1`, "next=1.s1%0A"]
      }
      for (const [field, addresses] of Object.entries(wrong)) {
        for (const address of addresses) {
          const { body, status } = yield* get(site, `?${address}`)
          assert.deepStrictEqual([status, body.error.code], [400, "invalid_parameter"], address)
          assert.match(body.error.message, new RegExp(`^${field} `), address)
          assert.notMatch(body.error.message, /qqq|failed|__proto__|999/, address)
        }
      }
      const { body, status } = yield* get(site, "?query=&status=&next=")
      assert.deepStrictEqual([status, body], [200, { sessions: [] }])
    }))
})
