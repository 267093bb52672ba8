/** Messages into the run of a kept session, killed behind each append: beside early calls, and where the reader leaves. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Adapter, Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import { type Append, holding, linesOf, listing, passing, recordsOf, stores } from "../support/edges.ts"

const { finish, text, toolCall } = Script

const turnOf = ({ messages }: Adapter.Request) => messages.filter(({ role }) => role === "assistant").length

const whereOf = (before: ReadonlyArray<Append>) =>
  `killed behind append ${before.length}, ${before.at(-1)?.records.map(({ _tag }) => _tag).join()}`

const receiptOf = (id: string) => Effect.map(Session.open("s"), (kept) => Session.receipt(kept, id))

/** The steps that delivered a message, as the journal has them. */
const deliveriesOf = (id: string) =>
  Effect.map(
    recordsOf("s"),
    (records) => records.filter((record) => record._tag === "StepPrepared" && record.delivered?.includes(id) === true)
  )

/** A process whose model sends a message once two early calls have started, and whose calls end behind it. */
const early = Effect.gen(function*() {
  const store = yield* Session.Store
  const started = yield* Deferred.make<void>()
  const sent = yield* Deferred.make<void>()
  let starts = 0
  const look = Tool.make("look", {
    parameters: {},
    readOnly: true,
    handler: (_, { id }) =>
      Effect.suspend(() => ++starts === 2 ? Deferred.succeed(started, undefined) : Effect.void).pipe(
        Effect.andThen(Deferred.await(sent)),
        Effect.as(`seen by ${id}`)
      )
  })
  const steer = Deferred.await(started).pipe(
    Effect.andThen(Session.submit("s", "not that", { id: "m", mode: "steer" })),
    Effect.provideService(Session.Store, store),
    Effect.orDie,
    Effect.andThen(Deferred.succeed(sent, undefined))
  )
  const calls = [toolCall("a", "look", {}), toolCall("b", "look", {}), finish("tool_calls")]
  const stream: Adapter.Service["stream"] = (request) => {
    const isFirst = turnOf(request) === 0
    const reply = Script.make([isFirst ? calls : [text("Done."), finish("stop")]])
    return Stream.unwrap(Effect.map(reply, (scripted) =>
      Stream.tap(
        scripted.stream(request),
        ({ _tag }) => isFirst && _tag === "MessageCompleted" ? steer : Effect.void
      )))
  }
  // A call that has begun behind its reply ends without the model.
  const kept = yield* Session.open("s")
  if (kept.interrupted !== undefined && (yield* receiptOf("m")) !== undefined) yield* Deferred.succeed(sent, undefined)
  const options = { tools: [look], requestId: "run", takeOver: true } as const
  const program = kept.interrupted === undefined
    ? Session.keep(kept, (session) => Session.reply(session, "go", options))
    : Session.resume(kept, options)
  return yield* Effect.provide(program, Adapter.layer({ stream }))
})

