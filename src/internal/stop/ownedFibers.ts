/**
 * Fibers owned by one run (`Running`), running tool code and the caller's hooks. A fiber is added before any such code
 * runs, so no code can end the run and stay alive. `Worker` lets a run wait for code outside handlers, and `HookFibers`
 * limits the time of such code in a batch.
 *
 * A task is a fiber owned by the run. Its life:
 *
 *     alive ──────────► stopping ──────────► given up ──────────► abandoned
 *       │ interrupt         │ its grace          │ the run ends        the result names it; later
 *       │ letFinish         │ period is over     │                     output is dropped
 *       ▼                   ▼                    ▼
 *     removed, when its fiber ends
 *
 * - *Stopping*: the grace period has begun. A task never gets a second, whatever else stops the task. It was either
 *   interrupted or, as a blocking handler, may finish (`letFinish`).
 * - *Given up*: the grace period is over. Nothing waits for the task, and its place is free for another handler. It may
 *   still end.
 * - *Abandoned*: the task was alive at the run's end.
 * - *Soft stop*: a stop request from a cancellation or a deadline. The reader keeps reading, and gets a result.
 * - *Left*: the reader has left, and the run ends alone. It stops all tasks and waits for them together.
 */
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"
import type * as Event from "../../Event.ts"
import type { HeldPermits } from "../permits/permits.ts"
import * as Telemetry from "../telemetry.ts"
import type * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import * as Timers from "./timers.ts"

/** A fiber owned by the run, with its names for the report if it is abandoned. */
export interface Task {
  readonly kind: Event.Abandoned["kind"]
  readonly id: string
  readonly name: string
  readonly startedAt: number
  /** `true` for a handler, which counts for admission while alive. Other call code does not count. */
  readonly isHandler: boolean
  readonly isExclusive: boolean
  readonly fiber: Fiber.Fiber<unknown, unknown>
  /**
   * `true` if the task may finish within the grace period when the run stops, without interruption: a blocking handler
   * at work, or an answer being recorded.
   */
  readonly mayFinish?: boolean
  /** Permits held while the task is alive. A stopping task waits for no permit. */
  readonly permits?: HeldPermits
  /** Soft stop for runs started by the task. Only blocking handlers have one of these. */
  readonly inner?: Cancellation.Cancellation | undefined
  /** `true` while the task only waits for permits: its own, or those of runs it started. */
  readonly isHeldUp?: boolean
  /** Notes that the task is abandoned. */
  readonly onAbandoned?: () => void
  /** Grace period, set by the run once the task is stopping or given up. */
  grace?: Grace | undefined
}

/** A task's grace period. At its end, the task is given up. */
interface Grace {
  since: number
  isOver: boolean
}

/** A handler, as seen by the runs it starts. */
export interface Handler {
  readonly id: string
  /** Tool name. */
  readonly name: string
  readonly permits: HeldPermits
  /** Call context of the handler. All attempts share the progress function. */
  readonly context: { readonly progress: object }
  /** Fibers of the handler's run. */
  readonly running: Running
  /**
   * Notes progress: an event of a run it started, or the end of a wait. Left out if neither this handler nor an
   * enclosing one limits its time without progress.
   */
  readonly moved: (() => void) | undefined
  /** `true` once a run it started has abandoned a task, which may outlive the handler. */
  hasAbandoned: boolean
}

/** The handler this code runs in. */
export const CurrentHandler: Context.Reference<Handler | undefined> = Context.Reference<Handler | undefined>(
  "heddle/internal/Handler",
  { defaultValue: () => undefined }
)

/** The run whose rules this code belongs to. */
export const CurrentRunning: Context.Reference<Running | undefined> = Context.Reference<Running | undefined>(
  "heddle/internal/Running",
  { defaultValue: () => undefined }
)

/**
 * Effect of a soft stop on awaited work. `grace`: the work may finish within the grace period, then is given up.
 * `none`: the reader continues without the work at once. `unaffected`: only the starting code stops the work.
 */
type OnSoftStop = "grace" | "none" | "unaffected"

