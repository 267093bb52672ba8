/**
 * Reading what a handler returned as a result object: which objects are one, what success and failure are, and that
 * everything else stays as it is.
 */
import { assert, describe, it } from "@effect/vitest"
import { Tool } from "heddle"
import * as ResultObject from "../../src/internal/answer/answer.ts"

const ok = (value: unknown) => ({ _tag: "Ok", value })
const failed = (error: unknown) => ({ _tag: "Error", error })

/** What a value that a handler returned counts as. */
const read = (value: unknown) => ResultObject.readResultObject(ok(value))

describe("result objects", () => {
  it("R-404: a value that is not a result object is data", () => {
    const values: ReadonlyArray<unknown> = [
      undefined,
      null,
      "text",
      0,
      false,
      {},
      { other: 1 },
      { contextUpdate: { a: 1 } },
      { message: "no" },
      [{ success: false }],
      ["data"],
      Object.create({ success: false, data: 1, error: "inherited" })
    ]
    for (const value of values) {
      const outcome = ok(value)
      const reading = ResultObject.readResultObject(outcome)
      assert.strictEqual(reading.outcome, outcome)
      assert.deepStrictEqual(Object.keys(reading), ["outcome"])
    }
  })

  it("R-404: an object with data, success or error is a result object, and its data is the result", () => {
    const rows: ReadonlyArray<readonly [object, unknown]> = [
      [{ data: 1 }, 1],
      [{ data: null }, null],
      [{ data: undefined }, undefined],
      [{ success: true }, undefined],
      [{ success: true, data: "x" }, "x"],
      [{ success: undefined, data: "x" }, "x"],
      [{ success: null, data: "x" }, "x"],
      [{ success: 0, data: "x" }, "x"],
      [{ data: "x", error: null }, "x"],
      [{ data: "x", error: undefined }, "x"],
      [{ success: true, data: "x", error: "told, and no failure" }, "x"],
      [{ data: { data: 1 } }, { data: 1 }],
      [Object.assign(Object.create(null), { data: 1 }), 1]
    ]
    for (const [value, data] of rows) assert.deepStrictEqual(read(value), { outcome: ok(data) }, JSON.stringify(value))
  })

  it("J-09, J-24, R-405: success: false is a failure, and an error without success: true is a failure", () => {
    const rows: ReadonlyArray<readonly [object, unknown]> = [
      [{ success: false, error: "no" }, "no"],
      [{ success: false, error: { code: 7 } }, { code: 7 }],
      [{ success: false, data: "why" }, "why"],
      [{ success: false, data: "partial", error: "no" }, "no"],
      [{ success: false, data: null, error: null }, "the tool reported a failure"],
      [{ success: false }, "the tool reported a failure"],
      [{ error: "no" }, "no"],
      [{ error: "" }, ""],
      [{ error: "no", data: 1 }, "no"],
      [{ error: "no", success: "true" }, "no"]
    ]
    for (const [value, error] of rows) {
      assert.deepStrictEqual(read(value), { outcome: failed(error) }, JSON.stringify(value))
    }
  })

  it("R-402, R-397: a success may update the context, and a failure leaves the context unchanged", () => {
    const contextUpdate = { a: 1 }
    assert.deepStrictEqual(read({ data: 1, contextUpdate }), { outcome: ok(1), contextUpdate })
    assert.deepStrictEqual(read({ success: true, contextUpdate }), { outcome: ok(undefined), contextUpdate })
    assert.deepStrictEqual(read({ success: false, contextUpdate }), { outcome: failed("the tool reported a failure") })
    assert.deepStrictEqual(read({ error: "no", contextUpdate }), { outcome: failed("no") })
    for (const none of [null, "a", ["a"], 1]) {
      assert.deepStrictEqual(read({ data: 1, contextUpdate: none }), { outcome: ok(1) })
    }
  })

  it("R-404: an outcome other than a plain result stays unchanged, and so does a value that is no outcome", () => {
    const outcomes: ReadonlyArray<unknown> = [
      Tool.error({ success: true, data: 1 }),
      Tool.halt("enough", { success: false }),
      Tool.askUser("Which one?"),
      { _tag: "Error", error: "no", value: { success: true, data: 1 } },
      { _tag: "Ok" },
      { success: false },
      undefined
    ]
    for (const outcome of outcomes) assert.deepStrictEqual(ResultObject.readResultObject(outcome), { outcome })
  })
})
