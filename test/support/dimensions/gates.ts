/** What a tool's gates say to a call. */
import * as Effect from "effect/Effect"

type Verdict = boolean | { readonly valid: boolean; readonly error?: string } | { readonly allowed: boolean }

interface Gate {
  readonly validate?: Effect.Effect<Verdict, unknown>
  readonly authorize?: Effect.Effect<Verdict, unknown>
  /** Whether the call may not run. */
  readonly denies?: true
}

const yes = Effect.succeed(true)
const soon = Effect.as(Effect.sleep(10), true)

export const gates = {
  none: {},
  allows: { validate: yes, authorize: Effect.succeed({ allowed: true }) },
  slow: { validate: soon, authorize: soon },
  invalid: { validate: Effect.succeed({ valid: false, error: "no" }), denies: true },
  forbidden: { authorize: Effect.as(Effect.sleep(10), { allowed: false }), denies: true },
  fails: { validate: Effect.fail("broken"), denies: true },
  dies: { authorize: Effect.die("broken"), denies: true },
  hangs: { authorize: Effect.never, denies: true }
} satisfies { readonly [name: string]: Gate }

export type GateName = keyof typeof gates

export const gateOf = (name: GateName): Gate => gates[name]
