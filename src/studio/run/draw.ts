/**
 * Draws a run picture on a canvas: only the visible part of a layout. Details smaller than a pixel are drawn once per
 * pixel.
 */
import * as Words from "../chat/words.ts"
import type * as Fold from "../data/fold.ts"
import * as Layouts from "./layout.ts"
import * as Phrases from "./phrases.ts"

/** Window of a picture. Times are milliseconds since the run started, lengths are CSS pixels. */
export interface View {
  readonly from: number
  readonly to: number
  /** Length above the window. */
  readonly top: number
  readonly width: number
  readonly height: number
  /** Row height. */
  readonly row: number
  /** Screen pixels per CSS pixel. */
  readonly ratio: number
  /** End time for drawing unfinished parts. */
  readonly now: number
  /** `true` for a strip: no words, no axis. */
  readonly isStrip: boolean
}

const names = [
  "paper",
  "ground",
  "ink",
  "faint",
  "line",
  "model",
  "model-wait",
  "on-model",
  "early",
  "plain",
  "bad",
  "live",
  "grey",
  "asks",
  "on-bar",
  "stop",
  "wait-key",
  "wait-permit",
  "wait-exclusive",
  "wait-reply"
] as const

type Color = (typeof names)[number]

/** Picture colors, by style name. */
export type Colors = { readonly [Name in Color]: string }

