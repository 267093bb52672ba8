/**
 * The focus: what closes gives it back to what had it before, or else to the field for a message; what waits for an
 * answer takes it where it is free; and what covers the page takes it in.
 */
import { useEffect, useState } from "react"

/** The most elements that are remembered. */
const most = 50

/** Elements that had the focus, the last one at the end. */
const trail: Array<HTMLElement> = []

/** `false` once a person has taken the focus away, with a press beside all elements. */
let isHeld = false

/** Tells whether an element can have the focus. */
const isThere = (element: HTMLElement): boolean =>
  element.isConnected && !element.matches(":disabled") && element.closest("[inert]") === null
  && element.checkVisibility({ visibilityProperty: true })

/** Returns the element that has the focus, unless it is none, or one that has gone. */
const focused = (): HTMLElement | undefined => {
  const { activeElement: at } = document
  return at instanceof HTMLElement && at !== document.body && isThere(at) ? at : undefined
}

const remember = ({ target }: FocusEvent): void => {
  if (!(target instanceof HTMLElement)) return
  const known = trail.indexOf(target)
  if (known >= 0) trail.splice(known, 1)
  trail.push(target)
  if (trail.length > most) trail.shift()
  isHeld = true
}

const giveBack = (isMoved: boolean): void => {
  // A dialog keeps the focus to itself.
  if (!isHeld || document.querySelector("dialog[open]") !== null || focused() !== undefined) return
  const last = trail.at(-1)
  if (last !== undefined && isThere(last) && !isMoved) {
    isHeld = false
    return
  }
  const other = document.getElementById("message") ?? document.querySelector<HTMLElement>("main h1")
  const target = trail.findLast(isThere) ?? other
  target?.focus({ preventScroll: true })
}

/**
 * Gives the focus back wherever what had it has closed, ended, or gone: to the element that had it before, which is the
 * one that opened it, or else to the field for a message. Returns a function that ends this.
 */
export const keepFocus = (): () => void => {
  let timer: ReturnType<typeof setTimeout> | undefined
  let isMoved = false
  const observer = new MutationObserver((changes) => {
    const last = trail.at(-1)
    // An element that is put elsewhere in the page loses the focus too.
    isMoved ||= changes.some(({ removedNodes }) => Array.from(removedNodes).some((node) => node.contains(last ?? null)))
    // A new element may take the focus itself, behind the drawing.
    timer ??= setTimeout(() => {
      timer = undefined
      giveBack(isMoved)
      isMoved = false
    })
  })
  document.addEventListener("focusin", remember)
  observer.observe(document.body, {
    subtree: true,
    childList: true,
    attributeFilter: ["disabled", "hidden", "inert", "open", "data-side"]
  })
  return () => {
    document.removeEventListener("focusin", remember)
    observer.disconnect()
    clearTimeout(timer)
  }
}

/**
 * Moves the focus to what waits for an answer: from an empty field for a message, or from nothing. A key that was meant
 * for another element is not lost.
 */
export const takeFocus = (target: HTMLElement | null): void => {
  const at = focused()
  const isFree = at === undefined || at instanceof HTMLTextAreaElement && at.id === "message" && at.value === ""
  if (target === null || !isFree) return
  target.focus({ preventScroll: true })
  target.scrollIntoView({ block: "nearest" })
}

/** Moves the focus into what has just opened, unless it is there already. */
export const enter = (opened: Element | null, selectors: ReadonlyArray<string>): void => {
  if (opened === null || opened.contains(document.activeElement)) return
  for (const selector of selectors) {
    const target = opened.querySelector<HTMLElement>(selector)
    if (target === null || !isThere(target)) continue
    return target.focus({ preventScroll: true })
  }
}

/** A part of the page that has another form in a narrow window. */
type Part = "list" | "picture" | "run"

/** Tells whether the window is too narrow for the wide form of a part. The styles alone know the widths. */
export const isNarrow = (part: Part): boolean =>
  getComputedStyle(document.documentElement).getPropertyValue(`--narrow-${part}`) !== ""

/** Tells whether the window is too narrow for the wide form of a part, as its size changes. */
export const useNarrow = (part: Part): boolean => {
  const [is, set] = useState(() => isNarrow(part))
  useEffect(() => {
    const change = () => set(isNarrow(part))
    change()
    addEventListener("resize", change)
    return () => removeEventListener("resize", change)
  }, [part])
  return is
}
