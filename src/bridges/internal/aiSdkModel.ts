/**
 * Calls an AI SDK model: its promise and stream as effects, its parts, and its errors. A pull takes all parts already
 * present; the model is asked for at most one part ahead.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import type * as Adapter from "../../Adapter.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import type * as Http from "../../adapters/internal/http.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import * as Response from "../../Response.ts"
import * as Layout from "./layout.ts"
import type * as Part from "./part.ts"
import * as Reply from "./reply.ts"

/**
 * The required subset of a model. `LanguageModelV4`, `LanguageModelV3` and `LanguageModelV2` from any
 * `@ai-sdk/provider` version satisfy it, so that package is not needed.
 *
 * @category models
 */
export interface LanguageModel {
  /** Interface version in the SDK. */
  readonly specificationVersion: "v2" | "v3" | "v4"
  /** Provider name. */
  readonly provider: string
  /** Model name. */
  readonly modelId: string
  /** File addresses the model reads itself, by media type. */
  readonly supportedUrls?:
    | Readonly<Record<string, ReadonlyArray<RegExp>>>
    | PromiseLike<Readonly<Record<string, ReadonlyArray<RegExp>>>>
  /** Begins a reply. */
  doStream(options: never): PromiseLike<Started>
}

/**
 * A model's answer.
 *
 * @category models
 */
export interface Started {
  /** Parts of the reply. */
  readonly stream: ReadableStream<unknown>
  /** Known parts of the provider's answer. */
  readonly response?: {
    /** Answer headers. */
    readonly headers?: Readonly<Record<string, string>>
  }
}

/** Holds a running model call: its signal from the start, and its stream once the model has answered. */
class Held {
  readonly controller = new AbortController()
  private stream: ReadableStreamDefaultReader<unknown> | undefined
  private isLeft = false

  /** Takes the stream. A stream arriving after the request was abandoned is cancelled at once. */
  take(stream: ReadableStream<unknown>): Ahead | undefined {
    const reader = stream.getReader()
    this.stream = reader
    if (this.isLeft) this.letGo()
    return this.isLeft ? undefined : new Ahead(reader)
  }

  private letGo(): Promise<void> {
    return this.stream?.cancel().then(ignore, ignore) ?? Promise.resolve()
  }

  /** Cancels the stream, and waits at most a second for it to release its resources. */
  readonly leave: Effect.Effect<unknown> = Effect.suspend(() => {
    this.isLeft = true
    this.controller.abort()
    return Effect.timeoutOption(Effect.promise(() => this.letGo()), "1 second")
  })
}

const ignore = (): void => {}

/** Calls the model. Closing the scope aborts the request and cancels the stream. */
export const open = (
  model: LanguageModel,
  options: Json.JsonObject,
  origin: Errors.Origin
): Effect.Effect<Reply.PartPull, Http.Failure, Scope.Scope> =>
  Effect.gen(function*() {
    const held = new Held()
    yield* Effect.addFinalizer(() => held.leave)
    const call = { ...options, abortSignal: held.controller.signal }
    return yield* Effect.callback<Reply.PartPull, Http.Failure>((resume) => {
      new Promise<Started>((resolve) => resolve(model.doStream(call as never))).then(({ response, stream }) => {
        const taken = held.take(stream)
        const from = { ...origin, requestId: Errors.requestIdOf(Reply.headersOf(response?.headers)) }
        if (taken !== undefined) resume(Effect.succeed(pull(taken, from)))
      }).then(ignore, (rejection: unknown) => resume(rejected(origin, rejection)))
    })
  })

const rejected = (origin: Errors.Origin, rejection: unknown): Effect.Effect<never, Http.Failure> =>
  Effect.flatMap(Clock.currentTimeMillis, (now) => Effect.fail(fromRejection(origin, rejection, now)))

/** A reader with at most one read ahead. */
class Ahead {
  private readonly reader: ReadableStreamDefaultReader<unknown>
  private begun: Promise<ReadableStreamReadResult<unknown>> | undefined

  constructor(reader: ReadableStreamDefaultReader<unknown>) {
    this.reader = reader
  }

  read(): Promise<ReadableStreamReadResult<unknown>> {
    const read = this.begun ?? this.reader.read()
    this.begun = undefined
    return read
  }

