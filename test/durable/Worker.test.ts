/** A worker: what it runs, in which order, how it fails, and how it ends. */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Script } from "heddle/testing"
import { transcript } from "../support/scenarios.ts"
import { calling, done, tools } from "../support/sessions.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const journal = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.read(id))).map(({ record }) => record)
  })

const tagsOf = (id: string) => Effect.map(journal(id), (records) => records.map(({ _tag }) => _tag))

/** Lets time pass until a condition holds. */
const until = <E, R>(condition: Effect.Effect<boolean, E, R>) =>
  Effect.gen(function*() {
    for (let turn = 0; turn < 1000; turn++) {
      if (yield* condition) return
      yield* TestClock.adjust("200 millis")
      for (let step = 0; step < 10; step++) yield* Effect.yieldNow
    }
    assert.fail(`it does not come to: ${String(condition)}`)
  })

const statusOf = (id: string) => Effect.map(Session.open(id), ({ session }) => session.status)

const isFree = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const { owner } = yield* store.claim(id, "test", 1)
    yield* store.release(id, "test")
    return owner === "test"
  })

/** A model that says what was said to it, and how often it was asked. */
const echoing = Adapter.layer({
  stream: ({ messages }) => {
    const said = messages.findLast(({ role }) => role === "user")
    const text = `you said ${said === undefined ? "nothing" : Message.text(said)}`
    return Stream.make(
      { _tag: "MessageStarted", message: Message.assistant("") } as const,
      { _tag: "TextDelta", id: null, delta: text } as const,
      { _tag: "MessageCompleted", message: Message.assistant(text), finishReason: "stop", metadata: {} } as const
    )
  }
})

const memory = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  effect.pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

