/**
 * The laws on what a played case left behind, where events alone do not show them: each function names what is wrong,
 * and says nothing of a lawful trace.
 */
import * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { Adapter, Collector, Event, Message, type Policy, Response, Step, Thread, Tool } from "heddle"
import { type Check, check, type Recorder } from "heddle/testing"
import type { Call, Case, Stop } from "./cases.ts"
import { deliveries } from "./dimensions/deliveries.ts"
import { Decided, usualOps } from "./dimensions/driving.ts"
import { kinds, type Word } from "./dimensions/kinds.ts"
import { places, type Slow } from "./dimensions/slowness.ts"
import { grace, isDenied, isExclusive, isLook, isRun, keyedPermits, refuses, toolTimeout } from "./handlers.ts"
import type { Remains, Trace } from "./worlds.ts"

type Problems = ReadonlyArray<string>

const when = (isWrong: boolean, problem: string): Problems => isWrong ? [problem] : []

const told = (violations: ReadonlyArray<Check.Violation>): Problems =>
  violations.map(({ index, law, message }) => `${law}: ${message}${index === undefined ? "" : ` (at ${index})`}`)

/** What the checks say of the laws with these names. */
const of = (
  violations: ReadonlyArray<Check.Violation>,
  ...laws: ReadonlyArray<Check.Violation["law"]>
): Problems => told(violations.filter((violation) => laws.includes(violation.law)))

/** Whether a handler of this name does not stop when it is interrupted. */
const isStubborn = (name: string): boolean => refuses(name) !== undefined

/** Whether a call of this kind is a run of its own. */
const isNested = (kind: Call["kind"]): boolean => kind === "nested" || kind === "nestedDeaf"

/** Whether it ends by itself some time after that, and has a timer for it. */
const isLate = (name: string): boolean => refuses(name) === "late"

/** The handlers that were alive when the run ended. */
const outlived = ({ endedAt, log }: Trace): ReadonlyArray<string> => alive(log.filter(({ at }) => at <= endedAt))

/** The handlers that are alive at the end of a log. */
const alive = (log: ReadonlyArray<Recorder.Entry>): ReadonlyArray<string> => {
  const names: Array<string> = []
  for (const entry of log) {
    if (entry._tag === "Emitted") continue
    if (entry._tag === "Started") names.push(entry.name)
    else if (entry._tag !== "Finalized") names.splice(names.indexOf(entry.name), 1)
  }
  return names
}

/** Laws 1 and 5: one answer per call, in order, in the frame of a run. */
export const events = ({ events, exit }: Trace): Problems => {
  const isCut = exit?._tag === "Failure"
  return of(check(events, { isCut }), "answers", "starts", "order", "frame")
}

/** A call stays as the model made it, in every event and in the thread. */
export const calls = (trace: Trace): Problems => told(check.calls(trace.emitted))

/** Law 2: one start for each attempt that a call was granted, and attempts in order. */
export const starts = (trace: Trace): Problems => {
  const repeated = trace.starts.filter((start, index) => trace.starts.indexOf(start) !== index)
  const early = trace.starts.filter((start, index) => {
    const [call, attempt] = start.split(" attempt ")
    return Number(attempt) > 1 && !trace.starts.slice(0, index).includes(`${call} attempt ${Number(attempt) - 1}`)
  })
  return [
    ...of(check(trace.events, { isCut: true }), "starts"),
    ...repeated.map((start) => `${start} was started twice`),
    ...early.map((start) => `${start} was started before the attempt in front of it`)
  ]
}

/**
 * How many hooks of the caller may be left behind. A run that calls back what it started lets answers be finished for
 * as long as the grace lasts, and settles without those that are not. For a tool that is a run itself,
 * and for the calls within it, which its own stop calls back, the number is unknown.
 */
const spared = ({ driving }: Case, abandoned: ReadonlyArray<Event.Abandoned>): number => {
  const isWithin = ({ kind, name }: Event.Abandoned) => isRun(name) || kind === "hook" && name === "leaf"
  if (abandoned.some(isWithin)) return Infinity
  const isCalledBack = driving.policy.start !== "afterTurn" || driving.cancelAt !== null || driving.deadline !== null
  return isCalledBack ? abandoned.length : 0
}

