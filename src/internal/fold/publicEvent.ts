/**
 * The public form of events: an allow list for everything leaving a server. It reads events as data, in both runtime
 * and wire form, since a call's progress may be the events of a run inside its handler. Raw results, context updates,
 * causes, threads, reply metadata and raw chunks are never published. A field with the wrong type is left out, since
 * progress may be anything resembling an event. Public as `Event.toPublic`.
 */
import * as Message from "../../Message.ts"
import * as CallPaths from "../answer/callPath.ts"
import { FinishReason, ToolError } from "../declare/outcome.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as Json from "../json.ts"
import * as EventJson from "./eventJson.ts"

/**
 * Publication level for a tool's calls. `"all"` publishes everything: arguments, progress, and the answer as seen by
 * the model. `"names"` publishes id, name, states and questions. `"none"` publishes nothing.
 *
 * @category models
 */
export type Publish = "all" | "names" | "none"

/**
 * A published call, remembered for later events.
 *
 * @category models
 */
export interface PublicCall {
  /** Tool name. */
  readonly name: string
  /** `true` for a typed-answer call, which is not published. */
  readonly output?: true
  /** Time the call was complete in the reply, in milliseconds since 1970. Left out if unknown. */
  readonly asked?: number
  /** `true` once its `ToolCallCompleted` was published, including the arguments. */
  readonly announced?: true
  /** Calls in the run inside the handler, by id. */
  readonly calls: Map<string, PublicCall>
}

/**
 * Options of `Event.toPublic`.
 *
 * @category options
 */
export interface PublicOptions {
  /** Publication level, or a function from tool name to level. Defaults to `"all"`. */
  readonly publish?: Publish | ((tool: string) => Publish)
  /** `true` to publish the model's reasoning. Defaults to `false`. */
  readonly publishReasoning?: boolean
  /** `true` to publish provider-reported costs with the usage. Defaults to `false`. */
  readonly publishCost?: boolean
  /** Id of the run, used in suspension ids. None by default. */
  readonly runId?: string
  /**
   * Calls in the run by id, read and extended by the function: pass one map for all events of a run. Without the map,
   * an event not naming its tool is published only if `publish` is not a function, and a typed-answer call is
   * recognized only in its announcing events, so its handler events are published.
   */
  readonly calls?: Map<string, PublicCall>
  /** Event time, in milliseconds since 1970. None by default. */
  readonly at?: number
}

/** Option kinds. */
export const knownOptions = {
  publish: Values.either(Values.oneOf("all", "names", "none"), Values.fn),
  publishReasoning: Values.flag,
  publishCost: Values.flag,
  runId: Values.text,
  calls: Values.map,
  at: Values.amount
} satisfies NamesOf<PublicOptions>

/**
 * A published error, without text from providers, handlers or stores.
 *
 * @category models
 */
export interface PublicError {
  /** Error kind: the reason of an `AdapterError`, or `"internal"`. */
  readonly code: string
  /** Text for a person. */
  readonly message: string
  /** Id of the run, for searching the log. Left out without `runId`. */
  readonly id?: string
}

/**
 * Published usage: all known figures. A provider may report any subset.
 *
 * @category models
 */
export type PublicUsage = {
  /** Request tokens, including tokens read from or written to a cache. */
  readonly inputTokens?: number
  /** Reply tokens, including reasoning. */
  readonly outputTokens?: number
  /** Total tokens, as counted by the provider. */
  readonly totalTokens?: number
  /** Request tokens read from the provider's cache. */
  readonly cachedInputTokens?: number
  /** Request tokens written to the provider's cache. */
  readonly cacheWriteInputTokens?: number
  /** Reasoning tokens. */
  readonly reasoningTokens?: number
  /** Request cost. Left out unless `publishCost` is set, like the following fields. */
  readonly inputCost?: number
  /** Reply cost. */
  readonly outputCost?: number
  /** Total cost. Left out for mixed currencies, which have no sum. */
  readonly totalCost?: number
  /** Currency code, such as `"USD"`. Left out if not reported by the provider. */
  readonly currency?: string
}

