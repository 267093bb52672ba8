/**
 * Threads of a run, which share their messages: each looks like a thread of its own to whoever reads, compares, prints or
 * freezes it, and none changes another.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Equal from "effect/Equal"
import * as Formatter from "effect/Formatter"
import * as Hash from "effect/Hash"
import * as Schema from "effect/Schema"
import { Message, Thread } from "heddle"
import * as Log from "../../src/internal/log.ts"
import { deepFreeze } from "../support/frozen.ts"

describe("Log", () => {
  it("a thread of a run looks like any other", () => {
    const asked = Log.grown(Thread.empty, [Message.user("a")])
    const thread = Log.grown(asked, [Message.assistant("b")])
    const plain = { messages: [Message.user("a"), Message.assistant("b")], metadata: {} }
    assert.deepStrictEqual(thread, plain)
    assert.deepStrictEqual({ ...thread }, plain)
    assert.deepStrictEqual(structuredClone(thread), plain)
    assert.strictEqual(JSON.stringify(thread), JSON.stringify(plain))
    assert.strictEqual(Log.grown(Object.freeze(thread), []).messages.length, 2)
    assert.strictEqual(thread.messages, thread.messages)
    assert.deepStrictEqual(asked.messages, [Message.user("a")])
  })

  it("a thread of a run has nothing beside its messages and its metadata, whoever looks", () => {
    const thread = Log.grown(Log.grown(Thread.empty, [Message.user("a")]), [Message.assistant("b")])
    const plain = { messages: [Message.user("a"), Message.assistant("b")], metadata: {} }
    Log.grown(thread, [Message.user("not yet said")])
    assert.deepStrictEqual(Reflect.ownKeys(thread), ["messages", "metadata"])
    assert.isTrue(Equal.equals(thread, plain))
    assert.strictEqual(Hash.hash(thread), Hash.hash(plain))
    assert.strictEqual(Formatter.format(thread), Formatter.format(plain))
  })

  it("a thread of a run can be frozen with all that it holds, and read through a proxy", () => {
    const thread = deepFreeze(Log.grown(Log.grown(Thread.empty, [Message.user("a")]), [Message.assistant("b")]))
    assert.deepStrictEqual(Log.grown(thread, [Message.user("c")]).messages.map(Message.text), ["a", "b", "c"])
    assert.deepStrictEqual(new Proxy(Log.grown(thread, []), {}).messages.map(Message.text), ["a", "b"])
    assert.strictEqual(Log.grown(new Proxy(thread, {}), [Message.user("c")]).messages.length, 3)
  })

  const growing = Schema.Array(Schema.Struct({ from: Schema.Natural, more: Schema.Natural, isRead: Schema.Boolean }))

  it.prop("threads that grow out of one another never change one another", { growing }, ({ growing }) => {
    const threads: Array<Thread.Thread> = [Thread.fromMessages([Message.user("0")])]
    const expected: Array<ReadonlyArray<string>> = [["0"]]
    for (const { from, isRead, more } of growing) {
      const parent = from % threads.length
      const names = Array.from({ length: more % 4 }, (_, index) => `${threads.length}.${index}`)
      threads.push(Log.grown(threads[parent]!, names.map((name) => Message.user(name))))
      expected.push([...expected[parent]!, ...names])
      if (isRead) assert.deepStrictEqual(threads[parent]!.messages.map(Message.text), expected[parent])
    }
    assert.deepStrictEqual(threads.map(({ messages }) => messages.map(Message.text)), expected)
  })

  it("a thread as plain data has the same messages, and one that is plain already is itself", () => {
    const thread = Log.grown(Thread.empty, [Message.user("a")])
    const plain = Log.plain(thread)
    assert.deepStrictEqual(plain, { messages: [Message.user("a")], metadata: {} })
    assert.deepStrictEqual(Object.getOwnPropertyDescriptor(plain, "messages")?.value, [Message.user("a")])
    assert.strictEqual(Log.plain(plain), plain)
  })
})
