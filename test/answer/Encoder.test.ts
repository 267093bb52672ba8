/**
 * The text a model reads: what the encoders write of values, results and errors, and what a run makes of encoders that
 * fail.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { Encoder, Message, Tool, ToolRunner } from "heddle"

const notFound = Symbol.for("not_found")
const kaboom = new Error("kaboom")

const cyclic: Record<string, unknown> = { a: 1 }
cyclic["self"] = cyclic

class NoSuchUser extends Data.TaggedError("NoSuchUser")<{ readonly id: number }> {}

class Moved extends Schema.TaggedError<Moved>()("Moved", {
  path: Schema.String,
  to: Schema.Struct({ host: Schema.String, at: Schema.Date })
}) {}

class Broken extends Data.TaggedError("Broken")<{ readonly message: string }> {}

const timeout = new Tool.ToolError({ reason: "timeout", toolName: "slow", toolCallId: "c0" })

/** Rows of R-031 that both encoders write alike. */
const rows: ReadonlyArray<readonly [value: unknown, text: string]> = [
  ["", ""],
  ["as it is", "as it is"],
  ["\"quoted\" \\ \u0000 \ud83d\ude00", "\"quoted\" \\ \u0000 \ud83d\ude00"],
  [Tool.ok({ x: 1 }), "{\"ok\":{\"x\":1}}"],
  [Tool.ok("text"), "{\"ok\":\"text\"}"],
  [Tool.ok(undefined), "{\"ok\":null}"],
  [Tool.error("nope"), "{\"error\":\"nope\"}"],
  [Tool.error(""), "{\"error\":\"\"}"],
  [Tool.error({ code: 7 }), "{\"error\":\"{\\\"code\\\":7}\"}"],
  [Tool.error(kaboom), "{\"error\":\"kaboom\"}"],
  [Tool.error(new Error("")), "{\"error\":\"Error\"}"],
  [Tool.error(null), "{\"error\":\"null\"}"],
  [Tool.error(undefined), "{\"error\":\"undefined\"}"],
  [{ b: 1, a: [true, { c: null }] }, "{\"b\":1,\"a\":[true,{\"c\":null}]}"],
  [[], "[]"],
  [null, "null"],
  [undefined, "null"],
  [42, "42"],
  [-0.5, "-0.5"],
  [true, "true"],
  [{ _tag: "Ok", value: 1 }, "{\"_tag\":\"Ok\",\"value\":1}"]
]

/** What an error holds beside its message, and the message of one that each of the encoders writes its own way. */
const withFields: ReadonlyArray<readonly [reason: unknown, json: string, text: string]> = [
  [
    new NoSuchUser({ id: 7 }),
    "{\"error\":\"NoSuchUser\",\"details\":{\"id\":7}}",
    "NoSuchUser {\"id\":7}"
  ],
  [new Broken({ message: "no ink" }), "{\"error\":\"no ink\",\"details\":{\"_tag\":\"Broken\"}}", "no ink"],
  [
    new Moved({ path: "/a", to: { host: "b", at: new Date(0) } }),
    "{\"error\":\"Moved\",\"details\":{\"path\":\"/a\",\"to\":{\"host\":\"b\",\"at\":\"1970-01-01T00:00:00.000Z\"}}}",
    "Moved {\"path\":\"/a\",\"to\":{\"host\":\"b\",\"at\":\"1970-01-01T00:00:00.000Z\"}}"
  ],
  [new RangeError("too far"), "{\"error\":\"too far\",\"details\":{\"name\":\"RangeError\"}}", "too far"],
  [
    Object.assign(new Error("no file"), { code: "ENOENT", errno: -2, request: { url: "?key=sk-1" } }),
    "{\"error\":\"no file\",\"details\":{\"code\":\"ENOENT\",\"errno\":-2}}",
    "no file {\"code\":\"ENOENT\",\"errno\":-2}"
  ],
  [
    { _tag: "Gone", since: [1], cause: "sk-1" },
    "{\"error\":\"Gone\",\"details\":{\"since\":[1]}}",
    "Gone {\"since\":[1]}"
  ],
  [{ message: "no", path: "/a" }, "{\"error\":\"no\",\"details\":{\"path\":\"/a\"}}", "no {\"path\":\"/a\"}"],
  [new Cause.UnknownError("no line", "An error occurred in Effect.tryPromise"), "{\"error\":\"no line\"}", "no line"]
]

