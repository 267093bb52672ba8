/**
 * Streams OpenAI's Chat Completions protocol, as OpenAI and many compatible servers actually write it: Azure,
 * OpenRouter, Ollama, vLLM, llama.cpp, Mistral, DeepSeek, Groq and others. The adapter trusts a reply's content over
 * its finish reason, and marks incomplete arguments as lost.
 */
import type * as Config from "effect/Config"
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Adapter from "../Adapter.ts"
import * as Values from "../internal/declare/values.ts"
import * as ToolCalls from "../internal/hear/toolCalls.ts"
import * as Json from "../internal/json.ts"
import type * as Message from "../Message.ts"
import * as Response from "../Response.ts"
import * as Answer from "./internal/answerBody.ts"
import * as ChatReply from "./internal/chatReply.ts"
import * as ChatRequest from "./internal/chatRequest.ts"
import * as Errors from "./internal/errors.ts"
import * as Http from "./internal/http.ts"
import type * as Sse from "./internal/sse.ts"
import * as StrictSchema from "./internal/strictSchema.ts"
import * as Wire from "./internal/wire.ts"
import * as WireProtocol from "./internal/wireProtocol.ts"

export type { Reasoning, ReasoningForm } from "./internal/chatRequest.ts"

/**
 * Server address and settings. `baseUrl` defaults to OpenAI's own address.
 *
 * @category models
 */
export interface Options extends WireProtocol.Options {
  /**
   * Server name, for servers with a dialect the adapter knows. Defaults to the vendor of the address: set it for a
   * server behind a proxy. Kimi is `"moonshot"`. Errors name the vendor as their provider.
   */
  readonly vendor?: ChatRequest.Name
  /** Thinking settings, sent in the vendor's own form. Defaults to the vendor's setting. */
  readonly reasoning?: ChatRequest.Reasoning
  /** Lets prompts with a common beginning share the provider's cache. Not sent by default. */
  readonly cache?: {
    /** Cache key. Defaults to the request's `cacheKey`, in a session the session id. */
    readonly key?: string
    /** Cache lifetime, such as `"24h"`. Defaults to the provider's choice. */
    readonly retention?: string
  }
  /**
   * Field name for `maxTokens`. Defaults to `max_completion_tokens` for OpenAI's own servers and, anywhere, for its
   * reasoning models (`o1`, `gpt-5`, …), since those refuse the other name. Every other server gets `max_tokens`.
   */
  readonly maxTokensField?: "max_tokens" | "max_completion_tokens"
  /** `true` to request usage with `stream_options`. `true` by default, except for vendors refusing the field. */
  readonly includeUsage?: boolean
  /**
   * Form in which reasoning text goes back with every assistant message. Defaults to the vendor's own form; DeepSeek
   * gets the text of turns with calls, an unknown server gets no text. Signed or encrypted reasoning always goes back
   * to its server, except reasoning under `"none"`.
   */
  readonly sendReasoningAs?: ChatRequest.ReasoningForm
  /**
   * Content of an assistant message with calls and no text. Defaults to `""`, accepted even by servers requiring a text
   * (Workers AI, Ollama's cloud), and to `null` for Snowflake. Set `null` for a server refusing empty text, as some in
   * front of Bedrock do.
   */
  readonly emptyContent?: "" | null
  /** Role for instructions. Defaults to `"system"`. */
  readonly systemRole?: "system" | "developer"
}

/** Returns the server's dialect, with the options applied. */
const vendorOf = (options: Options): ChatRequest.Vendor => {
  const { baseUrl = protocol.baseUrl, emptyContent, includeUsage, sendReasoningAs, vendor } = options
  return {
    ...ChatRequest.find(vendor, baseUrl),
    ...Wire.defined({ emptyContent, includeUsage, sendReasoningAs }),
    ...(sendReasoningAs === undefined ? {} : { reasoningOf: "everyMessage" as const })
  }
}

