/**
 * The journal store: its operations, its errors, a record's text form, and paged reading. This file's store keeps
 * journals in memory. Public as `Journal`.
 *
 * **Details**
 *
 * A store keeps three things beside a session's records, so that any process can find and continue the session:
 *
 * - The session summary: the work left, and since when. The writer passes the summary with each append.
 * - The name of the last append, which identifies an append repeated after an uncertain failure.
 * - The session claim: its owner and its end. A claim determines which owner should act. The journal enforces this: an
 *   append based on an outdated version is refused.
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Json from "../json.ts"
import type * as SessionData from "./data.ts"
import * as Records from "./records.ts"
import type * as States from "./state.ts"

/**
 * The journal has changed since it was read, by another program or by this one, including a failed or interrupted
 * operation. Nothing was appended. Load the session and decide again.
 *
 * @category errors
 */
export class SessionConflict extends Schema.TaggedError<SessionConflict>("heddle/Journal/SessionConflict")(
  "SessionConflict",
  {
    /** Session id. */
    id: Schema.String,
    /** Version the append was based on. */
    expected: Schema.Int,
    /** Current journal version. */
    actual: Schema.Int
  }
) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return `session ${session} is at version ${this.actual}, not ${this.expected}: it has been written to since it was `
      + "read, by another program or by this one; load it again"
  }
}

Json.addError("SessionConflict", SessionConflict)

/** Failure cause for an operation whose append was abandoned. */
const givenUp = "an append was given up: it did not end within the grace period, and may have been written or not"

/**
 * A store operation failed. After a failed append the journal contains all of its records or none at all; reading shows
 * which.
 *
 * @category errors
 */
export class StoreError extends Schema.TaggedError<StoreError>("heddle/Journal/StoreError")("StoreError", {
  /**
   * `unavailable`: the store did not carry out the operation. `full`: no space is left. `read_only`: the store cannot
   * be written. `too_large`: a record exceeds the store's limit. `unreadable`: the stored data is not a journal.
   * `newer_version`: a later release wrote the data.
   */
  reason: Schema.Literals(["unavailable", "full", "read_only", "too_large", "unreadable", "newer_version"]),
  /** Failed operation: the name of a `Journal.Service` member. */
  operation: Schema.Literals([
    "append",
    "version",
    "read",
    "unfinished",
    "list",
    "count",
    "truncate",
    "delete",
    "claim",
    "renew",
    "claimOf",
    "release",
    "claimUnfinished"
  ]),
  /** Session id. Left out if the operation concerns all sessions. */
  id: Schema.optionalKey(Schema.String),
  /**
   * First damaged version of a journal: its record is missing, invalid, or belongs elsewhere. Earlier records are
   * intact.
   */
  version: Schema.optionalKey(Schema.Int),
  /** Kind of the oversized record. */
  record: Schema.optionalKey(Schema.String),
  /** Call the record is about, if about a single call. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** Record size in bytes. */
  bytes: Schema.optionalKey(Schema.Int),
  /** Largest allowed size in bytes. */
  maxBytes: Schema.optionalKey(Schema.Finite),
  /** Database error, or a description of the damage. */
  cause: Schema.optionalKey(Json.Opaque)
}) {
  override get message(): string {
    const session = this.id === undefined ? "all sessions" : `session ${JSON.stringify(this.id)}`
    const asked = `(${this.operation} of ${session})`
    switch (this.reason) {
      case "unavailable":
        if (this.cause === givenUp) return `${givenUp} ${asked}; load the session again`
        return `the store is unavailable ${asked}; try again, and load a session again before the next operation`
      case "full":
        return `the store is full ${asked}: nothing was written; make room, and load the session again`
      case "read_only":
        return `the store is read-only ${asked}: nothing was written; open it for writing`
      case "too_large": {
        const call = this.toolCallId === undefined ? "" : ` of call ${JSON.stringify(this.toolCallId)}`
        return `the record ${this.record}${call} of ${session} has ${this.bytes} bytes, more than the ${this.maxBytes} `
          + "of Journal.MaxRecordBytes: store large data elsewhere and return a reference, or raise the limit"
      }
      case "newer_version":
        return `a newer release of Heddle has written the journal of ${session}${
          this.version === undefined ? "" : ` at version ${this.version}`
        }: upgrade to read it`
      case "unreadable":
        return this.version === undefined
          ? `the store is unreadable ${asked}`
          : `the journal of ${session} is damaged at version ${this.version}`
    }
  }
}

