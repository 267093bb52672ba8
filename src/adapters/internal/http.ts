/**
 * Streams an HTTP exchange with a model. Nothing happens before the first pull; closing the stream's scope aborts the
 * request. A failed request is retried before the first event visible to a user, never after. Errors never contain the
 * request or its secrets, and traces contain no header values.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Hash from "effect/Hash"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Headers from "effect/http/Headers"
import * as HttpClient from "effect/http/HttpClient"
import type * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import type * as HttpClientResponse from "effect/http/HttpClientResponse"
import * as Option from "effect/Option"
import * as Random from "effect/Random"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Requests from "../../internal/ask/request.ts"
import type { NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Json from "../../internal/json.ts"
import * as Telemetry from "../../internal/telemetry.ts"
import * as Response from "../../Response.ts"
import * as Answer from "./answerBody.ts"
import * as Errors from "./errors.ts"
import { traceparent } from "./propagation.ts"
import * as Wire from "./wire.ts"

export type HeaderValues = Readonly<Record<string, string | Redacted.Redacted<string>>>

/** Connection settings, the same for every protocol. */
export interface Options {
  /** Address at which the protocol's paths start. A query string is kept. Default: the provider's own address. */
  readonly baseUrl?: string
  /**
   * Further headers, each plain or `Redacted`; they override the adapter's own. Errors and traces omit their values.
   * None by default.
   */
  readonly headers?: HeaderValues
  /** Provider name in errors, spans and metrics. Default: the provider known to the adapter. */
  readonly provider?: string
  /** Number of retries for a request failing before its first event visible to a user. Default: 2. */
  readonly retries?: number
  /** Delay before the first retry, doubled before each further retry. Default: 500 ms, plus up to 250 ms of jitter. */
  readonly retryDelay?: Duration.Input | "infinity"
  /** Maximum delay between two attempts, whatever the server asks for. Default: 30 seconds. */
  readonly maxRetryDelay?: Duration.Input | "infinity"
  /** Maximum wait for the answer head, connection included. Default: as `idleTimeout`. */
  readonly connectTimeout?: Duration.Input | "infinity"
  /** Maximum wait for the first bytes after the answer head. Default: as `idleTimeout`. */
  readonly firstChunkTimeout?: Duration.Input | "infinity"
  /** Maximum silence between two reads; a comment ends the silence. "infinity" for no limit. Default: 5 minutes. */
  readonly idleTimeout?: Duration.Input | "infinity"
  /**
   * `true` to send the trace context to the server, as `traceparent`: for your own gateway, whose spans then join the
   * trace. To a third party it would reveal the trace ids. Default: `false`.
   */
  readonly propagate?: boolean
  /** Maximum event length, in UTF-16 code units. Default: 16 Mi. */
  readonly maxEventLength?: number
  /** Maximum answer length, in bytes. Default: 256 Mi. */
  readonly maxAnswerLength?: number
}

/** Validates headers. They may contain secrets, so `settings` names a wrong header without its value. */
export const headers: Values.Kind = Values.hidden(Values.record)

export const knownOptions = {
  baseUrl: Values.name,
  headers: headers,
  provider: Values.text,
  retries: Values.whole,
  retryDelay: Values.durationOrNone,
  maxRetryDelay: Values.durationOrNone,
  connectTimeout: Values.duration,
  firstChunkTimeout: Values.duration,
  idleTimeout: Values.duration,
  propagate: Values.flag,
  maxEventLength: Values.count,
  maxAnswerLength: Values.count
} satisfies NamesOf<Options>

/** Options with defaults applied. */
export interface Settings extends Answer.Limits {
  readonly retries: number
  readonly retryDelay: Duration.Duration
  readonly maxRetryDelay: Duration.Duration
  readonly connectTimeout: Duration.Duration
  readonly propagate: boolean
}

/** One request, and how to read its answer. */
export interface Exchange {
  readonly client: HttpClient.HttpClient
  readonly settings: Settings
  readonly provider: string
  /** Model: a pause requested by the server applies to all requests for the same model. */
  readonly model: string
  readonly url: string
  readonly headers: HeaderValues
  readonly secrets: ReadonlyArray<Redacted.Redacted<string>>
  readonly errorWords: Errors.Words
  readonly body: () => Json.JsonObject
  readonly makeReader: (origin: Errors.Origin) => Effect.Effect<Answer.Reader>
  /** Limits for the attempts, if the request sets any. */
  readonly attempt: Adapter.Attempt | undefined
}

