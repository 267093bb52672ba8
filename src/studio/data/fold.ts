/**
 * Folds a run's public events into Studio's picture of it: model turns, calls with their times, and runs inside calls.
 * The same fold reads events that are live, from a journal, or from a recording. It changes the run in place, and each
 * event costs the same however many came before: readers compare `version`.
 */
import type * as Event from "../../Event.ts"

/**
 * Call state: `asked` until the call waits or starts, `waiting` for its turn, `running` in its handler, `asks` while it
 * waits for an answer from outside, and `done`, `failed`, `cancelled` or `denied` from its answer on.
 */
export type State = "asked" | "waiting" | "running" | "asks" | "done" | "failed" | "cancelled" | "denied"

/** A decision about a waiting call. */
export type Decision = "approved" | "denied" | "answered" | "expired"

/** A call's wait for its turn. Times are milliseconds since the run started. */
export interface Wait {
  /** `"key"`, `"permit"` or `"exclusive"`, as in `ToolQueued`. */
  readonly reason: string
  /** Permit name. Absent if not published. */
  readonly key?: string
  /** Paths of the calls ahead. */
  readonly behind: ReadonlyArray<string>
  /** `true` if another run held the awaited place or permit. */
  readonly isElsewhere: boolean
  readonly from: number
  to?: number
}

/** One start of a handler. A call has several if its run, or its nested run, was resumed. */
interface Attempt {
  readonly from: number
  to?: number
}

/** A call, by its path. Times are milliseconds since the run started. */
export interface Call {
  /** Call path: the ids leading there, joined by `/`, as in suspension ids. */
  readonly path: string
  readonly id: string
  readonly name: string
  /** Path of the call whose handler runs the asking model, or `""` for the run itself. */
  readonly owner: string
  /** Index of the asking turn, or -1 for a call from an earlier run. */
  readonly turn: number
  /** Time the call was complete in the reply; before that, the time the model began the call. */
  asked: number
  /** The same time. Absent until the call is complete. For a call decided without a start, the end of the reply. */
  ready?: number
  readonly waits: Array<Wait>
  /** First start time. */
  started?: number
  /** Last end time. */
  ended?: number
  readonly attempts: Array<Attempt>
  state: State
  /** `true` if it started before the end of its reply. */
  isEarly: boolean
  /** `true` if it runs alone. */
  isAlone: boolean
  /** Paths of calls whose waits show this call running alone. */
  readonly aloneBy: Set<string>
  /** `true` if the provider runs the call itself. */
  isProviders: boolean
  /** Progress times. */
  readonly notches: Array<number>
  /** Latest progress. */
  progress?: unknown
  /** Arguments received so far, as text. */
  argumentsText: string
  /** Arguments. Absent if not published. */
  arguments?: unknown
  /** The model's arguments, if an approval changed them. */
  original?: unknown
  /** Problem with the arguments. */
  argumentsLost?: { readonly reason: string; readonly text?: string }
  /** Answer for the model: text or parts. Absent if not published. */
  content?: unknown
  /** Complete answer length in characters, if cut. */
  originalLength?: number
  /** Error reason in the answer. */
  code?: string
  /** Person denying or stopping the call. */
  by?: string
  /** Reason for the denial. */
  detail?: string
  /** `true` if it ended the run. */
  isHalt: boolean
  /** Stop time, if only this call was stopped. */
  stopAt?: number
  /** Running time in milliseconds when the run ended without the call. */
  abandoned?: number
  /** Awaited answer. Absent unless the state is `asks`. */
  suspension?: Event.PublicSuspension
  /** Decision about the call, while its run waits for others. */
  decided?: Decision
  /** Nested run usage. */
  usage?: Usage
  /** Nested run outcome. */
  outcome?: Event.PublicOutcome
}

/** Token counts, and cost if published by the server. */
export type Usage = { readonly [name: string]: number | string }

/** A run's spending, if under a budget and published by the server. */
export type Spent = NonNullable<Extract<Told, { readonly _tag: "ChatCompleted" }>["spent"]>

/** One model request. A turn has several if replies broke. */
export interface Request {
  readonly from: number
  /** First byte time or, without a request event, first piece time. */
  first?: number
  to?: number
  model?: string
  provider?: string
  /** Error breaking its reply. */
  error?: Event.PublicError
  /** Attempts failing before the reply began. */
  readonly retries: Array<{ readonly at: number; readonly code: string; readonly afterMillis: number }>
}

/** A reply piece, in the order in which the model began the pieces. */
type Part =
  | { readonly type: "text" | "reasoning"; text: string }
  | { readonly type: "call"; readonly path: string }