/** Law 3: what is alive after the run is what refused to stop in time and was named, and nothing else. */
export const lifetime = (trace: Trace, played: Case): Problems => {
  if (trace.exit === undefined || trace.left === undefined) return ["the run does not end"]
  const left = outlived(trace)
  const hooks = spared(played, trace.abandoned)
  const timers = left.filter(isLate).length + hooks
  return [
    ...left.filter((name) => !isStubborn(name)).map((name) => `"${name}" is alive after the run`),
    ...when(left.length + hooks === 0 && trace.left.fibers > 0, `${trace.left.fibers} fibers are alive after the run`),
    ...when(trace.left.timers > timers, `${trace.left.timers} timers are set after the run`),
    ...when(!left.some(isStubborn) && trace.leftLater.fibers > 0, `${trace.leftLater.fibers} fibers never end`),
    ...when(trace.leftLater.timers > 0, `${trace.leftLater.timers} timers are set in the end`),
    ...when(trace.keysLater > 0, `${trace.keysLater} names of permits are in use in the end`),
    ...when(trace.openRequests !== 0, `${trace.openRequests} model requests were not closed`),
    ...of(check.handlers(trace.log, { abandoned: left }), "lifetime")
  ]
}

/** Law 3, for a simulated run. */
export const remains = ({ abandoned, log, openRequests, report }: Remains, played: Case): Problems => {
  if (report.exit === undefined) return ["the run does not end"]
  const left = alive(log)
  const hooks = spared(played, abandoned)
  const sleeping = left.filter(isLate).length + hooks
  return [
    ...left.filter((name) => !isStubborn(name)).map((name) => `"${name}" is alive after the run`),
    ...when(left.length + hooks === 0 && report.fibers > 0, `${report.fibers} fibers are alive after the run`),
    ...when(report.sleeping > sleeping, `${report.sleeping} fibers are asleep after the run`),
    ...when(openRequests !== 0, `${openRequests} model requests were not closed`),
    ...of(check.handlers(log, { abandoned: left }), "lifetime")
  ]
}

/**
 * Law 4: the bound and the barrier. Handlers that refuse to stop hold no place of others when their grace is over. What
 * the caller lets run at once holds for the whole tree; what a run is given holds for the calls of its own.
 */
export const concurrency = ({ driving, turns }: Case, { log }: Trace): Problems => {
  const calls = turns.flatMap((turn) => turn.calls)
  const hasRuns = calls.some(({ kind }) => isNested(kind))
  const most = Math.max(...turns.map((turn) => turn.calls.length))
  const widest = 2 * navigator.hardwareConcurrency
  const given = driving.maxConcurrency ?? driving.policy.maxConcurrency
  const tree = driving.permits ?? given ?? (hasRuns ? widest : Math.min(most, widest))
  const abandoned = log.flatMap((entry) => entry._tag === "Started" && isStubborn(entry.name) ? [entry.name] : [])
  const only = (what: RegExp) => log.filter((entry) => entry._tag !== "Emitted" && what.test(entry.name))
  return [
    // A handler that a run within has left behind belongs to that run: it keeps no call of this one out.
    ...of(check.handlers(only(/^\w+ (?!deafLeaf )/), { bound: tree, isExclusive, abandoned }), "concurrency"),
    ...of(check.handlers(only(/^\w+ (?!leaf |deafLeaf )/), { bound: given ?? widest, abandoned }), "concurrency"),
    ...of(check.handlers(only(/ keyed /), { bound: keyedPermits }), "concurrency")
  ]
}

/** Law 11: an interrupted run is over within the grace period, and names what it left behind. */
export const stopping = (trace: Trace, stop: Stop, played: Case): Problems => {
  const named = trace.abandoned
  const left = outlived(trace).length
  // A handler that blocks is given one turn to stop when its time is over, in which a fiber that takes more may not.
  const most = played.driving.maxOps < usualOps ? Infinity : Math.max(left, spared(played, named))
  const last = trace.events.at(-1)
  const reported = last?._tag === "ChatCompleted" ? last.result.abandoned ?? [] : trace.abandoned
  return [
    ...when(
      "at" in stop && trace.endedAt > stop.at + grace,
      `stopped at ${"at" in stop && stop.at}, over at ${trace.endedAt}`
    ),
    ...when(named.length < left || named.length > most, `${left} handlers were left behind, ${named.length} are named`),
    ...when(reported.length !== named.length, `${named.length} are named, ${reported.length} are in the result`),
    ...(reported === trace.abandoned ? [] : astray(trace, reported))
  ]
}

