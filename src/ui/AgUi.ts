/**
 * Speaks AG-UI 1.0: public events as protocol events, a thread as protocol messages, and the bodies posted by clients.
 * It needs no AG-UI package.
 */
import * as DateTime from "effect/DateTime"
import type * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Stream from "effect/Stream"
import type * as Event from "../Event.ts"
import * as CallPaths from "../internal/answer/callPath.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import * as Message from "../Message.ts"
import type * as Thread from "../Thread.ts"
import type * as Body from "./Body.ts"
import * as Machine from "./internal/machine.ts"
import * as Paced from "./internal/paced.ts"
import * as Posted from "./internal/posted.ts"
import * as ThreadEvents from "./internal/threadEvents.ts"

/**
 * A protocol event: plain JSON with the fields for its `type`.
 *
 * @category models
 */
export interface AgEvent {
  /** Event type, such as `"TEXT_MESSAGE_CONTENT"`. */
  readonly type: string
  readonly [field: string]: Schema.Json | undefined
}

/**
 * A protocol message.
 *
 * @category models
 */
export interface AgMessage {
  /** Message id. */
  readonly id: string
  /** Message author. */
  readonly role: "user" | "assistant" | "tool" | "reasoning"
  readonly [field: string]: Schema.Json | undefined
}

/**
 * Options of an encoder.
 *
 * @category options
 */
export interface Options {
  /** Thread id, equal to the session id. */
  readonly threadId: string
  /** Id the client chose for the run. */
  readonly runId: string
  /** Prefix for message ids in the run. Defaults to `runId`. */
  readonly messageId?: string
  /**
   * Messages before the run, as the client should have them ({@link messages}). With them the encoder can resend all
   * messages: after a discarded reply, and in a run with many calls, whose events would keep the client busy. Without
   * them it sends the events, and `heddle.reset` for a discarded reply.
   */
  readonly messages?: ReadonlyArray<AgMessage>
  /**
   * Number of leading `messages` the client already received. Defaults to all. If the client lacks some, the run begins
   * by sending them all.
   */
  readonly known?: number
}

/**
 * Encodes events in the protocol's form. An encoder is pure except for its state, and joins nothing.
 *
 * @category models
 */
export interface Encoder {
  /** Returns the protocol events for a public event. */
  readonly push: (event: Event.PublicEvent) => ReadonlyArray<AgEvent>
  /**
   * Closes a run whose events ended without `ChatCompleted`: the client would take a missing end for success. After
   * that event it returns nothing.
   */
  readonly end: () => ReadonlyArray<AgEvent>
}

/** Number of calls beyond which calls are sent as a message list: the client copies its messages for each event. */
const mostCalls = 200

/** Returns the message id for a call's answer. Its prefix marks the server's own answers in posted bodies. */
const resultId = (callId: string, base: string): string => `res-${base}-${callId}`

const argumentsOf = (move: Extract<Machine.Move, { readonly kind: "callReady" }>): string =>
  move.lost === undefined ? JSON.stringify(move.arguments) : move.lost.text ?? ""

/** Folds moves and deltas into messages. */
class Messages implements Machine.Words<never> {
  private readonly list: Array<Record<string, Schema.Json>> = []
  private readonly base: string
  private readonly idOf: (turn: number) => string
  private current: Record<string, Schema.Json> | undefined
  private reasoning: Record<string, Schema.Json> | undefined
  private readonly owners = new Map<string, Record<string, Schema.Json>>()
  /** Answers to calls in earlier messages. */
  private readonly earlier = new Map<string, AgMessage>()
  /** Message id of the step. */
  messageId: string

  constructor(base: string, idOf = (turn: number): string => CallPaths.replyId(base, turn)) {
    this.base = base
    this.idOf = idOf
    this.messageId = idOf(1)
  }

  get all(): ReadonlyArray<AgMessage> {
    return this.list.flatMap((message): ReadonlyArray<AgMessage> => {
      const { answers, ...rest } = message
      return [rest as unknown as AgMessage, ...(answers as unknown as ReadonlyArray<AgMessage> | undefined ?? [])]
    })
  }

