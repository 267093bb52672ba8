/**
 * The fibers that one run owns (`Running`): those in which the code of tools and of the caller's hooks runs. A fiber is
 * added before any of that code has run, so that no code can end the run and stay alive. `Worker` lets a run wait for
 * code that is no handler, and `HookFibers` bounds the time of such code in a batch.
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
 *   interrupted or, as a blocking handler, may finish (`letFinish`).
 * - *Given up*: its grace period is over. Nothing waits for it, and its place is free for another handler. It may still
 *   end.
 * - *Abandoned*: it was alive when the run came to its end.
 * - *Soft stop*: the request to stop of a cancellation or a deadline. The reader keeps reading, and gets a result.
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
import type * as Scope from "effect/Scope"
import type * as Event from "../../Event.ts"
import type { HeldPermits } from "../permits/permits.ts"
import * as Telemetry from "../telemetry.ts"
import type * as Cancellation from "./cancellation.ts"
import * as Deadline from "./deadline.ts"
import * as Timers from "./timers.ts"

/** A fiber that the run owns, with the names that report it when it is abandoned. */
export interface Task {
  readonly kind: Event.Abandoned["kind"]
  readonly id: string
  readonly name: string
  readonly startedAt: number
  /** Tells whether it is a handler, which counts for admission while it is alive. Other code of a call does not. */
  readonly isHandler: boolean
  readonly isExclusive: boolean
  readonly fiber: Fiber.Fiber<unknown, unknown>
  /**
   * Tells whether it has the grace period to finish when the run stops, and is not interrupted: a blocking handler at
   * work, or an answer that is being recorded.
   */
  readonly mayFinish?: boolean
  /** The permits that it holds while it is alive. A task that is to stop waits for no permit. */
  readonly permits?: HeldPermits
  /** The soft stop of the runs that it starts. Only a blocking handler has one. */
  readonly inner?: Cancellation.Cancellation | undefined
  /** Tells whether it only waits for permits: its own, or those of the runs that it has started. */
  readonly isHeldUp?: boolean
  /** Notes that the task is abandoned. */
  readonly onAbandoned?: () => void
  /** Its grace period, set by its run once it is stopping or given up. */
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
  /** The name of its tool. */
  readonly name: string
  readonly permits: HeldPermits
  /** The facts and functions that the handler has. Each attempt has the same function of progress. */
  readonly context: { readonly progress: object }
  /** The fibers of the run that it belongs to. */
  readonly running: Running
  /**
   * Notes progress: an event of a run that it has started, or the end of a wait. Left out where neither the handler
   * nor one around it has a limit of the time without progress.
   */
  readonly moved: (() => void) | undefined
  /** Tells whether a run that it started has abandoned a task, which may outlive it. */
  hasAbandoned: boolean
}

/** The handler that this code runs in. */
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
 * The effect of a soft stop on work that the run waits for. `grace`: the work may finish within the grace period, and
 * is given up after it. `none`: the reader continues without it at once. `unaffected`: only the code that started the
 * work stops it.
 */
type OnSoftStop = "grace" | "none" | "unaffected"

/** The part of the `Loop` of `loop/loop` that a stop calls. A batch alone has none. */
export interface Driver {
  /** Closes the resources of the step in progress. */
  readonly leave: (exit: Exit.Exit<unknown, unknown>) => Effect.Effect<void>
  /** Closes the connection to the model at a soft stop, whatever the reader of the run waits for. */
  readonly hangUp: () => void
}

/** The calls of a turn, which can be stopped one by one. */
export interface Stoppable {
  /**
   * Stops the call at the end of a path of call ids, and leaves the others alone. `false`: there is no such call, or it
   * is answered or stopped already.
   */
  readonly stopCall: (path: ReadonlyArray<string>, reason: string) => boolean
  /** Returns the inbox of a run inside the call at the end of a path: of those with one, the run begun last. */
  readonly inboxAt: (path: ReadonlyArray<string>) => object | undefined
}

/** Interrupts a task. The runs that its handler has started must end by `until`. */
const interruptTask = (task: Task, until: number): void => {
  task.permits?.limit(until)
  // The interruption precedes `permits.stop()`, which wakes a task that waits for permits: it must not continue.
  task.fiber.interruptUnsafe()
  task.permits?.stop()
}