/** Returns an element's colors, defined as custom properties. */
export const colorsOf = (element: Element): Colors => {
  const style = getComputedStyle(element)
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--run-${name}`).trim()])) as Colors
}

/** Axis height. */
export const axis = 26

/** Returns a call's color, from its state and whether it started before its reply ended. */
export const colorOf = (call: Fold.Call): Color => {
  switch (call.state) {
    case "failed":
    case "denied":
      return "bad"
    case "cancelled":
      return "grey"
    case "running":
      return "live"
    case "asks":
      return "asks"
    case "asked":
    case "waiting":
      return "faint"
    default:
      return call.isEarly ? "early" : "plain"
  }
}

/** Returns the x position for a time. */
export const xOf = ({ from, to, width }: View, time: number): number => (time - from) / (to - from) * width

/** Returns the upper y position for a row. */
export const yOf = ({ isStrip, row, top }: View, index: number): number => (isStrip ? 0 : axis) + index * row - top

/** Row heights: rows are higher if all fit. */
const [least, greatest] = [19, 28]

/** Space before the start of a run, and after its end. */
const [before, behind] = [12, 28]

/** Space after a run's end if it left calls running. */
const behindLeft = 132

/** Space under the last row. */
const below = 8

/** Returns a window showing a whole run, from its first row. */
export const wholeOf = (
  run: Fold.Run,
  layout: Layouts.Layout,
  size: { readonly width: number; readonly height: number; readonly now: number }
): View => {
  const { height, now, width } = size
  const end = Math.max(1, now)
  const margin = run.abandoned.length > 0 ? behindLeft : behind
  const pixel = end / Math.max(100, width - before - margin)
  const row = Math.floor((height - axis - below) / Math.max(1, layout.rows.length))
  return {
    from: -before * pixel,
    to: end + margin * pixel,
    top: 0,
    width,
    height,
    row: Math.max(least, Math.min(greatest, row)),
    ratio: 1,
    now,
    isStrip: false
  }
}

/** Returns a picture's scrollable length. */
export const scrollOf = ({ height, row }: View, layout: Layouts.Layout): number =>
  Math.max(0, layout.rows.length * row + axis + below - height)

const family = "system-ui, -apple-system, \"Segoe UI\", \"DejaVu Sans\", sans-serif"

/** Maximum number of cached text widths per font. */
const mostWidths = 2_000

const fonts = new Map<string, Map<string, number>>()

/** Returns known text widths in a font. Measuring a text takes longer than drawing a bar. */
const widthsOf = (font: string): Map<string, number> => {
  const known = fonts.get(font)
  if (known !== undefined) return known
  const made = new Map<string, number>()
  fonts.set(font, made)
  return made
}

/** Returns the axis step: 1, 2 or 5 times a power of ten. */
const stepOf = (span: number, width: number): number => {
  const least = span / Math.max(1, width / 90)
  const power = 10 ** Math.floor(Math.log10(least))
  return ([1, 2, 5].find((factor) => factor * power >= least) ?? 10) * power
}

let hatch: { readonly color: string; readonly pattern: CanvasPattern | null } | undefined

/** Returns the hatching for a call running alone. */
const hatchOf = (context: CanvasRenderingContext2D, color: string): CanvasPattern | string => {
  if (hatch?.color !== color) {
    const tile = new OffscreenCanvas(6, 6)
    const lines = tile.getContext("2d")
    if (lines !== null) {
      lines.strokeStyle = color
      lines.lineWidth = 1.4
      lines.beginPath()
      for (const [x, y, right, up] of [[-1, 7, 7, -1], [-1, 1, 1, -1], [5, 7, 7, 5]] as const) {
        lines.moveTo(x, y)
        lines.lineTo(right, up)
      }
      lines.stroke()
    }
    hatch = { color, pattern: context.createPattern(tile, "repeat") }
  }
  return hatch.pattern ?? color
}

/** A bar in the window, in pixels. */
interface Seen {
  readonly bar: Layouts.Bar
  readonly x: number
  readonly width: number
  readonly y: number
  /** Bars before and after it in its row. */
  readonly last: Layouts.Bar | undefined
  readonly next: Layouts.Bar | undefined
}

/** Returns the bar's own start time: after the wait. */
export const startOf = (call: Fold.Call): number =>
  call.started ?? (call.state === "asks" ? Phrases.readyOf(call) : call.ended ?? Phrases.readyOf(call))

const hasBar = (call: Fold.Call): boolean =>
  !call.isProviders && (call.started !== undefined || call.ended !== undefined || call.state === "asks")

class Drawing {
  private readonly context: CanvasRenderingContext2D
  private readonly run: Fold.Run
  private readonly layout: Layouts.Layout
  private readonly view: View
  private readonly colors: Colors
  private readonly chosen: Layouts.Bar | undefined
  private readonly seen: Array<Seen> = []
  private widths = widthsOf("")
  private readonly blocks: ReadonlyArray<Layouts.Block>
  private readonly first: number
  private readonly last: number

  constructor(
    context: CanvasRenderingContext2D,
    run: Fold.Run,
    layout: Layouts.Layout,
    view: View,
    colors: Colors,
    chosen: string | undefined
  ) {
    this.context = context
    this.run = run
    this.layout = layout
    this.view = view
    this.colors = colors
    this.chosen = chosen === undefined ? undefined : layout.bars.get(chosen)
    const { height, isStrip, row, top } = view
    this.first = Math.max(0, Math.floor(top / row))
    this.last = Math.min(layout.rows.length - 1, Math.ceil((top + height - (isStrip ? 0 : axis)) / row))
    this.blocks = layout.blocks.filter(({ call, row, rows }) =>
      row <= this.last && row + rows > this.first && call.asked <= view.to && (call.ended ?? view.now) >= view.from
    )
  }

  draw(): void {
    const { colors, context, view: { height, isStrip, ratio, width } } = this
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.fillStyle = colors.paper
    context.fillRect(0, 0, width, height)
    context.textBaseline = "middle"
    if (!isStrip) this.grid()
    this.see()
    this.grounds()
    if (!isStrip) this.alone()
    if (!isStrip) this.origin()
    this.bands()
    this.waits()
    this.bars()
    this.stops()
    if (!isStrip) this.head()
  }

  private x(time: number): number {
    return xOf(this.view, time)
  }

  private y(row: number): number {
    return yOf(this.view, row)
  }

  private font(size: number, weight = "400"): void {
    const font = `${weight} ${size}px ${family}`
    this.context.font = font
    this.widths = widthsOf(font)
  }

  /** Returns a text's width in the current font. */
  private widthOf(text: string): number {
    const known = this.widths.get(text)
    if (known !== undefined) return known
    const { width } = this.context.measureText(text)
    // Names come from models: a run may have any number.
    if (this.widths.size >= mostWidths) this.widths.clear()
    this.widths.set(text, width)
    return width
  }

  private line(points: ReadonlyArray<readonly [x: number, y: number]>): void {
    const { context } = this
    context.beginPath()
    points.forEach(([x, y], index) => index === 0 ? context.moveTo(x, y) : context.lineTo(x, y))
    context.stroke()
  }

  /** Writes a text, cut to its available space, and returns its width. */
  private write(text: string, x: number, y: number, room: number, color: string): number {
    const { context } = this
    if (room < 12) return 0
    const whole = this.widthOf(text)
    context.fillStyle = color
    if (whole <= room) {
      context.fillText(text, x, y)
      return whole
    }
    const length = Math.floor(text.length * room / whole) - 1
    if (length < 2) return 0
    const cut = `${text.slice(0, length)}…`
    context.fillText(cut, x, y)
    return this.widthOf(cut)
  }

  /** Clears the background of a text. */
  private plate(depth: number, x: number, y: number, width: number, height: number): void {
    this.context.fillStyle = depth > 0 ? this.colors.ground : this.colors.paper
    this.context.fillRect(x, y, width, height)
  }

  /** Collects the bars in the window, at most one per pixel in each row. */
  private see(): void {
    const { first, last, layout, view } = this
    const stride = view.isStrip ? Math.max(1, Math.ceil(layout.rows.length / (view.height * 2))) : 1
    const pixel = (view.to - view.from) / Math.max(1, view.width)
    for (let row = first; row <= last; row += stride) {
      const bars = layout.rows[row] ?? []
      let index = Layouts.firstBar(bars, view.from, view.now)
      while (index < bars.length) {
        const bar = bars[index] as Layouts.Bar
        if (bar.call.asked > view.to) break
        const x = this.x(startOf(bar.call))
        const least = bar.call.state === "asks" && !view.isStrip ? 7 : 1.2
        const width = Math.max(least, this.x(Layouts.endOf(bar, view.now)) - x)
        const [last, next] = [bars[index - 1], bars[index + 1]]
        this.seen.push({ bar, x, width, y: this.y(row), last, next })
        const end = Layouts.endOf(bar, view.now)
        const isTiny = end - bar.call.asked < 2 * pixel
        index = isTiny && next !== undefined && next.call.asked < end + pixel
          ? Math.max(index + 1, Layouts.firstBar(bars, end + pixel, view.now))
          : index + 1
      }
    }
  }

  private grid(): void {
    const { colors, context, run, view } = this
    const step = stepOf(view.to - view.from, view.width)
    const stop = this.stopLabel()
    context.strokeStyle = colors.line
    context.lineWidth = 1
    this.font(11)
    context.beginPath()
    const until = run.end ?? view.to
    for (let time = Math.ceil(Math.max(0, view.from) / step) * step; time <= Math.min(view.to, until); time += step) {
      const x = Math.round(this.x(time)) + 0.5
      context.moveTo(x, axis)
      context.lineTo(x, view.height)
      const words = time === 0 ? "0" : Words.seconds(time)
      const isCovered = stop !== undefined && x + 4 < stop.to && x + 4 + this.widthOf(words) > stop.from
      if (!isCovered) this.write(words, x + 4, 13, 80, colors.faint)
    }
    context.stroke()
  }

  /** Draws the tinted rows of nested runs. */
  private grounds(): void {
    const { colors, context, view: { isStrip, now, row: height } } = this
    for (const { call, depth, row, rows } of this.blocks) {
      const x = this.x(startOf(call))
      const width = Math.max(2, this.x(Math.max(call.ended ?? now, startOf(call))) - x)
      const [inset, gap] = isStrip ? [0, 0] : [4, 1]
      context.fillStyle = colors.ground
      context.beginPath()
      context.roundRect(x - inset, this.y(row) + gap, width + 2 * inset, rows * height - 2 * gap, isStrip ? 1 : 6)
      context.fill()
      if (isStrip || depth < 2) continue
      context.strokeStyle = colors.line
      context.lineWidth = 1
      context.stroke()
    }
  }

  /** Draws the hairlines at both ends of calls running alone. */
  private alone(): void {
    const { colors, context, run, view } = this
    context.strokeStyle = colors["wait-exclusive"]
    context.lineWidth = 1
    context.setLineDash([3, 3])
    let drawn = -2
    for (const { ended, owner, started } of run.alone.calls) {
      if (started === undefined || owner !== "") continue
      for (const time of [started, ended ?? view.now]) {
        const x = Math.round(this.x(time)) + 0.5
        if (x < 0 || x > view.width || x - drawn < 2) continue
        drawn = x
        this.line([[x, axis], [x, view.height]])
      }
    }
    context.setLineDash([])
  }

  /** Draws the line from the chosen call's origin in the reply. */
  private origin(): void {
    const { chosen, colors, context, layout, view } = this
    if (chosen === undefined || chosen.call.turn < 0) return
    const lane = layout.lanes.get(chosen.call.owner)
    if (lane === undefined || lane.isHidden) return
    const [x, y] = [this.x(Phrases.readyOf(chosen.call)), this.y(lane.base) + view.row - 3]
    const [right, low] = [this.x(startOf(chosen.call)), this.y(chosen.row) + view.row / 2]
    context.strokeStyle = colors.ink
    context.lineWidth = 1.5
    context.beginPath()
    context.moveTo(x, y)
    context.bezierCurveTo(x, low, x, low, right, low)
    context.stroke()
  }

  private bands(): void {
    const { colors, context, first, last, layout, view } = this
    const { isStrip, now, row: rowHeight } = view
    for (let row = first; row <= last; row++) {
      const bands = layout.bands[row] ?? []
      let drawn = -1
      for (let index = Layouts.firstBand(bands, view.from, now); index < bands.length; index++) {
        const { depth, turn } = bands[index] as Layouts.Band
        if (turn.from > view.to) break
        const end = this.x(turn.to ?? now)
        if (end - drawn < 1 && end > 0) continue
        drawn = end
        const y = this.y(row) + (isStrip ? 0 : 2)
        const height = Math.max(1, rowHeight - (isStrip ? 0.5 : 7))
        const requests = turn.requests.length === 0 ? [{ from: turn.from, retries: [], to: turn.to }] : turn.requests
        for (const { error, first: token, from, retries, to } of requests as ReadonlyArray<Fold.Request>) {
          const x = this.x(from)
          const right = Math.max(x + 1.2, this.x(to ?? now))
          const full = token === undefined ? right : Math.min(right, this.x(token))
          context.fillStyle = colors["model-wait"]
          context.beginPath()
          context.roundRect(x, y, right - x, height, isStrip ? 0 : 4)
          context.fill()
          if (full < right) {
            context.fillStyle = error === undefined ? colors.model : colors.bad
            context.beginPath()
            context.roundRect(
              full,
              y,
              right - full,
              height,
              isStrip ? 0 : [x === full ? 4 : 0, 4, 4, x === full ? 4 : 0]
            )
            context.fill()
          }
          if (isStrip) continue
          context.fillStyle = colors.bad
          for (const { at } of retries) context.fillRect(this.x(at) - 1, y, 2, height)
        }
        if (!isStrip) this.turn(turn, depth, y, height)
      }
    }
  }

  /** Draws a turn's words, and the ticks for its calls. */
  private turn(turn: Fold.Turn, depth: number, y: number, height: number): void {
    const { colors, context, run, view } = this
    this.font(11)
    const request = turn.requests.at(-1)
    const x = this.x(turn.from)
    const right = this.x(turn.to ?? view.now)
    const full = request?.first === undefined ? right : this.x(request.first)
    const short = `${turn.index + 1}`
    const long = depth === 0 ? `turn ${short}` : short
    const model = request?.model === undefined ? [] : [`${long}  ${request.model}`]
    const rooms = [[Math.max(0, x), full, colors.ink], [Math.max(0, full), right, colors["on-model"]]] as const
    const fitting = [...model, long, short].flatMap((text) => {
      const width = this.widthOf(text) + 10
      const room = rooms.find(([from, to]) => to - from >= width)
      return room === undefined ? [] : [{ text, room }]
    })[0]
    if (fitting !== undefined) {
      const { room: [from, to, color], text } = fitting
      this.write(text, from + 5, y + height / 2 + 0.5, to - from, color)
    }
    context.fillStyle = colors.ink
    let drawn = -2
    const { calls } = turn
    const readyAt = (index: number) => {
      const call = run.calls.get(calls[index] as string)
      return call === undefined ? -Infinity : Phrases.readyOf(call)
    }
    const pixel = (view.to - view.from) / view.width
    for (let index = Layouts.search(calls.length, (at) => readyAt(at) >= view.from); index < calls.length;) {
      const at = readyAt(index)
      const x = this.x(at)
      if (x > view.width) break
      if (x - drawn >= 2) {
        context.fillRect(x - 0.6, y + height - 1, 1.2, 5)
        drawn = x
        index++
      } else index = Math.max(index + 1, Layouts.search(calls.length, (next) => readyAt(next) >= at + pixel))
    }
    const { chosen } = this
    if (chosen === undefined || chosen.call.owner !== turn.owner || chosen.call.turn !== turn.index) return
    context.beginPath()
    context.arc(this.x(Phrases.readyOf(chosen.call)), y + height + 2, 3, 0, 7)
    context.fill()
  }

  private waits(): void {
    const { layout, run, view } = this
    const { isStrip, now, row } = view
    const lines = new Map<Color, Array<number>>()
    const words: Array<() => void> = []
    const add = (color: Color, ...points: ReadonlyArray<number>) => {
      const known = lines.get(color)
      if (known === undefined) lines.set(color, [...points])
      else known.push(...points)
    }
    for (const { bar, y } of this.seen) {
      const { call } = bar
      if (call.isProviders) continue
      const ready = Phrases.readyOf(call)
      const end = call.started ?? (call.state === "asks" ? ready : call.ended ?? now)
      const left = this.x(ready)
      const right = this.x(end)
      if (right - left < 1.5) continue
      // A two-pixel line is sharp at a whole pixel.
      const middle = Math.round(y + row / 2)
      const reasons = call.waits.length === 0 ? [undefined] : call.waits
      reasons.forEach((wait, index) => {
        const color = colorOfWait(wait)
        const from = index === 0 || wait === undefined ? left : this.x(wait.from)
        const to = wait?.to === undefined || index === reasons.length - 1 ? right : this.x(wait.to)
        add(color, from, middle, to, middle)
        if (isStrip) return
        if (index === 0) add(color, Math.round(from) + 1, middle - 4, Math.round(from) + 1, middle + 4)
        if (wait === undefined || to - from < 30) return
        words.push(() => this.word(bar, wait, from, to, middle))
        const other = Layouts.releaser(run, layout, call, wait)
        const place = other && layout.bars.get(other.path)
        if (other === undefined || place === undefined || place.row === bar.row) return
        const isBelow = place.row < bar.row
        const start = Math.round(this.x(other.ended ?? end))
        const top = this.y(place.row) + (isBelow ? row - 3 : 3)
        add(color, start, top, start, isBelow ? middle - 4 : middle + 4)
        add(color, start, isBelow ? middle - 4 : middle + 4, to, middle)
        words.push(() => this.dot(start, top, color))
      })
    }
    const { colors, context } = this
    context.lineWidth = isStrip ? 1 : 2
    for (const [color, points] of lines) {
      context.strokeStyle = colors[color]
      context.beginPath()
      for (let index = 0; index < points.length; index += 4) {
        context.moveTo(points[index] as number, points[index + 1] as number)
        context.lineTo(points[index + 2] as number, points[index + 3] as number)
      }
      context.stroke()
    }
    for (const write of words) write()
  }

  /** Writes a wait's words on its line, if they fit completely. */
  private word({ call, depth }: Layouts.Bar, wait: Fold.Wait, from: number, to: number, y: number): void {
    this.font(10.5)
    const text = Phrases.waitWords(call, wait)
    const width = this.widthOf(text)
    if (to - from < width + 18) return
    const at = Math.max(from + 7, Math.min(7, to - width - 10))
    this.plate(depth, at - 2, y - 6, width + 5, 12)
    this.write(text, at, y + 0.5, width + 1, this.colors[colorOfWait(wait)])
  }

  private dot(x: number, y: number, color: Color): void {
    const { colors, context } = this
    context.fillStyle = colors[color]
    context.beginPath()
    context.arc(x, y, 2.4, 0, 7)
    context.fill()
  }

  private bars(): void {
    const { colors, context, view: { isStrip, row } } = this
    const [inset, height] = isStrip ? [0, Math.max(1, row - 0.5)] : [3, row - 6]
    const groups = new Map<Color, Array<Seen>>()
    for (const seen of this.seen) {
      if (!hasBar(seen.bar.call)) continue
      const color = colorOf(seen.bar.call)
      const group = groups.get(color)
      if (group === undefined) groups.set(color, [seen])
      else group.push(seen)
    }
    for (const [color, group] of groups) {
      context.fillStyle = colors[color]
      for (const { width, x, y } of group) {
        // Filling a single path with many bars takes longer than filling the bars.
        if (width < 6 || isStrip) context.fillRect(x, y + inset, width, height)
        else {
          context.beginPath()
          context.roundRect(x, y + inset, width, height, 4)
          context.fill()
        }
      }
    }
    if (!isStrip) { for (const group of groups.values()) for (const seen of group) this.details(seen, height) }
    else for (const seen of this.seen) if (seen.bar.call.abandoned !== undefined) this.left(seen, height)
  }

  /** Draws the marks on a bar, and writes its name. */
  private details(seen: Seen, height: number): void {
    const { colors, context } = this
    const { bar, width, x } = seen
    const { call } = bar
    const y = seen.y + 3
    if (call.isAlone && width >= 2) {
      context.globalAlpha = 0.4
      context.fillStyle = hatchOf(context, colors.paper)
      context.beginPath()
      context.roundRect(x, y, width, height, Math.min(4, width / 2))
      context.fill()
      context.globalAlpha = 1
    }
    if (width >= 8) {
      context.fillStyle = bar.depth > 0 ? colors.ground : colors.paper
      for (let index = 1; index < call.attempts.length; index++) {
        const from = this.x(call.attempts[index - 1]?.to ?? 0)
        const to = this.x(call.attempts[index]?.from ?? 0)
        context.fillRect(to - Math.max(2, to - from), y, Math.max(2, to - from), height)
      }
      context.fillStyle = colors["on-bar"]
      context.globalAlpha = 0.4
      let drawn = -3
      for (const notch of call.notches) {
        const at = this.x(notch)
        if (at - drawn < 3) continue
        drawn = at
        context.fillRect(at, y, 1, height)
      }
      context.globalAlpha = 1
    }
    if (call.state === "running" && call.isEarly) {
      context.fillStyle = colors.early
      context.fillRect(x, y, Math.min(4, width), height)
    }
    if (call.abandoned !== undefined) this.left(seen, height)
    this.label(seen, height)
    if (call.path !== this.chosen?.call.path) return
    context.strokeStyle = colors.ink
    context.lineWidth = 2
    context.beginPath()
    context.roundRect(x - 2, y - 2, Math.max(width, 3) + 4, height + 4, 6)
    context.stroke()
  }

  /** Writes a call's name on its bar if it fits, otherwise beside the bar. */
  private label({ bar, last, next, width, x, y: top }: Seen, height: number): void {
    const { colors, context, view } = this
    const { call } = bar
    const y = top + 3 + height / 2 + 0.5
    const sign = bar.block === undefined ? "" : bar.block.isFolded ? "▸ " : "▾ "
    const text = `${sign}${Words.signOf(call)}${call.name}`
    const left = Math.max(x, 0)
    const inside = Math.min(x + width, view.width) - left - 10
    const right = x + width
    if (right < 0) return
    const gap = Math.min(view.width, next === undefined ? Infinity : this.x(next.call.asked)) - right - 8
    if (inside < 12 && gap < 24 && width < 4) return
    this.font(11.5, "500")
    const needed = this.widthOf(text)
    const isRoomy = needed <= inside
    const room = isRoomy || gap < 24 || call.abandoned !== undefined ? 0 : this.roomBeside(bar, gap, right)
    if (isRoomy || inside > 36 && needed > room) {
      const written = this.write(text, left + 5, y, inside, colors["on-bar"])
      this.font(10.5)
      const time = Words.seconds((call.ended ?? view.now) - startOf(call))
      const rest = inside - written - 7
      const stop = this.run.stopAt === undefined ? -Infinity : this.x(this.run.stopAt)
      const isCrossed = stop > left + 8 + written && stop < left + 16 + written + this.widthOf(time)
      if (isRoomy && !isCrossed && rest >= this.widthOf(time)) {
        context.globalAlpha = 0.85
        this.write(time, left + 12 + written, y, rest + 1, colors["on-bar"])
        context.globalAlpha = 1
      }
      return
    }
    if (room < needed && call.abandoned === undefined) {
      // A wait's line is to the left, or nothing.
      const start = this.x(Phrases.readyOf(call)) - 6
      const before = Math.max(0, last === undefined ? 0 : this.x(Layouts.endOf(last, view.now)) + 4)
      if (x - start < 9 && start - needed > before && this.roomBefore(bar, start - needed)) {
        this.plate(bar.depth, start - needed - 2, y - 7, needed + 4, 14)
        this.write(text, start - needed, y, needed + 1, colors.faint)
        return
      }
    }
    if (room < Math.min(needed, 36)) return
    const wide = Math.min(needed, room)
    this.plate(bar.depth, right + 2, y - 7, wide + 4, 14)
    this.write(text, right + 4, y, wide + 0.5, colors.faint)
  }

  /** Returns the space between a bar and its row's next part. */
  private roomBeside(bar: Layouts.Bar, gap: number, right: number): number {
    let room = gap
    for (const block of this.blocks) {
      const isInside = bar.depth >= block.depth
      if (block.row > bar.row || block.row + block.rows <= bar.row || block.call === bar.call) continue
      const edge = isInside ? this.x(block.call.ended ?? this.view.now) : this.x(startOf(block.call))
      if (edge > right - 1) room = Math.min(room, edge - right - 8)
    }
    return room
  }

  /** Tells whether a text beginning before a bar is on its own run's background. */
  private roomBefore(bar: Layouts.Bar, left: number): boolean {
    return this.blocks.every((block) => {
      const isHere = block.row <= bar.row && block.row + block.rows > bar.row && block.call !== bar.call
      const [from, to] = [this.x(startOf(block.call)), this.x(block.call.ended ?? this.view.now)]
      return !isHere || (bar.depth >= block.depth ? from <= left : to < left)
    })
  }

  /** Draws the dashes for a call left running by its run. */
  private left({ bar, width, x, y }: Seen, height: number): void {
    const { colors, context, view: { isStrip, now } } = this
    const middle = Math.round(y + (isStrip ? 0 : 3) + height / 2)
    const from = x + width
    const to = Math.max(from, this.x(now)) + (isStrip ? 4 : 18)
    context.strokeStyle = colors.stop
    context.lineWidth = isStrip ? 1 : 2
    context.setLineDash(isStrip ? [2, 1] : [4, 3])
    this.line([[from, middle], [to, middle]])
    context.setLineDash([])
    if (isStrip) return
    this.font(10.5)
    const isNamed = width - 10 >= this.widthOf(`■ ${bar.call.name}`)
    this.write(isNamed ? "left running" : `${bar.call.name}, left running`, to + 4, middle + 0.5, 140, colors.stop)
  }

  /** Returns the words beside the stop line, and their place: before the line if they fit. */
  private stopLabel(): { readonly text: string; readonly from: number; readonly to: number } | undefined {
    const { stopAt, stoppedBy } = this.run
    if (stopAt === undefined) return undefined
    const text = stoppedBy === undefined ? "stopped" : `stopped by ${Words.personOf(stoppedBy)}`
    this.font(11, "600")
    const width = Math.min(this.widthOf(text), 160) + 8
    this.font(11)
    const x = Math.round(this.x(stopAt)) + 0.5
    return x - width - 1 >= 0 ? { text, from: x - width - 1, to: x - 1 } : { text, from: x + 1, to: x + 1 + width }
  }

  private stops(): void {
    const { colors, context, run, view } = this
    const { height, isStrip } = view
    if (!isStrip) {
      context.strokeStyle = colors.faint
      context.lineWidth = 1
      context.setLineDash([1, 3])
      for (const time of run.resumed) {
        const x = Math.round(this.x(time)) + 0.5
        this.line([[x, axis], [x, height]])
      }
      context.setLineDash([])
    }
    if (run.end !== undefined && !isStrip) {
      const x = Math.round(this.x(run.end)) + 0.5
      context.globalAlpha = 0.45
      context.strokeStyle = colors.ink
      context.lineWidth = 1
      this.line([[x, axis], [x, height]])
      context.globalAlpha = 1
    }
    if (run.stopAt === undefined) return
    const x = Math.round(this.x(run.stopAt)) + 0.5
    context.strokeStyle = colors.stop
    context.lineWidth = 1.5
    this.line([[x, 0], [x, height]])
    if (isStrip) return
    const label = this.stopLabel()
    if (label === undefined) return
    context.fillStyle = colors.paper
    context.fillRect(label.from, 4, label.to - label.from, 16)
    this.font(11, "600")
    this.write(label.text, label.from + 4, 13, label.to - label.from - 7, colors.stop)
  }

  /** Draws the axis over scrolled rows. */
  private head(): void {
    const { colors, context, view } = this
    if (view.top <= 0) return
    context.save()
    context.beginPath()
    context.rect(0, 0, view.width, axis)
    context.clip()
    context.fillStyle = colors.paper
    context.fillRect(0, 0, view.width, axis)
    this.grid()
    this.stops()
    context.restore()
    context.strokeStyle = colors.line
    context.lineWidth = 1
    this.line([[0, axis - 0.5], [view.width, axis - 0.5]])
  }
}

/** Returns a wait's color. Without a reason a call waits for its reply to end. */
const colorOfWait = (wait: Fold.Wait | undefined): Color =>
  wait === undefined
    ? "wait-reply"
    : wait.reason === "key"
    ? "wait-key"
    : wait.reason === "exclusive"
    ? "wait-exclusive"
    : "wait-permit"

/** Draws a window of a run. */
export const draw = (
  context: CanvasRenderingContext2D,
  run: Fold.Run,
  layout: Layouts.Layout,
  view: View,
  colors: Colors,
  chosen: string | undefined
): void => new Drawing(context, run, layout, view, colors, chosen).draw()
