/**
 * Contract for session stores as runnable cases: versions without gaps, atomic appends by compare-and-set, records read
 * as written, removal of records, and claims. Every case uses its own session id, so all cases can share a store.
 */
import type * as Arr from "effect/Array"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import * as Journal from "../Journal.ts"
import * as Message from "../Message.ts"
import type * as Response from "../Response.ts"
import * as Session from "../Session.ts"
import * as Conformance from "./Conformance.ts"
import * as Cases from "./internal/cases.ts"

type Appended = Arr.NonEmptyReadonlyArray<Journal.Record>

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const texts = (entries: ReadonlyArray<Journal.Entry>): ReadonlyArray<string> =>
  entries.map(({ record }) =>
    record._tag === "MessagesAppended" ? record.messages.map(Message.text).join() : record._tag
  )

const mint = Effect.map(Random.Random, (random) => `session-${random.nextDoubleUnsafe().toString(36).slice(2)}`)

const conflict = <A, E>(exit: Exit.Exit<A, E>): Journal.SessionConflict | undefined => {
  const error = Option.getOrUndefined(Exit.findErrorOption(exit))
  return error instanceof Journal.SessionConflict ? error : undefined
}

/** Makes a case with a store and an unwritten session. */
const of = (
  name: string,
  body: (store: Journal.Service, id: string) => Generator<Effect.Effect<unknown, unknown>, unknown, never>
): Conformance.Case<Session.Store> =>
  Cases.of(name, function*() {
    const store = yield* Session.Store
    const id = yield* mint
    yield* Effect.gen(() => body(store, id))
  })

const read = (store: Journal.Service, id: string, after?: number) => Stream.runCollect(store.read(id, after))

const versions: Conformance.Suite<Session.Store> = [
  of("an unwritten session is at version 0 and has no records", function*(store, id) {
    yield* Conformance.equals("version", yield* store.version(id), 0)
    yield* Conformance.equals("records", yield* read(store, id), [])
  }),
  of("append returns the version, and read returns the records in order, numbered from 1", function*(store, id) {
    yield* Conformance.equals("the first version", yield* store.append(id, 0, [said("a"), said("b")]), 2)
    yield* Conformance.equals("the next version", yield* store.append(id, 2, [said("c")]), 3)
    yield* Conformance.equals("version", yield* store.version(id), 3)
    const entries = yield* read(store, id)
    yield* Conformance.equals("the versions", entries.map((entry) => entry.version), [1, 2, 3])
    yield* Conformance.equals("the records", texts(entries), ["a", "b", "c"])
  }),
  of("read begins after the given version", function*(store, id) {
    yield* store.append(id, 0, [said("a"), said("b"), said("c")])
    yield* Conformance.equals("after 1", texts(yield* read(store, id, 1)), ["b", "c"])
    yield* Conformance.equals("after the last", yield* read(store, id, 3), [])
  }),
  of("sessions are separate, whatever their ids", function*(store, id) {
    const ids = [`${id}`, `${id} `, `${id}'; --`, `${id}/../%`, `__proto__${id}`, `${id}ä😀`]
    yield* Effect.forEach(ids, (id) => store.append(id, 0, [said(id)]))
    for (const id of ids) yield* Conformance.equals(id, texts(yield* read(store, id)), [id])
  })
]

const conflicts: Conformance.Suite<Session.Store> = [
  of(
    "append at another version fails with a SessionConflict naming both versions, and appends nothing",
    function*(store, id) {
      yield* store.append(id, 0, [said("a")])
      for (const expected of [0, 2, -1]) {
        const found = conflict(yield* Effect.exit(store.append(id, expected, [said("x"), said("y")])))
        yield* Conformance.equals("the conflict", [found?.id, found?.expected, found?.actual], [id, expected, 1])
      }
      yield* Conformance.equals("the records", texts(yield* read(store, id)), ["a"])
    }
  ),
  of("of several writers at one version exactly one wins, and its records are adjacent", function*(store, id) {
    const writers = Array.from({ length: 8 }, (_, writer) => [said(`${writer}a`), said(`${writer}b`)] as Appended)
    const exits = yield* Effect.forEach(writers, (records) => Effect.exit(store.append(id, 0, records)), {
      concurrency: "unbounded"
    })
    const winners = exits.flatMap((exit, writer) => Exit.isSuccess(exit) ? [writer] : [])
    yield* Conformance.equals("number of winners", winners.length, 1)
    yield* Conformance.equals(
      "number of conflicts",
      exits.filter((exit) => conflict(exit) !== undefined).length,
      7
    )
    const [winner] = winners
    yield* Conformance.equals("the records", texts(yield* read(store, id)), [`${winner}a`, `${winner}b`])
  }),
  of("writers retrying after a conflict all succeed, with adjacent records and no loss", function*(store, id) {
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
    yield* Conformance.equals("records separated from their append", torn, [])
  })
]

