/**
 * The fibers that one run owns (`Running`): those in which the code of tools and of the caller's hooks runs. A fiber is
 * added before any of that code has run, so that no code can end the run and stay alive. `Worker` is how a run waits for
 * code that is no handler, and `HookFibers` how a batch bounds the time of such code.
 *
 * A task is a fiber that the run owns. Its life:
 *
 *     alive ──────────► stopping ──────────► given up ──────────► abandoned
 *       │ interrupt         │ its grace          │ the run ends        the result names it; what it
 *       │ letFinish         │ period is over     │                     yields later is dropped
 *       ▼                   ▼                    ▼
 *     removed, when its fiber ends
 *
 * - *Stopping*: its grace period has begun. A task has one and never a second, whatever else stops it. It was either
 *   interrupted or, as a blocking handler, is left to finish (`letFinish`).
 * - *Given up*: its grace period is over. Nothing waits for it, and its place is free for another handler. It may still end.
 * - *Abandoned*: it was alive when the run came to its end.
 * - *Soft stop*: the request to stop of a cancellation or a deadline. The reader goes on, and gets a result.
 * - *Left*: the reader has gone, and the run ends without it. All tasks are stopped, and waited for together.
 */
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Event from "../../Event.ts"
import type { HeldPermits } from "../permits/permits.ts"
import type * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"

/** A fiber that the run owns, and what it is named by when it is abandoned. */
export interface Task {
  readonly kind: Event.Abandoned["kind"]
  readonly id: string
  readonly name: string
  readonly startedAt: number
  /** A handler counts for admission while it is alive. Whatever else runs for a call does not. */
  readonly isHandler: boolean
  readonly isExclusive: boolean
  readonly fiber: Fiber.Fiber<unknown, unknown>
  /** Whether it is not interrupted when the run stops, but has the grace period to finish: a blocking handler at work. */
  readonly mayFinish?: boolean
  /** What it holds while it is alive. A task that is to stop waits for no permit. */
  readonly permits?: HeldPermits
  /** The soft stop of the runs that it starts. Only a blocking handler has one. */
  readonly inner?: Cancellation.Cancellation | undefined
  /** Called when it is abandoned. */
  readonly onAbandoned?: () => void
  /** Its grace period, once it is stopping or given up. Its run sets it. */
  grace?: Grace | undefined
}

/** The grace period of a task. When it is over, the task is given up. */
interface Grace {
  since: number
  isOver: boolean
}

/** A handler, as the runs that it starts know it. */
export interface Handler {
  readonly id: string
  readonly permits: HeldPermits
  /** The run that it is of. */
  readonly running: Running
}

/** The handler that this code runs in. */
export const CurrentHandler: Context.Reference<Handler | undefined> = Context.Reference<Handler | undefined>(
  "heddle/internal/Handler",
  { defaultValue: () => undefined }
)

/** What a run that was cut had done before it is taken up again. */
export interface Past {
  /** Its whole steps, in order. */
  readonly steps: ReadonlyArray<{
    readonly result: Event.StepResult
    readonly closing?: Event.Of<"StepCompleted">["closing"]
  }>
  /** Whether the reply of the step behind them is known. */
  readonly hasReply: boolean
}

/** The operation of a session that a run is a part of. */
export interface Operation {
  /** Owns what is waited for beside the run: appends to the store. When the run is left, they have the same grace period. */
  readonly running: Running
  /** Takes in what the run abandons, if the run has no result of its own that names it. */
  readonly abandoned?: Array<Event.Abandoned>
  /** The request id of the run that goes on where calls of an earlier one were settled: its first turn was that one's. */
  readonly continued?: string
  /** Of a run that is taken up again. */
  readonly past?: Past
}

export const CurrentOperation: Context.Reference<Operation | undefined> = Context.Reference<Operation | undefined>(
  "heddle/internal/Operation",
  { defaultValue: () => undefined }
)

