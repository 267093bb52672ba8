/**
 * The seam to a model: one request in, one stream of events out. An adapter owns its connection through the stream's
 * scope, so that closing the stream closes the connection.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type * as Types from "effect/Types"
import type * as Event from "./Event.ts"
import * as Answers from "./internal/answer/answer.ts"
import * as Settings from "./internal/ask/options.ts"
import * as Requests from "./internal/ask/request.ts"
import { checkNames, type NamesOf } from "./internal/declare/schema.ts"
import * as ToolOptions from "./internal/declare/toolOptions.ts"
import * as Values from "./internal/declare/values.ts"
import * as EventJson from "./internal/fold/eventJson.ts"
import * as Fold from "./internal/fold/fold.ts"
import * as Outcomes from "./internal/fold/runOutcome.ts"
import * as Json from "./internal/json.ts"
import type * as Telemetry from "./internal/telemetry.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export type { Asker, Attempt, ResponseFormat, ToolChoice } from "./internal/ask/request.ts"

/**
 * One model call: what concerns the model, and the run that makes it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Request extends Requests.Template {
  /** The conversation, with the system message in front. */
  readonly messages: ReadonlyArray<Message.Message>
  /**
   * The run that makes the request, for an adapter that counts, caches or records by it. No adapter sends it to a
   * provider. Left out of a request that no run makes, such as that of {@link classify}.
   */
  readonly run?: Requests.Asker
}

const retryable: ReadonlyArray<string> = ["rate_limited", "provider_unavailable", "timeout", "network_error"]

/**
 * An error between Heddle and the model.
 *
 * @category errors
 * @since 0.1.0
 */
export class AdapterError extends Schema.TaggedError<AdapterError>("heddle/Adapter/AdapterError")("AdapterError", {
  /**
   * The kind of error. `quota_exceeded` is a limit that waiting does not lift: the money or the plan is used up, which
   * providers report like a rate limit.
   */
  reason: Schema.Literals([
    "rate_limited",
    "quota_exceeded",
    "authentication_failed",
    "invalid_request",
    "provider_unavailable",
    "context_length_exceeded",
    "content_filter",
    "timeout",
    "network_error",
    "malformed_response",
    "unsupported_feature",
    "no_scripted_response",
    "unknown"
  ]),
  /** The message of the provider or of the connection. */
  detail: Schema.optionalKey(Schema.String),
  /** The name of the provider. */
  provider: Schema.optionalKey(Schema.String),
  /** The HTTP status of the answer. */
  status: Schema.optionalKey(Schema.Int),
  /** The time that the provider asks to wait, in milliseconds. */
  retryAfterMillis: Schema.optionalKey(Schema.Finite),
  /** The provider's id of the request. */
  requestId: Schema.optionalKey(Schema.String),
  /** The error that it was made of: an error of the connection, or a defect. */
  cause: Schema.optionalKey(Json.Opaque),
  /** Further data that the adapter has about it. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.provider === undefined ? "adapter error" : `adapter error (${this.provider})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }

  /**
   * Converts an error to an adapter's: an `AdapterError` as it is; anything else, such as a defect, as the `cause` of
   * one with the reason `unknown`.
   */
  static from(error: unknown): AdapterError {
    return error instanceof AdapterError
      ? error
      : new AdapterError({ reason: "unknown", detail: Json.render(error), cause: error })
  }

  /** `true` if the same request may succeed later. */
  get isRetryable(): boolean {
    return retryable.includes(this.reason)
  }
}

Json.addError("AdapterError", AdapterError)

/**
 * An adapter.
 *
 * @category services
 * @since 0.1.0
 */
export interface Service extends Telemetry.Described {
  /** Sends the request and emits the reply, as {@link Adapter} describes. Nothing is sent before the first pull. */
  readonly stream: (request: Request) => Stream.Stream<Event.AdapterEvent, AdapterError>
  /** The adapters that `prepareStep` may choose, by their names: see {@link named}. None by default. */
  readonly named?: ReadonlyMap<string, Service>
  /** The adapters that are asked in turn: see {@link fallback}. None by default. */
  readonly candidates?: ReadonlyArray<Candidate>
  /** The tokens that a request and its reply may have together. Not known by default. */
  readonly contextWindow?: number
  /** The ways in which it can ask for a typed answer (`Output`). None but a tool by default. */
  readonly output?: {
    /** The requests that can have a JSON Schema for the answer: all, those without tools, or none. */
    readonly native: "always" | "withoutTools" | "never"
    /** `true` if the model can be made to call one tool, by its name. */
    readonly forced: boolean
  }
}

/**
 * A failure of a {@link Candidate} behind which another one was asked. The `metadata` of an {@link AdapterError} lists
 * them under `tried`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Tried {
  /** The name of the candidate. */
  readonly name: string
  /** The reason of its error. */
  readonly reason: AdapterError["reason"]
  /** The message of its error, at most 500 characters of it. */
  readonly detail?: string
}

