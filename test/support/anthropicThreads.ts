/** Threads as Anthropic's Messages receives them, and what they are made of there. */
import * as Effect from "effect/Effect"
import type { Message } from "heddle"
import type { Anthropic } from "heddle/adapters"
import * as Wire from "./anthropic.ts"
import * as Requests from "./requests.ts"

/** A reply that says no more than that there is one. */
export const answered = Wire.reply([Wire.text(0, "ok")], "end_turn")

/** What a server receives of a thread. */
export const bodyOf = (messages: ReadonlyArray<Message.Message>, options: Partial<Anthropic.Options> = {}) =>
  Effect.map(
    Requests.received(answered, (url) => Wire.stream(url, options, { messages, tools: [] })),
    ({ body }) => body
  )

export const messagesOf = (...messages: ReadonlyArray<Message.Message>) =>
  Effect.map(bodyOf(messages), (body) => body.messages as ReadonlyArray<any>)

export const said = (text: string) => ({ type: "text", text })

export const used = (id: string, name: string, input: object = {}) => ({ type: "tool_use", id, name, input })

export const result = (id: string, content: unknown, rest: object = {}) => ({
  type: "tool_result",
  tool_use_id: id,
  content,
  ...rest
})
