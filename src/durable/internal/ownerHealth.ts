/**
 * Health of a session owner: a worker, or a cluster runner. Public as `Worker.ready` and `Cluster.ready`.
 */
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"

/**
 * Health of a session owner.
 *
 * @category models
 */
export interface Health {
  /** `true` if the owner takes sessions: it is not leaving, and the store answered its last request for work. */
  readonly isReady: boolean
  /** `true` if the owner was asked to leave and is finishing its running work. */
  readonly isLeaving: boolean
  /** Number of driven sessions. */
  readonly driven: number
  /**
   * Number of claims lost in the last five minutes. A process losing claims is too busy to renew them in time, was
   * frozen, or cannot reach its store.
   */
  readonly lostClaims: number
  /** Longest time from a lost claim's last confirmation by the store to its loss, in milliseconds. 0 without losses. */
  readonly latestMillis: number
}

/** Owner metrics of a process. The guide documents their names and meanings. */
export const metrics = {
  driven: Metric.gauge("heddle.sessions.driven", { description: "Sessions that are driven now" }),
  lost: Metric.counter("heddle.claims.lost", { description: "Claims that were lost", incremental: true }),
  late: Metric.histogram("heddle.claims.late", {
    description: "Milliseconds for which a lost claim had not been confirmed",
    boundaries: Metric.exponentialBoundaries({ start: 100, factor: 4, count: 6 })
  })
}

const windowMillis = 5 * 60_000

/** Collects an owner's health. */
export class Owner {
  private readonly driven = new Set<string>()
  private lost: ReadonlyArray<{ readonly at: number; readonly lateMillis: number }> = []
  /** `true` if the owner was asked to leave. */
  isLeaving = false
  private isAnswered = true
  private readonly context: Context.Context<never>

  constructor(context: Context.Context<never>) {
    this.context = context
  }

  /** Returns `true` if the owner drives a session. */
  drives(id: string): boolean {
    return this.driven.has(id)
  }

  /** Number of driven sessions. */
  get size(): number {
    return this.driven.size
  }

  begin(id: string): void {
    if (!this.driven.has(id)) metrics.driven.modifyUnsafe(1, this.context)
    this.driven.add(id)
  }

  end(id: string): void {
    if (this.driven.delete(id)) metrics.driven.modifyUnsafe(-1, this.context)
  }

  leave(): void {
    this.isLeaving = true
  }

  /** Records whether the store answered a request for work. */
  answered(isAnswered: boolean): void {
    this.isAnswered = isAnswered
  }

  /** Records a lost claim: its time, and the time since its last confirmation. */
  readonly lose = (lateMillis: number, at: number): void => {
    metrics.lost.updateUnsafe(1, this.context)
    metrics.late.updateUnsafe(lateMillis, this.context)
    this.lost = [...this.lostSince(at - windowMillis), { at, lateMillis }]
  }

  private lostSince(time: number) {
    return this.lost.filter(({ at }) => at >= time)
  }

  readonly health: Effect.Effect<Health> = Effect.map(Clock.currentTimeMillis, (now) => {
    const lost = this.lostSince(now - windowMillis)
    return {
      isReady: !this.isLeaving && this.isAnswered,
      isLeaving: this.isLeaving,
      driven: this.driven.size,
      lostClaims: lost.length,
      latestMillis: lost.reduce((latest, { lateMillis }) => Math.max(latest, lateMillis), 0)
    }
  })
}
