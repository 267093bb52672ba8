/** Deltas that are held for those which follow at once: one event in place of many, for pages and for logs. */
import type * as Event from "../../Event.ts"

type PublicEvent = Event.PublicEvent

/** A piece of a text, of a reasoning or of arguments, of the run or of one inside a handler. */
interface Delta {
  /** The text that the piece belongs to. Models choose ids: as JSON, no id reads as two, or as the absence of an id. */
  readonly key: string
  readonly piece: string
  /** `true` for text and reasoning, which keep their order with each other. */
  readonly isSaid: boolean
  /** Returns the event with another piece. */
  readonly whole: (piece: string) => PublicEvent
}

const deltaOf = (event: PublicEvent): Delta | undefined => {
  switch (event._tag) {
    case "TextDelta":
    case "ReasoningDelta":
      return {
        key: `${event._tag} ${JSON.stringify(event.id)}`,
        piece: event.delta,
        isSaid: true,
        whole: (delta) => ({ ...event, delta })
      }
    case "ToolCallDelta":
      return {
        key: `${event._tag} ${JSON.stringify(event.id)}`,
        piece: event.argumentsDelta,
        isSaid: false,
        whole: (argumentsDelta) => ({ ...event, argumentsDelta })
      }
    case "ToolProgress": {
      const inner = event.nested && deltaOf(event.nested)
      return inner && {
        ...inner,
        key: `${JSON.stringify(event.id)} ${inner.key}`,
        whole: (piece) => ({ ...event, nested: inner.whole(piece) })
      }
    }
    default:
      return undefined
  }
}

/** Joins pieces of one text or of one reasoning, and of the arguments of any calls. */
export class Joined {
  private readonly held = new Map<string, { readonly first: Delta; readonly pieces: Array<string> }>()
  private said: string | undefined

  get isEmpty(): boolean {
    return this.held.size === 0
  }

  /** Holds a delta and returns those that have to go before it. Returns nothing for any other event. */
  add(event: PublicEvent): ReadonlyArray<PublicEvent> | undefined {
    const delta = deltaOf(event)
    if (delta === undefined) return undefined
    const { isSaid, key, piece } = delta
    const before = isSaid && this.said !== undefined && this.said !== key ? this.flush() : []
    if (isSaid) this.said = key
    const held = this.held.get(key)
    if (held === undefined) this.held.set(key, { first: delta, pieces: [piece] })
    else held.pieces.push(piece)
    return before
  }

  /** Returns what is held, each text as one event. */
  flush(): ReadonlyArray<PublicEvent> {
    const events = Array.from(this.held.values(), ({ first, pieces }) => first.whole(pieces.join("")))
    this.held.clear()
    this.said = undefined
    return events
  }
}
