/** Messages to the runs inside a kept session: passed on from journal to journal under one id, with one fate. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Journal, type Message, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import {
  type Append,
  holding,
  inOrder,
  isLoaded,
  listing,
  passing,
  raced,
  racedAt,
  recordsOf,
  stores
} from "../support/edges.ts"

const { finish, text, toolCall } = Script

const userTexts = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<unknown> =>
  messages.flatMap(({ content, role }) => role === "user" ? [content] : [])

/** The runs by their first messages: the tool that each calls, and how often. */
const calls: Record<string, readonly [id: string, name: string, times: number]> = {
  go: ["c0", "outer", 1],
  middle: ["i0", "inner", 1],
  deep: ["d0", "look", 2],
  other: ["o0", "look", 1]
}

/** A model that replies by the conversation alone. */
const modelOf = (asked: Array<Adapter.Request>, begins?: ReadonlyArray<ReturnType<typeof toolCall | typeof finish>>) =>
  Adapter.layer({
    stream: (request) => {
      asked.push(request)
      const turn = request.messages.filter(({ role }) => role === "assistant").length
      const [id, name, times] = calls[String(request.messages[0]?.content)]!
      const reply = turn === 0 && id === "c0" && begins !== undefined
        ? begins
        : turn < times
        ? [toolCall(turn === 0 ? id : `${id}${turn}`, name, {}), finish("tool_calls")]
        : [text("Done."), finish("stop")]
      return Stream.unwrap(Effect.map(Script.make([reply]), (scripted) => scripted.stream(request)))
    }
  })

/** Something that another process does during a call of the innermost run, by the id of the call. */
type Act = (call: string) => Effect.Effect<unknown, any, Session.Store>

const toolsWith = (act: Act, pause = 1_000, options: Chat.Options = {}) =>
  Effect.map(Session.Store, (store) => {
    const look = Tool.make("look", {
      parameters: {},
      idempotent: true,
      handler: (_, call) =>
        act(call.id).pipe(
          Effect.provideService(Session.Store, store),
          Effect.orDie,
          // The owner looks for commands meanwhile.
          Effect.andThen(Effect.sleep(pause)),
          Effect.as("seen")
        )
    })
    const inner = Tool.fromChat("inner", {
      parameters: {},
      chat: () => Chat.stream("deep", { ...options, tools: [look] })
    })
    const outer = Tool.fromChat("outer", { parameters: {}, chat: () => Chat.stream("middle", { tools: [inner] }) })
    return [outer] as const
  })

/** Runs the session to its end as an owner: begins it, or resumes it. */
const driven = (act: Act, given?: ReadonlyArray<Tool.Any>) =>
  Effect.scoped(Effect.gen(function*() {
    const tools = (given ?? (yield* toolsWith(act))) as Effect.Success<ReturnType<typeof toolsWith>>
    const kept = yield* Session.claim("s")
    if (kept.interrupted !== undefined) return yield* Session.resume(kept, { tools })
    if (kept.session.thread.messages.length > 0) return { ...kept, value: undefined }
    return yield* Session.keep(kept, (session) => Session.reply(session, "go", { tools, requestId: "run" } as {}))
  }))

const receiptOf = (id: string) => Effect.map(Session.open("s"), (kept) => Session.receipt(kept, id))

const fateOf = (receipt: Journal.Receipt | undefined) =>
  receipt && { became: receipt.became, stepIndex: receipt.stepIndex, reason: receipt.reason }

const delivered = (stepIndex: number) => ({ became: "delivered" as const, stepIndex, reason: undefined })
const refused = (reason: string) => ({ became: "refused" as const, stepIndex: undefined, reason })

/** The requests of the run that began with this message, by the texts of their users. */
const askedOf = (asked: ReadonlyArray<Adapter.Request>, first: string) =>
  asked.map(({ messages }) => userTexts(messages)).filter(([text]) => text === first)

const sessionIds = Effect.map(Stream.runCollect(Session.list()), (all) => Array.from(all, ({ id }) => id))

/** The journals that delivered a message, once for each time. */
const deliveriesOf = (id: string) =>
  Effect.gen(function*() {
    const found: Array<string> = []
    for (const session of yield* sessionIds) {
      for (const record of yield* recordsOf(session)) {
        if (record._tag === "StepPrepared" && record.delivered?.includes(id) === true) found.push(session)
      }
    }
    return found
  })

