/**
 * Turns a streamed body into events. One network read becomes one event array, in wire order. An answer ends with its
 * body, soon after its own final event, or after too long a silence. Events read before a failure come out before the
 * failure.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Channel from "effect/Channel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Pull from "effect/Pull"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import * as Errors from "./errors.ts"
import * as Sse from "./sse.ts"
import * as Wire from "./wire.ts"

/** Events emitted by a reader. */
export type Out = Array<Event.AdapterEvent>

/** Reads the events of one answer. The caller checks its flags after every read. */
export interface Reader {
  readonly read: (event: Sse.SseEvent, out: Out) => void
  /** Ends the body and emits the remaining events; `stray` is text outside events. */
  readonly end: (stray: string, out: Out) => void
  /** `true` once the answer's own final event arrived: a later break loses nothing needed. */
  readonly isComplete: boolean
  /** `true` if only the body's end is still to come. */
  readonly isDone: boolean
  /** Failure that broke the answer. The reader still reads what a broken answer may report, such as its cost. */
  readonly failure: Adapter.AdapterError | undefined
  /** Finds JSON objects outside events, to be read as events too. */
  readonly documents?: Sse.Documents
}

export interface Limits {
  readonly firstChunkTimeout: Duration.Duration
  readonly idleTimeout: Duration.Duration
  readonly maxEventLength: number
  readonly maxAnswerLength: number
}

type Events = ReadonlyArray<Event.AdapterEvent>

type Chunk = Arr.NonEmptyReadonlyArray<Event.AdapterEvent>

type Bytes = Pull.Pull<Arr.NonEmptyReadonlyArray<Uint8Array>, unknown>

/** Time to wait for the body's end after the last event: the cost may follow, and the connection can be reused. */
const afterLast = Duration.seconds(1)
/** Time to wait after the final event while the server keeps the connection open, at most `idleTimeout`. */
const afterFinish = Duration.seconds(10)

class Answer {
  private readonly origin: Errors.Origin
  private readonly reader: Reader
  private readonly limits: Limits
  private readonly parser: Sse.Parser
  private hasRead = false
  private length = 0
  private hasEnded = false
  private failure: Adapter.AdapterError | undefined

  constructor(origin: Errors.Origin, reader: Reader, limits: Limits) {
    this.origin = origin
    this.reader = reader
    this.limits = limits
    this.parser = new Sse.Parser(limits.maxEventLength, reader.documents)
  }

  /** Emits the events, read by read. A late read ends the answer. */
  pull(bytes: Bytes): Pull.Pull<Chunk, Adapter.AdapterError> {
    const read = this.read(bytes)
    const pull: Pull.Pull<Chunk, Adapter.AdapterError> = Effect.suspend(() => {
      if (this.hasEnded) return this.close
      const { patience } = this
      return Effect.flatMap(
        Effect.timeoutOrElse(read, { duration: patience, orElse: () => Effect.sync(() => this.late(patience)) }),
        (events) => Arr.isReadonlyArrayNonEmpty(events) ? Effect.succeed(events) : pull
      )
    })
    return pull
  }

  private get close(): Pull.Pull<never, Adapter.AdapterError> {
    const failure = this.reader.failure ?? this.failure
    return failure === undefined ? Cause.done() : Effect.fail(failure)
  }

  /** Performs one network read and interprets its result. */
  private read(bytes: Bytes): Effect.Effect<Events> {
    return Pull.matchEffect(bytes, {
      onSuccess: (chunks) => Effect.sync(() => this.take(chunks)),
      onDone: () => Effect.sync(() => this.end(undefined)),
      onFailure: (cause) =>
        Cause.hasInterrupts(cause)
          ? Effect.failCause(cause as Cause.Cause<never>)
          : Effect.sync(() => this.end(["network_error", "the connection was lost before the reply was complete"]))
    })
  }

  /** Time limit for the next read. */
  private get patience(): Duration.Duration {
    const { firstChunkTimeout, idleTimeout } = this.limits
    if (!this.hasRead) return firstChunkTimeout
    if (this.reader.isDone || this.reader.failure !== undefined) return afterLast
    return this.reader.isComplete ? Duration.min(afterFinish, idleTimeout) : idleTimeout
  }

  private late(duration: Duration.Duration): Events {
    return this.end(["timeout", `the server was silent for ${Duration.format(duration)}`])
  }

  private take(chunks: ReadonlyArray<Uint8Array>): Events {
    const out: Out = []
    this.hasRead = true
    for (const chunk of chunks) {
      for (const event of this.parser.feed(chunk)) this.reader.read(event, out)
      this.length += chunk.length
      const problem = this.problem
      if (problem === undefined) continue
      this.failure = Errors.make(this.origin, "malformed_response", problem)
      this.hasEnded = true
      break
    }
    return out
  }

