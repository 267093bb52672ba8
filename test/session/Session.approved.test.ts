/** Approved calls have effects: whatever becomes of the operation that runs them, none is lost and none runs twice. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as HttpClientError from "effect/http/HttpClientError"
import * as HttpClientRequest from "effect/http/HttpClientRequest"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Adapter, Collector, Event, Message, Policy, Session, Thread, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { overTime, transcript } from "../support/scenarios.ts"
import { after, calling, done, payer } from "../support/sessions.ts"

const broken = new Adapter.AdapterError({ reason: "rate_limited" })

const limited = [Script.preflightError("rate_limited")]

const models = {
  "fails before its first event": Layer.succeed(Adapter.Adapter, { stream: () => Stream.fail(broken) }),
  "dies before its first event": Layer.succeed(Adapter.Adapter, { stream: () => Stream.die("connection refused") }),
  "throws": Layer.succeed(Adapter.Adapter, {
    stream: () => {
      throw new Error("no model")
    }
  })
}

describe("M-04: a model that fails after approved calls have run", () => {
  const approved = Effect.flatMap(after("pay:p1"), (session) => Session.approve(session, "p1"))

  for (const [what, model] of Object.entries(models)) {
    it.effect(`a model that ${what} ends the operation as failed, and the session keeps the approved calls' answers`, () =>
      Effect.gen(function*() {
        const { pay, runs } = payer()
        const session = yield* approved
        const options = { tools: [pay], requestId: "r" }
        const awaited = yield* Effect.provide(Session.continue(session, null, options), model)
        assert.strictEqual(awaited.result.outcome._tag, "Failed")
        assert.strictEqual(awaited.session.status, "error")
        assert.instanceOf(awaited.session.metadata["error"], Adapter.AdapterError)
        assert.isEmpty(awaited.session.approved)
        assert.deepStrictEqual(transcript(awaited.session.thread).slice(2), ["TM(p1,paid)"])
        assert.isEmpty(check.thread(awaited.session.thread))

        const events = yield* Stream.runCollect(Session.streamContinue(session, null, options)).pipe(
          Effect.provide(model)
        )
        assert.deepStrictEqual(events.slice(-2).map(({ _tag }) => _tag), ["Error", "ChatCompleted"])
        assert.isEmpty(check(events))
        const folded = events.reduce(
          (reducer, event) => Session.applyEvent(reducer, event),
          Session.reducer(session, "chat")
        )
        const streamed = Session.finalize(folded)
        assert.strictEqual(streamed.result.outcome._tag, "Failed")
        assert.deepStrictEqual(streamed.session.thread, awaited.session.thread)

        // The natural retry goes on with what has run, and does not run it again.
        assert.lengthOf(runs, 2)
        const again = Session.continue(Session.recover(awaited.session), null, options)
        const { result } = yield* Effect.provide(again, Script.layer([done]))
        assert.strictEqual(result.outcome._tag, "Completed")
        assert.lengthOf(runs, 2)
      }))
  }

  it.effect("a kept session keeps the answers and the user's message when all repeated replies fail", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const options = { tools: [pay], requestId: "r" }
      const turns = Script.layer([calling("pay:p1"), limited, limited])
      const again = { ...options, retryReply: Schedule.recurs(1) }
      const opened = yield* Session.open("s")
      const program = Effect.gen(function*() {
        const waiting = yield* Session.keep(opened, (session) => Session.reply(session, "go", options))
        const allowed = yield* Session.keep(waiting, (session) => Session.approve(session, "p1"))
        return yield* Session.keep(allowed, (session) => Session.reply(session, "and?", again))
      })
      const kept = yield* Effect.provide(program, turns)
      assert.strictEqual(kept.value.result.outcome._tag, "Failed")
      assert.strictEqual(kept.session.status, "error")
      assert.deepStrictEqual(transcript(kept.session.thread).slice(2), ["TM(p1,paid)", "user(and?)"])
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.session.thread, kept.session.thread)
      assert.strictEqual(loaded?.session.status, "error")
      assert.isUndefined(loaded?.interrupted)
      assert.lengthOf(runs, 1)
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a first reply that calls an unknown tool ends the run as failed, and the approved calls have run", () =>
    Effect.gen(function*() {
      const { pay, runs } = payer()
      const session = yield* approved
      const policy = { ...Policy.standard, start: "afterTurn", unknownTool: "failTurn" } as const
      const { result, session: left } = yield* Session.continue(session, null, { tools: [pay], policy }).pipe(
        Effect.provide(Script.layer([calling("nowhere:n")]))
      )
      assert.strictEqual(result.outcome._tag, "Failed")
      assert.strictEqual(left.status, "error")
      assert.isEmpty(left.approved)
      assert.lengthOf(runs, 1)
    }))

  it.effect("an operation without approved calls fails with the adapter's error", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:q")
      const failure = yield* Effect.flip(Session.reply(session, "Oslo")).pipe(
        Effect.provide(models["fails before its first event"])
      )
      assert.instanceOf(failure, Adapter.AdapterError)
    }))
})

/** A session in which a question waits that was not asked in words, beside a call that was approved. */
const besideApproved = Effect.flatMap(after("ask:q", "pay:p"), (session) => Session.approve(session, "p"))

