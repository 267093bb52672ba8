/** One limit for all runs of a program, one for each tenant, and one deadline for a run and what is nested in it. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Limits, Message, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"

let running = 0
let most = 0
const work = Tool.make("work", {
  parameters: { tenant: Schema.String },
  limits: [{ key: ({ tenant }) => `tenant:${tenant}`, permits: 2 }],
  handler: () =>
    Effect.gen(function*() {
      most = Math.max(most, ++running)
      yield* Effect.sleep("10 millis")
      running--
    })
})

// Three batches of six calls at once: at most four handlers in all, and at most two for a tenant.
const batch = (tenant: string) =>
  ToolRunner.run(Array.from({ length: 6 }, (_, index) => Message.toolCall(`${tenant}${index}`, "work", { tenant })), [
    work
  ])

const allAtOnce = (tenants: ReadonlyArray<string>) =>
  Effect.forEach(tenants, batch, { concurrency: "unbounded" }).pipe(Effect.provide(Limits.layer({ permits: 4 })))

await Effect.runPromise(allAtOnce(["a", "b", "c"]))
console.log("at once, three tenants:", most)
most = 0
await Effect.runPromise(allAtOnce(["a"]))
console.log("at once, one tenant:", most)

// A deadline keeps a reserve, so that the model can still answer.
const dig = Tool.make("dig", {
  parameters: {},
  handler: () =>
    Effect.gen(function*() {
      const left = yield* Limits.remaining
      console.log("less than 200 ms are left for tools:", Duration.toMillis(left) <= 200)
      return yield* Effect.never
    })
})
const model = Script.layer([
  [Script.toolCall("c0", "dig"), Script.finish("tool_calls")],
  [Script.text("I ran out of time, but here is what I know."), Script.finish("stop")]
])
const result = await Effect.runPromise(
  Chat.run("Dig", { tools: [dig], deadline: { after: "2 seconds", reserve: "1800 millis" } }).pipe(
    Effect.provide(model)
  )
)
console.log(result.finalized, "->", result.finalResponse?.outputText)
