/**
 * A recorded transcript, answered by a real server and read by the adapter of its protocol: every answer of it by
 * itself, once for every cut, and a session also as the tool loop that it was.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message, Response, Step } from "heddle"
import { isDeepStrictEqual } from "node:util"
import * as Compare from "./compare.ts"
import * as Cuts from "./cuts.ts"
import type * as Fixtures from "./fixtures.ts"
import * as Loop from "./loop.ts"
import * as Protocols from "./protocols.ts"
import * as RoundTrip from "./roundTrip.ts"
import * as Server from "./server.ts"
import * as Session from "./session.ts"

/** What is wrong with a transcript, and at which cut; empty if nothing is. */
export interface Verdict {
  readonly fixture: Fixtures.Fixture
  readonly problems: ReadonlyArray<string>
}

interface Subject {
  readonly fixture: Fixtures.Fixture
  readonly protocol: Protocols.Protocol
  readonly turn: Fixtures.Turn
}

const question = [Message.user("go on")]

/** Reads one answer and runs no tool. May go on with an answer to every call, to see what goes back. */
const readTurn = (
  { fixture, protocol, turn }: Subject,
  cut: Cuts.Cut,
  goesOn: boolean
): Effect.Effect<Reading, never, Server.Server> =>
  Effect.gen(function*() {
    const replies = [{ answer: turn.answer, sizes: cut.sizes }]
    const session = (yield* Server.Server).open(replies)
    const target = { baseUrl: session.url, model: fixture.model, vendor: fixture.vendor }
    const adapter = Layer.provide(protocol.adapter(target), Server.client(replies))
    const events: Array<Event.Event> = []
    const run = (thread: ReadonlyArray<Message.Message>) => Step.stream(thread, { mode: "manual" })
    return yield* Effect.gen(function*() {
      const error = yield* run(question).pipe(
        Stream.runForEach((event) => Effect.sync(() => events.push(event))),
        Effect.match({ onFailure: (error) => error as Adapter.AdapterError, onSuccess: () => undefined })
      )
      const last = events.at(-1)
      if (last?._tag !== "StepCompleted") {
        return { ...Compare.failed(events, error), message: undefined, next: undefined }
      }
      const { response, thread } = last
      const answers = Response.actionableCalls(response).map(({ id }) => Message.answer(id, "done"))
      if (goesOn && thread.messages.length > question.length) {
        yield* Effect.exit(Stream.runDrain(run([...thread.messages, ...answers])))
      }
      return {
        events,
        response,
        error: response.error as Adapter.AdapterError | undefined,
        message: thread.messages[question.length],
        next: session.requests[1]
      }
    }).pipe(Effect.provide(adapter))
  })

interface Reading extends Compare.Reading {
  readonly message: Message.Message | undefined
  /** The request after it. */
  readonly next: string | undefined
}

const roundTripProblems = ({ protocol, turn }: Subject, { message, next, response }: Reading) => {
  if (next === undefined || response.error !== undefined) return []
  const sent = Session.read(protocol, next)
  return sent === undefined
    ? ["the next request is no JSON"]
    : RoundTrip.differences(turn.expected, response, message, next, sent)
}

/** Ids that were made up differ from reading to reading. */
const madeUp = /call_[0-9a-f]{12}7[0-9a-f]{19}/g

const comparable = (events: ReadonlyArray<Event.Event>): unknown =>
  JSON.parse(JSON.stringify(events.filter(({ _tag }) => _tag !== "StepCompleted")).replaceAll(madeUp, "made up"))

/** The number of replies that a recorded request of Chat Completions asks for. */
const countOf = ({ fixture, turn }: Subject): unknown =>
  fixture.protocol === "openai-chat" && turn.request !== undefined ? JSON.parse(turn.request).n : undefined

/** A request for several replies is refused, so that none of ours gets an answer with several. */
const refusalProblems = ({ fixture, protocol }: Subject, n: number) => {
  const target = { baseUrl: "http://127.0.0.1", model: fixture.model, vendor: fixture.vendor }
  const asked = Adapter.Adapter.useSync((adapter) => adapter.stream({ messages: question, tools: [], options: { n } }))
  return Stream.runDrain(Stream.unwrap(asked)).pipe(
    Effect.match({
      onFailure: ({ reason }) => reason === "unsupported_feature" ? [] : [`a request for ${n} replies: ${reason}`],
      onSuccess: () => [`a request for ${n} replies was sent`]
    }),
    Effect.provide(Layer.provide(protocol.adapter(target), Server.client([])))
  )
}

const replayTurn = (subject: Subject, index: number) =>
  Effect.gen(function*() {
    const { fixture, turn } = subject
    const count = countOf(subject)
    if (typeof count === "number" && count > 1) return yield* refusalProblems(subject, count)
    let first: unknown
    for (const cut of Cuts.all(turn.answer.body, turn.answer.chunkSizes)) {
      const reading = yield* readTurn(subject, cut, first === undefined)
      const events = comparable(reading.events)
      first ??= events
      const problems = [
        ...Compare.differences(turn.expected, turn.answer.status, reading),
        ...(isDeepStrictEqual(first, events) ? [] : ["the events differ from those of another cut"]),
        ...roundTripProblems(subject, reading)
      ]
      const place = fixture.isExchange ? `[turn ${index}, ${cut.name}]` : `[${cut.name}]`
      if (problems.length > 0) return problems.map((problem) => `${place} ${problem}`)
    }
    return []
  })

const firstCut = (cuts: ReadonlyArray<Cuts.Cut>): Cuts.Cut | undefined => cuts[0]

const lastCut = (cuts: ReadonlyArray<Cuts.Cut>): Cuts.Cut | undefined => cuts.at(-1)

/** Replays a transcript. */
export const replay = (fixture: Fixtures.Fixture): Effect.Effect<Verdict, never, Server.Server> =>
  Effect.gen(function*() {
    const protocol = Protocols.find(fixture.protocol)
    if (protocol === undefined) return { fixture, problems: [`there is no adapter for ${fixture.protocol}`] }
    const alone = yield* Effect.forEach(
      fixture.turns,
      (turn, index) => replayTurn({ fixture, protocol, turn }, index)
    )
    const ways = fixture.isExchange ? [firstCut, lastCut] : []
    const loops = yield* Effect.forEach(ways, (way) => Loop.replay(fixture, protocol, way))
    return { fixture, problems: [...alone.flat(), ...loops.find((problems) => problems.length > 0) ?? []] }
  })
