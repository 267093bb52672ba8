/**
 * The laws of a run as checks on what it left behind: the events of its stream, the result it gave, the thread it
 * handed out, the log of its handlers. A check is pure and gives every violation there is; a lawful run gives none. The
 * laws hold under every policy, so that a check needs to know nothing of how the run was driven.
 *
 * @since 0.1.0
 */
import type * as Event from "../Event.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Policy from "../Policy.ts"
import type * as Thread from "../Thread.ts"
import * as AnswerLaws from "./internal/answerLaws.ts"
import * as CallTexts from "./internal/callTexts.ts"
import * as Fates from "./internal/fates.ts"
import * as Folding from "./internal/folding.ts"
import * as Handlers from "./internal/handlers.ts"
import * as Histories from "./internal/history.ts"
import type { Entry, HandlerOptions, Options, ThreadOptions, Violation } from "./internal/violation.ts"

export type { HandlerOptions, Options, ThreadOptions, Violation } from "./internal/violation.ts"

/**
 * A function that checks the events of a run, with a member for each other thing that a run leaves behind.
 *
 * @category models
 * @since 0.1.0
 */
export interface Checks {
  /** Checks events. Returns every violation, in the order of the laws. */
  (events: ReadonlyArray<Event.Event>, options?: Options): ReadonlyArray<Violation>
  /**
   * Checks that a thread can be sent as it is: it validates, names and ids of calls can be sent, every call is answered
   * once and in call order right behind its message, except those that are `pending`, and no answer lacks its call.
   *
   * **Example** (A thread that no provider takes)
   *
   * ```ts import.meta.vitest
   * import { Message, Thread } from "heddle"
   * import { check } from "heddle/testing"
   *
   * const calls = [Message.toolCall("a", "read"), Message.toolCall("b", "read")]
   * const thread = Thread.fromMessages([Message.assistant("", calls), Message.tool("a", "done")])
   *
   * check.thread(thread).map((violation) => violation.message) // => ["call \"b\" is not answered"]
   * check.thread(thread, { pending: ["b"] }) // => []
   * ```
   */
  readonly thread: (thread: Thread.Thread, options?: ThreadOptions) => ReadonlyArray<Violation>
  /**
   * Checks that the arguments of calls stay as they were, from the log of a {@link Recorder.Recorder} whose `tap` the
   * events passed, read after the run has ended: no event that was emitted has changed, a call is run with what the
   * step tells of it, and its arguments can be written as JSON. A handler that changes its arguments changes its own.
   *
   * **Example** (A tool that hands out the arguments of the thread)
   *
   * ```ts import.meta.vitest
   * import { Chat, Tool } from "heddle"
   * import { check, Recorder, Script } from "heddle/testing"
   * import * as Effect from "effect/Effect"
   * import * as Stream from "effect/Stream"
   *
   * const change = Tool.make("change", {
   *   parameters: { type: "object" },
   *   handler: (args) => Effect.sync(() => Object.assign(args, { n: 2 }))
   * })
   * const sharing = { ...change, parameters: { ...change.parameters, decode: (input: any) => Effect.succeed(input) } }
   * const lawsBrokenBy = (tool: typeof change) =>
   *   Effect.gen(function*() {
   *     const recorder = yield* Recorder.make
   *     const model = Script.layer([
   *       [Script.toolCall("c0", "change", { n: 1 }), Script.finish("tool_calls")],
   *       [Script.text("Done."), Script.finish("stop")]
   *     ])
   *     const run = Chat.stream("go", { tools: [tool] }).pipe(recorder.tap, Stream.runDrain, Effect.provide(model))
   *     return check.calls(yield* Effect.andThen(run, recorder.log)).map(({ law }) => law)
   *   })
   *
   * await Effect.runPromise(lawsBrokenBy(change)) // => []
   * await Effect.runPromise(lawsBrokenBy(sharing)) // => ["calls"]
   * ```
   */
  readonly calls: (log: ReadonlyArray<Entry>) => ReadonlyArray<Violation>
  /**
   * Checks lifetime and concurrency of handlers, from the log of a {@link Recorder.Recorder} whose `handler` or `track`
   * wrapped them, read after the run has ended.
   *
   * **Example** (Two handlers, and one at a time)
   *
   * ```ts import.meta.vitest
   * import { Message, Tool, ToolRunner } from "heddle"
   * import { check, Recorder } from "heddle/testing"
   * import * as Effect from "effect/Effect"
   *
   * const program = Effect.gen(function*() {
   *   const recorder = yield* Recorder.make
   *   const nap = Tool.make("nap", { parameters: {}, handler: recorder.handler(() => Effect.sleep(1)) })
   *   yield* ToolRunner.run([Message.toolCall("a", "nap"), Message.toolCall("b", "nap")], [nap], { maxConcurrency: 2 })
   *   return yield* recorder.log
   * })
   * const log = await Effect.runPromise(program)
   *
   * check.handlers(log, { bound: 2 }) // => []
   * check.handlers(log, { bound: 1 }).map((violation) => violation.law).includes("concurrency") // => true
   * ```
   */
  readonly handlers: (log: ReadonlyArray<Entry>, options?: HandlerOptions) => ReadonlyArray<Violation>
}

/**
 * Checks the events of `Chat.stream` against the laws that events can show: `answers`, `starts`, `order`, `frame`,
 * `fold`, `messages` and `history`. The events of a batch or of a step have no frame: leave out the findings of the law
 * `frame`.
 *
 * **Example** (A run of your own)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { check, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
 * const model = Script.layer([
 *   [Script.toolCall("c0", "ping"), Script.toolCall("c1", "pong"), Script.finish("tool_calls")],
 *   [Script.text("Done."), Script.finish("stop")]
 * ])
 * const events = await Effect.runPromise(
 *   Chat.stream("go", { tools: [ping] }).pipe(Stream.runCollect, Effect.provide(model))
 * )
 *
 * check(events) // => []
 * check(events.filter((event) => event._tag !== "ToolResultEncoded")).map(({ law }) => law).includes("answers")
 * // => true
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const check: Checks = Object.assign(
  (events: ReadonlyArray<Event.Event>, options: Options = {}): ReadonlyArray<Violation> => {
    checkNames("check", options, knownOptions)
    return [
      ...AnswerLaws.order(events, options.isCut === true),
      ...AnswerLaws.answers(events),
      ...Folding.frame(events, options.isCut === true),
      ...Folding.fold(events, options),
      ...Fates.messages(events),
      ...Histories.histories(events)
    ]
  },
  {
    thread: (thread: Thread.Thread, options: ThreadOptions = {}) => {
      checkNames("check.thread", options, knownThread)
      return Histories.history(thread, options)
    },
    calls: CallTexts.violations,
    handlers: (log: ReadonlyArray<Entry>, options: HandlerOptions = {}) => {
      checkNames("check.handlers", options, knownHandlers)
      return Handlers.handlers(log, options)
    }
  }
)

const knownOptions = {
  policy: Values.policyOf(Policy.Policy),
  result: Values.record,
  isCut: Values.flag
} satisfies NamesOf<Options>

const knownThread = { from: Values.whole, pending: Values.texts } satisfies NamesOf<ThreadOptions>

const knownHandlers = {
  bound: Values.countOrNone,
  isExclusive: Values.fn,
  abandoned: Values.texts
} satisfies NamesOf<HandlerOptions>
