/**
 * A worker for `steers.ts` to send messages into and to kill. Its runs make three calls and then answer. A session that begins
 * with "research" has a sub-agent of a sub-agent at work first.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { SessionStore } from "heddle/sql"
import { Script } from "heddle/testing"
import * as Database from "./database.ts"
import { settings } from "./session.ts"

const look = Tool.make("look", {
  parameters: {},
  idempotent: true,
  handler: () => Effect.as(Effect.sleep("40 millis"), "seen")
})

/** The innermost run, started by a handler. */
const inner = Tool.make("inner", {
  parameters: {},
  idempotent: true,
  handler: () => Effect.as(Effect.orDie(Chat.run("deep", { tools: [look], maxTurns: 10_000 })), "found")
})

const outer = Tool.fromChat("outer", { parameters: {}, chat: () => Chat.stream("middle", { tools: [inner, look] }) })

/** The first call of the runs that start a sub-agent, by their first message. */
const nesting: Readonly<Record<string, readonly [id: string, name: string]>> = {
  research: ["c0", "outer"],
  middle: ["c1", "inner"]
}

/** Calls of the innermost run: at least so many, and as many as it takes until it has a message. */
const few = 8

const replyTo = ({ messages }: Adapter.Request) => {
  const [first = "", ...later] = messages.filter(({ role }) => role === "user").map(Message.text)
  const replies = messages.filter(({ role }) => role === "assistant")
  const answered = replies.findLastIndex(({ toolCalls = [] }) => toolCalls.length === 0)
  const calls = replies.length - answered - 1
  const isAtWork = first === "deep" ? calls < few || later.length === 0 : calls < 3
  const [id, name] = replies.length === 0 ? nesting[first] ?? [] : []
  const reply = isAtWork
    ? [Script.toolCall(id ?? `c${messages.length}`, name ?? "look"), Script.finish("tool_calls")]
    : [Script.text("Done."), Script.finish("stop")]
  return Script.make([reply])
}

const model = Adapter.layer({
  stream: (request) => Stream.unwrap(Effect.map(replyTo(request), (script) => script.stream(request)))
})

/** Tells whether a record gives a message to a run, or to the journal of one. */
const isGiving = (record: Journal.Record): boolean =>
  record._tag === "MessageForwarded" || record._tag === "StepPrepared" && record.delivered !== undefined

/** Appends of such records take their time, so that withdrawals come before some of them. */
const slowed = Effect.map(Session.Store, (store) =>
  Session.Store.of({
    ...store,
    append: (...args) => {
      const [, , records] = args
      return Effect.delay(store.append(...args), records.some(isGiving) ? "40 millis" : 0)
    }
  }))

const store = Layer.effect(Session.Store, slowed).pipe(
  Layer.provide(SessionStore.layer),
  Layer.provide(Database.client(settings.server))
)

const worker = Worker.layer({ run: () => ({ tools: [look, outer] }), term: "1 second", poll: "50 millis" })

await Effect.runPromise(
  Effect.andThen(
    Database.made(settings.server),
    Layer.launch(Layer.provide(worker, Layer.merge(store, model)))
  ).pipe(Effect.provide(Logger.layer([])))
)
