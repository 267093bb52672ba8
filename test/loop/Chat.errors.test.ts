/**
 * Runs that break: before anything was said the run fails, afterwards it ends in a result that says so, with the steps it
 * made. No call is left without an answer either way.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Policy, type Step, Thread, Tool } from "heddle"
import { Script } from "heddle/testing"
import { chatOf, echo, only, start, tags, transcript } from "../support/scenarios.ts"

const { error, finish, text, toolCall } = Script

const callEcho = [toolCall("c0", "echo", { x: 1 }), finish("tool_calls")]
const done = [text("done"), finish("stop")]

const errorOf = (result: Event.ChatResult): unknown => {
  if (result.outcome._tag !== "Failed") throw new Error(`the run must have failed: ${result.outcome._tag}`)
  return result.outcome.error
}

const messageOf = (exit: Exit.Exit<unknown, unknown>): string =>
  Exit.isFailure(exit) ? String(Cause.squash(exit.cause)) : "it succeeded"

describe("Chat: options of programs without types", () => {
  it.effect("an option of a wrong type is refused with a message that names the option before a model is asked", () =>
    Effect.gen(function*() {
      const model = yield* Script.make({ script: done })
      const refused: ReadonlyArray<readonly [options: object, message: string]> = [
        [{ cancel: new AbortController() }, "cancel must be an AbortSignal or an Effect"],
        [{ cancel: "now" }, "cancel must be an AbortSignal or an Effect"],
        [{ tools: { echo } }, "tools must be an array of tools made with Tool.make"],
        [{ tools: [null] }, "tools[0] must be a tool made with Tool.make; got: null"],
        [{ tools: [{}] }, "tools[0] must be a tool made with Tool.make; got: an object"],
        [{ onEvent: () => Promise.resolve() }, "onEvent returned a Promise; return an Effect or nothing"]
      ]
      for (const [options, message] of refused) {
        const exit = yield* Effect.exit(Effect.provide(Chat.run(start, options as {}), model.layer))
        assert.include(messageOf(exit), message)
        assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause), message)
      }
    }))
})

describe("Chat: runs that cannot start", () => {
  it.effect("C-14, R-175: a refused first model call fails the awaited run and the stream", () =>
    Effect.gen(function*() {
      for (const input of [{}, { scripts: [[Script.preflightError("authentication_failed")]] }]) {
        const reason = "scripts" in input ? "authentication_failed" : "no_scripted_response"
        const model = yield* Script.make(input)
        const awaited = yield* Effect.flip(Effect.provide(Chat.run(start), model.layer))
        assert.strictEqual((awaited as Adapter.AdapterError).reason, reason)
        const other = yield* Script.make(input)
        const seen: Array<string> = []
        const streamed = yield* Chat.stream(start).pipe(
          Stream.runForEach((event) => Effect.sync(() => void seen.push(event._tag))),
          Effect.flip,
          Effect.provide(other.layer)
        )
        assert.strictEqual((streamed as Adapter.AdapterError).reason, reason)
        assert.deepStrictEqual(seen, [])
      }
    }))

  it.effect("R-187, P-13: a run with an empty thread or without an adapter emits no event", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done])
      const empty = yield* Effect.flip(Effect.provide(Stream.runHead(Chat.stream([])), model.layer))
      assert.strictEqual((empty as Thread.ValidationError).reason, "invalid_request")
      const missing = yield* Effect.flip(Stream.runHead(Chat.stream("go")) as Effect.Effect<unknown, Chat.ChatError>)
      assert.strictEqual((missing as Step.EngineError).reason, "missing_adapter")
      const awaited = yield* Effect.flip(Chat.run("go") as Effect.Effect<unknown, Chat.ChatError>)
      assert.strictEqual((awaited as Step.EngineError).reason, "missing_adapter")
      assert.strictEqual(yield* model.opens, 0)
    }))
})

describe("Chat: runs that fail midway", () => {
  it.effect("C-12, R-172, R-176: an error in a later reply ends the run and keeps its step", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([callEcho, [text("p"), error("network_error")]], { tools: [echo] })
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual(result.steps.length, 2)
      assert.strictEqual((errorOf(result) as Adapter.AdapterError).reason, "network_error")
      assert.strictEqual(result.finalResponse?.outputText, "p")
      assert.deepStrictEqual(transcript(result.thread).at(-1), "assistant(p)")
    }))

  it.effect("R-176: an error after the first event of the first reply gives a result with that step", () =>
    Effect.gen(function*() {
      for (const script of [[text("p"), error("network_error")], [text("p"), Script.streamError("network_error")]]) {
        const { events, result } = yield* chatOf([script])
        assert.strictEqual((errorOf(result) as Adapter.AdapterError).reason, "network_error")
        assert.strictEqual(result.steps.length, 1)
        assert.strictEqual(only(events, "Error").length, 1)
      }
    }))

  it.effect("C-13, R-175, R-190: a refused later model call ends the run with the steps before that call", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([callEcho], { tools: [echo] })
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual(result.steps.length, 1)
      assert.strictEqual((errorOf(result) as Adapter.AdapterError).reason, "no_scripted_response")
      assert.deepStrictEqual(result.thread, result.steps[0]?.thread)
      assert.deepStrictEqual(tags(events).slice(-3), ["StepCompleted", "Error", "ChatCompleted"])
      assert.strictEqual(only(events, "Error")[0]?.error, errorOf(only(events, "ChatCompleted")[0]!.result))
      assert.strictEqual(yield* model.opens, 2)
    }))

  it.effect("R-190, R-131: the observer sees the error of a refused later model call", () =>
    Effect.gen(function*() {
      const seen: Array<string> = []
      const model = yield* Script.make([callEcho])
      const onEvent = (event: Event.Event) => void seen.push(event._tag)
      yield* Effect.provide(Chat.run(start, { tools: [echo], onEvent }), model.layer)
      assert.deepStrictEqual(seen.slice(-3), ["StepCompleted", "Error", "ChatCompleted"])
    }))

  it.effect("P-12, R-145: calls before an error in the same reply are answered as cancelled", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([[toolCall("a", "echo"), toolCall("b", "echo"), error("timeout")]], {
        tools: [echo]
      })
      assert.deepStrictEqual(result.steps[0]?.toolResults.map((message) => message.isError), [true, true])
    }))

  const bug = new Error("bug")
  const refuses = () => {
    throw new Error("refused")
  }
  const unreadable = { toJSON: refuses, toString: refuses }
  const dying: Readonly<Record<string, () => Stream.Stream<Event.AdapterEvent>>> = {
    "dies": () => Stream.die(bug),
    "throws": () => {
      throw bug
    },
    "throws within its stream": () =>
      Stream.suspend(() =>
        Stream.map(Stream.make(1), () => {
          throw bug
        })
      ),
    "emits undefined": () => Stream.make(undefined as never),
    "emits an object that is no event": () => Stream.make({} as never),
    "emits an unreadable event": () => Stream.make(unreadable as never),
    "emits an event that refuses inspection": () => Stream.make(new Proxy({}, { has: refuses }) as never),
    "emits undefined for a list of events": () => Stream.fromPull(Effect.succeed(Effect.succeed(undefined as never))),
    "returns no stream": () => undefined as never,
    "interrupts itself": () => Stream.fromEffect(Effect.interrupt)
  }
  const called: Event.AdapterEvent = {
    _tag: "ToolCallCompleted",
    id: "c0",
    name: "echo",
    arguments: {},
    rawArguments: "{}"
  }
  const said: Event.AdapterEvent = { _tag: "TextDelta", id: null, delta: "p" }
  const views = [{}, { cancel: Effect.never }, { onEvent: () => Effect.void }] as const

  /** What a run comes to whose adapter gives these replies, awaited and streamed. Every connection is closed. */
  const deaths = (replies: ReadonlyArray<() => Stream.Stream<Event.AdapterEvent>>, view: (typeof views)[number]) =>
    Effect.gen(function*() {
      let open = 0
      const adapter = () => {
        let turn = 0
        return Adapter.layer({
          stream: () => {
            const reply = replies[turn++]!()
            const connected = Effect.acquireRelease(Effect.sync(() => open++), () => Effect.sync(() => open--))
            return reply === undefined ? reply : Stream.unwrap(Effect.as(connected, reply))
          }
        })
      }
      const options = { tools: [echo], ...view }
      const events: Array<Event.Event> = []
      const awaited = yield* Effect.exit(Effect.provide(Chat.run(start, options), adapter()))
      const streamed = yield* Chat.stream(start, options).pipe(
        Stream.runForEach((event) => Effect.sync(() => void events.push(event))),
        Effect.provide(adapter()),
        Effect.exit
      )
      assert.strictEqual(open, 0)
      assert.strictEqual(streamed._tag, awaited._tag)
      const errors = [Exit.asVoid(awaited), streamed].map((exit) =>
        Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
      )
      return { awaited, errors, events }
    })

  it.effect("M-04: a foreign element within a chunk ends the reply behind the events before that element", () =>
    Effect.gen(function*() {
      for (const view of views) {
        const reply = () => Stream.make(said, {} as never, { ...said, delta: "q" })
        const { awaited, events } = yield* deaths([reply], view)
        assert.isTrue(Exit.isSuccess(awaited))
        if (!Exit.isSuccess(awaited)) return
        assert.include(String(errorOf(awaited.value)), "which is not an event")
        assert.strictEqual(awaited.value.steps[0]?.response.outputText, "p")
        assert.deepStrictEqual(only(events, "TextDelta").map(({ delta }) => delta), ["p"])
      }
    }))

  for (const [name, dies] of Object.entries(dying)) {
    it.effect(`M-04: an adapter that ${name} in the second turn ends the run as Failed, with the defect and every step`, () =>
      Effect.gen(function*() {
        for (const view of views) {
          for (const isBegun of [false, true]) {
            const second = () => isBegun ? Stream.concat(Stream.make(said), Stream.suspend(dies)) : dies()
            const { awaited, events } = yield* deaths([() => Stream.make(called), second], view)
            assert.isTrue(Exit.isSuccess(awaited))
            if (!Exit.isSuccess(awaited)) return
            const error = errorOf(awaited.value)
            assert.instanceOf(error, Error)
            assert.notInstanceOf(error, Adapter.AdapterError)
            if (/^(dies|throws)/.test(name)) assert.strictEqual(error, bug)
            assert.strictEqual(awaited.value.steps.length, isBegun ? 2 : 1)
            assert.strictEqual(awaited.value.steps[0]?.toolResults.length, 1)
            assert.isEmpty(Thread.unanswered(awaited.value.thread))
            assert.deepStrictEqual(tags(events).at(-1), "ChatCompleted")
            assert.deepStrictEqual(only(events, "Error").map((event) => event.error), [error])
          }
        }
      }))

    it.effect(`M-04: an adapter that ${name} before its first event fails the run with an AdapterError`, () =>
      Effect.gen(function*() {
        for (const view of views) {
          const { errors } = yield* deaths([dies], view)
          for (const error of errors) {
            assert.instanceOf(error, Adapter.AdapterError)
            assert.strictEqual((error as Adapter.AdapterError).reason, "unknown")
            const { cause } = error as Adapter.AdapterError
            assert.instanceOf(cause, Error)
            if (/^(dies|throws)/.test(name)) assert.strictEqual(cause, bug)
          }
          const first = (): Stream.Stream<Event.AdapterEvent> =>
            Stream.concat(Stream.make(said, called), Stream.suspend(dies))
          const { awaited } = yield* deaths([first], view)
          assert.isTrue(Exit.isSuccess(awaited))
          if (!Exit.isSuccess(awaited)) return
          assert.instanceOf(errorOf(awaited.value), Error)
          assert.strictEqual(awaited.value.steps[0]?.response.outputText, "p")
          assert.isEmpty(Thread.unanswered(awaited.value.thread))
        }
      }))

    it.effect(`M-04: Adapter.classify with an adapter that ${name} fails with an AdapterError`, () =>
      Effect.gen(function*() {
        if (/emits/.test(name)) return
        const error = yield* Effect.flip(Effect.provide(Adapter.classify("go"), Adapter.layer({ stream: dies })))
        assert.strictEqual(error.reason, "unknown")
        assert.instanceOf(error.cause, Error)
      }))
  }

  it.effect("an adapter that emits nothing leads to a completed run without text", () =>
    Effect.gen(function*() {
      const result = yield* Chat.run("go").pipe(Effect.provide(Adapter.layer({ stream: () => Stream.empty })))
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: null })
      assert.isNull(result.finalResponse?.outputText)
    }))
})

