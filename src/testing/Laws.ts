/**
 * The laws of a run as checks on what it left behind: the events of its stream, the result it gave, the thread it
 * handed out, the log of its handlers. A check is pure and gives every violation there is; a lawful run gives none. The
 * laws hold under every policy, so that a check needs to know nothing of how the run was driven.
 *
 * @since 0.1.0
 */
import type * as Event from "../Event.ts"
import type * as Thread from "../Thread.ts"
import * as Answers from "./internal/answers.ts"
import * as CallTexts from "./internal/callTexts.ts"
import * as Folding from "./internal/folding.ts"
import * as Handlers from "./internal/handlers.ts"
import * as Histories from "./internal/history.ts"
import type { Entry, HandlerOptions, HistoryOptions, Options, Violation } from "./internal/violation.ts"

export type { HandlerOptions, HistoryOptions, Options, Violation } from "./internal/violation.ts"

/**
 * Holds the events of `Chat.stream` to the laws that events can show: answers, starts, order, frame, fold and history.
 *
 * **Example** (A run of your own)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Laws, Script } from "heddle/testing"
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
 * Laws.check(events) // => []
 * Laws.check(events.filter((event) => event._tag !== "ToolResultEncoded")).map(({ law }) => law).includes("answers")
 * // => true
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const check = (events: ReadonlyArray<Event.Event>, options: Options = {}): ReadonlyArray<Violation> => [
  ...order(events, options),
  ...answers(events),
  ...frame(events, options),
  ...fold(events, options),
  ...histories(events)
]

/**
 * Starts and order of the tool events of any stream: of a batch, of a step, of a run. A `ToolResultEncoded` with
 * `settled: true` may come once after `AskUserRequested`, and, for calls of earlier turns, before anything of the
 * model.
 *
 * **Example** (Events that are twisted)
 *
 * ```ts import.meta.vitest
 * import type { Event } from "heddle"
 * import { Laws } from "heddle/testing"
 *
 * const started: Event.Event = { _tag: "ToolExecutionStarted", id: "c0", name: "ping", arguments: {} }
 *
 * Laws.order([started, started], { isCut: true }).map(({ message }) => message) // => ["call \"c0\" started twice"]
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const order = (
  events: ReadonlyArray<Event.Event>,
  options: Pick<Options, "isCut"> = {}
): ReadonlyArray<Violation> => Answers.order(events, options.isCut === true)

/**
 * One answer per call, for every step that was completed: the calls of its assistant message are those of the model,
 * and each has one tail event or is the caller's. A question that was asked is open, and waits, or is settled.
 *
 * **Example** (A call without an answer)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { Laws, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const reply = [Script.toolCall("c0", "ping"), Script.finish("tool_calls")]
 * const run = Chat.stream("go", { maxTurns: 1 }).pipe(Stream.runCollect, Effect.provide(Script.layer(reply)))
 * const events = await Effect.runPromise(run)
 *
 * Laws.answers(events) // => []
 * Laws.answers(events.filter((event) => event._tag !== "ToolResultEncoded")).length > 0 // => true
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const answers = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => Answers.answers(events)

/**
 * The frame of a run: as many `StepCompleted` as steps in the result, nothing but the error of a step that could not be
 * started behind the last one, and one `ChatCompleted` at the end.
 *
 * **Example** (A run without an end)
 *
 * ```ts import.meta.vitest
 * import { Laws } from "heddle/testing"
 *
 * Laws.frame([]).map(({ message }) => message) // => ["there is no ChatCompleted"]
 * Laws.frame([], { isCut: true }) // => []
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const frame = (
  events: ReadonlyArray<Event.Event>,
  options: Pick<Options, "isCut"> = {}
): ReadonlyArray<Violation> => Folding.frame(events, options.isCut === true)

/**
 * The result of a run is the fold of its events: the same steps, the thread and the response of the last one, the sum
 * of their usage, and an outcome that agrees with them. With `result`, that is the same as well.
 *
 * **Example** (What the stream folds to)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { Laws, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([Script.text("Done."), Script.finish("stop")])
 * const events = await Effect.runPromise(Chat.stream("go").pipe(Stream.runCollect, Effect.provide(model)))
 *
 * Laws.fold(events) // => []
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const fold = (events: ReadonlyArray<Event.Event>, options: Options = {}): ReadonlyArray<Violation> =>
  Folding.fold(events, options)

/**
 * Checks that a thread can be sent as it is: it validates, names and ids of calls can be sent, every call is answered
 * once and in call order right behind its message, except those that are `pending`, and no answer lacks its call.
 *
 * **Example** (A thread that no provider takes)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 * import { Laws } from "heddle/testing"
 *
 * const calls = [Message.toolCall("a", "read"), Message.toolCall("b", "read")]
 * const thread = Thread.fromMessages([Message.assistant("", calls), Message.tool("a", "done")])
 *
 * Laws.history(thread).map((violation) => violation.message) // => ["call \"b\" is not answered"]
 * Laws.history(thread, { pending: ["b"] }) // => []
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const history = (thread: Thread.Thread, options: HistoryOptions = {}): ReadonlyArray<Violation> =>
  Histories.history(thread, options)

/**
 * Every thread that the events hand out can be sent as it is. What the caller put in front of the first step is the
 * caller's.
 *
 * **Example** (Every thread of a run)
 *
 * ```ts import.meta.vitest
 * import { Chat } from "heddle"
 * import { Laws, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([Script.text("Done."), Script.finish("stop")])
 * const events = await Effect.runPromise(Chat.stream("go").pipe(Stream.runCollect, Effect.provide(model)))
 *
 * Laws.histories(events) // => []
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const histories = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Violation> => {
  const steps = events.filter((event) => event._tag === "StepCompleted")
  const from = steps[0] === undefined ? Infinity : Answers.turnStart(steps[0].thread)
  const ofSteps = steps.flatMap((step) => Histories.history(step.thread, { from, pending: Answers.pendingOf(step) }))
  const last = steps.at(-1)
  const pending = last === undefined ? [] : Answers.pendingOf(last)
  const ofResults = events.flatMap((event) =>
    event._tag === "ChatCompleted" ? Histories.history(event.result.thread, { from, pending }) : []
  )
  return [...ofSteps, ...ofResults]
}

/**
 * Checks that the arguments of calls stay as they were, from the log of a {@link Recorder.Recorder} whose `tap` the
 * events passed, read after the run has ended: no event that was emitted has changed, a call is run with what the step
 * tells of it, and its arguments can be written as JSON. A handler that changes its arguments changes its own.
 *
 * **Example** (A tool that hands out the arguments of the thread)
 *
 * ```ts import.meta.vitest
 * import { Chat, Tool } from "heddle"
 * import { Laws, Recorder, Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const change = Tool.make("change", {
 *   parameters: { type: "object" },
 *   handler: (args) => Effect.sync(() => Object.assign(args, { n: 2 }))
 * })
 * const sharing = { ...change, parameters: { ...change.parameters, decode: (input: any) => Effect.succeed(input) } }
 * const check = (tool: typeof change) =>
 *   Effect.gen(function*() {
 *     const recorder = yield* Recorder.make
 *     const model = Script.layer([
 *       [Script.toolCall("c0", "change", { n: 1 }), Script.finish("tool_calls")],
 *       [Script.text("Done."), Script.finish("stop")]
 *     ])
 *     const run = Chat.stream("go", { tools: [tool] }).pipe(recorder.tap, Stream.runDrain, Effect.provide(model))
 *     return Laws.calls(yield* Effect.andThen(run, recorder.log)).map(({ law }) => law)
 *   })
 *
 * await Effect.runPromise(check(change)) // => []
 * await Effect.runPromise(check(sharing)) // => ["calls"]
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const calls = (log: ReadonlyArray<Entry>): ReadonlyArray<Violation> => CallTexts.violations(log)

/**
 * Lifetime and concurrency of handlers, from the log of a {@link Recorder.Recorder} whose `handler` or `track` wrapped
 * them, read after the run has ended.
 *
 * **Example** (Two handlers, and one at a time)
 *
 * ```ts import.meta.vitest
 * import { Message, Tool, ToolRunner } from "heddle"
 * import { Laws, Recorder } from "heddle/testing"
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
 * Laws.handlers(log, { bound: 2 }) // => []
 * Laws.handlers(log, { bound: 1 }).map((violation) => violation.law).includes("concurrency") // => true
 * ```
 *
 * @category checks
 * @since 0.1.0
 */
export const handlers = (
  log: ReadonlyArray<Entry>,
  options: HandlerOptions = {}
): ReadonlyArray<Violation> => Handlers.handlers(log, options)
