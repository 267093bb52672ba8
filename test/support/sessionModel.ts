/**
 * A model of sessions that has nothing of the library: a turn is a table of calls, and what happens to a session is a
 * list of happenings. `after` is what a happening makes of a session.
 */

/** Tools whose handler may be started again although it had started in a process that is gone. */
export type Repeatable = "agent" | "idempotent" | "lookUp" | "readOnly" | "retry"

/** A tool by what is declared of it and by what its handler does. `none` is one that the model was not given. */
export type Kind = Repeatable | "approval" | "ask" | "fail" | "flaky" | "manual" | "none" | "question" | "report"

export type Waits = "approval" | "manual" | "question" | "unknown"

/** Messages, each as a line of text. */
export type Lines = ReadonlyArray<string>

export interface Open {
  readonly id: string
  readonly waits: Waits
  /** Whether a run inside the call waits. */
  readonly isNested: boolean
}

export interface Call {
  readonly kind: Kind
  readonly state: "answered" | "asked" | "granted" | "started" | "waiting"
  readonly attempt: number
  /** The process that has started it. */
  readonly by: number
  readonly open: ReadonlyArray<Open>
  readonly content: string
}

export interface Turn {
  readonly isEarlier: boolean
  readonly isReplied: boolean
  readonly calls: Readonly<Record<string, Call>>
  readonly behind: Lines
}

/** A submitted message: when a run gets it, and what becomes of it where the run ends without it. */
export type Submitted = readonly [
  id: string,
  text: string,
  mode: "follow" | "next" | "steer",
  otherwise: "next" | "refuse"
]

export interface Run {
  readonly id: string
  readonly by: number
  readonly isStep: boolean
  /** The request that it is to stop. */
  readonly stop: string | undefined
  /** The requests to stop one of its calls, with the paths of the calls. */
  readonly callStops: ReadonlyArray<readonly [id: string, path: string]>
  /** The paths of the calls that were to stop when it was resumed: they do not start again. */
  readonly stoppedCalls: ReadonlyArray<string>
  /** The rule that made its last step the last one. */
  readonly closing: string | undefined
  /** The messages that were open at its last step. */
  readonly due: ReadonlyArray<string>
  /** A stop was known when it was resumed: nothing starts any more. */
  readonly isEnding: boolean
  readonly hasStarted: boolean
  readonly steps: number
  readonly taken: readonly [id: string, message: Submitted | undefined] | undefined
  readonly settlements: ReadonlyArray<readonly [id: string, verdict: Verdict]>
  readonly before: Pick<State, "isSettled" | "status" | "thread" | "turn">
}

export interface State {
  readonly thread: Lines
  readonly turn: Turn | undefined
  readonly run: Run | undefined
  readonly inbox: ReadonlyArray<Submitted>
  readonly status: string
  readonly isSettled: boolean
  readonly receipts: Readonly<Record<string, string>>
  /** The reason for which a message is refused that comes after the last run. */
  readonly refusal: string
  readonly isNested: boolean
}

/** `value`: an answer in its place. `again`: the call may run. `no`: it may not. */
export type Verdict = readonly ["again"] | readonly ["no"] | readonly ["value", text: string]

/** What happens to a session. */
type What =
  | { readonly what: "opened"; readonly thread: Lines; readonly status: string }
  | { readonly what: "submitted"; readonly message: Submitted }
  | { readonly what: "withdrawn"; readonly message: string }
  | { readonly what: "stop"; readonly stop: string; readonly run: string; readonly path: string | undefined }
  | {
    readonly what: "run"
    readonly run: string
    readonly isResumed: boolean
    readonly isStep: boolean
    readonly isNested: boolean
    readonly says: Lines
    readonly takes: string | undefined
    readonly answers: readonly [id: string, verdict: Verdict] | undefined
  }
  /** A request that is about to be made: `delivered` are the submitted messages that it has, and `says` all new ones. */
  | {
    readonly what: "prepared"
    readonly step: number
    readonly delivered: ReadonlyArray<string>
    readonly says: Lines
    readonly closing: string | undefined
  }
  | { readonly what: "reply"; readonly says: string; readonly calls: ReadonlyArray<readonly [id: string, kind: Kind]> }
  | { readonly what: "start"; readonly id: string; readonly attempt: number; readonly early: Kind | undefined }
  | { readonly what: "again"; readonly id: string }
  | { readonly what: "end"; readonly id: string; readonly content: string }
  | { readonly what: "wait"; readonly id: string; readonly open: ReadonlyArray<Open> }
  | { readonly what: "settle"; readonly id: string; readonly verdict: Verdict }
  /** `broken` are the messages of a reply that broke off. */
  | {
    readonly what: "step"
    readonly says: string
    readonly introduced: Lines
    readonly broken: Lines | undefined
    readonly closing: string | undefined
  }
  | {
    readonly what: "ended"
    readonly reason: string | undefined
    readonly status: string
    readonly says: Lines
    readonly rule?: string | undefined
  }

