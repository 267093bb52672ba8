/** Owners that stand still, whose clocks are set, that are too busy, or whose claims are taken away. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as TestClock from "effect/testing/TestClock"
import { type Journal, Session, Tool } from "heddle"
import { CurrentProcess } from "../../src/internal/session/claim.ts"
import { recordsOf, stores, until } from "../support/edges.ts"
import { casting } from "../support/nests.ts"

const model = casting({ go: [[["a", "charge", {}]], "Done"] })

const tagsOf = (id: string) => Effect.map(recordsOf(id), (records) => records.map(({ _tag }) => _tag))

const hour = 3_600_000

/** Clocks of a process that can be set, or that have gone on while it stood still. Its timers have not. */
const makeClocks = Effect.map(Clock.Clock, (clock) => {
  const ahead = { wall: 0, monotonic: 0 }
  const wall = () => clock.currentTimeMillisUnsafe() + ahead.wall
  const monotonic = () => clock.monotonicTimeNanosUnsafe() + BigInt(ahead.monotonic) * 1_000_000n
  const shifted: Clock.Clock = {
    ...clock,
    currentTimeMillisUnsafe: wall,
    currentTimeMillis: Effect.sync(wall),
    currentTimeNanosUnsafe: () => BigInt(wall()) * 1_000_000n,
    currentTimeNanos: Effect.sync(() => BigInt(wall()) * 1_000_000n),
    monotonicTimeNanosUnsafe: monotonic,
    monotonicTimeNanos: Effect.sync(monotonic),
    sleep: (duration: Duration.Duration) => clock.sleep(duration)
  }
  /** The store keeps its own time. */
  const layer = Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) =>
      Session.Store.of(
        Object.fromEntries(
          Object.entries(store).map(([name, operation]) => [
            name,
            typeof operation === "function"
              ? (...args: ReadonlyArray<never>) => {
                const done = (operation as (...args: ReadonlyArray<never>) => unknown)(...args)
                return Effect.isEffect(done) ? Effect.provideService(done, Clock.Clock, clock) : done
              }
              : operation
          ])
        ) as unknown as Journal.Service
      ))
  )
  return { ahead, layer, process: Effect.provideService(Clock.Clock, shifted) }
})

/** A store that does something when the start of a call has been recorded. */
const behindStart = (then: Effect.Effect<void>) =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) =>
      Session.Store.of({
        ...store,
        append: (id, expected, records, options) =>
          Effect.tap(
            store.append(id, expected, records, options),
            () => records.some(({ _tag }) => _tag === "CallStarted") ? then : Effect.void
          )
      }))
  )

