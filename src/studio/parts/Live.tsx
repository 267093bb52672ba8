/** The live region: sentences for screen readers, of which the last one counts. */
import { type ReactNode, useSyncExternalStore } from "react"

let current = ""
const readers = new Set<() => void>()

/** Says a sentence to a screen reader. A repeated sentence differs by a space, since it would be silent else. */
export const announce = (sentence: string): void => {
  current = sentence === current ? `${sentence}\u00a0` : sentence
  for (const reader of readers) reader()
}

const subscribe = (reader: () => void): () => void => {
  readers.add(reader)
  return () => readers.delete(reader)
}

/** The live region. One of them stands in the page. */
export const Live = (): ReactNode => (
  <div className="hidden" role="status" aria-live="polite">{useSyncExternalStore(subscribe, () => current)}</div>
)
