/**
 * Time: per-call timeouts that hold whatever a handler does about them, the grace period of handlers that refuse to
 * stop, and retries. All of it in virtual time.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Encoder, Message, Policy, Tool, ToolRunner } from "heddle"
import { Recorder } from "heddle/testing"
import { contents, elapsed, timed, watched } from "../support/runs.ts"
import * as Tools from "../support/tools.ts"

const call = Message.toolCall

const calling = (...names: ReadonlyArray<string>) => names.map((name, index) => call(`c${index}`, name))

const timeoutError = (name: string, millis = 50) =>
  `{"error":"tool error (${name}): timeout: timed out after ${millis} ms","code":"timeout"}`

const leftError = (name: string) =>
  JSON.stringify({
    error: `tool error (${name}): abandoned: timed out after 50 ms; it has not stopped, and may still take effect`,
    code: "abandoned"
  })

/** A tool that cannot be stopped. */
const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })

/** A tool that stops only after so many milliseconds. */
const stubborn = (millis: number, options: { readonly concurrency?: "exclusive" } = {}) =>
  Tool.make("stubborn", { ...options, parameters: {}, handler: () => Effect.uninterruptible(Effect.sleep(millis)) })

const completedAt = (line: ReadonlyArray<readonly [number, string, string]>, tag = "ToolExecutionCompleted") =>
  line.flatMap(([at, name, id]) => name === tag ? [[at, id] as const] : [])