describe("a frozen process", () => {
  for (const [where, base] of Object.entries(stores)) {
    it.effect(`N-04: a process frozen between a call's record and its handler starts no handler under an ended claim, ${where}`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        const { ahead, layer, process } = yield* makeClocks
        let charged = 0
        const charge = Tool.make("charge", {
          parameters: {},
          timeout: "1 hour",
          handler: () => Effect.sync(() => ++charged)
        })
        // The process is frozen for a minute. Another owner has claimed the session meanwhile.
        const frozen = Effect.gen(function*() {
          Object.assign(ahead, { wall: 60_000, monotonic: 60_000 })
          yield* store.release("s", "one")
          yield* store.claim("s", "two", hour)
        }).pipe(Effect.orDie)
        const error = yield* Session.claim("s", { owner: "one", term: "30 seconds" }).pipe(
          Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
          Effect.scoped,
          Effect.flip,
          Effect.provide(Layer.provideMerge(behindStart(frozen), layer)),
          Effect.provide([model, Logger.layer([])]),
          process
        )
        assert.deepInclude(error, { _tag: "SessionClaimed", reason: "held", owner: "two" })
        assert.strictEqual(charged, 0)
      }).pipe(Effect.provide(base)))
  }

  for (const by of [60_000, -60_000]) {
    it.effect(`N-04: a process whose clock was set by ${by} ms asks the store, and starts the handler under its own claim`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        let renewals = 0
        const counting = Layer.succeed(Session.Store, {
          ...store,
          renew: (...args: Parameters<typeof store.renew>) =>
            Effect.suspend(() => {
              renewals++
              return store.renew(...args)
            })
        })
        const { ahead, layer, process } = yield* Effect.provide(makeClocks, counting)
        let charged = 0
        const charge = Tool.make("charge", {
          parameters: {},
          handler: () =>
            Effect.sync(() => {
              assert.strictEqual(renewals, 1)
              charged++
            })
        })
        const frozen = Effect.sync(() => void Object.assign(ahead, { wall: by }))
        const done = yield* Session.claim("s", { owner: "one", term: "30 seconds" }).pipe(
          Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
          Effect.scoped,
          Effect.provide(Layer.provideMerge(behindStart(frozen), Layer.provideMerge(layer, counting))),
          Effect.provide(model),
          process
        )
        assert.strictEqual(done.session.status, "completed")
        assert.strictEqual(charged, 1)
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }

  it.effect("N-04: a frozen process calls no lookUp under an ended claim", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const { ahead, layer, process } = yield* makeClocks
      let asked = 0
      const charge = Tool.make("charge", {
        parameters: {},
        handler: () => Effect.never,
        lookUp: () =>
          Effect.sync(() => {
            asked++
            return Option.none()
          })
      })
      yield* Session.open("s")
      const cut = yield* Session.claim("s", { owner: "zero" }).pipe(
        Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
        Effect.scoped,
        Effect.provide(model),
        Effect.forkChild
      )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      yield* Fiber.interrupt(cut)
      yield* store.release("s", "zero")
      const frozen = Effect.gen(function*() {
        Object.assign(ahead, { wall: 60_000, monotonic: 60_000 })
        yield* store.release("s", "one")
        yield* store.claim("s", "two", hour)
      }).pipe(Effect.orDie)
      const behindResume = Layer.effect(
        Session.Store,
        Effect.map(Session.Store, (store) =>
          Session.Store.of({
            ...store,
            append: (id, expected, records, options) =>
              Effect.tap(
                store.append(id, expected, records, options),
                () => records.some(({ _tag }) => _tag === "RunStarted") ? frozen : Effect.void
              )
          }))
      )
      const error = yield* Session.claim("s", { owner: "one", term: "30 seconds" }).pipe(
        Effect.flatMap((kept) => Session.resume(kept, { tools: [charge] })),
        Effect.scoped,
        Effect.flip,
        Effect.provide(Layer.provideMerge(behindResume, layer)),
        Effect.provide([model, Logger.layer([])]),
        process
      )
      assert.strictEqual(error._tag, "SessionClaimed")
      assert.strictEqual(asked, 0)
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("a process whose clock is set", () => {
  for (const [by, at] of [[hour, 500], [-hour, 500], [hour, 2900], [-hour, 2900]] as const) {
    it.effect(`N-17: a process whose clock is set by ${by} ms, ${at} ms into an effect, keeps its claim and ends its run`, () =>
      Effect.gen(function*() {
        const { ahead, layer, process } = yield* makeClocks
        let charged = 0
        const charge = Tool.make("charge", {
          parameters: {},
          handler: () => Effect.andThen(Effect.sleep("5 seconds"), Effect.sync(() => ++charged))
        })
        const fiber = yield* Session.claim("s", { owner: "one", term: "3 seconds" }).pipe(
          Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
          Effect.scoped,
          Effect.provide(layer),
          Effect.provide(model),
          process,
          Effect.forkChild
        )
        yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
        yield* TestClock.adjust(at)
        ahead.wall = by
        for (let second = 0; second < 6; second++) {
          yield* TestClock.adjust("1 second")
          if (fiber.pollUnsafe() !== undefined) break
          const other = yield* Effect.flip(Effect.scoped(Session.claim("s", { owner: "two" })))
          assert.strictEqual(other._tag, "SessionClaimed", "the claim is held")
        }
        const { session } = yield* Fiber.join(fiber)
        assert.deepStrictEqual([session.status, charged], ["completed", 1])
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})

describe("a store that does not answer", () => {
  it.effect("N-17: a claim ends at its term although the process's clock was set back", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const { ahead, process } = yield* makeClocks
      const away = Layer.succeed(Session.Store, { ...store, renew: () => Effect.never })
      const charge = Tool.make("charge", { parameters: {}, timeout: "2 hours", handler: () => Effect.never })
      const fiber = yield* Session.claim("s", { owner: "one", term: "3 seconds" }).pipe(
        Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
        Effect.scoped,
        Effect.provide([away, model, Logger.layer([])]),
        process,
        Effect.forkChild
      )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      ahead.wall = -hour
      yield* TestClock.adjust("3 seconds")
      assert.deepInclude(yield* Effect.flip(Fiber.join(fiber)), { _tag: "SessionClaimed", reason: "lost" })
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("an owner that loses its claim", () => {
  /** Begins a run, and cuts it while its call runs. */
  const begun = (process: string) =>
    Effect.gen(function*() {
      const charge = Tool.make("charge", { parameters: {}, readOnly: true, handler: () => Effect.never })
      const fiber = yield* Session.claim("s").pipe(
        Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
        Effect.scoped,
        Effect.provide(model),
        Effect.provideService(CurrentProcess, process),
        Effect.forkChild
      )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      yield* Fiber.interrupt(fiber)
    })

  const takenUp = (process: string) =>
    Effect.gen(function*() {
      const charge = Tool.make("charge", { parameters: {}, readOnly: true, handler: () => Effect.never })
      yield* TestClock.adjust("1 minute")
      const before = (yield* recordsOf("s")).length
      const fiber = yield* Session.claim("s").pipe(
        Effect.flatMap((kept) => Session.resume(kept, { tools: [charge] })),
        Effect.scoped,
        Effect.provide(model),
        Effect.provideService(CurrentProcess, process),
        Effect.forkChild
      )
      yield* until(
        Effect.map(recordsOf("s"), (records) => records.slice(before).some(({ _tag }) => _tag === "CallStarted"))
      )
      yield* Fiber.interrupt(fiber)
      return (yield* Session.inspect("s"))?.resumptions
    })

  it.effect("N-07: only a resume by another process counts as a resumption", () =>
    Effect.gen(function*() {
      yield* begun("one")
      const counts: Array<number | undefined> = []
      for (const process of ["one", "one", "two", "two", "one"]) counts.push(yield* takenUp(process))
      assert.deepStrictEqual(counts, [0, 0, 1, 1, 2])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("N-07: an owner warns of its lost claim, with the time since the last confirmation", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const lines: Array<string> = []
      const logger = Logger.layer([
        Logger.make(({ logLevel, message }) => void lines.push(`${logLevel} ${String(message)}`))
      ])
      const claiming = Session.claim("s", { owner: "one", term: "30 seconds" }).pipe(
        Effect.andThen(Effect.never),
        Effect.scoped,
        Effect.provide(logger)
      )
      yield* Effect.forkChild(claiming, { startImmediately: true })
      yield* TestClock.adjust("5 seconds")
      yield* store.release("s", "one")
      yield* store.claim("s", "two", hour)
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(lines, [
        "Warn the claim on session \"s\" is lost: the store confirmed it 10000 ms ago, and its term is 30000 ms"
      ])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-42: a claim is not lost where each renewal takes longer than a third of the term", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const slow = Session.Store.of({
        ...store,
        renew: (...args) => Effect.andThen(Effect.sleep("2 seconds"), store.renew(...args))
      })
      const claiming = Effect.gen(function*() {
        const kept = yield* Session.claim("s", { owner: "one", term: "4500 millis" })
        yield* Effect.sleep("1 minute")
        yield* Session.keep(kept, (session) => Session.appendUser(session, "Hi"))
      })
      const fiber = yield* Effect.forkChild(
        claiming.pipe(Effect.scoped, Effect.provideService(Session.Store, slow), Effect.provide(Logger.layer([])))
      )
      for (let second = 0; second < 70; second++) yield* TestClock.adjust("1 second")
      yield* Fiber.join(fiber)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("Q-13: a call starts at once where the store confirms the claim on request", () =>
    Effect.gen(function*() {
      const { ahead, layer, process } = yield* makeClocks
      const charge = Tool.make("charge", { parameters: {}, handler: () => Effect.succeed("charged") })
      const charging = Effect.gen(function*() {
        const kept = yield* Session.claim("s")
        yield* Effect.sleep("5 seconds")
        ahead.wall = 11_000
        yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))
      })
      const fiber = yield* charging.pipe(
        Effect.scoped,
        process,
        Effect.provide(Layer.merge(model, layer)),
        Effect.forkChild
      )
      for (let second = 0; second < 8; second++) yield* TestClock.adjust("1 second")
      assert.isDefined(fiber.pollUnsafe(), "the call has started and the run has ended")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("an owner stops at the next poll after a revocation, and another owner can claim at once", () =>
    Effect.gen(function*() {
      let isInterrupted = false
      const charge = Tool.make("charge", {
        parameters: {},
        handler: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => isInterrupted = true))
      })
      const fiber = yield* Session.claim("s", { owner: "one" }).pipe(
        Effect.flatMap((kept) => Session.keep(kept, (session) => Session.reply(session, "go", { tools: [charge] }))),
        Effect.scoped,
        Effect.provide([model, Logger.layer([])]),
        Effect.forkChild
      )
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      assert.isTrue(yield* Session.revoke("s"))
      yield* TestClock.adjust("200 millis")
      assert.deepInclude(yield* Effect.flip(Fiber.join(fiber)), {
        _tag: "SessionClaimed",
        reason: "lost",
        owner: "one"
      })
      assert.isTrue(isInterrupted)
      assert.strictEqual((yield* Effect.scoped(Session.claim("s", { owner: "two" }))).owner, "two")
      assert.isFalse(yield* Session.revoke("s"))
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("a store that hangs", () => {
  for (const operation of ["claim", "release"] as const) {
    it.effect(`N-42: a store that hangs in ${operation} keeps no scope open for longer than the grace period`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        const hanging = Layer.succeed(Session.Store, {
          ...store,
          [operation]: () => Effect.uninterruptible(Effect.never)
        })
        const scope = yield* Scope.make()
        const claiming = yield* Session.claim("s").pipe(
          Scope.provide(scope),
          Effect.provide([hanging, Logger.layer([])]),
          Effect.forkChild({ startImmediately: true })
        )
        if (operation === "release") yield* Fiber.join(claiming)
        const closing = yield* Effect.forkChild(
          Effect.andThen(Fiber.interrupt(claiming), Scope.close(scope, Exit.void)),
          { startImmediately: true }
        )
        yield* TestClock.adjust("10 seconds")
        assert.isDefined(closing.pollUnsafe())
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})
