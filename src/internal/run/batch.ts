/**
 * The calls of one turn while they run. What is to be done with each is decided in their order, those that may run are
 * admitted by the queue, and each is answered exactly once. A reader pulls the events; nothing here waits for the reader.
 * Code of the caller's may end the run while it runs, so that every step here looks again whether the batch is over.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import type * as Types from "effect/Types"
import * as Encoder from "../../Encoder.ts"
import type * as Event from "../../Event.ts"
import * as Executor from "../../Executor.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import * as Answers from "../answer/answer.ts"
import * as Settings from "../ask/options.ts"
import * as Plan from "../decide/plan.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Inherited from "../stop/inherited.ts"
import { HookFibers, Running } from "../stop/ownedFibers.ts"
import * as Telemetry from "../telemetry.ts"
import * as Admission from "./admission.ts"
import { Call, type Environment, type Host } from "./call.ts"
import { EventOrder } from "./eventOrder.ts"
import * as Replay from "./replay.ts"

/** A call of a batch. */
interface Entry {
  readonly job: Plan.Job
  answer: Answers.Answer | undefined
  /** Tells whether it waits for an answer from outside. */
  isWaiting: boolean
  /** Why it was not run, if it came up or was taken out of the queue when the batch had been called back. */
  unrun: string | undefined
}

export class Batch<E> implements Host<E> {
  readonly environment: Environment<E>
  readonly answering: Answers.Answering<E, any>
  readonly events: EventOrder<E>
  readonly timers: Deadline.Timers
  private readonly running: Running
  /** The calls that have come up, by their position, and how many they are. */
  private readonly entries: Array<Entry | undefined> = []
  private count = 0
  private isSealed = false
  isOver = false

  /** Calls that have come up and are not decided yet. Nothing is decided before the batch has begun. */
  private undecided: Array<Plan.Job> = []
  private hasBegun = false
  private isDeciding = false

  private readonly queue: Queue
  private readonly company = new Company<Call<E>>()
  /** What keeps calls from running: a halt for the rest of the turn, a failure for as long as others run beside it. */
  private skipping: Consequence | undefined
  /** Halts that came while calls admitted with theirs were being started. */
  private pendingHalts: Array<() => void> = []

  /** How many calls have been reported: with their answers, or as waiting. */
  private reported = 0
  private firstHalt: Event.Halt | undefined

  /** Takes back what lets a soft stop of the run call the batch back. */
  private readonly unsubscribe: (() => void) | undefined
  /** Why nothing more may start, once the turn is not to be acted on. */
  private cancellation: string | undefined
  /** When it was called back. Whatever is done for its calls has one grace period, which began then. */
  private since: number | undefined
  private isConcluding = false
  private hasConcluded = false

  constructor(environment: Environment<E>) {
    const { ambient: { cancellation, deadline }, bound, found, running, settings } = environment
    this.environment = environment
    this.running = running
    this.events = new EventOrder(settings.policy)
    this.timers = new Deadline.Timers(this.services)
    this.answering = {
      encoder: found.encoder,
      onToolError: settings.onToolError,
      policy: settings.policy,
      timeoutMillis: settings.timeoutMillis,
      clock: found.clock,
      fibers: new HookFibers(running, found.clock, environment.calls !== undefined)
    }
    this.queue = new Queue(bound, running, this.timers, this)
    this.unsubscribe = cancellation?.onRequest(() => this.cancel(cancellation.cause))
    if (deadline !== undefined) this.stopAt(deadline.toolsUntil)
  }

  private get services(): Context.Context<any> {
    return this.environment.found.services
  }

  private get policy(): Policy.Policy {
    return this.environment.settings.policy
  }

  private now(): number {
    return this.environment.found.clock.currentTimeMillisUnsafe()
  }

  // Calls come up, and what is to be done with them is decided.

  /** Calls that have come up. They are numbered by their position in the turn, and start in the order they come in. */
  add(jobs: ReadonlyArray<Plan.Job>): void {
    if (jobs.length === 0) return
    for (const job of jobs) {
      this.entries[job.index] = { job, answer: undefined, isWaiting: false, unrun: undefined }
      this.count++
      this.undecided.push(job)
    }
    if (this.hasBegun) this.decide()
    if (this.since !== undefined) this.afterCallBack(jobs, this.since)
  }

