/**
 * Runs in which something of the caller's besides its tools takes its time: a hook, the store, the adapter, the effect
 * that cancels. What is slow and when the model's connection was open is on record.
 */
import * as Channel from "effect/Channel"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Adapter, type Chat, Session } from "heddle"
import type { Recorder } from "heddle/testing"
import type { Driving } from "./dimensions/driving.ts"
import { paceOf, type Place, places, type Slow } from "./dimensions/slowness.ts"

/** When something happened, and how many entries the log of handlers had then. */
export interface Mark {
  readonly at: number
  readonly index: number
}

type Options = Partial<Chat.Options<any, any, any>>

/** What one run has that is slow, and what is known of its connections. */
export class Slowness {
  /** When its connections were opened, and when their finalizers began. */
  readonly opened: Array<Mark> = []
  readonly closing: Array<Mark> = []
  /** When the run was stopped, where that is not a matter of the clock. */
  stopped: Mark | undefined
  /** What is slow and alive, by its name. */
  readonly alive: Array<string> = []
  /** What it took its time for, if that has a name. */
  during: string | undefined
  private readonly slow: Slow
  private readonly recorder: Recorder.Recorder
  private readonly settled = Latch.makeUnsafe(true)
  private times = 0

  constructor(slow: Slow, recorder: Recorder.Recorder) {
    this.slow = slow
    this.recorder = recorder
  }

  /** Waits until nothing that is slow is alive. */
  get awaited(): Effect.Effect<void> {
    return this.settled.await
  }

  private get mark(): Effect.Effect<Mark> {
    return Effect.zipWith(Clock.currentTimeMillis, this.recorder.log, (at, { length }) => ({ at, index: length }))
  }

  /** Its reader wants no more. */
  get left(): Effect.Effect<void> {
    return Effect.map(this.mark, (mark) => void (this.stopped ??= mark))
  }

  private noted(marks: Array<Mark>): Effect.Effect<void> {
    return Effect.map(this.mark, (mark) => void marks.push(mark))
  }

  /** Takes its time, if this is what is slow and its turn has come. */
  private wait(place: Place, during?: string): Effect.Effect<void> {
    return Effect.suspend(() => {
      if (place !== this.slow.place || this.times++ !== this.slow.after) return Effect.void
      this.during = during
      const { kind, name } = places[place]
      const what = `${kind} ${name}`
      return Effect.acquireUseRelease(
        Effect.sync(() => {
          this.alive.push(what)
          this.settled.closeUnsafe()
        }),
        () => paceOf(this.slow),
        () =>
          Effect.sync(() => {
            this.alive.splice(this.alive.indexOf(what), 1)
            if (this.alive.length === 0) this.settled.openUnsafe()
          })
      )
    })
  }

  /** The options of a run, with its slow hooks. What asks it to stop is on record. */
  options(options: Options, { cancelAt }: Driving): Options {
    const { place } = this.slow
    const { haltWhen } = options
    return {
      ...options,
      ...(place === "onEvent" ? { onEvent: ({ _tag }) => this.wait(place, _tag) } : {}),
      ...(place === "haltWhen"
        ? {
          haltWhen: (step) => Effect.as(this.wait(place), typeof haltWhen === "function" && haltWhen(step) === true)
        }
        : {}),
      ...(place === "cancel" ? { cancel: Effect.andThen(this.wait(place), Effect.never) } : {}),
      ...(place !== "cancel" && cancelAt !== null ? { cancel: Effect.andThen(Effect.sleep(cancelAt), this.left) } : {})
    }
  }

  /** The adapter around a run, with its connections on record. */
  adapter({ stream }: Adapter.Adapter["Service"]): Adapter.Adapter["Service"] {
    const read = (request: Adapter.Request) =>
      Stream.toChannel(Stream.mapArrayEffect(stream(request), (events) => Effect.as(this.wait("pull"), events)))
    return {
      stream: (request) =>
        Stream.unwrap(Effect.as(
          this.wait("open"),
          Stream.fromChannel(Channel.acquireUseRelease(
            this.noted(this.opened),
            () => read(request),
            () => Effect.andThen(this.noted(this.closing), this.wait("close"))
          ))
        ))
    }
  }

  /** A store in memory, which is slow for runs only: what opens a session is no part of one. */
  get store(): Layer.Layer<Session.Store> {
    return Layer.effect(
      Session.Store,
      Session.Store.useSync((store) => ({
        ...store,
        append: (...[id, expected, records, options]: Parameters<typeof store.append>) =>
          Effect.andThen(
            records.some(({ _tag }) => _tag === "Opened") ? Effect.void : this.wait("append", records.at(-1)?._tag),
            store.append(id, expected, records, options)
          )
      }))
    ).pipe(Layer.provide(Session.Store.layerMemory))
  }
}
