/**
 * The public form of events: the allow list of what leaves a server. It reads events as data, in their own form and in
 * their wire form, since the progress of a call may be the events of a run inside its handler. It never publishes raw
 * results, updates of the context, causes, threads, metadata of replies or raw chunks. A field that is not of its type
 * is left out, since progress may be anything that looks like an event. Public as `Event.toPublic`.
 */
import * as Message from "../../Message.ts"
import * as CallPaths from "../answer/callPath.ts"
import { FinishReason, ToolError } from "../declare/outcome.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import * as EventJson from "./eventJson.ts"

/**
 * Extent to which the calls of a tool are published: `"all"` of a call, with its arguments, its progress and its answer
 * as the model reads it; `"names"`, which is its id, its name, its states, and the questions that it asks; or
 * `"none"` of it.
 *
 * @category models
 * @since 0.1.0
 */
export type Publish = "all" | "names" | "none"

/**
 * A call that was published, for the events that follow.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicCall {
  /** The name of the tool. */
  readonly name: string
  /** `true` for a call by which the model gives a typed answer, which is not published. */
  readonly output?: true
  /** Time at which the call stood whole in the reply, in milliseconds since 1970. Left out where it is not known. */
  readonly asked?: number
  /** `true` once its `ToolCallCompleted` was published, which has its arguments. */
  readonly announced?: true
  /** The calls of the run inside the handler, by id. */
  readonly calls: Map<string, PublicCall>
}

/**
 * Options of `Event.toPublic`.
 *
 * @category options
 * @since 0.1.0
 */
export interface PublicOptions {
  /** Extent to which calls are published, or a function of the name of the tool. `"all"` by default. */
  readonly publish?: Publish | ((tool: string) => Publish)
  /** `true` if the model's reasoning is published. `false` by default. */
  readonly publishReasoning?: boolean
  /** `true` if the cost that providers report is published with the usage. `false` by default. */
  readonly publishCost?: boolean
  /** The id of the run, which the ids of suspensions name. None by default. */
  readonly runId?: string
  /**
   * The calls of the run by id, which the function reads and adds to: give one map for all events of a run. Without
   * it, events that do not name their tool are published where `publish` is no function, and not otherwise; and the
   * call of a typed answer is known only by the events that announce it, so that those of its handler are published.
   */
  readonly calls?: Map<string, PublicCall>
  /** Time of the event, in milliseconds since 1970. None by default. */
  readonly at?: number
}

/** The kinds of the options. */
export const knownOptions = {
  publish: Values.either(Values.oneOf("all", "names", "none"), Values.fn),
  publishReasoning: Values.flag,
  publishCost: Values.flag,
  runId: Values.text,
  calls: Values.map,
  at: Values.amount
} satisfies NamesOf<PublicOptions>

/**
 * An error as it is published: no text of a provider, of a handler or of a store.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicError {
  /** The kind of the error: the reason of an `AdapterError`, or `"internal"`. */
  readonly code: string
  /** One sentence for a person. */
  readonly message: string
  /** The id of the run, by which the log is searched. Left out where `runId` is not given. */
  readonly id?: string
}

/**
 * A usage as it is published: the figures that are known, of which a provider may report any.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicUsage = {
  /** Tokens of the requests, those that were read from or written to a cache included. */
  readonly inputTokens?: number
  /** Tokens of the replies, reasoning included. */
  readonly outputTokens?: number
  /** All tokens, as providers count them. */
  readonly totalTokens?: number
  /** Tokens of the requests that the provider read from its cache. */
  readonly cachedInputTokens?: number
  /** Tokens of the requests that the provider wrote to its cache. */
  readonly cacheWriteInputTokens?: number
  /** Tokens that the model used for reasoning. */
  readonly reasoningTokens?: number
  /** The price of the requests. Left out unless `publishCost` is set, as the fields that follow. */
  readonly inputCost?: number
  /** The price of the replies. */
  readonly outputCost?: number
  /** The whole price. Costs in several currencies have no sum, and are left out. */
  readonly totalCost?: number
  /** The code of the currency of the cost, such as `"USD"`. Left out where the provider does not report it. */
  readonly currency?: string
}

/**
 * The amount that a run has spent and the rest of its budget, as they are published under `publishCost`.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicSpent = PublicAmount & {
  /** The rest of each bound. One that is left out has no bound. */
  readonly left: PublicAmount & {
    /** Tokens of requests and replies. */
    readonly tokens?: number
  }
}

/**
 * An amount of requests, tokens and money, as it is published.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicAmount = {
  /** Requests to models. */
  readonly calls?: number
  /** Tokens of the requests. */
  readonly inputTokens?: number
  /** Tokens of the replies. */
  readonly outputTokens?: number
  /** The price, in millionths of the currency. */
  readonly money?: number
}