  /** Adds the parts already present, up to a limit. A read still waiting is kept for the next pull. */
  rest(parts: Array<unknown>, done: () => void): void {
    if (parts.length >= mostAtOnce) return done()
    const read = this.reader.read()
    let result: ReadableStreamReadResult<unknown> | undefined
    read.then((arrived) => {
      result = arrived
    }, ignore)
    Promise.resolve().then(() => {
      if (result !== undefined && !result.done) {
        parts.push(result.value)
        return this.rest(parts, done)
      }
      this.begun = read
      done()
    })
  }
}

const mostAtOnce = 64

/** Returns the parts already present, at least one. Errors among them are read with their arrival time. */
const pull = (
  ahead: Ahead,
  origin: Errors.Origin
): Pull.Pull<ReadonlyArray<Part.Part>, Adapter.AdapterError> =>
  Effect.callback<ReadonlyArray<Part.Part>, Adapter.AdapterError | Cause.Done>((resume) => {
    ahead.read().then(
      ({ done, value }) => {
        if (done) return resume(Cause.done())
        const arrived = [value]
        ahead.rest(arrived, () => resume(parts(arrived, origin)))
      },
      (rejection: unknown) => resume(Effect.mapError(rejected(origin, rejection), ({ error }) => error))
    )
  })

const parts = (arrived: ReadonlyArray<unknown>, origin: Errors.Origin): Effect.Effect<ReadonlyArray<Part.Part>> =>
  Effect.map(Clock.currentTimeMillis, (now) => {
    const readError = (error: unknown) => fromUnknown(origin, error, now)
    return arrived.flatMap((part) => read(part, readError))
  })

// ---------------------------------------------------------------------------------------------------------------------
// Parts, in all versions of the provider interface. Reading is total: a part with an unexpected shape is empty, and a
// part with an unknown type passes through raw.

const string = (value: unknown): string => Wire.string(value) ?? ""

const optionsOf = (part: Json.JsonObject): Json.JsonObject | undefined => Layout.spoken(part["providerMetadata"])

const read = (part: unknown, readError: Part.ReadError): ReadonlyArray<Part.Part> => {
  if (!Json.isObject(part)) return []
  const type = string(part["type"])
  const block = /^(text|reasoning)-(start|delta|end)$/.exec(type)
  if (block !== null) return said(part, block[1] === "text" ? "text" : "reasoning")
  switch (type) {
    case "tool-input-start":
    case "tool-input-delta":
    case "tool-input-end":
      return [input(part)]
    case "tool-call":
      return [call(part)]
    case "tool-result":
      return result(part)
    case "file":
    case "reasoning-file":
      return file(part, type === "reasoning-file")
    case "custom":
      return [{ type: "custom", kind: string(part["kind"]), options: optionsOf(part) }]
    case "finish":
      return [finish(part)]
    case "error":
      return [{ type: "error", error: readError(part["error"]) }]
    default:
      return about(type, part)
  }
}

/** Returns parts other than content. */
const about = (type: string, part: Json.JsonObject): ReadonlyArray<Part.Part> => {
  switch (type) {
    case "stream-start":
      return noted("warnings", part["warnings"])
    case "response-metadata":
      return [{ type: "about", id: Wire.string(part["id"]), model: Wire.string(part["modelId"]) }]
    case "source":
      return noted("sources", [part])
    case "tool-approval-request":
      return noted("approvalRequests", [part])
    case "ping":
      return []
    case "raw":
      return [{ type: "raw", chunk: part["rawValue"] }]
    default:
      return [{ type: "raw", chunk: part }]
  }
}

const noted = (name: string, items: unknown): ReadonlyArray<Part.About> =>
  Array.isArray(items) && items.length > 0
    ? [{ type: "about", notes: { [name]: items.map((item) => withoutType(item)) } }]
    : []

const withoutType = (item: unknown): unknown => {
  if (!Json.isObject(item) || (item["type"] !== "source" && item["type"] !== "tool-approval-request")) return item
  const { type: _type, ...rest } = item
  return rest
}

