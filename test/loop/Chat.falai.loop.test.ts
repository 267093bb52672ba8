/**
 * Runs under `Policy.falai` from the first call of the model to the last answer: tools beside a model that still speaks,
 * replies that break, the history that the model is sent, and the closing answer.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Chat, Encoder, type Event, Message, Policy, Step, Thread } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { type AnyTool, cancelable, failsAfter, Floor, safe, takes } from "../support/floor.ts"
import { chatOf, transcript } from "../support/scenarios.ts"
import { assertClean, byChat, byExecutor, valueOf } from "../support/seen.ts"

const { delay, finish, streamError, text, toolCall } = Script
const policy = Policy.falai

type Told = readonly [at: number, event: Event.Event]

/** A run's events with their times, its result, and what the model was asked. */
const run = (script: Script.Input, tools: ReadonlyArray<AnyTool>, options: Partial<Chat.Options> = {}) =>
  Effect.gen(function*() {
    const model = yield* Script.make(script)
    const told: Array<Told> = []
    const events = Chat.stream("go", { tools, policy, ...options } as Chat.Options<ReadonlyArray<AnyTool>>)
    const noted = Stream.runForEach(events, (event) =>
      Effect.map(Clock.currentTimeMillis, (at) => {
        told.push([at, event])
      }))
    const report = yield* Simulation.run(Effect.provide(noted, model.layer))
    valueOf(report)
    const last = told.at(-1)?.[1]
    const result = last?._tag === "ChatCompleted" ? last.result : assert.fail("it did not end")
    const { millis, sleeping } = report
    return { told, result, requests: yield* model.requests, millis, sleeping }
  })

const timesOf = (told: ReadonlyArray<Told>, tag: Event.Event["_tag"]) =>
  told.filter(([, event]) => event._tag === tag).map(([at]) => at)

describe("Chat under Policy.falai: early start", () => {
  it.effect("J-28, R-380, R-417: a handler starts when its call is complete, and the turn lasts as long as the longer of reply and handler", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const script = [[toolCall("a", "slow"), delay(40), text("x"), finish("tool_calls")], [
        text("done"),
        finish("stop")
      ]]
      const { millis, sleeping, told } = yield* run(script, [floor.tool("slow", takes(50))])
      assert.deepStrictEqual(timesOf(told, "ToolExecutionStarted"), [0])
      assert.deepStrictEqual(timesOf(told, "MessageCompleted"), [40, 50])
      assert.deepStrictEqual(timesOf(told, "ToolResultEncoded"), [50])
      assert.strictEqual(millis, 50)
      assertClean(floor, sleeping)
    }))

  it.effect("R-384, R-417: an unsafe call is a barrier for later calls that become complete while it runs", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [floor.tool("write", takes(30)), floor.tool("read", takes(10), safe)]
      const script = [
        [
          toolCall("a", "write"),
          delay(5),
          toolCall("b", "read"),
          delay(5),
          toolCall("c", "read"),
          delay(100),
          finish("stop")
        ],
        [text("done"), finish("stop")]
      ]
      const { sleeping } = yield* run(script, tools)
      assert.deepStrictEqual(floor.marks.filter(([, what]) => what === "start"), [
        [0, "start", "a"],
        [30, "start", "b"],
        [30, "start", "c"]
      ])
      assertClean(floor, sleeping)
    }))

  it.effect("J-06, R-383: the run checks once whether a call is safe, when the call is complete", () =>
    Effect.gen(function*() {
      const asked: Array<readonly [number, unknown]> = []
      const file: AnyTool = {
        ...new Floor().tool("file", takes(100), safe),
        concurrency: (args: unknown) => {
          asked.push([asked.length, args])
          return "shared"
        }
      }
      const calls = ["read", "write"].map((mode) => toolCall(mode, "file", { mode }))
      yield* run([[...calls, delay(50), finish("tool_calls")], [text("done"), finish("stop")]], [file])
      assert.deepStrictEqual(asked, [[0, { mode: "read" }], [1, { mode: "write" }]])
    }))
})

