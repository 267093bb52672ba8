/** Times that are waited for by one clock: each rings once, in order, and nothing sleeps where nobody waits. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { Simulation } from "heddle/testing"
import * as Alarm from "../../src/internal/alarm.ts"

/** Sets bells by their names on an alarm of a virtual clock, and tells what rang when, and who slept at the end. */
const play = (
  script: (alarm: Alarm.Alarm, bell: (name: string, after: number, ring?: () => void) => Alarm.Bell) => void
) =>
  Effect.gen(function*() {
    const rang: Array<readonly [name: string, at: number]> = []
    const report = yield* Simulation.run(
      Effect.gen(function*() {
        const alarm = Alarm.of(yield* Effect.context<never>())
        const clock = yield* Clock.Clock
        script(alarm, (name, after, ring) => {
          const bell: Alarm.Bell = {
            at: alarm.now + after,
            ring: () => {
              rang.push([name, clock.currentTimeMillisUnsafe()])
              ring?.()
            }
          }
          alarm.set(bell)
          return bell
        })
        yield* Effect.sleep(1000)
      })
    )
    return { rang, sleeping: report.sleeping, fibers: report.fibers }
  })

describe("alarm", () => {
  it.effect("each rings at its time, whatever order they were set in", () =>
    Effect.gen(function*() {
      const { fibers, rang, sleeping } = yield* play((_alarm, bell) => {
        bell("late", 300)
        bell("first", 100)
        bell("with the first", 100)
        bell("between", 200)
      })
      assert.deepStrictEqual(rang, [["first", 100], ["with the first", 100], ["between", 200], ["late", 300]])
      assert.deepStrictEqual([sleeping, fibers], [0, 0])
    }))

  it.effect("one that is taken back does not ring, and where it was the last nothing sleeps", () =>
    Effect.gen(function*() {
      const { rang } = yield* play((alarm, bell) => {
        alarm.unset(bell("taken back", 100))
        const earlier = bell("taken back as well", 50)
        bell("stays", 200)
        alarm.unset(earlier)
      })
      assert.deepStrictEqual(rang, [["stays", 200]])
      const idle = yield* Simulation.run(Effect.map(Effect.context<never>(), (context: Context.Context<never>) => {
        const alarm = Alarm.of(context)
        const bell = { at: alarm.now + 100, ring: () => {} }
        alarm.set(bell)
        alarm.unset(bell)
      }))
      assert.deepStrictEqual([idle.sleeping, idle.fibers], [0, 0])
    }))

  it.effect("a thousand that wait are one fiber that sleeps", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.map(Effect.context<never>(), (context: Context.Context<never>) => {
        const alarm = Alarm.of(context)
        for (let index = 0; index < 1000; index++) alarm.set({ at: alarm.now + 5000 + index, ring: () => {} })
        return Alarm.of(context) === alarm
      }))
      assert.strictEqual(report.sleeping, 1)
    }))

  it.effect("one that is due at once leaves those asleep that are not", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(Effect.map(Effect.context<never>(), (context: Context.Context<never>) => {
        const alarm = Alarm.of(context)
        const later = { at: alarm.now + 100, ring: () => {} }
        alarm.set(later)
        alarm.set({ at: alarm.now, ring: () => {} })
        alarm.unset(later)
      }))
      assert.deepStrictEqual([report.sleeping, report.fibers], [0, 0])
    }))

  it.effect("what breaks in one is nothing to the others, and a bell may set another", () =>
    Effect.gen(function*() {
      const { rang } = yield* play((_alarm, bell) => {
        bell("breaks", 100, () => {
          throw new Error("broken")
        })
        bell("sets another", 100, () => bell("another", 50))
      })
      assert.deepStrictEqual(rang, [["breaks", 100], ["sets another", 100], ["another", 150]])
    }))
})
