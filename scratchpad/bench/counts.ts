/**
 * The work of one more of a kind, in counts that repeat exactly on every machine: steps of fibers, suspensions, fibers,
 * timers and reads of the clock. `npm run bench -- --counts` prints them, and `test/project/counts.test.ts` asserts that
 * they do not rise. Bytes allocated are counted as well, in a process of their own, and may vary a little.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"
import { fork } from "node:child_process"
import * as V8 from "node:v8"
import * as Implementations from "./implementations.ts"
import type { Implementation, Loop } from "./loop.ts"
import { calls, callsThenAnswer, deltas, Model, reads } from "./model.ts"
import { count as characters, increment } from "./tools.ts"
import { drive, driveBatch, driveCalls } from "./workload.ts"

/** The counts of a piece of work. */
interface Counts {
  /** Steps that the run loops of fibers take. */
  readonly steps: number
  /** Waits of fibers, which leave their run loop and are resumed. */
  readonly suspensions: number
  /** Fibers started. */
  readonly fibers: number
  /** Timers set, by Effect's clock or in another way. */
  readonly timers: number
  /** Reads of Effect's clock. */
  readonly clockReads: number
}

const kinds = ["steps", "suspensions", "fibers", "timers", "clockReads"] as const

/** Work on a loop, in any size, and how many units the smaller and the larger one have. */
interface Unit {
  readonly title: string
  readonly run: (loop: Loop, size: number) => Promise<unknown>
  readonly sizes: readonly [number, number]
}

const fragments = async (loop: Loop, size: number): Promise<void> => {
  const json = JSON.stringify({ text: "x".repeat(size) })
  const pieces = Array.from({ length: size }, (_, index) => json.slice(index, index + 1))
  pieces.push(json.slice(size))
  const read = [
    [{ type: "callStarted", id: "call", name: characters.name }],
    ...pieces.map((fragment) => [{ type: "callArguments", id: "call", fragment }]),
    [{ type: "callCompleted", id: "call" }]
  ] as ReadonlyArray<Parameters<typeof reads>[0][number]>
  await driveCalls(loop, callsThenAnswer(() => reads(read)), { results: 1, sum: size })
}

/** What is counted. The work of a unit is what the larger size takes more than the smaller one. */
const units = {
  delta: {
    title: "a delta, a read of its own",
    run: (loop, size) => drive(loop, { model: new Model(() => deltas(size, 1, "token ")) }),
    sizes: [100, 1_100]
  },
  fragment: { title: "a fragment of arguments", run: fragments, sizes: [100, 1_100] },
  call: {
    title: "a call among 64",
    run: (loop, size) => driveBatch(loop, calls(size, increment.name)),
    sizes: [32, 64]
  },
  run: {
    title: "a run of one call",
    run: async (loop, size) => {
      for (let left = size; left > 0; left--) await driveBatch(loop, calls(1, increment.name))
    },
    sizes: [0, 32]
  }
} as const satisfies Readonly<Record<string, Unit>>

type Name = keyof typeof units

const names = Object.keys(units) as ReadonlyArray<Name>

type Method = (this: any, ...args: Array<any>) => unknown

/** Has a method call `seen` with its receiver and its result. Returns what puts the method back. */
const spied = (target: object, name: string, seen: (receiver: any, result: unknown) => void): () => void => {
  const own = Object.getOwnPropertyDescriptor(target, name)
  const original = (target as any)[name] as Method
  const replacement: Method = function(...args) {
    const result = original.apply(this, args)
    seen(this, result)
    return result
  }
  Object.defineProperty(target, name, { configurable: true, writable: true, value: replacement })
  return () => {
    if (own === undefined) delete (target as any)[name]
    else Object.defineProperty(target, name, own)
  }
}

/** The class of all fibers. Effect does not export it. */
const fiberPrototype: object = Object.getPrototypeOf(Effect.runFork(Effect.void))

