/**
 * How a model's turn goes back to it: as it came, block by block, also through whole runs; and what goes back of turns
 * that were changed, were never finished, or that another protocol wrote.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Chat, Message, Thread, Tool } from "heddle"
import * as Wire from "../support/anthropic.ts"
import { bodyOf, messagesOf, result, said, used } from "../support/anthropicThreads.ts"
import * as Server from "../support/server.ts"

describe("a model's turn in the next request", () => {
  /** The content that a reply comes back as when its message is sent again, and what is sent beside it. */
  const returned = (
    blocks: ReadonlyArray<ReadonlyArray<Readonly<Record<string, unknown>>>>,
    following: ReadonlyArray<Message.Message> = [],
    word = "tool_use"
  ) =>
    Effect.gen(function*() {
      const { events } = yield* Wire.outcomeOf(Wire.reply(blocks, word))
      const { message } = Wire.completed(events)
      // A run keeps of a message what it has fields for, and of its calls those of its own tools.
      const calls = (message.toolCalls ?? []).filter((call) => call.providerExecuted !== true)
      const { toolCalls: _, ...rest } = message
      const kept = { ...rest, ...(calls.length === 0 ? {} : { toolCalls: calls }), metadata: {} }
      const encoded = yield* Schema.encodeEffect(Message.Message)(kept)
      const stored = yield* Schema.decodeUnknownEffect(Message.Message)(JSON.parse(JSON.stringify(encoded)))
      const body = yield* bodyOf([Message.user("go"), stored, ...following])
      return { content: body.messages[1]?.content, container: body.container, messages: body.messages }
    })

  const thought = (thinking: string, signature: string) => ({ type: "thinking", thinking, signature })
  const redacted = { type: "redacted_thinking", data: "EvgF" }
  const search = { type: "server_tool_use", id: "srvtoolu_1", name: "web_search" }
  const searched = {
    type: "web_search_tool_result",
    tool_use_id: "srvtoolu_1",
    content: [{ type: "web_search_result", encrypted_content: "abc" }],
    caller: { type: "direct" }
  }
  const whole = (
    index: number,
    block: Readonly<Record<string, unknown>>
  ) => [Wire.opened(index, block), Wire.closed(index)]
  const searching = (index: number) => [
    Wire.opened(index, { ...search, input: {} }),
    Wire.args(index, "{\"query\":\"sky\"}"),
    Wire.closed(index)
  ]

  it.effect("R-342: signed, redacted and empty reasoning goes back with its signatures", () =>
    Effect.gen(function*() {
      const { content } = yield* returned([
        Wire.thinking(0, "hm", "sig_a"),
        whole(1, redacted),
        Wire.thinking(2, "", "sig_b"),
        Wire.text(3, "Looking."),
        Wire.called(4, "toolu_a", "look", "{\"q\":1}")
      ], [Message.tool("toolu_a", "1")])
      assert.deepStrictEqual(content, [
        thought("hm", "sig_a"),
        redacted,
        thought("", "sig_b"),
        said("Looking."),
        used("toolu_a", "look", { q: 1 })
      ])
    }))

  it.effect("R-342: a turn of many blocks goes back block by block in order, with the calls executed by the provider", () =>
    Effect.gen(function*() {
      const { content } = yield* returned([
        Wire.text(0, "First "),
        Wire.thinking(1, "hm", "sig_a"),
        searching(2),
        whole(3, searched),
        Wire.text(4, "found 🌤"),
        Wire.text(5, "."),
        Wire.thinking(6, "so", "sig_b"),
        Wire.called(7, "toolu_a", "look", ""),
        Wire.text(8, "And "),
        Wire.called(9, "toolu_b", "look", "{}")
      ], [Message.tool("toolu_a", "1"), Message.tool("toolu_b", "2")])
      assert.deepStrictEqual(content, [
        said("First "),
        thought("hm", "sig_a"),
        { ...search, input: { query: "sky" } },
        searched,
        said("found 🌤"),
        said("."),
        thought("so", "sig_b"),
        used("toolu_a", "look"),
        said("And "),
        used("toolu_b", "look")
      ])
    }))

  /** A block as it streams, and the blocks that it goes back as. */
  const generated = (kind: "text" | "thinking" | "redacted" | "search" | "call", index: number): Generated => {
    const id = `${kind}_${index}`
    switch (kind) {
      case "text":
        return { events: Wire.text(index, `word ${index} `, "🌤"), content: [said(`word ${index} 🌤`)] }
      case "thinking":
        return { events: Wire.thinking(index, id, `sig_${index}`), content: [thought(id, `sig_${index}`)] }
      case "redacted":
        return { events: whole(index, redacted), content: [redacted] }
      case "search": {
        const call = { ...search, id, input: { n: index } }
        const found = { ...searched, tool_use_id: id }
        return { events: [...whole(index, call), ...whole(index, found)], content: [call, found] }
      }
      case "call":
        return { events: Wire.called(index, id, "look", `{"n":${index}}`), content: [used(id, "look", { n: index })] }
    }
  }

  interface Generated {
    readonly events: ReadonlyArray<Readonly<Record<string, unknown>>>
    readonly content: ReadonlyArray<any>
  }

  /** Blocks, with texts that follow each other as one: a plain turn tells of one text only. */
  const joined = (blocks: ReadonlyArray<any>): ReadonlyArray<any> => {
    const all: Array<any> = []
    for (const block of blocks) {
      const last = all.at(-1)
      if (block.type === "text" && last?.type === "text") all[all.length - 1] = said(last.text + block.text)
      else all.push(block)
    }
    return all
  }

  it.effect.prop(
    "R-342: a turn of blocks in any order goes back unchanged",
    { kinds: Schema.Array(Schema.Literals(["text", "thinking", "redacted", "search", "call"])) },
    ({ kinds }) =>
      Effect.gen(function*() {
        const parts = [...kinds, "call" as const].map(generated)
        const answers = parts.flatMap(({ content }) => content)
          .flatMap((block) => block.type === "tool_use" ? [Message.tool(block.id, "1")] : [])
        const { content } = yield* returned(parts.map(({ events }) => events), answers)
        assert.deepStrictEqual(joined(content), joined(parts.flatMap(({ content }) => content)))
      }),
    { arbitrary: { runs: 100, size: 8 } }
  )

  it.effect("R-347: a paused turn goes back unchanged as the last message", () =>
    Effect.gen(function*() {
      const { content, messages } = yield* returned([Wire.text(0, "Searching. "), searching(1)], [], "pause_turn")
      assert.deepStrictEqual(content, [said("Searching. "), { ...search, input: { query: "sky" } }])
      assert.strictEqual(messages.length, 2)
    }))

  it.effect("R-342: the request omits a server-side call without a result, and a result without a call", () =>
    Effect.gen(function*() {
      const { content } = yield* returned(
        [Wire.text(0, "Searching."), searching(1)],
        [Message.user("stop")],
        "pause_turn"
      )
      assert.deepStrictEqual(content, [said("Searching.")])
      const orphan = yield* returned([Wire.text(0, "Found."), whole(1, searched)], [Message.user("stop")], "end_turn")
      assert.deepStrictEqual(orphan.content, [said("Found.")])
      const cut = yield* returned(
        [Wire.text(0, "Hm"), [Wire.opened(1, { ...search, input: {} }), Wire.args(1, "{\"q")]],
        [],
        "max_tokens"
      )
      assert.deepStrictEqual(cut.content, [said("Hm")])
    }))

  it.effect("R-342: a turn never ends with thinking, and the request omits a turn of thinking alone", () =>
    Effect.gen(function*() {
      const { messages } = yield* returned([Wire.thinking(0, "hm", "sig_a"), whole(1, redacted)], [Message.user("on")])
      assert.deepStrictEqual(messages, [{ role: "user", content: [said("go"), said("on")] }])
      const { content } = yield* returned([Wire.text(0, "Hi"), Wire.thinking(1, "hm", "sig_a")], [Message.user("on")])
      assert.deepStrictEqual(content, [said("Hi")])
    }))

  it.effect("R-342: calls by the provider's code name their caller, and the request names the container while the turn continues", () =>
    Effect.gen(function*() {
      const caller = { type: "code_execution_20250825", tool_id: "srvtoolu_1" }
      const run = { type: "server_tool_use", id: "srvtoolu_1", name: "code_execution", input: { code: "look()" } }
      const events = [
        Wire.start(),
        ...whole(0, run),
        ...whole(1, { type: "tool_use", id: "toolu_a", name: "look", input: { q: 1 }, caller }),
        Wire.stopped("tool_use", { container: { id: "container_1", expires_at: "2026-01-01T00:00:00Z" } }),
        Wire.stop
      ]
      const reply = yield* Wire.outcomeOf(Wire.body(...events))
      const turn = [Message.user("go"), Wire.completed(reply.events).message, Message.tool("toolu_a", "1")]
      const body = yield* bodyOf(turn)
      assert.deepStrictEqual(body.messages[1].content, [run, { ...used("toolu_a", "look", { q: 1 }), caller }])
      assert.strictEqual(body.container, "container_1")
      const ran = { type: "code_execution_tool_result", tool_use_id: "srvtoolu_1", content: { stdout: "1" } }
      const answer = yield* Wire.outcomeOf(Wire.reply([whole(0, ran), Wire.text(1, "One.")], "end_turn"))
      const later = yield* bodyOf([...turn, Wire.completed(answer.events).message, Message.user("thanks")])
      assert.notProperty(later, "container")
      assert.deepStrictEqual(later.messages[1].content[0], run)
      assert.deepStrictEqual(later.messages[3].content, [ran, said("One.")])
    }))

  it.effect("R-342: a message changed by the caller goes back with the parts that still fit", () =>
    Effect.gen(function*() {
      const { events } = yield* Wire.outcomeOf(Wire.reply([
        Wire.text(0, "One. "),
        Wire.thinking(1, "hm", "sig_a"),
        Wire.text(2, "Two."),
        Wire.called(3, "toolu_a", "look", "")
      ], "tool_use"))
      const { message } = Wire.completed(events)
      const changed = { ...message, content: "Something else", toolCalls: [Message.toolCall("toolu_b", "look")] }
      const [, assistant] = yield* messagesOf(Message.user("go"), changed, Message.tool("toolu_b", "1"))
      assert.deepStrictEqual(assistant.content, [
        said("Something else"),
        thought("hm", "sig_a"),
        used("toolu_b", "look")
      ])
    }))

  it.effect("R-358: the request omits reasoning of another protocol and sends a signature without a stated protocol", () =>
    Effect.gen(function*() {
      const asked = Message.user("go")
      const reasoning = (...parts: ReadonlyArray<Message.Part>) =>
        messagesOf(asked, { ...Message.assistant("Hi"), reasoning: parts })
      const foreign = { gemini: { parts: [] } }
      assert.deepStrictEqual(
        (yield* reasoning(
          { type: "reasoning", text: "unsigned" },
          { type: "reasoning", text: "signed", signature: "theirs" },
          { type: "reasoning", text: "", metadata: foreign }
        ))[1].content,
        [said("Hi")]
      )
      const [, kept] = yield* reasoning({ type: "reasoning", text: "hm", signature: "ours", metadata: {} })
      assert.deepStrictEqual(kept.content, [thought("hm", "ours"), said("Hi")])
      const [, inside] = yield* messagesOf(
        asked,
        Message.assistant([{ type: "text", text: "Hi" }, { type: "reasoning", text: "hm", signature: "ours" }])
      )
      assert.deepStrictEqual(inside.content, [thought("hm", "ours"), said("Hi")])
      const executed = { ...Message.toolCall("x", "web_search"), providerExecuted: true }
      const [, others] = yield* messagesOf(asked, Message.assistant("Hi", [executed]))
      assert.deepStrictEqual(others.content, [said("Hi")])
    }))
})

