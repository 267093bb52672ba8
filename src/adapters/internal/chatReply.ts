/**
 * Reads a Chat Completions reply: parts of a streamed delta or a whole message, and the values gathered from all of
 * them. Reading is total: a member with an unexpected shape counts as absent.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type * as Answer from "./answerBody.ts"
import * as Media from "./media.ts"
import * as Wire from "./wire.ts"

/** Types by which an object counts as a content part, even without a text. */
const partTypes: ReadonlyArray<unknown> = [
  "text",
  "thinking",
  "reference",
  "refusal",
  "image_url",
  "file",
  "input_audio"
]

/** Returns the content parts, or `undefined` if the content is not a part list. */
export const partsIn = (content: unknown): ReadonlyArray<Json.JsonObject> | undefined => {
  const parts = Wire.list(content)
  return parts.some(({ text, type }) => typeof text === "string" || partTypes.includes(type)) ? parts : undefined
}

/** Returns the content text. Some servers write a JSON answer as a value instead of text. */
export const textOf = (content: unknown, parts: ReadonlyArray<Json.JsonObject> | undefined): string => {
  if (parts !== undefined) return joined(parts, "text")
  if (typeof content === "string") return content
  const isEmpty = content === undefined || content === null || (Array.isArray(content) && content.length === 0)
  return isEmpty ? "" : JSON.stringify(content)
}

const joined = (items: ReadonlyArray<Json.JsonObject>, key: string): string =>
  items.length === 0 ? "" : items.map((item) => Wire.string(item[key]) ?? "").join("")

/** Returns the reasoning in a delta. Mistral writes reasoning as content parts. */
export const thought = (delta: Json.JsonObject, parts: ReadonlyArray<Json.JsonObject> | undefined): string =>
  parts === undefined ? reasoning(delta) : thinking(parts)

const thinking = (parts: ReadonlyArray<Json.JsonObject>): string =>
  parts.map(({ thinking }) => Wire.string(thinking) ?? joined(Wire.list(thinking), "text")).join("")

/** Plain text reasoning fields, from DeepSeek and llama.cpp, Ollama and OpenRouter, and GitHub Copilot. */
const texts = ["reasoning_content", "reasoning", "reasoning_text"] as const

/** Reads one reasoning field. The fields are alternatives with the same text, so they are never added up. */
const reasoning = (delta: Json.JsonObject): string => {
  const plain = texts.map((name) => Wire.string(delta[name])).find((text) => text !== undefined)
  if (plain !== undefined) return plain
  const details = Wire.list(delta["reasoning_details"])
  return joined(details, "text") || joined(details, "summary")
}

/** Returns a generated image. OpenRouter writes images beside the content, each as an address or a data URI. */
export const image = ({ image_url }: Json.JsonObject): ReadonlyArray<Message.Part> => {
  const url = Wire.string(image_url) ?? Wire.string(Wire.object(image_url)["url"])
  return url === undefined ? [] : [{ type: "image", url }]
}

/** Returns the call fragments in a delta. */
export const fragments = (delta: Json.JsonObject): ReadonlyArray<Fragment> => {
  const calls = Wire.list(delta["tool_calls"])
  const legacy = delta["function_call"]
  if (calls.length === 0 && !Json.isObject(legacy)) return []
  const own = calls.map(({ function: called, id, index, type: _type, ...metadata }) => ({
    ...fragment(Wire.object(called)),
    index: typeof index === "number" ? index : undefined,
    id: Wire.string(id),
    metadata: saidIn({ ...metadata, ...Wire.filled("function", opaqueOf(Wire.object(called))) })
  }))
  if (calls.length > 0 || !Json.isObject(legacy)) return own
  return [{ ...fragment(legacy), index: "function_call", id: undefined, metadata: {} }]
}

/** Returns `false` for absent values: some servers write them as `null`, an empty string or an empty object. */
const isSaid = (value: unknown): boolean =>
  value !== null && value !== undefined && value !== "" &&
  !(typeof value === "object" && Object.keys(value).length === 0)

const saidIn = (record: Json.JsonObject): Json.JsonObject =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => isSaid(value)))

/**
 * Fields meaningful only to their own server: OpenRouter's and MiniMax's `reasoning_details`, LiteLLM's
 * `thinking_blocks` and `provider_specific_fields`, Gemini's `extra_content`, Venice's `thought_signature`, GitHub
 * Copilot's `reasoning_opaque`, and any name containing "signature", "opaque" or "encrypted". Other unknown fields are
 * not sent: some servers refuse a message with a field they do not know.
 */
