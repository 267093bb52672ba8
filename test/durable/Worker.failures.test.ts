/** A worker and what cannot succeed, what has to wait, and what is due. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, type Event, Journal, Message, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { recordsOf, stores, until } from "../support/edges.ts"
import { casting } from "../support/nests.ts"
import { ledger } from "./support/ledger.ts"

ledger()

const statusOf = (id: string) => Effect.map(Session.open(id), ({ session }) => session.status)

const hasStatus = (id: string, wanted: Session.Status) => Effect.map(statusOf(id), (status) => status === wanted)

/** A model that refuses messages which name a reason, and answers others. Each request is noted with its time. */
const refusing = (asked: Array<number>) =>
  Adapter.layer({
    stream: ({ messages }) =>
      Stream.unwrap(Effect.map(Clock.currentTimeMillis, (now) => {
        const said = Message.text(messages.findLast(({ role }) => role === "user")!)
        if (!said.startsWith("fail ")) return Stream.fromIterable(answer)
        asked.push(now)
        const reason = said.slice(5) as Adapter.AdapterError["reason"]
        return Stream.fail(new Adapter.AdapterError({ reason, detail: "refused" }))
      }))
  })

const answer: ReadonlyArray<Event.AdapterEvent> = [
  { _tag: "MessageStarted", message: Message.assistant("") },
  { _tag: "TextCompleted", id: null, text: "fine" },
  { _tag: "MessageCompleted", message: Message.assistant("fine"), finishReason: "stop", metadata: {} }
]

/** What workers said of their sessions. */
const makeSeen = () => {
  const seen = {
    ends: [] as Array<readonly [string, string]>,
    givenUp: [] as Array<readonly [string, unknown]>,
    lines: [] as Array<string>
  }
  const options = {
    term: "30 seconds",
    onEnd: (id: string, { haltedReason }: Event.ChatResult) =>
      Effect.sync(() => void seen.ends.push([id, haltedReason])),
    onGiveUp: (id: string, error: unknown) => Effect.sync(() => void seen.givenUp.push([id, error]))
  } as const
  const logger = Logger.layer([
    Logger.make(({ logLevel, message }) => {
      if (logLevel === "Warn") seen.lines.push(String(Array.isArray(message) ? message[0] : message))
    })
  ])
  return { logger, options, seen }
}

const reasonOf = (error: unknown) => (error as { readonly reason?: unknown }).reason

const reasons = Adapter.AdapterError.fields.reason.literals

/** Reasons that may pass by themselves. A model is refused for all others until a person changes something. */
const passing: ReadonlySet<string> = new Set([
  "rate_limited",
  "provider_unavailable",
  "timeout",
  "network_error",
  "malformed_response",
  "unknown"
])

const hopeless = reasons.filter((reason) => !passing.has(reason))