/**
 * Entries of a result whose path does not lead from a call of the run to theirs. A call need not have started: its gates,
 * or what writes its answer, may be what was left behind.
 */
const astray = ({ events }: Trace, reported: ReadonlyArray<Event.Abandoned>): Problems => {
  const isOfCall = (event: Event.Event) =>
    event._tag === "ToolExecutionStarted" || event._tag === "ToolExecutionCompleted"
  const calls = new Set(events.flatMap((event) => isOfCall(event) && "id" in event ? [event.id] : []))
  return reported.flatMap(({ id, name, path = [id] }) =>
    when(!calls.has(path[0] ?? "") || path.at(-1) !== id, `"${name}" is named with the path ${path.join(" > ")}`)
  )
}

/**
 * Law 11: a soft stop is over within the grace period, too, and its stream ends as any other. Answers that are being
 * written may be finished meanwhile; those that are not are interrupted then, and have a grace period for that.
 */
export const softStop = (trace: Trace, at: number, { driving }: Case): Problems => {
  const isEnded = trace.exit?._tag === "Failure" || trace.events.at(-1)?._tag === "ChatCompleted"
  const hasHooks = driving.encoder === "slow" || driving.decisionLatency > 0
  return [
    ...when(!isEnded, `the stream ends in ${trace.events.at(-1)?._tag}`),
    ...when(trace.endedAt > at + grace * (hasHooks ? 2 : 1), `asked to stop at ${at}, over at ${trace.endedAt}`)
  ]
}

/** When a run was stopped, if it was by its reader, its caller or the clock. */
const stoppedAt = ({ slow }: Trace, stop: Stop | null, { driving: { deadline } }: Case): number | undefined =>
  stop !== null && "at" in stop ? stop.at : slow?.stopped?.at ?? deadline ?? undefined

/**
 * M-02, law 11: the connection to the model is closed at the instant of the stop, before any handler has ended for it. An
 * adapter that does not let go of a read is the one exception.
 */
export const closing = (trace: Trace, stop: Stop | null, played: Case, slow: Slow): Problems => {
  const at = stoppedAt(trace, stop, played)
  const isReading = trace.abandoned.some(({ kind, name }) => kind === "adapter" && name === "stream") ||
    (slow.place === "pull" && slow.pace !== "never")
  if (trace.slow === undefined || at === undefined || isReading) return []
  const { closing, opened, stopped } = trace.slow
  return opened.flatMap((open, index) => {
    if (open.at > at) return []
    const close = closing[index]
    if (close === undefined) return [`stopped at ${at}, a connection is not closed`]
    // Where fibers make room between any few operations, the two go on side by side.
    const isFine = played.driving.maxOps < usualOps
    const early = isFine ?
      [] :
      trace.log.slice(stopped?.index ?? 0, close.index).filter((entry) =>
        entry._tag === "Interrupted" && entry.at >= at
      )
    return [
      ...when(close.at > Math.max(at, open.at), `stopped at ${at}, a connection is closed at ${close.at}`),
      ...early.flatMap((entry) =>
        entry._tag === "Emitted" ? [] : [`"${entry.name}" has ended before the connection is closed`]
      )
    ]
  })
}

/**
 * M-03, law 11: a stop is over within the grace period, whatever is slow besides the handlers, and what is left behind is
 * named. A soft stop lets answers be finished meanwhile, which have the time limit of their tool when they begin at its
 * end. A run that is kept has one grace period for its handlers and one for what they write when they end.
 */
