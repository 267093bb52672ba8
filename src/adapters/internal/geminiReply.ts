/**
 * Reads a Gemini reply: its calls, the details beside its parts, and its turn in both directions, as a message stores
 * it and as it goes back.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Answer from "./answerBody.ts"
import * as Media from "./media.ts"
import * as Wire from "./wire.ts"

/** Metadata key for values sent back to this protocol only. */
export const metadataKey = "gemini"

interface Call {
  readonly name: string
  readonly wireId: string | undefined
  metadata: Json.JsonObject
  /** Arguments, once final. */
  text: string | undefined
  isFinal: boolean
  /** `true` if the argument pieces contradict each other. */
  isLost: boolean
  /** The emitted call. A call is held back until it is known to be for Heddle. */
  emitted: ToolCalls.Call | undefined
}

/**
 * Collects the calls of a reply. A call normally comes whole in one part, without an id, and is complete at once; some
 * models stream its arguments as path values. A call to an undeclared tool may have run at the provider: its answer
 * then follows in the same reply. Such a call is held back until then: Heddle must not run a call the provider ran.
 */
export class Calls {
  private readonly declared: ReadonlySet<string>
  private readonly calls: ToolCalls.WireCalls
  /** Calls not yet emitted, in order: all, and by name. */
  private readonly held = new Set<Call>()
  private readonly heldByName = new Map<string, Set<Call>>()
  /** Calls by id. A server may repeat such a call unchanged. */
  private readonly byWireId = new Map<string, Call>()
  /** The call continued by further parts. `isAnnounced`: its own part announced them. */
  private open: { readonly call: Call; readonly args: PathArguments; readonly isAnnounced: boolean } | undefined
  /** Reason the reply cannot be trusted, if any. */
  problem: string | undefined
  /** `true` after stray argument pieces, possibly meant for the next call. */
  private hasStrays = false

  constructor(makeId: () => string, declared: ReadonlySet<string>) {
    this.declared = declared
    this.calls = new ToolCalls.WireCalls(makeId, metadataKey)
  }

  /** All calls, in the order they were emitted. */
  get toolCalls(): ReadonlyArray<Message.ToolCall> {
    return this.calls.completed
  }

  /** Reads a part with a call. Returns the call if the part opens a new call. */
  read(value: Json.JsonObject, signature: string | undefined, out: Answer.Out): Call | undefined {
    const name = Wire.string(value["name"])
    const wireId = Wire.string(value["id"])
    const opened = this.open?.call
    const isNext = name !== undefined && !(opened?.name === name && wireId !== undefined && opened.wireId === wireId)
    if (!isNext) {
      if (signature !== undefined) this.sign(signature)
      this.proceed(value, out)
      return undefined
    }
    this.close(out)
    if (this.isRepeated(value, name, wireId)) return undefined
    const metadata = Wire.defined({ id: wireId, thoughtSignature: signature })
    const call: Call = { name, wireId, metadata, text: undefined, isFinal: false, isLost: false, emitted: undefined }
    if (wireId !== undefined) this.byWireId.set(wireId, call)
    this.hold(call)
    this.begin(call, value, out)
    return call
  }

  /** Returns `true` if a part repeats a whole call. Another call with the same id differs in name or arguments. */
  private isRepeated(value: Json.JsonObject, name: string, wireId: string | undefined): boolean {
    const known = wireId === undefined ? undefined : this.byWireId.get(wireId)
    return known?.isFinal === true && known.name === name && known.text === JSON.stringify(value["args"] ?? {})
  }

  private sign(thoughtSignature: string): void {
    if (this.open !== undefined) this.open.call.metadata = { ...this.open.call.metadata, thoughtSignature }
  }

  private begin(call: Call, value: Json.JsonObject, out: Answer.Out): void {
    this.releaseDeclared(out)
    const isAnnounced = value["willContinue"] === true || Array.isArray(value["partialArgs"])
    // A call without arguments may receive them in later parts.
    if (isAnnounced || value["args"] === undefined) {
      this.open = { call, args: new PathArguments(), isAnnounced }
      this.open.args.isLost = this.hasStrays
      this.hasStrays = false
      if (isAnnounced) this.proceed(value, out)
    } else this.finish(call, JSON.stringify(value["args"] ?? {}), out)
  }

