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
}

/** Where events go. */
export interface Outlet {
  readonly offer: (events: ReadonlyArray<Event.Event>) => void
  readonly offerProgress: (index: number, event: Event.Event) => void
}

type Offer = Outlet["offer"]

export const unreadProgressLimit = 16

/** Passes groups on in call order. */
const inOrder = (count: number, offer: Offer): Emission["settled"] => {
  const held: Array<ReadonlyArray<Event.Event> | undefined> = Array.from({ length: count }, () => undefined)
  let next = 0
  return (index, events) => {
    held[index] = events
    const due: Array<Event.Event> = []
    for (let group = held[next]; group !== undefined; group = held[++next]) {
      held[next] = undefined
      for (const event of group) due.push(event)
    }
    if (due.length > 0) offer(due)
  }
}

/** Holds back what a call shows before its result. */
const grouped = (settled: Emission["settled"]): Emission => {
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
    }
  }
}

export const make = (policy: Policy.Policy, count: number, outlet: Outlet): Emission => {
  const settled = policy.resultOrder === "request"
    ? inOrder(count, (events) => outlet.offer(events))
    : (_index: number, events: ReadonlyArray<Event.Event>) => outlet.offer(events)
  if (policy.toolEvents === "grouped") return grouped(settled)
  return {
    started: (_index, event) => outlet.offer([event]),
    progress: (index, event) => outlet.offerProgress(index, event),
    settled
  }
}
