/**
 * Streams Google's Gemini protocol (generateContent), as the Gemini API and Vertex AI actually write it: as events, as
 * one JSON array, or broken off by a bare error. Signatures go back with their parts. Provider-executed calls are
 * listed and never run here.
 */
import type * as Config from "effect/Config"
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Adapter from "../Adapter.ts"
import * as Values from "../internal/declare/values.ts"
import * as ToolCalls from "../internal/hear/toolCalls.ts"
import * as Json from "../internal/json.ts"
import type * as Message from "../Message.ts"
import * as Response from "../Response.ts"
import * as Answer from "./internal/answerBody.ts"
import * as Errors from "./internal/errors.ts"
import * as GeminiReply from "./internal/geminiReply.ts"
import * as GeminiRequest from "./internal/geminiRequest.ts"
import * as Http from "./internal/http.ts"
import * as Sse from "./internal/sse.ts"
import * as Wire from "./internal/wire.ts"
import * as WireProtocol from "./internal/wireProtocol.ts"

export type { Reasoning } from "./internal/geminiRequest.ts"

/**
 * Server address and settings. `baseUrl` defaults to the Gemini API; for Vertex AI it ends before `/models`:
 *
 * `https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google`. `apiKey` is an
 * API key, or the access token of a Vertex AI project. With `strict`, the model must follow tool schemas even where it
 * is free to call none (mode `VALIDATED`).
 *
 * @category models
 */
export interface Options extends Omit<WireProtocol.Options, "parallelToolCalls"> {
  /** Key header. Defaults to a bearer token for Vertex AI projects and to `x-goog-api-key` for every other server. */
  readonly sendKeyAs?: "x-goog-api-key" | "bearer"
  /**
   * Thinking allowance before the answer, as a level or in tokens. Models up to 2.5 have no levels, so the adapter
   * sends tokens instead. Defaults to the model's own setting.
   */
  readonly reasoning?: GeminiRequest.Reasoning
  /**
   * `"openApi"` rewrites schemas to the older subset, for servers without JSON Schema support. Defaults to
   * `"jsonSchema"`.
   */
  readonly schemas?: "jsonSchema" | "openApi"
  /** Name of cached content. It holds the system text and the tools, so the request omits both. None by default. */
  readonly cache?: string
  /** Blocked content and its thresholds. Defaults to the provider's own settings. */
  readonly safetySettings?: ReadonlyArray<{
    /** Content category, such as `"HARM_CATEGORY_HARASSMENT"`. */
    readonly category: string
    /** Lowest blocked level, such as `"BLOCK_ONLY_HIGH"`. */
    readonly threshold: string
  }>
}

const requestBody = (options: Options, request: Adapter.Request, { server }: WireProtocol.Sending): Json.JsonObject => {
  const model = request.model ?? options.model
  const { messages, token: continuationToken } = GeminiRequest.continued(request.messages, server)
  const { contents, system } = GeminiRequest.write(messages, isSigned(model), server)
  const generationConfig = {
    ...Wire.defined({ temperature: request.temperature, maxOutputTokens: request.maxTokens }),
    ...GeminiRequest.responseFormat(options, request.responseFormat),
    ...GeminiRequest.thinking(options.reasoning, model)
  }
  const own = {
    contents,
    ...(options.cache === undefined
      ? {
        ...(system.length === 0 ? {} : { systemInstruction: { parts: system } }),
        ...GeminiRequest.tools(options, request)
      }
      : { cachedContent: options.cache }),
    ...Wire.filled("generationConfig", generationConfig),
    ...Wire.defined({ safetySettings: options.safetySettings, continuationToken })
  }
  return GeminiRequest.merged(GeminiRequest.merged(own, options.options), request.options)
}

const path = (options: Options, request: Adapter.Request): string => {
  const model = request.model ?? options.model
  const segments = (model.includes("/") ? model : `models/${model}`).split("/").map(encodeURIComponent)
  return `/${segments.join("/")}:streamGenerateContent?alt=sse`
}

/**
 * Returns `true` for models since the third generation, which require a signature on the first call in every turn. An
 * alias counts as such a model, since it may stand for any version.
 */
const isSigned = (model: string): boolean => /gemini-([3-9]|\d{2}|[a-z].*-latest$)/.test(model)

/** Parts reporting provider-executed calls. */
const serverParts = ["executableCode", "codeExecutionResult", "toolCall", "toolResponse", "functionResponse"]