Json.addError("StoreError", StoreError)

/** Returns the error for an operation needing data an abandoned append may have written. */
export const appendGivenUp = (id: string): StoreError =>
  new StoreError({ reason: "unavailable", operation: "append", id, cause: givenUp })

/** Returns the error for a journal damaged from a version on. */
export const damaged = (id: string, version: number, cause: unknown): StoreError =>
  new StoreError({ reason: "unreadable", operation: "read", id, version, cause })

/**
 * A session, as listed by a store.
 *
 * @category models
 */
export interface Listed extends States.Summary {
  /** Session id. */
  readonly id: string
  /** Journal version. */
  readonly version: number
  /** Time since which `next` applies, in milliseconds since 1970 by the store's clock. */
  readonly since: number
  /** Session claim. Left out if absent or ended by the store's clock. */
  readonly claim?: Claim
}

/**
 * Data kept by a store with an append.
 *
 * @category options
 */
export interface AppendOptions {
  /**
   * Unique name for this append. Repeating the last named append adds nothing and succeeds with the version reached the
   * first time. Unnamed appends do not change the last named append.
   */
  readonly name?: string
  /**
   * Session summary after the records. Without a summary the old one is kept, except that a `MessageSubmitted` turns
   * `"nothing"` into `"reply"`.
   */
  readonly summary?: States.Summary
}

/**
 * Options for listing sessions.
 *
 * @category options
 */
export interface ListOptions {
  /** Id prefix. Empty by default: all sessions. */
  readonly prefix?: string
  /** Session status. Defaults to any status. */
  readonly status?: SessionData.Status
}

/**
 * Number of sessions per status.
 *
 * @category models
 */
export type Counts = Readonly<Record<SessionData.Status, number>>

/**
 * Returns the counts by status, including zeros. Every store uses this function.
 *
 * **Example** (The numbers that a database has counted)
 *
 * ```ts import.meta.vitest
 * import { Journal } from "heddle"
 *
 * const { completed, error, idle } = Journal.countsOf([["completed", 7], ["error", 1]])
 *
 * const counts = [completed, error, idle] // => [7, 1, 0]
 * ```
 *
 * @category stores
 */
export const countsOf = (found: Iterable<readonly [status: SessionData.Status, count: number]>): Counts => {
  const counts = { idle: 0, awaiting_user: 0, awaiting_tools: 0, completed: 0, stopped: 0, error: 0 }
  for (const [status, count] of found) counts[status] += count
  return counts
}

/**
 * Owner and end of a claim.
 *
 * @category models
 */
export interface Claim {
  /** Owner name. */
  readonly owner: string
  /** End of the claim unless renewed, in milliseconds since 1970 by the store's clock. */
  readonly until: number
}

/**
 * A journal store, with one journal per session id. `StoreSuite` in `heddle/testing` checks the contract.
 *
 * @category models
 */
