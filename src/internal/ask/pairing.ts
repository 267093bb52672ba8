/**
 * Which tool messages of a conversation answer which calls. Providers refuse a conversation in which a call has no
 * answer, an answer has no call, or anything stands between the two: what is wrong with one is found here, and mended.
 */
import type * as Message from "../../Message.ts"
import { toolError } from "../declare/outcome.ts"
import * as Json from "../json.ts"

/** What is wrong with an input, and where. Public as `Thread.Issue`. */
interface Issue {
  readonly path: string
  readonly reason: string
}

/** What was done about one fault. Public as `Thread.Repair`. */
interface Repair {
  readonly kind: "answered" | "dropped" | "moved"
  readonly index: number
  readonly toolCallId: string
  readonly reason: string
}

/**
 * What is wrong at one place: a call without an answer, an answer without a call, a second answer, or an answer that
 * comes after other messages.
 */
interface Fault {
  readonly kind: "unanswered" | "orphan" | "repeated" | "late"
  /** The position of the message: of the call's, or of the answer's. */
  readonly index: number
  readonly toolCallId: string
  /** The call, and its position in its message. A repeated answer and an orphan have none. */
  readonly call?: Message.ToolCall
  readonly position?: number
}

interface Open {
  readonly call: Message.ToolCall
  readonly position: number
  readonly index: number
}

/** What providers expect an answer to. Calls of an input that were not checked may be anything. */
const expected = (message: Message.Input, index: number): ReadonlyArray<Open> => {
  if (message.role !== "assistant" || !Array.isArray(message.toolCalls)) return []
  return message.toolCalls.flatMap((call: unknown, position) =>
    Json.isObject(call) && typeof call["id"] === "string" && call["providerExecuted"] !== true
      ? [{ call: call as unknown as Message.ToolCall, position, index }]
      : []
  )
}

/** The calls of the latest assistant message that made some, while their answers are looked for. */
class Turn {
  /** How often an id was called, whether its calls are answered or not. */
  private readonly asked: ReadonlySet<string>
  private readonly open = new Map<string, Array<Open>>()
  /** Where its answers belong: it ends with the first message that is none. */
  isClosed = false

  constructor(calls: ReadonlyArray<Open>) {
    this.asked = new Set(calls.map(({ call }) => call.id))
    for (const one of calls) {
      const others = this.open.get(one.call.id)
      if (others === undefined) this.open.set(one.call.id, [one])
      else others.push(one)
    }
  }

  /** What an answer is: nothing wrong, where it stands behind its call. */
  answer(id: string): Fault["kind"] | Open | undefined {
    const found = this.open.get(id)?.shift()
    if (found !== undefined) return this.isClosed ? found : undefined
    return this.asked.has(id) ? "repeated" : "orphan"
  }

  /** The calls that no message has answered, in call order. */
  get rest(): ReadonlyArray<Open> {
    return Array.from(this.open.values()).flat().toSorted((left, right) => left.position - right.position)
  }
}

const unanswered = ({ call, index, position }: Open): Fault => ({
  kind: "unanswered",
  index,
  toolCallId: call.id,
  call,
  position
})

/** Everything that is wrong, in the order of the messages that show it. */
const faults = (messages: ReadonlyArray<Message.Input>): ReadonlyArray<Fault> => {
  const found: Array<Fault> = []
  let turn = new Turn([])
  const leave = (): void => {
    for (const open of turn.rest) found.push(unanswered(open))
  }
  messages.forEach((message, index) => {
    if (message.role !== "tool") {
      const calls = expected(message, index)
      // Instructions are sent beside the conversation by most protocols.
      turn.isClosed ||= message.role !== "system"
      if (calls.length === 0) return
      leave()
      turn = new Turn(calls)
      return
    }
    const toolCallId = message.toolCallId ?? ""
    const answered = turn.answer(toolCallId)
    if (answered === undefined) return
    if (typeof answered === "string") found.push({ kind: answered, index, toolCallId })
    else found.push({ ...unanswered(answered), kind: "late", index })
  })
  leave()
  return found.toSorted((left, right) => left.index - right.index)
}

