import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { Stop } from "../../src/command/internal/stop.ts"

const isRequested = (stop: Stop) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(stop.requested, { startImmediately: true })
    yield* Effect.yieldNow
    const has = fiber.pollUnsafe() !== undefined
    yield* Fiber.interrupt(fiber)
    return has
  })

describe("signals of the agent", () => {
  it.effect("main job: the first signal asks for a stop, the second interrupts, the third ends the process", () =>
    Effect.gen(function*() {
      const stop = new Stop()
      stop.enterSoft()
      assert.isFalse(yield* isRequested(stop))
      assert.strictEqual(stop.receive("SIGINT", 1000), "softly")
      assert.isTrue(yield* isRequested(stop))
      assert.strictEqual(stop.receive("SIGINT", 1300), "interrupt")
      assert.strictEqual(stop.receive("SIGINT", 1600), "end")
      assert.strictEqual(stop.receive("SIGINT", 1900), "end")
    }))

  it.effect("main job: repeated signals of one key press count once", () =>
    Effect.gen(function*() {
      const stop = new Stop()
      stop.enterSoft()
      const steps = [0, 3, 60, 119, 400, 401, 700].map((at) => stop.receive("SIGINT", at))
      assert.deepStrictEqual(steps, ["softly", "echo", "echo", "echo", "interrupt", "echo", "end"])
      assert.isTrue(yield* isRequested(stop))
    }))

  it.effect("main job: the first signal interrupts where no soft stop is possible", () =>
    Effect.gen(function*() {
      const stop = new Stop()
      const leave = stop.enterSoft()
      leave()
      assert.strictEqual(stop.receive("SIGINT", 0), "interrupt")
      assert.isFalse(yield* isRequested(stop))
      assert.strictEqual(stop.receive("SIGINT", 500), "end")
    }))

  it("main job: echoes do not change the effects of key presses, in any sequence of gaps", () => {
    const gaps = [3, 60, 119, 120, 121, 400]
    const times = (
      gaps: ReadonlyArray<number>
    ) => [0, ...gaps.map((_, index) => gaps.slice(0, index + 1).reduce((sum, gap) => sum + gap))]
    const longer = (all: ReadonlyArray<ReadonlyArray<number>>) =>
      all.flatMap((some) => gaps.map((gap) => [...some, gap]))
    const sequences = longer(longer(longer(longer([[]]))))
    for (const soft of [true, false]) {
      const steps = (at: ReadonlyArray<number>) => {
        const stop = new Stop()
        if (soft) stop.enterSoft()
        return at.map((time) => stop.receive("SIGINT", time))
      }
      for (const sequence of sequences) {
        // A signal belongs to the press of the signal before, if it comes within 120 ms.
        const presses = times(sequence).filter((_, index) => index === 0 || sequence[index - 1]! >= 120)
        const alone = steps(presses)
        const expected = times(sequence).map((time) => presses.includes(time) ? alone[presses.indexOf(time)] : "echo")
        assert.deepStrictEqual(steps(times(sequence)), expected, sequence.join())
      }
    }
  })

  it("main job: each sequence of signals has the effects of its key presses", () => {
    const all = ["SIGINT", "SIGTERM"].flatMap((signal) =>
      [60, 119, 120].flatMap((gap) => [true, false].map((isSoft) => ({ signal, gap, isSoft })))
    )
    const codes: Readonly<Record<string, number>> = { SIGINT: 130, SIGTERM: 143 }
    const longer = (some: ReadonlyArray<typeof all>) => some.flatMap((signals) => all.map((one) => [...signals, one]))
    for (const signals of longer(longer(longer(longer([[]]))))) {
      const stop = new Stop()
      let at = 0
      /** The effect of the next press: the first may be soft, the next one interrupts, and each behind it ends. */
      let next: "first" | "interrupt" | "end" = "first"
      let code: number | undefined
      const seen: Array<unknown> = []
      const expected: Array<unknown> = []
      for (const [index, { gap, isSoft, signal }] of signals.entries()) {
        at += gap
        const leave = isSoft ? stop.enterSoft() : () => {}
        seen.push(stop.receive(signal, at), stop.code)
        leave()
        // The silence before a press is as long as an echo may take, or longer.
        const isPress = index === 0 || gap >= 120
        if (isPress) code = codes[signal]
        const step: string = next === "first" ? isSoft ? "softly" : "interrupt" : next
        expected.push(isPress ? step : "echo", code)
        if (isPress) next = step === "softly" ? "interrupt" : "end"
      }
      assert.deepStrictEqual(seen, expected, JSON.stringify(signals))
    }
  })

  it("main job: the exit code belongs to the last signal", () => {
    const stop = new Stop()
    assert.isUndefined(stop.code)
    stop.receive("SIGINT", 0)
    assert.strictEqual(stop.code, 130)
    stop.receive("SIGTERM", 500)
    assert.strictEqual(stop.code, 143)
  })
})