export interface Service {
  /**
   * Adds records after version `expected`, 0 for a session without records, and succeeds with the new version. All
   * records are added or none at all: fails with {@link SessionConflict} if the journal is at any other version. A
   * successful append is durable. Its cost depends on the appended records, not on the journal's length.
   */
  readonly append: (
    id: string,
    expected: number,
    records: Records.Records,
    options?: AppendOptions
  ) => Effect.Effect<number, SessionConflict | StoreError>
  /** Returns the number of records ever appended, 0 for a session without any. */
  readonly version: (id: string) => Effect.Effect<number, StoreError>
  /**
   * Reads the records after version `after` (default 0), oldest first and without gaps, at least up to the last record
   * that existed when reading began. Holds a bounded part of the journal in memory. A truncated journal begins with its
   * snapshot; if truncated during reading, the reading continues with the snapshot.
   */
  readonly read: (id: string, after?: number) => Stream.Stream<Records.Entry, StoreError>
  /**
   * Lists the ids of sessions an owner can continue: `next` is `"resume"`, `"reply"` or `"continue"`, or is `"wait"`
   * with `expiresAt` passed by the store's clock. Its cost depends on their number, not on the number of all sessions.
   */
  readonly unfinished: Stream.Stream<string, StoreError>
  /** Lists the sessions matching prefix and status, in no particular order. */
  readonly list: (options?: ListOptions) => Stream.Stream<Listed, StoreError>
  /** Counts the sessions `list` would list, by status. */
  readonly count: (options?: ListOptions) => Effect.Effect<Counts, StoreError>
  /**
   * Removes the records below version `before`, whose record must be an `Opened`, the snapshot; dies otherwise. The
   * journal version does not change. Does nothing if the records or the session do not exist.
   */
  readonly truncate: (id: string, before: number) => Effect.Effect<void, StoreError>
  /** Removes a session's journal and claim; its version is then 0. */
  readonly delete: (id: string) => Effect.Effect<void, StoreError>
  /**
   * Claims a session for `termMillis` milliseconds if its claim is free, has ended by the store's clock, or belongs to
   * the same owner, which renews it. Succeeds with the claim now in force: compare its owner with yours. The session
   * need not exist.
   */
  readonly claim: (id: string, owner: string, termMillis: number) => Effect.Effect<Claim, StoreError>
  /**
   * Moves the end of a claim to `termMillis` milliseconds from now by the store's clock and succeeds with `true`, if
   * the claim belongs to the owner: even after its end, unless another owner has taken it over. Succeeds with `false`
   * if the claim was taken by another owner, released or revoked. Never takes a claim.
   */
  readonly renew: (id: string, owner: string, termMillis: number) => Effect.Effect<boolean, StoreError>
  /** Returns a session's claim, ended or not, or `undefined`. Changes nothing. */
  readonly claimOf: (id: string) => Effect.Effect<Claim | undefined, StoreError>
  /** Ends a session's claim if it belongs to the owner. */
  readonly release: (id: string, owner: string) => Effect.Effect<void, StoreError>
  /**
   * Claims up to `limit` sessions from `unfinished` with a free or ended claim, longest ended first, and succeeds with
   * their ids. Concurrent owners get different sessions.
   */
  readonly claimUnfinished: (
    owner: string,
    termMillis: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<string>, StoreError>
}

const unfinished: ReadonlySet<States.Next> = new Set<States.Next>(["resume", "reply", "continue"])

/** Returns `true` if an owner can do the work left. */
export const isUnfinished = (next: States.Next): boolean => unfinished.has(next)

/**
 * Returns the time from which a session is unfinished, in milliseconds since 1970: 0 if work is left, the first expiry
 * if a call waits, and `null` otherwise. A store keeping this value beside the summary finds unfinished sessions by an
 * index.
 *
 * **Example** (An approval that expires)
 *
 * ```ts import.meta.vitest
 * import { Journal } from "heddle"
 *
 * Journal.dueOf({ next: "reply", status: "idle" }) // => 0
 * Journal.dueOf({ next: "wait", status: "awaiting_tools", expiresAt: 1_700_000_000_000 }) // => 1_700_000_000_000
 * Journal.dueOf({ next: "nothing", status: "completed" }) // => null
 * ```
 *
 * @category stores
 */
export const dueOf = ({ expiresAt, next }: States.Summary): number | null => {
  if (isUnfinished(next)) return 0
  return next === "wait" ? expiresAt ?? null : null
}

/** Summary of a session before any append has set its own. */
const unsaid: States.Summary = { next: "nothing", status: "idle" }

/**
 * Returns a session's summary after an append. `before` is the previous summary, `undefined` for the first append.
 * Every store uses this function, so all stores agree.
 *
 * **Example** (A message for a session that has nothing left to do)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 *
 * const submitted: Journal.Record = { _tag: "MessageSubmitted", id: "m1", message: Message.user("Hi") }
 *
 * Journal.summaryAfter({ next: "nothing", status: "idle" }, [submitted]).next // => "reply"
 * Journal.summaryAfter({ next: "wait", status: "awaiting_user" }, [submitted]).next // => "wait"
 * ```
 *
 * @category stores
 */
export const summaryAfter = (
  before: States.Summary | undefined,
  records: ReadonlyArray<Records.Record>,
  { summary }: AppendOptions = {}
): States.Summary => {
  if (summary !== undefined) return summary
  const known = before ?? unsaid
  const isSubmitted = known.next === "nothing" && records.some(({ _tag }) => _tag === "MessageSubmitted")
  return isSubmitted ? { ...known, next: "reply" } : known
}

const RecordText = Schema.toCodecJson(Records.Record)

const encode = Schema.encodeEffect(RecordText)
const decode = Schema.decodeUnknownEffect(RecordText)

// A reply contains its content twice: in its fields, and in its message. A call has its arguments both parsed and as
// text. A journal stores each only once.

type Mutable = Record<string, unknown>

/** Marks message calls equal to the reply's, or equal without the argument text. */
const same = "same"
const parsed = "parsed"

/** Marks content equal to the reply's text. */
const text = true

const withoutText = (call: unknown): unknown => {
  if (!Json.isObject(call)) return call
  const { rawArguments: _, ...parsed } = call
  return parsed
}

const parsedCalls = (calls: unknown): unknown => Array.isArray(calls) ? calls.map(withoutText) : calls

/** Returns `true` if a text parses to these arguments. It usually equals their JSON and need not be parsed. */
const isTextOf = (text: string, args: unknown): boolean => {
  if (text === JSON.stringify(args)) return true
  const parsed = Json.parse(text)
  return Result.isSuccess(parsed) && Json.isSame(parsed.success, args)
}

const shortCall = (call: unknown): unknown => {
  if (!Json.isObject(call)) return call
  const { arguments: args, ...short } = call
  return typeof short["rawArguments"] === "string" && isTextOf(short["rawArguments"], args) ? short : call
}

const wholeCall = (call: unknown): unknown =>
  Json.isObject(call) && !("arguments" in call) && typeof call["rawArguments"] === "string"
    ? { ...call, arguments: Result.getOrUndefined(Json.parse(call["rawArguments"])) }
    : call

const shortReply = (response: Json.JsonObject): Json.JsonObject => {
  const { message, outputText, toolCalls } = response
  const calls = Array.isArray(toolCalls) ? toolCalls.map(shortCall) : toolCalls
  if (!Json.isObject(message)) return { ...response, toolCalls: calls }
  const short: Mutable = { ...message }
  if (Json.isSame(message["toolCalls"], toolCalls)) short["toolCalls"] = same
  else if (Json.isSame(message["toolCalls"], parsedCalls(toolCalls))) short["toolCalls"] = parsed
  if (message["content"] === (outputText ?? "")) short["content"] = text
  return { ...response, message: short, toolCalls: calls }
}

const wholeReply = (response: Json.JsonObject): Json.JsonObject => {
  const { message, outputText, toolCalls } = response
  const calls = Array.isArray(toolCalls) ? toolCalls.map(wholeCall) : toolCalls
  if (!Json.isObject(message)) return { ...response, toolCalls: calls }
  const whole: Mutable = { ...message }
  if (message["toolCalls"] === same) whole["toolCalls"] = calls
  else if (message["toolCalls"] === parsed) whole["toolCalls"] = parsedCalls(calls)
  if (message["content"] === text) whole["content"] = outputText ?? ""
  return { ...response, message: whole, toolCalls: calls }
}

/** Difference between a record and its text. */
interface Change {
  readonly reply: (response: Json.JsonObject) => Json.JsonObject
  readonly call: (call: unknown) => unknown
}

const short: Change = { reply: shortReply, call: shortCall }
const whole: Change = { reply: wholeReply, call: wholeCall }

/** Changes the reply in a record's JSON, or the call started before its reply. */
const changed = (json: unknown, { call, reply }: Change): unknown => {
  if (!Json.isObject(json)) return json
  if (Json.isObject(json["response"])) return { ...json, response: reply(json["response"]) }
  return Json.isObject(json["toolCall"]) ? { ...json, toolCall: call(json["toolCall"]) } : json
}

/** Last member of a text: a checksum over everything before. */
const sumPattern = /,"sum":"([0-9a-f]{8})"\}$/

