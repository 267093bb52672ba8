/**
 * Bodies that adapters make, over conversations that are drawn: threads, tools, options, and runs of several turns, by
 * all four protocols and the vendors of Chat Completions. No server is asked: each reply is written here.
 */
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import { type Adapter, Chat, Message, Tool } from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import * as Messages from "./anthropic.ts"
import * as Contents from "./gemini.ts"
import * as Chunks from "./openAiChat.ts"
import * as Responses from "./openAiResponses.ts"
import * as SentIds from "./sentIds.ts"

export type Json = Readonly<Record<string, any>>

const vendors = [
  "generic",
  "openai",
  "azure",
  "openrouter",
  "snowflake",
  "deepseek",
  "moonshot",
  "xiaomi",
  "zai",
  "qwen",
  "mistral"
] as const

const protocols = ["OpenAiResponses", "Anthropic", "Gemini", ...vendors] as const
export type Protocol = (typeof protocols)[number]

// ---------------------------------------------------------------------------------------------------------------------
// what is drawn

const texts = [
  "Hi",
  "",
  " ",
  "half \ud83d of it",
  "😀",
  "\ude00",
  "{\"a\":\"\\ud83d\"}",
  "</s>\u0000\u2028",
  "ü".repeat(50)
]
/** Ids that repeat, that are missing, long, of another form, half a pair, or that mean something elsewhere. */
const ids = [
  "call_1",
  "call_1",
  "look:0",
  "look:0",
  "",
  "functions.look:0",
  "x".repeat(70),
  `${"x".repeat(70)}y`,
  "call \ud83d",
  "toolu_01",
  "look_0",
  "000000000",
  "__proto__",
  "a\"b\\c\n",
  "🌤".repeat(30)
]
/** The maker of a call in a thread: none that is known, another server, this one, or this one under another id. */
const makers = ["none", "other", "own", "renamed"] as const
const results = ["text", "half", "object", "image", "file", "nothing", "failure", "crash"] as const
const names = ["look", "find_all", "3d", "-dash", "unioned"] as const

const one = <const A extends ReadonlyArray<string | number | boolean>>(values: A): Arbitrary.Arbitrary<A[number]> =>
  Arbitrary.schema(Schema.Literals(values as any)) as any

const call = Arbitrary.all({
  name: one([...names, "made_up"]),
  id: one(ids),
  text: one(texts),
  isNull: one([true, false])
})

const reply = Arbitrary.all({
  text: one(texts),
  thought: one(["", "", "I think", "half \ud83d"]),
  opaque: one([false, false, true]),
  calls: Arbitrary.array(call, { minLength: 1, maxLength: 3 })
})

const said = Arbitrary.all({
  kind: one(["user", "image", "file", "system", "assistant", "thought", "called", "called"]),
  text: one(texts),
  calls: Arbitrary.array(Arbitrary.all({ id: one(ids), maker: one(makers) }), { minLength: 1, maxLength: 3 })
})

const settings = Arbitrary.all({
  strict: one([true, false]),
  parallel: one([true, false]),
  effort: one(["", "", "low", "none"]),
  budget: one([0, 0, 2048]),
  cache: one([true, false]),
  choice: one(["", "", "auto", "none", "required", "look"]),
  format: one(["", "", "json_object", "json_schema"]),
  temperature: one([-1, 0, 1]),
  maxTokens: one([0, 512]),
  system: one(["", ...texts]),
  openApi: one([true, false])
})

export interface Drawn {
  readonly protocol: Protocol
  readonly thread: ReadonlyArray<{
    readonly kind: string
    readonly text: string
    readonly calls: ReadonlyArray<{ readonly id: string; readonly maker: (typeof makers)[number] }>
  }>
  readonly replies: ReadonlyArray<{
    readonly text: string
    readonly thought: string
    readonly opaque: boolean
    readonly calls: ReadonlyArray<{
      readonly name: string
      readonly id: string
      readonly text: string
      readonly isNull: boolean
    }>
  }>
  readonly settings: Json
  readonly results: ReadonlyArray<string>
}

export const drawn: Arbitrary.Arbitrary<Drawn> = Arbitrary.all({
  protocol: one(protocols),
  thread: Arbitrary.array(said, { maxLength: 5 }),
  replies: Arbitrary.array(reply, { maxLength: 3 }),
  settings,
  results: Arbitrary.array(one(results), { minLength: 1, maxLength: 4 })
}) as any

