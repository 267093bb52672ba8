/**
 * Streams Anthropic's Messages protocol, as Anthropic, Azure, Google's Vertex AI and other servers speak it. The thread
 * keeps each turn complete: thinking with its signatures, redacted thinking, server tool blocks and their order go back
 * unchanged. Calls to provider tools are listed and never run here.
 */
import type * as Config from "effect/Config"
import type * as HttpClient from "effect/http/HttpClient"
import type * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Adapter from "../Adapter.ts"
import * as Values from "../internal/declare/values.ts"
import * as ToolCalls from "../internal/hear/toolCalls.ts"
import * as Json from "../internal/json.ts"
import * as Response from "../Response.ts"
import * as Answer from "./internal/answerBody.ts"
import * as AnthropicReply from "./internal/anthropicReply.ts"
import * as AnthropicRequest from "./internal/anthropicRequest.ts"
import * as Errors from "./internal/errors.ts"
import * as Http from "./internal/http.ts"
import * as StrictSchema from "./internal/strictSchema.ts"
import * as Wire from "./internal/wire.ts"
import * as WireProtocol from "./internal/wireProtocol.ts"

export type { Reasoning } from "./internal/wireProtocol.ts"

/**
 * Server address and settings. `baseUrl` defaults to Anthropic's own address. `apiKey` is sent as `x-api-key`, and to
 * Vertex AI as a bearer token. For another server expecting a bearer token, leave `apiKey` out and pass an
 * `authorization` header.
 *
 * @category models
 */
export interface Options extends WireProtocol.Options {
  /**
   * The header `anthropic-version`, `2023-06-01` by default. On Vertex AI the field `anthropic_version`,
   * `vertex-2023-10-16` by default.
   */
  readonly version?: string
  /** The header `anthropic-beta`. None by default. */
  readonly betas?: ReadonlyArray<string>
  /**
   * Reply limit in tokens, for requests naming no limit: the protocol requires a limit. Defaults to the largest limit
   * all models of the family support, raised above the thinking budget if necessary.
   */
  readonly maxTokens?: number
  /**
   * `true` if system messages within a thread keep their place, leaving the cache of earlier messages intact. Defaults
   * to `true` for models known to accept them; otherwise all system messages come first.
   */
  readonly inlineSystem?: boolean
  /**
   * Controls thinking. `maxTokens` is a budget, from 1024 to less than the reply limit; without a budget the model
   * decides for itself (models before Claude 4.6 cannot). `effort` sets how much work the model puts into the entire
   * reply; `"none"` turns thinking off.
   *
   * The request leaves thinking out where the protocol forbids it: when a tool is forced and, with a budget, when it
   * continues a turn begun without reasoning of this protocol. A thinking request carries no temperature. Defaults to
   * the model's own setting.
   */
  readonly reasoning?: WireProtocol.Reasoning & {
    /** `"summarized"` makes thoughts readable. Defaults to the provider's choice. */
    readonly display?: "summarized" | "omitted"
  }
  /**
   * Marks the ends of the tools, the system text and the last two user messages, so that the provider reads a growing
   * thread from its cache. Cache writes cost extra: `false` by default.
   */
  readonly cache?: boolean | {
    /** Cache lifetime: 5 minutes or an hour. */
    readonly ttl: "5m" | "1h"
  }
  /**
   * `true` to use the paths, the version and the bearer token of Vertex AI. `baseUrl` then ends in
   * `/publishers/anthropic/models`. `false` by default.
   */
  readonly vertex?: boolean
}

const defaultVersion = "2023-06-01"
const vertexVersion = "vertex-2023-10-16"

