/**
 * A folder of recorded transcripts: its index, and what each entry says was sent, what came back and what a correct
 * adapter reads out of it. A single answer and a session of several are the same here: a list of turns.
 */
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Path from "effect/Path"
import * as Schema from "effect/Schema"

const Json = Schema.Record(Schema.String, Schema.Unknown)
const Strings = Schema.Record(Schema.String, Schema.String)
const Call = Schema.Struct({
  id: Schema.NullOr(Schema.String),
  name: Schema.String,
  arguments: Schema.optionalKey(Json),
  argumentsRaw: Schema.optionalKey(Schema.String),
  argumentsJsonType: Schema.optionalKey(Schema.String),
  thoughtSignature: Schema.optionalKey(Schema.String),
  namespace: Schema.optionalKey(Schema.String)
})

/** What a correct adapter reads. What is missing is not asserted. */
const Expected = Schema.Struct({
  text: Schema.optionalKey(Schema.String),
  reasoning: Schema.optionalKey(Schema.String),
  refusal: Schema.optionalKey(Schema.String),
  toolCalls: Schema.optionalKey(Schema.Array(Call)),
  serverTools: Schema.optionalKey(Schema.Array(Schema.String)),
  finishReason: Schema.optionalKey(Schema.NullOr(Schema.String)),
  finishReasonRaw: Schema.optionalKey(Schema.NullOr(Schema.String)),
  stopSequence: Schema.optionalKey(Schema.String),
  blockReason: Schema.optionalKey(Schema.String),
  usage: Schema.optionalKey(Schema.Record(Schema.String, Schema.NullOr(Schema.Finite))),
  usageRaw: Schema.optionalKey(Schema.NullOr(Json)),
  error: Schema.optionalKey(Json),
  retryAfterSeconds: Schema.optionalKey(Schema.Finite),
  reasoningBlocks: Schema.optionalKey(Schema.Array(Json)),
  reasoningItems: Schema.optionalKey(Schema.Array(Json))
})

export type Expected = (typeof Expected)["Type"]
export type ExpectedCall = (typeof Call)["Type"]

const Framing = Schema.Literals(["sse", "data-lines", "json", "json-array", "exchange"])

const Entry = Schema.Struct({
  id: Schema.String,
  protocol: Schema.String,
  vendor: Schema.String,
  model: Schema.NullOr(Schema.String),
  framing: Framing,
  httpStatus: Schema.Int,
  headers: Schema.optionalKey(Strings),
  file: Schema.String,
  requestFile: Schema.optionalKey(Schema.String),
  chunkSizes: Schema.optionalKey(Schema.Array(Schema.Int)),
  expected: Schema.Struct({ ...Expected.fields, turns: Schema.optionalKey(Schema.Array(Expected)) })
})

const Index = Schema.fromJsonString(Schema.Struct({ fixtures: Schema.Array(Entry) }))

const Exchange = Schema.fromJsonString(Schema.Struct({
  turns: Schema.Array(Schema.Struct({
    request: Schema.Struct({ body: Schema.optionalKey(Schema.String) }),
    response: Schema.Struct({
      status: Schema.Int,
      headers: Schema.optionalKey(Strings),
      framing: Schema.optionalKey(Framing),
      body: Schema.String,
      chunkSizes: Schema.optionalKey(Schema.Array(Schema.Int))
    })
  }))
}))

/** One answer of a server, ready to be sent. */
export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: Uint8Array
  readonly chunkSizes: ReadonlyArray<number> | undefined
}

export interface Turn {
  /** The recorded body of the request, where there is one. */
  readonly request: string | undefined
  readonly answer: Answer
  readonly expected: Expected
}

export interface Fixture {
  readonly id: string
  readonly protocol: string
  readonly vendor: string
  readonly model: string
  /** Whether the turns belong to one session. */
  readonly isExchange: boolean
  readonly turns: ReadonlyArray<Turn>
}

type Framed = "sse" | "data-lines" | "json" | "json-array"