/**
 * The longest lead, in milliseconds, by which nested runs give up their tasks before the run around them does. Without
 * it, the outer handler would be reported in place of the inner one that is stuck.
 */
const longestLead = 50

export class Running {
  readonly graceMillis: number
  /** The services of the fiber that started the run. */
  readonly services: Context.Context<any>
  private readonly clock: Clock.Clock
  /** The handler that started the run, and the owner of the appends of a recorded run, which end with it. */
  private readonly around: Handler | undefined
  /** Notes progress of the run, if the time without it is limited. */
  readonly moved: (() => void) | undefined
  private readonly appends: Running | undefined
  loop: Driver | undefined
  /** The inbox of the run, if it has one. */
  inbox: object | undefined
  /** The worker whose fiber runs the caller's observer. */
  hooks: Worker | undefined
  /** The scope of what rules have opened, if one has. It is closed once the fibers have ended. */
  opened: Scope.Closeable | undefined
  private readonly tasks = new Set<Task>()
  /** The turns whose calls can be stopped one by one. */
  private turns: ReadonlyArray<Stoppable> = []
  /** The stops of calls that have not come up. */
  private expected: ReadonlyArray<{ readonly path: string; readonly reason: string }> = []
  private givenUp = 0
  /** Live handlers, and how many of them were given up or are exclusive. */
  private handlers = 0
  private givenUpHandlers = 0
  private exclusives = 0
  /** Listeners for room: there may be a place for another handler. */
  private listeners: Set<() => void> | undefined
  /** Open while every task that is alive is given up. Made when the run first has to wait. */
  private idle: Latch.Latch | undefined
  /** The tasks that nested runs have abandoned. */
  private abandonedWithin: ReadonlyArray<Event.Abandoned> = []
  /** Timers of the grace periods of single tasks, and of the soft stop. Made when first needed: few runs have any. */
  private timers: Timers.Timers | undefined
  private softTimers: Timers.Timers | undefined
  /** Time of the soft stop, and whether the grace period that began then is over, and the one of what is recorded. */
  softSince: number | undefined
  private isSoftTimeUp = false
  private isLateTimeUp = false
  /** Tells whether the tasks are being stopped: the reader has left, or the run has come to its end. */
  isStopping = false
  /** Tells whether its reader has gone, or its scope has closed. */
  isLeft = false

  constructor(graceMillis: number, services: Context.Context<never>, appends?: Running) {
    this.graceMillis = graceMillis
    this.around = Context.get(services, CurrentHandler)
    this.moved = this.around?.moved
    this.appends = appends
    this.services = services as Context.Context<any>
    this.clock = Context.get(services, Clock.Clock)
  }

  /** Adds a task. The caller removes it when its fiber has ended. */
  add(task: Task): void {
    this.tasks.add(task)
    if (task.isHandler) this.handlers++
    if (task.isExclusive) this.exclusives++
    this.idle?.closeUnsafe()
    if (this.isStopping) this.stopTask(task, task.startedAt)
  }

  /** Adds the work of a worker, which did not end at once. The worker removes it when it has ended. */
  addWork(work: Work): void {
    work.startedAt = this.now()
    this.tasks.add(work)
    this.idle?.closeUnsafe()
    if (this.softSince !== undefined) this.applySoftStop(work, this.softSince)
  }

  /** Adds a turn whose calls can be stopped one by one. The returned function removes it. */
  addTurn(turn: Stoppable): () => void {
    this.turns = [...this.turns, turn]
    return () => {
      this.turns = this.turns.filter((other) => other !== turn)
      // A stop is that of a call of the turn that was open then.
      this.expected = []
    }
  }

  /** Stops one call, by its path. A call that has not come up is stopped when it does. */
  stopCallSoon(path: ReadonlyArray<string>, reason: string): void {
    if (!this.stopCall(path, reason)) this.expected = [...this.expected, { path: JSON.stringify(path), reason }]
  }

