/**
 * What a run has used: `usage` is its own, `totalUsage` has besides what the runs used that its handlers started, at any
 * depth and however they ended.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import {
  Adapter,
  Chat,
  Collector,
  type Event,
  Message,
  Policy,
  Response,
  Session,
  Step,
  Tool,
  ToolRunner
} from "heddle"
import { Script } from "heddle/testing"
import type { ChatOptions } from "../support/scenarios.ts"
import { travelled } from "../support/travelled.ts"
import { lastOf } from "../support/trees.ts"

const { delay, finish, text, toolCall, usage } = Script

type Turn = ReadonlyArray<Script.Entry>

/** A turn that answers, and one that makes a call, with the tokens they take. */
const answers = (tokens: number): Turn => [text("done"), usage({ totalTokens: tokens }), finish("stop")]

const calls = (tokens: number, ...names: ReadonlyArray<string>): Turn => [
  ...names.map((name, index) => toolCall(`${name}${index}`, name)),
  usage({ totalTokens: tokens }),
  finish("tool_calls")
]

type Handler = () => Effect.Effect<unknown, unknown>

/** A model that says what its reply has used by now, and then breaks, or says nothing more. */
const half = (rest: Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>) =>
  Adapter.layer({
    stream: () =>
      Stream.make<ReadonlyArray<Event.AdapterEvent>>(
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "RawChunk", chunk: { usage: { totalTokens: 5 } } }
      ).pipe(Stream.concat(rest))
  })

const tool = (name: string, handler: Handler) => Tool.make(name, { parameters: {}, handler })

/** A run that calls the tool `sub` once for 100 tokens, and answers for 10. */
const around = (handler: Handler, options: ChatOptions = {}) =>
  Chat.run("go", { ...options, tools: [tool("sub", handler)] }).pipe(
    Effect.provide(Script.layer([calls(100, "sub"), answers(10)]))
  )

/** A run of its own script within a handler. */
const inner = (turns: ReadonlyArray<Turn>, options: ChatOptions = {}) =>
  Chat.run("sub", options).pipe(Effect.provide(Script.layer(turns)))

const tokens = ({ totalUsage, usage }: Pick<Event.ChatResult, "totalUsage" | "usage">) => [
  usage?.totalTokens ?? null,
  totalUsage?.totalTokens ?? null
]

/** Runs under the test's clock, which moves on until they have ended. */
const overTime = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect)
    for (let turn = 0; turn < 40; turn++) yield* TestClock.adjust("1 second")
    return yield* Fiber.join(fiber)
  })

const ping = tool("ping", () => Effect.succeed("pong"))

/** Ways to run something within a handler, and what it takes of its own. */
const ways: ReadonlyArray<readonly [name: string, handler: Handler, tokens: number]> = [
  ["a run", () => inner([answers(5)]), 5],
  ["a run of several steps", () => inner([calls(5, "ping"), calls(6, "ping"), answers(7)], { tools: [ping] }), 18],
  ["a read stream", () => Stream.runDrain(Stream.provide(Chat.stream("sub"), Script.layer([answers(5)]))), 5],
  ["a step", () => Step.run("sub").pipe(Effect.provide(Script.layer([answers(5)]))), 5],
  ["a session", () => Session.start("sub").pipe(Effect.provide(Script.layer([answers(5)]))), 5],
  [
    "several sequential and concurrent runs",
    () =>
      Effect.andThen(
        inner([answers(1)]),
        Effect.all([inner([answers(2)]), inner([answers(4)])], { concurrency: "unbounded" })
      ),
    7
  ],
  [
    "a run in a handler of a run",
    () => inner([calls(1, "deep"), answers(2)], { tools: [tool("deep", () => inner([answers(4)]))] }),
    7
  ],
  [
    "a batch whose handler starts a run",
    () => ToolRunner.run([{ id: "b", name: "deep" }], [tool("deep", () => inner([answers(4)]))]),
    4
  ],
  [
    "a run with a structured answer",
    () => inner([answers(1), answers(2)], { structuredFinalize: true, responseFormat: { type: "json_object" } }),
    3
  ],
  ["an empty effect", () => Effect.void, 0]
]

