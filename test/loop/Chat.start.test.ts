/**
 * A run with a handle: it begins at once, reads itself, is stopped as a whole or call by call, and ends with its scope.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Collector, type Event, Inbox, Message, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import * as v8 from "node:v8"
import * as vm from "node:vm"
import { defectOf, elapsed } from "../support/runs.ts"

const { finish, text, toolCall } = Script

const shared = { concurrency: "shared" } as const

const held = <const Name extends string>(name: Name, millis: number, options: object = {}) =>
  Tool.make(name, { parameters: {}, ...shared, ...options, handler: () => Effect.as(Effect.sleep(millis), name) })

const model = (...names: ReadonlyArray<string>) =>
  Script.layer([
    [...names.map((name, index) => toolCall(`c${index}`, name)), finish("tool_calls")],
    [text("Done."), finish("stop")]
  ])

const answersOf = ({ thread }: Event.ChatResult) =>
  thread.messages.flatMap(({ content, role }) => role === "tool" ? [content] : [])

const resultOf = (events: ReadonlyArray<Event.Event>) =>
  Collector.toChatResult(Collector.applyAll(Collector.initial(), events))

const cancelled = (name: string, detail: string) =>
  JSON.stringify({ error: `tool error (${name}): cancelled: ${detail}`, code: "cancelled" })

/** The facts of a result that do not depend on its ids. */
const factsOf = ({ finalResponse, outcome, thread }: Event.ChatResult) => ({
  outcome,
  messages: thread.messages,
  text: finalResponse?.outputText
})