describe("Chat under Policy.falai: a broken reply", () => {
  const broken = [
    toolCall("kept", "quick"),
    toolCall("stopped", "slow"),
    toolCall("finishes", "blocking"),
    toolCall("waits", "alone"),
    delay(20),
    streamError("network_error")
  ]

  it.effect("J-29, R-413: after a broken reply ended calls stay, cancelable calls stop, blocking calls finish, and no call runs twice", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [
        floor.tool("quick", takes(5, "quick"), safe),
        floor.tool("slow", takes(500), cancelable),
        floor.tool("blocking", takes(60, "blocking"), safe),
        floor.tool("alone", takes(5))
      ]
      const { millis, result, sleeping } = yield* run([broken], tools)
      assert.strictEqual(result.haltedReason, "error")
      assert.deepInclude(result.outcome, { _tag: "Failed" })
      const [kept, stopped, finishes, waits] = result.steps[0]?.toolResults ?? []
      assert.deepStrictEqual([kept?.content, finishes?.content], ["quick", "blocking"])
      assert.include(String(stopped?.content), "cancelled: interrupted: the reply ended with error")
      assert.include(String(waits?.content), "cancelled: not run: the reply ended with error")
      assert.deepStrictEqual(floor.marks.filter(([, what]) => what !== "start"), [
        [5, "end", "kept"],
        [20, "stop", "stopped"],
        [60, "end", "finishes"]
      ])
      assert.strictEqual(floor.marks.length, 6)
      assert.strictEqual(millis, 60)
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
      assertClean(floor, sleeping)
    }))

  it.effect("R-413: a batch of four failing calls runs each call once", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [
        floor.tool("a", failsAfter(1), safe),
        floor.tool("b", Effect.die("broken"), safe),
        floor.tool("c", Effect.never, { ...safe, timeout: 5 }),
        floor.tool("d", takes(5), cancelable)
      ]
      const calls = tools.map(({ name }) => toolCall(name, name))
      const { result, sleeping } = yield* run([[...calls, finish("tool_calls")], [text("done"), finish("stop")]], tools)
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.deepStrictEqual(result.steps[0]?.toolResults.map(({ isError }) => isError), [true, true, true, true])
      const starts = floor.marks.filter(([, what]) => what === "start").map(([, , id]) => id)
      assert.deepStrictEqual(starts, ["a", "b", "c", "d"])
      assertClean(floor, sleeping)
    }))
})

describe("Chat under Policy.falai: history", () => {
  it.effect("J-30, R-412: the model receives every result of every turn under its own call id, failures marked as failures", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const echo = floor.tool("echo", ({ n }) => n === 3 ? Effect.fail("no three") : Effect.succeed(n), safe)
      const script = [
        [toolCall("a", "echo", { n: 1 }), toolCall("b", "echo", { n: 2 }), finish("tool_calls")],
        [toolCall("c", "echo", { n: 3 }), finish("tool_calls")],
        [text("done"), finish("stop")]
      ]
      const { requests } = yield* run(script, [echo])
      assert.deepStrictEqual(transcript(Thread.fromMessages(requests.at(-1)?.messages ?? [])), [
        "user(go)",
        "assistant()",
        "TM(a,1)",
        "TM(b,2)",
        "assistant()",
        "TM(c,{\"error\":\"no three\"})"
      ])
      assert.isTrue(requests.at(-1)?.messages.at(-1)?.isError)
    }))

  it.effect("R-412, R-415: with falai's encoder the model reads results and failures in plain words", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const tools = [
        floor.tool("nothing", Effect.void, safe),
        floor.tool("object", takes(1, { success: true, data: { n: 1 } }), safe),
        floor.tool("failing", takes(2, { success: false, error: "no ink" }), safe),
        floor.tool("denied", Effect.void, { authorize: () => ({ allowed: false, reason: "not yours" }) })
      ]
      const calls = tools.map(({ name }) => toolCall(name, name))
      const script = [[...calls, toolCall("ghost", "ghost"), finish("tool_calls")], [text("done"), finish("stop")]]
      const { requests } = yield* run(script, tools).pipe(Effect.provide(Encoder.layer(Encoder.falai)))
      assert.deepStrictEqual(transcript(Thread.fromMessages(requests[1]?.messages.slice(2) ?? [])), [
        "TM(nothing,Tool executed successfully)",
        "TM(object,{\"n\":1})",
        "TM(failing,Tool execution failed: no ink)",
        "TM(denied,Tool execution failed: Permission denied: not yours)",
        "TM(ghost,Tool execution failed: tool error (ghost): unknown_tool: the tools are nothing, object, failing, denied)"
      ])
    }))

  it.effect("R-411: an unknown tool is answered with an error, and the other calls run", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const script = [[toolCall("g", "ghost"), toolCall("a", "a"), finish("tool_calls")], [
        text("done"),
        finish("stop")
      ]]
      const { result } = yield* run(script, [floor.tool("a", takes(1))])
      assert.deepStrictEqual(result.steps[0]?.toolResults.map(({ toolCallId, isError }) => [toolCallId, isError]), [
        ["g", true],
        ["a", undefined]
      ])
    }))
})

/** So many turns in which the model calls a tool, and what it says after that. */
const turns = (count: number, ...after: ReadonlyArray<ReadonlyArray<Script.Entry>>) => [
  ...Array.from({ length: count }, (_, index) => [toolCall(`c${index}`, "again"), finish("tool_calls")] as const),
  ...after
]

