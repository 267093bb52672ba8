/**
 * The laws of owners that leave (N-05), on generated sessions and owners: workers that are asked to leave, and programs
 * whose scope is closed, at any moment. The bank takes its time, completes what it was asked for even if the asker is gone,
 * and finds a charge only when it is complete, so that a lookUp that is asked too early charges twice.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { Chat, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { Simulation } from "heddle/testing"
import { oneOf } from "../support/dimensions/dimension.ts"
import { casting, type Turn } from "../support/nests.ts"
import { property } from "../support/property.ts"

const term = 6000
const grace = 1000

/** The kinds of calls: that are interrupted, that block, that begin in a sub-agent, or in a run of the handler's own. */
const kinds = ["charge", "block", "agent", "within"] as const

const calls = Arbitrary.all({ kind: oneOf(...kinds), millis: oneOf(0, 10, 500, 1500, 3500) })

/** An owner: how long it stays, how it leaves, and how long it then waits for its calls. */
const owners = Arbitrary.all({
  after: oneOf(0, 5, 13, 100, 400, 900, 1600, 2500, 4000, 7000),
  how: oneOf("worker", "worker", "scope"),
  drain: oneOf(1, 300, 2000, 10_000),
  pause: oneOf(0, 100, 3000)
})

type Call = { readonly kind: (typeof kinds)[number]; readonly millis: number }

const cases = Arbitrary.all({
  turns: Arbitrary.array(Arbitrary.array(calls, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 3 }),
  owners: Arbitrary.array(owners, { minLength: 1, maxLength: 4 }),
  maxConcurrency: oneOf(1, 3)
})

type Case = typeof cases extends Arbitrary.Arbitrary<infer A> ? A : never

interface Owner {
  readonly after: number
  readonly how: "worker" | "scope"
  readonly drain: number
}

/** A bank whose charges go on without the one that asked for them. */
class Bank {
  readonly charges = new Map<string, number>()

  charge(key: string, millis: number): Effect.Effect<string> {
    const charging = Effect.andThen(
      Effect.sleep(millis),
      Effect.sync(() => {
        this.charges.set(key, (this.charges.get(key) ?? 0) + 1)
        return "charged"
      })
    )
    // The answer comes back by the same connection, which the asker may have left.
    return Effect.flatMap(Effect.forkDetach(charging), (fiber) =>
      Effect.callback<string>((resume) => {
        fiber.addObserver((exit) => resume(exit))
      }))
  }

  find(key: string): Option.Option<string> {
    return this.charges.has(key) ? Option.some("charged") : Option.none()
  }
}

const parameters = { millis: Schema.Finite }

const toolsOf = (bank: Bank) => {
  const charging = (name: string, options: object = {}) =>
    Tool.make(name, {
      parameters,
      handler: ({ millis }, { idempotencyKey }) => bank.charge(idempotencyKey, millis),
      lookUp: (_, { idempotencyKey }) => Effect.sync(() => bank.find(idempotencyKey)),
      ...options
    })
  const charge = charging("charge")
  const ask = (millis: number) => `charge ${millis}`
  return [
    charge,
    charging("block", { interrupt: "block" }),
    Tool.fromChat("agent", { parameters, chat: ({ millis }) => Chat.stream(ask(millis), { tools: [charge], grace }) }),
    Tool.make("within", {
      parameters,
      afterCrash: "retry",
      handler: ({ millis }) => Effect.as(Chat.run(ask(millis), { tools: [charge], grace }), "charged")
    })
  ]
}

const modelOf = ({ turns }: Case) => {
  const made = turns.map((calls, turn): Turn =>
    calls.map(({ kind, millis }: Call, index) => [`${kind}-${turn}-${index}`, kind, { millis }])
  )
  const inner = [0, 10, 500, 1500, 3500].map((millis) => [
    `charge ${millis}`,
    [[["inner", "charge", { millis }]], "charged"] as ReadonlyArray<Turn>
  ])
  return casting({ go: [...made, "done"], ...Object.fromEntries(inner) as Record<string, ReadonlyArray<Turn>> })
}

/** Lets an owner drive the session until its time is over. Gives how long its leave took. */
const driving = (
  played: Case,
  bank: Bank,
  { after, drain, how }: Owner
): Effect.Effect<number, never, Session.Store> =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    const options = { tools: toolsOf(bank) as [], maxConcurrency: played.maxConcurrency, grace }
    const layer = modelOf(played)
    if (how === "worker") {
      yield* Layer.build(Worker.layer({ run: () => options, term, drain }).pipe(Layer.provide(layer))).pipe(
        Scope.provide(scope)
      )
    } else {
      const resuming = Session.claim("s", { term }).pipe(
        Effect.flatMap((kept) =>
          Session.next(kept) === "resume"
            ? Effect.asVoid(Session.resume(kept, options))
            : Session.next(kept) === "reply"
            ? Effect.asVoid(Session.keep(kept, (session) => Session.reply(session, "go", { ...options, takes: "m" })))
            : Effect.void
        ),
        Effect.scoped,
        Effect.ignore,
        Effect.provide(layer)
      )
      yield* Effect.forkIn(resuming, scope)
    }
    yield* Effect.sleep(after)
    const asked = yield* Clock.currentTimeMillis
    yield* Scope.close(scope, Exit.void)
    return (yield* Clock.currentTimeMillis) - asked
  })

const isOver = Effect.map(Session.load("s"), (kept) => kept !== undefined && Session.next(kept) === "nothing")

const played = (given: Case): Effect.Effect<ReadonlyArray<string>, unknown> =>
  Effect.gen(function*() {
    const bank = new Bank()
    const problems: Array<string> = []
    yield* Session.submit("s", "go", { id: "m" })
    for (const owner of given.owners) {
      const millis = yield* driving(given, bank, owner)
      const longest = (owner.how === "worker" ? owner.drain : 0) + 2 * grace
      if (millis > longest) problems.push(`a leave took ${millis} ms, more than ${longest}`)
      const found = yield* Session.inspect("s")
      const isStarted = found?.calls.some(({ state }) => state === "Started") === true
      const isClaimed = found?.claim !== undefined && found.claim.until > (yield* Clock.currentTimeMillis)
      if (isClaimed && !isStarted) problems.push("the claim is kept, and no call is started")
      yield* Effect.sleep(owner.pause)
    }
    yield* driving(given, bank, { how: "worker", after: 120_000, drain: 1 })
    const { session } = yield* Session.open("s")
    if (!(yield* isOver) || session.status !== "completed") problems.push(`the session is ${session.status}`)
    const wanted = given.turns.flat().length
    const counts = Array.from(bank.charges.values())
    if (counts.length !== wanted) problems.push(`${counts.length} keys were charged of ${wanted}`)
    for (const [key, count] of bank.charges) if (count !== 1) problems.push(`${key} was charged ${count} times`)
    const told = session.thread.messages.filter(({ role }) => role === "tool")
    for (const { content } of told) {
      if (!String(content).includes("charged")) problems.push(`the model reads ${String(content)}`)
    }
    if (told.length !== wanted) problems.push(`${told.length} calls are answered of ${wanted}`)
    return problems
  }).pipe(Effect.provide([Session.Store.layerMemory, Logger.layer([])]))

describe("owners that leave their sessions", () => {
  property(
    "N-05: no charge twice, no answer lost, no claim kept in vain, wherever owners leave",
    cases,
    (given) =>
      Effect.flatMap(
        Simulation.run(played(given), { maxSteps: 2_000_000 }),
        ({ exit }) => exit ?? Effect.succeed(["it does not end"])
      ),
    500
  )
})