const requestBody = (options: Options, request: Adapter.Request, to: WireProtocol.Sending): Json.JsonObject => {
  const vendor = vendorOf(options)
  const model = request.model ?? options.model
  const { cache, reasoning, systemRole = "system" } = options
  const thinking = reasoning === undefined ? {} : vendor.reasoning(reasoning)
  const isThinking = vendor.isThinking({ ...thinking, ...options.options, ...request.options }, model)
  return {
    model,
    messages: ChatRequest.write(request.messages, { ...vendor, ...to, systemRole, isThinking }),
    ...ChatRequest.tools(request, vendor, options, isThinking),
    ...ChatRequest.responseFormat(request.responseFormat),
    ...thinking,
    ...Wire.defined({ temperature: request.temperature }),
    ...Wire.defined({ [maxTokensField(options, vendor, model)]: request.maxTokens }),
    ...Wire.defined({ prompt_cache_key: cache && (cache.key ?? request.cacheKey) }),
    ...Wire.defined({ prompt_cache_retention: cache?.retention }),
    ...(vendor.includeUsage ? { stream_options: { include_usage: true } } : {}),
    ...options.options,
    ...request.options,
    stream: true
  }
}

/** Advises on a server requiring its reasoning back, if the adapter does not know this server. */
const advice = (options: Options, { detail = "", reason }: Adapter.AdapterError): string | undefined =>
  reason === "invalid_request" && /reasoning_content/.test(detail) &&
    vendorOf(options).sendReasoningAs !== "reasoning_content"
    ? "give OpenAiChat.layer the vendor of the server, such as vendor: \"deepseek\" or \"moonshot\", " +
      "or sendReasoningAs: \"reasoning_content\""
    : undefined

const maxTokensField = (options: Options, vendor: ChatRequest.Vendor, model: string): string =>
  options.maxTokensField ?? (/(^|\/)(o\d|gpt-5)/.test(model) ? "max_completion_tokens" : vendor.maxTokensField)

/** Returns the choice number, or its position within the chunk. */
const numberOf = ({ index }: Json.JsonObject, position: number): number => typeof index === "number" ? index : position

class Reader extends Answer.ReplyReader {
  private readonly calls: ChatReply.Calls
  private readonly soundFormat: unknown
  private text = ""
  private reasoning = ""
  private readonly opaque = new ChatReply.Opaque()
  private readonly notes = new ChatReply.Notes()
  private readonly sound = new ChatReply.Sound()
  private readonly images: Array<Message.Part> = []
  private refusal = ""
  /** Finish reasons by choice. The request asks for one choice, but some proxies split a reply into several. */
  private readonly words = new Map<number, string>()
  /** Choices with deltas. */
  private readonly withDeltas = new Set<number>()
  /** Choices that have grown since the last finish reason and lack their own. */
  private readonly growing = new Set<number>()
  private readonly speech = new ChatReply.Speech()
  /** `true` if the body is a whole reply instead of a stream. */
  private isDocument = false
  /** `true` if usage without choices came last, behind a part of the reply: an end without a finish reason. */
  private isCounted = false

  constructor(origin: Errors.Origin, calls: ChatReply.Calls, soundFormat: unknown) {
    super(origin)
    this.calls = calls
    this.soundFormat = soundFormat
  }

  override get isComplete(): boolean {
    return this.isDone || this.isDocument || this.isCounted || (this.words.size > 0 && this.growing.size === 0)
  }

  /** The gravest finish reason among all choices. */
  private get finishWord(): string | undefined {
    return gravest(this.words.values())
  }

  override read(event: Sse.SseEvent, out: Answer.Out): void {
    if (this.isDone || event.data.trim() !== "[DONE]") return super.read(event, out)
    if (this.failure === undefined) this.finish(out)
    this.isDone = true
  }

  override end(stray: string, out: Answer.Out): void {
    super.end(stray, out)
    if (this.failure !== undefined) this.failure = Errors.ended(this.failure, this.finishWord)
  }

  protected override document(stray: string, out: Answer.Out): void {
    const body = Answer.documentIn(stray)
    if (body === undefined) return
    const choices = Wire.list(body["choices"])
    this.isDocument = choices.some((choice) => Json.isObject(choice["message"]))
    this.chunk(body, choices.length === 0 && !this.hasChunks ? "error" : undefined, out)
  }

