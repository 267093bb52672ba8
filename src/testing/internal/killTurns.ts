/**
 * Assigns a log's records to turns. A record names run and call; the turn follows from earlier records, whatever order
 * the attempt's processes saw.
 */
import type * as Records from "../../internal/session/records.ts"
import * as States from "../../internal/session/state.ts"
import type * as Message from "../../Message.ts"
import type { Line } from "./worldLog.ts"

type Recorded = Extract<Line, { readonly _tag: "Recorded" }>

/** A record in its place. */
export interface Placed {
  /**
   * Turn, distinct from every other turn in the attempt; a lost reply and its repetition count as different turns.
   * Undefined for a record outside turns.
   */
  readonly turn?: string
  /** Starting call, in the form its handler receives. */
  readonly toolCall?: Message.ToolCall
}

/** Reads the records of one session in order. */
class Reading {
  private readonly session: string
  private readonly state = States.initial()
  private count = 0
  /** Current turn of the state. */
  private turn: string
  /** Turn before the run. */
  private before: string

  constructor(session: string) {
    this.session = session
    this.turn = this.before = this.next()
  }

  read(record: Records.Record): Placed {
    const { run, turn: had } = this.state
    States.apply(this.state, record)
    switch (record._tag) {
      case "RunStarted":
        if (record.resumes !== true) this.before = this.turn
        return {}
      case "RunEnded":
        // A run failing before any call started gives back the turn it found.
        if (record.haltedReason === undefined && run?.hasStarted === false) this.turn = this.before
        return {}
      case "ReplyReceived":
        if (had === undefined || had.isEarlier || had.message !== undefined) this.turn = this.next()
        return { turn: this.turn }
      case "StepCompleted":
        if (had === undefined || had.isEarlier) this.turn = this.next()
        return { turn: this.turn }
      case "CallStarted": {
        const { toolCallId } = record
        if (had?.calls.has(toolCallId) !== true && had?.isEarlier !== false) this.turn = this.next()
        const toolCall = this.state.turn?.calls.get(toolCallId)?.toolCall
        return toolCall === undefined ? { turn: this.turn } : { turn: this.turn, toolCall }
      }
      case "AttemptFailed":
      case "CallEnded":
      case "CallWaits":
        return { turn: this.turn }
      default:
        return {}
    }
  }

  private next(): string {
    return `${this.session} ${this.count++}`
  }
}

/** Groups records by session, sorted by version. */
const bySession = (lines: ReadonlyArray<Line>): ReadonlyMap<string, ReadonlyArray<Recorded>> => {
  const sessions = new Map<string, Array<Recorded>>()
  for (const line of lines) {
    if (line._tag !== "Recorded") continue
    const known = sessions.get(line.session)
    if (known === undefined) sessions.set(line.session, [line])
    else known.push(line)
  }
  for (const known of sessions.values()) known.sort((left, right) => left.version - right.version)
  return sessions
}

/** Returns the places of a log's records, each contained once. */
export const placesOf = (lines: ReadonlyArray<Line>): ReadonlyMap<Line, Placed> => {
  const places = new Map<Line, Placed>()
  for (const [session, recorded] of bySession(lines)) {
    const reading = new Reading(session)
    for (const line of recorded) places.set(line, reading.read(line.record))
  }
  return places
}

/** Returns each journal's faults, as far as the log contains it without a gap. */
export const problemsOf = (lines: ReadonlyArray<Line>): ReadonlyArray<string> =>
  [...bySession(lines)].flatMap(([session, recorded]) => {
    const known = recorded.filter(({ version }, index) => version === index + 1)
    return States.problemsOf(known.map(({ record }) => record)).map((problem) => `session ${session}: ${problem}`)
  })