/**
 * What a soft stop means for work that the run waits for. `grace`: it may finish within the grace period, then it is given
 * up; `none`: the reader goes on without it at once; `unaffected`: whatever started it stops it.
 */
type OnSoftStop = "grace" | "none" | "unaffected"

/** The machine that drives the run, as its owner stops it: the `Loop` of `loop/loop`. A batch alone has none. */
export interface Driver {
  /** Closes what the step in progress holds. */
  readonly leave: (exit: Exit.Exit<unknown, unknown>) => Effect.Effect<void>
  /** A soft stop: closes the connection to the model now, whatever the reader of the run waits for. */
  readonly hangUp: () => void
}

/** Interrupts a task. The runs that its handler starts have until then. */
const interruptTask = (task: Task, until: number): void => {
  task.permits?.limit(until)
  // Before `permits.stop()`, which wakes a task that waits for permits: it must not go on.
  task.fiber.interruptUnsafe()
  task.permits?.stop()
}

/**
 * Nested runs give up at most this many milliseconds earlier. Otherwise the outer handler would be reported in place of
 * the inner one that is stuck.
 */
const longestLead = 50

export class Running {
  readonly graceMillis: number
  /** Those of the fiber that the run was started in. */
  readonly services: Context.Context<any>
  private readonly clock: Clock.Clock
  /** The handler that the run is in, and the operation that it is a part of. */
  private readonly around: Handler | undefined
  readonly operation: Operation | undefined
  loop: Driver | undefined
  /** In whose fiber the caller's observer runs, once it has taken its time. */
  hooks: Worker | undefined
  private readonly tasks = new Set<Task>()
  private givenUp = 0
  /** Handlers alive, those of them that were given up, and those that are exclusive. */
  private handlers = 0
  private givenUpHandlers = 0
  private exclusives = 0
  /** Called when there may be room for another handler. */
  private listeners: Set<() => void> | undefined
  /** Open while nothing is alive that the run waits for. Made when it first has to wait. */
  private idle: Latch.Latch | undefined
  /** What the runs that its handlers started have abandoned. */
  private abandonedWithin: ReadonlyArray<Event.Abandoned> = []
  /** Grace periods of single tasks, and that of the soft stop. Made with the first one: few runs have any. */
  private timers: Deadline.Timers | undefined
  private softTimers: Deadline.Timers | undefined
  /** When the run was asked to stop softly, and whether the grace period that began then is over. */
  softSince: number | undefined
  private isSoftTimeUp = false
  /** Whether the run is left, or has come to its end. */
  isStopping = false
  /** Whether its reader has gone, or its scope has closed. */
  isLeft = false

  constructor(graceMillis: number, services: Context.Context<never>) {
    this.graceMillis = graceMillis
    this.around = Context.get(services, CurrentHandler)
    this.operation = Context.get(services, CurrentOperation)
    this.services = services as Context.Context<any>
    this.clock = Context.get(services, Clock.Clock)
  }

  /** Adds a task, which is to be removed when its fiber has ended. */
  add(task: Task): void {
    this.tasks.add(task)
    if (task.isHandler) this.handlers++
    if (task.isExclusive) this.exclusives++
    this.idle?.closeUnsafe()
    if (this.isStopping) this.stopTask(task, task.startedAt)
  }

  /** Adds a worker, whose work takes its time. It is to be removed when that has ended. */
  addWorker(worker: Worker): void {
    worker.startedAt = this.now()
    this.tasks.add(worker)
    this.idle?.closeUnsafe()
    if (this.softSince !== undefined) this.applySoftStop(worker, this.softSince)
  }

  private get workers(): ReadonlyArray<Worker> {
    return Array.from(this.tasks).filter((task) => task instanceof Worker)
  }

  /** A worker has nothing more to do but to end. It has one grace period for that, also in a run that goes on. */
  closing(worker: Worker): void {
    if (this.softSince !== undefined) return this.applySoftStop(worker, this.softSince)
    const since = this.now()
    const left = this.until(since) - since
    // A run that is left waits for all tasks together.
    if (this.isLeft || !Number.isFinite(left)) return
    this.beginGrace(worker, since)
    this.whileAlive(worker, left, () => worker.detach(since))
  }