describe("Chat.start", () => {
  it.effect("R-570: a run begins at once without a reader, and its result equals the result of Chat.run", () =>
    Effect.gen(function*() {
      const options = { tools: [held("short", 200)] }
      const run = yield* Chat.start("Go", options).pipe(Effect.provide(model("short")))
      yield* TestClock.adjust(200)
      const result = yield* run.result
      const other = yield* elapsed(Effect.provide(Chat.run("Go", options), model("short")))
      assert.deepStrictEqual(factsOf(result), factsOf(other.value))
      assert.deepStrictEqual(factsOf(yield* run.result), factsOf(result), "it is awaited again")
    }))

  it.effect("R-570: the given or own inbox of a handle reaches the run until its end", () =>
    Effect.gen(function*() {
      for (const given of [undefined, Inbox.make()]) {
        const options = { tools: [held("short", 200)], ...(given === undefined ? {} : { inbox: given }) }
        const run = yield* Chat.start("Go", options).pipe(Effect.provide(model("short")))
        if (given !== undefined) assert.strictEqual(run.inbox, given)
        const sent = yield* run.inbox.steer("not that")
        yield* TestClock.adjust(200)
        const { thread } = yield* run.result
        assert.deepStrictEqual(thread.messages.map(({ role }) => role), [
          "user",
          "assistant",
          "tool",
          "user",
          "assistant"
        ])
        assert.propertyVal(yield* sent.fate, "_tag", "Delivered")
        const late = yield* run.inbox.steer("too late")
        assert.deepStrictEqual(yield* late.fate, { _tag: "Refused", reason: "finished" })
      }
    }))

  it.effect("R-570: a handle's events equal those of Chat.stream for a concurrent and for a late reader", () =>
    Effect.gen(function*() {
      const options = { tools: [held("short", 200)], requestId: "r0" }
      const streamed = yield* elapsed(
        Stream.runCollect(Stream.provide(Chat.stream("Go", options), model("short")))
      )
      const run = yield* Chat.start("Go", options).pipe(Effect.provide(model("short")))
      const read = yield* elapsed(Stream.runCollect(run.events))
      assert.deepStrictEqual(read.value, streamed.value)
      const late = yield* Chat.start("Go", options).pipe(Effect.provide(model("short")))
      yield* TestClock.adjust(200)
      yield* late.result
      assert.deepStrictEqual(yield* Stream.runCollect(late.events), streamed.value)
      assert.deepStrictEqual(yield* Stream.runCollect(late.events), [], "each event is read once")
    }))

  it.effect("R-570: Chat.start fails when the run cannot start", () =>
    Effect.gen(function*() {
      const invalid = { messages: [Message.tool("c0", "an answer to nothing")] } as never
      const exit = yield* Effect.exit(Effect.scoped(Effect.provide(Chat.start(invalid, {}), model())))
      assert.isTrue(Exit.isFailure(exit))
      assert.instanceOf(
        Exit.isFailure(exit) ? (exit.cause.reasons[0] as any)?.error : undefined,
        Thread.ValidationError
      )
    }))

  it.effect("R-570: a later failure fails the result and the events", () =>
    Effect.gen(function*() {
      const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.fail("no") })
      const onToolError = () => Effect.succeed(Tool.ErrorDecision.fail("the run fails"))
      const run = yield* Chat.start("Go", { tools: [broken], onToolError }).pipe(Effect.provide(model("broken")))
      assert.deepStrictEqual(yield* Effect.exit(run.result), Exit.fail("the run fails"))
      assert.deepStrictEqual(yield* Effect.exit(Stream.runDrain(run.events)), Exit.fail("the run fails"))
    }))

  it.effect("R-570: closing the scope stops handlers, ends the events and interrupts the result", () =>
    Effect.gen(function*() {
      let stopped = 0
      const slow = Tool.make("slow", {
        parameters: {},
        handler: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => void stopped++))
      })
      const scope = yield* Scope.make()
      const run = yield* Chat.start("Go", { tools: [slow] }).pipe(Effect.provide(model("slow")), Scope.provide(scope))
      const reading = yield* Effect.forkChild(Stream.runCollect(run.events), { startImmediately: true })
      yield* TestClock.adjust(10)
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(stopped, 1)
      const events = yield* Fiber.join(reading)
      assert.isFalse(events.some(({ _tag }) => _tag === "ChatCompleted"))
      const exit = yield* Effect.exit(run.result)
      assert.isTrue(Exit.hasInterrupts(exit))
      assert.isFalse(yield* run.cancelCall("c0"))
    }))

  it.effect("R-570: cancel stops the run softly, and the model reads the reason", () =>
    Effect.gen(function*() {
      for (const [reason, cause] of [["enough", "enough"], [undefined, "Execution cancelled by parent abort signal"]]) {
        const run = yield* Chat.start("Go", { tools: [held("long", 5_000)] }).pipe(Effect.provide(model("long")))
        yield* TestClock.adjust(10)
        yield* run.cancel(reason)
        yield* run.cancel("again")
        const result = yield* run.result
        assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "cancel" })
        assert.deepStrictEqual(answersOf(result), [cancelled("long", `interrupted: ${cause}`)])
        assert.deepStrictEqual(check(yield* Stream.runCollect(run.events)), [])
      }
    }))

  it.effect("R-570: the cancel option stops a started run like any run", () =>
    Effect.gen(function*() {
      const { value } = yield* elapsed(Effect.scoped(
        Effect.flatMap(
          Chat.start("Go", { tools: [held("long", 5_000)], cancel: Effect.sleep(10) }),
          (run) => run.result
        ).pipe(Effect.provide(model("long")))
      ))
      assert.deepStrictEqual(value.outcome, { _tag: "Cancelled", reason: "cancel" })
    }))

  it.effect("R-570: a run started by a handler ends when its outer run is stopped", () =>
    Effect.gen(function*() {
      const inner = Tool.make("inner", {
        parameters: {},
        interrupt: "block",
        handler: () =>
          Effect.scoped(Effect.gen(function*() {
            const run = yield* Effect.provide(Chat.start("Go", { tools: [held("long", 5_000)] }), model("long"))
            return (yield* run.result).outcome
          }))
      })
      const { at, value } = yield* elapsed(
        Effect.provide(Chat.run("Go", { tools: [inner], cancel: Effect.sleep(10) }), model("inner"))
      )
      assert.deepStrictEqual(answersOf(value), [JSON.stringify({ _tag: "Cancelled", reason: "cancel" })])
      assert.strictEqual(at, 10)
    }))

  it.effect("R-570: a cancel reason that is not a string is a defect", () =>
    Effect.gen(function*() {
      const run = yield* Chat.start("Go", {}).pipe(Effect.provide(model()))
      for (const call of [run.cancel(1 as never), run.cancelCall("c0", {} as never)]) {
        assert.include(String(yield* defectOf(call)), "the reason must be a string")
      }
    }))
})

