/**
 * Each call of a conversation has one answer, right behind it: a run refuses anything else before it asks a model, and
 * `Thread.repair` mends it. What runs themselves hand out is never refused.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Session, Step, Thread } from "heddle"
import { Script } from "heddle/testing"
import { cases } from "../support/cases.ts"
import { property } from "../support/property.ts"
import { play } from "../support/worlds.ts"

const call = (id: string) => Message.toolCall(id, "read")

const asked = (...ids: ReadonlyArray<string>) => Message.assistant("", ids.map(call))

/** Conversations that providers refuse, with what is said of each, and what is done about it. */
const broken: ReadonlyArray<{
  readonly name: string
  readonly messages: ReadonlyArray<Message.Input>
  readonly issues: ReadonlyArray<readonly [path: string, ...told: ReadonlyArray<string>]>
  readonly repairs: ReadonlyArray<readonly [kind: Thread.Repair["kind"], index: number, toolCallId: string]>
  readonly roles: string
}> = [
  {
    name: "an answer without a call",
    messages: [Message.user("go"), Message.tool("x", "42")],
    issues: [["messages[1].toolCallId", "tool message", "\"x\""]],
    repairs: [["dropped", 1, "x"]],
    roles: "user"
  },
  {
    name: "a call without an answer at the end",
    messages: [Message.user("go"), asked("a")],
    issues: [["messages[1].toolCalls[0]", "assistant message", "\"read\"", "\"a\""]],
    repairs: [["answered", 1, "a"]],
    roles: "user assistant tool"
  },
  {
    name: "an open call followed by a user message",
    messages: [asked("a", "b"), Message.tool("b", "42"), Message.user("go on")],
    issues: [["messages[0].toolCalls[0]", "\"a\""]],
    repairs: [["answered", 0, "a"]],
    roles: "assistant tool tool user"
  },
  {
    name: "a second answer",
    messages: [asked("a"), Message.tool("a", "1"), Message.tool("a", "2"), Message.user("go on")],
    issues: [["messages[2].toolCallId", "tool message", "\"a\"", "second time"]],
    repairs: [["dropped", 2, "a"]],
    roles: "assistant tool user"
  },
  {
    name: "an answer behind a user message",
    messages: [asked("a"), Message.user("well?"), Message.tool("a", "1")],
    issues: [["messages[2].toolCallId", "\"a\"", "after other messages"]],
    repairs: [["moved", 2, "a"]],
    roles: "assistant tool user"
  },
  {
    name: "an answer behind a user message and a system message",
    messages: [asked("a"), Message.user("well?"), Message.system("Be brief."), Message.tool("a", "1")],
    issues: [["messages[3].toolCallId", "\"a\"", "after other messages"]],
    repairs: [["moved", 3, "a"]],
    roles: "assistant tool user system"
  },
  {
    name: "an answer to a call run by the provider",
    messages: [Message.assistant("", [{ ...call("s"), providerExecuted: true }]), Message.tool("s", "1")],
    issues: [["messages[1].toolCallId", "\"s\""]],
    repairs: [["dropped", 1, "s"]],
    roles: "assistant"
  },
  {
    name: "a thread with several defects",
    messages: [
      Message.tool("z", "0"),
      asked("a", "a", "b"),
      Message.tool("a", "1"),
      Message.tool("b", "2"),
      asked("c")
    ],
    issues: [
      ["messages[0].toolCallId", "\"z\""],
      ["messages[1].toolCalls[1]", "\"a\""],
      ["messages[4].toolCalls[0]", "\"c\""]
    ],
    repairs: [["dropped", 0, "z"], ["answered", 1, "a"], ["answered", 4, "c"]],
    roles: "assistant tool tool tool assistant tool"
  }
]

const sound: ReadonlyArray<readonly [name: string, messages: ReadonlyArray<Message.Input>]> = [
  ["a thread with answers in any order", [
    asked("a", "b"),
    Message.tool("b", "2"),
    Message.tool("a", "1"),
    Message.user("go on")
  ]],
  ["a thread with one id for two calls", [asked("a", "a"), Message.tool("a", "1"), Message.tool("a", "2")]],
  ["a thread with an id of an earlier turn", [asked("a"), Message.tool("a", "1"), asked("a"), Message.tool("a", "2")]],
  ["a thread with a call run by the provider", [Message.assistant("", [{ ...call("s"), providerExecuted: true }])]],
  ["a thread with a system message before an answer", [asked("a"), Message.system("be brief"), Message.tool("a", "1")]]
]

const reply = [Script.text("done"), Script.finish("stop")]

/** Every way to begin with a conversation, and what each failed with. No model was asked. */
const refusals = (messages: ReadonlyArray<Message.Input>) =>
  Effect.gen(function*() {
    const model = yield* Script.make(Array.from({ length: 9 }, () => reply))
    const session = Session.make({ thread: Thread.fromMessages(messages) })
    const errors = yield* Effect.all([
      Effect.flip(Chat.run(messages)),
      Effect.flip(Stream.runDrain(Chat.stream(messages))),
      Effect.flip(Step.run(messages)),
      Effect.flip(Stream.runDrain(Step.stream({ messages }))),
      Effect.flip(Session.start(messages)),
      Effect.flip(Session.continue(session)),
      Effect.flip(Stream.runDrain(Session.streamStep(session))),
      Effect.flip(Adapter.classify(messages))
    ]).pipe(Effect.provide(model.layer))
    assert.strictEqual(yield* model.opens, 0)
    return errors
  })