// ---------------------------------------------------------------------------------------------------------------------
// what it stands for

const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
const image: Message.Part = { type: "image", mediaType: "image/png", data: png }
const file: Message.Part = { type: "file", mediaType: "application/pdf", data: "JVBERi0xLjQK", filename: "a.pdf" }

/** The key under which a protocol keeps what a server made, and the name of the server that bodies here go to. */
const ownOf = (protocol: Protocol): readonly [key: string, server: string] => {
  switch (protocol) {
    case "OpenAiResponses":
      return ["openaiResponses", "api.openai.com"]
    case "Anthropic":
      return ["anthropic", "api.anthropic.com"]
    case "Gemini":
      return ["gemini", "generativelanguage.googleapis.com"]
    default:
      return ["openaiChat", protocol === "generic" ? "api.openai.com" : protocol]
  }
}

/** A call of a thread that was made before. Its answer begins with `mark`. */
interface Made {
  readonly call: Message.ToolCall
  readonly wireId: string
  readonly maker: (typeof makers)[number]
  readonly mark: string
}

const madeIn = ({ protocol, thread }: Drawn, index: number): ReadonlyArray<Made> => {
  const { calls, kind, text } = thread[index]!
  if (kind !== "called") return []
  const [key, server] = ownOf(protocol)
  return calls.map(({ id, maker }, position) => {
    const wireId = id === "" ? `made-${index}` : id
    const isRenamed = maker === "renamed"
    const made = maker === "none" ? {} : {
      [key]: {
        server: maker === "other" ? "elsewhere" : server,
        ...(key === "gemini" ? { id: wireId } : {}),
        ...(key === "openaiChat" && maker === "other" ? { extra_content: { x: 1 } } : {})
      }
    }
    const call = Message.toolCall(isRenamed ? `renamed-${index}-${position}` : wireId, "look", { q: text })
    const metadata = { ...(isRenamed ? { duplicateOf: wireId } : {}), ...made }
    return { call: { ...call, metadata }, wireId, maker, mark: `${index}.${position} ` }
  })
}

const messagesOf = (drawn: Drawn): ReadonlyArray<Message.Message> => [
  Message.user("go"),
  ...drawn.thread.flatMap(({ kind, text }, index): ReadonlyArray<Message.Message> => {
    switch (kind) {
      case "user":
        return [{ role: "user", content: text, metadata: {} }]
      case "image":
        return [Message.user([{ type: "text", text }, image])]
      case "file":
        // DeepSeek and its like take no files; that is refused by the server and not by the type.
        return [Message.user([file, { type: "text", text: `${text}.` }])]
      case "system":
        return [{ role: "system", content: text, metadata: {} }]
      case "assistant":
        return [{ role: "assistant", content: text, metadata: {} }]
      case "thought":
        return [{ ...Message.assistant(text), reasoning: [{ type: "reasoning", text: `why ${text}` }] }]
      default: {
        const made = madeIn(drawn, index)
        return [
          Message.assistant("", made.map(({ call }) => call)),
          ...made.map(({ call: { id }, mark }): Message.Message => ({
            role: "tool",
            toolCallId: id,
            name: "look",
            content: `${mark}${text}`,
            metadata: {}
          }))
        ]
      }
    }
  }),
  Message.user("and now?")
]

class Broken extends Schema.TaggedError<Broken>()("Broken", { path: Schema.String }) {}

const toolsOf = ({ results }: Drawn): ReadonlyArray<Tool.Any> => {
  let count = 0
  const handler = (): Effect.Effect<any, any> => {
    switch (results[count++ % results.length]) {
      case "text":
        return Effect.succeed("found")
      case "half":
        return Effect.succeed("half \ud83d")
      case "object":
        return Effect.succeed({ text: "\ude00", list: [1, null, { "key \ud83d": true }] })
      case "image":
        return Effect.succeed(Tool.content([{ type: "text", text: "see" }, image as any]))
      case "file":
        return Effect.succeed(Tool.content([file as any]))
      case "nothing":
        return Effect.succeed(undefined)
      case "failure":
        return Effect.fail(new Broken({ path: "\ud83d" }))
      default:
        return Effect.die(new Error("broke \ud83d"))
    }
  }
  const member = { type: "object", properties: { k: { const: "a" }, q: { type: "string" } }, required: ["k"] }
  const parameters: Readonly<Record<(typeof names)[number], any>> = {
    look: { type: "object", properties: { q: { type: "string" }, n: { type: "integer" } }, required: ["q"] },
    find_all: { type: "object", additionalProperties: { type: ["string", "null"] } },
    "3d": { type: "object", properties: {} },
    "-dash": {
      type: "object",
      properties: { list: { type: "array", items: { $ref: "#/$defs/one" } } },
      $defs: { one: {} }
    },
    unioned: { anyOf: [member, { ...member, properties: { k: { const: "b" } } }] }
  }
  return names.map((name): Tool.Any =>
    Tool.make(name, { description: name === "3d" ? "" : `Does ${name} \ud83d`, parameters: parameters[name], handler })
  )
}

