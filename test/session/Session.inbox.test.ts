/** Messages into the run of a kept session: their fates are in its journal. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, type Event, Inbox, Journal, Message, Policy, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { racedAt, stores } from "../support/edges.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const { finish, text, toolCall } = Script

const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

/** A model that looks so often, and answers. It replies by the conversation alone. */
const modelOf = (looks: number, asked: Array<Adapter.Request> = []): Layer.Layer<Adapter.Adapter> =>
  Adapter.layer({
    stream: (request) => {
      asked.push(request)
      const turn = request.messages.filter(({ role }) => role === "assistant").length
      const reply = turn < looks
        ? [toolCall(`c${turn}`, "look", {}), finish("tool_calls")]
        : [text("Done."), finish("stop")]
      return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
    }
  })

/** A tool during whose calls another process does something. */
const lookWith = (act: (turn: number) => Effect.Effect<unknown, any, Session.Store>) =>
  Effect.map(Session.Store, (store) =>
    Tool.make("look", {
      parameters: {},
      idempotent: true,
      handler: (_, call) =>
        Effect.as(
          Effect.orDie(Effect.provideService(act(Number(call.id.slice(1))), Session.Store, store)),
          "seen"
        )
    }))

const reply = (look: Tool.Any, options: object = {}) =>
  Effect.flatMap(
    Session.open("s"),
    (kept) =>
      Session.keep(
        kept,
        (session) => Session.reply(session, "go", { tools: [look], requestId: "run", ...options } as {})
      )
  )

const receiptOf = (id: string) => Effect.map(Session.open("s"), (kept) => Session.receipt(kept, id))

const fateOf = (receipt: Journal.Receipt | undefined) =>
  receipt &&
  { became: receipt.became, requestId: receipt.requestId, stepIndex: receipt.stepIndex, reason: receipt.reason }

