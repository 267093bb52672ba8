import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Collector, Encoder, Message, Step, Thread, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

/** Waits, adds to the context, and answers with the context it was given. */
const set = Tool.make("set", {
  parameters: { values: Schema.Record(Schema.String, Schema.Unknown), millis: Schema.Finite },
  handler: ({ millis, values }, call) =>
    Effect.sleep(millis).pipe(Effect.andThen(call.updateContext(values)), Effect.as(call.context))
})

const setting = (id: string, values: object, millis: number) => Script.toolCall(id, "set", { values, millis })

const seen = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.map((message) => JSON.parse(String(message.content)))

const script: Script.Input = [
  [setting("a", { a: "slow", b: 1 }, 30), setting("b", { a: "fast" }, 5), Script.finish("tool_calls")],
  [setting("c", { c: 3 }, 1), Script.finish("tool_calls")],
  [Script.text("done"), Script.finish("stop")]
]

describe("context updates", () => {
  it.effect("R-402, R-403, J-22, CF-17: context updates merge in call order and are seen from the next step on", () =>
    Effect.gen(function*() {
      const run = Chat.run("go", { tools: [set], context: { z: 0 } })
      const { contextUpdate, steps } = succeeded(yield* Simulation.run(Effect.provide(run, Script.layer(script))))
      assert.deepStrictEqual(seen(steps[0]?.toolResults ?? []), [{ z: 0 }, { z: 0 }])
      assert.deepStrictEqual(seen(steps[1]?.toolResults ?? []), [{ z: 0, a: "fast", b: 1 }])
      assert.deepStrictEqual(steps.map((step) => step.contextUpdate), [{ a: "fast", b: 1 }, { c: 3 }, undefined])
      assert.deepStrictEqual(contextUpdate, { a: "fast", b: 1, c: 3 })
    }))

  it.effect("law 6: the streamed and the awaited run of a chat, a step and a tool runner report the same context updates", () =>
    Effect.gen(function*() {
      const options = { tools: [set] }
      const model = Script.layer(script)
      const program = Effect.gen(function*() {
        const events = yield* Stream.runCollect(Stream.provide(Chat.stream("go", options), model))
        const folded = Collector.applyAll(Collector.initial({ thread: Thread.empty }), events)
        const result = yield* Effect.provide(Chat.run("go", options), model)
        const step = yield* Effect.provide(Step.run("go", options), model)
        const calls = [Message.toolCall("x", "set", { values: { q: 1 }, millis: 1 })]
        return { folded, result, step, runner: yield* ToolRunner.run(calls, [set]) }
      })
      const { folded, result, runner, step } = succeeded(yield* Simulation.run(program))
      assert.deepStrictEqual(folded.steps.map((done) => done.contextUpdate), [{ a: "fast", b: 1 }, { c: 3 }, undefined])
      assert.deepStrictEqual(Collector.toChatResult(folded).contextUpdate, result.contextUpdate)
      assert.deepStrictEqual(step.contextUpdate, { a: "fast", b: 1 })
      assert.deepStrictEqual(runner.contextUpdate, { q: 1 })
    }))

  it.effect("R-402: a run without a given context has a context of its own, shared with no other run", () =>
    Effect.gen(function*() {
      const contexts: Array<object> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: (_, call) => Effect.sync(() => contexts.push(call.context))
      })
      const twice = [[Script.toolCall("a", "look"), Script.toolCall("b", "look"), Script.finish("tool_calls")], [
        Script.finish("stop")
      ]] as const
      const run = Effect.provide(Chat.run("go", { tools: [look] }), Script.layer(twice))
      yield* run
      yield* run
      assert.deepStrictEqual(contexts, [{}, {}, {}, {}])
      assert.strictEqual(new Set(contexts).size, 2)
    }))

  it.effect("R-397: an attempt that fails, is stopped or is retried adds no context update", () =>
    Effect.gen(function*() {
      const add = (more: object, end: (attempt: number) => Effect.Effect<unknown, string>) => ({
        parameters: {},
        handler: (_: unknown, call: Tool.CallContext) =>
          Effect.andThen(call.updateContext({ [`${call.name}${call.attempt}`]: true }), end(call.attempt)),
        ...more
      })
      const tools = [
        Tool.make("fails", add({}, () => Effect.fail("no"))),
        Tool.make("dies", add({}, () => Effect.die("no"))),
        Tool.make("late", add({ timeout: 5 }, () => Effect.never)),
        Tool.make(
          "again",
          add({ retry: Schedule.recurs(1) }, (n) => n === 1 ? Effect.fail("once") : Effect.succeed(n))
        ),
        Tool.make("asks", add({}, () => Effect.succeed(Tool.askUser("Which?"))))
      ]
      const calls = tools.map((tool) => Message.toolCall(tool.name, tool.name))
      const { contextUpdate } = succeeded(yield* Simulation.run(ToolRunner.run(calls, tools, { maxConcurrency: 8 })))
      assert.deepStrictEqual(contextUpdate, { again2: true, asks1: true })
    }))

  it.effect("R-397: a handler whose result cannot be encoded adds no context update", () =>
    Effect.gen(function*() {
      const tool = Tool.make("tool", {
        parameters: {},
        handler: (_, call) => Effect.as(call.updateContext({ a: 1 }), "lost")
      })
      const refusing = Encoder.layer({ encode: () => Effect.fail("no") })
      const { contextUpdate, messages } = yield* ToolRunner.run([Message.toolCall("c0", "tool")], [tool]).pipe(
        Effect.provide(refusing)
      )
      assert.isTrue(messages[0]?.isError)
      assert.isUndefined(contextUpdate)
    }))

  it.effect("a context update that is not an object fails its call", () =>
    Effect.gen(function*() {
      const wrong = Tool.make("wrong", {
        parameters: {},
        handler: (_, call) => call.updateContext("a text" as never)
      })
      const { messages } = succeeded(
        yield* Simulation.run(ToolRunner.run([Message.toolCall("c0", "wrong")], [wrong]))
      )
      assert.isTrue(messages[0]?.isError)
      assert.include(String(messages[0]?.content), "handler_raised")
    }))

  it.effect("a context update stores a name such as __proto__ like any other name", () =>
    Effect.gen(function*() {
      const values = JSON.parse("{\"__proto__\": { \"polluted\": true }}") as Readonly<Record<string, unknown>>
      const tool = Tool.make("tool", { parameters: {}, handler: (_, call) => call.updateContext(values) })
      const { contextUpdate } = succeeded(
        yield* Simulation.run(ToolRunner.run([Message.toolCall("c0", "tool")], [tool]))
      )
      assert.isFalse("polluted" in {})
      assert.isTrue(contextUpdate !== undefined && Object.hasOwn(contextUpdate, "__proto__"))
    }))
})
