/**
 * Generated runs, as plain data: what the model says in each turn, what becomes of each call, and how the run is driven.
 * A case says everything that happens, so that a failing one can be read, shrunk and played again.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"
import { Policy } from "heddle"

/** What a handler does. The first is the simplest: shrinking goes there. */
const kinds = [
  "ok",
  "object",
  "nothing",
  "fail",
  "die",
  "throw",
  "exit",
  "invalid",
  "ask",
  "halt",
  "reserved",
  "unencodable",
  "child",
  "retry",
  "never",
  "slowStop",
  "late",
  "refuse",
  "block",
  "unknown",
  "misnamed",
  "manual",
  "badArguments"
] as const

/** What generated handlers do, and what only a planted one does: it leaves a fiber behind. */
export type Kind = (typeof kinds)[number] | "leak"

/** How a call comes over the wire. */
const deliveries = ["whole", "fragments", "cut", "missing", "lost", "provider", "nameless"] as const

const endings = [
  "tool_calls",
  "stop",
  "length",
  "content_filter",
  "error",
  "other",
  "none",
  "errorEvent",
  "errorThenContinue",
  "drop",
  "preflight"
] as const

/** The ids of some calls are taken from here, so that they repeat and get in each other's way. */
const ids = ["d", "d_2", ""] as const

export interface Call {
  readonly kind: Kind
  readonly latency: number
  readonly isExclusive: boolean
  readonly isReadOnly: boolean
  readonly progress: number
  /** How long the model says nothing before it makes the call. */
  readonly gap: number
  readonly delivery: (typeof deliveries)[number]
  readonly id: (typeof ids)[number] | null
}

export interface Turn {
  readonly text: string | null
  readonly calls: ReadonlyArray<Call>
  readonly ending: (typeof endings)[number]
  readonly pause: number
}

export interface Driving {
  readonly policy: Policy.Policy
  readonly onToolError: "continue" | "halt" | "replace" | "halting" | "fail" | "die" | "invalid" | "mixed"
  readonly decisionLatency: number
  readonly encoder: "json" | "slow" | "broken"
  readonly maxConcurrency: number | null
  readonly maxTurns: number
  readonly mode: "auto" | "manual"
  readonly haltAt: number | null
  readonly isStructured: boolean
  readonly hidesDeltas: boolean
  readonly readerPause: number
  /** When the run is asked to stop softly. */
  readonly cancelAt: number | null
}

export interface Case {
  readonly turns: ReadonlyArray<Turn>
  readonly driving: Driving
}

/** One of the values; a value that is listed more often comes up more often. */
export const oneOf = <const A>(...values: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  Arbitrary.map(Arbitrary.schema(Schema.Literals(values.map((_, index) => index))), (index) => values[index] as A)

const rarely = <const A>(usual: A, ...others: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  oneOf(...others.flatMap(() => [usual, usual, usual]), ...others)

/** Times are multiples of ten, and limits are not, so that nothing depends on who is first at the same instant. */
export const latency = oneOf(0, 10, 20, 30, 40)

const call: Arbitrary.Arbitrary<Call> = Arbitrary.all({
  kind: oneOf(...kinds, "ok", "ok", "object", "fail"),
  latency,
  isExclusive: rarely(false, true),
  isReadOnly: oneOf(false, true),
  progress: oneOf(0, 0, 1, 3),
  gap: oneOf(0, 0, 0, 10, 20),
  delivery: rarely("whole", ...deliveries.slice(1)),
  id: rarely(null, ...ids)
})

const turn: Arbitrary.Arbitrary<Turn> = Arbitrary.all({
  text: oneOf(null, "", "text"),
  calls: Arbitrary.array(call, { minLength: 1, maxLength: 6 }),
  ending: rarely("tool_calls", ...endings.slice(1)),
  pause: oneOf(0, 10)
})

const knobs = {
  start: oneOf("afterTurn", "readOnly", "onCallReady"),
  resultOrder: oneOf("request", "completion"),
  toolEvents: oneOf("live", "grouped"),
  unknownTool: oneOf("answer", "failTurn"),
  toolTurn: oneOf("presence", "finishReason"),
  badArguments: oneOf("answer", "runWithHeaderArguments"),
  haltPrecedence: oneOf("request", "completion"),
  adapterErrors: oneOf("sticky", "lastWins"),
  siblings: Arbitrary.all({
    onHalt: oneOf("drain", "abortCancelable", "abortAll"),
    onToolError: oneOf("drain", "abortCancelable", "abortAll"),
    queued: oneOf("run", "skip"),
    trigger: oneOf("crashed", "crashedOrReported")
  }),
  results: oneOf("plain", "resultObject")
} as const

const knobNames = Object.keys(knobs) as ReadonlyArray<keyof typeof knobs>

/** A turn that fails as a whole cannot have started a tool. */
const usable = (policy: Policy.Policy): Policy.Policy =>
  policy.unknownTool === "failTurn" ? { ...policy, start: "afterTurn" } : policy

/** What a tool blocks and how a run is closed is the case's to say, so that the laws know of it. */
const falai: Policy.Policy = { ...Policy.falai, interrupt: "cancel", onMaxTurns: "halt" }

/** A preset, or a preset with one knob changed. */
const policy: Arbitrary.Arbitrary<Policy.Policy> = Arbitrary.map(
  Arbitrary.all({
    preset: oneOf(Policy.standard, Policy.allm, falai),
    changed: oneOf(null, ...knobNames),
    values: Arbitrary.all(knobs)
  }),
  ({ changed, preset, values }) => usable(changed === null ? preset : { ...preset, [changed]: values[changed] })
)

const driving: Arbitrary.Arbitrary<Driving> = Arbitrary.all({
  policy,
  onToolError: rarely("continue", "halt", "replace", "halting", "fail", "die", "invalid", "mixed"),
  decisionLatency: oneOf(0, 10, 30),
  encoder: rarely("json", "slow", "broken"),
  maxConcurrency: oneOf(null, 1, 2, 3),
  maxTurns: rarely(8, 1, 2),
  mode: rarely("auto", "auto", "manual"),
  haltAt: rarely(null, null, 0, 1),
  isStructured: rarely(false, false, true),
  hidesDeltas: oneOf(false, true),
  readerPause: rarely(0, 0, 100),
  cancelAt: rarely(null, 0, 13, 37, 62, 99)
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

/** Any run. */
export const cases: Arbitrary.Arbitrary<Case> = Arbitrary.all({
  turns: Arbitrary.array(turn, { minLength: 1, maxLength: 4 }),
  driving
})

/** The case under a policy by which no call ends another, so that each comes to what it does by itself. */
export const peaceful = ({ driving, turns }: Case): Case => ({
  turns,
  driving: { ...driving, policy: { ...driving.policy, siblings: Policy.standard.siblings } }
})