  /** The tasks that are given up and still alive, as they will be named if they are abandoned. */
  get givenUpTasks(): ReadonlyArray<Event.Abandoned> {
    const now = this.now()
    return Array.from(this.tasks).flatMap((task) => task.grace?.isOver === true ? [named(task, now)] : [])
  }

  /**
   * A soft stop: the connection is closed first, and all workers have one grace period together, which begins now.
   * Handlers are stopped by their batch.
   */
  stopSoftly(): void {
    const since = this.softSince ??= this.now()
    this.loop?.hangUp()
    this.workers.forEach((worker) => this.applySoftStop(worker, since))
  }

  private applySoftStop(worker: Worker, since: number): void {
    if (worker.onSoftStop === "unaffected") return
    if (worker.onSoftStop === "none" || this.isSoftTimeUp) return worker.detach(since)
    const left = this.until(since) - this.now()
    // One timer for all workers. A run that is left waits for all tasks together.
    if (this.softTimers !== undefined || this.isLeft || !Number.isFinite(left)) return
    this.softTimers = new Deadline.Timers(this.services)
    const timeUp = () => {
      this.isSoftTimeUp = true
      this.workers.forEach((each) => this.applySoftStop(each, since))
    }
    if (left <= 0) timeUp()
    else this.softTimers.after(left, timeUp)
  }

  private now(): number {
    return this.clock.currentTimeMillisUnsafe()
  }

  /** A blocking handler is not interrupted: it has the grace period to finish. */
  private stopTask(task: Task, now: number): void {
    if (task.mayFinish === true) return this.letFinish(task, now)
    this.beginGrace(task, now)
    interruptTask(task, this.innerUntil(now))
  }

  /** Records that the grace period of a task began at `since`, or earlier if it is stopping already. Returns when. */
  beginGrace(task: Task, since: number): number {
    if (!this.tasks.has(task)) return since
    const grace = task.grace ??= { since, isOver: false }
    return grace.since = Math.min(since, grace.since)
  }

  /** The end of a grace period that began at `since`. The handler around the run may have less time. */
  until(since: number): number {
    return Math.min(since + this.graceMillis, this.around?.permits.until ?? Infinity)
  }

  /** By when the runs within a handler have to end whose grace period began at `since`. */
  private innerUntil(since: number): number {
    return this.until(since) - Math.min(longestLead, this.graceMillis / 10)
  }

  remove(task: Task): void {
    if (!this.tasks.delete(task)) return
    const isGivenUp = task.grace?.isOver === true
    task.grace = undefined
    if (isGivenUp) this.givenUp--
    if (isGivenUp && task.isHandler) this.givenUpHandlers--
    if (this.isIdle) this.idle?.openUnsafe()
    if (!task.isHandler) return
    this.handlers--
    if (task.isExclusive) this.exclusives--
    this.notify()
  }

  private notify(): void {
    this.listeners?.forEach((listener) => listener())
  }

  /** A task is not interrupted, and has the grace period that began at `since` to finish. Runs within it stop softly. */
  letFinish(task: Task, since: number, cause?: string): void {
    if (!this.tasks.has(task)) return
    this.beginGrace(task, since)
    task.permits?.limit(this.innerUntil(since))
    task.inner?.request(cause === undefined ? "interrupt" : Deadline.isCause(cause) ? "deadline" : "cancel", cause)
  }

  /** Interrupts a task. If it is alive when its grace period is over, which began at `since`, it is given up. */
  interrupt(task: Task, since: number, onGivenUp: () => void): void {
    if (!this.tasks.has(task)) return
    const began = this.beginGrace(task, since)
    interruptTask(task, this.innerUntil(began))
    // The interruption may have ended it at once.
    if (!this.tasks.has(task)) return
    const left = Math.max(0, this.graceMillis - (since - began))
    // A run that ends waits for all tasks together.
    if (this.isStopping) return
    this.whileAlive(task, left, () => {
      onGivenUp()
      this.expire(task)
    })
  }

