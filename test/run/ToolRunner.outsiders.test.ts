import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Chat, Message, Policy, Thread, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import { succeeded } from "../support/runs.ts"

/** Counts how many run at once, also while they are being stopped. */
const meter = () => {
  let live = 0
  const seen = { peak: 0, besideExclusive: 0, exclusive: 0 }
  const enter = (isExclusive: boolean) =>
    Effect.sync(() => {
      live++
      if (isExclusive) seen.exclusive++
      seen.peak = Math.max(seen.peak, live)
      if (seen.exclusive > 0 && live > 1) seen.besideExclusive++
    })
  const leave = (isExclusive: boolean) =>
    Effect.sync(() => {
      live--
      if (isExclusive) seen.exclusive--
    })
  const measured = <A>(body: Effect.Effect<A>, isExclusive = false) =>
    Effect.acquireUseRelease(enter(isExclusive), () => body, () => leave(isExclusive))
  return { seen, measured }
}

/** Needs a moment to stop. */
const reluctant = Effect.onInterrupt(Effect.never, () => Effect.sleep(10))
/** Never stops. */
const deaf = Effect.uninterruptible(Effect.never)

const twoTurns = (first: string, second: string) =>
  Script.layer([
    [Script.toolCall("c0", first), Script.finish("tool_calls")],
    [Script.toolCall("c1", second), Script.finish("tool_calls")],
    [Script.text("done"), Script.finish("stop")]
  ])

describe("handlers that outlive their turn", () => {
  it.effect("law 4: the bound counts a handler of an earlier turn that is still stopping", () =>
    Effect.gen(function*() {
      const { seen, measured } = meter()
      const slow = Tool.make("slow", { parameters: {}, timeout: 50, handler: () => measured(reluctant) })
      const quick = Tool.make("quick", { parameters: {}, handler: () => measured(Effect.succeed("ok")) })
      const report = yield* Simulation.run(
        Chat.run("go", { tools: [slow, quick], maxConcurrency: 1 }).pipe(Effect.provide(twoTurns("slow", "quick")))
      )
      assert.strictEqual(succeeded(report).thread.messages.at(-2)?.content, "ok")
      assert.strictEqual(seen.peak, 1)
      assert.strictEqual(report.sleeping, 0)
    }))

  it.effect("law 4: no call starts beside an exclusive handler of an earlier turn that is still stopping", () =>
    Effect.gen(function*() {
      const { seen, measured } = meter()
      const alone = Tool.make("alone", {
        parameters: {},
        timeout: 50,
        concurrency: "exclusive",
        handler: () => measured(reluctant, true)
      })
      const quick = Tool.make("quick", { parameters: {}, handler: () => measured(Effect.succeed("ok")) })
      const report = yield* Simulation.run(
        Chat.run("go", { tools: [alone, quick] }).pipe(Effect.provide(twoTurns("alone", "quick")))
      )
      assert.strictEqual(succeeded(report).thread.messages.at(-2)?.content, "ok")
      assert.strictEqual(seen.besideExclusive, 0)
    }))

  it.effect("law 4, law 11: a call behind an exclusive handler that does not stop is answered, and never starts", () =>
    Effect.gen(function*() {
      const { seen, measured } = meter()
      const alone = Tool.make("alone", {
        parameters: {},
        timeout: 50,
        concurrency: "exclusive",
        handler: () => measured(deaf, true)
      })
      const quick = Tool.make("quick", { parameters: {}, handler: () => measured(Effect.succeed("ok")) })
      const calls = ["alone", "quick", "quick"].map((name, index) => Message.toolCall(`c${index}`, name))
      const report = yield* Simulation.run(ToolRunner.run(calls, [alone, quick], { grace: 100 }))
      const result = succeeded(report)
      assert.strictEqual(seen.besideExclusive, 0)
      assert.deepStrictEqual(result.messages.map((message) => /"code":"(\w+)"/.exec(String(message.content))?.[1]), [
        "abandoned",
        "cancelled",
        "cancelled"
      ])
      assert.deepStrictEqual(result.abandoned?.map((one) => one.id), ["c0"])
      assert.isAtMost(report.millis, 400)
    }))

  it.effect("R-055, law 11: a shared handler that does not stop gives its place up after its grace period", () =>
    Effect.gen(function*() {
      const stubborn = Tool.make("stubborn", { parameters: {}, timeout: 50, handler: () => deaf })
      const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("ok") })
      const report = yield* Simulation.run(
        Chat.run("go", { tools: [stubborn, quick], maxConcurrency: 1, grace: 100 }).pipe(
          Effect.provide(twoTurns("stubborn", "quick"))
        )
      )
      const result = succeeded(report)
      assert.strictEqual(result.thread.messages.at(-2)?.content, "ok")
      assert.deepStrictEqual(result.abandoned?.map((one) => one.id), ["c0"])
    }))

  it.effect("law 3: the timer of a grace period ends with the run", () =>
    Effect.gen(function*() {
      const slow = Tool.make("slow", { parameters: {}, timeout: 50, handler: () => reluctant })
      const report = yield* Simulation.run(
        Stream.runCollect(ToolRunner.stream([Message.toolCall("c0", "slow")], [slow], { grace: 3000 }))
      )
      assert.strictEqual(report.sleeping, 0)
      assert.strictEqual(report.millis, 60)
    }))
})

