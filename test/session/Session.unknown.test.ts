/** Calls that wait for a verdict about their effect (`afterCrash: "ask"`): no answer that they get claims that they did not run. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Event, Journal, type Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"

const pay = Tool.make("pay", {
  parameters: {},
  afterCrash: "ask",
  handler: (_, call) => Effect.andThen(call.progress("sending"), Effect.never)
})
const end = Tool.make("end", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", 1)) })
const wait = Tool.make("wait", {
  parameters: {},
  readOnly: true,
  handler: (_, call) => Effect.andThen(call.progress("waiting"), Effect.never)
})

/** The interrupted session after `pay`, beside which another tool is called, had started. */
const interrupted = (other: Tool.Any) => {
  const calls = [Script.toolCall("c0", "pay"), Script.toolCall("c1", other.name), Script.finish("tool_calls")]
  const model = Script.layer([calls])
  return Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const options = { tools: [pay, other], maxConcurrency: 1 }
    yield* Session.keepStream(opened, (session) => Session.streamReply(session, "Pay", options)).pipe(
      Stream.takeUntil(({ _tag }) => _tag === "ToolProgress"),
      Stream.runDrain
    )
    return yield* Session.claim("s")
  }).pipe(Effect.provide(model))
}

const answerOf = (messages: ReadonlyArray<Message.Message>, id: string) =>
  String(messages.find(({ toolCallId }) => toolCallId === id)?.content)

const problems = Effect.gen(function*() {
  const store = yield* Session.Store
  const entries = yield* Stream.runCollect(store.read("s"))
  return Journal.check(entries.map(({ record }) => record))
})

const later = Script.layer([[Script.text("Done."), Script.finish("stop")]])

describe("a call that waits for a verdict about its effect", () => {
  it.effect("D-01: a call that waits for its verdict is answered as unknown where another call ends the run", () =>
    Effect.gen(function*() {
      const kept = yield* interrupted(end)
      const events: Array<Event.Event> = []
      yield* Session.streamResume(kept, { tools: [pay, end] }).pipe(
        Stream.runForEach((event) => Effect.sync(() => events.push(event)))
      )
      const { session } = yield* Session.open("s")
      assert.strictEqual(session.status, "completed")
      assert.include(answerOf(session.thread.messages, "c0"), "unknown_effect")
      const tails = events.filter((event) => event._tag === "ToolResultEncoded" && event.id === "c0")
      assert.deepStrictEqual(tails.map((event) => "settled" in event && event.settled), [true])
      assert.deepStrictEqual(yield* problems, [])
    }).pipe(Effect.provide([later, Session.Store.layerMemory]), Effect.scoped))

  it.effect("D-01: afterCrash decides about a started call, also if its tool is idempotent or read-only", () =>
    Effect.gen(function*() {
      for (const declared of [{ idempotent: true }, { readOnly: true }, { idempotent: true, readOnly: true }]) {
        for (const afterCrash of ["ask", "report", "retry"] as const) {
          const attempts: Array<number> = []
          const again = Tool.make("pay", {
            parameters: {},
            afterCrash,
            ...declared,
            handler: (_, { attempt }) => Effect.sync(() => attempts.push(attempt))
          })
          const wait_ = Tool.make("wait", { parameters: {}, readOnly: true, handler: () => Effect.succeed("waited") })
          const resumed = yield* Effect.gen(function*() {
            return yield* Session.resume(yield* interrupted(wait), { tools: [again, wait_] })
          }).pipe(Effect.provide([later, Session.Store.layerMemory]), Effect.scoped)
          assert.deepStrictEqual(attempts, afterCrash === "retry" ? [2] : [])
          assert.deepStrictEqual(resumed.session.suspensions.map(({ id }) => id), afterCrash === "ask" ? ["c0"] : [])
        }
      }
    }))

  it.effect("D-01: a call approved to run again is answered as unknown where its run is abandoned", () =>
    Effect.gen(function*() {
      const kept = yield* interrupted(wait)
      const options = { tools: [pay, wait] }
      yield* Session.streamResume(kept, options).pipe(
        Stream.takeUntil(({ _tag }) => _tag === "ToolProgress"),
        Stream.runDrain
      )
      const again = { ...kept, ...(yield* Session.open("s")) }
      const approved = yield* Session.keep(again, (session) => Session.approve(session, "c0"))
      yield* Session.abandon(approved)
      const { session } = yield* Session.open("s")
      assert.include(answerOf(session.thread.messages, "c0"), "unknown_effect")
      assert.deepStrictEqual(yield* problems, [])
    }).pipe(Effect.provide([later, Session.Store.layerMemory]), Effect.scoped))

  for (const changed of ["waits", "was approved"] as const) {
    it.effect(`D-02: a call keeps its key and its attempts where the program changes the session while the call ${changed}`, () =>
      Effect.gen(function*() {
        const attempts: Array<readonly [key: string, attempt: number]> = []
        const again = Tool.make("pay", {
          parameters: {},
          afterCrash: "ask",
          handler: (_, { attempt, idempotencyKey }) => Effect.sync(() => attempts.push([idempotencyKey, attempt]))
        })
        const kept = yield* interrupted(wait)
        const key = kept.interrupted?.calls[0]?.idempotencyKey ?? ""
        const wait_ = Tool.make("wait", { parameters: {}, readOnly: true, handler: () => Effect.succeed("waited") })
        const tools = [again, wait_]
        const resumed = yield* Session.resume(kept, { tools })
        const note = (session: Session.Session) => ({ ...session, metadata: { note: 1 } })
        const approve = (session: Session.Session) => Session.approve(session, "c0")
        const [first, second] = changed === "waits"
          ? [note, (session: Session.Session) => session]
          : [(session: Session.Session) => session, note]
        const approved = yield* Session.keep(resumed, (session) => approve(first(session)))
        yield* Session.keep(approved, (session) => Session.continue(second(session), null, { tools }))
        assert.deepStrictEqual(attempts, [[key, 2]])
        assert.deepStrictEqual(yield* problems, [])
      }).pipe(Effect.provide([later, Session.Store.layerMemory]), Effect.scoped))
  }

  for (const way of ["abandon", "reply", "stop"] as const) {
    it.effect(`D-01: a waiting call is answered as unknown after ${way}, where its run is interrupted again`, () =>
      Effect.gen(function*() {
        const kept = yield* interrupted(wait)
        const options = { tools: [pay, wait] }
        yield* Session.streamResume(kept, options).pipe(
          Stream.takeUntil(({ _tag }) => _tag === "ToolProgress"),
          Stream.runDrain
        )
        const again = { ...kept, ...(yield* Session.open("s")) }
        assert.deepStrictEqual(again.interrupted?.calls.map(({ state }) => state), ["Waiting", "Started"])
        if (way === "abandon") yield* Session.abandon(again)
        else if (way === "reply") yield* Session.keep(again, (session) => Session.reply(session, "Well?", options))
        else {
          yield* Session.stop("s")
          yield* Session.resume({ ...kept, ...(yield* Session.open("s")) }, options)
        }
        const { session } = yield* Session.open("s")
        assert.deepStrictEqual(session.suspensions, [])
        assert.include(answerOf(session.thread.messages, "c0"), "unknown_effect")
        assert.deepStrictEqual(yield* problems, [])
      }).pipe(Effect.provide([later, Session.Store.layerMemory]), Effect.scoped))
  }
})
