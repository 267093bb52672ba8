/**
 * The report of a replay: one line for each transcript that failed, numbers for each protocol, and the total last.
 */
import type * as Replay from "./replay.ts"

const longest = 400

const isPass = (verdict: Replay.Verdict): boolean => verdict.problems.length === 0

/** The line of a transcript: nothing if it passed. */
export const lines = (verdict: Replay.Verdict): ReadonlyArray<string> => {
  if (isPass(verdict)) return []
  const line = `FAIL ${verdict.fixture.id} ${verdict.problems.join("; ")}`.replaceAll(/\s+/g, " ")
  return [line.length <= longest ? line : `${line.slice(0, longest)} ...`]
}

const counts = (verdicts: ReadonlyArray<Replay.Verdict>): string => {
  const passed = verdicts.filter(isPass).length
  return `${passed} passed, ${verdicts.length - passed} failed`
}

/** The numbers, the total last. */
export const summary = (verdicts: ReadonlyArray<Replay.Verdict>): ReadonlyArray<string> => {
  const protocols = [...new Set(verdicts.map((verdict) => verdict.fixture.protocol))].sort()
  const of = (protocol: string) => verdicts.filter((verdict) => verdict.fixture.protocol === protocol)
  return [...protocols.map((protocol) => `${protocol}: ${counts(of(protocol))}`), counts(verdicts)]
}

/** Whether there was something to replay, and all of it was read as it should be. */
export const isPassed = (verdicts: ReadonlyArray<Replay.Verdict>): boolean =>
  verdicts.length > 0 && verdicts.every(isPass)
