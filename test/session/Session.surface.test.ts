/** What owners, servers and readers are written with: claims without a read, a fold, verdicts at once, and the drive. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Session } from "heddle"
import { Script } from "heddle/testing"
import { after, calling, defect, done, tools } from "../support/sessions.ts"
import { appendAll } from "../support/stores.ts"

const memory = Effect.provide(Session.Store.layerMemory)

const model = (...script: Parameters<typeof Script.layer>[0] & ReadonlyArray<unknown>) =>
  Effect.provide(Script.layer(script))

const entries = (id: string) => Effect.flatMap(Session.Store, (store) => Stream.runCollect(store.read(id)))

/** Keeps a session with these calls, which wait. */
const waiting = (id: string, ...calls: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const opened = yield* Session.open(id)
    return yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
  }).pipe(model(calling(...calls)))

const tagsBehind = (id: string, version: number) =>
  Effect.map(entries(id), (all) => all.slice(version).map(({ record }) => record._tag))

describe("Session.settle", () => {
  const verdicts: ReadonlyArray<Session.Verdict> = [
    { id: "p1", answer: { _tag: "Approved", arguments: { amount: 7 } }, command: "v1", by: "ada" },
    { id: "q1", answer: { _tag: "Value", value: 3 }, command: "v2" },
    { id: "p2", answer: { _tag: "Denied", reason: "too much" } }
  ]

  it.effect("all verdicts and the message are one append, with the same effect as single verdicts", () =>
    memory(Effect.gen(function*() {
      const kept = yield* waiting("s", "pay:p1", "ask:q1", "pay:p2")
      const store = yield* Session.Store
      let appends = 0
      const counting: Journal.Service = { ...store, append: (...append) => (appends++, store.append(...append)) }
      const settled = yield* Session.keep(
        kept,
        (session) => Session.settle(session, verdicts, { id: "m1", content: "And then?", by: "ada" })
      ).pipe(
        Effect.provideService(Session.Store, counting)
      )
      assert.strictEqual(appends, 1)
      assert.deepStrictEqual(yield* tagsBehind("s", kept.version), [
        "CallSettled",
        "CallSettled",
        "CallSettled",
        "MessageSubmitted"
      ])
      assert.deepStrictEqual(settled.submitted?.map(({ by, id }) => [id, by]), [["m1", "ada"]])
      const one = Session.settle(verdicts.slice(0, 1))
      const alone = yield* one(yield* Session.answer(yield* Session.deny(kept.session, "p2", "too much"), "q1", 3))
      assert.deepStrictEqual({ ...settled.session, answered: [] }, { ...alone, answered: [] })
    })))

  it.effect("a refused verdict leaves nothing of the other verdicts and of the message", () =>
    memory(Effect.gen(function*() {
      const kept = yield* waiting("s", "pay:p1", "ask:q1", "pay:p2")
      const wrong = [...verdicts, { id: "none", answer: { _tag: "Approved" } } as const]
      const error = yield* Effect.flip(
        Session.keep(kept, (session) => Session.settle(session, wrong, { content: "And then?" }))
      )
      assert.deepInclude(error, { _tag: "SessionError", reason: "unknown_tool_call_id" })
      assert.deepStrictEqual(yield* tagsBehind("s", kept.version), [])
    })))

  it.effect("repeated verdicts and a repeated message change nothing, and other content under their ids is refused", () =>
    memory(Effect.gen(function*() {
      const kept = yield* waiting("s", "pay:p1", "ask:q1", "pay:p2")
      const give = (verdicts: ReadonlyArray<Session.Verdict>, message: Session.Submission) =>
        Effect.flatMap(
          Session.open("s"),
          (kept) => Session.keep(kept, (session) => Session.settle(session, verdicts, message))
        )
      const message = { id: "m1", content: "And then?" }
      yield* give(verdicts.slice(0, 2), message)
      const { version } = yield* Session.open("s")
      assert.strictEqual(version, kept.version + 3)
      yield* give(verdicts.slice(0, 2), message)
      assert.strictEqual((yield* Session.open("s")).version, version)
      for (
        const [verdict, content] of [
          [{ ...verdicts[0]!, answer: { _tag: "Approved" } }, "And then?"],
          [verdicts[0]!, "Another"]
        ] as const
      ) {
        const error = yield* Effect.flip(give([verdict], { id: "m1", content }))
        assert.deepInclude(error, { _tag: "SessionError", reason: "id_taken" })
      }
      assert.strictEqual((yield* Session.open("s")).version, version)
    })))

  it.effect("Denied gives up a call of any kind, whose answer has the reason", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:q1", "pay:p1", "appr:a1")
      const denied = { _tag: "Denied", reason: "no time" } as const
      const settled = yield* Session.settle(session, session.suspensions.map(({ id }) => ({ id, answer: denied })))
      const answers = settled.thread.messages.filter(({ role }) => role === "tool")
      assert.strictEqual(answers.length, 3)
      for (const { content, isError } of answers) {
        assert.isTrue(isError)
        assert.include(String(content), "no time")
      }
    }))

  it.effect("an unknown option of a verdict is a defect, and so is a message to a session that is not kept", () =>
    Effect.gen(function*() {
      const session = yield* after("pay:p1")
      const odd = { id: "p1", answer: { _tag: "Approved" }, who: "ada" } as Session.Verdict
      assert.include(yield* defect(Session.settle(session, [odd])), "who")
      const said = yield* defect(Session.settle(session, [], { content: "Hi" }))
      assert.include(said, "only a kept session takes a message; call it in Session.keep")
    }))
})