/**
 * A call that waits for an answer, as it is published.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicSuspension {
  /**
   * The id under which it is answered: that of `Event.Suspension`, behind the id of the run in which the call began to
   * wait and a `~`. A call that waits again, in a later run, has another one. Without `runId` it names no run.
   */
  readonly id: string
  /** The answer that it waits for, as in `Event.Suspension`. */
  readonly kind: "question" | "approval" | "manual" | "unknown"
  /** The call. */
  readonly toolCall: {
    /** The id of the call. */
    readonly id: string
    /** The name of the tool. */
    readonly name: string
    /** The arguments. Left out unless they are published. */
    readonly arguments?: Json.JsonObject
  }
  /**
   * The text to show. Left out where there is none, and of a call whose effect is not known unless its arguments are
   * published, since its text quotes them.
   */
  readonly question?: string
  /** The choices of the user. Left out where there are none. */
  readonly opts?: ReadonlyArray<unknown>
  /** The JSON Schema of the answer. Left out where it is free. */
  readonly answerSchema?: Json.JsonObject
  /** The time at which it expires, in milliseconds since 1970. Left out when it waits without a limit. */
  readonly expiresAt?: number
  /** The extent to which an approval may be remembered for the session. Left out where it may not. */
  readonly remember?: "tool" | "arguments"
}

/**
 * A wait of a call for its turn, as it is published.
 *
 * @category models
 * @since 0.1.0
 */
interface PublicWait {
  /** The thing that the call waited for: `"permit"`, `"key"` or `"exclusive"`. */
  readonly reason: string
  /** The name of the permit. Left out where the reason is another one, and where arguments are not published. */
  readonly key?: string
  /** The ids of the published calls of the run that it waited for. Left out where there are none. */
  readonly behind?: ReadonlyArray<string>
  /** `true` where another run had what it waited for. Left out otherwise. */
  readonly elsewhere?: boolean
  /** Length of the wait, in milliseconds. */
  readonly millis: number
}

/**
 * The outcome of a run, as it is published: its `_tag`, and what of it is no text of a handler.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicOutcome {
  /** The tag of the outcome, as in `Event.Outcome`. */
  readonly _tag: string
  /** The finish reason of the last reply, of `Completed`. */
  readonly finishReason?: string
  /** The run's `maxTurns`. Left out unless the outcome is `MaxTurns`. */
  readonly maxTurns?: number
  /** The name of the rule, of `RuleEnded`. */
  readonly rule?: string
  /** `"completed"` or `"error"`, of `RuleEnded`. */
  readonly status?: string
  /** The source of the cancellation, of `Cancelled`. */
  readonly reason?: string
  /** The id of the call that ended the run, of `Halted` and `ToolFailed`. */
  readonly haltToolCallId?: string
  /** The error, of `Failed`. */
  readonly error?: PublicError
}

/**
 * Code that was left running when its run ended, as it is published: that of a published call, a hook or the adapter.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicAbandoned {
  /** The id of the call, or of the run. */
  readonly id: string
  /** The name of the tool, or of the option. */
  readonly name: string
  /** The kind of code, as in `Event.Abandoned`. Appends and the effect given as `cancel` are not published. */
  readonly kind: "handler" | "hook" | "adapter"
  /** The time for which it had been running, in milliseconds. */
  readonly ageMillis: number
  /** The ids of the calls that lead to it, from the call of the run to its own. Left out for code of the run itself. */
  readonly path?: ReadonlyArray<string>
}

/** The fields of an event that belongs to a call. */
interface OfCall {
  /** The id of the call. */
  readonly id: string
  /** The name of the tool. */
  readonly name: string
}

/** The fields of an event that asks for answers. */
interface Asking {
  /** The id of the call. */
  readonly toolCallId: string
  /** The name of the tool. */
  readonly toolName: string
  /** The calls that are open: the call itself, or those of the run inside its handler. */
  readonly suspensions: ReadonlyArray<PublicSuspension>
}

/** The answer of a call. */
interface Answered {
  /** The content that the model reads. Left out where it is not published. */
  readonly content?: string | ReadonlyArray<Json.JsonObject>
}

/** The fields of an event that contains a whole text or a piece of one. */
interface OfText {
  /** The provider's id of the block. `null` when it gives none. */
  readonly id: string | null
}

/** The usage that an event reports. */
interface Used {
  /** The usage of the step or of the run. Left out where none was reported. */
  readonly usage?: PublicUsage
}

/** The end of a reply. */
interface Ended {
  /** The reason why the reply ended. Left out where the provider gave none. */
  readonly finishReason?: string
  /** `true` if the provider paused the reply before its end. Left out for any other reply. */
  readonly paused?: boolean
}

