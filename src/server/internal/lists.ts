/**
 * Session lists: searched, filtered and read page by page from the store's data beside the journals. No journal is
 * folded, and sessions with an unreadable journal are listed too.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import type * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import * as Refusals from "./refusal.ts"
import * as Sessions from "./sessions.ts"

/** A session in a list. */
export interface Listed {
  readonly id: string
  readonly agent: string
  /** `"unreadable"` if this release cannot read the session. */
  readonly status: Journal.Listed["status"] | "unreadable"
  readonly title: string
  readonly lastLine: string
  readonly next: Journal.Next
  readonly updatedAt: number
  /** `true` for a pinned session. Absent for any other session. */
  readonly pinned?: boolean
  /** Session of origin for a branch. Absent for any other session. */
  readonly forkedFrom?: NonNullable<Journal.Listed["forkedFrom"]>
}

/** A place in the session order, valid even if its session no longer exists. */
interface Place {
  readonly pinned?: boolean | undefined
  readonly since: number
  /** Session id, without its principal. */
  readonly id: string
}

/** Selects sessions for a list. */
export interface Search {
  /** Text to find in the title or the last line, ignoring case. An empty text matches any session. */
  readonly query?: string
  readonly status?: Session.Status
  /** Place after which the page begins. */
  readonly after?: Place
}

/** A page of a list. */
export interface Page {
  readonly sessions: ReadonlyArray<Listed>
  /** Encoded place after which the next page begins. Absent on the last page. */
  readonly next?: string
}

const pageSize = 20

/**
 * Maximum number of sessions per page whose first record is read for the agent name: the next page begins with further
 * ones.
 */
const mostRead = 200

/** Maximum length of a search text, in characters. */
const longestQuery = 200

const placeText = ({ id, pinned, since }: Place): string => `${pinned === true ? "p" : ""}${since}.${id}`

const placeOf = (text: string): Place | undefined => {
  const [, pin, since = "", id = ""] = /^(p?)(\d{1,15})\.(.*)$/s.exec(text) ?? []
  return Sessions.isId(id) ? { pinned: pin === "p", since: Number(since), id } : undefined
}

/** Orders pinned sessions first, then the newest, then by id if equally new. */
const byPlace = (left: Place, right: Place): number =>
  Number(right.pinned === true) - Number(left.pinned === true)
  || right.since - left.since
  || (left.id < right.id ? -1 : 1)

const isBehind = (place: Place, after: Place | undefined): boolean => after === undefined || byPlace(after, place) < 0

const statuses: ReadonlyArray<string> = Session.Status.literals

const isStatus = (text: string): text is Session.Status => statuses.includes(text)

/** Reads the URL parameters of a list. An empty parameter counts as absent. */
export const searchOf = (parameters: URLSearchParams): Result.Result<Search, Refusals.Refusal> => {
  const refuse = (field: string, rule: string) =>
    Result.fail(Refusals.badRequest("invalid_parameter", `${field} ${rule}.`))
  const fields = ["query", "status", "next"] as const
  const repeated = fields.find((field) => parameters.getAll(field).length > 1)
  if (repeated !== undefined) return refuse(repeated, "may be given only once")
  const [query = "", status = "", next = ""] = fields.map((field) => parameters.get(field) ?? "")
  if (query.length > longestQuery) return refuse("query", `may have at most ${longestQuery} characters`)
  if (status !== "" && !isStatus(status)) return refuse("status", `must be one of ${statuses.join(", ")}`)
  const after = placeOf(next)
  if (next !== "" && after === undefined) return refuse("next", "must be the next of an earlier page")
  return Result.succeed({
    query,
    ...(status === "" ? {} : { status }),
    ...(after === undefined ? {} : { after })
  })
}

/** Returns a text for comparison: normalized, in lower case, on one line. */
const comparable = (text: string): string => text.normalize("NFKC").toLowerCase().replaceAll(/\s+/g, " ").trim()

/** Lists a principal's sessions with an agent: pinned sessions first, then the newest. */
export const list = (
  principal: string,
  agent: string,
  { after, query = "", status }: Search = {}
): Effect.Effect<Page, Journal.StoreError, Session.Store> =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const prefix = Sessions.prefixOf(principal)
    const text = comparable(query)
    const isFound = ({ lastLine = "", title = "" }: Journal.Listed) =>
      [title, lastLine].some((line) => comparable(line).includes(text))
    const listed = yield* store.list({ prefix, ...(status === undefined ? {} : { status }) }).pipe(
      Stream.filter((each) => (each.agent ?? agent) === agent && (text === "" || isFound(each))),
      Stream.map((each) => ({ ...each, key: each.id, id: Sessions.idOf(each.id) })),
      Stream.filter((each) => Sessions.isId(each.id) && isBehind(each, after)),
      Stream.runCollect
    )
    const sessions: Array<Listed> = []
    let [index, read] = [0, 0]
    const found = listed.toSorted(byPlace)
    for (const each of found) {
      if (sessions.length === pageSize || read === mostRead) break
      index++
      if (each.agent === undefined) read++
      const of = each.agent ?? (yield* Sessions.agentOf(each.key))
      if (of === undefined ? status !== undefined : of !== agent) continue
      const { forkedFrom, id, lastLine = "", next, pinned, since: updatedAt, title = "" } = each
      sessions.push({
        id,
        agent,
        status: of === undefined ? "unreadable" : each.status,
        title,
        lastLine,
        next,
        updatedAt,
        ...(pinned === undefined ? {} : { pinned }),
        ...(forkedFrom === undefined ? {} : { forkedFrom: { ...forkedFrom, id: Sessions.idOf(forkedFrom.id) } })
      })
    }
    const last = index < found.length ? found[index - 1] : undefined
    return { sessions, ...(last === undefined ? {} : { next: placeText(last) }) }
  })
