/** The line that is typed while the agent works, key by key, and how it is shown with its fate. */
import { assert, describe, it } from "@effect/vitest"
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Terminal from "effect/Terminal"
import * as Typed from "../../scratchpad/agent/typed.ts"
import * as Lines from "../../scratchpad/agent/view/lines.ts"
import * as Paint from "../../scratchpad/agent/view/paint.ts"
import * as Run from "../../scratchpad/agent/view/run.ts"

const key = (name: string, input?: string, ctrl = false) => ({
  input: Option.fromUndefinedOr(input),
  key: { name, ctrl, meta: false, shift: false }
})

describe("a typed line", () => {
  it("a typed line has the typed letters without deleted letters, and at most 2000 of them", () => {
    const keys = [
      key("a", "a"),
      key("", "👍"),
      key("backspace", "\u007f"),
      key("b", "b"),
      key("up"),
      key("x", "\u0018", true)
    ]
    assert.strictEqual(keys.reduce((draft, next) => Typed.press(draft, next).draft, ""), "ab")
    assert.deepStrictEqual(Typed.press("ab", key("return", "\r")), { draft: "ab", isEntered: true })
    assert.strictEqual(Typed.press("ab", key("u", "\u0015", true)).draft, "")
    assert.lengthOf(Typed.press("a".repeat(2000), key("a", "a")).draft, 2000)
  })

  it.effect("a typed line that is not entered is the beginning of the next line", () =>
    Effect.gen(function*() {
      const entered: Array<string> = []
      let draft = ""
      const type = (keys: ReadonlyArray<Terminal.UserInput>) =>
        Effect.gen(function*() {
          const input = yield* Queue.unbounded<Terminal.UserInput, Cause.Done>()
          yield* Queue.offerAll(input, keys)
          yield* Queue.end(input)
          yield* Effect.provideService(
            Typed.read({
              begun: draft,
              onDraft: (typed) => Effect.sync(() => draft = typed),
              onLine: (line) => Effect.sync(() => entered.push(line)),
              onStop: Effect.void
            }),
            Terminal.Terminal,
            { readInput: Effect.succeed(input) } as unknown as Terminal.Terminal
          )
        })
      yield* type([key("n", "N"), key("o", "o")])
      assert.deepStrictEqual([draft, entered], ["No", []])
      yield* type([key("t", "t"), key("return", "\r"), key("a", "a")])
      assert.deepStrictEqual([draft, entered], ["a", ["Not"]])
    }))

  it("a typed line is the last line of the frame while it is typed, and stays with its fate", () => {
    const shown = (run: Run.Run) => {
      const { live, settled } = Lines.frame(run, 0, 40, Paint.none)
      return [settled.filter((line) => line !== ""), live.filter((line) => line !== "").slice(-2)]
    }
    const typing = Run.typing(Run.begin(0), "Not \u001bthat")
    assert.deepStrictEqual(shown(typing)[1]?.at(-1), "> Not that▏")
    const waiting = Run.saying(Run.typing(typing, ""), "m", "Not that")
    assert.deepStrictEqual(shown(waiting)[1], [
      "> Not that · waits for the next step",
      "> say something while it works"
    ])
    const message = { role: "user", content: "Not that", metadata: {} } as const
    const delivered = Run.step(waiting, { _tag: "MessageDelivered", id: "m", message, stepIndex: 1 }, 0)
    assert.deepStrictEqual(shown(delivered)[0], ["> Not that · delivered in step 2"])
    // A fate that comes first is not followed by words that wait.
    assert.deepStrictEqual(Run.saying(delivered, "m", "Not that").words, [])
    const refused = Run.step(waiting, { _tag: "MessageRefused", id: "m", message, reason: "budget" }, 0)
    assert.deepStrictEqual(shown(refused)[0], ["> Not that · refused: budget"])
  })
})
