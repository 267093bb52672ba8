/**
 * A run is left when the scope closes in which it is read, also when another fiber closes it while the reader is still
 * in a pull: what opens later is closed at once, and the pull does not continue.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Tool } from "heddle"
import { Script, Simulation } from "heddle/testing"

type Pulled = ReadonlyArray<string> | "end"

/** Pulls a run from a fiber of its own until it ends, and closes its scope from outside after some milliseconds. */
const leftAfter = <E, R>(millis: number, events: Stream.Stream<Event.Event, E, R>) =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    const pull = yield* Stream.toPull(events).pipe(Effect.provideService(Scope.Scope, scope))
    const pulled: Array<Pulled> = []
    const once = Effect.matchCause(pull, {
      onSuccess: (some): Pulled => some.map(({ _tag }) => _tag),
      onFailure: (): Pulled => "end"
    })
    const reading = Effect.gen(function*() {
      while (pulled.at(-1) !== "end") pulled.push(yield* once)
    })
    const reader = yield* Effect.forkDetach(reading)
    yield* Effect.sleep(millis)
    yield* Scope.close(scope, Exit.void)
    const until = pulled.length
    yield* Fiber.join(reader)
    return pulled.slice(until)
  })

const simulated = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.flatMap(Simulation.run(effect), ({ exit, sleeping }) => {
    assert.strictEqual(sleeping, 0)
    return exit ?? Effect.die("it does not end")
  })

/** An adapter whose connection takes its time to open. */
const slowly = (millis: number, replies: Script.Input) => {
  const seen = { opened: 0, closed: 0 }
  const connection = Effect.acquireRelease(
    Effect.andThen(
      Effect.sleep(millis),
      Effect.sync(() => {
        seen.opened++
      })
    ),
    () =>
      Effect.sync(() => {
        seen.closed++
      })
  )
  const layer = Layer.effect(
    Adapter.Adapter,
    Adapter.Adapter.useSync(({ stream }) => ({
      stream: (request: Adapter.Request) => Stream.unwrap(Effect.as(connection, stream(request)))
    }))
  ).pipe(Layer.provide(Script.layer(replies)))
  return { seen, layer }
}

const answer: ReadonlyArray<Script.Entry> = [Script.text("Done."), Script.finish("stop")]

describe("a run whose scope another fiber closes", () => {
  for (const isCancellable of [false, true]) {
    it.effect(`a run${isCancellable ? " with a cancel signal" : ""} closes a connection that opens after its scope has closed`, () =>
      Effect.gen(function*() {
        for (const millis of [5, 10, 29, 31]) {
          const { layer, seen } = slowly(30, [answer])
          const options = isCancellable ? { cancel: new AbortController().signal } : {}
          const after = yield* simulated(Effect.provide(leftAfter(millis, Chat.stream("go", options)), layer))
          assert.deepStrictEqual(after.filter((some) => some.includes("StepCompleted")), [], `after ${millis} ms`)
          assert.strictEqual(seen.closed, seen.opened, `after ${millis} ms`)
        }
      }))
  }

  it.effect("a run whose scope has closed starts no tool and completes no step, where delta events are hidden", () =>
    Effect.gen(function*() {
      const replies = [
        [Script.toolCall("c", "wait"), Script.delay(5), Script.text("a"), Script.delay(5), Script.finish("tool_calls")],
        answer
      ]
      for (const interrupt of ["cancel", "block"] as const) {
        const tool = Tool.make("wait", { parameters: {}, interrupt, handler: () => Effect.void })
        for (let millis = 1; millis < 10; millis += 2) {
          const events = Chat.stream("go", { tools: [tool], emitTextDeltas: false, emitToolDeltas: false })
          const after = yield* simulated(Effect.provide(leftAfter(millis, events), Script.layer(replies)))
          const told = after.flat().filter((tag) => tag.startsWith("ToolExecution") || tag === "StepCompleted")
          assert.deepStrictEqual(told, [], `after ${millis} ms`)
        }
      }
    }))

  it.effect("a run whose scope closes inside haltWhen makes no further request", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.toolCall("c", "note"), Script.finish("tool_calls")],
        answer
      ])
      const note = Tool.make("note", { parameters: {}, handler: () => Effect.void })
      const haltWhen = () => Effect.as(Effect.uninterruptible(Effect.sleep(20)), false)
      const after = yield* simulated(
        Effect.provide(leftAfter(10, Chat.stream("go", { tools: [note], haltWhen })), model.layer)
      )
      assert.deepStrictEqual(after, ["end"])
      assert.deepStrictEqual([yield* model.opens, yield* model.cleanups], [1, 1])
    }))
})
