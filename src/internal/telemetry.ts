/**
 * Spans, metrics and content of runs, following OpenTelemetry's conventions for generative AI. A run is observed if
 * there is a tracer, an enclosing span, or a listener (`heddle/telemetry`). Other runs create nothing here: spans cost
 * more than the steps they describe. Attributes name things and never carry keys, arguments, results or prompts: an
 * operation holds the last three for its listener, which decides whether to write them.
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

/** Package version, on each run's span. */
export const version = "0.1.0"

/** Names of all attributes and events on Heddle's spans. */
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

/** Data about a run, which a listener may write. */
export interface RunFacts {
  readonly kind: "invoke_agent"
  /** Numbers of model and tool calls. */
  inferenceCalls: number
  toolCalls: number
  readonly system: string | undefined
  /** The run's initial messages. */
  readonly input: ReadonlyArray<Message.Message>
  readonly tools: ReadonlyArray<Definition>
  /** The run's last reply. */
  response: Response.Response | null | undefined
}

/** Model call data a listener may write. */
export interface InferenceFacts {
  readonly kind: "inference"
  readonly request: () => {
    readonly messages: ReadonlyArray<Message.Message>
    readonly tools: ReadonlyArray<Definition>
  }
  response: Response.Response | undefined
}

/** Tool call data a listener may write. */
export interface ToolFacts {
  readonly kind: "execute_tool"
  readonly call: Message.ToolCall
  /** Handler outcome, or the answer content if the call did not run. */
  result: unknown
}

interface Definition {
  readonly name: string
  readonly description?: string | undefined
  readonly parameters: unknown
}

export type Facts = RunFacts | InferenceFacts | ToolFacts | { readonly kind: "step" }

/** The core's view of `heddle/telemetry`. */
export interface Listener {
  /** Calls with spans. */
  readonly toolSpans: "all" | "failed" | "none"
  /** `true` if a viewer adds up the usage of all spans: a run's span then has no usage. */
  readonly addsUp?: boolean
  /** Notes the time between two chunks of a reply, in seconds. */
  readonly chunk: (operation: Operation, seconds: number) => void
  /** Notes the end of an operation and adds attributes to its span, which ends afterwards. */
  readonly ended: (operation: Operation) => void
}

/** Listener for this code's runs. `undefined` without `heddle/telemetry`. */
export const CurrentListener: Context.Reference<Listener | undefined> = Context.Reference<Listener | undefined>(
  "heddle/internal/TelemetryListener",
  { defaultValue: () => undefined }
)

/** Span of the run whose steps this code runs in. Hidden from handlers. */
const CurrentRun: Context.Reference<Run | undefined> = Context.Reference<Run | undefined>(
  "heddle/internal/RunSpan",
  { defaultValue: () => undefined }
)

/** Operation of the call whose handler this code runs in. */
const CurrentCall: Context.Reference<Operation | undefined> = Context.Reference<Operation | undefined>(
  "heddle/internal/CallSpan",
  { defaultValue: () => undefined }
)

/** Services for making spans, if a run is observed. */
export interface Tracing {
  readonly context: Context.Context<never>
  readonly listener: Listener | undefined
  readonly run: Run | undefined
}

/** Returns the services for making spans, or `undefined` if nothing observes the run. */
export const tracing = <R>(services: Context.Context<R>): Tracing | undefined => {
  const context = services as Context.Context<never>
  const listener = Context.get(context, CurrentListener)
  const isObserved = listener !== undefined ||
    Context.getOrUndefined(context, Tracer.Tracer) !== undefined ||
    Context.getOrUndefined(context, Tracer.ParentSpan) !== undefined
  return isObserved ? { context, listener, run: Context.get(context, CurrentRun) } : undefined
}

/** Adds attributes to the span of the call whose handler runs this, regardless of spans opened within. */
export const annotateCall = (attributes: Attributes): Effect.Effect<void> =>
  Effect.map(CurrentCall, (call) => call?.set(attributes))

/** Attribute value for any text outside the known values. */
export const other = "_OTHER"

