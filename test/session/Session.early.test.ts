/** A call that may start early, and is answered before its reply is whole: it stands in the session as any other one. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"

const look = Tool.make("look", {
  parameters: Schema.Struct({ at: Schema.Number }),
  readOnly: true,
  handler: ({ at }) => Effect.succeed(`saw ${at}`)
})

const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })

const tools = [look, pay]

const calls = [Message.toolCall("c0", "look", { at: "there" }), Message.toolCall("c1", "pay", {})]

const ofReply = (calls: ReadonlyArray<Message.ToolCall>): ReadonlyArray<Event.AdapterEvent> => [
  { _tag: "MessageStarted", message: Message.assistant("") },
  ...calls.map((call): Event.AdapterEvent => ({
    _tag: "ToolCallCompleted",
    ...call,
    rawArguments: JSON.stringify(call.arguments)
  }))
]

const whole = (calls: ReadonlyArray<Message.ToolCall>): Event.AdapterEvent => ({
  _tag: "MessageCompleted",
  message: Message.assistant("so", calls),
  finishReason: calls.length === 0 ? "stop" : "tool_calls"
})

/** A model whose first reply is whole once its first call has its answer, and the answers that it was sent. */
const modelOf = (answered: Deferred.Deferred<void>) => {
  const sent: Array<ReadonlyArray<string>> = []
  const layer = Adapter.layer({
    stream: ({ messages }) => {
      sent.push(messages.flatMap(({ content, role }) => role === "tool" ? [String(content)] : []))
      const [asked, end] = sent.length === 1 ? [calls, Deferred.await(answered)] : [[], Effect.void]
      return Stream.concat(Stream.fromIterable(ofReply(asked)), Stream.fromEffect(Effect.as(end, whole(asked))))
    }
  })
  return { layer, sent }
}

const seeing = <A extends Event.Event, E, R>(events: Stream.Stream<A, E, R>, answered: Deferred.Deferred<void>) =>
  Stream.tap(
    events,
    (event) => event._tag === "ToolResultEncoded" ? Deferred.succeed(answered, undefined) : Effect.void
  )

const refused = /invalid_arguments/

describe("a call answered before its reply is whole", () => {
  it.effect("an early answer follows its reply in the journal, and the call beside it still waits for approval", () =>
    Effect.gen(function*() {
      const answered = yield* Deferred.make<void>()
      const { layer, sent } = modelOf(answered)
      const store = yield* Session.Store
      yield* Session.keepStream(
        yield* Session.open("s"),
        (session) => seeing(Session.streamReply(session, "go", { tools }), answered)
      ).pipe(Stream.runDrain, Effect.provide(layer))
      const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
      assert.deepStrictEqual(Journal.check(records), [])
      assert.deepStrictEqual(records.map(({ _tag }) => _tag), [
        "Opened",
        "RunStarted",
        "ReplyReceived",
        "CallEnded",
        "CallWaits",
        "StepCompleted",
        "RunEnded"
      ])
      const waiting = yield* Session.open("s")
      assert.deepStrictEqual(waiting.session.suspensions.map(({ id }) => id), ["c1"])
      const approved = yield* Session.keep(waiting, (session) => Session.approve(session, "c1"))
      yield* Session.keep(approved, (session) => Session.continue(session, null, { tools })).pipe(Effect.provide(layer))
      assert.strictEqual(sent[1]?.length, 2)
      assert.match(sent[1]?.[0] ?? "", refused)
      assert.strictEqual(sent[1]?.[1], "paid")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("an early answer is in the session of the result and of the reducer, beside the waiting call", () =>
    Effect.gen(function*() {
      const answered = yield* Deferred.make<void>()
      const { layer } = modelOf(answered)
      const session = yield* Session.appendUser(Session.make(), "go")
      const events = yield* seeing(Session.streamContinue(session, null, { tools }), answered).pipe(
        Stream.runCollect,
        Effect.provide(layer)
      )
      const ended = events.findIndex(({ _tag }) => _tag === "ToolResultEncoded")
      const replied = events.findIndex(({ _tag }) => _tag === "MessageCompleted")
      assert.isBelow(ended, replied)
      const reducer = Array.from(events).reduce(
        (reducer, event) => Session.applyEvent(reducer, event),
        Session.reducer(session, "chat")
      )
      const again = yield* Deferred.make<void>()
      const onEvent = ({ _tag }: Event.Event) =>
        _tag === "ToolResultEncoded" ? Effect.asVoid(Deferred.succeed(again, undefined)) : Effect.void
      const done = yield* Session.continue(session, null, { tools, onEvent }).pipe(
        Effect.provide(modelOf(again).layer)
      )
      for (const found of [Session.finalize(reducer).session, done.session]) {
        assert.deepStrictEqual(found.suspensions.map(({ id }) => id), ["c1"])
        const answers = found.thread.messages.flatMap(({ content, role }) => role === "tool" ? [String(content)] : [])
        assert.strictEqual(answers.length, 1)
        assert.match(answers[0] ?? "", refused)
      }
    }))
})
