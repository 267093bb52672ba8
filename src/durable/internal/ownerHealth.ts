/**
 * The health of an owner of sessions: a worker, or a runner of a cluster. Public as `Worker.ready` and `Cluster.ready`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"

/**
 * The health of an owner of sessions.
 *
 * @category models
 * @since 0.1.0
 */
export interface Health {
  /** `true` where the owner takes sessions: it is not leaving, and the store answered its last request for work. */
  readonly isReady: boolean
  /** `true` where the owner was asked to leave, and ends what is under way. */
  readonly isLeaving: boolean
  /** Number of sessions that the owner drives. */
  readonly driven: number
  /**
   * Number of claims that the owner lost in the last five minutes. A process that loses claims is too busy to renew
   * them in time, stood still, or does not reach its store.
   */
  readonly lostClaims: number
  /** Longest time that one of these claims had not been confirmed by the store, in milliseconds. 0 without any. */
  readonly latestMillis: number
}

/** The metrics of the owners of a process. Their names and meanings are part of the guide. */
export const metrics = {
  driven: Metric.gauge("heddle.sessions.driven", { description: "Sessions that are driven now" }),
  lost: Metric.counter("heddle.claims.lost", { description: "Claims that were lost", incremental: true }),
  late: Metric.histogram("heddle.claims.late", {
    description: "Milliseconds for which a lost claim had not been confirmed",
    boundaries: Metric.exponentialBoundaries({ start: 100, factor: 4, count: 6 })
  })
}

const windowMillis = 5 * 60_000

/** Collects the health of an owner. */
export class Owner {
  private readonly driven = new Set<string>()
  private lost: ReadonlyArray<{ readonly at: number; readonly lateMillis: number }> = []
  /** `true` where the owner was asked to leave. */
  isLeaving = false
  private isAnswered = true
  private readonly context: Context.Context<never>

  constructor(context: Context.Context<never>) {
    this.context = context
  }

  /** Tells whether the owner drives a session. */
  drives(id: string): boolean {
    return this.driven.has(id)
  }

  /** Number of sessions that the owner drives. */
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

  /** The store has answered a request for work, or has not. */
  answered(isAnswered: boolean): void {
    this.isAnswered = isAnswered
  }

  /** Notes that a claim was lost at this time, so long after its last confirmation. */
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
