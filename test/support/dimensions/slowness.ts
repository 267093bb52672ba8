/** What of the caller's besides its tools takes its time, where, and how. */
import * as Effect from "effect/Effect"
import type { Event } from "heddle"
import { among, dimension, oneOf, type Point } from "./dimension.ts"

/** Ways of taking time. The first is the simplest: shrinking goes there. */
const paces = {
  never: Effect.never,
  deaf: Effect.uninterruptible(Effect.never),
  soon: Effect.sleep(20),
  late: Effect.uninterruptible(Effect.sleep(300)),
  slowStop: Effect.onInterrupt(Effect.never, () => Effect.sleep(10))
} satisfies { readonly [name: string]: Effect.Effect<void> }

type Identity = Pick<Event.Abandoned, "kind" | "name">

/** What may be slow, and what it is named by when a run leaves it behind. */
export const places = {
  onEvent: { kind: "hook", name: "onEvent" },
  haltWhen: { kind: "hook", name: "haltWhen" },
  open: { kind: "adapter", name: "stream" },
  pull: { kind: "adapter", name: "stream" },
  close: { kind: "adapter", name: "close" },
  cancel: { kind: "cancel", name: "cancel" },
  append: { kind: "store", name: "append" }
} satisfies { readonly [name: string]: Identity }

export type Place = keyof typeof places

const placeNames = Object.keys(places) as ReadonlyArray<Place>

export const slowDimensions = {
  place: dimension<Place>("onEvent", oneOf(...placeNames)),
  pace: dimension<keyof typeof paces>("never", oneOf(...Object.keys(paces) as ReadonlyArray<keyof typeof paces>)),
  /** How often it is quick before. */
  after: among<number>(0, 0, 0, 1, 2, 4)
}

export type Slow = Point<typeof slowDimensions>

export const paceOf = ({ pace }: Slow): Effect.Effect<void> => paces[pace]
