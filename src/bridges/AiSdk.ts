/**
 * Uses AI SDK models as adapters: any language model implementing version 2, 3 or 4 of the SDK's provider interface,
 * from the SDK's packages or others. Heddle asks the model only for its part stream: it runs the tools itself and
 * retries requests that failed before their first event. Closing the stream aborts the model's request.
 */
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as Adapter from "../Adapter.ts"
import * as Errors from "../adapters/internal/errors.ts"
import * as Http from "../adapters/internal/http.ts"
import * as Wire from "../adapters/internal/wire.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import * as AiSdkModel from "./internal/aiSdkModel.ts"
import type { LanguageModel } from "./internal/aiSdkModel.ts"
import * as AiSdkPrompt from "./internal/aiSdkPrompt.ts"
import * as Layout from "./internal/layout.ts"
import * as Reply from "./internal/reply.ts"

export type { LanguageModel, Started } from "./internal/aiSdkModel.ts"
export type { ProviderTool } from "./internal/aiSdkPrompt.ts"

/**
 * Model options, independent of a request.
 *
 * @category models
 */
export interface Options extends Reply.Options, Pick<Http.Options, "headers"> {
  /** Model used by default. */
  readonly model: LanguageModel
  /**
   * Returns the model for a request naming another. Without this function such a request fails as
   * `unsupported_feature`.
   */
  readonly models?: (id: string) => LanguageModel
  /**
   * Thinking settings. Defaults to the provider's own setting. With a model below version 4, requests with an effort
   * fail as `unsupported_feature`.
   */
  readonly reasoning?: {
    /** Thinking effort, as one of the SDK's levels. */
    readonly effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max"
  }
  /**
   * `true` if arguments must follow the tool schemas exactly. Defaults to the provider's choice. With a version 2
   * model, requests with this option fail as `unsupported_feature`.
   */
  readonly strict?: boolean
  /**
   * Provider-executed tools, offered with every request; each replaces the declared tool with the same name. None by
   * default.
   */
  readonly providerTools?: ReadonlyArray<AiSdkPrompt.ProviderTool>
  /**
   * Downloads a file from an address the model does not read itself. Without it the adapter passes addresses on, and
   * the provider refuses unreadable files. Threads may name any address: download only from hosts you trust.
   */
  readonly download?: (
    url: URL
  ) => Effect.Effect<{
    /** The file, as bytes or base64. */
    readonly data: Uint8Array | string
    /** Media type. Defaults to the part's own. */
    readonly mediaType?: string
  }, unknown>
  /**
   * Further SDK call settings (`topP`, `stopSequences`, `providerOptions`, …), sent unchanged with every request. A
   * request's own `options` win; `providerOptions` from both are merged per provider. None by default.
   */
  readonly options?: Readonly<Record<string, unknown>>
}

const knownOptions = {
  ...Reply.knownOptions,
  headers: Http.headers,
  model: Values.checkedLater,
  models: Values.fn,
  reasoning: Values.options({
    effort: Values.oneOf("none", "minimal", "low", "medium", "high", "xhigh", "max")
  }),
  strict: Values.flag,
  providerTools: Values.listOf(Values.record, "tools of the provider"),
  download: Values.fn,
  options: Values.record
} satisfies NamesOf<Options>

const name = "AiSdk.layer"
const metadataKey = "aiSdk"
const versions: ReadonlyArray<unknown> = ["v2", "v3", "v4"]

const isModel = (value: unknown): value is LanguageModel =>
  Json.isObject(value) && typeof value["doStream"] === "function" && versions.includes(value["specificationVersion"])

const checked = (model: unknown, origin: string): LanguageModel => {
  if (isModel(model)) return model
  const version = Json.isObject(model) ? model["specificationVersion"] : undefined
  const found = version === undefined ? Json.render(model).slice(0, 100) : `one of version ${String(version)}`
  return Http.misuse(name, `${origin} must be a language model of version 2, 3 or 4 of the AI SDK; got: ${found}`)
}

const refusal = (origin: Errors.Origin, detail: string): Adapter.AdapterError =>
  Errors.make(origin, "unsupported_feature", detail)

const originOf = (options: Options): Errors.Origin => {
  const values = Object.values(options.headers ?? {}).flatMap((value) => Redacted.isRedacted(value) ? [value] : [])
  return Reply.originOf(options.provider ?? options.model.provider, [...options.secrets ?? [], ...values])
}

/** Returns the model for a request. */
const modelFor = (
  options: Options,
  origin: Errors.Origin,
  id: string | undefined
): Result.Result<LanguageModel, Adapter.AdapterError> => {
  if (id === undefined || id === options.model.modelId) return Result.succeed(options.model)
  return options.models === undefined
    ? Result.fail(
      refusal(origin, `the request names the model "${id}": give AiSdk.layer the option models for other models`)
    )
    : Result.succeed(checked(options.models(id), `models(${JSON.stringify(id)})`))
}

const unsupported = (options: Options, version: AiSdkPrompt.Version): string | undefined => {
  if (options.reasoning?.effort !== undefined && version !== "v4") {
    return `models of version ${version} have no setting for reasoning: use options.providerOptions`
  }
  return options.strict !== undefined && version === "v2" ? "models of version v2 have no strict tools" : undefined
}

