/**
 * One call, from its permits to its one answer. It waits for permits, passes its tool's gates, runs its handler, and
 * writes the outcome as the answer, all in one fiber owned by the run (`life`). A timeout or a cancellation may stop
 * the call first (`overrule`); its fiber's outcome is then ignored. A stopped handler's answer waits for the end of the
 * fiber, to distinguish a stopped call from one that may still take effect. The call keeps its place and permits until
 * its fiber has ended, or has refused to end for a whole grace period.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import type * as Event from "../../Event.ts"
import type * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as Contents from "../answer/content.ts"
import * as ErrorFields from "../answer/errorFields.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Settings from "../ask/options.ts"
import * as Plan from "../decide/plan.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { timedOut, ToolError, toolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"
import { HeldPermits, type Wait, type Waited, wanted } from "../permits/permits.ts"
import * as Cancellation from "../stop/cancellation.ts"
import * as Inherited from "../stop/inherited.ts"
import { CurrentHandler, type Handler, type Running, type Task } from "../stop/ownedFibers.ts"
import * as Timers from "../stop/timers.ts"
import type * as Telemetry from "../telemetry.ts"
import type { EventOrder } from "./eventOrder.ts"
import * as Gates from "./gates.ts"
import * as RunJournal from "./runJournal.ts"

/** Settings and services for a batch's calls. */
export interface Environment<E> {
  readonly found: Inherited.Found
  readonly settings: {
    readonly policy: Policy.Policy
    readonly onToolError: Declared.OnToolError<E, any>
    /** Default time limit of a handler, in milliseconds, for tools without a timeout. */
    readonly timeoutMillis: number
    /** Default limit without progress, in milliseconds. */
    readonly idleMillis: number
    readonly context: Json.JsonObject
    readonly requestId: string
    readonly sessionId: string | null
    /** Ids of calls allowed to run even if their tools require approval. */
    readonly approved?: ReadonlySet<string>
  }
  /** Largest number of handlers running at once in the batch. */
  readonly bound: number
  readonly stepIndex: number
  readonly running: Running
  readonly ambient: Inherited.Ambient
  /** Journal of the run, if recorded. */
  readonly journal: RunJournal.Journal | undefined
}

/** A call's view of its batch. It is an interface because the batch has calls, and so imports this module. */
export interface Host<E> {
  readonly environment: Environment<E>
  readonly answering: Answers.Answering<E, any>
  readonly events: EventOrder<E>
  readonly timers: Timers.Timers
  readonly isOver: boolean
  /** Takes in a call's answer. The returned effect waits until the answer is recorded, and need not be run. */
  readonly settle: (job: Answers.Numbered, answer: Answers.Answer) => Effect.Effect<void>
  /** Writes a call's answer in a separate fiber. `error` belongs to a call that did not stop. */
  readonly respond: (
    job: Answers.Numbered,
    answer: Effect.Effect<Answers.Answer, E, any>,
    error?: Tool.ToolError
  ) => void
  /** Takes in the exit of a fiber meant to write an answer. */
  readonly answerEnded: (job: Answers.Numbered, exit: Exit.Exit<unknown, E>) => void
  /** Suspends the call, which waits for an outside answer. */
  readonly suspend: (job: Plan.Run, event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">) => void
  /** Reports that the call waits for its turn. */
  readonly queued: (job: Plan.Run, wait: Wait) => void
  /** Begins the call's span, if the run is observed. */
  readonly spanOf: (job: Plan.Run, attempt: number) => Telemetry.Call | undefined
  /** Notes that the call has left its place. */
  readonly vacated: (call: Call<E>) => void
}

/** Longest wait, in milliseconds, of a stopped call's answer for its handler. */
const longestWait = 5_000

/** A stopped call's answer, waiting for its handler. */
interface Owed<E> {
  /** Error of the call if its handler stops in time. */
  readonly error: Tool.ToolError
  readonly answer: (error: Tool.ToolError) => Effect.Effect<Answers.Answer, E, any>
}

/**
 * The phase of a call:
 *
 * - `waiting`: for permits
 * - `gating`: its tool's gates are running
 * - `running`: its handler is running
 * - `writing`: its result is being encoded
 * - `answering`: its own fiber has the answer, or nothing more to do
 * - `overruled`: answered by a timeout or a cancellation, at once or after its handler ends
 */
type Phase = "waiting" | "gating" | "running" | "writing" | "answering" | "overruled"

export class Call<E> implements Task, Handler {
  readonly job: Plan.Run
  private readonly host: Host<E>
  readonly context: Tool.CallContext
  /** Recorded part of the call, from before its run was resumed. */
  private readonly replayed: RunJournal.Replayed | undefined
  private phase: Phase = "waiting"
  /** `true` while its answer is being written. */
  private isWriting = false
  /** `true` if its encoder did not end at once. */
  private isEncoderSlow = false
  /** `true` while it counts for admission and as a sibling, and may hold permits. */
  private hasPlace = true
  /** `true` once its fiber was forked and has run as far as possible without waiting. No timer is set before. */
  private isForked = false
  private timer: Timers.Timer | undefined
  /** Monotonic start time of the current gates, handler or encoder, in nanoseconds. */
  private enteredAt = 0n
  /** Handler's time limits. */
  private readonly times: Settings.Times
  /** Monotonic time of the start or the latest progress, in nanoseconds. */
  private movedAt = 0n
  /** `true` if no idle timer is set, because the idle time passed while the handler was held up. */
  private isPaused = false
  /** `true` if it alone was asked to stop, and may finish within its grace period. */
  private isStopped = false
  /** Span, while the handler runs. */
  private span: Telemetry.Call | undefined
  /** Finished waits for its turn, and the start of the current wait. */
  private waited: ReadonlyArray<Waited> | undefined
  private waiting: { readonly wait: Wait; readonly since: number } | undefined
  /** The handler's additions to the run context so far. */
  private updates: Json.JsonObject | undefined
  /** Stops forwarding the run's soft stop to `inner`. */
  private unfollow: (() => void) | undefined
  /** The answer waiting for a stopped call's handler. */
  private owed: Owed<E> | undefined

