/**
 * Keeps Anthropic turns in both directions: the content blocks of a streaming reply (text, thinking, tool calls and
 * provider-executed work), and the turn as a message stores it and sends it back. Each block belongs to its index.
 * Texts are only appended to, so the work is linear in the fragments.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as Answer from "./answerBody.ts"
import * as Wire from "./wire.ts"

/** Metadata key for everything this protocol sends back. */
export const key = "anthropic"

/** Fields common to all blocks: the opening wire object, and whether the wire has closed the block. */
interface Opened {
  readonly wire: Json.JsonObject
  isClosed: boolean
}

interface Text extends Opened {
  readonly kind: "text"
  readonly start: number
  text: string
  readonly citations: Array<Json.JsonObject>
}

interface Thinking extends Opened {
  readonly kind: "thinking"
  text: string
  signature: string | undefined
}

interface Called extends Opened {
  readonly kind: "call"
  readonly name: string
  readonly call: ToolCalls.Call
}

interface Other extends Opened {
  readonly kind: "other"
  /** Fields received in pieces. */
  readonly added: Record<string, unknown>
}

type Block = Text | Thinking | Called | Other

const kinds: ReadonlyArray<Block["kind"]> = ["text", "thinking", "call", "other"]

const kindOf = (type: string): Block["kind"] => {
  if (type === "text" || type === "thinking") return type
  return type === "tool_use" || type.endsWith("_tool_use") ? "call" : "other"
}

const place = (kind: Block["kind"], index: unknown): string => `${kind} ${String(index)}`

const deltaKinds: ReadonlyMap<unknown, Block["kind"]> = new Map([
  ["text_delta", "text"],
  ["citations_delta", "text"],
  ["thinking_delta", "thinking"],
  ["signature_delta", "thinking"],
  ["input_json_delta", "call"]
])

export class Blocks {
  text = ""
  private readonly calls: ToolCalls.WireCalls
  private readonly blocks: Array<Block> = []
  /** Blocks by kind and index, because translating servers number blocks carelessly. */
  private readonly byPlace = new Map<string, Block>()
  /** Calls whose arguments came before their blocks, by block index. */
  private readonly early = new Map<unknown, ToolCalls.Call>()

  constructor(makeId: () => string) {
    this.calls = new ToolCalls.WireCalls(makeId, key)
  }

  get hasBegun(): boolean {
    return this.blocks.length > 0
  }

  /** The turn's calls, in the order the wire opened them. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.completed
  }

  /** `true` if a server-side call has no result. A call with lost arguments cannot get a result. */
  get isServing(): boolean {
    const results = new Set(this.blocks.map(({ wire }) => wire["tool_use_id"]))
    return this.blocks.some((block) =>
      block.kind === "call" && block.call.isExecuted && block.call.completed?.argumentsLost === undefined &&
      !results.has(block.wire["id"])
    )
  }

  /** Citations for the text, each with its text range. */
  get citations(): ReadonlyArray<Json.JsonObject> {
    return this.blocks.flatMap((block) =>
      block.kind === "text"
        ? block.citations.map((citation) => ({ start: block.start, end: block.start + block.text.length, citation }))
        : []
    )
  }

  /** Builds the message's reasoning, including everything else to send back. */
  reasoning(container: string | undefined): ReadonlyArray<Message.Part> {
    return keep({ pieces: this.blocks.flatMap(piece), container })
  }

  // -------------------------------------------------------------------------------------------------------------------
  // reading

  /** Opens a block. Reopening a call by its id, closed or not, adds no second call. */
  open(index: unknown, wire: Json.JsonObject, out: Answer.Out): void {
    const type = Wire.string(wire["type"])
    if (type === undefined) return
    const known = this.at(kindOf(type), index)
    if (known?.kind === "call" && isAgain(known, wire)) return
    this.moveOn(out)
    const block = this.make(type, index, wire)
    if (block === undefined) return
    this.blocks.push(block)
    this.byPlace.set(place(block.kind, index), block)
    this.begin(block, out)
  }

  /** Opens a block that arrived whole. A block ended by the token limit stays open. */
  openWhole(index: number, wire: Json.JsonObject, isCut: boolean, out: Answer.Out): void {
    this.open(index, wire, out)
    if (isCut) return
    const block = this.at("call", index)
    if (block?.kind === "call" && "input" in wire) this.argue(block.call, JSON.stringify(wire["input"]), out)
    this.close(index, out)
  }

