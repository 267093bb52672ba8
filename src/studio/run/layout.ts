/**
 * Places in the picture: call rows by first fit, and a row block for each nested run. The layout of a live run is
 * extended as events arrive. It equals the layout of the whole run, because a call takes its row when requested by the
 * model, and keeps it until the call ends.
 */
import type * as Fold from "../data/fold.ts"

/** Place of a call. Its times are the call's. */
export interface Bar {
  readonly call: Fold.Call
  readonly row: number
  readonly depth: number
  /** The nested run. */
  readonly block?: Block
}

/** Place of a model turn. */
export interface Band {
  readonly turn: Fold.Turn
  readonly row: number
  readonly depth: number
}

/** Rows of a nested run, the first being its call's row. */
export interface Block {
  readonly call: Fold.Call
  readonly row: number
  readonly rows: number
  readonly depth: number
  readonly isFolded: boolean
}

/** Rows of one run: row 0 has its turns, and each call takes the lowest free row. */
interface Lane {
  /** Row of the turns, among all rows. */
  base: number
  readonly depth: number
  readonly isHidden: boolean
  /** Row count. */
  height: number
  /** Rows by the time they become free, and the free rows. */
  readonly ends: Heap<readonly [end: number, row: number]>
  readonly free: Heap<number>
  readonly isFree: Array<boolean>
  /** Rows of unfinished calls. */
  readonly open: Map<Fold.Call, { readonly row: number; readonly rows: number }>
  readonly places: Array<Place>
  readonly turns: Array<Fold.Turn>
}

interface Place {
  readonly call: Fold.Call
  readonly row: number
  readonly rows: number
  readonly inner: Lane | undefined
}

/** A layout of a run. */
export interface Layout {
  /** Non-overlapping bars per row, in time order. */
  readonly rows: Array<Array<Bar>>
  /** Bands per row, likewise. */
  readonly bands: Array<Array<Band>>
  readonly blocks: Array<Block>
  /** Bars by call path. */
  readonly bars: Map<string, Bar>
  /** Turn rows per run, by its call path. */
  readonly lanes: Map<string, Lane>
  /** Calls involved with a named permit, by permit name. */
  readonly keys: Map<string, Array<Fold.Call>>
  readonly folded: ReadonlySet<string>
  /** Number of calls and turns already placed. */
  calls: number
  turns: number
  readonly revision: number
  /** Comparison count. It grows linearly with the calls. */
  steps: number
}

/** A heap: smallest value first. */
class Heap<A> {
  private readonly values: Array<A> = []
  private readonly isLess: (left: A, right: A) => boolean

  constructor(isLess: (left: A, right: A) => boolean) {
    this.isLess = isLess
  }

  get least(): A | undefined {
    return this.values[0]
  }

  push(value: A): void {
    const { isLess, values } = this
    let at = values.push(value) - 1
    while (at > 0) {
      const parent = at - 1 >> 1
      if (!isLess(value, values[parent] as A)) break
      values[at] = values[parent] as A
      at = parent
    }
    values[at] = value
  }

  pop(): A | undefined {
    const { isLess, values } = this
    const least = values[0]
    const last = values.pop()
    if (values.length === 0 || last === undefined) return least
    let at = 0
    for (let child = 1; child < values.length; child = 2 * at + 1) {
      if (child + 1 < values.length && isLess(values[child + 1] as A, values[child] as A)) child++
      if (!isLess(values[child] as A, last)) break
      values[at] = values[child] as A
      at = child
    }
    values[at] = last
    return least
  }
}

const none: ReadonlySet<string> = new Set()

/** Lays out a run. `folded` contains the paths of calls with hidden nested runs. */
export const make = (run: Fold.Run, folded: ReadonlySet<string> = none): Layout => {
  const layout: Layout = {
    rows: [],
    bands: [],
    blocks: [],
    bars: new Map(),
    lanes: new Map(),
    keys: new Map(),
    folded,
    calls: run.list.length,
    turns: run.turns.length,
    revision: run.revision,
    steps: 0
  }
  const calls = new Map<string, Array<Fold.Call>>()
  const turns = new Map<string, Array<Fold.Turn>>()
  for (const call of run.list) groupOf(calls, call.owner).push(call)
  for (const turn of run.turns) groupOf(turns, turn.owner).push(turn)
  const laneOf = (owner: string, depth: number): Lane => {
    const lane = emptyLane(layout, depth, layout.folded.has(owner))
    lane.turns.push(...turns.get(owner) ?? [])
    layout.lanes.set(owner, lane)
    // A journal's calls come in another order.
    for (const call of (calls.get(owner) ?? []).toSorted((left, right) => left.asked - right.asked)) {
      const isBlock = calls.has(call.path) || turns.has(call.path)
      const inner = isBlock ? laneOf(call.path, depth + 1) : undefined
      if (!lane.isHidden) place(lane, call, inner)
    }
    return lane
  }
  const root = laneOf("", 0)
  show(layout, root, 0)
  return layout
}

