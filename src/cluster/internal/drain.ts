/**
 * The time an owner has to leave. In the first part, the drain, running calls end. In the rest, interrupted calls end
 * and the claim is released.
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Settings from "../../internal/ask/options.ts"

/** Default drain. */
export const standard: Duration.Input = "20 seconds"

/** Grace period of the calls, and the same time again to release the claim. */
const rest = Duration.times(Duration.fromInputUnsafe(Settings.defaultGrace), 2)

/** Returns the time an owner has to leave, with this drain. */
export const termination = (drain: Duration.Input): Duration.Duration =>
  Duration.sum(Duration.fromInputUnsafe(drain), rest)

/** Returns an owner's drain in milliseconds, given the time it has to leave. */
export const within = (termination: Option.Option<Duration.Input>): number =>
  Option.match(termination, {
    onNone: () => Duration.toMillis(Duration.fromInputUnsafe(standard)),
    onSome: (termination) =>
      Math.max(0, Duration.toMillis(Duration.fromInputUnsafe(termination)) - Duration.toMillis(rest))
  })
