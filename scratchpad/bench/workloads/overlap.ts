/** A call that is whole long before the reply has ended: when its tool starts, and when its result is seen. */
import type { Implementation } from "../loop.ts"
import { calls, callsThenAnswer, delayed, type Model, reads, sequence, sleep, type Source } from "../model.ts"
import { increment, pause, slow } from "../tools.ts"
import { drive, driveBatch, expect, expectPromised, type Figures, type Size, type Workload } from "../workload.ts"

interface Plan {
  /** When the call is whole, how long its tool takes, and how long the model goes on after it, in milliseconds. */
  readonly call: number
  readonly tool: number
  readonly after: number
}

/** When something happened, and whether the reply that asked for it had not ended by then. */
class Moments {
  readonly at = { start: Number.NaN, done: Number.NaN, seen: Number.NaN }
  readonly early = new Set<string>()

  note(what: "start" | "done" | "seen", model: Model): void {
    this.at[what] = performance.now()
    if (model.closed === 0) this.early.add(what)
  }
}

const usual: Plan = { call: 50, tool: 300, after: 500 }
const plans: Readonly<Record<Size, Plan>> = { full: usual, quick: usual, check: { call: 5, tool: 30, after: 200 } }

const perWord = 10

/** What the model does after its call, for so many milliseconds. */
type Rest = (millis: number) => Source

/** A machine that stands still for a while does not keep the model from saying most of its words. */
const speaking: Rest = (millis) => {
  let words = 0
  let until: number | undefined
  return async () => {
    until ??= performance.now() + millis
    await sleep(perWord)
    const isOver = performance.now() >= until && words >= millis / perWord / 2
    words++
    return isOver ? undefined : [{ type: "text", delta: "word " }]
  }
}

const silent: Rest = (millis) => delayed(reads([]), millis * 2)

const run = async (implementation: Implementation, size: Size, rest: Rest): Promise<Figures> => {
  const plan = plans[size]
  const wait = pause(plan.tool)
  const moments = new Moments()
  const tool = slow(async (signal) => {
    moments.note("start", model)
    await wait(signal)
    moments.note("done", model)
  })
  const loop = implementation.make([tool, increment], 4)
  await driveBatch(loop, calls(2, increment.name))
  const call = delayed(reads(calls(1, tool.name)), plan.call)
  const model = callsThenAnswer(() => sequence([call, rest(plan.after)]))
  const { results, sum } = await drive(loop, { model }, () => moments.note("seen", model))
  expect("tool results", results, 1)
  expect("sum of the results", sum, 1)
  expect("model calls", model.requests.length, 2)
  expectPromised(implementation, "overlaps", "starts in time", moments.early.has("start"), true)
  expectPromised(implementation, "overlaps", "is seen in time", moments.early.has("seen"), true)
  const [begin = Number.NaN, next = Number.NaN] = model.requests
  const { done, seen, start } = moments.at
  return { start: start - begin, done: done - begin, seen: seen - begin, next: next - begin }
}

const metrics = {
  start: { label: "tool starts ms", isCompared: true },
  done: { label: "tool done ms" },
  seen: { label: "result seen ms" },
  next: { label: "next turn ms", isCompared: true }
}

/** W8 */
export const overlap: Workload = {
  title: "W8 overlap",
  note:
    "The call is whole at 50 ms, the model goes on until 550 ms, and the tool takes 300 ms: at best 50, 350, 350 and 550.",
  metrics,
  run: (implementation, size) => run(implementation, size, speaking)
}

/** W8s */
export const silence: Workload = {
  title: "W8s overlap with silence",
  note: "The call is whole at 50 ms, then the model says nothing for a second and ends; the tool takes 300 ms.",
  metrics,
  run: (implementation, size) => run(implementation, size, silent)
}
