/** Canvas hooks: size, color scheme, and a live run's time and layout. */
import { type RefObject, useEffect, useMemo, useRef, useState } from "react"
import type * as Fold from "../data/fold.ts"
import * as Layouts from "./layout.ts"

/** Returns an element's size, in CSS pixels. */
export const useSize = (ref: RefObject<HTMLElement | null>): { readonly width: number; readonly height: number } => {
  const [size, setSize] = useState({ width: 0, height: 0 })
  useEffect(() => {
    const element = ref.current
    if (element === null) return
    const observer = new ResizeObserver(([entry]) => {
      if (entry === undefined) return
      const { height, width } = entry.contentRect
      setSize({ width: Math.floor(width), height: Math.floor(height) })
    })
    observer.observe(element)
    return () => observer.disconnect()
  }, [ref])
  return size
}

/** Returns a number changing with the colors: with the system's scheme, and with the page's. */
export const useScheme = (): number => {
  const [scheme, setScheme] = useState(0)
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)")
    const change = () => setScheme((known) => known + 1)
    const observer = new MutationObserver(change)
    observer.observe(document.documentElement, { attributes: true })
    media.addEventListener("change", change)
    return () => {
      media.removeEventListener("change", change)
      observer.disconnect()
    }
  }, [])
  return scheme
}

/** Milliseconds between two pictures of a run without news. */
const beat = 100

/** Returns a run's time in milliseconds. Between a live run's events it follows the clock. */
export const useNow = (run: Fold.Run, version: number, isLive: boolean): number => {
  const heard = useRef({ run, version, at: performance.now() })
  if (heard.current.run !== run || heard.current.version !== version) {
    heard.current = { run, version, at: performance.now() }
  }
  const isMoving = isLive && run.end === undefined && run.startedAt !== undefined
  const [, setBeats] = useState(0)
  useEffect(() => {
    if (!isMoving || matchMedia("(prefers-reduced-motion: reduce)").matches) return
    const timer = setInterval(() => setBeats((beats) => beats + 1), beat)
    return () => clearInterval(timer)
  }, [isMoving])
  if (!isMoving || matchMedia("(prefers-reduced-motion: reduce)").matches) return run.end ?? run.now
  return run.now + performance.now() - heard.current.at
}

const none: ReadonlySet<string> = new Set()

/** Returns a run's layout, extended as events arrive. */
export const useLayout = (
  run: Fold.Run,
  version: number,
  folded: ReadonlySet<string> = none
): { readonly layout: Layouts.Layout; readonly version: number } => {
  const last = useRef<{ readonly run: Fold.Run; readonly layout: Layouts.Layout }>(undefined)
  return useMemo(() => {
    const known = last.current
    const isSame = known !== undefined && known.run === run && known.layout.folded === folded
    const layout = isSame ? Layouts.extend(known.layout, run) : Layouts.make(run, folded)
    last.current = { run, layout }
    return { layout, version }
  }, [run, version, folded])
}

/** Sets a canvas's pixel size, and returns the pixels per CSS pixel. */
export const fit = (canvas: HTMLCanvasElement, width: number, height: number): number => {
  const ratio = globalThis.devicePixelRatio || 1
  const [wide, high] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))]
  if (canvas.width !== wide) canvas.width = wide
  if (canvas.height !== high) canvas.height = high
  return ratio
}
