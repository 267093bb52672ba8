/**
 * Ctrl-C. The first signal asks what runs to end softly, so that what there is by then is kept and shown; the next one
 * interrupts, and if that takes too long, or at a third one, the process ends where it stands. Outside of what can end
 * softly the first signal interrupts. Whatever way it goes, the exit code is that of the signal.
 */
import * as Cause from "effect/Cause"
import type * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Runtime from "effect/Runtime"

/** What a signal leads to. An echo is the same press of the keys, delivered once more. */
export type Step = "echo" | "softly" | "interrupt" | "end"

/** `npm start` forwards the signal that the terminal sends to every process. No second key press is as fast. */
const echoMillis = 120
/** How long an interruption may take. */
const patienceMillis = 1000

const codes: Readonly<Record<string, number>> = { SIGINT: 130, SIGTERM: 143 }

/** How far stopping has come. */
export class Stop {
  /** The exit code of the last signal; `undefined` while there was none. */
  code: number | undefined
  private readonly latch = Latch.makeUnsafe(false)
  private softEnds = 0
  private isInterrupted = false
  private lastAt = -Infinity

  /** Ends once it has been asked to stop softly. */
  readonly requested: Effect.Effect<void> = this.latch.await

  /** Takes a signal, at a time in milliseconds, and says what it leads to. */
  receive(signal: string, at: number): Step {
    const isEcho = at - this.lastAt < echoMillis
    this.lastAt = at
    if (isEcho && this.code !== undefined) return "echo"
    const isFirst = this.code === undefined
    this.code = codes[signal] ?? 1
    if (isFirst && this.softEnds > 0) {
      this.latch.openUnsafe()
      return "softly"
    }
    if (this.isInterrupted) return "end"
    this.isInterrupted = true
    return "interrupt"
  }

  /** From now on, until the returned function is called, there is something that can end softly. */
  enterSoft(): () => void {
    this.softEnds++
    return () => {
      this.softEnds--
    }
  }
}

const teardown = (stop: Stop): Runtime.Teardown => (exit, onExit) => {
  if (Exit.isSuccess(exit)) return onExit(typeof exit.value === "number" ? exit.value : 0)
  onExit(Cause.hasInterruptsOnly(exit.cause) ? stop.code ?? 130 : 1)
}

/** Runs the program of this process; what it succeeds with is the exit code. */
export const runMain = <E>(program: Effect.Effect<number, E>, stop: Stop): void =>
  Runtime.makeRunMain(({ fiber, teardown }) => {
    const onSignal = (signal: string): void => {
      const step = stop.receive(signal, performance.now())
      if (step === "end") process.exit(stop.code)
      if (step !== "interrupt") return
      fiber.interruptUnsafe(fiber.id)
      setTimeout(() => process.exit(stop.code), patienceMillis)
    }
    for (const signal of Object.keys(codes)) process.on(signal, onSignal)
    fiber.addObserver((exit) => {
      teardown(exit, (code) => {
        if (stop.code !== undefined || code !== 0) process.exit(code)
        for (const signal of Object.keys(codes)) process.removeListener(signal, onSignal)
      })
    })
  })(program, { teardown: teardown(stop) })
