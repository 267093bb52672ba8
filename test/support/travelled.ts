/** Events in wire form, as they arrive somewhere else, and whether they fold to the result of their run there. */
import { Collector, Event, type Thread } from "heddle"

/** Any value as the plain data that it travels as. */
export const plain = (value: unknown): unknown =>
  travelled({ _tag: "ToolProgress", id: "", name: "", progress: value })["progress"]

/** An event as it arrives. */
export const travelled = (event: Event.Event): Event.Wire =>
  JSON.parse(JSON.stringify(Event.toWire(event))) as Event.Wire

/** Reading puts members into the order of their schema, which says nothing. */
const text = (value: unknown): string => JSON.stringify(sorted(plain(value)))

/** The fields of a result in which its events, sent elsewhere, fold to something else. */
export const differing = (
  input: Thread.Input,
  events: ReadonlyArray<Event.Event>,
  result: Event.ChatResult
): ReadonlyArray<string> => {
  const folded = Collector.fromWire(input, events.map(travelled))
  const fields = new Set([...Object.keys(folded), ...Object.keys(result)]) as Set<keyof Event.ChatResult>
  const differ = Array.from(fields).filter((field) => text(folded[field]) !== text(result[field]))
  return [
    ...differ.map((field) => `${field}: ${text(folded[field])} instead of ${text(result[field])}`),
    ...events.flatMap((event) => unread(event))
  ]
}

/** An event that is not read as what was written, or is not written again as it was. */
const unread = (event: Event.Event): ReadonlyArray<string> => {
  const wire = travelled(event)
  const again = JSON.stringify(Event.toWire(Event.fromWire(wire)))
  return JSON.stringify(sorted(JSON.parse(again))) === JSON.stringify(sorted(wire))
    ? []
    : [`${event._tag} is read as ${again} instead of ${JSON.stringify(wire)}`]
}

const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).toSorted(([left], [right]) => left < right ? -1 : 1).map((
      [key, inner]
    ) => [key, sorted(inner)])
  )
}