describe("ToolRunner: timeouts", () => {
  it.effect("B-15, R-056: a timeout stops only its own call, and passes through onToolError", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const slow = Tool.make("slow", { parameters: {}, handler: recorder.handler(() => Effect.sleep(200)) })
      const mid = Tools.slow(40, "mid")
      const asked: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          asked.push(error)
          return Tool.ErrorDecision.continue("too slow")
        })
      const calls = calling("slow", "echo", "mid")
      const tools = [slow, Tools.echo, mid]
      const { line, at } = yield* watched(ToolRunner.stream(calls, tools, { toolTimeout: 50 }))
      assert.strictEqual(at, 50)
      assert.deepStrictEqual(completedAt(line), [[0, "c1"], [40, "c2"], [50, "c0"]])
      assert.deepInclude(yield* recorder.counts("slow"), { starts: 1, interrupts: 1, finalizers: 1, live: 0 })
      const { value } = yield* elapsed(ToolRunner.run(calls, tools, { toolTimeout: 50 }))
      assert.deepStrictEqual(contents(value), [["c0", timeoutError("slow")], ["c1", "{}"], ["c2", "slow"]])
      const mended = yield* elapsed(ToolRunner.run(calls, tools, { toolTimeout: 50, onToolError }))
      assert.deepStrictEqual(contents(mended.value)[0], ["c0", "too slow"])
      assert.deepInclude(asked[0], { _tag: "ToolError", reason: "timeout", toolName: "slow", toolCallId: "c0" })
      assert.strictEqual(asked.length, 1)
    }))

  it.effect("B-16, R-055: the clock of a call starts with its handler, not in the queue", () =>
    Effect.gen(function*() {
      const options = { maxConcurrency: 1, toolTimeout: 60 }
      const { at, value } = yield* elapsed(ToolRunner.run(calling("slow", "slow", "slow"), [Tools.slow(40)], options))
      assert.strictEqual(at, 120)
      assert.deepStrictEqual(contents(value).map(([, content]) => content), ["slow", "slow", "slow"])
    }))

  it.effect("R-055: the timeout is 30 seconds by default, and an option, the application and the tool can set another", () =>
    Effect.gen(function*() {
      const never = Tool.make("never", { parameters: {}, handler: () => Effect.never })
      const patient = Tool.make("patient", { parameters: {}, timeout: "2 minutes", handler: () => Effect.never })
      const at = (tool: Tool.Any, options: ToolRunner.Options = {}) =>
        Effect.map(elapsed(ToolRunner.run(calling(tool.name), [tool], options)), ({ at }) => at)
      assert.strictEqual(yield* at(never), 30_000)
      assert.strictEqual(yield* at(never, { toolTimeout: undefined }), 30_000)
      assert.strictEqual(yield* at(never, { toolTimeout: "1 second" }), 1_000)
      assert.strictEqual(yield* at(patient, { toolTimeout: "1 second" }), 120_000)
      const application = Effect.provide(Layer.succeed(Policy.Defaults, { toolTimeout: 70 }))
      assert.strictEqual(yield* application(at(never)), 70)
      assert.strictEqual(yield* application(at(never, { toolTimeout: 80 })), 80)
    }))

  it.effect("R-055: infinity means no timeout, as an option and as a tool's own timeout", () =>
    Effect.gen(function*() {
      const slow = Tools.slow(Duration.toMillis("50 minutes"))
      const own = { ...slow, name: "own", timeout: Duration.infinity }
      for (const [tool, toolTimeout] of [[slow, "infinity"], [slow, Infinity], [own, "1 second"]] as const) {
        const { value } = yield* elapsed(ToolRunner.run(calling(tool.name), [tool], { toolTimeout }))
        assert.deepStrictEqual(contents(value), [["c0", "slow"]])
      }
    }))

  it.effect("R-056: a result one millisecond before the timeout is kept, and one millisecond later the call times out", () =>
    Effect.gen(function*() {
      for (const [millis, expected] of [[49, "slow"], [51, timeoutError("slow")]] as const) {
        const { value } = yield* elapsed(ToolRunner.run(calling("slow"), [Tools.slow(millis)], { toolTimeout: 50 }))
        assert.deepStrictEqual(contents(value), [["c0", expected]])
      }
    }))

  it.effect("R-056, O-09: a finalizer is part of its handler, and the answer waits for the finalizer", () =>
    Effect.gen(function*() {
      const tool = Tool.make("tidy", {
        parameters: {},
        handler: () => Effect.as(Effect.addFinalizer(() => Effect.sleep(100)), "done")
      })
      const { line } = yield* watched(ToolRunner.stream(calling("tidy"), [tool], { toolTimeout: 50 }))
      assert.deepStrictEqual(completedAt(line), [[100, "c0"]])
    }))

  it.effect("R-034, R-056: an encoder that never returns is an encoding failure, once the call's time is up again", () =>
    Effect.gen(function*() {
      const success = Tools.slow(10)
      const stuck = { ...success, encodeSuccess: () => Effect.uninterruptible(Effect.never) }
      const { line, at, events } = yield* watched(
        ToolRunner.stream(calling("slow"), [stuck], { toolTimeout: 50, grace: 7 })
      )
      assert.deepStrictEqual(completedAt(line), [[60, "c0"]])
      assert.strictEqual(at, 67)
      const [outcome] = events.flatMap((event) => event._tag === "ToolExecutionCompleted" ? [event.result] : [])
      assert.deepInclude(outcome?._tag === "Error" ? outcome.error : undefined, { reason: "encoding_failed" })
    }))

  it.effect("R-034: an encoder that does not stop is named as a hook, and schema and encoder share one time limit", () =>
    Effect.gen(function*() {
      const stuck: Tool.Any = { ...Tools.slow(10), encodeSuccess: () => Effect.uninterruptible(Effect.never) }
      const late = Effect.sleep(30)
      const slow: Tool.Any = { ...Tools.slow(10), encodeSuccess: (value: unknown) => Effect.as(late, value) }
      const encode = () => Effect.andThen(late, Effect.succeed("written"))
      for (const [tool, kinds, at] of [[stuck, ["hook"], 67], [slow, undefined, 60]] as const) {
        const run = ToolRunner.run(calling("slow"), [tool], { toolTimeout: 50, grace: 7 })
        const ended = yield* elapsed(Effect.provide(run, Encoder.layer({ encode })))
        assert.deepEqual<unknown>(ended.value.abandoned?.map(({ kind }) => kind), kinds)
        assert.strictEqual(ended.at, at)
        assert.include(String(ended.value.messages[0]?.content), "writing the result timed out after 50 ms")
      }
    }))

  it.effect("R-056: a decoder that never ends is a timeout of its call, and the other calls run", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const decodings = [recorder.track("decode")(Effect.never), Effect.uninterruptible(Effect.never)]
      for (const [index, decode] of decodings.entries()) {
        const stuck: Tool.Any = { ...Tools.echo, name: "stuck", parameters: { jsonSchema: {}, decode: () => decode } }
        const calls = calling("stuck", "slow", "stuck")
        const { at, value } = yield* elapsed(
          ToolRunner.run(calls, [stuck, Tools.slow(40)], { toolTimeout: 50, grace: 7 })
        )
        assert.strictEqual(at, 90)
        assert.strictEqual(value.abandoned?.length, index === 0 ? undefined : 2)
        const late =
          "{\"error\":\"tool error (stuck): timeout: decoding the arguments timed out after 50 ms\",\"code\":\"timeout\"}"
        assert.deepStrictEqual(contents(value), [["c0", late], ["c1", "slow"], ["c2", late]])
      }
      const stops = (yield* recorder.log).flatMap((entry) => entry._tag === "Interrupted" ? [entry.at] : [])
      assert.deepStrictEqual(stops, [50, 50])
      assert.deepInclude(yield* recorder.counts(), { starts: 2, finalizers: 2, live: 0 })
    }))

  it.effect("R-055: a tool's own timeout bounds the decoding of its arguments", () =>
    Effect.gen(function*() {
      const decoding = (millis: number, timeout: number): Tool.Any => ({
        ...Tools.echo,
        name: "slow",
        timeout: Duration.millis(timeout),
        parameters: { jsonSchema: {}, decode: () => Effect.as(Effect.sleep(millis), {}) }
      })
      const short = yield* elapsed(ToolRunner.run(calling("slow"), [decoding(30, 20)], { toolTimeout: 50 }))
      assert.strictEqual(short.at, 20)
      assert.include(String(contents(short.value)[0]?.[1]), "decoding the arguments timed out after 20 ms")
      const long = yield* elapsed(ToolRunner.run(calling("slow"), [decoding(80, 100)], { toolTimeout: 50 }))
      assert.deepStrictEqual([long.at, contents(long.value)], [80, [["c0", "{}"]]])
    }))

  it.effect("R-058: a decoder that dies fails its own call as invalid_arguments, and no other", () =>
    Effect.gen(function*() {
      const dying = [() => Effect.die(new Error("no decoder")), () => {
        throw new Error("no decoder")
      }, () => Effect.interrupt]
      for (const decode of dying) {
        const broken: Tool.Any = { ...Tools.echo, name: "broken", parameters: { jsonSchema: {}, decode } }
        const { value } = yield* elapsed(ToolRunner.run(calling("broken", "echo"), [broken, Tools.echo]))
        assert.match(String(value.messages[0]?.content), /invalid_arguments/)
        assert.deepStrictEqual(contents(value)[1], ["c1", "{}"])
      }
    }))
})

