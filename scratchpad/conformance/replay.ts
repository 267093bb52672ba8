/**
 * A recorded transcript, answered by a real server and read by the adapter of its protocol, once for every cut.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Adapter, Collector, type Event, Message, Step } from "heddle"
import * as Compare from "./compare.ts"
import * as Cuts from "./cuts.ts"
import type * as Fixtures from "./fixtures.ts"
import * as Protocols from "./protocols.ts"
import * as Server from "./server.ts"

/** What is wrong with a transcript, and at which cut; empty if nothing is. */
export interface Verdict {
  readonly fixture: Fixtures.Fixture
  readonly problems: ReadonlyArray<string>
}

/** Reads one answer. No tool is run. */
const readTurn = (fixture: Fixtures.Fixture, protocol: Protocols.Protocol, turn: Fixtures.Turn, cut: Cuts.Cut) =>
  Effect.gen(function*() {
    const replies = [{ answer: turn.answer, sizes: cut.sizes }]
    const server = yield* Server.Server
    const { url } = server.open(replies)
    const adapter = protocol.adapter({ baseUrl: url, model: fixture.model, vendor: fixture.vendor })
    const events: Array<Event.Event> = []
    const error = yield* Step.stream([Message.user("go on")], { mode: "manual" }).pipe(
      Stream.runForEach((event) => Effect.sync(() => events.push(event))),
      Effect.provide(Layer.provide(adapter, Server.client(replies))),
      Effect.match({ onFailure: (error) => error as Adapter.AdapterError, onSuccess: () => undefined })
    )
    const last = events.at(-1)
    const failure = error === undefined ? [] : [{ _tag: "Error", error } as const]
    const response = last?._tag === "StepCompleted"
      ? last.response
      : Collector.toResponse(Collector.applyAll(Collector.initial(), [...events, ...failure]))
    return { events, response, error: error ?? response.error as Adapter.AdapterError | undefined }
  })

const replayTurn = (fixture: Fixtures.Fixture, protocol: Protocols.Protocol, turn: Fixtures.Turn, index: number) =>
  Effect.gen(function*() {
    for (const cut of Cuts.all(turn.answer.body, turn.answer.chunkSizes)) {
      const reading = yield* readTurn(fixture, protocol, turn, cut)
      const problems = Compare.differences(turn.expected, turn.answer.status, reading)
      const place = fixture.isExchange ? `[turn ${index}, ${cut.name}]` : `[${cut.name}]`
      if (problems.length > 0) return problems.map((problem) => `${place} ${problem}`)
    }
    return []
  })

/** Replays a transcript. */
export const replay = (fixture: Fixtures.Fixture): Effect.Effect<Verdict, never, Server.Server> =>
  Effect.gen(function*() {
    const protocol = Protocols.find(fixture.protocol)
    if (protocol === undefined) return { fixture, problems: [`there is no adapter for ${fixture.protocol}`] }
    const problems = yield* Effect.forEach(fixture.turns, (turn, index) => replayTurn(fixture, protocol, turn, index))
    return { fixture, problems: problems.flat() }
  })
