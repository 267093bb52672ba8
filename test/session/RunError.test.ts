/** The error of a run in a journal: bounded, without secrets, and total whatever the error is. */
import { assert, describe, it } from "@effect/vitest"
import { SessionError } from "../../src/internal/session/data.ts"
import { runErrorOf } from "../../src/internal/session/records.ts"

describe("the error of a run in a journal", () => {
  it("N-12: a session error gives its reason, and any other error gives its tag and message", () => {
    const expired = new SessionError({ reason: "expired", detail: "the time is up" })
    assert.deepStrictEqual(runErrorOf(expired), { reason: "expired", detail: "the time is up" })
    assert.deepStrictEqual(runErrorOf({ _tag: "Broken", message: "no" }), { reason: "Broken", detail: "no" })
    assert.deepStrictEqual(runErrorOf(new Error("no")), { reason: "unknown", detail: "no" })
    assert.deepStrictEqual(runErrorOf("no"), { reason: "unknown", detail: "no" })
    assert.deepStrictEqual(runErrorOf(undefined), { reason: "unknown", detail: "undefined" })
  })

  it("N-12: the error of a run shows no secret of a URL, also where the limit cuts the URL", () => {
    const url = "https://ann:secret@host/?access_token=secret&page=1"
    for (const before of [0, 9_985, 9_990, 190]) {
      const text = `${"x".repeat(before)} ${url}`
      const { detail, reason } = runErrorOf({ _tag: text, message: text })
      assert.notInclude(detail + reason, "secret")
      assert.isAtMost(detail.length, 10_000)
      assert.isAtMost(reason.length, 200)
    }
  })

  it("N-12: the error of a run ends with a whole character, and an error that throws on reading is unknown", () => {
    const { detail } = runErrorOf({ message: `${"x".repeat(9_999)}\u{1F600}` })
    assert.strictEqual(detail, "x".repeat(9_999))
    const hostile = {
      get message(): string {
        throw new Error("no")
      }
    }
    assert.strictEqual(runErrorOf(hostile).reason, "unknown")
    const proxy = new Proxy({}, {
      get: () => {
        throw new Error("no")
      }
    })
    assert.strictEqual(runErrorOf(proxy).reason, "unknown")
  })
})
