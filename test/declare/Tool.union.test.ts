/**
 * Parameters whose root is a choice: to a provider they are one object. A tool that cannot be one is left out, and the
 * run goes on without it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Collector, Event, Message, Policy, Session, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import * as z from "zod"
import * as Anthropic from "../support/anthropic.ts"
import * as Gemini from "../support/gemini.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Responses from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

type Json = Readonly<Record<string, any>>

const refused = ["allOf", "anyOf", "const", "enum", "not", "oneOf", "$ref"]

/** The parameters as a model is offered them. */
const offered = (parameters: any): Effect.Effect<Json, any> =>
  Effect.gen(function*() {
    const tool: Tool.Any = Tool.make("t", { parameters, handler: () => Effect.succeed("ok") })
    const requests: Array<Adapter.Request> = []
    const model = Adapter.map((adapter) => ({
      ...adapter,
      stream: (request) => {
        requests.push(request)
        return adapter.stream(request)
      }
    }))
    const run: Effect.Effect<unknown, unknown, Adapter.Adapter> = Chat.run("go", { tools: [tool] })
    const script = Script.layer([[Script.text("ok"), Script.finish("stop")]])
    yield* run.pipe(Effect.provide(model), Effect.provide(script))
    return requests[0]!.tools[0]!.parameters
  })

const a = { type: "object", properties: { k: { const: "a" }, a: { type: "string" } }, required: ["k", "a"] }
const b = { type: "object", properties: { k: { const: "b" }, b: { type: "number" } }, required: ["k"] }

const sources: Readonly<Record<string, any>> = {
  "a union of Zod": z.discriminatedUnion("k", [
    z.object({ k: z.literal("a"), a: z.string() }),
    z.object({ k: z.literal("b"), b: z.number().optional() })
  ]),
  "a union of Effect": Schema.Union([
    Schema.Struct({ k: Schema.Literal("a"), a: Schema.String }),
    Schema.Struct({ k: Schema.Literal("b"), b: Schema.optionalKey(Schema.Finite) })
  ]),
  "anyOf": { type: "object", anyOf: [a, b] },
  "oneOf of references": {
    oneOf: [{ $ref: "#/$defs/a" }, { $ref: "#/$defs/b" }],
    $defs: { a, b }
  },
  "anyOf with null and a text": { anyOf: [{ type: "null" }, a, { type: "string" }, b] },
  "a reference at the root": { $ref: "#/$defs/both", $defs: { both: { anyOf: [a, b] } } },
  "a choice of choices": { anyOf: [{ anyOf: [a] }, { allOf: [b] }] }
}

