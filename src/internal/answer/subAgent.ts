/**
 * A tool whose handler is its own run. The run lives in the handler's fiber, so it stops with the handler and takes
 * over its permits and deadline. Its events are the call's progress, and its result is the call's result. If the
 * enclosing run is kept, the nested run is kept too, through services in the handler's fiber.
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import type * as Thread from "../../Thread.ts"
import * as Requests from "../ask/request.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import type * as Schemas from "../declare/schema.ts"
import type * as Declared from "../declare/tool.ts"
import { declarations, toEffect } from "../declare/toolOptions.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import { described } from "./errorFields.ts"
import * as OpenCalls from "./openCalls.ts"

/** Keeps nested runs in their own journals. */
export interface Nesting {
  /** Returns the events of a `Chat.stream` run, recorded. `events` are the same run's events without a record. */
  readonly stream: <E, R>(
    input: Thread.Input,
    options: object,
    events: Stream.Stream<Event.Event, E, R>
  ) => Stream.Stream<Event.Event, E, R>
  /** Returns `true` if a result belongs to a run that continues once its open calls are answered. */
  readonly canGoOn: (result: Event.ChatResult) => boolean
}

/** Recorder for runs started by this code. Set in the handlers of a kept run. */
export const CurrentNesting: Context.Reference<Nesting | undefined> = Context.Reference<Nesting | undefined>(
  "heddle/internal/Nesting",
  { defaultValue: () => undefined }
)

/**
 * A run used as a tool ended without an answer. `reason` is its `haltedReason`; `detail` has its question, its error,
 * or the detail of the rule that ended the run.
 *
 * @category errors
 */
