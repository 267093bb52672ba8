/**
 * Outcomes as JSON: one that was written and read again is answered with the text that the first run has, whatever the
 * schemas of the tool, the encoder and the policy; what cannot be read is a typed error that names the tool.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"
import * as Stream from "effect/Stream"
import { Encoder, Executor, Message, Policy, Tool, ToolRunner } from "heddle"
import * as OutcomeJson from "../src/internal/answer/outcomeJson.ts"
import { endingRun } from "../src/internal/declare/outcome.ts"
import { property } from "./support/property.ts"

const secret = "sk-ANTIQUE-LOOM"

class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}

class Priced extends Schema.TaggedError<Priced>()("Priced", {
  amount: Schema.BigInt,
  at: Schema.Date,
  tags: Schema.Array(Schema.String)
}) {
  override get message(): string {
    return `it costs ${this.amount}`
  }
}

class Guarded extends Schema.TaggedError<Guarded>()("Guarded", {
  token: Schema.Redacted(Schema.String),
  user: Schema.String
}) {}

class Lost extends Data.TaggedError("Lost")<{ readonly path: string; readonly cause: unknown }> {}

class Point extends Schema.Class<Point>("Point")({ x: Schema.Finite, at: Schema.Date }) {}

class Plain {
  readonly x = 1
  readonly hidden = () => 1
  get twice() {
    return this.x * 2
  }
}

class Tagged {
  readonly _tag = "Tagged"
  readonly name = "nested"
  readonly inner = { deep: [1, null, { key: "v" }] }
}

/** An encoder that shows what others hide: the kind of each value. */
const kinds: Encoder.Service = {
  encode: (value) =>
    Effect.try({
      try: () => {
        const path: Array<unknown> = []
        const kindOf = (inner: unknown): string => {
          if (path.includes(inner)) return "again"
          path.push(inner)
          const kind = insideOf(inner)
          path.pop()
          return kind
        }
        const insideOf = (inner: unknown): string => {
          if (inner instanceof Date) {
            return Number.isNaN(inner.getTime())
              ? "json object null"
              : `date ${inner.getTime()}`
          }
          if (typeof inner === "function") return "function"
          if (typeof inner !== "object" || inner === null) return `${typeof inner} ${String(inner)}`
          const { toJSON } = Object(inner)
          if (typeof toJSON === "function") return `json ${kindOf(Reflect.apply(toJSON, inner, ["a"]))}`
          if (inner instanceof Map) {
            return `map ${[...inner].map(([key, one]) => `${kindOf(key)}=${kindOf(one)}`).join()}`
          }
          if (inner instanceof Set) return `set ${[...inner].map(kindOf).join()}`
          if (inner instanceof Uint8Array) return `bytes ${inner.join()}`
          if (Array.isArray(inner)) return `[${Array.from(inner, kindOf).join()}]`
          return `{${Object.entries(inner).map(([key, one]) => `${key}:${kindOf(one)}`).join()}}`
        }
        return kindOf(value)
      },
      catch: (cause) => cause
    })
}

const encoders = { json: Encoder.json, allm: Encoder.allm, falai: Encoder.falai, kinds }

const policies: ReadonlyArray<Policy.Policy> = [
  Policy.standard,
  { ...Policy.standard, crashes: "told" },
  { ...Policy.standard, resultLimit: 40 },
  { ...Policy.standard, resultLimit: 64, resultCut: "head" },
  Policy.allm,
  Policy.falai
]

interface Settings {
  readonly encoder: keyof typeof encoders
  readonly policy: Policy.Policy
  readonly onToolError: "continue" | "halt"
}

const every: ReadonlyArray<Settings> = (Object.keys(encoders) as ReadonlyArray<keyof typeof encoders>).flatMap(
  (encoder) =>
    policies.flatMap((policy) =>
      (["continue", "halt"] as const).map((onToolError) => ({ encoder, policy, onToolError }))
    )
)

/** The settings under which failures are compared: of one that has no schema there is no more than what is shown of it. */
const forFailures = every.filter(({ encoder }) => encoder !== "kinds")

