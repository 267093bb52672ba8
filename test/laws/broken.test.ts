/**
 * What the test kit is worth: each of the broken executors is found by the law that it breaks, and by no other, and the
 * one that is not broken passes the same check.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Chat, Executor, Message, Tool, ToolRunner } from "heddle"
import { type EveryStep, everyStep, Explorer, Script } from "heddle/testing"
import * as Broken from "../support/broken.ts"

const wait = (timeout: Duration.Input) =>
  Tool.make("wait", { parameters: {}, timeout, handler: () => Effect.sleep("1 second") })

const write = Tool.make("write", {
  parameters: {},
  concurrency: "exclusive",
  handler: () => Effect.sleep("1 second")
})

/** Two calls that may overlap, one that may not, and two more that come after it. */
const model = Script.layer([
  [
    ...["wait", "wait", "write", "wait", "wait"].map((name, index) => Script.toolCall(`c${index}`, name)),
    Script.finish("tool_calls")
  ],
  [Script.text("done"), Script.finish("stop")]
])

const stopped = (executor: Layer.Layer<never>, timeout: Duration.Input = "30 seconds") =>
  everyStep(
    ({ cancel }) => Chat.stream("go", { tools: [wait(timeout), write], maxConcurrency: 2, cancel }),
    { layer: Layer.merge(model, executor), bound: 2 }
  )

/** The thread after a batch, for every order in which its handlers can end. */
const ordered = (executor: Layer.Layer<never>) =>
  Explorer.explore(3, (point) => {
    const turn = Tool.make("turn", { parameters: {}, handler: (_args, call) => point(call.index) })
    const calls = [0, 1, 2].map((index) => Message.toolCall(`c${index}`, "turn"))
    return ToolRunner.run(calls, [turn], { maxConcurrency: 3 }).pipe(
      Effect.map(({ messages }) => messages),
      Effect.provide(executor, { local: true })
    )
  })

const lawsOf = (report: EveryStep.Report): ReadonlyArray<string> =>
  Array.from(new Set(report.violations.map(({ law }) => law)))

const says = (report: EveryStep.Report, pattern: RegExp): void =>
  assert.isTrue(
    report.violations.some(({ message }) => pattern.test(message)),
    `${pattern} in ${JSON.stringify(report.violations.slice(0, 9), null, 1)}`
  )

const correct = Executor.layer(Executor.direct)

