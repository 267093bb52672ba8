/**
 * Laws of sessions: whatever processes do to one, and wherever they end, the library and the model of sessions agree, each
 * call is answered once, nothing repeats in silence and no message is lost.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { placesOf } from "../support/edges.ts"
import { property, shareOf } from "../support/property.ts"
import * as Programs from "../support/sessionPrograms.ts"

const sqlite = Layer.orDie(SessionStore.layerSqlite({ filename: ":memory:" }))

const plain = [
  "report",
  "ask",
  "fail",
  "retry",
  "lookUp",
  "readOnly",
  "idempotent",
  "flaky",
  "question",
  "approval",
  "manual"
] as const

const turnsOf = <const Names extends ReadonlyArray<string>>(names: Names, most: number) =>
  Schema.Array(
    Schema.Struct({
      calls: Schema.Array(Schema.Literals(names)).check(Schema.isMinLength(1), Schema.isMaxLength(3)),
      isFollowed: Schema.Boolean
    })
  ).check(Schema.isMinLength(1), Schema.isMaxLength(most))

const operations = [
  "due",
  "due",
  "due",
  "reply",
  "continue",
  "resume",
  "abandon",
  "settle",
  "settle",
  "worker",
  "submit",
  "stop"
] as const

const faults = [
  "none",
  "before",
  "after",
  "before",
  "after",
  "interrupt",
  "stop",
  "submit",
  "settle",
  "lostStop",
  "within",
  "hang"
] as const

const upTo = (count: number) => Schema.Literals(Array.from({ length: count }, (_, index) => index))

const steps = Schema.Array(Schema.Struct({
  operation: upTo(operations.length),
  fault: upTo(faults.length),
  at: upTo(14),
  pick: upTo(6),
  isStale: upTo(4)
})).check(Schema.isMinLength(1), Schema.isMaxLength(8))

/** What the models of a session and of its agents ask for. */
const scripts = {
  turns: turnsOf([...plain, "agentA", "agentB"], 3),
  agents: Schema.Struct({ agentA: turnsOf([...plain, "agentB"], 2), agentB: turnsOf(plain, 2) })
}

const programs = Arbitrary.schema(Schema.Struct({
  ...scripts,
  isFinalizing: Schema.Boolean,
  steps
}))

type Program = typeof programs extends Arbitrary.Arbitrary<infer A> ? A : never

// Programs with messages into their runs, withdrawals, stops of one call, and budgets.

const governedOperations = [...operations, "due", "due", "steer", "follow", "refuse", "withdraw", "stopCall"] as const

const governedFaults = [
  "none",
  "before",
  "after",
  "interrupt",
  "stop",
  "submit",
  "settle",
  "within",
  "hang",
  "steer",
  "follow",
  "refuse",
  "withdraw",
  "stopCall"
] as const

/** What another process does right before another append. */
const asides = ["none", "steer", "follow", "refuse", "withdraw", "steer", "withdraw", "stopCall"] as const

const limits = [
  undefined,
  undefined,
  { calls: 5 },
  { calls: 3 },
  { calls: 2 },
  { calls: 1 },
  { calls: 0 },
  { calls: 4, tokens: 5_000 },
  { tokens: 9_500 }
] as const

const governedPrograms = Arbitrary.schema(Schema.Struct({
  ...scripts,
  isFinalizing: Schema.Literals([false, false, false, true]),
  budgets: Schema.Struct({ own: upTo(limits.length), agent: upTo(limits.length), around: upTo(2 * limits.length) }),
  isHalting: Schema.Boolean,
  isOfSession: Schema.Boolean,
  isSqlite: Schema.Boolean,
  steps: Schema.Array(Schema.Struct({
    operation: upTo(governedOperations.length),
    fault: upTo(governedFaults.length),
    at: upTo(18),
    aside: upTo(asides.length),
    asideAt: upTo(18),
    pick: upTo(6),
    isStale: upTo(6)
  })).check(Schema.isMinLength(1), Schema.isMaxLength(8))
}))

