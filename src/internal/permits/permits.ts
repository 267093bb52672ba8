/**
 * Permits. `HeldPermits` are the permits of one handler: a permit for each of its tool's keys, and one tree permit. The
 * handler lends them to the runs it starts: while any such run is alive the handler holds no permits, so nested runs
 * cannot deadlock. After the last of these runs ends, the handler waits to get its permits back. A handler being
 * stopped waits for no permit.
 *
 * `KeyedPermits` are permits by name. A name exists while a permit is held or awaited, so names made from arguments
 * cost nothing after use. If two callers give one name different numbers, the smaller counts.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as RcMap from "effect/RcMap"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Tool from "../../Tool.ts"
import type { Limit } from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"

/** The call using the permits: its id and its run's fibers, which are the same for all calls in a run. */
export interface Owner {
  readonly id: string
  readonly running: object
  /** Notes that a wait for permits ended. */
  readonly moved?: (() => void) | undefined
}

/** A run borrowing the permits. */
interface Borrower {
  /** `true` if the run only waits for permits. */
  readonly isHeldUp: boolean
  /** Stops one call by its path. Returns `false` if the call is unknown or already answered. */
  readonly stopCall: (path: ReadonlyArray<string>, reason: string) => boolean
  /** Returns the run's inbox or, at the end of a path, the inbox of a run inside one of its calls. */
  readonly inboxAt: (path: ReadonlyArray<string>) => object | undefined
}

/** A waiting call, as described by `ToolQueued`. */
export interface Wait {
  readonly reason: "permit" | "key" | "exclusive"
  readonly key?: string
  readonly behind?: ReadonlyArray<string>
  readonly elsewhere?: boolean
}

/** A finished wait, as described by `ToolExecutionStarted`. */
export interface Waited extends Wait {
  readonly millis: number
}

/** Maximum number of calls named as ahead of a waiting call. */
const mostNamed = 3

/** Returns the calls named as ahead of a waiting call, if any. */
export const behind = (calls: ReadonlyArray<{ readonly id: string }>): Pick<Wait, "behind"> =>
  calls.length === 0 ? {} : { behind: calls.slice(0, mostNamed).map(({ id }) => id) }

/** Semaphore users in order of arrival, each with whether it holds a permit. */
type Users = Map<HeldPermits, boolean>

/** Users by semaphore: a semaphore does not reveal its holders. A tree's semaphore may belong to the caller. */
const usersOf = new WeakMap<Semaphore.Semaphore, Users>()

const usersOfTree = (tree: Semaphore.Semaphore): Users => {
  const known = usersOf.get(tree)
  if (known !== undefined) return known
  const users: Users = new Map()
  usersOf.set(tree, users)
  return users
}

export class HeldPermits {
  readonly owner: Owner
  private readonly tree: Semaphore.Semaphore
  private readonly users: Users
  /** Key names in use, with their users. The last name is awaited until its permit is held. */
  private names: Array<readonly [key: string, users: Users]> | undefined
  private readonly keyed: Effect.Effect<void, never, Scope.Scope> | undefined
  private readonly services: Context.Context<any>
  /** Scope of the held permits, returning them on close. */
  private scope: Scope.Closeable | undefined
  private readonly borrowers = new Set<Borrower>()
  /** `true` once the key permits are held, so that the tree permit is next. */
  private hasKeys = false
  private isStopped = false
  /**
   * Deadline for runs started by the handler, in milliseconds since 1970. `undefined` unless the handler is being
   * stopped.
   */
  until: number | undefined
  /** Listener, called when `take` moves from one permit to the next. Set for calls that had to wait. */
  stepped: (() => void) | undefined
  /** Fiber waiting to get the permits back. */
  private waiting: Fiber.Fiber<void> | undefined