export const bounded = (trace: Trace, stop: Stop | null, played: Case, slow: Slow): Problems => {
  const at = stoppedAt(trace, stop, played)
  if (at === undefined) return []
  const { driving } = played
  const hasAnswers = stop === null && (driving.encoder === "slow" || driving.decisionLatency > 0)
  const { kind, name } = places[slow.place]
  // A finalizer that runs when the model has said everything runs in a read.
  const isIts = (entry: Event.Abandoned) => entry.kind === kind && (kind === "adapter" || entry.name === name)
  const named = trace.abandoned.filter(isIts).length
  const alive = trace.slow?.alive.length ?? 0
  const left = outlived(trace)
  const last = trace.events.at(-1)
  const result = last?._tag === "ChatCompleted" ? last.result : awaitedResult(trace)
  // A hook that receives a result is abandoned after that result is made.
  const isTooLate = trace.slow?.during === "ChatCompleted" || trace.slow?.during === "RunEnded"
  const logged = trace.abandoned.length - (isTooLate ? named : 0)
  const reported = result?.abandoned?.length ?? 0
  return [
    ...when(trace.exit === undefined, "the run does not end"),
    ...when(
      trace.endedAt > at + grace + (hasAnswers ? toolTimeout : slow.place === "append" ? grace : 0),
      `stopped at ${at}, over at ${trace.endedAt}`
    ),
    ...when(named !== alive, `${alive} of "${kind} ${name}" are alive after the run, ${named} are named`),
    ...when(
      result !== undefined && reported !== logged,
      `${logged} are named, ${reported} are in the result`
    ),
    ...left.filter((handler) => !isStubborn(handler)).map((handler) => `"${handler}" is alive after the run`),
    ...when(trace.openRequests !== 0 && alive === 0, `${trace.openRequests} model requests were not closed`),
    ...when(trace.abandoned.length === 0 && (trace.left?.fibers ?? 0) > 0, `${trace.left?.fibers} fibers are alive`),
    ...when(trace.leftLater.timers > 0, `${trace.leftLater.timers} timers are set in the end`)
  ]
}

const isTyped = (error: unknown): boolean =>
  error instanceof Decided || error instanceof Adapter.AdapterError || error instanceof Step.EngineError

const isExpected = (cause: Cause.Cause<unknown>, isStopped: boolean): boolean =>
  (isStopped && Cause.hasInterruptsOnly(cause)) ||
  cause.reasons.every((reason) => reason._tag === "Fail" && isTyped(reason.error))

/** Law 8, for the run: it ends in a result or a typed failure, and dies of nothing that a tool or a model does. */
export const ending = (trace: Trace, isStopped: boolean): Problems => {
  if (trace.exit === undefined) return ["the run does not end"]
  if (Exit.isSuccess(trace.exit) || isExpected(trace.exit.cause, isStopped)) return []
  return [`the run ends with ${Cause.pretty(trace.exit.cause)}`]
}

const lostReason = (call: Message.ToolCall): Word | undefined =>
  call.argumentsLost === undefined
    ? undefined
    : call.argumentsLost === "truncated"
    ? "truncated_arguments"
    : "invalid_arguments"

const toWord = (outcome: Tool.Outcome): Word =>
  outcome._tag === "Error" ? outcome.error instanceof Tool.ToolError ? outcome.error.reason : "reported" : outcome._tag

/** What a call comes to if it is run, or refused for what it says. */
const runOf = (call: Message.ToolCall, spec: Call, { driving: { policy } }: Case): Word => {
  const { becomes } = kinds[spec.kind]
  const lost = lostReason(call)
  if (becomes === "unknown_tool") return becomes
  if (policy.badArguments === "answer" && lost !== undefined) return lost
  if (becomes === "invalid_arguments" || !deliveries[spec.delivery].isWhole(policy)) return "invalid_arguments"
  return spec.kind !== "manual" && isDenied(spec) ? "denied" : becomes
}

/** Whether a call may have been started before the reply had ended. */
const mayBeEarly = (spec: Call, { driving: { policy: { start } } }: Case): boolean =>
  spec.kind !== "manual" && deliveries[spec.delivery].isFinal &&
  (start === "onCallReady" || (start === "readOnly" && isLook(spec)))

