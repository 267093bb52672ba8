/** The words of messages and calls: times, tokens, cost, values on one line, and marks of hidden characters. */
import type * as Fold from "../data/fold.ts"

/** Returns a time in words: `"599 ms"`, `"1.3 s"`, `"2 min 5 s"`. */
export const seconds = (millis: number): string => {
  if (millis < 999.5) return `${Math.max(0, Math.round(millis))} ms`
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
    return `${count(inputTokens)} tokens in, ${count(outputTokens)} out`
  }
  return totalTokens === undefined ? "" : `${count(totalTokens)} tokens`
}

/** Returns a cost in words, or `""` where none is known: an unknown cost is not nothing. */
export const cost = (usage: Fold.Usage | undefined): string => {
  const { currency, totalCost } = usage ?? {}
  if (typeof totalCost !== "number") return ""
  // A small cost is not nothing.
  const isTiny = totalCost > 0 && totalCost < 0.0001
  const figure = isTiny ? "< 0.0001" : totalCost.toFixed(totalCost < 0.1 ? 4 : 2)
  return typeof currency === "string" ? `${figure} ${currency}` : figure
}

/** Returns what was spent of a budget, or `""` without one: `"4 of 24 calls, 9,615 of 400,000 tokens spent"`. */
export const spent = (amount: Fold.Spent | undefined): string => {
  const { calls = 0, inputTokens = 0, left = {}, money = 0, outputTokens = 0 } = amount ?? {}
  const of = (spent: number, rest: number | undefined, name: string): ReadonlyArray<string> =>
    rest === undefined ? [] : [`${count(spent)} of ${count(spent + rest)} ${name}`]
  const parts = [
    ...of(calls, left.calls, "calls"),
    ...of(inputTokens, left.inputTokens, "tokens in"),
    ...of(outputTokens, left.outputTokens, "tokens out"),
    ...of(inputTokens + outputTokens, left.tokens, "tokens"),
    ...of(money / 1_000_000, left.money === undefined ? undefined : left.money / 1_000_000, "money")
  ]
  return parts.length === 0 ? "" : `${parts.join(", ")} spent`
}

const stateWords: { readonly [State in Fold.State]: string } = {
  asked: "asked for",
  waiting: "waits",
  running: "runs",
  asks: "needs an answer",
  done: "done",
  failed: "failed",
  cancelled: "stopped",
  denied: "denied"
}

const reasons: { readonly [reason: string]: string } = {
  permit: "waits for a place",
  key: "waits for its key",
  exclusive: "waits for other calls"
}

const decisions: { readonly [Decision in Fold.Decision]: string } = {
  approved: "allowed",
  denied: "denied",
  answered: "answered",
  expired: "expired"
}

/** Returns the name of a person. A server without principals knows one, `local`. */
export const personOf = (by: string): string => by === "local" ? "a local user" : by

/** Returns the state of a call in words. */
export const stateOf = (call: Fold.Call): string => {
  if (call.abandoned !== undefined) return "left running"
  if (call.state === "asks" && call.decided !== undefined) return `${decisions[call.decided]}, waits for the others`
  const wait = call.state === "waiting" ? call.waits.at(-1) : undefined
  if (wait === undefined) return stateWords[call.state]
  return wait.key === undefined ? reasons[wait.reason] ?? "waits" : `waits for ${wait.key}`
}

/** Tells whether a call of a run under way can be stopped alone. */
export const isStoppable = (run: Fold.Run, { isProviders, state, stopAt }: Fold.Call): boolean =>
  run.end === undefined && run.stopAt === undefined && stopAt === undefined && !isProviders
  && (state === "running" || state === "waiting")

/** Returns the sign before the name of a call, which says what its colour says. */
export const signOf = ({ decided, state }: Fold.Call): string =>
  state === "asks" && decided === undefined ? "? " : signs[state] ?? ""

const signs: { readonly [State in Fold.State]?: string } = { failed: "✕ ", denied: "⊘ ", cancelled: "■ " }

/** Returns the time for which a call ran, in milliseconds, or nothing where it did not start. */
export const ranOf = ({ attempts }: Fold.Call, now: number): number | undefined =>
  attempts.length === 0 ? undefined : attempts.reduce((sum, { from, to = now }) => sum + to - from, 0)

