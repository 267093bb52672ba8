/**
 * Writes a thread the way bridged libraries expect: a turn's answers in one message, each with its tool name, ids
 * readable by the provider, and a single form for images and files. A call keeps its own provider's id; other ids are
 * rewritten with letters and a length every provider accepts.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as Media from "../../adapters/internal/media.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Layout from "./layout.ts"

/** An answer, with the id and name of its call as sent. */
export interface Answer {
  readonly id: string
  readonly name: string
  readonly message: Message.Message
}

export type Turn =
  | { readonly role: "system" | "user"; readonly message: Message.Message }
  | {
    readonly role: "assistant"
    readonly message: Message.Message
    readonly pieces: ReadonlyArray<Layout.Piece>
    /** Returns a call's sent id. */
    readonly idOf: (call: Message.ToolCall) => string
  }
  | { readonly role: "tool"; readonly answers: ReadonlyArray<Answer> }

/** Returns a thread's turns, without assistant messages empty for this provider. */
export const turns = (owner: Layout.Owner, messages: ReadonlyArray<Message.Message>): ReadonlyArray<Turn> => {
  const written: Array<Turn> = []
  const ids = new Ids(owner)
  let answers: Array<Answer> = []
  for (const message of messages.map(wellFormed)) {
    if (message.role === "tool") {
      if (answers.length === 0) written.push({ role: "tool", answers })
      answers.push({ ...ids.answered(message), message })
      continue
    }
    answers = []
    if (message.role !== "assistant") {
      written.push({ role: message.role, message })
      continue
    }
    const idOf = ids.turn(message)
    const pieces = Layout.pieces(owner, message)
    if (pieces.length > 0) written.push({ role: "assistant", message, pieces, idOf })
  }
  return written
}

/**
 * Replaces lone surrogates in a message's texts and arguments. Ids are left to `SentIds`, since they must stay
 * distinct.
 */
const wellFormed = (message: Message.Message): Message.Message => {
  const { content, reasoning, toolCalls } = message
  const given = [content, reasoning, toolCalls?.map((call) => call.arguments)] as const
  const [text, thoughts, args] = Json.wellFormed(given)
  if (text === content && thoughts === reasoning && args === given[2]) return message
  return {
    ...message,
    content: text,
    ...Wire.defined({
      reasoning: thoughts,
      toolCalls: toolCalls?.map((call, index) => ({ ...call, arguments: args?.[index] ?? call.arguments }))
    })
  }
}

/** Returns a provider's id rules, as far as its name reveals them. */
const idsOf = (provider: string): Wire.IdRules => {
  if (/mistral/i.test(provider)) return Wire.nineIds
  return { ...Wire.wordIds, mayRepeat: !/anthropic|bedrock|claude/i.test(provider) }
}

class Ids {
  private readonly ids: Wire.SentIds
  /** Tool names of the latest calls, by thread id. */
  private readonly names = new Map<string, string>()

  constructor(owner: Layout.Owner) {
    this.ids = new Wire.SentIds(idsOf(owner.provider), (call) => Layout.isOwn(owner, call))
  }

  turn({ toolCalls = [] }: Message.Message): (call: Message.ToolCall) => string {
    for (const { id, name } of toolCalls) this.names.set(id, name)
    return this.ids.turn(toolCalls)
  }

  answered({ name = "unknown", toolCallId = "" }: Message.Message): { readonly id: string; readonly name: string } {
    return { id: this.ids.answered(toolCallId), name: this.names.get(toolCallId) ?? name }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Media: base64 data or an address, with a media type, inferred if the message states none.

export interface Source {
  readonly mediaType: string
  /** Base64 data, or an address. */
  readonly content: string | URL
  readonly filename: string | undefined
}

/** Returns the source of an image or file, or its problem. */
export const source = (media: Media.Media): Result.Result<Source, string> => {
  const { data, type, url } = media
  const filename = media.type === "file" ? media.filename : undefined
  const mediaType = Media.typeOf(media) ?? (type === "image" ? "image/*" : "application/octet-stream")
  if (data !== undefined) {
    return Result.succeed({ mediaType, content: Media.base64(media), filename })
  }
  if (url === undefined) return Result.fail(`the ${type} part has neither url nor data`)
  const inline = /^data:[^;,]*((?:;[^;,]*)*),(.*)$/s.exec(url)
  if (inline !== null) {
    const [, parameters = "", body = ""] = inline
    return Result.map(
      parameters.endsWith(";base64") ? Result.succeed(body) : encoded(body, type),
      (content) => ({ mediaType, content, filename })
    )
  }
  return Result.try({
    try: () => new URL(url),
    catch: () => `the url of the ${type} part is not a valid URL: ${url.slice(0, 100)}`
  }).pipe(Result.map((address) => ({ mediaType, content: address, filename })))
}

/** Writes user content part by part. Empty text is dropped if other parts exist. */
export const userParts = <TextPart, FilePart>(
  content: Message.Content,
  text: (value: string) => TextPart,
  file: (source: Source) => FilePart
): Result.Result<ReadonlyArray<TextPart | FilePart>, string> =>
  Result.gen(function*() {
    if (typeof content === "string") return [text(content)]
    const parts: Array<TextPart | FilePart> = []
    for (const part of content) {
      if (Media.isMedia(part)) parts.push(file(yield* source(part)))
      else if (part.type === "text" && part.text !== "") parts.push(text(part.text))
    }
    return parts.length === 0 ? [text("")] : parts
  })

/** Returns `true` if a result part becomes a descriptive line, since no library accepts its address. */
export const isTold = (media: Media.Media, found: Result.Result<Source, string>): boolean =>
  Result.isFailure(found) && (media.data ?? media.url) !== undefined

const encoded = (body: string, type: string): Result.Result<string, string> =>
  Result.try({
    try: () => Base64.encode(decodeURIComponent(body)),
    catch: () => `the data URL of the ${type} part is malformed`
  })
