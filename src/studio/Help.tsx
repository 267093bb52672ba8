/** The keys of the page, in a dialog. */
import { type ReactNode, useEffect, useRef } from "react"

const keys: ReadonlyArray<readonly [keys: ReadonlyArray<string>, what: string]> = [
  [["Enter"], "sends the message"],
  [["Shift", "Enter"], "starts a new line"],
  [["Esc"], "stops the run, closes what is open, or empties the search"],
  [["/"], "searches the chats"],
  [["n"], "begins a new chat"],
  [["["], "shows the chat above in the list"],
  [["]"], "shows the chat below in the list"],
  [["p"], "shows and hides the picture of the last run"],
  [["f"], "shows the picture in the whole window"],
  [["+", "−", "0"], "zoom the picture in and out, and show all of it"],
  [["←", "→"], "choose a call of the picture by its time"],
  [["↑", "↓"], "choose a call as the table has them"],
  [["?"], "shows these keys"]
]

/** The keys of the page. */
export const Help = ({ onClose }: { readonly onClose: () => void }): ReactNode => {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const { current } = dialog
    current?.showModal()
    return () => current?.close()
  }, [])
  return (
    <dialog
      ref={dialog}
      className="prompt help"
      aria-labelledby="help"
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose()
      }}
    >
      <div>
        <h2 id="help">Keys</h2>
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
    </dialog>
  )
}