  /** Reason to stop reading, if any. */
  private get problem(): string | undefined {
    const { maxAnswerLength, maxEventLength } = this.limits
    if (this.parser.isTooLong) return `the answer contains an event of more than ${maxEventLength} characters`
    if (this.parser.isInvalid) return "the answer contains bytes that are not valid UTF-8"
    return this.length > maxAnswerLength ? `the answer is longer than ${maxAnswerLength} bytes` : undefined
  }

  /** Ends the body: by itself, or for the given reason. */
  private end(problem: readonly [reason: Errors.Reason, detail: string] | undefined): Events {
    const out: Out = []
    this.hasEnded = true
    const rest = this.parser.end()
    const whole = rest.filter((event) => !isTorn(event))
    for (const event of whole) this.reader.read(event, out)
    const cut = problem ?? (whole.length < rest.length ? closed : undefined)
    const isCut = cut !== undefined && !this.reader.isComplete && this.reader.failure === undefined
    if (isCut) this.failure = Errors.make(this.origin, ...cut)
    else this.reader.end(this.parser.stray, out)
    return out
  }
}

/**
 * Opens a stream for a single reader. The stream ends with the scope, and an early failure fails the first pull.
 * `Stream.toPull` would guard every pull against a concurrent pull, and the guard often takes longer than the pull.
 */
export const ofOneReader = <A, E>(
  stream: Stream.Stream<A, E>,
  scope: Scope.Scope
): Effect.Effect<Pull.Pull<readonly [A, ...Array<A>], E>> =>
  Channel.toPullScoped(Stream.toChannel(stream), scope).pipe(
    Effect.catchCause((cause) => Effect.succeed(Effect.failCause(cause)))
  )

const closed = ["network_error", "the connection was closed before the reply was complete"] as const

/**
 * Detects an event torn by the end of the body. It counts as never sent, since the server did not write invalid JSON.
 */
const isTorn = ({ data }: Sse.SseEvent): boolean =>
  data.trimStart().startsWith("{") && Result.isFailure(Json.parse(data))

export const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

/** Returns `true` for events visible to a user: all but the message start and usage. */
export const isShown = ({ _tag }: Event.AdapterEvent): boolean => _tag !== "MessageStarted" && _tag !== "RawChunk"

/**
 * Begins a body: waits for the first event visible to a user, then returns all events. If the body breaks before, it
 * fails and leaves the earlier events in `unshown`. Closing the scope closes the body.
 */
export const begin = (
  body: Stream.Stream<Uint8Array, unknown>,
  origin: Errors.Origin,
  reader: Reader,
  limits: Limits,
  unshown: Array<Event.AdapterEvent> = []
): Effect.Effect<Stream.Stream<Event.AdapterEvent, Adapter.AdapterError>, Adapter.AdapterError, Scope.Scope> =>
  Effect.gen(function*() {
    const scope = yield* Effect.scope
    const answer = new Answer(origin, reader, limits)
    const pull = answer.pull(yield* ofOneReader(body, scope))
    const heads: Array<Chunk> = [[started]]
    while (!heads.some((events) => events.some(isShown))) {
      const read = Effect.tapError(pull, () => Effect.sync(() => unshown.push(...heads.flat())))
      const events = yield* Pull.catchDone(read, () => Effect.succeed(undefined))
      if (events === undefined) break
      heads.push(events)
    }
    return Stream.fromPull(Effect.sync(() =>
      Effect.suspend(() => {
        const head = heads.shift()
        return head === undefined ? pull : Effect.succeed(head)
      })
    ))
  })

// ---------------------------------------------------------------------------------------------------------------------
// Reading shared by all protocols.

/** Parses an event's object. An event named `error` is an error, whatever its data. */
const opened = ({ data, name }: Sse.SseEvent): Json.JsonObject | undefined => {
  const parsed = Result.getOrUndefined(Json.parseWire(data))
  if (Json.isObject(parsed)) return parsed
  return name === "error" ? { error: data } : undefined
}

/** Parses the object of a body without events. Some servers wrap it in a list. */
export const documentIn = (stray: string): Json.JsonObject | undefined => {
  const parsed = stray === "" ? undefined : Result.getOrUndefined(Json.parseWire(stray))
  const body: unknown = Array.isArray(parsed) ? parsed[0] : parsed
  return Json.isObject(body) ? body : undefined
}

/** Reads objects, one per event. A protocol defines their meaning and the reply's end. */
export abstract class ReplyReader implements Reader {
  isDone = false
  failure: Adapter.AdapterError | undefined
  protected readonly origin: Errors.Origin
  protected usage: Response.Usage | null = null
  protected id: string | undefined
  protected model: string | undefined
  protected hasChunks = false
  private hasFinished = false

  constructor(origin: Errors.Origin) {
    this.origin = origin
  }

  abstract get isComplete(): boolean

  /** Reads an object from the event called `name`. */
  protected abstract chunk(chunk: Json.JsonObject, name: string | undefined, out: Out): void

  /** Reads a body without events: a whole reply, or an error that broke off the stream. */
  protected abstract document(stray: string, out: Out): void