const requestBody = (options: Options, request: Adapter.Request, { server }: WireProtocol.Sending): Json.JsonObject => {
  const model = request.model ?? options.model
  const { container: wanted, output_config, tools: own, ...rest } = { ...options.options, ...request.options }
  const { container, messages, system } = AnthropicRequest.write(
    request.messages,
    options.inlineSystem ?? AnthropicRequest.takesInlineSystem(model),
    server
  )
  const hosted = Wire.list(own)
  const tools = AnthropicRequest.tools(options, request, hosted)
  const thinking = AnthropicRequest.thinking(options, request)
  const output = { ...AnthropicRequest.output(options, request), ...Wire.object(output_config) }
  const mark = cacheMark(options.cache)
  return {
    ...(options.vertex === true ? { anthropic_version: options.version ?? vertexVersion } : { model }),
    max_tokens: AnthropicRequest.maxTokens(options, request, model, thinking),
    ...(tools.length === 0 ? {} : { tools: AnthropicRequest.markedLast(tools, mark) }),
    ...(system.length === 0 ? {} : { system: AnthropicRequest.markedLast(system, mark) }),
    messages: AnthropicRequest.marked(messages, mark),
    ...AnthropicRequest.toolChoice(options, request, hosted),
    ...Wire.defined({ thinking }),
    ...Wire.filled("output_config", output),
    ...AnthropicRequest.temperature(request, thinking),
    ...Wire.defined({ container: AnthropicRequest.container(wanted, container) }),
    ...rest,
    stream: true
  }
}

const cacheMark = (cache: Options["cache"]): Json.JsonObject | undefined => {
  if (cache === undefined || cache === false) return undefined
  return { type: "ephemeral", ...(cache === true ? {} : { ttl: cache.ttl }) }
}

const unsupported = ({ messages, responseFormat }: Adapter.Request): string | undefined =>
  responseFormat?.type === "json_object"
    ? "the protocol does not support JSON without a schema: use a responseFormat of type json_schema"
    : AnthropicRequest.unsupported(messages)

class Reader extends Answer.ReplyReader {
  private readonly blocks: AnthropicReply.Blocks
  private word: string | undefined
  private stopSequence: string | undefined
  private readonly remarks: Record<string, unknown> = {}
  private hasStarted = false
  private isWhole = false
  /** `true` if the request asks only for a thread summary. The server sends nothing after the summary. */
  private readonly isSummary: boolean

  constructor(origin: Errors.Origin, makeId: () => string, isSummary: boolean) {
    super(origin)
    this.isSummary = isSummary
    this.blocks = new AnthropicReply.Blocks(makeId)
  }

  override get isComplete(): boolean {
    return this.isDone || this.isWhole || this.word !== undefined
  }

  protected override document(stray: string, out: Answer.Out): void {
    const body = Answer.documentIn(stray)
    if (body === undefined) return
    this.isWhole = !this.hasChunks && Array.isArray(body["content"])
    this.chunk(body, this.isWhole || this.hasChunks ? undefined : "error", out)
  }

  protected override chunk(object: Json.JsonObject, name: string | undefined, out: Answer.Out): void {
    const chunk: Json.JsonObject = { type: name, ...object }
    this.hasChunks = true
    const message = Wire.object(this.isWhole ? chunk : chunk["message"])
    const reported = chunk["usage"] ?? message["usage"]
    if (Json.isObject(reported)) this.usage = total(Wire.mergedUsage(this.usage, usage(reported)))
    if (this.failure !== undefined) return
    if (this.isWhole) this.message(message, out)
    else this.event(chunk, message, out)
    const isError = name === "error" || chunk["type"] === "error"
    this.failure ??= Option.getOrUndefined(Errors.fromChunk(this.origin, chunk, isError))
  }

  private event(chunk: Json.JsonObject, message: Json.JsonObject, out: Answer.Out): void {
    const { index } = chunk
    switch (chunk["type"]) {
      case "message_start":
        return this.start(message)
      case "content_block_start":
        return this.blocks.open(index, Wire.object(chunk["content_block"]), out)
      case "content_block_delta":
        if (this.blocks.add(index, Wire.object(chunk["delta"]), out)) return
        return this.fail("malformed_response", ToolCalls.contradiction)
      case "content_block_stop":
        return this.blocks.close(index, out)
      case "message_delta":
        return this.remark({ ...chunk, ...Wire.object(chunk["delta"]) })
      case "message_stop":
        this.finish(out)
        this.isDone = true
    }
  }

