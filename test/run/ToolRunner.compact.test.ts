/**
 * Compact tools: what the model receives of them, how it asks for more, and what it reads after a mistake.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Adapter, Executor, Message, Policy, Step, Tool, ToolRunner } from "heddle"
import { Recorder, Script } from "heddle/testing"
import { contents, only, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const weather = Tool.make("weather", {
  description: "Weather of a city",
  summary: "weather",
  compact: true,
  parameters: { city: Schema.String, days: Schema.optionalKey(Schema.Finite) },
  handler: ({ city }) => Effect.succeed(`sunny in ${city}`)
})

const news = Tool.make("news", {
  description: "News of the day",
  compact: true,
  parameters: {},
  handler: () => Effect.succeed("none")
})

const tools = [weather, news, Tools.echo]

const help = (args: Record<string, unknown>, offered: ReadonlyArray<Tool.Any> = tools) =>
  ToolRunner.run([call("c0", "tool_help", args)], offered)

/** The tools as the model receives them. */
const offered = (given: ReadonlyArray<Tool.Any>, options: Pick<Step.Options, "toolChoice"> = {}) =>
  Effect.gen(function*() {
    const model = yield* Script.make([Script.text("hello"), Script.finish("stop")])
    let told: ReadonlyArray<Tool.Definition> = []
    const adapter = Layer.succeed(Adapter.Adapter, {
      stream: (request) => {
        told = request.tools
        return model.stream(request)
      }
    })
    yield* Step.run("go", { tools: given, ...options }).pipe(Effect.provide(adapter))
    return told
  })

describe("ToolRunner: compact tools", () => {
  it.effect("R-079, R-053: under allm a help call is no unknown tool, and later calls are answered", () =>
    Effect.gen(function*() {
      const calls = [call("c0", "tool_help", { names: ["weather"] }), call("c1", "echo", { x: 1 })]
      const result = yield* ToolRunner.run(calls, tools, { policy: Policy.allm })
      assert.deepStrictEqual(result.messages.map((message) => message.toolCallId), ["c0", "c1"])
      assert.include(String(result.messages[0]?.content), "Weather of a city")
    }))

  it.effect("R-079: a help call is answered from the tools, without the executor, a start or the error policy", () =>
    Effect.gen(function*() {
      const executed: Array<string> = []
      const executor = Executor.layer({
        execute: ((tool: Tool.Any) => Effect.sync(() => Tool.ok(void executed.push(tool.name)))) as never
      })
      const { events } = yield* watched(
        ToolRunner.stream([call("c0", "tool_help", { names: ["weather"] })], tools, { onToolError: "halt" })
      ).pipe(Effect.provide(executor))
      assert.deepStrictEqual(events.map((event) => event._tag), ["ToolExecutionCompleted", "ToolResultEncoded"])
      assert.deepStrictEqual(JSON.parse(Message.text(only(events, "ToolResultEncoded"))), [Tool.definition(weather)])
      assert.deepStrictEqual(executed, [])
    }))

  it.effect("R-079: help describes the requested compact tools, or all compact tools without a request", () =>
    Effect.gen(function*() {
      const names = (content: unknown) =>
        (JSON.parse(String(content)) as Array<Tool.Definition>).map(({ name }) => name)
      assert.deepStrictEqual(names((yield* help({})).messages[0]?.content), ["weather", "news"])
      assert.deepStrictEqual(names((yield* help({ names: ["news", "echo", "ghost"] })).messages[0]?.content), ["news"])
    }))

  it.effect("R-079: help for names of no compact tool is an error that lists the compact tools", () =>
    Effect.gen(function*() {
      const { messages } = yield* help({ names: ["ghost"] })
      assert.isTrue(messages[0]?.isError)
      assert.include(String(messages[0]?.content), "weather, news")
    }))

  it.effect("R-079: without a compact tool there is no help tool, and a caller's tool of that name runs", () =>
    Effect.gen(function*() {
      assert.match(String((yield* help({}, [Tools.echo])).messages[0]?.content), /unknown_tool/)
      const own = { ...Tools.echo, name: "tool_help" }
      assert.strictEqual((yield* help({ x: 1 }, [...tools, own])).messages[0]?.content, "{\"x\":1}")
    }))

  it.effect("R-079: a call without a required argument is answered with the usage, as a failure reported by the handler", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const tracked = { ...weather, handler: recorder.handler(() => Effect.succeed("never")) }
      const errors: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          errors.push(error)
          return Tool.ErrorDecision.continue("taught")
        })
      const calls = [call("c0", "weather", { days: 2 })]
      const taught = yield* ToolRunner.run(calls, [tracked], { onToolError })
      assert.deepStrictEqual(contents(taught), [["c0", "taught"]])
      assert.strictEqual(errors.length, 1)
      assert.match(String(errors[0]), /^usage of weather: Weather of a city\n\{.*"required":\["city"\]/)
      const told = yield* ToolRunner.run(calls, [tracked])
      assert.deepStrictEqual(JSON.parse(String(told.messages[0]?.content)), { error: errors[0] })
      assert.strictEqual((yield* recorder.counts()).starts, 0)
    }))

  it.effect("R-079: a compact tool runs with its required arguments, and an inherited name is no argument", () =>
    Effect.gen(function*() {
      const odd = Tool.make("odd", {
        compact: true,
        parameters: { toString: Schema.String },
        handler: () => Effect.succeed("ran")
      })
      const calls = [call("c0", "weather", { city: "Oslo" }), call("c1", "odd"), call("c2", "news")]
      const { messages } = yield* ToolRunner.run(calls, [...tools, odd])
      assert.strictEqual(messages[0]?.content, "sunny in Oslo")
      assert.match(String(messages[1]?.content), /usage of odd/)
      assert.strictEqual(messages[2]?.content, "none")
    }))

  it.effect("R-079: the model receives one line for each compact tool, and the help tool", () =>
    Effect.gen(function*() {
      const told = yield* offered(tools)
      assert.deepStrictEqual(told.map(({ name, description }) => [name, description]).slice(0, 3), [
        ["weather", "weather (city, days)"],
        ["news", "News of the day (no arguments)"],
        ["echo", ""]
      ])
      assert.deepStrictEqual(told[0]?.parameters, { type: "object", properties: {} })
      assert.deepStrictEqual(told.map(({ name }) => name), ["weather", "news", "echo", "tool_help"])
    }))

  it.effect("R-079: a forced compact tool is sent in full, and the caller's own help tool replaces the default", () =>
    Effect.gen(function*() {
      const [forced, other] = yield* offered(tools, { toolChoice: { name: "weather" } })
      assert.deepStrictEqual(forced, Tool.definition(weather))
      assert.strictEqual(other?.description, "News of the day (no arguments)")
      const own = { ...Tools.echo, name: "tool_help" }
      assert.deepStrictEqual((yield* offered([weather, own])).map(({ name }) => name), ["weather", "tool_help"])
      assert.deepStrictEqual((yield* offered([Tools.echo])).map(({ name }) => name), ["echo"])
    }))
})