  // Members of `Task` and `Handler`, by which the run knows the call.

  grace: Task["grace"]
  kind: Event.Abandoned["kind"] = "handler"
  readonly id: string
  readonly name: string
  readonly isHandler = true
  readonly isExclusive: boolean
  startedAt = 0
  /** The fiber, set by its own first step, before any caller code runs: that code may end the run. */
  declare fiber: Fiber.Fiber<unknown, E>
  readonly running: Running
  readonly permits: HeldPermits
  /** Soft stop for runs started by the handler, instead of an interruption. Set only for blocking calls. */
  inner: Cancellation.Cancellation | undefined
  readonly moved: (() => void) | undefined
  hasAbandoned = false

  /** `waited` has the waits for its place. */
  constructor(job: Plan.Run, host: Host<E>, waited?: ReadonlyArray<Waited>) {
    const { ambient, found: { services }, journal, running, settings, stepIndex } = host.environment
    this.job = job
    this.host = host
    this.waited = waited
    this.id = job.call.id
    this.name = job.call.name
    this.isExclusive = job.isExclusive
    this.running = running
    this.times = Settings.timesOf(job.tool, settings)
    this.moved = this.times.idleMillis === Infinity ? running.moved : () => {
      this.move()
      running.moved?.()
    }
    const context = callContext(
      job,
      settings,
      stepIndex,
      (value) => this.progress(value),
      (values) => this.update(values),
      (id, reason) => running.stopCall([id], reason)
    )
    this.replayed = journal?.find(job.call)
    this.context = this.replayed === undefined ? context : { ...context, ...RunJournal.recalled(this.replayed) }
    const { args, tool: { limits } } = job
    const keyed = limits === undefined
      ? undefined
      : Effect.suspend(() =>
        Context.get(services, Inherited.Keyed).takeAll(wanted(limits, args, this.context), this.permits)
      )
    this.permits = new HeldPermits(ambient.permits, keyed, services, this)
  }

  /** Starts its fiber. The run owns the fiber before any caller code runs inside. */
  start(): void {
    const fiber = Effect.runForkWith(this.services())(
      Effect.withFiber((fiber) => {
        this.fiber = fiber as Fiber.Fiber<unknown, E>
        this.startedAt = this.host.environment.found.clock.currentTimeMillisUnsafe()
        this.running.add(this)
        return this.life()
      })
    )
    this.isForked = true
    // A handler that ends without waiting costs no timer.
    if (this.phase === "gating" || this.phase === "running") this.arm()
    else if (this.phase === "waiting" && fiber.pollUnsafe() === undefined) this.beginWaiting()
    fiber.addObserver((exit) => this.ended(exit))
  }

  /** Notes the wait for a permit, and for the permits after it. */
  private beginWaiting(): void {
    const { permits } = this
    this.waiting = { wait: permits.wait, since: this.now }
    this.host.queued(this.job, this.waiting.wait)
    permits.stepped = () => {
      this.endWaiting()
      this.waiting = { wait: permits.wait, since: this.now }
    }
  }

  /** Notes the end of a wait. A later permit available at once does not count as a wait. */
  private endWaiting(): void {
    const { waiting } = this
    if (waiting === undefined) return
    this.waiting = undefined
    const millis = Math.max(0, this.now - waiting.since)
    if (millis > 0 || this.waited === undefined) this.waited = [...this.waited ?? [], { ...waiting.wait, millis }]
  }

  private get now(): number {
    return this.host.environment.found.clock.currentTimeMillisUnsafe()
  }

  private services(): Context.Context<any> {
    const { ambient: { cancellation }, found: { services } } = this.host.environment
    const own = Context.add(services, CurrentHandler, this)
    if (!this.job.isBlocking) return own
    const inner = new Cancellation.Cancellation()
    this.inner = inner
    this.unfollow = cancellation?.onRequest(() => inner.request(cancellation.reason, cancellation.cause))
    return Context.add(own, Inherited.ParentCancellation, inner)
  }

