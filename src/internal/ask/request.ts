/**
 * Builds and checks model requests: options for the model, not for driving the run. Every mistake is found before the
 * adapter is involved, including a conversation with a call without an answer, an answer without a call, or messages
 * between the two: providers refuse these.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Types from "effect/Types"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import { danglingReferences } from "../declare/jsonSchema.ts"
import { toolError } from "../declare/outcome.ts"
import type * as Declared from "../declare/tool.ts"
import * as ToolOptions from "../declare/toolOptions.ts"
import * as Json from "../json.ts"

/**
 * Tool choice for the model: `"auto"`, `"none"`, `"required"`, or one tool by name.
 *
 * @category models
 */
export type ToolChoice = "auto" | "none" | "required" | {
  /** Tool the model must call. */
  readonly name: string
}

/**
 * Answer format: plain text, any JSON object, or JSON matching a schema.
 *
 * @category models
 */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | {
    readonly type: "json_schema"
    /** Schema name, sent to the provider. */
    readonly name: string
    /**
     * JSON Schema of an object. For an Effect Schema: `{ ...schema, $defs: definitions }`, with `schema` and
     * `definitions` from `Schema.toJsonSchemaDocument`. A dangling `$ref` fails the request, with its path.
     */
    readonly schema: Readonly<Record<string, unknown>>
    /**
     * `true` if the provider enforces the schema. OpenAI's adapters then request every field, and an optional field may
     * arrive as `null`. Defaults to the provider's choice.
     */
    readonly strict?: boolean
  }

/**
 * A request without its messages.
 *
 * @category models
 */
export interface Template {
  /** Tools offered to the model. */
  readonly tools: ReadonlyArray<Declared.Definition>
  /** Model name. The adapter's model if left out. */
  readonly model?: string
  /** Tool choice for the model. */
  readonly toolChoice?: ToolChoice
  /** Sampling temperature, from 0 to 2. */
  readonly temperature?: number
  /** Longest reply, in tokens. */
  readonly maxTokens?: number
  /** Answer format. */
  readonly responseFormat?: ResponseFormat
  /** Conversation key for a provider's prompt cache, if the adapter uses caching. */
  readonly cacheKey?: string
  /** The provider's own fields, sent unchanged. */
  readonly options?: Readonly<Record<string, unknown>>
  /** Bounds on attempts, for the adapter; never sent. The adapter's own settings if left out. */
  readonly attempt?: Attempt
}

/**
 * Bounds on attempts at a request another adapter may answer instead.
 *
 * @category models
 */
export interface Attempt {
  /** Number of retries after a failed request. */
  readonly retries?: number
  /** Longest pause accepted from the server, in milliseconds. A longer pause fails the request. */
  readonly patienceMillis?: number
}

/**
 * The run making a request.
 *
 * @category models
 */
export interface Asker {
  /** The run's id. */
  readonly requestId: string
  /** Step index for the reply, from 0. A retried request keeps its step. */
  readonly stepIndex: number
  /** Session id, or the `sessionId` option. `null` without either. */
  readonly sessionId: string | null
}

/**
 * A request as shown by a server, beside the run's events. Never part of a stream: there the event kinds alone
 * determine the order, and not the timing of requests.
 */
export type RequestEvent =
  | {
    readonly _tag: "RequestStarted"
    readonly stepIndex: number
    readonly attempt: number
    readonly model?: string
    readonly provider?: string
  }
  | ({ readonly _tag: "RequestRetried"; readonly stepIndex: number; readonly attempt: number } & Retried)

/** A failed try of a request, followed by another. */
export interface Retried {
  /** Try number, from 1. */
  readonly try: number
  /** Error reason. */
  readonly code: string
  /** Pause before the next try, in milliseconds. */
  readonly afterMillis: number
}

/**
 * Listener for one run's requests. `within` is the enclosing handler's progress function, or `undefined` for a run
 * outside handlers.
 */
export interface Listener {
  readonly within: object | undefined
  readonly tell: (event: RequestEvent) => void
}

/** Listener of the run this code starts or belongs to. */
export const CurrentListener: Context.Reference<Listener | undefined> = Context.Reference<Listener | undefined>(
  "heddle/internal/RequestListener",
  { defaultValue: () => undefined }
)

