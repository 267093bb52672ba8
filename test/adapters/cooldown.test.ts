/**
 * The pause that a busy server asks for, as runs in parallel share it: real requests over HTTP, by a clock that the test
 * holds.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Random from "effect/Random"
import * as Redacted from "effect/Redacted"
import * as TestClock from "effect/testing/TestClock"
import type { Adapter } from "heddle"
import type { OpenAiChat } from "heddle/adapters"
import * as Http from "../../src/adapters/internal/http.ts"
import * as WaitingClock from "../support/clock.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"

const answered: Server.Answer = { pieces: [Chunks.body(Chunks.said("ok"), Chunks.finish("stop"))] }

const busy = (headers: Readonly<Record<string, string>>, status = 429): Server.Answer => ({
  status,
  headers: { "content-type": "application/json", ...headers },
  pieces: ["{}"]
})

const withoutJitter = Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0, nextIntUnsafe: () => 0 })

/** Whether a wait is one for the server's sake, and not a limit of the adapter's own. */
const isPause = (millis: number): boolean => ![1000, 10_000, 300_000].includes(millis)

/**
 * Lets a first run wait for as long as the test goes on, and then starts a second one: the pauses that the second one
 * made, and how often the server was asked in all.
 */
const second = (
  first: Server.Answer,
  options: { readonly first?: Partial<OpenAiChat.Options>; readonly second?: Partial<OpenAiChat.Options> } = {},
  request: Adapter.Request = Chunks.request
) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => index === 0 ? first : answered)
    const isWaiting = yield* Deferred.make<void>()
    let isSecond = false
    const clock = WaitingClock.make((millis) => {
      if (!isSecond && isPause(millis)) Deferred.doneUnsafe(isWaiting, Effect.void)
      return isSecond && isPause(millis)
    })
    const run = (own: Partial<OpenAiChat.Options> = {}, asked = Chunks.request) =>
      Chunks.outcome(Chunks.stream(server.url, own, asked)).pipe(WaitingClock.by(clock), withoutJitter)
    yield* Effect.forkChild(Effect.andThen(run(options.first), Deferred.succeed(isWaiting, undefined)))
    yield* Deferred.await(isWaiting)
    isSecond = true
    const known = clock.waits.length
    const { error } = yield* run(options.second, request)
    assert.isUndefined(error)
    return { pauses: clock.waits.slice(known).filter(isPause), requests: server.requests.length }
  }))

describe("a pause requested by a server", () => {
  it.effect("R-122: other runs on the same server wait for a requested pause", () =>
    Effect.gen(function*() {
      const { pauses, requests } = yield* second(busy({ "retry-after": "7" }))
      assert.deepStrictEqual([pauses, requests], [[7000], 2])
      const overloaded = yield* second(busy({ "retry-after": "7" }, 529))
      assert.deepStrictEqual(overloaded.pauses, [7000])
    }))

  it.effect("R-122: a requested pause lasts no longer than the longest allowed delay", () =>
    Effect.gen(function*() {
      const { pauses } = yield* second(busy({ "retry-after": "3600" }))
      assert.deepStrictEqual(pauses, [30_000])
    }))

  it.effect("R-122: a busy server that names no pause gets the retry delay as pause", () =>
    Effect.gen(function*() {
      const { pauses } = yield* second(busy({}), { first: { retryDelay: "4 seconds" } })
      assert.deepStrictEqual(pauses, [4000])
    }))

  it.effect("R-122: a requested pause does not delay other models, other keys and adapters without retries", () =>
    Effect.gen(function*() {
      const asked = busy({ "retry-after": "7" })
      assert.deepStrictEqual((yield* second(asked, {}, { ...Chunks.request, model: "other" })).pauses, [])
      const apiKey = Redacted.make("sk-1")
      assert.deepStrictEqual((yield* second(asked, { first: { apiKey } })).pauses, [])
      assert.deepStrictEqual((yield* second(asked, { first: { apiKey }, second: { apiKey } })).pauses, [7000])
      assert.deepStrictEqual((yield* second(asked, { second: { retries: 0 } })).pauses, [])
    }))

  it.effect("R-122: a run without retries keeps a requested pause for other runs", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual((yield* second(busy({ "retry-after": "7" }), { first: { retries: 0 } })).pauses, [7000])
    }))

  it.effect("R-122: a server error, a refused request and a used-up quota request no pause", () =>
    Effect.gen(function*() {
      const first = { retries: 0 }
      assert.deepStrictEqual((yield* second(busy({ "retry-after": "7" }, 400), { first })).pauses, [])
      assert.deepStrictEqual((yield* second(busy({}, 500), { first })).pauses, [])
      const quota = { ...busy({ "retry-after": "7" }), pieces: ["{\"error\":{\"code\":\"insufficient_quota\"}}"] }
      assert.deepStrictEqual((yield* second(quota, { first })).pauses, [])
    }))
})

describe("a cooldown lane", () => {
  const lanes = Effect.sync(() => new Http.Cooldowns())

  it.effect("R-122: a lane opens when its longest pause has passed", () =>
    Effect.gen(function*() {
      const cooldowns = yield* lanes
      yield* cooldowns.note("a", Duration.seconds(10))
      yield* cooldowns.note("a", Duration.seconds(5))
      const waiting = yield* Effect.forkChild(withoutJitter(cooldowns.wait("a")), { startImmediately: true })
      yield* cooldowns.wait("b")
      yield* TestClock.adjust("9999 millis")
      assert.isUndefined(waiting.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(waiting)
      yield* cooldowns.wait("a")
    }))

  it.effect("R-122: a waiting request leaves a lane with a random extra delay of at most a quarter of a second", () =>
    Effect.gen(function*() {
      const cooldowns = yield* lanes
      yield* cooldowns.note("a", Duration.seconds(1))
      const late = Effect.provideService(Random.Random, { nextDoubleUnsafe: () => 0.999, nextIntUnsafe: () => 0 })
      const waiting = yield* Effect.forkChild(late(cooldowns.wait("a")), { startImmediately: true })
      yield* TestClock.adjust("1200 millis")
      assert.isUndefined(waiting.pollUnsafe())
      yield* TestClock.adjust("50 millis")
      yield* Fiber.join(waiting)
    }))

  it.effect("R-122: a lane holds a request only once, even if another pause begins meanwhile", () =>
    Effect.gen(function*() {
      const cooldowns = yield* lanes
      yield* cooldowns.note("a", Duration.seconds(1))
      const waiting = yield* Effect.forkChild(withoutJitter(cooldowns.wait("a")), { startImmediately: true })
      yield* cooldowns.note("a", Duration.minutes(1))
      yield* TestClock.adjust("1 seconds")
      yield* Fiber.join(waiting)
    }))
})