  protected override chunk(chunk: Json.JsonObject, name: string | undefined, out: Answer.Out): void {
    this.hasChunks = true
    const reported = chunk["usage"] ?? Wire.object(chunk["x_groq"])["usage"]
    if (Json.isObject(reported)) this.usage = Wire.mergedUsage(this.usage, usage(reported))
    const choices = Wire.list(chunk["choices"])
    const words = choices.map((choice, position) => this.takeWord(choice, position))
    if (this.failure !== undefined) return
    this.id ??= Wire.string(chunk["id"])
    this.model ??= Wire.string(chunk["model"])
    for (const [position, choice] of choices.entries()) this.choice(choice, position, out)
    for (const word of words) this.settle(word, out)
    // Some servers also send usage before the reply, or between its pieces.
    const isUsage = Json.isObject(chunk["usage"]) && Array.isArray(chunk["choices"]) && choices.length === 0
    this.isCounted ||= isUsage && this.growing.size > 0
    const failed = choices.find((choice) => Json.isObject(choice["error"])) ?? chunk
    this.failure ??= Option.getOrUndefined(Errors.fromChunk(this.origin, failed, name === "error"))
  }

  /** Keeps a finish reason. Between the chunks of a stream, an empty reason means the reply continues. */
  private takeWord(choice: Json.JsonObject, position: number): string | undefined {
    const word = choice["finish_reason"]
    if (typeof word !== "string") return undefined
    if (word !== "" || this.isDocument) this.words.set(numberOf(choice, position), word)
    return word
  }

  /**
   * Picks the delta, or the whole message where no deltas came: beside deltas, a whole message only repeats their text.
   */
  private messageOf({ delta, message }: Json.JsonObject, number: number): Json.JsonObject {
    const isWhole = this.isDocument || (!this.withDeltas.has(number) && !Json.isObject(delta))
    if (!isWhole) this.withDeltas.add(number)
    return Wire.object(isWhole ? message : delta)
  }

  private choice(choice: Json.JsonObject, position: number, out: Answer.Out): void {
    const number = numberOf(choice, position)
    const message = this.messageOf(choice, number)
    const { content } = message
    const parts = ChatReply.partsIn(content)
    // Audio piece; its transcript may repeat the content.
    const sound = Wire.object(message["audio"])
    this.sound.add(sound)
    const images = Wire.list(message["images"]).flatMap(ChatReply.image)
    this.images.push(...images)
    this.opaque.add(ChatReply.opaqueOf(message))
    this.notes.add(Wire.list(message["annotations"]), choice["logprobs"])
    const thought = ChatReply.thought(message, parts)
    this.reasoning += thought
    Answer.think(thought, out)
    const text = this.speech.add("content", ChatReply.textOf(content, parts)) +
      this.speech.add("transcript", Wire.string(sound["transcript"]) ?? "")
    this.text += text
    Answer.say(text, out)
    const refusal = Wire.string(message["refusal"]) ?? ""
    this.refusal += refusal
    const fragments = ChatReply.fragments(message)
    for (const fragment of fragments) {
      if (!this.calls.add(ChatReply.ofChoice(fragment, number), out)) {
        this.fail("malformed_response", ToolCalls.contradiction)
      }
    }
    const hasGrown = [text, thought, refusal, fragments, images, Object.keys(sound)].some(({ length }) => length > 0)
    if (hasGrown) this.isCounted = false
    if (hasGrown && !this.words.has(number)) this.growing.add(number)
  }

  private settle(word: string | undefined, out: Answer.Out): void {
    const reason = finishReason(word, false)
    if (reason === "stop" || reason === "tool_calls") this.calls.settleAll(out)
    if (reason !== null) this.growing.clear()
  }

  private get thoughts(): ReadonlyArray<Message.Part> {
    const { fields } = this.opaque
    const metadata = Wire.filled("metadata", Wire.filled(ChatRequest.metadataKey, fields))
    if (this.reasoning === "" && Object.keys(fields).length === 0) return []
    return [{ type: "reasoning", text: this.reasoning, ...metadata }]
  }

