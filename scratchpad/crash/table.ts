/** The attempts of one program as a row of the table. */
import type { EveryKill } from "heddle/testing"
import type { Row } from "./settings.ts"

type Attempt = EveryKill.Attempt

/** A column: its name, and what it says of a report. */
export type Column = readonly [name: string, cell: (report: EveryKill.Report) => string | number]

const attemptsWith = (name: string, has: (attempt: Attempt) => boolean): Column => [
  name,
  ({ attempts }) => attempts.filter(has).length
]

const callsWith = (name: string, count: (attempt: Attempt) => number): Column => [
  name,
  ({ attempts }) => attempts.reduce((sum, attempt) => sum + count(attempt), 0)
]

const repeats = (why: EveryKill.Repeat["why"]) => ({ repeats }: Attempt) =>
  repeats.filter((repeat) => repeat.why === why).length

const isTwice = (isOf: (name: string) => boolean) => ({ repeats }: Attempt) => repeats.some(({ name }) => isOf(name))

/** The middle one and the last one of the times until another process went on, in seconds. */
const takeover = ({ attempts }: EveryKill.Report): string => {
  const millis = attempts.flatMap(({ kills }) => kills.flatMap(({ takeoverMillis }) => takeoverMillis ?? []))
    .toSorted((a, b) => a - b)
  const at = (share: number) => ((millis[Math.round((millis.length - 1) * share)] ?? NaN) / 1000).toFixed(2)
  return millis.length === 0 ? "–" : `${at(0.5)} / ${at(1)}`
}

const broken = ({ violations }: EveryKill.Report): string =>
  [...new Set(violations.map(({ law }) => law))]
    .map((law) => `${law} ${violations.filter((violation) => violation.law === law).length}`).join(", ")

/** The columns: of attempts, how many; of calls, how many in all of them. */
export const columns: ReadonlyArray<Column> = [
  ["boundaries", ({ points }) => points.length],
  ["runs", ({ attempts }) => attempts.length],
  ["kills", ({ kills }) => kills],
  attemptsWith("finished", ({ isDone }) => isDone),
  callsWith("finished calls repeated", repeats("finished")),
  callsWith("silent repeats", repeats("silent")),
  attemptsWith("`charge` twice", isTwice((name) => name === "charge")),
  attemptsWith("`charge` never", ({ missing }) => missing.includes("charge")),
  attemptsWith("`lookup`, `mail`, `book` twice", isTwice((name) => name !== "charge")),
  callsWith("unknown calls", ({ unknown }) => unknown.length),
  callsWith("of these settled", ({ unknown }) => unknown.filter(({ settled }) => settled !== "none").length),
  attemptsWith("asked again", ({ extraAsked }) => extraAsked > 0),
  attemptsWith("second answer", ({ extraAnswers }) => extraAnswers > 0),
  attemptsWith("hangs", ({ violations }) => violations.some(({ law }) => law === "end")),
  ["takeover, s (median / most)", takeover],
  ["laws broken", (report) => broken(report) || "none"]
]

/** The head of a table. */
export const head = (columns: ReadonlyArray<Column>): string => {
  const names = ["store", "policy", ...columns.map(([name]) => name)]
  return `${line(names)}\n${line(names.map(() => "---"))}`
}

/** One row of it. */
export const row = (columns: ReadonlyArray<Column>, { policy, store }: Row, report: EveryKill.Report): string =>
  line([store, policy, ...columns.map(([, cell]) => String(cell(report)))])

const line = (cells: ReadonlyArray<string>): string => `| ${cells.join(" | ")} |`