describe("Chat: unknown tools", () => {
  const ghost = [toolCall("g", "ghost"), finish("tool_calls")]

  it.effect("R-140, R-191: by default the model receives the error of an unknown tool, and the loop continues", () =>
    Effect.gen(function*() {
      const { result } = yield* chatOf([ghost, done], { tools: [echo] })
      assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
      assert.isTrue(result.thread.messages[2]?.isError)
    }))

  it.effect("R-191: under allm an unknown tool of a later turn ends the run as an error, awaited and streamed", () =>
    Effect.gen(function*() {
      const { events, model, result } = yield* chatOf([callEcho, ghost, done], { tools: [echo], policy: Policy.allm })
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual((errorOf(result) as Step.EngineError).reason, "unknown_tool")
      assert.strictEqual(result.steps.length, 2)
      assert.isEmpty(Thread.unanswered(result.thread))
      assert.deepStrictEqual(tags(events).slice(-3), ["Error", "StepCompleted", "ChatCompleted"])
      assert.strictEqual(yield* model.opens, 2)
    }))
})

describe("Chat: compact tools", () => {
  const compact = Tool.make("search", {
    description: "Search the archive",
    summary: "search",
    compact: true,
    parameters: { type: "object", properties: { q: { type: "string" } }, required: ["q"] },
    handler: (args) => Effect.succeed(args)
  })
  const scripts = [
    [toolCall("h", "tool_help", { names: ["search"] }), finish("tool_calls")],
    [toolCall("s", "search", { q: "x" }), finish("tool_calls")],
    done
  ]

  for (const policy of [Policy.standard, Policy.allm]) {
    it.effect(`R-194: a tool_help call for a compact tool runs as a known tool (${policy.unknownTool})`, () =>
      Effect.gen(function*() {
        const { events, model, result } = yield* chatOf(scripts, { tools: [compact], policy })
        assert.deepStrictEqual(result.outcome, { _tag: "Completed", finishReason: "stop" })
        assert.isEmpty(only(events, "Error"))
        const [request] = yield* model.requests
        assert.deepStrictEqual(request?.tools.map((tool) => tool.name), ["search", "tool_help"])
        assert.include(Message.text(result.thread.messages[2]!), "Search the archive")
      }))
  }
})