/** A model turn: one step, in the run or in a nested run. */
export interface Turn {
  readonly owner: string
  readonly index: number
  readonly from: number
  /** First byte time of the last request. */
  first?: number
  /** End time of the reply. */
  to?: number
  /** End time of the step. */
  ended?: number
  readonly requests: Array<Request>
  text: string
  reasoning: string
  parts: Array<Part>
  /** Its call paths. */
  calls: Array<string>
  finishReason?: string
  usage?: Usage
  /** Error breaking the reply. */
  error?: Event.PublicError
  /** `true` while its calls are in telling order rather than completion order. */
  isLate?: boolean
}

/** An answer to an earlier run's call, at the beginning of this run. */
export interface Settled extends Omit<Answered, "isError"> {
  readonly path: string
  readonly at: number
  readonly state: State
  /** Arguments the call ran with. */
  readonly arguments?: unknown
}

/** Call counts. */
export interface Counts {
  early: number
  failed: number
  denied: number
  cancelled: number
  asks: number
  running: number
  /** Most calls running at once. */
  most: number
}

/** A message sent into the run. */
export interface Sent {
  readonly id: string
  readonly content: unknown
  /** Index of the turn whose request contains the message. Absent if refused. */
  readonly turn?: number
  /** Reason for its refusal. */
  readonly reason?: string
}

interface Used {
  readonly usage?: Usage
  readonly nested?: Usage
  readonly total?: Usage
}

/** A run. Times are milliseconds since `startedAt`. */
export interface Run {
  readonly id: string
  /** First event time, in milliseconds since 1970. Absent while no event had a time. */
  startedAt?: number
  /** Last event time. */
  now: number
  /** Time the run ended. */
  end?: number
  /** Stop request time. */
  stopAt?: number
  /** Person stopping the run. */
  stoppedBy?: string
  /** Stops of single calls, by path. In a journal, a nested call comes after its stop. */
  readonly stops: Map<string, { readonly at: number; readonly by: string | undefined }>
  /** Resumption times. */
  readonly resumed: Array<number>
  readonly turns: Array<Turn>
  /** Calls by path, in the order requested. */
  readonly calls: Map<string, Call>
  /** The same calls. */
  list: Array<Call>
  readonly settled: Array<Settled>
  /** Messages sent into the run, in order of delivery or refusal. */
  readonly sent: Array<Sent>
  outcome?: Event.PublicOutcome
  error?: Event.PublicError
  /** Waiting calls, in call order. */
  suspensions: ReadonlyArray<Event.PublicSuspension>
  abandoned: ReadonlyArray<Event.PublicAbandoned>
  /** Usage so far, without nested runs. */
  usage?: Usage
  /** Usage of nested runs so far. */
  nested?: Usage
  /** Usage of the run so far, including nested runs. */
  total?: Usage
  /** Amount spent by the run, and its remaining budget. */
  spent?: Spent
  /** Final usages in the continued runs. */
  before?: Used
  /** Typed answer so far. */
  output?: { readonly value: unknown; readonly isWhole: boolean }
  readonly counts: Counts
  /** Number of processed events and other changes. */
  version: number
  /** Counts changes to earlier parts: discarded replies, restarted calls, and calls with another completion time. */
  revision: number
  /** Each owner's last turn. */
  readonly last: Map<string, Turn>
  /** Calls running alone, and their tool names, as far as revealed by waits. */
  readonly alone: { readonly calls: Array<Call>; readonly names: Set<string> }
  /** Each owner's unanswered calls. */
  readonly open: Map<string, Set<Call>>
}

/** Returns a run without events. */
export const make = (id: string, startedAt?: number): Run => ({
  id,
  ...(startedAt === undefined ? {} : { startedAt }),
  now: 0,
  stops: new Map(),
  resumed: [],
  turns: [],
  calls: new Map(),
  list: [],
  settled: [],
  sent: [],
  suspensions: [],
  abandoned: [],
  counts: { early: 0, failed: 0, denied: 0, cancelled: 0, asks: 0, running: 0, most: 0 },
  version: 0,
  revision: 0,
  last: new Map(),
  alone: { calls: [], names: new Set() },
  open: new Map()
})

/** A run event as told by a server. */
export type Told = Event.PublicEvent

type Waited = NonNullable<Extract<Told, { readonly _tag: "ToolExecutionStarted" }>["waited"]>

const codes: { readonly [mark: string]: string } = { "%": "%25", "/": "%2F", "~": "%7E" }

/** Encodes an id for a path. */
const written = (id: string): string => id.replace(/[%/~]/g, (mark) => codes[mark] ?? mark)

/** Returns the path of a call. */
export const pathOf = (owner: string, id: string): string => owner === "" ? written(id) : `${owner}/${written(id)}`

/** Returns a suspended call's path: the suspension id without the run. */
export const suspended = (suspension: { readonly id: string }): string =>
  suspension.id.slice(suspension.id.indexOf("~") + 1)

