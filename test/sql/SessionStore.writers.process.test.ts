/**
 * One store, in a file of SQLite, and several processes, real ones: two that append at the same version, and one that is
 * killed at any moment.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Journal, Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { type ChildProcess, fork } from "node:child_process"
import { once } from "node:events"
import * as os from "node:os"
import * as path from "node:path"
import { DatabaseSync } from "node:sqlite"
import { fileURLToPath } from "node:url"
import { limit } from "../support/until.ts"
import { temporaryFile } from "./support/files.ts"
import { id, type Order, type Report, textAt } from "./support/writing.ts"

const program = fileURLToPath(new URL("./support/writer.ts", import.meta.url))

/** A process that has loaded and waits for orders. */
class Writer {
  readonly reports: Array<Report> = []
  readonly ended: Promise<unknown>
  private readonly child: ChildProcess
  private onReport: (report: Report) => void = () => {}

  constructor(filename: string) {
    this.child = fork(program, [filename], {
      execArgv: ["--conditions=source"],
      env: { ...process.env, NODE_COMPILE_CACHE: path.join(os.tmpdir(), "heddle-sql-compiled") }
    })
    this.ended = once(this.child, "close")
    this.child.on("message", (report: Report) => {
      this.reports.push(report)
      this.onReport(report)
    })
    // The last one is killed, whether it is ready or not.
    this.ready.catch(() => {})
  }

  /** The first report from now on of which the function says yes. */
  until(isIt: (report: Report) => boolean): Promise<Report> {
    return new Promise((resolve, reject) => {
      this.onReport = (report) => {
        if (isIt(report)) resolve(report)
      }
      void this.ended.then(() => reject(new Error(`the writer ended after ${JSON.stringify(this.reports.at(-1))}`)))
    })
  }

  readonly ready: Promise<unknown> = Promise.resolve().then(() =>
    this.reports.length > 0 ? undefined : this.until(() => true)
  )

  tell(order: Order): void {
    this.child.send(order)
  }

  async kill(): Promise<void> {
    this.child.kill("SIGKILL")
    await this.ended
  }
}

const writer = (filename: string) =>
  Effect.acquireRelease(Effect.sync(() => new Writer(filename)), (writer) => Effect.promise(() => writer.kill()))

const textOf = ({ record }: Journal.Entry): string =>
  record._tag === "MessagesAppended" ? record.messages.map(Message.text).join() : record._tag

/** What a process that has just opened the store finds behind a version. */
const contents = (filename: string, after: number) =>
  Effect.flatMap(Session.Store, (store) =>
    Effect.all({
      version: store.version(id),
      entries: Stream.runCollect(store.read(id, after))
    })).pipe(Effect.provide(SessionStore.layerSqlite({ filename }), { local: true }))

/** Whether the file is sound. */
const integrityOf = (filename: string) =>
  Effect.sync(() => {
    const database = new DatabaseSync(filename)
    const result = database.prepare("PRAGMA integrity_check").get()
    database.close()
    return result?.["integrity_check"]
  })

/** At least so many, until each of the two has won. */
const rounds = 50

describe("two processes and a file of SQLite", () => {
  it.live(
    `of two processes that append at the same version, ${rounds} times, one wins, the other gets SessionConflict, and no record is lost`,
    () =>
      Effect.gen(function*() {
        const filename = yield* temporaryFile
        const writers = yield* Effect.all([writer(filename), writer(filename)])
        yield* Effect.promise(() => Promise.all(writers.map((writer) => writer.ready)))
        const expected: Array<string> = []
        const wins = [0, 0]
        for (let round = 0; round < rounds || wins.includes(0); round++) {
          const answers = writers.map((writer) => writer.until(() => true))
          // Each starts first as often as the other.
          for (const index of round % 2 === 0 ? [0, 1] : [1, 0]) {
            writers[index]!.tell({ _tag: "Append", version: round, text: `${round} by ${index}` })
          }
          const reports = yield* Effect.promise(() => Promise.all(answers))
          const winner = reports.findIndex(({ _tag }) => _tag === "Appended")
          assert.deepStrictEqual(reports[winner], { _tag: "Appended", version: round + 1 })
          assert.deepStrictEqual(reports[1 - winner], { _tag: "Conflict", actual: round + 1 })
          expected.push(`${round} by ${winner}`)
          wins[winner]!++
        }
        const { entries, version } = yield* contents(filename, 0)
        assert.strictEqual(version, expected.length)
        assert.deepStrictEqual(entries.map(textOf), expected)
      }),
    limit
  )
})

