/**
 * `Session.Store` in plain files: a folder with one file for each session, over the `FileSystem` and `Path` of any platform
 * of Effect. It needs no database, and runs on Node 20. Any number of processes of one machine may use the folder.
 *
 * **Details**
 *
 * - A journal is a file of JSON lines, to which records are appended. A record has a checksum, and the last record of an
 *   append ends it: an append that a kill or a power failure has torn is not there, and is cut off by the next one.
 * - An append takes the lock of its session, compares the version at the end of the file, writes, and has the file on the
 *   disk before it succeeds. Its cost does not depend on the length of the journal.
 * - A lock names its process by its id and its start, and is taken over when that process is dead. So is a claim; the others
 *   end by the clock of the machine.
 *
 * **Gotchas**
 *
 * - Keep the folder on a local disk. Processes that see it from several machines, or from containers that do not share
 *   their process ids, take the locks of each other for those of dead processes.
 * - Listing reads the end of each file. Where there are many thousand sessions, use `heddle/sql`.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import type * as PlatformError from "effect/PlatformError"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Records from "../internal/session/records.ts"
import * as Stores from "../internal/session/store.ts"
import * as Claims from "./internal/claims.ts"
import * as JournalFile from "./internal/journalFile.ts"
import * as Lines from "./internal/lines.ts"
import * as Locks from "./internal/locks.ts"
import * as Names from "./internal/names.ts"

/**
 * Where sessions are kept.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /** The path of the folder, which is created if it does not exist. */
  readonly folder: string
}

type Operation = Stores.StoreError["operation"]

/** The codes of the platform for a disk that is full, and for a file that may only be read. */
const reasons: Readonly<Record<string, Stores.StoreError["reason"]>> = {
  ENOSPC: "full",
  EDQUOT: "full",
  EROFS: "read_only",
  EACCES: "read_only",
  EPERM: "read_only"
}

const codeOf = (error: PlatformError.PlatformError): string => {
  const cause = error.reason.cause
  return cause instanceof Error && "code" in cause ? String(cause.code) : ""
}

const failed =
  (operation: Operation, id?: string) => (cause: PlatformError.PlatformError | Locks.Held): Stores.StoreError =>
    new Stores.StoreError({
      reason: cause._tag === "Held" ? "unavailable" : reasons[codeOf(cause)] ?? "unavailable",
      operation,
      ...(id === undefined ? {} : { id }),
      cause: cause._tag === "Held" ? `the lock ${cause.path} is held by the process ${cause.by}` : cause
    })

const isFailure = (error: unknown): error is PlatformError.PlatformError | Locks.Held =>
  typeof error === "object" && error !== null && "_tag" in error
  && (error._tag === "PlatformError" || error._tag === "Held")

const damaged = (id: string, version: number, cause: string) =>
  new Stores.StoreError({ reason: "unreadable", operation: "read", id, version, cause })