  /** Makes the holder. `keyed` takes the permits for the tool's keys and returns them when its scope closes. */
  constructor(
    tree: Semaphore.Semaphore,
    keyed: Effect.Effect<void, never, Scope.Scope> | undefined,
    services: Context.Context<any>,
    owner: Owner
  ) {
    this.owner = owner
    this.tree = tree
    this.users = usersOfTree(tree)
    this.keyed = keyed
    this.services = services
  }

  /**
   * Waits for the permits, key permits first: a call with the tree permit waits for nothing else. `giveBack` returns
   * them, including any taken before an interruption.
   */
  take(): Effect.Effect<void> {
    const scope = Scope.makeUnsafe()
    this.scope = scope
    const taken = this.tree.takeScoped(1)
    if (this.keyed === undefined) {
      this.users.set(this, false)
      return Scope.provide(taken, scope)
    }
    const both = Effect.flatMap(this.keyed, () => {
      this.hasKeys = true
      this.users.set(this, false)
      this.stepped?.()
      return taken
    })
    return Scope.provide(both, scope)
  }

  /** Notes that `take` succeeded. A separate effect would cost every call a step. */
  taken(): void {
    // An abandoned call holds nothing.
    if (this.scope !== undefined) this.users.set(this, true)
  }

  /** Notes a wait for a key's permit. */
  awaits(key: string, users: Users): void {
    users.set(this, false)
    this.names = [...this.names ?? [], [key, users]]
    this.stepped?.()
  }

  /** The permit awaited by the first `take`, and its current holders. */
  get wait(): Wait {
    const isKeyed = this.keyed !== undefined && !this.hasKeys
    const [key, users] = isKeyed ? this.names?.at(-1) ?? [] : [undefined, this.users]
    const all = Array.from(users ?? [])
    const holding = all.filter(([, isHolding]) => isHolding)
    // A permit just returned already belongs to the first in line.
    const ahead = holding.length > 0 ? holding : all.slice(0, Math.max(0, all.findIndex(([other]) => other === this)))
    const own = ahead.filter(([{ owner }]) => owner.running === this.owner.running).map(([{ owner }]) => owner)
    const isElsewhere = users !== undefined && (own.length < ahead.length || ahead.length === 0)
    return {
      reason: isKeyed ? "key" : "permit",
      ...(key === undefined ? {} : { key }),
      ...behind(own),
      ...(isElsewhere ? { elsewhere: true } : {})
    }
  }

  private forget(): void {
    this.users.delete(this)
    for (const [, users] of this.names ?? []) users.delete(this)
    this.names = undefined
  }

  /** Returns the held permits. The caller runs this effect at once, uninterruptibly. */
  giveBack(): Effect.Effect<void> {
    const { scope } = this
    this.scope = undefined
    this.forget()
    return scope === undefined ? Effect.void : Scope.close(scope, Exit.void)
  }

  /** Returns held and still arriving permits, even while the handler is alive. */
  release(): void {
    this.stop()
    this.forget()
    const { scope } = this
    if (scope === undefined) return
    this.scope = undefined
    const returned = Scope.closeUnsafe(scope, Exit.void)
    if (returned !== undefined) Effect.runForkWith(this.services)(returned, { uninterruptible: true })
  }

  limit(until: number): void {
    this.until = Math.min(this.until ?? Infinity, until)
  }

  /** Notes that the handler is being stopped. A handler waiting for permits continues without them. */
  stop(): void {
    this.isStopped = true
    this.waiting?.interruptUnsafe()
  }

  /** `true` if the handler waits to get its permits back, or every run started by the handler is held up. */
  get isHeldUp(): boolean {
    const { borrowers, waiting } = this
    if (borrowers.size === 0) return waiting !== undefined && waiting.pollUnsafe() === undefined
    return Array.from(borrowers).every(({ isHeldUp }) => isHeldUp)
  }

  /** Stops one call in the handler's runs, trying the latest run first. */
  stopCall(path: ReadonlyArray<string>, reason: string): boolean {
    return Array.from(this.borrowers).toReversed().some((run) => run.stopCall(path, reason))
  }

