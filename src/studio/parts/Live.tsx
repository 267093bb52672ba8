/** The live region: sentences for screen readers, each of which is said once. */
import { type ReactNode, useSyncExternalStore } from "react"

/** Time in milliseconds for which sentences are gathered, and behind which a sentence that was said is gone. */
const [gathering, past] = [100, 10_000]

let current = ""
let pending: ReadonlyArray<string> = []
let timer: ReturnType<typeof setTimeout> | undefined
const readers = new Set<() => void>()

const show = (text: string): void => {
  current = text
  for (const reader of readers) reader()
}

const say = (): void => {
  const text = pending.join(" ")
  pending = []
  // A repeated text differs by a space, since it would be silent else.
  show(text === current ? `${text}\u00a0` : text)
  timer = setTimeout(() => show(""), past)
}

/** Says a sentence to a screen reader, behind the other sentences of the same moment. */
export const announce = (sentence: string): void => {
  if (sentence === "" || pending.includes(sentence)) return
  if (pending.length === 0) {
    clearTimeout(timer)
    timer = setTimeout(say, gathering)
  }
  pending = [...pending, sentence]
}

const subscribe = (reader: () => void): () => void => {
  readers.add(reader)
  return () => readers.delete(reader)
}

/** The live region. One of them stands in the page. */
export const Live = (): ReactNode => (
  <div className="hidden" role="status" aria-live="polite">{useSyncExternalStore(subscribe, () => current)}</div>
)
