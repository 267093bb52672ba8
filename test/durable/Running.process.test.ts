/** The worker process of the guide "Running it": its health, a SIGTERM in the middle of a call, and its successor. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { spawn } from "node:child_process"
import { once } from "node:events"
import * as path from "node:path"
import { root } from "../support/source.ts"
import { limit, until } from "../support/until.ts"
import * as Processes from "./support/processes.ts"

const program = path.join(root, "scratchpad/examples/serve.ts")

/** A process that is killed with the scope. `said` waits until its output contains the words. */
const start = (...args: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() => spawn(process.execPath, ["--conditions=source", program, ...args])),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const printed = { text: "" }
    for (const output of [child.stdout, child.stderr]) {
      output.setEncoding("utf8").on("data", (text: string) => void (printed.text += text))
    }
    const ended = once(child, "close")
    const said = (words: RegExp) =>
      Effect.map(
        until(`${words}`, Effect.sync(() => printed.text), (text) => words.test(text)),
        (text) => words.exec(text)!
      )
    return { child, printed, said, ended: Effect.promise(() => ended) }
  })

const work = (filename: string) =>
  Effect.gen(function*() {
    const worker = yield* start("work", filename)
    const [, port] = yield* worker.said(/port: (\d+)/)
    const health = Effect.promise(async () => {
      const response = await fetch(`http://127.0.0.1:${port}`)
      const body = await response.json() as Readonly<Record<"isReady" | "isLeaving" | "driven", unknown>>
      return { status: response.status, ...body }
    })
    return { ...worker, health }
  })

const test = (title: string, program: Effect.Effect<void, never, Scope.Scope>) =>
  it.live(title, () => Effect.scoped(program), limit)

describe("the worker process of the guide", () => {
  test(
    "N-05: the guide's worker process ends its call after a SIGTERM and hands the run over",
    Effect.gen(function*() {
      const filename = path.join(yield* Processes.folder, "sessions.db")
      const first = yield* work(filename)
      assert.include(yield* first.health, { status: 200, isReady: true, isLeaving: false, driven: 0 })
      const submit = yield* start("submit", filename)
      assert.deepStrictEqual(yield* submit.ended, [0, null])
      yield* first.said(/pack order-7, and press Enter/)
      const second = yield* work(filename)

      first.child.kill("SIGTERM")
      const leaving = yield* until("the leave", first.health, ({ isLeaving }) => isLeaving === true)
      assert.include(leaving, { status: 503, isReady: false, driven: 1 })
      first.child.kill("SIGTERM")
      first.child.stdin.write("\n")
      assert.deepStrictEqual(yield* first.ended, [130, null])

      yield* second.said(/order-7: It is packed\./)
      assert.notInclude(first.printed.text, "It is packed.")
      assert.notInclude(second.printed.text, "pack order-7")
      assert.include(second.printed.text, "session \"order-7\" is taken over")
      second.child.kill("SIGINT")
      assert.deepStrictEqual(yield* second.ended, [130, null])
    })
  )
})
