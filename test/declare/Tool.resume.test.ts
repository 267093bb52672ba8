/** Handlers that ask the user and are started again with the answer: `resume` of `Tool.askUser`, and `call.resumed`. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Event, Journal, Message, Session, Tool } from "heddle"
import { SessionStore } from "heddle/sql"
import { check, Script } from "heddle/testing"

/** An attempt of the handler, as it saw its call. */
interface Attempt {
  readonly attempt: number
  readonly key: string
  readonly resumed: Tool.CallContext["resumed"]
}

/** A tool that asks for a number of seats, and then for a yes, before it books. */
const booking = (options: Partial<Parameters<typeof Tool.make>[1]> = {}) => {
  const attempts: Array<Attempt> = []
  const book = Tool.make("book", {
    parameters: {},
    handler: (_, { attempt, idempotencyKey: key, resumed }) =>
      Effect.sync(() => {
        attempts.push({ attempt, key, resumed })
        if (resumed === undefined) {
          return Tool.askUser("How many?", { answer: Schema.Int, resume: { canary: "c4n4ry" } })
        }
        const { seats } = resumed.state as { readonly seats?: number }
        if (seats === undefined) return Tool.askUser("Sure?", { resume: { canary: "c4n4ry", seats: resumed.answer } })
        return `${seats} seats: ${resumed.answer}`
      }),
    ...options as {}
  })
  return { attempts, tools: [book] }
}

const replies = [
  [Script.toolCall("c0", "book"), Script.finish("tool_calls")],
  [Script.text("Enjoy."), Script.finish("stop")]
] as const

const told = ({ thread }: Session.Session) =>
  thread.messages.map((message) => `${message.role} ${Message.text(message)}`.trim())

const stages = (attempts: ReadonlyArray<Attempt>) =>
  attempts.map(({ attempt, resumed }) => [attempt, resumed?.answer, resumed?.state])

const whole = [
  [1, undefined, undefined],
  [2, 3, { canary: "c4n4ry" }],
  [3, "yes", { canary: "c4n4ry", seats: 3 }]
]

const conversation = ["user Book", "assistant", "tool 3 seats: yes", "assistant Enjoy."]