  /** Calls a function after so many milliseconds, unless the task has ended by then. */
  private whileAlive(task: Task, millis: number, timeUp: () => void): void {
    this.timers ??= new Deadline.Timers(this.services)
    const timer = this.timers.after(millis, timeUp)
    task.fiber.addObserver(() => timer.stop())
  }

  /** Gives up a task, whose grace period began at `since` and is over. */
  giveUp(task: Task, since: number): void {
    this.beginGrace(task, since)
    this.expire(task)
  }

  private expire(task: Task): void {
    this.markGivenUp(task)
    if (this.isIdle) this.idle?.openUnsafe()
    this.notify()
  }

  private markGivenUp(task: Task): void {
    const { grace } = task
    if (!this.tasks.has(task) || grace === undefined || grace.isOver) return
    grace.isOver = true
    this.givenUp++
    if (task.isHandler) this.givenUpHandlers++
  }

  /** Whether every task that is alive is given up. */
  private get isIdle(): boolean {
    return this.tasks.size === this.givenUp
  }

  /** Calls `listener` after each handler that has ended or was given up. The returned function takes it back. */
  onRoom(listener: () => void): () => void {
    const listeners = this.listeners ??= new Set()
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  /** Handlers other than the `holding` ones of a batch, of which `isExclusive` may be one. */
  outsiders(holding: number, isExclusive: boolean) {
    return {
      alive: this.handlers - holding,
      occupying: this.handlers - this.givenUpHandlers - holding,
      exclusive: this.exclusives - (isExclusive ? 1 : 0)
    }
  }

  /** A run of this operation is left. An append that is under way has the same grace period, and no other after it. */
  stopAppends(since: number): void {
    this.workers.forEach((worker) => worker.kind === "store" ? this.stopTask(worker, since) : undefined)
  }

  /**
   * Ends the run: what the step in progress holds is closed first, and then every task stopped. Has side effects when it is
   * called, not when the effect is run.
   */
  end(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown> {
    // A reader that is still in a pull goes no further when the connection closes under it.
    this.isStopping = true
    this.isLeft = true
    this.hooks?.close()
    this.operation?.running.stopAppends(this.now())
    const left = this.loop?.leave(exit) ?? Effect.void
    const ended = Effect.flatMapEager(left, () => this.beginStop())
    const { softTimers } = this
    return softTimers === undefined ? ended : Effect.andThen(ended, Effect.suspend(() => softTimers.close()))
  }

  /** Stops every task and waits for them, within the grace period. Yields what was still alive then, and is abandoned. */
  get stop(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    return Effect.suspend(() => this.beginStop())
  }

  /** As `stop`, but it begins when this is called. */
  beginStop(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    this.isStopping = true
    const stopped = this.tasks.size === 0
      ? Effect.succeed(this.abandonedWithin)
      : Clock.currentTimeMillis.pipe(
        Effect.flatMap((now) => this.stopAt(now)),
        Effect.map((abandoned) => [...abandoned, ...this.abandonedWithin])
      )
    const { timers } = this
    return timers === undefined ? stopped : Effect.tap(stopped, () => timers.close())
  }

  /** A run within the handler of a call has abandoned tasks. Each run around it names them, by the calls that lead there. */
  private addAbandonedWithin(id: string, abandoned: ReadonlyArray<Event.Abandoned>): void {
    if (abandoned.length === 0) return
    const named = abandoned.map((entry) => ({ ...entry, path: [id, ...(entry.path ?? [entry.id])] }))
    this.abandonedWithin = [...this.abandonedWithin, ...named]
    this.reportOutward(named)
  }

  private reportOutward(abandoned: ReadonlyArray<Event.Abandoned>): void {
    this.around?.running.addAbandonedWithin(this.around.id, abandoned)
  }

  private stopAt(now: number): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    // Code of the caller's that ends the run it is a part of does not wait for itself.
    const own = Fiber.getCurrent()
    this.workers.forEach((worker) => worker.fiber === own ? this.remove(worker) : undefined)
    this.tasks.forEach((task) => this.stopTask(task, now))
    const ends = Array.from(this.tasks, (task) => ({ task, at: this.until(task.grace?.since ?? now) }))
    for (const { at, task } of ends) if (at <= now) this.markGivenUp(task)
    const waited = this.isIdle ? Effect.void : this.outwait(ends.sort((one, other) => one.at - other.at))
    return Effect.andThen(waited, Effect.suspend(() => this.abandon()))
  }

  /**
   * Waits until each task has ended or is given up. Their grace periods began at different times. A task that is added
   * meanwhile, such as the closing of a connection, has until the last of them is over.
   */
  private outwait(ends: ReadonlyArray<{ readonly task: Task; readonly at: number }>): Effect.Effect<void> {
    const idle = this.idle ??= Latch.makeUnsafe(false)
    return Effect.forEach(
      ends,
      ({ at, task }) => {
        const left = at - this.now()
        if (this.isIdle) return Effect.void
        // A task that has ended by then is not marked: see `markGivenUp`.
        return Effect.map(left > 0 ? Effect.timeoutOption(idle.await, left) : Effect.void, () => this.markGivenUp(task))
      },
      { discard: true }
    )
  }

  /**
   * Abandons what is alive. Blocking handlers have had their time, too: they are interrupted as well, and have one turn of
   * the scheduler to stop.
   */
  private abandon(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    if (this.tasks.size === 0) return Effect.succeed([])
    // Runs within them have no time left, and one that starts now does nothing.
    this.tasks.forEach((task) => interruptTask(task, -Infinity))
    return Effect.yieldNow.pipe(
      Effect.andThen(Clock.currentTimeMillis),
      Effect.map((now) => {
        const abandoned = Array.from(this.tasks, (task) => named(task, now))
        this.tasks.forEach((task) => {
          task.grace = undefined
          task.onAbandoned?.()
          task.permits?.release()
        })
        this.tasks.clear()
        this.givenUp = 0
        this.reportOutward(abandoned)
        this.operation?.abandoned?.push(...abandoned)
        return abandoned
      }),
      Effect.tap((abandoned) => abandoned.length === 0 ? Effect.void : report(abandoned)),
      // What has been abandoned is named here or nowhere.
      Effect.uninterruptible
    )
  }
}

const named = ({ id, kind, name, startedAt }: Task, now: number): Event.Abandoned => ({
  kind,
  id,
  name,
  ageMillis: now - startedAt
})

const report = (abandoned: ReadonlyArray<Event.Abandoned>): Effect.Effect<void> => {
  const what = abandoned.every(({ kind }) => kind === "handler") ? "tool handlers" : "tool handlers or hooks"
  return Effect.logWarning(`${abandoned.length} ${what} refused to stop and were abandoned`, abandoned)
}

/** What a piece of work is named by when it is given up, and what a soft stop means for it. */
interface Manner {
  readonly name: string
  readonly onSoftStop: OnSoftStop
}

/** What a worker is for. */
interface Identity extends Manner {
  readonly kind: Exclude<Event.Abandoned["kind"], "handler">
  readonly id: string
  /** It has one piece of work. Its fiber ends when that and all that it has forked have ended; the reader waits for the work. */
  readonly once?: boolean
  /** A piece of work that fails is its last one: its fiber ends before the reader goes on, and is not to be stopped. */
  readonly endsOnFailure?: boolean
  readonly isUninterruptible?: boolean
  /** Called when it is given up or abandoned at work. */
  readonly onAbandoned?: () => void
}

const nothing = (): void => {}

type Settle = (exit: Exit.Exit<any, any>) => void

/**
 * Code of the caller's that a run waits for: its hooks, its store, its adapter, the effect that cancels it. It runs in a
 * fiber that the run owns, one piece of work after another, so that a fiber's own state lasts from one piece to the next,
 * while the reader waits in its own fiber. A reader that is interrupted leaves at once; the work is then stopped with the
 * run, has the run's grace period to end, and is named and abandoned if it does not.
 *
 *     idle ──────► at work ──────► closing ──────► ended
 *       ▲ start       │  │  close      │
 *       └─────────────┘  │ detach      │ detach, or the end of the run
 *         work ends      └──────────► given up: it takes no more work, and its reader goes on without it
 *
 * It is a task of the run only while it is at work or closing: an idle worker needs nothing to be stopped.
 *
 * The fiber is resumed where it waits, by a call: work that needs no time takes no turn of the scheduler.
 */
export class Worker implements Task {
  readonly kind: Event.Abandoned["kind"]
  readonly id: string
  name: string
  startedAt = 0
  readonly isHandler = false
  readonly isExclusive = false
  grace: Grace | undefined
  private readonly identity: Identity
  /** That of its latest work. */
  private manner: Manner
  private readonly running: Running
  private current: Fiber.Fiber<unknown, unknown> | undefined
  private context: Context.Context<any> | undefined
  private work: Effect.Effect<unknown, unknown, any> | undefined
  private settle: Settle | undefined
  private wake: (() => void) | undefined
  /** Whether it is a task of the run. */
  private isAdded = false
  /** Called when it has closed. There is one from `close` on. */
  private gone: (() => void) | undefined
  private isGivenUp = false
  /** What the reader gets in place of the work's end when it is detached. */
  private otherwise: Exit.Exit<any, any> = Exit.void