const sumOf = (text: string): string => Records.hash(text).slice(0, 8)

const summed = (text: string): string => `${text.slice(0, -1)},"sum":"${sumOf(text.slice(0, -1))}"}`

/** Returns `true` if a text is unaltered. */
const isSummed = (text: string): boolean => {
  const found = sumPattern.exec(text.slice(-18))
  return found !== null && found[1] === sumOf(text.slice(0, -found[0].length))
}

/**
 * Returns a record as the single JSON line kept by a store. Non-JSON values are rendered. `version` adds the record's
 * position to the text, and its last member is a checksum, so reading detects misplaced and altered records.
 */
export const toText = (id: string, record: Records.Record, version?: number): Effect.Effect<string, StoreError> =>
  encode(record).pipe(
    Effect.map((json) => changed(json, short) as Json.JsonObject),
    Effect.map((json) => summed(JSON.stringify(version === undefined ? json : { version, ...json }))),
    Effect.mapError((cause) => new StoreError({ reason: "unreadable", operation: "append", id, cause: cause.message }))
  )

/** Returns the version stored in a text. */
const versionOf = (json: unknown): number | undefined => {
  const version = Json.isObject(json) ? json["version"] : undefined
  return typeof version === "number" ? version : undefined
}

/** Record kinds known to this release. */
const kinds: ReadonlySet<string> = new Set(Object.keys(Records.Record.cases))

