/**
 * What the compiler knows of an executor: which services it needs where it is made, which tools it takes, and what it
 * tells.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import { Message, StreamingToolExecutor, Tool } from "heddle"
import { describe, expect, test } from "tstyche"

class Weather extends Context.Service<Weather, { readonly celsius: number }>()("test/Weather") {}

class Stop extends Context.Service<Stop, { readonly requested: Effect.Effect<void> }>()("test/Stop") {}

const plain = Tool.make("plain", { parameters: {}, handler: () => Effect.succeed(1) })

const needy = Tool.make("needy", { parameters: {}, handler: () => Effect.map(Weather, ({ celsius }) => celsius) })

const call = Message.toolCall("a", "plain")

declare const executor: StreamingToolExecutor.StreamingToolExecutor
declare const weatherly: StreamingToolExecutor.StreamingToolExecutor<Weather>

describe("StreamingToolExecutor", () => {
  test("it needs a scope, and what its tools need, where it is made", () => {
    expect(StreamingToolExecutor.make()).type.toBe<
      Effect.Effect<StreamingToolExecutor.StreamingToolExecutor, never, Scope.Scope>
    >()
    expect(StreamingToolExecutor.make<Weather>()).type.toBe<
      Effect.Effect<StreamingToolExecutor.StreamingToolExecutor<Weather>, never, Scope.Scope | Weather>
    >()
  })

  test("what stops it may need services, too", () => {
    const signal = Effect.flatMap(Stop, ({ requested }) => requested)
    expect(StreamingToolExecutor.make({ signal })).type.toBe<
      Effect.Effect<StreamingToolExecutor.StreamingToolExecutor<Stop>, never, Scope.Scope | Stop>
    >()
    expect(StreamingToolExecutor.make).type.toBeCallableWith({ signal: new AbortController().signal })
  })

  test("it takes tools that need nothing else, and calls that name none", () => {
    expect(executor.addTool).type.toBeCallableWith(call, plain)
    expect(executor.addTool).type.toBeCallableWith(call, undefined)
    expect(executor.addTool).type.not.toBeCallableWith(call, needy)
    expect(weatherly.addTool).type.toBeCallableWith(call, needy)
    expect(weatherly.addTool).type.toBeCallableWith(call, plain)
    expect(weatherly.addTool(call, needy)).type.toBe<Effect.Effect<void>>()
  })

  test("its results never fail and require no service", () => {
    expect(weatherly.completedResults).type.toBe<Effect.Effect<ReadonlyArray<StreamingToolExecutor.Update>>>()
    expect(weatherly.remainingResults).type.toBe<Stream.Stream<StreamingToolExecutor.Update>>()
    expect<NonNullable<StreamingToolExecutor.Update["result"]>["data"]>().type.toBe<unknown>()
  })
})