  /** Continues the open call with a nameless part, and closes it unless more is announced. */
  private proceed(value: Json.JsonObject, out: Answer.Out): void {
    if (this.open === undefined) return this.stray(value)
    this.open.args.take(value)
    if (value["willContinue"] !== true) this.close(out)
  }

  /** Handles pieces without an open call: a complete call cannot grow, and the next call still lacks its name. */
  private stray({ args, partialArgs }: Json.JsonObject): void {
    if (Wire.list(partialArgs).length === 0 && Object.keys(Wire.object(args)).length === 0) return
    if (this.calls.all.some((call) => !call.isExecuted)) this.problem = ToolCalls.contradiction
    this.hasStrays = true
  }

  /** Moves past the open call. A call without announced arguments has no arguments. */
  moveOn(out: Answer.Out): void {
    if (this.open?.isAnnounced === false) this.close(out)
  }

  private close(out: Answer.Out): void {
    if (this.open === undefined) return
    const { args, call } = this.open
    this.open = undefined
    call.isLost = args.isLost
    this.finish(call, args.isLost ? undefined : args.text, out)
  }

  private finish(call: Call, text: string | undefined, out: Answer.Out): void {
    call.text = text
    call.isFinal = true
    if (call.emitted === undefined) this.releaseDeclared(out)
    else this.complete(call, call.emitted, out)
  }

  private hold(call: Call): void {
    this.held.add(call)
    const named = this.heldByName.get(call.name) ?? new Set()
    this.heldByName.set(call.name, named.add(call))
  }

  private letGo(call: Call): void {
    this.held.delete(call)
    this.heldByName.get(call.name)?.delete(call)
  }

  /** Emits the held calls, up to the first undeclared name. */
  private releaseDeclared(out: Answer.Out): void {
    for (const call of this.held) {
      if (!this.declared.has(call.name)) return
      this.release(call, out)
    }
  }

  private release(call: Call, out: Answer.Out): void {
    this.letGo(call)
    const emitted = this.calls.open(call.wireId, call.metadata)
    call.emitted = emitted
    this.calls.name(emitted, call.name, out)
    if (call.isFinal) this.complete(call, emitted, out)
  }

  private complete(call: Call, emitted: ToolCalls.Call, out: Answer.Out): void {
    this.calls.describe(emitted, call.metadata)
    emitted.isLost = call.isLost
    if (call.text === undefined) return
    this.calls.append(emitted, call.text, out)
    this.calls.settle(emitted, out)
  }

  /** Handles an answer in the same reply: the first call by that name ran at the provider. */
  answered(name: string, out: Answer.Out): void {
    this.close(out)
    const [call] = this.heldByName.get(name) ?? []
    if (call === undefined || !call.isFinal) return
    this.letGo(call)
    this.execute(name, ToolCalls.ofText(call.text ?? "").arguments, out)
    this.releaseDeclared(out)
  }

  /** Lists a provider-executed call. */
  execute(name: string, args: Json.JsonObject, out: Answer.Out): void {
    const call = this.calls.open(undefined, {}, true)
    this.calls.name(call, name, out)
    call.text = JSON.stringify(args)
    this.calls.complete(call, ToolCalls.ofValue(args), out)
  }