  /**
   * Runs the call from beginning to end. After each wait it continues only if nothing has answered the call meanwhile.
   *
   * A generator instead would make 64 immediately ending calls a fifth slower.
   */
  private life(): Effect.Effect<void, E, any> {
    return Effect.flatMap(this.permits.take(), () => {
      this.permits.taken()
      if (this.waiting !== undefined) {
        this.endWaiting()
        this.permits.stepped = undefined
      }
      if (this.phase !== "waiting" || this.host.isOver) return Effect.void
      const isToPass = Gates.isGated(this.job.tool) && this.replayed?.hasStarted !== true
      return isToPass ? this.gated() : this.handled()
    })
  }

  private gated(): Effect.Effect<void, E, any> {
    return Effect.gen({ self: this }, function*() {
      const { host, job } = this
      this.enter("gating")
      const denial = yield* Gates.denial(job, this.context)
      if (!this.goesOn("gating")) return
      if (denial !== undefined) return yield* this.answer(() => Answers.denied(host.answering, job, denial))
      const needsApproval = yield* Plan.needsApproval(job, this.context, host.environment.settings.approved)
      if (!this.goesOn("gating")) return
      const remember = needsApproval ? yield* this.rememberable() : undefined
      if (!this.goesOn("gating")) return
      if (
        needsApproval &&
        (remember === undefined || host.environment.journal?.allows?.(job.call, remember.tool) !== true)
      ) {
        const now = host.environment.found.clock.currentTimeMillisUnsafe()
        return this.suspend(OpenCalls.approvalRequested(job.call, job.tool, now, remember))
      }
      this.timer?.stop()
      return yield* this.handled()
    })
  }

  /** Returns the scope in which the call's approval may be remembered, with its tool's hash. */
  private rememberable(): Effect.Effect<Event.Rememberable | undefined> {
    const { host: { environment: { journal } }, job: { tool } } = this
    const { remember: scope } = tool
    if (scope === undefined || journal?.allows === undefined) return Effect.undefined
    return Effect.map(ToolOptions.hashOf(tool), (tool) => ({ scope, tool }))
  }

  private handled(): Effect.Effect<void, E, any> {
    const { host: { environment: { settings: { policy } }, events }, job: { call, index }, replayed } = this
    this.enter("running")
    if (replayed?.hasStarted === true) events.started(index, RunJournal.startBefore(call, replayed, policy))
    else events.started(index, RunJournal.startOf(call, this.context.attempt, policy, this.waited))
    return Effect.matchCauseEffect(this.execution, {
      onSuccess: (outcome) => this.came(outcome),
      onFailure: (cause) => this.came(crashed(this.job.call, cause))
    })
  }

  private came(outcome: unknown): Effect.Effect<void, E, any> {
    if (!this.goesOn("running") && !this.isToRecord) return Effect.void
    if (ToolOutcomes.isSuspended(outcome)) return this.waits("suspended", outcome)
    const counted = this.counted(outcome)
    const isToResume = ToolOutcomes.isWellFormed(counted) && counted._tag === "AskUser" && counted.resume !== undefined
    return isToResume ? this.waits("ask_user", this.asked(counted)) : this.completed(counted)
  }

  private waits(name: string, outcome: ToolOutcomes.Suspended): Effect.Effect<void> {
    this.span?.end({ outcome: name })
    this.suspend(OpenCalls.suspended(this.job.call, outcome))
    return Effect.void
  }

  /** Returns the suspension of a handler to be restarted with the answer. */
  private asked(raw: Tool.AskUser): ToolOutcomes.Suspended {
    const { context: { attempt, idempotencyKey }, host: { environment: { found } }, job: { call } } = this
    const suspension = OpenCalls.question(call, OpenCalls.asked(call, raw, found.clock.currentTimeMillisUnsafe()))
    return ToolOutcomes.suspended([
      ToolOutcomes.resumable(suspension, { state: Json.toJson(raw.resume), idempotencyKey, attempt })
    ])
  }

  /** Enters a phase running caller code against the clock. */
  private enter(phase: "gating" | "running"): void {
    this.phase = phase
    this.enteredAt = this.movedAt = this.host.environment.found.clock.monotonicTimeNanosUnsafe()
    if (this.isForked) this.arm()
  }

  /** Returns whether the fiber's outcome counts. A late outcome is dropped, and the timeout answers the call. */
  private goesOn(phase: "gating" | "running"): boolean {
    if (this.phase !== phase || this.host.isOver) return false
    if (!this.isLate) return true
    this.timeUp()
    return false
  }

  /** `true` to record an outcome arriving after the run ended: the next owner of the run needs the record. */
  private get isToRecord(): boolean {
    return this.phase === "running" && this.host.isOver && this.host.environment.journal !== undefined
  }

  /** Suspends the call, which leaves its place and waits for an outside answer. */
  private suspend(event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">): void {
    this.toAnswering()
    this.host.suspend(this.job, event)
    this.beginEnding()
  }

