/** Branches of a session at its messages: sessions beginning with the same conversation. */
import { useCallback, useEffect, useState } from "react"
import type { Branches, Said } from "../chat/Message.tsx"
import * as Client from "../data/client.ts"
import type * as Store from "../data/store.ts"
import type { Studio } from "../data/studio.ts"

const none: Client.KeptSession["forks"] = []

/** Returns the message at which a session branched: its first own message. */
export const beginningOf = ({ session, shown }: Store.Snapshot): string | undefined =>
  session?.forkedFrom === undefined
    ? undefined
    : shown.find(({ isKept, message }) => !isKept && message !== undefined)?.message?.id

/**
 * Returns the names of calls after a message that may have changed something: they ran, and their tools are not known
 * to be read-only.
 */
export const effectsBehind = (
  { shown }: Store.Snapshot,
  message: Said,
  tools: ReadonlyArray<Client.ToolFacts> = []
): ReadonlyArray<string> => {
  const readers = new Set(tools.flatMap(({ name, readOnly }) => readOnly ? [name] : []))
  const at = shown.findIndex((each) => each.message?.id === message.id)
  const calls = shown.slice(Math.max(0, at)).flatMap(({ isKept, run }) =>
    run.list.filter(({ attempts, owner, state }) =>
      owner === "" && (attempts.length > 0 || isKept && (state === "done" || state === "failed"))
    )
  )
  return Array.from(new Set(calls.map(({ name }) => name))).filter((name) => !readers.has(name))
}

/**
 * Returns a function for the branches at a message, and whether the session of origin is gone. The function returns
 * `undefined` for a message with a single branch, and changes with the branches.
 */
export const useBranches = (
  studio: Studio,
  snapshot: Store.Snapshot
): { readonly at: (message: Said) => Branches | undefined; readonly isOrphan: boolean } => {
  const { agent, id, session } = snapshot
  const { client } = studio
  const { forkedFrom, forks = none } = session ?? {}
  const [siblings, setSiblings] = useState<ReadonlyArray<string>>([])
  const [isOrphan, setOrphan] = useState(false)
  const from = forkedFrom?.id
  const before = forkedFrom?.message
  useEffect(() => {
    setOrphan(false)
    if (from === undefined) return setSiblings([])
    let isOver = false
    client.runs(agent, from, { limit: 1 }).then(({ session }) => {
      if (isOver) return
      setSiblings([from, ...session.forks.flatMap(({ id, message }) => message === before ? [id] : [])])
    }, (error) => {
      if (!isOver && error instanceof Client.Refused && error.status === 404) setOrphan(true)
    })
    return () => void (isOver = true)
  }, [client, agent, from, before])
  const beginning = beginningOf(snapshot)
  const at = useCallback((message: Said) => {
    const ids = message.id === beginning
      ? siblings
      : [id, ...forks.flatMap((fork) => fork.message === message.id ? [fork.id] : [])]
    const at = ids.indexOf(id)
    if (at < 0 || ids.length < 2) return undefined
    return {
      at: at + 1,
      of: ids.length,
      onStep: (places: 1 | -1) => {
        const next = ids[at + places]
        if (next !== undefined) studio.stepTo(agent, next, next === from ? before ?? "" : "")
      }
    }
  }, [agent, before, beginning, forks, from, id, siblings, studio])
  return { at, isOrphan }
}