type Governed = typeof governedPrograms extends Arbitrary.Arbitrary<infer A> ? A : never

type Known = (typeof governedOperations)[number]

const commands = ["follow", "refuse", "steer", "stop", "stopCall", "submit", "withdraw"] as const

const isCommand = (name: unknown): name is (typeof commands)[number] => commands.includes(name as never)

const operationOf = (name: Known, pick: number, kept: Session.Kept): Programs.Operation | Programs.Command => {
  const open = kept.session.suspensions[pick % 3] ?? kept.session.suspensions[0]
  const settled = (): Programs.Operation => {
    const id = open?.id ?? "nothing"
    return ["settle", id, pick % 2 === 0 ? ["value", `answer to ${id}`] : pick === 3 ? ["no"] : ["again"]]
  }
  const due = (): Programs.Operation => {
    if (kept.interrupted !== undefined) return ["resume"]
    if (open !== undefined) return settled()
    return kept.session.approved.length > 0 ? ["continue"] : ["reply", `hello ${kept.version}`]
  }
  switch (name) {
    case "due":
      return due()
    case "continue":
      // A session in which nothing was said has nothing to continue with.
      return kept.session.thread.messages.length > 0 ? ["continue"] : due()
    case "reply":
      return ["reply", `hello ${kept.version}`]
    case "settle":
      return settled()
    default:
      return isCommand(name) ? name : [name]
  }
}

const played = (program: Program) =>
  Effect.gen(function*() {
    const shared = yield* Programs.opened(program)
    let stale = yield* Programs.loaded(shared)
    for (const step of program.steps) {
      const fresh = yield* Programs.loaded(shared)
      const kept = step.isStale === 0 ? stale : fresh
      const operation = operationOf(operations[step.operation] ?? "due", step.pick, kept)
      const how = faults[step.fault] ?? "none"
      if (typeof operation === "string") yield* Programs.command(shared, operation)
      else yield* Programs.run(shared, operation, how === "none" ? undefined : { at: step.at + 1, how }, kept)
      stale = fresh
      if (shared.problems.length > 0) break
    }
    return shared.problems.length > 0 ? shared.problems : yield* Programs.finish(shared)
  }).pipe(Effect.provide(TestClock.layer()))

const budgetsOf = ({ budgets: { agent, around, own }, isHalting, isOfSession }: Governed): Programs.Budgets => {
  const boundsOf = (index: number, scope: "run" | "session"): Programs.Bounds | undefined => {
    const bounds = limits[index]
    return bounds && { limits: bounds, onExhausted: isHalting ? "halt" : "finalize", scope }
  }
  return {
    own: boundsOf(own, isOfSession ? "session" : "run"),
    agent: boundsOf(agent, "run"),
    around: boundsOf(around, "run")
  }
}

/** Plays a program with messages and budgets. Right before one append of an operation another process may do something. */
const governed = (program: Governed) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const shared = yield* Programs.opened({ ...program, budgets: budgetsOf(program) }, store)
    let stale = yield* Programs.loaded(shared)
    for (const { aside, asideAt, at, fault, isStale, operation: index, pick } of program.steps) {
      const fresh = yield* Programs.loaded(shared)
      const kept = isStale === 0 ? stale : fresh
      const operation = operationOf(governedOperations[index] ?? "due", pick, kept)
      const own = [{ at: asideAt + 1, how: asides[aside] ?? "none" }, {
        at: at + 1,
        how: governedFaults[fault] ?? "none"
      }]
      const faults = own.flatMap(({ at, how }) => how === "none" ? [] : [{ at, how }])
      if (typeof operation === "string") yield* Programs.command(shared, operation)
      else yield* Programs.run(shared, operation, faults, kept)
      stale = fresh
      if (shared.problems.length > 0) break
    }
    return shared.problems.length > 0 ? shared.problems : yield* Programs.finish(shared)
  }).pipe(
    Effect.provide(program.isSqlite ? sqlite : Session.Store.layerMemory, { local: true }),
    Effect.provide(TestClock.layer())
  )

