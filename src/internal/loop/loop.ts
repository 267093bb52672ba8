/**
 * A run as one state machine. It asks the model, reads the reply while tools may already run, decides on the calls and
 * runs them, and reports the step; then comes the next step, or the end.
 *
 *     Opening ─► Asking ─► Hearing ─► Deciding ─► Working ─► Stepping ─► Finishing ─► Done
 *
 *     Starting   ► its first phase, once all rules are open
 *     Opening    ► Asking; Working in a run beginning with an earlier run's calls;
 *                  Repeating in a run resumed in its open turn;
 *                  Finishing if a rule ends the run;
 *                  Finishing if the run is cancelled, or Deciding after the step's first request
 *     Repeating  ► Deciding, as after reading a reply
 *     Asking     ► Hearing
 *     Hearing    ► Deciding; Pausing, then Opening, if a rule asks the model again;
 *                  Finishing if a later step fails before its first event
 *     Deciding   ► Working; Pausing, then Opening, if a rule asks again after a recorded reply
 *     Working    ► Stepping; Working again, for open calls cancelled by the run's end;
 *                  Opening, or Finishing, after an earlier run's calls
 *     Stepping   ► Opening for the next step; Finishing; Done in a run with one step
 *     Finishing  ► Done
 *
 * Each phase has a method with its name; the methods called from there are verbs.
 *
 * Stream pulls drive the machine: each pull works phase after phase until events are ready. No phase begins between two
 * pulls, and a reader leaving a pull leaves the run. A phase change without waiting takes no step of the reader's
 * fiber.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Pull from "effect/Pull"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import * as Policy from "../../Policy.ts"
import * as Response from "../../Response.ts"
import * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as Settings from "../ask/options.ts"
import * as Requests from "../ask/request.ts"
import * as Plan from "../decide/plan.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as EventJson from "../fold/eventJson.ts"
import * as Fold from "../fold/fold.ts"
import * as Outcomes from "../fold/runOutcome.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import { type Ending, type Heard, isEvents, ReplyReader } from "../hear/replyReader.ts"
import * as Batches from "../run/batch.ts"
import * as RunJournal from "../run/runJournal.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Inherited from "../stop/inherited.ts"
import { CurrentHandler, CurrentRunning, type Driver, Running, Worker } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"
import * as Rules from "./rules.ts"
import type * as Pulled from "./scopedPull.ts"
import * as Turns from "./turns.ts"
import * as Typed from "./typed.ts"

// The options of a run.

/** Events a consumer wants to see. The fold takes in every event. */
export interface View<R> {
  /** `true` to emit text and reasoning deltas. The result does not depend on this setting. Defaults to `true`. */
  readonly emitTextDeltas?: boolean
  /** `true` to emit call deltas. The result does not depend on this setting. Defaults to `true`. */
  readonly emitToolDeltas?: boolean
  /** `true` to emit the provider's own chunks. Chunks with usage are always emitted. Defaults to `false`. */
  readonly includeRawChunks?: boolean
  /**
   * Receives every event, in order, before the three options above apply. The run waits for a returned effect. None by
   * default.
   */
  readonly onEvent?: (event: Event.Event) => Effect.Effect<void, never, R> | void
}

/** Step options. Public as `Step.Options`. */
export interface StepOptions<E, R>
  extends Settings.RunnerOptions<E, R, any>, Requests.ModelOptions, View<R>, Turns.OfStep<E, R>
{
  readonly tools?: ReadonlyArray<Tool.Any>
  readonly mode?: "auto" | "manual"
}

/** Options for a run with several steps. Public as `Chat.Options`. A step ignores the options about several steps. */
export interface ChatOptions<E, R> extends StepOptions<E, R>, Turns.OfChat<E, R> {
  readonly agent?: Telemetry.Agent | undefined
}

/** Parts of a run. */
interface Parts<E, R> {
  readonly view: View<R>
  readonly thread: Thread.Thread
  readonly base: Rules.Ask
  readonly rules: Rules.Rules<E, R>
  /** Run scope. Closing it closes the rules. */
  readonly scope: Scope.Scope
  /** Tools the model cannot be offered. */
  readonly leftOut: ReadonlyArray<ToolOptions.LeftOut>
  readonly running: Running
  readonly ambient: Inherited.Ambient
  /** Span, if the run is observed. */
  readonly span: Telemetry.Run | undefined
  /** `true` for a run with several steps. */
  readonly isChat: boolean
  /** Start and journal of a recorded run. */
  readonly recorded: RunJournal.Recorded | undefined
}

// Phases of a run.

/**
 * The phase reading the model's reply. Calls started before its end run in a batch beside it. A cancellable run has
 * such a batch from the start, since a cancellation wakes the reader through its batch.
 */
interface Hearing<E> {
  readonly _tag: "Hearing"
  readonly reply: Reply
  batch: Batches.Batch<E> | undefined
  /** `true` while a call of the reply may still start early; `hasStarted` is `true` once any has started. */
  mayStart: boolean
  hasStarted: boolean
}

/** The reply's reader. A read returns the next events of the stream. */
type Reply = ReplyReader<Arr.NonEmptyReadonlyArray<Event.Event>, any, any>

/**
 * The phase running a turn's calls: those in the plan, or, once `ended` is known, those cancelled by the run's end.
 */
interface Working<E> {
  readonly _tag: "Working"
  readonly response: Response.Response
  readonly plan: Plan.Plan
  readonly batch: Batches.Batch<E> | undefined
  readonly ended: Plan.Ended | undefined
}

/** A run's phase, in which its next pull begins. */
type Phase<E> =
  /** Opens the rules. */
  | { readonly _tag: "Starting"; readonly first: Phase<E> }
  /** Opens the next step. */
  | { readonly _tag: "Opening" }
  /** Asks the model. */
  | { readonly _tag: "Asking" }
  /** Asks the model again after some milliseconds. */
  | { readonly _tag: "Pausing"; readonly millis: number }
  /** Repeats the reply of the open turn a run is resumed in. */
  | { readonly _tag: "Repeating"; readonly turn: RunJournal.Turn }
  | Hearing<E>
  /** Decides on the calls after the reply. The batch belongs to its early calls. */
  | { readonly _tag: "Deciding"; readonly batch: Batches.Batch<E> | undefined }
  | Working<E>
  /** Decides the next phase after a step, completed or cut short by a cancellation. */
  | { readonly _tag: "Stepping"; readonly isCut: boolean }
  /** Produces the result of a run with a known outcome. The suspensions belong to an earlier turn. */
  | {
    readonly _tag: "Finishing"
    /** Typed answer, if any. */
    readonly output?: Schema.Json
    readonly outcome: Event.Outcome
    readonly suspensions?: ReadonlyArray<Event.Suspension>
  }
  | { readonly _tag: "Done" }

/** The current step, with resources closed at its end. */
interface Step<E> {
  readonly index: number
  readonly batches: Array<Batches.Batch<E>>
  reply: Reply | undefined
  /** Spans of the step and its model call, if the run is observed. */
  spans: Telemetry.Step | undefined
  /** Number of requests so far, including those before a crash. */
  attempt: number
}

/** Returns the error for a reply claiming a tool call without any. */
const withoutCall = (): Adapter.AdapterError =>
  new Adapter.AdapterError({
    reason: "malformed_response",
    detail: "the finish reason of the reply is tool_calls, and the reply has no call"
  })

const stepAt = <E>(index: number, attempt = 0): Step<E> => ({
  index,
  batches: [],
  reply: undefined,
  spans: undefined,
  attempt
})

type Events = ReadonlyArray<Event.Event>

/** Events of a phase, or `undefined` if the next phase follows at once. The phase sets `Loop.phase`. */
type Emitted<E, R> = Effect.Effect<Events | undefined, Adapter.AdapterError | E | Cause.Done, R>

type EventPull<E, R> = Pull.Pull<Arr.NonEmptyReadonlyArray<Event.Event>, Adapter.AdapterError | E, void, R>

const noEvents: Events = []

