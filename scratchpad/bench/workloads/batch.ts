/** Calls in one turn: what each costs, and whether they run beside each other. */
import { calls, sleep } from "../model.ts"
import { median } from "../statistics.ts"
import { increment, pause, slow } from "../tools.ts"
import {
  driveBatch,
  elapsed,
  expectPromised,
  type Figures,
  patienceMillis,
  repeated,
  type Workload
} from "../workload.ts"

const counts = { full: [1, 8, 64, 512, 4_096], quick: [1, 8, 64, 512], check: [1, 8, 64] }
const compared = 64

/** W2 */
export const batch: Workload = {
  title: "W2 calls in one turn",
  note: "One turn with N calls of a tool that does next to nothing, then the answer; µs per call over the whole run. " +
    "Heddle with schema, timeout and bound on.",
  metrics: Object.fromEntries(
    counts.full.map((count) => [`calls${count}`, { label: `N = ${count}`, isCompared: count === compared }])
  ),
  run: async (implementation, size) => {
    const loop = implementation.make([increment], 4)
    const often = size === "check" ? { least: 1, most: 1, millis: 0 } : { least: 2, most: 200, millis: 250 }
    const warm = calls(32, increment.name)
    await repeated(() => driveBatch(loop, warm), { ...often, most: 40, millis: often.millis * 2 })
    const figures: Record<string, number> = {}
    let expected = 0
    let last = { count: 1, millis: 0 }
    for (const count of counts[size]) {
      if (expected > patienceMillis) break
      const reads = calls(count, increment.name)
      const millis = median(await repeated(() => driveBatch(loop, reads), often))
      figures[`calls${count}`] = millis * 1_000 / count
      expected = size === "full" && last.millis > 0 ? millis * (millis / last.millis) : 0
      last = { count, millis }
    }
    return figures satisfies Figures
  }
}

const waiting = { full: 64, quick: 64, check: 8 }
const waitMillis = 20

/** Where tools wait until all of them are there, or it is clear that they will not be. */
class Meeting {
  private readonly expected: number
  private readonly open: Promise<void>
  private release: () => void = () => {}
  private isFirst = true
  private running = 0
  most = 0

  constructor(expected: number) {
    this.expected = expected
    this.open = new Promise((resolve) => {
      this.release = resolve
    })
  }

  readonly attend = async (): Promise<void> => {
    if (this.isFirst) void sleep(1_000).then(this.release)
    this.isFirst = false
    this.most = Math.max(this.most, ++this.running)
    if (this.running === this.expected) this.release()
    await this.open
    this.running--
  }
}

/** W2p */
export const parallel: Workload = {
  title: "W2p calls that wait",
  note:
    "One turn with 64 calls that each wait 20 ms. At once: how many run beside each other if they wait for all others.",
  metrics: { millis: { label: "ms", isCompared: true }, most: { label: "at once" } },
  run: async (implementation, size) => {
    const count = waiting[size]
    const meeting = new Meeting(count)
    const meet = slow(meeting.attend)
    await driveBatch(implementation.make([meet], 4), calls(count, meet.name))
    const wait = slow(pause(waitMillis))
    const loop = implementation.make([wait], 4)
    const millis = await elapsed(() => driveBatch(loop, calls(count, wait.name)))
    expectPromised(implementation, "parallel", "calls at once", meeting.most, count)
    return { millis, most: meeting.most }
  }
}
