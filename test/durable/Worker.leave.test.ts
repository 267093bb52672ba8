/** Owners that leave: a worker whose layer is released, a closed scope around a claim, and what the next owner finds. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Chat, Encoder, Journal, Session, Tool } from "heddle"
import { Durable, Worker } from "heddle/durable"
import { Simulation } from "heddle/testing"
import { recordsOf, stores, until } from "../support/edges.ts"
import { agent, casting } from "../support/nests.ts"
import { leaves as mayLeave, ledger } from "./support/ledger.ts"

ledger()

const quiet = Logger.layer([])

const tagsOf = (id: string) => Effect.map(recordsOf(id), (records) => records.map(({ _tag }) => _tag))

const hasStarted = (id: string, count = 1) =>
  Effect.map(tagsOf(id), (tags) => tags.filter((tag) => tag === "CallStarted").length >= count)

const endsOf = (records: ReadonlyArray<Journal.Record>) =>
  records.flatMap((record) => record._tag === "CallEnded" ? [record.message.toolCallId] : [])

const isDone = (id: string) =>
  Effect.map(Session.load(id), (kept) => kept !== undefined && Session.next(kept) === "nothing")

/** Whether the run of a session has ended, whatever is done with its result. */
const isEnded = (id: string) => Effect.map(tagsOf(id), (tags) => tags.includes("RunEnded"))

/** A worker that can be asked to leave. */
const working = (
  tools: ReadonlyArray<Tool.Any>,
  model: Layer.Layer<Adapter.Adapter>,
  options: Partial<Worker.Options> = {},
  maxConcurrency = 1
) =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer((exit) => Scope.close(scope, exit))
    const worker = Worker.layer({ term: "30 seconds", ...options, run: () => ({ tools: tools as [], maxConcurrency }) })
    yield* Layer.build(worker.pipe(Layer.provide([model, quiet]))).pipe(Scope.provide(scope))
    const leave = Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
    return { leave }
  })

/** What a bank knows: a charge takes two seconds, and is found after it only. */
const bankOf = () => {
  const bank = { charged: [] as Array<string>, begun: 0, lookUps: 0 }
  const charge = (options: Partial<Tool.Any> = {}) =>
    Tool.make("charge", {
      parameters: {},
      handler: (_, { id }) =>
        Effect.gen(function*() {
          bank.begun++
          yield* Effect.sleep("2 seconds")
          bank.charged.push(id)
          return "charged"
        }),
      lookUp: (_, { id }) =>
        Effect.sync(() => {
          bank.lookUps++
          return bank.charged.includes(id) ? Option.some("charged") : Option.none()
        }),
      ...options as object
    })
  return { bank, charge }
}

const go = casting({ go: [[["a", "charge", {}], ["b", "charge", {}]], "Done"] })

