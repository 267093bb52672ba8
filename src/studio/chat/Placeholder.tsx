/** Stands in for the thread. */
import type { ReactNode } from "react"
import type * as Store from "../data/store.ts"

export const Thread = (
  { snapshot, onOpen }: { readonly snapshot: Store.Snapshot; readonly onOpen: (run: string) => void }
): ReactNode => (
  <div className="thread" tabIndex={0} role="log" aria-label="Conversation">
    <div className="column">
      {snapshot.shown.map(({ message, run }) => (
        <div key={run.id}>
          {message !== undefined && <p className="said">{typeof message.content === "string" ? message.content : ""}
          </p>}
          {run.turns.filter((turn) => turn.owner === "").map((turn) => (
            <div key={turn.index}>
              {turn.text}
              {turn.calls.map((path) => <p key={path}>{run.calls.get(path)?.name} {run.calls.get(path)?.state}</p>)}
            </div>
          ))}
          <button type="button" onClick={() => onOpen(run.id)}>Picture</button>
        </div>
      ))}
      {snapshot.waiting.map(({ content, id }) => (
        <p key={id} className="said">{typeof content === "string" ? content : ""}</p>
      ))}
    </div>
  </div>
)
