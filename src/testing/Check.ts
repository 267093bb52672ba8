/**
 * Checks a run against its laws through what it left behind: stream events, result, thread, handler log. A check is
 * pure and returns every violation; a lawful run has no violations. The laws hold under every policy, so a check need
 * not know how the run was driven.
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
import * as Switches from "./internal/switches.ts"
import * as TypedAnswers from "./internal/typedAnswers.ts"
import type { Entry, HandlerOptions, Options, ThreadOptions, Violation } from "./internal/violation.ts"

export type { HandlerOptions, Options, ThreadOptions, Violation } from "./internal/violation.ts"

/**
 * Checks a run's events, with a member for every other trace of a run.
 *
 * @category models
 */
export interface Checks {
  /** Checks events. Returns every violation, in law order. */
  (events: ReadonlyArray<Event.Event>, options?: Options): ReadonlyArray<Violation>
  /**
   * Checks that a thread can be sent unchanged: it validates, call names and ids can be sent, every call except those
   * `pending` has one answer, in call order right after its message, and every answer has its call.
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
   * Checks that call arguments never change, from the log of a {@link Recorder.Recorder} whose `tap` saw the events,
   * read after the run: no emitted event has changed, a call runs with the arguments its step reports, and JSON can
   * express them. A handler changing its arguments changes only its own copy.
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
   * Checks handler lifetime and concurrency, from the log of a {@link Recorder.Recorder} whose `handler` or `track`
   * wrapped the handlers, read after the run.
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
 * Checks `Chat.stream` events against the laws visible in events: `answers`, `starts`, `order`, `frame`, `fold`,
 * `messages`, `output`, `switches` and `history`. Batch or step events have no frame: ignore their `frame`
 * findings.
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
      ...TypedAnswers.answers(events),
      ...Switches.switches(events),
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
