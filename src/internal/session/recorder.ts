/**
 * The recorder of an operation: it appends the records of what happens, one append at a time, whichever fiber of the
 * operation writes. What cannot be written must not go on: the operation is stopped where an append fails. A session that
 * is opened or loaded here is what an operation is recorded behind. Public as `Session.keep`, `Session.open` and
 * `Session.load`.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Tool from "../../Tool.ts"
import * as Settings from "../ask/options.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import * as Claims from "./claim.ts"
import * as Nested from "./nested.ts"
import type * as Records from "./records.ts"
import * as Reducer from "./reducer.ts"
import * as SessionState from "./state.ts"
import * as Stores from "./store.ts"

const isReply = (record: Records.Record): boolean => record._tag === "ReplyReceived"

const isAnswer = (record: Records.Record): boolean => record._tag === "Answered"

/** Whether a record belongs to a run that has started. */
const isOfRun = (record: Records.Record): boolean => "requestId" in record && record._tag !== "RunStarted"

/** Whether a record says what is about to begin, and nothing that has happened. */
const isIntent = (record: Records.Record): boolean => record._tag === "CallStarted" || record._tag === "RunStarted"

/** Why an operation that is kept is stopped: it cannot write, or may not go on. */
export type Failure = Stores.SessionConflict | Claims.SessionClaimed | Stores.StoreError

/**
 * Whether records may be appended behind a command that their writer did not know of. An answer changes the session that an
 * operation begins with, and a stop what becomes of a run that is taken up.
 */
const mayFollow = (records: Records.Records, command: Records.Record): boolean => {
  if (command._tag === "Answered") return records.every(isOfRun)
  if (command._tag === "MessageSubmitted") return true
  return command._tag === "StopRequested" &&
    !records.some((record) => record._tag === "RunStarted" && record.resumes !== undefined)
}

/** What a run that is a part of something else is recorded with, by what that is: an operation, or a program. */
export interface Around {
  /** The id that those of its runs begin with. */
  readonly id: string
  readonly store: Stores.Service
  /** Fails when something cannot be recorded. All of it is stopped then. */
  readonly failed: Deferred.Deferred<never, Failure>
  readonly fail: (failure: Failure) => void
  /** What becomes of a call of which it is not known whether it had its effect, where its tool does not say. */
  readonly unknown: Tool.Unknown | undefined
  /** Whether what its runs wait for can be answered. */
  readonly isAnswerable: boolean
}

/** The records of one writer, which are to be in the journal together. */
interface Writing {
  readonly records: Records.Records
  /** The session after them. */
  readonly after: SessionState.Session
  /** Owns the append that they are in, if they are the first of it. */
  readonly running: Running
  /** Done when they are in the journal. Where they cannot be, their writer waits until the operation is stopped. */
  readonly written: Deferred.Deferred<void>
}

/** An append has at most so many records, and about so many characters, unless one writer has more. */
const groupRecords = 256
const groupCharacters = 1 << 20

/** The journal with the run that was cut. */
const cutIn = ({ cut, ...kept }: Records.Kept): Records.JournalState | undefined =>
  cut === undefined || kept.interrupted === undefined ? undefined : { ...kept, session: cut }

/** About how many characters a value is as JSON. Counts no further than `limit`. */
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
 * Appends the records of one operation, one append at a time, whichever of its fibers writes.
 *
 * **Details**
 *
 * What is written while an append is under way is appended together after it (group commit). So is what several calls of a
 * turn write in the same turn of the event loop, and the reply that they were made in. The order is that of the writing,
 * and an append has the records of a writer as a whole or not at all.
 *
 * Other processes append commands meanwhile. Where an append finds nothing but these before it, it takes them in and
 * follows them. Anything else is another owner's: the operation is stopped.
 */
