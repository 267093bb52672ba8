/**
 * What a workload is, and how one run of it is driven and judged. A workload that comes to a wrong result throws, and
 * there is no figure without a right one.
 */
import type { Ending, Guarantee, Implementation, Loop, Run } from "./loop.ts"
import { callsThenAnswer, type Model, type Read, reads } from "./model.ts"

/** How much is done: `check` is as little as shows whether the results are right. */
export type Size = "full" | "quick" | "check"

export interface Metric {
  readonly label: string
  /** Whether it is shown as a ratio to the plain floor as well. The first such one is what the spread is of. */
  readonly isCompared?: boolean
}

/** What one sample came to, by the names of the workload's metrics. What was left out is not there. */
export type Figures = Readonly<Record<string, number | string | undefined>>

export interface Workload {
  readonly title: string
  readonly note: string
  readonly metrics: Readonly<Record<string, Metric>>
  readonly run: (implementation: Implementation, size: Size) => Promise<Figures>
}

/** What a reader of a run saw. */
export interface Seen {
  readonly ending: Ending
  readonly characters: number
  readonly results: number
  readonly sum: number
}

/** Throws unless the two are the same. */
export const expect = (what: string, actual: unknown, expected: unknown): void => {
  if (actual !== expected) throw new Error(`wrong result: ${what}: ${String(actual)}, not ${String(expected)}`)
}

/** Throws if the implementation promises something and did not keep it. */
export const expectPromised = (
  { guarantees }: Implementation,
  guarantee: Guarantee,
  what: string,
  actual: unknown,
  expected: unknown
): void => {
  if (guarantees.includes(guarantee)) expect(`${guarantee}: ${what}`, actual, expected)
}

/** No two runs are asked the same, so that a loop may know them apart by it. */
let asked = 0

/** One run, read to its end. `onResult` gets each result as it is seen. */
export const drive = async (
  loop: Loop,
  run: Pick<Run, "model"> & Partial<Run>,
  onResult: () => void = () => {}
): Promise<Seen> => {
  let characters = 0
  let results = 0
  let sum = 0
  const ending = await loop.run({
    prompt: `benchmark ${++asked}`,
    onText: (delta) => {
      characters += delta.length
      return true
    },
    onResult: ({ value }) => {
      onResult()
      results++
      sum += value
    },
    onEvent: () => {},
    ...run
  })
  return { ending, characters, results, sum }
}

/** A run of calls in one turn and an answer, and whether it came to what it should. */
export const driveCalls = async (
  loop: Loop,
  model: Model,
  expected: { readonly results: number; readonly sum: number }
) => {
  const seen = await drive(loop, { model })
  expect("tool results", seen.results, expected.results)
  expect("sum of the results", seen.sum, expected.sum)
  expect("characters of the answer", seen.characters, "done".length)
  expect("model calls", model.requests.length, 2)
  expect("replies that are closed", model.closed, 2)
}

/** The same where call number n was answered n + 1. */
export const driveBatch = async (loop: Loop, batch: ReadonlyArray<Read>): Promise<void> => {
  const results = batch.length
  await driveCalls(loop, callsThenAnswer(() => reads(batch)), { results, sum: results * (results + 1) / 2 })
}

export const elapsed = async (work: () => Promise<unknown>): Promise<number> => {
  const start = performance.now()
  await work()
  return performance.now() - start
}

/** How long something takes, several times over: at least `least` times, and until so many milliseconds are over. */
export const repeated = async (
  work: () => Promise<unknown>,
  { least, most, millis }: { readonly least: number; readonly most: number; readonly millis: number }
): Promise<Array<number>> => {
  const start = performance.now()
  const times: Array<number> = []
  while (times.length < least || (times.length < most && performance.now() - start < millis)) {
    times.push(await elapsed(work))
    if (performance.now() - start > patienceMillis) break
  }
  return times
}

/** A cell that takes longer is not measured again, and larger ones of the same kind are left out. */
export const patienceMillis = 6_000
