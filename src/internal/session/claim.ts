/**
 * Who runs a session, and how other processes reach the one that does.
 *
 * **Details**
 *
 * A claim says who may run the session, and for how long. It ends by the store's own clock unless it is renewed, so that a
 * process that is gone loses its sessions by itself. It is advice, and keeps two processes from starting the same handler;
 * what keeps the journal whole is that an append behind a version that another writer has moved on from is refused.
 *
 * Commands are records that any process appends: a stop, a message, an answer. The owner takes them in when it looks for
 * them, or when its own append finds them. They survive it, and are the next owner's then. Public as `Session.claim`,
 * `Session.stop` and `Session.submit`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Message from "../../Message.ts"
import * as Json from "../json.ts"
import type * as Records from "./records.ts"
import * as Reducer from "./reducer.ts"
import * as SessionState from "./state.ts"
import * as Stores from "./store.ts"

/**
 * The session belongs to another owner, or the claim of this one has ended: nothing of it may go on here.
 *
 * @category errors
 * @since 0.1.0
 */
export class SessionClaimed extends Schema.TaggedError<SessionClaimed>("heddle/Session/SessionClaimed")(
  "SessionClaimed",
  {
    /** `held`: another owner has claimed the session. `lost`: the claim could not be renewed in time. */
    reason: Schema.Literals(["held", "lost"]),
    /** The id of the session. */
    id: Schema.String,
    /** The owner that has the claim, or had it. */
    owner: Schema.String,
    /** When its claim ends, in milliseconds since 1970: by the clock of the store, or by that of the process that lost it. */
    until: Schema.Finite
  }
) {
  override get message(): string {
    const [session, owner] = [JSON.stringify(this.id), JSON.stringify(this.owner)]
    const until = DateTime.formatIso(DateTime.makeUnsafe(this.until))
    return this.reason === "held"
      ? `session ${session} is claimed by ${owner} until ${until}; try again then`
      : `the claim of ${owner} on session ${session} could not be renewed and ended at ${until}; claim it again`
  }
}

/**
 * How a session is claimed.
 *
 * @category options
 * @since 0.1.0
 */
export interface Options {
  /**
   * How long the claim lasts where it is not renewed: at least three times the longest pause of the process. A session whose
   * process is gone can be claimed anew after this time. `"30 seconds"` by default; it is renewed every third of it.
   */
  readonly term?: Duration.Input
  /** How often a running operation looks for commands of other processes. `"200 millis"` by default. */
  readonly poll?: Duration.Input
  /**
   * Who claims it. An owner that claims its own session again renews the claim, so that two parts of one program need two
   * names. A random one for each claim by default.
   */
  readonly owner?: string
}

/** A length of time as milliseconds. Throws for one that is none. */
export const millisOf = (name: string, input: Duration.Input): number => {
  const millis = Duration.toMillis(Duration.fromInputUnsafe(input))
  if (Number.isFinite(millis) && millis > 0) return millis
  throw new TypeError(`${name} must be longer than 0 and finite; got: ${Json.render(input)}`)
}

/** The claim that these options ask for. Dies for wrong ones. */
export const make = (
  id: string,
  { owner = globalThis.crypto.randomUUID(), poll = "200 millis", term = "30 seconds" }: Options,
  store: Stores.Service
): HeldClaim =>
  new HeldClaim(id, owner, millisOf("Session.claim: term", term), millisOf("Session.claim: poll", poll), store)

/**
 * A claim that is held, until its scope closes or it is lost.
 *
 * @category models
 * @since 0.1.0
 */