class Reader extends Answer.ReplyReader {
  readonly documents = new Sse.Documents()
  private readonly calls: GeminiReply.Calls
  private readonly turn = new GeminiReply.Turn()
  private readonly details = new GeminiReply.Details()
  private readonly media: Array<Message.Part> = []
  private text = ""
  private finishWord: string | undefined
  private blockReason: string | undefined
  private hasToolParts = false
  /** Continuation token of a reply stopped by the server's own limit. */
  private token: string | undefined

  constructor(origin: Errors.Origin, makeId: () => string, request: Adapter.Request) {
    super(origin)
    this.calls = new GeminiReply.Calls(makeId, new Set(request.tools.map(({ name }) => name)))
  }

  override get isComplete(): boolean {
    return this.finishWord !== undefined || this.blockReason !== undefined
  }

  protected override get hasBegun(): boolean {
    return this.hasChunks || this.documents.held !== ""
  }

  /** Reads an event holding one chunk or a list. */
  override read(event: Sse.SseEvent, out: Answer.Out): void {
    const list = event.data.trimStart().startsWith("[") ? Result.getOrUndefined(Json.parseWire(event.data)) : undefined
    if (!Array.isArray(list)) return super.read(event, out)
    for (const chunk of Wire.list(list)) this.chunk(chunk, undefined, out)
  }

  /** Reads nothing: a body without events arrives as documents instead. */
  protected override document(): void {}

  protected override chunk(chunk: Json.JsonObject, _name: string | undefined, out: Answer.Out): void {
    const { candidates, error: _, modelVersion, promptFeedback, responseId, usageMetadata } = chunk
    const isReply = [candidates, promptFeedback, responseId, usageMetadata].some((member) => member !== undefined)
    if (Json.isObject(usageMetadata)) this.usage = usage(this.usage, usageMetadata)
    if (this.failure !== undefined) return
    this.id ??= Wire.string(responseId)
    this.model ??= Wire.string(modelVersion)
    if (Json.isObject(promptFeedback)) this.details.add({ promptFeedback })
    this.blockReason ??= Wire.string(Wire.object(promptFeedback)["blockReason"])
    // Requests ask for one candidate. Further candidates are other replies to the same request, not parts of this
    // reply.
    const candidate = Wire.list(candidates).find(({ index }) => index === undefined || index === 0)
    if (candidate !== undefined) this.candidate(candidate, out)
    const error = Option.getOrUndefined(Errors.fromChunk(this.origin, chunk, !isReply && !this.hasChunks))
    this.failure = error === undefined ? undefined : Errors.ended(error, this.finishWord)
    this.hasChunks = true
  }

  private candidate(candidate: Json.JsonObject, out: Answer.Out): void {
    const { content, continuationToken, finishReason, index: _, ...rest } = candidate
    for (const part of Wire.list(Wire.object(content)["parts"])) this.part(part, out)
    this.finishWord = Wire.string(finishReason) ?? this.finishWord
    this.token = Wire.string(continuationToken) ?? this.token
    this.details.add(rest)
  }

  private part(part: Json.JsonObject, out: Answer.Out): void {
    if (this.failure !== undefined) return
    const { functionCall, text, thought, thoughtSignature } = part
    const signature = Wire.string(thoughtSignature)
    if (!Json.isObject(functionCall)) this.calls.moveOn(out)
    if (Json.isObject(functionCall)) {
      const call = this.calls.read(functionCall, signature, out)
      if (this.calls.problem !== undefined) this.fail("malformed_response", this.calls.problem)
      if (call !== undefined) this.turn.call(call, part)
    } else if (typeof text !== "string") this.otherPart(part, out)
    else if (thought === true) {
      this.turn.thought(text, signature)
      Answer.think(text, out)
    } else {
      this.text += text
      this.turn.text(text, signature)
      Answer.say(text, out)
    }
  }

  /** Keeps a part other than text or a call as received, so that it goes back. Unsigned thoughts are dropped. */
  private otherPart(part: Json.JsonObject, out: Answer.Out): void {
    if (part["thought"] === true && part["thoughtSignature"] === undefined) return
    const [kind, value] = Object.entries(part).find(([, member]) => Json.isObject(member)) ?? []
    if (kind !== undefined && Json.isObject(value) && serverParts.includes(kind)) {
      if (kind === "functionResponse") this.calls.answered(Wire.string(value["name"]) ?? "", out)
      this.calls.execute(kind, value, out)
      this.hasToolParts ||= kind === "toolCall"
    }
    if (part["thought"] !== true) this.media.push(...GeminiRequest.media(part))
    if (Object.keys(part).length > 0) this.turn.raw(part)
  }

