/**
 * The writer holds a session while an operation runs: its state, and the matching journal version. It appends first and
 * applies afterwards, so only durable records change the state. An unrecorded session has a writer without a store,
 * whose records apply at once.
 */
import type * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Response from "../../Response.ts"
import type * as Tool from "../../Tool.ts"
import * as CallPaths from "../answer/callPath.ts"
import * as Settings from "../ask/options.ts"
import type * as RunJournal from "../run/runJournal.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import type * as Claims from "./claim.ts"
import type * as SessionData from "./data.ts"
import * as Journals from "./journal.ts"
import * as Nested from "./nested.ts"
import type * as Records from "./records.ts"
import * as States from "./state.ts"

/**
 * Errors that stop a recorded operation: it cannot write, or may not continue.
 *
 * @category errors
 */
export type KeepError = Journals.SessionConflict | Claims.SessionClaimed | Journals.StoreError

/** The recorder of nested runs: an operation, or a program. */
export interface Parent {
  /** Id prefix of its nested runs. */
  readonly id: string
  readonly store: Journals.Service
  /** Fails when something cannot be recorded. The parent and all of its nested runs are then stopped. */
  readonly failed: Deferred.Deferred<never, KeepError>
  /** Policy for a call with an unknown effect, if its tool sets no policy. */
  readonly afterCrash: Tool.AfterCrash | undefined
  /** `true` if its nested runs' suspensions can be settled. */
  readonly isAnswerable: boolean
  /** Claim covering its nested runs. */
  readonly claim: Claims.OwnClaim | undefined
  /** `true` if its nested runs stop when the owner leaves. Nested runs of a running call continue. */
  readonly isLeft: boolean
  /** The operation's writer, which passes messages on. `undefined` for a program. */
  readonly recorder: Writer | undefined
}

/** Records to append together, waiting for their append. */
interface Writing {
  readonly records: ReadonlyArray<Records.Record>
  /** Owns the append of these records, if they come first. */
  readonly running: Running
  /**
   * Succeeds with `true` when the records are in the journal, and with `false` if the run was stopped before a
   * handler's start was written, or a message's fate was settled before. Reports also succeed with `true` after their
   * append was abandoned: a stopping run may end. If they cannot be written, their writer waits until the operation is
   * stopped.
   */
  readonly written: Deferred.Deferred<boolean>
  /** `true` if its writer was interrupted: an intent not yet in an append is then dropped. */
  isWithdrawn: boolean
  /** `true` if nothing waits for the append: if these records are not written, the next owner writes them. */
  readonly isPosted?: boolean
}

const isReply = (record: Records.Record): boolean => record._tag === "ReplyReceived"

const requestIdOf = (record: Records.Record): string | undefined => "requestId" in record ? record.requestId : undefined

/** Returns `true` if a record belongs to a started run. */
const isOfRun = (record: Records.Record): boolean => "requestId" in record && record._tag !== "RunStarted"

/** Returns `true` if a record announces a handler, or a message in another journal. */
const isStart = ({ _tag }: Records.Record): boolean => _tag === "CallStarted" || _tag === "MessageForwarded"

/** Returns `true` if a record announces something about to begin, reporting nothing that happened. */
const isIntent = (record: Records.Record): boolean => isStart(record) || record._tag === "RunStarted"

/** Returns `true` if a run record carries its time. */
const isTimed = (record: Records.Record): record is Extract<Records.Record, { readonly at?: number }> =>
  isOfRun(record) && record._tag !== "StepPrepared" && record._tag !== "StopRequested" &&
  record._tag !== "MessageForwarded"

/** Returns `true` if records report events in a started run. */
const isReport = (records: ReadonlyArray<Records.Record>): boolean =>
  records.every((record) => isOfRun(record) && !isStart(record))

/**
 * Returns `true` if a record closes another owner's interrupted run. It is made from the known verdicts, and a later
 * verdict would be lost.
 */
const isAbandonment = (record: Records.Record): boolean =>
  record._tag === "RunEnded" && record.haltedReason === "abandoned"

/** Returns `true` for a command, which any process may append. */
const isCommand = ({ _tag }: Records.Record): boolean =>
  _tag === "StopRequested" || _tag === "MessageSubmitted" || _tag === "MessageWithdrawn" ||
  _tag === "MessageSettled" || _tag === "CallSettled" || _tag === "Labelled"
  || _tag === "ToolDisallowed"

/**
 * Returns `true` if records may follow a command unknown to their writer. A verdict changes an operation's initial
 * session, and a stop changes the fate of a resumed run.
 */
