/**
 * The contract of session stores as runnable cases: versions without gaps, appending by compare-and-set, all or nothing,
 * and records that come back as they went in. Every case takes a session id of its own, so that a store can be kept from
 * case to case.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import type * as Records from "../internal/session/records.ts"
import * as SessionState from "../internal/session/state.ts"
import * as Stores from "../internal/session/store.ts"
import * as Message from "../Message.ts"
import * as Conformance from "./Conformance.ts"

type Appended = Arr.NonEmptyReadonlyArray<Records.Record>

const said = (text: string): Records.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const texts = (entries: ReadonlyArray<Records.Entry>): ReadonlyArray<string> =>
  entries.map(({ record }) =>
    record._tag === "MessagesAppended" ? record.messages.map(Message.text).join() : record._tag
  )

const mint = Effect.map(Random.Random, (random) => `session-${random.nextDoubleUnsafe().toString(36).slice(2)}`)

const conflict = <A, E>(exit: Exit.Exit<A, E>): Stores.SessionConflict | undefined => {
  const error = Option.getOrUndefined(Exit.findErrorOption(exit))
  return error instanceof Stores.SessionConflict ? error : undefined
}

/** A case with a store and a session that has not been written. */
const of = (
  name: string,
  body: (store: Stores.Service, id: string) => Effect.Effect<unknown, unknown>
): Conformance.Case<Stores.Store> =>
  Conformance.make(
    name,
    Effect.gen(function*() {
      return yield* body(yield* Stores.Store, yield* mint)
    })
  )

const read = (store: Stores.Service, id: string, after?: number) => Stream.runCollect(store.read(id, after))

const versions: Conformance.Suite<Stores.Store> = [
  of("a session that was never written is at version 0 and has no records", (store, id) =>
    Effect.gen(function*() {
      yield* Conformance.equals("version", yield* store.version(id), 0)
      yield* Conformance.equals("records", yield* read(store, id), [])
    })),
  of(
    "append gives the number of records, and read gives them in order, numbered from 1",
    (store, id) =>
      Effect.gen(function*() {
        yield* Conformance.equals("the first version", yield* store.append(id, 0, [said("a"), said("b")]), 2)
        yield* Conformance.equals("the next version", yield* store.append(id, 2, [said("c")]), 3)
        yield* Conformance.equals("version", yield* store.version(id), 3)
        const entries = yield* read(store, id)
        yield* Conformance.equals("the versions", entries.map((entry) => entry.version), [1, 2, 3])
        yield* Conformance.equals("the records", texts(entries), ["a", "b", "c"])
      })
  ),
  of("read begins behind the version it is given", (store, id) =>
    Effect.gen(function*() {
      yield* store.append(id, 0, [said("a"), said("b"), said("c")])
      yield* Conformance.equals("behind 1", texts(yield* read(store, id, 1)), ["b", "c"])
      yield* Conformance.equals("behind the last", yield* read(store, id, 3), [])
    })),
  of("sessions do not see each other, whatever their ids are", (store, id) =>
    Effect.gen(function*() {
      const ids = [`${id}`, `${id} `, `${id}'; --`, `${id}/../%`, `__proto__${id}`, `${id}ä😀`]
      yield* Effect.forEach(ids, (id) => store.append(id, 0, [said(id)]))
      for (const id of ids) yield* Conformance.equals(id, texts(yield* read(store, id)), [id])
    }))
]

