/**
 * Streams OpenAI's Responses protocol, as OpenAI and compatible servers actually write it: Azure, OpenRouter, xAI,
 * DeepSeek, GitHub Copilot, ChatGPT, LM Studio, vLLM and others. History goes back as items, so the provider has to
 * store nothing. Reasoning goes back unchanged, in front of the calls it led to. Provider-executed calls are listed and
 * never run here.
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
import * as Errors from "./internal/errors.ts"
import * as Http from "./internal/http.ts"
import * as ResponsesReply from "./internal/responsesReply.ts"
import * as ResponsesRequest from "./internal/responsesRequest.ts"
import * as StrictSchema from "./internal/strictSchema.ts"
import * as Wire from "./internal/wire.ts"
import * as WireProtocol from "./internal/wireProtocol.ts"

export type { Reasoning } from "./internal/wireProtocol.ts"

/**
 * Server address and settings. `baseUrl` defaults to OpenAI's own address. From `options`, the adapter adds `tools`
 * (provider tools, such as `{ type: "web_search" }`) and `include` to its own, and merges `text` and `reasoning`. A
 * tool with type `custom` replaces the declared tool with the same name, which receives the model's text as `input`.
 *
 * @category models
 */
export interface Options extends WireProtocol.Options {
  /** Thinking settings and the summary in the reply. Defaults to the model's own setting. */
  readonly reasoning?: WireProtocol.Reasoning & {
    /** Summary detail. None by default. */
    readonly summary?: "auto" | "concise" | "detailed"
  }
  /**
   * `true` if the provider stores replies. `false` by default: reasoning then comes encrypted and goes back encrypted.
   */
  readonly store?: boolean
  /** Lets prompts with a common beginning share the provider's cache. Not sent by default. */
  readonly cache?: {
    /** Cache key. Defaults to the request's `cacheKey`, in a session the session id. */
    readonly key?: string
    /** Cache lifetime, such as `"24h"`. Defaults to the provider's choice. */
    readonly retention?: string
  }
}

const requestBody = (
  options: Options,
  request: Adapter.Request,
  { server }: WireProtocol.Sending
): Json.JsonObject => {
  const model = request.model ?? options.model
  const given = givenOptions(options, request)
  const store = given["store"] ?? options.store ?? false
  const { instructions, items } = ResponsesRequest.write(request.messages, store === true, server)
  const tools = ResponsesRequest.tools(request, Wire.list(given["tools"]), options)
  const isEncrypted = store !== true && mayReason.test(model)
  const include = [...(isEncrypted ? ["reasoning.encrypted_content"] : []), ...names(given["include"])]
  return {
    model,
    ...Wire.defined({ instructions }),
    input: items,
    ...Wire.defined({ temperature: request.temperature, max_output_tokens: request.maxTokens }),
    ...Wire.defined({ prompt_cache_key: options.cache && (options.cache.key ?? request.cacheKey) }),
    ...Wire.defined({ prompt_cache_retention: options.cache?.retention }),
    ...tools,
    ...given,
    ...Wire.filled("tools", names(tools["tools"])),
    ...Wire.filled("include", [...new Set(include)]),
    ...Wire.filled("text", { ...ResponsesRequest.format(request.responseFormat), ...Wire.object(given["text"]) }),
    ...Wire.filled("reasoning", { ...reasoning(options), ...Wire.object(given["reasoning"]) }),
    store,
    stream: true
  }
}

const givenOptions = (options: Options, request: Adapter.Request): Json.JsonObject => ({
  ...options.options,
  ...request.options
})

/** Models without reasoning refuse a request for encrypted reasoning. */
const mayReason = /^(?!(.*\/)?(chatgpt-|gpt-3|gpt-4|gpt-5[^/]*-chat))/

const names = (value: unknown): ReadonlyArray<unknown> => Array.isArray(value) ? value : []

const reasoning = ({ reasoning: wanted }: Options): Json.JsonObject =>
  Wire.defined({ effort: wanted?.effort, max_tokens: wanted?.maxTokens, summary: wanted?.summary })

/** Events ending a reply, each with its status. */
const endings: ReadonlyMap<string, string> = new Map([
  ["response.completed", "completed"],
  ["response.incomplete", "incomplete"],
  ["response.cancelled", "cancelled"],
  ["response.failed", "failed"]
])

class Reader extends Answer.ReplyReader {
  private readonly calls: ToolCalls.WireCalls
  private readonly output: ResponsesReply.Output
  private status = "completed"
  private reason: string | undefined

  constructor(
    origin: Errors.Origin,
    calls: ToolCalls.WireCalls,
    custom: ReadonlySet<string> | undefined
  ) {
    super(origin)
    this.calls = calls
    this.output = new ResponsesReply.Output(calls, custom)
  }

  override get isComplete(): boolean {
    return this.isDone
  }

