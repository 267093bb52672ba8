/** Calls in one turn under a tracer that keeps nothing: what spans cost, and what the layer of telemetry adds to them. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Tracer from "effect/Tracer"
import { Chat, Tool } from "heddle"
import { Telemetry } from "heddle/telemetry"
import { Script } from "heddle/testing"
import { median } from "../statistics.ts"
import { expect, repeated, type Workload } from "../workload.ts"

const counts = { full: 2_000, quick: 500, check: 20 }

const work = Tool.make("work", { parameters: { type: "object" }, handler: () => Effect.succeed("ok") })

const tracer = Layer.succeed(Tracer.Tracer, Tracer.make({ span: (options) => new Tracer.NativeSpan(options) }))

const layers = {
  off: Layer.empty,
  spans: tracer,
  failed: Layer.merge(tracer, Telemetry.layer({ capture: "none", toolSpans: "failed" })),
  layer: Layer.merge(tracer, Telemetry.layer({ capture: "none" })),
  content: Layer.merge(tracer, Telemetry.layer({ capture: "spans" }))
} as const

const perCall = async (layer: Layer.Layer<never>, count: number): Promise<number> => {
  const turn = Array.from({ length: count }, (_, index) => Script.toolCall(`c${index}`, "work", { index }))
  const once = async () => {
    const model = Script.layer([[...turn, Script.finish("tool_calls")], [Script.text("ok"), Script.finish("stop")]])
    const { steps } = await Chat.run("go", { tools: [work] }).pipe(
      Effect.provide([model, layer]),
      Effect.provideService(Metric.MetricRegistry, new Map()),
      Effect.runPromise
    )
    expect("calls", steps[0]?.response.toolCalls.length, count)
  }
  return median(await repeated(once, { least: 3, most: 20, millis: 1_000 })) * 1_000 / count
}

/** W11 */
export const spans: Workload = {
  title: "W11 spans",
  note:
    "One turn of 2,000 calls without a tracer, under one that keeps nothing, and under the layer of heddle/telemetry " +
    "beside it: with spans of failed calls only, with all spans and the metrics, and with the content; µs per call.",
  metrics: {
    off: { label: "no tracer" },
    spans: { label: "spans" },
    failed: { label: "metrics, failed only" },
    layer: { label: "spans, metrics" },
    content: { label: "and content" }
  },
  run: async ({ name }, size) => {
    if (name !== "Heddle") return {}
    const figures: Record<string, number> = {}
    for (const [key, layer] of Object.entries(layers)) figures[key] = await perCall(layer, counts[size])
    return figures
  }
}
