/**
 * The history of a session: generated runs that are stopped at any point, answered in any way and resumed, and four
 * protocols that accept each of their threads.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import { Message, Session, Thread } from "heddle"
import { Script } from "heddle/testing"
import { shareOf } from "../support/property.ts"
import * as Protocols from "../support/protocols.ts"
import { payer, throughJson, tools } from "../support/sessions.ts"

const { error, finish, text, toolCall } = Script

const offered = [...tools.slice(0, -1), payer().pay]

interface Dice {
  readonly below: (limit: number) => number
  readonly oneOf: <A>(items: ReadonlyArray<A>) => A
}

const dice = Effect.map(Random.Random, (random): Dice => {
  const below = (limit: number) => Math.floor(random.nextDoubleUnsafe() * limit)
  return { below, oneOf: (items) => items[below(items.length)]! }
})

const names = ["echo", "ask", "askO", "many", "appr", "pay", "boom", "stop1", "nobody", "bad name!"]

/**
 * A reply of the model: text, calls, and an end that may be a bad one. Ids may repeat within a reply, as those of no
 * provider do over the turns of one conversation.
 */
const reply = ({ below, oneOf }: Dice) => {
  const turn = `t${below(1e9)}`
  const calls = Array.from(
    { length: below(5) },
    (_, index) => toolCall(oneOf([`${turn}_${index}`, `${turn}_same`]), oneOf(names), oneOf([{}, { amount: 5 }]))
  )
  const end = calls.length === 0 ? "stop" as const : "tool_calls" as const
  return [
    ...(below(3) === 0 ? [text("hm")] : []),
    ...calls,
    below(12) === 0
      ? error("timeout")
      : finish(below(8) === 0 ? oneOf(["length", "content_filter", "stop"] as const) : end)
  ]
}

const answered = (session: Session.Session, dice: Dice) =>
  Effect.reduce(session.suspensions.toSorted(() => dice.below(3) - 1), () => session, (session, { id, kind }) => {
    if (kind !== "approval") return Session.answer(session, id, dice.below(9))
    return dice.below(2) === 0 ? Session.deny(session, id) : Session.approve(session, id)
  })

/** Goes on with a session in some way that its status allows, up to some event, and says what is left then. */
const going = (session: Session.Session, dice: Dice) =>
  Effect.gen(function*() {
    const { below } = dice
    const isStep = session.status === "idle" && session.thread.messages.length > 0 && below(4) === 0
    const events = isStep
      ? Session.streamStep(session, { tools: offered })
      : Session.streamReply(session, "1", { tools: offered, maxTurns: 3 })
    let reducer: Session.StreamReducer = Session.reducer(session, isStep ? "step" : "chat")
    const cut = below(3) === 0 ? below(25) : Infinity
    const model = yield* Script.make(Array.from({ length: 4 }, () => reply(dice)))
    yield* Stream.runForEach(Stream.take(events, cut), (event) =>
      Effect.sync(() => {
        reducer = Session.applyEvent(reducer, event)
      })).pipe(Effect.provide(model.layer))
    return { session: Session.finalize(reducer).session, requests: yield* model.requests }
  })

/** The thread without the calls that the session says it waits for. */
const withoutWaiting = (session: Session.Session): Thread.Thread => {
  const ids = [...session.pendingToolCalls, ...session.approved].map((call) => call.id)
  const stubs = Thread.unanswered(session.thread).filter(({ id }) => ids.includes(id))
  return Thread.append(session.thread, stubs.map(({ id }) => Message.tool(id, "")))
}

const played = (seed: number) =>
  Effect.gen(function*() {
    const throws = yield* dice
    let session = Session.make()
    const found: Array<string> = []
    const check = (thread: Thread.Thread, place: string) => {
      for (const problem of Protocols.problems(thread)) found.push(`${seed}: ${place}: ${problem}`)
    }
    for (let round = 0; round < 3 && session.status !== "error"; round++) {
      const isAlone = session.suspensions.length === 1 && session.pendingQuestion !== undefined
      if (!isAlone || throws.below(2) === 0) session = yield* answered(session, throws)
      if (throws.below(3) === 0) session = throughJson(session)
      const { requests, session: next } = yield* going(session, throws)
      session = next
      for (const { messages } of requests) check({ messages, metadata: {} }, `request of round ${round}`)
      check(withoutWaiting(session), `after round ${round}`)
    }
    return found
  }).pipe(Random.withSeed(seed))

describe("session history", () => {
  const runs = shareOf(1_000)
  const parts = 10

  for (let part = 0; part < parts; part++) {
    it.effect(
      `law 9: ${runs / parts} conversations with random stops keep each protocol, part ${part + 1} of ${parts}`,
      () =>
        Effect.gen(function*() {
          const seeds = Array.from({ length: runs / parts }, (_, index) => part * (runs / parts) + index)
          const found = yield* Effect.forEach(seeds, played)
          assert.deepStrictEqual(found.flat().slice(0, 5), [])
        })
    )
  }

  it("the validators find invalid threads", () => {
    const calls = [Message.toolCall("a", "read"), Message.toolCall("b", "read")]
    const said = (...messages: ReadonlyArray<Message.Message>) =>
      new Set(
        Protocols.problems(Thread.fromMessages([Message.user("go"), Message.assistant("", calls), ...messages])).map((
          problem
        ) => problem.split(":")[0])
      )
    const [a, b] = [Message.tool("a", "1"), Message.tool("b", "2")]
    assert.deepStrictEqual([...said(a, b)], [])
    assert.deepStrictEqual([...said(a)].toSorted(), [...Protocols.names].toSorted())
    assert.deepStrictEqual([...said(a, Message.user("x"), b)].toSorted(), ["anthropic", "chatCompletions"])
    assert.deepStrictEqual([...said(a, Message.assistant("?"), b)].toSorted(), [
      "anthropic",
      "chatCompletions",
      "gemini"
    ])
    assert.include([...said(a, b, b)], "responses")
    assert.include([...said(a, b, Message.assistant("", calls), a, b)], "anthropic")
    assert.deepStrictEqual(Protocols.problems(Thread.fromMessages([Message.assistant("hi")])).length, 2)
  })
})
