/**
 * Streams a bridged reply: requested at the first pull, retried while the model has said nothing and a retry may help,
 * and ended after too long a silence. Closing the stream closes everything the library opened.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Pull from "effect/Pull"
import type * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import * as Answer from "../../adapters/internal/answerBody.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import * as Http from "../../adapters/internal/http.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import type * as Events from "../../Event.ts"
import type { NamesOf } from "../../internal/declare/schema.ts"
import * as Values from "../../internal/declare/values.ts"
import * as Json from "../../internal/json.ts"
import type * as Layout from "./layout.ts"
import type * as Part from "./part.ts"
import * as Reader from "./reader.ts"

export type Event = Events.AdapterEvent

type Chunk = Arr.NonEmptyReadonlyArray<Event>

export type PartPull = Pull.Pull<ReadonlyArray<Part.Part>, Adapter.AdapterError>

/** Options common to all bridges. */
export interface Options
  extends Pick<Http.Options, "provider" | "retries" | "retryDelay" | "maxRetryDelay" | "idleTimeout">
{
  /** Texts errors must not contain, such as a provider key that a server may quote. None by default. */
  readonly secrets?: ReadonlyArray<Redacted.Redacted<string>>
}

export const knownOptions = {
  provider: Values.text,
  retries: Values.whole,
  retryDelay: Values.durationOrNone,
  maxRetryDelay: Values.durationOrNone,
  idleTimeout: Values.duration,
  secrets: Values.listOf(
    Values.described(Values.secret, "a Redacted string: Redacted.make(secret)"),
    "Redacted strings: Redacted.make(secret)"
  )
} satisfies NamesOf<Options>

/** One request, ready to be sent. `open` may run again; its scope closes what it opened. */
export interface Exchange {
  readonly owner: Layout.Owner
  readonly origin: Errors.Origin
  readonly settings: Http.Settings
  readonly open: Effect.Effect<PartPull, Http.Failure, Scope.Scope>
}

/** A reply being read, and the effect that reads its next parts. */
interface Reading {
  readonly reader: Reader.Reader
  readonly next: Effect.Effect<ReadonlyArray<Event>>
}

/** Time to wait for the stream's end after the reply's end or failure. */
const afterLast = Duration.seconds(1)

/** Streams the events answering a request. Each run of the stream sends the request anew. */
export const stream = (exchange: Exchange): Stream.Stream<Event, Adapter.AdapterError> =>
  Stream.unwrap(Effect.map(
    Effect.scope,
    (scope) => Stream.fromPull(Effect.sync(() => new Reply(exchange, scope).pull))
  ))

class Reply {
  private readonly exchange: Exchange
  private readonly scope: Scope.Scope
  private reading: Reading | undefined
  private hasEnded = false

  constructor(exchange: Exchange, scope: Scope.Scope) {
    this.exchange = exchange
    this.scope = scope
  }

  readonly pull: Pull.Pull<Chunk, Adapter.AdapterError> = Effect.suspend(() => {
    const { reading } = this
    if (reading === undefined) return this.begin
    if (this.hasEnded) return this.close(reading.reader)
    return Effect.flatMap(
      reading.next,
      (events) => Arr.isReadonlyArrayNonEmpty(events) ? Effect.succeed(events) : this.pull
    )
  })

  private close(reader: Reader.Reader): Pull.Pull<never, Adapter.AdapterError> {
    return reader.failure === undefined ? Cause.done() : Effect.fail(reader.failure)
  }

  /** Begins the reply, retrying until the model says something. */
  private get begin(): Effect.Effect<Chunk, Adapter.AdapterError> {
    return Scope.provide(Http.retried(this.exchange.settings, this.first), this.scope)
  }

