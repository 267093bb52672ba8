/**
 * Writes a thread as an effect/ai prompt. The prompt requests no approvals, so a language model has nothing to run.
 */
import * as Prompt from "effect/ai/Prompt"
import * as Result from "effect/Result"
import * as Media from "../../adapters/internal/media.ts"
import type * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as BridgedThread from "./bridgedThread.ts"
import * as Layout from "./layout.ts"

/** Writes the prompt, or names the first message that cannot be written. */
export const write = (
  owner: Layout.Owner,
  messages: ReadonlyArray<Message.Message>
): Result.Result<Prompt.Prompt, string> =>
  Result.gen(function*() {
    const prompt: Array<Prompt.Message> = []
    for (const turn of BridgedThread.turns(owner, messages)) {
      switch (turn.role) {
        case "system":
          prompt.push(Prompt.makeMessage("system", {
            content: Message.text(turn.message),
            options: messageOptions(owner, turn.message)
          }))
          break
        case "user": {
          const content = yield* BridgedThread.userParts(turn.message.content, text, file)
          prompt.push(Prompt.makeMessage("user", { content, options: messageOptions(owner, turn.message) }))
          break
        }
        case "assistant": {
          const content: Array<Prompt.AssistantMessagePart> = []
          for (const piece of turn.pieces) {
            if (piece.kind === "media") content.push(file(yield* BridgedThread.source(piece.media)))
            else content.push(...assistantParts(piece, turn.idOf))
          }
          if (content.length === 0) break
          prompt.push(Prompt.makeMessage("assistant", { content, options: messageOptions(owner, turn.message) }))
          break
        }
        case "tool": {
          const content: Array<Prompt.ToolMessagePart> = []
          for (const answer of turn.answers) content.push(yield* toolResult(owner, answer))
          prompt.push(Prompt.makeMessage("tool", { content }))
        }
      }
    }
    return Prompt.fromMessages(prompt)
  })

/** Returns options as provider options: they became plain data when stored. */
const optionsOf = (options: Json.JsonObject | undefined): Prompt.ProviderOptions =>
  (options ?? {}) as Prompt.ProviderOptions

const messageOptions = (owner: Layout.Owner, message: Message.Message): Prompt.ProviderOptions =>
  optionsOf(Layout.messageOptions(owner, message))

const text = (value: string, options?: Json.JsonObject): Prompt.TextPart =>
  Prompt.makePart("text", { text: value, options: optionsOf(options) })

const file = ({ content, filename, mediaType }: BridgedThread.Source, options?: Json.JsonObject): Prompt.FilePart =>
  Prompt.makePart("file", {
    mediaType,
    data: content,
    ...(filename === undefined ? {} : { fileName: filename }),
    options: optionsOf(options)
  })

const assistantParts = (
  piece: Exclude<Layout.Piece, { readonly kind: "media" }>,
  idOf: (call: Message.ToolCall) => string
): ReadonlyArray<Prompt.AssistantMessagePart> => {
  const { options } = piece
  switch (piece.kind) {
    case "text":
      return piece.text === "" && options === undefined ? [] : [text(piece.text, options)]
    case "reasoning":
      return [Prompt.makePart("reasoning", { text: piece.text, options: optionsOf(options) })]
    case "call":
      return [toolCall(piece.call, idOf(piece.call), false, options)]
    case "executed":
      return executed(piece)
    case "file": {
      const { data, mediaType } = piece.file
      return data === undefined ? [] : [file({ content: data, filename: undefined, mediaType }, options)]
    }
    case "custom":
      return []
  }
}

const toolCall = (
  { arguments: params, name }: Layout.ExecutedCall,
  id: string,
  providerExecuted: boolean,
  options: Json.JsonObject | undefined
): Prompt.ToolCallPart =>
  Prompt.makePart("tool-call", { id, name, params, providerExecuted, options: optionsOf(options) })

const executed = (
  { call, options, result }: Extract<Layout.Piece, { readonly kind: "executed" }>
): ReadonlyArray<Prompt.AssistantMessagePart> => [
  toolCall(call, call.id, true, options),
  Prompt.makePart("tool-result", {
    id: call.id,
    name: call.name,
    isFailure: result.isError,
    result: result.value,
    providerExecuted: true,
    options: optionsOf(result.options)
  })
]

/**
 * Writes a tool answer. An answer with images or files gets content for the model, plus text for models without content
 * support.
 */
const toolResult = (
  owner: Layout.Owner,
  { id, message, name }: BridgedThread.Answer
): Result.Result<Prompt.ToolResultPart, string> =>
  Result.gen(function*() {
    const { content } = message
    const modelOutput: Array<Prompt.ToolModelOutputPart> = []
    if (typeof content !== "string" && content.some(Media.isMedia)) {
      for (const part of content) {
        if (part.type === "text") modelOutput.push(text(part.text))
        else if (Media.isMedia(part)) {
          const source = BridgedThread.source(part)
          if (BridgedThread.isTold(part, source)) modelOutput.push(text(Media.line(part)))
          else modelOutput.push(file(yield* source))
        }
      }
    }
    return Prompt.makePart("tool-result", {
      id,
      name,
      isFailure: message.isError === true,
      result: Media.textWith(content, () => false),
      ...(modelOutput.length === 0 ? {} : { modelOutput }),
      providerExecuted: false,
      options: messageOptions(owner, message)
    })
  })
