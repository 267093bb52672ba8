/**
 * The conformance suite on the transcripts of this repository, and on the same with something wrong in them: a suite that
 * finds nothing wrong counts only because it would.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { Collector, Message } from "heddle"
import * as Conversation from "../../scratchpad/conformance/conversation.ts"
import * as Cuts from "../../scratchpad/conformance/cuts.ts"
import * as Fixtures from "../../scratchpad/conformance/fixtures.ts"
import * as Protocols from "../../scratchpad/conformance/protocols.ts"
import * as Replay from "../../scratchpad/conformance/replay.ts"
import * as Report from "../../scratchpad/conformance/report.ts"
import * as RoundTrip from "../../scratchpad/conformance/roundTrip.ts"
import * as Server from "../../scratchpad/conformance/server.ts"
import * as Session from "../../scratchpad/conformance/session.ts"
import { root } from "../support/source.ts"

const folder = `${root}/test/fixtures`

const services = Layer.mergeAll(NodeServices.layer, Server.layer, Logger.layer([]))

const read = Effect.provide(Fixtures.read(folder), NodeServices.layer)

const problemsOf = (fixture: Fixtures.Fixture) =>
  Effect.map(Effect.provide(Replay.replay(fixture), services), ({ problems }) => problems)

const fixtureOf = (id: string) => Effect.map(read, (fixtures) => fixtures.find((fixture) => fixture.id === id)!)

/** A transcript with some of its turns changed. */
const changed = (id: string, change: (turn: Fixtures.Turn, index: number) => Fixtures.Turn) =>
  Effect.map(fixtureOf(id), (fixture): Fixtures.Fixture => ({ ...fixture, turns: fixture.turns.map(change) }))

const expecting = (id: string, expected: Fixtures.Expected) =>
  changed(id, (turn) => ({ ...turn, expected: { ...turn.expected, ...expected } }))

const answering = (id: string, change: (body: string) => string, at = 0) =>
  changed(id, (turn, index) => {
    if (index !== at) return turn
    const body = new TextEncoder().encode(change(new TextDecoder().decode(turn.answer.body)))
    return { ...turn, answer: { ...turn.answer, body, chunkSizes: undefined } }
  })

const asking = (id: string, at: number, change: (request: string) => string) =>
  changed(id, (turn, index) => index === at ? { ...turn, request: change(turn.request!) } : turn)

describe("the transcripts of this repository", () => {
  it.effect("every transcript of a known protocol passes the replay at every cut", () =>
    Effect.gen(function*() {
      for (const fixture of yield* read) {
        const isKnown = Protocols.find(fixture.protocol) !== undefined
        const expected = isKnown ? [] : [`there is no adapter for ${fixture.protocol}`]
        assert.deepStrictEqual(yield* problemsOf(fixture), expected, fixture.id)
      }
    }))

  it.effect("each protocol has an exchange among the transcripts, and some answers are HTTP errors", () =>
    Effect.gen(function*() {
      const fixtures = yield* read
      for (const protocol of ["openai-chat", "openai-responses", "anthropic", "gemini"]) {
        assert.isTrue(fixtures.some((fixture) => fixture.protocol === protocol && fixture.isExchange), protocol)
      }
      assert.isNotEmpty(fixtures.filter(({ turns }) => turns.some(({ answer }) => answer.status >= 400)))
    }))
})

