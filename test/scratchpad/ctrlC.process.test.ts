/**
 * The recipe of the terminal guide for Ctrl-C, as a process that gets real signals, under both runners: its tool runs a
 * process that takes its time to stop.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { readSource, root } from "../support/source.ts"
import { limit } from "../support/until.ts"

const example = "scratchpad/examples/ctrl-c.ts"

/** What the shell runs: it says what happens to it, and ends after a SIGTERM once it has read from the pipe. */
const child = `import * as fs from "node:fs"
process.on("SIGTERM", () => {
  console.log("child: stopping")
  fs.readFile(process.argv[2], () => {
    console.log("child: stopped")
    process.exit()
  })
})
setInterval(() => {}, 60_000)
console.log("child: " + process.pid)
`

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

const folder = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-ctrl-c-"))),
  (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
)

/** The program under a runner, once its child runs. Both are killed with the scope. */
const start = (runner: string) =>
  Effect.gen(function*() {
    const made = yield* folder
    const [pipe, file] = [path.join(made, "pipe"), path.join(made, "child.mjs")]
    execFileSync("mkfifo", [pipe])
    fs.writeFileSync(file, child)
    const script = `exec "${process.execPath}" "${file}" "${pipe}"`
    const program = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, ["--conditions=source", path.join(root, example), runner, script], {
          stdio: ["ignore", "pipe", "pipe"]
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const printed = { text: "" }
    for (const output of [program.stdout, program.stderr]) {
      output.setEncoding("utf8").on("data", (text: string) => void (printed.text += text))
    }
    const exited = once(program, "exit")
    const said = (words: RegExp) =>
      Effect.repeat(Effect.sync(() => words.exec(printed.text)), {
        schedule: Schedule.spaced("10 millis"),
        until: (found) => found !== null
      })
    const pid = Number((yield* said(/^child: (\d+)$/m))?.[1])
    yield* Effect.addFinalizer(() => Effect.sync(() => isAlive(pid) && process.kill(-pid, "SIGKILL")))
    return {
      printed,
      said,
      program,
      isChildAlive: () => isAlive(pid),
      letChildEnd: Effect.promise(() => fs.promises.writeFile(pipe, "end\n")),
      /** Waits for the end of the program, and for what it has printed by then. */
      ended: Effect.map(Effect.promise(() => exited), ([code]) => ({ code, isChildAlive: isAlive(pid) }))
    }
  })

const test = (title: string, program: Effect.Effect<void, never, Scope.Scope>) =>
  it.live(title, () => Effect.scoped(program), limit)

describe("Ctrl-C in a terminal", { concurrent: true }, () => {
  for (const [runner, name] of [["main", "NodeRuntime.runMain"], ["promise", "Effect.runPromiseExit"]] as const) {
    test(
      `N-32: the first Ctrl-C under ${name} stops the run softly, and the program prints its result`,
      Effect.gen(function*() {
        const { ended, letChildEnd, program, said } = yield* start(runner)
        program.kill("SIGINT")
        yield* said(/^stopping$/m)
        yield* said(/^child: stopping$/m)
        yield* letChildEnd
        yield* said(/^outcome: Cancelled$/m)
        assert.deepStrictEqual(yield* ended, { code: 130, isChildAlive: false })
      })
    )

    test(
      `N-32: the second Ctrl-C under ${name} interrupts the run and waits for its processes`,
      Effect.gen(function*() {
        const { ended, isChildAlive, letChildEnd, printed, program, said } = yield* start(runner)
        program.kill("SIGINT")
        yield* said(/^child: stopping$/m)
        program.kill("SIGINT")
        yield* said(/^interrupting$/m)
        assert.isTrue(isChildAlive())
        assert.isNull(program.exitCode)
        yield* letChildEnd
        assert.deepStrictEqual(yield* ended, { code: 130, isChildAlive: false })
        yield* said(/^child: stopped$/m)
        assert.notInclude(printed.text, "outcome")
      })
    )

    test(
      `N-32: the third Ctrl-C under ${name} ends the process at once`,
      Effect.gen(function*() {
        const { ended, printed, program, said } = yield* start(runner)
        program.kill("SIGINT")
        yield* said(/^child: stopping$/m)
        program.kill("SIGINT")
        yield* said(/^interrupting$/m)
        program.kill("SIGINT")
        assert.deepStrictEqual(yield* ended, { code: 130, isChildAlive: true })
        assert.notInclude(printed.text, "outcome")
      })
    )
  }

  test(
    "N-32: a SIGTERM under NodeRuntime.runMain interrupts the run and waits for its processes",
    Effect.gen(function*() {
      const { ended, letChildEnd, printed, program, said } = yield* start("main")
      program.kill("SIGTERM")
      yield* said(/^child: stopping$/m)
      yield* letChildEnd
      assert.deepStrictEqual(yield* ended, { code: 130, isChildAlive: false })
      assert.notInclude(printed.text, "outcome")
    })
  )

  it("N-32: the guide shows the tested recipe", () => {
    const [, recipe] = /^(const withCtrlC = [^]*?\n {2}\}\))\n/m.exec(readSource(example).text) ?? []
    assert.isDefined(recipe)
    assert.include(readSource("docs/streaming.md").text, recipe!)
  })
})