  /** Returns messages from before the run, adding the run's answers to their calls, in call order. */
  answered(messages: ReadonlyArray<AgMessage>): ReadonlyArray<AgMessage> {
    const { earlier } = this
    if (earlier.size === 0) return messages
    const idsOf = (message: AgMessage) =>
      (message["toolCalls"] ?? []) as unknown as ReadonlyArray<{ readonly id: string }>
    const known = new Map(messages.map((message) => [message["toolCallId"], message]))
    const placed = new Set<unknown>()
    return messages.flatMap((message) => {
      const ids = idsOf(message).map(({ id }) => id)
      if (!ids.some((id) => earlier.has(id))) return placed.has(message["toolCallId"]) ? [] : [message]
      for (const id of ids) placed.add(id)
      return [message, ...ids.flatMap((id) => earlier.get(id) ?? known.get(id) ?? [])]
    })
  }

  private assistant(): Record<string, Schema.Json> {
    if (this.current !== undefined) return this.current
    this.current = { id: this.messageId, role: "assistant" }
    this.list.push(this.current)
    return this.current
  }

  said(kind: "text" | "reasoning", _id: string, delta: string): undefined {
    const message = kind === "text" ? this.assistant() : this.reasoning
    if (message !== undefined) message["content"] = String(message["content"] ?? "") + delta
  }

  moved(move: Machine.Move): undefined {
    switch (move.kind) {
      case "stepStart":
        this.messageId = this.idOf(move.turn)
        this.current = undefined
        return
      case "stepReset":
        for (const message of this.list.splice(this.stepStart)) this.forget(message)
        this.messageId = CallPaths.nextReplyId(this.messageId)
        this.current = undefined
        return
      case "stepEnd":
        this.stepStart = this.list.length
        return
      case "messageDelivered":
        this.stepStart = this.list.push({ id: move.id, role: "user", content: Message.text(move) })
        return
      case "reasoningStart":
        this.reasoning = { id: `${this.base}-${move.id}`, role: "reasoning", content: "" }
        this.list.push(this.reasoning)
        return
      case "callReady": {
        const message = this.assistant()
        const calls = (message["toolCalls"] ?? []) as unknown as Array<Schema.Json>
        calls.push({ id: move.id, type: "function", function: { name: move.name, arguments: argumentsOf(move) } })
        message["toolCalls"] = calls
        this.owners.set(move.id, message)
        return
      }
      case "callAnswer": {
        const { id } = move.answer
        const answer = { role: "tool", ...answerOf(move.answer, this.base) }
        const owner = this.owners.get(id)
        if (owner === undefined) {
          this.earlier.set(id, answer as unknown as AgMessage)
          return
        }
        const answers = (owner["answers"] ?? []) as unknown as Array<Schema.Json>
        answers.push(answer)
        owner["answers"] = answers
        return
      }
      default:
        return
    }
  }

  /** Number of messages before the step. */
  private stepStart = 0

  private forget(message: Record<string, Schema.Json>): void {
    for (const [id, owner] of this.owners) if (owner === message) this.owners.delete(id)
  }
}

/** Returns the message for an answer, without its role. */
const answerOf = ({ content, id, isError }: Machine.Answer, base: string): Record<string, Schema.Json> => ({
  id: resultId(id, base),
  toolCallId: id,
  content: Machine.textOf(content),
  ...(isError ? { metadata: { "heddle.isError": true } } : {})
})

const approvalSchema: Schema.Json = {
  type: "object",
  properties: { approved: { type: "boolean" }, arguments: { type: "object" }, reason: { type: "string" } },
  required: ["approved"]
}

/** Returns the answer schema of a question. */
const answerSchemaOf = ({ answerSchema, opts }: Event.PublicSuspension): Schema.Json | undefined =>
  answerSchema !== undefined
    ? answerSchema as Schema.Json
    : opts !== undefined && opts.length > 0 && opts.every((option) => typeof option === "string")
    ? { type: "string", enum: opts }
    : undefined

