/**
 * Messages into runs whose processes are killed, G50: `npm run crash -- --steers`. Two workers over Postgres, one of which is
 * killed again and again, while this process sends messages of each mode into their sessions and withdraws some. A message that
 * has no fate, or is in a thread otherwise than its fate says, is a violation.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { Journal, Message, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { type ChildProcess, spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { bundle } from "./bundle.ts"

/** What came of the messages. */
interface Report {
  kills: number
  sessions: number
  /** How many messages have each fate. */
  readonly found: Record<string, number>
  readonly violations: Array<string>
}

/** The modes of the messages to a session, each with its treatment and whether it is withdrawn. */
const kinds = [
  { mode: "steer", otherwise: "next", isWithdrawn: false },
  { mode: "follow", otherwise: "refuse", isWithdrawn: false },
  { mode: "steer", otherwise: "refuse", isWithdrawn: true },
  { mode: "next", otherwise: "next", isWithdrawn: true },
  { mode: "follow", otherwise: "next", isWithdrawn: true },
  { mode: "steer", otherwise: "refuse", isWithdrawn: false }
] as const

const over = (id: string) =>
  Effect.repeat(Session.open(id), {
    schedule: Schedule.spaced("50 millis"),
    until: (kept) => Session.next(kept) === "nothing"
  }).pipe(Effect.timeoutOption("3 minutes"))

const session = (number: number, { found, violations }: Report) =>
  Effect.gen(function*() {
    const id = `s${number}`
    yield* Session.submit(id, "go", { id: "go" })
    const withdrawn = new Set<string>()
    const shift = number % kinds.length
    for (const [place, { isWithdrawn, ...options }] of [...kinds.slice(shift), ...kinds.slice(0, shift)].entries()) {
      const message = `m${place}`
      yield* Effect.sleep(20 + (number * 37 + place * 53) % 150)
      yield* Session.submit(id, message, { id: message, ...options })
      yield* Session.submit(id, message, { id: message, ...options })
      if (!isWithdrawn) continue
      yield* Effect.sleep((number * 13 + place * 29) % 60)
      if (yield* Session.withdraw(id, message)) withdrawn.add(message)
    }
    const ended = yield* over(id)
    if (ended._tag === "None") return violations.push(`${id} has not ended`)
    const kept = ended.value
    const store = yield* Session.Store
    const records = Array.from(yield* Stream.runCollect(store.read(id)), ({ record }) => record)
    for (const problem of Journal.check(records)) violations.push(`${id}: ${JSON.stringify(problem)}`)
    const texts = kept.session.thread.messages.filter(({ role }) => role === "user").map(Message.text)
    for (const message of kinds.map((_, place) => `m${place}`)) {
      const became = Session.receipt(kept, message)?.became ?? "unknown"
      found[became] = (found[became] ?? 0) + 1
      const times = texts.filter((text) => text === message).length
      const expected = became === "delivered" || became === "completed" ? 1 : 0
      const told = records.filter((record) =>
        record._tag === "StepPrepared" && record.delivered?.includes(message)
      ).length
      const isRight = times === expected && told === (became === "delivered" ? 1 : 0)
        && withdrawn.has(message) === (became === "withdrawn")
        && ["delivered", "completed", "withdrawn", "refused"].includes(became)
      if (!isRight) violations.push(`${id}: ${message} is ${became}, ${times} times in the thread, told ${told} times`)
    }
    return undefined
  })

/** Kills a worker so many times, prints what came of the messages, and returns the violations. */
export const steers = async (server: string, most: number): Promise<ReadonlyArray<string>> => {
  const report: Report = { kills: 0, sessions: 0, found: {}, violations: [] }
  const folder = mkdtempSync(join(tmpdir(), "heddle-steers-"))
  process.env["HEDDLE_KILL_FOLDER"] = folder
  const Database = await import("./database.ts")
  const program = await bundle(join(import.meta.dirname, "steered.ts"))
  const begin = (): ChildProcess =>
    spawn(process.execPath, [program, "--server", server], { stdio: ["ignore", "inherit", "inherit"] })
  const workers = [begin(), begin()]
  const killed = Effect.sync(() => {
    const place = report.kills++ % workers.length
    workers[place]?.kill("SIGKILL")
    workers[place] = begin()
  })
  const killing = Effect.repeat(Effect.delay(killed, "700 millis"), { until: () => report.kills >= most })
  const sending = Effect.whileLoop({
    while: () => report.kills < most,
    body: () => Effect.suspend(() => session(report.sessions++, report)),
    step: () => {}
  })
  const measured = Effect.all([killing, ...Array.from({ length: 4 }, () => sending)], { concurrency: "unbounded" })
  const store = Layer.provide(SessionStore.layer, Database.client(server))
  try {
    await Effect.runPromise(Effect.andThen(Database.made(server), Effect.provide(measured, store)))
    console.log(JSON.stringify(report))
    return report.violations
  } finally {
    for (const worker of workers) worker.kill("SIGKILL")
    rmSync(folder, { recursive: true })
  }
}
