/** Events of a run on their way to a page: what each costs as chunks of the AI SDK, and as events of AG-UI. */
import type { Event } from "heddle"
import { AgUi, UiStream } from "heddle/ui"
import { elapsed, expect, type Workload } from "../workload.ts"

const counts = { full: 200_000, quick: 50_000, check: 1_000 }

interface Encoder {
  readonly push: (event: Event.PublicEvent) => ReadonlyArray<{ readonly type: string }>
}

/** Encodes a text of so many deltas. Returns how many outputs there were. */
const text = (encoder: Encoder, count: number): number => {
  let outputs = encoder.push({ _tag: "MessageStarted" }).length
  for (let index = 0; index < count; index++) {
    outputs += encoder.push({ _tag: "TextDelta", id: null, delta: "token " }).length
  }
  return outputs
}

/** Encodes a turn of so many calls. */
const calls = (encoder: Encoder, count: number): number => {
  let outputs = encoder.push({ _tag: "MessageStarted" }).length
  for (let index = 0; index < count; index++) {
    outputs += encoder.push({ _tag: "ToolCallCompleted", id: `c${index}`, name: "work", arguments: { index } }).length
  }
  for (let index = 0; index < count; index++) {
    outputs += encoder.push({ _tag: "ToolResultEncoded", id: `c${index}`, content: "{}" }).length
  }
  return outputs
}

const ui = (): Encoder => UiStream.make({ messageId: "m" })
const ag = (): Encoder => AgUi.make({ threadId: "t", runId: "r" })

const perEvent = async (
  make: () => Encoder,
  encode: (encoder: Encoder, count: number) => number,
  count: number,
  outputs: number
): Promise<number> => {
  const run = () => elapsed(() => Promise.resolve(expect("outputs", encode(make(), count), outputs)))
  await run()
  await run()
  return Math.min(await run(), await run(), await run()) * 1_000 / count
}

/** W10 */
export const pages: Workload = {
  title: "W10 pages",
  note:
    "200,000 text deltas, and a tenth as many calls in one turn, through the encoders of heddle/ui; µs per delta or call.",
  metrics: {
    uiText: { label: "AI SDK, delta" },
    uiCalls: { label: "AI SDK, call" },
    agText: { label: "AG-UI, delta" },
    agCalls: { label: "AG-UI, call" }
  },
  run: async ({ name }, size) => {
    if (name !== "Heddle") return {}
    const deltas = counts[size]
    const some = deltas / 10
    return {
      uiText: await perEvent(ui, text, deltas, deltas + 3),
      uiCalls: await perEvent(ui, calls, some, 3 * some + 2),
      agText: await perEvent(ag, text, deltas, deltas + 3),
      agCalls: await perEvent(ag, calls, some, 4 * some + 2)
    }
  }
}
