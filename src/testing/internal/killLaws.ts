/**
 * Judges an attempt's log: which effects were repeated, which calls were unknown and how they were settled, and which
 * laws were broken. Name and arguments identify a call, since a recovery that forgot the run gives the same call
 * another id.
 */
import type * as Journal from "../../Journal.ts"
import type * as Message from "../../Message.ts"
import * as KillTurns from "./killTurns.ts"
import type { Line } from "./worldLog.ts"
import * as WorldLog from "./worldLog.ts"

/**
 * A law an attempt can break.
 *
 * - `"end"`: every process ends by itself, unless killed, and the program has a result.
 * - `"finished"`: a call with a recorded end does not run again.
 * - `"silent"`: an effect is repeated only if its call is recorded as started, without an end, and as started again
 *   under the same key with the next attempt; or if the reply making the call was lost with the process.
 * - `"untold"`: a call interrupted between its start and end is retried under its key, looked up, reported, asked
 *   about, or ends the run. It is never ignored.
 * - `"lost"`: every effect of the uninterrupted run happens, unless its call was unknown, or an unknown call ended the
 *   run.
 * - `"asked"`: a model is asked again only for a reply lost with the process.
 * - `"answer"`: the journal has no more final answers than in the uninterrupted run.
 * - `"journal"`: `Journal.check` finds no fault in any journal.
 * - `"result"`: the result equals the uninterrupted run's.
 * - `"repeatable"`: the uninterrupted program behaves identically each time. Otherwise nothing is killed.
 *
 * @category models
 */
export type Law =
  | "end"
  | "finished"
  | "silent"
  | "untold"
  | "lost"
  | "asked"
  | "answer"
  | "journal"
  | "result"
  | "repeatable"

/**
 * A broken law, and how it was broken.
 *
 * @category models
 */
export interface Violation {
  /** Broken law. */
  readonly law: Law
  /** Description of the finding. */
  readonly message: string
}

/**
 * A kill.
 *
 * @category models
 */
export interface Kill {
  /** Boundary number in its process, from 1. */
  readonly at: number
  /** Boundary name. */
  readonly name: string
  /**
   * Time until another process reached a boundary, in milliseconds. Undefined if no other process reached a boundary.
   */
  readonly takeoverMillis?: number
}

/**
 * An effect that happened once more than in the uninterrupted run.
 *
 * @category models
 */
export interface Repeat {
  /** Tool name. */
  readonly name: string
  /**
   * Reason for the repetition:
   *
   * - `"finished"`: its end was recorded and it ran nevertheless.
   * - `"unknown"`: it was recorded as started, and retried under its key.
   * - `"lostReply"`: the reply making the call was lost with the process.
   * - `"silent"`: nothing explains the repetition.
   */
  readonly why: "finished" | "unknown" | "lostReply" | "silent"
  /** `true` if its handler had already returned. */
  readonly hadReturned: boolean
}

/**
 * A call interrupted between its recorded start and recorded end, by a kill or because its process lost the session. It
 * may have had its effect.
 *
 * @category models
 */
export interface Unknown {
  /** Tool name. */
  readonly name: string
  /** Call id. */
  readonly id: string
  /**
   * Settlement: retried under its key, its outcome found, reported to the model as unknown, asked of a person, ended
   * with the run as failed, lost together with its reply, or ignored (`"none"`).
   */
  readonly settled: "retried" | "found" | "reported" | "asked" | "failed" | "lostReply" | "none"
}

/** Findings in a log. */
export interface Findings {
  readonly kills: ReadonlyArray<Kill>
  readonly repeats: ReadonlyArray<Repeat>
  readonly unknown: ReadonlyArray<Unknown>
  /** Names of calls whose effect is missing. */
  readonly missing: ReadonlyArray<string>
  readonly extraAsked: number
  readonly extraAnswers: number
  readonly violations: ReadonlyArray<Violation>
}

