/** Many runs at once: how long they take together, and what each holds while it waits. */
import type { Loop } from "../loop.ts"
import { calls, sleep } from "../model.ts"
import { pause, slow } from "../tools.ts"
import { driveBatch, elapsed, expect, type Workload } from "../workload.ts"

const counts = { full: 10_000, quick: 1_000, check: 50 }
const warm = 50

const together = (loop: Loop, count: number, name: string): Promise<unknown> =>
  Promise.all(Array.from({ length: count }, () => driveBatch(loop, calls(1, name))))

/** W5 */
export const runs: Workload = {
  title: "W5 runs at once",
  note: "10,000 runs at once, each with one call that waits 50 ms, then the answer.",
  metrics: {
    millis: { label: "ms in all", isCompared: true },
    perRun: { label: "µs per run" },
    memory: { label: "peak RSS MB", isCompared: true }
  },
  run: async (implementation, size) => {
    const tool = slow(pause(50))
    const loop = implementation.make([tool], 4)
    await together(loop, warm, tool.name)
    const count = counts[size]
    const millis = await elapsed(() => together(loop, count, tool.name))
    return { millis, perRun: millis * 1_000 / count }
  }
}

const idleCounts = { full: 2_000, quick: 500, check: 20 }

/** What is held after everything that can go is gone, in bytes. */
const held = async (): Promise<number> => {
  if (globalThis.gc === undefined) throw new Error("the process has to be started with --expose-gc")
  for (let round = 0; round < 4; round++) {
    await sleep(5)
    globalThis.gc()
  }
  const { external, heapUsed } = process.memoryUsage()
  return heapUsed + external
}

/** What the tools of a round wait for. */
class Gate {
  started = 0
  private release: () => void = () => {}
  private opened = Promise.resolve()

  shut(): void {
    this.started = 0
    this.opened = new Promise((resolve) => {
      this.release = resolve
    })
  }

  open(): void {
    this.release()
  }

  readonly pass = (): Promise<void> => {
    this.started++
    return this.opened
  }
}

/** W5h */
export const idle: Workload = {
  title: "W5h idle runs",
  note:
    "2,000 runs that all wait in a tool: heap for each after a full collection, and what is left of each at the end.",
  metrics: {
    held: { label: "KB per run", isCompared: true },
    left: { label: "KB per run left" }
  },
  run: async (implementation, size) => {
    const gate = new Gate()
    const tool = slow(gate.pass)
    const loop = implementation.make([tool], 4)
    const round = async (count: number): Promise<number> => {
      gate.shut()
      const all = together(loop, count, tool.name)
      while (gate.started < count) await sleep(5)
      const bytes = await held()
      gate.open()
      await all
      expect("tools that started", gate.started, count)
      return bytes
    }
    await round(idleCounts.check * 5)
    const before = await held()
    const count = idleCounts[size]
    const during = await round(count)
    const after = await held()
    return { held: (during - before) / count / 1_024, left: (after - before) / count / 1_024 }
  }
}
