/**
 * Reads a streaming Responses reply: the item for each event, its texts, its calls, and the values to send back with
 * the next request. Servers repeat everything up to four times and omit any of the four. Fragments are shown on
 * arrival; a repetition adds missing parts and overrides the fragments. Each text is compared only with its own
 * repetitions, so the work is linear in the input.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Answer from "./answerBody.ts"
import { type Item, Items, type Kind, type Listed, type Place, typeOf } from "./responsesItems.ts"
import * as Wire from "./wire.ts"

/** Metadata key for values sent back to servers of this protocol only. */
export const metadataKey = "openaiResponses"

/** Contents of a whole reply. */
export interface Said {
  readonly text: string
  readonly refusal: string
  readonly reasoning: ReadonlyArray<Message.Part>
  readonly annotations: ReadonlyArray<Json.JsonObject>
  /** Item types asking Heddle for work no tool can do. */
  readonly asked: ReadonlyArray<string>
}

const kinds: { readonly [type: string]: Kind } = {
  output_text: "text",
  text: "text",
  refusal: "refusal",
  reasoning_text: "thought",
  summary_text: "thought"
}

const kindOf = (part: Json.JsonObject): Kind | undefined => {
  const type = Wire.string(part["type"])
  return type !== undefined && Object.hasOwn(kinds, type) ? kinds[type] : undefined
}

const customType = "custom_tool_call"

const ownTypes: ReadonlyArray<string> = ["message", "reasoning", "function_call"]

/** Returns `true` for provider tool items: all but messages, reasoning and function calls. */
const isHosted = (item: Item): boolean => !ownTypes.includes(item.type)

/** Returns `true` if a hosted item is a call: results are separate items. */
const isCall = (item: Item): boolean => !item.type.endsWith("_output") && item.type !== "compaction"

/** Hosted calls only an answer can close: the client's answer, unless the provider answers them in the same reply. */
const asking: ReadonlyArray<unknown> = [
  "apply_patch_call",
  "computer_call",
  "local_shell_call",
  "mcp_approval_request",
  "shell_call"
]

/** Returns `true` if an item may ask Heddle for work. Container work happens at the provider. */
const isAsking = (wire: Json.JsonObject): boolean =>
  wire["type"] === "tool_search_call"
    ? wire["execution"] === "client"
    : asking.includes(wire["type"]) && !String(Wire.object(wire["environment"])["type"]).startsWith("container")

/** Key shared by a call and its output: tool type and call id. */
const exchangeOf = ({ call_id, type }: Json.JsonObject): string =>
  `${String(type).replace(/(_call)?(_output)?$/, "")} ${String(call_id)}`

const withoutAnswer = (
  items: ReadonlyArray<Json.JsonObject>,
  isQuestion: (item: Json.JsonObject) => boolean
): ReadonlySet<Json.JsonObject> => {
  const answers = new Set(items.filter(({ type }) => String(type).endsWith("_output")).map(exchangeOf))
  return new Set(items.filter((item) => isQuestion(item) && !answers.has(exchangeOf(item))))
}

/** Returns the items that cannot go back, because each would need an answer no tool can give. */
export const unanswered = (items: ReadonlyArray<Json.JsonObject>): ReadonlySet<Json.JsonObject> =>
  withoutAnswer(items, ({ type }) => type === customType || asking.includes(type))

export class Output {
  /** Reason the reply cannot be trusted, if any. */
  problem: string | undefined
  private readonly calls: ToolCalls.WireCalls
  private readonly custom: ReadonlySet<string> | undefined
  private readonly items = new Items()
  private readonly annotations = new Map<string, Json.JsonObject>()

  /** Creates the output. `custom`: tools declared to take text, if any provider tools were declared. */
  constructor(calls: ToolCalls.WireCalls, custom: ReadonlySet<string> | undefined) {
    this.calls = calls
    this.custom = custom
  }

  // -------------------------------------------------------------------------------------------------------------------
  // items

  /** Begins an item. */
  added(event: Json.JsonObject, out: Answer.Out): void {
    const wire = Wire.object(event["item"])
    this.head(this.items.begun(wire, event["output_index"]), wire, out)
  }

  /** Completes an item. */
  done(event: Json.JsonObject, out: Answer.Out): void {
    const wire = Wire.object(event["item"])
    const item = this.items.ended(wire, event["output_index"])
    if (item !== undefined) this.complete(item, wire, out)
  }

