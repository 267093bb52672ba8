/** What a developer learns of a call whose handler died: from the log, from its span, from the event that completes it. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as References from "effect/References"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Chat, Event, Executor, Message, Policy, StreamingToolExecutor, Tool, ToolRunner } from "heddle"
import { Script } from "heddle/testing"
import { elapsed } from "../support/runs.ts"

const secret = "sk-ANTIQUE-LOOM"

class Torn extends Data.TaggedError("Torn")<{ readonly thread: number; readonly cause: unknown }> {}

const kaboom = new RangeError(`no thread ${secret}`)

/** Ways to die, each with its name in the log and what the completing event tells of it. */
const deaths: ReadonlyArray<readonly [() => Effect.Effect<unknown>, string, Readonly<Record<string, unknown>>]> = [
  [() => Effect.die(kaboom), " (RangeError)", { name: "RangeError", message: kaboom.message }],
  [
    () => {
      throw kaboom
    },
    " (RangeError)",
    { name: "RangeError", message: kaboom.message }
  ],
  [
    () => Effect.promise(() => Promise.reject(new Torn({ thread: 3, cause: secret }))),
    " (Torn)",
    { _tag: "Torn", name: "Torn", message: "", thread: 3 }
  ],
  [() => Effect.die(secret), "", { message: secret }]
]

const crashing = (handler: () => Effect.Effect<unknown, any>) => Tool.make("t", { parameters: {}, handler })

/** What is logged while an effect runs, at debug level and above. */
const loggedIn = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const lines: Array<
      { readonly level: string; readonly text: string; readonly notes: unknown; readonly cause: unknown }
    > = []
    const logger = Logger.make(({ cause, fiber, logLevel, message }) => {
      const notes = { ...fiber.getRef(References.CurrentLogAnnotations) }
      lines.push({ level: logLevel, text: String(message), notes, cause })
    })
    const value = yield* effect.pipe(
      Effect.provide(Layer.merge(Logger.layer([logger]), Layer.succeed(References.MinimumLogLevel, "Debug")))
    )
    return { lines, value, warnings: lines.filter(({ level }) => level === "Warn") }
  })

const recording = () => {
  const spans: Array<Tracer.Span> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      spans.push(span)
      return span
    }
  })
  return { spans, provide: Effect.withTracer(tracer) }
}

const exitOf = (span: Tracer.Span | undefined): Exit.Exit<unknown, unknown> => {
  if (span?.status._tag !== "Ended") throw new Error("the span has not ended")
  return span.status.exit
}

const calls = [Message.toolCall("c0", "t")]

const isCompleted = Event.guards.ToolExecutionCompleted

