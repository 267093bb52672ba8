/**
 * The public form of events: the allow list of what leaves a server. It reads events as data, in their own form and in
 * their wire form, since the progress of a call may be the events of a run inside its handler. It never publishes raw
 * results, updates of the context, causes, threads, metadata of replies or raw chunks. Public as `Event.toPublic`.
 */
import * as Json from "../json.ts"

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
  /** The id of the run, from which the ids are made by which answers name their call. None by default. */
  readonly runId?: string
  /**
   * The calls of the run by id, which the function reads and adds to: give one map for all events of a run. Without
   * it, events that do not name their tool are published where `publish` is no function, and not otherwise.
   */
  readonly calls?: Map<string, PublicCall>
  /** Time of the event, in milliseconds since 1970. None by default. */
  readonly at?: number
}

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
 * A usage as it is published: the counts of tokens that are known.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicUsage = { readonly [name: string]: number }

/**
 * A call that waits for an answer, as it is published.
 *
 * @category models
 * @since 0.1.0
 */
export interface PublicSuspension {
  /** The id of the call, or the ids of the calls that lead to it, joined by `/`. */
  readonly id: string
  /** The name of the call for an answer from outside: the id of the run and `id`, joined by `~`. */
  readonly answerId: string
  /** The answer that it waits for, as in `Event.Suspension`. */
  readonly kind: "question" | "approval" | "manual" | "unknown"
  /** The call. Its arguments are left out unless they are published. */
  readonly toolCall: { readonly id: string; readonly name: string; readonly arguments?: Json.JsonObject }
  /** The text to show. Left out where there is none. */
  readonly question?: string
  /** The choices of the user. Left out where there are none. */
  readonly opts?: ReadonlyArray<unknown>
  /** The JSON Schema of the answer. Left out where it is free. */
  readonly answerSchema?: Json.JsonObject
  /** The time at which it expires, in milliseconds since 1970. Left out when it waits without a limit. */
  readonly expiresAt?: number
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
  /** The number of model calls that the run may make, of `MaxTurns`. */
  readonly maxTurns?: number
  /** The source of the cancellation, of `Cancelled`. */
  readonly reason?: string
  /** The id of the call that ended the run, of `Halted` and `ToolFailed`. */
  readonly haltToolCallId?: string
  /** The error, of `Failed`. */
  readonly error?: PublicError
}

/** The content of an answer: a text, or parts. */
type Content = string | ReadonlyArray<Json.JsonObject>

/**
 * An event as it leaves a server, as plain JSON. Its fields have the names and the meanings of those of the event; what
 * is not published is left out.
 *
 * @category models
 * @since 0.1.0
 */