export class Recorder {
  /** The session as the journal has it. */
  session: SessionState.Session
  version: number
  /** What other processes have asked for. */
  readonly commands: Claims.Commands
  /** Fails when an append does, or when the claim is lost. The operation is stopped then, and what it is a part of. */
  readonly failed: Deferred.Deferred<never, Failure>
  /** The owner of the claim that the operation runs under. */
  readonly owner: string | undefined
  readonly id: string
  readonly store: Stores.Service
  readonly unknown: Around["unknown"]
  readonly isAnswerable: boolean
  /** What no append has yet, in order. */
  private waiting: Array<Writing> = []
  /** What the append has that is under way. */
  private taken: ReadonlyArray<Writing> = []
  private isAppending = false
  /** Lets the append that others may join begin at once. */
  private begin: (() => void) | undefined
  /** How many calls may start or end at the same time. */
  private calls = 0
  /** Owns the appends that belong to no run. */
  private readonly own: Running
  /** An append was abandoned: whether it has been written is unknown, and nothing may be written after it. */
  private isClosed = false
  /** The journal with the run that was cut, until the operation has left it. */
  cut: Records.JournalState | undefined
  /** What an operation is given, and, once it asks, the session that it begins with when it leaves the run. */
  private given: { readonly session: SessionState.Session; left?: Reducer.Left | undefined }
  /** Whether a run of this operation has begun and not ended. */
  private isRunning = false

  constructor(
    kept: Records.Kept,
    store: Stores.Service,
    context: Context.Context<never>,
    around?: Around
  ) {
    this.own = new Running(Duration.toMillis(Settings.defaultGrace), context)
    this.failed = around?.failed ?? Deferred.makeUnsafe<never, Failure>()
    this.unknown = around?.unknown
    this.isAnswerable = around?.isAnswerable ?? true
    this.id = kept.id
    this.session = kept.session
    this.cut = cutIn(kept)
    this.given = { session: kept.session }
    this.version = kept.version
    this.store = store
    this.owner = kept.owner
    this.commands = new Claims.Commands(kept)
  }

  /**
   * Appends records, as a part of the run that owns `running`, which abandons the append where its own stop does not let it
   * finish. What cannot be written must not go on: where the append fails, the writer waits here until the operation is
   * stopped. Only a reply is not waited for: its calls start behind it. A writer that is interrupted leaves: what has
   * happened is appended nevertheless, and an intent is withdrawn unless an append has it.
   */
  append(records: Records.Records, after: SessionState.Session, running = this.own): Effect.Effect<void> {
    return Effect.contextWith((context: Context.Context<never>) => {
      const writing = { records, after, running, written: Deferred.makeUnsafe<void>() }
      this.waiting.push(writing)
      this.count(records)
      if (!this.isJoined(records)) this.begin?.()
      this.appendWaiting(context)
      if (records.every(isReply)) return Effect.void
      return Effect.onInterrupt(Deferred.await(writing.written), () => this.withdraw(writing))
    })
  }

  private get left(): Reducer.Left | undefined {
    if (this.cut !== undefined) this.given.left ??= Reducer.leave(this.cut)
    return this.given.left
  }

  /** Whether a run of this operation was left in the middle, by a timeout of the program, say. */
  get hasLeft(): boolean {
    return this.isRunning && !this.isClosed && !this.isAppending && this.waiting.length === 0
  }

  /** Takes in what the journal has of a run that was left in the middle. */
  reload(kept: Records.Kept): void {
    this.isRunning = false
    this.cut = cutIn(kept)
    this.session = kept.session
    this.version = kept.version
    this.given = { session: this.given.session }
  }

  /**
   * The session as an operation begins with it that leaves the run which was cut, if one was. A session that has the thread
   * of the given one is the given one, with changes.
   */
  leaving(session: SessionState.Session): SessionState.Session {
    const { given, left } = this
    if (left === undefined || session.thread !== given.session.thread) return session
    return session === given.session
      ? left.session
      : { ...session, thread: left.session.thread, context: { ...session.context, ...left.contextUpdate } }
  }

  /** What has to be recorded before records that follow on the session. */
  before(session: SessionState.Session): ReadonlyArray<Records.Record> {
    if (session === this.session) return []
    const { left } = this.given
    if (this.cut !== undefined && session === left?.session) return left.closing
    return [{ _tag: "Opened", session }]
  }