describe("Journal.fold", () => {
  /** The session as a reader asks about it. */
  const shown = (kept: Session.Kept) => {
    const { state: _, ...data } = kept
    const { receipts, ...view } = Session.view(kept)
    return JSON.stringify([data, Session.next(kept), view, Array.from(receipts)])
  }

  /** The records of a run with a call that waits, its verdict, a message, and the runs behind them. */
  const records = Effect.gen(function*() {
    const kept = yield* waiting("s", "echo:c0", "pay:p1")
    yield* Session.keep(
      kept,
      (session) =>
        Session.settle(session, [{ id: "p1", answer: { _tag: "Approved" }, command: "v1" }], { content: "More" })
    )
    const claimed = yield* Session.claim("s")
    yield* model(calling("echo:c1"), done, done)(Session.drive(claimed, { run: () => ({ tools }) }))
    return yield* entries("s")
  }).pipe(Effect.scoped, memory)

  it.effect("a fold equals the loaded session at each version", () =>
    Effect.gen(function*() {
      const all = yield* records
      assert.isAbove(all.length, 15)
      const fold = Journal.fold("s")
      assert.deepStrictEqual([fold.id, fold.version, Session.next(fold.kept)], ["s", 0, "nothing"])
      for (const [index, entry] of all.entries()) {
        fold.apply(entry)
        const loaded = yield* Effect.gen(function*() {
          const store = yield* Session.Store
          yield* appendAll(store, "s", all.slice(0, index + 1).map(({ record }) => record))
          return yield* Session.open("s")
        }).pipe(memory)
        assert.strictEqual(shown(fold.kept), shown(loaded), `version ${entry.version}`)
      }
    }))

  it.effect("the sessions and copies that a fold has given out stay unchanged", () =>
    Effect.gen(function*() {
      const all = yield* records
      const fold = Journal.fold("s")
      const given = all.map((entry) => {
        fold.apply(entry)
        return { kept: fold.kept, copy: fold.copy(), advanced: fold.copy(), text: shown(fold.kept) }
      })
      for (const [index, { advanced, copy, kept, text }] of given.entries()) {
        for (const entry of all.slice(index + 1)) advanced.apply(entry)
        assert.strictEqual(shown(advanced.kept), given.at(-1)!.text)
        assert.strictEqual(shown(copy.kept), text)
        assert.strictEqual(shown(kept), text)
      }
      assert.strictEqual(shown(fold.kept), given.at(-1)!.text)
    }))
})

