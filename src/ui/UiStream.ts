/**
 * Speaks the AI SDK's UI message stream, for `useChat` and other readers: public events as chunks, a thread as
 * messages, and the bodies posted by its client. It needs no AI SDK package.
 */
import type * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Stream from "effect/Stream"
import type * as Event from "../Event.ts"
import * as CallPaths from "../internal/answer/callPath.ts"
import { checkNames, type NamesOf } from "../internal/declare/schema.ts"
import * as Values from "../internal/declare/values.ts"
import * as Json from "../internal/json.ts"
import type * as Message from "../Message.ts"
import type * as Thread from "../Thread.ts"
import type * as Body from "./Body.ts"
import * as Machine from "./internal/machine.ts"
import * as Majors from "./internal/majors.ts"
import * as Paced from "./internal/paced.ts"
import * as Posted from "./internal/posted.ts"
import * as ThreadEvents from "./internal/threadEvents.ts"

export type { SubRun } from "./internal/machine.ts"
export type { Protocol } from "./internal/majors.ts"

/**
 * A stream chunk: plain JSON with the fields for its `type`.
 *
 * @category models
 */
export interface Chunk {
  /** Chunk type, such as `"text-delta"`. */
  readonly type: string
  readonly [field: string]: Schema.Json | undefined
}

/**
 * Options of an encoder.
 *
 * @category options
 */
export interface Options {
  /**
   * Id of the message the chunks form; in a continuation, the continued message's id. By default the client chooses the
   * id.
   */
  readonly messageId?: string
  /** Major version of the package `ai` on the page. 7 by default. A value other than a {@link Protocol} is a defect. */
  readonly protocol?: Majors.Protocol
  /**
   * Number of leading message steps the client already received. The last step may be partial: it is discarded, and
   * sent again with the following steps. 0 by default.
   */
  readonly known?: number
  /**
   * `false` if the response continues no message. Answers to earlier calls are then left out: the client has no part
   * for them in this message and would fail. `true` by default.
   */
  readonly continues?: boolean
  /**
   * Unanswered calls from earlier responses. If a nested call waits, the outer call's part keeps its name and input
   * from here. Without this option the part gets the nested call's name, and no input. None by default.
   */
  readonly calls?: ReadonlyArray<Extract<Event.PublicEvent, { readonly _tag: "ToolCallCompleted" }>>
}

/**
 * Encodes events as chunks. An encoder is pure except for its state, and joins nothing.
 *
 * @category models
 */
export interface Encoder {
  /** Returns an event's chunks. */
  readonly push: (event: Event.PublicEvent) => ReadonlyArray<Chunk>
  /**
   * Closes a run whose events ended without `ChatCompleted`; the client reads an error. After that event it returns
   * nothing.
   */
  readonly end: () => ReadonlyArray<Chunk>
}

/** Number of characters beyond which arguments are sent whole: argument deltas take quadratic time in the client. */
const mostArguments = 8192

const finishReasons: { readonly [reason: string]: string } = {
  stop: "stop",
  length: "length",
  content_filter: "content-filter",
  tool_calls: "tool-calls",
  error: "error"
}

const finishReasonOf = (
  { _tag, finishReason, status }: Event.PublicOutcome,
  protocol: Majors.Protocol
): string | undefined => {
  if (protocol < 6) return undefined
  switch (_tag) {
    case "Completed":
      return finishReason === undefined ? undefined : finishReasons[finishReason] ?? "other"
    case "Cancelled":
      return protocol < 7 ? "other" : "interrupted"
    case "AskUser":
    case "ManualToolCalls":
    case "ApprovalRequested":
      return "tool-calls"
    case "ToolFailed":
      return "error"
    case "RuleEnded":
      return status === "error" ? "error" : "other"
    default:
      return "other"
  }
}

const parsed = (text: string): unknown => {
  const json = Json.parse(text)
  return json._tag === "Success" ? json.success : text
}

const outputOf = (content: Machine.Content | undefined): Schema.Json => Machine.valueOf(content, parsed) as Schema.Json

/** Writes a suspension as Heddle's own part, for clients without a protocol chunk. */
const questionOf = (callId: string, suspension: Event.PublicSuspension): Chunk => {
  const { answerSchema, expiresAt, id, kind, opts, question, toolCall } = suspension
  return {
    type: "data-heddle-question",
    id,
    data: {
      kind,
      toolCallId: callId,
      ...(isOwn(callId, suspension) ? {} : { call: toolCall as unknown as Schema.Json }),
      ...(question === undefined ? {} : { question }),
      ...(opts === undefined ? {} : { opts: opts as Schema.Json }),
      ...(answerSchema === undefined ? {} : { answerSchema: answerSchema as Schema.Json }),
      ...(expiresAt === undefined ? {} : { expiresAt })
    }
  }
}

