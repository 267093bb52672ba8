/** The server and the page of the guide to a server of one's own. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as HttpRouter from "effect/http/HttpRouter"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import { Script } from "heddle/testing"
import * as Own from "./support/own.ts"

const { finish, text, toolCall } = Script

const server = Effect.promise(Own.server)

/** The guide's server as a function of requests, which a user with a cookie sends. */
const serve = (model: Layer.Layer<Adapter.Adapter>) =>
  Effect.gen(function*() {
    const app = Layer.provide(yield* server, model)
    const { dispose, handler } = HttpRouter.toWebHandler(app as never, { disableLogger: true })
    yield* Effect.addFinalizer(() => Effect.promise(dispose))
    const ask = (user: string, path: string, body?: unknown): Promise<Response> =>
      (handler as (request: Request) => Promise<Response>)(
        new Request(`http://localhost${path}`, {
          headers: { cookie: `user=${user}`, "content-type": "application/json" },
          ...(body === undefined
            ? {}
            : { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body) })
        })
      )
    const post = (path: string, body: unknown, user = "ann") =>
      Effect.promise(async () => (await ask(user, `/sessions/${path}`, body)).status)
    const list = (user = "ann") => Effect.promise(async () => (await ask(user, "/sessions")).json())
    return { ask, post, list }
  })

/** An event of the stream: the session, or an event of its run. */
interface Shown {
  readonly said: ReadonlyArray<{ readonly role: string; readonly text: string }>
  readonly waiting: ReadonlyArray<
    { readonly id: string; readonly run: string; readonly call: { readonly name: string } }
  >
  readonly _tag: string
  readonly delta: string
}

/** Reads the stream of a session. `until` returns the first event that fits, and all that were read on the way. */
const reader = (ask: (user: string, path: string) => Promise<Response>, id: string, user = "ann") =>
  Effect.gen(function*() {
    const { body } = yield* Effect.promise(() => ask(user, `/sessions/${id}/events`))
    const chunks = body!.pipeThrough(new TextDecoderStream()).getReader()
    yield* Effect.addFinalizer(() => Effect.promise(() => chunks.cancel()))
    let buffer = ""
    const next = async (): Promise<Shown> => {
      for (let end = buffer.indexOf("\n\n");; end = buffer.indexOf("\n\n")) {
        if (end < 0) buffer += (await chunks.read()).value ?? assert.fail("the stream has ended")
        else {
          const line = buffer.slice("data: ".length, end)
          buffer = buffer.slice(end + 2)
          return JSON.parse(line)
        }
      }
    }
    return (isSo: (event: Shown) => boolean) =>
      Effect.promise(async () => {
        const events = [await next()]
        while (!isSo(events.at(-1)!)) events.push(await next())
        return events
      })
  })

const isSession = (event: Shown) => event.said !== undefined
const asks = (event: Shown) => isSession(event) && event.waiting.length > 0
const saidIn = (events: ReadonlyArray<Shown>) => events.at(-1)!.said.map(({ role, text }) => `${role}: ${text}`)
const textIn = (events: ReadonlyArray<Shown>) => events.map(({ delta = "" }) => delta).join("")

/** A model whose reply is held behind a text. */
const held = (gate: Deferred.Deferred<void>, at: string, script: Parameters<typeof Script.make>[0]) =>
  Layer.unwrap(Effect.map(Script.make(script), ({ stream }) =>
    Adapter.layer({
      stream: (request) =>
        Stream.tap(
          stream(request),
          (event) => event._tag === "TextDelta" && event.delta === at ? Deferred.await(gate) : Effect.void
        )
    })))

