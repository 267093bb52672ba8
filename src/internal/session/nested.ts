/**
 * Ids of nested runs. A nested run is started by the handler of a call, or by a program, and is recorded in a journal
 * of its own. Starting the same run again gives the same id.
 */
import type * as Event from "../../Event.ts"
import type * as Thread from "../../Thread.ts"
import * as Json from "../json.ts"
import * as Records from "./records.ts"
import type * as States from "./state.ts"

/** Returns the prefix of the ids of the runs that one call or one program starts. */
export const prefixOf = (id: string, toolCallId: string | undefined): string =>
  `${id}/${toolCallId === undefined ? "" : encodeURIComponent(Json.escaped(toolCallId))}@`

/**
 * Assigns the ids of the runs that one call or one program starts: by their input, and by the number of runs with the
 * same input that are under way or have ended. A failed run frees its id for the next run with the same input.
 */
export class Ids {
  private readonly prefix: string
  private readonly taken = new Map<string, Set<number>>()

  constructor(id: string, toolCallId: string | undefined) {
    this.prefix = prefixOf(id, toolCallId)
  }

  /** Returns the id of a run with this input, and a function that frees it. */
  take({ messages }: Thread.Thread): { readonly id: string; readonly giveBack: () => void } {
    const input = Records.hashOf(messages)
    const taken = this.taken.get(input) ?? new Set()
    this.taken.set(input, taken)
    let number = 1
    while (taken.has(number)) number++
    taken.add(number)
    const id = `${this.prefix}${input}${number === 1 ? "" : `.${number}`}`
    return { id, giveBack: () => void taken.delete(number) }
  }
}

/** Tells whether an id is that of a nested run, and not of a run within that one, by what is behind its prefix. */
export const isDirect = (rest: string): boolean => /^[0-9a-f]{16}(\.\d+)?$/.test(rest)

/** Tells whether an id belongs to a nested run of the session, at any depth. */
export const isWithin = (id: string, other: string): boolean =>
  other.startsWith(`${id}/`) && /^(\/[^/@]*@[0-9a-f]{16}(\.\d+)?)+$/.test(other.slice(id.length))

/** Returns a function that tells whether a nested run of the session is within one of the calls. */
export const isOfCalls = (id: string, calls: Iterable<string>): (other: string) => boolean => {
  const own = new Set(Array.from(calls, (call) => prefixOf(id, call)))
  return (other) => own.has(other.slice(0, other.indexOf("@", id.length) + 1))
}

/** Tells whether an id may belong to a nested run. */
export const mayBeNested = (id: string): boolean => /\/[^/@]*@[0-9a-f]{16}(\.\d+)?$/.test(id)

// The result of a finished run.

/** Returns a result without its thread and its steps, which the earlier records contain. */
export const received = (result: Event.ChatResult): Event.WireResult => {
  const { finalResponse, steps, thread: _, ...end } = result
  return finalResponse === (steps.at(-1)?.response ?? null) ? end : { ...end, finalResponse }
}

/** Returns the last event of a finished run. */
export const completed = (
  result: Event.WireResult,
  steps: ReadonlyArray<States.WholeStep>,
  thread: Thread.Thread
): Event.Of<"ChatCompleted"> => ({
  _tag: "ChatCompleted",
  result: {
    finalResponse: steps.at(-1)?.result.response ?? null,
    ...result,
    thread,
    steps: steps.map((step) => step.result)
  }
})
