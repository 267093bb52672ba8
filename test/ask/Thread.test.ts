/**
 * Threads: appending never changes what was there, validation names everything at once, and unanswered calls are found.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Message, Thread } from "heddle"

const errorsOf = (input: unknown): ReadonlyArray<Thread.Issue> => {
  const result = Thread.validate(input)
  if (Result.isSuccess(result)) throw new Error("the input must be refused")
  assert.strictEqual(result.failure.reason, "invalid_thread")
  return result.failure.errors
}

const threadOf = (input: unknown): Thread.Thread => Result.getOrThrow(Thread.validate(input))

describe("Thread", () => {
  it("Thread.append gives a new thread with the same metadata and leaves the old thread unchanged", () => {
    const thread = { messages: [Message.user("a")], metadata: { mine: 1 } }
    const longer = Thread.append(thread, [Message.assistant("b"), Message.user("c")])
    assert.deepStrictEqual(longer.messages.map(Message.text), ["a", "b", "c"])
    assert.deepStrictEqual(longer.metadata, { mine: 1 })
    assert.strictEqual(thread.messages.length, 1)
  })

  it("the last message of an empty thread is undefined", () => {
    assert.isUndefined(Thread.lastMessage(Thread.empty))
    assert.strictEqual(Thread.lastMessage(Thread.fromMessages([Message.user("a"), Message.user("b")]))?.content, "b")
  })

  it("Thread.fromMessages adds missing metadata and keeps complete messages unchanged", () => {
    const kept = Message.user("b")
    const thread = Thread.fromMessages([{ role: "user", content: "a" }, kept])
    assert.deepStrictEqual(thread.messages[0], Message.user("a"))
    assert.strictEqual(thread.messages[1], kept)
  })

  it("a thread survives JSON", () => {
    const thread = Thread.append({ messages: [], metadata: { a: [1] } }, [Message.user("u"), Message.tool("c", "t")])
    const json = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(Thread.Thread)(thread)))
    assert.deepStrictEqual(Schema.decodeUnknownSync(Thread.Thread)(json), thread)
  })
})

describe("Thread.validate", () => {
  it("R-120: a string, a list of messages and a thread are inputs", () => {
    const messages = [Message.user("go")]
    assert.deepStrictEqual(threadOf("go"), { messages, metadata: {} })
    assert.deepStrictEqual(threadOf(messages), { messages, metadata: {} })
    assert.deepStrictEqual(threadOf({ messages, metadata: { a: 1 } }), { messages, metadata: { a: 1 } })
    assert.deepStrictEqual(threadOf({ messages, metadata: null }), { messages, metadata: {} })
  })

  it("R-120, P-13: an input of any other type is an invalid thread", () => {
    for (const input of [42, null, undefined, true, {}, { messages: "go" }, () => "go"]) {
      assert.deepStrictEqual(errorsOf(input).map((issue) => issue.path), ["input"], String(input))
    }
  })

  it("R-121: the error names every issue of every message with its place", () => {
    const errors = errorsOf([
      { role: "robot", content: 42 },
      Message.user("fine"),
      { role: "tool", content: "42" },
      { role: "tool", content: "42", toolCallId: "" },
      "hello",
      null,
      { role: "user", content: [{ type: "text" }] }
    ])
    assert.deepStrictEqual(errors.map((issue) => issue.path), [
      "messages[0].role",
      "messages[0].content",
      "messages[2].toolCallId",
      "messages[3].toolCallId",
      "messages[4]",
      "messages[5]",
      "messages[6].content"
    ])
    assert.include(errors[0]?.reason, "got: robot")
  })

  it("R-121: the error message counts and lists its issues", () => {
    const result = Thread.validate([{ role: "tool", content: 1 }])
    assert.isTrue(Result.isFailure(result))
    const { message } = (result as Result.Failure<Thread.Thread, Thread.ValidationError>).failure
    assert.match(message, /^invalid_thread: 2 errors: messages\[0\]\.content: .*; messages\[0\]\.toolCallId: /)
    const [issue] = errorsOf(42)
    assert.strictEqual(
      new Thread.ValidationError({ reason: "invalid_request", errors: [issue!] }).message,
      "invalid_request: 1 error: input: must be a string, a list of messages or a thread"
    )
  })

  it("R-121: metadata null, as JSON may contain it, becomes empty metadata", () => {
    const thread = threadOf([{ role: "user", content: "hi", metadata: null }])
    assert.deepStrictEqual(thread.messages, [Message.user("hi")])
  })
})

describe("Thread.unanswered", () => {
  const calls = [Message.toolCall("a", "read"), Message.toolCall("b", "read")]

  it("R-185: Thread.unanswered returns the calls without an answer, in call order", () => {
    const asked = Thread.fromMessages([Message.user("go"), Message.assistant("", calls)])
    assert.deepStrictEqual(Thread.unanswered(asked), calls)
    assert.deepStrictEqual(Thread.unanswered(Thread.append(asked, [Message.tool("b", "1")])), calls.slice(0, 1))
    assert.deepStrictEqual(
      Thread.unanswered(Thread.append(asked, [Message.tool("b", "1"), Message.tool("a", "2")])),
      []
    )
  })

  it("an id used again in a later turn needs a separate answer", () => {
    const twice = Thread.fromMessages([
      Message.assistant("", calls),
      Message.tool("a", "1"),
      Message.assistant("", [calls[0]!]),
      Message.tool("a", "2")
    ])
    assert.deepStrictEqual(Thread.unanswered(twice).map((call) => call.id), ["b"])
  })

  it("an answer answers one call, and calls run by the provider need no answer", () => {
    const theirs = { ...Message.toolCall("c", "search"), providerExecuted: true }
    const thread = Thread.fromMessages([
      Message.assistant("", [calls[0]!, calls[0]!, theirs]),
      Message.tool("a", "1"),
      Message.tool("other", "2")
    ])
    assert.deepStrictEqual(Thread.unanswered(thread).map((call) => call.id), ["a"])
  })
})
