/**
 * Laws of the rules that govern a run: a run that is cut behind any record goes on as the uncut one, in its session, its
 * notes, its results and its requests, whatever the rules say, wait for and learn from outside.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { Collector, type Event, Journal, Message, Rule, Session, Thread } from "heddle"
import { SessionStore } from "heddle/sql"
import { check, Script } from "heddle/testing"
import { type Append, holding, recordsOf, wrapped } from "../support/edges.ts"
import { drive, type Driven, inTime, type Program, programs, type World, worldOf } from "../support/governed.ts"
import { property } from "../support/property.ts"
import { killedAtEach, look, type Replies } from "../support/ruled.ts"

/** An append, and what the world was when it began. */
interface Logged {
  readonly append: Append
  readonly asked: number
  readonly requests: number
  readonly turns: Map<string, number>
  /** How many requests there were of each turn before the last one. */
  readonly earlier: Map<string, number>
}

/** A store that lists what is appended to it. */
const logging = (world: World, log: Array<Logged>, base: Layer.Layer<Session.Store, any> = Session.Store.layerMemory) =>
  wrapped((store) => (id, expected, records, options) =>
    Effect.suspend(() => {
      const { asked, earlier, requests: { length: requests }, turns } = world
      const logged = { append: { id, records, options }, asked, requests, turns: new Map(turns), earlier }
      return Effect.tap(store.append(id, expected, records, options), () => Effect.sync(() => void log.push(logged)))
    }), base as typeof Session.Store.layerMemory)

/** Times differ with when a run was cut. So does that of a verdict. */
const plain = (value: unknown): unknown =>
  JSON.parse(
    JSON.stringify(value, (key, member) =>
      key === "expiresAt" || key === "abandoned" || key === "at" && typeof member === "number" ? undefined : member) ??
      "null"
  )

/** The places at which two values differ, the first few of them. */
const differences = (path: string, left: unknown, right: unknown): ReadonlyArray<string> => {
  if (typeof left !== "object" || typeof right !== "object" || left === null || right === null) {
    return left === right ? [] : [`${path} is ${JSON.stringify(left)}, and not ${JSON.stringify(right)}`]
  }
  const [one, other] = [left as Record<string, unknown>, right as Record<string, unknown>]
  const names = new Set([...Object.keys(one), ...Object.keys(other)])
  return Array.from(names).flatMap((name) => differences(`${path}.${name}`, one[name], other[name])).slice(0, 4)
}

const difference = (what: string, actual: unknown, expected: unknown): ReadonlyArray<string> =>
  differences(what, plain(actual), plain(expected))

/** The notes of each step of each run, as the records have them. */
const notesIn = (records: ReadonlyArray<Journal.Record>): unknown => {
  const notes: Record<string, Record<string, unknown>> = {}
  for (const record of records) {
    if (record._tag !== "StepPrepared" && record._tag !== "StepCompleted") continue
    if (record.notes !== undefined) Object.assign(notes[`${record.requestId} ${record.stepIndex}`] ??= {}, record.notes)
  }
  return notes
}

interface Whole {
  readonly world: World
  readonly log: ReadonlyArray<Logged>
  readonly driven: Driven
  readonly records: ReadonlyArray<Journal.Record>
  readonly problems: ReadonlyArray<string>
}

/** Drives a program over a store, and checks what its journals say. */
const played = (program: Program, world: World, store: Layer.Layer<Session.Store>, log: ReadonlyArray<Logged> = []) =>
  inTime(
    Effect.gen(function*() {
      const driven = yield* drive(program, world)
      const problems: Array<string> = []
      for (const id of new Set(["s", ...log.map(({ append }) => append.id)])) {
        problems.push(...Journal.check(yield* recordsOf(id)).map((problem) => `${id}: ${JSON.stringify(problem)}`))
      }
      const loaded = (yield* Session.load("s"))!
      problems.push(...difference("loaded", loaded.session, driven.kept.session))
      problems.push(...difference("kept for the session", loaded.state.kept, driven.kept.state.kept))
      const records = yield* recordsOf("s")
      return { world, log, driven, records, problems } satisfies Whole
    }).pipe(Effect.provide(store), Effect.orDie)
  )

/** What the ends say that rules heard: one for each run that has a result, with its outcome. */
const problemsOfEnds = ({ driven: { results }, world: { ends } }: Whole, rules: number): ReadonlyArray<string> => {
  const expected = results.flatMap(([requestId, result]) =>
    Array.from({ length: rules }, (_, index) => `r${index} ${requestId} ${(result as Event.ChatResult).outcome._tag}`)
  )
  const heard = ends.filter(([rule]) => rule.startsWith("r")).map((end) => end.join(" "))
  return difference("ends", heard, expected)
}