export type PublicEvent =
  & (
    | { readonly _tag: "MessageStarted" }
    /** The beginning of a run in the events of a session, which a server adds. */
    | { readonly _tag: "RunStarted"; readonly runId: string }
    | { readonly _tag: "TextDelta" | "ReasoningDelta"; readonly id: string | null; readonly delta: string }
    | { readonly _tag: "TextCompleted"; readonly id: string | null; readonly text: string }
    | { readonly _tag: "ToolCallStarted"; readonly id: string; readonly name: string }
    | { readonly _tag: "ToolCallDelta"; readonly id: string; readonly argumentsDelta: string }
    | {
      readonly _tag: "ToolCallCompleted"
      readonly id: string
      readonly name: string
      readonly arguments?: Json.JsonObject
      /** The text that is no JSON object, or is not whole, and the reason. Left out when the arguments can be trusted. */
      readonly argumentsLost?: { readonly reason: string; readonly text?: string }
      readonly providerExecuted?: boolean
    }
    | { readonly _tag: "MessageCompleted"; readonly finishReason?: string }
    | { readonly _tag: "Error" | "StepReset"; readonly error: PublicError }
    | { readonly _tag: "ToolQueued"; readonly id: string; readonly name: string; readonly reason: string }
    | { readonly _tag: "ToolExecutionStarted"; readonly id: string; readonly name: string; readonly attempt?: number }
    | {
      readonly _tag: "ToolProgress"
      readonly id: string
      readonly name: string
      /** The progress as the handler reported it. Left out for an event of a run inside the handler. */
      readonly progress?: unknown
      /** The event of a run inside the handler. */
      readonly nested?: PublicEvent
    }
    | { readonly _tag: "ToolExecutionCompleted"; readonly id: string; readonly name: string }
    | {
      readonly _tag: "ToolResultEncoded"
      readonly id: string
      readonly content?: Content
      readonly isError?: boolean
      readonly code?: string
      readonly originalLength?: number
      readonly settled?: boolean
    }
    | {
      readonly _tag: "AskUserRequested" | "ToolApprovalRequested" | "ToolSuspended"
      readonly toolCallId: string
      readonly toolName: string
      /** The calls that are open: the call itself, or those of the run inside its handler. */
      readonly suspensions: ReadonlyArray<PublicSuspension>
    }
    | {
      readonly _tag: "ToolHalt"
      readonly toolCallId: string
      readonly content?: Content
      /** `true` for a failure that ended the run. Left out for `Tool.halt`. */
      readonly isError?: boolean
    }
    | {
      readonly _tag: "StepCompleted"
      readonly finishReason?: string
      readonly usage?: PublicUsage
      readonly done?: boolean
    }
    | {
      readonly _tag: "ChatCompleted"
      readonly outcome: PublicOutcome
      readonly usage?: PublicUsage
      readonly totalUsage?: PublicUsage
      readonly suspensions?: ReadonlyArray<PublicSuspension>
    }
  )
  & {
    /** Time of the event, in milliseconds since 1970. Left out where `at` is not given. */
    readonly at?: number
    /** `true` for what had happened before the run was resumed. Left out otherwise. */
    readonly replayed?: boolean
  }

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

/** Returns the error without the texts of others. Its kind is the reason of an adapter's error. */
export const publicError = (error: unknown, runId: string | undefined): PublicError => {
  const reason = Json.isObject(error) && error["_tag"] === "AdapterError" ? error["reason"] : undefined
  const code = typeof reason === "string" && Object.hasOwn(sentences, reason) ? reason : "internal"
  return {
    code,
    message: sentences[code] ?? "The run failed for a reason that this service has logged.",
    ...(runId === undefined ? {} : { id: runId })
  }
}

type Payload = { readonly [name: string]: unknown }

/** Takes the members that are given and wanted, as JSON. */
const taken = (event: Payload, ...names: ReadonlyArray<string>): Payload => {
  const found: Record<string, unknown> = {}
  for (const name of names) {
    const value = event[name]
    if (value !== undefined && value !== null) found[name] = typeof value === "object" ? Json.toJson(value) : value
  }
  return found
}

const counts = [
  "inputTokens",
  "outputTokens",
  "totalTokens",
  "cachedInputTokens",
  "cacheWriteInputTokens",
  "reasoningTokens"
]

const usageOf = (usage: unknown): Payload | undefined => {
  if (!Json.isObject(usage)) return undefined
  const known = counts.flatMap((name) => typeof usage[name] === "number" ? [[name, usage[name]]] : [])
  return known.length === 0 ? undefined : Object.fromEntries(known)
}

const optional = (name: string, value: unknown): Payload => value === undefined ? {} : { [name]: value }

/** The rules of the events of one run. */
class Rules {
  readonly calls: Map<string, PublicCall> | undefined
  /** The beginning of the names by which answers name the calls of the run. */
  readonly prefix: string
  private readonly limit: Publish
  private readonly options: PublicOptions

  constructor(options: PublicOptions, limit: Publish, calls: Map<string, PublicCall> | undefined, prefix: string) {
    this.options = options
    this.limit = limit
    this.calls = calls
    this.prefix = prefix
  }

  get runId(): string | undefined {
    return this.options.runId
  }

  get isTextPublished(): boolean {
    return this.limit === "all"
  }

  get isReasoningPublished(): boolean {
    return this.isTextPublished && this.options.publishReasoning === true
  }

  /** Remembers the name of a call for the events that do not have it. */
  begin(id: unknown, name: unknown): void {
    if (typeof id !== "string" || typeof name !== "string" || this.calls === undefined) return
    if (this.calls.get(id)?.name !== name) this.calls.set(id, { name, calls: new Map() })
  }