/** What a call is answered with by an executor that gives an outcome: all that the model and the consumer read of it. */
const answerOf = (
  tool: Tool.Any,
  outcome: unknown,
  { encoder, onToolError, policy }: Settings
): Effect.Effect<ReadonlyArray<object>, never, any> =>
  ToolRunner.stream([Message.toolCall("c0", "t")], [tool], { onToolError, policy }).pipe(
    Stream.runCollect,
    Effect.map((events) =>
      events.flatMap((event): ReadonlyArray<object> => {
        if (event._tag === "ToolExecutionCompleted") return [{ result: event.result._tag, cause: event.cause }]
        if (event._tag === "ToolHalt") return [{ reason: event.reason, content: event.content }]
        if (event._tag === "AskUserRequested") return [{ ...event, opts: event.opts.length }]
        return event._tag === "ToolResultEncoded" ? [event] : []
      })
    ),
    Effect.provide(Executor.layer({ execute: () => Effect.succeed(outcome as never) })),
    Effect.provide(Encoder.layer(encoders[encoder])),
    Effect.provide(Logger.layer([])),
    Effect.orDie
  )

/** The outcome after it was written as the text of a file and read again. */
const again = (tool: Tool.Any, outcome: unknown): Effect.Effect<Tool.Outcome, Tool.OutcomeError, any> =>
  Effect.gen(function*() {
    const json = yield* Tool.encodeOutcome(tool, outcome as Tool.Outcome)
    const text = JSON.stringify(json)
    assert.notInclude(text, secret)
    return yield* Tool.decodeOutcome(tool, JSON.parse(text))
  })

/** What is wrong with an outcome: where it is answered in another way once it was read again. */
const differences = (
  tool: Tool.Any,
  outcome: unknown,
  settings: ReadonlyArray<Settings>
): Effect.Effect<ReadonlyArray<string>, Tool.OutcomeError, any> =>
  Effect.gen(function*() {
    const recalled = yield* again(tool, outcome)
    const { outcome: kept } = yield* OutcomeJson.record(tool, outcome as Tool.Outcome)
    const wrong: Array<string> = []
    for (const one of settings) {
      const first = JSON.stringify(yield* answerOf(tool, outcome, one))
      const second = JSON.stringify(yield* answerOf(tool, recalled, one))
      const while_ = JSON.stringify(yield* answerOf(tool, kept, one))
      if (first !== second) wrong.push(`${one.encoder}, ${one.onToolError}: ${first}\nread again: ${second}`)
      if (first !== while_) wrong.push(`${one.encoder}, ${one.onToolError}: ${first}\nrecorded: ${while_}`)
    }
    return wrong
  })

const bare: Tool.Any = Tool.make("t", { parameters: {}, handler: () => Effect.void })

const withSchemas = (success: Schema.Constraint | undefined, failure?: Schema.Constraint): Tool.Any =>
  Tool.make("t", {
    parameters: {},
    ...(success === undefined ? {} : { success }),
    ...(failure === undefined ? {} : { failure }),
    handler: () => Effect.void
  } as never)

const cyclic = (): object => {
  const value: Record<string, unknown> = { a: 1 }
  value["self"] = value
  return value
}

const request = HttpClientRequest.get(`https://api.test/v1?key=${secret}&q=1`)

const failures: Readonly<Record<string, () => unknown>> = {
  "a text": () => "no such city",
  "a text with a key": () => `GET https://api.test/?api_key=${secret} failed`,
  "nothing": () => undefined,
  "null": () => null,
  "a number": () => Number.NaN,
  "a bigint": () => 7n,
  "a symbol": () => Symbol.for("not_found"),
  "data": () => ({ code: 7, at: new Date(0), list: [1, undefined, new Error("inner")], none: undefined }),
  "data with a message": () => ({ message: "it broke", code: 7, nested: { a: [true] } }),
  "an Error": () => new Error("disk full"),
  "an Error without words": () => new Error(),
  "a TypeError with fields": () => Object.assign(new TypeError("x is y"), { code: "E_X", retry: true, list: [1] }),
  "an Error with a cause": () => new Error("outer", { cause: new Error(secret) }),
  "an Error with many words": () => new Error("word ".repeat(4_000)),
  "an Error with many fields": () =>
    Object.assign(
      new Error("many"),
      Object.fromEntries(Array.from({ length: 400 }, (_, at) => [`f${at}`, "v".repeat(50)]))
    ),
  "a tagged error": () => new NotFound({ path: "/a" }),
  "a tagged error with more": () => new Priced({ amount: 5n, at: new Date(0), tags: ["a", "b"] }),
  "a tagged error of Data": () => new Lost({ path: "/a", cause: new Error(secret) }),
  "a tagged error with a secret": () => new Guarded({ token: Redacted.make(secret), user: "ann" }),
  "an object with a tag": () => new Tagged(),
  "an instance": () => new Plain(),
  "a schema's instance": () => new Point({ x: 1, at: new Date(0) }),
  "an unknown error": () => new Cause.UnknownError(new NotFound({ path: "/b" }), "it broke"),
  "an unknown error without a cause": () => new Cause.UnknownError(undefined, "it broke"),
  "an error of a request": () =>
    new HttpClientError.HttpClientError({
      reason: new HttpClientError.TransportError({ request, description: "refused", cause: new Error(secret) })
    }),
  "an option": () => Option.some({ a: 1 }),
  "a redacted text": () => Redacted.make(secret),
  "bytes": () => new Uint8Array([1, 2, 3]),
  "a cycle": cyclic,
  "what throws when it is read": () => ({
    get broken() {
      throw new Error("no")
    }
  })
}

