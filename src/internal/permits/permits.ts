/**
 * Permits. `HeldPermits` are those that one handler holds: those of its tool's keys, and one of the tree's. It lends them to
 * the runs that it starts: while one of them is alive the handler holds none, so that nested runs cannot deadlock; when the
 * last of them has ended, the handler waits until it has its permits again. A handler that is to stop waits for no permit.
 *
 * `KeyedPermits` are those by name. A name is known for as long as one of its permits is held or awaited, so that names made
 * from arguments cost nothing once they are no longer used. Where two callers give one name different numbers, the smaller
 * holds.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Tool from "../../Tool.ts"
import type { Limit } from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"

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
    const { scope } = this
    if (scope === undefined) return
    this.scope = undefined
    const returned = Scope.closeUnsafe(scope, Exit.void)
    if (returned !== undefined) Effect.runForkWith(this.services)(returned, { uninterruptible: true })
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

// Permits by name.

/** What a call has to hold while its handler runs: by name, how many may at once. */
export type Wanted = ReadonlyMap<string, number>

export const wanted = (
  limits: ReadonlyArray<Limit<any>>,
  args: unknown,
  call: Tool.CallContext
): Wanted => {
  const numbers = new Map<string, number>()
  for (const { key, permits } of limits) {
    const name = typeof key === "string" ? key : key(args, call)
    const mistake = ToolOptions.promised("the key of a limit", name, "return a text")
    if (mistake !== undefined) throw mistake
    numbers.set(name, Math.min(permits, numbers.get(name) ?? permits))
  }
  return numbers
}

interface Pool {
  readonly semaphore: Semaphore.Semaphore
  permits: number
  users: number
}

export class KeyedPermits {
  private readonly pools = new Map<string, Pool>()

  /** How many names are in use. */
  get size(): number {
    return this.pools.size
  }

  /** Waits for a permit, first come, first served, and holds it until the scope closes. */
  take(key: string, permits: number): Effect.Effect<void, never, Scope.Scope> {
    return Effect.acquireRelease(
      Effect.sync(() => this.join(key, permits)),
      (pool) => Effect.sync(() => this.leave(key, pool))
    ).pipe(
      Effect.tap((pool) => pool.permits > permits ? this.shrink(pool, permits) : Effect.void),
      Effect.flatMap((pool) => pool.semaphore.takeScoped(1))
    )
  }

  /** Takes all that is wanted, in the order of the names, so that two callers never wait for each other. */
  takeAll(wanted: Wanted): Effect.Effect<void, never, Scope.Scope> {
    const sorted = Array.from(wanted).toSorted(([left], [right]) => left < right ? -1 : 1)
    return Effect.forEach(sorted, ([key, permits]) => this.take(key, permits), { discard: true })
  }

  private join(key: string, permits: number): Pool {
    const known = this.pools.get(key)
    const pool = known ?? { semaphore: Semaphore.makeUnsafe(permits), permits, users: 0 }
    if (known === undefined) this.pools.set(key, pool)
    pool.users++
    return pool
  }

  private shrink(pool: Pool, permits: number): Effect.Effect<void> {
    pool.permits = permits
    return pool.semaphore.resize(permits)
  }

  private leave(key: string, pool: Pool): void {
    pool.users--
    if (pool.users === 0) this.pools.delete(key)
  }
}
