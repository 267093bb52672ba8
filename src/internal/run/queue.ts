/**
 * The calls of a batch that wait for their turn, and those that have a place. It drives the admission machine: whoever
 * may start is started at once, whenever a call comes up, leaves its place, or a handler outside of the queue ends. A
 * call that only outsiders keep out waits one grace period for them, and is then refused. One that waits for a place
 * of theirs starts when they are given up, which is at the end of their grace period.
 */
import type * as Plan from "../decide/plan.ts"
import type { Helper, Helpers, Waiter } from "../stop/helpers.ts"
import type { Running } from "../stop/ownedFibers.ts"
import * as Admission from "./admission.ts"

/** What becomes of a call that leaves the queue. */
export interface Exits {
  readonly start: (run: Plan.Run) => void
  readonly refuse: (run: Plan.Run) => void
  /** Those that were admitted together have all been started. */
  readonly started: () => void
}

export class Queue implements Waiter {
  /** How many have a place. */
  holding = 0
  /** Whether calls that were admitted together are being started. */
  isStarting = false
  private admission: Admission.Admission<Plan.Run>
  private readonly running: Running
  private readonly helpers: Helpers
  private readonly exits: Exits
  private isAdmitting = false
  private hasRoom = false
  private patience: Helper | undefined
  /** Whether the head has waited for one grace period, and waits for a place that is about to be given up. */
  private isExtended = false

  constructor(bound: number, running: Running, helpers: Helpers, exits: Exits) {
    this.admission = Admission.make(bound)
    this.running = running
    this.helpers = helpers
    this.exits = exits
    running.listen(this)
  }

  add(runs: ReadonlyArray<Plan.Run>): void {
    this.admission = Admission.enqueue(this.admission, runs)
    this.admit()
  }

  /** Takes everybody out who has no place yet. */
  clear(): ReadonlyArray<Plan.Run> {
    const waiting = Admission.waiting(this.admission)
    this.admission = Admission.clear(this.admission)
    return waiting
  }

  /** A call has left its place. Whoever follows is admitted when its handler is known to have ended. */
  release(run: Plan.Run): void {
    this.holding--
    this.admission = Admission.release(this.admission, run)
  }

  close(): void {
    this.running.unlisten(this)
  }

  /** A handler ended, in the queue or outside of it. */
  changed(): void {
    this.admit()
  }

  /** Starts whoever may start. Handlers that end at once make room while this runs, so it loops and never nests. */
  private admit(): void {
    this.hasRoom = true
    if (this.isAdmitting) return
    this.isAdmitting = true
    while (this.hasRoom && Admission.isWaiting(this.admission)) {
      this.hasRoom = false
      const outsiders = this.running.outsiders(this.holding, this.admission.isExclusiveRunning)
      const [runs, next] = Admission.admit(this.admission, outsiders)
      this.admission = next
      this.holding += runs.length
      this.isStarting = true
      for (let index = 0; index < runs.length; index++) this.exits.start(runs[index] as Plan.Run)
      this.isStarting = false
      this.exits.started()
    }
    this.isAdmitting = false
    if (Admission.stuck(this.admission) === undefined) this.isUnstuck()
    else this.patience ??= this.helpers.after(this.running.graceMillis, this)
  }

  /** The next call that is stuck waits as long as this one could have. */
  private isUnstuck(): void {
    this.helpers.stop(this.patience)
    this.patience = undefined
    this.isExtended = false
  }

  /**
   * The outsiders have had their grace period. It may have begun a moment after the wait for them, so that a place which
   * is about to be given up is waited for once more.
   */
  timeUp(): void {
    this.patience = undefined
    const wasExtended = this.isExtended
    this.isExtended = false
    for (let run = Admission.stuck(this.admission); run !== undefined; run = Admission.stuck(this.admission)) {
      this.isExtended = !wasExtended && Admission.isCrowdedOut(this.admission)
      if (this.isExtended) break
      this.admission = Admission.skip(this.admission)
      this.exits.refuse(run)
    }
    this.admit()
  }
}