/** The machine driving a run, with its current phase. */
class Loop<E, R> implements Driver {
  private readonly parts: Parts<E, R>
  /** All events folded. Results are read from here. */
  private readonly state: Fold.State
  private phase: Phase<E> = { _tag: "Opening" }
  private step: Step<E> = stepAt(0)
  private thread: Thread.Thread
  /** Request of each step before rules change it, with context updates from handlers. */
  private base: Rules.Ask
  /** Request of the current step. */
  private ask: Rules.Ask
  /** The rules, and their services for handlers. */
  private rules: Rules.Rules<E, R> = []
  private services: Context.Context<never> | undefined
  /** `true` if a rule hears reply events. */
  private hears = false
  /** `true` if the model may answer by a tool. */
  private readonly isByTool: boolean
  /** Rule notes on the current step, and on whole steps. */
  private noted: Rules.Notes = Rules.noNotes
  private readonly notes: Array<Rules.Notes> = []
  /** Unrecorded entries of `noted`, and unrecorded rule messages. */
  private unrecorded: Rules.Notes = Rules.noNotes
  private introduced: ReadonlyArray<Message.Message> = []
  /** Rule messages at the start of a resumed run. */
  private takenUp: ReadonlyArray<Message.Message> = []
  /** Events of settled calls, until shown. */
  private settled: Events
  /** The open turn a run begins in, until its calls are decided. */
  private turn: RunJournal.Turn | undefined
  /** Reason to end the run with the open turn it begins in, while its calls are worked. */
  private ends: RunJournal.Ends | undefined
  /** An earlier run's turn this run begins in, until its calls are worked. */
  private earlier: RunJournal.Earlier | undefined
  private readonly hadEarlier: boolean
  /** Request of the reply being read, if the journal records times. */
  private request: RunJournal.Requested | undefined
  /** The reading fiber's services at its latest pull. */
  private context: Context.Context<R> = Context.empty() as Context.Context<R>

  constructor(parts: Parts<E, R>) {
    const { ambient, base, running, thread } = parts
    const { policy, requestId } = base.settings
    this.parts = parts
    this.state = Fold.initial(policy, { thread, requestId })
    this.thread = thread
    this.base = base
    this.ask = base
    this.isByTool = Typed.isByTool(base.runTools)
    this.useRules(parts.rules)
    ambient.spending.of(this.state)
    running.loop = this
    const { start } = parts.recorded ?? {}
    this.settled = start?.settled ?? noEvents
    this.turn = start?.turn
    this.earlier = start?.earlier
    this.hadEarlier = start?.earlier !== undefined
    if (start !== undefined) this.takeUp(start)
    if (parts.rules.some(({ open }) => open !== undefined)) this.phase = { _tag: "Starting", first: this.phase }
  }

  /**
   * Resumes the run after its whole steps. What follows the last step is decided again, unless the next step's request
   * or reply is recorded.
   */
  private takeUp({ attempt, introduced, noted, spent, steps, turn }: RunJournal.Start): void {
    for (const { notes, result: { contextUpdate } } of steps) {
      if (contextUpdate !== undefined) this.base = withContext(this.base, contextUpdate)
      this.notes.push(notes as Rules.Notes)
    }
    Fold.takeUp(this.state, steps.map(({ result }) => result))
    // A recorded reply's request was made, even if no rule said anything about it then.
    this.step = stepAt(steps.length, turn === undefined ? attempt : Math.max(attempt, 1))
    this.noted = noted as Rules.Notes
    this.state.spent = spent
    if (introduced > 0) {
      this.takenUp = SharedMessages.since(this.thread, SharedMessages.length(this.thread) - introduced)
      this.state.thread = SharedMessages.without(this.thread, introduced)
    }
    if (steps.length === 0 || attempt > 0 || turn !== undefined) return
    const { done, halt, response } = Fold.toStepResult(this.state)
    // A step ended neither by its reply nor by a halt was cut short by a cancellation.
    const isCut = done && halt === undefined && !Fold.isDone(this.base.settings.policy, response)
    this.phase = { _tag: "Stepping", isCut }
  }

  /** Returns the run's place for its rules. `notes` determine whether this is its last step. */
  private at(noted = this.noted, notes = noted): Rules.At {
    const { id: requestId, parts: { recorded }, state: { steps }, step, thread, turn } = this
    return {
      requestId,
      thread,
      steps,
      stepIndex: step.index,
      attempt: step.attempt,
      notes: this.notes,
      noted,
      kept: (recorded?.start.kept ?? Rules.noNotes) as Rules.Notes,
      last: Rules.lastIn(notes),
      isRepeated: turn !== undefined
    }
  }

  /** Pulls the next events in a step of the reading fiber, with its services. */
  readonly next = (context: Context.Context<R>): EventPull<E, R> =>
    this.step.spans === undefined ? this.resumed(context) : this.step.spans.over(Effect.contextWith(this.resumed))

  private readonly resumed = (context: Context.Context<R>): EventPull<E, R> => {
    this.context = context
    return this.goOn(noEvents)
  }

  /** Works phase after phase until events are ready or it must wait. `before` is emitted with these events. */
  private goOn(before: Events): EventPull<E, R> {
    const { parts: { running }, phase } = this
    if (running.isLeft) return Cause.done()
    if (phase._tag !== "Hearing") return this.proceed(this.advance(phase), before)
    if (phase.batch !== undefined) return this.hearing(phase, phase.batch, before)
    // Most pulls read from a model without a batch.
    return isNonEmpty(before) ? Effect.succeed(before) : phase.reply.next(this.context)
  }

  private proceed(emitted: Emitted<E, R>, before: Events): EventPull<E, R> {
    return Effect.flatMapEager(
      emitted,
      (events) => events === undefined ? this.goOn(before) : this.emit(events, before)
    )
  }

  /** Continues after an effect that may have waited, unless the run ended meanwhile from outside its pull. */
  private after<A, E1, R1, B, E2, R2>(
    waited: Effect.Effect<A, E1, R1>,
    next: (value: A) => Effect.Effect<B, E2, R2>
  ): Effect.Effect<B, E1 | E2 | Cause.Done, R1 | R2> {
    return Effect.flatMapEager(
      waited,
      (value): Effect.Effect<B, E2 | Cause.Done, R2> => this.parts.running.isLeft ? Cause.done() : next(value)
    )
  }

  private advance(phase: Exclude<Phase<E>, Hearing<E>>): Emitted<E, R> {
    switch (phase._tag) {
      case "Starting":
        return this.starting(phase.first)
      case "Opening":
        return this.opening()
      case "Repeating":
        return this.repeating(phase.turn)
      case "Asking":
        return this.asking()
      case "Pausing":
        return this.pausing(phase.millis)
      case "Deciding":
        return this.deciding(phase.batch)
      case "Working":
        return this.working(phase)
      case "Stepping":
        return this.stepping(phase.isCut)
      case "Finishing":
        return this.finishing(phase)
      case "Done":
        return Cause.done()
    }
  }

  /** Sets the next phase, which begins once the events are emitted. */
  private become(phase: Phase<E>, events?: Events): Emitted<E, R> {
    this.phase = phase
    return Effect.succeed(events)
  }

  /** Folds events, and emits those the consumer wants. */
  private emit(events: Events, before: Events): EventPull<E, R> {
    if (this.parts.running.isLeft) return Cause.done()
    Fold.apply(this.state, events)
    return this.emitFolded(events, before)
  }

  /** Emits folded events. An observer sees them before anything follows. */
  private emitFolded(events: Events, before: Events): EventPull<E, R> {
    const { recorded, running, view } = this.parts
    running.moved?.()
    const startable = this.takeStartable(events)
    const visible = before.length === 0 ? shown(view, events) : before.concat(shown(view, events))
    const journal = recorded?.journal
    if (journal?.asked !== undefined) this.noteAsked(journal.asked, events)
    const report = journal && events.findLast(isReported)
    const reported = journal && report && (() => this.reported(journal, report, visible))
    if (!isObserved(view)) return reported === undefined ? this.showStarting(startable, visible) : reported()
    return this.after(observed(view, running, this.id, events), () => {
      if (reported !== undefined) return reported()
      this.startEarly(startable)
      return this.show(visible)
    })
  }

  /** Notes the calls complete in the reply. */
  private noteAsked(asked: NonNullable<RunJournal.Journal["asked"]>, events: Events): void {
    for (const event of events) {
      if (event._tag === "ToolCallCompleted" && event.replayed !== true) asked(event.id, this.now)
    }
  }

