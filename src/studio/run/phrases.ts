/** Words for the picture and the table: states, reasons, and the sentence naming a run. */
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

/** Returns a call's state in words. */
export const stateOf = (call: Fold.Call): string => {
  const words = [stateWords[call.state]]
  if (call.isEarly) words.push("early")
  if (call.isAlone) words.push("alone")
  if (call.isProviders) words.push("run by the provider")
  if (call.abandoned !== undefined) words.push("left running")
  return words.join(", ")
}

/** Returns the reason for a call's wait, as words beside its line. */
export const waitWords = (call: Fold.Call, wait: Fold.Wait): string => {
  switch (wait.reason) {
    case "key":
      return wait.key ?? "a key"
    case "permit":
      return "all places taken"
    case "exclusive":
      return call.isAlone ? "had to run alone" : "one runs alone"
    default:
      return wait.reason
  }
}

/** Returns the earliest possible start of a call. */
export const readyOf = (call: Fold.Call): number => call.ready ?? call.asked

/** Returns a call's waiting time in milliseconds, or `undefined` if it started at once. */
export const waitedOf = (call: Fold.Call, now: number): number | undefined => {
  if (call.isEarly && call.waits.length === 0) return undefined
  const until = call.started ?? (call.state === "asked" || call.state === "waiting" ? now : call.ended ?? now)
  const waited = until - readyOf(call)
  return call.waits.length > 0 || call.started !== undefined && waited > 0 ? Math.max(0, waited) : undefined
}

