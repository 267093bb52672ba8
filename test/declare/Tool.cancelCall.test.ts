/**
 * One call stopped, and the rest kept: by a handler beside it, at each point of its life, in each kind of run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Chat, Collector, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { check, Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"

const { finish, text, toolCall } = Script

/** A tool that stops a call after so many milliseconds, and answers with what it was told each time. */
const stopping = (id: string, { after = 10, reason, times = 1 }: {
  readonly after?: number
  readonly reason?: string
  readonly times?: number
} = {}) =>
  Tool.make("stopping", {
    parameters: {},
    concurrency: "shared",
    handler: (_, call) =>
      Effect.gen(function*() {
        if (after > 0) yield* Effect.sleep(after)
        const told: Array<boolean> = []
        for (let time = 0; time < times; time++) told.push(yield* call.cancelCall(id, reason))
        yield* Effect.sleep(100)
        return told
      })
  })

const sleeping = <const Name extends string>(name: Name, handler: Effect.Effect<unknown>, options: object = {}) =>
  Tool.make(name, { parameters: {}, ...options, handler: () => handler })

const long = sleeping("long", Effect.as(Effect.sleep(10_000), "long"), { concurrency: "shared", interrupt: "cancel" })
const short = sleeping("short", Effect.as(Effect.sleep(200), "short"), { concurrency: "shared" })

const approved = Tool.make("asked", { parameters: {}, approval: true, handler: () => Effect.void })

interface Answer {
  readonly content: Message.Content
}

type Run = (
  tools: ReadonlyArray<Tool.Any>,
  names: ReadonlyArray<string>
) => Effect.Effect<ReadonlyArray<Answer>, any, any>

const contents = (messages: ReadonlyArray<Answer>) => messages.map(({ content }) => content)

const calls = (...names: ReadonlyArray<string>) => names.map((name, index) => Message.toolCall(`c${index}`, name))

const cancelled = (name: string, detail: string) =>
  JSON.stringify({ error: `tool error (${name}): cancelled: ${detail}`, code: "cancelled" })

const because = { reason: "not that file" }

/** Each kind of run, with the answers of its calls and what it breaks of the laws. */
const kinds: { readonly [kind: string]: Run } = {
  "ToolRunner": (tools, names) => Effect.map(ToolRunner.run(calls(...names), tools), ({ messages }) => messages),
  "StreamingToolExecutor": (tools, names) =>
    Effect.scoped(Effect.gen(function*() {
      const executor = yield* StreamingToolExecutor.make()
      for (const call of calls(...names)) {
        const tool = tools.find(({ name }) => name === call.name)
        if (tool !== undefined) yield* executor.addTool(call, tool as typeof long)
      }
      yield* executor.noMoreCalls
      const updates = yield* Stream.runCollect(executor.remainingResults)
      return updates.flatMap(({ result }) => result ?? []) as ReadonlyArray<Answer>
    })),
  "Chat": (tools, names) =>
    Effect.gen(function*() {
      const events = yield* Stream.runCollect(Chat.stream("Go", { tools }))
      assert.deepStrictEqual(check(events), [])
      const result = Collector.toChatResult(Collector.applyAll(Collector.initial(), events))
      assert.strictEqual(result.outcome._tag, "Completed")
      return result.thread.messages.filter(({ role }) => role === "tool")
    }).pipe(Effect.provide(Script.layer([
      [...names.map((name, index) => toolCall(`c${index}`, name)), finish("tool_calls")],
      [text("Done."), finish("stop")]
    ])))
}