describe("claims without a read", () => {
  const submitted = (...ids: ReadonlyArray<string>) =>
    Effect.forEach(ids, (id) => Session.submit(id, "Hi"), { discard: true })

  const ownerOf = (id: string) =>
    Effect.flatMap(Session.Store, (store) => Effect.map(store.claimOf(id), (claim) => claim?.owner))

  it.effect("claimUnfinished takes at most its limit, and different owners get different sessions", () =>
    memory(Effect.gen(function*() {
      yield* submitted("a", "b", "c")
      yield* Session.open("idle")
      const first = yield* Journal.claimUnfinished(2, { owner: "one" })
      const second = yield* Journal.claimUnfinished(2, { owner: "two" })
      assert.deepStrictEqual([first.map(({ id }) => id), second.map(({ id }) => id)], [["a", "b"], ["c"]])
      assert.deepStrictEqual(yield* Effect.forEach(["a", "b", "c", "idle"], ownerOf), ["one", "one", "two", undefined])
    })))

  it.effect("Session.claim reads the session of a claim, and releases the claim once", () =>
    memory(Effect.gen(function*() {
      yield* submitted("a")
      const store = yield* Session.Store
      let requests = 0
      const counted: Journal.Service = {
        ...store,
        claim: (...claim) => (requests++, store.claim(...claim)),
        release: (...release) => (requests++, store.release(...release))
      }
      const [claim] = yield* Journal.claimUnfinished(1, { owner: "one" }).pipe(
        Effect.provideService(Session.Store, counted)
      )
      const kept = yield* Effect.scoped(Session.claim(claim!))
      assert.deepStrictEqual([kept.owner, kept.claim === claim, kept.submitted?.length], ["one", true, 1])
      assert.strictEqual(yield* ownerOf("a"), undefined)
      yield* claim!.release
      assert.strictEqual(requests, 1)
    })))

  it.effect("an unanswered release is awaited once", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      let requests = 0
      const silent: Journal.Service = { ...store, release: () => (requests++, Effect.never) }
      const claim = yield* Effect.provideService(Journal.claim("a"), Session.Store, silent)
      const scoped = Effect.scoped(Effect.ensuring(Session.claim(claim), claim.release))
      const leaving = yield* Effect.forkChild(scoped, { startImmediately: true })
      yield* TestClock.adjust("5 seconds")
      yield* Fiber.join(leaving)
      assert.strictEqual(requests, 1)
    })))

  it.effect("Journal.claim is refused while another owner holds the claim", () =>
    memory(Effect.gen(function*() {
      const claim = yield* Journal.claim("a", { owner: "one" })
      const error = yield* Effect.flip(Journal.claim("a", { owner: "two" }))
      assert.deepInclude(error, { _tag: "SessionClaimed", reason: "held", owner: "one" })
      yield* claim.release
      yield* (yield* Journal.claim("a", { owner: "two" })).release
    })))

  it.effect("a Journal.claim interrupted while the store answers leaves no claim", () =>
    memory(Effect.gen(function*() {
      const store = yield* Session.Store
      const isTaken = Deferred.makeUnsafe<void>()
      const answer = Deferred.makeUnsafe<void>()
      const slow: Journal.Service = {
        ...store,
        claim: (...claim) =>
          Effect.tap(
            store.claim(...claim),
            () => Effect.andThen(Deferred.succeed(isTaken, undefined), Deferred.await(answer))
          )
      }
      const claiming = yield* Effect.forkChild(Effect.provideService(Journal.claim("a"), Session.Store, slow))
      yield* Deferred.await(isTaken)
      assert.isDefined(yield* ownerOf("a"))
      claiming.interruptUnsafe()
      yield* Deferred.succeed(answer, undefined)
      yield* Fiber.await(claiming)
      assert.isUndefined(yield* ownerOf("a"))
    })))

  it.effect("an object that is not a claim is refused by each function that takes a claim", () =>
    memory(
      Effect.gen(function*() {
        const claimed = yield* Session.claim("a")
        const other = { ...claimed.claim } as Journal.HeldClaim
        const layer = Effect.provide(Effect.void, Session.layerRuns(other))
        const programs = [
          Effect.asVoid(Session.claim(other)),
          layer,
          Effect.asVoid(Session.reload({ ...claimed, claim: other })),
          Effect.asVoid(Session.keep({ ...claimed, claim: other }, Effect.succeed))
        ]
        for (const program of programs) {
          assert.include(yield* defect(program), "a claim is made by Journal.claim")
        }
      }).pipe(Effect.scoped)
    ))

  it.effect("an unknown option and an invalid limit of a claim are refused by name", () =>
    memory(Effect.gen(function*() {
      const odd = { terms: "1 second" } as Journal.ClaimOptions
      assert.include(yield* defect(Journal.claimUnfinished(1, odd)), "Journal.claimUnfinished")
      for (const limit of [0, 1.5, Number.NaN]) {
        const said = yield* defect(Journal.claimUnfinished(limit))
        assert.include(said, "Journal.claimUnfinished: limit must be a positive integer")
      }
      assert.include(yield* defect(Journal.claim("a", odd)), "terms")
    })))
})