/** Returns `true` for an approval of the message's own call, for which the client has its own chunk. */
const isApproval = (callId: string, suspension: Event.PublicSuspension, protocol: Majors.Protocol): boolean =>
  suspension.kind === "approval" && isOwn(callId, suspension) && protocol >= 6

/** Returns `true` if the suspension belongs to the call itself, not to a nested call. */
const isOwn = (callId: string, { id }: Event.PublicSuspension): boolean => CallPaths.ownCall(id) === callId

/** Returns the growing part with the typed answer. */
const outputPart = ({ isWhole, value }: Extract<Machine.Move, { readonly kind: "output" }>) => ({
  type: "data-heddle-output",
  id: "output",
  data: { value: value as Schema.Json, isWhole }
})

/** Part type for a message sent into the run. */
const messageType = "data-heddle-message"

/** Returns a user message's parts in the client's form. */
const contentParts = (content: Message.Content): ReadonlyArray<Chunk> =>
  typeof content === "string" ? [{ type: "text", text: content }] : content.flatMap(userPart)

/** Part type for a discarded step, for clients that cannot discard. */
const resetType = "data-heddle-reset"

/** Sentence for a call discarded with its reply. */
const discardedText = "The reply broke off, and the call was discarded with it."

class UiEncoder implements Encoder, Machine.Words<Chunk> {
  private readonly machine = new Machine.Machine<Chunk>(this)
  private readonly options: Options
  private readonly protocol: Majors.Protocol
  private isStarted = false
  /** `true` if this response opened the message's last step and the step has no call. */
  private isPlain = false
  /** Chunks that made unanswered calls available. */
  private readonly available = new Map<string, Chunk>()
  /** Available calls showing a preliminary output or error. */
  private readonly outputs = new Set<string>()

  /** Names of earlier calls waiting for anything but an approval. */
  private readonly unknown = new Map<string, string>()

  /**
   * Number of remaining steps the client already received. Their parts are left out, except the last step, which is
   * sent again.
   */
  private behind: number
  private isStepEmpty = true

  constructor(options: Options) {
    this.options = options
    this.protocol = options.protocol ?? 7
    this.behind = options.known ?? 0
  }

  readonly push = (event: Event.PublicEvent): ReadonlyArray<Chunk> => this.written(this.machine.push(event))

  readonly end = (): ReadonlyArray<Chunk> => this.written(this.machine.end())

  private written(chunks: ReadonlyArray<Chunk>): ReadonlyArray<Chunk> {
    if (this.isStarted || chunks.length === 0) return chunks
    this.isStarted = true
    const { messageId } = this.options
    return [{ type: "start", ...(messageId === undefined ? {} : { messageId }) }, ...chunks]
  }

  said(kind: "text" | "reasoning", id: string, delta: string): Chunk | undefined {
    return this.behind > 0 ? undefined : { type: `${kind}-delta`, id, delta }
  }

  argued(toolCallId: string, inputTextDelta: string, sent: number): Chunk | undefined {
    return this.behind > 0 || sent > mostArguments
      ? undefined
      : { type: "tool-input-delta", toolCallId, inputTextDelta }
  }

  moved(move: Machine.Move): ReadonlyArray<Chunk> {
    const chunks = this.chunksOf(move)
    return this.behind === 0 || move.kind === "end" ? chunks : chunks.flatMap((chunk) => this.unknownIn(chunk))
  }

  private chunksOf(move: Machine.Move): ReadonlyArray<Chunk> {
    switch (move.kind) {
      case "stepStart":
        this.isPlain = true
        return [{ type: "start-step" }]
      case "stepEnd":
        return [{ type: "finish-step" }]
      case "stepReset":
        return this.reset(move)
      case "output":
        return [outputPart(move)]
      case "messageDelivered":
        return [deliveredPart(move, this.protocol)]
      case "messageRefused":
        return [{ type: messageType, id: move.id, data: { reason: move.reason } }]
      case "modelSwitched": {
        const { code, from, to } = move
        return [{ type: "data-heddle-model", data: { from, to, code }, transient: true }]
      }
      case "textStart":
        return [{ type: "text-start", id: move.id }]
      case "textEnd":
        return [{ type: "text-end", id: move.id }]
      case "reasoningStart":
        return [{ type: "reasoning-start", id: move.id }]
      case "reasoningEnd":
        return [{ type: "reasoning-end", id: move.id }]
      case "callStart":
        this.isPlain = false
        return [{ type: "tool-input-start", toolCallId: move.id, toolName: move.name, dynamic: true }]
      case "callReady":
        return [this.ready(move)]
      case "callState": {
        const { at, attempt, id, kind: _, name, state, waits } = move
        const data = {
          id,
          name,
          state,
          ...waits,
          ...(attempt === undefined ? {} : { attempt }),
          ...(at === undefined ? {} : { at })
        }
        return [{ type: "data-heddle-call", id, data, transient: true }]
      }
      case "callProgress":
        return this.progress(move.id, move.progress)
      case "callNested":
        return [{
          type: "data-heddle-subrun",
          id: move.id,
          data: { name: move.name, ...move.run } as unknown as Schema.Json
        }]
      case "callAnswer":
        this.available.delete(move.answer.id)
        this.unknown.delete(move.answer.id)
        return move.answer.isKnown || this.options.continues !== false ? [this.answer(move.answer)] : []
      case "callWaits":
        return this.waits(move.callId, move.name, move.suspension)
      case "end":
        return this.finish(move)
    }
  }

