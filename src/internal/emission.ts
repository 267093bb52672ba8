/**
 * In which order a batch shows what happens. Starts and progress are shown at once; results as they come, or held back
 * until those of all earlier calls are out. Grouped, a call's start is held back as well, until its result is shown.
 */
import type * as Event from "../Event.ts"
import type * as Policy from "../Policy.ts"

export interface Emission {
  readonly started: (index: number, event: Event.Event) => void
  readonly settled: (index: number, events: ReadonlyArray<Event.Event>) => void
}

type Offer = (events: ReadonlyArray<Event.Event>) => void

/** Passes groups on in call order. */
const inOrder = (count: number, offer: Offer): Emission["settled"] => {
  const held: Array<ReadonlyArray<Event.Event> | undefined> = Array.from({ length: count }, () => undefined)
  let next = 0
  return (index, events) => {
    held[index] = events
    for (let group = held[next]; group !== undefined; group = held[++next]) {
      held[next] = undefined
      offer(group)
    }
  }
}

export const make = (policy: Policy.Policy, count: number, offer: Offer): Emission => {
  const settled = policy.resultOrder === "request"
    ? inOrder(count, offer)
    : (_index: number, events: ReadonlyArray<Event.Event>) => offer(events)
  if (policy.toolEvents === "live") return { started: (_index, event) => offer([event]), settled }
  const starts = new Map<number, Event.Event>()
  return {
    started: (index, event) => {
      starts.set(index, event)
    },
    settled: (index, events) => {
      const start = starts.get(index)
      starts.delete(index)
      settled(index, start === undefined ? events : [start, ...events])
    }
  }
}
