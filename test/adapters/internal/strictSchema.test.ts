/**
 * Schemas for strict modes: what a provider is sent, what it cannot be sent, and the way back from what a model wrote.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import * as StrictSchema from "../../../src/adapters/internal/strictSchema.ts"

type Json = Readonly<Record<string, unknown>>

const strict = (schema: Json, dialect = StrictSchema.openAi) =>
  Option.getOrUndefined(StrictSchema.rewrite(schema, dialect))

/** A member of an object, rewritten as OpenAI wants it. */
const member = (schema: Json, required: ReadonlyArray<string> = ["it"]): unknown => {
  const found = strict({ type: "object", properties: { it: schema }, required })
  return (found?.schema["properties"] as Json | undefined)?.["it"]
}

const restored = (schema: Json, value: Json): Json | undefined => strict(schema)?.restore(value)

describe("a strict schema", () => {
  it("a strict schema requires every member, closes every object, and makes optional members nullable", () => {
    const schema = {
      type: "object",
      properties: {
        city: { type: "string", minLength: 1, description: "Where" },
        days: { type: "integer", minimum: 1, default: 3 },
        unit: { type: "string", enum: ["C", "F"] },
        near: { type: "object", properties: { lat: { type: "number" } } }
      },
      required: ["city"]
    }
    assert.deepStrictEqual(strict(schema)?.schema, {
      type: "object",
      properties: {
        city: { type: "string", description: "Where" },
        days: { type: ["integer", "null"], minimum: 1 },
        unit: { type: ["string", "null"], enum: ["C", "F", null] },
        near: {
          type: ["object", "null"],
          properties: { lat: { type: ["number", "null"] } },
          required: ["lat"],
          additionalProperties: false
        }
      },
      required: ["city", "days", "unit", "near"],
      additionalProperties: false
    })
  })

  it("M-13: Schema.Number becomes the type number in a strict schema", () => {
    const parameters = { n: Schema.Number, many: Schema.Array(Schema.Number), maybe: Schema.optionalKey(Schema.Number) }
    const definition = Tool.definition(Tool.make("t", { parameters })).parameters
    assert.deepInclude(strict(definition)?.schema, {
      properties: {
        n: { type: "number" },
        many: { type: "array", items: { type: "number" } },
        maybe: { type: ["number", "null"] }
      }
    })
  })

  it("a strict schema for Anthropic leaves optional members optional", () => {
    const schema = {
      type: "object",
      properties: { a: { type: "string" }, b: { type: "integer", minimum: 1 } },
      required: ["a"]
    }
    assert.deepStrictEqual(strict(schema, StrictSchema.anthropic)?.schema, {
      type: "object",
      properties: { a: { type: "string" }, b: { type: "integer" } },
      required: ["a"],
      additionalProperties: false
    })
  })

  it("a strict schema uses the provider's keywords for alternatives, constants, formats and null", () => {
    assert.deepStrictEqual(member({ oneOf: [{ type: "string" }, { type: "null" }] }), {
      anyOf: [{ type: "string" }, { type: "null" }]
    })
    assert.deepStrictEqual(member({ const: "fixed" }), { type: "string", enum: ["fixed"] })
    assert.deepStrictEqual(member({ const: null }), { type: "null", enum: [null] })
    assert.deepStrictEqual(member({ type: "integer", allOf: [{ minimum: 1 }, { maximum: 9, title: "n" }] }), {
      type: "integer",
      minimum: 1,
      maximum: 9,
      title: "n"
    })
    assert.deepStrictEqual(member({ type: "string", format: "uuid" }), { type: "string", format: "uuid" })
    assert.deepStrictEqual(member({ type: "string", format: "color" }), { type: "string" })
    assert.deepStrictEqual(member({ type: ["string", "null"] }, []), { type: ["string", "null"] })
    assert.deepStrictEqual(member({ anyOf: [{ type: "string" }] }, []), {
      anyOf: [{ type: "string" }, { type: "null" }]
    })
    assert.deepStrictEqual(member({ $ref: "#/$defs/A" }, []), { anyOf: [{ $ref: "#/$defs/A" }, { type: "null" }] })
  })

  it("a strict schema rewrites lists, choices and definitions", () => {
    const open = { type: "object", properties: { x: { type: "string" } } }
    const closed = {
      type: "object",
      properties: { x: { type: ["string", "null"] } },
      required: ["x"],
      additionalProperties: false
    }
    assert.deepStrictEqual(member({ type: "array", items: open, minItems: 1, uniqueItems: true }), {
      type: "array",
      items: closed,
      minItems: 1
    })
    assert.deepStrictEqual(member({ anyOf: [open, { type: "null" }] }), { anyOf: [closed, { type: "null" }] })
    const named = strict({ type: "object", properties: { a: { type: "null" } }, $defs: { A: open } })
    assert.deepStrictEqual(named?.schema["$defs"], { A: closed })
  })

  it("no strict schema exists for a schema that a provider cannot enforce", () => {
    for (
      const schema of [
        { type: "object" },
        { type: "object", properties: {} },
        { type: "object", additionalProperties: { type: "string" } },
        { type: "object", properties: { a: {} }, required: ["a"] },
        { type: "object", properties: { a: true }, required: ["a"] },
        { type: "object", properties: { a: { type: "object" } }, required: ["a"] },
        { type: "object", properties: { a: { type: "array" } } },
        { type: "object", properties: { a: { type: "array", prefixItems: [{ type: "string" }] } } },
        { type: "object", properties: {}, patternProperties: { "^x": { type: "string" } } },
        { type: "object", properties: { a: { type: "integer", minimum: 1, allOf: [{ minimum: 2 }] } } },
        { type: "array", items: { type: "string" } },
        { type: "string" },
        { anyOf: [{ type: "object", properties: {} }] }
      ]
    ) {
      assert.isUndefined(strict(schema), JSON.stringify(schema))
    }
    assert.deepStrictEqual(strict({ type: "object", additionalProperties: false })?.schema, {
      type: "object",
      properties: {},
      required: [],
      additionalProperties: false
    })
  })

  it("a strict schema is made once for a schema and a provider, and the schema stays unchanged", () => {
    const schema = { type: "object", properties: { a: { type: "string" } } }
    const copy = structuredClone(schema)
    assert.strictEqual(strict(schema), strict(schema))
    assert.notStrictEqual<unknown>(strict(schema), strict(schema, StrictSchema.anthropic))
    assert.deepStrictEqual(schema, copy)
  })

  it("restore removes the nulls that stand for missing members, and no other nulls", () => {
    const point = { type: "object", properties: { x: { type: "number" }, note: { type: "string" } }, required: ["x"] }
    const schema = {
      type: "object",
      properties: {
        city: { type: "string" },
        day: { type: "string" },
        unset: { type: ["string", "null"] },
        points: { type: "array", items: { $ref: "#/$defs/Point" } },
        shape: {
          oneOf: [
            { type: "object", properties: { kind: { const: "dot" }, size: { type: "number" } }, required: ["kind"] },
            { type: "object", properties: { kind: { const: "line" }, size: { type: ["number", "null"] } } }
          ]
        }
      },
      required: ["city"],
      $defs: { Point: point }
    }
    assert.deepStrictEqual(
      restored(schema, {
        city: null,
        day: null,
        unset: null,
        points: [{ x: 1, note: null }, { x: null, note: "n" }],
        shape: { kind: "dot", size: null },
        unknown: null
      }),
      {
        city: null,
        unset: null,
        points: [{ x: 1 }, { x: null, note: "n" }],
        shape: { kind: "dot" },
        unknown: null
      }
    )
    assert.deepStrictEqual(restored(schema, { city: "Oslo", shape: { kind: "line", size: null } }), {
      city: "Oslo",
      shape: { kind: "line", size: null }
    })
  })

  it("restore accepts references to nothing and to themselves", () => {
    const schema = {
      type: "object",
      properties: { next: { $ref: "#" }, lost: { $ref: "#/$defs/none" }, loop: { $ref: "#/$defs/loop" } },
      $defs: { loop: { $ref: "#/$defs/loop" } }
    }
    assert.deepStrictEqual(restored(schema, { next: { next: null, lost: null, loop: null } }), { next: {} })
  })

  it("restore reads back the arguments of a tool declared with Effect Schema", () => {
    const tool = Tool.make("find", {
      parameters: { query: Schema.NonEmptyString, limit: Schema.optionalKey(Schema.Int) },
      handler: () => null as never
    })
    const restore = StrictSchema.restore([Tool.definition(tool)], StrictSchema.openAi)
    assert.deepStrictEqual(restore("find", { query: "x", limit: null }), { query: "x" })
    assert.deepStrictEqual(restore("other", { query: "x", limit: null }), { query: "x", limit: null })
  })
})
