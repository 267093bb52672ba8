/**
 * The open calls of a session: where their answers stand, what a continuation says of them, and what becomes of a
 * question whose run or journal ends anywhere.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { TestClock } from "effect/testing"
import { Message, Session, Thread } from "heddle"
import { Laws, Script } from "heddle/testing"
import { told, transcript } from "./support/scenarios.ts"
import { after, done, payer } from "./support/sessions.ts"

describe("M-28: the answers of a turn stand in call order", () => {
  it.effect("a denial that comes before the first call has run stands behind its answer", () =>
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
      assert.isEmpty(Laws.history(session.thread))
    }))

  it.effect("so does a result, a default and an answer, whatever has been answered before", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const waiting = yield* after("appr:m1", "pay:p1", "ask:q", "echo:e", "appr:m2", "many:t")
      yield* TestClock.adjust("1 minute")
      const settled = yield* Effect.succeed(waiting).pipe(
        Effect.flatMap((session) => Session.submitToolResult(session, "m2", "second")),
        Effect.flatMap((session) => Session.approve(session, "p1")),
        Effect.flatMap(Session.expire),
        Effect.flatMap((session) => Session.answer(session, "q", "Oslo")),
        Effect.flatMap((session) => Session.submitToolResult(session, "m1", "first"))
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
      assert.isEmpty(Laws.history(session.thread))
    }))

  it.effect("an id that an earlier turn had as well is answered in its own turn", () =>
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
      const answered = yield* Session.submitToolResult(session, "c0", "new")
      assert.deepStrictEqual(transcript(answered.thread).slice(1), [
        "assistant()",
        "TM(c0,old)",
        "assistant()",
        "TM(c0,new)"
      ])
    }))
})
