/** Two models, the first of which is down, on Heddle. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Adapter from "heddle/Adapter"
import { OpenAiChat } from "heddle/adapters"
import * as Chat from "heddle/Chat"
import type { Answered } from "../sideBySide.ts"

export const ask = async (first: string, second: string): Promise<Answered> => {
  const at = (baseUrl: string) =>
    OpenAiChat.layer({ model: "m", apiKey: Redacted.make("k"), baseUrl }).pipe(Layer.provide(FetchHttpClient.layer))
  const models = Adapter.fallback([{ layer: at(first), within: "2 seconds" }, { layer: at(second) }])
  let said = ""
  let firstAt: number | undefined
  const onEvent = (event: { readonly _tag: string; readonly delta?: string }) => {
    if (event._tag !== "TextDelta") return
    firstAt ??= performance.now()
    said += event.delta
  }
  const exit = await Effect.runPromiseExit(Effect.provide(Chat.run("Hi", { onEvent }), models))
  if (Exit.isFailure(exit)) {
    const error = Cause.squash(exit.cause) as { readonly reason?: string }
    return { said, firstAt, error: String(error.reason) }
  }
  const { error } = exit.value.finalResponse ?? {}
  return { said, firstAt, ...(error === undefined ? {} : { error: (error as { readonly reason: string }).reason }) }
}
