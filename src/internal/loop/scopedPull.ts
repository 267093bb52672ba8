/**
 * Pull-driven streams with their own scope. The scope closes as soon as a pull ends, fails or is interrupted, even if
 * the surrounding scope stays open: a reader leaving a pull leaves the run. A successful pull takes no extra step.
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

/** Function called for each pull, with the reading fiber's services. */
export type Next<A, E, R> = (context: Context.Context<R>) => Pull.Pull<Arr.NonEmptyReadonlyArray<A>, E, void, R>

/**
 * Returns the stream pulling from the function given by `start`, called for each pull in a step of the reading fiber
 * and with its services. A pull after a failed, ended or interrupted pull ends the stream: its scope is closed.
 */
export const stream = <A, E, R, EX, RX>(
  start: (scope: Scope.Scope, context: Context.Context<RX>) => Effect.Effect<Next<A, E, R>, EX, RX>
): Stream.Stream<A, Pull.ExcludeDone<E> | EX, R | RX> =>
  Stream.fromChannel(Channel.fromTransform((_upstream, around) =>
    Effect.contextWith((context: Context.Context<RX>) => {
      const scope = Scope.forkUnsafe(around)
      const leave = (exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> | undefined =>
        exit._tag === "Success" ? undefined : Scope.close(scope, Pull.doneExitFromCause(exit.cause))
      return Effect.map(Effect.onExitPrimitive(start(scope, context), leave), (next) =>
        Effect.onExitPrimitive(
          Effect.contextWith((context: Context.Context<R>) =>
            scope.state._tag === "Closed" ? Cause.done() : next(context)
          ),
          leave
        ))
    })
  ))

/** Opens a stream in a scope, and returns its pull function. */
export const open = <A, E, R>(
  { channel }: Stream.Stream<A, E, R>,
  scope: Scope.Scope
): Effect.Effect<Next<A, E, R>, never, R> =>
  Effect.map(Channel.toPullScoped(channel, scope), (pull): Next<A, E, R> => () => pull)
