/** The usage of a run on its spans: by convention, and for viewers that add spans up. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Tracer from "effect/Tracer"
import { Chat, Tool } from "heddle"
import { Telemetry } from "heddle/telemetry"
import { Script } from "heddle/testing"

const look = Tool.make("look", { parameters: {}, handler: () => Effect.succeed({ n: 7 }) })

const model = () =>
  Script.layer([
    [Script.toolCall("c0", "look"), Script.usage({ inputTokens: 100, outputTokens: 10 }), Script.finish("tool_calls")],
    [Script.text("Done."), Script.usage({ inputTokens: 200, outputTokens: 20 }), Script.finish("stop")]
  ])

/** The usage of each span of a run with two model calls. */
const usagesOf = (dialects: ReadonlyArray<Telemetry.Dialect>) =>
  Effect.gen(function*() {
    const spans: Array<Tracer.NativeSpan> = []
    const tracer = Tracer.make({
      span: (options) => {
        const span = new Tracer.NativeSpan(options)
        spans.push(span)
        return span
      }
    })
    const result = yield* Chat.run("go", { tools: [look], agent: { name: "clerk" } }).pipe(
      Effect.provide(Layer.mergeAll(model(), Telemetry.layer({ capture: "spans", dialects }))),
      Effect.provideService(Tracer.Tracer, tracer)
    )
    assert.strictEqual(result.totalUsage?.inputTokens, 300)
    return spans.flatMap(({ attributes }) => attributes.get("gen_ai.usage.input_tokens") ?? [])
  })

describe("O-20: usage on spans", () => {
  it.effect("O-20: the usage on a run's span is the sum of its model calls by convention, and is absent under a dialect", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* usagesOf([]), [300, 100, 200])
      for (const dialects of [["langfuse"], ["openinference"], ["langfuse", "openinference"]] as const) {
        assert.deepStrictEqual(yield* usagesOf(dialects), [100, 200])
      }
    }))
})
