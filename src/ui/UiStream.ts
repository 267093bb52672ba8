/**
 * The UI message stream of the AI SDK, for `useChat` and for whatever else reads it: public events as its chunks, a
 * thread as its messages, and the bodies that its client posts. It needs nothing of the AI SDK.
 *
 * @since 0.1.0
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
 * A chunk of the stream: plain JSON with the fields that the protocol gives its `type`.
 *
 * @category models
 * @since 0.1.0
 */
export interface Chunk {
  /** The type of the chunk, such as `"text-delta"`. */
  readonly type: string
  readonly [field: string]: Schema.Json | undefined
}

/**
 * Options of an encoder.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * The id of the message that the chunks make: of a continuation that of the message which is continued. The client
   * gives it one by default.
   */
  readonly messageId?: string
  /** The major version of `ai` on the page. 7 by default. Anything but a {@link Protocol} is a defect. */
  readonly protocol?: Majors.Protocol
  /**
   * Number of steps of the message, from the first on, that the client has. The last of them may be in the middle: it
   * is discarded, and sent again with what follows it. 0 by default.
   */
  readonly known?: number
  /**
   * `false` for a response that continues no message: answers to calls of earlier messages are left out, since the
   * client has no part for them in this one and would fail. `true` by default.
   */
  readonly continues?: boolean
  /**
   * The calls of earlier responses that are not answered. Where a call of the run inside one waits, the part of the
   * outer call keeps its name and its input by them. Without them it gets the name of the inner call, and no input.
   * None by default.
   */
  readonly calls?: ReadonlyArray<Extract<Event.PublicEvent, { readonly _tag: "ToolCallCompleted" }>>
}

/**
 * A machine that writes events as chunks. It is pure but for what it remembers, and joins nothing.
 *
 * @category models
 * @since 0.1.0
 */
export interface Encoder {
  /** Returns the chunks of an event. */
  readonly push: (event: Event.PublicEvent) => ReadonlyArray<Chunk>
  /**
   * Returns what closes a run whose events ended without a `ChatCompleted`, which the client reads as an error. After
   * that event there is nothing to close.
   */
  readonly end: () => ReadonlyArray<Chunk>
}

/** Argument deltas are quadratic in the client: beyond so many characters the arguments come whole. */
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

/** Writes what waits, but for a permission of a call of the message itself. */
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

/** Tells whether what waits is a permission for a call of the message itself, which the client has a word for. */
const isApproval = (callId: string, suspension: Event.PublicSuspension, protocol: Majors.Protocol): boolean =>
  suspension.kind === "approval" && isOwn(callId, suspension) && protocol >= 6

/** Tells whether what waits is a call itself, and not a call of a run inside it. */
const isOwn = (callId: string, { id }: Event.PublicSuspension): boolean => CallPaths.ownCall(id) === callId

/** Returns the one part of the typed answer, which grows. */
const outputPart = ({ isWhole, value }: Extract<Machine.Move, { readonly kind: "output" }>) => ({
  type: "data-heddle-output",
  id: "output",
  data: { value: value as Schema.Json, isWhole }
})

/** The part of a message that was sent into the run. */
const messageType = "data-heddle-message"

/** Returns the parts of a user's message as the client has them. */
const contentParts = (content: Message.Content): ReadonlyArray<Chunk> =>
  typeof content === "string" ? [{ type: "text", text: content }] : content.flatMap(userPart)

/** The part of a step that was discarded, where the client cannot discard it. */
const resetType = "data-heddle-reset"

/** The sentence for a call that was discarded with its reply. */
const discardedText = "The reply broke off, and the call was discarded with it."

class UiEncoder implements Encoder, Machine.Words<Chunk> {
  private readonly machine = new Machine.Machine<Chunk>(this)
  private readonly options: Options
  private readonly protocol: Majors.Protocol
  private isStarted = false
  /** `true` if the last step of the message was opened by this response and has no call. */
  private isPlain = false
  /** The chunks that made calls available which are not answered. */
  private readonly available = new Map<string, Chunk>()
  /** The calls of these that show an output or an error which is not final. */
  private readonly outputs = new Set<string>()

  /** The names of the calls of an earlier response that wait for something else than a permission. */
  private readonly unknown = new Map<string, string>()

  /** Number of remaining steps that the client has. Their parts are left out, and the last step is sent again. */
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