const mayFollow = (records: Records.Records, command: Records.Record): boolean => {
  if (command._tag === "CallSettled") return records.every((record) => isOfRun(record) && !isAbandonment(record))
  // A message is checked against those before.
  if (command._tag === "MessageSubmitted") return !records.some(({ _tag }) => _tag === "MessageSubmitted")
  // A run that takes the message cannot start. A request with the message is dropped: see `isOvertaken`.
  if (command._tag === "MessageWithdrawn") {
    return !records.some((record) => record._tag === "RunStarted" && record.takes?.id === command.id)
  }
  if (command._tag === "Labelled" || command._tag === "MessageSettled") return true
  // A session written as a whole has the approvals that were forgotten.
  if (command._tag === "ToolDisallowed") return !records.some(({ _tag }) => _tag === "Opened")
  return command._tag === "StopRequested" &&
    !records.some((record) => record._tag === "RunStarted" && record.resumes === true)
}

/** Returns `true` if a record continues an interrupted run. */
const isResumption = (record: Records.Record): boolean => record._tag === "RunStarted" && record.resumes === true

/** Returns a test for records ending a call's nested runs. */
const endsRunIn = (call: string | undefined) => (record: Records.Record): boolean =>
  record._tag === "RunEnded" || record._tag === "CallWaits" && record.toolCallId === call ||
  record._tag === "CallEnded" && record.message.toolCallId === call

/** Returns `true` if records change the session summary. Records inside a run do not. */
const changesSummary = (records: Records.Records): boolean =>
  records.some((record) => !isOfRun(record) || record._tag === "RunEnded")

/** Size limits of one append, in records and approximate characters, exceeded only by a single writer. */
const groupRecords = 256
const groupCharacters = 1 << 20

/** Returns a value's approximate length as JSON. Stops counting at `limit`. */
const charactersOf = (value: unknown, limit: number): number => {
  const left = [value]
  let count = 0
  while (left.length > 0 && count < limit) {
    const next = left.pop()
    if (typeof next === "string") count += next.length
    else if (ArrayBuffer.isView(next)) count += next.byteLength
    else if (typeof next === "object" && next !== null) { for (const member of Object.values(next)) left.push(member) }
    count += 8
  }
  return count
}

/**
 * Functions returning the calls waiting for their turn, for operations running in this process, by store and session.
 * Waits are not journaled: they end with the process, and no next owner needs them.
 */
const waiting = new WeakMap<Journals.Service, Map<string, () => ReadonlyArray<RunJournal.Waits>>>()

/** Returns a session's calls waiting for their turn, if this process runs the session. */
export const waitsIn = (store: Journals.Service, id: string): ReadonlyArray<RunJournal.Waits> =>
  waiting.get(store)?.get(id)?.() ?? []

/** Test hook, called after each state change, to compare the state with the journal. */
export const observed: { by: ((writer: Writer) => void) | undefined } = { by: undefined }

/**
 * Appends one operation's records, one append at a time, from all of its fibers.
 *
 * **Details**
 *
 * Records written during an append are appended together afterwards (group commit). So are records written by several
 * calls in the same event loop turn, together with their reply. The order is the writing order, and the records of one
 * `append` call are written all together or not at all.
 *
 * Other processes may append commands in between. If only commands precede an append, the writer applies them first.
 * Any other record comes from another owner, and the operation is stopped.
 */
