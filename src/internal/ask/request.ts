/**
 * The request of a model call: the options for the model, and none for driving the run. Everything that is wrong with
 * it is found before the adapter is touched, a conversation included in which a call has no answer, an answer has no
 * call, or anything stands between the two: providers refuse those.
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
 * The tool that the model may, must or must not call: `"auto"`, `"none"`, `"required"`, or one tool by name.
 *
 * @category models
 * @since 0.1.0
 */
export type ToolChoice = "auto" | "none" | "required" | {
  /** The name of the tool that the model must call. */
  readonly name: string
}

/**
 * The form of the answer: plain text, any JSON object, or JSON that fits a schema.
 *
 * @category models
 * @since 0.1.0
 */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | {
    readonly type: "json_schema"
    /** The name of the schema, which the provider receives. */
    readonly name: string
    /**
     * A JSON Schema of an object. Of an Effect Schema: `{ ...schema, $defs: definitions }`, with the `schema` and the
     * `definitions` of `Schema.toJsonSchemaDocument`. A `$ref` in it that points nowhere fails the request, with its
     * path.
     */
    readonly schema: Readonly<Record<string, unknown>>
    /**
     * `true` if the provider holds the model to the schema. OpenAI's adapters then ask for every field, and one that
     * may be missing arrives as `null`. The provider's choice by default.
     */
    readonly strict?: boolean
  }

/**
 * A request without its messages.
 *
 * @category models
 * @since 0.1.0
 */
export interface Template {
  /** The tools that the model may call. */
  readonly tools: ReadonlyArray<Declared.Definition>
  /** The name of the model. The adapter's without it. */
  readonly model?: string
  /** The tool that the model may, must or must not call. */
  readonly toolChoice?: ToolChoice
  /** The sampling temperature, from 0 to 2. */
  readonly temperature?: number
  /** The number of tokens that the reply may have. */
  readonly maxTokens?: number
  /** The form of the answer. */
  readonly responseFormat?: ResponseFormat
  /** Names the conversation for a provider's prompt cache, where an adapter is set to use one. */
  readonly cacheKey?: string
  /** Fields of the provider's own, sent as they are. */
  readonly options?: Readonly<Record<string, unknown>>
  /** Bounds of the attempts at the request, for the adapter. No adapter sends them. Its own settings by default. */
  readonly attempt?: Attempt
}

/**
 * Bounds of the attempts at a request that another adapter may answer.
 *
 * @category models
 * @since 0.1.0
 */
export interface Attempt {
  /** The number of times that the adapter tries a failed request again. */
  readonly retries?: number
  /** The longest wait for a pause that the server has asked for, in milliseconds. A longer one fails the request. */
  readonly patienceMillis?: number
}

/**
 * The run that makes a request.
 *
 * @category models
 * @since 0.1.0
 */
export interface Asker {
  /** The id of the run. */
  readonly requestId: string
  /** The step of the run that the reply is for, from 0. A request that is retried has the same. */
  readonly stepIndex: number
  /** The id of the session, or the `sessionId` of the options. `null` when there is none. */
  readonly sessionId: string | null
}

/**
 * A request as a server shows it, beside the events of its run: in no stream, since the order of the events there is
 * that of their kinds alone.
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

/** A try of a request that failed, and behind which another one follows. */
export interface Retried {
  /** The number of the try, from 1. */
  readonly try: number
  /** The reason of its error. */
  readonly code: string
  /** The pause before the next try, in milliseconds. */
  readonly afterMillis: number
}

/**
 * The listener to the requests of one run: `within` is the function by which the handler around it reports progress, or
 * `undefined` for a run in no handler.
 */
export interface Listener {
  readonly within: object | undefined
  readonly tell: (event: RequestEvent) => void
}

/** The listener of the run that this code starts or is a part of. */
export const CurrentListener: Context.Reference<Listener | undefined> = Context.Reference<Listener | undefined>(
  "heddle/internal/RequestListener",
  { defaultValue: () => undefined }
)

/** The listener to the requests of the sessions that a worker drives. */
export const SessionListener: Context.Reference<((id: string, event: RequestEvent) => void) | undefined> = Context
  .Reference<((id: string, event: RequestEvent) => void) | undefined>("heddle/internal/SessionRequestListener", {
    defaultValue: () => undefined
  })

