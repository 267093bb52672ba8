/**
 * Lines that are typed while the agent works. The terminal is read key by key, since the view draws what has been typed:
 * its own echo would stand between the lines that are redrawn.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Terminal from "effect/Terminal"

/** The line so far, and whether it has been entered. */
interface Typed {
  readonly draft: string
  readonly isEntered: boolean
}

const longest = 2000

/** The line after a key. Keys without a letter, such as arrows, change nothing. */
export const press = (draft: string, { input, key }: Terminal.UserInput): Typed => {
  if (key.name === "return" || key.name === "enter") return { draft, isEntered: true }
  if (key.name === "backspace") return { draft: [...draft].slice(0, -1).join(""), isEntered: false }
  if (key.ctrl && key.name === "u") return { draft: "", isEntered: false }
  const text = Option.getOrElse(input, () => "")
  const isText = !key.ctrl && !key.meta && /^\P{Cc}+$/u.test(text)
  return { draft: isText ? (draft + text).slice(0, longest) : draft, isEntered: false }
}

/**
 * Reads lines until it is interrupted, from a line that may have been begun before. While keys are read the terminal sends no signal for Ctrl-C: `onStop` is called, and
 * the next one is a signal again.
 */
export const read = <E, R, E2, R2>(
  { begun = "", onDraft, onLine, onStop }: {
    readonly begun?: string
    readonly onDraft: (draft: string) => Effect.Effect<void, E, R>
    readonly onLine: (line: string) => Effect.Effect<void, E2, R2>
    readonly onStop: Effect.Effect<void>
  }
) =>
  Effect.gen(function*() {
    const terminal = yield* Terminal.Terminal
    const keys = yield* terminal.readInput
    let draft = begun
    while (true) {
      const pressed = yield* Queue.take(keys)
      if (pressed.key.ctrl && pressed.key.name === "c") return yield* onStop
      const typed = press(draft, pressed)
      const line = typed.draft.trim()
      draft = typed.isEntered ? "" : typed.draft
      yield* onDraft(draft)
      if (typed.isEntered && line !== "") yield* onLine(line)
    }
  }).pipe(Effect.scoped, Effect.catchIf(Cause.isDone, () => Effect.void))
