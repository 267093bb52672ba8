/**
 * What is particular to Responses on their way: events that servers name, number and repeat in every way that they are
 * known to, and calls whose fragments take turns. What all protocols have in common stands in `travel.test.ts`.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/openAiChat.ts"
import * as Replies from "../support/openAiResponses.ts"
import * as Server from "../support/server.ts"
import { parsing } from "../support/work.ts"

const { added, args, body, call, completed, created, done, interleaved, outcomeOf, said } = Replies
const { of, outcome } = Chunks

const read = (pieces: ReadonlyArray<Uint8Array>) =>
  outcome(Replies.stream("http://model.test").pipe(Connections.reading(pieces)))

const cutInto = (text: string, size: number) => read(Server.pieces(text, size))

describe("Responses bodies", () => {
  it.effect("R-334: the adapter skips comments, unknown fields, missing event names and a closing [DONE]", () =>
    Effect.gen(function*() {
      const noise = ": OPENROUTER PROCESSING\n\n"
      const text = noise +
        body(created, said("a"), said("b"), completed()).replaceAll("event: ", `${noise}id: 1\nx-event: `)
      const { error, events } = yield* outcomeOf(`${text}${noise}data: [DONE]\n\n`)
      assert.isUndefined(error)
      assert.deepStrictEqual(of(events, "TextCompleted").map((event) => event.text), ["ab"])
    }))

  it.effect("R-334: an event without a type in its data has its event name as type, and the last event needs no blank line", () =>
    Effect.gen(function*() {
      const text = body(said("a"), completed()).replaceAll(/"type":"response[^"]*",?/g, "").trimEnd()
      const { error, events } = yield* outcomeOf(text)
      assert.isUndefined(error)
      assert.deepStrictEqual(of(events, "TextCompleted").map((event) => event.text), ["a"])
    }))
})

describe("servers of the Responses protocol", () => {
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
    ["sends only fragments", without(/done$/), bare],
    ["sends only complete items", without(/delta$|added$|text.done$|arguments.done$/), bare],
    ["sends items only in its final event", without(/^(?!response\.completed)/)],
    ["announces no items", without(/added$/)],
    ["repeats nothing in its final event", bare],
    ["makes up an id for every event", renamed],
    ["makes up an id for every event and repeats nothing", renamed, bare],
    ["has no ids", nameless],
    ["gives every item the same index", named],
    ["gives every item the same index and repeats nothing", named, bare]
  ]

  /** The result of a reply, whatever events carried it. */
  const sum = (events: Chunks.Outcome["events"]) => {
    const { finishReason, message, usage } = Replies.last(events)
    return {
      shown: of(events, "TextDelta").map(({ delta }) => delta).join(""),
      thought: of(events, "ReasoningDelta").map(({ delta }) => delta).join(""),
      content: message.content,
      reasoning: message.reasoning?.map((part) => part.type === "reasoning" && part.text),
      calls: Chunks.calls(events),
      usage,
      finishReason
    }
  }

  for (const [name, ...varies] of varieties) {
    it.effect(`R-343, R-349: a reply reads alike from a server that ${name}`, () =>
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

describe("the work for a Responses reply", () => {
  it.effect("R-353: the adapter parses each of 64 calls with interleaved fragments once", () =>
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
})
