/**
 * The live events of a session, for any number of readers in any process. Readers do not block the run: one that
 * falls behind misses events, and the feed tells it so.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as PubSub from "effect/PubSub"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import type * as Protocol from "./protocol.ts"

/** Number of events that a reader may be behind. */
const capacity = 4096

/** An element as it is sent, or nothing for one that its readers miss. */
interface Numbered {
  readonly number: number
  readonly fed: Protocol.Fed | undefined
}

/** The feed of one session. */
export interface Feed {
  /** Publishes an event to the current readers. */
  readonly publish: (event: Event.Event) => Effect.Effect<void>
  /** Publishes that a command has been carried out, with the session after it unless it failed. */
  readonly settle: (kept: Session.Kept | undefined) => Effect.Effect<void>
  /** Live events from the first pull on. */
  readonly events: Stream.Stream<Protocol.Fed>
}

/** Returns the version of a journal, and the run in it that has not ended. */
const pointOf = (kept: Session.Kept | undefined): Protocol.Point => ({
  version: kept?.version ?? 0,
  ...(kept?.interrupted === undefined ? {} : { requestId: kept.interrupted.requestId })
})

/** Creates a feed without readers. */
export const make = (id: string): Effect.Effect<Feed, never, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    // A connection has the size limit of a record.
    const maxBytes = yield* Journal.MaxRecordBytes
    const hub = yield* PubSub.sliding<Numbered>(capacity)
    let last = 0
    let readers = 0
    // Nothing can be said of a damaged journal: 0 makes the reader read it.
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
      // Subscribes before the journal is read, so that an event in between is in both and never in neither.
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