  /** Returns the reason to stop a call that comes up, if it was to be stopped before. The reason counts once. */
  expectedStop(path: ReadonlyArray<string>): string | undefined {
    const { around } = this
    const outer = around?.running.expectedStop([around.id, ...path])
    if (outer !== undefined || this.expected.length === 0) return outer
    const name = JSON.stringify(path)
    const found = this.expected.find(({ path }) => path === name)
    if (found !== undefined) this.expected = this.expected.filter((other) => other !== found)
    return found?.reason
  }

  /** Stops one call of the run, or of a run inside it, as `Stoppable` says. */
  stopCall(path: ReadonlyArray<string>, reason: string): boolean {
    return this.turns.some((turn) => turn.stopCall(path, reason))
  }

  /** Returns the inbox of the run, or of a run inside the call at the end of a path, as `Stoppable` says. */
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

  /** Gives work that has nothing left but to end one grace period for that, also in a run that continues. */
  closing(work: Work): void {
    if (this.softSince !== undefined) return this.applySoftStop(work, this.softSince)
    const since = this.now()
    const left = this.until(since) - since
    // A run whose reader has left waits for all tasks together.
    if (this.isLeft || !Number.isFinite(left)) return
    this.beginGrace(work, since)
    this.whileAlive(work, left, () => work.worker.detach(since))
  }

  /** The tasks that are given up and still alive, as the report of an abandoned task names them. */
  get givenUpTasks(): ReadonlyArray<Event.Abandoned> {
    const now = this.now()
    return Array.from(this.tasks).flatMap((task) => task.grace?.isOver === true ? [named(task, now)] : [])
  }

  /**
   * Stops the run softly: closes the connection first, and gives all workers one grace period together, which begins
   * now. Batches stop their handlers themselves.
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
    // All workers share one timer. A run whose reader has left waits for all tasks together.
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
   * Tells whether work records what came after the soft stop, such as answers and the end of the run. All of it has
   * `recordedMillis` together: without them, a run whose handlers outlive the grace period would have no recorded end.
   */
  private isRecordedLate(work: Work, since: number): boolean {
    return work.kind === "store" && work.startedAt >= since && !this.isLateTimeUp
  }

  private now(): number {
    return this.clock.currentTimeMillisUnsafe()
  }

  /** Stops a task: lets it finish if it may, and interrupts it otherwise. Its grace period begins now. */
  private stopTask(task: Task, now: number): void {
    if (task.mayFinish === true) return this.letFinish(task, now)
    this.beginGrace(task, now)
    interruptTask(task, this.innerUntil(now))
  }

  /** Begins the grace period of a task at `since`, or earlier if it has begun already. Returns its beginning. */
  beginGrace(task: Task, since: number): number {
    if (!this.tasks.has(task)) return since
    const grace = task.grace ??= { since, isOver: false }
    return grace.since = Math.min(since, grace.since)
  }

  /** Returns the end of a grace period that began at `since`. The handler around the run may have less time. */
  until(since: number): number {
    return Math.min(since + this.graceMillis, this.around?.permits.until ?? Infinity)
  }

  /**
   * Returns the milliseconds for what is recorded behind a grace period that began at `since` and is over now: those of
   * one more. A run within a handler has half of its lead over the handler, and the other half to end.
   */
  private recordedMillis(since: number): number {
    const { around } = this
    const now = this.now()
    const own = Math.max(0, since + 2 * this.graceMillis - now)
    if (around?.permits.until === undefined) return own
    return Math.min(own, Math.max(0, around.permits.until - now) + around.running.lead / 2)
  }

  /** The time, in milliseconds, by which the runs within a handler end before it does. */
  private get lead(): number {
    return Math.min(longestLead, this.graceMillis / 10)
  }

  /** Returns the time by which the runs within a handler must end. Its grace period began at `since`. */
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

  /** The handlers that are alive, in the order of their starts. */
  get handlersAlive(): ReadonlyArray<Task> {
    return Array.from(this.tasks).filter(({ isHandler }) => isHandler)
  }

  /**
   * Tells whether the run only waits for permits: some of its calls do, and none of its other tasks is at work. A wait
   * for what asks for a stop is no work.
   */
  get isHeldUp(): boolean {
    const atWork = Array.from(this.tasks).filter(({ grace, kind }) => grace?.isOver !== true && kind !== "cancel")
    return atWork.length > 0 && atWork.every(({ isHeldUp }) => isHeldUp === true)
  }