const sumOf = (left: Usage | undefined, right: Usage): Usage => {
  if (left === undefined) return right
  const sum: { [name: string]: number | string } = { ...left }
  for (const [name, count] of Object.entries(right)) {
    const before = sum[name]
    sum[name] = typeof before === "number" && typeof count === "number" ? before + count : count
  }
  return sum
}

/** States with an answer. */
const answered: ReadonlySet<State> = new Set(["done", "failed", "cancelled", "denied"])

const counted = {
  failed: "failed",
  denied: "denied",
  cancelled: "cancelled",
  asks: "asks",
  running: "running"
} as const

/** Sets a call's state, and updates the counts. */
const turnTo = (run: Run, call: Call, state: State): void => {
  const { counts } = run
  if (call.state === state) return
  if (call.state in counted) counts[counted[call.state as keyof typeof counted]]--
  if (state in counted) counts[counted[state as keyof typeof counted]]++
  counts.most = Math.max(counts.most, counts.running)
  call.state = state
  if (answered.has(state)) run.open.get(call.owner)?.delete(call)
}

/** Ends a call's open wait and open attempt. */
const close = (call: Call, at: number): void => {
  const wait = call.waits.at(-1)
  if (wait !== undefined) wait.to ??= at
  const attempt = call.attempts.at(-1)
  if (attempt === undefined || attempt.to !== undefined) return
  attempt.to = at
  call.ended = at
}

/** Notes that a call was stopped alone. */
const stopCall = (call: Call, { at, by }: { readonly at: number; readonly by: string | undefined }): void => {
  call.stopAt = at
  if (by !== undefined) call.by = by
}

const begin = (run: Run, owner: string, id: string, name: string, turn: Turn | undefined, asked: number): Call => {
  const path = pathOf(owner, id)
  const call: Call = {
    path,
    id,
    name,
    owner,
    turn: turn?.index ?? -1,
    asked,
    waits: [],
    attempts: [],
    state: "asked",
    isEarly: false,
    isAlone: false,
    aloneBy: new Set(),
    isProviders: false,
    notches: [],
    argumentsText: "",
    isHalt: false
  }
  run.calls.set(path, call)
  run.list.push(call)
  const stop = run.stops.get(path)
  if (stop !== undefined && asked <= stop.at) stopCall(call, stop)
  const open = run.open.get(owner)
  if (open === undefined) run.open.set(owner, new Set([call]))
  else open.add(call)
  turn?.calls.push(path)
  turn?.parts.push({ type: "call", path })
  return call
}

const openTurn = (run: Run, owner: string, from: number): Turn => {
  const index = (run.last.get(owner)?.index ?? -1) + 1
  const turn: Turn = { owner, index, from, requests: [], text: "", reasoning: "", parts: [], calls: [] }
  run.turns.push(turn)
  run.last.set(owner, turn)
  return turn
}

/** Returns a turn's open request. */
const requestOf = (turn: Turn | undefined): Request | undefined => {
  const request = turn?.requests.at(-1)
  return request?.to === undefined ? request : undefined
}

/** Ends a turn's open request. */
const endRequest = (turn: Turn, at: number, error: Event.PublicError | undefined): void => {
  const request = requestOf(turn)
  if (request === undefined) return
  request.to = at
  if (error !== undefined) request.error = error
}

/** Sorts a turn's calls into the order requested by the model, keeping their places among the pieces. */
const sortCalls = (run: Run, turn: Turn): void => {
  if (turn.isLate !== true) return
  delete turn.isLate
  const askedAt = (path: string) => run.calls.get(path)?.asked ?? 0
  turn.calls.sort((left, right) => askedAt(left) - askedAt(right))
  const paths = turn.calls.values()
  turn.parts = turn.parts.map((part) => {
    const next = part.type === "call" ? paths.next().value : undefined
    return next === undefined ? part : { type: "call", path: next }
  })
}

/** Discards a turn's reply: its text, and its calls not yet started. */
const discard = (run: Run, turn: Turn, at: number, error: Event.PublicError | undefined): void => {
  endRequest(turn, at, error)
  const kept = turn.calls.filter((path) => run.calls.get(path)?.started !== undefined)
  for (const path of turn.calls) {
    const call = run.calls.get(path)
    if (call === undefined || call.started !== undefined) continue
    turnTo(run, call, "cancelled")
    run.counts.cancelled--
    run.calls.delete(path)
  }
  if (kept.length < turn.calls.length) run.list = Array.from(run.calls.values())
  run.revision++
  turn.calls = kept
  turn.parts = kept.map((path) => ({ type: "call", path }))
  turn.text = turn.reasoning = ""
  delete turn.first
  delete turn.to
  delete turn.error
}

/**
 * Appends text to the last piece of its kind. A reply's first text comes before the calls, although a journal tells
 * early calls before the model's text.
 */