export class Writer implements Omit<Parent, "recorder" | "store"> {
  /** State folded from the records. Only durable records change the state. */
  readonly state: States.State
  /** Journal version matching the state. */
  version: number
  readonly id: string
  readonly store: Journals.Service | undefined
  /** Owner of the operation's claim. */
  readonly owner: string | undefined
  /** Fails when an append does, or when the claim is lost. The operation and its parent are then stopped. */
  readonly failed: Deferred.Deferred<never, KeepError>
  readonly afterCrash: Parent["afterCrash"]
  readonly isAnswerable: boolean
  /** `true` if the operation is a nested run. */
  readonly isNested: boolean
  readonly claim: Claims.OwnClaim | undefined
  readonly isLeft: boolean
  /** Session given to the program, and the session after closing an interrupted run. */
  readonly given: { readonly session: SessionData.Session; closed: SessionData.Session | undefined }
  /** Records not yet in an append, in order. */
  private waiting: Array<Writing> = []
  /** Records in the current append. */
  private taken: ReadonlyArray<Writing> = []
  /** Unwritten records, whose writers wait until the operation is stopped. */
  private readonly unwritten: Array<Writing> = []
  private isAppending = false
  /** Starts the append others may join at once. */
  private begin: (() => void) | undefined
  /** Number of unwritten replies. */
  private replies = 0
  /** Number of calls that may start or end together. */
  private calls = 0
  /** Makes `own` on first use. */
  private readonly context: Context.Context<never>
  private made: Running | undefined
  /** `true` after an abandoned append: it may have been written, so nothing may follow. */
  private isClosed = false
  /** Distinguishes this writer's appends from others. */
  private readonly name = globalThis.crypto.randomUUID()
  private appends = 0
  /** Sub-agent calls. Everything inside is in their runs' journals. */
  private readonly subAgents = new Set<string>()
  private waits: (() => ReadonlyArray<RunJournal.Waits>) | undefined
  /** When the written run started, and when the last record was written, as in `States.Run`. */
  private times: Pick<States.Run, "at" | "begunAt"> | undefined
  /** Last model request, until its reply is recorded. */
  request: RunJournal.Requested | undefined
  /** Writer of the operation around a nested run. */
  private readonly around: Writer | undefined
  /** Writers of nested runs, in starting order. */
  private inside: ReadonlyArray<Writer> = []
  /** Calls in an interrupted run's turn, each until one of its nested runs is active again. */
  private readonly interrupted: Set<string>
  /** Message records given to this writer, by kind and message id. */
  private readonly posted = new Set<string>()
  private hasLeft = false
  /** Stop listeners, by run id. */
  private readonly listeners = new Map<string, (stop: Records.StopRequested) => void>()

  constructor(
    kept: {
      readonly id: string
      readonly state: States.State
      readonly version: number
      readonly session?: SessionData.Session
      readonly owner?: string
      readonly claim?: Claims.OwnClaim
    },
    store: Journals.Service | undefined,
    context: Context.Context<never>,
    parent?: Parent
  ) {
    this.context = context
    this.failed = parent?.failed ?? Deferred.makeUnsafe<never, KeepError>()
    this.isNested = parent !== undefined
    this.around = parent?.recorder
    this.interrupted = new Set(kept.state.run === undefined ? [] : kept.state.turn?.calls.keys())
    this.afterCrash = parent?.afterCrash
    this.isAnswerable = parent?.isAnswerable ?? true
    this.claim = kept.claim ?? parent?.claim
    this.isLeft = parent?.isLeft ?? true
    this.id = kept.id
    this.state = kept.state
    this.given = { session: kept.session ?? States.sessionOf(kept.state), closed: undefined }
    this.version = kept.version
    this.store = store
    this.owner = kept.owner
  }

  /**
   * Appends records as part of the run that owns `running`, which abandons the append if it does not end within a
   * stop's grace period. If the append fails, the caller waits here until the operation is stopped, so nothing
   * unrecorded continues. Only a reply is not awaited: its calls start afterwards. If the caller is interrupted,
   * reports are appended nevertheless, and an intent is withdrawn unless already in an append. Without a store, the
   * records apply when this is called.
   */
  append(records: Records.Records, running = this.own): Effect.Effect<void> {
    if (this.store !== undefined) return Effect.asVoid(this.write(records, running))
    this.apply(records)
    return Effect.void
  }

  /**
   * Appends the start of a handler or a request, like `append`. Succeeds with `true` if it may start: a handler's start
   * is then in the journal. Succeeds with `false` for a handler if its run was stopped before: a stop precedes the
   * start in the journal, or its append was abandoned. Succeeds with `false` for a request if one of its inbox messages
   * was withdrawn before.
   */
  start(record: Records.CallStarted | Records.StepPrepared, running: Running): Effect.Effect<boolean> {
    return this.write([record], running)
  }

  /** Owns appends outside any run. */
  private get own(): Running {
    return this.made ??= new Running(Settings.defaultGrace, this.context)
  }

  private write(records: Records.Records, running: Running): Effect.Effect<boolean> {
    if (this.store === undefined) {
      this.apply(records)
      return Effect.succeed(true)
    }
    return Effect.contextWith((context: Context.Context<never>) => {
      const timed = this.timed(records, context)
      const writing = { records: timed, running, written: Deferred.makeUnsafe<boolean>(), isWithdrawn: false }
      this.waiting.push(writing)
      this.count(records)
      if (!this.isJoined(records)) this.begin?.()
      this.appendWaiting(context)
      if (records.every(isReply)) return Effect.succeed(true)
      return Effect.onInterrupt(Deferred.await(writing.written), () => this.withdraw(writing))
    })
  }