/** Characters that take no place, change the direction of what follows, or control a terminal. */
// oxlint-disable-next-line no-control-regex
const unseen = /[\0-\x08\x0b-\x1f\x7f-\x9f\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu

/** Returns a text in which each character that would not be seen is a mark, such as `⟨U+202E⟩`. */
export const marked = (text: string): string =>
  text.replace(unseen, (character) => {
    const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")
    return `⟨U+${code}⟩`
  })

/** Returns JSON in which each character that would not be seen is an escape. It is the same value. */
const escaped = (json: string): string =>
  json.replace(
    unseen,
    (character) => character.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")
  )

/** Returns a value as JSON over several lines, or `""` where there is none. */
export const jsonOf = (value: unknown): string => escaped(JSON.stringify(value, null, 2) ?? "")

/** Returns a value on one line, for which only its beginning is read. */
export const brief = (value: unknown, most = 120): string => {
  let left = most
  const write = (each: unknown): string => {
    if (left <= 0) return ""
    const text = typeof each === "string"
      ? JSON.stringify(each.slice(0, left))
      : Array.isArray(each)
      ? `[${listed(each, write)}]`
      : typeof each === "object" && each !== null
      ? listed(Object.entries(each), ([key, item]) => `${key}: ${write(item)}`)
      : String(each)
    left -= text.length
    return text
  }
  const listed = <A>(items: ReadonlyArray<A>, one: (item: A) => string): string => {
    const texts: Array<string> = []
    for (const item of items) {
      if (left <= 0) break
      texts.push(one(item))
    }
    return texts.join(", ")
  }
  return marked(write(value).slice(0, most))
}

/** Returns the first values of arguments in a few words. */
const valuesOf = (value: unknown): string =>
  typeof value === "object" && value !== null
    ? Object.values(value).slice(0, 4).map(valuesOf).filter((text) => text !== "").join(" ")
    : typeof value === "string"
    ? value.slice(0, 60).trim()
    : ""

/** Returns the name of a call by which a reader knows it: its tool, and the first words of its arguments. */
export const titleOf = (call: { readonly name: string; readonly arguments?: unknown }): string => {
  const words = valuesOf(call.arguments).replace(/\s+/g, " ")
  const short = words.length <= 40 ? words : `${words.slice(0, 40).replace(/\s\S*$/, "")}…`
  return marked(short === "" ? call.name : `${call.name} ${short}`)
}

/** Returns the content of a message or of an answer as text. Parts that are no text are named. */
export const contentText = (content: unknown): string => {
  if (typeof content === "string") {
    // An answer that is JSON is shown in lines, unless it is large.
    if (content.length < 20_000 && /^\s*[[{]/.test(content)) {
      try {
        return JSON.stringify(JSON.parse(content), null, 2)
      } catch {
        return content
      }
    }
    return content
  }
  return Array.isArray(content) ? saidText(content) : JSON.stringify(content, null, 2) ?? ""
}

/** Returns what a user has said. */
export const saidText = (content: unknown): string => {
  if (typeof content === "string") return content
  if (!Array.isArray(content)) return JSON.stringify(content) ?? ""
  return content.map((part: { readonly [field: string]: unknown } | null) =>
    part?.["type"] === "text"
      ? String(part["text"])
      : `[${String(part?.["filename"] ?? part?.["mediaType"] ?? part?.["type"] ?? "part")}]`
  ).join("\n")
}

/** The words of the errors with which a runtime answers a call, for their codes. */
const problems: { readonly [code: string]: string } = {
  invalid_arguments: "The arguments do not fit",
  unknown_effect: "The effect is not known",
  abandoned: "It has not stopped"
}

/**
 * Returns the sentence of a failed call: what its answer says, where that is the JSON of an error. The name of the tool
 * and the code before it are left out, and so is what an abandoned call was interrupted by.
 */
export const errorOf = (content: unknown): string => {
  if (typeof content === "string" && content.length > 20_000) return content
  const text = contentText(content)
  const said = (error: string): string => {
    const [whole = "", code = ""] = /^tool error(?: \([^)]{1,200}\))?: (\w+)(?:: )?/.exec(error) ?? []
    const detail = error.slice(whole.length)
    if (whole === "") return error
    const problem = problems[code]
    if (code === "abandoned") return `${problem}, and may still take effect.`
    return problem === undefined || detail === "" ? detail || code.replaceAll("_", " ") : `${problem}: ${detail}`
  }
  try {
    const parsed = JSON.parse(text) as { readonly error?: unknown } | null
    return typeof parsed?.error === "string" ? said(parsed.error) : text
  } catch {
    return said(text)
  }
}

/** The fate of a message that was sent into a run, and that the next one began with. */
export const taken = "Taken by this run: the one before had ended."

/** Returns what a run has left running, in a sentence, or `""`. */
export const leftOf = ({ abandoned }: Fold.Run): string => {
  const names = abandoned.map(({ ageMillis, name }) => `${marked(name.slice(0, 100))} (for ${seconds(ageMillis)})`)
  return names.length === 0 ? "" : `Left running, and may still have an effect: ${names.join(", ")}.`
}

/** Returns how a run ended, where that is more than that it did, and whether it is bad. */
export const endOf = (run: Fold.Run): { readonly text: string; readonly isBad: boolean } | undefined => {
  const { outcome } = run
  switch (outcome?._tag) {
    case "Failed":
      return { text: outcome.error?.message ?? run.error?.message ?? "The run failed.", isBad: true }
    case "MaxTurns":
      return { text: `The run ended after ${outcome.maxTurns ?? "its"} turns.`, isBad: false }
    case "ToolFailed":
      return { text: "The run ended because a call failed.", isBad: true }
    case "RuleEnded":
      return { text: `The run was ended by the rule "${outcome.rule ?? ""}".`, isBad: outcome.status === "error" }
    case "Halted":
    case "HaltWhen":
      return { text: "The run was ended before the model had finished.", isBad: false }
    case "Cancelled": {
      const isPlain = outcome.reason === undefined || outcome.reason === "stop"
      const by = run.stoppedBy === undefined ? "" : ` by ${personOf(run.stoppedBy)}`
      return { text: `Stopped${by}${isPlain ? "" : `: ${outcome.reason}`}.`, isBad: false }
    }
    default:
      return undefined
  }
}