/** Holds that a message has one fate, and is in the thread of one run iff it was delivered. */
const hasOneFate = (id: string, asked: ReadonlyArray<Adapter.Request>, content: string, where: string) =>
  Effect.gen(function*() {
    const receipt = yield* receiptOf(id)
    const deliveries = yield* deliveriesOf(id)
    assert.include(["delivered", "refused", "withdrawn"], receipt?.became, where)
    assert.lengthOf(deliveries, receipt?.became === "delivered" ? 1 : 0, `${where}: ${receipt?.became}`)
    for (const { messages } of asked) {
      const times = userTexts(messages).filter((text) => text === content).length
      assert.isAtMost(times, receipt?.became === "delivered" ? 1 : 0, where)
      if (times > 0) assert.include(deliveries[0], "@", where)
    }
    for (const session of yield* sessionIds) {
      const kept = (yield* Session.load(session))!
      const own = Session.receipt(kept, id)
      if (own !== undefined) assert.deepStrictEqual(fateOf(own), fateOf(receipt), `${where}: ${session}`)
    }
    return receipt?.became
  })

/** Holds that a journal passes a message on so many times, and that each journal which it names has the message. */
const isForwarded = (id: string, from: string, times: number) =>
  Effect.gen(function*() {
    const named = (yield* recordsOf(from)).flatMap((record) =>
      record._tag === "MessageForwarded" && record.id === id ? [record.session] : []
    )
    assert.lengthOf(named, times)
    for (const session of named) assert.isDefined(Session.receipt(yield* Session.open(session), id), session)
  })

/** What the next owner does with the run of a process that was killed. */
const ways = ["resumed", "abandoned"] as const

const steer = (id: string, content: string, to: string) => Session.submit("s", content, { id, mode: "steer", to })