  /** Starts the calls that have come up, without waiting for a reader. */
  begin(): void {
    if (this.hasBegun) return
    this.hasBegun = true
    this.decide()
  }

  /** There are no more calls. */
  seal(): void {
    this.isSealed = true
    this.events.sealed(this.all.map(({ job }) => job))
  }

  /**
   * Decides what has come up, group after group, so that no call overtakes one whose arguments take time. Where nothing
   * takes time a group is decided as it comes up.
   */
  private decide(): void {
    const jobs = this.undecided
    if (this.isDeciding || jobs.length === 0) return
    this.isDeciding = true
    this.undecided = []
    const deciding = jobs.map((job) =>
      job._tag === "Decode"
        ? Plan.decide(job, this.policy, this.answering.timeoutMillis, this.answering.fibers)
        : Effect.succeed<Plan.Decided>(job)
    )
    const then = (decided: ReadonlyArray<Plan.Decided>) => {
      this.isDeciding = false
      this.decided(decided)
      this.decide()
    }
    if (deciding.every(isDone)) then(deciding.map((exit) => exit.value))
    else this.timers.when(Effect.all(deciding, { concurrency: this.environment.bound }), then)
  }

  /** What is to be done with every call of a group is known: those that cannot run are answered first. */
  private decided(decided: ReadonlyArray<Plan.Decided>): void {
    const runs: Array<Plan.Run> = []
    for (const job of decided) {
      if (this.isAnswered(job) || this.isReplayed(job)) continue
      if (job._tag === "Run") runs.push(job)
      if (job._tag === "Refuse") {
        const isUnknown = this.known(job.call)?.isUnknown === true
        this.respond(job, isUnknown ? this.unknown(job) : Answers.fromOutcome(this.answering, job, job.outcome))
      }
      if (job._tag === "Cancel") {
        const error = job.isUnknown === true ? Replay.unknownEffect(job.call).error : undefined
        this.respond(job, Answers.cancelled(this.answering, job, job.detail, error))
      }
    }
    const { ban } = this
    if (ban !== undefined) return runs.forEach((run) => this.abort(run, `not run: ${ban}`))
    this.queue.add(runs)
  }

  /** Reports a call that was answered before its run was resumed, or that goes on waiting, and returns whether it is one. */
  private isReplayed(job: Plan.Job | Plan.Run): boolean {
    const { call, index } = job
    const known = this.known(call)
    if (known?.answer === undefined && known?.waits === undefined) return false
    const { answer, waits } = known
    // A call that the end of the run cancels waits no longer.
    if (job._tag === "Cancel" && answer === undefined) return false
    if (waits?._tag !== "ToolApprovalRequested") {
      const { arguments: args, id, name } = call
      this.events.started(index, { _tag: "ToolExecutionStarted", id, name, arguments: args ?? {}, replayed: true })
    }
    if (waits !== undefined && waits._tag !== "AskUserRequested") {
      this.entryOf(job).isWaiting = true
      this.reported++
      this.events.settled(index, [{ ...waits, replayed: true }])
    } else {
      const replayed = waits === undefined ? answer : Answers.replayedQuestion(waits)
      if (replayed !== undefined) this.settle({ ...job, isExclusive: job._tag === "Run" && job.isExclusive }, replayed)
    }
    return true
  }

  private known(call: Message.ToolCall): Replay.Replayed | undefined {
    const { calls, settings: { approved, requestId }, stepIndex } = this.environment
    return calls?.find(call, { requestId, stepIndex, isApproved: approved?.has(call.id) === true })
  }

  /** The answer to a call that had started in another process and cannot run in this one. */
  private unknown(job: Answers.Numbered): Effect.Effect<Answers.Answer, E, any> {
    return Answers.cancelled(this.answering, job, "", Replay.unknownEffect(job.call).error)
  }

  /** Why nothing may start any more, if so. */
  private get ban(): string | undefined {
    return this.cancellation ?? this.skipping?.detail
  }

