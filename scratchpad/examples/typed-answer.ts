/** An answer with a type: tools first, then one call in the format, decoded by the schema that asked for it. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Tool } from "heddle"
import { Script } from "heddle/testing"

const Forecast = Schema.Struct({ city: Schema.String, celsius: Schema.Finite, coat: Schema.Boolean })

const responseFormat = {
  type: "json_schema",
  name: "forecast",
  schema: Schema.toJsonSchemaDocument(Forecast).schema,
  strict: true
} as const

const weather = Tool.make("get_weather", {
  parameters: { city: Schema.String },
  handler: () => Effect.succeed({ celsius: 7 })
})

const program = Effect.gen(function*() {
  const result = yield* Chat.run("Do I need a coat in Oslo?", {
    tools: [weather],
    responseFormat,
    structuredFinalize: true
  })
  return yield* Schema.decodeEffect(Schema.fromJsonString(Forecast))(result.finalResponse?.outputText ?? "")
})

const model = Script.layer([
  [Script.toolCall("c0", "get_weather", { city: "Oslo" }), Script.finish("tool_calls")],
  [Script.text("It is 7 °C, take a coat."), Script.finish("stop")],
  [Script.text(`{"city":"Oslo","celsius":7,"coat":true}`), Script.finish("stop")]
])

const forecast = await Effect.runPromise(program.pipe(Effect.provide(model)))

console.log(`${forecast.city}: ${forecast.celsius} °C, ${forecast.coat ? "take a coat" : "no coat"}`)