for (const [name, store] of Object.entries(stores)) {
  describe(`messages to the runs inside a session: ${name}`, () => {
    it.effect("G51: a message to a sub-agent's sub-agent is in that run alone, and each journal has its fate", () =>
      Effect.gen(function*() {
        const asked: Array<Adapter.Request> = []
        const act: Act = (call) => call === "d0" ? steer("m", "not that", "c0/i0") : Effect.void
        const kept = yield* passing(Effect.provide(driven(act), modelOf(asked)), 100)
        assert.deepStrictEqual(askedOf(asked, "deep"), [["deep"], ["deep", "not that"], ["deep", "not that"]])
        assert.deepStrictEqual(askedOf(asked, "middle"), [["middle"], ["middle"]])
        assert.deepStrictEqual(userTexts(kept.session.thread.messages), ["go"])
        assert.deepStrictEqual(fateOf(yield* receiptOf("m")), delivered(1))
        assert.strictEqual(yield* hasOneFate("m", asked, "not that", ""), "delivered")
        yield* isLoaded(kept)
        assert.strictEqual(Session.next(yield* Session.open("s")), "nothing")
      }).pipe(Effect.provide(store)))

    it.effect("the fate of a nested message is known while the outer run is still working, and a repeat changes nothing", () =>
      Effect.gen(function*() {
        const asked: Array<Adapter.Request> = []
        const seen: Array<string | undefined> = []
        const act: Act = (call) =>
          call === "d0"
            ? Effect.all([steer("m", "not that", "c0"), steer("n", "nor that", "c0/i0")])
            : Effect.gen(function*() {
              yield* Effect.sleep(500)
              seen.push((yield* receiptOf("m"))?.became, (yield* receiptOf("n"))?.became)
              yield* steer("m", "not that", "c0/i0")
              const error = yield* Effect.flip(steer("m", "other", "c0/i0"))
              seen.push(error.reason)
            })
        yield* passing(Effect.provide(driven(act), modelOf(asked)), 100)
        assert.deepStrictEqual(seen, ["queued", "delivered", "id_taken"])
        assert.deepStrictEqual(askedOf(asked, "middle"), [["middle"], ["middle", "not that"]])
        assert.strictEqual(yield* hasOneFate("m", asked, "not that", ""), "delivered")
        assert.strictEqual(yield* hasOneFate("n", asked, "nor that", ""), "delivered")
      }).pipe(Effect.provide(store)))

    it.effect("a message to a path without a running run is refused as finished at once, and leaves no work", () =>
      Effect.gen(function*() {
        const asked: Array<Adapter.Request> = []
        const paths = [
          "c1",
          "c0/i1",
          "c0/i0/d0",
          "__proto__",
          "c0/__proto__",
          "constructor",
          "c%2F0",
          "a".repeat(9_999)
        ]
        const seen: Array<unknown> = []
        const act: Act = (call) =>
          call === "d0"
            ? Effect.forEach(paths, (to, index) => steer(`m${index}`, "no", to))
            : Effect.gen(function*() {
              for (const index of paths.keys()) seen.push(fateOf(yield* receiptOf(`m${index}`)))
            })
        yield* passing(Effect.provide(driven(act), modelOf(asked)), 100)
        assert.deepStrictEqual(seen, paths.map(() => refused("finished")))
        yield* steer("late", "no", "c0")
        assert.deepStrictEqual(fateOf(yield* receiptOf("late")), refused("finished"))
        yield* Session.submit("new", "no", { id: "m", mode: "follow", to: "c0" })
        const listed = yield* Stream.runCollect(Session.list())
        assert.deepStrictEqual(Array.from(listed, ({ next }) => next), Array.from(listed, () => "nothing"))
        assert.deepStrictEqual(asked.flatMap(({ messages }) => userTexts(messages)).filter((text) => text === "no"), [])
        yield* inOrder
      }).pipe(Effect.provide(store)))

    it.effect("G51: of a withdrawal at each append and the delivery one counts, and both sides learn the outcome", () =>
      Effect.gen(function*() {
        const fates = new Set<string>()
        const appends: Array<Append> = []
        const act: Act = (call) => call === "d0" ? steer("m", "not that", "c0/i0") : Effect.void
        const whole = Effect.provide(driven(act), [modelOf([]), listing(appends, Layer.fresh(store))])
        yield* passing(whole, 100)
        const first = appends.findIndex(({ records }) => records.some(({ _tag }) => _tag === "MessageSubmitted"))
        for (let at = first + 1; at < appends.length; at++) {
          const asked: Array<Adapter.Request> = []
          const withdrawn: Array<boolean> = []
          const program = Effect.gen(function*() {
            const own = yield* Session.Store
            const other = Effect.orDie(Effect.provideService(Session.withdraw("s", "m"), Session.Store, own))
            // Another process withdraws right before one of the owner's appends.
            const late = racedAt(own, at, Effect.map(other, (is) => withdrawn.push(is)))
            yield* passing(
              driven(act).pipe(Effect.provide(modelOf(asked)), Effect.provideService(Session.Store, late)),
              100
            )
            const became = yield* hasOneFate("m", asked, "not that", `at append ${at}`)
            yield* inOrder
            return became
          }).pipe(Effect.provide(Layer.fresh(store)))
          const became = yield* program
          assert.deepStrictEqual(withdrawn, [became === "withdrawn"], `at append ${at}: ${became}`)
          fates.add(became ?? "")
        }
        assert.deepStrictEqual([...fates].sort(), ["delivered", "withdrawn"])
      }))

    it.effect("G51: in a session killed at each append of each journal a message has one fate, and is in its run iff delivered", () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        const act: Act = (call) =>
          call === "d0"
            ? Effect.all([
              steer("m1", "one", "c0/i0"),
              steer("m2", "two", "c0"),
              Session.submit("s", "three", { id: "m3", mode: "follow", to: "c0/i0" })
            ])
            : Session.withdraw("s", "m3")
        yield* passing(Effect.provide(driven(act), [modelOf([]), listing(appends, Layer.fresh(store))]), 100)
        const fates = new Set<string>()
        for (const [length, how] of appends.flatMap((_, place) => ways.map((way) => [place + 1, way] as const))) {
          const cut = appends.slice(0, length)
          const asked: Array<Adapter.Request> = []
          const program = Effect.gen(function*() {
            const { interrupted } = yield* Session.open("s")
            const where = `killed behind append ${length}, ${how}: ${cut.at(-1)?.id} ${
              cut.at(-1)?.records.map(({ _tag }) => _tag)
            }`
            // No process owns the session: the next one does what is left.
            if (interrupted !== undefined) yield* steer("m4", "four", "c0/i0")
            const kept = how === "abandoned" && interrupted !== undefined
              ? yield* Session.abandon(yield* Session.open("s"))
              : yield* passing(Effect.provide(driven(() => Effect.void), modelOf(asked)), 100)
            if (interrupted !== undefined) fates.add(`m4 ${yield* hasOneFate("m4", asked, "four", where)} ${how}`)
            for (const [id, content] of [["m1", "one"], ["m2", "two"], ["m3", "three"]] as const) {
              const isAccepted = cut.some(({ id: session, records }) =>
                session === "s" && records.some((record) => record._tag === "MessageSubmitted" && record.id === id)
              )
              if (!isAccepted) assert.isUndefined(yield* receiptOf(id), where)
              else fates.add(`${id} ${yield* hasOneFate(id, asked, content, where)} ${how}`)
            }
            yield* isLoaded(kept, where)
          }).pipe(Effect.provide(holding(cut, [], Layer.fresh(store))))
          yield* program
        }
        assert.includeMembers([...fates], [
          "m1 delivered resumed",
          "m1 delivered abandoned",
          "m1 refused abandoned",
          "m2 delivered resumed",
          "m4 delivered resumed",
          "m4 refused resumed",
          "m4 refused abandoned"
        ])
      }))

    it.effect("G51: in a session killed twice a message has one fate, and is in its run iff delivered", () =>
      Effect.gen(function*() {
        const first: Array<Append> = []
        const act: Act = (call) =>
          call === "d0" ? Effect.all([steer("m1", "one", "c0/i0"), steer("m2", "two", "c0")]) : Effect.void
        yield* passing(Effect.provide(driven(act), [modelOf([]), listing(first, Layer.fresh(store))]), 100)
        const accepted = first.findIndex(({ records }) => records.some(({ _tag }) => _tag === "MessageForwarded"))
        for (const length of [accepted, accepted + 2, accepted + 4, accepted + 6]) {
          const before = first.slice(0, length)
          const second: Array<Append> = []
          const resumed = Effect.provide(driven(() => Effect.void), [
            modelOf([]),
            holding(before, second, Layer.fresh(store))
          ])
          yield* passing(resumed, 100)
          for (let next = 1; next < second.length; next += 3) {
            const asked: Array<Adapter.Request> = []
            const program = Effect.gen(function*() {
              const kept = yield* passing(Effect.provide(driven(() => Effect.void), modelOf(asked)), 100)
              const where = `killed behind append ${length} and ${next}`
              for (const [id, content] of [["m1", "one"], ["m2", "two"]] as const) {
                if ((yield* receiptOf(id)) !== undefined) yield* hasOneFate(id, asked, content, where)
              }
              yield* isLoaded(kept, where)
            })
            yield* Effect.provide(program, holding([...before, ...second.slice(0, next)], [], Layer.fresh(store)))
          }
        }
      }))
  })
}