const interruptOf = (suspension: Event.PublicSuspension, toolCallId: string): Schema.Json => {
  const { expiresAt, id, kind, opts, question, toolCall } = suspension
  const isAsked = kind === "approval" || kind === "unknown"
  const responseSchema = isAsked ? approvalSchema : kind === "question" ? answerSchemaOf(suspension) : undefined
  return {
    id,
    reason: isAsked ? "tool_call" : kind === "question" ? "input_required" : "frontend_tool",
    message: question ?? (isAsked ? `May ${toolCall.name} run?` : `${toolCall.name} waits for its result.`),
    toolCallId,
    ...(responseSchema === undefined ? {} : { responseSchema }),
    ...(expiresAt === undefined ? {} : { expiresAt: DateTime.formatIso(DateTime.makeUnsafe(expiresAt)) }),
    metadata: {
      "heddle.kind": kind,
      "heddle.call": toolCall as unknown as Schema.Json,
      ...(opts === undefined || opts.length === 0 ? {} : { "heddle.opts": opts as Schema.Json })
    }
  }
}

const usageOf = (usage: Event.PublicUsage | undefined): { readonly usage?: Schema.Json } =>
  usage === undefined ? {} : { usage: [{ ...usage }] }

/**
 * Returns a message snapshot without reasoning: the client keeps its own reasoning only if the snapshot contains no
 * reasoning.
 */
const snapshotOf = (messages: ReadonlyArray<AgMessage>): AgEvent => ({
  type: "MESSAGES_SNAPSHOT",
  messages: messages.filter(({ role }) => role !== "reasoning") as unknown as Schema.Json
})

class AgEncoder implements Encoder, Machine.Words<AgEvent> {
  private readonly machine = new Machine.Machine<AgEvent>(this)
  private readonly folded: Messages
  private readonly options: Options
  private readonly base: string
  private isStarted = false
  private turn = 0
  private calls = 0
  /** Calls in discarded replies, kept by a client without the messages. */
  private readonly discarded = new Set<string>()
  /** Ids the client knows for calls sharing a discarded call's id. */
  private readonly ids = new Map<string, string>()
  /** Names of the calls shown as running. */
  private readonly active = new Map<string, string>()
  /** Calls with incomplete arguments. */
  private readonly open = new Set<string>()
  /** `true` if the client lacks events, to be replaced by the messages at the step's end. */
  private isBehind = false

  constructor(options: Options) {
    this.options = options
    this.base = options.messageId ?? options.runId
    this.folded = new Messages(this.base)
  }

  readonly push = (event: Event.PublicEvent): ReadonlyArray<AgEvent> => this.written(this.machine.push(event))

  readonly end = (): ReadonlyArray<AgEvent> => this.written(this.machine.end())

  private written(events: ReadonlyArray<AgEvent>): ReadonlyArray<AgEvent> {
    if (this.isStarted || events.length === 0) return events
    this.isStarted = true
    const { runId, threadId } = this.options
    return [{ type: "RUN_STARTED", threadId, runId, protocolVersion: "1.0" }, ...this.joined(), ...events]
  }

  said(kind: "text" | "reasoning", id: string, delta: string): AgEvent {
    if (this.options.messages !== undefined) this.folded.said(kind, id, delta)
    return kind === "text"
      ? { type: "TEXT_MESSAGE_CONTENT", messageId: this.folded.messageId, delta }
      : { type: "REASONING_MESSAGE_CONTENT", messageId: `${this.base}-${id}`, delta }
  }

  argued(id: string, delta: string): AgEvent | undefined {
    const toolCallId = this.idOf(id)
    return this.open.has(toolCallId) ? { type: "TOOL_CALL_ARGS", toolCallId, delta } : undefined
  }

  moved(given: Machine.Move): ReadonlyArray<AgEvent> {
    const { messageId } = this.folded
    const move = this.unambiguous(given, messageId)
    if (this.options.messages !== undefined || move.kind === "stepStart" || move.kind === "stepReset") {
      this.folded.moved(move)
    }
    return this.eventsOf(move, move.kind === "stepReset" ? messageId : this.folded.messageId)
  }

