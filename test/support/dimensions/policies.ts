/** The policies that runs are given: a preset, or a preset with one knob changed. */
import * as Arbitrary from "effect/Arbitrary"
import { Policy } from "heddle"
import { type Dimension, dimension, oneOf } from "./dimension.ts"

const presets = [Policy.standard, Policy.allm, Policy.falai] as const

type Knobs = { readonly [Name in keyof Policy.Policy]?: Arbitrary.Arbitrary<Policy.Policy[Name]> }

const consequences = ["drain", "abortCancelable", "abortAll"] as const

const knobs: Knobs = {
  start: oneOf("afterTurn", "readOnly", "onCallReady"),
  resultOrder: oneOf("request", "completion"),
  toolEvents: oneOf("live", "grouped"),
  callFacts: oneOf("told", "hidden"),
  unknownTool: oneOf("answer", "failTurn"),
  toolTurn: oneOf("presence", "finishReason"),
  badArguments: oneOf("answer", "runWithHeaderArguments"),
  haltPrecedence: oneOf("request", "completion"),
  adapterErrors: oneOf("keepFirst", "lastWins"),
  siblings: Arbitrary.all({
    onHalt: oneOf(...consequences),
    onToolError: oneOf(...consequences),
    queued: oneOf("run", "skip"),
    trigger: oneOf("crashed", "crashedOrReported")
  }),
  interrupt: oneOf("cancel", "block"),
  onMaxTurns: oneOf("halt", "finalize"),
  results: oneOf("plain", "resultObject")
}

const names = Object.keys(knobs) as ReadonlyArray<keyof Policy.Policy>

/** A turn that fails as a whole cannot have started a tool. */
const usable = (policy: Policy.Policy): Policy.Policy =>
  policy.unknownTool === "failTurn" ? { ...policy, start: "afterTurn" } : policy

export const policies: Dimension<Policy.Policy> = dimension(
  Policy.standard,
  Arbitrary.map(
    Arbitrary.all({
      preset: oneOf(...presets),
      changed: oneOf(null, ...names),
      values: Arbitrary.all(knobs as Record<string, Arbitrary.Arbitrary<unknown>>)
    }),
    ({ changed, preset, values }) => usable(changed === null ? preset : { ...preset, [changed]: values[changed] })
  )
)
