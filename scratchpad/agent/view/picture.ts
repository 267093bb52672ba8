/**
 * The picture of a run that is over: for each turn one time axis, on it the reply and a bar per call, with marks for what
 * started before the reply had ended, waited at the barrier, was stopped or left behind; and under it the outcome, the
 * counts and the usage. A pure function of the run; nothing in it is wider than the columns it is given, or than 80.
 */
import type { Response } from "heddle"
import * as Layout from "./layout.ts"
import * as Marks from "./marks.ts"
import * as Paint from "./paint.ts"
import * as Run from "./run.ts"
import * as Timeline from "./timeline.ts"

const maxColumns = 80
const maxLanes = 12
const widestLabel = 24
/** A blank and a duration. Where it is narrow, the bars are worth more. */
const timeWidth = 9
const leastForTime = 40
/** The margin and the two marks before a label. */
const gutter = 5

/** What the picture is drawn on: how many columns there are for what. */
interface Sheet {
  readonly label: number
  readonly cells: number
  readonly time: number
  readonly paint: Paint.Paint
}

const sheetOf = (columns: number, paint: Paint.Paint): Sheet => {
  const total = Math.min(columns, maxColumns)
  const label = Math.min(widestLabel, Math.floor(total / 3) - 2)
  const time = total < leastForTime ? 0 : timeWidth
  return { label, cells: total - gutter - label - 1 - time, time, paint }
}

/** Neighbours of one style are painted together. */
const painted = (cells: ReadonlyArray<Marks.Mark>, paint: Paint.Paint): string => {
  let text = ""
  for (let at = 0; at < cells.length;) {
    const style = cells[at]?.[1] ?? "plain"
    let letters = ""
    for (; cells[at]?.[1] === style; at++) letters += cells[at]?.[0]
    text += paint(style, letters)
  }
  return text
}

const labelOf = (call: Run.Call, cells: number): string => {
  const room = cells - Paint.width(call.name) - 1
  if (call.subject === "" || room < 6) return Paint.cut(call.name, cells)
  const isPath = /^\S+$/.test(call.subject)
  return `${call.name} ${isPath ? Paint.cutLeft(call.subject, room) : Paint.cut(call.subject, room)}`
}

interface Row {
  readonly marks: string
  readonly label: string
  readonly cells: ReadonlyArray<Marks.Mark>
  readonly span: Timeline.Span | undefined
}

const drawn = ({ cells, label, marks, span }: Row, sheet: Sheet): string => {
  const time = span === undefined || sheet.time === 0 ? "" : Paint.duration(span.to - span.from)
  const named = Paint.pad(Paint.cut(label, sheet.label), sheet.label)
  return `  ${marks} ${named} ${painted(cells, sheet.paint)}${sheet.paint("dim", time.padStart(sheet.time))}`
}

/** The line above a turn: its number, and when on the clock of the run its axis begins and ends. */
const heading = ({ number, whole }: Timeline.Stretch, zero: number, { cells, label, paint, time }: Sheet): string => {
  const title = Paint.pad(Paint.cut(`turn ${number}`, label + 3), label + 3)
  const [from, to] = [whole.from === zero ? "0 s" : Paint.duration(whole.from - zero), Paint.duration(whole.to - zero)]
  const axis = `${from} ${"─".repeat(Math.max(1, cells - from.length - to.length - 2))} ${to}`
  return `  ${paint("bold", title)} ${paint("dim", Paint.cut(axis, cells + time))}`
}

const paintedMarks = (marks: ReadonlyArray<Marks.Mark>, paint: Paint.Paint): string =>
  marks.map(([letter, style]) => paint(style, letter)).join("")