/** The part of `loop/loop`'s `Loop` called by a stop. A batch alone has no loop. */
export interface Driver {
  /** Closes the resources of the current step. */
  readonly leave: (exit: Exit.Exit<unknown, unknown>) => Effect.Effect<void>
  /** Closes the connection to the model at a soft stop, whatever the run's reader waits for. */
  readonly hangUp: () => void
}

/** Calls in a turn, which can be stopped one at a time. */
export interface Stoppable {
  /**
   * Stops the call at the end of a path of call ids, leaving other calls alone. Returns `false` for an unknown call,
   * and for one already answered or stopped.
   */
  readonly stopCall: (path: ReadonlyArray<string>, reason: string) => boolean
  /** Returns the inbox of a run inside the call at the end of a path, preferring the latest run with an inbox. */
  readonly inboxAt: (path: ReadonlyArray<string>) => object | undefined
}

/** Interrupts a task. Runs started by its handler must end by `until`. */
const interruptTask = (task: Task, until: number): void => {
  task.permits?.limit(until)
  // Interruption precedes `permits.stop()`, which wakes a task waiting for permits: that task must not continue.
  task.fiber.interruptUnsafe()
  task.permits?.stop()
}

/**
 * Longest lead, in milliseconds, of nested runs in giving up their tasks before the enclosing run. Without the lead,
 * the outer handler would be reported instead of the stuck inner handler.
 */
const longestLead = 50

export class Running {
  readonly graceMillis: number
  /** Services of the fiber starting the run. */
  readonly services: Context.Context<any>
  private readonly clock: Clock.Clock
  /** The handler that started the run, if any. */
  private readonly around: Handler | undefined
  /** Notes progress of the run, if its time without progress is limited. */
  readonly moved: (() => void) | undefined
  /** Owns a recorded run's appends, which end with the run. */
  private readonly appends: Running | undefined
  loop: Driver | undefined
  /** The run's inbox, if any. */
  inbox: object | undefined
  /** Worker for the caller's observer. */
  hooks: Worker | undefined
  /** Scope for resources opened by rules, if any. Closed once the fibers have ended. */
  opened: Scope.Closeable | undefined
  private readonly tasks = new Set<Task>()
  /** Turns with individually stoppable calls. */
  private turns: ReadonlyArray<Stoppable> = []
  /** Requested stops for calls that have not come up yet. */
  private expected: ReadonlyArray<{ readonly path: string; readonly reason: string }> = []
  private givenUp = 0
  /** Live handlers, and how many of these were given up or are exclusive. */
  private handlers = 0
  private givenUpHandlers = 0
  private exclusives = 0
  /** Listeners for room: another handler may start. */
  private listeners: Set<() => void> | undefined
  /** Open while all live tasks are given up. Created when the run first has to wait. */
  private idle: Latch.Latch | undefined
  /** Tasks abandoned by nested runs. */
  private abandonedWithin: ReadonlyArray<Event.Abandoned> = []
  /** Timers for single tasks' grace periods, and for the soft stop. Created on demand: few runs need any. */
  private timers: Timers.Timers | undefined
  private softTimers: Timers.Timers | undefined
  /**
   * Time of the soft stop, and whether the grace period that began then is over, and the further period for recording.
   */
  softSince: number | undefined
  private isSoftTimeUp = false
  private isLateTimeUp = false
  /** `true` once tasks are being stopped: the reader has left, or the run has reached its end. */
  isStopping = false
  /** `true` once the reader has left or the scope has closed. */
  isLeft = false

  constructor(graceMillis: number, services: Context.Context<never>, appends?: Running) {
    this.graceMillis = graceMillis
    this.around = Context.get(services, CurrentHandler)
    this.moved = this.around?.moved
    this.appends = appends
    this.services = services as Context.Context<any>
    this.clock = Context.get(services, Clock.Clock)
  }

  /** Adds a task. The caller removes the task when its fiber has ended. */
  add(task: Task): void {
    this.tasks.add(task)
    if (task.isHandler) this.handlers++
    if (task.isExclusive) this.exclusives++
    this.idle?.closeUnsafe()
    if (this.isStopping) this.stopTask(task, task.startedAt)
  }

