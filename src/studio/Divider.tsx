/** The border between chat and picture, movable by dragging and with the arrow keys. */
import { type ReactNode, useRef } from "react"

/** Narrowest and widest picture, in percent of the space beside the list. */
const [least, most] = [25, 80]

const within = (percent: number): number => Math.min(most, Math.max(least, percent))

/** The border between chat and picture. */
export const Divider = ({ onEnd, onWidth, width }: {
  /** Picture width, in percent of the space beside the list. */
  readonly width: number
  readonly onWidth: (percent: number) => void
  /** Receives the width to store. */
  readonly onEnd: (percent: number) => void
}): ReactNode => {
  const last = useRef(width)
  const move = (percent: number) => {
    last.current = within(percent)
    onWidth(last.current)
  }
  return (
    <div
      className="divider"
      role="separator"
      tabIndex={0}
      aria-orientation="vertical"
      aria-label="Width of the picture"
      aria-valuemin={least}
      aria-valuemax={most}
      aria-valuenow={Math.round(width)}
      onPointerDown={(event) => {
        event.preventDefault()
        event.currentTarget.setPointerCapture(event.pointerId)
      }}
      onPointerMove={(event) => {
        const { currentTarget } = event
        if (!currentTarget.hasPointerCapture(event.pointerId)) return
        const box = currentTarget.closest(".work")?.getBoundingClientRect()
        if (box !== undefined) move((box.right - event.clientX) / box.width * 100)
      }}
      onLostPointerCapture={() => onEnd(last.current)}
      onKeyDown={(event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return
        event.preventDefault()
        move(width + (event.key === "ArrowLeft" ? 2 : -2))
        onEnd(last.current)
      }}
    />
  )
}
