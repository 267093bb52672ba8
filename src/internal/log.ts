/**
 * The messages of threads that grew out of one another. They are kept once: a thread knows how many of them are its own,
 * and makes a list of them when somebody asks for it. A run keeps the thread of each of its steps; were each a list of its
 * own, they would take room by the square of the turns.
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

const share = Symbol("heddle/Thread/share")

type Shared = Thread.Thread & { readonly [share]?: Share }

const shareOf = (thread: Shared): Share | undefined => thread[share]

const listOf = (own: Share): Messages => own.log.slice(0, own.length)

const messages: PropertyDescriptor & ThisType<{ readonly [share]: Share }> = {
  enumerable: true,
  configurable: true,
  get() {
    const own = this[share]
    return own.list ??= listOf(own)
  }
}

/** A log that ends where the thread does. Where another thread has grown on from here, it is a new one. */
const logOf = (thread: Thread.Thread): Array<Message.Message> => {
  const own = shareOf(thread)
  return own !== undefined && own.log.length === own.length ? own.log : Array.from(list(thread))
}

/** The thread with messages added at its end. */
export const grown = (thread: Thread.Thread, more: Messages): Thread.Thread => {
  const log = logOf(thread)
  for (const message of more) log.push(message)
  const next = Object.defineProperty({}, "messages", messages) as { metadata: Thread.Thread["metadata"] }
  next.metadata = thread.metadata
  const own: Share = { log, length: log.length, list: undefined }
  return Object.defineProperty(next, share, { value: own }) as Thread.Thread
}

/** The messages, for whoever does not keep them: the thread does not hold on to the list for their sake. */
export const list = (thread: Thread.Thread): Messages => {
  const own = shareOf(thread)
  return own === undefined ? thread.messages : own.list ?? listOf(own)
}

/** How many messages there are. */
export const length = (thread: Thread.Thread): number => shareOf(thread)?.length ?? thread.messages.length

/** Whether a value of anybody's has messages. */
export const hasMessages = (thread: object): boolean =>
  share in thread || ("messages" in thread && Array.isArray(thread.messages))