type Recorded = Extract<Line, { readonly _tag: "Recorded" }>

/** A recorded call start. */
interface Start {
  readonly name: string
  readonly what: string
  readonly id: string
  readonly key: string
  readonly attempt: number
  /** Process that appended it. */
  readonly pid: number
  readonly session: string
  readonly requestId: string
  /** Turn it belongs to. */
  readonly turn: string
  readonly index: number
  /**
   * End of the attempt. Its call was answered, waits, or waits for a verdict about its effect (`"inDoubt"`). `"again"`
   * grants another attempt, since this attempt failed or asked for input to the next. Undefined if no record shows the
   * end.
   */
  end?: "answered" | "waits" | "inDoubt" | "again"
  /** Number of its effects. */
  effects: number
}

/** Returns each record once, at its first occurrence in its journal, attributed to the appending process. */
const once = (lines: ReadonlyArray<Line>): ReadonlyArray<Line> => {
  const keyOf = ({ session, version }: Recorded): string => `${version} ${session}`
  const own = new Map(
    lines.flatMap((line) => line._tag === "Recorded" && line.isOwn ? [[keyOf(line), line.pid] as const] : [])
  )
  const seen = new Set<string>()
  return lines.flatMap((line): ReadonlyArray<Line> => {
    if (line._tag !== "Recorded") return [line]
    const key = keyOf(line)
    if (seen.has(key)) return []
    seen.add(key)
    const pid = own.get(key)
    return [pid === undefined ? line : { ...line, pid, isOwn: true }]
  })
}

const stepOf = (session: string, record: { readonly requestId: string; readonly stepIndex: number }): string =>
  `${session} ${record.requestId} ${record.stepIndex}`

const counted = (names: Iterable<string>): ReadonlyMap<string, number> => {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return counts
}

const effectsIn = (lines: ReadonlyArray<Line>): ReadonlyMap<string, number> =>
  counted(lines.flatMap((line) => line._tag === "Acted" ? line.what : []))

type Replied = Journal.StepCompleted | Journal.ReplyReceived

/** Returns the calls of a record's reply. A step does not repeat the reply of an earlier record. */
const callsOf = ({ response }: Replied): ReadonlyArray<Message.ToolCall> => response?.toolCalls ?? []

/** Counts journal turns without a call. A turn's calls are in an earlier record, or in its step. */
const answersIn = (lines: ReadonlyArray<Line>): number => {
  const withCalls = new Set<string>()
  let count = 0
  for (const line of lines) {
    if (line._tag !== "Recorded") continue
    const { record, session } = line
    if (record._tag !== "ReplyReceived" && record._tag !== "StepCompleted") continue
    if (callsOf(record).length > 0) withCalls.add(stepOf(session, record))
    if (record._tag === "StepCompleted" && !withCalls.has(stepOf(session, record))) count++
  }
  return count
}

const isReply = (line: Line): line is Recorded =>
  line._tag === "Recorded" && (line.record._tag === "ReplyReceived" || line.record._tag === "StepCompleted")

/** Returns `true` if a record resumes a run. The resuming process may be the process that lost the run. */
const isRestart = ({ record }: Recorded): boolean => record._tag === "RunStarted" && record.resumes === true

/** Counts lost replies: the asking process died before it recorded the reply, or another process took over. */
const lostReplies = (lines: ReadonlyArray<Line>): number =>
  lines.filter(({ _tag, pid }, index) => {
    if (_tag !== "Asked") return false
    const rest = lines.slice(index + 1)
    const next = rest.findIndex((line) => line._tag === "Asked" && line.pid === pid)
    const until = next < 0 ? rest : rest.slice(0, next)
    return !until.some((line) => line.pid === pid && isReply(line)) && until.some((line) =>
      line._tag === "Killed"
        ? line.pid === pid
        : line._tag === "Recorded" && line.isOwn && (line.pid !== pid || isRestart(line))
    )
  }).length

