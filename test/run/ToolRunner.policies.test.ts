/** Error policies of tools: each decides about the failed calls of its tool, in the place of that of the run. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { contents } from "../support/runs.ts"

class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { path: Schema.String }) {}

const call = Message.toolCall

const handler = () => Effect.fail(new NotFound({ path: "/a" }))

const written = "{\"error\":\"NotFound\",\"details\":{\"path\":\"/a\"}}"

const plain = Tool.make("plain", { parameters: {}, handler })

const calls = [call("c0", "own"), call("c1", "plain")]

describe("ToolRunner: the error policy of a tool", () => {
  it.effect("M-32: the error policy of a tool decides instead of the run's policy, only for calls of that tool", () =>
    Effect.gen(function*() {
      const decide = (words: string) => (_call: Message.ToolCall, _error: unknown) =>
        Effect.succeed(Tool.ErrorDecision.continue(words))
      const halting = { haltedReason: "tool_error" } as const
      const rows = [
        ["continue", "halt", [["c0", written], ["c1", written]], { ...halting, haltToolCallId: "c1" }],
        ["halt", "continue", [["c0", written], ["c1", written]], { ...halting, haltToolCallId: "c0" }],
        [decide("own"), decide("run"), [["c0", "own"], ["c1", "run"]], undefined],
        [null, decide("run"), [["c0", "run"], ["c1", "run"]], undefined],
        [decide("own"), undefined, [["c0", "own"], ["c1", written]], undefined]
      ] as const
      for (const [own, run, expected, halt] of rows) {
        const tool = Tool.make("own", { parameters: {}, handler, onToolError: own as "continue" })
        for (const policy of [Policy.standard, Policy.allm, Policy.falai]) {
          const given = { policy, ...(run === undefined ? {} : { onToolError: run }) }
          const result = yield* ToolRunner.run(calls, [tool, plain], given)
          assert.deepStrictEqual(contents(result), expected.map(([id, content]) => [id, content]))
          assert.deepStrictEqual(result.halt, halt)
          const events = yield* Stream.runCollect(ToolRunner.stream(calls, [tool, plain], given))
          const tails = events.flatMap((event) =>
            event._tag === "ToolHalt"
              ? [[event.toolCallId, event.content]]
              : event._tag === "ToolResultEncoded"
              ? [[event.id, event.content]]
              : []
          )
          assert.sameDeepMembers(tails, expected.map(([id, content]) => [id, content]))
        }
      }
    }))

  it.effect("M-32: the error policy of a tool receives reported failures, and a ToolError for other failures, once each", () =>
    Effect.gen(function*() {
      const seen: Array<string> = []
      const onToolError = (called: Message.ToolCall, error: NotFound | Tool.ToolError) =>
        Effect.sync(() => {
          seen.push(`${called.id}: ${error._tag === "NotFound" ? error.path : error.reason}`)
          return Tool.ErrorDecision.continue("mended")
        })
      const tool = Tool.make("own", {
        parameters: { n: Schema.Finite },
        handler: ({ n }) => n === 0 ? Effect.fail(new NotFound({ path: "/a" })) : Effect.die("kaboom"),
        onToolError
      })
      const given = [call("c0", "own", { n: 0 }), call("c1", "own", { n: 1 }), call("c2", "own", { n: "x" })]
      const result = yield* ToolRunner.run(given, [tool])
      assert.deepStrictEqual(contents(result), [["c0", "mended"], ["c1", "mended"], ["c2", "mended"]])
      assert.sameMembers(seen, ["c0: /a", "c1: handler_raised", "c2: invalid_arguments"])
    }))

  it.effect("M-32: a decision to fail by a tool's error policy fails the run with its typed error", () =>
    Effect.gen(function*() {
      const tool = Tool.make("own", {
        parameters: {},
        handler,
        onToolError: (_call, error) => Effect.succeed(Tool.ErrorDecision.fail({ fatal: error._tag }))
      })
      const model = Script.layer([[Script.toolCall("c0", "own", {}), Script.finish("tool_calls")]])
      const expected = Exit.fail({ fatal: "NotFound" as const })
      const only = [call("c0", "own")]
      assert.deepStrictEqual(yield* Effect.exit(ToolRunner.run(only, [tool])), expected)
      assert.deepStrictEqual(
        yield* Effect.exit(Stream.runDrain(ToolRunner.stream(only, [tool]))),
        Exit.asVoid(expected)
      )
      const exit = yield* Effect.exit(Effect.provide(Chat.run("Go", { tools: [tool] }), model))
      assert.deepStrictEqual(exit, expected)
    }))

  it.effect("M-32: the error policy of a tool applies in a StreamingToolExecutor and to Tool.fromChat", () =>
    Effect.gen(function*() {
      const tool = Tool.make("own", {
        parameters: {},
        handler,
        onToolError: () => Effect.succeed(Tool.ErrorDecision.continue("mended"))
      })
      const updates = yield* Effect.scoped(Effect.gen(function*() {
        const executor = yield* StreamingToolExecutor.make()
        yield* executor.addTool(call("c0", "own"), tool)
        yield* executor.noMoreCalls
        return yield* Stream.runCollect(executor.remainingResults)
      }))
      assert.deepStrictEqual(updates.map(({ result }) => result?.content), ["mended"])
      const model = Script.layer([[Script.text("cut"), Script.error("network_error")]])
      const seen: Array<unknown> = []
      const research = Tool.fromChat("own", {
        parameters: {},
        chat: () => Chat.stream("Go"),
        onToolError: (_call, error) => {
          seen.push(error._tag)
          return Effect.succeed(Tool.ErrorDecision.continue("mended"))
        }
      })
      const result = yield* Effect.provide(ToolRunner.run([call("c0", "own")], [research]), model)
      assert.deepStrictEqual(contents(result), [["c0", "mended"]])
      assert.deepStrictEqual(seen, ["ChatFailed"])
    }))

  it("M-32: Tool.make refuses an unusable onToolError", () => {
    const odd = ["stop", 1, {}, (_call: unknown) => Effect.void, (_a: unknown, _b: unknown, _c: unknown) => Effect.void]
    for (const onToolError of odd) {
      assert.throws(
        () => Tool.make("own", { parameters: {}, handler, onToolError: onToolError as never }),
        "Tool.make(\"own\"): onToolError must be \"continue\", \"halt\" or a function (call, error)"
      )
    }
  })
})
