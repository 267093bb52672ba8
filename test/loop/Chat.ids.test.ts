/** One id for a call: unique in its thread from the first event of the call, whatever the wire calls it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Collector, type Event, Message, Rule, Session, Step, type Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { killedAtEach, type Replies } from "../support/ruled.ts"
import { chatOf, echo } from "../support/scenarios.ts"

const { finish, text, toolCall, toolCallDelta } = Script

const tools = [echo]

const done = [text("Done."), finish("stop")]

/** A thread with a whole turn that has calls of these ids. */
const threadWith = (...ids: ReadonlyArray<string>): ReadonlyArray<Message.Message> => [
  Message.user("go"),
  Message.assistant("", ids.map((id) => Message.toolCall(id, "echo", {}))),
  ...ids.map((id) => Message.answer(id, "seen")),
  Message.user("again")
]

/** The events of a reply with one call, in fragments. */
const inFragments = (id: string): ReadonlyArray<Event.AdapterEvent> => [
  { _tag: "MessageStarted", message: Message.assistant("") },
  { _tag: "ToolCallStarted", id, name: "echo" },
  { _tag: "ToolCallDelta", id, argumentsDelta: "{\"a\":" },
  { _tag: "ToolCallDelta", id, argumentsDelta: "1}" },
  { _tag: "ToolCallCompleted", id, name: "echo", arguments: { a: 1 }, rawArguments: "{\"a\":1}" },
  {
    _tag: "MessageCompleted",
    message: Message.assistant("", [Message.toolCall(id, "echo", { a: 1 })]),
    finishReason: "tool_calls"
  }
]

/** A model that replies with events, and is done behind these replies. */
const modelOf = (...replies: ReadonlyArray<ReadonlyArray<Event.AdapterEvent>>) => {
  let turn = 0
  return Adapter.layer({
    stream: () =>
      Stream.fromIterable<Event.AdapterEvent>(
        replies[turn++] ?? [{ _tag: "MessageCompleted", message: Message.assistant("Done."), finishReason: "stop" }]
      )
  })
}

const idsIn = ({ messages }: Pick<Thread.Thread, "messages">): ReadonlyArray<string> =>
  messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))

/** The ids that a run gives the calls of one reply behind a thread. */
const namedBehind = (
  from: ReadonlyArray<Message.Message>,
  ...reply: ReadonlyArray<Script.Entry>
): Effect.Effect<ReadonlyArray<string>, Chat.ChatError> =>
  Effect.map(
    chatOf([[...reply, finish("tool_calls")], done], { tools }, from),
    ({ result }) => result.steps[0]?.response.toolCalls.map(({ id }) => id) ?? []
  )

/** The id of the call that an event is about, if it is about one. */
const idOf = (event: Event.Event): ReadonlyArray<string> => {
  switch (event._tag) {
    case "ToolCallStarted":
    case "ToolCallDelta":
    case "ToolCallCompleted":
    case "ToolExecutionStarted":
    case "ToolExecutionCompleted":
    case "ToolResultEncoded":
      return [event.id]
    case "MessageCompleted":
      return event.message.toolCalls?.map(({ id }) => id) ?? []
    default:
      return []
  }
}