const contentTypes: Readonly<Record<Framed, string>> = {
  sse: "text/event-stream",
  "data-lines": "text/event-stream",
  json: "application/json",
  "json-array": "application/json"
}

/** Payloads without their framing, as the server had framed them. Some protocols name every event by its type. */
const framed = (lines: string, protocol: string): string =>
  lines.split("\n").filter((line) => line.trim() !== "").map((line) => {
    const hasNames = protocol === "anthropic" || protocol === "openai-responses"
    const [, type] = hasNames ? /"type"\s*:\s*"([^"]*)"/.exec(typeFirst(line)) ?? [] : []
    return `${type === undefined ? "" : `event: ${type}\n`}data: ${line}\n\n`
  }).join("")

const typeFirst = (line: string): string => {
  const { type } = JSON.parse(line) as { readonly type?: unknown }
  return JSON.stringify({ type })
}

/** What would describe the bytes of another transport than the one they are replayed on. */
const transportHeaders = /^(content-length|content-encoding|transfer-encoding|connection|keep-alive|date)$/i

const answer = (
  protocol: string,
  recorded: {
    readonly status: number
    readonly framing: Framed
    readonly body: Uint8Array
    readonly headers?: Readonly<Record<string, string>> | undefined
    readonly chunkSizes?: ReadonlyArray<number> | undefined
  }
): Answer => {
  const { body, chunkSizes, framing, headers = {}, status } = recorded
  const kept = Object.entries(headers).filter(([name]) => !transportHeaders.test(name))
  const isBare = framing === "data-lines"
  return {
    status,
    headers: { "content-type": contentTypes[framing], ...Object.fromEntries(kept) },
    body: isBare ? new TextEncoder().encode(framed(new TextDecoder().decode(body), protocol)) : body,
    chunkSizes: isBare ? undefined : chunkSizes
  }
}

const looksLikeEvents = (body: string): boolean => /^\s*(data|event|id|:)/.test(body)

const exchangeTurns = (entry: (typeof Entry)["Type"], text: string) =>
  Effect.map(Schema.decodeEffect(Exchange)(text), ({ turns }) =>
    turns.map(({ request, response }, index): Turn => {
      const fallback: Framed = looksLikeEvents(response.body) ? "sse" : "json"
      const framing = response.framing === undefined || response.framing === "exchange" ? fallback : response.framing
      const body = new TextEncoder().encode(response.body)
      return {
        request: request.body,
        answer: answer(entry.protocol, { ...response, framing, body }),
        expected: entry.expected.turns?.[index] ?? {}
      }
    }))

const load = (folder: string) => (entry: (typeof Entry)["Type"]) =>
  Effect.gen(function*() {
    const fs = yield* FileSystem.FileSystem
    const path = yield* Path.Path
    const read = (name: string) => fs.readFile(path.join(folder, name))
    const body = yield* read(entry.file)
    const isExchange = entry.framing === "exchange"
    const text = () => new TextDecoder().decode(body)
    const request = entry.requestFile === undefined
      ? undefined
      : new TextDecoder().decode(yield* read(entry.requestFile))
    const single = (framing: Framed): ReadonlyArray<Turn> => [{
      request,
      answer: answer(entry.protocol, { ...entry, framing, body, status: entry.httpStatus }),
      expected: entry.expected
    }]
    const turns = entry.framing === "exchange" ? yield* exchangeTurns(entry, text()) : single(entry.framing)
    const { id, model, protocol, vendor } = entry
    return { id, protocol, vendor, model: model ?? "recorded-model", isExchange, turns } satisfies Fixture
  })

/** The transcripts of a folder, in the order of its index. */
export const read = (folder: string) =>
  Effect.gen(function*() {
    const fs = yield* FileSystem.FileSystem
    const path = yield* Path.Path
    const text = yield* fs.readFileString(path.join(folder, "index.json"))
    const { fixtures } = yield* Schema.decodeEffect(Index)(text)
    return yield* Effect.forEach(fixtures, load(folder))
  })