  /** Leaves out steps the client has, then begins with its last step. */
  private unknownIn(chunk: Chunk): ReadonlyArray<Chunk> {
    const { transient, type } = chunk
    if (this.behind === 0) return [chunk]
    const isReset = type === "reset-step" || type === resetType
    if (isReset || type === "start-step") {
      // The client does not count a discarded step.
      if (isReset && !this.isStepEmpty) this.behind++
      this.isStepEmpty = true
      return []
    }
    const isPart = type.endsWith("-start") || type.startsWith("data-") && transient !== true
    if (!isPart || !this.isStepEmpty) return []
    this.isStepEmpty = false
    return --this.behind > 0 ? [] : [...this.discarding([]), chunk]
  }

  /** Discards the step's parts, or reports them as discarded. */
  private reset({ discarded }: Extract<Machine.Move, { readonly kind: "stepReset" }>): ReadonlyArray<Chunk> {
    this.isPlain = true
    for (const { id } of discarded) {
      this.available.delete(id)
      this.outputs.delete(id)
    }
    return this.discarding(discarded.flatMap(({ id, isDone }) => isDone ? [] : [id]))
  }

  /** Discards the step's parts, including its open calls. */
  private discarding(open: ReadonlyArray<string>): ReadonlyArray<Chunk> {
    if (this.protocol >= 7) return [{ type: "reset-step" }]
    return [
      ...open.map((id) => this.failed(id, discardedText)),
      { type: resetType, data: {} },
      { type: "finish-step" },
      { type: "start-step" }
    ]
  }

  private failed(toolCallId: string, errorText: string): Chunk {
    return { type: "tool-output-error", toolCallId, errorText, dynamic: true }
  }

  /** Writes progress as a preliminary output. If the call waits later, the output must be removed again. */
  private progress(toolCallId: string, progress: unknown): ReadonlyArray<Chunk> {
    if (!this.available.has(toolCallId)) return []
    this.outputs.add(toolCallId)
    return [{
      type: "tool-output-available",
      toolCallId,
      output: (progress ?? null) as Schema.Json,
      dynamic: true,
      preliminary: true
    }]
  }

  private ready(move: Extract<Machine.Move, { readonly kind: "callReady" }>): Chunk {
    const call = { toolCallId: move.id, toolName: move.name, dynamic: true }
    const { lost } = move
    const input = lost === undefined ? move.arguments as Schema.Json : lost.text ?? ""
    const provider = move.isProviders ? { providerExecuted: true } : {}
    const chunk = { type: "tool-input-available", ...call, input, ...provider }
    this.available.set(move.id, chunk)
    if (lost === undefined) return chunk
    this.outputs.add(move.id)
    return {
      type: "tool-input-error",
      ...call,
      input,
      errorText: `The arguments of the call were lost: ${lost.reason}.`
    }
  }

  private answer({ code, content, id: toolCallId, isError, isProviders }: Machine.Answer): Chunk {
    if (code === "denied" && this.protocol >= 6) return { type: "tool-output-denied", toolCallId }
    if (isError) return this.failed(toolCallId, Machine.textOf(content))
    return {
      type: "tool-output-available",
      toolCallId,
      output: outputOf(content),
      // The fifth major version's client uses this field to find the part.
      dynamic: true,
      ...(isProviders ? { providerExecuted: true } : {})
    }
  }

  private waits(toolCallId: string, toolName: string, suspension: Event.PublicSuspension): ReadonlyArray<Chunk> {
    const { expiresAt, id: approvalId } = suspension
    if (!isApproval(toolCallId, suspension, this.protocol)) {
      const available = this.available.get(toolCallId)
      if (available === undefined) this.unknown.set(toolCallId, toolName)
      const before = available !== undefined && this.outputs.delete(toolCallId) ? [available] : []
      return [...before, questionOf(toolCallId, suspension)]
    }
    const expiry = expiresAt === undefined ? {} : { approvalDescriptor: { expiresAt } }
    return [{ type: "tool-approval-request", approvalId, toolCallId, ...expiry }]
  }

