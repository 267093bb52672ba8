/** Outcomes as a journal keeps them, and back. */
import * as Effect from "effect/Effect"
import type * as Tool from "../../Tool.ts"
import * as EventJson from "../fold/eventJson.ts"
export const encode = (
  _tool: Tool.Any,
  outcome: unknown
): Effect.Effect<{ readonly json: unknown; readonly isEncoded: boolean }> =>
  Effect.sync(() => ({ json: EventJson.toJson(outcome), isEncoded: false }))
export const encodeAny = (outcome: unknown): unknown => EventJson.toJson(outcome)
export const decode = (_tool: Tool.Any, json: unknown): Effect.Effect<Tool.Outcome, Error> =>
  Effect.succeed(json as Tool.Outcome)
export const decodeAny = (json: unknown): Effect.Effect<Tool.Outcome> => Effect.succeed(json as Tool.Outcome)
