/**
 * Permits by name. A name is known for as long as one of its permits is held or awaited, so that names made from
 * arguments cost nothing once they are no longer used. Where two callers give one name different numbers, the smaller
 * holds.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Tool from "../../Tool.ts"
import type { Limit } from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"

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
