/**
 * Laws of what a journal keeps: each field of the fold is what its definition says of the records, whatever came before,
 * and a branch of a state shows nothing in the state.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import { type Journal, Session } from "heddle"
import * as Json from "../../src/internal/json.ts"
import * as States from "../../src/internal/session/state.ts"
import * as Model from "../support/keptModel.ts"
import * as Drawn from "../support/keptRecords.ts"
import { property, shareOf } from "../support/property.ts"
import * as StateData from "../support/states.ts"

const session = Session.make({ id: "s", context: { user: "Ada" } })

const textOf = (value: unknown): string => JSON.stringify(Json.ordered(Json.toJson(value)))

/** What differs between two values, by their members. */
const differing = (actual: object, expected: object): ReadonlyArray<string> => {
  const names = new Set([...Object.keys(actual), ...Object.keys(expected)])
  return Array.from(names).flatMap((name) => {
    const [left, right] = [actual, expected].map((value) => textOf((value as Record<string, unknown>)[name]))
    return left === right ? [] : [`${name} is ${left}, and ${right} by its definition`]
  })
}

/** The work that is left, by its definition. */
const nextOf = (state: States.State, { answered, approved, status, suspensions }: Session.Session): Journal.Next => {
  if (state.parent !== undefined) return "nothing"
  if (state.run !== undefined) return "resume"
  if (status === "error") return state.inbox.length > 0 ? "reply" : "nothing"
  if (suspensions.length > 0) return "wait"
  if (state.inbox.length > 0) return "reply"
  return answered.length + approved.length > 0 ? "continue" : "nothing"
}

/** The kinds of records that change a field. A resumption is a `RunStarted` of its own kind. */
type Kind = Journal.Record["_tag"] | "RunStarted again"

type Field = Exclude<keyof States.State, "id" | "origin"> | `run.${Exclude<keyof States.Run, Unchanged>}`

/** The fields of a run that its start gives. */
type Unchanged = "requestId" | "operation" | "startedAt" | "deadlineAt" | "taken" | "versions" | "before"

const ofCalls = ["CallEnded", "CallStarted", "CallWaits"] as const

const all: ReadonlyArray<Kind> = [
  "AttemptFailed",
  ...ofCalls,
  "CallSettled",
  "Labelled",
  "MessageForwarded",
  "MessageSettled",
  "MessageSubmitted",
  "MessageWithdrawn",
  "MessagesAppended",
  "Opened",
  "ReplyReceived",
  "RunEnded",
  "RunStarted",
  "RunStarted again",
  "StepCompleted",
  "StepPrepared",
  "StopRequested",
  "ToolDisallowed"
]

/**
 * The kinds of records that change each field, within a session whose agent, principal and branch stay. Those of a run
 * are without its start and its end.
 */
