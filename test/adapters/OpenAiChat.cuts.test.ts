/**
 * Any transcript, cut anywhere: what is read does not depend on how the network parted it, and the work it takes does not
 * depend on how the server did.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Event } from "heddle"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/openAiChat.ts"
import { shareOf } from "../support/property.ts"
import { parsing } from "../support/work.ts"

const { body, call, finish, of, said } = Chunks

const read = (pieces: Iterable<Uint8Array>) =>
  Chunks.outcome(Chunks.stream("http://model.test", { retries: 0 }).pipe(Connections.reading(pieces)))

const oneOf = <const A>(...values: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  Arbitrary.map(Arbitrary.schema(Schema.Literals(values.map((_, index) => index))), (index) => values[index] as A)

const texts = oneOf("a", "tøj", "🌤", "한", " ", "\\n", "\"", "", "{\"x\":", "1}", "\u{2028}")

/** A piece of a reply: an event of some kind, or something between events. */
const pieces = Arbitrary.all({
  kind: oneOf(
    "text",
    "text",
    "thought",
    "fragment",
    "fragment",
    "fragment",
    "comment",
    "lines",
    "blank",
    "retry",
    "finish",
    "usage"
  ),
  text: texts,
  index: oneOf(0, 0, 1, 2),
  id: oneOf(undefined, undefined, "a", "b"),
  name: oneOf(undefined, undefined, "write", "search")
})

type Piece = typeof pieces extends Arbitrary.Arbitrary<infer A> ? A : never

const event = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

const written = ({ id, index, kind, name, text }: Piece): string => {
  switch (kind) {
    case "text":
      return event(said(text))
    case "thought":
      return event(Chunks.chunk({ reasoning_content: text }))
    case "fragment":
      return event(call({
        index,
        ...(id === undefined ? {} : { id }),
        ...(name === undefined ? {} : { name }),
        arguments: text
      }))
    case "lines":
      return `${JSON.stringify(said(text), null, 1).split("\n").map((line) => `data: ${line}`).join("\n")}\n\n`
    case "comment":
      return `: ${text}\n\n`
    case "blank":
      return "\n\n"
    case "retry":
      return "retry: 10\nid: 7\nevent: message\n"
    case "finish":
      return event(finish("tool_calls"))
    case "usage":
      return event(Chunks.usage({ prompt_tokens: index, completion_tokens: 2 }))
  }
}

/** Any transcript, with the line ends and the end that servers give it. */
const transcripts = Arbitrary.map(
  Arbitrary.all({
    pieces: Arbitrary.array(pieces, { minLength: 0, maxLength: 12 }),
    lineEnd: oneOf("\n", "\r\n", "\r"),
    ending: oneOf(
      "data: [DONE]\n\n",
      "data: [DONE]",
      "",
      "data: {\"error\":\"no\"}\n\n",
      "{\"error\":\"no\"}",
      "data: {"
    )
  }),
  ({ ending, lineEnd, pieces }) => (pieces.map(written).join("") + ending).replaceAll("\n", lineEnd)
)

const sizes = Arbitrary.array(oneOf(1, 1, 2, 3, 5, 17, 64, 400), { minLength: 1, maxLength: 12 })

/** Reads of these sizes, over and over. */
const cut = (bytes: Uint8Array, lengths: ReadonlyArray<number>): ReadonlyArray<Uint8Array> => {
  const reads: Array<Uint8Array> = []
  for (let start = 0, index = 0; start < bytes.length; index++) {
    const end = start + lengths[index % lengths.length]!
    reads.push(bytes.subarray(start, end))
    start = end
  }
  return reads
}

/** Ids that were made up differ from reading to reading. */
const comparable = ({ error, events }: Chunks.Outcome): unknown =>
  JSON.parse(JSON.stringify([error?.reason, error?.detail, events]).replaceAll(/call_[0-9a-f]{32}/g, "made up"))

describe("a Chat Completions transcript cut anywhere", () => {
  it.effect.prop(
    "R-349: the adapter reads every transcript alike, wherever its reads are cut",
    [transcripts, sizes],
    ([transcript, lengths]) =>
      Effect.gen(function*() {
        const bytes = new TextEncoder().encode(transcript)
        const expected = comparable(yield* read(bytes.length === 0 ? [] : [bytes]))
        assert.deepStrictEqual(comparable(yield* read(cut(bytes, lengths))), expected)
      }),
    { arbitrary: { runs: shareOf(300) } }
  )
})

describe("the work for a Chat Completions reply", () => {
  it.effect("R-353, I-19: the adapter assembles 64 interleaved calls of 800 fragments each in linear work", () =>
    Effect.gen(function*() {
      const indices = Array.from({ length: 64 }, (_, index) => index)
      const text = JSON.stringify({ text: "y".repeat(789) })
      assert.strictEqual(text.length, 800)
      const answer = body(
        ...indices.map((index) => call({ index, id: `c${index}`, name: "note", arguments: "" })),
        ...[...text].flatMap((letter) => indices.map((index) => call({ index, arguments: letter }))),
        finish("tool_calls")
      )
      const bytes = new TextEncoder().encode(answer)
      const [{ events }, parsed] = yield* parsing(read(cut(bytes, [64 * 1024])))
      const found: ReadonlyArray<Event.Of<"ToolCallCompleted">> = of(events, "ToolCallCompleted")
      assert.deepStrictEqual(found.map(({ id }) => id), indices.map((index) => `c${index}`))
      assert.isTrue(found.every(({ rawArguments }) => rawArguments === text))
      assert.isAtMost(parsed, answer.length + 3 * 64 * text.length)
    }))
})
