/**
 * Ctrl-C. The first signal requests a soft stop, keeping and showing the work done so far. The second interrupts, and
 * waits for finalizers and child processes. The third ends the process. If nothing can stop softly, the first signal
 * interrupts.
 */
import * as Cause from "effect/Cause"
import type * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Runtime from "effect/Runtime"

/** Effect of a signal. An echo is a repeated signal from the same key press. */
export type Step = "echo" | "softly" | "interrupt" | "end"

/** Time window for echoes: the terminal signals every process, and `npm` forwards its signal. */
const echoMillis = 120
const codes: Readonly<Record<string, number>> = { SIGINT: 130, SIGTERM: 143 }

/** The stop of a process. */
export class Stop {
  /** Exit code of the last signal; `undefined` before any signal. */
  code: number | undefined
  private readonly latch = Latch.makeUnsafe(false)
  private readonly hurry = Latch.makeUnsafe(false)
  private softEnds = 0
  private isInterrupted = false
  private lastAt = -Infinity

  /** Ends once a soft stop is requested. */
  readonly requested: Effect.Effect<void> = this.latch.await
  /** Ends once an interruption is requested. */
  readonly interrupted: Effect.Effect<void> = this.hurry.await

  /** Receives a signal at a time in milliseconds, and returns its effect. */
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
    this.hurry.openUnsafe()
    return "interrupt"
  }

  /** Registers softly stoppable work, until the returned function is called. */
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

/** Runs the process's program, which succeeds with the exit code. */
export const runMain = <E>(program: Effect.Effect<number, E>, stop: Stop): void =>
  Runtime.makeRunMain(({ fiber, teardown }) => {
    const onSignal = (signal: string): void => {
      const step = stop.receive(signal, performance.now())
      if (step === "end") process.exit(stop.code)
      if (step === "interrupt") fiber.interruptUnsafe(fiber.id)
    }
    for (const signal of Object.keys(codes)) process.on(signal, onSignal)
    fiber.addObserver((exit) => {
      teardown(exit, (code) => {
        process.exitCode = code
        if (stop.code !== undefined || code !== 0) process.exit(code)
        for (const signal of Object.keys(codes)) process.removeListener(signal, onSignal)
      })
    })
  })(program, { teardown: teardown(stop) })
