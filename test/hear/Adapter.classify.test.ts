/**
 * Classification of a reply on its way: a request goes to a model server, its reply is read to the end, and nothing is
 * run. The chunks are those of Chat Completions, as servers write them over HTTP.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as References from "effect/References"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message, Policy, Response, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Wire from "../../src/adapters/internal/wire.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { body, call, chunk, finish, said } = Chunks

const tools = ["get_weather", "search", "read"].map((name) =>
  Tool.make(name, { parameters: {}, handler: () => Effect.die("is not to be run") })
)

const answering = (answer: string | Server.Answer, options: Adapter.ClassifyOptions = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    const found = yield* Effect.result(
      Adapter.classify("go", { tools, ...options }).pipe(Effect.provide(Chunks.layer(server.url, { retries: 0 })))
    )
    return { found, server }
  }))

/** What a reply of these chunks is. */
const classify = (...chunks: ReadonlyArray<Readonly<Record<string, unknown>>>) =>
  Effect.map(answering(body(...chunks)), ({ found }) => {
    assert.isTrue(found._tag === "Success")
    return (found as { readonly success: Adapter.Classification }).success
  })

const brief = ({ toolCalls }: Adapter.Classification) =>
  toolCalls.map(({ argumentsLost, arguments: args, id, name }) => [id, name, argumentsLost ?? args])

