/**
 * Lists of sessions: searched, filtered and read page by page from what a store keeps beside the journals, so that no
 * journal is folded, and one that cannot be read is listed.
 *
 * @since 0.1.0
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
  /** `"unreadable"` where this release cannot read it. */
  readonly status: Journal.Listed["status"] | "unreadable"
  readonly title: string
  readonly lastLine: string
  readonly next: Journal.Next
  readonly updatedAt: number
  /** `true` where it is pinned. Left out of any other session. */
  readonly pinned?: boolean
  /** The session that it branched from. Left out of any other session. */
  readonly forkedFrom?: NonNullable<Journal.Listed["forkedFrom"]>
}

/** A place in the order of the sessions: that of a session, whether it still exists or not. */
interface Place {
  readonly pinned?: boolean | undefined
  readonly since: number
  /** The id without its principal. */
  readonly id: string
}

/** The sessions that a list has. */
export interface Search {
  /** A text of the title or of the last line, in any case. Any session where it is empty. */
  readonly query?: string
  readonly status?: Session.Status
  /** The place behind which the page begins. */
  readonly after?: Place
}

/** A page of a list. */
export interface Page {
  readonly sessions: ReadonlyArray<Listed>
  /** The text of the place behind which the next page begins. Left out of the last page. */
  readonly next?: string
}

const pageSize = 20

/** Number of sessions whose first record a page reads for the name of the agent: further ones begin the next page. */
const mostRead = 200

/** Longest text that is searched for, in characters. */
const longestQuery = 200

const placeText = ({ id, pinned, since }: Place): string => `${pinned === true ? "p" : ""}${since}.${id}`

const placeOf = (text: string): Place | undefined => {
  const [, pin, since = "", id = ""] = /^(p?)(\d{1,15})\.(.*)$/s.exec(text) ?? []
  return Sessions.isId(id) ? { pinned: pin === "p", since: Number(since), id } : undefined
}

/** Pinned ones first, then the newest ones, and by their ids where two are equally new. */
const byPlace = (left: Place, right: Place): number =>
  Number(right.pinned === true) - Number(left.pinned === true)
  || right.since - left.since
  || (left.id < right.id ? -1 : 1)

const isBehind = (place: Place, after: Place | undefined): boolean => after === undefined || byPlace(after, place) < 0

const statuses: ReadonlyArray<string> = Session.Status.literals

const isStatus = (text: string): text is Session.Status => statuses.includes(text)

/** Reads what the address of a list asks for. An empty parameter counts as left out. */
export const searchOf = (parameters: URLSearchParams): Result.Result<Search, Refusals.Refusal> => {
  const refuse = (field: string, rule: string) =>
    Result.fail(Refusals.badRequest("invalid_parameter", `${field} ${rule}.`))
  const fields = ["query", "status", "next"] as const
  const repeated = fields.find((field) => parameters.getAll(field).length > 1)
  if (repeated !== undefined) return refuse(repeated, "may be given once")
  const [query = "", status = "", next = ""] = fields.map((field) => parameters.get(field) ?? "")
  if (query.length > longestQuery) return refuse("query", `has at most ${longestQuery} characters`)
  if (status !== "" && !isStatus(status)) return refuse("status", `is one of ${statuses.join(", ")}`)
  const after = placeOf(next)
  if (next !== "" && after === undefined) return refuse("next", "is the one of an earlier page")
  return Result.succeed({
    query,
    ...(status === "" ? {} : { status }),
    ...(after === undefined ? {} : { after })
  })
}

/** Returns a text as it is compared: in one line, without the case of its letters. */
const comparable = (text: string): string => text.normalize("NFKC").toLowerCase().replaceAll(/\s+/g, " ").trim()

/** Lists the sessions of a principal with an agent: pinned ones first, then the newest ones. */
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