describe("call ids", () => {
  it.effect("O-05: a call has one id in all its events, its message and its answer, also when the model repeats an id", () =>
    Effect.gen(function*() {
      const events = yield* Effect.provide(
        Stream.runCollect(Chat.stream("go", { tools })),
        modelOf(inFragments("c"), inFragments("c"), inFragments("c"))
      )
      const told = events.flatMap((event) => idOf(event).map((id) => `${event._tag} ${id}`))
      const turn = (id: string) => [
        `ToolCallStarted ${id}`,
        `ToolCallDelta ${id}`,
        `ToolCallDelta ${id}`,
        `ToolCallCompleted ${id}`,
        `MessageCompleted ${id}`,
        `ToolExecutionStarted ${id}`,
        `ToolExecutionCompleted ${id}`,
        `ToolResultEncoded ${id}`
      ]
      assert.deepStrictEqual(told, ["c", "c_2", "c_3"].flatMap(turn))
      const result = Collector.toChatResult(
        Collector.applyAll(Collector.initial({ thread: { messages: [], metadata: {} } }), events)
      )
      assert.deepStrictEqual(idsIn(result.thread), ["c", "c_2", "c_3"])
      const answers = result.thread.messages.filter(({ role }) => role === "tool")
      assert.deepStrictEqual(answers.map(({ toolCallId }) => toolCallId), ["c", "c_2", "c_3"])
    }))

  it.effect("O-05: a renamed call keeps the wire's id in `duplicateOf`", () =>
    Effect.gen(function*() {
      const { events, result } = yield* chatOf([
        [toolCall("c", "echo", { a: 1 }), finish("tool_calls")],
        [toolCall("c", "echo", { a: 2 }), finish("tool_calls")],
        done
      ], { tools })
      const metadata = events.flatMap((event) => event._tag === "ToolCallCompleted" ? [event.metadata] : [])
      assert.deepStrictEqual(metadata, [undefined, { duplicateOf: "c" }])
      const calls = result.thread.messages.flatMap(({ toolCalls = [] }) => toolCalls)
      assert.deepStrictEqual(calls.map((call) => call.metadata), [{}, { duplicateOf: "c" }])
    }))

  it.effect("O-05: a call keeps the wire's id, however long, unless another call of the thread uses the same id", () =>
    Effect.gen(function*() {
      const long = "x".repeat(200)
      assert.deepStrictEqual(yield* namedBehind(threadWith("a"), toolCall(long, "echo"), toolCall("b", "echo")), [
        long,
        "b"
      ])
    }))

  it.effect("O-05: a renamed call gets the least number free in its thread", () =>
    Effect.gen(function*() {
      const from = threadWith("c", "c_2", "c_4")
      assert.deepStrictEqual(
        yield* namedBehind(from, toolCall("c", "echo"), toolCall("c", "echo", { a: 1 }), toolCall("c_2", "echo")),
        ["c_3", "c_5", "c_2_2"]
      )
      const numbered = threadWith("c", ...Array.from({ length: 11 }, (_, index) => `c_${index + 2}`))
      assert.deepStrictEqual(yield* namedBehind(numbered, toolCall("c", "echo")), ["c_13"])
    }))

  it.effect("O-05: a numbered id has at most 40 characters and splits no character", () =>
    Effect.gen(function*() {
      const long = "x".repeat(60)
      const ids = yield* namedBehind(threadWith(long), toolCall(long, "echo"), toolCall(long, "echo", { a: 1 }))
      assert.deepStrictEqual(ids, [`${"x".repeat(38)}_2`, `${"x".repeat(38)}_3`])
      const paired = `${"x".repeat(37)}😀😀`
      assert.deepStrictEqual(yield* namedBehind(threadWith(paired), toolCall(paired, "echo")), [`${"x".repeat(37)}_2`])
      // Ids that differ behind the cut have their own least numbers.
      const one = `${"x".repeat(37)}1`
      const other = `${"x".repeat(37)}2`
      assert.deepStrictEqual(
        yield* namedBehind(threadWith(one, other), toolCall(one, "echo"), toolCall(other, "echo")),
        [`${one}_2`, `${other}_2`]
      )
    }))

  it.effect("O-05: a call without a wire id gets an id made of the number of messages before the call", () =>
    Effect.gen(function*() {
      const call = { _tag: "ToolCallCompleted", id: "", name: "echo", arguments: {}, rawArguments: "{}" } as const
      const ended = { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" } as const
      const reply: ReadonlyArray<Event.AdapterEvent> = [
        { ...call, arguments: { a: 1 }, rawArguments: "{\"a\":1}" },
        { _tag: "ToolCallStarted", id: "", name: "echo" },
        { ...call, arguments: { a: 2 }, rawArguments: "{\"a\":2}" },
        ended
      ]
      const from = [...threadWith("call_5_1"), Message.assistant("So?"), Message.user("go")]
      const result = yield* Effect.provide(Chat.run(from, { tools }), modelOf(reply, reply))
      const [, ...own] = idsIn(result.thread)
      assert.deepStrictEqual(own, ["call_6_1", "call_6_2", "call_9_1", "call_9_2"])
      assert.isTrue(
        result.thread.messages.every(({ toolCalls = [] }) =>
          toolCalls.every(({ metadata }) => metadata["duplicateOf"] === undefined)
        )
      )
    }))

  it.effect("O-05: the ids of a discarded reply are free again", () =>
    Effect.gen(function*() {
      const { events } = yield* chatOf([
        [toolCall("c", "echo", { a: 1 }), finish("tool_calls")],
        [toolCall("c", "echo", { a: 2 }), toolCall("d", "echo"), Script.streamError("provider_unavailable")],
        [toolCall("d", "echo", { a: 3 }), toolCall("c", "echo", { a: 4 }), finish("tool_calls")],
        done
      ], { tools, retryReply: Schedule.recurs(1) })
      const started = events.flatMap((event) => event._tag === "ToolCallStarted" ? [event.id] : [])
      assert.deepStrictEqual(started, ["c", "c_2", "d", "d", "c_2"])
    }))

  it.effect("O-05: a call run by the provider gets a unique id and keeps its metadata", () =>
    Effect.gen(function*() {
      const raw = { wire: { id: "s", blocks: [{ id: "s" }] } }
      const reply: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "ToolCallStarted", id: "s", name: "web" },
        {
          _tag: "ToolCallCompleted",
          id: "s",
          name: "web",
          arguments: {},
          rawArguments: "{}",
          providerExecuted: true,
          metadata: raw
        },
        { _tag: "ToolCallCompleted", id: "c", name: "echo", arguments: {}, rawArguments: "{}" },
        { _tag: "MessageCompleted", message: Message.assistant(""), finishReason: "tool_calls" }
      ]
      const result = yield* Effect.provide(Chat.run("go", { tools }), modelOf(reply, reply))
      const calls = result.steps.flatMap(({ response }) => response.toolCalls)
      assert.deepStrictEqual(calls.map(({ id }) => id), ["s", "c", "s_2", "c_2"])
      assert.deepStrictEqual(calls[2]?.metadata, { duplicateOf: "s", ...raw })
    }))

  it.effect("O-05: rules hear events with the ids given by the run", () =>
    Effect.gen(function*() {
      const heard: Array<string> = []
      const ear = Rule.make("ear", {
        hear: (event) => {
          for (const id of idOf(event)) heard.push(`${event._tag} ${id}`)
          return [{ _tag: "RawChunk", chunk: event._tag }]
        }
      })
      const events = yield* Effect.provide(
        Stream.runCollect(Chat.stream("go", { tools, rules: [ear], includeRawChunks: true })),
        modelOf(inFragments("c"), inFragments("c"))
      )
      assert.deepStrictEqual(
        heard,
        events.flatMap((event) =>
          event._tag.startsWith("ToolEx") || event._tag === "ToolResultEncoded"
            ? []
            : idOf(event).map((id) => `${event._tag} ${id}`)
        )
      )
      // A chunk stands behind its event.
      events.forEach((event, index) => {
        if (event._tag === "RawChunk") assert.strictEqual(event.chunk, events[index - 1]?._tag)
      })
    }))

  it.effect("O-05: Step.run renames a repeated id like a run", () =>
    Effect.gen(function*() {
      const step = yield* Effect.provide(Step.run(threadWith("c"), { tools }), modelOf(inFragments("c")))
      assert.deepStrictEqual(step.response.toolCalls.map(({ id }) => id), ["c_2"])
      assert.deepStrictEqual(step.response.message?.toolCalls?.map(({ id, metadata }) => [id, metadata]), [
        ["c_2", { duplicateOf: "c" }]
      ])
    }))

  it.effect("O-75: ids of hidden events count as used", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([
        [
          toolCall("d", "echo", { a: 1 }),
          toolCallDelta("d_2", "{}"),
          toolCall("d", "echo", { a: 2 }),
          finish("tool_calls")
        ],
        done
      ], { tools, emitToolDeltas: false })
      assert.deepStrictEqual(idsIn(result.thread), ["d", "d_3"])
    }))

  it.effect("O-05: folding already named events again, or from a copied fold, keeps their ids", () =>
    Effect.gen(function*() {
      const from = threadWith("c", "d")
      const { events } = yield* chatOf(
        [
          [
            toolCall("c", "echo", { a: 1 }),
            toolCall("c", "echo", { a: 2 }),
            toolCall("d", "echo"),
            finish("tool_calls")
          ],
          done
        ],
        { tools },
        from
      )
      let state = Collector.initial({ thread: { messages: from, metadata: {} } })
      for (const event of events) {
        const next = Collector.applyEvent(state, event)
        assert.deepStrictEqual(Collector.toResponse(Collector.applyEvent(state, event)), Collector.toResponse(next))
        state = next
      }
      assert.deepStrictEqual(state.steps[0]?.response.toolCalls.map(({ id }) => id), ["c_2", "c_3", "d_2"])
    }))

  it.effect("O-05: a run killed at any record gives the same ids", () =>
    Effect.gen(function*() {
      const note = Tool.make("note", { parameters: {}, readOnly: true, handler: () => Effect.succeed("noted") })
      const replies: Replies = ({ messages }) =>
        messages.filter(({ role }) => role === "assistant").length < 3
          ? [toolCall("c", "note"), toolCall("c", "note"), toolCall("e", "note"), finish("tool_calls")]
          : done
      const { result } = yield* killedAtEach(replies, () => ({ tools: [note], rules: [] }))
      assert.deepStrictEqual(idsIn(result.thread), ["c", "c_2", "e", "c_3", "c_4", "e_2", "c_5", "c_6", "e_3"])
    }))

  it.effect("O-05: ids are unique over all runs of a session and after a load", () =>
    Effect.gen(function*() {
      const ids = new Set<string>()
      for (let turn = 0; turn < 3; turn++) {
        const kept = yield* Session.open("s")
        const { session } = yield* Effect.provide(
          Session.keep(kept, (session) => Session.reply(session, "go", { tools })),
          Script.layer([[toolCall("c", "echo", { turn }), finish("tool_calls")], done])
        )
        for (const id of idsIn(session.thread)) ids.add(id)
      }
      assert.deepStrictEqual(Array.from(ids), ["c", "c_2", "c_3"])
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