interface Fields {
  RequestStarted: {
    /** The index of the step, from 0. */
    readonly stepIndex: number
    /** The number of the request within the step, from 1. */
    readonly attempt: number
    /** The model that is asked. Left out where it is not known. */
    readonly model?: string
    /** The provider of the model. Left out where it is not known. */
    readonly provider?: string
  }
  RequestRetried: {
    /** The index of the step, from 0. */
    readonly stepIndex: number
    /** The number of the request within the step, from 1. */
    readonly attempt: number
    /** The number of the try that failed, from 1. */
    readonly try: number
    /** The reason of its error. */
    readonly code: string
    /** The pause before the next try, in milliseconds. */
    readonly afterMillis: number
  }
  MessageStarted: {}
  RunStarted: {
    /**
     * The id of the run that begins or is resumed. A server adds this event, and `StopAccepted`, to those of a session.
     * As an event inside a handler it precedes all events of the runs there: they replace those that the call has had.
     * The id is then empty unless all of the call is published.
     */
    readonly runId: string
  }
  StopAccepted: {
    /** The sender of the stop, as the program named them. Left out where it is not known. */
    readonly by?: string
    /** The path of the call that alone is to stop, as `Session.stop` takes it. Left out where the whole run is. */
    readonly call?: string
  }
  TextDelta: OfText & {
    /** The piece, to be put behind those before it. */
    readonly delta: string
  }
  ReasoningDelta: Fields["TextDelta"]
  TextCompleted: OfText & {
    /** The text. */
    readonly text: string
  }
  ToolCallStarted: OfCall
  ToolCallDelta: {
    /** The id of the call. */
    readonly id: string
    /** A piece of JSON text, to be put behind those before it. */
    readonly argumentsDelta: string
  }
  ToolCallCompleted: OfCall & {
    /** The arguments. Left out where they are not published. */
    readonly arguments?: Json.JsonObject
    /** The problem with the arguments. Left out when they can be trusted. */
    readonly argumentsLost?: {
      /** The reason why they cannot be trusted. */
      readonly reason: string
      /** The text that was sent. Left out where arguments are not published. */
      readonly text?: string
    }
    /** `true` for a call that the provider runs itself. */
    readonly providerExecuted?: boolean
  }
  MessageCompleted: Ended
  Error: {
    /** The error that broke the reply. */
    readonly error: PublicError
  }
  StepReset: Fields["Error"]
  OutputPartial: {
    /** The typed answer so far, encoded. */
    readonly value: unknown
  }
  OutputCompleted: Fields["OutputPartial"]
  ModelSwitched: Fields["Error"] & {
    /** The name of the candidate that failed. */
    readonly from: string
    /** The name of the candidate that is asked next. */
    readonly to: string
  }
  MessageDelivered: {
    /** The id of the message. */
    readonly id: string
    /** Its content: a text, or its parts. */
    readonly content: Message.Content
    /** The index of the step that has it, from 0. */
    readonly stepIndex: number
  }
  MessageRefused: {
    /** The id of the message. */
    readonly id: string
    /** The reason: how the run ended, or the rule that ended it. */
    readonly reason: string
  }
  ToolQueued: OfCall & {
    /** The thing that the call waits for: `"permit"`, `"key"` or `"exclusive"`. */
    readonly reason: string
    /** The name of the permit. Left out where the reason is another one, and where arguments are not published. */
    readonly key?: string
    /** The ids of the published calls of the run that it waits for. Left out where there are none. */
    readonly behind?: ReadonlyArray<string>
    /** `true` where another run has what it waits for. Left out otherwise. */
    readonly elsewhere?: boolean
  }
  ToolExecutionStarted: OfCall & {
    /** The number of the attempt. Left out for the first one. */
    readonly attempt?: number
    /**
     * Time at which the call stood whole in the reply, in milliseconds since 1970. Left out where it is not known: of a
     * call of an earlier run, and where `at` or `calls` is not given.
     */
    readonly asked?: number
    /** The waits for its turn, in their order. Left out of a call that had its turn at once. */
    readonly waited?: ReadonlyArray<PublicWait>
    /**
     * The arguments with which a call of an earlier run starts, which an approval may have changed. Left out of a call
     * whose `ToolCallCompleted` has them, where they are not published, and where `calls` is not given.
     */
    readonly arguments?: Json.JsonObject
  }
  ToolProgress: OfCall & {
    /** The progress as the handler reported it. Left out for an event of a run inside the handler. */
    readonly progress?: unknown
    /** The event of a run inside the handler. */
    readonly nested?: PublicEvent
  }
  ToolExecutionCompleted: OfCall
  ToolResultEncoded: Answered & {
    /** The id of the call. */
    readonly id: string
    /** `true` when the answer is an error. Left out when it is not. */
    readonly isError?: boolean
    /** The reason of the `Tool.ToolError` that the answer is, such as `"denied"`. Left out for any other answer. */
    readonly code?: string
    /** The length of the whole text in characters, where the content was cut. */
    readonly originalLength?: number
    /** `true` when it closes a call that was open before. Left out otherwise. */
    readonly settled?: boolean
    /** The sender of a denial, as the program named them. Left out for any other answer, and where it is not known. */
    readonly by?: string
    /** The reason that they gave. Left out where there is none, and where arguments are not published. */
    readonly detail?: string
  }
  AskUserRequested: Asking
  ToolApprovalRequested: Asking
  ToolSuspended: Asking
  ToolHalt: Answered & {
    /** The id of the call. */
    readonly toolCallId: string
    /** `true` for a failure that ended the run. Left out for `Tool.halt`. */
    readonly isError?: boolean
    /** The reason of the `Tool.ToolError` that ended the run. Left out of any other halt. */
    readonly code?: string
  }
  StepCompleted: Ended & Used & {
    /** `true` if the model has nothing more to do. */
    readonly done?: boolean
  }
  ChatCompleted: Used & {
    /** The reason why the run ended. */
    readonly outcome: PublicOutcome
    /** The usage of the run together with the runs inside its handlers. Left out where none was reported. */
    readonly totalUsage?: PublicUsage
    /** The part of `totalUsage` that the runs inside its handlers used. Left out where they reported nothing. */
    readonly nestedUsage?: PublicUsage
    /**
     * The amount that the run has spent, with the runs inside its handlers, and the rest of its budget. Left out unless
     * `publishCost` is set, and without a budget.
     */
    readonly spent?: PublicSpent
    /** The calls that wait for an answer, in call order. Left out when none does. */
    readonly suspensions?: ReadonlyArray<PublicSuspension>
    /** The code that was left running. Left out where there is none. */
    readonly abandoned?: ReadonlyArray<PublicAbandoned>
  }
}

