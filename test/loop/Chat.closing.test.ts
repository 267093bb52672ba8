/**
 * When a run is stopped, its connection to the model is closed first, whatever its handlers do: a provider whose
 * reply is no longer read must not go on generating. Each of the four adapters reads from a real server, which reports
 * when it saw the close.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Tool } from "heddle"
import * as Loopback from "../../scratchpad/conformance/loopback.ts"
import { type Wire, wires } from "../support/wires.ts"

/** Longer than the test waits: a run that closes its connection after its handlers, which wait for the close, does not end. */
const grace = "10 minutes"

/** A server that makes a call, and then says nothing more; `closed` fires when it sees that its answer is not read. */
const serve = (wire: Wire, onClose: () => void): Effect.Effect<string, never, Scope.Scope> =>
  Loopback.listen((_request, response) => {
    response.on("close", onClose)
    response.writeHead(200, { "content-type": "text/event-stream" })
    response.write(wire.calling.join(""))
  })

type Run = Stream.Stream<Event.Event, unknown, Adapter.Adapter>

/** What is stopped, and when its tool has started. */
interface Subject {
  readonly run: (cancel?: AbortSignal) => Run
  readonly started: Effect.Effect<void>
}

type Stop = (subject: Subject) => Effect.Effect<unknown, unknown, Adapter.Adapter>

/** Pulls until the tool has started, and then does something else. */
const reading = <A>(
  subject: Subject,
  next: () => Promise<{ readonly done?: boolean }>,
  leave: () => Promise<A>
): Effect.Effect<void> =>
  Effect.gen(function*() {
    const read = Effect.promise(async () => {
      while ((await next()).done !== true);
    })
    const reader = yield* Effect.forkChild(read, { startImmediately: true })
    yield* subject.started
    yield* Effect.promise(leave)
    yield* Fiber.join(reader)
  })

const stops: { readonly [way: string]: Stop } = {
  "soft cancel": (subject) =>
    Effect.gen(function*() {
      const controller = new AbortController()
      const reader = yield* Effect.forkChild(Stream.runDrain(subject.run(controller.signal)))
      yield* subject.started
      controller.abort()
      yield* Fiber.join(reader)
    }),
  "interrupt": (subject) =>
    Effect.gen(function*() {
      const reader = yield* Effect.forkChild(Stream.runDrain(subject.run()))
      yield* subject.started
      yield* Fiber.interrupt(reader)
    }),
  "Stream.take": (subject) =>
    subject.run().pipe(
      Stream.takeUntil((event) => event._tag === "ToolExecutionStarted"),
      Stream.runDrain
    ),
  "iterator return": (subject) =>
    Effect.gen(function*() {
      const iterator = (yield* Stream.toAsyncIterableEffect(subject.run()))[Symbol.asyncIterator]()
      return yield* reading(subject, () => iterator.next(), async () => iterator.return?.())
    }),
  "reader cancel": (subject) =>
    Effect.gen(function*() {
      const reader = (yield* Stream.toReadableStreamEffect(subject.run())).getReader()
      return yield* reading(subject, () => reader.read(), () => reader.cancel())
    })
}

/** Stops one run, and waits until its server has seen the close. */
const closing = (wire: Wire, stop: Stop, interrupt: "cancel" | "block"): Effect.Effect<void> =>
  Effect.scoped(Effect.gen(function*() {
    const closed = yield* Deferred.make<void>()
    const started = yield* Deferred.make<void>()
    const order: Array<string> = []
    const url = yield* serve(wire, () => {
      order.push("closed")
      Deferred.doneUnsafe(closed, Effect.void)
    })
    // It ends when the server has seen the close, and not before.
    const deaf = Effect.andThen(Deferred.succeed(started, undefined), Deferred.await(closed)).pipe(
      Effect.ensuring(Effect.sync(() => void order.push("handler ended"))),
      interrupt === "block" ? (effect) => effect : Effect.uninterruptible
    )
    const look = Tool.make("look", { parameters: {}, readOnly: true, interrupt, handler: () => deaf })
    const note = Tool.make("note", { parameters: {}, handler: () => Effect.void })
    yield* stop({
      run: (cancel) => Chat.stream("go", { tools: [look, note], grace, ...(cancel === undefined ? {} : { cancel }) }),
      started: Deferred.await(started)
    }).pipe(Effect.provide(wire.layer(url)), Effect.orDie)
    yield* Deferred.await(closed)
    assert.deepStrictEqual(order, ["closed", "handler ended"])
  }))

describe("closing the connection of a stopped run", () => {
  for (const [protocol, wire] of Object.entries(wires)) {
    for (const [way, stop] of Object.entries(stops)) {
      it.live(`M-02: ${protocol}, stopped by ${way}: the connection closes before a deaf or a blocking handler ends`, () =>
        Effect.gen(function*() {
          for (const interrupt of ["cancel", "block"] as const) {
            for (let round = 0; round < 5; round++) yield* closing(wire, stop, interrupt)
          }
        }))
    }
  }
})

/** A server that writes so many pieces of a reply and no more; `written` when they are out, `closed` when it is not read. */
const serveUntil = (pieces: ReadonlyArray<string>, reads: number, written: () => void, closed: () => void) =>
  Loopback.listen((_request, response) => {
    response.on("close", closed)
    response.writeHead(200, { "content-type": "text/event-stream" })
    response.flushHeaders()
    const write = (index: number): void => {
      if (index === reads) return written()
      response.write(pieces[index], () => setImmediate(() => write(index + 1)))
    }
    write(0)
  })

describe("a run stopped at every read of the wire", () => {
  for (const [protocol, wire] of Object.entries(wires)) {
    for (const how of ["soft", "hard"] as const) {
      it.live(
        `M-02, law 3: ${protocol}, ${how} stop: the server sees the close and no handler stays alive`,
        () =>
          Effect.gen(function*() {
            const pieces = [...wire.calling, ...wire.rest.slice(0, -1)]
            for (let reads = 0; reads <= pieces.length; reads++) {
              yield* Effect.scoped(Effect.gen(function*() {
                const written = yield* Deferred.make<void>()
                const closed = yield* Deferred.make<void>()
                const url = yield* serveUntil(
                  pieces,
                  reads,
                  () => Deferred.doneUnsafe(written, Effect.void),
                  () => Deferred.doneUnsafe(closed, Effect.void)
                )
                let alive = 0
                const handler = () =>
                  Effect.suspend(() => {
                    alive++
                    return Effect.ensuring(Effect.never, Effect.sync(() => alive--))
                  })
                const look = Tool.make("look", { parameters: {}, readOnly: true, handler })
                const note = Tool.make("note", { parameters: {}, handler })
                const controller = new AbortController()
                const run = Chat.run("go", { tools: [look, note], grace, cancel: controller.signal })
                const fiber = yield* Effect.forkChild(Effect.provide(run, wire.layer(url)))
                yield* Deferred.await(written)
                if (how === "soft") controller.abort()
                else fiber.interruptUnsafe()
                const exit = yield* Fiber.await(fiber)
                assert.strictEqual(exit._tag, how === "soft" ? "Success" : "Failure", `after ${reads} reads`)
                assert.strictEqual(alive, 0, `after ${reads} reads`)
                yield* Deferred.await(closed)
              }))
            }
          })
      )
    }
  }
})