  /** The run that was cut, behind records of the operation. To settle a call is not to leave it. */
  private follow(records: Records.Records): void {
    for (const { _tag } of records) {
      if (_tag === "RunStarted") this.isRunning = true
      else if (_tag === "RunEnded" || _tag === "RunFailed") this.isRunning = false
    }
    if (this.cut === undefined) return
    if (!records.every(isAnswer)) this.cut = undefined
    else {
      this.cut = records.reduce(Reducer.apply, this.cut)
      this.given = { session: this.session }
    }
  }

  private withdraw(writing: Writing): Effect.Effect<void> {
    return Effect.sync(() => {
      if (writing.records.some(isIntent)) this.waiting = this.waiting.filter((other) => other !== writing)
    })
  }

  private count(records: Records.Records): void {
    for (const record of records) {
      if (record._tag === "ReplyReceived") this.calls = (record.response ?? record.message)?.toolCalls?.length ?? 0
      else if (record._tag === "RunStarted") this.calls = this.session.approved.length
    }
  }

  /** Whether other writers may write in the same turn of the event loop. */
  private isJoined(records: Records.Records): boolean {
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

  /** Appends a group of what waits, in a fiber of the run that the first of it belongs to. */
  private appendNext({ records, running }: Writing, context: Context.Context<never>): void {
    this.isAppending = true
    const writer = new Worker(running, {
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
    writer.start(joined, context as Context.Context<any>, (exit: Exit.Exit<void, Failure>) => {
      const { taken } = this
      this.taken = []
      this.isAppending = false
      const failure = Exit.findErrorOption(exit)
      if (Option.isSome(failure)) this.fail(failure.value)
      else for (const { written } of taken) Deferred.doneUnsafe(written, exit as Exit.Exit<void>)
      this.appendWaiting(context)
    })
  }

  /** Waits until the writers that write in the same turn of the event loop have joined, or one that does not wait for others. */
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

  /** An append was abandoned: no writer waits for it any longer. One that has not begun ends, and takes no writer that comes. */
  private abandon(): void {
    this.isClosed = true
    this.begin?.()
    this.refuse([...this.taken, ...this.waiting.splice(0)])
  }

  /** Of what cannot be written any more, a run that is being stopped may end. Nothing else may begin. */
  private refuse(writings: ReadonlyArray<Writing>): void {
    if (this.hasFailed) return
    const ending = writings.filter(({ records }) => records.every(isOfRun))
    for (const { written } of ending) Deferred.doneUnsafe(written, Exit.void)
    if (ending.length === writings.length) return
    this.fail(
      new Stores.StoreError({
        reason: "unavailable",
        operation: "append",
        id: this.id,
        cause: "an append before it did not end within the grace period; open the session again"
      })
    )
  }

  /** Nothing is written after what failed. */
  fail(failure: Failure): void {
    Deferred.doneUnsafe(this.failed, Exit.fail(failure))
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

  private appendGroup(): Effect.Effect<void, Failure> {
    if (this.isClosed) return Effect.void
    this.takeGroup()
    const [first, ...rest] = this.taken.flatMap(({ records }) => records)
    const last = this.taken[this.taken.length - 1]
    // All that waited may have been withdrawn.
    return first === undefined || last === undefined ? Effect.void : this.appendNow([first, ...rest], last.after)
  }

  private appendNow(records: Records.Records, after: SessionState.Session): Effect.Effect<void, Failure> {
    return Effect.suspend(() => {
      const marked = Arr.map(records, (record) => this.commands.marked(record, after, this.cut !== undefined))
      return this.store.append(this.id, this.version, marked)
    }).pipe(
      Effect.map((version) => {
        if (this.isClosed) return
        this.version = version
        this.session = this.commands.appended(records, after)
        this.follow(records)
      }),
      Effect.catchTag("SessionConflict", (conflict) => {
        const again = Effect.andThen(Effect.suspend(() => this.appendNow(records, after)), this.notifyLater)
        return Effect.andThen(this.takeIn(conflict, (command) => mayFollow(records, command)), again)
      })
    )
  }

  /** Takes in the commands that other processes have appended. Fails where they are not all, or are not for this append. */
  private takeIn(
    conflict: Stores.SessionConflict,
    isTaken: (record: Records.Record) => boolean
  ): Effect.Effect<void, Failure> {
    return Effect.map(this.commandsBehind(conflict, isTaken), (commands) => this.take(commands))
  }

  /** What is behind the version that the operation knows. */
  private commandsBehind(
    conflict: Stores.SessionConflict,
    isTaken: (record: Records.Record) => boolean
  ): Effect.Effect<ReadonlyArray<Records.Entry>, Failure> {
    // The journal was deleted: nothing is behind that version.
    if (conflict.actual < conflict.expected) return Effect.fail(conflict)
    return Stream.runCollect(Stream.mapEffect(
      this.store.read(this.id, conflict.expected),
      (entry) => isTaken(entry.record) ? Effect.succeed(entry) : Effect.fail(conflict)
    ))
  }

  /** The writers of what has just been written come first: a call that has ended is answered, and not cancelled. */
  private readonly notifyLater: Effect.Effect<void> = Effect.withFiber((fiber) =>
    Effect.sync(() => fiber.currentDispatcher.scheduleTask(() => this.commands.notify(), 0))
  )

  private take(entries: ReadonlyArray<Records.Entry>): void {
    for (const { record, version } of entries) {
      this.version = version
      this.commands.take(record)
      if (this.cut !== undefined) this.cut = Reducer.apply(this.cut, record)
    }
  }

  /**
   * Looks for commands as often as the claim says, so that they are taken in while the operation writes nothing. A look
   * that fails is repeated. An append that is under way, or was in the meantime, takes them in itself.
   */
  watch({ looks }: Claims.HeldClaim): Effect.Effect<void> {
    const look = Effect.suspend(() => {
      const { id, version: expected } = this
      return Effect.flatMap(this.store.version(id), (actual) => {
        if (actual <= expected || this.isBusySince(expected)) return Effect.void
        const conflict = new Stores.SessionConflict({ id, expected, actual })
        return Effect.map(this.commandsBehind(conflict, (command) => this.commands.mayTake(command)), (commands) => {
          if (this.isBusySince(expected)) return
          this.take(commands)
          this.commands.notify()
        })
      })
    })
    const looked = Effect.catch(look, (error) =>
      Effect.sync(() => {
        if (error._tag === "SessionConflict" && !this.isBusySince(error.expected)) this.fail(error)
      }))
    return Effect.forever(Effect.andThen(looks, looked))
  }

  private isBusySince(version: number): boolean {
    return this.isAppending || this.version !== version
  }

  /** Gives an append that is under way when its operation is left the grace period to end. */
  readonly leave: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.own.end(Exit.void)))
}

/** The recorder of the operation that this code runs in, if the operation is kept. */
export const CurrentRecorder: Context.Reference<Recorder | undefined> = Context.Reference<Recorder | undefined>(
  "heddle/internal/Recorder",
  { defaultValue: () => undefined }
)

/**
 * The state after records, which are appended first if the operation is kept. A session that is not the one that the
 * journal has is written as a whole before them.
 */
export const recorded = (
  state: Records.JournalState,
  records: Records.Records,
  recorder: Recorder | undefined,
  running?: Running
): Effect.Effect<Records.JournalState> => {
  const read = records.reduce(Reducer.apply, state)
  const after = { ...read, session: SessionState.plain(read.session) }
  if (recorder === undefined) return Effect.succeed(after)
  const { session } = state
  const whole = Arr.appendAll(recorder.before(session), records)
  return Effect.as(recorder.append(whole, after.session, running), after)
}

/** The session for an operation that leaves the run which was cut, if one was: with the turn of it closed. */
export const leaving = (session: SessionState.Session): Effect.Effect<SessionState.Session> =>
  Effect.flatMap(CurrentRecorder, (recorder) => {
    if (recorder === undefined) return Effect.succeed(session)
    const read = recorder.hasLeft ? stored(recorder, load(recorder.id)) : Effect.succeed(undefined)
    return Effect.map(read, (kept) => {
      if (kept !== undefined) recorder.reload(kept)
      return recorder.leaving(session)
    })
  })

/** The session after something happened to it between runs. */
export const happened = (session: SessionState.Session, record: Records.Record): Effect.Effect<SessionState.Session> =>
  Effect.flatMap(
    CurrentRecorder,
    (recorder) => Effect.map(recorded({ session }, [record], recorder), (state) => state.session)
  )

/** The session after a call that it waited for was settled. The record says whether it waits for another one. */
export const settled = (
  session: SessionState.Session,
  id: string,
  answer: SessionState.Answer
): Effect.Effect<SessionState.Session> => {
  const unfinished = session.suspensions.every((suspension) => suspension.id === id)
  return happened(session, { _tag: "Answered", id, answer, unfinished })
}

/** A session that was loaded under a claim has it. */
const claimOf = (kept: Partial<Claimed>): Claims.HeldClaim | undefined => kept.claim

/** The recorder of an operation, which is watched over until the scope closes. */
const recorderOf = (kept: Records.Kept): Effect.Effect<Recorder, never, Stores.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const recorder = new Recorder(kept, yield* Stores.Store, yield* Effect.context<never>())
    const claim = claimOf(kept)
    if (claim !== undefined) {
      yield* Effect.forkScoped(recorder.watch(claim))
      const lost = Effect.catch(Deferred.await(claim.lost), (lost) => Effect.sync(() => recorder.fail(lost)))
      // One that is lost already stops the operation before it does anything.
      yield* Effect.forkScoped(lost, { startImmediately: true })
    }
    return recorder
  })