  private delivered({ content, id }: Extract<Machine.Move, { readonly kind: "messageDelivered" }>): Chunk {
    const parts = contentParts(content) as unknown as ReadonlyArray<Schema.Json>
    return this.protocol >= 7 ? { type: "steering-message", id, parts } : { type: messageType, id, data: { parts } }
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
        return [this.delivered(move)]
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

  /** Leaves out what the client has, and begins with its last step. */
  private unknownIn(chunk: Chunk): ReadonlyArray<Chunk> {
    const { transient, type } = chunk
    if (this.behind === 0) return [chunk]
    const isReset = type === "reset-step" || type === resetType
    if (isReset || type === "start-step") {
      // The client does not count a step that was discarded.
      if (isReset && !this.isStepEmpty) this.behind++
      this.isStepEmpty = true
      return []
    }
    const isPart = type.endsWith("-start") || type.startsWith("data-") && transient !== true
    if (!isPart || !this.isStepEmpty) return []
    this.isStepEmpty = false
    return --this.behind > 0 ? [] : [...this.discarding([]), chunk]
  }

  /** Discards the parts of the step, or tells that they are. */
  private reset({ discarded }: Extract<Machine.Move, { readonly kind: "stepReset" }>): ReadonlyArray<Chunk> {
    this.isPlain = true
    for (const { id } of discarded) {
      this.available.delete(id)
      this.outputs.delete(id)
    }
    return this.discarding(discarded.flatMap(({ id, isDone }) => isDone ? [] : [id]))
  }

  /** Discards the parts of the step, and its open calls with it. */
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

  /** Writes progress as an output that is not final. A call that waits afterwards has to be without it again. */
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
      // The client of the fifth major looks for the part by it.
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
   * Makes calls of an earlier response available again that wait once more. Without that the client would take them for
   * decided, and post its message again and again.
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
    // The client may send its message again where the calls of the last step are all settled.
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
 * An encoder for one run: each public event gives the chunks that the client reads.
 *
 * **Details**
 *
 * A run that continues a message is written by an encoder of its own, with the id of that message: the client finds the
 * parts of earlier calls by their ids. Beside the chunks of the protocol there are parts of Heddle's own:
 *
 * - `data-heddle-question`: what waits for an answer, but for permissions, which are approval requests. Its id is that
 *   of the suspension, its data have `kind`, `toolCallId`, and `question`, `opts`, `answerSchema` and `expiresAt` where
 *   there are such; `call` where it is a call of the run inside that call's handler.
 * - `data-heddle-call`: a call that waits for its turn, or has started. It is transient: only `onData` sees it. The
 *   data have `state` and, of a call that waits, `reason`, `key`, `behind` and `elsewhere` of `ToolQueued`.
 * - `data-heddle-subrun`: the run inside a call's handler, as a {@link SubRun}. Its id is that of the call.
 * - `data-heddle-output`: the typed answer, as one part that grows, with its `value` and whether it `isWhole`.
 * - `data-heddle-message`: a message into the run that was refused, with the `reason`; before `protocol: 7` also one
 *   that was delivered, with its `parts`, for which the protocol then has `steering-message`. Its id is that of the
 *   message.
 * - `data-heddle-model`: another model is asked, with `from`, `to` and the error's `code`. It is transient.
 * - `data-heddle-reset`, before `protocol: 7`: the texts and calls of its step are those of a reply that was discarded.
 *   A question that is asked again keeps its place there, and so does the run inside a call that comes again.
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
 * @since 0.1.0
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
 * Options of a stream of chunks.
 *
 * @category options
 * @since 0.1.0
 */
export interface ChunksOptions extends Options {
  /**
   * The time for which deltas of a text, of reasoning and of arguments are joined, in milliseconds. Everything else
   * sends them at once. 50 by default, and 0 joins nothing.
   */
  readonly joinMillis?: number
}

/**
 * The chunks of a stream of public events. Where that fails, or ends without the end of its run, the chunks end with an
 * error; the failure follows them.
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
 * @since 0.1.0
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
 * The headers of a response whose body is {@link toSse}.
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
 * @since 0.1.0
 */
export const headers: { readonly [name: string]: string } = {
  "content-type": "text/event-stream",
  "cache-control": "no-cache",
  "x-vercel-ai-ui-message-stream": "v1",
  "x-accel-buffering": "no"
}

/**
 * Chunks as server-sent events, with `[DONE]` behind the last one. A comment comes at once, for proxies that wait for a
 * first byte, and after each 15 seconds without a chunk.
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
 * @since 0.1.0
 */
export const toSse = <E, R>(chunks: Stream.Stream<Chunk, E, R>): Stream.Stream<string, E, R> =>
  Paced.sse(chunks, "data: [DONE]\n\n")

/**
 * A message as `useChat` has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface UiMessage {
  /** The id of the message. */
  readonly id: string
  /** The author of the message. */
  readonly role: "user" | "assistant"
  /** The parts of the message. */
  readonly parts: ReadonlyArray<Chunk>
}

/**
 * Options for reading a thread as messages.
 *
 * @category options
 * @since 0.1.0
 */
export interface MessagesOptions {
  /** Extent to which calls are published, or a function of the name of the tool, as in `Event.toPublic`. */
  readonly publish?: Event.Publish | ((tool: string) => Event.Publish)
  /** `true` if the model's reasoning is published. `false` by default. */
  readonly publishReasoning?: boolean
  /** The calls that wait for an answer. None by default. */
  readonly suspensions?: ReadonlyArray<Event.Suspension>
  /** The id of the run in which they began to wait, which their ids name. */
  readonly runId?: string
  /** The typed answers of runs, encoded, by the indexes of the replies that gave them. None by default. */
  readonly outputs?: ReadonlyMap<number, unknown>
  /** Names a message by the index of its first message in the thread. `message-INDEX` by default. */
  readonly messageId?: (index: number, role: "user" | "assistant") => string
  /** The major version of `ai` on the page. 7 by default. Anything but a {@link Protocol} is a defect. */
  readonly protocol?: Majors.Protocol
}

const knownMessages = {
  ...ThreadEvents.knownRules,
  runId: Values.text,
  outputs: Values.map,
  messageId: Values.fn,
  protocol: Majors.protocol
} satisfies NamesOf<MessagesOptions>

/** Folds moves and deltas into the parts of a message. */
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

/** Returns the part of a page for a part of a user's message. */
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
 * A thread as the messages that `useChat` begins with: those of the user, and one of the assistant for all of its turns
 * between two of these. Messages of the system are left out, and calls and answers are published as in
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
 * @since 0.1.0
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
        // Parts of the application's own, and marks such as step-start, are none of the message.
        return []
    }
  })

