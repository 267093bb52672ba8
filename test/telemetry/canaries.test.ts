/**
 * Canaries in every text of every message, made of the schemas themselves: each one passes the redaction once before it is
 * written, and none is written where the content is off.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as References from "effect/References"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type * as SchemaAST from "effect/SchemaAST"
import * as Stream from "effect/Stream"
import { Adapter, Chat, Message, Response, Session, Tool, ToolRunner } from "heddle"
import { Telemetry } from "heddle/telemetry"
import { Script } from "heddle/testing"
import type * as Spans from "../../src/internal/telemetry.ts"
import * as Captures from "../../src/telemetry/internal/capture.ts"
import { overTime } from "../support/scenarios.ts"
import { modelOf, recording } from "../support/spans.ts"

const marked = "canary"

/** A text that says where it stands. It is not a word, as an id or a name may be. */
const canaryAt = (path: string) => `${marked} at ${path}`

type Path = string

/**
 * Values of a schema, in each of whose texts there is a canary. Each member of a union is in one of them, and each member
 * of an object that may be left out is left out in one.
 */
const samples = (ast: SchemaAST.AST, path: Path): ReadonlyArray<unknown> => {
  switch (ast._tag) {
    case "String":
      return [canaryAt(path)]
    case "Unknown":
      return [{ [canaryAt(`${path}: a name`)]: [canaryAt(`${path}: a value`)] }]
    case "Boolean":
      return [true]
    case "Number":
      return [7]
    case "Null":
      return [null]
    case "Literal":
      return [ast.literal]
    case "Union":
      return ast.types.flatMap((type) => samples(type, nameOf(type, path)))
    case "Arrays":
      return [[...ast.elements, ...ast.rest].flatMap((type) => samples(type, path))]
    case "Suspend":
      return samples(ast.thunk(), path)
    case "Objects": {
      const fields = ast.propertySignatures.map(({ name, type }) => ({
        name: String(name),
        isOptional: type.context?.isOptional === true,
        values: samples(type, path === "" ? String(name) : `${path}.${String(name)}`)
      }))
      const further = Object.fromEntries(
        ast.indexSignatures.map(({ type }) => [canaryAt(`${path}: a name`), samples(type, path)[0]])
      )
      const most = Math.max(1, ...fields.map(({ values }) => values.length))
      const whole = Array.from({ length: most }, (_, index) =>
        Object.fromEntries([
          ...fields.map(({ name, values }) => [name, values[index % values.length]]),
          ...Object.entries(further)
        ]))
      const without = fields.filter(({ isOptional }) => isOptional).map(({ name }) => {
        const { [name]: _, ...rest } = whole[0]!
        return rest
      })
      // What stands in for a member that is null is in one of them.
      const empty = fields.filter(({ values }) => values.includes(null)).map(({ name }) => ({
        ...whole[0]!,
        [name]: null
      }))
      return [...whole, ...without, ...empty]
    }
    default:
      throw new Error(`a schema that canaries are not made of: ${ast._tag} at ${path}`)
  }
}

/** The path of a member of a union of parts, which says what it is. */
const nameOf = (type: SchemaAST.AST, path: Path): Path => {
  const kind = type._tag === "Objects" ? type.propertySignatures.find(({ name }) => name === "type")?.type : undefined
  return kind?._tag === "Literal" ? `${path}[${String(kind.literal)}]` : path
}

const messages = samples(Schema.toType(Message.Message).ast, "") as ReadonlyArray<Message.Message>

/** Each of them in each role. */
const inRoles = messages.flatMap((message) =>
  (["system", "user", "assistant", "tool"] as const).map((role) => ({ ...message, role }))
)

const responses = samples(Schema.toType(Response.Response).ast, "reply") as ReadonlyArray<Response.Response>

/** All texts of a value, the names of its members among them. */
const textsIn = (value: unknown): ReadonlyArray<string> => {
  if (typeof value === "string") return [value]
  if (Array.isArray(value)) return value.flatMap(textsIn)
  return typeof value === "object" && value !== null
    ? Object.entries(value).flatMap(([name, member]) => [name, ...textsIn(member)])
    : []
}

