/** What becomes of a run after one of its calls failed. Public as `Tool.ErrorDecision`. */

export type ErrorDecision<E = never> =
  | { readonly _tag: "Continue"; readonly replacement: unknown }
  | { readonly _tag: "Halt" }
  | { readonly _tag: "Fail"; readonly error: E }

export const ErrorDecision: {
  readonly continue: (replacement: unknown) => ErrorDecision
  readonly halt: ErrorDecision
  readonly fail: <E>(error: E) => ErrorDecision<E>
} = {
  continue: (replacement) => ({ _tag: "Continue", replacement }),
  halt: { _tag: "Halt" },
  fail: (failure) => ({ _tag: "Fail", error: failure })
}
