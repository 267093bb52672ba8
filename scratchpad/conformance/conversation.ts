/**
 * The conversation inside a request, the same for every protocol: who said what, which tools were called with what, and
 * how they were answered. Recorded requests are read into it, and so are the ones Heddle sends, so that the two can be
 * compared, and a recorded one can be gone on with.
 */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Message } from "heddle"
import { isDeepStrictEqual } from "node:util"

export type Json = Readonly<Record<string, unknown>>

export interface Call {
  /** Some protocols have none. */
  readonly id: string | null
  readonly name: string
  readonly arguments: unknown
}

export interface Result {
  readonly kind: "result"
  readonly id: string | null
  readonly name: string | null
  readonly text: string
  /** Where the protocol has a flag for it. */
  readonly isError: boolean | null
}

export interface Assistant {
  readonly kind: "assistant"
  readonly text: string
  readonly calls: ReadonlyArray<Call>
}

export type Item =
  | { readonly kind: "system"; readonly text: string }
  | { readonly kind: "user"; readonly text: string; readonly media: ReadonlyArray<Message.Part> }
  | Assistant
  | Result

export interface Conversation {
  readonly items: ReadonlyArray<Item>
  readonly tools: ReadonlyArray<{ readonly name: string; readonly description: string; readonly parameters: Json }>
  /** Whether the provider keeps what was said before, and the request holds only what is new. */
  readonly isContinued: boolean
}

// ---------------------------------------------------------------------------------------------------------------------
// reading

export const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value)

export const object = (value: unknown): Json => isObject(value) ? value : {}

export const list = (value: unknown): ReadonlyArray<Json> => Array.isArray(value) ? value.filter(isObject) : []

export const string = (value: unknown): string => typeof value === "string" ? value : ""

export const idOf = (value: unknown): string | null => typeof value === "string" && value !== "" ? value : null

/** The texts of a content that is a text or a list of parts. */
export const textOf = (content: unknown): string =>
  typeof content === "string" ? content : list(content).map(({ text }) => string(text)).join("")

const FromJson = Schema.fromJsonString(Schema.Unknown)

/** What a text of arguments says; one that is no JSON stands for itself. */
export const argumentsOf = (value: unknown): unknown => {
  if (typeof value !== "string") return value ?? {}
  return value.trim() === "" ? {} : Option.getOrElse(Schema.decodeUnknownOption(FromJson)(value), () => value)
}

/** One turn of the model is one item, however the protocol takes it apart; one that says nothing is none. */
export const joined = (items: ReadonlyArray<Item>): ReadonlyArray<Item> =>
  items.reduce<Array<Item>>((all, item) => {
    const last = all.at(-1)
    if (item.kind === "assistant" && item.text === "" && item.calls.length === 0) return all
    if (item.kind === "assistant" && last?.kind === "assistant") {
      all[all.length - 1] = { ...last, text: last.text + item.text, calls: [...last.calls, ...item.calls] }
    } else if (item.kind === "system" && last?.kind === "system") {
      all[all.length - 1] = { ...last, text: `${last.text}\n${item.text}` }
    } else if (item.kind === "user" && last?.kind === "user") {
      all[all.length - 1] = { ...last, text: `${last.text}\n${item.text}`, media: [...last.media, ...item.media] }
    } else all.push(item)
    return all
  }, [])

// ---------------------------------------------------------------------------------------------------------------------
// going on with it

/** The messages of a conversation. Calls without an id get one, and their answers the same. */
export const toMessages = (items: ReadonlyArray<Item>): ReadonlyArray<Message.Message> => {
  const open: Array<{ readonly id: string; readonly name: string }> = []
  const answered = (result: Result): string => {
    const index = open.findIndex(({ id, name }) => result.id === null ? name === result.name : id === result.id)
    return open.splice(Math.max(index, 0), 1)[0]?.id ?? result.id ?? "unknown"
  }
  return items.map((item, position): Message.Message => {
    switch (item.kind) {
      case "system":
        return Message.system(item.text)
      case "user":
        return Message.user(item.media.length === 0 ? item.text : [{ type: "text", text: item.text }, ...item.media])
      case "assistant": {
        const calls = item.calls.map((call, index) =>
          Message.toolCall(call.id ?? `recorded_${position}_${index}`, call.name, object(call.arguments))
        )
        open.push(...calls)
        return Message.assistant(item.text, calls)
      }
      case "result":
        return { ...Message.tool(answered(item), item.text), ...(item.isError === true ? { isError: true } : {}) }
    }
  })
}

// ---------------------------------------------------------------------------------------------------------------------
// comparing

/** Without white space, and without the thoughts that some clients write into the text. */
const squeezed = (text: string): string => text.replace(/^\s*<think>[^]*?<\/think>/, "").replaceAll(/\s+/g, " ").trim()

const show = (value: unknown): string => {
  const text = JSON.stringify(value) ?? "nothing"
  return text.length <= 160 ? text : `${text.slice(0, 157)}...`
}

/** Ids are compared where both sides have one. */
const isSameId = (recorded: string | null, sent: string | null): boolean =>
  recorded === null || sent === null || recorded === sent

const isSameCall = (recorded: Call, sent: Call | undefined): boolean =>
  sent !== undefined && isSameId(recorded.id, sent.id) && recorded.name === sent.name &&
  (isDeepStrictEqual(recorded.arguments, sent.arguments) || !isObject(recorded.arguments))

const isSame = (recorded: Item, sent: Item): boolean => {
  if (recorded.kind === "assistant" && sent.kind === "assistant") {
    // Some clients leave the text of a turn out that calls tools.
    const isText = squeezed(recorded.text) === squeezed(sent.text) ||
      (recorded.text === "" && recorded.calls.length > 0)
    return isText && recorded.calls.length === sent.calls.length &&
      recorded.calls.every((call, index) => isSameCall(call, sent.calls[index]))
  }
  if (recorded.kind === "result" && sent.kind === "result") {
    return isSameId(recorded.id, sent.id) && squeezed(recorded.text) === squeezed(sent.text) &&
      (recorded.isError ?? false) === (sent.isError ?? false)
  }
  if (recorded.kind === "user" && sent.kind === "user" && recorded.media.length !== sent.media.length) return false
  return recorded.kind === sent.kind && "text" in recorded && "text" in sent &&
    squeezed(recorded.text) === squeezed(sent.text)
}

/** How a request differs from the recorded one in what was said, called and answered. */
export const differences = (recorded: ReadonlyArray<Item>, sent: ReadonlyArray<Item>): ReadonlyArray<string> => {
  const kinds = (items: ReadonlyArray<Item>) => items.map(({ kind }) => kind).join(" ")
  if (kinds(recorded) !== kinds(sent)) return [`request: expected ${kinds(recorded)}, sent ${kinds(sent)}`]
  return recorded.flatMap((item, index) =>
    isSame(item, sent[index]!) ? [] : [`request item ${index}: expected ${show(item)}, sent ${show(sent[index])}`]
  )
}
