/**
 * The scripted adapter: a model that replies as a test prescribes. A script is plain data, one list of entries per
 * model call; it is played on the runtime clock, in the order it was written, for every request. One adapter has one
 * cursor: each open plays the next call, and an open past the last one fails.
 *
 * @since 0.1.0
 */
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as Adapter from "../Adapter.ts"
import * as Collector from "../Collector.ts"
import type * as Event from "../Event.ts"
import type * as Response from "../Response.ts"
import type { Cursor, Entry, Input, Options } from "./internal/entry.ts"
import * as Playback from "./internal/playback.ts"
import * as ScriptOptions from "./internal/scriptOptions.ts"

/**
 * The entries of a script and their constructors.
 */
export * from "./internal/entry.ts"

/**
 * A cursor at the first call, to be shared by several adapters or kept over rebuilds of a layer.
 *
 * **Example** (Two adapters that share a script)
 *
 * ```ts import.meta.vitest
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const cursor = yield* Script.makeCursor
 *   yield* cursor.next
 *   return yield* cursor.position
 * })
 *
 * Effect.runSync(program) // => 1
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const makeCursor: Effect.Effect<Cursor> = Effect.sync(() => {
  let position = 0
  return { next: Effect.sync(() => position++), position: Effect.sync(() => position) }
})

/**
 * A scripted adapter with what a test wants to know of it.
 *
 * **Details**
 *
 * A call is opened when its stream is pulled for the first time, or when `generate` is run; `stream(request)` alone
 * does nothing. Each open moves the cursor on by one, also an open that fails, as one past the last call or on a
 * preflight error does. A script that cannot be used is a defect at its first open.
 *
 * @category models
 * @since 0.1.0
 */
export interface Scripted {
  /** The adapter's stream. */
  readonly stream: Adapter.Adapter["Service"]["stream"]
  /**
   * The same call awaited as a whole: the fold of its events, with finish reason `"stop"` where the script has none. A
   * scripted error fails it; the response to an empty script has `metadata.emptyScript`.
   */
  readonly generate: (request: Adapter.Request) => Effect.Effect<Response.Response, Adapter.AdapterError>
  /** This adapter, with its cursor where it stands. */
  readonly layer: Layer.Layer<Adapter.Adapter>
  /** The number of calls that were opened, those that failed included. */
  readonly opens: Effect.Effect<number>
  /** The number of opened streams that have ended, at their end or because their reader left. */
  readonly cleanups: Effect.Effect<number>
  /** The requests, one per open. */
  readonly requests: Effect.Effect<ReadonlyArray<Adapter.Request>>
}

/**
 * A scripted adapter. Two adapters never share a cursor unless they were given one.
 *
 * **Example** (What the model was asked)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Message } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const program = Effect.gen(function*() {
 *   const model = yield* Script.make([Script.text("Hel"), Script.text("lo"), Script.finish("stop")])
 *   const request: Adapter.Request = { messages: [Message.user("Say hello")], tools: [] }
 *   const events = yield* Stream.runCollect(model.stream(request))
 *   const [asked] = yield* model.requests
 *   return { tags: events.map((event) => event._tag), asked: asked?.messages.map(Message.text) }
 * })
 * const { asked, tags } = await Effect.runPromise(program)
 *
 * tags // => ["MessageStarted", "TextDelta", "TextDelta", "TextCompleted", "MessageCompleted"]
 * asked // => ["Say hello"]
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = (input: Input): Effect.Effect<Scripted> =>
  Effect.gen(function*() {
    const options = ScriptOptions.options(input)
    const cursor = options.cursor ?? (yield* makeCursor)
    const checked = yield* Effect.cached(ScriptOptions.check(options))
    const requests: Array<Adapter.Request> = []
    let cleanups = 0
    const open = Effect.fnUntraced(function*(request: Adapter.Request, calls: typeof ScriptOptions.streamCalls) {
      requests.push(request)
      yield* checked
      if (requests.length < (options.retryUntilCall ?? 1)) return yield* refused()
      const entries = calls(options)[yield* cursor.next]
      if (entries === undefined) return yield* exhausted()
      return entries[0]?._tag === "PreflightError" ? yield* Playback.failure(entries[0]) : entries
    })
    const close = Effect.sync(() => {
      cleanups++
    })
    const stream = (request: Adapter.Request) =>
      afterFirstPull(Channel.acquireUseRelease(
        open(request, ScriptOptions.streamCalls),
        (entries) => Stream.toChannel(Playback.play(entries, options, "emit")),
        () => close
      ))
    return {
      stream,
      generate: (request) =>
        Effect.acquireUseRelease(
          open(request, ScriptOptions.awaitedCalls),
          (entries) =>
            Effect.map(Stream.runCollect(Playback.play(entries, options, "fail")), toResponse(entries, options)),
          () => close
        ),
      layer: Layer.succeed(Adapter.Adapter, { stream }),
      opens: Effect.sync(() => requests.length),
      cleanups: Effect.sync(() => cleanups),
      requests: Effect.sync(() => requests.slice())
    }
  })

const refused = () =>
  new Adapter.AdapterError({ reason: "rate_limited", detail: "scripted error", retryAfterMillis: 0 })

const exhausted = () => new Adapter.AdapterError({ reason: "no_scripted_response", detail: "no scripted response" })

/** A channel acquires when it is started; a stream of ours does nothing before it is pulled. */
const afterFirstPull = <A, E>(channel: Stream.Stream<A, E>["channel"]): Stream.Stream<A, E> =>
  Stream.unwrap(Effect.succeed(Stream.fromChannel(channel)))

const toResponse =
  (entries: ReadonlyArray<Entry>, { requestId }: Options) =>
  (events: ReadonlyArray<Event.AdapterEvent>): Response.Response => {
    const response = Collector.toResponse(
      Collector.applyAll(Collector.initial({ requestId }), events)
    )
    const metadata = entries.length === 0 ? { ...response.metadata, emptyScript: true } : response.metadata
    return { ...response, finishReason: response.finishReason ?? "stop", metadata }
  }

/**
 * A layer with a scripted adapter of its own. It starts at the first call each time the layer is built; for one that
 * continues, or to read the requests it received, use {@link make} and its `layer`.
 *
 * **Example** (A model that calls a tool and then answers)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Schema from "effect/Schema"
 *
 * const double = Tool.make("double", {
 *   parameters: { n: Schema.Finite },
 *   handler: ({ n }) => Effect.succeed(n * 2)
 * })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "double", { n: 21 }), Script.finish("tool_calls")],
 *   [Script.text("It is 42."), Script.finish("stop")]
 * ])
 * const program = Chat.run("Twice 21?", { tools: [double] }).pipe(Effect.provide(model))
 * const result = await Effect.runPromise(program)
 *
 * result.steps[0]?.toolResults[0]?.content // => "42"
 * result.finalResponse?.outputText // => "It is 42."
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (input: Input): Layer.Layer<Adapter.Adapter> =>
  Layer.effect(Adapter.Adapter, Effect.map(make(input), ({ stream }) => ({ stream })))