  private abort(job: Plan.Run, detail: string): void {
    if (this.since !== undefined) this.entryOf(job).unrun = detail
    const isUnknown = this.known(job.call)?.isUnknown === true
    this.respond(job, isUnknown ? this.unknown(job) : Answers.cancelled(this.answering, job, detail))
  }

  // The queue starts calls, and they leave their places.

  start(run: Plan.Run): void {
    if (this.isOver) return
    const { ban } = this
    if (ban !== undefined) {
      // It was admitted together with the call that brought this about.
      this.release(run)
      return this.abort(run, `not run: ${ban}`)
    }
    const call = new Call<E>(run, this)
    this.company.join(call)
    call.start()
  }

  /** A call that only handlers keep out which have been given up: it runs alone, or one of them does. */
  refuse(run: Plan.Run): void {
    const deaf = this.running.givenUpTasks.flatMap(({ kind, name }) => kind === "handler" ? [JSON.stringify(name)] : [])
    const why = run.isExclusive ? "it runs alone, and " : ""
    const names = deaf.length === 0 ? "" : `: ${[...new Set(deaf)].join(", ")}`
    this.abort(run, `not started: ${why}an earlier tool refused to stop and is still running${names}`)
  }

  /** Those that were admitted together have all been started. A halt reaches every one of them. */
  started(): void {
    const { pendingHalts } = this
    if (pendingHalts.length === 0) return
    this.pendingHalts = []
    for (const reach of pendingHalts) reach()
  }

  /** A handler ended, or outlived its grace period: its place is free. */
  vacated(call: Call<E>): void {
    this.company.leave(call)
    this.release(call.job)
    if (this.isSettled) this.events.wake()
  }

  /** A failure is forgotten when no call is left that ran beside it. */
  private release(run: Plan.Run): void {
    this.queue.release(run)
    if (this.queue.holding === 0 && this.skipping?.isHalt === false) this.skipping = undefined
  }

  // Calls are answered.

  /** Writes the answer of a call in a fiber of its own. */
  respond(job: Answers.Numbered, answer: Effect.Effect<Answers.Answer, E, any>): void {
    if (this.isOver) return
    const fiber = Effect.runForkWith(this.services)(
      Effect.withFiber((fiber) => {
        this.answering.fibers.own(job.call, fiber)
        return Effect.map(answer, (value) => void this.settle(job, value))
      })
    )
    fiber.addObserver((exit) => this.answerEnded(job, exit))
  }

  /** What the caller's policy failed with is the run's failure. Any other end without an answer costs this one call. */
  answerEnded(job: Answers.Numbered, exit: Exit.Exit<unknown, E>): void {
    if (Exit.isSuccess(exit) || this.isOver || this.isAnswered(job)) return
    if (!Cause.hasFails(exit.cause)) return void this.settle(job, Answers.lost(this.answering, job, exit.cause))
    this.isOver = true
    this.events.fail(exit.cause)
  }

  /** The call waits for an answer from outside. It is no call's sibling then, and the batch does not wait for it. */
  suspend(job: Plan.Run, event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">): void {
    if (this.isSpokenFor(job)) return
    this.entryOf(job).isWaiting = true
    void this.recorded(this.environment.calls?.waits(job.call, event), () => {
      this.reported++
      this.events.settled(job.index, [event])
    })
  }

  /**
   * Takes in the answer of a call. It is recorded first, where the run is: only then it is reported, and reaches the calls
   * beside it. What is returned waits for that, and may be dropped.
   */
  settle(job: Answers.Numbered, answer: Answers.Answer): Effect.Effect<void> {
    if (this.isSpokenFor(job)) return Effect.void
    this.entryOf(job).answer = answer
    const record = answer.isReplayed === true ? undefined : this.environment.calls?.answered(job.call, answer)
    return this.recorded(record, () => this.report(job, answer))
  }

  /** Continues once the record is written, in a fiber that no stop of a call can interrupt. */
  private recorded(record: Effect.Effect<void> | undefined, then: () => void): Effect.Effect<void> {
    if (record === undefined) {
      then()
      return Effect.void
    }
    const fiber = Effect.runForkWith(this.services)(record)
    const done = Deferred.makeUnsafe<void>()
    fiber.addObserver((exit) => {
      if (Exit.isSuccess(exit) && !this.isOver) then()
      Deferred.doneUnsafe(done, Exit.void)
    })
    return Deferred.await(done)
  }

