/** The page of the tests of the picture: it folds the events that a test gives it, and shows the run. */
import { createElement, StrictMode } from "react"
import { flushSync } from "react-dom"
import { createRoot, type Root } from "react-dom/client"
import * as Fold from "../../../src/studio/data/fold.ts"
import * as Draw from "../../../src/studio/run/draw.ts"
import * as Layouts from "../../../src/studio/run/layout.ts"
import { Picture } from "../../../src/studio/run/Picture.tsx"
import { Strip } from "../../../src/studio/run/Strip.tsx"
import { manyCalls } from "./many.ts"

let root: Root | undefined
let run = Fold.make("r")
let form: "picture" | "strip" = "picture"
let first: string | undefined
let isLive = false

const place = (): HTMLElement => document.getElementById("studio")!

const render = (): void => {
  const shared = { run, version: run.version, isLive }
  const element = form === "strip"
    ? createElement(Strip, { ...shared, onOpen: () => document.body.setAttribute("data-opened", "") })
    : createElement(Picture, { ...shared, ...(first === undefined ? {} : { first }) })
  flushSync(() => root?.render(createElement(StrictMode, null, element)))
}

/** Adds events to the run that is shown. */
const add = (events: ReadonlyArray<Fold.Told>): void => {
  for (const event of events) Fold.take(run, event)
  render()
}

/** Shows the run of events. */
const show = (
  events: ReadonlyArray<Fold.Told>,
  options: { readonly first?: string; readonly form?: "picture" | "strip"; readonly isLive?: boolean } = {}
): void => {
  root?.unmount()
  root = createRoot(place())
  run = Fold.make("r")
  form = options.form ?? "picture"
  first = options.first
  isLive = options.isLive ?? false
  add(events)
}

/** Shows a run with so many calls. */
const showMany = (number: number): void => show(manyCalls(number))

/** A color as the canvas has it. */
type Pixel = readonly [red: number, green: number, blue: number]

const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true })!

/** Returns a color of the styles as pixels have it. */
const colorOf = (color: string): Pixel => {
  probe.clearRect(0, 0, 1, 1)
  probe.fillStyle = color
  probe.fillRect(0, 0, 1, 1)
  const [red = 0, green = 0, blue = 0] = probe.getImageData(0, 0, 1, 1).data
  return [red, green, blue]
}

/**
 * Returns the name of the color at a place of the picture: the expected one where no other is nearer to what is there,
 * since lines are thin.
 */
const seen = (time: number, row: number, expected: string, down = 0.5, right = 0): string => {
  const canvas = document.querySelector("canvas")!
  const colors = Draw.colorsOf(canvas)
  const layout = Layouts.make(run)
  const { height, width } = canvas.getBoundingClientRect()
  const view = Draw.wholeOf(run, layout, { width, height, now: run.end ?? run.now })
  const ratio = canvas.width / width
  const [x, y] = [Draw.xOf(view, time) + right, Draw.yOf(view, row) + view.row * down]
  const [red = 0, green = 0, blue = 0] =
    canvas.getContext("2d")!.getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data
  const away = Object.entries(colors).map(([name, color]) => {
    const [r, g, b] = colorOf(color)
    return { name, by: Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue) }
  }).toSorted((left, other) => left.by - other.by)
  const nearest = away[0]!
  return away.some(({ by, name }) => name === expected && by <= nearest.by + 24) ? expected : nearest.name
}

/** Returns the names of the colors in the middle of the bars, near their lower edge, by the paths of their calls. */
const bars = (expected: Readonly<Record<string, string>>): Readonly<Record<string, string>> =>
  Object.fromEntries(
    Array.from(Layouts.make(run).bars.values()).flatMap(({ call, row }) =>
      call.started === undefined
        ? []
        : [[
          call.path,
          seen((call.started + (call.ended ?? run.now)) / 2, row, expected[call.path] ?? "", 0.76, 1.5)
        ]]
    )
  )

/** Draws a run with many calls, and returns the times in milliseconds. */
const measure = (number: number) => {
  root?.unmount()
  const canvas = document.createElement("canvas")
  const [width, height] = [1_400, 700]
  canvas.width = width
  canvas.height = height
  place().append(canvas)
  const context = canvas.getContext("2d", { willReadFrequently: true })!
  const colors = Draw.colorsOf(canvas)
  const events = manyCalls(number)
  const begun = performance.now()
  run = Fold.make("many")
  for (const event of events) Fold.take(run, event)
  const folded = performance.now()
  const layout = Layouts.make(run)
  const laid = performance.now()
  const now = run.end ?? run.now
  const view = { from: 0, to: now, top: 0, width, height, row: 19, ratio: 1, now, isStrip: false }
  const once = (more: object = {}) => {
    const start = performance.now()
    Draw.draw(context, run, layout, { ...view, ...more }, colors, "c5")
    // Drawing is done when a pixel is read.
    context.getImageData(0, 0, 1, 1)
    return performance.now() - start
  }
  const first = once()
  const median = (more: (index: number) => object) => {
    const times = Array.from({ length: 21 }, (_, index) => once(more(index))).toSorted((left, right) => left - right)
    return times[10]!
  }
  const whole = median((index) => ({ top: index * 40 }))
  const zoomed = median((index) => ({ from: now / 50 * index, to: now / 50 * index + now / 40 }))
  const strip = median(() => ({ row: 46 / layout.rows.length, height: 46, width: 640, isStrip: true }))
  canvas.remove()
  return {
    load: laid - begun + first,
    fold: folded - begun,
    layout: laid - folded,
    first,
    whole,
    zoomed,
    strip,
    rows: layout.rows.length,
    calls: run.list.length
  }
}

/** The functions of the page. */
export const picture = { add, bars, measure, seen, show, showMany }

Object.assign(globalThis, { picture })