  /**
   * Makes earlier calls available again if they wait once more. Otherwise the client would consider them decided, and
   * post its message over and over.
   */
  private availableAgain(waiting: ReadonlyArray<Machine.Waiting>): ReadonlyArray<Chunk> {
    if (this.options.continues === false) return []
    return Array.from(this.unknown, ([toolCallId, toolName]): Chunk => {
      const own = waiting.find(({ suspension }) => isOwn(toolCallId, suspension))
      const call = this.options.calls?.find(({ id }) => id === toolCallId)
      const input = (own?.suspension.toolCall.arguments ?? call?.arguments ?? {}) as Schema.Json
      return { type: "tool-input-available", toolCallId, toolName: call?.name ?? toolName, dynamic: true, input }
    })
  }

  private finish(move: Extract<Machine.Move, { readonly kind: "end" }>): ReadonlyArray<Chunk> {
    const { outcome, usage, waiting } = move
    const messageMetadata = { outcome, ...(usage === undefined ? {} : { usage }) } as unknown as Schema.Json
    if (outcome._tag === "Failed") {
      const errorText = outcome.error?.message ?? "The run failed."
      return [{ type: "message-metadata", messageMetadata }, { type: "error", errorText }]
    }
    // Once all calls in the last step are settled, the client may send its message again. An empty step prevents this.
    const isSettled = waiting.length === 0 && !this.isPlain
    const step: ReadonlyArray<Chunk> = isSettled ? [{ type: "start-step" }, { type: "finish-step" }] : []
    const finishReason = finishReasonOf(outcome, this.protocol)
    const reason = outcome.reason === undefined || this.protocol < 6 ? {} : { reason: outcome.reason }
    return [
      ...this.availableAgain(waiting),
      ...step,
      ...(outcome._tag === "Cancelled" ? [{ type: "abort", ...reason }] : []),
      { type: "finish", ...(finishReason === undefined ? {} : { finishReason }), messageMetadata }
    ]
  }
}

/**
 * Creates an encoder for one run, from public events to the client's chunks.
 *
 * **Details**
 *
 * A run continuing a message has its own encoder, with the message's id: the client finds earlier calls' parts by id.
 * Besides protocol chunks, Heddle sends its own parts:
 *
 * - `data-heddle-question`: a suspension, except an approval of the message's own call, which becomes an approval
 *   request. Its id is the suspension id. Its data contain `kind`, `toolCallId`, and, if present, `question`, `opts`,
 *   `answerSchema` and `expiresAt`; for a nested call also `call`.
 * - `data-heddle-call`: a queued or started call. It is transient: only `onData` sees it. The data contain `id`, `name`
 *   and `state`, and for a queued call the fields `reason`, `key`, `behind` and `elsewhere` from `ToolQueued`.
 * - `data-heddle-subrun`: the run nested in a call's handler, as a {@link SubRun}. Its id is the call id.
 * - `data-heddle-output`: the typed answer as a single growing part, with its `value` and `isWhole`.
 * - `data-heddle-message`: a message into the run, refused with a `reason`. Before `protocol: 7` also a delivered
 *   message, with its `parts`; later the protocol has `steering-message`. Its id is the message id.
 * - `data-heddle-model`: a switch to another model, with `from`, `to` and the error's `code`. It is transient.
 * - `data-heddle-reset`, before `protocol: 7`: its step's texts and calls belong to a discarded reply. A question asked
 *   again keeps its place there, and so does the run nested in a repeated call.
 *
 * **Example** (A text)
 *
 * ```ts import.meta.vitest
 * import { UiStream } from "heddle/ui"
 *
 * const encoder = UiStream.make({ messageId: "m1" })
 *
 * encoder.push({ _tag: "MessageStarted" }) // => [{ type: "start", messageId: "m1" }, { type: "start-step" }]
 * encoder.push({ _tag: "TextDelta", id: null, delta: "Hello" }).map((chunk) => chunk.type)
 * // => ["text-start", "text-delta"]
 * ```
 *
 * @category encoding
 */
export const make = (options: Options = {}): Encoder => {
  checkNames("UiStream.make", options, knownOptions)
  return new UiEncoder(options)
}

const knownOptions = {
  messageId: Values.text,
  protocol: Majors.protocol,
  known: Values.whole,
  continues: Values.flag,
  calls: Values.listOf(Values.record, "ToolCallCompleted events")
} satisfies NamesOf<Options>

/**
 * Options of a chunk stream.
 *
 * @category options
 */
export interface ChunksOptions extends Options {
  /**
   * Time for joining text, reasoning and argument deltas, in milliseconds. Any other event sends the joined deltas at
   * once. 50 by default; 0 joins nothing.
   */
  readonly joinMillis?: number
}

