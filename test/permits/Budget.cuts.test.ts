/**
 * Budgets of kept sessions, killed behind each record of each journal: requests that are no plain step of a plain run,
 * a further candidate of a fallback, a budget inside a budget, and a sub-agent that starts early.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, type Event, Message, Pricing, Session, Step, Tool } from "heddle"
import { Script } from "heddle/testing"
import { type Append, holding, listing, passing, stores } from "../support/edges.ts"

const { delay, finish, preflightError, streamError, text, toolCall, usage } = Script

type Reply = ReadonlyArray<Script.Entry>

const used = usage({ inputTokens: 10, outputTokens: 5 })
const say = (words: string): Reply => [text(words), used, finish("stop")]
const call = (id: string, name: string, args: object = {}): Reply => [
  toolCall(id, name, args as Record<string, unknown>),
  used,
  finish("tool_calls")
]

const firstOf = ({ messages }: Adapter.Request) => Message.text(messages[0]!)
const turnOf = ({ messages }: Adapter.Request) => messages.filter(({ role }) => role === "assistant").length
const tokensIn = (spent: Event.Spent | undefined) => (spent?.inputTokens ?? 0) + (spent?.outputTokens ?? 0)

/** A model that replies by the request alone, and reports each request. */
const serviceOf = (
  reply: (request: Adapter.Request) => Reply,
  onAsked: (request: Adapter.Request) => void,
  facts: Partial<Adapter.Service> = {}
): Adapter.Service => ({
  ...facts,
  stream: (request) =>
    Stream.unwrap(Effect.map(Script.make([reply(request)]), (scripted) => {
      onAsked(request)
      return scripted.stream(request)
    }))
})

const look = Tool.make("look", { parameters: {}, readOnly: true, handler: () => Effect.succeed("seen") })

const guessing = { estimate: () => 100, outputReserve: 100 } as const

const prices: Pricing.Table = {
  openai: {
    models: {
      "gpt-5": { cost: { input: 1.25, output: 10 } },
      "gpt-5-mini": { cost: { input: 0.25, output: 2 } }
    }
  }
}

/** What a request reserves, or costs. */
interface Amount {
  readonly calls: number
  readonly inputTokens: number
  readonly outputTokens: number
  readonly money: number
}

const nothing: Amount = { calls: 0, inputTokens: 0, outputTokens: 0, money: 0 }

const sum = (amounts: Iterable<Amount>): Amount =>
  Array.from(amounts).reduce((all, one) => ({
    calls: all.calls + one.calls,
    inputTokens: all.inputTokens + one.inputTokens,
    outputTokens: all.outputTokens + one.outputTokens,
    money: all.money + one.money
  }), nothing)

/** The reservations that a kill takes: those of requests without a recorded end, by their journals. */
const openIn = (appends: ReadonlyArray<Append>): ReadonlyMap<string, Amount> => {
  const open = new Map<string, Amount>()
  for (const { id, records } of appends) {
    for (const record of records) {
      if (record._tag === "StepPrepared") {
        const note = record.notes?.["budget"] as { readonly reserved?: Amount } | undefined
        if (note?.reserved === undefined) open.delete(id)
        else open.set(id, note.reserved)
      } else if (record._tag === "ReplyReceived" || record._tag === "StepCompleted") open.delete(id)
    }
  }
  return open
}

/** A program of a kept session, whose process is killed. */
interface Program {
  /** The options of a process, behind a kill that took these reservations: the limit is what is left without them. */
  readonly options: (lost: Amount) => object
  /** The model of a process. */
  readonly model: (onAsked: (request: Adapter.Request) => void) => Layer.Layer<Adapter.Adapter>
}

/** What a session came to that was killed behind an append. */
interface Killed {
  /** Names the cut, for messages of assertions. */
  readonly where: string
  readonly before: ReadonlyArray<Append>
  readonly result: Event.ChatResult
  /** The requests of both processes, without one that was made behind the last append. */
  readonly sent: ReadonlyArray<Adapter.Request>
  /** The reservations that the kill took, and their journals. */
  readonly open: Amount
  readonly lost: ReadonlyArray<string>
  /** Whether no request in `sent` is one of them. */
  readonly isExact: boolean
}

