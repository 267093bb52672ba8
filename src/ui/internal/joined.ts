/** Joins a delta with those following at once: one event instead of many, for pages and logs. */
import type * as Event from "../../Event.ts"
import { isSaid, keyOf, pieceOf, withPiece } from "../../internal/fold/deltas.ts"

type PublicEvent = Event.PublicEvent

/** Joins text deltas, reasoning deltas, and each call's argument deltas. */
export class Joined {
  private readonly held = new Map<string, PublicEvent>()
  private said: string | undefined

  get isEmpty(): boolean {
    return this.held.size === 0
  }

  /** Holds a delta and returns the deltas to send first. Returns `undefined` for any other event. */
  add(event: PublicEvent): ReadonlyArray<PublicEvent> | undefined {
    const key = keyOf(event)
    if (key === undefined) return undefined
    const isText = isSaid(event)
    const before = isText && this.said !== undefined && this.said !== key ? this.flush() : []
    if (isText) this.said = key
    const first = this.held.get(key)
    this.held.set(key, first === undefined ? event : withPiece(first, pieceOf(first) + pieceOf(event)))
    return before
  }

  /** Returns the held deltas, joined to one event per text. */
  flush(): ReadonlyArray<PublicEvent> {
    const events = Array.from(this.held.values())
    this.held.clear()
    this.said = undefined
    return events
  }
}