  /** Returns the inbox at a path within the handler's runs, preferring the latest run. */
  inboxAt(path: ReadonlyArray<string>): object | undefined {
    return Array.from(this.borrowers, (run) => run.inboxAt(path)).findLast((inbox) => inbox !== undefined)
  }

  /** Lends the permits to a run until its scope closes. */
  lend(scope: Scope.Scope, run: Borrower): Effect.Effect<void> {
    return Effect.uninterruptible(Effect.suspend(() => {
      const added = Scope.addFinalizer(scope, this.takeBack(run))
      const isLent = this.borrowers.size > 0
      this.borrowers.add(run)
      if (isLent) return added
      // The handler may still be waiting for its permits after an earlier run. That wait is no longer needed.
      this.waiting?.interruptUnsafe()
      return Effect.andThen(this.giveBack(), added)
    }))
  }

  /** Takes the permits back while a scope closes, uninterruptibly: `stop` and `lend` end the wait. */
  private takeBack(run: Borrower): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.borrowers.delete(run)
      if (this.borrowers.size > 0 || this.isStopped) return Effect.void
      const waiting = Effect.runForkWith(this.services)(this.take())
      this.waiting = waiting
      return Effect.map(Fiber.await(waiting), (exit) => {
        if (Exit.isFailure(exit)) return
        this.taken()
        this.owner.moved?.()
      })
    })
  }
}

// Permits by name.

/** Permits needed while a handler runs: key names, each with the largest number of concurrent calls. */
export type Wanted = ReadonlyMap<string, number>

export const wanted = (
  limits: ReadonlyArray<Limit<any>>,
  args: unknown,
  call: Tool.CallContext
): Wanted => {
  const numbers = new Map<string, number>()
  for (const { key, permits } of limits) {
    const name = typeof key === "string" ? key : key(args, call)
    const mistake = ToolOptions.promised("the key of a limit", name, "return a string")
    if (mistake !== undefined) throw mistake
    numbers.set(name, Math.min(permits, numbers.get(name) ?? permits))
  }
  return numbers
}

interface Pool {
  readonly semaphore: Semaphore.Semaphore
  readonly users: Users
  permits: number
}

export class KeyedPermits {
  /** The name map needs no closing scope: a name disappears with its last user. */
  private readonly pools = Effect.runSync(
    Scope.provide(RcMap.make<string, Pool, never, never>({ lookup: () => Effect.sync(unlimited) }), Scope.makeUnsafe())
  )

  /** Number of used names. */
  get size(): number {
    return Array.from(Effect.runSync(RcMap.keys(this.pools))).length
  }

  /** Waits for a permit, first come, first served, and holds it until the scope closes. */
  take(key: string, permits: number, holder?: HeldPermits): Effect.Effect<void, never, Scope.Scope> {
    return RcMap.get(this.pools, key).pipe(
      Effect.tap((pool) => pool.permits > permits ? shrink(pool, permits) : Effect.void),
      Effect.flatMap(({ semaphore, users }) => {
        holder?.awaits(key, users)
        return Effect.map(semaphore.takeScoped(1), () => {
          if (holder !== undefined && users.has(holder)) users.set(holder, true)
        })
      })
    )
  }

  /** Takes the wanted permits in name order, so that no two callers wait for each other. */
  takeAll(wanted: Wanted, holder?: HeldPermits): Effect.Effect<void, never, Scope.Scope> {
    const sorted = Array.from(wanted).toSorted(([left], [right]) => left < right ? -1 : 1)
    return Effect.forEach(sorted, ([key, permits]) => this.take(key, permits, holder), { discard: true })
  }
}

const unlimited = (): Pool => ({ semaphore: Semaphore.makeUnsafe(Infinity), users: new Map(), permits: Infinity })

const shrink = (pool: Pool, permits: number): Effect.Effect<void> => {
  pool.permits = permits
  return pool.semaphore.resize(permits)
}
