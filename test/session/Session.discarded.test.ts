/** A reply that breaks behind its message, in a run that is recorded. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"

const note = Tool.make("note", { parameters: {}, handler: () => Effect.succeed("noted") })

const called = (id: string): ReadonlyArray<Event.AdapterEvent> => {
  const call = Message.toolCall(id, "note")
  return [
    { _tag: "ToolCallStarted", id, name: "note" },
    { _tag: "ToolCallCompleted", ...call, rawArguments: "{}" },
    { _tag: "MessageCompleted", message: Message.assistant("", [call]), finishReason: "tool_calls", metadata: {} }
  ]
}

const said: ReadonlyArray<Event.AdapterEvent> = [
  { _tag: "TextCompleted", id: null, text: "Done" },
  { _tag: "MessageCompleted", message: Message.assistant("Done"), finishReason: "stop", metadata: {} }
]

describe("a reply that breaks after its message", () => {
  it.effect("a reply that breaks after its message is discarded in the journal before the model is asked again", () =>
    Effect.gen(function*() {
      let requests = 0
      const broken = Stream.concat(
        Stream.fromIterable(called("lost")),
        Stream.fail(new Adapter.AdapterError({ reason: "network_error", detail: "gone" }))
      )
      const replies = [broken, Stream.fromIterable(called("kept")), Stream.fromIterable(said)]
      const model = Adapter.layer({ stream: () => replies[requests++]! })
      const opened = yield* Session.open("s")
      const kept = yield* Session.keep(
        opened,
        (session) => Session.reply(session, "go", { tools: [note], retryReply: Schedule.recurs(1) })
      ).pipe(Effect.provide(model))
      assert.strictEqual(kept.value.result.outcome._tag, "Completed")
      const store = yield* Session.Store
      const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
      assert.deepStrictEqual(
        records.map(({ _tag }) => _tag),
        [
          "Opened",
          "RunStarted",
          "ReplyReceived",
          "StepPrepared",
          "ReplyReceived",
          "CallStarted",
          "CallEnded",
          "StepCompleted",
          "StepCompleted",
          "RunEnded"
        ]
      )
      assert.deepStrictEqual(Journal.check(records), [])
      assert.deepStrictEqual(
        kept.session.thread.messages.flatMap(({ toolCallId = [] }) => toolCallId),
        ["kept"]
      )
    }).pipe(Effect.provide(Layer.fresh(Session.Store.layerMemory))))
})