describe("a difference between a transcript and its expectation", () => {
  const wrong: ReadonlyArray<readonly [what: string, id: string, expected: Fixtures.Expected]> = [
    ["text", "chat-text", { text: "Smørrebrød und Kase 🧀" }],
    ["finishReason", "chat-text", { finishReason: "length" }],
    ["rawFinishReason", "chat-text", { finishReasonRaw: "end" }],
    ["usage.cachedInputTokens", "chat-text", { usage: { cachedInputTokens: 5 } }],
    ["usage.reasoningTokens", "chat-text", { usage: { reasoningTokens: 0 } }],
    ["refusal", "chat-text", { refusal: "no" }],
    ["serverTools", "chat-text", { serverTools: ["web_search"] }],
    ["reasoning block", "chat-text", { reasoningBlocks: [{ type: "thinking", text: "x", signature: "y" }] }],
    ["reasoning item", "chat-text", { reasoningItems: [{ id: "rs_1" }] }],
    ["error", "chat-text", { error: { message: "no" } }],
    ["reasoning", "chat-calls", { reasoning: "Two towns" }],
    ["toolCalls", "chat-calls", { toolCalls: [] }],
    ["error.message", "chat-busy", { error: { message: "Slower." } }],
    ["error.code", "chat-busy", { error: { message: "Slow down", code: "other" } }],
    ["error.type", "chat-busy", { error: { message: "Slow down", type: "other" } }],
    ["error.retryAfterMillis", "chat-busy", { retryAfterSeconds: 3 }]
  ]
  for (const [what, id, expected] of wrong) {
    it.effect(`the replay reports a wrong ${what} of ${id}`, () =>
      Effect.gen(function*() {
        const problems = yield* Effect.flatMap(expecting(id, expected), problemsOf)
        assert.isTrue(problems.some((problem) => problem.includes(`] ${what}`)), problems.join("; "))
      }))
  }

  const call = { id: "call_a", name: "weather", argumentsRaw: "{\"town\":\"Bergen\"}", arguments: { town: "Bergen" } }

  it.effect("the replay reports a wrong id, name or argument of a call", () =>
    Effect.gen(function*() {
      const fixture = yield* fixtureOf("chat-calls")
      const [, second] = fixture.turns[0]!.expected.toolCalls!
      const problems = (first: Fixtures.ExpectedCall) =>
        Effect.map(
          Effect.flatMap(expecting("chat-calls", { toolCalls: [first, second!] }), problemsOf),
          ([problem]) => problem?.replace(/^.*?\] /, "")
        )
      assert.isUndefined(yield* problems(call))
      assert.isUndefined(yield* problems({ ...call, id: null }))
      assert.strictEqual(yield* problems({ ...call, id: "x" }), "toolCalls[0].id: expected \"x\", found \"call_a\"")
      assert.include(yield* problems({ ...call, name: "x" }), "toolCalls[0].name")
      assert.include(yield* problems({ ...call, arguments: { town: "Oslo" } }), "toolCalls[0].arguments")
      assert.include(yield* problems({ ...call, argumentsRaw: "{}" }), "toolCalls[0].rawArguments")
      const { arguments: _, ...cut } = call
      assert.include(yield* problems(cut), "not marked as lost")
    }))

  it.effect("N-22: the replay accepts a refused unanswerable item by its name, and still reports other differences", () =>
    Effect.gen(function*() {
      const shell = { type: "local_shell_call", id: "ls_1", call_id: "l1", action: {} }
      const output = [{ type: "message", content: [{ type: "output_text", text: "Wait." }] }, shell]
      const reply = { id: "resp_1", model: "m", status: "completed", usage: { input_tokens: 3 }, output }
      const problems = (expected: Fixtures.Expected) =>
        Effect.flatMap(
          Effect.flatMap(answering("resp-reasoning-and-call", () => JSON.stringify(reply)), (fixture) =>
            Effect.succeed({ ...fixture, turns: fixture.turns.map((turn) => ({ ...turn, expected })) })),
          problemsOf
        )
      const recorded = {
        text: "Wait.",
        toolCalls: [],
        serverTools: ["local_shell_call"],
        finishReason: "stop"
      } as const
      assert.deepStrictEqual(yield* problems(recorded), [])
      assert.include((yield* problems({ ...recorded, text: "Go." }))[0], "] text")
      assert.include((yield* problems({ ...recorded, usage: { inputTokens: 4 } }))[0], "] usage.inputTokens")
      assert.include((yield* problems({ ...recorded, serverTools: ["web_search_call"] }))[0], "failed")
      assert.include((yield* problems({ text: "Wait." }))[0], "failed")
    }))

  it.effect("the replay reports changed, missing and unexpected content of a transcript", () =>
    Effect.gen(function*() {
      const whole = yield* Effect.flatMap(
        answering("chat-cut-call", (body) => body.replace("the be", "the be\\\"}")),
        problemsOf
      )
      assert.isNotEmpty(whole)
      const silent = yield* Effect.flatMap(answering("chat-text", () => ""), problemsOf)
      assert.include(silent[0], "failed")
      const fine =
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
      const said = yield* Effect.flatMap(answering("chat-error-within", () => fine), problemsOf)
      assert.include(said[0], "error: expected")
    }))
})

