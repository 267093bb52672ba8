/** An answer with a type: tools first, the answer so far, a repair, and the value; and a run without an answer that fits. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Adapter, Chat, Output, Tool } from "heddle"
import { Script } from "heddle/testing"

const { delay, finish, text, toolCall } = Script

const forecast = Output.make(
  Schema.Struct({ city: Schema.String, celsius: Schema.Finite, coat: Schema.Boolean }),
  { retries: 1 }
)

const weather = Tool.make("get_weather", {
  parameters: { city: Schema.String },
  handler: () => Effect.succeed({ celsius: 7 })
})

const program = Effect.gen(function*() {
  const handle = yield* Chat.start("Do I need a coat in Oslo?", {
    tools: [weather],
    output: forecast,
    onEvent: (event) =>
      event._tag === "OutputPartial" ? console.log(`so far: ${JSON.stringify(event.value)}`) : undefined
  })
  const { city, celsius, coat } = yield* Effect.flatMap(handle.result, Output.get)
  console.log(`${city}: ${celsius} °C, ${coat ? "take a coat" : "no coat"}`)

  const vague = yield* Chat.run("And tomorrow?", { output: forecast })
  const missing = yield* Effect.flip(Output.get(vague))
  console.log(`no answer: ${missing.reason}, after ${vague.steps.length} turns`)
}).pipe(Effect.scoped)

const turns = [
  [toolCall("c0", "get_weather", { city: "Oslo" }), finish("tool_calls")],
  [text(`{"city":"Os`), delay(60), text(`lo","celsius":7,"co`), delay(60), text(`at":"yes"}`), finish("stop")],
  [text(`{"city":"Oslo","celsius":7,"coat":true}`), finish("stop")],
  [text("It depends."), finish("stop")],
  [text("It still depends."), finish("stop")]
]

/** A provider that holds the model to a schema, as `OpenAiResponses` does. Others get the answer by a tool. */
const model = Adapter.map((adapter) => ({ ...adapter, output: { native: "always", forced: true } })).pipe(
  Layer.provide(Script.layer(turns))
)

await Effect.runPromise(program.pipe(Effect.provide(model)))