export class ChatFailed extends Schema.TaggedError<ChatFailed>("heddle/Tool/ChatFailed")("ChatFailed", {
  /** `haltedReason` of the run's result, or `"no_result"` for a stream without a result. */
  reason: Schema.String,
  /** The run's question, its error, or the detail from the rule ending the run. */
  detail: Schema.optionalKey(Schema.String)
}) {
  override get message(): string {
    return `the run ended without an answer: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }
}

Json.addError("ChatFailed", ChatFailed)

/**
 * Declaration of a tool whose handler is its own run. Public as `Tool.ChatOptions`.
 *
 * @category options
 */
export interface ChatOptions<P, A, E, R, Fatal = never>
  extends
    Declared.Declarations<P, E | ChatFailed, R, Fatal>,
    Declared.Findable<P, A | ToolOutcomes.AskUser | ToolOutcomes.Halt, R>
{
  /** Returns the run's events, as from `Chat.stream`. */
  readonly chat: (args: Schemas.Type<P>, call: Declared.CallContext) => Stream.Stream<Event.Event, E, R>
  /**
   * Returns the call's result from the run's result. Defaults to the run's `output` as JSON, or else its last text; a
   * run without an answer fails with a `Tool.ChatFailed`.
   */
  readonly result?: (result: Event.ChatResult) => Effect.Effect<A | ToolOutcomes.AskUser | ToolOutcomes.Halt, E, R>
}

const knownOptions = {
  ...declarations,
  chat: Values.fn,
  result: Values.fn
} satisfies NamesOf<ChatOptions<any, any, any, any>>

const detail = (outcome: Event.Outcome): { readonly detail?: string } => {
  if (outcome._tag === "AskUser") return { detail: outcome.pendingQuestion }
  if (outcome._tag === "RuleEnded") {
    const { detail } = outcome
    return detail === undefined ? {} : { detail: typeof detail === "string" ? detail : Json.render(detail) }
  }
  return outcome._tag === "Failed" ? { detail: described(outcome.error).text } : {}
}

const answering: ReadonlySet<Event.Outcome["_tag"]> = new Set(["Completed", "HaltWhen", "Halted"])

/**
 * Returns a run's output or last text. A halt inside that run ends nothing outside. The call waits for that run's open
 * calls, if the run can continue after their answers.
 */
const answer = (
  result: Event.ChatResult,
  toolCallId: string,
  nesting: Nesting | undefined
): Effect.Effect<string | ToolOutcomes.Suspended, ChatFailed> => {
  const { suspensions = [] } = result
  if (suspensions.length > 0 && nesting?.canGoOn(result) === true) {
    return Effect.succeed(ToolOutcomes.suspended(suspensions.map((open) => OpenCalls.risen(toolCallId, open))))
  }
  if ("output" in result) return Effect.succeed(JSON.stringify(result.output))
  const text = result.finalResponse?.outputText ?? ""
  const isAnswer = answering.has(result.outcome._tag) || (result.outcome._tag === "MaxTurns" && text !== "")
  return isAnswer
    ? Effect.succeed(text)
    : Effect.fail(new ChatFailed({ reason: result.haltedReason, ...detail(result.outcome) }))
}

type Delta = Event.Of<"TextDelta"> | Event.Of<"ReasoningDelta">

const isDelta = (event: Event.Event | undefined): event is Delta =>
  event?._tag === "TextDelta" || event?._tag === "ReasoningDelta"

/** Joins deltas read together into one: unread progress is dropped when late, and text must not get lost. */
const joined = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event> => {
  const out: Array<Event.Event> = []
  for (const event of events) {
    const last = out.at(-1)
    if (isDelta(event) && isDelta(last) && last._tag === event._tag && last.id === event.id) {
      out[out.length - 1] = { ...last, delta: last.delta + event.delta }
    } else out.push(event)
  }
  return out
}

const awaited = <E, R>(
  events: Stream.Stream<Event.Event, E, R>,
  call: Declared.CallContext
): Effect.Effect<Event.ChatResult, E | ChatFailed, R> =>
  Effect.suspend(() => {
    let result: Event.ChatResult | undefined
    return Stream.runForEachArray(events, (some) => {
      const completed = some.findLast((event) => event._tag === "ChatCompleted")
      if (completed !== undefined) result = completed.result
      return Effect.forEach(joined(some), (event) => call.progress(event), { discard: true })
    }).pipe(
      Effect.flatMap(() =>
        result === undefined
          ? Effect.fail(new ChatFailed({ reason: "no_result", detail: "the stream had no ChatCompleted" }))
          : Effect.succeed(result)
      )
    )
  })

/** Reports the run's requests as its events, where the enclosing run's requests are shown. */
const shown = <A, E, R>(chat: Effect.Effect<A, E, R>, call: Declared.CallContext): Effect.Effect<A, E, R> =>
  Effect.contextWith((context: Context.Context<R>) => {
    const services = context as Context.Context<never>
    if (Context.get(services, Requests.CurrentListener) === undefined) return chat
    return Effect.provideService(chat, Requests.CurrentListener, {
      within: call.progress,
      tell: (event) => Effect.runSync(call.progress(event))
    })
  })

/**
 * Returns the tool options. A run is bounded by its turns and deadline, so it has no timeout by default. An interrupted
 * nested run has its own journal and continues: the call is retried.
 */
export const options = <P, A, E, R, Fatal>(name: string, given: ChatOptions<P, A, E, R, Fatal>) => {
  checkNames(`Tool.fromChat(${JSON.stringify(name)})`, given, knownOptions)
  const { chat, result, ...declared } = given
  const handler = (args: Parameters<typeof chat>[0], call: Declared.CallContext) =>
    Effect.flatMap(
      shown(awaited(chat(args, call), call), call),
      (ended): Effect.Effect<unknown, E | ChatFailed, R> =>
        result === undefined
          ? Effect.flatMap(CurrentNesting, (nesting) => answer(ended, call.id, nesting))
          : toEffect(result(ended), "result")
    )
  handlers.set(handler, name)
  return {
    timeout: Duration.infinity,
    ...(declared.lookUp === undefined ? { afterCrash: "retry" as const } : {}),
    ...declared,
    handler
  }
}

/** Sub-agent names, by handler. Such a handler has no effects besides its run's. */
const handlers = new WeakMap<object, string>()

/** Returns a sub-agent's name, which its tool may have changed, or `undefined` for any other tool. */
export const nameOf = ({ handler }: Pick<Declared.Any, "handler">): string | undefined =>
  handler === undefined ? undefined : handlers.get(handler)

/** Returns `true` if a tool is a sub-agent. */
export const isSubAgent = (tool: Pick<Declared.Any, "handler">): boolean => nameOf(tool) !== undefined
