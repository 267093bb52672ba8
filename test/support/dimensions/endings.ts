/** How a reply of the model ends. */
import { Script } from "heddle/testing"

interface Ending {
  readonly entries: ReadonlyArray<Script.Entry>
  /** What comes before everything else of the reply. */
  readonly first?: ReadonlyArray<Script.Entry>
  /** Whether the request is refused before there is a connection. */
  readonly isRefused?: true
}

const finish = (reason: Parameters<typeof Script.finish>[0]): Ending => ({ entries: [Script.finish(reason)] })

export const endings = {
  tool_calls: finish("tool_calls"),
  stop: finish("stop"),
  length: finish("length"),
  content_filter: finish("content_filter"),
  error: finish("error"),
  other: finish("other"),
  none: finish(null),
  paused: { entries: [Script.finish("other", { paused: true })] },
  errorEvent: { entries: [Script.error("provider_unavailable")] },
  errorThenContinue: { entries: [Script.errorThenContinue("provider_unavailable"), Script.finish("tool_calls")] },
  drop: { entries: [Script.streamError("network_error")] },
  preflight: { entries: [], first: [Script.preflightError("provider_unavailable")], isRefused: true }
} satisfies { readonly [name: string]: Ending }

export type EndingName = keyof typeof endings

export const isRefused = (name: EndingName): boolean => "isRefused" in endings[name]

/** The entries of a reply that says something and then ends. */
export const replied = (name: EndingName, said: ReadonlyArray<Script.Entry>): ReadonlyArray<Script.Entry> => {
  const { entries, first = [] }: Ending = endings[name]
  return [...first, ...said, ...entries]
}
