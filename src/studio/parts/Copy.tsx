/** A button copying a text. */
import { type ReactNode, useEffect, useState } from "react"
import { announce } from "./Live.tsx"

/** A button copying `text`. `what` distinguishes the button from others for a screen reader. */
export const Copy = ({ text, what }: { readonly text: string; readonly what: string }): ReactNode => {
  const [state, setState] = useState<"ready" | "done" | "failed">("ready")
  useEffect(() => {
    if (state === "ready") return
    const timer = setTimeout(() => setState("ready"), 2_000)
    return () => clearTimeout(timer)
  }, [state])
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text)
      setState("done")
      announce("Copied.")
    } catch {
      setState("failed")
      announce("The browser did not allow copying.")
    }
  }
  return (
    <button type="button" className="quiet" aria-label={`Copy ${what}`} onClick={() => void copy()}>
      {state === "done" ? "Copied" : state === "failed" ? "Not copied" : "Copy"}
    </button>
  )
}
