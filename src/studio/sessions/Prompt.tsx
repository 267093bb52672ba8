/** A question in a dialog: it has the focus, and gives it back. Escape and a press beside it leave everything as it was. */
import { type ReactNode, useEffect, useId, useRef } from "react"

interface Properties {
  readonly title: string
  readonly children?: ReactNode
  /** The button that does it. */
  readonly action: string
  readonly isDangerous?: boolean
  readonly onDone: (form: FormData) => void
  readonly onClose: () => void
}

/** A form in a dialog. */
export const Prompt = ({ action, children, isDangerous = false, onClose, onDone, title }: Properties): ReactNode => {
  const dialog = useRef<HTMLDialogElement>(null)
  const label = useId()
  useEffect(() => {
    const { current } = dialog
    current?.showModal()
    return () => current?.close()
  }, [])
  return (
    <dialog
      ref={dialog}
      className="prompt"
      aria-labelledby={label}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose()
      }}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault()
          onDone(new FormData(event.currentTarget))
        }}
      >
        <h2 id={label}>{title}</h2>
        {children}
        <p className="choices">
          <button type="button" onClick={onClose}>Cancel</button>
          <button className={isDangerous ? "danger" : "main"}>{action}</button>
        </p>
      </form>
    </dialog>
  )
}
