/** Makes a suite case from a generator function, as `Effect.gen` makes an effect. */
import * as Effect from "effect/Effect"
import { type Case, make } from "../Conformance.ts"

export const of = <Step extends Effect.Effect<unknown, unknown, any>>(
  name: string,
  body: () => Generator<Step, unknown, never>
): Case<Effect.Services<Step>> => make(name, Effect.gen(body) as Effect.Effect<unknown, unknown, Effect.Services<Step>>)
