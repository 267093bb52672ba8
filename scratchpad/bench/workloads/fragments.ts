/** Arguments that arrive in pieces: what a piece costs, and whether it costs more the more there are. */
import { callsThenAnswer, type Chunk, type Read, reads } from "../model.ts"
import { median } from "../statistics.ts"
import { count } from "../tools.ts"
import { driveCalls, patienceMillis, repeated, type Workload } from "../workload.ts"

const plans = {
  full: { characters: 1_000_000, fragments: [5_000, 10_000, 20_000], calls: 64, perCall: 200, millis: 1_000 },
  quick: { characters: 200_000, fragments: [5_000, 10_000, 20_000], calls: 64, perCall: 200, millis: 300 },
  check: { characters: 5_000, fragments: [50, 100, 200], calls: 8, perCall: 20, millis: 0 }
}

/** Above this, for the smallest of them, the rest would take minutes. */
const smallLimit = 300

const json = (characters: number): string => JSON.stringify({ text: "x".repeat(characters) })

const pieces = (text: string, count: number): ReadonlyArray<string> => {
  const size = Math.ceil(text.length / count)
  return Array.from(
    { length: Math.ceil(text.length / size) },
    (_, index) => text.slice(index * size, (index + 1) * size)
  )
}

const ids = (calls: number): ReadonlyArray<string> => Array.from({ length: calls }, (_, index) => `call_${index}`)

const each = (ids: ReadonlyArray<string>, chunk: (id: string) => Chunk): ReadonlyArray<Read> =>
  ids.map((id) => [chunk(id)])

/** Several calls at once, of so many characters each: a piece of each in turn, one in each read. */
const interleaved = (calls: number, characters: number, perCall: number): ReadonlyArray<Read> => [
  ...each(ids(calls), (id) => ({ type: "callStarted", id, name: count.name })),
  ...pieces(json(characters), perCall).flatMap((fragment) =>
    each(ids(calls), (id) => ({ type: "callArguments", id, fragment }))
  ),
  ...each(ids(calls), (id) => ({ type: "callCompleted", id }))
]

/** W4 */
export const fragments: Workload = {
  title: "W4 arguments in fragments",
  note:
    "One call with 1 MB of arguments in 5,000, 10,000 and 20,000 fragments, and 64 calls with 200 each, in turn; ms. " +
    "Small: 100 kB in 500; a loop that takes over 300 ms for it is not asked for more.",
  metrics: {
    small: { label: "small", isCompared: true },
    fragments0: { label: "5,000" },
    fragments1: { label: "10,000" },
    fragments2: { label: "20,000", isCompared: true },
    growth: { label: "20,000 over 10,000" },
    interleaved: { label: "64 × 200", isCompared: true }
  },
  run: async (implementation, size) => {
    const plan = plans[size]
    const loop = implementation.make([count], 4)
    const millis = async (calls: number, characters: number, perCall: number): Promise<number> => {
      const read = interleaved(calls, characters, perCall)
      const expected = { results: calls, sum: calls * characters }
      const work = () => driveCalls(loop, callsThenAnswer(() => reads(read)), expected)
      return median(await repeated(work, { least: 1, most: 5, millis: plan.millis }))
    }
    await millis(1, plan.characters / 50, plan.fragments[0]! / 10)
    const small = await millis(1, plan.characters / 10, plan.fragments[0]! / 10)
    if (small > smallLimit) return { small }
    const figures: Record<string, number> = { small }
    for (const [index, count] of plan.fragments.entries()) {
      const took = await millis(1, plan.characters, count)
      figures[`fragments${index}`] = took
      if (took > patienceMillis) return figures
    }
    return {
      ...figures,
      growth: figures["fragments2"]! / figures["fragments1"]!,
      interleaved: await millis(plan.calls, 2_000, plan.perCall)
    }
  }
}