const changing: Readonly<Record<Field, ReadonlyArray<Kind>>> = {
  context: ["RunEnded"],
  metadata: ["RunEnded"],
  status: ["CallSettled", "Opened", "RunEnded", "RunStarted"],
  thread: ["CallEnded", "CallSettled", "MessagesAppended", "RunEnded", "RunStarted", "StepCompleted", "StepPrepared"],
  turn: [
    "AttemptFailed",
    ...ofCalls,
    "CallSettled",
    "MessagesAppended",
    "Opened",
    "ReplyReceived",
    "RunEnded",
    "RunStarted",
    "StepCompleted",
    "StepPrepared"
  ],
  answered: ["CallSettled", "RunEnded", "RunStarted"],
  allowed: ["CallSettled", "RunEnded", "ToolDisallowed"],
  run: [
    "AttemptFailed",
    ...ofCalls,
    "CallSettled",
    "ReplyReceived",
    "RunEnded",
    "RunStarted",
    "RunStarted again",
    "StepCompleted",
    "StepPrepared",
    "StopRequested",
    "ToolDisallowed"
  ],
  ended: ["Opened", "RunEnded", "RunStarted"],
  lastRun: ["RunEnded"],
  kept: ["RunEnded"],
  labels: ["Labelled"],
  parent: ["Opened", "RunStarted"],
  span: ["Opened", "RunStarted", "RunStarted again"],
  clientTools: ["RunStarted"],
  inbox: ["MessageSubmitted", "MessageWithdrawn", "RunEnded", "RunStarted", "StepPrepared"],
  // A message is lost with its call.
  inside: [
    "CallEnded",
    "MessageForwarded",
    "MessageSettled",
    "MessageSubmitted",
    "MessageWithdrawn",
    "RunEnded",
    "StepCompleted",
    "StepPrepared"
  ],
  stop: ["RunEnded", "StopRequested"],
  failures: ["AttemptFailed", "Opened", "RunEnded", "StepCompleted"],
  receipts: [
    "CallEnded",
    "CallSettled",
    "MessageSettled",
    "MessageSubmitted",
    "MessageWithdrawn",
    "RunEnded",
    "RunStarted",
    "StepCompleted",
    "StepPrepared",
    "StopRequested"
  ],
  fingerprint: all,
  size: all,
  "run.steps": ["StepCompleted"],
  "run.noted": ["StepCompleted", "StepPrepared"],
  "run.introduced": ["StepCompleted", "StepPrepared"],
  "run.attempt": ["StepCompleted", "StepPrepared"],
  "run.spent": ["StepCompleted", "StepPrepared"],
  "run.nestedUsage": ["CallEnded", "CallWaits", "StepCompleted"],
  "run.nestedSpent": ["CallEnded", "CallWaits"],
  "run.context": ["CallEnded", "StepCompleted"],
  "run.resumptions": ["RunStarted again"],
  "run.processName": ["RunStarted again"],
  "run.hasStarted": ["CallStarted"],
  "run.callStops": ["StopRequested"],
  "run.settlements": ["CallSettled", "ToolDisallowed"],
  "run.came": [...ofCalls, "ReplyReceived", "StepCompleted"],
  "run.halts": ["CallEnded", "CallWaits"],
  "run.begunAt": ["RunStarted again"],
  "run.at": ["AttemptFailed", ...ofCalls, "ReplyReceived", "RunStarted again", "StepCompleted"]
}

/** The fields of a state as texts. A run is by its steps' number: they contain the conversation. */
const fieldsOf = (state: States.State): Readonly<Record<string, string>> => {
  const data = StateData.dataOf(state) as Omit<States.State, "run"> & { readonly run?: States.Run }
  const run = data.run && { ...data.run, steps: data.run.steps.length }
  const own = Object.entries(run ?? {}).map(([name, value]) => [`run.${name}`, textOf(value)])
  return {
    ...Object.fromEntries(own),
    ...Object.fromEntries(Object.entries({ ...data, run }).map(([name, value]) => [name, textOf(value)]))
  }
}

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, index) => index)

const verdict = (command: string): Journal.Record => ({
  _tag: "CallSettled",
  id: "gone",
  answer: { _tag: "Approved" },
  command: { id: command, hash: command }
})

const running = (id: string): ReadonlyArray<Journal.Record> => [
  Drawn.taking(id, `run ${id}`),
  { _tag: "StepCompleted", requestId: `run ${id}`, stepIndex: 0, done: true, response: Drawn.replyOf("done") },
  { _tag: "RunEnded", requestId: `run ${id}`, haltedReason: "completed", status: "completed" }
]

/** Holds the state that a drawn journal folds to. */
const folding = (
  law: (state: States.State, records: ReadonlyArray<Journal.Record>) => ReadonlyArray<string>
) =>
(happenings: Drawn.Happenings) =>
  Effect.sync(() => {
    const records = Drawn.journalOf(happenings, session)
    const problems = law(Drawn.foldedFrom(records), records)
    return problems.length === 0 ? [] : [...problems, records.map(({ _tag }) => _tag).join(" ")]
  })

