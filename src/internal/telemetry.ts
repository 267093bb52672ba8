/**
 * Spans, metrics and content of runs, by OpenTelemetry's conventions for generative AI. A run is observed if there is a
 * tracer, a span around it, or a listener (`heddle/telemetry`); any other run makes nothing here: spans cost more than
 * the steps they describe. Attributes name things and never carry arguments, results, prompts or keys: those are facts
 * that an operation holds for its listener, which decides whether to write them.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as References from "effect/References"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import type * as Message from "../Message.ts"
import type * as Response from "../Response.ts"
import * as Json from "./json.ts"

/** The version of this package, on the span of each run. */
export const version = "0.1.0"

/** The names of all attributes and events on Heddle's spans. */
export const names = {
  operation: "gen_ai.operation.name",
  provider: "gen_ai.provider.name",
  agentName: "gen_ai.agent.name",
  agentId: "gen_ai.agent.id",
  agentDescription: "gen_ai.agent.description",
  agentVersion: "gen_ai.agent.version",
  conversation: "gen_ai.conversation.id",
  outputType: "gen_ai.output.type",
  model: "gen_ai.request.model",
  stream: "gen_ai.request.stream",
  temperature: "gen_ai.request.temperature",
  maxTokens: "gen_ai.request.max_tokens",
  seed: "gen_ai.request.seed",
  topK: "gen_ai.request.top_k",
  topP: "gen_ai.request.top_p",
  frequencyPenalty: "gen_ai.request.frequency_penalty",
  presencePenalty: "gen_ai.request.presence_penalty",
  stopSequences: "gen_ai.request.stop_sequences",
  choiceCount: "gen_ai.request.choice.count",
  responseId: "gen_ai.response.id",
  responseModel: "gen_ai.response.model",
  finishReasons: "gen_ai.response.finish_reasons",
  timeToFirstChunk: "gen_ai.response.time_to_first_chunk",
  inputTokens: "gen_ai.usage.input_tokens",
  outputTokens: "gen_ai.usage.output_tokens",
  cacheRead: "gen_ai.usage.cache_read.input_tokens",
  cacheCreation: "gen_ai.usage.cache_creation.input_tokens",
  reasoningTokens: "gen_ai.usage.reasoning.output_tokens",
  toolName: "gen_ai.tool.name",
  toolType: "gen_ai.tool.type",
  toolCall: "gen_ai.tool.call.id",
  address: "server.address",
  port: "server.port",
  error: "error.type",
  totalCost: "heddle.usage.total_cost",
  requestId: "heddle.request.id",
  step: "heddle.step.index",
  outcome: "heddle.outcome",
  attempts: "heddle.tool.attempts",
  queued: "heddle.tool.queued_ms",
  early: "heddle.tool.early",
  version: "heddle.version",
  retry: "heddle.retry",
  fallbackFrom: "heddle.fallback.from",
  attempt: "heddle.attempt",
  mcpMethod: "mcp.method.name",
  mcpVersion: "mcp.protocol.version",
  mcpServer: "heddle.mcp.server",
  mcpTool: "heddle.mcp.tool",
  jsonRpcId: "jsonrpc.request.id",
  transport: "network.transport"
} as const

export type Attributes = Readonly<Record<string, unknown>>

type Kind = "invoke_agent" | "step" | "inference" | "execute_tool"

/** The data of a run that a listener may write. */
export interface RunFacts {
  readonly kind: "invoke_agent"
  /** Numbers of its model calls and of its tool calls. */
  inferenceCalls: number
  toolCalls: number
  readonly system: string | undefined
  /** The messages that the run began with. */
  readonly input: ReadonlyArray<Message.Message>
  readonly tools: ReadonlyArray<Definition>
  /** The reply that the run ended with. */
  response: Response.Response | null | undefined
}

/** The data of a model call that a listener may write. */
export interface InferenceFacts {
  readonly kind: "inference"
  readonly request: () => {
    readonly messages: ReadonlyArray<Message.Message>
    readonly tools: ReadonlyArray<Definition>
  }
  response: Response.Response | undefined
}