const groupOf = <A>(groups: Map<string, Array<A>>, owner: string): Array<A> => {
  const group = groups.get(owner)
  if (group !== undefined) return group
  const made: Array<A> = []
  groups.set(owner, made)
  return made
}

const emptyLane = (layout: Layout, depth: number, isHidden: boolean): Lane => ({
  base: 0,
  depth,
  isHidden,
  height: isHidden ? 0 : 1,
  ends: new Heap(([left], [right]) => {
    layout.steps++
    return left < right
  }),
  free: new Heap((left, right) => {
    layout.steps++
    return left < right
  }),
  isFree: [false],
  open: new Map(),
  places: [],
  turns: []
})

/** Frees the rows of calls ended before a time. A call ending exactly at that time may come later in event order. */
const release = (lane: Lane, at: number): void => {
  for (let [end, row] = lane.ends.least ?? [Infinity, 0]; end < at; [end, row] = lane.ends.least ?? [Infinity, 0]) {
    lane.ends.pop()
    lane.isFree[row] = true
    lane.free.push(row)
  }
}

/** Returns the lowest adjacent free rows, without taking them. */
const lowest = (lane: Lane, rows: number): number => {
  if (rows === 1) {
    let row = lane.free.least
    while (row !== undefined && lane.isFree[row] !== true) {
      lane.free.pop()
      row = lane.free.least
    }
    return row ?? lane.height
  }
  let first = 1
  for (let row = 1; row < lane.height && row - first < rows; row++) if (lane.isFree[row] !== true) first = row + 1
  return first
}

const reserve = (lane: Lane, call: Fold.Call, row: number, rows: number): void => {
  for (let taken = row; taken < row + rows; taken++) lane.isFree[taken] = false
  // Rows between the last row and a block are never skipped: a block begins right after the last row at the latest.
  lane.height = Math.max(lane.height, row + rows)
  if (call.ended === undefined) lane.open.set(call, { row, rows })
  else for (let taken = row; taken < row + rows; taken++) lane.ends.push([call.ended, taken])
}

const place = (lane: Lane, call: Fold.Call, inner: Lane | undefined): Place => {
  release(lane, call.asked)
  const rows = 1 + (inner?.height ?? 0)
  const row = lowest(lane, rows)
  reserve(lane, call, row, rows)
  const placed: Place = { call, row, rows, inner }
  lane.places.push(placed)
  return placed
}

const showBar = (layout: Layout, lane: Lane, { call, inner, row, rows }: Place): void => {
  const at = lane.base + row
  const { depth } = lane
  const block = inner && { call, row: at, rows, depth: depth + 1, isFolded: inner.isHidden }
  const bar: Bar = { call, row: at, depth, ...(block === undefined ? {} : { block }) }
  listAt(layout.rows, at).push(bar)
  layout.bars.set(call.path, bar)
  if (block !== undefined && inner !== undefined) {
    layout.blocks.push(block)
    show(layout, inner, at + 1)
  }
}

const show = (layout: Layout, lane: Lane, base: number): void => {
  lane.base = base
  if (lane.isHidden) return
  for (const turn of lane.turns) listAt(layout.bands, base).push({ turn, row: base, depth: lane.depth })
  for (const placed of lane.places) showBar(layout, lane, placed)
  // A row without a bar, such as a row with only turns, is also a row.
  listAt(layout.rows, base + lane.height - 1)
}

const listAt = <A>(lists: Array<Array<A>>, at: number): Array<A> => {
  while (lists.length <= at) lists.push([])
  return lists[at] as Array<A>
}

