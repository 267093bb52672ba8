/** The workloads by name, in the order in which they are run. */
import type { Workload } from "../workload.ts"
import { batch, parallel } from "./batch.ts"
import { tokens } from "./tokens.ts"
import { turns } from "./turns.ts"

export const workloads: Readonly<Record<string, Workload>> = {
  W1: tokens,
  W2: batch,
  W2p: parallel,
  W3: turns
}
