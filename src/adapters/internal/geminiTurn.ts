/**
 * A model's turn both ways: what of a reply has to go back, and the parts that it goes back as. The protocol ties its
 * signatures to parts, so every signed part goes back as it came and where it came; so do images, and the parts of tools
 * that ran at the provider. A turn of plain text and calls needs none of this: a call carries its own signature. For any
 * other turn a reasoning part without text keeps the order, counting characters of the message's text instead of
 * repeating them.
 */
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import { type Call, metadataKey } from "./geminiCalls.ts"
import * as Wire from "./wire.ts"

/** Something of a turn, at its place. */
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

  /** The reasoning of the message, and with it what else has to go back. `own` are the calls of this side. */
  reasoning(own: ReadonlyArray<Message.ToolCall>): ReadonlyArray<Message.Part> {
    const thoughts = this.thoughts.map(({ signature, text }): Message.Part => ({
      type: "reasoning",
      text,
      ...(signature === undefined ? {} : { signature })
    }))
    if (this.isPlain) return thoughts
    const parts = this.items.map((item) => kept(item, own))
    return [...thoughts, { type: "reasoning", text: "", metadata: { [metadataKey]: { parts } } }]
  }

  /** Unsigned text, then calls: what a message says without any help. */
  private get isPlain(): boolean {
    return this.items.every((item, index) =>
      item._tag === "Call" || (item._tag === "Text" && item.signature === undefined && index === 0)
    )
  }
}

/** A place in the order, as it is kept. */
const kept = (item: Item, own: ReadonlyArray<Message.ToolCall>): Json.JsonObject => {
  switch (item._tag) {
    case "Text":
      return { text: item.length, ...Wire.given("thoughtSignature", item.signature) }
    case "Thought":
      return { thought: item.index }
    case "Call": {
      const call = item.call.place === undefined ? undefined : own[item.call.place]
      return call === undefined ? { part: item.part } : { call: call.id }
    }
    case "Raw":
      return { part: item.part }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// writing

/** The parts of an assistant message. Media are what its content holds of images and files. */
export const parts = (
  message: Message.Message,
  media: ReadonlyArray<Json.JsonObject>
): ReadonlyArray<Json.JsonObject> => {
  const text = Message.text(message)
  const calls = (message.toolCalls ?? []).filter((call) => call.providerExecuted !== true)
  const order = orderOf(message, text)
  if (order !== undefined) return ordered(order, message, text, calls)
  return [...(text === "" ? [] : [{ text }]), ...media, ...calls.map(callPart)]
}

/** The order that is kept with a message, unless its text was changed since. */
const orderOf = (message: Message.Message, text: string): ReadonlyArray<Json.JsonObject> | undefined => {
  const kept = (message.reasoning ?? []).flatMap((part) =>
    part.type === "reasoning" ? [Wire.object(part.metadata?.[metadataKey])["parts"]] : []
  ).find(Array.isArray)
  if (kept === undefined) return undefined
  const order = Wire.list(kept)
  const length = order.reduce((sum, item) => sum + lengthOf(item), 0)
  return length === text.length ? order : undefined
}

const lengthOf = ({ text }: Json.JsonObject): number => typeof text === "number" ? text : 0

const ordered = (
  order: ReadonlyArray<Json.JsonObject>,
  message: Message.Message,
  text: string,
  calls: ReadonlyArray<Message.ToolCall>
): ReadonlyArray<Json.JsonObject> => {
  const open = new Map(calls.map((call) => [call.id, call]))
  let offset = 0
  const placed = order.flatMap((item): ReadonlyArray<Json.JsonObject> => {
    const { call: id, part, text: length, thought, thoughtSignature } = item
    if (Json.isObject(part)) return [part]
    if (typeof thought === "number") return thoughtPart(message.reasoning?.[thought])
    if (typeof length === "number") {
      offset += length
      return [{ text: text.slice(offset - length, offset), ...Wire.given("thoughtSignature", thoughtSignature) }]
    }
    const call = typeof id === "string" ? open.get(id) : undefined
    if (call === undefined) return []
    open.delete(call.id)
    return [callPart(call)]
  })
  return [...placed, ...Array.from(open.values(), callPart)]
}

const thoughtPart = (part: Message.Part | undefined): ReadonlyArray<Json.JsonObject> =>
  part?.type === "reasoning" && part.signature !== undefined
    ? [{ text: part.text, thought: true, thoughtSignature: part.signature }]
    : []

/** A call with the id that it had on the wire, which many have not, and its signature. */
const callPart = (call: Message.ToolCall): Json.JsonObject => {
  const { id, thoughtSignature } = Wire.object(call.metadata[metadataKey])
  return {
    functionCall: { ...Wire.given("id", Wire.string(id)), name: call.name, args: call.arguments },
    ...Wire.given("thoughtSignature", Wire.string(thoughtSignature))
  }
}