describe("the guide to your own server", () => {
  it("the server has fewer than eighty lines", () => {
    assert.isBelow(Own.lines(), 80)
  })

  it.live("the server lists sessions, streams, asks for an approval, and continues after the approval", () =>
    Effect.gen(function*() {
      const { ask, list, post } = yield* serve(Script.layer([
        [toolCall("c1", "order"), finish("tool_calls")],
        [text("Ordered."), finish("stop")]
      ]))
      const read = yield* reader(ask, "s1")
      assert.deepStrictEqual(saidIn(yield* read(isSession)), [])
      assert.deepStrictEqual(yield* list(), [])
      assert.strictEqual(yield* post("s1/messages", { id: "m1", text: "Order" }), 202)
      const asked = yield* read(asks)
      assert.include(asked.map(({ _tag }) => _tag), "ToolApprovalRequested")
      assert.deepStrictEqual(saidIn(asked), ["user: Order", "assistant: "])
      assert.deepStrictEqual(yield* list(), [{ id: "s1", next: "wait", title: "Order" }])
      const [{ id, run } = assert.fail("nothing waits")] = asked.at(-1)!.waiting
      assert.strictEqual(yield* post("s1/messages", { id: "m2", text: "More" }), 409, "a message while a call waits")
      assert.strictEqual(
        yield* post("s1/verdicts", { id, run: "other", allow: true }),
        409,
        "a verdict for another run"
      )
      assert.strictEqual(yield* post("s1/verdicts", { id: "c9", run, allow: true }), 409, "a verdict for another call")
      assert.strictEqual(yield* post("s1/verdicts", { id, run, allow: true }), 202)
      const done = yield* read(isSession)
      assert.strictEqual(textIn(done), "Ordered.")
      assert.deepStrictEqual(saidIn(done), ["user: Order", "assistant: ", "assistant: Ordered."])
      assert.strictEqual(yield* post("s1/verdicts", { id, run, allow: false }), 409, "a verdict after the run")
      assert.deepStrictEqual(yield* list(), [{ id: "s1", next: "nothing", title: "Order" }])
    }).pipe(Effect.scoped))

  it.live("the server gives a reader that joins in the middle of a run all events once, and stops the run", () =>
    Effect.gen(function*() {
      const gate = yield* Deferred.make<void>()
      const { ask, post } = yield* serve(held(gate, "three ", [
        [text("First."), finish("stop")],
        [text("one "), text("two "), text("three "), text("four"), finish("stop")],
        [text("Last."), finish("stop")]
      ]))
      const first = yield* reader(ask, "s1")
      yield* first(isSession)
      yield* post("s1/messages", { id: "m1", text: "Hi" })
      yield* first(isSession)
      yield* post("s1/messages", { id: "m2", text: "Count" })
      assert.strictEqual(textIn(yield* first(({ delta }) => delta === "two ")), "one two ")
      const late = yield* reader(ask, "s1")
      const joined = yield* late(({ delta }) => delta === "two ")
      assert.deepStrictEqual(saidIn(joined.slice(0, 1)), ["user: Hi", "assistant: First.", "user: Count"])
      assert.strictEqual(textIn(joined), "one two ")
      assert.strictEqual(yield* post("s1/messages", { id: "m3", text: "More" }), 409, "a message during the run")
      assert.strictEqual(yield* post("s1/messages", { id: "m2", text: "Count" }), 202, "the same message again")
      assert.strictEqual(yield* post("s1/stop", {}), 202)
      for (const read of [first, late]) {
        const stopped = yield* read(isSession)
        assert.deepStrictEqual(saidIn(stopped).slice(0, 3), ["user: Hi", "assistant: First.", "user: Count"])
      }
      assert.strictEqual(yield* post("s1/messages", { id: "m4", text: "And now?" }), 202)
      for (const read of [first, late]) assert.strictEqual(saidIn(yield* read(isSession)).at(-1), "assistant: Last.")
    }).pipe(Effect.scoped))

  it.live("the server shows a user nothing of another user, and refuses malformed bodies", () =>
    Effect.gen(function*() {
      const { ask, list, post } = yield* serve(Script.layer([[toolCall("c1", "order"), finish("tool_calls")]]))
      yield* post("s1/messages", { id: "m1", text: "Order" })
      const read = yield* reader(ask, "s1")
      const [{ id, run } = assert.fail("nothing waits")] = (yield* read(asks)).at(-1)!.waiting
      assert.deepStrictEqual(yield* list("bob"), [])
      const other = yield* reader(ask, "s1", "bob")
      assert.deepStrictEqual(saidIn(yield* other(isSession)), [])
      assert.strictEqual(yield* post("s1/verdicts", { id, run, allow: true }, "bob"), 409)
      assert.strictEqual(yield* post("s1/verdicts", { id, run, allow: true }, "ann:s1"), 409)
      for (const body of ["no JSON", {}, { id: 1, text: "Hi" }, { id: "m2", text: { role: "system" } }]) {
        assert.strictEqual(yield* post("s1/messages", body), 400, JSON.stringify(body))
      }
      assert.deepStrictEqual(yield* list("bob"), [])
    }).pipe(Effect.scoped))
})