describe("Adapter.classify: the reply", () => {
  it.effect("R-330, I-01: a classified reply is read to its end, and its tools do not run", () =>
    Effect.gen(function*() {
      const { found, server } = yield* answering(body(
        call({ index: 0, id: "call_1", name: "get_weather", arguments: "" }),
        call({ index: 0, arguments: "{\"ci" }),
        call({ index: 0, arguments: "ty\":\"Oslo\"}" }),
        finish("tool_calls")
      ))
      assert.isTrue(found._tag === "Success")
      const { type, ...rest } = (found as { readonly success: Adapter.Classification }).success
      assert.strictEqual(type, "tool_calls")
      assert.deepStrictEqual(brief({ type, ...rest }), [["call_1", "get_weather", { city: "Oslo" }]])
      assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 0 })
    }))

  it.effect("R-331, R-333, I-08, I-09, I-11: a reply is classified by its content, not by its finish reason", () =>
    Effect.gen(function*() {
      const both = yield* classify(
        said("hm"),
        chunk({ reasoning_content: "t" }),
        call({ index: 0, id: "a", name: "read", arguments: "{}" }),
        finish("stop")
      )
      const { finishReason, text, thinking, type } = both
      assert.deepStrictEqual([type, text, thinking, finishReason], ["tool_calls", "hm", "t", "tool_calls"])
      const empty = yield* classify(chunk({ role: "assistant", content: "" }), finish("stop"))
      assert.deepStrictEqual({ ...empty }, {
        type: "final_answer",
        text: "",
        thinking: "",
        toolCalls: [],
        finishReason: "stop",
        diagnostics: []
      })
      const word = yield* classify(said("done"), finish("tool_calls"))
      assert.deepStrictEqual([word.type, word.diagnostics], ["final_answer", [{ _tag: "NoToolCalls" }]])
    }))

  it.effect("R-335, R-337, R-343, I-02, I-12: calls that arrive interleaved or all at index 0 stay apart", () =>
    Effect.gen(function*() {
      const interleaved = yield* classify(
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\":" }),
        call({ index: 1, id: "b", name: "read", arguments: "{\"p\":" }),
        call({ index: 0, arguments: "1}" }),
        call({ index: 1, arguments: "2}" }),
        finish("tool_calls")
      )
      const expected = [["a", "search", { q: 1 }], ["b", "read", { p: 2 }]]
      assert.deepStrictEqual(brief(interleaved), expected)
      const sharing = yield* classify(
        call({ index: 0, id: "a", name: "search", arguments: "{\"q\":" }),
        call({ index: 0, id: "a", arguments: "1}" }),
        call({ index: 0, id: "b", name: "read", arguments: "{\"p\":" }),
        call({ index: 0, id: "b", arguments: "2}" }),
        finish("tool_calls")
      )
      assert.deepStrictEqual(brief(sharing), expected)
    }))

  it.effect("R-336, R-338, I-03, I-13, I-14: calls without an id get a made id, and fragments without a name make no call", () =>
    Effect.gen(function*() {
      const found = yield* classify(
        call({ index: 0, name: "search", arguments: "{\"q\":1}" }),
        call({ index: 1, name: "search", arguments: "{\"q\":1}" }),
        finish("tool_calls")
      )
      const [first, second] = found.toolCalls.map(({ id }) => id)
      assert.match(first!, /^call_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}$/)
      assert.notStrictEqual(first, second)
      const nameless = yield* classify(
        call({ index: 7, arguments: "{\"a\":1}" }),
        call({ index: 8, id: "x", name: "", arguments: "{}" }),
        finish("stop")
      )
      assert.deepStrictEqual([nameless.type, nameless.toolCalls], ["final_answer", []])
    }))

  it.effect("R-338, R-341, I-07, I-21: arguments that start in or before the header of their call are joined", () =>
    Effect.gen(function*() {
      const seeded = yield* classify(
        call({ index: 0, id: "a", name: "search", arguments: "{" }),
        call({ index: 0, arguments: "\"x\":1}" }),
        finish("tool_calls")
      )
      assert.deepStrictEqual(brief(seeded), [["a", "search", { x: 1 }]])
      const late = yield* classify(
        call({ index: 0, arguments: "{\"x\":" }),
        call({ index: 0, id: "a", name: "search", arguments: "1}" }),
        finish("tool_calls")
      )
      assert.deepStrictEqual(late.toolCalls.map(({ arguments: args, name }) => [name, args]), [["search", { x: 1 }]])
    }))

  it.effect("R-339, R-340, R-357, I-04, I-05, I-06, I-17, I-18: missing arguments are distinguished from lost arguments", () =>
    Effect.gen(function*() {
      const one = (text: string | null | undefined, word = "tool_calls") => {
        const header = { index: 0, id: "a", name: "search" }
        return Effect.map(
          classify(call(text === undefined ? header : { ...header, arguments: text }), finish(word)),
          (found) => brief(found)[0]![2]
        )
      }
      assert.deepStrictEqual(yield* one(""), {})
      assert.deepStrictEqual(yield* one("null"), {})
      assert.deepStrictEqual(yield* one(undefined), {})
      assert.strictEqual(yield* one(undefined, "length"), "truncated")
      assert.strictEqual(yield* one("{\"a\":"), "json_decode_error")
      assert.strictEqual(yield* one("[1]"), "not_an_object")
      assert.strictEqual(yield* one("{\"p\":\"x", "length"), "truncated")
      assert.strictEqual(yield* one("{\"p\":\"x", "tool_calls"), "json_decode_error")
      const two = yield* classify(
        call({ index: 0, id: "a", name: "search", arguments: "{\"a\":" }),
        call({ index: 1, id: "b", name: "read", arguments: "{\"b\":2}" }),
        finish("tool_calls")
      )
      assert.deepStrictEqual(brief(two), [["a", "search", "json_decode_error"], ["b", "read", { b: 2 }]])
    }))

  it.effect("R-342: a call keeps what the wire attaches to it, early or after its end", () =>
    Effect.gen(function*() {
      const found = yield* classify(
        call({ index: 0, id: "a", type: "function", name: "search", arguments: "{}", extra_content: { early: 1 } }),
        call({ index: 1, id: "b", name: "read", arguments: "{}" }),
        finish("tool_calls"),
        call({ index: 0, extra_content: { late: 1 }, signature: "s" }),
        call({ index: 1, extra_content: { late: 2 } })
      )
      const kept = found.toolCalls.map(({ metadata }) => metadata["openaiChat"] as Readonly<Record<string, unknown>>)
      const server = kept[0]?.["server"]
      assert.match(String(server), /^127\.0\.0\.1:\d+$/)
      assert.deepStrictEqual(kept, [
        { extra_content: { late: 1 }, signature: "s", server },
        { extra_content: { late: 2 }, server }
      ])
    }))

  it.effect("R-347, I-15: a known finish reason is mapped, an unknown finish reason is `other`, and an empty string is null", () =>
    Effect.gen(function*() {
      const reasons = ["stop", "length", "content_filter", "eos", "whatever", ""].map((word) =>
        Effect.map(classify(said("a"), finish(word)), ({ finishReason }) => finishReason)
      )
      assert.deepStrictEqual(yield* Effect.all(reasons), ["stop", "length", "content_filter", "stop", "other", null])
    }))
})

