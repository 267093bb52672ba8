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

const axisOf = ({ lanes, speaks, whole }: Timeline.Stretch, cells: number): Axis => {
  const position = (time: number) => ((time - whole.from) / Math.max(1, whole.to - whole.from)) * cells
  const late = lanes.filter((lane) => !lane.call.isEarly && lane.runs !== undefined)
  const hasWaited = lanes.some((lane) => lane.waitsAtBarrier !== undefined)
  const reserved = (late.length > 0 ? 1 : 0) + (hasWaited ? 1 : 0)
  return {
    cells,
    position,
    at: (time) => Math.min(cells - 1, Math.floor(position(time))),
    end: Math.max(1, Math.min(cells - reserved, Math.ceil(position(speaks.to))))
  }
}

const areApart = (one: Timeline.Lane, other: Timeline.Lane): boolean =>
  one !== other && (Tools.isBarrier(one.call.name) || Tools.isBarrier(other.call.name))

const isAfter = (span: Timeline.Span | undefined, other: Timeline.Span | undefined): boolean =>
  span !== undefined && other !== undefined && span.from >= other.to

/** The cells in which calls run, those that started first being placed first. */
const place = (lanes: ReadonlyArray<Timeline.Lane>, axis: Axis): ReadonlyMap<Timeline.Lane, Bar> => {
  const placed = new Map<Timeline.Lane, Bar>()
  const started = lanes.filter((lane) => lane.runs !== undefined)
    .toSorted((left, right) => (left.runs?.from ?? 0) - (right.runs?.from ?? 0))
  for (const lane of started) {
    const { from, to } = lane.runs as Timeline.Span
    const apart = started.filter((other) => areApart(lane, other))
    const behind = apart.map((other) => isAfter(lane.runs, other.runs) ? placed.get(other)?.to ?? 0 : 0)
    const room = axis.cells - apart.filter((other) => !placed.has(other) && isAfter(other.runs, lane.runs)).length
    const first = lane.call.isEarly
      ? Math.min(axis.at(from), axis.end - 1)
      : Math.max(axis.at(from), axis.end + (lane.waitsAtBarrier === undefined ? 0 : 1))
    const start = Math.max(0, Math.min(Math.max(first, ...behind), room - 1))
    placed.set(lane, { from: start, to: Math.max(start + 1, Math.min(room, Math.floor(axis.position(to)))) })
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
  const axis = axisOf(stretch, cells)
  const placed = place(stretch.lanes, axis)
  return {
    reply: replyRow(stretch, axis),
    lanes: stretch.lanes.map((lane) => laneRow(lane, placed.get(lane), axis))
  }
}