const parsed = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** The facts of every kind of operation with these messages and replies. */
const factsOf = (response: Response.Response): ReadonlyArray<Spans.Facts> => {
  const tools = [{ name: "look", description: canaryAt("a description"), parameters: { title: canaryAt("a schema") } }]
  const values = [
    ["an argument", { [canaryAt("a name of an argument")]: [canaryAt("an argument")] }],
    ["a value", { _tag: "Ok", value: { [canaryAt("a name of a value")]: canaryAt("a value") } }],
    ["an error", { _tag: "Error", error: { [canaryAt("a name of an error")]: canaryAt("an error") } }],
    ["a text", canaryAt("a result")],
    ["parts", inRoles.map(({ content }) => content)],
    ["nothing", undefined]
  ] as const
  return [
    { kind: "inference", request: () => ({ messages: inRoles, tools }), response },
    {
      kind: "invoke_agent",
      inferenceCalls: 0,
      toolCalls: 0,
      system: canaryAt("the system prompt"),
      input: inRoles,
      tools,
      response
    },
    ...values.map(([, value]): Spans.Facts => ({
      kind: "execute_tool",
      call: Message.toolCall("c0", "look", { [canaryAt("a name of an argument")]: value as never }),
      result: value
    }))
  ]
}

/** The texts that the content of all operations has, with this redaction. */
const written = (redact: ((text: string) => string) | undefined, maxPartLength = Infinity) =>
  responses.flatMap(factsOf).flatMap((facts) =>
    Object.entries(Captures.attributesOf({ facts } as Spans.Operation, { redact, maxPartLength }))
      .flatMap(([, text]) => textsIn(parsed(text)))
  )

describe("W-12: the canaries", () => {
  it("W-12: a canary is in each text of each part of a message", () => {
    const paths = new Set(inRoles.flatMap(textsIn).filter((text) => text.startsWith(marked)))
    for (
      const path of [
        "content",
        "content[text].text",
        "content[image].url",
        "content[image].data",
        "content[file].url",
        "content[file].filename",
        "content[reasoning].signature",
        "toolCalls.arguments: a value",
        "reasoning[image].url"
      ]
    ) assert.isTrue([...paths].some((text) => text.endsWith(path)), path)
    assert.isAbove(paths.size, 30)
  })

  it("W-12: each canary passes the redaction exactly once, and none remains where the redaction hides all", () => {
    const isRight = (text: string) => !text.includes(marked) || /^⟪[^⟪⟫]*⟫$/.test(text)
    const seen: Array<string> = []
    const found = written((text) => {
      seen.push(text)
      return `⟪${text}⟫`
    })
    assert.deepStrictEqual([...new Set(found.filter((text) => !isRight(text)))], [])
    assert.deepStrictEqual([...new Set(seen.filter((text) => text.includes("⟪")))], [])
    assert.deepStrictEqual([...new Set(written(() => "hidden").filter((text) => text.includes(marked)))], [])
    // A value that is too long is a text, and cut once it is redacted.
    for (const length of [0, 1, 7, 40]) {
      const cut = written((text) => text.replaceAll(marked, "…"), length)
      assert.deepStrictEqual(cut.filter((text) => text.includes(marked.slice(0, 4))), [], String(length))
    }
  })

  it("W-12: canaries are written where the conventions have an attribute, and nowhere else", () => {
    const of = (text: string) => /^canary at (.*)$/s.exec(text)?.[1]
    const paths = new Set(written(undefined).flatMap((text) => of(text) ?? []))
    const all = new Set([...inRoles, ...responses].flatMap(textsIn).flatMap((text) => of(text) ?? []))
    // The conventions have no place for these.
    const placeless = /(^|\.|\])(metadata|signature|filename|extra|rawArguments|rawFinishReason|toolUsage)(: .*)?$/
    const absent = [...all].filter((path) => !paths.has(path) && !placeless.test(path))
    assert.deepStrictEqual(absent.toSorted(), [
      "name",
      "reply.error: a name",
      "reply.error: a value",
      "reply.id",
      // A reply is said by its own calls, and its message by its parts.
      "reply.message.name",
      "reply.message.toolCallId",
      "reply.message.toolCalls.arguments: a name",
      "reply.message.toolCalls.arguments: a value",
      "reply.message.toolCalls.id",
      "reply.message.toolCalls.name",
      "reply.model",
      "reply.provider",
      "reply.requestId"
    ])
  })
})