describe("merged usage", () => {
  it("R-350, I-16: the latest figure that is not zero counts, and the total is recomputed", () => {
    const reports = [{ inputTokens: 10, outputTokens: 0 }, { outputTokens: 5 }, { inputTokens: 0, outputTokens: 7 }]
    const merged = reports.map((report) => Response.usage(report))
      .reduce<Response.Usage | null>((usage, next) => Wire.mergedUsage(usage, next), null)
    assert.deepInclude(merged!, { inputTokens: 10, outputTokens: 7, totalTokens: 17 })
  })
})

describe("Adapter.classify: the request", () => {
  it.effect("R-330: a classification sends the same request as a step", () =>
    Effect.gen(function*() {
      const options = {
        tools,
        system: "Be brief.",
        model: "other",
        temperature: 0.5,
        maxTokens: 9,
        toolChoice: { name: "read" },
        options: { seed: 1 }
      } as const
      const reply = body(said("a"), finish("stop"))
      const { server } = yield* answering(reply, options)
      const step = yield* Effect.scoped(Effect.gen(function*() {
        const own = yield* Server.serve(() => ({ pieces: [reply] }))
        yield* Step.run("go", options).pipe(Effect.provide(Chunks.layer(own.url)))
        return own.requests[0]!.body
      }))
      assert.deepStrictEqual(server.requests[0]!.body, step)
      assert.strictEqual(step.model, "other")
    }))

  it.effect("R-330: a classification uses the defaults of the application", () =>
    Effect.gen(function*() {
      const defaults = Effect.provideService(Policy.Defaults, { model: "ours", policy: Policy.allm })
      const { found, server } = yield* defaults(answering(body(said("a"), finish("tool_calls"))))
      assert.strictEqual(server.requests[0]!.body.model, "ours")
      assert.strictEqual(found._tag === "Success" ? found.success.type : "", "tool_calls")
    }))

  it.effect("R-122: a classification with invalid input or options is refused before a request", () =>
    Effect.gen(function*() {
      const refused = (input: any, options: any = {}) =>
        Effect.flip(Adapter.classify(input, options)).pipe(Effect.provide(Script.layer([])))
      const input = yield* refused([{ role: "robot", content: "hi" }])
      assert.deepStrictEqual([input.reason, input.detail?.startsWith("messages[0].role")], ["invalid_request", true])
      assert.strictEqual((yield* refused([])).detail, "messages: must not be empty")
      assert.include((yield* refused("go", { temperature: 9 })).detail, "temperature")
      assert.include((yield* refused("go", { toolChoice: { name: "none_such" } })).detail, "none_such")
      assert.include((yield* refused("go", { tools: [tools[0], tools[0]] })).detail, "two tools are named")
    }))

  it.effect("R-145: a classification fails when its reply breaks before or after its beginning", () =>
    Effect.gen(function*() {
      const broken = body(said("a")).replace("[DONE]", "{\"error\":{\"message\":\"busy\",\"code\":503}}")
      const within = yield* answering(broken)
      assert.strictEqual(within.found._tag === "Failure" ? within.found.failure.reason : "", "provider_unavailable")
      const before = yield* answering({ status: 401, pieces: ["{}"] })
      assert.strictEqual(before.found._tag === "Failure" ? before.found.failure.status : 0, 401)
      const told = (error: unknown) =>
        Effect.flip(Adapter.classify("go")).pipe(
          Effect.provide(Adapter.layer({ stream: () => Stream.make<[Event.AdapterEvent]>({ _tag: "Error", error }) }))
        )
      assert.deepInclude({ ...(yield* told("odd")) }, { reason: "unknown", detail: "odd" })
      const own = new Adapter.AdapterError({ reason: "timeout" })
      assert.strictEqual(yield* told(own), own)
    }))

  it.effect("R-354, I-20: a second classification is a second request and fails without a second reply", () =>
    Effect.gen(function*() {
      const twice = Effect.gen(function*() {
        const first = yield* Adapter.classify("go")
        return [first.text, (yield* Effect.flip(Adapter.classify("go"))).reason]
      })
      const script = Script.layer([[Script.text("once"), Script.finish("stop")]])
      assert.deepStrictEqual(yield* Effect.provide(twice, script), ["once", "no_scripted_response"])
    }))
})