const folded = (session: Session.Session, events: ReadonlyArray<Event.Event>) =>
  Session.finalize(
    events.reduce((reducer, event) => Session.applyEvent(reducer, event), Session.reducer(session, "chat"))
  )

describe("R-457: a reply to a question that is not in the thread", () => {
  const asks = Tool.make("asks", {
    parameters: {},
    approval: true,
    handler: () => Effect.succeed(Tool.askUser("Which city?"))
  })

  const askedByApproved = Effect.gen(function*() {
    const options = { tools: [asks] }
    const { session } = yield* Session.start("go", options).pipe(
      Effect.provide(Script.layer([calling("asks:q")]))
    )
    const approved = yield* Session.approve(session, "q")
    return (yield* Effect.provide(Session.continue(approved, null, options), Script.layer([]))).session
  })

  const cutBeforeTheQuestionWasSaid = Effect.gen(function*() {
    const before = Session.make({ thread: Thread.fromMessages([Message.user("go")]) })
    const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })
    const events = yield* Session.streamContinue(before, null, { tools: [ask] }).pipe(
      Stream.takeUntil((event) => event._tag === "StepCompleted"),
      Stream.runCollect,
      Effect.provide(Script.layer([calling("ask:q")]))
    )
    return folded(before, events).session
  })

  const states = {
    "of an approved call": askedByApproved,
    "beside a call that was settled first": Effect.flatMap(
      after("ask:q", "appr:m"),
      (session) => Session.answer(session, "m", "result")
    ),
    "beside an approved call": besideApproved,
    "of a stream cut before the question was said": cutBeforeTheQuestionWasSaid
  }

  for (const [what, state] of Object.entries(states)) {
    it.effect(`a reply answers a question ${what} in the place of its call`, () =>
      Effect.gen(function*() {
        const { pay } = payer()
        const options = { tools: [pay], requestId: "r" }
        const session = yield* state
        assert.strictEqual(session.status, "awaiting_user")
        const model = yield* Script.make([done])
        const awaited = yield* Effect.provide(Session.reply(session, "Oslo", options), model.layer)
        const [request] = yield* model.requests
        const answers = request?.messages.filter(({ toolCallId }) => toolCallId === "q")
        assert.deepStrictEqual(answers?.map(({ content }) => content), ["Oslo"])
        assert.isFalse(request?.messages.slice(1).some(({ role }) => role === "user"))
        assert.isEmpty(check.thread(awaited.session.thread))

        const continued = Session.continue(session, Message.user("Oslo"), options)
        const { session: gone } = yield* Effect.provide(continued, Script.layer([done]))
        assert.deepStrictEqual(gone.thread, awaited.session.thread)

        const events = yield* Session.streamReply(session, "Oslo", options).pipe(
          Stream.runCollect,
          Effect.provide(Script.layer([done]))
        )
        assert.isTrue(events.some((event) => event._tag === "ToolResultEncoded" && event.settled && event.id === "q"))
        assert.isEmpty(check(events))
        assert.deepStrictEqual(folded(session, events), awaited)
        const wires = events.map(Event.toWire)
        assert.deepStrictEqual(
          transcript(Collector.fromWire(session.thread, wires).thread),
          transcript(awaited.session.thread)
        )

        const kept = yield* Session.keep(yield* Session.open("s", {}), () =>
          Effect.provide(Session.reply(session, "Oslo", options), Script.layer([done])))
        const loaded = yield* Session.load("s")
        assert.deepStrictEqual(loaded?.session, kept.session)
        assert.deepStrictEqual(loaded?.session.thread, awaited.session.thread)
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }

  it.effect("a reply to a typed question outside the thread must fit the type", () =>
    Effect.gen(function*() {
      const session = yield* Effect.flatMap(
        after("many:t", "appr:m"),
        (session) => Session.answer(session, "m", "result")
      )
      const failure = yield* Effect.flip(Session.reply(session, "lots")).pipe(Effect.provide(Script.layer([])))
      assert.strictEqual((failure as Session.SessionError).reason, "invalid_answer")
      const { session: next } = yield* Effect.provide(Session.reply(session, "7"), Script.layer([done]))
      assert.deepStrictEqual(transcript(next.thread).slice(2, 3), ["TM(t,7)"])
    }))
})

describe("M-44: a reply to a question while an approved call waits to run", () => {
  it.effect("a cut stream leaves the question open before its answer event, and answered after that event", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const session = yield* besideApproved
      const events = yield* Session.streamReply(session, "Oslo", { tools: [pay], requestId: "r" }).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([done]))
      )
      const at = events.findIndex((event) => event._tag === "ToolResultEncoded" && event.settled === true)
      for (let count = 0; count <= events.length; count++) {
        const { session: left } = folded(session, events.slice(0, count))
        const isOpen = left.suspensions.some(({ id }) => id === "q")
        assert.strictEqual(isOpen, count <= at, `cut after ${count}`)
        assert.strictEqual(left.status === "awaiting_user", isOpen)
        assert.strictEqual(transcript(left.thread)[2] === "TM(q,Oslo)", !isOpen)
      }
    }))

  it.effect("a cut journal has the answer, and a run that failed before any call started opens the question again", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const session = yield* besideApproved
      const store = yield* Session.Store
      const reply = Session.reply(session, "Oslo", { tools: [pay] })
      yield* Session.keep(yield* Session.open("s"), () => Effect.provide(reply, Script.layer([done])))
      const entries = yield* Stream.runCollect(store.read("s"))
      const records = entries.map(({ record }) => record)
      const began = records.findIndex(({ _tag }) => _tag === "RunStarted")
      const { requestId } = records[began] as { readonly requestId: string }
      for (let end = began + 1; end <= records.length; end++) {
        const [first, ...rest] = records.slice(0, end)
        yield* store.append(`cut ${end}`, 0, [first!, ...rest])
        const left = (yield* Session.load(`cut ${end}`))?.session
        assert.strictEqual(transcript(left!.thread)[2], "TM(q,Oslo)", `after ${records[end - 1]?._tag}`)
        if (records.slice(0, end).some(({ _tag }) => _tag === "StepCompleted" || _tag === "RunEnded")) continue
        yield* store.append(`failed ${end}`, 0, [first!, ...rest, { _tag: "RunEnded", requestId }])
        const failed = (yield* Session.load(`failed ${end}`))?.session
        const hasStarted = records.slice(0, end).some(({ _tag }) => _tag === "CallStarted")
        assert.strictEqual(failed?.status, hasStarted ? "idle" : "awaiting_user")
        assert.deepStrictEqual(failed?.suspensions.map(({ id }) => id), hasStarted ? [] : ["q"])
        if (hasStarted) assert.strictEqual(transcript(failed!.thread)[2], "TM(q,Oslo)")
        assert.isEmpty(check.thread(failed!.thread, { pending: ["q", "p"] }))
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a question in the thread stays open where the stream of its reply is cut before the step ends", () =>
    Effect.gen(function*() {
      const session = yield* after("ask:q")
      const events = yield* Session.streamReply(session, "Oslo", { requestId: "r" }).pipe(
        Stream.runCollect,
        Effect.provide(Script.layer([done]))
      )
      const end = events.findIndex(({ _tag }) => _tag === "StepCompleted")
      for (let count = 0; count <= end; count++) {
        const { session: left } = folded(session, events.slice(0, count))
        assert.strictEqual(left.status, "awaiting_user", `cut after ${count}`)
        const { session: again } = yield* Effect.provide(Session.reply(left, "Oslo"), Script.layer([done]))
        assert.deepStrictEqual(transcript(again.thread).slice(-2), ["user(Oslo)", "assistant(done)"])
      }
      assert.strictEqual(folded(session, events.slice(0, end + 1)).session.status, "completed")
    }))
})