  /** Finds the block by kind and index. Without an index, the last block of the kind matches. */
  private at(kind: Block["kind"], index: unknown): Block | undefined {
    return index === undefined
      ? this.blocks.findLast((block) => block.kind === kind)
      : this.byPlace.get(place(kind, index))
  }

  private make(type: string, index: unknown, wire: Json.JsonObject): Block | undefined {
    switch (kindOf(type)) {
      case "text":
        return { kind: "text", wire, isClosed: false, start: this.text.length, text: "", citations: [] }
      case "thinking":
        return { kind: "thinking", wire, isClosed: false, text: "", signature: undefined }
      case "call":
        return this.makeCall(wire, index, type)
      case "other":
        return { kind: "other", wire, isClosed: false, added: {} }
    }
  }

  /** Opens a call. Calls made by server code come with their whole input. A call without a name is ignored. */
  private makeCall(wire: Json.JsonObject, index: unknown, type: string): Called | undefined {
    const name = Wire.string(wire["name"])
    if (name === undefined) return undefined
    const { id, input: _input, name: _name, ...own } = wire
    const caller = Wire.object(wire["caller"])
    const isServed = type !== "tool_use"
    const isDirect = caller["type"] === undefined || caller["type"] === "direct"
    const call = this.early.get(index) ?? this.calls.open(undefined)
    this.early.delete(index)
    call.wireId = Wire.string(id)
    call.metadata = isServed ? own : isDirect ? {} : { caller }
    call.isExecuted = isServed
    call.isObserved ||= !isDirect
    return { kind: "call", wire, isClosed: false, name, call }
  }

  /** Adds the initial content of a block. */
  private begin(block: Block, out: Answer.Out): void {
    if (block.kind === "text") {
      for (const citation of Wire.list(block.wire["citations"])) block.citations.push(citation)
      this.say(block, Wire.string(block.wire["text"]) ?? "", out)
    }
    if (block.kind === "thinking") {
      this.think(block, Wire.string(block.wire["thinking"]) ?? "", out)
      block.signature = Wire.string(block.wire["signature"])
    }
    if (block.kind === "call") this.calls.name(block.call, block.name, out)
  }

  /**
   * Adds a fragment to its block. Returns `false` if the fragment extends a complete call, which no valid event order
   * can do.
   */
  add(index: unknown, delta: Json.JsonObject, out: Answer.Out): boolean {
    const { type } = delta
    const kind = deltaKinds.get(type) ?? "other"
    if (this.at(kind, index) === undefined && (kind === "text" || kind === "thinking")) {
      this.open(index, { type: kind }, out)
    }
    const block = this.at(kind, index)
    if (block === undefined) {
      if (kind === "call") this.stray(index, Wire.string(delta["partial_json"]) ?? "", out)
      return true
    }
    switch (block.kind) {
      case "text":
        this.say(block, Wire.string(delta["text"]) ?? "", out)
        if (Json.isObject(delta["citation"])) block.citations.push(delta["citation"])
        return true
      case "thinking":
        this.think(block, Wire.string(delta["thinking"]) ?? "", out)
        if (type === "signature_delta") {
          block.signature = (block.signature ?? "") + (Wire.string(delta["signature"]) ?? "")
        }
        return true
      case "call":
        return this.argue(block.call, Wire.string(delta["partial_json"]) ?? "", out)
      case "other":
        this.extend(block, delta)
        return true
    }
  }

  /** Collects arguments without a block. Their block comes later, or they belong to another call. */
  private stray(index: unknown, text: string, out: Answer.Out): void {
    const call = this.early.get(index) ?? this.calls.open(undefined)
    this.early.set(index, call)
    this.calls.append(call, text, out)
  }

  private say(block: Text, text: string, out: Answer.Out): void {
    block.text += text
    this.text += text
    Answer.say(text, out)
  }

  private think(block: Thinking, text: string, out: Answer.Out): void {
    block.text += text
    Answer.think(text, out)
  }

  private argue(call: ToolCalls.Call, text: string, out: Answer.Out): boolean {
    if (text !== "") call.isTried = false
    return this.calls.append(call, text, out)
  }

  /** Extends a block of another kind: texts are appended, all other values replaced. */
  private extend({ added, wire }: Other, delta: Json.JsonObject): void {
    for (const [name, value] of Object.entries(delta)) {
      if (name === "type") continue
      const before = added[name] ?? wire[name]
      added[name] = typeof before === "string" && typeof value === "string" ? before + value : value
    }
  }

