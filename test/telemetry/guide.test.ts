/** The five lines of the guide to telemetry, as a user has them, against a collector on the loopback address. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Guide from "../server/support/guide.ts"
import { collector } from "../support/collector.ts"
import { withEnvironment } from "../support/examples.ts"
import * as PageModel from "../support/pageModel.ts"

describe("the guide to telemetry", () => {
  it.live("W-16: five lines of the guide send the spans and the metrics of a run to a collector", () =>
    Effect.gen(function*() {
      const example = Guide.exampleOf("docs/telemetry.md", "http://localhost:4318")
      assert.isAtMost(Guide.linesOf(example), 5)
      const { bodies, url } = yield* collector
      yield* Effect.acquireRelease(Effect.promise(PageModel.start), (stop) => Effect.sync(stop))
      const code = withEnvironment(example.code.replace("http://localhost:4318", url))
      const file = Guide.write("telemetry.ts", { ...example, code })
      yield* Effect.promise(() => import(file))
      const spans = (bodies.get("/v1/traces") ?? []).flatMap((body) => body.resourceSpans[0].scopeSpans[0].spans)
      assert.deepStrictEqual(
        spans.map(({ name }: { readonly name: string }) => name).toSorted(),
        ["POST", "chat gpt-5-mini", "heddle.step", "invoke_agent clerk"]
      )
      const metrics = (bodies.get("/v1/metrics") ?? []).flatMap((body) =>
        body.resourceMetrics[0].scopeMetrics[0].metrics
      )
      assert.include(metrics.map(({ name }: { readonly name: string }) => name), "gen_ai.invoke_agent.duration")
    }).pipe(Effect.scoped))
})