describe("Session.approve with arguments", () => {
  it.effect("M-33: arguments of more than 256 levels are refused, and the call can still be approved", () =>
    Effect.gen(function*() {
      const nested = (levels: number): Message.ToolCall["arguments"] => levels === 1 ? {} : { a: nested(levels - 1) }
      const session = yield* after("pay:p1")
      for (const levels of [257, 5000]) {
        const error = yield* Effect.flip(Session.approve(session, "p1", { arguments: nested(levels) }))
        assert.strictEqual(error._tag, "SessionError")
        assert.strictEqual(error.reason, "invalid_answer")
        assert.include(error.message, "256")
      }
      const approved = yield* Session.approve(session, "p1", { arguments: nested(256) })
      assert.lengthOf(approved.approved, 1)
    }))
})

describe("M-44: an approved call that ended in a cut run", () => {
  const secret = "s3cr3t"
  const request = HttpClientRequest.get(`https://api.test/v1?key=${secret}`, { headers: { "x-custom-token": secret } })
  const refused = new HttpClientError.TransportError({ request, description: "refused" })

  const make = (name: string, handler: () => Effect.Effect<unknown, unknown>, options: object = {}): Tool.Any =>
    Tool.make(name, { parameters: {}, approval: true, handler, ...options }) as Tool.Any

  const ending = [
    make("value", () => Effect.succeed({ n: 5 }), { success: Schema.Struct({ n: Schema.FiniteFromString }) }),
    make("text", () => Effect.succeed("sold")),
    make("http", () => Effect.fail(new HttpClientError.HttpClientError({ reason: refused }))),
    make("reported", () => Effect.fail({ _tag: "Full", seats: 3 })),
    make("dies", () => Effect.die(new Error(secret))),
    make("halt", () => Effect.succeed(Tool.halt("sold", { order: 42 }))),
    make("big", () => Effect.succeed("x".repeat(100_000))),
    make("image", () => Effect.succeed(Tool.content([{ type: "image", mediaType: "image/png", data: "QUJD" }]))),
    make("asks", () => Effect.succeed(Tool.askUser("Which city?")))
  ]

  /** Approved calls of a tool that ends and of one that does not, and what the first is answered with in a whole run. */
  const prepared = (tool: Tool.Any) =>
    Effect.gen(function*() {
      let isSlow = true
      const slow = make("slow", () => isSlow ? Effect.never : Effect.succeed("late"))
      const tools = [tool, slow]
      const { session } = yield* Session.start("go", { tools }).pipe(
        Effect.provide(Script.layer([calling(`${tool.name}:c0`, "slow:c1")]))
      )
      const approved = yield* Effect.flatMap(Session.approve(session, "c0"), (one) => Session.approve(one, "c1"))
      isSlow = false
      const { session: whole } = yield* Effect.provide(
        Session.step(approved, { tools }),
        Script.layer([])
      )
      isSlow = true
      return { approved, tools, answer: answerOf(whole, "c0") }
    })

  const answerOf = (session: Session.Session, id: string) =>
    session.thread.messages.find(({ toolCallId }) => toolCallId === id)

  for (const tool of ending) {
    it.effect(`the journal of a cut run keeps the approved call's answer as written: ${tool.name}`, () =>
      Effect.gen(function*() {
        const { answer, approved, tools } = yield* prepared(tool)
        const options = { tools, requestId: "r" }
        const store = yield* Session.Store
        const run = yield* Session.keep(
          yield* Session.open("awaited"),
          () => Effect.provide(Session.continue(approved, null, options), Script.layer([done]))
        ).pipe(
          Effect.forkChild({ startImmediately: true })
        )
        yield* TestClock.adjust("1 second")
        yield* Fiber.interrupt(run)
        yield* Session.keepStream(
          yield* Session.open("streamed"),
          () => Session.streamContinue(approved, null, options)
        )
          .pipe(
            Stream.takeUntil((event) =>
              event._tag === "ToolResultEncoded" || event._tag === "ToolHalt" || event._tag === "AskUserRequested"
            ),
            Stream.runDrain,
            Effect.provide(Script.layer([done]))
          )
        for (const id of ["awaited", "streamed"]) {
          const left = (yield* Session.load(id))!.session
          assert.deepStrictEqual(answerOf(left, "c0"), answer, id)
          assert.notInclude(JSON.stringify(left), secret)
        }

        // The answer is what is recorded: a process that is killed behind it leaves it as it was written.
        const records = (yield* Stream.runCollect(store.read("awaited"))).map(({ record }) => record)
        const ended = records.findIndex((record) =>
          record._tag === "CallEnded" && record.message.toolCallId === "c0"
          || record._tag === "CallWaits" && record.toolCallId === "c0"
        )
        assert.isAtLeast(ended, 0)
        const [first, ...rest] = records.slice(0, ended + 1)
        yield* store.append("killed", 0, [first!, ...rest])
        const killed = (yield* Session.load("killed"))!.session
        assert.notInclude(JSON.stringify(killed), secret)
        assert.deepStrictEqual(answerOf(killed, "c0"), answer)
        assert.strictEqual(killed.status, tool.name === "asks" ? "awaiting_user" : "idle")
      }).pipe(Effect.provide(Session.Store.layerMemory)))

    it.effect(`the fold of a cut stream keeps the approved call's answer as written: ${tool.name}`, () =>
      Effect.gen(function*() {
        const { answer, approved, tools } = yield* prepared(tool)
        const events = yield* Session.streamContinue(approved, null, { tools, requestId: "r" }).pipe(
          Stream.takeUntil((event) =>
            event._tag === "ToolResultEncoded" || event._tag === "ToolHalt" || event._tag === "AskUserRequested"
          ),
          Stream.runCollect,
          Effect.provide(Script.layer([done]))
        )
        const ended = events.findIndex(({ _tag }) => _tag === "ToolExecutionCompleted")
        assert.strictEqual(ended, events.length - 2)
        const { session: whole } = folded(approved, events)
        assert.deepStrictEqual(answerOf(whole, "c0"), answer)
        assert.deepStrictEqual(whole.suspensions.map(({ id }) => id), tool.name === "asks" ? ["c0"] : [])
        assert.isFalse(whole.approved.some(({ id }) => id === "c0"))

        // What the handler came to is not its answer yet.
        const { session: left } = folded(approved, events.slice(0, -1))
        assert.include(String(answerOf(left, "c0")?.content), "was interrupted")
        assert.isFalse(left.approved.some(({ id }) => id === "c0"))
      }))
  }
})

