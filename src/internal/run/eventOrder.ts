/**
 * In which order a batch shows what happens. Starts and progress are shown at once; results as they come, or held back
 * until those of all earlier calls are out. Grouped, a call's start and progress are held back as well, until its result
 * is shown. Progress that nobody has read is bounded: beyond a few the latest takes the place of the one before it.
 */
import type * as Event from "../../Event.ts"
import type * as Policy from "../../Policy.ts"

export interface Emission {
  readonly started: (index: number, event: Event.Event) => void
  readonly progress: (index: number, event: Event.Event) => void
  readonly settled: (index: number, events: ReadonlyArray<Event.Event>) => void
  /** These are all calls; there will be no others. */
  readonly sealed: (calls: ReadonlyArray<Numbered>) => void
}

/** A call, by its position. */
interface Numbered {
  readonly index: number
}

export const unreadProgressLimit = 16

/** Where events go, which shows all of them as they come. */
export interface Outlet extends Emission {
  readonly offer: (events: ReadonlyArray<Event.Event>) => void
}

/** In which order results are shown. */
type Results = Pick<Emission, "settled" | "sealed">

/**
 * Passes groups on in call order. A position at which no call has come up yet holds back what is behind it until it is
 * certain that none will.
 */
class InOrder implements Results {
  private readonly outlet: Outlet
  private readonly held = new Map<number, ReadonlyArray<Event.Event>>()
  private next = 0
  private indexes: ReadonlyArray<number> | undefined

  constructor(outlet: Outlet) {
    this.outlet = outlet
  }

  settled(index: number, events: ReadonlyArray<Event.Event>): void {
    this.held.set(index, events)
    this.flush()
  }

  sealed(calls: ReadonlyArray<Numbered>): void {
    const sorted = calls.map(({ index }) => index).toSorted((left, right) => left - right)
    const shown = this.next
    this.indexes = sorted
    this.next = sorted.filter((index) => index < shown).length
    this.flush()
  }

  private flush(): void {
    const due: Array<Event.Event> = []
    for (let index = this.at(this.next); index !== undefined; index = this.at(this.next)) {
      const group = this.held.get(index)
      if (group === undefined) break
      this.held.delete(index)
      this.next++
      for (const event of group) due.push(event)
    }
    if (due.length > 0) this.outlet.offer(due)
  }

  private at(position: number): number | undefined {
    return this.indexes === undefined ? position : this.indexes[position]
  }
}

/** Shows at once what a call does, and results in call order. */
class Live implements Emission {
  private readonly outlet: Outlet
  private readonly results: Results

  constructor(outlet: Outlet) {
    this.outlet = outlet
    this.results = new InOrder(outlet)
  }

  started(index: number, event: Event.Event): void {
    this.outlet.started(index, event)
  }

  progress(index: number, event: Event.Event): void {
    this.outlet.progress(index, event)
  }

  settled(index: number, events: ReadonlyArray<Event.Event>): void {
    this.results.settled(index, events)
  }

  sealed(calls: ReadonlyArray<Numbered>): void {
    this.results.sealed(calls)
  }
}

/** Holds back what a call shows before its result. */
class Grouped implements Emission {
  private readonly results: Results
  private readonly held = new Map<number, Array<Event.Event>>()

  constructor(results: Results) {
    this.results = results
  }

  started(index: number, event: Event.Event): void {
    this.hold(index, event)
  }

  progress(index: number, event: Event.Event): void {
    this.hold(index, event)
  }

  private hold(index: number, event: Event.Event): void {
    const events = this.held.get(index)
    if (events === undefined) this.held.set(index, [event])
    else if (events.length <= unreadProgressLimit) events.push(event)
    else events[unreadProgressLimit] = event
  }

  settled(index: number, events: ReadonlyArray<Event.Event>): void {
    const before = this.held.get(index)
    this.held.delete(index)
    this.results.settled(index, before === undefined ? events : [...before, ...events])
  }

  sealed(calls: ReadonlyArray<Numbered>): void {
    this.results.sealed(calls)
  }
}

/** Tells the outlet in the order of the policy. */
export const make = (policy: Policy.Policy, outlet: Outlet): Emission => {
  const isInOrder = policy.resultOrder === "request"
  if (policy.toolEvents === "grouped") return new Grouped(isInOrder ? new InOrder(outlet) : outlet)
  return isInOrder ? new Live(outlet) : outlet
}
