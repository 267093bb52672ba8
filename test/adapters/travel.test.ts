/**
 * How a reply travels, in every protocol: bodies cut anywhere say the same, the work is linear in what arrives, what is
 * held is bounded, and connections begin and end with their streams.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as Adapters from "../support/adapters.ts"
import * as Connections from "../support/connections.ts"
import { steady } from "../support/gemini.ts"
import { calls, of, outcome } from "../support/openAiChat.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

for (const protocol of Adapters.all) {
  const { begun, calling, fragments, isStreamed, layer, name, rich, timesParsed, whole } = protocol

  const events: Connections.Events = (url) => Adapters.stream(protocol, url)

  const read = (pieces: ReadonlyArray<Uint8Array>) =>
    steady(outcome(events("http://model.test").pipe(Connections.reading(pieces))))

  describe(`bodies: ${name}`, () => {
    const cut: Connections.Cut<never> = {
      text: rich,
      overHttp: (pieces) => Adapters.outcomeOf(protocol, { pieces }),
      inReads: read
    }

    it.effect("R-349: a body written in pieces of any size reads alike over HTTP", () =>
      Effect.gen(function*() {
        assert.strictEqual(calls((yield* Adapters.outcomeOf(protocol, rich)).events).length, 2)
        yield* Connections.isWrittenAnyhow(cut)
      }))

    it.effect("R-349: reads of one byte, which cut lines, line ends and code points, give the same events", () =>
      Connections.isReadAnyhow(cut))

    const place = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Buffer.byteLength(rich) }))

    it.effect.prop(
      "R-349: a body cut anywhere, with any line ends, reads alike",
      {
        places: Schema.Array(place).check(Schema.isMaxLength(12)),
        ends: Schema.Literals(["\n", "\r\n", "\r"])
      },
      ({ ends, places }) =>
        Effect.gen(function*() {
          const bytes = Buffer.from(rich.replaceAll(/\r?\n/g, ends))
          const stops = [...places.toSorted((left, right) => left - right), bytes.length]
          const pieces = stops.map((end, index) => bytes.subarray(stops[index - 1] ?? 0, end))
          assert.deepStrictEqual(
            Server.anywhere(yield* read(pieces.filter(({ length }) => length > 0))),
            Server.anywhere(yield* Adapters.outcomeOf(protocol, rich))
          )
        }),
      { arbitrary: { runs: 60 } }
    )
  })

  describe(`work: ${name}`, () => {
    it.effect("R-353, I-19: the adapter parses each of 50,000 one-byte fragments once, and their whole text a fixed number of times", () =>
      Effect.gen(function*() {
        const text = JSON.stringify({ text: "x".repeat(49_989) })
        assert.strictEqual(text.length, 50_000)
        const answer = fragments(text)
        const [{ events }, parsed] = yield* parsing(read(Server.pieces(answer, 64 * 1024)))
        const [called] = of(events, "ToolCallCompleted")
        assert.strictEqual(called!.rawArguments, text)
        assert.strictEqual(of(events, "ToolCallDelta").length, isStreamed ? 50_000 : 1)
        assert.isAtMost(parsed, answer.length + timesParsed * text.length)
      }))

    it.effect("R-353: an event over the length limit fails the reply; comments do not", () =>
      Effect.gen(function*() {
        const endless = `data: ${"x".repeat(5000)}`
        for (const text of [endless, `${endless}\n\n`, "data: y\n".repeat(900), "stray\n".repeat(900)]) {
          const { error, events } = yield* Adapters.outcomeOf(protocol, { pieces: [begun, text] }, {
            maxEventLength: 1000
          })
          assert.strictEqual(error?.reason, "malformed_response", text.slice(0, 20))
          assert.include(error?.message, "1000 characters")
          assert.strictEqual(of(events, "TextDelta").length, 1)
        }
        const patient = yield* Adapters.outcomeOf(
          protocol,
          { pieces: [": waiting\n\n".repeat(20_000), whole] },
          { maxEventLength: 1000 }
        )
        assert.isUndefined(patient.error)
      }))
  })

  describe(`connections: ${name}`, () => {
    it.effect("R-125: the adapter sends nothing before the first pull, and each run sends its own request", () =>
      Connections.sentWhenPulled(events, rich))

    it.effect("R-144: a reader that leaves closes the socket at once, while the server is silent", () =>
      Connections.closedByLeaving(events, begun))

    it.effect("R-144: an interrupted reader closes the socket, before the answer and during the answer", () =>
      Connections.closedByInterruption(events, begun))

    it.effect("R-344, R-355: a connection lost during a call fails the reply; a connection lost after the end does not", () =>
      Effect.gen(function*() {
        const dropped = yield* Adapters.outcomeOf(protocol, { pieces: [calling], ending: "drop" })
        assert.strictEqual(dropped.error?.reason, "network_error")
        assert.deepStrictEqual(dropped.events.map(({ _tag }) => _tag).slice(0, 4), [
          "MessageStarted",
          "TextDelta",
          "ToolCallStarted",
          ...(isStreamed ? ["ToolCallDelta"] : [])
        ])
        assert.deepStrictEqual(of(dropped.events, "ToolCallCompleted"), [])
        const complete = yield* Adapters.outcomeOf(protocol, { pieces: [whole], ending: "drop" })
        const texts = of(complete.events, "TextCompleted").map(({ text }) => text)
        assert.deepStrictEqual([texts, complete.error], [["a"], undefined])
      }))

    Conformance.register(
      AdapterSuite.answering({ request: Adapters.request, connections: Connections.counted }),
      Connections.served(layer, { pieces: Server.pieces(rich, 50) }),
      (name, run) => {
        it(`R-334, R-337, ${name}`, run)
      }
    )

    Conformance.register(
      AdapterSuite.failing({ connections: Connections.counted }),
      Connections.served(layer, { status: 401, headers: {}, pieces: ["{}"] }),
      (name, run) => {
        it(`R-122, ${name}`, run)
      }
    )
  })
}