/**
 * An adapter of a {@link fallback}.
 *
 * @category models
 * @since 0.1.0
 */
export interface Candidate {
  /** The name, for events, notes and errors. */
  readonly name: string
  /** The adapter. */
  readonly adapter: Service
  /** Returns the failures before a request, with its own one. */
  readonly tried: (error: AdapterError, before: ReadonlyArray<Tried>) => ReadonlyArray<Tried>
  /** Returns its adapter behind others that failed: a failure of that one has those in `metadata.tried`. */
  readonly behind: (adapter: Service, tried: ReadonlyArray<Tried>) => Service
  /** Changes a request to that of the candidate: its model, and the bounds of its attempts. */
  readonly template: <T extends Requests.Template>(template: T) => T
  /** Returns the candidate that is asked behind an error that came before anything was said, if one is. */
  readonly next: (error: AdapterError) => Candidate | undefined
}

/**
 * The service that reaches a model. It has no default: provide one with a layer.
 *
 * **Details**
 *
 * Nothing happens before the first pull. The stream starts with `MessageStarted` and ends with `MessageCompleted`;
 * `TextCompleted` repeats the whole text, `ToolCallCompleted` means that a call's arguments are final. A failure before
 * the first event fails the stream; one after it fails the stream too, and the step turns it into an `Error` event. A
 * defect, or an element that is no event, counts as a failure: before the first event of a run it is an `AdapterError`
 * with the reason `unknown` and the defect as its `cause`; later the run ends as `Failed` with the defect, and keeps
 * its steps. When the stream's scope closes, the connection is closed.
 *
 * @category services
 * @since 0.1.0
 */
export class Adapter extends Context.Service<Adapter, Service>()("heddle/Adapter") {}

/**
 * A layer from an adapter.
 *
 * **Example** (An adapter for a test)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Chat, Message } from "heddle"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const parrot = Adapter.layer({
 *   stream: () =>
 *     Stream.make(
 *       { _tag: "MessageStarted", message: Message.assistant("") },
 *       { _tag: "TextDelta", id: null, delta: "Hello" },
 *       { _tag: "TextCompleted", id: null, text: "Hello" },
 *       { _tag: "MessageCompleted", message: Message.assistant("Hello"), finishReason: "stop" }
 *     )
 * })
 * const result = await Effect.runPromise(Chat.run("Say hello").pipe(Effect.provide(parrot)))
 *
 * result.finalResponse?.outputText // => "Hello"
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const layer = (service: Service): Layer.Layer<Adapter> => Layer.succeed(Adapter, service)

/**
 * A layer that changes the adapter in the context: `change` is given the adapter and returns the one that runs use.
 * Each adapter of {@link named} and each candidate of {@link fallback} is changed. `request.run` says which run makes a
 * request, also where runs of handlers use the same adapter.
 *
 * **Example** (Counting the requests of each run)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Chat } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 *
 * const asked: Array<string> = []
 * const counted = Adapter.map((adapter) => ({
 *   ...adapter,
 *   stream: (request) => {
 *     asked.push(`${request.run?.requestId}, step ${request.run?.stepIndex}`)
 *     return adapter.stream(request)
 *   }
 * }))
 * const model = counted.pipe(Layer.provide(Script.layer([[Script.text("Hello"), Script.finish("stop")]])))
 * await Effect.runPromise(Chat.run("Hi", { requestId: "r1" }).pipe(Effect.provide(model)))
 *
 * asked // => ["r1, step 0"]
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const map = (change: (adapter: Service) => Service): Layer.Layer<Adapter, never, Adapter> =>
  Layer.effect(Adapter, Adapter.useSync((adapter) => Requests.changed(adapter, change)))

/** Builds layers of adapters. One memo map: a layer that stands there twice is built once. */
const built = (
  layers: ReadonlyArray<Layer.Layer<Adapter, any, any>>
): Effect.Effect<ReadonlyArray<Service>, any, any> =>
  Effect.gen(function*() {
    const memoMap = Layer.CurrentMemoMap.forkOrCreate(yield* Effect.context<never>())
    const scope = yield* Effect.scope
    return yield* Effect.forEach(layers, (layer) =>
      Effect.map(Layer.buildWithMemoMap(layer, memoMap, scope), (context) => Context.get(context, Adapter)))
  })

