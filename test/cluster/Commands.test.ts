/**
 * How the owner of a session carries out commands: once, whichever owner does it, and under a claim. The owners here share a
 * store in memory.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Chat, Journal, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Commands from "../../src/cluster/internal/commands.ts"
import type * as Protocol from "../../src/cluster/internal/protocol.ts"
import * as Owners from "../../src/durable/internal/ownerHealth.ts"
import { ledger } from "../durable/support/ledger.ts"

ledger()

const { finish, text, toolCall } = Script

const said = (words: string) => [text(words), finish("stop")]
const called = (...names: ReadonlyArray<string>) => [...names.map((name) => toolCall(name, name)), finish("tool_calls")]

/** A feed without readers. */
const quiet = { publish: () => Effect.void, settle: () => Effect.void }

const started = Latch.makeUnsafe()

const work = (options: Chat.Options = {}) => {
  const starts = { charge: 0, wait: 0 }
  const gate = Latch.makeUnsafe()
  const tools = [
    Tool.make("book", {
      parameters: {},
      handler: () => Effect.succeed(Tool.askUser("How many seats?", { answer: Schema.Int }))
    }),
    Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") }),
    Tool.make("charge", { parameters: {}, handler: () => Effect.sync(() => ++starts.charge) }),
    Tool.make("wait", {
      parameters: {},
      readOnly: true,
      handler: () =>
        Effect.suspend(() => {
          starts.wait++
          return Effect.as(Effect.andThen(started.open, gate.await), "waited")
        })
    })
  ]
  const runner = new Owners.Owner(Context.empty())
  const make = Commands.make({ run: () => ({ ...options, tools }), term: "5 seconds", runner })
  const owner = (name: string, drainMillis = 20_000) => make({ id: "ann", owner: name, drainMillis }, quiet)
  return { starts, gate, owner, runner }
}

const say = (command: string, words: string): Protocol.Command => ({
  command,
  input: { _tag: "Say", message: Message.user(words) }
})

const services = (script: ReadonlyArray<ReadonlyArray<Script.Entry>>) =>
  Layer.merge(Script.layer({ scripts: script }), Session.Store.layerMemory)

const texts = Effect.map(Session.load("ann"), (kept) => kept!.session.thread.messages.map(Message.text))

describe("a command carried out again by the next owner", () => {
  it.effect("a repeated message is appended once", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const first = yield* owner("a").carryOut(say("m1", "Hi"))
      const again = yield* owner("b").carryOut(say("m1", "Hi"))
      assert.strictEqual(again.version, first.version)
      yield* owner("b").carryOut(say("m2", "Hi"))
      assert.deepStrictEqual(yield* texts, ["Hi", "Hello", "Hi", "Hello again"])
    }).pipe(Effect.provide(services([said("Hello"), said("Hello again")]))))

  it.effect("a repeated command continues its run where it was interrupted, and repeats no ended call", () =>
    Effect.gen(function*() {
      const { gate, owner, starts } = work()
      yield* started.close
      const left = yield* Effect.forkChild(owner("a", 0).carryOut(say("m1", "Go")))
      yield* started.await
      yield* Fiber.interrupt(left)
      yield* gate.open
      const next = yield* Effect.forkChild(owner("b").carryOut(say("m1", "Go")), { startImmediately: true })
      // A call is started: the claim of its owner ends with its term.
      yield* TestClock.adjust("4900 millis")
      assert.isUndefined(next.pollUnsafe())
      yield* TestClock.adjust("500 millis")
      const { session } = yield* Fiber.join(next)
      assert.strictEqual(session.status, "completed")
      assert.deepStrictEqual(starts, { charge: 1, wait: 2 })
      assert.deepStrictEqual(yield* texts, ["Go", "", "1", "waited", "Done"])
    }).pipe(Effect.provide(services([called("charge", "wait"), said("Done")]))))

  it.effect("N-12: a repeated command fails again if its run could not start", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const first = yield* Effect.flip(owner("a").carryOut(say("m1", "Go")))
      assert.deepInclude(first, { _tag: "AdapterError", reason: "provider_unavailable" })
      const again = yield* Effect.flip(owner("b").carryOut(say("m1", "Go")))
      assert.deepStrictEqual(again, first)
      assert.deepStrictEqual(yield* texts, [])
    }).pipe(
      Effect.provide(services([0, 1].map(() => [Script.preflightError("provider_unavailable")])))
    ))

  it.effect("N-12: a repeated command fails again if a tool error ended its run", () => {
    let starts = 0
    const pay = Tool.make("pay", {
      parameters: {},
      handler: () => Effect.failSync(() => `no funds, ${++starts}`),
      onToolError: () => Effect.succeed(Tool.ErrorDecision.fail(new Error("the payment failed")))
    })
    const make = Commands.make({
      run: () => ({ tools: [pay] }),
      term: "5 seconds",
      runner: new Owners.Owner(Context.empty())
    })
    const owner = (name: string) => make({ id: "ann", owner: name, drainMillis: 0 }, quiet)
    return Effect.gen(function*() {
      assert.include(yield* Effect.flip(owner("a").carryOut(say("m1", "Go"))), { message: "the payment failed" })
      const kept = (yield* Session.load("ann"))!
      const error = { reason: "unknown", detail: "the payment failed" }
      assert.deepInclude(Session.receipt(kept, "m1"), { became: "failed", error })
      const again = yield* Effect.flip(owner("b").carryOut(say("m1", "Go")))
      assert.deepInclude(again, { _tag: "RepeatedFailure", error })
      const snapshot = yield* Session.snapshot((yield* Session.load("ann"))!)
      assert.deepInclude(yield* Effect.flip(owner("c").carryOut(say("m1", "Go"))), { _tag: "RepeatedFailure", error })
      assert.deepStrictEqual([(yield* Session.load("ann"))!.version, starts], [snapshot.version, 1])
    }).pipe(Effect.provide(services([called("pay"), said("Done")])))
  })

  it.effect("N-12: a repeated command reports a failed result again", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const first = yield* owner("a").carryOut(say("m1", "Go"))
      assert.strictEqual(first.session.status, "error")
      const again = yield* owner("b").carryOut(say("m1", "Go"))
      assert.deepStrictEqual([again.version, again.session.status], [first.version, "error"])
    }).pipe(Effect.provide(services([[text("Half"), Script.streamError("network_error")]]))))

  const commands: Readonly<Record<string, readonly [tool: string, input: Protocol.Input, other: Protocol.Input]>> = {
    "a repeated answer counts once, also a text that is valid JSON": [
      "book",
      { _tag: "Answer", id: "book", value: "4" },
      { _tag: "Answer", id: "book", value: "5" }
    ],
    "a repeated approval counts once": ["pay", { _tag: "Approve", id: "pay" }, { _tag: "Deny", id: "pay" }],
    "a repeated denial counts once": [
      "pay",
      { _tag: "Deny", id: "pay", reason: "too much" },
      { _tag: "Deny", id: "pay", reason: "too late" }
    ]
  }
  for (const [title, [tool, input, other]] of Object.entries(commands)) {
    it.effect(title, () =>
      Effect.gen(function*() {
        const { owner } = work()
        yield* owner("a").carryOut(say("m1", "Go"))
        const first = yield* owner("a").carryOut({ command: "a1", input })
        assert.strictEqual(first.session.status, "completed")
        const again = yield* owner("b").carryOut({ command: "a1", input })
        assert.strictEqual(again.version, first.version)
        const error = yield* Effect.flip(owner("b").carryOut({ command: "a2", input: other }))
        assert.instanceOf(error, Session.SessionError)
      }).pipe(Effect.provide(services([called(tool), said("Done")]))))
  }
})