describe("a worker", () => {
  it.effect("a worker answers submitted messages in order and reports the end of each run", () =>
    memory(Effect.gen(function*() {
      const seen: Array<string> = []
      const worker = Worker.layer({
        run: () => ({}),
        onEvent: (id, event) => Effect.sync(() => void (event._tag === "ChatCompleted" && seen.push(id)))
      })
      yield* Session.submit("s", "one")
      const { id } = yield* Session.submit("s", "two")
      yield* Layer.build(Layer.provide(worker, echoing))
      yield* until(Effect.map(Session.open("s"), ({ session }) => session.thread.messages.length === 4))
      yield* Session.submit("t", "three")
      yield* until(Effect.map(statusOf("t"), (status) => status === "completed"))
      const kept = yield* Session.open("s")
      assert.deepStrictEqual(transcript(kept.session.thread), [
        "user(one)",
        "assistant(you said one)",
        "user(two)",
        "assistant(you said two)"
      ])
      assert.notProperty(kept, "submitted")
      assert.deepStrictEqual(seen, ["s", "s", "t"])
      const started = (yield* journal("s")).filter((record) => record._tag === "RunStarted")
      assert.strictEqual(started[1]?.takes?.id, id)
      assert.isString(started[0]?.owner)
      assert.isTrue(yield* isFree("s"))
    })))

  it.effect("a worker continues a run when another process has settled its last waiting call", () =>
    memory(Effect.gen(function*() {
      const model = Script.layer([calling("ask:q", "pay:p"), done])
      yield* Session.submit("s", "go")
      yield* Layer.build(Layer.provide(Worker.layer({ run: () => ({ tools }) }), model))
      yield* until(Effect.map(statusOf("s"), (status) => status === "awaiting_user"))
      yield* until(isFree("s"))
      const kept = yield* Session.open("s")
      const one = yield* Session.keep(kept, (session) => Session.answer(session, "q", "Oslo"))
      yield* TestClock.adjust("5 seconds")
      assert.strictEqual(yield* statusOf("s"), "awaiting_tools")
      yield* Session.keep(one, (session) => Session.approve(session, "p"))
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
      const { session } = yield* Session.open("s")
      assert.deepStrictEqual(transcript(session.thread).at(-1), "assistant(done)")
    })))

  it.effect("a worker resumes an interrupted run and marks repeated events as replayed", () =>
    memory(Effect.gen(function*() {
      let ran = 0
      const count = Tool.make("count", { parameters: {}, handler: () => Effect.sync(() => ++ran) })
      let isSlow = true
      const wait = Tool.make("wait", {
        parameters: {},
        readOnly: true,
        handler: () => isSlow ? Effect.never : Effect.void
      })
      const given = [count, wait]
      const opened = yield* Session.open("s")
      const cut = yield* Session.keep(opened, (session) =>
        Effect.provide(
          Session.reply(session, "go", { tools: given }),
          Script.layer([calling("count:c", "wait:w"), done])
        )).pipe(
          Effect.forkChild
        )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallEnded")))
      yield* Fiber.interrupt(cut)
      isSlow = false
      const replayed: Array<string> = []
      const worker = Worker.layer({
        run: () => ({ tools: given }),
        onEvent: (_, event) =>
          Effect.sync(() => void ("replayed" in event && event.replayed === true && replayed.push(event._tag)))
      })
      yield* Layer.build(Layer.provide(worker, Script.layer([done])))
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
      assert.strictEqual(ran, 1)
      assert.include(replayed, "MessageStarted")
    })))

  it.effect("a worker honors a stop of the run it drives", () =>
    memory(Effect.gen(function*() {
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
      yield* Session.submit("s", "go")
      yield* Layer.build(
        Layer.provide(Worker.layer({ run: () => ({ tools: [wait] }) }), Script.layer([calling("wait:c"), done]))
      )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      const { ended } = yield* Session.stop("s")
      const report = yield* Effect.forkChild(ended)
      yield* until(Effect.sync(() => report.pollUnsafe() !== undefined))
      assert.deepStrictEqual((yield* Fiber.join(report)).stopped, ["c"])
      assert.strictEqual(yield* statusOf("s"), "stopped")
    })))

  it.effect("a worker retries a failed run with growing pauses and loses no message, and other sessions continue", () =>
    memory(Effect.gen(function*() {
      const tries: Array<number> = []
      let isAway = true
      const failing = Adapter.map((adapter) => ({
        ...adapter,
        stream: (request) =>
          Stream.unwrap(Effect.clockWith((clock) =>
            Effect.sync(() => {
              const isFirst = request.messages.some((message) => Message.text(message) === "fails")
              if (isFirst) tries.push(clock.currentTimeMillisUnsafe())
              return isFirst && isAway
                ? Stream.fail(new Adapter.AdapterError({ reason: "network_error", detail: "away" }))
                : adapter.stream(request)
            })
          ))
      }))
      const lines: Array<string> = []
      const logger = Logger.layer([Logger.make(({ message }) => void lines.push(String(message)))])
      yield* Session.submit("s", "fails")
      yield* Layer.build(
        Worker.layer({ run: () => ({}), term: "10 seconds" }).pipe(
          Layer.provide(Layer.provide(failing, echoing)),
          Layer.provide(logger)
        )
      )
      yield* until(Effect.sync(() => tries.length >= 4))
      const pauses = tries.slice(1).map((at, index) => at - tries[index]!)
      for (const [index, pause] of pauses.entries()) assert.isAtLeast(pause, 200 * 2 ** index)
      assert.include(lines.join("\n"), "session \"s\" failed and is tried again")
      yield* Session.submit("t", "works")
      yield* until(Effect.map(statusOf("t"), (status) => status === "completed"))
      assert.deepStrictEqual((yield* Session.open("s")).submitted?.map(({ message }) => Message.text(message)), [
        "fails"
      ])
      isAway = false
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
      const { session } = yield* Session.open("s")
      assert.deepStrictEqual(transcript(session.thread), ["user(fails)", "assistant(you said fails)"])
    })))

  it.effect("a message waits until the calls before it are settled, and a session in error continues with the next message", () =>
    memory(Effect.gen(function*() {
      const broken = [Script.text("so"), Script.streamError("network_error")]
      const model = Script.layer([calling("pay:p"), done, broken, done])
      yield* Session.submit("s", "go")
      yield* Layer.build(Layer.provide(Worker.layer({ run: () => ({ tools }), term: 5000 }), model))
      yield* until(Effect.map(statusOf("s"), (status) => status === "awaiting_tools"))
      yield* Session.submit("s", "and?")
      yield* TestClock.adjust("20 seconds")
      const waiting = yield* Session.open("s")
      assert.strictEqual(waiting.submitted?.length, 1)
      yield* Session.keep(waiting, (session) => Session.approve(session, "p"))
      yield* until(Effect.map(Session.open("s"), ({ submitted }) => submitted === undefined))
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
      yield* Session.submit("s", "break")
      yield* until(Effect.map(statusOf("s"), (status) => status === "error"))
      yield* Session.submit("s", "go on")
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
    })))

  it.effect("a worker drives at most `concurrency` sessions at once and the other sessions after them", () =>
    memory(Effect.gen(function*() {
      const go = yield* Deferred.make<void>()
      let now = 0
      let most = 0
      const work = Tool.make("work", {
        parameters: {},
        handler: () =>
          Effect.acquireUseRelease(
            Effect.sync(() => {
              most = Math.max(most, ++now)
            }),
            () => Deferred.await(go),
            () => Effect.sync(() => now--)
          )
      })
      const ids = Array.from({ length: 9 }, (_, index) => `s${index}`)
      const model = Adapter.layer({
        stream: ({ messages }) => {
          const calls = messages.at(-1)?.role === "tool" ? [] : [Message.toolCall("c", "work")]
          const reply: ReadonlyArray<Event.AdapterEvent> = [
            { _tag: "MessageStarted", message: Message.assistant("") },
            ...calls.map(({ arguments: args, id, name }) =>
              ({ _tag: "ToolCallCompleted", id, name, arguments: args, rawArguments: "{}" }) as const
            ),
            { _tag: "MessageCompleted", message: Message.assistant("", calls), finishReason: "stop", metadata: {} }
          ]
          return Stream.fromIterable(reply)
        }
      })
      for (const id of ids) yield* Session.submit(id, "go")
      yield* Layer.build(Layer.provide(Worker.layer({ run: () => ({ tools: [work] }), concurrency: 4 }), model))
      yield* until(Effect.sync(() => now === 4))
      yield* TestClock.adjust("2 seconds")
      assert.strictEqual(most, 4)
      yield* Deferred.succeed(go, undefined)
      yield* until(Effect.map(Effect.forEach(ids, statusOf), (all) => all.every((status) => status === "completed")))
      assert.strictEqual(most, 4)
    })))

  it.effect("a worker continues after its store was away", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let isAway = true
      const leaving = Layer.succeed(Session.Store, {
        ...store,
        claimUnfinished: (...args: Parameters<typeof store.claimUnfinished>) =>
          Effect.suspend(() =>
            isAway
              ? new Journal.StoreError({ reason: "unavailable", operation: "claimUnfinished" })
              : store.claimUnfinished(...args)
          )
      })
      yield* Session.submit("s", "go")
      yield* Layer.build(Worker.layer({ run: () => ({}) }).pipe(Layer.provide([leaving, echoing]))).pipe(
        Effect.provide(Logger.layer([]))
      )
      yield* TestClock.adjust("5 seconds")
      isAway = false
      yield* until(Effect.map(statusOf("s"), (status) => status === "completed"))
    })))

  it.effect("a session removed at the end of its run is not opened again", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      const lines: Array<string> = []
      const logger = Logger.layer([Logger.make(({ message }) => void lines.push(String(message)))])
      yield* Session.submit("s", "go")
      let isOver = false
      const onEnd = () => Effect.andThen(Effect.orDie(store.delete("s")), Effect.sync(() => (isOver = true)))
      const built = yield* Layer.build(
        Layer.provide(Worker.layer({ run: () => ({}), onEnd: () => Effect.asVoid(onEnd()) }), [echoing, logger])
      )
      const worker = Context.get(built, Worker.Worker)
      yield* until(Effect.sync(() => isOver && !worker.drives("s")))
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual([yield* store.version("s"), lines], [0, []])
    })))

  it.effect("Worker.layer refuses invalid options with a message that names the option", () =>
    memory(Effect.gen(function*() {
      for (const options of [{ concurrency: 0 }, { poll: 0 }, { term: "Infinity" as const }]) {
        const exit = yield* Effect.exit(
          Layer.build(Layer.provide(Worker.layer({ run: () => ({}), ...options }), echoing))
        )
        assert.match(String(exit), /Worker\.layer: (concurrency|poll|term) must be/)
      }
    })))
})
