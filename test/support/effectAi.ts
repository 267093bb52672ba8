/**
 * Language models of effect/ai for tests: one that `LanguageModel.make` makes of a loopback server, which streams
 * response parts as lines of JSON, and one that answers with given parts.
 */
import * as AiError from "effect/ai/AiError"
import * as LanguageModel from "effect/ai/LanguageModel"
import * as Model from "effect/ai/Model"
import * as Prompt from "effect/ai/Prompt"
import type * as AiResponse from "effect/ai/Response"
import * as AiTool from "effect/ai/Tool"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Ndjson from "effect/encoding/Ndjson"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpClient from "effect/http/HttpClient"
import type * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import type * as HttpClientResponse from "effect/http/HttpClientResponse"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter } from "heddle"
import * as EffectAi from "heddle/bridges/effect-ai"
import * as Chunks from "./openAiChat.ts"
import * as Server from "./server.ts"

/** The settings of this provider, as every provider of effect/ai has a service of its own for them. */
export class Settings extends Context.Service<Settings, Readonly<Record<string, unknown>>>()("test/Settings") {}

export type Part = AiResponse.StreamPartEncoded

const encodePrompt = Schema.encodeUnknownSync(Prompt.Prompt)

const toolBody = (tool: AiTool.Any) => ({
  name: tool.name,
  description: AiTool.getDescription(tool),
  ...(AiTool.isProviderDefined(tool) ? { id: tool.id, args: tool.args } : {}),
  parameters: AiTool.getJsonSchema(tool),
  strict: AiTool.getStrictMode(tool)
})

const requestBody = (options: LanguageModel.ProviderOptions, settings: unknown) => ({
  prompt: encodePrompt(options.prompt).content,
  tools: options.tools.map(toolBody),
  toolChoice: options.toolChoice,
  validation: options.toolCallValidation,
  settings,
  format: options.responseFormat.type === "text" ? "text" : {
    name: options.responseFormat.objectName,
    schema: AiTool.getJsonSchemaFromSchema(options.responseFormat.schema)
  }
})

const failed = (reason: AiError.AiErrorReason) => AiError.make({ module: "Test", method: "streamText", reason })

const unreached = (error: HttpClientError.HttpClientError): AiError.AiError =>
  failed(AiError.NetworkError.fromHttpClientError(error as never))

const refused = (response: HttpClientResponse.HttpClientResponse): Effect.Effect<never, AiError.AiError> =>
  Effect.gen(function*() {
    const body = yield* Effect.orElseSucceed(response.text, () => "")
    const http = { response: { status: response.status, headers: { ...response.headers } }, body }
    const after = Number(response.headers["retry-after"])
    const retryAfter = Number.isFinite(after) ? { retryAfter: Duration.seconds(after) } : {}
    const reason = response.status === 429
      ? new AiError.RateLimitError({ http, ...retryAfter })
      : AiError.reasonFromHttpStatus({ status: response.status, http, description: "refused" })
    return yield* Effect.fail(failed(reason))
  })

/** The parts that a server answers with. */
const ask = (url: string, options: LanguageModel.ProviderOptions): Stream.Stream<Part, AiError.AiError> =>
  Stream.unwrap(Effect.gen(function*() {
    const settings = Option.getOrUndefined(yield* Effect.serviceOption(Settings))
    const client = yield* HttpClient.HttpClient
    const request = HttpClientRequest.bodyJsonUnsafe(HttpClientRequest.post(url), requestBody(options, settings))
    const response = yield* HttpClient.withScope(client).execute(request).pipe(Effect.mapError(unreached))
    if (response.status >= 400) return yield* refused(response)
    return response.stream.pipe(
      Stream.pipeThroughChannel(Ndjson.decode()),
      Stream.mapError((cause) =>
        failed(
          new AiError.NetworkError({
            reason: "TransportError",
            method: "POST",
            url,
            description: `the connection was lost: ${String(cause)}`
          })
        )
      )
    ) as Stream.Stream<Part, AiError.AiError>
  })).pipe(Stream.provide(FetchHttpClient.layer))

/** The parts of a reply that does not stream. */
const whole = (parts: ReadonlyArray<Part>): Array<AiResponse.PartEncoded> =>
  parts.flatMap((part): ReadonlyArray<any> =>
    part.type === "text-delta" ? [{ type: "text", text: part.delta }] : [part]
  )