  protected override document(stray: string, out: Answer.Out): void {
    const body = Answer.documentIn(stray)
    if (body === undefined) return
    if (!Array.isArray(body["output"])) return this.error(body, !this.hasChunks)
    this.hasChunks = true
    this.last(body, undefined, out)
  }

  protected override chunk(event: Json.JsonObject, name: string | undefined, out: Answer.Out): void {
    this.hasChunks = true
    const type = Wire.string(event["type"]) ?? name ?? ""
    const read = ResponsesReply.readers.get(type)
    if (endings.has(type)) this.last(Wire.object(event["response"]), endings.get(type), out)
    else if (type === "error" || name === "error" || Json.isObject(event["error"])) this.error(event)
    else if (type === "response.created") this.head(Wire.object(event["response"]))
    else if (this.failure === undefined && read !== undefined) read(this.output, event, out)
    if (this.output.problem !== undefined) this.fail("malformed_response", this.output.problem)
  }

  /** Reads an error from the field `error`, or takes the event itself if marked as an error. The first error counts. */
  private error(event: Json.JsonObject, isMarked = true): void {
    const { sequence_number: _, type, ...rest } = event
    const error = event["error"] ?? (type === "error" ? rest : isMarked ? event : undefined)
    this.failure ??= Option.getOrUndefined(Errors.fromChunk(this.origin, { error }, false))
  }

  protected override behind(event: Json.JsonObject = {}, name?: string): void {
    if (event["type"] !== "response.failed") return super.behind(event, name)
    this.error({ error: failureOf(Wire.object(event["response"])) })
  }

  private head(response: Json.JsonObject): void {
    this.id ??= Wire.string(response["id"])
    this.model ??= Wire.string(response["model"])
    if (Json.isObject(response["usage"])) this.usage = Wire.mergedUsage(this.usage, usage(response["usage"]))
  }

  /** Reads the reply's final status. After an error it may still report the cost. */
  private last(response: Json.JsonObject, word: string | undefined, out: Answer.Out): void {
    this.head(response)
    const said = Wire.string(response["status"])
    const isOpen = said === "queued" || said === "in_progress"
    const status = said === undefined || (isOpen && word !== undefined) ? word ?? "completed" : said
    if (status === "failed" || word === "failed" || Json.isObject(response["error"])) {
      this.error({ error: failureOf(response) })
    }
    if (this.failure !== undefined) {
      this.failure = Errors.ended(this.failure, status)
      return
    }
    if (isOpen && word === undefined) {
      const named = this.id === undefined ? "" : ` (${this.id})`
      return this.fail(
        "unsupported_feature",
        `the provider replies in the background, and the adapter does not wait: the reply is ${status}${named}. Leave out the option background`
      )
    }
    this.status = status
    const { reason } = Wire.object(response["incomplete_details"])
    this.reason = status === "incomplete" ? Wire.string(reason) : undefined
    this.output.whole(Wire.list(response["output"]), this.ending, out)
    this.finish(out)
  }

  private get ending(): ToolCalls.Ending {
    return ToolCalls.endingOf(finishReason(this.status, this.reason, false))
  }

  protected override finish(out: Answer.Out): void {
    const { reason, status } = this
    const { annotations, asked, reasoning, refusal, text } = this.output.end(this.ending, out)
    if (asked.length > 0) return this.fail("unsupported_feature", refusalOf(asked))
    if (this.output.problem !== undefined) return this.fail("malformed_response", this.output.problem)
    this.isDone = true
    const toolCalls = this.calls.completed
    Answer.endText(text, out)
    this.complete({
      content: text,
      toolCalls,
      reasoning,
      finishReason: finishReason(status, reason, toolCalls.some(Response.isActionable)),
      word: reason === undefined ? status : `${status}:${reason}`,
      notes: { ...(refusal === "" ? {} : { refusal }), ...(annotations.length === 0 ? {} : { annotations }) }
    }, out)
  }
}

const failureOf = ({ error }: Json.JsonObject): unknown =>
  error ?? { message: "the provider says that the reply failed" }

/** Describes the error for items no tool can answer: each would need an answer item with its own type. */
const refusalOf = (asked: ReadonlyArray<string>): string => {
  const approval = asked.includes("mcp_approval_request") ? ", or set require_approval to \"never\"" : ""
  return `the reply asks this side for ${asked.join(" and ")}, which no tool of a run can answer: ` +
    `offer a tool of your own instead of the provider's${approval}`
}

const incompleteReasons: { readonly [reason: string]: Response.FinishReason } = {
  max_output_tokens: "length",
  max_tokens: "length",
  length: "length",
  content_filter: "content_filter"
}

/**
 * Maps the reply's status and, if incomplete, its reason: the wire has no other finish reason. A completed reply with
 * calls ends with `tool_calls`.
 */