/** Listener for requests in sessions driven by a worker. */
export const SessionListener: Context.Reference<((id: string, event: RequestEvent) => void) | undefined> = Context
  .Reference<((id: string, event: RequestEvent) => void) | undefined>("heddle/internal/SessionRequestListener", {
    defaultValue: () => undefined
  })

/** Listener for a request's tries, in the requesting fiber. */
export const RetryListener: Context.Reference<((retried: Retried) => void) | undefined> = Context.Reference<
  ((retried: Retried) => void) | undefined
>("heddle/internal/RetryListener", { defaultValue: () => undefined })

/** Options for the model. */
export interface ModelOptions {
  /** Text sent before each request's messages, but kept out of the thread. None by default. */
  readonly system?: string
  /** Model name. Defaults to `Policy.Defaults`, or else the adapter's. */
  readonly model?: string
  /** Sampling temperature, from 0 to 2. Defaults to the provider's. */
  readonly temperature?: number | undefined
  /** Longest reply, in tokens. Defaults to the adapter's, or else the provider's. */
  readonly maxTokens?: number | undefined
  /**
   * Tool choice for the model. `"required"` and `{ name }` force a call, in a run of several turns only in the first
   * turn: see `Policy.toolChoice`. By default the model decides.
   */
  readonly toolChoice?: ToolChoice | undefined
  /** Required answer format. Defaults to free text. */
  readonly responseFormat?: ResponseFormat | undefined
  /**
   * Key shared by a conversation's requests, for the provider's prompt cache. A session passes its id. None by default.
   */
  readonly cacheKey?: string
  /** The provider's own fields, sent unchanged. None by default. */
  readonly options?: Readonly<Record<string, unknown>>
}

const forcedTool = (choice: ModelOptions["toolChoice"]): string | undefined =>
  typeof choice === "object" && choice !== null ? choice.name : undefined

/** Returns `true` if the model must call a tool. */
export const isForced = (choice: ModelOptions["toolChoice"]): boolean =>
  choice === "required" || forcedTool(choice) !== undefined

/** Returns `false` if the model must call a tool missing from these tools. */
export const canForce = (choice: ModelOptions["toolChoice"], tools: ToolOptions.Toolbox): boolean => {
  const name = forcedTool(choice)
  return name === undefined ? choice !== "required" || tools.size > 0 : tools.has(name)
}

/** Application defaults used by a request. */
interface Defaults {
  readonly model?: string
  readonly temperature?: number
  readonly maxTokens?: number
}

export const template = (
  options: ModelOptions,
  defaults: Defaults,
  tools: ToolOptions.Toolbox
): Template => {
  const template: Types.Mutable<Template> = {
    tools: ToolOptions.definitions(tools, forcedTool(options.toolChoice))
  }
  const { cacheKey, options: own, responseFormat, toolChoice } = options
  const model = options.model ?? defaults.model
  const temperature = options.temperature ?? defaults.temperature
  const maxTokens = options.maxTokens ?? defaults.maxTokens
  if (isGiven(model)) template.model = model
  if (isGiven(temperature)) template.temperature = temperature
  if (isGiven(maxTokens)) template.maxTokens = maxTokens
  if (isGiven(toolChoice)) template.toolChoice = toolChoice
  if (isGiven(responseFormat)) template.responseFormat = responseFormat
  if (isGiven(cacheKey)) template.cacheKey = cacheKey
  if (isGiven(own)) template.options = own
  return template
}

const isGiven = <V>(value: V | null | undefined): value is V => value !== null && value !== undefined

export const messages = (
  system: string | undefined,
  thread: ReadonlyArray<Message.Message>
): ReadonlyArray<Message.Message> =>
  system === undefined ? thread : [{ role: "system", content: system, metadata: Json.none }, ...thread]

/** A fault in an input, with its location. Public as `Thread.Issue`. */
interface Issue {
  readonly path: string
  readonly reason: string
}

type Issues = ReadonlyArray<Issue>

const when = (isWrong: boolean, path: string, reason: string): Issues => isWrong ? [{ path, reason }] : []

const isNumber = (value: unknown): value is number => typeof value === "number"