  /** Does work of a rule that only waits for what other runs hold. Its end is progress of the run. */
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

  /** Lets a task finish within the grace period that began at `since`. The runs within it stop softly. */
  letFinish(task: Task, since: number, cause?: string): void {
    if (!this.tasks.has(task)) return
    this.beginGrace(task, since)
    task.permits?.limit(this.innerUntil(since))
    task.inner?.request(cause === undefined ? "interrupt" : Deadline.isCause(cause) ? "deadline" : "cancel", cause)
  }

  /** Interrupts a task, and gives it up if it is alive at the end of its grace period, which began at `since`. */
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

  /** Calls a function after a number of milliseconds, unless the task has ended by then. */
  private whileAlive(task: Task, millis: number, timeUp: () => void): void {
    this.timers ??= new Timers.Timers(this.services)
    const timer = this.timers.after(millis, timeUp)
    task.fiber.addObserver(() => timer.stop())
  }

  /** Gives up a task. Its grace period began at `since`, and is over. */
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

  /** Tells whether every task that is alive is given up. */
  private get isIdle(): boolean {
    return this.tasks.size === this.givenUp
  }

  /** Calls `listener` after the end of each handler that ended or was given up. The returned function removes it. */
  onRoom(listener: () => void): () => void {
    const listeners = this.listeners ??= new Set()
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  /** Counts the handlers beside the `holding` ones of a batch. `isExclusive`: one of these is exclusive. */
  outsiders(holding: number, isExclusive: boolean) {
    return {
      alive: this.handlers - holding,
      occupying: this.handlers - this.givenUpHandlers - holding,
      exclusive: this.exclusives - (isExclusive ? 1 : 0)
    }
  }

  /** Stops the appends under way when a run of the operation ends. They get no second grace period after this one. */
  stopAppends(since: number): void {
    this.works.forEach((work) => work.kind === "store" ? this.stopTask(work, since) : undefined)
  }

  /**
   * Ends the run: closes the resources of the step in progress first, and then stops every task. The end begins when
   * this method is called, not when the returned effect is run.
   */
  end(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown> {
    // A reader that is still in a pull stops there when the connection closes under it.
    this.isStopping = true
    this.isLeft = true
    this.hooks?.close()
    this.appends?.stopAppends(this.now())
    const left = this.loop?.leave(exit) ?? Effect.void
    const ended = Effect.flatMapEager(left, () => this.beginStop())
    const { softTimers } = this
    return softTimers === undefined ? ended : Effect.andThen(ended, Effect.suspend(() => softTimers.close()))
  }

  /**
   * Stops every task and waits for them, within the grace period. Succeeds with the abandoned ones, which were still
   * alive at its end.
   */
  get stop(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    return Effect.suspend(() => this.beginStop())
  }

  /** Does the same as `stop`, and marks the run as stopping when this method is called. */
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

  /** Adds the tasks that a nested run has abandoned. Each run around it names them, by the path of calls to them. */
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
    // The caller's code may end the run that it is a part of: it must not wait for itself.
    const own = Fiber.getCurrent()
    this.works.forEach((work) => work.fiber === own ? this.remove(work) : undefined)
    this.tasks.forEach((task) => this.stopTask(task, now))
    const ends = Array.from(this.tasks, (task) => ({ task, at: this.until(task.grace?.since ?? now) }))
    for (const { at, task } of ends) if (at <= now) this.markGivenUp(task)
    const waited = this.isIdle ? Effect.void : this.outwait(ends.sort((one, other) => one.at - other.at))
    return Effect.andThen(waited, Effect.suspend(() => this.abandon()))
  }

  /**
   * Waits until each task has ended or is given up: their grace periods began at different times. A task that is added
   * meanwhile, such as the closing of a connection, has until the end of the last of these periods.
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
   * Abandons every task that is alive. Blocking handlers have had their time: they are interrupted as well now, and
   * have one turn of the scheduler to stop.
   */
  private abandon(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    if (this.tasks.size === 0) return Effect.succeed([])
    // The runs within them have no time left, and one that starts now does nothing.
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

/** The name that reports a piece of work when it is given up, and the effect of a soft stop on it. */
interface Manner {
  readonly name: string
  readonly onSoftStop: OnSoftStop
}

/** The purpose of a worker. */
interface Identity extends Manner {
  readonly kind: Exclude<Event.Abandoned["kind"], "handler">
  readonly id: string
  /**
   * Tells whether the worker has one piece of work alone. The reader waits for the work, and the fiber ends when all
   * that the work has forked has ended, too.
   */
  readonly once?: boolean
  /**
   * Tells whether a piece of work that fails is the last one. The fiber then ends before the reader continues, so that
   * the end of the run has no fiber to stop.
   */
  readonly endsOnFailure?: boolean
  readonly isUninterruptible?: boolean
  /** Reports that the worker is given up or abandoned at work. */
  readonly onAbandoned?: () => void
}

const nothing = (): void => {}

type Settle = (exit: Exit.Exit<any, any>) => void

/**
 * Runs the caller's code that a run waits for: its hooks, its store, its adapter, the effect that cancels it. The code
 * runs in a fiber that the run owns, one piece of work after another, so that a fiber's own state lasts from one piece
 * to the next, while the reader waits in its own fiber. A reader that is interrupted leaves at once; the work is then
 * stopped with the run, has the run's grace period to end, and is abandoned and named if it does not.
 *
 *     idle ──────► at work ──────► closing ──────► ended
 *       ▲ start       │  │  close      │
 *       └─────────────┘  │ detach      │ detach, or the end of the run
 *         work ends      └──────────► given up: it takes no more work, and its reader continues without it
 *
 * Its fiber is a task of the run only while it is at work or closing: the end of the run need not stop an idle one.
 *
 * Work that needs no time takes no turn of the scheduler. A read, which mostly comes before the fiber waits for it,
 * takes no step for the hand-over: 13 steps a delta, 36 steps and 2 fibers a call, 162 steps and 7 fibers a run of one
 * call. A fiber for each piece in place of this class takes 15 steps and a fiber a delta, 38 steps and 3 fibers a call,
 * 170 steps and 11 fibers a run, and the end of a piece ends what it has forked. A fiber that takes each piece from a
 * `Deferred` takes 16, 39 and 186 steps; from a `Queue`, it takes 15 a delta and 38 a call.
 */
export class Worker {
  private readonly identity: Identity
  /** The manner of its latest work. */
  private manner: Manner
  private readonly running: Running
  /** The task of its latest fiber, and that task while the run has it. */
  private latest: Work | undefined
  private added: Work | undefined
  private context: Context.Context<any> | undefined
  private work: Effect.Effect<unknown, unknown, any> | undefined
  private settle: Settle | undefined
  /** Wakes the fiber where it waits for work. */
  private asked = Deferred.makeUnsafe<void>()
  /** Reports that the worker has closed. Set by `close`. */
  private gone: (() => void) | undefined
  private isGivenUp = false
  /** Tells whether its work only waits for what other runs hold. */
  isHeldUp = false
  /** The exit that the reader gets in place of the work's own when the work is detached. */
  private otherwise: Exit.Exit<any, any> = Exit.void

  constructor(running: Running, identity: Identity) {
    this.running = running
    this.identity = identity
    this.manner = identity
  }

  /** The name of its latest work. */
  get name(): string {
    return this.manner.name
  }

  /** The task of its fiber, while that is alive. */
  private get alive(): Work | undefined {
    return this.latest?.fiber.pollUnsafe() === undefined ? this.latest : undefined
  }

  /** Tells whether it is at work. */
  get isBusy(): boolean {
    return this.settle !== undefined
  }

  /** The effect of a soft stop. A closing worker has the grace period to end. */
  get onSoftStop(): OnSoftStop {
    return this.gone === undefined ? this.manner.onSoftStop : "grace"
  }

  /** Does the work and waits for it. Ends with `otherwise` if the work is detached before its end. */
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

  /** Begins the work, with the services of the fiber that waits for it. The work may end before this returns. */
  start<A, E>(
    work: Effect.Effect<A, E, any>,
    context: Context.Context<any>,
    settle: (exit: Exit.Exit<A, E>) => void
  ): void {
    this.settle = settle
    this.work = this.context === undefined || this.context === context
      ? work
      : Effect.updateContext(work, () => context)
    // A fiber that is on its way to its next work finds this one there.
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
      // Work that `gone` begins is added to the run before the run learns that this work has ended.
      const { gone } = this
      this.gone = undefined
      gone?.()
      this.settled(exit)
    })
  }

  /** Does the next piece of work, or waits for it. Work that comes while the fiber yields before the wait ends it. */
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
    // Fibers that the work has forked may live on. The worker stays a task of the run until they have ended, and the
    // reader does not wait for them.
    const { settle } = this
    this.settle = undefined
    settle?.(exit)
    return Effect.void
  }