describe("a session of transcripts", () => {
  it.effect("a session continues where a request extends the turn before, and starts anew elsewhere", () =>
    Effect.gen(function*() {
      const fixture = yield* fixtureOf("chat-loop")
      const protocol = Protocols.find(fixture.protocol)!
      const next = (other: Fixtures.Fixture) =>
        Session.turns(other, protocol)!.map(({ next }) =>
          next && [next.answers.map(({ text }) => text), next.extra.length]
        )
      assert.deepStrictEqual(next(fixture), [[["5", "13"], 0], [[], 1], undefined])
      const rewritten = yield* asking("chat-loop", 1, (request) => request.replace("Use the tools.", "Think."))
      assert.deepStrictEqual(next(rewritten), [undefined, undefined, undefined])
      const renamed = yield* asking("chat-loop", 1, (request) => request.replaceAll("call_2", "call_9"))
      assert.deepStrictEqual(next(renamed)[0], undefined)
      assert.isUndefined(Session.turns({ ...fixture, turns: [{ ...fixture.turns[0]!, request: undefined }] }, protocol))
    }))

  it.effect("the replay reports an invalid answer inside a session", () =>
    Effect.gen(function*() {
      const problems = yield* Effect.flatMap(answering("chat-loop", () => "{\"error\":\"no\"}", 1), problemsOf)
      assert.isTrue(problems.some((problem) => problem.startsWith("[turn 1")), problems.join("; "))
    }))

  it.effect("the replay reports a request that differs from the recorded request", () =>
    Effect.gen(function*() {
      const louder = yield* answering("chat-loop", (body) => body.replace("I will add.", "I will subtract."))
      const problems = yield* problemsOf(louder)
      assert.isTrue(problems.some((problem) => problem.includes("as a loop] request item 2")), problems.join("; "))
    }))
})