/**
 * A layer of several adapters. Runs use the first. `prepareStep` chooses another for a step, by its name.
 *
 * **Details**
 *
 * All layers are built with this one, once each. It is a defect to give none.
 *
 * **Example** (Another model from the second step on)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Chat, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const clock = Tool.make("clock", { parameters: {}, handler: () => Effect.succeed("noon") })
 * const models = Adapter.named({
 *   fast: Script.layer([[Script.toolCall("c0", "clock"), Script.finish("tool_calls")]]),
 *   strong: Script.layer([[Script.text("It is noon."), Script.finish("stop")]])
 * })
 * const run = Chat.run("What time is it?", {
 *   tools: [clock],
 *   prepareStep: ({ stepIndex }) => stepIndex === 0 ? {} : { adapter: "strong" }
 * })
 * const result = await Effect.runPromise(Effect.provide(run, models))
 *
 * result.finalResponse?.outputText // => "It is noon."
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const named = <const Layers extends { readonly [name: string]: Layer.Layer<Adapter, any, any> }>(
  layers: Layers
): Layer.Layer<Adapter, Layer.Error<Layers[keyof Layers]>, Layer.Services<Layers[keyof Layers]>> => {
  checkNames("Adapter.named", { layers }, { layers: Values.recordOf(Values.layer, "layers of adapters") })
  const entries = Object.entries(layers)
  if (entries.length === 0) throw new TypeError("Adapter.named must have at least one layer: the first is the default")
  return Layer.effect(
    Adapter,
    Effect.map(
      built(entries.map(([, layer]) => layer)),
      (services) => Requests.named(services.map((service, index) => [entries[index]?.[0] as string, service] as const))
    )
  )
}

/**
 * A candidate of a {@link fallback}, as a program gives it.
 *
 * @category models
 * @since 0.1.0
 */
export interface FallbackOptions<E = never, R = never> {
  /** The layer of its adapter. */
  readonly layer: Layer.Layer<Adapter, E, R>
  /** The name, which no other candidate has. The adapter's model by default, with the provider where that is taken. */
  readonly name?: string | undefined
  /** The model. That of the request by default for the first candidate, and the adapter's for the others. */
  readonly model?: string | undefined
  /**
   * Returns `true` for an error behind which the next candidate is asked. By default: `rate_limited`, `quota_exceeded`,
   * `provider_unavailable`, `timeout`, `network_error`; and `context_length_exceeded`, where a later candidate has a
   * larger `contextWindow`, which is asked then.
   */
  readonly when?: ((error: AdapterError) => boolean) | undefined
  /** The time until the reply says something; a number is milliseconds. Not bounded by default. */
  readonly within?: Duration.Input | undefined
  /**
   * The number of times that a failed request is tried again. 0 by default; the adapter's own for the last candidate.
   */
  readonly retries?: number | undefined
}

const fallbackOptions = Values.nullable(
  {
    layer: Values.layer,
    name: Values.name,
    model: Values.name,
    when: Values.fn,
    within: Values.duration,
    retries: Values.whole
  } satisfies NamesOf<FallbackOptions>
)

const passing: ReadonlyArray<string> = [
  "rate_limited",
  "quota_exceeded",
  "provider_unavailable",
  "timeout",
  "network_error"
]