/**
 * What the operation has left behind: the session as the journal has it, under the same claim. One that has begun nothing has
 * not left the run that was cut.
 */
const keptBy = (
  recorder: Recorder,
  kept: Records.Kept
): Effect.Effect<Records.Kept, Stores.StoreError, Stores.Store> => {
  const { cut: _, ended: __, interrupted: ___, stop: ____, submitted: _____, ...same } = kept
  const { commands: { submitted }, cut: state, hasLeft, session, version } = recorder
  if (hasLeft) return Effect.map(load(kept.id), (loaded) => ({ ...same, session, version, ...loaded }))
  const cut = state === undefined ? {} : { ...state, cut: SessionState.plain(state.session) }
  return Effect.succeed({ ...same, ...cut, session, version, ...(submitted.length === 0 ? {} : { submitted }) })
}

/** Runs an operation on a session and appends its records as it runs. */
export const keep = <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Effect.Effect<A, E, R>
): Effect.Effect<Records.Outcome<A>, E | Failure, R | Stores.Store> =>
  // The scope is the recorder's own: the operation runs in the caller's.
  Effect.scopedWith((scope) =>
    Effect.flatMap(Scope.provide(recorderOf(kept), scope), (recorder) =>
      Effect.raceFirst(
        Effect.provideService(Effect.suspend(() => operation(kept.session)), CurrentRecorder, recorder),
        Deferred.await(recorder.failed)
      ).pipe(
        Effect.ensuring(recorder.leave),
        Effect.flatMap((value) => Effect.map(keptBy(recorder, kept), (kept) => ({ ...kept, value })))
      ))
  )