describe("broken executors", () => {
  it.effect("the correct executor breaks no law, with and without timeouts and in every order of handlers", () =>
    Effect.gen(function*() {
      for (const timeout of ["30 seconds", Duration.infinity] as const) {
        const report = yield* stopped(correct, timeout)
        assert.deepStrictEqual(report.violations, [])
        assert.isAbove(report.points, 10)
        assert.isAbove(report.handlers, report.points)
      }
      const explored = yield* ordered(correct)
      assert.strictEqual(explored.runs, 6)
      assert.strictEqual(explored.findings.length, 1)
    }))

  it.effect("an executor that orphans handlers breaks \"lifetime\", where a handler runs when the run is stopped", () =>
    Effect.gen(function*() {
      const report = yield* stopped(Broken.orphaning)
      assert.deepStrictEqual(lawsOf(report), ["lifetime"])
      says(report, /^1 of "wait \(call c0\)" are alive after the run$/)
      says(report, /^1 of "write \(call c2\)" are alive after the run$/)
      assert.isTrue(report.violations.every(({ step, stop }) => step !== undefined && stop !== "none"))
      assert.isTrue(report.violations.some(({ stop }) => stop === "soft"))
    }))

  it.effect("an executor that loses answers breaks \"answers\": the call stays unanswered, and the run does not end", () =>
    Effect.gen(function*() {
      const report = yield* stopped(Broken.losing, Duration.infinity)
      assert.include(lawsOf(report), "answers")
      says(report, /^call "c0" is left without an answer$/)
      says(report, /^the run does not end$/)
    }))

  it.effect("an executor alone cannot lose the answer of a call that has a timeout", () =>
    Effect.gen(function*() {
      const report = yield* stopped(Broken.losing)
      assert.deepStrictEqual(report.violations, [])
    }))

  it.effect("an executor that starts handlers twice breaks \"starts\"", () =>
    Effect.gen(function*() {
      const report = yield* stopped(Broken.doubling)
      assert.include(lawsOf(report), "starts")
      says(report, /^wait \(call c0\) was started twice$/)
      says(report, /^write \(call c2\) was started twice$/)
    }))

  it.effect("an executor that ignores the barrier of an exclusive call breaks \"concurrency\"", () =>
    Effect.gen(function*() {
      const report = yield* stopped(Broken.unbarred)
      assert.deepStrictEqual(lawsOf(report), ["concurrency"])
      says(report, /^"wait \(call c3\)" starts while an exclusive handler runs$/)
    }))

  it.effect("M-20: a tool that shares its arguments with the thread breaks \"calls\", if its handler changes them", () =>
    Effect.gen(function*() {
      const count = Tool.make("count", {
        parameters: { type: "object" },
        handler: (args) => Effect.delay(Effect.sync(() => Object.assign(args, { n: 10n, self: args })), "1 second")
      })
      const tried = (tool: typeof count) =>
        everyStep(
          ({ cancel }) => Chat.stream("go", { tools: [tool], cancel }),
          {
            layer: Layer.unwrap(Effect.sync(() =>
              Script.layer([
                [Script.toolCall("c0", "count", { n: 1 }), Script.finish("tool_calls")],
                [Script.text("done"), Script.finish("stop")]
              ])
            ))
          }
        )
      assert.deepStrictEqual((yield* tried(count)).violations, [])
      const report = yield* tried(Broken.sharing(count))
      assert.include(lawsOf(report), "calls")
      says(report, /^ToolCallCompleted told of .*"n":1.*, which has become .*"n":"10"/)
      says(report, /^the arguments of call "c0" cannot be written as JSON$/)
    }))

  it.effect("M-01: a handler whose child does not stop breaks no law, and an executor that hides the child breaks \"lifetime\"", () =>
    Effect.gen(function*() {
      const parent = Tool.make("wait", {
        parameters: {},
        handler: () =>
          Effect.andThen(
            Effect.forkChild(Effect.uninterruptible(Effect.never), { startImmediately: true }),
            Effect.sleep("1 second")
          )
      })
      const attempted = (executor: Layer.Layer<never>) =>
        everyStep(({ cancel }) => Chat.stream("go", { tools: [parent, write], maxConcurrency: 1, cancel }), {
          layer: Layer.merge(model, executor),
          bound: 1
        })
      assert.deepStrictEqual((yield* attempted(correct)).violations, [])
      const report = yield* attempted(Broken.orphaning)
      says(report, /^\d fibers are alive after the run$/)
      assert.isTrue(report.violations.some(({ law, stop }) => law === "lifetime" && stop === "none"))
    }))

  it.effect("M-07: a nested run severed from its run breaks \"lifetime\": the result does not name its abandoned handler", () =>
    Effect.gen(function*() {
      const deaf = Tool.make("deaf", {
        parameters: {},
        timeout: "1 second",
        handler: () => Effect.uninterruptible(Effect.never)
      })
      const inner = Script.layer([
        [Script.toolCall("i0", "deaf"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const outer = Script.layer([
        [Script.toolCall("c0", "agent"), Script.finish("tool_calls")],
        [Script.text("done"), Script.finish("stop")]
      ])
      const agent = Tool.fromChat("agent", {
        parameters: {},
        chat: () => Stream.provide(Chat.stream("go", { tools: [deaf], requestId: "inner" }), inner)
      })
      const attempted = (executor: Layer.Layer<never>, isAwaited = false) =>
        everyStep(
          ({ cancel }) =>
            isAwaited
              ? ToolRunner.run([Message.toolCall("c0", "agent")], [agent], { cancel })
              : Chat.stream("go", { tools: [agent], cancel }),
          { layer: Layer.merge(outer, executor) }
        )
      for (const isAwaited of [false, true]) {
        assert.deepStrictEqual((yield* attempted(correct, isAwaited)).violations, [])
      }
      const report = yield* attempted(Executor.layer(Broken.severed))
      says(report, /^deaf \(call i0\) was abandoned, and the result does not name it$/)
      assert.isTrue(report.violations.some(({ law, stop }) => law === "lifetime" && stop === "none"))
    }))

  it.effect("the explorer finds a thread that depends on the order of handlers, and names the order behind each variant", () =>
    Effect.gen(function*() {
      const explored = yield* ordered(Broken.numbering)
      assert.strictEqual(explored.findings.length, 6)
      const contents = (finding: Explorer.Finding) =>
        (finding.result as ReadonlyArray<Message.Message>).map(({ content }) => content).join("")
      const byOrder = explored.findings.map((finding) => [finding.orders[0]?.join(""), contents(finding)])
      assert.deepStrictEqual(byOrder, [
        ["012", "123"],
        ["021", "132"],
        ["102", "213"],
        ["120", "312"],
        ["201", "231"],
        ["210", "321"]
      ])
    }))
})
