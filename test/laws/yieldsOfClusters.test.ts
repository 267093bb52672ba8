/**
 * Sessions on a cluster come to the same wherever a fiber yields: the reports of commands, what readers see, the journal,
 * and what is left. The clock stands still, except that the loops of the cluster have their pauses while nothing else is
 * to do.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Session, Tool } from "heddle"
import { Cluster, SessionClient } from "heddle/cluster"
import { acting } from "../support/nests.ts"
import { property } from "../support/property.ts"
import type { Deed } from "../support/survivor.ts"
import * as Yields from "../support/yields.ts"

type Client = SessionClient.Service

const model = Yields.calling("act", "gated", "asks", "held")

const summaryOf = (world: ReadonlyArray<Deed>) =>
  Effect.gen(function*() {
    return {
      ...(yield* Yields.summaryOf("s")),
      claim: (yield* (yield* Session.Store).claimOf("s")) ?? "free",
      driven: (yield* Cluster.ready).driven,
      deeds: world.length
    }
  })

const shown = ({ outputText, status, suspensions, version }: SessionClient.Report) => [
  version,
  status,
  outputText,
  suspensions.map(({ id }) => id)
]

/** The kinds of events. Whether a call waits for its turn depends on how far its run has come. */
const tagsOf = (events: Iterable<{ readonly _tag: string }>) =>
  Array.from(events, ({ _tag }) => _tag).filter((tag) => tag !== "ToolQueued")

/** The programs, by how many messages they send. Each succeeds with what it has seen. */
const programs: Readonly<
  Record<string, (client: Client, messages: number) => Effect.Effect<unknown, unknown, Session.Store>>
> = {
  replies: ({ reply }, messages) =>
    Effect.forEach(
      Array.from({ length: messages }, (_, index) => index),
      (index) => Effect.map(reply("s", index % 3 === 1 ? "act" : "hi", { command: `m${index}` }), shown)
    ),
  repeated: ({ reply }, messages) =>
    Effect.forEach(Array.from({ length: messages }, (_, index) => index), (index) => {
      const send = Effect.map(reply("s", "act", { command: `m${index % 2}` }), shown)
      return Effect.all([send, send], { concurrency: 2 })
    }),
  settled: ({ answer, approve, deny, reply }) =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      for (const [word, settle] of [["gated", approve], ["gated", deny], ["asks", undefined]] as const) {
        const { suspensions } = yield* reply("s", word)
        const { id } = suspensions[0]!
        const done = yield* (settle === undefined ? answer("s", id, "this") : settle("s", id))
        seen.push([suspensions.length, shown(done)])
      }
      return seen
    }),
  followed: ({ follow, reply }, messages) =>
    Effect.forEach(
      Array.from({ length: messages }, (_, index) => index),
      (index) =>
        Stream.runCollect(follow("s", reply("s", index % 2 === 0 ? "act" : "hi"))).pipe(
          Effect.map(tagsOf)
        )
    ),
  read: ({ events, reply }) =>
    Effect.gen(function*() {
      const connected = yield* Deferred.make<void>()
      const reader = yield* events("s").pipe(
        Stream.tap(({ _tag }) => _tag === "Connected" ? Deferred.succeed(connected, undefined) : Effect.void),
        Stream.takeUntil((event) => event._tag === "Connected" && event.version > 0),
        Stream.runCollect,
        Effect.forkChild
      )
      yield* Deferred.await(connected)
      const done = yield* reply("s", "act")
      return [shown(done), tagsOf(yield* Fiber.join(reader))]
    }),
  stopped: ({ reply, stop }) =>
    Effect.gen(function*() {
      const seen: Array<unknown> = []
      for (let times = 0; times < 2; times++) {
        const running = yield* Effect.forkChild(reply("s", "held"))
        while ((yield* Session.load("s"))?.interrupted?.calls.some(({ state }) => state === "Started") !== true) {
          yield* Effect.yieldNow
        }
        const { ended } = yield* stop("s")
        seen.push([(yield* ended).stopped.length, shown(yield* Fiber.join(running))])
      }
      return seen
    })
}

const program = (name: string, messages: number): Effect.Effect<unknown, unknown> => {
  const world: Array<Deed> = []
  const tools = [
    acting(world, "act"),
    { ...acting(world, "gated"), approval: true },
    Tool.make("asks", { parameters: {}, handler: () => Effect.succeed(Tool.askUser("which?")) }),
    Tool.make("held", { parameters: {}, handler: () => Effect.never })
  ]
  return Effect.gen(function*() {
    const client = yield* SessionClient.SessionClient
    const seen = yield* programs[name]!(client, messages)
    return [seen, yield* summaryOf(world)]
  }).pipe(
    Effect.provide(
      Layer.mergeAll(Cluster.layer({ run: () => ({ tools: tools as unknown as [] }) }), SessionClient.layer).pipe(
        Layer.provide(model),
        Layer.provideMerge(Session.Store.layerMemory),
        Layer.provideMerge(TestRunner.layer)
      )
    ),
    Effect.provide(Logger.layer([]))
  )
}

/** Lets time pass, a twentieth of a second in many turns of the process, until a program has ended. */
const timed = (program: Effect.Effect<unknown, unknown>): Effect.Effect<unknown, unknown> =>
  Effect.raceFirst(
    program,
    Effect.forever(Effect.andThen(Effect.replicateEffect(Yields.turn, 200), TestClock.adjust("50 millis")))
  )

/** The turns of the process that a program has for its end. With a small budget it needs many. */
const patience = 400_000

const outcomeOf = (name: string, messages: number, budget: number) =>
  Yields.outcomeOf(timed(program(name, messages)), budget, patience)

describe("yields in sessions on a cluster", () => {
  property(
    "O-53: sessions on a cluster come to the same wherever a fiber yields",
    Arbitrary.all({
      name: Arbitrary.schema(Schema.Literals(Object.keys(programs))),
      messages: Yields.between(1, 6),
      budget: Yields.budgets
    }),
    ({ budget, messages, name }) =>
      Effect.gen(function*() {
        const expected = yield* outcomeOf(name, messages, Yields.boundless)
        const actual = yield* outcomeOf(name, messages, budget)
        return [
          ...expected.startsWith("[") ? [] : [`without a yield: ${expected}`],
          ...(actual === expected ? [] : [`with a yield after ${budget}: ${actual}, expected ${expected}`])
        ]
      }),
    120
  )
})
