/**
 * From a result to the text that the model reads: what is encoded, what becomes of an encoder that fails, and how long
 * texts are cut.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Encoder, Message, Policy, Tool, ToolRunner } from "heddle"
import { contents, only, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

/** A tool that succeeds with a value. */
const giving = (value: unknown, options: { readonly maxResultChars?: number } = {}) =>
  Tool.make("give", { ...options, parameters: {}, handler: () => Effect.succeed(value) })

const contentOf = (tool: Tool.Any, options: ToolRunner.Options = {}) =>
  Effect.map(ToolRunner.run(calling(tool.name), [tool], options), ({ messages }) => messages[0]?.content)

/** An encoder that writes errors and nothing else, and what it was asked to write. */
const spying = (encode: (value: unknown) => unknown) => {
  const asked: Array<unknown> = []
  const layer = Encoder.layer({
    encode: (value) => {
      asked.push(value)
      return encode(value) as Effect.Effect<string>
    }
  })
  return { asked, provide: Effect.provide(layer) }
}

describe("ToolRunner: encoding", () => {
  it.effect("S-10, R-032: the encoder receives the value of a result, without its outcome", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* contentOf(giving({ x: 1 })), "{\"x\":1}")
      assert.strictEqual(yield* contentOf(giving(Tool.ok({ x: 1 }))), "{\"x\":1}")
      for (const policy of [Policy.standard, Policy.allm]) {
        const result = yield* ToolRunner.run([call("c0", "echo", { x: 1 })], [Tools.echo], { policy })
        assert.deepStrictEqual(contents(result), [["c0", "{\"x\":1}"]])
      }
      const spy = spying(() => Effect.succeed("text"))
      yield* spy.provide(contentOf(giving({ x: 1 })))
      assert.deepStrictEqual(spy.asked, [{ x: 1 }])
    }))

  it.effect("R-032: a string reaches the model unchanged, and undefined reaches the model as null", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* contentOf(giving("")), "")
      assert.strictEqual(yield* contentOf(giving("{\"a\":1}")), "{\"a\":1}")
      assert.strictEqual(yield* contentOf(giving(undefined)), "null")
    }))

  it.effect("R-032: the success schema of a tool is applied before the encoder", () =>
    Effect.gen(function*() {
      const dated = Tool.make("dated", {
        parameters: {},
        success: Schema.Struct({ at: Schema.Date }),
        handler: () => Effect.succeed({ at: new Date(0) })
      })
      const spy = spying((value) => Encoder.json.encode(value))
      assert.strictEqual(yield* spy.provide(contentOf(dated)), "{\"at\":\"1970-01-01T00:00:00.000Z\"}")
      assert.deepStrictEqual(spy.asked, [{ at: "1970-01-01T00:00:00.000Z" }])
      const lying = { ...dated, handler: () => Effect.succeed({ at: "never" as never }) }
      assert.match(String(yield* contentOf(lying)), /^\{"error":"/)
    }))

  it.effect("B-22, R-033, R-035: a result that cannot be encoded becomes a literal error, and the encoder is asked once", () =>
    Effect.gen(function*() {
      const spy = spying((value) => Encoder.json.encode(value))
      const { messages, halt } = yield* spy.provide(ToolRunner.run(calling("fn"), [Tools.fn]))
      assert.deepStrictEqual(messages[0]?.content, "{\"error\":\"a function has no JSON form\"}")
      assert.isTrue(messages[0]?.isError)
      assert.isUndefined(halt)
      assert.deepStrictEqual(spy.asked, [Tools.unwritable])
    }))

  it.effect("R-033: an encoding failure passes through onToolError like any failure, and names its call", () =>
    Effect.gen(function*() {
      const errors: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          errors.push(error)
          return Tool.ErrorDecision.continue("replaced")
        })
      assert.strictEqual(yield* contentOf(Tools.fn, { onToolError }), "replaced")
      assert.strictEqual(errors.length, 1)
      assert.deepInclude(errors[0], { _tag: "ToolError", reason: "encoding_failed", toolName: "fn", toolCallId: "c0" })
      assert.instanceOf((errors[0] as Tool.ToolError).cause, TypeError)
      const { events } = yield* watched(ToolRunner.stream(calling("fn"), [Tools.fn], { onToolError: "halt" }))
      assert.deepInclude(only(events, "ToolHalt"), {
        reason: "tool_error",
        content: "{\"error\":\"a function has no JSON form\"}"
      })
    }))

  it.effect("R-034: an encoder that throws, fails, dies or returns no text fails its call as encoding_failed, and no other", () =>
    Effect.gen(function*() {
      const breaks: ReadonlyArray<() => unknown> = [
        () => {
          throw new Error("no ink")
        },
        () => {
          throw "no ink"
        },
        () => Effect.fail(new Error("no ink")),
        () => Effect.fail("no ink"),
        () => Effect.die("no ink"),
        () => Effect.interrupt,
        () => Effect.withFiber((fiber) => Effect.sync(() => fiber.interruptUnsafe())),
        () => Effect.succeed(42),
        () => undefined,
        () => "a bare text"
      ]
      for (const broken of breaks) {
        const spy = spying((value) => value === "break" ? broken() : Encoder.json.encode(value))
        const breaking = { ...giving("break"), name: "breaking" }
        const calls = calling("breaking", "give")
        const { messages } = yield* spy.provide(ToolRunner.run(calls, [breaking, giving("fine")]))
        assert.strictEqual(messages[1]?.content, "fine")
        assert.match(String(messages[0]?.content), /^\{"error":"/)
        assert.isTrue(messages[0]?.isError)
        assert.deepStrictEqual(spy.asked, ["break", "fine"])
        const reasons: Array<string> = []
        const onToolError = (_call: Message.ToolCall, error: unknown) =>
          Effect.sync(() => {
            reasons.push((error as Tool.ToolError).reason)
            return Tool.ErrorDecision.continue("replaced")
          })
        const replaced = yield* spy.provide(ToolRunner.run(calls, [breaking, giving("fine")], { onToolError }))
        assert.deepStrictEqual(replaced.messages.map(({ content }) => content), ["replaced", "fine"])
        assert.deepStrictEqual(reasons, ["encoding_failed"])
      }
    }))

  it.effect("R-034: a value that throws when read fails its call, and not the run", () =>
    Effect.gen(function*() {
      const unreadable = new Proxy({}, {
        get: () => {
          throw new Error("hands off")
        },
        ownKeys: () => {
          throw new Error("hands off")
        }
      })
      const throwing = new (class extends Error {
        override get message(): string {
          throw new Error("no message")
        }
      })()
      let deep: unknown = "the bottom"
      for (let level = 0; level < 100_000; level++) deep = { deep }
      const values = [
        unreadable,
        throwing,
        deep,
        {
          toJSON: () => {
            throw new Error("no JSON")
          }
        },
        10n,
        Symbol("s")
      ]
      for (const value of values) {
        const halting = () => Effect.succeed(Tool.halt("done", value))
        for (const handler of [() => Effect.succeed(value), () => Effect.fail(value), halting]) {
          const hostile = Tool.make("hostile", { parameters: {}, handler })
          const { messages, halt } = yield* ToolRunner.run(calling("hostile", "give"), [hostile, giving("fine")])
          assert.strictEqual(halt?.haltedReason, handler === halting ? "done" : undefined)
          assert.notInclude(String(messages[0]?.content), "the answer could not be written")
          assert.strictEqual(messages.length, 2)
          assert.doesNotThrow(() => {
            JSON.parse(String(messages[0]?.content))
          })
          assert.strictEqual(messages[1]?.content, "fine")
        }
      }
    }))
})