const encoders = { json: Encoder.json, allm: Encoder.allm }

for (const [name, encoder] of Object.entries(encoders)) {
  describe(`Encoder.${name}`, () => {
    it.effect("S-09, R-031: each value of the table is encoded as its text", () =>
      Effect.gen(function*() {
        for (const [value, text] of rows) assert.strictEqual(yield* encoder.encode(value), text)
      }))

    it.effect("S-09, R-031: a value without a JSON form is refused, also in a wrapper", () =>
      Effect.gen(function*() {
        for (
          const value of [() => 1, notFound, cyclic, 1n, Tool.ok(() => 1), Tool.ok(cyclic), {
            toJSON: () => {
              throw kaboom
            }
          }]
        ) {
          assert.instanceOf(yield* Effect.flip(encoder.encode(value)), Error)
        }
      }))

    it.effect("R-031: an error with any reason is encoded", () =>
      Effect.gen(function*() {
        for (const reason of [() => 1, notFound, cyclic, 1n, { message: 42 }, [kaboom]]) {
          const envelope = JSON.parse(yield* encoder.encode(Tool.error(reason))) as { readonly error: string }
          assert.isString(envelope.error)
          assert.isNotEmpty(envelope.error)
        }
      }))

    it.effect.prop(
      "S-09, R-030, R-037: equal values are encoded as the same text, and the encoder leaves the value unchanged",
      [Schema.Json],
      ([value]) =>
        Effect.gen(function*() {
          const before = structuredClone(value)
          for (const wrap of [(inner: unknown) => inner, Tool.ok, Tool.error]) {
            const first = yield* encoder.encode(wrap(value))
            assert.strictEqual(yield* encoder.encode(wrap(structuredClone(value))), first)
          }
          assert.deepStrictEqual(value, before)
        })
    )

    it.effect.prop(
      "R-031: encoded JSON reads back as the original value",
      [Schema.Json],
      ([value]) =>
        Effect.gen(function*() {
          const text = yield* encoder.encode(value)
          if (typeof value === "string") assert.strictEqual(text, value)
          else assert.deepStrictEqual(JSON.parse(text), JSON.parse(JSON.stringify(value)))
        })
    )
  })
}

describe("Encoder.falai", () => {
  const encode = Encoder.falai.encode

  it.effect("CF-13, R-415: failures and empty results become plain words, texts stay unchanged, and other values become JSON", () =>
    Effect.gen(function*() {
      const denied = new Tool.ToolError({ reason: "denied", detail: "Permission denied: not yours", toolName: "t" })
      const rows: ReadonlyArray<readonly [value: unknown, text: string]> = [
        [Tool.error("nope"), "Tool execution failed: nope"],
        [Tool.error(kaboom), "Tool execution failed: kaboom"],
        [Tool.error({ code: 7 }), "Tool execution failed: {\"code\":7}"],
        [Tool.error(cyclic), "Tool execution failed: {\"a\":1}"],
        [Tool.error(timeout), "Tool execution failed: tool error (slow): timeout"],
        [Tool.error(denied), "Tool execution failed: Permission denied: not yours"],
        [null, "Tool executed successfully"],
        [undefined, "Tool executed successfully"],
        [Tool.ok(null), "Tool executed successfully"],
        ["", ""],
        ["as it is", "as it is"],
        [Tool.ok("as it is"), "as it is"],
        [{ celsius: 7 }, "{\"celsius\":7}"],
        [Tool.ok({ celsius: 7 }), "{\"celsius\":7}"],
        [[1, null], "[1,null]"],
        [0, "0"],
        [false, "false"],
        [cyclic, "a, self"],
        [Tool.ok(cyclic), "a, self"]
      ]
      for (const [value, text] of rows) assert.strictEqual(yield* encode(value), text)
    }))

  it.effect("R-415: a value with neither a JSON form nor keys is refused", () =>
    Effect.gen(function*() {
      for (const value of [() => 1, notFound, 1n, Tool.ok(() => 1)]) {
        assert.instanceOf(yield* Effect.flip(encode(value)), Error)
      }
    }))

  it.effect("R-415: Encoder.falai writes the answers that a model reads in a run", () =>
    Effect.gen(function*() {
      const said = (handler: () => Effect.Effect<unknown, unknown>, more: Partial<Tool.Any> = {}) =>
        ToolRunner.run([Message.toolCall("c0", "subject")], [{ ...toolOf("subject", handler), ...more }]).pipe(
          Effect.provide(Encoder.layer(Encoder.falai)),
          Effect.map(({ messages }) => [messages[0]?.content, messages[0]?.isError])
        )
      assert.deepStrictEqual(yield* said(() => Effect.void), ["Tool executed successfully", undefined])
      assert.deepStrictEqual(yield* said(() => Effect.fail(kaboom)), ["Tool execution failed: kaboom", true])
      assert.deepStrictEqual(
        yield* said(() => Effect.void, { authorize: () => ({ allowed: false, reason: "not yours" }) }),
        ["Tool execution failed: Permission denied: not yours", true]
      )
    }))
})

