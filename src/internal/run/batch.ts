/**
 * The calls of one turn while they run. Each runs in a fiber that the run owns, takes a permit while its handler is
 * alive, and is answered exactly once, by its outcome or by its timeout. The reader pulls events; nothing here waits
 * for the reader. Code of the caller's may end the run while it runs, so that every step here looks again whether the
 * batch is over.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Pull from "effect/Pull"
import type * as Types from "effect/Types"
import type * as Encoder from "../../Encoder.ts"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Policy from "../../Policy.ts"
import type * as Tool from "../../Tool.ts"
import * as Answer from "../answer/answer.ts"
import * as OpenCalls from "../answer/openCalls.ts"
import type * as Plan from "../decide/plan.ts"
import type * as Declared from "../declare/tool.ts"
import { Few } from "../few.ts"
import { type Events, isNonEmpty } from "../fold/events.ts"
import * as Lists from "../lists.ts"
import * as Now from "../now.ts"
import { Holding } from "../permits/heldPermits.ts"
import * as KeyedPermits from "../permits/keyedPermits.ts"
import * as Deadline from "../stop/deadline.ts"
import { Helpers } from "../stop/helpers.ts"
import * as Limits from "../stop/limits.ts"
import { type Owner, type Task, taskOf } from "../stop/ownedFibers.ts"
import { limited } from "../stop/timeLimit.ts"
import type { Workshop } from "./batchEnvironment.ts"
import { Handling, type Host } from "./call.ts"
import { Decisions } from "./decodeQueue.ts"
import * as Emission from "./eventOrder.ts"
import { Mailbox } from "./mailbox.ts"
import { Queue } from "./queue.ts"
import * as Siblings from "./siblings.ts"

export class Batch<E> implements Host<E>, Answer.Desk<E, any> {
  private jobs: Array<Plan.Job> = []
  readonly workshop: Workshop<E>
  private readonly mailbox = new Mailbox<E>()
  readonly emission: Emission.Emission
  /** By the position of the call. */
  private answered: Array<Answer.Answer | undefined> | undefined
  private completed = 0
  private firstHalt: Event.Halt | undefined
  /** Created with the first call that waits for an approval: in most batches none does. */
  private waiting: OpenCalls.Approvals | undefined
  readonly helpers: Helpers
  private readonly unsubscribe: (() => void) | undefined
  private readonly queue: Queue
  private readonly company = new Siblings.Company<Handling<E>>()
  private readonly decisions: Decisions
  private cancellation: string | undefined
  /** When it was called back. Whatever is done for its calls has one grace period, which began then. */
  private since: number | undefined
  /** How many of the calls have been answered by the end of that. */
  private concluded = 0
  private isConcluding = false
  private hasConcluded = false
  /** Why calls were not run that are answered so, by their position, once some have been called back. */
  private unrun: Map<number, string> | undefined
  /** What decides on calls and writes their answers, in fibers that are no handlers. */
  private readonly answerWriters = new Few<Task>()
  private isAwaited = false
  private isSealed = false
  /** What keeps calls from running: a halt for the rest of the turn, a failure for as long as others run beside it. */
  private skipping: Siblings.Consequence | undefined
  /** Halts that came while calls admitted with theirs were being started. */
  private pendingHalts: Array<() => void> | undefined
  isOver = false

  constructor(workshop: Workshop<E>) {
    const { ambient: { cancellation, deadline }, running, settings } = workshop
    this.workshop = workshop
    this.emission = Emission.make(settings.policy, this.mailbox)
    this.helpers = new Helpers(this.services)
    this.decisions = new Decisions(this)
    this.queue = new Queue(workshop.bound, running, this.helpers, this)
    this.unsubscribe = cancellation?.onRequest(() => this.cancel(cancellation.cause))
    if (deadline !== undefined) this.stopAt(deadline.toolsUntil)
  }

  get services(): Context.Context<any> {
    return this.workshop.found.services
  }

  get encoder(): Encoder.Service {
    return this.workshop.found.encoder
  }

  get onToolError(): Declared.OnToolError<E, any> {
    return this.workshop.settings.onToolError
  }

  get policy(): Policy.Policy {
    return this.workshop.settings.policy
  }

  /** Tools have to be done by then; what comes up later does not run. */
  private stopAt(millis: number): void {
    const left = millis - this.now()
    if (left <= 0) this.cancel(Deadline.toolsCause)
    else this.helpers.after(left, { timeUp: () => this.cancel(Deadline.toolsCause) })
  }

  /** Calls that have come up. They are numbered by their position in the turn, and start in the order they come in. */
  add(jobs: ReadonlyArray<Plan.Job>): void {
    if (jobs.length === 0) return
    this.jobs = Lists.joined(this.jobs, jobs)
    this.decisions.add(jobs)
    if (this.since !== undefined) this.afterCallBack(jobs, this.since)
  }

  /** Starts the calls that have come up, without waiting for a reader. */
  begin(): void {
    this.decisions.begin()
  }

  /** There are no more calls. */
  seal(): void {
    this.isSealed = true
    this.emission.sealed(this.jobs)
    this.mailbox.wake()
  }

  /** The events, in the order the policy asks for; it ends when there are no more calls and each has been answered. */
  get pull(): Pull.Pull<Events, E> {
    return Effect.suspend(() => this.next())
  }

  private next(): Pull.Pull<Events, E> {
    if (this.isAtEnd) return Cause.done()
    return Effect.flatMap(this.take, (events) => isNonEmpty(events) ? Effect.succeed(events) : this.next())
  }

  /** Whether there are no more events. */
  get isAtEnd(): boolean {
    return this.mailbox.isEmpty && (this.isOver || this.isSettled)
  }

  /**
   * What there is now, which may be nothing; waits only when there is nothing. The first one starts the calls. It is to be
   * asked for in a step of the fiber that reads it.
   */
  get take(): Effect.Effect<ReadonlyArray<Event.Event>, E> {
    this.begin()
    return this.mailbox.take
  }

  /** What there is now, without waiting for more. */
  takeNow(): ReadonlyArray<Event.Event> {
    return this.mailbox.takeNow()
  }

  get isEmpty(): boolean {
    return this.mailbox.isEmpty
  }

  /** Lets a reader that waits in `take` look again. */
  wake(): void {
    this.mailbox.wake()
  }

  now(): number {
    return this.workshop.found.clock.currentTimeMillisUnsafe()
  }

  /** Whether every call has been answered, or waits. Those that were called back are waited for, too. */
  get isSettled(): boolean {
    return this.isSealed && !this.isBusy && (!this.isAwaited || this.queue.holding === 0)
  }

  /** Whether a call is neither answered nor waits for somebody outside. */
  get isBusy(): boolean {
    return this.completed + (this.waiting?.size ?? 0) < this.jobs.length
  }

  /** Stops what has come up, and whatever still may: the turn is not to be acted on. */
  cancel(cause: string): void {
    this.cancellation = cause
    this.callBack(cause)
  }

  /**
   * Stops and answers what has come up so far. The batch does not end before all have stopped or had their grace period,
   * in which blocking handlers may finish. It began with the soft stop of the run, if there was one.
   */
  private callBack(cause: string): void {
    this.isAwaited = true
    const { running } = this.workshop
    const since = this.since ??= Math.min(this.now(), running.softSince ?? Infinity)
    this.answerWriters.forEach((task) => running.spare(task, since))
    for (const run of this.queue.clear()) this.abort(run, `not run: ${cause}`)
    for (const handling of this.company.all) {
      if (handling.isBlocking) handling.spare(since, cause)
      else handling.cancel(`interrupted: ${cause}`)
    }
    this.bound(since, `interrupted: ${cause}`)
    this.mailbox.wake()
  }

  /** Calls that come up when it has been called back. After its grace period what needs time does not answer them. */
  private afterCallBack(jobs: ReadonlyArray<Plan.Job>, since: number): void {
    const detail = `not run: ${this.cancellation}`
    for (const { index } of jobs) this.notRun(index, detail)
    if (this.hasConcluded && !this.isConcluding) this.bound(since, detail)
  }

  private notRun(index: number, detail: string): void {
    this.unrun ??= new Map()
    this.unrun.set(index, detail)
  }

  /** The handler around the run may have less time than there was when it was called back first. */
  private bound(since: number, detail: string): void {
    this.isConcluding = true
    const left = Math.max(0, this.workshop.running.until(since) - this.now())
    this.helpers.after(left, { timeUp: () => this.conclude(since, detail) })
  }

  /** Whatever is not answered by now is answered without it: a blocking handler, a policy, a decoder, an encoder. */
  private conclude(since: number, detail: string): void {
    this.isConcluding = false
    this.hasConcluded = true
    const { running } = this.workshop
    const jobs = this.jobs.slice(this.concluded)
    this.concluded = this.jobs.length
    const handlings = this.company.all
    for (const handling of handlings) handling.cancel(detail, since)
    for (const job of jobs) {
      if (!this.isSpokenFor(job)) this.settle(job, Answer.unfinished(job, this.unrun?.get(job.index) ?? detail))
    }
    for (const handling of handlings) handling.leave(since)
    this.answerWriters.forEach((task) => running.interrupt(task, since, () => {}))
  }

  private abort(job: Plan.Run, detail: string): void {
    if (this.since !== undefined) this.notRun(job.index, detail)
    this.respond(job, Answer.cancelled(this, job, detail))
  }

  /** The answers so far, in call order. */
  get answers(): ReadonlyArray<Answer.Answer> {
    return this.answered?.filter((answer) => answer !== undefined) ?? Lists.none
  }

  /** The calls that wait for somebody outside, in call order. */
  get suspensions(): ReadonlyArray<Event.Suspension> {
    const answered = this.answered ?? Lists.none
    return this.waiting?.among(answered) ?? OpenCalls.questions(answered)
  }

  /** The halt that decides: the first call's, or that of the call that completed first. */
  get halt(): Event.Halt | undefined {
    return this.workshop.settings.policy.haltPrecedence === "completion"
      ? this.firstHalt
      : this.answered?.find((answer) => answer?.halt !== undefined)?.halt
  }

  /** Ends the timers; nothing starts any more. What runs belongs to the run and is stopped with it. */
  close(): Effect.Effect<void> {
    this.isOver = true
    this.unsubscribe?.()
    this.queue.close()
    const closed = this.helpers.close()
    this.mailbox.wake()
    return closed
  }

  /** What is to be done with every call is known: those that cannot run are answered first. */
  decided(decided: ReadonlyArray<Plan.Decided>): void {
    const open = this.completed === 0 ? decided : decided.filter((job) => !this.isAnswered(job))
    const runs = open.every(isRun) ? open : open.filter(isRun)
    if (runs.length < open.length) this.refuseAll(open)
    const { ban } = this
    if (ban !== undefined) return runs.forEach((run) => this.abort(run, `not run: ${ban}`))
    this.queue.add(runs)
  }

  private refuseAll(jobs: ReadonlyArray<Plan.Decided>): void {
    for (const job of jobs) {
      if (job._tag === "Refuse") this.respond(job, Answer.fromOutcome(this, job, job.outcome))
      if (job._tag === "Cancel") this.respond(job, Answer.cancelled(this, job, job.detail))
    }
  }

  /** Why nothing may start any more, if so. */
  private get ban(): string | undefined {
    return this.cancellation ?? this.skipping?.detail
  }

  /** Puts a fiber into the run's care, before it has run any code of the caller's. */
  own(call: Message.ToolCall, fiber: Fiber.Fiber<unknown, unknown>, run?: Plan.Run, owner?: Owner): Task {
    const task = taskOf(call, fiber, this.now(), run, owner)
    this.workshop.running.add(task)
    return task
  }

  /** Takes in a fiber that is no handler, and returns what stops it. */
  private watch(call: Message.ToolCall, fiber: Fiber.Fiber<unknown, unknown>): () => void {
    const { running } = this.workshop
    const task = this.own(call, fiber)
    this.answerWriters.add(task)
    if (this.since !== undefined) running.spare(task, this.since)
    fiber.addObserver(() => {
      this.answerWriters.delete(task)
      running.remove(task)
    })
    return () => running.interrupt(task, this.now(), () => {})
  }

  limit<A, S>(
    subject: Answer.Subject,
    work: Effect.Effect<A, unknown, S>,
    late: (millis: number) => unknown = (millis) => new Error(`writing the result timed out after ${millis} ms`)
  ): Effect.Effect<A, unknown, S> {
    const millis = this.millisFor(subject.tool)
    return limited(work, { millis, own: (fiber) => this.watch(subject.call, fiber), late: () => late(millis) })
  }

  millisFor(tool: Tool.Any | undefined): number {
    return tool?.timeout === undefined ? this.workshop.settings.timeoutMillis : Duration.toMillis(tool.timeout)
  }

  /** Answers a call in a fiber of its own. */
  respond(job: Answer.Numbered, answer: Effect.Effect<Answer.Answer, E, any>): void {
    if (this.isOver) return
    const fiber = Effect.runForkWith(this.services)(
      Effect.withFiber((fiber) => {
        this.watch(job.call, fiber)
        return this.settling(job, answer)
      })
    )
    fiber.addObserver((exit) => this.answerEnded(job, exit))
  }

  settling(job: Answer.Numbered, answer: Effect.Effect<Answer.Answer, E, any>): Effect.Effect<void, E, any> {
    return Now.map(answer, (value) => this.settle(job, value))
  }

  private isSpokenFor(job: Answer.Numbered): boolean {
    return this.isAnswered(job) || this.waiting?.has(job) === true
  }

  private isAnswered(job: Answer.Numbered): boolean {
    return this.answered?.[job.index] !== undefined
  }

  /** Somebody outside is to allow the call. Until then it is nobody's sibling and nobody waits for it. */
  suspend(job: Plan.Run): void {
    if (this.isSpokenFor(job)) return
    this.waiting ??= new OpenCalls.Approvals()
    this.emission.settled(job.index, [this.waiting.add(job, this.now())])
  }

  private settle(job: Answer.Numbered, answer: Answer.Answer): void {
    if (this.isSpokenFor(job)) return
    this.answered = Lists.placed(this.answered, job.index, answer)
    this.completed++
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
    const events: ReadonlyArray<Event.Event> = job.isSettlement === true && tail._tag === "ToolResultEncoded"
      ? [{ ...tail, settled: true }]
      : [completed, tail]
    this.emission.settled(job.index, events)
    this.tellSiblings(job, answer)
  }

  /** A halt or a failure may stop the calls beside it, and keep those from running that wait. */
  private tellSiblings(job: Answer.Numbered, answer: Answer.Answer): void {
    const { siblings } = this.workshop.settings.policy
    const consequence = Siblings.consequence(siblings, answer, job.isExclusive === true)
    if (consequence === undefined) return
    if (consequence.isHalt && this.queue.isStarting) {
      this.pendingHalts = Lists.joined(this.pendingHalts, [() => this.reach(job, consequence)])
    } else this.reach(job, consequence)
  }

  /** A halt reaches every call that was admitted together with the call that halts. */
  started(): void {
    const { pendingHalts } = this
    if (pendingHalts === undefined) return
    this.pendingHalts = undefined
    for (const reach of pendingHalts) reach()
  }

  private reach(job: Answer.Numbered, consequence: Siblings.Consequence): void {
    if (this.isOver) return
    const { detail, isHalt, isSkipping } = consequence
    const concerned = isHalt ? this.company.all : this.company.beside(job.index)
    // Those that wait are told first: whoever is interrupted makes room, and nobody is to take it.
    if (isSkipping && (isHalt || concerned.length > 0)) {
      this.skipping = this.skipping?.isHalt === true ? this.skipping : consequence
      for (const run of this.queue.clear()) this.abort(run, `not run: ${detail}`)
    }
    for (const handling of concerned) {
      const isOther = handling.job.index !== job.index
      if (isOther && Siblings.isReached(consequence, handling)) handling.cancel(`interrupted: ${detail}`)
    }
  }

  /** What the caller's policy failed with is the run's failure. Any other end without an answer costs this one call. */
  answerEnded(job: Answer.Numbered, exit: Exit.Exit<unknown, E>): void {
    if (Exit.isSuccess(exit) || this.isOver || this.isAnswered(job)) return
    if (!Cause.hasFails(exit.cause)) return this.settle(job, Answer.lost(this, job, exit.cause))
    this.isOver = true
    this.mailbox.fail(exit.cause)
  }

  /** The permits of the tree, and those of the tool's keys. */
  hold(run: Plan.Run, call: Tool.CallContext): Holding {
    const { services, workshop: { ambient: { pool }, running } } = this
    const { limits } = run.tool
    const keyed = limits === undefined
      ? undefined
      : Effect.suspend(() => Context.get(services, Limits.Keyed).takeAll(KeyedPermits.wanted(limits, run.args, call)))
    return new Holding(pool, keyed, services, running, run.call.id)
  }

  refuse(run: Plan.Run): void {
    this.abort(run, "not started: an earlier tool refused to stop and is still running")
  }

  start(run: Plan.Run): void {
    if (this.isOver) return
    const { ban } = this
    if (ban !== undefined) {
      // It was admitted together with the call that brought this about.
      this.release(run)
      return this.abort(run, `not run: ${ban}`)
    }
    const handling = new Handling<E>(run, this.workshop, this)
    this.company.join(handling)
    handling.start()
  }

  /** A handler ended, or outlived its grace period: its place is free. */
  vacated(handling: Handling<E>): void {
    this.company.leave(handling)
    this.release(handling.job)
    if (this.isSettled) this.mailbox.wake()
  }

  /** A failure is forgotten when nobody is left who ran beside it. */
  private release(run: Plan.Run): void {
    this.queue.release(run)
    if (this.queue.holding === 0 && this.skipping?.isHalt === false) this.skipping = undefined
  }
}

const isRun = (job: Plan.Decided): job is Plan.Run => job._tag === "Run"
