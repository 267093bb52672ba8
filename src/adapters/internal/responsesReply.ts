/**
 * The output items of a Responses reply while they stream: which item an event belongs to, the texts in it, its calls,
 * and what of it has to go back with the next request. Servers repeat everything up to four times and leave out any of
 * the four: fragments are shown as they come, a repetition adds what they left out and outweighs them. Every text is
 * compared with its own repetitions only, so that the work is linear in what arrives.
 */
import * as ToolCalls from "../../internal/hear/toolCalls.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import * as Answer from "./answerBody.ts"
import { type Item, Items, type Kind, type Listed, type Place, typeOf } from "./responsesItems.ts"
import * as Wire from "./wire.ts"

/** The key of what has to go back to a server of this protocol, and to no other. */
export const metadataKey = "openaiResponses"

/** The content of a whole reply. */
export interface Said {
  readonly text: string
  readonly refusal: string
  readonly reasoning: ReadonlyArray<Message.Part>
  readonly annotations: ReadonlyArray<Json.JsonObject>
  /** The kinds of items that ask this side for something that no tool of a run can do. */
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

/**
 * Returns `true` if an item is something that the provider did, or wants done, besides answering and calling functions.
 */
const isHosted = (item: Item): boolean => !ownTypes.includes(item.type)

/** Returns `true` if a hosted item is a call: the result of a call is an item of its own. */
const isCall = (item: Item): boolean => !item.type.endsWith("_output") && item.type !== "compaction"

/**
 * Kinds of hosted calls that only an answer closes: the client's, unless the provider answers them in the same reply.
 */
const asking: ReadonlyArray<unknown> = [
  "apply_patch_call",
  "computer_call",
  "local_shell_call",
  "mcp_approval_request",
  "shell_call"
]

/** Tells whether an item may ask this side for something. What happens in a container happens at the provider. */
const isAsking = (wire: Json.JsonObject): boolean =>
  wire["type"] === "tool_search_call"
    ? wire["execution"] === "client"
    : asking.includes(wire["type"]) && !String(Wire.object(wire["environment"])["type"]).startsWith("container")

/** A call and its output have the kind of tool and the id of the call in common. */
const exchangeOf = ({ call_id, type }: Json.JsonObject): string =>
  `${String(type).replace(/(_call)?(_output)?$/, "")} ${String(call_id)}`

const withoutAnswer = (
  items: ReadonlyArray<Json.JsonObject>,
  isQuestion: (item: Json.JsonObject) => boolean
): ReadonlySet<Json.JsonObject> => {
  const answers = new Set(items.filter(({ type }) => String(type).endsWith("_output")).map(exchangeOf))
  return new Set(items.filter((item) => isQuestion(item) && !answers.has(exchangeOf(item))))
}

/** The items that cannot go back, because an answer to them would have to: no tool gives one of their kind. */
export const unanswered = (items: ReadonlyArray<Json.JsonObject>): ReadonlySet<Json.JsonObject> =>
  withoutAnswer(items, ({ type }) => type === customType || asking.includes(type))

export class Output {
  /** The reason why what was read cannot be trusted, if it cannot. */
  problem: string | undefined
  private readonly calls: ToolCalls.WireCalls
  private readonly custom: ReadonlySet<string> | undefined
  private readonly items = new Items()
  private readonly annotations = new Map<string, Json.JsonObject>()

  /** `custom`: the tools that were declared to take a text, if any tools of the provider's kinds were declared. */
  constructor(calls: ToolCalls.WireCalls, custom: ReadonlySet<string> | undefined) {
    this.calls = calls
    this.custom = custom
  }

  // -------------------------------------------------------------------------------------------------------------------
  // items

  /** An item has begun. */
  added(event: Json.JsonObject, out: Answer.Out): void {
    const wire = Wire.object(event["item"])
    this.head(this.items.begun(wire, event["output_index"]), wire, out)
  }

  /** An item is complete. */
  done(event: Json.JsonObject, out: Answer.Out): void {
    const wire = Wire.object(event["item"])
    const item = this.items.ended(wire, event["output_index"])
    if (item !== undefined) this.complete(item, wire, out)
  }

  /** The whole output, as the last event or a document has it. What was streamed is known by its type and order. */
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

