/**
 * Runs over replies that a test writes byte by byte: an adapter of each protocol over real HTTP, tools that note what they
 * were run with, and a second reply that ends the run.
 */
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { type Adapter, Chat, type Event, Tool } from "heddle"
import * as Adapters from "./adapters.ts"
import * as Server from "./server.ts"

export type Name = "chat" | "responses" | "anthropic" | "gemini"

export const protocols: { readonly [name in Name]: Adapters.Protocol } = {
  chat: Adapters.openAiChat,
  responses: Adapters.openAiResponses,
  anthropic: Adapters.anthropic,
  gemini: Adapters.gemini
}

export const names = Object.keys(protocols) as ReadonlyArray<Name>

/** A handler that ran: its tool, its arguments and the place of its call. */
export interface Ran {
  readonly name: string
  readonly args: unknown
  readonly index: number
}

type Options = Pick<Chat.Options, "policy" | "retryReply" | "emitToolDeltas">

export interface Played {
  readonly ran: ReadonlyArray<Ran>
  readonly events: ReadonlyArray<Event.Event>
  readonly outcome: Event.Outcome
  readonly result: Event.ChatResult | undefined
  readonly requests: ReadonlyArray<Server.Received>
}

const anything = { type: "object", properties: {} } as const

/** The tools `look` and `find`, of which the first may start early. */
const toolsOf = (ran: Array<Ran>) =>
  (["look", "find"] as const).map((name) =>
    Tool.make(name, {
      parameters: anything,
      readOnly: name === "look",
      handler: (args, { index }) => Effect.sync(() => void ran.push({ name, args, index })).pipe(Effect.as("seen"))
    })
  )

/** What a run comes to over an adapter whose server gives these answers, the last one for all further requests. */
const playedOver = (
  layer: (url: string) => Layer.Layer<Adapter.Adapter>,
  answers: ReadonlyArray<Server.Answer>,
  options: Options = {}
): Effect.Effect<Played> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve((_, index) => answers[Math.min(index, answers.length - 1)]!)
    const ran: Array<Ran> = []
    const events: Array<Event.Event> = []
    const run = Chat.run("go", {
      tools: toolsOf(ran),
      maxTurns: 3,
      onEvent: (event) => Effect.sync(() => void events.push(event)),
      ...options
    })
    const result = yield* Effect.result(run.pipe(Effect.provide(layer(server.url))))
    return {
      ran,
      events,
      requests: server.requests,
      result: result._tag === "Success" ? result.success : undefined,
      outcome: result._tag === "Success" ? result.success.outcome : { _tag: "Failed", error: result.failure }
    }
  }))

/** What a run comes to over a reply of a protocol, and a second reply that says "a". */
export const played = (
  name: Name,
  first: string | Server.Answer,
  options: Options = {}
): Effect.Effect<Played> => {
  const answer = typeof first === "string" ? { pieces: [first] } : first
  const { layer, whole } = protocols[name]
  return playedOver((url) => layer(url, { retries: 0 }), [answer, { pieces: [whole] }], options)
}

/** The handlers that ran, without the places of their calls. */
export const callsOf = ({ ran }: Played): ReadonlyArray<unknown> => ran.map(({ args, name }) => [name, args])

/** The reasons for which calls of the first reply lost their arguments, by name. */
export const lostOf = ({ events }: Played): ReadonlyArray<unknown> =>
  events.flatMap((event) =>
    event._tag === "ToolCallCompleted" && event.argumentsLost !== undefined ? [[event.name, event.argumentsLost]] : []
  )
