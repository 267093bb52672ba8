/**
 * Polls journals for all readers in this process: however many wait for a session, the store is asked for its version
 * once per interval, and for new entries only if the version has changed.
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"

/** The part of a journal after a version. */
export interface Polled {
  /** Journal version. */
  readonly version: number
  /** Version after which the entries begin. */
  readonly after: number
  readonly entries: ReadonlyArray<Journal.Entry>
}

/** Returns a session's journal after a version. The journal may be shorter by then, after a removal. */
const look = (key: string, after: number): Effect.Effect<Polled, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const version = yield* store.version(key)
    const entries = version > after ? yield* Stream.runCollect(store.read(key, after)) : []
    return { version, after, entries }
  })

type Look = Deferred.Deferred<Polled | undefined, Journal.StoreError>

/** Running polls, by session and interval. One reader polls for all readers waiting at the time. */
export class Polls {
  private readonly underWay = new Map<string, Look>()

  /** Waits for the next journal poll. The polling reader decides after which version. */
  next(
    key: string,
    interval: Duration.Input,
    after: number
  ): Effect.Effect<Polled, Journal.StoreError, Session.Store> {
    return Effect.suspend(() => {
      const name = `${String(interval)} ${key}`
      const known = this.underWay.get(name)
      if (known !== undefined) {
        // A reader that left has not polled, so another reader polls.
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
