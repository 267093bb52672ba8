/**
 * How a reply travels: bodies cut anywhere and written in every way that servers are known to write them, work that is
 * linear in what arrives, and connections that end with their streams.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { AdapterSuite, Conformance } from "heddle/testing"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

const { added, args, body, call, completed, created, done, event, interleaved, outcomeOf, said } = Replies
const { of, outcome } = Chunks

const read = (pieces: ReadonlyArray<Uint8Array>) =>
  outcome(Replies.stream("http://model.test").pipe(Connections.reading(pieces)))

const cutInto = (text: string, size: number) => read(Server.pieces(text, size))

describe("reads", () => {
  const reference = Effect.map(outcomeOf(interleaved), ({ events }) => events)

  const cut: Connections.Cut<never> = {
    text: interleaved,
    overHttp: (pieces) => outcomeOf({ pieces }),
    inReads: read
  }

  it.effect("R-349: a body that is written in pieces of any size says the same, over HTTP", () =>
    Connections.isWrittenAnyhow(cut))

  it.effect("R-349: reads of one byte, which cut lines, line ends and code points, say the same", () =>
    Connections.isReadAnyhow(cut))

  const place = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Buffer.byteLength(interleaved) }))
  const cuts = Schema.Array(place).check(Schema.isMaxLength(12))

  it.effect.prop("R-349: cut anywhere, a reply says the same", [cuts], ([places]) =>
    Effect.gen(function*() {
      const bytes = Buffer.from(interleaved)
      const ends = [...places.toSorted((left, right) => left - right), bytes.length]
      const pieces = ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end)).filter(({ length }) =>
        length > 0
      )
      const { error, events } = yield* read(pieces)
      assert.isUndefined(error)
      assert.deepStrictEqual(events, yield* reference)
    }), { arbitrary: { runs: 100 } })

  it.effect("R-334: comments, names of no meaning, missing names and a closing [DONE] are passed over", () =>
    Effect.gen(function*() {
      const noise = ": OPENROUTER PROCESSING\n\n"
      const text = noise +
        body(created, said("a"), said("b"), completed()).replaceAll("event: ", `${noise}id: 1\nx-event: `)
      const { error, events } = yield* outcomeOf(`${text}${noise}data: [DONE]\n\n`)
      assert.isUndefined(error)
      assert.deepStrictEqual(of(events, "TextCompleted").map((event) => event.text), ["ab"])
    }))

  it.effect("R-334: an event whose data has no type goes by its name, and the last one needs no blank line", () =>
    Effect.gen(function*() {
      const text = body(said("a"), completed()).replaceAll(/"type":"response[^"]*",?/g, "").trimEnd()
      const { error, events } = yield* outcomeOf(text)
      assert.isUndefined(error)
      assert.deepStrictEqual(of(events, "TextCompleted").map((event) => event.text), ["a"])
    }))

  it.effect("R-344: a socket that is lost after the last word is not missed, one lost in a call fails the reply", () =>
    Effect.gen(function*() {
      const whole = yield* outcomeOf({ pieces: [body(said("a"), completed())], ending: "drop" })
      assert.deepStrictEqual([of(whole.events, "TextCompleted").length, whole.error], [1, undefined])
      const cut = yield* outcomeOf({
        pieces: [body(added(0, call("a", "search")), args(0, "{\"q\":"))],
        ending: "drop"
      })
      assert.deepStrictEqual(cut.events.map(({ _tag }) => _tag), ["MessageStarted", "ToolCallStarted", "ToolCallDelta"])
      assert.strictEqual(cut.error?.reason, "network_error")
    }))
})

describe("servers", () => {
  type Vary = (event: Replies.Json) => ReadonlyArray<Replies.Json>

  const without = (pattern: RegExp): Vary => (event) => pattern.test(String(event["type"])) ? [] : [event]

  const item = (event: Replies.Json, change: (item: Replies.Json) => Replies.Json): Replies.Json =>
    event["item"] === undefined ? event : { ...event, item: change(event["item"] as Replies.Json) }

  let ids = 0
  const renamed: Vary = (event) => [item({ ...event, item_id: `x${ids++}` }, (one) => ({ ...one, id: `x${ids++}` }))]
  const nameless: Vary = (event) => [item({ ...event, item_id: null }, (one) => ({ ...one, id: undefined }))]
  const named: Vary = (event) => {
    const ids = ["rs_1", "msg_1", "fc_call_a", "fc_call_b"]
    const id = ids[Number(event["output_index"])]
    return [{ ...event, output_index: 0, ...(id === undefined ? {} : { item_id: id }) }]
  }
  const bare: Vary = (event) => [event["type"] === "response.completed" ? completed({ usage: Replies.usage }) : event]

  const varieties: ReadonlyArray<readonly [name: string, ...varies: ReadonlyArray<Vary>]> = [
    ["sends no fragments", without(/delta$/)],
    ["sends fragments only", without(/done$/), bare],
    ["tells only complete items", without(/delta$|added$|text.done$|arguments.done$/), bare],
    ["tells items only in the end", without(/^(?!response\.completed)/)],
    ["announces no items", without(/added$/)],
    ["repeats nothing in the end", bare],
    ["makes up an id for every event", renamed],
    ["makes up an id for every event and repeats nothing", renamed, bare],
    ["has no ids", nameless],
    ["gives every item the same index", named],
    ["gives every item the same index and repeats nothing", named, bare]
  ]

  /** What a reply comes to, however it was told. */
  const sum = (events: Chunks.Outcome["events"]) => {
    const { finishReason, message, metadata } = Replies.last(events)
    return {
      shown: of(events, "TextDelta").map(({ delta }) => delta).join(""),
      thought: of(events, "ReasoningDelta").map(({ delta }) => delta).join(""),
      content: message.content,
      reasoning: message.reasoning?.map((part) => part.type === "reasoning" && part.text),
      calls: Chunks.calls(events),
      usage: metadata?.["usage"],
      finishReason
    }
  }

  for (const [name, ...varies] of varieties) {
    it.effect(`R-343, R-349: a server that ${name} says the same`, () =>
      Effect.gen(function*() {
        const told = varies.reduce<ReadonlyArray<Replies.Json>>(
          (all, vary) => all.flatMap(vary),
          Replies.interleavedEvents
        )
        const { error, events } = yield* cutInto(body(...told), 4096)
        assert.isUndefined(error)
        const reference = yield* cutInto(interleaved, 4096)
        assert.deepStrictEqual(sum(events), sum(reference.events))
      }))
  }
})