const reasons = [
  "handler_raised",
  "handler_exit",
  "timeout",
  "invalid_return",
  "not_found",
  "encoding_failed",
  "unknown_tool",
  "invalid_arguments",
  "truncated_arguments",
  "denied",
  "cancelled",
  "unknown_effect"
] as const

const values: Readonly<Record<string, () => unknown>> = {
  "a text": () => "as it is",
  "a text that looks like JSON": () => "{\"a\":1}",
  "nothing": () => undefined,
  "null": () => null,
  "numbers": () => [0, -0, 1.5, Number.NaN, Infinity, -Infinity, 1e300],
  "a bigint": () => 12345678901234567890n,
  "a bigint inside": () => ({ id: 7n }),
  "a symbol": () => Symbol.for("s"),
  "a function": () => () => 1,
  "members that JSON leaves out": () => ({ a: undefined, b: () => 1, c: Symbol.for("c"), d: [undefined, () => 1] }),
  "a date": () => new Date(86_400_000),
  "a date that is none": () => ({ at: new Date(Number.NaN) }),
  "a map and a set": () => ({ map: new Map([[{ k: 1 }, new Set([1, "a"])]]), set: new Set() }),
  "bytes": () => ({ body: new Uint8Array([0, 255, 7]) }),
  "a buffer": () => Buffer.from("heddle"),
  "an instance": () => new Plain(),
  "a schema's instance": () => new Point({ x: 1, at: new Date(0) }),
  "what writes itself as a text": () => ({ toJSON: () => "itself" }),
  "what writes itself by its key": () => ({ a: { toJSON: (key: string) => `of ${key}` } }),
  "what throws when it is written": () => ({
    toJSON: () => {
      throw new NotFound({ path: "/toJSON" })
    }
  }),
  "what throws when it is read": () => ({
    a: 1,
    get broken() {
      throw new RangeError("no")
    }
  }),
  "an error": () => Object.assign(new Error("as a value"), { code: 5 }),
  "a cycle": cyclic,
  "a member that is called as ours": () => ({ "~": ["Date", "1970-01-01T00:00:00.000Z"], "a": 1 }),
  "a member that is called __proto__": () => JSON.parse("{\"a\":1,\"__proto__\":{\"b\":2}}"),
  "an object without a prototype": () => Object.assign(Object.create(null), { a: 1 }),
  "a hole in a list": () => {
    const list = [1, 2, 3]
    delete list[1]
    return list
  },
  "more than the limit": () => Array.from({ length: 200 }, (_, at) => `line ${at}\n`).join(""),
  "parts": () =>
    Tool.content([{ type: "text", text: "seen" }, { type: "image", mediaType: "image/png", data: "iVBORw0KGgo=" }]),
  "an outcome": () => Tool.ok({ a: [1] }),
  "an outcome of parts": () => Tool.ok(Tool.content([{ type: "text", text: "seen" }])),
  "a failure": () => Tool.error("no such city"),
  "a result object": () => ({ success: true, data: { at: new Date(0) } }),
  "a failed result object": () => ({ success: false, error: "no such city" })
}

