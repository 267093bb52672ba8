/**
 * O-11: values of options that no program with types can write. Each public entry point is asked for its options, and each
 * option is given every value of another kind: it is a defect, or a typed error, that names the option and what would be
 * right, before anything has run.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as TestRunner from "effect/cluster/TestRunner"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as HttpRouter from "effect/http/HttpRouter"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import {
  Adapter,
  Chat,
  Collector,
  Event,
  Journal,
  Limits,
  Message,
  Policy,
  Session,
  Step,
  StreamingToolExecutor,
  Thread,
  Tool,
  ToolRunner
} from "heddle"
import { Anthropic, Gemini, OpenAiChat, OpenAiResponses } from "heddle/adapters"
import { AiSdk, EffectAi } from "heddle/bridges"
import { Cluster, SessionClient } from "heddle/cluster"
import { Durable, Worker } from "heddle/durable"
import { McpServer, McpTools } from "heddle/mcp"
import { Agent, Server } from "heddle/server"
import { SqliteClient } from "heddle/sql"
import { Telemetry } from "heddle/telemetry"
import { AdapterSuite, check, everyKill, everyStep, Explorer, Script, Simulation } from "heddle/testing"
import { AgUi, UiStream } from "heddle/ui"

type Options = Readonly<Record<string, unknown>>

/** As a program without types gives them. */
const untyped = (options: object): any => options

const model = Script.layer([[Script.text("done"), Script.finish("stop")]])

const session = Session.make()
const drained = <A, E, R>(stream: Stream.Stream<A, E, R>) => Stream.runDrain(stream)
const layered = (make: () => unknown) =>
  Effect.suspend(() =>
    Effect.scoped(Layer.build(Layer.provide(make() as Layer.Layer<never>, [FetchHttpClient.layer, HttpRouter.layer])))
  )

const helper = Agent.make({ name: "helper", description: "Helps", run: () => ({}) })
const body = { id: "s", messages: [{ id: "m", role: "user", parts: [{ type: "text", text: "Hi" }] }] }
const agBody = { threadId: "s", runId: "r", messages: [{ id: "m", role: "user", content: "Hi" }] }

const toolkit = { tools: {}, handle: () => Effect.die("is not called") } as never

type Program = Effect.Effect<unknown, unknown, any>

