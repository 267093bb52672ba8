/**
 * What a handler adds to the context counts when the handler succeeds, whatever the caller makes of its failure.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Message, Policy, Tool, ToolRunner } from "heddle"
import { Simulation } from "heddle/testing"
import { type AnyTool, type Body, Floor } from "../support/floor.ts"
import { valueOf } from "../support/seen.ts"

const adding =
  (values: Readonly<Record<string, unknown>>, then: Effect.Effect<unknown, unknown>): Body => (_args, call) =>
    Effect.andThen(call.updateContext(values), then)

const ran = (tools: ReadonlyArray<AnyTool>, options: ToolRunner.Options = {}) =>
  Effect.map(
    Simulation.run(ToolRunner.run(tools.map(({ name }) => Message.toolCall(name, name)), tools, options)),
    valueOf
  )

describe("ToolRunner: context updates", () => {
  it.effect("R-402: a result without context updates has no contextUpdate", () =>
    Effect.gen(function*() {
      assert.notProperty(yield* ran([new Floor().tool("a", Effect.void)]), "contextUpdate")
    }))

  it.effect("R-397: a failed handler adds nothing to the context, also where the caller replaces its failure", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [
        floor.tool("reports", adding({ a: 1 }, Effect.fail("no"))),
        floor.tool("breaks", adding({ b: 1 }, Effect.die("no"))),
        floor.tool("late", adding({ c: 1 }, Effect.never), { timeout: 5 })
      ]
      for (const onToolError of ["continue", replacing] as const) {
        assert.notProperty(yield* ran(tools, { onToolError }), "contextUpdate")
      }
    }))

  it.effect("R-406: a gate adds nothing to the context, because its call has not started", () =>
    Effect.gen(function*() {
      const validate = (_args: unknown, call: Tool.CallContext) => Effect.as(call.updateContext({ gate: 1 }), true)
      const tool = new Floor().tool("a", adding({ handler: 1 }, Effect.void), { validate })
      assert.deepStrictEqual((yield* ran([tool])).contextUpdate, { handler: 1 })
    }))

  it.effect("R-402: later updates of a handler override its earlier updates, and a halt keeps the updates", () =>
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

  it.effect("R-404: the update in a result object comes after the other updates of its handler", () =>
    Effect.gen(function*() {
      const body = adding({ a: 1, b: 1 }, Effect.succeed({ data: 1, contextUpdate: { b: 2 } }))
      const { contextUpdate } = yield* ran([new Floor().tool("a", body)], { policy: Policy.falai })
      assert.deepStrictEqual(contextUpdate, { a: 1, b: 2 })
    }))

  it.effect("R-067, R-404: an unreadable result is a failure of its call, and the error policy is asked about the failure", () =>
    Effect.gen(function*() {
      const broken = (field: string, rest: object = {}) =>
        Object.defineProperty({ ...rest }, field, { enumerable: true, get: () => assert.fail("it was read") })
      const { proxy, revoke } = Proxy.revocable({}, {})
      revoke()
      const results: ReadonlyArray<unknown> = [
        broken("success"),
        broken("error"),
        broken("data", { success: true }),
        broken("contextUpdate", { data: 1 }),
        { data: 1, contextUpdate: broken("member") },
        { data: 1, contextUpdate: proxy }
      ]
      const tools = results.map((result, index) => new Floor().tool(`t${index}`, Effect.succeed(result)))
      const reasons: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) => {
        reasons.push(error instanceof Tool.ToolError ? error.reason : error)
        return Effect.succeed(Tool.ErrorDecision.continue("mended"))
      }
      const policy = { ...Policy.falai, siblings: Policy.standard.siblings }
      const { contextUpdate, halt, messages } = yield* ran(tools, { policy, onToolError })
      assert.deepStrictEqual(reasons, results.map(() => "invalid_return"))
      assert.deepStrictEqual(messages.map(({ content }) => content), results.map(() => "mended"))
      assert.isUndefined(contextUpdate)
      assert.isUndefined(halt)
    }))
})

const replacing = (_call: Message.ToolCall, _error: unknown) =>
  Effect.succeed(Tool.ErrorDecision.continue("something else"))