describe("outcomes as JSON", () => {
  for (const [name, value] of Object.entries(values)) {
    it.effect(`D-04: ${name} is written as it was`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* differences(bare, { _tag: "Ok", value: value() }, every), [])
        assert.deepStrictEqual(yield* differences(bare, Tool.ok(value()), every.slice(0, 2)), [])
        assert.deepStrictEqual(yield* differences(bare, Tool.halt("enough", value()), every), [])
      }))
  }

  for (const [name, failure] of Object.entries(failures)) {
    it.effect(`D-04: a failure with ${name} is written as it was`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(yield* differences(bare, { _tag: "Error", error: failure() }, forFailures), [])
        const given = failure()
        const cause = given instanceof Error ? given : { _tag: "Thrown", value: given }
        const error = new Tool.ToolError({ reason: "handler_raised", toolName: "t", toolCallId: "c0", cause })
        assert.deepStrictEqual(yield* differences(bare, Tool.error(error), forFailures), [])
        const unwritten = new Tool.ToolError({ reason: "encoding_failed", cause: given })
        assert.deepStrictEqual(yield* differences(bare, Tool.error(unwritten), forFailures), [])
      }))
  }

  for (const reason of reasons) {
    it.effect(`D-04: the runtime's own error ${reason} is written as it was, and is one`, () =>
      Effect.gen(function*() {
        for (const fields of [{}, { detail: "why", metadata: { gate: "validate", at: new Date(0) } }]) {
          const error = new Tool.ToolError({
            reason,
            toolName: "t",
            toolCallId: "c0",
            cause: new Error("it"),
            ...fields
          })
          assert.deepStrictEqual(yield* differences(bare, Tool.error(error), forFailures), [])
          const outcome = yield* again(bare, Tool.error(error))
          assert.instanceOf(outcome._tag === "Error" && outcome.error, Tool.ToolError)
        }
      }))
  }

  it.effect("D-04: a question keeps its choices, its type and its time", () =>
    Effect.gen(function*() {
      const question = Tool.askUser("Which?", {
        opts: [{ kind: "pick" }, "none"],
        answer: Schema.Int,
        within: "1 day",
        default: 7
      })
      assert.deepStrictEqual(yield* differences(bare, question, every.slice(0, 4)), [])
      assert.deepStrictEqual({ ...(yield* again(bare, question)) }, { ...question })
    }))

  it.effect("D-04: what is no outcome is refused again with the same text", () =>
    Effect.gen(function*() {
      const odd = [undefined, null, 7, "Ok", { _tag: "Ok" }, { _tag: "Halt", reason: "" }, new Error("no outcome"), []]
      for (const outcome of odd) assert.deepStrictEqual(yield* differences(bare, outcome, every), [])
    }))

  it.effect("D-04: a halt with a reason of the runtime's is refused again", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* differences(bare, Tool.halt("max_turns", 1), every), [])
    }))

  it.effect("a failure that ends the run ends it again", () =>
    Effect.gen(function*() {
      const outcome = endingRun(Tool.error(new Tool.ToolError({ reason: "unknown_effect" })))
      const settings = every.filter(({ onToolError }) => onToolError === "continue")
      assert.deepStrictEqual(yield* differences(bare, outcome, settings), [])
      const [, tail] = yield* answerOf(bare, yield* again(bare, outcome), settings[0]!)
      assert.deepInclude(tail, { reason: "tool_error" })
    }))
})

