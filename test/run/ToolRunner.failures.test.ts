/** The text that a model reads of each kind of failure, to the letter, and that no encoder or policy shows a secret in it. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { Encoder, Executor, Message, Policy, Tool, ToolRunner } from "heddle"

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

class Tagged {
  readonly _tag = "Tagged"
  readonly name = "nested"
  readonly inner = { deep: [1, null, { key: "v" }] }
}

const cyclic = (): object => {
  const value: Record<string, unknown> = { a: 1 }
  value["self"] = value
  return value
}

const request = HttpClientRequest.get(`https://api.test/v1?key=${secret}&q=1`)

const failures: ReadonlyArray<readonly [name: string, failure: unknown, text: string]> = [
  [
    "a text with a key",
    `GET https://api.test/?api_key=${secret} failed`,
    "{\"error\":\"GET https://api.test/?api_key=REDACTED failed\"}"
  ],
  ["null", null, "{\"error\":\"null\"}"],
  ["a bigint", 7n, "{\"error\":\"7\"}"],
  [
    "data",
    { code: 7, at: new Date(0), list: [1, undefined, new Error("inner")], none: undefined },
    "{\"error\":\"{\\\"code\\\":7,\\\"at\\\":\\\"1970-01-01T00:00:00.000Z\\\",\\\"list\\\":[1,null,{\\\"name\\\":\\\"Error\\\",\\\"message\\\":\\\"inner\\\"}]}\"}"
  ],
  [
    "data with a message",
    { message: "it broke", code: 7, nested: { a: [true] } },
    "{\"error\":\"it broke\",\"details\":{\"code\":7,\"nested\":{\"a\":[true]}}}"
  ],
  ["an Error", new Error("disk full"), "{\"error\":\"disk full\"}"],
  ["an Error without words", new Error(), "{\"error\":\"Error\"}"],
  [
    "an Error with fields",
    Object.assign(new TypeError("x is y"), { code: "E_X", retry: true, list: [1] }),
    "{\"error\":\"x is y\",\"details\":{\"name\":\"TypeError\",\"code\":\"E_X\",\"retry\":true}}"
  ],
  ["an Error with a cause", new Error("outer", { cause: new Error(secret) }), "{\"error\":\"outer\"}"],
  ["a tagged error", new NotFound({ path: "/a" }), "{\"error\":\"NotFound\",\"details\":{\"path\":\"/a\"}}"],
  [
    "a tagged error with more",
    new Priced({ amount: 5n, at: new Date(0), tags: ["a", "b"] }),
    "{\"error\":\"it costs 5\",\"details\":{\"_tag\":\"Priced\",\"amount\":\"5\",\"at\":\"1970-01-01T00:00:00.000Z\",\"tags\":[\"a\",\"b\"]}}"
  ],
  [
    "a tagged error of Data",
    new Lost({ path: "/a", cause: new Error(secret) }),
    "{\"error\":\"Lost\",\"details\":{\"path\":\"/a\"}}"
  ],
  [
    "a tagged error with a secret",
    new Guarded({ token: Redacted.make(secret), user: "ann" }),
    "{\"error\":\"Guarded\",\"details\":{\"token\":\"<redacted>\",\"user\":\"ann\"}}"
  ],
  ["an object with a tag", new Tagged(), "{\"error\":\"Tagged\"}"],
  [
    "an unknown error",
    new Cause.UnknownError(new NotFound({ path: "/b" }), "it broke"),
    "{\"error\":\"NotFound\",\"details\":{\"path\":\"/b\"}}"
  ],
  [
    "an error of a request",
    new HttpClientError.HttpClientError({
      reason: new HttpClientError.TransportError({ request, description: "refused", cause: new Error(secret) })
    }),
    "{\"error\":\"Transport: refused (GET https://api.test/v1?key=REDACTED&q=REDACTED)\",\"details\":{\"_tag\":\"HttpClientError\"}}"
  ],
  [
    "headers",
    { headers: { "x-api-key": secret, accept: "*/*" }, url: `https://api.test/?token=${secret}` },
    "{\"error\":\"{\\\"url\\\":\\\"https://api.test/?token=REDACTED\\\"}\"}"
  ],
  [
    "an option",
    Option.some({ a: new NotFound({ path: "/c" }) }),
    "{\"error\":\"Some\",\"details\":{\"value\":{\"a\":{\"_tag\":\"NotFound\",\"name\":\"NotFound\",\"message\":\"\",\"path\":\"/c\"}}}}"
  ],
  [
    "a cause",
    Cause.combine(Cause.fail(new Error("a")), Cause.die("b")),
    "{\"error\":\"Cause\",\"details\":{\"reasons\":[{\"_tag\":\"Fail\",\"error\":{\"name\":\"Error\",\"message\":\"a\"}},{\"_tag\":\"Die\",\"defect\":\"b\"}]}}"
  ],
  [
    "a map and a function",
    { map: new Map([["key", secret]]), call: () => secret, symbol: Symbol("s"), n: 1 },
    "{\"error\":\"{\\\"map\\\":{},\\\"n\\\":1}\"}"
  ],
  ["a redacted text", Redacted.make(secret), "{\"error\":\"<redacted>\"}"],
  ["bytes", new Uint8Array([1, 2, 3]), "{\"error\":\"[3 bytes]\"}"],
  ["a cycle", cyclic(), "{\"error\":\"{\\\"a\\\":1}\"}"],
  [
    "an object whose getter throws",
    {
      get broken() {
        throw new Error(secret)
      }
    },
    "{\"error\":\"{}\"}"
  ]
]

const encoders = { json: Encoder.json, allm: Encoder.allm, falai: Encoder.falai }

const policies: ReadonlyArray<Policy.Policy> = [
  Policy.standard,
  { ...Policy.standard, crashes: "told" },
  Policy.allm,
  Policy.falai
]

const anything = Tool.make("t", { parameters: {}, handler: () => Effect.void })
const withSchema = Tool.make("t", {
  parameters: {},
  failure: Schema.Union([NotFound, Priced, Guarded]),
  handler: () => Effect.void
})

/** What the model reads of a call that came to an error. */
const textOf = (tool: Tool.Any, error: unknown, encoder: Encoder.Service, policy: Policy.Policy) =>
  ToolRunner.run([Message.toolCall("c0", "t")], [tool], { policy }).pipe(
    Effect.map(({ messages }) => messages[0]?.content),
    Effect.provide(Executor.layer({ execute: () => Effect.succeed(Tool.error(error) as never) })),
    Effect.provide(Encoder.layer(encoder)),
    Effect.provide(Logger.layer([]))
  )

describe("ToolRunner: the text of a failure", () => {
  for (const [name, failure, text] of failures) {
    it.effect(`R-035, M-10: the model reads ${name} as a failure in its documented text`, () =>
      Effect.gen(function*() {
        assert.strictEqual(yield* textOf(anything, failure, Encoder.json, Policy.standard), text)
      }))

    it.effect(`M-10: ${name} as a failure or a defect shows no secret, whatever encoder and policy write the text`, () =>
      Effect.gen(function*() {
        const cause = failure instanceof Error ? failure : { _tag: "Thrown", value: failure }
        const crash = new Tool.ToolError({ reason: "handler_raised", toolName: "t", toolCallId: "c0", cause })
        for (const tool of [anything, withSchema]) {
          for (const error of [failure, crash]) {
            for (const encoder of Object.values(encoders)) {
              for (const policy of policies) {
                assert.notInclude(JSON.stringify(yield* textOf(tool, error, encoder, policy)), secret)
              }
            }
          }
        }
      }))
  }
})