  /** Takes the whole output from the last event or a document. Type and order match its items to streamed items. */
  whole(output: ReadonlyArray<Json.JsonObject>, ending: ToolCalls.Ending, out: Answer.Out): void {
    const left = new Map<string, Array<Item>>()
    for (const [index, wire] of output.entries()) {
      const type = typeOf(wire)
      const known = left.get(type) ?? this.items.known(type).toReversed()
      left.set(type, known)
      const item = known.pop() ?? this.items.open(type, index)
      if (!item.isDone) this.complete(item, wire, out, ending === "truncated" && wire["status"] !== "completed")
    }
  }

  private head(item: Item, wire: Json.JsonObject, out: Answer.Out): void {
    this.items.describe(item, wire)
    if (item.type === "function_call") this.call(item, wire, out)
  }

  /** Completes an item. A possibly cut call stays open: its text and place show later whether it was cut. */
  private complete(item: Item, wire: Json.JsonObject, out: Answer.Out, mayBeCut = false): void {
    this.head(item, wire, out)
    item.isDone = true
    if (item.type === "function_call") {
      if (item.call === undefined) return
      this.replace(item.call, argumentsOf(wire), out)
      const isCut = wire["status"] === "incomplete"
      if (isCut || (!mayBeCut && argumentsOf(wire) !== "")) this.calls.close(item.call, isCut, out)
      // Arguments not repeated by the item may lack fragments filed under another item.
      else if (!mayBeCut) this.calls.settle(item.call, out)
      return
    }
    // Such a call's owner shows only in the whole reply.
    if (item.type === customType || isAsking(item.wire ?? wire)) return
    if (isHosted(item)) return this.list(item, out)
    const said = wire["content"]
    const content = typeof said === "string" ? [{ type: "output_text", text: said }] : Wire.list(said)
    this.listed(item, [["summary", Wire.list(wire["summary"])], ["content", content]], out)
  }

  // -------------------------------------------------------------------------------------------------------------------
  // calls

  private call(item: Item, wire: Json.JsonObject, out: Answer.Out): void {
    const { arguments: _, call_id, item_id: _id, name, output_index: _index, status: _status, type: _type, ...rest } =
      wire
    const id = Wire.string(call_id)
    const named = Wire.string(name)
    if (item.call === undefined && id === undefined && named === undefined) return
    if (item.call === undefined) this.calls.settleLast(out)
    const call = this.callOf(item)
    if (call.id === "") call.wireId = id ?? call.wireId
    this.calls.describe(call, { index: item.position, ...Wire.said(rest), ...Wire.defined({ id: item.id }) })
    if (call.id === "" && named !== undefined) this.calls.name(call, named, out)
  }

  /** Returns an item's call, which may begin with an argument fragment. */
  private callOf(item: Item): ToolCalls.Call {
    return item.call ??= this.calls.open(undefined)
  }

  argumentsDelta(event: Json.JsonObject, out: Answer.Out): void {
    const text = Wire.string(event["delta"])
    if (text === undefined) return
    const item = this.items.of("function_call", event)
    item.hasText = true
    if (!this.calls.append(this.callOf(item), text, out)) this.problem ??= ToolCalls.contradiction
  }

  argumentsDone(event: Json.JsonObject, out: Answer.Out): void {
    const text = argumentsOf(event)
    const item = this.items.of("function_call", event)
    item.hasText = true
    if (item.call !== undefined || text !== "") this.replace(this.callOf(item), text, out)
  }

  private replace(call: ToolCalls.Call, text: string, out: Answer.Out): void {
    if (!this.calls.replace(call, text, out)) this.problem ??= ToolCalls.contradiction
  }

  /** Lists a provider-executed call, whole and in place, never run here. */
  private list(item: Item, out: Answer.Out): void {
    if (!isCall(item)) return
    const wire = item.wire ?? {}
    const name = (item.type === customType ? Wire.string(wire["name"]) : undefined) ?? item.type
    const input = inputOf(wire)
    this.calls.settleLast(out)
    const metadata = { index: item.position, item: Wire.said(wire) }
    const call = this.calls.open(item.id ?? Wire.string(wire["call_id"]), metadata, true)
    this.calls.name(call, name, out)
    this.calls.append(call, JSON.stringify(input), out)
    this.calls.complete(call, ToolCalls.ofValue(input), out)
  }

