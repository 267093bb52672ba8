/**
 * Hostile replies over the four wire protocols, as plain data and as bytes: fragments under other numbers, calls in other
 * choices, repeated and reordered chunks, errors at every position, ends without an end, halves of surrogate pairs. With
 * what a reply says, which the laws compare with what a run made of it.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Tool } from "heddle"
import * as Anthropic from "./anthropic.ts"
import * as Gemini from "./gemini.ts"
import * as Chunks from "./openAiChat.ts"
import * as Responses from "./openAiResponses.ts"
import { type Name, names, type Played, protocols, type Ran } from "./replies.ts"

type Json = Readonly<Record<string, unknown>>

const mischiefs = [
  "move",
  "moveAll",
  "moveToOther",
  "repeat",
  "swap",
  "wholeAgain",
  "wholeAsString",
  "callAgain",
  "emptyFirst",
  "noHead",
  "otherChoice"
] as const

const small = Schema.Literals([0, 1, 2, 3, 4, 5, 6, 7])

const Value = Schema.Struct({
  protocol: Schema.Literals(names as readonly [Name, ...ReadonlyArray<Name>]),
  word: Schema.Literals(["stop", "tool_calls", "tool_calls", "length", "none"]),
  ending: Schema.Literals(["end", "end", "end", "end", "open", "drop", "cut"]),
  /** Whether the items of Responses repeat their arguments when they are done. */
  isRepeating: Schema.Boolean
})

/** A hostile reply, as a few choices. */
export const replies = Arbitrary.all({
  value: Arbitrary.schema(Value),
  calls: Arbitrary.array(
    Arbitrary.schema(Schema.Struct({ name: Schema.Literals(["look", "find"]), cuts: small, isNested: Schema.Boolean })),
    { maxLength: 3 }
  ),
  texts: Arbitrary.array(Arbitrary.schema(small), { maxLength: 3 }),
  order: Arbitrary.array(Arbitrary.schema(small), { maxLength: 10 }),
  mischief: Arbitrary.array(
    Arbitrary.schema(Schema.Struct({ kind: Schema.Literals(mischiefs), at: small, by: small })),
    { maxLength: 3 }
  ),
  /** The place of an error, from 10 on none. */
  error: Arbitrary.schema(Schema.Literals([0, 1, 2, 3, 5, 8, 10, 11, 12, 13, 14, 15])),
  sizes: Arbitrary.array(Arbitrary.schema(Schema.Literals([1, 3, 7, 40, 200, 5000])), { minLength: 1, maxLength: 4 })
})

export type Reply = typeof replies extends Arbitrary.Arbitrary<infer A> ? A : never

/** Something that a server writes, and the call that it belongs to, whatever it is written under. */
type Op =
  | { readonly _tag: "Text"; readonly text: string }
  | { readonly _tag: "Head"; readonly call: number }
  | { readonly _tag: "Close"; readonly call: number }
  | { readonly _tag: "Args"; readonly call: number; readonly text: string; readonly at: number }
  | { readonly _tag: "Error" }

/** A call as it is meant. */
interface Meant {
  readonly name: string
  readonly id: string
  /** The JSON text of its arguments, and for Gemini the text of their one member. */
  readonly text: string
}

const cut = (text: string, cuts: number): ReadonlyArray<string> => {
  const count = Math.min(text.length, 1 + (cuts % 4))
  const size = Math.ceil(text.length / count)
  return Array.from({ length: count }, (_, index) => text.slice(index * size, (index + 1) * size))
}

const meantOf = ({ calls, value }: Reply): ReadonlyArray<Meant> =>
  calls.map(({ isNested, name }, index) => {
    const v = `${index} tøj 🌤 {"}`
    const text = value.protocol === "gemini"
      ? v
      : JSON.stringify(isNested ? { v, list: [{ n: index }, {}], more: { deep: { v } } } : { v })
    return { name, id: `call_${index}`, text }
  })

