/**
 * Runs that were cut and are not taken up: the next operation closes the turn that was cut, so that the model is not asked
 * for its calls again, and what is known of each is in the thread.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, type Journal, Message, Session, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import { endedIn, startedIn } from "../support/journals.ts"
import { acting, agent, casting } from "../support/nests.ts"
import { type Deed, journalOf, modelOf, prefixed, toolsOf } from "../support/survivor.ts"

type Records = ReadonlyArray<Journal.Record>

const whole = Effect.gen(function*() {
  const opened = yield* Session.open("s")
  yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: toolsOf([]), requestId: "run" }))
  return yield* journalOf("s")
}).pipe(Effect.provide([modelOf([]), Session.Store.layerMemory]))

const idsOf = (records: Records, tag: "CallStarted" | "CallEnded") =>
  tag === "CallStarted" ? startedIn(records).map(({ toolCall }) => toolCall.id) : Array.from(endedIn(records))

const answersTo = ({ thread }: Session.Session, id: string) =>
  thread.messages.filter(({ toolCallId }) => toolCallId === id).map(({ content }) => String(content))

const isWhole = (session: Session.Session) =>
  assert.isEmpty(check.thread(session.thread, { pending: session.suspensions.map(({ id }) => id) }))

/** Two calls, of which `start` tells the tools to wait for ever. */
const calling = (...names: ReadonlyArray<string>) => [
  ...names.map((name) => Script.toolCall(name, name)),
  Script.finish("tool_calls")
]

const said = [Script.text("Understood."), Script.finish("stop")]

const following: Record<string, (session: Session.Session) => Effect.Effect<unknown, unknown, Adapter.Adapter>> = {
  "a message": (session: Session.Session) => Session.append(session, [Message.user("Later")]),
  "another run": (session: Session.Session) =>
    Session.reply(session, "Later", {
      tools: [Tool.make("first", { parameters: {}, handler: () => Effect.succeed("again") })]
    })
}

/** A session whose process ended in the middle of a turn of these tools. */
const cut = (tools: ReadonlyArray<Tool.Any>, records: number) =>
  Effect.gen(function*() {
    const opened = yield* Session.open("s")
    const names = tools.map(({ name }) => name)
    yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: tools as [] })).pipe(
      Effect.provide(Script.layer([calling(...names), said]))
    )
    return (yield* journalOf("s")).slice(0, records)
  }).pipe(Effect.provide(Session.Store.layerMemory))

/** The journal of such a session with everything that happened before its turn was whole, but for the end of these calls. */
const cutBeforeEnd = (tools: ReadonlyArray<Tool.Any>, ...open: ReadonlyArray<string>) =>
  Effect.map(
    cut(tools, Infinity),
    (records) =>
      records.filter((record) =>
        record._tag !== "StepCompleted" && record._tag !== "RunEnded" &&
        !(record._tag === "CallEnded" && open.includes(record.message.toolCallId ?? ""))
      )
  )

