/**
 * Streams that are driven by pulls and have a scope of their own. The scope closes as soon as a pull ends, fails or is
 * interrupted, even if the scope around it stays open: a reader that leaves a pull leaves the run. A pull that succeeds
 * takes no step for this.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"

/**
 * Returns the stream that pulls from the function that `start` gives, which is called for each pull, in a step of the
 * fiber that reads and with its services. A pull after one that failed, ended or was interrupted ends the stream: its
 * scope is closed.
 */
export const stream = <A, E, R, EX, RX>(
  start: (
    scope: Scope.Scope
  ) => Effect.Effect<(context: Context.Context<R>) => Pull.Pull<Arr.NonEmptyReadonlyArray<A>, E, void, R>, EX, RX>
): Stream.Stream<A, Pull.ExcludeDone<E> | EX, R | RX> =>
  Stream.fromChannel(Channel.fromTransform((_upstream, around) =>
    Effect.suspend(() => {
      const scope = Scope.forkUnsafe(around)
      const leave = (exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> | undefined =>
        exit._tag === "Success" ? undefined : Scope.close(scope, Pull.doneExitFromCause(exit.cause))
      return Effect.map(Effect.onExitPrimitive(start(scope), leave), (next) =>
        Effect.onExitPrimitive(
          Effect.contextWith((context: Context.Context<R>) =>
            scope.state._tag === "Closed" ? Cause.done() : next(context)
          ),
          leave
        ))
    })
  ))
