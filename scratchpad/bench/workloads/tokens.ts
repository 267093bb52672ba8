/** One turn of text: what each delta costs on its way from the wire to the reader. */
import { deltas, macrotask, Model, paced, type Source } from "../model.ts"
import { increment } from "../tools.ts"
import { drive, elapsed, expect, type Workload } from "../workload.ts"

const counts = { full: 100_000, quick: 50_000, check: 2_000 }
const delta = "token "
const perRead = 64
const perSocketRead = 16

/** W1 */
export const tokens: Workload = {
  title: "W1 text",
  note:
    "One turn of 100,000 text deltas; µs per delta. One or 64 deltas in each read, from a source that never waits; " +
    "socket: 16 in each read, and each read in a round of the event loop of its own.",
  metrics: {
    one: { label: "1 per read", isCompared: true },
    many: { label: `${perRead} per read`, isCompared: true },
    socket: { label: "socket", isCompared: true },
    memory: { label: "peak RSS MB" }
  },
  run: async (implementation, size) => {
    const loop = implementation.make([increment], 2)
    const perDelta = async (count: number, source: Source): Promise<number> => {
      const model = new Model(() => source)
      const millis = await elapsed(async () => {
        const seen = await drive(loop, { model })
        expect("characters", seen.characters, count * delta.length)
        expect("model calls", model.requests.length, 1)
        expect("replies that are closed", model.closed, 1)
      })
      return millis * 1_000 / count
    }
    const count = counts[size]
    const warm = count / 10
    await perDelta(warm, deltas(warm, 1, delta))
    await perDelta(warm, deltas(warm, perRead, delta))
    return {
      one: await perDelta(count, deltas(count, 1, delta)),
      many: await perDelta(count, deltas(count, perRead, delta)),
      socket: await perDelta(count, paced(deltas(count, perSocketRead, delta), macrotask))
    }
  }
}