  /** The extent for a call: that of its tool, and never more than that of the call around its run. */
  of(id: unknown, name: unknown = typeof id === "string" ? this.calls?.get(id)?.name : undefined): Publish {
    const { publish = "all" } = this.options
    const own = typeof publish !== "function" ? publish : typeof name === "string" ? publish(name) : "none"
    return least(own, this.limit)
  }

  /** The rules of a run inside the handler of a call. */
  within(id: string, extent: Publish): Rules {
    return new Rules(this.options, extent, this.calls?.get(id)?.calls, `${this.prefix}${id}/`)
  }
}

const extents: ReadonlyArray<Publish> = ["none", "names", "all"]

/** Returns the smaller extent. An extent that does not exist publishes nothing. */
const least = (left: Publish, right: Publish): Publish =>
  extents[Math.max(0, Math.min(extents.indexOf(left), extents.indexOf(right)))] ?? "none"

const suspensionOf = (rules: Rules, suspension: unknown): PublicSuspension | undefined => {
  if (!Json.isObject(suspension) || !Json.isObject(suspension["toolCall"])) return undefined
  const { toolCall } = suspension
  const [outer] = Array.isArray(suspension["path"]) ? suspension["path"] : []
  const around = outer === undefined ? "all" : rules.of(outer)
  const extent = least(rules.of(undefined, toolCall["name"]), around)
  if (extent === "none") return undefined
  const id = String(suspension["id"])
  return {
    id,
    answerId: `${rules.prefix}${id}`,
    ...taken(suspension, "kind", "question", "opts", "answerSchema", "expiresAt"),
    toolCall: taken(toolCall, "id", "name", ...(extent === "all" ? ["arguments"] : []))
  } as unknown as PublicSuspension
}

const suspensionsOf = (rules: Rules, suspensions: unknown): ReadonlyArray<PublicSuspension> =>
  Array.isArray(suspensions) ? suspensions.flatMap((suspension) => suspensionOf(rules, suspension) ?? []) : []

/** The suspension of an event that asks for one call. */
const asking = (event: Payload, kind: string): Payload => ({
  ...event,
  kind,
  id: event["toolCallId"],
  toolCall: { id: event["toolCallId"], name: event["toolName"], arguments: event["arguments"] }
})

const outcomeOf = (rules: Rules, outcome: unknown): PublicOutcome => {
  const payload = Json.isObject(outcome) ? outcome : {}
  const _tag = String(payload["_tag"])
  switch (_tag) {
    case "Failed":
      return { _tag, error: publicError(payload["error"], rules.runId) }
    case "Cancelled":
      return { _tag, ...taken(payload, "reason") }
    case "Halted":
    case "ToolFailed":
      return { _tag, ...rules.of(payload["haltToolCallId"]) === "none" ? {} : taken(payload, "haltToolCallId") }
    default:
      return { _tag, ...taken(payload, "finishReason", "maxTurns") }
  }
}

