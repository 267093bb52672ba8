/**
 * What the embedded model is given and what it gives back, and how it finds out where it stands: the question, and the
 * answers that its tools have given since. It keeps nothing between requests.
 */
import * as Words from "../words.ts"

/** A tool call as a message carries it; `arguments` is JSON text. */
export interface Call {
  readonly id: string
  readonly name: string
  readonly arguments: string
}

/** A message of the conversation. */
export interface Message {
  readonly role: string
  readonly content: string
  readonly calls: ReadonlyArray<Call>
  readonly answers: string | undefined
}

/** What the model sees. */
export interface Request {
  readonly messages: ReadonlyArray<Message>
  /** The names of the tools it may call. */
  readonly tools: ReadonlyArray<string>
}

/** A call that the model wants to make. */
export interface Wanted {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
}

/** What the model says and what it calls, in the order in which it does; without calls, the conversation is over. */
export interface Reply {
  readonly parts: ReadonlyArray<string | Wanted>
}

/** A reply. */
export const say = (...parts: Reply["parts"]): Reply => ({ parts })

/** A call in a reply. */
export const call = (name: string, args: Wanted["arguments"] = {}): Wanted => ({ name, arguments: args })

/** What a reply says, calls left out. */
export const textOf = (reply: Reply): string => reply.parts.filter((part) => typeof part === "string").join(" ")

/** What a reply calls. */
export const callsOf = (reply: Reply): ReadonlyArray<Wanted> => reply.parts.filter((part) => typeof part !== "string")

/** A call of the current question together with its answer; a failed one has an `error` and no `value`. */
export interface Answered {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
  readonly value: Readonly<Record<string, unknown>>
  readonly error: string | undefined
}

type JsonObject = Readonly<Record<string, unknown>>

const parse = (text: string): JsonObject => {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value as JsonObject : {}
  } catch {
    return {}
  }
}

const answered = (call: Call, content: string): Answered => {
  const value = parse(content)
  const isFailure = typeof value["error"] === "string"
  return {
    name: call.name,
    arguments: parse(call.arguments),
    value: isFailure ? {} : value,
    error: isFailure ? String(value["error"]) : undefined
  }
}

/** The calls since the last word of the user, each with its answer. */
export const answersOf = (messages: ReadonlyArray<Message>): ReadonlyArray<Answered> => {
  const since = messages.slice(messages.findLastIndex((message) => message.role === "user") + 1)
  const contents = new Map(
    since.flatMap((message) => message.answers === undefined ? [] : [[message.answers, message.content]])
  )
  return since.flatMap((message) => message.calls).flatMap((call) => {
    const content = contents.get(call.id)
    return content === undefined ? [] : [answered(call, content)]
  })
}

/** What the user says between two steps, behind the answers of tools, is said of the question before it. */
const saidIn = (messages: ReadonlyArray<Message>): ReadonlyArray<string> => {
  const said: Array<string> = []
  const hasAsked = messages.some((message) => message.calls.some((call) => call.name === "ask_user"))
  for (const [index, { content, role }] of messages.entries()) {
    if (role !== "user") continue
    const isMeanwhile = !hasAsked && messages[index - 1]?.answers !== undefined
    const before = isMeanwhile ? said.pop() : undefined
    said.push(before === undefined ? content.trim() : `${before} ${content.trim()}`)
  }
  return said
}

/** The question: the user's last word, with what it was the reply to when the model had to ask back. */
export const questionOf = (messages: ReadonlyArray<Message>): string => {
  const said = saidIn(messages)
  const last = said.at(-1) ?? ""
  const before = messages.slice(0, messages.findLastIndex((message) => message.role === "user"))
  const hasAsked = before.some((message) => message.calls.some((call) => call.name === "ask_user"))
  const isWordless = Words.terms(said.at(-2) ?? "").length === 0
  return hasAsked && isWordless && said.length > 1 ? `${said.at(-2)} ${last}` : last
}
