/**
 * A cluster under siege, D-14 at full length: three runners over Postgres, one of which is killed every few seconds while runs
 * go on. `node --conditions=source scratchpad/crash/siege.ts --runs 100 --kills 60 --every 5000` takes five minutes. The exit
 * code is 1 if a run did not end, or did not have its effect once.
 */
import * as Effect from "effect/Effect"
import { parseArgs } from "node:util"
import * as Processes from "../../test/cluster/support/processes.ts"
import { siege } from "../../test/cluster/support/siege.ts"
import { withServer } from "./server.ts"

const { values } = parseArgs({
  options: {
    runs: { type: "string", default: "100" },
    kills: { type: "string", default: "60" },
    every: { type: "string", default: "5000" }
  }
})
const [runs, kills, every] = [values.runs, values.kills, values.every].map(Number) as [number, number, number]

const program = (server: string) =>
  Effect.gen(function*() {
    const database = `${server}/postgres`
    const world = yield* Processes.world
    const runners = yield* Effect.forEach([1, 2, 3], () => Processes.start({ database, world }), { concurrency: 3 })
    yield* Processes.settled(runners)
    const besieged = siege({ database, world, runs, kills, every, wait: every / 2 }, runners)
    return yield* Effect.provide(besieged, Processes.client(database))
  }).pipe(Effect.scoped)

await withServer(async (server) => {
  const { runners: _, ...report } = await Effect.runPromise(program(server))
  console.log(report)
  process.exitCode = report.broken.length === 0 && report.charges === runs ? 0 : 1
})
