/**
 * What a halt does to the calls beside it depends on who was admitted when it was decided, and not on how long after
 * their start that was: a halt at once, after a turn of the scheduler and after a while come to the same.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

const moments: { readonly [when: string]: Effect.Effect<void> } = {
  "at once": Effect.void,
  "after a turn of the scheduler": Effect.yieldNow,
  "after some turns": Effect.repeat(Effect.yieldNow, { times: 5 }),
  "after a millisecond": Effect.sleep(1)
}

type Siblings = Policy.Policy["siblings"]

const answers: { readonly [siblings: string]: ReadonlyArray<string> } = {
  "abortCancelable run": ["halted", "interrupted", "interrupted", "done", "done", "done"],
  "abortCancelable skip": ["halted", "interrupted", "interrupted", "done", "not run", "not run"],
  "abortAll run": ["halted", "interrupted", "interrupted", "interrupted", "done", "done"],
  "abortAll skip": ["halted", "interrupted", "interrupted", "interrupted", "not run", "not run"],
  "drain run": ["halted", "done", "done", "done", "done", "done"],
  "drain skip": ["halted", "done", "done", "done", "done", "done"]
}

const word = (content: unknown): string =>
  /interrupted: another call|not run: another call/.exec(String(content))?.[0]?.replace(/: .*/, "") ?? String(content)

/** The first halts, four are admitted together, and two wait. */
const calls = ["halt", "cancelable", "gated", "blocking", "cancelable", "blocking"].map((name, index) =>
  Message.toolCall(`c${index}`, name)
)

const toolsOf = (moment: Effect.Effect<void>, recorder: Recorder.Recorder): ReadonlyArray<Tool.Any> => {
  const handler = recorder.handler(() => Effect.as(Effect.sleep(20), "done"))
  return [
    Tool.make("halt", { parameters: {}, handler: () => Effect.as(moment, Tool.halt("enough", "halted")) }),
    Tool.make("cancelable", { parameters: {}, handler }),
    Tool.make("gated", { parameters: {}, handler, validate: () => Effect.as(Effect.sleep(20), true) }),
    Tool.make("blocking", { parameters: {}, interrupt: "block", handler })
  ]
}

describe("siblings.onHalt", () => {
  for (const [name, expected] of Object.entries(answers)) {
    const [onHalt, queued] = name.split(" ") as [Siblings["onHalt"], Siblings["queued"]]
    const policy: Policy.Policy = {
      ...Policy.standard,
      start: "afterTurn",
      siblings: { ...Policy.standard.siblings, onHalt, queued }
    }
    for (const [when, moment] of Object.entries(moments)) {
      it.effect(`M-08, CF-1: a halt ${when} under onHalt ${onHalt} and queued ${queued} stops the same calls, batched and in a run`, () =>
        Effect.gen(function*() {
          const recorder = yield* Recorder.make
          const tools = toolsOf(moment, recorder)
          const batch = succeeded(
            yield* Simulation.run(ToolRunner.run(calls, tools, { policy, maxConcurrency: 4 }))
          )
          assert.deepStrictEqual(batch.messages.map(({ content }) => word(content)), expected)
          assert.deepInclude(batch.halt, { haltedReason: "enough", haltToolCallId: "c0" })
          // What blocks finishes, and what is interrupted does not.
          const ran = expected.filter((answer) => answer === "done").length
          assert.strictEqual((yield* recorder.counts()).ends, ran)
          const model = Script.layer([[
            ...calls.map(({ id, name }) => Script.toolCall(id, name)),
            Script.finish("tool_calls")
          ]])
          const chat = Chat.run("go", { tools, policy, maxConcurrency: 4 })
          const value = succeeded(yield* Simulation.run(Effect.provide(chat, model, { local: true })))
          const told = value.thread.messages.filter(({ role }) => role === "tool")
          assert.deepStrictEqual(told.map(({ content }) => word(content)), expected)
          assert.strictEqual(value.outcome._tag, "Halted")
        }))
    }
  }
})