/** The entry points: how each is called with options, and those that it needs. */
const entries: { readonly [name: string]: readonly [call: (options: any) => Program, needs?: Options] } = {
  "Chat.run": [(options) => Chat.run("go", options)],
  "Chat.stream": [(options) => drained(Chat.stream("go", options))],
  "Step.run": [(options) => Step.run("go", options)],
  "Step.stream": [(options) => drained(Step.stream("go", options))],
  "ToolRunner.run": [(options) => ToolRunner.run([], [], options)],
  "ToolRunner.stream": [(options) => drained(ToolRunner.stream([], [], options))],
  "Session.start": [(options) => Session.start("go", options)],
  "Session.streamStart": [(options) => drained(Session.streamStart("go", options))],
  "Session.reply": [(options) => Session.reply(session, "go", options)],
  "Session.continue": [(options) => Session.continue(session, Message.user("go"), options)],
  "Session.make": [(options) => Effect.sync(() => Session.make(options))],
  "Session.open": [(options) => Session.open("s", options)],
  "Session.claim": [(options) => Effect.scoped(Session.claim("s", options))],
  "Session.drive": [
    (options) => Effect.scoped(Effect.flatMap(Session.claim("s"), (claimed) => Session.drive(claimed, options))),
    { run: () => ({}) }
  ],
  "Session.layerRuns": [
    (options) => Effect.flatMap(Journal.claim("s"), (claim) => layered(() => Session.layerRuns(claim, options)))
  ],
  "Journal.claim": [(options) => Journal.claim("s", options)],
  "Journal.claimUnfinished": [(options) => Journal.claimUnfinished(1, options)],
  "Session.stop": [(options) => Session.stop("s", options)],
  "Session.submit": [(options) => Session.submit("s", "go", options)],
  "Session.list": [(options) => drained(Session.list(options))],
  "Session.answer": [(options) => Session.answer(session, "c0", "yes", options)],
  "Session.approve": [(options) => Session.approve(session, "c0", options)],
  "StreamingToolExecutor.make": [(options) => Effect.scoped(StreamingToolExecutor.make(options))],
  "Tool.make": [
    (options) => Effect.sync(() => Tool.make("t", options)),
    { parameters: {}, handler: () => Effect.void }
  ],
  "Tool.fromChat": [
    (options) => Effect.sync(() => Tool.fromChat("t", options)),
    { parameters: {}, chat: () => Stream.empty }
  ],
  "Tool.askUser": [(options) => Effect.sync(() => Tool.askUser("Which?", options))],
  "Policy.layer": [(options) => layered(() => Policy.layer(options))],
  "Policy.layer: policy": [
    (policy) => layered(() => Policy.layer(untyped({ policy })))
  ],
  "Chat.run: policy": [(policy) => Chat.run("go", untyped({ policy }))],
  "Chat.run: policy.siblings": [(siblings) => Chat.run("go", untyped({ policy: { siblings } }))],
  "Chat.run: deadline": [(deadline) => Chat.run("go", untyped({ deadline })), { after: 5 }],
  "Chat.run: agent": [(agent) => Chat.run("go", untyped({ agent }))],
  "Policy.Defaults: policy": [(policy) => Effect.provideService(Chat.run("go"), Policy.Defaults, untyped({ policy }))],
  "Limits.layer": [(options) => layered(() => Limits.layer(options)), { permits: 1 }],
  "OpenAiChat.layer": [(options) => layered(() => OpenAiChat.layer(options)), { model: "m" }],
  "OpenAiChat.layer: reasoning": [(reasoning) => layered(() => OpenAiChat.layer(untyped({ model: "m", reasoning })))],
  "OpenAiChat.layer: cache": [(cache) => layered(() => OpenAiChat.layer(untyped({ model: "m", cache })))],
  "OpenAiResponses.layer": [(options) => layered(() => OpenAiResponses.layer(options)), { model: "m" }],
  "OpenAiResponses.layer: reasoning": [
    (reasoning) => layered(() => OpenAiResponses.layer(untyped({ model: "m", reasoning })))
  ],
  "Anthropic.layer": [(options) => layered(() => Anthropic.layer(options)), { model: "m" }],
  "Anthropic.layer: reasoning": [(reasoning) => layered(() => Anthropic.layer(untyped({ model: "m", reasoning })))],
  "Anthropic.layer: cache": [(cache) => layered(() => Anthropic.layer(untyped({ model: "m", cache }))), { ttl: "1h" }],
  "Gemini.layer": [(options) => layered(() => Gemini.layer(options)), { model: "m" }],
  "Gemini.layer: reasoning": [(reasoning) => layered(() => Gemini.layer(untyped({ model: "m", reasoning })))],
  "AiSdk.layer": [(options) => layered(() => AiSdk.layer(options)), {
    model: { specificationVersion: "v3", provider: "p", modelId: "m", doGenerate: () => {}, doStream: () => {} }
  }],
  "EffectAi.layer": [(options) => layered(() => EffectAi.layer(options))],
  "Worker.layer": [(options) => layered(() => Worker.layer(options)), { run: () => ({}) }],
  "Durable.layer": [(options) => layered(() => Durable.layer(options)), { id: "p" }],
  "Cluster.layer": [(options) => layered(() => Cluster.layer(options)), { run: () => ({}) }],
  "Cluster.transport": [(options) => Effect.sync(() => Cluster.transport(options))],
  "Server.layer": [(options) => layered(() => Server.layer(options)), { agents: [], authorize: () => Effect.void }],
  "Server.layer: bounds": [
    (bounds) => layered(() => Server.layer(untyped({ agents: [], authorize: () => Effect.void, bounds })))
  ],
  "McpServer.routes": [(options) => Effect.sync(() => McpServer.routes(options))],
  "McpServer.layerHttp": [(options) => layered(() => McpServer.layerHttp(options)), { authorize: () => Effect.void }],
  "McpServer.layerStdio": [(options) => layered(() => McpServer.layerStdio(options))],
  "McpTools.layer": [
    (options) => layered(() => McpTools.layer({ name: "s", url: "http://127.0.0.1:9" }, options))
  ],
  "McpServer.routes: legacy": [(legacy) => Effect.sync(() => McpServer.routes(untyped({ legacy })))],
  "McpTools.layer: trust": [
    (hints) => layered(() => McpTools.layer({ name: "s", url: "http://127.0.0.1:9" }, untyped({ trust: { t: hints } })))
  ],
  "McpTools.layer: roots": [
    (root) => layered(() => McpTools.layer({ name: "s", url: "http://127.0.0.1:9" }, untyped({ roots: [root] }))),
    { uri: "file:///a" }
  ],
  "McpTools.layer: a process": [(server) => layered(() => McpTools.layer(server)), { name: "s", command: "false" }],
  "McpTools.layer: an address": [(server) => layered(() => McpTools.layer(server)), { url: "http://127.0.0.1:9" }],
  "Tool.make: limits": [
    (limit) => Effect.sync(() => Tool.make("t", untyped({ parameters: {}, limits: [limit] }))),
    { key: "k", permits: 1 }
  ],
  "Gemini.layer: safetySettings": [
    (setting) => layered(() => Gemini.layer(untyped({ model: "m", safetySettings: [setting] }))),
    { category: "c", threshold: "t" }
  ],
  "Server.define": [(options) => Effect.sync(() => Server.define(options)), { agents: [helper], layer: model }],
  "Server.layerNode": [(options) => layered(() => Server.layerNode(options)(Layer.empty)), { port: 0 }],
  "Agent.make": [
    (options) => Effect.sync(() => Agent.make(options)),
    { name: "a", description: "Helps", run: () => ({}) }
  ],
  "Adapter.classify": [(options) => Adapter.classify("go", options)],
  "Thread.repair": [(options) => Effect.sync(() => Thread.repair([], options))],
  "Collector.initial": [(options) => Effect.sync(() => Collector.initial(options))],
  "Collector.classify": [(options) => Effect.sync(() => Collector.classify([], options))],
  "Collector.fromWire": [(options) => Effect.sync(() => Collector.fromWire("go", [], options))],
  "Event.toPublic": [
    (options) => Effect.sync(() => Event.toPublic({ _tag: "TextDelta", id: null, delta: "Hello" }, options))
  ],
  "UiStream.make": [(options) => Effect.sync(() => UiStream.make(options))],
  "UiStream.chunks": [(options) => drained(UiStream.chunks(Stream.empty, options))],
  "UiStream.messages": [(options) => Effect.sync(() => UiStream.messages(Thread.empty, options))],
  "UiStream.read": [(options) => Effect.sync(() => UiStream.read(body, options))],
  "UiStream.read: bounds": [(bounds) => Effect.sync(() => UiStream.read(body, untyped({ bounds })))],
  "AgUi.make": [(options) => Effect.sync(() => AgUi.make(options)), { threadId: "s", runId: "r" }],
  "AgUi.events": [(options) => drained(AgUi.events(Stream.empty, options)), { threadId: "s", runId: "r" }],
  "AgUi.messages": [(options) => Effect.sync(() => AgUi.messages(Thread.empty, options))],
  "AgUi.read": [(options) => Effect.sync(() => AgUi.read(agBody, options))],
  "SessionClient.reply": [
    (options) =>
      Effect.provide(SessionClient.SessionClient.use((client) => client.reply("s", "go", options)), [
        Layer.merge(Cluster.layer({ run: () => ({}) }), SessionClient.layer).pipe(
          Layer.provide([model, Session.Store.layerMemory]),
          Layer.provide(TestRunner.layer)
        )
      ])
  ],
  "Script.make": [
    (options) => Effect.flatMap(Script.make(options), ({ stream }) => drained(stream({ messages: [], tools: [] })))
  ],
  "Simulation.run": [(options) => Simulation.run(Effect.void, options)],
  "Explorer.explore": [(options) => Explorer.explore(1, () => Effect.void, options)],
  "AdapterSuite.answering": [(options) => Effect.sync(() => AdapterSuite.answering(options))],
  "AdapterSuite.failing": [(options) => Effect.sync(() => AdapterSuite.failing(options))],
  check: [(options) => Effect.sync(() => check([], options))],
  "check.thread": [(options) => Effect.sync(() => check.thread(Thread.empty, options))],
  "check.handlers": [(options) => Effect.sync(() => check.handlers([], options))],
  everyStep: [(options) => everyStep(Effect.void, options)],
  everyKill: [(options) => everyKill("/dev/null", options)],
  "everyKill: random": [(random) => everyKill("/dev/null", untyped({ random })), { attempts: 1 }],
  "EffectAi.tools": [(options) => EffectAi.tools(toolkit, options)],
  SqliteClient: [(options) => layered(() => SqliteClient.layer(options)), { filename: ":memory:" }],
  "Telemetry.layer": [(options) => layered(() => Telemetry.layer(options))]
}