  private get now(): number {
    return Context.get(this.context, Clock.Clock).currentTimeMillisUnsafe()
  }

  /** Reports a whole reply, or the end of a step or run, before the reader sees the event. */
  private reported(journal: RunJournal.Journal, event: Event.Event, visible: Events): EventPull<E, R> {
    const { parts: { ambient: { spending }, isChat }, rules, state, state: { steps }, step: { index } } = this
    switch (event._tag) {
      case "StepCompleted": {
        const step = {
          result: Fold.toStepResult(state),
          index: steps.length - 1,
          nestedUsage: spending.nested,
          kept: isChat ? undefined : Rules.keptBy(rules, this.at())
        }
        return this.after(journal.step(event, step), () => this.show(visible))
      }
      case "ChatCompleted":
        return this.after(journal.ended(event), (ended) => this.show(visible.slice(0, -1).concat([ended])))
      default:
        return this.after(journal.replied(Fold.toResponse(state), index), () => this.show(visible))
    }
  }

  /**
   * Starts calls, and emits their immediate events together with the starting event. A step's end is emitted with its
   * last answer. Both save a pull. An earlier turn's last answer is emitted alone: the model is asked next, which takes
   * time.
   */
  private showStarting(startable: ReadonlyArray<Plan.Decode>, visible: Events): EventPull<E, R> {
    const early = this.startEarly(startable)
    if (early.length > 0) return this.emit(early, visible)
    const { earlier, phase } = this
    const isStepOver = earlier === undefined && phase._tag === "Working" && phase.batch?.isAtEnd === true
    return isStepOver ? this.goOn(visible) : this.show(visible)
  }

  private show(visible: Events): EventPull<E, R> {
    return isNonEmpty(visible) ? Effect.succeed(visible) : Effect.contextWith(this.next)
  }

  private get id(): string {
    return this.ask.settings.requestId
  }

  private get isCancelled(): boolean {
    return this.parts.ambient.cancellation?.isRequested === true
  }

  private get cancelled(): Event.Outcome {
    return { _tag: "Cancelled", reason: this.parts.ambient.cancellation?.reason ?? "cancel" }
  }

  private opening(): Emitted<E, R> {
    const { base, earlier, parts, rules, settled, turn } = this
    if (settled.length > 0) {
      this.settled = []
      return Effect.succeed(settled)
    }
    if (earlier !== undefined) return this.beginEarlier(earlier)
    if (parts.isChat && turn === undefined) {
      this.checkDeadline()
      if (this.isCancelled) return this.unasked()
    }
    const asked = Rules.asked(rules, base, this.at(), this.ruled)
    const then = Effect.mapEager(asked, (prepared) => () => this.prepare(prepared))
    return this.after(
      Effect.catchEager(then, (error) => Effect.succeed(() => this.endUnheard([{ _tag: "Error", error }], error))),
      (follow) => follow()
    )
  }

  /** Opens the rules with the run, which fails if a rule cannot be opened. */
  private starting(first: Phase<E>): Emitted<E, R> {
    const { ask: { settings: { requestId, sessionId } }, parts: { running }, thread } = this
    const inside = this.parts.recorded?.start.inside as Rules.Run["inside"]
    // The response's usage includes discarded replies in the same step.
    const heard = () => ({ ...Fold.toResponse(this.state), usage: this.state.usage })
    const run = {
      requestId,
      sessionId,
      thread,
      kept: this.at().kept,
      heard,
      ...(inside === undefined ? {} : { inside })
    }
    const scope = running.opened = Scope.makeUnsafe()
    const opened = Rules.opened(this.rules, run, (name, effect) => this.ruled(name, Scope.provide(effect, scope)))
    return this.after(opened, (rules) => {
      this.useRules(rules)
      return this.become(first)
    })
  }

  private useRules(rules: Rules.Rules<E, R>): void {
    this.rules = rules
    this.services = handlersOf(rules)
    this.hears = rules.some(({ hear }) => hear !== undefined)
  }

  /** Ends a step before its request. A step with an earlier request ends with an empty reply. */
  private unasked(): Emitted<E, R> {
    const isBegun = this.step.attempt > 0 || !this.parts.isChat
    return this.become(
      isBegun ? { _tag: "Deciding", batch: undefined } : { _tag: "Finishing", outcome: this.cancelled }
    )
  }

  /** Takes the request made by the rules, once their additions are recorded. */
  private prepare(prepared: Rules.Prepared<R> | Rules.End | undefined): Emitted<E, R> {
    const { turn } = this
    // The reply is recorded: it was requested as noted, and its calls are decided even after a stop.
    if (turn !== undefined) {
      if (prepared?._tag === "Ask") this.ask = prepared.ask
      return this.openStep({ _tag: "Repeating", turn })
    }
    if (prepared === undefined) return this.unasked()
    if (prepared._tag === "End") {
      if (!this.parts.isChat) {
        // A step's result has no outcome.
        return this.endUnheard([], new Adapter.AdapterError(Requests.refusedBy(prepared.outcome)))
      }
      return this.after(this.closeStep(), () => this.become({ ...prepared, _tag: "Finishing" }))
    }
    const { ask, delivery, messages, notes, recorded } = prepared
    if (delivery?.take() === false) return this.become({ _tag: "Opening" })
    this.ask = ask
    const { introduced, noted, thread, unrecorded } = this
    this.note(notes)
    this.introduce(messages)
    const isToRecord = this.unrecorded !== Rules.noNotes || this.introduced.length > 0
    if (!isToRecord && recorded.length === 0) return this.openStep({ _tag: "Asking" })
    return this.after(this.record(isToRecord, delivery), (isRecorded) => {
      if (!isRecorded && (delivery === undefined || this.isCancelled)) return this.unasked()
      if (!isRecorded) {
        // A message was withdrawn before its delivery was durable: the rules are asked again.
        Object.assign(this, { introduced, noted, thread, unrecorded })
        return this.become({ _tag: "Opening" })
      }
      const told = Effect.forEach(recorded, ([name, effect]) => this.ruled(name, effect), { discard: true })
      return this.after(told, () => this.openStep({ _tag: "Asking" }, delivery?.events))
    })
  }

  /**
   * Records the rules' additions to the next request, in a recorded run. Returns `false` if the request must not be
   * made.
   */
  private record(isToRecord: boolean, delivery: Rules.Delivery | undefined): Effect.Effect<boolean> {
    const { introduced: messages, parts: { recorded }, state: { spent }, step: { attempt, index }, unrecorded } = this
    if (!isToRecord) return Effect.succeed(true)
    this.unrecorded = Rules.noNotes
    this.introduced = []
    const delivered = delivery?.kept ?? []
    const prepared = { stepIndex: index, attempt: attempt + 1, notes: unrecorded, messages, spent, delivered }
    return recorded?.journal.prepares(prepared) ?? Effect.succeed(true)
  }

  /** Records that a whole reply is discarded: its calls are recorded, too. */
  private discard(): Effect.Effect<void> {
    const { parts: { recorded }, state: { spent, usage }, step: { attempt, index }, unrecorded: notes } = this
    this.unrecorded = Rules.noNotes
    const used = Response.sumUsage([spent, usage])
    return recorded?.journal.discarded({
      stepIndex: index,
      attempt,
      notes,
      messages: [],
      spent: used,
      delivered: []
    }) ?? Effect.void
  }

  /** Adds rule notes to the current step. */
  private note(notes: Rules.Notes): void {
    this.noted = Rules.both(this.noted, notes)
    this.unrecorded = Rules.both(this.unrecorded, notes)
  }

  /** Adds rule messages to the thread. */
  private introduce(messages: ReadonlyArray<Message.Message> | undefined): void {
    if (messages === undefined || messages.length === 0) return
    this.thread = Thread.append(this.thread, messages)
    this.introduced = [...this.introduced, ...messages]
  }

