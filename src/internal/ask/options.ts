/**
 * Resolves the caller's options to what a run uses: an option that is given wins over the application's defaults, and
 * these over ours. An option that cannot be used is the caller's mistake and throws before anything has started.
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import * as Policy from "../../Policy.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import type * as Declared from "../declare/tool.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import type * as Telemetry from "../telemetry.ts"

/**
 * A source of soft stops: a signal, or an effect that stops the run when it succeeds.
 *
 * @category models
 * @since 0.1.0
 */
export type CancelSource<R> = AbortSignal | Effect.Effect<unknown, never, R>

/**
 * The time that a run may take, from its start: a duration (a number is milliseconds), or `{ after, reserve }`; or
 * `{ at, reserve }` with the time at which it has to end. The run begins to stop then; what does not stop at once has
 * its grace period on top, which uses up the reserve: let `reserve` be more than the `grace` of the run (5 seconds by
 * default), or there may be no last answer. Public as `Limits.DeadlineInput`.
 *
 * @category models
 * @since 0.1.0
 */
export type DeadlineInput =
  | Duration.Input
  | Reserving & {
    /** The time that the run may take, from its start; a number is milliseconds. */
    readonly after: Duration.Input
  }
  | Reserving & {
    /**
     * The time at which the run has to end, in milliseconds since 1970: the same for a run that waits in a queue first,
     * or that is resumed after a crash. A time that has passed stops the run before it asks the model.
     */
    readonly at: number
  }

type Reserving = {
  /**
   * The time that is kept for a last answer of the model; a number is milliseconds. A quarter by default, at most ten
   * seconds; with `0` tools may use all of it.
   */
  readonly reserve?: Duration.Input
}

/**
 * The deadline that a caller asked for, in milliseconds.
 *
 * @category models
 * @since 0.1.0
 */
export interface DeadlineWish {
  /** Milliseconds from the start of the run. */
  readonly afterMillis: number
  /** A time of the clock, in place of that. */
  readonly at?: number
  /** The time that is kept for a last answer, in milliseconds. `undefined` for the default. */
  readonly reserveMillis: number | undefined
}

/** The options that concern the running of tools. */
export interface RunnerOptions<E, R, Failure = unknown> {
  /**
   * The effect of a failed call on the run: `"continue"` hands the error to the model, `"halt"` ends the run, and a
   * function decides. It also decides about calls that the model wrote wrong: look at `error.reason`. A tool's own
   * `onToolError` goes before it. `"continue"` by default.
   */
  readonly onToolError?: Declared.OnToolError<E, R, Failure> | undefined
  /**
   * The time that a call may take, from the start of its handler; a number is milliseconds, `"infinity"` is no limit,
   * and `{ total, idle }` limits the time without progress as well. A tool's own `timeout` goes before it. When its
   * time is up its handler is interrupted, and the call is answered once that has ended, or after the grace period,
   * five seconds at most: as `abandoned` then. The handler keeps its place for the grace period, and the end of the run
   * waits for it that long. 30 seconds by default.
   */
  readonly toolTimeout?: Declared.TimeoutInput | undefined
  /** The number of handlers that run at once. Twice the number of cores by default. */
  readonly maxConcurrency?: number | undefined
  /**
   * The value that handlers read as `call.context`. It replaces the application's (`Policy.Defaults`), which is the
   * default, else `{}`.
   */
  readonly context?: Readonly<Record<string, unknown>> | undefined
  /** The id by which handlers, responses and spans name the run. One is made by default. */
  readonly requestId?: string | undefined
  /**
   * The id that handlers read as `call.sessionId`. A session gives its id, and a nested run has its parent's. `null` by
   * default.
   */
  readonly sessionId?: string | undefined
  /** The decisions of the run. The application's by default, else `Policy.standard`. */
  readonly policy?: Policy.Policy | undefined
  /**
   * The time that code which is stopped may take to stop before it is abandoned; a number is milliseconds. After the
   * answer of a handler, the time that the fibers may take that it has forked. Until then it keeps its place. 5 seconds
   * by default.
   */
  readonly grace?: Duration.Input | "infinity" | undefined
  /**
   * An `AbortSignal`, or an effect that succeeds, to stop the run softly: nothing starts any more, running handlers are
   * interrupted (those with `interrupt: "block"` finish), every call is answered, and the run comes to a result
   * (outcome `Cancelled`). None by default.
   */
  readonly cancel?: CancelSource<R> | undefined
  /**
   * The time that the run may take: a duration (a number is milliseconds), `{ after, reserve }` with what is kept for a
   * last answer of the model, or `{ at, reserve }` with the time, in milliseconds since 1970, at which it has to end.
   * Tools are stopped earlier by the reserve. What does not stop at once has its `grace` on top and uses up that time:
   * let `reserve` be more than `grace`. The deadline of a run around this one counts if it is earlier. None by default.
   */
  readonly deadline?: DeadlineInput | undefined
}