  /** Adds times to a run's records: when they were given, in journal order. */
  private timed([first, ...rest]: Records.Records, context: Context.Context<never>): Records.Records {
    const now = Context.get(context, Clock.Clock).currentTimeMillisUnsafe()
    const next = (record: Records.Record): Records.Record => {
      if (record._tag === "RunStarted") this.times = { begunAt: record.startedAt, at: 0 }
      if (!isTimed(record)) return record
      const { at, begunAt } = this.times ?? this.state.run ?? { at: 0, begunAt: now }
      // The clock may be set back, and differs from another process's clock.
      const times = this.times = { begunAt, at: Math.max(at, Math.round(now - begunAt)) }
      return { ...record, at: times.at }
    }
    return [next(first), ...rest.map(next)]
  }

  /** Converts a clock time to the run's record time. */
  since(millis: number): number {
    return Math.max(0, Math.round(millis - (this.times?.begunAt ?? millis)))
  }

  /** Times of the last request, as recorded with its reply. */
  get requested(): Records.Requested | undefined {
    const { request } = this
    if (request === undefined) return undefined
    const { at, attempt, first, model, provider } = request
    return {
      requested: this.since(at),
      ...(first === undefined ? {} : { first: this.since(first) }),
      ...(attempt === 1 ? {} : { attempt }),
      ...(model === undefined ? {} : { model }),
      ...(provider === undefined ? {} : { provider })
    }
  }

  /** Returns the request times for a reply about to be recorded, once, and the model, if not named by the reply. */
  requestedFor(reply: Response.Response): Partial<Records.Requested> {
    const { model, provider, ...times } = this.requested ?? {}
    this.request = undefined
    return {
      ...times,
      ...(model === undefined || model === reply.model ? {} : { model }),
      ...(provider === undefined || provider === reply.provider ? {} : { provider })
    }
  }

  /** Takes the function returning the waiting calls, until the operation ends. */
  working(waits: () => ReadonlyArray<RunJournal.Waits>): void {
    if (this.store === undefined) return
    const sessions = waiting.get(this.store) ?? new Map<string, () => ReadonlyArray<RunJournal.Waits>>()
    waiting.set(this.store, sessions.set(this.id, waits))
    this.waits = waits
  }

  private stopWaiting(): void {
    const sessions = this.store && waiting.get(this.store)
    if (this.waits !== undefined && sessions?.get(this.id) === this.waits) sessions.delete(this.id)
  }

  /** Waits until every appended record is in the state. */
  flush(running = this.own): Effect.Effect<void> {
    if (this.store === undefined) return Effect.void
    return Effect.contextWith((context: Context.Context<never>) => {
      if (this.waiting.length === 0 && !this.isAppending) return Effect.void
      const writing: Writing = { records: [], running, written: Deferred.makeUnsafe<boolean>(), isWithdrawn: false }
      this.waiting.push(writing)
      this.begin?.()
      this.appendWaiting(context)
      return Effect.asVoid(Deferred.await(writing.written))
    })
  }

  /**
   * Calls `listener` when the run, or one of its calls, must stop, immediately if it already must. The returned
   * function removes the listener.
   */
  onStop(requestId: string, listener: (stop: Records.StopRequested) => void): () => void {
    this.listeners.set(requestId, listener)
    this.notify()
    return () => void this.listeners.delete(requestId)
  }

  /** `true` while a reply is unwritten. Calls starting meanwhile are its calls. */
  get hasReplied(): boolean {
    return this.replies > 0
  }

  /** `true` if the journal may contain more than the state: an append was abandoned. */
  get isUncertain(): boolean {
    return this.isClosed
  }

  /** Stops all writing after a failure. */
  fail(failure: KeepError): void {
    Deferred.doneUnsafe(this.failed, Exit.fail(failure))
  }

  private apply(records: ReadonlyArray<Records.Record>): void {
    const apply = this.store === undefined ? States.change : States.apply
    for (const record of records) apply(this.state, record)
    if (observed.by !== undefined) observed.by(this)
  }

  /** Passes on the run's stop, stops of unanswered calls, and messages. A listener may get a stop more than once. */
  private notify(): void {
    const { stop } = this.state
    if (stop !== undefined) this.listeners.get(stop.requestId)?.(stop)
    for (const request of States.callStopsIn(this.state)) this.listeners.get(request.requestId)?.(request)
    this.pass()
  }