const argsOf = ({ isNull, text }: { readonly isNull: boolean; readonly text: string }): Json => ({
  q: text,
  ...(isNull ? { n: null } : {})
})

const opaqueFields = {
  extra_content: { google: { thought_signature: "s" } },
  reasoning_details: [{ type: "reasoning.encrypted", data: "d" }]
}

const chatReply = ({ calls, opaque, text, thought }: Drawn["replies"][number]): string =>
  Chunks.body(
    ...(thought === "" ? [] : [Chunks.chunk({ reasoning_content: thought })]),
    ...(text === "" ? [] : [Chunks.said(text)]),
    ...(opaque ? [Chunks.chunk(opaqueFields)] : []),
    ...calls.map(({ id, name, ...rest }, index) =>
      Chunks.call({
        index,
        id,
        type: "function",
        name,
        arguments: JSON.stringify(argsOf(rest)),
        ...(opaque ? { extra_content: opaqueFields.extra_content } : {})
      })
    ),
    Chunks.finish("tool_calls")
  )

const replies: Readonly<
  Record<"OpenAiResponses" | "Anthropic" | "Gemini", (reply: Drawn["replies"][number]) => string>
> = {
  OpenAiResponses: ({ calls, text, thought }) => {
    const reasoning = {
      type: "reasoning",
      id: "rs_1",
      summary: [{ type: "summary_text", text: thought }],
      encrypted_content: "e"
    }
    const items = [
      ...(thought === "" ? [] : [reasoning]),
      ...(text === "" ? [] : [Responses.message(text)]),
      ...calls.map(({ id, name, ...rest }, index) =>
        Responses.call(id === "" ? `c${index}` : id, name, JSON.stringify(argsOf(rest)))
      )
    ]
    return Responses.body(
      Responses.created,
      ...items.map((item, index) => Responses.done(index, item)),
      Responses.completed({ output: items })
    )
  },
  Anthropic: ({ calls, text, thought }) => {
    const blocks = [
      ...(thought === "" ? [] : [(index: number) => Messages.thinking(index, thought, "sig")]),
      ...(text === "" ? [] : [(index: number) => Messages.text(index, text)]),
      ...calls.map(({ id, name, ...rest }) => (index: number) =>
        Messages.called(index, id === "" ? `toolu_${index}` : id, name, JSON.stringify(argsOf(rest)))
      )
    ]
    return Messages.reply(blocks.map((block, index) => block(index)), "tool_use")
  },
  Gemini: ({ calls, opaque, text, thought }) =>
    Contents.body(
      ...(thought === "" ? [] : [Contents.thought(thought)]),
      ...(text === "" ? [] : [Contents.said(text)]),
      ...calls.map(({ id, name, ...rest }) =>
        Contents.chunk([{
          functionCall: {
            ...(id === "" ? {} : { id }),
            name: name === "3d" || name === "-dash" ? `_${name}` : name,
            args: argsOf(rest)
          },
          ...(opaque ? { thoughtSignature: "s" } : {})
        }])
      ),
      Contents.finish("STOP")
    )
}

const last: Drawn["replies"][number] = { text: "So.", thought: "", opaque: false, calls: [] }

const written = (protocol: Protocol, reply: Drawn["replies"][number]): string =>
  protocol === "OpenAiResponses" || protocol === "Anthropic" || protocol === "Gemini"
    ? replies[protocol](reply)
    : chatReply(reply).replace(
      "\"finish_reason\":\"tool_calls\"",
      `"finish_reason":"${reply.calls.length > 0 ? "tool_calls" : "stop"}"`
    )