  /** A call that may have been cut is left open: its text and its place show whether it was. */
  private complete(item: Item, wire: Json.JsonObject, out: Answer.Out, mayBeCut = false): void {
    this.head(item, wire, out)
    item.isDone = true
    if (item.type === "function_call") {
      if (item.call === undefined) return
      this.replace(item.call, argumentsOf(wire), out)
      const isCut = wire["status"] === "incomplete"
      if (isCut || (!mayBeCut && argumentsOf(wire) !== "")) this.calls.close(item.call, isCut, out)
      // Arguments that the item does not repeat may lack fragments that stand under another item.
      else if (!mayBeCut) this.calls.settle(item.call, out)
      return
    }
    // The whole reply shows whose such a call is.
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

  /** The call of an item, which may begin with a fragment of its arguments. */
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

  /** A call that ran at the provider: it is listed in its place, whole at once, and never run here. */
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
   * Calls with a text instead of arguments are this side's to answer if it declared such tools. If nothing is known of
   * what was declared, those behind which the model spoke again ran at the provider. The text stands under `input` for
   * a tool that was declared to take one, and else for the arguments.
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

  /** The whole of a text. */
  settle(kind: Kind, place: Place, event: Json.JsonObject, out: Answer.Out): void {
    const item = this.items.of(typeOfKind(kind), event)
    const whole = { place, index: indexOf(place, event), whole: wholeOf(event) }
    emit(kind, item.texts(kind).repeat("text", whole), out)
  }

  /** A part of an item, empty when it begins and whole when it ends. */
  settlePart(place: Place, event: Json.JsonObject, out: Answer.Out): void {
    const part = Wire.object(event["part"])
    const kind = kindOf(part)
    if (kind === undefined) return
    this.annotated(part)
    const item = this.items.of(typeOfKind(kind), event)
    const whole = { place, index: indexOf(place, event), whole: wholeOf(part) }
    emit(kind, item.texts(kind).repeat("part", whole), out)
  }

  /** All parts of an item, by the places where they stand. */
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

  /** A source that the text cites. Servers report it beside the text and in it. */
  annotate(annotation: Json.JsonObject): void {
    const text = JSON.stringify(annotation)
    if (!this.annotations.has(text)) this.annotations.set(text, annotation)
  }

  // -------------------------------------------------------------------------------------------------------------------
  // the end

  /** The reply has ended: what is still open is completed. */
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

  /** The kinds of calls that wait for this side; those that the provider has answered are listed. */
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

  /** Returns what goes back beside text and calls: reasoning, what the provider did, and how the text was divided. */
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

/** The kinds of texts, by new and old names: what they are to a reader, and where in an item they stand. */
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

/** The events of a reply's output. Kinds that are not listed repeat the content of others. */
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

/** The whole text of an event or a part. */
const wholeOf = (given: Json.JsonObject): string => Wire.string(given["text"]) ?? Wire.string(given["refusal"]) ?? ""

const emit = (kind: Kind, delta: string, out: Answer.Out): void => {
  if (kind === "text") Answer.say(delta, out)
  if (kind === "thought") Answer.think(delta, out)
}

/** Returns the part of the reply's text that a message consists of, and what else it has to go back with. */
const divisionOf = (item: Item): Json.JsonObject => ({
  ...Wire.defined({ id: item.id, phase: Wire.string(item.wire?.["phase"]) }),
  length: item.texts("text").text.length,
  ...Wire.defined({ refusal: Wire.string(item.texts("refusal").text) })
})

const argumentsOf = (wire: Json.JsonObject): string => {
  const given = wire["arguments"]
  return typeof given === "string" ? given : Json.isObject(given) ? JSON.stringify(given) : ""
}

/** Returns what a hosted tool was asked: in the member that its kind of item has for it. */
const inputOf = (wire: Json.JsonObject): Json.JsonObject => {
  const given = wire["arguments"] ?? wire["action"] ?? wire["operation"] ?? wire["input"]
  if (Json.isObject(given)) return given
  const parsed = typeof given === "string" && given !== "" ? ToolCalls.ofText(given) : undefined
  if (parsed !== undefined && ToolCalls.isWhole(parsed)) return parsed.arguments
  return Object.fromEntries(Object.entries(wire).filter(([name]) => ["input", "code", "queries"].includes(name)))
}