for (const [name, store] of Object.entries(stores)) {
  describe(`messages into the run of a session: ${name}`, () => {
    it.effect("a steer of another process is in the next request once, and its receipt says delivered", () =>
      Effect.gen(function*() {
        const asked: Array<Adapter.Request> = []
        const look = yield* lookWith((turn) =>
          turn === 0 ? Session.submit("s", "not that", { id: "m", mode: "steer" }) : Effect.void
        )
        const events: Array<Event.Event> = []
        const { session } = yield* reply(look, { onEvent: (event: Event.Event) => void events.push(event) }).pipe(
          Effect.provide(modelOf(2, asked))
        )
        assert.deepStrictEqual(asked.map(({ messages }) => userTexts(messages)), [
          ["go"],
          ["go", "not that"],
          ["go", "not that"]
        ])
        assert.deepStrictEqual(userTexts(session.thread.messages), ["go", "not that"])
        assert.deepStrictEqual(fateOf(yield* receiptOf("m")), {
          became: "delivered",
          requestId: "run",
          stepIndex: 1,
          reason: undefined
        })
        assert.lengthOf(events.filter(({ _tag }) => _tag === "MessageDelivered"), 1)
        assert.deepStrictEqual(Journal.check(yield* journalOf("s")), [])
      }).pipe(Effect.provide(store)))

    it.effect("a follow re-opens the run, and a message that no run gets waits for the next run or is refused", () =>
      Effect.gen(function*() {
        const look = yield* lookWith((turn) =>
          turn === 0
            ? Effect.all([
              Session.submit("s", "and then?", { id: "m1", mode: "follow" }),
              Session.submit("s", "later", { id: "m2" })
            ])
            : Effect.void
        )
        const { session } = yield* Effect.provide(reply(look), modelOf(1))
        assert.deepStrictEqual(userTexts(session.thread.messages), ["go", "and then?"])
        assert.propertyVal(yield* receiptOf("m1"), "became", "delivered")
        assert.propertyVal(yield* receiptOf("m2"), "became", "queued")
        yield* Session.submit("s", "too late", { id: "m3", mode: "steer", otherwise: "refuse" })
        assert.deepStrictEqual(fateOf(yield* receiptOf("m3")), {
          became: "refused",
          requestId: undefined,
          stepIndex: undefined,
          reason: "finished"
        })
        yield* Session.submit("s", "as well", { id: "m4", mode: "steer" })
        assert.propertyVal(yield* receiptOf("m4"), "became", "queued")
        const kept = yield* Session.open("s")
        assert.deepStrictEqual(kept.submitted?.map(({ id }) => id), ["m2", "m4"])
      }).pipe(Effect.provide(store)))

    it.effect("a session without work stays without work after a refused and after a withdrawn message", () =>
      Effect.gen(function*() {
        yield* Session.submit("s", "too late", { id: "m1", mode: "follow", otherwise: "refuse" })
        assert.propertyVal(yield* receiptOf("m1"), "became", "refused")
        yield* Session.submit("s", "too late", { mode: "steer", otherwise: "refuse" })
        const nextOf = Effect.map(Stream.runCollect(Session.list({})), (all) => Array.from(all, ({ next }) => next))
        assert.deepStrictEqual(yield* nextOf, ["nothing"])
        yield* Session.submit("s", "hi", { id: "m2" })
        assert.deepStrictEqual(yield* nextOf, ["reply"])
        assert.isTrue(yield* Session.withdraw("s", "m2", { by: "ann" }))
        assert.deepStrictEqual(yield* nextOf, ["nothing"])
        assert.isFalse(yield* Session.withdraw("s", "m2"))
        assert.isFalse(yield* Session.withdraw("none", "m2"))
        assert.propertyVal(yield* receiptOf("m2"), "became", "withdrawn")
        assert.deepStrictEqual(Journal.check(yield* journalOf("s")), [])
      }).pipe(Effect.provide(store)))

    it.effect("G95: the same id and content returns the same receipt, and other content under the id is refused", () =>
      Effect.gen(function*() {
        const look = yield* lookWith((turn) =>
          turn === 0 ? Session.submit("s", "not that", { id: "m", mode: "steer" }) : Effect.void
        )
        yield* Effect.provide(reply(look), modelOf(1))
        const before = yield* receiptOf("m")
        const { id } = yield* Session.submit("s", "not that", { id: "m", mode: "steer" })
        assert.strictEqual(id, "m")
        assert.deepStrictEqual(yield* receiptOf("m"), before)
        const error = yield* Effect.flip(Session.submit("s", "that", { id: "m", mode: "steer" }))
        assert.propertyVal(error, "reason", "id_taken")
        assert.lengthOf((yield* journalOf("s")).filter(({ _tag }) => _tag === "MessageSubmitted"), 1)
      }).pipe(Effect.provide(store)))

    it.effect("G49: of a withdrawal and a concurrent delivery one counts, at every append, and both sides learn the outcome", () =>
      Effect.gen(function*() {
        const fates = new Set<string>()
        for (let at = 0; at < 14; at++) {
          const withdrawn: Array<boolean> = []
          const asked: Array<Adapter.Request> = []
          const program = Effect.gen(function*() {
            const look = yield* lookWith((turn) =>
              turn === 0 ? Session.submit("s", "not that", { id: "m", mode: "steer" }) : Effect.void
            )
            const own = yield* Session.Store
            const other = Effect.orDie(Effect.provideService(Session.withdraw("s", "m"), Session.Store, own))
            // Another process withdraws right before one of the owner's appends.
            const raced = racedAt(own, at, Effect.map(other, (isWithdrawn) => withdrawn.push(isWithdrawn)))
            const { session } = yield* reply(look).pipe(
              Effect.provide(modelOf(2, asked)),
              Effect.provideService(Session.Store, raced)
            )
            return { session, receipt: yield* receiptOf("m"), problems: Journal.check(yield* journalOf("s")) }
          }).pipe(Effect.provide(Layer.fresh(store)))
          const { problems, receipt, session } = yield* program
          const isIn = userTexts(session.thread.messages).includes("not that")
          assert.deepStrictEqual(problems, [])
          assert.strictEqual(receipt?.became, isIn ? "delivered" : "withdrawn", `at append ${at}`)
          assert.deepStrictEqual(withdrawn.filter(Boolean), isIn ? [] : [true], `at append ${at}`)
          assert.strictEqual(asked.some(({ messages }) => userTexts(messages).includes("not that")), isIn)
          fates.add(receipt?.became ?? "")
        }
        assert.deepStrictEqual([...fates].sort(), ["delivered", "withdrawn"])
      }))

    for (const withStop of [false, true]) {
      const what = withStop ? "G46: a steer beside a stop of another process" : "G45: a steer of another process"
      it.effect(`${what}, sent before any append, is in the thread once or refused`, () =>
        Effect.gen(function*() {
          const fates = new Set<string>()
          for (let at = 1; at < 14; at++) {
            let isSent = false
            const asked: Array<Adapter.Request> = []
            yield* Effect.gen(function*() {
              const look = yield* lookWith(() => Effect.void)
              const own = yield* Session.Store
              const sending = Effect.gen(function*() {
                if (withStop && at % 2 === 0) yield* Session.stop("s")
                yield* Session.submit("s", "not that", { id: "m", mode: "steer", otherwise: "refuse" })
                if (withStop && at % 2 === 1) yield* Session.stop("s")
                isSent = true
              })
              const raced = racedAt(own, at, Effect.orDie(Effect.provideService(sending, Session.Store, own)))
              const { session } = yield* reply(look).pipe(
                Effect.provide(modelOf(2, asked)),
                Effect.provideService(Session.Store, raced)
              )
              if (!isSent) return
              const where = `before append ${at}`
              const receipt = yield* receiptOf("m")
              const times = userTexts(session.thread.messages).filter((content) => content === "not that").length
              assert.deepStrictEqual(Journal.check(yield* journalOf("s")), [], where)
              assert.include(["delivered", "refused"], receipt?.became, where)
              assert.strictEqual(times, receipt?.became === "delivered" ? 1 : 0, where)
              const isAsked = asked.some(({ messages }) => userTexts(messages).includes("not that"))
              // A stop may come between the delivery and its request.
              if (!withStop || isAsked) assert.strictEqual(isAsked, times === 1, where)
              fates.add(receipt?.became === "refused" ? `refused: ${receipt.reason}` : "delivered")
            }).pipe(Effect.provide(Layer.fresh(store)))
          }
          const expected = withStop ? ["refused: stopped"] : ["delivered", "refused: finished"]
          for (const fate of expected) assert.include([...fates], fate)
        }))
    }

    it.effect("G47: three steers of another process are in one request, in their order, and in one record", () =>
      Effect.gen(function*() {
        const asked: Array<Adapter.Request> = []
        const look = yield* lookWith((turn) =>
          turn > 0
            ? Effect.void
            : Effect.forEach(["one", "two", "three"], (id) => Session.submit("s", id, { id, mode: "steer" }))
        )
        yield* Effect.provide(reply(look), modelOf(1, asked))
        assert.deepStrictEqual(asked.map(({ messages }) => userTexts(messages)), [["go"], [
          "go",
          "one",
          "two",
          "three"
        ]])
        const delivered = (yield* journalOf("s")).flatMap((record) =>
          record._tag === "StepPrepared" && record.delivered !== undefined ? [record.delivered] : []
        )
        assert.deepStrictEqual(delivered, [["one", "two", "three"]])
      }).pipe(Effect.provide(store)))

    it.effect("G96: a run that fails before its first reply gives back its own message, and has delivered no message", () =>
      Effect.gen(function*() {
        yield* Session.submit("s", "go", { id: "own" })
        yield* Session.submit("s", "not that", { id: "m1", mode: "steer" })
        yield* Session.submit("s", "and then?", { id: "m2", mode: "follow", otherwise: "next" })
        const down = Adapter.layer({
          stream: () => Stream.fail(new Adapter.AdapterError({ reason: "authentication_failed" }))
        })
        const take = Effect.flatMap(
          Session.open("s"),
          (kept) =>
            Session.keep(kept, (session) => Session.reply(session, "go", { takes: "own", requestId: "run" } as {}))
        )
        assert.isTrue(Exit.isFailure(yield* Effect.exit(Effect.provide(take, down))))
        const became = Effect.forEach(["own", "m1", "m2"], (id) => Effect.map(receiptOf(id), (one) => one?.became))
        assert.deepStrictEqual(yield* became, ["queued", "queued", "queued"])
        assert.deepStrictEqual((yield* Session.open("s")).submitted?.map(({ id }) => id), ["own", "m1", "m2"])
        assert.deepStrictEqual(Journal.check(yield* journalOf("s")), [])
        // The next attempt gets all of them.
        const { session } = yield* Effect.provide(take, modelOf(0))
        assert.deepStrictEqual(userTexts(session.thread.messages), ["go", "not that", "and then?"])
        assert.deepStrictEqual(yield* became, ["completed", "delivered", "delivered"])
      }).pipe(Effect.provide(store)))

    it.effect("G50: in a run killed at every record each message has one fate, and only a delivered message is in the thread, once", () =>
      Effect.gen(function*() {
        const look = yield* lookWith((turn) =>
          turn === 0
            ? Effect.all([
              Session.submit("s", "one", { id: "m1", mode: "steer" }),
              Session.submit("s", "two", { id: "m2", mode: "follow" }),
              Session.submit("s", "three", { id: "m3", mode: "steer", otherwise: "refuse" })
            ])
            : turn === 1
            ? Effect.all([Session.withdraw("s", "m2"), Session.submit("s", "four", { id: "m4", mode: "follow" })])
            : Effect.void
        )
        yield* Effect.provide(reply(look), modelOf(2))
        const whole = yield* journalOf("s")
        let kills = 0
        for (let length = 2; length < whole.length; length++) {
          const cut = whole.slice(0, length)
          const program = Effect.gen(function*() {
            const quiet = yield* lookWith(() => Effect.void)
            const kept = (yield* Session.load("s"))!
            const { session } = yield* Session.resume(
              kept,
              { tools: [quiet], takeOver: true, requestId: "run" } as {}
            )
            return { session, records: yield* journalOf("s"), kept: yield* Session.open("s") }
          }).pipe(Effect.provide([modelOf(2), prefixed("s", cut, Layer.fresh(store))]))
          const { kept, records, session } = yield* program
          const where = `killed behind record ${length}, ${cut.at(-1)?._tag}`
          assert.deepStrictEqual(Journal.check(records), [], where)
          const texts = userTexts(session.thread.messages)
          for (const [id, content] of [["m1", "one"], ["m2", "two"], ["m3", "three"], ["m4", "four"]] as const) {
            const receipt = Session.receipt(kept, id)
            const accepted = cut.some((record) => record._tag === "MessageSubmitted" && record.id === id)
            assert.strictEqual(receipt !== undefined, accepted, where)
            const times = texts.filter((text) => text === content).length
            assert.strictEqual(times, receipt?.became === "delivered" ? 1 : 0, `${where}: ${id} ${receipt?.became}`)
            const told = records.filter((record) =>
              record._tag === "StepPrepared" && record.delivered?.includes(id) === true
            )
            assert.lengthOf(told, times, where)
          }
          kills++
        }
        assert.isAbove(kills, 10)
      }).pipe(Effect.provide(store)))
  })
}

