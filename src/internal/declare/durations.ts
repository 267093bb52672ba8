/** Durations as options give them: what `Duration` takes, and the word "infinity" for no limit. */
import * as Duration from "effect/Duration"

/** How long: milliseconds, a text such as "30 seconds", a `Duration`, or "infinity". */
export type Input = Duration.Input | "infinity"

/** The duration, if it is one. */
export const read = (input: unknown): Duration.Duration | undefined => {
  if (input === "infinity") return Duration.infinity
  if (Number.isNaN(input)) return undefined
  const duration = Duration.fromInput(input as Duration.Input)
  return duration._tag === "Some" ? duration.value : undefined
}