  /** Rejects a second reply in one stream: its blocks would reuse the same indices. */
  private start(message: Json.JsonObject): void {
    const id = Wire.string(message["id"])
    const isSame = id === undefined || this.id === undefined ? !this.blocks.hasBegun : id === this.id
    if (this.hasStarted && !isSame) return this.fail("malformed_response", "the stream starts a second reply")
    this.hasStarted = true
    this.id ??= id
    this.model ??= Wire.string(message["model"])
    this.remark(message)
  }

  private message(message: Json.JsonObject, out: Answer.Out): void {
    this.start(message)
    const isCut = finishReason(this.word, false) === "length"
    const content = Wire.list(message["content"])
    content.forEach((block, index) => this.blocks.openWhole(index, block, isCut && index === content.length - 1, out))
  }

  /** Takes the final details. A missing field does not reset an earlier value. */
  private remark(said: Json.JsonObject): void {
    this.word = Wire.string(said["stop_reason"]) ?? this.word
    this.stopSequence = Wire.string(said["stop_sequence"]) ?? this.stopSequence
    for (const name of ["stop_details", "container", "context_management"]) {
      if (said[name] !== undefined && said[name] !== null) this.remarks[name] = said[name]
    }
  }

  protected override finish(out: Answer.Out): void {
    const { blocks, remarks, stopSequence, word } = this
    Answer.endText(blocks.text, out)
    const problem = blocks.end(ToolCalls.endingOf(finishReason(word, false)), out)
    if (problem !== undefined) return this.fail("malformed_response", problem)
    const { citations, toolCalls } = blocks
    const hasCalls = toolCalls.some(Response.isActionable)
    const reason = finishReason(word, hasCalls)
    const reasoning = blocks.reasoning(Wire.string(Wire.object(remarks["container"])["id"]))
    const own = { ...remarks, ...(citations.length === 0 ? {} : { citations }) }
    const notes = {
      ...Wire.defined({ stopSequence }),
      ...Wire.filled(AnthropicReply.key, own)
    }
    const isPaused = (pauses.has(word) && !this.isSummary) || (word === "tool_use" && !hasCalls && blocks.isServing)
    this.complete({ content: blocks.text, toolCalls, reasoning, finishReason: reason, word, isPaused, notes }, out)
  }
}

const finishReasons: ReadonlyMap<string | undefined, Response.FinishReason> = new Map([
  ["end_turn", "stop"],
  ["stop", "stop"],
  ["stop_sequence", "stop"],
  ["tool_use", "tool_calls"],
  ["max_tokens", "length"],
  ["model_context_window_exceeded", "length"],
  ["refusal", "content_filter"],
  ["content_filter", "content_filter"]
])

/** Stop reasons after which the turn continues once it is sent back unchanged. */
const pauses: ReadonlySet<string | undefined> = new Set(["pause_turn", "compaction"])

/**
 * Maps the wire's stop reason. A turn with calls and no reason ends with `tool_calls`; any other turn without a known
 * reason, such as a paused turn, with `other`.
 */
const finishReason = (word: string | undefined, hasCalls: boolean): Response.FinishReason => {
  const reason = finishReasons.get(word) ?? "other"
  return hasCalls && (reason === "stop" || word === undefined) ? "tool_calls" : reason
}

/** Input excludes tokens read from the cache or written to it; output includes thoughts. */
const usage = (wire: Json.JsonObject): Response.Usage => {
  const { cache_creation_input_tokens, cache_read_input_tokens, input_tokens, output_tokens, ...others } = wire
  const { output_tokens_details, server_tool_use, ...extra } = others
  const { thinking_tokens, ...output } = Wire.object(output_tokens_details)
  return Response.usage({
    inputTokens: input_tokens,
    outputTokens: output_tokens,
    cachedInputTokens: cache_read_input_tokens,
    cacheWriteInputTokens: cache_creation_input_tokens,
    reasoningTokens: thinking_tokens,
    toolUsage: Wire.object(server_tool_use),
    extra: { ...extra, ...Wire.filled("output_tokens_details", output) }
  })
}

