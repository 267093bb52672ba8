/**
 * A run that is resumed, or continued, by a program that has changed: its table of calls decides, and not the tools, the
 * mode or the policy of today.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Chat, type Journal, Message, Policy, Session, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { calling, done } from "../support/sessions.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const ran: Array<string> = []

const pay = Tool.make("pay", {
  parameters: {},
  handler: (_, { id }) => Effect.sync(() => (ran.push(id), "paid"))
})
const slow = Tool.make("slow", { parameters: {}, handler: () => Effect.as(Effect.sleep(50), "slept") })
const byHand = Tool.make("byHand", { parameters: {}, manual: true })
const payByHand = Tool.make("pay", { parameters: {}, manual: true })

type Options = Chat.Options<any, any, any>

/** The records of a run of these tools, up to the first for which `isLast` holds. */
const cutRun = (
  reply: ReadonlyArray<string>,
  options: Options,
  isLast: (record: Journal.Record) => boolean
) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const fiber = yield* Effect.forkChild(
      Session.keep(opened, (session) => Session.reply(session, "go", { requestId: "r", ...options }))
    )
    yield* TestClock.adjust(1_000)
    yield* Fiber.await(fiber)
    const records = yield* journalOf("s")
    const end = records.findIndex(isLast)
    assert.isAtLeast(end, 0)
    return records.slice(0, end + 1)
  }).pipe(Effect.provide([Script.layer([calling(...reply), done, done]), Session.Store.layerMemory]))

const ended = (id: string) => (record: Journal.Record) =>
  record._tag === "CallEnded" && record.message.toolCallId === id

const started = (id: string) => (record: Journal.Record) => record._tag === "CallStarted" && record.toolCallId === id

/** Resumes what the records left, and replies once more. */
const resumed = (records: ReadonlyArray<Journal.Record>, options: Options) =>
  Effect.gen(function*() {
    ran.length = 0
    const cut = yield* Session.load("s")
    const fiber = yield* Effect.forkChild(Effect.result(Session.resume(cut!, { ...options, takeOver: true })))
    yield* TestClock.adjust(1_000)
    const result = yield* Fiber.join(fiber)
    const after = (yield* Session.load("s"))!
    const { messages } = after.session.thread
    const answers = Object.fromEntries(
      messages.flatMap((message) => message.role === "tool" ? [[message.toolCallId, Message.text(message)]] : [])
    )
    const pending = after.session.suspensions.map(({ id }) => id)
    assert.isEmpty(check.thread(after.session.thread, { pending }))
    const next = yield* Effect.exit(Session.keep(after, (session) =>
      Session.reply(session.status === "error" ? Session.recover(session) : session, "and?", {
        tools: [pay, slow, byHand],
        pending: "deny"
      })))
    assert.isTrue(Exit.isSuccess(next), "the session goes on")
    return { result, answers, suspensions: after.session.suspensions, ran: [...ran] }
  }).pipe(Effect.provide([Script.layer([done, done]), prefixed("s", records)]))