describe("O-14: parameters whose root is a choice", () => {
  it.effect("O-14: a schema with types in Gemini's capitals is sent unchanged", () =>
    Effect.gen(function*() {
      const parameters = { type: "OBJECT", properties: { city: { type: "STRING" } }, required: ["city"] }
      assert.deepStrictEqual(yield* offered(parameters), parameters)
    }))

  for (const [name, parameters] of Object.entries(sources)) {
    it.effect(`O-14: parameters whose root is a choice are sent as one object: ${name}`, () =>
      Effect.gen(function*() {
        const schema = yield* offered(parameters)
        assert.strictEqual(schema["type"], "object")
        for (const keyword of refused) assert.notProperty(schema, keyword)
        assert.sameMembers(Object.keys(schema["properties"]), ["k", "a", "b"])
        assert.deepStrictEqual(schema["properties"].k.enum, ["a", "b"])
        assert.deepStrictEqual(schema["required"], ["k"])
        assert.include(schema["description"], `{ k: "a", a } or { k: "b", b? }`)
      }))
  }

  it.effect("O-14: an intersection has the members of both parts", () =>
    Effect.gen(function*() {
      const schema = yield* offered(z.object({ a: z.string() }).and(z.object({ b: z.string().optional() })))
      assert.deepStrictEqual([schema["type"], Object.keys(schema["properties"]), schema["required"]], [
        "object",
        ["a", "b"],
        ["a"]
      ])
      assert.notProperty(schema, "allOf")
      assert.notProperty(schema, "description")
    }))

  it.effect("O-14: members beside a reference are added to the members of its target", () =>
    Effect.gen(function*() {
      const part = { $ref: "#/$defs/part", properties: { k: { const: "b" }, b: { type: "number" } }, required: ["k"] }
      const $defs = { part: { type: "object", properties: { p: { type: "string" } }, required: ["p"] } }
      const root = yield* offered({ ...part, $defs })
      assert.sameMembers(Object.keys(root["properties"]), ["p", "k", "b"])
      assert.sameMembers(root["required"], ["p", "k"])
      for (const keyword of refused) assert.notProperty(root, keyword)
      const choice = yield* offered({ anyOf: [a, part], $defs })
      assert.sameMembers(Object.keys(choice["properties"]), ["k", "a", "b", "p"])
      assert.include(choice["description"], `{ k: "a", a } or { p, k: "b", b? }`)
    }))

  it.effect("O-14: conditions, fixed arguments, `not` and nullable objects are sent as one object", () =>
    Effect.gen(function*() {
      const conditions = yield* offered({
        type: "object",
        description: "Find.",
        properties: { id: { type: "string" }, name: { type: "string" } },
        anyOf: [{ required: ["id"] }, { required: ["name"] }]
      })
      assert.deepStrictEqual(conditions, {
        type: "object",
        description: "Find.\nGive the members of one of these, and no others: { id, name? } or { id?, name }",
        properties: { id: { type: "string" }, name: { type: "string" } }
      })
      const fixed = yield* offered({ type: "object", enum: [{ a: 1 }, { a: 2, b: true }, "x"] })
      assert.deepStrictEqual(fixed["properties"], { a: { enum: [1, 2] }, b: { const: true } })
      assert.deepStrictEqual([fixed["required"], fixed["additionalProperties"]], [["a"], false])
      const not = yield* offered({ type: "object", properties: { a: {} }, not: { required: ["b"] } })
      assert.deepStrictEqual(not, {
        type: "object",
        description: "Not: {\"required\":[\"b\"]}",
        properties: { a: {} }
      })
      assert.deepStrictEqual(yield* offered({ type: ["object", "null"], properties: { a: {} } }), {
        type: "object",
        properties: { a: {} }
      })
      assert.deepStrictEqual(yield* offered({ properties: { a: {} } }), { type: "object", properties: { a: {} } })
    }))

  it.effect("O-14: parameters that are already one object are sent unchanged", () =>
    Effect.gen(function*() {
      const schema = {
        type: "object",
        properties: { a: { anyOf: [{ type: "string" }, { type: "null" }] } },
        minProperties: 1
      }
      assert.strictEqual(yield* offered(schema), schema)
    }))

  it.effect("O-14: arguments are decoded by the tool's own schema", () =>
    Effect.gen(function*() {
      const tool: Tool.Any = Tool.make("t", { parameters: sources["a union of Zod"], handler: Effect.succeed })
      const answer = (args: Json) =>
        Effect.map(
          ToolRunner.run([Message.toolCall("c", "t", args)], [tool]),
          ({ messages }) => String(messages[0]?.content)
        )
      assert.strictEqual(yield* answer({ k: "a", a: "x", b: null }), "{\"k\":\"a\",\"a\":\"x\"}")
      assert.include(yield* answer({ k: "a" }), "invalid_arguments")
    }))
})

const elsewhere = Tool.make("elsewhere", {
  parameters: { type: "object", anyOf: [{ $ref: "https://example.com/schema.json" }, a] },
  handler: () => Effect.succeed("ran")
})
const endless = Tool.make("endless", {
  parameters: { type: "object", allOf: [{ $ref: "#" }] },
  handler: () => Effect.succeed("ran")
})
const inner = Tool.make("inner", {
  parameters: {
    anyOf: [{ type: "object", properties: { a: { type: "string" }, b: { $ref: "#/anyOf/0/properties/a" } } }, b]
  },
  handler: () => Effect.succeed("ran")
})
const good = Tool.make("good", { parameters: {}, handler: () => Effect.succeed("fine") })
const tools = [elsewhere, good, endless, inner]

const leftOutTools = [
  {
    name: "elsewhere",
    reason:
      "its parameters cannot be written as one object: its reference \"https://example.com/schema.json\" has no target"
  },
  { name: "endless", reason: "its parameters cannot be written as one object: it refers to itself endlessly" },
  {
    name: "inner",
    reason:
      "its parameters cannot be written as one object: it refers to #/anyOf/0/properties/a, a part missing from the combined object"
  }
]

const called = [
  [Script.toolCall("c1", "good"), Script.toolCall("c2", "elsewhere"), Script.finish("tool_calls")],
  [Script.text("done"), Script.finish("stop")]
]