/** Computes the total, which the wire omits: everything read and written, cached or not. */
const total = (usage: Response.Usage): Response.Usage => {
  const { cachedInputTokens, cacheWriteInputTokens, inputTokens, outputTokens } = usage
  if (inputTokens === null || outputTokens === null) return usage
  return { ...usage, totalTokens: inputTokens + (cachedInputTokens ?? 0) + (cacheWriteInputTokens ?? 0) + outputTokens }
}

const errors: Errors.Words = [[/billing_error/, "quota_exceeded"]]

const protocol: WireProtocol.Protocol<Options> = {
  name: "Anthropic",
  knownOptions: {
    ...WireProtocol.knownOptions,
    version: Values.name,
    betas: Values.listOf(Values.name, "names of betas"),
    maxTokens: Values.count,
    inlineSystem: Values.flag,
    reasoning: Values.options({ ...WireProtocol.knownReasoning, display: Values.oneOf("summarized", "omitted") }),
    cache: Values.described(
      Values.either(Values.flag, Values.options({ ttl: Values.oneOf("5m", "1h") })),
      "true, false or { ttl }"
    ),
    vertex: Values.flag
  },
  provider: "anthropic",
  baseUrl: "https://api.anthropic.com",
  kept: { key: AnthropicReply.key, isOfServer: () => false },
  output: () => ({ native: "always", forced: true, holds: StrictSchema.holds(StrictSchema.anthropic) }),
  environment: { model: "ANTHROPIC_MODEL", apiKey: ["ANTHROPIC_API_KEY"], baseUrl: "ANTHROPIC_BASE_URL" },
  path: (options, request) => {
    if (options.vertex === true) return `/${request.model ?? options.model}:streamRawPredict`
    return /^[^?]*\/v1\/*(\?|$)/.test(options.baseUrl ?? "") ? "/messages" : "/v1/messages"
  },
  headers: ({ apiKey, betas = [], version = defaultVersion, vertex }) => ({
    ...(vertex === true ? {} : { "anthropic-version": version }),
    ...(betas.length === 0 ? {} : { "anthropic-beta": betas.join(",") }),
    ...(apiKey === undefined
      ? {}
      : vertex === true
      ? { authorization: Http.bearer(apiKey) }
      : { "x-api-key": apiKey })
  }),
  body: requestBody,
  unsupported,
  errors,
  reader: (origin, makeId, request, options) =>
    new Reader(origin, makeId, ({ ...options.options, ...request.options })["compaction"] !== undefined)
}

/**
 * Creates the adapter layer. It sends requests through the provided `HttpClient`.
 *
 * **Details**
 *
 * The adapter retries a request with growing delays if it fails before the first event visible to a user and a retry
 * may help: the server could not be reached, was busy or asked to wait. After that event it repeats nothing. A reply
 * without its end and an error inside a reply fail the stream. With finish reason `length`, a call the wire had not
 * closed is marked `truncated`. A reply paused by the provider is `paused`: a run sends it back and continues. An
 * invalid option throws a `TypeError` naming the option.
 *
 * **Example** (A model that thinks, behind an HTTP client)
 *
 * ```ts import.meta.vitest
 * import { Adapter } from "heddle"
 * import { Anthropic } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 * import * as Redacted from "effect/Redacted"
 *
 * const model: Layer.Layer<Adapter.Adapter> = Anthropic.layer({
 *   model: "claude-sonnet-4-6",
 *   apiKey: Redacted.make("sk-ant-…"),
 *   reasoning: { effort: "medium" },
 *   cache: true
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
 * Creates the adapter layer from the environment: Effect's `Config` reads `ANTHROPIC_MODEL`, `ANTHROPIC_API_KEY` and
 * `ANTHROPIC_BASE_URL`. `defaults` replace missing variables. Either source must name a model; Anthropic's own servers
 * also require a key.
 *
 * **Example** (From the environment)
 *
 * ```ts import.meta.vitest
 * import { Anthropic } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 *
 * const model = Anthropic.layerConfig().pipe(Layer.provide(FetchHttpClient.layer))
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