/** The longest wait for a server's pause before another candidate is asked. */
const patienceMillis = 5_000

const longestDetail = 500

const withTried = (error: AdapterError, tried: ReadonlyArray<Tried>): AdapterError =>
  new AdapterError({ ...error, metadata: { ...error.metadata, tried } })

/** Asks the function of a candidate whether the next one is asked. */
const isPassing = (when: (error: AdapterError) => unknown, error: AdapterError): boolean => {
  let verdict: unknown
  try {
    verdict = when(error)
  } catch (cause) {
    throw new Error("Adapter.fallback: when threw an error", { cause })
  }
  if (typeof verdict === "boolean") return verdict
  ToolOptions.isPromise(verdict)
  throw new TypeError(`Adapter.fallback: when must return true or false; got: ${Json.render(verdict)}`)
}

/** Tells whether an event says something: text, reasoning or a call. */
const says = ({ _tag }: Event.AdapterEvent): boolean => _tag !== "MessageStarted" && _tag !== "RawChunk"

/** Bounds the time until a reply says something. */
const bounded = (name: string, within: Duration.Duration, service: Service): Service => ({
  ...service,
  stream: (request) =>
    Stream.suspend(() => {
      let hasSaid = false
      const late = Effect.flatMap(Effect.sleep(within), () => {
        if (hasSaid) return Effect.never
        const detail = `${name} said nothing within ${Duration.format(within)}`
        return Effect.fail(new AdapterError({ reason: "timeout", detail }))
      })
      const read = Stream.tap(service.stream(request), (event) => Effect.sync(() => void (hasSaid ||= says(event))))
      return Stream.interruptWhen(read, late)
    })
})

/** Names the provider in the replies of an adapter. */
const naming = (service: Service): Service => {
  const { provider } = service
  return provider === undefined ? service : {
    ...service,
    stream: (request) =>
      Stream.map(
        service.stream(request),
        (event) => event._tag === "MessageCompleted" ? { ...event, provider } : event
      )
  }
}

const namesOf = (given: ReadonlyArray<readonly [FallbackOptions<any, any>, Service]>): ReadonlyArray<string> => {
  const names = new Set<string>()
  return given.map(([{ model = undefined, name }, service], index) => {
    if (typeof name === "string") {
      if (names.has(name)) throw new TypeError(`Adapter.fallback: two candidates are named ${JSON.stringify(name)}`)
      names.add(name)
      return name
    }
    const plain = model ?? service.model ?? service.provider ?? `candidate ${index + 1}`
    const own = [plain, `${service.provider}/${plain}`].find((one) => !names.has(one)) ?? `${plain} (${index + 1})`
    names.add(own)
    return own
  })
}

const candidatesOf = (
  given: ReadonlyArray<readonly [FallbackOptions<any, any>, Service]>
): readonly [Candidate, ...ReadonlyArray<Candidate>] => {
  const names = namesOf(given)
  const candidates = given.map(([options, service], index): Candidate => {
    const { model, retries, when, within } = options
    const name = names[index] as string
    const isLast = index === given.length - 1
    const limit = within === undefined || within === null ? undefined : Values.readDuration(within)
    const attempt: Types.Mutable<Requests.Attempt> = isLast ? {} : { retries: 0, patienceMillis }
    if (typeof retries === "number") attempt.retries = retries
    const adapter = naming(limit === undefined ? service : bounded(name, limit, service))
    return {
      name,
      adapter,
      tried: ({ detail, reason }, before) => [
        ...before,
        { name, reason, ...(detail === undefined ? {} : { detail: detail.slice(0, longestDetail) }) }
      ],
      behind: (adapter, tried) =>
        tried.length === 0 ? adapter : {
          ...adapter,
          stream: (request) => Stream.mapError(adapter.stream(request), (error) => withTried(error, tried))
        },
      template: ({ model: wanted, ...template }) => ({
        ...template as any,
        ...(typeof model === "string" ? { model } : index === 0 && wanted !== undefined ? { model: wanted } : {}),
        ...(Object.keys(attempt).length === 0 ? {} : { attempt })
      }),
      next: (error) => {
        const later = candidates.slice(index + 1)
        if (when !== undefined && when !== null) return isPassing(when, error) ? later[0] : undefined
        if (error.reason !== "context_length_exceeded") return passing.includes(error.reason) ? later[0] : undefined
        const { contextWindow = Infinity } = service
        return later.find(({ adapter }) => (adapter.contextWindow ?? 0) > contextWindow)
      }
    }
  })
  return candidates as unknown as readonly [Candidate, ...ReadonlyArray<Candidate>]
}

