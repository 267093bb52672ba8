/**
 * Ids of nested runs. A nested run is started by a call's handler, or by a program, and recorded in its own journal.
 * Starting the same run again gives the same id.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import type * as Thread from "../../Thread.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as Json from "../json.ts"
import type * as Journals from "./journal.ts"
import * as Records from "./records.ts"
import * as States from "./state.ts"

/** Returns the id prefix for runs started by one call or one program. */
export const prefixOf = (id: string, toolCallId: string | undefined): string =>
  `${id}/${toolCallId === undefined ? "" : encodeURIComponent(Json.escaped(toolCallId))}@`

/**
 * Assigns ids to runs started by one call or one program: by their input, and by the number of runs with the same input
 * still active or ended. A failed run frees its id for the next run with the same input.
 */
export class Ids {
  private readonly prefix: string
  private readonly taken = new Map<string, Set<number>>()

  constructor(id: string, toolCallId: string | undefined) {
    this.prefix = prefixOf(id, toolCallId)
  }

  /** Returns a run id for this input, and a function to free the id. */
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

/**
 * Returns `true` if an id belongs to a nested run itself, not to a run inside that run, judged by the part after its
 * prefix.
 */
export const isDirect = (rest: string): boolean => /^[0-9a-f]{16}(\.\d+)?$/.test(rest)

/** Returns `true` if an id belongs to a nested run of the session, at any depth. */
export const isWithin = (id: string, other: string): boolean =>
  other.startsWith(`${id}/`) && /^(\/[^/@]*@[0-9a-f]{16}(\.\d+)?)+$/.test(other.slice(id.length))

/** Returns a function testing whether a nested run of the session is within one of the calls. */
export const isOfCalls = (id: string, calls: Iterable<string>): (other: string) => boolean => {
  const own = new Set(Array.from(calls, (call) => prefixOf(id, call)))
  return (other) => own.has(other.slice(0, other.indexOf("@", id.length) + 1))
}

/** Returns `true` if an id may belong to a nested run. */
export const mayBeNested = (id: string): boolean => /\/[^/@]*@[0-9a-f]{16}(\.\d+)?$/.test(id)

// Messages for nested runs.

type Fate = Records.MessageSettled["fate"]

/** Returns a message for the journal of the run it is passed on to: the target may be a run inside that run. */
export const passedOn = ({ to, ...message }: Records.MessageSubmitted): Records.MessageSubmitted => {
  const [, ...path] = CallPaths.parse(to)?.path ?? []
  return { ...message, otherwise: "refuse", ...(path.length === 0 ? {} : { to: CallPaths.format({ path }) }) }
}

/** Returns a message's outcome in a state's journal, once known. */
export const fateIn = ({ receipts }: States.State, id: string): Fate | undefined => {
  const { became, reason, requestId, stepIndex } = receipts.get(id) ?? {}
  if (became !== "delivered" && became !== "refused" && became !== "withdrawn") return undefined
  return {
    became,
    ...(requestId === undefined ? {} : { requestId }),
    ...(stepIndex === undefined ? {} : { stepIndex }),
    ...(reason === undefined ? {} : { reason })
  }
}

const endOf = (end: Records.MessageSettled | Records.MessageWithdrawn): Fate =>
  end._tag === "MessageSettled" ? end.fate : { became: "withdrawn" }

/**
 * Returns a passed-on message's outcome from the nested run's journal, if any. `end` gives a message without an outcome
 * one in that journal: its record's, or another that was faster. `isOwn` is `true` if the outcome came from `end`.
 */
export const settledIn = (
  store: Journals.Service,
  { message, session }: NonNullable<ReturnType<typeof States.passedOn>>,
  end?: Records.MessageSettled | Records.MessageWithdrawn
): Effect.Effect<{ readonly fate: Fate; readonly isOwn: boolean } | undefined, Journals.StoreError> =>
  Effect.gen(function*() {
    const { id } = message
    let isOwn = false
    while (true) {
      const known = States.initial(session)
      let version = 0
      yield* Stream.runForEach(store.read(session), (entry) =>
        Effect.sync(() => {
          States.apply(known, entry.record)
          version = entry.version
        }))
      const fate = fateIn(known, id)
      if (fate !== undefined) return { fate, isOwn }
      const inner = States.passedOn(known, id)
      const within = inner && (yield* settledIn(store, inner, end))
      // The innermost journal decides, also where the owner records its outcome in this one.
      isOwn ||= within?.isOwn === true
      const settled = within === undefined ? end : { _tag: "MessageSettled", id, fate: within.fate } as const
      if (settled === undefined) return undefined
      // A removed run's journal has no message to deliver.
      if (version === 0) return { fate: endOf(settled), isOwn: true }
      // Another command has the id.
      if (known.receipts.has(id) && !States.isUnsettled(known, id)) return { fate: endOf(settled), isOwn: false }
      const received = known.receipts.has(id) ? [] : [passedOn(message)]
      const state = States.after(known, received)
      const records: ReadonlyArray<Records.Record> = [...received, ...States.isUnsettled(state, id) ? [settled] : []]
      const options = { summary: States.summaryOf(States.after(known, records)) }
      const isWritten = yield* store.append(session, version, records as unknown as Records.Records, options).pipe(
        Effect.as(true),
        Effect.catchTag("SessionConflict", () => Effect.succeed(false))
      )
      if (within === undefined) isOwn = isWritten && records.includes(settled)
    }
  })

// Result of a finished run.

/** Returns a result without its thread and steps, which are in earlier records. */
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