const temperatureIssues = (temperature: unknown): Issues =>
  temperature === undefined || (isNumber(temperature) && temperature >= 0 && temperature <= 2)
    ? []
    : [{ path: "temperature", reason: `must be a number from 0 to 2; got: ${Json.render(temperature)}` }]

const maxTokensIssues = (maxTokens: unknown): Issues =>
  maxTokens === undefined || (isNumber(maxTokens) && Number.isInteger(maxTokens) && maxTokens > 0)
    ? []
    : [{ path: "maxTokens", reason: `must be a positive integer; got: ${Json.render(maxTokens)}` }]

const formatTypes: ReadonlyArray<unknown> = ["text", "json_object", "json_schema"]

const formatIssues = (format: unknown): Issues => {
  if (format === undefined) return []
  if (!Json.isObject(format) || !formatTypes.includes(format["type"])) {
    return [{ path: "responseFormat", reason: "must have type text, json_object or json_schema" }]
  }
  if (format["type"] !== "json_schema") return []
  const { name, schema } = format
  return [
    ...when(typeof name !== "string" || name === "", "responseFormat.name", "must be a non-empty string"),
    ...(Json.isObject(schema)
      ? referenceIssues(schema)
      : [{ path: "responseFormat.schema", reason: "must be a JSON Schema object" }])
  ]
}

const referenceIssues = (schema: Json.JsonObject): Issues =>
  danglingReferences(schema).map(({ path, reference }) => ({
    path: `responseFormat.schema.${path}`,
    reason: `must point at a part of the schema; there is no ${JSON.stringify(reference)}`
  }))

const choiceIssues = (choice: unknown, tools: ToolOptions.Toolbox): Issues => {
  if (choice === undefined || choice === "auto" || choice === "none" || choice === "required") {
    return []
  }
  if (!Json.isObject(choice) || typeof choice["name"] !== "string") {
    return [{ path: "toolChoice", reason: `must be "auto", "none", "required" or { name }` }]
  }
  return when(
    tools.get(choice["name"]) === undefined,
    "toolChoice.name",
    `there is no tool "${choice["name"]}"`
  )
}

const duplicateNames = (tools: ReadonlyArray<Declared.Any>): Issues => {
  if (tools.length < 2) return []
  const names = tools.map((tool) => tool.name)
  if (new Set(names).size === names.length) return []
  const repeated = new Set(names.filter((name, index) => names.indexOf(name) !== index))
  return Array.from(repeated, (name) => ({ path: "tools", reason: `two tools are named "${name}"` }))
}

/** Returns everything wrong with a request, except the order of its messages. */
export const issues = (
  messages: ReadonlyArray<Message.Input>,
  request: Template,
  given: ReadonlyArray<Declared.Any>,
  tools: ToolOptions.Toolbox
): Issues => [
  ...when(messages.length === 0, "messages", "must not be empty"),
  ...duplicateNames(given),
  ...temperatureIssues(request.temperature),
  ...maxTokensIssues(request.maxTokens),
  ...formatIssues(request.responseFormat),
  ...choiceIssues(request.toolChoice, tools)
]

// Pairs tool messages in a conversation with the calls they answer.

/** The repair of one fault. Public as `Thread.Repair`. */
interface Repair {
  readonly kind: "answered" | "dropped" | "moved"
  readonly index: number
  readonly toolCallId: string
  readonly reason: string
}

/**
 * A fault at one place: a call without an answer, an answer without a call, a second answer, or an answer after other
 * messages.
 */
interface Fault {
  readonly kind: "unanswered" | "orphan" | "repeated" | "late"
  /** Index of the faulty message, with the call or the answer. */
  readonly index: number
  readonly toolCallId: string
  /** The call, and its position in its message. Left out for repeated answers and orphans. */
  readonly call?: Message.ToolCall
  readonly position?: number
}

interface Open {
  readonly call: Message.ToolCall
  readonly position: number
  readonly index: number
}

/** Returns the calls needing an answer. Calls in unchecked input may be anything. */
const expected = (message: Message.Input, index: number): ReadonlyArray<Open> => {
  if (message.role !== "assistant" || !Array.isArray(message.toolCalls)) return []
  return message.toolCalls.flatMap((call: unknown, position) =>
    Json.isObject(call) && typeof call["id"] === "string" && call["providerExecuted"] !== true
      ? [{ call: call as unknown as Message.ToolCall, position, index }]
      : []
  )
}