/** The listener to the tries of a request, in the fiber that makes it. */
export const RetryListener: Context.Reference<((retried: Retried) => void) | undefined> = Context.Reference<
  ((retried: Retried) => void) | undefined
>("heddle/internal/RetryListener", { defaultValue: () => undefined })

/** The options that concern the model. */
export interface ModelOptions {
  /** A text that is put in front of the messages of each request and kept out of the thread. None by default. */
  readonly system?: string
  /** The name of the model. That of `Policy.Defaults` by default, else the adapter's. */
  readonly model?: string
  /** The sampling temperature, from 0 to 2. The provider's by default. */
  readonly temperature?: number | undefined
  /** The number of tokens that a reply may have. The adapter's by default, else the provider's. */
  readonly maxTokens?: number | undefined
  /**
   * The tools that the model may call. `"required"` and `{ name }` force a call, in a run of several turns in its first
   * one: see `Policy.toolChoice`. The model decides by default.
   */
  readonly toolChoice?: ToolChoice | undefined
  /** The form that the answer has to have. Free text by default. */
  readonly responseFormat?: ResponseFormat | undefined
  /**
   * A key that requests of one conversation share, for the provider's prompt cache. A session gives its id. None by
   * default.
   */
  readonly cacheKey?: string
  /** Fields of the provider's own, which are sent as they are. None by default. */
  readonly options?: Readonly<Record<string, unknown>>
}

const forcedTool = (choice: ModelOptions["toolChoice"]): string | undefined =>
  typeof choice === "object" && choice !== null ? choice.name : undefined

/** Returns `true` if the model has to call a tool. */
export const isForced = (choice: ModelOptions["toolChoice"]): boolean =>
  choice === "required" || forcedTool(choice) !== undefined

/** The defaults of the application that a request takes. */
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

/** A fault of an input, and its place. Public as `Thread.Issue`. */
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
    ...when(typeof name !== "string" || name === "", "responseFormat.name", "must name the schema"),
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

/** Everything that is wrong with a request, but how its messages stand to one another. */
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

// Pairs the tool messages of a conversation with the calls that they answer.

/** The repair of one fault. Public as `Thread.Repair`. */
interface Repair {
  readonly kind: "answered" | "dropped" | "moved"
  readonly index: number
  readonly toolCallId: string
  readonly reason: string
}

/**
 * A fault at one place: a call without an answer, an answer without a call, a second answer, or an answer that comes
 * after other messages.
 */
interface Fault {
  readonly kind: "unanswered" | "orphan" | "repeated" | "late"
  /** The index of the faulty message, which carries the call or the answer. */
  readonly index: number
  readonly toolCallId: string
  /** The call, and its position in its message. A repeated answer and an orphan have none. */
  readonly call?: Message.ToolCall
  readonly position?: number
}

interface Open {
  readonly call: Message.ToolCall
  readonly position: number
  readonly index: number
}

/** Lists the calls that providers expect an answer to. Calls of an input that were not checked may be anything. */
const expected = (message: Message.Input, index: number): ReadonlyArray<Open> => {
  if (message.role !== "assistant" || !Array.isArray(message.toolCalls)) return []
  return message.toolCalls.flatMap((call: unknown, position) =>
    Json.isObject(call) && typeof call["id"] === "string" && call["providerExecuted"] !== true
      ? [{ call: call as unknown as Message.ToolCall, position, index }]
      : []
  )
}

/** The calls of the latest assistant message that made some, while their answers are looked for. */
class OpenTurn {
  /** The ids that were called, answered or not. */
  private readonly asked: ReadonlySet<string>
  private readonly open = new Map<string, Array<Open>>()
  /** `true` behind the place of its answers, which ends with the first message that is none. */
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
   * Returns the fault of an answer, or its open call where it stands too late; nothing where it stands behind its call.
   */
  answer(id: string): Fault["kind"] | Open | undefined {
    const found = this.open.get(id)?.shift()
    if (found !== undefined) return this.isClosed ? found : undefined
    return this.asked.has(id) ? "repeated" : "orphan"
  }