export class HeldClaim {
  /** The id of the session. */
  readonly id: string
  /** Who has claimed it. */
  readonly owner: string
  /** How often a running operation looks for commands, in milliseconds. */
  readonly pollMillis: number
  /** Fails when the claim is lost. */
  readonly lost = Deferred.makeUnsafe<never, SessionClaimed>()
  /** The store that has it. */
  private readonly store: Stores.Service
  /** How long it lasts where it is not renewed. */
  private readonly termMillis: number
  /** When it ends by the clock of this process, which began to count before the store did. */
  private until = 0
  /** Open where a running operation is to look for commands. */
  private readonly asked = Latch.makeUnsafe()
  /** Whether the claim is left to end by itself. */
  private isResting = false

  constructor(id: string, owner: string, termMillis: number, pollMillis: number, store: Stores.Service) {
    this.id = id
    this.owner = owner
    this.termMillis = termMillis
    this.pollMillis = pollMillis
    this.store = store
  }

  /** Has the operation that runs under it look for commands now. */
  readonly look: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.asked.open))

  /** Waits until a running operation is to look for commands: as often as the claim says, and when it is asked to. */
  readonly looks: Effect.Effect<void> = Effect.suspend(() =>
    Effect.andThen(Effect.raceFirst(Effect.sleep(this.pollMillis), this.asked.await), this.asked.close)
  )

  /** It was taken by other means, when the clock of this process stood at `began` at the earliest. */
  taken(began: number): this {
    this.until = began + this.termMillis
    return this
  }

  /** Claims the session for another term. */
  readonly take: Effect.Effect<void, SessionClaimed | Stores.StoreError> = Effect.suspend(() =>
    Effect.flatMap(
      Clock.currentTimeMillis,
      (began) =>
        Effect.flatMap(this.store.claim(this.id, this.owner, this.termMillis), ({ owner, until }) => {
          if (owner !== this.owner) return new SessionClaimed({ reason: "held", id: this.id, owner, until })
          this.until = began + this.termMillis
          return Effect.void
        })
    )
  )

  /** Renews it every third of its term, and more often while the store does not answer. Ends when it is lost to another. */
  readonly renew: Effect.Effect<void> = Effect.suspend(() => {
    const pause = this.termMillis / 3
    const once = Effect.matchEffect(this.take, {
      onSuccess: () => Effect.succeed(pause),
      onFailure: (error) =>
        error._tag === "SessionClaimed"
          ? Effect.as(Deferred.fail(this.lost, error), Infinity)
          : Effect.succeed(pause / 4)
    })
    const from = (wait: number): Effect.Effect<void> =>
      Number.isFinite(wait) ? Effect.flatMap(Effect.delay(once, wait), from) : Effect.void
    return from(pause)
  })

  /** Waits until its term is over. A store that never answers renews nothing, and neither does a process that stood still. */
  readonly expire: Effect.Effect<void> = Effect.suspend(() =>
    Effect.flatMap(Clock.currentTimeMillis, (now) =>
      now < this.until
        ? Effect.andThen(Effect.sleep(this.until - now), this.expire)
        : Deferred.fail(
          this.lost,
          new SessionClaimed({ reason: "lost", id: this.id, owner: this.owner, until: this.until })
        ))
  )

  /** Leaves the session alone for so many milliseconds: the claim ends then, and is not released before. */
  rest(millis: number): Effect.Effect<void, Stores.StoreError> {
    this.isResting = true
    return Effect.asVoid(this.store.claim(this.id, this.owner, millis))
  }

  /** Ends it, so that another owner need not wait for the end of its term. */
  readonly release: Effect.Effect<void> = Effect.suspend(() =>
    this.isResting ? Effect.void : this.store.release(this.id, this.owner).pipe(
      Effect.timeoutOption(this.termMillis),
      Effect.ignore
    )
  )
}

// Commands.

type RecordOf<Tag extends Records.Record["_tag"]> = Extract<Records.Record, { readonly _tag: Tag }>

/** Whether a session goes on without a further answer. */
export const isReady = ({ answered, approved, suspensions }: SessionState.Session): boolean =>
  suspensions.length === 0 && approved.length + answered.length > 0

