/**
 * How much is done, counted and not timed: the steps that fibers take, the elements that lists are gone through for, and
 * the text that is parsed as JSON. The numbers are the same on every machine and in every run.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scheduler from "effect/Scheduler"

export interface Work {
  /** Steps of fibers. */
  readonly steps: number
  /** Elements that a method or a loop over a list went through. Plain copies of a list do not count. */
  readonly elements: number
  /** Characters that were parsed as JSON. */
  readonly parsed: number
}

const passes = [
  "every",
  "filter",
  "find",
  "findIndex",
  "findLast",
  "findLastIndex",
  "flat",
  "flatMap",
  "forEach",
  "includes",
  "indexOf",
  "join",
  "map",
  "reduce",
  "reduceRight",
  "some",
  "sort",
  "splice",
  "toSorted",
  "toSpliced",
  "unshift",
  "shift",
  "with"
] as const

type Method = (this: unknown, ...args: ReadonlyArray<unknown>) => unknown

/** Puts something in the place of a method until it is put back. */
const replaced = (target: object, name: PropertyKey, replace: (original: Method) => Method): () => void => {
  const before = Object.getOwnPropertyDescriptor(target, name)
  if (before === undefined) throw new Error(`there is no ${String(name)}`)
  Object.defineProperty(target, name, { ...before, value: replace(before.value as Method) })
  return () => Object.defineProperty(target, name, before)
}

/** Counts operations on lists until the returned function is called. */
const watch = (): () => number => {
  let elements = 0
  const restore = passes.map((name) =>
    replaced(Array.prototype, name, (original) =>
      function(...args) {
        elements += (this as ReadonlyArray<unknown>).length
        return original.apply(this, [...args])
      })
  )
  return () => {
    for (const putBack of restore) putBack()
    return elements
  }
}

/** What an effect comes to, and how many characters of JSON were parsed for it. */
export const parsing = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<readonly [A, number], E, R> =>
  Effect.suspend(() => {
    const parse = JSON.parse
    let parsed = 0
    JSON.parse = (source: string, reviver?: Parameters<typeof parse>[1]) => {
      parsed += source.length
      return parse(source, reviver)
    }
    return effect.pipe(
      Effect.map((value) => [value, parsed] as const),
      Effect.ensuring(Effect.sync(() => {
        JSON.parse = parse
      }))
    )
  })

/** How many elements the lists have that a value holds on to. What a getter makes when it is asked is not held. */
export const held = (value: unknown): number => {
  const seen = new Set<object>()
  const open: Array<unknown> = [value]
  let elements = 0
  while (open.length > 0) {
    const next = open.pop()
    if (typeof next !== "object" || next === null || seen.has(next)) continue
    seen.add(next)
    if (Array.isArray(next)) elements += next.length
    for (const key of Reflect.ownKeys(next)) open.push(Object.getOwnPropertyDescriptor(next, key)?.value)
  }
  return elements
}

/** A scheduler that is asked before each step of a fiber. */
class Counting implements Scheduler.Scheduler {
  steps = 0
  private readonly scheduler: Scheduler.Scheduler
  readonly executionMode: Scheduler.Scheduler["executionMode"]

  constructor(scheduler: Scheduler.Scheduler) {
    this.scheduler = scheduler
    this.executionMode = scheduler.executionMode
  }

  shouldYield(fiber: Parameters<Scheduler.Scheduler["shouldYield"]>[0]): boolean {
    this.steps++
    return this.scheduler.shouldYield(fiber)
  }

  makeDispatcher(): Scheduler.SchedulerDispatcher {
    return this.scheduler.makeDispatcher()
  }
}

/** Runs an effect, and tells what it came to and what was done for it. */
export const counted = <A, E>(
  effect: Effect.Effect<A, E>
): Effect.Effect<{ readonly value: A; readonly work: Work }, E> =>
  Effect.flatMap(Scheduler.Scheduler, (scheduler) => {
    const counting = new Counting(scheduler)
    const services = Context.make(Scheduler.Scheduler, counting)
    return Effect.callback<{ readonly value: A; readonly work: Work }, E>((resume) => {
      const stop = watch()
      const fiber = Effect.runForkWith(services)(parsing(effect))
      fiber.addObserver((exit) => {
        const done = { elements: stop(), steps: counting.steps }
        resume(Effect.map(exit, ([value, parsed]) => ({ value, work: { ...done, parsed } })))
      })
    })
  })

/** What the second size takes beyond the first, for each unit by which it is larger. */
export const perUnit = (smaller: Work, larger: Work, units: number): Work => ({
  steps: (larger.steps - smaller.steps) / units,
  elements: (larger.elements - smaller.elements) / units,
  parsed: (larger.parsed - smaller.parsed) / units
})