  /** Opens a step's span, before its first request or when its recorded reply is repeated. */
  private openStep(phase: Phase<E>, events?: Events): Emitted<E, R> {
    const { context, id, parts, step } = this
    this.phase = phase
    if (step.spans !== undefined) return Effect.succeed(events)
    const tracing = parts.span === undefined ? Telemetry.tracing(context) : parts.span.tracing(context)
    if (tracing === undefined) return Effect.succeed(events)
    step.spans = new Telemetry.Step(tracing, id, step.index)
    // Unlike `undefined`, an empty list makes the stream pull again, under the span.
    return Effect.succeed(events ?? [])
  }

  /** Checks for a passed deadline: code blocking the thread delays its timer. */
  private checkDeadline(): void {
    const { cancellation, deadline } = this.parts.ambient
    if (deadline === undefined) return
    if (this.now >= deadline.at) cancellation?.request("deadline", Deadline.cause)
  }

  /** Works an earlier turn's settled calls. No policy fails the turn because of these calls. */
  private beginEarlier({ calls: recorded }: RunJournal.Earlier): Emitted<E, R> {
    const { base, base: { settings } } = this
    const policy = { ...settings.policy, unknownTool: "answer" } as const
    this.ask = { ...base, settings: { ...settings, policy, approved: new Set(recorded.keys()) } }
    const calls = Array.from(recorded.values(), ({ toolCall }) => toolCall)
    const plan = { calls, manual: [], jobs: Plan.earlier(recorded, this.ask, this.refusal) }
    return this.openWork({ ...Fold.toResponse(this.state), toolCalls: calls }, plan, undefined, undefined, undefined)
  }

  /** Reason no call of an earlier turn may begin, if any. */
  private get refusal(): string | undefined {
    const ends = this.parts.recorded?.start.ends
    if (ends !== undefined) return `${RunJournal.endOf(ends)} before it was resumed`
    return this.isCancelled ? runCancelled : undefined
  }

  /** Leaves an earlier turn's calls: the run ends with them, or continues with its first step. */
  private completeEarlier(
    { isLast }: RunJournal.Earlier,
    calls: ReadonlyArray<Message.ToolCall>,
    { halt: decided, suspensions }: Plan.Ended
  ): Emitted<E, R> {
    const { state } = this
    this.earlier = undefined
    const isCut = suspensions.length === 0 && this.isCancelled
    const halt = decided?.haltedReason === "ask_user" && suspensions.length === 0 ? Fold.halt(state) : decided
    return this.after(this.leave(Exit.void), () => {
      this.step = stepAt(0, this.step.attempt)
      const { thread = this.thread } = state
      // Rule messages for the next request are recorded after the answers.
      this.thread = SharedMessages.appended(thread, this.takenUp)
      const contextUpdate = state.tools.contextUpdate(calls.map(({ id }) => id))
      if (contextUpdate !== undefined) this.base = withContext(this.base, contextUpdate)
      // The answers are in the thread, behind their calls.
      const step = {
        response: Fold.toResponse(state),
        thread,
        messages: [],
        mode: "auto",
        manualToolCalls: []
      } as const
      const isDone = isCut || halt !== undefined
      if (!this.parts.isChat) {
        const event = Outcomes.stepCompleted(step, false, isCut, halt, suspensions)
        return this.become({ _tag: "Stepping", isCut }, [event])
      }
      Fold.foldOpening(state)
      if (!isDone && !isLast && suspensions.length === 0) return this.become({ _tag: "Opening" })
      const own = Fold.stepResultOf({ ...step, toolResults: [], done: isDone, halt, suspensions, contextUpdate })
      const ended = isCut ? this.cancelled : Outcomes.ofStep(own, 0)
      return this.become({
        _tag: "Finishing",
        outcome: ended ?? { _tag: "Completed", finishReason: null },
        suspensions
      })
    })
  }

  /** Repeats the recorded reply of the open turn: its calls are decided from their table. */
  private repeating(turn: RunJournal.Turn): Emitted<E, R> {
    return this.become({ _tag: "Deciding", batch: undefined }, turn.events)
  }

  private pausing(millis: number): Emitted<E, R> {
    const slept = millis > 0 ? Effect.sleep(millis) : Effect.void
    const waited = Cancellation.orElse(slept, this.parts.ambient.cancellation, () => undefined)
    return Effect.flatMapEager(waited, () => this.become({ _tag: "Opening" }))
  }

  private asking(): Emitted<E, R> {
    const {
      id,
      parts: { ambient, recorded, running },
      ask: { adapter, attributes, mode, settings, system, template, tools, view },
      step,
      thread
    } = this
    step.attempt++
    const fibers = {
      // `hangUp` closes the open connection when the run is asked to stop.
      reading: new Worker(running, {
        kind: "adapter",
        id,
        name: "stream",
        onSoftStop: "unaffected",
        endsOnFailure: true
      }),
      closing: new Worker(running, {
        kind: "adapter",
        id,
        name: "close",
        onSoftStop: "grace",
        once: true,
        isUninterruptible: true
      })
    }
    const run = { requestId: id, stepIndex: step.index, sessionId: settings.sessionId }
    const request = () => ({
      ...template,
      messages: Requests.messages(system, view ?? SharedMessages.list(thread)),
      run
    })
    const hear = (heard: Heard): EventPull<E, R> =>
      isEvents(heard) ? this.emitReply(heard, noEvents) : this.proceed(this.endReply(phase, heard), noEvents)
    const open = () => {
      const admitted = recorded === undefined ? Effect.void : recorded.journal.admits()
      const stream = Exit.isExit(admitted)
        ? this.sent(adapter, request())
        : Stream.unwrap(Effect.map(admitted, () => this.sent(adapter, request())))
      const { sessionId } = settings
      return step.spans?.asked(stream, { adapter, sampling: template, sessionId, request, attributes }) ?? stream
    }
    const reply = step.reply = new ReplyReader(fibers, this.context, open, hear)
    const mayStart = mode === "auto" &&
      Array.from(tools.values()).some((tool) => Plan.mayStartEarly(tool, settings.policy))
    // A cancellation can wake the reader through the batch, even while the connection opens.
    const batch = ambient.cancellation === undefined ? undefined : this.openBatch(Infinity)
    const phase: Hearing<E> = { _tag: "Hearing", reply, batch, mayStart, hasStarted: false }
    Fold.beginReply(this.state, thread)
    return this.become(phase)
  }

  /** Sends a request, and reports it to the journal and the listener. */
  private sent(
    adapter: Adapter.Service,
    request: Adapter.Request
  ): Stream.Stream<Event.AdapterEvent, Adapter.AdapterError> {
    const { context, parts: { recorded }, step: { attempt, index: stepIndex } } = this
    const { model = adapter.model } = request
    const { provider } = adapter
    const requested = recorded?.journal.requested
    if (requested !== undefined) requested(this.request = { at: this.now, first: undefined, attempt, model, provider })
    const listener = Context.get(context, Requests.CurrentListener)
    // A run inside a handler other than a sub-agent is not shown, and neither are its requests.
    if (listener === undefined || listener.within !== Context.get(context, CurrentHandler)?.context.progress) {
      return adapter.stream(request)
    }
    listener.tell({
      _tag: "RequestStarted",
      stepIndex,
      attempt,
      ...(model === undefined ? {} : { model }),
      ...(provider === undefined ? {} : { provider })
    })
    return Stream.provideService(
      adapter.stream(request),
      Requests.RetryListener,
      (retried) => listener.tell({ _tag: "RequestRetried", stepIndex, attempt, ...retried })
    )
  }

  /** Takes the next events from the model or the batch. */
  private hearing(phase: Hearing<E>, batch: Batches.Batch<E>, before: Events): EventPull<E, R> {
    if (!batch.isEmpty) return this.proceed(batch.take, before)
    if (this.isCancelled) return this.proceed(this.endReply(phase, { _tag: "Ended" }), before)
    const heard = phase.reply.listen(this.context, () => batch.wake())
    if (heard === undefined) return this.proceed(batch.take, before)
    return isEvents(heard) ? this.emitReply(heard, before) : this.proceed(this.endReply(phase, heard), before)
  }