  private report(job: Answers.Numbered, answer: Answers.Answer): void {
    this.reported++
    this.firstHalt ??= answer.halt
    const { id, name } = job.call
    const { cause, contextUpdate, raw: result, tail } = answer
    const completed: Types.Mutable<Event.Of<"ToolExecutionCompleted">> = {
      _tag: "ToolExecutionCompleted",
      id,
      name,
      result
    }
    if (contextUpdate !== undefined) completed.contextUpdate = contextUpdate
    if (cause !== undefined) completed.cause = cause
    if (answer.isReplayed === true) completed.replayed = true
    const events: ReadonlyArray<Event.Event> = job.isSettlement === true && tail._tag === "ToolResultEncoded"
      ? [{ ...tail, settled: true }]
      : [completed, answer.isReplayed === true ? { ...tail, replayed: true } : tail]
    this.events.settled(job.index, events)
    this.reachSiblings(job, answer)
    if (this.isSettled) this.events.wake()
  }

  /** Those that have come up, in call order. */
  private get all(): ReadonlyArray<Entry> {
    return this.entries.filter((entry) => entry !== undefined)
  }

  private entryOf({ index }: Answers.Numbered): Entry {
    const entry = this.entries[index]
    if (entry === undefined) throw new Error(`no call has come up at position ${index}`)
    return entry
  }

  private isSpokenFor(job: Answers.Numbered): boolean {
    const { answer, isWaiting } = this.entryOf(job)
    return answer !== undefined || isWaiting
  }

  private isAnswered(job: Answers.Numbered): boolean {
    return this.entryOf(job).answer !== undefined
  }

  /** A halt or a failure may stop the calls beside it, and keep those from running that wait. */
  private reachSiblings(job: Answers.Numbered, answer: Answers.Answer): void {
    const consequence = consequenceOf(this.policy.siblings, answer, job.isExclusive === true)
    if (consequence === undefined) return
    if (consequence.isHalt && this.queue.isStarting) this.pendingHalts.push(() => this.reach(job, consequence))
    else this.reach(job, consequence)
  }

  private reach(job: Answers.Numbered, consequence: Consequence): void {
    if (this.isOver) return
    const { detail, isHalt, isSkipping } = consequence
    const concerned = isHalt ? this.company.all : this.company.beside(job.index)
    // Those that wait come first: a call that is interrupted makes room, and none of them is to take it.
    if (isSkipping && (isHalt || concerned.length > 0)) {
      this.skipping = this.skipping?.isHalt === true ? this.skipping : consequence
      for (const run of this.queue.clear()) this.abort(run, `not run: ${detail}`)
    }
    for (const call of concerned) {
      const isOther = call.job.index !== job.index
      if (isOther && isReached(consequence, call)) call.cancel(`interrupted: ${detail}`)
    }
  }

  // The batch is stopped.

  /** Tools have to end by then; later calls do not run. */
  private stopAt(millis: number): void {
    const left = millis - this.now()
    if (left <= 0) this.cancel(Deadline.toolsCause)
    else this.timers.after(left, () => this.cancel(Deadline.toolsCause))
  }

  /**
   * Stops what has come up, and whatever still may: the turn is not to be acted on. The batch does not end before all
   * have stopped or had their grace period, in which blocking handlers may finish. It began with the soft stop of the
   * run, if there was one.
   */
  cancel(cause: string): void {
    const { running } = this
    this.cancellation = cause
    const since = this.since ??= Math.min(this.now(), running.softSince ?? Infinity)
    this.answering.fibers.letFinish(since)
    for (const run of this.queue.clear()) this.abort(run, `not run: ${cause}`)
    for (const call of this.company.all) call.callBack(since, cause)
    this.concludeAfter(since, `interrupted: ${cause}`)
    this.events.wake()
  }

  /** Calls that come up when it has been called back. After its grace period what needs time does not answer them. */
  private afterCallBack(jobs: ReadonlyArray<Plan.Job>, since: number): void {
    const detail = `not run: ${this.cancellation}`
    for (const job of jobs) this.entryOf(job).unrun = detail
    if (this.hasConcluded && !this.isConcluding) this.concludeAfter(since, detail)
  }

