/**
 * The marks of a call: how it came to start, and how it stands. They mean the same in the lines while a run goes on and
 * in the picture when it is over.
 */
import type * as Paint from "./paint.ts"
import type * as Run from "./run.ts"
import type * as Timeline from "./timeline.ts"

/** One character, and how it is set off. */
export type Mark = readonly [letter: string, style: Paint.Style]

/** Nothing to say. */
export const none: Mark = [" ", "plain"]

/** Started before the reply had ended. */
export const early: Mark = ["»", "accent"]

/** Waited at the barrier. */
export const barrier: Mark = ["‖", "accent"]

/** How a call stands. */
export const standing: Readonly<Record<Run.Standing, Mark>> = {
  waiting: ["·", "dim"],
  running: ["▸", "accent"],
  done: ["✓", "good"],
  failed: ["✗", "bad"],
  asking: ["?", "accent"],
  stopped: ["■", "bad"],
  abandoned: ["†", "bad"]
}

/** How a call came to start, or what it still waits at. */
export const start = (lane: Timeline.Lane): Mark =>
  lane.call.isEarly ? early : lane.waitsAtBarrier === undefined ? none : barrier