/** Describes the part of a text unknown to this release: another record kind, or a later format. */
const newer = (json: unknown): string | undefined => {
  const { _tag: kind, format } = Json.isObject(json) ? json : {}
  if (typeof kind === "string" && !kinds.has(kind)) return `this release does not know the record ${kind}`
  return typeof format === "number" && format > 1 ? `this release does not know format ${format}` : undefined
}

/**
 * Parses a text from {@link toTexts}. Any other text is `unreadable`, including an altered text and a text with another
 * version than given. An unknown record kind is a `newer_version`.
 *
 * **Example** (A text that was altered)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const [text = ""] = yield* Journal.toTexts("s1", 0, [{ _tag: "MessagesAppended", messages: [Message.user("Hi")] }])
 *   const record = yield* Journal.fromText("s1", text, 1)
 *   const { reason, version } = yield* Effect.flip(Journal.fromText("s1", text.replace("Hi", "Ho"), 1))
 *   return [record._tag, reason, version]
 * })
 *
 * await Effect.runPromise(program) // => ["MessagesAppended", "unreadable", 1]
 * ```
 *
 * @category stores
 */
export const fromText = (id: string, text: string, version?: number): Effect.Effect<Records.Record, StoreError> => {
  const failed = (reason: "unreadable" | "newer_version", cause: string) =>
    new StoreError({ reason, operation: "read", id, ...(version === undefined ? {} : { version }), cause })
  return Effect.fromResult(Json.parse(text)).pipe(
    Effect.mapError((cause) => failed("unreadable", Json.render(cause))),
    Effect.flatMap((json) => {
      const written = versionOf(json)
      if (written !== undefined && version !== undefined && written !== version) {
        return failed("unreadable", `the record of version ${written} stands in its place`)
      }
      const unknown = newer(json)
      if (unknown === undefined && !isSummed(text)) return failed("unreadable", "the record was altered")
      return unknown === undefined
        ? Effect.mapError(decode(changed(json, whole)), (cause) => failed("unreadable", Json.render(cause)))
        : failed("newer_version", unknown)
    })
  )
}

/**
 * Largest record size in bytes of JSON, 8 MiB by default. A larger record is refused on writing, with `StoreError`
 * `too_large`, and ends the operation. The limit bounds the memory of a read: Effect's Postgres client reads rows up to
 * 16 MiB.
 *
 * **Example** (A store for small records)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const store = yield* Session.Store
 *   const long = Message.user("x".repeat(2000))
 *   return yield* Effect.flip(store.append("s", 0, [{ _tag: "MessagesAppended", messages: [long] }]))
 * })
 * const error = await Effect.runPromise(program.pipe(
 *   Effect.provideService(Journal.MaxRecordBytes, 1024),
 *   Effect.provide(Session.Store.layerMemory)
 * ))
 *
 * error._tag === "StoreError" && error.reason // => "too_large"
 * ```
 *
 * @category services
 */
export const MaxRecordBytes: Context.Reference<number> = Context.Reference("heddle/Journal/MaxRecordBytes", {
  defaultValue: () => 8 * 1024 * 1024
})

const utf8 = new TextEncoder()

