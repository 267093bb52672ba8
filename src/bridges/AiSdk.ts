/**
 * Models of the AI SDK as adapters: any language model that implements version 2, 3 or 4 of its provider interface,
 * from the packages of the SDK or others. A model is only asked for its stream of parts: Heddle runs the tools,
 * retries what failed before its first event, and closing the stream aborts the model's request.
 *
 * @since 0.1.0
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
 * Options of a model besides a request.
 *
 * @category models
 * @since 0.1.0
 */
export interface Options extends Reply.Options, Pick<Http.Options, "headers"> {
  /** The model. */
  readonly model: LanguageModel
  /** The model for a request that names another one. Without it every request goes to `model`. */
  readonly models?: (id: string) => LanguageModel
  /** The amount that the model may think, for models of version 4. The provider's default when it is left out. */
  readonly reasoning?: {
    /** The amount, in one of the SDK's words. */
    readonly effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max"
  }
  /**
   * `true` if arguments must follow the schemas of tools exactly, for models of version 3 and 4. `false` by default.
   */
  readonly strict?: boolean
  /**
   * Tools that the provider runs, offered with every request; one takes the place of the tool of its name. None by
   * default.
   */
  readonly providerTools?: ReadonlyArray<AiSdkPrompt.ProviderTool>
  /**
   * Loads a file from an address that the model does not read itself. Without it addresses are handed on as they are,
   * and the provider refuses what it cannot read. Threads may name any address: load from those you trust.
   */
  readonly download?: (
    url: URL
  ) => Effect.Effect<{
    /** The file, as bytes or in base64. */
    readonly data: Uint8Array | string
    /** Its media type. That of the part by default. */
    readonly mediaType?: string
  }, unknown>
  /**
   * Further settings of the SDK's calls (`topP`, `stopSequences`, `providerOptions`, …), sent with every request as
   * they are. A request's own `options` win, and `providerOptions` of both are joined provider by provider. None by
   * default.
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

/** The model that a request is for. */
const modelFor = (
  options: Options,
  origin: Errors.Origin,
  id: string | undefined
): Result.Result<LanguageModel, Adapter.AdapterError> => {
  if (id === undefined || id === options.model.modelId) return Result.succeed(options.model)
  return options.models === undefined
    ? Result.fail(refusal(origin, `the request is for the model "${id}", and there are no models to choose from`))
    : Result.succeed(checked(options.models(id), `models(${JSON.stringify(id)})`))
}

const unsupported = (options: Options, version: AiSdkPrompt.Version): string | undefined => {
  if (options.reasoning?.effort !== undefined && version !== "v4") {
    return `models of version ${version} have no setting for reasoning: use options.providerOptions`
  }
  return options.strict !== undefined && version === "v2" ? "models of version v2 have no strict tools" : undefined
}

/** Returns the options that the model is called with, but for the signal. */
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
 * The adapter of a model.
 *
 * **Details**
 *
 * Calls are handed on as the model made them. One is final as soon as the reply continues or has ended; if the token
 * limit ended it, the last call is marked as `truncated`, even if its arguments parse. What a provider wants back
 * unchanged (signatures of reasoning, item ids, results of tools it ran) is kept with the message's reasoning and
 * calls, and is sent back to the same provider only. A message's own `metadata.aiSdk.options` are its provider options,
 * such as a mark for prompt caching.
 *
 * A request that fails before the model's first output is retried with growing delays if its error is retryable. After
 * the first output nothing is retried: an error in the reply, and a reply without an end, fail the stream. An invalid
 * option throws a `TypeError` that names it.
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
 * @since 0.1.0
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
