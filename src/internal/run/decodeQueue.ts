/**
 * What is to be done with the calls of a batch, decided group after group, so that nobody overtakes a call whose
 * arguments take time. Where nothing takes time a group is decided as it comes up.
 */
import * as Effect from "effect/Effect"
import * as Plan from "../decide/plan.ts"
import * as Lists from "../lists.ts"
import * as Now from "../now.ts"
import type { Helpers } from "../stop/helpers.ts"
import type { Workshop } from "./batchEnvironment.ts"

/** Whose calls they are. */
export interface Court extends Plan.Court {
  readonly workshop: Pick<Workshop<unknown>, "bound" | "settings">
  readonly helpers: Helpers
  /** What is to be done with every call of a group is known. */
  readonly decided: (decided: ReadonlyArray<Plan.Decided>) => void
}

export class Decisions {
  private readonly court: Court
  private undecided: Array<Plan.Job> | undefined
  private hasBegun = false
  private isDeciding = false

  constructor(court: Court) {
    this.court = court
  }

  /** Calls that have come up. Nothing is decided before it has begun. */
  add(jobs: ReadonlyArray<Plan.Job>): void {
    if (jobs.length === 0) return
    this.undecided = Lists.joined(this.undecided, jobs)
    if (this.hasBegun) this.next()
  }

  begin(): void {
    if (this.hasBegun) return
    this.hasBegun = true
    this.next()
  }

  private next(): void {
    const jobs = this.undecided
    if (this.isDeciding || jobs === undefined) return
    this.isDeciding = true
    this.undecided = undefined
    const deciding = jobs.map((job) => this.decide(job))
    if (deciding.every(Now.isDone)) return this.decided(deciding.map((exit) => exit.value))
    const { helpers, workshop: { bound: concurrency } } = this.court
    helpers.when(Effect.all(deciding, { concurrency }), (decided) => this.decided(decided))
  }

  private decided(decided: ReadonlyArray<Plan.Decided>): void {
    this.isDeciding = false
    this.court.decided(decided)
    this.next()
  }

  private decide(job: Plan.Job): Effect.Effect<Plan.Decided, never, any> {
    return job._tag === "Decode"
      ? Plan.decide(job, this.court.workshop.settings.policy, this.court)
      : Effect.succeed(job)
  }
}
