/**
 * What holds of every reply, whatever it is made of: it says the same in either framing and at any cut, and goes back as
 * it came.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type Adapter, Message, Step } from "heddle"
import * as Connections from "../support/connections.ts"
import * as Chunks from "../support/gemini.ts"
import { shareOf } from "../support/property.ts"
import * as Server from "../support/server.ts"

type Json = Readonly<Record<string, unknown>>

const { array, body, call, chunk, finish } = Chunks

const kinds = ["text", "thought", "call", "executableCode", "codeExecutionResult", "inlineData", "nothing"] as const

const partOf = (kind: (typeof kinds)[number], text: string): Json => {
  switch (kind) {
    case "text":
      return { text }
    case "thought":
      return { text, thought: true }
    case "call":
      return call("f", { text, nested: [{ "}": "\"" }] }, text.length % 2 === 0 ? {} : { id: text })
    case "nothing":
      return {}
    default:
      return { [kind]: { id: "1", text } }
  }
}

const part: Arbitrary.Arbitrary<Json> = Arbitrary.map(
  Arbitrary.schema(Schema.Struct({
    kind: Schema.Literals(kinds),
    text: Schema.String,
    signature: Schema.Literals(["", "", "s", "t"])
  })),
  ({ kind, signature, text }) => ({
    ...partOf(kind, text),
    ...(signature === "" ? {} : { thoughtSignature: signature })
  })
)

const reply = Arbitrary.all({
  chunks: Arbitrary.array(Arbitrary.array(part, { maxLength: 3 }), { maxLength: 6 }),
  word: Arbitrary.schema(Schema.Literals(["STOP", "MAX_TOKENS", "SAFETY"])),
  sizes: Arbitrary.array(Arbitrary.schema(Schema.Literals([1, 2, 3, 5, 8, 13, 40, 200])), {
    minLength: 1,
    maxLength: 8
  })
})

/** The pieces of a body, of these sizes over and over. */
const pieces = (text: string, sizes: ReadonlyArray<number>): ReadonlyArray<Uint8Array> => {
  const bytes = Buffer.from(text)
  const cut: Array<Uint8Array> = []
  for (let start = 0, index = 0; start < bytes.length; index++) {
    const size = sizes[index % sizes.length]!
    cut.push(bytes.subarray(start, start + size))
    start += size
  }
  return cut
}

const read = (all: ReadonlyArray<Uint8Array>) =>
  Chunks.steady(Chunks.outcome(Chunks.stream("http://model.test", { retries: 0 }).pipe(Connections.reading(all))))

/**
 * A turn's parts as they have to go back: unsigned texts are one, unsigned thoughts and empty parts are left out, and a
 * call that comes again with its id is one (O-19).
 */
const expectedBack = (parts: ReadonlyArray<Json>): ReadonlyArray<Json> => {
  const back: Array<Json> = []
  for (const part of parts) {
    if (back.some((other) => isRepeated(other["functionCall"], part["functionCall"]))) continue
    const isSigned = part["thoughtSignature"] !== undefined
    const last = back.at(-1)
    if (Object.keys(part).length === 0 || (!isSigned && (part["thought"] === true || part["text"] === ""))) continue
    const isJoined = typeof part["text"] === "string" && !isSigned && typeof last?.["text"] === "string" &&
      last["thoughtSignature"] === undefined
    if (isJoined) back[back.length - 1] = { text: `${last["text"]}${part["text"]}` }
    else back.push(part)
  }
  return back
}

const isRepeated = (first: any, again: any): boolean =>
  first?.id !== undefined && JSON.stringify(first) === JSON.stringify(again)

/** The same data, in which a half of a surrogate pair is U+FFFD. */
const wellFormed = (value: unknown): unknown => {
  if (typeof value === "string") return value.toWellFormed()
  if (typeof value !== "object" || value === null) return value
  return Array.isArray(value)
    ? value.map(wellFormed)
    : Object.fromEntries(Object.entries(value).map(([key, member]) => [key.toWellFormed(), wellFormed(member)]))
}

describe("any Gemini reply", () => {
  it.effect.prop(
    "R-349: the adapter reads a reply alike in either framing and at any cut",
    [reply],
    ([{ chunks, sizes, word }]) =>
      Effect.gen(function*() {
        const all = [...chunks.map((parts) => chunk(parts)), finish(word)]
        const expected = yield* read([Buffer.from(body(...all))])
        assert.isUndefined(expected.error)
        for (const text of [body(...all), array(...all), JSON.stringify(all)]) {
          assert.deepStrictEqual(yield* read(pieces(text, sizes)), expected)
        }
      }),
    { arbitrary: { runs: shareOf(200), size: 8 } }
  )

  it.effect.prop(
    "R-342, O-12: a reply goes back unchanged except for lone surrogates",
    [reply],
    ([{ chunks }]) =>
      Effect.scoped(Effect.gen(function*() {
        const replies = [body(...chunks.map((parts) => chunk(parts)), finish("STOP")), body(finish("STOP"))]
        const server = yield* Server.serve((_, index) => ({ pieces: [replies[index]!] }))
        const run = (messages: ReadonlyArray<Message.Message>) =>
          Step.run(messages).pipe(Effect.provide(Chunks.layer(server.url)))
        const { thread } = yield* run([Message.user("go")])
        yield* run([...JSON.parse(JSON.stringify(thread.messages)) as Adapter.Request["messages"], Message.user("on")])
        const { contents } = server.requests[1]!.body as {
          contents: ReadonlyArray<{ role: string; parts: ReadonlyArray<Json> }>
        }
        const back = contents.filter(({ role }) => role === "model").flatMap(({ parts }) => parts)
        assert.deepStrictEqual(back, wellFormed(expectedBack(chunks.flat())))
      })),
    { arbitrary: { runs: shareOf(100), size: 8 } }
  )
})