/**
 * Encodes a stream of public events. If the stream fails, or ends before its run, the chunks end with an error. A
 * failed stream then fails.
 *
 * **Example** (A run as chunks)
 *
 * ```ts import.meta.vitest
 * import { Chat, Event } from "heddle"
 * import { Script } from "heddle/testing"
 * import { UiStream } from "heddle/ui"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const model = Script.layer([[Script.text("Hel"), Script.text("lo"), Script.finish("stop")]])
 * const events = Chat.stream("Hi").pipe(
 *   Stream.map((event) => Event.toPublic(event)),
 *   Stream.filter((event) => event !== undefined)
 * )
 * const chunks = await Effect.runPromise(Stream.runCollect(UiStream.chunks(events)).pipe(Effect.provide(model)))
 *
 * chunks.map((chunk) => chunk.type)
 * // => ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]
 * chunks[3]?.delta // => "Hello"
 * ```
 *
 * @category encoding
 */
export const chunks = <E, R>(
  events: Stream.Stream<Event.PublicEvent, E, R>,
  options: ChunksOptions = {}
): Stream.Stream<Chunk, E, R> => {
  checkNames("UiStream.chunks", options, knownChunks)
  const { joinMillis = 50, ...rest } = options
  return Paced.encoded(events, () => make(rest), joinMillis)
}

const knownChunks = { ...knownOptions, joinMillis: Values.amount } satisfies NamesOf<ChunksOptions>

/**
 * Response headers for a {@link toSse} body.
 *
 * **Example** (The type of the body)
 *
 * ```ts import.meta.vitest
 * import { UiStream } from "heddle/ui"
 *
 * UiStream.headers["content-type"] // => "text/event-stream"
 * ```
 *
 * @category server-sent events
 */
export const headers: { readonly [name: string]: string } = {
  "content-type": "text/event-stream",
  "cache-control": "no-cache",
  "x-vercel-ai-ui-message-stream": "v1",
  "x-accel-buffering": "no"
}

/**
 * Writes chunks as server-sent events, ending with `[DONE]` unless the stream fails. It sends a comment at once, for
 * proxies waiting for a first byte, and after every 15 seconds without a chunk.
 *
 * **Example** (The text of a body)
 *
 * ```ts import.meta.vitest
 * import { UiStream } from "heddle/ui"
 * import * as Effect from "effect/Effect"
 * import * as Stream from "effect/Stream"
 *
 * const body = UiStream.toSse(Stream.make({ type: "start-step" }))
 *
 * await Effect.runPromise(Stream.mkString(body))
 * // => ": heddle\n\ndata: {\"type\":\"start-step\"}\n\ndata: [DONE]\n\n"
 * ```
 *
 * @category server-sent events
 */
export const toSse = <E, R>(chunks: Stream.Stream<Chunk, E, R>): Stream.Stream<string, E, R> =>
  Paced.sse(chunks, "data: [DONE]\n\n")

/**
 * A message in the form `useChat` expects.
 *
 * @category models
 */
export interface UiMessage {
  /** Message id. */
  readonly id: string
  /** Message author. */
  readonly role: "user" | "assistant"
  /** Message parts. */
  readonly parts: ReadonlyArray<Chunk>
}

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
  /** Id of the run in which the suspended calls began to wait, part of their suspension ids. None by default. */
  readonly runId?: string
  /** Encoded typed answers, by the thread index of the reply. None by default. */
  readonly outputs?: ReadonlyMap<number, unknown>
  /**
   * Ids of messages delivered into a run, by thread index. Each is a part of the reply around it, as in the stream.
   * None by default: each is a user message.
   */
  readonly delivered?: ReadonlyMap<number, string>
  /** Names a message by the thread index of its first message. `message-INDEX` by default. */
  readonly messageId?: (index: number, role: "user" | "assistant") => string
  /** Major version of the package `ai` on the page. 7 by default. A value other than a {@link Protocol} is a defect. */
  readonly protocol?: Majors.Protocol
}

const knownMessages = {
  ...ThreadEvents.knownRules,
  runId: Values.text,
  outputs: Values.map,
  delivered: Values.map,
  messageId: Values.fn,
  protocol: Majors.protocol
} satisfies NamesOf<MessagesOptions>

/** Returns the part of a reply for a message delivered into its run. */
const deliveredPart = (
  { content, id }: Extract<Machine.Move, { readonly kind: "messageDelivered" }>,
  protocol: Majors.Protocol
): Chunk => {
  const parts = contentParts(content) as unknown as ReadonlyArray<Schema.Json>
  return protocol >= 7 ? { type: "steering-message", id, parts } : { type: messageType, id, data: { parts } }
}

/** Folds moves and deltas into message parts. */
class Parts implements Machine.Words<never> {
  readonly parts: Array<Record<string, Schema.Json>> = []
  private readonly calls = new Map<string, Record<string, Schema.Json>>()
  private readonly protocol: Majors.Protocol

  constructor(protocol: Majors.Protocol) {
    this.protocol = protocol
  }

