/** The rules of all runs, in what is no run of several steps. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Adapter, Rule, Step } from "heddle"
import { Script } from "heddle/testing"

const closed = Rule.layer([Rule.make("closed", { ask: () => Rule.end({ detail: "maintenance" }) })])

describe("a rule that ends a request outside of a run", () => {
  it.effect("fails a step, and asks no model", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Step.run("Hi"))
      assert.instanceOf(error, Adapter.AdapterError)
      assert.strictEqual(error.message, "adapter error: invalid_request: the rule \"closed\" allows no request")
    }).pipe(Effect.provide(Layer.merge(Script.layer([]), closed))))

  it.effect("fails a classification, and asks no model", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Adapter.classify("Hi"))
      assert.strictEqual(error.message, "adapter error: invalid_request: the rule \"closed\" allows no request")
    }).pipe(Effect.provide(Layer.merge(Script.layer([]), closed))))
})
