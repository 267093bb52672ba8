/**
 * The live events of a session, for any number of readers on any process. None of them holds up the run: a reader that falls
 * behind loses what it did not read, and learns that from the feed.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as PubSub from "effect/PubSub"
import * as Stream from "effect/Stream"
import * as Event from "../../Event.ts"
import * as Stores from "../../internal/session/store.ts"
import type * as Protocol from "./protocol.ts"

/** How many events a reader may be behind. */
const capacity = 4096

/** An event as it is sent, or nothing for one that is too large to be. */
interface Numbered {
  readonly number: number
  readonly event: Event.Wire | undefined
}

/** The feed of one session. */
export interface Feed {
  /** Shows an event to the readers that there are. */
  readonly publish: (event: Event.Event) => Effect.Effect<void>
  /** What happens from the first pull on. */
  readonly events: Stream.Stream<Protocol.Fed>
}

/** A feed without readers. */
export const make = (id: string): Effect.Effect<Feed, never, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    // What the journal takes in one piece, a connection does as well.
    const maxBytes = yield* Stores.MaxRecordBytes
    const hub = yield* PubSub.sliding<Numbered>(capacity)
    let last = 0
    let readers = 0
    // A store that is away says nothing of the version: 0 has its reader read everything that there is.
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
      // Before the version is read: what happens in between is in both, and nothing is in neither.
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
