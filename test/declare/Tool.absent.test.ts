/** A null for an optional member, which models write asked to or not: without a null in its schema it is no member. */
import { assert, describe, it } from "@effect/vitest"
import { toStandardJsonSchema } from "@valibot/to-json-schema"
import { type } from "arktype"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Session, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import * as v from "valibot"
import * as z from "zod"

type Json = Readonly<Record<string, unknown>>

/** The arguments that a handler gets, or the answer of a call that has none. */
const received = (parameters: any, args: Json) =>
  Effect.gen(function*() {
    let got: unknown
    const tool: Tool.Any = Tool.make("t", {
      parameters,
      handler: (args: unknown) =>
        Effect.sync(() => {
          got = args
          return "ok"
        })
    })
    const given = JSON.stringify(args)
    const { messages } = yield* ToolRunner.run([Message.toolCall("c", "t", args)], [tool])
    assert.strictEqual(JSON.stringify(args), given, "the thread's own arguments are left alone")
    return got ?? messages[0]?.content
  })

const days = { q: "a", days: null }

describe("O-13: a null for an optional member", () => {
  const absent: Readonly<Record<string, readonly [parameters: any, args: Json, want: unknown]>> = {
    "fields of Effect": [{ q: Schema.String, days: Schema.optionalKey(Schema.Int) }, days, { q: "a" }],
    "Effect with a default": [
      { q: Schema.String, days: Schema.Int.pipe(Schema.withDecodingDefaultKey(Effect.succeed(3))) },
      days,
      { q: "a", days: 3 }
    ],
    "Zod": [z.object({ q: z.string(), days: z.number().optional() }), days, { q: "a" }],
    "Zod with a default": [z.object({ q: z.string(), days: z.number().default(3) }), days, { q: "a", days: 3 }],
    "Zod, strict": [z.strictObject({ q: z.string(), days: z.number().optional() }), days, { q: "a" }],
    "ArkType": [type({ q: "string", "days?": "number" }), days, { q: "a" }],
    "Valibot": [
      toStandardJsonSchema(v.object({ q: v.string(), days: v.optional(v.number()) })),
      days,
      { q: "a" }
    ],
    "a JSON Schema": [
      { type: "object", properties: { q: { type: "string" }, days: { type: "integer" } }, required: ["q"] },
      days,
      { q: "a" }
    ],
    "in an object in a list in an object": [
      z.object({ a: z.object({ list: z.array(z.object({ id: z.string(), n: z.number().optional() })) }) }),
      { a: { list: [{ id: "x", n: null }, { id: "y", n: 1 }] } },
      { a: { list: [{ id: "x" }, { id: "y", n: 1 }] } }
    ],
    "in a tuple": [
      z.object({ t: z.tuple([z.string(), z.object({ n: z.number().optional() })]) }),
      { t: ["x", { n: null }] },
      { t: ["x", {}] }
    ],
    "in a record": [
      z.object({ r: z.record(z.string(), z.object({ n: z.number().optional() })) }),
      { r: { a: { n: null } } },
      { r: { a: {} } }
    ],
    "in an intersection": [
      z.object({ a: z.string() }).and(z.object({ b: z.string().optional() })),
      { a: "x", b: null },
      { a: "x" }
    ],
    "in a branch of a union": [
      {
        u: Schema.Union([
          Schema.Struct({ a: Schema.String, n: Schema.optionalKey(Schema.Int) }),
          Schema.Struct({ b: Schema.String })
        ])
      },
      { u: { a: "x", n: null } },
      { u: { a: "x" } }
    ],
    "of another branch of a union at the top": [
      z.discriminatedUnion("k", [
        z.strictObject({ k: z.literal("a"), a: z.string() }),
        z.strictObject({ k: z.literal("b"), b: z.string() })
      ]),
      { k: "a", a: "x", b: null },
      { k: "a", a: "x" }
    ],
    "of a recursive schema": [
      {
        type: "object",
        properties: { next: { $ref: "#" }, n: { type: "number" } }
      },
      { next: { next: null, n: null }, n: 1 },
      { next: {}, n: 1 }
    ]
  }
  for (const [name, [parameters, args, want]] of Object.entries(absent)) {
    it.effect(`O-13: a null for an optional member is absent (${name})`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* received(parameters, args), want)
      }))
  }

  const kept: Readonly<Record<string, readonly [parameters: any, args: Json, want: unknown]>> = {
    "a nullable member": [z.object({ q: z.string(), days: z.number().nullable() }), days, days],
    "a member that may be null or absent": [z.object({ q: z.string(), days: z.number().nullish() }), days, days],
    "of Effect": [{ q: Schema.String, days: Schema.optionalKey(Schema.NullOr(Schema.Int)) }, days, days],
    "a member of any kind": [z.object({ q: z.string(), days: z.any().optional() }), days, days],
    "a literal": [z.object({ q: z.string(), days: z.literal([1, null]).optional() }), days, days],
    "a member that no schema has": [{ type: "object", properties: { q: {} } }, { q: 1, days: null }, {
      q: 1,
      days: null
    }]
  }
  for (const [name, [parameters, args, want]] of Object.entries(kept)) {
    it.effect(`O-13: a null stays null where the schema allows null (${name})`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* received(parameters, args), want)
      }))
  }

  it.effect("O-13: a null for a required member is an invalid argument", () =>
    Effect.gen(function*() {
      const answer = yield* received(z.object({ q: z.string() }), { q: null })
      assert.include(String(answer), "invalid_arguments")
    }))

  it("O-13: a schema that refers to itself endlessly is read in bounds", () => {
    const loop = {
      type: "object",
      anyOf: [{ $ref: "#" }],
      allOf: [{ $ref: "#" }],
      properties: { n: { $ref: "#/$defs/x" } }
    }
    const tool = Tool.make("t", {
      parameters: { ...loop, $defs: { x: { anyOf: [{ $ref: "#/$defs/x" }] } } },
      handler: Effect.succeed
    })
    assert.strictEqual(Effect.runSync(Effect.exit(tool.parameters.decode({ n: null, m: { n: null } })))._tag, "Success")
  })

  const got: Array<unknown> = []
  const book = (approval: boolean) =>
    Tool.make("book", {
      parameters: z.strictObject({ q: z.string(), days: z.number().optional() }),
      approval,
      handler: (args) =>
        Effect.sync(() => {
          got.push(args)
          return "ok"
        })
    })
  const model = Script.layer([
    [Script.toolCall("c", "book", days), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

  it.effect("O-13: a null for an optional member is absent in a run, an approval, edited arguments and a StreamingToolExecutor", () =>
    Effect.gen(function*() {
      got.length = 0
      yield* Chat.run("go", { tools: [book(false)] }).pipe(Effect.provide(model))
      const waiting = Effect.map(Session.start("go", { tools: [book(true)] }), ({ session }) => session)
      const resume = (session: Session.Session) => Session.continue(session, undefined, { tools: [book(true)] })
      yield* waiting.pipe(
        Effect.flatMap((session) => Session.approve(session, "c")),
        Effect.flatMap(resume),
        Effect.provide(model)
      )
      yield* waiting.pipe(
        Effect.flatMap((session) => Session.approve(session, "c", { arguments: { q: "b", days: null } })),
        Effect.flatMap(resume),
        Effect.provide(model)
      )
      yield* Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* executor.addTool(Message.toolCall("c", "book", days), book(false))
        yield* executor.noMoreCalls
        yield* Stream.runDrain(executor.remainingResults)
      }))
      assert.deepStrictEqual(got, [{ q: "a" }, { q: "a" }, { q: "b" }, { q: "a" }])
    }))
})
