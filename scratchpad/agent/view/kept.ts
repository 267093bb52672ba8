/**
 * What is left of a run when it is over, besides its answer: what a run that was stopped has kept and what it has not,
 * and the notes that were planned and not written. Pure functions of the run.
 */
import * as Paint from "./paint.ts"
import * as Run from "./run.ts"

const enumerate = (items: ReadonlyArray<string>): string =>
  items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`

const nameOfLost = (call: Run.Call): string => {
  if (call.startedAt === undefined) return `${call.name} (never started)`
  const after = Paint.duration((call.endedAt ?? call.startedAt) - call.startedAt)
  return call.standing === "abandoned"
    ? `${call.name} (refused to stop, left behind after ${after})`
    : `${call.name} (stopped after ${after})`
}

/** What a run that was stopped softly has kept: its thread goes on from there. */
export const ofStopped = (run: Run.Run): ReadonlyArray<string> => {
  if (run.result?.outcome._tag !== "Cancelled") return []
  const calls = Run.calls(run)
  const isLost = (call: Run.Call) => call.standing === "stopped" || call.standing === "abandoned"
  const answered = calls.filter((call) => !isLost(call)).map((call) => call.name)
  const lost = calls.filter(isLost).map(nameOfLost)
  const kept = [
    ...run.items.some((item) => item._tag === "Said") ? ["what was said"] : [],
    ...answered.length === 0 ? [] : [`the ${answered.length === 1 ? "answer" : "answers"} of ${enumerate(answered)}`]
  ]
  return [
    kept.length === 0 ? "Nothing had come by then." : `Kept: ${enumerate(kept)}.`,
    ...lost.length === 0 ? [] : [`Not kept: ${enumerate(lost)}.`]
  ]
}

/** The notes that would have been written, had there been a place for them. */
export const ofPlanned = (run: Run.Run): ReadonlyArray<string> => {
  const planned = run.notes.filter((note) => !note.isWritten && note.path === undefined).map((note) => `  ${note.note}`)
  return planned.length === 0
    ? []
    : ["Not written, for no folder for notes was named (--notes FOLDER):", ...planned.map(Run.harmless)]
}