  /** The handler's execution by the executor, in its own span if the run is traced. */
  private get execution(): Effect.Effect<unknown, never, any> {
    const { ambient: { cancellation }, found: { executor }, journal } = this.host.environment
    const { call, tool } = this.job
    const execution = execute(
      this.job,
      this.context,
      journal === undefined
        ? (job, context) => once(job, context, executor)
        : (job, context) => {
          const stop = this.inner ?? cancellation
          if (context.attempt !== this.context.attempt) return begun(job, context, executor, journal, stop)
          const started = this.replayed?.hasStarted === true ? () => this.startedAgain() : undefined
          return begun(job, context, executor, journal, stop, this.waited, started)
        },
      this.inner,
      (error, attempt) => this.mayTryAgain(error, attempt),
      // A further attempt is recorded when granted, before its wait.
      journal === undefined || tool.retry === undefined
        ? tool.retry
        : Schedule.tap(tool.retry, () => journal.failed(call))
    )
    const span = this.span = this.host.spanOf(this.job, this.context.attempt)
    return span === undefined ? execution : span.over(execution)
  }

  /** Reports the first attempt since the run was resumed, of a call started before. */
  private startedAgain(): void {
    const { context: { attempt }, host, job: { call, index } } = this
    if (this.phase !== "running" || host.isOver) return
    host.events.started(index, RunJournal.startOf(call, attempt, host.environment.settings.policy, this.waited))
  }

  /**
   * Returns whether another attempt may start; if so, drops the failed attempt's context updates. No attempt starts
   * after a stop or at the time limit.
   */
  private mayTryAgain(error: unknown, attempt: number): boolean {
    if (this.phase !== "running" || this.host.isOver || this.isLate || this.inner?.isRequested === true) return false
    this.updates = undefined
    this.span?.retried(failureCode(error), this.context.attempt + attempt - 1)
    return true
  }

  /**
   * Answers the call with its handler's outcome. A failure drops the context updates, even if a policy replaces the
   * result.
   */
  private completed(outcome: unknown): Effect.Effect<void, E, any> {
    if (this.span !== undefined) {
      const name = outcomeName(outcome)
      const code = isFailure(outcome) ? failureCode(outcome.error) : name === "invalid" ? "invalid_return" : undefined
      this.span.end({ code, outcome: name, result: outcome })
    }
    if (isFailure(outcome)) this.updates = undefined
    return ToolOutcomes.isWellFormed(outcome) && outcome._tag === "Ok"
      ? this.write(outcome)
      : this.answer(() => Answers.answerTo(this.host.answering, this.job, outcome))
  }

  /**
   * Encodes the result against the clock. An encoder ending at once costs no timer: the timer is set when the fiber has
   * run as far as possible.
   */
  private write(raw: Tool.Ok): Effect.Effect<void, E, any> {
    this.timer?.stop()
    this.phase = "writing"
    this.kind = "hook"
    this.isWriting = true
    this.enteredAt = this.host.environment.found.clock.monotonicTimeNanosUnsafe()
    queueMicrotask(() => {
      if (this.phase !== "writing" || this.host.isOver) return
      this.isEncoderSlow = true
      this.arm()
    })
    return Effect.matchCauseEffectEager(Contents.encode(this.host.answering, this.job, raw), {
      onSuccess: (content) => this.wrote(raw, Exit.succeed(content)),
      onFailure: (cause) => this.wrote(raw, Exit.failCause(cause))
    })
  }

  private wrote(raw: Tool.Ok, written: Exit.Exit<unknown, unknown>): Effect.Effect<void, E, any> {
    if (this.phase !== "writing") return Effect.void
    this.kind = "handler"
    return this.answer(() => Answers.succeeded(this.host.answering, this.job, raw, written))
  }

  /** Reads an outcome according to the policy. An outcome that throws while being read is a handler failure. */
  private counted(outcome: unknown): unknown {
    if (this.host.environment.settings.policy.results === "plain") return outcome
    try {
      const { contextUpdate, outcome: counted } = Answers.readResultObject(outcome)
      if (contextUpdate !== undefined) this.updates = { ...this.updates, ...contextUpdate }
      return counted
    } catch (cause) {
      return { _tag: "Error", error: toolError("invalid_return", this.job.call, { cause }) }
    }
  }

  /** Answers the call from its own fiber, which then has nothing more to do. */
  private answer(write: () => Effect.Effect<Answers.Answer, E, any>): Effect.Effect<void, E, any> {
    this.toAnswering()
    this.isWriting = true
    return Effect.matchCauseEffectEager(write(), {
      onSuccess: (answer) => {
        this.isWriting = false
        const recorded = this.host.settle(this.job, Answers.updating(answer, this.updates))
        if (recorded === Effect.void) {
          this.beginEnding()
          return Effect.void
        }
        // The call keeps its place until its answer is recorded, so that no other call starts before the consequences.
        return Effect.map(recorded, () => this.beginEnding())
      },
      // An error policy failing the run does so now: the fiber ends only after all fibers forked by it.
      onFailure: (cause) => {
        this.host.answerEnded(this.job, Exit.failCause(cause))
        this.beginEnding()
        return Effect.failCause(cause)
      }
    })
  }

  /**
   * Gives the fiber, with nothing more to do, one grace period to end, beginning now. The fiber ends only when fibers
   * forked by the handler have stopped. It nearly always ends in this very step, so the grace period gets a timer only
   * after the step.
   */
  private beginEnding(): void {
    const graceSince = this.host.environment.found.clock.currentTimeMillisUnsafe()
    queueMicrotask(() => {
      if (this.hasPlace) this.interrupt(graceSince)
    })
  }

