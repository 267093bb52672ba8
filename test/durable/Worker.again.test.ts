/**
 * A run behind another one is as one alone: a worker, its session and its store have forgotten the first by then. Each
 * scenario goes on with each other one in the same session, and the second is compared with the same run in a session of
 * its own: events, usage, requests, attempts, warnings, and the time that it takes.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Event, Journal, Message, Session } from "heddle"
import { Worker } from "heddle/durable"
import * as Again from "../support/again.ts"
import { inOrder, until } from "../support/edges.ts"
import { sampleOf } from "../support/property.ts"
import { ledger } from "./support/ledger.ts"

ledger()

/** What happens to a run, besides what it leads to. */
interface Scenario extends Again.Scenario {
  /** How many looks for work the store does not answer, from the moment of the message on. */
  readonly outages?: number
  readonly meanwhile?: "approve" | "answer" | "stop"
}

const scenarios: Readonly<Record<string, Scenario>> = {
  plain: {},
  act: { call: "act" },
  nested: { call: "sub" },
  retried: { call: "flaky" },
  flaky: { fails: { times: 2, reason: "provider_unavailable" } },
  hopeless: { fails: { times: 99, reason: "invalid_request" } },
  exhausted: { fails: { times: 99, reason: "provider_unavailable" } },
  refused: { refusals: 2, call: "act" },
  oversize: { refusals: 1, reason: "too_large", call: "act" },
  away: { outages: 2 },
  approved: { call: "gated", meanwhile: "approve" },
  answered: { call: "asks", meanwhile: "answer" },
  stopped: { call: "slow", meanwhile: "stop" }
}

/** What is seen of a run. */
class Seen extends Again.Seen {
  readonly ends: Array<unknown> = []
}

const shown = (event: Event.Event): unknown => {
  switch (event._tag) {
    case "ChatCompleted": {
      const { abandoned, haltedReason, outcome, steps, totalUsage } = event.result
      return [event._tag, outcome._tag, haltedReason, steps.length, totalUsage, abandoned?.length]
    }
    case "StepCompleted":
      return [event._tag, event.response.usage, event.done]
    case "ToolExecutionStarted":
      return [event._tag, event.attempt]
    case "ToolResultEncoded":
      return [event._tag, event.content, event.code]
    default:
      return [event._tag, "replayed" in event && event.replayed === true]
  }
}

/**
 * Plays scenarios in one session under one worker. Returns what is seen of the last of them. Messages that are queued
 * have their runs in one drive of the worker.
 */
const played = (names: ReadonlyArray<string>, isQueued = false) =>
  Effect.gen(function*() {
    let seen = new Seen()
    let current: Scenario = {}
    /** The message of the current run. */
    let taken: string | undefined
    let outages = 0
    const { provided, refusing, tools } = Again.worldOf(scenarios, () => ({ seen, scenario: current }))
    const base = yield* Session.Store
    const store = Session.Store.of({
      ...refusing(base),
      claimUnfinished: (...claim) =>
        Effect.suspend(() =>
          outages-- > 0
            ? Effect.fail(new Journal.StoreError({ reason: "unavailable", operation: "claimUnfinished" }))
            : base.claimUnfinished(...claim)
        )
    })
    yield* Layer.build(
      Worker.layer({
        run: (kept) => {
          const [message] = kept.submitted ?? []
          // A run that could not start gives its message back, and is begun again for it.
          if (Session.next(kept) === "reply" && message !== undefined && message.id !== taken) {
            taken = message.id
            seen = new Seen()
            current = scenarios[Message.text(message.message)]!
          }
          return { tools }
        },
        maxFailures: 4,
        onEvent: (_, event) => Effect.sync(() => void seen.events.push(shown(event))),
        onEnd: (_, { outcome, totalUsage, usage }) =>
          Effect.sync(() => void seen.ends.push([outcome._tag, usage, totalUsage])),
        onGiveUp: (_, error) => Effect.sync(() => void seen.ends.push(["given up", String(error)]))
      }).pipe(Layer.provide(provided(store)))
    )
    const loaded = Effect.map(Session.load("s"), (kept) => kept!)
    const meanwhile: Readonly<
      Record<NonNullable<Scenario["meanwhile"]>, Effect.Effect<unknown, unknown, Session.Store>>
    > = {
      approve: Effect.flatMap(loaded, (kept) =>
        Session.keep(kept, (session) => Session.approve(session, session.suspensions[0]!.id))),
      answer: Effect.flatMap(loaded, (kept) =>
        Session.keep(kept, (session) =>
          Session.answer(session, session.suspensions[0]!.id, "this"))),
      stop: Session.stop("s")
    }
    const isWaiting = Effect.map(loaded, (kept) =>
      Session.next(kept) === "wait")
    const runs = Effect.sync(() =>
      seen.attempts.includes("slow 1")
    )
    const isReleased = Effect.map(base.claimOf("s"), (claim) => claim === undefined)
    let took = 0
    for (const [index, name] of names.entries()) {
      const { meanwhile: answer } = scenarios[name]!
      // The worker looks for work at its interval.
      yield* until(Effect.map(Clock.currentTimeMillis, (now) => now % 1_000 === 0))
      const before = yield* Clock.currentTimeMillis
      seen = isQueued ? seen : new Seen()
      outages = scenarios[name]!.outages ?? 0
      if (!isQueued) yield* Session.submit("s", name, { id: `m${index}` })
      else if (index === 0) {
        for (const [place, each] of names.entries()) yield* Session.submit("s", each, { id: `m${place}` })
      }
      if (answer !== undefined) {
        yield* until(answer === "stop" ? runs : isWaiting, 50)
        yield* Effect.orDie(meanwhile[answer])
      }
      yield* until(
        Effect.map(loaded, (kept) => {
          const became = Session.receipt(kept, `m${index}`)?.became
          return became !== "queued" && became !== "taken"
        }),
        50
      )
      if (!isQueued || index === names.length - 1) yield* until(isReleased, 50)
      took = (yield* Clock.currentTimeMillis) - before
    }
    yield* inOrder
    const { attempts, ends, events, requests, warnings } = seen
    // Polls fall into other places.
    const all = { attempts, ends, events, requests, warnings }
    return isQueued ? all : { ...all, seconds: Math.round(took / 1_000) }
  }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

const names = Object.keys(scenarios)

/** A person does something in the others, or a worker without work waits for its store. These may be queued. */
const prompt = names.filter((name) =>
  scenarios[name]?.meanwhile === undefined && scenarios[name]?.outages === undefined
)

describe("a run behind another run", () => {
  for (const second of names) {
    it.effect(`a run behind another run is the same as alone: ${second}`, () =>
      Effect.gen(function*() {
        const alone = yield* played([second])
        assert.isNotEmpty(alone.events)
        if (second === "nested") assert.deepStrictEqual(alone.attempts, ["inner 1"])
        for (const first of new Set([second, ...sampleOf(names, 3)])) {
          assert.deepStrictEqual(yield* played([first, second]), alone, `${second} behind ${first}`)
        }
      }), 120_000)
  }

  for (const second of prompt) {
    it.effect(
      `a run behind another run in the same drive is the same as alone: ${second}`,
      () =>
        Effect.gen(function*() {
          const alone = yield* played([second], true)
          for (const first of new Set([second, ...sampleOf(prompt, 3)])) {
            assert.deepStrictEqual(yield* played([first, second], true), alone, `${second} behind ${first}`)
          }
        }),
      120_000
    )
  }
})
