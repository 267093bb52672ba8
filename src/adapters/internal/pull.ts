/**
 * A stream to be pulled by one reader. What `Stream.toPull` gives guards every pull against a second one at the same
 * time, which takes longer than many a pull does.
 */
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import type * as Pull from "effect/Pull"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"

/** The stream ends with the scope. What fails before there is a pull fails the first one. */
export const ofOneReader = <A, E>(
  stream: Stream.Stream<A, E>,
  scope: Scope.Scope
): Effect.Effect<Pull.Pull<readonly [A, ...Array<A>], E>> =>
  Channel.toPullScoped(Stream.toChannel(stream), scope).pipe(
    Effect.catchCause((cause) => Effect.succeed(Effect.failCause(cause)))
  )