  private progress(value: unknown): void {
    if (this.phase !== "running" || this.host.isOver) return
    this.move()
    const { id, name } = this.job.call
    this.host.events.progress(this.job.index, { _tag: "ToolProgress", id, name, progress: value })
  }

  /** Restarts the idle time. The timer stays: on firing, it is set for the rest of the time. */
  private move(): void {
    if (this.idleMillis === Infinity || this.host.isOver) return
    this.movedAt = this.host.environment.found.clock.monotonicTimeNanosUnsafe()
    if (!this.isPaused) return
    this.isPaused = false
    this.timer?.stop()
    this.arm()
  }

  private update(values: Json.JsonObject): void {
    if (this.phase === "running") this.updates = { ...this.updates, ...values }
  }

  /**
   * Time limit of the phase, in milliseconds. A tool may have a longer timeout, or no limit; its gates have no more
   * than the default. Only the handler reports progress.
   */
  private get millis(): number {
    if (this.phase === "running") return this.times.timeoutMillis
    const { timeoutMillis } = this.host.answering
    const millis = Settings.timeoutOf(this.job.tool, timeoutMillis)
    return this.phase === "gating" ? Math.min(millis, timeoutMillis) : millis
  }

  /** Limit of the phase without progress, in milliseconds. */
  private get idleMillis(): number {
    return this.phase === "running" ? this.times.idleMillis : Infinity
  }

  /**
   * Sets the phase timer. A tool's timeout counts from its handler's start, not while the call waits for permits. The
   * handler's synchronous part may have run by now, and counts.
   */
  private arm(): void {
    const { idleMillis, isPaused } = this
    const idleLeft = isPaused ? Infinity : this.leftOf(idleMillis, this.movedAt)
    const left = Math.min(this.leftOf(this.millis, this.enteredAt), idleLeft)
    if (!Number.isFinite(left)) return
    this.timer = this.host.timers.after(left, () => idleMillis === Infinity ? this.timeUp() : this.due())
  }

  /**
   * Stops the call past a limit, otherwise sets the timer for the rest of its time, with one timer for all progress
   * meanwhile. If the handler is held up, its idle time ends with its next progress at the earliest: the end of a wait
   * is progress.
   */
  private due(): void {
    const isIdle = this.leftOf(this.idleMillis, this.movedAt) === 0
    if (isIdle && !this.permits.isHeldUp || this.leftOf(this.millis, this.enteredAt) === 0) return this.timeUp()
    this.isPaused = isIdle
    this.arm()
  }

  private leftOf(millis: number, since: bigint): number {
    return millis === Infinity ? Infinity : Timers.leftOf(millis, this.host.environment.found.clock, since)
  }

  /** Notes that its own fiber has the answer: from now on no timeout or cancellation replaces that answer. */
  private toAnswering(): void {
    this.phase = "answering"
    this.timer?.stop()
  }

  /** `true` past a time limit, even if no timer has fired: code blocking the thread delays timers. */
  private get isLate(): boolean {
    return this.isPast(this.millis, this.enteredAt) ||
      this.isPast(this.idleMillis, this.movedAt) && !this.permits.isHeldUp
  }

  private isPast(millis: number, since: bigint): boolean {
    return Number.isFinite(millis) && Timers.elapsedMillis(this.host.environment.found.clock, since) > millis
  }

  /** Stops the call at its time limit. */
  private timeUp(): void {
    const { call } = this.job
    if (this.phase === "gating") {
      const late = Gates.late(call, this.millis)
      return this.overrule(late, (error) => Answers.denied(this.host.answering, this.job, error))
    }
    if (this.phase === "writing") {
      const late = Cause.fail(Contents.late(this.millis))
      return this.overrule(toolError("encoding_failed", call), () => this.unwritten(late))
    }
    const { idleMillis, timeoutMillis } = this.times
    const isTotal = idleMillis === Infinity || this.leftOf(timeoutMillis, this.enteredAt) === 0
    const error = isTotal
      ? timedOut(call, timeoutMillis, "", idleMillis === Infinity ? "" : " in total")
      : timedOut(call, idleMillis, "", " of idle time, without progress")
    this.overrule(error, (error) => Answers.failed(this.host.answering, this.job, error))
  }

  /** Returns the answer for a result the fiber could not write. */
  private unwritten(cause: Cause.Cause<unknown>): Effect.Effect<Answers.Answer, E, any> {
    const answer = Answers.unwritten(this.host.answering, this.job, cause)
    return Effect.map(answer, (answer) => Answers.updating(answer, this.updates))
  }

  /** Interrupts the handler and answers the call as cancelled, unless its answer is already being written. */
  cancel(detail: string, graceSince?: number): void {
    if (this.phase === "writing") return
    const { call } = this.job
    const error = this.isInDoubt ? RunJournal.unknownEffect(call).error : toolError("cancelled", call, { detail })
    this.overrule(error, (error) => Answers.cancelled(this.host.answering, this.job, error), graceSince)
  }