  // Messages for nested runs.

  /** Takes in a nested run's writer, until the scope closes. */
  enter(nested: Writer): Effect.Effect<void, never, Scope.Scope> {
    return Effect.suspend(() => {
      this.inside = [...this.inside, nested]
      for (const call of this.interrupted) {
        if (Nested.isOfCalls(this.id, [call])(nested.id)) this.interrupted.delete(call)
      }
      this.passInside()
      return Effect.addFinalizer(() =>
        Effect.sync(() => {
          this.inside = this.inside.filter((other) => other !== nested)
        })
      )
    })
  }

  /** Passes messages on here, and in the operation around: both have new records to follow. */
  private pass(): void {
    this.passInside()
    this.around?.passInside()
  }

  /**
   * Passes on messages for nested runs, and takes their outcomes from there: each record in either journal leads to the
   * next. A message whose call has no active run is refused. Passing on or refusing is decided once: a run may begin or
   * end while that record is written.
   */
  private passInside(): void {
    const { id, inside, interrupted, state: { run } } = this
    if (run === undefined) return
    for (const { message, session } of this.state.inside) {
      const settled = (fate: Records.MessageSettled["fate"]) =>
        ({ _tag: "MessageSettled", id: message.id, fate }) as const
      const [call = ""] = CallPaths.parse(message.to)?.path ?? []
      const isOurs = Nested.isOfCalls(id, [call])
      const nested = session === undefined
        ? inside.findLast((writer) => writer.state.run !== undefined && isOurs(writer.id))
        : inside.findLast((writer) => writer.id === session)
      if (session !== undefined) {
        const fate = nested && Nested.fateIn(nested.state, message.id)
        // The nested run's writer drops a message already in its journal.
        if (fate === undefined) nested?.post(Nested.passedOn(message))
        else this.post(settled(fate))
      } else if (nested !== undefined) {
        const { requestId } = run
        this.post({ _tag: "MessageForwarded", requestId, id: message.id, session: nested.id }, "decision")
      } else if (!interrupted.has(call)) this.post(settled(States.unreachable), "decision")
    }
  }

  /** Appends a message record, once for each kind. Nothing waits for the append. */
  private post(
    record: Records.MessageSubmitted | Records.MessageForwarded | Records.MessageSettled,
    kind: string = record._tag
  ): void {
    const name = `${kind} ${record.id}`
    if (this.hasLeft || this.posted.has(name)) return
    this.posted.add(name)
    const written = Deferred.makeUnsafe<boolean>()
    this.waiting.push({ records: [record], running: this.own, written, isWithdrawn: false, isPosted: true })
    this.appendWaiting(this.context)
  }

  /**
   * Returns the outcomes of passed-on messages missing in the state, from the nested runs' journals: the known outcomes
   * before the run is resumed, and all outcomes before its end, or the end of their call. A nested run without an end
   * was stopped.
   */
  private settled(
    records: Records.Records,
    store: Journals.Service
  ): Effect.Effect<ReadonlyArray<Records.MessageSettled>, Journals.StoreError> {
    const { inside } = this.state
    if (inside.length === 0) return Effect.succeed([])
    const own = new Set(records.flatMap((record) => record._tag === "MessageSettled" ? [record.id] : []))
    const open = inside.flatMap(({ message: { id, to } }) => {
      const passed = own.has(id) ? undefined : States.passedOn(this.state, id)
      const isOver = records.some(endsRunIn(CallPaths.parse(to)?.path[0]))
      return passed !== undefined && (isOver || records.some(isResumption)) ? [{ id, isOver, passed }] : []
    })
    return Effect.map(
      Effect.forEach(open, ({ id, isOver, passed }) => {
        const end = { _tag: "MessageSettled", id, fate: { became: "refused", reason: "stopped" } } as const
        const found = Nested.settledIn(store, passed, isOver ? end : undefined)
        return Effect.map(found, (settled) => settled === undefined ? [] : [{ ...end, fate: settled.fate }])
      }),
      (all) => all.flat()
    )
  }

  private withdraw(writing: Writing): Effect.Effect<void> {
    return Effect.sync(() => {
      if (!writing.records.some(isIntent)) return
      writing.isWithdrawn = true
      this.waiting = this.waiting.filter((other) => other !== writing)
    })
  }

  private count(records: Records.Records): void {
    for (const record of records) {
      if (record._tag === "ReplyReceived") {
        this.calls = record.response.toolCalls.length
        this.replies++
      } else if (record._tag === "RunStarted") this.calls = this.state.turn?.open ?? 0
    }
  }