/** The decisions of a policy. */
export const policyKind: Values.Kind = Values.policyOf(Policy.Policy)

const deadlineOptions = {
  after: Values.duration,
  at: Values.described(Values.amount, "a time in milliseconds since 1970"),
  reserve: Values.durationOrNone
} satisfies Values.OptionKinds

/** The time that a run may take. */
export const deadlineKind: Values.Kind = Values.either(Values.duration, Values.options(deadlineOptions))

/** A source of stops: a signal, or an effect. */
export const cancelSource: Values.Kind = new Values.Kind(
  "an AbortSignal or an Effect",
  (value) => value instanceof AbortSignal || Effect.isEffect(value)
)

const runnerOptions = {
  onToolError: Values.onToolError,
  toolTimeout: Values.timeout,
  maxConcurrency: Values.count,
  context: Values.record,
  requestId: Values.text,
  sessionId: Values.text,
  policy: policyKind,
  grace: Values.duration,
  cancel: cancelSource,
  deadline: deadlineKind
} satisfies NamesOf<RunnerOptions<never, never>>

/** The rules that `Rule.make` has made, whose functions are held to their types. */
export const madeRules = new WeakSet<object>()

const ruleKind: Values.Kind = new Values.Kind(
  "a rule made with Rule.make",
  (value) => Json.isObject(value) && madeRules.has(value)
)

/** The outputs that `Output.make` has made. */
export const madeOutputs = new WeakSet<object>()

const outputKind: Values.Kind = new Values.Kind(
  "an output made with Output.make",
  (value) => Json.isObject(value) && madeOutputs.has(value)
)

/** The budgets that `Budget.make` and `Budget.from` have made. */
export const madeBudgets = new WeakSet<object>()

export const budgetKind: Values.Kind = new Values.Kind(
  "a budget made with Budget.make or Budget.from",
  (value) => Json.isObject(value) && madeBudgets.has(value)
)

/** The inboxes that `Inbox.make` has made. */
export const madeInboxes = new WeakSet<object>()

const inboxKind: Values.Kind = new Values.Kind(
  "an inbox made with Inbox.make",
  (value) => Json.isObject(value) && madeInboxes.has(value)
)

/** Rules, which record their notes by their names. */
export const rulesKind: Values.Kind = new Values.Kind(
  "an array of rules made with Rule.make, each with a name of its own",
  (value) => Array.isArray(value) && new Set(value.map((rule) => rule?.name)).size === value.length,
  { each: ruleKind }
)

/**
 * The options of a run, in whichever way it is begun: one that another way of running has is no mistake. A test holds
 * the list to the types, which are declared by modules that import this one.
 */
export const runOptions = Values.nullable({
  ...runnerOptions,
  system: Values.text,
  model: Values.name,
  temperature: Values.checkedLater,
  maxTokens: Values.checkedLater,
  toolChoice: Values.checkedLater,
  responseFormat: Values.checkedLater,
  cacheKey: Values.text,
  options: Values.record,
  emitTextDeltas: Values.flag,
  emitToolDeltas: Values.flag,
  includeRawChunks: Values.flag,
  onEvent: Values.fn,
  tools: Values.described(Values.tools, "an array of tools made with Tool.make"),
  mode: Values.oneOf("auto", "manual"),
  retryReply: Values.schedule,
  maxTurns: Values.count,
  rules: rulesKind,
  haltWhen: Values.fn,
  prepareStep: Values.fn,
  output: outputKind,
  budget: budgetKind,
  inbox: inboxKind,
  structuredFinalize: Values.flag,
  finalizePrompt: Values.text,
  agent: Values.options(
    { name: Values.text, id: Values.text, description: Values.text, version: Values.text } satisfies NamesOf<
      Telemetry.Agent
    >
  ),
  stepIndex: Values.whole,
  approved: Values.listOf(Values.text, "ids of calls"),
  pending: Values.oneOf("deny"),
  takes: Values.text,
  maxAge: Values.duration,
  maxAttempts: Values.whole,
  takeOver: Values.flag,
  replays: Values.flag
})

const defaultPolicy = { policy: policyKind }

/**
 * The options of a run, resolved.
 *
 * @category models
 * @since 0.1.0
 */