  /** Folds reply events, naming their calls, and emits each with events added by rules. */
  private emitReply(events: Events, before: Events): EventPull<E, R> {
    const { hears, parts: { running }, request, rules, state } = this
    if (running.isLeft) return Cause.done()
    if (request !== undefined && request.first === undefined) request.first = this.now
    const marked = this.isByTool ? Typed.marked(this.ask.tools, events) : events
    if (!hears) return this.emitFolded(Fold.named(state, marked), before)
    const at = this.at()
    const heard = marked.flatMap((given) => {
      const own = Fold.named(state, [given])
      const added = rules.flatMap(({ hear }) => own.flatMap((event) => hear?.(event, at) ?? []))
      Fold.apply(state, added)
      return own.concat(added)
    })
    return this.emitFolded(heard, before)
  }

  /** Takes the calls made final by these events that may start now; `startCalls` then skips them all. */
  private takeStartable(events: Events): ReadonlyArray<Plan.Decode> {
    const { phase } = this
    if (phase._tag !== "Hearing" || !phase.mayStart) return []
    // All remaining calls are decided together from the end of a reply on.
    if (events.some(({ _tag }) => _tag === "MessageCompleted" || _tag === "Error")) phase.mayStart = false
    return phase.mayStart
      ? events.flatMap((event) => event._tag === "ToolCallCompleted" ? this.takeIfStartable(event) : [])
      : []
  }

  private takeIfStartable(event: Event.Of<"ToolCallCompleted">): ReadonlyArray<Plan.Decode> {
    const { settings: { policy }, tools } = this.ask
    const tool = tools.get(event.name)
    if (tool === undefined || !Plan.mayStartEarly(tool, policy)) return []
    const taken = this.state.calls.take(event)
    if (taken === undefined) return []
    const job = Plan.planned(taken.index, taken.call, tools, policy, taken.place)
    if (job._tag === "Decode" && taken.call.argumentsLost === undefined && this.startsEarly(job)) return [job]
    this.state.calls.giveBack(taken.index)
    return []
  }

  private startsEarly(job: Plan.Decode): boolean {
    return Effect.runSyncWith(this.context)(Plan.startsEarly(job, this.ask.settings.policy))
  }

  /** Starts calls while the reply is being read, and returns their immediate events. */
  private startEarly(jobs: ReadonlyArray<Plan.Decode>): Events {
    const { phase } = this
    if (jobs.length === 0 || phase._tag !== "Hearing") return noEvents
    const batch = phase.batch ??= this.openBatch(Infinity)
    phase.hasStarted = true
    batch.add(jobs, "early")
    batch.begin()
    return isObserved(this.parts.view) ? noEvents : batch.takeNow()
  }

  /** Services for handlers. */
  private get within(): Context.Context<R> {
    return this.services === undefined ? this.context : Context.merge(this.context, this.services)
  }

  /** Opens a batch, closed by the step: the step owns the batch before any interruption. */
  private openBatch(calls: number): Batches.Batch<E> {
    const { ask: { settings, tools }, parts: { ambient: given, recorded, running }, step } = this
    const { journal } = recorded ?? {}
    // The time kept by a deadline for an answer also serves the call giving the answer.
    const { deadline } = given
    const ambient = deadline !== undefined && Typed.isAnswerOnly(tools)
      ? { ...given, deadline: { ...deadline, toolsUntil: deadline.at } }
      : given
    const batch = Batches.open<E, R>(this.within, calls, settings, step.index, running, ambient, journal)
    step.batches.push(batch)
    return batch
  }

  /** Ends the reply. A rule may ask the model again, if no call of the reply has started. */
  private endReply(phase: Hearing<E>, heard: Ending): Emitted<E, R> {
    if (this.parts.running.isLeft) return Cause.done()
    const isVoid = heard._tag === "Ended" && !this.isCancelled && this.ask.mode === "auto" && Fold.isVoid(this.state)
    const ending: Ending = isVoid ? { _tag: "Broken", error: withoutCall(), hasBegun: true } : heard
    const error = ending._tag === "Broken" ? ending.error : this.state.error?.value
    const mayRepeat = !phase.hasStarted && !this.isCancelled
    return this.replied(error, mayRepeat, () => {
      // A cancellation may have come while a rule was asked. As during the pause, the step then has an empty reply.
      const isUnsaid = mayRepeat && this.isCancelled && ending._tag === "Broken" && !ending.hasBegun
      return this.leaveReply(phase, isUnsaid ? { _tag: "Ended" } : ending)
    })
  }

  /** Asks the rules about a reply, which is kept unless a rule asks again. */
  private replied(error: unknown, mayRepeat: boolean, keep: () => Emitted<E, R>): Emitted<E, R> {
    const { rules, state, state: { spent, usage } } = this
    if (!rules.some(({ reply }) => reply !== undefined)) return keep()
    // A recorded reply's usage includes discarded replies.
    const reply = { error, mayRepeat, hasSaid: Fold.hasSaid(state), usage: Response.sumUsage([spent, usage]) }
    return this.after(Rules.replied(rules, reply, this.at(), this.ruled), ({ again, notes }) => {
      this.note(notes)
      if (again === undefined || this.isCancelled) return keep()
      this.turn = undefined
      return this.askAgain(error, again)
    })
  }

  /** Runs a rule's effect in the observer's fiber. A soft stop does not wait, and yields `undefined`. */
  private readonly ruled = <A, F>(name: string, effect: Effect.Effect<A, F, R>): Effect.Effect<A | undefined, F, R> =>
    evaluate(this.parts.running, this.id, name, effect, "none")

  /** Runs a rule's last effect, within the grace period. */
  private readonly ending = <A, F>(name: string, effect: Effect.Effect<A, F, R>): Effect.Effect<A | undefined, F, R> =>
    evaluate(this.parts.running, this.id, name, effect, "grace")

  /** Discards the reply and asks the model again. */
  private askAgain(error: unknown, { after, events = [] }: Rules.AskAgain): Emitted<E, R> {
    this.step.spans?.askedAgain(error)
    // A complete message is recorded, even if the reply broke afterwards.
    const discarded = this.state.message === null ? Effect.void : this.discard()
    return Effect.flatMapEager(
      Effect.flatMapEager(this.beginDisconnect(Exit.void), () => discarded),
      () => this.become({ _tag: "Pausing", millis: after }, [{ _tag: "StepReset", error }, ...events])
    )
  }

  /**
   * Leaves the reply, whole or broken. A failure before a run's first event fails the run; a later failure is an event.
   */
  private leaveReply({ batch }: Hearing<E>, ending: Ending): Emitted<E, R> {
    if (this.step.spans !== undefined) this.endInference(this.step.spans, ending)
    if (ending._tag === "Ended") return this.become({ _tag: "Deciding", batch })
    const { error: given, hasBegun } = ending
    const error = this.step.index === 0 && !hasBegun ? Adapter.AdapterError.from(given) : given
    const events: Events = [{ _tag: "Error", error }]
    if (hasBegun) return this.become({ _tag: "Deciding", batch }, events)
    return this.endUnheard(events, error)
  }

  /**
   * Ends a step that has shown nothing from its reply. In a run's first step, the run fails, unless it began with an
   * earlier turn's calls.
   */
  private endUnheard(events: Events, error: unknown): Emitted<E, R> {
    // Calls of a recorded reply stay unchanged for the next process.
    const isRepeated = this.turn !== undefined
    if (isRepeated || this.step.index === 0 && !this.hadEarlier) return Effect.fail(error as Adapter.AdapterError)
    return Effect.flatMapEager(
      this.closeStep(),
      () => this.become({ _tag: "Finishing", outcome: { _tag: "Failed", error } }, events)
    )
  }

  /** Ends the model call's span, with the reply so far. */
  private endInference(spans: Telemetry.Step, ending: Ending): void {
    const { state } = this
    const error = ending._tag === "Broken"
      ? ending
      : state.error === undefined
      ? undefined
      : { error: state.error.value }
    spans.replied(Fold.toResponse(state), error ?? { isCut: this.isCancelled && state.message === null })
  }

  /** Decides on the calls. The rules first hear a recorded reply, as they heard a reply just read. */
  private deciding(batch: Batches.Batch<E> | undefined): Emitted<E, R> {
    const { turn } = this
    if (turn === undefined) return this.decide(batch)
    return this.replied(undefined, !Plan.isBegun(turn.calls) && !this.isCancelled, () => this.decide(batch))
  }

