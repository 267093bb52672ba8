/**
 * The records of a log with the turns that they belong to. A record names the run and the call; the turn follows from
 * the records before it, whatever order the processes of the attempt have seen them in.
 */
import type * as Records from "../../internal/session/records.ts"
import * as States from "../../internal/session/state.ts"
import type * as Message from "../../Message.ts"
import type { Line } from "./worldLog.ts"

type Recorded = Extract<Line, { readonly _tag: "Recorded" }>

/** A record in its place. */
export interface Placed {
  /**
   * The turn, distinct from every other of the attempt: also the turn of a reply that was lost from the one that is
   * asked for again. Left out for a record that belongs to none.
   */
  readonly turn?: string
  /** The call that starts, as its handler gets it. */
  readonly toolCall?: Message.ToolCall
}

/** The records of one session, in their order. */
class Reading {
  private readonly session: string
  private readonly state = States.initial()
  private count = 0
  /** The turn that the state has. */
  private turn: string
  /** The turn that it had before the run. */
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
        // A run that fails before a call has started gives back the turn that it found.
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

/** The records of each session, by their versions. */
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

/** Returns the places of the records of a log, which has each of them once. */
export const placesOf = (lines: ReadonlyArray<Line>): ReadonlyMap<Line, Placed> => {
  const places = new Map<Line, Placed>()
  for (const [session, recorded] of bySession(lines)) {
    const reading = new Reading(session)
    for (const line of recorded) places.set(line, reading.read(line.record))
  }
  return places
}

/** Returns what is wrong with each journal, as far as the log has it without a gap. */
export const problemsOf = (lines: ReadonlyArray<Line>): ReadonlyArray<string> =>
  [...bySession(lines)].flatMap(([session, recorded]) => {
    const known = recorded.filter(({ version }, index) => version === index + 1)
    return States.problemsOf(known.map(({ record }) => record)).map((problem) => `session ${session}: ${problem}`)
  })
