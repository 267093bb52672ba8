/**
 * Parameters by the schemas of other libraries: the three that people use, as they are installed. What the model is
 * offered, what the handler receives, what is refused and how, and what is no schema at all.
 */
import { assert, describe, it } from "@effect/vitest"
import { toStandardJsonSchema } from "@valibot/to-json-schema"
import { type } from "arktype"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Chat, Message, Tool, ToolRunner } from "heddle"
import { OpenAiChat } from "heddle/adapters"
import { check, Script } from "heddle/testing"
import * as v from "valibot"
import * as z from "zod"
import { openApi } from "../../src/adapters/internal/geminiRequest.ts"
import * as StrictSchema from "../../src/adapters/internal/strictSchema.ts"

/** The same parameters in three libraries: a text that is trimmed, a number with a default, a list of choices. */
const libraries = {
  zod: z.object({
    city: z.string().trim(),
    days: z.number().int().default(3),
    units: z.array(z.enum(["C", "F"])).optional()
  }),
  valibot: toStandardJsonSchema(
    v.object({
      city: v.pipe(v.string(), v.trim()),
      days: v.optional(v.pipe(v.number(), v.integer()), 3),
      units: v.optional(v.array(v.picklist(["C", "F"])))
    })
  ),
  arktype: type({ city: "string.trim", days: "number.integer = 3", "units?": "('C' | 'F')[]" })
} as const

/** Schemas that take time: a refinement, a check and a transform that are promises. */
const slow = {
  zod: z.object({ city: z.string().refine((city) => Promise.resolve(city !== "Atlantis"), "no such city") }),
  valibot: v.objectAsync({
    city: v.pipeAsync(v.string(), v.checkAsync((city) => Promise.resolve(city !== "Atlantis"), "no such city"))
  })
}

const called = (parameters: any, args: Record<string, unknown>) =>
  Effect.gen(function*() {
    let received: unknown
    const tool = Tool.make("weather", {
      parameters,
      handler: (args) =>
        Effect.sync(() => {
          received = args
          return "sunny"
        })
    })
    const { messages } = yield* ToolRunner.run([Message.toolCall("c0", "weather", args)], [
      tool as Tool.Tool<
        "weather",
        any,
        unknown,
        never,
        never
      >
    ])
    return { content: String(messages[0]?.content), received }
  })

const refusal = (parameters: unknown): string => {
  try {
    Tool.make("tool", { parameters } as { readonly parameters: {} })
  } catch (error) {
    assert.instanceOf(error, TypeError)
    return (error as TypeError).message
  }
  return assert.fail("the parameters must be refused")
}

const jsonSchemaOf = (parameters: any): any => Tool.definition(Tool.make("t", { parameters })).parameters

