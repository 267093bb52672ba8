/** The same question in a kept run: a session in the memory store, from its claim to the recorded end of the run. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Session } from "heddle"
import { model } from "./http.ts"
import { weather } from "./tools.ts"

export const session = async (): Promise<string | null | undefined> => {
  const asked = Effect.flatMap(
    Session.claim("weather"),
    (claimed) =>
      Session.keep(claimed, (session) => Session.reply(session, "What is the weather in Oslo?", { tools: [weather] }))
  ).pipe(Effect.scoped)
  const { value } = await Effect.runPromise(
    Effect.provide(asked, Layer.merge(model, Session.Store.layerMemory))
  )
  return value.result.finalResponse?.outputText
}
