/**
 * Kills a program of four kinds of calls by SIGKILL, starts it again, and says what came of it.
 *
 * - `npm run crash` kills it once at each of its boundaries, for each store and each policy for calls of which it is not
 *   known whether they happened.
 * - `npm run crash -- --store sqlite --policy report` runs one row; `--again random` or `--again every` kills the recovery
 *   as well; `--ids new` has a model that gives its calls new ids at each asking; `--limit N` tries N boundaries.
 * - `npm run crash -- --kills N --seed S` kills at N times one to three random boundaries.
 *
 * The exit code is 1 if a law was broken. What `continue` does is not held to the laws: it goes on without what the journal
 * knows of the cut run, as a contrast.
 */
import * as Effect from "effect/Effect"
import { type EveryKill, everyKill } from "heddle/testing"
import { join } from "node:path"
import { bundle } from "./bundle.ts"
import { difference } from "./result.ts"
import { settings } from "./settings.ts"
import * as Table from "./table.ts"

const { options, rows } = settings(process.argv.slice(2))
const program = await bundle(join(import.meta.dirname, "program.ts"))

console.log(Table.head(["store", "policy"]))
const broken: Array<string> = []
for (const { policy, store } of rows) {
  const args = [...options.args ?? [], "--store", store, "--policy", policy]
  const report: EveryKill.Report = await Effect.runPromise(everyKill(program, { ...options, args, difference }))
  console.log(Table.row([store, policy], report))
  if (policy === "continue") continue
  broken.push(
    ...report.violations.map(({ law, message, plan }) => `${store} ${policy} at ${plan.join()}: ${law}: ${message}`)
  )
}
for (const message of broken) console.error(message.slice(0, 500))
process.exitCode = broken.length === 0 ? 0 : 1
