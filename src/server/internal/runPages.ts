/**
 * Session history by pages: runs, each with its public events from the journal. Reading a page starts at the last idle
 * place before its first run, so all pages together read hardly more than the journal.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import * as CallPaths from "../../internal/answer/callPath.ts"
import * as Journal from "../../Journal.ts"
import type * as Message from "../../Message.ts"
import * as Session from "../../Session.ts"
import * as JournalEvents from "./journalEvents.ts"
import * as Refusals from "./refusal.ts"
import * as Sessions from "./sessions.ts"
import * as ThreadRuns from "./threadRuns.ts"

/** A run of a session. */
export interface Run {
  readonly runId: string
  /**
   * Message beginning the run. Absent for a run continuing after answers. `mode` is the destination of a message sent
   * during an earlier run, which ended without taking the message.
   */
  readonly message?: { readonly id: string; readonly content: Message.Content; readonly mode?: "steer" | "follow" }
  /** Start time, in milliseconds since 1970. Absent if its records are gone. */
  readonly startedAt?: number
  readonly events: ReadonlyArray<Event.PublicEvent>
}

/** The requested part of a history. */
export interface Wanted {
  /** The page ends before the run with this id. Absent for the last page. */
  readonly before: string | undefined
  /** Maximum number of runs. */
  readonly limit: number
}

/** Number of runs per page, by default and at most. */
const [standardLimit, mostRuns] = [20, 100]

/** Reads request parameters. */
export const wantedOf = (
  before: string | undefined,
  limit: string | undefined
): Effect.Effect<Wanted, Refusals.Refusal> =>
  Effect.suspend((): Effect.Effect<Wanted, Refusals.Refusal> => {
    const count = limit === undefined ? standardLimit : /^\d{1,9}$/.test(limit) ? Number(limit) : 0
    return count < 1 || count > mostRuns
      ? Refusals.badRequest("invalid_limit", `limit must be a number from 1 to ${mostRuns}.`)
      : Effect.succeed({ before, limit: count })
  })

const invalidBefore = Refusals.badRequest("invalid_before", "before must be the id of a run in this session.")

/** A history page. */
export interface Page {
  /** Runs, oldest first. */
  readonly runs: ReadonlyArray<Run>
  /** The run before which the next page ends. Absent on the session's first page. */
  readonly before?: string
}

/** A run whose events are being gathered. */
interface Gathered extends Run {
  readonly events: Array<Event.PublicEvent>
}

/** Failure of a reader whose process has folded records that a snapshot has since replaced. */
const outdated = "outdated"

/** Reads the runs of a page. */
const gather = (
  key: string,
  places: ReadonlyArray<JournalEvents.Place>,
  publish: Event.PublicOptions
): Effect.Effect<ReadonlyArray<Run>, Journal.StoreError | typeof outdated, Session.Store> =>
  Effect.gen(function*() {
    const [first] = places
    if (first === undefined) return []
    const store = yield* Session.Store
    const wanted = new Map(places.map((place) => [place.runId, place]))
    const runs: Array<Run> = []
    const gathered = new Map<string, Gathered>()
    const telling = new JournalEvents.Telling(key, publish)
    let isFirst = true
    const begin = ({ messages, requestId: runId, startedAt }: Journal.RunStarted): void => {
      const { messageId, mode } = wanted.get(runId) ?? {}
      const said = messages.findLast(({ role }) => role === "user")
      const message = said === undefined || messageId === undefined
        ? {}
        : { message: { id: messageId, content: said.content, ...(mode === undefined ? {} : { mode }) } }
      const run: Gathered = { runId, ...message, startedAt, events: [] }
      gathered.set(runId, run)
      runs.push(run)
    }
    const take = ({ record, version }: Journal.Entry) =>
      Effect.gen(function*() {
        // A snapshot may have replaced the records since.
        if (isFirst && version !== first.after + 1) return yield* Effect.fail<typeof outdated>(outdated)
        if (isFirst && record._tag === "Opened") {
          runs.push(...ThreadRuns.runsOf(record.session, publish).filter(({ runId }) => wanted.has(runId)))
        }
        isFirst = false
        const told = yield* JournalEvents.toldOf(telling, { record, version })
        if (record._tag === "RunStarted" && record.resumes !== true) {
          if (wanted.has(record.requestId)) begin(record)
          else if (runs.length === places.length) return false
        }
        for (const { event, runId } of told) gathered.get(runId)?.events.push(event)
        return true
      })
    yield* Stream.runForEachWhile(store.read(key, first.after), take)
    for (const { event, runId } of yield* JournalEvents.underWayIn(telling)) gathered.get(runId)?.events.push(event)
    return runs.filter(({ events, runId }) => events.length > 0 && wanted.has(runId))
  })

