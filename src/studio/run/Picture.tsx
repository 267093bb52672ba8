/** The picture of a run beside its chat: a canvas with its call rows, or their table, and the chosen call. */
import { type KeyboardEvent, type PointerEvent, useEffect, useMemo, useRef, useState } from "react"
import * as Words from "../chat/words.ts"
import type * as Fold from "../data/fold.ts"
import { enter, isNarrow } from "../parts/focus.ts"
import { Detail } from "./Detail.tsx"
import * as Draw from "./draw.ts"
import * as Layouts from "./layout.ts"
import * as Phrases from "./phrases.ts"
import { fit, useLayout, useNow, useScheme, useSize } from "./surface.ts"
import { Table } from "./Table.tsx"

interface Properties {
  readonly run: Fold.Run
  /** Run version, for drawing the picture again. */
  readonly version: number
  /** `false` for an unfinished run that has stopped progressing. `true` by default. */
  readonly isLive?: boolean
  /** Path of the call chosen at first. */
  readonly first?: string
  /** `true` if the picture fills the window. */
  readonly isWide?: boolean
  /** `true` if it has just been opened, or covers the page: it takes the focus. */
  readonly isOpened?: boolean
  /** Reports that it has taken the focus. */
  readonly onEntered?: () => void
  /** Expands the picture to the whole window, or reduces it again. */
  readonly onWide?: () => void
  readonly onClose?: () => void
  /** Stops a call of a live run, by its path. */
  readonly onStop?: ((path: string) => void) | undefined
}

/** Key help for a reader unable to see the picture. */
const hint = "Right and left choose a call by its time, down and up by its place in the table, "
  + "plus, minus and 0 zoom. The table has the same calls."

type Window = readonly [from: number, to: number]

/** Possible parts of a picture, in words, each with a test for runs or the chosen call showing it. */
const legend: ReadonlyArray<
  readonly [name: string, words: string, has: (run: Fold.Run, chosen: Fold.Call | undefined) => boolean]
> = [
  ["model", "model: waits, replies", ({ turns }) => turns.length > 0],
  ["tick", "a call is asked for", ({ list }) => list.length > 0],
  ["origin", "from there to the chosen call", (_, chosen) => chosen !== undefined && chosen.turn >= 0],
  ["early", "started before the reply ended", ({ counts }) => counts.early > 0],
  [
    "plain",
    "started after the reply ended",
    ({ list }) => list.some(({ isEarly, state }) => state === "done" && !isEarly)
  ],
  ["live", "runs (blue edge: early)", ({ counts, end }) => counts.running > 0 && end === undefined],
  ["alone", "alone, between dashed lines", ({ alone }) => alone.calls.length > 0],
  ["bad", "✕ failed, ⊘ denied", ({ counts }) => counts.failed + counts.denied > 0],
  ["grey", "■ stopped", ({ counts }) => counts.cancelled > 0],
  ["asks", "? asks", ({ counts }) => counts.asks > 0],
  ["key", "waits for a key", (run) => hasWait(run, "key")],
  ["permit", "waits for a place", (run) => hasWait(run, "permit")],
  ["exclusive", "waits, since a call runs alone", (run) => hasWait(run, "exclusive")],
  ["reply", "waits for the end of the reply", ({ list }) => list.some((call) => Phrases.isLate(call))],
  ["stop", "dashed: left running", ({ abandoned }) => abandoned.length > 0],
  ["resumed", "dotted: resumed", ({ resumed }) => resumed.length > 0]
]

const hasWait = ({ list }: Fold.Run, reason: string): boolean =>
  list.some(({ waits }) => waits.some((wait) => wait.reason === reason))

export const Picture = (
  { first, isLive = true, isOpened = false, isWide = false, onClose, onEntered, onStop, onWide, run, version }:
    Properties
) => {
  const whole = useRef<HTMLElement>(null)
  const now = useNow(run, version, isLive)
  const [isTable, setTable] = useState(() => isNarrow("run"))
  const [chosen, choose] = useState(first)
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set())
  const laid = useLayout(run, version, folded)
  useEffect(() => {
    if (!isOpened) return
    enter(whole.current, ["canvas", ".run-table"])
    onEntered?.()
  }, [isOpened])
  const fold = (path: string) =>
    setFolded((known) =>
      known.has(path) ? new Set(Array.from(known).filter((other) => other !== path)) : new Set([...known, path])
    )
  return (
    <section ref={whole} className="run" aria-label="Picture of the run">
      <div className="run-head">
        <h2 className="hidden">Picture of the run</h2>
        <strong>{Phrases.outcomeOf(run)}</strong>
        {run.startedAt !== undefined && <span>{Words.seconds(run.end ?? now)}</span>}
        {Phrases.facts(run).map((fact) => <span key={fact}>{fact}</span>)}
        <span className="run-tools" role="group" aria-label="Form">
          <button type="button" aria-pressed={!isTable} onClick={() => setTable(false)}>Picture</button>
          <button type="button" aria-pressed={isTable} onClick={() => setTable(true)}>Table</button>
          {onWide !== undefined && (
            <button type="button" className="run-wide" aria-pressed={isWide} onClick={onWide}>Whole window</button>
          )}
          {onClose !== undefined && <button type="button" onClick={onClose}>Close</button>}
        </span>
      </div>
      {isTable
        ? <Table {...{ run, version, now, chosen }} onChoose={choose} />
        : <Surface {...{ run, laid, now, chosen, choose, fold }} />}
      <Detail
        {...{ run, now, isTable }}
        layout={laid.layout}
        call={chosen === undefined ? undefined : run.calls.get(chosen)}
        onFold={fold}
        onChoose={choose}
        onStop={onStop}
      />
    </section>
  )
}

