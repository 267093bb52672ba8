/**
 * The rules for what the end of a call does to other calls: whether it has a consequence, which calls it stops, and
 * which calls were running at the same time.
 */
import { assert, describe, it } from "@effect/vitest"
import { Policy } from "heddle"
import type { Answer } from "../../src/internal/answer/answer.ts"
import * as Batches from "../../src/internal/run/batch.ts"

type Rules = Policy.Policy["siblings"]

const rules = (more: Partial<Rules> = {}): Rules => ({ ...Policy.falai.siblings, ...more })

/** An answer, of which the rules read no more than how the call ended. */
const answer = (more: Partial<Pick<Answer, "failure" | "halt">>): Answer => ({
  raw: { _tag: "Ok", value: null },
  message: { role: "tool", content: "", metadata: {} },
  tail: { _tag: "ToolResultEncoded", id: "a", content: "" },
  ...more
})

const crashed = answer({ failure: "crashed" })
const reported = answer({ failure: "reported" })
const halted = answer({ halt: { haltedReason: "enough", haltToolCallId: "a", haltResult: null } })

describe("the consequence of an answer", () => {
  it("CF-1: an answer without a halt or a failure has no consequence", () => {
    for (const onHalt of ["drain", "abortCancelable", "abortAll"] as const) {
      assert.isUndefined(Batches.consequenceOf(rules({ onHalt, onToolError: onHalt }), answer({}), false))
    }
  })

  it("CF-1: under drain no answer has a consequence", () => {
    const drain = rules({ onHalt: "drain", onToolError: "drain", queued: "skip" })
    for (const end of [crashed, reported, halted]) assert.isUndefined(Batches.consequenceOf(drain, end, false))
  })

  it("CF-8: a crash has consequences always, a reported failure only where the policy counts reports", () => {
    const strict = rules({ trigger: "crashed" })
    assert.isUndefined(Batches.consequenceOf(strict, reported, false))
    assert.isDefined(Batches.consequenceOf(strict, crashed, false))
    assert.isDefined(Batches.consequenceOf(rules({ trigger: "crashedOrReported" }), reported, false))
  })

  it("R-393: a failed exclusive call has no consequence, but its halt has consequences", () => {
    const both = rules({ onHalt: "abortCancelable" })
    assert.isUndefined(Batches.consequenceOf(both, crashed, true))
    assert.deepInclude(Batches.consequenceOf(both, halted, true), { isHalt: true })
  })

  it("CF-1: halts and failures follow their own options, and the stronger option wins for a failing halt", () => {
    const onlyHalts = rules({ onHalt: "abortAll", onToolError: "drain" })
    assert.isUndefined(Batches.consequenceOf(onlyHalts, crashed, false))
    assert.deepInclude(Batches.consequenceOf(onlyHalts, halted, false), { isForAll: true, isHalt: true })
    const onlyFailures = rules({ onHalt: "drain", onToolError: "abortAll" })
    assert.isUndefined(Batches.consequenceOf(onlyFailures, halted, false))
    const failingHalt = answer({ failure: "crashed", halt: { haltedReason: "tool_error", haltToolCallId: "a" } })
    assert.deepInclude(Batches.consequenceOf(onlyFailures, failingHalt, false), { isForAll: true, isHalt: false })
    assert.deepInclude(
      Batches.consequenceOf(rules({ onHalt: "abortCancelable", onToolError: "abortAll" }), failingHalt, false),
      { isForAll: true, isHalt: true, detail: "another call of the turn ended it" }
    )
    assert.deepInclude(
      Batches.consequenceOf(rules({ onHalt: "abortAll", onToolError: "abortCancelable" }), failingHalt, false),
      { isForAll: true, isHalt: true }
    )
  })

  it("CF-1: a separate option decides whether a consequence skips waiting calls", () => {
    const gentle = Batches.consequenceOf(rules(), crashed, false)
    assert.deepStrictEqual(gentle, {
      isForAll: false,
      isSkipping: false,
      isHalt: false,
      detail: "a call beside it failed"
    })
    assert.deepInclude(Batches.consequenceOf(rules({ queued: "skip" }), crashed, false), { isSkipping: true })
  })
})

describe("the reach of a consequence", () => {
  const member = (isWaiting: boolean, isBlocking: boolean) => ({ isWaiting, job: { index: 0, isBlocking } })
  const reached = (isForAll: boolean, isSkipping: boolean) => {
    const consequence = { isForAll, isSkipping, isHalt: false, detail: "" }
    return {
      running: Batches.isReached(consequence, member(false, false)),
      blocking: Batches.isReached(consequence, member(false, true)),
      waiting: Batches.isReached(consequence, member(true, false))
    }
  }

  it("R-391, R-394: a consequence stops running calls except blocking calls, or all, and waiting calls only when skipping", () => {
    assert.deepStrictEqual(reached(false, false), { running: true, blocking: false, waiting: false })
    assert.deepStrictEqual(reached(true, false), { running: true, blocking: true, waiting: false })
    assert.deepStrictEqual(reached(false, true), { running: true, blocking: false, waiting: true })
    assert.deepStrictEqual(reached(true, true), { running: true, blocking: true, waiting: true })
  })
})

describe("the company of a call", () => {
  const member = (index: number) => ({ isWaiting: false, job: { index, isBlocking: false } })
  const indexes = (members: ReadonlyArray<{ readonly job: { readonly index: number } }>) =>
    members.map(({ job }) => job.index)

  it("R-393: the company of a call is itself and every call that held a place beside the call", () => {
    const company = new Batches.Company<ReturnType<typeof member>>()
    const [a, b, c] = [member(7), member(3), member(5)]
    company.join(a)
    company.join(b)
    assert.deepStrictEqual(indexes(company.beside(7)), [7, 3])
    company.join(c)
    assert.deepStrictEqual(indexes(company.beside(7)), [7, 3, 5])
    assert.deepStrictEqual(indexes(company.all), [7, 3, 5])
  })

  it("R-394: the company of a call that left is the calls still there, without later calls", () => {
    const company = new Batches.Company<ReturnType<typeof member>>()
    const [a, b, c, d] = [member(0), member(1), member(2), member(3)]
    for (const one of [a, b, c]) company.join(one)
    company.leave(a)
    company.join(d)
    assert.deepStrictEqual(indexes(company.beside(0)), [1, 2])
    company.leave(b)
    assert.deepStrictEqual(indexes(company.beside(0)), [2])
    assert.deepStrictEqual(indexes(company.beside(1)), [2, 3], "a call that left later had more beside it")
    assert.deepStrictEqual(indexes(company.all), [2, 3])
  })
})
