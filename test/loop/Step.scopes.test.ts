/**
 * What a step holds and when it lets go: the connection before any tool starts, the tools before the reader goes on, and
 * handlers that were given up within their grace period.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Channel from "effect/Channel"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Event, Message, Policy, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import { echo, only, overTime, start } from "../support/scenarios.ts"

const { finish, text, toolCall } = Script

const called: Event.AdapterEvent = {
  _tag: "ToolCallCompleted",
  id: "c0",
  name: "probe",
  arguments: {},
  rawArguments: "{}"
}

/** An adapter whose connection is open until the scope of its stream closes, however the stream itself ends. */
const connected = (reply: Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>) => {
  const closings: Array<Exit.Exit<unknown, unknown>> = []
  const stream = () =>
    Stream.fromChannel(Channel.fromTransform((_upstream, scope) =>
      Effect.andThen(
        Scope.addFinalizerExit(scope, (exit) => Effect.sync(() => void closings.push(exit))),
        Effect.provideService(Stream.toPull(reply), Scope.Scope, scope)
      )
    ))
  return { closings, layer: Adapter.layer({ stream }) }
}

describe("Step: the connection", () => {
  it.effect("R-144, P-19: a step closes its connection once, before a tool starts", () =>
    Effect.gen(function*() {
      const { closings, layer } = connected(Stream.make(called))
      const probe = Tool.make("probe", { parameters: {}, handler: () => Effect.sync(() => closings.length) })
      const step = yield* Effect.provide(Step.run(start, { tools: [probe] }), layer)
      assert.deepStrictEqual(step.toolResults, [Message.tool("c0", "1")])
      assert.strictEqual(closings.length, 1)
    }))

  it.effect("R-144: a step without tools or with a broken reply closes its connection before StepCompleted", () =>
    Effect.gen(function*() {
      const broken = Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
      for (const reply of [Stream.empty, Stream.concat(Stream.make(called), broken)]) {
        const { closings, layer } = connected(reply)
        const seen: Array<number> = []
        const onEvent = (event: Event.Event) =>
          event._tag === "StepCompleted" || event._tag === "ToolExecutionCompleted"
            ? void seen.push(closings.length)
            : undefined
        yield* Effect.provide(Step.run(start, { onEvent }), layer)
        assert.isNotEmpty(seen)
        assert.isTrue(seen.every((count) => count === 1))
      }
    }))

  it.effect("R-144: a step closes its connection after a first failure and when its reader is interrupted", () =>
    Effect.gen(function*() {
      const failure = Stream.fail(new Adapter.AdapterError({ reason: "timeout" }))
      const failed = connected(failure)
      yield* Effect.flip(Effect.provide(Step.run(start), failed.layer))
      assert.strictEqual(failed.closings.length, 1)
      const silent = connected(Stream.never)
      const fiber = yield* Effect.forkChild(Effect.provide(Step.run(start), silent.layer), { startImmediately: true })
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(silent.closings.length, 0)
      yield* Fiber.interrupt(fiber)
      assert.strictEqual(silent.closings.length, 1)
    }))
})

describe("Step: handlers that outlive their calls", () => {
  /** Times out after 10 ms, and takes a second to clean up. */
  const tidy = (log: Array<string>) =>
    Tool.make("tidy", {
      parameters: {},
      timeout: "10 millis",
      handler: () =>
        Effect.onInterrupt(Effect.never, () =>
          Effect.andThen(Effect.sleep("1 second"), Effect.sync(() => void log.push("tidied"))))
    })

  const script = [toolCall("c0", "tidy"), finish("tool_calls")]

  it.effect("R-144, O-09: a step waits for the clean-up of a call stopped by its timeout", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const model = yield* Script.make(script)
      const note = (name: string) => Effect.map(Clock.currentTimeMillis, (now) => void log.push(`${name} at ${now}`))
      yield* overTime(
        Step.stream(start, { tools: [tidy(log)] }).pipe(
          Stream.runForEach((event) => event._tag === "StepCompleted" ? note("step") : Effect.void),
          Effect.andThen(note("end")),
          Effect.provide(model.layer)
        )
      )
      assert.deepStrictEqual(log, ["tidied", "step at 1010", "end at 1010"])
    }))

  it.effect("R-144: a reader that leaves at StepCompleted has waited for the clean-up of a stopped call", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      const model = yield* Script.make(script)
      yield* overTime(
        Step.stream(start, { tools: [tidy(log)] }).pipe(
          Stream.takeUntil((event) => event._tag === "StepCompleted"),
          Stream.runDrain,
          Effect.andThen(Effect.sync(() => void log.push("end"))),
          Effect.provide(model.layer)
        )
      )
      assert.deepStrictEqual(log, ["tidied", "end"])
    }))
})

describe("Step: the policy of the application", () => {
  it.effect("R-132, P-14: an awaited step follows the application's policy", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([toolCall("c0", "echo"), finish("stop")])
      const layer = Layer.merge(model.layer, Layer.succeed(Policy.Defaults, { policy: Policy.allm }))
      const step = yield* Effect.provide(Step.run(start, { tools: [echo], mode: "manual" }), layer)
      assert.notProperty(step, "mode", "under allm there was nothing to run, by hand or not")
      assert.isTrue(step.done)
    }))

  it.effect("R-125: running one step stream twice asks the model twice", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[text("a"), finish("stop")], [text("b"), finish("stop")]])
      const stream = Step.stream(start).pipe(Stream.provide(model.layer))
      const texts = [yield* Stream.runCollect(stream), yield* Stream.runCollect(stream)].map((events) =>
        only(events, "TextCompleted")[0]?.text
      )
      assert.deepStrictEqual(texts, ["a", "b"])
    }))
})
