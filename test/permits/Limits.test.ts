import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Limits, Message, Tool, ToolRunner } from "heddle"
import { Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"
import { caller, Gauge, lastOf, leafOf, tree } from "../support/trees.ts"

const anything = { type: "object" } as const

describe("Limits: permits of the tree", () => {
  it.effect("a tree of depth 3 and width 5 under a bound of 8 never has more than 8 handlers in flight", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const report = yield* Simulation.run(
        Effect.provide(Stream.runCollect(tree(3, 5, leafOf(gauge))), Limits.layer({ permits: 8 }))
      )
      assert.strictEqual(lastOf(succeeded(report)).outcome._tag, "Completed")
      assert.strictEqual(gauge.total, 125)
      assert.strictEqual(gauge.most, 8)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("the bound of the outermost run applies to the whole tree, down to a single permit", () =>
    Effect.gen(function*() {
      for (const maxConcurrency of [1, 2, 3]) {
        const gauge = new Gauge()
        const report = yield* Simulation.run(Stream.runCollect(tree(3, 3, leafOf(gauge), { maxConcurrency })))
        assert.strictEqual(lastOf(succeeded(report)).outcome._tag, "Completed")
        assert.deepStrictEqual([gauge.total, gauge.most], [27, maxConcurrency])
      }
    }))

  it.effect("a tree interrupted in the middle leaves no running handler, and its permits come back", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const program = Effect.gen(function*() {
        yield* Effect.timeoutOption(Stream.runDrain(tree(3, 5, leafOf(gauge))), 35)
        const left = gauge.now
        const again = yield* Stream.runCollect(tree(2, 5, leafOf(gauge)))
        return { left, again }
      })
      const report = yield* Simulation.run(Effect.provide(program, Limits.layer({ permits: 4 })))
      const { again, left } = succeeded(report)
      assert.strictEqual(left, 0)
      assert.strictEqual(lastOf(again).outcome._tag, "Completed")
      assert.isAtMost(gauge.most, 4)
    }))

  it.effect("a handler holds no permit while its run is alive, and has one again when the handler continues", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const parent = Tool.make("parent", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            yield* gauge.during(Effect.sleep(5))
            yield* Stream.runDrain(tree(1, 2, leafOf(gauge)))
            yield* gauge.during(Effect.sleep(5))
            return "parent"
          })
      })
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [parent], maxConcurrency: 2 }), caller("parent", 4))
      )
      assert.strictEqual(succeeded(report).outcome._tag, "Completed")
      assert.deepStrictEqual([gauge.total, gauge.most], [16, 2])
    }))

  it.effect("overlapping runs of one handler give the permit back once", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const parent = Tool.make("parent", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            const runs = [tree(1, 2, leafOf(gauge, 10)), tree(1, 2, leafOf(gauge, 30))]
            yield* Effect.forEach(runs, Stream.runDrain, { concurrency: "unbounded" })
            yield* gauge.during(Effect.sleep(5))
          })
      })
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [parent], maxConcurrency: 2 }), caller("parent", 3))
      )
      assert.strictEqual(succeeded(report).outcome._tag, "Completed")
      assert.strictEqual(gauge.most, 2)
    }))

  it.effect("a run given up by its handler returns the handler's permit", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const parent = Tool.make("parent", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            yield* Effect.timeoutOption(Stream.runDrain(tree(1, 1, leafOf(gauge, 1000))), 20)
            yield* gauge.during(Effect.sleep(50))
          })
      })
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [parent], maxConcurrency: 2 }), caller("parent", 4))
      )
      assert.strictEqual(succeeded(report).outcome._tag, "Completed")
      assert.strictEqual(gauge.most, 2)
    }))

  it("a bound that is not a positive integer is refused", () => {
    for (const permits of [0, -1, 1.5, Number.NaN]) {
      assert.throws(() => Limits.layer({ permits }), /permits must be a positive integer/)
    }
  })
})