  /** Ends the reply. Held calls are for Heddle. An open call is lost, unless its arguments never began. */
  end(ending: ToolCalls.Ending, out: Answer.Out): string | undefined {
    for (const call of this.held) this.release(call, out)
    const open = this.open?.args.hasBegun === true ? this.open.call.emitted : undefined
    if (open !== undefined) open.isLost = true
    const problem = this.calls.endAll(ending, out, this.calls.all.findLast((call) => !call.isExecuted))
    return this.problem ?? problem
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// arguments by path

type Key = string | number

type Container = Record<string, unknown> | Array<unknown>

const step = /\.([^.[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]/y

/** Parses a path into its keys. Returns `undefined` for an invalid path. */
const keysOf = (path: string): ReadonlyArray<Key> | undefined => {
  if (!path.startsWith("$")) return undefined
  const keys: Array<Key> = []
  let position = 1
  while (position < path.length) {
    step.lastIndex = position
    const found = step.exec(path)
    if (found === null || keys.length === ToolCalls.deepest) return undefined
    const [, name, index, single, double] = found
    keys.push(index === undefined ? name ?? (single ?? double ?? "").replaceAll(/\\(.)/g, "$1") : Number(index))
    position = step.lastIndex
  }
  return keys.length === 0 ? undefined : keys
}

const valueOf = (piece: Json.JsonObject): unknown => {
  if ("nullValue" in piece) return null
  return piece["stringValue"] ?? piece["numberValue"] ?? piece["boolValue"]
}

const isContainer = (value: unknown): value is Container => typeof value === "object" && value !== null

/** Returns `true` if a container can have a member with that key: a list has no gaps. */
const fits = (container: Container, key: Key): boolean =>
  Array.isArray(container) ? typeof key === "number" && key <= container.length : typeof key === "string"

const own = (container: Container, key: Key): unknown =>
  Object.hasOwn(container, key) ? (container as Record<Key, unknown>)[key] : undefined

/**
 * Assembles arguments arriving as path values: `$.city` is `"Os"`, `$.city` continues with `"lo"`, `$.days[0]` is 3.
 * The work is linear in the pieces. Contradictory pieces make the arguments lost, never guessed: an invalid path, a
 * list with gaps, a member inside a plain value.
 */
class PathArguments {
  /** `true` once a piece did not fit, so that the arguments cannot be trusted. */
  isLost = false
  hasBegun = false
  private readonly root: Record<string, unknown> = {}

  get text(): string {
    return JSON.stringify(this.root)
  }

  /** Adds a part's arguments: whole members and pieces. */
  take({ args, partialArgs }: Json.JsonObject): void {
    for (const [name, value] of Object.entries(Wire.object(args))) this.set([name], value)
    for (const piece of Wire.list(partialArgs)) this.add(piece)
  }

  private add(piece: Json.JsonObject): void {
    this.hasBegun = true
    const path = piece["jsonPath"]
    const value = valueOf(piece)
    const keys = typeof path === "string" ? keysOf(path) : undefined
    if (keys === undefined) this.isLost = true
    else if (value !== undefined) this.set(keys, value)
  }

  private set(keys: ReadonlyArray<Key>, value: unknown): void {
    this.hasBegun = true
    if (keys.includes("__proto__")) return
    let container: Container = this.root
    for (const [position, key] of keys.entries()) {
      if (!fits(container, key)) return this.lose()
      const known = own(container, key)
      const isLast = position === keys.length - 1
      const next = isLast ? joined(known, value) : known ?? (typeof keys[position + 1] === "number" ? [] : {})
      ;(container as Record<Key, unknown>)[key] = next
      if (isLast) return
      if (!isContainer(next)) return this.lose()
      container = next
    }
  }

  private lose(): void {
    this.isLost = true
  }
}

/** Joins two pieces of a text; any other value replaces the known value. */
const joined = (known: unknown, value: unknown): unknown =>
  typeof known === "string" && typeof value === "string" ? known + value : value

// ---------------------------------------------------------------------------------------------------------------------
// details: citations, grounding, safety ratings, probabilities, why a prompt was blocked

const partial: { readonly [name: string]: ReadonlyArray<string> } = {
  citationMetadata: ["citationSources", "citations"],
  logprobsResult: ["chosenCandidates", "topCandidates"]
}

/**
 * Gathers details. The latest value of each field counts; citations and probabilities arrive in pieces and accumulate.
 */
export class Details {
  private readonly members = new Map<string, unknown>()
  private readonly lists = new Map<string, Array<unknown>>()
  private readonly citations = new Set<string>()

  add(members: Json.JsonObject): void {
    for (const [name, value] of Object.entries(members)) {
      this.members.set(name, value)
      for (const list of partial[name] ?? []) this.gather(name, list, Wire.object(value)[list])
    }
  }

  private gather(name: string, list: string, values: unknown): void {
    if (!Array.isArray(values)) return
    const key = `${name}.${list}`
    const known = this.lists.get(key) ?? []
    this.lists.set(key, known)
    for (const value of values) {
      const text = name === "citationMetadata" ? JSON.stringify(value) : undefined
      if (text === undefined || !this.citations.has(text)) known.push(value)
      if (text !== undefined) this.citations.add(text)
    }
  }

  /** Hosted tools visible only through their findings, under the names requests use. */
  get hosted(): ReadonlyArray<readonly [name: string, args: Json.JsonObject]> {
    const { webSearchQueries } = Wire.object(this.members.get("groundingMetadata"))
    const queries = Array.isArray(webSearchQueries) ? webSearchQueries.filter((query) => query !== "") : []
    const urls = Wire.list(Wire.object(this.members.get("urlContextMetadata"))["urlMetadata"])
      .flatMap(({ retrievedUrl }) => typeof retrievedUrl === "string" ? [retrievedUrl] : [])
    return [
      ...(queries.length === 0 ? [] : [["googleSearch", { queries }] as const]),
      ...(urls.length === 0 ? [] : [["urlContext", { urls }] as const])
    ]
  }

  get all(): Json.JsonObject {
    const gathered = Array.from(this.members, ([name, value]) => {
      const lists = (partial[name] ?? []).flatMap((list) => {
        const values = this.lists.get(`${name}.${list}`)
        return values === undefined ? [] : [[list, values] as const]
      })
      return [name, lists.length === 0 ? value : { ...Wire.object(value), ...Object.fromEntries(lists) }] as const
    })
    return Object.fromEntries(gathered)
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns. The protocol ties signatures to parts, so every signed part goes back unchanged and in place. The same holds
// for images and provider tool parts. A plain turn of text and calls needs nothing: a call carries its own signature.
// For any other turn, an empty reasoning part keeps the order, with character counts instead of copies of the text.

/** A turn item, in its place. */
type Item =
  | { readonly _tag: "Text"; length: number; readonly signature: string | undefined }
  | { readonly _tag: "Thought"; readonly index: number }
  | { readonly _tag: "Call"; readonly call: Call; readonly part: Json.JsonObject }
  | { readonly _tag: "Raw"; readonly part: Json.JsonObject }

interface Thought {
  text: string
  readonly signature: string | undefined
}

export class Turn {
  private readonly items: Array<Item> = []
  private readonly thoughts: Array<Thought> = []

  text(text: string, signature: string | undefined): void {
    const last = this.items.at(-1)
    if (signature === undefined && last?._tag === "Text" && last.signature === undefined) last.length += text.length
    else if (signature !== undefined || text !== "") this.items.push({ _tag: "Text", length: text.length, signature })
  }

  thought(text: string, signature: string | undefined): void {
    const last = this.thoughts.at(-1)
    if (signature === undefined && last !== undefined && last.signature === undefined) last.text += text
    else if (signature !== undefined || text !== "") this.thoughts.push({ text, signature })
    if (signature !== undefined) this.items.push({ _tag: "Thought", index: this.thoughts.length - 1 })
  }

  call(call: Call, part: Json.JsonObject): void {
    this.items.push({ _tag: "Call", call, part })
  }

  raw(part: Json.JsonObject): void {
    this.items.push({ _tag: "Raw", part })
  }

  /** The message's reasoning, including everything else to send back. */
  get reasoning(): ReadonlyArray<Message.Part> {
    const thoughts = this.thoughts.map(({ signature, text }): Message.Part => ({
      type: "reasoning",
      text,
      ...Wire.defined({ signature })
    }))
    if (this.isPlain) return thoughts
    const parts = this.items.map(kept)
    return [...thoughts, { type: "reasoning", text: "", metadata: { [metadataKey]: { parts } } }]
  }

  /** `true` for unsigned text followed by calls: the order a message implies. */
  private get isPlain(): boolean {
    return this.items.every((item, index) =>
      item._tag === "Call" || (item._tag === "Text" && item.signature === undefined && index === 0)
    )
  }
}

/** Encodes a place in the order for storage. */
const kept = (item: Item): Json.JsonObject => {
  switch (item._tag) {
    case "Text":
      return { text: item.length, ...Wire.defined({ thoughtSignature: item.signature }) }
    case "Thought":
      return { thought: item.index }
    case "Call": {
      const call = item.call.emitted?.completed
      return call === undefined ? { part: item.part } : { call: Wire.wireIdOf(call) }
    }
    case "Raw":
      return { part: item.part }
  }
}

/** Stores the server's continuation token in a message part. */
export const continuing = (continuationToken: string): Message.Part => ({
  type: "reasoning",
  text: "",
  metadata: { [metadataKey]: { continuationToken } }
})

/** Returns a message's continuation token, if this server made the token. */
export const tokenOf = (message: Message.Message, server: string): string | undefined => {
  const kept = message.role === "assistant" ? Media.keptIn(message.reasoning ?? [], metadataKey) : []
  return kept.filter((own) => Wire.isMadeBy(server, own)).map((own) => Wire.string(own["continuationToken"])).find(
    Boolean
  )
}

/** Returns an assistant message's parts for a server. `media` are the images and files in its content. */
export const parts = (
  message: Message.Message,
  media: ReadonlyArray<Json.JsonObject>,
  server: string
): ReadonlyArray<Json.JsonObject> => {
  const callPart = callPartFor(server)
  const text = Message.text(message)
  const calls = Wire.ownCalls(message)
  const order = Media.keptIn(message.reasoning ?? [], metadataKey).map((kept) => kept["parts"]).find(Array.isArray)
  const items = Wire.list(order)
  const texts = Wire.divided(text, items.map((item) => item["text"]))
  return order === undefined || texts === undefined
    ? [...(text === "" ? [] : [{ text }]), ...media, ...calls.map(callPart)]
    : ordered(items, texts, message.reasoning ?? [], calls, callPart)
}

/** Restores the stored order. `texts` are the text pieces, by item. */
const ordered = (
  order: ReadonlyArray<Json.JsonObject>,
  texts: ReadonlyArray<string>,
  reasoning: ReadonlyArray<Message.Part>,
  calls: ReadonlyArray<Message.ToolCall>,
  callPart: (call: Message.ToolCall) => Json.JsonObject
): ReadonlyArray<Json.JsonObject> => {
  const open = new Wire.CallsByWireId(calls)
  const placed = order.flatMap((item, index): ReadonlyArray<Json.JsonObject> => {
    const { call: id, part, text: length, thought, thoughtSignature } = item
    if (Json.isObject(part)) return [part]
    if (typeof thought === "number") return thoughtPart(reasoning[thought])
    if (typeof length === "number") return [{ text: texts[index], ...Wire.defined({ thoughtSignature }) }]
    const call = typeof id === "string" ? open.take(id) : undefined
    return call === undefined ? [] : [callPart(call)]
  })
  return [...placed, ...open.rest.map(callPart)]
}

const thoughtPart = (part: Message.Part | undefined): ReadonlyArray<Json.JsonObject> =>
  part?.type === "reasoning" && part.signature !== undefined
    ? [{ text: part.text, thought: true, thoughtSignature: part.signature }]
    : []

/**
 * Returns a call's id for a server: only an id the same server gave, and many give none. Vertex AI refused ids from the
 * Gemini API (BerriAI/litellm pull request 28324).
 */
export const idFor = (server: string, call: Message.ToolCall | undefined): Json.JsonObject => {
  const kept = Wire.object(call?.metadata[metadataKey])
  const id = Wire.string(kept["id"])
  return id !== undefined && Wire.isMadeBy(server, kept) ? { id: id.toWellFormed() } : {}
}

/** Writes a call for a server, with its signature. */
const callPartFor = (server: string) => (call: Message.ToolCall): Json.JsonObject => {
  const { thoughtSignature } = Wire.object(call.metadata[metadataKey])
  return {
    functionCall: { ...idFor(server, call), name: call.name, args: call.arguments },
    ...Wire.defined({ thoughtSignature: Wire.string(thoughtSignature) })
  }
}
