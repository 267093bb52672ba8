/**
 * What every adapter is tried for alike: how it reads what a network hands it, how much work that is, and that its
 * connections begin and end with their streams. The names of the tests stand where they are.
 */
import { assert } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import type { Adapter, Event } from "heddle"
import * as Server from "./server.ts"

/** The events of an adapter for the server at an address. */
export type Events = (url: string) => Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>

/** A client whose answer arrives in reads of exactly the given pieces, which no network would grant. */
export const reading = (pieces: Iterable<Uint8Array>) =>
  Stream.provideService(FetchHttpClient.Fetch, () => {
    const iterator = pieces[Symbol.iterator]()
    const source = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        const { done, value } = iterator.next()
        if (done === true) controller.close()
        else controller.enqueue(value)
      }
    })
    return Promise.resolve(new Response(source))
  })

/** A body says the same in whatever pieces it is written, over HTTP, and in whatever pieces it is read. */
export interface Cut<E> {
  readonly text: string
  readonly overHttp: (pieces: ReadonlyArray<Uint8Array>) => Effect.Effect<Said, E>
  readonly inReads: (pieces: ReadonlyArray<Uint8Array>) => Effect.Effect<Said, E>
}

interface Said {
  readonly error?: unknown
  readonly events: ReadonlyArray<Event.AdapterEvent>
}

const isSaid = ({ error, events }: Said, expected: Said, how: string): void => {
  assert.isUndefined(error, how)
  assert.deepStrictEqual(Server.anywhere(events), Server.anywhere(expected.events), how)
}

export const isWrittenAnyhow = <E>({ overHttp, text }: Cut<E>) =>
  Effect.gen(function*() {
    const expected = yield* overHttp(Server.pieces(text, text.length))
    for (const size of [1, 7, 100]) isSaid(yield* overHttp(Server.pieces(text, size)), expected, `pieces of ${size}`)
  })

/** Reads cut lines, line ends and code points. */
export const isReadAnyhow = <E>({ inReads, overHttp, text }: Cut<E>) =>
  Effect.gen(function*() {
    const expected = yield* overHttp(Server.pieces(text, text.length))
    for (const ends of ["\n", "\r\n", "\r"]) {
      for (const size of [1, 2, 3, 5, 1000]) {
        const said = yield* inReads(Server.pieces(text.replaceAll("\n", ends), size))
        isSaid(said, expected, `${JSON.stringify(ends)}, reads of ${size}`)
      }
    }
  })

/** Nothing is sent before the first pull, and each run sends a request of its own. */
export const sentWhenPulled = (events: Events, whole: string): Effect.Effect<void, Adapter.AdapterError> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => ({ pieces: [whole] }))
    const stream = events(server.url)
    yield* Effect.scoped(Stream.toPull(stream))
    assert.strictEqual(server.requests.length, 0)
    yield* Stream.runDrain(stream)
    yield* Stream.runDrain(stream)
    assert.strictEqual(server.requests.length, 2)
    assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 0 })
  }))

/** An answer that says a text and then nothing more. */
const waiting = (begun: string): Server.Answer => ({ pieces: [begun], ending: "open" })

/** A reader that leaves closes the socket, and the server sees it although it sends nothing more. */
export const closedByLeaving = (events: Events, begun: string): Effect.Effect<void, Adapter.AdapterError> =>
  Effect.scoped(Effect.gen(function*() {
    const server = yield* Server.serve(() => waiting(begun))
    const seen = yield* Stream.runCollect(Stream.take(events(server.url), 2))
    assert.deepStrictEqual(seen.map(({ _tag }) => _tag), ["MessageStarted", "TextDelta"])
    assert.deepStrictEqual(yield* server.settled, { answered: 1, left: 1 })
  }))

/** A reader that is interrupted closes the socket, within an answer and before it. */
export const closedByInterruption = (events: Events, begun: string): Effect.Effect<void> =>
  Effect.scoped(Effect.gen(function*() {
    const arrived = yield* Latch.make()
    const server = yield* Server.serve((_, index) => {
      if (index === 0) return waiting(begun)
      arrived.openUnsafe()
      return { pieces: [], ending: "open" }
    })
    const started = yield* Latch.make()
    const within = yield* Effect.forkChild(
      Stream.runForEach(events(server.url), (event) => event._tag === "TextDelta" ? started.open : Effect.void)
    )
    yield* started.await
    yield* Fiber.interrupt(within)
    const before = yield* Effect.forkChild(Stream.runDrain(events(server.url)))
    yield* arrived.await
    yield* Fiber.interrupt(before)
    assert.deepStrictEqual(yield* server.settled, { answered: 2, left: 2 })
  }))

class ModelServer extends Context.Service<ModelServer, Server.Server>()("test/ModelServer") {}

/** An adapter together with the server that it asks, for a suite that counts the connections between the two. */
export const served = (adapter: (url: string) => Layer.Layer<Adapter.Adapter>, answer: Server.Answer) =>
  Layer.provideMerge(
    Layer.unwrap(Effect.map(ModelServer, ({ url }) => adapter(url))),
    Layer.effect(ModelServer, Server.serve(() => answer))
  )

/** How many connections there were to that server, and how many of them have ended. */
export const counted = Effect.flatMap(
  ModelServer,
  (server) => Effect.map(server.settled, ({ answered }) => ({ opened: server.requests.length, closed: answered }))
)
