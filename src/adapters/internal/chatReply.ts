/**
 * Reads a reply of Chat Completions: parts of the delta of a streamed reply or of the message of a whole one, and what
 * is gathered over all of them. Reading is total: a member of another form than expected is not there.
 */
import * as Base64 from "effect/encoding/Base64"
import * as Result from "effect/Result"
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type * as Answer from "./answerBody.ts"
import * as Media from "./media.ts"
import * as Wire from "./wire.ts"

/** The types that a part of a content may have, besides those whose text is read. */
const partTypes: ReadonlyArray<unknown> = [
  "text",
  "thinking",
  "reference",
  "refusal",
  "image_url",
  "file",
  "input_audio"
]

/** The parts of a content, or nothing if it is no list of parts. */
export const partsIn = (content: unknown): ReadonlyArray<Json.JsonObject> | undefined => {
  const parts = Wire.list(content)
  return parts.some(({ text, type }) => typeof text === "string" || partTypes.includes(type)) ? parts : undefined
}

/** The text of a content. Some servers write an answer that was to be JSON as a value, and not as its text. */
export const textOf = (content: unknown, parts: ReadonlyArray<Json.JsonObject> | undefined): string => {
  if (parts !== undefined) return joined(parts, "text")
  if (typeof content === "string") return content
  const isEmpty = content === undefined || content === null || (Array.isArray(content) && content.length === 0)
  return isEmpty ? "" : JSON.stringify(content)
}

const joined = (items: ReadonlyArray<Json.JsonObject>, key: string): string =>
  items.length === 0 ? "" : items.map((item) => Wire.string(item[key]) ?? "").join("")

/** The reasoning of a delta. Mistral writes its reasoning as parts of the content. */
export const thought = (delta: Json.JsonObject, parts: ReadonlyArray<Json.JsonObject> | undefined): string =>
  parts === undefined ? reasoning(delta) : thinking(parts)

const thinking = (parts: ReadonlyArray<Json.JsonObject>): string =>
  parts.map(({ thinking }) => Wire.string(thinking) ?? joined(Wire.list(thinking), "text")).join("")

/** The fields of reasoning in letters: DeepSeek's and llama.cpp's, Ollama's and OpenRouter's, and GitHub Copilot's. */
const texts = ["reasoning_content", "reasoning", "reasoning_text"] as const

/** The same reasoning may stand in several fields: they are alternatives, and never added up. */
const reasoning = (delta: Json.JsonObject): string => {
  const plain = texts.map((name) => Wire.string(delta[name])).find((text) => text !== undefined)
  if (plain !== undefined) return plain
  const details = Wire.list(delta["reasoning_details"])
  return joined(details, "text") || joined(details, "summary")
}

/** OpenRouter writes the images of a model beside the content, each by its address, which may hold its data. */
export const image = ({ image_url }: Json.JsonObject): ReadonlyArray<Message.Part> => {
  const url = Wire.string(image_url) ?? Wire.string(Wire.object(image_url)["url"])
  return url === undefined ? [] : [{ type: "image", url }]
}

/** The pieces of calls in a delta. */
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

/** Some servers write what is not there as `null`, an empty string or an empty object. */
const isSaid = (value: unknown): boolean =>
  value !== null && value !== undefined && value !== "" &&
  !(typeof value === "object" && Object.keys(value).length === 0)

const saidIn = (record: Json.JsonObject): Json.JsonObject =>
  Object.fromEntries(Object.entries(record).filter(([, value]) => isSaid(value)))

/**
 * The names of fields that their server reads again, and no other can: OpenRouter's and MiniMax's `reasoning_details`,
 * the `thinking_blocks` and `provider_specific_fields` of LiteLLM, Gemini's `extra_content`, Venice's
 * `thought_signature`, GitHub Copilot's `reasoning_opaque`, and whatever else names itself a signature or encrypted.
 * Other unknown fields stay here: there are servers that refuse a message for any field that they do not know.
 */
const opaque =
  /^(reasoning_details|thinking_blocks|provider_specific_fields|extra_content)$|signature|opaque|encrypted/i

/** The fields of a message, or of a call, that go back to the server that wrote them. */
export const opaqueOf = (record: Json.JsonObject): Json.JsonObject =>
  saidIn(Object.fromEntries(Object.entries(record).filter(([name]) => opaque.test(name))))

const fragment = (called: Json.JsonObject) => {
  const args = called["arguments"]
  return {
    name: Wire.string(called["name"]),
    text: typeof args === "string" ? args : Json.isObject(args) ? JSON.stringify(args) : undefined
  }
}

/** Returns `true` if some fields that are kept with a message or a call go back to the server that wrote them. */
export const isOpaque = (kept: Json.JsonObject): boolean =>
  [kept, Wire.object(kept["function"])].some((fields) => Object.keys(opaqueOf(fields)).length > 0)

// ---------------------------------------------------------------------------------------------------------------------
// calls: which call a fragment belongs to

/** A piece of a call as the wire sends it; empty strings and nulls stand as `undefined`, but an empty text as `""`. */
export interface Fragment {
  /** The call's place on the wire: a key that may repeat or skip, never a position. */
  readonly index: number | string | undefined
  readonly id: string | undefined
  readonly name: string | undefined
  readonly text: string | undefined
  readonly metadata: Json.JsonObject
}

/** The calls of a reply, each found by its index, its id or its name, as far as the server sends them. */
export class Calls extends ToolCalls.WireCalls {
  private readonly tools: ReadonlyArray<{ readonly name: string }>
  private readonly byIndex = new Map<number | string, ToolCalls.Call>()
  private readonly byWireId = new Map<string, ToolCalls.Call>()
  /** The calls that the wire has not completed. */
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