/** The data of a tool call that a listener may write. */
export interface ToolFacts {
  readonly kind: "execute_tool"
  readonly call: Message.ToolCall
  /** The outcome of the handler, or the content of the answer of a call that did not run. */
  result: unknown
}

interface Definition {
  readonly name: string
  readonly description?: string | undefined
  readonly parameters: unknown
}

export type Facts = RunFacts | InferenceFacts | ToolFacts | { readonly kind: "step" }

/** The part of `heddle/telemetry` that the core knows. */
export interface Listener {
  /** The calls that have spans. */
  readonly toolSpans: "all" | "failed" | "none"
  /** Tells whether a viewer adds up the usage of all spans: that of a run then has none. */
  readonly addsUp?: boolean
  /** Notes the time, in seconds, between two chunks of a reply. */
  readonly chunk: (operation: Operation, seconds: number) => void
  /** Notes the end of an operation, and adds attributes to its span, which ends after that. */
  readonly ended: (operation: Operation) => void
}

/** The listener of the runs of this code. There is none without `heddle/telemetry`. */
export const CurrentListener: Context.Reference<Listener | undefined> = Context.Reference<Listener | undefined>(
  "heddle/internal/TelemetryListener",
  { defaultValue: () => undefined }
)

/** The span of the run whose steps this code runs in. Handlers do not see it. */
const CurrentRun: Context.Reference<Run | undefined> = Context.Reference<Run | undefined>(
  "heddle/internal/RunSpan",
  { defaultValue: () => undefined }
)

/** The operation of the call whose handler this code runs in. */
const CurrentCall: Context.Reference<Operation | undefined> = Context.Reference<Operation | undefined>(
  "heddle/internal/CallSpan",
  { defaultValue: () => undefined }
)

/** The services that spans are made with, where a run is observed. */
export interface Tracing {
  readonly context: Context.Context<never>
  readonly listener: Listener | undefined
  readonly run: Run | undefined
}

/** Returns what spans are made with, or `undefined` if nothing observes the run. */
export const tracing = <R>(services: Context.Context<R>): Tracing | undefined => {
  const context = services as Context.Context<never>
  const listener = Context.get(context, CurrentListener)
  const isObserved = listener !== undefined ||
    Context.getOrUndefined(context, Tracer.Tracer) !== undefined ||
    Context.getOrUndefined(context, Tracer.ParentSpan) !== undefined
  return isObserved ? { context, listener, run: Context.get(context, CurrentRun) } : undefined
}

/** Adds attributes to the span of the call whose handler runs this, whatever spans the handler has opened within. */
export const annotateCall = (attributes: Attributes): Effect.Effect<void> =>
  Effect.map(CurrentCall, (call) => call?.set(attributes))

/** The value of an attribute for any text that is not one of those that are known. */
export const other = "_OTHER"

/** Returns an id or a name that a provider or a model gave, if it is one word, and nothing of any other text. */
const wordOf = (text: string | null | undefined): string | undefined =>
  typeof text === "string" && /^[!-~]{1,256}$/.test(text) ? text : undefined

/** The attribute of the id of a call, where it is a word. */
export const callId = (id: string): Record<string, string> => {
  const word = wordOf(id)
  return word === undefined ? {} : { [names.toolCall]: word }
}

const ours: ReadonlySet<unknown> = new Set(["AdapterError", "ToolError", "EngineError", "ValidationError"])

/**
 * Returns the code of an error: the reason of one of Heddle's own, else the name of its class, and nothing of its text.
 */
const codeOf = (error: unknown): string => {
  if (!Json.isObject(error)) return other
  const { _tag, name, reason } = error
  if (ours.has(_tag) && typeof reason === "string") return reason
  const own = Json.nameOf({ _tag, name })
  return own === "Error" ? other : own
}

/** Returns the tag of an outcome as attributes write it: `AskUser` as `ask_user`. */
const outcomeName = (tag: string): string => tag.replace(/\B[A-Z]/g, (letter) => `_${letter}`).toLowerCase()

