/**
 * Permits. `HeldPermits` are the permits of one handler: those of its tool's keys, and one of the tree. The handler
 * lends them to the runs that it starts: while one of these is alive the handler holds none, so that nested runs cannot
 * deadlock; when the last of them has ended, the handler waits until it has its permits again. A handler that is being
 * stopped waits for no permit.
 *
 * `KeyedPermits` are permits by name. A name exists as long as one of its permits is held or awaited, so that names
 * made from arguments cost nothing once they are out of use. Where two callers give one name different numbers, the
 * smaller one counts.
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

/** The call that permits are for: its id, and the fibers of its run, by which calls of one run are known. */
export interface Owner {
  readonly id: string
  readonly running: object
  /** Notes that a wait for permits is over. */
  readonly moved?: (() => void) | undefined
}

/** A run that permits are lent to. */
interface Borrower {
  /** Tells whether it only waits for permits. */
  readonly isHeldUp: boolean
  /** Stops one of its calls, by the path to it. `false`: there is no such call, or it is answered. */
  readonly stopCall: (path: ReadonlyArray<string>, reason: string) => boolean
  /** Returns its inbox or, behind a path, that of a run inside one of its calls. */
  readonly inboxAt: (path: ReadonlyArray<string>) => object | undefined
}

/** The wait of a call, as `ToolQueued` describes it. */
export interface Wait {
  readonly reason: "permit" | "key" | "exclusive"
  readonly key?: string
  readonly behind?: ReadonlyArray<string>
  readonly elsewhere?: boolean
}

/** A wait that is over, as `ToolExecutionStarted` describes it. */
export interface Waited extends Wait {
  readonly millis: number
}

/** The most calls that are named as those which another one waits for. */
const mostNamed = 3

/** Returns the calls that are named as those which another one waits for, if there are any. */
export const behind = (calls: ReadonlyArray<{ readonly id: string }>): Pick<Wait, "behind"> =>
  calls.length === 0 ? {} : { behind: calls.slice(0, mostNamed).map(({ id }) => id) }

/** The users of a semaphore, first come first, each with whether it holds its permit. */
type Users = Map<HeldPermits, boolean>

/** A semaphore does not tell who holds its permits. The one of a tree may be the caller's own. */
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
  /** The names that it uses, with their users. The last one is awaited as long as its permit is not held. */
  private names: Array<readonly [key: string, users: Users]> | undefined
  private readonly keyed: Effect.Effect<void, never, Scope.Scope> | undefined
  private readonly services: Context.Context<any>
  /** The scope of the held permits, which returns them when it closes. */
  private scope: Scope.Closeable | undefined
  private readonly borrowers = new Set<Borrower>()
  /** Tells whether the permits of the keys are there, so that the one of the tree is next. */
  private hasKeys = false
  private isStopped = false
  /**
   * The time by which the runs that the handler starts must end, in milliseconds since 1970. `undefined` unless the
   * handler is being stopped.
   */
  until: number | undefined
  /** The listener for the step of `take` from one permit to the next. Set for a call that has had to wait. */
  stepped: (() => void) | undefined
  /** The fiber that waits to have the permits back. */
  private waiting: Fiber.Fiber<void> | undefined

  /** Makes the holder. `keyed` takes the permits of the tool's keys, and returns them when its scope closes. */
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
   * Waits for the permits, those of the keys first: a call that has the one of the tree waits for nothing else.
   * `giveBack` returns them, also the part that came before an interruption.
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

  /** Notes that `take` has succeeded. A step of its own would cost each call. */
  taken(): void {
    // A call that was given up holds none.
    if (this.scope !== undefined) this.users.set(this, true)
  }

  /** Notes that it waits for the permit of a name. */
  awaits(key: string, users: Users): void {
    users.set(this, false)
    this.names = [...this.names ?? [], [key, users]]
    this.stepped?.()
  }

  /** The permit that a wait in the first `take` is for, and the calls that hold it. */
  get wait(): Wait {
    const isKeyed = this.keyed !== undefined && !this.hasKeys
    const [key, users] = isKeyed ? this.names?.at(-1) ?? [] : [undefined, this.users]
    const all = Array.from(users ?? [])
    const holding = all.filter(([, isHolding]) => isHolding)
    // A permit that was just given back is already the one of the first that waits.
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

  /** Returns the held permits. The caller runs the effect at once, where no interruption comes through. */
  giveBack(): Effect.Effect<void> {
    const { scope } = this
    this.scope = undefined
    this.forget()
    return scope === undefined ? Effect.void : Scope.close(scope, Exit.void)
  }

  /** Returns the held permits and those that may still be coming, also while the handler is alive. */
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

  /** Stops the handler. If it waits for permits, it continues without them. */
  stop(): void {
    this.isStopped = true
    this.waiting?.interruptUnsafe()
  }

  /** Tells whether the handler waits to have its permits back, or each run that it has started waits for permits. */
  get isHeldUp(): boolean {
    const { borrowers, waiting } = this
    if (borrowers.size === 0) return waiting !== undefined && waiting.pollUnsafe() === undefined
    return Array.from(borrowers).every(({ isHeldUp }) => isHeldUp)
  }

  /** Stops one call of the runs that the handler has started, the one begun last first. */
  stopCall(path: ReadonlyArray<string>, reason: string): boolean {
    return Array.from(this.borrowers).toReversed().some((run) => run.stopCall(path, reason))
  }

  /** Returns the inbox at the end of a path in the runs that the handler has started: of the one begun last. */
  inboxAt(path: ReadonlyArray<string>): object | undefined {
    return Array.from(this.borrowers, (run) => run.inboxAt(path)).findLast((inbox) => inbox !== undefined)
  }

  /** Lends the permits until the scope of a run closes. */
  lend(scope: Scope.Scope, run: Borrower): Effect.Effect<void> {
    return Effect.uninterruptible(Effect.suspend(() => {
      const added = Scope.addFinalizer(scope, this.takeBack(run))
      const isLent = this.borrowers.size > 0
      this.borrowers.add(run)
      if (isLent) return added
      // A handler that waits for its permits after the end of an earlier run need not wait any more.
      this.waiting?.interruptUnsafe()
      return Effect.andThen(this.giveBack(), added)
    }))
  }

  /** Takes the permits back, while a scope closes and no interruption comes through: `stop` and `lend` end the wait. */
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

/** The permits that a call needs while its handler runs: the names, each with the largest number of calls at once. */
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
  readonly users: Users
  permits: number
}

export class KeyedPermits {
  /** The set of names needs no scope of its own to close: a name goes with its last user. */
  private readonly pools = Effect.runSync(
    Scope.provide(RcMap.make<string, Pool, never, never>({ lookup: () => Effect.sync(unlimited) }), Scope.makeUnsafe())
  )

  /** Number of names in use. */
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

  /** Takes the wanted permits in the order of their names, so that two callers never wait for each other. */
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
