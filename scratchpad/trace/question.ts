/** A question that the model answers after a tool call: `Chat.run`, in two turns. */
import * as Effect from "effect/Effect"
import { Chat } from "heddle"
import { model } from "./http.ts"
import { weather } from "./tools.ts"

export const question = async (): Promise<string | null | undefined> => {
  const asked = Chat.run("What is the weather in Oslo?", { tools: [weather] })
  const { finalResponse } = await Effect.runPromise(Effect.provide(asked, model))
  return finalResponse?.outputText
}