  /** Adds the message to a call's id if the client keeps a discarded call with the same id. */
  private unambiguous(move: Machine.Move, messageId: string): Machine.Move {
    if (move.kind === "callStart" && this.discarded.delete(move.id)) {
      this.ids.set(move.id, CallPaths.format({ run: messageId, path: [move.id] }))
    }
    if (move.kind === "callAnswer") return { ...move, answer: { ...move.answer, id: this.idOf(move.answer.id) } }
    if (move.kind === "callWaits" || !("name" in move)) return move
    return { ...move, id: this.idOf(move.id) }
  }

  private idOf(id: string): string {
    return this.ids.get(id) ?? id
  }

  /** `true` if calls are sent with the messages at their step's end. */
  private get isMany(): boolean {
    return this.options.messages !== undefined && this.calls > mostCalls
  }

  private snapshot(): ReadonlyArray<AgEvent> {
    const { messages } = this.options
    if (messages === undefined) return []
    this.isBehind = false
    return [snapshotOf([...this.folded.answered(messages), ...this.folded.all])]
  }

  /** Resends the messages: first only those the client knows, so that it discards anything after its gap, then all. */
  private joined(): ReadonlyArray<AgEvent> {
    const { known = Infinity, messages = [] } = this.options
    return known >= messages.length ? [] : [snapshotOf(messages.slice(0, known)), snapshotOf(messages)]
  }

  private caughtUp(): ReadonlyArray<AgEvent> {
    return this.isBehind ? this.snapshot() : []
  }

  /** Returns no events, since the messages at the step's end replace them. */
  private left(): ReadonlyArray<AgEvent> {
    this.isBehind = true
    return []
  }

  private activity(
    id: string,
    content: { readonly [name: string]: Schema.Json },
    kind: "tool" | "subrun" = "tool"
  ): ReadonlyArray<AgEvent> {
    return this.calls > mostCalls ? [] : [{
      type: "ACTIVITY_SNAPSHOT",
      messageId: `act-${kind}-${this.base}-${id}`,
      activityType: `heddle.${kind}`,
      content: { toolCallId: id, ...content }
    }]
  }

  private eventsOf(move: Machine.Move, messageId: string): ReadonlyArray<AgEvent> {
    switch (move.kind) {
      case "stepStart":
        this.turn = move.turn
        return [{ type: "STEP_STARTED", stepName: `turn ${move.turn}` }]
      case "stepEnd":
        return [...this.caughtUp(), { type: "STEP_FINISHED", stepName: `turn ${this.turn}` }]
      case "stepReset":
        return this.reset(move, messageId)
      case "output":
        return [{
          type: "CUSTOM",
          name: "heddle.output",
          value: { value: move.value as Schema.Json, isWhole: move.isWhole }
        }]
      case "messageDelivered": {
        const delta = Message.text(move)
        return [
          { type: "TEXT_MESSAGE_START", messageId: move.id, role: "user" },
          ...(delta === "" ? [] : [{ type: "TEXT_MESSAGE_CONTENT", messageId: move.id, delta }]),
          { type: "TEXT_MESSAGE_END", messageId: move.id }
        ]
      }
      case "messageRefused":
        return [{ type: "CUSTOM", name: "heddle.message", value: { id: move.id, reason: move.reason } }]
      case "modelSwitched": {
        const { code, from, to } = move
        return [{ type: "CUSTOM", name: "heddle.model", value: { from, to, code } }]
      }
      case "textStart":
        return [{ type: "TEXT_MESSAGE_START", messageId, role: "assistant" }]
      case "textEnd":
        return [{ type: "TEXT_MESSAGE_END", messageId }]
      case "reasoningStart": {
        const id = `${this.base}-${move.id}`
        return [
          { type: "REASONING_START", messageId: id },
          { type: "REASONING_MESSAGE_START", messageId: id, role: "reasoning" }
        ]
      }
      case "reasoningEnd": {
        const id = `${this.base}-${move.id}`
        return [{ type: "REASONING_MESSAGE_END", messageId: id }, { type: "REASONING_END", messageId: id }]
      }
      case "callStart":
        this.calls++
        if (this.isMany) return this.left()
        this.open.add(move.id)
        return [{
          type: "TOOL_CALL_START",
          toolCallId: move.id,
          toolCallName: move.name,
          parentMessageId: messageId
        }]
      case "callReady":
        return this.ready(move)
      case "callState": {
        const { at, attempt, id, name, state, waits } = move
        this.active.set(id, name)
        return this.activity(id, {
          name,
          state,
          ...waits,
          ...(attempt === undefined ? {} : { attempt }),
          ...(at === undefined ? {} : { at })
        })
      }
      case "callProgress": {
        const { id, name, progress = null } = move
        return this.activity(id, { name, state: "running", progress: progress as Schema.Json })
      }
      case "callNested":
        return this.activity(
          move.id,
          { name: move.name, ...move.run } as unknown as Record<string, Schema.Json>,
          "subrun"
        )
      case "callAnswer":
        return [...this.settled(move.answer), ...(this.isMany ? this.left() : [this.result(move.answer)])]
      case "callWaits":
        return []
      case "end":
        return [...this.caughtUp(), this.finish(move)]
    }
  }