  protected override finish(out: Answer.Out): void {
    Answer.endText(this.text, out)
    const problem = this.calls.endAll(ToolCalls.endingOf(finishReason(this.finishWord, false)), out)
    if (problem !== undefined) return this.fail("malformed_response", problem)
    const toolCalls = this.calls.completed
    this.complete({
      content: Answer.contentOf(this.text, [...this.images, ...this.sound.file(this.soundFormat)]),
      toolCalls,
      reasoning: [...this.thoughts, ...this.sound.kept],
      finishReason: finishReason(this.finishWord, toolCalls.length > 0),
      word: this.finishWord,
      notes: { ...(this.refusal === "" ? {} : { refusal: this.refusal }), ...this.notes.metadata }
    }, out)
  }
}

const finishReasons: { readonly [word: string]: Response.FinishReason } = {
  stop: "stop",
  completed: "stop",
  end_turn: "stop",
  eos: "stop",
  tool_calls: "tool_calls",
  tool_use: "tool_calls",
  function_call: "tool_calls",
  length: "length",
  max_tokens: "length",
  max_output_tokens: "length",
  model_length: "length",
  content_filter: "content_filter",
  error: "error",
  cancelled: "error"
}

/** Maps the wire's finish reason. Some servers send `stop` for replies with tool calls. */
const finishReason = (word: string | undefined, hasCalls: boolean): Response.FinishReason | null => {
  if (word === undefined || word === "") return null
  const reason = Object.hasOwn(finishReasons, word) ? finishReasons[word] ?? "other" : "other"
  return reason === "stop" && hasCalls ? "tool_calls" : reason
}

const gravities: ReadonlyArray<Response.FinishReason | null> = [
  "stop",
  "tool_calls",
  "length",
  "content_filter",
  "error"
]

/** Returns the gravest of the server's finish reasons, for choices forming one message. */
const gravest = (words: Iterable<string>): string | undefined =>
  [...words].toSorted((left, right) => gravityOf(right) - gravityOf(left))[0]

const gravityOf = (word: string): number => gravities.indexOf(finishReason(word, false))

/**
 * Input includes cached tokens; output includes reasoning (not at xAI). These are the wire's own numbers, without sums.
 */
const usage = (wire: Json.JsonObject): Response.Usage => {
  const { completion_tokens, cost, prompt_tokens, total_tokens, ...others } = wire
  const { cached_tokens, prompt_cache_hit_tokens, reasoning_tokens, ...rest } = others
  const { completion_tokens_details, prompt_tokens_details, ...extra } = rest
  const { cache_write_tokens, cached_tokens: cached, ...input } = Wire.object(prompt_tokens_details)
  const { reasoning_tokens: reasoning, ...output } = Wire.object(completion_tokens_details)
  return Response.usage({
    inputTokens: prompt_tokens,
    outputTokens: completion_tokens,
    totalTokens: total_tokens,
    cachedInputTokens: cached ?? cached_tokens ?? prompt_cache_hit_tokens,
    cacheWriteInputTokens: cache_write_tokens,
    reasoningTokens: reasoning ?? reasoning_tokens,
    totalCost: Json.isObject(cost) ? cost["total_cost"] : cost,
    extra: {
      ...extra,
      ...(Json.isObject(cost) ? { cost } : {}),
      ...Wire.filled("prompt_tokens_details", input),
      ...Wire.filled("completion_tokens_details", output)
    }
  })
}

const errors: Errors.Words = [
  [/insufficient_(user_)?quota|billing/, "quota_exceeded"],
  [/context_length|context_size|context_window|too_many_prompt_tokens/i, "context_length_exceeded"],
  [/content_filter|content_policy|ResponsibleAIPolicy/i, "content_filter"],
  [/tool_use_failed/, "invalid_request"],
  [/RateLimitReached|rate_limit_exceeded/, "rate_limited"]
]

const headers = (options: Options): Http.HeaderValues => {
  const { keyHeader } = vendorOf(options)
  if (options.apiKey === undefined) return {}
  return keyHeader === undefined
    ? { authorization: Http.bearer(options.apiKey) }
    : { [keyHeader]: options.apiKey }
}