interface SurfaceProperties {
  readonly run: Fold.Run
  readonly laid: ReturnType<typeof useLayout>
  readonly now: number
  readonly chosen: string | undefined
  readonly choose: (path: string | undefined) => void
  readonly fold: (path: string) => void
}

const Surface = ({ choose, chosen, fold, laid, now, run }: SurfaceProperties) => {
  const { layout } = laid
  const box = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const { height, width } = useSize(box)
  const scheme = useScheme()
  const [zoomed, setZoomed] = useState<Window>()
  const [scrolled, setScrolled] = useState(0)
  const whole = Draw.wholeOf(run, layout, { width, height, now })
  const [from, to] = zoomed ?? [whole.from, whole.to]
  const { row } = whole
  const most = Draw.scrollOf(whole, layout)
  const top = Math.min(scrolled, most)
  const view: Draw.View = { ...whole, from, to, top }

  useEffect(() => {
    const element = canvas.current
    if (element === null || width === 0) return
    const frame = requestAnimationFrame(() => {
      const context = element.getContext("2d")
      const ratio = fit(element, width, height)
      if (context !== null) Draw.draw(context, run, layout, { ...view, ratio }, Draw.colorsOf(element), chosen)
    })
    return () => cancelAnimationFrame(frame)
  }, [run, laid, from, to, top, width, height, row, now, chosen, scheme])

  const show = (window: Window) => {
    const span = Math.min(Math.max(window[1] - window[0], 5), (whole.to - whole.from) * 4)
    const middle = Math.min(Math.max((window[0] + window[1]) / 2, whole.from), whole.to)
    setZoomed([middle - span / 2, middle + span / 2])
  }
  const zoom = (factor: number, at = (from + to) / 2) => show([at - (at - from) * factor, at + (to - at) * factor])
  const pan = (pixels: number) => {
    const by = (to - from) * pixels / Math.max(1, width)
    show([from + by, to + by])
  }
  const scroll = (to: number) => setScrolled(Math.max(0, Math.min(most, to)))

  const wheel = useRef<(event: WheelEvent) => void>(() => {})
  wheel.current = (event) => {
    const { ctrlKey, deltaX, deltaY, metaKey, offsetX, shiftKey } = event
    if (ctrlKey || metaKey) zoom(Math.exp(deltaY / 300), from + (to - from) * offsetX / Math.max(1, width))
    else if (shiftKey || Math.abs(deltaX) > Math.abs(deltaY)) pan(deltaX || deltaY)
    else if (most > 0) scroll(top + deltaY)
    else return
    event.preventDefault()
  }
  // A React listener cannot keep the page from scrolling.
  useEffect(() => {
    const element = canvas.current
    const listen = (event: WheelEvent) => wheel.current(event)
    element?.addEventListener("wheel", listen, { passive: false })
    return () => element?.removeEventListener("wheel", listen)
  }, [])

  const reveal = (bar: Layouts.Bar | undefined) => {
    if (bar === undefined) return
    choose(bar.call.path)
    const y = bar.row * row
    if (y < top || y > top + height - Draw.axis - row) scroll(y - height / 2)
    const [start, end] = [bar.call.asked, Layouts.endOf(bar, now)]
    if (start > to || end < from) show([start - (to - from) / 2, start + (to - from) / 2])
  }
  /** Chooses the call a number of places after the chosen call. */
  const step = (by: number, calls: ReadonlyArray<Fold.Call> = run.list) => {
    const bars = calls.flatMap((call) => layout.bars.get(call.path) ?? [])
    const at = bars.findIndex((bar) => bar.call.path === chosen)
    reveal(bars[Math.max(0, Math.min(bars.length - 1, at < 0 ? 0 : at + by))])
  }
  /** Chooses the next call in table order: a sub-agent's calls follow its own call. */
  const stepDown = (by: number) => step(by, Phrases.ordered(run, "asked", now))
  const chosenCall = chosen === undefined ? undefined : run.calls.get(chosen)
  const shown = useMemo(() => legend.filter(([, , has]) => has(run, chosenCall)), [run, laid, chosenCall])
  const keys: { readonly [key: string]: () => void } = {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    ArrowDown: () => stepDown(1),
    ArrowUp: () => stepDown(-1),
    Home: () => step(-Infinity),
    End: () => step(Infinity),
    Enter: () => {
      if (chosen !== undefined && layout.bars.get(chosen)?.block !== undefined) fold(chosen)
    },
    PageDown: () => scroll(top + height - Draw.axis),
    PageUp: () => scroll(top - height + Draw.axis),
    "+": () => zoom(0.6),
    "=": () => zoom(0.6),
    "-": () => zoom(1 / 0.6),
    "0": () => {
      setZoomed(undefined)
      setScrolled(0)
    }
  }
  const onKeyDown = (event: KeyboardEvent) => {
    const act = Object.hasOwn(keys, event.key) ? keys[event.key] : undefined
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    act()
  }

  const grip = useRef<{ x: number; y: number; isMoved: boolean }>(undefined)
  const onPointerDown = (event: PointerEvent<HTMLCanvasElement>) => {
    if (event.button !== 0) return
    event.currentTarget.setPointerCapture(event.pointerId)
    grip.current = { x: event.clientX, y: event.clientY, isMoved: false }
  }
  /** Returns the bar under the pointer, and the pointer position. */
  const under = (event: PointerEvent<HTMLCanvasElement>) => {
    const { left, top: upper } = event.currentTarget.getBoundingClientRect()
    const [x, y] = [event.clientX - left, event.clientY - upper]
    const at = from + (to - from) * x / Math.max(1, width)
    const index = Math.floor((y - Draw.axis + top) / row)
    const bar = y < Draw.axis
      ? undefined
      : Layouts.barAt(layout, index, at, (to - from) / Math.max(1, width) * 8, now)
    const bands = y < Draw.axis ? [] : layout.bands[index] ?? []
    const band = bands[Layouts.firstBand(bands, at, now)]
    return { bar, turn: band !== undefined && band.turn.from <= at ? band.turn : undefined, x, y }
  }
  const [tip, setTip] = useState<{ readonly text: string; readonly x: number; readonly y: number }>()
  const onPointerMove = (event: PointerEvent<HTMLCanvasElement>) => {
    const held = grip.current
    if (held === undefined) {
      if (event.pointerType !== "mouse") return
      const { bar, turn, x, y } = under(event)
      const text = bar !== undefined
        ? Phrases.about(run, bar.call)
        : turn === undefined
        ? undefined
        : Phrases.turnOf(turn, now)
      return setTip(text === undefined ? undefined : { text, x, y })
    }
    setTip(undefined)
    const [right, down] = [event.clientX - held.x, event.clientY - held.y]
    if (!held.isMoved && Math.abs(right) + Math.abs(down) < 5) return
    grip.current = { x: event.clientX, y: event.clientY, isMoved: true }
    if (right !== 0) pan(-right)
    if (down !== 0) scroll(top - down)
  }
  const onPointerUp = (event: PointerEvent<HTMLCanvasElement>) => {
    const held = grip.current
    grip.current = undefined
    if (held === undefined || held.isMoved) return
    const { bar, x } = under(event)
    const inside = bar?.block === undefined ? -1 : x - Math.max(0, Draw.xOf(view, Draw.startOf(bar.call)))
    if (bar !== undefined && inside >= 0 && inside < 17) fold(bar.call.path)
    choose(bar?.call.path)
  }

  return (
    <>
      <div ref={box} className="run-box">
        <canvas
          ref={canvas}
          width={1}
          height={1}
          tabIndex={0}
          role="application"
          aria-roledescription="picture"
          aria-label={`${Phrases.sentence(run)} ${hint}`}
          {...{ onKeyDown, onPointerDown, onPointerMove, onPointerUp }}
          onPointerCancel={() => {
            grip.current = undefined
          }}
          onPointerLeave={() => setTip(undefined)}
        />
        {tip !== undefined && (
          <span
            className="run-tip"
            aria-hidden="true"
            style={{
              top: tip.y < height / 2 ? tip.y + 16 : undefined,
              bottom: tip.y < height / 2 ? undefined : height - tip.y + 8,
              left: Math.max(4, Math.min(tip.x, width - 308))
            }}
          >
            {tip.text}
          </span>
        )}
      </div>
      <p className="run-legend" aria-hidden="true">
        {shown.map(([name, words]) => (
          <span key={name}>
            <i className={`run-dot ${name}`} />
            {words}
          </span>
        ))}
      </p>
    </>
  )
}
