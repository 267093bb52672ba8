/**
 * The messages of threads that grew out of one another. While they are few each thread is plain data; from then on they
 * are kept once: a thread knows how many of them are its own, and makes a list of them when somebody asks for it. A run
 * keeps the thread of each of its steps; were each a list of its own, they would take room by the square of the turns.
 */
import type * as Message from "../../Message.ts"
import type * as Json from "../json.ts"

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
