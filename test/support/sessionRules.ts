/**
 * The rules of the model of sessions: `next` says what is left to do in a state, `problem` which happenings may not follow
 * in it, and `refusal` which operations a session refuses.
 */
import {
  answered,
  callsOf,
  ended,
  type Happening,
  type Kind,
  type Open,
  type Repeatable,
  type Run,
  settled,
  type State,
  threadOf,
  type Verdict,
  type Waits,
  withCall
} from "./sessionModel.ts"

export const waitingIn = (state: Pick<State, "turn">): ReadonlyArray<Open> =>
  callsOf(state).flatMap(([, call]) => call.state === "waiting" ? call.open : [])

/** What is left to do in a session. */
export const next = (state: State): string => {
  if (state.isNested) return "nothing"
  if (state.run !== undefined) return "resume"
  if (state.status === "error") return state.inbox.length > 0 ? "reply" : "nothing"
  if (waitingIn(state).length > 0) return "wait"
  if (state.inbox.length > 0) return "reply"
  return state.isSettled || callsOf(state).some(([, call]) => call.state === "granted") ? "continue" : "nothing"
}

const repeatable: ReadonlySet<Kind> = new Set<Repeatable>(["agent", "idempotent", "lookUp", "readOnly", "retry"])

const problemOfCall = (state: State, run: Run, happening: Extract<Happening, { id: string }>): string | undefined => {
  const known = state.turn?.calls[happening.id]
  const isOwn = known?.by === happening.by
  const isLeft = run.by !== happening.by
  const detail = `call ${happening.id}, which is ${known?.state} after attempt ${known?.attempt}`
  if (isLeft && happening.what !== "end") return `another owner's run has ${happening.what} of ${detail}`
  switch (happening.what) {
    case "start": {
      const { attempt, early } = happening
      if (run.isEnding) return `a run that was stopped starts ${detail}`
      if (run.stoppedCalls.includes(happening.id)) return `a call that was stopped starts again: ${detail}`
      if (known === undefined) {
        return early === "readOnly" && attempt === 1
          ? undefined
          : `an early start of ${happening.id}`
      }
      if (attempt !== known.attempt + 1) return `attempt ${attempt} of ${detail}`
      if (known.kind === "none") return `a start of ${detail}, whose tool was not given`
      if (known.state === "granted") return undefined
      if (known.state === "asked") {
        const isAllowed = known.kind !== "manual" && (known.kind !== "approval" || known.attempt > 0)
        return isAllowed ? undefined : `a start of ${detail}, and was not allowed`
      }
      return known.state === "started" && !isOwn && repeatable.has(known.kind) ? undefined : `a start of ${detail}`
    }
    case "again":
      return known?.state === "started" && isOwn && known.kind === "flaky" ? undefined : `another attempt of ${detail}`
    case "end": {
      const { content } = happening
      if (known === undefined || known.state === "answered") return `an answer to ${detail}`
      const isStarted = known.state === "started"
      if (content === "cancelled") return isStarted && !isOwn ? `cancelled is ${detail}` : undefined
      const isAsked = known.state === "waiting" && known.open.some(({ waits }) => waits === "unknown")
        || known.state === "granted" && known.attempt > 0
      // A verdict that came during the run counts at its end: a call that had started could go on.
      const isGranted = known.state === "waiting" && known.attempt > 0
        && run.settlements.some(([id]) => known.open.some((open) => open.id === id))
      // A stop that was known before a repeated start was recorded leaves the effect of the earlier process unknown.
      const isToStop = run.stop !== undefined || run.callStops.some(([, path]) => path === happening.id)
      const isStopped = isStarted && isOwn && known.attempt > 1 && isToStop && known.kind !== "flaky"
      const isUnknown = isAsked || isGranted || isStopped || isStarted && !isOwn
      if (content === "unknown") return isUnknown ? undefined : `unknown is ${detail}`
      if (isAsked && isLeft) return `${content} is the answer to ${detail}, whose effect is unknown`
      if (content === "unknown_tool") return known.kind === "none" ? undefined : `unknown_tool is ${detail}`
      if (isLeft) return `an owner that leaves a run answers ${detail}`
      if (isStarted && (isOwn || known.kind === "lookUp")) return undefined
      return `${content} is the answer to ${detail}`
    }
    case "wait": {
      const waits = new Set(happening.open.map(({ isNested, waits }) => isNested ? "nested" : waits))
      const expected = known?.state === "started"
        ? isOwn ? (known.kind === "agent" ? "nested" : "question") : "unknown"
        : known?.kind
      if (known === undefined || known.state === "answered" || known.state === "waiting") return `a wait of ${detail}`
      return waits.size === 1 && waits.has(expected as Waits)
        ? undefined
        : `a wait for ${[...waits].join()} of ${detail}`
    }
    default:
      return undefined
  }
}

