/**
 * A handler owns what it receives: no change it makes to its arguments or to its call shows in the thread, in events,
 * in other handlers or in the next request.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, Message, Policy, StreamingToolExecutor, Thread, Tool, ToolRunner } from "heddle"
import { check, Recorder, Script } from "heddle/testing"
import * as Json from "../../src/internal/json.ts"

const given = { path: "a.txt", options: { lines: [1, 2], deep: { flag: true } } }

/** Every way of declaring parameters in which what a model sends may reach the handler as it is. */
const forms: { readonly [name: string]: any } = {
  "raw JSON Schema": { type: "object" },
  "a record of anything": Schema.Record(Schema.String, Schema.Unknown),
  "a record of JSON": Schema.Record(Schema.String, Schema.Json),
  anything: Schema.Unknown,
  "no type": Schema.Any,
  "fields of anything": { path: Schema.String, options: Schema.Unknown },
  "fields of any type": { path: Schema.String, options: Schema.Any },
  "a union with anything": Schema.Union([Schema.Struct({ path: Schema.Number }), Schema.Unknown]),
  "fields that are all known": {
    path: Schema.String,
    options: Schema.Struct({ lines: Schema.Array(Schema.Number), deep: Schema.Struct({ flag: Schema.Boolean }) })
  }
}

/** Does everything to its arguments and its call that a careless handler can do. */
const spoil = (args: any, call: any): void => {
  args.options.lines.push(3)
  args.options.deep.flag = false
  args.path = 10n
  args.self = args
  delete args.options.deep
  if (Reflect.has(call.toolCall, "id")) call.toolCall.id = "other"
  call.toolCall.name = "other"
  call.toolCall.arguments.path = 11n
  call.toolCall.arguments.options.lines.push(4)
  call.toolCall.arguments.self = call.toolCall
  call.toolCall.metadata.mine = 12n
}

const spoiling = (parameters: any, more: object = {}) =>
  Tool.make("read", {
    parameters,
    handler: (args: any, call) =>
      Effect.sync(() => {
        spoil(args, call)
        return "read"
      }),
    ...more
  })

const calls = [Message.toolCall("c0", "read", given), Message.toolCall("c1", "read", given)]

/** A call of the model, in the form in which the thread of a run holds it. */
const intact = JSON.stringify(given)

const callsOf = (thread: Thread.Thread) => thread.messages.flatMap((message) => message.toolCalls ?? [])

/** Every text in which the arguments of a call are to be found, and what was logged when it was emitted. */
const holds = (events: ReadonlyArray<Event.Event>, thread: Thread.Thread): void => {
  for (const { arguments: args, id, name } of callsOf(thread)) {
    assert.strictEqual(JSON.stringify(args), intact)
    assert.match(id, /^c\d$/)
    assert.strictEqual(name, "read")
  }
  for (const event of events) {
    if (event._tag === "ToolCallCompleted" || event._tag === "ToolExecutionStarted") {
      assert.strictEqual(JSON.stringify(event.arguments), intact, event._tag)
    }
  }
  JSON.stringify(thread)
}

const model = Script.make({
  scripts: [
    [
      Script.toolCall("c0", "read", given),
      Script.toolCall("c1", "read", given),
      Script.finish("tool_calls")
    ],
    [Script.text("done"), Script.finish("stop")]
  ]
})

