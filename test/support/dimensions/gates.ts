/** What a tool's gates say to a call. */
import * as Effect from "effect/Effect"
import type { Tool } from "heddle"

type Verdict<Name extends "validate" | "authorize"> = Exclude<
  ReturnType<NonNullable<Tool.Any[Name]>>,
  Effect.Effect<any, any, any>
>

/** A gate that is not declared lets everybody through. */
interface Gates {
  readonly validate?: Effect.Effect<Verdict<"validate">, unknown>
  readonly authorize?: Effect.Effect<Verdict<"authorize">, unknown>
  readonly denies: boolean
}

const after = <const A>(millis: number, verdict: A): Effect.Effect<A> => Effect.as(Effect.sleep(millis), verdict)

export const gates = {
  none: { denies: false },
  agree: { validate: Effect.succeed(true), authorize: Effect.succeed({ allowed: true }), denies: false },
  agreeLate: { validate: after(10, { valid: true }), authorize: after(20, true), denies: false },
  deny: { validate: Effect.succeed({ valid: false, error: "not so" }), denies: true },
  denyLate: { validate: after(10, true), authorize: after(10, { allowed: false, canOverride: true }), denies: true },
  fail: { authorize: Effect.fail({ message: "not yours" }), denies: true },
  die: { validate: Effect.die(new Error("the gate broke")), denies: true },
  hang: { authorize: Effect.never, denies: true }
} satisfies { readonly [name: string]: Gates }

export type GateName = keyof typeof gates

export const gatesOf = (name: string): Gates => gates[name as GateName]