const opaque =
  /^(reasoning_details|thinking_blocks|provider_specific_fields|extra_content)$|signature|opaque|encrypted/i

/** Picks the fields of a message or call to send back to their server. */
export const opaqueOf = (record: Json.JsonObject): Json.JsonObject =>
  saidIn(Object.fromEntries(Object.entries(record).filter(([name]) => opaque.test(name))))

const fragment = (called: Json.JsonObject) => {
  const args = called["arguments"]
  return {
    name: Wire.string(called["name"]),
    text: typeof args === "string" ? args : Json.isObject(args) ? JSON.stringify(args) : undefined
  }
}

/** Returns `true` if any kept fields go back to their server. */
export const isOpaque = (kept: Json.JsonObject): boolean =>
  [kept, Wire.object(kept["function"])].some((fields) => Object.keys(opaqueOf(fields)).length > 0)

// ---------------------------------------------------------------------------------------------------------------------
// calls: which call a fragment belongs to

/** A call fragment from the wire. Empty strings and nulls become `undefined`, except an empty text (`""`). */
export interface Fragment {
  /** Call key on the wire. It may repeat or skip numbers, so it is never a position. */
  readonly index: number | string | undefined
  readonly id: string | undefined
  readonly name: string | undefined
  readonly text: string | undefined
  readonly metadata: Json.JsonObject
}

/** Collects the calls of a reply. It finds each call by index, id or name, whichever the server sends. */
export class Calls extends ToolCalls.WireCalls {
  private readonly tools: ReadonlyArray<{ readonly name: string }>
  private readonly byIndex = new Map<number | string, ToolCalls.Call>()
  private readonly byWireId = new Map<string, ToolCalls.Call>()
  /** Calls the wire has not completed. */
  private readonly unfinished = new Set<ToolCalls.Call>()

  constructor(
    makeId: () => string,
    key: string,
    tools: ReadonlyArray<{ readonly name: string }>,
    restore: ToolCalls.Restore | undefined
  ) {
    super(makeId, key, restore)
    this.tools = tools
  }

  /** Adds a fragment. Returns `false` if it continues a complete call. */
  add(fragment: Fragment, out: Answer.Out): boolean {
    const call = this.find(fragment, out)
    if (call === undefined) return true
    const { metadata, name, text } = fragment
    this.describe(call, metadata)
    if (call.completed === undefined && name !== undefined && (call.name === "" || isPiece(call, fragment))) {
      this.name(call, call.name + name, out, this.mayGrow(call.name + name))
    }
    return text === undefined || this.append(call, text, out)
  }

  /** Returns `true` if a name may still grow: no tool has this name, or another tool's name begins with it. */
  private mayGrow(name: string): boolean {
    return !this.tools.some((tool) => tool.name === name) ||
      this.tools.some((tool) => tool.name !== name && tool.name.startsWith(name))
  }

  /**
   * Finds the call for a fragment: by index, else by id, else the last call.
   *
   * A new id with a name on a used index starts another call, because some servers send all calls with index 0; so does
   * a second whole call without an id. An id with a name on a new index starts another call too, unless it repeats the
   * whole call; a known id without a name continues its call. A name continuing on its index, or with its id, extends
   * the call's name.
   */
  private find(fragment: Fragment, out: Answer.Out): ToolCalls.Call | undefined {
    const { id, index, name } = fragment
    const current = index === undefined ? this.all.at(-1) : this.byIndex.get(index)
    if (id === undefined && name === undefined) {
      return current ?? (fragment.text === undefined || fragment.text === "" ? undefined : this.begin(fragment, out))
    }
    const known = id === undefined ? undefined : this.byWireId.get(id)
    const sameId = known !== undefined && (name === undefined || name === known.name || isPiece(known, fragment))
      ? known
      : undefined
    if (index === undefined) return sameId ?? this.begin(fragment, out)
    if (current === undefined) {
      const isAgain = sameId !== undefined && (name === undefined || this.isSaidAgain(sameId, fragment.text ?? ""))
      return isAgain ? sameId : this.begin(fragment, out)
    }
    if (id === undefined || current.wireId === undefined) {
      if (this.isNext(current, fragment, out)) return this.begin(fragment, out)
      return this.adopt(current, id)
    }
    if (current.wireId === id && (current.name === "" || isPiece(current, fragment))) return current
    if (current.wireId === id && (name === undefined || name === current.name)) return current
    return sameId ?? (name === undefined ? current : this.begin(fragment, out))
  }