describe("work", () => {
  it.effect("R-353, I-19: 50,000 fragments of one byte are parsed once each, and their text as often as one would be", () =>
    Effect.gen(function*() {
      const text = JSON.stringify({ text: "x".repeat(49_989) })
      const answer = body(
        added(0, call("a", "note")),
        ...[...text].map((letter) => args(0, letter)),
        event("function_call_arguments.done", { output_index: 0, arguments: text }),
        done(0, call("a", "note", text)),
        completed({ output: [call("a", "note", text)] })
      )
      const [{ events }, parsed] = yield* parsing(cutInto(answer, 64 * 1024))
      assert.strictEqual(of(events, "ToolCallDelta").length, 50_000)
      assert.strictEqual(of(events, "ToolCallCompleted")[0]!.rawArguments, text)
      assert.isAtMost(parsed, answer.length + 3 * text.length)
    }))

  it.effect("R-353: 64 calls whose fragments take turns are 64 calls, parsed once each", () =>
    Effect.gen(function*() {
      const texts = Array.from({ length: 64 }, (_, index) => JSON.stringify({ n: index, text: "x".repeat(200) }))
      const answer = body(
        ...texts.map((_, index) => added(index, call(`c${index}`, "note"))),
        ...Array.from({ length: 20 }, (_, turn) =>
          texts.flatMap((text, index) => {
            const piece = text.slice(turn * 12, turn === 19 ? undefined : (turn + 1) * 12)
            return piece === "" ? [] : [args(index, piece)]
          })).flat(),
        ...texts.map((text, index) => done(index, call(`c${index}`, "note", text))),
        completed()
      )
      const [{ events }, parsed] = yield* parsing(cutInto(answer, 4096))
      assert.deepStrictEqual(
        of(events, "ToolCallCompleted").map((event) => [event.id, event.arguments["n"], event.argumentsLost]),
        texts.map((_, index) => [`c${index}`, index, undefined])
      )
      assert.isAtMost(parsed, answer.length + 3 * texts.join("").length)
    }))

  it.effect("R-353: an event longer than allowed ends the reply instead of filling the memory", () =>
    Effect.gen(function*() {
      const { error, events } = yield* outcomeOf(
        { pieces: [body(said("a")), `data: ${"x".repeat(5000)}`] },
        { maxEventLength: 1000 }
      )
      assert.strictEqual(error?.reason, "malformed_response")
      assert.include(error?.message, "1000 characters")
      assert.strictEqual(of(events, "TextDelta").length, 1)
    }))
})

describe("connections", () => {
  const begun = body(created, said("a"))

  it.effect("R-125: nothing is sent before the first pull, and each run sends a request of its own", () =>
    Connections.sentWhenPulled(Replies.stream, interleaved))

  it.effect("R-144: a reader that leaves closes the socket, and the server sees it within a second", () =>
    Connections.closedByLeaving(Replies.stream, begun, 1000))

  it.effect("R-144: a reader that is interrupted closes the socket, before the answer and within it", () =>
    Connections.closedByInterruption(Replies.stream, begun))

  Conformance.register(
    AdapterSuite.answering({
      request: { ...Chunks.request, tools: [{ name: "search", description: "", parameters: {} }] },
      connections: Connections.counted
    }),
    Connections.served(Replies.layer, { pieces: Server.pieces(interleaved, 50) }),
    (name, run) => {
      it(`R-334, R-337, ${name}`, run)
    }
  )

  Conformance.register(
    AdapterSuite.failing({ connections: Connections.counted }),
    Connections.served(Replies.layer, { status: 401, headers: {}, pieces: ["{}"] }),
    (name, run) => {
      it(`R-122, ${name}`, run)
    }
  )
})