  protected override finish(out: Answer.Out): void {
    const { details: { all: details }, finishWord, text } = this
    const token = finishWord === "CONTINUATION" ? this.token : undefined
    this.calls.moveOn(out)
    Answer.endText(text, out)
    for (const hosted of this.hasToolParts ? [] : this.details.hosted) this.calls.execute(...hosted, out)
    const reason = finishReason(finishWord, this.blockReason !== undefined, false)
    const problem = this.calls.end(ToolCalls.endingOf(reason), out)
    if (problem !== undefined) return this.fail("malformed_response", problem)
    const { toolCalls } = this.calls
    const { reasoning } = this.turn
    const hasCalls = toolCalls.some(Response.isActionable)
    this.complete({
      content: Answer.contentOf(text, this.media),
      toolCalls,
      reasoning: token === undefined ? reasoning : [...reasoning, GeminiReply.continuing(token)],
      isPaused: token !== undefined,
      finishReason: finishReason(finishWord, this.blockReason !== undefined, hasCalls),
      word: finishWord,
      notes: {
        ...Wire.defined({ blockReason: this.blockReason }),
        ...Wire.filled(GeminiReply.metadataKey, details)
      }
    }, out)
  }
}

const finishReasons: { readonly [word: string]: Response.FinishReason } = {
  STOP: "stop",
  MAX_TOKENS: "length",
  CONTINUATION: "length",
  SAFETY: "content_filter",
  RECITATION: "content_filter",
  BLOCKLIST: "content_filter",
  PROHIBITED_CONTENT: "content_filter",
  SPII: "content_filter",
  MODEL_ARMOR: "content_filter",
  IMAGE_SAFETY: "content_filter",
  IMAGE_PROHIBITED_CONTENT: "content_filter",
  IMAGE_RECITATION: "content_filter",
  OTHER: "other",
  IMAGE_OTHER: "other"
}

/**
 * Maps the wire's finish reason. It is `STOP` for calls too, and missing for a blocked reply. `OTHER` is no failure by
 * itself; values missing from the table name a failure (a malformed call, an unexpected call).
 */
const finishReason = (
  word: string | undefined,
  isBlocked: boolean,
  hasCalls: boolean
): Response.FinishReason | null => {
  if (word === undefined) return isBlocked ? "content_filter" : null
  const reason = Object.hasOwn(finishReasons, word) ? finishReasons[word] ?? "error" : "error"
  return reason === "stop" && hasCalls ? "tool_calls" : reason
}

/**
 * Input includes cached tokens, output excludes thoughts: the wire's own numbers, without sums. A chunk may omit
 * figures from an earlier chunk. A missing total becomes the sum of its parts.
 */
const usage = (previous: Response.Usage | null, wire: Json.JsonObject): Response.Usage => {
  const { cachedContentTokenCount, candidatesTokenCount, promptTokenCount, thoughtsTokenCount, ...rest } = wire
  const { totalTokenCount, ...extra } = rest
  const next = Wire.mergedUsage(
    previous,
    Response.usage({
      inputTokens: promptTokenCount,
      outputTokens: candidatesTokenCount,
      totalTokens: totalTokenCount,
      cachedInputTokens: cachedContentTokenCount,
      reasoningTokens: thoughtsTokenCount,
      extra
    })
  )
  if (typeof totalTokenCount === "number" && totalTokenCount > 0) return next
  const isCounted = [candidatesTokenCount, promptTokenCount, thoughtsTokenCount].some((count) => Number(count) > 0)
  if (!isCounted) return { ...next, totalTokens: previous?.totalTokens ?? null }
  const parts = [next.inputTokens, next.outputTokens, next.reasoningTokens, next.extra["toolUsePromptTokenCount"]]
  return { ...next, totalTokens: parts.reduce<number>((sum, count) => sum + (Number(count) || 0), 0) }
}

const errors: Errors.Words = [
  [/PerDay/, "quota_exceeded"],
  [/RESOURCE_EXHAUSTED/, "rate_limited"],
  [/API_KEY_INVALID|UNAUTHENTICATED|PERMISSION_DENIED/, "authentication_failed"],
  [/CANCELLED|UNAVAILABLE|INTERNAL|ABORTED/, "provider_unavailable"],
  [/DEADLINE_EXCEEDED/, "timeout"]
]

const headers = ({ apiKey, baseUrl = "", sendKeyAs }: Options): Http.HeaderValues => {
  if (apiKey === undefined) return {}
  const isProject = /aiplatform\.googleapis\.com\/.*\bprojects\//.test(baseUrl)
  return (sendKeyAs ?? (isProject ? "bearer" : "x-goog-api-key")) === "bearer"
    ? { authorization: Http.bearer(apiKey) }
    : { "x-goog-api-key": apiKey }
}

