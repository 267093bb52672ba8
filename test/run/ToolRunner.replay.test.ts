/**
 * Calls of a run that is resumed after its process ended: one that had started has passed its gates, one that was answered
 * keeps its answer, one that is tried again keeps its key, and one that may have had its effect goes by
 * the policy of its tool.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Collector, Event, Message, Policy, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import * as Answers from "../../src/internal/answer/answer.ts"
import * as RunJournal from "../../src/internal/run/runJournal.ts"
import { runCalls, runChat, streamCalls } from "../support/recalled.ts"

interface Known extends RunJournal.Replayed {
  /** Whether its last attempt failed, so that the next one is granted. */
  readonly isGranted?: boolean
}

/** The journal of a run that is resumed, of which this is known, by the ids of its calls. */
const resumed = (calls: Readonly<Record<string, Known>>, records: Array<string> = []): RunJournal.Journal =>
  RunJournal.recalling(({ id }) => {
    const known = calls[id]
    return known && { ...known, isUnknown: known.hasStarted && known.isGranted !== true }
  }, {
    answered: ({ id }) => Effect.sync(() => void records.push(`answered ${id}`)),
    waits: ({ id }) => Effect.sync(() => void records.push(`waits ${id}`)),
    failed: ({ id }) => Effect.sync(() => void records.push(`failed ${id}`))
  })

const started: Known = { hasStarted: true, idempotencyKey: "r0:3:0:a", attempt: 1 }

const fresh: Known = { hasStarted: false, attempt: 0 }

/** A tool that keeps what its handler was called with. */
const charging = (options: object = {}) => {
  const calls: Array<Pick<Tool.CallContext, "idempotencyKey" | "attempt">> = []
  const charge = Tool.make("charge", {
    parameters: { amount: Schema.FiniteFromString },
    ...options,
    handler: ({ amount }, { attempt, idempotencyKey }) =>
      Effect.sync(() => {
        calls.push({ idempotencyKey, attempt })
        return { charged: amount }
      })
  })
  return { calls, charge: charge as Tool.Any }
}

const calling = (...ids: ReadonlyArray<string>) => ids.map((id) => Message.toolCall(id, "charge", { amount: "5" }))

const eventsOf = (
  tools: ReadonlyArray<Tool.Any>,
  known: Readonly<Record<string, Known>>,
  options: ToolRunner.Options = {},
  calls = calling("a")
) => streamCalls(calls, tools, options, resumed(known)).pipe(Stream.runCollect, Effect.provide(Logger.layer([])))

const last = (events: ReadonlyArray<Event.Event>) => events.at(-1)!

const contentOf = (events: ReadonlyArray<Event.Event>) => {
  const tail = last(events)
  return tail._tag === "ToolResultEncoded" || tail._tag === "ToolHalt" ? String(tail.content) : tail._tag
}

const unknownText =
  "{\"error\":\"tool error (charge): unknown_effect: the run was interrupted before the result of the call " +
  "was recorded: it may have had its effect, or not\",\"code\":\"unknown_effect\"}"

