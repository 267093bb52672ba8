/**
 * What is kept up to a number: where it is full, a member that is already in is as one before it was full, and takes
 * nothing away from another.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Stream from "effect/Stream"
import { type Adapter, Message } from "heddle"
import { McpTools } from "heddle/mcp"
import * as Replies from "../../src/durable/internal/replies.ts"
import { names, type Operation } from "../../src/internal/telemetry.ts"
import * as Servers from "../../src/mcp/internal/servers.ts"
import * as Bounds from "../../src/server/internal/bounds.ts"
import * as Logs from "../../src/server/internal/log.ts"
import * as Metrics from "../../src/telemetry/internal/metrics.ts"
import { Fake } from "../mcp/support/fake.ts"

const numbered = (count: number, prefix = "n") => Array.from({ length: count }, (_, index) => `${prefix}${index}`)

describe("a full bounded collection that gets an existing member", () => {
  const attributes = {
    inference: [names.provider, names.model, names.responseModel, names.address, names.port, names.error],
    invoke_agent: [names.provider, names.agentName, names.model, names.error],
    execute_tool: [names.toolName, names.toolType, names.agentName, names.error]
  }
  const durations = {
    inference: "gen_ai.client.operation.duration",
    invoke_agent: "gen_ai.invoke_agent.duration",
    execute_tool: "gen_ai.execute_tool.duration"
  }

  for (const kind of ["inference", "invoke_agent", "execute_tool"] as const) {
    it.effect(`W-17: each metric attribute of ${kind} keeps its first hundred values, and later values count as _OTHER`, () =>
      Effect.gen(function*() {
        for (const attribute of attributes[kind]) {
          const context = Context.make(Metric.MetricRegistry, new Map())
          const values = [...numbered(100), "late", "n0", "n99", "later", "late", "n50", "n0"]
          for (const value of values) {
            const operation = {
              attributes: { [attribute]: value },
              seconds: 1,
              facts: { kind, inferenceCalls: 1, toolCalls: 1 },
              tracing: { context }
            }
            Metrics.ended(operation as unknown as Operation)
          }
          const metrics = yield* Effect.provide(Metric.snapshot, context)
          const counts = new Map<unknown, number>()
          for (const metric of metrics) {
            if (metric.id !== durations[kind] || metric.type !== "Histogram") continue
            const value = metric.attributes?.[attribute]
            counts.set(value, (counts.get(value) ?? 0) + metric.state.count)
          }
          const right = new Map<unknown, number>(numbered(100).map((value) => [value, 1]))
          for (const value of ["n0", "n99", "n50", "n0"]) right.set(value, right.get(value)! + 1)
          right.set("_OTHER", 3)
          assert.deepStrictEqual(counts, right, attribute)
        }
      }))
  }

  it.live("W-14: a tool among the first 10,000 stays trusted, and a tool past the bound is never trusted", () => {
    const tools = numbered(10_000).map((name) => ({ name }))
    const fake = new Fake(tools)
    const seen = new Map<string, boolean>()
    const isChanged = Effect.gen(function*() {
      seen.clear()
      for (const { approval, metadata } of yield* McpTools.tools) {
        // The approval of a tool that waits for none unless it has changed.
        seen.set((metadata!["mcp"] as { readonly name: string }).name, approval === true)
      }
    })
    return Effect.gen(function*() {
      yield* isChanged
      assert.isFalse(seen.get("n0"))
      for (const given of [[...tools, { name: "late" }], [{ name: "late" }, { name: "n5" }]]) {
        fake.change(given)
        yield* isChanged
        for (const [name, is] of seen) if (is !== (name === "late")) assert.fail(`${name}: isChanged is ${is}`)
        assert.strictEqual(seen.size, given.length)
      }
      fake.change([{ name: "n5", description: "Other" } as { readonly name: string }, ...tools.slice(0, 5)])
      yield* isChanged
      assert.deepStrictEqual([seen.get("n5"), seen.get("n0"), seen.size], [true, false, 6])
    }).pipe(Effect.provide(Servers.layerOf("shop", fake.connect, { approval: "none" })))
  }, 60_000)

  it.effect("W-09: an expected run is expected once, and only one more run replaces the oldest", () =>
    Effect.gen(function*() {
      const hub = new Logs.Hub(Bounds.standard, 0, yield* Effect.scope, {}, yield* Clock.Clock)
      const running = () => hub.running("n", () => true)
      const keys = numbered(10_000)
      for (const key of keys) assert.isTrue(hub.expect(key))
      for (const key of ["n0", "n5", "n9999"]) {
        assert.isFalse(hub.expect(key))
        assert.strictEqual(running().size, 10_000)
      }
      assert.isTrue(running().has("n0"))
      assert.isTrue(hub.expect("n10000"))
      assert.deepStrictEqual([running().size, running().has("n0"), running().has("n1")], [10_000, false, true])
    }).pipe(Effect.scoped))

  it.effect("O-57: keeping the reply of a session again removes no reply of another session", () =>
    Effect.gen(function*() {
      let asked = 0
      const adapter = {
        stream: () => {
          asked++
          return Stream.make(
            { _tag: "MessageStarted", message: Message.assistant("") },
            { _tag: "MessageCompleted", message: Message.assistant("Heard"), finishReason: "stop" }
          )
        }
      } as unknown as Adapter.Service
      const replies = new Replies.Unrecorded()
      const attempt = (id: string) =>
        Effect.gen(function*() {
          const before = asked
          const { adapter: own, keep } = replies.begin(id, adapter)
          const request = { run: { requestId: id, stepIndex: 0 } } as unknown as Adapter.Request
          yield* Stream.runDrain(own.stream(request) as Stream.Stream<unknown>)
          keep()
          return asked - before
        })
      for (const id of numbered(100)) assert.strictEqual(yield* attempt(id), 1)
      for (const id of ["n0", "n50", ...numbered(100)]) assert.strictEqual(yield* attempt(id), 0, id)
      assert.strictEqual(yield* attempt("n100"), 1)
      assert.strictEqual(yield* attempt("n99"), 0)
      assert.strictEqual(yield* attempt("n0"), 1)
    }))
})
