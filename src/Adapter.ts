/**
 * The seam to a model: one request in, one event stream out. The stream's scope owns the connection: closing the stream
 * closes the connection.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
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
import * as Pulled from "./internal/loop/scopedPull.ts"
import type * as Telemetry from "./internal/telemetry.ts"
import type * as Message from "./Message.ts"
import * as Policy from "./Policy.ts"
import * as Thread from "./Thread.ts"
import type * as Tool from "./Tool.ts"

export type { Asker, Attempt, ResponseFormat, ToolChoice } from "./internal/ask/request.ts"

/**
 * One model call: everything concerning the model, and the run making the call.
 *
 * @category models
 */
export interface Request extends Requests.Template {
  /** The conversation, preceded by the system message. */
  readonly messages: ReadonlyArray<Message.Message>
  /**
   * The run making the request, for adapters keeping counts, caches or records per run. No adapter sends it to a
   * provider. Absent from requests outside a run, such as {@link classify}'s.
   */
  readonly run?: Requests.Asker
}

const retryable: ReadonlyArray<string> = ["rate_limited", "provider_unavailable", "timeout", "network_error"]

/**
 * An error between Heddle and the model.
 *
 * @category errors
 */
export class AdapterError extends Schema.TaggedError<AdapterError>("heddle/Adapter/AdapterError")("AdapterError", {
  /**
   * Error kind. Waiting does not lift `quota_exceeded`: the money or the plan is used up, which providers report like a
   * rate limit.
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
  /** Message from the provider or the connection. */
  detail: Schema.optionalKey(Schema.String),
  /** Provider name. */
  provider: Schema.optionalKey(Schema.String),
  /** HTTP status of the answer. */
  status: Schema.optionalKey(Schema.Int),
  /** Delay requested by the provider, in milliseconds. */
  retryAfterMillis: Schema.optionalKey(Schema.Finite),
  /** Request id assigned by the provider. */
  requestId: Schema.optionalKey(Schema.String),
  /** The original error: a connection error or a defect. */
  cause: Schema.optionalKey(Json.Opaque),
  /** Further data from the adapter. */
  metadata: Schema.optionalKey(Schema.Record(Schema.String, Json.Opaque))
}) {
  override get message(): string {
    const subject = this.provider === undefined ? "adapter error" : `adapter error (${this.provider})`
    return `${subject}: ${this.reason}${this.detail === undefined ? "" : `: ${this.detail}`}`
  }

  /**
   * Converts any error to an `AdapterError`. An `AdapterError` stays unchanged; anything else, such as a defect,
   * becomes the `cause` of an error with the reason `unknown`.
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
 */
export interface Service extends Telemetry.Described {
  /** Sends the request and emits the reply, as {@link Adapter} describes. Sends nothing before the first pull. */
  readonly stream: (request: Request) => Stream.Stream<Event.AdapterEvent, AdapterError>
  /** Adapters for `prepareStep` to choose from, by name: see {@link named}. None by default. */
  readonly named?: ReadonlyMap<string, Service>
  /** Adapters asked in turn: see {@link fallback}. None by default. */
  readonly candidates?: ReadonlyArray<Candidate>
  /** Maximum tokens of a request plus its reply. Unknown by default. */
  readonly contextWindow?: number
  /** Ways to ask for a typed answer (`Output`). Only through a tool by default. */
  readonly output?: {
    /** Requests able to carry a JSON Schema for the answer: all, those without tools, or none. */
    readonly native: "always" | "withoutTools" | "never"
    /** `true` if a request can force the model to call one tool, by name. */
    readonly forced: boolean
    /**
     * Returns `true` if the provider can hold the model to a schema. Otherwise the answer comes through a tool, and an
     * output with mode `"native"` or `"finalize"` is a defect. By default any schema.
     */
    readonly holds?: (schema: Json.JsonObject) => boolean
  }
}

/**
 * A failure of a {@link Candidate}, after which another candidate was asked. An {@link AdapterError} lists them in its
 * `metadata` under `tried`.
 *
 * @category models
 */
export interface Tried {
  /** Candidate name. */
  readonly name: string
  /** Error reason. */
  readonly reason: AdapterError["reason"]
  /** Error message, cut to 500 characters. */
  readonly detail?: string
}

/**
 * One adapter in a {@link fallback}.
 *
 * @category models
 */
export interface Candidate {
  /** Name for events, notes and errors. */
  readonly name: string
  /** The adapter. */
  readonly adapter: Service
  /** Appends this candidate's error to the failures before a request. */
  readonly tried: (error: AdapterError, before: ReadonlyArray<Tried>) => ReadonlyArray<Tried>
  /** Returns the adapter as asked after other failures: its errors list those in `metadata.tried`. */
  readonly behind: (adapter: Service, tried: ReadonlyArray<Tried>) => Service
  /** Adapts a request to the candidate: its model, and its attempt bounds. */
  readonly template: <T extends Requests.Template>(template: T) => T
  /** Returns the candidate to ask after an error at which the reply had said nothing yet, if any. */
  readonly next: (error: AdapterError) => Candidate | undefined
}

/**
 * The service reaching a model. It has no default: provide one with a layer.
 *
 * **Details**
 *
 * Nothing happens before the first pull. The stream starts with `MessageStarted` and ends with `MessageCompleted`;
 * `TextCompleted` repeats the whole text, and `ToolCallCompleted` makes a call's arguments final.
 *
 * Every failure fails the stream. After the first event, the step also turns the failure into an `Error` event. A
 * defect, or an element other than an event, counts as a failure: before a run's first event it is an `AdapterError`
 * with the reason `unknown` and the defect as its `cause`; later the run ends as `Failed` with the defect, and keeps
 * its steps. Closing the stream's scope closes the connection.
 *
 * @category services
 */
export class Adapter extends Context.Service<Adapter, Service>()("heddle/Adapter") {}

/**
 * Makes a layer from an adapter.
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
 */
export const layer = (service: Service): Layer.Layer<Adapter> => Layer.succeed(Adapter, service)

/**
 * Wraps the adapter in the context: runs use the adapter returned by `change`. The change also covers each adapter of
 * {@link named} and each {@link fallback} candidate. `request.run` names the run making a request, even if handlers'
 * runs share the adapter.
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
 */
export const map = (change: (adapter: Service) => Service): Layer.Layer<Adapter, never, Adapter> =>
  Layer.effect(Adapter, Adapter.useSync((adapter) => Requests.changed(adapter, change)))

/** Builds adapter layers with one memo map: a layer listed twice is built once. */
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
 * A layer of several adapters. Runs use the first. `prepareStep` chooses another for a step, by name.
 *
 * **Details**
 *
 * All layers are built with this layer, once each. An empty record is a defect.
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
 * A declared {@link fallback} candidate.
 *
 * @category models
 */
export interface FallbackOptions<E = never, R = never> {
  /** The adapter's layer. */
  readonly layer: Layer.Layer<Adapter, E, R>
  /**
   * Name, unique among the candidates. Defaults to the adapter's model, preceded by the provider if that name is taken.
   */
  readonly name?: string | undefined
  /** Model. By default the first candidate uses the request's model, and the others their adapter's. */
  readonly model?: string | undefined
  /**
   * Returns `true` for errors after which to ask the next candidate. By default: `rate_limited`, `quota_exceeded`,
   * `provider_unavailable`, `timeout`, `network_error`; also `context_length_exceeded`, if a later candidate has a
   * larger `contextWindow`, and then that candidate is asked.
   */
  readonly when?: ((error: AdapterError) => boolean) | undefined
  /**
   * Maximum time until the reply says something; a number is milliseconds. The reader's time between two pulls does not
   * count. Unbounded by default.
   */
  readonly within?: Duration.Input | undefined
  /** Number of retries for a failed request. 0 by default; for the last candidate, the adapter's own. */
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

/** Longest wait for a server's pause before asking another candidate. */
const patienceMillis = 5_000

const longestDetail = 500

const withTried = (error: AdapterError, tried: ReadonlyArray<Tried>): AdapterError =>
  new AdapterError({ ...error, metadata: { ...error.metadata, tried } })

/** Asks a candidate's `when` function whether to ask the next candidate. */
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

/** Returns a function hearing a reply event by event: it tells whether text, reasoning or a call came so far. */
const listener = (): (event: Event.AdapterEvent) => boolean => {
  const state = Fold.initial(Policy.standard)
  return (event) => {
    Outcomes.heard(state, event)
    return Fold.hasSaid(state)
  }
}

/** Bounds the time until a reply says something. The reader's time between two pulls does not count. */
const bounded = (name: string, within: Duration.Duration, service: Service): Service => ({
  ...service,
  stream: (request) =>
    Pulled.stream((scope) => {
      let left = Duration.toMillis(within)
      let isOver = false
      const says = listener()
      const late = Effect.suspend(() => {
        const detail = `${name} said nothing within ${Duration.format(within)}`
        return Effect.fail(new AdapterError({ reason: "timeout", detail }))
      })
      const timed = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E | AdapterError> =>
        Effect.flatMap(Clock.currentTimeMillis, (from) =>
          effect.pipe(
            Effect.timeoutOrElse({ duration: left, orElse: () => late }),
            Effect.tap(() => Effect.map(Clock.currentTimeMillis, (now) => void (left -= now - from)))
          ))
      return Effect.map(timed(Pulled.open(service.stream(request), scope)), (next) => (context) =>
        isOver ? next(context) : Effect.tap(timed(next(context)), (events) =>
          Effect.sync(() => {
            // A whole reply without a word is no silence.
            isOver = events.some((event) =>
              says(event) || event._tag === "MessageCompleted"
            )
          })))
    })
})

/** Adds the provider name to an adapter's replies. */
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

/** Reads a reply from a candidate, or from the next one if it fails before saying something. */
const asking = (
  candidate: Candidate,
  request: Request,
  tried: ReadonlyArray<Tried>
): Stream.Stream<Event.AdapterEvent, AdapterError> =>
  Stream.suspend(() => {
    let unsaid: Array<Event.AdapterEvent> | undefined = []
    const says = listener()
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
      // A failed request's cost counts.
      const spent = (unsaid ?? []).filter((event) => event._tag === "RawChunk" && EventJson.isUsage(event))
      return Stream.concat(
        Stream.fromIterable(spent),
        asking(next, request, candidate.tried(error, tried))
      )
    })
  })

