/**
 * What the log of an attempt shows: what was repeated, what was unknown and how it was settled, and which laws were broken.
 * A call is what it does, its name and its arguments: a recovery that forgot the run gives the same call other ids.
 */
import type * as Records from "../../internal/session/records.ts"
import type * as Message from "../../Message.ts"
import type { Line } from "./worldLog.ts"
import * as WorldLog from "./worldLog.ts"

/**
 * A law that an attempt can break.
 *
 * - `"end"`: every process ends by itself, unless it is killed, and the program comes to a result.
 * - `"finished"`: a call whose end was recorded does not run again.
 * - `"silent"`: an effect is repeated only where its call is recorded as started, without an end, and as started again under
 *   the same key with the next attempt; or where the reply that made the call was lost with the process.
 * - `"untold"`: a call that was cut between its start and its end is tried again under its key, looked up, reported, asked
 *   about, or ends the run. It is never passed over.
 * - `"lost"`: every effect of the uncut run happens, unless its call was unknown, or an unknown call ended the run.
 * - `"asked"`: a model is asked again only for a reply that was lost with the process.
 * - `"answer"`: the journal has no more final answers than that of the uncut run.
 * - `"result"`: the result is that of the uncut run.
 * - `"repeatable"`: the uncut program does the same each time. Where it does not, nothing is killed.
 *
 * @category models
 * @since 0.1.0
 */
export type Law = "end" | "finished" | "silent" | "untold" | "lost" | "asked" | "answer" | "result" | "repeatable"

/**
 * A law that was broken, and how.
 *
 * @category models
 * @since 0.1.0
 */
export interface Violation {
  /** The law. */
  readonly law: Law
  /** What was seen. */
  readonly message: string
}

/**
 * A kill.
 *
 * @category models
 * @since 0.1.0
 */
export interface Kill {
  /** The number of the boundary in its process, from 1. */
  readonly at: number
  /** The name of the boundary. */
  readonly name: string
  /** How long it took until another process reached a boundary, in milliseconds. Left out if none did. */
  readonly takeoverMillis?: number
}

/**
 * An effect that happened once more than in the uncut run.
 *
 * @category models
 * @since 0.1.0
 */
export interface Repeat {
  /** The name of the tool. */
  readonly name: string
  /**
   * Why: its end was recorded and it ran all the same (`"finished"`); it was recorded as started, and tried again under its
   * key (`"unknown"`); the reply that made the call was lost with the process (`"lostReply"`); or nothing says why
   * (`"silent"`).
   */
  readonly why: "finished" | "unknown" | "lostReply" | "silent"
  /** Whether its handler had returned before. */
  readonly hadReturned: boolean
}

/**
 * A call that was cut between its recorded start and its recorded end, by a kill or as its process lost the session: it may
 * have had its effect.
 *
 * @category models
 * @since 0.1.0
 */
export interface Unknown {
  /** The name of the tool. */
  readonly name: string
  /** The id of the call. */
  readonly id: string
  /**
   * How it was settled: it was tried again under its key, its outcome was found, the model was told that it is unknown, a
   * person was asked, the run ended as failed, its reply was lost as well and with it the call, or it was passed over.
   */
  readonly settled: "retried" | "found" | "reported" | "asked" | "failed" | "lostReply" | "none"
}

/** What a log shows. */
export interface Findings {
  readonly kills: ReadonlyArray<Kill>
  readonly repeats: ReadonlyArray<Repeat>
  readonly unknown: ReadonlyArray<Unknown>
  /** The names of the calls whose effect is missing. */
  readonly missing: ReadonlyArray<string>
  readonly extraAsked: number
  readonly extraAnswers: number
  readonly violations: ReadonlyArray<Violation>
}

type Recorded = Extract<Line, { readonly _tag: "Recorded" }>

/** A start of a call that is in a journal. */
interface Start {
  readonly name: string
  readonly what: string
  readonly id: string
  readonly key: string
  readonly attempt: number
  /** The process that appended it. */
  readonly pid: number
  /** The turn that it belongs to. */
  readonly turn: string
  readonly index: number
  isEnded: boolean
}

/** Each record once, where it is first known to be in its journal, as that of the process that appended it. */
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

const turnOf = (session: string, record: { readonly requestId: string; readonly stepIndex: number }): string =>
  `${session} ${record.requestId} ${record.stepIndex}`

const counted = (names: Iterable<string>): ReadonlyMap<string, number> => {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return counts
}

const effectsIn = (lines: ReadonlyArray<Line>): ReadonlyMap<string, number> =>
  counted(lines.flatMap((line) => line._tag === "Acted" ? line.what : []))

type StepCompleted = Extract<Records.Record, { readonly _tag: "StepCompleted" }>

type Replied = StepCompleted | Extract<Records.Record, { readonly _tag: "ReplyReceived" }>