const conflicts: Conformance.Suite<Stores.Store> = [
  of(
    "append at another version is a SessionConflict that names both, and appends nothing",
    (store, id) =>
      Effect.gen(function*() {
        yield* store.append(id, 0, [said("a")])
        for (const expected of [0, 2, -1]) {
          const found = conflict(yield* Effect.exit(store.append(id, expected, [said("x"), said("y")])))
          yield* Conformance.equals("the conflict", [found?.id, found?.expected, found?.actual], [id, expected, 1])
        }
        yield* Conformance.equals("the records", texts(yield* read(store, id)), ["a"])
      })
  ),
  of(
    "of writers at one version exactly one wins, and its records stand together",
    (store, id) =>
      Effect.gen(function*() {
        const writers = Array.from({ length: 8 }, (_, writer) => [said(`${writer}a`), said(`${writer}b`)] as Appended)
        const exits = yield* Effect.forEach(writers, (records) => Effect.exit(store.append(id, 0, records)), {
          concurrency: "unbounded"
        })
        const winners = exits.flatMap((exit, writer) => Exit.isSuccess(exit) ? [writer] : [])
        yield* Conformance.equals("how many won", winners.length, 1)
        yield* Conformance.equals(
          "how many had a conflict",
          exits.filter((exit) => conflict(exit) !== undefined).length,
          7
        )
        const [winner] = winners
        yield* Conformance.equals("the records", texts(yield* read(store, id)), [`${winner}a`, `${winner}b`])
      })
  ),
  of(
    "writers that read again after a conflict all get in, whole, and nothing is lost",
    (store, id) =>
      Effect.gen(function*() {
        const append = (name: string): Effect.Effect<number, unknown> =>
          Effect.flatMap(
            store.version(id),
            (version) => store.append(id, version, [said(`${name}a`), said(`${name}b`)])
          ).pipe(Effect.retry({ times: 100, while: (error) => error._tag === "SessionConflict" }))
        const names = Array.from({ length: 20 }, (_, writer) => `w${writer}`)
        yield* Effect.forEach(names, append, { concurrency: "unbounded" })
        const found = texts(yield* read(store, id))
        yield* Conformance.equals(
          "the records",
          found.toSorted(),
          names.flatMap((name) => [`${name}a`, `${name}b`]).toSorted()
        )
        const torn = found.filter((text, index) => text.endsWith("a") && found[index + 1] !== `${text.slice(0, -1)}b`)
        yield* Conformance.equals("records that do not stand with their like", torn, [])
      })
  )
]

const toolCall = { ...Message.toolCall("c0", "pay", { amount: 12.5, to: { name: "Åsa" } }), rawArguments: "{}" }

const session = SessionState.make({
  id: "kept",
  context: { nested: { list: [1, null, "two"] } },
  metadata: { "a.b": true }
})

/** One record of each kind, with what is hard to keep: empty lists, Unicode, nulls, and values nested in values. */
const everyKind: Appended = [
  { _tag: "Opened", session },
  {
    _tag: "RunStarted",
    requestId: "r",
    operation: "start",
    messages: [Message.user("hi \u0000 \ud83d\ude00 \"'\\\n")]
  },
  { _tag: "ReplyReceived", requestId: "r", stepIndex: 0, message: Message.assistant("", [toolCall]) },
  { _tag: "CallStarted", requestId: "r", stepIndex: 0, toolCall, attempt: 1, idempotencyKey: "r:0:0:c0" },
  {
    _tag: "CallEnded",
    requestId: "r",
    stepIndex: 0,
    toolCallId: "c0",
    outcome: { _tag: "Ok", value: [null, { a: 1 }] }
  },
  {
    _tag: "CallEnded",
    requestId: "r",
    stepIndex: 0,
    toolCallId: "c1",
    outcome: { _tag: "AskUser", question: "Which?", opts: [], withinMillis: 60_000 },
    expiresAt: 1_700_000_000_000
  },
  { _tag: "StepCompleted", requestId: "r", stepIndex: 0, messages: [Message.tool("c0", "ok")] },
  {
    _tag: "RunEnded",
    requestId: "r",
    haltedReason: "ask_user",
    messages: [],
    status: "awaiting_user",
    suspensions: [{ id: "c0", kind: "question", toolCall, question: "Which?", opts: [], expiresAt: 1_700_000_000_000 }],
    context: {},
    metadata: {}
  },
  { _tag: "Answered", id: "c0", answer: { _tag: "Value", value: { city: "Oslo" } } },
  { _tag: "Answered", id: "c1", answer: { _tag: "Approved", arguments: { amount: 1 } } },
  { _tag: "Answered", id: "c2", answer: { _tag: "Denied" } },
  { _tag: "Answered", id: "c3", answer: { _tag: "Expired" } },
  { _tag: "RunStarted", requestId: "r2", operation: "continue", messages: [] },
  { _tag: "ApprovedAnswered", requestId: "r2", messages: [Message.tool("c1", "paid")] },
  {
    _tag: "ApprovedAnswered",
    requestId: "r2",
    messages: [Message.tool("c0", "<awaiting user response>")],
    suspensions: [{ id: "c0", kind: "question", toolCall, question: "Which?", opts: [], expiresAt: 1_700_000_000_000 }]
  },
  { _tag: "QuestionWithdrawn", requestId: "r2", message: Message.tool("c0", "cancelled") },
  { _tag: "RunFailed", requestId: "r2" },
  {
    _tag: "StepCompleted",
    requestId: "r2",
    stepIndex: 1,
    messages: [],
    suspensions: [{ id: "c4", kind: "manual", toolCall }]
  },
  { _tag: "MessagesAppended", messages: [] }
]