describe("outcomes by the schemas of a tool", () => {
  const trimmed = Schema.String.pipe(
    Schema.decodeTo(Schema.String, {
      decode: SchemaGetter.transform((text: string) => text.trim()),
      encode: SchemaGetter.transform((text: string) => `  ${text}  `)
    })
  )

  const oneWay = Schema.String.pipe(
    Schema.decodeTo(Schema.instanceOf(Plain), {
      decode: SchemaGetter.forbidden(() => "only written"),
      encode: SchemaGetter.transform((plain: Plain) => `plain ${plain.x}`)
    })
  )

  const lossy = Schema.Number.pipe(
    Schema.decodeTo(Schema.Number, {
      decode: SchemaGetter.transform((rounded: number) => rounded + 0.4),
      encode: SchemaGetter.transform((exact: number) => Math.round(exact * 3))
    })
  )

  const successes: ReadonlyArray<readonly [name: string, schema: Schema.Constraint, value: unknown]> = [
    ["a date", Schema.Struct({ at: Schema.Date }), { at: new Date(1e12) }],
    ["a date at the root", Schema.Date, new Date(0)],
    ["a bigint as a text", Schema.Struct({ id: Schema.BigInt }), { id: 12345678901234567890n }],
    ["an instance of a class", Point, new Point({ x: 1, at: new Date(0) })],
    [
      "an option and a map",
      Schema.Struct({ a: Schema.Option(Schema.Int), m: Schema.ReadonlyMap(Schema.String, Schema.Date) }),
      {
        a: Option.some(1),
        m: new Map([["k", new Date(0)]])
      }
    ],
    ["a text that its schema changes", trimmed, "a"],
    ["a number that its schema does not read as it wrote it", lossy, 1.2],
    ["what its schema can only write", Schema.Struct({ plain: oneWay }), { plain: new Plain() }],
    ["anything", Schema.Unknown, { at: new Date(0), n: [1] }],
    ["nothing", Schema.Void, undefined],
    ["NaN", Schema.Number, Number.NaN],
    ["a value that does not fit", Schema.Struct({ n: Schema.Finite }), { n: "five" }],
    ["a date that does not fit", Schema.Struct({ n: Schema.Finite }), { n: new Date(0) }],
    ["parts", Schema.Struct({ n: Schema.Finite }), Tool.content([{ type: "text", text: "seen" }])],
    ["more than the limit", Schema.Array(Schema.Date), Array.from({ length: 50 }, (_, at) => new Date(at))]
  ]

  for (const [name, schema, value] of successes) {
    it.effect(`D-04: ${name} is written as it was`, () =>
      Effect.gen(function*() {
        const tool = withSchemas(schema)
        assert.deepStrictEqual(yield* differences(tool, { _tag: "Ok", value }, every), [])
        assert.deepStrictEqual(
          yield* differences(tool, { _tag: "Ok", value: { success: true, data: value } }, every),
          []
        )
      }))
  }

  it.effect("D-04: a result that is read again has the type of its schema", () =>
    Effect.gen(function*() {
      const point = new Point({ x: 1, at: new Date(0) })
      const outcome = yield* again(withSchemas(Point), Tool.ok(point))
      assert.isTrue(outcome._tag === "Ok" && outcome.value instanceof Point)
      assert.deepStrictEqual(outcome._tag === "Ok" && outcome.value, point)
    }))

  it.effect("a result is written by its schema once, for the record and for the answer", () =>
    Effect.gen(function*() {
      let count = 0
      const counted = Schema.String.pipe(
        Schema.decodeTo(Schema.String, {
          decode: SchemaGetter.passthrough(),
          encode: SchemaGetter.transform((text: string) => `${++count}${text}`)
        })
      )
      const tool = withSchemas(counted)
      const { json, outcome } = yield* OutcomeJson.record(tool, Tool.ok("a"))
      const [, tail] = yield* answerOf(tool, outcome, every[0]!)
      assert.deepInclude(tail, { content: "1a" })
      assert.deepStrictEqual(json, { _tag: "Ok", encoded: "1a" })
    }))

  const failing = Schema.Union([
    NotFound,
    Priced,
    Guarded,
    Schema.Struct({ code: Schema.Finite }),
    Schema.Literal("busy")
  ])

  for (
    const [name, failure] of [
      ...Object.entries(failures),
      ["a code", () => ({ code: 7 })] as const,
      ["a word", () => "busy"] as const
    ]
  ) {
    it.effect(`D-04: a failure with ${name} is written as it was by the schema, or as without one`, () =>
      Effect.gen(function*() {
        const tool = withSchemas(undefined, failing)
        assert.deepStrictEqual(yield* differences(tool, { _tag: "Error", error: failure() }, forFailures), [])
      }))
  }

  it.effect("D-04: an error whose schema has no message keeps it", () =>
    Effect.gen(function*() {
      const tool = withSchemas(undefined, Schema.Struct({ code: Schema.Finite }))
      const error = Object.assign(new Error("the disk is full"), { code: 28 })
      assert.deepStrictEqual(yield* differences(tool, Tool.error(error), forFailures), [])
    }))

  it.effect("D-04: a failure that is read again is of its class, so that an error policy decides as it did", () =>
    Effect.gen(function*() {
      const tool = withSchemas(undefined, failing)
      const outcome = yield* again(tool, Tool.error(new Priced({ amount: 5n, at: new Date(0), tags: [] })))
      const error = outcome._tag === "Error" ? outcome.error : undefined
      assert.instanceOf(error, Priced)
      assert.strictEqual((error as Priced).amount, 5n)
    }))

  it.effect("a secret is not recorded, nor is a key in a URL", () =>
    Effect.gen(function*() {
      const outcome = yield* again(
        withSchemas(undefined, failing),
        Tool.error(failures["a tagged error with a secret"]!())
      )
      assert.notInstanceOf(outcome._tag === "Error" && outcome.error, Guarded)
      const linked = Schema.Struct({ url: Schema.String })
      yield* again(withSchemas(undefined, linked), Tool.error({ url: `https://api.test/?token=${secret}` }))
    }))
})

