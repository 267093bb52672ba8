/** Who runs a session: claims, commands of other processes, and what becomes of an owner that was overtaken. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { hashOf } from "../../src/internal/session/records.ts"
import { agent, casting } from "../support/nests.ts"
import { calling, done, payer, throughJson, tools } from "../support/sessions.ts"
import { appendAll } from "../support/stores.ts"

const memory = Effect.provide(Session.Store.layerMemory)

const tagsOf = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.read(id))).map(({ record }) => record._tag)
  })

/** Waits until a condition holds. The time of the clock stands still meanwhile. */
const until = <E, R>(condition: Effect.Effect<boolean, E, R>): Effect.Effect<void, E, R> =>
  Effect.gen(function*() {
    for (let turn = 0; turn < 1000; turn++) {
      if (yield* condition) return
      yield* Effect.yieldNow
    }
    assert.fail("it does not come to that")
  })

const isUnfinished = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    return (yield* Stream.runCollect(store.unfinished)).includes(id)
  })

/** A store whose claims fail while `isAway`. */
const leaving = Effect.map(Session.Store, (store) => {
  const state = { isAway: false, hangs: false, renewals: 0 }
  const renew: typeof store.renew = (id, owner, term) =>
    Effect.suspend(() => {
      state.renewals++
      if (!state.isAway) return store.renew(id, owner, term)
      return state.hangs
        ? Effect.never
        : new Journal.StoreError({ reason: "unavailable", operation: "renew", id })
    })
  return { state, layer: Layer.succeed(Session.Store, { ...store, renew }) }
})