/** Returns an id or a name from a provider or a model if it is one word, otherwise `undefined`. */
const wordOf = (text: string | null | undefined): string | undefined =>
  typeof text === "string" && /^[!-~]{1,256}$/.test(text) ? text : undefined

/** Returns the call id attribute, if the id is one word. */
export const callId = (id: string): Record<string, string> => {
  const word = wordOf(id)
  return word === undefined ? {} : { [names.toolCall]: word }
}

const ours: ReadonlySet<unknown> = new Set(["AdapterError", "ToolError", "EngineError", "ValidationError"])

/** Returns an error's code: the reason of Heddle's own errors, otherwise the class name, and never its text. */
const codeOf = (error: unknown): string => {
  if (!Json.isObject(error)) return other
  const { _tag, name, reason } = error
  if (ours.has(_tag) && typeof reason === "string") return reason
  const own = Json.nameOf({ _tag, name })
  return own === "Error" ? other : own
}

/** Returns an outcome tag in attribute style: `AskUser` as `ask_user`. */
const outcomeName = (tag: string): string => tag.replace(/\B[A-Z]/g, (letter) => `_${letter}`).toLowerCase()

/** End of an operation. `code` marks a failure; a cut operation has neither failed nor succeeded. */
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
  /** Span creation: at the start for `"all"`, at the end for `"failed"` and only on failure, never for `"none"`. */
  readonly made?: Listener["toolSpans"] | undefined
}

/** Calls a tracer or a listener. Runs do not depend on these: their errors are dropped. */
const told = (tell: () => void): void => void Result.try(tell)

/** Most events per span, OpenTelemetry's default limit. */
const mostEvents = 128

/** One operation with its span. It ends once. */
export class Operation<F extends Facts = Facts> {
  readonly facts: F
  readonly tracing: Tracing
  readonly startedAt: bigint
  endedAt: bigint | undefined
  code: string | undefined
  span: Tracer.Span | undefined
  private readonly plan: Plan
  private readonly clock: Clock.Clock
  /** Attributes so far. */
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

  /** Duration in seconds, once ended. */
  get seconds(): number {
    return Number((this.endedAt ?? this.startedAt) - this.startedAt) / 1e9
  }

  /** Opens the span with the operation's start time, which may have passed. */
  private open(): void {
    const { attributes, clock, plan: { links, name, spanKind = "internal" }, startedAt, tracing: { context } } = this
    const atStart = Object.create(clock, { currentTimeNanosUnsafe: { value: () => startedAt } }) as Clock.Clock
    told(() => {
      this.span = Effect.runSyncWith(Context.add(context, Clock.Clock, atStart))(
        Effect.makeSpan(name, { kind: spanKind, attributes, ...(links === undefined ? {} : { links }) })
      )
    })
  }

  /** Adds attributes, skipping `undefined` and `null`. */
  set(attributes: Attributes): void {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null) continue
      this.attributes[name] = value
      told(() => this.span?.attribute(name, value))
    }
  }

  /** Adds an event happening now, up to a limit: a call may be retried endlessly. */
  event(name: string, attributes: Record<string, unknown>): void {
    if (this.eventCount++ >= mostEvents) return
    const at = this.clock.currentTimeNanosUnsafe()
    const { span } = this
    if (span === undefined) this.events.push([name, at, attributes])
    else told(() => span.event(name, at, attributes))
  }

  /** Ends the operation, unless it has already ended. */
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

  /** Runs an effect under the span. */
  over<A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    const { span } = this
    return span === undefined ? effect : Effect.withParentSpan(effect, span) as Effect.Effect<A, E, R>
  }

  /** Returns the services for nested spans. */
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

/** Request options named by spans. */
interface Sampling {
  readonly model?: string | undefined
  readonly temperature?: number | undefined
  readonly maxTokens?: number | undefined
  readonly responseFormat?: { readonly type: string } | undefined
  readonly options?: Readonly<Record<string, unknown>>
}

