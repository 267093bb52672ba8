/**
 * The queue of a batch: when a call starts, which calls are removed, and which are refused because handlers outside of
 * the queue do not end.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { Message } from "heddle"
import { Simulation } from "heddle/testing"
import type { Run } from "../../src/internal/decide/plan.ts"
import { Queue } from "../../src/internal/run/batch.ts"
import { Running, type Task } from "../../src/internal/stop/ownedFibers.ts"
import { Timers } from "../../src/internal/stop/timers.ts"
import { valueOf } from "../support/seen.ts"
import * as Tools from "../support/tools.ts"

const grace = 100

const runOf = (index: number, isExclusive = false): Run => ({
  _tag: "Run",
  index,
  place: index,
  call: Message.toolCall(`c${index}`, "echo"),
  tool: Tools.echo,
  args: {},
  isExclusive,
  isBlocking: false
})

/** Calls by their letters: `s` shared, `X` exclusive. */
const runs = (letters: string, from = 0) => Array.from(letters, (letter, index) => runOf(from + index, letter === "X"))

/** A queue, the handlers of its run, and what became of calls. */
class Bench {
  readonly started: Array<number> = []
  readonly refused: Array<readonly [at: number, index: number]> = []
  readonly queued: Array<readonly [index: number, reason: string]> = []
  readonly queue: Queue
  readonly running: Running
  readonly timers: Timers
  private readonly tasks = new Map<number, Task>()
  private readonly clock: Clock.Clock
  private readonly fiber: Task["fiber"]
  /** What a call does when it is started. */
  onStart: (run: Run) => void = (run) => this.begin(run)

  constructor(bound: number, parts: { running: Running; timers: Timers; clock: Clock.Clock; fiber: Task["fiber"] }) {
    this.running = parts.running
    this.timers = parts.timers
    this.clock = parts.clock
    this.fiber = parts.fiber
    this.queue = new Queue(bound, this.running, this.timers, {
      started: () => {},
      start: (run) => {
        this.started.push(run.index)
        this.onStart(run)
      },
      queued: ({ index }, { reason }) => this.queued.push([index, reason]),
      refuse: (run) => this.refused.push([this.clock.currentTimeMillisUnsafe(), run.index])
    })
  }

  /** A handler of the run, in the queue or out of it. */
  begin({ index, isExclusive }: Pick<Run, "index" | "isExclusive">): void {
    const task: Task = {
      kind: "handler",
      id: `c${index}`,
      name: "echo",
      startedAt: 0,
      isHandler: true,
      isExclusive,
      fiber: this.fiber
    }
    this.tasks.set(index, task)
    this.running.add(task)
  }

  end(index: number): void {
    const task = this.tasks.get(index)
    if (task !== undefined) this.running.remove(task)
  }

  /** A call of the queue leaves its place, and then its handler has ended. */
  finish(run: Run): void {
    this.queue.release(run)
    this.end(run.index)
  }

  /** The run is over. */
  close(): void {
    this.queue.close()
    for (const index of this.tasks.keys()) this.end(index)
  }
}

const bench = (bound: number, scenario: (bench: Bench) => Effect.Effect<void>) =>
  Effect.map(
    Simulation.run(Effect.gen(function*() {
      const services = yield* Effect.context<any>()
      const fiber = yield* Effect.forkChild(Effect.never)
      const parts = {
        running: new Running(grace, services),
        timers: new Timers(services),
        clock: yield* Clock.Clock,
        fiber
      }
      const bench = new Bench(bound, parts)
      yield* Effect.ensuring(scenario(bench), Effect.sync(() => bench.close()))
    })),
    valueOf
  )