describe("Tool.askUser with resume", () => {
  it.effect("W-29: a handler that asks with resume receives answer and state in a new attempt with the same key", () =>
    Effect.gen(function*() {
      const { attempts, tools } = booking()
      const asked = yield* Session.reply(Session.make(), "Book", { tools })
      assert.deepStrictEqual(asked.result.outcome, {
        _tag: "AskUser",
        pendingQuestion: "How many?",
        pendingToolCallId: "c0",
        askUserOpts: []
      })
      assert.deepStrictEqual([asked.session.status, asked.session.pendingQuestion], ["awaiting_user", "How many?"])
      assert.deepStrictEqual(told(asked.session), ["user Book", "assistant"])
      // A session is data: what it waits with is in it when it is read again.
      const read = Schema.decodeSync(Schema.toCodecJson(Session.Session))(
        JSON.parse(JSON.stringify(Schema.encodeSync(Schema.toCodecJson(Session.Session))(asked.session)))
      )
      const misfit = yield* Effect.flip(Session.answer(read, "c0", "many"))
      assert.strictEqual(misfit.reason, "invalid_answer")
      const second = yield* Session.continue(yield* Session.answer(read, "c0", 3), null, { tools })
      assert.strictEqual(second.session.pendingQuestion, "Sure?")
      const { result, session } = yield* Session.reply(second.session, "yes", { tools })
      assert.strictEqual(result.outcome._tag, "Completed")
      assert.deepStrictEqual(told(session), conversation)
      assert.notProperty(session, "resumable")
      assert.deepStrictEqual(stages(attempts), whole)
      assert.lengthOf(new Set(attempts.map(({ key }) => key)), 1)
    }).pipe(Effect.provide(Script.layer(replies))))

  it.effect("W-29: a handler that asks with resume asks its approval once, and its gate before and after the approval", () =>
    Effect.gen(function*() {
      const gates: Array<string> = []
      const { attempts, tools } = booking({
        approval: true,
        validate: (_: unknown, call: Tool.CallContext) => (gates.push(call.id), true)
      })
      const waits = yield* Session.reply(Session.make(), "Book", { tools })
      let { session } = yield* Session.continue(yield* Session.approve(waits.session, "c0"), null, { tools })
      session = (yield* Session.reply(session, "3", { tools })).session
      session = (yield* Session.reply(session, "yes", { tools })).session
      assert.deepStrictEqual(told(session), conversation)
      assert.deepStrictEqual(stages(attempts), whole)
      // Before the approval and after it, as any approved call.
      assert.deepStrictEqual(gates, ["c0", "c0"])
    }).pipe(Effect.provide(Script.layer(replies))))

  it.effect("W-29: the resume state appears in no event, public or raw, and in no run result", () =>
    Effect.gen(function*() {
      const { tools } = booking()
      const events: Array<Event.Event> = []
      const options = { tools, onEvent: (event: Event.Event) => Effect.sync(() => void events.push(event)) }
      const asked = yield* Session.reply(Session.make(), "Book", options)
      const answered = yield* Session.answer(asked.session, "c0", 3)
      yield* Session.continue(answered, null, options)
      const suspended = events.filter(({ _tag }) => _tag === "ToolSuspended")
      assert.lengthOf(suspended, 2)
      const seen = [
        events,
        events.map((event) => Event.toWire(event)),
        events.map((event) => Event.toPublic(event, { runId: "r" })),
        asked.result
      ]
      for (const each of seen) assert.notInclude(JSON.stringify(each), "c4n4ry")
      assert.include(JSON.stringify(asked.session), "c4n4ry")
    }).pipe(Effect.provide(Script.layer(replies))))

  it.effect("W-29: the events of a resumable question keep the laws, and without a session the question ends the run", () =>
    Effect.gen(function*() {
      const { tools } = booking()
      const events = yield* Stream.runCollect(Chat.stream("Book", { tools }))
      assert.isEmpty(check(events))
      const last = events.at(-1)
      assert.strictEqual(last?._tag === "ChatCompleted" && last.result.outcome._tag, "AskUser")
    }).pipe(Effect.provide(Script.layer(replies))))

  it.effect("W-29: the events of a run fold to the session of the run, with the resume state", () =>
    Effect.gen(function*() {
      const { tools } = booking()
      const start = Session.make()
      const reducer = yield* Ref.make(Session.reducer({ ...start, thread: start.thread }, "chat"))
      const { session } = yield* Session.reply(start, "Book", {
        tools,
        onEvent: (event) => Ref.update(reducer, (fold) => Session.applyEvent(fold, event))
      })
      const folded = Session.finalize(yield* Ref.get(reducer)).session
      assert.deepStrictEqual(folded.resumable, session.resumable)
      assert.deepStrictEqual(folded.suspensions, session.suspensions)
    }).pipe(Effect.provide(Script.layer(replies))))

  it.effect("W-29: an expired resumable question is answered with its default, and without a default the call is denied", () =>
    Effect.gen(function*() {
      for (const [defaultAnswer, expected] of [[2, "tool got 2"], [undefined, "denied"]] as const) {
        const ask = Tool.make("book", {
          parameters: {},
          handler: (_, { resumed }) =>
            Effect.succeed(
              resumed === undefined
                ? Tool.askUser("How many?", {
                  resume: null,
                  expiresIn: "1 minute",
                  ...(defaultAnswer === undefined ? {} : { defaultAnswer })
                })
                : `got ${resumed.answer}`
            )
        })
        const options = { tools: [ask] }
        const layer = Script.layer(replies)
        const asked = yield* Session.reply(Session.make(), "Book", options).pipe(Effect.provide(layer))
        yield* TestClock.adjust("1 minute")
        const expired = yield* Session.expire(asked.session)
        const { session } = yield* Session.continue(expired, null, options).pipe(
          Effect.provide(Script.layer([replies[1]]))
        )
        assert.include(told(session)[2], expected)
      }
    }))

  it.effect("W-29: a message that denies pending questions ends their calls without another attempt", () =>
    Effect.gen(function*() {
      const { attempts, tools } = booking()
      const asked = yield* Session.reply(Session.make(), "Book", { tools })
      assert.lengthOf(asked.session.suspensions, 2)
      const { session } = yield* Session.reply(asked.session, "Never mind", { tools, pending: "deny" })
      assert.deepStrictEqual(told(session).map((text) => /"code":"\w+"/.exec(text)?.[0] ?? text), [
        "user Book",
        "assistant",
        "\"code\":\"denied\"",
        "\"code\":\"denied\"",
        "user Never mind",
        "assistant Enjoy."
      ])
      assert.lengthOf(attempts, 2)
    }).pipe(Effect.provide(Script.layer([
      [Script.toolCall("c0", "book"), Script.toolCall("c1", "book"), Script.finish("tool_calls")],
      replies[1]
    ]))))

  it.effect("W-29: a handler of a sub-agent receives answer and resume state in a new attempt", () =>
    Effect.gen(function*() {
      const { attempts, tools } = booking()
      const agent = Tool.fromChat("agent", { parameters: {}, chat: () => Chat.stream("Book", { tools }) })
      const options = { tools: [agent] }
      let kept: Session.Kept = yield* Session.open("s")
      kept = yield* Session.keep(kept, (session) => Session.reply(session, "Go", options))
      for (const value of [3, "yes"]) {
        assert.deepStrictEqual(kept.session.suspensions.map(({ id, kind }) => [id, kind]), [["a0/c0", "question"]])
        kept = yield* Session.keep(kept, (session) => Session.answer(session, "a0/c0", value))
        kept = yield* Session.keep(kept, (session) => Session.continue(session, null, options))
      }
      assert.deepStrictEqual(told(kept.session), ["user Go", "assistant", "tool Enjoy.", "assistant Done."])
      assert.deepStrictEqual(stages(attempts), whole)
    }).pipe(Effect.provide([
      Script.layer([
        [Script.toolCall("a0", "agent"), Script.finish("tool_calls")],
        ...replies,
        [Script.text("Done."), Script.finish("stop")]
      ]),
      Session.Store.layerMemory
    ])))
})

