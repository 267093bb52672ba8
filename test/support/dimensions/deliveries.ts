/** How a call comes over the wire. */
import type { Policy } from "heddle"
import { Script } from "heddle/testing"

interface Delivery {
  readonly entries: (id: string, name: string, values: Readonly<Record<string, unknown>>) => ReadonlyArray<Script.Entry>
  /** Whether the arguments reach the handler whole. */
  readonly isWhole: (policy: Policy.Policy) => boolean
  /** Whether the wire says that the arguments are final before the reply has ended. */
  readonly isFinal: boolean
}

const started = (id: string, name: string): Script.Entry => Script.event({ _tag: "ToolCallStarted", id, name })

/** As a text, and where it is cut in two. */
const halves = (values: Readonly<Record<string, unknown>>): readonly [string, string] => {
  const text = JSON.stringify(values)
  return [text.slice(0, 9), text.slice(9)]
}

const partly = { isWhole: () => false, isFinal: false }

export const deliveries = {
  whole: {
    entries: (id, name, values) => [Script.toolCall(id, name, values)],
    isWhole: () => true,
    isFinal: true
  },
  fragments: {
    entries: (id, name, values) => [
      started(id, name),
      ...halves(values).map((fragment) => Script.toolCallDelta(id, fragment))
    ],
    isWhole: ({ badArguments }) => badArguments === "answer",
    isFinal: false
  },
  cut: {
    ...partly,
    entries: (id, name, values) => [started(id, name), Script.toolCallDelta(id, halves(values)[0])]
  },
  missing: { ...partly, entries: (id, name) => [started(id, name)] },
  lost: {
    ...partly,
    entries: (id, name) => [{ ...Script.toolCall(id, name, {}), argumentsLost: "json_decode_error" }]
  },
  provider: {
    ...partly,
    entries: (id, name, values) => [{ ...Script.toolCall(id, name, values), providerExecuted: true }]
  },
  // Whole arguments without a call belong to the one call that has none (O-07), which `laws/replies` draws.
  nameless: { ...partly, entries: (id, _name, values) => [Script.toolCallDelta(id, halves(values)[0])] }
} satisfies { readonly [name: string]: Delivery }
