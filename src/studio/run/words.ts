/** The words of the picture and the table: times, tokens, cost, states, reasons, and the sentence that names a run. */
import type * as Fold from "../data/fold.ts"

/** Returns a time in words: `"599 ms"`, `"1.3 s"`, `"2 min 5 s"`. */
export const seconds = (millis: number): string => {
  if (millis < 999.5) return `${Math.round(millis)} ms`
  if (millis < 59_950) return `${(millis / 1000).toFixed(1)} s`
  const whole = Math.round(millis / 1000)
  return `${Math.floor(whole / 60)} min ${whole % 60} s`
}

const count = (value: number | string | undefined): string =>
  typeof value === "number" ? value.toLocaleString("en") : "?"

/** Returns tokens in words, or `""` where no usage was reported. */
export const tokens = (usage: Fold.Usage | undefined): string => {
  const { inputTokens, outputTokens, totalTokens } = usage ?? {}
  if (inputTokens !== undefined || outputTokens !== undefined) {
    return `${count(inputTokens)} in, ${count(outputTokens)} out`
  }
  return totalTokens === undefined ? "" : `${count(totalTokens)} tokens`
}

/** Returns a cost in words, or `""` where none is known: an unknown cost is not nothing. */
export const cost = (usage: Fold.Usage | undefined): string => {
  const { currency, totalCost } = usage ?? {}
  if (typeof totalCost !== "number") return ""
  const figure = totalCost.toFixed(totalCost < 0.1 ? 4 : 2)
  return typeof currency === "string" ? `${figure} ${currency}` : figure
}

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

const marks: { readonly [State in Fold.State]?: string } = { failed: "✕ ", denied: "⊘ ", cancelled: "■ ", asks: "? " }

/** Returns the sign before the name of a call, which says what its colour says. */
export const markOf = (call: Fold.Call): string => marks[call.state] ?? ""

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

/** Returns the time for which a call ran, in milliseconds, or nothing where it did not start. */
export const ranOf = (call: Fold.Call, now: number): number | undefined =>
  call.started === undefined ? undefined : call.attempts.reduce((sum, { from, to = now }) => sum + to - from, 0)

const listed = (names: ReadonlyArray<string>): string =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`

const named = (run: Fold.Run, path: string): string => {
  const call = run.calls.get(path)
  return call === undefined ? path : `${call.name} (${call.id})`
}

/** The words between what a call waited for and the calls that had it. */
const holders: { readonly [reason: string]: string } = { key: "held by", permit: "taken by", exclusive: "behind" }

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
  const time = run.startedAt === undefined ? "Run" : `Run of ${seconds(run.end ?? run.now)}`
  return `${time}: ${many(run.list.length, "call")}, ${parts.join(", ")}, at most ${most} at once.`
}

/** Returns one sentence about a call. */
export const about = (run: Fold.Run, call: Fold.Call): string => {
  const now = run.end ?? run.now
  const waited = waitedOf(call, now)
  const ran = ranOf(call, now)
  const words = [`${call.name}: ${stateOf(call)}`, `asked at ${seconds(readyOf(call))}`]
  if (waited !== undefined) {
    words.push(`waited ${seconds(waited)}${why(run, call) === "" ? "" : ` (${why(run, call)})`}`)
  }
  if (ran !== undefined) words.push(`ran ${seconds(ran)}`)
  return `${words.join(", ")}.`
}
