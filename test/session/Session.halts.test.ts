/**
 * Approved calls that halt and ask beside each other, in a run that is killed at any record: the resumed run ends as the
 * run that was not killed. A question that the halt of another call withdraws is not among the halts that decide.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import { type Event, Journal, Policy, Session, Tool } from "heddle"
import { check, Script } from "heddle/testing"
import * as States from "../../src/internal/session/state.ts"
import { journalOf, prefixed } from "../support/survivor.ts"

const done = [Script.text("done"), Script.finish("stop")]

/** A tool that asks, halts or pays, after some milliseconds. */
const pay = Tool.make("pay", {
  parameters: { what: Schema.String, after: Schema.Finite },
  approval: true,
  idempotent: true,
  handler: ({ after, what }) =>
    Effect.as(
      Effect.sleep(after),
      what === "asks" ? Tool.askUser("Which account?") : what === "halts" ? Tool.halt("enough", null) : "paid"
    )
})

type Call = readonly [what: "asks" | "halts" | "pays", after: number]

const calling = (calls: ReadonlyArray<Call>) => [
  ...calls.map(([what, after], index) => Script.toolCall(`c${index}`, "pay", { what, after })),
  Script.finish("tool_calls")
]

/** Runs an effect while time passes. */
const overTime = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const fiber = yield* Effect.forkChild(effect)
    yield* TestClock.adjust("1 minute")
    return yield* Fiber.join(fiber)
  })

/** The records of a session whose calls wait, approved, and of the run behind that. */
const whole = (calls: ReadonlyArray<Call>, policy: Policy.Policy) =>
  Effect.gen(function*() {
    const model = yield* Script.make([calling(calls), done])
    const options = { tools: [pay], policy }
    const opened = yield* Session.open("s")
    const asked = yield* Session.keep(opened, (session) => Session.reply(session, "go", options)).pipe(
      Effect.provide(model.layer)
    )
    let kept: Session.Kept = asked
    for (const index of calls.keys()) {
      kept = yield* Session.keep(kept, (session) => Session.approve(session, `c${index}`))
    }
    const before = (yield* journalOf("s")).length
    const { session, value } = yield* overTime(
      Session.keep(kept, (session) => Session.continue(session, null, options)).pipe(Effect.provide(model.layer))
    )
    return { before, outcome: value.result.outcome, records: yield* journalOf("s"), session }
  }).pipe(Effect.provide(Session.Store.layerMemory, { local: true }))

const resumed = (records: ReadonlyArray<Journal.Record>, policy: Policy.Policy) =>
  Effect.gen(function*() {
    const kept = (yield* Session.load("s"))!
    const { session, value } = yield* overTime(Session.resume(kept, { tools: [pay], policy, takeOver: true }))
    return { outcome: value.result.outcome, records: yield* journalOf("s"), session }
  }).pipe(Effect.provide([Script.layer([done]), prefixed("s", records)], { local: true }))

/** The calls among whose halts a resumed run decides. */
const haltingIn = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<string> => {
  const state = States.initial("s")
  for (const record of records) States.apply(state, record)
  return state.run?.halts.map(({ id }) => id) ?? []
}

/** The calls whose last record in the run is a halt or a question, in the order of these records. */
const haltingBehind = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<string> => {
  const last = new Map<string, boolean>()
  for (const record of records) {
    if (record._tag !== "CallEnded" && record._tag !== "CallWaits") continue
    const id = record._tag === "CallEnded" ? record.message.toolCallId ?? "" : record.toolCallId
    last.delete(id)
    last.set(id, record._tag === "CallWaits" || record.halt !== undefined)
  }
  return Array.from(last).flatMap(([id, halts]) => halts ? [id] : [])
}

/** The calls that have started and not ended in the run. */
const startedIn = (records: ReadonlyArray<Journal.Record>): ReadonlyArray<string> => {
  const state = States.initial("s")
  for (const record of records) States.apply(state, record)
  return Array.from(state.turn?.calls ?? []).flatMap(([id, { _tag }]) => _tag === "Started" ? [id] : [])
}

/** The call whose halt or question ended a run. */
const endedBy = (outcome: Event.Outcome): string | undefined =>
  outcome._tag === "Halted"
    ? outcome.haltToolCallId
    : outcome._tag === "AskUser"
    ? outcome.pendingToolCallId
    : undefined

const programs: ReadonlyArray<ReadonlyArray<Call>> = [
  [["asks", 0], ["halts", 10]],
  [["halts", 10], ["asks", 0]],
  [["asks", 0], ["halts", 10], ["pays", 20]],
  [["pays", 0], ["asks", 5], ["halts", 10], ["asks", 20]],
  [["halts", 5], ["halts", 0]],
  [["asks", 5], ["asks", 0]]
]

