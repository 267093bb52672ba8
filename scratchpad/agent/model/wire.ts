/**
 * The embedded model in the words of OpenAI's Chat Completions: a request is checked and read, a reply is written as
 * the chunks of a streamed completion. Usage counts words, which is what the model works with.
 */
import * as Schema from "effect/Schema"
import * as Conversation from "./conversation.ts"

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
  const output = wordCount(Conversation.textOf(reply)) + wordCount(JSON.stringify(Conversation.callsOf(reply)))
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

/** A streamed completion: the chunks that come one after the other, and those that end it, which come at once. */
export interface Chunks {
  readonly spoken: ReadonlyArray<object>
  readonly last: ReadonlyArray<object>
}

/** What a reply says and calls, in its order; a call is final when the next one begins or the reply ends. */
const deltas = (reply: Conversation.Reply, turn: number): ReadonlyArray<object> => {
  const calls = Conversation.callsOf(reply)
  return reply.parts.flatMap((part, index): ReadonlyArray<object> => {
    if (typeof part === "string") return pieces(index === 0 ? part : ` ${part}`).map((content) => ({ content }))
    const position = calls.indexOf(part)
    return fragments(part, position, `call_${turn}_${position}`).map((fragment) => ({ tool_calls: [fragment] }))
  })
}

/** The chunks of a reply. The ids of its calls are unique within the conversation. */
export const chunks = (body: Body, reply: Conversation.Reply, created: number): Chunks => {
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
  const isAnswer = Conversation.callsOf(reply).length === 0
  return {
    spoken: [{ role: "assistant", content: "" }, ...deltas(reply, turn)].map((delta) => chunk(delta)),
    last: [
      chunk({}, isAnswer ? "stop" : "tool_calls"),
      ...(body.stream_options?.include_usage === true ? [{ ...head, choices: [], usage: usageOf(body, reply) }] : [])
    ]
  }
}