/** Returns the call a record is about, if any. */
const callOf = (record: Records.Record): string | undefined =>
  record._tag === "CallEnded" ? record.message.toolCallId : "toolCallId" in record ? record.toolCallId : undefined

const bounded = (id: string, record: Records.Record, text: string): Effect.Effect<string, StoreError> =>
  Effect.flatMap(MaxRecordBytes, (maxBytes) => {
    // A character has at most three bytes, so most texts need no measuring.
    if (text.length * 3 <= maxBytes) return Effect.succeed(text)
    const bytes = utf8.encode(text).length
    if (bytes <= maxBytes) return Effect.succeed(text)
    const toolCallId = callOf(record)
    return new StoreError({
      reason: "too_large",
      operation: "append",
      id,
      record: record._tag,
      ...(toolCallId === undefined ? {} : { toolCallId }),
      bytes,
      maxBytes
    })
  })

/**
 * Returns the texts kept by a store for an append: one JSON line per record, with its version and a checksum, so
 * {@link fromText} detects misplaced and altered records. Non-JSON values are rendered. Fails with a `StoreError` for a
 * text larger than {@link MaxRecordBytes}.
 *
 * **Example** (The lines of a file)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const records: Journal.Records = [
 *   { _tag: "MessagesAppended", messages: [Message.user("Hi")] },
 *   { _tag: "MessagesAppended", messages: [Message.user("Are you there?")] }
 * ]
 * const texts = await Effect.runPromise(Journal.toTexts("s1", 4, records))
 *
 * texts.map((text) => JSON.parse(text).version) // => [5, 6]
 * ```
 *
 * @category stores
 */
export const toTexts = (
  id: string,
  expected: number,
  records: ReadonlyArray<Records.Record>
): Effect.Effect<ReadonlyArray<string>, StoreError> =>
  Effect.forEach(
    records,
    (record, index) => Effect.flatMap(toText(id, record, expected + index + 1), (text) => bounded(id, record, text))
  )

const pageSize = 128

/**
 * A record's text, with its version.
 *
 * @category models
 */
export interface Line {
  /** Journal version after the record. */
  readonly version: number
  /** Text from {@link toTexts}. */
  readonly text: string
}

/**
 * Range of existing records, by the store's own count.
 *
 * @category models
 */
export interface Extent {
  /** Journal version, 0 without records. */
  readonly version: number
  /** Version of the first remaining record: 1 if no record was removed. */
  readonly first: number
}

/**
 * Reads a journal's records after a version, page by page: a store's `read`. `page` returns up to `limit` lines after a
 * version, oldest first. Reading ends at the first incomplete page.
 *
 * Fails with a `StoreError` if the pages do not match `extent`, which is read at the beginning, and again at a gap.
 * Records added by a writer during reading are not damage, nor is a concurrent truncation or removal.
 *
 * **Example** (A journal whose second record is lost)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const said = (text: string): Journal.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })
 * const program = Effect.gen(function*() {
 *   const [first = ""] = yield* Journal.toTexts("s1", 0, [said("Hi"), said("Ho")])
 *   const lines = [{ version: 1, text: first }]
 *   const read = Journal.pages(
 *     "s1",
 *     0,
 *     (after, limit) => Effect.succeed(lines.filter(({ version }) => version > after).slice(0, limit)),
 *     Effect.succeed({ version: 2, first: 1 })
 *   )
 *   return (yield* Effect.flip(Stream.runCollect(read))).version
 * })
 *
 * await Effect.runPromise(program) // => 2
 * ```
 *
 * @category stores
 */
export const pages = (
  id: string,
  after: number,
  page: (after: number, limit: number) => Effect.Effect<ReadonlyArray<Line>, StoreError>,
  extent: Effect.Effect<Extent, StoreError>
): Stream.Stream<Records.Entry, StoreError> =>
  Stream.unwrap(
    Effect.map(extent, (begun) =>
      Stream.paginate(Math.max(after, begun.first - 1), (at) =>
        Effect.gen(function*() {
          const lines = yield* page(at, pageSize)
          const end = at + lines.length
          const gap = lines.findIndex(({ version }, index) => version !== at + index + 1)
          const isLast = lines.length < pageSize
          const isOther = isLast && (end < begun.version || end > Math.max(after, begun.version))
          if (gap >= 0 || isOther) {
            const now = yield* extent
            if (now.first > at + 1) return [[], Option.some(now.first - 1)] as const
            if (now.version < begun.version) return [[], Option.none()] as const
            if (gap >= 0) return yield* damaged(id, at + gap + 1, "the record is missing")
            if (end < begun.version) return yield* damaged(id, end + 1, "the record is missing")
            if (end > now.version) return yield* damaged(id, now.version + 1, "the store does not count this record")
          }
          const entries = yield* Effect.forEach(lines, ({ text, version }) =>
            Effect.map(fromText(id, text, version), (record): Records.Entry => ({ version, record })))
          return [entries, isLast ? Option.none() : Option.some(end)] as const
        })))
  )

