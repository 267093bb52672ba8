/**
 * Steps one after the other, until an outcome. It is driven by whoever reads it.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Collector from "../../Collector.ts"
import type * as Event from "../../Event.ts"
import * as Message from "../../Message.ts"
import * as Thread from "../../Thread.ts"
import type { Events } from "../fold/events.ts"
import * as Ending from "../fold/outcome.ts"
import * as Log from "../fold/sharedMessages.ts"
import * as Now from "../now.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Turn from "./runEnvironment.ts"
import * as StepRun from "./stepRun.ts"

/**
 * What a run of steps goes by.
 *
 * @category models
 * @since 0.1.0
 */
export interface Plan<E, R> {
  readonly thread: Thread.Thread
  readonly run: Turn.Run<E, R>
  readonly maxTurns: number
  readonly haltWhen: ((step: Event.StepResult) => boolean | Effect.Effect<boolean, never, R>) | null | undefined
  /** The index of the first step, so that the steps of a run are numbered through. */
  readonly firstStep: number
  /** Whether one more model call, without tools, answers what the turns did not come to. */
  readonly isClosedByAnswer: boolean
  /** What follows the last step. */
  readonly end: (result: Event.ChatResult, run: Turn.Run<E, R>) => Source<E, R>
}

type Source<E, R> = StepRun.Source<E, R>

type EventPull<E, R> = ReturnType<Source<E, R>["next"]>

/**
 * A run of steps. It opens the next one only when somebody asks for what comes after the last one.
 *
 * @category running
 * @since 0.1.0
 */
export const make = <E, R>(plan: Plan<E, R>): Source<E, R> => new ChatRun(plan)

class ChatRun<E, R> implements Source<E, R>, StepRun.Following<E, R> {
  private readonly plan: Plan<E, R>
  private run: Turn.Run<E, R>
  private thread: Thread.Thread
  /** Why the step in progress is the last, which the model is to answer in without tools. */
  private closing: Event.ChatResult["finalized"]
  /** The step in progress, or what follows the last one. */
  private source: Source<E, R> | undefined
  private outcome: Event.Outcome | undefined

  constructor(plan: Plan<E, R>) {
    this.plan = plan
    this.run = plan.run
    this.thread = plan.thread
  }

  /** The fold has them: those of this pass come after those of the one before it. */
  private get steps(): ReadonlyArray<Event.StepResult> {
    return this.run.state.steps.slice(this.plan.firstStep)
  }

  next(): EventPull<E, R> {
    if (this.source !== undefined) return this.source.next()
    return this.outcome === undefined ? this.opening() : this.ending(this.outcome)
  }

  private opening(): EventPull<E, R> {
    const context = Now.services<R>()
    const { ambient: { cancellation, deadline } } = this.run
    // Left by somebody else, while its reader was still asking what comes next.
    if (this.run.running.isStopping) return Cause.done()
    if (deadline !== undefined) this.hurry(deadline, Context.get(context, Clock.Clock).currentTimeMillisUnsafe())
    if (cancellation?.isRequested === true) return this.ending(this.cancelled)
    const stepIndex = this.run.state.steps.length
    const opened = StepRun.open(context, this.run, { thread: this.thread, stepIndex, following: this })
    return Now.flatMap(opened, (step) => {
      this.source = step
      return step.next()
    })
  }

  /**
   * Where the deadline leaves no time for tools, the model is to answer now. One that has passed is seen here as well: code
   * that blocks the thread keeps the timer from firing.
   */
  private hurry({ at, toolsUntil }: Deadline.Deadline, now: number): void {
    if (now >= at) this.run.ambient.cancellation?.request("deadline", Deadline.cause)
    if (now >= toolsUntil && this.run.tools.size > 0) this.close("deadline")
  }

  private close(reason: Event.ChatResult["finalized"]): void {
    this.closing ??= reason
    this.run = Turn.closing(this.run)
  }

  after(ended: StepRun.Ended): EventPull<E, R> {
    this.source = undefined
    return "startError" in ended ? this.notStarted(ended.startError) : this.stepped(ended.isCut)
  }

  /** A later model call could not be made: the run ends with what it has. */
  private notStarted(error: unknown): EventPull<E, R> {
    this.outcome = { _tag: "Failed", error }
    const events: Events = [{ _tag: "Error", error }]
    return Effect.as(Turn.observed(this.run, events), events)
  }