// Interrupted at any record, and continued in every way.

const turn = (isFollowed: boolean, ...calls: Programs.Turn["calls"]): Programs.Turn => ({ calls, isFollowed })

const alone = (...turns: ReadonlyArray<Programs.Turn>): Programs.Program => ({ turns, agents: {}, isFinalizing: false })

const interrupted: ReadonlyArray<Programs.Program> = [
  alone(turn(true, "report", "readOnly", "flaky"), turn(false, "ask", "idempotent")),
  alone(turn(false, "approval", "retry"), turn(true, "question", "lookUp"), turn(false, "report")),
  alone(turn(false, "manual", "fail"), turn(false, "approval", "approval", "report")),
  { ...alone(turn(true, "report"), turn(true, "readOnly"), turn(false, "report", "flaky")), isFinalizing: true },
  {
    turns: [turn(true, "agentA", "report"), turn(false, "ask", "agentB")],
    agents: {
      agentA: [turn(true, "agentB", "approval"), turn(false, "flaky")],
      agentB: [turn(false, "question", "retry")]
    },
    isFinalizing: false
  },
  {
    turns: [turn(true, "agentA", "agentB"), turn(false, "approval")],
    agents: {
      agentA: [turn(true, "ask", "agentB"), turn(false, "report")],
      agentB: [turn(false, "manual", "readOnly")]
    },
    isFinalizing: false
  },
  {
    turns: [turn(true, "agentA", "agentA", "question")],
    agents: {
      agentA: [turn(true, "agentB", "agentB"), turn(false, "ask")],
      agentB: [turn(false, "approval", "lookUp")]
    },
    isFinalizing: false
  }
]

/** The two calls of the turn whose states are all searched: each kind is in one of them. */
const pairs = [["report", "approval"], ["question", "lookUp"], ["ask", "manual"], ["readOnly", "flaky"], [
  "fail",
  "retry"
]]

const continuations = ["resume", "continue", "reply", "answer", "approve", "deny", "worker", "abandon", "stop"] as const

const interruptions = ["before", "after", "interrupt", "within", "hang"] as const

const continuation = Schema.Struct({
  operation: upTo(continuations.length),
  how: upTo(interruptions.length),
  at: upTo(16),
  pick: upTo(3)
})

/** A program, how many operations come before the interruption, and what follows each. */
const interruptionsOf = (count: number) =>
  Arbitrary.schema(Schema.Struct({
    program: upTo(interrupted.length),
    rounds: upTo(5),
    continuations: Schema.Array(continuation).check(Schema.isMinLength(count), Schema.isMaxLength(count))
  }))

type Interruption = ReturnType<typeof interruptionsOf> extends Arbitrary.Arbitrary<infer A> ? A : never

const dueIn = ({ interrupted, session, version }: Session.Kept, pick: number): Programs.Operation => {
  const open = session.suspensions[pick] ?? session.suspensions[0]
  if (interrupted !== undefined) return ["resume"]
  if (open === undefined) return session.approved.length > 0 ? ["continue"] : ["reply", `hello ${version}`]
  return ["settle", open.id, open.kind === "approval" ? ["again"] : ["value", `answer to ${open.id}`]]
}

const continuing = (
  kept: Session.Kept,
  operation: (typeof continuations)[number],
  pick: number
): Programs.Operation | "stop" => {
  const { session, version } = kept
  const id = (session.suspensions[pick] ?? session.suspensions[0])?.id ?? "nothing"
  switch (operation) {
    case "answer":
      return ["settle", id, ["value", `answer to ${id}`]]
    case "approve":
      return ["settle", id, ["again"]]
    case "deny":
      return ["settle", id, ["no"]]
    case "continue":
      return session.thread.messages.length > 0 ? ["continue"] : dueIn(kept, pick)
    case "reply":
      return ["reply", `hello ${version}`]
    default:
      return operation === "stop" ? operation : [operation]
  }
}

