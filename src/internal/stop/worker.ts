/**
 * Code of the caller's that a run waits for: its hooks, its store, its adapter, the effect that cancels it. It runs in a
 * fiber that the run owns, one piece of work after another, so that a fiber's own state lasts from one piece to the next,
 * while the reader waits in its own fiber. A reader that is interrupted leaves at once; the work is then stopped with the
 * run, has the run's grace period to end, and is named and abandoned if it does not.
 *
 * The fiber is resumed where it waits, by a call: work that needs no time takes no turn of the scheduler.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Event from "../../Event.ts"
import type { OnSoftStop, Running, Waited } from "./ownedFibers.ts"

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

export class Worker implements Waited {
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
    // A fiber that has no work may be alive yet: what its last work came to is being told, or a child of it ends.
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
