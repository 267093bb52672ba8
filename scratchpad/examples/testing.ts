/** A test of a tool loop without a model: what it was asked, an hour that takes no time, and a run stopped everywhere. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Message, Tool } from "heddle"
import { everyStep, Script, Simulation } from "heddle/testing"
import assert from "node:assert/strict"

// What is tested.
const wait = Tool.make("wait", {
  parameters: { minutes: Schema.Finite },
  timeout: "1 hour",
  handler: ({ minutes }) => Effect.as(Effect.sleep(`${minutes} minutes`), `waited ${minutes} minutes`)
})
const ask = (question: string) => Chat.run(question, { tools: [wait] })

const script = [
  [
    Script.toolCall("c0", "wait", { minutes: 50 }),
    Script.toolCall("c1", "wait", { minutes: 90 }),
    Script.finish("tool_calls")
  ],
  [Script.text("One of them took too long."), Script.finish("stop")]
]

// 1. The answers, and what the model read. The clock of a simulation advances by itself.
const program = Effect.gen(function*() {
  const model = yield* Script.make(script)
  yield* ask("Wait twice").pipe(Effect.provide(model.layer))
  return (yield* model.requests).at(-1)?.messages.filter(({ role }) => role === "tool").map(Message.text)
})
const report = await Effect.runPromise(Simulation.run(program))
assert.equal(report.millis, 60 * 60 * 1000)
assert(report.exit?._tag === "Success")
assert.deepEqual(report.exit.value?.map((text) => text.includes("timeout")), [false, true])
console.log(`an hour in no time: ${report.exit.value?.[0]}`)

// 2. Stopped at each point at which it can be stopped: nothing is left behind.
const stops = await Effect.runPromise(
  everyStep(({ cancel }) => Chat.stream("Wait twice", { tools: [wait], cancel }), { layer: Script.layer(script) })
)
assert.deepEqual(stops.violations, [])
console.log(`stopped at each of its points: ${stops.violations.length} violations`)