interface Seen {
  readonly text: string
  readonly spans: number
}

/** Everything that a program shows: its spans, their events, its metrics, and its logs above debug. */
const shownBy = <A, E>(
  program: Effect.Effect<A, E, Adapter.Adapter>,
  model: Layer.Layer<Adapter.Adapter>,
  options: Telemetry.Options
): Effect.Effect<Seen> =>
  Effect.gen(function*() {
    const { spans, tracer } = recording()
    const logs: Array<unknown> = []
    const logger = Logger.make(({ cause, fiber, logLevel, message }) => {
      if (logLevel !== "Debug") logs.push([message, cause, fiber.getRef(References.CurrentLogAnnotations)])
    })
    const metrics = yield* Effect.andThen(Effect.exit(program), Metric.snapshot).pipe(
      Effect.provide([model, Telemetry.layer(options), Logger.layer([logger])]),
      Effect.provideService(Metric.MetricRegistry, new Map()),
      Effect.withTracer(tracer),
      overTime
    )
    const text = JSON.stringify(
      [spans.map((span) => [span.name, [...span.attributes], span.events, span.status, span.links]), metrics, logs],
      (_, value) => typeof value === "bigint" ? String(value) : value
    )
    return { text, spans: spans.length }
  }) as Effect.Effect<Seen>

/** Messages as a thread may have them: a call and its answer have one id. */
const thread = inRoles.flatMap((message): ReadonlyArray<Message.Message> => {
  const { content, metadata } = message
  if (message.role === "system" || message.role === "user") return [message]
  if (message.role === "tool") return []
  const id = canaryAt("an id")
  const { toolCalls: _, ...said } = message
  const called = Message.assistant("", [Message.toolCall(id, canaryAt("a tool"))])
  return [said, { ...called, metadata }, { ...Message.tool(id, content), metadata }]
})

const tools = (() => {
  const parameters = { type: "object", title: canaryAt("a schema") } as const
  const description = canaryAt("a description")
  const parts = messages.flatMap(({ content }) => typeof content === "string" ? [] : content)
    .filter(({ type }) => type !== "reasoning")
  const broken = Object.assign(new Error(canaryAt("an error"), { cause: canaryAt("a cause") }), {
    name: canaryAt("a name of an error"),
    code: canaryAt("a code")
  })
  const make = (
    name: string,
    handler: (args: any, call: Tool.CallContext) => Effect.Effect<unknown, unknown>,
    more = {}
  ) => Tool.make(name, { parameters, description, handler, ...more })
  let left = 1
  return [
    make("works", (args) => Effect.succeed({ [canaryAt("a name")]: args })),
    make("shows", () => Effect.succeed(Tool.content(parts as never))),
    make("fails", () => Effect.fail({ _tag: canaryAt("a tag"), message: canaryAt("a message") })),
    make("fails_by_text", () => Effect.fail(canaryAt("a failure"))),
    make("dies", () => Effect.die(broken)),
    make("dies_of_odds", () => Effect.die({ reason: canaryAt("a reason"), _tag: canaryAt("a tag") })),
    make("flaky", () => Effect.suspend(() => left-- > 0 ? Effect.fail(broken) : Effect.succeed(1)), {
      retry: Schedule.recurs(1)
    }),
    make("reports", (_, { progress }) => Effect.as(progress({ [canaryAt("progress")]: canaryAt("progress") }), 1)),
    make("refused", () => Effect.void, { authorize: () => Effect.fail(canaryAt("a reason")) }),
    make("denied", () => Effect.void, { authorize: () => ({ allowed: false, reason: canaryAt("a reason") }) }),
    make("asks", () => Effect.succeed(Tool.askUser(canaryAt("a question"), [canaryAt("a choice")]))),
    make("halts", () => Effect.succeed(Tool.halt(canaryAt("a reason"), canaryAt("a result"))))
  ]
})()