const titleOf = (calls: ReadonlyArray<Call>) => calls.map(([what, after]) => `${what} at ${after}`).join(", ")

describe("halts of approved calls, killed at every record", () => {
  for (const calls of programs) {
    for (const haltPrecedence of ["request", "completion"] as const) {
      for (const onHalt of ["drain", "abortAll"] as const) {
        it.effect(`a run killed at any record ends by the halt that decides: ${titleOf(calls)}, ${haltPrecedence}, ${onHalt}`, () =>
          Effect.gen(function*() {
            const siblings = { ...Policy.standard.siblings, onHalt }
            const policy: Policy.Policy = { ...Policy.standard, haltPrecedence, siblings }
            const { before, outcome, records, session } = yield* whole(calls, policy)
            for (let length = before + 1; length < records.length; length++) {
              const cut = records.slice(0, length)
              const where = `killed behind record ${length}, ${cut.at(-1)?._tag}`
              assert.deepStrictEqual(haltingIn(cut), haltingBehind(cut.slice(before)), where)
              const again = yield* resumed(cut, policy)
              const halts = haltingIn(cut)
              if (onHalt === "drain") {
                assert.deepStrictEqual(again.outcome, outcome, where)
                assert.deepStrictEqual(again.session.thread, session.thread, where)
              } else if (halts.length > 0) {
                // A halt stops the calls beside it: they do not start again, and none of them decides.
                const first = haltPrecedence === "request" ? halts.toSorted()[0] : halts[0]
                assert.strictEqual(endedBy(again.outcome), first, where)
                const restarted = again.records.slice(length).flatMap((record) =>
                  record._tag === "CallStarted" ? [record.toolCallId] : []
                )
                for (const id of startedIn(cut)) assert.notInclude(restarted, id, where)
                assert.isEmpty(Journal.check(again.records), where)
                assert.isEmpty(check.thread(again.session.thread), where)
              }
            }
          }))
      }
    }
  }
})

describe("calls beside a call that ends them, killed before their ends are recorded", () => {
  const act = Tool.make("act", {
    parameters: { what: Schema.Literals(["pays", "halts", "fails"]) },
    idempotent: true,
    handler: ({ what }) => {
      if (what === "pays") return Effect.as(Effect.sleep(20), "paid")
      return what === "halts" ? Effect.succeed(Tool.halt("enough", null)) : Effect.succeed(Tool.error("broken"))
    }
  })
  const siblings = Policy.standard.siblings
  const cases = [
    ["halts", { ...siblings, onHalt: "abortAll" }],
    ["fails", { ...siblings, onToolError: "abortAll" }]
  ] as const
  for (const [what, siblings] of cases) {
    for (const order of [["pays", what], [what, "pays"]] as const) {
      it.effect(`R-541: a started call beside a call that ends the turn does not start again: ${order.join(" beside ")}`, () =>
        Effect.gen(function*() {
          const options = { tools: [act], policy: { ...Policy.standard, siblings } }
          const calls = order.map((kind, index) => Script.toolCall(`c${index}`, "act", { what: kind }))
          const records = yield* Effect.gen(function*() {
            const opened = yield* Session.open("s")
            yield* overTime(Session.keep(opened, (session) => Session.reply(session, "go", options)))
            return yield* journalOf("s")
          }).pipe(
            Effect.provide([Script.layer([[...calls, Script.finish("tool_calls")], done]), Session.Store.layerMemory])
          )
          const ends = records.findIndex((record) => record._tag === "CallEnded")
          const last = records.findLastIndex((record) => record._tag === "CallEnded")
          assert.isBelow(ends, last)
          for (let length = ends + 1; length <= last; length++) {
            const cut = records.slice(0, length)
            const pays = `c${order.indexOf("pays")}`
            assert.deepStrictEqual(startedIn(cut), [pays])
            const all = yield* Effect.gen(function*() {
              const kept = (yield* Session.load("s"))!
              yield* overTime(Session.resume(kept, { ...options, takeOver: true }))
              return yield* journalOf("s")
            }).pipe(Effect.provide([Script.layer([done]), prefixed("s", cut)], { local: true }))
            const behind = all.slice(length)
            assert.isFalse(behind.some((record) => record._tag === "CallStarted"))
            const [answer] = behind.flatMap((record) => record._tag === "CallEnded" ? [record] : [])
            assert.deepStrictEqual([answer?.message.toolCallId, answer?.reason], [pays, "unknown_effect"])
            assert.isEmpty(Journal.check(all))
          }
        }))
    }
  }
})
