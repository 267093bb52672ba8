/**
 * Generated runs over a store whose appends hang, come late or fail late, beside every way of stopping and every
 * `interrupt`. No handler starts without its durable start, and none starts twice; a stop ends the run in time, and says
 * so in the journal where that takes anything; what the next owner makes of it is what an uncut run comes to, except for
 * calls whose end is unknown.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as References from "effect/References"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Journal, Message, Policy, Session, Tool } from "heddle"
import { Worker } from "heddle/durable"
import { check } from "heddle/testing"
import { oneOf } from "../support/dimensions/dimension.ts"
import { agent, casting } from "../support/nests.ts"
import { property } from "../support/property.ts"

const grace = 20

const literals = <const L extends ReadonlyArray<string | number | boolean>>(...values: L) =>
  Arbitrary.schema(Schema.Literals(values))

const between = (minimum: number, maximum: number) =>
  Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum, maximum })))

const calls = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    kind: Schema.Literals(["quick", "slow", "deaf", "sub"]),
    interrupt: Schema.Literals(["cancel", "block"])
  })).check(Schema.isMinLength(1), Schema.isMaxLength(3))
)

const knobs = Arbitrary.all({
  calls,
  /** What becomes of appends. `written` ones are in the journal whatever they return. */
  fault: oneOf(
    "none",
    "slow",
    "slow",
    "slow",
    "hang",
    "hangWritten",
    "late",
    "lateWritten",
    "failLate",
    "failLateWritten"
  ),
  /** The append that it happens to, and whether to those behind it as well. */
  place: between(1, 12),
  lasts: literals(true, false),
  way: oneOf("cancel", "stop", "stop", "stop", "deadline", "timeout", "sibling", "halt", "interrupt", "take", "leave"),
  at: between(0, 12),
  maxConcurrency: literals(1, 2, 8),
  isRaced: literals(true, false),
  /** How long the reader is at work when it has the end. */
  lag: literals(0, 200)
})

type Knobs = typeof knobs extends Arbitrary.Arbitrary<infer A> ? A : never

/** What the processes do to the world, and when. */
interface World {
  /** The attempts whose start is in a journal. */
  readonly durable: Set<string>
  /** The attempts whose handler has started. */
  readonly started: Array<string>
  readonly problems: Array<string>
  /** The end of the first process, after which it starts nothing. */
  isOver: boolean
  isHealed: boolean
}

const begun = (world: World, { attempt, idempotencyKey }: Tool.CallContext) =>
  Effect.sync(() => {
    const name = `${idempotencyKey} attempt ${attempt}`
    if (!world.durable.has(name)) world.problems.push(`${name} starts without a durable start`)
    if (world.started.includes(name)) world.problems.push(`${name} starts twice`)
    if (world.isOver && !world.isHealed) world.problems.push(`${name} starts behind the end of its run`)
    world.started.push(name)
  })

const toolsOf = (world: World, { calls, way }: Knobs): [] => {
  const limits = way === "timeout" ? { timeout: 15 } : {}
  const acts = {
    quick: Effect.void,
    slow: Effect.sleep(30),
    deaf: Effect.uninterruptible(Effect.sleep(90))
  } as const
  const toolOf = (kind: keyof typeof acts, interrupt: "block" | "cancel", name: string) =>
    Tool.make(name, {
      parameters: {},
      interrupt,
      ...limits,
      handler: (_: unknown, call: Tool.CallContext) => Effect.as(Effect.andThen(begun(world, call), acts[kind]), name)
    })
  const tools = calls.map(({ interrupt, kind }, index) =>
    kind === "sub"
      ? { ...agent(`t${index}`, [toolOf("slow", interrupt, "inner")]), interrupt }
      : toolOf(kind, interrupt, `t${index}`)
  )
  const failing = Tool.make("failing", {
    parameters: {},
    handler: (_: unknown, call) =>
      begun(world, call).pipe(Effect.andThen(Effect.sleep(10)), Effect.andThen(Effect.fail("failed")))
  })
  const halting = Tool.make("halting", {
    parameters: {},
    handler: (_: unknown, call) =>
      begun(world, call).pipe(Effect.andThen(Effect.sleep(10)), Effect.as(Tool.halt("enough", "enough")))
  })
  return [...tools, failing, halting] as unknown as []
}

const modelOf = ({ calls, way }: Knobs) => {
  const own = calls.map((_, index) => [`c${index}`, `t${index}`, {}] as const)
  const last = way === "sibling"
    ? [["f", "failing", {}] as const]
    : way === "halt"
    ? [["h", "halting", {}] as const]
    : []
  const nested = Object.fromEntries(
    calls.map((_, index) => [`t${index}`, [[["i", "inner", {}]], `Sub ${index}`] as const])
  )
  return casting({ go: [[...own, ...last], "Done"], ...nested })
}