/** All that a call may come to, by when its reply ended and how. */
const possible = (
  call: Message.ToolCall,
  spec: Call,
  played: Case,
  { halt, response }: Event.Of<"StepCompleted">
): ReadonlyArray<Word> => {
  const isEarly = mayBeEarly(spec, played)
  const stopped: ReadonlyArray<Word> = [runOf(call, spec, played), ...stoppedAs(spec, played.driving.policy)]
  if (!Collector.isToolTurn(played.driving.policy, response)) return isEarly ? stopped : ["cancelled"]
  if (spec.kind === "manual" && (call.argumentsLost === undefined || played.driving.policy.badArguments !== "answer")) {
    return halt === undefined ? [] : ["cancelled"]
  }
  const { onHalt, onToolError } = played.driving.policy.siblings
  const isAborted = onHalt !== "drain" || onToolError !== "drain"
  return isAborted ? stopped : [runOf(call, spec, played)]
}

/**
 * What a call may come to that was started and stopped. A run that blocks interruption says itself that it was, and a call
 * that blocks it and had failed before is not tried again: its last failure is its answer. One that blocks it is
 * interrupted when its grace period is over, and may still stop then.
 */
const stoppedAs = ({ kind }: Call, { interrupt }: Policy.Policy): ReadonlyArray<Word> => {
  const isLate = interrupt === "block"
  return [
    "cancelled",
    ...(isNested(kind) || kind === "retry" ? ["reported"] as const : []),
    ...(kind === "nestedDeaf" || kinds[kind].refuses !== undefined || isLate ? ["abandoned"] as const : [])
  ]
}

/** O-09: whether the answer of a call says that it stopped, although its handler has started and never ends. */
const isEffectDenied = (call: Message.ToolCall, { kind }: Call, word: Word, { events }: Trace): boolean =>
  (word === "cancelled" || word === "timeout") && kinds[kind].refuses === "never" && kinds[kind].forks === undefined &&
  events.some((event) => event._tag === "ToolExecutionStarted" && event.id === call.id)

/** Law 8, for calls: each failure is of its own kind. For cases whose failures go on as they are. */
export const failures = (played: Case, trace: Trace): Problems => {
  const steps = trace.events.filter((event) => event._tag === "StepCompleted")
  const stubborn = trace.log.flatMap((entry) => entry._tag === "Started" && isStubborn(entry.name) ? [entry.name] : [])
  const isHeldUp = (spec: Call): boolean => stubborn.some((name) => spec.isExclusive || isExclusive(name))
  const { maxTurns, policy } = played.driving
  return steps.flatMap((step, turn) => {
    // The call that closes a run offers no tools.
    const isClosing = policy.onMaxTurns === "finalize" && turn >= maxTurns
    const specs = isClosing ? [] : played.turns[turn]?.calls ?? []
    return Response.actionableCalls(step.response).flatMap((call) => {
      const spec = specs[Number(/^c\d+_(\d)$/.exec(call.id)?.[1] ?? Number.NaN)]
      const outcome = resultOf(trace.events, step, call.id)
      if (spec === undefined || spec.id !== null || outcome === undefined) return []
      const wanted = possible(call, spec, played, step)
      const isTold = wanted.includes(toWord(outcome)) || (toWord(outcome) === "cancelled" && isHeldUp(spec))
      return [
        ...when(!isTold, `call "${call.id}" came to ${toWord(outcome)} instead of ${wanted.join(" or ")}`),
        ...when(
          isEffectDenied(call, spec, toWord(outcome), trace),
          `call "${call.id}" is said to have stopped, and has not`
        )
      ]
    })
  })
}

/** The raw result that a step showed of a call. */
const resultOf = (
  events: ReadonlyArray<Event.Event>,
  step: Event.Of<"StepCompleted">,
  id: string
): Tool.Outcome | undefined => {
  const seen = events.slice(0, events.indexOf(step)).findLast((event) =>
    event._tag === "ToolExecutionCompleted" && event.id === id
  )
  return seen?._tag === "ToolExecutionCompleted" ? seen.result : undefined
}

/** No call starts before its policy lets it: until the reply has ended, only those that may be early. */
export const startsInTime = (played: Case, trace: Trace): Problems => {
  let turn = 0
  let hasEnded = false
  return trace.events.flatMap((event) => {
    if (event._tag === "MessageCompleted" || event._tag === "Error") hasEnded = true
    if (event._tag === "StepCompleted") [turn, hasEnded] = [turn + 1, false]
    if (event._tag !== "ToolExecutionStarted" || hasEnded) return []
    const spec = played.turns[turn]?.calls.find((_, index) => event.arguments["place"] === `${turn}.${index}`)
    return when(
      spec === undefined || !mayBeEarly(spec, played),
      `call "${event.id}" started before the reply had ended`
    )
  })
}

