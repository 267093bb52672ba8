/** One tool, one question: the model asks for the tool, reads its result and answers. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Message, Tool } from "heddle"
import { Script } from "heddle/testing"

const weather = Tool.make("get_weather", {
  description: "Current temperature of a city, in degrees Celsius",
  parameters: { city: Schema.NonEmptyString },
  handler: ({ city }) => Effect.succeed({ city, celsius: 7 })
})

// What the model says. With a key, put `OpenAiChat.layerConfig({ model: "gpt-5-mini" })` in its place.
const model = Script.layer([
  [Script.toolCall("c0", "get_weather", { city: "Oslo" }), Script.finish("tool_calls")],
  [Script.text("It is 7 °C in Oslo."), Script.finish("stop")]
])

const result = await Effect.runPromise(
  Chat.run("How warm is it in Oslo?", { tools: [weather] }).pipe(Effect.provide(model))
)

for (const message of result.thread.messages) console.log(`${message.role}: ${Message.text(message)}`)
console.log(result.outcome)