/** Calls of the latest assistant message with calls, while the check looks for their answers. */
class OpenTurn {
  /** Called ids, answered or not. */
  private readonly asked: ReadonlySet<string>
  private readonly open = new Map<string, Array<Open>>()
  /** `true` after the place for answers, which ends at the first message besides answers and system messages. */
  isClosed = false

  constructor(calls: ReadonlyArray<Open>) {
    this.asked = new Set(calls.map(({ call }) => call.id))
    for (const one of calls) {
      const others = this.open.get(one.call.id)
      if (others === undefined) this.open.set(one.call.id, [one])
      else others.push(one)
    }
  }

  /**
   * Returns an answer's fault, or its open call if the answer comes too late, or `undefined` for a well-placed answer.
   */
  answer(id: string): Fault["kind"] | Open | undefined {
    const found = this.open.get(id)?.shift()
    if (found !== undefined) return this.isClosed ? found : undefined
    return this.asked.has(id) ? "repeated" : "orphan"
  }

  /** Unanswered calls, in call order. */
  get rest(): ReadonlyArray<Open> {
    return Array.from(this.open.values()).flat().toSorted((left, right) => left.position - right.position)
  }
}

const unanswered = ({ call, index, position }: Open): Fault => ({
  kind: "unanswered",
  index,
  toolCallId: call.id,
  call,
  position
})

/** Returns all faults, in message order. */
const faults = (messages: ReadonlyArray<Message.Input>): ReadonlyArray<Fault> => {
  const found: Array<Fault> = []
  let turn = new OpenTurn([])
  const leave = (): void => {
    for (const open of turn.rest) found.push(unanswered(open))
  }
  messages.forEach((message, index) => {
    if (message.role !== "tool") {
      const calls = expected(message, index)
      // Most protocols send instructions beside the conversation.
      turn.isClosed ||= message.role !== "system"
      if (calls.length === 0) return
      leave()
      turn = new OpenTurn(calls)
      return
    }
    const toolCallId = message.toolCallId ?? ""
    const answered = turn.answer(toolCallId)
    if (answered === undefined) return
    if (typeof answered === "string") found.push({ kind: answered, index, toolCallId })
    else found.push({ ...unanswered(answered), kind: "late", index })
  })
  leave()
  return found.toSorted((left, right) => left.index - right.index)
}

const quoted = (text: unknown): string => JSON.stringify(String(text))