  private reset(
    { discarded }: Extract<Machine.Move, { readonly kind: "stepReset" }>,
    messageId: string
  ): ReadonlyArray<AgEvent> {
    const ends = Array.from(this.open, (toolCallId): AgEvent => ({ type: "TOOL_CALL_END", toolCallId }))
    this.open.clear()
    const shown = discarded.flatMap(({ id }) => {
      if (this.options.messages === undefined) this.discarded.add(id)
      return this.settled({ id: this.idOf(id), isError: true })
    })
    return [
      ...ends,
      ...shown,
      ...(this.options.messages === undefined
        ? [{ type: "CUSTOM", name: "heddle.reset", value: { messageId } }]
        : this.snapshot())
    ]
  }

  private ready(move: Extract<Machine.Move, { readonly kind: "callReady" }>): ReadonlyArray<AgEvent> {
    if (!this.open.delete(move.id)) return []
    const { id: toolCallId } = move
    const whole = argumentsOf(move)
    return [
      ...(move.sent > 0 || whole === "" ? [] : [{ type: "TOOL_CALL_ARGS", toolCallId, delta: whole }]),
      { type: "TOOL_CALL_END", toolCallId }
    ]
  }

  /** Ends the activity shown for a running call. */
  private settled({ id, isError }: Pick<Machine.Answer, "id" | "isError">): ReadonlyArray<AgEvent> {
    const name = this.active.get(id)
    this.active.delete(id)
    return name === undefined ? [] : this.activity(id, { name, state: isError ? "failed" : "done" })
  }

  private result(answer: Machine.Answer): AgEvent {
    const { id: messageId, ...rest } = answerOf(answer, this.base)
    return { type: "TOOL_CALL_RESULT", messageId, role: "tool", ...rest }
  }

  private finish({ outcome, usage, waiting }: Extract<Machine.Move, { readonly kind: "end" }>): AgEvent {
    const { runId, threadId } = this.options
    if (outcome._tag === "Failed") {
      const { code = "internal", message = "The run failed." } = outcome.error ?? {}
      return { type: "RUN_ERROR", message, code, ...usageOf(usage) }
    }
    if (outcome._tag === "RuleEnded" && outcome.status === "error") {
      const { rule = "rule" } = outcome
      return { type: "RUN_ERROR", message: `The rule "${rule}" ended the run.`, code: rule, ...usageOf(usage) }
    }
    const end = { type: "RUN_FINISHED", threadId, runId, ...usageOf(usage) }
    if (waiting.length > 0) {
      const interrupts = waiting.map(({ callId, suspension }) => interruptOf(suspension, this.idOf(callId)))
      return { ...end, outcome: { type: "interrupt", interrupts } }
    }
    if (outcome._tag === "Cancelled") return { ...end, outcome: { type: "cancelled" } }
    return { ...end, outcome: { type: "success" }, result: { outcome: outcome as unknown as Schema.Json } }
  }
}

/**
 * Creates an encoder for one run, from public events to the client's events. A waiting run ends with an interrupt per
 * suspension, in call order, with the suspension's id. The continuing run has its own encoder.
 *
 * **Example** (A text)
 *
 * ```ts import.meta.vitest
 * import { AgUi } from "heddle/ui"
 *
 * const encoder = AgUi.make({ threadId: "s1", runId: "r1" })
 *
 * encoder.push({ _tag: "MessageStarted" }).map((event) => event.type) // => ["RUN_STARTED", "STEP_STARTED"]
 * encoder.push({ _tag: "TextDelta", id: null, delta: "Hello" }).map((event) => event.type)
 * // => ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"]
 * ```
 *
 * @category encoding
 */