  /** Adds a worker's work that did not end at once. The worker removes its work at the end. */
  addWork(work: Work): void {
    work.startedAt = this.now()
    this.tasks.add(work)
    this.idle?.closeUnsafe()
    if (this.softSince !== undefined) this.applySoftStop(work, this.softSince)
  }

  /** Adds a turn with individually stoppable calls. The returned function removes the turn. */
  addTurn(turn: Stoppable): () => void {
    this.turns = [...this.turns, turn]
    return () => {
      this.turns = this.turns.filter((other) => other !== turn)
      // Requested stops apply only to the turn open at that time.
      this.expected = []
    }
  }

  /** Stops one call by its path, or, if it has not come up yet, once it does come up. */
  stopCallSoon(path: ReadonlyArray<string>, reason: string): void {
    if (!this.stopCall(path, reason)) this.expected = [...this.expected, { path: JSON.stringify(path), reason }]
  }

  /** Returns the reason to stop a call just coming up, if its stop was requested before. Each reason applies once. */
  expectedStop(path: ReadonlyArray<string>): string | undefined {
    const { around } = this
    const outer = around?.running.expectedStop([around.id, ...path])
    if (outer !== undefined || this.expected.length === 0) return outer
    const name = JSON.stringify(path)
    const found = this.expected.find(({ path }) => path === name)
    if (found !== undefined) this.expected = this.expected.filter((other) => other !== found)
    return found?.reason
  }

  /** Stops one call in the run or in a run inside it, as described in `Stoppable`. */
  stopCall(path: ReadonlyArray<string>, reason: string): boolean {
    return this.turns.some((turn) => turn.stopCall(path, reason))
  }

  /** Returns the inbox of the run, or of a run inside the call at a path, as described in `Stoppable`. */
  inboxAt(path: ReadonlyArray<string>): object | undefined {
    if (path.length === 0) return this.inbox
    for (const turn of this.turns) {
      const found = turn.inboxAt(path)
      if (found !== undefined) return found
    }
    return undefined
  }

  private get works(): ReadonlyArray<Work> {
    return Array.from(this.tasks).filter((task) => task instanceof Work)
  }

  /** Gives work with nothing left but ending one grace period, even in a continuing run. */
  closing(work: Work): void {
    if (this.softSince !== undefined) return this.applySoftStop(work, this.softSince)
    const since = this.now()
    const left = this.until(since) - since
    // A run without a reader waits for all tasks together.
    if (this.isLeft || !Number.isFinite(left)) return
    this.beginGrace(work, since)
    this.whileAlive(work, left, () => work.worker.detach(since))
  }

  /** Tasks given up but still alive, in the form of the abandoned report. */
  get givenUpTasks(): ReadonlyArray<Event.Abandoned> {
    const now = this.now()
    return Array.from(this.tasks).flatMap((task) => task.grace?.isOver === true ? [named(task, now)] : [])
  }

  /**
   * Stops the run softly: closes the connection, and gives all workers a shared grace period beginning now. Batches
   * stop their handlers themselves.
   */
  stopSoftly(): void {
    const since = this.softSince ??= this.now()
    this.loop?.hangUp()
    this.works.forEach((work) => this.applySoftStop(work, since))
  }

  private applySoftStop(work: Work, since: number): void {
    const { worker } = work
    if (worker.onSoftStop === "unaffected") return
    if (worker.onSoftStop === "none") return worker.detach(since)
    if (this.isSoftTimeUp) return this.isRecordedLate(work, since) ? undefined : worker.detach(since)
    const left = this.until(since) - this.now()
    // All workers share one timer. A run without a reader waits for all tasks together.
    if (this.softTimers !== undefined || this.isLeft || !Number.isFinite(left)) return
    const timers = this.softTimers = new Timers.Timers(this.services)
    const stop = () => this.works.forEach((work) => this.applySoftStop(work, since))
    const lateTimeUp = () => {
      this.isLateTimeUp = true
      stop()
    }
    const timeUp = () => {
      this.isSoftTimeUp = true
      timers.after(this.recordedMillis(since), lateTimeUp)
      stop()
    }
    if (left <= 0) timeUp()
    else timers.after(left, timeUp)
  }

