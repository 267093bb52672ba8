/**
 * What the compiler knows of the bridges: models of every version of the AI SDK's interface are taken as they are, and a
 * toolkit's tools keep the types of its schemas.
 */
import type { LanguageModelV2, LanguageModelV3, LanguageModelV4 } from "@ai-sdk/provider"
import type * as AiError from "effect/ai/AiError"
import type * as LanguageModel from "effect/ai/LanguageModel"
import * as AiTool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { type Adapter, Chat, type Tool } from "heddle"
import type * as Bridges from "heddle/bridges"
import * as AiSdk from "heddle/bridges/ai-sdk"
import * as EffectAi from "heddle/bridges/effect-ai"
import { describe, expect, test } from "tstyche"

declare const v4: LanguageModelV4
declare const v3: LanguageModelV3
declare const v2: LanguageModelV2

class Weather extends Context.Service<Weather, { readonly celsius: (city: string) => Effect.Effect<number> }>()(
  "test/Weather"
) {}

class Approver extends Context.Service<Approver, { readonly asks: Effect.Effect<boolean> }>()("test/Approver") {}

const toolkit = Toolkit.make(
  AiTool.make("weather", {
    parameters: Schema.Struct({ city: Schema.String, day: Schema.DateFromString }),
    success: Schema.Struct({ celsius: Schema.Finite }),
    failure: Schema.String,
    dependencies: [Weather]
  }),
  AiTool.make("ping")
)

describe("AiSdk", () => {
  test("models of every version of the SDK's interface are models", () => {
    expect<AiSdk.LanguageModel>().type.toBeAssignableFrom(v4)
    expect<AiSdk.LanguageModel>().type.toBeAssignableFrom(v3)
    expect<AiSdk.LanguageModel>().type.toBeAssignableFrom(v2)
    expect(AiSdk.layer({ model: v4 })).type.toBe<Layer.Layer<Adapter.Adapter>>()
  })

  test("a name, and a model of another kind, are none", () => {
    expect(AiSdk.layer).type.not.toBeCallableWith({ model: "gpt-5" })
    expect(AiSdk.layer).type.not.toBeCallableWith({ model: { ...v4, specificationVersion: "v1" as const } })
  })
})

describe("EffectAi", () => {
  test("the adapter needs a language model", () => {
    expect(EffectAi.layer()).type.toBe<Layer.Layer<Adapter.Adapter, never, LanguageModel.LanguageModel>>()
  })

  test("tools need the toolkit's handlers, and are what its tools are", () => {
    const tools = EffectAi.tools(toolkit)
    type Handlers = AiTool.Handler<"weather"> | AiTool.Handler<"ping">
    expect<Effect.Services<typeof tools>>().type.toBe<Handlers>()
    type Made = Effect.Success<typeof tools>[number]
    type Weathers = Extract<Made, { readonly name: "weather" }>
    expect<Tool.Params<Weathers>>().type.toBe<{ readonly city: string; readonly day: Date }>()
    expect<Tool.Success<Weathers>>().type.toBe<{ readonly celsius: number }>()
    expect<Tool.Failure<Weathers>>().type.toBe<string | AiError.AiError>()
    expect<Tool.Services<Weathers>>().type.toBe<Weather>()
    expect<Tool.Services<Extract<Made, { readonly name: "ping" }>>>().type.toBe<never>()
  })

  test("a run with them requires their services, and those of the approval hooks", () => {
    const run = Effect.flatMap(EffectAi.tools(toolkit), (tools) => Chat.run("Hi", { tools }))
    type Handlers = AiTool.Handler<"weather"> | AiTool.Handler<"ping">
    expect<Effect.Services<typeof run>>().type.toBe<Adapter.Adapter | Weather | Handlers>()
    const approve = () => Effect.flatMap(Approver, ({ asks }) => asks)
    const approved = Effect.flatMap(EffectAi.tools(toolkit, { approve }), (tools) => Chat.run("Hi", { tools }))
    expect<Effect.Services<typeof approved>>().type.toBe<Adapter.Adapter | Approver | Weather | Handlers>()
  })
})

test("both bridges are exported from one entry, too", () => {
  expect<typeof Bridges>().type.toHaveProperty("AiSdk")
  expect<typeof Bridges>().type.toHaveProperty("EffectAi")
})
