/**
 * Messages and tool calls: what the constructors make, what counts as text, and what the codecs let through.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Message } from "heddle"

const decode = Schema.decodeUnknownResult(Message.Message)
const encode = Schema.encodeUnknownSync(Message.Message)
const decodeCall = Schema.decodeUnknownResult(Message.ToolCall)

describe("Message", () => {
  it("a constructor sets role, content and empty metadata, and nothing else", () => {
    assert.deepStrictEqual(Message.system("s"), { role: "system", content: "s", metadata: {} })
    assert.deepStrictEqual(Message.user("u"), { role: "user", content: "u", metadata: {} })
    assert.deepStrictEqual(Message.assistant("a"), { role: "assistant", content: "a", metadata: {} })
    assert.deepStrictEqual(Message.tool("c0", "42"), { role: "tool", toolCallId: "c0", content: "42", metadata: {} })
  })

  it("R-137: an assistant message has toolCalls only with tool calls", () => {
    const call = Message.toolCall("c0", "echo", { x: 1 })
    assert.notProperty(Message.assistant("", []), "toolCalls")
    assert.deepStrictEqual(Message.assistant("", [call]).toolCalls, [call])
  })

  it("R-038, L-19: an answer's text and parts stay unchanged, and other values are written as JSON", () => {
    const content = (value: unknown) => Message.answer("c0", value).content
    const parts: ReadonlyArray<Message.Part> = [{ type: "text", text: "seen" }]
    assert.strictEqual(content("s"), "s")
    assert.strictEqual(content("{\"not\": encoded again}"), "{\"not\": encoded again}")
    assert.deepStrictEqual(content(parts), parts)
    assert.strictEqual(content({ a: 1 }), "{\"a\":1}")
    assert.strictEqual(content(42), "42")
    assert.strictEqual(content(null), "null")
    assert.strictEqual(content([1, 2]), "[1,2]")
    assert.strictEqual(content([]), "[]")
    assert.deepStrictEqual(Message.answer("c0", "s"), Message.tool("c0", "s"))
  })

  it("a tool call without given arguments has empty arguments", () => {
    assert.deepStrictEqual(Message.toolCall("c0", "echo"), { id: "c0", name: "echo", arguments: {}, metadata: {} })
  })

  it("the text of a message is its content, or its text parts joined", () => {
    const parts: Message.Content = [
      { type: "text", text: "a" },
      { type: "image", url: "https://example.com/cat.png" },
      { type: "reasoning", text: "thinking", signature: "s" },
      { type: "text", text: "b" }
    ]
    assert.strictEqual(Message.text({ content: "plain" }), "plain")
    assert.strictEqual(Message.text({ content: parts }), "ab")
    assert.strictEqual(Message.text({ content: [] }), "")
  })

  it("a message without metadata decodes to one with empty metadata", () => {
    const decoded = decode({ role: "user", content: "hi" })
    assert.deepStrictEqual(Result.getOrThrow(decoded), { role: "user", content: "hi", metadata: {} })
  })

  it("every field of a message survives JSON", () => {
    const message: Message.Message = {
      role: "assistant",
      content: [
        { type: "text", text: "look" },
        { type: "file", data: "aGk=", mediaType: "text/plain", filename: "hi.txt" }
      ],
      name: "bot",
      finishReason: null,
      toolCalls: [{
        id: "c0",
        name: "echo",
        arguments: { x: [1, null, { y: "z" }] },
        rawArguments: "{}",
        argumentsLost: "truncated",
        providerExecuted: false,
        metadata: { signature: "s" }
      }],
      reasoning: [
        { type: "reasoning", text: "hm", signature: "sig" },
        { type: "reasoning", text: "", metadata: { anthropic: { redacted: "opaque", blocks: [1, null] } } }
      ],
      askUser: true,
      toolCallId: "c0",
      isError: false,
      metadata: { mine: { nested: true } }
    }
    assert.deepStrictEqual(Result.getOrThrow(decode(JSON.parse(JSON.stringify(encode(message))))), message)
  })

  it("roles, parts and reasons outside the closed sets are refused", () => {
    assert.isTrue(Result.isFailure(decode({ role: "robot", content: "hi" })))
    assert.isTrue(Result.isFailure(decode({ role: "user", content: 42 })))
    assert.isTrue(Result.isFailure(decode({ role: "user", content: [{ type: "video", url: "u" }] })))
    assert.isTrue(Result.isFailure(decode({ role: "assistant", content: "", finishReason: "finished" })))
    assert.isTrue(Result.isFailure(decodeCall({ id: "c0", name: "echo", arguments: [1] })))
    assert.isTrue(Result.isFailure(decodeCall({ id: "c0", name: "echo", arguments: {}, argumentsLost: "eaten" })))
    assert.isTrue(Result.isSuccess(decodeCall({ id: "c0", name: "echo", arguments: {} })))
  })
})