const say = (turn: Turn, type: "text" | "reasoning", text: string, isWhole = false): void => {
  if (text === "") return
  const isFirst = isWhole && turn[type] === ""
  turn[type] += text
  const last = turn.parts.at(-1)
  if (isFirst && last?.type === "call") {
    const place = turn.parts.findIndex((part) => part.type === "call")
    turn.parts.splice(place, 0, { type, text })
  } else if (last !== undefined && last.type === type) last.text += text
  else turn.parts.push({ type, text })
}

/** Takes the complete text of a reply, after possible pieces. */
const tellWhole = (turn: Turn, text: string): void => {
  if (text.startsWith(turn.text)) return say(turn, "text", text.slice(turn.text.length), true)
  turn.text = ""
  turn.parts = turn.parts.filter(({ type }) => type !== "text")
  say(turn, "text", text, true)
}

/** Notes from another call's wait that a call runs alone, and that all calls to its tool do. */
const markAlone = (run: Run, call: Call, by: Call): void => {
  call.aloneBy.add(by.path)
  if (call.isAlone) return
  call.isAlone = true
  run.alone.calls.push(call)
  run.alone.names.add(call.name)
}

/** Tells whether two calls ran concurrently. Calls not yet ended run until now. */
const ranAtOnce = (one: Call, other: Call): boolean =>
  one !== other && one.started !== undefined && other.started !== undefined
  && one.started < (other.ended ?? Infinity) && other.started < (one.ended ?? Infinity)

/** Neighboring calls to check for concurrency, in each direction. */
const neighbors = 20

/** Tells whether a call ran beside another requested shortly before or after. */
const hasRunBeside = (run: Run, call: Call): boolean => {
  const calls = run.turns.findLast(({ index, owner }) => owner === call.owner && index === call.turn)?.calls ?? []
  const at = calls.lastIndexOf(call.path)
  return calls.slice(Math.max(0, at - neighbors), at + neighbors).some((path) => {
    const other = run.calls.get(path)
    return other !== undefined && ranAtOnce(call, other)
  })
}

/**
 * Notes which calls run alone. An exclusive wait is a wait for a call running alone, or until the call may run alone
 * itself: an unstarted call holds up only calls not permitted beside it, and concurrent calls are not alone.
 */
const noteAlone = (run: Run, call: Call, wait: Wait): void => {
  if (wait.reason !== "exclusive") return
  const before = wait.behind.flatMap((path) => run.calls.get(path) ?? [])
  for (const other of before) if ((other.started ?? Infinity) > wait.from) markAlone(run, other, call)
  const [one, ...others] = before.filter(({ started = Infinity }) => started <= wait.from)
  if (one === undefined) return
  if (one.isAlone) return markAlone(run, one, call)
  const isBeside = others.some((other) => ranAtOnce(one, other)) || hasRunBeside(run, one)
  const isOther = isBeside || run.alone.names.has(call.name) && !run.alone.names.has(one.name)
  markAlone(run, isOther ? call : one, call)
}

/** Sets the time at which a call was complete. */
const standAt = (run: Run, call: Call, at: number): void => {
  call.ready = at
  if (call.asked === at) return
  call.asked = at
  run.revision++
  const turn = turnOf(run, call)
  if (turn === undefined) return
  turn.isLate = true
  if (turn.ended !== undefined) sortCalls(run, turn)
}

/** Unmarks calls as running alone if no wait shows it any more. */
const takeBackAlone = (run: Run): void => {
  const { calls, names } = run.alone
  if (!calls.some(({ aloneBy }) => aloneBy.size === 0)) return
  for (const call of calls) call.isAlone = call.aloneBy.size > 0
  calls.splice(0, calls.length, ...calls.filter(({ isAlone }) => isAlone))
  names.clear()
  for (const { name } of calls) names.add(name)
}

/**
 * Removes details missing from journals for a call decided before its start: its waits, and its completion time within
 * the reply.
 */
const forgetUnstarted = (run: Run, call: Call): void => {
  if (call.started !== undefined) return
  for (const one of run.alone.calls) one.aloneBy.delete(call.path)
  takeBackAlone(run)
  call.waits.splice(0)
  const to = turnOf(run, call)?.to
  if (to !== undefined && call.ready !== undefined) standAt(run, call, to)
}

/** Returns the turn with a call, if still its owner's last turn. */
const turnOf = (run: Run, { owner, turn }: Call): Turn | undefined => {
  const last = run.last.get(owner)
  return last?.index === turn ? last : undefined
}

/** Minimum time in milliseconds between an early start and the reply's end: the order of closer events is chance. */
const earliest = 5

/** Ends a turn's reply, and undoes details only a continuing reply could tell. */
const endReply = (run: Run, turn: Turn, at: number): void => {
  if (turn.to !== undefined) return
  turn.to = at
  for (const path of turn.calls) {
    const call = run.calls.get(path)
    if (call === undefined) continue
    if (call.isEarly && at - (call.started ?? at) < earliest) {
      call.isEarly = false
      run.counts.early--
    }
    if (answered.has(call.state)) forgetUnstarted(run, call)
  }
}