/**
 * Spending and remaining budget of a run, published under `publishCost`.
 *
 * @category models
 */
export type PublicSpent = PublicAmount & {
  /** Remainder of each bound. Unbounded resources are left out. */
  readonly left: PublicAmount & {
    /** Request and reply tokens. */
    readonly tokens?: number
  }
}

/**
 * Published amounts: requests, tokens and money.
 *
 * @category models
 */
export type PublicAmount = {
  /** Model requests. */
  readonly calls?: number
  /** Request tokens. */
  readonly inputTokens?: number
  /** Reply tokens. */
  readonly outputTokens?: number
  /** Cost, in millionths of the currency. */
  readonly money?: number
}

/**
 * A published waiting call.
 *
 * @category models
 */
export interface PublicSuspension {
  /**
   * Id for answering: the `Event.Suspension` id, prefixed with the id of the run where the call began to wait and a
   * `~`. A call waiting again in a later run gets another id. Without `runId` the id names no run.
   */
  readonly id: string
  /** Kind of the awaited answer, as in `Event.Suspension`. */
  readonly kind: "question" | "approval" | "manual" | "unknown"
  /** The call. */
  readonly toolCall: {
    /** Call id. */
    readonly id: string
    /** Tool name. */
    readonly name: string
    /** Arguments. Left out unless published. */
    readonly arguments?: Json.JsonObject
  }
  /**
   * Text to show. Left out if empty, and for a call with an unknown effect unless its arguments are published, since
   * the text quotes them.
   */
  readonly question?: string
  /** Choices for the user. Left out if there are no choices. */
  readonly opts?: ReadonlyArray<unknown>
  /** JSON Schema of the answer. Left out for free answers. */
  readonly answerSchema?: Json.JsonObject
  /** Expiry, in milliseconds since 1970. Left out for unlimited waits. */
  readonly expiresAt?: number
  /** Scope in which an approval may be remembered for the session. Left out if it may not be remembered. */
  readonly remember?: "tool" | "arguments"
}

/**
 * A published wait of a call.
 *
 * @category models
 */
interface PublicWait {
  /** Reason: `"permit"`, `"key"` or `"exclusive"`. */
  readonly reason: string
  /** Permit name. Left out for other reasons, and if arguments are not published. */
  readonly key?: string
  /** Ids of the run's published calls ahead. Left out if empty. */
  readonly behind?: ReadonlyArray<string>
  /** `true` if another run held the permit. Left out otherwise. */
  readonly elsewhere?: boolean
  /** Length of the wait, in milliseconds. */
  readonly millis: number
}

/**
 * A published run outcome: its `_tag`, and fields without text from handlers.
 *
 * @category models
 */
export interface PublicOutcome {
  /** Outcome tag, as in `Event.Outcome`. */
  readonly _tag: string
  /** Finish reason of the last reply, for `Completed`. */
  readonly finishReason?: string
  /** The run's `maxTurns`. Left out unless the outcome is `MaxTurns`. */
  readonly maxTurns?: number
  /** Rule name, for `RuleEnded`. */
  readonly rule?: string
  /** `"completed"` or `"error"`, for `RuleEnded`. */
  readonly status?: string
  /** Source of the cancellation, for `Cancelled`. */
  readonly reason?: string
  /** Id of the halting or failed call, for `Halted` and `ToolFailed`. */
  readonly haltToolCallId?: string
  /** The error, for `Failed`. */
  readonly error?: PublicError
}

/**
 * Published code left running after its run: a published call, a hook or the adapter.
 *
 * @category models
 */
export interface PublicAbandoned {
  /** Call id or run id. */
  readonly id: string
  /** Tool name or option name. */
  readonly name: string
  /** Kind of code, as in `Event.Abandoned`. Appends and the `cancel` effect are not published. */
  readonly kind: "handler" | "hook" | "adapter"
  /** Running time so far, in milliseconds. */
  readonly ageMillis: number
  /** Call ids leading to the code, from the run's own call inward. Left out for code of the run itself. */
  readonly path?: ReadonlyArray<string>
}

