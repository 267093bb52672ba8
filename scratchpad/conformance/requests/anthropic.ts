/** Requests of Anthropic's Messages. */
import type { Message } from "heddle"
import * as Conversation from "../conversation.ts"

const { idOf, list, object, string, textOf } = Conversation

const media = (part: Conversation.Json): ReadonlyArray<Message.Part> => {
  const { data, file_id, media_type, type, url } = object(part["source"])
  if (part["type"] !== "image" && part["type"] !== "document") return []
  const source = type === "base64" || type === "text"
    ? { data: string(data), mediaType: string(media_type) }
    : { url: string(url ?? file_id) }
  return [{ type: part["type"] === "image" ? "image" : "file", ...source }]
}

const block = (role: unknown) => (part: Conversation.Json): Conversation.Item => {
  if (part["type"] === "tool_use") {
    const call = { id: idOf(part["id"]), name: string(part["name"]), arguments: part["input"] ?? {} }
    return { kind: "assistant", text: "", calls: [call] }
  }
  if (part["type"] === "tool_result") {
    const isError = part["is_error"] === true
    return { kind: "result", id: idOf(part["tool_use_id"]), name: null, text: textOf(part["content"]), isError }
  }
  const text = part["type"] === "text" ? string(part["text"]) : ""
  if (role === "assistant") return { kind: "assistant", text, calls: [] }
  return role === "system" ? { kind: "system", text } : { kind: "user", text, media: media(part) }
}

const items = ({ content, role }: Conversation.Json): ReadonlyArray<Conversation.Item> =>
  (typeof content === "string" ? [{ type: "text", text: content }] : list(content)).map(block(role))

export const read = (body: Conversation.Json): Conversation.Conversation => {
  const system = textOf(body["system"])
  return {
    items: Conversation.joined([
      ...(system === "" ? [] : [{ kind: "system", text: system } as const]),
      ...list(body["messages"]).flatMap(items)
    ]),
    tools: list(body["tools"]).filter((tool) => tool["input_schema"] !== undefined).map((tool) => ({
      name: string(tool["name"]),
      description: string(tool["description"]),
      parameters: object(tool["input_schema"])
    })),
    isContinued: false
  }
}
