/** A payment above a limit waits for a person, who allows it with another amount. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"

const pay = Tool.make("pay", {
  parameters: { to: Schema.String, amount: Schema.Finite },
  approval: ({ amount }) => amount > 10,
  handler: ({ amount, to }) => Effect.succeed(`paid ${amount} to ${to}`)
})

const model = Script.layer([
  [
    Script.toolCall("c0", "pay", { to: "the baker", amount: 5 }),
    Script.toolCall("c1", "pay", { to: "the landlord", amount: 900 }),
    Script.finish("tool_calls")
  ],
  [Script.text("Both bills are settled."), Script.finish("stop")]
])

const program = Effect.gen(function*() {
  const { session } = yield* Session.start("Pay my bills", { tools: [pay] })
  console.log("status:", session.status)
  for (const { id, kind, toolCall } of session.suspensions) console.log("waits:", id, kind, toolCall.arguments)

  const allowed = yield* Session.approve(session, "c1", { arguments: { to: "the landlord", amount: 850 } })
  const done = yield* Session.continue(allowed, null, { tools: [pay] })
  for (const message of done.session.thread.messages) {
    if (message.role === "tool") console.log("result:", Message.text(message))
  }
  console.log("status:", done.session.status)
})

await Effect.runPromise(program.pipe(Effect.provide(model)))