/** The model behind a server. */
const model = (url: string): Layer.Layer<LanguageModel.LanguageModel> =>
  Layer.effect(
    LanguageModel.LanguageModel,
    LanguageModel.make({
      streamText: (options) => ask(url, options),
      generateText: (options) => Effect.map(Stream.runCollect(ask(url, options)), whole)
    })
  )

/** The adapter of the model behind a server. */
export const layer = (url: string, options: EffectAi.Options = {}): Layer.Layer<Adapter.Adapter> =>
  EffectAi.layer({ retries: 0, ...options }).pipe(Layer.provide(Model.make("acme", "test-model", model(url))))

/** A body of parts. */
export const body = (...parts: ReadonlyArray<Part>): string => parts.map((part) => `${JSON.stringify(part)}\n`).join("")

export const text = (delta: string, id = "0"): Part => ({ type: "text-delta", id, delta })

export const call = (id: string, name: string, params: unknown, rest: object = {}): Part => ({
  type: "tool-call",
  id,
  name,
  params,
  ...rest
})

export const finish = (reason: AiResponse.FinishReason, rest: object = {}): Part => ({
  type: "finish",
  reason,
  usage: { inputTokens: { total: 5 }, outputTokens: { total: 2 } },
  ...rest
})

/** A reply with text and two calls whose fragments take turns; it is not ASCII. */
export const interleaved = body(
  { type: "response-metadata", id: "resp_1", modelId: "test-model" },
  { type: "text-start", id: "0" },
  text("Høj "),
  text("sky 🌤"),
  { type: "text-end", id: "0" },
  { type: "tool-params-start", id: "call_a", name: "search" },
  { type: "tool-params-start", id: "call_b", name: "read" },
  { type: "tool-params-delta", id: "call_a", delta: "{\"query\":" },
  { type: "tool-params-delta", id: "call_b", delta: "{\"path\":\"a.txt\"}" },
  { type: "tool-params-delta", id: "call_a", delta: "\"tøj\"}" },
  { type: "tool-params-end", id: "call_a" },
  call("call_a", "search", { query: "tøj" }),
  { type: "tool-params-end", id: "call_b" },
  call("call_b", "read", { path: "a.txt" }),
  finish("tool-calls")
)

/** What an adapter makes of a request. */
export const stream = (adapter: Layer.Layer<Adapter.Adapter>, request: Adapter.Request = Chunks.request) =>
  Stream.unwrap(Adapter.Adapter.useSync((service) => service.stream(request))).pipe(Stream.provide(adapter))

/** What an answer of a loopback server comes to. */
export const outcomeOf = (
  answer: string | Server.Answer,
  options: EffectAi.Options = {},
  request: Partial<Adapter.Request> = {}
): Effect.Effect<Chunks.Outcome> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => typeof answer === "string" ? { pieces: [answer] } : answer)
    return yield* Chunks.outcome(stream(layer(server.url, options), { ...Chunks.request, ...request }))
  }))

/** What was sent for a request. */
export const sent = (
  request: Partial<Adapter.Request>,
  options: EffectAi.Options = {}
): Effect.Effect<any, Adapter.AdapterError> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [body(text("{}"), finish("stop"))] }))
    yield* Stream.runDrain(stream(layer(server.url, options), { ...Chunks.request, ...request }))
    return server.requests[0]!.body
  }))

/** The adapter of a model that streams what it is given. */
export const scripted = (
  parts: (options: LanguageModel.ProviderOptions) => Stream.Stream<Part, AiError.AiError>,
  options: EffectAi.Options = {}
): Layer.Layer<Adapter.Adapter> =>
  EffectAi.layer({ retries: 0, ...options }).pipe(Layer.provide(Layer.effect(
    LanguageModel.LanguageModel,
    LanguageModel.make({
      streamText: parts,
      generateText: (asked) => Effect.map(Stream.runCollect(parts(asked)), whole)
    })
  )))

/** What a model that answers with the given parts comes to. */
export const outcomeOfParts = (...parts: ReadonlyArray<Part>): Effect.Effect<Chunks.Outcome> =>
  Chunks.outcome(stream(scripted(() => Stream.fromIterable(parts))))
