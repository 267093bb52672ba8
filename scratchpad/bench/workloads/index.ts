/** The workloads by name, in the order in which they are run. */
import type { Workload } from "../workload.ts"
import { batch, parallel } from "./batch.ts"
import { fragments } from "./fragments.ts"
import { abortSpeech, leave } from "./leave.ts"
import { overlap, silence } from "./overlap.ts"
import { pages } from "./pages.ts"
import { idle, runs } from "./runs.ts"
import { spans } from "./spans.ts"
import { start } from "./start.ts"
import { abort, deaf } from "./stop.ts"
import { tokens } from "./tokens.ts"
import { turns } from "./turns.ts"

export const workloads: Readonly<Record<string, Workload>> = {
  W1: tokens,
  W2: batch,
  W2p: parallel,
  W3: turns,
  W4: fragments,
  W5: runs,
  W5h: idle,
  W6: abort,
  W6d: deaf,
  W6s: abortSpeech,
  W7: leave,
  W8: overlap,
  W8s: silence,
  W9: start,
  W10: pages,
  W11: spans
}