export interface Settings<E, R> {
  /** The decisions. */
  readonly policy: Policy.Policy
  /** The effect of a failed call on the run. */
  readonly onToolError: Declared.OnToolError<E, R>
  /** The time that a call may take, in milliseconds. `Infinity` for no limit. */
  readonly timeoutMillis: number
  /** The time that a call may take without progress, in milliseconds. `Infinity` for no limit. */
  readonly idleMillis: number
  /** The time that code which is stopped may take to stop, in milliseconds. */
  readonly graceMillis: number
  /** The number of handlers that run at once. `undefined` for twice the number of cores. */
  readonly maxConcurrency: number | undefined
  /** The deadline that the caller asked for. `undefined` for none. */
  readonly deadline: DeadlineWish | undefined
  /** The value that handlers read as `call.context`. */
  readonly context: Readonly<Record<string, unknown>>
  /** The id of the run. */
  readonly requestId: string
  /** The id of the session. `null` outside of one. */
  readonly sessionId: string | null
  /** The ids of calls that are approved. Left out where none is. */
  readonly approved?: ReadonlySet<string>
}

// Milliseconds: a duration in words would be read anew by every run.
const defaultToolTimeout = 30_000
export const defaultGrace = 5_000

const show = (value: unknown): string =>
  typeof value === "function"
    ? `a function of ${value.length} ${value.length === 1 ? "argument" : "arguments"}`
    : JSON.stringify(Json.toJson(value))

export const positiveInteger = (name: string, value: unknown): number => {
  if (typeof value === "number" && Number.isInteger(value) && value > 0) return value
  throw new RangeError(`${name} must be a positive integer; got: ${show(value)}`)
}

/** A number is milliseconds already. Each run asks some times. */
const read = (value: unknown): number => {
  if (typeof value === "number") return value
  const duration = Values.readDuration(value)
  return duration === undefined ? Number.NaN : Duration.toMillis(duration)
}

const refuse = (name: string, range: string, value: unknown): never => {
  throw new RangeError(
    `${name} must be a duration ${range} (milliseconds, "30 seconds", "infinity"); got: ${show(value)}`
  )
}

export const millis = (name: string, value: unknown): number => {
  const result = read(value)
  return result > 0 ? result : refuse(name, "above zero", value)
}

const millisOrNone = (name: string, value: unknown): number => {
  const result = read(value)
  return result >= 0 ? result : refuse(name, "of zero or more", value)
}

/**
 * A function that declares no parameters cannot misread them; one with another number of them was written for
 * something else.
 */
const onToolError = <E, R>(value: unknown): Declared.OnToolError<E, R> => {
  if (value === null || value === undefined) return "continue"
  if (value === "continue" || value === "halt") return value
  if (typeof value !== "function") {
    throw new TypeError(`onToolError must be "continue", "halt" or a function (call, error); got: ${show(value)}`)
  }
  if (value.length === 2 || value.length === 0) return value as Declared.OnToolError<E, R>
  throw new TypeError(`onToolError must take (call, error); got: ${show(value)}`)
}

/** Refuses what cannot stop a run. `name` is the option as the caller wrote it. */
export const checkCancel = (cancel: unknown, name = "cancel"): void => {
  const isUsable = cancel === undefined || cancel === null || cancel instanceof AbortSignal || Effect.isEffect(cancel)
  if (!isUsable) {
    throw new TypeError(`${name} must be an AbortSignal or an Effect; got: ${show(cancel)}`)
  }
}

const usable = (policy: Policy.Policy): Policy.Policy => {
  const { resultLimit } = policy
  if (resultLimit !== Infinity && !(Number.isInteger(resultLimit) && resultLimit >= 0)) {
    throw new RangeError(
      `policy: resultLimit must be a whole number, 0 or Infinity for no limit; got: ${show(resultLimit)}`
    )
  }
  // A turn that fails as a whole has no tool running, which cannot be promised once one has started.
  if (policy.unknownTool !== "failTurn" || policy.start === "afterTurn") return policy
  throw new TypeError(`policy: unknownTool "failTurn" needs start "afterTurn"; got: ${show(policy.start)}`)
}

/** A policy of which every decision is made: what a program without types leaves out is the standard's. */
const whole = (standard: Policy.Policy, given: Policy.Policy): Policy.Policy => ({
  ...Values.filled(standard, given),
  siblings: Values.filled(standard.siblings, given.siblings ?? {})
})

const wish = (input: DeadlineInput | null | undefined): DeadlineWish | undefined => {
  if (input === null || input === undefined) return undefined
  if (!Json.isObject(input) || !("after" in input || "at" in input)) {
    return { afterMillis: millis("deadline", input), reserveMillis: undefined }
  }
  checkNames("deadline of a run", input, deadlineOptions)
  const { after, at, reserve } = input as {
    readonly after?: unknown
    readonly at?: unknown
    readonly reserve?: unknown
  }
  if (after !== undefined && at !== undefined) {
    throw new TypeError("deadline must have after or at: how long the run may take, or when it has to end")
  }
  const reserveMillis = reserve === undefined ? undefined : millisOrNone("deadline.reserve", reserve)
  return at === undefined
    ? { afterMillis: millis("deadline.after", after), reserveMillis }
    : { afterMillis: Infinity, at: time(at), reserveMillis }
}