/** Reads a reply from a candidate, or from the next one where it fails before it has said something. */
const asking = (
  candidate: Candidate,
  request: Request,
  tried: ReadonlyArray<Tried>
): Stream.Stream<Event.AdapterEvent, AdapterError> =>
  Stream.suspend(() => {
    let unsaid: Array<Event.AdapterEvent> | undefined = []
    const events = candidate.behind(candidate.adapter, tried).stream(candidate.template(request))
    const said = Stream.flattenIterable(Stream.map(events, (event): ReadonlyArray<Event.AdapterEvent> => {
      if (unsaid === undefined) return [event]
      unsaid.push(event)
      if (!says(event)) return []
      const all = unsaid
      unsaid = undefined
      return all
    }))
    const rest = Stream.suspend(() => Stream.fromIterable(unsaid ?? []))
    return Stream.catch(Stream.concat(said, rest), (error) => {
      const next = unsaid === undefined ? undefined : candidate.next(error)
      if (next === undefined) {
        return Stream.concat(Stream.fromIterable(unsaid ?? []), Stream.fail(error))
      }
      // The cost of a failed request counts.
      const spent = (unsaid ?? []).filter((event) => event._tag === "RawChunk" && EventJson.isUsage(event))
      return Stream.concat(
        Stream.fromIterable(spent),
        asking(next, request, candidate.tried(error, tried))
      )
    })
  })

/**
 * A layer of adapters that are asked in turn: the next one where one fails before it has said something.
 *
 * **Details**
 *
 * A reply has said something with its first text, reasoning or call. From then on a failure breaks the reply, as with
 * one adapter. Each candidate but the last is asked once and waits for a server's pause for at most 5 s. A run stays
 * with the candidate that it has come to, also after a crash; a run that a handler starts begins with the first. Runs
 * show each switch as `ModelSwitched`. Where all fail, the error is that of the last, and `metadata.tried` has the
 * others. To give no candidate, or two of one name, is a defect.
 *
 * **Example** (A second model while the first is down)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Chat } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const down = Script.layer([[Script.preflightError("provider_unavailable")]])
 * const second = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const models = Adapter.fallback([{ layer: down, name: "first" }, { layer: second, name: "second" }])
 * const result = await Effect.runPromise(Chat.run("Hi").pipe(Effect.provide(models)))
 *
 * result.finalResponse?.outputText // => "Hello"
 * ```
 *
 * @category layers
 * @since 0.1.0
 */
export const fallback = <const Given extends ReadonlyArray<FallbackOptions<any, any>>>(
  candidates: Given
): Layer.Layer<
  Adapter,
  Layer.Error<Given[number]["layer"]>,
  Layer.Services<Given[number]["layer"]>
> => {
  if (!Array.isArray(candidates) || candidates.length === 0) {
    throw new TypeError("Adapter.fallback must have at least one candidate: { layer }")
  }
  for (const candidate of candidates) {
    checkNames("Adapter.fallback", candidate, fallbackOptions)
    if (candidate?.layer === undefined) throw new TypeError("Adapter.fallback: each candidate needs a layer")
  }
  const layers = candidates.map(({ layer }) => layer)
  return Layer.effect(
    Adapter,
    Effect.map(built(layers), (services) => {
      const [first, ...others] = candidatesOf(
        services.map((service, index) => [candidates[index] as FallbackOptions, service] as const)
      )
      return {
        ...first.adapter,
        candidates: [first, ...others],
        stream: (request) => asking(first, request, [])
      }
    })
  )
}

export type { Classification, Diagnostic } from "./internal/fold/runOutcome.ts"

/**
 * Options of a request to the model, and the policy that its reply is read by.
 *
 * @category models
 * @since 0.1.0
 */