  /** Returns `true` if other writers may write in the same event loop turn. */
  private isJoined(records: ReadonlyArray<Records.Record>): boolean {
    return records.every((record) =>
      isReply(record) || this.calls > 1 && (record._tag === "CallStarted" || record._tag === "CallEnded")
    )
  }

  private appendWaiting(context: Context.Context<never>): void {
    for (let [next] = this.waiting; next !== undefined && !this.isAppending; [next] = this.waiting) {
      if (this.isClosed || this.hasFailed) this.refuse(this.waiting.splice(0))
      else this.appendNext(next, context)
    }
  }

  /** Appends a group of the waiting records, in a fiber of the first record's run. */
  private appendNext({ records, running }: Writing, context: Context.Context<never>): void {
    this.isAppending = true
    const worker = new Worker(running, {
      kind: "store",
      id: this.id,
      name: "append",
      onSoftStop: "grace",
      once: true,
      isUninterruptible: true,
      onAbandoned: () => this.abandon()
    })
    const append = Effect.suspend(() => this.appendGroup())
    const joined = this.isJoined(records) ? Effect.andThen(this.joining, append) : append
    worker.start(joined, context as Context.Context<any>, (exit: Exit.Exit<void, KeepError>) => {
      const { taken } = this
      this.taken = []
      this.isAppending = false
      const failure = Exit.findErrorOption(exit)
      if (Option.isSome(failure)) {
        this.unwritten.push(...taken)
        // An abandoned append's end changes nothing: for its operation, the append may have been written.
        if (!this.isClosed) this.fail(failure.value)
      } else {for (const { written } of taken) {
          Deferred.doneUnsafe(written, Exit.isSuccess(exit) ? Exit.succeed(true) : exit as Exit.Exit<never>)
        }}
      this.appendWaiting(context)
    })
  }

  /**
   * Waits until the writers of the same event loop turn have joined, or a writer arrives that does not wait for others.
   */
  private readonly joining: Effect.Effect<void> = Effect.withFiber((fiber) =>
    Effect.callback<void>((resume) => {
      const begin = () => {
        this.begin = undefined
        resume(Effect.void)
      }
      this.begin = begin
      fiber.currentDispatcher.scheduleTask(begin, 0)
    })
  )

  /** Abandons an append: no writer waits any longer. An append not begun yet ends, and accepts no further writers. */
  private abandon(): void {
    this.isClosed = true
    this.begin?.()
    this.refuse([...this.taken, ...this.waiting.splice(0)])
  }

  /**
   * Refuses records that can no longer be written. A stopping run may end, and a handler whose start was refused never
   * starts. Nothing else may begin.
   */
  private refuse(given: ReadonlyArray<Writing>): void {
    const writings = given.filter(({ isPosted }) => isPosted !== true)
    this.unwritten.push(...writings)
    if (this.hasFailed) return
    const starts = writings.filter(({ records }) => records.some(isStart))
    for (const { written } of starts) Deferred.doneUnsafe(written, Exit.succeed(false))
    const reports = writings.filter(({ records }) => isReport(records))
    for (const { written } of reports) Deferred.doneUnsafe(written, Exit.succeed(true))
    if (starts.length + reports.length === writings.length) return
    this.fail(Journals.appendGivenUp(this.id))
  }

  private get hasFailed(): boolean {
    return Deferred.isDoneUnsafe(this.failed)
  }

  private takeGroup(): void {
    let records = 0
    let characters = 0
    const exceeds = (writing: Writing, index: number): boolean => {
      records += writing.records.length
      characters += charactersOf(writing.records, groupCharacters)
      return index > 0 && (records > groupRecords || characters > groupCharacters)
    }
    const end = this.waiting.length === 1 ? -1 : this.waiting.findIndex(exceeds)
    this.taken = this.waiting.splice(0, end === -1 ? this.waiting.length : end)
  }

  private appendGroup(): Effect.Effect<void, KeepError> {
    if (this.isClosed || this.store === undefined) return Effect.void
    this.takeGroup()
    return this.appendTaken(this.store)
  }

  private appendTaken(store: Journals.Service): Effect.Effect<void, KeepError> {
    const written = this.taken.filter((writing) => !writing.isWithdrawn && !this.isOvertaken(writing))
    const [first, ...rest] = written.flatMap(({ records }) => records)
    // All waiting records may have been withdrawn.
    if (first === undefined) return Effect.void
    return Effect.flatMapEager(
      this.settled([first, ...rest], store),
      (settled) =>
        this.appendNow(settled.length === 0 ? [first, ...rest] : [...settled, first, ...rest] as never, store)
    )
  }