/** Fields of a call event. */
interface OfCall {
  /** Call id. */
  readonly id: string
  /** Tool name. */
  readonly name: string
}

/** Fields of an event asking for answers. */
interface Asking {
  /** Call id. */
  readonly toolCallId: string
  /** Tool name. */
  readonly toolName: string
  /** Open calls: the call itself, or calls in the run inside its handler. */
  readonly suspensions: ReadonlyArray<PublicSuspension>
}

/** A call's answer. */
interface Answered {
  /** Content read by the model. Left out unless published. */
  readonly content?: string | ReadonlyArray<Json.JsonObject>
}

/** Fields of an event with text, whole or in part. */
interface OfText {
  /** The provider's block id, or `null`. */
  readonly id: string | null
}

/** Reported usage. */
interface Used {
  /** Usage of the step or run. Left out if not reported. */
  readonly usage?: PublicUsage
}

/** End of a reply. */
interface Ended {
  /** Finish reason. Left out if the provider gave no reason. */
  readonly finishReason?: string
  /** `true` if the provider paused the reply. Left out otherwise. */
  readonly paused?: boolean
}

interface Fields {
  RequestStarted: {
    /** Step index, from 0. */
    readonly stepIndex: number
    /** Request number within the step, from 1. */
    readonly attempt: number
    /** Requested model. Left out if unknown. */
    readonly model?: string
    /** The model's provider. Left out if unknown. */
    readonly provider?: string
  }
  RequestRetried: {
    /** Step index, from 0. */
    readonly stepIndex: number
    /** Request number within the step, from 1. */
    readonly attempt: number
    /** Number of the failed try, from 1. */
    readonly try: number
    /** Reason of its error. */
    readonly code: string
    /** Pause before the next try, in milliseconds. */
    readonly afterMillis: number
  }
  MessageStarted: {}
  RunStarted: {
    /**
     * Id of the started or resumed run. A server adds this event and `StopAccepted` to a session's events. Inside a
     * handler it precedes all events of the runs there, which replace the call's earlier events. The id is then empty
     * unless the call is published in full.
     */
    readonly runId: string
  }
  StopAccepted: {
    /** Sender of the stop, as named by the program. Left out if unknown. */
    readonly by?: string
    /** Path of the single call to stop, as taken by `Session.stop`. Left out when the whole run stops. */
    readonly call?: string
  }
  TextDelta: OfText & {
    /** Text to append to the previous pieces. */
    readonly delta: string
  }
  ReasoningDelta: Fields["TextDelta"]
  TextCompleted: OfText & {
    /** The text. */
    readonly text: string
  }
  ToolCallStarted: OfCall
  ToolCallDelta: {
    /** Call id. */
    readonly id: string
    /** JSON text to append to the previous pieces. */
    readonly argumentsDelta: string
  }
  ToolCallCompleted: OfCall & {
    /** Arguments. Left out unless published. */
    readonly arguments?: Json.JsonObject
    /** Problem with the arguments. Left out for trusted arguments. */
    readonly argumentsLost?: {
      /** Reason for distrust. */
      readonly reason: string
      /** Text as sent. Left out unless arguments are published. */
      readonly text?: string
    }
    /** `true` for a provider-run call. */
    readonly providerExecuted?: boolean
  }
  MessageCompleted: Ended
  Error: {
    /** The error breaking the reply. */
    readonly error: PublicError
  }
  StepReset: Fields["Error"]
  OutputPartial: {
    /** Typed answer so far, encoded. */
    readonly value: unknown
  }
  OutputCompleted: Fields["OutputPartial"]
  ModelSwitched: Fields["Error"] & {
    /** Name of the failed candidate. */
    readonly from: string
    /** Name of the next candidate. */
    readonly to: string
  }
  MessageDelivered: {
    /** Message id. */
    readonly id: string
    /** Message content: a text, or parts. */
    readonly content: Message.Content
    /** Index of the step including the message, from 0. */
    readonly stepIndex: number
  }
  MessageRefused: {
    /** Message id. */
    readonly id: string
    /** Message content: a text, or parts. */
    readonly content: Message.Content
    /** Reason: how the run ended, or which rule ended the run. */
    readonly reason: string
  }
  ToolQueued: OfCall & {
    /** Reason for the wait: `"permit"`, `"key"` or `"exclusive"`. */
    readonly reason: string
    /** Permit name. Left out for other reasons, and if arguments are not published. */
    readonly key?: string
    /** Ids of the run's published calls ahead. Left out if empty. */
    readonly behind?: ReadonlyArray<string>
    /** `true` if another run holds the permit. Left out otherwise. */
    readonly elsewhere?: boolean
  }
  ToolExecutionStarted: OfCall & {
    /** Attempt number. Left out for the first attempt. */
    readonly attempt?: number
    /**
     * Time the call was complete in the reply, in milliseconds since 1970. Left out if unknown: for calls from an
     * earlier run, and without `at` or `calls`.
     */
    readonly asked?: number
    /** Waits for the call's turn, in order. Left out for a call starting at once. */
    readonly waited?: ReadonlyArray<PublicWait>
    /**
     * Arguments of a call from an earlier run, as possibly changed by an approval. Left out if its `ToolCallCompleted`
     * has them, if arguments are not published, and without `calls`.
     */
    readonly arguments?: Json.JsonObject
  }
  ToolProgress: OfCall & {
    /** Progress as reported by the handler. Left out for an event of a run inside the handler. */
    readonly progress?: unknown
    /** Event of a run inside the handler. */
    readonly nested?: PublicEvent
  }
  ToolExecutionCompleted: OfCall
  ToolResultEncoded: Answered & {
    /** Call id. */
    readonly id: string
    /** `true` for an error answer. Left out otherwise. */
    readonly isError?: boolean
    /** Reason of the answered `Tool.ToolError`, such as `"denied"`. Left out for other answers. */
    readonly code?: string
    /** Full text length in characters, for cut content. */
    readonly originalLength?: number
    /** `true` if the answer closes a previously open call. Left out otherwise. */
    readonly settled?: boolean
    /** Sender of a denial, as named by the program. Left out for other answers, and if unknown. */
    readonly by?: string
    /** The sender's reason. Left out if absent, and if arguments are not published. */
    readonly detail?: string
  }
  AskUserRequested: Asking
  ToolApprovalRequested: Asking
  ToolSuspended: Asking
  ToolHalt: Answered & {
    /** Call id. */
    readonly toolCallId: string
    /** `true` for a failure ending the run. Left out for `Tool.halt`. */
    readonly isError?: boolean
    /** Reason of the `Tool.ToolError` ending the run. Left out for other halts. */
    readonly code?: string
  }
  StepCompleted: Ended & Used & {
    /** `true` if the model has nothing more to do. */
    readonly done?: boolean
  }
  ChatCompleted: Used & {
    /** Outcome of the run. */
    readonly outcome: PublicOutcome
    /** Usage of the run and the runs inside its handlers. Left out if not reported. */
    readonly totalUsage?: PublicUsage
    /** Part of `totalUsage` from runs inside its handlers. Left out if they reported nothing. */
    readonly nestedUsage?: PublicUsage
    /**
     * Spending by the run and the runs inside its handlers, and the remaining budget. Left out unless `publishCost` is
     * set, and without a budget.
     */
    readonly spent?: PublicSpent
    /** Calls waiting for an answer, in call order. Left out if no call waits. */
    readonly suspensions?: ReadonlyArray<PublicSuspension>
    /** Code left running. Left out if empty. */
    readonly abandoned?: ReadonlyArray<PublicAbandoned>
  }
}

