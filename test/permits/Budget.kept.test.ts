/** Budgets of kept sessions: killed behind each record, of the session and of the runs inside its calls. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Adapter, Budget, Chat, type Event, Message, type Rule, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { type Append, holding, listing, stores } from "../support/edges.ts"

const { finish, text, toolCall, usage } = Script

const used = usage({ inputTokens: 10, outputTokens: 5 })
const isInner = ({ messages }: Adapter.Request) => Message.text(messages[0]!).startsWith("Inner")

/** The parent asks for two sub-agents and then looks; a sub-agent looks once. Without tools each answers. */
const replyTo = (request: Adapter.Request): ReadonlyArray<Script.Entry> => {
  if (request.toolChoice === "none") return [text("Closed."), used, finish("stop")]
  const turn = request.messages.filter(({ role }) => role === "assistant").length
  if (isInner(request) && turn === 0) return [toolCall("i0", "look", {}), used, finish("tool_calls")]
  if (isInner(request)) return [text("Inside."), used, finish("stop")]
  if (turn === 0) {
    return [toolCall("a", "inner", { n: 1 }), toolCall("b", "inner", { n: 2 }), used, finish("tool_calls")]
  }
  return turn === 1 ? [toolCall("c", "look", {}), used, finish("tool_calls")] : [text("So."), used, finish("stop")]
}

const modelOf = (onAsked: () => void) =>
  Adapter.layer({
    stream: (request) =>
      Stream.unwrap(Effect.map(Script.make([replyTo(request)]), (scripted) => {
        onAsked()
        return scripted.stream(request)
      }))
  })

const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })
const inner = Tool.fromChat("inner", {
  parameters: { n: Schema.Finite },
  chat: ({ n }) => Chat.stream(`Inner ${n}`, { tools: [look] })
})

const tokensIn = (spent: Event.Spent | undefined) => (spent?.inputTokens ?? 0) + (spent?.outputTokens ?? 0)

/** Tells whether a request is under way in records: reserved, and without a reply. */
const isUnderWay = (appends: ReadonlyArray<Append>): boolean => {
  const open = new Map<string, boolean>()
  for (const { id, records } of appends) {
    for (const record of records) {
      if (record._tag === "StepPrepared") open.set(id, "budget" in (record.notes ?? {}))
      else if (record._tag === "ReplyReceived" || record._tag === "StepCompleted") open.set(id, false)
    }
  }
  return Array.from(open.values()).includes(true)
}

