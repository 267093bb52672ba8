/** The smallest program: one call, and the answer. How long it takes from nothing is measured from outside. */
import type { Implementation } from "../loop.ts"
import { calls } from "../model.ts"
import { increment } from "../tools.ts"
import { driveBatch, type Workload } from "../workload.ts"

export const program = (implementation: Implementation): Promise<void> =>
  driveBatch(implementation.make([increment], 4), calls(1, increment.name))

/** W9 */
export const start: Workload = {
  title: "W9 cold start",
  note: "A process that makes one run with one call and ends, from its start to its end: with packages as they are " +
    "installed, and as one bundle. Over Node: without what a program that does nothing takes.",
  metrics: {
    installed: { label: "ms", isCompared: true },
    over: { label: "over Node ms" },
    bundled: { label: "bundled ms", isCompared: true },
    size: { label: "bundle KB" },
    compressed: { label: "gzip KB" }
  },
  run: async (implementation) => {
    await program(implementation)
    return {}
  }
}
