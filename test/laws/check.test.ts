/**
 * The law of checked journals: a record that is removed, doubled, moved or altered in the journal of any program is
 * named, or the journal means the same. `Journal.check` reads records, and a store reads texts.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Session, Tool } from "heddle"
import { Script } from "heddle/testing"
import * as Json from "../../src/internal/json.ts"
import * as Journals from "../../src/internal/session/journal.ts"
import * as Records from "../../src/internal/session/records.ts"
import * as States from "../../src/internal/session/state.ts"
import { altered } from "../support/altered.ts"
import { property } from "../support/property.ts"
import * as Programs from "../support/sessionPrograms.ts"
import * as StateData from "../support/states.ts"

const plain = ["report", "ask", "fail", "retry", "readOnly", "flaky", "question", "approval", "manual"] as const

const turnsOf = <const Names extends ReadonlyArray<string>>(names: Names, most: number) =>
  Schema.Array(
    Schema.Struct({
      calls: Schema.Array(Schema.Literals(names)).check(Schema.isMinLength(1), Schema.isMaxLength(3)),
      isFollowed: Schema.Boolean
    })
  ).check(Schema.isMinLength(1), Schema.isMaxLength(most))

const upTo = (count: number) => Schema.Literals(Array.from({ length: count }, (_, index) => index))

const operations = ["due", "due", "due", "due", "submit", "stop", "abandon"] as const

const ends = [undefined, undefined, "before", "after", "interrupt", "within"] as const

const programs = Arbitrary.schema(Schema.Struct({
  turns: turnsOf([...plain, "agentA"], 3),
  agents: Schema.Struct({ agentA: turnsOf(plain, 2) }),
  isFinalizing: Schema.Boolean,
  steps: Schema.Array(Schema.Struct({ operation: upTo(operations.length), end: upTo(ends.length), at: upTo(8) })).check(
    Schema.isMinLength(2),
    Schema.isMaxLength(6)
  )
}))

type Program = typeof programs extends Arbitrary.Arbitrary<infer A> ? A : never

const dueIn = ({ interrupted, session, version }: Session.Kept, at: number): Programs.Operation => {
  const [open] = session.suspensions
  if (interrupted !== undefined) return ["resume"]
  if (open !== undefined) {
    const isAsked = open.kind === "question" || open.kind === "manual"
    return ["settle", open.id, isAsked ? ["value", `answer to ${open.id}`] : at === 7 ? ["no"] : ["again"]]
  }
  return session.approved.length > 0 ? ["continue"] : ["reply", `hello ${version}`]
}

/** The journals that a program leaves: that of the session, and those of its sub-agents. */
const journalsOf = (program: Program) =>
  Effect.gen(function*() {
    const shared = yield* Programs.opened(program)
    for (const { at, end, operation } of program.steps) {
      const name = operations[operation] ?? "due"
      const how = ends[end]
      const kept = yield* Programs.loaded(shared)
      if (name === "submit" || name === "stop") yield* Programs.command(shared, name)
      else {
        const due: Programs.Operation = name === "abandon" ? ["abandon"] : dueIn(kept, at)
        yield* Programs.run(shared, due, how === undefined ? undefined : { at: at + 1, how }, kept)
      }
    }
    const listed = yield* Stream.runCollect(shared.store.list())
    return yield* Effect.forEach(listed, ({ id }) =>
      Effect.map(Stream.runCollect(shared.store.read(id)), (entries) => entries.map(({ record }) => record)))
  }).pipe(Effect.provide(TestClock.layer()))

const turn = (...calls: Programs.Turn["calls"]): Programs.Turn => ({ calls, isFollowed: true })

/** The journal of a program whose calls are all settled, whole. */
const wholeOf = (program: Programs.Program) =>
  Effect.gen(function*() {
    const shared = yield* Programs.opened(program)
    for (let round = 0; round < 8; round++) {
      const kept = yield* Programs.loaded(shared)
      if (round > 0 && Session.next(kept) === "nothing") break
      yield* Programs.run(shared, dueIn(kept, 0), undefined, kept)
    }
    return Array.from(yield* Stream.runCollect(shared.store.read("s")), ({ record }) => record)
  }).pipe(Effect.provide(TestClock.layer()))

const dataOf = (state: States.State): string =>
  JSON.stringify(Json.toJson({ ...StateData.dataOf(state) as object, fingerprint: "" }))

const meaningOf = (records: ReadonlyArray<Journal.Record>): string => {
  const state = States.initial()
  for (const record of records) States.apply(state, record)
  return dataOf(state)
}