  constructor(running: Running, identity: Identity) {
    this.running = running
    this.identity = identity
    this.manner = identity
    this.kind = identity.kind
    this.id = identity.id
    this.name = identity.name
  }

  get fiber(): Fiber.Fiber<unknown, unknown> {
    if (this.current === undefined) throw new Error("a worker that was never at work has no fiber")
    return this.current
  }

  private get isAlive(): boolean {
    return this.current !== undefined && this.current.pollUnsafe() === undefined
  }

  /** Whether it is at work. */
  get isBusy(): boolean {
    return this.settle !== undefined
  }

  /** One that has nothing more to do has the grace period to end. */
  get onSoftStop(): OnSoftStop {
    return this.gone === undefined ? this.manner.onSoftStop : "grace"
  }

  /** Does the work and waits for it; what it comes to is `otherwise` if a soft stop does not let it finish. */
  do<A, E, R>(
    work: Effect.Effect<A, E, R>,
    otherwise: Exit.Exit<A, E>,
    manner: Manner = this.identity
  ): Effect.Effect<A, E, R> {
    if (Exit.isExit(work)) return work
    return Effect.contextWith((context: Context.Context<R>) =>
      Effect.callback<A, E>((resume) => {
        if (this.isGivenUp) return resume(otherwise)
        this.name = manner.name
        this.manner = manner
        this.otherwise = otherwise
        this.start(work, context, resume)
      })
    )
  }

