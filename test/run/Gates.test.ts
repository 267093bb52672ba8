/**
 * Gates one by one: which verdicts let a call through, in which order they are asked, and how a denial is reported.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import { Message, Tool } from "heddle"
import type { Run } from "../../src/internal/decide/plan.ts"
import * as Gates from "../../src/internal/run/gates.ts"
import { callOf } from "../support/calls.ts"
import * as Tools from "../support/tools.ts"

class NotYours extends Data.TaggedError("NotYours")<{ readonly message: string }> {}

/** Why a call of a tool with these gates may not run. */
const denial = (gates: { readonly validate?: unknown; readonly authorize?: unknown }, args: unknown = { n: 1 }) => {
  const tool = { ...Tool.make("subject", { parameters: Tools.anything }), ...gates } as Tool.Any
  const call = Message.toolCall("c0", "subject")
  const job: Run = { _tag: "Run", index: 0, place: 0, call, tool, args, isExclusive: false, isBlocking: false }
  return Gates.denial(job, callOf("subject", { context: { who: "me" } }))
}

const said = (gates: Parameters<typeof denial>[0]) =>
  Effect.map(denial(gates), (error) => [error?.detail, error?.metadata] as const)

describe("gates", () => {
  it.effect("R-406: a tool whose gates agree passes, and so does a tool without gates", () =>
    Effect.gen(function*() {
      const yes: ReadonlyArray<Parameters<typeof denial>[0]> = [
        {},
        { validate: () => true, authorize: () => true },
        { validate: () => ({ valid: true }), authorize: () => ({ allowed: true, reason: "ignored" }) },
        { validate: () => Effect.succeed(true), authorize: () => Effect.succeed({ allowed: true, canOverride: true }) }
      ]
      for (const gates of yes) assert.isUndefined(yield* denial(gates))
      assert.isFalse(Gates.isGated(Tools.none))
      assert.isTrue(Gates.isGated({ ...Tools.echo, validate: () => true }))
      assert.isTrue(Gates.isGated({ ...Tools.echo, authorize: () => true }))
    }))

  it.effect("R-409: an unreadable value denies the call, as a verdict and as a failure", () =>
    Effect.gen(function*() {
      const broken = (name: string) => Object.defineProperty({}, name, { get: () => assert.fail("looked at") })
      const { proxy, revoke } = Proxy.revocable({}, {})
      revoke()
      const unreadable = [broken("valid"), broken("allowed"), broken("message"), proxy]
      for (const verdict of unreadable) {
        for (const gate of [() => verdict, () => Effect.succeed(verdict), () => Effect.fail(verdict)]) {
          assert.deepInclude(yield* denial({ validate: gate }), { reason: "denied" })
          assert.deepInclude(yield* denial({ authorize: gate }), { reason: "denied" })
        }
      }
    }))

  it.effect("R-409: every verdict other than a clear approval denies", () =>
    Effect.gen(function*() {
      const unclear: ReadonlyArray<unknown> = [
        false,
        undefined,
        null,
        1,
        "true",
        [],
        {},
        { valid: 1, allowed: 1 },
        { valid: "yes", allowed: "yes" },
        new Boolean(true),
        Promise.resolve(true)
      ]
      for (const verdict of unclear) {
        for (const gate of [() => verdict, () => Effect.succeed(verdict)]) {
          assert.deepInclude(yield* denial({ validate: gate }), { reason: "denied" })
          assert.deepInclude(yield* denial({ authorize: gate }), { reason: "denied" })
        }
      }
    }))

  it.effect("R-406: the verdict of one gate does not approve at the other gate", () =>
    Effect.gen(function*() {
      assert.isDefined(yield* denial({ validate: () => ({ allowed: true }) }))
      assert.isDefined(yield* denial({ authorize: () => ({ valid: true }) }))
    }))

  it.effect("R-406: a denial has the words of its gate, or a default", () =>
    Effect.gen(function*() {
      const validation = { gate: "validate" }
      const authorization = { gate: "authorize" }
      const rows: ReadonlyArray<readonly [Parameters<typeof denial>[0], string, Readonly<Record<string, unknown>>]> = [
        [{ validate: () => ({ valid: false, error: "too long" }) }, "Validation failed: too long", validation],
        [{ validate: () => ({ valid: false, error: "" }) }, "Validation failed: Invalid input", validation],
        [{ validate: () => ({ valid: false, reason: "the other's" }) }, "Validation failed: Invalid input", validation],
        [{ validate: () => ({ valid: false, error: 42 }) }, "Validation failed: Invalid input", validation],
        [{ authorize: () => ({ allowed: false, reason: "not yours" }) }, "Permission denied: not yours", authorization],
        [{ authorize: () => false }, "Permission denied: Not allowed", authorization],
        [{ authorize: () => ({ allowed: false, canOverride: true }) }, "Permission denied: Not allowed", {
          ...authorization,
          canOverride: true
        }],
        [{ authorize: () => ({ allowed: false, canOverride: "no" }) }, "Permission denied: Not allowed", authorization]
      ]
      for (const [gates, detail, metadata] of rows) {
        assert.deepStrictEqual(yield* said(gates), [detail, metadata])
      }
    }))

  it.effect("R-409: the model reads the failure of a gate, but not a thrown value", () =>
    Effect.gen(function*() {
      const kaboom = new Error("secret")
      const rows: ReadonlyArray<readonly [() => unknown, string, unknown]> = [
        [() => Effect.fail("closed"), "closed", "closed"],
        [
          () => Effect.fail(new NotYours({ message: "not yours" })),
          "not yours",
          new NotYours({ message: "not yours" })
        ],
        [() => Effect.fail({ code: 7 }), "Not allowed", { code: 7 }],
        [() => Effect.die(kaboom), "Not allowed", kaboom],
        [
          () => {
            throw kaboom
          },
          "Not allowed",
          kaboom
        ]
      ]
      for (const [authorize, words, cause] of rows) {
        const error = yield* denial({ authorize })
        assert.strictEqual(error?.detail, `Permission denied: ${words}`)
        assert.deepStrictEqual(error?.cause, cause)
        assert.deepStrictEqual(error?.metadata, { gate: "authorize" })
      }
      assert.deepInclude(yield* denial({ authorize: () => Effect.interrupt }), { reason: "denied" })
    }))

  it.effect("J-11: gates receive arguments and call in order, and the second gate runs only if the first agrees", () =>
    Effect.gen(function*() {
      const asked: Array<unknown> = []
      const gate = (name: string, verdict: boolean) => (args: unknown, call: Tool.CallContext) =>
        Effect.sync(() => {
          asked.push([name, args, call.id, call.context])
          return verdict
        })
      const both = (isValid: boolean) => ({ validate: gate("validate", isValid), authorize: gate("authorize", false) })
      const first = yield* denial(both(false))
      const second = yield* denial(both(true))
      const rest = [{ n: 1 }, "c0", { who: "me" }]
      assert.deepStrictEqual(asked, [["validate", ...rest], ["validate", ...rest], ["authorize", ...rest]])
      assert.deepStrictEqual([first?.metadata?.["gate"], second?.metadata?.["gate"]], ["validate", "authorize"])
    }))

  it("R-409: a gate that times out denies the call", () => {
    const error = Gates.late(Message.toolCall("c0", "subject"), 250)
    assert.deepInclude(error, { reason: "denied", toolName: "subject", toolCallId: "c0" })
    assert.deepStrictEqual(error.metadata, { gate: "timeout" })
    assert.include(error.message, "250 ms")
  })
})