  /**
   * Stops this call alone, as described in `Stoppable`. A blocking handler may finish within its grace period. A call
   * whose handler has ended keeps its result.
   */
  stop(reason: string): boolean {
    switch (this.phase) {
      case "waiting":
      case "gating":
        this.cancel(`not run: ${reason}`)
        return true
      case "running": {
        if (this.isStopped) return false
        this.isStopped = true
        if (this.job.isBlocking) this.stopLater(reason)
        else this.cancel(`interrupted: ${reason}`)
        return true
      }
      default:
        return false
    }
  }

  /** Asks a blocking handler to stop, and interrupts it at the end of its grace period. */
  private stopLater(reason: string): void {
    const { host: { timers }, now: since, running } = this
    running.letFinish(this, since, reason)
    timers.after(Math.max(0, running.until(since) - since), () => {
      this.cancel(`interrupted: ${reason}`, since)
      // The handler has one scheduler turn to stop.
      if (this.isOwing) {
        timers.when(Effect.yieldNow, () => {
          this.abandon()
          this.giveUp(since)
        })
      }
    })
  }

  /** Stops one call in its handler's runs. */
  stopInside(path: ReadonlyArray<string>, reason: string): boolean {
    return this.phase === "running" && this.permits.stopCall(path, reason)
  }

  /** Returns the inbox at a path within its handler's runs. */
  inboxAt(path: ReadonlyArray<string>): object | undefined {
    return this.phase === "running" ? this.permits.inboxAt(path) : undefined
  }

  /** `true` if an earlier process started the call and this one did not: its effect is unknown. */
  private get isInDoubt(): boolean {
    const { replayed } = this
    if (replayed?.isUnknown !== true) return false
    return this.host.environment.journal?.find(this.job.call)?.attempt === replayed.attempt
  }

  /**
   * Answers the call instead of its own fiber, whose grace period begins now, or began at `graceSince`. The answer
   * waits for a running handler. The handler is abandoned at the end of its grace period, or after the longest wait.
   */
  private overrule(error: Tool.ToolError, answer: Owed<E>["answer"], graceSince?: number): void {
    const { phase } = this
    if (phase === "answering" || phase === "overruled") return
    this.phase = "overruled"
    this.isWriting = false
    this.timer?.stop()
    this.owed = { error, answer }
    if (phase !== "running") this.pay(error)
    this.interrupt(graceSince)
    // The interruption may have ended the fiber at once.
    if (this.isOwing) this.armOwed()
  }

  private armOwed(): void {
    const now = this.host.environment.found.clock.currentTimeMillisUnsafe()
    const { since } = this.grace ?? { since: now }
    const left = Math.min(since + longestWait, this.running.until(since)) - now
    if (left > 0) this.timer = this.host.timers.after(left, () => this.abandon())
  }

  /** Answers a stopped call. */
  private pay(error: Tool.ToolError): void {
    const { owed } = this
    if (owed === undefined) return
    this.owed = undefined
    this.timer?.stop()
    // A stopped call has neither failed nor succeeded.
    const { reason } = error
    const cut = reason === "cancelled" ? { isCut: true } : { code: reason, result: error }
    this.span?.end({ ...cut, outcome: reason })
    // The call is answered before leaving its place, so that no successor in that place counts as its sibling.
    this.host.respond(this.job, owed.answer(error), reason === "abandoned" ? error : undefined)
  }

  /** `true` if the call is stopped and its answer waits for its handler. */
  get isOwing(): boolean {
    return this.owed !== undefined
  }

  /** Answers a call whose handler did not end in time: it may still take effect. */
  abandon(): void {
    if (this.owed !== undefined) this.pay(this.errorOf(this.owed, true))
  }

  /** Returns a stopped call's error. For a call in doubt, the error already states that it may have had its effect. */
  private errorOf({ error }: Owed<E>, isAbandoned: boolean): Tool.ToolError {
    return isAbandoned && error.reason !== "unknown_effect" ? ToolOutcomes.abandoned(this.job.call, error) : error
  }

  get isWaiting(): boolean {
    return this.phase === "waiting"
  }

  get isHeldUp(): boolean {
    return this.isWaiting || this.permits.isHeldUp
  }

  /**
   * `true` if the call may finish when the run stops: a running blocking handler, or an answer being written for the
   * record. A blocking tool's gates may not.
   */
  get mayFinish(): boolean {
    return this.phase === "running"
      ? this.job.isBlocking
      : this.isWriting && this.host.environment.journal !== undefined
  }

  /**
   * Stops the call with its turn. A call that may finish has the grace period begun at `graceSince`, and runs inside
   * its handler are asked to stop. A running encoder has the same grace period.
   */
  callBack(graceSince: number, cause: string): void {
    if (this.mayFinish) this.running.letFinish(this, graceSince, cause)
    else if (this.phase === "writing") this.running.beginGrace(this, graceSince)
    else this.cancel(`interrupted: ${cause}`)
  }

  /** Gives the call up: its grace period, begun at `graceSince`, is over. Nothing waits for its fiber any more. */
  giveUp(graceSince: number): void {
    if (this.phase === "writing") this.phase = "overruled"
    this.interrupt(graceSince)
    this.vacate()
  }