  /**
   * Returns `true` for work recording events after the soft stop, such as answers and the run's end. All such work
   * shares `recordedMillis`: without this time, a run whose handlers outlive the grace period would have no recorded
   * end.
   */
  private isRecordedLate(work: Work, since: number): boolean {
    return work.kind === "store" && work.startedAt >= since && !this.isLateTimeUp
  }

  private now(): number {
    return this.clock.currentTimeMillisUnsafe()
  }

  /** Stops a task: lets it finish if allowed, otherwise interrupts the task. Its grace period begins now. */
  private stopTask(task: Task, now: number): void {
    if (task.mayFinish === true) return this.letFinish(task, now)
    this.beginGrace(task, now)
    interruptTask(task, this.innerUntil(now))
  }

  /** Begins a task's grace period at `since`, unless it began earlier. Returns its beginning. */
  beginGrace(task: Task, since: number): number {
    if (!this.tasks.has(task)) return since
    const grace = task.grace ??= { since, isOver: false }
    return grace.since = Math.min(since, grace.since)
  }

  /** Returns the end of a grace period begun at `since`. The enclosing handler may have less time. */
  until(since: number): number {
    return Math.min(since + this.graceMillis, this.around?.permits.until ?? Infinity)
  }

  /**
   * Returns the milliseconds for recording after a grace period that began at `since` and is now over: one more grace
   * period. A run within a handler has half of its lead over the handler for recording, and the other half to end.
   */
  private recordedMillis(since: number): number {
    const { around } = this
    const now = this.now()
    const own = Math.max(0, since + 2 * this.graceMillis - now)
    if (around?.permits.until === undefined) return own
    return Math.min(own, Math.max(0, around.permits.until - now) + around.running.lead / 2)
  }

  /** How many milliseconds before a handler the runs inside end. */
  private get lead(): number {
    return Math.min(longestLead, this.graceMillis / 10)
  }