describe("M-03: a cancel effect that never ends", () => {
  const deaf = Effect.uninterruptible(Effect.never)

  it.effect("a cancel effect that never ends is named in the result, with approved calls and in a kept session", () =>
    Effect.gen(function*() {
      const { pay } = payer()
      const session = yield* Effect.flatMap(after("pay:p1"), (session) => Session.approve(session, "p1"))
      const options = { tools: [pay], requestId: "r", cancel: deaf, grace: "1 second" } as const
      const named = (result: Event.ChatResult) => result.abandoned?.map(({ id, kind, name }) => [kind, id, name])

      const awaited = yield* overTime(Effect.provide(Session.continue(session, null, options), Script.layer([done])))
      assert.strictEqual(awaited.result.outcome._tag, "Completed")
      assert.deepStrictEqual(named(awaited.result), [["cancel", "r", "cancel"]])

      const events = yield* overTime(
        Stream.runCollect(Session.streamContinue(session, null, options)).pipe(Effect.provide(Script.layer([done])))
      )
      const last = events.at(-1)
      assert.strictEqual(last?._tag, "ChatCompleted")
      assert.deepStrictEqual(last?._tag === "ChatCompleted" && named(last.result), [["cancel", "r", "cancel"]])

      const kept = yield* overTime(
        Session.keep(
          yield* Session.open("s"),
          (session) => Effect.provide(Session.reply(session, "go", options), Script.layer([done]))
        )
      )
      assert.deepStrictEqual(named(kept.value.result), [["cancel", "r", "cancel"]])
      assert.strictEqual((yield* Session.load("s"))?.session.status, "completed")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("law 9: an answer other than plain JSON", () => {
  const revoked = () => {
    const { proxy, revoke } = Proxy.revocable({}, {})
    revoke()
    return proxy
  }

  const kept = (id: string, state: Effect.Effect<Session.Session>) =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      yield* store.append(id, 0, [{ _tag: "Opened", format: 1, session: { ...yield* state, id } }])
      return (yield* Session.load(id))!
    })

  const values: Record<string, unknown> = {
    date: new Date(0),
    nothing: undefined,
    nested: { at: new Date(0), none: undefined, list: [undefined, 1n] },
    bigint: 10n,
    infinite: Infinity,
    map: new Map([["a", 1]]),
    error: new Error("no"),
    content: Tool.content([{ type: "text", text: "as parts" }])
  }

  for (const [name, value] of Object.entries(values)) {
    it.effect(`a kept session and the loaded session have the same answer: ${name}`, () =>
      Effect.gen(function*() {
        const given = yield* Session.keep(
          yield* kept("s", after("appr:m", "ask:q")),
          (session) => Effect.flatMap(Session.answer(session, "m", value), (one) => Session.answer(one, "q", value))
        )
        const loaded = yield* Session.load("s")
        assert.deepStrictEqual(given.session, loaded?.session)

        const args = { amount: 5, value }
        const allowed = yield* Session.keep(
          yield* kept("a", after("pay:p")),
          (session) => Session.approve(session, "p", { arguments: args })
        )
        assert.deepStrictEqual(allowed.session, (yield* Session.load("a"))?.session)
      }).pipe(Effect.provide(Session.Store.layerMemory)))
  }

  it.effect("an unreadable answer is refused", () =>
    Effect.gen(function*() {
      const session = yield* after("appr:m", "ask:q", "pay:p")
      const refused = [
        Session.answer(session, "m", revoked()),
        Session.answer(session, "q", revoked()),
        Session.approve(session, "p", { arguments: revoked() })
      ]
      for (const answer of refused) {
        const failure = yield* Effect.flip(answer)
        assert.strictEqual(failure.reason, "invalid_answer")
      }
    }))
})

describe("V-07: the answer of an approved call", () => {
  it.effect("an approved call's answer is shown before the model replies", () =>
    Effect.gen(function*() {
      const slow = Effect.as(Effect.sleep("10 millis"), "paid")
      const pay = Tool.make("pay", { parameters: {}, approval: true, handler: () => slow })
      const session = Effect.flatMap(after("pay:p1"), (session) => Session.approve(session, "p1"))
      const approved = yield* Session.keep(yield* Session.open("s"), () => session)
      const shown = Session.keepStream(approved, (session) => Session.streamContinue(session, null, { tools: [pay] }))
        .pipe(
          Stream.takeUntil(({ _tag }) => _tag === "ToolResultEncoded"),
          Stream.runCollect,
          Effect.provide(Layer.succeed(Adapter.Adapter, { stream: () => Stream.never }))
        )
      const fiber = yield* Effect.forkChild(shown, { startImmediately: true })
      yield* TestClock.adjust("1 second")
      const exit = fiber.pollUnsafe()
      yield* Fiber.interrupt(fiber)
      assert.isDefined(exit, "the answer is shown")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