/** Runs a program to its end, kills it behind each append of each journal, and resumes it. */
const killedAtEach = (
  { model, options }: Program,
  store: (typeof stores)[keyof typeof stores],
  check: (killed: Killed) => void
) =>
  Effect.gen(function*() {
    const appends: Array<Append> = []
    const asked: Array<{ readonly at: number; readonly request: Adapter.Request }> = []
    const result = yield* passing(
      Effect.gen(function*() {
        const opened = yield* Session.open("s")
        const replied = yield* Session.keep(opened, (session) => Session.reply(session, "Go", options(nothing)))
        return replied.value.result as Event.ChatResult
      }).pipe(Effect.provide([
        model((request) => asked.push({ at: appends.length, request })),
        listing(appends, store)
      ]))
    )
    for (let cut = 2; cut < appends.length; cut++) {
      const before = appends.slice(0, cut)
      const last = before.at(-1)
      const lost = openIn(before)
      const open = sum(lost.values())
      const again: Array<Adapter.Request> = []
      const resumed = yield* passing(
        Effect.gen(function*() {
          const kept = (yield* Session.load("s"))!
          return (yield* Session.resume(kept, options(open))).value.result as Event.ChatResult
        }).pipe(Effect.provide([model((request) => again.push(request)), holding(before, [], store)]))
      )
      const sent = asked.flatMap(({ at, request }) => at < cut ? [request] : [])
      check({
        where: `killed behind append ${cut}, ${last?.id} ${last?.records.map(({ _tag }) => _tag).join()}`,
        before,
        result: resumed,
        sent: [...sent, ...again],
        open,
        lost: Array.from(lost.keys()),
        isExact: lost.size === 0 || last?.records.some(({ _tag }) => _tag === "StepPrepared") === true
      })
    }
    return { asked: asked.map(({ request }) => request), result }
  })