/**
 * A layer of adapters asked in turn: if one fails before saying something, the next is asked.
 *
 * **Details**
 *
 * A reply has said something with its first text, reasoning or call. From then on a failure breaks the reply, as with
 * one adapter. By default each candidate except the last is asked once. With `retries`, it waits at most 5 s for a
 * server's pause. A run stays with its current candidate, even after a crash; runs started by handlers begin with the
 * first. Runs show each switch as `ModelSwitched`. If all fail, the error is the last candidate's, with the others in
 * `metadata.tried`. Steps cannot choose from a candidate's own {@link named}: put the fallback into `named` instead. An
 * empty list or two equal names are defects.
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
      // Names inside a candidate would lead past the other candidates.
      const { named: _, ...own } = first.adapter
      return {
        ...own,
        candidates: [first, ...others],
        stream: (request) => asking(first, request, [])
      }
    })
  )
}

export type { Classification, Diagnostic } from "./internal/fold/runOutcome.ts"

/**
 * Options for a model request, and the policy for reading its reply.
 *
 * @category models
 */
export interface ClassifyOptions extends Requests.ModelOptions {
  /** Tools offered to the model, in addition to those in `Policy.Defaults`. None of them runs. */
  readonly tools?: ReadonlyArray<Tool.Any>
  /** Policy for reading the reply. Defaults to the application's, else to `Policy.standard`. */
  readonly policy?: Policy.Policy
}

const unusable = (errors: ReadonlyArray<Thread.Issue>): AdapterError =>
  new AdapterError({
    reason: "invalid_request",
    detail: errors.map(({ path, reason }) => `${path}: ${reason}`).join("; ")
  })

/** Builds the request for one model call, or the error preventing that call. */
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
 * Makes one model call, and tells whether its reply asks for tools or is the final answer. Nothing runs: `tools` are
 * only offered.
 *
 * **Details**
 *
 * The reply's calls decide, not the provider's finish reason, unless the policy says otherwise. Calls run by the
 * provider itself are listed and ask for nothing. A call with lost arguments is marked, and reported in `diagnostics`
 * and in one warning, without the argument text. A broken reply fails; a dying adapter fails with the reason `unknown`
 * and the defect as its `cause`.
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
