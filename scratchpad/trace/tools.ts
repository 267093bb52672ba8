/** The tool that the model asks for. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Tool } from "heddle"

const definition = {
  description: "The weather of a city",
  parameters: { city: Schema.String },
  handler: ({ city }: { readonly city: string }) => Effect.succeed(`4 degrees in ${city}`)
}

export const weather = Tool.make("weather", definition)

export const approvedWeather = Tool.make("weather", { ...definition, approval: true })