describe("Chat.Handle.cancelCall", () => {
  it.effect("G75, G76, G77: cancelCall stops one call once by its id, and the other calls keep running", () =>
    Effect.gen(function*() {
      const options = { tools: [held("long", 5_000), held("short", 200)] }
      const run = yield* Chat.start("Go", options).pipe(Effect.provide(model("long", "short")))
      yield* TestClock.adjust(10)
      const told: Array<boolean> = []
      for (const path of ["c9", "", "c0/c1", "r0~c0", "%", "c0", "c0"]) {
        told.push(yield* run.cancelCall(path, "not that"))
      }
      assert.deepStrictEqual(told, [false, false, false, false, false, true, false])
      yield* TestClock.adjust(200)
      const result = yield* run.result
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(answersOf(result), [cancelled("long", "interrupted: not that"), "short"])
      assert.isFalse(yield* run.cancelCall("c1"))
      assert.deepStrictEqual(check(yield* Stream.runCollect(run.events)), [])
    }))

  it.effect("G75: cancelCall stops a call of a nested run at any depth by its path", () =>
    Effect.gen(function*() {
      const within = (id: string, tool: Tool.Any) =>
        Tool.fromChat("inner", {
          parameters: {},
          chat: () =>
            Stream.provide(
              Chat.stream("Inside", { tools: [tool as ReturnType<typeof held>] }),
              Script.layer([
                [toolCall(id, tool.name), toolCall(`${id}x`, tool.name), finish("tool_calls")],
                [text(`Inside ${id}.`), finish("stop")]
              ])
            )
        })
      const deep = within("a/0", within("b0", held("long", 5_000)))
      const run = yield* Chat.start("Go", { tools: [deep, held("short", 200)] }).pipe(
        Effect.provide(model("inner", "short"))
      )
      yield* TestClock.adjust(10)
      const told: Array<boolean> = []
      for (const path of ["c0/b0", "c0/a/0/b0", "c0/a%2F0/b0", "c0/a%2F0/b0", "c0/a%2F0x"]) {
        told.push(yield* run.cancelCall(path))
      }
      assert.deepStrictEqual(told, [false, false, true, false, true])
      yield* TestClock.adjust(5_000)
      assert.deepStrictEqual(answersOf(yield* run.result), ["Inside a/0.", "short"])
    }))
})

/** A model that says a text in pieces, and what it does before its last event. */
const speaking = (pieces: number, before: Effect.Effect<void>) =>
  Layer.succeed(Adapter.Adapter, {
    stream: () =>
      Stream.range(1, pieces).pipe(
        Stream.map((index): Event.AdapterEvent => ({ _tag: "TextDelta", id: null, delta: `word ${index} ` })),
        Stream.rechunk(1),
        Stream.concat(Stream.fromEffectDrain(before)),
        Stream.concat(Stream.make<ReadonlyArray<Event.AdapterEvent>>(...finishing))
      )
  })

const finishing: ReadonlyArray<Event.AdapterEvent> = [
  { _tag: "MessageCompleted", message: null, finishReason: "stop", usage: null } as never
]

const collect = (): number => {
  v8.setFlagsFromString("--expose-gc")
  const gc: () => void = vm.runInNewContext("gc")
  gc()
  gc()
  return process.memoryUsage().heapUsed
}