  /** Emits the end of a complete reply. */
  protected abstract finish(out: Out): void

  read(event: Sse.SseEvent, out: Out): void {
    const data = event.data.trim()
    if (data === "" || data === "[DONE]") return
    const chunk = opened(event)
    if (this.isDone) this.behind(chunk, event.name)
    else if (chunk === undefined) this.notOpened(event)
    else this.chunk(chunk, event.name, out)
  }

  /** Reads what follows the reply's end. It adds nothing to the reply, but an error counts while the body is read. */
  protected behind(chunk: Json.JsonObject = {}, name?: string): void {
    const isError = name === "error" || chunk["type"] === "error"
    this.failure ??= Option.getOrUndefined(Errors.fromChunk(this.origin, chunk, isError))
  }

  /** Ends the reply. A reply without a message still reports its cost. */
  end(stray: string, out: Out): void {
    if (this.hasFinished) return this.behind(documentIn(stray))
    this.document(stray, out)
    if (!this.hasFinished && this.failure === undefined && this.isComplete) this.finish(out)
    if (this.hasFinished) return
    out.push(...cost(this.usage))
    if (this.hasBegun) this.fail(...closed)
    else this.fail("malformed_response", `the answer holds no reply: ${Errors.describe(stray)}`)
  }

  /** `true` if any part of the reply arrived. */
  protected get hasBegun(): boolean {
    return this.hasChunks
  }

  /** Keeps the first failure. */
  protected fail(reason: Errors.Reason, detail: string): void {
    this.failure ??= Errors.make(this.origin, reason, detail)
  }

  protected notOpened({ data }: Sse.SseEvent): void {
    this.fail(
      "malformed_response",
      `the stream contains an event that is not a JSON object (${data.length} characters)`
    )
  }

  protected complete(said: Omit<Whole, "usage" | "id" | "model">, out: Out): void {
    const { id, model, usage } = this
    const whole = { ...said, usage, id, model }
    const problem = problemOf(whole)
    if (problem !== undefined) return this.fail(...problem)
    out.push(completed(whole))
    this.hasFinished = true
  }
}

export const say = (delta: string, out: Out): void => {
  if (delta !== "") out.push({ _tag: "TextDelta", id: null, delta })
}

export const endText = (text: string, out: Out): void => {
  if (text !== "") out.push({ _tag: "TextCompleted", id: null, text })
}

export const think = (delta: string, out: Out): void => {
  if (delta !== "") out.push({ _tag: "ReasoningDelta", id: null, delta })
}

/** Builds message content: the text with the model's images and files. */
export const contentOf = (text: string, media: ReadonlyArray<Message.Part>): Message.Content => {
  if (media.length === 0) return text
  return text === "" ? media : [{ type: "text", text }, ...media]
}

/** Reports the cost of a reply without a message. */
export const cost = (usage: Response.Usage | null): ReadonlyArray<Event.AdapterEvent> =>
  usage === null ? [] : [{ _tag: "RawChunk", chunk: { usage } }]

/** A whole reply. `word` is the provider's own finish reason, `notes` its other fields. */
export interface Whole {
  readonly content: Message.Content
  readonly toolCalls: ReadonlyArray<Message.ToolCall>
  readonly reasoning: ReadonlyArray<Message.Part>
  readonly finishReason: Response.FinishReason | null
  readonly word: string | undefined
  /** `true` if the provider paused the reply. */
  readonly isPaused?: boolean
  readonly usage: Response.Usage | null
  readonly id: string | undefined
  readonly model: string | undefined
  readonly notes: Json.JsonObject
}

/** Returns the reason an ended reply is invalid, if any: a failing server may send nothing at all. */
export const problemOf = (
  { content, finishReason, notes, reasoning, toolCalls, usage, word }: Whole
): readonly [reason: Errors.Reason, detail: string] | undefined => {
  const isSaid = [content, toolCalls, reasoning, Object.keys(notes)].some(({ length }) => length > 0)
  // A server reporting zero output tokens says that the model had nothing to say.
  return isSaid || usage?.outputTokens === 0 || word !== undefined ||
      (finishReason !== null && finishReason !== "other")
    ? undefined
    : ["provider_unavailable", "the reply is empty: it has no text, no call and no finish reason"]
}

export const completed = (whole: Whole): Event.AdapterEvent => {
  const { content, finishReason, id, isPaused, model, notes, reasoning, toolCalls, usage, word } = whole
  return {
    _tag: "MessageCompleted",
    message: {
      ...Message.assistant(content, toolCalls),
      finishReason,
      ...(reasoning.length === 0 ? {} : { reasoning })
    },
    finishReason,
    ...Wire.defined({ rawFinishReason: word }),
    ...(isPaused === true ? { paused: true } : {}),
    ...Wire.defined({ usage: usage ?? undefined, responseId: id, model }),
    ...(Object.keys(notes).length === 0 ? {} : { metadata: notes })
  }
}