/** Whatever a program is: its thread is valid, each call that ran is in it, and its rules are closed. */
const problemsOf = (whole: Whole, { rules }: Program, where: string): ReadonlyArray<string> => {
  const { driven: { failure, kept }, problems, world: { open, ran } } = whole
  const { approved, suspensions, thread } = kept.session
  const pending = [...approved, ...suspensions].map(({ id }) => id)
  const known = new Set(thread.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id)))
  const strange = failure === undefined ? ran.filter((id) => !id.startsWith("sub") && !known.has(id)) : []
  return [
    ...problems,
    ...check.thread(thread, { pending }).map((problem) => JSON.stringify(problem)),
    ...strange.map((id) => `${id} ran, and is not in the thread`),
    ...(failure === undefined ? problemsOfEnds(whole, rules.length) : []),
    ...(open === 0 ? [] : [`${open} rules are open`])
  ].map((problem) => `${where}: ${problem}`)
}

const uncut = (program: Program, base?: Layer.Layer<Session.Store, any>) => {
  const [world, log] = [worldOf(), []]
  return played(program, world, logging(world, log, base), log)
}

/** The requests as far as rules decide about them. */
const requestsOf = ({ requests }: World): unknown =>
  requests.map(({ messages, model, responseFormat, toolChoice, tools }) => ({
    messages: messages.map(({ content, role, toolCalls }) => [role, content, toolCalls]),
    model,
    responseFormat,
    toolChoice,
    tools: tools.map(({ name }) => name)
  }))

describe("rules of a run", () => {
  property(
    "R-500: cut behind any record, a run that rules govern goes on as the uncut one",
    programs,
    (program) =>
      Effect.gen(function*() {
        const whole = yield* uncut(program)
        const wrong = [...problemsOf(whole, program, "uncut")]
        for (let length = 1; length < whole.log.length && wrong.length === 0; length++) {
          const { append, asked, earlier, requests, turns } = whole.log[length - 1]!
          const before = whole.log.slice(0, length).map(({ append }) => append)
          const where = `cut behind append ${length}, ${append.id} ${append.records.map(({ _tag }) => _tag).join(" ")}`
          // The reply to the last request is lost, and is asked for again.
          const lost = isEarly(before)
          const world = worldOf({ asked, turns: lost ? earlier : turns })
          const after: Array<Append> = []
          const again = yield* played(program, world, holding(before, after), whole.log)
          const ended = before.flatMap(({ records }) =>
            records.flatMap((record) => record._tag === "CallEnded" ? [record.message.toolCallId ?? ""] : [])
          )
          const expected = whole.driven.results.slice(whole.driven.results.length - again.driven.results.length)
          wrong.push(
            ...problemsOf(again, program, where),
            ...ended.filter((id) => world.ran.includes(id)).map((id) => `${where}: repeated ${id}`),
            ...difference(
              `${where}: requests`,
              requestsOf(world) as [],
              (requestsOf(whole.world) as []).slice(whole.world.requests.length - world.requests.length)
            ),
            ...(world.requests.length > whole.world.requests.length - requests + (lost ? 1 : 0)
              ? [`${where}: ${world.requests.length} requests`]
              : []),
            ...difference(`${where}: results`, again.driven.results, expected),
            ...difference(`${where}: failure`, String(again.driven.failure), String(whole.driven.failure)),
            ...difference(`${where}: session`, again.driven.kept.session, whole.driven.kept.session),
            ...difference(`${where}: kept`, again.driven.kept.state.kept, whole.driven.kept.state.kept),
            ...difference(`${where}: notes`, notesIn(again.records), notesIn(whole.records))
          )
        }
        return wrong
      }),
    200
  )

  property(
    "R-501: stopped at any record, a run that rules govern ends in a valid thread, and each rule hears its end once",
    programs,
    (program) =>
      Effect.gen(function*() {
        const { log: { length } } = yield* uncut(program)
        const wrong: Array<string> = []
        for (let place = 2; place <= length && wrong.length === 0; place++) {
          let count = 0
          const stopping = wrapped((store) => (id, expected, records, options) =>
            Effect.suspend(() => {
              const append = store.append(id, expected, records, options)
              if (++count !== place) return append
              return Effect.andThen(Effect.provideService(Session.stop("s"), Session.Store, store), append)
            })
          )
          wrong.push(...problemsOf(yield* played(program, worldOf(), stopping), program, `stopped at append ${place}`))
        }
        return wrong
      }),
    100
  )

  property(
    "R-502: awaited and streamed, in memory and on SQLite, with rules that change nothing and without rules, a run is the same",
    programs,
    (program) =>
      Effect.gen(function*() {
        const whole = yield* uncut(program)
        const { driven: { events }, records } = whole
        const [first] = whole.driven.results
        const completed = events.find((event) => event._tag === "ChatCompleted")
        const fold = Collector.applyAll(
          Collector.initial({ thread: Thread.fromMessages([Message.user("go")]) }),
          events
        )
        const alike = yield* uncut({ ...program, rules: [] })
        const silent = { kind: "silent", at: 0, waits: false, opens: false } as const
        const waiting = { ...silent, waits: true, opens: true }
        const same = (what: string, other: Whole, expected = records) => [
          ...problemsOf(other, program, what).filter((problem) => !problem.includes(": ends")),
          ...difference(what, other.records, expected)
        ]
        return [
          ...same("on SQLite", yield* uncut(program, SessionStore.layerSqlite({ filename: ":memory:" }))),
          ...same("with silent rules", yield* uncut({ ...program, rules: [silent, silent] }), alike.records),
          ...difference("with waiting rules", untimed(yield* uncut({ ...program, rules: [waiting] })), untimed(alike)),
          ...(first === undefined || completed === undefined ? [] : difference("events", completed.result, first[1])),
          ...(events.filter(({ _tag }) => _tag === "ChatCompleted").length === 1
            ? difference("fold", Collector.toChatResult(fold), first?.[1])
            : [])
        ]
      }),
    100
  )

  property(
    "R-503: a rule that goes on over an end that is not its own changes nothing",
    programs,
    (program) =>
      Effect.gen(function*() {
        const whole = yield* uncut({ ...program, rules: [] })
        const again = yield* uncut({ ...program, rules: [{ kind: "goes on", at: 0, waits: false, opens: false }] })
        return difference("records", again.records, whole.records)
      }),
    100
  )
})

