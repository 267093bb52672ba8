/** Judges one attempt at a run: each law on what it left behind. */
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

/** The numbers of what had happened when the run was stopped. */
export interface Stopped {
  readonly how: "hard" | "soft"
  readonly starts: number
  readonly requests: number
  readonly millis: number
}

/** One attempt, when it was over. `log` and `events` are what its own recorder saw. */
export interface Attempted {
  readonly report: Simulation.Report<unknown, unknown>
  readonly watch: Watch
  readonly handlers: ReadonlyArray<Recorder.Entry>
  readonly log: ReadonlyArray<Recorder.Entry>
  readonly events: ReadonlyArray<Event.Event>
  readonly stopped: Stopped | undefined
}

/** The facts that the caller knows of the run. */
export interface Known extends Pick<Check.Options, "policy"> {
  readonly bound: number
  readonly graceMillis: number
  /** `true` if fibers pause more often than they would by themselves. */
  readonly isFine: boolean
  /** The handlers in which runs live when the run is not stopped. */
  readonly parents: ReadonlySet<string>
  /** `true` if the run was seen to end in `ChatCompleted` when it was not stopped. */
  readonly isChat: boolean
  /** `true` if the run succeeded when it was not stopped. */
  readonly isSound: boolean
}

type Law = Check.Violation["law"] | "stop" | "repeatable"

interface Finding {
  readonly law: Law
  readonly message: string
}

type Findings = ReadonlyArray<Finding>

const when = (isBroken: boolean, law: Law, message: string): Findings => isBroken ? [{ law, message }] : []

/** A handler starts once for each attempt at its call, and no attempt before the one in front of it has started. */
const starts = (all: ReadonlyArray<Start>): Findings => {
  const seen = new Set<string>()
  return all.flatMap(({ call, key, name }): Findings => {
    const isRepeated = seen.has(key)
    const earlier = key.slice(0, key.lastIndexOf(" ")) + ` ${call.attempt - 1}`
    seen.add(key)
    return [
      ...when(isRepeated, "starts", `${name} was started twice`),
      ...when(call.attempt > 1 && !seen.has(earlier), "starts", `${name} was started before the attempt in front of it`)
    ]
  })
}

const isMark = (entry: Recorder.Entry): entry is Exclude<Recorder.Entry, { readonly _tag: "Emitted" }> =>
  entry._tag !== "Emitted"

/** The starts of handlers that a run gave up and named. */
const lostOf = ({ abandoned, starts }: Watch): ReadonlyArray<Start> =>
  starts.filter(({ call }) => abandoned.some(({ id, name }) => id === call.id && name === call.name))

/** Lifetime and barriers, run by run: the handlers of a sub-agent do not keep out the one that it runs in. */
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

/** The handlers in which runs were seen to live. */
export const parentsOf = ({ requests, starts }: Watch): ReadonlySet<string> =>
  new Set([...starts, ...requests].map(({ inside }) => inside))

/**
 * One bound holds for the whole tree of runs. A handler in which a run lives takes no place of others, also if it was
 * stopped before anything of that run was to be seen.
 */
const bound = ({ handlers, watch }: Attempted, { bound, parents: known }: Known): Findings => {
  const parents = new Set([...parentsOf(watch), ...known])
  const lost = lostOf(watch).map(({ name }) => name)
  const leaves = handlers.filter((entry) => isMark(entry) && !parents.has(entry.name))
  return Check.check.handlers(leaves, { bound, abandoned: lost }).filter(({ law }) => law === "concurrency")
}

/** Finds what is alive after the run. It is unknown what abandoned handlers hold. */
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
 * Nothing starts after the stop. Where fibers are made to pause between any two operations, one that was on its way to
 * a start when the run was stopped may still come to it, at that instant.
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

/** A run that was stopped ends within its grace period: with its result, or interrupted if it was stopped hard. */
const stop = ({ report: { exit, millis }, stopped, watch }: Attempted, known: Known): Findings => {
  if (stopped === undefined) return []
  const { graceMillis, isFine, isSound } = known
  const took = millis - stopped.millis
  const cause = isSound && exit !== undefined && Exit.isFailure(exit) ? exit.cause : Cause.empty
  const isWrong = cause.reasons.length > 0 && !(stopped.how === "hard" && Cause.hasInterruptsOnly(cause))
  return [
    ...starting(watch, stopped, isFine),
    ...when(took > graceMillis, "stop", `the run took ${took} ms to stop, and has ${graceMillis} for it`),
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

/** The threads of an awaited result, as the stream would have shown them. */
const shown = (value: unknown): ReadonlyArray<Event.Event> => {
  if (isStep(value)) return [toStepCompleted(value)]
  return isResult(value) ? [...value.steps.map(toStepCompleted), { _tag: "ChatCompleted", result: value }] : []
}

/**
 * The threads that runs sent when they continued, each with the length of what their callers had put in front: a
 * request that continues none before it is the first of a run, and its caller's.
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

/** Every thread that was handed out or sent: in the result and in the requests. */
const histories = ({ report, watch }: Attempted): Findings => {
  const value = report.exit !== undefined && Exit.isSuccess(report.exit) ? report.exit.value : undefined
  return [
    ...Histories.histories(shown(value)),
    ...continued(watch.requests).flatMap(({ from, thread }) => Check.check.thread(thread, { from }))
  ]
}

/** Checks the events of the run. Those of a run whose reader left, or that failed, need not be whole. */
const events = ({ events, report, stopped }: Attempted, { isChat, policy }: Known): Findings => {
  const hasEnded = report.exit !== undefined && Exit.isSuccess(report.exit)
  const isCut = report.exit !== undefined && (stopped?.how === "hard" || !hasEnded)
  const found = Check.check(events, { isCut, ...(policy === undefined ? {} : { policy }) })
  return isChat ? found : found.filter(({ law }) => law !== "frame")
}

type Naming = Pick<Event.ChatResult, "abandoned">

/** The result of the run, if it has one that names what was left behind: that of a chat or of a batch. */
const namingOf = ({ events, report: { exit } }: Attempted): Naming | undefined => {
  const last = events.at(-1)
  if (last?._tag === "ChatCompleted") return last.result
  const value = exit !== undefined && Exit.isSuccess(exit) ? exit.value : undefined
  const isBatch = typeof value === "object" && value !== null && "messages" in value
  return isResult(value) || isBatch ? value as Naming : undefined
}

/** A handler that was abandoned is named in the result, also where it belongs to a run within the run. */
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

/** Everything that is against the attempt. */
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