  /** A step that a cancellation cut short ends the run, whatever else it came to. */
  private stepped(isCut: boolean): EventPull<E, R> {
    const step = Collector.toStepResult(this.run.state)
    this.thread = step.thread
    this.run = Turn.unforced(this.run)
    if (step.contextUpdate !== undefined) this.run = Turn.withContext(this.run, step.contextUpdate)
    return Now.flatMap(this.outcomeOf(step, isCut), (outcome) => {
      this.outcome = outcome
      return this.next()
    })
  }

  private outcomeOf(step: Event.StepResult, isCut: boolean): Effect.Effect<Event.Outcome | undefined, never, R> {
    const { firstStep, haltWhen, maxTurns } = this.plan
    const { length } = this.run.state.steps
    const turns = length - firstStep
    const stepIndex = length - 1
    const own = isCut ? this.cancelled : Ending.ofStep(step, stepIndex)
    if (own !== undefined) return Effect.succeed(own)
    if (haltWhen === undefined || haltWhen === null) return Effect.succeed(this.bounded(turns, maxTurns))
    const condition = Now.toEffect(haltWhen(step), "haltWhen", "return a boolean or an Effect")
    return Now.map(Turn.asked(this.run, condition), (isHalted): Event.Outcome | undefined => {
      if (isHalted === undefined) return this.cancelled
      return isHalted ? { _tag: "HaltWhen", haltWhenStepIndex: stepIndex } : this.bounded(turns, maxTurns)
    })
  }

  private get cancelled(): Event.Outcome {
    return { _tag: "Cancelled", reason: this.run.ambient.cancellation?.reason ?? "cancel" }
  }

  /** The end that the bounds of the run bring. A model that calls tools when it was to answer gets no further turn. */
  private bounded(turns: number, maxTurns: number): Event.Outcome | undefined {
    if (this.closing === "deadline") return { _tag: "Cancelled", reason: "deadline" }
    if (turns < maxTurns) return undefined
    if (this.closing !== undefined || !this.plan.isClosedByAnswer) return { _tag: "MaxTurns", maxTurns }
    this.close("max_turns")
    return undefined
  }

  private ending(outcome: Event.Outcome): EventPull<E, R> {
    const { closing: finalized, steps } = this
    const isQuestion = outcome._tag === "AskUser" && (steps.at(-1)?.suspensions ?? []).length <= 1
    const thread = isQuestion ? withQuestion(this.thread, outcome) : this.thread
    const source = this.plan.end(Collector.chatResult({ thread, steps, outcome, finalized }), this.plan.run)
    this.source = source
    return source.next()
  }
}

/**
 * The question stands in the result's thread, so that the user's reply follows it. Where other calls wait as well, their
 * answers are to come first, and nothing may stand between them and the calls.
 */
const withQuestion = (
  thread: Thread.Thread,
  outcome: Extract<Event.Outcome, { readonly _tag: "AskUser" }>
): Thread.Thread =>
  Thread.append(thread, [{
    ...Message.assistant(outcome.pendingQuestion),
    askUser: true,
    toolCallId: outcome.pendingToolCallId
  }])

/**
 * The last event. Handlers that run on are waited for first, so that the result can name those that refuse to stop.
 *
 * @category running
 * @since 0.1.0
 */
export const completed = <E, R>(
  result: Event.ChatResult,
  { ambient: { spending }, running, state }: Turn.Run<E, R>
): Source<E, R> => {
  let isOut = false
  return {
    next: () => {
      if (isOut) return Cause.done()
      isOut = true
      return Now.map(running.stopping(), (abandoned): Events => [
        last(
          { ...result, totalUsage: spending.reported, ...(abandoned.length === 0 ? {} : { abandoned }) },
          state.thread
        )
      ])
    }
  }
}

/** With the messages that its thread has more than the last step, or than what the run began with. */
const last = (result: Event.ChatResult, before: Thread.Thread | undefined): Event.Of<"ChatCompleted"> => {
  const known = before === undefined ? Infinity : Log.length(before)
  return Log.length(result.thread) > known
    ? { _tag: "ChatCompleted", result, messages: Log.list(result.thread).slice(known) }
    : { _tag: "ChatCompleted", result }
}
