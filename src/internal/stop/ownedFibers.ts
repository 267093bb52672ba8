/**
 * Who is alive in one run (`Running`): the fibers in which the code of tools and of the caller's hooks runs. When the run
 * ends they are interrupted and get one grace period; those that refuse to stop are named and abandoned, and what they
 * yield later is dropped. A fiber is taken in before any of that code has run, so that no code can end the run and live
 * on. `Worker` is how a run waits for code that is no handler, and `HookFibers` how a batch bounds the time of such code.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import type * as Event from "../../Event.ts"
import type { HeldPermits } from "../permits/heldPermits.ts"
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
  /** Whether it is left to its end when the run stops. It may be so in one phase and not in another. */
  readonly isBlocking?: boolean
  /** What it holds while it is alive. A task that is to stop waits for no permit. */
  readonly permits?: HeldPermits
  /** The soft stop of the runs that it starts, if it is left to its end. */
  readonly inner?: Cancellation.Cancellation | undefined
  /** It refused to stop and is left behind. */
  readonly abandoned?: () => void
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

/** The operation of a session that a run is a part of. */
export interface Operation {
  /** Owns what is waited for beside the run: appends to the store. When the run is left, they have the same grace period. */
  readonly running: Running
  /** Takes in what the run abandons, if the run has no result of its own that names it. */
  readonly abandoned?: Array<Event.Abandoned>
  /** The request id of the run that goes on where calls of an earlier one were settled: its first turn was that one's. */
  readonly continued?: string
}

export const CurrentOperation: Context.Reference<Operation | undefined> = Context.Reference<Operation | undefined>(
  "heddle/internal/Operation",
  { defaultValue: () => undefined }
)

/**
 * What a soft stop means for work that the run waits for. `grace`: it may finish within the grace period, then it is left;
 * `none`: it is left at once; `unaffected`: what started it sees to that.
 */
export type OnSoftStop = "grace" | "none" | "unaffected"

/** The step that a run is in, which the run ends before its handlers: see `loop`. */
export interface Leaving {
  readonly leave: (exit: Exit.Exit<unknown, unknown>) => Effect.Effect<void>
  /** The run is asked to stop softly: the model is not heard any more, whatever the reader of the run waits for. */
  readonly hangUp: () => void
}

/** The interruption comes first: what ends its waiting must not let it go on. */
const interruptTask = (task: Task, until: number): void => {
  task.permits?.limit(until)
  task.fiber.interruptUnsafe()
  task.permits?.stop()
}

/** When a task was asked to stop: its only grace period began then. Once that is over the task is abandoned. */
interface Told {
  since: number
  isLost: boolean
}

/** So much earlier than a handler is given up, the runs within it have given up theirs: it would be named for them. */
const longestLead = 50

export class Running {
  readonly graceMillis: number
  /** Those of the fiber that the run was started in. */
  readonly services: Context.Context<any>
  private readonly clock: Clock.Clock
  /** The handler that the run is in, and the operation that it is a part of. */
  private readonly around: Handler | undefined
  readonly operation: Operation | undefined
  /** The step that the run is in. */
  step: Leaving | undefined
  /** In whose fiber the caller's observer runs, once it has taken its time. */
  hooks: Worker | undefined
  private readonly tasks = new Set<Task>()
  /** The tasks that were asked to stop. */
  private readonly told = new Map<Task, Told>()
  private lost = 0
  /** Handlers alive, those of them that were given up, and those that are exclusive. */
  private handlers = 0
  private lostHandlers = 0
  private exclusives = 0
  /** Called when there may be room for another handler. */
  private readonly listeners = new Set<() => void>()
  /** Open while nothing is alive that the run waits for. Made when it first has to wait. */
  private idle: Latch.Latch | undefined
  /** What the runs within its handlers have left behind. */
  private within: ReadonlyArray<Event.Abandoned> = []
  /** Grace periods of single tasks, and that of the soft stop. Made with the first one: few runs have any. */
  private timers: Deadline.Timers | undefined
  private softTimers: Deadline.Timers | undefined
  /** When the run was asked to stop softly, and whether the grace period that began then is over. */
  softSince: number | undefined
  private isSoftTimeUp = false
  /** Whether the run is left, or has come to its end. */
  isStopping = false
  /** Whether it has been left: what is still alive is stopped, and waited for all at once. */
  isLeft = false