export const make = (options: Options): Encoder => {
  checkNames("AgUi.make", options, knownOptions)
  return new AgEncoder(options)
}

const knownOptions = {
  threadId: Values.text,
  runId: Values.text,
  messageId: Values.text,
  messages: Values.listOf(Values.record, "messages of the protocol"),
  known: Values.described(Values.limit, "a whole number, 0 or more, or Infinity")
} satisfies NamesOf<Options>

/**
 * Options of an event stream.
 *
 * @category options
 */
export interface EventsOptions extends Options {
  /**
   * Time for joining text, reasoning and argument deltas, in milliseconds. Any other event sends the joined deltas at
   * once. 50 by default; 0 joins nothing.
   */
  readonly joinMillis?: number
}

/**
 * Encodes a stream of public events. If the stream fails, or ends before its run, the events end with `RUN_ERROR`. A
 * failed stream then fails.
 *
 * **Example** (A run as events)
 *
 * ```ts import.meta.vitest
 * import { Chat, Event } from "heddle"
 * import { Script } from "heddle/testing"
 * import { AgUi } from "heddle/ui"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hello"), Script.finish("stop")]])
 * const events = Chat.stream("Hi").pipe(
 *   Stream.map((event) => Event.toPublic(event)),
 *   Stream.filter((event) => event !== undefined),
 *   (stream) => AgUi.events(stream, { threadId: "s1", runId: "r1" })
 * )
 *
 * const all = await Effect.runPromise(Stream.runCollect(events).pipe(Effect.provide(model)))
 * all.at(-1)?.outcome // => { type: "success" }
 * ```
 *
 * @category encoding
 */
export const events = <E, R>(
  events: Stream.Stream<Event.PublicEvent, E, R>,
  options: EventsOptions
): Stream.Stream<AgEvent, E, R> => {
  checkNames("AgUi.events", options, knownEvents)
  const { joinMillis = 50, ...rest } = options
  return Paced.encoded(events, () => make(rest), joinMillis)
}

const knownEvents = { ...knownOptions, joinMillis: Values.amount } satisfies NamesOf<EventsOptions>

/**
 * Response headers for a {@link toSse} body.
 *
 * **Example** (The type of the body)
 *
 * ```ts import.meta.vitest
 * import { AgUi } from "heddle/ui"
 *
 * AgUi.headers["content-type"] // => "text/event-stream"
 * ```
 *
 * @category server-sent events
 */
export const headers: { readonly [name: string]: string } = {
  "content-type": "text/event-stream",
  "cache-control": "no-cache",
  "x-accel-buffering": "no"
}

/**
 * Writes events as server-sent events. It sends a comment at once, for proxies waiting for a first byte, and after
 * every 15 seconds without an event.
 *
 * **Example** (The text of a body)
 *
 * ```ts import.meta.vitest
 * import { AgUi } from "heddle/ui"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const body = AgUi.toSse(Stream.make({ type: "RUN_ERROR", message: "The run failed." }))
 *
 * await Effect.runPromise(Stream.mkString(body))
 * // => ": heddle\n\ndata: {\"type\":\"RUN_ERROR\",\"message\":\"The run failed.\"}\n\n"
 * ```
 *
 * @category server-sent events
 */
export const toSse = <E, R>(events: Stream.Stream<AgEvent, E, R>): Stream.Stream<string, E, R> => Paced.sse(events, "")

/**
 * Options for reading a thread as messages.
 *
 * @category options
 */
export interface MessagesOptions {
  /** Publication level for calls, or a function from tool name to level, as in `Event.toPublic`. `"all"` by default. */
  readonly publish?: Event.Publish | ((tool: string) => Event.Publish)
  /** `true` to publish the model's reasoning. `false` by default. */
  readonly publishReasoning?: boolean
  /** Calls waiting for an answer. None by default. */
  readonly suspensions?: ReadonlyArray<Event.Suspension>
  /** Names a message by its thread index. `message-INDEX` by default. */
  readonly messageId?: (index: number, role: "user" | "assistant") => string
}