describe("Session.claim", () => {
  it.effect("one owner holds a claim until its scope closes, and renews the claim meanwhile", () =>
    memory(Effect.gen(function*() {
      const scope = yield* Scope.make()
      const claimed = yield* Scope.provide(Session.claim("s", { owner: "one", term: "3 seconds" }), scope)
      assert.deepStrictEqual([claimed.owner, claimed.version, claimed.session.id], ["one", 1, "s"])
      for (let second = 0; second < 10; second++) {
        yield* TestClock.adjust("1 second")
        const error = yield* Effect.flip(Effect.scoped(Session.claim("s", { owner: "other" })))
        assert.strictEqual(error._tag, "SessionClaimed")
        assert.deepInclude(error, { reason: "held", id: "s", owner: "one" })
        assert.include(error.message, `session "s" is claimed by "one" until 1970-01-01T00:00:`)
      }
      yield* Scope.close(scope, Exit.void)
      const next = yield* Effect.scoped(Session.claim("s", { owner: "other" }))
      assert.strictEqual(next.owner, "other")
    })))

  it.effect("each claim has another owner by default", () =>
    memory(
      Effect.gen(function*() {
        const { owner } = yield* Session.claim("a")
        assert.notStrictEqual((yield* Session.claim("b")).owner, owner)
        assert.strictEqual((yield* Effect.flip(Session.claim("a")))._tag, "SessionClaimed")
      }).pipe(Effect.scoped)
    ))

  it.effect("an invalid option of a claim is named", () =>
    memory(Effect.gen(function*() {
      for (const options of [{ term: 0 }, { poll: -1 }, { term: "Infinity" as const }]) {
        const exit = yield* Effect.exit(Effect.scoped(Session.claim("s", options)))
        assert.isTrue(Exit.isFailure(exit))
        assert.match(String(exit), /Session\.claim: (term|poll) must be a finite duration above zero/)
      }
    })))

  for (const hangs of [false, true]) {
    it.effect(`a claim that cannot be renewed is lost at its term and stops its operation: the store ${hangs ? "hangs" : "fails"}`, () =>
      memory(Effect.gen(function*() {
        const { layer, state } = yield* leaving
        const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
        const fiber = yield* Session.claim("s", { owner: "one", term: "3 seconds" }).pipe(
          Effect.flatMap((claimed) =>
            Session.keep(
              claimed,
              (session) =>
                Effect.provide(Session.reply(session, "go", { tools: [wait] }), Script.layer([calling("wait:c"), done]))
            )
          ),
          Effect.scoped,
          Effect.provide(layer),
          Effect.forkChild({ startImmediately: true })
        )
        yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
        yield* TestClock.adjust("1 second")
        assert.strictEqual(state.renewals, 1)
        Object.assign(state, { isAway: true, hangs })
        yield* TestClock.adjust("2900 millis")
        assert.isUndefined(fiber.pollUnsafe())
        yield* TestClock.adjust("200 millis")
        const error = yield* Effect.flip(Fiber.join(fiber))
        assert.deepInclude(error, { _tag: "SessionClaimed", reason: "lost", id: "s", owner: "one", until: 4000 })
        assert.notInclude(yield* tagsOf("s"), "RunEnded")
      })))
  }

  for (const way of ["claim", "claimUnfinished"] as const) {
    it.effect(`a claim's term begins with its request, however late the store answers: ${way}`, () =>
      memory(Effect.gen(function*() {
        const store = yield* Session.Store
        const late = Layer.succeed(
          Session.Store,
          {
            ...store,
            claim: (...given) => Effect.tap(store.claim(...given), () => Effect.sleep("2 seconds")),
            claimUnfinished: (...given) => Effect.tap(store.claimUnfinished(...given), () => Effect.sleep("2 seconds")),
            renew: () => Effect.never
          } satisfies Journal.Service
        )
        const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
        yield* Session.submit("s", "go")
        const options = { owner: "one", term: "3 seconds" } as const
        const taken = way === "claim"
          ? Journal.claim("s", options)
          : Effect.map(Journal.claimUnfinished(1, options), ([claim = assert.fail("no session is claimed")]) => claim)
        const fiber = yield* Effect.flatMap(taken, (claim) => Session.claim(claim)).pipe(
          Effect.flatMap((claimed) => Session.drive(claimed, { run: () => ({ tools: [wait] }) })),
          Effect.scoped,
          Effect.provide([late, Script.layer([calling("wait:c"), done])]),
          Effect.forkChild({ startImmediately: true })
        )
        yield* TestClock.adjust("2 seconds")
        yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
        yield* TestClock.adjust("900 millis")
        assert.isUndefined(fiber.pollUnsafe())
        yield* TestClock.adjust("5 seconds")
        const error = yield* Effect.flip(Fiber.join(fiber))
        assert.deepInclude(error, { _tag: "SessionClaimed", reason: "lost", id: "s", owner: "one", until: 3000 })
      })))
  }

  it.effect("a claim survives a store that is away for less than the claim's term", () =>
    memory(
      Effect.gen(function*() {
        const { layer, state } = yield* leaving
        const claimed = yield* Effect.provide(Session.claim("s", { term: "3 seconds" }), layer)
        state.isAway = true
        yield* TestClock.adjust("2500 millis")
        state.isAway = false
        yield* TestClock.adjust("10 seconds")
        const kept = yield* Session.keep(
          claimed,
          (session) => Effect.provide(Session.reply(session, "go"), Script.layer([done]))
        )
        assert.strictEqual(kept.session.status, "completed")
      }).pipe(Effect.scoped)
    ))

  it.effect("an operation fails when another owner takes its claim, and so does the next operation", () =>
    memory(
      Effect.gen(function*() {
        const store = yield* Session.Store
        const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
        const claimed = yield* Session.claim("s", { owner: "one", term: "3 seconds" })
        const fiber = yield* Session.keep(
          claimed,
          (session) =>
            Effect.provide(Session.reply(session, "go", { tools: [wait] }), Script.layer([calling("wait:c"), done]))
        )
          .pipe(
            Effect.forkChild({ startImmediately: true })
          )
        yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
        yield* store.release("s", "one")
        yield* store.claim("s", "two", 60_000)
        yield* TestClock.adjust("1 second")
        const error = yield* Effect.flip(Fiber.join(fiber))
        assert.deepInclude(error, { _tag: "SessionClaimed", reason: "held", owner: "two" })
        const again = yield* Effect.flip(Session.keep(claimed, (session) => Session.append(session, [])))
        assert.strictEqual(again._tag, "SessionClaimed")
      }).pipe(Effect.scoped)
    ))

  // The claim is released behind the append that was under way, which a scope that closes in another order would miss.
  for (const deep of [0, 1, 2]) {
    for (const way of ["keep", "keepStream"] as const) {
      it.effect(`O-48: a claim is kept for a call start whose append ends after the interruption: ${way}, ${deep} deep`, () =>
        memory(Effect.gen(function*() {
          const store = yield* Session.Store
          const appending = yield* Deferred.make<void>()
          const slow: typeof store.append = (id, expected, records, options) =>
            Effect.suspend(() => {
              const append = store.append(id, expected, records, options)
              const isInner = id.split("/").length === deep + 1 && records.some(({ _tag }) => _tag === "CallStarted")
              return isInner ? Effect.andThen(Deferred.succeed(appending, undefined), Effect.delay(append, 5)) : append
            })
          const names = ["go", ...Array.from({ length: deep }, (_, depth) => `sub${depth}`)]
          const handler = () => Effect.die("the handler starts behind the interruption")
          const tools = names.slice(1).reduceRight<ReadonlyArray<Tool.Any>>(
            (tools, name) => [agent(name, tools)],
            [Tool.make("charge", { parameters: {}, handler })]
          )
          const model = casting(
            Object.fromEntries(names.map((name, depth) => [name, [[["a", names[depth + 1] ?? "charge", {}]], "Done"]]))
          )
          const operation = (session: Session.Session) => Session.streamReply(session, "go", { tools: tools as [] })
          const owner = yield* Effect.forkChild(
            Effect.scoped(Effect.flatMap(Session.claim("s"), (claimed) =>
              way === "keep"
                ? Session.keep(claimed, (session) => Stream.runDrain(operation(session)))
                : Stream.runDrain(Session.keepStream(claimed, operation)))).pipe(
                Effect.provideService(Session.Store, { ...store, append: slow }),
                Effect.provide(model)
              )
          )
          yield* Deferred.await(appending)
          const left = yield* Effect.forkChild(Fiber.interrupt(owner))
          yield* TestClock.adjust("5 millis")
          yield* Fiber.join(left)
          const ids = Array.from(yield* Stream.runCollect(store.list()), ({ id }) => id)
          assert.strictEqual((yield* tagsOf(ids.sort().at(-1)!)).at(-1), "CallStarted")
          assert.isDefined(yield* store.claimOf("s"))
        })))
    }
  }
})