/** The same for the events of an operation. */
export const keepStream = <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | Failure, R | Stores.Store> =>
  Stream.unwrap(
    Effect.map(recorderOf(kept), (recorder) =>
      Stream.suspend(() => operation(kept.session)).pipe(
        Stream.provideService(CurrentRecorder, recorder),
        Stream.interruptWhen(Deferred.await(recorder.failed)),
        Stream.ensuring(recorder.leave)
      ))
  )

/** What the records of a journal come to. */
interface Journal {
  readonly state: Records.JournalState
  /** The version of the last record, 0 where there is none. */
  readonly version: number
  /** Whether the session has work left. */
  readonly isUnfinished: boolean
}

const read = (id: string): Effect.Effect<Journal, Stores.StoreError, Stores.Store> =>
  Effect.flatMap(Stores.Store, (store) => {
    const reading = new Reducer.Reading({ session: SessionState.make({ id }) })
    const first = { version: 0, isUnfinished: false }
    const entries = Stream.runFold(store.read(id), () => first, ({ isUnfinished }, { record, version }) => {
      reading.take(record)
      return { version, isUnfinished: Stores.isUnfinishedAfter([record], isUnfinished) }
    })
    return Effect.map(entries, (read): Journal => ({ ...read, state: reading.state }))
  })