/** The commands that an operation has taken in. */
export class Commands {
  /** What was submitted and no run has taken up. */
  submitted: ReadonlyArray<RecordOf<"MessageSubmitted">>
  /** The run that is under way. */
  private requestId: string | undefined
  /** Whether it is a part of another one, which goes on with it: there is nothing to do for it alone. */
  private isPart = false
  /** The submission that it has taken up. */
  private taken: RecordOf<"MessageSubmitted"> | undefined
  /** The answers that came while it ran. */
  private answers: ReadonlyArray<RecordOf<"Answered">> = []
  /** The runs that are to stop, and who learns of it. */
  private readonly stops = new Set<string>()
  private readonly listeners = new Map<string, () => void>()

  constructor({ interrupted, stop, submitted = [] }: Records.JournalState) {
    this.submitted = submitted
    this.taken = interrupted?.taken
    if (stop !== undefined) this.stops.add(stop.requestId)
  }

  /** Whether the record is a command that can be taken in now: an answer only while a run is under way. */
  mayTake({ _tag }: Records.Record): boolean {
    return _tag === "StopRequested" || _tag === "MessageSubmitted" ||
      _tag === "Answered" && this.requestId !== undefined
  }

  /** Calls `listener` when the run is to stop, at once if it is. The returned function takes it back. */
  onStop(requestId: string, listener: () => void): () => void {
    if (this.stops.has(requestId)) listener()
    this.listeners.set(requestId, listener)
    return () => void this.listeners.delete(requestId)
  }

  /** Takes in a command of another process. */
  take(record: Records.Record): void {
    if (record._tag === "StopRequested") this.stops.add(record.requestId)
    else if (record._tag === "MessageSubmitted") this.submitted = [...this.submitted, record]
    else if (record._tag === "Answered") this.answers = [...this.answers, record]
  }

  /** Lets the runs that are to stop know it. */
  notify(): void {
    for (const requestId of this.stops) this.listeners.get(requestId)?.()
  }

  /**
   * A record of the operation as it is appended. One that may be the last for a while says whether there is more to do: a
   * message was submitted, calls that were settled wait for a run, or a run that was cut has no end yet.
   */
  marked(record: Records.Record, after: SessionState.Session, isCut: boolean): Records.Record {
    const isSubmitted = this.submitted.length > 0
    switch (record._tag) {
      case "Opened":
        return isSubmitted ? { ...record, unfinished: true } : record
      case "Answered":
        return isSubmitted || isCut ? { ...record, unfinished: true } : record
      case "MessagesAppended":
        return isCut ? { ...record, unfinished: isSubmitted || isReady(after) } : record
      case "RunFailed":
      case "RunEnded": {
        if (this.isPart) return record
        const isTaken = record._tag === "RunFailed" && this.taken !== undefined
        return isSubmitted || isTaken || isReady(this.settled(after)) ? { ...record, unfinished: true } : record
      }
      default:
        return record
    }
  }

  /** The operation has appended records. Returns the session after them: behind a run with the answers that came meanwhile. */
  appended(records: Records.Records, after: SessionState.Session): SessionState.Session {
    const session = records.some(({ _tag }) => _tag === "RunEnded") ? this.settled(after) : after
    for (const record of records) {
      if (record._tag === "RunStarted") this.started(record)
      if (record._tag === "RunFailed" && this.taken !== undefined) this.submitted = [this.taken, ...this.submitted]
      if (record._tag === "RunFailed" || record._tag === "RunEnded") this.ended()
    }
    return session
  }

  private settled(session: SessionState.Session): SessionState.Session {
    return this.answers.reduce((session, { answer, id }) => SessionState.settle(session, id, answer), session)
  }

  private started({ parent, requestId, resumes, submitted }: RecordOf<"RunStarted">): void {
    this.requestId = requestId
    this.isPart = parent !== undefined
    if (resumes !== undefined) return
    this.taken = this.submitted.find(({ id }) => id === submitted)
    this.submitted = this.submitted.filter((other) => other !== this.taken)
  }

