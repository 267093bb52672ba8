/**
 * What a session waits for, call by call: approvals, typed questions, terms, and several at once, answered in any order,
 * twice, and in another process.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { TestClock } from "effect/testing"
import { Chat, Message, Session, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { sampleOf } from "../support/property.ts"
import { told, transcript } from "../support/scenarios.ts"
import { after, calling, defect, done, payer, throughJson } from "../support/sessions.ts"
import { ask } from "../support/tools.ts"

const { finish, toolCall } = Script

const withDone = Effect.provide(Script.layer([done]))

const refusal = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => "reason" in error ? error.reason : error._tag)

describe("data-first and data-last functions", () => {
  it.effect("a function takes the session first, or last after its other arguments", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p", "appr:m", "ask:q", "pay:o")
      assert.deepStrictEqual(waiting.suspensions.map(({ id }) => id), ["p", "m", "q", "o"])
      const first = yield* Effect.gen(function*() {
        const approved = yield* Session.approve(waiting, "p", { arguments: { amount: 1 } })
        const submitted = yield* Session.answer(approved, "m", "done")
        const answered = yield* Session.answer(submitted, "q", "yes")
        return yield* Session.deny(answered, "o", "no")
      })
      const last = yield* Session.approve(waiting, "p", { arguments: { amount: 1 } }).pipe(
        Effect.flatMap(Session.answer("m", "done")),
        Effect.flatMap(Session.answer("q", "yes")),
        Effect.flatMap(Session.deny("o", "no"))
      )
      assert.deepStrictEqual(last, first)
      assert.deepStrictEqual(yield* Session.approve("p")(waiting), yield* Session.approve(waiting, "p"))
      assert.deepStrictEqual(yield* Session.deny("p")(waiting), yield* Session.deny(waiting, "p"))
      const verdicts = [{ id: "m", answer: { _tag: "Value", value: "done" } }] as const
      assert.deepStrictEqual(yield* Session.settle(verdicts)(waiting), yield* Session.settle(waiting, verdicts))
      const session = Session.make()
      const said = yield* Session.append(session, [Message.user("hi")])
      assert.deepStrictEqual(yield* Session.append([Message.user("hi")])(session), said)
      assert.deepStrictEqual(yield* Session.appendUser("hi")(session), said)
      assert.deepStrictEqual(yield* Session.appendUser(session, "hi"), said)
      const reducer = Session.reducer(session, "chat")
      const event = { _tag: "TextDelta", id: null, delta: "hi" } as const
      assert.deepStrictEqual(
        Session.finalize(Session.applyEvent(event)(reducer)),
        Session.finalize(Session.applyEvent(reducer, event))
      )
    }))
})

describe("approvals", () => {
  it.effect("an approved call runs once when the session continues, before the model is called", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const waiting = yield* after("echo:e", "pay:p")
      assert.deepStrictEqual([waiting.status, waiting.pendingToolCalls.map(({ id }) => id)], ["awaiting_tools", ["p"]])
      const approved = yield* Session.approve(waiting, "p")
      assert.deepStrictEqual([approved.status, runs.length], ["idle", 0])
      const model = yield* Script.make([done])
      const { session } = yield* Effect.provide(Session.continue(approved, null, { tools: [pay] }), model.layer)
      assert.deepStrictEqual(runs, [{ amount: 5 }])
      assert.deepStrictEqual((yield* model.requests)[0]?.messages.slice(-2).map(told), ["TM(e,{})", "TM(p,paid)"])
      yield* withDone(Session.reply(session, "more", { tools: [pay] }))
      assert.strictEqual(runs.length, 1)
    }))

  it.effect("the arguments of an approved call can be edited, and are decoded like a model's arguments", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p")
      for (const [amount, expected] of [[1, [{ amount: 1 }]], ["all of it", []]] as Array<[unknown, Array<unknown>]>) {
        const { pay, runs } = payer()
        const approved = yield* Session.approve(waiting, "p", { arguments: { amount } })
        const { session } = yield* withDone(Session.continue(throughJson(approved), null, { tools: [pay] }))
        assert.deepStrictEqual(runs, expected)
        const answer = session.thread.messages.find((message) => message.toolCallId === "p")
        assert.strictEqual(answer?.isError, expected.length === 0 ? true : undefined)
      }
    }))

  it.effect("a denied call never runs, and is answered as denied", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const denied = yield* Session.deny(yield* after("pay:p"), "p", "too much")
      assert.strictEqual(denied.status, "idle")
      assert.isEmpty(Thread.unanswered(denied.thread))
      assert.include(told(denied.thread.messages.at(-1)!), "denied: too much")
      assert.strictEqual(yield* refusal(Session.approve(denied, "p")), "already_answered")
      yield* withDone(Session.continue(denied, null, { tools: [pay] }))
      assert.deepStrictEqual(runs, [])
    }))

  it.effect("R-527: each verdict refuses an id that names no wait, and lists the waiting ids", () =>
    Effect.gen(function*() {
      const session = yield* after("pay:p", "ask:q")
      const ids = ["nosuch", "p/q", "p~p", "/p", "%70", "", "__proto__", "x/".repeat(1_000)]
      for (const id of ids) {
        const verdicts = [
          Session.approve(session, id),
          Session.deny(session, id),
          Session.answer(session, id, 1),
          Session.settle(session, [
            { id: "q", answer: { _tag: "Value", value: "Oslo" } },
            { id, answer: { _tag: "Denied" } }
          ])
        ]
        for (const [index, verdict] of verdicts.entries()) {
          const error = yield* Effect.flip(verdict)
          assert.deepInclude(error, { _tag: "SessionError", reason: "unknown_tool_call_id" }, id)
          const open = index === 3 ? `these wait: "p"` : `these wait: "p", "q"`
          assert.include((error as Session.SessionError).detail, open, id)
        }
      }
    }))

  it.effect("O-18: a call and a nested call whose path reads like its id have different names", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const sub = Tool.fromChat("sub", { parameters: {}, chat: () => Chat.stream("inner", { tools: [pay] }) })
      const options = { tools: [sub, pay] }
      const asking = Script.layer([
        [toolCall("c0", "sub", {}), toolCall("c0/p", "pay", { amount: 9 }), finish("tool_calls")],
        calling("pay:p")
      ])
      const asked = yield* Effect.provide(
        Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Pay", options)),
        asking
      )
      assert.deepStrictEqual(asked.session.suspensions.map(({ id, path }) => [id, path]), [
        ["c0/p", ["c0", "p"]],
        ["c0%2Fp", undefined]
      ])
      const denied = yield* Session.keep(asked, (session) => Session.deny(session, "c0/p"))
      const approved = yield* Session.keep(denied, (session) => Session.approve(session, "c0%2Fp"))
      yield* Effect.provide(
        Session.keep(approved, (session) => Session.continue(session, null, options)),
        Script.layer([done, done])
      )
      assert.deepStrictEqual(runs, [{ amount: 9 }])
    }).pipe(Effect.provide(Session.Store.layerMemory, { local: true })))

  it.effect("O-40: the refusal of a second answer names the first answer, its time and the next operation", () =>
    Effect.gen(function*() {
      yield* TestClock.setTime(Date.parse("2026-03-01T10:00:00Z"))
      const denied = yield* Session.deny(yield* after("pay:p"), "p", "too much")
      yield* TestClock.adjust("1 hour")
      const { detail } = yield* Effect.flip(Session.approve(denied, "p"))
      assert.match(detail ?? "", /approv/)
      assert.match(detail ?? "", /denied/)
      assert.include(detail, "2026-03-01T10:00:00")
      assert.match(detail ?? "", /Session\.continue/)
    }))

  it.effect("an invalid verdict or message of settle is a defect that says what would be right", () =>
    Effect.gen(function*() {
      const session = yield* after("pay:p")
      const approved = { id: "p", answer: { _tag: "Approved" } }
      const wrong: ReadonlyArray<readonly [verdicts: unknown, message: unknown, said: string]> = [
        ["p", undefined, "verdicts must be a list of verdicts"],
        [[null], undefined, "verdicts[0] must be an object with id and answer"],
        [[approved, { id: "p" }], undefined, "verdicts[1] must be an object with id and answer"],
        [[{ ...approved, id: 5 }], undefined, "verdicts[0].id must be a string; got: 5"],
        [[{ id: "p", answer: {} }], undefined, "verdicts[0].answer must be an object with a _tag"],
        [[{ id: "p", answer: { _tag: "Yes" } }], undefined, "_tag must be \"Value\", \"Approved\" or \"Denied\""],
        [[{ ...approved, comand: "x" }], undefined, "did you mean \"command\"?"],
        [[approved], {}, "message must be an object with content"],
        [
          [approved],
          { content: "hi", clientTools: [1] },
          "message.clientTools[0] must be a tool with name, description"
        ],
        [[approved], { content: "hi" }, "only a kept session takes a message"]
      ]
      for (const [verdicts, message, said] of wrong) {
        assert.include(yield* defect(Session.settle(session, verdicts as [], message as Session.Submission)), said)
      }
    }))

  it.effect("a result is no approval, and an approval is no answer", () =>
    Effect.gen(function*() {
      const session = yield* after("pay:p", "appr:m", "ask:q")
      assert.strictEqual(yield* refusal(Session.answer(session, "p", "paid")), "invalid_answer")
      assert.strictEqual(yield* refusal(Session.approve(session, "m")), "invalid_answer")
      assert.strictEqual(yield* refusal(Session.deny(session, "q")), "invalid_answer")
      assert.strictEqual(yield* refusal(Session.approve(session, "nobody")), "unknown_tool_call_id")
    }))

  it.effect("an id that is not a text is refused as an unknown call", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p")
      for (const id of [undefined, null, 3, {}] as ReadonlyArray<unknown> as ReadonlyArray<string>) {
        for (
          const verdict of [Session.approve(waiting, id), Session.deny(waiting, id), Session.answer(waiting, id, "yes")]
        ) {
          const { detail, reason } = yield* Effect.flip(verdict)
          assert.strictEqual(reason, "unknown_tool_call_id")
          assert.strictEqual(detail, `no call ${JSON.stringify(id)} waits for an answer; these wait: "p"`)
        }
      }
    }))

  it.effect("a refused list of verdicts names every call that still waits, and says that no verdict counts", () =>
    Effect.gen(function*() {
      const waiting = yield* after("pay:p", "pay:o")
      const settled = yield* Session.deny(waiting, "o", "no")
      const p = { id: "p", answer: { _tag: "Approved" } } as const
      const detailOf = (session: Session.Session, ...verdicts: ReadonlyArray<Session.Verdict>) =>
        Effect.map(Effect.flip(Session.settle(session, verdicts)), ({ detail, reason }) => `${reason}: ${detail}`)
      assert.strictEqual(
        yield* detailOf(waiting, p, { ...p, id: "o" }, { ...p, id: "x" }),
        "unknown_tool_call_id: no call \"x\" waits for an answer; these wait: \"p\", \"o\""
      )
      assert.strictEqual(
        yield* detailOf(waiting, p, p),
        "already_answered: two of these verdicts are about call \"p\", and none of them counts; these wait: \"p\", \"o\""
      )
      assert.match(yield* detailOf(settled, p, { ...p, id: "o" }), /"o" comes too late: it was denied .*wait: "p"$/)
    }))

  it.effect("a message after an approval follows the approved call's answer, and nothing can be appended before", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const approved = yield* Session.approve(yield* after("pay:p"), "p")
      assert.include(yield* defect(Session.appendUser(approved, "hi")), "Session.continue")
      const { session } = yield* withDone(Session.reply(approved, "and then?", { tools: [pay] }))
      assert.deepStrictEqual(transcript(session.thread).slice(2), ["TM(p,paid)", "user(and then?)", "assistant(done)"])
      assert.isEmpty(check.thread(session.thread))
    }))

  it.effect("an approved call may ask in its turn, and a step may run the approved calls alone", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const asks = { ...pay, handler: ask.handler as never }
      const approved = yield* Session.approve(yield* after("pay:p"), "p")
      const { result, session } = yield* withDone(Session.continue(approved, null, { tools: [asks] }))
      assert.deepStrictEqual([session.status, session.pendingToolCallId, result.steps], ["awaiting_user", "p", []])
      const answered = yield* Session.answer(session, "p", "Oslo")
      assert.deepStrictEqual(transcript(answered.thread).slice(2), ["TM(p,Oslo)"])
      const model = yield* Script.make([done])
      const step = yield* Effect.provide(Session.step(approved, { tools: [pay] }), model.layer)
      assert.deepStrictEqual([step.session.status, runs.length, yield* model.opens], ["idle", 1, 0])
      assert.deepStrictEqual(step.result.toolResults.map(told), ["TM(p,paid)"])
    }))

  it.effect("a stream left while an approved call runs does not run the call again, and keeps the other approved calls", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const waiting = yield* after("pay:p1", "pay:p2")
      const approved = yield* Session.approve(yield* Session.approve(waiting, "p1"), "p2")
      const started = Session.applyEvent(Session.reducer(approved, "chat"), {
        _tag: "ToolExecutionStarted",
        id: "p1",
        name: "pay",
        arguments: {}
      })
      const { session } = Session.finalize(started)
      assert.deepStrictEqual([session.status, session.approved.map(({ id }) => id)], ["idle", ["p2"]])
      assert.include(told(session.thread.messages.at(-1)!), "cancelled")
      const { session: next } = yield* withDone(Session.continue(session, null, { tools: [pay] }))
      assert.isEmpty(check.thread(next.thread))
    }))
})

describe("typed questions", () => {
  it.effect("only an answer of the question's type is accepted, also as JSON text", () =>
    Effect.gen(function*() {
      const session = yield* after("many:q")
      for (const bad of ["some", 1.5, null, { count: 1 }]) {
        assert.strictEqual(yield* refusal(Session.answer(throughJson(session), "q", bad)), "invalid_answer")
      }
      assert.strictEqual(yield* refusal(withDone(Session.reply(session, "some"))), "invalid_answer")
      for (const good of [3, "3"]) {
        const answered = yield* Session.answer(throughJson(session), "q", good)
        assert.deepStrictEqual(transcript(answered.thread).at(-1), "user(3)")
      }
      assert.strictEqual((yield* withDone(Session.reply(session, "3"))).session.status, "completed")
    }))

  it.effect("an expired question takes no answer, and expire gives its default", () =>
    Effect.gen(function*() {
      const session = yield* after("many:q", "ask:r")
      assert.strictEqual(yield* Session.expire(session), session)
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(yield* refusal(Session.answer(session, "q", 3)), "expired")
      const expired = yield* Session.expire(session)
      assert.deepStrictEqual(expired.suspensions.map(({ id }) => id), ["r"])
      assert.deepStrictEqual(transcript(expired.thread).slice(2), ["TM(q,1)", "TM(r,<awaiting user response>)"])
      assert.strictEqual(yield* Session.expire(expired), expired)
    }))

  it.effect("an expired approval counts as denied", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer({ answerWithin: "1 minute" })
      const { session } = yield* Session.start("go", { tools: [pay] }).pipe(
        Effect.provide(Script.layer([calling("pay:p")]))
      )
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(yield* refusal(Session.approve(session, "p")), "expired")
      const expired = yield* Session.expire(session)
      assert.include(told(expired.thread.messages.at(-1)!), "denied")
      yield* withDone(Session.continue(expired, null, { tools: [pay] }))
      assert.deepStrictEqual(runs, [])
    }))
})

describe("several waiting calls", () => {
  it.effect("a reply to several questions is refused, and the session shows the first question", () =>
    Effect.gen(function*() {
      const session = yield* after("appr:m", "ask:q1", "ask:q2")
      assert.deepInclude(session, { status: "awaiting_user", pendingToolCallId: "q1" })
      assert.strictEqual(yield* refusal(withDone(Session.reply(session, "Oslo"))), "several_pending")
      const next = yield* Session.answer(session, "q1", "Oslo")
      assert.strictEqual(next.pendingToolCallId, "q2")
      const tools = yield* Session.answer(next, "q2", "Bergen")
      assert.deepInclude(tools, { status: "awaiting_tools" })
      assert.notProperty(tools, "pendingQuestion")
      const all = yield* Session.answer(tools, "m", "ok")
      assert.deepStrictEqual(transcript(all.thread).slice(2), ["TM(m,ok)", "TM(q1,Oslo)", "TM(q2,Bergen)"])
    }))
})

const permutations = <A>(items: ReadonlyArray<A>): ReadonlyArray<ReadonlyArray<A>> =>
  items.length === 0 ?
    [[]] :
    items.flatMap((item) => permutations(items.filter((other) => other !== item)).map((rest) => [item, ...rest]))

/** What each kind of call is answered with, and what the model then reads. */
const kinds = {
  ask: (id: string) => ({ answer: (s: Session.Session) => Session.answer(s, id, `to ${id}`), read: `to ${id}` }),
  many: (id: string) => ({ answer: (s: Session.Session) => Session.answer(s, id, Number(id)), read: id }),
  appr: (id: string) => ({
    answer: (s: Session.Session) => Session.answer(s, id, `of ${id}`),
    read: `of ${id}`
  }),
  pay: (id: string) => ({
    answer: (s: Session.Session) => Session.approve(s, id, { arguments: { amount: Number(id) } }),
    read: "paid"
  }),
  deny: (id: string) => ({ answer: (s: Session.Session) => Session.deny(s, id, `no ${id}`), read: `no ${id}` })
} as const

