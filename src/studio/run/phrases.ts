/** The words of the picture and the table: states, reasons, and the sentence that names a run. */
import * as Words from "../chat/words.ts"
import type * as Fold from "../data/fold.ts"

const stateWords: { readonly [State in Fold.State]: string } = {
  asked: "asked",
  waiting: "waits",
  running: "runs",
  asks: "needs an answer",
  done: "done",
  failed: "failed",
  cancelled: "stopped",
  denied: "denied"
}

/** Returns the state of a call in words. */
export const stateOf = (call: Fold.Call): string => {
  const words = [stateWords[call.state]]
  if (call.isEarly) words.push("early")
  if (call.isAlone) words.push("alone")
  if (call.isProviders) words.push("run by the provider")
  if (call.abandoned !== undefined) words.push("left running")
  return words.join(", ")
}

/** Returns what a call waited for, as words beside its line. */
export const waitWords = (call: Fold.Call, wait: Fold.Wait): string => {
  switch (wait.reason) {
    case "key":
      return wait.key ?? "a key"
    case "permit":
      return "all places taken"
    case "exclusive":
      return call.isAlone ? "has to run alone" : "one runs alone"
    default:
      return wait.reason
  }
}

/** Returns the time at which a call could have started. */
export const readyOf = (call: Fold.Call): number => call.ready ?? call.asked

/** Returns the time for which a call waited, in milliseconds, or nothing where it started at once. */
export const waitedOf = (call: Fold.Call, now: number): number | undefined => {
  const until = call.started ?? (call.state === "asked" || call.state === "waiting" ? now : call.ended ?? now)
  const waited = until - readyOf(call)
  return call.waits.length > 0 || call.started !== undefined && waited > 0 ? Math.max(0, waited) : undefined
}

const listed = (names: ReadonlyArray<string>): string =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`

const named = (run: Fold.Run, path: string): string => {
  const call = run.calls.get(path)
  return call === undefined ? path : `${call.name} (${call.id})`
}

/** The words between what a call waited for and the calls that had it. */
const holders: { readonly [reason: string]: string } = { key: "held by", permit: "by", exclusive: "behind" }

/** Returns why a call waited, in words, with the calls that it waited for. */
export const why = (run: Fold.Run, call: Fold.Call): string => {
  const reasons = call.waits.map((wait) => {
    const behind = wait.behind.map((path) => named(run, path))
    const who = wait.isElsewhere ? [...behind, "another run"] : behind
    const words = waitWords(call, wait)
    return who.length === 0 ? words : `${words}, ${holders[wait.reason] ?? "behind"} ${listed(who)}`
  })
  const isLate = call.waits.length === 0 && call.turn >= 0 && (call.started ?? 0) > readyOf(call)
  return isLate ? "the reply had to end" : reasons.join("; ")
}

const outcomes: { readonly [tag: string]: string } = {
  Completed: "Completed",
  MaxTurns: "Reached its most turns",
  HaltWhen: "Halted",
  AskUser: "Asks",
  ToolFailed: "Ended by a failed call",
  Halted: "Ended by a call",
  ManualToolCalls: "Waits for results",
  ApprovalRequested: "Asks",
  Cancelled: "Stopped",
  RuleEnded: "Ended by a rule",
  Failed: "Failed"
}

/** Returns the state of a run in words. */
export const outcomeOf = ({ outcome }: Fold.Run): string =>
  outcome === undefined ? "Running" : outcomes[outcome._tag] ?? outcome._tag

/** Returns the number of things with their name. */
export const many = (number: number, name: string): string =>
  `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`

/** Returns the one sentence that names the picture of a run. */
export const sentence = (run: Fold.Run): string => {
  const { asks, cancelled, denied, early, failed, most, running } = run.counts
  const parts = [`${early.toLocaleString("en")} started before the reply ended`]
  for (
    const [number, words] of [
      [failed, "failed"],
      [denied, "denied"],
      [cancelled, "stopped"],
      [asks, "waiting for an answer"],
      [running, "running"]
    ] as const
  ) {
    if (number > 0) parts.push(`${number.toLocaleString("en")} ${words}`)
  }
  const time = run.startedAt === undefined ? "Run" : `Run of ${Words.seconds(run.end ?? run.now)}`
  return `${time}: ${many(run.list.length, "call")}, ${parts.join(", ")}, at most ${most} at once.`
}

/**
 * Returns one sentence about a call, for a live region: it changes with the state of the call, and not with the time
 * for which the call has waited or run so far.
 */
export const about = (run: Fold.Run, call: Fold.Call): string => {
  const waited = call.started === undefined ? undefined : waitedOf(call, call.started)
  const ran = call.ended === undefined ? undefined : Words.ranOf(call, call.ended)
  const reason = why(run, call)
  const words = [`${call.name}: ${stateOf(call)}`, `asked at ${Words.seconds(readyOf(call))}`]
  if (waited !== undefined) words.push(`waited ${Words.seconds(waited)}${reason === "" ? "" : ` (${reason})`}`)
  else if (reason !== "") words.push(reason)
  if (ran !== undefined) words.push(`ran ${Words.seconds(ran)}`)
  return `${words.join(", ")}.`
}
