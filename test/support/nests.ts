/** A program whose runs start runs: what they append in which order, over all journals, and a store that has a part of it. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Journal, Message, Response, Session, Tool } from "heddle"
import * as States from "../../src/internal/session/state.ts"
import type { Deed } from "./survivor.ts"

/** A record, and the session that it is of. */
export interface Written {
  readonly id: string
  readonly record: Journal.Record
}

/** A store, in memory by default, that lists what it is given, in the order in which it was given. */
export const listing = <E = never>(
  written: Array<Written>,
  within: Layer.Layer<Session.Store, E> = Session.Store.layerMemory
): Layer.Layer<Session.Store, E> =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) =>
      Session.Store.of({
        ...store,
        append: (id, expected, records, options) =>
          Effect.tap(store.append(id, expected, records, options), () =>
            Effect.sync(() => {
              for (const record of records) written.push({ id, record })
            }))
      }))
  ).pipe(Layer.provide(within))

/** A store that takes so many records of nested runs, and then fails. */
export const refusing = (limit: number, written: Array<Written>): Layer.Layer<Session.Store> =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) => {
      let count = 0
      return Session.Store.of({
        ...store,
        append: (id, expected, records, options) => {
          if (id.includes("@")) count += records.length
          return count > limit && id.includes("@")
            ? new Journal.StoreError({ reason: "unavailable", operation: "append", id })
            : store.append(id, expected, records, options)
        }
      })
    })
  ).pipe(Layer.provide(listing(written)))

/** A store that has the first records of several journals, and lists what is written behind them. */
export const holding = <E = never>(
  before: ReadonlyArray<Written>,
  after: Array<Written> = [],
  within?: Layer.Layer<Session.Store, E>
): Layer.Layer<Session.Store> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const store = yield* Session.Store
    const states = new Map<string, States.State>()
    for (const { id, record } of before) {
      const state = states.get(id) ?? States.initial(id)
      states.set(id, state)
      States.apply(state, record)
      yield* store.append(id, yield* store.version(id), [record], { summary: States.summaryOf(state) })
    }
    after.length = 0
  })).pipe(Layer.provideMerge(listing(after, within)), Layer.orDie)

/** What a model says in a turn: the calls that it makes, or the last text. */
export type Turn = ReadonlyArray<readonly [id: string, name: string, args: Record<string, unknown>]> | string

const saidBy = (turn: Turn, number: number): ReadonlyArray<Event.AdapterEvent> => {
  const calls = typeof turn === "string" ? [] : turn
  const said = typeof turn === "string" ? turn : `turn ${number}`
  return [
    { _tag: "MessageStarted", message: Message.assistant("") },
    { _tag: "TextDelta", id: null, delta: said },
    { _tag: "TextCompleted", id: null, text: said },
    ...calls.flatMap(([id, name, args]): ReadonlyArray<Event.AdapterEvent> => [
      { _tag: "ToolCallStarted", id, name },
      { _tag: "ToolCallCompleted", id, name, arguments: args, rawArguments: JSON.stringify(args) }
    ]),
    {
      _tag: "MessageCompleted",
      message: Message.assistant(said, calls.map(([id, name, args]) => Message.toolCall(id, name, args))),
      finishReason: calls.length === 0 ? "stop" : "tool_calls",
      usage: Response.usage({ inputTokens: 10, outputTokens: number + 1 })
    }
  ]
}

/** A model that answers by who it is, which the first message says, and by how many turns the conversation has. In the turn `broken` it cannot be asked. */
export const casting = (
  parts: Readonly<Record<string, ReadonlyArray<Turn>>>,
  asked: Array<string> = [],
  broken?: string
): Layer.Layer<Adapter.Adapter> =>
  Adapter.layer({
    stream: ({ messages }) =>
      Stream.suspend(() => {
        const [first] = messages
        const part = first === undefined ? "" : Message.text(first)
        const turn = messages.filter(({ askUser, role }) => role === "assistant" && askUser !== true).length
        asked.push(`${part} ${turn}`)
        if (asked.at(-1) === broken) return Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
        return Stream.fromIterable(saidBy(parts[part]?.[turn] ?? "", turn))
      })
  })

/** A tool that has an effect on a world, once for each call. */
export const acting = (world: Array<Deed>, name: string) =>
  Tool.make(name, {
    parameters: {},
    handler: (_, call) =>
      Effect.sync(() => {
        world.push({ tool: name, key: call.idempotencyKey, attempt: call.attempt })
        return `${name} done`
      })
  })

/** A sub-agent of that name. */
export const agent = <const Tools extends ReadonlyArray<Tool.Any>>(name: string, tools: Tools) =>
  Tool.fromChat(name, { parameters: {}, chat: () => Chat.stream(name, { tools, requestId: `run of ${name}` }) })