  /**
   * Assigns calls with text instead of arguments. Heddle runs such a call if the request declared its tool. Without
   * known declarations, a call before the last text ran at the provider. For a tool declared to take text, the text
   * goes under `input`; otherwise it forms the arguments.
   */
  private customCalls(ending: ToolCalls.Ending, out: Answer.Out): void {
    const lastText = this.items.all.findLastIndex((item) => item.texts("text").text !== "")
    for (const item of this.items.ofType(customType)) {
      const wire = item.wire ?? {}
      const name = Wire.string(wire["name"])
      const isOwn = this.custom === undefined ? item.position > lastText : name !== undefined && this.custom.has(name)
      if (name === undefined || !isOwn) {
        this.list(item, out)
        continue
      }
      item.isOwn = true
      const input = Wire.string(wire["input"]) ?? ""
      const text = this.custom !== undefined ? JSON.stringify({ input }) : input
      this.calls.settleLast(out)
      const call = this.calls.open(Wire.string(wire["call_id"]), { index: item.position, item: Wire.said(wire) })
      this.calls.name(call, name, out)
      this.calls.append(call, text, out)
      this.calls.close(call, wire["status"] === "incomplete" || (ending === "truncated" && !item.isDone), out)
    }
  }

  // -------------------------------------------------------------------------------------------------------------------
  // texts

  delta(kind: Kind, place: Place, event: Json.JsonObject, out: Answer.Out): void {
    const delta = Wire.string(event["delta"])
    if (delta === undefined) return
    this.items.of(typeOfKind(kind), event).texts(kind).add(place, indexOf(place, event), delta)
    emit(kind, delta, out)
  }

  /** Takes a whole text. */
  settle(kind: Kind, place: Place, event: Json.JsonObject, out: Answer.Out): void {
    const item = this.items.of(typeOfKind(kind), event)
    const whole = { place, index: indexOf(place, event), whole: wholeOf(event) }
    emit(kind, item.texts(kind).repeat("text", whole), out)
  }

  /** Takes an item part: empty at its beginning, whole at its end. */
  settlePart(place: Place, event: Json.JsonObject, out: Answer.Out): void {
    const part = Wire.object(event["part"])
    const kind = kindOf(part)
    if (kind === undefined) return
    this.annotated(part)
    const item = this.items.of(typeOfKind(kind), event)
    const whole = { place, index: indexOf(place, event), whole: wholeOf(part) }
    emit(kind, item.texts(kind).repeat("part", whole), out)
  }

  /** Takes all parts of an item, by place. */
  private listed(
    item: Item,
    places: ReadonlyArray<readonly [Place, ReadonlyArray<Json.JsonObject>]>,
    out: Answer.Out
  ): void {
    const byKind = new Map<Kind, Array<Listed>>()
    for (const [place, parts] of places) {
      for (const [index, part] of parts.entries()) {
        this.annotated(part)
        const kind = kindOf(part)
        if (kind === undefined) continue
        const listed = byKind.get(kind) ?? []
        listed.push({ place, index, whole: wholeOf(part) })
        byKind.set(kind, listed)
      }
    }
    for (const [kind, listed] of byKind) emit(kind, item.texts(kind).list(listed), out)
  }

  private annotated(part: Json.JsonObject): void {
    for (const annotation of Wire.list(part["annotations"])) this.annotate(annotation)
  }

  /** Adds a citation. Servers report citations both beside the text and inside it. */
  annotate(annotation: Json.JsonObject): void {
    const text = JSON.stringify(annotation)
    if (!this.annotations.has(text)) this.annotations.set(text, annotation)
  }

  // -------------------------------------------------------------------------------------------------------------------
  // the end

  /** Ends the reply, completing everything still open. */
  end(ending: ToolCalls.Ending, out: Answer.Out): Said {
    for (const item of this.items.all.filter((one) => !one.isDone)) {
      if (item.call !== undefined && !item.hasText) {
        const text = argumentsOf(item.wire ?? {})
        if (text !== "") this.replace(item.call, text, out)
      }
      if (isHosted(item) && item.type !== customType && !isAsking(item.wire ?? {})) this.list(item, out)
    }
    const asked = this.asked(out)
    this.customCalls(ending, out)
    this.problem ??= this.calls.endAll(ending, out)
    return {
      text: this.joined("text"),
      refusal: this.joined("refusal"),
      reasoning: this.kept(),
      annotations: [...this.annotations.values()],
      asked
    }
  }

  /** Returns the call types waiting for Heddle, and lists the calls the provider answered. */
  private asked(out: Answer.Out): ReadonlyArray<string> {
    const open = withoutAnswer(this.items.all.map(({ wire = {} }) => wire), isAsking)
    const asked = new Set<string>()
    for (const item of this.items.all) {
      if (item.wire === undefined || !isAsking(item.wire)) continue
      if (open.has(item.wire)) asked.add(item.type)
      else this.list(item, out)
    }
    return [...asked]
  }

  private joined(kind: Kind): string {
    return this.items.all.map((item) => item.texts(kind).text).join("")
  }