  /** Closes the connection, however the reply ended, before starting the other calls. */
  private decide(batch: Batches.Batch<E> | undefined): Emitted<E, R> {
    return this.after(this.beginDisconnect(Exit.void), () => {
      this.step.reply = undefined
      const said = Fold.toResponse(this.state)
      const isCut = this.isCancelled && this.state.message === null && said.error === undefined
      const response = isCut ? { ...said, finishReason: "other" as const, rawFinishReason: "cancelled" } : said
      return this.after(
        Answers.warnedOfLost(response, this.ask.tools),
        (response) => this.startCalls(response, batch)
      )
    })
  }

  private startCalls(response: Response.Response, early: Batches.Batch<E> | undefined): Emitted<E, R> {
    const { ask: { mode, runTools, settings: { policy } }, turn } = this
    this.turn = undefined
    const recorded = turn?.calls
    this.ends = turn && this.parts.recorded?.start.ends
    const isActedOn = !this.isCancelled && this.ends === undefined && Fold.isToolTurn(policy, response)
    const calls = Response.actionableCalls(response)
    const error = isActedOn && mode === "auto" ? Plan.failing(calls, runTools, policy, recorded) : undefined
    const isStarted = (index: number) => this.state.calls.isTaken(index)
    if (error !== undefined) {
      this.step.spans?.refused(error, calls, this.ask)
      const failed: Response.Response = { ...response, finishReason: "error", error }
      const events: Events = [{ _tag: "Error", error }]
      const nothing: Plan.Plan = { calls: [], manual: [], jobs: [] }
      return Plan.isBegun(recorded)
        ? this.openWork(
          failed,
          Plan.divide(calls, response.toolCalls, this.ask, isStarted, failedTurn, recorded),
          events
        )
        : this.become(
          { _tag: "Working", response: failed, plan: nothing, batch: undefined, ended: Plan.uncommitted },
          events
        )
    }
    const { finishReason } = response
    const refusal = this.ends !== undefined
      ? `${RunJournal.endOf(this.ends)} before it was resumed`
      : isActedOn
      ? undefined
      : Plan.ending(finishReason)
    const plan = Plan.divide(calls, response.toolCalls, this.ask, isStarted, refusal, recorded)
    // Early calls of a filtered or failed reply are interrupted, and the others do not run.
    if (finishReason === "content_filter" || finishReason === "error") early?.cancel(Plan.ending(finishReason))
    return this.openWork(response, plan, undefined, early)
  }

  private openWork(
    response: Response.Response,
    plan: Plan.Plan,
    events: Events | undefined,
    early?: Batches.Batch<E>,
    ended?: Plan.Ended
  ): Emitted<E, R> {
    const jobs = ended?.closed ?? plan.jobs
    const batch = early ?? (jobs.length === 0 ? undefined : this.openBatch(jobs.length))
    batch?.add(jobs, ended === undefined ? undefined : "waited")
    batch?.seal()
    return this.become({ _tag: "Working", response, plan, batch, ended }, events)
  }

  private working({ batch, ended, plan, response }: Working<E>): Emitted<E, R> {
    if (batch !== undefined && !batch.isAtEnd) return batch.take
    if (ended !== undefined) return this.complete(response, ended)
    const hasFailed = response.error instanceof Plan.EngineError
    const over = this.ends !== undefined
      ? RunJournal.endOf(this.ends)
      : this.isCancelled
      ? runCancelled
      : hasFailed
      ? failedTurn
      : undefined
    // Waiting calls stay open, unless the run is over: then they are answered as cancelled.
    return this.after(
      Plan.ended(plan, response, this.ask, this.workedOf(batch, response), over),
      (ended) =>
        ended.closed.length === 0
          ? this.complete(response, ended)
          : this.openWork(response, plan, undefined, undefined, ended)
    )
  }

  /** Returns the batch's outcome. Its waiting calls are in the fold. */
  private workedOf(batch: Batches.Batch<E> | undefined, { toolCalls }: Response.Response): Plan.Worked | undefined {
    const before = this.earlier?.halt
    if (batch === undefined) return before && { halt: before, suspensions: [] }
    const { halt } = batch
    const isFirst = this.ask.settings.policy.haltPrecedence === "completion"
    return { halt: isFirst ? before ?? halt : halt ?? before, suspensions: this.state.tools.open(toolCalls) }
  }

  private complete(response: Response.Response, ended: Plan.Ended): Emitted<E, R> {
    const { earlier } = this
    return earlier === undefined
      ? this.completeStep(response, ended)
      : this.completeEarlier(earlier, response.toolCalls, ended)
  }

  private completeStep(
    response: Response.Response,
    { calls, halt: decided, manual, suspensions }: Plan.Ended
  ): Emitted<E, R> {
    const { ask: { mode, settings: { policy } }, parts: { ambient }, state, step: { index } } = this
    const message = Outcomes.assistantMessage(response, calls, response.message?.reasoning)
    // A step waiting for an outside answer is not cut short: its calls stay open.
    const isCut = suspensions.length === 0 && this.isCancelled
    // A withdrawn question halts nothing; another halt may decide instead.
    const halt = decided?.haltedReason === "ask_user" && suspensions.length === 0 ? Fold.halt(state) : decided
    return this.after(this.closeStep(), () => {
      const said = isCut && message.content === "" && message.toolCalls === undefined ? [] : [message]
      const added = said.concat(Fold.answers(state))
      // The first step has its own list of messages: a run with one step shares its messages with no other thread.
      const thread = (index === 0 ? SharedMessages.appended : SharedMessages.appendedShared)(this.thread, added)
      const introduced = Outcomes.since(this.thread, state.thread)
      const messages = introduced.length === 0 ? added : introduced.concat(added)
      const isToolTurn = Fold.isToolTurn(policy, response)
      const isDone = isCut || Fold.isDone(policy, response)
      // All calls in a manual turn are handed over, except those answered before a resume.
      const isManual = mode === "manual" && (calls.length === 0 || manual.length > 0)
      const step = isManual
        ? { response, thread, messages, mode, manualToolCalls: [] }
        : { response, thread, messages, mode: "auto" as const, manualToolCalls: manual }
      // The run may have to end with the turn it was resumed in.
      if (this.ends !== undefined) RunJournal.end(ambient.cancellation, this.ends)
      this.ends = undefined
      const event = Outcomes.stepCompleted(step, isToolTurn, isDone, halt, suspensions, this.noted)
      this.notes.push(this.noted)
      this.noted = Rules.noNotes
      this.unrecorded = Rules.noNotes
      this.introduced = []
      return this.become({ _tag: "Stepping", isCut }, [event])
    })
  }

  /** Closes the step. A pull interrupted before this ends leaves the step open: the run closes the step then. */
  private closeStep(): Effect.Effect<void> {
    return Effect.mapEager(this.leave(Exit.void), () => {
      this.step = stepAt(this.step.index + 1)
    })
  }

  private stepping(isCut: boolean): Emitted<E, R> {
    const { parts: { isChat, span }, rules } = this
    if (!isChat) {
      if (span !== undefined) this.stepCame(span, isCut)
      return this.become({ _tag: "Done" })
    }
    const step = Fold.toStepResult(this.state)
    this.thread = step.thread
    if (step.contextUpdate !== undefined) this.base = withContext(this.base, step.contextUpdate)
    // A cancellation that cut the step short decides.
    const own = isCut ? this.cancelled : Outcomes.ofStep(step, this.state.steps.length - 1)
    const at = this.at(Rules.noNotes, this.notes.at(-1))
    return this.after(Rules.decided(rules, own, at, this.ruled), (decided) => {
      const { next, notes } = decided ?? { next: undefined, notes: Rules.noNotes }
      if (next !== undefined && next._tag !== "End") {
        this.note(notes)
        this.introduce(next.messages)
        return this.become({ _tag: "Opening" })
      }
      // The next step's reply is recorded, so its request was made.
      if (this.turn !== undefined) return this.become({ _tag: "Opening" })
      if (next === undefined) return this.become({ _tag: "Finishing", outcome: this.cancelled })
      return this.become({ ...next, _tag: "Finishing" })
    })
  }

