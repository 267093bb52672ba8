/**
 * The messages of threads that grew out of one another. While they are few each thread is plain data; from then on they
 * are kept once: a thread knows how many of them are its own, and makes a list of them when somebody asks for it. A run
 * keeps the thread of each of its steps; were each a list of its own, they would take room by the square of the turns.
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
 * What a thread has of a log: its beginning, up to the thread's length. Where the end of a thread was written anew, the
 * messages before that are the `base` share's, up to the position from which on the log has its own.
 */
interface Share {
  readonly base: Share | undefined
  readonly from: number
  readonly log: Array<Message.Message>
  readonly length: number
  list: Messages | undefined
}

/**
 * What is constructed is what is given, so that a class can add a private field to it. A weak map would do as well, but the
 * collector goes through one with some hundred young threads at each of its passes.
 */
const Given = function(thread: Thread): Thread {
  return thread
} as unknown as new(thread: Thread) => Thread

/** From how many messages on they are worth sharing: whoever prints a thread sees a list, and of one that shares a getter. */
const many = 128

/** Gives a thread a share that nobody sees: whoever compares or freezes a thread is to find nothing else in it. */
class Sharing extends Given {
  readonly #share: Share

  constructor(thread: Thread, share: Share) {
    super(thread)
    this.#share = share
  }

  static of(thread: object): Share | undefined {
    return #share in thread ? thread.#share : undefined
  }
}

const listOf = (own: Share): Messages => {
  const pieces: Array<Messages> = []
  let end = own.length
  for (let share: Share | undefined = own; share !== undefined; share = share.base) {
    pieces.push(share.log.slice(0, end - share.from))
    end = share.from
  }
  return pieces.length === 1 ? pieces[0] ?? [] : pieces.toReversed().flat()
}

/** The share of a thread that is many messages long. */
const shareOf = (thread: Thread): Share =>
  Sharing.of(thread) ??
    { base: undefined, from: 0, log: Array.from(thread.messages), length: thread.messages.length, list: undefined }

/** A share that the next message may be added to. Where another thread has grown on from here, it gets a log of its own. */
const growing = (thread: Thread): Share => {
  const own = shareOf(thread)
  return own.log.length === own.length - own.from
    ? own
    : { base: undefined, from: 0, log: Array.from(list(thread)), length: own.length, list: undefined }
}

const sharing = (own: Share, metadata: Json.JsonObject): Thread =>
  new Sharing({
    // It knows its share by itself: it may be asked through a proxy, which is another object.
    get messages() {
      return own.list ??= listOf(own)
    },
    metadata
  }, own)

/** The thread with messages added at its end, as plain data. */
export const longer = (thread: Thread, more: Messages): Thread => ({
  messages: list(thread).concat(more),
  metadata: thread.metadata
})

/** The thread with messages added at its end, of which there may be many others. */
export const grown = (thread: Thread, more: Messages): Thread => {
  if (length(thread) + more.length < many) return longer(thread, more)
  const { base, from, log } = growing(thread)
  for (const message of more) log.push(message)
  return sharing({ base, from, log, length: from + log.length, list: undefined }, thread.metadata)
}

/** The first messages of the thread, up to a position, and others behind them. What is before the position is shared. */
export const respoken = (thread: Thread, position: number, behind: Messages): Thread => {
  if (position + behind.length < many) {
    return { messages: list(thread).slice(0, position).concat(behind), metadata: thread.metadata }
  }
  let base: Share | undefined = shareOf(thread)
  while (base !== undefined && position <= base.from) base = base.base
  const own = { base, from: position, log: Array.from(behind), length: position + behind.length, list: undefined }
  return sharing(own, thread.metadata)
}

/** The position of the last message of which something is so, or -1. */
export const findLastIndex = (thread: Thread, isSo: (message: Message.Message) => boolean): number => {
  let end = length(thread)
  for (let share = Sharing.of(thread); share !== undefined; share = share.base) {
    for (let index = end - 1; index >= share.from; index--) {
      if (isSo(share.log[index - share.from] as Message.Message)) return index
    }
    if (share.base === undefined) return -1
    end = share.from
  }
  return thread.messages.findLastIndex(isSo)
}

/** The messages, for whoever does not keep them: the thread does not hold on to the list for their sake. */
export const list = (thread: Thread): Messages => {
  const own = Sharing.of(thread)
  return own === undefined ? thread.messages : own.list ?? listOf(own)
}