const said = (part: Json.JsonObject, type: "text" | "reasoning"): ReadonlyArray<Part.Part> => [
  { type, id: string(part["id"]), delta: string(part["delta"]), options: optionsOf(part) },
  ...noted("citations", part["citations"])
]

const input = (part: Json.JsonObject): Part.Input => ({
  type: "input",
  id: string(part["id"]),
  name: part["type"] === "tool-input-start" ? string(part["toolName"]) : undefined,
  delta: string(part["delta"]),
  isJson: part["inputEncoding"] !== "text"
})

const call = (part: Json.JsonObject): Part.Call => {
  const text = part["input"]
  return {
    type: "call",
    id: string(part["toolCallId"]),
    name: string(part["toolName"]),
    text: typeof text === "string" ? text : text === undefined ? "" : JSON.stringify(Json.toJson(text)),
    isExecuted: part["providerExecuted"] === true,
    options: optionsOf(part)
  }
}

const result = (part: Json.JsonObject): ReadonlyArray<Part.Result> =>
  part["preliminary"] === true ? [] : [{
    type: "result",
    id: string(part["toolCallId"]),
    value: part["result"],
    isError: part["isError"] === true,
    options: optionsOf(part)
  }]

const file = (part: Json.JsonObject, isReasoning: boolean): ReadonlyArray<Part.File> => {
  const tagged = Wire.object(part["data"])
  const content = tagged["type"] === "data" ? tagged["data"] : tagged["type"] === "url" ? tagged["url"] : part["data"]
  const common = { type: "file", mediaType: string(part["mediaType"]), isReasoning, options: optionsOf(part) } as const
  if (typeof content === "string") return [{ ...common, data: content, url: undefined }]
  if (content instanceof Uint8Array) return [{ ...common, data: Base64.encode(content), url: undefined }]
  return content instanceof URL ? [{ ...common, data: undefined, url: content.href }] : []
}

const finishReasons: { readonly [word: string]: Response.FinishReason | null } = {
  stop: "stop",
  length: "length",
  "content-filter": "content_filter",
  "tool-calls": "tool_calls",
  error: "error",
  other: "other",
  unknown: null
}

const finish = (part: Json.JsonObject): Part.Finish => {
  const stands = part["finishReason"]
  const unified = typeof stands === "string" ? stands : string(Wire.object(stands)["unified"])
  const { container } = Wire.object(Wire.object(part["providerMetadata"])["anthropic"])
  return {
    type: "finish",
    reason: Object.hasOwn(finishReasons, unified) ? finishReasons[unified] ?? null : "other",
    word: Wire.string(Wire.object(stands)["raw"]) ?? Wire.string(unified),
    usage: usage(Wire.object(part["usage"])),
    isCut: unified === "interrupted",
    // The SDK has no finish reason for a pause. It cannot send a container id back.
    isPaused: Wire.object(stands)["raw"] === "pause_turn" && !Json.isObject(container),
    options: optionsOf(part)
  }
}

/**
 * Reads usage. Version 2 writes plain numbers with a total. Later versions write details without a total, which becomes
 * the sum of both.
 */