const turnLines = (stretch: Timeline.Stretch, zero: number, sheet: Sheet): ReadonlyArray<string> => {
  const { lanes, reply } = Layout.make(stretch, sheet.cells)
  const model: Row = {
    marks: paintedMarks(
      [Marks.none, stretch.standing === "done" ? Marks.none : Marks.standing[stretch.standing]],
      sheet.paint
    ),
    label: "model",
    cells: reply,
    span: { from: stretch.whole.from, to: stretch.speaks.to }
  }
  const calls = stretch.lanes.slice(0, maxLanes).map((lane, index): Row => ({
    marks: paintedMarks([Marks.start(lane), Marks.standing[lane.call.standing]], sheet.paint),
    label: labelOf(lane.call, sheet.label),
    cells: lanes[index] ?? [],
    span: lane.runs
  }))
  const hidden = stretch.lanes.length - calls.length
  return [
    heading(stretch, zero, sheet),
    ...[model, ...calls].map((row) => drawn(row, sheet).trimEnd()),
    ...hidden === 0 ? [] : [sheet.paint("dim", Paint.cut(`     … and ${hidden} more calls`, sheet.label + gutter))]
  ]
}

/** What the marks in the picture mean, and how often there is each. */
const legend = (stretches: ReadonlyArray<Timeline.Stretch>, columns: number): ReadonlyArray<string> => {
  const lanes = stretches.flatMap((stretch) => stretch.lanes)
  const all = [...stretches.map(({ standing }) => standing), ...lanes.map(({ call }) => call.standing)]
  const standing = (of: Run.Standing) => all.filter((each) => each === of).length
  const counts: ReadonlyArray<readonly [Marks.Mark, meaning: string, count: number]> = [
    [Marks.early, "started before the reply had ended", lanes.filter(({ call }) => call.isEarly).length],
    [Marks.barrier, "waited at the barrier", lanes.filter((lane) => lane.waitsAtBarrier !== undefined).length],
    [Marks.standing.failed, "failed", standing("failed")],
    [Marks.standing.stopped, "stopped", standing("stopped")],
    [Marks.standing.abandoned, "refused to stop, left behind", standing("abandoned")]
  ]
  const told = counts.flatMap(([[letter], meaning, count]) => count === 0 ? [] : [`${letter} ${count} ${meaning}`])
  return told.length === 0 ? [] : ["", ...inLines(told, Math.min(columns, maxColumns))]
}

/** As many of them on a line as fit. */
const inLines = (items: ReadonlyArray<string>, columns: number): ReadonlyArray<string> => {
  const lines: Array<string> = []
  for (const item of items) {
    const longer = `${lines.at(-1)}   ${item}`
    if (lines.length > 0 && Paint.width(longer) <= columns) lines[lines.length - 1] = longer
    else lines.push(Paint.cut(`  ${item}`, columns))
  }
  return lines
}

/** The turns, one below the other, and what their marks mean. */
export const timeline = (run: Run.Run, columns: number, paint: Paint.Paint): ReadonlyArray<string> => {
  const sheet = sheetOf(columns, paint)
  const stretches = Timeline.stretches(run)
  const zero = stretches[0]?.whole.from ?? 0
  const turns = stretches.flatMap((stretch, index) => [
    ...index === 0 ? [] : [""],
    ...turnLines(stretch, zero, sheet)
  ])
  return [...turns, ...legend(stretches, columns)]
}

const many = (count: number, noun: string): string => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`

/** What the run came to, in a word or two. */
const outcomeOf = (run: Run.Run): readonly [string, Paint.Style] => {
  const outcome = run.result?.outcome
  switch (outcome?._tag) {
    case undefined:
      return ["Stopped at once", "bad"]
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
      return ["Stopped", "bad"]
    case "RuleEnded":
      return [outcome.rule === "budget" ? "Ended by its budget" : `Ended by ${outcome.rule}`, "bad"]
    default:
      return [outcome?._tag ?? "", "bad"]
  }
}

/** What was spent of the budget, and of how much. Tokens are counted in the unit of the model. */
export const spent = ({ result }: Run.Run, unit: string): string | undefined => {
  const { calls, inputTokens, left, outputTokens } = result?.spent ?? {}
  if (calls === undefined || left?.calls === undefined || left.tokens === undefined) return undefined
  const tokens = (inputTokens ?? 0) + (outputTokens ?? 0)
  const of = (amount: number, rest: number) =>
    `${amount.toLocaleString("en")} of ${(amount + rest).toLocaleString("en")}`
  const end = result?.finalized === "budget" || result?.haltedReason === "budget" ? "; it had no more" : ""
  return `Spent ${of(calls, left.calls)} calls, ${of(tokens, left.tokens)} ${unit}s${end}`
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
