/**
 * Scripted adapter: a model replying as a test prescribes. A script is plain data, one list of entries per model call.
 * It plays on the runtime clock, in written order, for every request. One adapter has one cursor: each open plays the
 * next call, and an open past the last call fails.
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

/** Script entries and their constructors. */
export * from "./internal/entry.ts"

/**
 * Makes a cursor at the first call, to share between adapters or keep while rebuilding a layer.
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
 */
export const makeCursor: Effect.Effect<Cursor> = Effect.sync(() => {
  let position = 0
  return { next: Effect.sync(() => position++), position: Effect.sync(() => position) }
})

/**
 * A scripted adapter, with facts for tests.
 *
 * **Details**
 *
 * A call opens when its stream is first pulled, or when `generate` runs; `stream(request)` alone does nothing. Each
 * open advances the cursor, even a failing open, such as an open past the last call or on a preflight error. Only an
 * open refused by `retryUntilCall` does not. An unusable script is a defect at its first open.
 *
 * @category models
 */
export interface Scripted {
  /** Adapter stream. */
  readonly stream: Adapter.Adapter["Service"]["stream"]
  /**
   * Awaits the same call as a whole: the fold of its events, with finish reason `"stop"` unless the script sets its
   * own. It fails on a scripted error; the response to an empty script has `metadata.emptyScript`.
   */
  readonly generate: (request: Adapter.Request) => Effect.Effect<Response.Response, Adapter.AdapterError>
  /** Provides this adapter, with its cursor at the current position. */
  readonly layer: Layer.Layer<Adapter.Adapter>
  /** Number of opened calls, including failed calls. */
  readonly opens: Effect.Effect<number>
  /** Number of ended calls: they ended by themselves, or their reader left. */
  readonly cleanups: Effect.Effect<number>
  /** Requests, one per open. */
  readonly requests: Effect.Effect<ReadonlyArray<Adapter.Request>>
}

/**
 * Makes a scripted adapter. Two adapters share a cursor only if given the same cursor.
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

/**
 * Delays acquisition to the first pull: a channel acquires when started, but a stream here does nothing before it is
 * pulled.
 */
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
 * Provides a new scripted adapter. It starts at the first call each time the layer is built. To continue a script, or
 * to read the received requests, use {@link make} and its `layer`.
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
 */
export const layer = (input: Input): Layer.Layer<Adapter.Adapter> =>
  Layer.effect(Adapter.Adapter, Effect.map(make(input), ({ stream }) => ({ stream })))
