/**
 * The calls of a batch that wait for their turn, and those that have a place. It drives the admission machine: whoever
 * may start is started at once, whenever a call comes up, leaves its place, or a handler outside of the queue ends. A
 * call that only outsiders keep out waits one grace period for them, and is then refused.
 */
import * as Admission from "./admission.ts"
import type { Helper, Helpers } from "./helpers.ts"
import type * as Plan from "./plan.ts"
import type { Running } from "./running.ts"

/** What becomes of a call that leaves the queue. */
export interface Exits {
  readonly start: (run: Plan.Run) => void
  readonly refuse: (run: Plan.Run) => void
}

export class Queue {
  /** How many have a place. */
  holding = 0
  private admission: Admission.Admission
  private readonly running: Running
  private readonly helpers: Helpers
  private readonly exits: Exits
  private readonly unsubscribe: () => void
  private readonly runs = new Map<number, Plan.Run>()
  private isAdmitting = false
  private hasRoom = false
  private patience: Helper | undefined

  constructor(bound: number, running: Running, helpers: Helpers, exits: Exits) {
    this.admission = Admission.make(bound)
    this.running = running
    this.helpers = helpers
    this.exits = exits
    this.unsubscribe = running.onChange(() => this.admit())
  }

  add(runs: ReadonlyArray<Plan.Run>): void {
    for (const run of runs) this.runs.set(run.index, run)
    this.admission = Admission.enqueue(this.admission, runs)
    this.admit()
  }

  /** Takes everybody out who has no place yet. */
  clear(): ReadonlyArray<Plan.Run> {
    const waiting = Admission.waiting(this.admission).map((ticket) => this.run(ticket))
    this.admission = Admission.clear(this.admission)
    return waiting
  }

  /** A call has left its place. Whoever follows is admitted when its handler is known to have ended. */
  release(run: Plan.Run): void {
    this.holding--
    this.admission = Admission.release(this.admission, run)
  }

  close(): void {
    this.unsubscribe()
  }

  private run(ticket: Admission.Ticket): Plan.Run {
    return this.runs.get(ticket.index) as Plan.Run
  }

  /** Starts whoever may start. Handlers that end at once make room while this runs, so it loops and never nests. */
  private admit(): void {
    this.hasRoom = true
    if (this.isAdmitting) return
    this.isAdmitting = true
    while (this.hasRoom) {
      this.hasRoom = false
      const outsiders = this.running.outsiders(this.holding, this.admission.isExclusiveRunning)
      const [tickets, next] = Admission.admit(Admission.withOutsiders(this.admission, outsiders))
      this.admission = next
      this.holding += tickets.length
      for (const ticket of tickets) this.exits.start(this.run(ticket))
    }
    this.isAdmitting = false
    if (this.patience === undefined && Admission.stuck(this.admission) !== undefined) this.waitForOutsiders()
  }

  private waitForOutsiders(): void {
    this.patience = this.helpers.after(this.running.graceMillis, () => {
      this.patience = undefined
      for (let ticket = Admission.stuck(this.admission); ticket !== undefined;) {
        this.admission = Admission.skip(this.admission)
        this.exits.refuse(this.run(ticket))
        ticket = Admission.stuck(this.admission)
      }
      this.admit()
    })
  }
}