/** The end of an operation. A code is that of a failure; an operation that was cut has neither failed nor succeeded. */
interface Ending {
  readonly code?: string | undefined
  readonly outcome?: string | undefined
  readonly isCut?: boolean
}

const exitOf = ({ code, isCut }: Ending): Exit.Exit<void, string> =>
  code !== undefined ? Exit.fail(code) : isCut === true ? Exit.interrupt() : Exit.void

interface Plan {
  readonly name: string
  readonly spanKind?: Tracer.SpanKind
  readonly attributes: Attributes
  readonly links?: ReadonlyArray<Tracer.SpanLink>
  /** Tells whether the span is made at the end, if the operation has failed, or never. */
  readonly made?: Listener["toolSpans"] | undefined
}

/** Tells a tracer or a listener something. A run does not depend on them: an error that they throw is lost. */
const told = (tell: () => void): void => void Result.try(tell)

/** The number of events that a span is given, as OpenTelemetry limits it by default. */
const mostEvents = 128

/** One operation of a run, with its span. It ends once. */
export class Operation<F extends Facts = Facts> {
  readonly facts: F
  readonly tracing: Tracing
  readonly startedAt: bigint
  endedAt: bigint | undefined
  code: string | undefined
  span: Tracer.Span | undefined
  private readonly plan: Plan
  private readonly clock: Clock.Clock
  /** The attributes so far. */
  readonly attributes: Record<string, unknown> = {}
  private eventCount = 0
  private readonly events: Array<readonly [name: string, at: bigint, attributes: Record<string, unknown>]> = []

  constructor(tracing: Tracing, facts: F, plan: Plan) {
    this.tracing = tracing
    this.facts = facts
    this.plan = plan
    this.clock = Context.get(tracing.context, Clock.Clock)
    this.startedAt = this.clock.currentTimeNanosUnsafe()
    this.set(plan.attributes)
    if ((plan.made ?? "all") === "all") this.open()
  }

  get kind(): Kind {
    return this.facts.kind
  }

  /** The duration, in seconds, of an operation that has ended. */
  get seconds(): number {
    return Number((this.endedAt ?? this.startedAt) - this.startedAt) / 1e9
  }

  /** Opens the span, by the same clock that measures the operation: its start may have passed. */
  private open(): void {
    const { attributes, clock, plan: { links, name, spanKind = "internal" }, startedAt, tracing: { context } } = this
    const atStart = Object.create(clock, { currentTimeNanosUnsafe: { value: () => startedAt } }) as Clock.Clock
    told(() => {
      this.span = Effect.runSyncWith(Context.add(context, Clock.Clock, atStart))(
        Effect.makeSpan(name, { kind: spanKind, attributes, ...(links === undefined ? {} : { links }) })
      )
    })
  }

  /** Adds attributes. A value that is `undefined` or `null` is none. */
  set(attributes: Attributes): void {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null) continue
      this.attributes[name] = value
      told(() => this.span?.attribute(name, value))
    }
  }

  /** Adds an event that happens now, unless there are too many: a call may be tried again without end. */
  event(name: string, attributes: Record<string, unknown>): void {
    if (this.eventCount++ >= mostEvents) return
    const at = this.clock.currentTimeNanosUnsafe()
    const { span } = this
    if (span === undefined) this.events.push([name, at, attributes])
    else told(() => span.event(name, at, attributes))
  }

  /** Ends the operation, unless it has ended. */
  end(ending: Ending, endedAt = this.clock.currentTimeNanosUnsafe()): void {
    if (this.endedAt !== undefined) return
    const { plan: { made }, tracing: { context, listener } } = this
    this.endedAt = endedAt
    this.code = ending.code
    this.set({ [names.error]: ending.code, [names.outcome]: ending.outcome })
    if (made === "failed" && ending.code !== undefined) {
      this.open()
      for (const [name, at, attributes] of this.events) told(() => this.span?.event(name, at, attributes))
    }
    told(() => listener?.ended(this))
    told(() => this.span?.end(Context.get(context, References.TracerTimingEnabled) ? endedAt : 0n, exitOf(ending)))
  }

  /** Puts an effect under the span. */
  over<A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    const { span } = this
    return span === undefined ? effect : Effect.withParentSpan(effect, span) as Effect.Effect<A, E, R>
  }

  /** Returns what the spans within are made with. */
  within(run = this.tracing.run): Tracing {
    const { span, tracing: { context, listener } } = this
    return { context: span === undefined ? context : Context.add(context, Tracer.ParentSpan, span), listener, run }
  }
}

