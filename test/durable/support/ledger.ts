/**
 * The ledger of a test: what it takes and has to give back. A test fails that leaves a fiber, a timer, a listener, a
 * claim, a driven session, work that an end would wait for, a record that is not written, or a socket. A fiber that was
 * asked to end and is in code that nothing can stop is no loss of the library's: its run names it as abandoned.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import { afterEach, beforeEach, type TestContext } from "vitest"
import { Owner } from "../../../src/durable/internal/ownerHealth.ts"
import { OwnClaim } from "../../../src/internal/session/claim.ts"
import * as Writers from "../../../src/internal/session/writer.ts"
import { Running } from "../../../src/internal/stop/ownedFibers.ts"
import { Timers } from "../../../src/internal/stop/timers.ts"

/** The objects that a test has used, of each kind. Their private members are looked at. */
const used = {
  fibers: new Set<Fiber.Fiber<unknown, unknown>>(),
  owners: new Set<Owner>(),
  claims: new Set<OwnClaim>(),
  runs: new Set<Running>(),
  timers: new Set<Timers>(),
  writers: new Set<Writers.Writer>()
}

let isKept = false

/** The id of the last fiber before the test. Those of files before this one, in the same process, are none of it. */
let lastBefore = 0

/** Has a method note the object that it is called for. */
const noting = <A extends object>(prototype: A, name: string, all: Set<A>): void => {
  const { get, value } = Object.getOwnPropertyDescriptor(prototype, name)!
  const noted = (method: (...args: ReadonlyArray<unknown>) => unknown) =>
    function(this: A, ...args: ReadonlyArray<unknown>) {
      if (isKept) all.add(this)
      return method.apply(this, args as Array<unknown>)
    }
  const changed = get === undefined ? { value: noted(value) } : { get: noted(get) }
  Object.defineProperty(prototype, name, { configurable: true, ...changed })
}

noting(Owner.prototype, "begin", used.owners)
noting(OwnClaim.prototype, "isLeaving", used.claims)
noting(OwnClaim.prototype, "confirm", used.claims)
noting(Running.prototype, "add", used.runs)
noting(Running.prototype, "addWork", used.runs)
noting(Running.prototype, "onRoom", used.runs)
noting(Timers.prototype, "after", used.timers)

const fibers = Object.getPrototypeOf(Effect.runFork(Effect.void)) as {
  evaluate: (this: Fiber.Fiber<unknown, unknown>, effect: unknown) => void
}
const { evaluate } = fibers
fibers.evaluate = function(effect) {
  if (isKept && this.id > lastBefore) used.fibers.add(this)
  evaluate.call(this, effect)
  if (isKept && this.pollUnsafe() !== undefined) used.fibers.delete(this)
}

const events = ["exit", "SIGINT", "SIGTERM", "uncaughtException", "unhandledRejection"] as const

const sumOf = <A>(all: Iterable<A>, count: (one: A) => number): number =>
  Array.from(all, count).reduce((sum, one) => sum + one, 0)

const listenersOfProcess = () => sumOf(events, (event) => process.listenerCount(event))

const socketsOfProcess = () => process.getActiveResourcesInfo().filter((name) => name.startsWith("TCP")).length

/** Tells whether a fiber was asked to end, and is in code that nothing can stop, or waits for a child that is. */
const isRefusing = (fiber: Fiber.Fiber<unknown, unknown>): boolean => {
  const { _children: children = [], _interruptedCause: asked, interruptible } = fiber as any
  return asked !== undefined && (!interruptible || Array.from<Fiber.Fiber<unknown, unknown>>(children).some(isRefusing))
}

/** Counts what is held, by its kind. */
export const heldNow = (): Readonly<Record<string, number>> => ({
  claims: sumOf(used.claims, (claim) => {
    const { operations, underWay } = claim as any
    return (Deferred.isDoneUnsafe(claim.lost) ? 0 : 1) + operations + underWay.size
  }),
  driven: sumOf(used.owners, ({ size }) => size),
  fibers: sumOf(used.fibers, (fiber) => fiber.pollUnsafe() === undefined && !isRefusing(fiber) ? 1 : 0),
  "listeners of runs": sumOf(used.runs, (run) => (run as any).listeners?.size ?? 0),
  "listeners of the process": listenersOfProcess(),
  "listeners of writers": sumOf(used.writers, (writer) => (writer as any).listeners.size),
  sockets: socketsOfProcess(),
  timers: sumOf(used.timers, (timers) => ((timers as any).waiting?.size ?? 0) + ((timers as any).fibers?.size ?? 0)),
  work: sumOf(used.runs, (run) => (run as any).tasks.size),
  writes: sumOf(used.writers, (writer) => (writer as any).waiting.length + (writer as any).taken.length)
})

/** Counts what begins without a test, within half a second. */
const heldWithout = async (): Promise<Readonly<Record<string, number>>> => {
  for (const all of Object.values(used)) all.clear()
  lastBefore = Effect.runFork(Effect.void).id
  await new Promise((resolve) => setTimeout(resolve, 500))
  const { "listeners of the process": _, sockets: __, ...held } = heldNow()
  return held
}

let mayLeave: ReadonlySet<string> = new Set()

/** Lets a test leave things of these kinds, as one whose subject is a store or a handler that never ends. */
export const leaves = (...kinds: ReadonlyArray<string>): void => {
  mayLeave = new Set([...mayLeave, ...kinds])
}

/** Parts of a ledger that is kept for more than one file. */
interface Options {
  /** Tells whether a test is held to the ledger. Each is by default. */
  readonly holds?: (test: TestContext) => boolean
  /** The kinds that every test may leave. None by default. */
  readonly leaves?: ReadonlyArray<string>
}

/** Has each test of a file give back what it has taken. */
export const ledger = ({ holds = () => true, leaves: always = [] }: Options = {}): void => {
  let before: Readonly<Record<string, number>> = {}

  beforeEach((test) => {
    if (!holds(test)) return
    for (const all of Object.values(used)) all.clear()
    mayLeave = new Set(always)
    before = { "listeners of the process": listenersOfProcess(), sockets: socketsOfProcess() }
    lastBefore = Effect.runFork(Effect.void).id
    isKept = true
    const { by } = Writers.observed
    Writers.observed.by = (writer) => {
      used.writers.add(writer)
      by?.(writer)
    }
  })

  afterEach(async (test) => {
    if (!holds(test)) return
    const left = () =>
      Object.entries(heldNow()).filter(([kind, count]) => count > (before[kind] ?? 0) && !mayLeave.has(kind))
    // What ends has some turns of the process for it, and a socket waits for its other end.
    for (let turn = 0; turn < 200 && left().length > 0; turn++) {
      await new Promise((resolve) => turn < 100 ? setImmediate(resolve) : setTimeout(resolve, 20))
    }
    const own = left()
    // What an earlier file has left in this process goes on without the test, in fibers of its own: it is none of it.
    const others = own.length === 0 ? {} : await heldWithout()
    isKept = false
    const found = own.filter(([kind, count]) => count > (others[kind] ?? 0) + (before[kind] ?? 0))
    for (const all of Object.values(used)) all.clear()
    if (found.length > 0) throw new Error(`the test has left ${JSON.stringify(Object.fromEntries(found))}`)
  })
}
