/**
 * A command behind another one is as one alone: the owner, its feed and the session have forgotten the first by then. Each
 * scenario goes on with each other one in the same session, and the second is compared with the same command in a session
 * of its own: its report or error, events, usage, requests, attempts and warnings. On the live clock, since the loops of
 * the cluster sleep between their looks.
 */
import { assert, describe, it } from "@effect/vitest"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { type Event, Session } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { ledger } from "../durable/support/ledger.ts"
import * as Again from "../support/again.ts"
import { inOrder } from "../support/edges.ts"
import { sampleOf } from "../support/property.ts"
import { until } from "../support/until.ts"

ledger()

/** What a person does with a run. */
interface Scenario extends Again.Scenario {
  readonly after?: "approve" | "deny" | "answer" | "reply" | "say" | "stop" | "again" | "forget"
}

const scenarios: Readonly<Record<string, Scenario>> = {
  plain: {},
  act: { call: "act" },
  nested: { call: "sub" },
  retried: { call: "flaky" },
  flaky: { fails: { times: 1, reason: "provider_unavailable" } },
  hopeless: { fails: { times: 1, reason: "invalid_request" } },
  refused: { refusals: 1, reason: "unavailable", call: "act" },
  approved: { call: "gated", after: "approve" },
  denied: { call: "gated", after: "deny" },
  answered: { call: "asks", after: "answer" },
  replied: { call: "asks", after: "reply" },
  unseen: { call: "asks", after: "say" },
  unseenBelow: { call: "chief", after: "say" },
  stopped: { call: "slow", after: "stop" },
  repeated: { call: "act", after: "again" },
  forgotten: { call: "act", after: "forget" }
}

/** What is seen of a command. */
class Seen extends Again.Seen {
  readonly reports: Array<unknown> = []
}

const shown = (event: Event.WireEvent | SessionClient.Connected | SessionClient.Reported): unknown => {
  switch (event._tag) {
    case "Connected":
      // The versions count the records before it.
      return [event._tag, event.requestId === undefined]
    case "Reported":
      return [event._tag, event.report.status, event.report.outputText, event.report.suspensions.length]
    case "ChatCompleted": {
      const { haltedReason, outcome, totalUsage } = event.result
      return [event._tag, outcome._tag, haltedReason, totalUsage]
    }
    case "ToolExecutionStarted":
      return [event._tag, event.attempt]
    case "ToolResultEncoded":
      return [event._tag, event.content, event.code]
    default:
      return [event._tag, "replayed" in event && event.replayed === true]
  }
}

/** Plays scenarios in one session of one owner, and returns what is seen of the last of them. */
const played = (names: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    let seen = new Seen()
    let current: Scenario = {}
    const { provided, refusing, tools } = Again.worldOf(scenarios, () => ({ seen, scenario: current }))
    const base = yield* Session.Store
    const services = yield* Layer.build(
      Layer.mergeAll(Cluster.layer({ run: () => ({ tools }) }), SessionClient.layer).pipe(
        Layer.provide(provided(refusing(base))),
        Layer.provide(TestRunner.layer)
      )
    )
    const { answer, approve, deny, follow, forget, reply, stop } = yield* Effect.provideContext(
      SessionClient.SessionClient,
      services
    )
    const loaded = Effect.map(Session.load("s"), (kept) => kept!)
    /** Sends a command, and notes its events and its report or error. */
    const sent = (command: Effect.Effect<SessionClient.Report, SessionClient.ClientError>) =>
      Effect.gen(function*() {
        const exit = yield* Effect.exit(
          Stream.runForEach(follow("s", command), (event) => Effect.sync(() => seen.events.push(shown(event))))
        )
        if (Exit.isFailure(exit)) {
          const error = yield* Effect.flip(exit)
          seen.reports.push([error._tag, "reason" in error ? error.reason : "", "detail" in error ? error.detail : ""])
        }
        return (yield* loaded).session.suspensions[0]?.id ?? ""
      })
    for (const [index, name] of names.entries()) {
      current = scenarios[name]!
      seen = new Seen()
      const command = { command: `m${index}` }
      const before = (yield* Session.load("s"))?.version ?? 0
      const first = yield* Effect.forkChild(sent(reply("s", name, command)))
      if (current.after === "stop") {
        yield* until("the call", Effect.sync(() => seen.attempts.length), (count) => count === 1)
        const { ended } = yield* stop("s")
        const { stopped } = yield* ended
        seen.reports.push(stopped.length)
      }
      const id = yield* Fiber.join(first)
      const { version } = yield* loaded
      if (current.after === "approve") yield* sent(approve("s", id))
      if (current.after === "deny") yield* sent(deny("s", id, { reason: "no" }))
      if (current.after === "answer") yield* sent(answer("s", id, "this"))
      if (current.after === "reply") yield* sent(reply("s", "this", { after: version }))
      if (current.after === "say") {
        // The sender has not seen the question, whose answer the message then waits for.
        yield* sent(reply("s", "plain", { after: before }))
        yield* sent(answer("s", id, "this"))
      }
      if (current.after === "forget") yield* forget("s")
      if (current.after === "again" || current.after === "forget") yield* sent(reply("s", name, command))
      const ready = yield* Effect.provideContext(Cluster.ready, services)
      seen.reports.push(ready, (yield* base.claimOf("s")) ?? "free")
    }
    yield* inOrder
    const { attempts, events, reports, requests, warnings } = seen
    return { attempts, events, reports, requests, warnings }
  }).pipe(Effect.scoped, Effect.provide(Session.Store.layerMemory))

const names = Object.keys(scenarios)

describe("a second command", () => {
  for (const second of names) {
    it.live(`a command after another command works like the only command: ${second}`, () =>
      Effect.gen(function*() {
        const alone = yield* played([second])
        assert.isNotEmpty(alone.events)
        if (second === "nested") assert.deepStrictEqual(alone.attempts, ["inner 1"])
        for (const first of new Set([second, ...sampleOf(names, 3)])) {
          assert.deepStrictEqual(yield* played([first, second]), alone, `${second} behind ${first}`)
        }
      }))
  }
})
