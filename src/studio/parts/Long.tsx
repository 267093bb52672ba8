/** A text of any length: its beginning, and a button showing the rest in pieces. */
import { type ReactNode, useEffect, useState } from "react"

const shown = 4_000
const size = 50_000

/** Returns an offset for cutting a text: after a line end, if near. */
const cutAt = (text: string, from: number, most: number): number => {
  if (text.length - from <= most) return text.length
  const line = text.lastIndexOf("\n", from + most)
  return line > from + most / 2 ? line + 1 : from + most
}

/** Returns a text's pieces up to an offset. In a single node, each line would add to the layout time. */
const piecesOf = (text: string, end: number): ReadonlyArray<string> => {
  const pieces: Array<string> = []
  for (let at = 0; at < end;) {
    const next = Math.min(end, cutAt(text, at, pieces.length === 0 ? shown : size))
    pieces.push(text.slice(at, next))
    at = next
  }
  return pieces
}

/** A text, shown completely if short. */
export const Long = ({ text }: { readonly text: string }): ReactNode => {
  const [wanted, setWanted] = useState(false)
  const [end, setEnd] = useState(() => cutAt(text, 0, shown))
  useEffect(() => {
    if (!wanted || end >= text.length) return
    // The browser has time for keys and a frame between two pieces.
    const timer = setTimeout(() => setEnd(cutAt(text, end, size)))
    return () => clearTimeout(timer)
  }, [end, text, wanted])
  if (text.length <= shown * 2) return text
  return (
    <>
      {piecesOf(text, Math.min(end, text.length)).map((piece, index) => <div key={index} className="part">{piece}
      </div>)}
      {end < text.length && (
        <button type="button" className="more" disabled={wanted} onClick={() => setWanted(true)}>
          Show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </>
  )
}
