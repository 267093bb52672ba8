/**
 * Work that is done again and again, such as reading from a network, each time within a limit. One fiber does it all and
 * another watches the time, so that what is done in time costs neither a fiber nor a timer.
 */
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"

/** How long the work may take, and what is done instead when it has taken longer. */
export interface Limit<A, E> {
  readonly duration: Duration.Duration
  readonly late: Effect.Effect<A, E>
}

/** Watches work until the scope closes. There is one at a time who waits for it. */
export const make = <A, E>(work: Effect.Effect<A, E>, scope: Scope.Scope): Effect.Effect<Watchdog<A, E>> =>
  Effect.contextWith((services: Context.Context<never>) =>
    Effect.flatMap(Clock.Clock, (clock) => {
      const watchdog = new Watchdog(work, services, clock)
      return Effect.as(Scope.addFinalizer(scope, watchdog.close), watchdog)
    })
  )

export class Watchdog<A, E> {
  private readonly work: Effect.Effect<A, E>
  private readonly services: Context.Context<never>
  private readonly clock: Clock.Clock
  private worker: Fiber.Fiber<never, E> | undefined
  private watcher: Fiber.Fiber<void> | undefined
  private limit: Limit<A, E> | undefined
  private since = 0
  private isClosed = false
  /** Goes on with whoever waits. */
  private resume: ((result: Effect.Effect<A, E>) => void) | undefined
  /** Goes on with the worker, where it has nothing to do. */
  private wake: (() => void) | undefined

  constructor(work: Effect.Effect<A, E>, services: Context.Context<never>, clock: Clock.Clock) {
    this.work = work
    this.services = services
    this.clock = clock
  }

  /** Does the work once. The time goes on being watched by one fiber for as long as the limit is the same. */
  within(limit: Limit<A, E>): Effect.Effect<A, E> {
    return Effect.callback((resume) => {
      if (this.isClosed) return resume(Effect.interrupt)
      this.resume = resume
      this.since = this.now
      if (this.worker === undefined) this.startWorker()
      else this.wake?.()
      if (this.resume !== undefined) this.startWatcher(limit)
      return this.stop
    })
  }

  /** Stops the work, and whoever waits for it. */
  readonly close: Effect.Effect<void> = Effect.suspend(() => {
    const { resume } = this
    this.isClosed = true
    return Effect.andThen(this.stop, Effect.sync(() => resume?.(Effect.interrupt)))
  })

  private readonly stop: Effect.Effect<void> = Effect.suspend(() => {
    this.resume = undefined
    return Fiber.interruptAll([this.worker, this.watcher].filter((fiber) => fiber !== undefined))
  })

  private get now(): number {
    return Number(this.clock.monotonicTimeNanosUnsafe()) / 1_000_000
  }

  private startWorker(): void {
    const worker = Effect.runForkWith(this.services)(this.working)
    this.worker = worker
    worker.addObserver((exit) => {
      this.worker = undefined
      this.wake = undefined
      this.settle(exit)
    })
  }

  /** It fails with the work, and begins again if somebody asks for it. */
  private readonly working: Effect.Effect<never, E> = Effect.suspend(() =>
    Effect.flatMap(this.resume === undefined ? Effect.andThen(this.wanted, this.work) : this.work, (value) => {
      this.settle(Exit.succeed(value))
      return this.working
    })
  )

  private readonly wanted: Effect.Effect<void> = Effect.callback((resume) => {
    const wake = () => {
      this.wake = undefined
      resume(Effect.void)
    }
    this.wake = wake
  })

  private settle(result: Effect.Effect<A, E>): void {
    const { resume } = this
    this.resume = undefined
    resume?.(result)
  }

  private startWatcher(limit: Limit<A, E>): void {
    if (this.watcher !== undefined && this.limit === limit) return
    this.watcher?.interruptUnsafe()
    this.limit = limit
    const watcher = Effect.runForkWith(this.services)(this.watching(limit))
    this.watcher = watcher
    watcher.addObserver(() => {
      if (this.watcher === watcher) this.watcher = undefined
    })
  }

  /** Time counts only while somebody waits: a watcher that nobody needs ends, and the next work gets another. */
  private watching(limit: Limit<A, E>): Effect.Effect<void> {
    return Effect.suspend(() => {
      if (this.resume === undefined) return Effect.void
      const left = this.since + Duration.toMillis(limit.duration) - this.now
      if (left > 0) return Effect.andThen(Effect.sleep(left), this.watching(limit))
      const { resume, worker } = this
      this.resume = undefined
      this.limit = undefined
      const stopped = worker === undefined ? Effect.void : Fiber.interrupt(worker)
      return Effect.andThen(stopped, Effect.sync(() => resume(limit.late)))
    })
  }
}
