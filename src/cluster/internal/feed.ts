/**
 * The live events of a session, for any number of readers in any process. Readers do not block the run: one that
 * falls behind misses events, and the feed tells it so.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as PubSub from "effect/PubSub"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Journals from "../../internal/session/journal.ts"
import type * as Protocol from "./protocol.ts"

/** Number of events that a reader may be behind. */
const capacity = 4096

/** An event as it is sent, or nothing for one that is too large. */
interface Numbered {
  readonly number: number
  readonly event: Event.Wire | undefined
}

/** The feed of one session. */
export interface Feed {
  /** Publishes an event to the current readers. */
  readonly publish: (event: Event.Event) => Effect.Effect<void>
  /** Live events from the first pull on. */
  readonly events: Stream.Stream<Protocol.Fed>
}

/** Creates a feed without readers. */
export const make = (id: string): Effect.Effect<Feed, never, Journals.Store> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    // A connection has the size limit of a record.
    const maxBytes = yield* Journals.MaxRecordBytes
    const hub = yield* PubSub.sliding<Numbered>(capacity)
    let last = 0
    let readers = 0
    // Without the store the version is unknown: 0 makes the reader read the whole journal.
    const connected = Effect.map(
      Effect.orElseSucceed(store.version(id), () => 0),
      (version): Protocol.Fed => ({ _tag: "Connected", version })
    )
    const sent = (event: Event.Event): Event.Wire | undefined => {
      const wire = Event.toWire(event)
      return JSON.stringify(wire).length * 3 <= maxBytes ? wire : undefined
    }
    const events = Effect.gen(function*() {
      yield* Effect.acquireRelease(Effect.sync(() => readers++), () => Effect.sync(() => readers--))
      // Subscribes before the version is read, so that an event in between is in both and never in neither.
      const subscription = yield* PubSub.subscribe(hub)
      let next = last + 1
      const fed = Stream.fromSubscription(subscription).pipe(
        Stream.mapEffect(({ event, number }): Effect.Effect<ReadonlyArray<Protocol.Fed>> => {
          const hasMissed = number !== next
          next = number + 1
          if (event === undefined) return Effect.map(connected, (connected) => [connected])
          const fed: Protocol.Fed = { _tag: "Fed", event }
          return hasMissed ? Effect.map(connected, (connected) => [connected, fed]) : Effect.succeed([fed])
        }),
        Stream.flattenIterable
      )
      return Stream.concat(Stream.fromEffect(connected), fed)
    })
    return {
      publish: (event) =>
        Effect.suspend(() => {
          last++
          return readers === 0 ? Effect.void : PubSub.publish(hub, { number: last, event: sent(event) })
        }),
      events: Stream.unwrap(events)
    }
  })