type Change = readonly [what: string, records: ReadonlyArray<Journal.Record>]

/** Each record removed, doubled and swapped with the next one. A journal that lacks its last records is a whole one. */
const moves = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<Change> =>
  records.flatMap((record, index): ReadonlyArray<Change> => {
    const [before, after] = [records.slice(0, index), records.slice(index + 1)]
    const [next, ...rest] = after
    return [
      ...(next === undefined ? [] : [[`removed ${index + 1}`, [...before, ...after]] as const]),
      [`doubled ${index + 1}`, [...before, record, record, ...after]],
      ...(next === undefined ? [] : [[`swapped ${index + 1}`, [...before, next, record, ...rest]] as const])
    ]
  })

const codec = Schema.toCodecJson(Journal.Record)
const encode = Schema.encodeSync(codec)
const decode = Schema.decodeUnknownResult(codec)

/** A record as it is read: foreign values are plain data. */
const decoded = (record: Journal.Record): Journal.Record => Result.getOrThrow(decode(encode(record)))

/** Tells whether a record has the fingerprint of those before it. */
const isMarked = ({ _tag }: Journal.Record): boolean =>
  _tag === "Opened" || _tag === "RunStarted" || _tag === "StepCompleted" || _tag === "RunEnded"

/** Each field of each record altered alone, as far as the result is a record. */
const alterations = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<Change> =>
  records.flatMap((record, index) =>
    altered(encode(record)).flatMap(([path, json]): ReadonlyArray<Change> => {
      const decoded = decode(json)
      const what = `${record._tag}.${path}`
      // A fingerprint tells of the records before it. What is behind the last one is still to be told.
      const isOpen = !records.slice(index + 1).some(isMarked)
      return Result.isFailure(decoded) || isOpen ? [] : [[what, records.with(index, decoded.success)]]
    })
  )

/** Tells whether no later record has a fingerprint: the journal was cut within the run, or between two. */
const isOpenEnd = (records: ReadonlyArray<Journal.Record>, what: string): boolean => {
  const index = Number(/\d+$/.exec(what)?.[0] ?? 0)
  return !records.slice(index).some(isMarked)
}

const unnamed = (records: ReadonlyArray<Journal.Record>, changes: ReadonlyArray<Change>): ReadonlyArray<string> => {
  const meaning = meaningOf(records)
  return changes.flatMap(([what, changed]) =>
    Journal.check(changed).length > 0 || meaningOf(changed) === meaning ? [] : [what]
  )
}

