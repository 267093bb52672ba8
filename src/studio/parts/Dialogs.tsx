/** Dialogs: each takes the focus, and returns the focus at its end. Escape and a press outside only close a dialog. */
import { type ReactNode, useEffect, useId, useRef } from "react"

const Dialog = ({ children, name = "", onClose, title }: {
  readonly title: string
  /** A further class. */
  readonly name?: string
  readonly onClose: () => void
  /** Content of the dialog, after its title. */
  readonly children: (heading: ReactNode) => ReactNode
}): ReactNode => {
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
      className={`prompt ${name}`}
      aria-labelledby={label}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose()
      }}
    >
      {children(<h2 id={label}>{title}</h2>)}
    </dialog>
  )
}

/** A question. */
export interface Asking {
  readonly title: string
  readonly children?: ReactNode
  /** Label of the confirming button. */
  readonly action: string
  readonly isDangerous?: boolean
  readonly onDone: (form: FormData) => void
  readonly onClose: () => void
}

/** A question, with the form for its answer. */
export const Prompt = ({ action, children, isDangerous = false, onClose, onDone, title }: Asking): ReactNode => (
  <Dialog title={title} onClose={onClose}>
    {(heading) => (
      <form
        onSubmit={(event) => {
          event.preventDefault()
          onDone(new FormData(event.currentTarget))
        }}
      >
        {heading}
        {children}
        <p className="choices">
          <button type="button" onClick={onClose}>Cancel</button>
          <button className={isDangerous ? "danger" : "main"}>{action}</button>
        </p>
      </form>
    )}
  </Dialog>
)

const keys: ReadonlyArray<readonly [keys: ReadonlyArray<string>, what: string]> = [
  [["Enter"], "sends the message"],
  [["Shift", "Enter"], "starts a new line"],
  [["Alt", "Enter"], "keeps the message for the next run, while a run works"],
  [["Esc"], "stops the run, closes what is open, or empties the search"],
  [["/"], "searches the chats"],
  [["n"], "begins a new chat"],
  [["["], "shows the chat above in the list"],
  [["]"], "shows the chat below in the list"],
  [["p"], "shows and hides the picture of the last run"],
  [["f"], "shows the picture in the whole window"],
  [["+", "−", "0"], "zoom the picture in and out, and show all of it"],
  [["←", "→"], "choose a call in the picture, by time"],
  [["↑", "↓"], "choose a call in table order"],
  [["?"], "shows these keys"]
]

/** Keys of the page. */
export const Help = ({ onClose }: { readonly onClose: () => void }): ReactNode => (
  <Dialog title="Keys" name="help" onClose={onClose}>
    {(heading) => (
      <div>
        {heading}
        <dl>
          {keys.map(([names, what]) => (
            <div key={what}>
              <dt>{names.map((name) => <kbd key={name}>{name}</kbd>)}</dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <p className="choices">
          <a href="LICENSES.txt" target="_blank" rel="noreferrer noopener">Licenses</a>
          <button type="button" className="main" onClick={onClose}>Close</button>
        </p>
      </div>
    )}
  </Dialog>
)