/** The ways in which a value may be right. */
const kinds = {
  text: (value: unknown) => typeof value === "string",
  flag: (value: unknown) => typeof value === "boolean",
  number: (value: unknown) => typeof value === "number" || typeof value === "bigint",
  fn: (value: unknown) => typeof value === "function",
  object: (value: unknown) => typeof value === "object" && value !== null,
  /** The one list with an element is that of what no option has. */
  list: (value: unknown) => Array.isArray(value) && value.length === 0,
  anyList: (value: unknown) => Array.isArray(value),
  null: (value: unknown) => value === null,
  any: () => true
} as const
type Kind = keyof typeof kinds

/** The kinds of options that are given by name, wherever they stand. A run takes `null` for an option that is left out. */
const byName: { readonly [kind in Kind]?: string } = {
  text: "requestId sessionId model cacheKey finalizePrompt system takes by id command owner prefix name version " +
    "instructions provider baseUrl summary description filename retention effort hash cwd runId messageId threadId " +
    "category threshold node seed reason",
  flag:
    "emitTextDeltas emitToolDeltas includeRawChunks structuredFinalize takeOver replays idempotent openWorld compact " +
    "manual propagate strict parallelToolCalls includeUsage store inlineSystem vertex includeThoughts enabled raw " +
    "publishReasoning publishCost continues isCut",
  number:
    "maxConcurrency maxTurns stepIndex maxAttempts maxResultChars permits retries maxEventLength maxAnswerLength " +
    "maxParallel concurrency maxFailures maxMessageBytes preparedStatements resultLimit joinMillis maxPartLength at " +
    "port known interruptAt maxSteps limit bound maxOpsBeforeYield processes recoveries attempts most from " +
    "retryUntilCall chunkSize maxSessions perPrincipal",
  fn:
    "haltWhen validate authorize lookUp chat result run onStop onEnd onGiveUp services models download onElicit onSample redact " +
    "allowUrl onEvent approve onStep isExclusive difference prepareStep",
  object:
    "context thread options headers metadata apiKey secret mcp studio retryReply retry cancel signal agent policy bounds " +
    "siblings reasoning request cursor random result calls",
  list:
    "approved tools limits secrets providerTools agents hosts origins roots dialects betas safetySettings pending " +
    "abandoned args nodeArgs messages suspensions",
  anyList: "opts",
  any: "temperature maxTokens toolChoice responseFormat parameters success failure handler defaultAnswer resume after"
}