describe("the warning about lost arguments", () => {
  interface Logged {
    readonly level: string
    readonly message: string
    readonly annotations: Readonly<Record<string, unknown>>
  }

  /** Everything that an effect logs. */
  const logged = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    Effect.gen(function*() {
      const logs: Array<Logged> = []
      const logger = Logger.make(({ fiber, logLevel, message }) => {
        const annotations = fiber.getRef(References.CurrentLogAnnotations)
        logs.push({ level: logLevel, message: String(message), annotations: { ...annotations } })
      })
      yield* Effect.exit(Effect.provide(effect, Logger.layer([logger])))
      return logs
    })

  const reply = body(
    call({ index: 0, id: "a", name: "search", arguments: "{\"key\":\"sk-sécret" }),
    call({ index: 1, id: "b", name: "read", arguments: "{}" }),
    finish("tool_calls")
  )
  const expected = [{
    level: "Warn",
    message: "the arguments of a call of \"search\" were lost: json_decode_error",
    annotations: {
      "gen_ai.tool.name": "search",
      "gen_ai.tool.call.id": "a",
      "heddle.arguments.lost": "json_decode_error",
      "heddle.arguments.bytes": 18
    }
  }]

  it.effect("R-339, R-359: a classification warns once for each call with lost arguments, without their text", () =>
    Effect.gen(function*() {
      const found = yield* logged(answering(reply))
      assert.deepStrictEqual(found, expected)
      assert.notInclude(JSON.stringify(found), "cret")
    }))

  it.effect("R-339, R-359: a step warns once for a call with lost arguments", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [reply] }))
      const read = Tool.make("read", { parameters: {}, readOnly: true, handler: () => Effect.succeed("ok") })
      const run = Step.run("go", { tools: [tools[1]!, read] }).pipe(Effect.provide(Chunks.layer(server.url)))
      assert.deepStrictEqual(yield* logged(run), expected)
    })))

  it.effect("R-359: complete calls and calls run by the provider cause no warning", () =>
    Effect.gen(function*() {
      const fine = body(call({ index: 0, id: "a", name: "search", arguments: "{}" }), finish("tool_calls"))
      assert.deepStrictEqual(yield* logged(answering(fine)), [])
      const lost = { argumentsLost: "truncated", providerExecuted: true, rawArguments: "{", arguments: {} } as const
      const server = Adapter.layer({
        stream: () =>
          Stream.make<ReadonlyArray<Event.AdapterEvent>>(
            { _tag: "ToolCallCompleted", id: "a", name: "web_search", ...lost },
            { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "stop" }
          )
      })
      assert.deepStrictEqual(yield* logged(Adapter.classify("go").pipe(Effect.provide(server))), [])
    }))
})
