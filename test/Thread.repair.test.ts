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
import { cases } from "./support/cases.ts"
import { property } from "./support/property.ts"
import { play } from "./support/worlds.ts"

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
    name: "a call that the conversation went on without",
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
    name: "an answer that comes after the user spoke",
    messages: [asked("a"), Message.user("well?"), Message.tool("a", "1")],
    issues: [["messages[2].toolCallId", "\"a\"", "after other messages"]],
    repairs: [["moved", 2, "a"]],
    roles: "assistant tool user"
  },
  {
    name: "an answer to a call of the provider's own",
    messages: [Message.assistant("", [{ ...call("s"), providerExecuted: true }]), Message.tool("s", "1")],
    issues: [["messages[1].toolCallId", "\"s\""]],
    repairs: [["dropped", 1, "s"]],
    roles: "assistant"
  },
  {
    name: "several at once",
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
  ["answers in any order", [asked("a", "b"), Message.tool("b", "2"), Message.tool("a", "1"), Message.user("go on")]],
  ["one id for two calls", [asked("a", "a"), Message.tool("a", "1"), Message.tool("a", "2")]],
  ["an id of an earlier turn", [asked("a"), Message.tool("a", "1"), asked("a"), Message.tool("a", "2")]],
  ["calls of the provider's own", [Message.assistant("", [{ ...call("s"), providerExecuted: true }])]],
  ["instructions in between", [asked("a"), Message.system("be brief"), Message.tool("a", "1")]]
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
    it.effect(`M-22: ${name} is refused before a model is asked, with its place and its mend`, () =>
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

  it("M-22: an open call is answered as cancelled, and a moved answer is the one that was given", () => {
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
    it.effect(`M-22: ${name} is left alone`, () =>
      Effect.gen(function*() {
        assert.deepStrictEqual(Thread.repair(messages), { thread: Thread.fromMessages(messages), repairs: [] })
        const result = yield* Chat.run(messages).pipe(Effect.provide(Script.layer([reply])))
        assert.strictEqual(result.outcome._tag, "Completed")
      }))
  }

  it("M-22: calls that were never checked break nothing", () => {
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
    "M-22: what is repaired needs no repair, can be sent, and loses nothing that was said",
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

  property(
    "M-22, law 9: what runs hand out is left alone, but for the calls that they wait for",
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
