/**
 * What Heddle costs, beside the cheapest loop in plain JavaScript and on bare Effect: `npm run bench`. Models are
 * scripted, and nothing touches the network.
 *
 * - `npm run bench -- --quick` does less of everything, in a minute or two; `npm run bench -- W1 W3` only these.
 * - `npm run bench -- --check` does as little as shows whether all results are right, and prints no times.
 * - `npm run bench -- --counts` counts the work of a delta, a fragment, a call and a run, which repeats exactly.
 * - `npm run bench -- --served` finds how many sessions one server holds, and the chat of the AI SDK beside it, and the
 *   longest task of the page.
 * - `npm run bench -- --peers` measures the loops of others as well. They, and the bundler that W9 needs, are installed
 *   first: `npm ci --prefix scratchpad/bench/peers`.
 * - `npm run bench -- --loops=plain,heddle --samples=9` names the loops and how often each is measured.
 *
 * The rows of K1 to K3 are runs that are kept, on each store; Postgres is started for them.
 *
 * Each sample is a process of its own, and the loops take turns. A figure is the median of its samples, a ratio that to the
 * plain floor in the same round; `spread` is the middle half of the samples over the median. A wrong result fails its row
 * and the exit code.
 */
import { withServer } from "../crash/server.ts"
import * as Cold from "./cold.ts"
import * as Counts from "./counts.ts"
import * as Implementations from "./implementations.ts"
import * as Stores from "./kept/stores.ts"
import { workloads as kept } from "./kept/workloads.ts"
import * as Passes from "./passes.ts"
import * as Report from "./report.ts"
import * as Served from "./served/main.ts"
import * as Pages from "./served/page.ts"
import * as Settings from "./settings.ts"
import type { Figures } from "./workload.ts"
import { workloads } from "./workloads/index.ts"

/** What is being measured, on a line that the next one replaces; nothing where there is no terminal. */
const progress = (text: string): void => {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001B[K${text}`)
}

/** A cold start has nothing to be taken in a process that runs already. */
const measured = async (name: string, settings: Settings.Settings): Promise<ReadonlyArray<Passes.Row>> => {
  if (name !== "W9") return Passes.run(name, { ...settings, onSample: progress })
  if (Implementations.areInstalled()) return Cold.measure(settings.implementations, settings.samples * 2)
  console.log(`W9 is left out, for want of a bundler: ${Implementations.installCommand}\n`)
  return []
}

/** The workloads of kept runs on every store, and a table for each. */
const measureKept = async (settings: Settings.Settings): Promise<ReadonlyArray<string>> => {
  if (settings.kept.length === 0) return []
  const wrong: Array<string> = []
  await withServer(async (address) => {
    process.env[Stores.address] = address
    for (const name of settings.kept) {
      const implementations = Object.keys(Stores.stores)
      const own = { ...settings, implementations, program: "kept/sample.ts", onSample: progress } as const
      const rows = await Passes.run(name, own)
      progress("")
      console.log(Report.table(kept[name]!, rows, undefined))
      wrong.push(...complaints(name, rows))
    }
  })
  return wrong
}

const complaints = (workload: string, rows: ReadonlyArray<Passes.Row>): ReadonlyArray<string> =>
  rows.flatMap(({ failures, name }) => failures.map((failure) => `${workload}, ${name}: ${failure}`))

/** Every workload on every loop, and a table for each. */
const measure = async (settings: Settings.Settings): Promise<ReadonlyArray<string>> => {
  const wrong: Array<string> = []
  console.log(`${Report.machine()}\n`)
  if (settings.size === "quick") console.log("Quick: sizes are smaller than the tables say.\n")
  for (const name of settings.workloads) {
    const rows = await measured(name, settings)
    progress("")
    const floor = rows[settings.implementations.indexOf(Implementations.floor)]
    const { metrics } = workloads[name]!
    // A workload that is about Heddle alone has no figures of other loops.
    const hasFigures = (figures: Figures | undefined) =>
      Object.keys(metrics).some((key) => figures?.[key] !== undefined)
    const shown = rows.filter(({ failures, rounds }) => failures.length > 0 || rounds.some(hasFigures))
    if (shown.length > 0) console.log(Report.table(workloads[name]!, shown, floor))
    wrong.push(...complaints(name, rows))
  }
  wrong.push(...await measureKept(settings))
  if (settings.isWithPeers) console.log(Implementations.versions())
  console.log(Report.machine())
  return wrong
}

/** Every workload on every loop, and one line for each: the loops beside each other, since no time counts. */
const check = async (settings: Settings.Settings): Promise<ReadonlyArray<string>> => {
  const checked = await Promise.all([
    ...settings.implementations.map((implementation) => Passes.check(implementation, settings.workloads)),
    ...settings.kept.length === 0
      ? []
      : Stores.alone.map((store) => Passes.check(store, settings.kept, "kept/sample.ts"))
  ])
  return checked.flatMap((rows, place) =>
    rows.flatMap((row, index) => {
      const names = place < settings.implementations.length ? settings.workloads : settings.kept
      const workload = names[index]!
      console.log(`${row.failures.length === 0 ? "right" : "wrong"}: ${workload}, ${row.name}`)
      return complaints(workload, [row])
    })
  )
}

const main = async (): Promise<number> => {
  const settings = Settings.parse(process.argv.slice(2))
  if (settings.isCounted) {
    console.log(await Counts.table(settings.implementations))
    return 0
  }
  if (settings.isServed) {
    await Served.measure()
    await Pages.measure()
    return 0
  }
  const wrong = await (settings.size === "check" ? check(settings) : measure(settings))
  for (const line of wrong) console.error(line)
  return wrong.length === 0 ? 0 : 1
}

process.exitCode = await main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error)
  return 2
})
