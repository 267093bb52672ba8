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

const patience: Readonly<Record<Size, number>> = { full: 150_000, quick: 60_000, check: 180_000 }

/** The program of a sample: of a loop, or of a store in the workloads of kept runs. */
export type Program = "sample.ts" | "kept/sample.ts"

/** What each workload came to, in their order. One that said nothing failed. */
const take = (
  implementation: string,
  workloads: ReadonlyArray<string>,
  size: Size,
  program: Program
): Promise<ReadonlyArray<Message>> =>
  new Promise((resolve) => {
    const child = fork(join(import.meta.dirname, program), [implementation, size, ...workloads], {
      execArgv: [...process.execArgv, "--expose-gc", "--max-old-space-size=8192"],
      silent: true
    })
    const messages: Array<Message> = []
    let complaint = ""
    let end = ""
    child.on("message", (message) => messages.push(message as Message))
    // What a library prints is read, for the process is not over before, and not shown.
    child.stdout?.resume()
    child.stderr?.on("data", (data) => {
      complaint += String(data)
    })
    const timer = setTimeout(() => {
      end = `no result within ${patience[size] / 1_000} s`
      child.kill("SIGKILL")
    }, patience[size])
    child.on("close", (code) => {
      clearTimeout(timer)
      const error = end === "" ? `ended with ${code} and said nothing: ${complaint.trim()}` : end
      resolve(workloads.map((_, index) => messages[index] ?? { type: "failure", error }))
    })
  })

const add = (row: Row, message: Message): void => {
  if (message.type === "figures") {
    row.name = message.loop
    row.rounds.push(message.figures)
  } else {
    row.failures.push(message.error)
    row.rounds.push(undefined)
  }
}

/** Each workload once on one loop, in one process for all of them: for the results, and not for the times. */
export const check = async (
  implementation: string,
  workloads: ReadonlyArray<string>,
  program: Program = "sample.ts"
): Promise<ReadonlyArray<Row>> =>
  (await take(implementation, workloads, "check", program)).map((message) => {
    const row: Row = { name: implementation, rounds: [], failures: [], millis: 0 }
    add(row, message)
    return row
  })

/** A loop whose samples take long is asked less often, and one that gave a wrong result not again. */
const isDue = ({ failures, millis, rounds }: Row): boolean => {
  const taken = rounds.filter((figures) => figures !== undefined).length
  const each = millis / taken
  return failures.length === 0 && (taken === 0 || taken < (each > 10_000 ? 2 : each > 4_000 ? 3 : Infinity))
}

/** All samples of one workload. */
export const run = async (
  workload: string,
  { implementations, samples, size, onSample, program = "sample.ts" }: {
    readonly implementations: ReadonlyArray<string>
    readonly samples: number
    readonly size: Size
    readonly onSample: (text: string) => void
    readonly program?: Program
  }
): Promise<ReadonlyArray<Row>> => {
  const rows = implementations.map((name): Row => ({ name, rounds: [], failures: [], millis: 0 }))
  for (let round = 0; round < samples; round++) {
    for (const [index, row] of rows.entries()) {
      if (!isDue(row)) {
        row.rounds.push(undefined)
        continue
      }
      onSample(`${workload}, ${row.name}: sample ${round + 1} of ${samples}`)
      const start = performance.now()
      const messages = await take(implementations[index]!, [workload], size, program)
      row.millis += performance.now() - start
      for (const message of messages) add(row, message)
    }
  }
  return rows
}