  private interrupt(graceSince = this.host.environment.found.clock.currentTimeMillisUnsafe()): void {
    this.running.interrupt(this, graceSince, () => {
      this.abandon()
      this.vacate()
    })
  }

  onAbandoned(): void {
    this.span?.end({ isCut: true, outcome: "abandoned" })
  }

  /**
   * Leaves its place and returns its permits, once: when its fiber has ended, or has refused to end for a whole grace
   * period. In the latter case the handler is still alive, but holds no permit and takes none from now on.
   */
  private vacate(): void {
    if (!this.hasPlace) return
    this.hasPlace = false
    this.permits.release()
    this.host.vacated(this)
  }

  /** Takes in the end of its fiber. A call not answered by then broke off. */
  private ended(exit: Exit.Exit<unknown, E>): void {
    const { job, host, phase } = this
    this.unfollow?.()
    if (phase === "answering" || phase === "overruled" || host.isOver) {
      if (this.owed !== undefined) this.pay(this.errorOf(this.owed, this.hasAbandoned))
      this.span?.end({ isCut: true, outcome: "interrupted" })
      // A stopped and answered call's fiber exit is ignored. A fiber failing while writing the answer fails the call.
      if (phase === "answering") host.answerEnded(job, exit)
    } else if (phase === "writing" && Exit.isFailure(exit)) {
      this.toAnswering()
      // A slow encoder may have been stopped from outside with the fiber. A quick one ended the fiber itself.
      if (this.isEncoderSlow) host.answerEnded(job, exit)
      else host.respond(job, this.unwritten(exit.cause))
    } else {
      const error = brokenOff(job.call, exit)
      this.span?.end({ code: error.reason, outcome: "interrupted" })
      this.toAnswering()
      host.respond(job, Answers.failed(host.answering, job, error))
    }
    this.vacate()
    this.running.remove(this)
  }
}

/** Returns a handler failure's code. */
const failureCode = (error: unknown): string => Answers.codeOf(error) ?? "tool_error"

/** Returns the error of a call whose fiber ended without an answer. */
const brokenOff = (call: Message.ToolCall, exit: Exit.Exit<unknown, unknown>): Tool.ToolError => {
  if (Exit.isSuccess(exit)) return toolError("handler_exit", call)
  const reason = Cause.hasInterruptsOnly(exit.cause) ? "handler_exit" : "handler_raised"
  return toolError(reason, call, { cause: Cause.squash(exit.cause) })
}

/** Returns the outcome name for a span. */
const outcomeName = (outcome: unknown): string => {
  const tag = Json.isObject(outcome) ? outcome["_tag"] : undefined
  return outcomeNames.get(tag) ?? "invalid"
}

const outcomeNames: ReadonlyMap<unknown, string> = new Map([
  ["Ok", "ok"],
  ["Error", "error"],
  ["AskUser", "ask_user"],
  ["Halt", "halt"]
])

// A handler's context, its attempts, and the executor running them.

/** Facts about the run, known to a step's handlers. */
interface Known {
  readonly context: Json.JsonObject
  readonly requestId: string
  readonly sessionId: string | null
  readonly approved?: ReadonlySet<string>
}

/** Returns the call context for a handler. */
const callContext = (
  { call, place: index }: Plan.Run,
  { approved, context, requestId, sessionId }: Known,
  stepIndex: number,
  progress: (value: unknown) => void,
  updateContext: (values: Json.JsonObject) => void,
  stop: (id: string, reason: string) => boolean
): Tool.CallContext => ({
  id: call.id,
  name: call.name,
  index,
  stepIndex,
  attempt: 1,
  // A run's first turn may have a call with the same id as an earlier, approved call.
  idempotencyKey: approved?.has(call.id) === true
    ? `${requestId}:approved:${call.id}`
    : `${requestId}:${stepIndex}:${index}:${call.id}`,
  requestId,
  sessionId,
  context,
  toolCall: copyOf(call),
  progress: (value) => Effect.sync(() => progress(value)),
  updateContext: (values: unknown) =>
    Effect.sync(() => {
      if (!Json.isObject(values)) throw new TypeError("call.updateContext takes an object of context values")
      updateContext(values)
    }),
  promise,
  cancelCall: (id, reason) => Effect.sync(() => stop(id, Cancellation.reasonOf(reason, "call.cancelCall")))
})

const copyOf = (call: Message.ToolCall): Message.ToolCall => ({
  ...call,
  arguments: Json.copy(call.arguments),
  metadata: Json.copy(call.metadata)
})

/**
 * Runs a Promise API. Interruption fires the signal and waits until the promise has settled, so nothing is alive after
 * the call's end.
 */
export const promise = <A>(run: (signal: AbortSignal) => PromiseLike<A>): Effect.Effect<A, Cause.UnknownError> =>
  Effect.callback<A, Cause.UnknownError>((resume) => {
    const controller = new AbortController()
    // A throwing API counts as rejecting.
    const settled = new Promise<A>((resolve) => resolve(run(controller.signal))).then(
      (value) => resume(Effect.succeed(value)),
      (cause: unknown) => resume(Effect.fail(new Cause.UnknownError(cause, rejection(cause))))
    )
    return Effect.suspend(() => {
      controller.abort()
      return Effect.promise(() => settled)
    })
  })

const rejection = (cause: unknown): string =>
  cause === undefined || cause === null
    ? "the promise was rejected without a reason"
    : ErrorFields.described(cause).text

/** Runs one attempt. */
type Attempt = (job: Plan.Run, context: Tool.CallContext) => Effect.Effect<unknown, never, any>

/**
 * Executes the handler, attempt after attempt. `inner` is the soft stop of a handler that may finish: no attempt starts
 * afterwards. `again` returns whether another attempt may start.
 */
const execute = (
  job: Plan.Run,
  context: Tool.CallContext,
  run: Attempt,
  inner: Cancellation.Cancellation | undefined,
  again: (error: unknown, attempt: number) => boolean,
  retry: Tool.Any["retry"]
): Effect.Effect<unknown, never, any> => {
  if (retry === undefined) return ToolOptions.attempt(() => run(job, context))
  const attempt = (number: number) =>
    Effect.suspend(() =>
      run(
        // An attempt may change its arguments, so the next gets its own copy.
        { ...job, args: Json.copy(job.args) },
        number === 1 ? context : { ...context, attempt: context.attempt + number - 1, toolCall: copyOf(job.call) }
      )
    )
  return retrying(retry, inner, again, attempt)
}

const once = (
  { args, call, tool }: Plan.Run,
  context: Tool.CallContext,
  executor: Executor.Service
): Effect.Effect<unknown, never, any> => {
  const given: unknown = executor.execute(tool, args, context)
  if (Effect.isEffect(given)) return given as Effect.Effect<unknown, never, any>
  const error = ToolOptions.promisedOutcome("the executor", given, call)
  return Effect.succeed(error === undefined ? given : { _tag: "Error", error })
}

/**
 * Runs one attempt once its start is in the journal, and calls `started` first. `isResolved`: the tool has decided to
 * restart the call.
 */
const begun = (
  job: Plan.Run,
  context: Tool.CallContext,
  executor: Executor.Service,
  journal: RunJournal.Journal,
  stop: Cancellation.Cancellation | undefined,
  waited?: ReadonlyArray<Waited>,
  started?: () => void,
  isResolved = false
): Effect.Effect<unknown, never, any> =>
  Effect.flatMapEager(
    journal.starts(context, job.tool, isResolved, waited),
    (begin): Effect.Effect<unknown, never, any> => {
      switch (begin._tag) {
        case "Start":
          started?.()
          return begin.handler(ToolOptions.attempt(() => once(job, context, executor)))
        case "Resolve": {
          const again = Effect.suspend(() => begun(job, context, executor, journal, stop, waited, started, true))
          return RunJournal.resolveUnknown(
            job.tool,
            job.args,
            context,
            job.isByHand ? undefined : again,
            journal.afterCrash
          )
        }
        case "Park":
          return RunJournal.parked(job.call, stop)
        case "Answer":
          return Effect.succeed(begin.instead)
      }
    }
  )

/**
 * Repeats failed attempts on the tool's schedule, which receives each error; the last failure is the outcome. A stop
 * ends the wait for the next attempt at once.
 */
const retrying = (
  schedule: NonNullable<Tool.Any["retry"]>,
  inner: Cancellation.Cancellation | undefined,
  again: (error: unknown, attempt: number) => boolean,
  attempt: (number: number) => Effect.Effect<unknown, never, any>
): Effect.Effect<unknown, never, any> =>
  Effect.flatMap(Schedule.toStepWithMetadata(schedule), (step) => {
    const from = (number: number, metadata: Schedule.Metadata): Effect.Effect<unknown, never, any> =>
      Effect.flatMap(Effect.provideService(attempt(number), Schedule.CurrentMetadata, metadata), (outcome) => {
        if (!isFailure(outcome) || isFinal(outcome.error)) return Effect.succeed(outcome)
        const granted = Pull.catchDone(step(outcome.error), () => Effect.succeed(undefined))
        return Effect.flatMap(
          Cancellation.orElse(granted, inner, () => undefined),
          (next) =>
            next !== undefined && again(outcome.error, number + 1)
              ? from(number + 1, next)
              : Effect.succeed(outcome)
        )
      })
    return from(1, Schedule.CurrentMetadata.defaultValue())
  })

/** Returns the outcome for a failed, dead or interrupted executor. */
const crashed = (call: Message.ToolCall, cause: Cause.Cause<unknown>): Tool.Outcome => ({
  _tag: "Error",
  error: toolError(Cause.hasInterruptsOnly(cause) ? "handler_exit" : "handler_raised", call, {
    cause: Cause.squash(cause)
  })
})

/**
 * Returns `true` for an error not followed by attempts: the call's effect is unknown, or the call does not run because
 * its run is stopped.
 */
const isFinal = (error: unknown): boolean =>
  error instanceof ToolError && (error.reason === "unknown_effect" || error.reason === "cancelled")

const isFailure = (outcome: unknown): outcome is Tool.Error =>
  Json.isObject(outcome) && outcome["_tag"] === "Error" && "error" in outcome