  /**
   * Returns `true` if a command precedes in the journal what it undoes: a stop before a handler's start, or a message's
   * outcome before another outcome, or before the request with the message.
   */
  private isOvertaken({ records, written }: Writing): boolean {
    const { state, state: { stop } } = this
    const isOvertaken = records.some((record) =>
      isStart(record) && stop?.requestId === requestIdOf(record) ||
      record._tag === "StepPrepared" && record.delivered?.some((id) => !States.isOpenMessage(state, id)) === true ||
      record._tag === "MessageForwarded" && !States.isOpenMessage(state, record.id) ||
      record._tag === "MessageSettled" && !States.isUnsettled(state, record.id) ||
      record._tag === "MessageSubmitted" && this.isNested && state.receipts.has(record.id)
    )
    if (isOvertaken) Deferred.doneUnsafe(written, Exit.succeed(false))
    return isOvertaken
  }

  private appendNow(written: Records.Records, store: Journals.Service): Effect.Effect<void, KeepError> {
    const records = States.sealed(this.state, written)
    return Effect.suspend(() => {
      const name = `${this.name}:${++this.appends}`
      const summary = changesSummary(records) ? States.summaryOf(States.after(this.state, records)) : undefined
      const options = summary === undefined ? { name } : { name, summary }
      const once = store.append(this.id, this.version, records, options)
      // The append name shows whether it was written, so one retry decides.
      return Effect.catchIf(
        once,
        (error) => error._tag === "StoreError" && error.reason === "unavailable",
        () => once
      )
    }).pipe(
      Effect.map((version) => {
        if (this.isClosed) return
        this.version = version
        this.apply(records)
        this.replies -= records.filter(isReply).length
        this.pass()
      }),
      Effect.catchTag("SessionConflict", (conflict) =>
        Effect.flatMap(
          this.commandsBehind(conflict, store, (command) =>
            mayFollow(records, command) || this.isNested && command._tag === "MessageSubmitted"),
          (commands) => {
            this.take(commands)
            // A stop reaches the group's calls first: interrupted calls do not start.
            this.notify()
            return this.appendTaken(store)
          }
        ))
    )
  }

  /** Reads the records after the state's version. Fails unless they are commands allowed in that place. */
  private commandsBehind(
    conflict: Journals.SessionConflict,
    store: Journals.Service,
    isTaken: (record: Records.Record) => boolean
  ): Effect.Effect<ReadonlyArray<Records.Entry>, KeepError> {
    // The journal was deleted: it has no records after that version.
    if (conflict.actual < conflict.expected) return Effect.fail(conflict)
    return Stream.runCollect(Stream.mapEffect(
      store.read(this.id, conflict.expected),
      (entry) => isTaken(entry.record) ? Effect.succeed(entry) : Effect.fail(conflict)
    ))
  }

  private take(entries: ReadonlyArray<Records.Entry>): void {
    for (const { record, version } of entries) {
      this.version = version
      this.apply([record])
    }
  }

  /**
   * Checks for commands at the claim's interval, so that they apply while the operation writes nothing. A failed check
   * is repeated. A current append, or one in between, applies the commands itself.
   */
  watch(claim: Claims.OwnClaim, store: Journals.Service): Effect.Effect<void> {
    const look = Effect.ignore(Effect.andThen(claim.check, claim.request("read", this.look(store))))
    return Effect.forever(Effect.andThen(claim.looks, look))
  }

  /** Applies other processes' commands. Stops the operation if another owner has written. */
  private look(store: Journals.Service): Effect.Effect<void, Journals.StoreError> {
    const look = Effect.suspend(() => {
      const { id, version: expected } = this
      // Records after an abandoned append may be its own.
      if (this.isClosed) return Effect.void
      return Effect.flatMap(store.version(id), (actual) => {
        if (actual <= expected) return Effect.void
        if (this.isBusySince(expected)) return this.isAppending ? this.listen(store, expected) : Effect.void
        const conflict = new Journals.SessionConflict({ id, expected, actual })
        const mayTake = (record: Records.Record) =>
          isCommand(record) && (record._tag !== "CallSettled" || this.state.run !== undefined)
        return Effect.map(this.commandsBehind(conflict, store, mayTake), (commands) => {
          if (this.isBusySince(expected)) return
          this.take(commands)
          this.notify()
        })
      })
    })
    return Effect.catch(look, (error) => {
      if (error._tag === "StoreError") return Effect.fail(error)
      return Effect.sync(() => {
        if (error._tag !== "SessionConflict" || !this.isBusySince(error.expected)) this.fail(error)
      })
    })
  }