const tokens = (usage: Response.Usage | null | undefined): Attributes =>
  usage === null || usage === undefined ? {} : {
    [names.inputTokens]: usage.inputTokens,
    [names.outputTokens]: usage.outputTokens,
    [names.cacheRead]: usage.cachedInputTokens,
    [names.cacheCreation]: usage.cacheWriteInputTokens,
    [names.reasoningTokens]: usage.reasoningTokens,
    [names.totalCost]: usage.totalCost
  }

const finishReasons = ({ finishReason }: Response.Response): Attributes =>
  finishReason === null ? {} : { [names.finishReasons]: [finishReason] }

/** The options of a request that spans name. */
interface Sampling {
  readonly model?: string | undefined
  readonly temperature?: number | undefined
  readonly maxTokens?: number | undefined
  readonly responseFormat?: { readonly type: string } | undefined
  readonly options?: Readonly<Record<string, unknown>>
}

/** The facts about an adapter that spans name. Public as part of `Adapter.Service`. */
export interface Described {
  /**
   * The name of the provider, as OpenTelemetry spells it: `openai`, `anthropic`, `gcp.gemini`. Spans and metrics have
   * it. `_OTHER` by default.
   */
  readonly provider?: string
  /** The model of requests that name none, for spans and metrics. They name none by default. */
  readonly model?: string
  /** The operation in the names of spans. `"chat"` by default. */
  readonly operation?: "chat" | "generate_content"
  /** The server that requests are sent to, for spans and metrics. They name none by default. */
  readonly server?: {
    /** The name of the host, without a path or a query. */
    readonly address: string
    /** The port. The protocol's own by default. */
    readonly port?: number
  }
}

/** Returns a number or a text of a provider's own option, by any of its names. */
const ownOption = (options: Attributes, ...keys: ReadonlyArray<string>): unknown =>
  keys.map((key) => options[key]).find((value) => typeof value === "number" || typeof value === "string")

const sampled = (
  { maxTokens, model, options = {}, responseFormat, temperature }: Sampling,
  described: Described | undefined
): Attributes => {
  const stop = options["stop"] ?? options["stop_sequences"]
  const stops = typeof stop === "string" ? [stop] : stop
  const count = ownOption(options, "n")
  return {
    [names.provider]: described?.provider ?? other,
    [names.model]: model ?? described?.model,
    [names.address]: described?.server?.address,
    [names.port]: described?.server?.port,
    [names.temperature]: temperature,
    [names.maxTokens]: maxTokens,
    [names.seed]: ownOption(options, "seed"),
    [names.topK]: ownOption(options, "top_k", "topK"),
    [names.topP]: ownOption(options, "top_p", "topP"),
    [names.frequencyPenalty]: ownOption(options, "frequency_penalty", "frequencyPenalty"),
    [names.presencePenalty]: ownOption(options, "presence_penalty", "presencePenalty"),
    [names.stopSequences]: Array.isArray(stops) && stops.every((text) => typeof text === "string") ? stops : undefined,
    [names.choiceCount]: count === 1 ? undefined : count,
    [names.outputType]: responseFormat === undefined ? undefined : responseFormat.type === "text" ? "text" : "json"
  }
}

// The run.

/**
 * The agent that a run is, for its span and its metrics.
 *
 * @category options
 * @since 0.1.0
 */
export interface Agent {
  /** The name. It stands in the name of the run's span, so let there be few. */
  readonly name: string
  /** The id. None by default. */
  readonly id?: string
  /** A description. None by default. */
  readonly description?: string
  /** The version. None by default. */
  readonly version?: string
}

