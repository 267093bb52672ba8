/**
 * The permits of a tree of runs. As long as whoever wants one finds one free, which is nearly always, they are a count.
 * As soon as somebody goes to wait in line, as a call does whose tool has keys, or a handler uses them by itself, they are
 * an Effect semaphore, and remain one.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"

export class Pool implements Semaphore.Semaphore {
  private readonly permits: number
  private free: number
  /** It counts from the moment on from which there is one. */
  private counting: Semaphore.Semaphore | undefined
  /** What others know it by, if it is theirs. */
  private readonly given: Semaphore.Semaphore | undefined
  private waiting = 0

  constructor(permits: number | Semaphore.Semaphore) {
    this.given = typeof permits === "number" ? undefined : permits
    this.permits = typeof permits === "number" ? permits : 0
    this.free = this.permits
    this.counting = this.given
  }

  /** What handlers are given. */
  get semaphore(): Semaphore.Semaphore {
    return this.given ?? this
  }

  /** Takes a permit that is free, unless that has to be asked for. */
  takeNow(): boolean {
    if (this.counting !== undefined || this.free === 0) return false
    this.free--
    return true
  }

  /** Returns a permit, unless that has to be asked for. */
  returnNow(): boolean {
    if (this.counting !== undefined) return false
    this.free++
    return true
  }

  /** Whoever finds a permit free takes it at once, unless somebody waits already. */
  takeIfFree(): Effect.Effect<boolean> {
    return this.waiting > 0 ? Effect.succeed(false) : this.whole.takeIfAvailable(1)
  }

  /** Waits in line, and returns the permit when the scope closes. */
  wait(): Effect.Effect<void, never, Scope.Scope> {
    return Effect.suspend(() => {
      this.waiting++
      return Effect.ensuring(this.whole.takeScoped(1), Effect.sync(() => this.waiting--))
    })
  }

  private get whole(): Semaphore.Semaphore {
    if (this.counting !== undefined) return this.counting
    const semaphore = Semaphore.makeUnsafe(this.permits)
    Effect.runSync(semaphore.takeIfAvailable(this.permits - this.free))
    this.counting = semaphore
    return semaphore
  }

  private with<A, E, R>(use: (semaphore: Semaphore.Semaphore) => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return Effect.suspend(() => use(this.whole))
  }

  resize(permits: number): Effect.Effect<void> {
    return this.with((semaphore) => semaphore.resize(permits))
  }

  withPermits(permits: number): <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R> {
    return (self) => this.with((semaphore) => semaphore.withPermits(permits)(self))
  }

  /** It may be handed on as a function, as that of Effect's semaphore may. */
  get withPermit(): <A, E, R>(self: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R> {
    return (self) => this.with((semaphore) => semaphore.withPermit(self))
  }

  withPermitsIfAvailable(permits: number) {
    return <A, E, R>(self: Effect.Effect<A, E, R>) =>
      this.with((semaphore) => semaphore.withPermitsIfAvailable(permits)(self))
  }

  take(permits: number): Effect.Effect<number> {
    return this.with((semaphore) => semaphore.take(permits))
  }

  takeScoped(permits: number): Effect.Effect<void, never, Scope.Scope> {
    return this.with((semaphore) => semaphore.takeScoped(permits))
  }

  takeIfAvailable(permits: number): Effect.Effect<boolean> {
    return this.with((semaphore) => semaphore.takeIfAvailable(permits))
  }

  release(permits: number): Effect.Effect<number> {
    return this.with((semaphore) => semaphore.release(permits))
  }

  get releaseAll(): Effect.Effect<number> {
    return this.with((semaphore) => semaphore.releaseAll)
  }
}
