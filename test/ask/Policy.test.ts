/**
 * Policies: the presets name a value for every knob, and the defaults of an application reach every run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Chat, Policy, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import { chatOf, echo, transcript } from "../support/scenarios.ts"

const callEcho = [Script.toolCall("c0", "echo", { x: 1 }), Script.finish("tool_calls")]
const done = [Script.text("done"), Script.finish("stop")]

describe("Policy", () => {
  it("the presets standard and allm are whole policies and survive JSON", () => {
    for (const preset of [Policy.standard, Policy.allm]) {
      const json = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(Policy.Policy)(preset)))
      assert.deepStrictEqual(Schema.decodeUnknownSync(Policy.Policy)(json), preset)
    }
  })

  it("R-102, R-103, R-139, R-140, R-141: the presets differ in the fields in which their sources differ", () => {
    assert.strictEqual(Policy.standard.unknownTool, "answer")
    assert.strictEqual(Policy.allm.unknownTool, "failTurn")
    assert.strictEqual(Policy.standard.toolTurn, "presence")
    assert.strictEqual(Policy.allm.toolTurn, "finishReason")
    assert.strictEqual(Policy.standard.toolEvents, "live")
    assert.strictEqual(Policy.allm.toolEvents, "grouped")
    assert.strictEqual(Policy.standard.badArguments, "answer")
    assert.strictEqual(Policy.allm.badArguments, "runWithHeaderArguments")
    assert.strictEqual(Policy.standard.adapterErrors, "keepFirst")
    assert.strictEqual(Policy.allm.adapterErrors, "lastWins")
  })

  it("a policy with an unknown value or a missing field does not decode", () => {
    const decode = Schema.decodeUnknownResult(Policy.Policy)
    assert.isTrue(Result.isFailure(decode({ ...Policy.standard, unknownTool: "ignore" })))
    const { toolTurn: _, ...partial } = Policy.standard
    assert.isTrue(Result.isFailure(decode(partial)))
  })
})

describe("Policy.Defaults", () => {
  it.effect("R-123, R-124: model, sampling, tools and policy of the application reach the request", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([Script.toolCall("c0", "echo"), Script.finish("stop")])
      const defaults: Policy.Defaults = {
        model: "m",
        temperature: 0.5,
        maxTokens: 10,
        tools: [echo],
        policy: Policy.allm
      }
      const step = yield* Step.run("go").pipe(
        Effect.provide(Layer.merge(model.layer, Layer.succeed(Policy.Defaults, defaults)))
      )
      const [request] = yield* model.requests
      assert.deepInclude(request, { model: "m", temperature: 0.5, maxTokens: 10 })
      assert.deepStrictEqual(request?.tools.map((tool) => tool.name), ["echo"])
      assert.isTrue(step.done, "under allm the finish reason stop keeps tools from running")
    }))

  it.effect("a given option wins over the application's default, and an undefined option does not", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done, done])
      const layer = Layer.merge(model.layer, Layer.succeed(Policy.Defaults, { temperature: 0.5, model: "m" }))
      yield* Step.run("go", { temperature: 1, model: "n" }).pipe(Effect.provide(layer))
      yield* Step.run("go", { temperature: undefined }).pipe(Effect.provide(layer))
      const [first, second] = yield* model.requests
      assert.deepInclude(first, { model: "n", temperature: 1 })
      assert.deepInclude(second, { model: "m", temperature: 0.5 })
    }))

  it.effect("R-124: a caller's tool replaces the application's tool of the same name, and other tools follow", () =>
    Effect.gen(function*() {
      const shout = Tool.make("echo", { parameters: {}, handler: () => Effect.succeed("ECHO") })
      const other = Tool.make("other", { parameters: {} })
      const late = Tool.make("late", { parameters: {} })
      const model = yield* Script.make([callEcho, done])
      const result = yield* Chat.run("go", { tools: [late, shout] }).pipe(
        Effect.provide(Layer.merge(model.layer, Layer.succeed(Policy.Defaults, { tools: [echo, other] })))
      )
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.tools.map((tool) => tool.name), ["echo", "other", "late"])
      assert.include(transcript(result.thread), "TM(c0,ECHO)")
    }))

  it.effect("C-04, R-170: the application's max_turns applies when the caller gives null, and the caller's number wins", () =>
    Effect.gen(function*() {
      const layer = Layer.succeed(Policy.Defaults, { maxTurns: 2 })
      const scripts = [callEcho, callEcho, callEcho, done]
      const { result, model } = yield* chatOf(scripts, { tools: [echo], maxTurns: null as never }).pipe(
        Effect.provide(layer)
      )
      assert.deepStrictEqual(result.outcome, { _tag: "MaxTurns", maxTurns: 2 })
      assert.strictEqual(yield* model.opens, 2)
      const own = yield* chatOf(scripts, { tools: [echo], maxTurns: 3 }).pipe(Effect.provide(layer))
      assert.deepStrictEqual(own.result.outcome, { _tag: "MaxTurns", maxTurns: 3 })
    }))
})