const notes = { [canaryAt("a name of a note")]: canaryAt("a note") }

const options = {
  tools,
  system: canaryAt("the system prompt"),
  context: notes,
  options: { [canaryAt("an option")]: canaryAt("an option"), user: canaryAt("a user"), metadata: notes },
  cacheKey: canaryAt("a key"),
  responseFormat: { type: "json_schema", name: "out", schema: { type: "object", title: canaryAt("a format") } },
  retryReply: Schedule.recurs(1)
} as const

const finished = { rawFinishReason: canaryAt("a word"), responseId: canaryAt("a reply"), model: canaryAt("a model") }

const callsOf = (names: ReadonlyArray<string>) =>
  names.map((name, index) => ({
    ...Script.toolCall(canaryAt(`call ${index}`), name, { [canaryAt("a name")]: canaryAt("an argument") })
  }))

const replies = (...last: ReadonlyArray<string>) => [
  [
    Script.text(canaryAt("a text")),
    ...callsOf([
      ...tools.map(({ name }) => name).filter((name) => !["asks", "halts"].includes(name)),
      canaryAt("a tool")
    ]),
    Script.finish("tool_calls", finished)
  ],
  [Script.text(canaryAt("a text")), Script.streamError("network_error")],
  [...callsOf(last), Script.finish("tool_calls", finished)],
  [Script.text(canaryAt("a text")), Script.finish("stop", finished)]
]

const refusing = Adapter.layer({
  stream: () =>
    Stream.fail(
      new Adapter.AdapterError(
        { reason: "invalid_request", detail: canaryAt("a detail"), cause: canaryAt("a cause") } as never
      )
    )
})

const programs: Record<
  string,
  readonly [Effect.Effect<unknown, unknown, Adapter.Adapter>, Layer.Layer<Adapter.Adapter>]
> = {
  "a run": [Chat.run(thread, options as never), modelOf(...replies("works"))],
  "a halted run": [Chat.run(thread, options as never), modelOf(...replies("halts"))],
  "a waiting run": [Chat.run(thread, options as never), modelOf(...replies("asks"))],
  "a failed run": [Chat.run(thread, options as never), refusing],
  "a run with a defect": [
    Chat.run(thread, options as never),
    Adapter.layer({
      stream: () => Stream.die(Object.assign(new Error(canaryAt("an error")), { name: canaryAt("a name") }))
    })
  ],
  "a second run of a session": [
    Effect.gen(function*() {
      let { session } = yield* Session.reply(Session.make(), canaryAt("a message"), options as never)
      ;({ session } = yield* Session.reply(session, canaryAt("an answer"), options as never))
    }),
    modelOf(...replies("asks"), ...replies("works"))
  ],
  "tool calls without a run": [
    ToolRunner.run(tools.map(({ name }, index) => Message.toolCall(canaryAt(`call ${index}`), name, notes)), tools),
    modelOf()
  ]
}

describe("W-12: canaries in whole programs", () => {
  for (const [name, [program, model]] of Object.entries(programs)) {
    for (const toolSpans of ["all", "failed"] as const) {
      it.effect(`W-12: with capture off no canary reaches a span, an event, a metric or a log record: ${name}, ${toolSpans} calls`, () =>
        Effect.gen(function*() {
          const off = { capture: "none", dialects: ["langfuse", "openinference"], toolSpans } as const
          const { spans, text } = yield* shownBy(program, model, off)
          assert.isAbove(spans, 1)
          const at = text.indexOf(marked)
          assert.strictEqual(at, -1, text.slice(Math.max(0, at - 200), at + 100))
        }))
    }

    it.effect(`W-12: with capture on every canary passes the redaction: ${name}`, () =>
      Effect.gen(function*() {
        const redact = (text: string) => text.replaceAll(marked, "[hidden]")
        const on = { capture: "spans-and-events", dialects: ["langfuse", "openinference"] } as const
        const { text } = yield* shownBy(program, model, { ...on, redact })
        assert.include(text, "[hidden]")
        const at = text.indexOf(marked)
        assert.strictEqual(at, -1, text.slice(Math.max(0, at - 200), at + 100))
      }))
  }
})
