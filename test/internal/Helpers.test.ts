/**
 * What waits for a batch by the live clock, which are timers of the platform's. Any other clock is slept by, as all other
 * tests do.
 */
import { afterEach, assert, beforeEach, describe, it, vi } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { Helpers } from "../../src/internal/stop/helpers.ts"

const day = 24 * 60 * 60 * 1000

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date"] })
})

afterEach(() => {
  vi.useRealTimers()
})

const services = Context.empty() as Context.Context<any>

const helpers = () => new Helpers(services)

describe("waiting by the live clock", () => {
  it("does it once, when the time is up, and is no timer after that", () => {
    const waiting = helpers()
    let done = 0
    waiting.after(30, { timeUp: () => done++ })
    vi.advanceTimersByTime(29)
    assert.deepStrictEqual([done, vi.getTimerCount()], [0, 1])
    vi.advanceTimersByTime(1000)
    assert.deepStrictEqual([done, vi.getTimerCount()], [1, 0])
    assert.strictEqual(waiting.close(), Effect.void)
  })

  it("does in the order in which they began what comes at one time", () => {
    const waiting = helpers()
    const done: Array<string> = []
    waiting.after(30, { timeUp: () => done.push("first") })
    vi.advanceTimersByTime(10)
    waiting.after(20, { timeUp: () => done.push("later") })
    waiting.after(20, { timeUp: () => done.push("last") })
    vi.advanceTimersByTime(20)
    assert.deepStrictEqual(done, ["first", "later", "last"])
  })

  it("leaves no timer when it is stopped or closed, and does nothing more", () => {
    const waiting = helpers()
    let done = 0
    const stopped = waiting.after(30, { timeUp: () => done++ })
    waiting.after(30, { timeUp: () => done++ })
    waiting.after(40, { timeUp: () => done++ })
    assert.strictEqual(vi.getTimerCount(), 3)
    waiting.stop(stopped)
    waiting.stop(stopped)
    assert.strictEqual(vi.getTimerCount(), 2)
    assert.strictEqual(waiting.close(), Effect.void)
    assert.strictEqual(vi.getTimerCount(), 0)
    assert.isUndefined(waiting.after(30, { timeUp: () => done++ }))
    vi.advanceTimersByTime(1000)
    assert.strictEqual(done, 0)
  })

  it("waits for longer than a timer of the platform's can", () => {
    const waiting = helpers()
    let done = 0
    waiting.after(30 * day, { timeUp: () => done++ })
    vi.advanceTimersByTime(30 * day - 1)
    assert.strictEqual(done, 0)
    vi.advanceTimersByTime(1)
    assert.strictEqual(done, 1)
    waiting.after(30 * day, { timeUp: () => done++ })
    Effect.runSync(waiting.close())
    assert.strictEqual(vi.getTimerCount(), 0)
  })

  it("what breaks is a fiber's failure, and not the process's", () => {
    const waiting = helpers()
    waiting.after(30, {
      timeUp: () => {
        throw new Error("broken")
      }
    })
    assert.doesNotThrow(() => vi.advanceTimersByTime(30))
  })

  it("a clock of somebody else's is slept by", () => {
    const clock = Context.get(Context.empty(), Clock.Clock)
    const slept: Array<unknown> = []
    const own: Clock.Clock = Object.assign(Object.create(clock), {
      sleep: (duration: unknown) => {
        slept.push(duration)
        return Effect.never
      }
    })
    const waiting = new Helpers(Context.add(services, Clock.Clock, own))
    waiting.after(30, { timeUp: () => slept.push("done") })
    vi.advanceTimersByTime(1000)
    assert.strictEqual(slept.length, 1)
    Effect.runSync(waiting.close())
  })
})
