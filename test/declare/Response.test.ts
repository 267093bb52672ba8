/**
 * Responses and usage: figures that are not reported stay apart from zero, odd reports never fail, sums add up.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import { Message, Response } from "heddle"

const none = {
  inputTokens: null,
  outputTokens: null,
  cachedInputTokens: null,
  cacheWriteInputTokens: null,
  reasoningTokens: null,
  totalTokens: null,
  inputCost: null,
  outputCost: null,
  totalCost: null,
  toolUsage: {},
  extra: {}
}

describe("Response.usage", () => {
  it("an unreported figure is null, and zero stays zero", () => {
    assert.deepStrictEqual(Response.usage({}), none)
    assert.deepStrictEqual(Response.usage({ inputTokens: 0, outputTokens: null }), { ...none, inputTokens: 0 })
  })

  it("R-303: unknown keys, and figures that are no numbers, go to extra", () => {
    const usage = Response.usage({ inputTokens: 3, outputTokens: "many", totalTokens: Number.NaN, audio_tokens: 5 })
    assert.deepStrictEqual(usage, {
      ...none,
      inputTokens: 3,
      extra: { outputTokens: "many", totalTokens: Number.NaN, audio_tokens: 5 }
    })
  })

  it("R-303: the reported extra is kept beside unknown keys, and toolUsage only as an object", () => {
    const usage = Response.usage({ extra: { a: 1 }, b: 2, toolUsage: { search: 1 } })
    assert.deepStrictEqual(usage, { ...none, toolUsage: { search: 1 }, extra: { a: 1, b: 2 } })
    assert.deepStrictEqual(Response.usage({ toolUsage: 4, extra: 5 }), { ...none, extra: { toolUsage: 4, extra: 5 } })
  })

  it("R-303: a hostile key changes no prototype", () => {
    const usage = Response.usage(JSON.parse("{\"__proto__\":{\"polluted\":true}}"))
    assert.strictEqual(Object.getPrototypeOf(usage.extra), Object.prototype)
    assert.notProperty({}, "polluted")
  })

  it("usage survives JSON, and missing figures decode to null", () => {
    const usage = Response.usage({ inputTokens: 1, totalCost: 0.5, extra: { a: [1] }, toolUsage: { b: 1 } })
    const json = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(Response.Usage)(usage)))
    assert.deepStrictEqual(Schema.decodeUnknownSync(Response.Usage)(json), usage)
    assert.deepStrictEqual(Schema.decodeUnknownSync(Response.Usage)({ inputTokens: 7 }), { ...none, inputTokens: 7 })
  })
})

describe("Response.sumUsage", () => {
  it("R-204: a sum adds reported figures, and stays null where no turn reported a figure", () => {
    const sum = Response.sumUsage([
      Response.usage({ inputTokens: 1, outputTokens: 2, toolUsage: { a: 1 }, extra: { x: 1 } }),
      null,
      Response.usage({ inputTokens: 10, totalTokens: 0, toolUsage: { b: 1 }, extra: { x: 2 } })
    ])
    assert.deepStrictEqual(sum, {
      ...none,
      inputTokens: 11,
      outputTokens: 2,
      totalTokens: 0,
      toolUsage: { a: 1, b: 1 },
      extra: { x: 2 }
    })
  })

  it("costs in two currencies sum to the currency XXX, and a report without a cost has no currency", () => {
    const free = Response.usage({ inputTokens: 5, extra: { currency: "USD" } })
    for (const cost of ["inputCost", "outputCost", "totalCost"] as const) {
      const euros = Response.usage({ [cost]: 1, extra: { currency: "EUR" } })
      const dollars = Response.usage({ [cost]: 2, extra: { currency: "USD" } })
      const currencyOf = (...usages: ReadonlyArray<Response.Usage>) => Response.sumUsage(usages)?.extra["currency"]
      assert.deepStrictEqual(Response.sumUsage([euros, dollars]), { ...none, [cost]: 3, extra: { currency: "XXX" } })
      assert.deepStrictEqual([currencyOf(euros, euros), currencyOf(euros, free), currencyOf(free, euros)], [
        "EUR",
        "EUR",
        "EUR"
      ])
    }
  })

  it("R-204: the sum without any report is null", () => {
    assert.isNull(Response.sumUsage([]))
    assert.isNull(Response.sumUsage([null, null]))
  })
})

describe("a getter of Response", () => {
  it("Response.text is the streamed text, else the message's text, else null", () => {
    const message = Message.assistant("whole")
    assert.strictEqual(Response.text({ outputText: "streamed", message }), "streamed")
    assert.strictEqual(Response.text({ outputText: "", message }), "")
    assert.strictEqual(Response.text({ outputText: null, message }), "whole")
    assert.isNull(Response.text({ outputText: null, message: null }))
  })

  it("Response.actionableCalls leaves out provider-executed calls", () => {
    const mine = Message.toolCall("a", "read")
    const theirs = { ...Message.toolCall("b", "search"), providerExecuted: true }
    assert.deepStrictEqual(Response.actionableCalls({ toolCalls: [theirs, mine] }), [mine])
    assert.deepStrictEqual(Response.actionableCalls({ toolCalls: [mine] }), [mine])
  })

  it("a response survives JSON, with its error as plain data", () => {
    const response: Response.Response = {
      id: "r",
      requestId: null,
      model: "m",
      outputText: null,
      reasoning: "",
      toolCalls: [Message.toolCall("a", "read", { path: "x" })],
      message: Message.assistant(""),
      finishReason: "error",
      rawFinishReason: "boom",
      usage: Response.usage({ inputTokens: 1 }),
      error: new Error("lost"),
      metadata: { a: 1 }
    }
    const json = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(Response.Response)(response)))
    assert.deepStrictEqual(Schema.decodeUnknownSync(Response.Response)(json), {
      ...response,
      error: { name: "Error", message: "lost" }
    })
  })
})
