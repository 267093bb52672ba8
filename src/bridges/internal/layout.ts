/**
 * The pieces of a reply in their order, there and back. A message keeps reasoning, text and calls apart; what a
 * provider wants back besides (signatures, item ids, results of tools it ran, the order of all that) is kept with the
 * reasoning and the calls under one key of the bridge, and counts for the provider that wrote it only.
 */
import * as Media from "../../adapters/internal/media.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"

/** The owner of the marks that are read and written: the key of the bridge, and the provider behind it. */
export interface Owner {
  readonly key: string
  readonly provider: string
}

type Options = Json.JsonObject | undefined

/** The result of a call that the provider ran itself. */
export interface ExecutedResult {
  readonly value: unknown
  readonly isError: boolean
  readonly options: Options
}

/** A call that the provider ran. A run does not keep it among the calls of its message, which are this side's. */
export type ExecutedCall = Pick<Message.ToolCall, "id" | "name" | "arguments">

interface MadeFile {
  readonly mediaType: string
  readonly data: string | undefined
  readonly url: string | undefined
  readonly isReasoning: boolean
}

/** The pieces that a provider makes itself, and reads back as they are. */
type Made =
  | { readonly kind: "file"; readonly file: MadeFile; readonly options: Options }
  | { readonly kind: "custom"; readonly name: string; readonly options: Options }
  | {
    readonly kind: "executed"
    readonly call: ExecutedCall
    readonly result: ExecutedResult
    readonly options: Options
  }

/** A piece of a reply while it is read, with its place among all. */
export type Block =
  & { readonly at: number }
  & (
    | Made
    | { readonly kind: "reasoning"; text: string; options: Options }
    | { readonly kind: "text"; length: number; options: Options }
  )

/** A piece as it goes back. */
export type Piece =
  | Made
  | { readonly kind: "text" | "reasoning"; readonly text: string; readonly options: Options }
  | { readonly kind: "call"; readonly call: Message.ToolCall; readonly options: Options }
  | { readonly kind: "media"; readonly media: Media.Media }

/** Returns the words of providers on a part, if any of them says anything. */
export const spoken = (options: unknown): Options =>
  Json.isObject(options) &&
    Object.values(options).some((words) => !Json.isObject(words) || Object.keys(words).length > 0)
    ? options
    : undefined

