/**
 * The model of the program that is killed: turns with calls, and an answer. What it replies follows from the request alone,
 * so that it says the same to every process.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Journal, Session } from "heddle"
import { Script } from "heddle/testing"
import { turns } from "./turns.ts"

const { finish, text, toolCall, usage } = Script

/** The answer: of a run that may call no tools any more, and of one that may. */
export const answers = ["Both orders are paid.", "Both orders are paid, and nothing is left."] as const

/** The reply with these calls, or the answer. The ids of calls are the same at each asking, or new ones. */
const reply = (turn: number, calls: Turns[number] | undefined, prefix: string, isClosing: boolean): Script.Input => {
  const answer = answers[isClosing ? 0 : 1]
  return [
    calls === undefined
      ? [text(answer.slice(0, 12)), text(answer.slice(12)), usage({ inputTokens: 30, outputTokens: 5 }), finish("stop")]
      : [
        text("One moment."),
        ...calls.map(([name, args], index) => toolCall(`${prefix}${turn}-${index}`, name, args)),
        usage({ inputTokens: 10 * (turn + 1), outputTokens: 3 }),
        finish("tool_calls")
      ]
  ]
}

/** The ids that the model gives its calls. */
export type Ids = "same" | "new"

type Turns = typeof turns

let asked = 0

/** The calls that a reply waits for, by their ids, until their ends are in the journal. */
const awaited = new Map<string, Deferred.Deferred<void>>()

/** The store, which tells the model what it has. */
const telling = (store: Journal.Service): Journal.Service => ({
  ...store,
  append: (id, expected, records, options) =>
    Effect.tap(store.append(id, expected, records, options), () =>
      Effect.sync(() => {
        for (const record of records) {
          const end = record._tag === "CallEnded" ? awaited.get(record.message.toolCallId ?? "") : undefined
          if (end !== undefined) Deferred.doneUnsafe(end, Effect.void)
        }
      }))
})

/**
 * The reply as it arrives. It goes on after the end of the call that only reads, which starts meanwhile: the start and the
 * end of that call stand before the reply in the journal. A call that does not start early is not waited for long.
 */
const arriving = (events: ReturnType<Adapter.Service["stream"]>): typeof events => {
  let end: Deferred.Deferred<void> | undefined
  return Stream.tap(events, (event) =>
    Effect.gen(function*() {
      if (end !== undefined) yield* Effect.ignore(Effect.timeout(Deferred.await(end), "5 seconds"))
      end = undefined
      if (event._tag !== "ToolCallCompleted" || event.name !== "lookup") return
      end = Deferred.makeUnsafe()
      awaited.set(event.id, end)
    }))
}

/** The model, which calls tools while it may and there are turns left. */
const adapter = (ids: Ids, calls: Turns): Adapter.Service => ({
  stream: (request) =>
    Stream.unwrap(Effect.suspend(() => {
      // A question to the user is a message without calls.
      const turn = request.messages.filter(({ toolCalls = [] }) => toolCalls.length > 0).length
      const prefix = ids === "same" ? "call-" : `call-${process.pid}-${asked++}-`
      const isClosing = request.toolChoice === "none"
      const script = reply(turn, isClosing ? undefined : calls[turn], prefix, isClosing)
      return Effect.map(Script.make(script), (script) => arriving(script.stream(request)))
    }))
})

/** The model, and the store that it knows the ends of calls from. */
export const layer = <E, R>(
  store: Layer.Layer<Session.Store, E, R>,
  ids: Ids,
  calls: Turns = turns
): Layer.Layer<Adapter.Adapter | Session.Store, E, R> =>
  Layer.merge(
    Layer.effect(Session.Store, Effect.map(Session.Store, telling)).pipe(Layer.provide(store)),
    Layer.succeed(Adapter.Adapter, adapter(ids, calls))
  )
