/**
 * The content blocks of a streamed turn: text, thinking, calls of this side's tools, and what ran at the provider. A
 * block belongs to its index; texts are only appended to, and a call's arguments parsed at most three times, so that the
 * work is linear in the fragments. Every call gets an id that no other call of the turn has, is completed exactly once,
 * and is marked as lost if its arguments did not arrive whole.
 */
import type * as Event from "../../Event.ts"
import * as CallArguments from "../../internal/hear/callArguments.ts"
import * as CallIds from "../../internal/hear/callIds.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Turn from "./anthropicTurn.ts"
import { list, object, string } from "./wire.ts"

type Events = Array<Event.AdapterEvent>

/** What every block has in common: where it stands, what it was opened with, and whether the wire has closed it. */
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

interface Call extends Opened {
  readonly kind: "call"
  readonly id: string
  readonly name: string
  readonly metadata: Json.JsonObject
  /** Whether it runs at the provider. */
  readonly isServed: boolean
  /** Whether a fragment came, or whether there need not come any. */
  isObserved: boolean
  isTried: boolean
  text: string
  completed: Message.ToolCall | undefined
}

interface Other extends Opened {
  readonly kind: "other"
  /** What came in pieces. */
  readonly added: Record<string, unknown>
}

type Block = Text | Thinking | Call | Other

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

/** The arguments in a text. Some servers write `null` where a call has none. */
const read = (text: string): CallArguments.Arguments => CallArguments.ofText(CallArguments.nullAsNone(text))

export class Blocks {
  /** All text of the turn. */
  text = ""
  private readonly makeId: () => string
  private readonly blocks: Array<Block> = []
  /** By kind and index, because servers are known to number what they translate carelessly. */
  private readonly byPlace = new Map<string, Block>()
  /** Arguments that came before their block. */
  private readonly early = new Map<unknown, string>()
  private readonly ids = new CallIds.UniqueIds()

  constructor(makeId: () => string) {
    this.makeId = makeId
  }

  get hasBegun(): boolean {
    return this.blocks.length > 0
  }

  /** The calls of the turn, in the order in which the wire opened them. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.blocks.flatMap((block) =>
      block.kind === "call" && block.completed !== undefined ? [block.completed] : []
    )
  }

  /** What the text is based on, with the part of the text that it belongs to. */
  get citations(): ReadonlyArray<Json.JsonObject> {
    return this.blocks.flatMap((block) =>
      block.kind === "text"
        ? block.citations.map((citation) => ({ start: block.start, end: block.start + block.text.length, citation }))
        : []
    )
  }

  /** The reasoning of the message, and with it what else has to go back. */
  reasoning(container: string | undefined): ReadonlyArray<Message.Part> {
    return Turn.keep({ pieces: this.blocks.flatMap(piece), container })
  }

  // -------------------------------------------------------------------------------------------------------------------
  // reading

  /** A block is opened. A call that is open already and is opened again by its id is no other. */
  open(index: unknown, wire: Json.JsonObject, out: Events): void {
    const type = string(wire["type"])
    if (type === undefined) return
    const known = this.at(kindOf(type), index)
    if (known?.isClosed === false && known.kind === "call" && known.wire["id"] === wire["id"]) return
    this.moveOn(out)
    const block = this.make(type, wire)
    if (block === undefined) return
    this.blocks.push(block)
    this.byPlace.set(place(block.kind, index), block)
    this.begin(block, index, out)
  }

  /** A block of an answer that came in one piece. One that the token limit ended is not closed. */
  openWhole(index: number, wire: Json.JsonObject, isCut: boolean, out: Events): void {
    this.open(index, wire, out)
    if (isCut) return
    const call = this.at("call", index)
    if (call?.kind === "call" && "input" in wire) this.goOn(call, JSON.stringify(wire["input"]), out)
    this.close(index, out)
  }

  /** The block of that kind at an index, or the last of the kind if there is none to go by. */
  private at(kind: Block["kind"], index: unknown): Block | undefined {
    return index === undefined
      ? this.blocks.findLast((block) => block.kind === kind)
      : this.byPlace.get(place(kind, index))
  }

  private make(type: string, wire: Json.JsonObject): Block | undefined {
    switch (kindOf(type)) {
      case "text":
        return { kind: "text", wire, isClosed: false, start: this.text.length, text: "", citations: [] }
      case "thinking":
        return { kind: "thinking", wire, isClosed: false, text: "", signature: undefined }
      case "call":
        return this.makeCall(wire, type)
      case "other":
        return { kind: "other", wire, isClosed: false, added: {} }
    }
  }

  /** Calls that code of the server's makes come with their whole input. A call without a name is none. */
  private makeCall(wire: Json.JsonObject, type: string): Call | undefined {
    const name = string(wire["name"])
    if (name === undefined) return undefined
    const { id: wanted, input: _input, name: _name, ...own } = wire
    const caller = object(wire["caller"])
    const isServed = type !== "tool_use"
    const isDirect = caller["type"] === undefined || caller["type"] === "direct"
    const { id, ...duplicate } = this.uniqueId(string(wanted) ?? this.makeId())
    const kept = isServed ? own : isDirect ? undefined : { caller }
    return {
      kind: "call",
      wire,
      isClosed: false,
      id,
      name,
      metadata: { ...duplicate, ...(kept === undefined ? {} : { [Turn.key]: kept }) },
      isServed,
      isObserved: !isDirect,
      isTried: false,
      text: "",
      completed: undefined
    }
  }

  private uniqueId(wanted: string): { readonly id: string; readonly duplicateOf?: string } {
    const id = this.ids.take(wanted)
    return id === wanted ? { id } : { id, duplicateOf: wanted }
  }