  /** The handler around the run may have less time than there was when the batch was called back first. */
  private concludeAfter(since: number, detail: string): void {
    this.isConcluding = true
    const left = Math.max(0, this.running.until(since) - this.now())
    this.timers.after(left, () => this.conclude(since, detail))
  }

  /** Whatever is not answered by now is answered without it: a blocking handler, a policy, a decoder, an encoder. */
  private conclude(since: number, detail: string): void {
    this.isConcluding = false
    this.hasConcluded = true
    const calls = this.company.all
    for (const call of calls) call.cancel(detail, since)
    for (const { job, unrun } of this.all) {
      if (!this.isSpokenFor(job)) void this.settle(job, Answers.unfinished(job, unrun ?? detail))
    }
    for (const call of calls) call.giveUp(since)
    this.answering.fibers.interrupt(since)
  }

  /** Ends the timers; nothing starts any more. What runs belongs to the run and is stopped with it. */
  close(): Effect.Effect<void> {
    this.isOver = true
    this.unsubscribe?.()
    this.queue.close()
    this.events.wake()
    return this.timers.close()
  }

  // What a reader sees of it.

  /** The events, in the order the policy asks for; it ends when there are no more calls and each has been answered. */
  get pull(): Pull.Pull<Arr.NonEmptyReadonlyArray<Event.Event>, E> {
    return Effect.suspend(() => this.next())
  }

  private next(): Pull.Pull<Arr.NonEmptyReadonlyArray<Event.Event>, E> {
    if (this.isAtEnd) return Cause.done()
    return Effect.flatMap(
      this.take,
      (events) => Arr.isReadonlyArrayNonEmpty(events) ? Effect.succeed(events) : this.next()
    )
  }

  /** The events that are ready; waits if there are none. The first pull starts the calls. */
  get take(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    this.begin()
    return this.events.take
  }

  /** The events that are ready, without waiting for more. */
  takeNow(): ReadonlyArray<Event.Event> {
    return this.events.takeNow()
  }

  /** Lets a reader that waits in `take` look again. */
  wake(): void {
    this.events.wake()
  }

  get isEmpty(): boolean {
    return this.events.isEmpty
  }

  /** Whether there are no more events. */
  get isAtEnd(): boolean {
    return this.isEmpty && (this.isOver || this.isSettled)
  }

  /** Whether every call has been answered, or waits. Those that were called back are waited for, too. */
  get isSettled(): boolean {
    return this.isSealed && !this.isBusy && (this.since === undefined || this.queue.holding === 0)
  }

  /** Whether a call is neither answered nor waits for an approval. */
  get isBusy(): boolean {
    return this.reported < this.count
  }

  /** The answers so far, in call order. */
  get answers(): ReadonlyArray<Answers.Answer> {
    return this.all.flatMap(({ answer }) => answer ?? [])
  }

  /**
   * The halt that decides: the first call's, or that of the call that completed first. The fold cannot tell which that was
   * where the policy shows results in call order.
   */
  get halt(): Event.Halt | undefined {
    return this.policy.haltPrecedence === "completion"
      ? this.firstHalt
      : this.entries.find((entry) => entry?.answer?.halt !== undefined)?.answer?.halt
  }
}

const isDone = <A>(effect: Effect.Effect<A, unknown, unknown>): effect is Exit.Success<A> =>
  Exit.isExit(effect) && Exit.isSuccess(effect)

/**
 * The calls that wait for their turn, and how many have a place. It drives the admission machine: a call that may start
 * is started at once, whenever one comes up, leaves its place, or a handler outside of the queue ends. A call that only
 * outsiders keep out waits one grace period for them, and is then refused. One that waits for a place of theirs starts
 * when they are given up, which is at the end of their grace period.
 */