const messagesOf = ({ messages }: StepCompleted): ReadonlyArray<Message.Message> =>
  messages.filter((message): message is Message.Message => "role" in message)

/** The calls of the reply that a record has. A step does not repeat the reply of a record before it. */
const callsOf = ({ response }: Replied): ReadonlyArray<Message.ToolCall> => response?.toolCalls ?? []

/** How many turns without a call the journals have. The calls of a turn stand in a record before it, or in it. */
const answersIn = (lines: ReadonlyArray<Line>): number => {
  const withCalls = new Set<string>()
  let count = 0
  for (const line of lines) {
    if (line._tag !== "Recorded") continue
    const { record, session } = line
    if (record._tag !== "ReplyReceived" && record._tag !== "StepCompleted") continue
    if (callsOf(record).length > 0) withCalls.add(turnOf(session, record))
    if (record._tag === "StepCompleted" && !withCalls.has(turnOf(session, record))) count++
  }
  return count
}

const isReply = (line: Line): line is Recorded =>
  line._tag === "Recorded" && (line.record._tag === "ReplyReceived" || line.record._tag === "StepCompleted")

/** Whether a record says that a run was taken up again: also the process that lost it may be the one that has it now. */
const isRestart = ({ record }: Recorded): boolean => record._tag === "RunStarted" && record.resumes !== undefined

/**
 * How many replies were lost: the process that asked did not record the reply, and died, or another process went on in its
 * place.
 */
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

/** The starts and the replies that a log has, in one pass, with the repeats that they explain. */
class Ledger {
  readonly starts: Array<Start> = []
  readonly repeats: Array<Repeat> = []
  /** The calls of replies that are in a journal, by turn and id. */
  private readonly replied = new Set<string>()
  private readonly returned = new Set<string>()
  private readonly effects = new Map<string, number>()
  private readonly uncut: ReadonlyMap<string, number>

  constructor(uncut: ReadonlyMap<string, number>) {
    this.uncut = uncut
  }

  read(line: Line, index: number): void {
    if (line._tag === "Returned") this.returned.add(line.what)
    else if (line._tag === "Acted") this.acted(line)
    else if (line._tag === "Recorded") this.recorded(line, index)
  }

  isReplied({ id, turn }: Start): boolean {
    return this.replied.has(`${turn} ${id}`)
  }

  private recorded({ pid, record, session }: Recorded, index: number): void {
    if (record._tag === "ReplyReceived" || record._tag === "StepCompleted") {
      for (const { id } of callsOf(record)) this.replied.add(`${turnOf(session, record)} ${id}`)
    } else if (record._tag === "CallStarted") {
      const { attempt, idempotencyKey: key, toolCall: { arguments: args, id, name } } = record
      const what = WorldLog.whatOf(name, args)
      this.starts.push({ name, what, id, key, attempt, pid, turn: turnOf(session, record), index, isEnded: false })
    } else if (record._tag === "CallEnded") {
      const turn = turnOf(session, record)
      const start = this.starts.findLast((start) => start.turn === turn && start.id === record.toolCallId)
      if (start !== undefined) start.isEnded = true
    }
  }

  private acted(line: Extract<Line, { readonly _tag: "Acted" }>): void {
    const count = (this.effects.get(line.what) ?? 0) + 1
    this.effects.set(line.what, count)
    if (count > (this.uncut.get(line.what) ?? 0)) {
      this.repeats.push({ name: line.name, why: this.why(line), hadReturned: this.returned.has(line.what) })
    }
  }

  private why({ attempt, key, what }: Extract<Line, { readonly _tag: "Acted" }>): Repeat["why"] {
    const starts = this.starts.filter((start) => start.what === what)
    const finished = starts.filter((start) => start.isEnded && this.isReplied(start))
    if (finished.length >= (this.uncut.get(what) ?? 0) && finished.length > 0) return "finished"
    const again = starts.some((start) => start.key === key && start.attempt === attempt)
    const before = starts.some((start) => start.key === key && start.attempt < attempt && !start.isEnded)
    if (again && before) return "unknown"
    const others = starts.filter((start) => start.key !== key || start.attempt !== attempt)
    return others.length > 0 && others.every((start) => !this.isReplied(start)) ? "lostReply" : "silent"
  }
}

/** The code of an answer that says of a call that its effect is not known. */
const unknownCode = "unknown_effect"

/** Whether the run of a call ends in an error. */
const hasFailed = (start: Start, after: ReadonlyArray<Line>): boolean =>
  after.some((line) =>
    line._tag === "Recorded" && line.record._tag === "RunEnded" && line.record.status === "error"
    && isOfRun(start, line.session, line.record)
  )

const isOfRun = ({ turn }: Start, session: string, record: { readonly requestId: string }): boolean =>
  turn.startsWith(`${session} ${record.requestId} `)