const protocol: WireProtocol.Protocol<Options> = {
  name: "OpenAiChat",
  knownOptions: {
    ...WireProtocol.knownOptions,
    vendor: Values.oneOf(...ChatRequest.names),
    emptyContent: Values.oneOf("", null),
    reasoning: Values.options({ ...WireProtocol.knownReasoning, enabled: Values.flag }),
    cache: WireProtocol.cache,
    maxTokensField: Values.oneOf("max_tokens", "max_completion_tokens"),
    includeUsage: Values.flag,
    sendReasoningAs: Values.oneOf("none", "reasoning_content", "reasoning", "reasoning_details", "thinking"),
    systemRole: Values.oneOf("system", "developer")
  },
  provider: "openai",
  baseUrl: "https://api.openai.com/v1",
  // Other servers may ignore a schema, or refuse a schema beside tools.
  output: ({ baseUrl = protocol.baseUrl, vendor }) =>
    ["openai", "azure"].includes(ChatRequest.nameOf(vendor, baseUrl))
      ? { native: "always", forced: true, holds: StrictSchema.holds(StrictSchema.openAi) }
      : { native: "never", forced: true },
  environment: { model: "OPENAI_MODEL", apiKey: ["OPENAI_API_KEY"], baseUrl: "OPENAI_BASE_URL" },
  vendorOf: ({ baseUrl = protocol.baseUrl, vendor }) => ChatRequest.vendorOf(vendor, baseUrl),
  kept: { key: ChatRequest.metadataKey, isOfServer: ChatReply.isOpaque },
  advice,
  spans: ({ baseUrl = protocol.baseUrl, vendor }) => ({ provider: ChatRequest.providerOf(vendor, baseUrl) }),
  path: () => "/chat/completions",
  headers,
  body: requestBody,
  unsupported: ({ messages, options }, { options: given }) => {
    const { n } = { ...given, ...options }
    return n === undefined || n === null || n === 1
      ? ChatRequest.unsupported(messages)
      : "n must be 1: a reply is one message. Ask several times for several replies"
  },
  errors,
  reader: (origin, makeId, request, { options, strict }) => {
    const { tools } = request
    const restore = strict === true ? StrictSchema.restore(tools, StrictSchema.openAi) : undefined
    const { audio } = { ...options, ...request.options }
    const calls = new ChatReply.Calls(makeId, ChatRequest.metadataKey, tools, restore)
    return new Reader(origin, calls, Wire.object(audio)["format"])
  }
}

/**
 * Creates the adapter layer. It sends requests through the provided `HttpClient`.
 *
 * **Details**
 *
 * The adapter retries a request with growing delays if it fails before the first event visible to a user and a retry
 * may help: the server could not be reached, was busy or asked to wait. After that event it repeats nothing. A reply
 * without its end and an error inside a reply fail the stream. With finish reason `length`, the last call is marked
 * `truncated` even if its arguments parse, because the wire never closed it; earlier calls count. An invalid option
 * throws a `TypeError` naming the option.
 *
 * Generated images become content parts. Generated audio becomes a file part beside its transcript, and goes back by
 * its id. `MessageCompleted.metadata` may contain a `refusal`, text `annotations` and `logprobs`.
 *
 * **Example** (A model behind an HTTP client)
 *
 * ```ts import.meta.vitest
 * import { Adapter } from "heddle"
 * import { OpenAiChat } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 * import * as Redacted from "effect/Redacted"
 *
 * const model: Layer.Layer<Adapter.Adapter> = OpenAiChat.layer({
 *   model: "gpt-5-mini",
 *   apiKey: Redacted.make("sk-…")
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
 * Creates the adapter layer from the environment: Effect's `Config` reads `OPENAI_MODEL`, `OPENAI_API_KEY` and
 * `OPENAI_BASE_URL`. `defaults` replace missing variables. Either source must name a model; OpenAI's own servers also
 * require a key.
 *
 * **Example** (From the environment)
 *
 * ```ts import.meta.vitest
 * import { OpenAiChat } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 *
 * const model = OpenAiChat.layerConfig().pipe(Layer.provide(FetchHttpClient.layer))
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
