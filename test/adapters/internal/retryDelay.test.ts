/**
 * The delay that the headers of an answer ask for, as providers write it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Errors from "../../../src/adapters/internal/errors.ts"

const now = 1_700_000_000_000

const delay = (headers: Readonly<Record<string, string>>) => Errors.delayOfHeaders(headers, now)

describe("a delay", () => {
  it("R-122: is the value of retry-after, in seconds, milliseconds or as a date", () => {
    assert.strictEqual(delay({ "retry-after": "7" }), 7000)
    assert.strictEqual(delay({ "retry-after": "1", "retry-after-ms": "1500" }), 1500)
    assert.strictEqual(delay({ "retry-after": "1", "retry-after-ms": "0" }), 1000)
    assert.strictEqual(delay({ "retry-after": "Tue, 14 Nov 2023 22:13:23 GMT" }), 3000)
    assert.strictEqual(delay({ "llm_provider-retry-after": "4" }), 4000)
    for (const odd of ["", "-1", "0", "soon", "Infinity", "NaN", "Tue, 14 Nov 2023 22:13:00 GMT"]) {
      assert.isUndefined(delay({ "retry-after": odd }), odd)
    }
  })

  it("R-122: is the time until a limit that is used up is full again", () => {
    const reset = (value: string) => delay({ "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": value })
    assert.strictEqual(reset("12ms"), 12)
    assert.strictEqual(reset("1.14s"), 1140)
    assert.strictEqual(reset("1m51.595s"), 111_595)
    assert.strictEqual(reset("14m24s"), 864_000)
    assert.strictEqual(reset("1h0m1s"), 3_601_000)
    assert.strictEqual(reset("33.5"), 33_500)
    assert.strictEqual(reset("2023-11-14T22:13:25Z"), 5000)
    assert.strictEqual(reset(String(now + 1500)), 1500)
    assert.strictEqual(reset(String(now / 1000 + 2)), 2000)
    for (const odd of ["", "0s", "soon", "5x", String(now - 1)]) assert.isUndefined(reset(odd), odd)
  })

  it("R-122: is that of the last limit, and of none that is not used up", () => {
    const headers = {
      "x-ratelimit-remaining-requests": "0",
      "x-ratelimit-reset-requests": "2s",
      "x-ratelimit-remaining-tokens": "0",
      "x-ratelimit-reset-tokens": "6s",
      "x-ratelimit-remaining-day": "12",
      "x-ratelimit-reset-day": "8h"
    }
    assert.strictEqual(delay(headers), 6000)
    assert.strictEqual(delay({ ...headers, "retry-after": "1" }), 1000)
    assert.isUndefined(delay({ "x-ratelimit-reset": "5" }))
    assert.strictEqual(delay({ "x-ratelimit-remaining": "0", "x-ratelimit-reset": String(now + 9000) }), 9000)
    const anthropic = {
      "anthropic-ratelimit-input-tokens-remaining": "0",
      "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:14:20Z"
    }
    assert.strictEqual(delay(anthropic), 60_000)
  })
})
