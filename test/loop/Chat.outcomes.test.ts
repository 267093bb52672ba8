/**
 * What an outcome says besides its tag: the finish reason of a run that completed, and what stopped one that was
 * cancelled.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Collector, Event, Message, Policy, Session, Thread, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"
import { lastOf } from "../support/trees.ts"

const { finish, text, toolCall } = Script

const anything = { type: "object" } as const

const outcomes = (script: Script.Input, options: Chat.Options = {}) =>
  Effect.gen(function*() {
    const run = yield* Chat.run("go", options).pipe(Effect.provide(Script.layer(script)))
    const events = yield* Stream.runCollect(Chat.stream("go", options)).pipe(Effect.provide(Script.layer(script)))
    const folded = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
    assert.deepStrictEqual(folded.outcome, run.outcome)
    return run.outcome
  })

describe("the outcome Completed", () => {
  for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
    const name = Object.entries(Policy).find(([, value]) => value === policy)?.[0]
    it.effect(`M-15: finishReason reports a cut, filtered or empty reply (${name})`, () =>
      Effect.gen(function*() {
        // Where the finish reason alone decides, a reply with another one, or with none, does not end the run.
        const isStrict = policy.toolTurn === "finishReason"
        const endings = ["stop", "length", "content_filter", ...(isStrict ? [] : ["other" as const])] as const
        for (const reason of endings) {
          assert.deepStrictEqual(yield* outcomes([[text("half a sen"), finish(reason)]], { policy }), {
            _tag: "Completed",
            finishReason: reason
          })
        }
        assert.deepStrictEqual(yield* outcomes([[finish("stop")]], { policy }), {
          _tag: "Completed",
          finishReason: "stop"
        })
        if (isStrict) return
        assert.deepStrictEqual(yield* outcomes([[text("no finish")]], { policy }), {
          _tag: "Completed",
          finishReason: null
        })
      }))
  }

  it.effect("M-15: the finish reason comes from the last turn, in a structured run from its answer", () =>
    Effect.gen(function*() {
      const echo = Tool.make("echo", { parameters: anything, handler: () => Effect.succeed(1) })
      const turns = [[toolCall("c0", "echo"), finish("tool_calls")], [text("answ"), finish("length")]]
      assert.deepStrictEqual(yield* outcomes(turns, { tools: [echo] as never }), {
        _tag: "Completed",
        finishReason: "length"
      })
      const structured = {
        tools: [echo] as never,
        structuredFinalize: true,
        responseFormat: { type: "json_object" }
      } as const
      assert.deepStrictEqual(yield* outcomes([...turns, [text("{}"), finish("stop")]], structured), {
        _tag: "Completed",
        finishReason: "stop"
      })
    }))

  it.effect("M-15: a session's result has the finish reason", () =>
    Effect.gen(function*() {
      const model = Effect.provide(Script.layer([[text("half a sen"), finish("length")]]))
      const { result } = yield* model(Session.start("go"))
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "length" })
    }))
})

describe("the outcome Cancelled", () => {
  const speaking = [[text("one "), Script.delay(100), text("two"), finish("stop")]]

  const cancelled = (options: Chat.Options<[], never, never>, script: Script.Input = speaking) =>
    Effect.gen(function*() {
      const awaited = yield* Simulation.run(Effect.provide(Chat.run("go", options), Script.layer(script)))
      const streamed = yield* Simulation.run(
        Effect.provide(Stream.runCollect(Chat.stream("go", options)), Script.layer(script))
      )
      const { outcome } = succeeded(awaited)
      assert.deepStrictEqual(lastOf(succeeded(streamed)).outcome, outcome)
      return outcome
    })

  it.effect("M-15: `cancel`, as a signal or an effect, is distinguished from a passed deadline", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* cancelled({ cancel: Effect.sleep(50) }), { _tag: "Cancelled", reason: "cancel" })
      assert.deepStrictEqual(yield* cancelled({ cancel: AbortSignal.abort() }), { _tag: "Cancelled", reason: "cancel" })
      assert.deepStrictEqual(yield* cancelled({ deadline: 50 }), { _tag: "Cancelled", reason: "deadline" })
      assert.deepStrictEqual(yield* cancelled({ deadline: 50, cancel: Effect.sleep(40) }), {
        _tag: "Cancelled",
        reason: "cancel"
      })
      assert.deepStrictEqual(yield* cancelled({ deadline: 40, cancel: Effect.sleep(50) }), {
        _tag: "Cancelled",
        reason: "deadline"
      })
    }))

  it.effect("M-15: a run whose deadline passes in haltWhen or during closing tool calls reports deadline", () =>
    Effect.gen(function*() {
      const wait = Tool.make("wait", { parameters: anything, handler: () => Effect.sleep(60_000) })
      const stubborn = [
        [toolCall("c0", "wait"), finish("tool_calls")],
        [toolCall("c1", "wait"), finish("tool_calls")]
      ]
      const deadline = { _tag: "Cancelled", reason: "deadline" } as const
      const options = { tools: [wait] as never, toolTimeout: "infinity", deadline: 1000 } as const
      assert.deepStrictEqual(yield* cancelled(options, stubborn), deadline)
      const asking = { deadline: { after: 50, reserve: 0 }, haltWhen: () => Effect.never, tools: [wait] as never }
      const unknown = [[toolCall("c0", "unknown"), finish("tool_calls")]]
      assert.deepStrictEqual(yield* cancelled(asking, unknown), deadline)
    }))

  it.effect("M-15: a run inside a handler reports the stop reason of its outer run", () =>
    Effect.gen(function*() {
      const inside = (options: Chat.Options) =>
        Effect.gen(function*() {
          const seen: Array<Event.Outcome> = []
          const nested = Tool.make("nested", {
            parameters: anything,
            interrupt: "block",
            handler: () =>
              Chat.run("go").pipe(
                Effect.provide(Script.layer(speaking)),
                Effect.map((result) => seen.push(result.outcome))
              )
          })
          const outer = [[toolCall("c0", "nested"), finish("tool_calls")], [text("done"), finish("stop")]]
          yield* cancelled({ ...options, tools: [nested] as never }, outer)
          return new Set(seen.map((outcome) => outcome._tag === "Cancelled" && outcome.reason))
        })
      assert.deepStrictEqual(yield* inside({ cancel: Effect.sleep(50) }), new Set(["cancel"]))
      assert.deepStrictEqual(yield* inside({ deadline: { after: 50, reserve: 0 } }), new Set(["deadline"]))
    }))

  it.effect("M-15: the fold of an abandoned stream reports interrupt", () =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Stream.take(Chat.stream("go"), 2)).pipe(
        Effect.provide(Script.layer(speaking))
      )
      const folded = Collector.applyAll(
        Collector.initial({ thread: Thread.fromMessages([Message.user("go")]) }),
        events
      )
      assert.deepStrictEqual(Collector.toChatResult(folded).outcome, { _tag: "Cancelled", reason: "interrupt" })
    }))
})

describe("the stored outcome", () => {
  const codec = Schema.toCodecJson(Event.Outcome)

  it("M-15: an outcome without a reason or with an unknown reason does not decode", () => {
    const decode = Schema.decodeUnknownSync(codec)
    assert.throws(() => decode({ _tag: "Completed" }), /finishReason/)
    assert.throws(() => decode({ _tag: "Cancelled" }), /reason/)
    assert.throws(() => decode({ _tag: "Completed", finishReason: "bored" }), /finishReason/)
    assert.throws(() => decode({ _tag: "Cancelled", reason: "weather" }), /reason/)
  })

  it("M-15: outcomes with their reasons round-trip through JSON", () => {
    const outcomes: ReadonlyArray<Event.Outcome> = [
      { _tag: "Completed", finishReason: "length" },
      { _tag: "Completed", finishReason: null },
      { _tag: "Cancelled", reason: "cancel" },
      { _tag: "Cancelled", reason: "deadline" },
      { _tag: "Cancelled", reason: "interrupt" }
    ]
    for (const outcome of outcomes) {
      const json: unknown = JSON.parse(JSON.stringify(Schema.encodeSync(codec)(outcome)))
      assert.deepStrictEqual(Schema.decodeUnknownSync(codec)(json), outcome)
    }
  })
})