const toolCall = { ...Message.toolCall("c0", "pay", { amount: 12.5, to: { name: "Åsa" } }), rawArguments: "{}" }

const session = Session.make({
  id: "kept",
  context: { nested: { list: [1, null, "two"] } },
  metadata: { "a.b": true }
})

const response: Response.Response = {
  id: "m",
  requestId: "r",
  model: null,
  outputText: null,
  reasoning: "",
  toolCalls: [toolCall],
  message: Message.assistant("", [toolCall]),
  finishReason: "tool_calls",
  rawFinishReason: null,
  usage: null,
  metadata: {}
}

/** One record per kind, filled with hard-to-store values: empty lists, Unicode, nulls, and nested values. */
const everyKind: Appended = [
  {
    _tag: "Opened",
    format: 1,
    session,
    receipts: [{ id: "m", hash: "0", became: "queued" }],
    calls: { c0: { idempotencyKey: "k", attempt: 1 } }
  },
  {
    _tag: "RunStarted",
    requestId: "r",
    operation: "start",
    startedAt: 1_700_000_000_000,
    versions: { get_weather: "2" },
    messages: [Message.user("hi \u0000 \ud83d\ude00 \"'\\\n")]
  },
  { _tag: "ReplyReceived", requestId: "r", stepIndex: 0, response },
  { _tag: "CallStarted", requestId: "r", toolCallId: "c0", toolCall, attempt: 1, idempotencyKey: "r:0:0:c0" },
  { _tag: "AttemptFailed", requestId: "r", toolCallId: "c0" },
  { _tag: "CallEnded", requestId: "r", message: Message.tool("c0", "[null,{\"a\":1}]"), contextUpdate: { a: [null] } },
  {
    _tag: "CallWaits",
    requestId: "r",
    toolCallId: "c1",
    suspensions: [{ id: "c1", kind: "question", question: "Which?", opts: [], expiresAt: 1_700_000_000_000 }],
    resume: { state: [null, { page: 2 }], idempotencyKey: "r:0:1:c1", attempt: 1 }
  },
  { _tag: "StepCompleted", requestId: "r", stepIndex: 0, messages: [Message.tool("c0", "ok")], done: false },
  { _tag: "RunEnded", requestId: "r", haltedReason: "ask_user", messages: [], metadata: { "a.b": null } },
  { _tag: "CallSettled", id: "c0", answer: { _tag: "Value", value: { city: "Oslo" } }, by: "Åsa" },
  { _tag: "CallSettled", id: "c1", answer: { _tag: "Approved", arguments: { amount: 1 } } },
  { _tag: "CallSettled", id: "c2", answer: { _tag: "Denied" }, command: { id: "k", hash: "0" } },
  { _tag: "CallSettled", id: "c3", answer: { _tag: "Expired" } },
  { _tag: "RunEnded", requestId: "r2" },
  { _tag: "MessagesAppended", messages: [] },
  { _tag: "StopRequested", id: "s0", requestId: "r2" },
  { _tag: "MessageSubmitted", id: "m0", message: Message.user("\ud83d\ude00") }
]

