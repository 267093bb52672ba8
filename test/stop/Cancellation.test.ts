/** Who listens to the soft stop of a run, and how long. */
import { afterEach, assert, describe, it, vi } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Tool } from "heddle"
import { Script } from "heddle/testing"
import { Cancellation } from "../../src/internal/stop/cancellation.ts"

afterEach(() => {
  vi.restoreAllMocks()
})

describe("the soft stop of a run", () => {
  for (const interrupt of ["block", "cancel"] as const) {
    it.effect(`a turn with a handler of kind "${interrupt}" leaves no further listener on the soft stop`, () =>
      Effect.gen(function*() {
        let listening = 0
        const { onRequest } = Cancellation.prototype
        vi.spyOn(Cancellation.prototype, "onRequest").mockImplementation(function(this: Cancellation, listener) {
          const stop = onRequest.call(this, listener)
          listening++
          return () => {
            listening--
            stop()
          }
        })
        const within: Array<number> = []
        const after: Array<number> = []
        const work = Tool.make("work", {
          parameters: {},
          interrupt,
          handler: () => Effect.sync(() => void within.push(listening))
        })
        const calling = [Script.toolCall("c0", "work"), Script.finish("tool_calls")]
        yield* Chat.run("go", {
          tools: [work],
          cancel: Effect.never,
          onEvent: (event) => event._tag === "ChatCompleted" ? void after.push(listening) : undefined
        }).pipe(Effect.provide(Script.layer([calling, calling, calling, [Script.text("done"), Script.finish("stop")]])))
        assert.lengthOf(within, 3)
        assert.deepStrictEqual(new Set(within).size, 1, `${within}`)
        assert.isBelow(after[0]!, within[0]! + (interrupt === "block" ? 0 : 1))
      }))
  }
})