type Kind = keyof typeof kinds

const patterns: ReadonlyArray<ReadonlyArray<Kind>> = [
  ["ask", "ask", "ask", "ask"],
  ["pay", "pay", "pay", "pay"],
  ["ask", "pay", "appr", "deny", "many"],
  ["appr", "many", "pay", "ask"]
]

/** One order of answers, each through another process, and some twice; then what came of it. */
const played = (start: Session.Session, pattern: ReadonlyArray<Kind>, order: ReadonlyArray<number>, seed: number) =>
  Effect.gen(function*() {
    const { pay, runs } = payer()
    const calls = pattern.map((kind, index) => ({ id: `${index + 1}`, ...kinds[kind](`${index + 1}`) }))
    let kept = yield* adopt(yield* Session.open(`s${seed}`), start)
    for (const [turn, index] of order.entries()) {
      const { answer, id } = calls[index]!
      const stale = kept
      const hasMoved = (turn + seed) % 2 === 0
      const current = hasMoved ? (yield* Session.load(kept.id))! : kept
      assert.deepStrictEqual(throughJson(current.session), current.session)
      kept = yield* Session.keep(current, answer)
      assert.notInclude(kept.session.suspensions.map((suspension) => suspension.id), id)
      assert.strictEqual(kept.session.suspensions.length, pattern.length - turn - 1, "no sibling is lost")
      // The same answer again: to the session before the first one, and to the session after it.
      assert.strictEqual(yield* refusal(Session.keep(stale, answer)), "SessionConflict")
      if (kept.session.status !== "idle") {
        assert.strictEqual(yield* refusal(answer(kept.session)), "already_answered")
      }
    }
    const model = yield* Script.make([done])
    const going = (session: Session.Session) =>
      Effect.provide(Session.continue(session, null, { tools: [pay] }), model.layer)
    const last = (yield* Session.load(kept.id))!
    const ended = yield* Session.keep(last, going)
    assert.strictEqual(yield* refusal(Session.keep(last, going)), "SessionConflict")
    return { calls, ended, runs, sent: (yield* model.requests)[0]!.messages, opens: yield* model.opens }
  })

