/**
 * The body of a streamed answer as events: one network read becomes one array of events, in the order of the wire. An
 * answer ends when its body ends, soon after its own final event, or when the server has been silent for too long; what
 * was read before a failure is handed out before it.
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

/** The events that a reader emits. */
export type Out = Array<Event.AdapterEvent>

/** Reads the events of one answer. Its flags are checked after every read. */
export interface Reader {
  readonly read: (event: Sse.SseEvent, out: Out) => void
  /** The body has ended; `stray` is what was no event. Emits the remaining events. */
  readonly end: (stray: string, out: Out) => void
  /** The answer's own final event was read: whatever is cut off now is not needed. */
  readonly isComplete: boolean
  /** Nothing more is to come but the end of the body. */
  readonly isDone: boolean
  /** The failure that broke the answer; the reader continues with what belongs to a broken answer, such as its cost. */
  readonly failure: Adapter.AdapterError | undefined
  /** Finds the JSON objects that stand outside of events, so that they are read as events, too. */
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

/** The time that the body's end is waited for after the last event: its cost may follow, and the connection be kept. */
const afterLast = Duration.seconds(1)
/**
 * The time that a server which keeps the connection open is waited for after the final event: less long than before.
 */
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

  /** The events, read by read. What is late is given up. */
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

  /** One read of the network, and what it means. */
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

  /** The time that the next read may take. */
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

  /** The reason why no more of the answer is read, if so. */
  private get problem(): string | undefined {
    const { maxAnswerLength, maxEventLength } = this.limits
    if (this.parser.isTooLong) return `the answer holds an event of more than ${maxEventLength} characters`
    if (this.parser.isInvalid) return "the answer holds bytes that are no UTF-8"
    return this.length > maxAnswerLength ? `the answer is longer than ${maxAnswerLength} bytes` : undefined
  }

  /** The body has ended, for the given reason if it was not by itself. */
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
 * A stream to be pulled by one reader. It ends with the scope; what fails before there is a pull fails the first one.
 * `Stream.toPull` guards every pull against a second one at the same time, which takes longer than many a pull does.
 */
export const ofOneReader = <A, E>(
  stream: Stream.Stream<A, E>,
  scope: Scope.Scope
): Effect.Effect<Pull.Pull<readonly [A, ...Array<A>], E>> =>
  Channel.toPullScoped(Stream.toChannel(stream), scope).pipe(
    Effect.catchCause((cause) => Effect.succeed(Effect.failCause(cause)))
  )

const closed = ["network_error", "the connection was closed before the reply was complete"] as const

/** An event that the end of the body has torn is as good as never sent: it is not the server that wrote no JSON. */
const isTorn = ({ data }: Sse.SseEvent): boolean =>
  data.trimStart().startsWith("{") && Result.isFailure(Json.parse(data))

export const started: Event.AdapterEvent = { _tag: "MessageStarted", message: Message.assistant("") }

/** Returns `true` if a user can see an event: not the beginning of a message, and not what a reply costs. */
export const isShown = ({ _tag }: Event.AdapterEvent): boolean => _tag !== "MessageStarted" && _tag !== "RawChunk"

/**
 * The events of a body, once there is one that a user can see; it fails if the body breaks before that, and then leaves
 * the events before the failure in `unshown`. Closing the scope closes the body.
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
// Reading, as all protocols have it in common.

/** The object that an event holds. What an event named `error` holds is an error, whatever it is. */
const opened = ({ data, name }: Sse.SseEvent): Json.JsonObject | undefined => {
  const parsed = Result.getOrUndefined(Json.parseWire(data))
  if (Json.isObject(parsed)) return parsed
  return name === "error" ? { error: data } : undefined
}

/** The object of a body that is no stream of events, which some servers put into a list. */
export const documentIn = (stray: string): Json.JsonObject | undefined => {
  const parsed = stray === "" ? undefined : Result.getOrUndefined(Json.parseWire(stray))
  const body: unknown = Array.isArray(parsed) ? parsed[0] : parsed
  return Json.isObject(body) ? body : undefined
}

/** A reader of objects, one in each event. A protocol defines what an object means, and the end of the reply. */
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

  /** Reads an object. `name` is that of its event. */
  protected abstract chunk(chunk: Json.JsonObject, name: string | undefined, out: Out): void

  /** Reads a body that is no stream of events: a whole reply, or an error that broke the stream off. */
  protected abstract document(stray: string, out: Out): void

  /** Emits the end of a reply that is complete. */
  protected abstract finish(out: Out): void

  read(event: Sse.SseEvent, out: Out): void {
    const data = event.data.trim()
    if (data === "" || data === "[DONE]") return
    const chunk = opened(event)
    if (this.isDone) this.behind(chunk, event.name)
    else if (chunk === undefined) this.notOpened(event)
    else this.chunk(chunk, event.name, out)
  }

  /** Reads what follows the end of a reply: no more of it, but an error counts as long as the body is read. */
  protected behind(chunk: Json.JsonObject = {}, name?: string): void {
    const isError = name === "error" || chunk["type"] === "error"
    this.failure ??= Option.getOrUndefined(Errors.fromChunk(this.origin, chunk, isError))
  }

  /** The cost of a reply that ends without a message is reported, too. */
  end(stray: string, out: Out): void {
    if (this.hasFinished) return this.behind(documentIn(stray))
    this.document(stray, out)
    if (!this.hasFinished && this.failure === undefined && this.isComplete) this.finish(out)
    if (this.hasFinished) return
    out.push(...cost(this.usage))
    if (this.hasBegun) this.fail(...closed)
    else this.fail("malformed_response", `the answer holds no reply: ${Errors.describe(stray)}`)
  }

  /** `true` if any of the reply is there. */
  protected get hasBegun(): boolean {
    return this.hasChunks
  }

  /** Keeps a failure, of which the first one counts. */
  protected fail(reason: Errors.Reason, detail: string): void {
    this.failure ??= Errors.make(this.origin, reason, detail)
  }

  protected notOpened({ data }: Sse.SseEvent): void {
    this.fail("malformed_response", `the stream holds an event that is no JSON object (${data.length} characters)`)
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

/** The content of a message: its text, and the images and files that the model made. */
export const contentOf = (text: string, media: ReadonlyArray<Message.Part>): Message.Content => {
  if (media.length === 0) return text
  return text === "" ? media : [{ type: "text", text }, ...media]
}

/** The cost of a reply that ends without a message. */
export const cost = (usage: Response.Usage | null): ReadonlyArray<Event.AdapterEvent> =>
  usage === null ? [] : [{ _tag: "RawChunk", chunk: { usage } }]

/** A reply that is whole. `word` is the provider's own finish reason, `notes` its further fields. */
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

/** Returns the reason why a reply that has ended is none, if so: a server that gave up says nothing at all. */
export const problemOf = (
  { content, finishReason, notes, reasoning, toolCalls, usage, word }: Whole
): readonly [reason: Errors.Reason, detail: string] | undefined => {
  const isSaid = [content, toolCalls, reasoning, Object.keys(notes)].some(({ length }) => length > 0)
  // A server that has counted no output says that the model had nothing to say.
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