describe("a budget of a kept session", () => {
  const options = () =>
    ({
      tools: [look, inner],
      budget: Budget.make({ tokens: 1_000_000 }, { estimate: () => 100, outputReserve: 100 }),
      requestId: "run",
      takeOver: true
    }) as const
  for (const [name, store] of Object.entries(stores)) {
    it.effect(`G9, G89: a run with sub-agents, killed after each record, has spent what its requests cost (${name})`, () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        const asked: Array<number> = []
        const whole = yield* Effect.gen(function*() {
          const opened = yield* Session.open("s")
          return (yield* Session.keep(opened, (session) => Session.reply(session, "Go", options()))).value.result
        }).pipe(Effect.provide([modelOf(() => asked.push(appends.length)), listing(appends, store)]))
        assert.strictEqual(whole.haltedReason, "completed")
        assert.deepStrictEqual([whole.spent?.calls, tokensIn(whole.spent)], [7, 105])
        let lost = 0
        for (let cut = 2; cut < appends.length; cut++) {
          const before = appends.slice(0, cut)
          const where = `killed behind append ${cut}, ${before.at(-1)?.records.map(({ _tag }) => _tag).join()}`
          let again = 0
          const result = yield* Effect.gen(function*() {
            const kept = (yield* Session.load("s"))!
            return (yield* Session.resume(kept, options())).value.result
          }).pipe(Effect.provide([modelOf(() => again++), holding(before, [], store)]))
          const sent = asked.filter((at) => at < cut).length + again
          assert.strictEqual(result.haltedReason, "completed", where)
          const calls = result.spent?.calls ?? 0
          assert.isAtLeast(calls, sent, where)
          if (!isUnderWay(before)) {
            assert.deepStrictEqual([calls, tokensIn(result.spent)], [sent, 15 * sent], where)
          } else {
            lost++
            assert.isAtLeast(tokensIn(result.spent), 15 * sent, where)
          }
        }
        assert.isAbove(lost, 2)
      }))
  }

  const exhausted: ReadonlyArray<readonly [calls: number, onExhausted: "finalize" | "halt"]> = [
    [2, "finalize"],
    [5, "finalize"],
    [3, "halt"]
  ]
  for (const [name, store] of Object.entries(stores)) {
    it.effect(`G1, G2, G7: a budget exhausted in a killed tree allows no request above its limit, and the run ends (${name})`, () =>
      Effect.gen(function*() {
        for (const [calls, onExhausted] of exhausted) {
          const given = () => ({ ...options(), budget: Budget.make({ calls }, { onExhausted }) })
          const appends: Array<Append> = []
          const asked: Array<number> = []
          const whole = yield* Effect.gen(function*() {
            const opened = yield* Session.open("s")
            return (yield* Session.keep(opened, (session) => Session.reply(session, "Go", given()))).value.result
          }).pipe(Effect.provide([modelOf(() => asked.push(appends.length)), listing(appends, store)]))
          assert.lengthOf(asked, calls)
          assert.deepStrictEqual([whole.spent?.calls, whole.spent?.left], [calls, { calls: 0 }])
          const wholeEnd = onExhausted === "halt" ? "budget" : "completed"
          assert.strictEqual(whole.haltedReason, wholeEnd)
          for (let cut = 2; cut < appends.length; cut++) {
            const before = appends.slice(0, cut)
            const where = `${calls} ${onExhausted}, killed behind append ${cut}, ${
              before.at(-1)?.records.map(({ _tag }) => _tag).join()
            }`
            let again = 0
            const result = yield* Effect.gen(function*() {
              const kept = (yield* Session.load("s"))!
              return (yield* Session.resume(kept, given())).value.result
            }).pipe(Effect.provide([modelOf(() => again++), holding(before, [], store)]))
            const sent = asked.filter((at) => at < cut).length + again
            // A request that a kill took is spent: the closing call may be the one.
            const isClosingLost = onExhausted === "finalize" && isUnderWay(before)
            assert.isAtMost(sent, calls, where)
            assert.isAtMost(result.spent?.calls ?? 0, calls, where)
            if (!isClosingLost) assert.strictEqual(result.haltedReason, wholeEnd, where)
            if (!isUnderWay(before)) assert.strictEqual(result.spent?.calls, sent, where)
          }
        }
      }))
  }

  it.effect("G89: a run killed twice within one request has spent both reservations", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const store = Session.Store.layerMemory
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "Go", options()))
      }).pipe(Effect.provide([modelOf(() => {}), listing(appends, store)]))
      const resumed = (before: ReadonlyArray<Append>) =>
        Effect.gen(function*() {
          const after: Array<Append> = []
          const result = yield* Effect.flatMap(Session.load("s"), (kept) => Session.resume(kept!, options())).pipe(
            Effect.provide([modelOf(() => {}), holding(before, after, store)])
          )
          return { after, result: result.value.result }
        })
      const isPrepared = ({ id, records }: Append) => id === "s" && records.some(({ _tag }) => _tag === "StepPrepared")
      const first = appends.slice(0, appends.findIndex(isPrepared) + 1)
      const { after } = yield* resumed(first)
      const second = [...first, ...after.slice(0, after.findIndex(isPrepared) + 1)]
      const { result } = yield* resumed(second)
      // Twice 100 and 100 tokens that were reserved.
      assert.deepStrictEqual([result.spent?.calls, tokensIn(result.spent)], [9, 505])
    }))

  it.effect("G9: a run that begins with a waiting call's sub-agent counts only what the sub-agent spends in this run", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const asked: Array<number> = []
      const store = Session.Store.layerMemory
      const asks = Tool.make("asks", { parameters: {}, manual: true })
      const waiting = Tool.fromChat("inner", { parameters: {}, chat: () => Chat.stream("Inner", { tools: [asks] }) })
      const given = () => ({ ...options(), tools: [waiting], requestId: undefined })
      const reply = (request: Adapter.Request): ReadonlyArray<Script.Entry> => {
        const isFirst = request.messages.every(({ role }) => role !== "assistant")
        if (!isFirst) return [text("So."), used, finish("stop")]
        return [isInner(request) ? toolCall("i0", "asks", {}) : toolCall("a", "inner", {}), used, finish("tool_calls")]
      }
      const model = (onAsked: () => void) =>
        Adapter.layer({
          stream: (request) =>
            Stream.unwrap(Effect.map(Script.make([reply(request)]), (scripted) => {
              onAsked()
              return scripted.stream(request)
            }))
        })
      let begun = 0
      const whole = yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const waits = yield* Session.keep(opened, (session) => Session.reply(session, "Go", given()))
        const open = waits.session.suspensions[0]!
        const kept = yield* Session.keep(waits, (session) => Session.answer(session, open.id, "42"))
        begun = appends.length
        asked.length = 0
        yield* TestClock.adjust(1)
        return (yield* Session.keep(kept, (session) => Session.continue(session, null, given()))).value.result
      }).pipe(Effect.provide([model(() => asked.push(appends.length)), listing(appends, store)]))
      assert.strictEqual(whole.haltedReason, "completed")
      assert.strictEqual(whole.spent?.calls, 2)
      let kills = 0
      for (let cut = begun + 1; cut < appends.length; cut++) {
        const before = appends.slice(0, cut)
        const where = `killed behind append ${cut}, ${before.at(-1)?.records.map(({ _tag }) => _tag).join()}`
        let again = 0
        const result = yield* Effect.gen(function*() {
          const kept = (yield* Session.load("s"))!
          return (yield* Session.resume(kept, { ...given(), takeOver: true })).value.result
        }).pipe(Effect.provide([model(() => again++), holding(before, [], store)]))
        const sent = asked.filter((at) => at < cut).length + again
        const calls = result.spent?.calls ?? 0
        if (isUnderWay(before)) assert.isAtLeast(calls, sent, where)
        else assert.strictEqual(calls, sent, where)
        kills++
      }
      assert.isAbove(kills, 5)
    }))

  it.effect("G9: prepareStep of a resumed run reads what the run spent before the kill", () =>
    Effect.gen(function*() {
      const appends: Array<Append> = []
      const store = Session.Store.layerMemory
      const seen: Array<number | undefined> = []
      const given = () => ({
        ...options(),
        prepareStep: ({ spent }: Rule.Place) => {
          seen.push(spent?.calls)
          return {}
        }
      })
      yield* Effect.gen(function*() {
        const opened = yield* Session.open("s")
        yield* Session.keep(opened, (session) => Session.reply(session, "Go", given()))
      }).pipe(Effect.provide([modelOf(() => {}), listing(appends, store)]))
      assert.deepStrictEqual(seen, [0, 5, 6])
      const whole = appends.findIndex(({ id, records }) =>
        id === "s" && records.some(({ _tag }) => _tag === "StepCompleted")
      )
      seen.length = 0
      yield* Effect.flatMap(Session.load("s"), (kept) => Session.resume(kept!, given())).pipe(
        Effect.provide([modelOf(() => {}), holding(appends.slice(0, whole + 1), [], store)])
      )
      assert.deepStrictEqual(seen, [5, 6])
    }))

  it.effect("a session budget counts all runs of the session, and each message brings its own limits", () =>
    Effect.gen(function*() {
      const run = (calls: number, message: string) =>
        Effect.gen(function*() {
          const opened = (yield* Session.load("s")) ?? (yield* Session.open("s"))
          const budget = Budget.make({ calls }, { scope: "session" })
          return (yield* Session.keep(opened, (session) =>
            Session.reply(session, message, { tools: [look, inner], budget }))).value.result
        })
      const [first, second, third] = yield* Effect.all([run(7, "Go"), run(7, "Again"), run(14, "Again")]).pipe(
        Effect.provide([modelOf(() => {}), Session.Store.layerMemory])
      )
      assert.strictEqual(first?.finalized, "budget")
      assert.strictEqual(second?.haltedReason, "budget")
      assert.strictEqual(third?.haltedReason, "completed")
    }))

  for (const way of ["the next message", "Session.abandon"]) {
    it.effect(`a session budget counts a killed run that ${way} gives up`, () =>
      Effect.gen(function*() {
        const store = Session.Store.layerMemory
        const given = { ...options(), tools: [look], budget: Budget.make({ calls: 9 }, { scope: "session" }) }
        const reply = Effect.gen(function*() {
          const opened = (yield* Session.load("s")) ?? (yield* Session.open("s"))
          return (yield* Session.keep(opened, (session) => Session.reply(session, "Look", given))).value.result
        })
        // Each run looks once, and then answers.
        const model = (asked: Array<number>, appends: ReadonlyArray<Append>) =>
          Adapter.layer({
            stream: ({ messages }) =>
              Stream.unwrap(Effect.map(
                Script.make([
                  messages.at(-1)?.role === "user"
                    ? [toolCall("c", "look", {}), used, finish("tool_calls")]
                    : [text("So."), used, finish("stop")]
                ]),
                (scripted) => {
                  asked.push(appends.length)
                  return scripted.stream({} as never)
                }
              ))
          })
        const appends: Array<Append> = []
        const asked: Array<number> = []
        yield* reply.pipe(Effect.provide([model(asked, appends), listing(appends, store)]))
        assert.lengthOf(asked, 2)
        for (const cut of asked) {
          // Killed once the request was made.
          const spent = yield* Effect.gen(function*() {
            const kept = (yield* Session.load("s"))!
            if (way === "Session.abandon") yield* Session.abandon(kept)
            return (yield* reply).spent
          }).pipe(Effect.provide([model([], []), holding(appends.slice(0, cut), [], store)]))
          assert.strictEqual(spent?.calls, asked.filter((at) => at <= cut).length + 2)
        }
      }))
  }

  for (const way of ["a stop", "the next message", "Session.abandon"] as const) {
    it.effect(`G9: a session with sub-agents, killed after each record and ended by ${way}, has spent each request`, () =>
      Effect.gen(function*() {
        const store = Session.Store.layerMemory
        const given = () => ({
          ...options(),
          budget: Budget.make({ calls: 100 }, { estimate: () => 100, outputReserve: 100, scope: "session" })
        })
        const { requestId: _, takeOver: __, ...again } = given()
        const replied = (message: string) =>
          Effect.gen(function*() {
            const opened = (yield* Session.load("s")) ?? (yield* Session.open("s"))
            const replied = yield* Session.keep(opened, (session) => Session.reply(session, message, again))
            return replied.value.result.spent
          })
        const appends: Array<Append> = []
        const asked: Array<number> = []
        yield* replied("Go").pipe(
          Effect.provide([modelOf(() => asked.push(appends.length)), listing(appends, store)])
        )
        let stopped = 0
        for (let cut = 2; cut < appends.length; cut++) {
          const before = appends.slice(0, cut)
          const where = `killed behind append ${cut}, ${before.at(-1)?.records.map(({ _tag }) => _tag).join()}`
          // Killed once the request was made that the last record leads to.
          let sent = asked.filter((at) => at <= cut).length
          const assertSpent = (spent: Event.Spent | undefined) => {
            assert.isAtLeast(spent?.calls ?? 0, sent, where)
            assert.isAtLeast(tokensIn(spent), 15 * sent, where)
            if (!isUnderWay(before)) assert.deepStrictEqual([spent?.calls, tokensIn(spent)], [sent, 15 * sent], where)
          }
          yield* Effect.gen(function*() {
            if (way === "a stop") {
              yield* Session.stop("s")
              const { value } = yield* Session.resume((yield* Session.load("s"))!, given())
              if (value.result.haltedReason === "cancelled") stopped++
              assertSpent(value.result.spent)
            }
            if (way === "Session.abandon") yield* Session.abandon((yield* Session.load("s"))!)
            assertSpent(yield* replied("Again"))
          }).pipe(Effect.provide([modelOf(() => sent++), holding(before, [], store)]))
        }
        if (way === "a stop") assert.isAbove(stopped, 20)
      }))
  }
})
