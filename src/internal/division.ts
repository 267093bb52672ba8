/**
 * What becomes of the calls of a reply: they run, they are the caller's to answer, or, where the reply is not acted on,
 * they are answered as cancelled. No call is left out, so that history stays valid whatever the reply ended with.
 */
import * as Effect from "effect/Effect"
import type * as Message from "../Message.ts"
import type * as Response from "../Response.ts"
import * as Plan from "./plan.ts"
import type * as Turn from "./turn.ts"

type Calls = ReadonlyArray<Message.ToolCall>

/** The calls of a turn, all of them and those that are the caller's. */
export interface Division {
  readonly calls: Calls
  readonly manual: Calls
  readonly jobs: ReadonlyArray<Plan.Job>
}

export const cancelled = (calls: Calls, detail: string): ReadonlyArray<Plan.Cancel> =>
  calls.map((call, index) => ({ _tag: "Cancel", index, call, tool: undefined, detail }))

/** Calls of manual tools. Where lost arguments are answered, a call that lost them is not worth handing over. */
const manualCalls = <E, R>(calls: Calls, { settings, tools }: Turn.Run<E, R>): Calls =>
  calls.filter((call) =>
    tools.get(call.name)?.manual === true &&
    (call.argumentsLost === undefined || settings.policy.badArguments !== "answer")
  )

/** Divides the calls of a reply that is acted on. */
export const acting = <E, R>(calls: Calls, run: Turn.Run<E, R>): Effect.Effect<Division, never, R> => {
  if (run.mode === "manual") return Effect.succeed({ calls, manual: [], jobs: [] })
  const manual = manualCalls(calls, run)
  const own = manual.length === 0 ? calls : calls.filter((call) => !manual.includes(call))
  return Effect.map(
    Effect.forEach(own, (call, index) => Plan.plan(index, call, run.tools, run.settings.policy)),
    (jobs) => ({ calls, manual, jobs })
  )
}

/** Divides the calls of a reply that ended in a way that forbids to act on it. */
export const passing = (calls: Calls, finishReason: Response.FinishReason | null): Division => ({
  calls,
  manual: [],
  jobs: cancelled(calls, `not run: the reply ended with ${finishReason ?? "no finish reason"}`)
})