describe("ToolRunner: handlers that refuse to stop", () => {
  it.effect("R-056, O-09: an uninterruptible handler is answered one grace period after its timeout, and the ended run names the handler", () =>
    Effect.gen(function*() {
      const { line } = yield* watched(
        ToolRunner.stream(calling("deaf", "echo"), [deaf, Tools.echo], { toolTimeout: 50 })
      )
      assert.deepStrictEqual(completedAt(line), [[0, "c1"], [5_050, "c0"]])
      const { at, value } = yield* elapsed(
        ToolRunner.run(calling("deaf"), [deaf], { toolTimeout: 50, grace: "2 seconds" })
      )
      assert.strictEqual(at, 2_050)
      assert.deepStrictEqual(value, {
        messages: [{
          role: "tool",
          toolCallId: "c0",
          content: leftError("deaf"),
          isError: true,
          code: "abandoned",
          metadata: {}
        }],
        abandoned: [{ kind: "handler", id: "c0", name: "deaf", ageMillis: 2_050 }]
      })
    }))

  it.effect("R-056: the late value of a handler is dropped, and a handler that ends within the grace period is not abandoned", () =>
    Effect.gen(function*() {
      const { at, value } = yield* elapsed(ToolRunner.run(calling("stubborn"), [stubborn(3_000)], { toolTimeout: 50 }))
      assert.strictEqual(at, 3_000)
      assert.deepStrictEqual(contents(value), [["c0", timeoutError("stubborn")]])
      assert.notProperty(value, "abandoned")
    }))

  it.effect("R-056: the grace period begins with the timeout, and the end of the run adds no second grace period", () =>
    Effect.gen(function*() {
      const early = { ...deaf, timeout: Duration.millis(50) }
      for (const [millis, at] of [[20_000, 20_000], [600, 1_050], [1_050, 1_050], [10, 1_050]] as const) {
        const calls = calling("deaf", "slow")
        const run = yield* elapsed(ToolRunner.run(calls, [early, Tools.slow(millis)], { grace: 1_000 }))
        assert.strictEqual(run.at, at)
        assert.deepStrictEqual(run.value.abandoned, [{ kind: "handler", id: "c0", name: "deaf", ageMillis: at }])
      }
    }))

  it.effect("R-055: a timed-out handler keeps its place for the grace period, and then a queued call gets the place", () =>
    Effect.gen(function*() {
      const options = { toolTimeout: 50, grace: 1_000, maxConcurrency: 1 }
      const { line } = yield* watched(ToolRunner.stream(calling("deaf", "echo"), [deaf, Tools.echo], options))
      assert.deepStrictEqual(completedAt(line, "ToolExecutionStarted"), [[0, "c0"], [1_050, "c1"]])
      const sooner = yield* watched(
        ToolRunner.stream(calling("stubborn", "echo"), [stubborn(400), Tools.echo], options)
      )
      assert.deepStrictEqual(completedAt(sooner.line, "ToolExecutionStarted"), [[0, "c0"], [400, "c1"]])
    }))

  it.effect("R-111: an interrupted run ends after the grace period without the handler", () =>
    Effect.gen(function*() {
      const fiber = yield* Effect.forkChild(ToolRunner.run(calling("deaf"), [deaf], { grace: 300 }), {
        startImmediately: true
      })
      yield* TestClock.adjust(10)
      const interruption = yield* Effect.forkChild(timed(Fiber.interrupt(fiber)), { startImmediately: true })
      const { at } = yield* Fiber.join(interruption)
      assert.strictEqual(at, 300)
    }))
})

