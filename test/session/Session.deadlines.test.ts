/**
 * A run in a run in a run, each with a deadline of its own or without one: all of them end at the earliest of these, also
 * in a process that continues them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Limits, Session, Tool } from "heddle"
import { casting, holding, listing, type Turn, type Written } from "../support/nests.ts"
import { sampleOf } from "../support/property.ts"

const times = { none: Infinity, earlier: 4_000, later: 8_000 }

type Time = keyof typeof times

const all = Object.keys(times) as ReadonlyArray<Time>

/** When another process continues, and whether the first one had the deadline around the run as well. */
const processes = {
  fresh: undefined,
  "resumed at 3,000": { at: 3_000, isAround: true },
  "resumed at 5,000": { at: 5_000, isAround: true },
  "resumed at 3,000 inside a deadline that is new": { at: 3_000, isAround: false }
}

/** The deadline around the run, then those of the runs, the outermost first. */
const deadlinesOf = (runs: number): ReadonlyArray<ReadonlyArray<Time>> =>
  runs === 0
    ? all.map((time) => [time])
    : deadlinesOf(runs - 1).flatMap((before) => all.map((time) => [...before, time]))

const optionsOf = (time: Time) => ({
  toolTimeout: "infinity" as const,
  deadline: { after: times[time], reserve: 0 }
})

/** The model of each run calls the tool that has the run inside it, the last one a tool without an end. */
const parts: Readonly<Record<string, ReadonlyArray<Turn>>> = Object.fromEntries(
  [0, 1, 2].map((depth) => [`run ${depth}`, [[[`c${depth}`, "inner", {}]], "done"]])
)

interface Seen {
  /** When the innermost handler was interrupted. */
  readonly interruptedAt: Array<number>
}

const toolOf = (times: ReadonlyArray<Time>, depth: number, seen: Seen): Tool.Any =>
  times.length === 0
    ? Tool.make("inner", {
      parameters: {},
      idempotent: true,
      handler: () =>
        Effect.onInterrupt(Effect.never, () =>
          Effect.map(Clock.currentTimeMillis, (now) => void seen.interruptedAt.push(now)))
    })
    : Tool.fromChat("inner", {
      parameters: {},
      chat: () =>
        Chat.stream(`run ${depth}`, {
          ...optionsOf(times[0] ?? "none"),
          tools: [toolOf(times.slice(1), depth + 1, seen)]
        })
    })

const around = (time: Time) => Effect.provideService(Limits.CurrentDeadline, time === "none" ? undefined : times[time])

/** Runs the nest. Returns when it ended, and how. */
const ended = ([outer = "none", own = "none", ...inner]: ReadonlyArray<Time>, how: keyof typeof processes) =>
  Effect.gen(function*() {
    yield* TestClock.setTime(0)
    const seen: Seen = { interruptedAt: [] }
    const options = { ...optionsOf(own), tools: [toolOf(inner, 1, seen)] }
    const written: Array<Written> = []
    const first = Effect.flatMap(
      Session.open("s"),
      (opened) => Session.keep(opened, (session) => Session.reply(session, "run 0", options))
    )
    const process = processes[how]
    const providing = <A, E>(program: Effect.Effect<A, E, any>, time = outer, store = listing(written)) =>
      Effect.gen(function*() {
        const value = yield* program
        return { value, at: yield* Clock.currentTimeMillis }
      }).pipe(around(time), Effect.provide([casting(parts), store])) as Effect.Effect<{ value: A; at: number }, E>
    const fiber = yield* Effect.forkChild(providing(first, process?.isAround === false ? "none" : outer))
    if (process === undefined) {
      yield* TestClock.adjust(100_000)
      return { fiber, seen }
    }
    yield* TestClock.setTime(3_000)
    const before = written.slice()
    yield* Fiber.interrupt(fiber)
    seen.interruptedAt.length = 0
    yield* TestClock.setTime(process.at)
    const again = Effect.flatMap(Session.load("s"), (kept) => Session.resume(kept!, { ...options, takeOver: true }))
    const resumed = yield* Effect.forkChild(providing(again, outer, holding(before)))
    yield* TestClock.adjust(100_000)
    return { fiber: resumed, seen }
  })

const nests = { "a run": 1, "a run in a run": 2, "a run in a run in a run": 3 }

describe("deadlines of runs inside runs", () => {
  for (const [nest, runs] of Object.entries(nests)) {
    for (const how of Object.keys(processes) as ReadonlyArray<keyof typeof processes>) {
      it.effect(`D-21: ${nest} ends at the earliest deadline: ${how}`, () =>
        Effect.gen(function*() {
          for (const deadlines of sampleOf(deadlinesOf(runs), runs === 2 ? 27 : 9)) {
            const where = `around it ${deadlines[0]}, then ${deadlines.slice(1).join(", ")}`
            const { fiber, seen } = yield* ended(deadlines, how)
            const earliest = Math.min(...deadlines.map((time) => times[time]))
            const over = fiber.pollUnsafe()
            if (earliest === Infinity) {
              assert.isUndefined(over, where)
              yield* Fiber.interrupt(fiber)
              continue
            }
            assert.isDefined(over, `${where}: no end`)
            const { at, value } = yield* Fiber.join(fiber)
            const from = processes[how]?.at ?? 0
            const expected = Math.max(earliest, from)
            assert.strictEqual(at, expected, where)
            if (earliest > from) assert.deepStrictEqual(seen.interruptedAt, [expected], where)
            const outermost = Math.min(...deadlines.slice(0, 2).map((time) => times[time]))
            const outcome = value.value.result.outcome
            assert.deepStrictEqual(
              outcome,
              outermost <= expected
                ? { _tag: "Cancelled", reason: "deadline" }
                : { _tag: "Completed", finishReason: "stop" },
              where
            )
          }
        }))
    }
  }
})
