/**
 * Measures how long a stop from another process takes: `npm run crash -- --stops`. A worker in a process of its own runs a tool that
 * takes long, and this process asks its session to stop, again and again.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { Session } from "heddle"
import { SessionStore } from "heddle/sql"
import { spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { bundle } from "./bundle.ts"

const times = 30

/** A session whose tool runs, and how long it took until its stop was accepted and until it had ended. */
const stopped = (id: string) =>
  Effect.gen(function*() {
    yield* Session.submit(id, "Wait")
    yield* Effect.repeat(Session.load(id), {
      schedule: Schedule.spaced("20 millis"),
      until: (kept) => kept?.interrupted?.calls.length === 1
    })
    const begun = performance.now()
    const { ended } = yield* Session.stop(id)
    const accepted = performance.now() - begun
    const { stopped } = yield* ended
    if (stopped.length !== 1) {
      return yield* Effect.die(new Error(`${stopped.length} calls of ${id} were stopped, not 1`))
    }
    return { accepted, ended: performance.now() - begun }
  })

const middleAndMost = (millis: ReadonlyArray<number>): string => {
  const sorted = millis.toSorted((a, b) => a - b)
  return `${Math.round(sorted[Math.floor(sorted.length / 2)]!)} / ${Math.round(sorted.at(-1)!)}`
}

/** Measures it over a Postgres server, and prints a row. */
export const stops = async (server: string): Promise<void> => {
  const folder = mkdtempSync(join(tmpdir(), "heddle-stops-"))
  process.env["HEDDLE_KILL_FOLDER"] = folder
  const Database = await import("./database.ts")
  const worker = spawn(process.execPath, [await bundle(join(import.meta.dirname, "waiting.ts")), "--server", server], {
    stdio: ["ignore", "inherit", "inherit"]
  })
  const store = Layer.provide(SessionStore.layer, Database.client(server))
  const measured = Effect.forEach(Array.from({ length: times }, (_, index) => `session-${index}`), stopped)
  try {
    const found = await Effect.runPromise(
      Effect.andThen(Database.made(server), Effect.provide(measured, store))
    )
    console.log("| stops | accepted, ms (median / most) | ended, ms (median / most) |\n| --- | --- | --- |")
    const [accepted, ended] = [found.map(({ accepted }) => accepted), found.map(({ ended }) => ended)]
    console.log(`| ${times} | ${middleAndMost(accepted)} | ${middleAndMost(ended)} |`)
  } finally {
    worker.kill("SIGKILL")
    rmSync(folder, { recursive: true })
  }
}
