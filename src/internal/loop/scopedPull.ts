/**
 * Streams that are driven by pulls and have a scope of their own. It closes as soon as a pull ends, fails or is
 * interrupted, whoever reads on in the scope around it; a pull that succeeds takes no step for that.
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Pull from "effect/Pull"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Now from "../now.ts"

/** What is pulled from: it is asked for what comes next, in a step of the reader's fiber. */
export interface Source<A, E, R> {
  readonly next: () => Pull.Pull<Arr.NonEmptyReadonlyArray<A>, E, void, R>
}

/** A pull after one that failed, ended or was interrupted is the end: what it would go on with has been left. */
export const stream = <A, E, R, EX, RX>(
  start: (scope: Scope.Scope) => Effect.Effect<Source<A, E, R>, EX, RX>
): Stream.Stream<A, Pull.ExcludeDone<E> | EX, R | RX> =>
  // Suspended, since whoever reads a stream holds on to what opened it for as long as it is read.
  Stream.fromChannel(Channel.fromTransform((_upstream, around) => Effect.suspend(() => open(start, around))))

const open = <A, E, R, EX, RX>(
  start: (scope: Scope.Scope) => Effect.Effect<Source<A, E, R>, EX, RX>,
  around: Scope.Scope
) => {
  const scope = Scope.forkUnsafe(around)
  const opening = Effect.onExitPrimitive(start(scope), (exit) => left(scope, exit))
  return Effect.map(opening, (source) => pulling(source, scope))
}

/** A function of its own: what it makes is kept for as long as it is read, and keeps all that it is made beside. */
const pulling = <A, E, R>(source: Source<A, E, R>, scope: Scope.Closeable) =>
  Effect.onExitPrimitive(
    Effect.suspend(() => scope.state._tag === "Closed" ? Cause.done() : source.next()),
    (exit) => left(scope, exit)
  )

/** It is asked for where nothing interrupts. Where nothing is left to be closed it takes no step. */
const left = (scope: Scope.Closeable, exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> | undefined => {
  if (exit._tag === "Success") return undefined
  const closing = Scope.closeUnsafe(scope, Pull.doneExitFromCause(exit.cause))
  return closing === undefined || Now.isDone(closing) ? undefined : closing
}