/** Runs within a handler that come to no good end, and what they had used by then. */
const broken: ReadonlyArray<readonly [name: string, handler: Handler, tokens: number]> = [
  [
    "a run that fails in its second step",
    () => inner([calls(5, "ping"), [Script.preflightError("network_error")]], { tools: [ping] }),
    5
  ],
  [
    "a run whose reply breaks",
    () => Effect.provide(Chat.run("sub"), half(Stream.fail(new Adapter.AdapterError({ reason: "network_error" })))),
    5
  ],
  [
    "a run that is interrupted while the model speaks",
    () => Effect.timeout(Effect.provide(Chat.run("sub"), half(Stream.never)), "1 second"),
    5
  ],
  [
    "a run that is interrupted before a broken reply is asked for again",
    () => {
      const breaks = half(Stream.fail(new Adapter.AdapterError({ reason: "network_error" })))
      return Effect.timeout(
        Effect.provide(Chat.run("sub", { retryReply: Schedule.spaced("1 hour") }), breaks),
        "1 second"
      )
    },
    5
  ],
  ["a handler that fails after its run", () => Effect.andThen(inner([answers(5)]), Effect.fail("no")), 5],
  ["a handler that dies after its run", () => Effect.andThen(inner([answers(5)]), Effect.die("no")), 5],
  [
    "a run that is cancelled",
    () =>
      inner([calls(5, "ping"), [delay(60_000), ...answers(6)]], { tools: [ping], cancel: Effect.sleep("1 second") }),
    5
  ],
  [
    "a run that is interrupted by a timeout",
    () => Effect.timeout(inner([calls(5, "ping"), [delay(60_000), ...answers(6)]], { tools: [ping] }), "1 second"),
    5
  ],
  ["a run left by its reader", () =>
    Stream.runDrain(Stream.take(
      Stream.provide(
        Chat.stream("sub", { tools: [ping] }),
        Script.layer([calls(5, "ping"), answers(6)])
      ),
      8
    )), 5]
]

describe("Chat: usage", () => {
  for (const [name, handler, own] of ways) {
    it.effect(`M-17: the usage of ${name} within a handler counts in totalUsage and not in usage`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(tokens(yield* overTime(around(handler))), [110, 110 + own])
      }))
  }

  for (const [name, handler, own] of broken) {
    it.effect(`M-17: ${name} counts with the usage reported so far`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(tokens(yield* overTime(around(handler))), [110, 110 + own])
      }))
  }

  it.effect("M-17: a nested run stopped by its call's timeout or by the cancellation of its outer run counts in totalUsage", () =>
    Effect.gen(function*() {
      const handler = () => inner([calls(5, "ping"), [delay(60_000), ...answers(6)]], { tools: [ping] })
      assert.deepStrictEqual(tokens(yield* overTime(around(handler, { toolTimeout: "1 second" }))), [110, 115])
      const cancelled = yield* overTime(around(handler, { cancel: Effect.sleep("1 second") }))
      assert.strictEqual(cancelled.outcome._tag, "Cancelled")
      assert.deepStrictEqual(tokens(cancelled), [100, 105])
    }))

  it.effect("M-17: an abandoned handler counts with the usage of its runs so far", () =>
    Effect.gen(function*() {
      const handler = () =>
        Effect.andThen(
          inner([answers(5)]),
          Effect.uninterruptible(Effect.andThen(Effect.sleep("1 minute"), inner([answers(9)])))
        )
      const result = yield* overTime(around(handler, { toolTimeout: "1 second", grace: "1 second" }))
      assert.strictEqual(result.abandoned?.length, 1)
      assert.deepStrictEqual(tokens(result), [110, 115])
    }))

  for (
    const [preset, policy] of Object.entries({ standard: Policy.standard, allm: Policy.allm, falai: Policy.falai })
  ) {
    it.effect(`M-17: a tool made of a chat counts, streamed, awaited and in wire form (${preset})`, () =>
      Effect.gen(function*() {
        const agent = Tool.fromChat("agent", {
          parameters: {},
          chat: () => Stream.provide(Chat.stream("sub", { policy }), Script.layer([answers(5)]))
        })
        const script = [calls(100, "agent", "agent"), answers(10)]
        const options = { tools: [agent], policy }
        const awaited = yield* Chat.run("go", options).pipe(Effect.provide(Script.layer(script)))
        const events = yield* Stream.runCollect(Stream.provide(Chat.stream("go", options), Script.layer(script)))
        for (const result of [awaited, lastOf(events), Collector.fromWire("go", events.map(travelled))]) {
          assert.deepStrictEqual(tokens(result), [110, 120])
        }
      }))
  }

  it.effect("M-17: all figures are summed, and a figure that was never reported stays null", () =>
    Effect.gen(function*() {
      const child = () => inner([[text("a"), usage({ inputTokens: 1, totalCost: 0.5 }), finish("stop")]])
      const result = yield* around(child)
      assert.deepStrictEqual(result.totalUsage, Response.usage({ totalTokens: 110, inputTokens: 1, totalCost: 0.5 }))
      const none = yield* Chat.run("go").pipe(Effect.provide(Script.layer([[text("a"), finish("stop")]])))
      assert.deepStrictEqual(tokens(none), [null, null])
    }))

  it.effect("M-17: the observer sees the same total as the reader", () =>
    Effect.gen(function*() {
      const seen: Array<Event.Event> = []
      const result = yield* around(() => inner([answers(5)]), { onEvent: (event) => void seen.push(event) })
      assert.deepStrictEqual(lastOf(seen).totalUsage, result.totalUsage)
    }))
})

