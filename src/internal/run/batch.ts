/**
 * Runs the calls in one turn. The batch decides on each call in order, its queue admits calls, and each call is
 * answered exactly once. A reader pulls the events; nothing here waits for the reader. Caller code may end the run
 * calling it, so every step here checks again whether the batch is over.
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
import * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import * as Answers from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import * as Settings from "../ask/options.ts"
import * as Plan from "../decide/plan.ts"
import * as ToolOutcomes from "../declare/outcome.ts"
import { toolError } from "../declare/outcome.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import { behind, type Wait } from "../permits/permits.ts"
import * as Deadline from "../stop/deadline.ts"
import * as Inherited from "../stop/inherited.ts"
import { HookFibers, Running, type Stoppable } from "../stop/ownedFibers.ts"
import * as Timers from "../stop/timers.ts"
import * as Telemetry from "../telemetry.ts"
import * as Admission from "./admission.ts"
import { Call, type Environment, type Host } from "./call.ts"
import { EventOrder } from "./eventOrder.ts"
import * as RunJournal from "./runJournal.ts"

/** A call in a batch. */
interface Entry {
  readonly job: Plan.Job
  answer: Answers.Answer | undefined
  /** Event of its wait for an outside answer, while waiting. */
  waiting: Event.Of<"ToolApprovalRequested" | "ToolSuspended"> | undefined
  /** `true` while its answer is being written outside its own fiber. */
  isAnswering: boolean
  /** Set if this call alone was stopped: `withdrawn` while waiting for an outside answer, otherwise `unrun`. */
  stopped: "unrun" | "withdrawn" | undefined
  /** Reason it did not run, if the batch was cancelled while the call was queued, or before it came up. */
  unrun: string | undefined
  /** Error of a call whose handler did not stop in time. Writing its answer may take time. */
  left: Tool.ToolError | undefined
  /** Time its wait for a turn began, in milliseconds since 1970. `undefined` without a wait. */
  queuedAt: number | undefined
  /** The wait that began then. */
  queuedFor: Wait | undefined
  /** Time it came up, in milliseconds, and the way. The time is kept if the run is observed. */
  readonly cameUpAt: number | undefined
  readonly way: Way
  /** `true` if it has a span, or had one when it began to wait. */
  hasSpan: boolean
}

/** The way a call comes up: before its reply is complete, or after waiting. */
type Way = "early" | "waited" | undefined

export class Batch<E> implements Host<E>, Stoppable {
  readonly environment: Environment<E>
  readonly answering: Answers.Answering<E, any>
  readonly events: EventOrder<E>
  readonly timers: Timers.Timers
  private readonly running: Running
  /** Calls by position, once they have come up, and their number. */
  private readonly entries: Array<Entry | undefined> = []
  private count = 0
  private isSealed = false
  isOver = false

  /** Calls that have come up, awaiting decisions. No call is decided before the batch begins. */
  private undecided: Array<Plan.Job> = []
  private hasBegun = false
  private isDeciding = false

  private readonly queue: Queue
  private readonly company = new Company<Call<E>>()
  /** An ending that keeps calls from running: a halt for the rest of the turn, a failure while calls beside it run. */
  private skipping: Consequence | undefined
  /** Sibling effects of halts arriving while calls admitted together were being started. */
  private pendingHalts: Array<() => void> = []

  /** Number of calls reported, either answered or waiting. */
  private reported = 0
  private firstHalt: Event.Halt | undefined

  /** Removes the listener through which a soft stop cancels the batch. */
  private readonly unsubscribe: (() => void) | undefined
  /** Removes the batch from the run. */
  private readonly removed: () => void
  /** Cancellation cause. No call starts afterwards. */
  private cancellation: string | undefined
  /** Cancellation time. All work for its calls shares one grace period, beginning then. */
  private since: number | undefined
  private isConcluding = false
  private hasConcluded = false