  constructor(graceMillis: number, services: Context.Context<never>) {
    this.graceMillis = graceMillis
    this.around = Context.get(services, CurrentHandler)
    this.operation = Context.get(services, CurrentOperation)
    this.services = services as Context.Context<any>
    this.clock = Context.get(services, Clock.Clock)
  }

  /** Takes in a task, which is to be removed when its fiber has ended. */
  add(task: Task): void {
    this.tasks.add(task)
    if (task.isHandler) this.handlers++
    if (task.isExclusive) this.exclusives++
    this.idle?.closeUnsafe()
    if (this.isStopping) this.tell(task, task.startedAt)
  }

  /** Takes in work that the run waits for, while it takes its time. It is removed when it has ended. */
  attend(work: Worker): void {
    work.startedAt = this.now()
    this.tasks.add(work)
    this.idle?.closeUnsafe()
    if (this.softSince !== undefined) this.hurry(work, this.softSince)
  }

  /** Those of its tasks that the reader waits for. */
  private get waited(): ReadonlyArray<Worker> {
    return Array.from(this.tasks).filter((task) => task instanceof Worker)
  }

  /** Work that is waited for has nothing more to do but to end. It has one grace period for that, in a run that goes on, too. */
  closes(work: Worker): void {
    if (this.softSince !== undefined) return this.hurry(work, this.softSince)
    const since = this.now()
    const left = this.until(since) - since
    // A run that is left waits for all of it at once.
    if (this.isLeft || !Number.isFinite(left)) return
    this.tellAt(work, since)
    this.whileAlive(work, left, () => work.leave(since))
  }

  /** What a soft stop has left behind by now. */
  get leftBehind(): ReadonlyArray<Event.Abandoned> {
    const now = this.now()
    return Array.from(this.told).flatMap(([task, { isLost }]) => isLost ? [named(task, now)] : [])
  }

  /**
   * The run is asked to stop softly: its connection is closed first, and from now on what it waits for has one grace
   * period, all of it together.
   */
  softly(): void {
    const since = this.softSince ??= this.now()
    this.step?.hangUp()
    this.waited.forEach((work) => this.hurry(work, since))
  }

  private hurry(work: Worker, since: number): void {
    if (work.onSoftStop === "unaffected") return
    if (work.onSoftStop === "none" || this.isSoftTimeUp) return work.leave(since)
    const left = this.until(since) - this.now()
    // A run that is left waits for all of it at once.
    if (this.softTimers !== undefined || this.isLeft || !Number.isFinite(left)) return
    this.softTimers = new Deadline.Timers(this.services)
    const timeUp = () => {
      this.isSoftTimeUp = true
      this.waited.forEach((waited) => this.hurry(waited, since))
    }
    if (left <= 0) timeUp()
    else this.softTimers.after(left, timeUp)
  }

  private now(): number {
    return this.clock.currentTimeMillisUnsafe()
  }

  /** A blocking handler is not interrupted: it has the grace period to finish. */
  private tell(task: Task, now: number): void {
    if (task.isBlocking === true) return this.spare(task, now)
    this.tellAt(task, now)
    interruptTask(task, this.innerUntil(now))
  }

  /** When its grace period began. A task that was asked to stop before has used a part of it. */
  private tellAt(task: Task, since: number): number {
    const told = this.told.get(task)
    if (told === undefined) this.told.set(task, { since, isLost: false })
    else told.since = Math.min(since, told.since)
    return told?.since ?? since
  }

  /** Until when the run waits for a task asked to stop at `since`. The handler around the run may have less time. */
  until(since: number): number {
    return Math.min(since + this.graceMillis, this.around?.permits.until ?? Infinity)
  }

  private innerUntil(since: number): number {
    return this.until(since) - Math.min(longestLead, this.graceMillis / 10)
  }

  remove(task: Task): void {
    const isLost = this.told.get(task)?.isLost === true
    this.told.delete(task)
    if (!this.tasks.delete(task)) return
    if (isLost) this.lost--
    if (isLost && task.isHandler) this.lostHandlers--
    if (this.isIdle) this.idle?.openUnsafe()
    if (!task.isHandler) return
    this.handlers--
    if (task.isExclusive) this.exclusives--
    this.notify()
  }

  private notify(): void {
    this.listeners.forEach((listener) => listener())
  }

  /** A task may finish. Its grace period began at `since` all the same. */
  spare(task: Task, since: number, cause?: string): void {
    if (!this.tasks.has(task)) return
    this.tellAt(task, since)
    task.permits?.limit(this.innerUntil(since))
    task.inner?.request(cause === undefined ? "interrupt" : Deadline.isCause(cause) ? "deadline" : "cancel", cause)
  }