const suspend = (run: Run, call: Call, suspension: Event.PublicSuspension | undefined, at: number): void => {
  close(call, at)
  forgetUnstarted(run, call)
  turnTo(run, call, "asks")
  if (suspension === undefined) return
  call.suspension = suspension
  if (suspension.toolCall.arguments !== undefined) call.arguments ??= suspension.toolCall.arguments
}

/** Suspends the calls named by suspensions, possibly inside the call with the event. */
const suspendAll = (run: Run, suspensions: ReadonlyArray<Event.PublicSuspension>, at: number): void => {
  for (const suspension of suspensions) {
    const path = suspended(suspension)
    const inner = run.calls.get(path)
    if (inner !== undefined) suspend(run, inner, suspension, at)
    const owner = path.slice(0, Math.max(0, path.lastIndexOf("/")))
    for (let around = owner; around !== ""; around = around.slice(0, Math.max(0, around.lastIndexOf("/")))) {
      const call = run.calls.get(around)
      if (call !== undefined) suspend(run, call, undefined, at)
    }
  }
}

interface Answered {
  readonly content?: unknown
  readonly isError?: boolean
  readonly code?: string
  readonly originalLength?: number
  readonly by?: string
  readonly detail?: string
}

/** Returns the told parts of an answer. */
const toldOf = ({ by, code, content, detail, originalLength }: Answered): Omit<Answered, "isError"> => ({
  ...(content === undefined ? {} : { content }),
  ...(code === undefined ? {} : { code }),
  ...(by === undefined ? {} : { by }),
  ...(detail === undefined ? {} : { detail }),
  ...(originalLength === undefined ? {} : { originalLength })
})

const stateOf = ({ code, isError }: Answered): State => {
  if (code === "denied") return "denied"
  if (code === "cancelled") return "cancelled"
  return isError === true ? "failed" : "done"
}

/** Ends the calls inside an owner's ended run. Their own answers did not arrive. */
const closeWithin = (run: Run, owner: string, state: State, at: number): void => {
  for (const call of run.open.get(owner) ?? []) {
    closeWithin(run, call.path, state, at)
    close(call, at)
    delete call.suspension
    turnTo(run, call, state)
  }
}

const answer = (run: Run, call: Call, told: Answered, at: number): void => {
  close(call, at)
  call.ended ??= at
  forgetUnstarted(run, call)
  // A call finishing nevertheless was not stopped.
  if (stateOf(told) === "done") delete call.by
  Object.assign(call, toldOf(told))
  delete call.suspension
  turnTo(run, call, stateOf(told))
  closeWithin(run, call.path, call.state === "done" ? "done" : "cancelled", at)
}

/** Returns a value with object members sorted by name. */
const ordered = (value: unknown): unknown =>
  typeof value !== "object" || value === null
    ? value
    : Array.isArray(value)
    ? value.map(ordered)
    : Object.entries(value).sort(([left], [right]) => left < right ? -1 : 1).map((
      [name, item]
    ) => [name, ordered(item)])

const isSame = (left: unknown, right: unknown): boolean =>
  JSON.stringify(ordered(left)) === JSON.stringify(ordered(right))

/** Takes the arguments a call runs with, keeping the model's if different. */
const runWith = (call: Call, ran: unknown): void => {
  if (ran === undefined) return
  if (call.arguments !== undefined && !isSame(call.arguments, ran)) call.original ??= call.arguments
  call.arguments = ran
}

/** Marks a waiting call as decided, until a run has the decision. */
export const decide = (run: Run, path: string, decision: Decision): void => {
  const call = run.calls.get(path)
  if (call === undefined || call.state !== "asks" || call.decided === decision) return
  call.decided = decision
  run.version++
}

/**
 * Marks an earlier run's call as answered or carried on by a later run. Returns `false` unless the earlier run has such
 * a call, still waiting for an answer or already carried on.
 */
export const settle = (earlier: Run, settled: Settled): boolean => {
  const call = earlier.calls.get(settled.path)
  if (call === undefined) return false
  if (call.state !== "asks" && (call.state !== "running" || earlier.end === undefined)) return false
  const { arguments: ran, at: _at, path: _path, state, ...told } = settled
  turnTo(earlier, call, state)
  Object.assign(call, told)
  runWith(call, ran)
  delete call.suspension
  delete call.decided
  earlier.suspensions = earlier.suspensions.filter((suspension) => suspended(suspension) !== settled.path)
  earlier.version++
  return true
}

/** Returns the earlier run's version of a call carried on here. */
export const carriedOn = (call: Call): Settled | undefined => {
  const { ended, owner, path, state, turn } = call
  return owner !== "" || turn >= 0 || state === "asks" || state === "asked"
    ? undefined
    : {
      path,
      at: ended ?? 0,
      state: state === "waiting" ? "running" : state,
      ...toldOf(call),
      ...(call.arguments === undefined ? {} : { arguments: call.arguments })
    }
}

