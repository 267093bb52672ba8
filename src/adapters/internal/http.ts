/**
 * A streamed HTTP exchange with a model. Nothing happens before the first pull; closing the stream's scope aborts the
 * request. Before the first event that a user can see a failed request is tried again, after it never. No error that
 * leaves here holds the request or its secrets, and traces hold none of its headers' values.
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

/** The settings of a connection, the same for every protocol. */
export interface Options {
  /** The address at which the protocol's paths start. A query string is kept. */
  readonly baseUrl?: string
  /**
   * Further headers, each a text or a `Redacted` one; they win over the adapter's own. Their values stay out of errors
   * and traces. None by default.
   */
  readonly headers?: HeaderValues
  /** The name of the provider in errors. */
  readonly provider?: string
  /** The number of times that a request which failed before its first event is tried again. Default: 2. */
  readonly retries?: number
  /** The delay before the first retry, doubled before each further one. Default: 500 ms, and up to 250 ms of jitter. */
  readonly retryDelay?: Duration.Input | "infinity"
  /** The longest delay between two tries, whatever the server asks for. Default: 30 seconds. */
  readonly maxRetryDelay?: Duration.Input | "infinity"
  /** The time that the head of an answer may take, the connection included. Default: as `idleTimeout`. */
  readonly connectTimeout?: Duration.Input | "infinity"
  /** The time that the first bytes of an answer may take once its head is there. Default: as `idleTimeout`. */
  readonly firstChunkTimeout?: Duration.Input | "infinity"
  /**
   * The time that the server may be silent between two reads; a comment is no silence. "infinity" for no limit.
   * Default: 5 minutes.
   */
  readonly idleTimeout?: Duration.Input | "infinity"
  /**
   * `true` to send the trace context to the server, as `traceparent`: for a gateway of your own, whose spans then
   * belong to the trace. A third party learns its ids. Default: `false`.
   */
  readonly propagate?: boolean
  /** The longest single event that is read, in UTF-16 code units. Default: 16 Mi. */
  readonly maxEventLength?: number
  /** The longest answer that is read, in bytes. Default: 256 Mi. */
  readonly maxAnswerLength?: number
}

/** Headers. They may hold secrets: `settings` names the one that is wrong. */
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

/** The options as they are used. */
export interface Settings extends Answer.Limits {
  readonly retries: number
  readonly retryDelay: Duration.Duration
  readonly maxRetryDelay: Duration.Duration
  readonly connectTimeout: Duration.Duration
  readonly propagate: boolean
}

/** One request, and how its answer is read. */
export interface Exchange {
  readonly client: HttpClient.HttpClient
  readonly settings: Settings
  readonly provider: string
  /** The model: a pause that the server asks for concerns all requests for it. */
  readonly model: string
  readonly url: string
  readonly headers: HeaderValues
  readonly secrets: ReadonlyArray<Redacted.Redacted<string>>
  readonly errorWords: Errors.Words
  readonly body: () => Json.JsonObject
  readonly makeReader: (origin: Errors.Origin) => Effect.Effect<Answer.Reader>
  /** The bounds of the attempts, where the request has some. */
  readonly attempt: Adapter.Attempt | undefined
}

/** A failed try, and whether the same request is worth another one. */
export interface Failure {
  readonly error: Adapter.AdapterError
  readonly isWorthRetrying: boolean
}

/** A failure without a word of the provider on whether to try again. */
export const failed = (error: Adapter.AdapterError): Failure => ({ error, isWorthRetrying: error.isRetryable })

const mebi = 1024 * 1024
const longestErrorBody = 64 * 1024
const errorBodyTimeout = Duration.seconds(10)
const secretNames = /auth|key|token|secret|cookie/i

/** Throws what a caller's mistake is answered with. */
export const misuse = (name: string, problem: string): never => {
  throw new TypeError(`${name}: ${problem}`)
}

