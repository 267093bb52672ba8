/** The policies that runs are given: a preset, or a preset with one knob changed. */
import * as Arbitrary from "effect/Arbitrary"
import { Policy } from "heddle"
import { type Dimension, dimension, oneOf } from "./dimension.ts"

const presets = [Policy.standard, Policy.standard, Policy.allm, Policy.falai] as const

type Knobs = { readonly [Name in keyof Policy.Policy]?: Arbitrary.Arbitrary<Policy.Policy[Name]> }

const siblings: Arbitrary.Arbitrary<Policy.Policy["siblings"]> = Arbitrary.all({
  onHalt: oneOf("drain", "abortCancelable", "abortAll"),
  onToolError: oneOf("drain", "abortCancelable", "abortAll"),
  queued: oneOf("run", "skip"),
  trigger: oneOf("crashed", "crashedOrReported")
})

const knobs: Knobs = {
  start: oneOf("afterTurn", "readOnly", "onCallReady"),
  resultOrder: oneOf("request", "completion"),
  toolEvents: oneOf("live", "grouped"),
  unknownTool: oneOf("answer", "failTurn"),
  toolTurn: oneOf("presence", "finishReason"),
  badArguments: oneOf("answer", "runWithHeaderArguments"),
  haltPrecedence: oneOf("request", "completion"),
  adapterErrors: oneOf("sticky", "lastWins"),
  siblings,
  concurrency: oneOf("shared", "exclusive"),
  interrupt: oneOf("cancel", "block"),
  results: oneOf("plain", "resultObject"),
  onMaxTurns: oneOf("halt", "finalize")
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
      changed: oneOf(null, ...names, "siblings", "siblings"),
      values: Arbitrary.all(knobs as Record<string, Arbitrary.Arbitrary<unknown>>)
    }),
    ({ changed, preset, values }) => usable(changed === null ? preset : { ...preset, [changed]: values[changed] })
  )
)

/** Whether a call may be stopped by what became of another one. */
export const abortsSiblings = ({ siblings }: Policy.Policy): boolean =>
  siblings.onHalt !== "drain" || siblings.onToolError !== "drain"