/** Fields common to all events. */
interface Common {
  /** Event time, in milliseconds since 1970. Left out without `at`. */
  readonly at?: number
  /** `true` for events from before the run was resumed. Left out otherwise. */
  readonly replayed?: boolean
}

/**
 * An event leaving a server, as plain JSON. Fields keep the event's names and meanings; unpublished fields are left
 * out.
 *
 * @category models
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
  network_error: "The connection to the model was lost. Try again.",
  malformed_response: "The model's reply could not be read. Try again.",
  unsupported_feature: "The model does not support a feature of the request."
}

/** Reads any value's member. A getter may throw. */
const read = (value: unknown, name: string): unknown => {
  if (typeof value !== "object" || value === null) return undefined
  try {
    return Reflect.get(value, name)
  } catch {
    return undefined
  }
}

/** Returns list items, or an empty list for any other value. */
const listOf = (value: unknown): ReadonlyArray<unknown> => {
  try {
    return Array.isArray(value) ? Array.from(value as ReadonlyArray<unknown>) : []
  } catch {
    return []
  }
}

/** Returns a value as JSON. */
const jsonOf = (value: unknown): unknown => read(EventJson.toJson({ value }), "value")

/** Returns a known adapter error reason, or `"internal"`. */
const codeOf = (reason: unknown): string =>
  typeof reason === "string" && Object.hasOwn(sentences, reason) ? reason : "internal"

