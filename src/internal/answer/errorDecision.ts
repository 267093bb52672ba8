/** What becomes of a run after one of its calls failed. Public as `Tool.ErrorDecision`. */

/** What an `onToolError` function decides, in an Effect. */
export type ErrorDecision<E = never> =
  | { readonly _tag: "Continue"; readonly replacement: unknown }
  | { readonly _tag: "Halt" }
  | { readonly _tag: "Fail"; readonly error: E }

export const ErrorDecision: {
  /**
   * The call is answered with the replacement as its result: it is written as a value of the handler would be, without
   * `isError`. An error is written as a plain value, too: give `Tool.error(error)` for the text that `"continue"` writes.
   */
  readonly continue: (replacement: unknown) => ErrorDecision
  /** The run ends with the outcome `ToolFailed`. */
  readonly halt: ErrorDecision
  /** The run fails with this error, which is in its type. */
  readonly fail: <E>(error: E) => ErrorDecision<E>
} = {
  continue: (replacement) => ({ _tag: "Continue", replacement }),
  halt: { _tag: "Halt" },
  fail: (failure) => ({ _tag: "Fail", error: failure })
}
