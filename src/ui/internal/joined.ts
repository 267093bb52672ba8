/** Deltas that are held for those which follow at once: one event in place of many, for pages and for logs. */
import type * as Event from "../../Event.ts"

type PublicEvent = Event.PublicEvent

/**
 * Returns a name for the text that a delta belongs to: one of the run, or of a run inside a handler. Models choose ids:
 * as JSON, no id reads as two, or as the absence of an id.
 */
const keyOf = (event: PublicEvent): string | undefined => {
  switch (event._tag) {
    case "TextDelta":
    case "ReasoningDelta":
    case "ToolCallDelta":
      return `${event._tag} ${JSON.stringify(event.id)}`
    case "ToolProgress": {
      const inner = event.nested && keyOf(event.nested)
      return inner && `${JSON.stringify(event.id)} ${inner}`
    }
    default:
      return undefined
  }
}

/** Returns a delta with the piece of a later one of the same text. */
const joined = (first: PublicEvent, next: PublicEvent): PublicEvent => {
  if ("delta" in first && "delta" in next) return { ...first, delta: first.delta + next.delta }
  if ("argumentsDelta" in first && "argumentsDelta" in next) {
    return { ...first, argumentsDelta: first.argumentsDelta + next.argumentsDelta }
  }
  return "nested" in first && "nested" in next ? { ...first, nested: joined(first.nested, next.nested) } : first
}

/** Tells whether a delta is one of text or reasoning, which keep their order with each other. */
const isSaid = (event: PublicEvent): boolean => "nested" in event ? isSaid(event.nested) : "delta" in event

/** Joins text pieces, reasoning pieces, and the argument pieces of each call. */
export class Joined {
  private readonly held = new Map<string, PublicEvent>()
  private said: string | undefined

  get isEmpty(): boolean {
    return this.held.size === 0
  }

  /** Holds a delta and returns those that have to go before it. Returns nothing for any other event. */
  add(event: PublicEvent): ReadonlyArray<PublicEvent> | undefined {
    const key = keyOf(event)
    if (key === undefined) return undefined
    const isText = isSaid(event)
    const before = isText && this.said !== undefined && this.said !== key ? this.flush() : []
    if (isText) this.said = key
    const first = this.held.get(key)
    this.held.set(key, first === undefined ? event : joined(first, event))
    return before
  }

  /** Returns what is held, each text as one event. */
  flush(): ReadonlyArray<PublicEvent> {
    const events = Array.from(this.held.values())
    this.held.clear()
    this.said = undefined
    return events
  }
}