  /** Notes the outcome of a run with one step. */
  private stepCame(span: Telemetry.Run, isCut: boolean): void {
    const step = Fold.toStepResult(this.state)
    const own = isCut ? this.cancelled : Outcomes.ofStep(step, 0)
    span.came(own ?? { _tag: "StepCompleted" }, step.response)
  }

  /**
   * Ends the run with its result. Live handlers are stopped first, so the result can name those that refuse to stop.
   */
  private finishing(end: Extract<Phase<E>, { readonly _tag: "Finishing" }>): Emitted<E, R> {
    const { outcome, suspensions = [] } = end
    const { noted, notes, parts: { ambient: { spending }, leftOut, recorded, running }, rules, thread } = this
    const ends = recorded?.start.ends
    const at = this.at()
    const ended = Rules.ended(rules, outcome, at, this.ending)
    const result = Turns.resultOf(
      rules,
      this.state.steps,
      noted === Rules.noNotes ? notes : [...notes, noted],
      thread,
      outcome
    )
    const kept = Rules.keptBy(rules, at)
    const isWaiting = suspensions.length > 0 || result.suspensions !== undefined
    return Effect.flatMapEager(Effect.flatMapEager(ended, () => running.beginStop()), (abandoned) => {
      const { nested: nestedUsage } = spending
      const whole = {
        ...result,
        totalUsage: spending.total,
        ...(nestedUsage === null ? {} : { nestedUsage }),
        ...(suspensions.length === 0 ? {} : { suspensions }),
        ...(leftOut.length === 0 ? {} : { leftOutTools: leftOut }),
        ...(abandoned.length === 0 ? {} : { abandoned }),
        ...("output" in end ? { output: end.output } : {}),
        // A run with waiting calls had already ended.
        ...(ends?._tag === "Failure" && !isWaiting ? failedWith(ends.error) : {})
      }
      this.parts.span?.came(whole.outcome, whole.finalResponse)
      const messages = Outcomes.since(whole.thread, this.state.thread)
      const completed = {
        _tag: "ChatCompleted",
        result: whole,
        ...(messages.length === 0 ? {} : { messages }),
        ...(kept === at.kept ? {} : { kept })
      } as const
      const accepted = "output" in end ? [{ _tag: "OutputCompleted", value: end.output } as const] : []
      return this.become({ _tag: "Done" }, [...Rules.closed(rules, whole), ...accepted, completed])
    })
  }

  /** Closes the connection now, if any. The returned effect waits until it is closed, and need not be run. */
  private beginDisconnect(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    return this.step.reply?.close(exit) ?? Effect.void
  }

  /** Closes the connection at a soft stop. The reader notices the stop at its next pull, which a hook may delay. */
  hangUp(): void {
    if (this.phase._tag !== "Hearing") return
    this.phase.mayStart = false
    void this.beginDisconnect(Exit.void)
  }

  /**
   * Closes the current step's resources. The connection comes first: the provider must not keep generating while
   * handlers stop. If the run's reader has left, the handlers are stopped before the rest is closed, and the wait for
   * them includes a connection still closing.
   */
  leave(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    const { parts: { running }, step: { batches, spans } } = this
    const disconnected = this.beginDisconnect(exit)
    let closed = Effect.void
    for (const batch of batches) closed = both(closed, batch.close())
    if (spans !== undefined) closed = both(closed, Effect.sync(() => spans.end(exit)))
    return running.isLeft ? Effect.flatMapEager(running.beginStop(), () => closed) : both(disconnected, closed)
  }
}

/** Returns the outcome for a run ending with an error instead of being resumed. */
const failedWith = (error: unknown): Pick<Event.ChatResult, "outcome" | "haltedReason"> => {
  const outcome: Event.Outcome = { _tag: "Failed", error }
  return { outcome, haltedReason: Outcomes.haltedReason(outcome) }
}

/** Returns `true` for a journaled run event: a whole reply, or the end of a step or of the run. */
const isReported = (event: Event.Event): boolean =>
  event._tag === "StepCompleted" || event._tag === "ChatCompleted" ||
  event._tag === "MessageCompleted" && event.replayed !== true

/** Returns the rules' services for handlers. A later rule's services replace an earlier rule's. */
const handlersOf = <E, R>(rules: Rules.Rules<E, R>): Context.Context<never> | undefined =>
  rules.reduce<Context.Context<never> | undefined>(
    (all, { handlers }) => handlers === undefined ? all : all === undefined ? handlers : Context.merge(all, handlers),
    undefined
  )

/** Reason for not running the calls in a turn failed by policy. */
const failedTurn = "the turn called a tool that does not exist"

const runCancelled = "the run was cancelled"

