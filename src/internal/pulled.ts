/**
 * Streams that are driven by pulls and have a scope of their own. It closes as soon as a pull ends, fails or is
 * interrupted, whoever reads on in the scope around it; a pull that succeeds takes no step for that.
 */
import type * as Arr from "effect/Array"
import type * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"

export const stream = <A, E, R, EX, RX>(
  start: (scope: Scope.Scope) => Effect.Effect<Pull.Pull<Arr.NonEmptyReadonlyArray<A>, E, void, R>, EX, RX>
): Stream.Stream<A, Pull.ExcludeDone<E> | EX, R | RX> =>
  Stream.fromChannel(Channel.fromTransform((_upstream, around) => {
    const scope = Scope.forkUnsafe(around)
    const close = (exit: Exit.Exit<unknown, E | EX | Cause.Done>): Effect.Effect<void> | undefined =>
      exit._tag === "Success" ? undefined : Scope.close(scope, Pull.doneExitFromCause(exit.cause))
    return Effect.map(
      Effect.onExitPrimitive(start(scope), close),
      (pull) => Effect.onExitPrimitive(pull, close)
    )
  }))
