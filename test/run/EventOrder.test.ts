/** Where calls leave their events: what is left together is read together, and nothing is lost. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import { type Event, Policy } from "heddle"
import { EventOrder } from "../../src/internal/run/eventOrder.ts"

const event = (id: string): Event.Event => ({ _tag: "ToolProgress", id, name: "t", progress: 1 })

const ids = (events: ReadonlyArray<Event.Event>) => events.map((each) => "id" in each ? each.id : each._tag)

/** The events of a batch, and what has been read of them by a fiber that waits for more. */
const waiting = () => {
  const order = new EventOrder<never>(Policy.standard)
  const read: Array<ReadonlyArray<unknown>> = []
  const take = Effect.suspend(() => order.take)
  const fiber = Effect.runFork(Effect.forever(Effect.map(take, (events) => read.push(ids(events)))))
  return { order, read, fiber }
}

/** The reader has been resumed by then. */
const turn = Effect.yieldNow

describe("the event order of a batch", () => {
  it.effect("a reader reads events offered in one turn together, in its next turn", () =>
    Effect.gen(function*() {
      const { fiber, order, read } = waiting()
      order.started(0, event("a"))
      order.started(0, event("b"))
      assert.deepStrictEqual(read, [])
      yield* turn
      assert.deepStrictEqual(read, [["a", "b"]])
      yield* Fiber.interrupt(fiber)
    }))

  it.effect("a reader woken before it waits does not wait", () =>
    Effect.gen(function*() {
      const order = new EventOrder<never>(Policy.standard)
      order.wake()
      assert.deepStrictEqual(yield* Effect.suspend(() => order.take), [])
    }))

  it.effect("an interrupted reader reads nothing, and the next reader reads the events", () =>
    Effect.gen(function*() {
      const { fiber, order, read } = waiting()
      order.started(0, event("a"))
      yield* Fiber.interrupt(fiber)
      yield* turn
      assert.deepStrictEqual(read, [])
      assert.deepStrictEqual(ids(yield* Effect.suspend(() => order.take)), ["a"])
    }))

  it.effect("a reader reads a failure after the events offered before the failure", () =>
    Effect.gen(function*() {
      const order = new EventOrder<string>(Policy.standard)
      order.started(0, event("a"))
      order.fail(Cause.fail("broken"))
      order.started(0, event("b"))
      const take = Effect.suspend(() => order.take)
      assert.deepStrictEqual(ids(yield* take), ["a"])
      assert.deepStrictEqual(yield* Effect.exit(take), Exit.fail("broken"))
    }))
})