describe("ToolRunner: handlers that end one another", () => {
  it.effect("law 11: a handler ended by another handler during a stop adds no grace period to the run", () =>
    Effect.gen(function*() {
      const isLeft = yield* Deferred.make<void>()
      const last = Tool.make("last", {
        parameters: {},
        handler: () => Effect.onInterrupt(Effect.never, () => Deferred.succeed(isLeft, undefined))
      })
      const next = Tool.make("next", { parameters: {}, handler: () => Deferred.await(isLeft) })
      const late = Tool.make("late", {
        parameters: {},
        timeout: 10,
        handler: () => Effect.uninterruptible(Effect.sleep(5000))
      })
      const tools = [late, last, next]
      const fiber = yield* Effect.forkChild(
        ToolRunner.run(calling("late", "last", "next"), tools, { grace: 100, maxConcurrency: 3 })
      )
      yield* TestClock.adjust(60)
      fiber.interruptUnsafe()
      // The handler that does not stop was interrupted at 10, and its grace period is over at 110.
      yield* TestClock.adjust(49)
      assert.isUndefined(fiber.pollUnsafe())
      yield* TestClock.adjust(1)
      assert.isDefined(fiber.pollUnsafe())
    }))
})

describe("ToolRunner: interrupt block", () => {
  const make = (recorder: Recorder.Recorder, interrupt: "block" | "cancel", millis: number) =>
    Tool.make("save", { parameters: {}, interrupt, handler: recorder.handler(() => Effect.sleep(millis)) })

  it.effect("R-111: a blocking handler may finish when its run is interrupted, and a cancelable handler may not", () =>
    Effect.gen(function*() {
      for (
        const [interrupt, at, counts] of [["block", 90, { ends: 1, interrupts: 0 }], ["cancel", 0, {
          ends: 0,
          interrupts: 1
        }]] as const
      ) {
        const recorder = yield* Recorder.make
        const run = ToolRunner.run(calling("save"), [make(recorder, interrupt, 100)])
        const fiber = yield* Effect.forkChild(run, { startImmediately: true })
        yield* TestClock.adjust(10)
        const left = yield* timed(Fiber.interrupt(fiber))
        assert.strictEqual(left.at, at)
        assert.deepInclude(yield* recorder.counts("save"), { ...counts, live: 0, finalizers: 1 })
      }
    }))

  it.effect("R-111: a blocking handler that outlives the grace period is interrupted", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const run = ToolRunner.run(calling("save"), [make(recorder, "block", 60_000)], {
        grace: 500,
        toolTimeout: "infinity"
      })
      const fiber = yield* Effect.forkChild(run, { startImmediately: true })
      yield* TestClock.adjust(10)
      assert.strictEqual((yield* timed(Fiber.interrupt(fiber))).at, 500)
      assert.deepInclude(yield* recorder.counts("save"), { interrupts: 1, live: 0, finalizers: 1 })
    }))
})