const parsed = (protocol: Name, text: string): unknown => {
  if (protocol === "gemini") return text === "" ? {} : { v: text }
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** What a server writes, in its order. */
const opsOf = (reply: Reply): Array<Op> => {
  const { calls, error, mischief, order, texts, value } = reply
  const meant = meantOf(reply)
  const queues: Array<Array<Op>> = [
    texts.map((size, index): Op => ({ _tag: "Text", text: `(${index}${"å🌤".repeat(size % 3)}` })),
    ...meant.map(({ text }, call): Array<Op> => [
      { _tag: "Head", call },
      ...cut(text, calls[call]!.cuts).map((piece): Op => ({ _tag: "Args", call, text: piece, at: call })),
      { _tag: "Close", call }
    ])
  ]
  const ops: Array<Op> = []
  if (value.protocol === "gemini") ops.push(...queues.flat())
  else {
    for (const pick of order) {
      const left = queues.filter((queue) => queue.length > 0)
      const next = left[pick % Math.max(1, left.length)]?.shift()
      if (next !== undefined) ops.push(next)
    }
    ops.push(...queues.flat())
  }
  for (const one of mischief) play(reply, meant, ops, one)
  if (error < 10) ops.splice(Math.min(error, ops.length), 0, { _tag: "Error" })
  return ops
}

const callIn = (op: Op | undefined): number | undefined => op !== undefined && "call" in op ? op.call : undefined

const play = (
  { value: { protocol } }: Reply,
  meant: ReadonlyArray<Meant>,
  ops: Array<Op>,
  { at, by, kind }: Reply["mischief"][number]
): void => {
  const call = meant.length === 0 ? 0 : at % meant.length
  const args = ops.flatMap((op, index) => op._tag === "Args" && op.call === call && op.text !== "{}" ? [index] : [])
  const last = args.at(-1)
  const behind = (op: Op) => last === undefined ? undefined : ops.splice(last + 1, 0, op)
  const under = (index: number, number: number) => {
    const op = ops[index]
    if (op?._tag === "Args") ops[index] = { ...op, at: number }
  }
  const own = meant[call]
  if (own === undefined) return
  switch (kind) {
    case "move":
      return under(args[by % Math.max(1, args.length)] ?? -1, 7)
    case "moveAll":
      return args.forEach((index) => under(index, 7))
    case "moveToOther":
      // What stands in the middle of a call, or is all of it, cannot be told from the other's: nothing shows its loss.
      return args.length === 1
        ? undefined
        : under(args[by % 2 === 0 ? 0 : args.length - 1] ?? -1, (call + 1) % meant.length)
    case "repeat": {
      const index = by % Math.max(1, ops.length)
      const op = ops[index]
      if (op !== undefined && op._tag !== "Text" && op._tag !== "Error") ops.splice(index + 1, 0, op)
      return
    }
    case "swap": {
      const index = by % Math.max(1, ops.length - 1)
      const [one, other] = [ops[index], ops[index + 1]]
      // A piece of Gemini's names no call: it is one of the call that is open.
      const isApart = protocol === "gemini" && callIn(one) !== callIn(other)
      if (one !== undefined && other !== undefined && !isApart) ops.splice(index, 2, other, one)
      return
    }
    case "wholeAgain":
      if (protocol !== "gemini") behind({ _tag: "Args", call, text: own.text, at: call })
      return
    case "wholeAsString":
      if (protocol !== "gemini") behind({ _tag: "Args", call, text: JSON.stringify(own.text), at: call })
      return
    case "callAgain":
      behind({ _tag: "Args", call, text: own.text, at: call })
      behind({ _tag: "Head", call })
      return
    case "emptyFirst":
      if (protocol !== "gemini" && args[0] !== undefined) {
        ops.splice(args[0], 0, { _tag: "Args", call, text: "{}", at: call })
      }
      return
    case "noHead": {
      const head = ops.findIndex((op) => op._tag === "Head" && op.call === call)
      if (head >= 0) ops.splice(head, 1)
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// bytes

/** JSON in which every half of a surrogate pair is escaped by itself. */
const escaped = (value: unknown): string =>
  JSON.stringify(value).replaceAll(/[\ud800-\udfff]/g, (half) => `\\u${half.charCodeAt(0).toString(16)}`)

/** The halves of a text: a server that counts UTF-16 units cuts a pair. */
const halves = (text: string): ReadonlyArray<string> => {
  const pair = text.search(/[\ud800-\udbff]/)
  return pair < 0 ? [text] : [text.slice(0, pair + 1), text.slice(pair + 1)]
}

const words: { readonly [word: string]: string | null } = {
  stop: "end_turn",
  tool_calls: "tool_use",
  length: "max_tokens",
  none: null
}

/** The events of a protocol for each op, and those around them. */
const eventsOf = (
  reply: Reply,
  ops: ReadonlyArray<Op>
): ReadonlyArray<readonly [Op | undefined, ReadonlyArray<Json>]> => {
  const { mischief, value: { isRepeating, protocol, word } } = reply
  const meant = meantOf(reply)
  const isOther = mischief.some(({ kind }) => kind === "otherChoice")
  let blocks = 100
  const error: Json = { error: { message: "overloaded", code: 503, type: "overloaded_error", status: "UNAVAILABLE" } }
  const wire = (op: Op): ReadonlyArray<Json> => {
    if (op._tag === "Error") {
      return [protocol === "anthropic" || protocol === "responses" ? { type: "error", ...error } : error]
    }
    if (op._tag === "Text") {
      const parts = halves(op.text)
      if (protocol === "chat") return parts.map((part) => Chunks.said(part))
      if (protocol === "responses") return parts.map((part) => Responses.said(part, 0))
      if (protocol === "gemini") return parts.map((part) => Gemini.said(part))
      return Anthropic.text(blocks++, ...parts)
    }
    const { id, name, text } = meant[op.call]!
    const of = (delta: Json): Json => isOther ? Chunks.chunk(delta, { index: 1 + op.call }) : Chunks.chunk(delta)
    switch (protocol) {
      case "chat":
        if (op._tag === "Close") return []
        return [of({
          tool_calls: [
            op._tag === "Head"
              ? { index: op.call, id, type: "function", function: { name, arguments: "" } }
              : { index: op.at, function: { arguments: op.text } }
          ]
        })]
      case "responses":
        if (op._tag === "Head") return [Responses.added(op.call + 1, Responses.call(id, name))]
        if (op._tag === "Args") return [Responses.args(op.at + 1, op.text)]
        return [Responses.done(op.call + 1, Responses.call(id, name, isRepeating ? text : ""))]
      case "anthropic":
        if (op._tag === "Head") return [Anthropic.call(op.call, id, name)]
        if (op._tag === "Args") return [Anthropic.args(op.at, op.text)]
        return [Anthropic.closed(op.call)]
      case "gemini":
        if (op._tag === "Head") return [Gemini.chunk([Gemini.call(name, undefined, { id, willContinue: true })])]
        if (op._tag === "Close") return [Gemini.chunk([{ functionCall: {} }])]
        return [Gemini.chunk([{
          functionCall: { partialArgs: [{ jsonPath: "$.v", stringValue: op.text }], willContinue: true }
        }])]
    }
  }
  const ends: { readonly [name in Name]: ReadonlyArray<Json> } = {
    chat: word === "none" ? [] : [Chunks.finish(word)],
    responses: [word === "length" ? Responses.incomplete("max_output_tokens") : Responses.completed()],
    anthropic: Anthropic.ended(words[word]!),
    gemini: [Gemini.finish(word === "length" ? "MAX_TOKENS" : "STOP")]
  }
  const begins: { readonly [name in Name]: ReadonlyArray<Json> } = {
    chat: [Chunks.chunk({ role: "assistant", content: "" })],
    responses: [Responses.created],
    anthropic: [Anthropic.start()],
    gemini: []
  }
  return [[undefined, begins[protocol]], ...ops.map((op) => [op, wire(op)] as const), [undefined, ends[protocol]]]
}

const framed = (protocol: Name, event: Json): string => {
  const isNamed = protocol === "anthropic" || protocol === "responses"
  return `${isNamed ? `event: ${String(event["type"])}\n` : ""}data: ${escaped(event)}\n\n`
}

/** The bytes of a reply in pieces, what is meant by them, and what of it they say. */
interface Written {
  readonly pieces: ReadonlyArray<Uint8Array>
  readonly isDropped: boolean
  /** The ops that arrive whole before an error, and the texts in them. */
  readonly ops: ReadonlyArray<Op>
  readonly text: string
  /** Whether the reply arrives with its end, and with an error. */
  readonly isEnded: boolean
  readonly isFailed: boolean
}

const write = (reply: Reply): Written => {
  const { sizes, value: { ending, protocol } } = reply
  const parts = eventsOf(reply, opsOf(reply)).map(([op, events]) => ({
    op,
    bytes: Buffer.from(events.map((event) => framed(protocol, event)).join(""))
  }))
  const isOpen = ending === "open" || ending === "drop"
  const kept = isOpen ? parts.slice(0, -1) : parts
  const end = Buffer.from(protocol === "chat" && !isOpen ? "data: [DONE]\n\n" : "")
  const all = Buffer.concat([...kept.map(({ bytes }) => bytes), end])
  const bytes = ending === "cut" ? all.subarray(0, Math.floor(all.length * (sizes[0]! % 10) / 10)) : all
  const pieces: Array<Uint8Array> = []
  for (let start = 0, index = 0; start < bytes.length; index++) {
    const size = sizes[index % sizes.length]! + (bytes.length > 4000 ? 60 : 0)
    pieces.push(bytes.subarray(start, start + size))
    start += size
  }
  const ops: Array<Op> = []
  let length = 0
  let isFailed = false
  for (const { bytes: own, op } of kept) {
    length += own.length
    if (length > bytes.length || isFailed) break
    if (op?._tag === "Error") isFailed = true
    else if (op !== undefined) ops.push(op)
  }
  const text = ops.flatMap((op) => op._tag === "Text" ? [op.text] : []).join("")
  return { pieces, isDropped: ending === "drop", ops, text, isEnded: !isOpen && bytes.length === all.length, isFailed }
}

// ---------------------------------------------------------------------------------------------------------------------
// runs

/** Changes what an adapter emits, to plant a mistake. */
export type Fault = (events: ReadonlyArray<Event.AdapterEvent>) => ReadonlyArray<Event.AdapterEvent>

const served = ({ isDropped, pieces }: Written): Response => {
  let next = 0
  return new Response(
    new ReadableStream<Uint8Array>({
      pull: (controller) => {
        const piece = pieces[next++]
        if (piece !== undefined) controller.enqueue(piece)
        else if (isDropped) controller.error(new Error("reset"))
        else controller.close()
      }
    })
  )
}

/** An adapter whose reply is changed by a mistake; a failure of it stays, unless the mistake is to hide failures. */
const faulty = (fault: Fault, hidesFailures: boolean) => (service: Adapter.Service): Adapter.Service => ({
  ...service,
  stream: (request) => {
    const seen: Array<Event.AdapterEvent> = []
    const read = Stream.runForEach(service.stream(request), (event) => Effect.sync(() => void seen.push(event)))
    return Stream.unwrap(Effect.map(Effect.result(read), (result) => {
      const events = Stream.fromIterable(fault(seen))
      return result._tag === "Success" || hidesFailures ? events : Stream.concat(events, Stream.fail(result.failure))
    }))
  }
})

/** What a run comes to over a hostile reply, and a second reply that says "a". */
export const run = (
  reply: Reply,
  fault?: { readonly changes: Fault; readonly hidesFailures?: boolean }
): Effect.Effect<Played> =>
  Effect.gen(function*() {
    const { protocol } = reply.value
    const written = write(reply)
    const ran: Array<Ran> = []
    const events: Array<Event.Event> = []
    let asked = 0
    const fetch = () => Promise.resolve(asked++ === 0 ? served(written) : new Response(protocols[protocol].whole))
    const tools = (["look", "find"] as const).map((name) =>
      Tool.make(name, {
        parameters: { type: "object", properties: {} },
        readOnly: name === "look",
        handler: (args, { index }) => Effect.sync(() => void ran.push({ name, args, index })).pipe(Effect.as("seen"))
      })
    )
    const adapter = protocols[protocol].layer("http://model.test", { retries: 0 })
    const layer = fault === undefined ? adapter : Layer.effect(
      Adapter.Adapter,
      Adapter.Adapter.useSync(faulty(fault.changes, fault.hidesFailures === true))
    ).pipe(Layer.provide(adapter))
    const chat = Chat.run("go", { tools, maxTurns: 3, onEvent: (event) => Effect.sync(() => void events.push(event)) })
    const result = yield* Effect.result(chat.pipe(
      Effect.provide(layer),
      Effect.provideService(FetchHttpClient.Fetch, fetch)
    ))
    return {
      ran,
      events,
      requests: Array.from({ length: asked }, () => undefined as never),
      result: result._tag === "Success" ? result.success : undefined,
      outcome: result._tag === "Success" ? result.success.outcome : { _tag: "Failed", error: result.failure }
    }
  })

// ---------------------------------------------------------------------------------------------------------------------
// laws

const same = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other)

/** Pieces of arguments as one text. Those behind a `{}` replace it. */
const joined = (pieces: ReadonlyArray<{ readonly text: string }>): string => {
  const first = pieces.findIndex(({ text }) => text !== "{}")
  return first < 0 ? pieces[0]?.text ?? "" : pieces.slice(first).map(({ text }) => text).join("")
}

/** Tells whether other text stands behind whole arguments. */
const isTwofold = (text: string): boolean =>
  Array.from(text.trim()).some((_, length, all) =>
    length > 0 && typeof parsed("chat", all.slice(0, length).join("")) === "object"
  )

/**
 * The arguments of a call in what a server has written: its pieces, those under its number, and these together with those
 * under the number of no call. A piece that stands under the number of another call shows nothing where both are whole
 * nevertheless. A piece under the number of no call shows that its call lacks it, unless the arguments under the number of
 * its call were whole before: that call cannot have it then, and another one may.
 */
const argumentsIn = ({ value: { protocol } }: Reply, ops: ReadonlyArray<Op>, call: number): ReadonlyArray<string> => {
  const args = ops.flatMap((op, place) => op._tag === "Args" ? [{ ...op, place }] : [])
  const own = joined(args.filter((piece) => piece.call === call))
  if (protocol === "gemini") return [own]
  const isNamed = (number: number) =>
    ops.some((op) => (op._tag === "Head" || op._tag === "Close" && protocol === "responses") && op.call === number)
  const strays = args.filter(({ at }) => !isNamed(at))
  const lacking = new Set(
    strays
      .filter(({ call, place }) =>
        parsed(protocol, joined(args.filter((piece) => piece.at === call && piece.place < place))) === undefined
      )
      .map(({ call }) => call)
  )
  const under = args.filter(({ at }) => at === call)
  // A call of which all pieces stand under other calls' numbers has none, unless one of those has two arguments then.
  const others = new Set(args.flatMap((piece) => piece.call === call ? [piece.at] : []))
  const isMissed = Array.from(others).some((other) => isTwofold(joined(args.filter(({ at }) => at === other))))
  return [
    own,
    ...(lacking.has(call) ? [] : [under.length > 0 || own === "" || isMissed ? joined(under) : "{}"]),
    ...(Array.from(lacking).some((other) => other !== call)
      ? []
      : [joined(args.filter((piece) => under.includes(piece) || strays.includes(piece)))])
  ]
}

/**
 * (a) No handler runs with arguments that the bytes do not have, and none more often than they have its call. A call that
 * the server had ended, or that stood whole when it began something else, may have run when more of it comes, which fails
 * the reply. It has what came before: also `{}`, where nothing else did. Nothing tells such a call from one without
 * arguments until then.
 */
export const argumentsOf = (reply: Reply, { outcome, ran }: Played): ReadonlyArray<string> => {
  const { ops } = write(reply)
  const { protocol } = reply.value
  const left = meantOf(reply).map((meant, call) => {
    const ends = (op: Op): boolean =>
      op._tag === "Close"
        ? op.call === call
        : op._tag === "Head"
        ? op.call !== call
        : op._tag === "Text" && protocol === "anthropic"
    const early = outcome._tag === "Failed" ? ops.flatMap((op, place) => ends(op) ? [ops.slice(0, place)] : []) : []
    const texts = [meant.text, ...[ops, ...early].flatMap((some) => argumentsIn(reply, some, call))]
    return { name: meant.name, may: texts.map((text) => parsed(protocol, text)), isRun: false }
  })
  return ran.flatMap(({ args, name }) => {
    const found = left.find((one) => !one.isRun && one.name === name && one.may.some((may) => same(may, args)))
    if (found === undefined) return [`arguments: ${name} ran with ${JSON.stringify(args)}`]
    found.isRun = true
    return []
  })
}

/** (b) No reply with a call ends the run as completed, nor one that says that it has one. */
export const completedOf = (reply: Reply, { events, outcome, requests }: Played): ReadonlyArray<string> => {
  const { isEnded, isFailed, ops } = write(reply)
  if (outcome._tag !== "Completed") return []
  const hasCall = ops.some(({ _tag }) => _tag === "Head")
  const { protocol, word } = reply.value
  const saysSo = isEnded && word === "tool_calls" && (protocol === "chat" || protocol === "anthropic")
  const isLate = requests.length > 1
  const calls = new Set(ops.flatMap((op) => op._tag === "Head" ? [op.call] : []))
  const answered = events.filter(({ _tag }) => _tag === "ToolResultEncoded").length
  return [
    ...(hasCall && !isLate ? ["completed: the reply has a call"] : []),
    ...(saysSo && !isLate ? ["completed: the reply says that it has a call"] : []),
    ...(isFailed ? ["completed: the reply has an error"] : []),
    ...(answered < calls.size ? [`completed: ${answered} answers to ${calls.size} calls`] : [])
  ]
}

/** (c) No text that was received is lost, unless an error says so. */
export const textOf = (reply: Reply, { events, outcome }: Played): ReadonlyArray<string> => {
  const { isEnded, isFailed, text } = write(reply)
  const end = events.findIndex(({ _tag }) => _tag === "StepCompleted")
  const said = (end < 0 ? events : events.slice(0, end))
    .flatMap((event) => event._tag === "TextDelta" ? [event.delta] : []).join("")
  const error = outcome._tag === "Failed" ? outcome.error : undefined
  const isMalformed = error instanceof Adapter.AdapterError && error.reason === "malformed_response"
  const step = events.find((event) => event._tag === "StepCompleted")
  const kept = step?._tag === "StepCompleted" ? step.response.outputText ?? "" : said
  // A read that breaks off may have begun one more text than arrived whole.
  const isTorn = !isEnded && !isFailed && said.startsWith(text)
  return [
    ...(said === text || isTorn || (isMalformed && text.startsWith(said)) ? [] : [
      `text: ${JSON.stringify(said)} was shown of ${JSON.stringify(text)}`
    ]),
    ...(kept === said ? [] : [`text: ${JSON.stringify(kept)} was kept of ${JSON.stringify(said)}`])
  ]
}
