/**
 * A stop reaches nested runs at every depth, also through handlers that block interruption: these run to their end, and
 * the runs that they wait for are stopped. The whole takes one grace period and not one for each level, and only the
 * handler that does not stop is named.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Message, Policy, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"

type AnyTool = Tool.Tool<string, any, any, any, never>

const stopAt = 50

const modelFor = (name: string) =>
  Script.layer([
    [Script.toolCall(`call of ${name}`, name), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

/** A run in a run, so many times, around a tool. */
const nested = (depth: number, interrupt: "cancel" | "block", leaf: AnyTool): AnyTool => {
  if (depth === 0) return leaf
  const inner = nested(depth - 1, interrupt, leaf)
  return Tool.fromChat(`level${depth}`, {
    parameters: {},
    interrupt,
    chat: () => Stream.provide(Chat.stream("go", { tools: [inner], toolTimeout: "infinity" }), modelFor(inner.name))
  }) as AnyTool
}

type Run = Stream.Stream<Event.Event, unknown, Adapter.Adapter>

/** The ways in which a run is stopped. */
const stops: { readonly [how: string]: (tool: AnyTool) => Effect.Effect<unknown, unknown, Adapter.Adapter> } = {
  softly: (tool) => Stream.runDrain(Chat.stream("go", { tools: [tool], cancel: Effect.sleep(stopAt) }) as Run),
  "by interruption": (tool) =>
    Effect.gen(function*() {
      const run = yield* Effect.forkChild(Stream.runDrain(Chat.stream("go", { tools: [tool] }) as Run))
      yield* Effect.sleep(stopAt)
      yield* Fiber.interrupt(run)
    }),
  "by a reply that breaks": (tool) =>
    Chat.stream("go", { tools: [tool], policy: { ...Policy.standard, start: "onCallReady" } }).pipe(
      Stream.provide(Script.layer([
        [Script.toolCall("c0", tool.name), Script.delay(stopAt), Script.streamError("network_error")]
      ])),
      Stream.runDrain
    ),
  "by a timeout": (tool) => {
    const timed = { ...tool, timeout: undefined } as unknown as AnyTool
    return Stream.runDrain(Chat.stream("go", { tools: [timed], toolTimeout: stopAt }) as Run)
  }
}

/** By this clock each look at the time is a moment later than the one before, while the stop goes from run to run. */
const hesitating = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.clockWith((clock) => {
    let looks = 0
    const currentTimeMillisUnsafe = (): number => {
      const now = clock.currentTimeMillisUnsafe()
      if (now === stopAt) looks++
      return now + 0.01 * looks
    }
    const moving = { ...clock, currentTimeMillisUnsafe, currentTimeMillis: Effect.sync(currentTimeMillisUnsafe) }
    return Effect.provideService(effect, Clock.Clock, moving)
  })

const stopped = (how: keyof typeof stops, tool: AnyTool) =>
  Effect.gen(function*() {
    const abandoned: Array<string> = []
    const noting = Logger.make(({ message }) => {
      for (const { name } of (message as ReadonlyArray<unknown>)[1] as ReadonlyArray<Event.Abandoned>) {
        abandoned.push(name)
      }
    })
    const run = stops[how]?.(tool) ?? Effect.die("no such stop")
    const report = yield* Simulation.run(
      hesitating(run).pipe(
        Effect.provide(modelFor(tool.name)),
        Effect.provideService(Logger.CurrentLoggers, new Set([noting]))
      )
    )
    assert.strictEqual(report.exit?._tag, "Success")
    return { took: report.millis - stopAt, sleeping: report.sleeping, abandoned }
  })

describe("a stop of nested runs", () => {
  for (const interrupt of ["cancel", "block"] as const) {
    for (const how of Object.keys(stops)) {
      for (const depth of [1, 2, 3]) {
        it.effect(`law 3: stopped ${how}, runs ${depth} deep (${interrupt}) end when the innermost handler has cleaned up`, () =>
          Effect.gen(function*() {
            const working = Effect.onInterrupt(Effect.sleep("1 hour"), () => Effect.sleep(100))
            const leaf = Tool.make("leaf", { parameters: {}, interrupt: "cancel", handler: () => working })
            const left = yield* stopped(how, nested(depth, interrupt, leaf))
            assert.deepStrictEqual(left, { took: 100, sleeping: 0, abandoned: [] })
          }))

        it.effect(`law 11: stopped ${how}, runs ${depth} deep (${interrupt}) name only the handler that does not stop`, () =>
          Effect.gen(function*() {
            const refusing = Effect.uninterruptible(Effect.never)
            const leaf = Tool.make("leaf", { parameters: {}, handler: () => refusing })
            const { took, ...left } = yield* stopped(how, nested(depth, interrupt, leaf))
            assert.deepStrictEqual(left, { sleeping: 0, abandoned: ["leaf"] })
            assert.isAtMost(took, 5000)
            assert.isAbove(took, 4800)
          }))
      }
    }
  }

  it.effect("law 11: a run started by an abandoned handler asks its model for nothing", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const model = Script.layer([[Script.text("hello"), Script.finish("stop")]])
      const inner = (name: string) =>
        Effect.map(Stream.runCollect(Stream.provide(Chat.stream("go"), model)), (events) => {
          seen.push([name, events[0]?._tag])
        })
      const late = Effect.andThen(Effect.sleep("1 minute"), inner("given up"))
      const cleaning = Effect.onInterrupt(Effect.never, () => inner("cleaning up"))
      for (const handler of [Effect.uninterruptible(late), cleaning]) {
        const tool = Tool.make("subject", { parameters: {}, handler: () => Effect.orDie(handler) })
        const run = Effect.timeoutOption(ToolRunner.run([Message.toolCall("c0", "subject")], [tool]), stopAt)
        yield* Simulation.run(Effect.andThen(run, Effect.sleep("1 hour")))
      }
      assert.deepStrictEqual(seen, [["given up", "ChatCompleted"], ["cleaning up", "MessageStarted"]])
    }))

  it.effect("law 3: a run started by a blocking handler after the stop is cancelled softly", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const inner = Chat.stream("go", { tools: [] }).pipe(
        Stream.provide(modelFor("nobody")),
        Stream.tap((event) => Effect.sync(() => asked.push(event._tag)))
      )
      const late = Effect.andThen(Effect.sleep(100), Stream.runDrain(inner))
      const tool = Tool.make("late", { parameters: {}, interrupt: "block", handler: () => Effect.orDie(late) })
      const left = yield* stopped("by interruption", tool as AnyTool)
      assert.deepStrictEqual(left, { took: 50, sleeping: 0, abandoned: [] })
      assert.deepStrictEqual(asked, ["ChatCompleted"])
    }))
})