describe("ToolRunner: promises", () => {
  it.effect("R-056, R-111: a timeout aborts the signal, and the run waits until the promise has settled", () =>
    Effect.gen(function*() {
      let settle = (_value: string): void => {}
      const promise = new Promise<string>((resolve) => {
        settle = resolve
      })
      const aborted = yield* Deferred.make<void>()
      const fetching = Tool.make("fetching", {
        parameters: {},
        handler: (_args, call) =>
          call.promise((signal) => {
            signal.addEventListener("abort", () => Deferred.doneUnsafe(aborted, Effect.void))
            return promise
          })
      })
      const fiber = yield* Effect.forkChild(ToolRunner.run(calling("fetching"), [fetching], { toolTimeout: 50 }), {
        startImmediately: true
      })
      yield* TestClock.adjust(49)
      assert.isFalse(yield* Deferred.isDone(aborted))
      yield* TestClock.adjust(1)
      yield* Deferred.await(aborted)
      assert.isUndefined(fiber.pollUnsafe())
      settle("too late")
      const result = yield* Fiber.join(fiber)
      assert.deepStrictEqual(contents(result), [["c0", timeoutError("fetching")]])
      assert.notProperty(result, "abandoned")
    }))

  it.effect("R-056: a promise that never settles is abandoned after the grace period", () =>
    Effect.gen(function*() {
      const hanging = Tool.make("hanging", {
        parameters: {},
        handler: (_args, call) => call.promise(() => new Promise<never>(() => {}))
      })
      const { at, value } = yield* elapsed(
        ToolRunner.run(calling("hanging"), [hanging], { toolTimeout: 50, grace: 20 })
      )
      assert.strictEqual(at, 70)
      assert.deepStrictEqual(value.abandoned, [{ kind: "handler", id: "c0", name: "hanging", ageMillis: 70 }])
    }))

  it.effect("M-11, R-006: the value of a promise is a result, and a rejection or a throw is a failure with the thrown value as its cause", () =>
    Effect.gen(function*() {
      let wasAborted = true
      const bodies: ReadonlyArray<readonly [string, (signal: AbortSignal) => PromiseLike<unknown>]> = [
        ["value", (signal) => Promise.resolve().then(() => wasAborted = signal.aborted).then(() => "value")],
        ["rejects", () => Promise.reject(Tools.kaboom)],
        ["throws", () => {
          throw Tools.kaboom
        }]
      ]
      const tools = bodies.map(([name, body]) =>
        Tool.make(name, { parameters: {}, handler: (_args, call) => call.promise(body) })
      )
      const errors: Array<unknown> = []
      const onToolError = (_call: Message.ToolCall, error: unknown) =>
        Effect.sync(() => {
          errors.push(error)
          return Tool.ErrorDecision.continue("broke")
        })
      const result = yield* ToolRunner.run(calling("value", "rejects", "throws"), tools, { onToolError })
      assert.deepStrictEqual(contents(result), [["c0", "value"], ["c1", "broke"], ["c2", "broke"]])
      assert.isFalse(wasAborted)
      assert.lengthOf(errors, 2)
      for (const error of errors) {
        assert.isTrue(Cause.isUnknownError(error))
        assert.deepInclude(error, { message: "kaboom", cause: Tools.kaboom })
      }
    }))
})