describe("commands of other processes", () => {
  /** A run that waits in a handler until `go`, and the receipt of what another process does meanwhile. */
  const during = <A, E>(
    other: Effect.Effect<A, E, Session.Store>,
    options: { readonly claimed?: boolean } = {}
  ) =>
    Effect.gen(function*() {
      const go = yield* Deferred.make<void>()
      const wait = Tool.make("wait", { parameters: {}, handler: () => Deferred.await(go) })
      const claimed = options.claimed === true ? yield* Session.claim("s", { owner: "one" }) : yield* Session.open("s")
      const fiber = yield* Session.keep(claimed, (session) =>
        Effect.provide(
          Session.reply(session, "go", { tools: [wait], requestId: "r" }),
          Script.layer([calling("wait:c"), done])
        )).pipe(Effect.forkChild({ startImmediately: true }))
      yield* until(Effect.map(tagsOf("s"), (tags) => tags.includes("CallStarted")))
      return { fiber, go, receipt: yield* other }
    })

  it.effect("a run takes in commands that come between its records, and continues", () =>
    memory(
      Effect.gen(function*() {
        const { fiber, go } = yield* during(Session.submit("s", "and then?"))
        yield* Deferred.succeed(go, undefined)
        const kept = yield* Fiber.join(fiber)
        assert.strictEqual(kept.session.status, "completed")
        assert.deepStrictEqual(kept.submitted?.map(({ message }) => message.content), ["and then?"])
        const tags = yield* tagsOf("s")
        assert.isAbove(tags.indexOf("CallEnded"), tags.indexOf("MessageSubmitted"))
        const loaded = (yield* Session.load("s"))!
        assert.deepStrictEqual(loaded.session, throughJson(kept.session))
        assert.deepStrictEqual(loaded.submitted, kept.submitted)
        assert.strictEqual(loaded.version, kept.version)
        assert.isTrue(yield* isUnfinished("s"), "a message waits")
      }).pipe(Effect.scoped)
    ))

  it.effect("a stop takes effect at the run's next record, and within one poll under a claim", () =>
    Effect.forEach([false, true], (claimed) =>
      memory(
        Effect.gen(function*() {
          const { fiber, go, receipt } = yield* during(Session.stop("s"), { claimed })
          assert.strictEqual(receipt.accepted, 5)
          if (claimed) {
            yield* TestClock.adjust("199 millis")
            assert.isUndefined(fiber.pollUnsafe())
            yield* TestClock.adjust("1 millis")
          } else yield* Deferred.succeed(go, undefined)
          const { session, value: { result } } = yield* Fiber.join(fiber)
          assert.deepStrictEqual(result.outcome, { _tag: "Cancelled", reason: "stop" })
          assert.strictEqual(session.status, "stopped")
          const report = yield* receipt.ended
          const calls = claimed ? { stopped: ["c"], ended: [] } : { stopped: [], ended: ["c"] }
          assert.deepStrictEqual(report, { ...calls, refused: [], unknown: [] })
          const loaded = (yield* Session.load("s"))!
          assert.strictEqual(loaded.session.status, "stopped")
          assert.notProperty(loaded, "stop")
          // The next run is another one.
          const next = yield* Session.keep(
            loaded,
            (session) => Effect.provide(Session.reply(session, "and now?"), Script.layer([done]))
          )
          assert.strictEqual(next.session.status, "completed")
        }).pipe(Effect.scoped)
      )))

  it.effect("two stops of one run are one, and a session without a run has nothing to stop", () =>
    memory(
      Effect.gen(function*() {
        const { fiber, receipt } = yield* during(Effect.all([Session.stop("s"), Session.stop("s")]), { claimed: true })
        assert.strictEqual(receipt[0].accepted, receipt[1].accepted)
        yield* TestClock.adjust("200 millis")
        yield* Fiber.join(fiber)
        for (const { ended } of receipt) assert.deepStrictEqual((yield* ended).stopped, ["c"])
        const late = yield* Session.stop("s")
        assert.deepStrictEqual(yield* late.ended, { stopped: [], ended: [], refused: [], unknown: [] })
        assert.strictEqual((yield* tagsOf("s")).filter((tag) => tag === "StopRequested").length, 1)
      }).pipe(Effect.scoped)
    ))

  it.effect("the report of a stop names a handler that refuses the stop", () =>
    memory(
      Effect.gen(function*() {
        const deaf = Tool.make("deaf", { parameters: {}, handler: () => Effect.uninterruptible(Effect.never) })
        const claimed = yield* Session.claim("s")
        const script = Script.layer([calling("deaf:c", "echo:e"), done])
        const fiber = yield* Session.keep(claimed, (session) =>
          Effect.provide(Session.reply(session, "go", { tools: [deaf, ...tools], grace: 100 }), script)).pipe(
            Effect.forkChild({ startImmediately: true })
          )
        yield* until(Effect.map(tagsOf("s"), (tags) =>
          tags.includes("CallEnded")))
        const { ended } = yield* Session.stop("s")
        yield* TestClock.adjust("300 millis")
        yield* Fiber.join(fiber)
        assert.deepStrictEqual(yield* ended, { stopped: [], ended: ["e"], refused: ["c"], unknown: [] })
      }).pipe(Effect.scoped)
    ))

  it.effect("a record of another run is a conflict, which a claimed operation finds by itself", () =>
    memory(
      Effect.gen(function*() {
        const store = yield* Session.Store
        const other = Effect.gen(function*() {
          const version = yield* store.version("s")
          yield* store.append("s", version, [
            { _tag: "MessageSubmitted", id: "m", message: Message.user("x") },
            { _tag: "RunStarted", requestId: "r", operation: "reply", startedAt: 0, messages: [] }
          ])
        })
        const { fiber } = yield* during(other, { claimed: true })
        yield* TestClock.adjust("200 millis")
        const error = yield* Effect.flip(Fiber.join(fiber))
        assert.deepInclude(error, { _tag: "SessionConflict", expected: 4, actual: 6 })
        assert.strictEqual((yield* tagsOf("s")).length, 6, "it has written nothing after it")
      }).pipe(Effect.scoped)
    ))

  it.effect("a poll that fails is repeated", () =>
    memory(
      Effect.gen(function*() {
        const store = yield* Session.Store
        let looks = 0
        const failing = Layer.succeed(Session.Store, {
          ...store,
          version: (id: string) =>
            Effect.suspend(() =>
              ++looks < 4
                ? new Journal.StoreError({ reason: "unavailable", operation: "version", id })
                : store.version(id)
            )
        })
        const { fiber } = yield* Effect.provide(
          during(Effect.provide(Session.stop("s"), Session.Store.layerMemory)),
          failing
        )
        yield* Fiber.interrupt(fiber)
        const run = yield* Effect.forkChild(
          Effect.provide(
            Effect.flatMap(Session.claim("t"), (claimed) =>
              Session.keep(claimed, (session) =>
                Effect.provide(
                  Session.reply(session, "go", {
                    tools: [Tool.make("wait", { parameters: {}, handler: () => Effect.never })]
                  }),
                  Script.layer([calling("wait:c"), done])
                ))),
            failing
          ),
          { startImmediately: true }
        )
        yield* until(Effect.map(tagsOf("t"), (tags) => tags.includes("CallStarted")))
        yield* Session.stop("t")
        looks = 0
        yield* TestClock.adjust("600 millis")
        assert.isUndefined(run.pollUnsafe())
        yield* TestClock.adjust("200 millis")
        assert.strictEqual((yield* Fiber.join(run)).session.status, "stopped")
      }).pipe(Effect.scoped)
    ))

  it.effect("an answer between a step and the end of its run counts, and the session can continue", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let hasAnswered = false
      const answering = Layer.succeed(Session.Store, {
        ...store,
        // Another process answers as soon as it reads the question, before the run has ended.
        append: (...[id, expected, records, options]: Parameters<typeof store.append>) =>
          Effect.gen(function*() {
            if (!hasAnswered && records.some(({ _tag }) => _tag === "RunEnded")) {
              hasAnswered = true
              const kept = (yield* Session.load(id))!
              yield* Session.keep(kept, (session) => Session.answer(session, "q", "Oslo"))
            }
            return yield* store.append(id, expected, records, options)
          }).pipe(
            Effect.provideService(Session.Store, store),
            Effect.catchTag("SessionError", Effect.die),
            Effect.catchTag("SessionClaimed", Effect.die)
          )
      })
      const opened = yield* Session.open("s")
      const kept = yield* Session.keep(
        opened,
        (session) => Effect.provide(Session.reply(session, "go", { tools }), Script.layer([calling("ask:q")]))
      ).pipe(
        Effect.provide(answering)
      )
      assert.deepStrictEqual(kept.session.suspensions, [])
      assert.deepStrictEqual(kept.session.answered.map(({ id, verdict }) => [id, verdict]), [["q", "answered"]])
      const loaded = (yield* Session.load("s"))!
      assert.deepStrictEqual(loaded.session, throughJson(kept.session))
      assert.isTrue(yield* isUnfinished("s"))
      const next = yield* Session.keep(
        kept,
        (session) => Effect.provide(Session.continue(session, null), Script.layer([done]))
      )
      assert.strictEqual(next.session.status, "completed")
      assert.isFalse(yield* isUnfinished("s"))
    })))

  it.effect("D-08: one of two concurrent answers counts, and the other answer conflicts", () =>
    memory(Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const asked = yield* Session.keep(
        opened,
        (session) => Effect.provide(Session.reply(session, "go", { tools }), Script.layer([calling("ask:q")]))
      )
      const answered = (value: string) => Session.keep(asked, (session) => Session.answer(session, "q", value))
      const exits = yield* Effect.all([Effect.exit(answered("Oslo")), Effect.exit(answered("Rome"))], {
        concurrency: "unbounded"
      })
      assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
      const lost = yield* Effect.flip(exits.find(Exit.isFailure)!)
      assert.strictEqual(lost._tag, "SessionConflict")
      assert.strictEqual((yield* tagsOf("s")).filter((tag) => tag === "CallSettled").length, 1)
      // The process that lost loads it again, and finds the question answered.
      const again = Effect.flatMap(
        Session.load("s"),
        (kept) => Session.keep(kept!, (session) => Session.answer(session, "q", "Rome"))
      )
      assert.deepInclude(yield* Effect.flip(again), { _tag: "SessionError", reason: "already_answered" })
    })))

  it.effect("D-13: an answer gives the session work left once nothing else waits", () =>
    memory(Effect.gen(function*() {
      const { pay } = payer()
      const opened = yield* Session.open("s")
      const given = [...tools.slice(0, -1), pay]
      const asked = yield* Session.keep(
        opened,
        (session) =>
          Effect.provide(Session.reply(session, "go", { tools: given }), Script.layer([calling("ask:q", "pay:p")]))
      )
      assert.isFalse(yield* isUnfinished("s"))
      const one = yield* Session.keep(asked, (session) => Session.answer(session, "q", "Oslo"))
      assert.isFalse(yield* isUnfinished("s"), "an approval waits")
      yield* Session.keep(one, (session) => Session.approve(session, "p"))
      assert.isTrue(yield* isUnfinished("s"))
    })))

  it.effect("a waiting message is found also where an operation continues with another session", () =>
    memory(Effect.gen(function*() {
      yield* Session.submit("s", "Hi")
      const kept = (yield* Session.load("s"))!
      const other = Session.make({ id: "s", context: { from: "elsewhere" } })
      yield* Session.keep(kept, () => Session.append(other, [Message.user("Before")]))
      assert.isTrue(yield* isUnfinished("s"))
      assert.lengthOf((yield* Session.load("s"))?.submitted ?? [], 1)
    })))

  it.effect("a message that no run could take waits for the next run", () =>
    memory(Effect.gen(function*() {
      const { id } = yield* Session.submit("s", "Hi")
      assert.deepStrictEqual(yield* tagsOf("s"), ["Opened", "MessageSubmitted"])
      const store = yield* Session.Store
      const takes = { id, hash: hashOf("Hi") }
      const messages = [Message.user("Hi")]
      yield* appendAll(store, "s", [
        { _tag: "RunStarted", requestId: "r", operation: "reply", startedAt: 0, takes, messages }
      ])
      const taken = (yield* Session.load("s"))!
      assert.notProperty(taken, "submitted")
      assert.deepInclude(Session.receipt(taken, id), { became: "taken", requestId: "r" })
      yield* appendAll(store, "s", [{ _tag: "RunEnded", requestId: "r" }])
      const kept = (yield* Session.load("s"))!
      assert.deepInclude(Session.receipt(kept, id), { became: "queued" })
      assert.deepStrictEqual(kept.submitted?.map((submitted) => submitted.id), [id])
      assert.deepStrictEqual(kept.session.thread.messages, [])
      assert.isTrue(yield* isUnfinished("s"))
    })))
})