const takeoverOf = (lines: ReadonlyArray<Line>, killed: Line): number | undefined => {
  const next = lines.find((line) => line._tag === "Reached" && line.pid !== killed.pid && line.millis > killed.millis)
  return next === undefined ? undefined : next.millis - killed.millis
}

const isOfRun = (
  { requestId, session }: Start,
  line: Recorded,
  record: { readonly requestId: string }
): boolean => session === line.session && requestId === record.requestId

/** Returns `true` if a call waits for a verdict about an unknown effect. It may be retried. */
const isInDoubt = ({ suspensions }: Journal.CallWaits): boolean => suspensions.some(({ kind }) => kind === "unknown")

/** Returns `true` if no record shows how an attempt ended. */
const isOpen = ({ end }: Start): boolean => end === undefined || end === "inDoubt"

/** Returns the id of the call whose attempt a record ends, if any. */
const endedIn = (record: Journal.Record): string | undefined => {
  switch (record._tag) {
    case "AttemptFailed":
    case "CallWaits":
      return record.toolCallId
    case "CallEnded":
      return record.message.toolCallId
    default:
      return undefined
  }
}

/** Collects a log's starts and replies in one pass, with the repeats they explain. */
class Ledger {
  readonly starts: Array<Start> = []
  readonly repeats: Array<Repeat> = []
  /** Calls in recorded replies, by turn and id. */
  private readonly replied = new Set<string>()
  private readonly returned = new Set<string>()
  private readonly effects = new Map<string, number>()
  private readonly uninterrupted: ReadonlyMap<string, number>
  private readonly places: ReadonlyMap<Line, KillTurns.Placed>

  constructor(uninterrupted: ReadonlyMap<string, number>, places: ReadonlyMap<Line, KillTurns.Placed>) {
    this.uninterrupted = uninterrupted
    this.places = places
  }

  read(line: Line, index: number): void {
    if (line._tag === "Returned") this.returned.add(line.what)
    else if (line._tag === "Acted") this.acted(line)
    else if (line._tag === "Recorded") this.recorded(line, index)
  }

  isReplied({ id, turn }: Start): boolean {
    return this.replied.has(`${turn} ${id}`)
  }

  turnOf(line: Line): string | undefined {
    return this.places.get(line)?.turn
  }

  private recorded(line: Recorded, index: number): void {
    const { pid, record, session } = line
    const { toolCall, turn = "" } = this.places.get(line) ?? {}
    if (record._tag === "ReplyReceived" || record._tag === "StepCompleted") {
      for (const { id } of callsOf(record)) this.replied.add(`${turn} ${id}`)
    } else if (record._tag === "CallStarted") {
      const { attempt, idempotencyKey: key, requestId, toolCallId: id } = record
      const name = toolCall?.name ?? ""
      const what = WorldLog.whatOf(name, toolCall?.arguments)
      this.starts.push({ name, what, id, key, attempt, pid, session, requestId, turn, index, effects: 0 })
    } else {
      const id = endedIn(record)
      const start = this.starts.findLast((start) => start.turn === turn && start.id === id)
      // An answered call stays answered.
      if (start === undefined || start.end === "answered") return
      if (record._tag === "CallEnded") start.end = "answered"
      else if (record._tag === "AttemptFailed" || record._tag === "CallWaits" && record.resume !== undefined) {
        start.end = "again"
      } else if (record._tag === "CallWaits") start.end = isInDoubt(record) ? "inDoubt" : "waits"
    }
  }

  private acted(line: Extract<Line, { readonly _tag: "Acted" }>): void {
    const { attempt, key, name, what } = line
    const own = this.starts.findLast((start) => start.what === what && start.key === key && start.attempt === attempt)
    const count = (this.effects.get(what) ?? 0) + 1
    this.effects.set(what, count)
    if (count > (this.uninterrupted.get(what) ?? 0)) {
      this.repeats.push({ name, why: this.why(line, own), hadReturned: this.returned.has(what) })
    }
    if (own !== undefined) own.effects++
  }

