/** What trying a run needs is what the run needs, without what is given for each attempt. */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { type Adapter, Chat, Tool } from "heddle"
import { type EveryStep, everyStep, Script } from "heddle/testing"
import { expect, test } from "tstyche"

class Weather extends Context.Service<Weather, { readonly celsius: number }>()("test/Weather") {}

const tool = Tool.make("weather", { parameters: {}, handler: () => Weather.useSync(({ celsius }) => celsius) })

const model = Script.layer([[Script.finish("stop")]])

test("a run that is given nothing needs its model and its services", () => {
  const tried = everyStep(Chat.stream("go", { tools: [tool] }))
  expect(tried).type.toBe<Effect.Effect<EveryStep.Report, never, Adapter.Adapter | Weather>>()
})

test("what the layer gives is not needed any more, and what it needs is", () => {
  const streamed = everyStep(({ cancel }) => Chat.stream("go", { tools: [tool], cancel }), { layer: model })
  expect(streamed).type.toBe<Effect.Effect<EveryStep.Report, never, Weather>>()
  const awaited = everyStep(Chat.run("go", { tools: [tool] }), { layer: model })
  expect(awaited).type.toBe<Effect.Effect<EveryStep.Report, never, Weather>>()
  const needy = {} as Layer.Layer<Adapter.Adapter, "no", Weather>
  expect(everyStep(Chat.stream("go"), { layer: needy })).type.toBe<
    Effect.Effect<EveryStep.Report, never, Weather>
  >()
})

test("a failure of the run is no failure of the attempt", () => {
  expect(everyStep({} as Effect.Effect<number, "no">)).type.toBe<Effect.Effect<EveryStep.Report>>()
})
