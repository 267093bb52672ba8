/**
 * The time that an owner has to leave: calls under way end in the first part of it, the drain. In the rest, interrupted
 * calls end and the claim is given back.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Settings from "../../internal/ask/options.ts"

/** Default of the drain. */
export const standard: Duration.Input = "20 seconds"

/** The grace period of the calls, and as long to give the claim back. */
const rest = Duration.times(Duration.fromInputUnsafe(Settings.defaultGrace), 2)

/** Returns the time that an owner has to leave, with this drain. */
export const termination = (drain: Duration.Input): Duration.Duration =>
  Duration.sum(Duration.fromInputUnsafe(drain), rest)

/** Returns the drain of an owner that has this time to leave, in milliseconds. */
export const within = (termination: Option.Option<Duration.Input>): number =>
  Option.match(termination, {
    onNone: () => Duration.toMillis(Duration.fromInputUnsafe(standard)),
    onSome: (termination) =>
      Math.max(0, Duration.toMillis(Duration.fromInputUnsafe(termination)) - Duration.toMillis(rest))
  })
