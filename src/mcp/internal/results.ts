/**
 * Converts server results to Heddle tool results, and server questions to session questions. A form with one field asks
 * for the field; a form without fields asks for a yes.
 */
import * as Result from "effect/Result"
import * as Media from "../../adapters/internal/media.ts"
import * as ToolOutcomes from "../../internal/declare/outcome.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as Tool from "../../Tool.ts"
import type * as Backend from "./backend.ts"

/** Maximum length of a description or question: prompts and people's screens contain the server's texts. */
const longest = 2_000

/** Invisible characters, except line ends, tabs and letter joiners. */
const hiddenSigns = /[^\P{C}\n\t\u200c\u200d]/gu

/** Returns a server text without invisible characters, cut between characters. */
export const cut = (text: string): string => {
  const plain = text.slice(0, 2 * longest).replaceAll(hiddenSigns, "")
  return plain.length <= longest ? plain : `${plain.slice(0, longest).replace(/[\uD800-\uDBFF]$/, "")}…`
}

type Response = Extract<Backend.Response, { readonly _tag: "Result" }>

const text = (value: string): Message.Part => ({ type: "text", text: value })

const stringOf = (value: unknown): string | undefined => typeof value === "string" ? value : undefined

const mediaOf = (data: unknown, mediaType: unknown, filename?: string): Message.Part =>
  typeof data === "string" ? Media.made(stringOf(mediaType), { data }, filename) : text("[no data]")

const partOf = (block: Json.JsonObject): Message.Part => {
  const { data, description, mimeType, name, resource, title, type, uri } = block
  switch (type) {
    case "text":
      return text(block["text"] === undefined ? "" : Json.render(block["text"]))
    case "image":
    case "audio":
      return mediaOf(data, mimeType)
    case "resource_link": {
      const about = stringOf(description) === undefined ? "" : `\n${description}`
      return text(`${stringOf(title) ?? stringOf(name) ?? ""}: ${stringOf(uri) ?? ""}${about}`)
    }
    case "resource": {
      const known = Json.isObject(resource) ? resource : {} as Json.JsonObject
      const words = stringOf(known["text"])
      const filename = /([^/?#]+)(?:[?#].*)?$/.exec(stringOf(known["uri"]) ?? "")?.[1]
      return words === undefined ? mediaOf(known["blob"], known["mimeType"], filename) : text(words)
    }
    default:
      return text(`[${stringOf(type) ?? "unknown"} content]`)
  }
}

/** Returns a result's parts, joining consecutive texts. */
const partsOf = (blocks: ReadonlyArray<Json.JsonObject>, notes: ReadonlyArray<string>): ReadonlyArray<Message.Part> => {
  const parts: Array<Message.Part> = []
  for (const part of [...blocks.map(partOf), ...notes.map(text)]) {
    const last = parts.at(-1)
    if (part.type !== "text" || last?.type !== "text") parts.push(part)
    else parts[parts.length - 1] = text(`${last.text}\n${part.text}`)
  }
  return parts
}

/** Returns `true` if a result's text already repeats its structured content. */
const isSaid = ({ content, structured }: Response): boolean =>
  structured === undefined || content.some(({ text, type }) =>
    type === "text" && typeof text === "string" &&
    Json.isSame(Result.getOrUndefined(Json.parse(text)), structured)
  )

/** Returns everything the server said: its parts, its structured content unless repeated by a text, and the notes. */
const allOf = (result: Response, notes: ReadonlyArray<string>): ReadonlyArray<Message.Part> => {
  const misfit = result.misfit === undefined
    ? []
    : [`[the result violates the tool's output schema: ${cut(result.misfit)}]`]
  const structured = isSaid(result) ? [] : [Json.render(result.structured)]
  return partsOf(result.content, [...structured, ...misfit, ...notes])
}

/** Returns a result's text, with one line per image or file. */
export const wordsOf = (result: Response, notes: ReadonlyArray<string> = []): string =>
  Media.textWith(allOf(result, notes), () => false) || "The tool failed, and did not say why."

/**
 * Returns a result's value: valid structured content, a text, or parts if media exist. Valid structured content
 * replaces the result's texts, unless there are notes.
 */
export const valueOf = (result: Response, notes: ReadonlyArray<string>): unknown => {
  const { content, misfit, structured } = result
  const media = partsOf(content, []).filter(({ type }) => type !== "text")
  const isTold = structured !== undefined && misfit === undefined && notes.length === 0
  if (isTold && media.length === 0) return structured
  const parts = isTold ? [text(Json.render(structured)), ...media] : allOf(result, notes)
  const [first] = parts
  if (first === undefined) return ""
  return parts.length === 1 && first.type === "text" ? first.text : Tool.content(parts)
}

// Questions.

/** Returns the name and schema of a form's only field. */
const onlyField = (schema: Json.JsonObject): readonly [name: string, schema: unknown] | undefined => {
  const fields = Object.entries(Json.isObject(schema["properties"]) ? schema["properties"] : {})
  return fields.length === 1 ? fields[0] : undefined
}

/** Returns the question for the user, or `undefined` if its answer could not be checked. */
export const questionOf = (
  server: string,
  { message, schema }: Backend.Elicitation,
  resume: unknown
): Tool.AskUser | undefined => {
  if (schema === undefined) return undefined
  const isEmpty = Object.keys(Json.isObject(schema["properties"]) ? schema["properties"] : {}).length === 0
  const { $schema: _, ...form } = schema
  const answerSchema = isEmpty ? { type: "boolean" } : onlyField(form)?.[1] ?? form
  if (!Json.isObject(answerSchema) || !ToolOutcomes.isCheckable(answerSchema)) return undefined
  const words = `${server}: ${cut(message)}`
  return ToolOutcomes.brand<Tool.AskUser>({
    _tag: "AskUser",
    question: words,
    opts: [],
    answerSchema,
    resume: Json.toJson(resume)
  })
}

/** Returns a model's answer in the server's form. */
export const sampledOf = (sampled: Backend.Sampled | undefined): Json.JsonObject | undefined =>
  sampled && { role: "assistant", content: { type: "text", text: sampled.text }, model: sampled.model }

/** Reads a request for a model answer. A request offering tools is not answered. */
export const samplingOf = (params: unknown): Backend.Sampling | undefined => {
  if (!Json.isObject(params) || !Array.isArray(params["messages"]) || params["tools"] !== undefined) return undefined
  const { maxTokens, stopSequences, systemPrompt, temperature } = params
  if (typeof maxTokens !== "number") return undefined
  const messages = params["messages"].filter(Json.isObject).map(({ content, role }) => {
    const parts = partsOf((Array.isArray(content) ? content : [content]).filter(Json.isObject), [])
    return role === "assistant" ? Message.assistant(parts) : Message.user(parts)
  })
  const system = stringOf(systemPrompt)
  return {
    messages,
    maxTokens,
    ...(system === undefined ? {} : { system }),
    ...(typeof temperature === "number" ? { temperature } : {}),
    ...(Array.isArray(stopSequences) ? { stopSequences: stopSequences.filter((text) => typeof text === "string") } : {})
  }
}

/** Returns the user's answer in the server's form. */
export const elicitedOf = ({ schema = {} }: Backend.Elicitation, answer: unknown): Backend.Elicited => {
  const field = onlyField(schema)
  if (field !== undefined) return { action: "accept", content: { [field[0]]: answer } }
  if (Json.isObject(answer)) return { action: "accept", content: answer }
  return answer === true ? { action: "accept", content: {} } : { action: "decline" }
}
