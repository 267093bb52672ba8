/** Judges one attempt at a run by each law, from what the attempt left behind. */
import * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Thread from "../../Thread.ts"
import * as Check from "../Check.ts"
import type * as Recorder from "../Recorder.ts"
import type * as Simulation from "../Simulation.ts"
import * as Histories from "./history.ts"
import type { Start, Watch } from "./watching.ts"

/** Counts at the moment the run was stopped. */
export interface Stopped {
  readonly how: "hard" | "soft"
  readonly starts: number
  readonly requests: number
  readonly millis: number
}

/** A finished attempt. Its own recorder saw `log` and `events`. */
export interface Attempted {
  readonly report: Simulation.Report<unknown, unknown>
  readonly watch: Watch
  readonly handlers: ReadonlyArray<Recorder.Entry>
  readonly log: ReadonlyArray<Recorder.Entry>
  readonly events: ReadonlyArray<Event.Event>
  readonly stopped: Stopped | undefined
}

/** Facts the caller knows about the run. */
export interface Known extends Pick<Check.Options, "policy"> {
  readonly bound: number
  readonly graceMillis: number
  /** `true` if fibers yield more often than they would by themselves. */
  readonly isFine: boolean
  /** Handlers containing runs in the run without a stop. */
  readonly parents: ReadonlySet<string>
  /** `true` if the run without a stop ended in `ChatCompleted`. */
  readonly isChat: boolean
  /** `true` if the run without a stop succeeded. */
  readonly isSound: boolean
}

type Law = Check.Violation["law"] | "stop" | "repeatable"

interface Finding {
  readonly law: Law
  readonly message: string
}

type Findings = ReadonlyArray<Finding>

const when = (isBroken: boolean, law: Law, message: string): Findings => isBroken ? [{ law, message }] : []

/** Checks handler starts: once per attempt at a call, and only after the previous attempt started. */
const starts = (all: ReadonlyArray<Start>): Findings => {
  const seen = new Set<string>()
  return all.flatMap(({ call, key, name }): Findings => {
    const isRepeated = seen.has(key)
    const earlier = key.slice(0, key.lastIndexOf(" ")) + ` ${call.attempt - 1}`
    seen.add(key)
    return [
      ...when(isRepeated, "starts", `${name} was started twice`),
      ...when(call.attempt > 1 && !seen.has(earlier), "starts", `${name} was started before its previous attempt`)
    ]
  })
}

const isMark = (entry: Recorder.Entry): entry is Exclude<Recorder.Entry, { readonly _tag: "Emitted" }> =>
  entry._tag !== "Emitted"

/** Returns the starts of handlers a run abandoned and named. */
const lostOf = ({ abandoned, starts }: Watch): ReadonlyArray<Start> =>
  starts.filter(({ call }) => abandoned.some(({ id, name }) => id === call.id && name === call.name))

/** Checks lifetime and barriers run by run: a nested run's handlers do not exclude the handler around them. */
const handlers = ({ handlers, watch }: Attempted): Findings => {
  const { starts } = watch
  const lost = lostOf(watch)
  return Array.from(new Set(starts.map(({ group }) => group))).flatMap((group) => {
    const members = starts.filter((start) => start.group === group)
    const names = new Set(members.map(({ name }) => name))
    const exclusive = new Set(members.filter((start) => start.isExclusive).map(({ name }) => name))
    return Check.check.handlers(handlers.filter((entry) => isMark(entry) && names.has(entry.name)), {
      isExclusive: (name) => exclusive.has(name),
      abandoned: members.filter((start) => lost.includes(start)).map(({ name }) => name)
    })
  })
}

/** Returns the handlers in which runs were seen. */
export const parentsOf = ({ requests, starts }: Watch): ReadonlySet<string> =>
  new Set([...starts, ...requests].map(({ inside }) => inside))

/**
 * Checks the bound, shared by the whole tree of runs. A handler containing a run takes no other handler's place, even
 * if stopped before its run became visible.
 */
const bound = ({ handlers, watch }: Attempted, { bound, parents: known }: Known): Findings => {
  const parents = new Set([...parentsOf(watch), ...known])
  const lost = lostOf(watch).map(({ name }) => name)
  const leaves = handlers.filter((entry) => isMark(entry) && !parents.has(entry.name))
  return Check.check.handlers(leaves, { bound, abandoned: lost }).filter(({ law }) => law === "concurrency")
}

/** Finds anything alive after the run. The resources of abandoned handlers are unknown. */
const lifetime = ({ log, report, watch }: Attempted): Findings => {
  if (report.exit === undefined) return [{ law: "lifetime", message: "the run does not end" }]
  const open = watch.requests.length - watch.closed
  const isExcused = watch.abandoned.length > 0
  return [
    ...when(open !== 0, "lifetime", `${open} model requests were not closed`),
    ...when(!isExcused && report.fibers > 0, "lifetime", `${report.fibers} fibers are alive after the run`),
    ...when(!isExcused && report.sleeping > 0, "lifetime", `${report.sleeping} timers are set after the run`),
    ...Check.check.handlers(log).filter(({ law }) => law === "lifetime")
  ]
}

/**
 * Checks that nothing starts after the stop. If fibers yield between any two operations, work about to start when the
 * run was stopped may still start at that instant.
 */
