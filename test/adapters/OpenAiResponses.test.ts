/**
 * What a streamed reply says: text, reasoning, refusals, calls out of fragments, what ran at the provider, and how the
 * reply ended; its function calls have a file of their own. The replies come from a server on the loopback interface, over the real HTTP client.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Collector, type Event, Message, Policy } from "heddle"
import { calls, of } from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"

const { added, body, call, completed, delta, done, event, eventsOf, incomplete, last, message, outcomeOf, said } =
  Replies

const tagsOf = (events: ReadonlyArray<Event.AdapterEvent>) => events.map((event) => event._tag)

const textOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  of(events, "TextDelta").map((event) => event.delta).join("")

const thoughtOf = (events: ReadonlyArray<Event.AdapterEvent>) =>
  of(events, "ReasoningDelta").map((event) => event.delta).join("")

describe("the text of a Responses reply", () => {
  it.effect("R-334: the reply streams and joins its text between the start and the end of the message", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        added(0, message("")),
        event("content_part.added", { output_index: 0, content_index: 0, part: { type: "output_text", text: "" } }),
        said("Hel"),
        said(""),
        said("lo"),
        event("output_text.done", { output_index: 0, content_index: 0, text: "Hello" }),
        event("content_part.done", { output_index: 0, content_index: 0, part: { type: "output_text", text: "Hello" } }),
        done(0, message("Hello")),
        completed({ output: [message("Hello")] })
      )
      assert.deepStrictEqual(events, [
        { _tag: "MessageStarted", message: Message.assistant("") },
        { _tag: "TextDelta", id: null, delta: "Hel" },
        { _tag: "TextDelta", id: null, delta: "lo" },
        { _tag: "TextCompleted", id: null, text: "Hello" },
        {
          _tag: "MessageCompleted",
          message: { ...Message.assistant("Hello"), finishReason: "stop" },
          finishReason: "stop",
          rawFinishReason: "completed",
          responseId: "resp_1",
          model: "test-model"
        }
      ])
    }))

  it.effect("R-334: the reply emits a text once by whichever of its four forms the text arrives", () =>
    Effect.gen(function*() {
      const whole = message("Hello")
      const tellings: ReadonlyArray<ReadonlyArray<Replies.Json>> = [
        [said("Hel"), said("lo")],
        [event("output_text.done", { output_index: 0, text: "Hello" })],
        [event("content_part.done", { output_index: 0, part: { type: "output_text", text: "Hello" } })],
        [done(0, whole)],
        [completed({ output: [whole] })],
        [said("Hel"), event("output_text.done", { output_index: 0, text: "Hello" }), done(0, whole)],
        [said("Hel"), completed({ output: [whole] })],
        [done(0, { ...whole, content: "Hello" })]
      ]
      for (const telling of tellings) {
        const events = yield* eventsOf(added(0, message("")), ...telling, completed())
        assert.deepStrictEqual(
          [textOf(events), of(events, "TextCompleted").map((event) => event.text)],
          ["Hello", ["Hello"]],
          JSON.stringify(telling)
        )
      }
    }))

  it.effect("M-35: the reply emits a text once, however its deltas and repetitions are numbered", () =>
    Effect.gen(function*() {
      const streamed = (content_index: number, text: string) => delta("output_text", 0, text, { content_index })
      const textDone = (content_index: number, text: string) =>
        event("output_text.done", { output_index: 0, content_index, text })
      const partDone = (content_index: number, text: string) =>
        event("content_part.done", { output_index: 0, content_index, part: { type: "output_text", text } })
      const parts = (...texts: ReadonlyArray<string>) =>
        message("", { content: texts.map((text) => ({ type: "output_text", text, annotations: [] })) })
      const cases: ReadonlyArray<readonly [expected: string, said: string, ReadonlyArray<Replies.Json>]> = [
        ["Hello", "Hello", [streamed(1, "Hel"), streamed(1, "lo"), done(0, parts("Hello"))]],
        ["Hello", "Hello", [streamed(1, "Hel"), done(0, parts("Hello"))]],
        ["Hello", "Hello", [streamed(1, "Hello"), completed({ output: [parts("Hello")] })]],
        ["Hello", "Hello", [streamed(0, "Hello"), textDone(1, "Hello"), partDone(2, "Hello"), done(0, parts("Hello"))]],
        ["Hello", "Hello", [textDone(3, "Hello"), partDone(2, "Hello"), done(0, parts("Hello"))]],
        ["aab", "aab", [streamed(1, "a"), streamed(2, "ab"), done(0, parts("a", "ab"))]],
        ["aa", "aa", [
          streamed(1, "a"),
          streamed(2, "a"),
          textDone(0, "a"),
          textDone(1, "a"),
          done(0, parts("a", "a"))
        ]],
        ["ab", "ab", [streamed(4, "a"), done(0, parts("a", "b"))]],
        ["Hello!", "Hello.", [streamed(1, "Hello."), done(0, parts("Hello!"))]],
        ["Hello", "Hello", [streamed(1, "Hello"), done(0, { ...message(""), content: "Hello" })]],
        ["ba", "ba", [streamed(1, "b"), done(0, parts("a", "b"))]]
      ]
      for (const [expected, shown, telling] of cases) {
        const events = yield* eventsOf(added(0, message("")), ...telling, completed())
        const text = of(events, "TextCompleted").map((event) => event.text)
        assert.deepStrictEqual([textOf(events), text], [shown, [expected]], JSON.stringify(telling))
        assert.deepStrictEqual(Message.text(last(events).message), expected)
      }
    }))

  it.effect("M-35: the reply emits a text once, however the text is divided into parts", () =>
    Effect.gen(function*() {
      const streamed = (content_index: number, text: string) => delta("output_text", 0, text, { content_index })
      const textDone = (content_index: number, text: string) =>
        event("output_text.done", { output_index: 0, content_index, text })
      const partDone = (content_index: number, text: string) =>
        event("content_part.done", { output_index: 0, content_index, part: { type: "output_text", text } })
      const parts = (...texts: ReadonlyArray<string>) =>
        message("", { content: texts.map((text) => ({ type: "output_text", text, annotations: [] })) })
      const hello = [streamed(0, "Hello "), streamed(1, "world")]
      const six = [streamed(0, "ab"), streamed(1, "cd"), streamed(2, "ef")]
      const four = [streamed(0, "abcd")]
      const cases: ReadonlyArray<readonly [expected: string, ReadonlyArray<Replies.Json>]> = [
        ["Hello world", [...hello, done(0, parts("Hello world"))]],
        ["Hello world", [...hello, textDone(0, "Hello world")]],
        ["Hello world", [...hello, partDone(0, "Hello world"), done(0, parts("Hello world"))]],
        ["Hello world", [...hello, completed({ output: [parts("Hello world")] })]],
        ["Hello world!", [...hello, done(0, parts("Hello world!"))]],
        ["Hello world!", [...hello, textDone(1, "Hello world!"), done(0, parts("Hello world!"))]],
        ["Hello world!", [...hello, done(0, parts("Hello world", "!"))]],
        ["abcdef", [...six, done(0, parts("abcdef"))]],
        ["abcdef", [...six, textDone(2, "abcdef"), partDone(2, "abcdef"), done(0, parts("abcdef"))]],
        ["abcdef", [...six, done(0, parts("abc", "def"))]],
        ["abcdef", [...six, done(0, { ...message(""), content: "abcdef" })]],
        ["abcd", [...four, done(0, parts("ab", "cd"))]],
        ["abcd", [...four, completed({ output: [parts("ab", "cd")] })]],
        ["abcd", [...four, textDone(0, "ab"), textDone(1, "cd")]],
        ["abcd", [...four, partDone(0, "ab"), partDone(1, "cd"), done(0, parts("ab", "cd"))]],
        ["abcdef", [...four, done(0, parts("ab", "cdef"))]],
        ["abcdef", [...four, textDone(0, "ab"), textDone(1, "cd"), textDone(2, "ef"), done(0, parts("abcdef"))]],
        ["aab", [streamed(0, "a"), streamed(1, "ab"), textDone(0, "a"), textDone(1, "ab"), done(0, parts("a", "ab"))]],
        ["abab", [streamed(0, "ab"), textDone(0, "ab"), streamed(1, "ab"), textDone(1, "ab"), done(0, parts("abab"))]]
      ]
      for (const [expected, telling] of cases) {
        const events = yield* eventsOf(added(0, message("")), ...telling, completed())
        const text = of(events, "TextCompleted").map((event) => event.text)
        assert.deepStrictEqual([textOf(events), text], [expected, [expected]], JSON.stringify(telling))
        assert.deepStrictEqual(Message.text(last(events).message), expected)
      }
      const trimmed = yield* eventsOf(
        streamed(0, "Hello \n"),
        textDone(0, "Hello"),
        done(0, parts("Hello")),
        completed()
      )
      assert.strictEqual(Message.text(last(trimmed).message), "Hello")
    }))

  it.effect("M-35: the reply emits reasoning and refusals once, however they are divided into parts", () =>
    Effect.gen(function*() {
      const summary = (...texts: ReadonlyArray<string>) => ({
        type: "reasoning",
        id: "rs_1",
        summary: texts.map((text) => ({ type: "summary_text", text }))
      })
      const thought = (index: number, text: string) =>
        delta("reasoning_summary_text", 0, text, { summary_index: index })
      const raw = (index: number, text: string) => delta("reasoning_text", 0, text, { content_index: index })
      const listedRaw = { ...summary("ab", "cd"), content: [{ type: "reasoning_text", text: "Raw." }] }
      const tellings: ReadonlyArray<readonly [expected: string, ReadonlyArray<Replies.Json>]> = [
        ["abcd", [thought(0, "ab"), thought(1, "cd"), done(0, summary("abcd"))]],
        ["abcd", [thought(0, "abcd"), done(0, summary("ab", "cd"))]],
        ["abcd", [raw(0, "ab"), raw(1, "cd"), done(0, summary("abcd"))]],
        ["Raw.abcd", [raw(0, "Raw."), thought(0, "abcd"), done(0, listedRaw)]],
        ["Raw.abcd", [raw(0, "Raw."), thought(0, "a"), thought(1, "bc"), done(0, listedRaw)]]
      ]
      for (const [expected, telling] of tellings) {
        const events = yield* eventsOf(added(0, summary()), ...telling, said("Hi", 1), completed())
        assert.strictEqual(thoughtOf(events), expected, JSON.stringify(telling))
        const kept = last(events).message.reasoning ?? []
        assert.strictEqual(kept.map((part) => part.type === "reasoning" ? part.text : "").join(""), expected)
      }
      const refusals = (...texts: ReadonlyArray<string>) =>
        message("", { content: texts.map((refusal) => ({ type: "refusal", refusal })) })
      const refused = (index: number, text: string) => delta("refusal", 0, text, { content_index: index })
      for (
        const telling of [
          [refused(0, "No, "), refused(1, "never."), done(0, refusals("No, never."))],
          [refused(0, "No, never."), done(0, refusals("No, ", "never."))]
        ]
      ) {
        const events = yield* eventsOf(added(0, message("")), ...telling, completed())
        assert.strictEqual(last(events).metadata?.["refusal"], "No, never.")
      }
    }))

  it.effect("M-35: the reply emits a text once although its events name their item by id alone or not at all", () =>
    Effect.gen(function*() {
      const whole = message("Hello", { id: "m" })
      const of0 = (rest: Replies.Json, text = "Hello") => event("output_text.delta", { delta: text, ...rest })
      const tellings: ReadonlyArray<ReadonlyArray<Replies.Json>> = [
        [of0({ item_id: "m" }), done(0, whole)],
        [of0({ item_id: "m", output_index: 3 }), done(0, whole)],
        [of0({}), done(0, whole)],
        [of0({ item_id: "m" }), completed({ output: [whole] })],
        [
          of0({ item_id: "m" }, "Hel"),
          added(0, message("", { id: "m" })),
          of0({ output_index: 0 }, "lo"),
          done(0, whole)
        ],
        [of0({ item_id: "m", output_index: 3 }, "Hel"), added(0, message("", { id: "m" })), done(0, whole)],
        [added(0, { ...message(""), id: undefined }), of0({ item_id: "m", output_index: 0 }), done(1, whole)],
        [
          of0({ item_id: "m", output_index: 3 }),
          event("output_text.done", { item_id: "m", text: "Hello" }),
          done(0, whole)
        ]
      ]
      for (const telling of tellings) {
        const events = yield* eventsOf(...telling, completed())
        assert.deepStrictEqual(
          [textOf(events), Message.text(last(events).message)],
          ["Hello", "Hello"],
          JSON.stringify(telling)
        )
      }
      const two = yield* eventsOf(
        of0({ item_id: "m1", output_index: 4 }, "a"),
        of0({ item_id: "m2", output_index: 7 }, "b"),
        done(0, message("a", { id: "m1" })),
        done(1, message("b", { id: "m2" })),
        completed()
      )
      assert.deepStrictEqual([textOf(two), Message.text(last(two).message)], ["ab", "ab"])
      const called = yield* eventsOf(
        event("function_call_arguments.delta", { item_id: "fc_c1", output_index: 5, delta: "{\"a\":1}" }),
        done(0, call("c1", "f", "{\"a\":1}")),
        completed()
      )
      const [given] = of(called, "ToolCallCompleted")
      assert.deepStrictEqual([given?.name, given?.arguments], ["f", { a: 1 }])
    }))

  it.effect("M-35: the reply emits reasoning and refusals once, at every place in the item", () =>
    Effect.gen(function*() {
      const thought = (rest: Replies.Json) => ({ type: "reasoning", id: "rs_1", summary: [], ...rest })
      const summary = delta("reasoning_summary_text", 0, "Let me see.", { summary_index: 1 })
      const raw = delta("reasoning_text", 0, "Let me see.", { content_index: 1 })
      const tellings: ReadonlyArray<readonly [string, ReadonlyArray<Replies.Json>]> = [
        ["Let me see.", [summary, done(0, thought({ summary: [{ type: "summary_text", text: "Let me see." }] }))]],
        ["Let me see.", [raw, done(0, thought({ content: [{ type: "reasoning_text", text: "Let me see." }] }))]],
        ["Let me see.", [raw, done(0, thought({ summary: [{ type: "summary_text", text: "Let me see." }] }))]],
        ["Let me see.", [summary, done(0, thought({ content: [{ type: "reasoning_text", text: "Let me see." }] }))]],
        ["Let me see.Raw.", [
          summary,
          done(
            0,
            thought({
              summary: [{ type: "summary_text", text: "Let me see." }],
              content: [{ type: "reasoning_text", text: "Raw." }]
            })
          )
        ]]
      ]
      for (const [expected, telling] of tellings) {
        const events = yield* eventsOf(added(0, thought({})), ...telling, said("Hi", 1), completed())
        assert.strictEqual(thoughtOf(events), expected, JSON.stringify(telling))
        assert.strictEqual(textOf(events), "Hi")
      }
      const events = yield* eventsOf(
        added(0, message("")),
        delta("refusal", 0, "No.", { content_index: 1 }),
        said("Sorry."),
        done(
          0,
          message("", { content: [{ type: "output_text", text: "Sorry." }, { type: "refusal", refusal: "No." }] })
        ),
        completed()
      )
      assert.strictEqual(textOf(events), "Sorry.")
      assert.strictEqual(last(events).metadata?.["refusal"], "No.")
    }))

  it.effect("R-334: a repetition that contradicts the streamed text replaces the text of the message", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(said("Hullo"), done(0, message("Hello")), completed())
      assert.deepStrictEqual([textOf(events), of(events, "TextCompleted")[0]?.text], ["Hullo", "Hello"])
    }))

  it.effect("R-334: several messages and parts join to a single text in order", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        added(0, message("", { id: "m0" })),
        delta("output_text", 0, "a", { content_index: 0 }),
        delta("output_text", 0, "b", { content_index: 1 }),
        added(1, message("", { id: "m1" })),
        said("c", 1),
        completed()
      )
      assert.deepStrictEqual([textOf(events), of(events, "TextCompleted")[0]?.text], ["abc", "abc"])
    }))

  it.effect("R-333: a reply without content is a message without text or calls", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(completed())
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.deepStrictEqual(last(events).message, { ...Message.assistant(""), finishReason: "stop" })
    }))

  it.effect("R-334: a refusal is part of the metadata and not of the text, and unknown events are ignored", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        event("in_progress", { response: {} }),
        added(0, { ...message(""), content: [] }),
        delta("refusal", 0, "I can"),
        delta("refusal", 0, "not"),
        event("refusal.done", { output_index: 0, refusal: "I cannot." }),
        event("tomorrow.delta", { output_index: 0, delta: "x" }),
        event("content_part.done", { output_index: 0, part: { type: "hologram", text: "x" } }),
        { type: "keepalive", sequence_number: 3 },
        completed()
      )
      assert.deepStrictEqual(tagsOf(events), ["MessageStarted", "MessageCompleted"])
      assert.deepStrictEqual(
        [last(events).metadata?.["refusal"], last(events).finishReason, last(events).message.content],
        ["I cannot.", "stop", ""]
      )
    }))

  it.effect("R-358: the metadata reports each source once, whether beside the text or inside", () =>
    Effect.gen(function*() {
      const [one, two] = [{ type: "url_citation", url: "https://a.test" }, {
        type: "url_citation",
        url: "https://b.test"
      }]
      const events = yield* eventsOf(
        said("x"),
        event("output_text.annotation.added", { output_index: 0, annotation: one }),
        done(0, message("x", { content: [{ type: "output_text", text: "x", annotations: [one, two] }] })),
        completed()
      )
      assert.deepStrictEqual(last(events).metadata?.["annotations"], [one, two])
    }))
})

describe("the reasoning of a Responses reply", () => {
  it.effect("R-334: summaries and raw reasoning stay apart from the text, one part for each item", () =>
    Effect.gen(function*() {
      const first = {
        type: "reasoning",
        id: "rs_1",
        summary: [{ type: "summary_text", text: "ab" }],
        encrypted_content: "E"
      }
      const second = { type: "reasoning", id: "rs_2", summary: [], content: [{ type: "reasoning_text", text: "cd" }] }
      const events = yield* eventsOf(
        added(0, { ...first, summary: [] }),
        delta("reasoning_summary_text", 0, "a", { summary_index: 0 }),
        delta("reasoning_summary_text", 0, "b", { summary_index: 0 }),
        done(0, first),
        added(1, { ...second, content: [] }),
        delta("reasoning_text", 1, "c", { content_index: 0 }),
        event("reasoning_text.done", { output_index: 1, content_index: 0, text: "cd" }),
        done(1, { ...second, status: null }),
        said("Hi", 2),
        completed()
      )
      assert.deepStrictEqual([thoughtOf(events), textOf(events)], ["abcd", "Hi"])
      assert.deepStrictEqual(last(events).message.reasoning, [
        { type: "reasoning", text: "ab", metadata: { openaiResponses: { index: 0, item: first } } },
        { type: "reasoning", text: "cd", metadata: { openaiResponses: { index: 1, item: second } } },
        { type: "reasoning", text: "", metadata: { openaiResponses: { index: 2, message: { length: 2 } } } }
      ])
    }))

  it.effect("R-334: ids that change with every event do not split an item, and the first id is kept", () =>
    Effect.gen(function*() {
      const item = (id: string, rest: Replies.Json = {}) => ({ type: "reasoning", id, summary: [], ...rest })
      const events = yield* eventsOf(
        added(0, item("x1")),
        done(0, item("x2", { encrypted_content: "E" })),
        added(1, message("", { id: "x3" })),
        delta("output_text", 1, "a", { item_id: "x4" }),
        delta("output_text", 1, "b", { item_id: "x5" }),
        event("output_text.done", { output_index: 1, item_id: "x6", text: "ab" }),
        done(1, message("ab", { id: "x7" })),
        completed({ output: [item("x8", { encrypted_content: "F" }), message("ab", { id: "x9" })] })
      )
      assert.strictEqual(textOf(events), "ab")
      assert.deepStrictEqual(last(events).message.reasoning?.[0], {
        type: "reasoning",
        text: "",
        metadata: { openaiResponses: { index: 0, item: item("x1", { encrypted_content: "E" }) } }
      })
    }))

  it.effect("R-355: incomplete reasoning is emitted and carries no item for the next request", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        added(0, { type: "reasoning", id: "rs_1", summary: [], encrypted_content: "half" }),
        delta("reasoning_text", 0, "hm"),
        incomplete("max_output_tokens")
      )
      assert.deepStrictEqual(last(events).message.reasoning, [{ type: "reasoning", text: "hm" }])
    }))

  it.effect("R-334: reasoning completed after the start of the text stays reasoning", () =>
    Effect.gen(function*() {
      const whole = { type: "reasoning", id: "rs_1", summary: [], content: [{ type: "reasoning_text", text: "hm" }] }
      const events = yield* eventsOf(
        added(0, { ...whole, content: [] }),
        delta("reasoning_text", 0, "hm"),
        added(1, message("")),
        said("4", 1),
        done(1, message("4")),
        event("content_part.done", { output_index: 0, content_index: 0, part: { type: "reasoning_text", text: "hm" } }),
        done(0, whole),
        completed()
      )
      assert.deepStrictEqual([thoughtOf(events), textOf(events)], ["hm", "4"])
    }))
})

describe("the hosted tools of a Responses reply", () => {
  const search = {
    type: "web_search_call",
    id: "ws_1",
    status: "completed",
    action: { type: "search", query: "heddle" }
  }
  const remote = { type: "mcp_call", id: "mcp_1", name: "add", server_label: "m", arguments: "{\"a\":1}", output: "2" }
  const python = { type: "code_interpreter_call", id: "ci_1", code: "1+1", container_id: "c", outputs: [] }
  const image = { type: "image_generation_call", id: "ig_1", status: "completed", result: "AAAA" }
  const files = { type: "file_search_call", id: "fs_1", queries: ["q"], results: null }
  const custom = {
    type: "custom_tool_call",
    id: "ctc_1",
    call_id: "xs_1",
    name: "x_search",
    input: "{\"query\":\"q\"}"
  }

  it.effect("R-332, I-10: an item executed by the provider is listed under its kind, and makes no tool turn", () =>
    Effect.gen(function*() {
      const items = [search, remote, python, image, files, custom]
      const events = yield* eventsOf(
        ...items.flatMap((item, index) => [
          added(index, { ...item, status: "in_progress" }),
          event(`${item.type}.in_progress`, { output_index: index, item_id: item.id }),
          delta("mcp_call_arguments", index, "{\"a\":1}"),
          done(index, item)
        ]),
        said("Hi", 6),
        completed({ output: [...items, message("Hi")] })
      )
      const listed = of(events, "ToolCallCompleted")
      assert.deepStrictEqual(
        listed.map(({ arguments: given, id, name, providerExecuted }) => [id, name, providerExecuted, given]),
        [
          ["ws_1", "web_search_call", true, { type: "search", query: "heddle" }],
          ["mcp_1", "mcp_call", true, { a: 1 }],
          ["ci_1", "code_interpreter_call", true, { code: "1+1" }],
          ["ig_1", "image_generation_call", true, {}],
          ["fs_1", "file_search_call", true, { queries: ["q"] }],
          ["ctc_1", "x_search", true, { query: "q" }]
        ]
      )
      assert.deepStrictEqual(listed[3]?.metadata, { openaiResponses: { index: 3, item: image } })
      assert.strictEqual(last(events).finishReason, "stop")
      const response = Collector.toResponse(Collector.applyAll(Collector.initial(), events))
      assert.isFalse(Collector.isToolTurn(Policy.standard, response))
      assert.strictEqual(response.toolCalls.length, 6)
    }))

  it.effect("R-332: an incomplete hosted call is listed, and a hosted result is kept without a call", () =>
    Effect.gen(function*() {
      const result = { type: "tool_search_output", id: "tso_1", tools: [] }
      const events = yield* eventsOf(added(0, search), done(1, result), incomplete("max_output_tokens"))
      assert.deepStrictEqual(
        of(events, "ToolCallCompleted").map(({ name, providerExecuted }) => [name, providerExecuted]),
        [
          ["web_search_call", true]
        ]
      )
      assert.deepStrictEqual(last(events).message.reasoning, [
        { type: "reasoning", text: "", metadata: { openaiResponses: { index: 1, item: result } } }
      ])
    }))

  it.effect("R-332, R-344: a call of the caller's tools beside a hosted call makes a tool turn", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(done(0, search), done(1, call("a", "now", "{}")), completed())
      assert.strictEqual(last(events).finishReason, "tool_calls")
    }))
})

describe("the end of a Responses reply", () => {
  it.effect("R-347, I-15: the status and its reason determine the finish reason, and calls make a completed reply a tool turn", () =>
    Effect.gen(function*() {
      const now = done(0, call("a", "now", "{}"))
      const cases: ReadonlyArray<readonly [ReadonlyArray<Replies.Json>, string, string]> = [
        [[completed()], "stop", "completed"],
        [[now, completed()], "tool_calls", "completed"],
        [[incomplete("max_output_tokens")], "length", "incomplete:max_output_tokens"],
        [[now, incomplete("max_output_tokens")], "length", "incomplete:max_output_tokens"],
        [[incomplete("content_filter")], "content_filter", "incomplete:content_filter"],
        [[incomplete("toString")], "error", "incomplete:toString"],
        [[incomplete(null)], "length", "incomplete"],
        [[event("cancelled", { response: { status: "cancelled" } })], "error", "cancelled"],
        [[completed({ status: "archived" })], "other", "archived"],
        [[event("completed")], "stop", "completed"],
        [[completed({ status: "in_progress" })], "stop", "completed"]
      ]
      for (const [parts, reason, raw] of cases) {
        const events = yield* eventsOf(...parts)
        assert.deepStrictEqual([last(events).finishReason, last(events).rawFinishReason], [reason, raw])
      }
    }))

  it.effect("R-303, R-350: usage counts have common names, and unknown counts are kept", () =>
    Effect.gen(function*() {
      const events = yield* eventsOf(
        said("x"),
        completed({
          usage: {
            ...Replies.usage,
            input_tokens_details: { cached_tokens: 4, cache_write_tokens: 2, audio_tokens: 1 },
            cost: 0.25,
            num_sources_used: 3
          }
        })
      )
      assert.deepInclude(last(events).usage as object, {
        inputTokens: 12,
        outputTokens: 7,
        totalTokens: 19,
        cachedInputTokens: 4,
        cacheWriteInputTokens: 2,
        reasoningTokens: 3,
        totalCost: 0.25,
        extra: { num_sources_used: 3, input_tokens_details: { audio_tokens: 1 } }
      })
      const sparse = yield* eventsOf(completed({ usage: { input_tokens: 3, output_tokens: 1 } }))
      assert.deepInclude(last(sparse).usage as object, { totalTokens: 4, cachedInputTokens: null })
    }))

  it.effect("R-342, R-136: the arguments of a strict tool lose the nulls that stand for missing members", () =>
    Effect.gen(function*() {
      const parameters = {
        type: "object",
        properties: { city: { type: "string" }, unit: { type: "string" } },
        required: ["city"]
      }
      const reply = body(done(0, call("a", "weather", "{\"city\":\"Oslo\",\"unit\":null}")), completed())
      const asked = { tools: [{ name: "weather", description: "", parameters }] }
      const strict = yield* outcomeOf(reply, { strict: true }, asked)
      assert.deepStrictEqual(calls(strict.events), [{ id: "a", name: "weather", arguments: { city: "Oslo" } }])
      const loose = yield* outcomeOf(reply, {}, asked)
      assert.deepStrictEqual(calls(loose.events), [{
        id: "a",
        name: "weather",
        arguments: { city: "Oslo", unit: null }
      }])
    }))
})