const time = (at: unknown): number => {
  if (typeof at === "number" && at >= 0) return at
  throw new RangeError(`deadline.at must be a time in milliseconds since 1970; got: ${show(at)}`)
}

/** The id of the session, or the `sessionId` of the options, of the run whose handler this code runs in. */
export const CurrentSessionId: Context.Reference<string | null> = Context.Reference<string | null>(
  "heddle/internal/SessionId",
  { defaultValue: () => null }
)

/** Throws for an option that cannot be used. */
export const resolve = <E, R>(
  options: RunnerOptions<E, R, any>,
  defaults: Policy.Defaults,
  standard: Policy.Policy,
  context: Context.Context<any> | Context.Context<never>
): Settings<E, R> => {
  checkNames("a run", options, runOptions)
  checkCancel(options.cancel)
  const given = options.policy ?? defaults.policy
  // A layer has checked its own: the reference may be set without one.
  if (options.policy === undefined && given !== undefined) {
    checkNames("Policy.Defaults", { policy: given }, defaultPolicy)
  }
  const policy = given === undefined ? standard : usable(whole(standard, given))
  const toolTimeout = options.toolTimeout ?? defaults.toolTimeout ?? defaultToolTimeout
  if (Json.isObject(toolTimeout)) checkNames("a run", { toolTimeout }, { toolTimeout: Values.timeout })
  const maxConcurrency = options.maxConcurrency ?? defaults.maxConcurrency ?? policy.maxConcurrency
  return {
    policy,
    onToolError: onToolError(options.onToolError),
    ...times("toolTimeout", toolTimeout),
    graceMillis: millis("grace", options.grace ?? defaults.grace ?? defaultGrace),
    maxConcurrency: maxConcurrency === undefined ? undefined : positiveInteger("maxConcurrency", maxConcurrency),
    deadline: wish(options.deadline),
    context: options.context ?? defaults.context ?? {},
    requestId: options.requestId ?? mintRequestId(context as Context.Context<never>),
    sessionId: options.sessionId ?? Context.get(context as Context.Context<never>, CurrentSessionId)
  }
}

/** The limits of the time of a call. */
export type Times = Pick<Settings<any, any>, "timeoutMillis" | "idleMillis">

const times = (name: string, input: unknown): Times => {
  if (!Values.isTimeLimits(input)) return { timeoutMillis: millis(name, input), idleMillis: Infinity }
  const { idle = Infinity, total = Infinity } = input
  return { timeoutMillis: millis(`${name}.total`, total), idleMillis: millis(`${name}.idle`, idle) }
}

/** Returns the limits of the time of a tool's calls. `usual` is for a tool without a timeout. */
export const timesOf = ({ timeout }: Pick<Declared.Any, "timeout">, usual: Times): Times =>
  timeout === undefined ? usual : times("timeout", timeout)

/** Returns the milliseconds that code may take which reports no progress. */
export const silentMillis = ({ idleMillis, timeoutMillis }: Times): number => Math.min(idleMillis, timeoutMillis)

/**
 * Returns the milliseconds that the code of a tool may take beside its handler. `usual` is for a tool without a
 * timeout, and for code of no tool.
 */
export const timeoutOf = (tool: Declared.Any | undefined, usual: number): number =>
  tool?.timeout === undefined ? usual : silentMillis(times("timeout", tool.timeout))

const cores = (): number => typeof navigator === "undefined" ? 4 : navigator.hardwareConcurrency ?? 4

/** Returns the number of handlers of a tree of runs that may run at once by default. */
export const widest = (): number => 2 * cores()

/** Returns the number of calls of a batch that may run at once by default. */
export const defaultBound = (calls: number): number => Math.max(1, Math.min(calls, widest()))

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

/** 22 URL-safe characters, as many as 16 random bytes need. A random number has bits for five of them. */
export const mintRequestId = <R>(context: Context.Context<R>): string => {
  const random = Context.get(context, Random.Random)
  const five = (): string => letters(Math.floor(random.nextDoubleUnsafe() * 2 ** 30))
  // A joined array is one text: a text that is put together keeps its pieces.
  return [five(), five(), five(), five(), five().slice(0, 2)].join("")
}

const letters = (bits: number): string =>
  String.fromCharCode(code(bits), code(bits >>> 6), code(bits >>> 12), code(bits >>> 18), code(bits >>> 24))

const code = (bits: number): number => alphabet.charCodeAt(bits & 63)