describe("ToolRunner: long results", () => {
  const options = { policy: Policy.allm }

  const cutOf = (value: unknown, maxResultChars: number) => contentOf(giving(value, { maxResultChars }), options)

  const notice = (all: number, shown: number) => `\n[truncated: ${all} characters in all, ${shown} shown]`

  it.effect("R-039: a text longer than its limit is cut, with a notice after the cut", () =>
    Effect.gen(function*() {
      const tool = { ...Tools.big, maxResultChars: 4 }
      assert.strictEqual(yield* contentOf(tool, options), `0123${notice(10, 4)}`)
      const { events } = yield* watched(ToolRunner.stream(calling("big"), [tool], options))
      assert.deepStrictEqual(only(events, "ToolResultEncoded"), {
        _tag: "ToolResultEncoded",
        id: "c0",
        content: `0123${notice(10, 4)}`,
        originalLength: 10
      })
      assert.deepStrictEqual(only(events, "ToolExecutionCompleted").result, { _tag: "Ok", value: "0123456789" })
    }))

  it.effect("R-039: a text within its limit, or without a valid limit, stays whole", () =>
    Effect.gen(function*() {
      for (const limit of [10, 11, 0, -1, Number.NaN, 0.5, Infinity, null as never]) {
        const tool = { ...Tools.big, maxResultChars: limit }
        assert.strictEqual(yield* contentOf(tool, options), "0123456789")
        const { events } = yield* watched(ToolRunner.stream(calling("big"), [tool], options))
        assert.notProperty(only(events, "ToolResultEncoded"), "originalLength")
      }
      assert.strictEqual(yield* contentOf({ ...Tools.big, maxResultChars: 4.9 }, options), `0123${notice(10, 4)}`)
    }))

  it.effect("R-039: the text of an error or a question is never cut", () =>
    Effect.gen(function*() {
      const failing = { ...Tools.failS, maxResultChars: 2 }
      assert.strictEqual(yield* contentOf(failing, options), "{\"error\":\"nope\"}")
      assert.strictEqual(yield* contentOf({ ...Tools.ask, maxResultChars: 2 }, options), "<awaiting user response>")
    }))

  it.effect("R-039: the result of a halt is cut at its limit", () =>
    Effect.gen(function*() {
      const { messages, halt } = yield* ToolRunner.run(
        calling("stop1"),
        [{ ...Tools.stop1, maxResultChars: 3 }],
        options
      )
      assert.strictEqual(messages[0]?.content, `{"v${notice(7, 3)}`)
      assert.deepInclude(halt, { haltResult: { v: 1 } })
    }))

  it.effect("R-040: the limit applies to the encoded text, and a value without JSON is an encoding failure", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* cutOf({ text: "0123456789" }, 12), `{"text":"012${notice(21, 12)}`)
      assert.strictEqual(yield* cutOf(null, 2), `nu${notice(4, 2)}`)
      assert.match(String(yield* cutOf(Tools.unwritable, 2)), /^\{"error":"a function has no JSON form"\}$/)
    }))

  it.effect("R-040: a cut never splits a surrogate pair", () =>
    Effect.gen(function*() {
      const text = "a😀😀b"
      const shown = ["", "a", "a", "a😀", "a😀", "a😀😀", text, text]
      for (const [limit, expected] of shown.entries()) {
        if (limit === 0) continue
        const content = yield* cutOf(text, limit)
        assert.strictEqual(content, expected === text ? text : `${expected}${notice(6, expected.length)}`)
        assert.strictEqual(new TextDecoder().decode(new TextEncoder().encode(String(content))), content)
      }
    }))
})