describe("a schema of another library", () => {
  for (const [library, parameters] of Object.entries(libraries)) {
    it.effect(`M-30: the model gets the JSON Schema of ${library}, and the handler the arguments that ${library} decodes`, () =>
      Effect.gen(function*() {
        const schema = jsonSchemaOf(parameters)
        assert.deepInclude(schema, { type: "object", required: ["city"] })
        assert.deepStrictEqual(Object.keys(schema.properties).toSorted(), ["city", "days", "units"])
        assert.deepInclude(schema.properties.city, { type: "string" })
        assert.deepStrictEqual(schema.properties.units.items.enum, ["C", "F"])
        assert.notProperty(schema, "$schema")
        const given = { city: " Oslo ", units: ["C"] }
        const { content, received } = yield* called(parameters, given)
        assert.strictEqual(content, "sunny")
        assert.deepStrictEqual({ ...received as object }, { city: "Oslo", days: 3, units: ["C"] })
        assert.deepStrictEqual(given, { city: " Oslo ", units: ["C"] })
      }))

    it.effect(`M-30: arguments invalid for ${library} are answered with every place, and the handler is not called`, () =>
      Effect.gen(function*() {
        const { content, received } = yield* called(parameters, { city: 1, days: "5", units: ["K"] })
        assert.isUndefined(received)
        const told = JSON.parse(content)
        assert.strictEqual(told.code, "invalid_arguments")
        for (const place of ["city", "days", "units"]) assert.include(told.error + told.details, `["${place}"]`)
        assert.match(told.error + told.details, /number/)
      }))

    it.effect(`M-30: strict modes and Gemini accept the JSON Schema of ${library}`, () =>
      Effect.sync(() => {
        const schema = jsonSchemaOf(parameters)
        const strict = Option.getOrThrow(StrictSchema.rewrite(schema, StrictSchema.openAi))
        assert.deepStrictEqual([...strict.schema["required"] as Array<string>].toSorted(), ["city", "days", "units"])
        assert.deepInclude(openApi(schema), { type: "OBJECT", required: ["city"] })
      }))

    it.effect(`M-30: a run with parameters of ${library} answers valid and invalid calls`, () =>
      Effect.gen(function*() {
        const tool = Tool.make("weather", {
          parameters: parameters as typeof libraries.zod,
          handler: ({ city, days }) => Effect.succeed(`${city} for ${days} days`)
        })
        const model = Script.layer([
          [
            Script.toolCall("c0", "weather", { city: "Oslo" }),
            Script.toolCall("c1", "weather", {}),
            Script.finish("tool_calls")
          ],
          [Script.text("done"), Script.finish("stop")]
        ])
        const result = yield* Chat.run("go", { tools: [tool] }).pipe(Effect.provide(model))
        const [first, second] = result.steps[0]!.toolResults
        assert.strictEqual(first?.content, "Oslo for 3 days")
        assert.include(String(second?.content), "invalid_arguments")
        assert.deepStrictEqual(check.thread(result.thread), [])
      }))
  }

  it.effect("M-30: a call waits for a schema that validates with a promise", () =>
    Effect.gen(function*() {
      // A Valibot schema that is asynchronous has no JSON Schema of its own, so it is given one.
      const valibot = {
        "~standard": {
          ...slow.valibot["~standard"],
          jsonSchema: toStandardJsonSchema(v.object({ city: v.string() }))["~standard"].jsonSchema
        }
      }
      const arktype = type({ city: "string" }).pipe((args) => Promise.resolve({ ...args, seen: true }))
      for (const parameters of [slow.zod, valibot]) {
        const { content, received } = yield* called(parameters, { city: "Oslo" })
        assert.deepStrictEqual([content, received], ["sunny", { city: "Oslo" }])
        const refused = yield* called(parameters, { city: "Atlantis" })
        assert.isUndefined(refused.received)
        assert.include(refused.content, "no such city")
      }
      assert.deepStrictEqual((yield* called(arktype, { city: "Oslo" })).received, { city: "Oslo", seen: true })
      assert.include((yield* called(arktype, { city: 1 })).content, "invalid_arguments")
    }))

  it.effect("M-30: a schema that changes its input does not change the call of the model", () =>
    Effect.gen(function*() {
      const changing = {
        "~standard": {
          ...libraries.zod["~standard"],
          validate: (input: { city: string; readonly units: Array<string> }) => {
            input.city = input.city.trim()
            input.units.push("F")
            return { value: input }
          }
        }
      }
      const given = { city: " Oslo ", units: ["C"] }
      const { content, received } = yield* called(changing, given)
      assert.deepStrictEqual([content, received], ["sunny", { city: "Oslo", units: ["C", "F"] }])
      assert.deepStrictEqual(given, { city: " Oslo ", units: ["C"] })
    }))

  it.effect("M-30: a transform that throws or rejects is answered as an error, and the run continues", () =>
    Effect.gen(function*() {
      const throwing = z.object({ city: z.string().transform((): string => assert.fail("broken transform")) })
      // Not with Zod's own: it runs a transform that is asynchronous twice, and leaves the first rejection unhandled.
      const rejecting = {
        "~standard": { ...throwing["~standard"], validate: () => Promise.reject(new Error("broken transform")) }
      }
      for (const parameters of [throwing, rejecting]) {
        const { content, received } = yield* called(parameters, { city: "Oslo" })
        assert.isUndefined(received)
        assert.include(content, "invalid_arguments")
      }
    }))

  it("M-30: a recursive schema can be sent and read", () => {
    interface Tree {
      readonly name: string
      readonly children: ReadonlyArray<Tree>
    }
    const Tree: z.ZodType<Tree> = z.object({
      name: z.string(),
      get children() {
        return z.array(Tree)
      }
    })
    const schema = jsonSchemaOf(Tree)
    assert.strictEqual(schema.properties.children.items.$ref, "#")
    assert.isTrue(Option.isSome(StrictSchema.rewrite(schema, StrictSchema.openAi)))
    assert.deepInclude(openApi(schema)["properties"], {
      children: { type: "ARRAY", items: { type: "OBJECT", properties: {} } }
    })
    const tree = { name: "a", children: [{ name: "b", children: [] }] }
    const exit = Effect.runSyncExit(Tool.make("t", { parameters: Tree }).parameters.decode(tree))
    assert.deepStrictEqual(exit, Exit.succeed(tree))
  })

  it("M-30: Tool.make refuses a schema without a JSON Schema, and says how to provide a JSON Schema", () => {
    assert.match(refusal(v.object({ city: v.string() })), /parameters must have a JSON Schema.*toStandardJsonSchema/)
    assert.match(refusal(z.object({ at: z.date() })), /parameters must have a JSON Schema: Date cannot be represented/)
    assert.match(refusal(type({ at: "Date" })), /parameters must have a JSON Schema.*date/)
    assert.match(refusal(toStandardJsonSchema(v.object({ at: v.date() }))), /parameters must have a JSON Schema/)
    const old = { "~standard": { version: 1, vendor: "zod", validate: () => ({ value: {} }) } }
    assert.match(refusal(old), /parameters must have a JSON Schema.*update Zod/)
    assert.match(refusal({ "~standard": { ...old["~standard"], vendor: "other" } }), /~standard\.jsonSchema/)
  })

  it("M-30: constraints that JSON Schema cannot express are left out of the JSON Schema, and still checked", () => {
    const checked = toStandardJsonSchema(
      v.object({ city: v.pipe(v.string(), v.check((city) => city !== "x", "no x")) })
    )
    const narrowed = type({ city: type("string").narrow((city, context) => city !== "x" || context.reject("no x")) })
    const refined = z.object({ city: z.string().refine((city) => city !== "x", "no x") })
    for (const parameters of [checked, narrowed, refined]) {
      assert.deepStrictEqual(jsonSchemaOf(parameters).properties, { city: { type: "string" } })
      const { decode } = Tool.make("t", { parameters: parameters as typeof refined }).parameters
      assert.deepStrictEqual(Effect.runSyncExit(decode({ city: "y" })), Exit.succeed({ city: "y" }))
      assert.include(String(Effect.runSyncExit(decode({ city: "x" }))), "no x")
    }
  })

  it("M-30: a schema that accepts any value is offered as an object", () => {
    for (const anything of [z.any(), type("unknown"), Schema.Unknown, Schema.Any]) {
      assert.deepStrictEqual(jsonSchemaOf(anything), { type: "object" })
    }
  })

  it("M-30: the standard interface of an Effect Schema gives the JSON Schema of that Schema", () => {
    const standard = Schema.toStandardJSONSchemaV1(Schema.Struct({ n: Schema.Number }))
    assert.deepStrictEqual(jsonSchemaOf(standard).properties, { n: { type: "number" } })
  })
})