/** The ids of a span, as a journal keeps them. */
export interface SpanIds {
  readonly traceId: string
  readonly spanId: string
}

/** A run as its span describes it. */
interface RunPlan {
  readonly requestId: string
  readonly sessionId: string | null
  readonly agent: Agent | undefined
  readonly adapter: Described | undefined
  readonly sampling: Sampling
  readonly facts: Pick<RunFacts, "system" | "input" | "tools">
  /** The span of the run before, which this one continues. */
  readonly previous?: SpanIds | undefined
}

/** The span of a run. */
export class Run {
  readonly operation: Operation<RunFacts>
  readonly requestId: string
  readonly agent: Agent | undefined
  /** Returns the usage of the run so far. */
  usage: () => Response.Usage | null = () => null
  private ending: Ending | undefined

  constructor(tracing: Tracing, plan: RunPlan) {
    const { adapter, agent, facts, previous, requestId, sampling, sessionId } = plan
    this.requestId = requestId
    this.agent = agent
    const own: RunFacts = { kind: "invoke_agent", ...facts, inferenceCalls: 0, toolCalls: 0, response: undefined }
    this.operation = new Operation(tracing, own, {
      name: agent === undefined ? "invoke_agent" : `invoke_agent ${agent.name}`,
      attributes: {
        [names.operation]: "invoke_agent",
        ...sampled(sampling, adapter),
        [names.agentName]: agent?.name,
        [names.agentId]: agent?.id,
        [names.agentDescription]: agent?.description,
        [names.agentVersion]: agent?.version,
        [names.conversation]: sessionId,
        [names.requestId]: requestId,
        [names.version]: version
      },
      ...(previous === undefined
        ? {}
        : { links: [{ span: Tracer.externalSpan({ ...previous, sampled: true }), attributes: {} }] })
    })
  }

  /** The ids of its span, for the journal. */
  get ids(): SpanIds | undefined {
    const { span } = this.operation
    return span === undefined || !span.sampled ? undefined : { traceId: span.traceId, spanId: span.spanId }
  }

  /** Returns what the spans within are made with, by the services of the fiber that reads. */
  tracing<R>(services: Context.Context<R>): Tracing {
    const context = services as Context.Context<never>
    const { span, tracing: { listener } } = this.operation
    return {
      context: span === undefined ? context : Context.add(context, Tracer.ParentSpan, span),
      listener,
      run: this
    }
  }

  /** Reads the events of a session's run under its span: those of calls of an earlier turn, and of the run itself. */
  reading<A, E, R>(events: Stream.Stream<A, E, R>): Stream.Stream<A, E, R> {
    const { span } = this.operation
    const within = Stream.provideService(events, CurrentRun, this)
    return span === undefined
      ? within
      : Stream.provideService(within, Tracer.ParentSpan, span) as Stream.Stream<A, E, R>
  }

  /** Notes the outcome of the run, by its tag, and the error of one that failed. A later one counts. */
  came(
    outcome: { readonly _tag: string; readonly error?: unknown; readonly rule?: string; readonly status?: string },
    response: Response.Response | null
  ): void {
    const code = outcome._tag === "Failed"
      ? codeOf(outcome.error)
      : outcome._tag === "ToolFailed"
      ? "tool_error"
      : outcome.status === "error"
      ? outcome.rule
      : undefined
    this.ending = { code, outcome: outcomeName(outcome._tag), isCut: outcome._tag === "Cancelled" }
    this.operation.facts.response = response
  }

  /** Ends the span, with the outcome, or as the scope of the run was closed: it failed, or its reader has left it. */
  end(exit: Exit.Exit<unknown, unknown>): void {
    const { facts, facts: { response } } = this.operation
    const isBroken = Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)
    const ending: Ending = isBroken
      ? { code: codeOf(Cause.squash(exit.cause)), outcome: "failed" }
      : this.ending ?? { isCut: true, outcome: "interrupted" }
    // A viewer that adds up its spans would count each token twice.
    if (this.operation.tracing.listener?.addsUp !== true) this.operation.set(tokens(this.usage()))
    if (facts.response !== undefined && response) this.operation.set(finishReasons(response))
    this.operation.end(ending)
  }
}