describe("queue", () => {
  it.effect("R-382, R-384: a call starts when it fits, and the next call once a handler has ended and released its place", () =>
    bench(2, (bench) =>
      Effect.sync(() => {
        const [a, b, c, d] = runs("sssX") as [Run, Run, Run, Run]
        bench.queue.add([a, b, c])
        bench.queue.add([d])
        assert.deepStrictEqual(bench.started, [0, 1])
        bench.queue.release(a)
        assert.deepStrictEqual(bench.started, [0, 1], "its handler is still alive")
        bench.end(0)
        assert.deepStrictEqual(bench.started, [0, 1, 2])
        assert.strictEqual(bench.queue.holding, 2)
        bench.finish(b)
        assert.deepStrictEqual(bench.started, [0, 1, 2])
        bench.finish(c)
        assert.deepStrictEqual(bench.started, [0, 1, 2, 3])
        assert.strictEqual(bench.queue.holding, 1)
      })))

  it.effect("W-27: each waiting call is reported once with its reason, and a starting call is not reported", () =>
    bench(1, (bench) =>
      Effect.sync(() => {
        const [a, b, x, c, d] = runs("ssXss") as [Run, Run, Run, Run, Run]
        bench.queue.add([a])
        assert.deepStrictEqual(bench.queued, [])
        bench.queue.add([b, x, c])
        const first: typeof bench.queued = [[1, "permit"], [2, "exclusive"], [3, "exclusive"]]
        assert.deepStrictEqual(bench.queued, first)
        bench.finish(a)
        bench.queue.add([d])
        assert.deepStrictEqual(bench.queued, [...first, [4, "exclusive"]])
        for (const run of [b, x, c, d]) bench.finish(run)
        assert.deepStrictEqual(bench.started, [0, 1, 2, 3, 4])
        assert.lengthOf(bench.queued, 4)
      })))

  it.effect("W-27: calls removed before their report are not reported", () =>
    bench(1, (bench) =>
      Effect.sync(() => {
        const [a, b, c] = runs("sss") as [Run, Run, Run]
        bench.onStart = (run) => {
          bench.begin(run)
          bench.queue.clear()
        }
        bench.queue.add([a, b])
        assert.deepStrictEqual(bench.queued, [])
        bench.queue.add([c])
        assert.deepStrictEqual(bench.queued, [[2, "permit"]])
      })))

  it.effect("R-054: calls that end while they start make room without nesting", () =>
    bench(1, (bench) =>
      Effect.sync(() => {
        let depth = 0
        let deepest = 0
        bench.onStart = (run) => {
          deepest = Math.max(deepest, ++depth)
          bench.begin(run)
          bench.finish(run)
          depth--
        }
        bench.queue.add(runs("s".repeat(2_000)))
        assert.strictEqual(bench.started.length, 2_000)
        assert.strictEqual(deepest, 1)
        assert.strictEqual(bench.queue.holding, 0)
      })))

  it.effect("R-380: a call added while another call starts is started afterwards", () =>
    bench(2, (bench) =>
      Effect.sync(() => {
        const [a, b] = runs("ss") as [Run, Run]
        bench.onStart = (run) => {
          bench.begin(run)
          if (run.index === 0) bench.queue.add([b])
        }
        bench.queue.add([a])
        assert.deepStrictEqual(bench.started, [0, 1])
      })))

  it.effect("R-398: removed calls are returned in order and never start, while calls added later start", () =>
    bench(1, (bench) =>
      Effect.sync(() => {
        const [a, ...rest] = runs("sXs") as [Run, Run, Run]
        bench.queue.add([a, ...rest])
        assert.deepStrictEqual(bench.queue.clear().map(({ index }) => index), [1, 2])
        assert.deepStrictEqual(bench.queue.clear(), [])
        bench.finish(a)
        assert.deepStrictEqual(bench.started, [0])
        bench.queue.add(runs("s", 3))
        assert.deepStrictEqual(bench.started, [0, 3])
      })))

  it.effect("law 3: a closed queue starts no call when handlers end", () =>
    bench(1, (bench) =>
      Effect.sync(() => {
        const [a, b] = runs("ss") as [Run, Run]
        bench.queue.add([a, b])
        bench.queue.close()
        bench.finish(a)
        assert.deepStrictEqual(bench.started, [0])
      })))

  it.effect("R-382: an exclusive call waits for a handler outside of the queue, and blocks the calls behind", () =>
    bench(3, (bench) =>
      Effect.gen(function*() {
        bench.begin({ index: 100, isExclusive: false })
        bench.queue.add(runs("Xs"))
        assert.deepStrictEqual(bench.started, [])
        yield* Effect.sleep(grace - 1)
        bench.end(100)
        assert.deepStrictEqual(bench.started, [0])
        yield* Effect.sleep(10 * grace)
        assert.deepStrictEqual(bench.refused, [])
      })))

  it.effect("R-382: after the grace period all exclusive calls blocked only by an outside handler are refused at once", () =>
    bench(3, (bench) =>
      Effect.gen(function*() {
        bench.begin({ index: 100, isExclusive: false })
        bench.queue.add(runs("XXsX"))
        yield* Effect.sleep(grace / 2)
        bench.begin({ index: 101, isExclusive: false })
        bench.end(101)
        yield* Effect.sleep(grace / 2 + 1)
        assert.deepStrictEqual(bench.refused, [[grace, 0], [grace, 1]])
        assert.deepStrictEqual(bench.started, [2])
        bench.finish(runOf(2))
        yield* Effect.sleep(grace)
        assert.deepStrictEqual(bench.refused.at(-1), [2 * grace + 1, 3], "the next waits from when it is first")
      })))

  it.effect("R-382: an exclusive handler outside of the queue keeps shared calls out for one grace period", () =>
    bench(3, (bench) =>
      Effect.gen(function*() {
        bench.begin({ index: 100, isExclusive: true })
        bench.queue.add(runs("ss"))
        assert.deepStrictEqual(bench.started, [])
        yield* Effect.sleep(grace)
        yield* Effect.yieldNow
        assert.deepStrictEqual(bench.refused.map(([, index]) => index), [0, 1])
      })))

  it.effect("M-01: a shared call waits for a place whose grace period began later than its wait", () =>
    bench(1, (bench) =>
      Effect.gen(function*() {
        bench.begin({ index: 100, isExclusive: false })
        bench.queue.add(runs("s"))
        yield* Effect.sleep(grace + 1)
        bench.end(100)
        assert.deepStrictEqual(bench.started, [0])
        bench.begin({ index: 101, isExclusive: false })
        bench.finish(runOf(0))
        bench.queue.add(runs("s", 1))
        yield* Effect.sleep(2 * grace + 1)
        assert.deepStrictEqual(bench.refused, [[3 * grace + 1, 1]], "but not for ever")
      })))

  it.effect("R-382: each stuck call waits for a whole grace period", () =>
    bench(1, (bench) =>
      Effect.gen(function*() {
        bench.begin({ index: 100, isExclusive: true })
        bench.queue.add(runs("s"))
        yield* Effect.sleep(grace / 2)
        bench.end(100)
        bench.begin({ index: 101, isExclusive: true })
        bench.finish(runOf(0))
        bench.queue.add(runs("s", 1))
        yield* Effect.sleep(grace)
        yield* Effect.yieldNow
        assert.deepStrictEqual(bench.refused, [[grace + grace / 2, 1]])
      })))
})