export class Queue {
  /** How many have a place. */
  holding = 0
  /** Whether calls that were admitted together are being started. */
  isStarting = false
  private admission: Admission.Admission<Plan.Run>
  private readonly running: Running
  private readonly timers: Deadline.Timers
  private readonly batch: Pick<Batch<any>, "start" | "refuse" | "started">
  private readonly unsubscribe: () => void
  private isAdmitting = false
  private hasRoom = false
  private patience: Deadline.Timer | undefined
  /** Whether the head has waited for one grace period, and waits for a place that is about to be given up. */
  private isExtended = false

  constructor(
    bound: number,
    running: Running,
    timers: Deadline.Timers,
    batch: Pick<Batch<any>, "start" | "refuse" | "started">
  ) {
    this.admission = Admission.make(bound)
    this.running = running
    this.timers = timers
    this.batch = batch
    this.unsubscribe = running.onRoom(() => this.admit())
  }

  add(runs: ReadonlyArray<Plan.Run>): void {
    this.admission = Admission.enqueue(this.admission, runs)
    this.admit()
  }

  /** Takes out every call that has no place yet. */
  clear(): ReadonlyArray<Plan.Run> {
    const waiting = Admission.waiting(this.admission)
    this.admission = Admission.clear(this.admission)
    return waiting
  }

  /** A call has left its place. The next is admitted when the run knows that its handler has ended. */
  release(run: Plan.Run): void {
    this.holding--
    this.admission = Admission.release(this.admission, run)
  }

  close(): void {
    this.unsubscribe()
  }

  /** Starts every call that may start. Handlers that end at once make room while this runs, so it loops and never nests. */
  private admit(): void {
    this.hasRoom = true
    if (this.isAdmitting) return
    this.isAdmitting = true
    while (this.hasRoom && Admission.isWaiting(this.admission)) {
      this.hasRoom = false
      const outsiders = this.running.outsiders(this.holding, this.admission.isExclusiveRunning)
      const [runs, next] = Admission.admit(this.admission, outsiders)
      this.admission = next
      this.holding += runs.length
      this.isStarting = true
      for (const run of runs) this.batch.start(run)
      this.isStarting = false
      this.batch.started()
    }
    this.isAdmitting = false
    if (Admission.stuck(this.admission) === undefined) this.isUnstuck()
    else this.patience ??= this.timers.after(this.running.graceMillis, () => this.outOfPatience())
  }

  /** The next call that is stuck waits as long as this one could have. */
  private isUnstuck(): void {
    this.patience?.stop()
    this.patience = undefined
    this.isExtended = false
  }

  /**
   * The outsiders have had their grace period. It may have begun a moment after the wait for them, so that a place which
   * is about to be given up is waited for once more.
   */
  private outOfPatience(): void {
    this.patience = undefined
    const wasExtended = this.isExtended
    this.isExtended = false
    for (let run = Admission.stuck(this.admission); run !== undefined; run = Admission.stuck(this.admission)) {
      this.isExtended = !wasExtended && Admission.isCrowdedOut(this.admission)
      if (this.isExtended) break
      this.admission = Admission.skip(this.admission)
      this.batch.refuse(run)
    }
    this.admit()
  }
}

// How a batch is opened: with what it needs of the services of its run.

/**
 * A batch of calls inside a run: what a step opens for its turn. `calls` is how many are expected at most, `Infinity` where
 * that is not known. Its handlers belong to `running`; the caller has to close it.
 */
export const open = <E, R>(
  context: Context.Context<R>,
  calls: number,
  settings: Settings.Settings<E, R>,
  stepIndex: number,
  running: Running,
  ambient: Inherited.Ambient
): Batch<E> =>
  new Batch<E>({
    found: find(context, ambient),
    settings,
    bound: settings.maxConcurrency ?? Settings.defaultBound(calls),
    stepIndex,
    running,
    ambient,
    calls: Context.get(context, Replay.CurrentCalls)
  })

/** What a batch needs of the services of a step. It is looked up once for all steps that have the same. */
const find = <R>(context: Context.Context<R>, ambient: Inherited.Ambient): Inherited.Found => {
  if (ambient.found?.context === context) return ambient.found
  return ambient.found = {
    context,
    executor: Context.get(context, Executor.Executor),
    encoder: Context.get(context, Encoder.Encoder),
    services: Replay.withoutCalls(Inherited.forHandlers(context, ambient)),
    clock: Context.get(context, Clock.Clock),
    isTraced: Telemetry.isTraced(context)
  }
}

