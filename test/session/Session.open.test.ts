/**
 * The open calls of a session: where their answers stand, what a continuation says of them, and what becomes of a
 * question whose run or journal ends anywhere.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Collector, Event, Message, Policy, Session, Thread, Tool } from "heddle"
import { check, everyStep, Script } from "heddle/testing"
import { told, transcript } from "../support/scenarios.ts"
import { after, calling, done, payer, throughJson } from "../support/sessions.ts"

describe("M-28: the answers of a turn are in call order", () => {
  it.effect("a denial that arrives before the first call has run is placed after the first call's answer", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const waiting = yield* after("pay:p1", "pay:p2")
      const denied = yield* Session.deny(waiting, "p2", "no")
      const approved = yield* Session.approve(denied, "p1")
      const model = yield* Script.make([done])
      const { session } = yield* Effect.provide(Session.reply(approved, "and?", { tools: [pay] }), model.layer)
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.messages.slice(2).map((message) => message.toolCallId), ["p1", "p2", undefined])
      assert.strictEqual(told(session.thread.messages[2]!), "TM(p1,paid)")
      assert.isEmpty(check.thread(session.thread))
    }))

  it.effect("a result, a default and an answer are placed in call order, whatever was answered before", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const waiting = yield* after("appr:m1", "pay:p1", "ask:q", "echo:e", "appr:m2", "many:t")
      yield* TestClock.adjust("1 minute")
      const settled = yield* Effect.succeed(waiting).pipe(
        Effect.flatMap((session) => Session.answer(session, "m2", "second")),
        Effect.flatMap((session) => Session.approve(session, "p1")),
        Effect.flatMap(Session.expire),
        Effect.flatMap((session) => Session.answer(session, "q", "Oslo")),
        Effect.flatMap((session) => Session.answer(session, "m1", "first"))
      )
      assert.deepStrictEqual(transcript(settled.thread).slice(2), [
        "TM(m1,first)",
        "TM(q,Oslo)",
        "TM(e,{})",
        "TM(m2,second)",
        "TM(t,1)"
      ])
      const { session } = yield* Effect.provide(
        Session.continue(settled, null, { tools: [pay] }),
        Script.layer([done])
      )
      assert.deepStrictEqual(transcript(session.thread).slice(2, 5), ["TM(m1,first)", "TM(p1,paid)", "TM(q,Oslo)"])
      assert.isEmpty(check.thread(session.thread))
    }))

  it.effect("a call with an id of an earlier turn is answered in its own turn", () =>
    Effect.gen(function*() {
      const call = Message.toolCall("c0", "appr")
      const turn = (answer: ReadonlyArray<Message.Message>) => [Message.assistant("", [call]), ...answer]
      const thread = Thread.fromMessages([Message.user("go"), ...turn([Message.tool("c0", "old")]), ...turn([])])
      const suspension = { id: "c0", kind: "manual", toolCall: call } as const
      const session: Session.Session = {
        ...Session.make({ thread }),
        status: "awaiting_tools",
        suspensions: [suspension],
        pendingToolCalls: [call]
      }
      const answered = yield* Session.answer(session, "c0", "new")
      assert.deepStrictEqual(transcript(answered.thread).slice(1), [
        "assistant()",
        "TM(c0,old)",
        "assistant()",
        "TM(c0,new)"
      ])
    }))
})

const settlements = (events: ReadonlyArray<Event.Event>) =>
  events.flatMap((event) =>
    event._tag === "ToolResultEncoded" && event.settled === true ? [[event.id, event.content, event.isError]] : []
  )

const denial = "{\"error\":\"tool error (pay): denied: no\",\"code\":\"denied\"}"

describe("M-43: a continuation begins with the calls settled since the last run", () => {
  /** A session with an answer of each kind, given in another order than that of the calls. */
  const answered = Effect.gen(function*() {
    const waiting = yield* after("pay:p1", "appr:m", "pay:p2", "echo:e", "ask:q", "many:t")
    yield* TestClock.adjust("1 minute")
    const expired = yield* Session.expire(waiting)
    const told = yield* Session.answer(expired, "q", "Oslo")
    const denied = yield* Session.deny(told, "p2", "no")
    const submitted = yield* Session.answer(denied, "m", { ok: true })
    return { before: waiting, session: yield* Session.approve(submitted, "p1") }
  })

  const expected = [["m", "{\"ok\":true}", undefined], ["p2", denial, true], ["q", "Oslo", undefined], [
    "t",
    "1",
    undefined
  ]]

  it.effect("settled calls are reported in call order before any other event, and an approved call has its own events", () =>
    Effect.gen(function*() {
      const { before, session } = yield* answered
      const { pay } = payer()
      const options = { tools: [pay], requestId: "r" }
      const operations = {
        continue: Session.streamContinue(session, null, options),
        reply: Session.streamReply(session, "and?", options),
        start: Session.streamStart(session, options)
      }
      for (const [name, stream] of Object.entries(operations)) {
        const events = yield* Effect.provide(Stream.runCollect(stream), Script.layer([done]))
        assert.deepStrictEqual(settlements(events.slice(0, 4)), expected, name)
        assert.deepStrictEqual(events.slice(4, 8).map(({ _tag }) => _tag), [
          "ToolExecutionStarted",
          "ToolExecutionCompleted",
          "ToolResultEncoded",
          "MessageStarted"
        ])
        assert.strictEqual(settlements(events).length, 4)
        assert.isEmpty(check(events), name)
        // The fold over the session as it waited learns of every answer.
        const thread = name === "reply" ? Thread.append(before.thread, [Message.user("and?")]) : before.thread
        const fold = Collector.applyAll(Collector.initial({ thread }), events.slice(0, -2))
        assert.deepStrictEqual(transcript(Collector.toChatResult(fold).thread).slice(2, 8), [
          "TM(p1,paid)",
          "TM(m,{\"ok\":true})",
          `TM(p2,${denial})`,
          "TM(e,{})",
          "TM(q,Oslo)",
          "TM(t,1)"
        ])
      }
    }))

  it.effect("the reducer gives the operation's session, and a valid session wherever the stream is cut", () =>
    Effect.gen(function*() {
      const { session } = yield* answered
      const { pay } = payer()
      const options = { tools: [pay], requestId: "r" }
      const awaited = yield* Effect.provide(Session.continue(session, null, options), Script.layer([done]))
      const events = yield* Session.streamContinue(session, null, options).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([done]))
      )
      const folded = (count: number) =>
        Session.finalize(
          events.slice(0, count).reduce(
            (reducer, event) => Session.applyEvent(reducer, event),
            Session.reducer(session, "chat")
          )
        )
      assert.deepStrictEqual(folded(events.length), awaited)
      assert.strictEqual(awaited.result.steps[0]?.toolResults.length, 0)
      for (let count = 0; count < events.length; count++) {
        const pending = folded(count).session.approved.map(({ id }) => id)
        assert.isEmpty(check.thread(folded(count).session.thread, { pending }), `cut after ${count}`)
      }
    }))

  it.effect("M-21: events written as plain JSON and read back give the same thread and result", () =>
    Effect.gen(function*() {
      const { before, session } = yield* answered
      const { pay } = payer()
      const said = Thread.append(before.thread, [Message.user("and?")])
      const asks = Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: () => Effect.succeed(Tool.askUser("Which account?"))
      })
      for (const tools of [[pay], [asks]]) {
        const events = yield* Session.streamReply(session, "and?", { tools }).pipe(
          Stream.runCollect,
          Effect.provide(Script.layer([calling("echo:e2"), done]))
        )
        const last = events.at(-1)
        const result = last?._tag === "ChatCompleted" ? last.result : assert.fail("the run has no end")
        const wires = JSON.parse(JSON.stringify(events.map((event) => Event.toWire(event)))) as ReadonlyArray<unknown>
        const read = Collector.fromWire(said, wires)
        assert.deepStrictEqual(transcript(read.thread), transcript(result.thread))
        assert.deepStrictEqual(read.outcome, result.outcome)
        assert.deepStrictEqual(read.suspensions, result.suspensions)
        assert.deepStrictEqual(read.steps.map((step) => step.toolResults), result.steps.map((step) => step.toolResults))
      }
    }))

  it.effect("the observer of a run sees the settled calls and the approved calls", () =>
    Effect.gen(function*() {
      const { session } = yield* answered
      const { pay } = payer()
      const seen: Array<Event.Event> = []
      const onEvent = (event: Event.Event) => void seen.push(event)
      yield* Effect.provide(Session.continue(session, null, { tools: [pay], onEvent }), Script.layer([done]))
      assert.deepStrictEqual(settlements(seen), expected)
      assert.isEmpty(check(seen))
    }))

  it.effect("a step also begins with the settled calls, which are not among its results", () =>
    Effect.gen(function*() {
      const denied = yield* Session.deny(yield* after("pay:p"), "p", "no")
      const step = Session.streamStep(denied, { tools: [payer().pay] })
      const events = yield* Effect.provide(Stream.runCollect(step), Script.layer([done]))
      assert.deepStrictEqual(settlements(events), [["p", denial, true]])
      assert.strictEqual(events[0]?._tag, "ToolResultEncoded")
      const { result } = yield* Effect.provide(Session.step(denied), Script.layer([done]))
      assert.deepStrictEqual(result.toolResults, [])
    }))

  it.effect("a settled call is reported by one run only", () =>
    Effect.gen(function*() {
      const denied = yield* Session.deny(yield* after("pay:p"), "p", "no")
      const { session } = yield* Effect.provide(Session.continue(denied), Script.layer([done]))
      const events = yield* Effect.provide(Stream.runCollect(Session.streamReply(session, "on")), Script.layer([done]))
      assert.deepStrictEqual(settlements(events), [])
    }))

  it.effect("R-457: a plain reply to a question rewrites no result and reports no settled call", () =>
    Effect.gen(function*() {
      const asked = yield* after("ask:q")
      const events = yield* Effect.provide(Stream.runCollect(Session.streamReply(asked, "Oslo")), Script.layer([done]))
      assert.deepStrictEqual(settlements(events), [])
      assert.isEmpty(check(events))
    }))

  it.effect("an answer to a question in the thread is reported, and the thread keeps the answer as a user message", () =>
    Effect.gen(function*() {
      const asked = yield* after("ask:q")
      const session = yield* Session.answer(asked, "q", "Oslo")
      const events = yield* Effect.provide(Stream.runCollect(Session.streamContinue(session)), Script.layer([done]))
      assert.deepStrictEqual(settlements(events), [["q", "Oslo", undefined]])
      assert.isEmpty(check(events))
      for (const { thread } of [asked, session]) {
        const fold = Collector.applyAll(Collector.initial({ thread }), events.slice(0, 1))
        assert.deepStrictEqual(Collector.toChatResult(fold).thread, session.thread)
      }
    }))

  it.effect("M-19: a result of content parts is reported unchanged", () =>
    Effect.gen(function*() {
      const parts: ReadonlyArray<Message.Part> = [{ type: "text", text: "a picture" }]
      const session = yield* Session.answer(yield* after("appr:m"), "m", parts)
      const events = yield* Effect.provide(Stream.runCollect(Session.streamContinue(session)), Script.layer([done]))
      assert.deepStrictEqual(settlements(events), [["m", parts, undefined]])
    }))

  it.effect("a reply that denies waiting calls reports the denials", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p")
      const reply = Session.streamReply(waiting, "no, wait", { pending: "deny" })
      const events = yield* Effect.provide(Stream.runCollect(reply), Script.layer([done]))
      assert.deepStrictEqual(settlements(events).map(([id, , isError]) => [id, isError]), [["p", true]])
    }))

  it.effect("a kept session loaded by another process reports its settled calls", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const { pay } = payer()
      const waiting = yield* Session.keep(
        opened,
        (session) => Effect.provide(Session.reply(session, "go", { tools: [pay] }), Script.layer([calling("pay:p")]))
      )
      yield* Session.keep(waiting, (session) => Session.deny(session, "p", "no"))
      const loaded = (yield* Session.load("s"))!
      const events = yield* Session.keepStream(loaded, (session) =>
        Session.streamContinue(session, null, { tools: [pay] }))
        .pipe(Stream.runCollect, Effect.provide(Script.layer([done])))
      assert.deepStrictEqual(settlements(events), [["p", denial, true]])
      assert.strictEqual((yield* Session.load("s"))?.session.status, "completed")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

/** A tool that waits for an approval, and then does what its amount says. */
const asking = Tool.make("pay", {
  parameters: { amount: Schema.Finite },
  approval: true,
  handler: ({ amount }) => {
    if (amount === 4) return Effect.fail("broken")
    if (amount === 2) return Effect.succeed(Tool.halt("enough", null))
    const account = { answer: Schema.String, expiresIn: "1 minute", defaultAnswer: "none" } as const
    return Effect.succeed(amount === 1 ? Tool.askUser("Which account?", account) : "paid")
  }
})

/** A session whose calls were approved, each with its amount: 1 asks, 2 halts, 4 fails, 3 is paid. */
const approved = (...amounts: ReadonlyArray<number>) =>
  Effect.gen(function*() {
    let session = yield* after(...amounts.map((_, index) => `pay:p${index + 1}`))
    for (const [index, amount] of amounts.entries()) {
      session = yield* Session.approve(session, `p${index + 1}`, { arguments: { amount } })
    }
    return session
  })

const folded = <M extends "chat" | "step">(session: Session.Session, mode: M, events: ReadonlyArray<Event.Event>) =>
  Session.finalize(
    events.reduce((reducer, event) => Session.applyEvent(reducer, event), Session.reducer(session, mode))
  )

const isOpen = (session: Session.Session, message: string) => {
  assert.deepInclude(
    session,
    { status: "awaiting_user", pendingToolCallId: "p1", pendingQuestion: "Which account?" },
    message
  )
  const [question] = session.suspensions
  assert.deepInclude(question, { id: "p1", kind: "question", defaultAnswer: "none" }, message)
  assert.strictEqual((question?.expiresAt ?? 0) % 3_600_000, 60_000, message)
  assert.deepStrictEqual(question?.answerSchema?.["type"], "string", message)
  const pending = session.approved.map(({ id }) => id)
  assert.isEmpty(check.thread(session.thread, { pending }), message)
}

describe("M-44: a question stays open wherever its run or its journal ends", () => {
  it.effect("a stream left anywhere after the question finalizes as waiting, in a run and in a step", () =>
    Effect.gen(function*() {
      const session = yield* approved(1, 3)
      const runs = {
        chat: Session.streamContinue(session, null, { tools: [asking] }),
        step: Session.streamStep(session, { tools: [asking] })
      }
      for (const mode of ["chat", "step"] as const) {
        const events = yield* Effect.provide(Stream.runCollect(runs[mode]), Script.layer([done]))
        const at = events.findIndex((event) => event._tag === "AskUserRequested")
        assert.isAtLeast(at, 0)
        for (let count = at + 1; count <= events.length; count++) {
          const left = folded(session, mode, events.slice(0, count)).session
          isOpen(left, `${mode}, cut after ${count}`)
          const answer = yield* Session.answer(throughJson(left), "p1", "savings")
          assert.strictEqual(answer.status, "idle")
          const model = yield* Script.make([done])
          const { session: next } = yield* Effect.provide(
            Session.continue(answer, null, { tools: [asking] }),
            model.layer
          )
          assert.deepStrictEqual(transcript(next.thread).slice(2, 3), ["TM(p1,savings)"])
          assert.isEmpty(check.thread(next.thread))
        }
      }
    }))

  it.effect("an approved call that has not begun waits beside the question, and runs when the session continues", () =>
    Effect.gen(function*() {
      const session = yield* approved(1, 3)
      const events = yield* Session.streamContinue(session, null, { tools: [asking], maxConcurrency: 1 }).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([done]))
      )
      const at = events.findIndex((event) => event._tag === "AskUserRequested")
      const begun = events.slice(0, at + 1).filter((event) =>
        event._tag !== "ToolExecutionStarted" || event.id === "p1"
      )
      const left = folded(session, "chat", begun).session
      isOpen(left, "cut before the second call began")
      assert.deepStrictEqual(left.approved.map(({ id }) => id), ["p2"])
      const { session: next } = yield* Effect.provide(
        Session.reply(left, "savings", { tools: [asking] }),
        Script.layer([done])
      )
      assert.deepStrictEqual(transcript(next.thread).slice(2), [
        "TM(p1,savings)",
        "TM(p2,paid)",
        "assistant(done)"
      ])
    }))

  it.effect("a journal that ends anywhere after the question loads as waiting", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const session = { ...yield* approved(1, 3), id: "s" }
      yield* store.append("s", 0, [{ _tag: "Opened", format: 1, session }])
      const going = (kept: Session.Kept) =>
        Session.keep(kept, (session) =>
          Effect.provide(Session.reply(session, "go on", { tools: [asking] }), Script.layer([done])))
      const whole = yield* going((yield* Session.load("s"))!)
      isOpen(whole.session, "whole")
      const records = (yield* Stream.runCollect(store.read("s"))).map(({ record }) =>
        record
      )
      const tags = records.map(({ _tag }) => _tag)
      const asked = records.findIndex((record) => record._tag === "CallWaits" && record.toolCallId === "p1")
      assert.isAbove(tags.indexOf("RunEnded"), asked)
      assert.isAtLeast(asked, 0)
      for (let length = asked + 1; length <= records.length; length++) {
        const id = `cut${length}`
        const [first, ...rest] = records.slice(0, length)
        yield* store.append(id, 0, [first!, ...rest])
        const kept = (yield* Session.load(id))!
        isOpen(kept.session, `after ${tags[length - 1]}`)
        const answered = yield* Session.keep(kept, (session) => Session.answer(session, "p1", "savings"))
        const next = yield* going(answered)
        assert.deepStrictEqual(next.session.status, "completed")
        assert.deepStrictEqual(transcript(next.session.thread).slice(2, 3), ["TM(p1,savings)"])
        assert.isEmpty(check.thread(next.session.thread))
        assert.deepStrictEqual((yield* Session.load(id))?.session, throughJson(next.session))
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a run that fails after the question leaves the question open in the store", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const session = { ...yield* approved(1, 4), id: "s" }
      yield* store.append("s", 0, [{ _tag: "Opened", format: 1, session }])
      const kept = (yield* Session.load("s"))!
      const going = Session.keep(kept, (session) =>
        Session.continue(session, null, {
          tools: [asking],
          maxConcurrency: 1,
          onToolError: (_call: Message.ToolCall, _error: unknown) => Effect.succeed(Tool.ErrorDecision.fail("given up"))
        }).pipe(Effect.provide(Script.layer([done]))))
      assert.strictEqual(yield* Effect.flip(going), "given up")
      isOpen((yield* Session.load("s"))!.session, "after its end")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("haltPrecedence decides which of two approved calls ends the run", () =>
    Effect.gen(function*() {
      const session = yield* approved(1, 2)
      const late = Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: (args, call) => Effect.delay(asking.handler!(args, call), args.amount === 1 ? "1 second" : 0)
      })
      for (const haltPrecedence of ["request", "completion"] as const) {
        const fiber = yield* Session.continue(session, null, {
          tools: [late],
          policy: { ...Policy.standard, haltPrecedence }
        }).pipe(Effect.provide(Script.layer([done])), Effect.forkChild({ startImmediately: true }))
        yield* TestClock.adjust("1 second")
        const { result } = yield* Fiber.join(fiber)
        assert.strictEqual(result.outcome._tag, haltPrecedence === "request" ? "AskUser" : "Halted")
      }
    }))

  it.effect("a continuation stopped at any step keeps the laws", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p1", "pay:p2", "pay:p3", "appr:m")
      const answers = yield* Session.answer(yield* Session.deny(waiting, "p3", "no"), "m", "ok")
      const one = yield* Session.approve(answers, "p1", { arguments: { amount: 1 } })
      const session = yield* Session.approve(one, "p2", { arguments: { amount: 3 } })
      const run = ({ cancel }: { readonly cancel: AbortSignal }) =>
        Session.streamReply(session, "on", { tools: [asking], cancel, requestId: "r" })
      const report = yield* everyStep(run, { layer: Script.layer([done]), maxOpsBeforeYield: 12 })
      assert.deepStrictEqual(report.violations, [])
      assert.isAbove(report.handlers, report.points)
    }))

  const ends = {
    "another approved call's halt": { amounts: [2, 1], outcome: "Halted", reason: "enough" },
    "a failure of another approved call": { amounts: [4, 1], outcome: "ToolFailed", reason: "tool_error" },
    "a cancellation": { amounts: [1, 5], outcome: "Cancelled", reason: "cancelled" },
    "the deadline": { amounts: [1, 6], outcome: "Cancelled", reason: "cancelled" }
  } as const

  for (const [name, { amounts, outcome, reason }] of Object.entries(ends)) {
    const question = `p${amounts.indexOf(1 as never) + 1}`

    const options = () => {
      const controller = new AbortController()
      const tool = Tool.make("pay", {
        parameters: { amount: Schema.Finite },
        approval: true,
        handler: ({ amount }, call) => {
          const asked = asking.handler!({ amount }, call)
          if (amount === 6) return Effect.never
          // The calls before it have asked by then.
          return amount === 5 ? Effect.andThen(Effect.delay(Effect.sync(() => controller.abort()), 1), asked) : asked
        }
      })
      return {
        tools: [tool],
        cancel: controller.signal,
        requestId: "r",
        ...outcome === "ToolFailed" ? { onToolError: "halt" as const } : {},
        ...amounts.some((amount) => amount === 6) ? { deadline: { after: "1 second", reserve: 0 } as const } : {}
      }
    }

    const overTime = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
      Effect.gen(function*() {
        const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
        yield* TestClock.adjust("2 seconds")
        return yield* Fiber.join(fiber)
      })

    const isWithdrawn = (session: Session.Session, message: string) => {
      assert.isEmpty(session.suspensions, message)
      const answer = session.thread.messages.find(({ toolCallId }) => toolCallId === question)
      assert.isTrue(answer?.isError, message)
      assert.include(told(answer!), "cancelled: withdrawn", message)
      assert.isEmpty(check.thread(session.thread), message)
    }

    it.effect(`${name} withdraws the question, by an event and in the thread`, () =>
      Effect.gen(function*() {
        const session = yield* approved(...amounts)
        const model = Effect.provide(Script.layer([done]))
        const events = yield* overTime(model(Stream.runCollect(Session.streamReply(session, "on", options()))))
        const { result, session: after } = yield* overTime(model(Session.reply(session, "on", options())))
        assert.deepStrictEqual([result.outcome._tag, result.haltedReason], [outcome, reason])
        assert.deepStrictEqual(settlements(events).map(([id, , isError]) => [id, isError]), [[question, true]])
        assert.isEmpty(check(events))
        isWithdrawn(after, "awaited")
        const [last] = events.slice(-1)
        assert.strictEqual(last?._tag === "ChatCompleted" ? last.result.outcome._tag : last?._tag, outcome)
        assert.deepStrictEqual(folded(session, "chat", events).session.thread, after.thread)
        const at = events.findIndex((event) => event._tag === "AskUserRequested")
        const end = events.findIndex((event) => event._tag === "ToolResultEncoded" && event.settled === true)
        for (let count = at + 1; count < events.length; count++) {
          const { session: left } = folded(session, "chat", events.slice(0, count))
          if (count > end) isWithdrawn(left, `cut after ${count}`)
          else assert.strictEqual(left.pendingToolCallId, question, `cut after ${count}`)
        }
        const step = yield* overTime(model(Session.step(session, options())))
        isWithdrawn(step.session, "a step")
        assert.notProperty(step.result, "pendingQuestion")
      }))

    it.effect(`${name} withdraws the question in the store, from its recorded answer on`, () =>
      Effect.gen(function*() {
        const store = yield* Session.Store
        const session = { ...yield* approved(...amounts), id: "s" }
        yield* store.append("s", 0, [{ _tag: "Opened", format: 1, session }])
        const kept = (yield* Session.load("s"))!
        const run = Session.keep(kept, (session) =>
          Effect.provide(Session.reply(session, "on", options()), Script.layer([done])))
        const whole = yield* overTime(run)
        isWithdrawn(whole.session, "whole")
        assert.deepStrictEqual((yield* Session.load("s"))?.session, throughJson(whole.session))
        const records = (yield* Stream.runCollect(store.read("s"))).map(({ record }) =>
          record
        )
        const asked = records.findIndex((record) => record._tag === "CallWaits" && record.toolCallId === question)
        const end = records.findIndex((record) => record._tag === "CallEnded" && record.message.toolCallId === question)
        assert.isAtLeast(asked, 0)
        assert.isAbove(end, asked)
        for (let length = asked + 1; length <= records.length; length++) {
          const id = `cut${length}`
          const [first, ...rest] = records.slice(0, length)
          yield* store.append(id, 0, [first!, ...rest])
          const { session } = (yield* Session.load(id))!
          if (length > end) isWithdrawn(session, `after record ${length}`)
          else assert.strictEqual(session.pendingToolCallId, question, `after record ${length}`)
        }
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})
