/**
 * The session store in plain files: the suite for stores, what its files hold, and what it makes of files that were torn,
 * damaged, or left by a process that is dead.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as PlatformError from "effect/PlatformError"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Message, Session } from "heddle"
import { FileStore } from "heddle/files"
import { Conformance, StoreSuite } from "heddle/testing"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"

const said = (text: string): Session.Record => ({ _tag: "MessagesAppended", messages: [Message.user(text)] })

const opened = (id: string): Session.Record => ({ _tag: "Opened", session: Session.make({ id }) })

const started: Session.Record = { _tag: "RunStarted", requestId: "r", operation: "reply", messages: [] }

/** A folder that is gone with the scope. */
const temporaryFolder = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "heddle-files-"))),
  (folder) => Effect.sync(() => fs.rmSync(folder, { recursive: true, force: true }))
)

const store = (folder: string) => FileStore.layer({ folder }).pipe(Layer.provide(NodeServices.layer))

/** As a process of its own has it: the store is built anew. */
const anew = (folder: string) => Effect.provide(store(folder), { local: true })

const texts = (entries: ReadonlyArray<Session.Entry>) =>
  entries.map(({ record }) =>
    record._tag === "MessagesAppended" ? record.messages.map(Message.text).join() : record._tag
  )

const read = (id: string, after?: number) =>
  Effect.flatMap(Session.Store, (store) => Stream.runCollect(store.read(id, after)))

const journal = (folder: string, name: string) => path.join(folder, "journals", `${name}.ndjson`)

describe("the suite for stores", () => {
  describe("on the clock of the machine", () =>
    Conformance.register(StoreSuite.all, Layer.unwrap(Effect.map(temporaryFolder, store)), it))

  it.live("in virtual time", () =>
    Effect.gen(function*() {
      const failures = yield* Conformance.failures(
        StoreSuite.all.filter(({ name }) => name.includes("claim")),
        Layer.unwrap(Effect.map(temporaryFolder, store))
      ).pipe(Effect.provideService(StoreSuite.Passing, TestClock.adjust), Effect.provide(TestClock.layer()))
      assert.deepStrictEqual(failures.map(({ message }) => message), [])
    }))
})

describe("the files", () => {
  it.live("are lines of JSON, one file for each session, and the next process reads them", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      yield* Effect.flatMap(
        Session.Store,
        (store) =>
          Effect.andThen(store.append("a b/C", 0, [opened("a b/C"), started]), store.append("d", 0, [said("x")]))
      ).pipe(
        anew(folder)
      )
      assert.deepStrictEqual(fs.readdirSync(path.join(folder, "journals")).toSorted(), [
        "sa%0020b%002f%0043.ndjson",
        "sd.ndjson"
      ])
      const lines = fs.readFileSync(journal(folder, "sa%0020b%002f%0043"), "utf8").trimEnd().split("\n")
      const [header, first, last] = lines.map((line) => JSON.parse(line))
      assert.deepStrictEqual(header, { heddle: 1, id: "a b/C" })
      assert.deepInclude(first, { version: 1, _tag: "Opened", left: null })
      assert.deepInclude(last, { version: 2, _tag: "RunStarted", left: true })
      assert.deepStrictEqual(texts(yield* anew(folder)(read("a b/C"))), ["Opened", "RunStarted"])
      assert.deepStrictEqual(yield* anew(folder)(Stream.runCollect(Session.unfinished)), ["a b/C"])
      assert.deepStrictEqual(fs.readdirSync(path.join(folder, "locks")), [])
    }).pipe(Effect.scoped))

  it.live("ids of every kind have files of their own, long ones as well", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      const long = "x".repeat(3000)
      const ids = ["", ".", "..", "a", "A", "%0041", "\ud800", "\ud801", "ä", "CON", long, `${long}y`, "a\u0000", "a/b"]
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        yield* Effect.forEach(ids, (id, index) => store.append(id, 0, [said(`${index}`)]))
        for (const [index, id] of ids.entries()) assert.deepStrictEqual(texts(yield* read(id)), [`${index}`])
        const listed = yield* Stream.runCollect(Session.list())
        assert.deepStrictEqual(listed.map(({ id }) => id).toSorted(), ids.toSorted())
      }).pipe(anew(folder))
      const names = fs.readdirSync(path.join(folder, "journals")).map((name) => name.toLowerCase())
      assert.strictEqual(new Set(names).size, ids.length)
    }).pipe(Effect.scoped))

  it.live("an append reads the end of the file only", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      let bytes = 0
      const counting = Layer.effect(
        FileSystem.FileSystem,
        Effect.map(FileSystem.FileSystem, (fs) => ({
          ...fs,
          open: (path: string, options?: { readonly flag?: FileSystem.OpenFlag | undefined }) =>
            Effect.map(fs.open(path, options), (file) =>
              new Proxy(file, {
                get: (target, key) => {
                  const value: unknown = Reflect.get(target, key, target)
                  if (key === "read") {
                    return (buffer: Uint8Array, options?: FileSystem.File.ReadOptions) =>
                      Effect.tap(target.read(buffer, options), (count) => Effect.sync(() => bytes += count))
                  }
                  return typeof value === "function" ? value.bind(target) : value
                }
              }))
        }))
      )
      yield* Effect.gen(function*() {
        const store = yield* Session.Store
        const many = Array.from({ length: 5000 }, (_, index) => said(`${index}`.padStart(500)))
        yield* store.append("s", 0, [said("first"), ...many])
        bytes = 0
        yield* store.append("s", 5001, [said("last")])
        assert.isBelow(bytes, 200_000, `of ${fs.statSync(journal(folder, "ss")).size}`)
        bytes = 0
        assert.deepStrictEqual(texts(yield* read("s", 5001)), ["last"])
        assert.isBelow(bytes, 400_000)
      }).pipe(Effect.provide(
        FileStore.layer({ folder }).pipe(Layer.provide(counting), Layer.provide(NodeServices.layer)),
        { local: true }
      ))
    }).pipe(Effect.scoped))
})

