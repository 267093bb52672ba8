/** Checks a handler log: handlers ended with the run, were finalized once, and overlapped only as allowed. */
import type { Entry, HandlerOptions, Violation } from "./violation.ts"

/** Handlers with the same name. */
interface Tally {
  starts: number
  ends: number
  finalized: number
}

type Tallies = Map<string, Tally>

const tallyOf = (tallies: Tallies, name: string): Tally => {
  const tally = tallies.get(name) ?? { starts: 0, ends: 0, finalized: 0 }
  tallies.set(name, tally)
  return tally
}

const live = (tallies: Tallies, counts: (name: string) => boolean): number => {
  let sum = 0
  for (const [name, { ends, starts }] of tallies) if (counts(name)) sum += starts - ends
  return sum
}

interface Rules {
  readonly bound: number
  readonly isExclusive: (name: string) => boolean
  readonly isAbandoned: (name: string) => boolean
}

/** Returns the handler or rule preventing a handler from starting now. */
const inTheWay = (tallies: Tallies, name: string, { bound, isAbandoned, isExclusive }: Rules): string | undefined => {
  if (isExclusive(name)) {
    return live(tallies, () => true) > 0 ? `exclusive "${name}" starts while others run` : undefined
  }
  if (live(tallies, isExclusive) > 0) return `"${name}" starts while an exclusive handler runs`
  const shared = live(tallies, (other) => !isAbandoned(other)) + 1
  return shared > bound ? `"${name}" is number ${shared} to run, the bound is ${bound}` : undefined
}

const leftOver = (name: string, { ends, finalized, starts }: Tally, isAbandoned: boolean): ReadonlyArray<string> => [
  ...(ends < starts && !isAbandoned ? [`${starts - ends} of "${name}" are alive after the run`] : []),
  ...(finalized === ends ? [] : [`"${name}" ended ${ends} times and was finalized ${finalized} times`])
]

export const handlers = (log: ReadonlyArray<Entry>, options: HandlerOptions = {}): ReadonlyArray<Violation> => {
  const { abandoned = [], bound = Infinity, isExclusive = () => false } = options
  const rules: Rules = { bound, isExclusive, isAbandoned: (name) => abandoned.includes(name) }
  const found: Array<Violation> = []
  const tallies: Tallies = new Map()
  log.forEach((entry, index) => {
    if (entry._tag === "Emitted") return
    const tally = tallyOf(tallies, entry.name)
    if (entry._tag === "Started") {
      const message = inTheWay(tallies, entry.name, rules)
      if (message !== undefined) found.push({ law: "concurrency", message, index })
      tally.starts++
    } else if (entry._tag === "Finalized") tally.finalized++
    else tally.ends++
  })
  for (const [name, tally] of tallies) {
    for (const message of leftOver(name, tally, rules.isAbandoned(name))) found.push({ law: "lifetime", message })
  }
  return found
}
