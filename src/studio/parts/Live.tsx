/** The live region: sentences for screen readers, each announced once. */
import { type ReactNode, useSyncExternalStore } from "react"

/** Times in milliseconds for gathering sentences, and before an announced sentence disappears. */
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
  // A repeated text differs by a space; otherwise it would be silent.
  show(text === current ? `${text}\u00a0` : text)
  timer = setTimeout(() => show(""), past)
}

/** Announces a sentence to screen readers, after the moment's other sentences. */
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

/** The live region. A page contains one. */
export const Live = (): ReactNode => (
  <div className="hidden" role="status" aria-live="polite">{useSyncExternalStore(subscribe, () => current)}</div>
)