  // -------------------------------------------------------------------------------------------------------------------
  // completing

  /** Closes the blocks at an index. */
  close(index: unknown, out: Answer.Out): void {
    for (const kind of kinds) {
      const block = this.at(kind, index)
      if (block === undefined || block.isClosed) continue
      block.isClosed = true
      if (block.kind !== "call") continue
      this.seed(block, out)
      this.calls.settle(block.call, out)
    }
  }

  /** Takes the opening input as the whole input if no fragment came. */
  private seed({ call, wire: { input } }: Called, out: Answer.Out): void {
    if (call.text.trim() === "" && Json.isObject(input) && Object.keys(input).length > 0) {
      this.argue(call, JSON.stringify(input), out)
    }
  }

  /** Moves past the last call. The call is complete, unless its text shows that more is to come. */
  private moveOn(out: Answer.Out): void {
    const last = this.blocks.at(-1)
    if (last?.kind !== "call") return
    const { call, isClosed } = last
    const isEmpty = isClosed && call.isObserved && call.text.trim() === ""
    if (isEmpty && !this.calls.hasStrays) this.calls.close(call, false, out)
    else this.calls.settle(call, out)
  }

  /**
   * Completes open blocks once the turn has ended. After the token limit, an unclosed or empty call counts as cut.
   * Otherwise a call without fragments has no arguments. Returns the reason the turn cannot be trusted, if any.
   */
  end(ending: ToolCalls.Ending, out: Answer.Out): string | undefined {
    const open = this.blocks.filter((block) => block.kind === "call").filter(({ call }) => call.completed === undefined)
    for (const block of open) if (ending !== "truncated" || block.isClosed) this.seed(block, out)
    const left = new Set(open.flatMap(({ call, isClosed }) => isClosed ? [] : [call]))
    return this.calls.endKnown(ending, (call) => left.has(call) || call.text.trim() === "", out)
  }
}

/** Returns `true` if the wire reopens an open call, or a closed call by its id. */
const isAgain = ({ isClosed, name, wire }: Called, other: Json.JsonObject): boolean =>
  wire["id"] === other["id"] && (!isClosed || (name === other["name"] && Wire.string(wire["id"]) !== undefined))