  private get first(): Effect.Effect<Chunk, Http.Failure, Scope.Scope> {
    return Effect.gen({ self: this }, function*() {
      const { open, origin, owner, settings } = this.exchange
      const reader = new Reader.Reader(owner, origin, yield* Wire.idMaker)
      this.hasEnded = false
      const parts = yield* Effect.timeoutOrElse(open, {
        duration: settings.idleTimeout,
        orElse: () => Effect.fail(Http.failed(silent(origin, "did not answer within", settings.idleTimeout)))
      })
      const reading = this.readingOf(reader, parts)
      const events: Array<Event> = []
      let hasBegun = false
      while (!hasBegun && !this.hasEnded && reader.failure === undefined) {
        const next = yield* reading.next
        hasBegun = next.some(Answer.isShown)
        events.push(...next)
      }
      if (!hasBegun && reader.failure !== undefined) return yield* Effect.fail(Http.failed(reader.failure))
      this.reading = reading
      return [Answer.started, ...events]
    })
  }

  /** Reads once from the library's stream and interprets the result. */
  private read(parts: PartPull, reader: Reader.Reader): Effect.Effect<ReadonlyArray<Event>> {
    return Pull.matchEffect(parts, {
      onSuccess: (parts) => Effect.sync(() => take(reader, parts)),
      onDone: () => Effect.sync(() => this.end(reader, undefined)),
      onFailure: (cause) => {
        const error = Cause.findErrorOption(cause)
        return Option.isSome(error)
          ? Effect.sync(() => this.end(reader, error.value))
          : Effect.failCause(cause as Cause.Cause<never>)
      }
    })
  }

  /** Creates the reading. It waits less for the stream's end than for parts. */
  private readingOf(reader: Reader.Reader, parts: PartPull): Reading {
    const { origin, settings: { idleTimeout } } = this.exchange
    const read = this.read(parts, reader)
    const next = Effect.suspend(() => {
      const hasSaidAll = reader.isDone || reader.failure !== undefined
      const duration = hasSaidAll ? Duration.min(afterLast, idleTimeout) : idleTimeout
      const late = () => this.end(reader, silent(origin, "was silent for", duration))
      return Effect.timeoutOrElse(read, { duration, orElse: () => Effect.sync(late) })
    })
    return { reader, next }
  }

  private end(reader: Reader.Reader, failure: Adapter.AdapterError | undefined): ReadonlyArray<Event> {
    const out: Array<Event> = []
    this.hasEnded = true
    reader.end(failure, out)
    return out
  }
}

const take = (reader: Reader.Reader, parts: ReadonlyArray<Part.Part>): ReadonlyArray<Event> => {
  const out: Array<Event> = []
  for (const part of parts) reader.read(part, out)
  return out
}

const silent = (origin: Errors.Origin, what: string, duration: Duration.Duration): Adapter.AdapterError =>
  Errors.make(origin, "timeout", `the model ${what} ${Duration.format(duration)}`)

// ---------------------------------------------------------------------------------------------------------------------
// Errors. The provider of a bridged model is unknown, so the error codes of all providers count.

const words: Errors.Words = [
  [/insufficient_(user_)?quota|billing/i, "quota_exceeded"],
  [/context_length|context_size|context_window|too_many_prompt_tokens/i, "context_length_exceeded"],
  [/content_filter|content_policy|ResponsibleAIPolicy/i, "content_filter"],
  [/rate_limit|RateLimitReached|RESOURCE_EXHAUSTED/i, "rate_limited"],
  [/UNAUTHENTICATED|PERMISSION_DENIED/, "authentication_failed"],
  [/UNAVAILABLE|overloaded/, "provider_unavailable"],
  [/DEADLINE_EXCEEDED/, "timeout"]
]

/** Converts an error a library reports, as text or data. `speaker` names the reporter. */
export const errorSaid = (origin: Errors.Origin, words: unknown, speaker: string): Adapter.AdapterError =>
  Option.getOrElse(
    Errors.fromChunk(origin, { error: Json.toJson(words) }, true),
    () => Errors.make(origin, "unknown", `the ${speaker} reported an error without a message`)
  )

/** Returns an answer's text headers, by lowercase name. */
export const headersOf = (headers: unknown): Readonly<Record<string, string>> =>
  Object.fromEntries(
    Object.entries(Wire.object(headers)).flatMap(([name, text]) =>
      typeof text === "string" ? [[name.toLowerCase(), text]] : []
    )
  )

export const originOf = (provider: string, secrets: ReadonlyArray<Redacted.Redacted<string>>): Errors.Origin => ({
  provider,
  secrets,
  requestId: undefined,
  words
})
