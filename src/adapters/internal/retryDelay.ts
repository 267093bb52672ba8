/**
 * How long a server asks to be left alone, out of the headers of an answer that says so: `retry-after`, or, where a limit
 * is used up, the time at which it is full again. Providers write times in every way there is.
 */
import * as DateTime from "effect/DateTime"
import * as Option from "effect/Option"

type Headers = Readonly<Record<string, string | undefined>>

/** A proxy passes on what the provider behind it said. */
const prefixes = ["", "llm_provider-"] as const

const positive = (value: number): number | undefined => Number.isFinite(value) && value > 0 ? value : undefined

/** The delay in milliseconds, if one is named. `now` is the time that dates are compared with. */
export const fromHeaders = (headers: Headers, now: number): number | undefined =>
  prefixes.map((prefix) => stated(headers, prefix, now)).find((delay) => delay !== undefined) ?? refill(headers, now)

const stated = (headers: Headers, prefix: string, now: number): number | undefined => {
  const millis = positive(Number(headers[`${prefix}retry-after-ms`]))
  const after = headers[`${prefix}retry-after`]
  if (millis !== undefined || after === undefined) return millis
  const seconds = Number(after)
  return Number.isNaN(seconds) ? untilDate(after, now) : positive(seconds * 1000)
}

const untilDate = (text: string, now: number): number | undefined =>
  Option.match(DateTime.make(text), {
    onNone: () => undefined,
    onSome: (time) => positive(DateTime.toEpochMillis(time) - now)
  })

const resetName = /^(llm_provider-)?(x-ratelimit-reset(-[a-z0-9-]+)?|anthropic-ratelimit-[a-z-]+-reset)$/

/** When the last of the limits that are used up is full again. */
const refill = (headers: Headers, now: number): number | undefined => {
  const delays = Object.entries(headers).flatMap(([name, value]) => {
    if (value === undefined || !resetName.test(name)) return []
    const left = headers[name.replace("reset", "remaining")]
    const delay = left === undefined || Number(left) > 0 ? undefined : untilReset(value.trim(), now)
    return delay === undefined ? [] : [delay]
  })
  return delays.length === 0 ? undefined : Math.max(...delays)
}

const units: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

const duration = /(\d+(?:\.\d+)?)(ms|s|m|h|d)/g

/** A duration as Go writes it, seconds, seconds or milliseconds since 1970, or a date. */
const untilReset = (text: string, now: number): number | undefined => {
  const number = Number(text)
  if (text !== "" && !Number.isNaN(number)) {
    if (number >= 1e11) return positive(number - now)
    return positive(number >= 1e9 ? number * 1000 - now : number * 1000)
  }
  if (text.replaceAll(duration, "") !== "") return untilDate(text, now)
  const parts = Array.from(text.matchAll(duration), ([, amount, unit = ""]) => Number(amount) * (units[unit] ?? 0))
  return positive(parts.reduce((sum, part) => sum + part, 0))
}
