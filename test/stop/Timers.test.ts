/** Timers that end together, by the live clock and by another one. */
import { afterEach, assert, beforeEach, describe, it, vi } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { Timers } from "../../src/internal/stop/timers.ts"

const day = 24 * 60 * 60 * 1000

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] })
})

afterEach(() => {
  vi.useRealTimers()
})

const services = Context.empty() as Context.Context<any>

const timers = () => new Timers(services)

describe("Timers by the live clock", () => {
  it("a wait runs its action once when the time is up, and removes its timer", () => {
    const waiting = timers()
    let done = 0
    waiting.after(30, () => done++)
    vi.advanceTimersByTime(29)
    assert.deepStrictEqual([done, vi.getTimerCount()], [0, 1])
    vi.advanceTimersByTime(1000)
    assert.deepStrictEqual([done, vi.getTimerCount()], [1, 0])
    Effect.runSync(waiting.close())
  })

  it("actions due at one time run in the order in which their waits began", () => {
    const waiting = timers()
    const done: Array<string> = []
    waiting.after(30, () => done.push("first"))
    vi.advanceTimersByTime(10)
    waiting.after(20, () => done.push("later"))
    waiting.after(20, () => done.push("last"))
    vi.advanceTimersByTime(20)
    assert.deepStrictEqual(done, ["first", "later", "last"])
  })

  it("a stopped wait and closed Timers leave no platform timer and run no action", () => {
    const waiting = timers()
    let done = 0
    const stopped = waiting.after(30, () => done++)
    waiting.after(30, () => done++)
    waiting.after(40, () => done++)
    assert.strictEqual(vi.getTimerCount(), 3)
    stopped.stop()
    stopped.stop()
    assert.strictEqual(vi.getTimerCount(), 2)
    Effect.runSync(waiting.close())
    assert.strictEqual(vi.getTimerCount(), 0)
    waiting.after(30, () => done++)
    vi.advanceTimersByTime(1000)
    assert.strictEqual(done, 0)
  })

  it("a wait may last longer than the longest platform timer", () => {
    const waiting = timers()
    let done = 0
    waiting.after(30 * day, () => done++)
    vi.advanceTimersByTime(30 * day - 1)
    assert.strictEqual(done, 0)
    vi.advanceTimersByTime(1)
    assert.strictEqual(done, 1)
    waiting.after(30 * day, () => done++)
    Effect.runSync(waiting.close())
    assert.strictEqual(vi.getTimerCount(), 0)
  })

  it("an action that throws does not throw into the platform's timer", () => {
    const waiting = timers()
    waiting.after(30, () => {
      throw new Error("broken")
    })
    assert.doesNotThrow(() => vi.advanceTimersByTime(30))
  })

  it("a wait by another clock sleeps on that clock", () => {
    const clock = Context.get(Context.empty(), Clock.Clock)
    const slept: Array<unknown> = []
    const own: Clock.Clock = Object.assign(Object.create(clock), {
      sleep: (duration: unknown) => {
        slept.push(duration)
        return Effect.never
      }
    })
    const waiting = new Timers(Context.add(services, Clock.Clock, own))
    waiting.after(30, () => slept.push("done"))
    vi.advanceTimersByTime(1000)
    assert.strictEqual(slept.length, 1)
    Effect.runSync(waiting.close())
  })
})