  /** Ends the fiber, whose exit the reader gets. The reader does not wait for what the work has forked. */
  private last(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown, unknown> {
    const { settle } = this
    queueMicrotask(() => this.settle === settle && this.gone === undefined ? this.settled(exit) : undefined)
    return exit
  }

  /** Removes the work from the run, and only then lets the reader continue: nothing of it is alive by then. */
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
   * Interrupts the work and lets its reader continue without it: its grace period, which began at `since`, is over, or
   * it has none.
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
   * Gives the work up. Work that a soft stop does not wait for has the rest of the grace period to clean up instead:
   * the end of the run waits for that.
   */
  private afterDetached(work: Work, since: number): void {
    if (this.onSoftStop === "none") return void this.running.beginGrace(work, since)
    this.running.giveUp(work, since)
    this.onAbandoned()
  }

  /** Does the only work of the worker, which closes something, and gives it one grace period. */
  end(work: Effect.Effect<void>, context: Context.Context<any>, settle: () => void): void {
    this.start(work, context, settle)
    if (this.added !== undefined) this.running.closing(this.added)
  }

  /**
   * Closes the worker, which takes no more work. The run stops the work that is still under way. `gone` is called when
   * that work has ended or is given up, which may be at once.
   */
  close(gone: () => void = nothing): void {
    const { isBusy } = this
    this.work = undefined
    this.latest?.fiber.interruptUnsafe()
    const { alive } = this
    if (alive === undefined || this.isGivenUp) return gone()
    // A fiber without work may still be alive: its reader is just being resumed, or a child of the fiber ends.
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
 * Owns the fibers of the caller's code that runs for the calls of a batch outside of the calls' own fibers: code that
 * decodes arguments, and code that answers calls without a fiber. Each piece runs in a fiber that the run owns, within
 * its limit of time.
 */
export class HookFibers {
  private readonly running: Running
  private readonly clock: Clock.Clock
  /** Tells whether answers are recorded. Their writing may finish when the run stops. */
  private readonly isRecorded: boolean
  private tasks: Set<Task> | undefined
  /** The beginning of the grace period of all its fibers, once the batch is cancelled. */
  private graceSince: number | undefined

  constructor(running: Running, clock: Clock.Clock, isRecorded: boolean) {
    this.running = running
    this.clock = clock
    this.isRecorded = isRecorded
  }

  /** Adds a fiber to the run. Returns a function that interrupts it. */
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
   * Does work for a call within a limit of time that the work may ignore. It runs in a fiber of its own and is
   * interrupted when the time is up; the call continues without it, even if the work refuses to stop. Work that heeds
   * interruption needs no more than `Effect.timeoutOrElse`. The effect does not wait for what the work has forked.
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
      const left = Timers.leftOf(millis, this.clock, startedAt)
      return Effect.timeoutOrElse(end, { duration: left, orElse: () => Effect.fail(late(millis)) })
    })
  }

  /** Lets all fibers finish, also later ones, within a grace period that began at `since`. */
  letFinish(since: number): void {
    this.graceSince = since
    this.tasks?.forEach((task) => this.running.beginGrace(task, since))
  }

  /** Interrupts all fibers. Their grace period began at `since`, and is over. */
  interrupt(since: number): void {
    this.tasks?.forEach((task) => this.running.interrupt(task, since, () => {}))
  }
}