describe("a run resumed by a changed program", () => {
  it.effect("O-44: a manual call answered by a stop is not handed out again", () =>
    Effect.gen(function*() {
      const tools = [slow, byHand]
      const records = yield* cutRun(["slow:a", "byHand:b"], { tools, grace: 100, cancel: Effect.sleep(10) }, ended("b"))
      const { answers, suspensions } = yield* resumed(records, { tools })
      assert.isEmpty(suspensions)
      assert.match(answers["b"] ?? "", /not run/)
    }))

  it.effect("D-03: a stopped run that was killed before its end was recorded ends as cancelled", () =>
    Effect.gen(function*() {
      const tools = [slow]
      const records = yield* cutRun(
        ["slow:a"],
        { tools, grace: 100, cancel: Effect.sleep(10) },
        ({ _tag }) => _tag === "StepCompleted"
      )
      const { result } = yield* resumed(records, { tools })
      assert.strictEqual(result._tag === "Success" && result.success.value.result.outcome._tag, "Cancelled")
    }))

  it.effect("O-45: a call's answer stays, and a started call is unknown, where their tool has become manual", () =>
    Effect.gen(function*() {
      const answered = yield* cutRun(["pay:a"], { tools: [pay] }, ended("a"))
      const kept = yield* resumed(answered, { tools: [payByHand] })
      assert.deepStrictEqual([kept.answers["a"], kept.suspensions, kept.ran], ["paid", [], []])

      const begun = yield* cutRun(["pay:a"], { tools: [pay] }, started("a"))
      const unknown = yield* resumed(begun, { tools: [payByHand] })
      assert.match(unknown.answers["a"] ?? "", /unknown_effect/)
      assert.isEmpty(unknown.suspensions)
    }))

  it.effect("O-71: under mode manual an answered call stays, a started call is unknown, and only the other calls are handed over", () =>
    Effect.gen(function*() {
      const records = yield* cutRun(
        ["pay:a", "slow:b", "byHand:c"],
        { tools: [pay, slow, byHand], maxConcurrency: 8 },
        ended("a")
      )
      const { answers, suspensions } = yield* resumed(records, { tools: [pay, slow, byHand], mode: "manual" })
      assert.strictEqual(answers["a"], "paid")
      assert.match(answers["b"] ?? "", /unknown_effect/)
      assert.deepStrictEqual(suspensions.map(({ id, kind }) => [id, kind]), [["c", "manual"]])
    }))

  it.effect("O-71: under mode manual a turn whose calls are all answered continues with the model", () =>
    Effect.gen(function*() {
      const records = yield* cutRun(["pay:a"], { tools: [pay] }, ended("a"))
      const { result } = yield* resumed(records, { tools: [pay], mode: "manual" })
      assert.isTrue(result._tag === "Success" && result.success.value.result.outcome._tag === "Completed")
    }))

  it.effect("O-72: a policy that fails turns decides only about calls that have not started", () =>
    Effect.gen(function*() {
      const policy: Policy.Policy = { ...Policy.standard, unknownTool: "failTurn", start: "afterTurn" }
      const answered = yield* cutRun(["pay:a"], { tools: [pay] }, ended("a"))
      const kept = yield* resumed(answered, { tools: [slow], policy })
      assert.strictEqual(kept.answers["a"], "paid")

      // The turn fails for the other call, and keeps the answer and what had started.
      const records = yield* cutRun(["pay:a", "slow:b", "byHand:c"], { tools: [pay, slow, byHand] }, ended("a"))
      const { answers, result } = yield* resumed(records, { tools: [slow], policy })
      assert.strictEqual(answers["a"], "paid")
      assert.match(answers["b"] ?? "", /unknown_effect/)
      assert.match(answers["c"] ?? "", /not run/)
      assert.isTrue(result._tag === "Failure" && `${result.failure}`.includes("byHand"))
    }))

  it.effect("O-73: a started call is never answered as not run, also where a stop meets the repeated reply", () =>
    Effect.gen(function*() {
      const records = yield* cutRun(["pay:a"], { tools: [pay] }, started("a"))
      const { answers } = yield* resumed(records, {
        tools: [pay],
        cancel: Effect.sleep(10),
        onEvent: () => Effect.sleep(20)
      })
      assert.match(answers["a"] ?? "", /unknown_effect/)
    }))

  for (const options of [{ tools: [payByHand] }, { tools: [pay], mode: "manual" }] as ReadonlyArray<Options>) {
    it.effect(`O-74: an approved call is handed over with its approved arguments (${options.mode ?? "a manual tool"})`, () =>
      Effect.gen(function*() {
        const guarded = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
        const opened = yield* Session.open("s")
        const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [guarded] }))
        const approved = yield* Session.keep(
          waiting,
          (session) => Session.approve(session, "a", { arguments: { amount: 7 } })
        )
        const after = yield* Session.keep(approved, (session) => Session.continue(session, null, options))
        const [suspension] = after.session.suspensions
        assert.deepStrictEqual([suspension?.kind, suspension?.toolCall.arguments], ["manual", { amount: 7 }])
        const { outcome } = after.value.result
        assert.strictEqual(outcome._tag, "ManualToolCalls")
        assert.deepStrictEqual((yield* Session.load("s"))?.session, after.session)

        const answered = yield* Session.keep(after, (session) => Session.answer(session, "a", "paid by hand"))
        const done = yield* Session.keep(answered, (session) => Session.continue(session, null, options))
        assert.strictEqual(done.value.result.outcome._tag, "Completed")
        assert.strictEqual(Message.text(done.session.thread.messages[2]!), "paid by hand")
      }).pipe(Effect.provide(Layer.merge(Script.layer([calling("pay:a"), done]), Session.Store.layerMemory))))
  }

  it.effect("D-03: an approved call's context update is known after a whole step of the resumed run", () =>
    Effect.gen(function*() {
      const guarded = Tool.make("pay", {
        parameters: {},
        approval: true,
        handler: (_, { updateContext }) => Effect.as(updateContext({ paid: true }), "paid")
      })
      const seen: Array<unknown> = []
      const look = Tool.make("look", {
        parameters: {},
        handler: (_, { context }) => Effect.sync(() => void seen.push(context["paid"]))
      })
      const tools = [guarded, look]
      const records = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
        const approved = yield* Session.keep(waiting, (session) => Session.approve(session, "a"))
        yield* Session.keep(approved, (session) => Session.continue(session, null, { tools }))
        const records = yield* journalOf("s")
        const continued = records.findLastIndex(({ _tag }) => _tag === "RunStarted")
        return records.slice(
          0,
          records.findIndex(({ _tag }, index) => index > continued && _tag === "StepCompleted") + 1
        )
      }).pipe(
        Effect.provide([
          Script.layer([calling("pay:a"), calling("look:b"), calling("look:c"), done]),
          Session.Store.layerMemory
        ])
      )
      assert.deepStrictEqual(seen.splice(0), [true, true])
      yield* Effect.gen(function*() {
        yield* Session.resume((yield* Session.load("s"))!, { tools, takeOver: true })
      }).pipe(Effect.provide([Script.layer([calling("look:c"), done]), prefixed("s", records)]))
      assert.deepStrictEqual(seen, [true])
    }))

  it.effect("O-74: an approved call that is handed over and another call that ends the run are both answered, also by the reducer", () =>
    Effect.gen(function*() {
      const guarded = Tool.make("pay", { parameters: {}, approval: true, handler: () => Effect.succeed("paid") })
      const stop = Tool.make("stop", {
        parameters: {},
        approval: true,
        handler: () => Effect.succeed(Tool.halt("enough", "stopped"))
      })
      const waiting = yield* Session.reply(Session.make(), "go", { tools: [guarded, stop] })
      const approved = yield* Effect.flatMap(
        Session.approve(waiting.session, "a"),
        (session) => Session.approve(session, "b")
      )
      const events = Array.from(
        yield* Stream.runCollect(Session.streamContinue(approved, null, { tools: [payByHand, stop] }))
      )
      const folded = Session.finalize(
        events.reduce((reducer, event) => Session.applyEvent(reducer, event), Session.reducer(approved, "chat"))
      )
      const { outcome, steps } = folded.result
      assert.deepStrictEqual([outcome._tag, steps.length], ["Halted", 0])
      assert.isFalse(events.some(({ _tag }) => _tag === "StepCompleted"))
      assert.isEmpty(folded.session.suspensions)
      const answers = folded.session.thread.messages.filter(({ role }) => role === "tool").map(Message.text)
      assert.match(answers[0] ?? "", /not run: another call of the turn ended the run/)
      assert.strictEqual(answers[1], "stopped")
      const awaited = yield* Session.continue(approved, null, { tools: [payByHand, stop] })
      assert.deepStrictEqual(awaited.session, folded.session)
    }).pipe(Effect.provide(Script.layer([calling("pay:a", "stop:b")]))))

  it.effect("D-12: a stopped run ends its open turn although its tools are gone, and each call ends by its recorded state", () =>
    Effect.gen(function*() {
      const guarded = Tool.make("guarded", { parameters: {}, approval: true, handler: () => Effect.succeed(1) })
      const later = Tool.make("later", { parameters: {}, concurrency: "exclusive", handler: () => Effect.succeed(1) })
      const tools = [pay, guarded, slow, later]
      const records = yield* cutRun(["pay:a", "slow:b", "guarded:c", "later:d"], { tools }, ended("a"))
      const waiting = yield* cutRun(
        ["pay:a", "slow:b", "guarded:c", "later:d"],
        { tools },
        ({ _tag }) => _tag === "CallWaits"
      )
      const longer = records.length > waiting.length ? records : waiting
      const stop: Journal.Record = { _tag: "StopRequested", id: "x", requestId: "r" }
      const { answers, result, suspensions } = yield* resumed([...longer, stop], { tools: [] })
      assert.strictEqual(result._tag === "Success" && result.success.value.result.outcome._tag, "Cancelled")
      assert.isEmpty(suspensions)
      assert.strictEqual(answers["a"], "paid")
      assert.match(answers["b"] ?? "", /unknown_effect/)
      assert.match(answers["c"] ?? "", /not run: the run was stopped/)
      assert.match(answers["d"] ?? "", /not run: the run was stopped before it was resumed/)
    }))
})