/** A failed attempt, and whether the same request is worth retrying. */
export interface Failure {
  readonly error: Adapter.AdapterError
  readonly isWorthRetrying: boolean
}

/** Makes a failure without retry advice from the provider. */
export const failed = (error: Adapter.AdapterError): Failure => ({ error, isWorthRetrying: error.isRetryable })

const mebi = 1024 * 1024
const longestErrorBody = 64 * 1024
const errorBodyTimeout = Duration.seconds(10)
const secretNames = /auth|key|token|secret|cookie/i

/** Throws a `TypeError` for a caller's mistake. */
export const misuse = (name: string, problem: string): never => {
  throw new TypeError(`${name}: ${problem}`)
}

/** Rejects a header value other than text or `Redacted`, naming the header but not the value. */
const checkHeaderValues = (name: string, { headers = {} }: Pick<Options, "headers">): void => {
  const header = Object.entries(headers).find(([, value]) => typeof value !== "string" && !Values.secret.accepts(value))
  if (header !== undefined) misuse(name, `headers must be strings, plain or Redacted; "${header[0]}" is neither`)
}

/** Returns the settings: checked options with defaults applied. */
export const settings = (name: string, options: Options): Settings => {
  checkHeaderValues(name, options)
  const { connectTimeout, firstChunkTimeout, idleTimeout = "5 minutes" } = options
  const read = (input: Duration.Input | "infinity"): Duration.Duration => Values.readDuration(input) ?? Duration.zero
  return {
    retries: options.retries ?? 2,
    retryDelay: read(options.retryDelay ?? "500 millis"),
    maxRetryDelay: read(options.maxRetryDelay ?? "30 seconds"),
    connectTimeout: read(connectTimeout ?? idleTimeout),
    firstChunkTimeout: read(firstChunkTimeout ?? idleTimeout),
    idleTimeout: read(idleTimeout),
    propagate: options.propagate ?? false,
    maxEventLength: options.maxEventLength ?? 16 * mebi,
    maxAnswerLength: options.maxAnswerLength ?? 256 * mebi
  }
}

/** Returns settings with the request's own limits applied. */
export const attempted = (settings: Settings, attempt: Adapter.Attempt | undefined): Settings =>
  attempt?.retries === undefined ? settings : { ...settings, retries: attempt.retries }

/** Streams the events answering a request. Each run of the stream sends the request anew. */
export const stream = (exchange: Exchange): Stream.Stream<Event.AdapterEvent, Adapter.AdapterError> =>
  Stream.unwrap(Effect.flatMap(Effect.fromResult(makeRequest(exchange)), (request) => open(exchange, request)))

const secretsOf = (exchange: Exchange): ReadonlyArray<Redacted.Redacted<string>> => [
  ...exchange.secrets,
  ...Object.entries(exchange.headers).flatMap(([name, value]) => {
    if (Redacted.isRedacted(value)) return [value]
    return secretNames.test(name) ? [Redacted.make(value)] : []
  })
]

const namesOf = (headers: HeaderValues): ReadonlyArray<string> => Object.keys(headers).map((name) => name.toLowerCase())

const originOf = (exchange: Exchange, headers: Readonly<Record<string, string | undefined>>): Errors.Origin => ({
  provider: exchange.provider,
  secrets: secretsOf(exchange),
  words: exchange.errorWords,
  requestId: Errors.requestIdOf(headers)
})

// ---------------------------------------------------------------------------------------------------------------------
// the request

const makeRequest = (
  exchange: Exchange
): Result.Result<HttpClientRequest.HttpClientRequest, Adapter.AdapterError> =>
  Result.mapError(
    Result.gen(function*() {
      const url = yield* checkUrl(exchange.url)
      const headers = yield* checkHeaders(exchange.headers)
      const body = yield* Result.mapError(
        Result.try(() => Json.wellFormedJson(JSON.stringify(exchange.body()))),
        (problem) => `the request cannot be written as JSON: ${Json.render(problem)}`
      )
      return HttpClientRequest.post(url).pipe(
        HttpClientRequest.setHeaders({ accept: "text/event-stream", ...headers }),
        HttpClientRequest.bodyText(body, "application/json")
      )
    }),
    (problem) => Errors.make(originOf(exchange, {}), "invalid_request", problem)
  )