/** The messages from a position on. */
export const since = (thread: Thread, position: number): Messages => {
  const own = Sharing.of(thread)
  return own === undefined || position < own.from
    ? list(thread).slice(position)
    : own.log.slice(position - own.from, own.length - own.from)
}

/** The same thread as plain data, which whoever prints it can see: a getter is not asked for that. */
export const plain = (thread: Thread): Thread =>
  Sharing.of(thread) !== undefined ? { messages: list(thread), metadata: thread.metadata } : thread

/** How many messages there are. */
export const length = (thread: Thread): number => Sharing.of(thread)?.length ?? thread.messages.length

/** Whether a value of anybody's has messages. */
export const hasMessages = (thread: object): boolean =>
  Sharing.of(thread) !== undefined || ("messages" in thread && Array.isArray(thread.messages))

/** The latest turn that made a call with this id: ids may come again in later turns. */
const turnOf = (thread: Thread, id: string | undefined): number =>
  findLastIndex(
    thread,
    ({ role, toolCalls }) => role === "assistant" && toolCalls?.some((call) => call.id === id) === true
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

/**
 * The thread with answers to calls of it: in call order behind the message that made the calls, and in the place of an
 * answer that the call has already. An answer without a call stands at the end.
 */
export const placed = (thread: Thread, answers: Messages): Thread => {
  let placed = thread
  let rest = answers
  for (let first = rest[0]; first !== undefined; first = rest[0]) {
    const turn = turnOf(placed, first.toolCallId)
    if (turn < 0) return grown(placed, rest)
    const [calling, ...behind] = since(placed, turn)
    const positions = positionsIn(calling)
    const isHere = ({ toolCallId }: Message.Message): boolean => positions.has(toolCallId)
    const next = behind.findIndex(({ role }) => role !== "tool")
    const end = next < 0 ? behind.length : next
    const answered = merged(behind.slice(0, end), rest.filter(isHere), positions)
    placed = respoken(placed, turn + 1, answered.concat(behind.slice(end)))
    rest = rest.filter((answer) => !isHere(answer))
  }
  return placed
}

/** The thread with the answer to a call, if a turn of it made the call. */
export const answering = (thread: Thread, answer: Message.Message): Thread =>
  turnOf(thread, answer.toolCallId) < 0 ? thread : placed(thread, [answer])

/** Calls of a turn in the order in which it made them. */
export const inCallOrder = <A extends { readonly id: string }>(
  thread: Thread,
  calls: ReadonlyArray<A>
): ReadonlyArray<A> => {
  const [first] = calls
  if (first === undefined || calls.length === 1) return calls
  const turn = turnOf(thread, first.id)
  const positions = positionsIn(turn < 0 ? undefined : since(thread, turn)[0])
  const position = ({ id }: A): number => positions.get(id) ?? positions.size
  return calls.toSorted((left, right) => position(left) - position(right))
}

/** Whether the last message asks the question of a call in words: what the user says next is its answer. */
export const isAskedAloud = (thread: Thread, id: string | undefined): boolean => {
  const [last] = since(thread, length(thread) - 1)
  return last?.askUser === true && last.toolCallId === id
}

/**
 * The thread with the answer to a question: in the place where the question waits, or, behind a question that was asked
 * in words, as what the user said.
 */
export const told = (thread: Thread, answer: Message.Message): Thread =>
  isAskedAloud(thread, answer.toolCallId)
    ? grown(thread, [{ role: "user", content: answer.content, metadata: Json.none }])
    : placed(thread, [answer])

/**
 * The thread for a reader who learns that a call has been settled, and may know already. A question that was asked in
 * words keeps its place in the thread, and its answer is what the user said behind it.
 */
export const heard = (thread: Thread, answer: Message.Message): Thread => {
  const turn = turnOf(thread, answer.toolCallId)
  if (turn < 0) return thread
  const behind = since(thread, turn + 1)
  const words = behind.findIndex((message) => message.askUser === true && message.toolCallId === answer.toolCallId)
  return words < 0 || words === behind.length - 1 ? told(thread, answer) : thread
}

/**
 * The answers to calls, in call order: each as it stands in the thread, or, where the question was asked in words, as what
 * the user said.
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
