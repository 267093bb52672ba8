import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, type Event, Message, Policy, Step, Tool, ToolRunner } from "heddle"
import { Recorder, Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

const says = (text: string): ReadonlyArray<Script.Entry> => [Script.text(text), Script.finish("stop")]

const calls = (...names: ReadonlyArray<string>): ReadonlyArray<Script.Entry> => [
  ...names.map((name, index) => Script.toolCall(`c${index}`, name)),
  Script.finish("tool_calls")
]

type Child = Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter>

/** A run of a script of its own. */
const child = (
  script: Script.Input,
  options: Chat.Options<ReadonlyArray<Tool.Tool<string, any, any, any, never>>> = {}
) => Stream.provide(Chat.stream("child", options), Script.layer(script))

const agent = (chat: () => Stream.Stream<Event.Event, Chat.ChatError, Adapter.Adapter>, more: object = {}) =>
  Tool.fromChat("agent", { parameters: {}, chat, ...more })

/** The events of a run that calls the agent once and then says that it is done. */
const parentOf = (tool: ReturnType<typeof agent>, options: Chat.Options = {}) =>
  Stream.runCollect(
    Stream.provide(Chat.stream("go", { ...options, tools: [tool] }), Script.layer([calls("agent"), says("done")]))
  )

const resultOf = (events: ReadonlyArray<Event.Event>): Event.ChatResult => {
  const last = events.at(-1)
  return last?._tag === "ChatCompleted" ? last.result : assert.fail("the stream did not complete")
}

const answerOf = (events: ReadonlyArray<Event.Event>) => {
  const message = resultOf(events).steps[0]?.toolResults[0]
  return { content: String(message?.content), isError: message?.isError === true }
}

const nested = (events: ReadonlyArray<Event.Event>): ReadonlyArray<Event.Event> =>
  events.flatMap((event) => event._tag === "ToolProgress" && event.id === "c0" ? [event.progress as Event.Event] : [])

const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })

const halt = Tool.make("halt", { parameters: {}, handler: () => Effect.succeed(Tool.halt("enough", 1)) })