  /** Returns the values to send back beside text and calls: reasoning, provider work and text boundaries. */
  private kept(): ReadonlyArray<Message.Part> {
    const messages = this.items.ofType("message")
    const firstCall = this.items.ofType("function_call")[0]?.position ?? Infinity
    const isDivided = this.items.all.some((item) => item.type === "reasoning" || (isHosted(item) && !item.isOwn)) ||
      messages.length > 1 ||
      messages.some((item) => Wire.string(item.wire?.["phase"]) !== undefined || item.position > firstCall)
    return this.items.all.flatMap((item): ReadonlyArray<Message.Part> => {
      if (item.type === "function_call" || item.isOwn || (item.type === "message" && !isDivided)) return []
      const content = item.type === "message" ? { message: divisionOf(item) } : { item: Wire.said(item.wire ?? {}) }
      const text = item.type === "reasoning" ? item.texts("thought").text : ""
      const isWhole = item.isDone || item.type === "message"
      const metadata = isWhole ? { metadata: { [metadataKey]: { index: item.position, ...content } } } : {}
      return isWhole || text !== "" ? [{ type: "reasoning", text, ...metadata }] : []
    })
  }
}

type Read = (output: Output, event: Json.JsonObject, out: Answer.Out) => void

/** Text types, by new and old names: their meaning and their place in an item. */
const texts: ReadonlyArray<readonly [name: string, kind: Kind, place: Place]> = [
  ["output_text", "text", "content"],
  ["refusal", "refusal", "content"],
  ["reasoning_text", "thought", "content"],
  ["reasoning", "thought", "content"],
  ["reasoning_summary_text", "thought", "summary"],
  ["reasoning_summary", "thought", "summary"]
]

const contentPart: Read = (output, event, out) => output.settlePart("content", event, out)
const summaryPart: Read = (output, event, out) => output.settlePart("summary", event, out)

/** Output events. Types not listed repeat other content. */
export const readers: ReadonlyMap<string, Read> = new Map<string, Read>([
  ["response.output_item.added", (output, event, out) => output.added(event, out)],
  ["response.output_item.done", (output, event, out) => output.done(event, out)],
  ["response.content_part.added", contentPart],
  ["response.content_part.done", contentPart],
  ["response.reasoning_summary_part.added", summaryPart],
  ["response.reasoning_summary_part.done", summaryPart],
  ["response.output_text.annotation.added", (output, event) => output.annotate(Wire.object(event["annotation"]))],
  ["response.function_call_arguments.delta", (output, event, out) => output.argumentsDelta(event, out)],
  ["response.function_call_arguments.done", (output, event, out) => output.argumentsDone(event, out)],
  ...texts.flatMap(([name, kind, place]): ReadonlyArray<readonly [string, Read]> => [
    [`response.${name}.delta`, (output, event, out) => output.delta(kind, place, event, out)],
    [`response.${name}.done`, (output, event, out) => output.settle(kind, place, event, out)]
  ])
])

const typeOfKind = (kind: Kind): string => kind === "thought" ? "reasoning" : "message"

const indexOf = (place: Place, event: Json.JsonObject): unknown =>
  (place === "summary" ? event["summary_index"] : event["content_index"]) ?? 0

/** Whole text of an event or part. */
const wholeOf = (given: Json.JsonObject): string => Wire.string(given["text"]) ?? Wire.string(given["refusal"]) ?? ""

const emit = (kind: Kind, delta: string, out: Answer.Out): void => {
  if (kind === "text") Answer.say(delta, out)
  if (kind === "thought") Answer.think(delta, out)
}

/** Returns a message's share of the reply text, and its other values to send back. */
const divisionOf = (item: Item): Json.JsonObject => ({
  ...Wire.defined({ id: item.id, phase: Wire.string(item.wire?.["phase"]) }),
  length: item.texts("text").text.length,
  ...Wire.defined({ refusal: Wire.string(item.texts("refusal").text) })
})

const argumentsOf = (wire: Json.JsonObject): string => {
  const given = wire["arguments"]
  return typeof given === "string" ? given : Json.isObject(given) ? JSON.stringify(given) : ""
}

/** Returns a hosted tool's input, from the member its item type uses. */
const inputOf = (wire: Json.JsonObject): Json.JsonObject => {
  const given = wire["arguments"] ?? wire["action"] ?? wire["operation"] ?? wire["input"]
  if (Json.isObject(given)) return given
  const parsed = typeof given === "string" && given !== "" ? ToolCalls.ofText(given) : undefined
  if (parsed !== undefined && ToolCalls.isWhole(parsed)) return parsed.arguments
  return Object.fromEntries(Object.entries(wire).filter(([name]) => ["input", "code", "queries"].includes(name)))
}
