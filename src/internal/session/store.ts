/**
 * The store of journals: what it does, the errors that it fails with, the text that it keeps of a record, and the reading of
 * a journal page by page. The one that is here keeps journals in memory. Public as `Session.Store`.
 *
 * @since 0.1.0
 */
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
  /** `unavailable`: the store did not do it. `unreadable`: what it holds is no journal. */
  reason: Schema.Literals(["unavailable", "unreadable"]),
  /** What the store was asked to do. */
  operation: Schema.Literals(["append", "version", "read"]),
  /** The id of the session. */
  id: Schema.String,
  /**
   * Of a damaged journal the first version that is not as it was written: its record is missing, is no record, or stands in
   * the place of another one. The records before it are as they were written.
   */
  version: Schema.optionalKey(Schema.Int),
  /** The error of the database, or what is wrong with the journal as text. */
  cause: Schema.optionalKey(Json.Opaque)
}) {
  override get message(): string {
    const session = JSON.stringify(this.id)
    return this.version === undefined
      ? `the store is ${this.reason} (${this.operation} of session ${session})`
      : `the journal of session ${session} is damaged at version ${this.version}`
  }
}

/** What is wrong with a journal, and from which version on. */
const damaged = (id: string, version: number, cause: unknown): StoreError =>
  new StoreError({ reason: "unreadable", operation: "read", id, version, cause })

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
  /** The number of records, 0 for a session without any. */
  readonly version: (id: string) => Effect.Effect<number, StoreError>
  /**
   * The records behind version `after`, which is 0 by default, oldest first and without gaps, at least up to the last one
   * there was when the reading began. It holds a bounded part of the journal in memory.
   */
  readonly read: (id: string, after?: number) => Stream.Stream<Records.Entry, StoreError>
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

/**
 * The record that a text of {@link toText} stands for. A text that is anything else is `unreadable`, and so is one that
 * says another `version` than the one it is read at.
 */
export const fromText = (id: string, text: string, version?: number): Effect.Effect<Records.Record, StoreError> => {
  const unreadable = (cause: string) =>
    version === undefined
      ? new StoreError({ reason: "unreadable", operation: "read", id, cause })
      : damaged(id, version, cause)
  return Effect.fromResult(Json.parse(text)).pipe(
    Effect.mapError((cause) => unreadable(Json.render(cause))),
    Effect.flatMap((json) => {
      const written = versionOf(json)
      return written === undefined || version === undefined || written === version
        ? Effect.mapError(decode(json), (cause) => unreadable(Json.render(cause)))
        : Effect.fail(unreadable(`the record of version ${written} stands in its place`))
    })
  )
}

/** The texts of an append, each with its version. */
export const toTexts = (
  id: string,
  expected: number,
  records: ReadonlyArray<Records.Record>
): Effect.Effect<ReadonlyArray<string>, StoreError> =>
  Effect.forEach(records, (record, index) => toText(id, record, expected + index + 1))

const pageSize = 128

/**
 * The reading of a journal page by page, for a store to read with: `page` gives up to `limit` texts of {@link toText}
 * behind a version, oldest first and without gaps. It ends where a page is not full.
 *
 * `version` is the store's own count of the records. With it a journal that ends before that count, or goes beyond it, is
 * reported as damaged; a writer that appends meanwhile damages nothing.
 */
export const pages = (
  id: string,
  after: number,
  page: (after: number, limit: number) => Effect.Effect<ReadonlyArray<string>, StoreError>,
  version?: Effect.Effect<number, StoreError>
): Stream.Stream<Records.Entry, StoreError> =>
  Stream.unwrap(
    Effect.map(version ?? Effect.succeed(undefined), (begun) =>
      Stream.paginate(after, (at) =>
        Effect.gen(function*() {
          const texts = yield* page(at, pageSize)
          const entries = yield* Effect.forEach(texts, (text, index) =>
            Effect.map(
              fromText(id, text, at + index + 1),
              (record): Records.Entry => ({ version: at + index + 1, record })
            ))
          const end = at + texts.length
          if (texts.length === pageSize) {
            return [entries, Option.some(end)] as const
          }
          if (begun !== undefined && end < begun) {
            return yield* damaged(id, end + 1, "the record is missing")
          }
          if (version !== undefined && end > Math.max(after, begun ?? 0)) {
            const count = yield* version
            if (end > count) {
              return yield* damaged(id, count + 1, "the store does not count this record")
            }
          }
          return [entries, Option.none()] as const
        })))
  )

/** Texts and not values are kept, so that what is read is what any other store would give. */
const memory = (): Service => {
  const journals = new Map<string, Array<string>>()
  const texts = (id: string): ReadonlyArray<string> => journals.get(id) ?? []
  const commit = (id: string, expected: number, lines: ReadonlyArray<string>) =>
    Effect.suspend((): Effect.Effect<number, SessionConflict> => {
      const journal = journals.get(id) ?? []
      if (journal.length !== expected) {
        return Effect.fail(new SessionConflict({ id, expected, actual: journal.length }))
      }
      for (const line of lines) journal.push(line)
      journals.set(id, journal)
      return Effect.succeed(journal.length)
    })
  return {
    append: (id, expected, records) =>
      Effect.flatMap(toTexts(id, expected, records), (lines) => commit(id, expected, lines)),
    version: (id) => Effect.sync(() => texts(id).length),
    read: (id, after = 0) =>
      pages(id, after, (version, limit) => Effect.sync(() => texts(id).slice(version, version + limit)))
  }
}

/**
 * The store of sessions.
 *
 * @category services
 * @since 0.1.0
 */
export class Store extends Context.Service<Store, Service>()("heddle/Session/Store") {
  /** Journals in memory. They are lost when the layer is released. */
  static readonly layerMemory: Layer.Layer<Store> = Layer.sync(Store, memory)
}