/** Returns an error without foreign text. Its code is an adapter error's reason, or `"internal"`. */
const publicError = (error: unknown, runId: string | undefined): PublicError => {
  const reason = read(error, "_tag") === "AdapterError" ? read(error, "reason") : undefined
  const code = codeOf(reason)
  return {
    code,
    message: sentences[code] ?? "The run failed. This service has logged the reason.",
    ...(runId === undefined ? {} : { id: runId })
  }
}

type Payload = { readonly [name: string]: unknown }

/** Returns the published value, or `undefined` for a value with the wrong type. */
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

/** Published fields by name, each with its type. */
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

/** Picks the given members among the wanted ones. */
const taken = (event: unknown, ...names: ReadonlyArray<Name>): Payload => {
  const found: Record<string, unknown> = {}
  for (const name of names) {
    const value = fields[name](read(event, name))
    if (value !== undefined) found[name] = value
  }
  return found
}

/** Picks required members, or returns `undefined` if any is missing. */
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

/** Returns the reported cost and its currency. Empty if `XXX` marks mixed currencies. */
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

/** Publication rules for one run's events. */
class Rules {
  readonly calls: Map<string, PublicCall> | undefined
  /** Calls around the run, outermost first. */
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

  /** Remembers a call's name for later events without a name. */
  begin(id: unknown, name: unknown, isOutput = false): void {
    if (typeof id !== "string" || typeof name !== "string" || this.calls === undefined) return
    if (this.calls.get(id)?.name === name) return
    this.calls.set(id, { name, calls: new Map(), ...(isOutput ? { output: true } : {}) })
  }

  /** Remembers that a call was complete in the reply, and when, unless that was before the run was resumed. */
  ask(id: unknown, isReplayed: boolean): void {
    const { at } = this.options
    const call = typeof id === "string" ? this.calls?.get(id) : undefined
    if (call === undefined) return
    const asked = isReplayed || at === undefined ? {} : { asked: at }
    this.calls?.set(String(id), { ...call, announced: true, ...asked })
  }

  /** Returns `true` if no other published event has the call's arguments. */
  isOfEarlierRun(id: unknown): boolean {
    return this.calls !== undefined && typeof id === "string" && this.calls.get(id)?.announced !== true
  }

  /** Returns the time a call was complete in the reply, if known. */
  askedOf(id: unknown): number | undefined {
    return typeof id === "string" ? this.calls?.get(id)?.asked : undefined
  }

  /** Returns a call's level: its tool's level, never above the enclosing call's. */
  of(id: unknown, name: unknown = typeof id === "string" ? this.calls?.get(id)?.name : undefined): Publish {
    if (typeof id === "string" && this.calls?.get(id)?.output === true) return "none"
    const { publish = "all" } = this.options
    const own = typeof publish !== "function" ? publish : typeof name === "string" ? publish(name) : "none"
    return least(own, this.limit)
  }

