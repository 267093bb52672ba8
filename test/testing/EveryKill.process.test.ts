/**
 * Tests what `everyKill` does to a program, and what it finds: programs with one fault each, killed in processes of their own.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type EveryKill, everyKill, KillPoint } from "heddle/testing"
import * as fs from "node:fs"
import { join } from "node:path"
import { bundle } from "../../scratchpad/crash/bundle.ts"
import { bound, limit } from "../support/until.ts"

const program = bundle(join(import.meta.dirname, "../fixtures/killed.ts"))

const killing = (fault: string, options: EveryKill.Options = {}) =>
  Effect.flatMap(
    Effect.promise(() => program),
    (file) => everyKill(file, { timeout: bound, ...options, args: [fault] })
  )

/** The laws that are broken, each with what is said of it once. */
const told = ({ violations }: EveryKill.Report): Record<string, ReadonlyArray<string>> => {
  const byLaw: Record<string, Array<string>> = {}
  for (const { law, message } of violations) {
    const messages = byLaw[law] ??= []
    if (!messages.includes(message)) messages.push(message)
  }
  return byLaw
}

describe("everyKill: attempts", { timeout: limit }, () => {
  it.live(
    "D-01: everyKill kills a program once at each of its boundaries, and starts it again until it has its result",
    () =>
      Effect.gen(function*() {
        const report = yield* killing("retries")
        assert.deepStrictEqual(report.points, [
          "before Opened RunStarted ReplyReceived",
          "after Opened RunStarted ReplyReceived",
          "before CallStarted",
          "after CallStarted",
          "before the effect of pay",
          "after the effect of pay",
          "before CallEnded",
          "after CallEnded"
        ])
        assert.deepStrictEqual(
          report.attempts.map(({ kills: [kill], plan }) => [...plan, kill?.at, kill?.name]).sort(),
          report.points.map((name, index) => [index + 1, index + 1, name])
        )
        assert.strictEqual(report.kills, 8)
        assert.deepStrictEqual(report.violations, [])
        for (const { isDone, kills: [kill], plan, processes, repeats, unknown, value } of report.attempts) {
          assert.deepStrictEqual([processes, isDone, value], [2, true, "paid"])
          // After the last boundary nothing is left to do.
          assert.strictEqual((kill?.takeoverMillis ?? 0) > 0, plan[0] !== 8)
          // Between its start and its end the call is unknown; from its effect on, that is repeated.
          const isUnknown = [4, 5, 6, 7].includes(plan[0] ?? 0)
          assert.deepStrictEqual(unknown, isUnknown ? [{ name: "pay", id: "c0", settled: "retried" }] : [])
          const isRepeated = [6, 7].includes(plan[0] ?? 0)
          assert.deepStrictEqual(repeats, isRepeated ? [{ name: "pay", why: "unknown", hadReturned: false }] : [])
        }
      })
  )

  it.live("everyKill also kills the recovery, at a random boundary or at every boundary", () =>
    Effect.gen(function*() {
      const random = yield* killing("marks", { again: "random", limit: 2 })
      assert.deepStrictEqual(random.points, ["one", "two", "three"])
      const plans = random.attempts.map(({ plan }) => plan)
      assert.deepStrictEqual(plans.filter(({ length }) => length === 1).flat().sort(), [1, 3])
      assert.deepStrictEqual(plans.filter(({ length }) => length === 2).map(([first]) => first).sort(), [1, 3])
      assert.strictEqual(random.kills, 6)
      const every = yield* killing("marks", { again: "every", limit: 1 })
      assert.sameDeepMembers(every.attempts.map(({ plan }) => [...plan]), [[1], [1, 1], [1, 2], [1, 3]])
      assert.strictEqual(every.kills, 7)
      assert.isTrue(every.attempts.every(({ isDone, kills, processes }) => isDone && processes === kills.length + 1))
    }))

  it.live("random kills are the same for the same seed, and differ for another seed", () =>
    Effect.gen(function*() {
      const plans = (seed: string) =>
        Effect.map(
          killing("marks", { random: { attempts: 4, most: 2, seed } }),
          ({ attempts }) => attempts.map(({ plan }) => plan.join()).sort()
        )
      const first = yield* plans("a")
      assert.lengthOf(first, 4)
      assert.deepStrictEqual(yield* plans("a"), first)
      assert.notDeepEqual(yield* plans("b"), first)
    }))

  it.live(
    "another process takes over when everyKill kills one of several processes that share a program",
    () =>
      Effect.gen(function*() {
        const report = yield* killing("shared", { processes: 2 })
        assert.deepStrictEqual(report.points, ["before the effect of pay", "after the effect of pay"])
        for (const { isDone, kills, processes } of report.attempts) {
          assert.deepStrictEqual([isDone, kills.length, processes], [true, 1, 2])
          assert.isAbove(kills[0]?.takeoverMillis ?? 0, 0)
        }
      })
  )

  it.live("everyKill removes the folder of each attempt", () =>
    Effect.gen(function*() {
      const folders: Array<string> = []
      yield* killing("folder", {
        difference: (_, value) => {
          folders.push(String(value))
          return undefined
        }
      })
      assert.lengthOf(new Set(folders), 2)
      for (const folder of folders) {
        assert.match(folder, /heddle-kill-/)
        assert.isFalse(fs.existsSync(folder))
      }
    }))

  it.live("everyKill runs the program with the given Node and its arguments, and reports a missing Node", () =>
    Effect.gen(function*() {
      const node = join(import.meta.dirname, "no-node")
      const { attempts, violations } = yield* killing("none", { node })
      assert.deepStrictEqual(attempts, [])
      assert.match(violations[0]?.message ?? "", /^a process could not be started: spawn .*no-node ENOENT$/)
      const other = yield* killing("node", { node: process.execPath, nodeArgs: ["--title=everyKill"], limit: 1 })
      assert.deepStrictEqual(other.attempts.map(({ value }) => value), ["everyKill"])
    }))

  it.live("a program run by itself is not killed, and writes nothing", () =>
    Effect.gen(function*() {
      assert.strictEqual(KillPoint.folder(), ".")
      yield* KillPoint.at("here")
      yield* KillPoint.done(1)
      assert.isFalse(fs.existsSync("world.jsonl"))
    }))
})