/** What is wrong with the delivery of messages before a request. */
const problemOfDelivery = (
  state: State,
  run: Run,
  { delivered, says, step }: Extract<Happening, { what: "prepared" }>
): string | undefined => {
  if (step !== run.steps) return `a request of step ${step} after ${run.steps} steps`
  if (delivered.length === 0) return says.length === 0 ? undefined : `messages without an id: ${says.join()}`
  const open = state.inbox.filter(([, , mode]) => mode !== "next")
  const steers = open.filter(([, , mode]) => mode === "steer")
  const detail = `a delivery of ${delivered.join()}`
  if (run.steps === 0) return `${detail} to the first step`
  if (run.isEnding) return `${detail} to a run that is stopped`
  const isFirst = (messages: State["inbox"]) => delivered.every((id, index) => messages[index]?.[0] === id)
  if (!isFirst(steers)) {
    if (!isFirst(open)) return `${detail}, and ${open.map(([id]) => id).join()} are open`
    const last = threadOf(state).at(-1)
    if (last?.startsWith("assistant said") !== true) return `${detail}, which has a follow, behind ${last}`
  }
  const texts = delivered.map((id) => `user ${open.find((message) => message[0] === id)?.[1]}`)
  return texts.join("\n") === says.join("\n") ? undefined : `${detail} says ${says.join()}`
}

/** What is wrong with a happening in a state. */
export const problem = (state: State, happening: Happening, maxTurns = Infinity): string | undefined => {
  const { run } = state
  switch (happening.what) {
    case "opened":
      if (run !== undefined) return "a session is opened within a run"
      return state.thread.length > 0 && threadOf(state).join("\n") !== happening.thread.join("\n")
        ? "a session is opened anew with another thread"
        : undefined
    case "submitted":
    case "settle":
      return undefined
    case "withdrawn":
      return state.inbox.some(([id]) => id === happening.message) ? undefined : "a withdrawal of what is not open"
    case "stop": {
      if (run?.id !== happening.run) return "a stop of a run that is not open"
      const call = happening.path === undefined ? undefined : state.turn?.calls[happening.path.split("/")[0] ?? ""]
      return happening.path === undefined || call !== undefined && call.state !== "answered"
        ? undefined
        : `a stop of ${happening.path}, which is ${call?.state}`
    }
    case "run":
      if (!happening.isResumed) return run === undefined ? undefined : "a run starts within another one"
      return run?.id === happening.run ? undefined : "a run that is not open is resumed"
    default:
  }
  if (run === undefined) return `${happening.what} without a run`
  if ("id" in happening) return problemOfCall(state, run, happening)
  const isOpened = state.turn?.isReplied === true
  const left = callsOf(state).filter(([, { state }]) => isOpened && (state === "asked" || state === "started"))
  if (happening.what === "ended") {
    if (happening.reason === "abandoned") {
      return left.length === 0
        ? undefined
        : `an abandoned run leaves ${left.join()}`
    }
    if (run.by !== happening.by) return "another owner's run is ended"
    if (happening.status === "stopped" && run.stop === undefined) return "a run is stopped that nothing has stopped"
    const missed = run.due.filter((due) => state.inbox.some(([id]) => id === due))
    if (happening.reason === "completed" && run.closing === undefined && run.steps < maxTurns && missed.length > 0) {
      return `a run completes without ${missed.join()}`
    }
    const isFailed = happening.reason === undefined
    return isFailed || left.length === 0 ? undefined : `the end of a run leaves ${JSON.stringify(left)}`
  }
  if (run.by !== happening.by) return `another owner's run has ${happening.what}`
  if (happening.what === "prepared") return problemOfDelivery(state, run, happening)
  if (happening.what === "reply") {
    const isWaiting = isOpened && waitingIn(state).some(({ waits }) => waits !== "question")
    return run.isEnding || isWaiting ? "the model is asked while a call waits, or the run is stopped" : undefined
  }
  if (happening.broken !== undefined) {
    return state.turn?.isReplied === true ? "a step has other messages than its calls" : undefined
  }
  return left.length === 0 ? undefined : `a step leaves ${JSON.stringify(left)}`
}

export type Operation =
  | readonly ["abandon"]
  | readonly ["continue"]
  | readonly ["reply", text: string]
  | readonly ["resume"]
  | readonly ["settle", id: string, verdict: Verdict]

/** The state in which an operation other than `resume` and `settle` finds the session. */
const rested = (state: State): State => {
  const { run } = state
  if (run === undefined) return state
  const settling = run.settlements.reduce((state, [id, verdict]) => settled(state, id, verdict), state)
  const isOwn = state.turn?.isEarlier === false
  const withdrawn = callsOf(settling).reduce(
    (state, [id, call]) => call.state === "waiting" && isOwn ? withCall(state, id, answered("cancelled")) : state,
    settling
  )
  return ended(withdrawn, { ...run, settlements: [] }, {
    by: 0,
    what: "ended",
    reason: "abandoned",
    status: "idle",
    says: []
  })
}

const fits = (waits: Waits, verdict: Verdict): boolean =>
  verdict[0] === "value" ? waits !== "approval" : waits === "approval" || waits === "unknown"

/** Why a session refuses an operation, if it does. */
export const refusal = (state: State, [operation, id, verdict]: Operation): string | undefined => {
  if (operation === "resume" || operation === "abandon") return state.run === undefined ? "no run is open" : undefined
  if (operation === "settle") {
    const isShown = state.turn?.isReplied === true
    const settling = (state.run?.settlements ?? []).map(([id]) => id)
    const open = waitingIn(state).find((open) => open.id === id && !settling.includes(open.id))
    return isShown && open !== undefined && verdict !== undefined && fits(open.waits, verdict)
      ? undefined
      : "it does not wait"
  }
  const found = rested(state)
  const open = waitingIn(found)
  if (open.length === 0) return found.status === "error" ? "the last run broke" : undefined
  return operation === "reply" && open.length === 1 && open[0]?.waits === "question" ? undefined : "calls wait"
}
