/**
 * Sessions and workers do the same wherever a fiber yields. Nothing here waits for time: the clock stands still.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { type Adapter, Chat, Session } from "heddle"
import { Durable, Worker } from "heddle/durable"
import { driven, errands, linesOf } from "../support/edges.ts"
import { acting } from "../support/nests.ts"
import { property } from "../support/property.ts"
import type { Deed } from "../support/survivor.ts"
import * as Yields from "../support/yields.ts"

const model = Yields.calling("act")

/** A worker that takes sessions by name, and an effect that submits a message and waits for its answer. */
const asking = (options: Session.ResumeOptions<any, any, any, any, any>) =>
  Effect.gen(function*() {
    let ended = Deferred.makeUnsafe<void>()
    const context = yield* Layer.build(Worker.layer({
      run: () => options as {},
      poll: "1 hour",
      onEnd: () => Deferred.succeed(ended, undefined)
    }))
    const take = Effect.provideContext(Worker.take("s"), context)
    /** The worker may find the work by itself, and end before it is asked by name. */
    const taken = <E, R>(submitted: Effect.Effect<unknown, E, R>) =>
      Effect.gen(function*() {
        ended = Deferred.makeUnsafe()
        yield* submitted
        yield* take
        yield* Deferred.await(ended)
        // The claim is given back behind the end.
        while ((yield* Effect.provideContext(Worker.ready, context)).driven > 0) yield* Effect.yieldNow
      })
    const ask = (content: string) => taken(Session.submit("s", content))
    return { ask, taken }
  })

type Running = Effect.Effect<ReadonlyArray<unknown>, unknown, Adapter.Adapter | Session.Store | Scope.Scope>

/** The programs, by how many messages they send. Each succeeds with what it has seen. */
const programs: Readonly<Record<string, (messages: number) => Running>> = {
  worker: (messages: number) =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const { ask } = yield* asking({ tools: [acting(world, "act")] })
      for (let message = 0; message < messages; message++) yield* ask(message % 3 === 1 ? "act" : "hi")
      return [world.length, yield* Yields.summaryOf("s"), (yield* (yield* Session.Store).claimOf("s")) ?? "free"]
    }),
  claimed: (messages: number) =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const tools = [acting(world, "act")] as const
      yield* Effect.scoped(Effect.gen(function*() {
        let kept = yield* Session.claim("s")
        for (let message = 0; message < messages; message++) {
          const said = message % 2 === 0 ? "act" : "hi"
          kept = yield* Session.keep(kept, (session) => Session.reply(session, said, { tools }))
        }
      }))
      const inspected = yield* Session.inspect("s")
      return [world.length, yield* Yields.summaryOf("s"), inspected?.claim ?? "free"]
    }),
  resumed: (messages: number) =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const tools = [acting(world, "act")] as const
      const seen: Array<string> = []
      for (let message = 0; message < Math.ceil(messages / 4); message++) {
        const open = yield* Session.open("s")
        yield* Session.keepStream(open, (session) => Session.streamReply(session, "act", { tools })).pipe(
          Stream.takeUntil(({ _tag }) => _tag === "ToolExecutionCompleted"),
          Stream.runDrain
        )
        const kept = yield* Effect.scoped(Effect.flatMap(Session.claim("s"), (kept) => Session.resume(kept, { tools })))
        seen.push(kept.value.result.outcome._tag)
      }
      return [world.length, seen, yield* Yields.summaryOf("s")]
    }),
  errands: () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const tools = errands.toolsOf(world)
      yield* Session.submit("s", "go", { id: "m1" })
      yield* driven("s", tools)
      yield* Session.submit("s", "more", { id: "m2" })
      yield* driven("s", tools)
      yield* Session.keep((yield* Session.load("s"))!, (session) => Session.approve(session, "gated"))
      const { session } = yield* driven("s", tools)
      return [world.map(({ tool }) => tool).sort(), linesOf(session), yield* Yields.summaryOf("s")]
    }).pipe(Effect.provide(errands.model)),
  approved: () =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const { ask, taken } = yield* asking({ tools: [{ ...acting(world, "act"), approval: true }] })
      yield* ask("act")
      const waiting = yield* Yields.summaryOf("s")
      const loaded = (yield* Session.load("s"))!
      yield* taken(Session.keep(loaded, (session) => Session.approve(session, session.suspensions[0]!.id)))
      return [world.length, waiting, yield* Yields.summaryOf("s")]
    }),
  durable: (messages: number) =>
    Effect.gen(function*() {
      const world: Array<Deed> = []
      const run = Chat.run("act", { tools: [acting(world, "act")] })
      const program = Effect.forEach(Array.from({ length: Math.ceil(messages / 4) }), () => run).pipe(
        Effect.map((results) => results.map(({ finalResponse }) => finalResponse?.outputText)),
        Effect.provide(Durable.layer({ id: "p" }), { local: true })
      )
      return [yield* program, yield* program, world.length]
    }),
  snapshot: (messages: number) =>
    Effect.gen(function*() {
      const { ask } = yield* asking({})
      const versions: Array<number> = []
      for (let message = 0; message < messages; message++) {
        yield* ask("hi")
        if (message % 5 === 4) versions.push((yield* Session.snapshot((yield* Session.load("s"))!)).version)
      }
      const listed = yield* Stream.runCollect(Session.list())
      return [versions, listed.length, yield* Yields.summaryOf("s")]
    })
}

/** The turns of the process that a program has for its end. With a small budget it needs many. */
const patienceOf = (messages: number, budget: number) => 20_000 + Math.ceil(messages * 50_000 / budget)

/** What a program comes to with a budget of operations, where no time passes. */
const outcomeOf = (name: string, messages: number, budget: number) =>
  Yields.outcomeOf(
    programs[name]!(messages).pipe(Effect.scoped, Effect.provide([model, Session.Store.layerMemory, Logger.layer([])])),
    budget,
    patienceOf(messages, budget)
  )

describe("yields in sessions and workers", () => {
  property(
    "O-53: sessions and workers answer the same wherever a fiber yields",
    Arbitrary.all({
      name: Arbitrary.schema(Schema.Literals(Object.keys(programs))),
      messages: Yields.between(1, 70),
      budget: Yields.budgets
    }),
    ({ budget, messages: most, name }) =>
      Effect.gen(function*() {
        // A long journal costs a small budget a turn of the process for each operation.
        const messages = Math.min(most, Math.max(3, Math.ceil(budget / 8)))
        const expected = yield* outcomeOf(name, messages, Yields.boundless)
        const actual = yield* outcomeOf(name, messages, budget)
        const isOver = expected.startsWith("[")
        return [
          ...isOver ? [] : [`without a yield: ${expected}`],
          ...(actual === expected ? [] : [`with a yield after ${budget}: ${actual}, expected ${expected}`])
        ]
      }),
    300
  )
})