describe("Thread.repair", () => {
  for (const { issues, messages, name } of broken) {
    it.effect(`M-22: ${name} is refused before a model is asked, with its place and the name of the repair`, () =>
      Effect.gen(function*() {
        for (const error of yield* refusals(messages)) {
          if (error instanceof Thread.ValidationError) {
            assert.strictEqual(error.reason, "invalid_thread")
            assert.deepStrictEqual(error.errors.map(({ path }) => path), issues.map(([path]) => path))
          } else {
            assert.instanceOf(error, Adapter.AdapterError)
          }
          for (const said of [...issues.flat(), "Thread.repair"]) assert.include(error.message, said)
        }
      }))
  }

  for (const { messages, name, repairs, roles } of broken) {
    it.effect(`M-22: ${name} is repaired and reported`, () =>
      Effect.gen(function*() {
        const repaired = Thread.repair(messages)
        assert.deepStrictEqual(
          repaired.repairs.map(({ index, kind, toolCallId }) => [kind, index, toolCallId]),
          repairs.map((repair) => Array.from(repair))
        )
        for (const { reason } of repaired.repairs) assert.notStrictEqual(reason, "")
        assert.strictEqual(repaired.thread.messages.map(({ role }) => role).join(" "), roles)
        const result = yield* Chat.run(repaired.thread).pipe(Effect.provide(Script.layer([reply])))
        assert.strictEqual(result.outcome._tag, "Completed")
      }))
  }

  it("M-22: an open call is answered as cancelled, and a moved answer keeps its content", () => {
    const { thread } = Thread.repair({
      messages: [asked("a", "b"), Message.user("x"), Message.tool("b", "42")],
      metadata: { mine: 1 }
    })
    const [, cancelled, moved] = thread.messages
    assert.deepStrictEqual([cancelled?.toolCallId, cancelled?.isError], ["a", true])
    assert.strictEqual((JSON.parse(String(cancelled?.content)) as { readonly code: string }).code, "cancelled")
    assert.deepStrictEqual(moved, Message.tool("b", "42"))
    assert.deepStrictEqual(thread.metadata, { mine: 1 })
  })

  for (const [name, messages] of sound) {
    it.effect(`M-22: ${name} stays unchanged`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(Thread.repair(messages), { thread: Thread.fromMessages(messages), repairs: [] })
        const result = yield* Chat.run(messages).pipe(Effect.provide(Script.layer([reply])))
        assert.strictEqual(result.outcome._tag, "Completed")
      }))
  }

  it("M-22: Thread.repair survives malformed calls and answers each usable call", () => {
    const odd = {
      role: "assistant",
      content: "",
      toolCalls: [null, 1, { id: 2 }, { id: "a" }]
    } as unknown as Message.Input
    const none = { role: "assistant", content: "", toolCalls: "none" } as unknown as Message.Input
    assert.deepStrictEqual(Thread.repair([odd, none]).repairs.map(({ toolCallId }) => toolCallId), ["a"])
  })

  const ids = Arbitrary.schema(Schema.Literals(["a", "b", "c"]))
  const messages = Arbitrary.array(
    Arbitrary.map(
      Arbitrary.all({
        kind: Arbitrary.schema(Schema.Literals(["user", "system", "said", "calls", "answer", "answer"])),
        ids: Arbitrary.array(ids, { maxLength: 3 }),
        id: ids
      }),
      ({ id, ids, kind }): Message.Message => {
        if (kind === "user") return Message.user("go")
        if (kind === "system") return Message.system("be brief")
        if (kind === "answer") return Message.tool(id, "42")
        return kind === "said" ? Message.assistant("well") : asked(...ids)
      }
    ),
    { maxLength: 8 }
  )

  property(
    "M-22: a repaired thread needs no further repair, answers every call and loses no message but dropped answers",
    messages,
    (given) =>
      Effect.sync(() => {
        const { repairs, thread } = Thread.repair(given)
        const said = (messages: ReadonlyArray<Message.Message>) => messages.filter(({ role }) => role !== "tool")
        const dropped = repairs.filter(({ kind }) => kind === "dropped").length
        const added = repairs.filter(({ kind }) => kind === "answered").length
        const again = Thread.repair(thread)
        return [
          ...again.repairs.map(({ reason }) => `again: ${reason}`),
          ...(JSON.stringify(said(given)) === JSON.stringify(said(thread.messages)) ? [] : ["something is lost"]),
          ...(thread.messages.length === given.length - dropped + added ? [] : ["a repair is not named"]),
          ...(Thread.unanswered(thread).length === 0 ? [] : ["a call has no answer"])
        ]
      }),
    2000
  )

  it("O-17: uniqueIds renames a call whose id an earlier call has, together with its answer", () => {
    const made = { ...call("a"), metadata: { openaiChat: { server: "moonshot" } } }
    const { repairs, thread } = Thread.repair([
      asked("a", "a", "b"),
      Message.tool("a", "first"),
      Message.tool("b", "other"),
      Message.tool("a", "second"),
      asked("a_2"),
      Message.tool("a_2", "own"),
      Message.assistant("", [made]),
      Message.tool("a", "third")
    ], { uniqueIds: true })
    assert.deepStrictEqual(
      thread.messages.map(({ content, toolCallId, toolCalls }) =>
        toolCalls?.map(({ id }) => id) ?? [toolCallId, content]
      ),
      [
        ["a", "a_3", "b"],
        ["a", "first"],
        ["b", "other"],
        ["a_3", "second"],
        ["a_2"],
        ["a_2", "own"],
        ["a_4"],
        ["a_4", "third"]
      ]
    )
    assert.deepStrictEqual(repairs.map(({ index, kind, toolCallId }) => [kind, index, toolCallId]), [
      ["renamed", 0, "a"],
      ["renamed", 6, "a"]
    ])
    assert.deepStrictEqual(thread.messages[6]!.toolCalls![0]!.metadata, { duplicateOf: "a", ...made.metadata })
    assert.deepStrictEqual(Thread.repair(thread, { uniqueIds: true }), { thread, repairs: [] })
  })

  it("O-17: uniqueIds renames a call run by the provider, which takes no answer", () => {
    const executed = { ...call("a"), providerExecuted: true }
    const { thread } = Thread.repair([Message.assistant("", [executed, call("a"), executed]), Message.tool("a", "1")], {
      uniqueIds: true
    })
    assert.deepStrictEqual(thread.messages[0]!.toolCalls!.map(({ id }) => id), ["a", "a_2", "a_3"])
    assert.deepStrictEqual(thread.messages.slice(1).map(({ toolCallId }) => toolCallId), ["a_2"])
  })

  it("O-17: uniqueIds gives a call without an id an id", () => {
    const { repairs, thread } = Thread.repair([Message.user("go"), asked("", "")], { uniqueIds: true })
    assert.deepStrictEqual(
      thread.messages.map(({ toolCallId, toolCalls }) => toolCalls?.map(({ id }) => id) ?? toolCallId),
      [
        undefined,
        ["call_1_1", "call_1_2"],
        "call_1_1",
        "call_1_2"
      ]
    )
    assert.deepStrictEqual(repairs.map(({ kind }) => kind), ["renamed", "renamed", "answered", "answered"])
  })

  it("O-17: an id repeated 20,000 times is renamed for each call and answer", () => {
    const messages = Array.from({ length: 20_000 }, () => [asked("a"), Message.tool("a", "1")]).flat()
    const { thread } = Thread.repair(messages, { uniqueIds: true })
    const ids = thread.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))
    assert.strictEqual(new Set(ids).size, 20_000)
    assert.deepStrictEqual(thread.messages.flatMap(({ toolCallId }) => toolCallId ?? []), ids)
  })

  property(
    "O-17: a thread repaired with uniqueIds has distinct call ids, the same answers and the original ids in duplicateOf",
    messages,
    (given) =>
      Effect.sync(() => {
        const { thread } = Thread.repair(given, { uniqueIds: true })
        const { messages: before } = Thread.repair(given).thread
        const calls = thread.messages.flatMap(({ toolCalls = [] }) => toolCalls)
        const wire = new Map(calls.map(({ id, metadata }) => [id, metadata["duplicateOf"] ?? id]))
        const said = (messages: ReadonlyArray<Message.Message>, named: (id: string) => unknown) =>
          JSON.stringify(messages.map(({ content, toolCallId = "", toolCalls = [] }) => [
            toolCalls.map(({ id }) => named(id)),
            named(toolCallId),
            content
          ]))
        return [
          ...(new Set(calls.map(({ id }) => id)).size === calls.length
            ? []
            : ["an id repeats"]),
          ...(said(thread.messages, (id) => wire.get(id) ?? id) === said(before, (id) => id) ? [] : ["another thread"]),
          ...Thread.repair(thread, { uniqueIds: true }).repairs.map(({ reason }) => `again: ${reason}`)
        ]
      }),
    2000
  )

  property(
    "M-22, law 9: a thread handed out by a run needs no repair except for its waiting calls",
    cases,
    (played) =>
      Effect.map(play(played, "stream"), ({ events }) =>
        events.flatMap((event) => {
          if (event._tag !== "StepCompleted" && event._tag !== "ChatCompleted") return []
          const { suspensions = [], thread } = event._tag === "StepCompleted" ? event : event.result
          const pending = suspensions.map(({ id }) => id)
          return Thread.repair(thread).repairs
            .filter(({ kind, toolCallId }) => kind !== "answered" || !pending.includes(toolCallId))
            .map(({ reason, toolCallId }) => `${event._tag}, "${toolCallId}": ${reason}`)
        })),
    500
  )
})