  private why(
    { attempt, key, what }: Extract<Line, { readonly _tag: "Acted" }>,
    own: Start | undefined
  ): Repeat["why"] {
    const most = this.uninterrupted.get(what) ?? 0
    const starts = this.starts.filter((start) => start.what === what)
    const finished = starts.filter((start) =>
      (start.end === "answered" || start.end === "waits") && this.isReplied(start)
    )
    if (finished.length >= most && finished.length > 0) return "finished"
    if (finished.some((start) => start.end === "answered" && start.key === key)) return "finished"
    // An attempt has its effects once.
    if (own !== undefined && own.effects >= Math.max(1, most)) return "silent"
    const before = starts.some((start) => start.key === key && start.attempt < attempt && isOpen(start))
    if (own !== undefined && before) return "unknown"
    const others = starts.filter((start) => start !== own)
    return others.length > 0 && others.every((start) => !this.isReplied(start)) ? "lostReply" : "silent"
  }
}

/** Code of an answer to a call with an unknown effect. */
const unknownCode = "unknown_effect"

/** Returns `true` if a call's run ends in an error. */
const hasFailed = (start: Start, after: ReadonlyArray<Line>): boolean =>
  after.some((line) =>
    line._tag === "Recorded" && line.record._tag === "RunEnded" && isOfRun(start, line, line.record)
    && (line.record.status === "error" || line.record.haltedReason === undefined)
  )

const isUnknown = ({ message, reason }: Journal.CallEnded): boolean =>
  reason === unknownCode || JSON.stringify(message).includes(unknownCode)

const settledOf = (start: Start, after: ReadonlyArray<Line>, ledger: Ledger): Unknown["settled"] => {
  for (const line of after) {
    if (line._tag !== "Recorded") continue
    const { record } = line
    if (record._tag === "CallStarted") {
      const isAgain = record.idempotencyKey === start.key && record.attempt > start.attempt
      if (isAgain && line.session === start.session) return "retried"
      continue
    }
    if (endedIn(record) !== start.id || ledger.turnOf(line) !== start.turn) continue
    // A call whose nested runs wait was already retried.
    if (record._tag === "CallWaits" && record.suspensions.some(({ path }) => path === undefined)) return "asked"
    if (record._tag !== "CallEnded") continue
    return !isUnknown(record) ? "found" : hasFailed(start, after) ? "failed" : "reported"
  }
  return ledger.isReplied(start) ? "none" : "lostReply"
}

/** Returns `true` if a line resumes a run. */
const isTakeover = (line: Line, start: Start): boolean =>
  line._tag === "Recorded" && line.record._tag === "RunStarted" && isRestart(line) && isOfRun(start, line, line.record)

/**
 * Returns the calls without an end in a process that died, or in a run resumed afterwards: its owner may have lost the
 * run while alive.
 */
const unknownIn = (lines: ReadonlyArray<Line>, ledger: Ledger): ReadonlyArray<Unknown> =>
  ledger.starts.flatMap((start) => {
    const cut = lines.findIndex((line, index) =>
      index > start.index && ((line._tag === "Killed" && line.pid === start.pid) || isTakeover(line, start))
    )
    return cut < 0 || endedBy(lines, start, cut, ledger)
      ? []
      : [{ name: start.name, id: start.id, settled: settledOf(start, lines.slice(cut), ledger) }]
  })

/** Returns `true` if, before a line, the journal contains the end of a start, or its whole turn. */
const endedBy = (lines: ReadonlyArray<Line>, start: Start, before: number, ledger: Ledger): boolean =>
  lines.slice(start.index + 1, before).some((line) =>
    line._tag === "Recorded"
    && (endedIn(line.record) === start.id || line.record._tag === "StepCompleted")
    && ledger.turnOf(line) === start.turn
  )