describe("a run that cannot succeed", () => {
  it.effect("N-10: a worker retries a run for each reason that may pass", () =>
    Effect.gen(function*() {
      const given = reasons.filter((reason) => passing.has(reason))
      assert.lengthOf(given, passing.size)
      for (const reason of given) {
        const asked: Array<number> = []
        const { logger, options, seen } = makeSeen()
        yield* Session.submit(reason, `fail ${reason}`)
        yield* Effect.scoped(Effect.andThen(
          Layer.build(Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([refusing(asked), logger]))),
          until(Effect.sync(() => seen.ends.length === 1), 100)
        ))
        assert.lengthOf(asked, 5, reason)
      }
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-10: a worker gives a run up at once when its request cannot be sent", () =>
    Effect.gen(function*() {
      const { logger, options, seen } = makeSeen()
      let runs = 0
      yield* Session.submit("s", "work")
      yield* Layer.build(
        Worker.layer({ ...options, run: () => (runs++, { temperature: 99 }) }).pipe(
          Layer.provide([refusing([]), logger])
        )
      )
      yield* until(Effect.sync(() => seen.ends.length === 1))
      yield* TestClock.adjust("10 minutes")
      assert.strictEqual(runs, 1)
      assert.deepStrictEqual(seen.givenUp.map(([, error]) => reasonOf(error)), ["invalid_request"])
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  for (const [where, store] of Object.entries(stores)) {
    for (const reason of hopeless) {
      it.effect(`N-10: a worker gives a run up at once for ${reason} and continues with other sessions, ${where}`, () =>
        Effect.gen(function*() {
          const asked: Array<number> = []
          const { logger, options, seen } = makeSeen()
          yield* Session.submit("s", `fail ${reason}`, { id: "m" })
          yield* Session.submit("t", "work")
          yield* Layer.build(
            Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([refusing(asked), logger]))
          )
          yield* until(Effect.sync(() => seen.ends.length === 2))
          yield* TestClock.adjust("10 minutes")
          assert.lengthOf(asked, 1)
          assert.sameDeepMembers(seen.ends, [["s", "error"], ["t", "completed"]])
          assert.deepStrictEqual(seen.givenUp.map(([id, error]) => [id, reasonOf(error)]), [["s", reason]])
          assert.deepStrictEqual(seen.lines, ["session \"s\" is given up: it failed once"])
          const kept = yield* Session.open("s")
          assert.deepStrictEqual([kept.session.status, Session.next(kept)], ["error", "nothing"])
          assert.strictEqual(reasonOf(kept.session.metadata["error"]), reason)
          assert.strictEqual(Session.receipt(kept, "m")?.became, "failed")
          assert.strictEqual(kept.session.thread.messages.length, 1, "the message is not lost")
          yield* Session.submit("s", "work")
          yield* until(hasStatus("s", "completed"))
        }).pipe(Effect.scoped, Effect.provide(store)))
    }
  }

  it.effect("N-10: two workers give a run up after five failures in a row over both, with growing pauses", () =>
    Effect.gen(function*() {
      const asked: Array<number> = []
      const { logger, options, seen } = makeSeen()
      yield* Session.submit("s", "fail provider_unavailable")
      const worker = Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([refusing(asked), logger]))
      yield* Layer.build(Layer.fresh(worker))
      yield* Layer.build(Layer.fresh(worker))
      yield* until(hasStatus("s", "error"), 100)
      assert.lengthOf(asked, 5)
      const pauses = asked.slice(1).map((at, index) => at - asked[index]!)
      for (const [index, pause] of pauses.entries()) assert.isAtLeast(pause, Math.min(1000 * 4 ** index, 60_000))
      assert.deepStrictEqual(seen.givenUp.map(([id, error]) => [id, reasonOf(error)]), [["s", "provider_unavailable"]])
      const failed = (yield* recordsOf("s")).filter((record) =>
        record._tag === "RunEnded" && record.haltedReason === undefined
      )
      assert.lengthOf(failed, 4)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-10: a worker retries with the pauses of maxFailures, from the first pause behind each reply", () =>
    Effect.gen(function*() {
      const asked: Array<number> = []
      const { logger, options, seen } = makeSeen()
      yield* Layer.build(
        Worker.layer({ ...options, poll: "1 second", maxFailures: 4, run: () => ({}) }).pipe(
          Layer.provide([refusing(asked), logger])
        )
      )
      const pausesOf = () => asked.splice(0).map((at, index, all) => at - (all[index - 1] ?? at)).slice(1)
      for (const round of [1, 2]) {
        yield* Session.submit("s", "fail provider_unavailable")
        yield* until(hasStatus("s", "error"), 100)
        const wanted = [5_000, 20_000, 60_000]
        const pauses = pausesOf()
        assert.lengthOf(pauses, wanted.length, `round ${round}`)
        for (const [index, least] of wanted.entries()) {
          // A session is looked for once in each poll.
          assert.isTrue(pauses[index]! >= least && pauses[index]! < least + 2_000, `round ${round}: ${pauses.join()}`)
        }
        yield* Session.submit("s", "work")
        yield* until(hasStatus("s", "completed"), 100)
      }
      assert.lengthOf(seen.givenUp, 2)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  it.effect("N-10: failures count from the last reply", () =>
    Effect.gen(function*() {
      const asked: Array<number> = []
      const { logger, options, seen } = makeSeen()
      yield* Session.submit("s", "fail provider_unavailable")
      yield* Layer.build(
        Worker.layer({ ...options, maxFailures: 2, run: () => ({}) }).pipe(Layer.provide([refusing(asked), logger]))
      )
      yield* until(hasStatus("s", "error"), 100)
      yield* Session.submit("s", "work")
      yield* until(hasStatus("s", "completed"), 100)
      yield* Session.submit("s", "fail provider_unavailable")
      yield* until(hasStatus("s", "error"), 100)
      assert.lengthOf(asked, 4)
      assert.lengthOf(seen.givenUp, 2)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))

  for (
    const [what, model] of [
      ["the model refuses its request", refusing([])],
      ["its adapter is broken", Adapter.layer({ stream: () => Stream.die(new Error("broken")) })]
    ] as const
  ) {
    it.effect(`N-10, N-39: a worker gives up a run begun by another process when ${what}`, () =>
      Effect.gen(function*() {
        const { logger, options, seen } = makeSeen()
        const store = yield* Session.Store
        // The process died while it asked the model.
        const { version } = yield* Session.open("s")
        yield* store.append("s", version, [{
          _tag: "RunStarted",
          requestId: "r",
          operation: "reply",
          messages: [Message.user("fail invalid_request")],
          startedAt: 0
        }], { summary: { next: "resume", status: "idle" } })
        yield* Layer.build(Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([model, logger])))
        yield* until(hasStatus("s", "error"), 100)
        yield* TestClock.adjust("10 minutes")
        assert.lengthOf(seen.givenUp, 1)
        assert.include(
          seen.lines,
          "session \"s\" is taken over: its run r was left by another process, and was resumed 0 times before"
        )
        const { session } = yield* Session.open("s")
        assert.deepStrictEqual(session.thread.messages.map(({ role }) => role), ["user"])
        assert.isAtMost((yield* recordsOf("s")).length, 2 + 2 * 6)
      }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
  }

  it.effect("N-39: a worker retries a run that always breaks with growing pauses, and then gives the run up", () =>
    Effect.gen(function*() {
      const { logger, options, seen } = makeSeen()
      yield* Session.submit("s", "go")
      let began = 0
      const broken = Adapter.layer({
        stream: () =>
          Stream.suspend(() => {
            began++
            return Stream.die(new Error("broken"))
          })
      })
      yield* Layer.build(Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([broken, logger])))
      yield* TestClock.adjust("1 second")
      assert.isAtMost(began, 2)
      yield* until(hasStatus("s", "error"), 100)
      yield* TestClock.adjust("10 minutes")
      assert.isAtMost(began, 5)
      assert.lengthOf(seen.givenUp, 1)
      assert.isAtMost((yield* recordsOf("s")).length, 2 + 2 * 6)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("a waiting run", () => {
  it.effect("N-10: a worker without the tool of an approved call keeps the run, and a worker with the tool completes the run", () =>
    Effect.gen(function*() {
      const { logger, options, seen } = makeSeen()
      const model = casting({ go: [[["a", "pay", {}]], "Done"] })
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const opened = yield* Session.open("s")
      const asking = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [pay] })).pipe(
        Effect.provide(model)
      )
      yield* Session.keep(asking, (session) => Session.approve(session, "a"))
      const scope = yield* Scope.make()
      yield* Layer.build(Worker.layer({ ...options, run: () => ({}) }).pipe(Layer.provide([model, logger]))).pipe(
        Scope.provide(scope)
      )
      yield* TestClock.adjust("10 minutes")
      assert.strictEqual(Session.next(yield* Session.open("s")), "continue")
      assert.isEmpty(seen.givenUp)
      assert.isAtMost(seen.lines.length, 15, "it waits longer each time")
      yield* Scope.close(scope, Exit.void)
      yield* Layer.build(
        Worker.layer({ ...options, run: () => ({ tools: [pay] }) }).pipe(Layer.provide([model, logger]))
      )
      yield* until(hasStatus("s", "completed"), 100)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("an unreadable session", () => {
  it.effect("N-39: a worker retries an unreadable session with growing pauses and warnings, and other sessions continue", () =>
    Effect.gen(function*() {
      const { logger, options, seen } = makeSeen()
      const store = yield* Session.Store
      let reads = 0
      const damaged = Layer.succeed(Session.Store, {
        ...store,
        read: (id: string, after?: number) => {
          if (id !== "s") return store.read(id, after)
          reads++
          return Stream.fail(new Journal.StoreError({ reason: "newer_version", operation: "read", id, version: 3 }))
        }
      })
      yield* Session.submit("s", "go")
      yield* Session.submit("t", "go")
      const model = Layer.provide(Worker.layer({ ...options, run: () => ({}) }), [refusing([]), logger, damaged])
      yield* Layer.build(model)
      yield* until(hasStatus("t", "completed"))
      yield* TestClock.adjust("10 minutes")
      assert.isAtMost(reads, 15)
      assert.strictEqual(seen.lines.length, reads)
      assert.deepStrictEqual(Session.next(yield* Session.open("s")), "reply")
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("a settled call", () => {
  it.effect("an approved call that is ready when its run ends begins at once, whatever was approved before", () =>
    Effect.gen(function*() {
      const { logger, options } = makeSeen()
      const begun: Array<number> = []
      const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Effect.sleep("3 seconds"), "slept") })
      const gate = Tool.make("gate", {
        parameters: {},
        approval: true,
        handler: () => Effect.map(Clock.currentTimeMillis, (now) => String(begun.push(now)))
      })
      const turn = (number: number) => [[`slow${number}`, "slow", {}], [`gate${number}`, "gate", {}]] as const
      const model = casting({ go: [[["first", "gate", {}]], turn(0), turn(1), "Done"] })
      yield* Session.submit("s", "go")
      yield* Layer.build(
        Worker.layer({ ...options, run: () => ({ tools: [slow, gate] as ReadonlyArray<Tool.Any> as [] }) }).pipe(
          Layer.provide([model, logger])
        )
      )
      const approve = (id: string) =>
        Effect.gen(function*() {
          const isOpen = (kept: Session.Kept) => kept.session.suspensions.some((open) => open.id === id)
          yield* until(Effect.map(Session.open("s"), isOpen))
          yield* Effect.retry(
            Effect.flatMap(Session.open("s"), (kept) => Session.keep(kept, (session) => Session.approve(session, id))),
            { times: 10 }
          )
        })
      yield* approve("first")
      yield* approve("gate0")
      yield* approve("gate1")
      yield* until(hasStatus("s", "completed"))
      const [, second = 0, third = 0] = begun
      assert.isBelow(third - second, 4000)
    }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory)))
})

describe("an overdue approval", () => {
  for (const [where, store] of Object.entries(stores)) {
    it.effect(`a worker expires an overdue approval and continues the run, ${where}`, () =>
      Effect.gen(function*() {
        const { logger, options, seen } = makeSeen()
        const model = casting({ go: [[["a", "pay", {}]], "Done"] })
        const pay = Tool.make("pay", {
          parameters: {},
          approval: true,
          answerWithin: "1 minute",
          handler: () => Effect.succeed("paid")
        })
        // The clock of a database is the real one.
        yield* TestClock.setTime(where === "in memory" ? 0 : Date.now() - 120_000)
        yield* Session.submit("s", "go")
        yield* Layer.build(
          Worker.layer({ ...options, run: () => ({ tools: [pay] }) }).pipe(Layer.provide([model, logger]))
        )
        yield* until(Effect.map(Session.open("s"), (kept) => Session.next(kept) === "wait"), 100)
        yield* until(hasStatus("s", "completed"), 1000)
        assert.deepStrictEqual(seen.ends.map(([, reason]) => reason).at(-1), "completed")
        const { session } = yield* Session.open("s")
        assert.include(JSON.stringify(session.thread.messages), "within the time there was")
      }).pipe(Effect.scoped, Effect.provide(store)))
  }
})