const contents: Conformance.Suite<Stores.Store> = [
  of("every kind of record comes back as it went in", (store, id) =>
    Effect.gen(function*() {
      yield* store.append(id, 0, everyKind)
      const entries = yield* read(store, id)
      for (const [index, record] of everyKind.entries()) {
        yield* Conformance.equals(record._tag, entries[index]?.record, record)
      }
    })),
  of("what was never meant to be JSON is kept as readable data", (store, id) =>
    Effect.gen(function*() {
      const outcome = { _tag: "Error", error: new Error("kaboom") }
      yield* store.append(id, 0, [{ _tag: "CallEnded", requestId: "r", stepIndex: 0, toolCallId: "c0", outcome }])
      const [entry] = yield* read(store, id)
      const kept = entry?.record._tag === "CallEnded" ? entry.record.outcome : undefined
      yield* Conformance.equals("the outcome", kept, { _tag: "Error", error: { name: "Error", message: "kaboom" } })
    })),
  of("a list with holes is kept as JSON has it, with nulls", (store, id) =>
    Effect.gen(function*() {
      const value: Array<number> = []
      value[2] = 1
      const outcome = { _tag: "Ok", value }
      yield* store.append(id, 0, [{ _tag: "CallEnded", requestId: "r", stepIndex: 0, toolCallId: "c0", outcome }])
      const [entry] = yield* read(store, id)
      const kept = entry?.record._tag === "CallEnded" ? entry.record.outcome : undefined
      yield* Conformance.equals("the outcome", kept, { _tag: "Ok", value: [null, null, 1] })
    })),
  of("a long text is kept whole", (store, id) =>
    Effect.gen(function*() {
      const long = "0123456789".repeat(100_000)
      yield* store.append(id, 0, [said(long)])
      yield* Conformance.holds("the text is the same", texts(yield* read(store, id))[0] === long)
    })),
  of("a long journal is read whole, and left early without harm", (store, id) =>
    Effect.gen(function*() {
      const count = 1000
      const names = Array.from({ length: count }, (_, index) => `${index}`)
      yield* store.append(id, 0, names.map(said) as unknown as Appended)
      const entries = yield* read(store, id)
      yield* Conformance.equals("the records", texts(entries), names)
      const few = yield* Stream.runCollect(Stream.take(store.read(id), 3))
      yield* Conformance.equals("the first three", texts(few), names.slice(0, 3))
      yield* Conformance.equals("the version afterwards", yield* store.version(id), count)
      yield* Conformance.equals("the next version", yield* store.append(id, count, [said("on")]), count + 1)
    }))
]

/**
 * Every store passes these.
 *
 * **Example** (In a test file)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Conformance, StoreSuite } from "heddle/testing"
 *
 * const results: Array<Promise<void>> = []
 * const it = (_name: string, run: () => Promise<void>) => results.push(run())
 *
 * Conformance.register(StoreSuite.all, Session.Store.layerMemory, it)
 * const passed = await Promise.all(results)
 *
 * passed.length === StoreSuite.all.length // => true
 * ```
 *
 * @category suites
 * @since 0.1.0
 */
export const all: Conformance.Suite<Stores.Store> = [...versions, ...conflicts, ...contents]
