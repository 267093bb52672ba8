/**
 * When everything in a turn happened: the span of the reply, of each call's wait and of each call's run, all by one
 * clock. A pure function of the run, and so of its events and their times; nothing is drawn here.
 */
import * as Tools from "../tools.ts"
import * as Run from "./run.ts"

/** From one time to another, in milliseconds. */
export interface Span {
  readonly from: number
  readonly to: number
}

/** A call, in time. */
export interface Lane {
  readonly call: Run.Call
  /** Asked for, and held back because the reply was still going on. */
  readonly waitsForReply: Span | undefined
  /** Held back because other calls had to be done first: it runs alone, or one of them does. */
  readonly waitsAtBarrier: Span | undefined
  /** From its start to its end; `undefined` for a call that has not started. */
  readonly runs: Span | undefined
}

/** A turn, in time: from the request to the end of its reply, or of the last of its calls if that is later. */
export interface Stretch {
  readonly number: number
  readonly whole: Span
  /** From the request to the first word. */
  readonly silent: Span
  readonly speaks: Span
  /** How the reply ended. */
  readonly standing: Extract<Run.Standing, "done" | "failed" | "stopped">
  readonly lanes: ReadonlyArray<Lane>
}

const span = (from: number, to: number): Span | undefined => to > from ? { from, to } : undefined

const siblings = (run: Run.Run, turn: number): ReadonlyArray<Run.Call> =>
  Run.calls(run).filter((call) => call.turn === turn)

/** A call as far as it has come by now. */
export const lane = (run: Run.Run, call: Run.Call, now: number): Lane => {
  const { askedAt, endedAt, startedAt } = call
  const until = startedAt ?? endedAt ?? now
  const replyEnd = run.turns[call.turn]?.endedAt
  const free = Math.max(askedAt, Math.min(replyEnd ?? until, until))
  const isBlocking = (other: Run.Call): boolean =>
    other !== call && other.startedAt !== undefined && (startedAt === undefined || other.startedAt < startedAt) &&
    (other.endedAt ?? Infinity) > free
  const blocking = siblings(run, call.turn).filter(isBlocking)
  const isBarrier = replyEnd !== undefined && blocking.length > 0 &&
    [call, ...blocking].some(({ name }) => Tools.isBarrier(name))
  return {
    call,
    waitsForReply: call.isEarly ? undefined : span(askedAt, free),
    waitsAtBarrier: isBarrier ? { from: free, to: until } : undefined,
    runs: startedAt === undefined ? undefined : { from: startedAt, to: endedAt ?? now }
  }
}

/** The turns of a run that have ended, in time. */
export const stretches = (run: Run.Run): ReadonlyArray<Stretch> =>
  run.turns.flatMap(({ endedAt, isWhole, spokeAt, startedAt }, index): ReadonlyArray<Stretch> => {
    if (endedAt === undefined) return []
    const calls = siblings(run, index)
    const last = Math.max(endedAt, ...calls.map((call) => call.endedAt ?? call.startedAt ?? call.askedAt))
    const first = spokeAt ?? endedAt
    return [{
      number: index + 1,
      whole: { from: startedAt, to: last },
      silent: { from: startedAt, to: first },
      speaks: { from: first, to: endedAt },
      standing: isWhole ? "done" : run.result?.outcome._tag === "Failed" ? "failed" : "stopped",
      lanes: calls.map((call) => lane(run, call, last))
    }]
  })