describe("a changed journal", () => {
  property(
    "O-04: a record that is removed, doubled or moved is named, or the journal means the same",
    programs,
    (program) =>
      Effect.map(journalsOf(program), (journals) =>
        journals.flatMap((records) => [
          ...Journal.check(records),
          ...unnamed(records, moves(records)).filter((what) => !isOpenEnd(records, what)).map((what) =>
            `${what}: ${records.map(({ _tag }) => _tag).join(" ")}`
          )
        ])),
    200
  )

  property(
    "O-04: a field that is altered or left out is named, or the journal means the same",
    programs,
    (program) =>
      Effect.map(
        journalsOf(program),
        (journals) => Array.from(new Set(journals.flatMap((records) => unnamed(records, alterations(records)))))
      ),
    60
  )

  property(
    "O-04: a store refuses a text with an altered field, whatever field that is, and names its version",
    programs,
    (program) =>
      Effect.gen(function*() {
        const problems: Array<string> = []
        for (const records of yield* journalsOf(program)) {
          for (const [index, record] of records.entries()) {
            const text = yield* Journals.toText("s", record, index + 1)
            assert.deepStrictEqual(yield* Journals.fromText("s", text, index + 1), decoded(record))
            for (const [path, json] of altered(JSON.parse(text))) {
              const exit = yield* Effect.exit(Journals.fromText("s", JSON.stringify(json), index + 1))
              if (Exit.isSuccess(exit)) problems.push(`${record._tag}.${path}`)
            }
          }
        }
        return Array.from(new Set(problems))
      }),
    60
  )

  it.effect("O-04: Journal.check names a wrong member, a doubled and a removed record where no fingerprint follows", () =>
    Effect.gen(function*() {
      const program = { turns: [turn("report", "approval"), turn("question")], agents: {}, isFinalizing: false }
      const records = yield* wholeOf(program)
      const bare = records.map((record) => {
        if (!Records.isSealed(record)) return record
        const { after: _after, ...rest } = { after: undefined, ...record }
        return rest as Journal.Record
      })
      assert.deepStrictEqual(Journal.check(bare), [])
      // Without a fingerprint: what no record behind it can follow, or can follow no more.
      const places: ReadonlyArray<readonly [Journal.Record["_tag"], string, object]> = [
        ["ReplyReceived", "stepIndex", { stepIndex: 7 }],
        ["ReplyReceived", "requestId", { requestId: "other" }],
        ["CallStarted", "requestId", { requestId: "other" }],
        ["CallStarted", "toolCallId", { toolCallId: "other" }],
        ["CallStarted", "attempt", { attempt: 3 }],
        ["CallEnded", "requestId", { requestId: "other" }],
        ["CallEnded", "toolCallId", { message: { role: "tool", content: "x", toolCallId: "other", metadata: {} } }],
        ["CallWaits", "requestId", { requestId: "other" }],
        ["CallWaits", "toolCallId", { toolCallId: "other" }],
        ["CallSettled", "id", { id: "other" }],
        ["StepCompleted", "requestId", { requestId: "other" }],
        ["StepCompleted", "stepIndex", { stepIndex: 7 }],
        ["RunEnded", "requestId", { requestId: "other" }],
        ["RunStarted", "resumes", { resumes: true }]
      ]
      for (const [tag, field, change] of places) {
        const index = bare.findIndex(({ _tag }) => _tag === tag)
        assert.isAbove(index, 0, tag)
        const changed = bare.with(index, { ...bare[index], ...change } as Journal.Record)
        assert.isAbove(Journal.check(changed).length, 0, `${tag}.${field}`)
      }
      for (const tag of ["ReplyReceived", "CallSettled", "StepCompleted", "RunEnded"] as const) {
        const index = bare.findIndex(({ _tag }) => _tag === tag)
        assert.isAbove(Journal.check(bare.toSpliced(index, 0, bare[index]!)).length, 0, `${tag} doubled`)
        assert.isAbove(Journal.check(bare.toSpliced(index, 1)).length, 0, `${tag} removed`)
      }
    }))

  it.effect("O-04: Journal.check names a doubled command at the end of a journal", () =>
    Effect.gen(function*() {
      const opened = yield* Session.open("s")
      const asks = Script.layer([[Script.toolCall("c0", "pick", {}), Script.finish("tool_calls")]])
      const pick = Tool.make("pick", { parameters: {}, manual: true })
      const asked = yield* Effect.provide(
        Session.keep(opened, (session) => Session.reply(session, "go", { tools: [pick] })),
        asks
      )
      yield* Session.keep(asked, (session) => Session.answer(session, "c0", "this"))
      yield* Session.submit("s", "more", { id: "m1" })
      const store = yield* Session.Store
      const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
      assert.deepStrictEqual(Journal.check(records), [])
      for (const tag of ["MessageSubmitted", "CallSettled"] as const) {
        const found = records.find(({ _tag }) => _tag === tag)
        assert.lengthOf(Journal.check([...records, found!]), 1, tag)
      }
    }).pipe(Effect.provide(Session.Store.layerMemory)))

  it.effect("O-04: Journal.check passes a snapshot with and without the earlier records, and names a record missing around it", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      const untruncated = { ...store, truncate: () => Effect.void }
      const opened = yield* Session.open("s")
      const first = yield* Session.keep(opened, (session) => Session.reply(session, "one"))
      const snapshot = yield* Effect.provideService(Session.snapshot(first), Session.Store, untruncated)
      const last = yield* Session.keep(snapshot, (session) => Session.reply(session, "two"))
      const records = Array.from(yield* Stream.runCollect(store.read("s")), ({ record }) => record)
      assert.isAbove(records.length, snapshot.version)
      assert.strictEqual(last.version, records.length)
      assert.deepStrictEqual(Journal.check(records), [])
      assert.deepStrictEqual(Journal.check(records.slice(snapshot.version - 1)), [])
      assert.isAbove(Journal.check(records.toSpliced(snapshot.version - 1, 1)).length, 0)
      assert.isAbove(Journal.check(records.toSpliced(snapshot.version - 2, 1)).length, 0)
    }).pipe(
      Effect.provide(Script.layer([
        [Script.text("Hello"), Script.finish("stop")],
        [Script.text("Hello again"), Script.finish("stop")]
      ])),
      Effect.provide(Session.Store.layerMemory)
    ))
})
