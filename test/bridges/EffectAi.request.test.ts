/**
 * What a language model of effect/ai is asked, what it has no words for, and what becomes of its errors.
 */
import { assert, describe, it } from "@effect/vitest"
import * as AiError from "effect/ai/AiError"
import * as AiTool from "effect/ai/Tool"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, Message } from "heddle"
import * as EffectAi from "heddle/bridges/effect-ai"
import { completed, tagsOf } from "../support/aiSdk.ts"
import * as WaitingClock from "../support/clock.ts"
import * as Models from "../support/effectAi.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const { of } = Chunks
const { body, finish, outcomeOf, outcomeOfParts, sent, stream, text } = Models

const png = "iVBORw0KGgoAAAANSUhEUg=="

const promptOf = (messages: ReadonlyArray<Message.Message>) =>
  Effect.map(sent({ messages }), ({ prompt }) => prompt as ReadonlyArray<any>)

/** Why a request is refused, which no server hears of. */
const refusal = (request: Partial<Adapter.Request>, options: EffectAi.Options = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [body(finish("stop"))] }))
    const { error } = yield* Chunks.outcome(
      stream(Models.layer(server.url, options), { ...Chunks.request, ...request })
    )
    assert.deepStrictEqual(server.requests, [])
    return [error?.reason, error?.detail] as const
  }))

describe("the request to a language model of effect/ai", () => {
  it.effect("R-123: tools go out with their schemas unchanged, and strict only with the option", () =>
    Effect.gen(function*() {
      const parameters = { type: "object", properties: { q: { type: "string" } } }
      const tools = [{ name: "search", description: "Finds", parameters }, {
        name: "__proto__",
        description: "",
        parameters: {}
      }]
      const asked = yield* sent({ tools })
      assert.deepStrictEqual(asked.tools, [
        { name: "search", description: "Finds", parameters, strict: false },
        { name: "__proto__", parameters: {}, strict: false }
      ])
      assert.deepStrictEqual([asked.toolChoice, asked.validation, asked.format], ["auto", "deferred", "text"])
      const strict = yield* sent({ tools }, { strict: true })
      assert.isTrue(strict.tools[0].strict)
    }))

  it.effect("R-123: each tool choice is mapped", () =>
    Effect.gen(function*() {
      const tools = [{ name: "now", description: "", parameters: {} }]
      for (const choice of ["auto", "none", "required"] as const) {
        assert.strictEqual((yield* sent({ tools, toolChoice: choice })).toolChoice, choice)
      }
      assert.deepStrictEqual((yield* sent({ tools, toolChoice: { name: "now" } })).toolChoice, { tool: "now" })
    }))

  it.effect("a provider-defined tool replaces the tool of its name", () =>
    Effect.gen(function*() {
      const shell = AiTool.providerDefined({
        id: "acme.shell",
        customName: "shell",
        providerName: "shell",
        args: Schema.Struct({ cwd: Schema.String }),
        parameters: Schema.Struct({ command: Schema.String }),
        requiresHandler: true
      })({ cwd: "/" })
      const tools = ["shell", "now"].map((name) => ({ name, description: "", parameters: {} }))
      const asked = yield* sent({ tools }, { providerTools: [shell] })
      assert.deepStrictEqual(asked.tools.map(({ args, id, name }: any) => [name, id, args]), [
        ["now", undefined, undefined],
        ["shell", "acme.shell", { cwd: "/" }]
      ])
    }))

  it.effect("R-123: settings reach the model through the services of its provider", () =>
    Effect.gen(function*() {
      const services = (request: Adapter.Request) =>
        Context.make(Models.Settings, { temperature: request.temperature, max: request.maxTokens, ...request.options })
      const asked = yield* sent({ temperature: 0.5, maxTokens: 7, model: "big", options: { seed: 1 } }, { services })
      assert.deepStrictEqual(asked.settings, { temperature: 0.5, max: 7, seed: 1 })
    }))

  it.effect("R-122: the bridge refuses a setting without a service, and the error names the setting", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [Partial<Adapter.Request>, string]> = [
        [{ temperature: 0 }, "temperature"],
        [{ maxTokens: 1 }, "maxTokens"],
        [{ model: "big" }, "model"],
        [{ options: { seed: 1 } }, "seed"]
      ]
      for (const [request, name] of cases) {
        const [reason, detail] = yield* refusal(request)
        assert.strictEqual(reason, "unsupported_feature")
        assert.include(detail, `"${name}"`)
      }
      assert.strictEqual((yield* sent({ options: {} })).format, "text")
    }))

  it("R-123: an invalid option throws an error with the option name", () => {
    assert.throws(() => EffectAi.layer({ retries: -1 }), /EffectAi.layer: retries/)
  })
})

