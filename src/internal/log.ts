/**
 * The messages of threads that grew out of one another. While they are few each thread is plain data; from then on they
 * are kept once: a thread knows how many of them are its own, and makes a list of them when somebody asks for it. A run
 * keeps the thread of each of its steps; were each a list of its own, they would take room by the square of the turns.
 */
import type * as Message from "../Message.ts"
import type * as Thread from "../Thread.ts"

type Messages = ReadonlyArray<Message.Message>

/** What a thread has of a log: its beginning, up to its length. */
interface Share {
  readonly log: Array<Message.Message>
  readonly length: number
  list: Messages | undefined
}

/**
 * What is constructed is what is given, so that a class can add a private field to it. A weak map would do as well, but the
 * collector goes through one with some hundred young threads at each of its passes.
 */
const Given = function(thread: Thread.Thread): Thread.Thread {
  return thread
} as unknown as new(thread: Thread.Thread) => Thread.Thread

/** From how many messages on they are worth sharing: whoever prints a thread sees a list, and of one that shares a getter. */
const many = 128

/** Gives a thread a share that nobody sees: whoever compares or freezes a thread is to find nothing else in it. */
class Sharing extends Given {
  readonly #share: Share

  constructor(thread: Thread.Thread, share: Share) {
    super(thread)
    this.#share = share
  }

  static of(thread: object): Share | undefined {
    return #share in thread ? thread.#share : undefined
  }
}

const listOf = (own: Share): Messages => own.log.slice(0, own.length)

/** A log that ends where the thread does. Where another thread has grown on from here, it is a new one. */
const logOf = (thread: Thread.Thread): Array<Message.Message> => {
  const own = Sharing.of(thread)
  return own !== undefined && own.log.length === own.length ? own.log : Array.from(list(thread))
}

/** The thread with messages added at its end, as plain data. */
export const longer = (thread: Thread.Thread, more: Messages): Thread.Thread => ({
  messages: list(thread).concat(more),
  metadata: thread.metadata
})

/** The thread with messages added at its end, of which there may be many others. */
export const grown = (thread: Thread.Thread, more: Messages): Thread.Thread => {
  if (length(thread) + more.length < many) return longer(thread, more)
  const log = logOf(thread)
  for (const message of more) log.push(message)
  const own: Share = { log, length: log.length, list: undefined }
  const next: Thread.Thread = {
    // It knows its share by itself: it may be asked through a proxy, which is another object.
    get messages() {
      return own.list ??= listOf(own)
    },
    metadata: thread.metadata
  }
  return new Sharing(next, own)
}

/** The messages, for whoever does not keep them: the thread does not hold on to the list for their sake. */
export const list = (thread: Thread.Thread): Messages => {
  const own = Sharing.of(thread)
  return own === undefined ? thread.messages : own.list ?? listOf(own)
}

/** The messages from a position on. */
export const since = (thread: Thread.Thread, position: number): Messages => {
  const own = Sharing.of(thread)
  return own === undefined || own.list !== undefined
    ? list(thread).slice(position)
    : own.log.slice(position, own.length)
}

/** The same thread as plain data, which whoever prints it can see: a getter is not asked for that. */
export const plain = (thread: Thread.Thread): Thread.Thread =>
  Sharing.of(thread) !== undefined ? { messages: list(thread), metadata: thread.metadata } : thread

/** How many messages there are. */
export const length = (thread: Thread.Thread): number => Sharing.of(thread)?.length ?? thread.messages.length

/** Whether a value of anybody's has messages. */
export const hasMessages = (thread: object): boolean =>
  Sharing.of(thread) !== undefined || ("messages" in thread && Array.isArray(thread.messages))
