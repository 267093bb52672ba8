/**
 * A journal's initial conversation as runs: in a branched session, and after a snapshot. Its records are gone, so it
 * has no times. Each user message begins a run, and so does an assistant message at the beginning.
 */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Session from "../../Session.ts"
import type * as Thread from "../../Thread.ts"
import * as ThreadEvents from "../../ui/internal/threadEvents.ts"

/** A run, and its first message. */
export interface ThreadRun {
  readonly runId: string
  readonly message?: { readonly id: string; readonly content: Message.Content }
  readonly events: ReadonlyArray<Event.PublicEvent>
}

/** Returns the name for a message without an id, and for the run it began. */
export const nameOf = (place: number): string => `message-${place}`

/** Returns the positions of messages beginning a run. */
export const beginningsOf = ({ messages }: Thread.Thread): ReadonlyArray<number> => {
  const first = messages.findIndex(({ role }) => role === "user" || role === "assistant")
  return messages.flatMap(({ role }, place) => role === "user" || place === first ? [place] : [])
}

/** Ends the step of each reply. Without this end a reply would count as broken, and be replaced by the next reply. */
const stepped = (events: ReadonlyArray<Event.PublicEvent>): ReadonlyArray<Event.PublicEvent> => {
  const ends = events.flatMap((event, index): ReadonlyArray<Event.PublicEvent> =>
    event._tag === "MessageStarted" && index > 0 ? [{ _tag: "StepCompleted" }, event] : [event]
  )
  return ends.length === 0 ? ends : [...ends, { _tag: "StepCompleted" }]
}

/** Returns the conversation as runs, oldest first. */
export const runsOf = (
  { suspensions, thread }: Pick<Session.Session, "suspensions" | "thread">,
  options: Pick<Event.PublicOptions, "publish" | "publishReasoning">
): ReadonlyArray<ThreadRun> => {
  const entries = ThreadEvents.entriesOf(thread, { ...options, suspensions })
  const runs: Array<ThreadRun> = []
  let events: Array<Event.PublicEvent> = []
  let beginning = 0
  const beginnings = beginningsOf(thread)
  for (const entry of entries) {
    if (entry.index === beginnings[beginning]) {
      beginning++
      const runId = nameOf(entry.index)
      events = [{ _tag: "RunStarted", runId }]
      const said = entry.role === "user" ? { message: { id: runId, content: entry.message.content } } : {}
      runs.push({ runId, ...said, events })
    }
    if (entry.role === "assistant") events.push(...stepped(entry.events))
  }
  return runs
}