/** Adapter facts named by spans. Public as part of `Adapter.Service`. */
export interface Described {
  /**
   * Provider name in OpenTelemetry's spelling: `openai`, `anthropic`, `gcp.gemini`. Used in spans and metrics. Defaults
   * to `_OTHER`.
   */
  readonly provider?: string
  /** Model for requests without a model name, in spans and metrics. Left out by default. */
  readonly model?: string
  /** Operation in span names. Defaults to `"chat"`. */
  readonly operation?: "chat" | "generate_content"
  /** Server receiving the requests, for spans and metrics. Left out by default. */
  readonly server?: {
    /** Host name, without a path or a query. */
    readonly address: string
    /** Port. Defaults to the protocol's own. */
    readonly port?: number
  }
}

/** Returns a number or text from a provider's own option, under any of its names. */
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
 * The agent of a run, for its span and metrics.
 *
 * @category options
 */
export interface Agent {
  /** Agent name. It is part of the run's span name, so keep the number of names small. */
  readonly name: string
  /** Agent id. None by default. */
  readonly id?: string
  /** Agent description. None by default. */
  readonly description?: string
  /** Agent version. None by default. */
  readonly version?: string
}

/** Span ids, as kept by a journal. */
export interface SpanIds {
  readonly traceId: string
  readonly spanId: string
}

/** A run, as described by its span. */
interface RunPlan {
  readonly requestId: string
  readonly sessionId: string | null
  readonly agent: Agent | undefined
  readonly adapter: Described | undefined
  readonly sampling: Sampling
  readonly facts: Pick<RunFacts, "system" | "input" | "tools">
  /** The previous run's span, which this run continues. */
  readonly previous?: SpanIds | undefined
}

/** The span of a run. */
export class Run {
  readonly operation: Operation<RunFacts>
  readonly requestId: string
  readonly agent: Agent | undefined
  /** Returns the run's usage so far. */
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

  /** Span ids, for the journal. */
  get ids(): SpanIds | undefined {
    const { span } = this.operation
    return span === undefined || !span.sampled ? undefined : { traceId: span.traceId, spanId: span.spanId }
  }

  /** Returns the services for nested spans, based on the reading fiber's services. */
  tracing<R>(services: Context.Context<R>): Tracing {
    const context = services as Context.Context<never>
    const { span, tracing: { listener } } = this.operation
    return {
      context: span === undefined ? context : Context.add(context, Tracer.ParentSpan, span),
      listener,
      run: this
    }
  }

  /**
   * Reads the events of a session's run under its span, for calls from an earlier turn and the run itself.
   */
  reading<A, E, R>(events: Stream.Stream<A, E, R>): Stream.Stream<A, E, R> {
    const { span } = this.operation
    const within = Stream.provideService(events, CurrentRun, this)
    return span === undefined
      ? within
      : Stream.provideService(within, Tracer.ParentSpan, span) as Stream.Stream<A, E, R>
  }

  /** Notes the run's outcome, and the error of a failed run. The latest outcome counts. */
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

  /** Ends the span with the outcome, or by how the run's scope closed: it failed, or its reader left. */
  end(exit: Exit.Exit<unknown, unknown>): void {
    const { facts, facts: { response } } = this.operation
    const isBroken = Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)
    const ending: Ending = isBroken
      ? { code: codeOf(Cause.squash(exit.cause)), outcome: "failed" }
      : this.ending ?? { isCut: true, outcome: "interrupted" }
    // A viewer adding up its spans would count each token twice.
    if (this.operation.tracing.listener?.addsUp !== true) this.operation.set(tokens(this.usage()))
    if (facts.response !== undefined && response) this.operation.set(finishReasons(response))
    this.operation.end(ending)
  }
}

/** Opens the span of an observed run. It lasts as long as the scope. */
export const openRun = (
  tracing: Tracing | undefined,
  scope: Scope.Scope,
  plan: () => RunPlan
): Effect.Effect<Run | undefined> => {
  if (tracing === undefined) return Effect.succeed(undefined)
  return Effect.suspend(() => {
    const described = plan()
    const around = tracing.run
    // A session's run already has its span, around calls from an earlier turn.
    if (around?.requestId === described.requestId) return Effect.succeed(around)
    const run = new Run(tracing, described)
    return Effect.as(Scope.addFinalizerExit(scope, (exit) => Effect.sync(() => run.end(exit))), run)
  })
}