export const bearer = (key: Redacted.Redacted<string>): Redacted.Redacted<string> =>
  Redacted.make(`Bearer ${Redacted.value(key).trim()}`)

/** Joins a path to a base URL, keeping the base URL's query string after the path's own. */
export const endpoint = (baseUrl: string, path: string): string => {
  const query = baseUrl.indexOf("?")
  const base = query < 0 ? baseUrl : baseUrl.slice(0, query)
  const kept = query < 0 ? "" : `${path.includes("?") ? "&" : "?"}${baseUrl.slice(query + 1)}`
  return `${base.trim().replace(/\/+$/, "")}${path}${kept}`
}

/** Returns a base URL's server for spans: only host and port. */
export const serverOf = (baseUrl: string): Pick<Adapter.Service, "server"> => {
  if (!URL.canParse(baseUrl)) return {}
  const { hostname: address, port } = new URL(baseUrl)
  return { server: port === "" ? { address } : { address, port: Number(port) } }
}

/** Returns an unusable URL for error messages, without user, password and query, which are secrets. */
const named = (text: string): string => text.replace(/[?#].*/s, "").replace(/[^/]*@/g, "")

const checkUrl = (text: string): Result.Result<URL, string> =>
  Result.try(() => new URL(text)).pipe(
    Result.mapError(() => `the base URL is not a valid URL: ${named(text)}`),
    Result.flatMap((url) => {
      if (url.protocol !== "http:" && url.protocol !== "https:") {
        return Result.fail(`the base URL must start with http:// or https://: ${named(text)}`)
      }
      return url.username === "" && url.password === ""
        ? Result.succeed(url)
        : Result.fail("the base URL must not hold a user or a password; send them in a header")
    })
  )

const checkHeaders = (headers: HeaderValues): Result.Result<Readonly<Record<string, string>>, string> => {
  const values = Object.entries(headers).map(([name, value]) =>
    [name, (Redacted.isRedacted(value) ? Redacted.value(value) : value).trim()] as const
  )
  const unusable = values.find(([, value]) => !/^[\t\x20-\x7e\x80-\xff]*$/.test(value))
  return unusable === undefined
    ? Result.succeed(Object.fromEntries(values))
    : Result.fail(`the header ${unusable[0]} contains characters not allowed in headers`)
}

// ---------------------------------------------------------------------------------------------------------------------
// the answer's beginning

type Events = Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>

/** Opens the answer, retrying the request while a retry can help. */
const open = (
  exchange: Exchange,
  request: HttpClientRequest.HttpClientRequest
): Effect.Effect<Events, Adapter.AdapterError, Scope.Scope> =>
  Effect.gen(function*() {
    const settings = attempted(exchange.settings, exchange.attempt)
    const cooldowns = yield* Cooldown
    const lane = laneOf(exchange, request)
    let failed: Adapter.AdapterError | undefined
    let tries = 0
    let unshown: Array<Event.AdapterEvent> = []
    const earlier: Array<Response.Usage | null> = []
    const again = Effect.suspend(() => {
      tries++
      earlier.push(usageOf(unshown))
      unshown = []
      const attempted = attempt(exchange, request, unshown)
      return failed === undefined ? attempted : Effect.andThen(Telemetry.retried(failed, tries), attempted)
    })
    const tried = Effect.tapError(again, ({ error }) => {
      failed = error
      const pause = pauseOf(settings, error)
      return pause === undefined ? Effect.void : cooldowns.note(lane, pause)
    })
    const patience = exchange.attempt?.patienceMillis ?? (settings.retries === 0 ? undefined : Infinity)
    // A request without retries does not wait either.
    const events = retried(
      settings,
      patience === undefined ? tried : Effect.andThen(entered(exchange, cooldowns, lane, patience), tried)
    )
    const begun = yield* Effect.catch(events, (error) => failedAfter(error, [...earlier, usageOf(unshown)]))
    const spent = Response.sumUsage(earlier)
    return spent === null ? begun : Stream.map(begun, (event) => withSpent(event, spent))
  })

/** Waits for the lane's pause. A pause beyond the request's patience fails the request at once. */
const entered = (
  exchange: Exchange,
  cooldowns: Cooldowns,
  lane: string,
  patienceMillis: number
): Effect.Effect<void, Failure> =>
  Effect.flatMap(cooldowns.rest(lane), (rest) => {
    if (rest <= patienceMillis) return cooldowns.wait(lane)
    const detail = `the server asked for a pause, which lasts ${Math.ceil(rest / 1000)} more seconds`
    const error = Errors.make(originOf(exchange, {}), "rate_limited", detail)
    return Effect.fail({
      error: new Adapter.AdapterError({ ...error, retryAfterMillis: rest }),
      isWorthRetrying: false
    })
  })

/** Reports the cost of all attempts, if any, before the failure. */
const failedAfter = (
  error: Adapter.AdapterError,
  usages: ReadonlyArray<Response.Usage | null>
): Effect.Effect<Events, Adapter.AdapterError> => {
  const last = usages.at(-1) ?? (Response.sumUsage(usages) === null ? null : Response.usage({}))
  return last === null
    ? Effect.fail(error)
    : Effect.succeed(Stream.concat(Stream.make(Answer.started, ...Answer.cost(last)), Stream.fail(error)))
}

const usageIn = (event: Event.AdapterEvent): unknown => {
  if (event._tag === "RawChunk") return Wire.object(event.chunk)["usage"]
  return event._tag === "MessageCompleted" ? event.usage : undefined
}

const usageOf = (events: ReadonlyArray<Event.AdapterEvent>): Response.Usage | null => {
  const reported = events.map(usageIn).findLast(Json.isObject)
  return reported === undefined ? null : Response.usage(reported)
}

/** Adds the usage of earlier attempts to a usage report: a reply costs as much as all its attempts. */
const withSpent = (event: Event.AdapterEvent, spent: Response.Usage | null): Event.AdapterEvent => {
  if (spent === null) return event
  const own = usageIn(event)
  const usage = Response.sumUsage([spent, Json.isObject(own) ? Response.usage(own) : null])
  if (event._tag === "RawChunk" && own !== undefined) return { ...event, chunk: { ...Wire.object(event.chunk), usage } }
  return event._tag === "MessageCompleted" && usage !== null ? { ...event, usage } : event
}

/**
 * Retries a request while that may help. Each retry first closes the resources of the failed attempt; the scope closes
 * those of the last attempt.
 */
export const retried = <A>(
  settings: Settings,
  attempt: Effect.Effect<A, Failure, Scope.Scope>
): Effect.Effect<A, Adapter.AdapterError, Scope.Scope> =>
  Effect.gen(function*() {
    const scope = yield* Scope.fork(yield* Effect.scope)
    return yield* attempt.pipe(
      Scope.provide(scope),
      Effect.onExit((exit) => Exit.isFailure(exit) ? Scope.close(scope, exit) : Effect.void)
    )
  }).pipe(
    Effect.retry({ schedule: schedule(settings), while: (failure) => failure.isWorthRetrying }),
    Effect.mapError(({ error }) => error)
  )

/** Returns a request's lane. A server refuses all requests in a lane together: same key, same server, same model. */
const laneOf = (exchange: Exchange, request: HttpClientRequest.HttpClientRequest): string => {
  const keys = exchange.secrets.map((secret) => Hash.string(Redacted.value(secret))).join(",")
  return `${visibleUrl(request.url)} ${exchange.model} ${keys}`
}

/** Returns how long the lane stays closed. */
const pauseOf = (settings: Settings, error: Adapter.AdapterError): Duration.Duration | undefined => {
  const asked = error.retryAfterMillis === undefined ? undefined : Duration.millis(error.retryAfterMillis)
  const pause = asked ?? (error.reason === "rate_limited" ? settings.retryDelay : undefined)
  return pause === undefined || !error.isRetryable ? undefined : Duration.min(pause, settings.maxRetryDelay)
}

/** Schedules the next attempt: after growing delays, or after the requested delay. */
const schedule = (settings: Settings): Schedule.Schedule<number, Failure> =>
  Schedule.recurs(settings.retries).pipe(
    Schedule.setInputType<Failure>(),
    Schedule.modifyDelay(({ attempt, input }) =>
      Effect.map(Effect.zip(Random.nextBetween(0, jitterMillis), Requests.RetryListener), ([jitter, tell]) => {
        const asked = input.error.retryAfterMillis ?? Duration.toMillis(settings.retryDelay) * 2 ** (attempt - 1)
        const millis = Math.min(asked, Duration.toMillis(settings.maxRetryDelay)) + jitter
        if (input.isWorthRetrying) tell?.({ try: attempt, code: input.error.reason, afterMillis: Math.round(millis) })
        return Duration.millis(millis)
      })
    )
  )

/** Makes one attempt, up to the first event visible to a user. On failure, `unshown` holds the earlier events. */
const attempt = (
  exchange: Exchange,
  request: HttpClientRequest.HttpClientRequest,
  unshown: Array<Event.AdapterEvent>
): Effect.Effect<Events, Failure, Scope.Scope> =>
  propagated(exchange, request).pipe(
    Effect.flatMap((request) => head(exchange, request)),
    Effect.flatMap((response) => begun(exchange, response, unshown)),
    // A span keeps its result: an answer would include the request with all headers, an error the provider's text.
    Effect.tapError(({ error }) => Telemetry.annotate({ "error.type": error.reason })),
    Effect.mapBoth({ onSuccess: Redacted.make, onFailure: (failure) => Redacted.make(failure) }),
    (tried) =>
      Telemetry.requesting(tried, "POST", {
        "http.request.method": "POST",
        "server.address": new URL(request.url).hostname
      }),
    Effect.mapBoth({ onSuccess: Redacted.value, onFailure: (failure) => Redacted.value(failure) })
  )

/** Adds the current span's trace context to a request, if enabled. */
const propagated = (
  { settings: { propagate } }: Exchange,
  request: HttpClientRequest.HttpClientRequest
): Effect.Effect<HttpClientRequest.HttpClientRequest> =>
  propagate
    ? Effect.map(
      traceparent,
      (header) => header === undefined ? request : HttpClientRequest.setHeaders(request, { traceparent: header })
    )
    : Effect.succeed(request)

/**
 * Disables redirects, since following one would send the key to its target. Clients without `fetch` handle redirects
 * themselves.
 */
const withoutRedirects = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.updateContext(self, (context: Context.Context<R>) => {
    const own = Context.getOption(context, FetchHttpClient.RequestInit)
    return Context.add(context, FetchHttpClient.RequestInit, { ...Option.getOrUndefined(own), redirect: "manual" })
  })

const head = (
  exchange: Exchange,
  request: HttpClientRequest.HttpClientRequest
): Effect.Effect<HttpClientResponse.HttpClientResponse, Failure, Scope.Scope> =>
  HttpClient.withScope(exchange.client).execute(request).pipe(
    withoutRedirects,
    Effect.provideService(HttpClient.TracerDisabledWhen, () => true),
    Effect.updateService(Headers.CurrentRedactedNames, (names) => [...names, ...namesOf(exchange.headers)]),
    Effect.mapError((error) => notSent(exchange, request, error)),
    Effect.timeoutOrElse({
      duration: exchange.settings.connectTimeout,
      orElse: () => Effect.fail(silent(exchange))
    }),
    Effect.tap((response) => Telemetry.annotate({ "http.response.status_code": response.status })),
    Effect.flatMap((response) => accepted(exchange, response))
  )

/** Begins an answer. An answer breaking before its first visible event counts as never received. */
const begun = (
  exchange: Exchange,
  response: HttpClientResponse.HttpClientResponse,
  unshown: Array<Event.AdapterEvent>
): Effect.Effect<Events, Failure, Scope.Scope> =>
  Effect.gen(function*() {
    const origin = originOf(exchange, response.headers)
    const reader = yield* exchange.makeReader(origin)
    return yield* Effect.mapError(Answer.begin(response.stream, origin, reader, exchange.settings, unshown), failed)
  })

/** Returns an address without its query string, where some servers expect their key. */
const visibleUrl = (text: string): string => {
  const url = new URL(text)
  return `${url.origin}${url.pathname}`
}

const silent = (exchange: Exchange): Failure => {
  const detail = `the server did not answer within ${Duration.format(exchange.settings.connectTimeout)}`
  return { error: Errors.make(originOf(exchange, {}), "timeout", detail), isWorthRetrying: true }
}

const notSent = (
  exchange: Exchange,
  request: HttpClientRequest.HttpClientRequest,
  error: HttpClientError.HttpClientError
): Failure => {
  const isTransport = error.reason._tag === "TransportError"
  const detail = `cannot reach ${visibleUrl(request.url)}: ${innermost(error.reason.cause ?? error.reason._tag)}`
  const reason = isTransport ? "network_error" : "invalid_request"
  return { error: Errors.make(originOf(exchange, {}), reason, detail), isWorthRetrying: isTransport }
}

/** Innermost cause of a transport error: the outer errors only report that the request failed. */
const innermost = (cause: unknown, depth = 0): string => {
  const inner = cause instanceof AggregateError ? cause.errors[0] : cause instanceof Error ? cause.cause : undefined
  if (inner instanceof Error && depth < 8) return innermost(inner, depth + 1)
  if (!(cause instanceof Error)) return String(cause)
  return cause.message === "" && "code" in cause ? String(cause.code) : cause.message
}

const accepted = (
  exchange: Exchange,
  response: HttpClientResponse.HttpClientResponse
): Effect.Effect<HttpClientResponse.HttpClientResponse, Failure> =>
  response.status >= 200 && response.status < 300
    ? Effect.succeed(response)
    : Effect.gen(function*() {
      const body = yield* errorBody(response)
      const now = yield* Clock.currentTimeMillis
      const error = Errors.fromResponse(originOf(exchange, response.headers), response, body, now)
      return yield* Effect.fail({ error, isWorthRetrying: Errors.isWorthRetrying(error, response.headers) })
    })

/** Reads the beginning of an error body. If unreadable, the status alone suffices. */
const errorBody = (response: HttpClientResponse.HttpClientResponse): Effect.Effect<string> =>
  Effect.suspend(() => {
    let length = 0
    return response.stream.pipe(
      Stream.takeUntil((bytes) => (length += bytes.length) >= longestErrorBody),
      Stream.decodeText(),
      Stream.mkString,
      Effect.timeout(errorBodyTimeout),
      Effect.orElseSucceed(() => "")
    )
  })

// ---------------------------------------------------------------------------------------------------------------------
// Cooldowns: all runs in the process respect the pause a busy server asks for. A run waits at most once before each
// attempt, so a pause renewed again and again cannot block the run forever.

/** Maximum random delay between runs that waited together, in milliseconds. */
const jitterMillis = 250

export class Cooldowns {
  /** Times at which lanes reopen, by clock and lane. A time is meaningless on another clock. */
  private readonly ends = new WeakMap<Clock.Clock, Map<string, number>>()

  private endsOf(clock: Clock.Clock): Map<string, number> {
    const ends = this.ends.get(clock) ?? new Map<string, number>()
    this.ends.set(clock, ends)
    return ends
  }

  /** Closes a lane for a time, unless it is already closed for longer. */
  note(lane: string, pause: Duration.Duration): Effect.Effect<void> {
    return Effect.clockWith((clock) =>
      Effect.sync(() => {
        const ends = this.endsOf(clock)
        const end = clock.currentTimeMillisUnsafe() + Duration.toMillis(pause)
        ends.set(lane, Math.max(end, ends.get(lane) ?? 0))
      })
    )
  }

  /** Milliseconds until a lane reopens, 0 or less for an open lane. */
  rest(lane: string): Effect.Effect<number> {
    return Effect.clockWith((clock) =>
      Effect.sync(() => (this.endsOf(clock).get(lane) ?? 0) - clock.currentTimeMillisUnsafe())
    )
  }

  wait(lane: string): Effect.Effect<void> {
    return Effect.flatMap(this.rest(lane), (rest) => {
      if (rest > 0) return Effect.flatMap(Random.nextBetween(0, jitterMillis), (jitter) => Effect.sleep(rest + jitter))
      return Effect.clockWith((clock) => Effect.sync(() => void this.endsOf(clock).delete(lane)))
    })
  }
}

/** Pauses in this process, shared by all its adapters. */
const Cooldown: Context.Reference<Cooldowns> = Context.Reference<Cooldowns>("heddle/adapters/Cooldown", {
  defaultValue: () => new Cooldowns()
})