/** Gemini has no option to forbid several calls in one turn. */
const { parallelToolCalls: _, ...sharedOptions } = WireProtocol.knownOptions

const protocol: WireProtocol.Protocol<Options> = {
  name: "Gemini",
  knownOptions: {
    ...sharedOptions,
    sendKeyAs: Values.oneOf("x-goog-api-key", "bearer"),
    reasoning: Values.options({ ...WireProtocol.knownReasoning, includeThoughts: Values.flag }),
    schemas: Values.oneOf("jsonSchema", "openApi"),
    cache: Values.name,
    safetySettings: Values.listOf(
      Values.described(
        Values.required({ category: Values.name, threshold: Values.name }),
        "{ category, threshold }"
      ),
      "{ category, threshold }"
    )
  },
  provider: "google",
  baseUrl: "https://generativelanguage.googleapis.com/v1beta",
  spans: () => ({ provider: "gcp.gemini", operation: "generate_content" }),
  // A name begins with a letter or an underscore:
  // cloud.google.com/vertex-ai/docs/reference/rest/v1/FunctionDeclaration.
  names: /^[A-Za-z_]/,
  kept: {
    key: GeminiReply.metadataKey,
    isOfServer: (own) => "continuationToken" in own
  },
  output: () => ({ native: "withoutTools", forced: true }),
  environment: { model: "GEMINI_MODEL", apiKey: ["GEMINI_API_KEY", "GOOGLE_API_KEY"], baseUrl: "GEMINI_BASE_URL" },
  path,
  headers,
  body: requestBody,
  unsupported: ({ messages, options }, { options: given }) => {
    const { generationConfig } = GeminiRequest.merged(GeminiRequest.merged({}, given), options)
    const { candidateCount } = Wire.object(generationConfig)
    return candidateCount === undefined || candidateCount === null || candidateCount === 1
      ? GeminiRequest.unsupported(messages)
      : "candidateCount must be 1: a reply is one message. Ask several times for several replies"
  },
  errors,
  reader: (origin, makeId, request) => new Reader(origin, makeId, request)
}

/**
 * Creates the adapter layer. It sends requests through the provided `HttpClient`.
 *
 * **Details**
 *
 * The adapter retries a request with growing delays if it fails before the first event visible to a user and a retry
 * may help: the server could not be reached, was busy or asked to wait. After that event it repeats nothing. A reply
 * without its end and an error inside a reply fail the stream. A whole call is complete on arrival; a call streamed in
 * pieces and never closed is lost. Provider-executed calls carry `providerExecuted` and the name of the reporting part.
 * A message keeps signatures in its reasoning and calls. It also keeps the part order of turns with more than text and
 * calls. Signatures and order go back with the message; other protocols ignore both. An invalid option throws a
 * `TypeError` naming the option.
 *
 * **Example** (A model behind an HTTP client)
 *
 * ```ts import.meta.vitest
 * import { Adapter } from "heddle"
 * import { Gemini } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 * import * as Redacted from "effect/Redacted"
 *
 * const model: Layer.Layer<Adapter.Adapter> = Gemini.layer({
 *   model: "gemini-3-flash",
 *   apiKey: Redacted.make("AIza…")
 * }).pipe(Layer.provide(FetchHttpClient.layer))
 *
 * Layer.isLayer(model) // => true
 * ```
 *
 * @category layers
 */
export const layer = (options: Options): Layer.Layer<Adapter.Adapter, never, HttpClient.HttpClient> =>
  WireProtocol.layer(protocol, options)

/**
 * Creates the adapter layer from the environment: Effect's `Config` reads `GEMINI_MODEL`, `GEMINI_API_KEY` or
 * `GOOGLE_API_KEY`, and `GEMINI_BASE_URL`. `defaults` replace missing variables. Either source must name a model; the
 * Gemini API also requires a key.
 *
 * **Example** (From the environment)
 *
 * ```ts import.meta.vitest
 * import { Gemini } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 *
 * const model = Gemini.layerConfig().pipe(Layer.provide(FetchHttpClient.layer))
 *
 * Layer.isLayer(model) // => true
 * ```
 *
 * @category layers
 */
export const layerConfig = (
  defaults: Partial<Options> = {}
): Layer.Layer<Adapter.Adapter, Config.ConfigError, HttpClient.HttpClient> =>
  WireProtocol.layerConfig(protocol, defaults)
