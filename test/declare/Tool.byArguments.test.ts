/**
 * Options that a tool decides from the arguments of a call: whether it is read-only, whether it may destroy something, and
 * whether it is interrupted when it is stopped.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as SchemaTransformation from "effect/SchemaTransformation"
import * as Stream from "effect/Stream"
import { Chat, Message, Policy, Tool, ToolRunner } from "heddle"
import { Script, Simulation } from "heddle/testing"
import * as z from "zod"
import * as RunJournal from "../../src/internal/run/runJournal.ts"
import { runCalls } from "../support/recalled.ts"
import { succeeded } from "../support/runs.ts"

const looks = ({ command }: { readonly command: string }) => command === "ls"

const shell = (options: object = {}): Tool.Any =>
  Tool.make("shell", {
    parameters: { command: Schema.String },
    readOnly: looks,
    handler: () => Effect.sleep(10),
    ...options
  }) as Tool.Any

/** When each call started. The first is whole at 50 ms, the second at 100 ms, and the reply at 200 ms. */
const starts = (
  tool: Tool.Any,
  policy: Policy.Policy = Policy.standard,
  commands: ReadonlyArray<unknown> = ["ls", "rm"]
) =>
  Effect.map(
    Simulation.run(
      Chat.stream("go", { tools: [tool], policy }).pipe(
        Stream.filter((event) => event._tag === "ToolExecutionStarted"),
        Stream.mapEffect((event) => Effect.map(Clock.currentTimeMillis, (at) => `${event.id} at ${at}`)),
        Stream.runCollect,
        Effect.provide(Script.layer([
          [
            Script.delay(50),
            Script.toolCall("a", "shell", { command: commands[0] }),
            Script.delay(50),
            Script.toolCall("b", "shell", { command: commands[1] }),
            Script.delay(100),
            Script.finish("tool_calls")
          ],
          [Script.text("done"), Script.finish("stop")]
        ]))
      )
    ),
    succeeded
  )

const warnings = (lines: Array<unknown>) =>
  Logger.layer([
    Logger.make(({ message }) => {
      lines.push(Array.isArray(message) ? message[0] : message)
    })
  ])

const breaking = {
  throws: (): never => {
    throw new Error("broken")
  },
  "returns a promise": () => Promise.reject(new Error("broken"))
}

describe("N-28: readOnly by the arguments", () => {
  it.effect("N-28: only the read-only calls of a tool start during the reply", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* starts(shell()), ["a at 50", "b at 200"])
      assert.deepStrictEqual(yield* starts(shell(), Policy.standard, ["rm", "ls"]), ["b at 100", "a at 200"])
      assert.deepStrictEqual(yield* starts(shell(), { ...Policy.standard, start: "afterTurn" }), [
        "a at 200",
        "b at 200"
      ])
      assert.deepStrictEqual(yield* starts(shell(), { ...Policy.standard, start: "onCallReady" }), [
        "a at 50",
        "b at 100"
      ])
    }))

  it.effect("N-28: readOnly receives the decoded arguments, in every form of parameters", () =>
    Effect.gen(function*() {
      const trimmed = Schema.Struct({
        command: Schema.String.pipe(Schema.decodeTo(Schema.String, SchemaTransformation.trim()))
      })
      const raw = { type: "object", properties: { command: { type: "string" } } }
      for (const parameters of [trimmed, z.object({ command: z.string().transform((text) => text.trim()) })]) {
        assert.deepStrictEqual(yield* starts(shell({ parameters }), Policy.standard, [" ls ", " rm "]), [
          "a at 50",
          "b at 200"
        ])
      }
      assert.deepStrictEqual(yield* starts(shell({ parameters: raw })), ["a at 50", "b at 200"])
      assert.deepStrictEqual(
        yield* starts(shell({ parameters: {}, readOnly: (args: object) => Object.keys(args).length === 0 })),
        ["a at 50", "b at 100"]
      )
    }))

  it.effect("N-28: a call with invalid or slowly decoded arguments does not start during the reply", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* starts(shell(), Policy.standard, [7, "ls"]), ["b at 100"])
      let validated = 0
      const slow = z.object({ command: z.string().refine(async (text) => ++validated > 0 && text !== "rm") })
      assert.deepStrictEqual(yield* starts(shell({ parameters: slow })), ["a at 200"])
      assert.isAbove(validated, 0)
    }))

  for (const [how, readOnly] of Object.entries(breaking)) {
    it.effect(`N-28: a readOnly that ${how} counts as false, with a warning`, () =>
      Effect.gen(function*() {
        const lines: Array<unknown> = []
        const tool = shell({ readOnly })
        assert.deepStrictEqual(yield* Effect.provide(starts(tool), warnings(lines)), ["a at 200", "b at 200"])
        assert.isFalse(Tool.isReadOnly(tool, { command: "ls" }))
        const line = "readOnly of tool \"shell\" failed; the call counts as one that changes something"
        assert.deepStrictEqual(lines, [line, line])
      }))
  }

  it.effect("N-28: only the read-only calls of a tool are retried after a crash", () =>
    Effect.gen(function*() {
      const runs: Array<string> = []
      const tool = shell({ handler: ({ command }: { command: string }) => Effect.sync(() => runs.push(command)) })
      const resumed = RunJournal.recalling(() => ({
        hasStarted: true,
        isUnknown: true,
        idempotencyKey: "k",
        attempt: 1
      }))
      const calls = ["ls", "rm"].map((command) => Message.toolCall(command, "shell", { command }))
      const { messages } = yield* runCalls(calls, [tool], {}, resumed)
      assert.deepStrictEqual(runs, ["ls"])
      assert.deepStrictEqual(messages.map(({ content }) => String(content).includes("unknown_effect")), [false, true])
      runs.length = 0
      for (const readOnly of Object.values(breaking)) {
        yield* runCalls(calls, [{ ...tool, readOnly: readOnly as never }], {}, resumed).pipe(
          Effect.provide(Logger.layer([]))
        )
      }
      assert.deepStrictEqual(runs, [])
    }))
})

