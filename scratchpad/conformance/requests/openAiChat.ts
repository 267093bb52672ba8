/** Requests of OpenAI's Chat Completions. */
import type { Message } from "heddle"
import * as Conversation from "../conversation.ts"

const { argumentsOf, idOf, list, object, string, textOf } = Conversation

const media = (content: unknown): ReadonlyArray<Message.Part> =>
  list(content).flatMap((part): ReadonlyArray<Message.Part> => {
    if (part["type"] === "image_url") return [{ type: "image", url: string(object(part["image_url"])["url"]) }]
    if (part["type"] === "input_audio") {
      return [{ type: "file", data: string(object(part["input_audio"])["data"]), mediaType: "audio/wav" }]
    }
    if (part["type"] !== "file") return []
    const { file_data, file_id, filename } = object(part["file"])
    return [{
      type: "file",
      url: string(file_data ?? file_id),
      ...(filename === undefined ? {} : { filename: string(filename) })
    }]
  })

const calls = (message: Conversation.Json): ReadonlyArray<Conversation.Call> =>
  list(message["tool_calls"]).map(({ function: called, id }) => ({
    id: idOf(id),
    name: string(object(called)["name"]),
    arguments: argumentsOf(object(called)["arguments"])
  }))

const item = (message: Conversation.Json): Conversation.Item => {
  const text = textOf(message["content"])
  switch (message["role"]) {
    case "system":
    case "developer":
      return { kind: "system", text }
    case "assistant":
      return { kind: "assistant", text, calls: calls(message) }
    case "tool":
      return { kind: "result", id: idOf(message["tool_call_id"]), name: null, text, isError: null }
    default:
      return { kind: "user", text, media: media(message["content"]) }
  }
}

export const read = (body: Conversation.Json): Conversation.Conversation => ({
  items: Conversation.joined(list(body["messages"]).map(item)),
  tools: [...list(body["tools"]).map((tool) => object(tool["function"])), ...list(body["functions"])].map((tool) => ({
    name: string(tool["name"]),
    description: string(tool["description"]),
    parameters: object(tool["parameters"])
  })),
  isContinued: false
})