// The step and its model call.

/** A model call, as described by its span. */
interface InferencePlan {
  readonly adapter: Described
  readonly sampling: Sampling
  readonly sessionId: string | null
  readonly request: InferenceFacts["request"]
  /** Attributes added by rules. */
  readonly attributes?: Readonly<Record<string, string | number>> | undefined
}

/** Spans of a step: its own, and its model call's, including repeated requests. */
export class Step {
  private readonly operation: Operation
  private readonly run: Run | undefined
  private inference: Operation<InferenceFacts> | undefined
  /** Server and model of the open model call, and their name. */
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

  /** Runs an effect under the step's span. */
  readonly over = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.provideService(this.operation.over(effect), CurrentRun, this.run)

  /**
   * Begins the model call if needed, and reads its reply under the span. Another server or model gets a span of its
   * own.
   */
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

  /** Reads a reply under the model call's span, and measures its chunks. */
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

  /** Notes that the reply broke and is requested again. */
  askedAgain(error: unknown): void {
    this.brokenBy = error
    this.inference?.event(names.retry, { [names.error]: codeOf(error), [names.attempt]: ++this.retries + 1 })
  }

  /** Ends the model call with its reply so far. */
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

  /** Makes the call spans for a turn failing as a whole because of unknown tools. */
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

  /** Ends the step's span, and a model call's if still open. */
  end(exit: Exit.Exit<unknown, unknown>): void {
    this.inference?.end({ isCut: true, outcome: "interrupted" })
    const isBroken = Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)
    const code = this.operation.code ?? (isBroken ? codeOf(Cause.squash(exit.cause)) : undefined)
    this.operation.end({ code, isCut: Exit.isFailure(exit) && !isBroken })
  }
}

// The calls.

/** Ending of a call that did not run, although nothing was wrong with the call. */
export const notRun = { code: "cancelled", outcome: "not_run" } as const

/** A call, as described by its span. */
interface CallPlan {
  readonly call: Message.ToolCall
  /** `true` if the run has a tool with the call's name. A model may invent any other name, with any text. */
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

/** A call's start: its queueing time, and the number of its first attempt here. */
interface Start {
  readonly queuedMillis: number
  readonly isEarly: boolean
  readonly attempt: number
}

/** A call's span, from its handler's start to its end. */
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

  /** Runs the handler under the span. Runs started by the handler have spans of their own. */
  over<A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return this.operation.over(effect).pipe(
      Effect.provideService(CurrentCall, this.operation),
      Effect.provideService(CurrentRun, undefined)
    )
  }

  /** Notes a failed attempt's code, with another attempt following. */
  retried(code: string, attempt: number): void {
    this.operation.set({ [names.attempts]: attempt })
    this.operation.event(names.retry, { [names.error]: code, [names.attempt]: attempt })
  }

  end(ending: Ending & { readonly result?: unknown }): void {
    this.operation.facts.result = ending.result
    this.operation.end(ending)
  }
}

/** Makes a zero-length span for a call that did not start. */
export const unstarted = (tracing: Tracing, plan: CallPlan, ending: Ending & { readonly result?: unknown }): void => {
  if (tracing.run !== undefined) tracing.run.operation.facts.toolCalls++
  const facts: ToolFacts = { kind: "execute_tool", call: plan.call, result: ending.result }
  const operation = new Operation(tracing, facts, callPlan(tracing, plan, {}))
  operation.end(ending, operation.startedAt)
}

/** Adds a retry event to the current span: a model call's. */
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

/** Adds attributes to the current span. */
export const annotate = (attributes: Record<string, unknown>): Effect.Effect<void> =>
  Effect.catchDefect(Effect.annotateCurrentSpan(attributes), () => Effect.void)

/** Runs a request under its own span. The caller keeps secrets out of the attributes. */
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

/** Logs a message for the operator. Runs do not depend on their loggers: a throwing logger changes nothing. */
export const logged = (record: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.catchDefect(record, () => Effect.void)

/**
 * Logs a warning with the error's name. The error text may hold user data and is logged at debug level only. The caller
 * sets the other attributes.
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