const contents: Conformance.Suite<Session.Store> = [
  of("every kind of record is read as written", function*(store, id) {
    yield* store.append(id, 0, everyKind)
    const entries = yield* read(store, id)
    for (const [index, record] of everyKind.entries()) {
      yield* Conformance.equals(record._tag, entries[index]?.record, record)
    }
  }),
  of("a value other than JSON is kept as readable data", function*(store, id) {
    yield* store.append(id, 0, [{ _tag: "RunEnded", requestId: "r", metadata: { error: new Error("kaboom") } }])
    const [entry] = yield* read(store, id)
    const kept = entry?.record._tag === "RunEnded" ? entry.record.metadata : undefined
    yield* Conformance.equals("the metadata", kept, { error: { name: "Error", message: "kaboom" } })
  }),
  of("a list with holes is kept with nulls, as in JSON", function*(store, id) {
    const value: Array<number> = []
    value[2] = 1
    yield* store.append(id, 0, [{ _tag: "CallSettled", id: "c0", answer: { _tag: "Value", value } }])
    const [entry] = yield* read(store, id)
    const kept = entry?.record._tag === "CallSettled" ? entry.record.answer : undefined
    yield* Conformance.equals("the answer", kept, { _tag: "Value", value: [null, null, 1] })
  }),
  of("a long text is kept whole", function*(store, id) {
    const long = "0123456789".repeat(100_000)
    yield* store.append(id, 0, [said(long)])
    yield* Conformance.holds("the text is the same", texts(yield* read(store, id))[0] === long)
  }),
  of(
    "a record over the size limit is refused by name, and its append writes nothing",
    function*(store, id) {
      const ended: Journal.Record = {
        _tag: "CallEnded",
        requestId: "r",
        message: Message.tool("c0", "ä".repeat(1000))
      }
      yield* store.append(id, 0, [said("a")])
      const append = store.append(id, 1, [said("b"), ended]).pipe(
        Effect.provideService(Journal.MaxRecordBytes, 2000)
      )
      const error = yield* Effect.flip(append)
      yield* Conformance.holds("a StoreError", error instanceof Journal.StoreError)
      if (!(error instanceof Journal.StoreError)) return
      yield* Conformance.equals(
        "what it names",
        [error.reason, error.id, error.record, error.toolCallId, error.maxBytes],
        ["too_large", id, "CallEnded", "c0", 2000]
      )
      yield* Conformance.holds("it says how large", (error.bytes ?? 0) > 2000)
      yield* Conformance.equals("the records", texts(yield* read(store, id)), ["a"])
      yield* store.append(id, 1, [ended])
    }
  ),
  of("a long journal is read whole, and leaving the read early is safe", function*(store, id) {
    const count = 1000
    const names = Array.from({ length: count }, (_, index) => `${index}`)
    yield* store.append(id, 0, names.map(said) as unknown as Appended)
    const entries = yield* read(store, id)
    yield* Conformance.equals("the records", texts(entries), names)
    const few = yield* Stream.runCollect(Stream.take(store.read(id), 3))
    yield* Conformance.equals("the first three", texts(few), names.slice(0, 3))
    yield* Conformance.equals("the version afterwards", yield* store.version(id), count)
    yield* Conformance.equals("the next version", yield* store.append(id, count, [said("on")]), count + 1)
  })
]

/**
 * Lets time pass on the store's clock, in cases about claims and times. By default they wait. If the store uses a
 * virtual clock, advance that clock.
 *
 * **Example** (A store in virtual time)
 *
 * ```ts import.meta.vitest
 * import { Session } from "heddle"
 * import { Conformance, StoreSuite } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as TestClock from "effect/testing/TestClock"
 *
 * const failures = Conformance.failures(StoreSuite.all, Session.Store.layerMemory).pipe(
 *   Effect.provideService(StoreSuite.Passing, TestClock.adjust),
 *   Effect.provide(TestClock.layer())
 * )
 *
 * await Effect.runPromise(failures) // => []
 * ```
 *
 * @category services
 */
export const Passing: Context.Reference<(duration: Duration.Input) => Effect.Effect<void>> = Context.Reference(
  "heddle/testing/StoreSuite/Passing",
  { defaultValue: () => Effect.sleep }
)

const pass = (duration: Duration.Input) => Effect.flatMap(Passing, (passing) => passing(duration))

const runStarted = (requestId: string): Journal.Record => ({
  _tag: "RunStarted",
  requestId,
  operation: "start",
  startedAt: 0,
  messages: []
})

const runEnded = (requestId: string): Journal.RunEnded => ({
  _tag: "RunEnded",
  requestId,
  haltedReason: "completed",
  status: "completed"
})

/** Returns the snapshot record for a session id. */
const opened = (id: string): Journal.Record => ({ _tag: "Opened", format: 1, session: Session.make({ id }) })

const submitted: Journal.Record = { _tag: "MessageSubmitted", id: "m", message: Message.user("hi") }

const isUnfinished = (store: Journal.Service, id: string) =>
  Effect.map(Stream.runCollect(store.unfinished), (ids) => ids.includes(id))

const listed = (store: Journal.Service, prefix: string) =>
  Effect.map(
    Stream.runCollect(store.list({ prefix })),
    (found) => found.toSorted((left, right) => left.id < right.id ? -1 : 1)
  )

/** Returns options for an append leaving this work. */
const leaving = (next: Journal.Next): Journal.AppendOptions => ({ summary: { next, status: "idle" } })