describe("a stop", () => {
  it.effect("D-25: an owner asked to look finds a stop at once, and the run has ended afterwards", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const driver = owner("a")
      yield* driver.stopped
      yield* started.close
      const running = yield* Effect.forkChild(driver.carryOut(say("m1", "Go")))
      yield* started.await
      yield* Session.stop("ann")
      // The clock stands still: the owner does not wait until it would look by itself.
      yield* driver.stopped
      assert.strictEqual((yield* Session.load("ann"))?.session.status, "stopped")
      assert.strictEqual((yield* Fiber.join(running)).session.status, "stopped")
    }).pipe(Effect.provide(services([called("wait")]))))
})

describe("an owner asked to leave", () => {
  const claimed = Effect.flatMap(Session.Store, (store) => store.claimOf("ann"))
  const answered = Effect.map(
    Session.load("ann"),
    (kept) => kept?.interrupted?.calls.flatMap(({ state, toolCall }) => state === "Answered" ? [toolCall.id] : [])
  )

  it.effect("N-05: an owner asked to leave ends and records its running call, starts no other, asks no model, and releases its claim", () =>
    Effect.gen(function*() {
      const { gate, owner, starts } = work({ maxConcurrency: 1 })
      yield* started.close
      const left = yield* Effect.forkChild(owner("a").carryOut(say("m1", "Go")))
      yield* started.await
      left.interruptUnsafe()
      yield* TestClock.adjust("19 seconds")
      assert.isUndefined(left.pollUnsafe())
      yield* gate.open
      assert.isTrue(Exit.hasInterrupts(yield* Fiber.await(left)))
      assert.isUndefined(yield* claimed)
      assert.deepStrictEqual([starts, yield* answered], [{ charge: 0, wait: 1 }, ["wait"]])
      yield* owner("b").carryOut(say("m1", "Go"))
      assert.deepStrictEqual([starts, yield* texts], [{ charge: 1, wait: 1 }, ["Go", "", "waited", "1", "Done"]])
    }).pipe(Effect.provide(services([called("wait", "charge"), said("Done")]))))

  it.effect("N-05: an owner without running calls hands over at once", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const asked = Latch.makeUnsafe()
      const silent = Effect.provideService(
        Adapter.Adapter,
        Adapter.Adapter.of({
          stream: () => Stream.fromEffect(Effect.andThen(asked.open, Effect.never))
        })
      )
      const left = yield* Effect.forkChild(silent(owner("a").carryOut(say("m1", "Go"))))
      yield* asked.await
      // The clock stands still.
      yield* Fiber.interrupt(left)
      assert.isUndefined(yield* claimed)
      yield* owner("b").carryOut(say("m1", "Go"))
      assert.deepStrictEqual(yield* texts, ["Go", "Done"])
    }).pipe(Effect.provide(services([said("Done")]))))

  it.effect("N-05: an owner interrupts a call at the end of the drain, and leaves the claim to its term", () =>
    Effect.gen(function*() {
      const { gate, owner, starts } = work()
      yield* started.close
      const left = yield* Effect.forkChild(owner("a").carryOut(say("m1", "Go")))
      yield* started.await
      left.interruptUnsafe()
      yield* TestClock.adjust("20 seconds")
      yield* Fiber.await(left)
      const until = (yield* claimed)!.until - (yield* Clock.currentTimeMillis)
      assert.strictEqual(until, 5000)
      yield* gate.open
      const next = yield* Effect.forkChild(owner("b").carryOut(say("m1", "Go")), { startImmediately: true })
      yield* TestClock.adjust("4900 millis")
      assert.strictEqual(starts.wait, 1)
      yield* TestClock.adjust("500 millis")
      yield* Fiber.join(next)
      assert.deepStrictEqual([starts.wait, yield* texts], [2, ["Go", "", "waited", "Done"]])
    }).pipe(Effect.provide(services([called("wait"), said("Done")]))))

  it.effect("N-05: an owner asked to leave does not begin a command that waits behind another", () =>
    Effect.gen(function*() {
      const { gate, owner } = work()
      yield* started.close
      const driver = owner("a")
      const left = yield* Effect.forkChild(driver.carryOut(say("m1", "Go")))
      yield* started.await
      const waiting = yield* Effect.forkChild(driver.carryOut(say("m2", "And then")), { startImmediately: true })
      yield* Fiber.interrupt(waiting)
      left.interruptUnsafe()
      yield* gate.open
      yield* Fiber.await(left)
      assert.deepStrictEqual(yield* answered, ["wait"])
    }).pipe(Effect.provide(services([called("wait")]))))
})