  private ended(): void {
    this.requestId = undefined
    this.taken = undefined
    this.answers = []
  }
}

/**
 * What became of the calls of a run that was stopped, by their ids.
 *
 * @category models
 * @since 0.1.0
 */
export interface StopReport {
  /** Calls that the stop ended, before or while their handlers ran. */
  readonly stopped: ReadonlyArray<string>
  /** Calls that had ended by themselves. */
  readonly ended: ReadonlyArray<string>
  /** Calls whose handlers refused to stop and were abandoned: they may still have an effect. */
  readonly refused: ReadonlyArray<string>
  /** Calls that had started when their process was gone: whether they had their effect is not known. */
  readonly unknown: ReadonlyArray<string>
}

/**
 * The receipt of a stop.
 *
 * @category models
 * @since 0.1.0
 */
export interface StopReceipt {
  /** The version of the journal with the request: from here on it is honoured, whatever becomes of the process. */
  readonly accepted: number
  /** Waits until the run has ended, and says what became of its calls. */
  readonly ended: Effect.Effect<StopReport, Stores.StoreError, Stores.Store>
}

/** What became of a call, or that it has started and not ended. */
type Came = keyof StopReport | "open"

/** A journal as far as it was read, and what became of the calls of its last run. */
class Reading {
  version = 0
  private readonly journal: Reducer.Reading
  private requestId: string | undefined
  /** Whether the journal was removed after it was read: nothing of it runs on. */
  isDeleted = false
  /** The run that is asked to stop. */
  private watched: string | undefined
  /** What became of its calls, once another run has begun, which may be where it has ended. */
  private ended: StopReport | undefined
  /** By the step and the id of the call: a later step may use an id again. */
  private readonly calls = new Map<string, { readonly id: string; came: Came }>()
  private readonly id: string
  private readonly store: Stores.Service

  constructor(id: string, store: Stores.Service) {
    this.id = id
    this.store = store
    this.journal = new Reducer.Reading({ session: SessionState.make({ id }) })
  }

  get state(): Records.JournalState {
    return this.journal.state
  }

  /** Reads what it has not read yet. */
  readonly on: Effect.Effect<void, Stores.StoreError> = Effect.suspend(() =>
    Effect.flatMap(this.store.version(this.id), (version) => {
      this.isDeleted = version < this.version
      return version <= this.version
        ? Effect.void
        : Stream.runForEach(this.store.read(this.id, this.version), (entry) => Effect.sync(() => this.take(entry)))
    })
  )

  /** Reports what becomes of this run, whatever runs follow it. */
  watch(requestId: string): void {
    this.watched = requestId
    this.ended = undefined
  }

  private take({ record, version }: Records.Entry): void {
    this.version = version
    this.journal.take(record)
    if (record._tag === "RunStarted" && record.requestId !== this.requestId) {
      if (this.watched !== undefined && this.requestId === this.watched) this.ended ??= this.report
      this.requestId = record.requestId
      this.calls.clear()
    }
    if (record._tag === "CallStarted") {
      this.calls.set(`${record.stepIndex} ${record.toolCall.id}`, { id: record.toolCall.id, came: "open" })
    }
    if (record._tag === "CallEnded") {
      const id = record.toolCallId
      this.calls.set(`${record.stepIndex} ${id}`, { id, came: outcomes.get(toolErrorOf(record.outcome)) ?? "ended" })
    }
    // Where a whole step has an answer of a call whose handler had not ended, the run has answered it itself.
    if (record._tag === "StepCompleted") this.change("stopped", ({ came }) => came === "open")
    if (record._tag === "RunEnded") {
      const abandoned = record.abandoned ?? []
      const refused = new Set(abandoned.flatMap(({ id, kind, path = [] }) => kind === "handler" ? [path[0] ?? id] : []))
      this.change("refused", ({ id }) => refused.has(id))
    }
  }