  /** Returns the time by which runs within a handler must end. The handler's grace period began at `since`. */
  private innerUntil(since: number): number {
    return this.until(since) - this.lead
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

  /** Live handlers, in starting order. */
  get handlersAlive(): ReadonlyArray<Task> {
    return Array.from(this.tasks).filter(({ isHandler }) => isHandler)
  }

  /**
   * `true` if the run only waits for permits: some calls do, and no other task is at work. Waiting for a stop request
   * is not work.
   */
  get isHeldUp(): boolean {
    const atWork = Array.from(this.tasks).filter(({ grace, kind }) => grace?.isOver !== true && kind !== "cancel")
    return atWork.length > 0 && atWork.every(({ isHeldUp }) => isHeldUp === true)
  }

  /** Runs a rule's work that only waits for resources held by other runs. Its end counts as progress of the run. */
  heldUp<A, E, R>(wait: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    const { hooks } = this
    if (hooks === undefined) return wait
    hooks.isHeldUp = true
    return Effect.onExit(wait, () =>
      Effect.sync(() => {
        hooks.isHeldUp = false
        this.moved?.()
      }))
  }

  private notify(): void {
    this.listeners?.forEach((listener) => listener())
  }

  /** Lets a task finish within the grace period begun at `since`. Runs within the task stop softly. */
  letFinish(task: Task, since: number, cause?: string): void {
    if (!this.tasks.has(task)) return
    this.beginGrace(task, since)
    task.permits?.limit(this.innerUntil(since))
    task.inner?.request(cause === undefined ? "interrupt" : Deadline.isCause(cause) ? "deadline" : "cancel", cause)
  }

  /** Interrupts a task, and gives it up if still alive at the end of its grace period, begun at `since`. */
  interrupt(task: Task, since: number, onGivenUp: () => void): void {
    if (!this.tasks.has(task)) return
    const began = this.beginGrace(task, since)
    interruptTask(task, this.innerUntil(began))
    // The interruption may have ended the task at once.
    if (!this.tasks.has(task)) return
    const left = Math.max(0, this.graceMillis - (since - began))
    // An ending run waits for all tasks together.
    if (this.isStopping) return
    this.whileAlive(task, left, () => {
      onGivenUp()
      this.expire(task)
    })
  }

  /** Calls a function after a number of milliseconds, unless the task has ended by then. */
  private whileAlive(task: Task, millis: number, timeUp: () => void): void {
    this.timers ??= new Timers.Timers(this.services)
    const timer = this.timers.after(millis, timeUp)
    task.fiber.addObserver(() => timer.stop())
  }

  /** Gives up a task whose grace period, begun at `since`, is over. */
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

  /** `true` if all live tasks are given up. */
  private get isIdle(): boolean {
    return this.tasks.size === this.givenUp
  }

  /** Calls `listener` after each handler ends or is given up. The returned function removes the listener. */
  onRoom(listener: () => void): () => void {
    const listeners = this.listeners ??= new Set()
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  /** Counts the handlers outside a batch with `holding` handlers. `isExclusive`: one of its handlers is exclusive. */
  outsiders(holding: number, isExclusive: boolean) {
    return {
      alive: this.handlers - holding,
      occupying: this.handlers - this.givenUpHandlers - holding,
      exclusive: this.exclusives - (isExclusive ? 1 : 0)
    }
  }

  /** Stops appends in progress when an operation's run ends. They get no second grace period after this one. */
  stopAppends(since: number): void {
    this.works.forEach((work) => work.kind === "store" ? this.stopTask(work, since) : undefined)
  }

  /**
   * Ends the run: closes the current step's resources first, then stops every task. The end begins when this method is
   * called, not when the returned effect runs.
   */
  end(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown> {
    // A reader still in a pull stops there when its connection closes.
    this.isStopping = true
    this.isLeft = true
    this.hooks?.close()
    this.appends?.stopAppends(this.now())
    const left = this.loop?.leave(exit) ?? Effect.void
    const ended = Effect.flatMapEager(left, () => this.beginStop())
    const { softTimers } = this
    return softTimers === undefined ? ended : Effect.andThen(ended, Effect.suspend(() => softTimers.close()))
  }

  /** Stops every task and waits within the grace period. Succeeds with the abandoned tasks, still alive at its end. */
  get stop(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    return Effect.suspend(() => this.beginStop())
  }

  /** Does the same as `stop`, and marks the run as stopping when called. */
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

  /** Adds tasks abandoned by a nested run. Each enclosing run names them by their path of calls. */
  private addAbandonedWithin(id: string, abandoned: ReadonlyArray<Event.Abandoned>): void {
    const named = abandoned.map((entry) => ({ ...entry, path: [id, ...(entry.path ?? [entry.id])] }))
    this.abandonedWithin = [...this.abandonedWithin, ...named]
    this.reportOutward(named)
  }

  private reportOutward(abandoned: ReadonlyArray<Event.Abandoned>): void {
    const { around } = this
    if (around === undefined || abandoned.length === 0) return
    around.hasAbandoned = true
    around.running.addAbandonedWithin(around.id, abandoned)
  }

  private stopAt(now: number): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    // Caller code may end its own run, and must not wait for itself.
    const own = Fiber.getCurrent()
    this.works.forEach((work) => work.fiber === own ? this.remove(work) : undefined)
    this.tasks.forEach((task) => this.stopTask(task, now))
    const ends = Array.from(this.tasks, (task) => ({ task, at: this.until(task.grace?.since ?? now) }))
    for (const { at, task } of ends) if (at <= now) this.markGivenUp(task)
    const waited = this.isIdle ? Effect.void : this.outwait(ends.sort((one, other) => one.at - other.at))
    return Effect.andThen(waited, Effect.suspend(() => this.abandon()))
  }

  /**
   * Waits until each task has ended or is given up: their grace periods began at different times. A task added
   * meanwhile, such as closing a connection, has until the end of the last period.
   */
  private outwait(ends: ReadonlyArray<{ readonly task: Task; readonly at: number }>): Effect.Effect<void> {
    const idle = this.idle ??= Latch.makeUnsafe(false)
    return Effect.forEach(
      ends,
      ({ at, task }) => {
        const left = at - this.now()
        if (this.isIdle) return Effect.void
        // A task ended by then is not marked: see `markGivenUp`.
        return Effect.map(left > 0 ? Effect.timeoutOption(idle.await, left) : Effect.void, () => this.markGivenUp(task))
      },
      { discard: true }
    )
  }

  /**
   * Abandons all live tasks. Blocking handlers have had their time: they are now interrupted as well, and get one
   * scheduler turn to stop.
   */
  private abandon(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    if (this.tasks.size === 0) return Effect.succeed([])
    // Runs within these tasks have no time left, and a run starting now does nothing.
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
        return abandoned
      }),
      Effect.tap((abandoned) => abandoned.length === 0 ? Effect.void : report(abandoned)),
      // An interruption must not lose the names of abandoned tasks: no other code reports them.
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
  return Telemetry.logged(
    Effect.logWarning(`${abandoned.length} ${what} refused to stop and were abandoned`, abandoned)
  )
}

/** Name reported for work given up, and its reaction to a soft stop. */
interface Manner {
  readonly name: string
  readonly onSoftStop: OnSoftStop
}

/** Purpose of a worker. */
interface Identity extends Manner {
  readonly kind: Exclude<Event.Abandoned["kind"], "handler">
  readonly id: string
  /**
   * `true` for a worker with a single piece of work. The reader waits for the work; the fiber ends after everything
   * forked by the work has ended, too.
   */
  readonly once?: boolean
  /**
   * `true` if failed work is the last. The fiber then ends before the reader continues, so the end of the run has no
   * fiber to stop.
   */
  readonly endsOnFailure?: boolean
  readonly isUninterruptible?: boolean
  /** Reports that the worker was given up or abandoned at work. */
  readonly onAbandoned?: () => void
}

const nothing = (): void => {}

type Settle = (exit: Exit.Exit<any, any>) => void

/**
 * Runs caller code a run waits for: hooks, the store, the adapter, the cancelling effect. The code runs in a fiber
 * owned by the run, one piece of work after another, so fiber-local state lasts between pieces, while the reader waits
 * in its own fiber. An interrupted reader leaves at once; the work is then stopped with the run, gets the run's grace
 * period to end, and is abandoned and reported otherwise.
 *
 *     idle ──────► at work ──────► closing ──────► ended
 *       ▲ start       │  │  close      │
 *       └─────────────┘  │ detach      │ detach, or the end of the run
 *         work ends      └──────────► given up: it takes no more work, and its reader continues without it
 *
 * The fiber is a task of the run only while at work or closing: the end of the run need not stop an idle fiber.
 *
 * Work without waiting takes no scheduler turn. A read usually comes before the fiber waits for it, and then takes no
 * step for the hand-over: 13 steps a delta, 36 steps and 2 fibers a call, 162 steps and 7 fibers a run with one call. A
 * fiber per piece instead of this class takes 15 steps and a fiber a delta, 38 steps and 3 fibers a call, 170 steps and
 * 11 fibers a run, and the end of a piece ends the fibers forked by that piece. A fiber taking each piece from a
 * `Deferred` takes 16, 39 and 186 steps; from a `Queue`, 15 a delta and 38 a call.
 */
export class Worker {
  private readonly identity: Identity
  /** The latest work's manner. */
  private manner: Manner
  private readonly running: Running
  /** The latest fiber's task, and that task while the run has it listed. */
  private latest: Work | undefined
  private added: Work | undefined
  private context: Context.Context<any> | undefined
  private work: Effect.Effect<unknown, unknown, any> | undefined
  private settle: Settle | undefined
  /** Wakes the fiber waiting for work. */
  private asked = Deferred.makeUnsafe<void>()
  /** Reports that the worker has closed. Set by `close`. */
  private gone: (() => void) | undefined
  private isGivenUp = false
  /** `true` while its work only waits for resources held by other runs. */
  isHeldUp = false
  /** Exit for the reader when the work is detached. */
  private otherwise: Exit.Exit<any, any> = Exit.void

