/**
 * A turn in cells: the reply in one row, each call in another, all on one axis. Every bar has one cell at least, and what
 * is true of the times is true of the cells: what started early begins before the reply's end and everything else behind
 * it, and nothing overlaps a call that ran alone.
 */
import * as Tools from "../tools.ts"
import * as Marks from "./marks.ts"
import type * as Run from "./run.ts"
import type * as Timeline from "./timeline.ts"

type Row = Array<Marks.Mark>

/** A turn as rows of cells. */
export interface Layout {
  readonly reply: ReadonlyArray<Marks.Mark>
  readonly lanes: ReadonlyArray<ReadonlyArray<Marks.Mark>>
}

const bars: Readonly<Record<Run.Standing, Marks.Mark>> = {
  waiting: ["·", "dim"],
  running: ["█", "accent"],
  done: ["█", "good"],
  failed: ["▓", "bad"],
  asking: ["█", "accent"],
  stopped: ["▒", "bad"],
  abandoned: ["▒", "bad"]
}
const silence: Marks.Mark = ["·", "dim"]
const speech: Marks.Mark = ["░", "dim"]
const held: Marks.Mark = ["┄", "accent"]
const replyEnd: Marks.Mark = ["│", "dim"]

/** The axis: where times stand on it, and the first cell behind the reply. */
interface Axis {
  readonly cells: number
  readonly position: (time: number) => number
  readonly at: (time: number) => number
  readonly end: number
}

interface Bar {
  readonly from: number
  readonly to: number
}

const areApart = (one: Timeline.Lane, other: Timeline.Lane): boolean =>
  one !== other && (Tools.isBarrier(one.call.name) || Tools.isBarrier(other.call.name))

const isAfter = (span: Timeline.Span | undefined, other: Timeline.Span | undefined): boolean =>
  span !== undefined && other !== undefined && span.from >= other.to

/** A lane that has run, and how many cells have to be free behind it for those that ran after it and apart from it. */
interface Started {
  readonly lane: Timeline.Lane
  readonly runs: Timeline.Span
  readonly behind: number
}

/** The lanes that have run, those that started first being first. */
const inOrder = (lanes: ReadonlyArray<Timeline.Lane>): ReadonlyArray<Started> => {
  const ordered: Array<Started> = []
  const backwards = lanes.flatMap((lane) => lane.runs === undefined ? [] : [{ lane, runs: lane.runs }])
    .toSorted((left, right) => left.runs.from - right.runs.from).toReversed()
  for (const { lane, runs } of backwards) {
    const apart = ordered.filter((other) => areApart(lane, other.lane) && isAfter(other.runs, runs))
    ordered.push({ lane, runs, behind: Math.max(0, ...apart.map((other) => other.behind + 1)) })
  }
  return ordered.toReversed()
}

const axisOf = ({ speaks, whole }: Timeline.Stretch, started: ReadonlyArray<Started>, cells: number): Axis => {
  const position = (time: number) => ((time - whole.from) / Math.max(1, whole.to - whole.from)) * cells
  const late = started.filter(({ lane }) => !lane.call.isEarly)
  const reserved = Math.max(
    0,
    ...late.map(({ behind, lane }) => behind + (lane.waitsAtBarrier === undefined ? 1 : 2))
  )
  return {
    cells,
    position,
    at: (time) => Math.min(cells - 1, Math.floor(position(time))),
    end: Math.max(1, Math.min(cells - reserved, Math.ceil(position(speaks.to))))
  }
}

/** The cells in which calls run, those that started first being placed first. */
const place = (started: ReadonlyArray<Started>, axis: Axis): ReadonlyMap<Timeline.Lane, Bar> => {
  const placed = new Map<Timeline.Lane, Bar>()
  for (const { behind, lane, runs } of started) {
    const before = started.map((other) =>
      areApart(lane, other.lane) && isAfter(runs, other.runs) ? placed.get(other.lane)?.to ?? 0 : 0
    )
    const room = axis.cells - behind
    const first = lane.call.isEarly
      ? Math.min(axis.at(runs.from), axis.end - 1)
      : Math.max(axis.at(runs.from), axis.end + (lane.waitsAtBarrier === undefined ? 0 : 1))
    const start = Math.max(0, Math.min(Math.max(first, ...before), room - 1))
    placed.set(lane, { from: start, to: Math.max(start + 1, Math.min(room, Math.floor(axis.position(runs.to)))) })
  }
  return placed
}

const empty = (cells: number): Row => Array.from({ length: cells }, () => Marks.none)

const fill = (row: Row, from: number, to: number, mark: Marks.Mark): void => {
  row.fill(mark, Math.max(0, from), Math.max(0, Math.min(to, row.length)))
}

const replyRow = ({ silent }: Timeline.Stretch, axis: Axis): Row => {
  const row = empty(axis.cells)
  fill(row, 0, axis.end, speech)
  fill(row, 0, Math.min(axis.at(silent.to), axis.end - 1), silence)
  return row
}

const laneRow = ({ call, waitsAtBarrier, waitsForReply }: Timeline.Lane, bar: Bar | undefined, axis: Axis): Row => {
  const row = empty(axis.cells)
  const { at, cells, end } = axis
  if (waitsForReply !== undefined) {
    fill(row, Math.min(at(waitsForReply.from), end - 1), Math.min(bar?.from ?? cells, end), silence)
  }
  if (waitsAtBarrier !== undefined) {
    const from = Math.max(end, at(waitsAtBarrier.from))
    fill(row, from, bar?.from ?? Math.max(from + 1, Math.floor(axis.position(waitsAtBarrier.to))), held)
  }
  if (bar !== undefined) fill(row, bar.from, bar.to, bars[call.standing])
  if (row[end] === Marks.none) row[end] = replyEnd
  return row
}

/** Draws a turn on that many cells. */
export const make = (stretch: Timeline.Stretch, cells: number): Layout => {
  const started = inOrder(stretch.lanes)
  const axis = axisOf(stretch, started, cells)
  const placed = place(started, axis)
  return {
    reply: replyRow(stretch, axis),
    lanes: stretch.lanes.map((lane) => laneRow(lane, placed.get(lane), axis))
  }
}
