/**
 * The permits that one handler holds: those of its tool's keys, and one of the tree's. It lends them to the runs that it
 * starts: while one of them is alive it holds none, so that a tree of runs cannot wait for itself; when the last has
 * ended it waits until it has them again. What has been told to stop waits for nothing.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type * as Event from "../../Event.ts"
import type { Pool } from "./treePermits.ts"

/** Takes what a tool's keys ask for, and leaves it to the scope to return it. */
export type Keyed = Effect.Effect<void, never, Scope.Scope>

/** The run around the runs that a handler starts. */
export interface Around {
  readonly leftWithin: (id: string, abandoned: ReadonlyArray<Event.Abandoned>) => void
}

export class Holding {
  private readonly pool: Pool
  private readonly keyed: Keyed | undefined
  private readonly services: Context.Context<any>
  /** Whether it has a permit of the tree that no scope returns. */
  private hasPermit = false
  private scope: Scope.Closeable | undefined
  private borrowers = 0
  private isStopped = false
  /** By when the runs that the handler starts are to be done, if it is to stop. */
  until: number | undefined
  private waiting: Fiber.Fiber<void> | undefined
  private readonly around: Around | undefined
  private readonly id: string

  /** `id` is that of the handler's call, and `around` the run that it is of. */
  constructor(pool: Pool, keyed: Keyed | undefined, services: Context.Context<any>, around?: Around, id = "") {
    this.pool = pool
    this.keyed = keyed
    this.services = services
    this.around = around
    this.id = id
  }

  /** A run that the handler has started has left something behind. */
  left(abandoned: ReadonlyArray<Event.Abandoned>): void {
    if (abandoned.length > 0) this.around?.leftWithin(this.id, abandoned)
  }

  /** Takes what is needed if that takes no time, and says whether it has. */
  takeNow(): boolean {
    this.hasPermit = this.keyed === undefined && this.pool.takeNow()
    return this.hasPermit
  }

  /**
   * Work that waits for the permits, those of the keys first: who has one of the tree's waits for nothing. It is to be run
   * where no interruption comes through, but to the waiting and the work: nothing may come between a permit and whoever
   * knows of it.
   */
  take<A, E, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    if (this.keyed !== undefined) return this.inLine(work)
    return Effect.flatMap(this.pool.takeIfFree(), (isTaken) => {
      this.hasPermit = isTaken
      return isTaken ? work : this.inLine(work)
    })
  }

  private inLine<A, E, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return Effect.andThen(Effect.interruptible(this.waitInLine()), work)
  }

  /** Those that came in part before an interruption are returned with the rest. */
  private waitInLine(): Effect.Effect<void> {
    return Effect.suspend(() => {
      const scope = Scope.makeUnsafe()
      this.scope = scope
      return Scope.provide(Effect.andThen(this.keyed ?? Effect.void, this.pool.wait()), scope)
    })
  }

  /** Returns what is held, and what may still be coming. */
  release(): void {
    this.stop()
    if (!this.isHolding) return
    const returned = this.giveBack()
    if (returned !== Effect.void) Effect.runForkWith(this.services)(returned, { uninterruptible: true })
  }

  limit(until: number): void {
    this.until = Math.min(this.until ?? Infinity, until)
  }

  /** Whoever waits for permits goes on without them: it is to stop. */
  stop(): void {
    this.isStopped = true
    this.waiting?.interruptUnsafe()
  }

  /** Lends the permits until the scope of a run closes. */
  lend(scope: Scope.Scope): Effect.Effect<void> {
    return Effect.uninterruptible(Effect.suspend(() => {
      const added = Scope.addFinalizer(scope, this.takeBack())
      if (this.borrowers++ > 0) return added
      // Who waits to have them back from an earlier run need not any more.
      this.waiting?.interruptUnsafe()
      return Effect.andThen(this.giveBack(), added)
    }))
  }

  private get isHolding(): boolean {
    return this.hasPermit || this.scope !== undefined
  }

  /**
   * Forgets what is held, and returns it: at once where that takes no time. What is left to do is to be run at once, where
   * no interruption comes through.
   */
  giveBack(): Effect.Effect<unknown> {
    const { hasPermit, scope } = this
    this.hasPermit = false
    this.scope = undefined
    if (hasPermit) return this.pool.returnNow() ? Effect.void : this.pool.semaphore.release(1)
    return scope === undefined ? Effect.void : Scope.close(scope, Exit.void)
  }

  /** It runs while a scope closes, where no interruption comes through: what ends the waiting early is `stop`. */
  private takeBack(): Effect.Effect<void> {
    return Effect.suspend(() => {
      if (--this.borrowers > 0 || this.isStopped || this.takeNow()) return Effect.void
      return Effect.callback<void>((resume) => {
        const fiber = Effect.runForkWith(this.services)(this.waitInLine())
        this.waiting = fiber
        fiber.addObserver(() => resume(Effect.void))
      })
    })
  }
}