  /** Returns the rules for a run inside a call's handler. */
  within(id: string, extent: Publish): Rules {
    return new Rules(this.options, extent, this.calls?.get(id)?.calls, [...this.around, id])
  }
}

const extents: ReadonlyArray<Publish> = ["none", "names", "all"]

/** Returns the lower level. An unknown level publishes nothing. */
const least = (left: Publish, right: Publish): Publish =>
  extents[Math.max(0, Math.min(extents.indexOf(left), extents.indexOf(right)))] ?? "none"

/** Returns the rules for the run at a path of calls. */
const rulesAt = (rules: Rules, path: ReadonlyArray<string>): Rules =>
  path.reduce((within, id) => within.within(id, within.of(id)), rules)

/** Returns a nested call's level: the lowest along its path. */
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
    // The text about a call with an unknown effect quotes its arguments.
    ...(isAll || known["kind"] !== "unknown" ? taken(suspension, "question") : {}),
    ...taken(suspension, "opts", "answerSchema", "expiresAt"),
    ...(rules.around.length + path.length === 0 ? optional("remember", scopeOf(suspension)) : {}),
    toolCall: { ...toolCall, ...(isAll ? taken(read(suspension, "toolCall"), "arguments") : {}) }
  } as unknown as PublicSuspension
}

const suspensionsOf = (rules: Rules, suspensions: unknown): ReadonlyArray<PublicSuspension> =>
  listOf(suspensions).flatMap((suspension) => suspensionOf(rules, suspension) ?? [])

/** Returns the published calls ahead of a call. */
const behindOf = (rules: Rules, wait: unknown): Payload => {
  const behind = listOf(read(wait, "behind")).filter((id) => typeof id === "string" && rules.of(id) !== "none")
  return behind.length === 0 ? {} : { behind }
}

/** Returns a call's waits. Permit names are made from arguments. */
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

/** Builds the suspension of an event asking about one call. */
const asking = (event: unknown, kind: string): Payload => ({
  kind,
  toolCall: { id: read(event, "toolCallId"), name: read(event, "toolName"), arguments: read(event, "arguments") },
  question: read(event, "question"),
  opts: read(event, "opts"),
  answerSchema: read(event, "answerSchema"),
  expiresAt: read(event, "expiresAt"),
  remember: read(event, "remember")
})

/** Kinds of code a reader may see. Appends belong to the session, whose key names its principal. */
const abandonedKinds = oneOf(["handler", "hook", "adapter"])

const abandonedOf = (rules: Rules, abandoned: unknown): PublicAbandoned | undefined => {
  const known = whole(abandoned, "id", "name", "ageMillis")
  const kind = abandonedKinds(read(abandoned, "kind"))
  const path = listOf(read(abandoned, "path"))
  if (known === undefined || kind === undefined) return undefined
  if (path.length > deepestRun || !path.every((id) => typeof id === "string")) return undefined
  const { id, name } = known
  // Code of a run inside a handler is published like its handler.
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

/** Deepest published nesting of runs. Progress may contain itself. */
const deepestRun = 64

const lostReasons = oneOf(Message.ArgumentsLost.literals)

/** Returns the published fields besides the tag, or `undefined` for an unpublished event. */
const fieldsOf = (rules: Rules, tag: string, event: unknown): Payload | undefined => {
  const id = read(event, "id")
  const name = read(event, "name")
  /** Picks a published call's required fields, its optional fields, and the fields only for full publication. */
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
      // Permit names are made from arguments.
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
      return {
        ...taken(event, "id"),
        ...taken(read(event, "message"), "content"),
        reason: String(read(event, "reason"))
      }
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

/** Returns the tag if progress is an event of a run inside the handler. */
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

/** Returns the public form of an event, or `undefined`. */
export const toPublic = (event: { readonly _tag: string }, options: PublicOptions): PublicEvent | undefined => {
  checkNames("Event.toPublic", options, knownOptions)
  return published(new Rules(options, "all", options.calls, []), event, options.at)
}
