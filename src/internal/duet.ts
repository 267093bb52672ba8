/**
 * A reply that is still being read while tools of it run. Tool events are passed on as they come, also while the model
 * is silent; the model is read only when somebody asks, and never more than one read ahead.
 */
import type * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Adapter from "../Adapter.ts"
import type * as Event from "../Event.ts"
import type { Batch } from "./batch.ts"

type Events = ReadonlyArray<Event.Event>

/** Reads on in a reply. */
export type Model<E> = Effect.Effect<Events, Adapter.AdapterError | E | Cause.Done>

export class Duet<E> {
  readonly batch: Batch<E>
  private readonly services: Context.Context<never>
  private fiber: Fiber.Fiber<Events, Adapter.AdapterError | Cause.Done> | undefined
  private read: Exit.Exit<Events, Adapter.AdapterError | Cause.Done> | undefined

  constructor(batch: Batch<E>, services: Context.Context<never>) {
    this.batch = batch
    this.services = services
  }

  /** The next events of either. It ends, or fails, as the reply does; what the tools left by then comes before. */
  reading(model: Model<never>): Model<E> {
    const next: Model<E> = Effect.suspend(() => {
      this.listen(model)
      if (!this.batch.isEmpty) return this.batch.take
      const { read } = this
      if (read === undefined) {
        return Effect.flatMap(this.batch.take, (events) => events.length === 0 ? next : Effect.succeed(events))
      }
      this.read = undefined
      return read
    })
    return next
  }

  /** Stops reading. */
  readonly close: Effect.Effect<void> = Effect.suspend(() =>
    this.fiber === undefined ? Effect.void : Fiber.interrupt(this.fiber)
  )

  private listen(model: Model<never>): void {
    if (this.fiber !== undefined || this.read !== undefined) return
    const fiber = Effect.runForkWith(this.services)(model)
    this.read = fiber.pollUnsafe()
    if (this.read !== undefined) return
    this.fiber = fiber
    fiber.addObserver((exit) => {
      this.fiber = undefined
      this.read = exit
      this.batch.wake()
    })
  }
}
