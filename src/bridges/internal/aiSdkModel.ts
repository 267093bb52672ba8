/**
 * A model of the AI SDK while it answers: its promise and its stream as effects. What the model has handed out by the
 * time it is read is read at once, and nothing more is asked of it than one part ahead.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import type * as Adapter from "../../Adapter.ts"
import type * as Errors from "../../adapters/internal/errors.ts"
import type * as Http from "../../adapters/internal/http.ts"
import type * as Json from "../../internal/json.ts"
import * as AiSdkErrors from "./aiSdkErrors.ts"
import * as AiSdkParts from "./aiSdkParts.ts"
import type * as Part from "./part.ts"
import type * as Reply from "./reply.ts"

/**
 * What is needed of a model. `LanguageModelV4`, `LanguageModelV3` and `LanguageModelV2` of `@ai-sdk/provider` are such
 * models, whichever version of that package they come from; the package itself is not needed.
 *
 * @category models
 * @since 0.1.0
 */
export interface LanguageModel {
  readonly specificationVersion: "v2" | "v3" | "v4"
  readonly provider: string
  readonly modelId: string
  readonly supportedUrls?:
    | Readonly<Record<string, ReadonlyArray<RegExp>>>
    | PromiseLike<Readonly<Record<string, ReadonlyArray<RegExp>>>>
  doStream(options: never): PromiseLike<Started>
}

/**
 * What a model answers with: the stream of its parts, and the headers of the provider's answer.
 *
 * @category models
 * @since 0.1.0
 */
export interface Started {
  readonly stream: ReadableStream<unknown>
  readonly response?: { readonly headers?: Readonly<Record<string, string>> }
}

/** What is held of a model: its signal from the start, and its stream once it has answered. */
class Held {
  readonly controller = new AbortController()
  private stream: ReadableStreamDefaultReader<unknown> | undefined
  private isLeft = false

  /** A stream that comes after nobody waits any more is taken from its model at once. */
  take(stream: ReadableStream<unknown>): Ahead | undefined {
    const reader = stream.getReader()
    this.stream = reader
    if (this.isLeft) this.letGo()
    return this.isLeft ? undefined : new Ahead(reader)
  }

  private letGo(): Promise<void> {
    return this.stream?.cancel().then(ignore, ignore) ?? Promise.resolve()
  }

  /** Waits for the stream to let go of what it holds, but not for ever. */
  readonly leave: Effect.Effect<unknown> = Effect.suspend(() => {
    this.isLeft = true
    this.controller.abort()
    return Effect.timeoutOption(Effect.promise(() => this.letGo()), "1 second")
  })
}

const ignore = (): void => {}

/** Asks the model. Closing the scope aborts its request and takes its stream from it. */
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
        const requestId = AiSdkErrors.requestId(response?.headers)
        if (taken !== undefined) resume(Effect.succeed(pull(taken, { ...origin, requestId })))
      }).then(ignore, (rejection: unknown) => resume(rejected(origin, rejection)))
    })
  })

const rejected = (origin: Errors.Origin, rejection: unknown): Effect.Effect<never, Http.Failure> =>
  Effect.flatMap(Clock.currentTimeMillis, (now) => Effect.fail(AiSdkErrors.fromRejection(origin, rejection, now)))

/** A reader, and the read that was begun and has not been used. */
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

  /** Adds what has arrived by now, up to a bound. A read that has to wait is kept for the next time. */
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

/** The parts that have arrived, at least one. Those that tell of errors are read with the time they came at. */
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
    const readError = (error: unknown) => AiSdkErrors.fromUnknown(origin, error, now)
    return arrived.flatMap((part) => AiSdkParts.read(part, readError))
  })
