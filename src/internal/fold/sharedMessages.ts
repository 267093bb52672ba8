/**
 * Threads growing out of one another, and the places of answers. A run keeps the thread of each step. With separate
 * lists, 1,000 turns of two messages would hold 8 MB of lists, and 5,000 turns 200 MB; here they hold 0.7 MB and 3.4
 * MB. A short thread is plain data. From 128 messages on, a run's threads share one log: each knows its own length and
 * makes its list when `messages` is read. To readers it looks like plain data.
 */
import type * as Message from "../../Message.ts"
import * as Json from "../json.ts"

type Messages = ReadonlyArray<Message.Message>

/** Public as `Thread.Thread`. */
export interface Thread {
  readonly messages: Messages
  readonly metadata: Json.JsonObject
}

/**
 * A thread's part of a log: from the start up to the thread's length. If the thread's end was replaced, the messages
 * before position `from` belong to the `base` share, and the log begins at `from`.
 */
interface Share {
  readonly base: Share | undefined
  readonly from: number
  readonly log: Array<Message.Message>
  readonly length: number
  list: Messages | undefined
}

/** Thread length where sharing begins. A shared thread prints as a getter, a plain one as its list. */
const shortestShared = 128

/** Shares, kept beside the threads: comparing, printing or freezing a thread sees only messages and metadata. */
const shares = new WeakMap<object, Share>()

const listOf = (own: Share): Messages => {
  const pieces: Array<Messages> = []
  let end = own.length
  for (let share: Share | undefined = own; share !== undefined; share = share.base) {
    pieces.push(share.log.slice(0, end - share.from))
    end = share.from
  }
  return pieces.length === 1 ? pieces[0] ?? [] : pieces.toReversed().flat()
}

const shareOf = (thread: Thread): Share =>
  shares.get(thread) ??
    { base: undefined, from: 0, log: Array.from(thread.messages), length: thread.messages.length, list: undefined }

/** Returns a share ready for the next message. If another thread has grown from here, the share gets its own log. */
const growing = (thread: Thread): Share => {
  const own = shareOf(thread)
  return own.log.length === own.length - own.from
    ? own
    : { base: undefined, from: 0, log: Array.from(list(thread)), length: own.length, list: undefined }
}

const sharing = (own: Share, metadata: Json.JsonObject): Thread => {
  const thread = {
    // The thread refers to its share directly: a proxy around the thread is not in the map.
    get messages() {
      return own.list ??= listOf(own)
    },
    metadata
  }
  shares.set(thread, own)
  return thread
}

/** Returns the thread with appended messages, as plain data. */
export const appended = (thread: Thread, more: Messages): Thread => ({
  messages: list(thread).concat(more),
  metadata: thread.metadata
})

/** Returns the thread with appended messages, for a run appending many times. */
export const appendedShared = (thread: Thread, more: Messages): Thread => {
  if (length(thread) + more.length < shortestShared) return appended(thread, more)
  const { base, from, log } = growing(thread)
  for (const message of more) log.push(message)
  return sharing({ base, from, log, length: from + log.length, list: undefined }, thread.metadata)
}

/** Returns the messages before a position, shared, followed by others. */
export const replacedFrom = (thread: Thread, position: number, behind: Messages): Thread => {
  if (position + behind.length < shortestShared) {
    return { messages: list(thread).slice(0, position).concat(behind), metadata: thread.metadata }
  }
  let base: Share | undefined = shareOf(thread)
  while (base !== undefined && position <= base.from) base = base.base
  const own = { base, from: position, log: Array.from(behind), length: position + behind.length, list: undefined }
  return sharing(own, thread.metadata)
}

/** Returns the position of the last message fulfilling a condition, or -1. */
export const findLastIndex = (thread: Thread, isSo: (message: Message.Message) => boolean): number => {
  let end = length(thread)
  for (let share = shares.get(thread); share !== undefined; share = share.base) {
    for (let index = end - 1; index >= share.from; index--) {
      if (isSo(share.log[index - share.from] as Message.Message)) return index
    }
    if (share.base === undefined) return -1
    end = share.from
  }
  return thread.messages.findLastIndex(isSo)
}

/** Returns `true` for a model reply. A tool's question does not count. */
export const isReply = ({ askUser, role }: Message.Message): boolean => role === "assistant" && askUser !== true

/** Returns the messages for a short-lived reader: a shared thread does not keep the list. */
export const list = (thread: Thread): Messages => {
  const own = shares.get(thread)
  return own === undefined ? thread.messages : own.list ?? listOf(own)
}

/** Returns the messages from a position. */
export const since = (thread: Thread, position: number): Messages => {
  const own = shares.get(thread)
  return own === undefined || position < own.from
    ? list(thread).slice(position)
    : own.log.slice(position - own.from, own.length - own.from)
}

/** Returns the thread without its last messages. */
export const without = (thread: Thread, count: number): Thread => ({
  messages: list(thread).slice(0, length(thread) - count),
  metadata: thread.metadata
})