  /** Tells a task to stop. It has its grace period for that, which began at `since`; then it is given up. */
  interrupt(task: Task, since: number, onGivenUp: () => void): void {
    if (!this.tasks.has(task)) return
    const began = this.tellAt(task, since)
    interruptTask(task, this.innerUntil(began))
    if (!this.tasks.has(task)) return
    const left = Math.max(0, this.graceMillis - (since - began))
    // A run that stops waits for all of them at once.
    if (this.isStopping) return
    this.whileAlive(task, left, () => {
      onGivenUp()
      this.giveUp(task)
    })
  }

  private whileAlive(task: Task, millis: number, timeUp: () => void): void {
    this.timers ??= new Deadline.Timers(this.services)
    const timer = this.timers.after(millis, timeUp)
    task.fiber.addObserver(() => timer.stop())
  }

  /** A task is not waited for any more: its grace period began at `since` and is over. */
  leave(task: Task, since: number): void {
    this.tellAt(task, since)
    this.giveUp(task)
  }

  private giveUp(task: Task): void {
    this.lose(task)
    if (this.isIdle) this.idle?.openUnsafe()
    this.notify()
  }

  /** A task that refused to stop for a whole grace period. The end of the run does not give it another. */
  private lose(task: Task): void {
    const told = this.told.get(task)
    if (!this.tasks.has(task) || told === undefined || told.isLost) return
    told.isLost = true
    this.lost++
    if (task.isHandler) this.lostHandlers++
  }

  /** Whether nothing is alive that is to be waited for. */
  private get isIdle(): boolean {
    return this.tasks.size === this.lost
  }

  /** Calls `listener` after each handler that has ended or was given up. The returned function takes it back. */
  onRoom(listener: () => void): () => void {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  /** Handlers other than the `holding` ones of a batch, of which `isExclusive` may be one. */
  outsiders(holding: number, isExclusive: boolean) {
    return {
      alive: this.handlers - holding,
      occupying: this.handlers - this.lostHandlers - holding,
      exclusive: this.exclusives - (isExclusive ? 1 : 0)
    }
  }

  /** A run of this operation is left. An append that is under way has the same grace period, and no other after it. */
  leftWith(since: number): void {
    this.waited.forEach((work) => work.kind === "store" ? this.tell(work, since) : undefined)
  }

  /** The step in progress is left first, and then every handler stopped. It is to be asked for when that is to begin. */
  end(exit: Exit.Exit<unknown, unknown>): Effect.Effect<unknown> {
    // A reader that is still in a pull goes no further when the connection closes under it.
    this.isStopping = true
    this.isLeft = true
    this.hooks?.close()
    this.operation?.running.leftWith(this.now())
    const left = this.step === undefined ? this.stopping() : Effect.andThen(this.step.leave(exit), this.stop)
    const { softTimers } = this
    return softTimers === undefined ? left : Effect.andThen(left, Effect.suspend(() => softTimers.close()))
  }

  /** Stops every task and waits for them, within the grace period. What is still alive then is given up. */
  get stop(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    return Effect.suspend(() => this.stopping())
  }

  /** As `stop`, which begins now. */
  stopping(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    this.isStopping = true
    const stopped = this.tasks.size === 0
      ? Effect.sync(() => this.within)
      : Clock.currentTimeMillis.pipe(
        Effect.flatMap((now) => this.stopAt(now)),
        Effect.map((abandoned) => [...abandoned, ...this.within])
      )
    const { timers } = this
    return timers === undefined ? stopped : Effect.tap(stopped, () => timers.close())
  }

  /** A run within the handler of a call has left something behind. Each run around it names it, by the calls that lead there. */
  private leftWithin(id: string, abandoned: ReadonlyArray<Event.Abandoned>): void {
    if (abandoned.length === 0) return
    const named = abandoned.map((entry) => ({ ...entry, path: [id, ...(entry.path ?? [entry.id])] }))
    this.within = [...this.within, ...named]
    this.leaveTo(named)
  }

  private leaveTo(abandoned: ReadonlyArray<Event.Abandoned>): void {
    this.around?.running.leftWithin(this.around.id, abandoned)
  }

  private stopAt(now: number): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    // Code of the caller's that ends the run it is a part of does not wait for itself.
    const own = Fiber.getCurrent()
    this.waited.forEach((work) => work.fiber === own ? this.remove(work) : undefined)
    this.tasks.forEach((task) => this.tell(task, now))
    const ends = Array.from(this.told, ([task, { since }]) => ({ task, at: this.until(since) }))
    for (const { at, task } of ends) if (at <= now) this.lose(task)
    const waited = this.isIdle ? Effect.void : this.outwait(ends.sort((one, other) => one.at - other.at))
    return Effect.andThen(waited, Effect.suspend(() => this.abandon()))
  }