/** The store of the first process. */
const faulty = (base: Journal.Service, world: World, { fault, lasts, place }: Knobs): Journal.Service => {
  let appends = 0
  const append: Journal.Service["append"] = (id, expected, records, options) =>
    Effect.suspend(() => {
      const noted = Effect.tap(
        base.append(id, expected, records, options),
        () => Effect.sync(() => note(world, records))
      )
      const number = ++appends
      if (world.isHealed || (lasts ? number < place : number !== place)) return noted
      const failed = new Journal.StoreError({ reason: "unavailable", operation: "append", id })
      switch (fault) {
        case "none":
          return noted
        case "slow":
          return Effect.delay(noted, 5)
        case "hang":
          return Effect.never
        case "hangWritten":
          return Effect.andThen(noted, Effect.never)
        case "late":
          return Effect.delay(noted, 150)
        case "lateWritten":
          return Effect.tap(noted, () => Effect.sleep(150))
        case "failLate":
          return Effect.delay(Effect.fail(failed), 150)
        case "failLateWritten":
          return Effect.andThen(noted, Effect.delay(Effect.fail(failed), 150))
      }
    })
  return { ...base, append }
}

const note = (world: World, records: Journal.Records): void => {
  for (const record of records) {
    if (record._tag === "CallStarted") world.durable.add(`${record.idempotencyKey} attempt ${record.attempt}`)
  }
}

const optionsOf = (world: World, knobs: Knobs) => ({
  tools: toolsOf(world, knobs),
  grace,
  maxConcurrency: knobs.maxConcurrency,
  policy: {
    ...Policy.standard,
    ...(knobs.way === "sibling" ? { siblings: { ...Policy.standard.siblings, onToolError: "abortAll" as const } } : {})
  }
})

const soft: ReadonlySet<Knobs["way"]> = new Set(["cancel", "stop", "deadline"])

/** Lets time pass in small steps until a fiber has ended, at most until `until`. */
const waited = <A, E>(fiber: Fiber.Fiber<A, E>, until: number) =>
  Effect.gen(function*() {
    while (fiber.pollUnsafe() === undefined && (yield* Clock.currentTimeMillis) < until) {
      for (let turn = 0; turn < 10; turn++) yield* Effect.yieldNow
      if (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(1)
    }
    return fiber.pollUnsafe()
  })

/** The first process: it runs, and is stopped. Returns how it ended, when, and what it showed. */
const first = (world: World, base: Journal.Service, store: Journal.Service, knobs: Knobs) =>
  Effect.gen(function*() {
    const { at, way } = knobs
    const options = optionsOf(world, knobs)
    const stopAt = at * 5
    const events: Array<Event.Event> = []
    const onEvent = (event: Event.Event) => Effect.sync(() => void events.push(event))
    const scope = yield* Scope.make()
    let overAt: number | undefined
    const over = Effect.flatMap(Clock.currentTimeMillis, (now) => {
      overAt = now
      return knobs.lag === 0 ? Effect.void : Effect.sleep(knobs.lag)
    })
    const claimed = Effect.flatMap(Session.claim("s", { poll: 3, term: "1 hour" }), (kept) =>
      way === "take"
        ? Session.keepStream(kept, (session) => Session.streamReply(session, "go", { ...options, onEvent })).pipe(
          Stream.take(at * 2),
          Stream.runDrain
        )
        : Session.keep(kept, (session) =>
          Session.streamReply(session, "go", {
            ...options,
            onEvent,
            ...(way === "cancel"
              ? { cancel: Effect.sleep(stopAt) }
              : way === "deadline"
              ? { deadline: stopAt + 1 }
              : {})
          }).pipe(
            Stream.runForEach((event) => event._tag === "ChatCompleted" ? over : Effect.void)
          )))
    const worker = Effect.gen(function*() {
      yield* Session.submit("s", "go", { id: "m" }).pipe(Effect.provideService(Session.Store, base))
      yield* Layer.build(Worker.layer({ run: () => options, poll: 3, term: "1 hour", drain: grace }))
      yield* Effect.never
    })
    const work: Effect.Effect<unknown, unknown, any> = way === "leave" ? worker : claimed
    const fiber = yield* Effect.forkChild(
      Scope.provide(work, scope).pipe(
        Effect.provideService(Session.Store, store),
        Effect.provide(modelOf(knobs)),
        Effect.onExit((exit) => Scope.close(scope, exit))
      ) as Effect.Effect<unknown, unknown>
    )
    yield* waited(fiber, stopAt)
    const isStopped = fiber.pollUnsafe() === undefined
    if (way === "stop") {
      const stopped = yield* Effect.forkChild(Session.stop("s").pipe(Effect.provideService(Session.Store, base)))
      yield* waited(stopped, stopAt + 5)
    } else if (way === "interrupt" || way === "leave") fiber.interruptUnsafe()
    // A reader that is slow and appends that are all late take seconds.
    let exit = yield* waited(fiber, 6_000)
    const ended = overAt ?? (exit === undefined ? undefined : yield* Clock.currentTimeMillis)
    // Nothing else ends a run whose append never does.
    if (exit === undefined) {
      fiber.interruptUnsafe()
      exit = yield* waited(fiber, 8_000)
    }
    world.isOver = true
    return { ended, exit, events, isSeen: overAt !== undefined, isStopped, stopAt }
  })

/** The process behind it, over a store that works. */
const second = (world: World, store: Journal.Service, knobs: Knobs) =>
  Effect.gen(function*() {
    const options = { ...optionsOf(world, knobs), takeOver: true }
    for (let attempt = 0; attempt < 10; attempt++) {
      const kept = yield* Session.load("s")
      if (kept === undefined) return undefined
      const [message] = kept.submitted ?? []
      const next = Session.next(kept)
      // A late append of the first process may still come in between.
      const work = next === "resume"
        ? Session.resume(kept, options)
        : next === "reply" && message !== undefined
        ? Session.keep(kept, (session) =>
          Session.reply(session, message.message.content, { ...options, takes: message.id }))
        : undefined
      if (work === undefined) {
        return kept
      }
      yield* Effect.catchTag(work as Effect.Effect<unknown, Journal.SessionConflict>, "SessionConflict", () =>
        Effect.void)
    }
    return yield* Effect.die("the second process does not come to an end")
  }).pipe(Effect.provideService(Session.Store, store), Effect.provide(modelOf(knobs)))

const linesOf = (session: Session.Session): ReadonlyArray<string> =>
  session.thread.messages.map((message) => `${message.role} ${message.toolCallId ?? ""}: ${Message.text(message)}`)

const recordsOf = (store: Journal.Service, id: string) =>
  Effect.map(Stream.runCollect(store.read(id)), (entries) => entries.map(({ record }) => record))

/** What is wrong with the journals. */
const inJournals = (store: Journal.Service) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    for (const { id } of yield* Stream.runCollect(store.list())) {
      const records = yield* recordsOf(store, id)
      problems.push(...Journal.check(records).map((problem) => `${id}: ${JSON.stringify(problem)}`))
      const stop = records.findIndex(({ _tag }) => _tag === "StopRequested")
      const behind = stop === -1 ? [] : records.slice(stop).filter(({ _tag }) => _tag === "CallStarted")
      if (behind.length > 0) problems.push(`${id}: a call starts behind the stop of its run`)
    }
    return problems
  })