/** The fields that every event may have. */
interface Common {
  /** Time of the event, in milliseconds since 1970. Left out where `at` is not given. */
  readonly at?: number
  /** `true` for what had happened before the run was resumed. Left out otherwise. */
  readonly replayed?: boolean
}

/**
 * An event as it leaves a server, as plain JSON. Its fields have the names and the meanings of those of the event; what
 * is not published is left out.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicEvent = { [Tag in keyof Fields]: { readonly _tag: Tag } & Fields[Tag] & Common }[keyof Fields]

const sentences: { readonly [code: string]: string } = {
  rate_limited: "The model has too many requests at the moment. Try again later.",
  quota_exceeded: "The model's quota is used up.",
  authentication_failed: "The model refused the credentials of this service.",
  invalid_request: "The model refused the request.",
  provider_unavailable: "The model is not available at the moment. Try again later.",
  context_length_exceeded: "The conversation is too long for the model.",
  content_filter: "The model's provider refused the content.",
  timeout: "The model did not answer in time. Try again later.",
  network_error: "The connection to the model broke. Try again.",
  malformed_response: "The model's reply could not be read. Try again.",
  unsupported_feature: "The model does not support what was asked of it."
}

/** Reads a member of any value. Reading one may run foreign code, which may throw. */
const read = (value: unknown, name: string): unknown => {
  if (typeof value !== "object" || value === null) return undefined
  try {
    return Reflect.get(value, name)
  } catch {
    return undefined
  }
}

/** Returns the items of a list, and none of anything else. */
const listOf = (value: unknown): ReadonlyArray<unknown> => {
  try {
    return Array.isArray(value) ? Array.from(value as ReadonlyArray<unknown>) : []
  } catch {
    return []
  }
}

/** Returns a value as JSON. */
const jsonOf = (value: unknown): unknown => read(EventJson.toJson({ value }), "value")

/** Returns the reason of an adapter's error, if it is one. */
const codeOf = (reason: unknown): string =>
  typeof reason === "string" && Object.hasOwn(sentences, reason) ? reason : "internal"

/** Returns the error without the texts of others. Its kind is the reason of an adapter's error. */
const publicError = (error: unknown, runId: string | undefined): PublicError => {
  const reason = read(error, "_tag") === "AdapterError" ? read(error, "reason") : undefined
  const code = codeOf(reason)
  return {
    code,
    message: sentences[code] ?? "The run failed for a reason that this service has logged.",
    ...(runId === undefined ? {} : { id: runId })
  }
}

type Payload = { readonly [name: string]: unknown }

/** Returns the value as it is published, or `undefined` for one of another type. */
type Field = (value: unknown) => unknown

const text: Field = (value) => typeof value === "string" ? value : undefined
const flag: Field = (value) => typeof value === "boolean" ? value : undefined
// JSON has no negative zero.
const finite: Field = (value) => typeof value === "number" && Number.isFinite(value) ? value + 0 : undefined
const list: Field = (value) => {
  const json = jsonOf(value)
  return Array.isArray(json) ? json : undefined
}
const object: Field = (value) => {
  const json = jsonOf(value)
  return typeof json === "object" && json !== null && !Array.isArray(json) ? json : undefined
}
const oneOf = (words: ReadonlyArray<string>): Field => (value) =>
  typeof value === "string" && words.includes(value) ? value : undefined

