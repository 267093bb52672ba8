/**
 * Whether a call waits for somebody to allow it: asked after its tool's gates, before its handler. It fails closed: what
 * does not clearly say that no approval is needed, asks for one. A call that waits is settled by its place among the
 * suspensions; an answer it gets from somebody outside the run.
 */
import * as Effect from "effect/Effect"
import type * as Tool from "../../Tool.ts"
import * as Now from "../now.ts"
import type * as Plan from "./plan.ts"

export const isNeeded = (
  { args, call, tool: { approval } }: Plan.Run,
  context: Tool.CallContext,
  approved: ReadonlySet<string> | undefined
): Effect.Effect<boolean, never, any> => {
  if (approval === undefined || approval === false || approved?.has(call.id) === true) return Effect.succeed(false)
  if (approval === true) return Effect.succeed(true)
  return Effect.suspend(() => Now.toEffect<unknown, unknown, any>(approval(args, context), "approval")).pipe(
    Effect.map((needed) => needed !== false),
    Effect.catchCause((cause) =>
      Effect.as(Effect.logWarning(`approval of tool "${call.name}" broke; the call waits for one`, cause), true)
    )
  )
}