describe("a journal that was torn", () => {
  const tails: Record<string, (whole: Buffer) => Buffer> = {
    "in the middle of a line": (whole) => whole.subarray(0, whole.length - 10),
    "between two lines of an append": (whole) => whole.subarray(0, whole.lastIndexOf(10, whole.length - 2) + 1),
    "before its last newline": (whole) => whole.subarray(0, whole.length - 1),
    "with zeros where the disk had not written yet": (whole) => {
      const copy = Buffer.from(whole)
      copy.fill(0, whole.length - 200)
      return copy
    }
  }

  for (const [what, tear] of Object.entries(tails)) {
    it.live(`${what}: the append is not there, and the next one takes its place`, () =>
      Effect.gen(function*() {
        const folder = yield* temporaryFolder
        const file = journal(folder, "ss")
        yield* Effect.flatMap(Session.Store, (store) =>
          Effect.andThen(store.append("s", 0, [said("a")]), store.append("s", 1, [said("b"), said("c")]))).pipe(
            anew(folder)
          )
        fs.writeFileSync(file, tear(fs.readFileSync(file)))
        yield* Effect.gen(function*() {
          const store = yield* Session.Store
          assert.strictEqual(yield* store.version("s"), 1)
          assert.deepStrictEqual(texts(yield* read("s")), ["a"])
          assert.strictEqual(yield* store.append("s", 1, [said("d")]), 2)
          assert.deepStrictEqual(texts(yield* read("s")), ["a", "d"])
        }).pipe(anew(folder))
        assert.strictEqual(fs.readFileSync(file, "utf8").trimEnd().split("\n").length, 3)
      }).pipe(Effect.scoped))
  }

  it.live("when its file was made: the session is not there", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      yield* anew(folder)(Session.open("s"))
      const file = journal(folder, "ss")
      for (const length of [0, 5, fs.readFileSync(file).indexOf(10) + 1, fs.statSync(file).size - 1]) {
        fs.truncateSync(file, length)
        yield* Effect.gen(function*() {
          assert.isUndefined(yield* Session.load("s"))
          assert.deepStrictEqual(yield* Stream.runCollect(Session.list()), [])
          assert.strictEqual((yield* Session.open("s")).version, 1)
        }).pipe(anew(folder))
      }
    }).pipe(Effect.scoped))
})

describe("a journal that is damaged", () => {
  const flip = (text: string) => (file: string) =>
    fs.writeFileSync(file, fs.readFileSync(file, "latin1").replace(text, `${text.slice(0, -1)}~`), "latin1")
  const line = (index: number, change: (lines: Array<string>) => void) => (file: string) => {
    const lines = fs.readFileSync(file, "utf8").split("\n")
    assert.isAbove(lines.length, index)
    change(lines)
    fs.writeFileSync(file, lines.join("\n"))
  }
  const damages: Record<string, readonly [inflict: (file: string) => void, version: number]> = {
    "a letter of a record is another one": [flip("second"), 2],
    "a record is lost": [line(2, (lines) => lines.splice(2, 1)), 2],
    "two records are swapped": [line(3, (lines) => lines.splice(2, 2, lines[3]!, lines[2]!)), 2]
  }

  for (const [damage, [inflict, version]] of Object.entries(damages)) {
    it.live(`${damage}: reading and loading say so, and at which version`, () =>
      Effect.gen(function*() {
        const folder = yield* temporaryFolder
        yield* Effect.gen(function*() {
          const store = yield* Session.Store
          yield* store.append("s", 0, [said("first")])
          yield* store.append("s", 1, [said("second")])
          yield* store.append("s", 2, [said("third"), said("fourth")])
        }).pipe(anew(folder))
        inflict(journal(folder, "ss"))
        for (const reading of [read("s"), Session.load("s"), Session.open("s")]) {
          const error = yield* Effect.flip(anew(folder)(reading as Effect.Effect<unknown, unknown, Session.Store>))
          assert.deepInclude(error, { _tag: "StoreError", reason: "unreadable", operation: "read", version })
        }
      }).pipe(Effect.scoped))
  }

  it.live("of a later release: it says to upgrade", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      yield* anew(folder)(Session.open("s"))
      const file = journal(folder, "ss")
      fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace("{\"heddle\":1", "{\"heddle\":2"))
      const error = yield* Effect.flip(anew(folder)(Session.load("s")))
      assert.deepInclude(error, { _tag: "StoreError", reason: "newer_version", operation: "read", id: "s" })
      assert.strictEqual(
        (error as Error).message,
        "a newer release of Heddle has written the journal of session \"s\": upgrade to read it"
      )
    }).pipe(Effect.scoped))
})