const lists: Conformance.Suite<Session.Store> = [
  of("a session has work left if the summary of its last append says so", function*(store, id) {
    const after = (expected: number, records: Appended, options: Journal.AppendOptions, left: boolean) =>
      Effect.gen(function*() {
        yield* store.append(id, expected, records, options)
        const what = `work left after ${records.map(({ _tag }) => _tag).join(", ")}`
        yield* Conformance.equals(what, yield* isUnfinished(store, id), left)
      })
    yield* Conformance.equals("work left before anything", yield* isUnfinished(store, id), false)
    yield* after(0, [opened(id), said("a")], {}, false)
    yield* after(2, [said("b"), runStarted("r1")], leaving("resume"), true)
    yield* after(4, [said("c")], {}, true)
    yield* after(5, [runEnded("r1")], leaving("wait"), false)
    yield* after(6, [submitted], {}, false)
    yield* after(7, [said("d")], leaving("continue"), true)
    yield* after(8, [said("e")], leaving("nothing"), false)
    yield* after(9, [submitted], {}, true)
    yield* after(10, [opened(id)], leaving("nothing"), false)
  }),
  of("a new session may begin with work left", function*(store, id) {
    yield* store.append(id, 0, [opened(id), submitted])
    yield* Conformance.equals("work left", yield* isUnfinished(store, id), true)
  }),
  of("a session is listed with its summary, and with the time since when its work is left", function*(store, id) {
    const resuming = (resumptions: number) => ({ summary: { next: "resume", status: "idle", resumptions } as const })
    yield* store.append(id, 0, [opened(id)], resuming(0))
    const [first] = yield* listed(store, id)
    yield* pass(3)
    yield* store.append(id, 1, [said("a")], resuming(1))
    const [second] = yield* listed(store, id)
    yield* Conformance.equals("the resumptions", second?.resumptions, 1)
    yield* Conformance.equals("since when", second?.since, first?.since)
    yield* pass(3)
    yield* store.append(id, 2, [said("b")], { summary: { next: "wait", status: "awaiting_tools", expiresAt: 7 } })
    const [third] = yield* listed(store, id)
    yield* Conformance.equals("the expiry", [third?.next, third?.expiresAt, third?.resumptions], [
      "wait",
      7,
      undefined
    ])
    yield* Conformance.holds("since when", (third?.since ?? 0) > (first?.since ?? 0))
  }),
  of("a message after work left changes neither the work nor its time", function*(store, id) {
    for (const next of ["reply", "continue", "resume", "wait"] as const) {
      const key = `${id}/${next}`
      yield* store.append(key, 0, [opened(key)], leaving(next))
      const before = yield* listed(store, key)
      yield* pass(3)
      yield* store.append(key, 1, [submitted])
      const after = yield* listed(store, key)
      yield* Conformance.equals(`after ${next}`, after, before.map((one) => ({ ...one, version: 2 })))
    }
  }),
  of("each summary field is listed as given by the last append, also by the first append", function*(store, id) {
    const listedAs = (id: string) =>
      Effect.map(listed(store, id), ([found]) => {
        if (found === undefined) return undefined
        const { claim: _, id: __, since: ___, version: ____, ...summary } = found
        return summary
      })
    const whole: Journal.Summary = {
      next: "resume",
      status: "error",
      resumptions: 3,
      expiresAt: 1_700_000_000_000,
      lastOutcome: "error",
      error: { reason: "network_error", detail: "no \"route\" \u0000 \ud83d" },
      title: "Grüße 😀",
      lastLine: "'; --",
      pinned: true,
      agent: "travel",
      forkedFrom: { id: "other", version: 7, message: "m1" }
    }
    const others: Journal.Summary = {
      next: "wait",
      status: "awaiting_user",
      resumptions: 0,
      expiresAt: 1_700_000_000_001,
      lastOutcome: "completed",
      error: { reason: "other", detail: "" },
      title: "Another",
      lastLine: "Last",
      pinned: false,
      agent: "other",
      forkedFrom: { id: "other", version: 8, message: "m1" }
    }
    yield* store.append(id, 0, [opened(id)], { summary: whole })
    yield* Conformance.equals("the first summary", yield* listedAs(id), whole)
    let version = 1
    for (const field of Object.keys(whole) as ReadonlyArray<keyof Journal.Summary>) {
      const { [field]: _, ...less } = whole
      const changed = { ...whole, [field]: others[field] }
      const isRequired = field === "next" || field === "status"
      for (const summary of isRequired ? [changed] : [changed, less as Journal.Summary]) {
        version = yield* store.append(id, version, [said("on")], { summary })
        yield* Conformance.equals(`the summary with another ${field}`, yield* listedAs(id), summary)
        const fresh = `${id}-${version}`
        yield* store.append(fresh, 0, [opened(fresh)], { summary })
        yield* Conformance.equals(`that of a new session with another ${field}`, yield* listedAs(fresh), summary)
      }
    }
    const idle: Journal.Summary = { ...whole, next: "nothing" }
    version = yield* store.append(id, version, [said("on")], { summary: idle })
    version = yield* store.append(id, version, [submitted])
    yield* Conformance.equals("the summary after a message", yield* listedAs(id), { ...idle, next: "reply" })
    yield* store.append(id, version, [said("on")])
    yield* Conformance.equals("the summary after other records", yield* listedAs(id), { ...idle, next: "reply" })
  }),
  of("list and count with a status return only its sessions, each by its last summary", function*(store, id) {
    const statuses = ["idle", "awaiting_user", "awaiting_tools", "completed", "stopped", "error"] as const
    yield* Effect.forEach(
      statuses,
      (status, index) =>
        Effect.forEach(Array.from({ length: index + 1 }), (_, number) => {
          const key = `${id}/${status}${number}`
          return store.append(key, 0, [opened(key)], { summary: { next: "nothing", status } })
        })
    )
    const prefix = `${id}/`
    const counts = { idle: 1, awaiting_user: 2, awaiting_tools: 3, completed: 4, stopped: 5, error: 6 }
    const none = { idle: 0, awaiting_user: 0, awaiting_tools: 0, completed: 0, stopped: 0, error: 0 }
    yield* Conformance.equals("the counts", yield* store.count({ prefix }), counts)
    for (const status of statuses) {
      const found = yield* Stream.runCollect(store.list({ prefix, status }))
      const ids = Array.from({ length: counts[status] }, (_, number) => `${prefix}${status}${number}`)
      yield* Conformance.equals(`those in status ${status}`, found.map(({ id }) => id).toSorted(), ids)
      const counted = yield* store.count({ prefix, status })
      yield* Conformance.equals(`the counts of status ${status}`, counted, { ...none, [status]: counts[status] })
    }
    yield* store.append(`${prefix}error0`, 1, [said("on")], leaving("nothing"))
    yield* store.delete(`${prefix}error1`)
    yield* Conformance.equals("the counts later", yield* store.count({ prefix }), { ...counts, idle: 2, error: 4 })
    yield* Conformance.equals("those of another prefix", yield* store.count({ prefix: `${prefix}x` }), none)
    yield* store.append(`${prefix}😀`, 0, [opened(id)], leaving("nothing"))
    yield* Conformance.equals("those of half a character", (yield* store.count({ prefix: `${prefix}\ud83d` })).idle, 1)
  }),
  of("a prefix lists only its own sessions, at each edge of Unicode", function*(store, id) {
    const edges = ["\u007f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\u{10000}", "\u{10ffff}"]
    const prefixes = edges.map((edge) => `${id}/${edge}`)
    yield* Effect.forEach(prefixes, (prefix) => store.append(`${prefix}a`, 0, [opened(id)], leaving("nothing")))
    for (const [index, prefix] of prefixes.entries()) {
      const found = yield* listed(store, prefix)
      yield* Conformance.equals(`those of edge ${index}`, found.map((one) => one.id), [`${prefix}a`])
      yield* Conformance.equals(`the count of edge ${index}`, (yield* store.count({ prefix })).idle, 1)
    }
  }),
  of("an append repeated under its name adds nothing, also after a command", function*(store, id) {
    const once = store.append(id, 0, [opened(id), said("a")], { name: "n1" })
    yield* Conformance.equals("the version", [yield* once, yield* once], [2, 2])
    yield* store.append(id, 2, [submitted])
    yield* Conformance.equals("the version after a command", yield* once, 2)
    yield* Conformance.equals("the version of the journal", yield* store.version(id), 3)
    yield* store.append(id, 3, [said("b")], { name: "n2" })
    const found = conflict(yield* Effect.exit(once))
    yield* Conformance.equals("the conflict of an earlier name", found?.actual, 4)
  }),
  of("list returns each session once, and only ids with the prefix", function*(store, id) {
    const ids = [`${id}/1`, `${id}/2`, `${id}/ä😀`, `${id}/`]
    yield* Effect.forEach(ids, (id) => store.append(id, 0, [opened(id), said("a")]))
    yield* store.append(`${id}x`, 0, [said("a")])
    yield* store.append(`${id}/2`, 2, [submitted])
    const found = yield* listed(store, `${id}/`)
    yield* Conformance.equals("the sessions", found.map(({ id, next, version }) => ({ id, version, next })), [
      { id: `${id}/`, version: 2, next: "nothing" },
      { id: `${id}/1`, version: 2, next: "nothing" },
      { id: `${id}/2`, version: 3, next: "reply" },
      { id: `${id}/ä😀`, version: 2, next: "nothing" }
    ])
    yield* Conformance.equals("those with an odd prefix", (yield* listed(store, `${id}/%`)).length, 0)
    const all = yield* Stream.runCollect(store.list())
    yield* Conformance.equals("how many of all", all.filter((one) => one.id.startsWith(id)).length, 5)
  }),
  of("ids differing only in case are different sessions, each with its own claim", function*(store, id) {
    const [lower, upper] = [`${id}/case`, `${id}/CASE`]
    yield* Conformance.equals("the first version of one", yield* store.append(lower, 0, [said("a")]), 1)
    yield* Conformance.equals("that of the other", yield* store.append(upper, 0, [said("b")]), 1)
    yield* Conformance.equals("the records of one", texts(yield* read(store, lower)), ["a"])
    yield* Conformance.equals("those of the other", texts(yield* read(store, upper)), ["b"])
    const found = yield* listed(store, `${id}/c`)
    yield* Conformance.equals("those that begin with the prefix", found.map((one) => one.id), [lower])
    yield* store.claim(lower, "first", 60_000)
    yield* Conformance.equals(
      "the owner of the other",
      (yield* store.claim(upper, "second", 60_000)).owner,
      "second"
    )
  })
]