describe("the arguments of a handler", () => {
  for (const [name, parameters] of Object.entries(forms)) {
    it.effect(`M-20: changes of a handler to its arguments and its call appear nowhere else, with parameters of ${name}`, () =>
      Effect.gen(function*() {
        const recorder = yield* Recorder.make
        const script = yield* model
        yield* Stream.runDrain(
          recorder.tap(Chat.stream("go", { tools: [spoiling(parameters)] }))
        ).pipe(Effect.provide(script.layer))
        const events = yield* recorder.events
        const last = events.at(-1)
        assert.strictEqual(last?._tag, "ChatCompleted")
        if (last?._tag !== "ChatCompleted") return
        assert.strictEqual(last.result.outcome._tag, "Completed")
        assert.strictEqual(callsOf(last.result.thread).length, 2)
        assert.deepStrictEqual(last.result.steps[0]?.toolResults.map(({ content }) => content), ["read", "read"])
        holds(events, last.result.thread)
        for (const { messages } of yield* script.requests) holds([], Thread.fromMessages(messages))
        assert.deepStrictEqual(check.calls(yield* recorder.log), [])
        assert.strictEqual(intact, JSON.stringify(given))
      }))
  }

  it.effect("M-20: changes of an early handler to its arguments appear in no awaited thread, under every policy", () =>
    Effect.gen(function*() {
      const tool = spoiling({ type: "object" }, { readOnly: true })
      for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
        const script = yield* model
        const result = yield* Chat.run("go", { tools: [tool], policy }).pipe(Effect.provide(script.layer))
        assert.strictEqual(callsOf(result.thread).length, 2)
        holds([], result.thread)
      }
    }))

  it.effect("M-20: changes of a handler appear in no call given to ToolRunner or StreamingToolExecutor", () =>
    Effect.gen(function*() {
      const tool = spoiling({ type: "object" })
      const { messages } = yield* ToolRunner.run(calls, [tool])
      assert.deepStrictEqual(messages.map(({ toolCallId }) => toolCallId), ["c0", "c1"])
      const executor = yield* StreamingToolExecutor.make()
      for (const call of calls) yield* executor.addTool(call, tool as Tool.Tool<"read", any, string, never, never>)
      yield* executor.noMoreCalls
      const results = yield* Stream.runCollect(executor.remainingResults)
      assert.isAbove(results.length, 1)
      assert.strictEqual(JSON.stringify(calls.map((call) => call.arguments)), `[${intact},${intact}]`)
      assert.deepStrictEqual(calls.map(({ id, name }) => [id, name]), [["c0", "read"], ["c1", "read"]])
    }).pipe(Effect.scoped))

  it.effect("M-20: changes by gates, limits and an attempt appear in no call and in no later attempt", () =>
    Effect.gen(function*() {
      const tool = Tool.make("read", {
        parameters: { type: "object" },
        validate: (args: any, call) => {
          spoil(args, call)
          return true
        },
        limits: [{
          key: (args: any) => {
            args.options.lines.push(5)
            return "one"
          },
          permits: 1
        }],
        concurrency: (args: any) => {
          args.options.lines.push(6)
          return "shared"
        },
        retry: Schedule.recurs(1),
        handler: (args: any, call: any) => {
          assert.strictEqual(call.toolCall.id, call.attempt === 1 ? "other" : `c${call.index}`)
          assert.notProperty(args, "attempt")
          args.attempt = call.attempt
          call.toolCall.id = "another"
          return call.attempt === 1 ? Effect.fail("again") : Effect.succeed("read")
        }
      })
      const { messages } = yield* ToolRunner.run(calls, [tool])
      assert.deepStrictEqual(messages.map(({ content }) => content), ["read", "read"])
      assert.strictEqual(JSON.stringify(calls.map((call) => call.arguments)), `[${intact},${intact}]`)
      assert.deepStrictEqual(calls.map(({ id }) => id), ["c0", "c1"])
    }))
})

describe("Json.copy", () => {
  it("a copy shares no object with its original, keeps values other than data, and copies cycles and any depth", () => {
    const at = new Date(0)
    const value: any = { at, list: [1, { a: null }], empty: {}, text: "x", big: 1n, nothing: undefined }
    value.self = value
    value.list.push(value.list)
    const copied = Json.copy(value)
    assert.deepStrictEqual(copied, value)
    assert.notStrictEqual(copied, value)
    assert.notStrictEqual(copied.list, value.list)
    assert.notStrictEqual(copied.list[1], value.list[1])
    assert.strictEqual(copied.at, at)
    assert.strictEqual(copied.self, copied)
    assert.strictEqual(copied.list[2], copied.list)
    const hostile = JSON.parse("{\"__proto__\":{\"polluted\":true}}")
    const twin = Json.copy(hostile)
    assert.strictEqual(twin.polluted, undefined)
    assert.deepStrictEqual(Object.keys(twin), ["__proto__"])
    let deep: any = {}
    for (let level = 0; level < 100_000; level++) deep = { deep }
    let depth = 0
    for (let at = Json.copy(deep); at.deep !== undefined; at = at.deep) depth++
    assert.strictEqual(depth, 100_000)
    for (const plain of [1, "a", null, undefined, true]) assert.strictEqual(Json.copy(plain), plain)
  })
})
