/**
 * Functions of the caller's that are `async` where an Effect or a value is wanted. The types forbid it, and programs
 * without types do it. The promise is observed, so that a rejection ends no process, and the error says how to mend it.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { type CallNamed, type ToolError, toolError } from "./toolError.ts"

/** What is not called here stays as lazy as it is: a promise of another kind may begin its work with its `then`. */
const isNative = (value: object): value is Promise<unknown> =>
  value instanceof Promise || Object.prototype.toString.call(value) === "[object Promise]"

const isPromise = (value: unknown): boolean => {
  try {
    if (typeof value !== "object" || value === null || !("then" in value)) return false
    if (isNative(value)) Promise.prototype.then.call(value, ignore, ignore)
    return typeof value.then === "function"
  } catch {
    return false
  }
}

const ignore = (): void => {}

/** Says what a function of the caller's gave in the place of what it is to give, and how to mend it. */
export class Misuse extends TypeError {}

/** What is wrong with what `subject` gave, if it is a promise. Its rejection is handled then. */
export const promised = (subject: string, value: unknown, wanted = "return an Effect: call.promise(…)") =>
  isPromise(value) ? new Misuse(`${subject} returned a Promise; ${wanted}`) : undefined

/** As `promised`, for what was to be the outcome of a call. */
export const promisedOutcome = (
  subject: string,
  value: unknown,
  call: CallNamed
): ToolError | undefined => {
  const cause = promised(subject, value)
  return cause === undefined ? undefined : toolError("invalid_return", call, { detail: cause.message, cause: value })
}

/** The effect that `evaluate` returns, evaluated at once. What it throws is a defect. */
export const attempt = <A, E, R>(evaluate: () => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> => {
  try {
    return evaluate()
  } catch (defect) {
    return Exit.die(defect)
  }
}

/** What a function of the caller's returned, a value or an effect, as an effect. A promise is a defect that names `subject`. */
export const toEffect = <A, E, R>(
  given: A | Effect.Effect<A, E, R>,
  subject: string,
  wanted?: string
): Effect.Effect<A, E, R> => {
  if (Effect.isEffect(given)) return given as Effect.Effect<A, E, R>
  const mistake = promised(subject, given, wanted)
  return mistake === undefined ? Exit.succeed(given as A) : Exit.die(mistake)
}