const usage = (wire: Json.JsonObject): Response.Usage => {
  const { inputTokens, outputTokens, ...rest } = wire
  if (!Json.isObject(inputTokens) && !Json.isObject(outputTokens)) return Response.usage(Wire.defined(wire))
  const input = Wire.object(inputTokens)
  const output = Wire.object(outputTokens)
  const total = Number(input["total"]) + Number(output["total"])
  return Response.usage(Wire.defined({
    ...rest,
    inputTokens: input["total"],
    outputTokens: output["total"],
    cachedInputTokens: input["cacheRead"],
    cacheWriteInputTokens: input["cacheWrite"],
    reasoningTokens: output["reasoning"],
    totalTokens: Number.isFinite(total) ? total : undefined
  }))
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors. Names and fields identify an error, because several versions of its class may be installed. Request data
// carried by some errors is dropped.

const byName: { readonly [name: string]: Errors.Reason } = {
  AI_LoadAPIKeyError: "authentication_failed",
  AI_LoadSettingError: "invalid_request",
  AI_InvalidArgumentError: "invalid_request",
  AI_InvalidPromptError: "invalid_request",
  AI_NoSuchModelError: "invalid_request",
  AI_NoSuchProviderReferenceError: "invalid_request",
  AI_UnsupportedFunctionalityError: "unsupported_feature",
  AI_EmptyResponseBodyError: "malformed_response",
  AI_InvalidResponseDataError: "malformed_response",
  AI_JSONParseError: "malformed_response",
  AI_NoContentGeneratedError: "malformed_response",
  AI_TypeValidationError: "malformed_response",
  TimeoutError: "timeout",
  AbortError: "network_error"
}

/** Converts a provider's rejection. `now` is compared with dates in its headers. */
const fromRejection = (origin: Errors.Origin, rejection: unknown, now: number): Http.Failure => {
  const error = fromUnknown(origin, rejection, now)
  return { error, isWorthRetrying: isWorthRetrying(error, Json.isObject(rejection) ? rejection : {}) }
}

/** Returns the retry decision: the server's advice first, then the provider's, then the error's own. */
const isWorthRetrying = (error: Adapter.AdapterError, rejection: Json.JsonObject): boolean => {
  const { isRetryable, responseHeaders } = rejection
  return Errors.retryWord(Reply.headersOf(responseHeaders)) ??
    (typeof isRetryable === "boolean" ? isRetryable && error.reason !== "quota_exceeded" : error.isRetryable)
}

/** Converts a rejection, or an error among the parts. */
const fromUnknown = (origin: Errors.Origin, thrown: unknown, now: number): Adapter.AdapterError => {
  if (!Json.isObject(thrown)) return Reply.errorSaid(origin, String(thrown), "provider")
  const { name, responseHeaders, statusCode } = thrown
  const from = { ...origin, requestId: origin.requestId ?? Errors.requestIdOf(Reply.headersOf(responseHeaders)) }
  if (typeof statusCode === "number" && statusCode >= 400) return fromStatus(from, statusCode, thrown, now)
  if (typeof name === "string" && Object.hasOwn(byName, name)) return named(from, byName[name] ?? "unknown", thrown)
  if (name === "AI_APICallError") return fromCause(from, thrown, now)
  return Reply.errorSaid(from, thrown instanceof Error ? wordsOf(thrown) : thrown, "provider")
}

/** Returns an error's own message, type and code, without other provider data. */
const wordsOf = (error: Error): Json.JsonObject => {
  const fields: Json.JsonObject = { ...error }
  return { message: error.message, type: fields["type"], code: fields["code"] }
}

const fromStatus = (
  origin: Errors.Origin,
  status: number,
  error: Json.JsonObject,
  now: number
): Adapter.AdapterError => {
  const body = error["responseBody"]
  const text = typeof body === "string" && body !== "" ? body : JSON.stringify({ error: { message: error["message"] } })
  return Errors.fromResponse(origin, { status, headers: Reply.headersOf(error["responseHeaders"]) }, text, now)
}

/** Converts a call that failed without an error status: the connection broke, or the answer was unreadable. */
const fromCause = (origin: Errors.Origin, error: Json.JsonObject, now: number): Adapter.AdapterError => {
  const { cause } = error
  const name = Json.isObject(cause) ? cause["name"] : undefined
  if (typeof name === "string" && name.startsWith("AI_")) return fromUnknown(origin, cause, now)
  return named(origin, "network_error", error)
}

/** Words for an incomplete reply, treated as a lost connection. */
const cutWords = /ended without|unexpected(ly)? end|closed before|terminated/i

const named = (origin: Errors.Origin, reason: Errors.Reason, error: Json.JsonObject): Adapter.AdapterError => {
  const detail = [String(error["message"] ?? ""), innermost(error["cause"])].filter((text) => text !== "").join(": ")
  const isCut = reason === "malformed_response" && error["name"] === "AI_InvalidResponseDataError"
  return Errors.make(
    origin,
    isCut && cutWords.test(detail) ? "network_error" : reason,
    detail.slice(0, Errors.longestDetail)
  )
}

/** Returns the innermost message: outer messages only say that something failed. */
const innermost = (cause: unknown, depth = 0): string => {
  if (!(cause instanceof Error)) return ""
  return cause.cause instanceof Error && depth < 8 ? innermost(cause.cause, depth + 1) : cause.message
}