  constructor(environment: Environment<E>) {
    const { ambient: { cancellation, deadline }, bound, found, running, settings } = environment
    this.environment = environment
    this.running = running
    this.events = new EventOrder(settings.policy, running.moved)
    this.timers = new Timers.Timers(this.services)
    this.answering = {
      encoder: found.encoder,
      onToolError: settings.onToolError,
      policy: settings.policy,
      timeoutMillis: Settings.silentMillis(settings),
      clock: found.clock,
      fibers: new HookFibers(running, found.clock, environment.journal !== undefined)
    }
    this.queue = new Queue(bound, running, this.timers, this)
    this.removed = running.addTurn(this)
    this.unsubscribe = cancellation?.onRequest(() => this.cancel(cancellation.cause))
    if (deadline !== undefined) this.stopAt(deadline.toolsUntil)
    environment.journal?.working(() => this.waits)
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

  // Calls come up and are decided.

  /** Adds calls that have come up. They are numbered by position in the turn, and start in the given order. */
  add(jobs: ReadonlyArray<Plan.Job>, way?: Way): void {
    if (jobs.length === 0) return
    const cameUpAt = this.environment.found.tracing === undefined ? undefined : this.now()
    for (const job of jobs) {
      this.entries[job.index] = {
        job,
        answer: undefined,
        waiting: undefined,
        isAnswering: false,
        stopped: undefined,
        unrun: undefined,
        left: undefined,
        queuedAt: undefined,
        queuedFor: undefined,
        cameUpAt,
        way,
        hasSpan: way === "waited"
      }
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

  /** Notes that no more calls will come. */
  seal(): void {
    this.isSealed = true
    this.events.sealed(this.all.map(({ job }) => job))
  }

  /**
   * Decides on the calls group by group, so that no call overtakes another with slow arguments. A group without waiting
   * is decided at once.
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

  /** Carries out the decisions on a group: answers calls unable to run, then queues the others. */
  private decided(decided: ReadonlyArray<Plan.Decided>): void {
    const runs: Array<Plan.Run> = []
    for (const job of decided) {
      const known = this.known(job.call)
      if (this.isSpokenFor(job) || this.entryOf(job).stopped !== undefined || this.isReplayed(job, known)) continue
      const expected = job._tag === "Cancel" ? undefined : this.running.expectedStop([job.call.id])
      if (expected !== undefined) {
        this.stopUnrun(job, expected)
        continue
      }
      const changed = job._tag === "Cancel" ? undefined : this.changed(job, known)
      if (changed !== undefined) {
        this.respond(job, changed)
        continue
      }
      if (job._tag === "Run") runs.push(job)
      if (job._tag === "Refuse") {
        const isUnknown = known?.isUnknown === true
        this.respond(job, isUnknown ? this.unknown(job) : Answers.fromOutcome(this.answering, job, job.outcome))
      }
      if (job._tag === "Cancel") {
        this.respond(job, Answers.cancelled(this.answering, job, this.unrun(job, job.detail)))
      }
      if (job._tag === "HandOver") this.handOver(job)
    }
    const { ban } = this
    if (ban !== undefined) return runs.forEach((run) => this.abort(run, `not run: ${ban}`))
    this.queue.add(runs)
  }

  /**
   * Reports a call already answered before its run was resumed, or still waiting. Returns `false` for any other call.
   */
  private isReplayed(job: Plan.Job | Plan.Run, known = this.known(job.call)): boolean {
    const { call, index } = job
    if (known?.answer === undefined && known?.waits === undefined) return false
    const { answer, waits } = known
    // A call cancelled by the end of the run no longer waits.
    if (job._tag === "Cancel" && answer === undefined) return false
    if (waits?._tag !== "ToolApprovalRequested") {
      this.events.started(index, RunJournal.startBefore(call, known, this.policy))
    }
    if (waits !== undefined && waits._tag !== "AskUserRequested") {
      this.entryOf(job).waiting = waits
      this.reported++
      this.events.settled(index, [{ ...waits, replayed: true }])
    } else {
      const replayed = waits === undefined ? answer : Answers.replayedQuestion(waits)
      if (replayed !== undefined) this.settle({ ...job, isExclusive: job._tag === "Run" && job.isExclusive }, replayed)
    }
    return true
  }

  /** Suspends an approved call run by the caller, unless no call may start. */
  private handOver(job: Plan.HandOver): void {
    const { ban, environment: { found } } = this
    if (ban !== undefined) return this.abort(job, `not run: ${ban}`)
    const suspension = Plan.handedOver(job, this.policy, found.clock.currentTimeMillisUnsafe())
    this.suspend(job, OpenCalls.suspended(job.call, ToolOutcomes.suspended([suspension])))
  }

  /**
   * Returns the answer of a call that will not run: another call had stopped it before its process died, or its tool
   * has changed or disappeared.
   */
  private changed(
    job: Plan.Decided,
    known: RunJournal.Replayed | undefined
  ): Effect.Effect<Answers.Answer, E, any> | undefined {
    if (job._tag === "Run" && known?.beside?.some((id) => this.hasReached(id, job)) === true) return this.unknown(job)
    if (known?.version === undefined || known.version === job.tool?.version) return undefined
    if (known.isUnknown === true) return this.unknown(job)
    const detail = job.tool === undefined
      ? "the run no longer has the tool of the call"
      : "the tool of the call has changed since the run began"
    return Answers.denied(this.answering, job, toolError("denied", job.call, { detail, metadata: { gate: "version" } }))
  }

  /** Returns `true` if a call that ended before the resume stopped another, started beside it at the time. */
  private hasReached(id: string, job: Plan.Run): boolean {
    const ended = this.all.find(({ job: { call } }) => call.id === id)
    const { answer, waits } = ended && this.known(ended.job.call) || {}
    const replayed = waits?._tag === "AskUserRequested" ? Answers.replayedQuestion(waits) : answer
    const consequence = replayed && consequenceOf(this.policy.siblings, replayed, false)
    return consequence !== undefined && isReached(consequence, { isWaiting: false, job })
  }

  private known(call: Message.ToolCall): RunJournal.Replayed | undefined {
    return this.environment.journal?.find(call)
  }

  /**
   * Returns the error for a call that will not run. Its effect is unknown if it had started in another process, unless
   * every attempt there failed.
   */
  private unrun(job: Answers.Numbered | Plan.Job, detail: string): ToolOutcomes.ToolError {
    const known = this.known(job.call)
    const isUnknown = "isUnknown" in job && job.isUnknown === true || known?.isUnknown === true
    if (isUnknown) return RunJournal.unknownEffect(job.call).error
    const hasFailed = known?.waits === undefined && (known?.attempt ?? 0) > 0
    return cancelled(job, hasFailed ? detail.replace(/^not run: /, "not tried again: ") : detail)
  }

  /** Answers a call started in another process, which cannot run in this process. */
  private unknown(job: Answers.Numbered): Effect.Effect<Answers.Answer, E, any> {
    return Answers.cancelled(this.answering, job, RunJournal.unknownEffect(job.call).error)
  }

  /** Reason no call may start now, if any. */
  private get ban(): string | undefined {
    return this.cancellation ?? this.skipping?.detail
  }

  private abort(job: Answers.Numbered, detail: string): void {
    if (this.since !== undefined) this.entryOf(job).unrun = detail
    this.respond(job, Answers.cancelled(this.answering, job, this.unrun(job, detail)))
  }

  // The queue starts calls, and they leave their places.

  start(run: Plan.Run): void {
    if (this.isOver) return
    const { ban } = this
    if (ban !== undefined) {
      // The call was admitted together with the call whose end keeps it from running.
      this.release(run)
      return this.abort(run, `not run: ${ban}`)
    }
    const { queuedAt, queuedFor, stopped } = this.entryOf(run)
    // The call was stopped by another admitted together with it.
    if (stopped !== undefined) return this.release(run)
    const isQueued = queuedAt !== undefined && queuedFor !== undefined
    const waits = isQueued ? [{ ...queuedFor, millis: Math.max(0, this.now() - queuedAt) }] : undefined
    const call = new Call<E>(run, this, waits)
    this.company.join(call)
    call.start()
  }

  /** Reports once that a call waits for its turn. Not recorded, and without consequences. */
  queued({ call: { id, name }, index }: Plan.Run, wait: Wait): void {
    const entry = this.entries[index]
    if (this.isOver || entry === undefined || entry.queuedAt !== undefined) return
    entry.queuedAt = this.now()
    entry.queuedFor = wait
    if (this.policy.callFacts === "told") this.events.queued(index, { _tag: "ToolQueued", id, name, ...wait })
  }

  /** Calls now waiting for their turn: calls without a place, and placed calls waiting for permits. */
  get waits(): ReadonlyArray<RunJournal.Waits> {
    if (this.isOver) return []
    const queued = this.queue.waits.flatMap(([{ call: { id }, index }, wait]) => {
      const since = this.entries[index]?.queuedAt
      return since === undefined ? [] : [{ ...wait, id, since }]
    })
    const placed = this.company.all.filter(({ isWaiting }) => isWaiting)
    return [...queued, ...placed.map(({ id, permits, startedAt }) => ({ ...permits.wait, id, since: startedAt }))]
  }

  /** Refuses a call kept out only by earlier calls' live handlers, which refused to stop. */
  refuse(run: Plan.Run): void {
    const deaf = this.running.givenUpTasks.flatMap(({ kind, name }) => kind === "handler" ? [JSON.stringify(name)] : [])
    const why = run.isExclusive ? "it runs alone, and " : ""
    const names = deaf.length === 0 ? "" : `: ${[...new Set(deaf)].join(", ")}`
    this.abort(run, `not started: ${why}an earlier tool refused to stop and is still running${names}`)
  }

  /** Applies pending halts to calls admitted together, which have all been started. */
  started(): void {
    const { pendingHalts } = this
    if (pendingHalts.length === 0) return
    this.pendingHalts = []
    for (const reach of pendingHalts) reach()
  }

  /** Frees the place of a call whose handler ended or outlived its grace period. */
  vacated(call: Call<E>): void {
    this.company.leave(call)
    this.release(call.job)
    if (this.isSettled) this.events.wake()
  }

  /** Frees a call's place. A failure is forgotten once no call that ran beside it is left. */
  private release(run: Plan.Run): void {
    this.queue.release(run)
    if (this.queue.holding === 0 && this.skipping?.isHalt === false) this.skipping = undefined
  }

  // Calls are answered.

  /** Writes a call's answer in a separate fiber. */
  respond(job: Answers.Numbered, answer: Effect.Effect<Answers.Answer, E, any>, error?: Tool.ToolError): void {
    if (this.isOver) return
    const entry = this.entryOf(job)
    entry.left = error
    entry.isAnswering = true
    const fiber = Effect.runForkWith(this.services)(
      Effect.withFiber((fiber) => {
        this.answering.fibers.own(job.call, fiber)
        return Effect.map(answer, (value) => void this.settle(job, value))
      })
    )
    fiber.addObserver((exit) => this.answerEnded(job, exit))
  }

  /**
   * Takes in the exit of a fiber meant to answer a call. A failure from the caller's policy fails the run. Any other
   * end without an answer answers this call as lost.
   */
  answerEnded(job: Answers.Numbered, exit: Exit.Exit<unknown, E>): void {
    if (Exit.isSuccess(exit) || this.isOver || this.isSpokenFor(job)) return
    if (!Cause.hasFails(exit.cause)) return void this.settle(job, Answers.lost(this.answering, job, exit.cause))
    this.isOver = true
    this.events.fail(exit.cause)
  }

  /** Suspends a call. From now on it has no siblings, and the batch does not wait for its answer. */
  suspend(job: Answers.Numbered, event: Event.Of<"ToolApprovalRequested" | "ToolSuspended">): void {
    if (this.isSpokenFor(job)) return
    this.entryOf(job).waiting = event
    this.unstarted(job, { outcome: event._tag === "ToolSuspended" ? "suspended" : "approval_requested" })
    void this.recorded(this.environment.journal?.waits(job.call, event), () => {
      this.reported++
      this.events.settled(job.index, [event])
    })
  }

  /**
   * Takes in a call's answer. In a recorded run the answer is recorded first, and only then reported and applied to the
   * other calls. The returned effect waits for that, and need not be run.
   */
  settle(job: Answers.Numbered, answer: Answers.Answer): Effect.Effect<void> {
    if (this.isSpokenFor(job)) return Effect.void
    this.entryOf(job).answer = answer
    if (answer.isReplayed !== true) this.unstarted(job, answer)
    const record = answer.isReplayed === true ? undefined : this.environment.journal?.answered(job.call, answer)
    return this.recorded(record, () => this.report(job, answer))
  }

  /** Makes the span of a call answered or suspended without having started. */
  private unstarted(job: Answers.Numbered, end: Answers.Answer | { readonly outcome: string }): void {
    const { found: { tracing }, settings, stepIndex } = this.environment
    const entry = this.entryOf(job)
    if (tracing === undefined || entry.hasSpan) return
    entry.hasSpan = true
    const isOffered = entry.job._tag === "Cancel" ? entry.job.isOffered : entry.job.tool !== undefined
    const plan = { call: job.call, isOffered, requestId: settings.requestId, sessionId: settings.sessionId, stepIndex }
    if (!("raw" in end)) return Telemetry.unstarted(tracing, plan, end)
    // A policy may replace the error with a result.
    const refused = entry.job._tag === "Refuse" && entry.job.outcome._tag === "Error"
      ? entry.job.outcome.error
      : undefined
    const code = end.code ?? Answers.codeOf(refused)
    const ending = code === Telemetry.notRun.code
      ? Telemetry.notRun
      : { code, outcome: code === undefined ? "ok" : "refused" }
    Telemetry.unstarted(tracing, plan, { ...ending, result: end.message.content })
  }

  /** Begins a call's span when its handler starts, if the run is observed. */
  spanOf(job: Plan.Run, attempt: number): Telemetry.Call | undefined {
    const { found: { tracing }, settings, stepIndex } = this.environment
    if (tracing === undefined) return undefined
    const entry = this.entryOf(job)
    entry.hasSpan = true
    return new Telemetry.Call(
      tracing,
      { call: job.call, isOffered: true, requestId: settings.requestId, sessionId: settings.sessionId, stepIndex },
      { queuedMillis: this.now() - (entry.cameUpAt ?? this.now()), isEarly: entry.way === "early", attempt }
    )
  }

  /** Continues once the record is written, in a fiber no stop of a call can interrupt. */
  private recorded(record: Effect.Effect<void> | undefined, then: () => void): Effect.Effect<void> {
    if (record === undefined || isDone(record)) {
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
    if (this.entryOf(job).stopped === "withdrawn") this.events.withdrawn(job.index, events)
    else this.events.settled(job.index, events)
    this.reachSiblings(job, answer)
    if (this.isSettled) this.events.wake()
  }

  /** Calls that have come up, in call order. */
  private get all(): ReadonlyArray<Entry> {
    return this.entries.filter((entry) => entry !== undefined)
  }

  private entryOf({ index }: Answers.Numbered): Entry {
    const entry = this.entries[index]
    if (entry === undefined) throw new Error(`no call has come up at position ${index}`)
    return entry
  }

  /** Returns `true` for an answered or waiting call. A cancelled batch may end before deciding on its calls. */
  private isSpokenFor(job: Answers.Numbered): boolean {
    const { answer, waiting } = this.entryOf(job)
    return answer !== undefined || waiting !== undefined
  }

  /** Applies a halt or a failure to the other calls: it may stop running calls and skip waiting ones. */
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
    // Waiting calls come first: an interrupted call makes room, and none of these calls may take it over.
    if (isSkipping && (isHalt || concerned.length > 0)) {
      this.skipping = this.skipping?.isHalt === true ? this.skipping : consequence
      for (const run of this.queue.clear()) this.abort(run, `not run: ${detail}`)
    }
    for (const call of concerned) {
      const isOther = call.job.index !== job.index
      if (isOther && isReached(consequence, call)) call.cancel(`interrupted: ${detail}`)
    }
  }

  // Stopping one call.

  stopCall([id, ...inside]: ReadonlyArray<string>, reason: string): boolean {
    if (this.isOver || this.isAtEnd) return false
    const placed = this.company.all.find((call) => call.id === id)
    if (inside.length > 0) return placed?.stopInside(inside, reason) === true
    const entry = this.all.find(({ job: { call } }) => call.id === id)
    if (entry === undefined || entry.answer !== undefined) return false
    if (placed !== undefined) return placed.stop(reason)
    if (entry.waiting !== undefined) return this.withdraw(entry, entry.waiting, reason)
    // A call answered in the journal is shown when the batch begins.
    if (entry.isAnswering || this.known(entry.job.call)?.answer !== undefined) return false
    this.queue.withdraw(entry.job.index)
    this.stopUnrun(entry.job, reason)
    return true
  }

  inboxAt([id, ...inside]: ReadonlyArray<string>): object | undefined {
    return this.company.all.find((call) => call.id === id)?.inboxAt(inside)
  }

  private stopUnrun(job: Answers.Numbered, reason: string): void {
    this.entryOf(job).stopped = "unrun"
    this.abort(job, `not run: ${reason}`)
  }

  /** Answers a call waiting for an outside answer, which no longer counts. */
  private withdraw(entry: Entry, waiting: NonNullable<Entry["waiting"]>, reason: string): boolean {
    const isApproval = waiting._tag === "ToolApprovalRequested"
    const isUnknown = !isApproval && waiting.suspensions.some(({ kind }) => kind === "unknown")
    const { job } = entry
    entry.waiting = undefined
    entry.stopped = "withdrawn"
    this.reported--
    const detail = `${isApproval ? "not run" : "withdrawn"}: ${reason}`
    const error = isUnknown ? RunJournal.unknownEffect(job.call).error : cancelled(job, detail)
    const settled = isApproval ? job : { ...job, isSettlement: true }
    this.respond(settled, Answers.cancelled(this.answering, settled, error))
    return true
  }

  // Stopping the batch.

  /** Cancels the batch at a clock time by which tools must end. Later calls do not run. */
  private stopAt(millis: number): void {
    const left = millis - this.now()
    if (left <= 0) this.cancel(Deadline.toolsCause)
    else this.timers.after(left, () => this.cancel(Deadline.toolsCause))
  }

  /**
   * Stops the calls that have come up, and those still to come. The batch does not end before all have stopped or used
   * up their grace period, in which blocking handlers may finish. The period began with the run's soft stop, if any.
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

  /**
   * Notes calls coming up after the cancellation. If its grace period is over, calls with slow answers are answered
   * without waiting.
   */
  private afterCallBack(jobs: ReadonlyArray<Plan.Job>, since: number): void {
    const detail = `not run: ${this.cancellation}`
    for (const job of jobs) this.entryOf(job).unrun = detail
    if (this.hasConcluded && !this.isConcluding) this.concludeAfter(since, detail)
  }

  /** Concludes the batch at the end of its grace period. The enclosing handler may leave less time. */
  private concludeAfter(since: number, detail: string): void {
    this.isConcluding = true
    const left = Math.max(0, this.running.until(since) - this.now())
    this.timers.after(left, () => this.conclude(since, detail))
  }

  /** Interrupts the blocking handlers at the end of their time. They have one scheduler turn to stop. */
  private conclude(since: number, detail: string): void {
    const calls = this.company.all
    for (const call of calls) call.cancel(detail, since)
    if (calls.some(({ isOwing }) => isOwing)) this.timers.when(Effect.yieldNow, () => this.answerRest(since, detail))
    else this.answerRest(since, detail)
  }

  /** Answers each open call without the code it waits for: a handler, a policy, a decoder, an encoder. */
  private answerRest(since: number, detail: string): void {
    this.isConcluding = false
    this.hasConcluded = true
    const calls = this.company.all
    for (const call of calls) call.abandon()
    for (const { job, left, unrun } of this.all) {
      // A batch not read before its time was over has not compared its calls with the journal yet.
      if (this.isSpokenFor(job) || this.isReplayed(job)) continue
      void this.settle(job, Answers.unfinished(this.answering, job, left ?? this.unrun(job, unrun ?? detail)))
    }
    for (const call of calls) call.giveUp(since)
    this.answering.fibers.interrupt(since)
  }

  /** Ends the timers; no more calls start. Live fibers belong to the run and are stopped with the run. */
  close(): Effect.Effect<void> {
    this.isOver = true
    this.unsubscribe?.()
    this.removed()
    this.queue.close()
    this.events.wake()
    return this.timers.close()
  }

  // The reader's side.

  /** Pulls events in the policy's order. Ends when all calls are in and answered. */
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

  /** Takes the available events, waiting if necessary. The first take starts the calls. */
  get take(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    this.begin()
    return this.events.take
  }

  /** Returns the available events. */
  takeNow(): ReadonlyArray<Event.Event> {
    return this.events.takeNow()
  }

  /** Resumes a reader waiting in `take`, even without events. */
  wake(): void {
    this.events.wake()
  }

  get isEmpty(): boolean {
    return this.events.isEmpty
  }

  /** `true` if no more events will come. */
  get isAtEnd(): boolean {
    return this.isEmpty && (this.isOver || this.isSettled)
  }

  /** `true` if every call is answered or waiting. In a cancelled batch, each must also have left its place. */
  get isSettled(): boolean {
    return this.isSealed && !this.isBusy && (this.since === undefined || this.queue.holding === 0)
  }

  /** `true` if any call is neither reported as answered nor as waiting. */
  get isBusy(): boolean {
    return this.reported < this.count
  }

  /** Answers so far, in call order. */
  get answers(): ReadonlyArray<Answers.Answer> {
    return this.all.flatMap(({ answer }) => answer ?? [])
  }

  /**
   * Deciding halt: by the first call in the reply, or the first call to complete. The fold cannot determine the latter
   * if the policy shows results in call order.
   */
  get halt(): Event.Halt | undefined {
    return this.policy.haltPrecedence === "completion"
      ? this.firstHalt
      : this.entries.find((entry) => entry?.answer?.halt !== undefined)?.answer?.halt
  }
}

const cancelled = ({ call }: Answers.Numbered, detail: string) => toolError("cancelled", call, { detail })

const isDone = <A>(effect: Effect.Effect<A, unknown, unknown>): effect is Exit.Success<A> =>
  Exit.isExit(effect) && Exit.isSuccess(effect)

/**
 * Drives the admission machine, with the waiting calls and the number of placed calls. Calls start as soon as they may:
 * whenever a call comes up, a call leaves its place, or an outside handler ends. A call kept out only by outsiders
 * waits one grace period, then is refused. A call waiting for an outsider's place starts when the outsider is given up,
 * at the end of its grace period.
 */
export class Queue {
  /** Number of calls with a place. */
  holding = 0
  /** `true` while calls admitted together are being started. */
  isStarting = false
  private admission: Admission.Admission<Plan.Run>
  private readonly running: Running
  private readonly timers: Timers.Timers
  private readonly batch: Pick<Batch<any>, "start" | "queued" | "refuse" | "started">
  private readonly unsubscribe: () => void
  private isAdmitting = false
  /** Number of calls added since waiting calls were last reported, at the end of the queue. */
  private added = 0
  private hasRoom = false
  private patience: Timers.Timer | undefined
  /** `true` once the head has waited a grace period and waits again for a place about to be free. */
  private isExtended = false

  constructor(
    bound: number,
    running: Running,
    timers: Timers.Timers,
    batch: Pick<Batch<any>, "start" | "queued" | "refuse" | "started">
  ) {
    this.admission = Admission.make(bound)
    this.running = running
    this.timers = timers
    this.batch = batch
    this.unsubscribe = running.onRoom(() => this.admit())
  }

  add(runs: ReadonlyArray<Plan.Run>): void {
    this.admission = Admission.enqueue(this.admission, runs)
    this.added += runs.length
    this.admit()
  }

  /** Removes and returns all calls without a place. */
  clear(): ReadonlyArray<Plan.Run> {
    const waiting = Admission.waiting(this.admission)
    this.admission = Admission.clear(this.admission)
    return waiting
  }

  /** Removes a call without a place. The next calls may start. */
  withdraw(index: number): void {
    this.admission = Admission.withdraw(this.admission, index)
    this.admit()
  }

  /** Frees a call's place. The next call is admitted once the run knows that the handler has ended. */
  release(run: Plan.Run): void {
    this.holding--
    this.admission = Admission.release(this.admission, run)
  }

  close(): void {
    this.unsubscribe()
  }

  /**
   * Starts every call that may start. Handlers ending at once make room meanwhile, so this loops instead of nesting.
   */
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
    if (this.added > 0) this.reportWaiting()
    if (Admission.stuck(this.admission) === undefined) this.isUnstuck()
    else this.patience ??= this.timers.after(this.running.graceMillis, () => this.outOfPatience())
  }

  /** Reports the added calls that could not start. */
  private reportWaiting(): void {
    const { added } = this
    this.added = 0
    for (const [run, wait] of this.waitsOf(added)) this.batch.queued(run, wait)
  }

  /** Calls without a place, each with its reason to wait. */
  get waits(): ReadonlyArray<readonly [Plan.Run, Wait]> {
    return this.waitsOf(Infinity)
  }

  private waitsOf(count: number): ReadonlyArray<readonly [Plan.Run, Wait]> {
    const waiting = Admission.waitingOf(this.admission, count)
    if (waiting.length === 0) return []
    const { handlersAlive: handlers } = this.running
    const occupying = handlers.filter(({ grace }) => grace?.isOver !== true)
    const alone = handlers.filter(({ isExclusive }) => isExclusive)
    return waiting.map(([run, reason, before]) => {
      if (reason === "permit") return [run, { reason, ...behind(occupying) }]
      return [run, { reason, ...behind([...(run.isExclusive ? handlers : alone), ...before.map(({ call }) => call)]) }]
    })
  }

  /** Stops the wait for a head no longer stuck. The next stuck head waits a whole grace period. */
  private isUnstuck(): void {
    this.patience?.stop()
    this.patience = undefined
    this.isExtended = false
  }

  /**
   * Refuses calls still kept out by outsiders after a grace period. An outsider's own period may have begun slightly
   * later, so a call waits again for a place about to be free.
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

// Opening a batch, with the services of its run.

/**
 * Opens a batch for a step's turn. `calls` is the largest expected number of calls, `Infinity` if unknown. The handlers
 * belong to `running`; the caller must close the batch.
 */
export const open = <E, R>(
  context: Context.Context<R>,
  calls: number,
  settings: Settings.Settings<E, R>,
  stepIndex: number,
  running: Running,
  ambient: Inherited.Ambient,
  journal: RunJournal.Journal | undefined
): Batch<E> =>
  new Batch<E>({
    found: find(context, ambient),
    settings,
    bound: settings.maxConcurrency ?? Settings.defaultBound(calls),
    stepIndex,
    running,
    ambient,
    journal
  })

/** Returns the services for a batch, looked up once for all steps with the same context. */
const find = <R>(context: Context.Context<R>, ambient: Inherited.Ambient): Inherited.Found => {
  if (ambient.found?.context === context) return ambient.found
  return ambient.found = {
    context,
    executor: Context.get(context, Executor.Executor),
    encoder: Context.get(context, Encoder.Encoder),
    services: Inherited.forHandlers(context, ambient),
    clock: Context.get(context, Clock.Clock),
    tracing: Telemetry.tracing(context)
  }
}

/** Opens a batch with its own run; both end when the scope closes. */
export const scoped = <E, R>(
  calls: number,
  settings: Settings.Settings<E, R>,
  options: { readonly stepIndex?: number; readonly cancel?: Settings.RunnerOptions<E, R>["cancel"] | undefined },
  scope: Scope.Scope,
  journal?: RunJournal.Journal
): Effect.Effect<Opened<E>, never, R> =>
  Effect.contextWith((context: Context.Context<R>) => {
    const running = new Running(settings.graceMillis, context as Context.Context<never>)
    return Effect.flatMap(Inherited.enter(running, settings, options.cancel, scope, context), (ambient) => {
      const batch = open<E, R>(context, calls, settings, options.stepIndex ?? 0, running, ambient, journal)
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
    // A batch has listeners and timers from the start: its finalizer must be added before any interruption.
    Effect.uninterruptible
  )

/** A batch and its run. */
interface Opened<E> {
  readonly ambient: Inherited.Ambient
  readonly batch: Batch<E>
  readonly running: Running
}

/** A run of calls alone: its events, and, after their end, the code that refused to stop. */
interface Begun<E> {
  readonly policy: Policy.Policy
  readonly pull: Pull.Pull<Arr.NonEmptyReadonlyArray<Event.Event>, E>
  readonly stopped: Effect.Effect<ReadonlyArray<Event.Abandoned>>
}

/** Returns a run that calls an unknown tool, under `unknownTool: "failTurn"`. */
const failing = (error: Plan.EngineError, policy: Policy.Policy): Begun<never> => {
  let isOut = false
  const pull = Effect.suspend(() => {
    if (isOut) return Cause.done()
    isOut = true
    return Effect.succeed([{ _tag: "Error", error } as const] as const)
  })
  return { policy, pull, stopped: Effect.succeed([]) }
}

/** Options for running calls alone. */
interface BeginOptions<E, R> extends Settings.RunnerOptions<E, R, any> {
  readonly stepIndex?: number
  readonly approved?: ReadonlyArray<string>
}

/** Begins a run of calls whose handlers stop when the scope closes. `order` takes precedence over the policy. */
export const begin = <E, R>(
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: BeginOptions<E, R>,
  scope: Scope.Scope,
  { journal, order }: {
    readonly order?: Pick<Policy.Policy, "resultOrder" | "toolEvents">
    readonly journal?: RunJournal.Journal | undefined
  } = {}
): Effect.Effect<Begun<E>, never, R> =>
  Effect.gen(function*() {
    const defaults = yield* Policy.Defaults
    const resolved = Settings.resolve(options, defaults, Policy.standard, yield* Effect.context<never>())
    const policy = { ...resolved.policy, ...order }
    const settings = { ...resolved, policy, approved: new Set(options.approved) }
    const byName = ToolOptions.toolbox(defaults.tools ?? [], tools)
    const unknown = Plan.failing(calls, byName, policy)
    if (unknown !== undefined) return failing(unknown, policy)
    const { batch, running } = yield* scoped<E, R>(calls.length, settings, options, scope, journal)
    batch.add(calls.map((call, index) => Plan.planned(index, call, byName, policy)))
    batch.seal()
    return { policy, pull: batch.pull, stopped: running.stop }
  })

// Consequences of a call's end for its siblings: which calls are affected, which are interrupted, and whether waiting
// calls still run.

export interface Consequence {
  /** `true` to also interrupt blocking handlers. */
  readonly isForAll: boolean
  readonly isSkipping: boolean
  /** `true` for a halt, ending the turn; `false` for a failure, affecting the calls beside it. */
  readonly isHalt: boolean
  readonly detail: string
}

type Siblings = Policy.Policy["siblings"]

const isTrigger = (siblings: Siblings, answer: Answers.Answer): boolean =>
  answer.failure === "crashed" || (answer.failure === "reported" && siblings.trigger !== "crashed")

/** Returns the consequence of an answer, if any. An exclusive call runs alone, so its failure has no consequence. */
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

/** A call with a place. */
interface Placed {
  /** `true` while waiting for permits, like a call without a place. */
  readonly isWaiting: boolean
  readonly job: { readonly index: number; readonly isBlocking: boolean }
}

/**
 * Returns `true` if the end of another call stops this call. A call waiting for permits is skipped like a queued call.
 */
export const isReached = ({ isForAll, isSkipping }: Consequence, { isWaiting, job }: Placed): boolean =>
  isWaiting ? isSkipping : isForAll || !job.isBlocking

/** Tracks placed calls in order, and which calls had a place at the same time. */
export class Company<Member extends Placed> {
  /** Placed calls, each with the number of earlier joins. */
  private readonly members = new Map<Member, number>()
  /** Number of joins when a call left, by call position. */
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

  /** Returns the calls placed at the same time as a call, including the call itself while it keeps its place. */
  beside(index: number): ReadonlyArray<Member> {
    const before = this.before[index] ?? Infinity
    return Array.from(this.members).filter(([, earlier]) => earlier < before).map(([member]) => member)
  }
}
