/** Where tools leave their events: what is left together is read together, and nothing is lost. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type { Event } from "heddle"
import { Mailbox } from "../../src/internal/run/mailbox.ts"

const event = (id: string): Event.Event => ({ _tag: "ToolProgress", id, name: "t", progress: 1 })

const ids = (events: ReadonlyArray<Event.Event>) => events.map((each) => "id" in each ? each.id : each._tag)

/** A mailbox, and what somebody has read of it who is waiting for something now. */
const waiting = () => {
  const mailbox = new Mailbox<never>()
  const read: Array<ReadonlyArray<unknown>> = []
  const take = Effect.suspend(() => mailbox.take)
  const fiber = Effect.runFork(Effect.forever(Effect.map(take, (events) => read.push(ids(events)))))
  return { mailbox, read, fiber }
}

/** Who reads is called by then. */
const turn = Effect.yieldNow

describe("Mailbox", () => {
  it.effect("what is left in one turn is read together, in a turn of the reader's own", () =>
    Effect.gen(function*() {
      const { fiber, mailbox, read } = waiting()
      mailbox.offer([event("a")])
      mailbox.offer([event("b")])
      assert.deepStrictEqual(read, [])
      yield* turn
      assert.deepStrictEqual(read, [["a", "b"]])
      yield* Fiber.interrupt(fiber)
    }))

  it.effect("whoever is called before it waits does not wait", () =>
    Effect.gen(function*() {
      const mailbox = new Mailbox<never>()
      mailbox.wake()
      assert.deepStrictEqual(yield* Effect.suspend(() => mailbox.take), [])
    }))

  it.effect("nothing is read by who has left, and it is there for who comes after", () =>
    Effect.gen(function*() {
      const { fiber, mailbox, read } = waiting()
      mailbox.offer([event("a")])
      yield* Fiber.interrupt(fiber)
      yield* turn
      assert.deepStrictEqual(read, [])
      assert.deepStrictEqual(ids(yield* Effect.suspend(() => mailbox.take)), ["a"])
    }))

  it.effect("a failure comes after what was left before it", () =>
    Effect.gen(function*() {
      const mailbox = new Mailbox<string>()
      mailbox.offer([event("a")])
      mailbox.fail(Cause.fail("broken"))
      mailbox.offer([event("b")])
      const take = Effect.suspend(() => mailbox.take)
      assert.deepStrictEqual(ids(yield* take), ["a"])
      assert.deepStrictEqual(yield* Effect.exit(take), Exit.fail("broken"))
    }))
})