  /** Begins the work, which may be done by then, with the services of the fiber that waits for it. */
  start<A, E>(
    work: Effect.Effect<A, E, any>,
    context: Context.Context<any>,
    settle: (exit: Exit.Exit<A, E>) => void
  ): void {
    this.settle = settle
    this.work = this.context === undefined || this.context === context
      ? work
      : Effect.updateContext(work, () => context)
    if (this.wake !== undefined) this.wake()
    // One that is on its way to its next work finds it there.
    else if (!this.isAlive) this.fork(context)
    if (this.isAlive && (this.settle !== undefined || this.identity.once === true)) this.addToRun()
  }

  private fork(context: Context.Context<any>): void {
    this.context = context
    const fiber = Effect.runForkWith(context)(
      Effect.withFiber((fiber) => {
        // It may do so before `runForkWith` returns.
        this.current = fiber
        return this.next()
      }),
      { uninterruptible: this.identity.isUninterruptible === true }
    )
    this.current = fiber
    fiber.addObserver((exit) => {
      this.context = undefined
      this.wake = undefined
      // What begins now is the run's before the run learns that this has ended.
      const { gone } = this
      this.gone = undefined
      gone?.()
      this.settled(exit)
    })
  }

  /** Its next work, or the wait for it. */
  private next(): Effect.Effect<unknown, unknown, any> {
    const { work } = this
    if (work === undefined) return this.wanted
    this.work = undefined
    return Effect.matchCauseEffect(work, this.ends)
  }

