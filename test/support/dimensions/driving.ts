/** How a run is driven: its options, its services and its reader. */
import * as Effect from "effect/Effect"
import * as Scheduler from "effect/Scheduler"
import { type Chat, Encoder, type Event, Limits, Tool } from "heddle"
import { among, type Dimension, type Point, rarely, rarelyNamesOf } from "./dimension.ts"
import { policies } from "./policies.ts"

/** The failure that `onToolError` decides on, where it fails the run. */
export class Decided {
  readonly _tag = "Decided"
}

type Options = Partial<Chat.Options<ReadonlyArray<Tool.Any>, Decided, never>>

type Run = <A, E, R>(run: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

/** A dimension of the run itself: what a value says in its options, and what it puts around it. */
interface Knob<A> extends Dimension<A> {
  readonly options?: (value: A, driving: { readonly decisionLatency: number }) => Options
  readonly around?: (value: A) => Run
}

const knob = <A>(values: Dimension<A>, options: Knob<A>["options"], around?: Knob<A>["around"]): Knob<A> => ({
  ...values,
  ...(options === undefined ? {} : { options }),
  ...(around === undefined ? {} : { around })
})

/** Waits, and needs a moment to stop when it is interrupted. */
const pause = (millis: number): Effect.Effect<void> =>
  millis === 0 ? Effect.void : Effect.onInterrupt(Effect.sleep(millis), () => Effect.sleep(5))

const replaced = Tool.ErrorDecision.continue("replaced")

const asked = (
  decide: (call: { readonly id: string }) => Effect.Effect<Tool.ErrorDecision<Decided>>
): (latency: number) => Options["onToolError"] =>
(latency) =>
(call, _error) => Effect.andThen(pause(latency), Effect.suspend(() => decide(call)))

/** What the caller decides on a failed call. */
const decisions: { readonly [name: string]: (latency: number) => Options["onToolError"] } = {
  continue: () => "continue",
  halt: () => "halt",
  replace: asked(() => Effect.succeed(replaced)),
  halting: asked(() => Effect.succeed(Tool.ErrorDecision.halt)),
  fail: asked(() => Effect.succeed(Tool.ErrorDecision.fail(new Decided()))),
  die: asked(() => Effect.die(new Error("onToolError broke"))),
  invalid: asked(() => Effect.succeed("continue" as unknown as Tool.ErrorDecision)),
  mixed: asked(({ id }) => Effect.succeed(id.endsWith("1") ? Tool.ErrorDecision.halt : replaced))
}

/** After how many operations a fiber makes room by itself. */
export const usualOps = 2048

const encoders = {
  json: Encoder.json,
  slow: { encode: (value) => Effect.andThen(pause(10), Encoder.json.encode(value)) },
  broken: { encode: () => Effect.die("the encoder broke") }
} satisfies { readonly [name: string]: Encoder.Service }

/** Times are multiples of ten, and limits are not, so that nothing depends on the order of events at one instant. */
export const drivingDimensions = {
  policy: knob(policies, (policy) => ({ policy })),
  onToolError: knob(
    rarelyNamesOf(decisions),
    (name, { decisionLatency }) => ({ onToolError: decisions[name]?.(decisionLatency) })
  ),
  decisionLatency: among<number>(0, 10, 30),
  encoder: knob(
    rarelyNamesOf(encoders),
    undefined,
    (name) => Effect.provideService(Encoder.Encoder, encoders[name])
  ),
  maxConcurrency: knob(among<number | null>(null, 1, 2, 3), (maxConcurrency) => ({
    maxConcurrency: maxConcurrency ?? undefined
  })),
  /** How many handlers the caller lets run at once, over all runs. */
  permits: knob(
    rarely<number | null>(null, 1, 2),
    undefined,
    (permits) => permits === null ? (run) => run : Effect.provide(Limits.layer({ permits }), { local: true })
  ),
  maxTurns: knob(rarely<number>(8, 1, 2), (maxTurns) => ({ maxTurns })),
  mode: knob(rarely<"auto" | "manual">("auto", "auto", "manual"), (mode) => ({ mode })),
  haltAt: knob(rarely<number | null>(null, null, 0, 1), (haltAt) => ({
    haltWhen: haltAt === null ? undefined : (step: Event.StepResult) => step.thread.messages.length > haltAt * 8 + 1
  })),
  isStructured: knob(
    rarely<boolean>(false, false, true),
    (isStructured) => isStructured ? { structuredFinalize: true, responseFormat: { type: "json_object" } } : {}
  ),
  hidesDeltas: knob(
    among<boolean>(false, true),
    (hidesDeltas) => ({ emitTextDeltas: !hidesDeltas, emitToolDeltas: !hidesDeltas })
  ),
  /** How long the reader of the stream takes for each event. */
  readerPause: rarely<number>(0, 0, 100),
  /** After how many operations a fiber makes room for others: with a few, anything may come between any two of them. */
  maxOps: knob(
    rarely<number>(usualOps, usualOps, 3, 7, 31),
    undefined,
    (maxOps) => Effect.provideService(Scheduler.MaxOpsBeforeYield, maxOps)
  ),
  /** When the run has to be done. */
  deadline: knob(
    rarely<number | null>(null, 55, 115),
    (deadline) => deadline === null ? {} : { deadline }
  ),
  /** When the run is asked to stop softly. */
  cancelAt: knob(
    rarely<number | null>(null, 0, 13, 37, 62, 99),
    (cancelAt) => cancelAt === null ? {} : { cancel: Effect.sleep(cancelAt) }
  )
} satisfies { readonly [name: string]: Knob<any> }

export type Driving = Point<typeof drivingDimensions>

const entries = Object.entries(drivingDimensions) as ReadonlyArray<readonly [keyof Driving, Knob<any>]>

/** What all dimensions together say in the options of a run. */
export const optionsOf = (driving: Driving): Options =>
  Object.assign({}, ...entries.map(([name, { options }]) => options?.(driving[name], driving)))

/** A run with what all dimensions put around it. */
export const around = (driving: Driving): Run => (run) =>
  entries.reduce((inner, [name, { around }]) => around === undefined ? inner : around(driving[name])(inner), run)