const wordsOf = (kind: Kind): ReadonlyArray<string> => (byName[kind] ?? "").split(" ")

/** Options that have a value of several kinds, or the same name for another kind. */
const exceptions: { readonly [option: string]: ReadonlyArray<Kind> } = {
  "Tool.make.readOnly": ["flag", "fn"],
  "Tool.make.destructive": ["flag", "fn"],
  "Tool.fromChat.readOnly": ["flag", "fn"],
  "Tool.fromChat.destructive": ["flag", "fn"],
  "Agent.make.run": ["fn"],
  "Session.stop.call": ["text"],
  "Tool.make: limits.key": ["text", "fn"],
  "McpTools.layer: trust.readOnly": ["flag"],
  "McpTools.layer: trust.destructive": ["flag"],
  "McpTools.layer: an address.headers": [],
  env: [],
  environment: [],
  approval: ["flag", "fn"],
  onToolError: ["fn", "null"],
  interrupt: ["fn"],
  publish: ["fn"],
  deadline: ["number", "object"],
  trust: [],
  cache: ["object"],
  arguments: ["object"],
  key: ["text"],
  host: ["text"],
  "Session.answer.arguments": ["any"],
  "Thread.repair.uniqueIds": ["flag"],
  "Session.claim.onLost": ["fn"],
  "Journal.claim.onLost": ["fn"],
  "Journal.claimUnfinished.onLost": ["fn"],
  "Session.drive.retry": ["flag"],
  "Session.drive.run": ["fn"],
  "Session.submit.check": ["fn"],
  "Session.submit.known": ["object"],
  "Session.submit.origin": ["object"],
  "Anthropic.layer.cache": ["flag", "object"],
  "Gemini.layer.cache": ["text"],
  legacy: ["flag", "object"],
  emptyContent: ["text", "null"],
  "AiSdk.layer.model": ["object", "text", "fn", "any"],
  "Tool.make.concurrency": ["fn"],
  "Tool.fromChat.concurrency": ["fn"],
  "UiStream.messages.messageId": ["fn"],
  "AgUi.messages.messageId": ["fn"],
  "Script.make.script": ["anyList"],
  "Script.make.scripts": ["anyList"],
  "Script.make.streamScript": ["anyList"],
  "check.result": ["object"],
  "Chat.run: deadline.after": ["number"],
  "Policy.layer.maxTokens": ["number"],
  "Anthropic.layer.maxTokens": ["number"]
}