describe("an operation that cannot ask the model", () => {
  const faults: Readonly<Record<string, readonly [options: Options, reason: string]>> = {
    "no adapter": [{ tools: [pay] }, "missing_adapter"],
    "two tools of one name": [{ tools: [pay, payByHand] }, "invalid_request"],
    "a temperature of another type": [{ tools: [pay], temperature: "hot" as never }, "invalid_request"],
    "an unknown tool choice": [{ tools: [pay], toolChoice: { name: "other" } }, "invalid_request"]
  }
  for (const [fault, [options, reason]] of Object.entries(faults)) {
    it.effect(`an operation with ${fault} writes nothing to the journal and leaves approved calls unchanged`, () =>
      Effect.gen(function*() {
        ran.length = 0
        const guarded = Tool.make("pay", {
          parameters: {},
          approval: true,
          handler: (_, { id }) => Effect.sync(() => ran.push(id))
        })
        const withModel = Effect.provide(Script.layer([calling("pay:a"), done]))
        const opened = yield* Session.open("s")
        const waiting = yield* withModel(
          Session.keep(opened, (session) => Session.reply(session, "go", { tools: [guarded] }))
        )
        const approved = yield* Session.keep(waiting, (session) => Session.approve(session, "a"))
        const before = yield* journalOf("s")
        const continued = Session.keep(approved, (session) => Session.continue(session, null, options))
        const error = yield* Effect.flip(
          fault === "no adapter" ? continued as Effect.Effect<never, Session.OperationError> : withModel(continued)
        )
        assert.deepInclude(error, { reason })
        assert.deepStrictEqual(yield* journalOf("s"), before)
        assert.isEmpty(ran)
      }).pipe(Effect.provide(Session.Store.layerMemory)) as Effect.Effect<void, unknown>)
  }
})
