/** Two runs inside a run: each researcher is a tool, its events are nested under its call, and its tokens are counted. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Event, Tool } from "heddle"
import { Script } from "heddle/testing"

const research = Tool.fromChat("research", {
  description: "Finds out about a topic",
  parameters: { topic: Schema.String },
  // A sub-agent has a model of its own here; without `Stream.provide` it uses that of the run around it.
  chat: ({ topic }) =>
    Chat.stream(`Find out about ${topic}`, { system: "You are a researcher.", maxTurns: 3 }).pipe(
      Stream.provide(
        Script.layer([[Script.text(`All about ${topic}.`), Script.usage({ outputTokens: 100 }), Script.finish("stop")]])
      )
    )
})

const model = Script.layer([
  [
    Script.toolCall("c0", "research", { topic: "heddles" }),
    Script.toolCall("c1", "research", { topic: "looms" }),
    Script.usage({ outputTokens: 10 }),
    Script.finish("tool_calls")
  ],
  [Script.text("A heddle is a part of a loom."), Script.usage({ outputTokens: 10 }), Script.finish("stop")]
])

const isEvent = (value: unknown): value is Event.Event => typeof value === "object" && value !== null && "_tag" in value

await Effect.runPromise(
  Chat.stream("What is a heddle?", { tools: [research] }).pipe(
    Stream.runForEach((event) =>
      Effect.sync(() => {
        if (event._tag === "ToolProgress" && isEvent(event.progress) && Event.guards.TextDelta(event.progress)) {
          console.log(`${event.id} > ${event.progress.delta}`)
        }
        if (event._tag !== "ChatCompleted") return
        const { finalResponse, totalUsage, usage } = event.result
        console.log(finalResponse?.outputText)
        console.log(`tokens: ${usage?.outputTokens} here, ${totalUsage?.outputTokens} in all`)
      })
    ),
    Effect.provide(model)
  )
)