describe("parameters without a schema of an object", () => {
  it("M-30: shorthand or mixed fields are refused by the name of the field", () => {
    assert.match(refusal({ city: "string" }), /parameters\.city must be a Schema.*got: "string"/)
    assert.match(refusal({ city: Schema.String, days: { type: "number" } }), /parameters\.days must be a Schema/)
    assert.match(refusal({ city: Schema.String, days: "number" }), /parameters\.days must be a Schema/)
    assert.match(refusal({ type: "Weather" }), /parameters\.type must be a Schema/)
    for (const field of [z.string(), v.string(), type("string")]) {
      assert.match(refusal({ city: field }), /parameters\.city is a schema of another library/)
      assert.match(refusal({ city: field, days: Schema.Finite }), /parameters\.city is a schema of another library/)
      assert.match(refusal({ type: "object", properties: { city: field } }), /properties\.city/)
    }
    assert.match(refusal({ type: "object", properties: { city: Schema.String } }), /properties\.city/)
    assert.match(refusal({ type: "object", properties: { city: "string" } }), /properties\.city is "string"/)
  })

  it("M-30: a root that accepts no object is refused in every notation, and a root that accepts objects is offered", () => {
    const roots: ReadonlyArray<unknown> = [
      Schema.String,
      Schema.Number,
      Schema.Array(Schema.String),
      Schema.Null,
      Schema.Void,
      Schema.Date,
      Schema.FiniteFromString,
      Schema.Literals(["a", "b"]),
      Schema.Union([Schema.String, Schema.Finite]),
      z.string(),
      z.array(z.object({})),
      type("string"),
      type("string | number"),
      toStandardJsonSchema(v.picklist(["a"])),
      { type: "string" },
      { type: ["array", "null"] },
      { anyOf: [{ type: "string" }, { type: "number" }] },
      { $ref: "#/$defs/Name", $defs: { Name: { type: "string" } } }
    ]
    for (const root of roots) assert.match(refusal(root), /parameters must describe an object/, String(root))
    class Query extends Schema.Class<Query>("Query")({ text: Schema.String }) {}
    const objects: ReadonlyArray<unknown> = [
      Query,
      Schema.Record(Schema.String, Schema.Unknown),
      Schema.Union([Schema.Struct({ a: Schema.String }), Schema.Struct({ b: Schema.String })]),
      Schema.suspend(() => Query),
      Schema.Json,
      { type: ["object", "null"] },
      { properties: { a: true } },
      { anyOf: [{ type: "object" }, { type: "string" }] },
      { $ref: "#/$defs/Query", $defs: { Query: { type: "object" } } }
    ]
    for (const object of objects) assert.isObject(jsonSchemaOf(object))
  })

  it("M-30: parameters that are no plain object are refused", () => {
    class Shape {
      readonly type = "object"
    }
    for (const input of [new Shape(), () => ({}), new Map(), new Date()]) {
      assert.match(refusal(input), /parameters must be struct fields, a Schema or a JSON Schema object/)
    }
  })
})