  /**
   * Waits until nothing is alive but what has had its grace period. Those periods began at different times. What comes up
   * meanwhile, such as the closing of a connection, has until the last of them is over.
   */
  private outwait(ends: ReadonlyArray<{ readonly task: Task; readonly at: number }>): Effect.Effect<void> {
    const idle = this.idle ??= Latch.makeUnsafe(false)
    return Effect.forEach(
      ends,
      ({ at, task }) => {
        const left = at - this.now()
        if (this.isIdle) return Effect.void
        return Effect.map(left > 0 ? Effect.timeoutOption(idle.await, left) : Effect.void, () => this.lose(task))
      },
      { discard: true }
    )
  }

  /** Blocking handlers have had their time, too: they are interrupted as well, and given one turn to stop. */
  private abandon(): Effect.Effect<ReadonlyArray<Event.Abandoned>> {
    if (this.tasks.size === 0) return Effect.succeed([])
    this.tasks.forEach((task) => interruptTask(task, -Infinity))
    return Effect.yieldNow.pipe(
      Effect.andThen(Clock.currentTimeMillis),
      Effect.map((now) => {
        const abandoned = Array.from(this.tasks, (task) => named(task, now))
        this.tasks.forEach((task) => {
          task.abandoned?.()
          task.permits?.release()
        })
        this.tasks.clear()
        this.told.clear()
        this.lost = 0
        this.leaveTo(abandoned)
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

/** What a piece of work is named by when it is left behind, and what a soft stop means for it. */
export interface Manner {
  readonly name: string
  readonly onSoftStop: OnSoftStop
}

/** What a worker is for. */
export interface Identity extends Manner {
  readonly kind: Exclude<Event.Abandoned["kind"], "handler">
  readonly id: string
  /** It has one piece of work, and its fiber ends with it. What is cleaned up so is not interrupted, but left to itself. */
  readonly once?: boolean
  readonly isUninterruptible?: boolean
  /** It was left behind while it worked. */
  readonly onLeft?: () => void
}

const nothing = (): void => {}

type Settle = (exit: Exit.Exit<any, any>) => void

/**
 * Code of the caller's that a run waits for: its hooks, its store, its adapter, the effect that cancels it. It runs in a
 * fiber that the run owns, one piece of work after another, so that a fiber's own state lasts from one piece to the next,
 * while the reader waits in its own fiber. A reader that is interrupted leaves at once; the work is then stopped with the
 * run, has the run's grace period to end, and is named and abandoned if it does not.
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
  private readonly identity: Identity
  /** That of its latest work. */
  private manner: Manner
  private readonly running: Running
  private current: Fiber.Fiber<unknown, unknown> | undefined
  private context: Context.Context<any> | undefined
  private work: Effect.Effect<unknown, unknown, any> | undefined
  private settle: Settle | undefined
  private wake: (() => void) | undefined
  private isAttended = false
  private gone: (() => void) | undefined
  /** It was abandoned. What would wait for it goes on with `otherwise`. */
  private isLeft = false
  /** What is waited for comes to this when it is left. */
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
        if (this.isLeft) return resume(otherwise)
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
    if (this.isAlive && (this.settle !== undefined || this.identity.once === true)) this.attend()
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
  private next(): Effect.Effect<void, unknown, any> {
    const { work } = this
    if (work === undefined) return this.wanted
    this.work = undefined
    return Effect.matchCauseEffect(work, {
      onSuccess: (value) => this.done(Exit.succeed(value)),
      onFailure: (cause) => this.done(Exit.failCause(cause))
    })
  }

  private done(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void, unknown, any> {
    if (this.identity.once !== true) {
      this.settled(exit)
      return this.next()
    }
    // What it has forked may take its time. It is the run's until that has ended, and the reader does not wait for it.
    const { settle } = this
    this.settle = undefined
    settle?.(exit)
    return Effect.void
  }

  private readonly wanted: Effect.Effect<void, unknown, any> = Effect.callback((resume) => {
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
    if (this.isAttended) {
      this.isAttended = false
      this.running.remove(this)
    }
    settle?.(exit)
  }

  private attend(): void {
    this.isAttended = true
    this.running.attend(this)
  }

  /** The reader does not wait for it any longer, because of a soft stop that began then, and goes on without it. */
  leave(since: number): void {
    const { settle } = this
    if (!this.isAttended) return
    if (settle === undefined) return this.running.leave(this, since)
    this.settle = nothing
    this.current?.interruptUnsafe()
    if (this.isAttended) this.leaveBehind(since)
    settle(this.otherwise)
  }

  /** What a soft stop does not wait for has the rest of the grace period to clean up: the end of the run waits for that. */
  private leaveBehind(since: number): void {
    if (this.onSoftStop === "none") return this.running.spare(this, since)
    this.running.leave(this, since)
    this.abandoned()
  }

  /** Does its only work, which is to end something, and has one grace period for it. */
  end(work: Effect.Effect<void>, context: Context.Context<any>, settle: () => void): void {
    this.start(work, context, settle)
    if (this.isAttended) this.running.closes(this)
  }

  /**
   * It has nothing more to do. What it still does is the run's to stop; `gone` is called when its work has ended or was
   * left behind, which may be now.
   */
  close(gone: () => void = nothing): void {
    const { isBusy } = this
    this.work = undefined
    this.current?.interruptUnsafe()
    if (!this.isAlive || this.isLeft) return gone()
    // A fiber without work may still be alive: the exit of its last work is being reported, or a child of it ends.
    if (!isBusy) gone()
    this.gone = isBusy ? gone : nothing
    this.settle ??= nothing
    // Children of its fiber may take their time.
    if (!this.isAttended) this.attend()
    this.running.closes(this)
  }

  abandoned(): void {
    if (this.isLeft) return
    this.isLeft = true
    if (this.settle !== undefined) this.identity.onLeft?.()
    this.gone?.()
    this.gone = undefined
  }
}

/**
 * The code of the caller's that runs for the calls of a batch and is no handler: it decodes arguments, decides about errors
 * and writes results. Each piece runs in a fiber that the run owns, for as long as it is given.
 */
export class HookFibers {
  private readonly running: Running
  private readonly clock: Clock.Clock
  private readonly tasks = new Set<Task>()
  /** When the batch was called back: all of its fibers have one grace period, which began then. */
  private since: number | undefined

  constructor(running: Running, clock: Clock.Clock) {
    this.running = running
    this.clock = clock
  }

  /** Takes a fiber into the run's care, before it runs code of the caller's. Returns what stops it. */
  own({ id, name }: { readonly id: string; readonly name: string }, fiber: Fiber.Fiber<unknown, unknown>): () => void {
    const { clock, running } = this
    const startedAt = clock.currentTimeMillisUnsafe()
    const task: Task = { kind: "hook", id, name, startedAt, isHandler: false, isExclusive: false, fiber }
    running.add(task)
    this.tasks.add(task)
    if (this.since !== undefined) running.spare(task, this.since)
    fiber.addObserver(() => {
      this.tasks.delete(task)
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
    late: (millis: number) => E
  ): Effect.Effect<A, E, R> {
    return Effect.contextWith((context: Context.Context<R>) => {
      const ended = Deferred.makeUnsafe<A, E>()
      const begun = this.clock.monotonicTimeNanosUnsafe()
      const fiber = Effect.runForkWith(context)(Effect.onExitPrimitive(work, (exit) => {
        Deferred.doneUnsafe(ended, exit)
        return undefined
      }))
      // Work that ends without waiting costs no timer.
      const exit = fiber.pollUnsafe()
      if (exit !== undefined) return exit
      // What is no effect ends the fiber, and passes over what was to follow.
      fiber.addObserver((exit) => Deferred.doneUnsafe(ended, exit))
      const stop = this.own(call, fiber)
      if (Deferred.isDoneUnsafe(ended)) return Deferred.await(ended)
      const end = Effect.onInterrupt(Deferred.await(ended), () => Effect.sync(stop))
      if (!Number.isFinite(millis)) return end
      const left = Deadline.leftOf(millis, this.clock, begun)
      return Effect.timeoutOrElse(end, { duration: left, orElse: () => Effect.fail(late(millis)) })
    })
  }

  /** Lets all of them finish, and those that come later, within a grace period that began then. */
  spare(since: number): void {
    this.since = since
    this.tasks.forEach((task) => this.running.spare(task, since))
  }

  /** Stops all of them. Their grace period began then, and is over. */
  interrupt(since: number): void {
    this.tasks.forEach((task) => this.running.interrupt(task, since, () => {}))
  }
}
