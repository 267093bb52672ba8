/** The shape a handler must have; anything else is the caller's mistake, told before anything runs. */
import type * as Effect from "effect/Effect"
import type * as Tool from "../../Tool.ts"

export type Handler = (args: unknown, call: Tool.CallContext) => Effect.Effect<unknown, unknown, any>

/** What is wrong with a tool's handler, as an error that says how to mend it. */
export const misuse = (name: string, handler: unknown): Error | undefined => {
  if (handler === undefined) return undefined
  if (typeof handler !== "function") {
    return new TypeError(
      `the handler of tool "${name}" must be a function (args, call) => Effect; got: ${typeof handler}`
    )
  }
  if (handler.length > 2) {
    return new RangeError(
      `the handler of tool "${name}" takes ${handler.length} arguments; it is called with two: (args, call)`
    )
  }
  return undefined
}