describe("messages to the runs inside a session", () => {
  it.effect("a message undelivered at its run's end is refused with the reason of that end", () =>
    Effect.gen(function*() {
      const ends: ReadonlyArray<readonly [string, Chat.Options, Act]> = [
        ["stopped", {}, () => Session.stop("s")],
        ["stopped", {}, () => Session.stop("s", { call: "c0/i0" })],
        ["max_turns", { maxTurns: 1 }, () => Effect.void],
        ["halted", { haltWhen: () => true }, () => Effect.void]
      ]
      for (const [reason, options, act] of ends) {
        const asked: Array<Adapter.Request> = []
        const follow = Session.submit("s", "later", { id: "m", mode: "follow", to: "c0/i0" })
        const program = Effect.gen(function*() {
          const tools = yield* toolsWith(
            () => Effect.andThen(follow, Effect.andThen(Effect.sleep(500), act(""))),
            1_000,
            options
          )
          yield* passing(Effect.provide(driven(() => Effect.void, tools), modelOf(asked)), 100)
          assert.deepStrictEqual(fateOf(yield* receiptOf("m")), refused(reason))
          assert.strictEqual(yield* hasOneFate("m", asked, "later", reason), "refused")
          yield* inOrder
        })
        yield* Effect.provide(program, Session.Store.layerMemory)
      }
    }))

  it.effect("of several runs of a call the run begun last gets the message", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const store = yield* Session.Store
      const look = (act: Effect.Effect<unknown, unknown, Session.Store>) =>
        Tool.make("look", {
          parameters: {},
          handler: () => Effect.as(Effect.orDie(Effect.provideService(act, Session.Store, store)), "seen")
        })
      const outer = Tool.make("outer", {
        parameters: {},
        handler: () =>
          Effect.all([
            Chat.run("deep", { tools: [look(Effect.sleep(3_000))] }),
            Effect.andThen(
              Effect.sleep(500),
              Chat.run("other", { tools: [look(Effect.andThen(steer("m", "you", "c0"), Effect.sleep(1_000)))] })
            )
          ], { concurrency: 2, discard: true })
      })
      yield* passing(Effect.provide(driven(() => Effect.void, [outer]), modelOf(asked)), 100)
      assert.deepStrictEqual(askedOf(asked, "other"), [["other"], ["other", "you"]])
      assert.strictEqual(yield* hasOneFate("m", asked, "you", ""), "delivered")
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("one of two concurrent withdrawals takes the message back", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const own = yield* Session.Store
      const withdraw = (store: typeof own) =>
        Effect.orDie(Effect.provideService(Session.withdraw("s", "m"), Session.Store, store))
      const answers: Array<boolean> = []
      // The other one withdraws right before the first append of the one, to the journal that has the message.
      const late = racedAt(own, 0, Effect.map(withdraw(own), (is) => answers.push(is)))
      const act: Act = (call) =>
        call === "d0"
          ? steer("m", "no", "c0/i0").pipe(
            Effect.andThen(Effect.sleep(500)),
            Effect.andThen(withdraw(late)),
            Effect.map((is) => answers.push(is))
          )
          : Effect.void
      yield* passing(Effect.provide(driven(act), modelOf(asked)), 100)
      assert.deepStrictEqual(answers, [true, false])
      assert.strictEqual(yield* hasOneFate("m", asked, "no", ""), "withdrawn")
      yield* inOrder
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("G51: a withdrawal that the owner records first in between still takes the message back", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const own = yield* Session.Store
      /** The store of the withdrawal: the owner sees the withdrawal in the innermost journal, and is faster in the others. */
      const late: typeof own = {
        ...own,
        append: (...args) => {
          const [, , records] = args
          return Effect.delay(own.append(...args), records.some(({ _tag }) => _tag === "MessageSettled") ? 3_000 : 0)
        }
      }
      const answer = Deferred.makeUnsafe<boolean>()
      const follow = Session.submit("s", "no", { id: "m", mode: "follow", to: "c0/i0" })
      const withdrawal = Session.withdraw("s", "m").pipe(
        Effect.provideService(Session.Store, late),
        Effect.orDie,
        Effect.flatMap((is) => Deferred.succeed(answer, is))
      )
      const act: Act = (call) =>
        call === "d0"
          ? follow.pipe(Effect.andThen(Effect.sleep(1_000)), Effect.andThen(Effect.forkDetach(withdrawal)))
          : Deferred.await(answer)
      yield* passing(Effect.provide(driven(act), modelOf(asked)), 100)
      assert.isTrue(yield* Deferred.await(answer))
      assert.strictEqual(yield* hasOneFate("m", asked, "no", ""), "withdrawn")
      yield* inOrder
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("G51: a run that ends while a message is passed on has the message in its journal, with the same fate", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const own = yield* Session.Store
      const has = (records: Journal.Records, tag: Journal.Record["_tag"]) => records.some(({ _tag }) => _tag === tag)
      let isSent = false
      const late = raced(own, (id, _, records) =>
        Effect.gen(function*() {
          if (/^s\/c0@[^/]+$/.test(id) && has(records, "RunEnded") && !isSent) {
            isSent = true
            yield* Effect.orDie(Effect.provideService(steer("m", "late", "c0"), Session.Store, own))
            yield* Effect.sleep(2_000)
          }
          if (id === "s" && has(records, "MessageForwarded")) yield* Effect.sleep(4_000)
        }))
      const ran = driven(() => Effect.void).pipe(
        Effect.provide(modelOf(asked)),
        Effect.provideService(Session.Store, late)
      )
      yield* passing(ran, 100)
      assert.deepStrictEqual(fateOf(yield* receiptOf("m")), refused("finished"))
      assert.strictEqual(yield* hasOneFate("m", asked, "late", ""), "refused")
      yield* isForwarded("m", "s", 1)
      yield* inOrder
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("G51: a message sent while its run begins is refused, and is not passed on", () =>
    Effect.gen(function*() {
      const asked: Array<Adapter.Request> = []
      const own = yield* Session.Store
      let isSent = false
      const late = raced(own, (id, _, records) =>
        Effect.gen(function*() {
          if (id !== "s" && records.some(({ _tag }) => _tag === "RunStarted")) yield* Effect.sleep(1_000)
          if (id === "s" && records.some(({ _tag }) => _tag === "CallEnded")) {
            // The retry of this append takes longer than the run inside takes to begin.
            if (isSent) yield* Effect.sleep(3_000)
            else yield* Effect.orDie(Effect.provideService(steer("m", "early", "c0"), Session.Store, own))
            isSent = true
          }
        }))
      const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("seen") })
      const outer = Tool.make("outer", { parameters: {}, handler: () => Chat.run("other", { tools: [look] }) })
      const look = Tool.make("look", { parameters: {}, handler: () => Effect.as(Effect.sleep(5_000), "seen") })
      const both = [toolCall("c0", "outer", {}), toolCall("c9", "quick", {}), finish("tool_calls")]
      const replies = modelOf(asked, both)
      const ran = driven(() => Effect.void, [outer, quick]).pipe(
        Effect.provide(replies),
        Effect.provideService(Session.Store, late)
      )
      yield* passing(ran, 100)
      assert.deepStrictEqual(fateOf(yield* receiptOf("m")), refused("finished"))
      assert.strictEqual(yield* hasOneFate("m", asked, "early", ""), "refused")
      yield* isForwarded("m", "s", 0)
      yield* inOrder
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("an outcome that a kill kept from the session is recorded before the run continues", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const act: Act = (call) => call === "d0" ? steer("m", "not that", "c0/i0") : Effect.void
      yield* passing(Effect.provide(driven(act), [modelOf([]), listing(appends)]), 100)
      // The run inside has ended, and the session was never told.
      const end = appends.findIndex(({ id, records }) => id !== "s" && records.some(({ _tag }) => _tag === "RunEnded"))
      const cut = appends.slice(0, end + 1).flatMap((append) => {
        const [first, ...rest] = append.records.filter(({ _tag }) => append.id !== "s" || _tag !== "MessageSettled")
        return first === undefined ? [] : [{ ...append, records: [first, ...rest] as const }]
      })
      const program = Effect.gen(function*() {
        yield* passing(Effect.provide(driven(() => Effect.void), modelOf([])), 100)
        const tags = (yield* recordsOf("s")).map(({ _tag }) => _tag)
        assert.isBelow(tags.indexOf("MessageSettled"), tags.lastIndexOf("RunStarted"))
        assert.deepStrictEqual(fateOf(yield* receiptOf("m")), delivered(1))
        yield* inOrder
      })
      yield* Effect.provide(program, holding(cut))
    }))

  it.effect("to needs a mode and a call path, and an unfit option is a defect that names the option", () =>
    Effect.gen(function*() {
      const submit = (options: object) =>
        Effect.map(Effect.exit(Session.submit("s", "no", { id: "m", ...options })), String)
      for (const to of ["", "/", "c0/", "run~c0", "%zz", 7, {}, null]) {
        assert.match(yield* submit({ mode: "steer", to }), /to.*call path/, String(to))
      }
      assert.match(yield* submit({ to: "c0" }), /mode must be "steer" or "follow" with to/)
      assert.match(yield* submit({ to: "c0", mode: "next" }), /mode must be "steer" or "follow" with to/)
      assert.match(yield* submit({ to: "c0", mode: "steer", otherwise: "next" }), /otherwise must be "refuse"/)
      assert.isUndefined(yield* Session.load("s"))
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})