/** What happens, and the process that appended it. 0 is a process that only gives commands. */
export type Happening = What & { readonly by: number }

export const initial: State = {
  thread: [],
  turn: undefined,
  run: undefined,
  inbox: [],
  status: "idle",
  isSettled: false,
  receipts: {},
  refusal: "finished",
  isNested: false
}

// Questions to a state.

export const callsOf = ({ turn }: Pick<State, "turn">): ReadonlyArray<readonly [string, Call]> =>
  Object.entries(turn?.calls ?? {})

const isOpen = ({ state }: Call): boolean => state !== "answered"

/** Whether a call waits for the answer to a question of its own. */
const isQuestion = ({ open, state }: Call): boolean =>
  state === "waiting" && open.every(({ isNested, waits }) => waits === "question" && !isNested)

const unanswered = "<awaiting user response>"

const answerOf = (id: string, call: Call): Lines => {
  if (call.state === "answered") return [`tool ${id}: ${call.content}`]
  return isQuestion(call) ? [`tool ${id}: ${unanswered}`] : []
}

const messagesIn = (turn: Turn): Lines => [
  ...turn.isReplied ? [`assistant calls ${Object.keys(turn.calls).join(" ")}`] : [],
  ...Object.entries(turn.calls).flatMap(([id, call]) => answerOf(id, call)),
  ...turn.behind
]

/** The thread that a session at rest shows. */
export const threadOf = ({ thread, turn }: Pick<State, "thread" | "turn">): Lines =>
  turn === undefined ? thread : [...thread, ...messagesIn(turn)]

// What a happening makes of a state.

export const withCall = (state: State, id: string, change: Partial<Call>): State => {
  const { turn } = state
  const call = turn?.calls[id]
  if (turn === undefined || call === undefined) return state
  return { ...state, turn: { ...turn, calls: { ...turn.calls, [id]: { ...call, ...change } } } }
}

export const answered = (content: string): Partial<Call> => ({ state: "answered", open: [], content })

const granted: Partial<Call> = { state: "granted", open: [] }

const said = (state: State, messages: Lines): State =>
  state.turn === undefined
    ? { ...state, thread: [...state.thread, ...messages] }
    : { ...state, turn: { ...state.turn, behind: [...state.turn.behind, ...messages] } }

/** A turn of an earlier run is whole when each of its calls is answered. */
const whole = (state: State): State =>
  state.turn?.isEarlier === true && !callsOf(state).some(([, call]) => isOpen(call))
    ? { ...state, thread: threadOf(state), turn: undefined }
    : state

const spoken = (state: State): State => {
  if (state.turn?.isEarlier !== true) return state
  const asked = callsOf(state).filter(([, call]) => isQuestion(call))
  return whole(asked.reduce((state, [id]) => withCall(state, id, answered(unanswered)), state))
}

export const settled = (state: State, id: string, verdict: Verdict): State => {
  const found = callsOf(state).find(([, call]) => call.state === "waiting" && call.open.some((open) => open.id === id))
  if (found === undefined || state.turn === undefined) return state
  const [outer, call] = found
  const left = call.open.filter((open) => open.id !== id)
  const open = call.open.find((open) => open.id === id)
  const isWorded = state.turn.behind.at(-1) === `asked ${id}`
  const change = (): State => {
    if (open?.isNested === true) return withCall(state, outer, left.length > 0 ? { open: left } : granted)
    if (verdict[0] === "again") return withCall(state, outer, granted)
    if (verdict[0] === "no") return withCall(state, outer, answered("denied"))
    if (!isWorded) return withCall(state, outer, answered(verdict[1]))
    return withCall(said(state, [`user ${verdict[1]}`]), outer, answered(unanswered))
  }
  return whole({ ...change(), isSettled: true, status: "idle" })
}