/** The fields of the published event, besides its tag, or nothing where it is not published. */
const fieldsOf = (rules: Rules, tag: string, event: Payload): Payload | undefined => {
  /** The fields that are published of a call, and those that are with all of it. */
  const ofCall = (id: unknown, names: ReadonlyArray<string>, more: ReadonlyArray<string> = []) => {
    const extent = rules.of(id, event["name"] ?? event["toolName"])
    return extent === "none" ? undefined : taken(event, ...names, ...(extent === "all" ? more : []))
  }
  const asked = (suspensions: ReadonlyArray<PublicSuspension>): Payload | undefined =>
    suspensions.length === 0 ? undefined : { ...taken(event, "toolCallId", "toolName"), suspensions }
  switch (tag) {
    case "MessageStarted":
      return {}
    case "MessageCompleted":
      return taken(event, "finishReason")
    case "TextDelta":
      return rules.isTextPublished ? { id: event["id"] ?? null, ...taken(event, "delta") } : undefined
    case "TextCompleted":
      return rules.isTextPublished ? { id: event["id"] ?? null, ...taken(event, "text") } : undefined
    case "ReasoningDelta":
      return rules.isReasoningPublished ? { id: event["id"] ?? null, ...taken(event, "delta") } : undefined
    case "ToolCallStarted":
      rules.begin(event["id"], event["name"])
      return ofCall(event["id"], ["id", "name"])
    case "ToolCallDelta":
      return rules.of(event["id"]) === "all" ? taken(event, "id", "argumentsDelta") : undefined
    case "ToolCallCompleted": {
      rules.begin(event["id"], event["name"])
      const fields = ofCall(event["id"], ["id", "name", "providerExecuted"], ["arguments"])
      const lost = event["argumentsLost"]
      if (fields === undefined || !Json.isObject(lost)) return fields
      const text = "arguments" in fields ? optional("text", event["rawArguments"]) : {}
      return { ...fields, argumentsLost: { ...taken(lost, "reason"), ...text } }
    }
    case "ToolQueued":
      return ofCall(event["id"], ["id", "name", "reason"])
    case "ToolExecutionStarted":
      rules.begin(event["id"], event["name"])
      return ofCall(event["id"], ["id", "name", "attempt"])
    case "ToolExecutionCompleted":
      return ofCall(event["id"], ["id", "name"])
    case "ToolProgress": {
      const id = event["id"]
      const extent = rules.of(id, event["name"])
      if (extent === "none" || typeof id !== "string") return undefined
      const { progress } = event
      if (isEvent(progress)) {
        rules.begin(id, event["name"])
        const nested = published(rules.within(id, extent), progress, undefined)
        return nested === undefined ? undefined : { ...taken(event, "id", "name"), nested }
      }
      return extent === "all" ? { ...taken(event, "id", "name"), progress: Json.toJson(progress) } : undefined
    }
    case "ToolResultEncoded":
      return ofCall(event["id"], ["id", "isError", "code", "settled"], ["content", "originalLength"])
    case "ToolHalt": {
      const fields = ofCall(event["toolCallId"], ["toolCallId"], ["content"])
      return fields !== undefined && event["reason"] === "tool_error" ? { ...fields, isError: true } : fields
    }
    case "AskUserRequested":
      return asked(suspensionsOf(rules, [asking(event, "question")]))
    case "ToolApprovalRequested":
      return asked(suspensionsOf(rules, [asking(event, "approval")]))
    case "ToolSuspended":
      return asked(suspensionsOf(rules, event["suspensions"]))
    case "Error":
    case "StepReset":
      return { error: publicError(event["error"], rules.runId) }
    case "StepCompleted": {
      const response = Json.isObject(event["response"]) ? event["response"] : {}
      return {
        ...taken(response, "finishReason"),
        ...taken(event, "done"),
        ...optional("usage", usageOf(response["usage"]))
      }
    }
    case "ChatCompleted": {
      const result = Json.isObject(event["result"]) ? event["result"] : {}
      const suspensions = suspensionsOf(rules, result["suspensions"])
      return {
        outcome: outcomeOf(rules, result["outcome"]),
        ...optional("usage", usageOf(result["usage"])),
        ...optional("totalUsage", usageOf(result["totalUsage"])),
        ...(suspensions.length === 0 ? {} : { suspensions })
      }
    }
    default:
      return undefined
  }
}

/** Tells whether progress is an event of a run inside the handler. */
const isEvent = (progress: unknown): progress is Payload & { readonly _tag: string } =>
  Json.isObject(progress) && typeof progress["_tag"] === "string" && eventTags.has(progress["_tag"])

const eventTags: ReadonlySet<string> = new Set([
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
  "StepCompleted",
  "ChatCompleted"
])

const published = (rules: Rules, event: { readonly _tag: string }, at: number | undefined): PublicEvent | undefined => {
  const payload = event as Payload & { readonly _tag: string }
  const fields = fieldsOf(rules, payload._tag, payload)
  if (fields === undefined) return undefined
  const { replayed } = payload
  return {
    _tag: payload._tag,
    ...fields,
    ...(at === undefined ? {} : { at }),
    ...(replayed === true ? { replayed } : {})
  } as unknown as PublicEvent
}

/** Returns what is published of an event, or nothing. */
export const toPublic = (event: { readonly _tag: string }, options: PublicOptions): PublicEvent | undefined => {
  const prefix = options.runId === undefined ? "" : `${options.runId}~`
  return published(new Rules(options, "all", options.calls, prefix), event, options.at)
}