/** How often a process is killed at least, until half of so many were killed in the middle of an append. */
const kills = 8

/** Between 1 and 40 records, so that an append takes from under a millisecond to several. */
const sizes = Array.from({ length: 17 }, (_, index) => 1 + (index * 7) % 40)

const pause = (milliseconds: number) =>
  Effect.callback<void>((resume) => void setTimeout(() => resume(Effect.void), milliseconds))

interface Killed {
  /** The version that was acknowledged last. */
  readonly acknowledged: number
  /** The append that was on its way. */
  readonly begun: { readonly from: number; readonly size: number } | undefined
}

/** Lets a process write, and kills it after a random number of appends and a random part of the next. */
const killed = (writer: Writer, version: number, round: number) =>
  Effect.gen(function*() {
    yield* Effect.promise(() => writer.ready)
    const enough = version + 1 + Math.floor(Math.random() * 150)
    const reached = writer.until((report) =>
      report._tag === "Failed" || (report._tag === "Appended" && report.version >= enough)
    )
    writer.tell({ _tag: "GoOn", sizes: [...sizes.slice(round % 17), ...sizes.slice(0, round % 17)] })
    yield* Effect.promise(() => reached)
    yield* pause(Math.random() * 4)
    yield* Effect.promise(() => writer.kill())
    const last = writer.reports.at(-1)
    const acknowledged = writer.reports.findLast((report) => report._tag === "Appended")?.version ?? version
    assert.isEmpty(writer.reports.filter(({ _tag }) => _tag === "Failed" || _tag === "Conflict"))
    return { acknowledged, begun: last?._tag === "Begun" ? last : undefined } satisfies Killed
  })

/** The texts of whole batches, in order, from one version to another. */
const assertWhole = (entries: ReadonlyArray<Journal.Entry>, from: number, to: number) => {
  assert.deepStrictEqual(
    entries.map(({ version }) => version),
    Array.from({ length: to - from }, (_, at) => from + at + 1)
  )
  const texts = entries.map(textOf)
  for (let at = 0; at < texts.length;) {
    const size = Number(/^\d+\+(\d+):/.exec(texts[at]!)?.[1])
    const batch = Array.from({ length: size }, (_, index) => textAt(from + at, size, index))
    assert.deepStrictEqual(texts.slice(at, at + size), batch)
    at += size
  }
}

describe("a killed process and a file of SQLite", () => {
  it.live(
    `after ${kills} processes killed during an append, the store opens with every acknowledged record`,
    () =>
      Effect.gen(function*() {
        const filename = yield* temporaryFile
        let version = 0
        let inTheMiddle = 0
        let next = yield* writer(filename)
        for (let round = 0; round < kills || inTheMiddle < kills / 2; round++) {
          const current = next
          next = yield* writer(filename)
          const { acknowledged, begun } = yield* killed(current, version, round)
          const found = yield* contents(filename, version)
          const possible = begun === undefined ? [acknowledged] : [acknowledged, begun.from + begun.size]
          assert.include(possible, found.version, `acknowledged ${acknowledged}`)
          assertWhole(found.entries, version, found.version)
          version = found.version
          if (begun !== undefined) inTheMiddle++
        }
        assert.strictEqual(yield* integrityOf(filename), "ok")
      }),
    limit
  )
})