/** Returns an event's time in the run: 0 at the earliest, and the run's latest time for an event without a time. */
const timeOf = (run: Run, at: number | undefined): number => {
  if (typeof at !== "number") return run.now
  run.startedAt ??= at
  return Math.max(0, at - run.startedAt)
}

const waitsOf = (call: Call, owner: string, waited: Waited, started: number): Array<Wait> => {
  let to = started
  return waited.toReversed().map(({ behind = [], elsewhere, key, millis, reason }) => {
    const from = to - millis
    const wait: Wait = {
      reason,
      ...(key === undefined ? {} : { key }),
      behind: behind.map((id) => pathOf(owner, id)),
      isElsewhere: elsewhere === true,
      from: Math.max(from, Math.min(call.ready ?? call.asked, to)),
      to
    }
    to = wait.from
    return wait
  }).toReversed()
}

/** Subtracts a usage from a sum. */
const without = (sum: Usage, part: Usage): Usage => {
  const rest: { [name: string]: number | string } = { ...sum }
  for (const [name, count] of Object.entries(part)) {
    const before = rest[name]
    if (typeof before === "number" && typeof count === "number") rest[name] = before - count
  }
  return rest
}

/** Forgets the runs inside the owner's call, because all their events follow. */
const forget = (run: Run, owner: string): void => {
  const isWithin = (other: string): boolean => other === owner || other.startsWith(`${owner}/`)
  if (!run.last.has(owner)) return
  for (const turn of run.turns) {
    if (!isWithin(turn.owner) || turn.usage === undefined) continue
    if (run.nested !== undefined) run.nested = without(run.nested, turn.usage)
    if (run.total !== undefined) run.total = without(run.total, turn.usage)
  }
  const turns = run.turns.filter((turn) => !isWithin(turn.owner))
  run.turns.splice(0, run.turns.length, ...turns)
  for (const call of Array.from(run.calls.values())) {
    if (!isWithin(call.owner)) continue
    if (call.state in counted) run.counts[counted[call.state as keyof typeof counted]]--
    if (call.isEarly) run.counts.early--
    run.calls.delete(call.path)
  }
  for (const other of Array.from(run.last.keys())) if (isWithin(other)) run.last.delete(other)
  for (const other of Array.from(run.open.keys())) if (isWithin(other)) run.open.delete(other)
  const outer = run.calls.get(owner)
  if (outer === undefined) return
  delete outer.usage
  delete outer.outcome
}

const usedBy = ({ nested, total, usage }: Run): Used => ({
  ...(usage === undefined ? {} : { usage }),
  ...(nested === undefined ? {} : { nested }),
  ...(total === undefined ? {} : { total })
})