const stores = {
  "in memory": Session.Store.layerMemory,
  SQLite: SessionStore.layerSqlite({ filename: ":memory:" })
}

for (const [name, store] of Object.entries(stores)) {
  describe(`a resumable question in a kept session (${name})`, () => {
    const records = Effect.gen(function*() {
      const { read } = yield* Session.Store
      return Array.from(yield* Stream.runCollect(read("s")), ({ record }) => record)
    })

    it.effect("W-29: the journal has each resumable question, answer and attempt in order, with each step in a fresh session", () =>
      Effect.gen(function*() {
        const { attempts, tools } = booking()
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "Book", { tools }))
        for (const value of [3, "yes"]) {
          // Each step reads the journal anew, as a process does that is started again.
          const loaded = yield* Session.open("s")
          assert.strictEqual(Session.next(loaded), "wait")
          const answered = yield* Session.keep(
            loaded,
            (session) => Session.answer(session, "c0", value, { command: `answer ${value}` })
          )
          assert.strictEqual(Session.next(answered), "continue")
          // The same answer under the same id counts once.
          yield* Session.keep(
            answered,
            (session) => Session.answer(session, "c0", value, { command: `answer ${value}` })
          )
          yield* Session.keep(yield* Session.open("s"), (session) => Session.continue(session, null, { tools }))
        }
        const { session } = yield* Session.open("s")
        assert.deepStrictEqual(told(session), conversation)
        assert.deepStrictEqual(stages(attempts), whole)
        const all = yield* records
        assert.deepStrictEqual(Journal.check(all), [])
        const ofCall = all.flatMap((record) => {
          if (record._tag === "CallWaits") return [["CallWaits", record.resume?.state]]
          return record._tag === "CallStarted" || record._tag === "CallEnded" || record._tag === "CallSettled"
            ? [[record._tag]]
            : []
        })
        assert.deepStrictEqual(ofCall, [
          ["CallStarted"],
          ["CallWaits", { canary: "c4n4ry" }],
          ["CallSettled"],
          ["CallStarted"],
          ["CallWaits", { canary: "c4n4ry", seats: 3 }],
          ["CallSettled"],
          ["CallStarted"],
          ["CallEnded"]
        ])
      }).pipe(Effect.provide(Layer.merge(Script.layer(replies), store)), Effect.scoped))

    it.effect("W-29: a snapshot keeps a resumable question, and an answer whose attempt has not run", () =>
      Effect.gen(function*() {
        const { attempts, tools } = booking()
        yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Book", { tools }))
        const changed = yield* Session.keep(
          yield* Session.open("s"),
          (session) => Session.answer({ ...session, metadata: { changed: true } }, "c0", 3)
        )
        assert.include(
          (yield* records).map(({ _tag }) => _tag).slice(1),
          "Opened"
        )
        yield* Session.keep(changed, (session) => Session.continue(session, null, { tools }))
        yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "yes", { tools }))
        assert.deepStrictEqual(stages(attempts), whole)
        assert.lengthOf(new Set(attempts.map(({ key }) => key)), 1)
      }).pipe(Effect.provide(Layer.merge(Script.layer(replies), store)), Effect.scoped))

    for (const [flag, ended] of [["idempotent", "tool got 3"], ["none", "unknown_effect"]] as const) {
      it.effect(`W-29: an attempt interrupted after its answer is retried or unknown by the flags of its tool (${flag})`, () =>
        Effect.gen(function*() {
          const seen: Array<Tool.CallContext["resumed"]> = []
          let isHeld = true
          const book = Tool.make("book", {
            parameters: {},
            idempotent: flag === "idempotent",
            handler: (_, call): Effect.Effect<unknown> => {
              if (call.resumed === undefined) return Effect.succeed(Tool.askUser("How many?", { resume: "s" }))
              seen.push(call.resumed)
              return isHeld
                ? Effect.andThen(call.progress("held"), Effect.never)
                : Effect.succeed(`got ${call.resumed.answer}`)
            }
          })
          const options = { tools: [book] }
          yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, "Book", options))
          const answered = yield* Session.keep(yield* Session.open("s"), (session) => Session.answer(session, "c0", 3))
          yield* Session.keepStream(answered, (session) => Session.streamContinue(session, null, options)).pipe(
            Stream.takeUntil(({ _tag }) => _tag === "ToolProgress"),
            Stream.runDrain
          )
          isHeld = false
          const claimed = yield* Session.claim("s")
          assert.strictEqual(Session.next(claimed), "resume")
          const { session } = yield* Session.resume(claimed, options)
          assert.include(told(session)[2], ended)
          const given = { answer: 3, state: "s" }
          assert.deepStrictEqual(seen, flag === "idempotent" ? [given, given] : [given])
          assert.deepStrictEqual(Journal.check(yield* records), [])
        }).pipe(Effect.provide(Layer.merge(Script.layer(replies), store)), Effect.scoped))
    }
  })
}