/**
 * The events of a run that is a part of the operation that `around` records. It is recorded in a journal of its own, and
 * where it cannot be, the operation is stopped: the run waits for that.
 */
export const keepWithin = <A, E, R>(
  kept: Records.Kept,
  around: Around,
  events: Stream.Stream<A, E, R>
): Stream.Stream<A, E, R> =>
  Stream.unwrap(Effect.contextWith((context: Context.Context<never>) => {
    const recorder = new Recorder(kept, around.store, context, around)
    return Effect.succeed(
      events.pipe(Stream.provideService(CurrentRecorder, recorder), Stream.ensuring(recorder.leave))
    )
  }))

/** What the operation of a recorder needs of its store. Where the store cannot give it, the operation is stopped. */
export const stored = <A>(
  recorder: Around,
  read: Effect.Effect<A, Stores.StoreError, Stores.Store>
): Effect.Effect<A> =>
  read.pipe(
    Effect.provideService(Stores.Store, recorder.store),
    Effect.catch((failure) => {
      recorder.fail(failure)
      return Effect.never
    })
  )

/** The version that a journal is at. */
export const versionOf = (id: string): Effect.Effect<number, Stores.StoreError, Stores.Store> =>
  Effect.flatMap(Stores.Store, (store) => store.version(id))

/** The session with this id as the store has it, if there is one. */
export const load = (id: string): Effect.Effect<Records.Kept | undefined, Stores.StoreError, Stores.Store> =>
  Effect.map(read(id), ({ state, version }) => {
    if (version === 0) return undefined
    const session = SessionState.plain(Reducer.atRest(state))
    const cut = state.interrupted === undefined ? {} : { cut: SessionState.plain(state.session) }
    return { ...state, ...cut, session, id, version }
  })

/**
 * Writes the session at rest as one record, and removes the records before it, and the runs inside it. What has work left
 * needs them, so that it is refused.
 */
export const snapshot = ({ id, version }: Records.Kept): Effect.Effect<
  Records.Kept,
  SessionState.SessionError | Stores.SessionConflict | Stores.StoreError,
  Stores.Store
> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const journal = yield* read(id)
    if (journal.version !== version) {
      return yield* new Stores.SessionConflict({ id, expected: version, actual: journal.version })
    }
    const { isUnfinished, state: { interrupted, submitted } } = journal
    if (isUnfinished || interrupted !== undefined || submitted !== undefined) {
      const left = interrupted === undefined
        ? "a message or an answer waits for a run: a worker takes up a message, Session.continue goes on after an answer"
        : "a run has no end: Session.resume takes it up"
      return yield* new SessionState.SessionError({ reason: "unfinished", detail: left })
    }
    const session = SessionState.plain(Reducer.atRest(journal.state))
    const snapshotVersion = yield* store.append(id, version, [{ _tag: "Opened", session }])
    yield* store.truncate(id, snapshotVersion)
    const isWaiting = session.nested !== undefined || session.suspensions.some(({ path }) => path !== undefined)
    if (!isWaiting) yield* removeWithin(id)
    return { id, session, version: snapshotVersion }
  })

/** The ids of the sessions with work left. */
export const unfinished: Stream.Stream<string, Stores.StoreError, Stores.Store> = Stream.unwrap(
  Effect.map(Stores.Store, (store) => store.unfinished)
)

/** The sessions of the store. */
export const list = (
  options?: Stores.ListOptions
): Stream.Stream<Stores.Listed, Stores.StoreError, Stores.Store> =>
  Stream.unwrap(Effect.map(Stores.Store, (store) => store.list(options)))