describe("a call with an unknown effect", () => {
  for (
    const [how, options] of [
      ["is idempotent", { idempotent: true }],
      ["is read-only", { readOnly: true }],
      ["has afterCrash \"retry\"", { afterCrash: "retry" }]
    ] as const
  ) {
    it.effect(`D-01: the call of a tool that ${how} is retried, with its key and as the next attempt`, () =>
      Effect.gen(function*() {
        const { calls, charge } = charging(options)
        const events = yield* eventsOf([charge], { a: started })
        assert.deepStrictEqual(calls, [{ idempotencyKey: "r0:3:0:a", attempt: 2 }])
        assert.deepStrictEqual(events, [
          { _tag: "ToolExecutionStarted", id: "a", name: "charge", arguments: { amount: "5" }, replayed: true },
          { _tag: "ToolExecutionStarted", id: "a", name: "charge", arguments: { amount: "5" }, attempt: 2 },
          { _tag: "ToolExecutionCompleted", id: "a", name: "charge", result: { _tag: "Ok", value: { charged: 5 } } },
          { _tag: "ToolResultEncoded", id: "a", content: "{\"charged\":5}" }
        ])
      }))
  }

  for (
    const [how, options] of [
      ["declares nothing", {}],
      ["has afterCrash \"report\"", { afterCrash: "report" }],
      ["is idempotent and has afterCrash \"report\"", { idempotent: true, afterCrash: "report" }]
    ] as const
  ) {
    it.effect(`D-01: the call of a tool that ${how} is reported as unknown, and the error policy is not asked`, () =>
      Effect.gen(function*() {
        const { calls, charge } = charging(options)
        for (const onToolError of ["continue", "halt", () => Effect.die("is not asked")] as const) {
          const events = yield* eventsOf([charge], { a: started }, { onToolError })
          const code = "unknown_effect"
          const tail = { _tag: "ToolResultEncoded", id: "a", content: unknownText, isError: true, code }
          assert.deepStrictEqual(last(events), tail as Event.Event)
        }
        assert.deepStrictEqual(calls, [])
      }))
  }

  it.effect("D-01: a call reported as unknown stops no call beside it", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging()
      const policy: Policy.Policy = {
        ...Policy.standard,
        siblings: { onHalt: "abortAll", onToolError: "abortAll", queued: "skip", trigger: "crashedOrReported" }
      }
      const { messages } = yield* runCalls(
        calling("a", "b"),
        [charge],
        { policy, maxConcurrency: 1 },
        resumed({ a: started })
      )
      assert.deepStrictEqual(messages.map(({ content }) => content), [unknownText, "{\"charged\":5}"])
      assert.strictEqual(calls.length, 1)
    }))

  it.effect("D-01: the call of a tool with afterCrash \"ask\" is put to a person", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging({ afterCrash: "ask" })
      const result = yield* runChat("go", { tools: [charge] }, resumed({ a: started })).pipe(
        Effect.provide(Script.layer([[Script.toolCall("a", "charge", { amount: "5" }), Script.finish("tool_calls")]]))
      )
      assert.strictEqual(result.outcome._tag, "ApprovalRequested")
      assert.deepInclude(result.suspensions?.[0], {
        id: "a",
        kind: "unknown",
        question: "The run was interrupted during the call charge({\"amount\":\"5\"}). Did the call have its effect?",
        opts: ["It had its effect", "It had no effect"]
      })
      assert.deepStrictEqual(calls, [])
    }))

  it.effect("D-01: the question about an unknown call cuts long arguments", () =>
    Effect.gen(function*() {
      const { charge } = charging({ afterCrash: "ask" })
      const calls = [Message.toolCall("a", "charge", { amount: `${"0".repeat(2_000)}5` })]
      const tail = last(yield* eventsOf([charge], { a: started }, {}, calls))
      const question = tail._tag === "ToolSuspended" ? tail.suspensions[0]?.question : undefined
      assert.isBelow(question?.length ?? Infinity, 1_200, JSON.stringify(tail))
    }))

  it.effect("D-01: the call of a tool with afterCrash \"fail\" ends the run, whatever the error policy decides", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging({ afterCrash: "fail" })
      for (const onToolError of ["continue", () => Effect.die("is not asked")] as const) {
        const result = yield* runChat("go", { tools: [charge], onToolError }, resumed({ a: started })).pipe(
          Effect.provide(
            Script.layer([[Script.toolCall("a", "charge", { amount: "5" }), Script.finish("tool_calls")]])
          )
        )
        assert.deepStrictEqual(result.outcome, { _tag: "ToolFailed", haltToolCallId: "a" })
        assert.strictEqual(result.steps[0]?.toolResults[0]?.content, unknownText)
      }
      assert.deepStrictEqual(calls, [])
    }))

  it.effect("a call that had not started runs normally, whatever afterCrash says", () =>
    Effect.gen(function*() {
      for (const afterCrash of ["retry", "report", "ask", "fail"] as const) {
        const { calls, charge } = charging({ afterCrash })
        const events = yield* eventsOf([charge], { a: fresh }, { requestId: "r1" })
        assert.strictEqual(contentOf(events), "{\"charged\":5}")
        assert.deepStrictEqual(calls, [{ idempotencyKey: "r1:0:0:a", attempt: 1 }])
        assert.isFalse(events.some((event) => "replayed" in event))
      }
    }))

  describe("Tool.lookUp", () => {
    it.effect("D-01: a found value is the outcome by the success schema of the tool, and the handler does not run", () =>
      Effect.gen(function*() {
        const seen: Array<unknown> = []
        const closed: Array<string> = []
        const { calls, charge } = charging({
          success: Schema.Struct({ at: Schema.Date }),
          lookUp: (args: unknown, { attempt, idempotencyKey }: Tool.CallContext) =>
            Effect.gen(function*() {
              yield* Effect.addFinalizer(() => Effect.sync(() => closed.push("closed")))
              seen.push({ args, attempt, idempotencyKey })
              return Option.some({ at: new Date(0) })
            })
        })
        const events = yield* eventsOf([charge], { a: started })
        assert.strictEqual(contentOf(events), "{\"at\":\"1970-01-01T00:00:00.000Z\"}")
        assert.deepStrictEqual(seen, [{ args: { amount: 5 }, attempt: 2, idempotencyKey: "r0:3:0:a" }])
        assert.deepStrictEqual([calls, closed], [[], ["closed"]])
      }))

    it.effect("D-01: a call whose lookUp finds nothing runs, with its key", () =>
      Effect.gen(function*() {
        const { calls, charge } = charging({ lookUp: () => Effect.succeedNone })
        assert.strictEqual(contentOf(yield* eventsOf([charge], { a: started })), "{\"charged\":5}")
        assert.deepStrictEqual(calls, [{ idempotencyKey: "r0:3:0:a", attempt: 2 }])
      }))

    it.effect("a found halt, question or content acts like a handler's result", () =>
      Effect.gen(function*() {
        const finding = (value: unknown) =>
          eventsOf([charging({ lookUp: () => Effect.succeedSome(value) }).charge], {
            a: started
          })
        assert.deepInclude(last(yield* finding(Tool.halt("paid", 7))), {
          _tag: "ToolHalt",
          reason: "paid",
          content: "7"
        })
        assert.deepInclude(last(yield* finding(Tool.askUser("Which?"))), {
          _tag: "AskUserRequested",
          question: "Which?"
        })
        const parts = [{ type: "text", text: "seen" } as const]
        assert.deepInclude(last(yield* finding(Tool.content(parts))), { content: parts })
      }))

    for (
      const [how, lookUp] of [
        ["fails", () => Effect.fail("no connection")],
        ["dies", () => Effect.die(new Error("broken"))],
        ["throws", () => {
          throw new Error("broken")
        }],
        ["interrupts itself", () => Effect.interrupt],
        ["returns a promise", async () => Option.none()],
        ["returns no Option", () => Effect.succeed({ charged: 5 })]
      ] as const
    ) {
      it.effect(`D-09: a call whose lookUp ${how} is reported as unknown, and does not run again`, () =>
        Effect.gen(function*() {
          const { calls, charge } = charging({ lookUp, idempotent: true })
          const tail = last(yield* eventsOf([charge], { a: started }))
          assert.deepInclude(tail, { content: unknownText, isError: true })
          assert.deepStrictEqual(calls, [])
        }))
    }

    it.effect("D-09: a call whose lookUp exceeds the call's timeout is answered by that timeout", () =>
      Effect.gen(function*() {
        const { calls, charge } = charging({ lookUp: () => Effect.never, timeout: "3 seconds" })
        const fiber = yield* Effect.forkChild(eventsOf([charge], { a: started }))
        yield* TestClock.adjust("3 seconds")
        const text = contentOf(yield* Fiber.join(fiber))
        assert.include(text, "timed out after 3000 ms")
        assert.deepStrictEqual(calls, [])
      }))

    it.effect("lookUp holds the permits of its call", () =>
      Effect.gen(function*() {
        let running = 0
        let most = 0
        const { charge } = charging({
          limits: [{ key: "bank", permits: 1 }],
          lookUp: () =>
            Effect.gen(function*() {
              most = Math.max(most, ++running)
              yield* Effect.yieldNow
              running--
              return Option.some(1)
            })
        })
        yield* eventsOf([charge], { a: started, b: started, c: started }, {}, calling("a", "b", "c"))
        assert.strictEqual(most, 1)
      }))
  })
})

