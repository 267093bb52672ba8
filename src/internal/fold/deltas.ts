/** Deltas of one text as one event: for pages, for logs, and for readers that are late. */
import type * as Event from "../../Event.ts"

type AnyEvent = Event.Event | Event.PublicEvent

/** Returns the event of a run inside a handler that an event of progress carries, if it does. */
const nestedIn = (event: AnyEvent): AnyEvent | undefined =>
  "nested" in event ? event.nested as AnyEvent | undefined : undefined

/**
 * Returns a name for the text that a delta belongs to: one of the run, or of a run inside a handler. Models choose ids:
 * as JSON, no id reads as two, or as the absence of an id. Returns nothing for any other event.
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

/** Returns the piece of text that a delta adds. */
export const pieceOf = (event: AnyEvent): string => {
  const nested = nestedIn(event)
  if (nested !== undefined) return pieceOf(nested)
  return "delta" in event ? event.delta : "argumentsDelta" in event ? event.argumentsDelta : ""
}

/** Returns a delta with another piece of text. */
export const withPiece = <E extends AnyEvent>(event: E, piece: string): E => {
  const nested = nestedIn(event)
  if (nested !== undefined) return { ...event, nested: withPiece(nested, piece) }
  return "delta" in event ? { ...event, delta: piece } : { ...event, argumentsDelta: piece }
}

/** Tells whether a delta is one of text or reasoning, which keep their order with each other. */
export const isSaid = (event: AnyEvent): boolean => {
  const nested = nestedIn(event)
  return nested === undefined ? "delta" in event : isSaid(nested)
}