/** Removes a session. The runs inside it go first: a removal that fails can be done again. */
export const remove = (id: string): Effect.Effect<void, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    yield* removeWithin(id)
    yield* store.delete(id)
  })

/** Removes the journals of the runs inside a session. */
const removeWithin = (id: string): Effect.Effect<void, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const listed = yield* Stream.runCollect(store.list({ prefix: `${id}/` }))
    yield* Effect.forEach(
      listed.filter((other) => Nested.isWithin(id, other.id)),
      (other) => store.delete(other.id),
      { discard: true }
    )
  })

/** The session with this id, begun with the options if there is none. Of two that begin it at once, both get the same. */
export const open = (
  id: string,
  options: Omit<SessionState.Options, "id"> = {}
): Effect.Effect<Records.Kept, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const known = yield* load(id)
    if (known !== undefined) return known
    const session = SessionState.make({ ...options, id })
    return yield* store.append(id, 0, [{ _tag: "Opened", session }]).pipe(
      Effect.map((version): Records.Kept => ({ id, version, session })),
      Effect.catchTag("SessionConflict", begunElsewhere)
    )
  })

/** The session that another writer began at the same time. A store with a version and without records is damaged. */
const begunElsewhere = (
  { actual, id }: Stores.SessionConflict
): Effect.Effect<Records.Kept, Stores.StoreError, Stores.Store> =>
  Effect.flatMap(load(id), (kept) =>
    kept === undefined
      ? new Stores.StoreError({
        reason: "unreadable",
        operation: "read",
        id,
        version: 1,
        cause: `the store is at version ${actual} and has no record`
      })
      : Effect.succeed(kept))

/**
 * A session that is claimed: what {@link open} gives, and its claim.
 *
 * @category models
 * @since 0.1.0
 */
export interface Claimed extends Records.Kept {
  /** Who has claimed it. */
  readonly owner: string
  /** The claim, which the operations of the session run under. */
  readonly claim: Claims.HeldClaim
}

/** The session under a claim that has been taken, which is renewed until the scope closes. */
export const claimed = (
  claim: Claims.HeldClaim
): Effect.Effect<Claimed, Claims.SessionClaimed | Stores.StoreError, Stores.Store | Scope.Scope> =>
  Effect.gen(function*() {
    yield* Effect.forkScoped(claim.renew)
    yield* Effect.forkScoped(claim.expire)
    return yield* reloaded(claim)
  })

/** The session as the store has it now, under the same claim. */
export const reloaded = (
  claim: Claims.HeldClaim
): Effect.Effect<Claimed, Claims.SessionClaimed | Stores.StoreError, Stores.Store> =>
  Effect.map(
    Effect.raceFirst(open(claim.id), Deferred.await(claim.lost)),
    (kept) => ({ ...kept, owner: claim.owner, claim })
  )

/** What the runs of a program are recorded with, under a claim that is renewed until the scope closes. */
export const around = (
  id: string,
  options: Claims.Options,
  unknown: Tool.Unknown | undefined
): Effect.Effect<Around, Claims.SessionClaimed | Stores.StoreError, Stores.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const claim = Claims.make(id, options, store)
    const failed = yield* Deferred.make<never, Failure>()
    const fail = (failure: Failure) => Deferred.doneUnsafe(failed, Exit.fail(failure))
    yield* Effect.addFinalizer(() => claim.release)
    yield* claim.take
    yield* Effect.forkScoped(claim.renew)
    yield* Effect.forkScoped(claim.expire)
    yield* Effect.forkScoped(Effect.catch(Deferred.await(claim.lost), (lost) => Effect.sync(() => fail(lost))))
    return { id, store, failed, fail, unknown, isAnswerable: false }
  })

/** The session with this id under a claim, which is renewed until the scope closes. */
export const claim = (
  id: string,
  options: Claims.Options = {}
): Effect.Effect<Claimed, Claims.SessionClaimed | Stores.StoreError, Stores.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const claim = Claims.make(id, options, yield* Stores.Store)
    // It may have been taken where this is interrupted.
    yield* Effect.addFinalizer(() => claim.release)
    yield* claim.take
    return yield* claimed(claim)
  })