/** What had not ended when its run did is answered as not run, or as unknown. */
const closed = (state: State): State =>
  callsOf(state).reduce((state, [id, call]) => {
    if (call.state === "asked") return withCall(state, id, answered("cancelled"))
    return call.state === "started" ? withCall(state, id, answered("unknown")) : state
  }, state)

const became = (state: State, id: string | undefined, what: string): State =>
  id === undefined ? state : { ...state, receipts: { ...state.receipts, [id]: what } }

/** A message that no run takes any more. */
const resolved = (state: State, id: string, fate: string): State =>
  state.inbox.some((message) => message[0] === id)
    ? became({ ...state, inbox: state.inbox.filter((message) => message[0] !== id) }, id, fate)
    : state

const refused = (state: State): State =>
  state.inbox.reduce(
    (state, [id, , , otherwise]) => otherwise === "refuse" ? resolved(state, id, `refused ${state.refusal}`) : state,
    state
  )

const refusals: Readonly<Record<string, string>> = {
  abandoned: "stopped",
  ask_user: "waiting",
  approval_requested: "waiting",
  cancelled: "stopped",
  completed: "finished",
  error: "failed",
  manual_tool_calls: "waiting",
  max_turns: "max_turns",
  tool_error: "failed"
}

/** The reason for which the end of a run refuses messages. */
const refusalOf = (
  { closing }: Run,
  { reason, rule }: Pick<Extract<Happening, { what: "ended" }>, "reason" | "rule">
): string => {
  if (reason === undefined) return "failed"
  return rule ?? (reason === "completed" ? closing : undefined) ?? refusals[reason] ?? "halted"
}

export const ended = (given: State, run: Run, happening: Extract<Happening, { what: "ended" }>): State => {
  const { reason, says, status } = happening
  const stops = [run.stop, ...run.callStops.map(([id]) => id)]
  const state = stops.reduce((state, id) => became(state, id, "completed"), {
    ...given,
    refusal: refusalOf(run, happening)
  })
  const [id, message] = run.taken ?? []
  const rest = (state: State): State =>
    refused(run.settlements.reduce((state, [id, verdict]) => settled(state, id, verdict), state))
  if (reason === undefined && !run.hasStarted && run.steps === 0) {
    const inbox = message === undefined ? state.inbox : [message, ...state.inbox]
    return rest(became({ ...state, ...run.before, inbox, run: undefined }, id, "queued"))
  }
  const left = closed(said(reason === undefined ? closed(state) : state, says))
  const turn = left.turn?.isReplied === true ? { ...left.turn, isEarlier: true } : undefined
  const outcome = reason === "abandoned"
    ? "withdrawn"
    : reason === undefined || status === "error"
    ? "failed"
    : status === "stopped"
    ? "stopped"
    : "completed"
  return became(rest(whole({ ...left, turn, run: undefined, isSettled: false, status })), id, outcome)
}

const newRun = {
  stop: undefined,
  callStops: [],
  stoppedCalls: [],
  closing: undefined,
  due: [],
  isEnding: false,
  hasStarted: false,
  steps: 0,
  settlements: []
}

const began = (state: State, happening: Extract<Happening, { what: "run" }>): State => {
  const { answers, by, isNested, isResumed, isStep, run: id, says, takes } = happening
  if (isResumed && state.run !== undefined) {
    const stoppedCalls = state.run.callStops.map(([, path]) => path)
    const run = { ...state.run, by, isEnding: state.run.stop !== undefined, stoppedCalls }
    return { ...state, run, turn: state.turn?.isReplied === false ? undefined : state.turn }
  }
  const { isSettled, status, thread, turn } = state
  const answering = answers === undefined ? state : settled(state, ...answers)
  const speaking = says.length === 0 ? answering : spoken(said(answering, says))
  const message = state.inbox.find((submitted) => submitted[0] === takes)
  const inbox = state.inbox.filter((other) => other !== message)
  const taken = takes === undefined ? undefined : [takes, message] as const
  const run = { ...newRun, id, by, isStep, taken, before: { isSettled, status, thread, turn } }
  return became({ ...speaking, isNested, inbox, run }, takes, "taken")
}