  said(_kind: "text" | "reasoning", _id: string, delta: string): undefined {
    const part = this.parts.at(-1)
    if (part !== undefined) part["text"] = String(part["text"]) + delta
  }

  moved(move: Machine.Move): undefined {
    switch (move.kind) {
      case "stepStart":
        this.parts.push({ type: "step-start" })
        return
      case "textStart":
        this.parts.push({ type: "text", text: "", state: "done" })
        return
      case "reasoningStart":
        this.parts.push({ type: "reasoning", id: move.id, text: "", state: "done" })
        return
      case "callReady": {
        const { arguments: input, id, isProviders, lost, name } = move
        const part: Record<string, Schema.Json> = {
          type: "dynamic-tool",
          toolName: name,
          toolCallId: id,
          state: "input-available",
          input: (lost === undefined ? input : lost.text ?? "") as Schema.Json,
          ...(isProviders ? { providerExecuted: true } : {})
        }
        this.calls.set(id, part)
        this.parts.push(part)
        return
      }
      case "messageDelivered":
        this.parts.push(deliveredPart(move, this.protocol) as Record<string, Schema.Json>)
        return
      case "output": {
        const part = outputPart(move)
        const before = this.parts.find(({ type }) => type === part.type)
        if (before === undefined) this.parts.push(part)
        else Object.assign(before, part)
        return
      }
      case "callWaits": {
        const { callId, suspension } = move
        if (!isApproval(callId, suspension, this.protocol)) {
          this.parts.push(questionOf(callId, suspension) as Record<string, Schema.Json>)
        } else {Object.assign(this.calls.get(callId) ?? {}, {
            state: "approval-requested",
            approval: { id: suspension.id }
          })}
        return
      }
      case "callAnswer": {
        const { code, content, id, isError } = move.answer
        Object.assign(
          this.calls.get(id) ?? {},
          isError
            ? code === "denied" && this.protocol >= 6
              ? { state: "output-denied" }
              : { state: "output-error", errorText: Machine.textOf(content) }
            : { state: "output-available", output: outputOf(content) }
        )
        return
      }
      default:
        return
    }
  }
}

/** Returns the page part for a user message part. */
const userPart = (part: Message.Part): ReadonlyArray<Chunk> => {
  switch (part.type) {
    case "text":
      return [{ type: "text", text: part.text }]
    case "image":
    case "file": {
      const mediaType = part.mediaType ?? (part.type === "image" ? "image/*" : "application/octet-stream")
      const url = part.url ?? `data:${mediaType};base64,${part.data ?? ""}`
      const filename = part.type === "file" && part.filename !== undefined ? { filename: part.filename } : {}
      return [{ type: "file", mediaType, url, ...filename }]
    }
    default:
      return []
  }
}

/**
 * Reads a thread as the initial messages for `useChat`: the user's messages, and a single assistant message for all
 * turns between two user messages. System messages are left out; calls and answers are published as in
 * `Event.toPublic`.
 *
 * **Example** (Showing a conversation again)
 *
 * ```ts import.meta.vitest
 * import { Message, Thread } from "heddle"
 * import { UiStream } from "heddle/ui"
 *
 * const thread = Thread.fromMessages([
 *   Message.user("How warm is it?"),
 *   Message.assistant("", [Message.toolCall("c1", "weather", { city: "Oslo" })]),
 *   Message.tool("c1", "{\"celsius\":7}"),
 *   Message.assistant("7 °C.")
 * ])
 * const messages = UiStream.messages(thread)
 *
 * messages.map((message) => message.role) // => ["user", "assistant"]
 * messages[1]?.parts.map((part) => part.type) // => ["step-start", "dynamic-tool", "step-start", "text"]
 * messages[1]?.parts[1]?.output // => { celsius: 7 }
 * ```
 *
 * @category threads
 */
export const messages = (thread: Thread.Thread, options: MessagesOptions = {}): ReadonlyArray<UiMessage> => {
  checkNames("UiStream.messages", options, knownMessages)
  const { messageId = (index) => `message-${index}`, protocol = 7, ...rules } = options
  return ThreadEvents.entriesOf(thread, rules).map((entry): UiMessage => {
    const id = messageId(entry.index, entry.role)
    if (entry.role === "user") {
      const { content } = entry.message
      const parts: ReadonlyArray<Message.Part> = typeof content === "string"
        ? [{ type: "text", text: content }]
        : content
      return { id, role: "user", parts: parts.flatMap(userPart) }
    }
    const folded = new Parts(protocol)
    const machine = new Machine.Machine(folded)
    for (const event of entry.events) machine.push(event)
    return { id, role: "assistant", parts: folded.parts as unknown as ReadonlyArray<Chunk> }
  })
}

const isToolPart = (part: Json.JsonObject): boolean =>
  part["type"] === "dynamic-tool" || String(part["type"]).startsWith("tool-")