const starting = ({ starts, requests }: Watch, stopped: Stopped, isFine: boolean): Findings => {
  const isLate = ({ at }: { readonly at: number }): boolean => !isFine || at > stopped.millis
  const asked = requests.slice(stopped.requests).filter(isLate).length
  return [
    ...starts.slice(stopped.starts).filter(isLate).map(({ name }): Finding => ({
      law: "stop",
      message: `${name} was started after the run was stopped`
    })),
    ...when(asked > 0, "stop", `${asked} model requests were made after the run was stopped`)
  ]
}

/** Checks that a stopped run ends within its grace period: with its result, or interrupted after a hard stop. */
const stop = ({ report: { exit, millis }, stopped, watch }: Attempted, known: Known): Findings => {
  if (stopped === undefined) return []
  const { graceMillis, isFine, isSound } = known
  const took = millis - stopped.millis
  const cause = isSound && exit !== undefined && Exit.isFailure(exit) ? exit.cause : Cause.empty
  const isWrong = cause.reasons.length > 0 && !(stopped.how === "hard" && Cause.hasInterruptsOnly(cause))
  return [
    ...starting(watch, stopped, isFine),
    ...when(took > graceMillis, "stop", `the run took ${took} ms to stop, longer than its grace of ${graceMillis} ms`),
    ...when(isWrong, "stop", `the run was stopped and ends with ${Cause.pretty(cause)}`)
  ]
}

const isStep = (value: unknown): value is Event.StepResult =>
  typeof value === "object" && value !== null && "thread" in value && "toolResults" in value

const isResult = (value: unknown): value is Event.ChatResult =>
  typeof value === "object" && value !== null && "thread" in value && "outcome" in value && "steps" in value

const toStepCompleted = (step: Event.StepResult): Event.Event => ({
  _tag: "StepCompleted",
  response: step.response,
  thread: step.thread,
  messages: [],
  mode: step.mode ?? "auto",
  manualToolCalls: step.manualToolCalls ?? [],
  ...(step.halt === undefined ? {} : { halt: step.halt }),
  ...(step.suspensions === undefined ? {} : { suspensions: step.suspensions })
})

/** Returns the threads of an awaited result as stream events. */
const shown = (value: unknown): ReadonlyArray<Event.Event> => {
  if (isStep(value)) return [toStepCompleted(value)]
  return isResult(value) ? [...value.steps.map(toStepCompleted), { _tag: "ChatCompleted", result: value }] : []
}

/**
 * Returns the threads runs sent when they continued, each with the length of its caller's part. A request that
 * continues no earlier request is a run's first, and its messages are the caller's.
 */
const continued = (requests: Watch["requests"]) => {
  const seen: Array<{ readonly messages: ReadonlyArray<string>; readonly from: number }> = []
  return requests.flatMap(({ request }) => {
    const messages = request.messages.map((message) => JSON.stringify(Json.toJson(message)))
    const earlier = seen.findLast((other) => other.messages.every((message, index) => messages[index] === message))
    const from = earlier?.from ?? messages.length
    seen.push({ messages, from })
    return earlier === undefined ? [] : [{ thread: Thread.fromMessages(request.messages), from }]
  })
}

/** Checks every thread handed out or sent, in the result and in the requests. */
const histories = ({ report, watch }: Attempted): Findings => {
  const value = report.exit !== undefined && Exit.isSuccess(report.exit) ? report.exit.value : undefined
  return [
    ...Histories.histories(shown(value)),
    ...continued(watch.requests).flatMap(({ from, thread }) => Check.check.thread(thread, { from }))
  ]
}

/** Checks the run's events. After a failure, or if the reader left, they may be incomplete. */
const events = ({ events, report, stopped }: Attempted, { isChat, policy }: Known): Findings => {
  const hasEnded = report.exit !== undefined && Exit.isSuccess(report.exit)
  const isCut = report.exit !== undefined && (stopped?.how === "hard" || !hasEnded)
  const found = Check.check(events, { isCut, ...(policy === undefined ? {} : { policy }) })
  return isChat ? found : found.filter(({ law }) => law !== "frame")
}

type Naming = Pick<Event.ChatResult, "abandoned">

/** Returns the run's result if it can name abandoned handlers: a chat's or a batch's result. */
const namingOf = ({ events, report: { exit } }: Attempted): Naming | undefined => {
  const last = events.at(-1)
  if (last?._tag === "ChatCompleted") return last.result
  const value = exit !== undefined && Exit.isSuccess(exit) ? exit.value : undefined
  const isBatch = typeof value === "object" && value !== null && "messages" in value
  return isResult(value) || isBatch ? value as Naming : undefined
}

/** Checks that the result names every abandoned handler, including those in nested runs. */
const unnamed = (attempted: Attempted): Findings => {
  const naming = namingOf(attempted)
  const { abandoned, starts } = attempted.watch
  return naming === undefined ? [] : abandoned.flatMap(({ id, name }) => {
    const isHandler = starts.some(({ call }) => call.id === id && call.name === name)
    const isNamed = naming.abandoned?.some((entry) => entry.id === id && entry.name === name) === true
    const message = `${name} (call ${id}) was abandoned, and the result does not name it`
    return when(isHandler && !isNamed, "lifetime", message)
  })
}

/** Returns all findings about the attempt. */
export const of = (attempted: Attempted, known: Known): Findings => [
  ...starts(attempted.watch.starts),
  ...handlers(attempted),
  ...bound(attempted, known),
  ...lifetime(attempted),
  ...unnamed(attempted),
  ...stop(attempted, known),
  ...events(attempted, known),
  ...Check.check.calls(attempted.log),
  ...histories(attempted)
]