  /** What a block has from the start, and what came for it before. */
  private begin(block: Block, index: unknown, out: Events): void {
    if (block.kind === "text") {
      for (const citation of list(block.wire["citations"])) block.citations.push(citation)
      this.say(block, string(block.wire["text"]) ?? "", out)
    }
    if (block.kind === "thinking") {
      this.think(block, string(block.wire["thinking"]) ?? "", out)
      block.signature = string(block.wire["signature"])
    }
    if (block.kind !== "call") return
    out.push({ _tag: "ToolCallStarted", id: block.id, name: block.name })
    const early = this.early.get(index)
    this.early.delete(index)
    if (early !== undefined) this.argue(block, early, out)
  }

  /** A piece of a block. False if it goes on with a call that had been completed, which no order of events can tell. */
  add(index: unknown, delta: Json.JsonObject, out: Events): boolean {
    const { type } = delta
    const kind = deltaKinds.get(type) ?? "other"
    if (this.at(kind, index) === undefined && (kind === "text" || kind === "thinking")) {
      this.open(index, { type: kind }, out)
    }
    const block = this.at(kind, index)
    if (block === undefined) {
      if (kind === "call") this.early.set(index, (this.early.get(index) ?? "") + (string(delta["partial_json"]) ?? ""))
      return true
    }
    switch (block.kind) {
      case "text":
        this.say(block, string(delta["text"]) ?? "", out)
        if (Json.isObject(delta["citation"])) block.citations.push(delta["citation"])
        return true
      case "thinking":
        this.think(block, string(delta["thinking"]) ?? "", out)
        if (type === "signature_delta") block.signature = (block.signature ?? "") + (string(delta["signature"]) ?? "")
        return true
      case "call":
        return this.goOn(block, string(delta["partial_json"]) ?? "", out)
      case "other":
        this.extend(block, delta)
        return true
    }
  }

  private say(block: Text, text: string, out: Events): void {
    if (text === "") return
    block.text += text
    this.text += text
    out.push({ _tag: "TextDelta", id: null, delta: text })
  }

  private think(block: Thinking, text: string, out: Events): void {
    if (text === "") return
    block.text += text
    out.push({ _tag: "ReasoningDelta", id: null, delta: text })
  }

  private goOn(call: Call, text: string, out: Events): boolean {
    if (call.completed !== undefined) return text.trim() === "" || text === call.text
    this.argue(call, text, out)
    return true
  }

  private argue(call: Call, text: string, out: Events): void {
    call.isObserved = true
    if (text === "") return
    call.text += text
    call.isTried = false
    out.push({ _tag: "ToolCallDelta", id: call.id, argumentsDelta: text })
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
  close(index: unknown, out: Events): void {
    for (const kind of kinds) {
      const block = this.at(kind, index)
      if (block === undefined || block.isClosed) continue
      block.isClosed = true
      if (block.kind !== "call") continue
      this.seed(block, out)
      this.settle(block, out)
    }
  }

  /** Without fragments, the input that a call was opened with is all of it. */
  private seed(call: Call, out: Events): void {
    const { input } = call.wire
    if (call.text.trim() === "" && Json.isObject(input) && Object.keys(input).length > 0) {
      this.argue(call, JSON.stringify(input), out)
    }
  }

  /** The wire goes on: the call before is complete, unless its text shows that more is to come. */
  private moveOn(out: Events): void {
    const last = this.blocks.at(-1)
    if (last?.kind !== "call" || last.completed !== undefined) return
    if (last.isClosed && last.isObserved && last.text.trim() === "") this.complete(last, { arguments: {} }, out)
    else this.settle(last, out)
  }

  /** Completes a call whose text is whole. One that has none may have been cut off before it. */
  private settle(call: Call, out: Events): void {
    if (call.isTried || call.text.trim() === "") return
    call.isTried = true
    const found = read(call.text)
    if (CallArguments.isFinal(found)) this.complete(call, found, out)
  }

  /**
   * Completes what is open when the turn has ended. If the token limit did that, what is not closed or empty was cut. A
   * call without any fragment has no arguments, unless the turn was cut.
   */
  end(ending: CallArguments.Ending, out: Events): void {
    for (const call of this.blocks) {
      if (call.kind !== "call" || call.completed !== undefined) continue
      const isCut = ending === "truncated" && (!call.isClosed || call.text.trim() === "")
      if (!isCut) this.seed(call, out)
      this.complete(call, isCut ? CallArguments.lost("truncated") : finalArguments(call, ending), out)
    }
  }

  private complete(call: Call, args: CallArguments.Arguments, out: Events): void {
    const { id, isServed, metadata, name, text } = call
    const common = { id, name, rawArguments: text, ...args, ...(isServed ? { providerExecuted: true } : {}) }
    call.completed = { ...common, metadata }
    out.push({ _tag: "ToolCallCompleted", ...common, ...(Object.keys(metadata).length === 0 ? {} : { metadata }) })
  }
}

const finalArguments = (call: Call, ending: CallArguments.Ending): CallArguments.Arguments =>
  CallArguments.atEnd(CallArguments.nullAsNone(call.text), call.isObserved, ending)

/** What a block is in the turn that goes back. A server's call that did not arrive whole is left out of it. */
const piece = (block: Block): ReadonlyArray<Turn.Piece> => {
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
      const call = block.completed
      if (call === undefined || (block.isServed && call.argumentsLost !== undefined)) return []
      if (!block.isServed) return [{ type: "call", call }]
      return [{ type: "block", block: { ...block.wire, id: call.id, input: call.arguments } }]
    }
  }
}