const knownMessages = { ...ThreadEvents.knownRules, messageId: Values.fn } satisfies NamesOf<MessagesOptions>

const userContent = (content: Message.Content): Schema.Json => {
  if (typeof content === "string") return content
  return content.flatMap((part): ReadonlyArray<Schema.Json> => {
    if (part.type === "text") return [{ type: "text", text: part.text }]
    if (part.type === "reasoning") return []
    const mimeType = part.mediaType === undefined ? {} : { mimeType: part.mediaType }
    const source = part.url === undefined
      ? { type: "data", value: part.data ?? "", mimeType: part.mediaType ?? "application/octet-stream" }
      : { type: "url", value: part.url, ...mimeType }
    return [{ type: part.type === "image" ? "image" : "document", source }]
  })
}

/**
 * Reads a thread as protocol messages, for a `MESSAGES_SNAPSHOT`. System messages are left out; calls and answers are
 * published as in `Event.toPublic`.
 *
 * **Example** (Showing a conversation again)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 * import { AgUi } from "heddle/ui"
 *
 * const thread = Thread.fromMessages([
 *   Message.user("How warm is it?"),
 *   Message.assistant("", [Message.toolCall("c1", "weather", { city: "Oslo" })]),
 *   Message.tool("c1", "7 °C"),
 *   Message.assistant("7 °C.")
 * ])
 *
 * AgUi.messages(thread).map((message) => message.role) // => ["user", "assistant", "tool", "assistant"]
 * ```
 *
 * @category threads
 */
export const messages = (thread: Thread.Thread, options: MessagesOptions = {}): ReadonlyArray<AgMessage> => {
  checkNames("AgUi.messages", options, knownMessages)
  const { messageId = (index) => `message-${index}`, ...rules } = options
  return ThreadEvents.entriesOf(thread, rules).flatMap((entry): ReadonlyArray<AgMessage> => {
    const id = messageId(entry.index, entry.role)
    if (entry.role === "user") return [{ id, role: "user", content: userContent(entry.message.content) }]
    const folded = new Messages(id, (turn) => messageId(entry.turns[turn - 1] ?? entry.index, "assistant"))
    const machine = new Machine.Machine(folded)
    for (const event of entry.events) machine.push(event)
    return folded.all
  })
}

const userParts = (reader: Posted.Reader, message: Json.JsonObject, field: string): ReadonlyArray<Message.Part> => {
  const { content } = message
  const textPart = (text: unknown, place: string): ReadonlyArray<Message.Part> => {
    const said = reader.text(text, place)
    return said === "" ? [] : [{ type: "text", text: said }]
  }
  if (!Array.isArray(content)) return textPart(content, `${field}.content`)
  return content.flatMap((value: unknown, index): ReadonlyArray<Message.Part> => {
    const place = `${field}.content[${index}]`
    const part = reader.object(value, place)
    switch (part["type"]) {
      case "text":
        return textPart(part["text"], `${place}.text`)
      case "image":
      case "document": {
        const source = reader.object(part["source"], `${place}.source`)
        const { mimeType, type, value: given } = source
        if (type === "data") return [reader.data(given, mimeType, `${place}.source.value`)]
        if (type === "url") return [reader.url(given, mimeType, `${place}.source.value`)]
        return reader.unsupported(`${place}.source.type`, "must be data or url")
      }
      default:
        return reader.unsupported(`${place}.type`, "must be text, image or document")
    }
  })
}

/** Decodes a `resume` entry. */
const resumed = (reader: Posted.Reader, value: unknown, field: string): Body.Action => {
  const entry = reader.object(value, field)
  const id = reader.callId(entry["interruptId"], `${field}.interruptId`)
  const { payload, status } = entry
  if (status === "cancelled") return { _tag: "Deny", id, isCancelled: true }
  if (status !== "resolved") return reader.refuse(`${field}.status`, "must be resolved or cancelled")
  const place = `${field}.payload`
  return reader.decision(id, payload, place) ?? { _tag: "Answer", id, value: reader.json(payload, place) }
}