describe("G75: call.cancelCall", () => {
  for (const [kind, run] of Object.entries(kinds)) {
    it.effect(`the siblings of a cancelled call keep running, and the run continues (${kind})`, () =>
      Effect.gen(function*() {
        const { at, value } = yield* elapsed(run([stopping("c1", because), long, short], ["stopping", "long", "short"]))
        assert.strictEqual(at, 200, "the run waits for the siblings alone")
        assert.deepStrictEqual(contents(value), ["[true]", cancelled("long", "interrupted: not that file"), "short"])
      }))
  }

  it.effect("without a reason, or with an empty reason, the answer says that the call was stopped", () =>
    Effect.gen(function*() {
      for (const reason of [undefined, ""]) {
        const options = reason === undefined ? {} : { reason }
        const { value: { messages } } = yield* elapsed(
          ToolRunner.run(calls("stopping", "long"), [stopping("c1", options), long])
        )
        assert.strictEqual(contents(messages)[1], cancelled("long", "interrupted: the call was stopped"))
      }
    }))

  it.effect("a call waiting for a place, a key or a permit is withdrawn when cancelled, and the calls behind move up", () =>
    Effect.gen(function*() {
      const started: Array<string> = []
      const noted = (name: string, options: object) =>
        Tool.make(name, {
          parameters: {},
          ...options,
          handler: (_, call) => Effect.sync(() => void started.push(call.id))
        })
      const limit = { limits: [{ key: "k", permits: 1 }] }
      const ways: ReadonlyArray<
        readonly [options: object, limits: { readonly limits?: typeof limit.limits }, run: object]
      > = [
        [{ concurrency: "exclusive" }, {}, {}],
        [limit, limit, {}],
        [{}, {}, { maxConcurrency: 1 }]
      ]
      for (const [options, limits, run] of ways) {
        started.length = 0
        const first = Tool.make("first", {
          parameters: {},
          ...limits,
          handler: (_, call) =>
            Effect.sleep(10).pipe(
              Effect.andThen(call.cancelCall("c1")),
              Effect.tap(() => Effect.sleep(50))
            )
        })
        const { value: { messages } } = yield* elapsed(
          ToolRunner.run(
            calls("first", "second", "third"),
            [first, noted("second", options), noted("third", limits)],
            run
          )
        )
        assert.deepStrictEqual(started, ["c2"])
        assert.deepStrictEqual(contents(messages).slice(0, 2), [
          "true",
          cancelled("second", "not run: the call was stopped")
        ])
      }
    }))

  it.effect("a call behind a withdrawn exclusive call starts at once", () =>
    Effect.gen(function*() {
      const alone = sleeping("alone", Effect.void, { concurrency: "exclusive" })
      const { at } = yield* elapsed(
        ToolRunner.run(calls("stopping", "alone", "short"), [stopping("c1"), alone, short])
      )
      assert.strictEqual(at, 210)
    }))

  it.effect("a call admitted together with the call that cancels it never starts", () =>
    Effect.gen(function*() {
      let starts = 0
      const second = Tool.make("second", { parameters: {}, handler: () => Effect.sync(() => void starts++) })
      const { value: { messages } } = yield* elapsed(
        ToolRunner.run(calls("stopping", "second", "short"), [stopping("c1", { after: 0 }), second, short])
      )
      assert.strictEqual(starts, 0)
      assert.deepStrictEqual(contents(messages), [
        "[true]",
        cancelled("second", "not run: the call was stopped"),
        "short"
      ])
    }))

  it.effect("the handler of a cancelled call behind a slow gate never starts", () =>
    Effect.gen(function*() {
      let starts = 0
      const handler = () => Effect.sync(() => void starts++)
      const gated = Tool.make("gated", { parameters: {}, authorize: () => Effect.never, handler })
      const { at, value: { messages } } = yield* elapsed(
        ToolRunner.run(calls("stopping", "gated"), [stopping("c1"), gated])
      )
      assert.strictEqual(contents(messages)[1], cancelled("gated", "not run: the call was stopped"))
      assert.strictEqual(at, 110)
      assert.strictEqual(starts, 0)
    }))

  it.effect("a cancelled handler that does not stop is answered as abandoned after its grace period", () =>
    Effect.gen(function*() {
      const deaf = sleeping("deaf", Effect.uninterruptible(Effect.sleep(400)))
      const { at, value } = yield* elapsed(
        ToolRunner.run(calls("stopping", "deaf", "short"), [stopping("c1", because), deaf, short], { grace: 50 })
      )
      const [, answer] = value.messages
      assert.strictEqual(JSON.parse(String(answer?.content)).code, "abandoned")
      assert.include(String(answer?.content), "interrupted: not that file; it has not stopped")
      assert.strictEqual(contents(value.messages)[2], "short")
      assert.strictEqual(at, 200, "the grace period began with the stop")
      assert.deepStrictEqual(value.abandoned?.map(({ id }) => id), ["c1"])
    }))

  it.effect("a cancelled blocking handler may finish within the grace period, and is interrupted afterwards", () =>
    Effect.gen(function*() {
      for (const [millis, answer] of [[30, "done"], [Infinity, undefined]] as const) {
        const handler = Number.isFinite(millis) ? Effect.as(Effect.sleep(millis), "done") : Effect.never
        const blocking = sleeping("blocking", handler, { interrupt: "block", timeout: "infinity" })
        const { value: { messages } } = yield* elapsed(
          ToolRunner.run(
            calls("stopping", "blocking", "short"),
            [stopping("c1", { ...because, times: 2 }), blocking, short],
            { grace: 50 }
          )
        )
        assert.deepStrictEqual(contents(messages), [
          "[true,false]",
          answer ?? cancelled("blocking", "interrupted: not that file"),
          "short"
        ])
      }
    }))

  it.effect("a cancelled call has neither failed nor halted, and triggers no sibling policy", () =>
    Effect.gen(function*() {
      const policy = { ...Policy.standard, siblings: { ...Policy.standard.siblings, onToolError: "abortAll" } } as const
      const { value: { messages } } = yield* elapsed(
        ToolRunner.run(calls("stopping", "long", "short"), [stopping("c1"), long, short], {
          policy,
          onToolError: "halt"
        })
      )
      assert.deepStrictEqual(contents(messages).map((content) => content === "short"), [false, false, true])
      assert.strictEqual(contents(messages)[0], "[true]")
    }))

  it.effect("a cancelled call waiting for an approval is withdrawn, and no approval stays open", () =>
    Effect.gen(function*() {
      const orders = [["request", 0], ["request", 1], ["completion", 0], ["completion", 1]] as const
      for (const [order, place] of orders) {
        const reply = ["stopping", "short"].toSpliced(place, 0, "asked")
        const { value: events } = yield* elapsed(Stream.runCollect(
          Chat.stream("Go", {
            tools: [stopping(`c${place}`, because), approved, short],
            policy: { ...Policy.standard, resultOrder: order }
          }).pipe(Stream.provide(Script.layer([
            [...reply.map((name, index) => toolCall(`c${index}`, name)), finish("tool_calls")],
            [text("Done."), finish("stop")]
          ])))
        ))
        assert.deepStrictEqual(check(events), [])
        assert.isTrue(events.some(({ _tag }) => _tag === "ToolApprovalRequested"), "the request stays among the events")
        const { outcome, suspensions, thread } = Collector.toChatResult(
          Collector.applyAll(Collector.initial(), events)
        )
        assert.strictEqual(outcome._tag, "Completed")
        assert.strictEqual(suspensions, undefined)
        const answers = contents(thread.messages.filter(({ role }) => role === "tool"))
        assert.deepStrictEqual(
          answers,
          ["[true]", "short"].toSpliced(place, 0, cancelled("asked", "not run: not that file"))
        )
      }
    }))

  it.effect("a handler of a nested run cancels only calls of its own turn", () =>
    Effect.gen(function*() {
      const inner = Tool.fromChat("inner", {
        parameters: {},
        chat: () =>
          Stream.provide(
            Chat.stream("Inside", { tools: [stopping("c1"), long] }),
            Script.layer([
              [toolCall("c0", "stopping"), toolCall("c1", "long"), finish("tool_calls")],
              [text("Inside."), finish("stop")]
            ])
          )
      })
      const model = Script.layer([
        [toolCall("c0", "inner"), toolCall("c1", "short"), finish("tool_calls")],
        [text("Done."), finish("stop")]
      ])
      const { value } = yield* elapsed(Effect.provide(Chat.run("Go", { tools: [inner, short] }), model))
      assert.deepStrictEqual(contents(value.thread.messages.filter(({ role }) => role === "tool")), [
        "Inside.",
        "short"
      ])
    }))
})

