/**
 * When the model is asked again for a reply that broke: on the caller's schedule, of which each reply has the whole to
 * itself, and not before the time that the provider asked for.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import type * as Adapter from "../../Adapter.ts"

export type Input = Schedule.Schedule<unknown, Adapter.AdapterError>

/** Whether the same request may get a whole reply the next time. */
const mayPass = ({ isRetryable, reason }: Adapter.AdapterError): boolean =>
  isRetryable || reason === "malformed_response"

type Next = Effect.Success<ReturnType<typeof Schedule.toStep<unknown, Adapter.AdapterError, never, never>>>

export class Retries {
  private readonly schedule: Input
  private next: Next | undefined

  constructor(schedule: Input) {
    this.schedule = schedule
  }

  /** In how many milliseconds the model is asked again, or `undefined` if the reply stays broken. */
  delay(error: Adapter.AdapterError): Effect.Effect<number | undefined> {
    if (!mayPass(error)) return Effect.succeed(undefined)
    return Effect.gen({ self: this }, function*() {
      this.next ??= yield* Schedule.toStep(this.schedule)
      const now = yield* Clock.currentTimeMillis
      return yield* Effect.map(
        this.next(now, error),
        ([, delay]) => Math.max(Duration.toMillis(delay), error.retryAfterMillis ?? 0)
      )
    }).pipe(Pull.catchDone(() => Effect.succeed(undefined)))
  }
}