const removals: Conformance.Suite<Session.Store> = [
  of("truncate removes the records before a snapshot, and reading begins with the snapshot", function*(store, id) {
    const records: Appended = [opened(id), said("a"), said("b"), opened(id), said("c")]
    yield* store.append(id, 0, records)
    yield* store.truncate(id, 4)
    const versions = (after?: number) =>
      Effect.map(read(store, id, after), (entries) => entries.map((entry) => entry.version))
    yield* Conformance.equals("the versions", yield* versions(), [4, 5])
    yield* Conformance.equals("after a removed version", yield* versions(2), [4, 5])
    yield* Conformance.equals("after the snapshot", yield* versions(4), [5])
    yield* Conformance.equals("the first record", texts(yield* read(store, id))[0], "Opened")
    yield* Conformance.equals("the version of the journal", yield* store.version(id), 5)
    yield* Conformance.equals("the next version", yield* store.append(id, 5, [said("d"), opened(id)]), 7)
    yield* store.truncate(id, 2)
    yield* Conformance.equals("after what is done already", yield* versions(), [4, 5, 6, 7])
    yield* store.truncate(id, 7)
    yield* Conformance.equals("after the next snapshot", yield* versions(), [7])
    const found = conflict(yield* Effect.exit(store.append(id, 1, [said("x")])))
    yield* Conformance.equals("the conflict", [found?.expected, found?.actual], [1, 7])
  }),
  of("truncate before a record other than a snapshot dies, and removes nothing", function*(store, id) {
    yield* store.append(id, 0, [opened(id), said("a"), said("b")])
    for (const before of [2, 3, 4]) {
      const exit = yield* Effect.exit(store.truncate(id, before))
      yield* Conformance.holds(`it dies before version ${before}`, Exit.isFailure(exit) && Exit.hasDies(exit))
    }
    yield* Conformance.equals("the records", texts(yield* read(store, id)), ["Opened", "a", "b"])
  }),
  of("truncating or deleting a journal during a read damages nothing", function*(store, id) {
    const count = 1000
    const names = Array.from({ length: count }, (_, index) => `${index}`)
    for (const removal of ["truncated", "deleted"]) {
      const session = `${id}-${removal}`
      yield* store.append(session, 0, names.map(said) as unknown as Appended)
      let isRemoved = false
      const remove = Effect.suspend(() => {
        if (isRemoved) return Effect.void
        isRemoved = true
        return removal === "deleted" ? store.delete(session) : Effect.flatMap(
          store.append(session, count, [opened(session), said("on")]),
          () => store.truncate(session, count + 1)
        )
      })
      const entries = yield* Stream.runCollect(
        Stream.mapArrayEffect(store.read(session), (entries) => Effect.as(remove, entries))
      )
      const jump = entries.findIndex(({ version }, index) => version !== index + 1)
      const next = jump < 0 ? undefined : entries[jump]
      yield* Conformance.holds(
        `${removal}: it continues with the snapshot, or reads the old records`,
        next === undefined || (removal === "truncated" && next.record._tag === "Opened")
      )
      const isWhole = (entries.at(-1)?.version ?? 0) >= count
      yield* Conformance.holds(`${removal}: nothing is left out`, isWhole || removal === "deleted")
    }
  }),
  of("delete removes a session entirely, and its id can begin anew", function*(store, id) {
    const other = `${id}-other`
    yield* store.append(id, 0, [opened(id), said("a"), submitted])
    yield* store.append(other, 0, [said("b")])
    yield* store.claim(id, "first", 60_000)
    yield* store.delete(id)
    yield* Conformance.equals("its version", yield* store.version(id), 0)
    yield* Conformance.equals("its records", yield* read(store, id), [])
    yield* Conformance.equals("the list", (yield* listed(store, id)).map((one) => one.id), [other])
    yield* Conformance.equals("work left", yield* isUnfinished(store, id), false)
    yield* Conformance.equals("its owner", (yield* store.claim(id, "second", 60_000)).owner, "second")
    yield* Conformance.equals("the next version", yield* store.append(id, 0, [said("c")]), 1)
    yield* Conformance.equals("its records", texts(yield* read(store, id)), ["c"])
    yield* store.delete(`${id}-never`)
    yield* Conformance.equals("another session", texts(yield* read(store, other)), ["b"])
  })
]

