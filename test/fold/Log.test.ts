/**
 * Threads of a run, which share their messages: each looks like a thread of its own when it is read, compared, printed or
 * frozen, and none changes another.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Equal from "effect/Equal"
import * as Formatter from "effect/Formatter"
import * as Hash from "effect/Hash"
import * as Schema from "effect/Schema"
import { Message, Thread } from "heddle"
import * as Log from "../../src/internal/fold/sharedMessages.ts"
import { deepFreeze } from "../support/frozen.ts"

/** As many messages as are worth sharing. */
const said = Array.from({ length: 128 }, (_, index) => Message.user(`${index}`))

const before: Thread.Thread = Thread.fromMessages(said)

const isAsked = (thread: Thread.Thread) => Object.getOwnPropertyDescriptor(thread, "messages")?.get !== undefined

/** The last so many texts. */
const latest = (thread: Thread.Thread, count: number) => thread.messages.slice(-count).map(Message.text)

describe("Log: threads of a run", () => {
  it("a thread with few messages is plain data, and a thread with many makes its list when it is read", () => {
    let thread = Thread.empty
    for (const [index, message] of said.entries()) {
      thread = Log.appendedShared(thread, [message])
      assert.strictEqual(isAsked(thread), index === 127)
    }
    assert.deepStrictEqual(thread, before)
  })

  it("a thread of a run reads, compares, clones and prints like a plain thread", () => {
    const asked = Log.appendedShared(before, [Message.user("a")])
    const thread = Log.appendedShared(asked, [Message.assistant("b")])
    const plain = { messages: [...said, Message.user("a"), Message.assistant("b")], metadata: {} }
    assert.isTrue(isAsked(thread))
    assert.deepStrictEqual(thread, plain)
    assert.deepStrictEqual({ ...thread }, plain)
    assert.deepStrictEqual(structuredClone(thread), plain)
    assert.strictEqual(JSON.stringify(thread), JSON.stringify(plain))
    assert.strictEqual(Log.appendedShared(Object.freeze(thread), []).messages.length, 130)
    assert.strictEqual(thread.messages, thread.messages)
    assert.deepStrictEqual(latest(asked, 2), ["127", "a"])
  })

  it("a thread of a run has no keys beside its messages and its metadata", () => {
    const thread = Log.appendedShared(Log.appendedShared(before, [Message.user("a")]), [Message.assistant("b")])
    const plain = { messages: [...said, Message.user("a"), Message.assistant("b")], metadata: {} }
    Log.appendedShared(thread, [Message.user("not yet said")])
    assert.deepStrictEqual(Reflect.ownKeys(thread), ["messages", "metadata"])
    assert.isTrue(Equal.equals(thread, plain))
    assert.strictEqual(Hash.hash(thread), Hash.hash(plain))
    assert.strictEqual(Formatter.format(thread), Formatter.format(plain))
  })

  it("a thread of a run can be frozen deeply and read through a proxy", () => {
    const thread = deepFreeze(
      Log.appendedShared(Log.appendedShared(before, [Message.user("a")]), [Message.assistant("b")])
    )
    assert.deepStrictEqual(latest(Log.appendedShared(thread, [Message.user("c")]), 3), ["a", "b", "c"])
    assert.deepStrictEqual(latest(new Proxy(Log.appendedShared(thread, []), {}), 2), ["a", "b"])
    assert.strictEqual(Log.appendedShared(new Proxy(thread, {}), [Message.user("c")]).messages.length, 131)
  })

  const growing = Schema.Array(Schema.Struct({ from: Schema.Natural, more: Schema.Natural, isRead: Schema.Boolean }))

  it.prop("threads that grow out of one another never change one another", { growing }, ({ growing }) => {
    const threads: Array<Thread.Thread> = [before]
    const expected: Array<ReadonlyArray<string>> = [said.map(Message.text)]
    for (const { from, isRead, more } of growing) {
      const parent = from % threads.length
      const names = Array.from({ length: more % 4 }, (_, index) => `${threads.length}.${index}`)
      threads.push(Log.appendedShared(threads[parent]!, names.map((name) => Message.user(name))))
      expected.push([...expected[parent]!, ...names])
      if (isRead) assert.deepStrictEqual(threads[parent]!.messages.map(Message.text), expected[parent])
    }
    assert.deepStrictEqual(threads.map(({ messages }) => messages.map(Message.text)), expected)
  })

  it("a thread as plain data has the same messages, and a plain thread is returned unchanged", () => {
    const thread = Log.appendedShared(before, [Message.user("a")])
    const plain = Log.plain(thread)
    assert.deepStrictEqual(plain, { messages: [...said, Message.user("a")], metadata: {} })
    assert.isFalse(isAsked(plain))
    assert.strictEqual(Log.plain(plain), plain)
  })

  it("a thread with a rewritten end reads like a plain thread, and leaves other threads unchanged", () => {
    let thread = before
    let plain = before.messages
    const kept: Array<readonly [Thread.Thread, ReadonlyArray<Message.Message>]> = []
    // Ever another place: behind, within and before what was written anew the last time.
    for (let round = 0; round < 200; round++) {
      const position = plain.length - (round * 7) % 11
      const behind = [Message.user(`${round}`), ...plain.slice(position)]
      thread = Log.replacedFrom(thread, position, behind)
      plain = [...plain.slice(0, position), ...behind]
      if (round % 3 === 0) {
        const [fork, more] = [thread, [Message.assistant(`${round}`)]]
        thread = Log.appendedShared(thread, more)
        plain = [...plain, ...more]
        kept.push([Log.appendedShared(fork, more), plain])
      }
      kept.push([thread, plain])
    }
    for (const [thread, messages] of kept) {
      assert.deepStrictEqual(Log.since(thread, messages.length - 5), messages.slice(-5))
      for (const content of ["150", "5", "nowhere"]) {
        const isSo = (message: Message.Message) => message.content === content
        assert.strictEqual(Log.findLastIndex(thread, isSo), messages.findLastIndex(isSo))
      }
      assert.deepStrictEqual(Log.list(thread), messages)
      assert.strictEqual(Log.length(thread), messages.length)
      assert.deepStrictEqual(Log.since(thread, 3), messages.slice(3))
    }
    const few = Thread.fromMessages([...said.slice(0, 2), ...said.slice(0, 1)])
    assert.deepStrictEqual(Log.replacedFrom(before, 2, said.slice(0, 1)), few)
    assert.deepStrictEqual(Log.replacedFrom(before, 0, said), before)
  })
})
