/** A live run picture 46 px high, which opens the whole picture. */
import { useEffect, useRef } from "react"
import type * as Fold from "../data/fold.ts"
import * as Draw from "./draw.ts"
import * as Phrases from "./phrases.ts"
import { fit, useLayout, useNow, useScheme, useSize } from "./surface.ts"

/** Highest strip, in CSS pixels. */
const most = 46

interface Properties {
  readonly run: Fold.Run
  /** Run version, for drawing the strip again. */
  readonly version: number
  readonly onOpen: () => void
  /** `true` while the whole picture is open; the strip then closes the picture. */
  readonly isOpen?: boolean
  /** `false` for an unfinished run that has stopped progressing. `true` by default. */
  readonly isLive?: boolean
}

export const Strip = ({ isLive = true, isOpen = false, onOpen, run, version }: Properties) => {
  const box = useRef<HTMLSpanElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const { width } = useSize(box)
  const scheme = useScheme()
  const now = useNow(run, version, isLive)
  const laid = useLayout(run, version)
  const rows = Math.max(1, laid.layout.rows.length)
  const row = Math.min(6, most / rows)
  const height = Math.max(14, Math.min(most, Math.ceil(rows * row)))
  useEffect(() => {
    const context = canvas.current?.getContext("2d")
    if (canvas.current === null || context === null || context === undefined || width === 0) return
    const ratio = fit(canvas.current, width, height)
    const view = { from: 0, to: Math.max(1, now * 1.01), top: 0, width, height, ratio, row, now, isStrip: true }
    Draw.draw(context, run, laid.layout, view, Draw.colorsOf(canvas.current), undefined)
  }, [run, laid, now, width, height, row, scheme])
  return (
    <button
      type="button"
      className="run-strip"
      onClick={onOpen}
      aria-expanded={isOpen}
      aria-label={`${isOpen ? "Close" : "Open"} the picture. ${Phrases.sentence(run)}`}
    >
      <span ref={box}>
        <canvas ref={canvas} width={1} height={height} style={{ height }} />
      </span>
    </button>
  )
}