describe("a structured answer of effect/ai", () => {
  const schema = {
    type: "object",
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city"],
    additionalProperties: false
  }
  const responseFormat = { type: "json_schema", name: "trip", schema } as const

  it.effect("R-123: the schema and its name reach the model, and the answer comes in a single delta", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({
        pieces: [body(text("{ \"city\": \"Oslo\", \"extra\": 1 }"), finish("stop"))]
      }))
      const { error, events } = yield* Chunks.outcome(
        stream(Models.layer(server.url), { ...Chunks.request, responseFormat })
      )
      assert.isUndefined(error)
      const { format } = server.requests[0]!.body
      assert.strictEqual(format.name, "trip")
      assert.deepInclude(format.schema, { type: "object", required: ["city"] })
      assert.deepStrictEqual(format.schema.properties.city, { type: "string" })
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted"])
      assert.strictEqual(completed(events).message.content, "{\"city\":\"Oslo\"}")
      assert.deepInclude(completed(events).usage, { inputTokens: 5, outputTokens: 2 })
    })))

  it.effect("the response format json_object accepts any object", () =>
    Effect.gen(function*() {
      const { events } = yield* outcomeOf(body(text("{\"a\":[1]}"), finish("stop")), {}, {
        responseFormat: { type: "json_object" }
      })
      assert.strictEqual(completed(events).message.content, "{\"a\":[1]}")
    }))

  it.effect("an answer that does not match the schema is emitted as the model wrote the answer", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(body(text("{\"city\":"), finish("length")), {}, { responseFormat })
      assert.isUndefined(error)
      assert.strictEqual(completed(events).message.content, "{\"city\":")
      assert.isNull(completed(events).finishReason)
    }))

  it.effect("a run with structuredFinalize asks for the structured answer after its last step", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve((_, index) => ({
        pieces: [index === 0 ? body(text("Oslo"), finish("stop")) : body(text("{\"city\":\"Oslo\"}"), finish("stop"))]
      }))
      const result = yield* Chat.run("Where?", { structuredFinalize: true, responseFormat }).pipe(
        Effect.provide(Models.layer(server.url))
      )
      assert.strictEqual(result.finalResponse?.outputText, "{\"city\":\"Oslo\"}")
    })))

  it.effect("R-122: the bridge refuses a structured answer with tools, or with an unsupported schema", () =>
    Effect.gen(function*() {
      const tools = [{ name: "now", description: "", parameters: {} }]
      const [reason, detail] = yield* refusal({ tools, responseFormat })
      assert.strictEqual(reason, "unsupported_feature")
      assert.include(detail, "structuredFinalize")
      const format = { type: "json_schema", name: "odd", schema: { type: "array", contains: {} } } as const
      assert.deepStrictEqual((yield* refusal({ responseFormat: format }))[0], "unsupported_feature")
    }))
})