/** Values of each kind. Of numbers there is one that no option can have. */
const wrong: ReadonlyArray<readonly [string, unknown]> = [
  ["NaN", Number.NaN],
  ["a negative number", -1],
  ["minus infinity", -Infinity],
  ["a fraction", 1.5],
  ["a misspelt word", "requird"],
  ["an empty text", ""],
  ["true", true],
  ["null", null],
  ["an object", { "": 1 }],
  ["a list", [Symbol.for("nothing")]],
  ["a function", (_a: unknown, _b: unknown, _c: unknown) => 0],
  ["a symbol", Symbol.for("nothing")]
]

const isRun = (entry: string) =>
  /^(Adapter|Chat|Step|ToolRunner|Session\.(start|streamStart|reply|continue))/.test(entry)

const durations =
  "toolTimeout grace maxAge answerWithin timeout expiresIn term poll drain retryDelay maxRetryDelay connectTimeout " +
  "firstChunkTimeout idleTimeout busyTimeout reserve run authorization idle"

/** Whether a value may be right for an option. */
const mayBeRight = (entry: string, option: string, value: unknown): boolean => {
  if (value === null && isRun(entry) && !entry.includes(":")) return true
  // A fraction of a millisecond, or of a degree, is a number as any other.
  const isNumber = typeof value === "number" && !Number.isNaN(value) && value >= 0
  const own = exceptions[`${entry}.${option}`] ?? exceptions[option]
  if (own !== undefined) return own.some((kind) => kind === "number" ? isNumber : kinds[kind](value))
  if (entry.endsWith(": bounds")) return isNumber
  if (durations.split(" ").includes(option) && !(option === "run" && entry.endsWith(".layer"))) return isNumber
  const kind = (Object.keys(byName) as ReadonlyArray<Kind>).find((kind) => wordsOf(kind).includes(option))
  if (kind === undefined) return false
  if (kind === "number") return (option === "at" || option === "maxPartLength" || option === "joinMillis") && isNumber
  if (kind === "object") return kinds.object(value) && !Array.isArray(value)
  return kinds[kind](value)
}