describe("Session: usage", () => {
  const pay = (handler: Handler) => Tool.make("pay", { parameters: {}, approval: true, handler })

  const approvedRun = (handler: Handler, seen: Array<Event.Event> = []) =>
    Effect.gen(function*() {
      const tools = [pay(handler)]
      const { session } = yield* Session.start("go", { tools }).pipe(Effect.provide(Script.layer([calls(100, "pay")])))
      const approved = yield* Session.approve(session, "pay0")
      return yield* Session.continue(approved, null, { tools, onEvent: (event) => void seen.push(event) }).pipe(
        Effect.provide(Script.layer([answers(10)]))
      )
    })

  it.effect("M-17: a session's result counts the usage of its handlers' runs", () =>
    Effect.gen(function*() {
      const { result } = yield* Session.start("go", { tools: [tool("sub", () => inner([answers(5)]))] }).pipe(
        Effect.provide(Script.layer([calls(100, "sub"), answers(10)]))
      )
      assert.deepStrictEqual(tokens(result), [110, 115])
    }))

  it.effect("M-17: a session's result counts the runs of approved calls, which run before the model is asked", () =>
    Effect.gen(function*() {
      const seen: Array<Event.Event> = []
      const { result } = yield* approvedRun(
        () => inner([calls(1, "deep"), answers(2)], { tools: [tool("deep", () => inner([answers(4)]))] }),
        seen
      )
      assert.deepStrictEqual(tokens(result), [10, 17])
      assert.deepStrictEqual(lastOf(seen).totalUsage, result.totalUsage)
    }))

  it.effect("M-17: a session's result counts the runs of an approved call that ends the run", () =>
    Effect.gen(function*() {
      const { result } = yield* approvedRun(() => Effect.as(inner([answers(5)]), Tool.halt("enough", 1)))
      assert.deepStrictEqual([result.outcome._tag, ...tokens(result)], ["Halted", null, 5])
    }))

  it.effect("M-17: a session within a handler counts with its approved calls", () =>
    Effect.gen(function*() {
      const result = yield* around(() => approvedRun(() => inner([answers(5)])))
      assert.deepStrictEqual(tokens(result), [110, 110 + 100 + 10 + 5])
    }))
})
