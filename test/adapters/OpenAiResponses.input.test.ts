/**
 * How a thread goes out as input items: messages, media, calls and their outputs, and what an earlier reply left to be
 * sent back, at its place; and whole runs over several turns, in which what a reply said goes back to the model.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Thread, Tool } from "heddle"
import type { OpenAiResponses } from "heddle/adapters"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"

const { added, body, call, completed, created, delta, done, incomplete, message, said } = Replies

/** The body that a server receives. */
const bodyOf = (messages: ReadonlyArray<Message.Message>, options: Partial<OpenAiResponses.Options> = {}) =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [body(completed())] }))
    yield* Stream.runDrain(Replies.stream(server.url, options, { messages, tools: [] }))
    return server.requests[0]!.body
  }))

const inputOf = (messages: ReadonlyArray<Message.Message>, options: Partial<OpenAiResponses.Options> = {}) =>
  Effect.map(bodyOf(messages, options), ({ input }) => input as ReadonlyArray<Replies.Json>)

/** The input items that a reply becomes when it is sent back. */
const backOf = (reply: string, options: Partial<OpenAiResponses.Options> = {}) =>
  Effect.gen(function*() {
    const { error, events } = yield* Replies.outcomeOf(reply)
    assert.isUndefined(error)
    const { message } = Replies.last(events)
    const calls = (message.toolCalls ?? []).filter((one) => one.providerExecuted !== true)
    const answers = calls.map(({ id }) => Message.tool(id, "done"))
    const input = yield* inputOf([Message.user("go"), message, ...answers], options)
    return input.slice(1, input.length - answers.length)
  })

const reasoning = (id: string, rest: Replies.Json = { encrypted_content: `secret of ${id}` }) => ({
  type: "reasoning",
  id,
  summary: [],
  ...rest
})

describe("the messages of a Responses request", () => {
  it.effect("R-123: leading system messages are the instructions, and later system messages keep their place", () =>
    Effect.gen(function*() {
      const found = yield* bodyOf([
        Message.system("One."),
        Message.system([{ type: "text", text: "Two." }]),
        Message.user("Hi"),
        Message.system("Three.")
      ])
      assert.strictEqual(found.instructions, "One.\n\nTwo.")
      assert.deepStrictEqual(found.input, [{ role: "user", content: "Hi" }, { role: "system", content: "Three." }])
      const alone = yield* bodyOf([Message.system("Greet me.")])
      assert.deepStrictEqual([alone.instructions, alone.input], [undefined, [{ role: "system", content: "Greet me." }]])
    }))

  it.effect("R-146: an assistant's calls go out after the assistant's text, followed by all answers", () =>
    Effect.gen(function*() {
      const raw = { ...Message.toolCall("a", "search", { q: 1 }), rawArguments: "{ \"q\": 1 }" }
      const calls = [raw, Message.toolCall("b", "search", { q: 2 }), { ...raw, id: "c", providerExecuted: true }]
      assert.deepStrictEqual(
        yield* inputOf([
          Message.user("go"),
          Message.assistant("Looking.", calls),
          { ...Message.tool("a", "one"), isError: true },
          Message.tool("b", [{ type: "text", text: "two" }]),
          Message.assistant([{ type: "text", text: "Done." }]),
          Message.assistant("")
        ]),
        [
          { role: "user", content: "go" },
          { role: "assistant", content: "Looking." },
          { type: "function_call", call_id: "a", name: "search", arguments: "{ \"q\": 1 }" },
          { type: "function_call", call_id: "b", name: "search", arguments: "{\"q\":2}" },
          { type: "function_call_output", call_id: "a", output: "one" },
          { type: "function_call_output", call_id: "b", output: "two" },
          { role: "assistant", content: "Done." }
        ]
      )
    }))

  it.effect("R-357: a call with lost arguments goes out with empty arguments", () =>
    Effect.gen(function*() {
      const lost: ReadonlyArray<Message.ToolCall> = ["{\"cut\":", "", "null", "[1]"].map((rawArguments, index) => ({
        ...Message.toolCall(String(index), "search"),
        rawArguments,
        argumentsLost: "truncated"
      }))
      const input = yield* inputOf([Message.assistant("", lost), ...lost.map(({ id }) => Message.tool(id, "lost"))])
      assert.deepStrictEqual(input.slice(0, 4).map((item) => item["arguments"]), ["{}", "{}", "{}", "{}"])
    }))

  it.effect("R-123: images, audio and files go out as parts, in user messages and in tool answers", () =>
    Effect.gen(function*() {
      const parts: ReadonlyArray<Message.Part> = [
        { type: "text", text: "What is this?" },
        { type: "image", url: "https://example.com/cat.png" },
        { type: "image", data: "AAAA", mediaType: "image/jpeg" },
        { type: "image", url: "file-1" },
        { type: "file", data: "BBBB", mediaType: "application/pdf", filename: "a.pdf" },
        { type: "file", data: "BBBB", mediaType: "text/plain" },
        { type: "file", url: "https://example.com/a.pdf" },
        { type: "file", url: "file-2" },
        { type: "file", data: "CCCC", mediaType: "audio/wav" },
        { type: "reasoning", text: "hm" }
      ]
      const written = [
        { type: "input_text", text: "What is this?" },
        { type: "input_image", image_url: "https://example.com/cat.png" },
        { type: "input_image", image_url: "data:image/jpeg;base64,AAAA" },
        { type: "input_image", file_id: "file-1" },
        { type: "input_file", filename: "a.pdf", file_data: "data:application/pdf;base64,BBBB" },
        { type: "input_file", filename: "file.txt", file_data: "data:text/plain;base64,BBBB" },
        { type: "input_file", file_url: "https://example.com/a.pdf" },
        { type: "input_file", file_id: "file-2" },
        { type: "input_audio", input_audio: { data: "CCCC", format: "wav" } }
      ]
      const calls = [Message.toolCall("a", "look")]
      assert.deepStrictEqual(
        yield* inputOf([Message.user(parts), Message.assistant("", calls), Message.tool("a", parts)]),
        [
          { role: "user", content: written },
          { type: "function_call", call_id: "a", name: "look", arguments: "{}" },
          {
            type: "function_call_output",
            call_id: "a",
            output: [...written.slice(0, -1), { type: "input_text", text: "[file: audio/wav, 3 bytes]" }]
          }
        ]
      )
    }))

  it.effect("R-122: the adapter refuses content without a form in the protocol before it sends anything", () =>
    Effect.scoped(Effect.gen(function*() {
      const server = yield* Server.serve(() => ({ pieces: [body(completed())] }))
      for (const message of [Message.user([{ type: "image" }]), Message.assistant([{ type: "image", data: "AAAA" }])]) {
        const { error, events } = yield* Chunks.outcome(
          Replies.stream(server.url, {}, { messages: [message], tools: [] })
        )
        assert.deepStrictEqual([events, error?.reason], [[], "unsupported_feature"])
      }
      assert.strictEqual(server.requests.length, 0)
    })))
})

