/**
 * The program of `npm run crash`, killed in processes of its own: once at each of its boundaries, in its recovery as well,
 * and with a model that gives its calls new ids at each asking. Here each comes in its short form. The help of the command,
 * too, is read from a process.
 */
import { assert, beforeAll, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type EveryKill, everyKill } from "heddle/testing"
import { execFile, spawnSync } from "node:child_process"
import { join } from "node:path"
import { promisify } from "node:util"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import { difference } from "../../scratchpad/crash/result.ts"
import type { Policy } from "../../scratchpad/crash/tools.ts"
import { readSource, root } from "../support/source.ts"
import { bound, limit } from "../support/until.ts"

let program: string

beforeAll(async () => {
  program = await bundle(join(import.meta.dirname, "../../scratchpad/crash/program.ts"))
}, limit)

const killing = (policy: Policy, { args = [], ...options }: EveryKill.Options = {}) =>
  Effect.suspend(() =>
    everyKill(program, { difference, timeout: bound, ...options, args: ["--policy", policy, ...args] })
  )

const names = (calls: ReadonlyArray<{ readonly name: string }>) => new Set(calls.map(({ name }) => name))

describe("a killed program", { timeout: limit }, () => {
  it.live(
    "D-01, D-03, Q-15: a kill at any boundary repeats no finished call, makes each repeat known, and leads to the same result",
    () =>
      Effect.gen(function*() {
        const { attempts, kills, points, violations } = yield* killing("lookUp")
        assert.deepStrictEqual(violations, [])
        assert.isAbove(points.length, 90)
        // A call that only reads starts and ends before its reply is whole, and one that fails is tried again.
        assert.isBelow(points.indexOf("after CallEnded"), points.indexOf("the model's MessageCompleted"))
        assert.include(points, "after AttemptFailed")
        assert.strictEqual(kills, points.length)
        assert.isTrue(attempts.every(({ isDone }) => isDone))
        // It is not by luck: calls of all kinds were interrupted, and what may be repeated was.
        const unknown = attempts.flatMap(({ unknown }) => unknown)
        assert.deepStrictEqual([...names(unknown)].sort(), ["book", "charge", "lookup", "mail"])
        const settled = new Set(unknown.map(({ name, settled }) => `${name}: ${settled}`))
        assert.containsAllKeys(Object.fromEntries([...settled].map((text) => [text, true])), [
          "book: retried",
          "charge: found",
          "charge: retried",
          "lookup: lostReply",
          "mail: retried"
        ])
        const repeats = attempts.flatMap(({ repeats }) => repeats)
        assert.deepStrictEqual([...names(repeats)].sort(), ["book", "lookup", "mail"])
        assert.deepStrictEqual(attempts.flatMap(({ missing }) => missing), [])
      })
  )

  it.live(
    "D-03: a person is asked about each charge with an unknown effect, and no charge is repeated",
    () =>
      Effect.gen(function*() {
        const { attempts, violations } = yield* killing("ask", { limit: 34 })
        assert.deepStrictEqual(violations, [])
        const settled = attempts.flatMap(({ unknown }) => unknown).filter(({ name }) => name === "charge")
        assert.deepStrictEqual([...new Set(settled.map(({ settled }) => settled))], ["asked"])
        const repeats = attempts.flatMap(({ repeats }) => repeats)
        assert.notInclude([...names(repeats)], "charge")
        assert.deepStrictEqual(attempts.flatMap(({ missing }) => missing), [])
      })
  )

  it.live("D-02: a program killed again in its recovery repeats no charge", () =>
    Effect.gen(function*() {
      const { attempts, kills, violations } = yield* killing("report", { limit: 11, again: "random" })
      assert.deepStrictEqual(violations, [])
      assert.isAtLeast(kills, 30)
      const repeats = attempts.flatMap(({ repeats }) => repeats)
      assert.notInclude([...names(repeats)], "charge")
    }))

  it.live(
    "D-02: a program with new call ids from its model, killed up to three times at random, repeats no charge",
    () =>
      Effect.gen(function*() {
        const random = { attempts: 10, most: 3, seed: "crash" }
        const { attempts, violations } = yield* killing("report", { args: ["--ids", "new"], random })
        assert.deepStrictEqual(violations, [])
        const repeats = attempts.flatMap(({ repeats }) => repeats)
        assert.notInclude([...names(repeats)], "charge")
      })
  )
})

describe("npm run crash", { timeout: limit }, () => {
  it("N-34: npm run crash -- --help prints each of its options, and exits with status 0", () => {
    for (const [file, command] of [["settings", []], ["leave/main", ["leave"]]] as const) {
      const { status, stdout } = spawnSync(
        process.execPath,
        ["--conditions=source", join(root, "scratchpad/crash/main.ts"), ...command, "--help"],
        { encoding: "utf8" }
      )
      assert.strictEqual(status, 0)
      assert.isTrue(stdout.startsWith("npm run crash -- "), stdout.slice(0, 100))
      const { text } = readSource(`scratchpad/crash/${file}.ts`)
      const flags = Array.from(text.matchAll(/^ {6}(\w+): \{ type:/gm), ([, name]) => name!)
      assert.isNotEmpty(flags)
      assert.deepStrictEqual(flags.filter((name) => !stdout.includes(`--${name} `)), [])
    }
  })

  it("G50, G51: npm run crash -- --steers kills workers while messages come, and each message has one fate", async () => {
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ["--conditions=source", join(root, "scratchpad/crash/main.ts"), "--steers", "--kills", "5"]
    )
    const { found, kills, nested, sessions, violations } = JSON.parse(stdout)
    assert.deepStrictEqual([kills, violations], [5, []])
    const sum = (counts: Record<string, number>) => Object.values(counts).reduce((sum, count) => sum + count)
    // Each session has six messages, and each of the sub-agents of half of them has three.
    assert.strictEqual(sum(found.session), 6 * sessions)
    assert.deepStrictEqual([sum(found.c0), sum(found["c0/c1"])], [3 * nested, 3 * nested])
    assert.isAbove(found.session.delivered, 0)
    // The innermost run works until it has a message.
    assert.isAbove(found["c0/c1"].delivered, 0)
  })
})
