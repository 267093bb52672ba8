/**
 * Effects that may have ended already. An `Exit` is an effect: with the eager functions of Effect what follows one is done
 * at once, and costs no step of a fiber. They are called within a fiber's step, where what is thrown is a defect.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as ToolOptions from "./declare/toolOptions.ts"

export const attempt = ToolOptions.attempt

const success = Object.getPrototypeOf(Exit.void)

/**
 * Whether an effect is an exit with its value. One that is not seen for what it is takes the way around, and so does what
 * somebody gave in the place of an effect.
 */
export const isDone = <A, E, R>(effect: Effect.Effect<A, E, R>): effect is Exit.Success<A> =>
  typeof effect === "object" && effect !== null && Object.getPrototypeOf(effect) === success

/** As `Exit.isExit`, which goes a long way round. */
export const isExit = <A, E, R>(effect: Effect.Effect<A, E, R>): effect is Exit.Exit<A, E> =>
  isDone(effect) || Exit.isExit(effect)

/** As `Effect.flatMapEager`, which makes an object of its arguments until it is compiled. */
export const flatMap = <A, E, R, B, E2, R2>(
  first: Effect.Effect<A, E, R>,
  next: (value: A) => Effect.Effect<B, E2, R2>
): Effect.Effect<B, E | E2, R | R2> => isDone(first) ? next(first.value) : Effect.flatMapEager(first, next)

/** As `Effect.mapEager`. */
export const map = <A, E, R, B>(first: Effect.Effect<A, E, R>, next: (value: A) => B): Effect.Effect<B, E, R> =>
  isDone(first) ? Exit.succeed(next(first.value)) : Effect.mapEager(first, next)

/** Goes on after what has nothing to give. Where there was nothing to do, this is a call and no more. */
export const andThen = <A, E, R, E2, R2>(
  first: Effect.Effect<void, E, R>,
  next: () => Effect.Effect<A, E2, R2>
): Effect.Effect<A, E | E2, R | R2> => first === Effect.void ? next() : flatMap(first, next)

/** One after another, where nothing of the second is done before it is asked for. */
export const both = (first: Effect.Effect<void>, second: Effect.Effect<void>): Effect.Effect<void> =>
  first === Effect.void ? second : Effect.andThen(first, second)

/** The services of the fiber in whose step this is called. */
export const services = <R>(): Context.Context<R> => {
  const fiber = Fiber.getCurrent()
  if (fiber === undefined) throw new Error("a run goes on outside of the fiber that reads it")
  return fiber.context as Context.Context<any>
}

/** As `Effect.isEffect`, which goes a long way round. */
export const isEffect = (value: unknown): value is Effect.Effect<unknown, unknown, unknown> =>
  ((typeof value === "object" && value !== null) || typeof value === "function") && Effect.TypeId in value

/** What may be given as a value or as an effect that comes to it. */
export const asEffect = <A, E, R>(given: A | Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  isEffect(given) ? given as Effect.Effect<A, E, R> : Exit.succeed(given)

export const toEffect = ToolOptions.toEffect
