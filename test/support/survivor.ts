/** A program whose runs are interrupted: three turns, a tool of each kind, and a model that answers by the conversation alone. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, type Event, type Journal, Message, Response, Session, Tool } from "heddle"
import * as States from "../../src/internal/session/state.ts"

/** An effect on the world, with the key that the call had. */
export interface Deed {
  readonly tool: string
  readonly key: string
  readonly attempt: number
}

type AfterCrash = NonNullable<Parameters<typeof Tool.make>[1]["afterCrash"]>

/** The tools of the program, over a world. */
export const toolsOf = (world: Array<Deed>, afterCrash?: AfterCrash) => {
  const act = (tool: string, call: Tool.CallContext) =>
    Effect.sync(() => {
      world.push({ tool, key: call.idempotencyKey, attempt: call.attempt })
    })
  const lookup = Tool.make("lookup", {
    parameters: { of: Schema.String },
    success: Schema.Struct({ of: Schema.String, at: Schema.Date }),
    readOnly: true,
    handler: ({ of }, call) =>
      Effect.as(Effect.andThen(act("lookup", call), call.updateContext({ [of]: "seen" })), { of, at: new Date(0) })
  })
  const charge = Tool.make("charge", {
    parameters: { amount: Schema.Finite },
    ...(afterCrash === undefined ? {} : { afterCrash }),
    handler: ({ amount }, call) =>
      Effect.as(Effect.andThen(act("charge", call), call.updateContext({ [`paid${amount}`]: true })), `paid ${amount}`)
  })
  const mail = Tool.make("mail", {
    parameters: { to: Schema.String },
    idempotent: true,
    concurrency: "exclusive",
    handler: ({ to }, call) => Effect.as(act("mail", call), { to, sent: true })
  })
  return [lookup, charge, mail] as const
}

const turns: ReadonlyArray<ReadonlyArray<readonly [id: string, name: string, args: Record<string, unknown>]>> = [
  [["l0", "lookup", { of: "a" }], ["c0", "charge", { amount: 1 }], ["m0", "mail", { to: "ann" }]],
  [["c1", "charge", { amount: 2 }], ["l1", "lookup", { of: "b" }]],
  []
]

/** The events of a reply. */
const replyOf = (turn: number): ReadonlyArray<Event.AdapterEvent> => {
  const calls = turns[turn] ?? []
  const said = `turn ${turn}`
  return [
    { _tag: "MessageStarted", message: Message.assistant("") },
    { _tag: "ReasoningDelta", id: null, delta: `thinking ${turn}` },
    { _tag: "TextDelta", id: null, delta: said },
    { _tag: "TextCompleted", id: null, text: said },
    ...calls.flatMap(([id, name, args]): ReadonlyArray<Event.AdapterEvent> => [
      { _tag: "ToolCallStarted", id, name },
      { _tag: "ToolCallDelta", id, argumentsDelta: JSON.stringify(args) },
      { _tag: "ToolCallCompleted", id, name, arguments: args, rawArguments: JSON.stringify(args) }
    ]),
    {
      _tag: "MessageCompleted",
      message: Message.assistant(said, calls.map(([id, name, args]) => Message.toolCall(id, name, args))),
      finishReason: calls.length === 0 ? "stop" : "tool_calls",
      usage: Response.usage({ inputTokens: 10, outputTokens: turn + 1 }),
      responseId: `r${turn}`,
      model: "m"
    }
  ]
}

/** A model that answers by how many turns the conversation has, and counts how often it is asked. */
export const modelOf = (asked: Array<number>): Layer.Layer<Adapter.Adapter> =>
  Adapter.layer({
    stream: ({ messages }) =>
      Stream.suspend(() => {
        const turn = messages.filter(({ role }) => role === "assistant").length
        asked.push(turn)
        return Stream.fromIterable(replyOf(turn))
      })
  })

/** The records of a session. */
export const journalOf = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return Array.from(yield* Stream.runCollect(store.read(id)), ({ record }) => record)
  })

/** A store that has the first records of a journal. */
export const prefixed = (
  id: string,
  records: ReadonlyArray<Journal.Record>,
  base: Layer.Layer<Session.Store, unknown> = Session.Store.layerMemory
): Layer.Layer<Session.Store> =>
  Layer.effectDiscard(Effect.gen(function*() {
    const store = yield* Session.Store
    const [first, ...rest] = records
    const state = States.initial(id)
    for (const record of records) States.apply(state, record)
    if (first !== undefined) yield* store.append(id, 0, [first, ...rest], { summary: States.summaryOf(state) })
  })).pipe(Layer.provideMerge(base), Layer.orDie)
