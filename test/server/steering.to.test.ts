/** Messages to the runs inside a session's run, over HTTP. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Message, Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { asking, eventsOf, serve } from "./support/site.ts"

const at = "/agents/helper/sessions"

const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

/** A server whose sub-agent looks around until it has a message, or until it is let go. */
const running = Effect.gen(function*() {
  const asked: Array<ReadonlyArray<unknown>> = []
  const isOver = yield* Deferred.make<void>()
  const model = Adapter.layer({
    stream: (request) => {
      const { messages } = request
      const turn = messages.filter(({ role }) => role === "assistant").length
      const texts = userTexts(messages)
      asked.push(texts)
      const isInside = texts[0] === "inside"
      const isDone = isInside ? texts.length > 1 || Effect.runSync(Deferred.isDone(isOver)) : turn > 0
      const reply = isDone
        ? [Script.text("done"), Script.finish("stop")]
        : [isInside ? Script.toolCall(`t${turn}`, "look") : Script.toolCall("c", "ask"), Script.finish("tool_calls")]
      return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
    }
  })
  const look = Tool.make("look", { parameters: {}, handler: () => Effect.as(Effect.sleep("10 millis"), "seen") })
  const sub = Tool.fromChat("ask", {
    parameters: {},
    chat: () => Chat.stream("inside", { tools: [look], maxTurns: 10_000 })
  })
  const helper = Agent.make({ name: "helper", description: "Helps", run: () => Effect.succeed({ tools: [sub] }) })
  const site = yield* serve([helper], model, { joinMillis: 0 })
  const ask = asking(site)
  const reader = yield* Effect.promise(() => site.open("POST", `${at}/s1/messages`, { content: "go" }))
  yield* Effect.promise(() => reader.until(({ data }) => data._tag === "ToolExecutionStarted"))
  const end = Effect.map(Effect.promise(() => reader.end()), eventsOf)
  const fate = (id: string) => Effect.map(ask("GET", `${at}/s1/messages/${id}`), ({ body }) => body)
  return { asked, ask, end, fate, isOver, site }
})

describe("a message to a run inside a call, over HTTP", () => {
  it.live("G51: a message to a sub-agent is in its run only, and its sender can ask for its outcome", () =>
    Effect.gen(function*() {
      const { ask, asked, end, fate } = yield* running
      const body = { content: "not that", id: "m1", mode: "steer", to: "c" }
      assert.deepStrictEqual(yield* ask("POST", `${at}/s1/messages?wait=false`, body), {
        status: 202,
        body: { id: "m1" }
      })
      assert.strictEqual((yield* ask("POST", `${at}/s1/messages?wait=false`, body)).status, 202)
      const other = yield* ask("POST", `${at}/s1/messages?wait=false`, { ...body, content: "that" })
      assert.deepStrictEqual([other.status, other.body.error.code], [409, "id_taken"])
      const events = yield* end
      assert.strictEqual(events.at(-1)?._tag, "ChatCompleted")
      assert.lengthOf(asked.filter((texts) => texts.includes("not that")), 1)
      assert.deepStrictEqual(asked.at(-1), ["go"])
      const told = yield* fate("m1")
      assert.deepStrictEqual([told.became, typeof told.stepIndex], ["delivered", "number"])
      // A repeat behind the end is the same message, and its sender reads the run that it was for.
      assert.strictEqual((yield* ask("POST", `${at}/s1/messages?wait=false`, body)).status, 202)
    }).pipe(Effect.scoped))

  it.live("the sender of a message to a sub-agent reads the active run to its end", () =>
    Effect.gen(function*() {
      const { end, site } = yield* running
      const sender = yield* Effect.promise(() =>
        site.open("POST", `${at}/s1/messages`, { content: "not that", id: "m1", mode: "follow", to: "c" })
      )
      assert.strictEqual(sender.status, 200)
      const again = yield* Effect.promise(() =>
        site.open("POST", `${at}/s1/messages`, { content: "nor that", id: "m2", mode: "steer", to: "c" })
      )
      yield* end
      for (const reader of [sender, again]) {
        const seen = eventsOf(yield* Effect.promise(() => reader.end()))
        assert.strictEqual(seen.at(-1)?._tag, "ChatCompleted")
      }
    }).pipe(Effect.scoped))

  it.live("a path without an active run is refused, and a malformed path is refused with the field's name", () =>
    Effect.gen(function*() {
      const { ask, end, fate, isOver } = yield* running
      const send = (more: object) => ask("POST", `${at}/s1/messages?wait=false`, { content: "no", id: "m", ...more })
      for (const to of ["", "/", "c/", "run~c", "%zz", 7, {}, null, ["c"]]) {
        const { body, status } = yield* send({ mode: "steer", to })
        assert.deepStrictEqual([status, body.error.code], [400, "invalid_body"], String(to))
        assert.include(body.error.message, "to: must be a call path", String(to))
      }
      for (const more of [{ to: "c" }, { to: "c", mode: "next" }, { to: "c", mode: "steer", otherwise: "next" }]) {
        const { body, status } = yield* send(more)
        assert.deepStrictEqual([status, body.error.code], [400, "invalid_body"])
        assert.match(body.error.message, /\b(to|otherwise): must be/)
      }
      for (const [index, to] of ["none", "__proto__", "c%2F0"].entries()) {
        const { body, status } = yield* send({ id: `m${index}`, mode: "steer", to })
        assert.deepStrictEqual([status, body.error.code], [409, "refused"], to)
        assert.deepStrictEqual(yield* fate(`m${index}`), { id: `m${index}`, became: "refused", reason: "finished" })
      }
      yield* Deferred.succeed(isOver, undefined)
      yield* end
      const { body, status } = yield* send({ id: "late", mode: "steer", to: "c" })
      assert.deepStrictEqual([status, body.error.code], [409, "refused"])
      const read = yield* ask("GET", `${at}/s1/messages/m`)
      assert.strictEqual(read.status, 404)
    }).pipe(Effect.scoped))

  it.live("G51: a message to a sub-agent is either withdrawn once or in its run", () =>
    Effect.gen(function*() {
      const { ask, asked, end, fate, isOver } = yield* running
      yield* ask("POST", `${at}/s1/messages?wait=false`, { content: "not that", id: "m1", mode: "follow", to: "c" })
      const first = yield* ask("DELETE", `${at}/s1/messages/m1`)
      assert.deepStrictEqual(first.body, { withdrawn: true, id: "m1", became: "withdrawn" })
      assert.propertyVal((yield* ask("DELETE", `${at}/s1/messages/m1`)).body, "withdrawn", false)
      yield* Deferred.succeed(isOver, undefined)
      yield* end
      assert.propertyVal(yield* fate("m1"), "became", "withdrawn")
      assert.isFalse(asked.some((texts) => texts.includes("not that")))
    }).pipe(Effect.scoped))
})