/** Opens the span of a run that is observed. It lasts as long as the scope. */
export const openRun = (
  tracing: Tracing | undefined,
  scope: Scope.Scope,
  plan: () => RunPlan
): Effect.Effect<Run | undefined> => {
  if (tracing === undefined) return Effect.succeed(undefined)
  return Effect.suspend(() => {
    const described = plan()
    const around = tracing.run
    // The run of a session has its span already, around the calls of an earlier turn.
    if (around?.requestId === described.requestId) return Effect.succeed(around)
    const run = new Run(tracing, described)
    return Effect.as(Scope.addFinalizerExit(scope, (exit) => Effect.sync(() => run.end(exit))), run)
  })
}

// The step, and its model call.

/** A model call as its span describes it. */
interface InferencePlan {
  readonly adapter: Described
  readonly sampling: Sampling
  readonly sessionId: string | null
  readonly request: InferenceFacts["request"]
  /** Attributes that the rules add. */
  readonly attributes?: Readonly<Record<string, string | number>> | undefined
}

/** The spans of a step: its own, and that of its model call, with all the times that it is asked again. */
export class Step {
  private readonly operation: Operation
  private readonly run: Run | undefined
  private inference: Operation<InferenceFacts> | undefined
  /** The server and the model that the open model call is asked of, and their name. */
  private of: { readonly key: string; readonly name: string } | undefined
  private brokenBy: unknown
  private retries = 0
  private lastChunkAt: bigint | undefined

  private readonly index: number

  constructor(tracing: Tracing, requestId: string, index: number) {
    this.run = tracing.run
    this.index = index
    this.operation = new Operation(tracing, { kind: "step" }, {
      name: "heddle.step",
      attributes: { [names.requestId]: requestId, [names.step]: index }
    })
  }

  /** Puts an effect under the span of the step. */
  readonly over = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.provideService(this.operation.over(effect), CurrentRun, this.run)

  /** Begins the model call, unless it has begun, and reads its reply under the span. */
  asked<A, E, R>(stream: Stream.Stream<A, E, R>, plan: InferencePlan): Stream.Stream<A, E, R> {
    const { provider = other, server } = plan.adapter
    const model = plan.sampling.model ?? plan.adapter.model
    const { of } = this
    this.of = { key: JSON.stringify([provider, model, server]), name: model ?? provider }
    if (of === undefined || of.key === this.of.key) return this.reading(this.inference ??= this.begin(plan), stream)
    this.inference?.end({ code: codeOf(this.brokenBy) })
    const inference = this.inference = this.begin(plan)
    inference.set({ [names.fallbackFrom]: of.name })
    return this.reading(inference, stream)
  }

  private begin({ adapter, attributes, request, sampling, sessionId }: InferencePlan): Operation<InferenceFacts> {
    if (this.run !== undefined) this.run.operation.facts.inferenceCalls++
    const operation = adapter.operation ?? "chat"
    const model = sampling.model ?? adapter.model
    return new Operation(this.operation.within(), { kind: "inference", request, response: undefined }, {
      name: model === undefined ? operation : `${operation} ${model}`,
      spanKind: "client",
      attributes: {
        [names.operation]: operation,
        ...sampled(sampling, adapter),
        [names.stream]: true,
        [names.agentName]: this.run?.agent?.name,
        [names.conversation]: sessionId,
        ...attributes
      }
    })
  }

  /** Reads a reply under the span of the model call, and measures its chunks. */
  private reading<A, E, R>(
    inference: Operation<InferenceFacts>,
    stream: Stream.Stream<A, E, R>
  ): Stream.Stream<A, E, R> {
    const measured = Stream.mapArray(stream, (chunk) => {
      this.chunk(inference)
      return chunk
    })
    return inference.span === undefined
      ? measured
      : Stream.provideService(measured, Tracer.ParentSpan, inference.span) as Stream.Stream<A, E, R>
  }