/** Duration longer than any case, in milliseconds. */
const long = 600_000

/** Claims unfinished sessions two at a time until none remain. */
const claimAll = (store: Journal.Service, owner: string) =>
  Effect.gen(function*() {
    const count = (yield* Stream.runCollect(store.unfinished)).length
    const found: Array<string> = []
    for (let round = 0; round <= count; round++) {
      const some = yield* store.claimUnfinished(owner, long, 2)
      yield* Conformance.holds(`at most two at once, got ${some.length}`, some.length <= 2)
      if (some.length === 0) break
      found.push(...some)
      yield* Effect.yieldNow
    }
    return found
  })

const claims: Conformance.Suite<Session.Store> = [
  of("a claim belongs to its owner until released, and others see the owner", function*(store, id) {
    const claim = yield* store.claim(id, "first", long)
    yield* Conformance.equals("the owner", claim.owner, "first")
    yield* Conformance.equals("what another one gets", yield* store.claim(id, "second", 2 * long), claim)
    yield* store.release(id, "second")
    yield* Conformance.equals("after a release by another owner", yield* store.claim(id, "second", long), claim)
    yield* Conformance.equals("another session", (yield* store.claim(`${id}-2`, "second", long)).owner, "second")
    yield* store.release(id, "first")
    yield* Conformance.equals("after the release", (yield* store.claim(id, "second", long)).owner, "second")
  }),
  of("of several owners claiming at once exactly one wins, and all see the winner", function*(store, id) {
    const owners = Array.from({ length: 8 }, (_, index) => `owner ${index}`)
    const found = yield* Effect.forEach(owners, (owner) => store.claim(id, owner, long), {
      concurrency: "unbounded"
    })
    const winners = new Set(found.map(({ owner }) => owner))
    yield* Conformance.equals("number of winners", winners.size, 1)
    yield* Conformance.holds("the winner is one of them", owners.some((owner) => winners.has(owner)))
  }),
  of("a claim ends after its term unless it is renewed", function*(store, id) {
    yield* store.claim(id, "first", 20)
    yield* pass(40)
    yield* Conformance.equals("the next owner", (yield* store.claim(id, "second", 20)).owner, "second")
    const renewed = yield* store.claim(id, "second", long)
    yield* pass(40)
    const held = yield* store.claim(id, "third", long)
    yield* Conformance.equals("the owner that renewed", held, renewed)
    const later = yield* store.claim(id, "second", 2 * long)
    yield* Conformance.holds("a renewal moves the end", later.until > renewed.until)
  }),
  of(
    "renew moves the end of the owner's claim, also after its end, and never takes a claim",
    function*(store, id) {
      const untilOf = Effect.map(store.claimOf(id), (claim) => claim?.until ?? 0)
      yield* Conformance.equals("without a claim", yield* store.renew(id, "first", long), false)
      yield* Conformance.equals("the claim it does not take", yield* store.claimOf(id), undefined)
      const { until } = yield* store.claim(id, "first", long)
      yield* Conformance.equals("its own claim", yield* store.renew(id, "first", 2 * long), true)
      const later = yield* untilOf
      yield* Conformance.holds("a later end", later > until)
      yield* Conformance.equals("a claim of another owner", yield* store.renew(id, "second", 9 * long), false)
      const claim = { owner: "first", until: later }
      yield* Conformance.equals("the claim", yield* store.claimOf(id), claim)
      yield* Conformance.equals("a shorter term", yield* store.renew(id, "first", 20), true)
      yield* pass(40)
      yield* Conformance.equals("after its end", yield* store.renew(id, "first", long), true)
      yield* Conformance.equals("the owner", (yield* store.claim(id, "second", long)).owner, "first")
      yield* Conformance.equals("to its end", yield* store.renew(id, "first", 20), true)
      yield* pass(40)
      yield* store.claim(id, "second", long)
      yield* Conformance.equals("a claim that was taken", yield* store.renew(id, "first", long), false)
      yield* store.release(id, "second")
      yield* Conformance.equals("a claim that was released", yield* store.renew(id, "second", long), false)
    }
  ),
  of("claimOf returns a session's claim, ended or not, and changes nothing", function*(store, id) {
    yield* Conformance.equals("without a claim", yield* store.claimOf(id), undefined)
    const claim = yield* store.claim(id, "first", 20)
    yield* Conformance.equals("the claim", yield* store.claimOf(id), claim)
    yield* Conformance.equals("of another session", yield* store.claimOf(`${id}-2`), undefined)
    yield* pass(40)
    yield* Conformance.equals("after its end", yield* store.claimOf(id), claim)
    const next = yield* store.claim(id, "second", long)
    yield* Conformance.equals("the next claim", yield* store.claimOf(id), next)
    yield* store.release(id, "second")
    yield* Conformance.equals("after the release", yield* store.claimOf(id), undefined)
  }),
  of("list returns each session's claim unless the claim has ended", function*(store, id) {
    const [claimed, ended, free] = [`${id}-claimed`, `${id}-ended`, `${id}-free`]
    yield* Effect.forEach([claimed, ended, free], (id) => store.append(id, 0, [opened(id)]))
    yield* store.claim(`${id}-new`, "first", long)
    yield* store.claim(ended, "first", 20)
    const claim = yield* store.claim(claimed, "first", long)
    yield* pass(40)
    const found = yield* listed(store, id)
    yield* Conformance.equals("the claims", found.map(({ claim, id }) => ({ id, claim })), [
      { id: claimed, claim },
      { id: ended, claim: undefined },
      { id: free, claim: undefined }
    ])
  }),
  of("claimUnfinished returns sessions with work left and no owner, up to a limit", function*(store, id) {
    const name = (what: string) => `${id}-${what}`
    const free = [name("ended"), name("free"), name("new")]
    const others = [name("claimed"), name("done")]
    yield* Effect.forEach([...free, ...others], (id) => store.append(id, 0, [opened(id), submitted]))
    yield* store.append(name("done"), 2, [said("on")], leaving("nothing"))
    yield* store.claim(name("claimed"), "other", long)
    yield* store.claim(name("ended"), "other", 20)
    yield* pass(40)
    const found = yield* claimAll(store, "first")
    yield* Conformance.equals("the sessions", found.filter((one) => one.startsWith(id)).toSorted(), free)
    for (const one of free) {
      yield* Conformance.equals("the owner", (yield* store.claim(one, "second", long)).owner, "first")
    }
  }),
  of(
    "a waiting session is unfinished once its first suspension has expired by the store's clock",
    function*(store, id) {
      const [early, late, open] = [`${id}-early`, `${id}-late`, `${id}-open`]
      const { until } = yield* store.claim(id, "first", 40)
      const waiting = (expiresAt?: number) => ({
        summary: { next: "wait", status: "awaiting_tools", ...(expiresAt === undefined ? {} : { expiresAt }) } as const
      })
      yield* store.append(early, 0, [opened(early)], waiting(until))
      yield* store.append(late, 0, [opened(late)], waiting(until + long))
      yield* store.append(open, 0, [opened(open)], waiting())
      const own = (found: ReadonlyArray<string>) => found.filter((one) => one.startsWith(`${id}-`))
      yield* pass(80)
      yield* Conformance.equals("unfinished", own(yield* Stream.runCollect(store.unfinished)), [early])
      yield* Conformance.equals("claimed", own(yield* claimAll(store, "second")), [early])
    }
  ),
  of("owners calling claimUnfinished at once get each session once", function*(store, id) {
    const ids = Array.from({ length: 12 }, (_, index) => `${id}-${String(index).padStart(2, "0")}`)
    yield* Effect.forEach(ids, (id) => store.append(id, 0, [opened(id), submitted]))
    const found = yield* Effect.forEach(["a", "b", "c", "d"], (owner) => claimAll(store, owner), {
      concurrency: "unbounded"
    })
    // A concurrent owner may have found nothing: it asks again.
    const rest = yield* claimAll(store, "e")
    const mine = [...found.flat(), ...rest].filter((one) => ids.includes(one))
    yield* Conformance.equals("the sessions", mine.toSorted(), ids)
  }),
  of("claimUnfinished returns every session in turn, even if no session is ever finished", function*(store, id) {
    const ids = ["a", "b", "c"].map((name) => `${id}-${name}`)
    yield* Effect.forEach(ids, (id) => store.append(id, 0, [opened(id), submitted]))
    const count = (yield* Stream.runCollect(store.unfinished)).length
    const found = new Set<string>()
    for (let round = 0; round < count; round++) {
      for (const one of yield* store.claimUnfinished("first", 1, 1)) found.add(one)
      yield* pass(3)
    }
    yield* Conformance.equals("those that never came", ids.filter((one) => !found.has(one)), [])
  })
]

/**
 * Cases every store must pass.
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
 */
export const all: Conformance.Suite<Session.Store> = [
  ...versions,
  ...conflicts,
  ...contents,
  ...lists,
  ...removals,
  ...claims
]
