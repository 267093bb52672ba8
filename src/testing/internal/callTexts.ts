/**
 * Writes an event's calls as text: a call's arguments must be the same in every event, and must not change after they
 * were emitted.
 */
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import type * as Message from "../../Message.ts"
import type { Entry, Violation } from "./violation.ts"

type Call = Pick<Message.ToolCall, "id" | "name" | "arguments">

/** Returns the calls of a thread's last turn: earlier calls were emitted with their own turns. */
const lastCalls = (messages: ReadonlyArray<Message.Message>): ReadonlyArray<Call> =>
  messages.findLast(({ role }) => role === "assistant")?.toolCalls ?? []

const callsOf = (event: Event.Event): ReadonlyArray<Call> => {
  if (event._tag === "StepCompleted") return lastCalls(event.thread.messages)
  if (event._tag !== "ToolCallCompleted" && event._tag !== "ToolExecutionStarted") return []
  const { arguments: args, id, name } = event
  return [{ id, name, arguments: args ?? {} }]
}

const textOf = ({ arguments: args, id, name }: Call): string => JSON.stringify(Json.toJson([id, name, args]))

/** Writes an event's calls, one per line. */
export const of = (event: Event.Event): string | undefined => {
  const calls = callsOf(event)
  return calls.length === 0 ? undefined : calls.map(textOf).join("\n")
}

const isSendable = (value: unknown): boolean => {
  try {
    JSON.stringify(value)
    return true
  } catch {
    return false
  }
}

/** Compares emitted calls, in order, with their current text. */
export const violations = (log: ReadonlyArray<Entry>): ReadonlyArray<Violation> => {
  const started = new Map<string, string>()
  return log.flatMap((entry, index): ReadonlyArray<Violation> => {
    if (entry._tag !== "Emitted" || entry.calls === undefined) return []
    const { calls, event } = entry
    const now = of(event)
    const found: Array<Violation> = []
    const told = (message: string): number => found.push({ law: "calls", message, index })
    if (now !== calls) told(`${event._tag} told of ${calls}, which has become ${now ?? "no call"}`)
    for (const call of callsOf(event)) {
      if (!isSendable(call.arguments)) told(`the arguments of call "${call.id}" cannot be written as JSON`)
    }
    if (event._tag === "ToolExecutionStarted") started.set(event.id, calls)
    if (event._tag !== "StepCompleted") return found
    const lines = calls.split("\n")
    for (const { id } of callsOf(event)) {
      const line = started.get(id)
      if (line !== undefined && !lines.includes(line)) told(`${line} was run, and the step tells of ${calls}`)
    }
    started.clear()
    return found
  })
}
