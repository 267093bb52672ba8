/**
 * The open calls of a conversation: which calls wait for an answer from outside the run, for what they wait, and how an
 * answer enters the thread. The run, the session's reducer and the journal's fold all use these functions, so that they
 * agree about what is open.
 *
 * - Answers stand in the order of the calls, in whatever order they came.
 */
import type * as Message from "../Message.ts"
import type * as Thread from "../Thread.ts"
import * as Json from "./json.ts"
import * as Log from "./log.ts"

type Messages = ReadonlyArray<Message.Message>

/** The latest turn that made a call with this id: ids may come again in later turns. */
const turnOf = (messages: Messages, id: string | undefined): number =>
  messages.findLastIndex(({ role, toolCalls }) =>
    role === "assistant" && toolCalls?.some((call) => call.id === id) === true
  )

/** The position of each call in its turn. */
const positionsIn = (turn: Message.Message | undefined): ReadonlyMap<string | undefined, number> =>
  new Map(turn?.toolCalls?.map((call, index) => [call.id, index]))

/** The answers of one turn, with more of them: each in the place of the call's earlier answer, or in call order. */
const merged = (
  block: Messages,
  more: Messages,
  positions: ReadonlyMap<string | undefined, number>
): Messages => {
  const position = ({ toolCallId }: Message.Message): number => positions.get(toolCallId) ?? -1
  const replacements = new Map(more.map((answer) => [answer.toolCallId, answer]))
  const kept = block.map((answer) => {
    const replacement = replacements.get(answer.toolCallId)
    replacements.delete(answer.toolCallId)
    return replacement ?? answer
  })
  const added = Array.from(replacements.values()).toSorted((left, right) => position(left) - position(right))
  const result: Array<Message.Message> = []
  let next = 0
  for (const answer of kept) {
    for (let more = added[next]; more !== undefined && position(more) < position(answer); more = added[next]) {
      result.push(more)
      next++
    }
    result.push(answer)
  }
  return result.concat(added.slice(next))
}

/** The messages with answers to calls, each where it belongs. An answer without a call stands at the end. */
const placedIn = (messages: Messages, answers: Messages): Messages => {
  let placed = messages
  let rest = answers
  for (let first = rest[0]; first !== undefined; first = rest[0]) {
    const turn = turnOf(placed, first.toolCallId)
    if (turn < 0) return placed.concat(rest)
    const positions = positionsIn(placed[turn])
    const isHere = ({ toolCallId }: Message.Message): boolean => positions.has(toolCallId)
    const next = placed.findIndex(({ role }, index) => index > turn && role !== "tool")
    const end = next < 0 ? placed.length : next
    placed = [
      ...placed.slice(0, turn + 1),
      ...merged(placed.slice(turn + 1, end), rest.filter(isHere), positions),
      ...placed.slice(end)
    ]
    rest = rest.filter((answer) => !isHere(answer))
  }
  return placed
}

/**
 * The thread with answers to calls of it: in call order behind the message that made the calls, and in the place of an
 * answer that the call has already.
 */
export const placed = (thread: Thread.Thread, answers: Messages): Thread.Thread =>
  answers.length === 0 ? thread : { ...thread, messages: placedIn(Log.list(thread), answers) }

/** Whether the last message asks the question of a call in words: what the user says next is its answer. */
const isAskedAloud = (messages: Messages, id: string | undefined): boolean => {
  const last = messages.at(-1)
  return last?.askUser === true && last.toolCallId === id
}

/**
 * The thread with the answer to a question: in the place where the question waits, or, behind a question that was asked
 * in words, as what the user said.
 */
export const told = (thread: Thread.Thread, answer: Message.Message): Thread.Thread =>
  isAskedAloud(Log.list(thread), answer.toolCallId)
    ? Log.longer(thread, [{ role: "user", content: answer.content, metadata: Json.none }])
    : placed(thread, [answer])
