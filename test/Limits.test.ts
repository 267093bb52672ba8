import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Limits, Message, Tool, ToolRunner } from "heddle"
import type { Adapter, Event } from "heddle"
import { Script, Simulation } from "heddle/testing"

const anything = { type: "object" } as const

const succeeded = <A, E>(report: Simulation.Report<A, E>): A => {
  if (report.exit !== undefined && Exit.isSuccess(report.exit)) return report.exit.value
  return assert.fail(
    `the run did not succeed: ${report.exit === undefined ? "it hung" : Cause.pretty(report.exit.cause)}`
  )
}

/** Counts who is running, by name. */
class Gauge {
  now = 0
  most = 0
  total = 0

  readonly during = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.suspend(() => {
      this.now++
      this.total++
      this.most = Math.max(this.most, this.now)
      return Effect.ensuring(effect, Effect.sync(() => this.now--))
    })
}

const callsOf = (name: string, count: number) =>
  Array.from({ length: count }, (_, index) => Script.toolCall(`${name}${index}`, name))

/** A model that calls a tool some times, and then says that it is done. */
const caller = (name: string, count: number) =>
  Script.layer([[...callsOf(name, count), Script.finish("tool_calls")], [Script.text("done"), Script.finish("stop")]])

/** A tree of runs: at the bottom a tool that works, above it runs as tools. */
const tree = (
  depth: number,
  width: number,
  leaf: Tool.Tool<string, any, any, any, never>,
  options: Chat.Options = {}
): Stream.Stream<Event.Event, Chat.ChatError> => {
  const tool = depth === 1
    ? leaf
    : Tool.fromChat("agent", { parameters: {}, chat: () => tree(depth - 1, width, leaf) })
  const run: Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter> = Chat.stream("go", {
    ...options,
    tools: [tool]
  })
  return Stream.provide(run, caller(tool.name, width))
}

const leafOf = (gauge: Gauge, millis = 10) =>
  Tool.make("leaf", { parameters: {}, handler: () => gauge.during(Effect.as(Effect.sleep(millis), "leaf")) })

