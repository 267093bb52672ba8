/**
 * In which order a batch shows what happens. Starts and progress are shown at once; results as they come, or held back
 * until those of all earlier calls are out. Grouped, a call's start and progress are held back as well, until its result
 * is shown. Progress that nobody has read is bounded: beyond a few the latest takes the place of the one before it.
 */
import type * as Event from "../Event.ts"
import type * as Policy from "../Policy.ts"

export interface Emission {
  readonly started: (index: number, event: Event.Event) => void
  readonly progress: (index: number, event: Event.Event) => void
  readonly settled: (index: number, events: ReadonlyArray<Event.Event>) => void
  /** These are the positions of all calls; there will be no others. */
  readonly sealed: (indexes: ReadonlyArray<number>) => void
}

/** Where events go. */
export interface Outlet {
  readonly offer: (events: ReadonlyArray<Event.Event>) => void
  readonly offerProgress: (index: number, event: Event.Event) => void
}

type Offer = Outlet["offer"]

export const unreadProgressLimit = 16

/**
 * Passes groups on in call order. A position at which no call has come up yet holds back what is behind it until it is
 * certain that none will.
 */
const inOrder = (offer: Offer): Pick<Emission, "settled" | "sealed"> => {
  const held = new Map<number, ReadonlyArray<Event.Event>>()
  let next = 0
  let indexes: ReadonlyArray<number> | undefined
  const flush = (): void => {
    const due: Array<Event.Event> = []
    for (let index = at(next); index !== undefined; index = at(next)) {
      const group = held.get(index)
      if (group === undefined) break
      held.delete(index)
      next++
      for (const event of group) due.push(event)
    }
    if (due.length > 0) offer(due)
  }
  const at = (position: number): number | undefined => indexes === undefined ? position : indexes[position]
  return {
    settled: (index, events) => {
      held.set(index, events)
      flush()
    },
    sealed: (all) => {
      const sorted = all.toSorted((left, right) => left - right)
      const shown = next
      indexes = sorted
      next = sorted.filter((index) => index < shown).length
      flush()
    }
  }
}

/** Holds back what a call shows before its result. */
const grouped = ({ settled, sealed }: Pick<Emission, "settled" | "sealed">): Emission => {
  const held = new Map<number, Array<Event.Event>>()
  const hold = (index: number, event: Event.Event): void => {
    const events = held.get(index)
    if (events === undefined) held.set(index, [event])
    else if (events.length <= unreadProgressLimit) events.push(event)
    else events[unreadProgressLimit] = event
  }
  return {
    started: hold,
    progress: hold,
    settled: (index, events) => {
      const before = held.get(index)
      held.delete(index)
      settled(index, before === undefined ? events : [...before, ...events])
    },
    sealed
  }
}

const asTheyCome = (offer: Offer): Pick<Emission, "settled" | "sealed"> => ({
  settled: (_index, events) => offer(events),
  sealed: () => {}
})

export const make = (policy: Policy.Policy, outlet: Outlet): Emission => {
  const offer: Offer = (events) => outlet.offer(events)
  const results = policy.resultOrder === "request" ? inOrder(offer) : asTheyCome(offer)
  if (policy.toolEvents === "grouped") return grouped(results)
  return {
    started: (_index, event) => outlet.offer([event]),
    progress: (index, event) => outlet.offerProgress(index, event),
    ...results
  }
}
