/** An order out of a letter with two tools, on Heddle. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { OpenAiChat } from "heddle/adapters"
import * as Chat from "heddle/Chat"
import * as Output from "heddle/Output"
import * as Tool from "heddle/Tool"
import type { Extraction } from "../sideBySide.ts"

/** Runs the program. Its lines between the marks are counted. */
export const extract = async (baseUrl: string): Promise<Extraction> => {
  const partials: Array<unknown> = []
  // begin
  const order = Output.make(
    Schema.Struct({ customer: Schema.String, ids: Schema.Array(Schema.String), count: Schema.Int })
  )
  const find = Tool.make("find", { parameters: { title: Schema.String }, handler: () => Effect.succeed("b7") })
  const stock = Tool.make("stock", { parameters: { id: Schema.String }, handler: () => Effect.succeed(3) })
  const model = OpenAiChat.layer({ model: "m", apiKey: Redacted.make("k"), baseUrl }).pipe(
    Layer.provide(FetchHttpClient.layer)
  )
  const onEvent = (event: { readonly _tag: string; readonly value?: unknown }) => {
    if (event._tag === "OutputPartial") partials.push(event.value)
  }
  const program = Chat.run("Two of Emma. Ann", { tools: [find, stock], output: order, onEvent }).pipe(
    Effect.flatMap(Output.get),
    Effect.provide(model)
  )
  // end
  const exit = await Effect.runPromiseExit(program)
  if (Exit.isSuccess(exit)) return { partials, value: exit.value }
  const error = Cause.squash(exit.cause) as { readonly _tag?: string; readonly reason?: string }
  return { partials, error: [error._tag, error.reason].join(" ") }
}