const lastOf = (events: ReadonlyArray<Event.Event>): Event.ChatResult => {
  const last = events.at(-1)
  return last?._tag === "ChatCompleted" ? last.result : assert.fail("the stream did not complete")
}

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

  it.effect("the bound of the outermost run is that of the whole tree, down to a single permit", () =>
    Effect.gen(function*() {
      for (const maxConcurrency of [1, 2, 3]) {
        const gauge = new Gauge()
        const report = yield* Simulation.run(Stream.runCollect(tree(3, 3, leafOf(gauge), { maxConcurrency })))
        assert.strictEqual(lastOf(succeeded(report)).outcome._tag, "Completed")
        assert.deepStrictEqual([gauge.total, gauge.most], [27, maxConcurrency])
      }
    }))

  it.effect("a tree that is interrupted in the middle leaves nothing, and its permits come back", () =>
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

  it.effect("a handler holds no permit while its run is alive, and has one again when it goes on", () =>
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

  it.effect("runs of one handler that overlap give the permit back once", () =>
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

  it.effect("a run that its handler gave up on gives the handler its permit back", () =>
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

  it("a bound that is no positive integer is refused", () => {
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

  it.effect("at most so many handlers run under a name that the arguments make", () =>
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

  it.effect("names are shared by tools and by runs, and are forgotten when nobody uses them", () =>
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

  it.effect("the timeout of a call starts when it has its permits", () =>
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

  it.effect("where two tools give one name different numbers, the smaller holds", () =>
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

  it.effect("a name function that throws costs its call, and no permit", () =>
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

  it("limits that cannot be used are refused when the tool is made", () => {
    for (
      const limits of [{}, [{}], [{ key: "a", permits: 0 }], [{ key: 1, permits: 1 }], [{ key: "a", permits: 1.5 }]]
    ) {
      assert.throws(() => Tool.make("tool", { parameters: {}, limits: limits as never }), /limits must be a list/)
    }
  })
})

describe("Limits: deadline", () => {
  const wait = (millis: number, more: { readonly interrupt?: "block" } = {}) =>
    Tool.make("wait", { parameters: anything, handler: () => Effect.as(Effect.sleep(millis), "waited"), ...more })

  const last = (delay: number) =>
    Script.layer([
      [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
      [Script.delay(delay), Script.text("last words"), Script.finish("stop")]
    ])

  it.effect("tools are stopped early enough for a last answer, which is asked for without tools", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.delay(100), Script.text("last words"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: "1 second" }),
          model.layer
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed" })
      assert.strictEqual(result.finalized, "deadline")
      assert.strictEqual(result.finalResponse?.outputText, "last words")
      assert.strictEqual(report.millis, 750 + 100)
      assert.include(String(result.steps[0]?.toolResults[0]?.content), "deadline")
      const [first, second] = yield* model.requests
      assert.isUndefined(first?.toolChoice)
      assert.strictEqual(second?.toolChoice, "none")
    }))

  it.effect("law 6: a structured answer after that says as well that the tools were stopped", () =>
    Effect.gen(function*() {
      const model = Script.layer([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.text("last words"), Script.finish("stop")],
        [Script.text("{}"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", {
            tools: [wait(60_000)],
            toolTimeout: "infinity",
            deadline: "1 second",
            structuredFinalize: true,
            responseFormat: { type: "json_object" }
          }),
          model
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.structuredFinalize, { pass1Halted: "completed" })
      assert.strictEqual(result.finalized, "deadline")
    }))

  it.effect("what is not done at the deadline is stopped softly", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(
        Effect.provide(
          Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: { after: 1000, reserve: 400 } }),
          last(500)
        )
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled" })
      assert.strictEqual(result.finalized, "deadline")
      assert.strictEqual(report.millis, 1000)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("where nothing is kept for a last answer, tools may use all of the time", () =>
    Effect.gen(function*() {
      const run = (millis: number) =>
        Simulation.run(Effect.provide(
          Chat.run("go", { tools: [wait(millis)], toolTimeout: "infinity", deadline: { after: 1000, reserve: 0 } }),
          last(50)
        ))
      const inTime = yield* run(900)
      assert.deepStrictEqual(succeeded(inTime).outcome, { _tag: "Completed" })
      assert.isUndefined(succeeded(inTime).finalized)
      assert.strictEqual(succeeded(inTime).steps[0]?.toolResults[0]?.content, "waited")
      assert.strictEqual(inTime.millis, 950)
      const late = yield* run(60_000)
      assert.deepStrictEqual(succeeded(late).outcome, { _tag: "Cancelled" })
      assert.include(String(succeeded(late).steps[0]?.toolResults[0]?.content), "deadline")
      assert.deepStrictEqual([late.millis, late.sleeping], [1000, 0])
    }))

  it.effect("a run that is done in time does not notice its deadline", () =>
    Effect.gen(function*() {
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [wait(10)], deadline: "1 second" }), last(10))
      )
      const result = succeeded(report)
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.isUndefined(result.finalized)
      assert.strictEqual(report.millis, 20)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("a model that calls tools instead of answering at the end gets them answered unrun", () =>
    Effect.gen(function*() {
      const stubborn = Script.layer([
        [Script.toolCall("c0", "wait"), Script.finish("tool_calls")],
        [Script.toolCall("c1", "wait"), Script.finish("tool_calls")],
        [Script.text("never asked"), Script.finish("stop")]
      ])
      const report = yield* Simulation.run(
        Effect.provide(Chat.run("go", { tools: [wait(60_000)], toolTimeout: "infinity", deadline: 1000 }), stubborn)
      )
      const result = succeeded(report)
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled" })
      assert.strictEqual(result.steps.length, 2)
      assert.strictEqual(result.thread.messages.filter((message) => message.role === "tool").length, 2)
    }))

  it.effect("handlers and the runs they start inherit what is left, and can read it", () =>
    Effect.gen(function*() {
      const seen: Array<number> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: () =>
          Effect.gen(function*() {
            seen.push(Duration.toMillis(yield* Limits.remaining))
            return "ok"
          })
      })
      const agent = Tool.fromChat("agent", {
        parameters: {},
        chat: () =>
          Stream.provide(Chat.stream("go", { tools: [look], deadline: { after: "1 hour" } }), caller("look", 1))
      })
      const program = Chat.run("go", { tools: [agent, look], deadline: { after: 1000, reserve: 200 } }).pipe(
        Effect.provide(Script.layer([
          [Script.toolCall("c0", "look"), Script.toolCall("c1", "agent"), Script.finish("tool_calls")],
          [Script.text("done"), Script.finish("stop")]
        ]))
      )
      succeeded(yield* Simulation.run(program))
      assert.deepStrictEqual(seen, [800, 600])
    }))

  it.effect("a nest of three runs that never end by themselves leaves the outermost the time to answer", () =>
    Effect.gen(function*() {
      const gauge = new Gauge()
      const report = yield* Simulation.run(
        Stream.runCollect(tree(3, 2, leafOf(gauge, 1_000_000), { deadline: 500, toolTimeout: "infinity" }))
      )
      const result = lastOf(succeeded(report))
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.isUndefined(result.finalized, "the runs inside it were stopped in time for it to go on")
      assert.isBelow(report.millis, 375)
      assert.deepStrictEqual([gauge.now, report.sleeping], [0, 0])
    }))

  it.effect("a deadline that has passed lets nothing start", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([[Script.text("never"), Script.finish("stop")]])
      const run = Chat.run("go", { tools: [wait(1)] }).pipe(
        Effect.provide(model.layer),
        Effect.provideService(Limits.Deadline, -1)
      )
      const result = succeeded(yield* Simulation.run(run))
      assert.deepStrictEqual(result.outcome, { _tag: "Cancelled" })
      assert.strictEqual(yield* model.opens, 0)
    }))

  it.effect("deadlines that are no time are refused with what would be right", () =>
    Effect.gen(function*() {
      const refused: ReadonlyArray<readonly [Limits.DeadlineInput, string]> = [
        [0, "deadline must be a duration above zero"],
        [-1, "deadline must be a duration above zero"],
        [{ after: 0 }, "deadline.after must be a duration above zero"],
        [{ after: 10, reserve: -1 }, "deadline.reserve must be a duration of zero or more"]
      ]
      for (const [deadline, message] of refused) {
        const exit = yield* Effect.exit(Effect.provide(Chat.run("go", { deadline }), last(0)))
        assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), JSON.stringify(deadline))
        assert.include(Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "", message)
      }
    }))

  it.effect("without a deadline there is no end of time", () =>
    Effect.gen(function*() {
      assert.isFalse(Duration.isFinite(yield* Limits.remaining))
      const passed = yield* Effect.provideContext(Limits.remaining, Context.make(Limits.Deadline, -5))
      assert.strictEqual(Duration.toMillis(passed), 0)
    }))
})
