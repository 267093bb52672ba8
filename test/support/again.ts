/**
 * Runs that follow one another in a session, as an owner of sessions is to do them: what each message leads to, and what
 * is seen of it. The second run is compared with the same run alone.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"
import { agent } from "./nests.ts"

/** What a message leads to: a call of the model, and how often the model or the store fails before. */
export interface Scenario {
  readonly call?: string
  readonly fails?: { readonly times: number; readonly reason: Adapter.AdapterError["reason"] }
  /** How many of the appends of a reply the store refuses. */
  readonly refusals?: number
  /** Why the store refuses them. It is unavailable by default. */
  readonly reason?: Journal.StoreError["reason"]
}

/** What is seen of a run. */
export class Seen {
  readonly events: Array<unknown> = []
  readonly attempts: Array<string> = []
  readonly warnings: Array<string> = []
  requests = 0
  failed = 0
  refused = 0
}

/** The call of each sub-agent, by the name of the sub-agent, which is its prompt. */
const nested: Readonly<Record<string, string>> = { sub: "inner", chief: "asks" }

/** The events of a reply to the last thing that a user said. */
const replyTo = (
  messages: ReadonlyArray<Message.Message>,
  scenarios: Readonly<Record<string, Scenario>>
): ReadonlyArray<Event.AdapterEvent> => {
  const last = messages.findLastIndex(({ role }) => role === "user")
  const said = Message.text(messages[last]!)
  const call = messages.length - 1 === last ? scenarios[said]?.call ?? nested[said] : undefined
  // The id of a call comes back with the next call of its tool.
  const toolCalls = call === undefined ? [] : [Message.toolCall(call, call, {})]
  return [
    { _tag: "MessageStarted", message: Message.assistant("") },
    { _tag: "TextCompleted", id: null, text: "said" },
    ...toolCalls.flatMap(({ id, name }) => [
      { _tag: "ToolCallStarted", id, name } as const,
      { _tag: "ToolCallCompleted", id, name, arguments: {}, rawArguments: "{}" } as const
    ]),
    {
      _tag: "MessageCompleted",
      message: Message.assistant("said", toolCalls),
      finishReason: toolCalls.length === 0 ? "stop" : "tool_calls",
      metadata: { usage: { inputTokens: 3, outputTokens: 1 } }
    }
  ]
}

const isReplied = (records: Journal.Records): boolean =>
  records.some(({ _tag }) => _tag === "ReplyReceived" || _tag === "StepCompleted")

/** The tools, the model, the logger and the store of runs. `now` gives the run under way. */
export const worldOf = (
  scenarios: Readonly<Record<string, Scenario>>,
  now: () => { readonly seen: Seen; readonly scenario: Scenario }
) => {
  const begun = (name: string, { attempt }: Tool.CallContext) =>
    Effect.sync(() => {
      now().seen.attempts.push(`${name} ${attempt}`)
      return `did ${name}`
    })
  const act = (name: string) => Tool.make(name, { parameters: {}, handler: (_, call) => begun(name, call) })
  const asks = Tool.make("asks", {
    parameters: {},
    handler: (_, call) => Effect.as(begun("asks", call), Tool.askUser("which?"))
  })
  const tools = [
    act("act"),
    asks,
    agent("sub", [act("inner")]),
    agent("chief", [asks]),
    { ...act("gated"), approval: true },
    Tool.make("slow", { parameters: {}, handler: (_, call) => Effect.andThen(begun("slow", call), Effect.never) }),
    Tool.make("flaky", {
      parameters: {},
      retry: Schedule.recurs(2),
      handler: (_, call) =>
        Effect.flatMap(begun("flaky", call), (did) => call.attempt < 3 ? Effect.fail("again") : Effect.succeed(did))
    })
  ]
  const model = Adapter.layer({
    stream: ({ messages }) =>
      Stream.suspend(() => {
        const { scenario: { fails }, seen } = now()
        seen.requests++
        return fails !== undefined && seen.failed++ < fails.times
          ? Stream.fail(new Adapter.AdapterError({ reason: fails.reason }))
          : Stream.fromIterable(replyTo(messages, scenarios))
      })
  })
  const logger = Logger.layer([
    Logger.make(({ logLevel, message }) => {
      if (logLevel === "Warn") now().seen.warnings.push(String(Array.isArray(message) ? message[0] : message))
    })
  ])
  /** The store, which refuses as many replies as the scenario says. */
  const refusing = (store: Journal.Service): Journal.Service => ({
    ...store,
    append: (id, expected, records, options) =>
      Effect.suspend(() => {
        const { scenario: { reason = "unavailable", refusals = 0 }, seen } = now()
        if (!isReplied(records) || seen.refused >= refusals) return store.append(id, expected, records, options)
        seen.refused++
        return Effect.fail(new Journal.StoreError({ reason, operation: "append", id, record: records[0]._tag }))
      })
  })
  return {
    // What the tools need and fail with is of no account here.
    tools: tools as unknown as [],
    refusing,
    provided: (store: Journal.Service) => Layer.mergeAll(model, logger, Layer.succeed(Session.Store, store))
  }
}
