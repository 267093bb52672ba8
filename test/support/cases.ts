/**
 * Generated runs, as plain data: what the model says in each turn, what becomes of each call, and how the run is driven.
 * A case says everything that happens, so that a failing one can be read, shrunk and played again. What can be said is
 * declared in the tables of `dimensions/`.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"

import { deliveries } from "./dimensions/deliveries.ts"
import {
  among,
  dimension,
  oneOf,
  plainPoint,
  type Point,
  points,
  rarely,
  rarelyNamesOf
} from "./dimensions/dimension.ts"
import { type Driving, drivingDimensions, usualOps } from "./dimensions/driving.ts"
import { endings } from "./dimensions/endings.ts"
import { gates } from "./dimensions/gates.ts"
import { type KindName, kindNames } from "./dimensions/kinds.ts"

const callDimensions = {
  kind: dimension<KindName>("ok", oneOf<KindName>(...kindNames, "ok", "ok", "object", "fail")),
  latency: among<number>(0, 10, 20, 30, 40),
  gate: rarelyNamesOf(gates),
  isExclusive: rarely<boolean>(false, true),
  isReadOnly: among<boolean>(false, true),
  progress: among<number>(0, 0, 1, 3),
  /** How long the model says nothing before it makes the call. */
  gap: among<number>(0, 0, 0, 10, 20),
  delivery: rarelyNamesOf(deliveries),
  /** The ids of some calls are taken from here, so that they repeat and get in each other's way. */
  id: rarely<string | null>(null, "d", "d_2", "")
}

const turnDimensions = {
  text: among<string | null>(null, "", "text"),
  ending: rarelyNamesOf(endings),
  /** How long the model says nothing before its first call. */
  pause: among<number>(0, 10)
}

export type Call = Point<typeof callDimensions>

export interface Turn extends Point<typeof turnDimensions> {
  readonly calls: ReadonlyArray<Call>
}

export interface Case {
  readonly turns: ReadonlyArray<Turn>
  readonly driving: Driving
}

/** A call, a turn and a run at which everything is plain but for what is said. */
export const call = (change: Partial<Call> = {}): Call => ({ ...plainPoint(callDimensions), ...change })

export const turn = (calls: ReadonlyArray<Call>, change: Partial<Turn> = {}): Turn => ({
  ...plainPoint(turnDimensions),
  calls,
  ...change
})

export const caseOf = (turns: ReadonlyArray<Turn>, change: Partial<Driving> = {}): Case => ({
  turns,
  driving: { ...plainPoint(drivingDimensions), ...change }
})

const turns: Arbitrary.Arbitrary<Turn> = Arbitrary.map(
  Arbitrary.all({
    said: points(turnDimensions),
    calls: Arbitrary.array(points(callDimensions), { minLength: 1, maxLength: 6 })
  }),
  ({ calls, said }) => ({ ...said, calls })
)

/** Any run. */
export const cases: Arbitrary.Arbitrary<Case> = Arbitrary.all({
  turns: Arbitrary.array(turns, { minLength: 1, maxLength: 4 }),
  driving: points(drivingDimensions)
})

/**
 * The same run, streamed or awaited: both are read as fast as they come, for a slow reader sees more handlers stop in
 * time, and by fibers that take the same turns, for what happens at one instant happens in the order of these.
 */
export const readAtOnce = ({ driving, turns }: Case, hidesDeltas: boolean): Case => ({
  turns,
  driving: { ...driving, hidesDeltas, readerPause: 0, maxOps: usualOps }
})

/** How a run is left before its end: interrupted at a time, or by a reader that wants no more. */
export type Stop = { readonly at: number } | { readonly take: number }

export const stops: Arbitrary.Arbitrary<Stop> = Arbitrary.map(
  Arbitrary.all({
    isTake: oneOf(false, false, true),
    size: Arbitrary.schema(Schema.Literals(Array.from({ length: 80 }, (_, n) => n)))
  }),
  ({ isTake, size }): Stop => isTake ? { take: size } : { at: size * 3 }
)
