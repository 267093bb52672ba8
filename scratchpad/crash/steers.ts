/**
 * Messages into runs whose processes are killed, G50 and G51: `npm run crash -- --steers`. Two workers over Postgres, one of
 * which is killed again and again, while this process sends messages of each mode into their sessions and into the sub-agents of
 * these, and withdraws some. A message that has no fate, or is in a thread otherwise than its fate says, is a violation, and so
 * are two journals that differ in its fate.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { Journal, Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { type ChildProcess, spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { bundle } from "./bundle.ts"
import * as Fates from "./fates.ts"

/** What came of the messages. */
interface Report {
  kills: number
  sessions: number
  /** How many of the sessions have a sub-agent of a sub-agent. */
  nested: number
  /** How many messages have each fate: those to the sessions, and those to each path. */
  readonly found: Record<string, Record<string, number>>
  /** How many messages with each fate were in the journal of a sub-agent. */
  readonly forwarded: Record<string, number>
  readonly violations: Array<string>
}

interface Kind {
  readonly mode: "steer" | "follow" | "next"
  readonly otherwise: "next" | "refuse"
  /** The path of the call whose run gets the message. Left out where the session does. */
  readonly to?: string
  readonly isWithdrawn: boolean
}

/** The messages to a session. */
const own: ReadonlyArray<Kind> = [
  { mode: "steer", otherwise: "next", isWithdrawn: false },
  { mode: "follow", otherwise: "refuse", isWithdrawn: false },
  { mode: "steer", otherwise: "refuse", isWithdrawn: true },
  { mode: "next", otherwise: "next", isWithdrawn: true },
  { mode: "follow", otherwise: "next", isWithdrawn: true },
  { mode: "steer", otherwise: "refuse", isWithdrawn: false }
]

/** The messages to the sub-agents of a session, each beside one to the session. */
const inside: ReadonlyArray<Kind> = [
  { mode: "steer", otherwise: "refuse", to: "c0/c1", isWithdrawn: false },
  { mode: "steer", otherwise: "refuse", to: "c0", isWithdrawn: true },
  { mode: "steer", otherwise: "refuse", to: "c0/c1", isWithdrawn: true },
  { mode: "follow", otherwise: "refuse", to: "c0", isWithdrawn: false },
  { mode: "follow", otherwise: "refuse", to: "c0/c1", isWithdrawn: true },
  { mode: "steer", otherwise: "refuse", to: "c0", isWithdrawn: false }
]

const rotated = <A>(all: ReadonlyArray<A>, by: number): ReadonlyArray<A> => [...all.slice(by), ...all.slice(0, by)]

const add = (counts: Record<string, number>, name: string): void => void (counts[name] = (counts[name] ?? 0) + 1)

const over = (id: string) =>
  Effect.repeat(Session.open(id), {
    schedule: Schedule.spaced("50 millis"),
    until: (kept) => Session.next(kept) === "nothing"
  }).pipe(Effect.timeoutOption("3 minutes"))

/** Waits until the innermost run is at work. */
const deepOf = (id: string) =>
  Effect.repeat(Fates.journalsOf(id), {
    schedule: Schedule.spaced("50 millis"),
    until: (all) => all.some((journal) => Fates.isAt(id, "c0/c1", journal))
  }).pipe(Effect.timeoutOption("3 minutes"))

const session = (number: number, report: Report) =>
  Effect.gen(function*() {
    const { forwarded, found, violations } = report
    const id = `s${number}`
    const isNested = number % 2 === 1
    if (isNested) report.nested++
    yield* Session.submit(id, isNested ? "research" : "go", { id: "go" })
    // The innermost run works until it has a message: of half of these sessions the last one, which comes while it is at work.
    const isAtWork = number % 4 === 1
    const others = isAtWork
      ? rotated(inside, number % 6)
      : [...rotated(inside.slice(1), number % 5), ...inside.slice(0, 1)]
    const kinds = rotated(own, number % 6).flatMap((kind, place) => isNested ? [others[place]!, kind] : [kind])
    const waits = isAtWork ? 0 : kinds.length - 2
    const withdrawn = new Set<string>()
    for (const [place, { isWithdrawn, ...options }] of kinds.entries()) {
      const message = `m${place}`
      if (isNested && place === waits) yield* deepOf(id)
      yield* Effect.sleep(20 + (number * 37 + place * 53) % 150)
      yield* Session.submit(id, message, { id: message, ...options })
      yield* Session.submit(id, message, { id: message, ...options })
      if (!isWithdrawn) continue
      yield* Effect.sleep((number * 13 + place * 29) % (options.to === undefined ? 60 : 180))
      if (yield* Session.withdraw(id, message)) withdrawn.add(message)
    }
    const ended = yield* over(id)
    if (ended._tag === "None") return violations.push(`${id} has not ended`)
    const journals = yield* Effect.forEach(yield* Fates.journalsOf(id), Fates.read)
    for (const { id, records } of journals) {
      for (const problem of Journal.check(records)) violations.push(`${id}: ${JSON.stringify(problem)}`)
    }
    for (const [place, { to }] of kinds.entries()) {
      const message = `m${place}`
      const became = Session.receipt(ended.value, message)?.became ?? "unknown"
      add(found[to ?? "session"] ??= {}, became)
      if (journals.slice(1).some(({ kept }) => Session.receipt(kept, message) !== undefined)) add(forwarded, became)
      violations.push(...Fates.problemsWith(journals, message, to, withdrawn.has(message)))
    }
    return undefined
  })

/** Kills a worker so many times, prints what came of the messages, and returns the violations. */
export const steers = async (server: string, most: number): Promise<ReadonlyArray<string>> => {
  const report: Report = { kills: 0, sessions: 0, nested: 0, found: {}, forwarded: {}, violations: [] }
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