describe("the prompt of effect/ai", () => {
  it.effect("R-146: the prompt holds the thread as effect/ai parts, with all answers of a turn in a single message", () =>
    Effect.gen(function*() {
      const metadata = { effectAi: { options: { acme: { cached: true } } } }
      const calls = [Message.toolCall("a", "read", { path: "x" }), Message.toolCall("b", "draw")]
      const prompt = yield* promptOf([
        { ...Message.system("Be brief"), metadata },
        Message.user([{ type: "text", text: "Hi" }, { type: "image", data: png }, {
          type: "file",
          url: "https://example.com/a.pdf",
          filename: "a.pdf"
        }]),
        Message.assistant("Wait", calls),
        { ...Message.tool("a", "no"), isError: true },
        Message.tool("b", [{ type: "text", text: "Here" }, { type: "image", data: png }])
      ])
      const image = { type: "file", mediaType: "image/png", data: png, options: {} }
      const part = { options: {} }
      assert.deepStrictEqual(prompt, [
        { role: "system", content: "Be brief", options: { acme: { cached: true } } },
        {
          role: "user",
          content: [
            { type: "text", text: "Hi", ...part },
            image,
            {
              type: "file",
              mediaType: "application/pdf",
              data: { _tag: "URL", href: "https://example.com/a.pdf" },
              fileName: "a.pdf",
              ...part
            }
          ],
          options: {}
        },
        {
          role: "assistant",
          content: [
            { type: "text", text: "Wait", ...part },
            { type: "tool-call", id: "a", name: "read", params: { path: "x" }, providerExecuted: false, ...part },
            { type: "tool-call", id: "b", name: "draw", params: {}, providerExecuted: false, ...part }
          ],
          options: {}
        },
        {
          role: "tool",
          content: [
            {
              type: "tool-result",
              id: "a",
              name: "read",
              isFailure: true,
              result: "no",
              providerExecuted: false,
              ...part
            },
            {
              type: "tool-result",
              id: "b",
              name: "draw",
              isFailure: false,
              result: "Here\n[image: image/png, 16 bytes]",
              modelOutput: [{ type: "text", text: "Here", ...part }, image],
              providerExecuted: false,
              ...part
            }
          ],
          options: {}
        }
      ])
    }))

  it.effect("R-351: the prompt omits an empty assistant message and reasoning of other providers", () =>
    Effect.gen(function*() {
      const prompt = yield* promptOf([
        Message.user(""),
        { ...Message.assistant(""), reasoning: [{ type: "reasoning", text: "hm", signature: "x" }] },
        Message.user("Hi")
      ])
      assert.deepStrictEqual(prompt.map(({ role }) => role), ["user", "user"])
    }))

  it.effect("R-122: the bridge refuses a part without usable data before the model is called", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* refusal({ messages: [Message.user([{ type: "image" }])] }), [
        "invalid_request",
        "the image part has neither url nor data"
      ])
    }))
})

