/**
 * The admission state machine: calls are admitted first come, first served, never more than the bound, and an exclusive
 * call runs alone.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import * as Admission from "../../src/internal/run/admission.ts"
import { shareOf } from "../support/property.ts"

const queueOf = (letters: string): ReadonlyArray<Admission.Ticket> =>
  Array.from(letters, (letter, index) => ({ index, isExclusive: letter === "X" }))

const indices = (tickets: ReadonlyArray<Admission.Ticket>) => tickets.map(({ index }) => index)

/** Admits, and says who started. */
const admit = (state: Admission.Admission): readonly [ReadonlyArray<number>, Admission.Admission] => {
  const [started, next] = Admission.admit(state)
  return [indices(started), next]
}

const outside = (more: Partial<Admission.Outsiders>): Admission.Outsiders => ({ ...Admission.noOutsiders, ...more })

const shared: Admission.Ticket = { index: -1, isExclusive: false }
const exclusive: Admission.Ticket = { index: -1, isExclusive: true }

describe("admission", () => {
  it("R-054, R-381: shared calls start up to the bound, and each ended call admits the next call", () => {
    const [first, full] = admit(Admission.make(2, queueOf("ssss")))
    assert.deepStrictEqual(first, [0, 1])
    const [none, still] = admit(full)
    assert.deepStrictEqual(none, [])
    const [next, rest] = admit(Admission.release(still, shared))
    assert.deepStrictEqual(next, [2])
    const [last, empty] = admit(Admission.release(Admission.release(rest, shared), shared))
    assert.deepStrictEqual(last, [3])
    assert.deepStrictEqual(admit(Admission.release(empty, shared))[0], [])
  })

  it("R-382, R-384: an exclusive call waits for earlier calls, runs by itself, and blocks later calls", () => {
    const [first, running] = admit(Admission.make(8, queueOf("ssXss")))
    assert.deepStrictEqual(first, [0, 1])
    const [tooEarly, one] = admit(Admission.release(running, shared))
    assert.deepStrictEqual(tooEarly, [])
    const [alone, barrier] = admit(Admission.release(one, shared))
    assert.deepStrictEqual(alone, [2])
    assert.deepStrictEqual(admit(barrier)[0], [])
    assert.deepStrictEqual(admit(Admission.release(barrier, exclusive))[0], [3, 4])
  })

  it("R-382: exclusive calls run one after another, whatever the bound", () => {
    const [first, one] = admit(Admission.make(8, queueOf("XXs")))
    assert.deepStrictEqual(first, [0])
    const [second, two] = admit(Admission.release(one, exclusive))
    assert.deepStrictEqual(second, [1])
    assert.deepStrictEqual(admit(Admission.release(two, exclusive))[0], [2])
  })

  it("R-382: a live handler outside of the queue blocks an exclusive call, which is then stuck", () => {
    const lone = Admission.withOutsiders(Admission.make(2, queueOf("Xs")), outside({ alive: 1 }))
    assert.deepStrictEqual(admit(lone)[0], [])
    assert.strictEqual(Admission.stuck(lone)?.index, 0)
    assert.deepStrictEqual(admit(Admission.withOutsiders(lone, Admission.noOutsiders))[0], [0])
  })

  it("R-382: an exclusive handler outside of the queue keeps every call out", () => {
    const state = Admission.withOutsiders(Admission.make(2, queueOf("s")), outside({ alive: 1, exclusive: 1 }))
    assert.deepStrictEqual(admit(state)[0], [])
    assert.strictEqual(Admission.stuck(state)?.index, 0)
  })

  it("R-381: a handler outside of the queue takes up a place until it is given up", () => {
    const state = Admission.make(2, queueOf("ss"))
    assert.deepStrictEqual(admit(Admission.withOutsiders(state, outside({ alive: 1, occupying: 1 })))[0], [0])
    assert.deepStrictEqual(admit(Admission.withOutsiders(state, outside({ alive: 2, occupying: 2 })))[0], [])
    assert.deepStrictEqual(admit(Admission.withOutsiders(state, outside({ alive: 2 })))[0], [0, 1])
  })

  it("R-384: a call that may start, or waits only for calls of the queue, is not stuck", () => {
    const [, running] = admit(Admission.make(2, queueOf("sX")))
    assert.isUndefined(Admission.stuck(Admission.withOutsiders(running, outside({ alive: 1 }))))
    assert.isUndefined(Admission.stuck(Admission.make(2, queueOf("X"))))
    assert.isUndefined(Admission.stuck(Admission.withOutsiders(Admission.make(2, []), outside({ alive: 1 }))))
  })

  it("R-384: a skipped call makes way for the calls behind", () => {
    const outsiders = outside({ alive: 1 })
    const stuck = Admission.withOutsiders(Admission.make(2, queueOf("XXs")), outsiders)
    const behind = Admission.skip(stuck)
    assert.strictEqual(Admission.stuck(behind)?.index, 1)
    assert.deepStrictEqual(admit(Admission.skip(behind))[0], [2])
  })
})

