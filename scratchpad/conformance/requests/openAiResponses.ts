/** Requests of OpenAI's Responses. */
import type { Message } from "heddle"
import * as Conversation from "../conversation.ts"

const { argumentsOf, idOf, list, string, textOf } = Conversation

const media = (content: unknown): ReadonlyArray<Message.Part> =>
  list(content).flatMap((part): ReadonlyArray<Message.Part> => {
    if (part["type"] === "input_image") return [{ type: "image", url: string(part["image_url"]) }]
    if (part["type"] !== "input_file") return []
    return [{ type: "file", url: string(part["file_url"] ?? part["file_data"] ?? part["file_id"]) }]
  })

const message = (entry: Conversation.Json): Conversation.Item => {
  const text = textOf(entry["content"])
  if (entry["role"] === "system" || entry["role"] === "developer") return { kind: "system", text }
  if (entry["role"] === "assistant") return { kind: "assistant", text, calls: [] }
  return { kind: "user", text, media: media(entry["content"]) }
}

const item = (entry: Conversation.Json): ReadonlyArray<Conversation.Item> => {
  switch (entry["type"] ?? "message") {
    case "message":
      return [message(entry)]
    case "function_call": {
      const call = {
        id: idOf(entry["call_id"]),
        name: string(entry["name"]),
        arguments: argumentsOf(entry["arguments"])
      }
      return [{ kind: "assistant", text: "", calls: [call] }]
    }
    case "function_call_output":
      return [{ kind: "result", id: idOf(entry["call_id"]), name: null, text: textOf(entry["output"]), isError: null }]
    default:
      return []
  }
}

export const read = (body: Conversation.Json): Conversation.Conversation => {
  const { input, instructions, tools } = body
  const entries = typeof input === "string" ? [{ role: "user", content: input }] : list(input)
  const system = string(instructions) === "" ? [] : [{ kind: "system", text: string(instructions) } as const]
  return {
    items: Conversation.joined([...system, ...entries.flatMap(item)]),
    tools: list(tools).filter((tool) => tool["type"] === "function" && tool["parameters"] !== undefined).map((
      tool
    ) => ({
      name: string(tool["name"]),
      description: string(tool["description"]),
      parameters: Conversation.object(tool["parameters"])
    })),
    isContinued: typeof body["previous_response_id"] === "string"
  }
}