describe("a worker asked to leave", () => {
  for (const [where, store] of Object.entries(stores)) {
    it.effect(`N-05: a leaving worker lets the running call end, starts no other call and hands over, ${where}`, () =>
      Effect.gen(function*() {
        const { bank, charge } = bankOf()
        yield* Session.submit("s", "go")
        const first = yield* working([charge()], go)
        yield* until(hasStarted("s"))
        yield* TestClock.adjust("500 millis")
        const leaving = yield* first.leave
        yield* TestClock.adjust("1 second")
        assert.isUndefined(leaving.pollUnsafe(), "the charge is under way")
        yield* TestClock.adjust("500 millis")
        yield* Fiber.await(leaving)
        assert.deepStrictEqual(bank, { charged: ["a"], begun: 1, lookUps: 0 })
        assert.deepStrictEqual(endsOf(yield* recordsOf("s")), ["a"])
        const [listed] = yield* Stream.runCollect(Session.list())
        assert.deepStrictEqual([listed?.next, listed?.claim], ["resume", undefined])
        yield* working([charge()], go)
        yield* until(isDone("s"))
        assert.deepStrictEqual(bank, { charged: ["a", "b"], begun: 2, lookUps: 0 })
      }).pipe(Effect.scoped, Effect.provide(store)))
  }

  it.effect("N-05: a leaving worker does not wait for a blocking call that has not started", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const nap = Tool.make("nap", { parameters: {}, handler: () => Effect.as(Effect.sleep("500 millis"), "slept") })
      const model = casting({ go: [[["a", "charge", {}], ["b", "nap", {}], ["c", "charge", {}]], "Done"] })
      yield* Session.submit("s", "go")
      const { leave } = yield* working([charge({ interrupt: "block" }), nap], model, {}, 2)
      yield* until(hasStarted("s", 2))
      const leaving = yield* leave
      yield* TestClock.adjust("2 seconds")
      yield* Fiber.await(leaving)
      assert.deepStrictEqual(bank.charged, ["a"])
      assert.sameMembers(endsOf(yield* recordsOf("s")), ["a", "b"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a leaving worker without a running call hands over at once and asks its model no more", () =>
    Effect.gen(function*() {
      let asked = 0
      const silent = Adapter.layer({
        stream: () =>
          Stream.suspend(() => {
            asked++
            return Stream.never
          })
      })
      yield* Session.submit("s", "go")
      const { leave } = yield* working([], silent)
      yield* until(Effect.sync(() => asked === 1))
      const before = yield* Clock.currentTimeMillis
      yield* Fiber.await(yield* leave)
      assert.strictEqual(yield* Clock.currentTimeMillis, before)
      assert.isUndefined((yield* Stream.runCollect(Session.list()))[0]?.claim)
      yield* working([], casting({ go: ["Done"] }))
      yield* until(isDone("s"))
      assert.strictEqual(asked, 1)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a leaving worker interrupts a call that outlives the drain and leaves the claim to its term", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      yield* Session.submit("s", "go")
      const first = yield* working([charge()], go, { drain: "1 second" })
      yield* until(hasStarted("s"))
      const leaving = yield* first.leave
      yield* TestClock.adjust("1 second")
      yield* Fiber.await(leaving)
      const left = yield* Clock.currentTimeMillis
      assert.isEmpty(endsOf(yield* recordsOf("s")), "its end is unknown")
      const [listed] = yield* Stream.runCollect(Session.list())
      assert.strictEqual(listed?.claim?.until, left + 30_000)
      yield* working([charge()], go)
      yield* TestClock.adjust("29 seconds")
      assert.strictEqual(bank.lookUps, 0)
      yield* until(isDone("s"))
      assert.strictEqual(bank.lookUps, 1)
      assert.deepStrictEqual(bank.charged, ["a", "b"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a leaving worker does not answer a held-back call, also when its timeout is shorter than the drain", () =>
    Effect.gen(function*() {
      const { charge } = bankOf()
      const nap = Tool.make("nap", { parameters: {}, handler: () => Effect.as(Effect.sleep("500 millis"), "slept") })
      let briefs = 0
      const brief = Tool.make("brief", { parameters: {}, timeout: 100, handler: () => Effect.sync(() => ++briefs) })
      const model = casting({ go: [[["a", "charge", {}], ["b", "nap", {}], ["c", "brief", {}]], "Done"] })
      const tools = [charge(), nap, brief]
      yield* Session.submit("s", "go")
      const { leave } = yield* working(tools, model, {}, 2)
      yield* until(hasStarted("s", 2))
      const leaving = yield* leave
      yield* TestClock.adjust("2 seconds")
      yield* Fiber.await(leaving)
      assert.sameMembers(endsOf(yield* recordsOf("s")), ["a", "b"])
      assert.strictEqual(briefs, 0)
      yield* working(tools, model)
      yield* until(isDone("s"))
      assert.sameMembers(endsOf(yield* recordsOf("s")), ["a", "b", "c"])
      assert.strictEqual(briefs, 1)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a leaving worker waits for the running call of a sub-agent and not for the sub-agent", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const model = casting({
        go: [[["sub", "sub", {}]], "Done"],
        sub: [[["a", "charge", {}]], [["b", "charge", {}]], "Sub"]
      })
      const tools = [agent("sub", [charge()])]
      yield* Session.submit("s", "go")
      const first = yield* working(tools, model)
      yield* until(Effect.sync(() => bank.begun === 1))
      const leaving = yield* first.leave
      yield* TestClock.adjust("2 seconds")
      yield* Fiber.await(leaving)
      assert.deepStrictEqual([bank.charged, bank.begun], [["a"], 1])
      yield* working(tools, model)
      yield* until(isDone("s"))
      assert.deepStrictEqual(bank, { charged: ["a", "b"], begun: 2, lookUps: 0 })
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  /** A worker that is left while a charge of a sub-agent is under way, `deep` agents down, and its claim then. */
  const leavingWithin = (deep: number, drain: "1 second" | "20 seconds", leftAfter: "charge" | "reply") =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const names = Array.from({ length: deep }, (_, depth) => `sub${depth}`)
      const parts = Object.fromEntries(
        ["go", ...names].map((name, depth) => [name, [[["a", names[depth] ?? "charge", {}]], "Done"] as const])
      )
      const replied = casting(parts)
      const asked = yield* Deferred.make<void>()
      // A model that is asked for the reply of the last sub-agent and does not answer.
      const silent = Layer.effect(
        Adapter.Adapter,
        Effect.map(Adapter.Adapter, (adapter) => ({
          ...adapter,
          stream: (request: Adapter.Request) =>
            JSON.stringify(request.messages[0]).includes(names.at(-1)!)
              ? Stream.fromEffect(Effect.andThen(Deferred.succeed(asked, undefined), Effect.never))
              : adapter.stream(request)
        }))
      ).pipe(Layer.provide(replied))
      const tools = names.reduceRight<ReadonlyArray<Tool.Any>>((tools, name) => [agent(name, tools)], [charge()])
      yield* Session.submit("s", "go")
      const first = yield* working(tools, leftAfter === "reply" ? silent : replied, { drain })
      yield* leftAfter === "reply" ? Deferred.await(asked) : until(Effect.sync(() => bank.begun === 1))
      const leaving = yield* first.leave
      yield* TestClock.adjust("2 seconds")
      yield* Fiber.await(leaving)
      const claim = yield* (yield* Session.Store).claimOf("s")
      yield* working(tools, replied)
      const restarted = yield* Clock.currentTimeMillis
      yield* until(isDone("s"))
      return { isHeld: claim !== undefined, bank, after: (yield* Clock.currentTimeMillis) - restarted }
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

  for (const deep of [1, 2]) {
    for (const leftAfter of ["charge", "reply"] as const) {
      it.effect(`O-48: a leaving worker releases the claim when the calls of a sub-agent have ended: ${leftAfter}, ${deep} deep`, () =>
        Effect.gen(function*() {
          const { after, bank, isHeld } = yield* leavingWithin(deep, "20 seconds", leftAfter)
          assert.isFalse(isHeld)
          assert.isBelow(after, 5_000)
          assert.deepStrictEqual(bank, { charged: ["a"], begun: 1, lookUps: 0 })
        }))
    }

    it.effect(`O-48: a leaving worker keeps the claim while the end of a sub-agent's call is unknown, ${deep} deep`, () =>
      Effect.gen(function*() {
        const { after, bank, isHeld } = yield* leavingWithin(deep, "1 second", "charge")
        assert.isTrue(isHeld)
        assert.isAtLeast(after, 25_000)
        assert.deepStrictEqual(bank, { charged: ["a"], begun: 2, lookUps: 1 })
      }))
  }

  it.effect("N-05: a leaving worker lets the runs within a running call continue", () =>
    Effect.gen(function*() {
      const began = yield* Deferred.make<void>()
      const model = casting({ go: [[["t", "think", {}]], "Done"], deep: [[["n", "nap", {}]], "Deep"] })
      const nap = Tool.make("nap", {
        parameters: {},
        handler: () => Effect.andThen(Deferred.succeed(began, undefined), Effect.as(Effect.sleep("1 second"), "slept"))
      })
      const think = Tool.make("think", {
        parameters: {},
        handler: () =>
          Effect.map(Chat.run("deep", { tools: [nap] }), ({ finalResponse }) => finalResponse?.outputText ?? "")
      })
      yield* Session.submit("s", "go")
      const first = yield* working([think], model)
      yield* Deferred.await(began)
      const leaving = yield* first.leave
      yield* TestClock.adjust("1 second")
      yield* Fiber.await(leaving)
      assert.deepStrictEqual(endsOf(yield* recordsOf("s")), ["t"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("a worker that asks the store for work", () => {
  /** A store whose answer to a request for work takes its time. */
  const asking = (pause: Effect.Effect<void>) =>
    Effect.map(Session.Store, (store) => {
      const state = { isAsked: false }
      const claimUnfinished: typeof store.claimUnfinished = (...args) =>
        Effect.tap(store.claimUnfinished(...args), () => {
          state.isAsked = true
          return pause
        })
      return { state, layer: Layer.succeed(Session.Store, { ...store, claimUnfinished }) }
    })

  it.effect("N-05: a leaving worker releases a session claimed during its leave", () =>
    Effect.gen(function*() {
      const { layer, state } = yield* asking(Effect.sleep("1 second"))
      yield* Session.submit("s", "go")
      const { leave } = yield* Effect.provide(working([], go), layer)
      yield* until(Effect.sync(() => state.isAsked))
      const leaving = yield* leave
      yield* TestClock.adjust("1 second")
      yield* Fiber.await(leaving)
      const [listed] = yield* Stream.runCollect(Session.list())
      assert.deepStrictEqual([listed?.next, listed?.claim], ["reply", undefined])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-42: a leaving worker waits at most the grace period for a hanging store", () =>
    Effect.gen(function*() {
      mayLeave("fibers")
      const { layer, state } = yield* asking(Effect.uninterruptible(Effect.never))
      yield* Session.submit("s", "go")
      const { leave } = yield* Effect.provide(working([], go), layer)
      yield* until(Effect.sync(() => state.isAsked))
      const leaving = yield* leave
      yield* TestClock.adjust("5 seconds")
      yield* Fiber.await(leaving)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("a worker whose hooks are running", () => {
  for (const hook of ["onEvent", "onEnd", "onGiveUp"] as const) {
    it.effect(`N-05: a leaving worker lets ${hook} end within the drain`, () =>
      Effect.gen(function*() {
        const told: Array<string> = []
        const tell = (name: string) => Effect.andThen(Effect.sleep("2 seconds"), Effect.sync(() => told.push(name)))
        const options: Partial<Worker.Options> = {
          maxFailures: 1,
          onEvent: (_, { _tag }) => hook === "onEvent" && _tag === "ChatCompleted" ? tell(hook) : Effect.void,
          onEnd: () => tell("onEnd"),
          onGiveUp: () => tell("onGiveUp")
        }
        const refusing = Adapter.layer({
          stream: () => Stream.fail(new Adapter.AdapterError({ reason: "invalid_request" }))
        })
        yield* Session.submit("s", "go")
        const { leave } = yield* working([], hook === "onGiveUp" ? refusing : casting({ go: ["Done"] }), options)
        yield* until(isEnded("s"))
        const leaving = yield* leave
        yield* TestClock.adjust("1 second")
        assert.isUndefined(leaving.pollUnsafe(), "it waits")
        yield* TestClock.adjust("9 seconds")
        assert.isDefined(leaving.pollUnsafe(), "it has left")
        const all = { onEvent: ["onEvent", "onEnd"], onEnd: ["onEnd"], onGiveUp: ["onEnd", "onGiveUp"] }
        assert.deepStrictEqual(told, all[hook])
        assert.isUndefined(yield* Effect.flatMap(Session.Store, (store) => store.claimOf("s")), "the claim is released")
      }).pipe(Effect.scoped, Effect.provide([Session.Store.layerMemory, quiet])))
  }
})

describe("a worker whose claim is revoked", () => {
  it.effect("a worker whose claim is revoked stops its call, and a worker resumes the session", () =>
    Effect.gen(function*() {
      const calls: Array<string> = []
      const charge = Tool.make("charge", {
        parameters: {},
        idempotent: true,
        handler: (_, { attempt }) =>
          attempt === 1
            ? Effect.onInterrupt(Effect.never, () => Effect.sync(() => calls.push("interrupted")))
            : Effect.sync(() => calls.push("charged"))
      })
      yield* Session.submit("s", "go")
      yield* working([charge], casting({ go: [[["c", "charge", {}]], "Done"] }))
      yield* until(hasStarted("s"))
      assert.isTrue(yield* Session.revoke("s"))
      yield* until(isDone("s"))
      assert.deepStrictEqual(calls, ["interrupted", "charged"])
    }).pipe(Effect.scoped, Effect.provide([Session.Store.layerMemory, quiet])))
})

describe("a worker whose hooks or store hang", () => {
  const hang = Effect.uninterruptible(Effect.never)

  /** Whether a worker has left after its drain and the grace period. */
  const leaves = (options: Partial<Worker.Options>, tools: ReadonlyArray<Tool.Any>, hanging: Array<string> = []) =>
    Effect.gen(function*() {
      mayLeave("fibers")
      const store = yield* Session.Store
      const state = { isHanging: false }
      const changed = hanging.map((name) => {
        const operation = store[name as "version"] as (...args: ReadonlyArray<unknown>) => Effect.Effect<unknown>
        return [
          name,
          (...args: ReadonlyArray<unknown>) => {
            const done = operation(...args)
            if (!state.isHanging) return done
            return Effect.isEffect(done) ? hang : Stream.fromEffect(hang)
          }
        ]
      })
      const layer = Layer.succeed(Session.Store, { ...store, ...Object.fromEntries(changed) as object })
      yield* Session.submit("s", "go")
      const { leave } = yield* Effect.provide(working(tools, go, { drain: "2 seconds", ...options }), layer)
      yield* until(hasStarted("s"))
      state.isHanging = true
      yield* TestClock.adjust("300 millis")
      const leaving = yield* leave
      yield* TestClock.adjust("10 seconds")
      assert.isDefined(leaving.pollUnsafe(), "it has left")
      yield* TestClock.adjust("1 minute")
      const claim = yield* store.claimOf("s")
      assert.isBelow(claim?.until ?? 0, yield* Clock.currentTimeMillis, "the claim is not renewed any more")
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

  const failing = Tool.make("charge", { parameters: {}, handler: () => Effect.succeed("charged") })

  it.effect("N-42: a worker with a hanging onEvent leaves within its drain and grace period", () =>
    leaves(
      { onEvent: (_, { _tag }) => _tag === "ToolExecutionStarted" ? Effect.ensuring(Effect.never, hang) : Effect.void },
      [bankOf().charge()]
    ))

  it.effect("N-42: a worker with a hanging onEnd leaves within its drain and grace period", () =>
    leaves({ onEnd: () => hang }, [failing]))

  for (const operation of ["read", "version", "claimOf", "release", "renew"]) {
    it.effect(`N-42: a worker whose store hangs in ${operation} leaves within its drain and grace period`, () =>
      leaves({}, [bankOf().charge()], [operation]))
  }

  it.effect("a worker whose store refuses an answer leaves no fiber behind", () =>
    Effect.gen(function*() {
      const program = Effect.gen(function*() {
        const store = yield* Session.Store
        const { charge } = bankOf()
        let refused = 0
        const refusing = Layer.succeed(Session.Store, {
          ...store,
          append: (...[id, expected, records, options]: Parameters<typeof store.append>) =>
            records.some(({ _tag }) => _tag === "CallEnded") && refused++ < 2
              ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "append", id }))
              : store.append(id, expected, records, options)
        })
        yield* Session.submit("s", "go")
        const scope = yield* Scope.make()
        yield* Layer.build(
          Worker.layer({ run: () => ({ tools: [charge()] as ReadonlyArray<Tool.Any> as [] }) }).pipe(
            Layer.provide([go, quiet, refusing])
          )
        ).pipe(Scope.provide(scope))
        yield* Effect.sleep("2 minutes")
        yield* Scope.close(scope, Exit.void)
        return Session.next((yield* Session.load("s"))!)
      }).pipe(Effect.provide(Session.Store.layerMemory))
      const { exit, fibers } = yield* Simulation.run(program)
      assert.deepStrictEqual([exit, fibers], [Exit.succeed("nothing" as const), 0])
    }))
})

describe("a closed scope around a claim", () => {
  /** Begins a run under a claim, and closes its scope so many milliseconds after its call has started. */
  const closing = (tool: Tool.Any, after: number, encoder: Layer.Layer<never> = Layer.empty) =>
    Effect.gen(function*() {
      const run = Session.claim("s", { owner: "one", term: "30 seconds" }).pipe(
        Effect.flatMap((kept) =>
          Session.keep(kept, (session) =>
            Session.reply(session, "go", { tools: [tool] as ReadonlyArray<Tool.Any> as [] }))
        ),
        Effect.scoped,
        Effect.provide([go, encoder])
      )
      const fiber = yield* Effect.forkChild(run)
      yield* until(hasStarted("s", 2))
      yield* TestClock.adjust(after)
      const stopped = yield* Effect.forkChild(Fiber.interrupt(fiber), { startImmediately: true })
      yield* until(Effect.sync(() =>
        stopped.pollUnsafe() !== undefined
      ))
      return (yield* Stream.runCollect(Session.list()))[0]!
    })

  it.effect("N-05: a closed scope records answers given within the grace period and releases the claim", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const { claim } = yield* closing(charge({ interrupt: "block" }), 500)
      assert.sameMembers(bank.charged, ["a", "b"])
      assert.sameMembers(endsOf(yield* recordsOf("s")), ["a", "b"])
      assert.isUndefined(claim)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a closed scope records nothing of an interrupted handler and leaves the claim to its term", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const { claim } = yield* closing(charge(), 500)
      assert.isEmpty(bank.charged)
      assert.isEmpty(endsOf(yield* recordsOf("s")))
      assert.strictEqual(claim?.until, (yield* Clock.currentTimeMillis) + 30_000)
      const kept = (yield* Session.load("s"))!
      assert.deepStrictEqual(kept.interrupted?.calls.map(({ state }) => state), ["Started", "Started"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a closed scope records an answer whose encoding was in progress", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const slow = Layer.succeed(Encoder.Encoder, {
        encode: (value) => Effect.as(Effect.sleep("1 second"), JSON.stringify(value))
      })
      const { claim } = yield* closing(charge(), 2500, slow)
      assert.sameMembers(bank.charged, ["a", "b"])
      assert.sameMembers(endsOf(yield* recordsOf("s")), ["a", "b"])
      assert.isUndefined(claim)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: an interrupted program with `Durable.layer` leaves the claim to its term while a call is started", () =>
    Effect.gen(function*() {
      const { bank, charge } = bankOf()
      const program = Chat.run("go", { tools: [charge()] }).pipe(
        Effect.provide(Durable.layer({ id: "p", term: "30 seconds" })),
        Effect.provide(go)
      )
      const store = yield* Session.Store
      const fiber = yield* Effect.forkChild(program)
      yield* until(Effect.sync(() => bank.begun === 2))
      yield* TestClock.adjust("500 millis")
      yield* Fiber.interrupt(fiber)
      assert.strictEqual((yield* store.claimOf("p"))?.until, (yield* Clock.currentTimeMillis) + 30_000)
      assert.strictEqual((yield* Effect.flip(program))._tag, "SessionClaimed")
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-05: a worker whose store refuses the end of a call keeps its claim", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const { bank, charge } = bankOf()
      let isAway = false
      const failing = Layer.succeed(Session.Store, {
        ...store,
        append: (...[id, ...rest]: Parameters<typeof store.append>) =>
          Effect.suspend(() =>
            isAway && rest[1].some(({ _tag }) => _tag === "CallEnded")
              ? Effect.fail(new Journal.StoreError({ reason: "full", operation: "append", id }))
              : store.append(id, ...rest)
          )
      })
      yield* Session.submit("s", "go")
      const { leave } = yield* Effect.provide(working([charge()], go), failing)
      yield* until(hasStarted("s"))
      isAway = true
      yield* TestClock.adjust("2 seconds")
      const [listed] = yield* Stream.runCollect(Session.list())
      assert.strictEqual(listed?.claim?.until, (yield* Clock.currentTimeMillis) + 30_000)
      isAway = false
      yield* until(isDone("s"))
      assert.deepStrictEqual([bank.charged, bank.lookUps], [["a", "b"], 1])
      yield* leave
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})