  /** Adopts an id arriving after the call was named. The id identifies later fragments but stays out of the events. */
  private adopt(call: ToolCalls.Call, id: string | undefined): ToolCalls.Call {
    if (id !== undefined) {
      call.wireId = id
      this.byWireId.set(id, call)
    }
    return call
  }

  private isNext(current: ToolCalls.Call, fragment: Fragment, out: Answer.Out): boolean {
    if (fragment.name === undefined || current.name === "" || isPiece(current, fragment)) return false
    if (fragment.name !== current.name) return true
    return this.settle(current, out) && fragment.text?.trimStart().startsWith("{") === true
  }

  private begin({ id, index, name }: Fragment, out: Answer.Out): ToolCalls.Call {
    // Arguments alone do not complete the previous call: they may continue that call's arguments.
    if (id !== undefined || name !== undefined) this.settleLast(out)
    const call = this.open(id)
    this.unfinished.add(call)
    if (index !== undefined) this.byIndex.set(index, call)
    if (id !== undefined) this.byWireId.set(id, call)
    return call
  }

  /** Settles the calls completed by the wire: each call with whole arguments is complete. */
  settleAll(out: Answer.Out): void {
    for (const call of this.unfinished) {
      call.isTried = false
      this.settle(call, out)
    }
    this.unfinished.clear()
  }
}

/**
 * Returns `true` if a fragment's name continues the call's name: it brings no new id, the arguments have not begun, and
 * the name differs from the name so far, which some servers repeat in every fragment.
 */
const isPiece = (call: ToolCalls.Call, { id, name }: Fragment): boolean =>
  name !== undefined && call.name !== "" && name !== call.name && !call.isStarted && call.text === "" &&
  (id === undefined || id === call.wireId)

/**
 * Qualifies a fragment's index by its choice. All choices form one message, but each choice numbers its calls
 * separately.
 */
export const ofChoice = (fragment: Fragment, choice: number): Fragment =>
  choice === 0 || fragment.index === undefined ? fragment : { ...fragment, index: `${choice}/${fragment.index}` }

// ---------------------------------------------------------------------------------------------------------------------
// the sound of the model

/** Media types for requested formats other than `audio/` plus the format name. */
const soundTypes: ReadonlyMap<unknown, string> = new Map([["mp3", "audio/mpeg"], ["pcm16", "audio/pcm"]])

/** Merges reply text, written by servers as content, as an audio transcript, or as both. */
export class Speech {
  private said = ""
  /** Text length written by each source. */
  private readonly written = { content: 0, transcript: 0 }
  /** `true` once the sources differ: from then on both texts count. */
  private isApart = false

  /** Adds a piece from one source, and returns the part the other source has not written. */
  add(source: "content" | "transcript", piece: string): string {
    const start = this.written[source]
    const isAhead = this.isApart || start === this.said.length
    const known = isAhead ? "" : this.said.slice(start, start + piece.length)
    const isKnown = piece.startsWith(known)
    if (piece !== "" && !isKnown) this.isApart = true
    const rest = isKnown ? piece.slice(known.length) : piece
    this.said += rest
    this.written[source] = isKnown ? start + piece.length : this.said.length
    return rest
  }
}

/** Collects audio pieces. Each data piece is base64 by itself, or a slice of one base64 text. */
export class Sound {
  private id: string | undefined
  private expires: number | undefined
  private transcript = ""
  private readonly data: Array<string> = []

  add({ data, expires_at, id, transcript }: Json.JsonObject): void {
    this.id ??= Wire.string(id)
    if (typeof expires_at === "number" && expires_at > 0) this.expires = expires_at
    if (typeof transcript === "string") this.transcript += transcript
    if (typeof data === "string" && data !== "") this.data.push(data)
  }

  /** Returns the audio file, if any. Its type is the requested format, since the reply names none. */
  file(format: unknown): ReadonlyArray<Message.Part> {
    const mediaType = soundTypes.get(format) ?? (typeof format === "string" ? `audio/${format}` : undefined)
    const type = mediaType === undefined ? {} : { mediaType }
    return this.data.length === 0 ? [] : [{ type: "file", data: oneBase64(this.data), ...type }]
  }