/** Returns a block as it goes back with the turn, leaving out server-side calls with lost arguments. */
const piece = (block: Block): ReadonlyArray<Piece> => {
  switch (block.kind) {
    case "text":
      return [{ type: "text", text: block.text }]
    case "thinking": {
      const { signature, text, wire } = block
      return [{ type: "block", block: { ...wire, thinking: text, ...(signature === undefined ? {} : { signature }) } }]
    }
    case "other":
      return [{ type: "block", block: { ...block.wire, ...block.added } }]
    case "call": {
      const call = block.call.completed
      const isServed = block.call.isExecuted
      if (call === undefined || (isServed && call.argumentsLost !== undefined)) return []
      if (!isServed) return [{ type: "call", call }]
      return [{ type: "block", block: { ...block.wire, id: Wire.wireIdOf(call), input: call.arguments } }]
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns in messages. A message has places for text, reasoning and calls. Blocks of other kinds (redacted thinking,
// server tool calls and results, compaction) and the order of all blocks become reasoning parts for this protocol only.
// They come back unchanged; a message since changed, or written by another protocol, comes back as far as this protocol
// can express it.

/** A turn piece: text, a tool call for Heddle, or a block to send back unchanged. */
type Piece =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "call"; readonly call: Message.ToolCall }
  | { readonly type: "block"; readonly block: Json.JsonObject }

/** A turn, and the container its server tools ran in. */
export interface Turn {
  readonly pieces: ReadonlyArray<Piece>
  readonly container: string | undefined
}

type Reasoning = Extract<Message.Part, { readonly type: "reasoning" }>

const keptAs = (own: Json.JsonObject, text = "", signature?: string): Reasoning => ({
  type: "reasoning",
  text,
  ...(signature === undefined ? {} : { signature }),
  metadata: { [key]: own }
})

const ranks: { readonly [type in Piece["type"]]: number } = { block: 0, text: 1, call: 2 }

/** Returns `true` for the order a message implies: blocks, then text, then calls. */
const isPlain = (pieces: ReadonlyArray<Piece>): boolean =>
  pieces.every((piece, index) => {
    const previous = pieces[index - 1]
    return previous === undefined || ranks[previous.type] <= ranks[piece.type]
  })

const partOf = (block: Json.JsonObject): Reasoning => {
  const { signature, thinking, ...rest } = block
  if (block["type"] !== "thinking") return keptAs(block)
  return keptAs(
    rest,
    typeof thinking === "string" ? thinking : "",
    typeof signature === "string" ? signature : undefined
  )
}

const placeOf = (piece: Piece): Json.JsonObject => {
  switch (piece.type) {
    case "text":
      return { type: "text", length: piece.text.length }
    case "call":
      return { type: "call", id: Wire.wireIdOf(piece.call) }
    case "block":
      return { type: "block" }
  }
}

/** Builds the reasoning of a turn's message. */
const keep = ({ container, pieces }: Turn): ReadonlyArray<Message.Part> => {
  const parts = pieces.flatMap((piece) => piece.type === "block" ? [partOf(piece.block)] : [])
  if (isPlain(pieces) && container === undefined) return parts
  const order = { type: "order", order: pieces.map(placeOf), ...(container === undefined ? {} : { container }) }
  return [...parts, keptAs(order)]
}

/** Returns the block behind a reasoning part, or `undefined` for another protocol's part. */
const blockOf = ({ metadata, signature, text }: Reasoning, isOthers: boolean): Json.JsonObject | undefined => {
  const own = metadata?.[key]
  if (Json.isObject(own)) {
    return own["type"] === "thinking"
      ? { ...own, thinking: text, signature: signature ?? "" }
      : own
  }
  return isOthers || Wire.string(signature) === undefined ? undefined : { type: "thinking", thinking: text, signature }
}

/** Detects reasoning from another provider. A signature alone does not name its provider; the fields beside it may. */
const isForeign = (parts: ReadonlyArray<Reasoning>): boolean =>
  parts.some(({ metadata = {} }) => Object.keys(metadata).length > 0 && metadata[key] === undefined)

const isReasoning = (value: Message.Part): value is Reasoning => value.type === "reasoning"

/** All reasoning of a message, starting with the parts beside its content. */
const reasoningOf = (message: Message.Message): ReadonlyArray<Reasoning> => [
  ...(message.reasoning ?? []).filter(isReasoning),
  ...(typeof message.content === "string" ? [] : message.content.filter(isReasoning))
]

/**
 * Restores the turn of an assistant message. Provider-executed work is already in the blocks, or came from another
 * provider.
 */
export const restore = (message: Message.Message): Turn => {
  const parts = reasoningOf(message)
  const isOthers = isForeign(parts)
  const own = parts.map((part) => blockOf(part, isOthers)).filter((block) => block !== undefined)
  const order = own.find((block) => block["type"] === "order")
  const blocks = own.filter((block) => block !== order)
  const calls = Wire.ownCalls(message)
  const text = Message.text(message)
  const pieces = order === undefined
    ? [...blocks.map(blockPiece), textPiece(text), ...calls.map(callPiece)]
    : ordered(Wire.list(order["order"]), blocks, text, calls)
  return { pieces, container: Wire.string(Wire.object(order)["container"]) }
}

const textPiece = (text: string): Piece => ({ type: "text", text })
const callPiece = (call: Message.ToolCall): Piece => ({ type: "call", call })
const blockPiece = (block: Json.JsonObject): Piece => ({ type: "block", block })

/** Restores the order of pieces. Unlisted pieces follow; a changed text stays in one piece. */
const ordered = (
  order: ReadonlyArray<Json.JsonObject>,
  blocks: ReadonlyArray<Json.JsonObject>,
  text: string,
  calls: ReadonlyArray<Message.ToolCall>
): ReadonlyArray<Piece> => {
  const texts = Wire.divided(text, order.map(({ length }) => length))
  const restBlocks = [...blocks]
  const restCalls = new Wire.CallsByWireId(calls)
  let restText = texts === undefined ? text : ""
  const placed = order.flatMap(({ id, type }, index): ReadonlyArray<Piece> => {
    if (type === "text") {
      const said = texts?.[index] ?? restText
      restText = ""
      return [textPiece(said)]
    }
    if (type === "block") return restBlocks.splice(0, 1).map(blockPiece)
    const call = restCalls.take(String(id))
    return call === undefined ? [] : [callPiece(call)]
  })
  return [...placed, ...restBlocks.map(blockPiece), textPiece(restText), ...restCalls.rest.map(callPiece)]
}