describe("outcomes that cannot be read", () => {
  const refusal = (tool: Tool.Any, json: unknown) =>
    Effect.map(Effect.flip(Tool.decodeOutcome(tool, json)), (error) => {
      assert.instanceOf(error, Tool.OutcomeError)
      assert.strictEqual(error.toolName, "t")
      assert.include(error.message, "the recorded outcome of a call of \"t\" cannot be read: ")
      return error.detail
    })

  it.effect("a result or a failure that the schema of the tool does not fit any more names the field", () =>
    Effect.gen(function*() {
      const json = yield* Tool.encodeOutcome(
        withSchemas(Schema.Struct({ at: Schema.Date })),
        Tool.ok({ at: new Date(0) })
      )
      const changed = yield* refusal(withSchemas(Schema.Struct({ at: Schema.Finite })), json)
      assert.include(changed, "its success does not fit the success schema of the tool")
      assert.include(changed, "[\"at\"]")
      const failed = yield* Tool.encodeOutcome(
        withSchemas(undefined, NotFound),
        Tool.error(new NotFound({ path: "/a" }))
      )
      const renamed = yield* refusal(withSchemas(undefined, Priced), failed)
      assert.include(renamed, "its failure does not fit the failure schema of the tool")
    }))

  it.effect("a tool that has lost its schema, or has one now, has the text that was written", () =>
    Effect.gen(function*() {
      const dated = withSchemas(Schema.Struct({ at: Schema.Date }))
      const json = yield* Tool.encodeOutcome(dated, Tool.ok({ at: new Date(0) }))
      const [, lost] = yield* answerOf(bare, yield* Tool.decodeOutcome(bare, json), every[0]!)
      assert.deepInclude(lost, { content: "{\"at\":\"1970-01-01T00:00:00.000Z\"}" })
      const plain = yield* Tool.encodeOutcome(bare, Tool.ok({ n: 1 }))
      const [, gained] = yield* answerOf(dated, yield* Tool.decodeOutcome(dated, plain), every[0]!)
      assert.deepInclude(gained, { content: "{\"n\":1}" })
    }))

  const damage: ReadonlyArray<readonly [json: unknown, detail: string]> = [
    [null, "it must be an object"],
    [[], "it must be an object"],
    ["Ok", "it must be an object"],
    [{}, "there is no outcome"],
    [{ _tag: "constructor" }, "there is no outcome constructor"],
    [{ _tag: "Ok" }, "an Ok must have a value"],
    [{ _tag: "Ok", value: { "~": 7 } }, "a kind of value must be a list"],
    [{ _tag: "Ok", value: { "~": ["Regexp", "x"] } }, "there is no kind of value Regexp"],
    [{ _tag: "Ok", value: { "~": ["bigint", "x"] } }, "a bigint must have digits"],
    [{ _tag: "Ok", value: { "~": ["number", "7"] } }, "a number must be NaN"],
    [{ _tag: "Ok", value: { "~": ["Date", 7] } }, "a date must be in ISO form"],
    [{ _tag: "Ok", value: { "~": ["Uint8Array", "%"] } }, "bytes must be in base64"],
    [{ _tag: "Ok", value: { "~": ["Map", [7]] } }, "an entry of a map must be a list"],
    [{ _tag: "Ok", value: { "~": ["Set", "x"] } }, "a set must be a list"],
    [{ _tag: "Ok", value: { "~": ["object", [[7, 1]]] } }, "the name of a member must be a text"],
    [{ _tag: "Ok", value: { "~": ["content", [{ type: "text" }]] } }, "part 0 has no text"],
    [{ _tag: "Ok", value: { a: { "~": ["cycle", 9] } } }, "a cycle must lead to a value around it"],
    [{ _tag: "Ok", value: { a: { "~": ["cycle", "x"] } } }, "a cycle must lead to a value around it"],
    [{ _tag: "Error" }, "an Error must have a reason"],
    [{ _tag: "Error", reason: "x" }, "a reason must be an object"],
    [{ _tag: "Error", reason: { _tag: "x" } }, "there is no kind of reason x"],
    [{ _tag: "Error", reason: { _tag: "ToolError", reason: "eaten" } }, "one of the reasons of the runtime"],
    [{ _tag: "Error", reason: { _tag: "Error", fields: 7 } }, "the fields of an error must be an object"],
    [{ _tag: "Error", reason: { _tag: "UnknownError", cause: { _tag: "Data" } } }, "a message must be a text"],
    [{ _tag: "AskUser" }, "it is no AskUser"],
    [{ _tag: "AskUser", question: "Which?", opts: {} }, "it is no AskUser"],
    [{ _tag: "Halt", reason: "" }, "it is no Halt"]
  ]

  for (const [json, detail] of damage) {
    it.effect(`${JSON.stringify(json)}`, () =>
      Effect.gen(function*() {
        assert.include(yield* refusal(bare, json), detail)
      }))
  }

  it.effect("what nests too deeply is refused, and written cut", () =>
    Effect.gen(function*() {
      let deep: unknown = 1
      for (let level = 0; level < 100_000; level++) deep = { deep }
      assert.include(yield* refusal(bare, { _tag: "Ok", value: deep }), "nested too deeply")
      const json = yield* Tool.encodeOutcome(bare, Tool.ok(deep))
      assert.include(JSON.stringify(json), "[too deep]")
      yield* Tool.decodeOutcome(bare, json)
      const error = new Error("deep", { cause: deep })
      yield* again(bare, Tool.error(new Tool.ToolError({ reason: "handler_raised", cause: error })))
    }))

  it.effect("a value that refers to one value from many places has an end", () =>
    Effect.gen(function*() {
      let wide: unknown = "x".repeat(100)
      for (let level = 0; level < 40; level++) wide = [wide, wide]
      const json = yield* Tool.encodeOutcome(bare, Tool.ok(wide))
      assert.include(JSON.stringify(json), "[truncated]")
    }))

  it.effect("a member called __proto__ changes no prototype", () =>
    Effect.gen(function*() {
      const outcome = yield* Tool.decodeOutcome(
        bare,
        JSON.parse("{\"_tag\":\"Ok\",\"value\":{\"__proto__\":{\"polluted\":1}}}")
      )
      const value = (outcome._tag === "Ok" ? outcome.value : undefined) as { readonly polluted?: unknown }
      assert.strictEqual(Object.getPrototypeOf(value), Object.prototype)
      assert.isUndefined(value.polluted)
    }))
})

