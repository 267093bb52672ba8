/** Focus for what waits for an answer. */
import { useCallback } from "react"
import { focused } from "../parts/refocus.ts"

/**
 * Returns a function that moves the focus to what waits: from an empty field for a message, or from nothing. A key that
 * was meant for another element is not lost.
 */
export const useFreeFocus = (): (target: HTMLElement | null) => void =>
  useCallback((target) => {
    const at = focused()
    const isFree = at === undefined || at instanceof HTMLTextAreaElement && at.id === "message" && at.value === ""
    if (target === null || !isFree) return
    target.focus({ preventScroll: true })
    target.scrollIntoView({ block: "nearest" })
  }, [])
