/** Words for messages and calls: times, tokens, cost, values on one line, and marks for hidden characters. */
import type * as Fold from "../data/fold.ts"

/** Returns a duration in words: `"599 ms"`, `"1.3 s"`, `"2 min 5 s"`. */
export const seconds = (millis: number): string => {
  if (millis < 999.5) return `${Math.max(0, Math.round(millis))} ms`
  if (millis < 59_950) return `${(millis / 1000).toFixed(1)} s`
  const whole = Math.round(millis / 1000)
  return `${Math.floor(whole / 60)} min ${whole % 60} s`
}

const count = (value: number | string | undefined): string =>
  typeof value === "number" ? value.toLocaleString("en") : "?"

/** Returns tokens in words, or `""` if no usage was reported. */
export const tokens = (usage: Fold.Usage | undefined): string => {
  const { inputTokens, outputTokens, totalTokens } = usage ?? {}
  if (inputTokens !== undefined || outputTokens !== undefined) {
    return `${count(inputTokens)} tokens in, ${count(outputTokens)} out`
  }
  return totalTokens === undefined ? "" : `${count(totalTokens)} tokens`
}

/** Returns a cost in words, or `""` if unknown: an unknown cost is not zero. */
export const cost = (usage: Fold.Usage | undefined): string => {
  const { currency, totalCost } = usage ?? {}
  if (typeof totalCost !== "number") return ""
  // A small cost is not zero.
  const isTiny = totalCost > 0 && totalCost < 0.0001
  const figure = isTiny ? "< 0.0001" : totalCost.toFixed(totalCost < 0.1 ? 4 : 2)
  return typeof currency === "string" ? `${figure} ${currency}` : figure
}

/**
 * Returns the spending against a budget, or `""` without a budget: `"4 of 24 calls, 9,615 of 400,000 tokens spent"`.
 */
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

/** Returns a person's name. A server without principals knows only `local`. */
export const personOf = (by: string): string => by === "local" ? "a local user" : by

/** Returns a call's state in words. */
export const stateOf = (call: Fold.Call): string => {
  if (call.abandoned !== undefined) return "left running"
  if (call.state === "asks" && call.decided !== undefined) return `${decisions[call.decided]}, waits for the others`
  const wait = call.state === "waiting" ? call.waits.at(-1) : undefined
  if (wait === undefined) return stateWords[call.state]
  return wait.key === undefined ? reasons[wait.reason] ?? "waits" : `waits for ${wait.key}`
}

/** Tells whether a running run's call can be stopped alone. */
export const isStoppable = (run: Fold.Run, { isProviders, state, stopAt }: Fold.Call): boolean =>
  run.end === undefined && run.stopAt === undefined && stopAt === undefined && !isProviders
  && (state === "running" || state === "waiting")

/** Returns the sign before a call's name, with the same meaning as its color. */
export const signOf = ({ decided, state }: Fold.Call): string =>
  state === "asks" && decided === undefined ? "? " : signs[state] ?? ""

const signs: { readonly [State in Fold.State]?: string } = { failed: "✕ ", denied: "⊘ ", cancelled: "■ " }

/** Returns a call's running time in milliseconds, or `undefined` if it did not start. */
export const ranOf = ({ attempts }: Fold.Call, now: number): number | undefined =>
  attempts.length === 0 ? undefined : attempts.reduce((sum, { from, to = now }) => sum + to - from, 0)

/** Characters without width, changing the text direction, or controlling a terminal. */
// oxlint-disable-next-line no-control-regex
const unseen = /[\0-\x08\x0b-\x1f\x7f-\x9f\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu

/** Replaces each invisible character with a mark, such as `⟨U+202E⟩`. */
export const marked = (text: string): string =>
  text.replace(unseen, (character) => {
    const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")
    return `⟨U+${code}⟩`
  })

/** Replaces each invisible character in JSON with an escape, keeping the value. */
const escaped = (json: string): string =>
  json.replace(
    unseen,
    (character) => character.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")
  )

/** Returns a value as multi-line JSON, or `""` without a value. */
export const jsonOf = (value: unknown): string => escaped(JSON.stringify(value, null, 2) ?? "")

/** Returns a value on one line, reading only its beginning. */
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

/** Returns the first argument values in a few words. */
const valuesOf = (value: unknown): string =>
  typeof value === "object" && value !== null
    ? Object.values(value).slice(0, 4).map(valuesOf).filter((text) => text !== "").join(" ")
    : typeof value === "string"
    ? value.slice(0, 60).trim()
    : ""

/** Returns a call's name for a reader: its tool, and the first words of its arguments. */
export const titleOf = (call: { readonly name: string; readonly arguments?: unknown }): string => {
  const words = valuesOf(call.arguments).replace(/\s+/g, " ")
  const short = words.length <= 40 ? words : `${words.slice(0, 40).replace(/\s\S*$/, "")}…`
  return marked(short === "" ? call.name : `${call.name} ${short}`)
}

/** Returns a message's or answer's content as text. Other parts are named. */
export const contentText = (content: unknown): string => {
  if (typeof content === "string") {
    // A JSON answer is shown over several lines, unless large.
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

/** Returns a user message as text. */
export const saidText = (content: unknown): string => {
  if (typeof content === "string") return content
  if (!Array.isArray(content)) return JSON.stringify(content) ?? ""
  return content.map((part: { readonly [field: string]: unknown } | null) =>
    part?.["type"] === "text"
      ? String(part["text"])
      : `[${String(part?.["filename"] ?? part?.["mediaType"] ?? part?.["type"] ?? "part")}]`
  ).join("\n")
}

/** Words for the runtime's error answers, by code. */
const problems: { readonly [code: string]: string } = {
  invalid_arguments: "The arguments do not fit",
  unknown_effect: "The effect is unknown",
  abandoned: "It has not stopped"
}

/**
 * Returns the sentence about a failed call: its answer's message, if the answer is error JSON. The preceding tool name
 * and code are omitted, and so is the interruption cause of an abandoned call.
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

/** Fate of a message sent into a run, and then beginning the next. */
export const taken = "Taken by this run: the previous run had ended."

/** Returns a sentence about calls left running by a run, or `""`. */
export const leftOf = ({ abandoned }: Fold.Run): string => {
  const names = abandoned.map(({ ageMillis, name }) => `${marked(name.slice(0, 100))} (for ${seconds(ageMillis)})`)
  return names.length === 0 ? "" : `Left running, and may still have an effect: ${names.join(", ")}.`
}

/** Describes an end other than plain completion, and whether it is bad. */
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
