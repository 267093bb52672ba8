/**
 * The picture of a run that is over: a bar per model turn and per call on one time axis, and under it the outcome, the
 * counts and the usage. Nothing in it is wider than the columns it is given, or than 80.
 */
import type { Response } from "heddle"
import * as Paint from "./paint.ts"
import * as Run from "./run.ts"

const maxColumns = 80
const maxRows = 30
const widestLabel = 28
const timeWidth = 8
/** The gaps of a row: the margin, and one before and after the bar. */
const gaps = 4

interface Row {
  readonly label: string
  readonly start: number
  readonly end: number
  readonly fill: string
  readonly style: Paint.Style
}

const fills: Readonly<Record<Run.Standing, readonly [string, Paint.Style]>> = {
  waiting: ["·", "dim"],
  running: ["█", "accent"],
  done: ["█", "good"],
  failed: ["▓", "bad"],
  asking: ["█", "accent"],
  stopped: ["▒", "bad"]
}

const label = (call: Run.Call, cells: number): string => {
  const room = cells - Paint.width(call.name) - 1
  if (call.subject === "" || room < 6) return Paint.cut(call.name, cells)
  return `${call.name} ${
    /^\S+$/.test(call.subject) ? Paint.cutPath(call.subject, room) : Paint.cut(call.subject, room)
  }`
}

const rows = (run: Run.Run, labelCells: number): ReadonlyArray<Row> => {
  const turns = run.turns.flatMap(({ endedAt, startedAt }, index): ReadonlyArray<Row> =>
    endedAt === undefined
      ? []
      : [{
        label: Paint.cut(`model, turn ${index + 1}`, labelCells),
        start: startedAt,
        end: endedAt,
        fill: "░",
        style: "dim"
      }]
  )
  const calls = Run.calls(run).flatMap((call): ReadonlyArray<Row> => {
    if (call.startedAt === undefined || call.endedAt === undefined) return []
    const [fill, style] = fills[call.standing]
    return [{ label: label(call, labelCells), start: call.startedAt, end: call.endedAt, fill, style }]
  })
  return [...turns, ...calls].sort((left, right) => left.start - right.start)
}

/** At least one cell for every bar: what has happened is seen. */
const barOf = (row: Row, from: number, span: number, cells: number): readonly [number, number] => {
  const start = Math.min(cells - 1, Math.floor(((row.start - from) / span) * cells))
  const end = Math.max(start + 1, Math.min(cells, Math.round(((row.end - from) / span) * cells)))
  return [start, end]
}

/** The bars, one per line, under a line that says what the axis spans. */
export const bars = (run: Run.Run, columns: number, paint: Paint.Paint): ReadonlyArray<string> => {
  const total = Math.min(columns, maxColumns)
  const labelCells = Math.min(widestLabel, Math.floor(total / 3))
  const all = rows(run, labelCells)
  if (all.length === 0) return []
  const cells = Math.max(1, total - labelCells - timeWidth - gaps)
  const from = Math.min(...all.map((row) => row.start))
  const span = Math.max(1, Math.max(...all.map((row) => row.end)) - from)
  const lines = all.slice(0, maxRows).map((row) => {
    const [start, end] = barOf(row, from, span, cells)
    const drawn = " ".repeat(start) + paint(row.style, row.fill.repeat(end - start)) + " ".repeat(cells - end)
    const time = Paint.duration(row.end - row.start).padStart(timeWidth)
    return `  ${Paint.pad(row.label, labelCells)} ${drawn} ${paint("dim", time)}`
  })
  const end = Paint.duration(span)
  const axis = `0 s ${"─".repeat(Math.max(1, cells - 5 - end.length))} ${end}`
  const more = all.length > maxRows ? [paint("dim", `  … and ${all.length - maxRows} more`)] : []
  return [`  ${" ".repeat(labelCells)} ${paint("dim", Paint.cut(axis, cells + timeWidth))}`, ...lines, ...more]
}

const many = (count: number, noun: string): string => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`

/** What the run came to, in a word or two. */
const outcomeOf = (run: Run.Run): readonly [string, Paint.Style] => {
  const outcome = run.result?.outcome
  switch (outcome?._tag) {
    case undefined:
      return ["Stopped", "bad"]
    case "Completed":
      return ["Completed", "good"]
    case "AskUser":
      return ["Waits for the user", "accent"]
    case "MaxTurns":
      return [`Gave up after ${many(outcome.maxTurns, "turn")}`, "bad"]
    case "Halted":
      return [`Halted by a tool: ${outcome.reason}`, "bad"]
    case "ToolFailed":
      return ["Ended by a failed tool", "bad"]
    case "Cancelled":
      return ["Cancelled", "bad"]
    default:
      return [outcome?._tag ?? "", "bad"]
  }
}

/** The outcome, the counts and the usage in one line; `unit` is what the model counts its usage in. */
export const caption = (
  run: Run.Run,
  usage: Response.Usage | null,
  unit: string,
  paint: Paint.Paint
): string => {
  const [outcome, style] = outcomeOf(run)
  const turns = run.turns.filter((turn) => turn.endedAt !== undefined)
  const ends = [...turns.map((turn) => turn.endedAt), ...Run.calls(run).map((call) => call.endedAt)]
  const took = Math.max(0, ...ends.filter((end) => end !== undefined)) - (turns[0]?.startedAt ?? 0)
  const counts = [many(turns.length, "turn"), many(Run.calls(run).length, "call"), Paint.duration(took)]
  const used = usage === null || (usage.inputTokens === null && usage.outputTokens === null)
    ? []
    : [`${many(usage.inputTokens ?? 0, unit)} in, ${(usage.outputTokens ?? 0).toLocaleString("en")} out`]
  return `${paint(style, outcome)} · ${[...counts, ...used].join(" · ")}`
}