for (const [name, store] of Object.entries(stores)) {
  describe(`messages into a run killed behind each append: ${name}`, () => {
    it.effect(`G52: a steer lets early started calls run to their end, ${name}`, () =>
      Effect.gen(function*() {
        const appends: Array<Append> = []
        const whole = yield* passing(Effect.provide(early, listing(appends, store)))
        const lines = [
          "user: go",
          "assistant +a +b: ",
          "tool a: seen by a",
          "tool b: seen by b",
          "user: not that",
          "assistant: Done."
        ]
        assert.deepStrictEqual(linesOf(whole.session), lines)
        let begun = 0
        for (let cut = 2; cut < appends.length; cut++) {
          const before = appends.slice(0, cut)
          const where = whereOf(before)
          const tags = before.flatMap(({ records }) => records.map(({ _tag }) => _tag))
          if (tags.includes("CallStarted") && !tags.includes("ReplyReceived")) begun++
          yield* Effect.gen(function*() {
            const { session } = yield* passing(early)
            assert.deepStrictEqual(linesOf(session), lines, where)
            assert.propertyVal(yield* receiptOf("m"), "became", "delivered", where)
            assert.lengthOf(yield* deliveriesOf("m"), 1, where)
            assert.deepStrictEqual(Journal.check(yield* recordsOf("s")), [], where)
          }).pipe(Effect.provide(holding(before, [], store)))
        }
        assert.isAbove(begun, 1)
      }))

    it.effect(`G94: every open fate ends when the reader leaves the run, ${name}`, () =>
      Effect.gen(function*() {
        const model = Adapter.layer({
          stream: (request) =>
            Stream.unwrap(Effect.map(
              Script.make([
                turnOf(request) < 2
                  ? [toolCall(`c${turnOf(request)}`, "look", {}), finish("tool_calls")]
                  : [text("Done."), finish("stop")]
              ]),
              (scripted) => scripted.stream(request)
            ))
        })
        const messages = [
          ["m1", "one", { mode: "steer", otherwise: "refuse" }],
          ["m2", "two", { mode: "follow", otherwise: "refuse" }],
          ["m3", "three", { mode: "follow" }]
        ] as const
        const tools = Effect.map(Session.Store, (store) =>
          [
            Tool.make("look", {
              parameters: {},
              idempotent: true,
              handler: (_, { id }) =>
                Effect.forEach(
                  id === "c0" ? messages : [],
                  ([id, content, options]) => Session.submit("s", content, { id, ...options })
                ).pipe(Effect.provideService(Session.Store, store), Effect.orDie, Effect.as("seen"))
            })
          ] as const)
        /** Begins the run, and leaves it behind so many of its events. */
        const leaving = (events: number) =>
          Effect.flatMap(Effect.all([tools, Session.open("s")]), ([tools, kept]) =>
            Session.keepStream(kept, (session) =>
              Session.streamReply(session, "go", { tools, requestId: "run" })).pipe(
                Stream.take(events),
                Stream.runCount
              )).pipe(Effect.provide(model))
        /** Holds that each accepted message has a fate, and is in the thread once iff it was delivered. */
        const fatesIn = (where: string) =>
          Effect.gen(function*() {
            const { interrupted, session } = yield* Session.open("s")
            assert.isUndefined(interrupted, where)
            const fates: Array<string> = []
            for (const [id, content, options] of messages) {
              const receipt = yield* receiptOf(id)
              if (receipt === undefined) {
                continue
              }
              const { became, reason } = receipt
              const times = session.thread.messages.filter((message) =>
                message.content === content
              ).length
              assert.strictEqual(times, became === "delivered" ? 1 : 0, where)
              assert.lengthOf(yield* deliveriesOf(id), times, where)
              // What no run got is left to the next one.
              if (times === 0) assert.strictEqual(became, "otherwise" in options ? "refused" : "queued", where)
              fates.push(`${id} ${became} ${reason ?? ""}`.trim())
            }
            assert.deepStrictEqual(Journal.check(yield* recordsOf("s")), [], where)
            return fates
          })
        const resumed = Effect.flatMap(Effect.all([tools, Session.open("s")]), ([tools, kept]) =>
          Session.resume(kept, { tools, takeOver: true }))
        const leftAgain = Effect.flatMap(Effect.all([tools, Session.open("s")]), ([tools, kept]) =>
          Stream.runDrain(Stream.take(Session.streamResume(kept, { tools, takeOver: true }), 2)))
        /** What the next owners do with the run that was left. */
        const ways: Record<string, Effect.Effect<unknown, unknown, Adapter.Adapter | Session.Store>> = {
          resumed,
          "left again": Effect.andThen(
            leftAgain,
            Effect.flatMap(Session.open("s"), (kept) =>
              kept.interrupted === undefined ? Effect.void : resumed)
          ),
          stopped: Effect.andThen(Session.stop("s"), resumed),
          abandoned: Effect.flatMap(Session.open("s"), (kept) =>
            Session.abandon(kept))
        }
        const seen = new Set<string>()
        const tried = new Set<string>()
        const total = yield* passing(Effect.provide(leaving(10_000), store))
        for (let events = 1; events < total; events++) {
          const appends: Array<Append> = []
          yield* passing(Effect.provide(leaving(events), listing(appends, store)))
          for (let cut = 2; cut <= appends.length; cut++) {
            const before = appends.slice(0, cut)
            // Most places of leaving have the same records.
            const key = JSON.stringify(before.map(({ records }) =>
              records
            ))
            if (tried.has(key)) continue
            tried.add(key)
            for (const [way, next] of Object.entries(ways)) {
              yield* Effect.gen(function*() {
                yield* passing(next)
                const where = `left behind ${events} events, ${whereOf(before)}, ${way}`
                for (const fate of yield* fatesIn(where)) seen.add(`${way}: ${fate}`)
              }).pipe(Effect.provide([model, holding(before, [], store)]))
            }
          }
        }
        assert.isAbove(tried.size, 10)
        assert.includeMembers([...seen], [
          "resumed: m1 delivered",
          "resumed: m2 delivered",
          "resumed: m3 delivered",
          "left again: m1 delivered",
          "left again: m2 delivered",
          "stopped: m1 refused stopped",
          "stopped: m2 refused stopped",
          "stopped: m3 queued",
          "abandoned: m1 refused stopped",
          "abandoned: m2 refused stopped",
          "abandoned: m3 queued"
        ])
      }))
  })
}
