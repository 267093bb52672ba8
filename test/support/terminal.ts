/** A terminal that is played by keys. */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import * as Queue from "effect/Queue"
import * as Stdio from "effect/Stdio"
import * as Terminal from "effect/Terminal"

/** The keys of a text. `>` is the arrow down, `^` is Ctrl-U, and the end of a line the return key. */
const keysOf = (text: string): ReadonlyArray<Terminal.UserInput> =>
  Array.from(text, (letter) => {
    const name = { "\n": "return", ">": "down", "^": "u" }[letter] ?? letter
    return {
      input: letter === ">" ? Option.none<string>() : Option.some(letter),
      key: { name, ctrl: letter === "^", meta: false, shift: false }
    }
  })

/** A terminal in which these keys are pressed, one after another. Each question calls `asked`. */
export const typing = (text: string, asked = () => {}) =>
  Layer.mergeAll(
    Layer.effect(
      Terminal.Terminal,
      Effect.gen(function*() {
        const keys = yield* Queue.unbounded<Terminal.UserInput, Cause.Done>()
        yield* Queue.offerAll(keys, keysOf(text))
        return Terminal.make({
          columns: Effect.succeed(80),
          rows: Effect.succeed(24),
          size: Effect.die("unused"),
          readInput: Effect.sync(() => {
            asked()
            return keys
          }),
          readLine: Effect.die("unused"),
          display: () => Effect.void
        })
      })
    ),
    Stdio.layerTest({ stdinIsTerminal: Effect.succeed(true), stdoutIsTerminal: Effect.succeed(true) }),
    FileSystem.layerNoop({}),
    Path.layer
  )

/** No terminal: the standard input and output are files. */
export const notTerminal = Layer.provideMerge(
  Stdio.layerTest({ stdinIsTerminal: Effect.succeed(false), stdoutIsTerminal: Effect.succeed(false) }),
  typing("")
)