describe("a run over the Anthropic adapter", () => {
  it.effect("R-126, R-136, R-342: a run answers the calls, and the next request has everything that the model emitted", () =>
    Effect.scoped(Effect.gen(function*() {
      const turns = [
        Wire.reply([
          Wire.thinking(0, "Two cities.", "sig_1"),
          Wire.text(1, "Let me look."),
          Wire.called(2, "toolu_a", "get_weather", "", "{\"city\":\"Oslo\"}"),
          Wire.called(3, "toolu_b", "get_weather", "{\"city\":\"?\"}")
        ], "tool_use"),
        Wire.reply([Wire.text(0, "4 in Oslo.")], "end_turn")
      ]
      const server = yield* Server.serve((_, index) => ({ pieces: [turns[index]!] }))
      const getWeather = Tool.make("get_weather", {
        parameters: { city: Schema.NonEmptyString },
        handler: ({ city }) => city === "?" ? Effect.fail("no such city") : Effect.succeed({ celsius: city.length })
      })
      const result_ = yield* Chat.run("How warm is it?", { tools: [getWeather], system: "Be brief." }).pipe(
        Effect.provide(Wire.layer(server.url, { reasoning: { maxTokens: 1024 } }))
      )
      assert.deepStrictEqual([result_.haltedReason, result_.finalResponse?.outputText], ["completed", "4 in Oslo."])
      assert.deepStrictEqual(Thread.unanswered(result_.thread), [])
      const [first, second] = server.requests.map(({ body }) => body)
      assert.deepStrictEqual(second.messages.slice(0, 1), first.messages)
      assert.deepStrictEqual(second.messages[1].content, [
        { type: "thinking", thinking: "Two cities.", signature: "sig_1" },
        said("Let me look."),
        used("toolu_a", "get_weather", { city: "Oslo" }),
        used("toolu_b", "get_weather", { city: "?" })
      ])
      const [warm, unknown] = second.messages[2].content
      assert.deepStrictEqual(warm, result("toolu_a", "{\"celsius\":4}"))
      assert.deepInclude(unknown, { type: "tool_result", tool_use_id: "toolu_b", is_error: true })
      assert.deepStrictEqual([first.thinking, second.thinking], [second.thinking, {
        type: "enabled",
        budget_tokens: 1024
      }])
    })))

  it.effect("R-347: a run resumes a turn paused by the provider by sending its thread again", () =>
    Effect.scoped(Effect.gen(function*() {
      const search = { type: "server_tool_use", id: "srvtoolu_1", name: "web_search", input: { query: "sky" } }
      const found = { type: "web_search_tool_result", tool_use_id: "srvtoolu_1", content: [] }
      const turns = [
        Wire.reply([[Wire.opened(0, search), Wire.closed(0)]], "pause_turn"),
        Wire.reply([[Wire.opened(0, found), Wire.closed(0)], Wire.text(1, "Blue.")], "end_turn"),
        Wire.reply([Wire.text(0, "Bye.")], "end_turn")
      ]
      const server = yield* Server.serve((_, index) => ({ pieces: [turns[index]!] }))
      const run = (input: Thread.Input) => Effect.provide(Chat.run(input, { maxTurns: 1 }), Wire.layer(server.url))
      const paused = yield* run("What colour is it?")
      assert.deepStrictEqual(
        [paused.haltedReason, paused.finalResponse?.rawFinishReason, paused.finalResponse?.paused],
        ["max_turns", "pause_turn", true]
      )
      const done = yield* run(paused.thread)
      assert.deepStrictEqual(server.requests[1]!.body.messages.at(-1), { role: "assistant", content: [search] })
      yield* run(Thread.append(done.thread, [Message.user("bye")]))
      assert.deepStrictEqual(server.requests[2]!.body.messages.slice(1), [
        { role: "assistant", content: [search, found, said("Blue.")] },
        { role: "user", content: [said("bye")] }
      ])
    })))

  it.effect("R-345, I-18: a run answers a call cut by the token limit without running it, and the thread stays valid", () =>
    Effect.scoped(Effect.gen(function*() {
      const turns = [
        Wire.reply([[Wire.call(0, "toolu_a", "note"), Wire.args(0, "{\"text\":\"x")]], "max_tokens"),
        Wire.reply([Wire.text(0, "ok")], "end_turn")
      ]
      const server = yield* Server.serve((_, index) => ({ pieces: [turns[index]!] }))
      let runs = 0
      const note = Tool.make("note", {
        parameters: { text: Schema.String },
        handler: () =>
          Effect.sync(() => {
            runs++
          })
      })
      const cut = yield* Chat.run("go", { tools: [note] }).pipe(Effect.provide(Wire.layer(server.url)))
      assert.strictEqual(runs, 0)
      assert.deepStrictEqual(Thread.unanswered(cut.thread), [])
      assert.strictEqual(cut.haltedReason, "completed")
      assert.strictEqual(server.requests.length, 2)
      const [, assistant, answer] = server.requests[1]!.body.messages
      assert.deepStrictEqual(assistant.content, [used("toolu_a", "note")])
      assert.deepInclude(answer.content[0], { tool_use_id: "toolu_a", is_error: true })
    })))
})