/** Names the header that is neither a text nor a Redacted one. Its value is not named. */
const checkHeaderValues = (name: string, { headers = {} }: Pick<Options, "headers">): void => {
  const header = Object.entries(headers).find(([, value]) => typeof value !== "string" && !Values.secret.accepts(value))
  if (header !== undefined) misuse(name, `headers must be texts, Redacted or not; "${header[0]}" is none`)
}

/** The options with their defaults. The options were checked by their list. */
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

/** Returns settings with the bounds of a request's own. */
export const attempted = (settings: Settings, attempt: Adapter.Attempt | undefined): Settings =>
  attempt?.retries === undefined ? settings : { ...settings, retries: attempt.retries }

/** The events that answer a request. Each run of the stream sends it anew. */
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

/** The value of an authorization header. */
export const bearer = (key: Redacted.Redacted<string>): Redacted.Redacted<string> =>
  Redacted.make(`Bearer ${Redacted.value(key).trim()}`)

/** The URL of a path under a base URL, whose query string is kept, after the path's own if it has one. */
export const endpoint = (baseUrl: string, path: string): string => {
  const query = baseUrl.indexOf("?")
  const base = query < 0 ? baseUrl : baseUrl.slice(0, query)
  const kept = query < 0 ? "" : `${path.includes("?") ? "&" : "?"}${baseUrl.slice(query + 1)}`
  return `${base.trim().replace(/\/+$/, "")}${path}${kept}`
}

/** Returns the server of a base URL for spans: the host and the port, and nothing else of the URL. */
export const serverOf = (baseUrl: string): Pick<Adapter.Service, "server"> => {
  if (!URL.canParse(baseUrl)) return {}
  const { hostname: address, port } = new URL(baseUrl)
  return { server: port === "" ? { address } : { address, port: Number(port) } }
}

/** Returns a URL that cannot be used as a message names it: its user, its password and its query are secrets. */
const named = (text: string): string => text.replace(/[?#].*/s, "").replace(/[^/]*@/g, "")

const checkUrl = (text: string): Result.Result<URL, string> =>
  Result.try(() => new URL(text)).pipe(
    Result.mapError(() => `the base URL is no URL: ${named(text)}`),
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
    : Result.fail(`the header ${unusable[0]} holds characters that no header can carry`)
}

// ---------------------------------------------------------------------------------------------------------------------
// the answer's beginning

type Events = Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>

/** The answer, once it has begun. Until then the request is tried again while that makes sense. */
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
    // A request without a second try does not wait either.
    const events = retried(
      settings,
      patience === undefined ? tried : Effect.andThen(entered(exchange, cooldowns, lane, patience), tried)
    )
    const begun = yield* Effect.catch(events, (error) => failedAfter(error, [...earlier, usageOf(unshown)]))
    const spent = Response.sumUsage(earlier)
    return spent === null ? begun : Stream.map(begun, (event) => withSpent(event, spent))
  })

/** Waits for the pause of a lane. One that is longer than the patience of the request fails it at once. */
const entered = (
  exchange: Exchange,
  cooldowns: Cooldowns,
  lane: string,
  patienceMillis: number
): Effect.Effect<void, Failure> =>
  Effect.flatMap(cooldowns.rest(lane), (rest) => {
    if (rest <= patienceMillis) return cooldowns.wait(lane)
    const detail = `the server has asked for a pause, which lasts ${Math.ceil(rest / 1000)} s more`
    const error = Errors.make(originOf(exchange, {}), "rate_limited", detail)
    return Effect.fail({
      error: new Adapter.AdapterError({ ...error, retryAfterMillis: rest }),
      isWorthRetrying: false
    })
  })

/** Reports what the tries of a request have cost, if they have, before its failure. */
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

/** An event with the usage of the tries before, where it reports any: a reply costs what all of its tries did. */
const withSpent = (event: Event.AdapterEvent, spent: Response.Usage | null): Event.AdapterEvent => {
  if (spent === null) return event
  const own = usageIn(event)
  const usage = Response.sumUsage([spent, Json.isObject(own) ? Response.usage(own) : null])
  if (event._tag === "RawChunk" && own !== undefined) return { ...event, chunk: { ...Wire.object(event.chunk), usage } }
  return event._tag === "MessageCompleted" && usage !== null ? { ...event, usage } : event
}

