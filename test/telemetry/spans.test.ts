/**
 * The spans of whole runs, as golden files: a plain run, a failing tool, retries, a run in a run, and a session that waits
 * for an approval. `npx vitest run test/telemetry/spans.test.ts -u` writes the files.
 */
import { assert, describe, expect, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { type Adapter, Chat, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { overTime } from "../support/scenarios.ts"
import { modelOf, recording, treeOf } from "../support/spans.ts"

const { delay, finish, text, toolCall, usage } = Script

const weather = Tool.make("get_weather", {
  description: "The weather of a city",
  parameters: { city: Schema.String },
  handler: () => Effect.as(Effect.sleep(300), "rain")
})

const golden = <A, E>(
  name: string,
  program: Effect.Effect<A, E, Adapter.Adapter>,
  model: Layer.Layer<Adapter.Adapter>
) =>
  Effect.gen(function*() {
    const { spans, tracer } = recording()
    yield* overTime(Effect.exit(program.pipe(Effect.provide(model), Effect.withTracer(tracer))))
    for (const span of spans) assert.strictEqual(span.status._tag, "Ended", span.name)
    yield* Effect.promise(() => expect(treeOf(spans)).toMatchFileSnapshot(`../fixtures/spans/${name}.txt`))
  })

const counted = usage({ inputTokens: 40, outputTokens: 8, cachedInputTokens: 32, totalCost: 0.002 })
const done = [delay(100), text("It rains."), delay(50), counted, finish("stop")]

/** Under this policy a halt keeps the calls that wait from running. */
const policy = {
  ...Policy.standard,
  siblings: { ...Policy.standard.siblings, onHalt: "abortCancelable", queued: "skip" }
} as const

describe("the spans of whole runs", () => {
  it.effect("W-16: a plain run has the spans of its golden file", () =>
    golden(
      "plain",
      Chat.run("How is the weather?", {
        requestId: "run",
        sessionId: "session",
        tools: [weather],
        agent: { name: "clerk", id: "agent-1", description: "Answers questions", version: "3" },
        temperature: 0.2,
        maxTokens: 500,
        options: { seed: 7, top_p: 0.9, stop: ["END"] }
      }),
      modelOf([delay(200), toolCall("c0", "get_weather", { city: "Oslo" }), counted, finish("tool_calls")], done)
    ))

  it.effect("W-16, W-23: a run with failed, refused and skipped calls has the spans of its golden file", () => {
    const parameters = {}
    const tools = [
      Tool.make("broken", { parameters, handler: () => Effect.delay(Effect.fail({ secret: "of the handler" }), 50) }),
      Tool.make("crashing", { parameters, handler: () => Effect.die(new Error("secret of a defect")) }),
      Tool.make("slow", { parameters, timeout: 100, handler: () => Effect.never }),
      Tool.make("denied", { parameters, authorize: () => Effect.fail("secret reason"), handler: () => Effect.void }),
      Tool.make("over", { parameters, handler: () => Effect.succeed(Tool.halt("enough", null)) }),
      Tool.make("late", { parameters, concurrency: "exclusive", handler: () => Effect.void })
    ]
    const names = ["broken", "crashing", "slow", "denied", "ghost", "over", "late"]
    return golden(
      "failing",
      Chat.run("Go", { requestId: "run", tools, maxConcurrency: 1, policy }),
      modelOf([...names.map((name, index) => toolCall(`c${index}`, name)), finish("tool_calls")])
    )
  })

  it.effect("W-16: a run with a retried reply and a retried tool has the spans of its golden file", () => {
    let left = 2
    const flaky = Tool.make("flaky", {
      parameters: {},
      retry: Schedule.spaced(500),
      handler: () => Effect.suspend(() => left-- > 0 ? Effect.fail("busy") : Effect.succeed("ok"))
    })
    return golden(
      "retry",
      Chat.run("Go", { requestId: "run", tools: [flaky], retryReply: Schedule.spaced(1_000) }),
      modelOf(
        [delay(10), text("It"), Script.streamError("network_error")],
        [Script.preflightError("rate_limited")],
        [toolCall("c0", "flaky"), finish("tool_calls")],
        done
      )
    )
  })

  it.effect("W-16: a nested run has the spans of its golden file", () => {
    const researcher = Tool.fromChat("researcher", {
      parameters: {},
      chat: () => Chat.stream("Look it up", { requestId: "inner", tools: [weather] })
    })
    return golden(
      "nested",
      Chat.run("Go", { requestId: "outer", tools: [researcher], agent: { name: "clerk" } }),
      modelOf(
        [toolCall("c0", "researcher"), finish("tool_calls")],
        [toolCall("c0", "get_weather", { city: "Oslo" }), finish("tool_calls")],
        done,
        done
      )
    )
  })

  it.effect("W-16: a session that waits for an approval and continues has the spans of its golden file", () => {
    const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
    const options = { tools: [pay], agent: { name: "clerk" } }
    const program = Effect.gen(function*() {
      const waiting = yield* Session.keep(
        yield* Session.open("s1"),
        (session) => Session.reply(session, "Pay it", { ...options, requestId: "first" })
      )
      const approved = yield* Session.keep(waiting, (session) => Session.approve(session, "c0"))
      yield* Session.keep(approved, (session) => Session.continue(session, null, { ...options, requestId: "second" }))
    }).pipe(Effect.provide(Session.Store.layerMemory))
    return golden("approval", program, modelOf([toolCall("c0", "pay"), finish("tool_calls")], done))
  })

  it.effect("W-16: a resumed run links to its previous span, and does not ask the model for a known reply again", () => {
    let attempts = 0
    const steady = Tool.make("steady", {
      parameters: {},
      afterCrash: "retry",
      handler: () => Effect.suspend(() => ++attempts === 1 ? Effect.never : Effect.succeed("ok"))
    })
    const options = { tools: [steady], requestId: "run" }
    const program = Effect.gen(function*() {
      const opened = yield* Session.open("s1")
      const first = Session.keep(opened, (session) => Session.reply(session, "Go", options))
      yield* Effect.timeoutOption(first, 100)
      const cut = yield* Session.load("s1")
      yield* Session.resume(cut!, { ...options, takeOver: true })
    }).pipe(Effect.provide(Session.Store.layerMemory))
    return golden("resumed", program, modelOf([toolCall("c0", "steady"), finish("tool_calls")], done))
  })
})