/** Tells whether a call of an open run has started, and is no sub-agent, in any journal. */
const inDoubt = (store: Journal.Service) =>
  Effect.gen(function*() {
    const root = yield* Effect.provideService(Session.load("s"), Session.Store, store)
    // Nothing resumes what is left of the runs inside a run that has ended.
    if (root?.interrupted === undefined) return false
    for (const { id } of yield* Stream.runCollect(store.list())) {
      const kept = yield* Effect.provideService(Session.load(id), Session.Store, store)
      const started = kept?.interrupted?.calls.filter(({ state }) => state === "Started") ?? []
      const nested = yield* Stream.runCollect(store.list({ prefix: `${id}/` }))
      if (
        started.some(({ toolCall }) => !nested.some((other) => other.id.startsWith(`${id}/${toolCall.id}@`)))
      ) return true
    }
    return false
  })

/** What is wrong with what a run showed: each call is answered once at most, and once where the run has ended. */
const inEvents = (events: ReadonlyArray<Event.Event>) => {
  const answers = events.flatMap((event) =>
    event._tag === "ToolResultEncoded" ? [event.id] : event._tag === "ToolHalt" ? [event.toolCallId] : []
  )
  const twice = answers.filter((id, index) => answers.indexOf(id) !== index)
  const ended = events.find((event) => event._tag === "ChatCompleted")
  const asked = ended === undefined
    ? []
    : events.flatMap((event) => event._tag === "ToolCallCompleted" && !answers.includes(event.id) ? [event.id] : [])
  return [...twice.map((id) => `${id} is answered twice`), ...asked.map((id) => `${id} is not answered`)]
}

/** What an uncut run answers. */
const uncut = (knobs: Knobs): ReadonlyArray<string> => [
  "user : go",
  "assistant : turn 0",
  ...knobs.calls.map(({ kind }, index) => `tool c${index}: ${kind === "sub" ? `Sub ${index}` : `t${index}`}`),
  "assistant : Done"
]

/**
 * A line of a resumed run is that of the uncut one, but that a call may be unknown. A sub-agent that blocks an
 * interruption is stopped softly by it, and answers so.
 */
