/**
 * What the guide to stopping says of work that a run cannot own, and of what to use in its place: each statement is
 * tried, with real promises and real processes.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as ChildProcess from "effect/process/ChildProcess"
import { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Message, Tool, ToolRunner } from "heddle"
import { execFile } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { examplesOf, programOf } from "../support/examples.ts"
import { timed } from "../support/runs.ts"
import { readSource, root } from "../support/source.ts"

const calls = [Message.toolCall("c0", "subject")]

const subject = (handler: (call: Tool.CallContext) => Effect.Effect<unknown, unknown, any>): Tool.Any =>
  Tool.make("subject", { parameters: {}, handler: (_, call) => handler(call) })

/** A promise that ignores its signal. */
const deaf = () => {
  let settle = (): void => {}
  const state = { hasBegun: false, hasEnded: false, settle: () => settle() }
  const run = async (_signal: AbortSignal): Promise<void> => {
    state.hasBegun = true
    await new Promise<void>((resolve) => {
      settle = resolve
    })
    state.hasEnded = true
  }
  return { run, state }
}

/** One that has ended and was not collected by its parent is no process any more. */
const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return !/^State:\s+Z/m.test(fs.readFileSync(`/proc/${pid}/status`, "utf8"))
  } catch {
    return false
  }
}

/** A shell that starts a process of its own, says which, and waits for it. */
const script = "sleep 60 & echo $!; wait"

/** Runs a tool until its handler has told the process that its shell has started, and interrupts the run. */
const grandchild = (
  handler: (pid: Deferred.Deferred<number>, call: Tool.CallContext) => Effect.Effect<unknown, unknown, any>
) =>
  Effect.gen(function*() {
    const told = yield* Deferred.make<number>()
    const fiber = yield* Effect.forkChild(ToolRunner.run(calls, [subject((call) => handler(told, call))]))
    const pid = yield* Deferred.await(told)
    assert.isTrue(isAlive(pid))
    yield* Fiber.interrupt(fiber)
    return pid
  })

describe("M-09: what a run owns", () => {
  it.effect("M-09: the guide to stopping names unowned promises and processes next to call.promise, and its example runs", () =>
    Effect.gen(function*() {
      const guide = readSource("docs/stopping.md")
      const said = guide.text.slice(guide.text.indexOf("`call.promise` waits for"))
      for (const name of ["`Effect.promise`", "`Effect.tryPromise`", "`ChildProcess`", "`execFile`"]) {
        assert.include(said.slice(0, said.indexOf("```")), name)
      }
      const example = examplesOf(guide).find(({ code }) => code.includes("effect/process/ChildProcess"))
      assert.isDefined(example)
      const folder = path.join(root, "node_modules/.cache/heddle-ownership")
      fs.mkdirSync(folder, { recursive: true })
      const file = path.join(folder, "guide.ts")
      fs.writeFileSync(file, programOf(example!))
      yield* Effect.promise(() => import(file))
    }))

  it.effect("M-09: a promise of Effect.promise or Effect.tryPromise that ignores its signal outlives the run, unnamed", () =>
    Effect.gen(function*() {
      for (const make of [Effect.promise, (run: (signal: AbortSignal) => Promise<void>) => Effect.tryPromise(run)]) {
        const { run, state } = deaf()
        const ended = yield* timed(ToolRunner.run(calls, [subject(() => make(run))], { cancel: Effect.sleep(10) }))
        assert.strictEqual(ended.at, 10)
        assert.notProperty(yield* ended.exit, "abandoned")
        assert.deepInclude(state, { hasBegun: true, hasEnded: false })
        state.settle()
        yield* Effect.promise(() => Promise.resolve())
        assert.isTrue(state.hasEnded)
      }
    }))

  it.effect("M-09: a run waits for call.promise, and names its call after the grace period", () =>
    Effect.gen(function*() {
      const { run, state } = deaf()
      const options = { cancel: Effect.sleep(10), grace: 1000 }
      const ended = yield* timed(ToolRunner.run(calls, [subject((call) => call.promise(run))], options))
      assert.strictEqual(ended.at, 1010)
      assert.deepStrictEqual((yield* ended.exit).abandoned?.map(({ id }) => id), ["c0"])
      const other = deaf()
      const fiber = yield* Effect.forkChild(
        ToolRunner.run(calls, [subject((call) => call.promise(other.run))], options),
        { startImmediately: true }
      )
      yield* TestClock.adjust(500)
      assert.isUndefined(fiber.pollUnsafe())
      other.state.settle()
      assert.notProperty(yield* Fiber.join(fiber), "abandoned")
      assert.isTrue(other.state.hasEnded)
      assert.isFalse(state.hasEnded)
    }))

  it.live("M-09: ChildProcess ends the processes started by its process", () =>
    Effect.gen(function*() {
      const pid = yield* grandchild((told) =>
        Effect.flatMap(ChildProcessSpawner, (spawner) =>
          Stream.runForEach(
            spawner.streamLines(ChildProcess.make("sh", ["-c", script])),
            (line) => Deferred.succeed(told, Number(line))
          ))
      )
      assert.isFalse(isAlive(pid))
    }).pipe(Effect.provide(NodeServices.layer)))

  it.live("M-09: execFile with a signal leaves the processes started by its process running", () =>
    Effect.gen(function*() {
      const pid = yield* grandchild((told, call) =>
        call.promise((signal) =>
          new Promise<void>((resolve) => {
            const child = execFile("sh", ["-c", script], { signal }, () => resolve())
            child.stdout?.on("data", (text) => Deferred.doneUnsafe(told, Effect.succeed(Number(text))))
          })
        )
      )
      const isLeft = isAlive(pid)
      process.kill(pid)
      assert.isTrue(isLeft)
    }))
})
