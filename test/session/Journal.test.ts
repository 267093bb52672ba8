/**
 * The memory layer of the session store, held to the suite that every store is held to, and the suite to stores that
 * break it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Struct from "effect/Struct"
import * as TestClock from "effect/testing/TestClock"
import { Journal, Message, Session, Tool } from "heddle"
import { Conformance, Script, StoreSuite } from "heddle/testing"
import * as Journals from "../../src/internal/session/journal.ts"
import { shareOf } from "../support/property.ts"
import { untouched } from "../support/stores.ts"
import { approvedTurn, deniedTurn, turn } from "../support/turns.ts"

const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

describe("Session.Store: memory", () => {
  Conformance.register(StoreSuite.all, Session.Store.layerMemory, it)

  it.effect("an append to a long journal takes no longer than an append to a short journal", () =>
    Effect.gen(function*() {
      const store = yield* Session.Store
      let touched = 0
      const record = (text: string) =>
        new Proxy(said(text), { get: (target, key) => (touched++, Reflect.get(target, key)) })
      const count = (version: number) =>
        Effect.gen(function*() {
          touched = 0
          yield* store.append("long", version, [record("x")])
          return touched
        })
      const first = yield* count(0)
      for (let version = 1; version < 500; version++) yield* store.append("long", version, [record("x")])
      assert.strictEqual(yield* count(500), first)
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("a store with a session's version and without its records", () => {
  it.live("M-25: Session.open reads a journal without its records once more, and reports the journal as damaged", () =>
    Effect.gen(function*() {
      let reads = 0
      const store: Journal.Service = {
        ...untouched,
        append: (id, expected) => Effect.fail(new Journal.SessionConflict({ id, expected, actual: 7 })),
        version: () => Effect.succeed(7),
        read: () => Stream.fromIterableEffect(Effect.sync(() => (reads++, [])))
      }
      const error = yield* Effect.flip(Session.open("s")).pipe(
        Effect.provideService(Session.Store, store)
      )
      assert.deepInclude(error, { _tag: "StoreError", reason: "unreadable", operation: "read", version: 1 })
      assert.strictEqual(reads, 2)
    }))
})

describe("the text of a record", () => {
  const { fromText, toText } = Journals

  it.effect("M-26: a record's text names its version and is refused at another version, and a text without a version is read at every version", () =>
    Effect.gen(function*() {
      const text = yield* toText("s", said("a"), 3)
      assert.deepStrictEqual(yield* fromText("s", text, 3), said("a"))
      assert.deepStrictEqual(yield* fromText("s", text), said("a"))
      assert.deepStrictEqual(yield* fromText("s", yield* toText("s", said("a")), 9), said("a"))
      const error = yield* Effect.flip(fromText("s", text, 4))
      assert.deepInclude(error, {
        reason: "unreadable",
        version: 4,
        cause: "the record of version 3 stands in its place"
      })
    }))
})

describe("the text of a call", () => {
  const { fromText, toText } = Journals

  it.effect("a call's text has the arguments once, unless the raw arguments of the model differ", () =>
    Effect.gen(function*() {
      for (const rawArguments of ["{ \"line\": 7 }", "{\"line\": 8}", "{\"line\":"]) {
        const toolCall = { ...Message.toolCall("c0", "read", { line: 7 }), rawArguments }
        const record: Journal.Record = {
          _tag: "CallStarted",
          requestId: "r",
          toolCallId: "c0",
          toolCall,
          attempt: 1,
          idempotencyKey: "k"
        }
        const text = yield* toText("s", record)
        assert.strictEqual("arguments" in JSON.parse(text).toolCall, rawArguments !== "{ \"line\": 7 }")
        assert.deepStrictEqual(yield* fromText("s", text), record)
      }
    }))
})

describe("a long journal", () => {
  const { fromText, toText } = Journals

  /** The texts of a journal of so many turns, written once. */
  const written = (turns: number, turn: (n: number) => ReadonlyArray<Journal.Record>) =>
    Effect.gen(function*() {
      const opened: Journal.Record = { _tag: "Opened", format: 1, session: Session.make({ id: "s" }) }
      const records = [opened, ...Array.from({ length: turns }, (_, n) => turn(n)).flat()]
      assert.deepStrictEqual(Journal.check(records.slice(0, 40)), [])
      const texts = yield* Effect.forEach(records, (record, index) => toText("s", record, index + 1))
      const store: Journal.Service = {
        ...untouched,
        version: () => Effect.succeed(texts.length),
        read: (id, after = 0) =>
          Stream.mapEffect(
            Stream.fromIterable(texts.slice(after).entries()),
            ([index, text]) => Effect.map(fromText(id, text), (record) => ({ version: after + index + 1, record }))
          )
      }
      return store
    })

  /** The shortest of three loads, in milliseconds of the processor. */
  const millis = (turns: number, turn: (n: number) => ReadonlyArray<Journal.Record>) =>
    Effect.gen(function*() {
      const store = yield* written(turns, turn)
      let shortest = Infinity
      for (let round = 0; round < 3; round++) {
        const before = process.cpuUsage()
        const kept = yield* Effect.provideService(Session.load("s"), Session.Store, store)
        const { system, user } = process.cpuUsage(before)
        shortest = Math.min(shortest, (system + user) / 1000)
        assert.strictEqual(kept?.session.thread.messages.length, 4 * turns)
      }
      return shortest
    })

  /** The longer a journal, the more its growth outweighs what each turn costs by itself. */
  const most = Math.max(2000, shareOf(10_000))

  const turns = { "with a call": turn, "with a denied call": deniedTurn, "with an approved call": approvedTurn }
  for (const [kind, record] of Object.entries(turns)) {
    it.live(
      `Q-09, M-27: four times the turns ${kind} take four times as long to load, not sixteen times`,
      () =>
        Effect.gen(function*() {
          const short = yield* millis(most / 4, record)
          const long = yield* millis(most, record)
          assert.isBelow(long / short, 8, `${most / 4} turns took ${short} ms, ${most} took ${long} ms`)
        })
    )
  }

  it.effect("M-27: a loaded session is plain data", () =>
    Effect.gen(function*() {
      const kept = yield* Effect.provideService(Session.load("s"), Session.Store, yield* written(200, turn))
      const thread = kept === undefined ? {} : kept.session.thread
      assert.isArray(Object.getOwnPropertyDescriptor(thread, "messages")?.value)
    }))
})

