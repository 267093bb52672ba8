/** Runs that are stopped from outside: how soon they settle, and what goes on after that. */
import type { Implementation, Run, Signal } from "../loop.ts"
import { calls, callsThenAnswer, type Model, reads, sleep } from "../model.ts"
import { increment, slow } from "../tools.ts"
import { drive, driveBatch, expectPromised, type Figures, type Seen, type Size, type Workload } from "../workload.ts"

const plans = {
  full: { tools: 64, before: 50, deaf: 1_000, grace: 100 },
  quick: { tools: 64, before: 50, deaf: 1_000, grace: 100 },
  check: { tools: 8, before: 5, deaf: 500, grace: 20 }
}

/** How long a run may take to settle. */
const settlePatience = 5_000
/** How often a tool looks at its signal. */
const glance = 10

const waitUntil = async (isDone: () => boolean, millis: number): Promise<void> => {
  const start = performance.now()
  while (!isDone() && performance.now() - start < millis) await sleep(2)
}

const timers = (): number => process.getActiveResourcesInfo().filter((resource) => resource === "Timeout").length

/** The tools of a run, as seen from the outside. */
class Watch {
  started = 0
  stopped = 0
  lastStop = Number.NaN

  get running(): number {
    return this.started - this.stopped
  }

  readonly watched = (body: (signal: Signal) => Promise<void>) => async (signal: Signal): Promise<void> => {
    this.started++
    try {
      await body(signal)
    } finally {
      this.stopped++
      this.lastStop = performance.now()
    }
  }
}

/** A run that is on its way, and how it ended once it has. */
class Started {
  private readonly watch: Watch
  end = "does not settle"
  settledAt = Number.NaN
  runningThen = Number.NaN
  seen: Seen | undefined

  constructor(run: Promise<Seen>, watch: Watch) {
    this.watch = watch
    void run.then(
      (seen) => {
        this.seen = seen
        this.settle("a result")
      },
      (error: unknown) => this.settle(error instanceof Error ? error.name : String(error))
    )
  }

  private settle(end: string): void {
    this.end = end
    this.settledAt = performance.now()
    this.runningThen = this.watch.running
  }

  get isSettled(): boolean {
    return !Number.isNaN(this.settledAt)
  }
}

interface Stopped {
  readonly figures: Figures
  readonly seen: Seen | undefined
}

/** Starts the tools, stops the run, and watches until nothing of it is left or time is up. */
const stopped = async (
  implementation: Implementation,
  size: Size,
  body: (signal: Signal) => Promise<void>,
  how: Partial<Run>
): Promise<Stopped> => {
  const { before, tools } = plans[size]
  const watch = new Watch()
  const tool = slow(watch.watched(body))
  const loop = implementation.make([tool, increment], 4)
  await driveBatch(loop, calls(4, increment.name))
  const timersBefore = timers()
  const model = callsThenAnswer(() => reads(calls(tools, tool.name)))
  const stop = new AbortController()
  const run = new Started(drive(loop, { model, signal: stop.signal, ...how }), watch)
  await sleep(before)
  await waitUntil(() => watch.started === tools, 1_000)
  const started = watch.started
  const stoppedAt = performance.now()
  stop.abort(new DOMException("stopped", "AbortError"))
  await waitUntil(() => run.isSettled, settlePatience)
  await waitUntil(() => watch.running === 0, 2_000)
  await sleep(before)
  return { figures: figures(run, watch, { model, started, stoppedAt, timersBefore }), seen: run.seen }
}

const figures = (
  run: Started,
  watch: Watch,
  { model, started, stoppedAt, timersBefore }: {
    readonly model: Model
    readonly started: number
    readonly stoppedAt: number
    readonly timersBefore: number
  }
) => ({
  started,
  settle: run.settledAt - stoppedAt,
  afterLast: Math.max(0, run.settledAt - watch.lastStop),
  runningThen: run.runningThen,
  bodies: watch.lastStop - stoppedAt,
  running: watch.running,
  late: watch.started - started,
  timers: Math.max(0, timers() - timersBefore),
  requests: model.requests.length,
  end: run.end
})

/** W6 */
export const abort: Workload = {
  title: "W6 abort",
  note: "64 tools that would take 10 s and look at their signal every 10 ms; the run is aborted after 50 ms. " +
    "Running then: tools that still run when it has settled.",
  metrics: {
    settle: { label: "settles ms" },
    afterLast: { label: "after the last tool ms" },
    runningThen: { label: "running then" },
    bodies: { label: "last tool ends ms" },
    running: { label: "running at last" },
    late: { label: "started late" },
    timers: { label: "timers left" },
    requests: { label: "model calls" },
    end: { label: "ends in" }
  },
  run: async (implementation, size) => {
    const { figures } = await stopped(implementation, size, async (signal) => {
      for (let waited = 0; waited < 10_000; waited += glance) {
        signal?.throwIfAborted()
        await sleep(glance)
      }
    }, {})
    const promised = { runningThen: 0, running: 0, late: 0, timers: 0, requests: 1 }
    for (const [key, value] of Object.entries(promised)) {
      expectPromised(implementation, "settlesLast", key, figures[key], value)
    }
    return figures
  }
}

/** W6d */
export const deaf: Workload = {
  title: "W6d cancel tools that do not listen",
  note: "64 tools that take 1 s whatever their signal says; the run is cancelled after 50 ms, with a grace period of " +
    "100 ms where there is such a thing. Abandoned: tools that the result says were left behind.",
  metrics: {
    settle: { label: "settles ms" },
    runningThen: { label: "running then" },
    abandoned: { label: "abandoned" },
    bodies: { label: "last tool ends ms" },
    late: { label: "started late" },
    timers: { label: "timers left" },
    requests: { label: "model calls" },
    end: { label: "ends in" }
  },
  run: async (implementation, size) => {
    const { deaf, grace: graceMillis, tools } = plans[size]
    const { figures, seen } = await stopped(implementation, size, () => sleep(deaf), {
      graceMillis,
      isCancelledSoftly: true
    })
    const abandoned = seen?.ending.abandoned
    expectPromised(implementation, "reportsAbandoned", "tools in the result", abandoned, tools)
    const promised = { late: 0, requests: 1, timers: 0 }
    for (const [key, value] of Object.entries(promised)) {
      expectPromised(implementation, "reportsAbandoned", key, figures[key], value)
    }
    return { ...figures, abandoned }
  }
}