const isUnknown = (answer: unknown): boolean => JSON.stringify(answer).includes(unknownCode)

const settledOf = (start: Start, after: ReadonlyArray<Line>, ledger: Ledger): Unknown["settled"] => {
  const answered = (answer: unknown) => !isUnknown(answer) ? "found" : hasFailed(start, after) ? "failed" : "reported"
  for (const line of after) {
    if (line._tag !== "Recorded") continue
    const { record, session } = line
    if (!("requestId" in record) || !isOfRun(start, session, record)) continue
    switch (record._tag) {
      case "CallStarted":
        if (record.idempotencyKey === start.key && record.attempt > start.attempt) return "retried"
        break
      case "CallEnded": {
        if (turnOf(session, record) !== start.turn || record.toolCallId !== start.id) break
        return isQuestion(record.outcome) ? "asked" : answered([record.outcome, record.answer])
      }
      case "StepCompleted": {
        if (turnOf(session, record) !== start.turn) break
        if (record.suspensions?.some(({ id }) => id === start.id) === true) return "asked"
        const answer = messagesOf(record).find(({ toolCallId }) => toolCallId === start.id)
        if (answer !== undefined) return answered(answer)
        break
      }
      default:
    }
  }
  return ledger.isReplied(start) ? "none" : "lostReply"
}

const isQuestion = (outcome: unknown): boolean =>
  typeof outcome === "object" && outcome !== null && "_tag" in outcome && outcome._tag === "AskUser"

/** Whether a line shows that a run was taken up again. */
const isTakeover = (line: Line, { turn }: Pick<Start, "turn">): boolean =>
  line._tag === "Recorded" && line.record._tag === "RunStarted" && isRestart(line)
  && turn.startsWith(`${line.session} ${line.record.requestId} `)

/** Calls without an end in a process that died, or in a run that was then taken up: its owner may have lost it alive. */
const unknownIn = (lines: ReadonlyArray<Line>, ledger: Ledger): ReadonlyArray<Unknown> =>
  ledger.starts.flatMap((start) => {
    const cut = lines.findIndex((line, index) =>
      index > start.index && ((line._tag === "Killed" && line.pid === start.pid) || isTakeover(line, start))
    )
    return cut < 0 || endedBy(lines, start, cut)
      ? []
      : [{ name: start.name, id: start.id, settled: settledOf(start, lines.slice(cut), ledger) }]
  })

/** Whether the end of a start is in the journal, or its turn is whole, before a line. */
const endedBy = (lines: ReadonlyArray<Line>, start: Start, before: number): boolean =>
  lines.slice(start.index + 1, before).some((line) =>
    line._tag === "Recorded"
    && ((line.record._tag === "CallEnded" && line.record.toolCallId === start.id)
      || line.record._tag === "StepCompleted")
    && turnOf(line.session, line.record) === start.turn
  )

const broken = (law: Law, names: ReadonlyArray<string>, what: string): ReadonlyArray<Violation> =>
  names.map((name) => ({ law, message: `${name} ${what}` }))

/** What the log of an attempt shows, beside that of the uncut run. */
export const findings = (uncutLog: ReadonlyArray<Line>, log: ReadonlyArray<Line>): Findings => {
  const lines = once(log)
  const uncut = effectsIn(uncutLog)
  const ledger = new Ledger(uncut)
  lines.forEach((line, index) => ledger.read(line, index))

  const kills = lines.flatMap((line): ReadonlyArray<Kill> => {
    if (line._tag !== "Killed") return []
    const takeoverMillis = takeoverOf(lines, line)
    return [{ at: line.at, name: line.name, ...(takeoverMillis === undefined ? {} : { takeoverMillis }) }]
  })
  const unknown = unknownIn(lines, ledger)
  const effects = effectsIn(lines)
  const missing = [...uncut].flatMap(([what, count]) =>
    Array<string>(Math.max(0, count - (effects.get(what) ?? 0))).fill(what.slice(0, what.indexOf(" ")))
  )
  const asked = (lines: ReadonlyArray<Line>) => lines.filter(({ _tag }) => _tag === "Asked").length
  const extraAsked = asked(lines) - asked(uncutLog)
  const lost = lostReplies(lines)
  const extraAnswers = answersIn(lines) - answersIn(once(uncutLog))

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
        "was cut between its start and its end, and was passed over"
      ),
      ...broken("lost", lostCalls, "never ran, and was not unknown"),
      ...(extraAsked > lost
        ? [{ law: "asked" as const, message: `${extraAsked} more requests, and ${lost} replies lost` }]
        : []),
      ...(extraAnswers > 0 ? [{ law: "answer" as const, message: `${extraAnswers} more final answers` }] : [])
    ]
  }
}

/** Where two values differ first, as JSON. */
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