describe("a model's items in the next Responses request", () => {
  it.effect("R-342: reasoning goes back unchanged before its calls, with ids and extra fields", () =>
    Effect.gen(function*() {
      const items = [
        reasoning("rs_1", { summary: [{ type: "summary_text", text: "hm" }], encrypted_content: "E" }),
        call("a", "search", "{\"q\":1}", { namespace: "n" }),
        reasoning("rs_2", { content: [{ type: "reasoning_text", text: "so" }] }),
        call("b", "search", "{}")
      ]
      assert.deepStrictEqual(yield* backOf(body(...items.map((item, index) => done(index, item)), completed())), items)
      assert.deepStrictEqual(yield* backOf(body(completed({ output: items }))), items)
    }))

  it.effect("R-342: items executed by the provider go back in place, and so does each message with its phase", () =>
    Effect.gen(function*() {
      const text = (id: string, said: string, phase: string) =>
        message(said, {
          id,
          status: "completed",
          content: [{ type: "output_text", text: said, annotations: [] }],
          phase
        })
      const items = [
        reasoning("rs_1"),
        { type: "web_search_call", id: "ws_1", status: "completed", action: { type: "search" } },
        text("m1", "Let me see 🌤. ", "commentary"),
        { type: "tool_search_output", id: "ts_1", tools: [] },
        text("m2", "It is so.", "final_answer"),
        call("a", "now", "{}")
      ]
      assert.deepStrictEqual(yield* backOf(body(completed({ output: items }))), items)
    }))

  it.effect("R-342: a text after a call goes back after that call", () =>
    Effect.gen(function*() {
      const items = [call("a", "now", "{}"), message("Wait.", { status: "completed" })]
      assert.deepStrictEqual(yield* backOf(body(completed({ output: items }))), items)
    }))

  it.effect("R-342: a refusal goes back as a refusal", () =>
    Effect.gen(function*() {
      const refusal = message("", { status: "completed", content: [{ type: "refusal", refusal: "No." }] })
      assert.deepStrictEqual(yield* backOf(body(completed({ output: [reasoning("rs_1"), refusal] }))), [
        reasoning("rs_1"),
        refusal
      ])
    }))

  it.effect("R-342: the request omits reasoning without a following item, and a local shell call without an output", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* backOf(body(done(0, reasoning("rs_1")), incomplete("max_output_tokens"))), [])
      const shell = { type: "local_shell_call", id: "ls_1", call_id: "s1", status: "completed", action: {} }
      const kept = [reasoning("rs_1"), shell].map((item, index): Message.Part => ({
        type: "reasoning",
        text: "",
        metadata: { openaiResponses: { index, item } }
      }))
      assert.deepStrictEqual(yield* inputOf([{ ...Message.assistant(""), reasoning: kept }]), [])
      const hosted = [
        { ...shell, type: "shell_call" },
        { type: "shell_call_output", id: "so_1", call_id: "s1", output: [] },
        message("done", { status: "completed" })
      ]
      assert.deepStrictEqual(yield* backOf(body(completed({ output: hosted }))), hosted)
    }))

  it.effect("R-342: reasoning with an id alone goes back only if the provider stores replies", () =>
    Effect.gen(function*() {
      const reply = body(completed({ output: [reasoning("rs_1", {}), call("a", "now", "{}")] }))
      assert.deepStrictEqual((yield* backOf(reply)).map((item) => item["type"]), ["function_call"])
      const stored = yield* backOf(reply, { store: true })
      assert.deepStrictEqual(stored[0], { type: "reasoning", id: "rs_1", summary: [] })
      const byRequest = yield* backOf(reply, { options: { store: true } })
      assert.deepStrictEqual(byRequest[0], stored[0])
    }))

  it.effect("R-342: reasoning goes back without nulls, states and empty lists", () =>
    Effect.gen(function*() {
      const told = reasoning("rs_1", { status: "completed", content: [], encrypted_content: "E", note: null })
      const [first] = yield* backOf(body(completed({ output: [told, message("Hi")] })))
      assert.deepStrictEqual(first, { type: "reasoning", id: "rs_1", summary: [], encrypted_content: "E" })
      const hollow = reasoning("rs_1", { encrypted_content: "" })
      assert.strictEqual((yield* backOf(body(completed({ output: [hollow, message("Hi")] })))).length, 1)
    }))

  it.effect("R-342: a changed text goes back as changed, before the calls", () =>
    Effect.gen(function*() {
      const items = [reasoning("rs_1"), message("My key is 123."), call("a", "now", "{}")]
      const { events } = yield* Replies.outcomeOf(body(completed({ output: items })))
      const changed = { ...Replies.last(events).message, content: "My key is ***, see." }
      const input = yield* inputOf([changed, Message.tool("a", "done")])
      assert.deepStrictEqual(input.slice(0, 3), [
        reasoning("rs_1"),
        { role: "assistant", content: "My key is ***, see." },
        call("a", "now", "{}")
      ])
    }))

  it.effect("R-343: ids repeated in every turn go out as distinct ids, each with its answer", () =>
    Effect.gen(function*() {
      const turn = (answer: string) => [
        Message.assistant("", [Message.toolCall("call_0", "now"), Message.toolCall("call_1", "now")]),
        Message.tool("call_1", `${answer}1`),
        Message.tool("call_0", `${answer}0`)
      ]
      const input = yield* inputOf([...turn("a"), ...turn("b"), ...turn("c").slice(0, 1)])
      assert.deepStrictEqual(input.map((item) => [item["call_id"], item["output"]]), [
        ["call_0", undefined],
        ["call_1", undefined],
        ["call_1", "a1"],
        ["call_0", "a0"],
        ["call_0_2", undefined],
        ["call_1_2", undefined],
        ["call_1_2", "b1"],
        ["call_0_2", "b0"],
        ["call_0_3", undefined],
        ["call_1_3", undefined]
      ])
    }))

  it.effect("R-342: the request omits reasoning of another protocol, and shortens its long ids to distinct ids", () =>
    Effect.gen(function*() {
      const long = "call_".padEnd(100, "x")
      const foreign: Message.Message = {
        ...Message.assistant("Hm.", [
          Message.toolCall(`${long}1`, "now"),
          Message.toolCall(`${long}2`, "now"),
          { ...Message.toolCall(`${long}3`, "now"), metadata: { openaiResponses: { index: 0 } } }
        ]),
        reasoning: [
          { type: "reasoning", text: "hm", signature: "S", metadata: { anthropic: { type: "thinking" } } },
          { type: "reasoning", text: "so" }
        ]
      }
      const input = yield* inputOf([
        foreign,
        Message.tool(`${long}1`, "1"),
        Message.tool(`${long}2`, "2"),
        Message.tool(`${long}3`, "3")
      ])
      assert.deepStrictEqual(input.map((item) => item["type"] ?? item["role"]), [
        "assistant",
        "function_call",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "function_call_output"
      ])
      const idsOf = (type: string) =>
        input.filter((item) => item["type"] === type).map((item) => String(item["call_id"]))
      const [own, ...cut] = idsOf("function_call")
      assert.strictEqual(own, `${long}3`)
      assert.strictEqual(new Set(cut).size, 2)
      for (const id of cut) assert.isAtMost(id.length, 64)
      assert.deepStrictEqual(idsOf("function_call_output"), [...cut, own])
    }))
})