/** Returns the thread as plain data, printing as its list. */
export const plain = (thread: Thread): Thread =>
  shares.has(thread) ? { messages: list(thread), metadata: thread.metadata } : thread

/** Returns the number of messages. */
export const length = (thread: Thread): number => shares.get(thread)?.length ?? thread.messages.length

/** Returns `true` if an unknown value has messages. For a shared thread, no list is made. */
export const hasMessages = (thread: object): boolean =>
  shares.has(thread) || ("messages" in thread && Array.isArray(thread.messages))

/** Returns the latest turn with a call of this id: later turns may reuse ids. */
const turnOf = (thread: Thread, id: string | undefined): number =>
  findLastIndex(
    thread,
    ({ role, toolCalls }) => role === "assistant" && toolCalls?.some((call) => call.id === id) === true
  )

/** Returns call positions within a turn. */
const positionsIn = (turn: Message.Message | undefined): ReadonlyMap<string | undefined, number> =>
  new Map(turn?.toolCalls?.map((call, index) => [call.id, index]))

/**
 * Merges more answers into one turn's answers: each replaces the call's earlier answer, or is inserted in call order.
 */
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

/**
 * Places answers in the thread: in call order after the message with the calls, or instead of a call's earlier answer.
 * An answer without a call goes to the end.
 */
export const placed = (thread: Thread, answers: Messages): Thread => {
  let placed = thread
  let rest = answers
  for (let first = rest[0]; first !== undefined; first = rest[0]) {
    const turn = turnOf(placed, first.toolCallId)
    if (turn < 0) return appendedShared(placed, rest)
    const [calling, ...behind] = since(placed, turn)
    const positions = positionsIn(calling)
    const isHere = ({ toolCallId }: Message.Message): boolean => positions.has(toolCallId)
    const next = behind.findIndex(({ role }) => role !== "tool")
    const end = next < 0 ? behind.length : next
    const answered = merged(behind.slice(0, end), rest.filter(isHere), positions)
    placed = replacedFrom(placed, turn + 1, answered.concat(behind.slice(end)))
    rest = rest.filter((answer) => !isHere(answer))
  }
  return placed
}

/** Places a call's answer in the thread, if any turn made the call. */
export const withAnswerToCall = (thread: Thread, answer: Message.Message): Thread =>
  turnOf(thread, answer.toolCallId) < 0 ? thread : placed(thread, [answer])

/** Returns `true` if the last message is the call's question: the next user message answers that question. */
export const endsWithQuestion = (thread: Thread, id: string | undefined): boolean => {
  const [last] = since(thread, length(thread) - 1)
  return last?.askUser === true && last.toolCallId === id
}

/** Adds a question's answer: in place of the placeholder or, after a question asked in words, as a user message. */
const withAnswer = (thread: Thread, answer: Message.Message): Thread =>
  endsWithQuestion(thread, answer.toolCallId)
    ? appendedShared(thread, [{ role: "user", content: answer.content, metadata: Json.none }])
    : placed(thread, [answer])

/**
 * Adds a call's settlement for a reader, unless the thread already has it. A question asked in words keeps its place,
 * and its answer is the next user message.
 */
export const withSettlement = (thread: Thread, answer: Message.Message): Thread => {
  const turn = turnOf(thread, answer.toolCallId)
  if (turn < 0) return thread
  const behind = since(thread, turn + 1)
  const words = behind.findIndex((message) => message.askUser === true && message.toolCallId === answer.toolCallId)
  if (words >= 0 && words < behind.length - 1) return thread
  // A policy may hide the answer's code, which is in the thread.
  const known = behind.find(({ role, toolCallId }) => role === "tool" && toolCallId === answer.toolCallId)
  const isSame = known?.code !== undefined && answer.code === undefined && known.content === answer.content
  return withAnswer(thread, isSame ? known : answer)
}

/**
 * Returns the answers to calls, in call order: each as in the thread, or, for a question asked in words, as the user's
 * message.
 */
export const answersTo = (thread: Thread, ids: ReadonlyArray<string>): Messages => {
  if (ids.length === 0) return []
  const messages = list(thread)
  const wanted = new Set(ids)
  const answers = new Map<string, Message.Message>()
  const turns: Array<ReadonlyArray<Message.Message>> = []
  for (let index = messages.length - 1; index >= 0 && wanted.size > 0; index--) {
    const { askUser, role, toolCallId, toolCalls = [] } = messages[index] as Message.Message
    if (toolCallId !== undefined && wanted.has(toolCallId) && !answers.has(toolCallId)) {
      const said = askUser === true ? messages[index + 1] : undefined
      if (role === "tool") answers.set(toolCallId, messages[index] as Message.Message)
      if (said?.role === "user") answers.set(toolCallId, { ...said, toolCallId })
    }
    turns.push(toolCalls.flatMap(({ id }) => wanted.delete(id) ? answers.get(id) ?? [] : []))
  }
  return turns.toReversed().flat()
}