/**
 * Checks the record before which a journal is truncated, as text. Dies unless it is an `Opened`: callers append the
 * snapshot first.
 *
 * **Example** (A journal without a snapshot)
 *
 * ```ts import.meta.vitest
 * import { Journal, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Exit from "effect/Exit"
 *
 * const program = Effect.gen(function*() {
 *   const [text] = yield* Journal.toTexts("s1", 6, [{ _tag: "MessagesAppended", messages: [Message.user("Hi")] }])
 *   return yield* Effect.exit(Journal.checkSnapshot("s1", 7, text))
 * })
 *
 * Exit.hasDies(await Effect.runPromise(program)) // => true
 * ```
 *
 * @category stores
 */
export const checkSnapshot = (id: string, before: number, text: string | undefined): Effect.Effect<void, StoreError> =>
  Effect.flatMap(
    text === undefined ? Effect.undefined : fromText(id, text, before),
    (record) =>
      record?._tag === "Opened" ? Effect.void : Effect.die(
        new TypeError(
          `Session.Store.truncate: session ${JSON.stringify(id)} has ${
            record === undefined ? "no record" : `the record ${record._tag}`
          } at version ${before}, not an Opened; append one first, as Session.snapshot does`
        )
      )
  )

/** A journal in memory. */
interface Kept {
  /** Number of removed records. */
  readonly removed: number
  readonly texts: Array<string>
  readonly summary: States.Summary
  readonly since: number
  /** Last named append, and the version after it. */
  readonly named: { readonly name: string; readonly version: number } | undefined
}

const empty = (): Kept => ({ removed: 0, texts: [], summary: unsaid, since: 0, named: undefined })

const versionIn = ({ removed, texts }: Kept): number => removed + texts.length