/** Counts the work of everything in this process, until the returned function is called. */
export const watch = (): () => Counts => {
  const counts = { steps: 0, suspensions: 0, fibers: 0, timers: 0, clockReads: 0 }
  const clock = Context.get(Context.empty(), Clock.Clock)
  const putBack = [
    spied(Scheduler.MixedScheduler.prototype, "shouldYield", () => counts.steps++),
    spied(fiberPrototype, "runLoop", (_, exit) => {
      if (!Effect.isEffect(exit)) counts.suspensions++
    }),
    // The constructor gives a fiber its context before its id.
    spied(fiberPrototype, "setContext", (fiber: Fiber.Fiber<unknown>) => {
      if (fiber.id === undefined) counts.fibers++
    }),
    spied(globalThis, "setTimeout", () => counts.timers++),
    ...(["currentTimeMillisUnsafe", "currentTimeNanosUnsafe", "monotonicTimeNanosUnsafe"] as const)
      .map((read) => spied(clock, read, () => counts.clockReads++))
  ]
  return () => {
    for (const restore of putBack) restore()
    return counts
  }
}

const loopOf = (implementation: Implementation): Loop => implementation.make([increment, characters], 4)

/** The work that one more of each kind takes on a loop. */
export const count = async (implementation: Implementation): Promise<Readonly<Record<Name, Counts>>> => {
  const loop = loopOf(implementation)
  const taken: Partial<Record<Name, Counts>> = {}
  for (const name of names) {
    const { run, sizes: [small, large] } = units[name]
    const counted = async (size: number): Promise<Counts> => {
      const stop = watch()
      await run(loop, size)
      return stop()
    }
    // What is made once in a process is made by then.
    await run(loop, large)
    const before = await counted(small)
    const after = await counted(large)
    const perUnit = (kind: keyof Counts): number => (after[kind] - before[kind]) / (large - small)
    taken[name] = Object.fromEntries(kinds.map((kind) => [kind, perUnit(kind)])) as unknown as Counts
  }
  return taken as Readonly<Record<Name, Counts>>
}

const rounds = 40

/**
 * The bytes that one more of each kind allocates, once the compiler has optimized the code. The process has to be started
 * with `bytesFlags`, so that its heap grows without a collection while it is measured.
 */
const bytes = async (implementation: Implementation): Promise<Readonly<Record<Name, number>>> => {
  const loop = loopOf(implementation)
  const taken: Partial<Record<Name, number>> = {}
  for (const name of names) {
    const { run, sizes: [small, large] } = units[name]
    const allocated = async (size: number): Promise<number> => {
      globalThis.gc?.()
      const before = V8.getHeapStatistics().used_heap_size
      await run(loop, size)
      return V8.getHeapStatistics().used_heap_size - before
    }
    const samples: Array<number> = []
    for (let round = 0; round < rounds; round++) {
      samples.push((await allocated(large) - await allocated(small)) / (large - small))
    }
    taken[name] = samples.toSorted((one, other) => one - other)[rounds / 2]!
  }
  return taken as Readonly<Record<Name, number>>
}

const bytesFlags = ["--expose-gc", "--single-threaded", "--min-semi-space-size=128", "--max-semi-space-size=128"]

/** The same, counted in a process of its own. */
const bytesOf = (name: string): Promise<Readonly<Record<Name, number>>> =>
  new Promise((resolve, reject) => {
    const child = fork(import.meta.filename, [name], { execArgv: [...process.execArgv, ...bytesFlags] })
    child.on("message", resolve)
    child.on("close", (code) =>
      reject(new Error(`the bytes of ${name} were not counted: the process ended with ${code}`)))
  })

/** The counts of the loops, as a table. */
export const table = async (implementations: ReadonlyArray<string>): Promise<string> => {
  const lines = [
    "| | loop | steps | suspensions | fibers | timers | clock reads | bytes |",
    "|---|---|--:|--:|--:|--:|--:|--:|"
  ]
  const all = []
  for (const name of implementations) {
    const implementation = await Implementations.load(name)
    all.push({ name: implementation.name, counts: await count(implementation), bytes: await bytesOf(name) })
  }
  for (const unit of names) {
    for (const { bytes, counts, name } of all) {
      const figures = [...kinds.map((kind) => Number(counts[unit][kind].toFixed(2))), Math.round(bytes[unit])]
      lines.push(
        `| ${units[unit].title} | ${name} | ${figures.map((figure) => figure.toLocaleString("en")).join(" | ")} |`
      )
    }
  }
  return lines.join("\n")
}

if (process.send !== undefined && process.argv[1] === import.meta.filename) {
  const counted = await bytes(await Implementations.load(process.argv[2]!))
  process.send(counted, () => process.exit(0))
}
