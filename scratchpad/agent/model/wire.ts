/**
 * The embedded model in the words of OpenAI's Chat Completions: a request is checked and read, a reply is written as
 * the chunks of a streamed completion. Usage counts words, which is what the model works with.
 */
import * as Schema from "effect/Schema"
import type * as Conversation from "./conversation.ts"

const Content = Schema.Union([
  Schema.String,
  Schema.Null,
  Schema.Array(Schema.Struct({ type: Schema.String, text: Schema.optionalKey(Schema.String) }))
])

const Call = Schema.Struct({
  id: Schema.String,
  function: Schema.Struct({ name: Schema.String, arguments: Schema.String })
})

/** What is read of a request; everything else that clients send is ignored. */
export const Body = Schema.Struct({
  model: Schema.optionalKey(Schema.String),
  stream: Schema.optionalKey(Schema.Boolean),
  stream_options: Schema.optionalKey(
    Schema.NullOr(Schema.Struct({ include_usage: Schema.optionalKey(Schema.Boolean) }))
  ),
  messages: Schema.NonEmptyArray(
    Schema.Struct({
      role: Schema.String,
      content: Schema.optionalKey(Content),
      tool_calls: Schema.optionalKey(Schema.NullOr(Schema.Array(Call))),
      tool_call_id: Schema.optionalKey(Schema.String)
    })
  ),
  tools: Schema.optionalKey(Schema.Array(Schema.Struct({ function: Schema.Struct({ name: Schema.String }) })))
})

/** @see {@link Body} */
export type Body = (typeof Body)["Type"]

const textOf = (content: (typeof Content)["Type"] | undefined): string =>
  typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join("")

/** The conversation in a request. */
export const toRequest = (body: Body): Conversation.Request => ({
  messages: body.messages.map((message) => ({
    role: message.role,
    content: textOf(message.content),
    calls: (message.tool_calls ?? []).map((call) => ({ id: call.id, ...call.function })),
    answers: message.tool_call_id
  })),
  tools: (body.tools ?? []).map((tool) => tool.function.name)
})

const wordCount = (text: string): number => text.match(/[\p{L}\p{N}_]+/gu)?.length ?? 0

const usageOf = (body: Body, reply: Conversation.Reply) => {
  const prompt = toRequest(body).messages.map((message) =>
    wordCount(message.content) + message.calls.reduce((sum, call) => sum + wordCount(call.arguments), 0)
  )
  const input = prompt.reduce((sum, count) => sum + count, 0)
  const output = wordCount(reply.text) + wordCount(JSON.stringify(reply.calls))
  return { prompt_tokens: input, completion_tokens: output, total_tokens: input + output }
}

/** A text in the pieces in which a model would stream it: word by word, spaces with the word before. */
const pieces = (text: string): ReadonlyArray<string> => text.match(/\s*\S+\s*/g) ?? []

/** A call in fragments: first its name, then its arguments in two halves. */
const fragments = (call: Conversation.Wanted, index: number, id: string): ReadonlyArray<object> => {
  const written = JSON.stringify(call.arguments)
  const middle = Math.ceil(written.length / 2)
  return [
    { index, id, type: "function", function: { name: call.name, arguments: "" } },
    { index, function: { arguments: written.slice(0, middle) } },
    { index, function: { arguments: written.slice(middle) } }
  ]
}

/** The chunks of a streamed completion, in order. Ids are unique within the conversation. */
export const chunks = (body: Body, reply: Conversation.Reply, created: number): ReadonlyArray<object> => {
  const turn = body.messages.length
  const head = {
    id: `chatcmpl-embedded-${turn}`,
    object: "chat.completion.chunk",
    created,
    model: body.model ?? "embedded"
  }
  const chunk = (delta: object, finishReason: string | null = null) => ({
    ...head,
    choices: [{ index: 0, delta, finish_reason: finishReason }]
  })
  const calls = reply.calls.flatMap((call, index) => fragments(call, index, `call_${turn}_${index}`))
  return [
    chunk({ role: "assistant", content: "" }),
    ...pieces(reply.text).map((content) => chunk({ content })),
    ...calls.map((call) => chunk({ tool_calls: [call] })),
    chunk({}, reply.calls.length === 0 ? "stop" : "tool_calls"),
    ...(body.stream_options?.include_usage === true ? [{ ...head, choices: [], usage: usageOf(body, reply) }] : [])
  ]
}