describe("Tool.fromChat", () => {
  it.effect("the result of a Tool.fromChat call is the final text of its run", () =>
    Effect.gen(function*() {
      const events = succeeded(yield* Simulation.run(parentOf(agent(() => child([says("found it")])))))
      assert.deepStrictEqual(answerOf(events), { content: "found it", isError: false })
      assert.strictEqual(resultOf(events).outcome._tag, "Completed")
    }))

  it.effect("the events of a nested run are nested under its call id, whole and in order", () =>
    Effect.gen(function*() {
      const echo = Tool.make("echo", { parameters: {}, handler: () => Effect.succeed("echo") })
      const events = succeeded(
        yield* Simulation.run(parentOf(agent(() => child([calls("echo"), says("found it")], { tools: [echo] }))))
      )
      const tags = nested(events).map((event) => event._tag)
      assert.deepStrictEqual(
        tags.filter((tag) => tag.startsWith("Tool") || tag.endsWith("Completed")),
        [
          "ToolCallStarted",
          "ToolCallCompleted",
          "MessageCompleted",
          "ToolExecutionStarted",
          "ToolExecutionCompleted",
          "ToolResultEncoded",
          "StepCompleted",
          "TextCompleted",
          "MessageCompleted",
          "StepCompleted",
          "ChatCompleted"
        ]
      )
      const own = events.filter((event) => event._tag === "ToolExecutionStarted")
      assert.deepStrictEqual(own.map((event) => event.name), ["agent"])
    }))

  it.effect("no text of a nested run is lost, also of text read at once", () =>
    Effect.gen(function*() {
      const text = Array.from({ length: 500 }, (_, index) => `${index} `)
      const script = [...text.map((delta) => Script.text(delta)), Script.finish("stop")]
      const events = succeeded(yield* Simulation.run(parentOf(agent(() => Stream.rechunk(child([script]), 1000)))))
      const heard = nested(events).flatMap((event) => event._tag === "TextDelta" ? [event.delta] : [])
      assert.strictEqual(heard.join(""), text.join(""))
    }))

  it.effect("events after the end of a nested run do not change its result", () =>
    Effect.gen(function*() {
      const late: Event.Event = { _tag: "TextDelta", id: null, delta: "late" }
      const tool = agent(() => child([says("answer")]).pipe(Stream.concat(Stream.make(late)), Stream.rechunk(100)))
      assert.deepStrictEqual(answerOf(yield* parentOf(tool)), { content: "answer", isError: false })
    }))

  it.effect("a halt of the nested run does not end the outer run", () =>
    Effect.gen(function*() {
      const script = [[Script.text("so far"), ...calls("halt")], says("never")]
      const events = succeeded(yield* Simulation.run(parentOf(agent(() => child(script, { tools: [halt] })))))
      assert.deepStrictEqual(answerOf(events), { content: "so far", isError: false })
      assert.strictEqual(resultOf(events).outcome._tag, "Completed")
    }))

  it.effect("a nested run without an answer is a failure that names its reason", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [Child, string]> = [
        [child([calls("ask"), says("never")], { tools: [ask] }), "ask_user: Which city?"],
        [child([calls("halt")], { tools: [halt], mode: "manual" }), "manual_tool_calls"],
        [child([calls("none"), calls("none")], { maxTurns: 1 }), "max_turns"],
        [child([[Script.text("so"), Script.streamError("network_error")]]), "error: adapter error"],
        [Stream.provide(Step.stream("go"), Script.layer([says("a step")])), "no_result"]
      ]
      for (const [run, reason] of cases) {
        const { content, isError } = answerOf(succeeded(yield* Simulation.run(parentOf(agent(() => run)))))
        assert.isTrue(isError)
        assert.include(content, `the run ended without an answer: ${reason}`)
      }
    }))

  it.effect("the text of a nested run that ends at maxTurns is the result of the call", () =>
    Effect.gen(function*() {
      const run = child([[Script.text("as far as I got"), ...calls("none")]], { maxTurns: 1 })
      const events = succeeded(yield* Simulation.run(parentOf(agent(() => run))))
      assert.deepStrictEqual(answerOf(events), { content: "as far as I got", isError: false })
    }))

  it.effect("a nested run that cannot start is a failure of its call", () =>
    Effect.gen(function*() {
      const run = child([[Script.preflightError("authentication_failed")]])
      const { content, isError } = answerOf(succeeded(yield* Simulation.run(parentOf(agent(() => run)))))
      assert.isTrue(isError)
      assert.include(content, "authentication_failed")
    }))

  it.effect("`result` builds the result of the call from the whole nested run", () =>
    Effect.gen(function*() {
      const asking = Tool.fromChat("agent", {
        parameters: {},
        chat: () => child([calls("ask")], { tools: [ask] }),
        result: (result: Event.ChatResult) =>
          Effect.succeed(
            result.outcome._tag === "AskUser"
              ? Tool.askUser(result.outcome.pendingQuestion)
              : { turns: result.steps.length }
          )
      })
      const events = succeeded(yield* Simulation.run(parentOf(asking as never)))
      assert.deepStrictEqual(resultOf(events).outcome, {
        _tag: "AskUser",
        pendingQuestion: "Which city?",
        pendingToolCallId: "c0",
        askUserOpts: []
      })
    }))

  it.effect("a nested run and its handlers are interrupted with their call", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const recorder = yield* Recorder.make
        const slow = Tool.make("slow", { parameters: {}, handler: recorder.handler(() => Effect.sleep("1 hour")) })
        const tool = agent(() => child([calls("slow"), says("never")], { tools: [slow] }))
        const events = yield* parentOf(tool, { cancel: Effect.sleep(50) })
        return { events, counts: yield* recorder.counts("slow") }
      })
      const report = yield* Simulation.run(program)
      const { counts, events } = succeeded(report)
      assert.strictEqual(resultOf(events).outcome._tag, "Cancelled")
      assert.deepStrictEqual([counts.starts, counts.interrupts, counts.live], [1, 1, 0])
      assert.deepStrictEqual([report.millis, report.sleeping], [50, 0])
    }))

  it.effect("a blocking nested run is stopped softly with the outer run, and its answer counts", () =>
    Effect.gen(function*() {
      const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.sleep("1 hour") })
      const tool = agent(() => child([[Script.text("part "), ...calls("slow")], says("never")], { tools: [slow] }), {
        interrupt: "block",
        result: (result: Event.ChatResult) =>
          Effect.succeed(`${result.haltedReason}: ${String(result.finalResponse?.outputText)}`)
      })
      const report = yield* Simulation.run(parentOf(tool, { cancel: Effect.sleep(50) }))
      const events = succeeded(report)
      assert.strictEqual(resultOf(events).outcome._tag, "Cancelled")
      assert.deepStrictEqual(answerOf(events), { content: "cancelled: part ", isError: false })
      assert.strictEqual(report.millis, 50)
    }))

  it.effect("a Tool.fromChat call has no timeout by default", () =>
    Effect.gen(function*() {
      const chat = () => child([[Script.delay("2 hours"), ...says("late")]])
      const patient = succeeded(yield* Simulation.run(parentOf(agent(chat))))
      assert.deepStrictEqual(answerOf(patient), { content: "late", isError: false })
      const hasty = yield* Simulation.run(parentOf(agent(chat, { timeout: "1 minute" })))
      assert.include(answerOf(succeeded(hasty)).content, "timeout")
      assert.strictEqual(hasty.millis, 60_000)
    }))

  it.effect("law 11: a nested run ignores toolTimeout, and the gates of its call keep toolTimeout", () =>
    Effect.gen(function*() {
      const guarded = agent(() => child([says("never")]), { authorize: () => Effect.never })
      const report = yield* Simulation.run(parentOf(guarded, { toolTimeout: 50 }))
      const { content, isError } = answerOf(succeeded(report))
      assert.isTrue(isError)
      assert.include(content, "the call was not allowed within 50 ms")
      assert.strictEqual(report.millis, 50)
      const long = agent(() => Stream.concat(Stream.drain(Stream.fromEffect(Effect.sleep(500))), child([says("done")])))
      const patient = yield* Simulation.run(parentOf(long, { toolTimeout: 50 }))
      assert.deepStrictEqual(answerOf(succeeded(patient)), { content: "done", isError: false })
    }))

  it.effect("gates and sibling policies apply to a Tool.fromChat call as to any call", () =>
    Effect.gen(function*() {
      const denied = agent(() => child([says("never")]), { authorize: () => false })
      assert.include(answerOf(succeeded(yield* Simulation.run(parentOf(denied)))).content, "Permission denied")
      const boom = Tool.make("boom", {
        parameters: {},
        handler: () => Effect.andThen(Effect.sleep(5), Effect.die("x"))
      })
      const policy = { ...Policy.standard, siblings: { ...Policy.standard.siblings, onToolError: "abortAll" as const } }
      const events = succeeded(
        yield* Simulation.run(Stream.runCollect(Stream.provide(
          Chat.stream("go", {
            tools: [agent(() => child([[Script.delay(1000), ...says("late")]])), boom],
            policy,
            maxConcurrency: 2
          }),
          Script.layer([calls("agent", "boom"), says("done")])
        )))
      )
      assert.include(answerOf(events).content, "cancelled")
    }))

  it.effect("text deltas of a nested run read together are merged only within one text", () =>
    Effect.gen(function*() {
      const delta = (id: string | null, delta: string): Event.Event => ({ _tag: "TextDelta", id, delta })
      const deltas = [delta("a", "1"), delta("a", "2"), delta("b", "3"), delta(null, "4"), delta("a", "5")]
      const speaking = agent(() => Stream.concat(Stream.fromIterable(deltas), child([says("done")])))
      const events = succeeded(yield* Simulation.run(parentOf(speaking)))
      const progress = events.flatMap((event) => event._tag === "ToolProgress" ? [event.progress as Event.Event] : [])
      assert.deepStrictEqual(
        progress.filter((event) => event._tag === "TextDelta").slice(0, 4),
        [delta("a", "12"), delta("b", "3"), delta(null, "4"), delta("a", "5")]
      )
    }))

  it.effect("a nested run is built from the call and its decoded arguments, and not from invalid arguments", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const tool = Tool.fromChat("agent", {
        parameters: { pages: Schema.FiniteFromString },
        chat: ({ pages }, { id }) => {
          seen.push([id, pages])
          return child([says(`${pages + 1} pages`)])
        }
      })
      const { messages } = yield* ToolRunner.run(
        [Message.toolCall("a", "agent", { pages: "41" }), Message.toolCall("b", "agent", { pages: [] })],
        [tool]
      )
      assert.deepStrictEqual(seen, [["a", 41]])
      assert.strictEqual(messages[0]?.content, "42 pages")
      assert.include(String(messages[1]?.content), "invalid_arguments")
    }))
})