/** The fields that are published, by their names, each with its type. */
const fields = {
  afterMillis: finite,
  ageMillis: finite,
  answerSchema: object,
  arguments: object,
  argumentsDelta: text,
  attempt: finite,
  by: text,
  code: oneOf(ToolError.fields.reason.literals),
  content: (value) => text(value) ?? list(value),
  delta: text,
  detail: text,
  done: flag,
  elsewhere: flag,
  expiresAt: finite,
  finishReason: oneOf(FinishReason.literals),
  from: text,
  haltToolCallId: text,
  id: text,
  isError: flag,
  key: text,
  kind: oneOf(["question", "approval", "manual", "unknown"]),
  maxTurns: finite,
  millis: finite,
  model: text,
  name: text,
  opts: list,
  originalLength: finite,
  paused: flag,
  provider: text,
  providerExecuted: flag,
  question: text,
  reason: oneOf(["permit", "key", "exclusive", "cancel", "deadline", "interrupt", "stop"]),
  rule: text,
  scope: oneOf(["tool", "arguments"]),
  settled: flag,
  status: oneOf(["completed", "error"]),
  stepIndex: finite,
  text,
  to: text,
  toolCallId: text,
  toolName: text,
  try: finite
} satisfies { readonly [name: string]: Field }

type Name = keyof typeof fields

/** Takes the members that are given and wanted. */
const taken = (event: unknown, ...names: ReadonlyArray<Name>): Payload => {
  const found: Record<string, unknown> = {}
  for (const name of names) {
    const value = fields[name](read(event, name))
    if (value !== undefined) found[name] = value
  }
  return found
}

/** Takes members that all have to be there. */
const whole = (event: unknown, ...names: ReadonlyArray<Name>): Payload | undefined => {
  const found = taken(event, ...names)
  return names.every((name) => name in found) ? found : undefined
}

const counts = [
  "inputTokens",
  "outputTokens",
  "totalTokens",
  "cachedInputTokens",
  "cacheWriteInputTokens",
  "reasoningTokens"
]

const costs = ["inputCost", "outputCost", "totalCost"]

const figuresOf = (usage: unknown, names: ReadonlyArray<string>) =>
  names.flatMap((name): ReadonlyArray<readonly [string, unknown]> => {
    const figure = finite(read(usage, name))
    return figure === undefined ? [] : [[name, figure]]
  })

/** Returns the cost that providers have reported, with its currency. It is empty where `XXX` says that these differ. */
const costOf = (usage: unknown): ReadonlyArray<readonly [string, unknown]> => {
  const cost = figuresOf(usage, costs)
  const currency = read(read(usage, "extra"), "currency")
  if (cost.length === 0 || currency === "XXX") return []
  return typeof currency === "string" && /^[A-Z]{3}$/.test(currency) ? [...cost, ["currency", currency]] : cost
}

const usageOf = (rules: Rules, usage: unknown): Payload | undefined => {
  const known = [...figuresOf(usage, counts), ...(rules.isCostPublished ? costOf(usage) : [])]
  return known.length === 0 ? undefined : Object.fromEntries(known)
}

const amounts = ["calls", "inputTokens", "outputTokens", "money"]

const spentOf = (rules: Rules, spent: unknown): Payload | undefined => {
  const known = rules.isCostPublished ? figuresOf(spent, amounts) : []
  const left = figuresOf(read(spent, "left"), [...amounts, "tokens"])
  return known.length === 0 ? undefined : { ...Object.fromEntries(known), left: Object.fromEntries(left) }
}

const optional = (name: string, value: unknown): Payload => value === undefined ? {} : { [name]: value }

/** The rules of the events of one run. */
class Rules {
  readonly calls: Map<string, PublicCall> | undefined
  /** The calls around the run, the outermost first. */
  readonly around: ReadonlyArray<string>
  readonly limit: Publish
  private readonly options: PublicOptions

  constructor(
    options: PublicOptions,
    limit: Publish,
    calls: Map<string, PublicCall> | undefined,
    around: ReadonlyArray<string>
  ) {
    this.options = options
    this.limit = limit
    this.calls = calls
    this.around = around
  }

  get runId(): string | undefined {
    return this.options.runId
  }

  get isTextPublished(): boolean {
    return this.limit === "all"
  }

  get isCostPublished(): boolean {
    return this.options.publishCost === true
  }

  get isReasoningPublished(): boolean {
    return this.isTextPublished && this.options.publishReasoning === true
  }

  /** Remembers the name of a call for the events that do not have it. */
  begin(id: unknown, name: unknown, isOutput = false): void {
    if (typeof id !== "string" || typeof name !== "string" || this.calls === undefined) return
    if (this.calls.get(id)?.name === name) return
    this.calls.set(id, { name, calls: new Map(), ...(isOutput ? { output: true } : {}) })
  }

  /** Remembers that a call stood whole in the reply, and when it did unless that was before the run was resumed. */
  ask(id: unknown, isReplayed: boolean): void {
    const { at } = this.options
    const call = typeof id === "string" ? this.calls?.get(id) : undefined
    if (call === undefined) return
    const asked = isReplayed || at === undefined ? {} : { asked: at }
    this.calls?.set(String(id), { ...call, announced: true, ...asked })
  }

  /** Tells whether the events that follow have no other arguments of a call. */
  isOfEarlierRun(id: unknown): boolean {
    return this.calls !== undefined && typeof id === "string" && this.calls.get(id)?.announced !== true
  }

  /** The time at which a call stood whole in the reply, if it is known. */
  askedOf(id: unknown): number | undefined {
    return typeof id === "string" ? this.calls?.get(id)?.asked : undefined
  }