/** Returns the client's call answers at the end of the messages, excluding answers sent by the server. */
const submitted = (reader: Posted.Reader, messages: ReadonlyArray<unknown>): ReadonlyArray<Body.Action> => {
  const isTool = (message: unknown): boolean => Json.isObject(message) && message["role"] === "tool"
  const from = messages.findLastIndex((message) => !isTool(message)) + 1
  const owner = messages[from - 1]
  const messageId = Json.isObject(owner) && typeof owner["id"] === "string" ? { messageId: owner["id"] } : {}
  return messages.slice(from).flatMap((message, index): ReadonlyArray<Body.Action> => {
    const field = `messages[${from + index}]`
    const { content, error, id: own, toolCallId } = reader.object(message, field)
    if (typeof own === "string" && own.startsWith("res-")) return []
    const id = reader.callId(toolCallId, `${field}.toolCallId`)
    if (error !== undefined && error !== null) {
      return [{ _tag: "Answer", id, ...messageId, error: reader.text(error, `${field}.error`) }]
    }
    return [{ _tag: "Answer", id, ...messageId, value: reader.json(content, `${field}.content`) }]
  })
}

/**
 * Reads the requests in a `RunAgentInput`: its last message if written by the user, the `resume` entries, the answers
 * in trailing `tool` messages, and the client's tools. It reads nothing else, since the conversation belongs to the
 * session. If a body has only tools and the client has a reply, the body requests this reply again, as a `Retry`.
 *
 * **Details**
 *
 * A `resume` payload with `approved`, `true` or `false`, is an approval or denial, with `arguments` and `reason`; any
 * other payload is an answer. The server must compare each with the waiting suspensions.
 *
 * **Example** (A permission with other arguments)
 *
 * ```ts import.meta.vitest
 * import { AgUi } from "heddle/ui"
 * import * as Result from "effect/Result"
 *
 * const payload = { approved: true, arguments: { amount: 45 } }
 * const read = AgUi.read({
 *   threadId: "s1",
 *   runId: "r2",
 *   messages: [],
 *   resume: [{ interruptId: "r1~p1", status: "resolved", payload }]
 * })
 *
 * Result.getOrThrow(read).actions // => [{ _tag: "Approve", id: "r1~p1", edits: { amount: 45 } }]
 * ```
 *
 * @category bodies
 */
export const read = (body: unknown, options: Body.ReadOptions = {}): Result.Result<Body.Posted, Body.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader("AgUi.read", options)
    const given = reader.object(body, "body")
    const sessionId = reader.sessionId(given["threadId"], "threadId")
    const runId = reader.id(given["runId"], "runId")
    const messages = reader.list(given["messages"], "messages")
    const clientTools = reader.clientTools(given["tools"], "tools")
    const { resume } = given
    const entries = resume === undefined || resume === null ? [] : reader.list(resume, "resume")
    const answers = entries.map((entry, index) => resumed(reader, entry, `resume[${index}]`))
    const field = `messages[${messages.length - 1}]`
    const last = messages[messages.length - 1]
    const said: ReadonlyArray<Body.Action> = Json.isObject(last) && last["role"] === "user"
      ? [{
        _tag: "Say",
        id: reader.messageId(last["id"], `${field}.id`),
        content: reader.content(userParts(reader, last, field), `${field}.content`)
      }]
      : submitted(reader, messages)
    const actions = [...answers, ...said]
    const reply = messages.findLast((message) => Json.isObject(message) && message["role"] === "assistant")
    if (actions.length === 0) {
      if (!Json.isObject(reply)) {
        return reader.refuse("messages", "must end with a user message, or contain an answer or a reply")
      }
      const messageId = reader.id(reply["id"], "messages (the last reply's id)")
      const retry: Body.Retry = { _tag: "Retry", steps: 0, isRegeneration: false }
      return { sessionId, runId, messageId, actions: [retry], clientTools }
    }
    const messageIds = new Set(
      messages.flatMap((message) => Json.isObject(message) && typeof message["id"] === "string" ? [message["id"]] : [])
    )
    return { sessionId, runId, messageIds, actions, clientTools }
  })