/** Takes an event from the run, or from the run nested in the call with path `owner`. */
const takeOf = (run: Run, event: Told, owner: string, outerAt: number | undefined): void => {
  const at = event.at ?? outerAt
  const now = timeOf(run, at)
  const isReplayed = event.replayed === true
  const turn = run.last.get(owner)
  const isOpen = turn !== undefined && turn.ended === undefined
  const named = "toolCallId" in event ? event.toolCallId : "id" in event ? event.id : undefined
  const call = typeof named === "string" ? run.calls.get(pathOf(owner, named)) : undefined
  switch (event._tag) {
    case "RunStarted":
      if (owner !== "") return forget(run, owner)
      if (run.version === 1) return
      // Another run continues this run after answers.
      if (event.runId !== run.id && run.end !== undefined) run.before = usedBy(run)
      else run.resumed.push(now)
      delete run.end
      delete run.outcome
      for (const calls of run.open.values()) {
        for (const open of calls) {
          close(open, now)
          if (open.state === "running" || open.state === "waiting") turnTo(run, open, "asked")
        }
      }
      return
    case "RequestStarted": {
      const next = isOpen ? turn : openTurn(run, owner, now)
      // The end of its process cut off an earlier reply.
      if (requestOf(next) !== undefined || next.parts.length > 0) discard(run, next, now, undefined)
      const { model, provider } = event
      next.requests.push({
        from: now,
        retries: [],
        ...(model === undefined ? {} : { model }),
        ...(provider === undefined ? {} : { provider })
      })
      return
    }
    case "RequestRetried":
      requestOf(turn)?.retries.push({ at: now, code: event.code, afterMillis: event.afterMillis })
      return
    case "MessageStarted": {
      if (isOpen && isReplayed && turn.to !== undefined) return
      const request = isOpen ? requestOf(turn) : undefined
      if (isOpen && request !== undefined && request.first === undefined && turn.parts.length === 0) {
        turn.first = request.first = now
        return
      }
      const next = isOpen ? turn : openTurn(run, owner, now)
      if (next.parts.length > 0 || request !== undefined) discard(run, next, now, undefined)
      next.requests.push({ from: now, retries: [] })
      return
    }
    case "TextDelta":
    case "ReasoningDelta":
    case "TextCompleted":
      if (!isOpen || isReplayed && turn.to !== undefined) return
      hear(turn, now)
      if (event._tag === "TextCompleted") tellWhole(turn, event.text)
      else if (event._tag === "TextDelta") say(turn, "text", event.delta)
      // A journal has the reasoning as one piece.
      else say(turn, "reasoning", event.delta, true)
      return
    case "ToolCallStarted":
      if (call !== undefined) return
      if (turn !== undefined) hear(turn, now)
      begin(run, owner, event.id, event.name, isOpen ? turn : undefined, now)
      return
    case "ToolCallDelta":
      if (call !== undefined) call.argumentsText += event.argumentsDelta
      return
    case "ToolCallCompleted": {
      const known = call ?? begin(run, owner, event.id, event.name, isOpen ? turn : undefined, now)
      if (known.ready === undefined) standAt(run, known, now)
      if (event.arguments !== undefined) known.arguments = event.arguments
      if (event.argumentsLost !== undefined) known.argumentsLost = event.argumentsLost
      known.argumentsText = ""
      if (event.providerExecuted === true) {
        known.isProviders = true
        turnTo(run, known, "done")
      }
      return
    }
    case "ToolQueued": {
      const known = call ?? begin(run, owner, event.id, event.name, undefined, now)
      const { behind = [], elsewhere, key, reason } = event
      const wait: Wait = {
        reason,
        ...(key === undefined ? {} : { key }),
        behind: behind.map((id) => pathOf(owner, id)),
        isElsewhere: elsewhere === true,
        from: now
      }
      noteAlone(run, known, wait)
      known.waits.push(wait)
      turnTo(run, known, "waiting")
      return
    }
    case "ToolExecutionStarted": {
      if (isReplayed && call?.started !== undefined) return
      // A call from an earlier turn is announced only by its start, after its wait.
      const waited = event.waited?.reduce((sum, { millis }) => sum + millis, 0) ?? 0
      const since = Math.max(0, now - waited)
      const known = call ?? begin(run, owner, event.id, event.name, undefined, since)
      close(known, now)
      runWith(known, event.arguments)
      // A journal tells a reply's calls after the reply has ended.
      if (event.asked !== undefined) {
        standAt(run, known, call === undefined ? since : Math.min(timeOf(run, event.asked), now))
      }
      if (event.waited !== undefined && known.started === undefined) {
        known.waits.splice(0, known.waits.length, ...waitsOf(known, owner, event.waited, now))
        for (const wait of known.waits) noteAlone(run, known, wait)
      }
      if (known.started === undefined && isOpen && turn.to === undefined && known.turn === turn.index) {
        known.isEarly = true
        run.counts.early++
      }
      known.started ??= now
      if (known.ended !== undefined) run.revision++
      delete known.ended
      delete known.suspension
      delete known.decided
      // A repeated start adds no attempt: a handler that starts again has its own start.
      if (!isReplayed) known.attempts.push({ from: now })
      turnTo(run, known, "running")
      return
    }
    case "ToolProgress":
      if (event.nested !== undefined) return takeOf(run, event.nested, pathOf(owner, event.id), at)
      if (call === undefined) return
      call.progress = event.progress
      call.notches.push(now)
      return
    case "ToolExecutionCompleted":
      if (call !== undefined && call.attempts.at(-1)?.to === undefined) close(call, now)
      return
    case "ToolResultEncoded":
      if (call !== undefined) {
        if (!isReplayed || call.content === undefined) answer(run, call, event, now)
      } else if (owner === "") {
        run.settled.push({ path: pathOf(owner, event.id), at: now, state: stateOf(event), ...toldOf(event) })
      }
      return
    case "ToolHalt":
      if (call === undefined) return
      answer(run, call, event, now)
      call.isHalt = true
      return
    case "ToolApprovalRequested":
    case "AskUserRequested":
    case "ToolSuspended":
      suspend(run, call ?? begin(run, owner, event.toolCallId, event.toolName, undefined, now), undefined, now)
      return suspendAll(run, event.suspensions, now)
    case "MessageCompleted": {
      if (!isOpen) return
      endRequest(turn, now, undefined)
      endReply(run, turn, now)
      if (event.finishReason !== undefined) turn.finishReason = event.finishReason
      return
    }
    case "Error":
      if (!isOpen) return
      endReply(run, turn, now)
      turn.error = event.error
      endRequest(turn, now, event.error)
      return
    case "StepReset":
      if (isOpen) discard(run, turn, now, event.error)
      return
    case "ModelSwitched":
      return
    case "MessageDelivered":
    case "MessageRefused": {
      // A message has one fate, possibly repeated in a stream.
      if (owner !== "" || run.sent.some(({ id }) => id === event.id)) return
      run.sent.push({
        id: event.id,
        content: event.content,
        ...(event._tag === "MessageDelivered" ? { turn: event.stepIndex } : { reason: event.reason })
      })
      return
    }
    case "StepCompleted": {
      if (!isOpen) return
      endReply(run, turn, now)
      turn.ended = now
      sortCalls(run, turn)
      if (event.finishReason !== undefined) turn.finishReason = event.finishReason
      if (event.usage === undefined) return
      turn.usage = event.usage
      if (owner === "") run.usage = sumOf(run.usage, event.usage)
      else run.nested = sumOf(run.nested, event.usage)
      run.total = sumOf(run.total, event.usage)
      const outer = run.calls.get(owner)
      if (outer !== undefined) outer.usage = sumOf(outer.usage, event.usage)
      return
    }
    case "OutputPartial":
    case "OutputCompleted":
      if (owner === "") run.output = { value: event.value, isWhole: event._tag === "OutputCompleted" }
      return
    case "StopAccepted": {
      // The event contains the whole call path.
      if (event.call !== undefined) {
        const stop = { at: now, by: event.by }
        run.stops.set(event.call, stop)
        const stopped = run.calls.get(event.call)
        if (stopped !== undefined && !answered.has(stopped.state)) stopCall(stopped, stop)
        return
      }
      run.stopAt ??= now
      if (event.by !== undefined) run.stoppedBy ??= event.by
      return
    }
    case "ChatCompleted":
      return complete(run, event, owner, now)
  }
}

