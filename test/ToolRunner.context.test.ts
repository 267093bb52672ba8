/**
 * What handlers add to the context: it counts when they succeed, is merged in the order of the calls, and is there for
 * the steps that follow, not for the calls beside them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { Chat, Message, Policy, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { type AnyTool, type Body, Floor, safe } from "./support/floor.ts"
import { valueOf } from "./support/seen.ts"

const adding =
  (values: Readonly<Record<string, unknown>>, millis: number, then: Effect.Effect<unknown, unknown>): Body =>
  (_args, call) => call.updateContext(values).pipe(Effect.andThen(Effect.sleep(millis)), Effect.andThen(then))

const ran = (tools: ReadonlyArray<AnyTool>, options: ToolRunner.Options = {}) =>
  Effect.map(
    Simulation.run(ToolRunner.run(tools.map(({ name }) => Message.toolCall(name, name)), tools, options)),
    valueOf
  )

describe("ToolRunner: context updates", () => {
  it.effect("R-402: they are merged in the order of the calls, whoever was slower", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const { contextUpdate } = yield* ran([
        floor.tool("a", adding({ x: "a", a: 1 }, 30, Effect.void), safe),
        floor.tool("b", adding({ x: "b", b: 1 }, 5, Effect.void), safe)
      ])
      assert.deepStrictEqual(contextUpdate, { x: "b", a: 1, b: 1 })
    }))

  it.effect("R-402: without any there is none", () =>
    Effect.gen(function*() {
      assert.notProperty(yield* ran([new Floor().tool("a", Effect.void)]), "contextUpdate")
    }))

  it.effect("R-397: a failed handler adds nothing, also where the caller puts a result in its place", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [
        floor.tool("reports", adding({ a: 1 }, 0, Effect.fail("no"))),
        floor.tool("breaks", adding({ b: 1 }, 0, Effect.die("no"))),
        floor.tool("late", adding({ c: 1 }, 0, Effect.never), { timeout: 5 })
      ]
      for (const onToolError of ["continue", replacing] as const) {
        assert.notProperty(yield* ran(tools, { onToolError }), "contextUpdate")
      }
    }))

  it.effect("R-397: of a handler that is repeated, the last attempt counts", () =>
    Effect.gen(function*() {
      const tool = new Floor().tool(
        "a",
        (_args, call) =>
          Effect.andThen(
            call.updateContext({ [`attempt ${call.attempt}`]: true }),
            call.attempt < 3 ? Effect.fail("again") : Effect.succeed("done")
          ),
        { retry: Schedule.recurs(3) }
      )
      assert.deepStrictEqual((yield* ran([tool])).contextUpdate, { "attempt 3": true })
    }))

  it.effect("R-402: several updates of one handler are one over the other, and a halt keeps them", () =>
    Effect.gen(function*() {
      const body: Body = (_args, call) =>
        call.updateContext({ a: 1, b: 1 }).pipe(
          Effect.andThen(call.updateContext({ b: 2 })),
          Effect.as(Tool.halt("enough", null))
        )
      const { contextUpdate, halt } = yield* ran([new Floor().tool("a", body)])
      assert.deepStrictEqual(contextUpdate, { a: 1, b: 2 })
      assert.strictEqual(halt?.haltedReason, "enough")
    }))

  it.effect("R-404: a result object's update is the last of its handler", () =>
    Effect.gen(function*() {
      const body = adding({ a: 1, b: 1 }, 0, Effect.succeed({ data: 1, contextUpdate: { b: 2 } }))
      const { contextUpdate } = yield* ran([new Floor().tool("a", body)], { policy: Policy.falai })
      assert.deepStrictEqual(contextUpdate, { a: 1, b: 2 })
    }))

  it.effect("an update that is no object is the handler's mistake", () =>
    Effect.gen(function*() {
      const tool = new Floor().tool("a", (_args, call) => call.updateContext(["a"] as never))
      const result = yield* ran([tool])
      assert.include(String(result.messages[0]?.content), "handler_raised")
      assert.notProperty(result, "contextUpdate")
    }))

  it.effect("names from a model pollute nothing", () =>
    Effect.gen(function*() {
      const hostile = JSON.parse("{\"__proto__\":{\"polluted\":true},\"constructor\":1}")
      const { contextUpdate } = yield* ran([new Floor().tool("a", adding(hostile, 0, Effect.void))])
      assert.isFalse("polluted" in {})
      assert.isFalse("polluted" in (contextUpdate ?? {}))
      assert.strictEqual(Object.getPrototypeOf(contextUpdate), Object.prototype)
    }))
})

const replacing = (_call: Message.ToolCall, _error: unknown) =>
  Effect.succeed(Tool.ErrorDecision.continue("something else"))

describe("Chat: context updates", () => {
  const model = Script.layer([
    [Script.toolCall("a", "note"), Script.toolCall("b", "note"), Script.finish("tool_calls")],
    [Script.toolCall("c", "note"), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

  it.effect("CF-17, R-403: the calls of a step see the context of its start, those of the next what was added", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const note = new Floor().tool("note", (_args, call) => {
        seen.push([call.id, { ...call.context }])
        return call.updateContext({ [call.id]: true, last: call.id })
      })
      const run = Chat.run("go", { tools: [note], context: { given: 1, last: "none" } })
      const result = valueOf(yield* Simulation.run(Effect.provide(run, model)))
      assert.deepStrictEqual(seen, [
        ["a", { given: 1, last: "none" }],
        ["b", { given: 1, last: "none" }],
        ["c", { given: 1, last: "b", a: true, b: true }]
      ])
      assert.deepStrictEqual(result.contextUpdate, { a: true, b: true, c: true, last: "c" })
      assert.deepStrictEqual(result.steps.map((step) => step.contextUpdate), [
        { a: true, b: true, last: "b" },
        { c: true, last: "c" },
        undefined
      ])
    }))
})
