/**
 * A handler that refuses to stop is named in the result of the run that it belongs to, and in those of all runs around
 * it, by the calls that lead to it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Event, Message, Policy, Step, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"

type AnyTool = Tool.Tool<string, any, any, any, never>

const grace = 1000

const model = (id: string, name: string) =>
  Script.layer([
    [Script.toolCall(id, name), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

const deaf = Tool.make("deaf", {
  parameters: {},
  timeout: 50,
  handler: () => Effect.uninterruptible(Effect.never)
}) as AnyTool

const handling = (name: string, handler: () => Effect.Effect<unknown, unknown, never>): AnyTool =>
  Tool.make(name, { parameters: {}, timeout: "1 hour", handler }) as AnyTool

const chatting = (name: string, inner: AnyTool, interrupt: "cancel" | "block" = "cancel"): AnyTool =>
  Tool.fromChat(name, {
    parameters: {},
    interrupt,
    chat: () => Stream.provide(Chat.stream("go", { tools: [inner], grace }), model(`to ${inner.name}`, inner.name))
  }) as AnyTool

/** Each way in which a handler may run tools. */
const inner: { readonly [how: string]: (tool: AnyTool) => AnyTool } = {
  "Chat": (tool) => chatting("outer", tool),
  "ToolRunner.run": (tool) =>
    handling("outer", () => ToolRunner.run([Message.toolCall(`to ${tool.name}`, tool.name)], [tool], { grace })),
  "ToolRunner.stream": (tool) =>
    handling(
      "outer",
      () => Stream.runDrain(ToolRunner.stream([Message.toolCall(`to ${tool.name}`, tool.name)], [tool], { grace }))
    ),
  "Step": (tool) =>
    handling(
      "outer",
      () => Effect.provide(Step.run("go", { tools: [tool], grace }), model(`to ${tool.name}`, tool.name))
    ),
  "StreamingToolExecutor": (tool) =>
    handling("outer", () =>
      Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make({ grace })
        yield* executor.addTool(Message.toolCall(`to ${tool.name}`, tool.name), tool)
        yield* executor.noMoreCalls
        yield* Stream.runDrain(executor.remainingResults)
      })))
}

const named = (abandoned: ReadonlyArray<Event.Abandoned> | undefined) =>
  abandoned?.map(({ id, name, path }) => ({ id, name, path }))

const lost = { id: "to deaf", name: "deaf", path: ["c0", "to deaf"] }

/** What is logged of handlers that were abandoned: each is logged once, by the run that it belongs to. */
const logged = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const names: Array<string> = []
    const noting = Logger.make(({ message }) => {
      for (const { name } of (message as ReadonlyArray<unknown>)[1] as ReadonlyArray<Event.Abandoned>) names.push(name)
    })
    const value = yield* Effect.provideService(effect, Logger.CurrentLoggers, new Set([noting]))
    return { names, value }
  })

describe("a handler abandoned in a nested run", () => {
  for (const [how, wrap] of Object.entries(inner)) {
    it.effect(`M-07: ${how}: the result of the outer run names a nested handler by its call path`, () =>
      Effect.gen(function*() {
        const tool = wrap(deaf)
        const run = ToolRunner.run([Message.toolCall("c0", "outer")], [tool], { grace })
        const { names, value } = yield* logged(elapsed(run))
        assert.deepStrictEqual(named(value.value.abandoned), [lost])
        assert.deepStrictEqual(names, ["deaf"])
        const chat = Effect.provide(Chat.run("go", { tools: [tool], grace }), model("c0", "outer"))
        assert.deepStrictEqual(named((yield* elapsed(chat)).value.abandoned), [lost])
        const streamed = Chat.stream("go", { tools: [tool], grace }).pipe(
          Stream.runLast,
          Effect.provide(model("c0", "outer"))
        )
        const last = (yield* elapsed(streamed)).value
        assert.deepStrictEqual(
          last._tag === "Some" && last.value._tag === "ChatCompleted" ? named(last.value.result.abandoned) : undefined,
          [lost]
        )
      }))

    it.effect(`M-07: ${how}: a stopped outer run names a nested handler that refuses to stop`, () =>
      Effect.gen(function*() {
        const tool = wrap({ ...deaf, timeout: undefined } as unknown as AnyTool)
        for (const policy of [Policy.standard, Policy.falai]) {
          const stopped = Chat.run("go", { tools: [tool], policy, grace, cancel: Effect.sleep(10) })
          const run = elapsed(Effect.provide(stopped, model("c0", "outer")))
          const { names, value: { at, value } } = yield* logged(run)
          assert.deepStrictEqual(named(value.abandoned), [lost])
          assert.deepStrictEqual(names, ["deaf"])
          assert.isAtMost(at, 10 + grace)
        }
      }))
  }

  for (const interrupt of ["cancel", "block"] as const) {
    it.effect(`M-07: each of three nested runs (${interrupt}) names the handler by its path from that run`, () =>
      Effect.gen(function*() {
        const results: Array<ReadonlyArray<unknown> | undefined> = []
        const noting = (name: string, tool: AnyTool) =>
          Tool.fromChat(name, {
            parameters: {},
            interrupt,
            chat: () =>
              Chat.stream("go", { tools: [tool], grace }).pipe(
                Stream.tap((event) =>
                  Effect.sync(() => {
                    if (event._tag === "ChatCompleted") results.push(named(event.result.abandoned))
                  })
                ),
                Stream.provide(model(`to ${tool.name}`, tool.name))
              )
          }) as AnyTool
        const tool = noting("first", noting("second", deaf))
        const { value } = yield* elapsed(
          Effect.provide(Chat.run("go", { tools: [tool], grace }), model("c0", "first"))
        )
        assert.deepStrictEqual(results, [
          [{ id: "to deaf", name: "deaf", path: undefined }],
          [{ id: "to deaf", name: "deaf", path: ["to second", "to deaf"] }]
        ])
        assert.deepStrictEqual(named(value.abandoned), [
          { id: "to deaf", name: "deaf", path: ["c0", "to second", "to deaf"] }
        ])
        const encoded = Schema.encodeUnknownSync(Event.ChatResult)(value)
        const decoded = Schema.decodeUnknownSync(Event.ChatResult)(JSON.parse(JSON.stringify(encoded)))
        assert.deepStrictEqual(decoded.abandoned, value.abandoned)
      }))
  }

  it.effect("M-07: a run names its own abandoned handlers beside those of several nested runs", () =>
    Effect.gen(function*() {
      const calls = [Message.toolCall("a", "outer"), Message.toolCall("b", "deaf"), Message.toolCall("c", "outer")]
      const { value } = yield* elapsed(ToolRunner.run(calls, [chatting("outer", deaf), deaf], { grace }))
      assert.sameDeepMembers([...named(value.abandoned) ?? []], [
        { id: "b", name: "deaf", path: undefined },
        { id: "to deaf", name: "deaf", path: ["a", "to deaf"] },
        { id: "to deaf", name: "deaf", path: ["c", "to deaf"] }
      ])
    }))

  it.effect("M-07: a run whose nested handlers all stop names no abandoned handler", () =>
    Effect.gen(function*() {
      const quick = Tool.make("deaf", { parameters: {}, timeout: 50, handler: () => Effect.never }) as AnyTool
      const run = ToolRunner.run([Message.toolCall("c0", "outer")], [chatting("outer", quick)], { grace })
      assert.notProperty((yield* elapsed(run)).value, "abandoned")
    }))
})