describe("a disk that takes no records", () => {
  /** A file system that fails with this code where a journal is written. */
  const failing = (code: string) =>
    Layer.effect(
      FileSystem.FileSystem,
      Effect.map(FileSystem.FileSystem, (fs) => ({
        ...fs,
        open: (path: string, options?: { readonly flag?: FileSystem.OpenFlag | undefined }) =>
          options?.flag === "r+"
            ? Effect.fail(PlatformError.systemError({
              _tag: "Unknown",
              module: "FileSystem",
              method: "open",
              cause: Object.assign(new Error(code), { code })
            }))
            : fs.open(path, options)
      }))
    )

  for (const [code, reason] of [["ENOSPC", "full"], ["EROFS", "read_only"], ["EIO", "unavailable"]] as const) {
    it.live(`${code} is ${reason}`, () =>
      Effect.gen(function*() {
        const folder = yield* temporaryFolder
        yield* anew(folder)(Session.open("s"))
        const error = yield* Effect.flip(Effect.flatMap(Session.Store, (store) => store.append("s", 1, [said("x")])))
          .pipe(
            Effect.provide(
              FileStore.layer({ folder }).pipe(Layer.provide(failing(code)), Layer.provide(NodeServices.layer)),
              { local: true }
            )
          )
        assert.deepInclude(error, { _tag: "StoreError", reason, operation: "append", id: "s" })
      }).pipe(Effect.scoped))
  }
})

describe("what a dead process has left", () => {
  /** The id of a process that has ended. */
  const dead = () => spawnSync(process.execPath, ["--eval", "process.stdout.write(`${process.pid}`)"]).stdout.toString()

  it.live("a lock is taken over at once, and one of a process that lives is not", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      yield* anew(folder)(Session.open("s"))
      const lock = path.join(folder, "locks", "ss.lock")
      const append = (version: number) =>
        anew(folder)(Effect.flatMap(Session.Store, (store) => store.append("s", version, [said("x")])))
      for (const start of ["", "1"]) {
        fs.writeFileSync(lock, JSON.stringify({ pid: Number(dead()), start }))
        assert.strictEqual(yield* append(start === "" ? 1 : 2), start === "" ? 2 : 3)
        assert.isFalse(fs.existsSync(lock))
      }
      if (process.platform === "linux") {
        // Its id was given to this process, which started at another time.
        fs.writeFileSync(lock, JSON.stringify({ pid: process.pid, start: "1" }))
        assert.strictEqual(yield* append(3), 4)
      }
      fs.writeFileSync(lock, JSON.stringify({ pid: process.pid, start: "" }))
      const error = yield* Effect.flip(append(process.platform === "linux" ? 4 : 3))
      assert.deepInclude(error, { _tag: "StoreError", reason: "unavailable", operation: "append" })
      assert.match(
        String((error as Session.StoreError).cause),
        /^the lock .*ss\.lock is held by the process \{"pid":\d+/
      )
    }).pipe(Effect.scoped), 20_000)

  it.live("a claim is free at once", () =>
    Effect.gen(function*() {
      const folder = yield* temporaryFolder
      const program = Effect.gen(function*() {
        const store = yield* Session.Store
        yield* store.append("s", 0, [started])
        yield* store.claim("s", "first", 60_000)
        assert.deepStrictEqual(yield* store.claimUnfinished("second", 60_000, 1), [])
        const file = path.join(folder, "claims", "ss.json")
        const claim = JSON.parse(fs.readFileSync(file, "utf8"))
        fs.writeFileSync(file, JSON.stringify({ ...claim, by: { pid: Number(dead()), start: "1" } }))
        assert.deepStrictEqual(yield* store.claimUnfinished("second", 60_000, 1), ["s"])
        assert.strictEqual((yield* store.claim("s", "third", 1)).owner, "second")
      })
      yield* anew(folder)(program)
    }).pipe(Effect.scoped))
})
