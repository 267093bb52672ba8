/**
 * The pause that a busy server asks for, kept for everybody: while one run waits because it was told to, others that are
 * about to ask the same server for the same model wait with it, instead of running into the same refusal. Nobody waits
 * more than once before a request, so that a pause that is renewed again and again holds no one back for good.
 */
import type * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"

/** The longest that those who waited together are drawn apart by. */
export const jitterMillis = 250

export class Cooldowns {
  /** By clock, since a time means nothing on another one; by lane, when it may be entered again. */
  private readonly ends = new WeakMap<Clock.Clock, Map<string, number>>()

  private endsOf(clock: Clock.Clock): Map<string, number> {
    const known = this.ends.get(clock)
    if (known !== undefined) return known
    const made = new Map<string, number>()
    this.ends.set(clock, made)
    return made
  }

  /** Closes a lane for a time, unless it is closed for longer. */
  note(lane: string, pause: Duration.Duration): Effect.Effect<void> {
    return Effect.clockWith((clock) =>
      Effect.sync(() => {
        const ends = this.endsOf(clock)
        const end = clock.currentTimeMillisUnsafe() + Duration.toMillis(pause)
        ends.set(lane, Math.max(end, ends.get(lane) ?? 0))
      })
    )
  }

  /** Waits until a lane is open. */
  wait(lane: string): Effect.Effect<void> {
    return Effect.clockWith((clock) => {
      const ends = this.endsOf(clock)
      const rest = (ends.get(lane) ?? 0) - clock.currentTimeMillisUnsafe()
      if (rest > 0) return Effect.flatMap(Random.nextBetween(0, jitterMillis), (jitter) => Effect.sleep(rest + jitter))
      ends.delete(lane)
      return Effect.void
    })
  }
}

/** The pauses of this process, shared by every adapter in it. */
export const Cooldown: Context.Reference<Cooldowns> = Context.Reference<Cooldowns>("heddle/adapters/Cooldown", {
  defaultValue: () => new Cooldowns()
})
