/**
 * An assistant's turn in Anthropic's blocks, and the same turn in a message. A message has places for its text, its
 * reasoning and its calls; blocks of other kinds (redacted thinking, the calls and results of server tools, compaction)
 * and the order of all of them are kept as reasoning parts that only this protocol reads. What was kept comes back
 * unchanged; a message that was changed since, or that another protocol wrote, comes back as far as it can be said here.
 */
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import { list, object, string } from "./wire.ts"

/** The key under which this protocol keeps what has to go back. */
export const key = "anthropic"

/** A piece of a turn: text, a call of this side's tools, or a block that goes back as it came. */
export type Piece =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "call"; readonly call: Message.ToolCall }
  | { readonly type: "block"; readonly block: Json.JsonObject }

/** A turn, and the container that its server tools ran in. */
export interface Turn {
  readonly pieces: ReadonlyArray<Piece>
  readonly container: string | undefined
}

type Reasoning = Extract<Message.Part, { readonly type: "reasoning" }>

const kept = (own: Json.JsonObject, text = "", signature?: string): Reasoning => ({
  type: "reasoning",
  text,
  ...(signature === undefined ? {} : { signature }),
  metadata: { [key]: own }
})

// ---------------------------------------------------------------------------------------------------------------------
// keeping

const ranks: { readonly [type in Piece["type"]]: number } = { block: 0, text: 1, call: 2 }

/** A message says by itself that its reasoning comes first, then its text, then its calls. */
const isPlain = (pieces: ReadonlyArray<Piece>): boolean =>
  pieces.every((piece, index) => {
    const previous = pieces[index - 1]
    return previous === undefined || ranks[previous.type] <= ranks[piece.type]
  })

const part = (block: Json.JsonObject): Reasoning => {
  const { signature, thinking, ...rest } = block
  if (block["type"] !== "thinking") return kept(block)
  return kept(rest, typeof thinking === "string" ? thinking : "", typeof signature === "string" ? signature : undefined)
}

const place = (piece: Piece): Json.JsonObject => {
  switch (piece.type) {
    case "text":
      return { type: "text", length: piece.text.length }
    case "call":
      return { type: "call", id: piece.call.id }
    case "block":
      return { type: "block" }
  }
}

/** The reasoning of the message that stands for a turn. */
export const keep = ({ container, pieces }: Turn): ReadonlyArray<Message.Part> => {
  const parts = pieces.flatMap((piece) => piece.type === "block" ? [part(piece.block)] : [])
  if (isPlain(pieces) && container === undefined) return parts
  const order = { type: "order", order: pieces.map(place), ...(container === undefined ? {} : { container }) }
  return [...parts, kept(order)]
}

// ---------------------------------------------------------------------------------------------------------------------
// restoring

/** The block that a reasoning part stands for; that of another protocol stands for none. */
const blockOf = ({ metadata, signature, text }: Reasoning, isOthers: boolean): Json.JsonObject | undefined => {
  const own = metadata?.[key]
  if (Json.isObject(own)) {
    return own["type"] === "thinking"
      ? { ...own, thinking: text, signature: signature ?? "" }
      : own
  }
  return isOthers || string(signature) === undefined ? undefined : { type: "thinking", thinking: text, signature }
}

/** A signature alone does not say whose it is; what stands beside it may. */
const isForeign = (parts: ReadonlyArray<Reasoning>): boolean =>
  parts.some(({ metadata = {} }) => Object.keys(metadata).length > 0 && metadata[key] === undefined)

const isReasoning = (value: Message.Part): value is Reasoning => value.type === "reasoning"

/** All reasoning of a message, that beside its content first. */
const reasoningOf = (message: Message.Message): ReadonlyArray<Reasoning> => [
  ...(message.reasoning ?? []).filter(isReasoning),
  ...(typeof message.content === "string" ? [] : message.content.filter(isReasoning))
]

/** The turn that an assistant message stands for. What ran at a provider is in the blocks, or was another's. */
export const restore = (message: Message.Message): Turn => {
  const parts = reasoningOf(message)
  const isOthers = isForeign(parts)
  const own = parts.map((part) => blockOf(part, isOthers)).filter((block) => block !== undefined)
  const order = own.find((block) => block["type"] === "order")
  const blocks = own.filter((block) => block !== order)
  const calls = (message.toolCalls ?? []).filter((call) => call.providerExecuted !== true)
  const text = Message.text(message)
  const pieces = order === undefined
    ? [...blocks.map(blockPiece), textPiece(text), ...calls.map(callPiece)]
    : ordered(list(order["order"]), blocks, text, calls)
  return { pieces, container: string(object(order)["container"]) }
}

const textPiece = (text: string): Piece => ({ type: "text", text })
const callPiece = (call: Message.ToolCall): Piece => ({ type: "call", call })
const blockPiece = (block: Json.JsonObject): Piece => ({ type: "block", block })

/** The pieces in their order. What the order does not know follows it; a text that was changed stays in one piece. */
const ordered = (
  order: ReadonlyArray<Json.JsonObject>,
  blocks: ReadonlyArray<Json.JsonObject>,
  text: string,
  calls: ReadonlyArray<Message.ToolCall>
): ReadonlyArray<Piece> => {
  const lengths = order.map(({ length }) => typeof length === "number" ? length : 0)
  const isUnchanged = lengths.reduce((sum, length) => sum + length, 0) === text.length
  const restBlocks = [...blocks]
  const restCalls = new Map(calls.map((call) => [call.id, call]))
  let restText = text
  const placed = order.flatMap(({ id, type }, index): ReadonlyArray<Piece> => {
    if (type === "text") {
      const length = isUnchanged ? lengths[index] ?? 0 : restText.length
      const said = restText.slice(0, length)
      restText = restText.slice(length)
      return [textPiece(said)]
    }
    if (type === "block") return restBlocks.splice(0, 1).map(blockPiece)
    const call = restCalls.get(String(id))
    restCalls.delete(String(id))
    return call === undefined ? [] : [callPiece(call)]
  })
  return [...placed, ...restBlocks.map(blockPiece), textPiece(restText), ...[...restCalls.values()].map(callPiece)]
}
