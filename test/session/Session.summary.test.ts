/**
 * What a list says of sessions, without their journals: status, last outcome and error, title and last line, and where
 * a session branched from. Each of it is what the fold of the journal says.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import * as Struct from "effect/Struct"
import { Adapter, type Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"

const { finish, text, toolCall } = Script

const done = [text("Hello,\n  Ada"), finish("stop")]

const summaries = Effect.map(
  Stream.runCollect(Session.list()),
  (listed) => Object.fromEntries(listed.map((one) => [one.id, Struct.omit(one, ["claim", "id", "since", "version"])]))
)

const reply = (id: string, said: string, script: Script.Input, options = {}) =>
  Effect.gen(function*() {
    const opened = yield* Session.open(id)
    return yield* Session.keep(opened, (session) => Session.reply(Session.recover(session), said, options)).pipe(
      Effect.provide(Script.layer(script))
    )
  })

/** Tells whether each listed summary is that of the fold. */
const areFolds = Effect.gen(function*() {
  for (const [id, summary] of Object.entries(yield* summaries)) {
    const loaded = yield* Session.load(id)
    assert.deepStrictEqual(summary, States.summaryOf(loaded!.state), id)
  }
})

describe("the summary of a session", () => {
  it.effect("O-33: a summary has the earliest expiry time of all waiting calls, in any order", () =>
    Effect.gen(function*() {
      const waits = (name: string, expiresIn: number | "infinity") =>
        Tool.make(name, { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?", { expiresIn })) })
      const tools = [waits("soon", 1_000), waits("later", 5_000), waits("last", 9_000), waits("never", "infinity")]
      const find = Tool.make("find", { parameters: {}, manual: true })
      const orders = [
        ["soon", "later", "never"],
        ["later", "soon", "last"],
        ["never", "soon", "later"],
        ["last", "later", "soon"],
        ["find", "never", "later"],
        ["never", "find"]
      ]
      const times: Readonly<Record<string, number>> = { soon: 1_000, later: 5_000, last: 9_000 }
      for (const names of orders) {
        const id = names.join("-")
        const started = yield* Clock.currentTimeMillis
        const calls = names.map((name) => toolCall(name, name, {}))
        yield* reply(id, "Hi", [[...calls, finish("tool_calls")]], { tools: [...tools, find] })
        const rest = new Set(names)
        const earliest = (): number | undefined => {
          const all = Array.from(rest).flatMap((name) => times[name] === undefined ? [] : [started + times[name]])
          return all.length === 0 ? undefined : Math.min(...all)
        }
        // Each answer takes one of them away; the first to expire goes first.
        for (const name of names.toSorted((a, b) => (times[a] ?? Infinity) - (times[b] ?? Infinity)).slice(0, -1)) {
          assert.strictEqual((yield* summaries)[id]?.expiresAt, earliest(), `${id} with ${Array.from(rest).join()}`)
          const opened = yield* Session.open(id)
          yield* Session.keep(opened, (session) => Session.answer(session, name, "this"))
          rest.delete(name)
        }
        assert.strictEqual((yield* summaries)[id]?.expiresAt, earliest(), `${id} with ${Array.from(rest).join()}`)
        yield* areFolds
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-33: summaries tell failed sessions from completed and from waiting sessions", () =>
    Effect.gen(function*() {
      const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which one?")) })
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const bad = Tool.make("bad", { parameters: {}, onToolError: "halt", handler: () => Effect.die(new Error("no")) })
      yield* reply("done", "Hi", [done])
      yield* reply("asks", "Hi", [[toolCall("c0", "ask", {}), finish("tool_calls")]], { tools: [ask] })
      yield* reply("waits", "Hi", [[toolCall("c0", "pay", {}), finish("tool_calls")]], { tools: [pay] })
      yield* reply("tool", "Hi", [[toolCall("c0", "bad", {}), finish("tool_calls")]], { tools: [bad] })
      yield* reply("bound", "Hi", [[toolCall("c0", "bad", {}), finish("tool_calls")]], { tools: [], maxTurns: 1 })
      const broken = Adapter.layer({ stream: () => Stream.fail(new Adapter.AdapterError({ reason: "rate_limited" })) })
      yield* Session.open("failed").pipe(
        Effect.flatMap((opened) => Session.keep(opened, (session) => Session.reply(session, "Hi"))),
        Effect.exit,
        Effect.provide(broken)
      )
      const found = yield* summaries
      const said = Object.fromEntries(
        Object.entries(found).map(([id, { error, lastOutcome, next, status }]) => [
          id,
          [status, next, lastOutcome, error?.reason]
        ])
      )
      assert.deepStrictEqual(said, {
        done: ["completed", "nothing", "completed", undefined],
        asks: ["awaiting_user", "wait", "ask_user", undefined],
        waits: ["awaiting_tools", "wait", "approval_requested", undefined],
        tool: ["error", "nothing", "tool_error", "tool_error"],
        bound: ["completed", "nothing", "max_turns", undefined],
        failed: ["idle", "nothing", "error", "AdapterError"]
      })
      yield* areFolds
      const counts = { idle: 1, awaiting_user: 1, awaiting_tools: 1, completed: 2, stopped: 0, error: 1 }
      assert.deepStrictEqual(yield* Session.count(), counts)
      const errors = yield* Stream.runCollect(Session.list({ status: "error" }))
      assert.deepStrictEqual(errors.map(({ id }) => id), ["tool"])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-33: a summary has a title and a last line, in one line each, cut between characters", () =>
    Effect.gen(function*() {
      yield* Session.submit("submitted", "  One\n\ttwo ", {})
      yield* reply("long", "😀".repeat(200), [done, done])
      assert.deepInclude((yield* summaries)["submitted"], { title: "One two", lastLine: "One two", next: "reply" })
      const { lastLine, title } = (yield* summaries)["long"] as Journal.Summary
      assert.deepStrictEqual([title, lastLine], ["😀".repeat(60), "Hello, Ada"])
      yield* reply("long", "And then?", [[text(`x${"😀".repeat(200)}`), finish("stop")]])
      const later = (yield* summaries)["long"] as Journal.Summary
      assert.deepStrictEqual([later.title, later.lastLine], [title, `x${"😀".repeat(59)}`])
      yield* areFolds
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-33: a summary keeps outcome, error, agent and branch over a recovery and a snapshot, and the next run replaces the outcome", () =>
    Effect.gen(function*() {
      const forkedFrom = { id: "first", version: 4, message: "m2" }
      yield* Session.open("s", { origin: { agent: "travel", forkedFrom } })
      const bad = Tool.make("bad", { parameters: {}, onToolError: "halt", handler: () => Effect.die(new Error("no")) })
      const failed = yield* reply("s", "Hi", [[toolCall("c0", "bad", {}), finish("tool_calls")]], { tools: [bad] })
      const { error } = (yield* summaries)["s"] as Journal.Summary
      const known = { lastOutcome: "tool_error", error: error!, agent: "travel", forkedFrom, title: "Hi" }
      assert.deepInclude((yield* summaries)["s"], { ...known, status: "error" })
      const recovered = yield* Session.keep(failed, (session) => Effect.succeed(Session.recover(session)))
      const snapshot = yield* Session.snapshot(recovered)
      assert.deepInclude((yield* summaries)["s"], known)
      yield* areFolds
      yield* Session.keep(snapshot, (session) => Session.reply(Session.recover(session), "Again")).pipe(
        Effect.provide(Script.layer([done]))
      )
      const { error: _, ...rest } = known
      assert.deepInclude((yield* summaries)["s"], { ...rest, lastOutcome: "completed", status: "completed" })
      assert.notProperty((yield* summaries)["s"], "error")
      yield* areFolds
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-33: an unknown status is a defect that names the known statuses", () =>
    Effect.gen(function*() {
      const status = "failed" as "error"
      for (const refused of [Stream.runDrain(Session.list({ status })), Session.count({ status })]) {
        const exit = yield* Effect.exit(refused)
        assert.isTrue(Exit.isFailure(exit))
        const message = Exit.isFailure(exit) ? String(Cause.squash(exit.cause)) : ""
        assert.match(
          message,
          /status must be "idle", "awaiting_user", "awaiting_tools", "completed", "stopped" or "error"; got: "failed"/
        )
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