/**
 * Returns the number of steps of a message that have parts and were not discarded, the last step included, whatever it
 * has: it may be in the middle.
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

/** Returns what the parts of the last step of an assistant's message answer. */
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
      // The person saw the arguments of this part, and edits name its call.
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

/** A question that a page shows. */
interface Asked {
  readonly id: string
  readonly kind: unknown
}

/**
 * Returns the question that an output answers which names none of them: the only one that the last run asked for the
 * call. Where there are more, the person may have read another one. One that was answered elsewhere counts, since the
 * page still shows it.
 */
const answeredIn = (questions: ReadonlyArray<Asked>, output: unknown): Asked | undefined => {
  const last = questions.at(-1)
  const run = CallPaths.parse(last?.id)?.run
  const isOnly = questions.every(({ id }) => id === last?.id || CallPaths.parse(id)?.run !== run)
  const namesOther = isPermission(last?.kind) && Json.isObject(output) && typeof output["id"] === "string"
  return isOnly && !namesOther ? last : undefined
}

/** Names a call without its run, under which nothing waits: the server's refusal has the ids that wait. */
const nameless = (callId: string): Asked => ({ id: CallPaths.format({ path: [callId] }), kind: "approval" })

/**
 * Reads what a body of `DefaultChatTransport` asks for: its last message, if that is the user's, or the answers in its
 * last message, if that is the assistant's. Nothing else of it is read: the conversation is the session's.
 *
 * **Details**
 *
 * An approval is named by the id of its suspension, which has to be one of the call in its part. An answer to a
 * question, or the result of a call that the client runs, is named by such an id, too: by the `data-heddle-question`
 * part that names its call. Other outputs are those that the server has sent. The output of a part whose question is a
 * permission for a call of a run inside it has `approved`, `true` or `false`, with `arguments` and `reason`. Where one
 * run asked several questions for a call, its output names the one that it answers: `{ id, approved }`, `{ id, value }`
 * or `{ id, error }`. Without such an id the action has the id of the call, under which nothing waits. The server has
 * to compare each with what waits.
 *
 * Arguments that were edited come as `edits` of the body: `{ [callId]: arguments }`, for approvals in the same body.
 *
 * `sendMessage()` without a message and `regenerate()` ask for a reply that the client lacks, as a `Retry`: of the last
 * message of the user, or of the assistant's last message where nothing in it is answered.
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
 * @since 0.1.0
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
    if (messages.length === 0) return reader.refuse("messages", "must have a message")
    const field = `messages[${messages.length - 1}]`
    const last = reader.object(messages[messages.length - 1], field)
    const id = reader.messageId(last["id"], `${field}.id`)
    if (last["role"] === "user") {
      const content = reader.content(userParts(reader, last, field), `${field}.parts`)
      const said: Body.Say = { _tag: "Say", id, content }
      const { messageId } = given
      const isNew = !isRegeneration && (messageId === undefined || messageId === null)
      if (!isRegeneration && !isNew && messageId !== id) {
        return reader.unsupported("messageId", "an earlier message cannot be sent again: send a new one")
      }
      const action: Body.Action = isNew ? said : { _tag: "Retry", message: said, steps: 0, isRegeneration }
      return { sessionId, actions: [action], clientTools: [] }
    }
    if (last["role"] !== "assistant") return reader.refuse(`${field}.role`, "must be user or assistant")
    if (isRegeneration) return reader.refuse(`${field}.role`, "must be user where a reply is to be generated again")
    const edits = given["edits"] === undefined ? {} : reader.object(given["edits"], "edits")
    const actions = answersOf(reader, last, edits, field)
    if (actions.length > 0) return { sessionId, messageId: id, actions, clientTools: [] }
    const steps = stepsOf(reader.list(last["parts"], `${field}.parts`))
    return { sessionId, messageId: id, actions: [{ _tag: "Retry", steps, isRegeneration }], clientTools: [] }
  })