  private chunk(inference: Operation<InferenceFacts>): void {
    const { lastChunkAt } = this
    const { context, listener } = inference.tracing
    const now = this.lastChunkAt = Context.get(context, Clock.Clock).currentTimeNanosUnsafe()
    if (lastChunkAt !== undefined) told(() => listener?.chunk(inference, Number(now - lastChunkAt) / 1e9))
    else inference.set({ [names.timeToFirstChunk]: Number(now - inference.startedAt) / 1e9 })
  }

  /** Notes that the reply broke, and is asked for again. */
  askedAgain(error: unknown): void {
    this.brokenBy = error
    this.inference?.event(names.retry, { [names.error]: codeOf(error), [names.attempt]: ++this.retries + 1 })
  }

  /** Ends the model call, by its reply as far as it came. */
  replied(response: Response.Response, ending: { readonly error?: unknown; readonly isCut?: boolean }): void {
    const { inference } = this
    if (inference === undefined || inference.endedAt !== undefined) return
    inference.facts.response = response
    inference.set({
      [names.responseId]: wordOf(response.id),
      [names.responseModel]: wordOf(response.model),
      ...finishReasons(response),
      ...tokens(response.usage)
    })
    if ("error" in ending) {
      const code = codeOf(ending.error)
      inference.end({ code })
      this.operation.code = code
    } else if (ending.isCut === true) inference.end({ isCut: true, outcome: "cancelled" })
    else inference.end({})
  }

  /** Makes the spans of the calls of a turn that fails as a whole, since it has calls of tools that do not exist. */
  refused(
    error: unknown,
    calls: ReadonlyArray<Message.ToolCall>,
    { settings, tools }: {
      readonly settings: Pick<CallPlan, "requestId" | "sessionId">
      readonly tools: ReadonlyMap<string, unknown>
    }
  ): void {
    const code = this.operation.code = codeOf(error)
    for (const call of calls) {
      const isOffered = tools.has(call.name)
      const { requestId, sessionId } = settings
      const plan = { call, isOffered, requestId, sessionId, stepIndex: this.index }
      unstarted(this.operation.within(), plan, isOffered ? notRun : { code, outcome: "refused" })
    }
  }

  /** Ends the span of the step, and that of a model call that is still open. */
  end(exit: Exit.Exit<unknown, unknown>): void {
    this.inference?.end({ isCut: true, outcome: "interrupted" })
    const isBroken = Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)
    const code = this.operation.code ?? (isBroken ? codeOf(Cause.squash(exit.cause)) : undefined)
    this.operation.end({ code, isCut: Exit.isFailure(exit) && !isBroken })
  }
}

// The calls.

/** The end of a call that did not run, although nothing was wrong with it. */
export const notRun = { code: "cancelled", outcome: "not_run" } as const

/** A call as its span describes it. */
interface CallPlan {
  readonly call: Message.ToolCall
  /** Tells whether the run has a tool of the call's name. A model may make up any other name, of any text. */
  readonly isOffered: boolean
  readonly requestId: string
  readonly sessionId: string | null
  readonly stepIndex: number
}

const callPlan = (
  { listener, run }: Tracing,
  { call, isOffered, requestId, sessionId, stepIndex }: CallPlan,
  attributes: Attributes
): Plan => {
  const name = isOffered ? call.name : other
  return {
    name: `execute_tool ${name}`,
    made: listener?.toolSpans,
    attributes: {
      [names.operation]: "execute_tool",
      [names.toolName]: name,
      [names.toolType]: "function",
      ...callId(call.id),
      [names.agentName]: run?.agent?.name,
      [names.conversation]: sessionId,
      [names.requestId]: requestId,
      [names.step]: stepIndex,
      ...attributes
    }
  }
}

/** The start of a call: the time that it waited for, and the number of its first attempt here. */
interface Start {
  readonly queuedMillis: number
  readonly isEarly: boolean
  readonly attempt: number
}

/** The span of a call, from the start of its handler to the end of it. */
export class Call {
  private readonly operation: Operation<ToolFacts>

