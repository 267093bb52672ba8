/** Public events of a kept run: while it lives, and as its journal tells them. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { Event, type Journal } from "heddle"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { journalOf } from "./survivor.ts"

/** Collects the public events of runs while the runs live, each with its time. */
export const living = (options: Event.PublicOptions = {}) => {
  const events: Array<Event.PublicEvent> = []
  const calls = new Map<string, Event.PublicCall>()
  const onEvent = (event: Event.Event) =>
    Effect.map(Clock.currentTimeMillis, (at) => {
      const shown = Event.toPublic(event, { ...options, calls, at })
      if (shown !== undefined) events.push(shown)
    })
  return { events, onEvent }
}

/** The public events that the records of a session tell. */
export const toldBy = (
  records: ReadonlyArray<Journal.Record>,
  options: Event.PublicOptions = {},
  id = "s"
): ReadonlyArray<Event.PublicEvent> => {
  const telling = new JournalEvents.Telling(id, options)
  return records.flatMap((record, index) => telling.take({ record, version: index + 1 })).map(({ event }) => event)
}

/** The public events that the journal of a session tells. */
export const toldOf = (id: string, options?: Event.PublicOptions) =>
  Effect.map(journalOf(id), (records) => toldBy(records, options, id))