  /** Returns the part to send the audio back by its id. */
  get kept(): ReadonlyArray<Message.Part> {
    const { expires: expires_at, id, transcript } = this
    if (id === undefined && this.data.length === 0) return []
    const audio = { ...Wire.defined({ id, expires_at }), transcript }
    return [{ type: "reasoning", text: "", metadata: { [Media.chatKey]: { audio } } }]
  }
}

/** Joins base64 pieces. Pieces ending in padding are decoded separately. */
const oneBase64 = (pieces: ReadonlyArray<string>): string => {
  const text = pieces.join("")
  const parts = text.match(/[^=]+=*/g) ?? []
  if (parts.length <= 1) return text
  const decoded = Result.all(parts.map((part) => Base64.decode(part)))
  if (Result.isFailure(decoded)) return text
  const bytes = new Uint8Array(decoded.success.reduce((sum, { length }) => sum + length, 0))
  let start = 0
  for (const part of decoded.success) {
    bytes.set(part, start)
    start += part.length
  }
  return Base64.encode(bytes)
}

// ---------------------------------------------------------------------------------------------------------------------
// notes and reasoning details

/** Collects the cited sources, without duplicates, and the token probabilities in order. */
export class Notes {
  private readonly annotations = new Map<string, Json.JsonObject>()
  private readonly logprobs: Array<Json.JsonObject> = []

  add(annotations: ReadonlyArray<Json.JsonObject>, logprobs: unknown): void {
    for (const annotation of annotations) this.annotations.set(JSON.stringify(annotation), annotation)
    const { content, refusal } = Wire.object(logprobs)
    for (const token of [...Wire.list(content), ...Wire.list(refusal)]) this.logprobs.push(token)
  }

  get metadata(): Json.JsonObject {
    return {
      ...Wire.filled("annotations", [...this.annotations.values()]),
      ...Wire.filled("logprobs", this.logprobs)
    }
  }
}

/** List item members arriving in pieces. */
const pieced = ["text", "summary", "thinking"] as const

/** Assembles opaque fields as the provider wrote them, ready to be sent back. */
export class Opaque {
  readonly fields: Record<string, unknown> = {}

  add(pieces: Json.JsonObject): void {
    for (const [name, piece] of Object.entries(pieces)) this.fields[name] = together(this.fields[name], piece)
  }
}

/** Merges a further piece into a field: lists and objects grow, other values are replaced. */
const together = (value: unknown, piece: unknown): unknown => {
  if (Array.isArray(piece)) return items(Array.isArray(value) ? value : [], piece)
  if (!Json.isObject(value) || !Json.isObject(piece)) return piece
  const members = Object.entries(piece).filter(([, member]) => isSaid(member))
  return { ...value, ...Object.fromEntries(members.map(([name, member]) => [name, together(value[name], member)])) }
}

/** Appends items to a list. Each new item may continue the list's last item. */
const items = (list: Array<unknown>, pieces: ReadonlyArray<unknown>): Array<unknown> => {
  for (const piece of pieces) {
    const last = list.at(-1)
    if (!Json.isObject(piece)) list.push(piece)
    else if (Json.isObject(last) && isContinued(last, piece)) list[list.length - 1] = appended(last, piece)
    else list.push(Wire.said(piece))
  }
  return list
}

/** Returns `true` if a piece continues an item. Encrypted items come whole. */
const isContinued = (item: Json.JsonObject, piece: Json.JsonObject): boolean =>
  item["type"] === piece["type"] && item["index"] === piece["index"] && isPieced(item) && isPieced(piece) &&
  !(isSigned(item) && piece["thinking"] !== undefined)

/** Returns `true` for items arriving in pieces. A lone signature ends the text before it. */
const isPieced = (item: Json.JsonObject): boolean =>
  pieced.some((name) => typeof item[name] === "string") ||
  (item["data"] === undefined && typeof item["signature"] === "string")

/** Returns `true` for a signed thinking block. A signed block is whole, so the next piece starts another. */
const isSigned = (item: Json.JsonObject): boolean => Wire.string(item["signature"]) !== undefined

const appended = (item: Json.JsonObject, piece: Json.JsonObject): Json.JsonObject => {
  const members = Object.entries(Wire.said(piece)).map(([name, value]) => {
    const before = pieced.some((text) => text === name) && typeof value === "string" ? item[name] : undefined
    return [name, typeof before === "string" ? before + String(value) : value]
  })
  return { ...item, ...Object.fromEntries(members) }
}