const userParts = (reader: Posted.Reader, message: Json.JsonObject, field: string): ReadonlyArray<Message.Part> =>
  reader.list(message["parts"], `${field}.parts`).flatMap((value, index): ReadonlyArray<Message.Part> => {
    const place = `${field}.parts[${index}]`
    const part = reader.object(value, place)
    switch (part["type"]) {
      case "text": {
        const text = reader.text(part["text"], `${place}.text`)
        return text === "" ? [] : [{ type: "text", text }]
      }
      case "file":
        return [reader.url(part["url"], part["mediaType"], `${place}.url`, part["filename"])]
      default:
        // Application parts and marks such as step-start do not belong to the message.
        return []
    }
  })

/**
 * Counts a message's steps with parts, excluding discarded steps. The last step counts in any case, since it may be
 * partial.
 */
const stepsOf = (parts: ReadonlyArray<unknown>): number => {
  let count = 0
  let step: "empty" | "counted" | "discarded" = "empty"
  for (const part of parts) {
    const type = Json.isObject(part) ? part["type"] : undefined
    if (type === "step-start") step = "empty"
    else if (type === resetType) {
      if (step === "counted") count--
      step = "discarded"
    } else if (step === "empty") {
      step = "counted"
      count++
    }
  }
  return parts.length === 0 || step === "counted" ? count : count + 1
}

/** Returns the answers in the last step of an assistant message. */
const answersOf = (
  reader: Posted.Reader,
  message: Json.JsonObject,
  edits: Json.JsonObject,
  field: string
): ReadonlyArray<Body.Action> => {
  const parts = reader.list(message["parts"], `${field}.parts`)
  const asked = new Map<unknown, ReadonlyArray<Asked>>()
  for (const part of parts) {
    if (!Json.isObject(part) || part["type"] !== "data-heddle-question" || !Json.isObject(part["data"])) continue
    const { id } = part
    const { kind, toolCallId } = part["data"]
    if (typeof id !== "string") continue
    const others = (asked.get(toolCallId) ?? []).filter((question) => question.id !== id)
    asked.set(toolCallId, [...others, { id, kind }])
  }
  const from = parts.findLastIndex((part) => Json.isObject(part) && part["type"] === "step-start") + 1
  return parts.flatMap((value, index): ReadonlyArray<Body.Action> => {
    if (index < from || !Json.isObject(value) || !isToolPart(value)) return []
    const place = `${field}.parts[${index}]`
    const { approval, state, toolCallId } = value
    if (state === "approval-responded") {
      const given = reader.object(approval, `${place}.approval`)
      const id = reader.callId(given["id"], `${place}.approval.id`)
      // The person saw this part's arguments, and edits name its call, so the approval must be for this call.
      const { run } = CallPaths.parse(id) ?? {}
      const own = CallPaths.ownCall(id)
      if (run !== undefined && own !== undefined && typeof toolCallId === "string" && own !== toolCallId) {
        reader.refuse(`${place}.approval.id`, "must name the call of its part")
      }
      const arguments_ = typeof toolCallId === "string" && Object.hasOwn(edits, toolCallId)
        ? edits[toolCallId]
        : undefined
      const decision = reader.decision(id, { ...given, arguments: arguments_ }, `${place}.approval`, "edits")
      return [decision ?? reader.refuse(`${place}.approval.approved`, "must be true or false")]
    }
    const questions = asked.get(toolCallId)
    if (questions === undefined || (state !== "output-available" && state !== "output-error")) return []
    const callId = reader.callId(toolCallId, `${place}.toolCallId`)
    if (state === "output-error") {
      const { id } = answeredIn(questions, undefined) ?? nameless(callId)
      return [{ _tag: "Answer", id, error: reader.text(value["errorText"], `${place}.errorText`) }]
    }
    const { output } = value
    const named = Json.isObject(output) ? questions.find(({ id }) => id === output["id"]) : undefined
    const { id: questionId, kind } = named ?? answeredIn(questions, output) ?? nameless(callId)
    const id = reader.callId(questionId, `${place}.toolCallId`)
    if (isPermission(kind) || named === undefined || !Json.isObject(output)) {
      const decision = isPermission(kind) ? reader.decision(id, output, `${place}.output`) : undefined
      return [decision ?? { _tag: "Answer", id, value: reader.json(output, `${place}.output`) }]
    }
    const { error, value: given } = output
    if (error !== undefined) return [{ _tag: "Answer", id, error: reader.text(error, `${place}.output.error`) }]
    if (given === undefined) return reader.refuse(`${place}.output.value`, "must be the answer to the named question")
    return [{ _tag: "Answer", id, value: reader.json(given, `${place}.output.value`) }]
  })
}

const isPermission = (kind: unknown): boolean => kind === "approval" || kind === "unknown"

