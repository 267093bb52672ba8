/**
 * Focus handling: closing an element returns the focus to its previous holder, or else to the message field; a waiting
 * call takes the free focus; and an element covering the page takes the focus in.
 */
import { useEffect, useState } from "react"

/** Most elements remembered. */
const most = 50

/** Previously focused elements, latest at the end. */
const trail: Array<HTMLElement> = []

/** `false` once a person has removed the focus, by a press outside all elements. */
let isHeld = false

/** Tells whether an element can have the focus. */
const isThere = (element: HTMLElement): boolean =>
  element.isConnected && !element.matches(":disabled") && element.closest("[inert]") === null
  && element.checkVisibility({ visibilityProperty: true })

/** Returns the focused element, if it still exists. */
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
 * Returns the focus whenever its holder has closed, ended or disappeared: to the previous holder, which opened the
 * closed element, or else to the message field. Returns a function ending this behavior.
 */
export const keepFocus = (): () => void => {
  let timer: ReturnType<typeof setTimeout> | undefined
  let isMoved = false
  const observer = new MutationObserver((changes) => {
    const last = trail.at(-1)
    // An element moved within the page also loses the focus.
    isMoved ||= changes.some(({ removedNodes }) => Array.from(removedNodes).some((node) => node.contains(last ?? null)))
    // A new element may take the focus itself, after drawing.
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
 * Moves the focus to a waiting call: from an empty message field, or from nowhere. A key meant for another element is
 * not lost.
 */
export const takeFocus = (target: HTMLElement | null): void => {
  const at = focused()
  const isFree = at === undefined || at instanceof HTMLTextAreaElement && at.id === "message" && at.value === ""
  if (target === null || !isFree) return
  target.focus({ preventScroll: true })
  target.scrollIntoView({ block: "nearest" })
}

/** Moves the focus into a newly opened element, unless already inside. */
export const enter = (opened: Element | null, selectors: ReadonlyArray<string>): void => {
  if (opened === null || opened.contains(document.activeElement)) return
  for (const selector of selectors) {
    const target = opened.querySelector<HTMLElement>(selector)
    if (target === null || !isThere(target)) continue
    return target.focus({ preventScroll: true })
  }
}

/** A part of the page with another form in a narrow window. */
type Part = "list" | "picture" | "run"

/** Tells whether the window is too narrow for a part's wide form. Only the styles know the widths. */
export const isNarrow = (part: Part): boolean =>
  getComputedStyle(document.documentElement).getPropertyValue(`--narrow-${part}`) !== ""

/** Tells whether the window is too narrow for a part's wide form, as its size changes. */
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
