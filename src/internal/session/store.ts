/**
 * The store of journals: what it does, the errors that it fails with, the text that it keeps of a record, and the reading of
 * a journal page by page. The one that is here keeps journals in memory. Public as `Session.Store`.
 *
 * **Details**
 *
 * A store knows two things of a session besides its journal. Both are there so that any process can find and take over what
 * another one left:
 *
 * - Whether the session has work left ({@link isUnfinishedAfter}), which is a function of its records. A store keeps the
 *   answer beside the version, and changes it with each append.
 * - Which owner has claimed the session, and until when. A claim says who should act; the journal says who does: it refuses
 *   every append behind a version that another writer has moved on from.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Json from "../json.ts"
import * as Records from "./records.ts"

/**
 * The session has been written to since it was read: by another program, or by this one, also by an operation that failed
 * or was interrupted. Nothing was appended: load it again, and decide anew.
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionConflict extends Schema.TaggedError<SessionConflict>("heddle/Session/SessionConflict")(
  "SessionConflict",
  {
    /** The id of the session. */
    id: Schema.String,
    /** The version that the append was to follow. */
    expected: Schema.Int,
    /** The version that the journal is at. */
    actual: Schema.Int
  }
) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return `session ${session} is at version ${this.actual}, not ${this.expected}: it has been written to since it was `
      + "read, by another program or by this one; load it again"
  }
}

/**
 * A store could not do what it was asked to. After a failed append the records are in the journal as a whole or not at
 * all; reading shows which.
 *
 * @category errors
 * @since 0.1.0
 */
