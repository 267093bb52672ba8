/** Many turns, one call in each: what a turn costs, and whether it costs more the longer the history is. */
import { answer, calls, Model, reads } from "../model.ts"
import { median } from "../statistics.ts"
import { increment } from "../tools.ts"
import { drive, elapsed, expect, type Workload } from "../workload.ts"

const plans = {
  full: { turns: 1_000, early: 100, warm: 200 },
  quick: { turns: 300, early: 60, warm: 200 },
  check: { turns: 40, early: 20, warm: 0 }
}
/** A figure at a turn is the median of so many around it: one alone is mostly noise. */
const around = 20

/** What the model says is made beforehand: it is no part of a turn. */
const scripted = (turns: number): Model => {
  const replies = Array.from({ length: turns }, (_, turn) => calls(1, increment.name, `turn_${turn}_`))
  return new Model((turn) => reads(replies[turn] ?? answer))
}

/** W3 */
export const turns: Workload = {
  title: "W3 turns",
  note:
    "1,000 turns with one call each, while the history grows; growth is the cost of a turn at the end over that at 100.",
  metrics: {
    late: { label: "µs per turn at 1,000", isCompared: true },
    early: { label: "µs per turn at 100", isCompared: true },
    growth: { label: "growth" },
    millis: { label: "ms in all", isCompared: true },
    memory: { label: "peak RSS MB" }
  },
  run: async (implementation, size) => {
    const { early, turns, warm } = plans[size]
    const loop = implementation.make([increment], turns + 1)
    if (warm > 0) await drive(loop, { model: scripted(warm) })
    const model = scripted(turns)
    const millis = await elapsed(async () => {
      const seen = await drive(loop, { model })
      expect("tool results", seen.results, turns)
      expect("sum of the results", seen.sum, turns)
      expect("model calls", model.requests.length, turns + 1)
      expect("whether the history reaches the model", model.messages >= turns, true)
    })
    const gaps = model.requests.slice(1).map((at, index) => (at - model.requests[index]!) * 1_000)
    const at = (turn: number): number => median(gaps.slice(Math.max(0, turn - around / 2), turn + around / 2))
    const ends = { early: at(early), late: at(turns - around / 2) }
    return { ...ends, growth: ends.late / ends.early, millis }
  }
}