describe("Encoder: reported errors", () => {
  it.effect("M-10, M-11, R-031, R-415: an error's fields are encoded with its message", () =>
    Effect.gen(function*() {
      for (const [reason, json, text] of withFields) {
        assert.strictEqual(yield* Encoder.json.encode(Tool.error(reason)), json)
        assert.strictEqual(yield* Encoder.allm.encode(Tool.error(reason)), JSON.stringify({ error: text }))
        assert.strictEqual(yield* Encoder.falai.encode(Tool.error(reason)), `Tool execution failed: ${text}`)
      }
    }))

  it.effect("M-10: an encoded error has at most 8,192 characters", () =>
    Effect.gen(function*() {
      const long = "\"loom\"\n".repeat(100_000)
      for (
        const reason of [
          new NoSuchUser({ id: long as never }),
          new Moved({ path: long, to: { host: long, at: new Date(0) } })
        ]
      ) {
        const text = yield* Encoder.json.encode(Tool.error(reason))
        assert.isAtMost(text.length, 8_192)
        assert.isAbove(text.length, 7_500)
      }
    }))
})

describe("Encoder: runtime errors", () => {
  it.effect("R-036: Encoder.json writes a stable envelope of message and code", () =>
    Effect.gen(function*() {
      const text = yield* Encoder.json.encode(Tool.error(timeout))
      assert.deepStrictEqual(JSON.parse(text), { error: "tool error (slow): timeout", code: "timeout" })
      const detailed = new Tool.ToolError({
        reason: "invalid_return",
        detail: "odd",
        cause: kaboom,
        metadata: { a: 1 }
      })
      assert.deepStrictEqual(JSON.parse(yield* Encoder.json.encode(Tool.error(detailed))), {
        error: "tool error: invalid_return: odd",
        code: "invalid_return"
      })
    }))

  it.effect("M-10, R-031, R-036: Encoder.allm writes a debug rendering, with a colon before an identifier", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* Encoder.allm.encode(Tool.error(notFound)), "{\"error\":\":not_found\"}")
      const { error } = JSON.parse(yield* Encoder.allm.encode(Tool.error(timeout))) as { readonly error: string }
      assert.match(error, /^tool error \(slow\): timeout \{.*"toolCallId":"c0"/)
      const nested = new Tool.ToolError({
        reason: "handler_raised",
        cause: new Error("https://h?key=sk-1"),
        metadata: { cyclic }
      })
      const written = yield* Encoder.allm.encode(Tool.error(nested))
      assert.include(written, "[Circular]")
      assert.include(written, "https://h?key=REDACTED")
      assert.notInclude(written, "sk-1")
    }))
})

const toolOf = (name: string, handler: () => Effect.Effect<unknown, unknown>) =>
  Tool.make(name, { parameters: {}, handler: handler as () => Effect.Effect<unknown> })

