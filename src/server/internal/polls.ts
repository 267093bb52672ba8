/**
 * Looks at journals for all readers of this process: however many wait for a session, the store is asked for its
 * version once in an interval, and for what is new if that has changed.
 *
 * @since 0.1.0
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"

/** The part of a journal behind a version. */
export interface Polled {
  /** The version of the journal. */
  readonly version: number
  /** The version behind which the entries begin. */
  readonly after: number
  readonly entries: ReadonlyArray<Journal.Entry>
}

/** Returns the journal of a session behind a version. The journal may be shorter by then: it was removed. */
const look = (key: string, after: number): Effect.Effect<Polled, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const version = yield* store.version(key)
    const entries = version > after ? yield* Stream.runCollect(store.read(key, after)) : []
    return { version, after, entries }
  })

type Look = Deferred.Deferred<Polled | undefined, Journal.StoreError>

/** The looks that are under way, by sessions and intervals. A reader looks for the others that wait beside it. */
export class Polls {
  private readonly underWay = new Map<string, Look>()

  /** Waits for the next look at a journal. The reader that looks decides behind which version. */
  next(
    key: string,
    interval: Duration.Input,
    after: number
  ): Effect.Effect<Polled, Journal.StoreError, Session.Store> {
    return Effect.suspend(() => {
      const name = `${String(interval)} ${key}`
      const known = this.underWay.get(name)
      if (known !== undefined) {
        // A reader that has left has not looked, and another one does.
        return Effect.flatMap(
          Deferred.await(known),
          (polled) => polled === undefined ? this.next(key, interval, after) : Effect.succeed(polled)
        )
      }
      return Effect.acquireUseRelease(
        Effect.sync(() => {
          const look: Look = Deferred.makeUnsafe()
          this.underWay.set(name, look)
          return look
        }),
        () => Effect.andThen(Effect.sleep(interval), look(key, after)),
        (waiting, exit) =>
          Effect.sync(() => {
            this.underWay.delete(name)
            Deferred.doneUnsafe(waiting, Exit.hasInterrupts(exit) ? Exit.succeed(undefined) : exit)
          })
      )
    })
  }
}