const call = (kind: Kind): Call => ({ kind, state: "asked", attempt: 0, by: -1, open: [], content: "" })

/** A message that comes while no run is open is refused, where it is for that run alone. */
const submitted = (state: State): State => state.run === undefined ? refused(state) : state

const emptyTurn: Turn = { isEarlier: false, isReplied: false, calls: {}, behind: [] }

/** The state after a happening. */
export const after = (state: State, happening: Happening): State => {
  const { run, turn } = state
  switch (happening.what) {
    case "opened":
      return { ...state, thread: happening.thread, turn: undefined, status: happening.status }
    case "submitted":
      return submitted(became({ ...state, inbox: [...state.inbox, happening.message] }, happening.message[0], "queued"))
    case "withdrawn":
      return resolved(state, happening.message, "taken back")
    case "stop": {
      if (run?.id !== happening.run) return state
      const { path, stop } = happening
      const stopped = path === undefined
        ? { ...run, stop }
        : { ...run, callStops: [...run.callStops, [stop, path] as const] }
      return became({ ...state, run: stopped }, stop, "taken")
    }
    case "prepared": {
      const { delivered, says, step } = happening
      const fate = `delivered ${run?.id} ${step}`
      const ready = delivered.reduce((state, id) => resolved(state, id, fate), state)
      const asking = { ...ready, run: run && { ...run, closing: happening.closing ?? run.closing } }
      return said(asking.turn?.isEarlier === false ? { ...asking, turn: undefined } : asking, says)
    }
    case "run":
      return began(state, happening)
    case "reply": {
      const ready = spoken(state)
      const early = ready.turn?.isReplied === false ? ready.turn.calls : {}
      const calls = happening.calls.map(([id, kind]) => [id, early[id] ?? call(kind)] as const)
      return { ...ready, turn: { ...emptyTurn, isReplied: true, calls: Object.fromEntries(calls) } }
    }
    case "start": {
      const { attempt, by, early, id } = happening
      const ready = early === undefined || turn?.isReplied === false ? state : spoken(state)
      const own = ready.turn ?? emptyTurn
      const known = own.calls[id] ?? call(early ?? "report")
      const with_ = { ...ready, turn: { ...own, calls: { ...own.calls, [id]: known } } }
      return { ...withCall(with_, id, { state: "started", attempt, by }), run: run && { ...run, hasStarted: true } }
    }
    case "again":
      return withCall(state, happening.id, { state: turn?.isEarlier === true ? "granted" : "asked" })
    case "end":
      return whole(withCall(state, happening.id, answered(happening.content)))
    case "wait":
      return withCall(state, happening.id, { state: "waiting", open: happening.open })
    case "settle":
      if (run === undefined) return settled(state, happening.id, happening.verdict)
      return { ...state, run: { ...run, settlements: [...run.settlements, [happening.id, happening.verdict]] } }
    case "step": {
      const { broken, introduced, says } = happening
      const ready = spoken(introduced.length === 0 ? state : { ...state, thread: [...state.thread, ...introduced] })
      const done = broken !== undefined
        ? said({ ...ready, turn: undefined }, broken)
        : ready.turn === undefined
        ? said(ready, [`assistant ${says}`])
        : callsOf(ready).some(([, call]) => isOpen(call))
        ? ready
        : { ...ready, thread: threadOf(ready), turn: undefined }
      const due = state.inbox.flatMap(([id, , mode]) => mode === "next" ? [] : [id])
      return { ...done, run: run && { ...run, steps: run.steps + 1, closing: happening.closing ?? run.closing, due } }
    }
    case "ended":
      return run === undefined ? state : ended(state, run, happening)
  }
}