/** A question shown on a page. */
interface Asked {
  readonly id: string
  readonly kind: unknown
}

/**
 * Returns the question answered by an output without a question id: the only question the last run asked for the call.
 * With several questions, the person may have read another. Questions already answered elsewhere count too, since pages
 * still show them to the person.
 */
const answeredIn = (questions: ReadonlyArray<Asked>, output: unknown): Asked | undefined => {
  const last = questions.at(-1)
  const run = CallPaths.parse(last?.id)?.run
  const isOnly = questions.every(({ id }) => id === last?.id || CallPaths.parse(id)?.run !== run)
  const namesOther = isPermission(last?.kind) && Json.isObject(output) && typeof output["id"] === "string"
  return isOnly && !namesOther ? last : undefined
}

/** Names a call without its run. Nothing waits under such an id, so the server's refusal lists the waiting ids. */
const nameless = (callId: string): Asked => ({ id: CallPaths.format({ path: [callId] }), kind: "approval" })

/**
 * Reads the requests in a `DefaultChatTransport` body: its last message if written by the user, or the answers in its
 * last message if written by the assistant. It reads nothing else, since the conversation belongs to the session.
 *
 * **Details**
 *
 * An approval carries its suspension's id, which must belong to the call in its part. An answer to a question, or the
 * result of a client-side call, also carries such an id, through the `data-heddle-question` part naming its call. Other
 * outputs were sent by the server itself. If a nested call waits for approval, the outer part's output contains
 * `approved`, `true` or `false`, with `arguments` and `reason`. If one run asked several questions for a call, the
 * output names the answered question: `{ id, approved }`, `{ id, value }` or `{ id, error }`. Without such an id the
 * action carries the call id, under which nothing waits. The server must compare each action with the waiting
 * suspensions.
 *
 * Edited arguments arrive in the body's `edits`, `{ [callId]: arguments }`, for approvals in the same body.
 *
 * `sendMessage()` without a message and `regenerate()` request a reply the client lacks, as a `Retry`: for the last
 * user message, or for the last assistant message if nothing in it is answered.
 *
 * **Example** (A new message)
 *
 * ```ts import.meta.vitest
 * import { UiStream } from "heddle/ui"
 * import * as Result from "effect/Result"
 *
 * const read = UiStream.read({
 *   id: "s1",
 *   trigger: "submit-message",
 *   messages: [{ id: "m1", role: "user", parts: [{ type: "text", text: "Hi" }] }]
 * })
 *
 * Result.getOrThrow(read).actions // => [{ _tag: "Say", id: "m1", content: "Hi" }]
 * Result.isFailure(UiStream.read({ id: "../etc", messages: [] })) // => true
 * ```
 *
 * @category bodies
 */
export const read = (body: unknown, options: Body.ReadOptions = {}): Result.Result<Body.Posted, Body.BodyError> =>
  Posted.reading(() => {
    const reader = new Posted.Reader("UiStream.read", options)
    const given = reader.object(body, "body")
    const sessionId = reader.sessionId(given["id"], "id")
    const { trigger } = given
    const isRegeneration = trigger === "regenerate-message"
    if (trigger !== undefined && trigger !== "submit-message" && !isRegeneration) {
      return reader.refuse("trigger", "must be submit-message or regenerate-message")
    }
    const messages = reader.list(given["messages"], "messages")
    if (messages.length === 0) return reader.refuse("messages", "must not be empty")
    const field = `messages[${messages.length - 1}]`
    const last = reader.object(messages[messages.length - 1], field)
    const id = reader.messageId(last["id"], `${field}.id`)
    if (last["role"] === "user") {
      const content = reader.content(userParts(reader, last, field), `${field}.parts`)
      const said: Body.Say = { _tag: "Say", id, content }
      const { messageId } = given
      const isNew = !isRegeneration && (messageId === undefined || messageId === null)
      if (!isRegeneration && !isNew && messageId !== id) {
        return reader.unsupported("messageId", "an earlier message cannot be sent again: send a new message")
      }
      const action: Body.Action = isNew ? said : { _tag: "Retry", message: said, steps: 0, isRegeneration }
      return { sessionId, actions: [action], clientTools: [] }
    }
    if (last["role"] !== "assistant") return reader.refuse(`${field}.role`, "must be user or assistant")
    if (isRegeneration) return reader.refuse(`${field}.role`, "must be user if a reply is requested again")
    const edits = given["edits"] === undefined ? {} : reader.object(given["edits"], "edits")
    const actions = answersOf(reader, last, edits, field)
    if (actions.length > 0) return { sessionId, messageId: id, actions, clientTools: [] }
    const steps = stepsOf(reader.list(last["parts"], `${field}.parts`))
    return { sessionId, messageId: id, actions: [{ _tag: "Retry", steps, isRegeneration }], clientTools: [] }
  })
