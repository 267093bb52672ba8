/** Requests of Gemini's generateContent. */
import type { Message } from "heddle"
import * as Conversation from "../conversation.ts"

const { idOf, isObject, list, object, string } = Conversation

const media = (part: Conversation.Json): ReadonlyArray<Message.Part> => {
  const inline = object(part["inlineData"] ?? part["inline_data"])
  const file = object(part["fileData"] ?? part["file_data"])
  if (inline["data"] !== undefined) {
    return [{
      type: "file",
      data: string(inline["data"]),
      mediaType: string(inline["mimeType"] ?? inline["mime_type"])
    }]
  }
  return file["fileUri"] === undefined ? [] : [{ type: "file", url: string(file["fileUri"]) }]
}

/** A text wherever it stands: an answer has to be an object, and each library names its one member as it likes. */
const resultText = (response: unknown): string => {
  const values = Object.values(object(response))
  const [only] = values
  if (values.length !== 1 || only === undefined) return JSON.stringify(response)
  return typeof only === "string" ? only : JSON.stringify(only)
}

const item = (role: unknown) => (part: Conversation.Json): ReadonlyArray<Conversation.Item> => {
  const { functionCall: call, functionResponse: response } = part
  if (isObject(call)) {
    const read = { id: idOf(call["id"]), name: string(call["name"]), arguments: call["args"] ?? {} }
    return [{ kind: "assistant", text: "", calls: [read] }]
  }
  if (isObject(response)) {
    const text = resultText(response["response"])
    return [{ kind: "result", id: idOf(response["id"]), name: string(response["name"]), text, isError: null }]
  }
  const text = part["thought"] === true ? "" : string(part["text"])
  return [role === "model" ? { kind: "assistant", text, calls: [] } : { kind: "user", text, media: media(part) }]
}

const system = (instruction: unknown): ReadonlyArray<Conversation.Item> => {
  const text = list(object(instruction)["parts"]).map((part) => string(part["text"])).join("\n")
  return text === "" ? [] : [{ kind: "system", text }]
}

export const read = (body: Conversation.Json): Conversation.Conversation => ({
  items: Conversation.joined([
    ...system(body["systemInstruction"]),
    ...list(body["contents"]).flatMap(({ parts, role }) => list(parts).flatMap(item(role)))
  ]),
  tools: list(body["tools"]).flatMap((tool) => list(tool["functionDeclarations"])).map((tool) => ({
    name: string(tool["name"]),
    description: string(tool["description"]),
    parameters: object(tool["parametersJsonSchema"] ?? tool["parameters"])
  })),
  isContinued: false
})