  private change(came: keyof StopReport, of: (call: { readonly id: string; readonly came: string }) => boolean): void {
    for (const call of this.calls.values()) if (of(call)) call.came = came
  }

  get report(): StopReport {
    if (this.ended !== undefined) return this.ended
    const calls = Array.from(this.calls.values())
    const of = (...came: ReadonlyArray<Came>) => calls.filter((call) => came.includes(call.came)).map(({ id }) => id)
    return { stopped: of("stopped"), ended: of("ended"), refused: of("refused"), unknown: of("open", "unknown") }
  }
}

/** The reason of the `ToolError` that an outcome is, if it is one. */
const toolErrorOf = (outcome: unknown): string => {
  const error = Json.isObject(outcome) ? outcome["error"] : undefined
  return Json.isObject(error) && error["_tag"] === "ToolError" ? String(error["reason"]) : ""
}

/** What a call came to whose handler did not end by itself. */
const outcomes: ReadonlyMap<string, Came> = new Map([["cancelled", "stopped"], ["unknown_effect", "unknown"]])

const nothing: StopReport = { stopped: [], ended: [], refused: [], unknown: [] }

/** How often the end of a run is looked for. */
const endPoll: Duration.Input = "25 millis"

/** Asks the run of a session to stop, wherever it runs, or its next owner. */
export const stop = (id: string): Effect.Effect<StopReceipt, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const reading = new Reading(id, store)
    while (true) {
      yield* reading.on
      const { interrupted, stop } = reading.state
      if (interrupted === undefined || reading.isDeleted) {
        return { accepted: reading.version, ended: Effect.succeed(nothing) }
      }
      const { requestId } = interrupted
      reading.watch(requestId)
      const ended = Effect.suspend(() => untilEnded(reading, requestId))
      if (stop !== undefined) return { accepted: reading.version, ended }
      const request: Records.Record = { _tag: "StopRequested", id: globalThis.crypto.randomUUID(), requestId }
      const accepted = yield* appended(store, id, reading.version, [request])
      if (accepted !== undefined) return { accepted, ended }
    }
  })

const untilEnded = (reading: Reading, requestId: string): Effect.Effect<StopReport, Stores.StoreError> =>
  Effect.andThen(
    reading.on,
    Effect.suspend(() =>
      reading.state.interrupted?.requestId === requestId && !reading.isDeleted
        ? Effect.delay(Effect.suspend(() => untilEnded(reading, requestId)), endPoll)
        : Effect.succeed(reading.report)
    )
  )

/** The version after an append, or nothing if another writer was faster. */
const appended = (
  store: Stores.Service,
  id: string,
  expected: number,
  records: Records.Records
): Effect.Effect<number | undefined, Stores.StoreError> =>
  Effect.catchTag(store.append(id, expected, records), "SessionConflict", () => Effect.succeed(undefined))

/**
 * The receipt of a message.
 *
 * @category models
 * @since 0.1.0
 */
export interface SubmitReceipt {
  /** The id of the submission, as the run that takes it up records it. */
  readonly id: string
  /** The version of the journal with the message. */
  readonly accepted: number
}

/** Leaves a message for a session, which the next run of a worker takes up. Begins the session if there is none. */
export const submit = (
  id: string,
  content: Message.Content
): Effect.Effect<SubmitReceipt, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const submission = globalThis.crypto.randomUUID()
    const submitted: Records.Record = { _tag: "MessageSubmitted", id: submission, message: Message.user(content) }
    const opened: Records.Record = { _tag: "Opened", session: SessionState.make({ id }) }
    while (true) {
      const version = yield* store.version(id)
      const records: Records.Records = version === 0 ? [opened, submitted] : [submitted]
      const accepted = yield* appended(store, id, version, records)
      if (accepted !== undefined) return { id: submission, accepted }
    }
  })
