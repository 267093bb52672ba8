/** Focus for what waits for an answer. */
import { useCallback } from "react"

/** Tells whether a person types into a field that has a text. */
const isTyping = (element: Element | null): boolean =>
  (element instanceof HTMLTextAreaElement || element instanceof HTMLInputElement) && element.value !== ""

/** Returns a function that moves the focus, unless a person types or has it in something that asks. */
export const useFreeFocus = (): (target: HTMLElement | null) => void =>
  useCallback((target) => {
    const { activeElement } = document
    if (target === null || isTyping(activeElement) || activeElement?.closest(".ask") != null) return
    target.focus({ preventScroll: true })
    target.scrollIntoView({ block: "nearest" })
  }, [])
