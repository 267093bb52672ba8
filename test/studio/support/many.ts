/** The events of a run with many calls, which wait, overlap and fail. It is the same run each time. */
import type * as Fold from "../../../src/studio/data/fold.ts"

/** Returns events of a run with so many calls, 500 a turn, about 300 at once. */
export const manyCalls = (number: number): ReadonlyArray<Fold.Told> => {
  const timed: Array<readonly [at: number, event: Fold.Told]> = []
  let seed = 1
  const random = (below: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
    return seed % below
  }
  const tell = (at: number, event: Fold.Told) => timed.push([at, { ...event, at: 1_000_000 + at }])
  tell(0, { _tag: "RunStarted", runId: "many" })
  let at = 0
  for (let turn = 0; turn * 500 < number; turn++) {
    tell(at, { _tag: "MessageStarted" })
    let end = at
    for (let index = turn * 500; index < Math.min(number, (turn + 1) * 500); index++) {
      at += 20
      const id = `c${index}`
      const name = ["read", "search", "account", "write"][random(4)] ?? "read"
      tell(at, { _tag: "ToolCallStarted", id, name })
      tell(at, { _tag: "ToolCallCompleted", id, name, arguments: { path: `file-${index}.md` } })
      const wait = random(4) === 0 ? 100 + random(900) : 0
      if (wait > 0) tell(at, { _tag: "ToolQueued", id, name, reason: random(2) === 0 ? "permit" : "key", key: "k" })
      const start = at + wait
      const finish = start + 100 + random(6_000)
      tell(start, { _tag: "ToolExecutionStarted", id, name })
      tell(finish, { _tag: "ToolExecutionCompleted", id, name })
      tell(finish, {
        _tag: "ToolResultEncoded",
        id,
        content: "12 lines",
        ...(random(20) === 0 ? { isError: true } : {})
      })
      end = Math.max(end, finish)
    }
    at += 20
    tell(at, { _tag: "MessageCompleted", finishReason: "tool_calls" })
    at = Math.max(at, end) + 1
    tell(at, { _tag: "StepCompleted", usage: { inputTokens: 1_000, outputTokens: 500 } })
  }
  tell(at, { _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } })
  return timed.map((entry, index) => ({ entry, index }))
    .sort((left, right) => left.entry[0] - right.entry[0] || left.index - right.index)
    .map(({ entry: [, event] }) => event)
}