/** Merges the words of providers on a part, piece by piece: the latest word of each provider on each matter counts. */
export const merged = <Value>(previous: Value, next: Value): Value => {
  if (!Json.isObject(previous) || !Json.isObject(next)) return next ?? previous
  const entries = Object.entries(next).map(([provider, words]) => {
    const known = previous[provider]
    return [provider, Json.isObject(known) && Json.isObject(words) ? { ...known, ...words } : words]
  })
  return { ...previous, ...Object.fromEntries(entries) } as Value
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing marks.

/** The mark of a piece. It is plain data, whatever the library put in. */
export const mark = (owner: Owner, at: number, fields: Json.JsonObject): Json.JsonObject =>
  Json.toJson(Wire.defined({ provider: owner.provider, at, ...fields })) as Json.JsonObject

const marks = (owner: Owner, at: number, fields: Json.JsonObject): Json.JsonObject => ({
  [owner.key]: mark(owner, at, fields)
})

/** Returns the reasoning that a message keeps. `calls` are the places of this side's own. */
export const keep = (
  owner: Owner,
  blocks: ReadonlyArray<Block>,
  calls: ReadonlyArray<number>
): ReadonlyArray<Message.Part> => {
  const isTextKept = !isPlain(blocks, calls)
  return blocks.flatMap((block): ReadonlyArray<Message.Part> => {
    const { at, kind, options } = block
    switch (kind) {
      case "reasoning":
        if (block.text === "" && options === undefined) return []
        return [{ type: "reasoning", text: block.text, metadata: marks(owner, at, { options }) }]
      case "text":
        return isTextKept ? [carrier(owner, at, { kind, length: block.length, options })] : []
      case "file":
        return [carrier(owner, at, { kind, file: Wire.defined({ ...block.file }), options })]
      case "custom":
        return [carrier(owner, at, { kind, name: block.name, options })]
      case "executed":
        return [carrier(owner, at, { kind, call: block.call, result: Wire.defined({ ...block.result }), options })]
    }
  })
}

const carrier = (owner: Owner, at: number, fields: Json.JsonObject): Message.Part => ({
  type: "reasoning",
  text: "",
  metadata: marks(owner, at, fields)
})

/** Reasoning, then text, then calls: the order in which a message is read by default. */
const isPlain = (blocks: ReadonlyArray<Block>, calls: ReadonlyArray<number>): boolean => {
  const texts = blocks.filter((block) => block.kind === "text")
  if (texts.some((block) => block.options !== undefined)) return false
  const first = texts[0]?.at ?? Infinity
  const last = texts.at(-1)?.at ?? -1
  return blocks.every((block) => block.kind === "text" || block.at < first) && calls.every((at) => at > last)
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading marks.

/** The owner's mark on something, if its provider wrote it. */
const marked = (owner: Owner, metadata: Json.JsonObject | undefined): Json.JsonObject | undefined => {
  const found = metadata?.[owner.key]
  return Json.isObject(found) && found["provider"] === owner.provider ? found : undefined
}

/** Returns `true` if this provider made a call, so that it knows the call's id. */
export const isOwn = (owner: Owner, call: Message.ToolCall): boolean => marked(owner, call.metadata) !== undefined

/** The options that a caller has put on a message under the key of the bridge. */
export const messageOptions = (owner: Owner, message: Message.Message): Json.JsonObject | undefined => {
  const found = message.metadata[owner.key]
  return Json.isObject(found) ? objectOf(found["options"]) : undefined
}

const objectOf = (value: unknown): Json.JsonObject | undefined => Json.isObject(value) ? value : undefined

interface Placed {
  readonly at: number
  readonly piece: Piece
}

/**
 * The pieces of an assistant message. Reasoning of another provider is left out, and so is a call that a provider ran,
 * unless it was this one and its result was kept.
 */
export const pieces = (owner: Owner, message: Message.Message): ReadonlyArray<Piece> => {
  const calls = (message.toolCalls ?? []).flatMap((call) => callPiece(owner, call))
  const firstCall = Math.min(...calls.map(({ at }) => at))
  const kept = (message.reasoning ?? []).flatMap((part) => keptPiece(owner, part))
  const others = kept.flatMap(({ at, piece }) => piece === undefined ? [] : [{ at, piece }])
  const isFileKept = others.some(({ piece }) => piece.kind === "file")
  const media = isFileKept ? [] : mediaPieces(message, firstCall)
  const all: Array<Placed> = [...others, ...texts(message, kept, firstCall), ...media, ...calls]
  return all.sort((left, right) => left.at - right.at || 0).map(({ piece }) => piece)
}

interface Kept {
  readonly at: number
  /** The length of the message's text that stands here. */
  readonly length: number | undefined
  readonly options: Json.JsonObject | undefined
  readonly piece: Piece | undefined
}

const keptPiece = (owner: Owner, part: Message.Part): ReadonlyArray<Kept> => {
  if (part.type !== "reasoning") return []
  const found = marked(owner, part.metadata)
  const at = found?.["at"]
  if (found === undefined || typeof at !== "number") return []
  const { call, file, kind, length, name, result } = found
  const options = objectOf(found["options"])
  const keptAs = (piece: Piece): ReadonlyArray<Kept> => [{ at, length: undefined, options, piece }]
  if (kind === undefined) return keptAs({ kind: "reasoning", text: part.text, options })
  if (kind === "file" && isMadeFile(file)) return keptAs({ kind: "file", file, options })
  if (kind === "custom" && typeof name === "string") return keptAs({ kind: "custom", name, options })
  if (kind === "executed" && isExecutedCall(call) && Json.isObject(result)) {
    const { isError, value } = result
    const known = { value, isError: isError === true, options: objectOf(result["options"]) }
    return keptAs({ kind: "executed", call, result: known, options })
  }
  return kind === "text" && typeof length === "number" ? [{ at, length, options, piece: undefined }] : []
}

const isExecutedCall = (value: unknown): value is ExecutedCall =>
  Json.isObject(value) && typeof value["id"] === "string" && typeof value["name"] === "string" &&
  Json.isObject(value["arguments"])

const isMadeFile = (value: unknown): value is MadeFile => Json.isObject(value) && typeof value["mediaType"] === "string"

/** The text in the pieces in which it was said, or in one, before the calls, if it is not that text any more. */
const texts = (message: Message.Message, kept: ReadonlyArray<Kept>, firstCall: number): ReadonlyArray<Placed> => {
  const text = Message.text(message)
  const spans = kept.flatMap(({ at, length, options }) => length === undefined ? [] : [{ at, length, options }])
  const divided = Wire.divided(text, spans.map(({ length }) => length))
  if (divided === undefined || spans.length === 0) {
    const at = Math.min(spans[0]?.at ?? Infinity, beforeCalls(firstCall))
    return text === "" ? [] : [{ at, piece: { kind: "text", text, options: undefined } }]
  }
  return spans.map(({ at, options }, index) => ({ at, piece: { kind: "text", text: divided[index] ?? "", options } }))
}

const beforeCalls = (firstCall: number): number => firstCall === Infinity ? Number.MAX_SAFE_INTEGER : firstCall - 0.5

/** Files in the message itself. Those that this provider made are kept apart, in their places. */
const mediaPieces = ({ content }: Message.Message, firstCall: number): ReadonlyArray<Placed> =>
  Media.mediaIn(content).map((media) => ({ at: beforeCalls(firstCall), piece: { kind: "media", media } }))

const callPiece = (owner: Owner, call: Message.ToolCall): ReadonlyArray<Placed> => {
  if (call.providerExecuted === true) return []
  const found = marked(owner, call.metadata)
  const at = typeof found?.["at"] === "number" ? found["at"] : Infinity
  return [{ at, piece: { kind: "call", call, options: objectOf(found?.["options"]) } }]
}