/** Returns the layout of a grown run: the same layout if it can be extended, otherwise a new layout. */
export const extend = (layout: Layout, run: Fold.Run): Layout => {
  if (layout.revision !== run.revision || layout.calls > run.list.length) return make(run, layout.folded)
  for (const lane of layout.lanes.values()) {
    for (const [call, { row, rows }] of lane.open) {
      if (call.ended === undefined) continue
      lane.open.delete(call)
      for (let taken = row; taken < row + rows; taken++) lane.ends.push([call.ended, taken])
    }
  }
  for (; layout.turns < run.turns.length; layout.turns++) {
    const turn = run.turns[layout.turns] as Fold.Turn
    const lane = laneFor(layout, run, turn.owner)
    if (lane === undefined) return make(run, layout.folded)
    lane.turns.push(turn)
    if (!lane.isHidden) listAt(layout.bands, lane.base).push({ turn, row: lane.base, depth: lane.depth })
  }
  for (; layout.calls < run.list.length; layout.calls++) {
    const call = run.list[layout.calls] as Fold.Call
    const lane = laneFor(layout, run, call.owner)
    if (lane === undefined) return make(run, layout.folded)
    if (lane.isHidden) continue
    if (call.asked < (lane.places.at(-1)?.call.asked ?? 0)) return make(run, layout.folded)
    release(lane, call.asked)
    // A growing block moves the rows below.
    if (lane.depth > 0 && lowest(lane, 1) === lane.height) return make(run, layout.folded)
    showBar(layout, lane, place(lane, call, undefined))
  }
  return layout
}

/** Returns a nested run's rows, or `undefined` if it has no rows yet. */
const laneFor = (layout: Layout, run: Fold.Run, owner: string): Lane | undefined => {
  const known = layout.lanes.get(owner)
  if (known !== undefined) return known
  const around = run.calls.get(owner)?.owner
  const outer = around === undefined ? undefined : layout.lanes.get(around)
  return outer?.isHidden === true ? outer : undefined
}

/** Returns a bar's end: its call's end, or the given time. */
export const endOf = ({ call }: Bar, now: number): number => Math.max(call.ended ?? now, call.asked)

/** Finds a row's first bar not ended before a time, by index. */
export const firstBar = (row: ReadonlyArray<Bar>, from: number, now: number): number =>
  search(row.length, (index) => endOf(row[index] as Bar, now) >= from)

/** Finds a row's first band not ended before a time, by index. */
export const firstBand = (row: ReadonlyArray<Band>, from: number, now: number): number =>
  search(row.length, (index) => ((row[index] as Band).turn.to ?? now) >= from)

/** Finds the first index satisfying a condition that holds for all later indexes. */
export const search = (length: number, holds: (index: number) => boolean): number => {
  let [low, high] = [0, length]
  while (low < high) {
    const middle = low + high >> 1
    if (holds(middle)) high = middle
    else low = middle + 1
  }
  return low
}

/** Returns the bar at a row and a time, or the nearest within a distance. */
export const barAt = (layout: Layout, row: number, at: number, distance: number, now: number): Bar | undefined => {
  const bars = layout.rows[row] ?? []
  const index = firstBar(bars, at - distance, now)
  const near = [bars[index], bars[index + 1]].flatMap((bar) => bar ?? [])
  const away = (bar: Bar) => Math.max(bar.call.asked - at, at - endOf(bar, now), 0)
  return near.filter((bar) => away(bar) <= distance).toSorted((left, right) => away(left) - away(right))[0]
}

/**
 * Returns the call whose end let another start: among those involved with the named permit, the last to end before the
 * wait did.
 */
export const releaser = (run: Fold.Run, layout: Layout, call: Fold.Call, wait: Fold.Wait): Fold.Call | undefined => {
  if (wait.reason !== "key" || wait.to === undefined || call.started === undefined) return undefined
  const until = wait.to
  const behind = wait.behind.flatMap((path) => run.calls.get(path) ?? [])
  const known = wait.key === undefined ? [] : keyed(run, layout).get(wait.key) ?? []
  let last: Fold.Call | undefined
  for (const other of [...behind, ...known]) {
    const { ended, started } = other
    if (other === call || ended === undefined || started === undefined || ended > until) continue
    if (last === undefined || ended > (last.ended ?? 0)) last = other
  }
  return last
}

const indexed = new WeakMap<Layout, number>()

/** Returns the calls that waited for a named permit, or were waited for, by permit name. */
const keyed = (run: Fold.Run, layout: Layout): Layout["keys"] => {
  const from = indexed.get(layout) ?? -1
  if (from === run.version) return layout.keys
  indexed.set(layout, run.version)
  layout.keys.clear()
  for (const call of run.list) {
    for (const wait of call.waits) {
      if (wait.key === undefined) continue
      const group = groupOf(layout.keys, wait.key)
      group.push(call)
      for (const path of wait.behind) {
        const other = run.calls.get(path)
        if (other !== undefined) group.push(other)
      }
    }
  }
  return layout.keys
}
