/**
 * Keeps the order of reply pieces in both directions. A message separates reasoning, text and calls. Everything else a
 * provider expects back (signatures, item ids, results of its own tools, and their order) is stored with the reasoning
 * and the calls under the bridge's key, valid only for the provider that wrote it.
 */
import * as Media from "../../adapters/internal/media.ts"
import * as Wire from "../../adapters/internal/wire.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"

/** Owner of the marks: the bridge's key, and its provider. */
export interface Owner {
  readonly key: string
  readonly provider: string
}

type Options = Json.JsonObject | undefined

/** Result of a provider-executed call. */
export interface ExecutedResult {
  readonly value: unknown
  readonly isError: boolean
  readonly options: Options
}

/** A provider-executed call, kept with its result, since a run stores only its own calls with a message. */
export type ExecutedCall = Pick<Message.ToolCall, "id" | "name" | "arguments">

interface MadeFile {
  readonly mediaType: string
  readonly data: string | undefined
  readonly url: string | undefined
  readonly isReasoning: boolean
}

/** Pieces a provider makes itself and reads back unchanged. */
type Made =
  | { readonly kind: "file"; readonly file: MadeFile; readonly options: Options }
  | { readonly kind: "custom"; readonly name: string; readonly options: Options }
  | {
    readonly kind: "executed"
    readonly call: ExecutedCall
    readonly result: ExecutedResult
    readonly options: Options
  }

/** A reply piece during reading, with its position. */
export type Block =
  & { readonly at: number }
  & (
    | Made
    | { readonly kind: "reasoning"; text: string; options: Options }
    | { readonly kind: "text"; length: number; options: Options }
  )

/** A piece to send back. */
export type Piece =
  | Made
  | { readonly kind: "text" | "reasoning"; readonly text: string; readonly options: Options }
  | { readonly kind: "call"; readonly call: Message.ToolCall; readonly options: Options }
  | { readonly kind: "media"; readonly media: Media.Media }

/** Returns providers' options for a part, unless all are empty. */
export const spoken = (options: unknown): Options =>
  Json.isObject(options) &&
    Object.values(options).some((words) => !Json.isObject(words) || Object.keys(words).length > 0)
    ? options
    : undefined

/** Merges providers' options for a part. Each provider's latest value for each option counts. */
export const merged = <Value>(previous: Value, next: Value): Value => {
  if (!Json.isObject(previous) || !Json.isObject(next)) return next ?? previous
  const entries = Object.entries(next).map(([provider, words]) => {
    const known = previous[provider]
    return [provider, Json.isObject(known) && Json.isObject(words) ? { ...known, ...words } : words]
  })
  return { ...previous, ...Object.fromEntries(entries) } as Value
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing.

/** Makes the mark of a piece: plain data, whatever the library supplied. */
export const mark = (owner: Owner, at: number, fields: Json.JsonObject): Json.JsonObject =>
  Json.toJson(Wire.defined({ provider: owner.provider, at, ...fields })) as Json.JsonObject

const marks = (owner: Owner, at: number, fields: Json.JsonObject): Json.JsonObject => ({
  [owner.key]: mark(owner, at, fields)
})

/** Returns the reasoning stored in a message. `calls` are the positions of Heddle's own calls. */
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

/** Returns `true` for a message's default order: reasoning, then text, then calls. */
const isPlain = (blocks: ReadonlyArray<Block>, calls: ReadonlyArray<number>): boolean => {
  const texts = blocks.filter((block) => block.kind === "text")
  if (texts.some((block) => block.options !== undefined)) return false
  const first = texts[0]?.at ?? Infinity
  const last = texts.at(-1)?.at ?? -1
  return blocks.every((block) => block.kind === "text" || block.at < first) && calls.every((at) => at > last)
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading.

/** Returns the owner's mark, if written by the owner's provider. */
const marked = (owner: Owner, metadata: Json.JsonObject | undefined): Json.JsonObject | undefined => {
  const found = metadata?.[owner.key]
  return Json.isObject(found) && found["provider"] === owner.provider ? found : undefined
}

/** Returns `true` if this provider made a call and therefore knows its id. */
export const isOwn = (owner: Owner, call: Message.ToolCall): boolean => marked(owner, call.metadata) !== undefined

/** Returns the caller's options on a message, under the bridge's key. */
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
 * Returns an assistant message's pieces. They exclude another provider's reasoning, and provider-executed calls unless
 * this provider ran them and their results were stored.
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
  /** Length of the text piece at this position. Undefined for other pieces. */
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

/** Returns the text in its original pieces. A text changed since becomes one piece before the calls. */
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

/** Returns files in the message itself. Files made by this provider are stored separately, with positions. */
const mediaPieces = ({ content }: Message.Message, firstCall: number): ReadonlyArray<Placed> =>
  Media.mediaIn(content).map((media) => ({ at: beforeCalls(firstCall), piece: { kind: "media", media } }))

const callPiece = (owner: Owner, call: Message.ToolCall): ReadonlyArray<Placed> => {
  if (call.providerExecuted === true) return []
  const found = marked(owner, call.metadata)
  const at = typeof found?.["at"] === "number" ? found["at"] : Infinity
  return [{ at, piece: { kind: "call", call, options: objectOf(found?.["options"]) } }]
}