/** Runs two effects in sequence. Without any work, this takes no step. */
const both = (first: Effect.Effect<void>, second: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.flatMapEager(first, () => second)

/** Returns the request with context updates from a step's handlers. */
const withContext = (ask: Rules.Ask, update: Readonly<Record<string, unknown>>): Rules.Ask => ({
  ...ask,
  settings: { ...ask.settings, context: { ...ask.settings.context, ...update } }
})

// The consumer's side.

const isNonEmpty = (events: Events): events is Arr.NonEmptyReadonlyArray<Event.Event> => events.length > 0

/** Returns `true` if a consumer wants to see an event. Hiding an event does not change its effect on the run. */
const isShown = <R>(view: View<R>, event: Event.Event): boolean => {
  switch (event._tag) {
    case "TextDelta":
    case "ReasoningDelta":
      return view.emitTextDeltas !== false
    case "ToolCallDelta":
      return view.emitToolDeltas !== false
    case "RawChunk":
      return view.includeRawChunks === true || EventJson.isUsage(event)
    default:
      return true
  }
}

/** Returns `true` if a run has an observer. `null` means none is set. */
const isObserved = <R>({ onEvent }: View<R>): boolean => typeof onEvent === "function"

const shown = <R>(view: View<R>, events: Events): Events =>
  events.every((event) => isShown(view, event)) ? events : events.filter((event) => isShown(view, event))

/** Passes events to the caller's observer, one at a time. The run continues when the observer returns. */
export const observed = <R>(
  view: View<R>,
  running: Running,
  requestId: string,
  events: Events
): Effect.Effect<void, never, R> => {
  const { onEvent } = view
  if (typeof onEvent !== "function") return Effect.void
  return Effect.forEach(
    events,
    (event) =>
      hooks(running, requestId).do(
        ToolOptions.toEffect<unknown, never, R>(onEvent(event), "onEvent", "return an Effect or nothing"),
        Exit.void
      ),
    { discard: true }
  )
}

/**
 * Runs a rule's effect in the observer's fiber. Succeeds with `undefined` if a soft stop came first, without waiting.
 */
const evaluate = <A, E, R>(
  running: Running,
  requestId: string,
  name: string,
  effect: Effect.Effect<A, E, R>,
  onSoftStop: "none" | "grace"
): Effect.Effect<A | undefined, E, R> => {
  if (Exit.isExit(effect)) return effect
  const evaluated = hooks(running, requestId).do<A | typeof stoppedFirst, E, R>(
    Effect.provideService(effect, CurrentRunning, running),
    Exit.succeed(stoppedFirst),
    { name, onSoftStop }
  )
  return Effect.map(evaluated, (answer) => {
    if (answer !== stoppedFirst) return answer
    // The observer needs another fiber while the effect still cleans up.
    running.hooks = undefined
    return undefined
  })
}

/**
 * Stands for the missing answer of an effect overtaken by a soft stop. An effect may itself succeed with `undefined`.
 */
const stoppedFirst = Symbol("stoppedFirst")

/** Ends a run. Resources opened by its rules are released after its handlers, which may use them, have ended. */
const ended = (running: Running, exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> => {
  const { opened } = running
  return opened === undefined ? running.end(exit) : Effect.ensuring(running.end(exit), Scope.close(opened, exit))
}

/** Returns the worker for the observer and rule effects: one for the whole run. */
const hooks = (running: Running, id: string): Worker =>
  running.hooks ??= new Worker(running, { kind: "hook", id, name: "onEvent", onSoftStop: "grace" })

// Starting a run.

type Next<E, R> = Pulled.Next<Event.Event, Adapter.AdapterError | E, R>

type StartError = Thread.ValidationError | Plan.EngineError

/** Parts of a run checked before it is entered. */
type Checked<E, R> = Pick<Parts<E, R>, "thread" | "base" | "leftOut">

/** Adapter, tools and request of a run. */
export interface Asked {
  readonly adapter: Adapter.Service
  readonly tools: ToolOptions.Toolbox
  readonly template: Requests.Template
  readonly leftOut: ReadonlyArray<ToolOptions.LeftOut>
}

const adapterIn = (context: Context.Context<never>): Result.Result<Adapter.Service, Plan.EngineError> => {
  const adapter = Context.getOrUndefined(context as Context.Context<any>, Adapter.Adapter)
  return adapter === undefined
    ? Result.fail(new Plan.EngineError({ reason: "missing_adapter", detail: "provide an Adapter with a Layer" }))
    : Result.succeed(adapter)
}

/** Checks whether the model can be asked about messages: the adapter, the tools and the request options. */
export const asked = (
  messages: ReadonlyArray<Message.Input>,
  options: StepOptions<any, any>,
  toolbox: ToolOptions.Toolbox,
  defaults: Policy.Defaults,
  context: Context.Context<never>
): Result.Result<Asked, StartError> => {
  const adapter = adapterIn(context)
  if (Result.isFailure(adapter)) return Result.fail(adapter.failure)
  const { leftOut, tools } = ToolOptions.offered(toolbox)
  const forced = Plan.forcedToLeftOut(options, leftOut)
  if (forced !== undefined) return Result.fail(forced)
  const template = Requests.template(options, defaults, tools)
  const errors = Requests.issues(messages, template, options.tools ?? [], tools)
  return errors.length > 0
    ? Result.fail(new Thread.ValidationError({ reason: "invalid_request", errors }))
    : Result.succeed({ adapter: adapter.success, tools, template, leftOut })
}

/** Returns a run's tools: the application's, the caller's, and a typed answer's. */
export const toolboxOf = (
  { output, tools }: Pick<ChatOptions<any, any>, "output" | "tools">,
  defaults: Policy.Defaults
): ToolOptions.Toolbox => {
  const all = ToolOptions.toolbox(defaults.tools ?? [], tools ?? [])
  const answer = output?.tool
  if (answer === undefined) return all
  if (all.has(answer.name)) {
    throw new TypeError(
      `output: a tool of the run is named ${JSON.stringify(answer.name)}, too; give the output another toolName`
    )
  }
  return new Map([...all, [answer.name, answer]])
}

/** A recorded run. */
export interface Recorded extends RunJournal.Recorded {
  /** Receives the run's fibers when it is entered. */
  readonly onEntered?: (running: Running) => void
  /** Options, if checked before the run's start is recorded. */
  readonly checked?: {
    readonly settings: Settings.Settings<any, any>
    readonly asked: Result.Result<Asked, StartError>
  }
}

/** Checks the input and the options. An unusable option throws. */
const check = <E, R>(
  input: Thread.Input,
  options: StepOptions<E, R>,
  defaults: Policy.Defaults,
  context: Context.Context<R>,
  recorded: Recorded | undefined
): Result.Result<Checked<E, R>, StartError> => {
  const settings = recorded?.checked?.settings ?? Settings.resolve<E, R>(options, defaults, Policy.standard, context)
  const services = context as Context.Context<never>
  const start = recorded?.start
  const valid = Result.flatMap(adapterIn(services), () => Thread.validate(input))
  if (Result.isFailure(valid)) return Result.fail(valid.failure)
  const thread = valid.success
  // A resumed run's last step may have left calls open: the run then ends with that step.
  const isTakenUp = start !== undefined && (start.earlier ?? start.turn ?? start.steps[0]) !== undefined
  const unpaired = isTakenUp ? [] : Requests.pairingIssues(thread.messages)
  if (unpaired.length > 0) {
    return Result.fail(new Thread.ValidationError({ reason: "invalid_thread", errors: unpaired }))
  }
  const { mode, system } = options
  const request = recorded?.checked?.asked ??
    asked(thread.messages, options, toolboxOf(options, defaults), defaults, services)
  return Result.map(request, ({ adapter, leftOut, template, tools }) => {
    const base: Rules.Ask = { adapter, system, mode: mode ?? "auto", tools, runTools: tools, settings, template }
    return { thread, base, leftOut }
  })
}

/**
 * Enters a run of one or several steps, and returns the pull function for its stream. The run ends when the scope
 * closes: live handlers are stopped, and the enclosing handler takes its permits back. Without waiting, entering is one
 * step.
 */
export const enter = <E, R>(
  input: Thread.Input,
  options: ChatOptions<E, R>,
  isChat: boolean,
  scope: Scope.Scope,
  context: Context.Context<R>,
  recorded?: Recorded
): Effect.Effect<Next<E, R>, StartError, R> => {
  const defaults = Context.get(context, Policy.Defaults)
  const checked = check(input, options, defaults, context, recorded)
  if (Result.isFailure(checked)) {
    options.inbox?.letters.close("failed")
    return Effect.fail(checked.failure)
  }
  const { base, base: { adapter, settings, template }, leftOut, thread } = checked.success
  const running = new Running(settings.graceMillis, context as Context.Context<never>, recorded?.appends)
  const begin = (span: Telemetry.Run | undefined, ambient: Inherited.Ambient): Next<E, R> => {
    if (span !== undefined) span.usage = () => ambient.spending.total
    const around = Context.get(context, Rules.CurrentBudget)
    const start = {
      // A run continuing after an earlier turn's calls were settled has had its first turn.
      hasBegun: recorded?.start.hasBegun === true,
      deadline: ambient.deadline,
      now: () => Context.get(context, Clock.Clock).currentTimeMillisUnsafe(),
      inherited: Context.get(context, Rules.Inherited),
      spender: (isChat ? options.budget?.open(around) : undefined) ?? around?.within(),
      inbox: options.inbox ?? Context.get(context, Rules.CurrentInbox)?.letters.within(),
      running
    }
    const loop = new Loop<E, R>({
      thread,
      base,
      rules: isChat ? Turns.ofChat(options, defaults, base, start) : Turns.ofStep(options, base, start),
      isChat,
      leftOut,
      recorded,
      scope,
      view: options,
      running,
      ambient,
      span
    })
    Inherited.listen(running, ambient, options.cancel, settings.requestId)
    Context.get(context as Context.Context<never>, Inherited.CurrentHold)?.take(running)
    recorded?.onEntered?.(running)
    const { ends, turn } = recorded?.start ?? {}
    if (ends !== undefined && turn === undefined) RunJournal.end(ambient.cancellation, ends)
    return loop.next
  }
  return Effect.flatMapEager(
    Telemetry.openRun(Telemetry.tracing(context), scope, () => ({
      requestId: settings.requestId,
      sessionId: settings.sessionId,
      agent: (isChat ? options.agent : undefined) ?? agentWithin(context),
      adapter,
      sampling: template,
      facts: { system: options.system, input: thread.messages, tools: template.tools }
    })),
    (span) =>
      Effect.flatMapEager(
        leftOut.length === 0
          ? Inherited.enter(running, settings, options.cancel, scope, context, recorded?.given)
          : Effect.andThen(
            warnedOfLeftOut(leftOut),
            Inherited.enter(running, settings, options.cancel, scope, context, recorded?.given)
          ),
        (ambient) =>
          Effect.map(Scope.addFinalizerExit(scope, (exit) => ended(running, exit)), () => begin(span, ambient))
      )
  )
}

const warnedOfLeftOut = (leftOut: ReadonlyArray<ToolOptions.LeftOut>): Effect.Effect<void> =>
  Telemetry.logged(
    Effect.forEach(
      leftOut,
      ({ name, reason }) =>
        Effect.annotateLogs(Effect.logWarning(`the tool "${name}" is left out: ${reason}`), {
          "gen_ai.tool.name": name
        }),
      { discard: true }
    )
  )

/** Returns the agent for a run started by a handler: it has the tool's name. */
export const agentWithin = <R>(context: Context.Context<R>): Telemetry.Agent | undefined => {
  const handler = Context.get(context as Context.Context<never>, CurrentHandler)
  return handler && { name: handler.name }
}