describe("an interrupted run that is not resumed", () => {
  it.effect("D-01: no started call of the turn is repeated, and each has one truthful answer, at every record", () =>
    Effect.gen(function*() {
      const records = yield* whole
      for (let length = 2; length < records.length; length++) {
        const before = records.slice(0, length)
        const where = `cut behind record ${length}, ${before.at(-1)?._tag}`
        const world: Array<Deed> = []
        const { kept, loaded } = yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const kept = yield* Session.keep(cut, (session) => Session.continue(session, null, { tools: toolsOf(world) }))
          return { kept, loaded: yield* Session.load("s") }
        }).pipe(Effect.provide([modelOf([]), prefixed("s", before)]))
        const [started, ended] = [idsOf(before, "CallStarted"), idsOf(before, "CallEnded")]
        const isReplied = before.findLastIndex(({ _tag }) => _tag === "ReplyReceived") >
          before.findLastIndex(({ _tag }) => _tag === "StepCompleted")
        for (const id of started) {
          const again = world.filter(({ key }) => key.endsWith(`:${id}`))
          // A reply that is not recorded is asked for again, with the calls that only read.
          if (isReplied || !id.startsWith("l")) assert.isEmpty(again, `${where}: ${id} again`)
        }
        isWhole(kept.session)
        assert.deepStrictEqual(loaded?.session, kept.session, where)
        assert.isUndefined(loaded?.interrupted, where)
        for (const id of isReplied ? started : []) {
          const [answer = "", ...others] = answersTo(kept.session, id)
          assert.isEmpty(others, where)
          if (ended.includes(id)) assert.notInclude(answer, "error", where)
          else assert.include(answer, "unknown_effect", `${where}: ${id}`)
        }
        if (ended.includes("c0")) assert.propertyVal(kept.session.context, "paid1", true, where)
      }
    }))

  it.effect("a call that had not started is answered as not run, and a message follows the answers", () =>
    Effect.gen(function*() {
      const first = Tool.make("first", { parameters: {}, concurrency: "exclusive", handler: () => Effect.succeed("1") })
      const second = Tool.make("second", { parameters: {}, handler: () => Effect.succeed("2") })
      // Opened, RunStarted, ReplyReceived, CallStarted, CallEnded.
      const before = yield* cut([first, second], 5)
      assert.deepStrictEqual([idsOf(before, "CallStarted"), idsOf(before, "CallEnded")], [["first"], ["first"]])
      const kept = yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        return yield* Session.keep(cut, (session) => Session.reply(session, "And now?"))
      }).pipe(Effect.provide([Script.layer([said]), prefixed("s", before)]))
      assert.deepStrictEqual(
        kept.session.thread.messages.map(({ content, role }) => `${role} ${String(content)}`),
        [
          "user go",
          "assistant ",
          "tool 1",
          `tool ${answersTo(kept.session, "second")[0]}`,
          "user And now?",
          "assistant Understood."
        ]
      )
      assert.include(answersTo(kept.session, "second")[0], "not run")
    }))

  it.effect("a question asked in the turn is withdrawn, and the user's message follows", () =>
    Effect.gen(function*() {
      const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which?")) })
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.succeed("waited") })
      const before = yield* cutBeforeEnd([ask, wait], "wait")
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        // The question is there to answer, and waits for the run, which may be under way elsewhere.
        assert.deepStrictEqual(cut.session.suspensions.map(({ id }) => id), ["ask"])
        const kept = yield* Session.keep(cut, (session) => Session.reply(session, "this one"))
        assert.include(answersTo(kept.session, "ask")[0], "withdrawn")
        assert.include(answersTo(kept.session, "wait")[0], "unknown_effect")
        assert.strictEqual(kept.session.status, "completed")
        isWhole(kept.session)
        assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
      }).pipe(Effect.provide([Script.layer([said]), prefixed("s", before)]))
    }))

  for (const [name, operation] of Object.entries(following)) {
    it.effect(`a stop of an interrupted run reports unknown calls once ${name} has closed its turn`, () =>
      Effect.gen(function*() {
        const [first, second] = ["first", "second"].map((name) =>
          Tool.make(name, { parameters: {}, handler: () => Effect.succeed(name) })
        )
        const before = yield* cutBeforeEnd([first!, second!], "second")
        yield* Effect.gen(function*() {
          const { ended } = yield* Session.stop("s")
          const cut = (yield* Session.load("s"))!
          yield* Session.keep(cut, operation)
          assert.deepStrictEqual(yield* ended, { stopped: [], ended: ["first"], refused: [], unknown: ["second"] })
        }).pipe(Effect.provide([Script.layer([calling("first"), said]), prefixed("s", before)]))
      }))
  }

  it.effect("a long result in a closed turn is within its limit, and a typed result is as its schema writes the value", () =>
    Effect.gen(function*() {
      const long = Tool.make("long", { parameters: {}, handler: () => Effect.succeed("x".repeat(100_000)) })
      const dated = Tool.make("dated", {
        parameters: {},
        success: Schema.Struct({ at: Schema.Date }),
        handler: () => Effect.succeed({ at: new Date(0) })
      })
      const before = yield* cutBeforeEnd([long, dated])
      const kept = yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        return yield* Session.keep(cut, (session) => Session.append(session, [Message.user("Later")]))
      }).pipe(Effect.provide(prefixed("s", before)))
      assert.isBelow(answersTo(kept.value, "long")[0]!.length, 40_000)
      assert.deepStrictEqual(answersTo(kept.value, "dated"), [JSON.stringify({ at: new Date(0) })])
    }))

  it.effect("the question of a nested run is withdrawn together with the call around the run", () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const ask = Tool.make("ask", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("Which city?")) })
      const tools = () => [agent("inner", [ask, acting(world, "pay")]), acting(world, "pay")]
      const kept = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: tools() }))
        // The process ended before the turn was whole.
        const records = (yield* journalOf("s")).filter(({ _tag }) => _tag !== "StepCompleted" && _tag !== "RunEnded")
        const store = yield* Session.Store
        yield* store.delete("s")
        yield* store.append("s", 0, records as [Journal.Record])
        const cut = (yield* Session.load("s"))!
        assert.deepStrictEqual(cut.interrupted?.calls.map(({ toolCall }) => toolCall.id), ["a", "c"])
        return yield* Session.keep(cut, (session) => Session.continue(session, null, { tools: tools() }))
      }).pipe(Effect.provide([
        casting({
          go: [[["a", "inner", {}], ["c", "pay", {}]], "done"],
          inner: [[["q", "ask", {}]], [["p", "pay", {}]], "inner is done"]
        }),
        Session.Store.layerMemory
      ]))
      assert.strictEqual(kept.session.status, "completed")
      assert.include(answersTo(kept.session, "a")[0], "withdrawn")
      assert.deepStrictEqual(answersTo(kept.session, "c"), ["pay done"])
      assert.strictEqual(world.filter(({ key }) => key.endsWith(":c")).length, 1)
      isWhole(kept.session)
    }))

  it.effect("an operation that records nothing, or fails before its first record, leaves the session unchanged", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
      const before = yield* cut([work], 4)
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        yield* Effect.flip(Session.keep(cut, () => Effect.fail("not now")))
        yield* Effect.flip(Stream.runDrain(Session.keepStream(cut, () => Stream.fail("not now"))))
        assert.deepStrictEqual(yield* Session.load("s"), cut)
        yield* Stream.runDrain(Session.keepStream(cut, () => Stream.empty))
        const { value, ...same } = yield* Session.keep(cut, Effect.succeed)
        assert.deepStrictEqual(value, cut.session)
        assert.deepStrictEqual(same, cut)
        assert.deepStrictEqual(yield* Session.load("s"), cut)
        const later = yield* Session.keep(same, (session) => Session.append(session, [Message.user("Later")]))
        assert.include(answersTo(later.session, "work")[0], "unknown_effect")
        assert.deepStrictEqual((yield* Session.load("s"))?.session, later.session)
      }).pipe(Effect.provide(prefixed("s", before)))
    }))

  it.effect("several operations in one keep close the turn once, also after an answer", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
      const before = yield* cut([work], 5)
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        const kept = yield* Session.keep(cut, (session) =>
          Effect.gen(function*() {
            const first = yield* Session.append(session, [Message.user("One")])
            const second = yield* Session.append(first, [Message.user("Two")])
            return yield* Session.reply(second, "Three")
          }))
        assert.deepStrictEqual(
          kept.session.thread.messages.map(({ content, role }) => `${role} ${String(content)}`),
          ["user go", "assistant ", "tool worked", "user One", "user Two", "user Three", "assistant Understood."]
        )
        assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
      }).pipe(Effect.provide([Script.layer([said]), prefixed("s", before)]))
    }))

  it.effect("a settled call leaves the run interrupted until another operation follows", () =>
    Effect.gen(function*() {
      const manual = Tool.make("manual", { parameters: {}, manual: true })
      const before = (yield* cut([manual], 99)).filter(({ _tag }) => _tag !== "RunEnded")
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        const { value, ...settled } = yield* Session.keep(
          cut,
          (session) => Session.answer(session, "manual", "done")
        )
        assert.deepStrictEqual(settled, yield* Session.load("s"))
        assert.isDefined(settled.interrupted)
        const kept = yield* Session.keep(settled, (session) => Session.continue(session, null, { tools: [manual] }))
        assert.deepStrictEqual(answersTo(kept.session, "manual"), ["done"])
        assert.deepStrictEqual([value.status, kept.session.status, kept.interrupted], ["idle", "completed", undefined])
        assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
      }).pipe(Effect.provide([Script.layer([said]), prefixed("s", before)]))
    }))

  it.effect("a repeated operation in one keep, a step, and an operation on a changed copy close the turn", () =>
    Effect.gen(function*() {
      const worked: Array<string> = []
      const work = Tool.make("work", {
        parameters: {},
        handler: (_, call) => Effect.sync(() => (worked.push(call.idempotencyKey), "worked"))
      })
      const before = yield* cut([work], 4)
      // The model makes its call where the thread has none.
      const model = (fails: number) => {
        let left = fails
        return Adapter.layer({
          stream: ({ messages }) =>
            Stream.unwrap(Effect.gen(function*() {
              if (left-- > 0) {
                return Stream.fail(
                  new Adapter.AdapterError({ reason: "network_error", detail: "gone" })
                )
              }
              const isCalled = messages.some(({ role }) => role === "tool")
              const { stream } = yield* Script.make([isCalled ? said : calling("work")])
              return stream({ messages, tools: [] } as never)
            }))
        })
      }
      const tools = [work]
      const again = (session: Session.Session) => Effect.retry(Session.reply(session, "x", { tools }), { times: 1 })
      const operations: Record<string, (session: Session.Session) => Effect.Effect<unknown, unknown, Adapter.Adapter>> =
        {
          again,
          twice: (session) =>
            Effect.andThen(Session.reply(session, "x", { tools }), Session.reply(session, "y", { tools })),
          copy: (session) => Session.reply({ ...session, context: { user: "ann" } }, "x", { tools }),
          "copy again": (session) => again({ ...session, metadata: { from: "test" } }),
          step: (session) => Session.step(session, { tools })
        }
      for (const [name, operation] of Object.entries(operations)) {
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const kept = yield* Session.keep(cut, operation)
          const loaded = yield* Session.load("s")
          assert.deepStrictEqual(loaded?.session, kept.session, name)
          assert.deepStrictEqual(answersTo(kept.session, "work").length, 1, name)
          assert.include(answersTo(kept.session, "work")[0], "unknown_effect", name)
          isWhole(kept.session)
        }).pipe(Effect.provide([model(name.includes("again") ? 1 : 0), prefixed("s", before)]))
      }
      assert.deepStrictEqual(worked.length, 1, "the first run alone")
    }))

  it.effect("a message after an interrupted turn leaves no unfinished work, and the session can be written as a snapshot", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
      const before = yield* cut([work], 4)
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        const kept = yield* Session.keep(cut, (session) => Session.append(session, [Message.user("Later")]))
        assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), [])
        assert.deepStrictEqual((yield* Session.snapshot(kept)).session, kept.session)
      }).pipe(Effect.provide(prefixed("s", before)))
      yield* Effect.gen(function*() {
        yield* Session.submit("s", "Next")
        const cut = (yield* Session.load("s"))!
        yield* Session.keep(cut, (session) => Session.append(session, [Message.user("Later")]))
        assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
      }).pipe(Effect.provide(prefixed("s", before)))
    }))

  it.effect("a call settled beside another waiting call leaves the session with work left", () =>
    Effect.gen(function*() {
      const [one, two] = ["one", "two"].map((name) => Tool.make(name, { parameters: {}, manual: true }))
      const before = (yield* cut([one!, two!], 99)).filter(({ _tag }) => _tag !== "RunEnded")
      yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        yield* Session.keep(cut, (session) => Session.answer(session, "one", "done"))
        assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
      }).pipe(Effect.provide(prefixed("s", before)))
    }))

  it.effect("a result in a closed turn is within its tool's limit, and an error is answered as onToolError decided", () =>
    Effect.gen(function*() {
      const long = Tool.make("long", {
        parameters: {},
        maxResultChars: 60,
        handler: () => Effect.succeed("x".repeat(999))
      })
      const decided = Tool.make("decided", {
        parameters: {},
        failure: Schema.String,
        onToolError: () => Effect.succeed(Tool.ErrorDecision.continue("please try less")),
        handler: () => Effect.fail("a secret")
      })
      const failing = Tool.make("failing", {
        parameters: {},
        failure: Schema.String,
        handler: () => Effect.fail("no money")
      })
      const before = yield* cutBeforeEnd([long, decided, failing])
      const { value } = yield* Effect.gen(function*() {
        const cut = (yield* Session.load("s"))!
        return yield* Session.keep(cut, (session) => Session.append(session, [Message.user("Later")]))
      }).pipe(Effect.provide(prefixed("s", before)))
      assert.isBelow(answersTo(value, "long")[0]!.length, 200)
      assert.deepStrictEqual(answersTo(value, "decided"), ["please try less"])
      assert.include(answersTo(value, "failing")[0], "no money")
    }))

  it.effect("an answer beside a running run counts once, and the run continues", () =>
    Effect.gen(function*() {
      const gate = yield* Deferred.make<void>()
      const paid: Array<string> = []
      const tools = [
        Tool.make("ask", { parameters: {}, approval: true, handler: () => Effect.succeed(Tool.askUser("Which?")) }),
        Tool.make("slow", {
          parameters: {},
          approval: true,
          handler: () => Effect.as(Deferred.await(gate), "slow done")
        }),
        Tool.make("pay", {
          parameters: {},
          approval: true,
          concurrency: "exclusive",
          handler: (_, call) => Effect.sync(() => (paid.push(call.idempotencyKey), "paid"))
        })
      ] as const
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools }))
        const approved = yield* Session.keep(
          asked,
          (session) =>
            Effect.reduce(["ask", "slow", "pay"], () => session, (session, id) => Session.approve(session, id))
        )
        const live = yield* Effect.forkChild(
          Session.keep(approved, (session) => Session.continue(session, null, { tools }))
        )
        const waits = Effect.map(
          Session.load("s"),
          (kept) => kept?.session.suspensions.some(({ id }) => id === "ask") === true
        )
        while (!(yield* waits)) yield* Effect.yieldNow
        yield* Session.keep((yield* Session.load("s"))!, (session) => Session.answer(session, "ask", "this one"))
        assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
        yield* Deferred.succeed(gate, undefined)
        const kept = yield* Fiber.join(live)
        assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
        assert.deepStrictEqual(
          ["ask", "slow", "pay"].flatMap((id) => answersTo(kept.session, id)),
          ["this one", "slow done", "paid"]
        )
        yield* Session.keep(kept, (session) => Session.continue(session, null, { tools }))
        assert.strictEqual(paid.length, 1)
      }).pipe(Effect.provide([Script.layer([calling("ask", "slow", "pay"), said]), Session.Store.layerMemory]))
    }))

  it.effect("context updates of approved calls stay in a session whose run is not resumed", () =>
    Effect.gen(function*() {
      const pay = Tool.make("pay", {
        parameters: {},
        approval: true,
        handler: (_, call) => Effect.as(call.updateContext({ paid: true }), "paid")
      })
      const records = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", { tools: [pay] }))
        const approved = yield* Session.keep(asked, (session) => Session.approve(session, "pay"))
        const { value: _, ...kept } = approved
        yield* Session.keep(kept, (session) => Session.continue(session, null, { tools: [pay] }))
        return yield* journalOf("s")
      }).pipe(Effect.provide([Script.layer([calling("pay"), said]), Session.Store.layerMemory]))
      const first = records.findIndex(({ _tag }) => _tag === "CallEnded")
      for (let length = first + 1; length <= records.length; length++) {
        yield* Effect.gen(function*() {
          const cut = (yield* Session.load("s"))!
          const kept = yield* Session.keep(cut, (session) => Session.append(session, [Message.user("Later")]))
          assert.deepStrictEqual(kept.session.context, { paid: true }, `cut behind record ${length}`)
          assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session)
        }).pipe(Effect.provide(prefixed("s", records.slice(0, length))))
      }
    }))

  it.effect("a submitted message stays work to do, whatever is recorded after the message", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      yield* Session.submit("s", "hello")
      // The session is another one, and the operation does not know of the message when it begins.
      yield* Session.keep(
        opened,
        (session) => Session.append({ ...session, context: { user: "ann" } }, [Message.user("m")])
      )
      assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
      const tools = ["one", "two"].map((name) => Tool.make(name, { parameters: {}, manual: true }))
      const begun = yield* Session.open("t")
      yield* Session.keep(begun, (session) => Session.reply(session, "go", { tools: tools as [] })).pipe(
        Effect.provide(Script.layer([calling("one", "two")]))
      )
      yield* Session.submit("t", "and then this")
      yield* Session.keep((yield* Session.load("t"))!, (session) => Session.answer(session, "one", "done"))
      // It waits behind the call that is open.
      assert.deepStrictEqual(yield* Stream.runCollect(Session.unfinished), ["s"])
      const refused = yield* Effect.flip(Session.snapshot((yield* Session.load("t"))!))
      assert.deepInclude(refused, { _tag: "SessionError", reason: "unfinished" })
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("a stop of a session deleted meanwhile ends", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
      const before = yield* cut([work], 4)
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const { ended } = yield* Session.stop("s")
        yield* Session.delete("s")
        assert.deepStrictEqual(yield* ended, { stopped: [], ended: [], refused: [], unknown: ["work"] })
        yield* store.append("s", 0, before as [Journal.Record])
        const deleting: Journal.Service = {
          ...store,
          append: (id, expected, records, options) =>
            Effect.andThen(store.delete(id), store.append(id, expected, records, options))
        }
        const stopped = yield* Effect.provideService(Session.stop("s"), Session.Store, deleting)
        assert.deepStrictEqual(yield* stopped.ended, { stopped: [], ended: [], refused: [], unknown: [] })
      }).pipe(Effect.provide(prefixed("s", before)))
    }))

  it.effect("a run left in the middle of a keep is interrupted, and the next operation closes its turn", () =>
    Effect.gen(function*() {
      const charged: Array<string> = []
      const charge = Tool.make("charge", {
        parameters: {},
        handler: (_, call) => Effect.sync(() => (charged.push(call.idempotencyKey), "charged"))
      })
      const wait = Tool.make("wait", { parameters: {}, handler: () => Effect.never })
      const tools = [charge, wait]
      // The model makes its calls where the thread has none.
      const model = Adapter.layer({
        stream: (request) =>
          Stream.unwrap(Effect.map(
            Script.make([request.messages.some(({ role }) => role === "tool") ? said : calling("charge", "wait")]),
            ({ stream }) => stream(request)
          ))
      })
      const leaving = (session: Session.Session) =>
        Session.streamReply(session, "one", { tools }).pipe(
          Stream.takeUntil(({ _tag }) => _tag === "ToolResultEncoded"),
          Stream.runDrain
        )
      const check = (kept: Session.Kept, where: string) =>
        Effect.gen(function*() {
          assert.deepStrictEqual(answersTo(kept.session, "charge"), ["charged"], where)
          assert.include(answersTo(kept.session, "wait")[0], "unknown_effect", where)
          assert.deepStrictEqual((yield* Session.load("s"))?.session, kept.session, where)
          assert.strictEqual(charged.splice(0).length, 1, where)
        })
      const fresh = Effect.provide([model, Session.Store.layerMemory], { local: true })
      yield* fresh(Effect.gen(function*() {
        const { value: _, ...left } = yield* Session.keep(yield* Session.open("s"), leaving)
        assert.isDefined(left.interrupted)
        assert.deepStrictEqual(left, yield* Session.load("s"))
        yield* check(yield* Session.keep(left, (session) => Session.reply(session, "two", { tools })), "the next keep")
      }))
      yield* fresh(Effect.gen(function*() {
        const kept = yield* Session.keep(
          yield* Session.open("s"),
          (session) => Effect.andThen(leaving(session), Session.reply(session, "two", { tools }))
        )
        yield* check(kept, "the same keep")
      }))
    }))

  it.effect("a stop overtaken by a new run reports the calls of the new run", () =>
    Effect.gen(function*() {
      const work = Tool.make("work", { parameters: {}, handler: () => Effect.succeed("worked") })
      const before = yield* cut([work], 4)
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const [, , , started] = before
        if (started?._tag !== "CallStarted") return assert.fail("a call has started")
        const over = (requestId: string): Journal.Record => ({
          _tag: "RunEnded",
          requestId,
          haltedReason: "completed",
          status: "completed"
        })
        let isFirst = true
        const busy: Journal.Service = {
          ...store,
          append: (id, expected, records, options) =>
            Effect.gen(function*() {
              if (isFirst) {
                yield* store.append(id, expected, [
                  over(started.requestId),
                  { _tag: "RunStarted", requestId: "next", operation: "continue", startedAt: 0, messages: [] },
                  {
                    ...started,
                    requestId: "next",
                    toolCallId: "other",
                    toolCall: Message.toolCall("other", "work", {})
                  }
                ])
              }
              isFirst = false
              return yield* store.append(id, expected, records, options)
            })
        }
        const { ended } = yield* Effect.provideService(Session.stop("s"), Session.Store, busy)
        yield* store.append("s", yield* store.version("s"), [over("next")])
        assert.deepStrictEqual(yield* ended, { stopped: [], ended: [], refused: [], unknown: ["other"] })
      }).pipe(Effect.provide(prefixed("s", before)))
    }))
})