describe("a handler that dies", () => {
  it.effect("M-12: a crash logs one warning with code, tool, call id and error name, and its cause at debug level", () =>
    Effect.gen(function*() {
      const mended = () => Effect.succeed(Tool.ErrorDecision.continue("mended"))
      for (const [handler, name] of deaths) {
        const tool = crashing(handler)
        const model = Script.layer([[Script.toolCall("c0", "t", {}), Script.finish("tool_calls")], [
          Script.text("sorry"),
          Script.finish("stop")
        ]])
        const streaming = Effect.scoped(Effect.gen(function*() {
          const executor = yield* StreamingToolExecutor.make()
          yield* executor.addTool(Message.toolCall("c0", "t"), tool)
          yield* executor.noMoreCalls
          yield* Stream.runDrain(executor.remainingResults)
        }))
        const runs: ReadonlyArray<Effect.Effect<unknown, unknown>> = [
          ...[Policy.standard, Policy.allm, Policy.falai].map((policy) => ToolRunner.run(calls, [tool], { policy })),
          ToolRunner.run(calls, [tool], { onToolError: "halt" }),
          ToolRunner.run(calls, [tool], { onToolError: mended }),
          ToolRunner.run(calls, [tool]).pipe(Effect.provide(Executor.layer({ execute: Executor.direct.execute }))),
          Stream.runDrain(ToolRunner.stream(calls, [tool])),
          Chat.run("Go", { tools: [tool] }).pipe(Effect.provide(model)),
          streaming
        ]
        for (const run of runs) {
          const { lines, warnings } = yield* loggedIn(run)
          assert.deepStrictEqual(warnings.map(({ notes, text }) => [text, notes]), [
            [
              `a call of tool "t" failed: handler_raised${name}`,
              { "gen_ai.tool.name": "t", "gen_ai.tool.call.id": "c0", "error.type": "handler_raised" }
            ]
          ])
          assert.notInclude(
            JSON.stringify(warnings.map(({ cause, ...line }) => [line, Cause.pretty(cause as never)])),
            secret
          )
          const causes = lines.filter(({ level }) => level === "Debug")
          assert.lengthOf(causes, 1)
          assert.isTrue(Cause.hasDies(causes[0]?.cause as Cause.Cause<unknown>))
        }
      }
      const { lines } = yield* loggedIn(ToolRunner.run(calls, [crashing(() => Effect.die(kaboom))]))
      const cause = lines.find(({ level }) => level === "Debug")?.cause as Cause.Cause<unknown>
      assert.strictEqual(Cause.squash(cause), kaboom)
    }))

  it.effect("M-12: a retried crash logs one warning, and a failure other than a crash logs nothing", () =>
    Effect.gen(function*() {
      const retried = { ...crashing(() => Effect.die(kaboom)), retry: Schedule.recurs(3) }
      assert.lengthOf((yield* loggedIn(ToolRunner.run(calls, [retried]))).warnings, 1)
      const quiet = [
        crashing(() => Effect.fail(kaboom)),
        crashing(() => Effect.tryPromise(() => Promise.reject(kaboom))),
        { ...crashing(() => Effect.never), timeout: Duration.millis(50) },
        { ...crashing(() => Effect.void), validate: () => false },
        { ...crashing(() => Effect.void), validate: () => Effect.fail("no") }
      ]
      for (const tool of quiet) {
        const { value } = yield* elapsed(loggedIn(ToolRunner.run(calls, [tool])))
        assert.deepStrictEqual(value.lines, [])
      }
    }))

  it.effect("M-12: a gate that dies denies the call and logs a warning", () =>
    Effect.gen(function*() {
      for (const gate of ["validate", "authorize"] as const) {
        const tool = { ...crashing(() => Effect.void), [gate]: () => Effect.die(kaboom) }
        const { value, warnings } = yield* loggedIn(ToolRunner.run(calls, [tool]))
        assert.deepStrictEqual(warnings.map(({ text }) => text), [`${gate} of tool "t" failed: denied (RangeError)`])
        assert.notInclude(JSON.stringify(value.messages), secret)
      }
    }))

  it.effect("M-12, R-080: the span of a crashed call ends in an error of its type, without the thrown value", () =>
    Effect.gen(function*() {
      const odd = Executor.layer({ execute: (() => Effect.succeed("odd")) as never })
      const suicide = crashing(() =>
        Effect.withFiber((fiber) => Effect.andThen(Effect.sync(() => fiber.interruptUnsafe()), Effect.never))
      )
      const rows: ReadonlyArray<readonly [Effect.Effect<unknown, unknown>, string]> = [
        ...deaths.map(([handler]) => [ToolRunner.run(calls, [crashing(handler)]), "handler_raised"] as const),
        [ToolRunner.run(calls, [crashing(() => 42 as never)]), "invalid_return"],
        [ToolRunner.run(calls, [crashing(() => Effect.void)]).pipe(Effect.provide(odd)), "invalid_return"],
        [ToolRunner.run(calls, [suicide]), "handler_exit"],
        [ToolRunner.run(calls, [crashing(() => Effect.never)], { toolTimeout: 50 }), "timeout"]
      ]
      for (const [run, type] of rows) {
        const { provide, spans } = recording()
        yield* elapsed(provide(run))
        assert.lengthOf(spans, 1)
        assert.strictEqual(spans[0]?.attributes.get("error.type"), type)
        const exit = exitOf(spans[0])
        assert.isTrue(Exit.isFailure(exit))
        assert.notInclude(JSON.stringify(exit), secret)
        assert.notInclude(Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "", secret)
      }
      const { provide, spans } = recording()
      yield* provide(ToolRunner.run(calls, [crashing(() => Effect.fail("reported"))]))
      assert.deepStrictEqual(exitOf(spans[0]), Exit.fail("tool_error"))
      assert.strictEqual(spans[0]?.attributes.get("error.type"), "tool_error")
    }))

  it.effect("M-12: ToolExecutionCompleted has the cause of a crash as plain data, whatever the error policy decides", () =>
    Effect.gen(function*() {
      const mended = () => Effect.succeed(Tool.ErrorDecision.continue("mended"))
      for (const [handler, , cause] of deaths) {
        for (const onToolError of ["continue", "halt", mended] as const) {
          const events = yield* Stream.runCollect(ToolRunner.stream(calls, [crashing(handler)], { onToolError }))
          const completed = events.filter(isCompleted)
          assert.deepStrictEqual(completed.map((event) => event.cause), [cause])
          const json = JSON.stringify(Schema.encodeUnknownSync(Event.Event)(completed[0]))
          const back = Schema.decodeUnknownSync(Event.Event)(JSON.parse(json))
          assert.deepStrictEqual(isCompleted(back) ? back.cause : undefined, cause)
        }
      }
      const reported = yield* Stream.runCollect(ToolRunner.stream(calls, [crashing(() => Effect.fail(kaboom))]))
      assert.notProperty(reported.find(isCompleted), "cause")
    }))
})
