/**
 * What a whole tree of runs shares, as Context references: it reaches a run that a handler starts through the handler's
 * fiber, without anybody passing it along. Public as `Limits`, apart from those that only runs read.
 */
import * as Context from "effect/Context"
import type * as Semaphore from "effect/Semaphore"
import type * as Event from "../../Event.ts"
import type { Holding } from "../permits/heldPermits.ts"
import { KeyedPermits } from "../permits/keyedPermits.ts"
import type { Cancellation } from "./cancellation.ts"
import type { Spending } from "./spending.ts"

export const Permits: Context.Reference<Semaphore.Semaphore | undefined> = Context.Reference<
  Semaphore.Semaphore | undefined
>("heddle/Limits/Permits", { defaultValue: () => undefined })

export const Deadline: Context.Reference<number | undefined> = Context.Reference<number | undefined>(
  "heddle/Limits/Deadline",
  { defaultValue: () => undefined }
)

export const Keyed: Context.Reference<KeyedPermits> = Context.Reference<KeyedPermits>("heddle/Limits/Keyed", {
  defaultValue: () => new KeyedPermits()
})

/** The permits of the handler that this code runs in. */
export const CurrentHolding: Context.Reference<Holding | undefined> = Context.Reference<Holding | undefined>(
  "heddle/internal/Holding",
  { defaultValue: () => undefined }
)

/** The soft stop of the run whose handler this code runs in. */
export const ParentCancellation: Context.Reference<Cancellation | undefined> = Context.Reference<
  Cancellation | undefined
>("heddle/internal/ParentCancellation", { defaultValue: () => undefined })

/** What the run has used whose handler this code runs in. */
export const CurrentSpending: Context.Reference<Spending | undefined> = Context.Reference<Spending | undefined>(
  "heddle/internal/Spending",
  { defaultValue: () => undefined }
)

/** What a run is a part of, and what is waited for beside it: an operation of a session, with its store. */
export interface Operation {
  /** A run of it is left: what is waited for beside it has the same grace period. */
  readonly isLeft: (now: number) => void
  /** A run of it that has no result of its own has left these behind. */
  readonly left?: (abandoned: ReadonlyArray<Event.Abandoned>) => void
  /** The request id of the run that goes on where calls of an earlier one were settled: its first turn was that one's. */
  readonly continued?: string
}

export const CurrentOperation: Context.Reference<Operation | undefined> = Context.Reference<Operation | undefined>(
  "heddle/internal/Operation",
  { defaultValue: () => undefined }
)
