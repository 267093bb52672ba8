/** Runs that end while the model speaks: whether its connection is closed, and how far it was read ahead. */
import { deltas, macrotask, Model, paced, sleep, type Source } from "../model.ts"
import { increment } from "../tools.ts"
import { drive, expectPromised, type Workload } from "../workload.ts"

const delta = "token "
/** How long a model is watched after its run has ended. */
const watch = { full: 200, quick: 200, check: 30 }

/** W6s */
export const abortSpeech: Workload = {
  title: "W6s abort while the model speaks",
  note:
    "A model that says something every 2 ms and never ends; the run is aborted after 50 ms. Read after: what was read " +
    "of the model in the 200 ms that follow.",
  metrics: {
    settle: { label: "settles ms" },
    after: { label: "read after" },
    closed: { label: "closed" },
    end: { label: "ends in" }
  },
  run: async (implementation, size) => {
    const loop = implementation.make([increment], 4)
    const speech = () => paced(deltas(Infinity, 1, delta), () => sleep(2))
    const model = new Model(speech)
    const stop = new AbortController()
    const run = drive(loop, { model, signal: stop.signal }).then(
      () => "a result",
      (error: unknown) => error instanceof Error ? error.name : String(error)
    )
    await sleep(50)
    const stoppedAt = performance.now()
    stop.abort(new DOMException("stopped", "AbortError"))
    const end = await Promise.race([run, sleep(2_000).then(() => "does not settle")])
    const settle = performance.now() - stoppedAt
    const { produced } = model
    await sleep(watch[size])
    const figures = { settle, after: model.produced - produced, closed: model.closed, end }
    expectPromised(implementation, "closes", "read after", figures.after, 0)
    expectPromised(implementation, "closes", "closed", figures.closed, 1)
    return figures
  }
}

const counts = { full: 1_000_000, quick: 100_000, check: 2_000 }
const wanted = 10
const perRound = 20

/** One delta in each read, and a round of the event loop for every so many. */
const socket = (count: number): Source => {
  let read = 0
  const source = deltas(count, 1, delta)
  return () => ++read % perRound === 0 ? macrotask().then(source) : source()
}

/** W7 */
export const leave: Workload = {
  title: "W7 leaving early",
  note: "The reader leaves after 10 deltas of a million. Read ahead: how many were read of the model by then; from a " +
    "source that comes in rounds of the event loop, as a socket does, and from one that never waits.",
  metrics: {
    ahead: { label: "read ahead" },
    after: { label: "read after" },
    closed: { label: "closed" },
    settle: { label: "settles ms" },
    aheadAtOnce: { label: "read ahead, no waits" },
    memory: { label: "peak RSS MB" }
  },
  run: async (implementation, size) => {
    const loop = implementation.make([increment], 4)
    const left = async (source: Source) => {
      const model = new Model(() => source)
      let seen = 0
      let produced = 0
      let leftAt = 0
      const onText = (): boolean => {
        if (++seen < wanted) return true
        if (seen === wanted) {
          produced = model.produced
          leftAt = performance.now()
        }
        return false
      }
      await drive(loop, { model, isLeftEarly: true, onText })
      const settle = performance.now() - leftAt
      await sleep(watch[size])
      return { ahead: produced, after: model.produced - produced, closed: model.closed, settle }
    }
    await left(socket(counts.check))
    const figures = await left(socket(counts[size]))
    const { ahead: aheadAtOnce } = await left(deltas(counts[size], 1, delta))
    expectPromised(implementation, "closes", "read ahead", figures.ahead, wanted)
    expectPromised(implementation, "closes", "read after", figures.after, 0)
    expectPromised(implementation, "closes", "closed", figures.closed, 1)
    expectPromised(implementation, "closes", "read ahead, no waits", aheadAtOnce, wanted)
    return { ...figures, aheadAtOnce }
  }
}
