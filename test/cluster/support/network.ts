/** Processes that share sessions as those of a cluster do, over a connection that a test has in its hands. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Peers from "../../../src/durable/internal/peers.ts"

const patience = "1 second"

const copied = (value: unknown) => JSON.parse(JSON.stringify(value))

/** A process that serves sessions, until it leaves. */
interface Member {
  readonly sessions: Peers.Sessions
  readonly left: Deferred.Deferred<void>
}

/** Processes whose sessions the named owner takes and reads, by functions that a test can change. */
export const network = (ownerOf: (key: string) => string) => {
  const members = new Map<string, Member>()
  let joined = Deferred.makeUnsafe<void>()
  const between = {
    take: (key: string, failed: string | undefined) =>
      Effect.suspend(() => members.get(ownerOf(key))?.sessions.take(key, failed) ?? Effect.succeed(false)),
    /** Breaks off where the owner leaves, and waits for the next one. */
    read: (key: string, request: unknown): Stream.Stream<any> =>
      Stream.suspend(() => {
        const member = members.get(ownerOf(key))
        if (member === undefined) {
          return Stream.unwrap(Effect.as(Deferred.await(joined), Stream.suspend(() => between.read(key, request))))
        }
        let isOver = false
        const read = Stream.onEnd(member.sessions.read(key, copied(request)), Effect.sync(() => (isOver = true)))
        return Stream.concat(
          Stream.interruptWhen(read, Deferred.await(member.left)),
          Stream.suspend(() => isOver ? Stream.empty : between.read(key, request))
        )
      })
  }
  const peers = (name: string): Peers.Peers => {
    const isHere = (key: string) => name === ownerOf(key)
    return {
      isHere,
      take: (key, failed) =>
        Effect.suspend(() => isHere(key) ? Effect.succeed(false) : between.take(key, failed)).pipe(
          Effect.timeout(patience),
          Effect.catchCause(() => Effect.succeed(false))
        ),
      read: (key, request) => Stream.map(between.read(key, request), copied),
      serve: (sessions) =>
        Effect.asVoid(Effect.acquireRelease(
          Effect.sync(() => {
            const member = { sessions, left: Deferred.makeUnsafe<void>() }
            members.set(name, member)
            Deferred.doneUnsafe(joined, Effect.void)
            joined = Deferred.makeUnsafe()
            return member
          }),
          ({ left }) =>
            Effect.suspend(() => {
              members.delete(name)
              return Deferred.succeed(left, undefined)
            })
        ))
    }
  }
  return { between, peers }
}
