/**
 * The soft stop of a batch, bounded: every call is answered within the grace period, whatever is still at work on it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Chat, Encoder, Message, Tool, ToolRunner } from "heddle"
import { Recorder, Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

const grace = 100

/** Runs calls that are cancelled after 10 ms. */
const cancelled = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options = {}
) => elapsed(ToolRunner.run(calls, tools, { cancel: Effect.sleep(10), grace, toolTimeout: "infinity", ...options }))

const isCancelled = ({ messages }: ToolRunner.Result) => {
  for (const { content, isError } of messages) {
    assert.match(String(content), /cancelled: (interrupted|not run): Execution cancelled by parent abort signal/)
    assert.isTrue(isError)
  }
}

const cause = "Execution cancelled by parent abort signal"

/** Asserts that the answer of the first call says that its handler has not stopped. */
const isLeft = ({ messages }: ToolRunner.Result, detail: string) => {
  const error = `tool error (deaf): abandoned: ${detail}; it has not stopped, and may still take effect`
  assert.deepStrictEqual(JSON.parse(String(messages[0]?.content)), { error, code: "abandoned" })
  assert.isTrue(messages[0]?.isError)
}

describe("ToolRunner: a soft stop", () => {
  it.effect("R-398, law 11: a blocking handler may finish within the grace period, and is answered without its result afterwards", () =>
    Effect.gen(function*() {
      for (const [millis, at, interrupts] of [[60, 60, 0], [5_000, 110, 1]] as const) {
        const recorder = yield* Recorder.make
        const save = Tool.make("save", {
          parameters: {},
          interrupt: "block",
          handler: recorder.handler(() => Effect.as(Effect.sleep(millis), "saved"))
        })
        const asked: Array<unknown> = []
        const onToolError = (_call: Message.ToolCall, error: unknown) =>
          Effect.sync(() => {
            asked.push(error)
            return Tool.ErrorDecision.continue("replaced")
          })
        const run = yield* cancelled(calling("save", "save"), [save], { onToolError })
        assert.deepStrictEqual(asked, [])
        assert.strictEqual(run.at, at)
        if (interrupts === 0) {
          assert.deepStrictEqual(run.value.messages.map(({ content }) => content), ["saved", "saved"])
        } else isCancelled(run.value)
        assert.notProperty(run.value, "abandoned")
        assert.deepInclude(yield* recorder.counts(), { interrupts: 2 * interrupts, live: 0, finalizers: 2 })
      }
    }))

  it.effect("law 11: a handler that does not stop is answered, abandoned and named after one grace period", () =>
    Effect.gen(function*() {
      for (const interrupt of ["block", "cancel"] as const) {
        const deaf = Tool.make("deaf", {
          parameters: {},
          interrupt,
          handler: () => Effect.uninterruptible(Effect.never)
        })
        const { at, value } = yield* cancelled(calling("deaf", "echo"), [deaf, Tools.echo], { maxConcurrency: 1 })
        assert.strictEqual(at, 10 + grace)
        isLeft(value, `interrupted: ${cause}`)
        isCancelled({ messages: value.messages.slice(1) })
        assert.strictEqual(value.messages.length, 2)
        assert.deepStrictEqual(value.abandoned, [{ kind: "handler", id: "c0", name: "deaf", ageMillis: 10 + grace }])
      }
    }))

  it.effect("law 11: a timeout during the grace period starts no second grace period", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", {
        parameters: {},
        interrupt: "block",
        handler: () => Effect.uninterruptible(Effect.never)
      })
      const { at, value } = yield* cancelled(calling("deaf"), [deaf], { toolTimeout: 50 })
      assert.strictEqual(at, 10 + grace)
      isLeft(value, "timed out after 50 ms")
      assert.deepStrictEqual(value.abandoned, [{ kind: "handler", id: "c0", name: "deaf", ageMillis: 10 + grace }])
    }))

  it.effect("law 11, R-075: a stopped batch waits for an error policy that never decides no longer than the grace period", () =>
    Effect.gen(function*() {
      const never = Tool.make("never", { parameters: {}, timeout: 5, handler: () => Effect.never })
      for (const [stuck, isLeft] of [[Effect.never, false], [Effect.uninterruptible(Effect.never), true]] as const) {
        for (const name of ["boom", "never", "ghost"]) {
          const recorder = yield* Recorder.make
          const onToolError = (_call: Message.ToolCall, _error: unknown) => recorder.track("policy")(stuck)
          const { at, value } = yield* cancelled(calling(name, "echo"), [Tools.boom, never, Tools.echo], {
            onToolError
          })
          assert.strictEqual(value.messages[1]?.content, "{}")
          isCancelled({ messages: value.messages.slice(0, 1) })
          assert.isUndefined(value.halt)
          assert.isAtMost(at, 10 + 2 * grace)
          assert.strictEqual((yield* recorder.counts("policy")).live, isLeft ? 1 : 0)
          assert.strictEqual(value.abandoned?.length, isLeft ? 1 : undefined)
        }
      }
    }))

  it.effect("law 1: a decision of the error policy counts within the grace period, and not later", () =>
    Effect.gen(function*() {
      for (const [millis, expected] of [[50, "decided"], [105, undefined]] as const) {
        const onToolError = (_call: Message.ToolCall, _error: unknown) =>
          Effect.uninterruptible(Effect.as(Effect.sleep(millis), Tool.ErrorDecision.continue("decided")))
        const calls = calling("boom", "boom")
        const { value } = yield* cancelled(calls, [Tools.boom], { onToolError, cancel: Effect.sleep(1) })
        assert.strictEqual(value.messages.length, 2)
        if (expected === undefined) isCancelled(value)
        else assert.deepStrictEqual(value.messages.map(({ content }) => content), [expected, expected])
      }
    }))

  it.effect("law 11: a stopped batch waits for a decoder or an encoder that never returns no longer than the grace period", () =>
    Effect.gen(function*() {
      const stuck: Tool.Any = {
        ...Tools.echo,
        name: "stuck",
        parameters: { jsonSchema: {}, decode: () => Effect.never }
      }
      const decoding = yield* cancelled(calling("stuck", "echo", "ghost"), [stuck, Tools.echo])
      assert.strictEqual(decoding.at, 10 + grace)
      isCancelled(decoding.value)
      assert.strictEqual(decoding.value.messages.length, 3)
      const encoding = yield* cancelled(calling("echo", "slow"), [Tools.echo, Tools.slow(50)]).pipe(
        Effect.provide(Encoder.layer({ encode: () => Effect.never }))
      )
      assert.strictEqual(encoding.at, 10 + grace)
      isCancelled(encoding.value)
    }))

  it.effect("law 11: handlers and the code that writes their answers share one grace period", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", {
        parameters: {},
        interrupt: "block",
        handler: () => Effect.uninterruptible(Effect.never)
      })
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.onInterrupt(Effect.never, () => Effect.sleep(7))
      const { at, value } = yield* cancelled(calling("deaf", "ghost"), [deaf], { onToolError })
      assert.strictEqual(at, 10 + grace)
      assert.deepStrictEqual(value.abandoned?.map(({ id, kind }) => [id, kind]), [["c1", "hook"], ["c0", "handler"]])
    }))

  it.effect("law 1: a decoder or error policy that ends after its call was answered changes nothing", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const base = { readOnly: true, parameters: Tools.anything }
      const decode = () => Effect.uninterruptible(Effect.as(Effect.sleep(150), {}))
      const late: Tool.Any = {
        ...Tool.make("late", { ...base, handler: recorder.handler(() => Effect.succeed("late")) }),
        parameters: { jsonSchema: {}, decode }
      }
      const boom = Tool.make("boom", { ...base, handler: () => Effect.fail("boom") })
      const slow = Tool.make("slow", { ...base, handler: () => Effect.as(Effect.sleep(300), "slow") })
      const onToolError = (_call: Message.ToolCall, _error: unknown) =>
        Effect.uninterruptible(Effect.as(Effect.sleep(200), Tool.ErrorDecision.continue("decided")))
      for (const name of ["late", "boom"]) {
        const model = Script.layer([
          [
            Script.toolCall("c0", name),
            Script.delay(1),
            Script.toolCall("c1", "slow"),
            Script.finish("content_filter")
          ],
          [Script.text("done"), Script.finish("stop")]
        ])
        const tools = [late, boom, slow]
        const run = Chat.run("go", { tools, onToolError, grace, toolTimeout: "infinity" }).pipe(Effect.provide(model))
        const { value } = yield* elapsed(run)
        const answers = value.thread.messages.filter(({ role }) => role === "tool")
        assert.deepStrictEqual(answers.map(({ toolCallId }) => toolCallId), ["c0", "c1"])
        assert.match(String(answers[0]?.content), /cancelled: interrupted/)
        assert.match(String(answers[1]?.content), /cancelled: not run/)
      }
      assert.strictEqual((yield* recorder.counts("late")).starts, 0)
    }))

  it.effect("law 1: a stopped batch keeps existing answers, and ends at once with its interruptible calls", () =>
    Effect.gen(function*() {
      const { at, value } = yield* cancelled(calling("echo", "slow"), [Tools.echo, Tools.slow(50)])
      assert.strictEqual(at, 10)
      assert.strictEqual(value.messages[0]?.content, "{}")
      isCancelled({ messages: value.messages.slice(1) })
    }))
})