/** Stores texts instead of values, so a read returns the same as from any other store. */
const memory = (): Service => {
  const journals = new Map<string, Kept>()
  const claims = new Map<string, Claim>()
  const journalOf = (id: string): Kept => journals.get(id) ?? empty()
  const commit = (
    id: string,
    expected: number,
    lines: ReadonlyArray<string>,
    records: Records.Records,
    options: AppendOptions
  ) =>
    Effect.flatMap(Clock.currentTimeMillis, (now): Effect.Effect<number, SessionConflict> => {
      const journal = journalOf(id)
      const { named, since, summary, texts } = journal
      const { name } = options
      const actual = versionIn(journal)
      const version = expected + lines.length
      if (name !== undefined && named?.name === name) return Effect.succeed(named.version)
      if (actual !== expected) return Effect.fail(new SessionConflict({ id, expected, actual }))
      for (const line of lines) texts.push(line)
      const after = summaryAfter(summary, records, options)
      journals.set(id, {
        ...journal,
        summary: after,
        since: after.next === summary.next && actual > 0 ? since : now,
        named: name === undefined ? named : { name, version }
      })
      return Effect.succeed(version)
    })
  const take = (id: string, owner: string, now: number, termMillis: number): Claim => {
    const held = claims.get(id)
    if (held !== undefined && held.owner !== owner && held.until > now) return held
    const claim = { owner, until: now + termMillis }
    claims.set(id, claim)
    return claim
  }
  const lines = (id: string, after: number, limit: number): ReadonlyArray<Line> => {
    const { removed, texts } = journalOf(id)
    const from = Math.max(after - removed, 0)
    return texts.slice(from, from + limit).map((text, index) => ({ version: removed + from + index + 1, text }))
  }
  const entriesOf = Stream.suspend(() => Stream.fromIterable(Array.from(journals)))
  const isListed = ({ prefix = "", status }: ListOptions = {}) => ([id, { summary }]: readonly [string, Kept]) =>
    id.startsWith(prefix) && (status === undefined || summary.status === status)
  return {
    append: (id, expected, records, options = {}) =>
      Effect.flatMap(toTexts(id, expected, records), (lines) => commit(id, expected, lines, records, options)),
    version: (id) => Effect.sync(() => versionIn(journalOf(id))),
    read: (id, after = 0) =>
      pages(
        id,
        after,
        (version, limit) => Effect.sync(() => lines(id, version, limit)),
        Effect.sync(() => {
          const journal = journalOf(id)
          return { version: versionIn(journal), first: journal.removed + 1 }
        })
      ),
    unfinished: Stream.unwrap(
      Effect.map(Clock.currentTimeMillis, (now) =>
        entriesOf.pipe(
          Stream.filter(([, { summary }]) => (dueOf(summary) ?? Infinity) <= now),
          Stream.map(([id]) => id)
        ))
    ),
    list: (options) =>
      entriesOf.pipe(
        Stream.filter(isListed(options)),
        Stream.mapEffect(([id, journal]) =>
          Effect.map(Clock.currentTimeMillis, (now): Listed => {
            const claim = claims.get(id)
            const listed = { id, version: versionIn(journal), since: journal.since, ...journal.summary }
            return claim === undefined || claim.until <= now ? listed : { ...listed, claim }
          })
        )
      ),
    count: (options) =>
      Effect.sync(() =>
        countsOf(Array.from(journals).filter(isListed(options)).map(([, { summary }]) => [summary.status, 1]))
      ),
    truncate: (id, before) =>
      Effect.gen(function*() {
        const { removed, texts } = journalOf(id)
        if (texts.length === 0 || before <= removed + 1) return
        const text = texts[before - removed - 1]
        yield* checkSnapshot(id, before, text)
        const journal = journalOf(id)
        const kept = journal.texts.slice(Math.max(before - journal.removed - 1, 0))
        if (kept.length > 0) journals.set(id, { ...journal, removed: versionIn(journal) - kept.length, texts: kept })
      }),
    delete: (id) =>
      Effect.sync(() => {
        journals.delete(id)
        claims.delete(id)
      }),
    claim: (id, owner, termMillis) => Effect.map(Clock.currentTimeMillis, (now) => take(id, owner, now, termMillis)),
    renew: (id, owner, termMillis) =>
      Effect.map(Clock.currentTimeMillis, (now) => {
        if (claims.get(id)?.owner !== owner) return false
        claims.set(id, { owner, until: now + termMillis })
        return true
      }),
    claimOf: (id) => Effect.sync(() => claims.get(id)),
    release: (id, owner) => Effect.sync(() => void (claims.get(id)?.owner === owner && claims.delete(id))),
    claimUnfinished: (owner, termMillis, limit) =>
      Effect.map(Clock.currentTimeMillis, (now) => {
        const endOf = (id: string) => claims.get(id)?.until ?? -Infinity
        const ids = Array.from(journals).flatMap(([id, { summary }]) =>
          (dueOf(summary) ?? Infinity) <= now && endOf(id) <= now ? [id] : []
        )
        const taken = ids.toSorted((a, b) => endOf(a) === endOf(b) ? 0 : endOf(a) - endOf(b)).slice(0, limit)
        for (const id of taken) take(id, owner, now, termMillis)
        return taken
      })
  }
}

/**
 * Stores sessions. `Session.Store.layerMemory` keeps them in memory, and `SessionStore.layerSqlite({ filename })`, from
 * `heddle/sql`, in a file.
 *
 * @category services
 */
export class Store extends Context.Service<Store, Service>()("heddle/Session/Store") {
  /** Keeps journals in memory. They are lost when the layer is released. Claims use Effect's clock. */
  static readonly layerMemory: Layer.Layer<Store> = Layer.sync(Store, memory)
}

/** Takes a session's claim away from its owner. Public as `Session.revoke`. */
export const revoke = (id: string): Effect.Effect<boolean, StoreError, Store> =>
  Effect.gen(function*() {
    const store = yield* Store
    const claim = yield* store.claimOf(id)
    if (claim === undefined) return false
    yield* store.release(id, claim.owner)
    return true
  })