const isLike = (actual: string, expected: string): boolean =>
  actual === expected || actual.startsWith("tool ") && actual.split(":")[0] === expected.split(":")[0]
    && (actual.includes("\"code\":\"unknown_effect\"") || actual.includes("\"reason\":\"cancelled\""))

const law = (knobs: Knobs) =>
  Effect.gen(function*() {
    const world: World = { durable: new Set(), started: [], problems: [], isOver: false, isHealed: false }
    const base = yield* Session.Store
    const { fault, way } = knobs
    const { ended, events, exit, isSeen, isStopped, stopAt } = yield* first(
      world,
      base,
      faulty(base, world, knobs),
      knobs
    )
    const { problems } = world
    const failure = exit !== undefined && Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
    const isConflict = failure instanceof Journal.SessionConflict
    if (isConflict) problems.push("the run ends in a conflict with itself")
    if (soft.has(way) && isSeen && failure !== undefined) {
      problems.push(`the end was seen, and the operation fails: ${failure}`)
    }
    problems.push(...inEvents(events))
    const isSoft = soft.has(way) && isStopped
    // A stop of another process is looked for at the interval of the claim, once the run is under way.
    const bound = stopAt + 2 * grace + 15
    // A run whose end is in the journal is stopped by no other process.
    const opening = way === "stop" ? "StopRequested" : "RunStarted"
    const wasOpen = (yield* recordsOf(base, "s")).some(({ _tag }) => _tag === opening)
    if (isSoft && wasOpen && fault !== "failLate" && fault !== "failLateWritten" && knobs.place > 2) {
      if (ended === undefined || ended > bound) problems.push(`stopped at ${stopAt}, over at ${ended ?? "never"}`)
    }
    const takes = fault === "none" || fault === "slow"
    if (isSoft && takes && wasOpen) {
      const last = (yield* recordsOf(base, "s")).at(-1)
      if (last?._tag !== "RunEnded") problems.push(`the run was stopped, and its journal ends with ${last?._tag}`)
      else if (last.haltedReason === "cancelled") {
        const result = events.flatMap((event) =>
          event._tag === "ChatCompleted" ? [event.result.abandoned ?? []] : []
        )[0]
        const names = (list: ReadonlyArray<Event.Abandoned> = []) =>
          list.filter(({ kind }) => kind === "handler").map(({ id }) => id).sort().join()
        if (result !== undefined && names(result) !== names(last.abandoned)) {
          problems.push(`the journal names ${names(last.abandoned)} as abandoned, and the result ${names(result)}`)
        }
      }
    }
    if (takes && exit !== undefined) {
      const isHeld = (yield* base.claimOf("s")) !== undefined
      const isInDoubt = yield* inDoubt(base)
      // A record that was under way when its owner left may end the doubt behind it.
      const isWrong = fault === "none" ? isHeld !== isInDoubt : isInDoubt && !isHeld
      if (isWrong) problems.push(`the claim is ${isHeld ? "kept" : "given back"}, in doubt: ${isInDoubt}`)
    }
    // Late appends come first, or race with the next owner.
    if (!knobs.isRaced) yield* TestClock.adjust(1_000)
    world.isHealed = true
    const store: Journal.Service = faulty(base, world, { ...knobs, fault: "none" })
    const finishing = yield* Effect.forkChild(second(world, store, knobs))
    const done = yield* waited(finishing, 20_000)
    if (done === undefined) return [...problems, "the second process does not end"]
    if (Exit.isFailure(done)) return [...problems, `the second process fails: ${Cause.pretty(done.cause)}`]
    const kept = done.value
    yield* TestClock.adjust(1_000)
    problems.push(...yield* inJournals(base))
    if (kept !== undefined) {
      if (Session.next(kept) !== "nothing") problems.push(`next is ${Session.next(kept)}`)
      problems.push(...check.thread(kept.session.thread).map((problem) => `thread: ${JSON.stringify(problem)}`))
      const isCut = way === "interrupt" || way === "take" || way === "leave"
      const lines = linesOf(kept.session)
      const expected = uncut(knobs)
      if (
        isCut && lines.length > 1 &&
        (lines.length !== expected.length || lines.some((line, index) => !isLike(line, expected[index]!)))
      ) {
        problems.push(`resumed it comes to ${JSON.stringify(lines)}`)
      }
    }
    return problems
  }).pipe(
    Effect.provide(Session.Store.layerMemory),
    Effect.provide(TestClock.layer()),
    Effect.provideService(References.MinimumLogLevel, "None")
  )

describe("hanging and late appends, beside every way to stop a run", () => {
  property("O-46, O-47, O-64, O-76: a handler starts with its durable start or never", knobs, law, 1_000, [
    // A sub-agent left its claim before the append that its run had under way.
    { id: "O-48", seed: "1326461440", at: 113, size: 4 }
  ])
})