const broken = (law: Law, names: ReadonlyArray<string>, what: string): ReadonlyArray<Violation> =>
  names.map((name) => ({ law, message: `${name} ${what}` }))

/** Compares an attempt's log with the uninterrupted run's. */
export const findings = (uninterruptedLog: ReadonlyArray<Line>, log: ReadonlyArray<Line>): Findings => {
  const lines = once(log)
  const uninterrupted = effectsIn(uninterruptedLog)
  const ledger = new Ledger(uninterrupted, KillTurns.placesOf(lines))
  lines.forEach((line, index) => ledger.read(line, index))

  const kills = lines.flatMap((line): ReadonlyArray<Kill> => {
    if (line._tag !== "Killed") return []
    const takeoverMillis = takeoverOf(lines, line)
    return [{ at: line.at, name: line.name, ...(takeoverMillis === undefined ? {} : { takeoverMillis }) }]
  })
  const unknown = unknownIn(lines, ledger)
  const effects = effectsIn(lines)
  const missing = [...uninterrupted].flatMap(([what, count]) =>
    Array<string>(Math.max(0, count - (effects.get(what) ?? 0))).fill(what.slice(0, what.indexOf(" ")))
  )
  const asked = (lines: ReadonlyArray<Line>) => lines.filter(({ _tag }) => _tag === "Asked").length
  const extraAsked = asked(lines) - asked(uninterruptedLog)
  const lost = lostReplies(lines)
  const extraAnswers = answersIn(lines) - answersIn(once(uninterruptedLog))

  const named = (why: Repeat["why"]) => ledger.repeats.flatMap((repeat) => repeat.why === why ? repeat.name : [])
  const told = counted(unknown.flatMap(({ name, settled }) => settled === "none" ? [] : name))
  const isFailed = unknown.some(({ settled }) => settled === "failed")
  const lostCalls = isFailed ?
    [] :
    [...counted(missing)].flatMap(([name, count]) =>
      Array<string>(Math.max(0, count - (told.get(name) ?? 0))).fill(name)
    )
  return {
    kills,
    repeats: ledger.repeats,
    unknown,
    missing,
    extraAsked,
    extraAnswers,
    violations: [
      ...broken("finished", named("finished"), "ran again after its end was recorded"),
      ...broken("silent", named("silent"), "was repeated, and nothing recorded says why"),
      ...broken(
        "untold",
        unknown.flatMap(({ name, settled }) => settled === "none" ? name : []),
        "was interrupted between its start and its end, and was passed over"
      ),
      ...broken("lost", lostCalls, "never ran, and was not unknown"),
      ...(extraAsked > lost
        ? [{ law: "asked" as const, message: `${extraAsked} more requests, and ${lost} replies lost` }]
        : []),
      ...(extraAnswers > 0 ? [{ law: "answer" as const, message: `${extraAnswers} more final answers` }] : []),
      ...KillTurns.problemsOf(lines).map((message) => ({ law: "journal" as const, message }))
    ]
  }
}

/** Returns the first difference between two JSON values. */
export const difference = (expected: unknown, actual: unknown, path = "result"): string | undefined => {
  const isParent = (value: unknown): value is object => typeof value === "object" && value !== null
  if (!isParent(expected) || !isParent(actual) || Array.isArray(expected) !== Array.isArray(actual)) {
    const [before, after] = [JSON.stringify(expected), JSON.stringify(actual)]
    return before === after ? undefined : `${path} is ${after}, not ${before}`
  }
  for (const name of new Set([...Object.keys(expected), ...Object.keys(actual)])) {
    const found = difference(
      (expected as Record<string, unknown>)[name],
      (actual as Record<string, unknown>)[name],
      `${path}.${name}`
    )
    if (found !== undefined) return found
  }
  return undefined
}
