/** Tells which text deltas may be joined into one event, and joins them, for pages, logs and late readers. */
import type * as Event from "../../Event.ts"

type AnyEvent = Event.Event | Event.PublicEvent

/** Returns the event of a run inside the handler from a progress event, if any. */
const nestedIn = (event: AnyEvent): AnyEvent | undefined =>
  "nested" in event ? event.nested as AnyEvent | undefined : undefined

/**
 * Returns a key for the text a delta belongs to, in the run or in a run inside a handler. Models choose ids, so ids are
 * written as JSON: no id can read as two, or as a missing id. Returns `undefined` for other events.
 */
export const keyOf = (event: AnyEvent): string | undefined => {
  switch (event._tag) {
    case "TextDelta":
    case "ReasoningDelta":
    case "ToolCallDelta":
      return `${event._tag} ${JSON.stringify(event.id)}`
    case "ToolProgress": {
      const nested = nestedIn(event)
      const inner = nested && keyOf(nested)
      return inner && `${JSON.stringify(event.id)} ${inner}`
    }
    default:
      return undefined
  }
}

/** Returns the text a delta adds. */
export const pieceOf = (event: AnyEvent): string => {
  const nested = nestedIn(event)
  if (nested !== undefined) return pieceOf(nested)
  return "delta" in event ? event.delta : "argumentsDelta" in event ? event.argumentsDelta : ""
}

/** Returns a delta with different text. */
export const withPiece = <E extends AnyEvent>(event: E, piece: string): E => {
  const nested = nestedIn(event)
  if (nested !== undefined) return { ...event, nested: withPiece(nested, piece) }
  return "delta" in event ? { ...event, delta: piece } : { ...event, argumentsDelta: piece }
}

/** Returns `true` for a text or reasoning delta. These keep their order among each other. */
export const isSaid = (event: AnyEvent): boolean => {
  const nested = nestedIn(event)
  return nested === undefined ? "delta" in event : isSaid(nested)
}
