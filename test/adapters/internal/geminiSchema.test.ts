/**
 * How schemas are written for Gemini: as JSON Schema, and in the older subset of OpenAPI's schemas, which refuses what it
 * does not know.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"
import { jsonSchema, openApi } from "../../../src/adapters/internal/geminiRequest.ts"

describe("a JSON Schema for Gemini", () => {
  it("R-123: const becomes an enum with a single value in every schema, and nowhere else", () => {
    const schema = {
      $schema: "https://json-schema.org/draft/2020-12/schema",
      type: "object",
      properties: {
        const: { const: 1 },
        list: { type: "array", items: { anyOf: [{ const: "a" }, { $ref: "#/$defs/B" }] } },
        fixed: { type: "object", default: { const: 2 }, enum: [{ const: 2 }] }
      },
      required: ["const"],
      additionalProperties: false,
      $defs: { B: { const: null } }
    }
    assert.deepStrictEqual(jsonSchema(schema), {
      type: "object",
      properties: {
        const: { enum: [1] },
        list: { type: "array", items: { anyOf: [{ enum: ["a"] }, { $ref: "#/$defs/B" }] } },
        fixed: { type: "object", default: { const: 2 }, enum: [{ const: 2 }] }
      },
      required: ["const"],
      additionalProperties: false,
      $defs: { B: { enum: [null] } }
    })
  })
})

describe("an OpenAPI schema for Gemini", () => {
  it("M-13: Schema.Number becomes the type NUMBER", () => {
    const parameters = { n: Schema.Number, maybe: Schema.NullOr(Schema.Number) }
    assert.deepStrictEqual(openApi(Tool.definition(Tool.make("t", { parameters })).parameters)["properties"], {
      n: { type: "NUMBER" },
      maybe: { type: "NUMBER", nullable: true }
    })
  })

  it("R-123: a schema made by Effect is rewritten with known keywords only", () => {
    const tool = Tool.make("plan", {
      parameters: {
        city: Schema.NonEmptyString.annotate({ description: "Where" }),
        days: Schema.Int.check(Schema.isGreaterThan(0)),
        note: Schema.optionalKey(Schema.NullOr(Schema.Finite)),
        mode: Schema.Literals(["walk", "ride"]),
        place: Schema.Tuple([Schema.Finite, Schema.Finite]),
        tags: Schema.Array(Schema.String),
        extra: Schema.Record(Schema.String, Schema.Finite)
      },
      handler: () => Effect.succeed(null)
    })
    assert.deepStrictEqual(openApi(Tool.definition(tool).parameters), {
      type: "OBJECT",
      properties: {
        city: { type: "STRING", description: "Where", minLength: 1 },
        days: { type: "INTEGER", minimum: 1, maximum: Number.MAX_SAFE_INTEGER },
        note: { type: "NUMBER", nullable: true },
        mode: { type: "STRING", format: "enum", enum: ["walk", "ride"] },
        place: {
          type: "ARRAY",
          minItems: 2,
          maxItems: 2,
          items: { anyOf: [{ type: "NUMBER" }, { type: "NUMBER" }] }
        },
        tags: { type: "ARRAY", items: { type: "STRING" } },
        extra: { type: "OBJECT", properties: {} }
      },
      required: ["city", "days", "mode", "place", "tags", "extra"]
    })
  })

  it("R-123: references are resolved, a recursive reference is cut, and allOf parts merge", () => {
    const node = {
      type: "object",
      properties: { label: { type: "string" }, next: { $ref: "#/$defs/Node", description: "More" } },
      required: ["label"]
    }
    const schema = {
      allOf: [{ $ref: "#/$defs/Node" }, { properties: { size: { type: "integer" } }, required: ["size"] }],
      $defs: { Node: node }
    }
    assert.deepStrictEqual(openApi(schema), {
      type: "OBJECT",
      properties: {
        label: { type: "STRING" },
        next: { type: "OBJECT", description: "More", properties: {} },
        size: { type: "INTEGER" }
      },
      required: ["label", "size"]
    })
    assert.deepStrictEqual(openApi({ $ref: "#/$defs/Missing" }), { type: "STRING" })
  })

  it("R-123: alternatives, null and several types are rewritten as far as the subset allows", () => {
    const cases: ReadonlyArray<readonly [schema: Readonly<Record<string, unknown>>, written: unknown]> = [
      [{ type: ["string", "null"] }, { type: "STRING", nullable: true }],
      [{ type: ["string", "integer"] }, { anyOf: [{ type: "STRING" }, { type: "INTEGER" }] }],
      [{ oneOf: [{ const: "a" }, { type: "null" }] }, {
        type: "STRING",
        format: "enum",
        enum: ["a"],
        nullable: true
      }],
      [{ anyOf: [{ type: "null" }] }, { nullable: true, type: "STRING" }],
      [{ enum: [1, 2] }, { type: "NUMBER" }],
      [{ enum: [true] }, { type: "BOOLEAN" }],
      [{ type: "string", format: "uuid", default: "x", examples: ["y"] }, { type: "STRING" }],
      [{ type: "string", format: "date-time", pattern: "^2", minimum: 1 }, {
        type: "STRING",
        format: "date-time",
        pattern: "^2"
      }],
      [{ type: "number", exclusiveMinimum: 0, exclusiveMaximum: 1, multipleOf: 2 }, {
        type: "NUMBER",
        minimum: 0,
        maximum: 1
      }],
      [{ items: {} }, { type: "ARRAY", items: { type: "STRING" } }],
      [{ properties: { a: true }, required: ["a", "b"], additionalProperties: false }, {
        type: "OBJECT",
        properties: { a: { type: "STRING" } },
        required: ["a"]
      }],
      [{}, { type: "STRING" }]
    ]
    for (const [schema, written] of cases) assert.deepStrictEqual(openApi(schema), written, JSON.stringify(schema))
  })
})