  /** The extent for a call: that of its tool, and never more than that of the call around its run. */
  of(id: unknown, name: unknown = typeof id === "string" ? this.calls?.get(id)?.name : undefined): Publish {
    if (typeof id === "string" && this.calls?.get(id)?.output === true) return "none"
    const { publish = "all" } = this.options
    const own = typeof publish !== "function" ? publish : typeof name === "string" ? publish(name) : "none"
    return least(own, this.limit)
  }

  /** The rules of a run inside the handler of a call. */
  within(id: string, extent: Publish): Rules {
    return new Rules(this.options, extent, this.calls?.get(id)?.calls, [...this.around, id])
  }
}

const extents: ReadonlyArray<Publish> = ["none", "names", "all"]

/** Returns the smaller extent. An extent that does not exist publishes nothing. */
const least = (left: Publish, right: Publish): Publish =>
  extents[Math.max(0, Math.min(extents.indexOf(left), extents.indexOf(right)))] ?? "none"

/** Returns the rules of the run that a path of calls leads to. */
const rulesAt = (rules: Rules, path: ReadonlyArray<string>): Rules =>
  path.reduce((within, id) => within.within(id, within.of(id)), rules)

/** Returns the extent for a nested call: the least extent along its path. */
const extentWithin = (rules: Rules, path: ReadonlyArray<string>, name: unknown): Publish =>
  rulesAt(rules, path.slice(0, -1)).of(undefined, name)

const scopeOf = (suspension: unknown): unknown => fields.scope(read(read(suspension, "remember"), "scope"))

const suspensionOf = (rules: Rules, suspension: unknown): PublicSuspension | undefined => {
  const toolCall = whole(read(suspension, "toolCall"), "id", "name")
  const known = whole(suspension, "kind")
  if (toolCall === undefined || known === undefined) return undefined
  const path = listOf(read(suspension, "path"))
  if (path.length > deepestRun || !path.every((id) => typeof id === "string")) return undefined
  const extent = extentWithin(rules, path, toolCall["name"])
  if (extent === "none") return undefined
  const isAll = extent === "all"
  const calls = path.length === 0 ? [String(toolCall["id"])] : path
  return {
    id: CallPaths.format({ run: rules.runId, path: [...rules.around, ...calls] }),
    ...known,
    // The text about a call whose effect is not known quotes its arguments.
    ...(isAll || known["kind"] !== "unknown" ? taken(suspension, "question") : {}),
    ...taken(suspension, "opts", "answerSchema", "expiresAt"),
    ...(rules.around.length + path.length === 0 ? optional("remember", scopeOf(suspension)) : {}),
    toolCall: { ...toolCall, ...(isAll ? taken(read(suspension, "toolCall"), "arguments") : {}) }
  } as unknown as PublicSuspension
}

const suspensionsOf = (rules: Rules, suspensions: unknown): ReadonlyArray<PublicSuspension> =>
  listOf(suspensions).flatMap((suspension) => suspensionOf(rules, suspension) ?? [])

/** Returns the published calls that a call waits for. */
const behindOf = (rules: Rules, wait: unknown): Payload => {
  const behind = listOf(read(wait, "behind")).filter((id) => typeof id === "string" && rules.of(id) !== "none")
  return behind.length === 0 ? {} : { behind }
}

/** Returns the waits of a call. Names of permits are made from arguments. */
const waitedOf = (rules: Rules, event: unknown, extent: Publish): ReadonlyArray<Payload> =>
  listOf(read(event, "waited")).flatMap((wait) => {
    const found = whole(wait, "reason", "millis")
    return found === undefined ? [] : [{
      ...found,
      ...taken(wait, "elsewhere"),
      ...(extent === "all" ? taken(wait, "key") : {}),
      ...behindOf(rules, wait)
    }]
  })

/** The suspension of an event that asks for one call. */
const asking = (event: unknown, kind: string): Payload => ({
  kind,
  toolCall: { id: read(event, "toolCallId"), name: read(event, "toolName"), arguments: read(event, "arguments") },
  question: read(event, "question"),
  opts: read(event, "opts"),
  answerSchema: read(event, "answerSchema"),
  expiresAt: read(event, "expiresAt"),
  remember: read(event, "remember")
})

/** The kinds of code that a reader may know of. An append belongs to the session, whose key names its principal. */
const abandonedKinds = oneOf(["handler", "hook", "adapter"])

const abandonedOf = (rules: Rules, abandoned: unknown): PublicAbandoned | undefined => {
  const known = whole(abandoned, "id", "name", "ageMillis")
  const kind = abandonedKinds(read(abandoned, "kind"))
  const path = listOf(read(abandoned, "path"))
  if (known === undefined || kind === undefined) return undefined
  if (path.length > deepestRun || !path.every((id) => typeof id === "string")) return undefined
  const { id, name } = known
  // Code of a run inside a handler is published as that handler is.
  const isOfRun = kind === "adapter" || kind === "hook" && id === rules.runId
  const extent = isOfRun ? rulesAt(rules, path.slice(0, -1)).limit : extentWithin(rules, path, name)
  if (extent === "none") return undefined
  return { ...known, kind, ...(path.length === 0 ? {} : { path }) } as unknown as PublicAbandoned
}