const messageOf = (exit: Exit.Exit<unknown, unknown>): string | undefined => {
  if (Exit.isSuccess(exit)) return undefined
  const failure = Option.getOrUndefined(Cause.findErrorOption(exit.cause))
  if (failure !== undefined) return failure instanceof Error ? failure.message : String(failure)
  const error = Cause.squash(exit.cause)
  return error instanceof Error ? error.message : String(error)
}

const said = (call: (options: any) => Program, options: object) =>
  Effect.suspend(() => call(options)).pipe(
    Effect.provide([model, Session.Store.layerMemory]),
    Effect.timeoutOption("1 second"),
    Effect.exit,
    Effect.map(messageOf)
  ) as Effect.Effect<string | undefined>

/** The options of an entry point, as it names them itself. */
const optionsOf = (call: (options: any) => Program, needs: Options) =>
  Effect.map(said(call, { ...needs, zzzzzzzzzzzzzzz: 1 }), (message) => {
    const [, list] = /its options are (.*)$/.exec(message ?? "") ?? []
    return list?.split(", ") ?? assert.fail(`it does not name its options: ${message}`)
  })

describe("O-11: an option value of a wrong type", () => {
  for (const [entry, [call, needs = {}]] of Object.entries(entries)) {
    it.live(`O-11: ${entry} refuses wrong option values, and names the option and the right values`, () =>
      Effect.gen(function*() {
        const options = yield* optionsOf(call, needs)
        const passed: Array<string> = []
        let refused = 0
        for (const option of options) {
          for (const [what, value] of wrong) {
            if (mayBeRight(entry, option, value)) continue
            const message = yield* said(call, { ...needs, [option]: value })
            const isNamed = message !== undefined && message.includes(option) &&
              /must|has no option|takes/.test(message)
            if (!isNamed) passed.push(`${option} = ${what}: ${message ?? "accepted"}`)
            refused++
          }
        }
        assert.deepStrictEqual(passed, [])
        assert.isAbove(refused, options.length)
      }))
  }

  it("O-11: no message about a wrong option contains a secret", () => {
    const key = "sk-secret-0123456789"
    for (
      const options of [
        { apiKey: key },
        { headers: { authorization: [key] } },
        { apiKey: { value: key } },
        { apiKey: Redacted.make({ key }) },
        { options: key.length }
      ]
    ) {
      let message = "accepted"
      try {
        OpenAiChat.layer(untyped({ model: "m", ...options }))
      } catch (error) {
        message = (error as Error).message
      }
      assert.include(message, "OpenAiChat.layer: ")
      assert.notInclude(message, key)
    }
    const layers: ReadonlyArray<readonly [string, () => unknown]> = [
      ["headers", () => OpenAiChat.layer(untyped({ model: "m", headers: `Bearer ${key}` }))],
      ["secret", () => McpServer.routes(untyped({ secret: key }))],
      ["headers", () => McpTools.layer(untyped({ url: "http://127.0.0.1:9", headers: `Bearer ${key}` }))],
      [
        "headers.authorization",
        () => McpTools.layer(untyped({ url: "http://127.0.0.1:9", headers: { authorization: [key] } }))
      ],
      ["url", () => McpTools.layer(untyped({ url: `no address ${key}` }))],
      ["env", () => McpTools.layer(untyped({ name: "s", command: "c", env: `KEY=${key}` }))],
      ["env.KEY", () => McpTools.layer(untyped({ name: "s", command: "c", env: { KEY: { key } } }))],
      ["args", () => McpTools.layer(untyped({ name: "s", command: "c", args: `--token ${key}` }))],
      ["environment", () => Effect.runSync(everyKill("/dev/null", untyped({ environment: `KEY=${key}` })))]
    ]
    for (const [option, make] of layers) {
      let message = "accepted"
      try {
        make()
      } catch (error) {
        message = String(error)
      }
      assert.include(message, `${option} must be `)
      assert.notInclude(message, key)
    }
  })

  it.effect("O-11: a deadline is accepted in each of its forms", () =>
    Effect.gen(function*() {
      for (
        const deadline of [5_000, "5 seconds", Duration.seconds(5), { seconds: 5 }, { after: Duration.seconds(5) }]
      ) {
        assert.isTrue(
          Exit.isSuccess(yield* Effect.exit(Effect.provide(Chat.run("go", untyped({ deadline })), model))),
          JSON.stringify(deadline)
        )
      }
    }))

  it.effect("O-11: an undefined member of an option counts as left out", () =>
    Effect.gen(function*() {
      const policy = { resultLimit: undefined, siblings: { onHalt: undefined } }
      const result = yield* Effect.provide(Chat.run("go", untyped({ policy })), model)
      assert.strictEqual(result.outcome._tag, "Completed")

      const url = "data:text/plain,a"
      const parts = Array.from({ length: 65 }, () => ({ type: "file", mediaType: "text/plain", url }))
      const posted = { id: "s", messages: [{ id: "m", role: "user", parts }] }
      const read = UiStream.read(posted, untyped({ bounds: { files: undefined } }))
      assert.isTrue(read._tag === "Failure" && read.failure.message.includes("64"), JSON.stringify(read))

      const app = Server.layer(
        untyped({ agents: [helper], authorize: Server.allowLoopback, bounds: { lists: undefined } })
      ).pipe(Layer.provide([model, Session.Store.layerMemory]))
      const { dispose, handler } = Server.toWebHandler(app as Layer.Layer<never, never, HttpRouter.HttpRouter>)
      const statuses = yield* Effect.forEach(
        Array.from({ length: 61 }),
        () => Effect.promise(async () => (await handler(new Request("http://localhost/agents/helper/sessions"))).status)
      )
      yield* Effect.promise(dispose)
      assert.deepStrictEqual([statuses[59], statuses[60]], [200, 429])
    }))

  it.effect("O-11: a run accepts null for any option, and ends as without the option", () =>
    Effect.gen(function*() {
      const tool = Tool.make("t", { parameters: {}, handler: () => Effect.succeed("x") })
      const calling = [Script.toolCall("a", "t"), Script.finish("tool_calls")]
      const runs: {
        readonly [name: string]: (options: any) => Effect.Effect<{ readonly outcome: unknown }, any, any>
      } = {
        "Chat.run": (options) => Chat.run("go", options),
        "Session.start": (options) => Effect.map(Session.start("go", options), ({ result }) => result),
        "Session.reply": (options) => Effect.map(Session.reply(session, "go", options), ({ result }) => result)
      }
      for (const [entry, run] of Object.entries(runs)) {
        for (const option of yield* optionsOf(entries[entry]![0], {})) {
          const ended = run(untyped({ tools: [tool], [option]: null })).pipe(
            Effect.provide(Script.layer([calling, [Script.text("done"), Script.finish("stop")]]))
          ) as Effect.Effect<{ readonly outcome: unknown }>
          const { outcome } = yield* ended
          assert.deepStrictEqual(outcome, { _tag: "Completed", finishReason: "stop" }, `${entry}: ${option}`)
        }
      }
    }))

  it("O-11: a missing run or an empty list of agents is named", () => {
    assert.throws(() => Agent.make(untyped({ name: "a", description: "" })), "Agent.make: run must be a function")
    assert.throws(() => Server.define(untyped({ layer: model })), "agents is empty; give at least one Agent.make")
  })

  it.effect("O-11: no handler runs in a run with a wrong option", () =>
    Effect.gen(function*() {
      let runs = 0
      const tool = Tool.make("t", { parameters: {}, handler: () => Effect.sync(() => ++runs) })
      const script = Script.layer([[Script.toolCall("a", "t"), Script.finish("tool_calls")]])
      for (const options of [{ mode: "manul" }, { policy: { start: "afterturn" } }, { structuredFinalize: "x" }]) {
        const exit = yield* Effect.exit(Effect.provide(Chat.run("go", untyped({ tools: [tool], ...options })), script))
        assert.isTrue(Exit.hasDies(exit))
      }
      assert.strictEqual(runs, 0)
    }))
})