  /** Stops the run if another process asks while an append is running, which may hang. */
  private listen(store: Journals.Service, version: number): Effect.Effect<void, Journals.StoreError> {
    return Stream.runForEach(store.read(this.id, version), ({ record }) =>
      Effect.sync(() => {
        if (record._tag === "StopRequested") this.listeners.get(record.requestId)?.(record)
      }))
  }

  private isBusySince(version: number): boolean {
    return this.isAppending || this.isClosed || this.version !== version
  }

  // The operation's claim.

  /** Waits for ever if the owner is leaving: no further call starts, and no model is asked. */
  readonly admission: Effect.Effect<void> = Effect.suspend(() => this.isParked ? Effect.never : Effect.void)

  /** `true` if the owner is leaving and the operation leaves, too. */
  get isParked(): boolean {
    return this.isLeft && this.claim?.isLeaving === true
  }

  /**
   * Waits until the store has confirmed the claim and the journal is unchanged, if the process may have been frozen.
   * Waits for ever if the claim is lost.
   */
  readonly confirmation: Effect.Effect<void> = Effect.suspend(() => {
    const { claim, store } = this
    if (claim === undefined || store === undefined || claim.isFresh) return Effect.void
    return claim.confirmation.pipe(
      Effect.andThen(claim.request("read", this.look(store))),
      // The confirmation may answer a request from before the process was frozen.
      Effect.andThen(Effect.suspend(() => this.hasFailed ? Effect.never : this.confirmation)),
      Effect.catch(() => this.confirmation)
    )
  })

  /** Notes that a handler starts. A leave waits for it to end. */
  handlerBegins(call: string): void {
    this.claim?.begin(this.id, call)
  }

  /** Notes that a call runs a sub-agent, whose runs are resumed. */
  runsSubAgent(call: string): void {
    this.subAgents.add(call)
  }

  /** Notes the recorded end of a handler. */
  handlerEnded(call: string): void {
    this.claim?.end(this.id, call)
  }

  /**
   * Gives an append in progress the grace period at the end of its operation. A started call then keeps the claim,
   * except a sub-agent's: nothing is in doubt unless a call in its runs is in doubt.
   */
  readonly leave: Effect.Effect<void> = Effect.suspend(() => {
    this.hasLeft = true
    return Effect.map(this.own.end(Exit.void), () => {
      this.stopWaiting()
      const { claim, id, state: { turn }, subAgents } = this
      const started = Array.from(turn?.calls.values() ?? []).filter(({ _tag }) => _tag === "Started")
      for (const { written } of this.unwritten.splice(0)) Deferred.doneUnsafe(written, Exit.interrupt())
      const isInDoubt = started.some(({ toolCall }) => !subAgents.has(toolCall.id))
      claim?.left(id, isInDoubt ? "started" : started.length > 0 ? "nested" : "none")
    })
  })
}

/** Receives a stop requested for session `id`, once its operation knows about the request. */
export interface StopHook {
  readonly id: string
  readonly onStop: (stop: Records.StopRequested) => Effect.Effect<void, never, any>
}

/** Hook of the driven session, skipped by runs inside its handlers. */
export const CurrentStopHook: Context.Reference<StopHook | undefined> = Context.Reference<StopHook | undefined>(
  "heddle/internal/StopHook",
  { defaultValue: () => undefined }
)

/** Writer of the operation this code runs in, if recorded. */
export const CurrentWriter: Context.Reference<Writer | undefined> = Context.Reference<Writer | undefined>(
  "heddle/internal/Writer",
  { defaultValue: () => undefined }
)

/** Returns the writer of an unrecorded session. */
export const unkept = (session: SessionData.Session): Effect.Effect<Writer> =>
  Effect.contextWith((context: Context.Context<never>) => {
    const kept = { id: session.id ?? "", state: States.stateOf(session), version: 0, session }
    return Effect.succeed(new Writer(kept, undefined, context))
  })

/** Returns records, or `undefined` for an empty list. */
export const nonEmpty = (
  records: ReadonlyArray<Records.Record>
): Arr.NonEmptyReadonlyArray<Records.Record> | undefined =>
  records.length === 0 ? undefined : records as Arr.NonEmptyReadonlyArray<Records.Record>