describe("Chat under Policy.falai: the closing answer", () => {
  const again = () => new Floor().tool("again", Effect.succeed("more"))
  const closing = [text("That is all."), finish("stop")] as const

  it.effect("R-414: after the first call and five follow-ups one more call without tools gives the answer", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf(turns(6, closing, [text("never asked"), finish("stop")]), {
        tools: [again()],
        policy
      })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.strictEqual(result.finalized, "max_turns")
      assert.strictEqual(result.finalResponse?.outputText, "That is all.")
      assert.strictEqual(result.steps.length, 7)
      const requests = yield* model.requests
      assert.deepStrictEqual(requests.map(({ toolChoice }) => toolChoice), [...Array(6), "none"])
      assert.strictEqual(result.thread.messages.filter(({ role }) => role === "tool").length, 6)
    }))

  it.effect("R-414: the caller's maxTurns wins over the number of the policy, down to no follow-up", () =>
    Effect.gen(function*() {
      for (const maxTurns of [1, 2]) {
        const { model, result } = yield* chatOf(turns(maxTurns, closing), { tools: [again()], policy, maxTurns })
        assert.strictEqual(yield* model.opens, maxTurns + 1)
        assert.strictEqual(result.finalResponse?.outputText, "That is all.")
      }
    }))

  it.effect("R-414: a run that ends by itself in its last turn makes no closing call", () =>
    Effect.gen(function*() {
      const { model, result } = yield* chatOf(turns(5, closing), { tools: [again()], policy })
      assert.strictEqual(yield* model.opens, 6)
      assert.notProperty(result, "finalized")
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
    }))

  it.effect("R-414: tool calls in the closing reply are answered without running, and the run ends", () =>
    Effect.gen(function*() {
      let runs = 0
      const tool = new Floor().tool("again", Effect.as(Effect.sync(() => runs++), "more"))
      const { model, result } = yield* chatOf(turns(3), { tools: [tool], policy, maxTurns: 2 })
      assert.strictEqual(runs, 2 * 2, "twice in each of the two runs, awaited and streamed")
      assert.strictEqual(yield* model.opens, 3)
      assert.deepStrictEqual(result.outcome, { _tag: "MaxTurns", maxTurns: 2 })
      assert.strictEqual(result.finalized, "max_turns")
      assert.include(transcript(result.thread).at(-1), "unknown_tool")
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
    }))

  it.effect("R-414: a refused closing call leaves the steps made so far", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf(turns(2), { tools: [again()], policy, maxTurns: 2 })
      assert.strictEqual(result.steps.length, 2)
      assert.strictEqual(result.haltedReason, "error")
      assert.deepStrictEqual(Thread.unanswered(result.thread), [])
    }))

  it.effect("CF-12: haltWhen and structuredFinalize end a run under Policy.falai without its closing answer", () =>
    Effect.gen(function*() {
      const halted = yield* chatOf(turns(2, closing), { tools: [again()], policy, maxTurns: 1, haltWhen: () => true })
      assert.deepStrictEqual(halted.result.outcome, { _tag: "HaltWhen", stepIndex: 0 })
      const structured = yield* chatOf(turns(1, [text("{}"), finish("stop")]), {
        tools: [again()],
        policy,
        maxTurns: 1,
        structuredFinalize: true,
        responseFormat: { type: "json_object" }
      })
      assert.deepStrictEqual(structured.result.structuredFinalize, { pass1Halted: "max_turns" })
      assert.notProperty(structured.result, "finalized")
      assert.strictEqual(structured.result.finalResponse?.outputText, "{}")
    }))
})

describe("Policy.falai", () => {
  it("Policy.falai is a whole policy and survives JSON", () => {
    const json = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(Policy.Policy)(policy)))
    assert.deepStrictEqual(Schema.decodeUnknownSync(Policy.Policy)(json), policy)
    const wrong = { ...policy, siblings: { ...policy.siblings, onToolError: "panic" } }
    assert.isTrue(Result.isFailure(Schema.decodeUnknownResult(Policy.Policy)(wrong)))
  })

  it.effect("R-416: an executor's updates and a run's events are the same, in the same order", () =>
    Effect.gen(function*() {
      const works = (floor: Floor) => [
        floor.work("a", takes(20), safe),
        floor.work("b", (_args, call) => Effect.andThen(call.progress("half"), takes(5)), safe),
        floor.work("c", failsAfter(10), safe),
        floor.work("d", takes(60), cancelable),
        floor.work("e", takes(5))
      ]
      const executor = yield* byExecutor(works(new Floor()))
      for (const delivery of ["early", "after"] as const) {
        const chat = yield* byChat(delivery)(works(new Floor()))
        assert.deepStrictEqual(chat.progress, executor.progress)
        assert.deepStrictEqual(chat.contents, executor.contents)
        assert.deepStrictEqual(
          chat.results.map(({ id, at }) => [id, at]),
          executor.results.map(({ id, at }) => [id, at])
        )
      }
    }))

  it.effect("a single step under Policy.falai gives falai's answers", () =>
    Effect.gen(function*() {
      const floor = new Floor()
      const model = Script.layer([toolCall("a", "a"), toolCall("b", "b"), finish("tool_calls")])
      const tools = [floor.tool("a", takes(10, { data: "A" })), floor.tool("b", takes(5, { error: "B" }))]
      const program = Effect.provide(Step.run([Message.user("go")], { tools, policy }), model)
      const step = valueOf(yield* Simulation.run(program))
      assert.deepStrictEqual(step.toolResults.map(({ content, isError }) => [content, isError]), [
        ["A", undefined],
        ["{\"error\":\"B\"}", true]
      ])
    }))
})