/** What may happen to a queue: a running call ends, or the handlers outside change. The numbers choose which. */
const Change = Schema.Union([
  Schema.Struct({ ends: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 99 })) }),
  Schema.Struct({
    alive: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 3 })),
    givenUp: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 3 })),
    exclusive: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1 }))
  })
])

const Sequence = Schema.Struct({
  bound: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 4 })),
  queue: Schema.Array(Schema.Boolean),
  changes: Schema.Array(Change)
})

interface World {
  state: Admission.Admission
  running: Array<Admission.Ticket>
  readonly started: Array<number>
  readonly skipped: Array<number>
}

/** Admits, and checks against what is running, which this world counts for itself. */
const advance = (world: World): void => {
  const { bound, outsiders } = world.state
  const [tickets, next] = Admission.admit(world.state)
  for (const ticket of tickets) {
    world.running.push(ticket)
    world.started.push(ticket.index)
  }
  world.state = next
  const exclusives = world.running.filter(({ isExclusive }) => isExclusive).length
  assert.isTrue(exclusives === 0 || world.running.length === 1, "an exclusive call runs alone")
  if (tickets.length > 0) {
    assert.isTrue(exclusives === 0 || outsiders.alive === 0, "no exclusive call starts beside an outsider")
    assert.strictEqual(outsiders.exclusive, 0, "nothing starts beside an exclusive outsider")
    const room = exclusives === 1 ? bound : bound - outsiders.occupying
    assert.isAtMost(world.running.length, room)
  }
  const head = next.queue[next.admitted]
  const isHeldUp = head !== undefined && world.running.length === 0
  assert.strictEqual(Admission.stuck(next)?.index, isHeldUp ? head.index : undefined)
  if (isHeldUp) assert.isAbove(outsiders.alive, 0, "only outsiders may hold up an idle queue")
  if (head === undefined || outsiders.alive > 0 || isHeldUp) return
  const isFull = world.running.length === bound
  assert.isTrue(exclusives === 1 || isFull || head.isExclusive, "every call that may start has started")
}

const change = (world: World, step: typeof Change.Type): void => {
  if ("ends" in step) {
    const [ticket] = world.running.splice(step.ends % Math.max(1, world.running.length), 1)
    if (ticket !== undefined) world.state = Admission.release(world.state, ticket)
    return
  }
  const alive = step.alive
  const outsiders = { alive, occupying: Math.max(0, alive - step.givenUp), exclusive: Math.min(alive, step.exclusive) }
  world.state = Admission.withOutsiders(world.state, outsiders)
}

describe("generated admission sequences", () => {
  it.prop(
    "law 4, R-381, R-382, R-384: generated sequences keep the bound, the barrier and the order, and no call that may start waits",
    [Sequence],
    ([{ bound, queue, changes }]) => {
      const tickets = queue.map((isExclusive, index) => ({ index, isExclusive }))
      const world: World = { state: Admission.make(bound, tickets), running: [], started: [], skipped: [] }
      advance(world)
      for (const step of changes) {
        change(world, step)
        advance(world)
      }
      world.state = Admission.withOutsiders(world.state, Admission.noOutsiders)
      advance(world)
      while (world.running.length > 0) {
        change(world, { ends: 0 })
        advance(world)
      }
      assert.deepStrictEqual(world.started, indices(tickets))
    },
    { arbitrary: { runs: shareOf(2000) } }
  )

  it.prop(
    "law 11, R-384: a queue held up for ever by outsiders starts or skips each call once, in order",
    [Sequence],
    ([{ bound, queue, changes }]) => {
      const tickets = queue.map((isExclusive, index) => ({ index, isExclusive }))
      const world: World = { state: Admission.make(bound, tickets), running: [], started: [], skipped: [] }
      for (const step of [...changes, { alive: 1, givenUp: 1, exclusive: 0 }]) {
        change(world, step)
        advance(world)
      }
      for (;;) {
        const stuck = Admission.stuck(world.state)
        if (stuck !== undefined) {
          world.skipped.push(stuck.index)
          world.state = Admission.skip(world.state)
        } else if (world.running.length > 0) change(world, { ends: 0 })
        else break
        advance(world)
      }
      const all = [...world.started, ...world.skipped]
      assert.deepStrictEqual(all.toSorted((a, b) => a - b), indices(tickets))
      assert.deepStrictEqual(world.started, world.started.toSorted((a, b) => a - b))
      assert.isTrue(world.skipped.every((index) => queue[index] === true))
    },
    { arbitrary: { runs: shareOf(2000) } }
  )
})
