/**
 * The permits that one handler holds: those of its tool's keys, and one of the tree's. It lends them to the runs that it
 * starts: while one of them is alive the handler holds none, so that nested runs cannot deadlock; when the last of them
 * has ended, the handler waits until it has its permits again. A handler that is to stop waits for no permit.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type * as Semaphore from "effect/Semaphore"

export class HeldPermits {
  private readonly tree: Semaphore.Semaphore
  private readonly keyed: Effect.Effect<void, never, Scope.Scope> | undefined
  private readonly services: Context.Context<any>
  /** What is held is returned when this closes. */
  private scope: Scope.Closeable | undefined
  private borrowers = 0
  private isStopped = false
  /** The clock time, in milliseconds, by which the runs that the handler starts must end, if the handler is to stop. */
  until: number | undefined
  /** Waits to have the permits back. */
  private waiting: Fiber.Fiber<void> | undefined

  /** `keyed` takes what the tool's keys ask for, and returns it when its scope closes. */
  constructor(
    tree: Semaphore.Semaphore,
    keyed: Effect.Effect<void, never, Scope.Scope> | undefined,
    services: Context.Context<any>
  ) {
    this.tree = tree
    this.keyed = keyed
    this.services = services
  }

  /**
   * Waits for the permits, those of the keys first: a call that has one of the tree's waits for nothing else. `giveBack`
   * returns them, also those that came in part before an interruption.
   */
  take(): Effect.Effect<void> {
    const scope = Scope.makeUnsafe()
    this.scope = scope
    const taken = this.tree.takeScoped(1)
    return Scope.provide(this.keyed === undefined ? taken : Effect.andThen(this.keyed, taken), scope)
  }

  /** Returns what is held. To be run at once, where no interruption comes through. */
  giveBack(): Effect.Effect<void> {
    const { scope } = this
    this.scope = undefined
    return scope === undefined ? Effect.void : Scope.close(scope, Exit.void)
  }

  /** Returns what is held, and what may still be coming, also while the handler goes on. */
  release(): void {
    this.stop()
    if (this.scope !== undefined) Effect.runForkWith(this.services)(this.giveBack(), { uninterruptible: true })
  }

  limit(until: number): void {
    this.until = Math.min(this.until ?? Infinity, until)
  }

  /** Stops the handler. If it waits for permits, it continues without them. */
  stop(): void {
    this.isStopped = true
    this.waiting?.interruptUnsafe()
  }

  /** Lends the permits until the scope of a run closes. */
  lend(scope: Scope.Scope): Effect.Effect<void> {
    return Effect.uninterruptible(Effect.suspend(() => {
      const added = Scope.addFinalizer(scope, this.takeBack())
      if (this.borrowers++ > 0) return added
      // An earlier run has ended, and the handler waits to have its permits back: it need not any more.
      this.waiting?.interruptUnsafe()
      return Effect.andThen(this.giveBack(), added)
    }))
  }

  /** Runs while a scope closes, where no interruption comes through: `stop` and `lend` end the wait early. */
  private takeBack(): Effect.Effect<void> {
    return Effect.suspend(() => {
      if (--this.borrowers > 0 || this.isStopped) return Effect.void
      const waiting = Effect.runForkWith(this.services)(this.take())
      this.waiting = waiting
      return Effect.asVoid(Fiber.await(waiting))
    })
  }
}
