/**
 * Captures the content of model calls, runs and tool calls in the conventions' form: messages made from parts, one JSON
 * text per attribute. Every text is redacted and cut before it is written anywhere.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Telemetry from "../../internal/telemetry.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"

/** Redaction and length limit for texts. */
export interface Writing {
  readonly redact: ((text: string) => string) | undefined
  readonly maxPartLength: number
}

type Part = Readonly<Record<string, unknown>>

type Attributes = Record<string, string>

const failed = "[redaction failed]"

const redacted = (text: string, { redact }: Writing): string => {
  if (redact === undefined) return text
  try {
    const shown: unknown = redact(text)
    if (typeof shown === "string") return shown
    // An async `redact` may reject later, which would end the process.
    void Promise.resolve(shown).catch(() => undefined)
    return failed
  } catch {
    return failed
  }
}

/** Cuts a text between characters, since a collector may refuse half a character. */
const cut = (text: string, { maxPartLength }: Writing): string =>
  text.length <= maxPartLength ? text : `${ToolCalls.shortened(text, maxPartLength)}…`

const textOf = (text: string, writing: Writing): string => cut(redacted(text, writing), writing)

/** Maps every string, key and number in a JSON value. */
const withTexts = (json: unknown, change: (text: string) => string): unknown => {
  if (typeof json === "string") return change(json)
  if (typeof json === "number") {
    const text = change(String(json))
    return text === String(json) ? json : text
  }
  if (Array.isArray(json)) return json.map((member) => withTexts(member, change))
  if (!Json.isObject(json)) return json
  return Object.fromEntries(Object.entries(json).map(([key, member]) => [change(key), withTexts(member, change)]))
}

/** Returns a value as JSON with redacted texts and numbers. A value too long becomes a cut text. */
const valueOf = (value: unknown, writing: Writing): unknown => {
  const json = withTexts(Json.toJson(value), (text) => redacted(text, writing))
  const text = typeof json === "string" ? json : JSON.stringify(json) ?? "null"
  return text.length <= writing.maxPartLength ? json : cut(text, writing)
}

const written = (value: unknown, writing: Writing): string => {
  const shown = valueOf(value, writing)
  return typeof shown === "string" ? shown : JSON.stringify(shown)
}

const mediaOf = (part: Message.ImagePart | Message.FilePart, writing: Writing): Part => {
  const { data, url } = part
  const mediaType = part.mediaType === undefined ? undefined : textOf(part.mediaType, writing)
  const modality = part.type === "image" ? "image" : mediaType?.split("/")[0] ?? "document"
  const common = { modality, ...(mediaType === undefined ? {} : { mime_type: mediaType }) }
  if (url !== undefined) return { type: "uri", ...common, uri: textOf(url, writing) }
  // A cut file would be useless.
  const whole = data === undefined ? "" : redacted(data, writing)
  return { type: "blob", ...common, content: whole.length <= writing.maxPartLength ? whole : "" }
}

const partOf = (part: Message.Part, writing: Writing): Part =>
  part.type === "text" || part.type === "reasoning"
    ? { type: part.type, content: textOf(part.text, writing) }
    : mediaOf(part, writing)

const partsOf = (content: Message.Message["content"], writing: Writing): ReadonlyArray<Part> => {
  if (typeof content === "string") return content === "" ? [] : [{ type: "text", content: textOf(content, writing) }]
  return content.map((part) => partOf(part, writing))
}

const callOf = ({ arguments: args, id, name }: Message.ToolCall, writing: Writing): Part => ({
  type: "tool_call",
  id: textOf(id, writing),
  name: textOf(name, writing),
  arguments: valueOf(args, writing)
})

const messageOf = (message: Message.Message, writing: Writing): Part => {
  const { content, reasoning = [], role, toolCallId, toolCalls = [] } = message
  const texts = partsOf(content, writing)
  const parts = role === "tool"
    ? [{
      type: "tool_call_response",
      id: textOf(toolCallId ?? "", writing),
      response: responseOf(content, texts, writing)
    }]
    : [
      ...reasoning.map((part) => partOf(part, writing)),
      ...texts,
      ...toolCalls.map((call) => callOf(call, writing))
    ]
  return { role, parts }
}

const responseOf = (content: Message.Message["content"], parts: ReadonlyArray<Part>, writing: Writing): unknown =>
  typeof content === "string" ? textOf(content, writing) : parts

const finishReasons: Readonly<Record<string, string>> = { tool_calls: "tool_call", length: "length", error: "error" }

const replyOf = (
  { finishReason, message, outputText, reasoning, toolCalls }: Response.Response,
  writing: Writing
): Part => {
  // A broken reply has no message. A whole reply's calls may have come beside its message.
  const shown: Message.Message = {
    role: "assistant",
    content: message?.content ?? outputText ?? "",
    reasoning: message?.reasoning ?? (reasoning === "" ? [] : [{ type: "reasoning", text: reasoning }]),
    toolCalls,
    metadata: Json.none
  }
  const reason = finishReasons[finishReason ?? ""] ?? (finishReason === "content_filter" ? finishReason : "stop")
  return { ...messageOf(shown, writing), finish_reason: reason }
}

type Tools = Telemetry.RunFacts["tools"]

const definitionsOf = (tools: Tools, writing: Writing): Attributes =>
  tools.length === 0 ? {} : {
    "gen_ai.tool.definitions": JSON.stringify(
      tools.map(({ description, name, parameters }) => ({
        type: "function",
        name,
        ...(description === undefined ? {} : { description: textOf(description, writing) }),
        parameters: valueOf(parameters, writing)
      }))
    )
  }

const isInstruction = ({ role }: Message.Message): boolean => role === "system"

const conversation = (
  messages: ReadonlyArray<Message.Message>,
  tools: Tools,
  response: Response.Response | null | undefined,
  writing: Writing
): Attributes => {
  const said = messages.findIndex((message) => !isInstruction(message))
  const leading = said < 0 ? messages : messages.slice(0, said)
  const instructions = leading.flatMap(({ content }) => partsOf(content, writing))
  return {
    ...(instructions.length === 0 ? {} : { "gen_ai.system_instructions": JSON.stringify(instructions) }),
    "gen_ai.input.messages": JSON.stringify(
      messages.slice(leading.length).map((message) => messageOf(message, writing))
    ),
    ...(response ? { "gen_ai.output.messages": JSON.stringify([replyOf(response, writing)]) } : {}),
    ...definitionsOf(tools, writing)
  }
}

const system = (text: string | undefined): ReadonlyArray<Message.Message> =>
  text === undefined ? [] : [{ role: "system", content: text, metadata: Json.none }]

/** Returns a call's outcome as a value: the handler's result, or the answer to a call that did not run. */
const resultOf = (result: unknown): unknown => {
  if (!Json.isObject(result)) return result
  const { _tag, error, value } = result
  if (_tag === "Ok") return value
  return _tag === "Error" ? { error } : result
}

/** Returns the content attributes of an operation. */
export const attributesOf = ({ facts }: Telemetry.Operation, writing: Writing): Attributes => {
  switch (facts.kind) {
    case "inference": {
      const { messages, tools } = facts.request()
      return conversation(messages, tools, facts.response, writing)
    }
    case "invoke_agent":
      return conversation([...system(facts.system), ...facts.input], facts.tools, facts.response, writing)
    case "execute_tool":
      return {
        "gen_ai.tool.call.arguments": written(facts.call.arguments, writing),
        ...(facts.result === undefined ? {} : { "gen_ai.tool.call.result": written(resultOf(facts.result), writing) })
      }
    case "step":
      return {}
  }
}
