/**
 * A turn of Anthropic's both ways: the content blocks of a reply while they are streamed (text, thinking, calls of this
 * side's tools, and what ran at the provider), and the turn as a message keeps it and as it goes back. A block belongs
 * to its index; texts are only appended to, so that the work is linear in the fragments.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import * as Answer from "./answerBody.ts"
import * as Wire from "./wire.ts"

/** The key under which this protocol keeps what has to go back. */
export const key = "anthropic"

/** The fields of every block: where it stands, what it was opened with, and whether the wire has closed it. */
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
  /** The fields that came in pieces. */
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
  /** The blocks by kind and index, because servers are known to number what they translate carelessly. */
  private readonly byPlace = new Map<string, Block>()
  /** The calls whose arguments came before their blocks, by the index of these. */
  private readonly early = new Map<unknown, ToolCalls.Call>()

  constructor(makeId: () => string) {
    this.calls = new ToolCalls.WireCalls(makeId, key)
  }

  get hasBegun(): boolean {
    return this.blocks.length > 0
  }

  /** The calls of the turn, in the order in which the wire opened them. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.completed
  }

  /** `true` if a server-side call has no result. One that did not arrive whole cannot get any. */
  get isServing(): boolean {
    const results = new Set(this.blocks.map(({ wire }) => wire["tool_use_id"]))
    return this.blocks.some((block) =>
      block.kind === "call" && block.call.isExecuted && block.call.completed?.argumentsLost === undefined &&
      !results.has(block.wire["id"])
    )
  }

  /** The citations that the text is based on, with the part of the text that they belong to. */
  get citations(): ReadonlyArray<Json.JsonObject> {
    return this.blocks.flatMap((block) =>
      block.kind === "text"
        ? block.citations.map((citation) => ({ start: block.start, end: block.start + block.text.length, citation }))
        : []
    )
  }

  /** The reasoning of the message, and with it what else has to go back. */
  reasoning(container: string | undefined): ReadonlyArray<Message.Part> {
    return keep({ pieces: this.blocks.flatMap(piece), container })
  }

  // -------------------------------------------------------------------------------------------------------------------
  // reading

  /** A block is opened. A call that is opened again by its id is no other, closed or not. */
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

  /** A block of an answer that came in one piece. One that the token limit ended is not closed. */
  openWhole(index: number, wire: Json.JsonObject, isCut: boolean, out: Answer.Out): void {
    this.open(index, wire, out)
    if (isCut) return
    const block = this.at("call", index)
    if (block?.kind === "call" && "input" in wire) this.argue(block.call, JSON.stringify(wire["input"]), out)
    this.close(index, out)
  }

  /** The block of that kind at an index, or the last of the kind if there is none to go by. */
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

  /** Calls that code of the server's makes come with their whole input. A call without a name is none. */
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

  /** Adds what a block has from the start. */
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

  /** A piece of a block. False if it adds to a call that is complete: no order of events can say so. */
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

  /** Arguments of a block that is not there: it comes later, or they belong to another one. */
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

  /** Pieces of blocks of other kinds: texts are appended, everything else replaces what was there. */
  private extend({ added, wire }: Other, delta: Json.JsonObject): void {
    for (const [name, value] of Object.entries(delta)) {
      if (name === "type") continue
      const before = added[name] ?? wire[name]
      added[name] = typeof before === "string" && typeof value === "string" ? before + value : value
    }
  }

  // -------------------------------------------------------------------------------------------------------------------
  // completing

  /** The wire has closed what stands at an index. */
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

  /** Takes the input that a call was opened with for all of it, where no fragment came. */
  private seed({ call, wire: { input } }: Called, out: Answer.Out): void {
    if (call.text.trim() === "" && Json.isObject(input) && Object.keys(input).length > 0) {
      this.argue(call, JSON.stringify(input), out)
    }
  }

  /** The reply continues: the call before is complete, unless its text shows that more is to come. */
  private moveOn(out: Answer.Out): void {
    const last = this.blocks.at(-1)
    if (last?.kind !== "call") return
    const { call, isClosed } = last
    const isEmpty = isClosed && call.isObserved && call.text.trim() === ""
    if (isEmpty && !this.calls.hasStrays) this.calls.close(call, false, out)
    else this.calls.settle(call, out)
  }

  /**
   * Completes what is open when the turn has ended. If the token limit ended it, a call that is not closed, or empty,
   * was cut. A call without any fragment has no arguments, unless the turn was cut. Returns the reason why what was
   * read cannot be trusted, if it cannot.
   */
  end(ending: ToolCalls.Ending, out: Answer.Out): string | undefined {
    const open = this.blocks.filter((block) => block.kind === "call").filter(({ call }) => call.completed === undefined)
    for (const block of open) if (ending !== "truncated" || block.isClosed) this.seed(block, out)
    const left = new Set(open.flatMap(({ call, isClosed }) => isClosed ? [] : [call]))
    return this.calls.endKnown(ending, (call) => left.has(call) || call.text.trim() === "", out)
  }
}

/** Returns `true` if a call is opened that is open, or one with an id that is closed. */
const isAgain = ({ isClosed, name, wire }: Called, other: Json.JsonObject): boolean =>
  wire["id"] === other["id"] && (!isClosed || (name === other["name"] && Wire.string(wire["id"]) !== undefined))

/**
 * Returns a block as it stands in the turn that goes back. A server's call that did not arrive whole is left out of it.
 */
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
// turns in messages: a message has places for its text, its reasoning and its calls. Blocks of other kinds (redacted
// thinking, the calls and results of server tools, compaction) and the order of all of them are kept as reasoning parts
// that only this protocol reads. They come back unchanged; a message that was changed since, or that another protocol
// wrote, comes back as far as it can be said here.

/** A piece of a turn: text, a call of this side's tools, or a block that goes back as it came. */
type Piece =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "call"; readonly call: Message.ToolCall }
  | { readonly type: "block"; readonly block: Json.JsonObject }

/** A turn, and the container that its server tools ran in. */
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

/** A message implies that its reasoning comes first, then its text, then its calls. */
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

/** The reasoning of the message that stands for a turn. */
const keep = ({ container, pieces }: Turn): ReadonlyArray<Message.Part> => {
  const parts = pieces.flatMap((piece) => piece.type === "block" ? [partOf(piece.block)] : [])
  if (isPlain(pieces) && container === undefined) return parts
  const order = { type: "order", order: pieces.map(placeOf), ...(container === undefined ? {} : { container }) }
  return [...parts, keptAs(order)]
}

/** The block that a reasoning part stands for; that of another protocol stands for none. */
const blockOf = ({ metadata, signature, text }: Reasoning, isOthers: boolean): Json.JsonObject | undefined => {
  const own = metadata?.[key]
  if (Json.isObject(own)) {
    return own["type"] === "thinking"
      ? { ...own, thinking: text, signature: signature ?? "" }
      : own
  }
  return isOthers || Wire.string(signature) === undefined ? undefined : { type: "thinking", thinking: text, signature }
}

/** A signature alone does not name its provider; the fields beside it may. */
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

/** The pieces in their order. What the order does not know follows it; a text that was changed stays in one piece. */
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