  /** Adds a fragment. False if it continues a call that is complete. */
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

  /** Returns `true` if a name may be the beginning of a tool's: it is no tool's, or another tool's begins with it. */
  private mayGrow(name: string): boolean {
    return !this.tools.some((tool) => tool.name === name) ||
      this.tools.some((tool) => tool.name !== name && tool.name.startsWith(name))
  }

  /**
   * The call of a fragment: by index if it has one, else by id, else the last one. A new id with a name on a used index
   * is another call, because servers send all their calls with index 0; so is a second whole call without any id. An id
   * on a new index is another call, too, unless it repeats the whole one. A name that continues on its index, or with
   * its id, is a piece of the name.
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

  /** An id that comes after the call was named distinguishes later fragments, and stays out of the events. */
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
    // Arguments alone do not show that the call before them is whole: they may be some of it.
    if (id !== undefined || name !== undefined) this.settleLast(out)
    const call = this.open(id)
    this.unfinished.add(call)
    if (index !== undefined) this.byIndex.set(index, call)
    if (id !== undefined) this.byWireId.set(id, call)
    return call
  }

  /** The wire has completed the calls: those whose text is whole are complete. */
  settleAll(out: Answer.Out): void {
    for (const call of this.unfinished) {
      call.isTried = false
      this.settle(call, out)
    }
    this.unfinished.clear()
  }
}

/**
 * Returns `true` if a name in a fragment continues that of a call: no new id comes with it, the arguments have not
 * begun, and it is not the name so far, which servers are known to repeat in every fragment.
 */
const isPiece = (call: ToolCalls.Call, { id, name }: Fragment): boolean =>
  name !== undefined && call.name !== "" && name !== call.name && !call.isStarted && call.text === "" &&
  (id === undefined || id === call.wireId)

/** A fragment of a choice. All choices of a reply are one message, but each numbers its calls by itself. */
export const ofChoice = (fragment: Fragment, choice: number): Fragment =>
  choice === 0 || fragment.index === undefined ? fragment : { ...fragment, index: `${choice}/${fragment.index}` }

// ---------------------------------------------------------------------------------------------------------------------
// the sound of the model

/** Media types of the formats that a request may name, where they are not `audio/` and the name. */
const soundTypes: ReadonlyMap<unknown, string> = new Map([["mp3", "audio/mpeg"], ["pcm16", "audio/pcm"]])

/** The text of a reply, which servers write as its content, as the transcript of its sound, or as both. */
export class Speech {
  private said = ""
  /** The length of the text that each of the two has written. */
  private readonly written = { content: 0, transcript: 0 }
  /** `true` once they differ: then each says something of its own. */
  private isApart = false

  /** Adds a piece of one of the two, and returns the part that the other has not said. */
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

/** A sound in pieces. Each piece of its data is base64 by itself, or a piece of one base64. */
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

  /** The file of it, if there is any. Its type is the format that was asked for, since the reply does not name it. */
  file(format: unknown): ReadonlyArray<Message.Part> {
    const mediaType = soundTypes.get(format) ?? (typeof format === "string" ? `audio/${format}` : undefined)
    const type = mediaType === undefined ? {} : { mediaType }
    return this.data.length === 0 ? [] : [{ type: "file", data: oneBase64(this.data), ...type }]
  }

  /** The part beside the content by which the sound goes back. */
  get kept(): ReadonlyArray<Message.Part> {
    const { expires: expires_at, id, transcript } = this
    if (id === undefined && this.data.length === 0) return []
    const audio = { ...Wire.defined({ id, expires_at }), transcript }
    return [{ type: "reasoning", text: "", metadata: { [Media.chatKey]: { audio } } }]
  }
}

/** Pieces of base64 as one: those that end in padding are read each by itself. */
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

/** The sources that a text cites, each once, and its token probabilities, in their order. */
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

/** The members of a list's items that come in pieces. */
const pieced = ["text", "summary", "thinking"] as const

/** Opaque fields, put together so that they can go back as the provider wrote them. */
export class Opaque {
  readonly fields: Record<string, unknown> = {}

  add(pieces: Json.JsonObject): void {
    for (const [name, piece] of Object.entries(pieces)) this.fields[name] = together(this.fields[name], piece)
  }
}

/** A field with another piece of it: lists and objects grow, and any other value is said anew. */
const together = (value: unknown, piece: unknown): unknown => {
  if (Array.isArray(piece)) return items(Array.isArray(value) ? value : [], piece)
  if (!Json.isObject(value) || !Json.isObject(piece)) return piece
  const members = Object.entries(piece).filter(([, member]) => isSaid(member))
  return { ...value, ...Object.fromEntries(members.map(([name, member]) => [name, together(value[name], member)])) }
}

/** A list with further items, the first of which may continue its last. */
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

/** A signature alone ends the text that it signs. */
const isPieced = (item: Json.JsonObject): boolean =>
  pieced.some((name) => typeof item[name] === "string") ||
  (item["data"] === undefined && typeof item["signature"] === "string")

/** A block of thinking that is signed is whole: another one follows. */
const isSigned = (item: Json.JsonObject): boolean => Wire.string(item["signature"]) !== undefined

const appended = (item: Json.JsonObject, piece: Json.JsonObject): Json.JsonObject => {
  const members = Object.entries(Wire.said(piece)).map(([name, value]) => {
    const before = pieced.some((text) => text === name) && typeof value === "string" ? item[name] : undefined
    return [name, typeof before === "string" ? before + String(value) : value]
  })
  return { ...item, ...Object.fromEntries(members) }
}