/**
 * The store in a folder. Its files are closed with the scope.
 *
 * **Example** (A store without its layer)
 *
 * ```ts import.meta.vitest
 * import { FileStore } from "heddle/files"
 * import * as Effect from "effect/Effect"
 *
 * Effect.isEffect(FileStore.make({ folder: "sessions" })) // => true
 * ```
 *
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  options: Options
): Effect.Effect<
  Stores.Service,
  PlatformError.PlatformError,
  FileSystem.FileSystem | Path.Path | Scope.Scope
> =>
  Effect.gen(function*() {
    const fs = yield* FileSystem.FileSystem
    const path = yield* Path.Path
    const folderOf = (name: string) => path.join(options.folder, name)
    const [journals, marks, claimed, locks] = [
      folderOf("journals"),
      folderOf("unfinished"),
      folderOf("claims"),
      folderOf("locks")
    ]
    yield* Effect.forEach([journals, marks, claimed, locks], (folder) => fs.makeDirectory(folder, { recursive: true }))
    const lock = yield* Locks.make(fs, locks)
    const claims = yield* Claims.make(fs, (name) => path.join(claimed, `${name}.json`))
    const journalOf = (name: string) => path.join(journals, `${name}.ndjson`)
    const markOf = (name: string) => path.join(marks, name)

    /** What the file of a session has, undefined if it has none. */
    const contents = (file: FileSystem.File, operation: Operation, id?: string) =>
      Effect.flatMap(JournalFile.contentsOf(file), (found) =>
        found !== "newer"
          ? Effect.succeed(found)
          : new Stores.StoreError({
            reason: "newer_version",
            operation,
            ...(id === undefined ? {} : { id }),
            cause: "a later release has made the file"
          }))

    const inFile = <A, E>(
      name: string,
      operation: Operation,
      use: (file: FileSystem.File, found: JournalFile.Contents) => Effect.Effect<A, E>,
      none: A
    ) =>
      Effect.scoped(Effect.gen(function*() {
        const file = yield* JournalFile.open(fs, journalOf(name), "r")
        if (Option.isNone(file)) return none
        const found = yield* contents(file.value, operation)
        return found === undefined ? none : yield* use(file.value, found)
      }))

    const mapped = <A, E>(effect: Effect.Effect<A, E>, operation: Operation, id?: string) =>
      Effect.mapError(effect, (error) => isFailure(error) ? failed(operation, id)(error) : error) as Effect.Effect<
        A,
        Exclude<E, PlatformError.PlatformError | Locks.Held> | Stores.StoreError
      >

    /** Runs an effect under the lock of a session. */
    const locked = <A, E>(
      operation: Operation,
      id: string,
      effect: (name: string) => Effect.Effect<A, E>
    ) => mapped(Effect.flatMap(Names.nameOf(id), (name) => lock.with(name, effect(name))), operation, id)

    const mark = (name: string) =>
      Effect.andThen(fs.writeFile(markOf(name), new Uint8Array()), JournalFile.syncFolder(fs, marks))

    const unmark = (name: string) => fs.remove(markOf(name), { force: true })

    const begin = (name: string, id: string, bytes: Uint8Array) => {
      const whole = JournalFile.joined([Lines.headerOf(id), bytes])
      return Effect.andThen(JournalFile.replace(fs, journalOf(name), whole), JournalFile.syncFolder(fs, journals))
    }

    const append = (
      name: string,
      id: string,
      expected: number,
      texts: ReadonlyArray<string>,
      records: Records.Records
    ) =>
      Effect.scoped(Effect.gen(function*() {
        const file = yield* JournalFile.open(fs, journalOf(name), "r+")
        const found = Option.isNone(file) ? undefined : yield* contents(file.value, "append", id)
        const actual = found?.version ?? 0
        if (actual !== expected) return yield* new Stores.SessionConflict({ id, expected, actual })
        const was = found?.isUnfinished ?? false
        const is = Stores.isUnfinishedAfter(records, was)
        // A mark without work left is looked past; work left without a mark would not be found.
        if (is && !was) yield* mark(name)
        const bytes = Lines.linesOf(texts, is)
        yield* Option.isNone(file) || found === undefined
          ? begin(name, id, bytes)
          : JournalFile.add(file.value, found.end, found.size, bytes)
        if (was && !is) yield* unmark(name)
        return expected + texts.length
      }))

    /** The lines behind a version, a page after the other. */
    const paging = (id: string, file: FileSystem.File, found: JournalFile.Contents) => {
      let at = -1
      return (after: number, limit: number) =>
        Effect.gen(function*() {
          if (at < 0) at = yield* JournalFile.before(file, found, after)
          const page: Array<Stores.Line> = []
          while (page.length < limit && at < found.end) {
            const { end, lines } = yield* JournalFile.linesFrom(file, at, found.end)
            if (lines.length === 0) break
            let [taken, size] = [0, 0]
            for (const bytes of lines) {
              if (page.length === limit) break
              taken++
              size += bytes.length + 1
              const line = Lines.readLine(bytes)
              const next: number = after + page.length + 1
              if (line === undefined) {
                return yield* damaged(id, Lines.versionOf(bytes) ?? next, "the record is not as it was written")
              }
              if (line.version > after) page.push(line)
            }
            at = taken === lines.length ? end : at + size
          }
          return page
        }).pipe(Effect.mapError((error) => isFailure(error) ? failed("read", id)(error) : error))
    }

    const read = (id: string, after: number) =>
      Stream.unwrap(Effect.gen(function*() {
        const name = yield* Names.nameOf(id)
        const file = yield* JournalFile.open(fs, journalOf(name), "r")
        const found = Option.isNone(file) ? undefined : yield* contents(file.value, "read", id)
        if (Option.isNone(file) || found === undefined) return Stream.empty
        const first = yield* JournalFile.firstOf(file.value, found)
        const extent: Stores.Extent = { version: found.version, first }
        return Stores.pages(id, after, paging(id, file.value, found), Effect.succeed(extent))
      })).pipe(Stream.mapError((error) => isFailure(error) ? failed("read", id)(error) : error))

    const truncate = (name: string, id: string, before: number) =>
      inFile(name, "truncate", (file, found) =>
        Effect.gen(function*() {
          if (found.version === 0 || before <= (yield* JournalFile.firstOf(file, found))) return
          const page = yield* paging(id, file, found)(before - 1, 1)
          const line = page[0]
          const record = line?.version === before ? yield* Stores.fromText(id, line.text, before) : undefined
          yield* Stores.checkSnapshot(id, before, record)
          const kept: Array<Uint8Array> = [Lines.headerOf(id)]
          for (let at = yield* JournalFile.before(file, found, before - 1); at < found.end;) {
            const { end, lines } = yield* JournalFile.linesFrom(file, at, found.end)
            if (lines.length === 0) break
            for (const bytes of lines) {
              if ((Lines.versionOf(bytes) ?? before) >= before) kept.push(bytes, newline)
            }
            at = end
          }
          yield* JournalFile.replace(fs, journalOf(name), JournalFile.joined(kept))
          yield* JournalFile.syncFolder(fs, journals)
        }), undefined)

    const remove = (name: string) =>
      Effect.gen(function*() {
        yield* fs.remove(journalOf(name), { force: true })
        yield* JournalFile.syncFolder(fs, journals)
        yield* unmark(name)
        yield* claims.remove(name)
      })

    /** What a list says of the session with this name. */
    const listed = (name: string) =>
      inFile(name, "list", (_file, { id, isUnfinished, version }): Effect.Effect<Stores.Listed | undefined> =>
        Effect.succeed(version === 0 ? undefined : { id, version, isUnfinished }), undefined)

    const sessions = (folder: string, ending: string, operation: "list" | "unfinished") =>
      Stream.fromIterableEffect(fs.readDirectory(folder)).pipe(
        Stream.filter((file) =>
          file.endsWith(ending)
        ),
        Stream.mapEffect((file) => {
          const name = file.slice(0, file.length - ending.length)
          return Effect.map(listed(name), (found) =>
            found === undefined ? [] : [{ name, ...found }])
        }),
        Stream.flattenIterable,
        Stream.mapError((error) =>
          isFailure(error) ? failed(operation)(error) : error
        )
      )

    const unfinished = Stream.filter(sessions(marks, "", "unfinished"), (found) => found.isUnfinished)

    /** The session with this name, claimed if it still has work left and no owner. */
    const claimLeft = (name: string, owner: string, termMillis: number) =>
      lock.with(
        name,
        Effect.gen(function*() {
          const found = yield* listed(name)
          const { holds, now } = yield* claims.held(name)
          if (found?.isUnfinished !== true || holds) return []
          yield* claims.take(name, owner, now + termMillis)
          return [found.id]
        })
      )

    return {
      append: (id, expected, records) =>
        Effect.flatMap(Stores.toTexts(id, expected, records), (texts) =>
          locked("append", id, (name) => append(name, id, expected, texts, records))),
      version: (id) =>
        mapped(
          Effect.flatMap(Names.nameOf(id), (name) =>
            inFile(name, "version", (_file, found) =>
              Effect.succeed(found.version), 0)),
          "version",
          id
        ),
      read: (id, after = 0) => read(id, after),
      unfinished: Stream.map(unfinished, ({ id }) => id),
      list: ({ prefix = "" } = {}) =>
        sessions(journals, ".ndjson", "list").pipe(
          Stream.filter(({ id }) => id.startsWith(prefix)),
          Stream.map(({ id, isUnfinished, version }): Stores.Listed => ({ id, version, isUnfinished }))
        ),
      truncate: (id, before) => locked("truncate", id, (name) => truncate(name, id, before)),
      delete: (id) => locked("delete", id, remove),
      claim: (id, owner, termMillis) => locked("claim", id, (name) => claims.claim(name, owner, termMillis)),
      release: (id, owner) => locked("release", id, (name) => claims.release(name, owner)),
      claimUnfinished: (owner, termMillis, limit) =>
        mapped(
          Effect.gen(function*() {
            const found = yield* Stream.runCollect(unfinished)
            const free = yield* Effect.forEach(found, ({ name }) =>
              Effect.map(claims.held(name), ({ found, holds }) =>
                holds ? [] : [{ name, until: found?.until ?? 0 }]))
            const taken: Array<string> = []
            for (
              const { name } of free.flat().toSorted((left, right) =>
                left.until - right.until
              )
            ) {
              if (taken.length >= limit) break
              taken.push(...yield* claimLeft(name, owner, termMillis))
            }
            return taken
          }),
          "claimUnfinished"
        )
    }
  })

const newline = new Uint8Array([10])

/**
 * The store in a folder. Fails where the folder cannot be created.
 *
 * **Example** (A session that the next process resumes)
 *
 * ```ts import.meta.vitest
 * import * as NodeServices from "@effect/platform-node/NodeServices"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import { Session } from "heddle"
 * import { FileStore } from "heddle/files"
 * import * as fs from "node:fs"
 * import * as os from "node:os"
 * import * as path from "node:path"
 *
 * const folder = fs.mkdtempSync(path.join(os.tmpdir(), "heddle-"))
 * const store = FileStore.layer({ folder }).pipe(Layer.provide(NodeServices.layer))
 *
 * await Effect.runPromise(Session.open("ann", { context: { user: "Ann" } }).pipe(Effect.provide(store)))
 * const loaded = await Effect.runPromise(Session.load("ann").pipe(Effect.provide(store)))
 * fs.rmSync(folder, { recursive: true })
 *
 * loaded?.session.context // => { user: "Ann" }
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (
  options: Options
): Layer.Layer<Stores.Store, PlatformError.PlatformError, FileSystem.FileSystem | Path.Path> =>
  Layer.effect(Stores.Store, make(options))