describe("two requests", () => {
  const call = { id: "a", name: "add", arguments: { x: 1 } }
  const items: ReadonlyArray<Conversation.Item> = [
    { kind: "system", text: "s" },
    { kind: "user", text: "u", media: [{ type: "image", url: "i" }] },
    { kind: "assistant", text: "t", calls: [call] },
    { kind: "result", id: "a", name: null, text: "r", isError: null }
  ]
  const differ = (index: number, item: Conversation.Item) =>
    Conversation.differences(items, items.map((known, at) => at === index ? item : known)).length > 0

  it("two requests differ by their texts, media, calls and answers", () => {
    assert.deepStrictEqual(Conversation.differences(items, items), [])
    assert.isTrue(differ(0, { kind: "system", text: "x" }))
    assert.isTrue(differ(0, { kind: "user", text: "s", media: [] }))
    assert.isTrue(differ(1, { kind: "user", text: "x", media: [{ type: "image", url: "i" }] }))
    assert.isTrue(differ(1, { kind: "user", text: "u", media: [] }))
    assert.isTrue(differ(2, { kind: "assistant", text: "x", calls: [call] }))
    assert.isTrue(differ(2, { kind: "assistant", text: "t", calls: [] }))
    assert.isTrue(differ(2, { kind: "assistant", text: "t", calls: [{ ...call, id: "b" }] }))
    assert.isTrue(differ(2, { kind: "assistant", text: "t", calls: [{ ...call, name: "sub" }] }))
    assert.isTrue(differ(2, { kind: "assistant", text: "t", calls: [{ ...call, arguments: { x: 2 } }] }))
    assert.isTrue(differ(3, { kind: "result", id: "b", name: null, text: "r", isError: null }))
    assert.isTrue(differ(3, { kind: "result", id: "a", name: null, text: "x", isError: null }))
    assert.isTrue(differ(3, { kind: "result", id: "a", name: null, text: "r", isError: true }))
    assert.isNotEmpty(Conversation.differences(items, items.slice(1)))
  })

  it("O-66: two requests differ by the id of a call and the id of its answer", () => {
    const toolCalls = [Message.toolCall("look:0", "look", { q: 1 })]
    const response = { ...Collector.toResponse(Collector.initial()), toolCalls }
    const expected = { toolCalls: [{ id: "look:0", name: "look", arguments: { q: 1 } }] }
    const problemsOf = (called: string, answered: string) =>
      RoundTrip.differences(expected, response, undefined, "{}", {
        items: [
          { kind: "assistant", text: "", calls: [{ id: called, name: "look", arguments: { q: 1 } }] },
          { kind: "result", id: answered, name: null, text: "done", isError: null }
        ],
        tools: [],
        isContinued: false
      })
    assert.deepStrictEqual(problemsOf("look:0", "look:0"), [])
    assert.deepStrictEqual(problemsOf("look_0", "look_0").length, 1)
    assert.deepStrictEqual(problemsOf("look:0_2", "look:0_2").length, 1)
    assert.deepStrictEqual(problemsOf("look:0", "look:0_2").length, 2)
  })

  it("two requests are equal although only one states an id or an error flag", () => {
    assert.isFalse(differ(2, { kind: "assistant", text: " t\n", calls: [{ ...call, id: null }] }))
    assert.isFalse(differ(3, { kind: "result", id: null, name: "add", text: "r", isError: false }))
  })
})

describe("the cuts of a body", () => {
  it("each cut covers the whole body, and no two cuts are equal", () => {
    for (const text of ["", "a", "tøj 🌤\r\n\r\nx", "a\nb\n"]) {
      const body = new TextEncoder().encode(text)
      for (const sizes of [undefined, [1, 2], [1000], [0, -1, 3]]) {
        const cuts = Cuts.all(body, sizes)
        for (const cut of cuts) {
          assert.deepStrictEqual(Buffer.concat(Cuts.pieces(body, cut.sizes)).toString(), text, cut.name)
          assert.isTrue(cut.sizes.every((size) => size > 0))
        }
        assert.strictEqual(new Set(cuts.map((cut) => cut.sizes.join())).size, cuts.length)
      }
    }
  })

  it("cuts fall inside code points, at line ends and at each byte", () => {
    const body = new TextEncoder().encode("é\r\nx")
    const sizesOf = (name: string) => Cuts.all(body, undefined).find((cut) => cut.name === name)?.sizes
    assert.deepStrictEqual(sizesOf("inside code points"), [1, 4])
    assert.deepStrictEqual(sizesOf("at line ends"), [3, 1, 1])
    assert.deepStrictEqual(sizesOf("1 byte"), [1, 1, 1, 1, 1])
  })
})

describe("the replay report", () => {
  it.effect("the report has one line for each failed transcript, and its summary ends with the counts", () =>
    Effect.gen(function*() {
      const [fixture] = yield* read
      const passed: Replay.Verdict = { fixture: fixture!, problems: [] }
      const failed: Replay.Verdict = {
        fixture: { ...fixture!, id: "other" },
        problems: ["[whole] a\nb", "c".repeat(500)]
      }
      assert.deepStrictEqual(Report.lines(passed), [])
      const [line, ...rest] = Report.lines(failed)
      assert.deepStrictEqual(rest, [])
      assert.isTrue(line!.startsWith("FAIL other [whole] a b; ccc"))
      assert.notInclude(line, "\n")
      assert.isBelow(line!.length, 420)
      assert.strictEqual(Report.summary([passed, failed]).at(-1), "1 passed, 1 failed")
      assert.deepStrictEqual([[passed], [passed, failed], []].map(Report.isPassed), [true, false, false])
    }))
})
