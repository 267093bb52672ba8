/** Text and tools in a terminal while they happen, from the events of a run. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, type Event, Tool } from "heddle"
import { Script } from "heddle/testing"

const search = Tool.make("search", {
  description: "Searches the files",
  parameters: { text: Schema.String },
  readOnly: true, // starts while the reply is still streaming
  handler: ({ text }, call) =>
    Effect.gen(function*() {
      for (const file of ["a.ts", "b.ts"]) {
        yield* call.progress(file)
        yield* Effect.sleep("20 millis")
      }
      return `${text} is in b.ts`
    })
})

const show = (event: Event.Event): string => {
  switch (event._tag) {
    case "TextDelta":
      return event.delta
    case "ToolExecutionStarted":
      return `» ${event.name} ${JSON.stringify(event.arguments)}\n`
    case "ToolProgress":
      return `  … ${String(event.progress)}\n`
    case "ToolResultEncoded":
      return `  ${event.isError === true ? "✗" : "✓"} ${String(event.content)}\n`
    case "ChatCompleted":
      return `\n[${event.result.haltedReason} after ${event.result.steps.length} turns]\n`
    default:
      return ""
  }
}

const model = Script.layer([
  [
    Script.toolCall("c0", "search", { text: "heddle" }),
    Script.delay("10 millis"),
    Script.text("Let me look.\n"),
    Script.finish("tool_calls")
  ],
  [Script.text("It is "), Script.delay("10 millis"), Script.text("in b.ts."), Script.finish("stop")]
])

await Effect.runPromise(
  Chat.stream("Where is heddle?", { tools: [search] }).pipe(
    Stream.runForEach((event) => Effect.sync(() => process.stdout.write(show(event)))),
    Effect.provide(model)
  )
)