  /** The calls that no message has answered, in call order. */
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

/** Everything that is wrong, in the order of the messages that show it. */
const faults = (messages: ReadonlyArray<Message.Input>): ReadonlyArray<Fault> => {
  const found: Array<Fault> = []
  let turn = new OpenTurn([])
  const leave = (): void => {
    for (const open of turn.rest) found.push(unanswered(open))
  }
  messages.forEach((message, index) => {
    if (message.role !== "tool") {
      const calls = expected(message, index)
      // Instructions are sent beside the conversation by most protocols.
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
    "put Message.answer(id, result) behind it, or use Thread.repair, which answers it as cancelled",
  orphan: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)}, which the assistant message before it does not call; ` +
    "leave it out, or use Thread.repair, which drops it",
  repeated: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} a second time; leave it out, or use Thread.repair, which drops it`,
  late: ({ toolCallId }) =>
    `the tool message answers ${quoted(toolCallId)} after other messages; put it right behind the assistant message ` +
    "that makes the call, or use Thread.repair, which moves it there"
}

const issueOf = (fault: Fault): Issue => ({
  path: fault.kind === "unanswered"
    ? `messages[${fault.index}].toolCalls[${fault.position}]`
    : `messages[${fault.index}].toolCallId`,
  reason: reasons[fault.kind](fault)
})

/**
 * Lists the reasons why a conversation cannot be sent as it is: each call without its one answer, each answer without
 * its call.
 */
export const pairingIssues = (messages: ReadonlyArray<Message.Input>): Issues => faults(messages).map(issueOf)

const detail = "the conversation continued without an answer"

/** The answer to a call that was not run to its end. Its name may be anything. */
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
      return { kind: "dropped", index, toolCallId, reason: "the call had its answer already" }
    case "late":
      return { kind: "moved", index, toolCallId, reason: "the answer stood behind other messages" }
  }
}

/** The answers that are to stand behind a message, beside those that do, in call order. */
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

/** The messages with one answer for each call, right behind it, and what was done for that. */
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

/** Returns the first adapter, with all of them by their names. */
export const named = <S extends Named<S>>(adapters: ReadonlyArray<readonly [name: string, adapter: S]>): S => ({
  ...adapters[0]?.[1] as S,
  named: new Map(adapters)
})

/** Changes an adapter, each of its named ones, and each of its candidates: a run asks these, and not their adapter. */
export const changed = <S extends Named<S>>(adapter: S, change: (adapter: S) => S): S => {
  if (adapter.named !== undefined) {
    return named(Array.from(adapter.named, ([name, one]) => [name, changed(one, change)] as const))
  }
  const next = change(adapter)
  if (next.candidates === undefined) return next
  return { ...next, candidates: next.candidates.map((one) => ({ ...one, adapter: change(one.adapter) })) }
}

// Requests outside of a run.

/** Returns the fields of the error for a request that a rule ends, where there is no run to end. */
export const refusedBy = (outcome: { readonly _tag: string; readonly rule?: string }) =>
  ({
    reason: "invalid_request",
    detail: `the rule ${JSON.stringify(outcome.rule ?? outcome._tag)} allows no request`
  }) as const

/** A request that belongs to no run. Its tools are offered, and do not run. */
export interface Single {
  readonly adapter: unknown
  readonly system: string | undefined
  readonly template: Template
  readonly tools: ToolOptions.Toolbox
  readonly messages: ReadonlyArray<Message.Message>
}

/** A reply to such a request, as rules hear it. */
interface SingleReply {
  readonly error: unknown
  readonly hasSaid: boolean
  readonly response: Response.Response
}

/**
 * Makes a request as rules change it, by a function that reads its reply. Fails with the outcome of an ending rule.
 */
export type Governing = (
  single: Single,
  read: (single: Single) => Effect.Effect<SingleReply>
) => Effect.Effect<void, Parameters<typeof refusedBy>[0]>

/** The rules of requests that belong to no run: `Rule.layer` gives them, since adapters know no rules. */
export const CurrentGoverning: Context.Reference<Governing | undefined> = Context.Reference<Governing | undefined>(
  "heddle/internal/Governing",
  { defaultValue: () => undefined }
)