for (const [name, store] of Object.entries(stores)) {
  describe(`a budget of a session killed after each record: ${name}`, () => {
    it.effect("G10: the account counts second passes and repeated replies", () =>
      Effect.gen(function*() {
        let cuts = 0
        let passes = 0
        const { asked, result } = yield* killedAtEach(
          {
            options: (lost) => ({
              tools: [look],
              responseFormat: { type: "json_schema", name: "a", schema: { type: "object", properties: {} } },
              structuredFinalize: true,
              retryReply: Schedule.recurs(3),
              budget: Budget.make({ calls: 7 + lost.calls }, { onExhausted: "halt", ...guessing }),
              requestId: "run",
              takeOver: true
            }),
            model: (onAsked) => {
              // Each process meets a broken reply in each of its steps.
              const broken = new Set<string>()
              return Adapter.layer(serviceOf((request) => {
                const step = `${turnOf(request)} ${request.responseFormat === undefined}`
                if (!broken.has(step)) {
                  broken.add(step)
                  return [text("Hm"), streamError("network_error")]
                }
                if (request.responseFormat !== undefined) return say("{\"a\":1}")
                return turnOf(request) === 0 ? call("c", "look") : say("So.")
              }, onAsked))
            }
          },
          store,
          ({ isExact, open, result, sent, where }) => {
            const calls = result.spent?.calls ?? 0
            assert.isTrue(isExact, where)
            assert.strictEqual(calls, sent.length + open.calls, where)
            // A whole reply is settled by its usage, and what was lost or broke by its reservation.
            const broken = sent.length - 3 + open.calls
            assert.deepStrictEqual(
              [result.haltedReason, tokensIn(result.spent)],
              ["completed", 45 + 200 * broken],
              where
            )
            cuts++
            if (sent.some(({ responseFormat }) => responseFormat !== undefined)) passes++
          }
        )
        assert.lengthOf(asked, 6)
        assert.deepStrictEqual([result.haltedReason, result.spent?.calls, tokensIn(result.spent)], [
          "completed",
          6,
          3 * 15 + 3 * 200
        ])
        assert.isAbove(cuts, 8)
        assert.isAbove(passes, 5)
      }))

    for (const isWithin of [false, true]) {
      const what = isWithin ? "a sub-agent's handlers" : "handlers"
      it.effect(`G10: the account counts steps, classifications and repeated replies of ${what}`, () =>
        Effect.gen(function*() {
          const judge = Tool.make("judge", {
            parameters: {},
            idempotent: true,
            handler: () =>
              Effect.andThen(
                Effect.all([Step.run("One"), Adapter.classify([Message.user("Two")])]),
                Effect.succeed("yes")
              )
          })
          const inner = Tool.fromChat("judge", {
            parameters: {},
            chat: () => Chat.stream("Inner", { tools: [judge], retryReply: Schedule.recurs(3) })
          })
          const judging = isWithin ? "Inner" : "Go"
          let cuts = 0
          const { asked, result } = yield* killedAtEach(
            {
              options: () => ({
                tools: [isWithin ? inner : judge],
                retryReply: Schedule.recurs(3),
                budget: Budget.make({ tokens: 1_000_000 }, guessing),
                requestId: "run",
                takeOver: true
              }),
              model: (onAsked) => {
                const broken = new Set<number>()
                const scripted = serviceOf((request) => {
                  if (firstOf(request) === "One" || firstOf(request) === "Two") return say("Yes.")
                  const turn = turnOf(request)
                  return turn < (firstOf(request) === judging ? 2 : 1) ? call(`c${turn}`, "judge") : say("So.")
                }, onAsked)
                return Adapter.layer({
                  stream: (request) => {
                    const turn = turnOf(request)
                    if (firstOf(request) !== judging || broken.has(turn)) return scripted.stream(request)
                    broken.add(turn)
                    onAsked(request)
                    // A broken reply that reports its usage.
                    return Stream.concat(
                      Stream.fromIterable<Event.AdapterEvent>([
                        { _tag: "MessageStarted", message: Message.assistant("") },
                        { _tag: "RawChunk", chunk: { usage: { inputTokens: 10, outputTokens: 5 } } }
                      ]),
                      Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
                    )
                  }
                })
              }
            },
            store,
            ({ isExact, open, result, sent, where }) => {
              cuts++
              const lost = open.inputTokens + open.outputTokens
              assert.strictEqual(result.haltedReason, "completed", where)
              if (!isExact) return
              assert.deepStrictEqual(
                [result.spent?.calls, tokensIn(result.spent)],
                [sent.length + open.calls, 15 * sent.length + lost],
                where
              )
            }
          )
          const requests = isWithin ? 12 : 10
          assert.lengthOf(asked, requests)
          assert.deepStrictEqual([result.spent?.calls, tokensIn(result.spent)], [requests, 15 * requests])
          assert.isAbove(cuts, 8)
        }))
    }

    it.effect("G39: a fallback model reserves at its own price, and the first model's reservation returns", () =>
      Effect.gen(function*() {
        const seen = new Set<number>()
        for (const money of [4_500, 4_499, 2_249]) {
          const { asked, result } = yield* killedAtEach(
            {
              options: (lost) => ({
                tools: [look],
                budget: Budget.make({ money: money + lost.money }, {
                  estimate: () => 1_000,
                  outputReserve: 100,
                  onExhausted: "halt"
                }),
                requestId: "run",
                takeOver: true
              }),
              model: (onAsked) => {
                const first = serviceOf(() => [preflightError("provider_unavailable")], () => {}, {
                  provider: "openai",
                  model: "gpt-5-mini"
                })
                const reply = (request: Adapter.Request): Reply => [
                  ...turnOf(request) === 0 ? [toolCall("c", "look", {})] : [text("So.")],
                  usage({ inputTokens: 1_000, outputTokens: 100 }),
                  finish(turnOf(request) === 0 ? "tool_calls" : "stop")
                ]
                const second = serviceOf(reply, onAsked, { provider: "openai", model: "gpt-5" })
                return Layer.merge(
                  Adapter.fallback([
                    { layer: Adapter.layer(first), name: "first" },
                    { layer: Adapter.layer(second), name: "second" }
                  ]),
                  Pricing.layer(prices)
                )
              }
            },
            store,
            ({ isExact, open, result, sent, where }) => {
              seen.add(open.money)
              assert.isTrue(isExact, where)
              const granted = Math.floor(money / 2_250)
              assert.lengthOf(sent, granted, where)
              assert.strictEqual(result.haltedReason, granted === 2 ? "completed" : "budget", where)
              assert.deepStrictEqual(
                [result.spent?.calls, result.spent?.money, result.spent?.left],
                [granted + open.calls, 2_250 * granted + open.money, { money: money - 2_250 * granted }],
                where
              )
            }
          )
          assert.lengthOf(asked, Math.floor(money / 2_250))
          assert.strictEqual(result.haltedReason, money === 4_500 ? "completed" : "budget")
        }
        // Killed behind a reservation of each model, and behind none.
        assert.deepStrictEqual(Array.from(seen).sort((left, right) => left - right), [0, 450, 2_250])
      }))

    it.effect("G90: both accounts grant each request of a run with a budget inside another budget", () =>
      Effect.gen(function*() {
        for (const [calls, inside, end] of [[9, 2, undefined], [3, 1, "budget"]] as const) {
          let cuts = 0
          const isInner = (request: Adapter.Request) => firstOf(request) === "Inner"
          const { asked, result } = yield* killedAtEach(
            {
              options: (lost) => ({
                tools: [Tool.fromChat("inner", {
                  parameters: {},
                  // The account of the run inside has lost its own requests alone, and keeps its limit.
                  chat: () =>
                    Chat.stream("Inner", {
                      tools: [look],
                      budget: Budget.make({ calls: 2 }, { onExhausted: "halt", ...guessing })
                    })
                })],
                budget: Budget.make({ calls: calls + lost.calls }, guessing),
                requestId: "run",
                takeOver: true
              }),
              model: (onAsked) =>
                Adapter.layer(serviceOf((request) => {
                  if (request.toolChoice === "none") return say("Closed.")
                  if (isInner(request)) return call(`i${turnOf(request)}`, "look")
                  return turnOf(request) === 0 ? call("c", "inner") : say("So.")
                }, onAsked))
            },
            store,
            ({ isExact, lost, open, result, sent, where }) => {
              cuts++
              assert.isTrue(isExact, where)
              const within = sent.filter(isInner).length
              // A request that a kill took from the run inside is spent on both accounts.
              const lostInside = lost.some((id) => id !== "s") ? 1 : 0
              assert.strictEqual(within, inside === 2 ? 2 - lostInside : inside, where)
              assert.strictEqual(sent.length, within + 2, where)
              assert.deepStrictEqual([result.haltedReason, result.finalized], ["completed", end], where)
              assert.deepStrictEqual(
                [result.spent?.calls, result.spent?.left],
                [sent.length + open.calls, { calls: calls - sent.length }],
                where
              )
            }
          )
          assert.lengthOf(asked, inside + 2)
          assert.deepStrictEqual([result.spent?.calls, result.finalized], [inside + 2, end])
          assert.isAbove(cuts, 6)
        }
      }))

    it.effect("G91: a sub-agent that starts early waits for the reservation of its parent's reply", () =>
      Effect.gen(function*() {
        let early = 0
        const isInner = (request: Adapter.Request) => firstOf(request) === "Inner"
        const { asked, result } = yield* killedAtEach(
          {
            options: (lost) => ({
              tools: [Tool.fromChat("inner", {
                parameters: {},
                readOnly: true,
                chat: () => Chat.stream("Inner", { maxTokens: 600 })
              })],
              budget: Budget.make({ tokens: 1_300 + lost.inputTokens + lost.outputTokens }, {
                estimate: () => 100,
                outputReserve: 600,
                onExhausted: "halt"
              }),
              requestId: "run",
              takeOver: true
            }),
            model: (onAsked) => {
              let replying = 0
              return Adapter.layer(serviceOf((request) => {
                if (isInner(request)) {
                  assert.strictEqual(replying, 0, "granted beside what the reply holds")
                  return say("Inside.")
                }
                if (turnOf(request) > 0) return say("So.")
                return [toolCall("c", "inner", {}), delay("200 millis"), used, finish("tool_calls")]
              }, onAsked))
            }
          },
          store,
          ({ before, open, result, sent, where }) => {
            const last = before.at(-1)
            if (open.calls > 0 && last?.records.some(({ _tag }) => _tag === "CallStarted")) early++
            assert.strictEqual(result.haltedReason, "completed", where)
            assert.isAtLeast(result.spent?.calls ?? 0, sent.length, where)
            assert.isAtLeast(tokensIn(result.spent), 15 * sent.length, where)
            if (open.calls === 0) {
              assert.deepStrictEqual([result.spent?.calls, tokensIn(result.spent)], [3, 45], where)
            }
          }
        )
        assert.lengthOf(asked, 3)
        assert.deepStrictEqual([result.spent?.calls, tokensIn(result.spent)], [3, 45])
        assert.isAbove(early, 0)
      }))
  })
}
