/**
 * The delay that the headers of an answer ask for, or else the text of an error, as providers write it.
 */
import { assert, describe, it } from "@effect/vitest"
import type { Adapter } from "heddle"
import * as Errors from "../../../src/adapters/internal/errors.ts"

const now = 1_700_000_000_000

const delay = (headers: Readonly<Record<string, string>>) => Errors.delayOfHeaders(headers, now)

describe("the retry delay in headers", () => {
  it("R-122: the delay is the value of retry-after, in seconds, milliseconds or as a date", () => {
    assert.strictEqual(delay({ "retry-after": "7" }), 7000)
    assert.strictEqual(delay({ "retry-after": "1", "retry-after-ms": "1500" }), 1500)
    assert.strictEqual(delay({ "retry-after": "1", "retry-after-ms": "0" }), 1000)
    assert.strictEqual(delay({ "retry-after": "Tue, 14 Nov 2023 22:13:23 GMT" }), 3000)
    assert.strictEqual(delay({ "llm_provider-retry-after": "4" }), 4000)
    for (const odd of ["", "-1", "0", "soon", "Infinity", "NaN", "Tue, 14 Nov 2023 22:13:00 GMT"]) {
      assert.isUndefined(delay({ "retry-after": odd }), odd)
    }
  })

  it("R-122: the delay is the time until the reset of a used-up limit", () => {
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

  it("R-122: the delay follows the last reset of the used-up limits, and retry-after wins", () => {
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

describe("the retry delay in an error message", () => {
  const told = (text: string, reason: Adapter.AdapterError["reason"] = "rate_limited") =>
    Errors.delayInText(reason, text)

  it("N-24: the delay is read in the words and units of each provider", () => {
    const texts: ReadonlyArray<readonly [text: string, millis: number]> = [
      [
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29990. Please try again in 20s. Visit x",
        20_000
      ],
      ["Please try again in 980ms.", 980],
      ["Please try again in 1.5s.", 1500],
      ["Please try again in 6m0s.", 360_000],
      ["Please try again in 1h2m3.5s", 3_723_500],
      ["Please try again in 20 seconds", 20_000],
      ["TRY AGAIN IN 2 MINUTES", 120_000],
      ["Requests have exceeded the rate limit. Please retry after 1 second.", 1000],
      ["Please retry in 34.074824224s.", 34_074.824224],
      ["Please wait 57 seconds before retrying.", 57_000],
      ["wait for 1 hour and 5 minutes", 3_900_000],
      ["Your quota will reset after 10h2m3s.", 36_123_000],
      ["resets in 1 day, 2 hours", 93_600_000],
      ["try again in about 3 mins", 180_000],
      ["try again in 250 milliseconds", 250],
      ["Do not try again in 0s. Try again in 4s.", 4000]
    ]
    for (const [text, millis] of texts) assert.approximately(told(text) ?? -1, millis, 0.001, text)
  })

  it("N-24: a message without a number and unit names no delay, and neither does a final error", () => {
    const texts = [
      "",
      "Please try again later.",
      "try again in a minute",
      "retry after 20",
      "try again in 5 moments",
      "wait 2 messages",
      "try again in 0s",
      "try again in -5s",
      "try again in 12345678901234567890s",
      "You used 20 seconds"
    ]
    for (const text of texts) assert.isUndefined(told(text), text)
    assert.isUndefined(told("try again in 20s", "invalid_request"))
    assert.isUndefined(told("try again in 20s", "quota_exceeded"))
    assert.strictEqual(told("try again in 20s", "provider_unavailable"), 20_000)
    assert.strictEqual(told("try again in 20s", "timeout"), 20_000)
  })

  it("N-24: reading the delay of a long message takes linear time, whatever the message contains", () => {
    const long = 1_000_000
    for (const piece of ["try again in ", "1", "wait 1", "try again in 0s ", "1s", "wait for about ", " ", "0.0"]) {
      const texts = [piece.repeat(long / piece.length), `try again in ${piece.repeat(long / piece.length)}`]
      for (const text of texts) {
        const start = process.cpuUsage().user
        Errors.delayInText("rate_limited", text)
        assert.isBelow(process.cpuUsage(undefined).user - start, 2_000_000, piece)
      }
    }
  })
})