describe("Session.drive and Session.reload", () => {
  const options = { run: () => ({ tools }) }

  it.effect("Session.drive runs what came since the session was read, and nothing once its owner is leaving", () =>
    memory(
      Effect.gen(function*() {
        const claimed = yield* Session.claim("s")
        yield* Session.submit("s", "Hi")
        const { session } = yield* model(done)(Session.drive(claimed, options))
        assert.deepStrictEqual([session.status, Session.outputText(session)], ["completed", "done"])
        yield* Session.submit("s", "Again")
        yield* claimed.claim.leave(0)
        const kept = yield* model(done)(Session.drive(claimed, options))
        assert.deepStrictEqual([Session.next(kept), kept.submitted?.length], ["reply", 1])
      }).pipe(Effect.scoped)
    ))

  it.effect("Session.drive continues a session whose last run failed only with retry", () =>
    memory(
      Effect.gen(function*() {
        const claimed = yield* Session.claim("s")
        yield* Session.submit("s", "Hi")
        const broken = [Script.text("It is "), Script.streamError("network_error")]
        const failed = yield* model(broken)(Session.drive(claimed, options))
        assert.strictEqual(failed.session.status, "error")
        const same = yield* model(done)(Session.drive(failed, options))
        assert.strictEqual(same.version, failed.version)
        const { session } = yield* model(done)(Session.drive(failed, { ...options, retry: true }))
        assert.deepStrictEqual([session.status, Session.outputText(session)], ["completed", "done"])
      }).pipe(Effect.scoped)
    ))

  it.effect("Session.reload keeps the claim, and has a removed session at version 0", () =>
    memory(
      Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.submit("s", "Hi")
        const again = yield* Session.reload(opened)
        assert.deepStrictEqual([again.version, again.submitted?.length, "claim" in again], [2, 1, false])
        const claimed = yield* Session.claim("s", { owner: "one" })
        const reloaded = yield* Session.reload(claimed)
        assert.deepStrictEqual([reloaded.owner, reloaded.claim === claimed.claim], ["one", true])
        yield* Session.delete("s")
        assert.strictEqual((yield* Session.reload(claimed)).version, 0)
      }).pipe(Effect.scoped)
    ))

  it.effect("an unknown option of Session.drive is a defect", () =>
    memory(
      Effect.gen(function*() {
        const claimed = yield* Session.claim("s")
        const odd = { ...options, maxFailure: 3 }
        assert.include(yield* model(done)(defect(Session.drive(claimed, odd))), "Session.drive")
      }).pipe(Effect.scoped)
    ))
})
