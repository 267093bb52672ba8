/**
 * The scripted model: it stands for a provider and its wire, and no loop that is measured owns any of it. A reply comes in
 * reads, as bytes come off a socket: each read brings some chunks, and a loop may keep them together or take them apart.
 * The model keeps what it was asked and what it handed out, which is what the workloads judge by.
 */

/** One thing that a reply says. */
export type Chunk =
  | { readonly type: "text"; readonly delta: string }
  | { readonly type: "callStarted"; readonly id: string; readonly name: string }
  | { readonly type: "callArguments"; readonly id: string; readonly fragment: string }
  | { readonly type: "callCompleted"; readonly id: string }

/** What arrived together. */
export type Read = ReadonlyArray<Chunk>

/** The next read of a reply, or `undefined` where the reply has ended. */
export type Source = () => Read | undefined | Promise<Read | undefined>

/** A reply on its way. A reader that stops before its end closes it with `return`, as `for await` does. */
export type Reply = AsyncIterableIterator<Read, undefined>

const over: IteratorReturnResult<undefined> = { done: true, value: undefined }

class Connection implements Reply {
  private readonly source: Source
  private readonly model: Model
  private isOpen = true

  constructor(source: Source, model: Model) {
    this.source = source
    this.model = model
  }

  [Symbol.asyncIterator](): Reply {
    return this
  }

  next(): Promise<IteratorResult<Read, undefined>> {
    if (!this.isOpen) return Promise.resolve(over)
    const read = this.source()
    return read instanceof Promise ? read.then(this.delivered) : Promise.resolve(this.delivered(read))
  }

  return(): Promise<IteratorReturnResult<undefined>> {
    this.close()
    return Promise.resolve(over)
  }

  private readonly delivered = (read: Read | undefined): IteratorResult<Read, undefined> => {
    if (read === undefined) this.close()
    if (read === undefined || !this.isOpen) return over
    this.model.produced += read.length
    return { done: false, value: read }
  }

  private close(): void {
    if (this.isOpen) this.model.closed++
    this.isOpen = false
  }
}

/** The model of one run. `reply` gives what it says in each turn. */
export class Model {
  private readonly reply: (turn: number) => Source
  /** When each request was made, in milliseconds. */
  readonly requests: Array<number> = []
  /** How many messages the last request held. */
  messages = 0
  /** How many chunks were handed out, over all turns. */
  produced = 0
  /** How many replies have ended, or were closed. */
  closed = 0

  constructor(reply: (turn: number) => Source) {
    this.reply = reply
  }

  request(messages: number): Reply {
    this.messages = messages
    this.requests.push(performance.now())
    return new Connection(this.reply(this.requests.length - 1), this)
  }
}

/** A reply whose reads are all there. */
export const reads = (list: ReadonlyArray<Read>): Source => {
  let index = 0
  return () => list[index++]
}

/** A reply of `count` equal text deltas, some in each read. */
export const deltas = (count: number, perRead: number, delta: string): Source => {
  const chunk: Chunk = { type: "text", delta }
  const whole: Read = Array.from({ length: perRead }, () => chunk)
  let left = count
  return () => {
    const size = Math.min(left, perRead)
    left -= size
    return size === 0 ? undefined : whole.slice(0, size)
  }
}

/** A reply that pauses before each read. */
export const paced = (source: Source, pause: () => Promise<unknown>): Source => async () => {
  await pause()
  return source()
}

/** A reply that is late. */
export const delayed = (source: Source, millis: number): Source => {
  let isDue = false
  return async () => {
    if (!isDue) await sleep(millis)
    isDue = true
    return source()
  }
}

/** A reply of several, one after the other. */
export const sequence = (sources: ReadonlyArray<Source>): Source => {
  let index = 0
  const next: Source = async () => {
    const read = await sources[index]?.()
    return read === undefined && ++index < sources.length ? next() : read
  }
  return next
}

/** The next round of the event loop, where the bytes of a socket arrive. */
export const macrotask = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

export const sleep = (millis: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, millis))

/** Whole calls, one in each read. */
export const calls = (count: number, name: string, idPrefix = "call_"): ReadonlyArray<Read> =>
  Array.from({ length: count }, (_, index) => {
    const id = `${idPrefix}${index}`
    return [
      { type: "callStarted", id, name },
      { type: "callArguments", id, fragment: JSON.stringify({ number: index }) },
      { type: "callCompleted", id }
    ]
  })

/** The answer that ends a run. */
export const answer: ReadonlyArray<Read> = [[{ type: "text", delta: "done" }]]

/** A model that calls in its first turn and then answers. */
export const callsThenAnswer = (first: () => Source): Model => new Model((turn) => turn === 0 ? first() : reads(answer))