const reasons: { readonly [Kind in Fault["kind"]]: (fault: Fault) => string } = {
  unanswered: ({ call, toolCallId }) =>
    `the assistant message calls ${quoted(call?.name)} with id ${
      quoted(toolCallId)
    }, and no tool message answers it; ` +
    "put Message.answer(id, result) after it, or use Thread.repair, which answers it as cancelled",
  orphan: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)}, which the assistant message before it does not call; ` +
    "leave it out, or use Thread.repair, which drops it",
  repeated: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} a second time; leave it out, or use Thread.repair, which drops it`,
  late: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} after other messages; put it right after the assistant message ` +
    "that makes the call, or use Thread.repair, which moves it there"
}

const issueOf = (fault: Fault): Issue => ({
  path: fault.kind === "unanswered"
    ? `messages[${fault.index}].toolCalls[${fault.position}]`
    : `messages[${fault.index}].toolCallId`,
  reason: reasons[fault.kind](fault)
})

/** Returns the reasons a conversation cannot be sent: calls without exactly one answer, and answers without a call. */
export const pairingIssues = (messages: ReadonlyArray<Message.Input>): Issues => faults(messages).map(issueOf)

const detail = "the conversation continued without an answer"

/** Answers a call not run to its end. The call's name may be anything. */
const cancelled = ({ id, name }: Message.ToolCall): Message.Message => {
  const error = toolError("cancelled", { id, name: String(name) }, { detail })
  return {
    role: "tool",
    toolCallId: id,
    content: JSON.stringify({ error: error.message, code: error.reason }),
    isError: true,
    code: error.reason,
    metadata: Json.none
  }
}

const repairOf = ({ index, kind, toolCallId }: Fault): Repair => {
  switch (kind) {
    case "unanswered":
      return { kind: "answered", index, toolCallId, reason: "the call had no answer: it is answered as cancelled" }
    case "orphan":
      return { kind: "dropped", index, toolCallId, reason: "the answer had no call" }
    case "repeated":
      return { kind: "dropped", index, toolCallId, reason: "the call already had its answer" }
    case "late":
      return { kind: "moved", index, toolCallId, reason: "the answer came after other messages" }
  }
}

/** Returns the answers to add after a message, by call. */
const missing = (
  found: ReadonlyArray<Fault>,
  messages: ReadonlyArray<Message.Input>
): ReadonlyMap<Message.ToolCall, Message.Input> => {
  const answers = new Map<Message.ToolCall, Message.Input>()
  for (const { call, index, kind } of found) {
    const late = kind === "late" ? messages[index] : undefined
    if (call !== undefined) answers.set(call, late ?? cancelled(call))
  }
  return answers
}

/** Returns the messages with exactly one answer right after each call, and the repairs made. */
export const repaired = (
  messages: ReadonlyArray<Message.Input>
): { readonly messages: ReadonlyArray<Message.Input>; readonly repairs: ReadonlyArray<Repair> } => {
  const found = faults(messages)
  if (found.length === 0) return { messages, repairs: [] }
  const answers = missing(found, messages)
  const removed = new Set(found.flatMap(({ index, kind }) => kind === "unanswered" ? [] : [index]))
  const kept: Array<Message.Input> = []
  let owed: ReadonlyArray<Message.Input> = []
  messages.forEach((message, index) => {
    if (removed.has(index)) return
    if (message.role !== "tool") {
      kept.push(...owed)
      owed = expected(message, index).flatMap(({ call }) => answers.get(call) ?? [])
    }
    kept.push(message)
  })
  return { messages: [...kept, ...owed], repairs: found.map(repairOf) }
}

// Adapters by name.

interface Named<S> {
  readonly named?: ReadonlyMap<string, S>
  readonly candidates?: ReadonlyArray<{ readonly adapter: S }>
}

/** Returns the first adapter, with all adapters by name. */
export const named = <S extends Named<S>>(adapters: ReadonlyArray<readonly [name: string, adapter: S]>): S => ({
  ...adapters[0]?.[1] as S,
  named: new Map(adapters)
})

/** Changes an adapter, its named adapters and its candidates: a run asks these directly. */
export const changed = <S extends Named<S>>(adapter: S, change: (adapter: S) => S): S => {
  if (adapter.named !== undefined) {
    return named(Array.from(adapter.named, ([name, one]) => [name, changed(one, change)] as const))
  }
  const next = change(adapter)
  if (next.candidates === undefined) return next
  return { ...next, candidates: next.candidates.map((one) => ({ ...one, adapter: change(one.adapter) })) }
}

// Requests outside runs.

/** Returns the error fields for a request ended by a rule, outside any run. */
export const refusedBy = (outcome: { readonly _tag: string; readonly rule?: string }) =>
  ({
    reason: "invalid_request",
    detail: `the rule ${JSON.stringify(outcome.rule ?? outcome._tag)} allows no request`
  }) as const

/** A request outside runs. Its tools are offered but never run. */
export interface Single {
  readonly adapter: unknown
  readonly system: string | undefined
  readonly template: Template
  readonly tools: ToolOptions.Toolbox
  readonly messages: ReadonlyArray<Message.Message>
}

/** A reply to such a request, as heard by rules. */
interface SingleReply {
  readonly error: unknown
  readonly hasSaid: boolean
  readonly response: Response.Response
}

/** Makes a request as changed by rules, reading its reply with a function. Fails with the outcome of an ending rule. */
export type Governing = (
  single: Single,
  read: (single: Single) => Effect.Effect<SingleReply>
) => Effect.Effect<void, Parameters<typeof refusedBy>[0]>

/** Rules for requests outside runs, set by `Rule.layer`: adapters know no rules. */
export const CurrentGoverning: Context.Reference<Governing | undefined> = Context.Reference<Governing | undefined>(
  "heddle/internal/Governing",
  { defaultValue: () => undefined }
)