describe("generated outcomes", () => {
  type Seed =
    | string
    | number
    | boolean
    | null
    | bigint
    | Date
    | { readonly odd: "undefined" | "function" | "symbol" | "nan" | "-0" | "cycle" | "throws" }
    | { readonly list: ReadonlyArray<Seed> }
    | { readonly members: { readonly [name: string]: Seed } }
    | { readonly map: ReadonlyArray<readonly [Seed, Seed]> }
    | { readonly set: ReadonlyArray<Seed> }
    | { readonly json: Seed }
    | { readonly error: string; readonly tag: string | null; readonly own: { readonly [name: string]: Seed } }
    | { readonly outcome: "Ok" | "Error"; readonly of: Seed }

  const text = Schema.Union([
    Schema.String,
    Schema.Literals(["", "~", "__proto__", "message", "_tag", "name", "cause", "stack", "request", "toJSON"]),
    Schema.Literals(["[truncated]", "{\"a\":1}", "a\nb", "https://x.test/?token=abc&page=1", "word ".repeat(30)])
  ])
  const inner = Schema.suspend((): Schema.Codec<Seed> => seeds)
  const seeds: Schema.Codec<Seed> = Schema.Union([
    text,
    Schema.Finite,
    Schema.Boolean,
    Schema.Null,
    Schema.BigInt,
    Schema.Date,
    Schema.Struct({ odd: Schema.Literals(["undefined", "function", "symbol", "nan", "-0", "cycle", "throws"]) }),
    Schema.Struct({ list: Schema.Array(inner) }),
    Schema.Struct({ members: Schema.Record(text, inner) }),
    Schema.Struct({ map: Schema.Array(Schema.Tuple([inner, inner])) }),
    Schema.Struct({ set: Schema.Array(inner) }),
    Schema.Struct({ json: inner }),
    Schema.Struct({ error: text, tag: Schema.NullOr(text), own: Schema.Record(text, inner) }),
    Schema.Struct({ outcome: Schema.Literals(["Ok", "Error"]), of: inner })
  ]) as never

  /** A value that a handler may come to. */
  const built = (seed: Seed, around: object = {}): unknown => {
    if (typeof seed !== "object" || seed === null || seed instanceof Date) return seed
    if ("list" in seed) {
      const list: Array<unknown> = []
      for (const one of seed.list) list.push(built(one, list))
      return list
    }
    if ("map" in seed) return new Map(seed.map.map(([key, one]) => [built(key, around), built(one, around)]))
    if ("set" in seed) return new Set(seed.set.map((one) => built(one, around)))
    if ("json" in seed) return { toJSON: () => built(seed.json) }
    if ("outcome" in seed) return (seed.outcome === "Ok" ? Tool.ok : Tool.error)(built(seed.of, around))
    if ("error" in seed) {
      const error = Object.assign(new Error(seed.error), withoutOdd(seed.own))
      return seed.tag === null ? error : Object.assign(error, { _tag: seed.tag })
    }
    if ("members" in seed) {
      const object = withoutOdd({})
      for (const [key, one] of Object.entries(seed.members)) {
        Object.defineProperty(object, key, { value: built(one, object), enumerable: true, configurable: true })
      }
      return object
    }
    const odd: Readonly<Record<typeof seed.odd, () => unknown>> = {
      "undefined": () => undefined,
      "function": () => () => 1,
      "symbol": () => Symbol.for("s"),
      "nan": () => Number.NaN,
      "-0": () => -0,
      "cycle": () => around,
      "throws": () => failures["what throws when it is read"]!()
    }
    return odd[seed.odd]()
  }

  /** Own members of an error: those that every error has are left alone. */
  const withoutOdd = (own: { readonly [name: string]: Seed }): Record<string, unknown> =>
    Object.fromEntries(
      Object.entries(own).flatMap(([key, one]) =>
        ["message", "stack", "cause", "name", "__proto__", "toJSON"].includes(key) ? [] : [[key, built(one)]]
      )
    )

  const numbered = Schema.Literals([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
  const cases = Arbitrary.schema(Schema.Struct({
    kind: Schema.Literals(["Ok", "Error", "Halt", "AskUser", "ToolError", "Thrown", "Invalid"]),
    seed: seeds,
    reason: numbered,
    first: numbered,
    hasSchemas: Schema.Boolean
  }))

  const outcomeOf = (kind: string, value: unknown, reason: number): unknown => {
    switch (kind) {
      case "Ok":
        return { _tag: "Ok", value }
      case "Error":
        return { _tag: "Error", error: value }
      case "Halt":
        return Tool.halt("enough", value)
      case "AskUser":
        return Tool.askUser("Which?", [value])
      case "Invalid":
        return value
      default: {
        const cause = kind === "Thrown" ? { _tag: "Thrown", value } : value
        return Tool.error(
          new Tool.ToolError({ reason: reasons[reason % reasons.length]!, ...(cause === undefined ? {} : { cause }) })
        )
      }
    }
  }

  const tool = withSchemas(Schema.Struct({ at: Schema.Date }), Schema.Struct({ code: Schema.Finite }))

  property(
    "D-04: are answered as they were once they are read again",
    cases,
    ({ first, hasSchemas, kind, reason, seed }) => {
      const outcome = outcomeOf(kind, built(seed), reason)
      const settings: ReadonlyArray<Settings> = (kind === "Ok" || kind === "Halt" ? every : forFailures).filter((
        _,
        index
      ) => index % 12 === first)
      return differences(hasSchemas ? tool : bare, outcome, settings) as Effect.Effect<ReadonlyArray<string>, unknown>
    },
    5_000
  )
})
