/**
 * Contract for encoders as runnable cases: the duties of every encoder, and the JSON encoder's output.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Encoder from "../Encoder.ts"
import * as Tool from "../Tool.ts"
import * as Conformance from "./Conformance.ts"
import * as Cases from "./internal/cases.ts"

const secret = "sk-carried-along"

const carried = () => ({
  cause: new Error(secret),
  request: { url: `https://api.test/?key=${secret}`, headers: { authorization: secret } },
  response: { body: secret }
})

/** An error shaped like HTTP client errors. */
class Carrier extends Data.TaggedError("Carrier")<ReturnType<typeof carried>> {}

class NotFound extends Schema.TaggedError<NotFound>("heddle/testing/EncoderSuite/NotFound")("NotFound", {
  path: Schema.String,
  at: Schema.Struct({ line: Schema.Finite })
}) {}

const encode = (value: unknown) => Effect.flatMap(Encoder.Encoder, (encoder) => encoder.encode(value))

/** Values of every kind a tool may produce, made anew each time. */
const samples = (): ReadonlyArray<unknown> => [
  "",
  "text",
  null,
  42,
  -0.5,
  true,
  [],
  [1, "two", null],
  {},
  { b: 1, a: { nested: [true] } },
  Tool.ok({ x: 1 }),
  Tool.error("nope"),
  Tool.error({ code: 7 }),
  Tool.error(new Tool.ToolError({ reason: "timeout", toolName: "slow" }))
]

/**
 * Contract for every encoder, whatever its output.
 *
 * **Example** (The encoder that is there by default)
 *
 * ```ts import.meta.vitest
 * import { Conformance, EncoderSuite } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * await Effect.runPromise(Conformance.failures(EncoderSuite.contract, Layer.empty)) // => []
 * ```
 *
 * @category suites
 */
export const contract: Conformance.Suite = [
  Conformance.make(
    "every JSON value, result and error has a text",
    Effect.suspend(() =>
      Effect.forEach(
        samples(),
        (value, index) =>
          Effect.flatMap(
            encode(value),
            (text) => Conformance.holds(`sample ${index} is encoded as a ${typeof text}`, typeof text === "string")
          )
      )
    )
  ),
  Cases.of("the same value always has the same text", function*() {
    const first = yield* Effect.forEach(samples(), encode)
    const backwards = yield* Effect.forEach(samples().toReversed(), encode)
    yield* Conformance.equals("a second run in another order", backwards.toReversed(), first)
  }),
  Cases.of("encoding does not change the value", function*() {
    const values = samples()
    yield* Effect.forEach(values, encode)
    yield* Conformance.equals("the values after encoding", values, samples())
  }),
  Conformance.make(
    "an error's cause, stack, request and response are not written",
    Effect.suspend(() =>
      Effect.forEach(
        [new Carrier(carried()), Object.assign(new Error("no answer"), carried())],
        (reason) =>
          Effect.flatMap(encode(Tool.error(reason)), (text) =>
            Conformance.holds(`the text of ${reason.name} is free of what it carries: ${text}`, !text.includes(secret)))
      )
    )
  ),
  Cases.of("nothing is encoded before the effect runs", function*() {
    let reads = 0
    const value = {
      get x() {
        reads++
        return 1
      }
    }
    const encoder = yield* Encoder.Encoder
    const effect = encoder.encode(value)
    yield* Conformance.equals("reads of the value before the run", reads, 0)
    yield* effect
  })
]

/** Makes a case from rows, created anew for each run: an encoder that changes its values must not spoil other runs. */
const writes = (name: string, rows: () => ReadonlyArray<readonly [value: unknown, text: string]>) =>
  Conformance.make(
    name,
    Effect.suspend(() =>
      Effect.forEach(rows(), ([value, text]) =>
        Effect.flatMap(encode(value), (actual) => Conformance.equals("the text", actual, text)))
    )
  )

const cyclic = (): unknown => {
  const value: Record<string, unknown> = {}
  value["self"] = value
  return value
}

/** Parses a text as JSON, or returns `undefined`. */
const parsed = (text: string): Effect.Effect<unknown> =>
  Effect.orElseSucceed(Effect.try(() => JSON.parse(text) as unknown), () => undefined)

const readable = (reason: unknown) =>
  Effect.gen(function*() {
    const envelope = yield* Effect.flatMap(encode(Tool.error(reason)), parsed)
    const error = typeof envelope === "object" && envelope !== null && "error" in envelope ? envelope.error : null
    yield* Conformance.holds(`the envelope of ${String(reason)} has an error text`, typeof error === "string")
    yield* Conformance.holds(`the error text of ${String(reason)} is not empty`, error !== "")
  })

/**
 * Output of the JSON encoder, row by row, after {@link contract}.
 *
 * **Example** (The encoder that is there by default)
 *
 * ```ts import.meta.vitest
 * import { Conformance, EncoderSuite } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * await Effect.runPromise(Conformance.failures(EncoderSuite.json, Layer.empty)) // => []
 * ```
 *
 * @category suites
 */
export const json: Conformance.Suite = [
  ...contract,
  writes(
    "a string is written unchanged, byte for byte",
    () => [["", ""], ["a \"quoted\"\n→ text", "a \"quoted\"\n→ text"], [
      "{}",
      "{}"
    ]]
  ),
  writes("ok(x) is wrapped", () => [[Tool.ok({ x: 1 }), "{\"ok\":{\"x\":1}}"], [Tool.ok(null), "{\"ok\":null}"]]),
  writes("error(text) is wrapped", () => [[Tool.error("nope"), "{\"error\":\"nope\"}"]]),
  Conformance.make(
    "error(anything else) is wrapped in a readable rendering",
    Effect.suspend(() =>
      Effect.forEach([Symbol.for("not_found"), { code: 7 }, new Error("broken"), null, cyclic()], readable)
    )
  ),
  Conformance.make(
    "error(an error) shows its fields and its message, or its name without a message",
    Effect.suspend(() =>
      Effect.forEach(
        [
          [new NotFound({ path: "/a", at: { line: 37 } }), ["NotFound", "/a", "37"]],
          [Object.assign(new RangeError("too far"), { limit: 38 }), ["too far", "38"]],
          [new TypeError(""), ["TypeError"]]
        ] as const,
        ([reason, words]) =>
          Effect.flatMap(
            encode(Tool.error(reason)),
            (text) =>
              Effect.forEach(
                words,
                (word) => Conformance.holds(`the text of ${reason.name} says ${word}: ${text}`, text.includes(word))
              )
          )
      )
    )
  ),
  writes("objects and arrays are JSON", () => [[{ b: 1, a: [true, null] }, "{\"b\":1,\"a\":[true,null]}"], [
    [1, 2],
    "[1,2]"
  ]]),
  writes("null, numbers and booleans are JSON", () => [[null, "null"], [42, "42"], [true, "true"]]),
  Conformance.make(
    "a function, a symbol and a cycle are refused",
    Effect.suspend(() =>
      Effect.forEach(
        [() => 1, Symbol.for("x"), cyclic(), Tool.ok(() => 1)],
        (value) =>
          Effect.flatMap(
            Effect.exit(encode(value)),
            (exit) => Conformance.holds(`a ${typeof value} without JSON is refused`, Exit.isFailure(exit))
          )
      )
    )
  )
]
