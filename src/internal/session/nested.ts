/**
 * A run that is a part of another one, and is kept in a journal of its own: the id of that journal, which is the same
 * whenever the same run is started again, and what becomes of the run by what the journal has of it. A run that was cut
 * goes on, and one that has ended has its recorded result.
 */
import type * as Event from "../../Event.ts"
import type * as Thread from "../../Thread.ts"
import * as Json from "../json.ts"
import type * as Records from "./records.ts"

// The id of a journal.

/** Two multiplications a character, over two halves: 64 bits. It tells the runs of one call apart, and guards nothing. */
const hash = (text: string): string => {
  let high = 0xdeadbeef
  let low = 0x41c6ce57
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    high = Math.imul(high ^ unit, 2654435761)
    low = Math.imul(low ^ unit, 1597334677)
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909)
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909)
  return [high, low].map((half) => (half >>> 0).toString(16).padStart(8, "0")).join("")
}

/** A message that was read again may have its members in another order. */
const canonical = (json: unknown): string =>
  JSON.stringify(json, (_, member: unknown) =>
    Json.isObject(member) && !Array.isArray(member)
      ? Object.fromEntries(Object.entries(member).sort(([left], [right]) => left < right ? -1 : 1))
      : member)

/** JSON escapes a lone surrogate, which an id of a model may have and a URI may not. */
const escaped = (id: string): string => JSON.stringify(id).slice(1, -1)

/**
 * The ids of the runs that one call starts, or one program: by what they are given, and by how many of the same are under
 * way or have ended. A run that failed leaves its id to the next one that is given the same.
 */
export class Ids {
  private readonly prefix: string
  private readonly taken = new Map<string, Set<number>>()

  constructor(id: string, toolCallId: string | undefined) {
    this.prefix = `${id}/${toolCallId === undefined ? "" : encodeURIComponent(escaped(toolCallId))}`
  }

  /** The id of a run that is given this thread, and what returns it. */
  take({ messages }: Thread.Thread): { readonly id: string; readonly giveBack: () => void } {
    const input = hash(canonical(Json.toJson(messages)))
    const taken = this.taken.get(input) ?? new Set()
    this.taken.set(input, taken)
    let number = 1
    while (taken.has(number)) number++
    taken.add(number)
    const id = `${this.prefix}@${input}${number === 1 ? "" : `.${number}`}`
    return { id, giveBack: () => void taken.delete(number) }
  }
}

/** Whether an id is that of a run inside the session, at any depth. */
export const isWithin = (id: string, other: string): boolean =>
  other.startsWith(`${id}/`) && /^(\/[^/@]*@[0-9a-f]{16}(\.\d+)?)+$/.test(other.slice(id.length))

// The result of a run that has ended.

/** A result without its thread and its steps, which the records before it contain. */
export const received = (result: Event.ChatResult): Event.ReceivedResult => {
  const { finalResponse, steps, thread: _, ...end } = result
  return finalResponse === (steps.at(-1)?.response ?? null) ? end : { ...end, finalResponse }
}

/** The last event of a run that has ended, as it was. */
export const completed = ({ result, steps }: Records.Ended, thread: Thread.Thread): Event.Of<"ChatCompleted"> => ({
  _tag: "ChatCompleted",
  result: {
    finalResponse: steps.at(-1)?.result.response ?? null,
    ...result,
    thread,
    steps: steps.map((step) => step.result)
  }
})
