/**
 * What records say of calls: a `CallStarted` has its call only where the reply of its turn was not received yet.
 */
import type { Journal, Message } from "heddle"

type Records = ReadonlyArray<Journal.Record>

/** A start of a call, with the call. */
export interface Start {
  readonly toolCall: Message.ToolCall
  readonly attempt: number
  readonly idempotencyKey: string
}

/** The starts of calls, in order. */
export const startedIn = (records: Records): ReadonlyArray<Start> => {
  const calls = new Map<string, Message.ToolCall>()
  return records.flatMap((record): ReadonlyArray<Start> => {
    if (record._tag === "Opened") {
      for (const message of record.session.thread.messages) {
        for (const call of message.toolCalls ?? []) calls.set(call.id, call)
      }
    }
    if (record._tag === "ReplyReceived") { for (const call of record.response.toolCalls) calls.set(call.id, call) }
    if (record._tag !== "CallStarted") return []
    const { attempt, idempotencyKey, toolCallId } = record
    const toolCall = record.toolCall ?? calls.get(toolCallId)
    return toolCall === undefined ? [] : [{ toolCall, attempt, idempotencyKey }]
  })
}

/** The ids of the calls that have an answer, or wait. */
export const endedIn = (records: Records): ReadonlySet<string> =>
  new Set(records.flatMap((record) =>
    record._tag === "CallEnded"
      ? [record.message.toolCallId ?? ""]
      : record._tag === "CallWaits"
      ? [record.toolCallId]
      : []
  ))

/** The last starts whose call has no answer and does not wait: it is not known whether they had their effect. */
export const unknownIn = (records: Records): ReadonlyArray<Start> => {
  const open = new Map<string, Start>()
  records.forEach((record, index) => {
    if (record._tag === "CallEnded") open.delete(record.message.toolCallId ?? "")
    if (record._tag === "CallWaits") open.delete(record.toolCallId)
    const start = record._tag === "CallStarted" ? startedIn(records.slice(0, index + 1)).at(-1) : undefined
    if (start !== undefined) open.set(start.toolCall.id, start)
  })
  return Array.from(open.values())
}
