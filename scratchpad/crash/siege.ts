/**
 * A cluster under siege, D-14 at full length: three runners over Postgres, one of which is killed every few seconds while runs
 * go on, each with a reader of its events. `--runs 100 --kills 60 --every 5000` takes five minutes. With `--busy 6 --kills 0
 * --minutes 10` no runner is killed: as many processes that only keep a core busy are beside them. The exit code is 1 if a run
 * or the events of one did not end, or a run did not have its effect once.
 *
 * `node --conditions=source scratchpad/crash/siege.ts`
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { spawn } from "node:child_process"
import { parseArgs } from "node:util"
import * as Processes from "../../test/cluster/support/processes.ts"
import { siege } from "../../test/cluster/support/siege.ts"
import { withServer } from "./server.ts"

const { values } = parseArgs({
  options: {
    runs: { type: "string", default: "100" },
    kills: { type: "string", default: "60" },
    every: { type: "string", default: "5000" },
    minutes: { type: "string" },
    busy: { type: "string", default: "0" }
  }
})
const [runs, kills, every, busy] = [values.runs, values.kills, values.every, values.busy].map(Number) as [
  number,
  number,
  number,
  number
]
const over = values.minutes === undefined ? kills * every : Number(values.minutes) * 60_000

/** Processes that keep a core busy each. */
const disturbed = Effect.acquireRelease(
  Effect.sync(() =>
    Array.from({ length: busy }, () => spawn(process.execPath, ["--eval", "while (true) {}"], { stdio: "ignore" }))
  ),
  (processes) => Effect.sync(() => processes.forEach((process) => process.kill("SIGKILL")))
)

const program = (server: string) =>
  Effect.gen(function*() {
    const database = `${server}/postgres`
    const world = yield* Processes.world
    const runners = yield* Effect.forEach([1, 2, 3], () => Processes.start({ database, world }), { concurrency: 3 })
    yield* Processes.settled(runners)
    yield* disturbed
    // A runner counts those of the last five minutes.
    let lostClaims = 0
    const before = new Map<Processes.Runner, number>()
    const counted = Effect.sync(() => {
      for (const runner of runners) {
        lostClaims += Math.max(0, runner.lostClaims() - (before.get(runner) ?? 0))
        before.set(runner, runner.lostClaims())
      }
    })
    yield* Effect.forkChild(Effect.repeat(counted, Schedule.spaced("1 second")))
    const besieged = siege({ database, world, runs, kills, every, over, wait: every / 2 }, runners)
    const report = yield* Effect.provide(besieged, Processes.client(database))
    yield* counted
    return { ...report, lostClaims }
  }).pipe(Effect.scoped)

await withServer(async (server) => {
  const { runners: _, ...report } = await Effect.runPromise(program(server))
  console.log({ ...report, busy })
  process.exitCode = report.broken.length === 0 && report.charges === runs ? 0 : 1
})