describe("Limits: permits by name", () => {
  const limited = (gauges: Map<string, Gauge>, permits: number) =>
    Tool.make("limited", {
      parameters: { tenant: Schema.String },
      limits: [{ key: ({ tenant }) => `tenant:${tenant}`, permits }],
      handler: ({ tenant }) => {
        const gauge = gauges.get(tenant) ?? new Gauge()
        gauges.set(tenant, gauge)
        return gauge.during(Effect.sleep(10))
      }
    })

  it.effect("at most the permitted number of handlers runs under a name made from the arguments", () =>
    Effect.gen(function*() {
      const gauges = new Map<string, Gauge>()
      const calls = ["a", "b", "a", "a", "b", "a"].map((tenant, index) =>
        Message.toolCall(`c${index}`, "limited", { tenant })
      )
      const report = yield* Simulation.run(
        Effect.provide(
          ToolRunner.run(calls, [limited(gauges, 2)], { maxConcurrency: 8 }),
          Limits.layer({ permits: 8 })
        )
      )
      assert.strictEqual(succeeded(report).messages.length, 6)
      assert.deepStrictEqual([gauges.get("a")?.most, gauges.get("a")?.total], [2, 4])
      assert.deepStrictEqual([gauges.get("b")?.most, gauges.get("b")?.total], [2, 2])
      assert.strictEqual(report.millis, 20)
    }))

  it.effect("tools and runs share names, and unused names are removed", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const tool = (name: string) =>
        Tool.make(name, {
          parameters: {},
          limits: [{ key: "disk", permits: 1 }],
          handler: () => gauge.during(Effect.sleep(10))
        })
      const run = ToolRunner.run([Message.toolCall("a", "read"), Message.toolCall("b", "write")], [
        tool("read"),
        tool("write")
      ], { maxConcurrency: 4 })
      const program = Effect.gen(function*() {
        const keyed = yield* Limits.Keyed
        yield* Effect.all([run, run], { concurrency: 2 })
        return keyed.size
      })
      const report = yield* Simulation.run(Effect.provide(program, Limits.layer({ permits: 8 })))
      assert.strictEqual(succeeded(report), 0)
      assert.deepStrictEqual([gauge.most, gauge.total], [1, 4])
      assert.strictEqual(report.millis, 40)
    }))

  it.effect("a call's timeout starts once the call has its permits", () =>
    Effect.gen(function*() {
      const tool = Tool.make("slow", {
        parameters: anything,
        limits: [{ key: "slow", permits: 1 }],
        timeout: 15,
        handler: () => Effect.as(Effect.sleep(10), "ok")
      })
      const calls = [0, 1, 2, 3].map((index) => Message.toolCall(`c${index}`, "slow"))
      const report = yield* Simulation.run(ToolRunner.run(calls, [tool], { maxConcurrency: 4 }))
      assert.deepStrictEqual(succeeded(report).messages.map((message) => message.content), ["ok", "ok", "ok", "ok"])
      assert.strictEqual(report.millis, 40)
    }))

  it.effect("where two tools give one name different numbers, the smaller number applies", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const tool = (name: string, permits: number) =>
        Tool.make(name, {
          parameters: {},
          limits: [{ key: "shared", permits }],
          handler: () => gauge.during(Effect.sleep(10))
        })
      const calls = ["wide", "wide", "narrow", "wide", "narrow"].map((name, index) =>
        Message.toolCall(`c${index}`, name)
      )
      const tools = [tool("wide", 3), tool("narrow", 2)]
      yield* Simulation.run(
        Effect.provide(ToolRunner.run(calls, tools, { maxConcurrency: 8 }), Limits.layer({ permits: 8 }))
      )
      assert.deepStrictEqual([gauge.total, gauge.most], [5, 2])
    }))

  it.effect("a name function that throws fails its call and takes no permit", () =>
    Effect.gen(function*() {
      const tool = Tool.make("broken", {
        parameters: anything,
        limits: [{
          key: () => {
            throw new Error("no name")
          },
          permits: 1
        }],
        handler: () => Effect.die("must not run")
      })
      const report = yield* Simulation.run(
        ToolRunner.run([Message.toolCall("a", "broken"), Message.toolCall("b", "broken")], [tool], {
          maxConcurrency: 1
        })
      )
      const { messages } = succeeded(report)
      assert.deepStrictEqual(messages.map((message) => message.isError), [true, true])
      assert.include(String(messages[0]?.content), "handler_raised")
    }))

  it("invalid limits are refused when the tool is made", () => {
    const wrong: ReadonlyArray<readonly [limits: unknown, message: string]> = [
      [{}, "limits must be a list of { key, permits }"],
      [[{}], "limits[0] must be { key, permits }"],
      [[{ key: "a", permits: 0 }], "limits[0].permits must be a positive integer; got: 0"],
      [[{ key: 1, permits: 1 }], "limits[0].key must be a string, or a function; got: 1"],
      [[{ key: "a", permits: 1 }, { key: "a", permits: 1.5 }], "limits[1].permits must be a positive integer; got: 1.5"]
    ]
    for (const [limits, message] of wrong) {
      assert.throws(
        () => Tool.make("tool", { parameters: {}, limits: limits as never }),
        `Tool.make("tool"): ${message}`
      )
    }
  })
})
