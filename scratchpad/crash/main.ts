/**
 * Kills a program of four kinds of calls by SIGKILL, starts it again, and says what came of it. `npm run crash -- --help`
 * prints the options. `npm run crash -- leave` makes processes leave, freezes them and sets their clocks: see `leave/main.ts`.
 */
import * as Effect from "effect/Effect"
import { everyKill } from "heddle/testing"
import { bundle } from "./bundle.ts"
import * as Comparison from "./comparison.ts"
import { leave } from "./leave/main.ts"
import { difference } from "./result.ts"
import { withServer } from "./server.ts"
import { settings, usage, usageMessage } from "./settings.ts"
import { steers } from "./steers.ts"
import { stops } from "./stops.ts"
import * as Table from "./table.ts"

/** Kills the program as the command line asks for. Returns the exit code. */
const kill = async (args: ReadonlyArray<string>): Promise<number> => {
  const { isComparison, isHelp, isOfStops, rows, steerKills } = settings(args)
  const columns = isComparison ? Comparison.columns : Table.columns
  const broken: Array<string> = []

  const run = async (server: string): Promise<void> => {
    console.log(Table.head(columns))
    for (const row of rows) {
      const { isHeld, isServed, options, policy, program, store } = row
      const args = [...options.args ?? [], ...isServed ? ["--server", server] : []]
      const compared = isHeld ? { difference } : {}
      const report = await Effect.runPromise(everyKill(await bundle(program), { ...options, args, ...compared }))
      console.log(Table.row(columns, row, report))
      if (!isHeld && report.attempts.length > 0) continue
      for (const { law, message, plan } of report.violations) {
        broken.push(`${store} ${policy} at ${plan.join()}: ${law}: ${message}`)
      }
    }
  }

  if (isHelp) console.log(usage)
  else if (isOfStops) await withServer(stops)
  else if (steerKills !== undefined) {
    await withServer(async (server) => void broken.push(...await steers(server, steerKills)))
  } else await (rows.some(({ isServed }) => isServed) ? withServer(run) : run(""))
  for (const message of broken) console.error(message.slice(0, 500))
  return broken.length === 0 ? 0 : 1
}

const [command, ...others] = process.argv.slice(2)

process.exitCode = await (command === "leave" ? leave(others) : kill(process.argv.slice(2))).catch((error: unknown) => {
  const message = usageMessage(error)
  if (message === undefined) throw error
  console.error(message)
  return 2
})
