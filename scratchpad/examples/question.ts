/** A tool asks the user a typed question; an answer that does not fit is refused, and the question goes on waiting. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Session, Tool } from "heddle"
import { Script } from "heddle/testing"

const book = Tool.make("book_table", {
  parameters: { restaurant: Schema.String },
  handler: ({ restaurant }) =>
    Effect.succeed(
      Tool.askUser(`How many seats at ${restaurant}?`, { answer: Schema.Int, opts: [2, 4, 6], expiresIn: "1 hour" })
    )
})
const options = { tools: [book] }

const model = Script.layer([
  [Script.toolCall("c0", "book_table", { restaurant: "The Loom" }), Script.finish("tool_calls")],
  [Script.text("A table for four at The Loom."), Script.finish("stop")]
])

const program = Effect.gen(function*() {
  const { session } = yield* Session.start("Book a table at The Loom", options)
  const [question] = session.suspensions
  console.log("asks:", question?.question, question?.opts)

  const refused = yield* Effect.flip(Session.answer(session, "c0", "a few"))
  console.log("refused:", refused.reason)

  const answered = yield* Session.answer(session, "c0", 4)
  const { result } = yield* Session.continue(answered, null, options)
  console.log("says:", result.finalResponse?.outputText)
})

await Effect.runPromise(program.pipe(Effect.provide(model)))