/** Interrupts what is due at a record, continues in some way, and so on, and then does what is left to do. */
const interrupting = ({ continuations: wanted, program, rounds }: Interruption) =>
  Effect.gen(function*() {
    const shared = yield* Programs.opened(interrupted[program] ?? alone())
    for (let round = 0; round < rounds; round++) {
      yield* Programs.run(shared, dueIn(yield* Programs.loaded(shared), 0))
    }
    for (const { at, how, operation, pick } of wanted) {
      const kept = yield* Programs.loaded(shared)
      yield* Programs.run(shared, dueIn(kept, pick), { at: at + 1, how: interruptions[how] ?? "before" })
      const next = continuing(yield* Programs.loaded(shared), continuations[operation] ?? "resume", pick)
      if (next === "stop") yield* Programs.command(shared, next)
      else yield* Programs.run(shared, next)
      if (shared.problems.length > 0) break
    }
    return shared.problems.length > 0 ? shared.problems : yield* Programs.finish(shared)
  }).pipe(Effect.provide(TestClock.layer()))

/** Every state of a session with one turn of two calls. */
const all = (calls: Programs.Turn["calls"], limits: Programs.Limits) =>
  it.live(
    `Q-02: every state of a session keeps the laws, with calls ${calls.join(" and ")}, ${JSON.stringify(limits)}`,
    () =>
      Effect.gen(function*() {
        const { edges, problems, states } = yield* Programs.search(alone(turn(false, ...calls)), limits)
        assert.deepStrictEqual(problems, [])
        if (process.env["HEDDLE_RUNS"] !== undefined) console.log(`${calls.join()}: ${states} states, ${edges} edges`)
        assert.isAbove(states, 100)
      }),
    1_260_000
  )

describe("sessions beside their model", () => {
  all(["report", "approval"], { messages: shareOf(2), faults: 1, stops: 0, owners: 2 })
  // They take five minutes.
  const isWhole = process.env["HEDDLE_RUNS"] === "1"
  for (const calls of isWhole ? pairs : []) all(calls, { messages: 2, faults: 2, stops: 1, owners: 2 })

  interrupted.forEach((program, index) =>
    it.live(
      `Q-03: program ${index} keeps the laws when it is killed at each append of its first run, and resumed`,
      () =>
        Effect.forEach(["within", "hang"] as const, (how) =>
          Effect.gen(function*() {
            const whole = yield* Programs.opened(program)
            const appends = yield* Programs.run(whole, ["reply", "hello"], { at: Infinity, how })
            // Behind the last append there is nothing to kill.
            for (const at of placesOf(1, appends + 1)) {
              const shared = yield* Programs.opened(program)
              const reached = yield* Programs.run(shared, ["reply", "hello"], { at, how })
              assert.strictEqual(reached >= at, at <= appends)
              if (reached >= at && at > 1) yield* Programs.run(shared, ["resume"])
              assert.deepStrictEqual(yield* Programs.finish(shared), [])
            }
          })).pipe(Effect.provide(TestClock.layer()))
    )
  )

  property("Q-03: interrupted at any record, and continued in any way", interruptionsOf(1), interrupting, 1000)

  property("Q-04: interrupted twice, with agents two deep", interruptionsOf(2), interrupting, 1000, [
    { id: "Q-04", seed: "258203055", at: 454, size: 8 }
  ])

  property(
    "Q-02: random programs, killed, interrupted, stopped and told anything at any record",
    programs,
    played,
    1500,
    [{ id: "Q-02", seed: "2144064023", at: 453, size: 5 }]
  )

  property(
    "Q-02: random programs with messages into runs, withdrawals, stops of one call, and budgets",
    governedPrograms,
    governed,
    150
  )
})