describe("ToolRunner: retries", () => {
  it.effect("R-011, R-055: a failed handler is retried by its schedule with its attempt number, under one key and one timeout", () =>
    Effect.gen(function*() {
      const seen: Array<readonly [number, string]> = []
      const inputs: Array<unknown> = []
      const schedule = Schedule.spaced(20).pipe(Schedule.while(({ input }) => {
        inputs.push(input)
        return true
      }))
      const flaky = (successAt: number) =>
        Tool.make("flaky", {
          parameters: {},
          retry: schedule,
          handler: (_args, call) =>
            Effect.suspend(() => {
              seen.push([call.attempt, call.idempotencyKey])
              return call.attempt === successAt ? Effect.succeed("at last") : Effect.fail(`no ${call.attempt}`)
            })
        })
      const { at, value } = yield* elapsed(ToolRunner.run(calling("flaky"), [flaky(3)], { requestId: "r" }))
      assert.strictEqual(at, 40)
      assert.deepStrictEqual(contents(value), [["c0", "at last"]])
      assert.deepStrictEqual(seen, [[1, "r:0:0:c0"], [2, "r:0:0:c0"], [3, "r:0:0:c0"]])
      assert.deepStrictEqual(inputs, ["no 1", "no 2"])
      const timedOut = yield* elapsed(ToolRunner.run(calling("flaky"), [flaky(99)], { toolTimeout: 50 }))
      assert.strictEqual(timedOut.at, 50)
      assert.deepStrictEqual(contents(timedOut.value), [["c0", timeoutError("flaky")]])
    }))

  it.effect("R-011: the last failure is the outcome when the schedule ends, and a question or a halt is not retried", () =>
    Effect.gen(function*() {
      let runs = 0
      const make = (handler: (attempt: number) => Effect.Effect<unknown, unknown>) =>
        Tool.make("t", {
          parameters: {},
          retry: Schedule.recurs(2),
          handler: (_args, call) => Effect.suspend(() => handler((runs++, call.attempt)))
        })
      const cases = [
        [make((attempt) => Effect.fail(`no ${attempt}`)), "{\"error\":\"no 3\"}", 3],
        [
          make(() => Effect.die("crash")),
          "{\"error\":\"tool error (t): handler_raised\",\"code\":\"handler_raised\"}",
          3
        ],
        [make(() => Effect.succeed(Tool.askUser("Well?"))), "<awaiting user response>", 1],
        [make(() => Effect.succeed(Tool.halt("done", "result"))), "result", 1]
      ] as const
      for (const [tool, content, expected] of cases) {
        runs = 0
        const result = yield* ToolRunner.run(calling("t"), [tool])
        assert.deepStrictEqual([result.messages[0]?.content, runs], [content, expected])
      }
    }))

  it.effect("R-111: an interruption in the middle of a retry delay starts no further attempt", () =>
    Effect.gen(function*() {
      const recorder = yield* Recorder.make
      const flaky = Tool.make("flaky", {
        parameters: {},
        retry: Schedule.spaced(20),
        handler: recorder.handler(() => Effect.fail("no"))
      })
      const fiber = yield* Effect.forkChild(Stream.runDrain(ToolRunner.stream(calling("flaky"), [flaky])), {
        startImmediately: true
      })
      yield* TestClock.adjust(50)
      yield* Fiber.interrupt(fiber)
      yield* TestClock.adjust(1_000)
      assert.strictEqual((yield* recorder.counts("flaky")).starts, 3)
      assert.isTrue(Exit.hasInterrupts(yield* Fiber.await(fiber)))
    }))
})