/** Notes the first piece of a reply without a request event. */
const hear = (turn: Turn, now: number): void => {
  const request = requestOf(turn)
  if (request === undefined || request.first !== undefined) return
  turn.first = request.first = now
}

/** Returns how many calls ran at once at most. A journal tells a nested run's events when its call ends. */
const mostOf = (run: Run): number => {
  const attempts = run.list.flatMap((call) => call.attempts)
  const starts = Float64Array.from(attempts, ({ from }) => from).sort()
  // A call ending immediately still ran.
  const ends = Float64Array.from(attempts, ({ from, to = Infinity }) => Math.max(to, from + 0.001)).sort()
  let [most, ended] = [0, 0]
  for (let started = 0; started < starts.length; started++) {
    while ((ends[ended] ?? Infinity) <= (starts[started] ?? 0)) ended++
    most = Math.max(most, started + 1 - ended)
  }
  return most
}

const complete = (
  run: Run,
  event: Extract<Told, { readonly _tag: "ChatCompleted" }>,
  owner: string,
  now: number
): void => {
  const { abandoned = [], nestedUsage, outcome, spent, suspensions = [], totalUsage, usage } = event
  const turn = run.last.get(owner)
  if (turn !== undefined) {
    endReply(run, turn, now)
    turn.ended ??= now
    sortCalls(run, turn)
    endRequest(turn, now, undefined)
  }
  if (owner !== "") {
    const outer = run.calls.get(owner)
    if (outer === undefined) return
    outer.outcome = outcome
    const total = totalUsage ?? usage
    if (total !== undefined) outer.usage = total
    return
  }
  run.end = now
  run.outcome = outcome
  if (outcome.error !== undefined) run.error = outcome.error
  const { before = {} } = run
  if (usage !== undefined) run.usage = sumOf(before.usage, usage)
  if (nestedUsage !== undefined) run.nested = sumOf(before.nested, nestedUsage)
  if (totalUsage !== undefined) run.total = sumOf(before.total, totalUsage)
  if (spent !== undefined) run.spent = spent
  run.suspensions = suspensions
  run.abandoned = abandoned
  suspendAll(run, suspensions, now)
  for (const { ageMillis, id, kind, path } of abandoned) {
    if (kind !== "handler") continue
    const ids = path ?? [id]
    const left = run.calls.get(ids.map(written).join("/")) ?? run.calls.get([...ids, id].map(written).join("/"))
    if (left !== undefined) left.abandoned = ageMillis
  }
  // A call that did not stop in time failed, unless its whole run was to stop.
  if (outcome._tag === "Cancelled") {
    for (const call of run.list) if (call.code === "abandoned") turnTo(run, call, "cancelled")
  }
  for (const call of run.open.get("") ?? []) {
    if (call.state !== "running" && call.state !== "waiting") continue
    close(call, now)
    turnTo(run, call, "cancelled")
    closeWithin(run, call.path, "cancelled", now)
  }
  run.counts.most = mostOf(run)
}

/** Takes an event of the run. */
export const take = (run: Run, event: Told): void => {
  run.version++
  takeOf(run, event, "", undefined)
  if (event.at !== undefined) run.now = Math.max(run.now, timeOf(run, event.at))
}
