/**
 * The feed of a session by itself: readers that fall behind, and a store that is away.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Journal, Session } from "heddle"
import * as Feeds from "../../src/cluster/internal/feed.ts"
import { ledger } from "../durable/support/ledger.ts"

ledger()

/** Number of events that a reader may be behind. */
const capacity = 4096

const delta = (index: number): Event.Event => ({ _tag: "TextDelta", id: null, delta: `${index}` })

/** The kinds of the elements that a reader gets which is this many events behind when it begins to read them. */
const behind = (count: number) =>
  Effect.gen(function*() {
    const feed = yield* Feeds.make("ann")
    const pull = yield* Stream.toPull(feed.events)
    const first = yield* pull
    for (let index = 0; index < count; index++) yield* feed.publish(delta(index))
    const rest: Array<string> = []
    while (rest.filter((tag) => tag === "Fed").length < Math.min(count, capacity)) {
      rest.push(...(yield* pull).map(({ _tag }) => _tag))
    }
    return [...first.map(({ _tag }) => _tag), ...rest]
  })

describe("a feed", () => {
  it.effect("a feed reports no gap to a reader that has missed nothing", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* behind(capacity), ["Connected", ...Array.from({ length: capacity }, () => "Fed")])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a feed reports a gap of exactly one event", () =>
    Effect.gen(function*() {
      const [first, second, ...rest] = yield* behind(capacity + 1)
      assert.deepStrictEqual([first, second], ["Connected", "Missed"])
      assert.deepStrictEqual(rest, Array.from({ length: capacity }, () => "Fed"))
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a feed writes no event once its readers have left, however they left", () =>
    Effect.gen(function*() {
      const feed = yield* Feeds.make("ann")
      let written = 0
      const publish = feed.publish({
        _tag: "TextDelta",
        id: null,
        get delta() {
          written++
          return "x"
        }
      })
      const left: { readonly [how: string]: Effect.Effect<unknown, unknown> } = {
        "for want of more": Stream.runDrain(Stream.take(feed.events, 1)),
        "by a failure": Effect.exit(Stream.runForEach(feed.events, () => Effect.fail("no"))),
        "by an interruption": Effect.gen(function*() {
          const reader = yield* Effect.forkChild(Stream.runDrain(feed.events), { startImmediately: true })
          yield* publish
          assert.isAbove(written, 0, "a reader is there")
          yield* Fiber.interrupt(reader)
        })
      }
      for (const [how, leaving] of Object.entries(left)) {
        yield* leaving
        written = 0
        yield* publish
        assert.strictEqual(written, 0, how)
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("N-06: a feed delays its start until the store is available", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      let isAway = true
      const away = new Journal.StoreError({ reason: "unavailable", operation: "read", id: "ann" })
      const flaky = Context.make(Session.Store, {
        ...store,
        read: (id: string, after?: number) => isAway ? Stream.fail(away) : store.read(id, after)
      })
      const feed = yield* Effect.provideContext(Feeds.make("ann"), flaky)
      const reader = yield* feed.events.pipe(
        Stream.take(1),
        Stream.runCollect,
        Effect.forkChild({ startImmediately: true })
      )
      yield* TestClock.adjust("10 seconds")
      assert.isUndefined(reader.pollUnsafe())
      isAway = false
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(yield* Fiber.join(reader), [{ _tag: "Connected", version: 0 }])
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