/**
 * Tries a request again while that may help. What a failed try has opened is closed before the next one, and the rest
 * with the scope.
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

/** The requests that are refused together: with one key, at one server, for one model. */
const laneOf = (exchange: Exchange, request: HttpClientRequest.HttpClientRequest): string => {
  const keys = exchange.secrets.map((secret) => Hash.string(Redacted.value(secret))).join(",")
  return `${visibleUrl(request.url)} ${exchange.model} ${keys}`
}

/** Returns the time for which the lane is closed. */
const pauseOf = (settings: Settings, error: Adapter.AdapterError): Duration.Duration | undefined => {
  const asked = error.retryAfterMillis === undefined ? undefined : Duration.millis(error.retryAfterMillis)
  const pause = asked ?? (error.reason === "rate_limited" ? settings.retryDelay : undefined)
  return pause === undefined || !error.isRetryable ? undefined : Duration.min(pause, settings.maxRetryDelay)
}

/** Schedules the next try of a request that failed: after growing delays, or after the one that was asked for. */
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

/** One try, up to the first event that a user can see. What came before a failure is left in `unshown`. */
const attempt = (
  exchange: Exchange,
  request: HttpClientRequest.HttpClientRequest,
  unshown: Array<Event.AdapterEvent>
): Effect.Effect<Events, Failure, Scope.Scope> =>
  propagated(exchange, request).pipe(
    Effect.flatMap((request) => head(exchange, request)),
    Effect.flatMap((response) => begun(exchange, response, unshown)),
    // A span keeps what it ends with: an answer its request with all headers, and an error what the provider wrote.
    Effect.tapError(({ error }) => Telemetry.annotate({ "error.type": error.reason })),
    Effect.mapBoth({ onSuccess: Redacted.make, onFailure: (failure) => Redacted.make(failure) }),
    (tried) =>
      Telemetry.requesting(tried, "POST", {
        "http.request.method": "POST",
        "server.address": new URL(request.url).hostname
      }),
    Effect.mapBoth({ onSuccess: Redacted.value, onFailure: (failure) => Redacted.value(failure) })
  )

/** Adds the trace context of the span around this to a request, if the server is to have it. */
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

/** A redirect would send the key to its target. A client that is not made of `fetch` handles redirects itself. */
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

/** An answer that breaks before its first visible event is treated as one that never arrived. */
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

/** An address without its query string, where some servers want their key. */
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

/** The innermost cause of a transport error: the outer ones only report that the request failed. */
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

/** The beginning of an error's body. If it cannot be read, the status alone is sufficient. */
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
// cooldowns: the pause that a busy server asks for is kept by all runs of the process. A run waits at most once before
// a request, so that a pause that is renewed again and again does not hold it back for good.

/** Runs that waited together start up to this long apart. */
const jitterMillis = 250

export class Cooldowns {
  /**
   * The times at which lanes may be entered again: by clock, since a time means nothing on another one, and by lane.
   */
  private readonly ends = new WeakMap<Clock.Clock, Map<string, number>>()

  private endsOf(clock: Clock.Clock): Map<string, number> {
    const ends = this.ends.get(clock) ?? new Map<string, number>()
    this.ends.set(clock, ends)
    return ends
  }

  /** Closes a lane for a time, unless it is closed for longer. */
  note(lane: string, pause: Duration.Duration): Effect.Effect<void> {
    return Effect.clockWith((clock) =>
      Effect.sync(() => {
        const ends = this.endsOf(clock)
        const end = clock.currentTimeMillisUnsafe() + Duration.toMillis(pause)
        ends.set(lane, Math.max(end, ends.get(lane) ?? 0))
      })
    )
  }

  /** The milliseconds until a lane may be entered again, or less than 0. */
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

/** The pauses of this process, shared by every adapter in it. */
const Cooldown: Context.Reference<Cooldowns> = Context.Reference<Cooldowns>("heddle/adapters/Cooldown", {
  defaultValue: () => new Cooldowns()
})