describe("N-28: destructive and interrupt by the arguments", () => {
  it("N-28: Tool.isDestructive asks destructive about the arguments, and a broken destructive counts as true", () => {
    const removes = ({ command }: { readonly command: string }) => command.startsWith("rm")
    const tool = shell({ destructive: removes })
    assert.isTrue(Tool.isDestructive(tool, { command: "rm x" }))
    assert.isFalse(Tool.isDestructive(tool, { command: "ls" }))
    for (const destructive of [...Object.values(breaking), () => undefined, () => 0]) {
      assert.isTrue(Tool.isDestructive(shell({ destructive }), { command: "ls" }))
    }
    for (const flag of [true, false]) {
      assert.strictEqual(Tool.isDestructive(shell({ destructive: flag }), { command: "ls" }), flag)
      assert.strictEqual(Tool.isReadOnly(shell({ readOnly: flag }), { command: "ls" }), flag)
    }
    assert.isFalse(Tool.isDestructive(shell(), { command: "ls" }))
    for (const readOnly of [() => undefined, () => 1, () => "true"]) {
      assert.isFalse(Tool.isReadOnly(shell({ readOnly }), { command: "ls" }))
    }
  })

  /** What two calls of 30 ms come to when the run is stopped after 10 ms. */
  const stopped = (interrupt: unknown, policy: Policy.Policy = Policy.standard) =>
    Effect.map(
      Simulation.run(
        ToolRunner.run(
          ["ls", "cp"].map((command) => Message.toolCall(command, "shell", { command })),
          [shell({
            ...(interrupt === undefined ? {} : { interrupt }),
            handler: () => Effect.as(Effect.sleep(30), "whole")
          })],
          { policy, cancel: Effect.sleep(10) }
        )
      ),
      (report) => succeeded(report).messages.map(({ content }) => content === "whole")
    )

  const byCommand = ({ command }: { readonly command: string }) => command === "cp" ? "block" : "cancel"

  it.effect("N-28: only the blocking calls of a tool may finish when the run is stopped", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* stopped(byCommand), [false, true])
      assert.deepStrictEqual(yield* stopped(byCommand, { ...Policy.standard, interrupt: "block" }), [false, true])
      assert.deepStrictEqual(yield* stopped(undefined, { ...Policy.standard, interrupt: "block" }), [true, true])
    }))

  it.effect("N-28: a sibling's failure interrupts the cancelable calls of a tool, and not its blocking calls", () =>
    Effect.gen(function*() {
      const siblings = { ...Policy.standard.siblings, onToolError: "abortCancelable" } as const
      const broken = Tool.make("broken", { parameters: {}, handler: () => Effect.die("broken") })
      const tool = shell({ interrupt: byCommand, handler: () => Effect.as(Effect.sleep(30), "whole") })
      const calls = [
        Message.toolCall("a", "shell", { command: "ls" }),
        Message.toolCall("b", "shell", { command: "cp" }),
        Message.toolCall("c", "broken")
      ]
      const report = yield* Simulation.run(
        ToolRunner.run(calls, [tool, broken], { policy: { ...Policy.standard, siblings } })
      )
      assert.deepStrictEqual(succeeded(report).messages.map(({ content }) => content === "whole"), [false, true, false])
    }))

  for (const [how, interrupt] of Object.entries({ ...breaking, "returns nothing": (): undefined => undefined })) {
    it.effect(`N-28: an interrupt that ${how} counts as "block"`, () =>
      Effect.gen(function*() {
        const lines: Array<unknown> = []
        assert.deepStrictEqual(yield* Effect.provide(stopped(interrupt), warnings(lines)), [true, true])
        const line = "interrupt of tool \"shell\" failed; the call may finish when it is stopped"
        assert.deepStrictEqual(lines, how === "returns nothing" ? [] : [line, line])
      }))
  }

  it("N-28: Tool.make refuses a readOnly, destructive or interrupt of a wrong type", () => {
    assert.throws(() => shell({ readOnly: "ls" }), "readOnly must be true or false, or a function of the arguments")
    assert.throws(
      () => shell({ destructive: null }),
      "destructive must be true or false, or a function of the arguments"
    )
    assert.throws(
      () => shell({ interrupt: true }),
      "interrupt must be \"cancel\" or \"block\", or a function of the arguments"
    )
  })
})