/** Returns the model's call options, except the signal. */
const callOptions = (
  options: Options,
  request: Adapter.Request,
  writing: AiSdkPrompt.Writing
): Result.Result<Json.JsonObject, string> =>
  Result.map(AiSdkPrompt.write(writing, request.messages), (prompt) => {
    const { reasoning, strict } = options
    const further = { ...options.options, ...request.options }
    const providerOptions = Layout.merged(options.options?.["providerOptions"], request.options?.["providerOptions"])
    const headers = Object.entries(options.headers ?? {}).map(([key, value]) => [key, plain(value)])
    return {
      ...AiSdkPrompt.tools(request, options.providerTools ?? [], writing.version, strict),
      ...AiSdkPrompt.responseFormat(request.responseFormat),
      ...Wire.defined({
        temperature: request.temperature,
        maxOutputTokens: request.maxTokens,
        reasoning: reasoning?.effort
      }),
      ...Wire.filled("headers", Object.fromEntries(headers)),
      ...further,
      ...Wire.defined({ providerOptions }),
      prompt
    }
  })

const plain = (value: string | Redacted.Redacted<string>): string =>
  Redacted.isRedacted(value) ? Redacted.value(value) : value

const stream = (
  options: Options,
  settings: Http.Settings,
  request: Adapter.Request
): Stream.Stream<Reply.Event, Adapter.AdapterError> =>
  Stream.unwrap(Effect.gen(function*() {
    const origin = originOf(options)
    const model = yield* Effect.fromResult(modelFor(options, origin, request.model))
    const version = model.specificationVersion
    const problem = unsupported(options, version)
    if (problem !== undefined) return yield* Effect.fail(refusal(origin, problem))
    const owner: Layout.Owner = { key: metadataKey, provider: model.provider }
    const loaded = options.download === undefined
      ? new Map()
      : yield* AiSdkPrompt.load(model, options.download, request.messages, origin)
    const made = callOptions(options, request, { owner, version, loaded })
    const call = yield* Effect.fromResult(
      Result.mapError(made, (detail) => Errors.make(origin, "invalid_request", detail))
    )
    return Reply.stream({
      owner,
      origin,
      settings: Http.attempted(settings, request.attempt),
      open: AiSdkModel.open(model, call, origin)
    })
  }))

/**
 * Creates the adapter layer for a model.
 *
 * **Details**
 *
 * Calls pass through as the model made them. A call is final as soon as the reply continues or ends; if the token limit
 * ended the reply, the last call is marked `truncated`, even if its arguments parse. Values a provider expects back
 * unchanged (reasoning signatures, item ids, results of its own tools) are stored with the message's reasoning and
 * calls, and go back to the same provider only. A message's `metadata.aiSdk.options` become its provider options, such
 * as a mark for prompt caching.
 *
 * The adapter retries a request with growing delays if it fails before the model's first output with a retryable error.
 * After the first output it retries nothing: an error in the reply, and a reply without an end, fail the stream. An
 * invalid option throws a `TypeError` naming the option.
 *
 * **Example** (A model that answers from memory)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import * as AiSdk from "heddle/bridges/ai-sdk"
 * import * as Effect from "effect/Effect"
 *
 * const usage = { inputTokens: { total: 3 }, outputTokens: { total: 1 } }
 * const model: AiSdk.LanguageModel = {
 *   specificationVersion: "v4",
 *   provider: "memory",
 *   modelId: "parrot",
 *   doStream: () =>
 *     Promise.resolve({
 *       stream: new ReadableStream({
 *         start(controller) {
 *           controller.enqueue({ type: "text-delta", id: "0", delta: "Hello" })
 *           controller.enqueue({ type: "finish", finishReason: { unified: "stop" }, usage })
 *           controller.close()
 *         }
 *       })
 *     })
 * }
 * const result = await Effect.runPromise(Chat.run("Say hello").pipe(Effect.provide(AiSdk.layer({ model }))))
 *
 * result.finalResponse?.outputText // => "Hello"
 * result.usage?.totalTokens // => 4
 * ```
 *
 * **Example** (A provider's package)
 *
 * ```ts import.meta.vitest
 * import type { Adapter } from "heddle"
 * import * as AiSdk from "heddle/bridges/ai-sdk"
 * import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
 * import * as Layer from "effect/Layer"
 *
 * const local = createOpenAICompatible({ name: "local", baseURL: "http://localhost:8080/v1", includeUsage: true })
 * const model: Layer.Layer<Adapter.Adapter> = AiSdk.layer({
 *   model: local("qwen3"),
 *   models: local,
 *   options: { topP: 0.9, providerOptions: { local: { user: "me" } } }
 * })
 *
 * Layer.isLayer(model) // => true
 * ```
 *
 * @category layers
 */
export const layer = (options: Options): Layer.Layer<Adapter.Adapter> => {
  checkNames(name, options, knownOptions)
  const settings = Http.settings(name, options)
  checked(options.model, "model")
  const { model, provider = model.provider.split(".")[0] ?? model.provider } = options
  return Adapter.layer({
    provider,
    model: model.modelId,
    stream: (request) => stream(options, settings, request)
  })
}