describe("a duration option", () => {
  it("M-30: \"infinity\" means no limit for every timeout", () => {
    const tool = Tool.make("t", { parameters: {}, timeout: "infinity", answerWithin: "infinity" })
    assert.isFalse(Duration.isFinite(tool.timeout as Duration.Duration))
    assert.isFalse(Duration.isFinite(tool.answerWithin!))
    assert.notProperty(Tool.askUser("?", { expiresIn: "infinity" }), "expiresInMillis")
    for (const option of ["idleTimeout", "connectTimeout", "firstChunkTimeout"]) {
      OpenAiChat.layer({ model: "m", [option]: "infinity" } as any)
    }
  })

  it("M-30: a duration that is zero or negative where it must not be is refused by the name of its option", () => {
    for (const wrong of [0, -1, "0 seconds", Duration.zero, Duration.negativeInfinity]) {
      for (const option of ["idleTimeout", "connectTimeout", "firstChunkTimeout"]) {
        const make = () => OpenAiChat.layer({ model: "m", [option]: wrong } as any)
        assert.throws(make, TypeError, `${option} must be a duration above zero`)
      }
      assert.throws(
        () => Tool.askUser("?", { expiresIn: wrong as any }),
        TypeError,
        "expiresIn must be a duration above zero"
      )
    }
    for (const option of ["retryDelay", "maxRetryDelay"]) {
      const make = (value: unknown) => () => OpenAiChat.layer({ model: "m", [option]: value } as any)
      assert.throws(make(-1), TypeError, `${option} must be a duration of zero or more`)
      assert.doesNotThrow(make(0))
    }
  })
})