const quoted = (text: unknown): string => JSON.stringify(String(text))

const reasons: { readonly [Kind in Fault["kind"]]: (fault: Fault) => string } = {
  unanswered: ({ call, toolCallId }) =>
    `the assistant message calls ${quoted(call?.name)} with id ${
      quoted(toolCallId)
    }, and no tool message answers it; ` +
    "put Message.answer(id, result) behind it, or use Thread.repair, which answers it as cancelled",
  orphan: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)}, which the assistant message before it does not call; ` +
    "leave it out, or use Thread.repair, which drops it",
  repeated: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} a second time; leave it out, or use Thread.repair, which drops it`,
  late: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} after other messages; put it right behind the assistant message ` +
    "that makes the call, or use Thread.repair, which moves it there"
}

const issueOf = (fault: Fault): Issue => ({
  path: fault.kind === "unanswered"
    ? `messages[${fault.index}].toolCalls[${fault.position}]`
    : `messages[${fault.index}].toolCallId`,
  reason: reasons[fault.kind](fault)
})

/** Why a conversation cannot be sent as it is: each call without its one answer, each answer without its call. */
export const issues = (messages: ReadonlyArray<Message.Input>): ReadonlyArray<Issue> => faults(messages).map(issueOf)

const detail = "the conversation went on without an answer"

/** The answer to a call that was not run to its end. Its name may be anything. */
const cancelled = ({ id, name }: Message.ToolCall): Message.Message => {
  const error = toolError("cancelled", { id, name: String(name) }, { detail })
  return {
    role: "tool",
    toolCallId: id,
    content: JSON.stringify({ error: error.message, code: error.reason }),
    isError: true,
    metadata: Json.none
  }
}

const repairOf = ({ index, kind, toolCallId }: Fault): Repair => {
  switch (kind) {
    case "unanswered":
      return { kind: "answered", index, toolCallId, reason: "the call had no answer: it is answered as cancelled" }
    case "orphan":
      return { kind: "dropped", index, toolCallId, reason: "the answer had no call" }
    case "repeated":
      return { kind: "dropped", index, toolCallId, reason: "the call had its answer already" }
    case "late":
      return { kind: "moved", index, toolCallId, reason: "the answer stood behind other messages" }
  }
}

/** The answers that are to stand behind a message, beside those that do, in call order. */
const missing = (
  found: ReadonlyArray<Fault>,
  messages: ReadonlyArray<Message.Input>
): ReadonlyMap<Message.ToolCall, Message.Input> => {
  const answers = new Map<Message.ToolCall, Message.Input>()
  for (const { call, index, kind } of found) {
    const late = kind === "late" ? messages[index] : undefined
    if (call !== undefined) answers.set(call, late ?? cancelled(call))
  }
  return answers
}

/** The messages with one answer for each call, right behind it, and what was done for that. */
export const repaired = (
  messages: ReadonlyArray<Message.Input>
): { readonly messages: ReadonlyArray<Message.Input>; readonly repairs: ReadonlyArray<Repair> } => {
  const found = faults(messages)
  if (found.length === 0) return { messages, repairs: [] }
  const answers = missing(found, messages)
  const removed = new Set(found.flatMap(({ index, kind }) => kind === "unanswered" ? [] : [index]))
  const kept: Array<Message.Input> = []
  let owed: ReadonlyArray<Message.Input> = []
  messages.forEach((message, index) => {
    if (removed.has(index)) return
    if (message.role !== "tool") {
      kept.push(...owed)
      owed = expected(message, index).flatMap(({ call }) => answers.get(call) ?? [])
    }
    kept.push(message)
  })
  return { messages: [...kept, ...owed], repairs: found.map(repairOf) }
}