export interface ClassifyOptions extends Requests.ModelOptions {
  /** The tools that the model is offered, besides those of `Policy.Defaults`. None of them is run. */
  readonly tools?: ReadonlyArray<Tool.Any>
  /** The policy by which the reply is read. The application's by default, else `Policy.standard`. */
  readonly policy?: Policy.Policy
}

const unusable = (errors: ReadonlyArray<Thread.Issue>): AdapterError =>
  new AdapterError({
    reason: "invalid_request",
    detail: errors.map(({ path, reason }) => `${path}: ${reason}`).join("; ")
  })

/** The request of one model call, or why there is none. */
const requestOf = (
  input: Thread.Input,
  options: ClassifyOptions,
  defaults: Policy.Defaults,
  adapter: Service
): Result.Result<Requests.Single, AdapterError> =>
  Result.flatMap(
    Result.mapError(Thread.validate(input), ({ errors }) => unusable(errors)),
    ({ messages }) => {
      const given = options.tools ?? []
      const { tools } = ToolOptions.offered(
        ToolOptions.toolbox(defaults.tools ?? [], given)
      )
      const template = Requests.template(options, defaults, tools)
      const issues = [
        ...Requests.pairingIssues(messages),
        ...Requests.issues(messages, template, given, tools)
      ]
      if (issues.length > 0) return Result.fail(unusable(issues))
      return Result.succeed({ adapter, system: options.system, template, tools, messages })
    }
  )

/**
 * One model call, and whether its reply asks for tools or is the final answer. Nothing is run: `tools` are only
 * offered.
 *
 * **Details**
 *
 * The reply's calls decide, not the provider's finish reason, unless the policy says otherwise. Calls that the provider
 * runs itself are listed and ask for nothing. A call whose arguments were lost is marked, and reported in `diagnostics`
 * and in one warning, without the text of its arguments. A reply that breaks fails; an adapter that dies fails with the
 * reason `unknown` and the defect as its `cause`.
 *
 * **Example** (Asking without acting)
 *
 * ```ts import.meta.vitest
 * import { Adapter, Tool } from "heddle"
 * import { Script } from "heddle/testing"
 * import * as Effect from "effect/Effect"
 *
 * const ping = Tool.make("ping", { parameters: {}, handler: () => Effect.die("is not run") })
 * const model = Script.layer([[Script.toolCall("c0", "ping"), Script.finish("tool_calls")]])
 * const reply = await Effect.runPromise(Adapter.classify("go", { tools: [ping] }).pipe(Effect.provide(model)))
 *
 * reply.type // => "tool_calls"
 * reply.toolCalls.map((call) => call.name) // => ["ping"]
 * ```
 *
 * @category running
 * @since 0.1.0
 */
export const classify = (
  input: Thread.Input,
  options: ClassifyOptions = {}
): Effect.Effect<Outcomes.Classification, AdapterError, Adapter> =>
  Effect.gen(function*() {
    checkNames("Adapter.classify", options, Settings.runOptions)
    const adapter = yield* Adapter
    const defaults = yield* Policy.Defaults
    const single = yield* Effect.fromResult(requestOf(input, options, defaults, adapter))
    const policy = options.policy ?? defaults.policy ?? Policy.standard
    let state = Fold.initial(policy)
    const read = ({ adapter, messages, system, template }: Requests.Single) =>
      Stream.suspend(() => {
        state = Fold.initial(policy)
        return (adapter as Service).stream({ ...template, messages: Requests.messages(system, messages) })
      }).pipe(
        Stream.runForEach((event) => Effect.sync(() => Outcomes.heard(state, event))),
        Effect.catchCause((cause) => Effect.sync(() => void (state.error ??= { value: Cause.squash(cause) }))),
        Effect.map(() => ({
          error: state.error?.value,
          hasSaid: Fold.hasSaid(state),
          response: Fold.toResponse(state)
        }))
      )
    const govern = yield* Requests.CurrentGoverning
    yield* govern === undefined ?
      read(single) :
      Effect.mapError(govern(single, read), (outcome) => new AdapterError(Requests.refusedBy(outcome)))
    if (state.error !== undefined) return yield* AdapterError.from(state.error.value)
    return yield* Answers.warnedOfLost(Outcomes.classification(state))
  })