describe("an oversized record", () => {
  it.effect("D-26: an oversized record ends the operation with the name of the record and its call, and 1 MB is kept", () =>
    Effect.gen(function*() {
      const dump = Tool.make("dump", {
        parameters: { megabytes: Schema.Finite },
        maxResultChars: 0,
        handler: ({ megabytes }) => Effect.succeed("x".repeat(megabytes * 1_000_000))
      })
      const asking = (megabytes: number) =>
        Effect.gen(function*() {
          const opened = yield* Session.open(`${megabytes} MB`)
          return yield* Session.keep(opened, (session) => Session.reply(session, "Dump it", { tools: [dump] }))
        }).pipe(Effect.provide(Script.layer([
          [Script.toolCall("c0", "dump", { megabytes }), Script.finish("tool_calls")],
          [Script.text("Done."), Script.finish("stop")]
        ])))
      const small = Effect.provideService(asking(1), Journal.MaxRecordBytes, 100_000)
      assert.deepInclude(yield* Effect.flip(small), { reason: "too_large", maxBytes: 100_000 })
      yield* Session.delete("1 MB")
      assert.strictEqual((yield* asking(1)).session.status, "completed")
      const error = yield* Effect.flip(asking(9))
      assert.instanceOf(error, Journal.StoreError)
      assert.deepInclude(error, {
        reason: "too_large",
        record: "CallEnded",
        toolCallId: "c0",
        maxBytes: 8 * 1024 * 1024
      })
      assert.match(
        error.message,
        /^the record CallEnded of call "c0" of session "9 MB" has 90\d{5} bytes, more than the 8388608 of Journal.MaxR/
      )
      const loaded = yield* Session.load("9 MB")
      assert.strictEqual(loaded?.interrupted?.calls.length, 1)
      assert.notProperty(loaded?.interrupted?.calls[0], "message")
    }).pipe(Effect.provide(Session.Store.layerMemory)))
})

describe("an oversized reply", () => {
  it.effect("D-26: an oversized reply ends the operation, and none of its calls starts", () =>
    Effect.gen(function*() {
      let runs = 0
      const take = Tool.make("take", {
        parameters: { text: Schema.String },
        handler: () => Effect.sync(() => ++runs)
      })
      const opened = yield* Session.open("s")
      const error = yield* Effect.flip(
        Session.keep(opened, (session) => Session.reply(session, "Take it", { tools: [take] }))
      )
      assert.instanceOf(error, Journal.StoreError)
      assert.deepInclude(error, { reason: "too_large", record: "ReplyReceived", maxBytes: 100_000 })
      assert.strictEqual(runs, 0)
      const loaded = yield* Session.load("s")
      assert.deepStrictEqual(loaded?.interrupted?.calls, [])
    }).pipe(
      Effect.provide(Script.layer([
        [Script.toolCall("c0", "take", { text: "x".repeat(200_000) }), Script.finish("tool_calls")],
        [Script.text("Done."), Script.finish("stop")]
      ])),
      Effect.provideService(Journal.MaxRecordBytes, 100_000),
      Effect.provide(Session.Store.layerMemory)
    ))
})

