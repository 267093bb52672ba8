/**
 * Streams with time as an event: deltas joined for some milliseconds, comments after a quiet time. While time passes,
 * the pull waiting for the next element is kept, so nothing is lost or reordered.
 */
import * as Arr from "effect/Array"
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Pull from "effect/Pull"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import { Joined } from "./joined.ts"

/** Callbacks for elements and for time. */
export interface Pacer<A, B> {
  /** Returns an element's output. */
  readonly push: (item: A, now: number) => ReadonlyArray<B>
  /**
   * Returns the time to call `tick` unless an element comes first, in milliseconds since 1970, or `undefined` for
   * never.
   */
  readonly due: () => number | undefined
  /** Returns the output for the elapsed time. */
  readonly tick: (now: number) => ReadonlyArray<B>
  /** Returns the final output. Unless `isWhole`, the stream failed, and fails again after this output. */
  readonly end: (isWhole: boolean) => ReadonlyArray<B>
}

/** Drives a pacer with a stream's elements. */
const paced = <A, B, E, R>(
  stream: Stream.Stream<A, E, R>,
  start: (now: number) => { readonly pacer: Pacer<A, B>; readonly first: ReadonlyArray<B> }
): Stream.Stream<B, E, R> =>
  Stream.unwrap(Effect.gen(function*() {
    const pull = yield* Stream.toPull(stream)
    const scope = yield* Effect.scope
    const services = yield* Effect.context<R>()
    const { first, pacer } = start(yield* Clock.currentTimeMillis)
    let waiting: Fiber.Fiber<Arr.NonEmptyReadonlyArray<A>, E | Cause.Done> | undefined
    let ended: Exit.Exit<never, E | Cause.Done> | undefined
    let out: ReadonlyArray<B> = first

    /** Waits for the next elements, or until the pacer is due. */
    const next = Effect.gen(function*() {
      waiting ??= yield* Effect.forkIn(Effect.provideContext(pull, services), scope, { startImmediately: true })
      const arrived = waiting.pollUnsafe()
      if (arrived !== undefined) return arrived
      const due = pacer.due()
      if (due === undefined) return yield* Fiber.await(waiting)
      const left = Math.max(0, due - (yield* Clock.currentTimeMillis))
      const exit = yield* Effect.timeoutOption(Fiber.await(waiting), left)
      return exit._tag === "Some" ? exit.value : undefined
    })

    const turn: Effect.Effect<void> = Effect.gen(function*() {
      const exit = yield* next
      const now = yield* Clock.currentTimeMillis
      if (exit === undefined) out = pacer.tick(now)
      else {
        waiting = undefined
        if (Exit.isSuccess(exit)) out = exit.value.flatMap((item) => pacer.push(item, now))
        else {
          ended = Exit.failCause(exit.cause)
          out = pacer.end(Pull.isDoneCause(exit.cause))
        }
      }
    })

    const pulled: Pull.Pull<Arr.NonEmptyReadonlyArray<B>, E> = Effect.gen(function*() {
      for (;;) {
        const given = out
        out = []
        if (Arr.isReadonlyArrayNonEmpty(given)) return given
        if (ended !== undefined) return yield* ended
        yield* turn
      }
    })
    return Stream.fromPull(Effect.succeed(pulled))
  }))

/** Encodes events in a protocol's form. */
export interface Encoder<Out> {
  /** Returns an event's output. */
  readonly push: (event: Event.PublicEvent) => ReadonlyArray<Out>
  /** Closes everything. Returns nothing after the run's end. */
  readonly end: () => ReadonlyArray<Out>
}

/** Encodes events, joining deltas for `joinMillis`. Any other event first sends the joined deltas. */
export const encoded = <Out, E, R>(
  events: Stream.Stream<Event.PublicEvent, E, R>,
  make: () => Encoder<Out>,
  joinMillis: number
): Stream.Stream<Out, E, R> =>
  paced(events, () => {
    const encoder = make()
    const joined = new Joined()
    let due: number | undefined
    const flush = (): ReadonlyArray<Out> => {
      due = undefined
      return joined.flush().flatMap(encoder.push)
    }
    return {
      first: [],
      pacer: {
        push: (event, now) => {
          // Elements arriving without a pause leave no time for a tick. An element arriving exactly at the due time is
          // still joined.
          const late = due !== undefined && now > due ? flush() : []
          const before = joinMillis > 0 ? joined.add(event) : undefined
          if (before === undefined) return [...late, ...flush(), ...encoder.push(event)]
          due ??= now + joinMillis
          return [...late, ...before.flatMap(encoder.push)]
        },
        due: () => due,
        tick: flush,
        end: () => [...flush(), ...encoder.end()]
      }
    }
  })

const quietMillis = 15_000

/**
 * Writes JSON values as server-sent events, with a comment at the beginning and after every 15 quiet seconds, and
 * `last` at the end unless the stream failed.
 */
export const sse = <A, E, R>(values: Stream.Stream<A, E, R>, last: string): Stream.Stream<string, E, R> =>
  paced(values, (begun) => {
    let quietSince = begun
    return {
      first: [": heddle\n\n"],
      pacer: {
        push: (value: A, now) => {
          quietSince = now
          return [`data: ${JSON.stringify(value)}\n\n`]
        },
        due: () => quietSince + quietMillis,
        tick: (now) => {
          quietSince = now
          return [": quiet\n\n"]
        },
        end: (isWhole) => isWhole && last !== "" ? [last] : []
      }
    }
  })