/** Law 9: every thread that was handed out, and every one that was sent, can be sent. */
export const history = (trace: Trace): Problems => [
  ...of(check(trace.events), "history"),
  ...trace.requests.flatMap(({ messages }) => told(check.thread(Thread.fromMessages(messages))))
]

const encode = Schema.encodeUnknownSync(Schema.Union([Event.ChatResult, Event.StepResult]))

/** What was decided: the whole result as data, or with what the run failed. */
const decided = ({ exit }: Trace): unknown => {
  if (exit === undefined) return "the run does not end"
  return Exit.isSuccess(exit) && exit.value !== undefined ? encode(exit.value) : exit
}

/** What two texts have around the place where they begin to differ. */
const difference = (one: string, other: string): Problems => {
  const at = Array.from(one).findIndex((letter, index) => letter !== other[index])
  return [one, other].map((text) => text.slice(Math.max(0, at - 200), at + 200))
}

/** Law 7: both runs decided the same. */
export const decisions = (first: Trace, second: Trace): Problems => {
  const [one, other] = [JSON.stringify(decided(first)), JSON.stringify(decided(second))]
  return one === other ? [] : difference(one, other)
}

/** When each handler started and ended, from the first start of its step on. */
const timeline = ({ log }: Trace): ReadonlyArray<string> => {
  const zero = new Map<string, number>()
  return log.flatMap((entry) => {
    if (entry._tag === "Emitted") return []
    const step = / (\d+)\.\d+/.exec(entry.name)?.[1] ?? ""
    const start = zero.get(step) ?? entry.at
    zero.set(step, start)
    return [`${entry.name} ${entry._tag} ${entry.at - start}`]
  })
}

/** Law 10: in the second run, handlers start and end when they did in the first. */
export const times = (first: Trace, second: Trace): Problems => {
  const [expected, actual] = [timeline(first), timeline(second)]
  return [
    ...actual.filter((line) => !expected.includes(line)),
    ...expected.filter((line) => !actual.includes(line)).map((line) => `not: ${line}`)
  ]
}

/** The texts of a message, if deltas were shown: as it was streamed, as it was completed, and as it stands in the thread. */
export const texts = ({ driving }: Case, { events }: Trace): Problems => {
  let delta = ""
  let completed: string | undefined
  return driving.hidesDeltas ? [] : events.flatMap((event) => {
    if (event._tag === "MessageStarted") [delta, completed] = ["", undefined]
    if (event._tag === "TextDelta") delta += event.delta
    if (event._tag === "TextCompleted") completed = event.text
    if (event._tag !== "StepCompleted") return []
    const said = event.thread.messages.findLast(({ role }) => role === "assistant")
    const told = delta === "" || said === undefined ? "" : Message.text(said)
    const isSame = delta === told && (completed ?? delta) === told
    return when(!isSame, `"${delta}", "${completed}" and "${told}" are not the same`)
  })
}

/** A run that could not be started gives no result, and its stream no end. */
const awaitedResult = ({ exit }: Trace): Event.ChatResult | undefined =>
  exit !== undefined && Exit.isSuccess(exit) && exit.value !== undefined && "outcome" in exit.value
    ? exit.value
    : undefined

const isSameEnd = (streamed: Trace, awaited: Trace): boolean => {
  const last = streamed.events.at(-1)
  const isRefused = last?._tag === "ChatCompleted" && last.result.outcome._tag === "Failed"
  return awaited.exit?._tag === streamed.exit?._tag || (awaited.exit?._tag === "Failure" && isRefused)
}

/** Law 6: what is awaited is the fold of what is streamed, and what the reader of the stream hides changes nothing. */
export const fold = ({ driving: { policy } }: Case, streamed: Trace, awaited: Trace): Problems => {
  const result = awaitedResult(awaited)
  return [
    ...of(check(streamed.events, { policy, ...(result === undefined ? {} : { result }) }), "fold"),
    ...when(
      !isSameEnd(streamed, awaited),
      `the stream ends in ${streamed.exit?._tag}, the run in ${awaited.exit?._tag}`
    )
  ]
}