describe("O-14: a tool whose parameters cannot be one object", () => {
  it.effect("O-14: a tool that cannot be one object is left out with a warning, its call is unknown, and the turn continues", () =>
    Effect.gen(function*() {
      const logs: Array<unknown> = []
      const logger = Logger.make(({ message }) => logs.push(message))
      const result = yield* Chat.run("go", { tools }).pipe(
        Effect.provide(Script.layer(called)),
        Effect.provide(Logger.layer([logger]))
      )
      assert.deepStrictEqual(result.leftOutTools, leftOutTools)
      assert.strictEqual(result.outcome._tag, "Completed")
      const [one, other] = result.thread.messages.filter(({ role }) => role === "tool")
      assert.strictEqual(one?.content, "fine")
      assert.include(String(other?.content), "unknown_tool")
      const told = logs.flat().filter((message) => String(message).includes("is left out"))
      assert.deepStrictEqual(told, leftOutTools.map(({ name, reason }) => `the tool "${name}" is left out: ${reason}`))
    }))

  it.effect("O-14: leftOutTools is the same streamed, awaited, from the wire and in a session, and otherwise absent", () =>
    Effect.gen(function*() {
      const awaited = yield* Chat.run("go", { tools, requestId: "r" }).pipe(Effect.provide(Script.layer(called)))
      const events = yield* Stream.runCollect(Chat.stream("go", { tools, requestId: "r" })).pipe(
        Effect.provide(Script.layer(called))
      )
      const thread = { messages: [Message.user("go")], metadata: {} }
      const folded = Collector.toChatResult(
        events.reduce((state, event) => Collector.applyEvent(state, event), Collector.initial({ thread }))
      )
      assert.deepStrictEqual(folded.leftOutTools, awaited.leftOutTools)
      const wired = events.map((event) => JSON.parse(JSON.stringify(Event.toWire(event))) as unknown)
      assert.deepStrictEqual(Collector.fromWire("go", wired).leftOutTools, leftOutTools)
      const { result } = yield* Session.start("go", { tools }).pipe(Effect.provide(Script.layer(called)))
      assert.deepStrictEqual(result.leftOutTools, leftOutTools)
      const whole = yield* Chat.run("go", { tools: [good] }).pipe(Effect.provide(Script.layer(called)))
      assert.notProperty(whole, "leftOutTools")
    }))

  it.effect("O-14: a toolChoice that forces a left-out tool fails the run as unknown_tool", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(
        Chat.run("go", { tools, toolChoice: { name: "elsewhere" } }).pipe(Effect.provide(Script.layer(called)))
      )
      assert.deepInclude(error, { _tag: "EngineError", reason: "unknown_tool", metadata: { toolName: "elsewhere" } })
      assert.include(error.message, "has no target")
    }))

  it.effect("O-14: a call of a left-out tool fails the turn under `unknownTool: \"failTurn\"`", () =>
    Effect.gen(function*() {
      const policy: Policy.Policy = { ...Policy.standard, start: "afterTurn", unknownTool: "failTurn" }
      const error = yield* Effect.flip(
        Chat.run("go", { tools, policy }).pipe(Effect.provide(Script.layer(called)))
      )
      assert.deepInclude(error, { _tag: "EngineError", reason: "unknown_tool" })
    }))
})

describe("O-14: a request of the program's own", () => {
  const protocols = { Chunks, Responses, Anthropic, Gemini }
  for (const [name, { stream }] of Object.entries(protocols)) {
    it.effect(`O-14: a direct request of ${name} sends each tool as one object, and leaves out a tool that cannot be one object`, () =>
      Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve(() => ({ status: 400, pieces: ["{}"] }))
        const parameters = { type: "object", anyOf: [a, b] }
        const request = {
          ...Chunks.request,
          tools: [{ name: "t", description: "", parameters }, Tool.definition(elsewhere)]
        }
        yield* Effect.exit(Stream.runDrain(stream(server.url, { retries: 0 }, request)))
        const body = JSON.stringify(server.requests[0]!.body)
        for (const keyword of ["anyOf", "oneOf", "allOf"]) assert.notInclude(body, `"${keyword}":`)
        assert.include(body, "\"a\",\"b\"")
        assert.notInclude(body, "elsewhere")
        assert.strictEqual(request.tools[0]!.parameters, parameters)
      })))
  }
})