describe("everyKill: violations", { timeout: limit }, () => {
  const finds = (fault: string, expected: Record<string, ReadonlyArray<string>>, options?: EveryKill.Options) =>
    it.live(`everyKill finds in the program "${fault}" these broken laws: ${Object.keys(expected).join(", ") || "none"}`, () =>
      Effect.gen(function*() {
        const report = yield* killing(fault, options)
        assert.deepStrictEqual(told(report), expected)
      }))

  finds("none", {})
  finds("finished", {
    finished: ["pay ran again after its end was recorded"],
    journal: ["session s: record 6, CallStarted, has call \"c0\", which has its answer"]
  })
  finds("silent", { silent: ["pay was repeated, and nothing recorded says why"] })
  finds("doubled", { silent: ["pay was repeated, and nothing recorded says why"] })
  finds("retried", {
    finished: ["pay ran again after its end was recorded"],
    journal: [
      "session s: record 5, CallStarted, has call \"c0\" in attempt 3, after 1",
      "session s: record 8, CallStarted, has call \"c0\", which has its answer"
    ]
  })
  finds("asked", {
    finished: ["pay ran again after its end was recorded"],
    journal: [
      "session s: record 7, CallStarted, has call \"c0\", which waits",
      "session s: record 6, CallWaits, has call \"c0\", which has its answer",
      "session s: record 7, CallSettled, settles \"c0\", which does not wait",
      "session s: record 8, CallStarted, has call \"c0\", which has its answer"
    ]
  })
  finds("lost", { lost: ["pay never ran, and was not unknown"] })
  finds("untold", {
    lost: ["pay never ran, and was not unknown"],
    untold: ["pay was interrupted between its start and its end, and was passed over"]
  })
  finds("asks", { asked: ["1 more requests, and 0 replies lost"] })
  finds("answers", { answer: ["1 more final answers"] })
  finds("journal", { journal: ["session s: record 4, RunStarted, stands within run r"] })
  finds("result", { result: ["result.context.paid is undefined, not 1"] })
  // The processes before it have to end within this time.
  finds("hangs", { end: ["a process did not end within 30s"] }, { timeout: "30 seconds" })
  finds("ends", { end: ["no result after 4 processes"] }, { recoveries: 2 })

  it.live("everyKill reports a failed process with its standard error", () =>
    Effect.gen(function*() {
      const report = yield* killing("fails")
      const [violation] = report.violations
      assert.deepInclude(violation, { law: "end", plan: [1] })
      assert.match(violation?.message ?? "", /^a process ended with code 1: [^]*no such order/)
    }))

  it.live("everyKill does not kill a program that fails without a kill, and reports why", () =>
    Effect.gen(function*() {
      const report = yield* killing("no such fault")
      assert.deepStrictEqual(report.attempts, [])
      assert.match(report.violations[0]?.message ?? "", /code 1: [^]*no such fault/)
    }))

  it.live(
    "everyKill finds a program that forgets its journal: the program repeats finished and unknown calls",
    () =>
      Effect.gen(function*() {
        const report = yield* killing("forgets", { limit: 12 })
        assert.strictEqual(report.kills, 12)
        assert.isTrue(report.attempts.every(({ isDone }) => isDone))
        const laws = told(report)
        assert.containsAllKeys(laws, ["asked", "finished", "untold"])
        assert.include([...laws["finished"] ?? []], "lookup ran again after its end was recorded")
      })
  )

  it.live(
    "everyKill does not kill a program with another result each time, and reports the difference",
    () =>
      Effect.gen(function*() {
        const report = yield* killing("unsteady")
        assert.deepStrictEqual(report.attempts, [])
        assert.deepInclude(report.violations[0], { law: "repeatable", plan: [] })
        assert.match(report.violations[0]?.message ?? "", /^result: result\.paid is \d+, not \d+$/)
      })
  )

  it.live("a difference that the caller's comparison allows is not a violation", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const report = yield* killing("result", {
        difference: (uninterrupted, value) => {
          seen.push([uninterrupted, value])
          return undefined
        }
      })
      assert.deepStrictEqual(report.violations, [])
      const uninterrupted = { context: { paid: 1 } }
      assert.deepStrictEqual(seen, [[uninterrupted, uninterrupted], [uninterrupted, { context: {} }]])
    }))
})