describe("errors of effect/ai", () => {
  const failing = (reason: AiError.AiErrorReason, options: EffectAi.Options = {}) =>
    Effect.map(
      Chunks.outcome(stream(Models.scripted(
        () => Stream.fail(AiError.make({ module: "Test", method: "streamText", reason })),
        options
      ))),
      ({ error, events }) => {
        assert.deepStrictEqual(events, [])
        return error!
      }
    )

  it.effect("R-122: each reason of effect/ai has a reason of its own", () =>
    Effect.gen(function*() {
      const network = (reason: "TransportError" | "EncodeError" | "InvalidUrlError") =>
        new AiError.NetworkError({
          reason,
          method: "POST",
          url: "https://example.com?key=hidden",
          description: "refused"
        })
      const description = "no"
      const toolName = "now"
      const cases: ReadonlyArray<readonly [AiError.AiErrorReason, Adapter.AdapterError["reason"]]> = [
        [new AiError.RateLimitError({}), "rate_limited"],
        [new AiError.QuotaExhaustedError({ resetAt: DateTime.makeUnsafe(0) }), "quota_exceeded"],
        [new AiError.AuthenticationError({ kind: "InvalidKey" }), "authentication_failed"],
        [new AiError.ContentPolicyError({ description }), "content_filter"],
        [new AiError.InvalidRequestError({ description }), "invalid_request"],
        [new AiError.InvalidRequestError({ description: "prompt is too long: 9 tokens" }), "context_length_exceeded"],
        [new AiError.InvalidResponseError({ description }), "malformed_response"],
        [new AiError.InternalProviderError({ description }), "provider_unavailable"],
        [network("TransportError"), "network_error"],
        [network("EncodeError"), "invalid_request"],
        [network("InvalidUrlError"), "invalid_request"],
        [new AiError.InvalidOutputError({ description }), "malformed_response"],
        [new AiError.StructuredOutputError({ description, responseText: "" }), "malformed_response"],
        [new AiError.UnsupportedSchemaError({ description }), "unsupported_feature"],
        [new AiError.UnknownError({ description }), "unknown"],
        [new AiError.ToolNotFoundError({ toolName, availableTools: [] }), "malformed_response"],
        [new AiError.ToolParameterValidationError({ toolName, description }), "malformed_response"],
        [new AiError.InvalidToolResultError({ toolName, description }), "malformed_response"],
        [new AiError.ToolResultEncodingError({ toolName, toolResult: 1, description }), "malformed_response"],
        [new AiError.ToolConfigurationError({ toolName, description }), "invalid_request"],
        [new AiError.ToolkitRequiredError({ pendingApprovals: [] }), "invalid_request"],
        [new AiError.InvalidUserInputError({ description }), "invalid_request"]
      ]
      for (const [reason, expected] of cases) {
        const error = yield* failing(reason)
        assert.deepStrictEqual([error.reason, error.provider], [expected, "effect/ai"], reason._tag)
        assert.notInclude(JSON.stringify(error), "hidden")
        assert.deepInclude(error.metadata, { reason: reason._tag })
      }
    }))

  it.effect("R-122: status, request id, delay and error code come from the provider's answer", () =>
    Effect.gen(function*() {
      const answer = (status: number, value: unknown, headers = {}): Server.Answer => ({
        status,
        headers,
        pieces: [JSON.stringify(value)]
      })
      const { error } = yield* outcomeOf(
        answer(429, { error: { message: "slow down" } }, { "retry-after": "7", "x-request-id": "req_1" })
      )
      assert.deepInclude({ ...error }, {
        reason: "rate_limited",
        provider: "acme",
        status: 429,
        retryAfterMillis: 7000,
        requestId: "req_1"
      })
      const tooLong = { error: { message: "no", code: "context_length_exceeded" } }
      const spent = { error: { message: "no", code: "insufficient_quota" } }
      const cases = [
        [400, tooLong, "context_length_exceeded"],
        [400, {}, "invalid_request"],
        [401, {}, "authentication_failed"],
        [404, {}, "invalid_request"],
        [429, spent, "quota_exceeded"],
        [503, {}, "provider_unavailable"]
      ] as const
      for (const [status, value, reason] of cases) {
        const found = yield* outcomeOf(answer(status, value))
        assert.deepStrictEqual([found.error?.reason, found.error?.status], [reason, status])
      }
    }))

  it.effect("N-24: the error keeps a retry delay named only in its message", () =>
    Effect.gen(function*() {
      const description = "Overloaded. Please try again in 20s."
      const told = yield* failing(new AiError.InternalProviderError({ description }), { retries: 0 })
      assert.deepStrictEqual([told.reason, told.retryAfterMillis], ["provider_unavailable", 20_000])
      const body = JSON.stringify({ error: { message: description } })
      const limited = yield* outcomeOf({ status: 429, headers: {}, pieces: [body] }, { retries: 0 })
      assert.deepStrictEqual([limited.error?.reason, limited.error?.retryAfterMillis], ["rate_limited", 20_000])
    }))

  it("N-26: a plain secret throws a TypeError without the value", () => {
    const made = (secrets: unknown) => () => EffectAi.layer({ secrets } as EffectAi.Options)
    const message = (place: string) =>
      new RegExp(`^EffectAi\\.layer: secrets\\[${place}\\] must be a Redacted string: Redacted\\.make\\(secret\\)$`)
    assert.throws(made(["sk-secret"]), TypeError, message("0"))
    assert.throws(made([Redacted.make("sk-other"), Redacted.make(undefined)]), TypeError, message("1"))
    assert.doesNotThrow(made([Redacted.make("sk-secret")]))
  })

  it.effect("an error does not show keys, even if the server quotes them", () =>
    Effect.gen(function*() {
      const secrets = [Redacted.make("sk-secret")]
      const said = yield* failing(new AiError.InvalidRequestError({ description: "bad key sk-secret" }), { secrets })
      assert.notInclude(JSON.stringify(said) + said.message, "sk-secret")
      const answered = yield* outcomeOf(
        { status: 400, headers: {}, pieces: ["{\"error\":{\"message\":\"bad key sk-secret\"}}"] },
        { secrets }
      )
      assert.notInclude(JSON.stringify(answered.error), "sk-secret")
    }))

  it.effect("R-145: an error inside a reply fails the reply after the earlier events, with the usage if a finish part follows", () =>
    Effect.gen(function*() {
      const reason = new AiError.InternalProviderError({ description: "busy" })
      const thrown = yield* Chunks.outcome(stream(Models.scripted(() =>
        Stream.concat(
          Stream.make(text("a")),
          Stream.fail(AiError.make({ module: "Test", method: "streamText", reason }))
        )
      )))
      assert.deepStrictEqual([thrown.error?.reason, tagsOf(thrown.events)], [
        "provider_unavailable",
        ["MessageStarted", "TextDelta"]
      ])
      const errors: ReadonlyArray<readonly [unknown, string]> = [
        [AiError.make({ module: "Test", method: "streamText", reason }), "provider_unavailable"],
        [reason, "provider_unavailable"],
        [{ type: "rate_limit_error", message: "no" }, "rate_limited"],
        [new Error("odd"), "unknown"],
        ["odd", "unknown"]
      ]
      for (const [error, expected] of errors) {
        const told = yield* outcomeOfParts(text("a"), { type: "error", error }, text("b"), finish("error"))
        assert.strictEqual(told.error?.reason, expected)
        assert.deepStrictEqual(tagsOf(told.events), ["MessageStarted", "TextDelta", "RawChunk"])
        assert.deepInclude((of(told.events, "RawChunk")[0]!.chunk as any).usage, { inputTokens: 5 })
      }
    }))

  it.effect("R-355: a lost connection and a reply without an end fail the reply", () =>
    Effect.gen(function*() {
      const dropped = yield* outcomeOf({ pieces: [body(text("a"))], ending: "drop" })
      assert.deepStrictEqual([dropped.error?.reason, tagsOf(dropped.events)], [
        "network_error",
        ["MessageStarted", "TextDelta"]
      ])
      const ended = yield* outcomeOf(body(text("a")))
      assert.deepStrictEqual([ended.error?.reason, tagsOf(ended.events)], [
        "network_error",
        ["MessageStarted", "TextDelta"]
      ])
    }))

  it.effect("an invalid part fails the reply", () =>
    Effect.gen(function*() {
      const { error } = yield* outcomeOfParts(text("a"), { type: "text-delta", id: 5 } as never)
      assert.strictEqual(error?.reason, "malformed_response")
    }))

  it.effect("R-122: the bridge retries an unreachable server, and a busy server after the delay that the server names", () =>
    Effect.gen(function*() {
      const clock = () => WaitingClock.make((millis) => millis !== 300_000 && millis !== 1000)
      const calm = Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0, nextIntUnsafe: () => 0 })
      const unreached = clock()
      const { error } = yield* Chunks.outcome(
        stream(Models.layer(yield* Server.unreachable, { retries: 2, retryDelay: "600 millis" }))
      ).pipe(
        WaitingClock.by(unreached),
        calm
      )
      assert.strictEqual(error?.reason, "network_error")
      assert.deepStrictEqual(unreached.waits.filter((millis) => millis < 10_000), [600, 1200])
      const busy = clock()
      const found = yield* Effect.scoped(Effect.gen(function*() {
        const server = yield* Server.serve((_, index) =>
          index === 0
            ? { status: 429, headers: { "retry-after": "7" }, pieces: ["{}"] }
            : { pieces: [body(text("ok"), finish("stop"))] }
        )
        return yield* Chunks.outcome(stream(Models.layer(server.url, { retries: 2 })))
      })).pipe(WaitingClock.by(busy), calm)
      assert.isUndefined(found.error)
      assert.deepStrictEqual(busy.waits.filter((millis) => millis < 10_000 && millis !== 1000), [7000])
    }))
})
