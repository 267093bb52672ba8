/**
 * What Heddle costs, beside the cheapest loop in plain JavaScript and on bare Effect: `npm run bench`. Models are
 * scripted, and nothing touches the network.
 *
 * - `npm run bench -- --quick` does less of everything, in a minute or two; `npm run bench -- W1 W3` only these.
 * - `npm run bench -- --check` does as little as shows whether all results are right, and prints no times.
 * - `npm run bench -- --loops=plain,heddle --samples=9` names the loops and how often each is measured.
 *
 * Each sample is a process of its own, and the loops take turns. A figure is the median of its samples, a ratio that to the
 * plain floor in the same round; `spread` is the middle half of the samples over the median. A wrong result fails its row
 * and the exit code.
 */
import * as Implementations from "./implementations.ts"
import * as Passes from "./passes.ts"
import * as Report from "./report.ts"
import * as Settings from "./settings.ts"
import { workloads } from "./workloads/index.ts"

/** What is being measured, on a line that the next one replaces; nothing where there is no terminal. */
const progress = (text: string): void => {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001B[K${text}`)
}

const verdict = (workload: string, row: Passes.Row): string =>
  `${row.failures.length === 0 ? "right" : "WRONG"} ${workload} ${row.name}`

const main = async (): Promise<boolean> => {
  const settings = Settings.parse(process.argv.slice(2))
  console.log(`${Report.machine()}\n`)
  let isRight = true
  for (const name of settings.workloads) {
    const rows = await Passes.run(name, { ...settings, onSample: progress })
    progress("")
    const floor = rows[settings.implementations.indexOf(Implementations.floor)]
    if (settings.size === "check") { for (const row of rows) console.log(verdict(name, row)) }
    else console.log(Report.table(workloads[name]!, rows, floor))
    for (const failure of rows.flatMap((row) => row.failures)) {
      isRight = false
      console.error(`${name}: ${failure}`)
    }
  }
  console.log(Report.machine())
  return isRight
}

process.exitCode = await main().then((isRight) => isRight ? 0 : 1, (error: unknown) => {
  console.error(error instanceof Error ? error.message : error)
  return 2
})