const outcomes: ReadonlySet<unknown> = new Set([
  "Completed",
  "MaxTurns",
  "HaltWhen",
  "AskUser",
  "ToolFailed",
  "Halted",
  "ManualToolCalls",
  "ApprovalRequested",
  "Cancelled",
  "RuleEnded",
  "Failed"
])

const outcomeOf = (rules: Rules, outcome: unknown): Payload | undefined => {
  const _tag = read(outcome, "_tag")
  if (!outcomes.has(_tag)) return undefined
  switch (_tag) {
    case "Failed":
      return { _tag, error: publicError(read(outcome, "error"), rules.runId) }
    case "Cancelled":
      return { _tag, ...taken(outcome, "reason") }
    case "Halted":
    case "ToolFailed":
      return { _tag, ...rules.of(read(outcome, "haltToolCallId")) === "none" ? {} : taken(outcome, "haltToolCallId") }
    case "RuleEnded":
      return { _tag, ...taken(outcome, "rule", "status") }
    default:
      return { _tag, ...taken(outcome, "finishReason", "maxTurns") }
  }
}

/** The largest depth of runs inside handlers that is published. Progress may contain itself. */
const deepestRun = 64

const lostReasons = oneOf(Message.ArgumentsLost.literals)

/** The fields of the published event, besides its tag, or nothing where it is not published. */
const fieldsOf = (rules: Rules, tag: string, event: unknown): Payload | undefined => {
  const id = read(event, "id")
  const name = read(event, "name")
  /** The fields that a published call has, those that it may have, and those that it may have with all of it. */
  const ofCall = (names: ReadonlyArray<Name>, may: ReadonlyArray<Name> = [], more: ReadonlyArray<Name> = []) => {
    const [known] = names
    const extent = rules.of(known && read(event, known), name ?? read(event, "toolName"))
    const found = extent === "none" ? undefined : whole(event, ...names)
    return found && { ...found, ...taken(event, ...may, ...(extent === "all" ? more : [])) }
  }
  const asked = (suspensions: ReadonlyArray<PublicSuspension>): Payload | undefined => {
    const found = ofCall(["toolCallId", "toolName"])
    return found === undefined || suspensions.length === 0 ? undefined : { ...found, suspensions }
  }
  const ofText = (name: "delta" | "text"): Payload | undefined => {
    const found = whole(event, name)
    return found && { id: text(id) ?? null, ...found }
  }
  switch (tag) {
    case "RunStarted":
      return rules.around.length === 0
        ? undefined
        : { runId: rules.isTextPublished ? text(read(event, "runId")) ?? "" : "" }
    case "RequestStarted": {
      const found = whole(event, "stepIndex", "attempt")
      return found && { ...found, ...taken(event, "model", "provider") }
    }
    case "RequestRetried": {
      const found = whole(event, "stepIndex", "attempt", "try", "afterMillis")
      return found && { ...found, code: codeOf(read(event, "code")) }
    }
    case "MessageStarted":
      return {}
    case "MessageCompleted":
      return taken(event, "finishReason", "paused")
    case "TextDelta":
      return rules.isTextPublished ? ofText("delta") : undefined
    case "TextCompleted":
      return rules.isTextPublished ? ofText("text") : undefined
    case "ReasoningDelta":
      return rules.isReasoningPublished ? ofText("delta") : undefined
    case "ToolCallStarted": {
      const isOutput = read(event, "output") === true
      rules.begin(id, name, isOutput)
      return isOutput ? undefined : ofCall(["id", "name"])
    }
    case "ToolCallDelta":
      return rules.of(id) === "all" ? whole(event, "id", "argumentsDelta") : undefined
    case "ToolCallCompleted": {
      const isOutput = read(read(event, "metadata"), "output") === true
      rules.begin(id, name, isOutput)
      rules.ask(id, read(event, "replayed") === true)
      if (isOutput) return undefined
      const found = ofCall(["id", "name"], ["providerExecuted"], ["arguments"])
      const reason = lostReasons(read(event, "argumentsLost"))
      if (found === undefined || reason === undefined) return found
      const raw = rules.of(id, name) === "all" ? optional("text", text(read(event, "rawArguments"))) : {}
      return { ...found, argumentsLost: { reason, ...raw } }
    }
    case "ToolQueued": {
      // Names of permits are made from arguments.
      const found = ofCall(["id", "name", "reason"], ["elsewhere"], ["key"])
      return found && { ...found, ...behindOf(rules, event) }
    }
    case "ToolExecutionStarted":
      rules.begin(id, name)
      const found = ofCall(["id", "name"], ["attempt"], rules.isOfEarlierRun(id) ? ["arguments"] : [])
      if (found === undefined || read(event, "replayed") === true) return found
      const given = read(event, "asked")
      const time = given === undefined ? rules.askedOf(id) : finite(given)
      const waited = waitedOf(rules, event, rules.of(id, name))
      return { ...found, ...optional("asked", time), ...(waited.length === 0 ? {} : { waited }) }
    case "ToolExecutionCompleted":
      return ofCall(["id", "name"])
    case "ToolProgress": {
      const found = ofCall(["id", "name"])
      if (found === undefined || typeof id !== "string") return undefined
      const progress = read(event, "progress")
      const extent = rules.of(id, name)
      if (tagOf(progress) === undefined) return extent === "all" ? { ...found, progress: jsonOf(progress) } : undefined
      if (rules.around.length === deepestRun) return undefined
      rules.begin(id, name)
      const nested = published(rules.within(id, extent), progress, undefined)
      return nested && { ...found, nested }
    }
    case "ToolResultEncoded":
      return ofCall(["id"], ["isError", "code", "settled", "by"], ["content", "originalLength", "detail"])
    case "ToolHalt": {
      const fields = ofCall(["toolCallId"], ["code"], ["content"])
      return fields !== undefined && read(event, "reason") === "tool_error" ? { ...fields, isError: true } : fields
    }
    case "AskUserRequested":
      return asked(suspensionsOf(rules, [asking(event, "question")]))
    case "ToolApprovalRequested":
      return asked(suspensionsOf(rules, [asking(event, "approval")]))
    case "ToolSuspended":
      return asked(suspensionsOf(rules, read(event, "suspensions")))
    case "Error":
    case "StepReset":
      return { error: publicError(read(event, "error"), rules.runId) }
    case "OutputPartial":
    case "OutputCompleted":
      return { value: Json.toJson(read(event, "value")) }
    case "MessageDelivered":
      return { ...taken(event, "id", "stepIndex"), ...taken(read(event, "message"), "content") }
    case "MessageRefused":
      return { ...taken(event, "id"), reason: String(read(event, "reason")) }
    case "ModelSwitched":
      return { ...taken(event, "from", "to"), error: publicError(read(event, "error"), rules.runId) }
    case "StepCompleted": {
      const response = read(event, "response")
      return {
        ...taken(response, "finishReason"),
        ...taken(event, "done"),
        ...optional("usage", usageOf(rules, read(response, "usage")))
      }
    }
    case "ChatCompleted": {
      const result = read(event, "result")
      const outcome = outcomeOf(rules, read(result, "outcome"))
      const suspensions = suspensionsOf(rules, read(result, "suspensions"))
      const abandoned = listOf(read(result, "abandoned")).flatMap((entry) => abandonedOf(rules, entry) ?? [])
      return outcome && {
        outcome,
        ...optional("usage", usageOf(rules, read(result, "usage"))),
        ...optional("totalUsage", usageOf(rules, read(result, "totalUsage"))),
        ...optional("nestedUsage", usageOf(rules, read(result, "nestedUsage"))),
        ...optional("spent", spentOf(rules, read(result, "spent"))),
        ...(suspensions.length === 0 ? {} : { suspensions }),
        ...(abandoned.length === 0 ? {} : { abandoned })
      }
    }
    default:
      return undefined
  }
}