  constructor(running: Running, identity: Identity) {
    this.running = running
    this.identity = identity
    this.manner = identity
  }

  /** The latest work's name. */
  get name(): string {
    return this.manner.name
  }

  /** The live fiber's task, if any. */
  private get alive(): Work | undefined {
    return this.latest?.fiber.pollUnsafe() === undefined ? this.latest : undefined
  }

  /** `true` while at work. */
  get isBusy(): boolean {
    return this.settle !== undefined
  }

  /** Reaction to a soft stop. A closing worker has the grace period to end. */
  get onSoftStop(): OnSoftStop {
    return this.gone === undefined ? this.manner.onSoftStop : "grace"
  }

  /** Does the work and waits for its end. Ends with `otherwise` if the work is detached before. */
  do<A, E, R>(
    work: Effect.Effect<A, E, R>,
    otherwise: Exit.Exit<A, E>,
    manner: Manner = this.identity
  ): Effect.Effect<A, E, R> {
    if (Exit.isExit(work)) return work
    return Effect.contextWith((context: Context.Context<R>) =>
      Effect.callback<A, E>((resume) => {
        if (this.isGivenUp) return resume(otherwise)
        this.manner = manner
        this.otherwise = otherwise
        this.start(work, context, resume)
      })
    )
  }

  /** Begins the work, with the waiting fiber's services. The work may end before this returns. */
  start<A, E>(
    work: Effect.Effect<A, E, any>,
    context: Context.Context<any>,
    settle: (exit: Exit.Exit<A, E>) => void
  ): void {
    this.settle = settle
    this.work = this.context === undefined || this.context === context
      ? work
      : Effect.updateContext(work, () => context)
    // A fiber about to look for its next work finds this work.
    if (this.alive === undefined) this.fork(context)
    else Deferred.doneUnsafe(this.asked, Exit.void)
    const { alive } = this
    if (alive !== undefined && (this.settle !== undefined || this.identity.once === true)) this.addToRun(alive)
  }

