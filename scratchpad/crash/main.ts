/**
 * Kills a program of four kinds of calls by SIGKILL, starts it again, and says what came of it.
 *
 * - `npm run crash` kills it once at each of its boundaries, for each store and each policy for calls of which it is not
 *   known whether they happened.
 * - `npm run crash -- --store sqlite --policy report` runs one row; `--again random` or `--again every` kills the recovery
 *   as well; `--ids new` has a model that gives its calls new ids at each asking; `--limit N` tries N boundaries.
 * - `npm run crash -- --stops` measures how long a stop from another process takes.
 * - `npm run crash -- --langgraph --store sqlite` compares with LangGraph JS, which `npm ci --prefix
 *   scratchpad/crash/langgraph` installs.
 * - `npm run crash -- --kills N --seed S` kills at N times one to three random boundaries.
 *
 * The exit code is 1 if a law was broken. What `continue` does is not held to the laws: it leaves the run that was cut, and
 * comes to another result.
 */
import * as Effect from "effect/Effect"
import { everyKill } from "heddle/testing"
import { bundle } from "./bundle.ts"
import * as Comparison from "./comparison.ts"
import { difference } from "./result.ts"
import { withServer } from "./server.ts"
import { settings } from "./settings.ts"
import { stops } from "./stops.ts"
import * as Table from "./table.ts"

const { isComparison, isOfStops, rows } = settings(process.argv.slice(2))
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

if (isOfStops) await withServer(stops)
else await (rows.some(({ isServed }) => isServed) ? withServer(run) : run(""))
for (const message of broken) console.error(message.slice(0, 500))
process.exitCode = broken.length === 0 ? 0 : 1