describe("a replayed call", () => {
  const question = {
    _tag: "AskUserRequested",
    toolCallId: "a",
    toolName: "charge",
    question: "Which?",
    opts: []
  } as const

  it.effect("the gates are not asked again about a started call, but about a call that had not started", () =>
    Effect.gen(function*() {
      const asked: Array<string> = []
      const { charge } = charging({
        idempotent: true,
        approval: true,
        validate: (_: unknown, { id }: Tool.CallContext) => asked.push(`validate ${id}`) > 0,
        authorize: (_: unknown, { id }: Tool.CallContext) => asked.push(`authorize ${id}`) > 0
      })
      const events = yield* eventsOf([charge], { a: started, b: fresh }, {}, calling("a", "b"))
      assert.deepStrictEqual(asked, ["validate b", "authorize b"])
      assert.deepStrictEqual(
        events.filter(({ _tag }) => _tag === "ToolApprovalRequested" || _tag === "ToolResultEncoded").map((event) =>
          "toolCallId" in event ? event.toolCallId : "id" in event && event.id
        ).toSorted(),
        ["a", "b"]
      )
    }))

  it.effect("a recorded outcome is the outcome of its call, and its events are marked as replayed", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging()
      const message = Message.tool("a", "{\"charged\":9}")
      const answered = (recorded: object = {}): Known => ({
        ...started,
        answer: Answers.replayed("a", { message, ...recorded })
      })
      assert.deepStrictEqual(yield* eventsOf([charge], { a: answered() }), [
        {
          _tag: "ToolExecutionStarted",
          id: "a",
          name: "charge",
          arguments: { amount: "5" },
          replayed: true
        },
        {
          _tag: "ToolExecutionCompleted",
          id: "a",
          name: "charge",
          result: { _tag: "Ok", value: { charged: 9 } },
          replayed: true
        },
        { _tag: "ToolResultEncoded", id: "a", content: "{\"charged\":9}", replayed: true }
      ])
      const cut = answered({ originalLength: 99 })
      assert.deepInclude(last(yield* eventsOf([charge], { a: cut })), { originalLength: 99, replayed: true })
      const asking = { ...started, waits: question }
      assert.deepInclude(last(yield* eventsOf([charge], { a: asking })), { _tag: "AskUserRequested", replayed: true })
      const halting = answered({ halt: { haltedReason: "enough", haltToolCallId: "a", haltResult: 1 } })
      assert.deepInclude(last(yield* eventsOf([charge], { a: halting })), { _tag: "ToolHalt", replayed: true })
      assert.deepStrictEqual(calls, [])
    }))

  it.effect("an outcome known from the journal is not recorded again", () =>
    Effect.gen(function*() {
      const { charge } = charging()
      const records: Array<string> = []
      const answer = Answers.replayed("a", { message: Message.tool("a", "paid") })
      const known = { a: { ...started, answer }, b: { ...started, waits: { ...question, toolCallId: "b" } } }
      yield* runCalls(calling("a", "b", "c"), [charge], {}, resumed(known, records))
      assert.deepStrictEqual(records, ["answered c"])
    }))

  it.effect("the suspension of a replayed question has no replay mark", () =>
    Effect.gen(function*() {
      const { charge } = charging()
      const known: Known = { ...started, waits: question }
      const model = Script.layer([[Script.toolCall("a", "charge", { amount: "5" }), Script.finish("tool_calls")]])
      const { suspensions = [] } = yield* runChat("go", { tools: [charge] }, resumed({ a: known })).pipe(
        Effect.provide(model)
      )
      assert.deepStrictEqual(suspensions.map((one) => Object.keys(one).toSorted()), [
        ["id", "kind", "opts", "question", "toolCall"]
      ])
    }))

  it.effect("a recorded failed attempt is followed by the next attempt number", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging({ retry: Schedule.recurs(1) })
      const known: Known = { ...started, attempt: 3, isGranted: true }
      const events = yield* eventsOf([charge], { a: known })
      assert.deepStrictEqual(calls, [{ idempotencyKey: "r0:3:0:a", attempt: 4 }])
      assert.deepStrictEqual(last(events), { _tag: "ToolResultEncoded", id: "a", content: "{\"charged\":5}" })
    }))

  it.effect("a failed attempt is recorded when another attempt follows, and the last attempt as the answer", () =>
    Effect.gen(function*() {
      const records: Array<string> = []
      const busy = Tool.make("charge", {
        parameters: {},
        retry: Schedule.recurs(1),
        handler: () => Effect.fail("busy")
      })
      yield* runCalls(calling("a"), [busy], {}, resumed({}, records))
      assert.deepStrictEqual(records, ["failed a", "answered a"])
    }))

  const timedOut: Known = {
    ...started,
    answer: Answers.replayed("a", { message: { ...Message.tool("a", "it took too long"), isError: true } })
  }

  it.effect("D-05: a call answered by a timeout keeps that answer, and does not run", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging({ idempotent: true })
      const asked = () => Effect.die("is not asked")
      const events = yield* eventsOf([charge], { a: timedOut }, { onToolError: asked })
      assert.deepStrictEqual(events.map((event) => [event._tag, "replayed" in event && event.replayed]), [
        ["ToolExecutionStarted", true],
        ["ToolExecutionCompleted", true],
        ["ToolResultEncoded", true]
      ])
      assert.deepInclude(last(events), { content: "it took too long", isError: true })
      assert.deepInclude(events[1], { result: { _tag: "Error", error: "it took too long" } })
      assert.deepStrictEqual(calls, [])
    }))

  it.effect("D-05: a replayed answer that had halted its run halts the run again, and stops waiting calls", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging()
      const halted: Known = {
        ...started,
        answer: Answers.replayed("a", {
          message: { ...Message.tool("a", "it took too long"), isError: true },
          halt: { haltedReason: "tool_error", haltToolCallId: "a" }
        })
      }
      const policy: Policy.Policy = {
        ...Policy.standard,
        siblings: { ...Policy.standard.siblings, onHalt: "abortAll", queued: "skip" }
      }
      const result = yield* runCalls(calling("a", "b"), [charge], { policy }, resumed({ a: halted }))
      assert.deepStrictEqual(result.halt, { haltedReason: "tool_error", haltToolCallId: "a" })
      assert.strictEqual(result.messages[0]?.content, "it took too long")
      assert.include(String(result.messages[1]?.content), "cancelled")
      assert.deepStrictEqual(calls, [])
    }))

  it.effect("a nested run of a replayed call is not replayed", () =>
    Effect.gen(function*() {
      const { calls, charge } = charging()
      const nested = Tool.make("nested", {
        parameters: {},
        idempotent: true,
        handler: () => Effect.map(ToolRunner.run(calling("a"), [charge]), ({ messages }) => messages[0]?.content)
      })
      const events = yield* streamCalls([Message.toolCall("n", "nested")], [nested], {}, resumed({ a: started })).pipe(
        Stream.runCollect
      )
      assert.strictEqual(contentOf(events), "{\"charged\":5}")
      assert.deepInclude(calls[0], { attempt: 1 })
    }))

  it.effect("the replay mark survives the wire, and does not change a collected response", () =>
    Effect.gen(function*() {
      const { charge } = charging()
      const model = Script.layer([[Script.toolCall("a", "charge", { amount: "5" }), Script.finish("tool_calls")], [
        Script.text("Done."),
        Script.finish("stop")
      ]])
      const events = yield* Chat.stream("go", { tools: [charge], requestId: "r1" }).pipe(
        Stream.runCollect,
        Effect.provide(model)
      )
      // A reply that is repeated names the provider's own word, or has none.
      const named = (event: Event.Event) =>
        event._tag === "MessageCompleted" ? { rawFinishReason: event.finishReason } : {}
      const marked = events.map((event): Event.Event => ({ ...event, ...named(event), replayed: true }) as never)
      const folded = (some: ReadonlyArray<Event.Event>) =>
        Collector.toResponse(Collector.applyAll(Collector.initial({ requestId: "r1" }), some.slice(0, 6)))
      assert.deepStrictEqual(folded(marked), folded(events))
      const tags = ["ToolCallStarted", "ToolCallCompleted", "MessageStarted", "MessageCompleted", "TextDelta"]
      for (const event of marked.filter(({ _tag }) => tags.includes(_tag) || _tag.startsWith("ToolExec"))) {
        const again = Event.fromWire(JSON.parse(JSON.stringify(Event.toWire(event))))
        assert.deepInclude(again, { _tag: event._tag, replayed: true } as never)
      }
    }))
})