const listed = (names: ReadonlyArray<string>): string =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`

/** Maximum number of characters from a value naming a call. */
const shortest = 32

/** Returns the first words of a call's arguments, or `""` if they are not published. */
export const wordsOf = ({ arguments: given }: Fold.Call): string => {
  if (typeof given !== "object" || given === null) return given === undefined ? "" : Words.brief(given, shortest)
  const values = Object.values(given)
  const first = values.find((value) => typeof value === "string" && value !== "") ?? values[0]
  return first === undefined ? "" : Words.brief(first, shortest)
}

/** Returns a call's name for a reader: its tool, with the first words of its arguments or its place. */
export const nameOf = (run: Fold.Run, call: Fold.Call): string => {
  const words = wordsOf(call)
  if (words !== "") return `${call.name} ${words}`
  const turn = run.turns.find(({ index, owner }) => owner === call.owner && index === call.turn)
  const alike = (turn?.calls ?? []).filter((path) => run.calls.get(path)?.name === call.name)
  const place = alike.indexOf(call.path)
  return place < 0 || alike.length < 2 ? call.name : `${call.name} ${place + 1} of ${alike.length}`
}

/** Returns the words for a possibly unpublished call. */
const named = (run: Fold.Run, path: string): string => {
  const call = run.calls.get(path)
  return call === undefined ? "another call" : nameOf(run, call)
}

/** Words between a wait's reason and the calls causing it. */
const holders: { readonly [reason: string]: string } = { key: "held by", permit: "by", exclusive: "after" }

/** Tells whether a call waited only for its reply to end. */
export const isLate = (call: Fold.Call): boolean =>
  call.waits.length === 0 && !call.isEarly && call.turn >= 0 && (call.started ?? 0) > readyOf(call)

/** Returns the reasons for a call's waits in words, with the calls ahead. */
export const why = (run: Fold.Run, call: Fold.Call): string => {
  const reasons = call.waits.map((wait) => {
    const behind = wait.behind.map((path) => named(run, path))
    const who = wait.isElsewhere ? [...behind, "another run"] : behind
    const words = waitWords(call, wait)
    return who.length === 0 ? words : `${words}, ${holders[wait.reason] ?? "after"} ${listed(who)}`
  })
  return isLate(call) ? "the reply had to end" : reasons.join("; ")
}

const outcomes: { readonly [tag: string]: string } = {
  Completed: "Completed",
  MaxTurns: "Reached its turn limit",
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

/** Returns a run's state in words. */
export const outcomeOf = ({ outcome, suspensions }: Fold.Run): string => {
  const words = outcome === undefined ? "Running" : outcomes[outcome._tag] ?? outcome._tag
  return words === "Asks" && suspensions.length === 0 ? "Asked" : words
}

/** Returns a count with its noun. */
const many = (number: number, name: string): string =>
  `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`

/** Returns tokens and cost in words, with their unit, or `""` if unknown. */
export const usageOf = (usage: Fold.Usage | undefined, isNested = false): string => {
  const parts = [Words.tokens(usage), Words.cost(usage)].filter((text) => text !== "")
  return parts.length === 0 ? "" : `${parts.join(", ")}${isNested ? ", with sub-agents" : ""}`
}

/** Returns the call counts other than 0. */
const countsOf = ({ counts }: Fold.Run): ReadonlyArray<string> =>
  ([
    [counts.failed, "failed"],
    [counts.denied, "denied"],
    [counts.cancelled, "stopped"],
    [counts.asks, counts.asks === 1 ? "needs an answer" : "need an answer"],
    [counts.running, "running"]
  ] as const).flatMap(([number, words]) => number === 0 ? [] : [`${number.toLocaleString("en")} ${words}`])

const callsOf = ({ list }: Fold.Run): string => {
  const inner = list.reduce((sum, { owner }) => owner === "" ? sum : sum + 1, 0)
  const calls = many(list.length, "call")
  return inner === 0 ? calls : `${calls}, ${inner.toLocaleString("en")} of them in sub-agents`
}

/** Returns the facts about a run, for the line above its picture. */
export const facts = (run: Fold.Run): ReadonlyArray<string> => {
  const { early, most } = run.counts
  const usage = usageOf(run.total ?? run.usage, run.nested !== undefined)
  return [
    many(run.turns.filter(({ owner }) => owner === "").length, "turn"),
    ...(run.list.length === 0 ? [] : [callsOf(run)]),
    ...(early === 0 ? [] : [`${early.toLocaleString("en")} started early`]),
    ...countsOf(run),
    ...(most < 2 ? [] : [`at most ${most} at once`]),
    ...(usage === "" ? [] : [usage])
  ]
}

/** Returns the single sentence naming a run's picture. */
export const sentence = (run: Fold.Run): string => {
  const { early, most } = run.counts
  const parts = [
    many(run.list.length, "call"),
    `${early.toLocaleString("en")} started before the reply ended`,
    ...countsOf(run),
    ...(most === 0 ? [] : [`at most ${most} at once`])
  ]
  const time = run.startedAt === undefined ? "Run" : `Run of ${Words.seconds(run.end ?? run.now)}`
  return `${time}: ${parts.join(", ")}.`
}

/** Returns the facts about a model turn. */
export const turnOf = (turn: Fold.Turn, now: number): string => {
  const request = turn.requests.at(-1)
  const parts = [
    `turn ${turn.index + 1}`,
    ...(request?.model === undefined ? [] : [Words.marked(request.model)]),
    Words.seconds((turn.to ?? now) - turn.from),
    ...(turn.first === undefined ? [] : [`first piece after ${Words.seconds(turn.first - turn.from)}`]),
    usageOf(turn.usage)
  ]
  return parts.filter((text) => text !== "").join(", ")
}

/** Call order: as requested by the model, or longest first. */
export type Order = "asked" | "waited" | "ran"

/** Returns a run's calls in an order. In the model's order, a sub-agent's calls follow its own call. */
export const ordered = (run: Fold.Run, order: Order, now: number): ReadonlyArray<Fold.Call> => {
  if (order !== "asked") {
    const millis = new Map(
      run.list.map((call) => [call, (order === "ran" ? Words.ranOf(call, now) : waitedOf(call, now)) ?? -1] as const)
    )
    return run.list.toSorted((left, right) => (millis.get(right) ?? 0) - (millis.get(left) ?? 0))
  }
  const within = new Map<string, Array<Fold.Call>>()
  for (const call of run.list) {
    const calls = within.get(call.owner)
    if (calls === undefined) within.set(call.owner, [call])
    else calls.push(call)
  }
  const below = (owner: string): ReadonlyArray<Fold.Call> =>
    (within.get(owner) ?? []).toSorted((left, right) => left.asked - right.asked)
      .flatMap((call) => within.has(call.path) ? [call, ...below(call.path)] : [call])
  return below("")
}

/** Returns a call's place among all its run's calls in table order, and its enclosing call. */
export const placeOf = (run: Fold.Run, call: Fold.Call): string => {
  const calls = ordered(run, "asked", 0)
  const outer = call.owner === "" ? undefined : run.calls.get(call.owner)
  const within = outer === undefined ? "" : `, in ${nameOf(run, outer)}`
  return `${(calls.indexOf(call) + 1).toLocaleString("en")} of ${calls.length.toLocaleString("en")}${within}`
}

/**
 * Returns one sentence about a call, for a live region: it changes with the call's state, and not with the time spent
 * waiting or running so far.
 */
export const about = (run: Fold.Run, call: Fold.Call): string => {
  const waited = call.started === undefined ? undefined : waitedOf(call, call.started)
  const ran = call.ended === undefined ? undefined : Words.ranOf(call, call.ended)
  const reason = why(run, call)
  const words = [`${nameOf(run, call)}: ${stateOf(call)}`, `asked at ${Words.seconds(readyOf(call))}`]
  if (waited !== undefined) words.push(`waited ${Words.seconds(waited)}${reason === "" ? "" : ` (${reason})`}`)
  else if (reason !== "") words.push(reason)
  if (ran !== undefined) words.push(`ran ${Words.seconds(ran)}`)
  return `${words.join(", ")}.`
}
