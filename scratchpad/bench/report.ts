/** What was measured, as markdown: a table for each workload, and what it was measured on. */
import { cpus, loadavg } from "node:os"
import type { Row } from "./passes.ts"
import { median, spread } from "./statistics.ts"
import type { Figures, Workload } from "./workload.ts"

/** A figure with as many digits as say something. */
const shown = (value: number): string => {
  if (Number.isNaN(value)) return "–"
  const size = Math.abs(value)
  return value.toFixed(size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)
}

const values = (row: Row, key: string): Array<number> =>
  row.rounds.flatMap((figures) => typeof figures?.[key] === "number" ? [figures[key]] : [])

/** Each sample over the floor's of the same round, the middle one of them. */
const ratio = (row: Row, floor: Row, key: string): string => {
  const ratios = row.rounds.flatMap((figures, round) => {
    const [value, below] = [figures?.[key], floor.rounds[round]?.[key]]
    return typeof value === "number" && typeof below === "number" && below > 0 ? [value / below] : []
  })
  return shown(median(ratios))
}

interface Column {
  readonly head: string
  readonly cell: (row: Row) => string
}

const texts = (
  row: Row,
  key: string
): ReadonlyArray<string> => [
  ...new Set(
    row.rounds.flatMap((figures: Figures | undefined) => typeof figures?.[key] === "string" ? [figures[key]] : [])
  )
]

const columns = (
  { metrics }: Pick<Workload, "metrics">,
  rows: ReadonlyArray<Row>,
  floor: Row | undefined
): ReadonlyArray<Column> => {
  const taken = Object.entries(metrics).filter(([key]) =>
    rows.some((row) => row.rounds.some((figures) => figures?.[key] !== undefined))
  )
  const [main] = taken.find(([, metric]) => metric.isCompared) ?? taken[0] ?? [""]
  return [
    ...taken.flatMap(([key, { isCompared, label }]): Array<Column> => [
      { head: label, cell: (row) => texts(row, key).join(", ") || shown(median(values(row, key))) },
      ...(isCompared === true && floor !== undefined
        ? [{ head: "× plain", cell: (row: Row) => ratio(row, floor, key) }]
        : [])
    ]),
    { head: "spread", cell: (row) => `${shown(spread(values(row, main)) * 100)} %` },
    { head: "samples", cell: (row) => String(values(row, main).length) }
  ]
}

const line = (cells: ReadonlyArray<string>): string => `| ${cells.join(" | ")} |`

const rowLine = (row: Row, columns: ReadonlyArray<Column>): string => {
  const [failure] = row.failures
  if (failure === undefined) return line([row.name, ...columns.map(({ cell }) => cell(row))])
  return line([row.name, `failed: ${failure.split("\n")[0]}`, ...columns.slice(1).map(() => "")])
}

/** The table of one workload. `floor` is the row that ratios are to. */
export const table = (
  workload: Pick<Workload, "title" | "note" | "metrics">,
  rows: ReadonlyArray<Row>,
  floor: Row | undefined
): string => {
  const shownColumns = columns(workload, rows, floor)
  return [
    `### ${workload.title}`,
    "",
    workload.note,
    "",
    line(["", ...shownColumns.map(({ head }) => head)]),
    line(["---", ...shownColumns.map(() => "--:")]),
    ...rows.map((row) => rowLine(row, shownColumns)),
    ""
  ].join("\n")
}

/** What figures hold on. */
export const machine = (): string => {
  const processors = cpus()
  const load = loadavg()[0] ?? Number.NaN
  return `Node ${process.version}, ${processors.length} × ${processors[0]?.model ?? "unknown"}, load ${load.toFixed(2)}`
}
