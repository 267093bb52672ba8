/** Approvals over HTTP that a session remembers: who may, for what, and until when. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Session, Tool } from "heddle"
import { Agent, type Server } from "heddle/server"
import { SessionStore } from "heddle/sql"
import { temporaryFile } from "../sql/support/files.ts"
import { bearer, byToken, codeOf, hearing, send, type Sending } from "./support/hostile.ts"
import { serve } from "./support/site.ts"

const at = "/agents/helper/sessions/s1"

const site = (store: Layer.Layer<Session.Store>, options: Partial<Server.Options> = {}, description = "Pays") =>
  Effect.gen(function*() {
    const paid: Array<number> = []
    const pay = (name: string, remember?: Tool.Remember) =>
      Tool.make(name, {
        description,
        parameters: { amount: Schema.Finite },
        approval: true,
        ...(remember === undefined ? {} : { remember }),
        handler: ({ amount }) => Effect.sync(() => (paid.push(amount), "paid"))
      })
    const tools = [pay("pay", "tool"), pay("give", "arguments"), pay("owe")]
    const { url } = yield* serve(
      [Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools }) })],
      hearing([]),
      { authorize: byToken(), hosts: ["127.0.0.1"], joinMillis: 0, store, ...options, bounds: { writes: 10_000 } }
    )
    const ask = (sending: Sending, token = "ann") =>
      send(url, { ...sending, headers: { ...bearer(token), ...sending.headers } })
    let count = 0
    const say = (name: string, amount: number) =>
      ask({
        path: `${at}/messages`,
        body: { content: JSON.stringify([{ id: `${name}${++count}-${paid.length}`, name, args: { amount } }]) }
      })
    const seen = Effect.map(ask({ path: at }), ({ text }) => JSON.parse(text))
    const answer = (more: object, token = "ann") =>
      Effect.gen(function*() {
        const { suspensions: [open] } = yield* seen
        return yield* ask(
          { path: `${at}/answers`, body: { answers: [{ id: open.id, approve: true, ...more }] } },
          token
        )
      })
    const forget = (name: string, token = "ann") => ask({ path: `${at}/allowed/${name}`, method: "DELETE" }, token)
    return { answer, ask, forget, paid, say, seen }
  })

const reopened = Effect.map(
  temporaryFile,
  (filename) => SessionStore.layerSqlite({ filename }) as Layer.Layer<Session.Store>
)

describe("remembered approvals over HTTP", () => {
  it.live("R-561: remembered approvals apply in this process and the next, are listed with their giver, and end when deleted", () =>
    Effect.gen(function*() {
      const store = yield* reopened
      yield* Effect.scoped(Effect.gen(function*() {
        const { answer, paid, say, seen } = yield* site(store)
        yield* say("pay", 5)
        assert.strictEqual((yield* seen).suspensions[0].remember, "tool")
        assert.strictEqual((yield* answer({ remember: "tool" })).status, 200)
        yield* say("give", 5)
        assert.strictEqual((yield* seen).suspensions[0].remember, "arguments")
        assert.strictEqual((yield* answer({ remember: "arguments" }, "eve@ann")).status, 200)
        yield* say("pay", 6)
        yield* say("give", 5)
        assert.deepStrictEqual([paid, (yield* seen).suspensions], [[5, 5, 6, 5], []])
      }))
      yield* Effect.scoped(Effect.gen(function*() {
        const { answer, ask, forget, paid, say, seen } = yield* site(store)
        const { allowed } = yield* seen
        assert.deepStrictEqual(allowed.map(({ at, ...each }: any) => [typeof at, each]), [
          ["number", { name: "pay", remember: "tool", by: "ann" }],
          ["number", { name: "give", remember: "arguments", arguments: { amount: 5 }, by: "eve" }]
        ])
        assert.deepStrictEqual(JSON.parse((yield* ask({ path: `${at}/runs` })).text).session.allowed, allowed)
        yield* say("pay", 7)
        yield* say("give", 5)
        assert.deepStrictEqual(paid, [7, 5])
        for (
          const [name, token, status, code] of [
            ["pay", "ann:write,read,answer", 403, "forbidden"],
            ["pay", "bob", 404, "unknown_session"],
            ["owe", "ann", 404, "not_allowed"],
            ["__proto__", "ann", 404, "not_allowed"]
          ] as const
        ) {
          const refused = yield* forget(name, token)
          assert.deepStrictEqual([refused.status, codeOf(refused)], [status, code])
        }
        assert.strictEqual((yield* forget("pay", "ann:approve")).status, 204)
        assert.strictEqual((yield* forget("pay")).status, 404)
        assert.deepStrictEqual((yield* seen).allowed.map(({ name }: any) => name), ["give"])
        yield* say("pay", 8)
        assert.deepStrictEqual([paid, (yield* seen).suspensions.length], [[7, 5], 1])
        assert.strictEqual((yield* answer({})).status, 200)
      }))
      // The tool is another one by now.
      const { paid, say, seen } = yield* site(store, {}, "Pays at once")
      yield* say("give", 5)
      assert.deepStrictEqual([paid, (yield* seen).suspensions.length], [[], 1])
      const records = yield* Effect.provide(
        Effect.flatMap(Session.Store, (store) => Stream.runCollect(store.read("ann:s1"))),
        store
      )
      const told = records.flatMap(({ record }) =>
        record._tag === "CallSettled"
          ? [[record.remember, record.by]]
          : record._tag === "ToolDisallowed"
          ? [[record.name, record.by]]
          : []
      )
      assert.deepStrictEqual(told, [["tool", "ann"], ["arguments", "eve"], ["pay", "ann"], [undefined, "ann"]])
    }))

  it.live("R-561: an approval whose remember does not fit the body or the tool is refused with the field's name, and settles nothing", () =>
    Effect.gen(function*() {
      const { answer, paid, say, seen } = yield* site(Session.Store.layerMemory)
      const cases: ReadonlyArray<readonly [string, object, number, string]> = [
        ["owe", { remember: "tool" }, 409, "not_rememberable"],
        ["owe", { remember: "arguments" }, 409, "not_rememberable"],
        ["give", { remember: "tool" }, 409, "not_rememberable"],
        ["give", { remember: "arguments", arguments: { amount: 1 } }, 400, "invalid_body"],
        ["give", { remember: "all" }, 400, "invalid_body"],
        ["give", { remember: true }, 400, "invalid_body"],
        ["give", { approve: false, remember: "arguments" }, 400, "invalid_body"]
      ]
      for (const [name, more, status, code] of cases) {
        yield* say(name, 5)
        const refused = yield* answer(more)
        assert.deepStrictEqual([refused.status, codeOf(refused)], [status, code], JSON.stringify(more))
        assert.match(JSON.parse(refused.text).error.message, /remember: /)
        const { allowed, suspensions } = yield* seen
        assert.deepStrictEqual([allowed, suspensions.length, paid], [[], 1, []])
        yield* answer({ approve: false })
      }
      yield* say("give", 5)
      assert.strictEqual((yield* answer({ remember: "arguments" }, "ann:write,answer,read")).status, 403)
    }))

  it.live("R-561: remembered approvals list arguments only if they are published, and no hidden tool", () =>
    Effect.gen(function*() {
      const store = yield* reopened
      yield* Effect.scoped(Effect.gen(function*() {
        const { answer, say } = yield* site(store)
        yield* say("give", 5)
        yield* answer({ remember: "arguments" })
      }))
      for (
        const [publish, listed] of [["names", [{ name: "give", remember: "arguments", by: "ann" }]], [
          "none",
          []
        ]] as const
      ) {
        yield* Effect.scoped(Effect.gen(function*() {
          const { seen } = yield* site(store, { publish })
          const { allowed } = yield* seen
          assert.deepStrictEqual(allowed.map(({ by, name, remember }: any) => ({ name, remember, by })), listed)
          for (const each of allowed) assert.notProperty(each, "arguments")
        }))
      }
    }))
})
