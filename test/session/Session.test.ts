/**
 * The operations of a session and what its status allows, scenario by scenario.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { type Event, Message, Policy, Session, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { appr, transcript } from "../support/scenarios.ts"
import { after, calling, defect, done, payer, throughJson, tools } from "../support/sessions.ts"
import { anything, boom, echo } from "../support/tools.ts"

const { error, finish, text, toolCall } = Script

const ids = (session: Session.Session) => session.pendingToolCalls.map((call) => call.id)

const withDone = Effect.provide(Script.layer([done]))

describe("Session: start", () => {
  it.effect("an operation reads its input when the operation runs", () =>
    Effect.gen(function*() {
      const unreadable = Object.defineProperty({ role: "user" }, "content", {
        enumerable: true,
        get: () => {
          throw new Error("unreadable")
        }
      })
      const operation = Session.continue(Session.make(), unreadable as never)
      const exit = yield* Effect.exit(Effect.provide(operation, Script.layer([])))
      assert.isTrue(Exit.isFailure(exit))
    }))

  it.effect("L-01, R-450: a stop turn completes the session, with the thread of the result", () =>
    Effect.gen(function*() {
      const { result, session } = yield* withDone(Session.start([Message.user("go")]))
      assert.strictEqual(session.status, "completed")
      assert.deepStrictEqual(session.thread, result.thread)
      assert.deepStrictEqual(transcript(session.thread), ["user(go)", "assistant(done)"])
      assert.deepStrictEqual(session.thread.messages, result.thread.messages)
    }))

  it.effect("L-02, R-453: an input that is neither a session nor a thread is refused", () =>
    Effect.gen(function*() {
      const failure = yield* Effect.flip(withDone(Session.start(42 as never)))
      assert.deepInclude(failure, { _tag: "ValidationError", reason: "invalid_session_input" })
    }))

  it.effect("R-453: a session keeps its id, context and metadata, and a thread or a text begins a session", () =>
    Effect.gen(function*() {
      const begun = Session.make({
        id: "s",
        context: { a: 1 },
        metadata: { m: [1] },
        thread: Thread.fromMessages([Message.user("go")])
      })
      const { session } = yield* withDone(Session.start(begun))
      assert.deepInclude(session, { id: "s", context: { a: 1 }, metadata: { m: [1] } })
      assert.strictEqual((yield* withDone(Session.start(begun.thread))).session.status, "completed")
      assert.strictEqual((yield* withDone(Session.start("go"))).session.status, "completed")
    }))

  it.effect("L-14, R-454: max_turns, halt_when, a cancellation and a tool's halt complete the session", () =>
    Effect.gen(function*() {
      const model = Effect.provide(Script.layer([calling("echo:c0"), done]))
      const run = (options: object) => Effect.map(model(Session.start("go", { tools, ...options })), (done) => done)
      assert.strictEqual((yield* run({ maxTurns: 1 })).session.status, "completed")
      assert.strictEqual((yield* run({ haltWhen: () => true })).session.status, "completed")
      const { result, session } = yield* run({ cancel: AbortSignal.abort() })
      assert.deepStrictEqual([session.status, result.haltedReason], ["completed", "cancelled"])
      assert.strictEqual((yield* after("stop1:h")).status, "completed")
    }))

  it.effect("L-15, R-461: the context is the call's, else the session's, else the application's, each as a whole", () =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      const look = Tool.make("look", {
        parameters: anything,
        handler: (_, call) => Effect.sync(() => seen.push([call.context, call.sessionId]))
      })
      const run = (session: Session.Session, options: object) =>
        Session.reply(session, "go", { tools: [look], ...options }).pipe(
          Effect.provide(Script.layer([calling("look:c0"), done])),
          Effect.provideService(Policy.Defaults, { context: { b: 2 } })
        )
      const session = Session.make({ id: "s", context: { a: 1 } })
      yield* run(session, { context: { c: 3 }, sessionId: "other" })
      yield* run(session, {})
      yield* run(Session.make(), {})
      assert.deepStrictEqual(seen, [[{ c: 3 }, "other"], [{ a: 1 }, "s"], [{ b: 2 }, null]])
    }))

  it.effect("R-462: the options of a run are not kept in the session", () =>
    Effect.gen(function*() {
      const first = yield* Session.start("go", { tools, maxTurns: 1, mode: "auto" }).pipe(
        Effect.provide(Script.layer([calling("echo:c0")]))
      )
      assert.notInclude(JSON.stringify(first.session), "axTurns")
      const second = yield* Session.continue(first.session, null, { tools }).pipe(
        Effect.provide(Script.layer([calling("echo:c1"), done]))
      )
      assert.strictEqual(second.result.steps.length, 2)
    }))
})

describe("Session: questions", () => {
  it.effect("L-03, R-454: a question leaves the session waiting for the user", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:c0")
      assert.deepInclude(session, {
        status: "awaiting_user",
        pendingQuestion: "Which city?",
        pendingToolCallId: "c0",
        pendingToolCalls: []
      })
    }))

  it.effect("L-04, R-457: a reply is a plain user message, and the tool's result is not rewritten", () =>
    Effect.gen(function*() {
      const asked = yield* after("ask:c0")
      const { session } = yield* withDone(Session.reply(asked, "Oslo"))
      assert.strictEqual(session.status, "completed")
      assert.notProperty(session, "pendingQuestion")
      assert.notProperty(session, "pendingToolCallId")
      assert.deepStrictEqual(transcript(session.thread), [
        "user(go)",
        "assistant()",
        "TM(c0,<awaiting user response>)",
        "assistant(Which city?)",
        "user(Oslo)",
        "assistant(done)"
      ])
    }))

  it.effect("R-457: an answer by id has the same effect as a reply, and calls no model", () =>
    Effect.gen(function*() {
      const answered = yield* Session.answer(yield* after("ask:c0"), "c0", "Oslo")
      assert.strictEqual(answered.status, "idle")
      const { session } = yield* withDone(Session.continue(answered))
      assert.deepStrictEqual(transcript(session.thread).slice(-3), [
        "assistant(Which city?)",
        "user(Oslo)",
        "assistant(done)"
      ])
    }))

  it.effect("L-05, R-451, R-452: a continuation while a question waits is a defect that names reply", () =>
    Effect.gen(function*() {
      const asked = yield* after("ask:c0")
      for (
        const operation of [
          Session.continue(asked, null),
          Session.continue(asked, Message.assistant("well")),
          Session.step(asked),
          Session.start(asked)
        ]
      ) {
        assert.include(
          yield* defect(withDone(operation as Effect.Effect<unknown, Session.OperationError>)),
          "awaiting_user; call Session.reply"
        )
      }
      const { session } = yield* withDone(Session.continue(asked, Message.user("Oslo")))
      assert.strictEqual(session.status, "completed")
    }))

  it.effect("R-452, R-454: where several calls wait, the defect names the settling function for each kind of call", () =>
    Effect.gen(function*() {
      const answer = "Session.answer for each question"
      const submit = "Session.answer for each manual call"
      const decide = "Session.approve or Session.deny for each approval"
      const cases = [
        [yield* after("ask:q1", "ask:q2"), [answer]],
        [yield* after("pay:p", "ask:q"), [decide, answer]],
        [yield* after("ask:q", "appr:m"), [answer, submit]],
        [yield* after("pay:p"), [decide]],
        [yield* after("appr:m1", "appr:m2"), [submit]],
        [yield* after("ask:q", "appr:m", "pay:p"), [answer, submit, decide]]
      ] as const
      for (const [waiting, instead] of cases) {
        const operations = [Session.continue(waiting, null), Session.step(waiting), Session.start(waiting)]
        for (const operation of operations) {
          const problem = yield* defect(withDone(operation as Effect.Effect<unknown, Session.OperationError>))
          assert.include(problem, `the session is ${waiting.status}; call ${instead.join(", ")}`)
          assert.notInclude(problem, "Session.reply")
        }
      }
      // What the defect names works, in any order.
      const [waiting] = cases[5]
      const answered = yield* Session.answer(waiting, "q", "Oslo")
      const submitted = yield* Session.answer(answered, "m", "done")
      const denied = yield* Session.deny(submitted, "p")
      const { session } = yield* withDone(Session.continue(denied, null))
      assert.strictEqual(session.status, "completed")
    }))
})

describe("Session: manual calls", () => {
  it.effect("L-06, R-454: manual calls leave the session waiting for tools, also in manual mode", () =>
    Effect.gen(function*() {
      const session = yield* after("appr:m1", "appr:m2")
      assert.deepStrictEqual([session.status, ids(session)], ["awaiting_tools", ["m1", "m2"]])
      const whole = yield* Session.start("go", { tools, mode: "manual" }).pipe(
        Effect.provide(Script.layer([calling("echo:c0", "echo:c1")]))
      )
      assert.deepStrictEqual([whole.session.status, ids(whole.session)], ["awaiting_tools", ["c0", "c1"]])
    }))

  it.effect("L-07, R-458, R-459, M-28: results are submitted one by one in any order, are kept in call order, and call no model", () =>
    Effect.gen(function*() {
      const waiting = yield* after("appr:m1", "appr:m2")
      const one = yield* Session.answer(waiting, "m2", "second")
      assert.deepStrictEqual([one.status, ids(one)], ["awaiting_tools", ["m1"]])
      const both = yield* Session.answer(one, "m1", "first")
      assert.deepStrictEqual([both.status, ids(both)], ["idle", []])
      assert.deepStrictEqual(transcript(both.thread).slice(-2), ["TM(m1,first)", "TM(m2,second)"])
    }))

  it.effect("L-11, R-460: the model reads submitted results when the session continues", () =>
    Effect.gen(function*() {
      const waiting = yield* after("appr:m1")
      const ready = yield* Session.answer(waiting, "m1", "yes")
      const model = yield* Script.make([done])
      const { session } = yield* Effect.provide(Session.continue(ready, null), model.layer)
      const [request] = yield* model.requests
      assert.deepStrictEqual(request?.messages.at(-1), Message.tool("m1", "yes"))
      assert.strictEqual(session.status, "completed")
    }))

  it.effect("R-470: the session id is the key of the prompt cache, unless a run sets another key", () =>
    Effect.gen(function*() {
      const model = yield* Script.make([done, done])
      const session = Session.make({ id: "s1" })
      yield* Effect.provide(Session.continue(session, Message.user("go")), model.layer)
      yield* Effect.provide(Session.continue(session, Message.user("go"), { cacheKey: "own" }), model.layer)
      assert.deepStrictEqual((yield* model.requests).map((request) => request.cacheKey), ["s1", "own"])
    }))

  it.effect("L-08, L-12, R-458: an id that does not wait is refused with its name, and the session stays unchanged", () =>
    Effect.gen(function*() {
      const waiting = yield* after("echo:a", "appr:m")
      const copy = structuredClone(waiting)
      for (const id of ["a", "nobody"]) {
        const failure = yield* Effect.flip(Session.answer(waiting, id, "x"))
        assert.deepInclude(failure, { _tag: "SessionError", reason: "unknown_tool_call_id" })
        assert.deepStrictEqual(failure.metadata, { toolCallId: id })
      }
      assert.deepStrictEqual(waiting, copy)
    }))

  it.effect("L-09, R-459: a batch stops at its first refused result, and an empty batch returns the same session", () =>
    Effect.gen(function*() {
      const waiting = yield* after("appr:m1", "appr:m2")
      const result = (id: string, value: unknown) => ({ id, answer: { _tag: "Value", value } }) as const
      const failure = yield* Effect.flip(Session.settle(waiting, [result("m1", "x"), result("bad", "x")]))
      assert.deepStrictEqual(failure.metadata, { toolCallId: "bad" })
      assert.deepStrictEqual(ids(waiting), ["m1", "m2"])
      assert.strictEqual(yield* Session.settle(waiting, []), waiting)
      const all = yield* Session.settle(waiting, [result("m2", "y"), result("m1", "x")])
      assert.deepStrictEqual(transcript(all.thread).slice(-2), ["TM(m1,x)", "TM(m2,y)"])
      assert.strictEqual(all.status, "idle")
    }))

  it.effect("L-10, R-451, R-452, R-458: a reply while tools are awaited is a defect, and a result for no awaited tool is refused", () =>
    Effect.gen(function*() {
      const waiting = yield* after("appr:m")
      assert.include(yield* defect(withDone(Session.reply(waiting, "hi"))), "Session.answer for each manual call")
      assert.include(yield* defect(withDone(Session.continue(waiting, null))), "Session.answer for each manual call")
      assert.include(
        yield* defect(withDone(Session.continue(waiting, Message.user("hi")))),
        "Session.answer for each manual call"
      )
      assert.include(yield* defect(withDone(Session.step(waiting))), "Session.answer for each manual call")
      assert.include(yield* defect(withDone(Session.start(waiting))), "Session.answer for each manual call")
      assert.include(yield* defect(Session.appendUser(waiting, "hi")), "Session.answer for each manual call")
      const { detail, reason } = yield* Effect.flip(Session.answer(Session.make(), "m", "x"))
      assert.deepStrictEqual([reason, detail], [
        "unknown_tool_call_id",
        "no call \"m\" waits for an answer; none waits"
      ])
    }))

  it.effect("L-19: a text result is written unchanged, an object as JSON, and any other value as text", () =>
    Effect.gen(function*() {
      const waiting = yield* after("appr:a", "appr:b", "appr:c")
      const session = yield* Session.answer(waiting, "a", "s").pipe(
        Effect.flatMap(Session.answer("b", { a: 1 })),
        Effect.flatMap(Session.answer("c", 42))
      )
      assert.deepStrictEqual(session.thread.messages.slice(-3).map((message) => message.content), [
        "s",
        "{\"a\":1}",
        "42"
      ])
    }))
})

describe("Session: errors", () => {
  it.effect("L-13, R-454, R-456: a broken run succeeds with a session in error, which every operation refuses", () =>
    Effect.gen(function*() {
      const { result, session } = yield* Session.start("go").pipe(
        Effect.provide(Script.layer([[text("par"), error("timeout")]]))
      )
      assert.strictEqual(result.haltedReason, "error")
      assert.strictEqual(session.status, "error")
      assert.deepInclude(session.metadata["error"], { reason: "timeout" })
      const operations = [
        Session.start(session),
        Session.reply(session, "x"),
        Session.continue(session, null),
        Session.step(session),
        Session.append(session, []),
        Session.answer(session, "c0", "x"),
        Session.approve(session, "c0"),
        Session.expire(session)
      ]
      for (const operation of operations) {
        const failure = yield* Effect.flip(withDone(operation as Effect.Effect<unknown, Session.OperationError>))
        assert.deepInclude(failure, { _tag: "SessionError", reason: "session_in_error_state" })
      }
    }))

  it.effect("M-23: Session.recover resumes from every error with the thread unchanged, and every operation continues", () =>
    Effect.gen(function*() {
      const cut = yield* Effect.provide(Session.start("go"), Script.layer([[text("par"), error("timeout")]]))
      const later = yield* Effect.provide(
        Session.start("go", { tools: [echo] }),
        Script.layer([calling("echo:c0"), [Script.preflightError("network_error")]])
      )
      const failed = yield* Effect.provide(
        Session.start("go", { tools: [boom], onToolError: "halt" }),
        Script.layer([calling("boom:c0")])
      )
      for (const { session } of [cut, later, failed]) {
        assert.strictEqual(session.status, "error")
        const recovered = Session.recover(session)
        assert.deepStrictEqual(recovered.thread, session.thread)
        assert.strictEqual(recovered.status, "idle")
        assert.notProperty(recovered.metadata, "error")
        assert.strictEqual(Session.recover(recovered), recovered)
        assert.isEmpty(check.thread(recovered.thread, { pending: [] }))
        const operations = [
          Session.start(recovered),
          Session.reply(recovered, "x"),
          Session.continue(recovered, null),
          Session.step(recovered)
        ]
        for (const operation of operations) {
          const { session: next } = yield* withDone(
            operation as unknown as Effect.Effect<Session.Done, Session.OperationError>
          )
          assert.strictEqual(next.status, "completed")
          assert.notProperty(next.metadata, "error")
          assert.deepStrictEqual(
            next.thread.messages.slice(0, recovered.thread.messages.length),
            recovered.thread.messages
          )
        }
      }
    }))

  it.effect("M-23: a recovered session that is kept is in the store from then on", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s", { thread: Thread.fromMessages([Message.user("go")]) })
      const broken = yield* Session.keep(opened, (session) =>
        Effect.provide(Session.start(session), Script.layer([[text("par"), error("timeout")]])))
      assert.strictEqual((yield* Session.load("s"))?.session.status, "error")
      const next = yield* Session.keep(broken, (session) =>
        withDone(Session.reply(Session.recover(session), "again")))
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.session, next.session)
      assert.deepStrictEqual([next.session.status, next.session.metadata], ["completed", {}])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("M-24: a user message while an approval waits is a typed failure whose message says how to continue", () =>
    Effect.gen(function*() {
      for (const waiting of [yield* after("pay:p"), yield* after("pay:p", "ask:q"), yield* after("appr:m", "pay:p")]) {
        const operations = [
          Session.reply(waiting, "hi"),
          Stream.runDrain(Session.streamReply(waiting, "hi")),
          Session.continue(waiting, Message.user("hi"))
        ]
        for (const operation of operations) {
          const failure = yield* Effect.flip(withDone(operation as Effect.Effect<unknown, Session.OperationError>))
          assert.deepInclude(failure, { _tag: "SessionError", reason: "approval_pending" })
          assert.include(failure.message, "Session.approve or Session.deny")
          assert.include(failure.message, "Session.expire where its time is up")
          assert.include(failure.message, "pending: \"deny\"")
          const kinds = waiting.suspensions.map(({ kind }) => kind)
          assert.strictEqual(failure.message.includes("for each question"), kinds.includes("question"))
          assert.strictEqual(failure.message.includes("for each manual call"), kinds.includes("manual"))
        }
      }
      const misuse = Session.reply(yield* after("pay:p"), "hi", { pending: "allow" as "deny" })
      assert.include(yield* defect(withDone(misuse)), "pending must be \"deny\"; got: \"allow\"")
    }))

  it.effect("M-24: a reply that denies waiting calls answers each call, and continues", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const waiting = yield* after("pay:p1", "appr:m1", "echo:c0", "pay:p2")
      const operations = [
        Session.reply(waiting, "rather not", { tools: [pay, appr, echo], pending: "deny" }),
        Session.reply(throughJson(waiting), "rather not", { tools: [pay, appr, echo], pending: "deny" })
      ]
      for (const operation of operations) {
        const { session } = yield* withDone(operation)
        const [said, answer] = session.thread.messages.slice(-2)
        assert.deepStrictEqual([session.status, said?.content, answer?.content], ["completed", "rather not", "done"])
        assert.isEmpty(runs)
        assert.isEmpty(session.suspensions)
        const answers = session.thread.messages.filter(({ role }) => role === "tool")
        assert.deepStrictEqual(answers.map(({ toolCallId }) => toolCallId), ["p1", "m1", "c0", "p2"])
        for (const id of ["p1", "m1", "p2"]) {
          const message = answers.find(({ toolCallId }) => toolCallId === id)
          assert.isTrue(message?.isError)
          assert.include(Message.text(message!), "the user continued")
        }
        assert.isEmpty(check.thread(session.thread, { pending: [] }))
      }
    }))

  it.effect("M-24: a reply with pending: \"deny\" answers a single question, and withdraws several questions", () =>
    Effect.gen(function*() {
      const one = yield* withDone(Session.reply(yield* after("ask:q", "pay:p"), "Oslo", { pending: "deny" }))
      const told = one.session.thread.messages.find(({ toolCallId }) => toolCallId === "q")
      assert.strictEqual(told?.content, "Oslo")
      const several = yield* withDone(Session.reply(yield* after("ask:q1", "ask:q2"), "Oslo", { pending: "deny" }))
      const { messages } = several.session.thread
      for (const id of ["q1", "q2"]) {
        assert.isTrue(messages.find(({ toolCallId }) => toolCallId === id)?.isError)
      }
      assert.deepStrictEqual(messages.slice(-2).map(({ content }) => content), ["Oslo", "done"])
      const free = yield* withDone(Session.reply(Session.make(), "hi", { pending: "deny" }))
      assert.strictEqual(free.session.status, "completed")
    }))

  it.effect("M-24: a refused reply denies nothing, in the session and in its journal", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools })).pipe(
        Effect.provide(Script.layer([calling("many:t", "pay:p")]))
      )
      const refused = (reason: string) =>
        Effect.gen(function*() {
          const deny = (session: Session.Session) => Session.reply(session, "lots", { tools, pending: "deny" })
          const failures = [
            yield* Effect.flip(withDone(deny(waiting.session))),
            yield* Effect.flip(withDone(Stream.runDrain(streamed(waiting.session)))),
            yield* Effect.flip(Session.keep(waiting, (session) => withDone(deny(session))))
          ]
          for (const failure of failures) {
            assert.instanceOf(failure, Session.SessionError)
            assert.strictEqual((failure as Session.SessionError).reason, reason)
          }
          const loaded = yield* Session.load("s")
          assert.strictEqual(loaded?.version, waiting.version)
          assert.deepStrictEqual(loaded?.session.suspensions.map(({ id }) => id), ["t", "p"])
        })
      const streamed = (session: Session.Session) => Session.streamReply(session, "lots", { tools, pending: "deny" })
      yield* refused("invalid_answer")
      yield* TestClock.adjust("1 minute")
      yield* refused("expired")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("M-24: a kept session has the denials and the reply in its journal", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s", { thread: Thread.fromMessages([Message.user("go")]) })
      const waiting = yield* Session.keep(opened, (session) =>
        Effect.provide(Session.start(session, { tools }), Script.layer([calling("pay:p1", "pay:p2")])))
      const next = yield* Session.keep(waiting, (session) =>
        withDone(Session.reply(session, "no", { tools, pending: "deny" })))
      assert.deepStrictEqual((yield* Session.load("s"))?.session, next.session)
      const store = yield* Session.Store
      const tags = (yield* Stream.runCollect(store.read("s", waiting.version))).map(({ record }) =>
        record._tag
      )
      assert.deepStrictEqual(tags, ["CallSettled", "CallSettled", "RunStarted", "StepCompleted", "RunEnded"])
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("R-454: the error of a halting tool failure is its exception, or names the call", () =>
    Effect.gen(function*() {
      const run = (onToolError: any) =>
        Session.start("go", { tools, onToolError }).pipe(Effect.provide(Script.layer([calling("boom:b")])))
      const halted = yield* run("halt")
      assert.deepStrictEqual([halted.session.status, halted.session.metadata["error"]], ["error", {
        haltToolCallId: "b"
      }])
      const exception = new Error("policy")
      const thrown = yield* run((_call: unknown, _error: unknown) => {
        throw exception
      })
      assert.strictEqual(thrown.session.metadata["error"], exception)
    }))

  it.effect("R-456: a failure to start leaves the caller's session unchanged", () =>
    Effect.gen(function*() {
      const asked = yield* after("ask:c0")
      const copy = structuredClone(asked)
      const failure = yield* Effect.flip(
        Session.reply(asked, "Oslo").pipe(Effect.provide(Script.layer({ scripts: [done], retryUntilCall: 2 })))
      )
      assert.strictEqual(failure._tag, "AdapterError")
      assert.deepStrictEqual(asked, copy)
    }))

  it("R-466: data that contradicts its status is not a session", () => {
    const session = Session.make()
    for (const status of ["awaiting_user", "awaiting_tools", "error"] as const) {
      assert.throws(() => throughJson({ ...session, status }), /needs/)
    }
  })

  it.effect("R-467: a turn without calls hands nothing over, also in manual mode", () =>
    Effect.gen(function*() {
      const { session } = yield* Session.start("go", { mode: "manual" }).pipe(
        Effect.provide(Script.layer([[finish("tool_calls")]]))
      )
      assert.strictEqual(session.status, "completed")
    }))
})

describe("Session: steps", () => {
  it.effect("L-20, R-455: a step that ran tools leaves the session idle, a halt or a text completes the session, and a question waits", () =>
    Effect.gen(function*() {
      const step = (script: Script.Input) =>
        Effect.map(
          Session.step(Session.make({ thread: Thread.fromMessages([Message.user("go")]) }), { tools }).pipe(
            Effect.provide(Script.layer(script))
          ),
          ({ session }) => session
        )
      const idle = yield* step([calling("echo:c0")])
      assert.strictEqual(idle.status, "idle")
      assert.deepStrictEqual(transcript(idle.thread), ["user(go)", "assistant()", "TM(c0,{})"])
      assert.strictEqual((yield* step([calling("stop1:h")])).status, "completed")
      assert.strictEqual((yield* step([done])).status, "completed")
      assert.strictEqual((yield* step([calling("ask:q")])).status, "awaiting_user")
      assert.strictEqual((yield* step([[text("x"), error("timeout")]])).status, "error")
    }))
})

const chunks = (
  session: Session.Session,
  script: Script.Input,
  stream = Session.streamReply(session, "go", { tools })
) => Stream.runCollect(stream).pipe(Effect.provide(Script.layer(script)))

const fold = <M extends "chat" | "step">(session: Session.Session, mode: M, events: ReadonlyArray<Event.Event>) =>
  events.reduce((reducer, event) => Session.applyEvent(reducer, event), Session.reducer(session, mode))

describe("Session: the reducer", () => {
  it.effect("L-16, R-463: the reducer of a full stream gives the operation's session, twice, and leaves its input unchanged", () =>
    Effect.gen(function*() {
      const session = Session.make({ id: "s" })
      const copy = structuredClone(session)
      const script = [calling("echo:c0"), done]
      const options = { tools, requestId: "r" }
      const expected = yield* Effect.provide(Session.reply(session, "go", options), Script.layer(script))
      const events = yield* chunks(session, script, Session.streamReply(session, "go", options))
      const reducer = fold(session, "chat", events)
      assert.deepStrictEqual(Session.finalize(reducer), expected)
      assert.deepStrictEqual(Session.finalize(reducer), expected)
      assert.deepStrictEqual(session, copy)
    }))

  it.effect("L-17, R-463, R-469: a run cut at any point is cancelled, and can be continued", () =>
    Effect.gen(function*() {
      const session = Session.make()
      const events = yield* chunks(session, [calling("echo:c0"), done])
      for (let cut = 0; cut < events.length; cut++) {
        const { result, session: left } = Session.finalize(fold(session, "chat", events.slice(0, cut)))
        assert.strictEqual(result.haltedReason, "cancelled")
        assert.strictEqual(left.status, "completed")
        assert.isEmpty(Thread.unanswered(left.thread))
        assert.isEmpty(check.thread(left.thread))
        assert.strictEqual((yield* withDone(Session.reply(left, "again"))).session.status, "completed")
      }
    }))

  it.effect("L-17: a run cut after a step with waiting calls waits for the calls", () =>
    Effect.gen(function*() {
      const session = Session.make()
      const events = yield* chunks(session, [calling("appr:m", "ask:q")])
      const { session: left } = Session.finalize(fold(session, "chat", events.slice(0, -1)))
      assert.deepStrictEqual(left.suspensions.map(({ id }) => id), ["m", "q"])
      assert.strictEqual(left.status, "awaiting_user")
    }))

  it.effect("L-17, R-463: a cut step leaves the session unchanged", () =>
    Effect.gen(function*() {
      const session = Session.make({ thread: Thread.fromMessages([Message.user("go")]) })
      const events = yield* chunks(session, [calling("echo:c0")], Session.streamStep(session, { tools }))
      for (let cut = 0; cut < events.length; cut++) {
        const left = Session.finalize(fold(session, "step", events.slice(0, cut)))
        assert.strictEqual(left.session, session)
        assert.propertyVal(left.result, "haltedReason", "cancelled")
      }
      assert.strictEqual(Session.finalize(fold(session, "step", events)).session.status, "idle")
    }))

  it("R-463: an unknown mode of the reducer is a defect", () => {
    assert.throws(() => Session.reducer(Session.make(), "batch" as never), /mode/)
  })

  it.effect("R-464: a dropped stream leaves the session usable, without the last user message", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:c0")
      const stream = Session.streamReply(session, "Oslo")
      yield* Effect.provide(Stream.runDrain(Stream.take(stream, 1)), Script.layer([done]))
      const { session: next } = yield* withDone(Session.reply(session, "Bergen"))
      assert.notInclude(transcript(next.thread).join(), "Oslo")
    }))
})

describe("Session: JSON", () => {
  const states = {
    idle: Effect.succeed(Session.make({ id: "s", context: { "a.b": { c: 1 } } })),
    awaiting_user: after("ask:c0"),
    awaiting_tools: after("appr:m"),
    completed: after("stop1:h")
  }

  it.effect("L-18, R-465: a session survives JSON at every status, and the next operation continues the session", () =>
    Effect.gen(function*() {
      for (const [status, state] of Object.entries(states)) {
        const session = yield* state
        const back = throughJson(session)
        assert.deepStrictEqual(back, session)
        assert.strictEqual(back.status, status)
        const ready = status === "awaiting_tools" ? yield* Session.answer(back, "m", "ok") : back
        const next = yield* withDone(Session.continue(ready, status === "awaiting_tools" ? null : Message.user("on")))
        assert.strictEqual(next.session.status, "completed")
        assert.isEmpty(check.thread(next.session.thread))
      }
    }))

  it.effect("L-18: a session in error survives JSON", () =>
    Effect.gen(function*() {
      const { session } = yield* Session.start("go").pipe(
        Effect.provide(Script.layer([[text("par"), error("timeout")]]))
      )
      const failure = yield* Effect.flip(withDone(Session.reply(throughJson(session), "x")))
      assert.deepInclude(failure, { reason: "session_in_error_state" })
    }))

  it.effect("R-450: an append makes no call", () =>
    Effect.gen(function*() {
      const session = yield* Session.appendUser(Session.make(), "hi")
      const more = yield* Session.append(session, [Message.assistant("hello")])
      assert.deepStrictEqual(transcript(more.thread), ["user(hi)", "assistant(hello)"])
      assert.isEmpty(more.pendingToolCalls)
      const { session: next } = yield* withDone(Session.start(more, { tools: [echo] }))
      assert.strictEqual(next.status, "completed")
      assert.isDefined(toolCall)
    }))
})

describe("Session: the scope of the caller", () => {
  const acquiring = {
    onEvent: (event: Event.Event) =>
      event._tag === "StepCompleted"
        ? Effect.addFinalizer(() => Effect.sync(() => released.push("it")))
        : undefined
  }
  const released: Array<string> = []

  for (
    const [name, operation] of [
      ["awaited", Session.start([Message.user("go")], acquiring)],
      ["streamed", Stream.runDrain(Session.streamStart([Message.user("go")], acquiring))]
    ] as const
  ) {
    it.effect(`what an observer acquires lives until the caller's scope closes, in an operation that is ${name}`, () =>
      Effect.gen(function*() {
        const model = Script.layer([[Script.text("done"), Script.finish("stop")]])
        yield* Effect.scoped(Effect.gen(function*() {
          yield* Effect.provide(operation, model)
          assert.deepStrictEqual(released, [], "it is open behind the operation")
        }))
        assert.deepStrictEqual(released.splice(0), ["it"])
      }))
  }
})