  constructor(tracing: Tracing, plan: CallPlan, { attempt, isEarly, queuedMillis }: Start) {
    if (tracing.run !== undefined) tracing.run.operation.facts.toolCalls++
    const facts: ToolFacts = { kind: "execute_tool", call: plan.call, result: undefined }
    this.operation = new Operation(
      tracing,
      facts,
      callPlan(tracing, plan, {
        [names.queued]: queuedMillis > 0 ? queuedMillis : undefined,
        [names.early]: isEarly ? true : undefined,
        [names.attempts]: attempt > 1 ? attempt : undefined
      })
    )
  }

  /** Runs the handler under the span. The runs that it starts are runs of their own. */
  over<A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return this.operation.over(effect).pipe(
      Effect.provideService(CurrentCall, this.operation),
      Effect.provideService(CurrentRun, undefined)
    )
  }

  /** Notes that an attempt failed with a code, and that another one follows. */
  retried(code: string, attempt: number): void {
    this.operation.set({ [names.attempts]: attempt })
    this.operation.event(names.retry, { [names.error]: code, [names.attempt]: attempt })
  }

  end(ending: Ending & { readonly result?: unknown }): void {
    this.operation.facts.result = ending.result
    this.operation.end(ending)
  }
}

/** Makes the span, of no length, of a call that did not start. */
export const unstarted = (tracing: Tracing, plan: CallPlan, ending: Ending & { readonly result?: unknown }): void => {
  if (tracing.run !== undefined) tracing.run.operation.facts.toolCalls++
  const facts: ToolFacts = { kind: "execute_tool", call: plan.call, result: ending.result }
  const operation = new Operation(tracing, facts, callPlan(tracing, plan, {}))
  operation.end(ending, operation.startedAt)
}

/** Adds the event of a retry to the span that this code runs under: that of a model call. */
export const retried = (error: unknown, attempt: number): Effect.Effect<void> =>
  Effect.map(
    Effect.zip(Effect.serviceOption(Tracer.ParentSpan), Clock.Clock),
    ([parent, clock]) => {
      if (parent._tag === "None" || parent.value._tag !== "Span") return
      const { value: span } = parent
      const attributes = { [names.error]: codeOf(error), [names.attempt]: attempt }
      told(() => span.event(names.retry, clock.currentTimeNanosUnsafe(), attributes))
    }
  )

/** Adds attributes to the span that this code runs under. */
export const annotate = (attributes: Record<string, unknown>): Effect.Effect<void> =>
  Effect.catchDefect(Effect.annotateCurrentSpan(attributes), () => Effect.void)

/** Runs a request under a span of its own. Secrets are for the caller to keep out of it. */
export const requesting = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  name: string,
  attributes: Record<string, unknown>
): Effect.Effect<A, E, Exclude<R, Tracer.ParentSpan>> =>
  Effect.acquireUseRelease(
    Effect.catchDefect(Effect.makeSpan(name, { kind: "client", attributes }), () => Effect.undefined),
    (span) => (span === undefined ? effect : Effect.withParentSpan(effect, span)) as typeof effect,
    (span, exit) =>
      Effect.map(Effect.zip(Clock.Clock, References.TracerTimingEnabled), ([clock, isTimed]) =>
        told(() => span?.end(isTimed ? clock.currentTimeNanosUnsafe() : 0n, exit)))
  ) as Effect.Effect<A, E, Exclude<R, Tracer.ParentSpan>>

// Log records.

/** Logs what an operator should see. A run does not depend on its loggers: one that throws changes nothing of it. */
export const logged = (record: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.catchDefect(record, () => Effect.void)

/**
 * Logs a warning with the name of what broke. The words of that, which may be a user's, are logged at debug level. The
 * other attributes are the caller's.
 */
export const warned = (
  message: string,
  cause: Cause.Cause<unknown>,
  attributes: Attributes = {}
): Effect.Effect<void> =>
  logged(
    Effect.logWarning(message).pipe(
      Effect.andThen(Effect.logDebug(message, cause)),
      Effect.annotateLogs({ [names.error]: Json.nameOf(Cause.squash(cause)), ...attributes })
    )
  )