/** A batch that is closed with the scope, of a run that ends with it. */
export const scoped = <E, R>(
  calls: number,
  settings: Settings.Settings<E, R>,
  options: { readonly stepIndex?: number; readonly cancel?: Settings.RunnerOptions<E, R>["cancel"] | undefined },
  scope: Scope.Scope
): Effect.Effect<Opened<E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) => {
    const running = new Running(settings.graceMillis, context as Context.Context<never>)
    return Effect.flatMap(Inherited.enter(settings, options.cancel, scope, context), (ambient) => {
      const batch = open<E, R>(context, calls, settings, options.stepIndex ?? 0, running, ambient)
      const leaving = Effect.suspend(() => {
        const closed = batch.close()
        return Effect.andThen(running.end(Exit.void), closed)
      })
      return Effect.map(Scope.addFinalizer(scope, leaving), () => {
        Inherited.listen(running, ambient, options.cancel, settings.requestId)
        return { ambient, batch, running }
      })
    })
  }).pipe(
    // A batch listens and waits from the start: nothing can come between that and the scope that ends it.
    Effect.uninterruptible
  )

/** A batch and the run that it is of. */
interface Opened<E> {
  readonly ambient: Inherited.Ambient
  readonly batch: Batch<E>
  readonly running: Running
}

// What one call's end does to its siblings: which calls they are, which of them are interrupted, and whether those that
// wait still run.

export interface Consequence {
  /** Whether handlers that block interruption are interrupted as well. */
  readonly isForAll: boolean
  readonly isSkipping: boolean
  /** A halt ends the turn; a failure concerns those that run beside it. */
  readonly isHalt: boolean
  readonly detail: string
}

type Siblings = Policy.Policy["siblings"]

const isTrigger = (siblings: Siblings, answer: Answers.Answer): boolean =>
  answer.failure === "crashed" || (answer.failure === "reported" && siblings.trigger !== "crashed")

/** The consequence of an answer, if it has one. An exclusive call that failed ran alone, so no call is beside it. */
export const consequenceOf = (
  siblings: Siblings,
  answer: Answers.Answer,
  isExclusive: boolean
): Consequence | undefined => {
  const onHalt = answer.halt === undefined ? "drain" : siblings.onHalt
  const onFailure = isTrigger(siblings, answer) && !isExclusive ? siblings.onToolError : "drain"
  if (onHalt === "drain" && onFailure === "drain") return undefined
  const isHalt = onHalt !== "drain"
  return {
    isForAll: onHalt === "abortAll" || onFailure === "abortAll",
    isSkipping: siblings.queued === "skip",
    isHalt,
    detail: isHalt ? "another call of the turn ended it" : "a call beside it failed"
  }
}

/** A call that has a place. */
interface Placed {
  /** It waits for permits, and so is no further than those that have no place yet. */
  readonly isWaiting: boolean
  readonly job: { readonly index: number; readonly isBlocking: boolean }
}

/** Whether a call is stopped by the end of another one. One that waits is skipped or not, as those in the queue are. */
export const isReached = ({ isForAll, isSkipping }: Consequence, { isWaiting, job }: Placed): boolean =>
  isWaiting ? isSkipping : isForAll || !job.isBlocking

/** The calls that have a place, in the order in which they got it, and which of them had it at the same time. */
export class Company<Member extends Placed> {
  /** Those that are there, and how many had come before each. */
  private readonly members = new Map<Member, number>()
  /** By the position of a call that has left: how many had come by then. */
  private readonly before: Array<number | undefined> = []
  private count = 0

  join(member: Member): void {
    this.members.set(member, this.count++)
  }

  leave(member: Member): void {
    this.members.delete(member)
    this.before[member.job.index] = this.count
  }

  get all(): ReadonlyArray<Member> {
    return Array.from(this.members.keys())
  }

  /** Those that were there at the same time as a call, itself included as long as it is there. */
  beside(index: number): ReadonlyArray<Member> {
    const before = this.before[index] ?? Infinity
    return Array.from(this.members).filter(([, earlier]) => earlier < before).map(([member]) => member)
  }
}