describe("G76: the result of call.cancelCall", () => {
  it.effect("cancelling a call twice, or an ended call, returns false", () =>
    Effect.gen(function*() {
      const quick = sleeping("quick", Effect.succeed("quick"))
      const twice = yield* elapsed(
        ToolRunner.run(calls("stopping", "long"), [stopping("c1", { times: 3 }), long])
      )
      assert.strictEqual(contents(twice.value.messages)[0], "[true,false,false]")
      const ended = yield* elapsed(ToolRunner.run(calls("stopping", "quick"), [stopping("c1"), quick]))
      assert.deepStrictEqual(contents(ended.value.messages), ["[false]", "quick"])
    }))

  it.effect("cancelling a call stopped by its timeout returns false", () =>
    Effect.gen(function*() {
      const clean = sleeping("clean", Effect.onInterrupt(Effect.never, () => Effect.sleep(80)), { timeout: 5 })
      const { value } = yield* elapsed(ToolRunner.run(calls("stopping", "clean"), [stopping("c1"), clean]))
      const [told, answer] = contents(value.messages)
      assert.strictEqual(told, "[false]")
      assert.strictEqual(JSON.parse(String(answer)).code, "timeout")
    }))

  it.effect("cancelling a call after the run returns false", () =>
    Effect.gen(function*() {
      const kept = yield* Deferred.make<Tool.CallContext>()
      const keeping = Tool.make("keeping", { parameters: {}, handler: (_, call) => Deferred.succeed(kept, call) })
      yield* ToolRunner.run(calls("keeping", "keeping"), [keeping])
      const call = yield* Deferred.await(kept)
      assert.isFalse(yield* call.cancelCall("c1"))
    }))
})

describe("G77: a wrong argument of call.cancelCall", () => {
  it.effect("cancelling an unknown call returns false", () =>
    Effect.gen(function*() {
      for (const id of ["", "c9", "c0/c1", "__proto__"]) {
        const { value } = yield* elapsed(ToolRunner.run(calls("stopping", "short"), [stopping(id), short]))
        assert.deepStrictEqual(contents(value.messages), ["[false]", "short"])
      }
    }))

  it.effect("a reason other than a string is a defect that names the reason", () =>
    Effect.gen(function*() {
      const wrong = Tool.make("wrong", {
        parameters: {},
        handler: (_, call) =>
          Effect.map(Effect.exit(call.cancelCall("c1", { because: 1 } as never)), (exit) => String(exit))
      })
      const { value } = yield* elapsed(ToolRunner.run(calls("wrong", "short"), [wrong, short]))
      assert.include(contents(value.messages)[0], "call.cancelCall: the reason must be a string")
      assert.strictEqual(contents(value.messages)[1], "short")
    }))
})