const broken = (change: (store: Journal.Service) => Partial<Journal.Service>) =>
  Layer.effect(
    Session.Store,
    Effect.map(Session.Store, (store) => ({ ...store, ...change(store) }))
  ).pipe(Layer.provide(Session.Store.layerMemory))

describe("the conformance suite for stores", () => {
  const faults: Record<string, readonly [layer: Layer.Layer<Session.Store>, expected: string]> = {
    "appends at any version": [
      broken((store) => ({
        append: (id, _expected, records, options) =>
          Effect.flatMap(store.version(id), (version) => store.append(id, version, records, options))
      })),
      "SessionConflict"
    ],
    "a batch torn in two": [
      broken((store) => ({
        append: (id, expected, records, options) =>
          Effect.gen(function*() {
            let version = expected
            for (const record of records) {
              version = yield* store.append(id, version, [record], options)
              yield* Effect.yieldNow
            }
            return version
          })
      })),
      "all succeed, with adjacent records"
    ],
    "one journal for all sessions": [
      broken((store) => ({
        append: (_id, expected, records, options) => store.append("all", expected, records, options),
        read: (_id, after) => store.read("all", after)
      })),
      "sessions are separate"
    ],
    "a missing page": [
      broken((store) => ({ read: (id, after) => Stream.take(store.read(id, after), 128) })),
      "read whole"
    ],
    "reads that begin at the start": [broken((store) => ({ read: (id) => store.read(id) })), "after the given version"],
    "work that is never done": [
      broken((store) => ({ unfinished: Stream.map(store.list(), (listed) => listed.id) })),
      "if the summary of its last append says so"
    ],
    "appends without their names": [
      broken((store) => ({
        append: (id, expected, records, { summary } = {}) =>
          store.append(id, expected, records, summary === undefined ? {} : { summary })
      })),
      "an append repeated under its name adds nothing"
    ],
    "names that are forgotten behind a command": [
      broken((store) => ({
        append: (id, expected, records, options) =>
          store.append(id, expected, records, { name: `${id} ${expected}`, ...options })
      })),
      "an append repeated under its name adds nothing"
    ],
    "summaries that are lost": [
      broken((store) => ({
        append: (id, expected, records, { name } = {}) =>
          store.append(id, expected, records, name === undefined ? {} : { name })
      })),
      "if the summary of its last append says so"
    ],
    "a submitted message that is not found": [
      broken((store) => ({
        append: (id, expected, records, options = {}) =>
          store.append(id, expected, records, { summary: { next: "nothing", status: "idle" }, ...options })
      })),
      "a new session may begin with work left"
    ],
    "a summary without one field": [
      broken((store) => ({
        list: (options) => Stream.map(store.list(options), (listed) => Struct.omit(listed, ["lastLine"]))
      })),
      "each summary field"
    ],
    "a list that ignores the status": [
      broken((store) => ({ list: ({ prefix = "" } = {}) => store.list({ prefix }) })),
      "with a status return only its sessions"
    ],
    "counts of an earlier status": [
      broken((store) => {
        const first = new Map<string, Session.Status>()
        return {
          append: (id, expected, records, options) => {
            if (options?.summary !== undefined && !first.has(id)) first.set(id, options.summary.status)
            return store.append(id, expected, records, options)
          },
          count: (options) =>
            Effect.map(
              Stream.runCollect(store.list(options)),
              (listed) => Journals.countsOf(listed.map(({ id }) => [first.get(id) ?? "idle", 1]))
            )
        }
      }),
      "with a status return only its sessions"
    ],
    "a time that begins anew with each append": [
      broken((store) => ({
        list: (options) => Stream.map(store.list(options), (listed) => ({ ...listed, since: listed.version }))
      })),
      "since when its work is left"
    ],
    "a list that ignores the prefix": [broken((store) => ({ list: () => store.list() })), "only ids with the prefix"],
    "truncations that remove nothing": [broken(() => ({ truncate: () => Effect.void })), "begins with the snapshot"],
    "a truncation that does not look for a snapshot": [
      broken(() => ({ truncate: () => Effect.void })),
      "dies, and removes nothing"
    ],
    "a deletion that leaves the claim": [
      broken((store) => {
        const claims = new Map<string, string>()
        return {
          claim: (id, owner, term) => store.claim(id, claims.get(id) ?? (claims.set(id, owner), owner), term)
        }
      }),
      "removes a session entirely"
    ],
    "a claim for every owner": [
      broken(() => ({ claim: (_id, owner, term) => Effect.succeed({ owner, until: term }) })),
      "exactly one wins"
    ],
    "claims that never end": [
      broken((store) => ({ claim: (id, owner) => store.claim(id, owner, 1_000_000) })),
      "ends after its term"
    ],
    "claims that anyone releases": [
      broken((store) => ({
        release: (id) => Effect.flatMap(store.claim(id, "", 0), ({ owner }) => store.release(id, owner))
      })),
      "others see the owner"
    ],
    "renewals that take a free claim": [
      broken((store) => ({
        renew: (id, owner, term) => Effect.map(store.claim(id, owner, term), (claim) => claim.owner === owner)
      })),
      "never takes a claim"
    ],
    "renewals that do nothing": [
      broken((store) => ({ renew: (id, owner) => Effect.map(store.claimOf(id), (claim) => claim?.owner === owner) })),
      "moves the end"
    ],
    "renewals that end with the claim": [
      broken((store) => ({
        renew: (id, owner, term) =>
          Effect.gen(function*() {
            const claim = yield* store.claimOf(id)
            const now = yield* Clock.currentTimeMillis
            return claim !== undefined && claim.until > now && (yield* store.renew(id, owner, term))
          })
      })),
      "also after its end"
    ],
    "claims that cannot be seen after their end": [
      broken((store) => ({
        claimOf: (id) =>
          Effect.zipWith(
            store.claimOf(id),
            Clock.currentTimeMillis,
            (claim, now) => claim !== undefined && claim.until > now ? claim : undefined
          )
      })),
      "ended or not"
    ],
    "a list without claims": [
      broken((store) => ({ list: (options) => Stream.map(store.list(options), Struct.omit(["claim"])) })),
      "list returns each session's claim"
    ],
    "a list with claims that have ended": [
      broken((store) => ({
        list: (options) =>
          Stream.mapEffect(
            store.list(options),
            (listed) =>
              Effect.map(store.claimOf(listed.id), (claim) => claim === undefined ? listed : { ...listed, claim })
          )
      })),
      "list returns each session's claim"
    ],
    "unfinished sessions for every owner": [
      broken((store) => ({
        claimUnfinished: (_owner, _term, limit) => Stream.runCollect(Stream.take(store.unfinished, limit))
      })),
      "get each session once"
    ],
    "waits that never expire": [
      broken((store) => ({
        append: (id, expected, records, { summary, ...options } = {}) =>
          store.append(
            id,
            expected,
            records,
            summary === undefined ? options : { ...options, summary: { next: summary.next, status: summary.status } }
          )
      })),
      "once its first suspension has expired"
    ],
    "waits that have expired from the beginning": [
      broken((store) => ({
        unfinished: Stream.map(
          Stream.filter(store.list(), ({ next }) => next !== "nothing"),
          ({ id }) => id
        )
      })),
      "once its first suspension has expired"
    ],
    "expired waits that no owner gets": [
      broken((store) => ({
        claimUnfinished: (owner, term, limit) =>
          Effect.gen(function*() {
            const ids = yield* store.claimUnfinished(owner, term, limit)
            const waiting = Stream.filter(store.list(), ({ id, next }) => next === "wait" && ids.includes(id))
            const rest = yield* Stream.runCollect(Stream.map(waiting, ({ id }) => id))
            return ids.filter((id) => !rest.includes(id))
          })
      })),
      "once its first suspension has expired"
    ],
    "ids that ignore case (N-41)": [
      broken((store) => ({
        append: (id, expected, records, options) => store.append(id.toLowerCase(), expected, records, options),
        read: (id, after) => store.read(id.toLowerCase(), after),
        version: (id) => store.version(id.toLowerCase())
      })),
      "differing only in case"
    ],
    "prefixes that ignore case (N-41)": [
      broken((store) => ({
        list: ({ prefix = "" } = {}) =>
          Stream.filter(store.list(), ({ id }) => id.toLowerCase().startsWith(prefix.toLowerCase()))
      })),
      "differing only in case"
    ],
    "claims that ignore case (N-41)": [
      broken((store) => ({ claim: (id, owner, term) => store.claim(id.toLowerCase(), owner, term) })),
      "differing only in case"
    ],
    "claims of always the same unfinished sessions": [
      broken((store) => ({
        claimUnfinished: (owner, term, limit) =>
          Stream.runCollect(Stream.filterEffect(
            Stream.take(store.unfinished, limit),
            (id) => Effect.map(store.claim(id, owner, term), (claim) => claim.owner === owner)
          ))
      })),
      "returns every session in turn"
    ]
  }

  for (const [fault, [layer, expected]] of Object.entries(faults)) {
    it.effect(`the suite finds a store with ${fault}`, () =>
      Effect.gen(function*() {
        const failures = yield* Conformance.failures(StoreSuite.all, layer).pipe(
          Effect.provideService(StoreSuite.Passing, TestClock.adjust)
        )
        assert.isTrue(failures.some((failure) => failure.message.includes(expected)), failures.map(String).join("\n"))
      }))
  }
})