const layerOf = ({ protocol, settings }: Drawn): Layer.Layer<Adapter.Adapter, never, any> => {
  const { budget, cache, effort, openApi, parallel, strict } = settings
  const reasoning = {
    ...(effort === "" ? {} : { effort }),
    ...(budget === 0 ? {} : { maxTokens: budget })
  }
  const common = {
    retries: 0,
    strict,
    ...(Object.keys(reasoning).length === 0 ? {} : { reasoning })
  }
  const several = { ...common, parallelToolCalls: parallel }
  switch (protocol) {
    case "OpenAiResponses":
      return OpenAiResponses.layer({ model: "gpt-5", ...several, ...(cache ? { cache: { key: "k" } } : {}) })
    case "Anthropic":
      return Anthropic.layer({ model: "claude-sonnet-4-6", ...several, cache })
    case "Gemini":
      return Gemini.layer({ model: "gemini-3-pro", ...common, schemas: openApi ? "openApi" : "jsonSchema" })
    default:
      return OpenAiChat.layer({ model: "m", vendor: protocol, ...several, ...(cache ? { cache: { key: "k" } } : {}) })
  }
}

const answer = { type: "object", properties: { a: { type: "string" }, b: { type: "number" } }, required: ["a"] }

const formatOf = ({ protocol, settings: { format } }: Drawn): Json => {
  if (format === "" || (format === "json_object" && protocol === "Anthropic")) return {}
  return {
    responseFormat: format === "json_object"
      ? { type: format }
      : { type: format, name: "answer", schema: answer, strict: true }
  }
}

/** The bodies of a run, as texts in the order in which they are sent. */
export const bodiesOf = (drawn: Drawn): Effect.Effect<ReadonlyArray<string>, unknown> =>
  Effect.suspend(() => {
    const bodies: Array<string> = []
    const { choice, maxTokens, system, temperature } = drawn.settings
    const run: Effect.Effect<unknown, unknown, any> = Chat.run({ messages: messagesOf(drawn) }, {
      tools: toolsOf(drawn),
      maxTurns: 6,
      ...formatOf(drawn),
      ...(choice === "" ? {} : { toolChoice: choice === "look" ? { name: "look" } : choice }),
      ...(temperature < 0 ? {} : { temperature }),
      ...(maxTokens === 0 ? {} : { maxTokens }),
      ...(system === "" ? {} : { system })
    })
    return run.pipe(
      Effect.provide(Layer.provide(layerOf(drawn), FetchHttpClient.layer)),
      Effect.provideService(FetchHttpClient.Fetch, (_, init) => {
        bodies.push(new TextDecoder().decode(init?.body as Uint8Array))
        const reply = written(drawn.protocol, drawn.replies[bodies.length - 1] ?? last)
        return Promise.resolve(new Response(reply, { headers: { "content-type": "text/event-stream" } }))
      }),
      Effect.provideService(Logger.CurrentLoggers, new Set()),
      Effect.as(bodies)
    ) as any
  })

// ---------------------------------------------------------------------------------------------------------------------
// laws

/** Escapes of a half of a surrogate pair in JSON, where pairs and other escapes are passed over. */
const escapes = /\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(\\u[dD][89a-fA-F][\da-fA-F]{2})|\\[^u]/g

const hasHalf = (json: string): boolean =>
  !json.isWellFormed() || Array.from(json.matchAll(escapes)).some(([, half]) => half !== undefined)

/** The texts in a body that are JSON themselves: the arguments of calls. */
const inner = (value: unknown): ReadonlyArray<string> => {
  if (typeof value !== "object" || value === null) return []
  return Object.entries(value).flatMap(([key, member]) =>
    key === "arguments" && typeof member === "string" ? [member] : inner(member)
  )
}

/** A body is well-formed UTF-16, and so are the arguments in it that are JSON in a text. */
export const wellFormed = (body: string): ReadonlyArray<string> => [
  ...(hasHalf(body) ? ["the body holds half of a surrogate pair"] : []),
  ...inner(JSON.parse(body)).flatMap((json) => hasHalf(json) ? [`arguments hold half of a pair: ${json}`] : [])
]