describe("messages into the run of a session", () => {
  it.effect("a refused message has the run's end as its reason, also where a budget ended the run", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [string, object]> = [
        ["budget", { budget: Budget.make({ calls: 1 }, { onExhausted: "halt" }) }],
        ["max_turns", { maxTurns: 1 }],
        ["halted", { haltWhen: () => true }]
      ]
      for (const [reason, options] of cases) {
        const program = Effect.gen(function*() {
          const look = yield* lookWith(() =>
            Session.submit("s", "later", { id: "m", mode: "follow", otherwise: "refuse" })
          )
          const events: Array<Event.Event> = []
          yield* reply(look, { ...options, onEvent: (event: Event.Event) => void events.push(event) })
          assert.deepStrictEqual(fateOf(yield* receiptOf("m"))?.reason, reason)
          assert.deepStrictEqual(events.filter(({ _tag }) => _tag === "MessageRefused"), [
            { _tag: "MessageRefused", id: "m", message: Message.user("later"), reason }
          ])
        }).pipe(Effect.provide([modelOf(9), Session.Store.layerMemory]))
        yield* program
      }
    }))

  it.effect("a message sent after a run's end is refused with the reason of that end, also after a snapshot", () =>
    Effect.gen(function*() {
      const cases: ReadonlyArray<readonly [string, object]> = [
        ["finished", {}],
        ["budget", { budget: Budget.make({ calls: 1 }) }],
        ["budget", { budget: Budget.make({ calls: 1 }, { onExhausted: "halt" }) }],
        ["max_turns", { maxTurns: 1, policy: { ...Policy.standard, onMaxTurns: "finalize" } }],
        ["max_turns", { maxTurns: 1 }],
        ["halted", { haltWhen: () => true }]
      ]
      for (const [reason, options] of cases) {
        const program = Effect.gen(function*() {
          yield* reply(yield* lookWith(() => Effect.void), options)
          yield* Session.submit("s", "late", { id: "m1", mode: "steer", otherwise: "refuse" })
          yield* Session.snapshot(yield* Session.open("s"))
          yield* Session.submit("s", "later", { id: "m2", mode: "follow", otherwise: "refuse" })
          return [fateOf(yield* receiptOf("m1"))?.reason, fateOf(yield* receiptOf("m2"))?.reason]
        }).pipe(Effect.provide([modelOf(1), Session.Store.layerMemory]))
        assert.deepStrictEqual(yield* program, [reason, reason])
      }
    }))

  it.effect("an inbox option is a defect in a kept session, and works in a run inside a handler", () =>
    Effect.gen(function*() {
      const inbox = Inbox.make()
      yield* inbox.follow("inner", { id: "i" })
      const nested = Tool.make("look", {
        parameters: {},
        handler: () => Effect.map(Chat.run("in", { inbox }), ({ thread }) => userTexts(thread.messages).join())
      })
      const program = Effect.gen(function*() {
        const { session } = yield* reply(nested)
        const answer = session.thread.messages.find(({ role }) => role === "tool")
        assert.strictEqual(answer?.content, "in,inner")
        const exit = yield* Effect.exit(reply(nested, { inbox: Inbox.make() }))
        assert.match(String(exit), /inbox: a kept session has its own/)
      })
      yield* Effect.provide(program, [modelOf(1), Session.Store.layerMemory])
    }))

  it.effect("an unknown mode of a message is a defect", () =>
    Effect.gen(function*() {
      const exit = yield* Effect.exit(Session.submit("s", "hi", { mode: "later" as never }))
      assert.match(String(exit), /mode of Session.submit|mode.*steer/)
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