describe("the order of results", () => {
  it.effect("law 1, T-03: results held back in request order are all emitted, whichever call ends last", () =>
    Effect.gen(function*() {
      const wait = Tool.make("wait", {
        parameters: {},
        handler: (_args, call) => call.index === 0 ? Effect.never : Effect.sleep(10)
      })
      const calls = [0, 1, 2].map((index) => Message.toolCall(`c${index}`, "wait"))
      const report = yield* Simulation.run(
        Stream.runCollect(ToolRunner.stream(calls, [wait], {
          toolTimeout: 50,
          policy: { ...Policy.standard, resultOrder: "request" }
        }))
      )
      const tails = succeeded(report).flatMap((event) => event._tag === "ToolResultEncoded" ? [event.id] : [])
      assert.deepStrictEqual(tails, ["c0", "c1", "c2"])
    }))

  it.effect("T-12: haltPrecedence completion halts by the first completed call, also where results are held back", () =>
    Effect.gen(function*() {
      const stop = Tool.make("stop", {
        parameters: {},
        handler: (_args, call) => Effect.as(Effect.sleep(call.index === 0 ? 30 : 1), Tool.halt(`h${call.index}`, 1))
      })
      const policy: Policy.Policy = { ...Policy.standard, resultOrder: "request", haltPrecedence: "completion" }
      const model = Script.layer([[
        Script.toolCall("a", "stop"),
        Script.toolCall("b", "stop"),
        Script.finish("tool_calls")
      ]])
      const report = yield* Simulation.run(Effect.provide(Chat.run("go", { tools: [stop], policy }), model))
      assert.strictEqual(succeeded(report).haltedReason, "h1")
    }))
})

describe("a malformed call", () => {
  const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.succeed("pong") })
  const threadOf = (...entries: ReadonlyArray<Script.Entry>) =>
    Chat.run("go", { tools: [ping] }).pipe(
      Effect.provide(
        Script.layer([[...entries, Script.finish("tool_calls")], [Script.text("x"), Script.finish("stop")]])
      ),
      Effect.map((result) => result.thread)
    )

  it.effect("law 9, R-336: each call without an id gets an id of its own", () =>
    Effect.gen(function*() {
      const thread = yield* threadOf(Script.toolCall("", "ping"), Script.toolCall("", "ping"))
      const ids = thread.messages.flatMap((message) => message.toolCalls?.map((call) => call.id) ?? [])
      assert.strictEqual(ids.length, 2)
      assert.strictEqual(new Set(ids).size, 2)
      assert.isTrue(ids.every((id) => id !== ""))
      assert.deepStrictEqual(Thread.unanswered(thread), [])
    }))

  it.effect("law 9, R-338: a call whose name never came is not committed", () =>
    Effect.gen(function*() {
      const thread = yield* threadOf(Script.toolCallDelta("a", "{}"))
      assert.isTrue(thread.messages.every((message) => message.toolCalls === undefined))
    }))

  it.effect("law 9: an invalid tool name is committed in a form that providers accept", () =>
    Effect.gen(function*() {
      const thread = yield* threadOf(Script.toolCall("a", "no such.tool"))
      assert.deepStrictEqual(thread.messages[1]?.toolCalls?.map((call) => call.name), ["no_such_tool"])
      assert.include(String(thread.messages[2]?.content), "unknown_tool")
    }))
})
