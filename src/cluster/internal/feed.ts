/**
 * Publishes a session's live events to any number of readers in any process. Readers do not block the run: a slow
 * reader misses events, and the feed reports the gap.
 */
import * as Effect from "effect/Effect"
import * as PubSub from "effect/PubSub"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import type * as Protocol from "./protocol.ts"

/** Number of events a reader may lag behind. */
const capacity = 4096

/** A numbered element to send, or `undefined` for an element its readers miss. */
interface Numbered {
  readonly number: number
  readonly fed: Protocol.Fed | undefined
}

/** Feed of one session. */
export interface Feed {
  /** Publishes an event to the current readers. */
  readonly publish: (event: Event.Event) => Effect.Effect<void>
  /** Publishes a carried-out command, with the session after it unless it failed. */
  readonly settle: (kept: Session.Kept | undefined) => Effect.Effect<void>
  /** Live events from the first pull on. */
  readonly events: Stream.Stream<Protocol.Fed>
}

/** Returns a journal's version and its unfinished run. */
const pointOf = (kept: Session.Kept | undefined): Protocol.Point => ({
  version: kept?.version ?? 0,
  ...(kept?.interrupted === undefined ? {} : { requestId: kept.interrupted.requestId })
})

/** Creates a feed without readers. */
export const make = (id: string): Effect.Effect<Feed, never, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    // A connection has a record's size limit.
    const maxBytes = yield* Journal.MaxRecordBytes
    const hub = yield* PubSub.sliding<Numbered>(capacity)
    let last = 0
    let readers = 0
    // A damaged journal has no known point: 0 makes the reader read the journal.
    const point = Session.load(id).pipe(
      Effect.retry({ while: ({ reason }) => reason === "unavailable", schedule: Schedule.spaced("250 millis") }),
      Effect.map(pointOf),
      Effect.catch(() => Effect.succeed(pointOf(undefined))),
      Effect.provideService(Session.Store, store)
    )
    const connected = Effect.map(point, (point): Protocol.Fed => ({ _tag: "Connected", ...point }))
    const missed = Effect.map(point, (point): Protocol.Fed => ({ _tag: "Missed", ...point }))
    const fedOf = (event: Event.Event): Protocol.Fed | undefined => {
      const wire = Event.toWire(event)
      return JSON.stringify(wire).length * 3 <= maxBytes ? { _tag: "Fed", event: wire } : undefined
    }
    const publish = (fed: () => Protocol.Fed | undefined) =>
      Effect.suspend(() => {
        last++
        return readers === 0 ? Effect.void : PubSub.publish(hub, { number: last, fed: fed() })
      })
    const events = Effect.gen(function*() {
      yield* Effect.acquireRelease(Effect.sync(() => readers++), () => Effect.sync(() => readers--))
      // Subscribes before reading the journal, so that an event in between appears in both, never in neither.
      const subscription = yield* PubSub.subscribe(hub)
      let next = last + 1
      const fed = Stream.fromSubscription(subscription).pipe(
        Stream.mapEffect(({ fed, number }): Effect.Effect<ReadonlyArray<Protocol.Fed>> => {
          const hasMissed = number !== next
          next = number + 1
          if (fed === undefined) return Effect.map(missed, (missed) => [missed])
          return hasMissed ? Effect.map(missed, (missed) => [missed, fed]) : Effect.succeed([fed])
        }),
        Stream.flattenIterable
      )
      return Stream.concat(Stream.fromEffect(connected), fed)
    })
    return {
      publish: (event) => publish(() => fedOf(event)),
      settle: (kept) => publish(() => kept && { _tag: "Settled", ...pointOf(kept) }),
      events: Stream.unwrap(events)
    }
  })