const finishReason = (status: string, reason: string | undefined, hasCalls: boolean): Response.FinishReason => {
  if (status === "completed") return hasCalls ? "tool_calls" : "stop"
  if (status === "cancelled") return "error"
  if (status !== "incomplete") return "other"
  if (reason === undefined) return "length"
  return Object.hasOwn(incompleteReasons, reason) ? incompleteReasons[reason] ?? "error" : "error"
}

/** Input includes cached tokens, output includes reasoning: the wire's own numbers, without sums. */
const usage = (wire: Json.JsonObject): Response.Usage => {
  const { cost, input_tokens, output_tokens, total_tokens, ...others } = wire
  const { input_tokens_details, output_tokens_details, ...extra } = others
  const { cache_write_tokens, cached_tokens, ...input } = Wire.object(input_tokens_details)
  const { reasoning_tokens, ...output } = Wire.object(output_tokens_details)
  return Response.usage({
    inputTokens: input_tokens,
    outputTokens: output_tokens,
    totalTokens: total_tokens,
    cachedInputTokens: cached_tokens,
    cacheWriteInputTokens: cache_write_tokens,
    reasoningTokens: reasoning_tokens,
    totalCost: cost,
    extra: { ...extra, ...Wire.filled("input_tokens_details", input), ...Wire.filled("output_tokens_details", output) }
  })
}

const errors: Errors.Words = [
  [/insufficient_(user_)?quota|billing/, "quota_exceeded"],
  [/context_length|context_size|context_window|too_many_prompt_tokens/i, "context_length_exceeded"],
  [/content_filter|content_policy|ResponsibleAIPolicy|invalid_prompt/i, "content_filter"],
  [/RateLimitReached|rate_limit_exceeded/, "rate_limited"]
]

const protocol: WireProtocol.Protocol<Options> = {
  name: "OpenAiResponses",
  knownOptions: {
    ...WireProtocol.knownOptions,
    reasoning: Values.options({
      ...WireProtocol.knownReasoning,
      summary: Values.oneOf("auto", "concise", "detailed")
    }),
    store: Values.flag,
    cache: WireProtocol.cache
  },
  provider: "openai",
  baseUrl: "https://api.openai.com/v1",
  kept: { key: ResponsesReply.metadataKey, isOfServer: () => false },
  output: () => ({ native: "always", forced: true, holds: StrictSchema.holds(StrictSchema.openAi) }),
  environment: { model: "OPENAI_MODEL", apiKey: ["OPENAI_API_KEY"], baseUrl: "OPENAI_BASE_URL" },
  path: () => "/responses",
  headers: ({ apiKey }) => apiKey === undefined ? {} : { authorization: Http.bearer(apiKey) },
  body: requestBody,
  unsupported: ({ messages }) => ResponsesRequest.unsupported(messages),
  errors,
  reader: (origin, makeId, request, options) => {
    const restore = options.strict === true ? StrictSchema.restore(request.tools, StrictSchema.openAi) : undefined
    const calls = new ToolCalls.WireCalls(makeId, ResponsesReply.metadataKey, restore)
    return new Reader(origin, calls, ResponsesRequest.custom(Wire.list(givenOptions(options, request)["tools"])))
  }
}

/**
 * Creates the adapter layer. It sends requests through the provided `HttpClient`.
 *
 * **Details**
 *
 * The adapter retries a request with growing delays if it fails before the first event visible to a user and a retry
 * may help: the server could not be reached, was busy or asked to wait. After that event it repeats nothing. A reply
 * without its end and an error inside a reply fail the stream. A call the provider reports as incomplete is marked
 * `truncated` even if its arguments parse.
 *
 * Provider-executed work (searches, interpreters, remote tools) is listed as calls with `providerExecuted`, named after
 * the item type, with the item in the call's metadata. The message's `reasoning` keeps such items, reasoning and text
 * boundaries, and the next request sends them back. Items Heddle would have to run in their own form
 * (`local_shell_call`, `shell_call`, `apply_patch_call`, `computer_call`) or approve (`mcp_approval_request`) fail the
 * reply as `unsupported_feature`, naming the item.
 *
 * An invalid option throws a `TypeError` naming the option.
 *
 * **Example** (A model behind an HTTP client)
 *
 * ```ts import.meta.vitest
 * import { Adapter } from "heddle"
 * import { OpenAiResponses } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 * import * as Redacted from "effect/Redacted"
 *
 * const model: Layer.Layer<Adapter.Adapter> = OpenAiResponses.layer({
 *   model: "gpt-5-mini",
 *   apiKey: Redacted.make("sk-…"),
 *   reasoning: { effort: "low", summary: "auto" },
 *   options: { tools: [{ type: "web_search" }] }
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
 * import { OpenAiResponses } from "heddle/adapters"
 * import * as FetchHttpClient from "effect/http/FetchHttpClient"
 * import * as Layer from "effect/Layer"
 *
 * const model = OpenAiResponses.layerConfig().pipe(Layer.provide(FetchHttpClient.layer))
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