  private fork(context: Context.Context<any>): void {
    this.context = context
    const fiber = Effect.runForkWith(context)(
      Effect.withFiber((fiber) => {
        // The fiber may start before `runForkWith` returns.
        this.latest = new Work(this, this.identity, fiber)
        return this.next()
      }),
      { uninterruptible: this.identity.isUninterruptible === true }
    )
    if (this.latest?.fiber !== fiber) this.latest = new Work(this, this.identity, fiber)
    fiber.addObserver((exit) => {
      this.context = undefined
      // Work begun by `gone` joins the run before the run learns that this work has ended.
      const { gone } = this
      this.gone = undefined
      gone?.()
      this.settled(exit)
    })
  }

  /** Does the next piece of work, or waits. Work arriving while the fiber yields before the wait ends that wait. */
  private next(): Effect.Effect<unknown, unknown, any> {
    const { work } = this
    if (work === undefined) {
      this.asked = Deferred.makeUnsafe()
      return Effect.flatMap(Deferred.await(this.asked), () => this.next())
    }
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
    // Fibers forked by the work may live on. The worker stays a task of the run until they have ended, but the reader
    // does not wait.
    const { settle } = this
    this.settle = undefined
    settle?.(exit)
    return Effect.void
  }

  /** Ends the fiber, passing its exit to the reader. The reader does not wait for fibers forked by the work. */
  private last(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown, unknown> {
    const { settle } = this
    queueMicrotask(() => this.settle === settle && this.gone === undefined ? this.settled(exit) : undefined)
    return exit
  }

  /** Removes the work from the run before the reader continues: no part of the work is alive by then. */
  private settled(exit: Exit.Exit<unknown, unknown>): void {
    const { added, settle } = this
    this.settle = undefined
    this.added = undefined
    if (added !== undefined) this.running.remove(added)
    settle?.(exit)
  }

  private addToRun(work: Work): void {
    this.added = work
    this.running.addWork(work)
  }

  /**
   * Interrupts the work and lets its reader continue: the grace period, begun at `since`, is over, or the work has no
   * grace period.
   */
  detach(since: number): void {
    const { added, settle } = this
    if (added === undefined) return
    if (settle === undefined) return this.running.giveUp(added, since)
    this.settle = nothing
    added.fiber.interruptUnsafe()
    // The interruption may have ended the work at once.
    if (this.added !== undefined) this.afterDetached(this.added, since)
    settle(this.otherwise)
  }

  /**
   * Gives the work up. Work a soft stop does not wait for gets the rest of the grace period to clean up instead: the
   * end of the run waits for that.
   */
  private afterDetached(work: Work, since: number): void {
    if (this.onSoftStop === "none") return void this.running.beginGrace(work, since)
    this.running.giveUp(work, since)
    this.onAbandoned()
  }

  /** Does the worker's only work, closing something, within one grace period. */
  end(work: Effect.Effect<void>, context: Context.Context<any>, settle: () => void): void {
    this.start(work, context, settle)
    if (this.added !== undefined) this.running.closing(this.added)
  }

  /**
   * Closes the worker, which takes no more work. The run stops unfinished work. Calls `gone` when that work has ended
   * or is given up, possibly at once.
   */
  close(gone: () => void = nothing): void {
    const { isBusy } = this
    this.work = undefined
    this.latest?.fiber.interruptUnsafe()
    const { alive } = this
    if (alive === undefined || this.isGivenUp) return gone()
    // A fiber without work may still be alive: its reader is just being resumed, or one of its children is ending.
    if (!isBusy) gone()
    this.gone = isBusy ? gone : nothing
    this.settle ??= nothing
    // Children of the fiber may live on: the run has to stop them.
    if (this.added === undefined) this.addToRun(alive)
    this.running.closing(alive)
  }

  onAbandoned(): void {
    if (this.isGivenUp) return
    this.isGivenUp = true
    if (this.settle !== undefined) this.identity.onAbandoned?.()
    this.gone?.()
    this.gone = undefined
  }
}

/** The task of a worker's fiber. */
class Work implements Task {
  readonly worker: Worker
  readonly kind: Event.Abandoned["kind"]
  readonly id: string
  readonly fiber: Fiber.Fiber<unknown, unknown>
  readonly isHandler = false
  readonly isExclusive = false
  startedAt = 0
  grace: Grace | undefined

