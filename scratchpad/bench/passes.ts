/**
 * Takes the samples of a workload: each in a fresh process, and all loops in turn before any comes again, so that a slow
 * minute of the machine hits all of them.
 */
import { fork } from "node:child_process"
import { join } from "node:path"
import type { Message } from "./sample.ts"
import type { Figures, Size } from "./workload.ts"

/** The samples of one loop. `rounds` has a place for each round, empty where the loop sat it out. */
export interface Row {
  name: string
  readonly rounds: Array<Figures | undefined>
  readonly failures: Array<string>
  millis: number
}

const patience: Readonly<Record<Size, number>> = { full: 150_000, quick: 60_000, check: 30_000 }

/** A sample that takes long is taken less often. */
const often = (millis: number): number => millis > 10_000 ? 2 : millis > 4_000 ? 3 : Infinity

const take = (implementation: string, workload: string, size: Size): Promise<Message> =>
  new Promise((resolve) => {
    const child = fork(join(import.meta.dirname, "sample.ts"), [implementation, workload, size], {
      execArgv: [...process.execArgv, "--expose-gc", "--max-old-space-size=8192"],
      silent: true
    })
    let complaint = ""
    child.stderr?.on("data", (data) => {
      complaint += String(data)
    })
    const timer = setTimeout(() => {
      child.kill("SIGKILL")
      resolve({ type: "failure", error: `no result within ${patience[size] / 1_000} s` })
    }, patience[size])
    child.on("message", (message) => resolve(message as Message))
    child.on("exit", (code) => {
      clearTimeout(timer)
      resolve({ type: "failure", error: `ended with ${code} and said nothing: ${complaint.trim()}` })
    })
  })

const sampled = async (row: Row, implementation: string, workload: string, size: Size): Promise<void> => {
  const start = performance.now()
  const message = await take(implementation, workload, size)
  row.millis += performance.now() - start
  if (message.type === "figures") {
    row.name = message.loop
    row.rounds.push(message.figures)
  } else {
    row.failures.push(message.error)
    row.rounds.push(undefined)
  }
}

/** All samples of one workload. A loop that gave a wrong result is not asked again. */
export const run = async (
  workload: string,
  { implementations, samples, size, onSample }: {
    readonly implementations: ReadonlyArray<string>
    readonly samples: number
    readonly size: Size
    readonly onSample: (text: string) => void
  }
): Promise<ReadonlyArray<Row>> => {
  const rows = implementations.map((name): Row => ({ name, rounds: [], failures: [], millis: 0 }))
  for (let round = 0; round < samples; round++) {
    for (const [index, row] of rows.entries()) {
      const isDue = row.failures.length === 0 && (round === 0 || round < often(row.millis / round))
      if (!isDue) continue
      onSample(`${workload}, ${row.name}: sample ${round + 1} of ${samples}`)
      await sampled(row, implementations[index]!, workload, size)
    }
  }
  return rows
}