describe("the state folded from a journal", () => {
  property(
    "each field is what its definition says of the records",
    Drawn.happenings,
    folding((state, records) => {
      // A run that has ended leaves no settled call to the next one, but those that were settled during it.
      const answered = Model.endsUnsettled(records) ? state.answered : []
      return differing({ ...Model.shownBy(state), answered }, { ...Model.keptIn(records), answered: [] })
    }),
    2000,
    [
      // A call waited, and was settled, in a turn that a step with messages of its own replaced.
      { id: "R-561", seed: "2142032504", at: 264, size: 4 },
      // A call waited, and was settled, in a run that was given back.
      { id: "R-561", seed: "2914717058", at: 2222, size: 4 }
    ]
  )

  property(
    "each command has the outcome that the records say",
    Drawn.happenings,
    folding((state, records) => {
      const kept = Array.from(state.receipts.values(), ({ became, id }) => [id, became])
      return differing({ commands: kept }, { commands: Array.from(Model.commandsIn(records)) })
    }),
    2000
  )

  property(
    "each field of the summary is what its definition says of the session and the records",
    Drawn.happenings,
    folding((state, records) => {
      const seen = States.sessionOf(state)
      return differing(States.summaryOf(state), Model.summaryIn(records, seen, nextOf(state, seen)))
    }),
    2000
  )

  property(
    "a branch shows nothing in its state, and a session that was read before shows nothing in one that is read later",
    Arbitrary.all([Drawn.happenings, Drawn.happenings]),
    ([happenings, { count }]) =>
      Effect.sync(() => {
        const records = Drawn.journalOf(happenings, session)
        const at = 1 + count % records.length
        const [before, behind] = [records.slice(0, at), records.slice(at)]
        const state = Drawn.foldedFrom(before)
        const branch = States.copyOf(state)
        const shown = States.sessionOf(state)
        for (const record of behind) {
          States.apply(branch, record)
          States.sessionOf(branch)
        }
        const same = (what: string, left: States.State, right: States.State) =>
          [
            ...differing(fieldsOf(left), fieldsOf(right)),
            ...differing(States.sessionOf(left), States.sessionOf(right))
          ].map((text) => `${what}: ${text}`)
        return [
          ...same("the state", state, Drawn.foldedFrom(before)),
          ...same("the branch", branch, Drawn.foldedFrom(records)),
          ...(States.sessionOf(state) === shown ? [] : ["a session that has not changed is another object"])
        ]
      }),
    2000
  )

  property(
    "a snapshot has every field: the fold of all records is that of the snapshot alone",
    Drawn.happenings,
    (happenings) =>
      Effect.sync(() => {
        const state = Drawn.foldedFrom(Drawn.journalOf(happenings, session))
        if (state.run !== undefined || state.inbox.length > 0 || state.parent !== undefined) return []
        const receipts = state.receipts.size === 0 ? {} : { receipts: Array.from(state.receipts.values()) }
        const snapshot = { ...States.openedBy(state, States.sessionOf(state)), ...receipts }
        const before = States.sessionOf(state)
        States.apply(state, snapshot)
        const alone = Drawn.foldedFrom([snapshot])
        return [
          ...differing(StateData.dataOf(alone) as object, StateData.dataOf(state) as object),
          ...differing(States.sessionOf(state), before)
        ]
      }),
    500
  )

  it.effect(
    "each field of the state changes with exactly the record kinds named for it",
    () =>
      Effect.gen(function*() {
        const found = new Map<string, Set<string>>()
        const law = (happenings: Drawn.Happenings) =>
          Effect.sync(() => {
            const [first, ...records] = Drawn.journalOf(happenings, session)
            const state = Drawn.foldedFrom([first!])
            for (const record of records) {
              const [before, requestId] = [fieldsOf(state), state.run?.requestId]
              States.apply(state, record)
              const kind = record._tag === "RunStarted" && record.resumes === true ? "RunStarted again" : record._tag
              for (const [name, value] of Object.entries(fieldsOf(state))) {
                const isOther = name.startsWith("run.") &&
                  (requestId === undefined || state.run?.requestId !== requestId)
                if (value !== before[name] && !isOther) found.set(name, (found.get(name) ?? new Set()).add(kind))
              }
            }
            return true
          })
        // The same journals each time: each of these changes is among the first 150.
        yield* Arbitrary.checkEffect(Drawn.happenings, law, {
          seed: "changes",
          runs: Math.max(150, shareOf(600)),
          size: 10
        })
        const table = Object.fromEntries(Array.from(found, ([field, by]) => [field, Array.from(by).toSorted()]))
        const expected = Object.entries(changing)
          .flatMap(([field, by]) => by.length === 0 ? [] : [[field, by.toSorted()] as const])
        assert.deepStrictEqual(table, Object.fromEntries(expected) as typeof table)
      }),
    60_000
  )

  const most = 1_000

  /** What the fold knows of commands, by the definition: the last ones that changed, and each that has no outcome. */
  const knownOf = (commands: ReadonlyMap<string, string>): ReadonlyArray<readonly [id: string, became: string]> =>
    Array.from(commands).filter(([, became], index) =>
      became === "queued" || became === "taken" || index >= commands.size - most
    )

  /** Commands, so many of them, in each order in which they may come and end. */
  const orders: Readonly<Record<string, (count: number) => ReadonlyArray<Journal.Record>>> = {
    "verdicts alone": (count) => range(count).map((index) => verdict(`v${index}`)),
    "messages that no run takes": (count) => range(count).map((index) => Drawn.submitted(`m${index}`)),
    "messages, each with its run": (count) =>
      range(count).flatMap((index) => [Drawn.submitted(`m${index}`), ...running(`m${index}`)]),
    "messages first, then their runs": (count) => [
      ...range(count).map((index) => Drawn.submitted(`m${index}`)),
      ...range(count).flatMap((index) => running(`m${index}`))
    ],
    "a message under way, then verdicts": (count) => [
      Drawn.submitted("first"),
      Drawn.taking("first", "run first"),
      ...range(count).map((index) => verdict(`v${index}`)),
      { _tag: "RunEnded", requestId: "run first", haltedReason: "completed", status: "completed" },
      verdict("last")
    ],
    "a stop under way, then verdicts": (count) => [
      Drawn.started("run"),
      { _tag: "StopRequested", id: "stop", requestId: "run" },
      ...range(count).map((index) => verdict(`v${index}`)),
      { _tag: "RunEnded", requestId: "run", haltedReason: "cancelled", status: "stopped" },
      verdict("last")
    ],
    "a message that waits behind verdicts, and is given back by a run that fails": (count) => [
      Drawn.submitted("first"),
      ...range(count).map((index) => verdict(`v${index}`)),
      Drawn.taking("first", "run first"),
      { _tag: "RunEnded", requestId: "run first" },
      ...range(count).map((index) => verdict(`w${index}`)),
      ...running("first")
    ]
  }

  const bounds = [most - 1, most, most + 1, 3 * most]

  it.effect.each(Object.entries(orders))(
    "the receipts and their snapshots hold the last thousand commands and each open command: %s",
    ([, order]) =>
      Effect.sync(() => {
        for (const count of bounds) {
          const records = [Drawn.opened(session), ...order(count)]
          const state = Drawn.foldedFrom(records)
          const kept = Array.from(state.receipts.values(), ({ became, id }) => [id, became])
          assert.deepStrictEqual(kept, Array.from(knownOf(Model.commandsIn(records)), (one) => [...one]), `${count}`)
          // A snapshot keeps them, and so does a snapshot of the snapshot.
          for (let round = 0; round < 2 && state.run === undefined; round++) {
            const receipts = Array.from(state.receipts.values())
            const after = Drawn.foldedFrom([{ ...States.openedBy(state, States.sessionOf(state)), receipts }])
            States.apply(state, { ...States.openedBy(state, States.sessionOf(state)), receipts })
            assert.deepStrictEqual(Array.from(after.receipts), Array.from(state.receipts), `${count}`)
            for (const both of [state, after]) States.apply(both, verdict(`after ${round}`))
            assert.deepStrictEqual(Array.from(after.receipts), Array.from(state.receipts), `${count}`)
            assert.isTrue(state.receipts.has(`after ${round}`))
          }
        }
      })
  )
})
