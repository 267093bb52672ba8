/**
 * Building blocks for conformance suites. A suite is a list of named cases. Each case is an Effect that needs the
 * service under test and fails if the service breaks its contract. Suites need no test runner, and work with any.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Equal from "effect/Equal"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Json from "../internal/json.ts"

/**
 * An implementation breaks its contract.
 *
 * @category errors
 */
export class ConformanceError
  extends Schema.TaggedError<ConformanceError>("heddle/testing/Conformance/ConformanceError")(
    "ConformanceError",
    {
      /** Description of the fault. */
      detail: Schema.String,
      /** Name of the failing case. */
      case: Schema.optionalKey(Schema.String),
      /** Expected value, if two values were compared. */
      expected: Schema.optionalKey(Json.Opaque),
      /** Actual value. */
      actual: Schema.optionalKey(Json.Opaque),
      /** The implementation's failure or defect, if it did not answer. */
      cause: Schema.optionalKey(Json.Opaque)
    }
  )
{
  override get message(): string {
    const compared = "expected" in this
      ? `; expected ${Json.render(this.expected)}, got ${Json.render(this.actual)}`
      : ""
    return `${this.case === undefined ? "" : `${this.case}: `}${this.detail}${compared}`
  }
}

/**
 * A single requirement of a contract. `R` is the service under test; a service given as a Context reference does not
 * appear.
 *
 * @category models
 */
export interface Case<out R = never> {
  /** Requirement in words. */
  readonly name: string
  /** Tests the requirement. Fails if broken. */
  readonly run: Effect.Effect<void, ConformanceError, R>
}

/**
 * Cases of one contract.
 *
 * @category models
 */
export type Suite<R = never> = ReadonlyArray<Case<R>>

/**
 * Makes a case from its body. The body runs in its own fiber, so any ending becomes the case's `ConformanceError`, even
 * if the implementation interrupts or breaks its calling fiber.
 *
 * **Example** (A case of your own)
 *
 * ```ts import.meta.vitest
 * import { Conformance } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const sum = Conformance.make("adds", Conformance.equals("the sum", 1 + 1, 2))
 *
 * await Effect.runPromise(sum.run) // => undefined
 * ```
 *
 * @category constructors
 */
export const make = <E, R>(name: string, body: Effect.Effect<unknown, E, R>): Case<R> => ({
  name,
  run: Effect.scoped(Effect.gen(function*() {
    const fiber = yield* Effect.forkScoped(body)
    const exit = yield* Fiber.await(fiber)
    if (Exit.isFailure(exit)) return yield* found(name, exit.cause)
  }))
})

const found = (name: string, cause: Cause.Cause<unknown>): ConformanceError => {
  const error = Cause.squash(cause)
  if (!(error instanceof ConformanceError)) {
    return new ConformanceError({ case: name, detail: Cause.pretty(cause), cause: error })
  }
  const compared = "expected" in error ? { expected: error.expected, actual: error.actual } : {}
  return new ConformanceError({ case: name, detail: error.detail, ...compared })
}

/**
 * Fails unless the condition holds. For case bodies.
 *
 * **Example** (A claim that does not hold)
 *
 * ```ts import.meta.vitest
 * import { Conformance } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const error = await Effect.runPromise(Effect.flip(Conformance.holds("one is more than two", 1 > 2)))
 *
 * error.detail // => "one is more than two"
 * ```
 *
 * @category assertions
 */
export const holds = (detail: string, condition: boolean): Effect.Effect<void, ConformanceError> =>
  condition ? Effect.void : Effect.fail(new ConformanceError({ detail }))

/**
 * Fails unless the two values are structurally equal. For case bodies.
 *
 * **Example** (Two values that are not the same)
 *
 * ```ts import.meta.vitest
 * import { Conformance } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const error = await Effect.runPromise(Effect.flip(Conformance.equals("the sum", 1 + 1, 3)))
 *
 * error.message // => "the sum; expected 3, got 2"
 * ```
 *
 * @category assertions
 */
export const equals = (detail: string, actual: unknown, expected: unknown): Effect.Effect<void, ConformanceError> =>
  Equal.equals(actual, expected) ? Effect.void : Effect.fail(new ConformanceError({ detail, actual, expected }))

/**
 * Registers every case with a test runner: vitest's `it`, `node:test`'s `test`, or any function taking a name and a
 * function that returns a Promise. The layer is built anew for each case.
 *
 * **Example** (In a test file)
 *
 * ```ts import.meta.vitest
 * import { Encoder } from "heddle"
 * import { Conformance, EncoderSuite } from "heddle/testing"
 *
 * const results: Array<Promise<void>> = []
 * const it = (_name: string, run: () => Promise<void>) => results.push(run())
 *
 * Conformance.register(EncoderSuite.json, Encoder.layer(Encoder.json), it)
 * const passed = await Promise.all(results)
 *
 * passed.length === EncoderSuite.json.length // => true
 * ```
 *
 * @category running
 */
export const register = <R, E>(
  suite: Suite<R>,
  layer: Layer.Layer<NoInfer<R>, E>,
  it: (name: string, run: () => Promise<void>) => unknown
): void => {
  for (const { name, run } of suite) it(name, () => Effect.runPromise(Effect.provide(run, layer)))
}

/**
 * Runs every case and returns the failures, so your own program can report them together. The layer is built anew for
 * each case.
 *
 * **Example** (What an implementation breaks)
 *
 * ```ts import.meta.vitest
 * import { Conformance } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * const suite = [Conformance.make("adds", Conformance.equals("the sum", 1 + 1, 3))]
 * const found = await Effect.runPromise(Conformance.failures(suite, Layer.empty))
 *
 * found.map((error) => error.case) // => ["adds"]
 * ```
 *
 * @category running
 */
export const failures = <R, E>(
  suite: Suite<R>,
  layer: Layer.Layer<NoInfer<R>, E>
): Effect.Effect<ReadonlyArray<ConformanceError>, E> =>
  Effect.map(
    Effect.forEach(suite, ({ run }) =>
      run.pipe(
        Effect.as([]),
        Effect.catchTag("ConformanceError", (error) => Effect.succeed([error])),
        Effect.provide(layer, { local: true })
      )),
    (found) => found.flat()
  )