/** Returns the tag of progress that is an event of a run inside the handler. */
const tagOf = (progress: unknown): string | undefined => {
  const tag = read(progress, "_tag")
  return typeof tag === "string" && eventTags.has(tag) ? tag : undefined
}

const eventTags: ReadonlySet<string> = new Set([
  "RunStarted",
  "RequestStarted",
  "RequestRetried",
  "MessageStarted",
  "TextDelta",
  "TextCompleted",
  "ReasoningDelta",
  "ToolCallStarted",
  "ToolCallDelta",
  "ToolCallCompleted",
  "MessageCompleted",
  "RawChunk",
  "Error",
  "ToolQueued",
  "ToolExecutionStarted",
  "ToolProgress",
  "ToolExecutionCompleted",
  "ToolResultEncoded",
  "AskUserRequested",
  "ToolApprovalRequested",
  "ToolSuspended",
  "ToolHalt",
  "StepReset",
  "ModelSwitched",
  "MessageDelivered",
  "MessageRefused",
  "OutputPartial",
  "OutputCompleted",
  "StepCompleted",
  "ChatCompleted"
])

const published = (rules: Rules, event: unknown, at: number | undefined): PublicEvent | undefined => {
  const tag = tagOf(event)
  const fields = tag === undefined ? undefined : fieldsOf(rules, tag, event)
  if (fields === undefined) return undefined
  return {
    _tag: tag,
    ...fields,
    ...(at === undefined ? {} : { at }),
    ...(read(event, "replayed") === true ? { replayed: true } : {})
  } as unknown as PublicEvent
}

/** Returns what is published of an event, or nothing. */
export const toPublic = (event: { readonly _tag: string }, options: PublicOptions): PublicEvent | undefined => {
  checkNames("Event.toPublic", options, knownOptions)
  return published(new Rules(options, "all", options.calls, []), event, options.at)
}
