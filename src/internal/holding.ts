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

export class Holding {
  private readonly acquire: Effect.Effect<void, never, Scope.Scope>
  private readonly services: Context.Context<any>
  private scope: Scope.Closeable | undefined
  private borrowers = 0
  private isStopped = false
  private waiting: Fiber.Fiber<void> | undefined

  /** `acquire` takes the permits and leaves it to the scope to return them. */
  constructor(acquire: Effect.Effect<void, never, Scope.Scope>, services: Context.Context<any>) {
    this.acquire = acquire
    this.services = services
  }

  /** Waits for the permits. Those that came in part before an interruption are returned with the rest. */
  readonly take: Effect.Effect<void> = Effect.suspend(() => {
    const scope = Scope.makeUnsafe()
    this.scope = scope
    return Scope.provide(this.acquire, scope)
  })

  /** Returns what is held, and what may still be coming. */
  release(): void {
    this.stop()
    this.giveBack()
  }

  /** Whoever waits for permits goes on without them: it is to stop. */
  stop(): void {
    this.isStopped = true
    this.waiting?.interruptUnsafe()
  }

  /** Lends the permits until the scope of a run closes. */
  lend(scope: Scope.Scope): Effect.Effect<void> {
    return Effect.suspend(() => {
      if (this.borrowers++ === 0) this.giveBack()
      return Scope.addFinalizer(scope, this.takeBack)
    })
  }

  private giveBack(): void {
    const { scope } = this
    this.scope = undefined
    if (scope !== undefined) Effect.runForkWith(this.services)(Scope.close(scope, Exit.void))
  }

  /** It runs while a scope closes, where no interruption comes through: what ends the waiting early is `stop`. */
  private readonly takeBack: Effect.Effect<void> = Effect.suspend(() => {
    if (--this.borrowers > 0 || this.isStopped) return Effect.void
    return Effect.callback<void>((resume) => {
      const fiber = Effect.runForkWith(this.services)(this.take)
      this.waiting = fiber
      fiber.addObserver(() => resume(Effect.void))
    })
  })
}