/** Returns `true` if the server of a reply knows an id. One with half a pair goes back in the form of others. */
const isKnownTo = (reply: Drawn["replies"][number] | undefined, id: string | undefined, form: RegExp): boolean =>
  id === undefined || /^(call_[0-9a-f]{32}|c\d|toolu_\d)$/.test(id) ||
  reply?.calls.some((call) => call.id === id || (!call.id.isWellFormed() && form.test(id))) === true

/**
 * The ids in a body: what the server made goes back unchanged, all other ids have the form that it demands, no two calls
 * have one id where it refuses that, and each answer goes with its call.
 */
export const named = (drawn: Drawn, body: string): ReadonlyArray<string> => {
  const { form, mayRepeat } = SentIds.demandOf(drawn.protocol)
  const made = drawn.thread.map((_, index) => madeIn(drawn, index)).filter(({ length }) => length > 0)
  const turns = SentIds.turnsOf(JSON.parse(body))
  /** The ids in the thread, and those that were sent. */
  const known = new Set<string>()
  const sent = new Set<string>()
  const problems = made.flatMap((calls, turn) =>
    calls.flatMap(({ call, maker, mark, wireId }, position) => {
      const where = `turn ${turn}, call ${position}`
      const { answers, calls: all } = turns[turn] ?? { answers: [], calls: [] }
      const id = all[position]?.id
      const isOwn = (maker === "own" || maker === "renamed") && wireId.isWellFormed()
      const isCopy = !mayRepeat && known.has(call.id)
      known.add(call.id)
      const isRepeated = id !== undefined && sent.has(id)
      sent.add(id ?? "")
      const place = all.slice(0, position).filter((other) => other.id === id).length
      const answer = answers.filter((one) => one.id === id)[place]
      const isAnswered = answer?.id === id && answer?.text.startsWith(mark) === true
      const isGemini = drawn.protocol === "Gemini"
      return [
        ...(isAnswered ? [] : [`${where}: its answer is ${JSON.stringify(answer)}`]),
        ...(isOwn && (!isCopy || isGemini) && id !== wireId ? [`${where}: ${id}, and not ${wireId}`] : []),
        ...(!isOwn && !isGemini && (id === undefined || !form.test(id)) ? [`${where}: ${id} has another form`] : []),
        ...(!isOwn && isGemini && maker !== "own" && maker !== "renamed" && id !== undefined
          ? [`${where}: ${id} is foreign`]
          : []),
        ...((!isOwn || isCopy) && !mayRepeat && isRepeated ? [`${where}: ${id} stands for two calls`] : [])
      ]
    })
  )
  const later = turns.slice(made.length).flatMap(({ answers, calls }, turn) => {
    const idsOf = (all: ReadonlyArray<SentIds.Sent>) => JSON.stringify(all.map(({ id }) => id).toSorted())
    return [
      ...(idsOf(answers) === idsOf(calls)
        ? []
        : [`reply ${turn}: the answers are to ${idsOf(answers)}, not to ${idsOf(calls)}`]),
      ...calls.filter(({ id }) => !isKnownTo(drawn.replies[turn], id, form))
        .map(({ id }) => `reply ${turn}: the server did not make ${JSON.stringify(id)}`)
    ]
  })
  return [...problems, ...later]
}

/** What was said in a body, piece by piece; settings and the marks of a cache are none of it. */
const saidIn = (body: Json): ReadonlyArray<string> => {
  const { contents, input, instructions, messages, system, systemInstruction } = body
  const pieces = (messages ?? contents ?? input ?? []).flatMap(({ content, parts, role, ...rest }: Json) =>
    Array.isArray(parts ?? content) && role !== "tool" && rest["tool_calls"] === undefined
      ? (parts ?? content).map((piece: Json) => ({ role, ...rest, piece }))
      : [{ role, content, ...rest }]
  )
  return [{ instructions, system, systemInstruction }, ...pieces].map((piece) =>
    JSON.stringify(piece, (key, value) => key === "cache_control" ? undefined : value)
  )
}

/** Each body of a run begins with what the one before it said. */
export const extended = (bodies: ReadonlyArray<string>): ReadonlyArray<string> =>
  bodies.slice(1).flatMap((body, index) => {
    const before = saidIn(JSON.parse(bodies[index]!))
    const after = saidIn(JSON.parse(body))
    const place = before.findIndex((piece, at) => piece !== after[at])
    return place < 0 ? [] : [`body ${index + 1} says at ${place}: ${after[place]}, and not: ${before[place]}`]
  })