describe("G78: a reader that never reads", () => {
  it.live("G78: 100,000 unread deltas take at most 8 MB more, and the run ends", () =>
    Effect.gen(function*() {
      const pieces = 100_000
      const measured = (run: (options: object) => Effect.Effect<unknown, unknown, Adapter.Adapter>) =>
        Effect.gen(function*() {
          let heap = 0
          yield* Effect.provide(run({}), speaking(pieces, Effect.sync(() => void (heap = collect()))))
          return heap
        })
      const awaited = () => Effect.asVoid(Chat.run("Go"))
      const unread = () => Effect.scoped(Effect.flatMap(Chat.start("Go"), (run) => run.result))
      // The first run of each kind loads its code.
      for (const run of [awaited, unread]) yield* Effect.provide(run(), speaking(10, Effect.void))
      const before = yield* measured(awaited)
      const after = yield* measured(unread)
      assert.isAtMost((after - before) / 1_000_000, 8)
    }), 120_000)

  it.effect("G78: a late reader gets at most 1,024 deltas, the rest of each text as one delta, and folds the whole result", () =>
    Effect.gen(function*() {
      const run = yield* Chat.start("Go").pipe(Effect.provide(speaking(5_000, Effect.void)))
      const result = yield* run.result
      const events = yield* Stream.runCollect(run.events)
      assert.isAtMost(events.length, 1_024 + 8)
      const said = events.flatMap((event) => event._tag === "TextDelta" ? [event.delta] : []).join("")
      assert.strictEqual(said, Array.from({ length: 5_000 }, (_, index) => `word ${index + 1} `).join(""))
      assert.deepStrictEqual(factsOf(resultOf(events)), factsOf(result))
    }))

  it.effect("G78: texts of several replies stay apart and keep their order with reasoning", () =>
    Effect.gen(function*() {
      const many = (word: string) => Array.from({ length: 2_000 }, (_, index) => text(`${word} ${index} `))
      const replies = Script.layer([
        [...many("one"), toolCall("c0", "short"), finish("tool_calls")],
        [...many("two"), Script.reasoning("why"), ...many("three"), finish("stop")]
      ])
      const run = yield* Chat.start("Go", { tools: [held("short", 10)] }).pipe(Effect.provide(replies))
      yield* TestClock.adjust(10)
      const result = yield* run.result
      const events = yield* Stream.runCollect(run.events)
      assert.deepStrictEqual(check(events), [])
      assert.deepStrictEqual(factsOf(resultOf(events)), factsOf(result))
      const said = events.flatMap((event) =>
        event._tag === "TextDelta" || event._tag === "ReasoningDelta" ? [event.delta.split(" ", 1)[0]] : [event._tag]
      ).slice(-12)
      assert.deepStrictEqual(said.filter((word) => word === "two" || word === "why" || word === "three"), [
        "two",
        "why",
        "three"
      ])
    }))

  it.effect("G78: a late reader gets the last progress of each call, marked missed, within the bound", () =>
    Effect.gen(function*() {
      const moving = Tool.make("moving", {
        parameters: {},
        ...shared,
        handler: (_, call) =>
          Effect.forEach(
            Array.from({ length: 3_000 }, (_, index) => index),
            (index) => Effect.andThen(call.progress(index), Effect.sleep(1)),
            { discard: true }
          )
      })
      const run = yield* Chat.start("Go", { tools: [moving] }).pipe(Effect.provide(model("moving", "moving")))
      yield* TestClock.adjust(3_000)
      const result = yield* run.result
      const events = yield* Stream.runCollect(run.events)
      assert.isAtMost(events.length, 1_024 + 16)
      for (const id of ["c0", "c1"]) {
        const last = events.findLast((event) => event._tag === "ToolProgress" && event.id === id)
        assert.deepStrictEqual(
          last,
          { _tag: "ToolProgress", id, name: "moving", progress: 2_999, missed: true } as never
        )
      }
      assert.deepStrictEqual(factsOf(resultOf(events)), factsOf(result))
    }))
})
