/** The journals of a session and of its sub-agents, and what they say about a message: for `steers.ts`. */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Journal, Message, Session } from "heddle"

/** Returns the ids of the journals of a session: its own one first, and those of its sub-agents. */
export const journalsOf = (id: string) =>
  Effect.map(Stream.runCollect(Session.list({ prefix: `${id}/` })), (all) => [id, ...Array.from(all, ({ id }) => id)])

/** Tells whether a journal is that of the run inside the call, or of the session where there is no path. */
export const isAt = (id: string, to: string | undefined, journal: string): boolean => {
  const calls = to === undefined ? [] : to.split("/")
  const path = new RegExp(`^${calls.map((call) => `/${call}@[^/]+`).join("")}$`)
  return journal.startsWith(id) && path.test(journal.slice(id.length))
}

/** Reads a journal. */
export const read = (id: string) =>
  Effect.gen(function*() {
    const store = yield* Session.Store
    const records = Array.from(yield* Stream.runCollect(store.read(id)), ({ record }) => record)
    const kept = yield* Session.open(id)
    const texts = kept.session.thread.messages.filter(({ role }) => role === "user").map(Message.text)
    return { id, kept, records, texts }
  })

type Read = Effect.Success<ReturnType<typeof read>>

const isDelivery = (record: Journal.Record, message: string): boolean =>
  record._tag === "StepPrepared" && record.delivered?.includes(message) === true

/** Returns the journals that a journal passes a message on to. */
const forwardedFrom = ({ records }: Read, message: string): ReadonlyArray<string> =>
  records.flatMap((record) => record._tag === "MessageForwarded" && record.id === message ? [record.session] : [])

/** Returns the outcome of a message in a journal as a text. */
const fateIn = ({ kept }: Read, message: string): string | undefined => {
  const receipt = Session.receipt(kept, message)
  if (receipt === undefined) return undefined
  const { became, reason, requestId, stepIndex } = receipt
  return JSON.stringify({ became, reason, requestId, stepIndex })
}

/** Returns the records about a message, for the report of a violation. */
const excerptOf = (journals: ReadonlyArray<Read>, message: string): string =>
  JSON.stringify(journals.map(({ id, records }) => [
    id,
    ...records.flatMap((record, place) => {
      const isOfIt = "id" in record && record.id === message || isDelivery(record, message)
      const fate = "fate" in record ? ` ${JSON.stringify(record.fate)}` : ""
      return isOfIt ? [`${place} ${record._tag}${fate}`] : []
    })
  ]))

/**
 * Describes what is wrong with a message, by the journals of its session: the first one is that of the session. `to` is the path
 * of the call whose run gets the message.
 */
export const problemsWith = (
  journals: ReadonlyArray<Read>,
  message: string,
  to: string | undefined,
  wasWithdrawn: boolean
): ReadonlyArray<string> => {
  const [outermost] = journals
  if (outermost === undefined) return []
  const { id, kept } = outermost
  const { became = "unknown", requestId, stepIndex } = Session.receipt(kept, message) ?? {}
  const fate = fateIn(outermost, message)
  const fates = ["delivered", "withdrawn", "refused", ...to === undefined ? ["completed"] : []]
  const problems: Array<string> = []
  const check = (isRight: boolean, problem: string): void => void (isRight || problems.push(problem))
  check(fates.includes(became), "it has no fate")
  check(wasWithdrawn === (became === "withdrawn"), `a withdrawal returned ${wasWithdrawn}`)
  for (const journal of journals) {
    const isHere = isAt(id, to, journal.id)
    const times = journal.texts.filter((text) => text === message).length
    const expected = isHere && (became === "delivered" || became === "completed") ? 1 : 0
    check(times === expected, `it is ${times} times in the thread of ${journal.id}`)
    const deliveries = journal.records.filter((record) => isDelivery(record, message))
    const isTold = deliveries.every((record) =>
      record._tag === "StepPrepared" && record.requestId === requestId && record.stepIndex === stepIndex
    )
    const isOnce = deliveries.length === (isHere && became === "delivered" ? 1 : 0)
    check(isOnce && isTold, `${deliveries.length} requests of ${journal.id} have it`)
    // A journal inside has the message where the one around it passes it on, and has the same outcome.
    const named = journals.filter((around) => forwardedFrom(around, message).includes(journal.id)).length
    const own = fateIn(journal, message)
    check(
      named === (journal === outermost || own === undefined ? 0 : 1),
      `${named} journals pass it on to ${journal.id}`
    )
    check(journal === outermost || own === undefined || own === fate, `it is ${own} in ${journal.id}`)
    const forwarded = forwardedFrom(journal, message)
    const settled = journal.records.filter((record) => record._tag === "MessageSettled" && record.id === message).length
    check(
      forwarded.every((inner) => journals.some(({ id }) => id === inner)),
      `no journal ${forwarded.join()} is there`
    )
    check(forwarded.length === 0 || settled === 1, `${journal.id} passes it on, and settles it ${settled} times`)
  }
  if (problems.length === 0) return []
  return [
    `${id}: ${message} to ${to ?? "the session"}, ${became}: ${problems.join("; ")}: ${excerptOf(journals, message)}`
  ]
}
