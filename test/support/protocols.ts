/**
 * What four wire protocols demand of a conversation, as far as a thread decides it: the order of roles, that calls and
 * answers are paired, where the answers stand, and how they are named. Each function says what is wrong.
 */
import { Message, type Thread } from "heddle"

type Messages = ReadonlyArray<Message.Message>

type Problems = ReadonlyArray<string>

const callsOf = (message: Message.Message): ReadonlyArray<Message.ToolCall> =>
  message.role === "assistant" ? message.toolCalls ?? [] : []

/** Each message with calls, and the answers that stand right behind it. */
const rounds = (messages: Messages) =>
  messages.flatMap((message, index) => {
    const calls = callsOf(message)
    if (calls.length === 0) return []
    const behind = messages.slice(index + 1)
    const end = behind.findIndex((other) => other.role !== "tool")
    return [{ index, calls, answers: end < 0 ? behind : behind.slice(0, end) }]
  })

const repeated = (items: ReadonlyArray<string>): ReadonlyArray<string> =>
  items.filter((item, index) => items.indexOf(item) !== index)

/** Chat Completions: the answers to all calls, and nothing else, right behind the message that made them. */
const chatCompletions = (messages: Messages): Problems => {
  const found: Array<string> = []
  const placed = new Set<Message.Message>()
  for (const { answers, calls, index } of rounds(messages)) {
    const ids = calls.map((call) => call.id)
    const answered = answers.map((message) => message.toolCallId ?? "")
    for (const answer of answers) placed.add(answer)
    for (const id of ids) if (!answered.includes(id)) found.push(`${index}: no answer to ${id}`)
    for (const id of answered) if (!ids.includes(id)) found.push(`${index}: an answer to ${id}, which was not called`)
    for (const id of [...repeated(ids), ...repeated(answered)]) found.push(`${index}: ${id} twice`)
    for (const { name } of calls) if (!/^[A-Za-z0-9_-]{1,64}$/.test(name)) found.push(`${index}: the name ${name}`)
  }
  messages.forEach((message, index) => {
    if (message.role === "tool" && !placed.has(message)) found.push(`${index}: an answer without its call before it`)
  })
  return found
}

/** Responses: each call id of the input names one call and one output, which comes later. */
const responses = (messages: Messages): Problems => {
  const called = messages.flatMap((message) => callsOf(message).map((call) => call.id))
  const seen = new Set<string>()
  const found: Array<string> = repeated(called).map((id) => `the call ${id} twice`)
  const outputs: Array<string> = []
  for (const message of messages) {
    for (const call of callsOf(message)) seen.add(call.id)
    if (message.role !== "tool") continue
    outputs.push(message.toolCallId ?? "")
    if (!seen.has(message.toolCallId ?? "")) found.push(`an output of ${message.toolCallId} before its call`)
  }
  return [
    ...found,
    ...repeated(outputs).map((id) => `the output of ${id} twice`),
    ...called.filter((id) => !outputs.includes(id)).map((id) => `no output of ${id}`)
  ]
}

interface Turn {
  readonly role: "user" | "model"
  readonly messages: Messages
}

/** The turns of protocols that know two speakers: answers are the user's, and what one says in a row is one turn. */
const turnsOf = (messages: Messages): ReadonlyArray<Turn> => {
  const turns: Array<{ readonly role: Turn["role"]; readonly messages: Array<Message.Message> }> = []
  for (const message of messages) {
    if (message.role === "system" || isSilent(message)) continue
    const role = message.role === "assistant" ? "model" : "user"
    const last = turns.at(-1)
    if (last?.role === role) last.messages.push(message)
    else turns.push({ role, messages: [message] })
  }
  return turns
}

/** Nothing to send: these protocols have no empty content. */
const isSilent = (message: Message.Message): boolean =>
  message.role === "assistant" && callsOf(message).length === 0 && Message.text(message) === ""

const ofTurns = (messages: Messages, check: (turn: Turn, next: Turn | undefined) => Problems): Problems => {
  const turns = turnsOf(messages)
  return [
    ...(turns[0]?.role === "model" ? ["the model speaks first"] : []),
    ...turns.flatMap((turn, index) => check(turn, turns[index + 1]))
  ]
}

const idsOf = (turn: Turn): ReadonlyArray<string> =>
  turn.messages.flatMap((message) => callsOf(message).map((call) => call.id))

/** Messages: the results of a turn's uses come first in the next turn, all of them, and ids are used once. */
const anthropic = (messages: Messages): Problems => [
  ...repeated(turnsOf(messages).flatMap(idsOf)).map((id) => `the use ${id} twice`),
  ...ofTurns(messages, (turn, next) => {
    const ids = turn.role === "model" ? idsOf(turn) : []
    const spoken = (next?.messages ?? []).findIndex((message) => message.role !== "tool")
    const results = next === undefined ? [] : spoken < 0 ? next.messages : next.messages.slice(0, spoken)
    const late = spoken < 0 ? [] : (next?.messages ?? []).slice(spoken).filter((message) => message.role === "tool")
    const answered = results.map((message) => message.toolCallId ?? "")
    return [
      ...ids.filter((id) => !answered.includes(id)).map((id) => `no result of ${id} in the next turn`),
      ...answered.filter((id) => !ids.includes(id)).map((id) => `a result of ${id} without its use`),
      ...repeated(answered).map((id) => `the result of ${id} twice`),
      ...late.map((message) => `the result of ${message.toolCallId} behind a text`),
      ...ids.filter((id) => !/^[A-Za-z0-9_-]+$/.test(id)).map((id) => `the id ${id}`)
    ]
  })
]

/** Gemini: a turn with calls is followed by a turn with as many responses. */
const gemini = (messages: Messages): Problems =>
  ofTurns(messages, (turn, next) => {
    if (turn.role !== "model") return []
    const calls = idsOf(turn).length
    const answers = (next?.messages ?? []).filter((message) => message.role === "tool").length
    return calls === answers ? [] : [`${calls} calls and ${answers} responses`]
  })

const protocols = { anthropic, chatCompletions, gemini, responses }

/** What any of the protocols has against a thread. */
export const problems = ({ messages }: Thread.Thread): Problems =>
  Object.entries(protocols).flatMap(([name, check]) => check(messages).map((problem) => `${name}: ${problem}`))

/** The names of the protocols. */
export const names: ReadonlyArray<string> = Object.keys(protocols)