describe("a claim", () => {
  it.effect("D-10: a command waits while another owner has the session, and starts nothing before", () =>
    Effect.gen(function*() {
      const { owner } = work()
      const store = yield* Session.Store
      yield* store.claim("ann", "elsewhere", 3000)
      const waiting = yield* Effect.forkChild(owner("a").carryOut(say("m1", "Hi")), { startImmediately: true })
      yield* TestClock.adjust("2900 millis")
      assert.strictEqual(yield* store.version("ann"), 0)
      yield* TestClock.adjust("500 millis")
      yield* Fiber.join(waiting)
      assert.deepStrictEqual(yield* texts, ["Hi", "Hello"])
    }).pipe(Effect.provide(services([said("Hello")]))))

  it.effect("N-07: a runner's health has its lost claims, with the time since their confirmation", () =>
    Effect.gen(function*() {
      const { gate, owner, runner } = work()
      yield* started.close
      const store = yield* Session.Store
      const running = yield* Effect.forkChild(owner("a").carryOut(say("m1", "Go")))
      yield* started.await
      assert.deepInclude(yield* runner.health, { driven: 1, lostClaims: 0 })
      yield* Session.revoke("ann")
      yield* store.claim("ann", "elsewhere", 1000)
      // It learns it with its next poll.
      yield* TestClock.adjust("2 seconds")
      yield* gate.open
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(running)).session.status, "completed")
      assert.deepInclude(yield* runner.health, { driven: 0, lostClaims: 1, latestMillis: 200 })
      // The health of an owner covers five minutes.
      yield* TestClock.adjust("5 minutes")
      assert.deepInclude(yield* runner.health, { lostClaims: 0, latestMillis: 0 })
    }).pipe(Effect.provide(services([called("wait"), said("Done")]))))

  it.effect("D-15: a command waits while the store is away", () =>
    Effect.gen(function*() {
      const { owner, runner } = work()
      const store = yield* Session.Store
      let isAway = true
      const away = new Journal.StoreError({ reason: "unavailable", operation: "append", id: "ann" })
      const flaky = Context.make(Session.Store, {
        ...store,
        append: (id, expected, records) => isAway ? Effect.fail(away) : store.append(id, expected, records)
      })
      const waiting = yield* owner("a").carryOut(say("m1", "Hi")).pipe(
        Effect.provideContext(flaky),
        Effect.forkChild({ startImmediately: true })
      )
      yield* TestClock.adjust("10 seconds")
      assert.isUndefined(waiting.pollUnsafe())
      assert.isFalse((yield* runner.health).isReady)
      isAway = false
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(waiting)
      assert.isTrue((yield* runner.health).isReady)
      assert.deepStrictEqual(yield* texts, ["Hi", "Hello"])
    }).pipe(Effect.provide(services([said("Hello")]))))
})