  constructor(worker: Worker, { id, kind }: Identity, fiber: Fiber.Fiber<unknown, unknown>) {
    this.worker = worker
    this.kind = kind
    this.id = id
    this.fiber = fiber
  }

  get name(): string {
    return this.worker.name
  }

  get isHeldUp(): boolean {
    return this.worker.isHeldUp
  }

  onAbandoned(): void {
    this.worker.onAbandoned()
  }
}

/**
 * Owns fibers for caller code serving a batch's calls outside the calls' own fibers: decoding arguments, and answering
 * calls without a fiber. Each piece runs in a fiber owned by the run, within its time limit.
 */
export class HookFibers {
  private readonly running: Running
  private readonly clock: Clock.Clock
  /** `true` if answers are recorded. Writing answers may finish when the run stops. */
  private readonly isRecorded: boolean
  private tasks: Set<Task> | undefined
  /** Start of the shared grace period, once the batch is cancelled. */
  private graceSince: number | undefined

  constructor(running: Running, clock: Clock.Clock, isRecorded: boolean) {
    this.running = running
    this.clock = clock
    this.isRecorded = isRecorded
  }

  /** Adds a fiber to the run. Returns a function interrupting the fiber. */
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
   * Does work for a call within a time limit the work may ignore. It runs in its own fiber and is interrupted at the
   * limit; the call then continues, even if the work refuses to stop. Work respecting interruption only needs
   * `Effect.timeoutOrElse`. The effect does not wait for fibers forked by the work.
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
      // Work other than an Effect ends the fiber without running `onExit`.
      fiber.addObserver((exit) => Deferred.doneUnsafe(ended, exit))
      const stop = this.own(call, fiber, isAnswer && this.isRecorded)
      if (Deferred.isDoneUnsafe(ended)) return Deferred.await(ended)
      const end = Effect.onInterrupt(Deferred.await(ended), () => Effect.sync(stop))
      if (!Number.isFinite(millis)) return end
      const left = Timers.leftOf(millis, this.clock, startedAt)
      return Effect.timeoutOrElse(end, { duration: left, orElse: () => Effect.fail(late(millis)) })
    })
  }

  /** Lets all fibers, including later ones, finish within a grace period begun at `since`. */
  letFinish(since: number): void {
    this.graceSince = since
    this.tasks?.forEach((task) => this.running.beginGrace(task, since))
  }

  /** Interrupts all fibers. Their grace period, begun at `since`, is over. */
  interrupt(since: number): void {
    this.tasks?.forEach((task) => this.running.interrupt(task, since, () => {}))
  }
}
