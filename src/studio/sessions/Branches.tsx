/** The branches of a session at its messages: the sessions that begin with the same conversation. */
import { useCallback, useEffect, useState } from "react"
import type { Branches, Said } from "../chat/Message.tsx"
import type * as Client from "../data/client.ts"
import type * as Store from "../data/store.ts"
import { addressOf } from "../data/studio.ts"

const none: Client.KeptSession["forks"] = []

/** The message at which a session branched: the first one that is its own. */
const beginningOf = ({ session, shown }: Store.Snapshot): string | undefined =>
  session?.forkedFrom === undefined
    ? undefined
    : shown.find(({ isKept, message }) => !isKept && message !== undefined)?.message?.id

/** Returns the branches at a message, where there is more than one. The function changes with them. */
export const useBranches = (
  client: Client.Client,
  snapshot: Store.Snapshot
): (message: Said) => Branches | undefined => {
  const { agent, id, session } = snapshot
  const { forkedFrom, forks = none } = session ?? {}
  const [siblings, setSiblings] = useState<ReadonlyArray<string>>([])
  const from = forkedFrom?.id
  const before = forkedFrom?.message
  useEffect(() => {
    if (from === undefined) return setSiblings([])
    let isOver = false
    client.runs(agent, from, { limit: 1 }).then(({ session }) => {
      if (isOver) return
      setSiblings([from, ...session.forks.flatMap(({ id, message }) => message === before ? [id] : [])])
    }, () => {
      // The earlier session was deleted, or may not be read: there is nothing to step to.
    })
    return () => void (isOver = true)
  }, [client, agent, from, before])
  const beginning = beginningOf(snapshot)
  return useCallback((message) => {
    const ids = message.id === beginning
      ? siblings
      : [id, ...forks.flatMap((fork) => fork.message === message.id ? [fork.id] : [])]
    const at = ids.indexOf(id)
    if (at < 0 || ids.length < 2) return undefined
    return {
      at: at + 1,
      of: ids.length,
      onStep: (places) => {
        const next = ids[at + places]
        if (next !== undefined) location.hash = addressOf(agent, next)
      }
    }
  }, [agent, beginning, forks, id, siblings])
}