export class StoreError extends Schema.TaggedError<StoreError>("heddle/Session/StoreError")("StoreError", {
  /**
   * `unavailable`: the store did not do it. `full`: it has no space left. `read_only`: it may not be written to.
   * `too_large`: a record is larger than the store takes. `unreadable`: what it holds is no journal. `newer_version`: it
   * holds what a later release has written.
   */
  reason: Schema.Literals(["unavailable", "full", "read_only", "too_large", "unreadable", "newer_version"]),
  /** What the store was asked to do: the name of the member of `StoreService`. */
  operation: Schema.Literals([
    "append",
    "version",
    "read",
    "unfinished",
    "list",
    "truncate",
    "delete",
    "claim",
    "release",
    "claimUnfinished"
  ]),
  /** The id of the session. Absent where the operation is about all sessions. */
  id: Schema.optionalKey(Schema.String),
  /**
   * Of a damaged journal the first version that is not as it was written: its record is missing, is no record, or stands in
   * the place of another one. The records before it are as they were written.
   */
  version: Schema.optionalKey(Schema.Int),
  /** The kind of the record that is too large. */
  record: Schema.optionalKey(Schema.String),
  /** The call whose outcome or arguments it has, where it is about one call. */
  toolCallId: Schema.optionalKey(Schema.String),
  /** How many bytes it has. */
  bytes: Schema.optionalKey(Schema.Int),
  /** How many it may have. */
  maxBytes: Schema.optionalKey(Schema.Finite),
  /** The error of the database, or what is wrong with the journal as text. */
  cause: Schema.optionalKey(Json.Opaque)
}) {
  override get message(): string {
    const session = this.id === undefined ? "all sessions" : `session ${JSON.stringify(this.id)}`
    const asked = `(${this.operation} of ${session})`
    switch (this.reason) {
      case "unavailable":
        return `the store is unavailable ${asked}; try again, and load a session again before the next operation`
      case "full":
        return `the store is full ${asked}: nothing was written; make room, and load the session again`
      case "read_only":
        return `the store is read-only ${asked}: nothing was written; open it with the right to write`
      case "too_large": {
        const call = this.toolCallId === undefined ? "" : ` of call ${JSON.stringify(this.toolCallId)}`
        return `the record ${this.record}${call} of ${session} has ${this.bytes} bytes, more than the ${this.maxBytes} `
          + "of Session.MaxRecordBytes: keep what is large elsewhere and return where it is, or raise the bound"
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

/** What is wrong with a journal, and from which version on. */
const damaged = (id: string, version: number, cause: unknown): StoreError =>
  new StoreError({ reason: "unreadable", operation: "read", id, version, cause })

/**
 * A session in the list of a store.
 *
 * @category models
 * @since 0.1.0
 */
export interface Listed {
  /** The id of the session. */
  readonly id: string
  /** The version of its journal. */
  readonly version: number
  /** Whether it has work left: a run without an end, or a command that no run has taken up. */
  readonly isUnfinished: boolean
}

/**
 * Which sessions of a store are listed.
 *
 * @category options
 * @since 0.1.0
 */
export interface ListOptions {
  /** What the ids begin with. Empty by default: all sessions. */
  readonly prefix?: string
}

/**
 * Which owner has a session, and for how long.
 *
 * @category models
 * @since 0.1.0
 */
export interface Claim {
  /** The owner, as it named itself. */
  readonly owner: string
  /** When the claim ends unless it is renewed, in milliseconds since 1970 by the clock of the store. */
  readonly until: number
}

/**
 * What a store of journals does, one journal per session id. `StoreSuite` of `heddle/testing` holds a store to it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Service {
  /**
   * Adds records behind version `expected`, which is 0 for a session without records, and succeeds with the new version. All
   * of them are added or none: it fails with {@link SessionConflict} if the journal is at any other version. What it
   * succeeded with is durable. Its cost depends on what is appended, not on the length of the journal.
   */
  readonly append: (
    id: string,
    expected: number,
    records: Records.Records
  ) => Effect.Effect<number, SessionConflict | StoreError>
  /** The number of records that were ever appended, 0 for a session without any. */
  readonly version: (id: string) => Effect.Effect<number, StoreError>
  /**
   * The records behind version `after`, which is 0 by default, oldest first and without gaps, at least up to the last one
   * there was when the reading began. It holds a bounded part of the journal in memory. A journal that was truncated begins
   * with its snapshot; one that is truncated meanwhile goes on there.
   */
  readonly read: (id: string, after?: number) => Stream.Stream<Records.Entry, StoreError>
  /**
   * The ids of the sessions with work left: a run without an end, or a command that no run has taken up. Its cost depends
   * on how many there are, not on the number of all sessions.
   */
  readonly unfinished: Stream.Stream<string, StoreError>
  /** The sessions whose ids begin with `prefix`, or all of them, in no particular order. */
  readonly list: (options?: ListOptions) => Stream.Stream<Listed, StoreError>
  /**
   * Removes the records below version `before`, whose record must be an `Opened`, the snapshot; dies otherwise. The version
   * of the journal stays as it is. Does nothing where these records are gone already, or the session is.
   */
  readonly truncate: (id: string, before: number) => Effect.Effect<void, StoreError>
  /** Removes the journal and the claim of a session, which is at version 0 then. */
  readonly delete: (id: string) => Effect.Effect<void, StoreError>
  /**
   * Claims a session for `termMillis` milliseconds if its claim is free, has ended by the clock of the store, or is the
   * owner's already, which renews it. Succeeds with the claim that holds now: compare its owner with yours. The session need
   * not exist.
   */
  readonly claim: (id: string, owner: string, termMillis: number) => Effect.Effect<Claim, StoreError>
  /** Ends the claim of a session if it is the owner's. */
  readonly release: (id: string, owner: string) => Effect.Effect<void, StoreError>
  /**
   * Claims up to `limit` sessions with work left whose claim is free or has ended, those first whose claims ended first.
   * Succeeds with their ids. Of owners that ask at once each gets other sessions.
   */
  readonly claimUnfinished: (
    owner: string,
    termMillis: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<string>, StoreError>
}

/**
 * Whether a session has work left after these records, if it had any `before` them. Every store uses it, so that all
 * agree.
 *
 * **Example** (A run that starts and ends)
 *
 * ```ts import.meta.vitest
 * import { Message, Session } from "heddle"
 *
 * const started: Session.Record = { _tag: "RunStarted", requestId: "r1", operation: "start", messages: [] }
 * const failed: Session.Record = { _tag: "RunFailed", requestId: "r1" }
 * const said: Session.Record = { _tag: "MessagesAppended", messages: [Message.user("Hi")] }
 *
 * const left = [[started], [started, failed], [said]].map((records) => Session.isUnfinishedAfter(records, false))
 *
 * left // => [true, false, false]
 * ```
 *
 * @category keeping
 * @since 0.1.0
 */
export const isUnfinishedAfter = (records: ReadonlyArray<Records.Record>, before: boolean): boolean => {
  let isUnfinished = before
  for (const { _tag, parent, unfinished } of records as ReadonlyArray<Deciding>) {
    switch (_tag) {
      case "RunStarted":
        isUnfinished = parent === undefined || isUnfinished
        break
      case "MessageSubmitted":
        isUnfinished = true
        break
      case "Opened":
      case "RunEnded":
      case "RunFailed":
        isUnfinished = unfinished === true
        break
      case "Answered":
      case "MessagesAppended":
        isUnfinished = unfinished ?? isUnfinished
    }
  }
  return isUnfinished
}

/** What decides about it in a record of any release. */
interface Deciding {
  readonly _tag: string
  readonly unfinished?: boolean
  /** A run that is a part of another one is taken up with it, and by nothing else. */
  readonly parent?: unknown
}

const RecordText = Schema.toCodecJson(Records.Record)

const encode = Schema.encodeEffect(RecordText)
const decode = Schema.decodeUnknownEffect(RecordText)

/**
 * A record as the one line of JSON that a store keeps. Values that are not JSON are rendered. With the `version` that the
 * journal has after it the text says where it belongs, so that reading finds a record that stands elsewhere.
 */
export const toText = (id: string, record: Records.Record, version?: number): Effect.Effect<string, StoreError> =>
  encode(record).pipe(
    Effect.map((json) => JSON.stringify(version === undefined ? json : { version, ...json as Json.JsonObject })),
    Effect.mapError((cause) => new StoreError({ reason: "unreadable", operation: "append", id, cause: cause.message }))
  )

/** The version that a text has of its record. The texts of 0.1.0 have none. */
const versionOf = (json: unknown): number | undefined => {
  const version = Json.isObject(json) ? json["version"] : undefined
  return typeof version === "number" ? version : undefined
}

/** The kinds of records that this release knows. */
const kinds: ReadonlySet<string> = new Set(Object.keys(Records.Record.cases))

/** The kind that a text has of its record, if this release does not know it. */
const newerKind = (json: unknown): string | undefined => {
  const kind = Json.isObject(json) ? json["_tag"] : undefined
  return typeof kind === "string" && !kinds.has(kind) ? kind : undefined
}

/**
 * The record that a text of {@link toText} stands for. A text that is anything else is `unreadable`, and so is one that
 * says another `version` than the one it is read at. One of a kind that is not known is of a `newer_version`.
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
      const kind = newerKind(json)
      return kind === undefined
        ? Effect.mapError(decode(json), (cause) => failed("unreadable", Json.render(cause)))
        : failed("newer_version", `this release does not know the record ${kind}`)
    })
  )
}

/**
 * How many bytes of JSON a record may have, 8 MiB by default. A larger one is refused when it is written, with the
 * `StoreError` `too_large`, and the operation ends with it. It bounds what a store has to read at once: the Postgres client of
 * Effect reads rows of up to 16 MiB.
 *
 * **Example** (A store for small records)
 *
 * ```ts import.meta.vitest
 * import { Message, Session } from "heddle"
 * import * as Effect from "effect/Effect"
 *
 * const program = Effect.gen(function*() {
 *   const store = yield* Session.Store
 *   const long = Message.user("x".repeat(2000))
 *   return yield* Effect.flip(store.append("s", 0, [{ _tag: "MessagesAppended", messages: [long] }]))
 * })
 * const error = await Effect.runPromise(program.pipe(
 *   Effect.provideService(Session.MaxRecordBytes, 1024),
 *   Effect.provide(Session.Store.layerMemory)
 * ))
 *
 * error._tag === "StoreError" && error.reason // => "too_large"
 * ```
 *
 * @category services
 * @since 0.1.0
 */
export const MaxRecordBytes: Context.Reference<number> = Context.Reference("heddle/Session/MaxRecordBytes", {
  defaultValue: () => 8 * 1024 * 1024
})

const utf8 = new TextEncoder()

/** The call that a record is about, if it is about one. */
const callOf = (record: Records.Record): string | undefined =>
  record._tag === "CallStarted" ? record.toolCall.id : record._tag === "CallEnded" ? record.toolCallId : undefined

const bounded = (id: string, record: Records.Record, text: string): Effect.Effect<string, StoreError> =>
  Effect.flatMap(MaxRecordBytes, (maxBytes) => {
    // A character has three bytes at most, so that most texts need not be measured.
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

/** The texts of an append, each with its version. One that is larger than {@link MaxRecordBytes} is refused. */
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

/** The text of a record, in its place. */
export interface Line {
  readonly version: number
  readonly text: string
}

/** Which records of a journal there are, by the store's own count. A journal without any is at version 0. */
export interface Extent {
  readonly version: number
  /** The version of the first record that has not been removed, which is 1 where none has. */
  readonly first: number
}

/**
 * The reading of a journal page by page, for a store to read with: `page` gives up to `limit` texts of {@link toText}
 * behind a version, oldest first. It ends where a page is not full.
 *
 * A record that the count has and the pages do not, or the other way round, is reported as damage. Records that a writer
 * adds meanwhile are none, and neither are those that a truncation or a deletion removes.
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
 * Dies unless the record before which a journal is to be truncated is a snapshot, which the caller appends first.
 */
export const checkSnapshot = (id: string, before: number, record: Records.Record | undefined): Effect.Effect<void> =>
  record?._tag === "Opened" ? Effect.void : Effect.die(
    new TypeError(
      `Session.Store.truncate: session ${JSON.stringify(id)} has ${
        record === undefined ? "no record" : `the record ${record._tag}`
      } at version ${before}, not an Opened; append one first, as Session.snapshot does`
    )
  )

/** A journal in memory. */
interface Journal {
  /** How many records were removed. */
  readonly removed: number
  readonly texts: Array<string>
  readonly isUnfinished: boolean
}

const emptyJournal = (): Journal => ({ removed: 0, texts: [], isUnfinished: false })

const versionIn = ({ removed, texts }: Journal): number => removed + texts.length

/** Texts and not values are kept, so that what is read is what any other store would give. */
const memory = (): Service => {
  const journals = new Map<string, Journal>()
  const claims = new Map<string, Claim>()
  const journalOf = (id: string): Journal => journals.get(id) ?? emptyJournal()
  const commit = (id: string, expected: number, lines: ReadonlyArray<string>, records: Records.Records) =>
    Effect.suspend((): Effect.Effect<number, SessionConflict> => {
      const journal = journalOf(id)
      const actual = versionIn(journal)
      if (actual !== expected) return Effect.fail(new SessionConflict({ id, expected, actual }))
      for (const line of lines) journal.texts.push(line)
      journals.set(id, { ...journal, isUnfinished: isUnfinishedAfter(records, journal.isUnfinished) })
      return Effect.succeed(expected + lines.length)
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
  return {
    append: (id, expected, records) =>
      Effect.flatMap(toTexts(id, expected, records), (lines) => commit(id, expected, lines, records)),
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
    unfinished: entriesOf.pipe(
      Stream.filter(([, { isUnfinished }]) => isUnfinished),
      Stream.map(([id]) => id)
    ),
    list: ({ prefix = "" } = {}) =>
      entriesOf.pipe(
        Stream.filter(([id]) => id.startsWith(prefix)),
        Stream.map(([id, journal]) => ({ id, version: versionIn(journal), isUnfinished: journal.isUnfinished }))
      ),
    truncate: (id, before) =>
      Effect.gen(function*() {
        const { removed, texts } = journalOf(id)
        if (texts.length === 0 || before <= removed + 1) return
        const text = texts[before - removed - 1]
        yield* checkSnapshot(id, before, text === undefined ? undefined : yield* fromText(id, text, before))
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
    release: (id, owner) => Effect.sync(() => void (claims.get(id)?.owner === owner && claims.delete(id))),
    claimUnfinished: (owner, termMillis, limit) =>
      Effect.map(Clock.currentTimeMillis, (now) => {
        const endOf = (id: string) => claims.get(id)?.until ?? -Infinity
        const ids = Array.from(journals).flatMap(([id, { isUnfinished }]) =>
          isUnfinished && endOf(id) <= now ? [id] : []
        )
        const taken = ids.toSorted((a, b) => endOf(a) === endOf(b) ? 0 : endOf(a) - endOf(b)).slice(0, limit)
        for (const id of taken) take(id, owner, now, termMillis)
        return taken
      })
  }
}

/**
 * The store of sessions.
 *
 * @category services
 * @since 0.1.0
 */
export class Store extends Context.Service<Store, Service>()("heddle/Session/Store") {
  /** Journals in memory. They are lost when the layer is released. The clock of its claims is the one of Effect. */
  static readonly layerMemory: Layer.Layer<Store> = Layer.sync(Store, memory)
}