/** Returns a page of session history. `telling` is the journal's fold. */
export const page = (
  key: string,
  telling: JournalEvents.Telling,
  wanted: Wanted,
  publish: Event.PublicOptions
): Effect.Effect<Page, Refusals.Refusal | Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const { before, limit } = wanted
    const { places } = telling
    const end = before === undefined ? places.length : places.findIndex(({ runId }) => runId === before)
    if (end < 0) return yield* invalidBefore
    const start = Math.max(0, end - limit)
    const [first] = places.slice(start)
    const runs = yield* gather(key, places.slice(start, end), publish)
    return { runs, ...(start === 0 || first === undefined ? {} : { before: first.runId }) }
  }).pipe(
    Effect.catchIf((error) => error === outdated, () =>
      Effect.gen(function*() {
        yield* JournalEvents.forget(key)
        return yield* page(key, yield* JournalEvents.read(key, publish), wanted, publish)
      }))
  )

/** A decided call whose run waits for other answers, or for its continuation. */
interface Decided {
  /** Path of the call, as in its suspension id. */
  readonly id: string
  readonly verdict: Session.Session["answered"][number]["verdict"]
}

/** Returns the decisions about the unfinished turn's calls. A call inside another may belong to any tool. */
const decidedIn = (kept: Session.Kept, publish: Event.PublicOptions): ReadonlyArray<Decided> => {
  const { answered } = kept.session
  if (answered.length === 0) return []
  const calls = new Set(JournalEvents.callsOf(kept, publish).map(({ id }) => id))
  return answered.flatMap(({ id, verdict }) => {
    const { path = [] } = CallPaths.parse(id) ?? {}
    const [first = ""] = path
    const isPublished = calls.has(first) && (path.length === 1 || typeof publish.publish !== "function")
    return isPublished ? [{ id, verdict }] : []
  })
}

/**
 * Returns a session's facts besides its runs, with the session's branches. `canWithdraw` tells whether the
 * request may withdraw a waiting message.
 */
export const sessionOf = (
  kept: Session.Kept,
  forks: ReadonlyArray<Sessions.Fork>,
  publish: Event.PublicOptions,
  canWithdraw = false
) => {
  const { origin: { forkedFrom }, session } = kept
  const { title = "" } = Journal.summaryOf(kept)
  const { inbox } = Session.view(kept)
  const decided = decidedIn(kept, publish)
  return {
    title,
    next: Session.next(kept),
    status: session.status,
    ...(forkedFrom === undefined ? {} : { forkedFrom: { ...forkedFrom, id: Sessions.idOf(forkedFrom.id) } }),
    forks,
    allowed: Sessions.allowedIn(kept, publish),
    submitted: inbox.map(({ id, message, mode }) => ({
      id,
      content: message.content,
      ...(mode === undefined ? {} : { mode })
    })),
    ...(canWithdraw ? { canWithdraw } : {}),
    suspensions: JournalEvents.suspensionsOf(kept, publish),
    ...(decided.length === 0 ? {} : { decided })
  }
}