/** Writes a session into a store as a whole. */
const adopt = (kept: Session.Kept, session: Session.Session) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const version = yield* store.append(kept.id, kept.version, [{ _tag: "Opened", format: 1, session }])
    return { ...kept, session, version }
  })

describe("any number of suspensions", () => {
  for (const pattern of patterns) {
    it.effect(`each order of answers has the same effect, for any number of the calls ${pattern.join(", ")}`, () =>
      Effect.gen(function*() {
        let seed = 0
        let count = 0
        for (let k = 1; k <= pattern.length; k++) {
          const chosen = pattern.slice(0, k)
          const start = yield* after(...chosen.map((kind, index) => `${kind === "deny" ? "pay" : kind}:${index + 1}`))
          const all = permutations(chosen.map((_, index) => index))
          count += all.length
          for (const order of sampleOf(all)) {
            const { calls, ended, opens, runs, sent } = yield* played(start, chosen, order, seed++)
            assert.deepStrictEqual([ended.session.status, opens], ["completed", 1])
            const expected = chosen.flatMap((kind, index) => kind === "pay" ? [{ amount: index + 1 }] : [])
            assert.sameDeepMembers(runs, expected, "each approved call ran once, with what was approved")
            if (k > 1 || !["ask", "many"].includes(chosen[0]!)) {
              for (const { id, read } of calls) {
                const answers = sent.filter((message) => message.role === "tool" && message.toolCallId === id)
                assert.strictEqual(answers.length, 1)
                assert.include(Message.text(answers[0]!), read, "the answer to the call itself")
              }
            } else assert.strictEqual(Message.text(sent.at(-1)!), calls[0]!.read)
            assert.isEmpty(check.thread(ended.session.thread), "M-28: the answers stand in call order")
          }
        }
        assert.strictEqual(count, pattern.length === 5 ? 153 : 33)
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }
})