describe("a run over the Responses adapter", () => {
  const lookUp = Tool.make("look_up", {
    parameters: { word: Schema.NonEmptyString },
    handler: ({ word }) => Effect.succeed(`about ${word}`)
  })

  it.effect("R-126, R-136, R-342: the last request of a three-turn run has all earlier items, with reasoning in place", () =>
    Effect.scoped(Effect.gen(function*() {
      const first = [
        reasoning("rs_1"),
        call("a", "look_up", "{\"word\":\"x\"}"),
        call("b", "look_up", "{\"word\":\"y\"}")
      ]
      const second = [reasoning("rs_2"), call("call_0", "look_up", "{\"word\":\"z\"}")]
      const streamed = body(
        created,
        added(0, first[0]!),
        done(0, first[0]!),
        added(1, call("a", "look_up")),
        delta("function_call_arguments", 1, "{\"word\":\"x\"}"),
        done(1, first[1]!),
        done(2, first[2]!),
        completed()
      )
      const replies = [streamed, body(completed({ output: second })), body(said("Done."), completed())]
      const server = yield* Server.serve((_, index) => ({ pieces: [replies[index]!] }))
      const result = yield* Chat.run("Go", { system: "Be brief.", tools: [lookUp] }).pipe(
        Effect.provide(Replies.layer(server.url))
      )
      assert.deepStrictEqual([result.haltedReason, result.finalResponse?.outputText], ["completed", "Done."])
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
      const output = (call_id: string, output: string) => ({ type: "function_call_output", call_id, output })
      assert.deepStrictEqual(server.requests[2]!.body.input, [
        { role: "user", content: "Go" },
        ...first,
        output("a", "about x"),
        output("b", "about y"),
        ...second,
        output("call_0", "about z")
      ])
      assert.strictEqual(server.requests[2]!.body.instructions, "Be brief.")
    })))

  it.effect("R-126, I-18: a run answers a cut call without running it, and its arguments do not go back", () =>
    Effect.scoped(Effect.gen(function*() {
      const cut = call("a", "look_up", "{\"word\":\"x", { status: "incomplete" })
      const replies = [body(done(0, cut), incomplete("max_output_tokens")), body(said("Sorry."), completed())]
      const server = yield* Server.serve((_, index) => ({ pieces: [replies[index]!] }))
      const result = yield* Chat.run("Go", { tools: [lookUp] }).pipe(Effect.provide(Replies.layer(server.url)))
      assert.deepStrictEqual(result.finalResponse?.outputText, "Sorry.")
      const [, sent, output] = server.requests[1]!.body.input
      assert.deepStrictEqual(sent, call("a", "look_up", "{}"))
      assert.deepInclude(output, { type: "function_call_output", call_id: "a" })
      assert.notInclude(output.output, "about x")
    })))

  it.effect("R-136, R-342: a custom tool is declared, called and answered as a custom tool", () =>
    Effect.scoped(Effect.gen(function*() {
      const item = {
        type: "custom_tool_call",
        id: "ctc_1",
        call_id: "c1",
        name: "run_sql",
        input: "select 1",
        status: "completed"
      }
      const replies = [body(completed({ output: [reasoning("rs_1"), item] })), body(said("One."), completed())]
      const server = yield* Server.serve((_, index) => ({ pieces: [replies[index]!] }))
      const runSql = Tool.make("run_sql", {
        parameters: { input: Schema.String },
        handler: ({ input }) => Effect.succeed(`ran: ${input}`)
      })
      const declaration = { type: "custom", name: "run_sql", description: "SQL" }
      const result = yield* Chat.run("Go", { tools: [runSql, lookUp], toolChoice: { name: "run_sql" } }).pipe(
        Effect.provide(Replies.layer(server.url, { options: { tools: [declaration] } }))
      )
      assert.strictEqual(result.finalResponse?.outputText, "One.")
      const [first, second] = server.requests.map((request) => request.body)
      assert.deepStrictEqual(first.tools.map(({ name, type }: any) => [type, name]), [
        ["function", "look_up"],
        ["custom", "run_sql"]
      ])
      assert.deepStrictEqual(first.tool_choice, { type: "custom", name: "run_sql" })
      assert.deepStrictEqual(second.input.slice(1), [
        reasoning("rs_1"),
        item,
        { type: "custom_tool_call_output", call_id: "c1", output: "ran: select 1" }
      ])
    })))
})