/** The kinds of records of a program: times differ where a rule takes some. */
const untimed = ({ driven, records }: Whole): unknown => [
  records.filter(({ _tag }) => _tag !== "StepPrepared").map(({ _tag }) => _tag),
  driven.kept.session,
  driven.results
]

describe("the reply step of a rule", () => {
  const replies: Replies = ({ messages, model }) =>
    messages.some(({ role }) => role === "tool")
      ? [Script.text("done"), Script.finish("stop")]
      : [Script.toolCall(model ?? "c", "look"), Script.finish("tool_calls")]

  it.effect("R-500: after a kill at any append, a rule hears a recorded reply with the attempt of its own request", () => {
    const heard: Array<number> = []
    const first = Rule.make("first", {
      ask: (ask, { attempt }) => ({ ...ask, template: { ...ask.template, model: `a${attempt}` } }),
      reply: (_, { attempt, stepIndex }) => {
        heard.push(attempt)
        return stepIndex === 0 && attempt === 1 ? Rule.askAgain() : Rule.keep()
      }
    })
    return Effect.map(killedAtEach(replies, () => ({ tools: [look], rules: [first] })), ({ asked }) => {
      assert.deepStrictEqual(asked.map(({ model }) => model), ["a0", "a1", "a0"])
      assert.notInclude(heard, 0)
    })
  })
})

it.effect("R-500: the next run of a session finds the note that a rule keeps for the session", () =>
  Effect.gen(function*() {
    const found: Array<unknown> = []
    const tally = Rule.make("tally", {
      keeps: "session",
      ask: (ask, { kept }) => {
        found.push(kept["tally"])
        return Rule.ask(ask, { note: Number(kept["tally"] ?? 0) + 1 })
      }
    })
    for (const words of ["go", "more"]) {
      yield* Session.keep(yield* Session.open("s"), (session) => Session.reply(session, words, { rules: [tally] }))
    }
    assert.deepStrictEqual(found, [undefined, 1])
    assert.deepStrictEqual((yield* Session.load("s"))?.state.kept, { tally: 2 })
  }).pipe(Effect.provide([
    Script.layer([[Script.text("Hi"), Script.finish("stop")], [Script.text("Ho"), Script.finish("stop")]]),
    Session.Store.layerMemory
  ])))

/** Tells whether the last turn has calls that started before their reply was recorded. */
const isEarly = (before: ReadonlyArray<Append>): boolean => {
  const records = before.flatMap(({ records }) => records)
  const last = records.findLastIndex(({ _tag }) => _tag === "ReplyReceived" || _tag === "StepCompleted")
  return records.slice(last + 1).some((record) => record._tag === "CallStarted" && record.toolCall !== undefined)
}