const answerTo = (
  handler: () => Effect.Effect<unknown, unknown>,
  options: { readonly encoder?: Encoder.Service; readonly run?: ToolRunner.Options } = {}
) =>
  ToolRunner.run([Message.toolCall("c0", "subject")], [toolOf("subject", handler)], options.run).pipe(
    Effect.provideService(Encoder.Encoder, options.encoder ?? Encoder.json),
    Effect.map(({ halt, messages }) => ({ content: messages[0]?.content, isError: messages[0]?.isError, halt }))
  )

/** An encoder that keeps what it was asked to encode. */
const spying = (encode: Encoder.Service["encode"] = Encoder.json.encode) => {
  const seen: Array<unknown> = []
  const encoder: Encoder.Service = {
    encode: (value) =>
      Effect.suspend(() => {
        seen.push(value)
        return encode(value)
      })
  }
  return { encoder, seen }
}

describe("an encoder in a run", () => {
  it.effect("S-10, R-032: an encoder gets the value of a result without its wrapper", () =>
    Effect.gen(function*() {
      for (const value of [{ x: 1 }, Tool.ok({ x: 1 })]) {
        const { encoder, seen } = spying()
        const answer = yield* answerTo(() => Effect.succeed(value), { encoder })
        assert.deepStrictEqual(answer, { content: "{\"x\":1}", isError: undefined, halt: undefined })
        assert.deepStrictEqual(seen, [{ x: 1 }])
      }
    }))

  it.effect("R-012: the nearest encoder writes an answer, or Encoder.json where none is provided", () =>
    Effect.gen(function*() {
      const run = ToolRunner.run([Message.toolCall("c0", "subject")], [toolOf("subject", () => Effect.succeed([1]))])
      const written = Effect.map(run, ({ messages }) => messages[0]?.content)
      const says = (text: string) => Encoder.layer({ encode: () => Effect.succeed(text) })
      assert.strictEqual(yield* written, "[1]")
      assert.strictEqual(yield* Effect.provide(written, says("app")), "app")
      assert.strictEqual(yield* written.pipe(Effect.provide(says("call")), Effect.provide(says("app"))), "call")
      assert.strictEqual(yield* Encoder.Encoder, Encoder.json)
    }))

  it.effect("R-033, R-034: an encoder that fails or dies causes encoding_failed, which is routed like any failure", () =>
    Effect.gen(function*() {
      const broken: ReadonlyArray<() => unknown> = [
        () => Effect.fail("no ink"),
        () => Effect.die(kaboom),
        () => Effect.interrupt,
        () => {
          throw kaboom
        },
        () => "no Effect",
        () => Effect.succeed(42)
      ]
      for (const encode of broken) {
        const asked: Array<unknown> = []
        const onToolError: ToolRunner.OnToolError = (call, error) =>
          Effect.sync(() => {
            asked.push([call.id, error])
            return Tool.ErrorDecision.halt
          })
        const answer = yield* answerTo(() => Effect.succeed(1), {
          encoder: { encode: encode as Encoder.Service["encode"] },
          run: { onToolError }
        })
        const [[id, error]] = asked as [[string, Tool.ToolError]]
        assert.lengthOf(asked, 1)
        assert.strictEqual(id, "c0")
        assert.deepInclude(error, { reason: "encoding_failed", toolName: "subject", toolCallId: "c0" })
        assert.deepStrictEqual(answer.halt, { haltedReason: "tool_error", haltToolCallId: "c0" })
        assert.isTrue(answer.isError)
      }
    }))

  it.effect("R-034: an encoder that breaks on one result affects no other call", () =>
    Effect.gen(function*() {
      const encoder: Encoder.Service = {
        encode: (value) => value === "bad" ? Effect.die(kaboom) : Encoder.json.encode(value)
      }
      const tools = ["good", "bad", "fine"].map((name) => toolOf(name, () => Effect.succeed(name)))
      const { messages } = yield* ToolRunner.run(tools.map((tool) => Message.toolCall(tool.name, tool.name)), tools)
        .pipe(
          Effect.provideService(Encoder.Encoder, encoder)
        )
      assert.deepStrictEqual(messages.map((message) => message.content), ["good", "{\"error\":\"kaboom\"}", "fine"])
    }))

  it.effect("R-033: a result that its success schema cannot encode is answered with an error", () =>
    Effect.gen(function*() {
      const tool = Tool.make("typed", {
        parameters: {},
        success: Schema.Struct({ celsius: Schema.Finite }),
        handler: () => Effect.succeed({ celsius: "warm" } as never)
      })
      const { messages } = yield* ToolRunner.run([Message.toolCall("c0", "typed")], [tool])
      assert.match(messages[0]?.content as string, /^\{"error":".*celsius/s)
      assert.isTrue(messages[0]?.isError)
    }))

  it.effect("R-035: (a) a failed encoding is reported without asking the encoder again", () =>
    Effect.gen(function*() {
      const { encoder, seen } = spying(() => Effect.fail(kaboom))
      const answer = yield* answerTo(() => Effect.succeed({ x: 1 }), { encoder })
      assert.strictEqual(answer.content, "{\"error\":\"kaboom\"}")
      assert.deepStrictEqual(seen, [{ x: 1 }])
      const odd = yield* answerTo(() => Effect.succeed({ x: 1 }), {
        encoder: { encode: () => Effect.fail({ code: 7 }) }
      })
      assert.deepStrictEqual(JSON.parse(odd.content as string), { error: "{\"code\":7}" })
    }))

  it.effect("R-035: (b) any other runtime error is encoded as an error", () =>
    Effect.gen(function*() {
      const { encoder, seen } = spying()
      const answer = yield* answerTo(() => Effect.die(kaboom), { encoder })
      const told = seen as ReadonlyArray<Tool.Error<Tool.ToolError>>
      assert.lengthOf(told, 1)
      assert.deepInclude(told[0], { _tag: "Error" })
      assert.deepInclude(told[0]?.error, { reason: "handler_raised", cause: kaboom })
      assert.deepStrictEqual(JSON.parse(answer.content as string), {
        error: "tool error (subject): handler_raised",
        code: "handler_raised"
      })
    }))

  it.effect("R-035: (c) a reported exception is encoded as an error with its message, and (d) any other reason is encoded unchanged", () =>
    Effect.gen(function*() {
      for (const [reason, told] of [[kaboom, "kaboom"], [notFound, notFound], [{ code: 7 }, { code: 7 }]] as const) {
        const { encoder, seen } = spying()
        const answer = yield* answerTo(() => Effect.fail(reason), { encoder })
        assert.deepStrictEqual(seen, [{ _tag: "Error", error: told }])
        assert.isTrue(answer.isError)
      }
      assert.strictEqual(
        (yield* answerTo(() => Effect.fail(notFound), { encoder: Encoder.allm })).content,
        "{\"error\":\":not_found\"}"
      )
    }))

  it.effect("R-035: a literal error replaces an error that the encoder cannot encode", () =>
    Effect.gen(function*() {
      for (const encode of [() => Effect.fail("no ink"), () => Effect.die("no ink"), () => Effect.interrupt]) {
        const reported = yield* answerTo(() => Effect.fail("nope"), { encoder: { encode } })
        assert.strictEqual(reported.content, "{\"error\":\"nope\"}")
        const crashed = yield* answerTo(() => Effect.die(kaboom), { encoder: { encode } })
        assert.strictEqual(
          crashed.content,
          "{\"error\":\"tool error (subject): handler_raised\",\"code\":\"handler_raised\"}"
        )
      }
    }))

  it.effect("R-030: an encoder runs once per answer", () =>
    Effect.gen(function*() {
      const { encoder, seen } = spying()
      yield* answerTo(() => Effect.succeed(Tool.halt("done", { v: 1 })), { encoder })
      yield* answerTo(() => Effect.succeed(Tool.askUser("Which city?")), { encoder })
      assert.deepStrictEqual(seen, [{ v: 1 }])
      const exit = yield* Effect.exit(answerTo(() => Effect.fail("nope"), { encoder }))
      assert.isTrue(Exit.isSuccess(exit))
      assert.lengthOf(seen, 2)
    }))
})