  private readonly ends = {
    onSuccess: (value: unknown) => this.done(Exit.succeed(value)),
    onFailure: (cause: Cause.Cause<unknown>) => this.done(Exit.failCause(cause))
  }

  private done(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown, unknown, any> {
    const { endsOnFailure, once } = this.identity
    if (endsOnFailure === true && Exit.isFailure(exit)) return this.last(exit)
    if (once !== true) {
      this.settled(exit)
      return this.next()
    }
    // What it has forked may take its time. It is the run's until that has ended, and the reader does not wait for it.
    const { settle } = this
    this.settle = undefined
    settle?.(exit)
    return Effect.void
  }

  /** Ends the fiber, whose end the reader gets. The reader does not wait for what the work has forked. */
  private last(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown, unknown> {
    const { settle } = this
    queueMicrotask(() => this.settle === settle && this.gone === undefined ? this.settled(exit) : undefined)
    return exit
  }

  private readonly wanted: Effect.Effect<unknown, unknown, any> = Effect.callback((resume) => {
    // It may have come while the fiber made room for others on its way here.
    if (this.work !== undefined) return resume(this.next())
    const wake = () => {
      this.wake = undefined
      resume(this.next())
    }
    this.wake = wake
  })

  /** The run learns of the end before the waiting fiber goes on: nothing of the work is alive by then. */
  private settled(exit: Exit.Exit<unknown, unknown>): void {
    const { settle } = this
    this.settle = undefined
    if (this.isAdded) {
      this.isAdded = false
      this.running.remove(this)
    }
    settle?.(exit)
  }

  private addToRun(): void {
    this.isAdded = true
    this.running.addWorker(this)
  }

  /** Interrupts the work and lets its reader go on without it: its time, which began at `since`, is over, or it has none. */
  detach(since: number): void {
    const { settle } = this
    if (!this.isAdded) return
    if (settle === undefined) return this.running.giveUp(this, since)
    this.settle = nothing
    this.current?.interruptUnsafe()
    // The interruption may have ended it at once.
    if (this.isAdded) this.afterDetached(since)
    settle(this.otherwise)
  }

  /** What a soft stop does not wait for has the rest of the grace period to clean up: the end of the run waits for that. */
  private afterDetached(since: number): void {
    if (this.onSoftStop === "none") return void this.running.beginGrace(this, since)
    this.running.giveUp(this, since)
    this.onAbandoned()
  }

  /** Does its only work, which is to end something, and has one grace period for it. */
  end(work: Effect.Effect<void>, context: Context.Context<any>, settle: () => void): void {
    this.start(work, context, settle)
    if (this.isAdded) this.running.closing(this)
  }

  /**
   * It has nothing more to do. What it still does is the run's to stop; `gone` is called when its work has ended or is
   * given up, which may be now.
   */
  close(gone: () => void = nothing): void {
    const { isBusy } = this
    this.work = undefined
    this.current?.interruptUnsafe()
    if (!this.isAlive || this.isGivenUp) return gone()
    // A fiber that has no work may be alive yet: its reader is just being resumed, or a child of the fiber ends.
    if (!isBusy) gone()
    this.gone = isBusy ? gone : nothing
    this.settle ??= nothing
    // Children of its fiber may take their time.
    if (!this.isAdded) this.addToRun()
    this.running.closing(this)
  }

  onAbandoned(): void {
    if (this.isGivenUp) return
    this.isGivenUp = true
    if (this.settle !== undefined) this.identity.onAbandoned?.()
    this.gone?.()
    this.gone = undefined
  }
}

/**
 * The code of the caller's that runs for the calls of a batch outside of their fibers: it decodes arguments, and answers calls
 * that have no fiber of their own, or no longer. Each piece runs in a fiber that the run owns, for as long as it is given.
 */
export class HookFibers {
  private readonly running: Running
  private readonly clock: Clock.Clock
  /** Tells whether answers are recorded. Their writing may finish when the run stops. */
  private readonly isRecorded: boolean
  private tasks: Set<Task> | undefined
  /** When the grace period of all its fibers began, once the batch is cancelled. */
  private graceSince: number | undefined

  constructor(running: Running, clock: Clock.Clock, isRecorded: boolean) {
    this.running = running
    this.clock = clock
    this.isRecorded = isRecorded
  }

  /** Adds a fiber to the run, before it runs code of the caller's. Returns what stops it. */
  own(
    { id, name }: { readonly id: string; readonly name: string },
    fiber: Fiber.Fiber<unknown, unknown>,
    mayFinish = false
  ): () => void {
    const { clock, running } = this
    const startedAt = clock.currentTimeMillisUnsafe()
    const task: Task = { kind: "hook", id, name, startedAt, isHandler: false, isExclusive: false, fiber, mayFinish }
    running.add(task)
    const tasks = this.tasks ??= new Set()
    tasks.add(task)
    if (this.graceSince !== undefined) running.beginGrace(task, this.graceSince)
    fiber.addObserver(() => {
      tasks.delete(task)
      running.remove(task)
    })
    return () => running.interrupt(task, clock.currentTimeMillisUnsafe(), () => {})
  }

  /**
   * Work for a call with a limit of time, which it may ignore: it runs in a fiber of its own, is interrupted when the time
   * is up, and the call goes on without it, even if it refuses to stop. Work that heeds interruption needs no more than
   * `Effect.timeoutOrElse`. What the work has forked may outlive it, and is not waited for here.
   */
  limited<A, E, R>(
    call: { readonly id: string; readonly name: string },
    work: Effect.Effect<A, E, R>,
    millis: number,
    late: (millis: number) => E,
    isAnswer = false
  ): Effect.Effect<A, E, R> {
    return Effect.contextWith((context: Context.Context<R>) => {
      const ended = Deferred.makeUnsafe<A, E>()
      const startedAt = this.clock.monotonicTimeNanosUnsafe()
      const fiber = Effect.runForkWith(context)(Effect.onExitPrimitive(work, (exit) => {
        Deferred.doneUnsafe(ended, exit)
        return undefined
      }))
      // Work that ends without waiting costs no timer.
      const exit = fiber.pollUnsafe()
      if (exit !== undefined) return exit
      // Work that is no Effect ends the fiber without running `onExit`.
      fiber.addObserver((exit) => Deferred.doneUnsafe(ended, exit))
      const stop = this.own(call, fiber, isAnswer && this.isRecorded)
      if (Deferred.isDoneUnsafe(ended)) return Deferred.await(ended)
      const end = Effect.onInterrupt(Deferred.await(ended), () => Effect.sync(stop))
      if (!Number.isFinite(millis)) return end
      const left = Deadline.leftOf(millis, this.clock, startedAt)
      return Effect.timeoutOrElse(end, { duration: left, orElse: () => Effect.fail(late(millis)) })
    })
  }

  /** Lets all of them finish, and those that come later, within a grace period that began at `since`. */
  letFinish(since: number): void {
    this.graceSince = since
    this.tasks?.forEach((task) => this.running.beginGrace(task, since))
  }

  /** Interrupts all of them. Their grace period began at `since`, and is over. */
  interrupt(since: number): void {
    this.tasks?.forEach((task) => this.running.interrupt(task, since, () => {}))
  }
}
