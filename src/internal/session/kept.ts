/**
 * Sessions of a store: opened, loaded, claimed, and recorded while an operation runs. Each of them reads the journal
 * once and folds it. Public as `Session`.
 *
 * @since 0.1.0
 */
import type * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type * as Response from "../../Response.ts"
import type * as Thread from "../../Thread.ts"
import type * as Tool from "../../Tool.ts"
import { checkNames, type NamesOf } from "../declare/schema.ts"
import * as Values from "../declare/values.ts"
import * as SharedMessages from "../fold/sharedMessages.ts"
import * as Pulled from "../loop/scopedPull.ts"
import type { Wait } from "../permits/permits.ts"
import type * as RunJournal from "../run/runJournal.ts"
import * as Claims from "./claim.ts"
import * as SessionData from "./data.ts"
import * as Journals from "./journal.ts"
import * as Nested from "./nested.ts"
import type * as Records from "./records.ts"
import * as States from "./state.ts"
import * as Writers from "./writer.ts"

/**
 * A call of the turn in which a run was interrupted.
 *
 * @category models
 * @since 0.1.0
 */
export interface InterruptedCall {
  /** The call, with the arguments that its handler gets. */
  readonly toolCall: Message.ToolCall
  /**
   * State of the call. `Asked`: nothing has begun. `Granted`: it was approved, or has the answers that it waited for.
   * `Started`: an effect may have happened. `Waiting`: it waits for an answer from outside. `Answered`: `message` has
   * its answer.
   */
  readonly state: States.Call["_tag"]
  /** Number of started attempts. */
  readonly attempt: number
  /** The key that identifies the call to an idempotent tool. Left out where no run has asked for the call. */
  readonly idempotencyKey?: string
  /** The answer. Left out until the call has one. */
  readonly message?: Message.Message
}

/**
 * A run that has a recorded start and no recorded end: it is under way elsewhere, was interrupted, or its process was
 * killed.
 *
 * @category models
 * @since 0.1.0
 */
export interface Interrupted {
  /** The id of the run. */
  readonly requestId: string
  /** The operation of `Session` that started the run. */
  readonly operation: Records.RunStarted["operation"]
  /** Time of the first start, in milliseconds since 1970. */
  readonly startedAt: number
  /** End of the deadline, in milliseconds since 1970. Left out where the run has none. */
  readonly deadlineAt?: number
  /** Number of times that the run was resumed by another process than the one before. */
  readonly resumptions: number
  /** The whole steps, in order. */
  readonly steps: ReadonlyArray<States.WholeStep>
  /** The message of the reply in the unfinished turn. Left out where there is none. */
  readonly reply?: Message.Message
  /** The calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InterruptedCall>
}

/**
 * A session as a store has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface Kept {
  /** The id of the session. */
  readonly id: string
  /**
   * The version of the journal at which the session was read. The next operation is appended after it, or conflicts.
   */
  readonly version: number
  /** The session. It contains the whole steps of an interrupted run. */
  readonly session: SessionData.Session
  /** The run without a recorded end. Left out where there is none. */
  readonly interrupted?: Interrupted
  /** The request to stop this run. Left out where there is none. */
  readonly stop?: Records.StopRequested
  /** Submitted messages that no run has taken, oldest first. Left out where there are none. */
  readonly submitted?: ReadonlyArray<Records.MessageSubmitted>
  /** The owner of the claim under which it was loaded (`Session.claim`). Left out where there is none. */
  readonly owner?: string
  /** The principal, the agent and the data with which a server created the session. `{}` elsewhere. */
  readonly origin: Records.Origin
  /** The state that the records fold to. Its fields are internal. */
  readonly state: States.State
}

/**
 * A claimed session: the result of `Session.open`, with its claim.
 *
 * @category models
 * @since 0.1.0
 */
export interface Claimed extends Kept {
  /** The owner of the claim. */
  readonly owner: string
  /** The claim that the operations of the session run under. */
  readonly claim: Claims.HeldClaim
}

/**
 * The result of a recorded operation: the session as the store now has it, under the same claim, and the value of the
 * operation.
 *
 * @category models
 * @since 0.1.0
 */
export type Outcome<A, K extends Kept = Kept> =
  & Reloaded<K>
  & {
    /** The value that the operation succeeded with. */
    readonly value: A
  }

/**
 * A session that was read again, under the same claim.
 *
 * @category models
 * @since 0.1.0
 */
export type Reloaded<K extends Kept> = K extends Claimed ? Claimed : Kept

/** Returns the session of a state as programs see it. */
export const keptOf = (id: string, state: States.State, version: number): Kept => {
  const { inbox, run, stop, turn } = state
  return {
    id,
    version,
    session: States.sessionOf(state),
    origin: state.origin,
    ...(run === undefined ? {} : { interrupted: interruptedOf(run, turn) }),
    ...(stop === undefined ? {} : { stop }),
    ...(inbox.length === 0 ? {} : { submitted: inbox }),
    state
  }
}

const interruptedOf = (
  { deadlineAt, operation, requestId, resumptions, startedAt, steps }: States.Run,
  turn: States.Turn | undefined
): Interrupted => ({
  requestId,
  operation,
  startedAt,
  ...(deadlineAt === undefined ? {} : { deadlineAt }),
  resumptions,
  steps,
  ...(turn?.message === undefined ? {} : { reply: turn.message }),
  calls: callsIn(turn)
})

const callsIn = (turn: States.Turn | undefined): ReadonlyArray<InterruptedCall> =>
  Array.from(turn?.calls.values() ?? [], (call) => {
    const { _tag: state, attempt, idempotencyKey, toolCall } = call
    return {
      toolCall,
      state,
      attempt,
      ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
      ...(call._tag === "Answered" ? { message: call.message } : {})
    }
  })

/**
 * The fold of a journal: the session at the version of the last record that was applied.
 *
 * @category models
 * @since 0.1.0
 */
export interface Fold {
  /** The id of the session. */
  readonly id: string
  /** The version of the last applied record, 0 before the first. */
  readonly version: number
  /** The session at that version, as `Session.load` returns it. Later records do not change it. */
  readonly kept: Kept
  /**
   * The whole turns of its conversation. `kept` copies the session; the other members cost little, for a reader that
   * looks after each record.
   */
  readonly thread: Thread.Thread
  /** The calls of its unfinished turn, as `Session.view` has them. */
  readonly calls: ReadonlyArray<InterruptedCall>
  /** Usage of its open run so far. `null` without a run, and where the models reported none. */
  readonly usage: Response.Usage | null
  /** The part of `usage` that nested runs used. `null` where they used none. */
  readonly nestedUsage: Response.Usage | null
  /** The work that is left at that version, as `Session.next` returns it. */
  readonly next: States.Next
  /** Applies the next record of the journal. A record that does not fit its position changes nothing. */
  readonly apply: (entry: Records.Entry) => void
  /** Returns a fold at the same version that shares nothing with this one. */
  readonly copy: () => Fold
}

/** Folds the records of a journal. A state that was given out is copied before it changes. */
class Folded implements Fold {
  readonly id: string
  version: number
  private state: States.State
  private given: Kept | undefined

  constructor(id: string, state: States.State, version: number) {
    this.id = id
    this.state = state
    this.version = version
  }

  get kept(): Kept {
    return this.given ??= keptOf(this.id, this.state, this.version)
  }

  get thread(): Thread.Thread {
    return this.state.thread
  }

  get calls(): ReadonlyArray<InterruptedCall> {
    return callsIn(this.state.turn)
  }

  get usage(): Response.Usage | null {
    return this.state.run === undefined ? null : States.totalUsageOf(this.state.run)
  }

  get nestedUsage(): Response.Usage | null {
    return this.state.run === undefined ? null : States.nestedUsageOf(this.state.run)
  }

  get next(): States.Next {
    return States.next(this.state)
  }

  apply({ record, version }: Records.Entry): void {
    if (this.given !== undefined) this.state = States.copyOf(this.state)
    this.given = undefined
    States.apply(this.state, record)
    this.version = version
  }

  copy(): Fold {
    return new Folded(this.id, States.copyOf(this.state), this.version)
  }
}

/** Returns the fold of a journal before its first record. */
export const fold = (id: string): Fold => new Folded(id, States.initial(id), 0)

/** Tells whether a call starts no more in its run. */
const isSettled = ({ state }: InterruptedCall): boolean => state === "Answered" || state === "Waiting"

// Recorded operations.

/** Returns the writer of an operation, which looks for commands until the scope closes. */
const writerOf = (kept: Kept): Effect.Effect<Writers.Writer, never, Journals.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    const context = yield* Effect.context<never>()
    const { claim: given, ...own } = kept as Partial<Claimed> & Kept
    const claim = given && Claims.own(given)
    const held = claim === undefined ? {} : { claim }
    const writer = new Writers.Writer({ ...own, ...held, state: States.copyOf(kept.state) }, store, context)
    if (claim !== undefined) {
      yield* claim.enter
      yield* Effect.forkScoped(writer.watch(claim, store))
      const lost = Effect.catch(Deferred.await(claim.lost), (lost) => Effect.sync(() => writer.fail(lost)))
      // A lost claim stops the operation before it does anything.
      yield* Effect.forkScoped(lost, { startImmediately: true })
    }
    return writer
  })

/** Returns the session after the operation, under the same claim. */
const keptBy = <K extends Kept>(
  writer: Writers.Writer,
  kept: K
): Effect.Effect<Kept, Journals.StoreError, Journals.Store> => {
  const { claim, id, owner } = kept as Partial<Claimed> & Kept
  const held = { ...(owner === undefined ? {} : { owner }), ...(claim === undefined ? {} : { claim }) }
  if (!writer.isUncertain) return Effect.succeed({ ...keptOf(id, writer.state, writer.version), ...held })
  return Effect.map(load(id), (loaded = kept) => ({ ...loaded, ...held }))
}

/** Fails where an operation must end: it cannot write, or its claim is lost or given back. */
export const overOf = (
  { claim, failed }: Pick<Writers.Parent, "claim" | "failed">
): Effect.Effect<never, Writers.KeepError> =>
  claim === undefined ? Deferred.await(failed) : Effect.raceFirst(Deferred.await(failed), Deferred.await(claim.closing))

/** Runs an operation on a session and appends its records as it runs. */
export const keep = <K extends Kept, A, E, R>(
  kept: K,
  operation: (session: SessionData.Session) => Effect.Effect<A, E, R>
): Effect.Effect<Outcome<A, K>, E | Writers.KeepError, R | Journals.Store> =>
  // The scope belongs to the writer: the operation runs in the caller's scope.
  Effect.scopedWith((scope) =>
    Effect.flatMap(Scope.provide(writerOf(kept), scope), (writer) =>
      Effect.raceFirst(
        Effect.provideService(Effect.suspend(() => operation(kept.session)), Writers.CurrentWriter, writer),
        overOf(writer)
      ).pipe(
        Effect.ensuring(writer.leave),
        Effect.flatMap((value) =>
          Effect.map(keptBy(writer, kept), (kept) => ({ ...kept, value }) as unknown as Outcome<A, K>)
        )
      ))
  )

/**
 * Returns the events of an operation and appends its records as it runs. Its scope closes when a pull ends, fails or is
 * interrupted: the run ends first, with what it still appends, and then the writer leaves.
 */
const recordedBy = <A, E, R, RW>(
  writer: Effect.Effect<Writers.Writer, never, RW>,
  events: (writer: Writers.Writer) => Stream.Stream<A, E, R>
): Stream.Stream<A, E, R | Exclude<RW, Scope.Scope>> =>
  Pulled.stream((scope) =>
    Effect.flatMap(Scope.provide(writer, scope), (writer) =>
      Effect.flatMap(
        Scope.addFinalizer(scope, writer.leave),
        // A stream may fork the scope as soon as this is called: what it adds has to close before.
        () => Pulled.open(Stream.provideService(events(writer), Writers.CurrentWriter, writer), scope)
      ))
  )

/** Returns the events of an operation on a session and appends its records as it runs. */
export const keepStream = <A, E, R>(
  kept: Kept,
  operation: (session: SessionData.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | Writers.KeepError, R | Journals.Store> =>
  recordedBy(
    writerOf(kept),
    (writer) => Stream.interruptWhen(Stream.suspend(() => operation(kept.session)), overOf(writer))
  )

/**
 * Returns the events of a nested run, recorded in a journal of its own. If it cannot be recorded, its parent is
 * stopped, and the run waits for that.
 */
export const keepWithin = <A, E, R>(
  kept: Kept,
  parent: Writers.Parent,
  events: Stream.Stream<A, E, R>
): Stream.Stream<A, E, R> =>
  recordedBy(
    Effect.contextWith((context: Context.Context<never>) => {
      const writer = new Writers.Writer({ ...kept, state: States.copyOf(kept.state) }, parent.store, context, parent)
      const entered = Effect.andThen(parent.claim?.enter ?? Effect.void, parent.recorder?.enter(writer) ?? Effect.void)
      return Effect.as(entered, writer)
    }),
    () => events
  )

/** Runs a store operation that a parent needs. If it fails, the parent is stopped. */
export const stored = <A>(
  parent: Pick<Writers.Parent, "store" | "failed">,
  read: Effect.Effect<A, Journals.StoreError, Journals.Store>
): Effect.Effect<A> =>
  read.pipe(
    Effect.provideService(Journals.Store, parent.store),
    Effect.catch((failure) => {
      Deferred.doneUnsafe(parent.failed, Exit.fail(failure))
      return Effect.never
    })
  )

// Sessions of the store.

/** The state that the records of a journal fold to, and the version of the last record: 0 where there is none. */
interface Read {
  readonly state: States.State
  readonly version: number
}

/** Folds the records after the version of a state into it. */
export const readOn = (id: string, state: States.State, version: number): Effect.Effect<
  Read,
  Journals.StoreError,
  Journals.Store
> =>
  Effect.flatMap(
    Journals.Store,
    (store) =>
      Stream.runFoldEffect(store.read(id, version), () => ({ state, version }), (before, entry) => {
        const { record, version } = entry
        if (before.version === 0 && record._tag !== "Opened") {
          return Effect.fail(Journals.damaged(id, version, `the journal begins with ${record._tag}, not with Opened`))
        }
        States.apply(state, record)
        return Effect.succeed({ state, version })
      })
  )

export const read = (id: string) => Effect.suspend(() => readOn(id, States.initial(id), 0))

/** Returns the session with this id as the store has it, if it exists. */
export const load = (id: string): Effect.Effect<Kept | undefined, Journals.StoreError, Journals.Store> =>
  Effect.map(read(id), ({ state, version }) => version === 0 ? undefined : keptOf(id, state, version))

/** Returns the version of a journal. */
export const versionOf = (id: string): Effect.Effect<number, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) => store.version(id))

const left: Record<Exclude<States.Next, "wait" | "nothing">, string> = {
  resume: "a run is unfinished: call Session.resume, or Session.abandon",
  reply: "a message waits for a run: a worker takes it, or Session.reply with { takes }",
  continue: "calls were settled: call Session.continue"
}

/** Returns the error of an operation on a nested run that only its parent continues. */
export const nestedIn = ({ id }: Records.Parent, instead: string): SessionData.SessionError =>
  new SessionData.SessionError({
    reason: "nested",
    detail: `the session is a run inside ${JSON.stringify(id)}: ${instead} that session`
  })

/**
 * Writes the session as one record, and removes the earlier records and the journals of its nested runs. Refuses a
 * session that has work left, and a nested run: its next run, or its parent, needs those records.
 */
export const snapshot = ({ id, version }: Kept): Effect.Effect<
  Kept,
  SessionData.SessionError | Journals.SessionConflict | Journals.StoreError,
  Journals.Store
> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    const { state, version: actual } = yield* read(id)
    if (actual !== version) return yield* new Journals.SessionConflict({ id, expected: version, actual })
    if (state.parent !== undefined) return yield* nestedIn(state.parent, "take the snapshot of")
    const next = state.run !== undefined ? "resume" : state.inbox.length > 0 ? "reply" : States.next(state)
    if (next !== "wait" && next !== "nothing") {
      return yield* new SessionData.SessionError({ reason: "unfinished", detail: left[next] })
    }
    const session = States.sessionOf(state)
    const record: Records.Record = {
      ...States.openedBy(state, session),
      after: state.fingerprint,
      ...(state.receipts.size === 0 ? {} : { receipts: Array.from(state.receipts.values()) })
    }
    States.apply(state, record)
    const snapshotVersion = yield* store.append(id, version, [record], { summary: States.summaryOf(state) })
    yield* store.truncate(id, snapshotVersion)
    const { nested, resumable, suspensions } = session
    const isWaiting = (nested ?? resumable) !== undefined || suspensions.some(({ path }) => path !== undefined)
    if (!isWaiting) yield* removeWithin(id)
    return keptOf(id, state, snapshotVersion)
  })

/** Lists the ids of the sessions that have work left. */
export const unfinished: Stream.Stream<string, Journals.StoreError, Journals.Store> = Stream.unwrap(
  Effect.map(Journals.Store, (store) => store.unfinished)
)

/** Lists the sessions of the store. */
export const list = (
  options?: Journals.ListOptions
): Stream.Stream<Journals.Listed, Journals.StoreError, Journals.Store> =>
  Stream.unwrap(Effect.map(Journals.Store, (store) => {
    checkListed("Session.list", options)
    return store.list(options)
  }))

/** Counts the sessions of the store by their status. */
export const count = (
  options?: Journals.ListOptions
): Effect.Effect<Journals.Counts, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) => {
    checkListed("Session.count", options)
    return store.count(options)
  })

/** Refuses options of a list that are not known, and a status that no session has. */
const checkListed = (operation: string, options: Journals.ListOptions | undefined): void => {
  checkNames(
    operation,
    options,
    { prefix: Values.text, status: Values.oneOf(...SessionData.Status.literals) } satisfies NamesOf<
      Journals.ListOptions
    >
  )
}

/** Removes a session. The nested runs go first, so that a failed removal can be repeated. */
export const remove = (id: string): Effect.Effect<void, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    yield* removeWithin(id)
    yield* store.delete(id)
  })

/** Lists the journals of nested runs. */
const listWithin = (store: Journals.Service, id: string): Effect.Effect<ReadonlyArray<string>, Journals.StoreError> =>
  Effect.map(
    Stream.runCollect(store.list({ prefix: `${id}/` })),
    (listed) => listed.flatMap((other) => Nested.isWithin(id, other.id) ? [other.id] : [])
  )

/**
 * Reads the steps of the nested runs that some calls have started since a time, at any depth, as their journals have
 * them. A call that waited has runs from before, which belong to an earlier run around it.
 */
const stepsWithin = (
  store: Journals.Service,
  id: string,
  calls: Iterable<string>,
  since: number
): Effect.Effect<ReadonlyArray<RunJournal.Inside>, Journals.StoreError> =>
  Effect.gen(function*() {
    const isOurs = Nested.isOfCalls(id, calls)
    const steps = new Map<string, RunJournal.Inside>()
    for (const other of (yield* listWithin(store, id)).filter(isOurs)) {
      let isSince = false
      yield* Stream.runForEach(store.read(other), ({ record }) =>
        Effect.sync(() => {
          if (record._tag === "RunStarted" && record.resumes !== true) isSince = record.startedAt >= since
          if (!isSince || !("requestId" in record && "stepIndex" in record)) return
          const key = JSON.stringify([other, record.requestId, record.stepIndex])
          const before = steps.get(key) ?? { notes: {} }
          const notes = "notes" in record ? { ...before.notes, ...record.notes } : before.notes
          const usage = "response" in record ? record.response?.usage : before.usage
          // A further request of the step discards the reply.
          const isReplied = record._tag !== "StepPrepared" && usage !== undefined
          steps.set(key, isReplied ? { notes, usage } : { notes })
        }))
    }
    return Array.from(steps.values())
  })

/** Reads the steps of the runs that the calls of the open run have started. */
export const insideOf = (
  store: Journals.Service,
  { id = "", run, turn }: States.State
): Effect.Effect<ReadonlyArray<RunJournal.Inside>> => {
  const asked = run?.steps.flatMap(({ result: { response: { toolCalls } } }) => toolCalls) ?? []
  // A turn of an earlier run is no step of this one, and leaves the table when its last call is answered.
  const calls = new Set([...asked.map((call) => call.id), ...turn?.calls.keys() ?? [], ...run?.came.keys() ?? []])
  if (calls.size === 0) return Effect.succeed([])
  return Effect.orDie(stepsWithin(store, id, calls, run?.startedAt ?? 0))
}

/** Removes the journals of nested runs. */
const removeWithin = (id: string): Effect.Effect<void, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    yield* Effect.forEach(yield* listWithin(store, id), (other) => store.delete(other), { discard: true })
  })

/** Refuses an id that names no session. */
export const checkId = (id: string): Effect.Effect<void> =>
  id === "" ? Effect.die(new TypeError("the id of a session must not be empty")) : Effect.void

export const openedWith = (session: SessionData.Session, origin: Records.Origin = {}): Records.Opened => ({
  _tag: "Opened",
  format: 1,
  session,
  ...origin
})

/**
 * Options of a session that is created in a store.
 *
 * @category options
 * @since 0.1.0
 */
export interface OpenOptions extends Omit<SessionData.Options, "id"> {
  /** The principal, the agent and the data of a server, which stay with the session. None by default. */
  readonly origin?: Records.Origin
}

/**
 * Returns the session with this id, and creates it from the options if it does not exist. Concurrent callers get the
 * same session.
 */
export const open = (
  id: string,
  { origin, ...options }: OpenOptions = {}
): Effect.Effect<Kept, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    yield* checkId(id)
    checkNames("Session.open", options, SessionData.knownOptions)
    const store = yield* Journals.Store
    const known = yield* load(id)
    if (known !== undefined) return known
    const state = States.initial(id)
    const record = openedWith(SessionData.make({ ...options, id }), origin)
    States.apply(state, record)
    return yield* store.append(id, 0, [record], { summary: States.summaryOf(state) }).pipe(
      Effect.map((version) => keptOf(id, state, version)),
      Effect.catchTag("SessionConflict", begunElsewhere)
    )
  })

/**
 * Returns the session that another writer created at the same time. A journal with a version and no records is
 * damaged.
 */
const begunElsewhere = (
  { actual, id }: Journals.SessionConflict
): Effect.Effect<Kept, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(load(id), (kept) =>
    kept === undefined
      ? Journals.damaged(id, 1, `the store is at version ${actual} and has no record`)
      : Effect.succeed(kept))

/** Returns what a request reads of the session of a claim, under the claim. */
const under = <R>(
  claim: Claims.OwnClaim,
  request: Effect.Effect<Kept, Journals.StoreError, R>
): Effect.Effect<Claimed, Claims.SessionClaimed | Journals.StoreError, R> =>
  Effect.map(
    Effect.raceFirst(claim.request("read", request), Deferred.await(claim.lost)),
    (kept) => ({ ...kept, owner: claim.owner, claim })
  )

/** Returns the session as the store now has it, under the same claim: at version 0 where it was removed. */
export const reload = <K extends Kept>(
  { claim, id }: K & { readonly claim?: Claims.HeldClaim }
): Effect.Effect<Reloaded<K>, Claims.SessionClaimed | Journals.StoreError, Journals.Store> => {
  const now = Effect.map(read(id), ({ state, version }) => keptOf(id, state, version))
  const reloaded = claim === undefined ? now : Effect.suspend(() => under(Claims.own(claim), now))
  return reloaded as unknown as Effect.Effect<
    Reloaded<K>,
    Claims.SessionClaimed | Journals.StoreError,
    Journals.Store
  >
}

/**
 * Claims a session, or adopts a claim that was taken, and returns the session. The claim is renewed until the scope
 * closes, and released then.
 */
export const claim = (
  given: string | Claims.HeldClaim,
  options: Claims.Options = {}
): Effect.Effect<Claimed, Claims.SessionClaimed | Journals.StoreError, Journals.Store | Scope.Scope> =>
  Effect.gen(function*() {
    if (typeof given !== "string") return yield* readUnder(yield* held(given))
    yield* checkId(given)
    const claim = yield* Claims.make(given, options)
    // The claim may have been taken when this is interrupted.
    yield* Effect.addFinalizer(() => claim.release)
    yield* claim.take
    return yield* readUnder(yield* held(claim))
  })

const readUnder = (claim: Claims.OwnClaim) => under(claim, open(claim.id))

/** Renews a claim until the scope closes, which releases it. */
const held = (given: Claims.HeldClaim): Effect.Effect<Claims.OwnClaim, never, Scope.Scope> =>
  Effect.suspend(() => {
    const claim = Claims.own(given)
    return Effect.as(Effect.andThen(Effect.addFinalizer(() => claim.release), claim.hold), claim)
  })

/** Returns the parent of the runs of a program, under a claim that is renewed until the scope closes. */
export const program = (
  given: Claims.HeldClaim,
  afterCrash: Tool.AfterCrash | undefined
): Effect.Effect<Writers.Parent, never, Journals.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const store = yield* Journals.Store
    const claim = yield* held(given)
    const failed = yield* Deferred.make<never, Writers.KeepError>()
    yield* Effect.forkScoped(Effect.catch(Deferred.await(claim.lost), (lost) => Deferred.fail(failed, lost)))
    return {
      id: claim.id,
      store,
      failed,
      afterCrash,
      isAnswerable: false,
      claim,
      isLeft: true,
      recorder: undefined
    }
  })

/**
 * The wait of a call that has not started.
 *
 * @category models
 * @since 0.1.0
 */
export interface WaitsFor extends Wait {
  /**
   * The reason: `"permit"` for a place of its run or of the application's `Limits`, `"key"` for a permit by name,
   * `"exclusive"` for a call that runs alone, or until it may run alone itself.
   */
  readonly reason: Wait["reason"]
  /** The name of the permit, where the reason is `"key"`. Left out otherwise. */
  readonly key?: string
  /** The ids of the calls of its run that it waits for, three at most. Left out where there are none. */
  readonly behind?: ReadonlyArray<string>
  /** `true` where another run, such as one inside a handler, has what it waits for. Left out otherwise. */
  readonly elsewhere?: boolean
  /**
   * The time at which it began to wait for its place in the run or, once it has its place, for its permits, in
   * milliseconds since 1970.
   */
  readonly since: number
}

/**
 * A call of the unfinished turn, with what it waits for.
 *
 * @category models
 * @since 0.1.0
 */
export interface InspectedCall extends InterruptedCall {
  /**
   * The wait of the call for its turn. Left out where it does not wait, and where another process runs the session:
   * waits are in no journal.
   */
  readonly waitsFor?: WaitsFor
}

/**
 * The current activity of a session.
 *
 * @category models
 * @since 0.1.0
 */
export interface Inspected {
  /** The id of the session. */
  readonly id: string
  /** The version of its journal. */
  readonly version: number
  /** The work that is left, which names the operation to call. */
  readonly next: States.Next
  /** The calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InspectedCall>
  /** Number of times that the interrupted run was resumed by another process. 0 where there is none. */
  readonly resumptions: number
  /** The claim of the session, which may have ended. Left out where there is none. */
  readonly claim?: Journals.Claim
}

/** Reads the current activity of a session, and changes nothing. */
export const inspect = (id: string): Effect.Effect<Inspected | undefined, Journals.StoreError, Journals.Store> =>
  Effect.gen(function*() {
    const { state, version } = yield* read(id)
    if (version === 0) return undefined
    const store = yield* Journals.Store
    const claim = yield* store.claimOf(id)
    const waits = new Map(Writers.waitsIn(store, id).map(({ id, ...waitsFor }) => [id, waitsFor]))
    return {
      id,
      version,
      next: States.next(state),
      calls: callsIn(state.turn).map((call) => {
        const waitsFor = isSettled(call) ? undefined : waits.get(call.toolCall.id)
        return waitsFor === undefined ? call : { ...call, waitsFor }
      }),
      resumptions: state.run?.resumptions ?? 0,
      ...(claim === undefined ? {} : { claim })
    }
  })

/** Returns the receipt of a message, a verdict or a stop by its id. */
export const receipt = ({ state }: Kept, id: string): Records.Receipt | undefined => state.receipts.get(id)

/** Returns the work that is left in a session. */
export const next = ({ state }: Kept): States.Next => States.next(state)

// The view of a server.

/**
 * The run without a recorded end, as {@link View} has it.
 *
 * @category models
 * @since 0.1.0
 */
export interface ViewedRun {
  /** The id of the run. */
  readonly requestId: string
  /** The operation of `Session` that started the run. */
  readonly operation: Records.RunStarted["operation"]
  /** Time of the first start, in milliseconds since 1970. */
  readonly startedAt: number
  /**
   * The command that the run took: a submitted message, or a message or an answer with an id. Left out where it took
   * none.
   */
  readonly takes?: {
    /** The id of the command. */
    readonly id: string
    /** The submitted message. Left out for any other command. */
    readonly message?: Message.Message
  }
  /** Number of whole steps. */
  readonly steps: number
  /** Usage of the whole steps, of discarded replies and of nested runs. `null` where the models reported none. */
  readonly usage: Response.Usage | null
  /** The ids of the suspensions that were settled while the run was open. They count at its end. */
  readonly settled: ReadonlyArray<string>
  /** The process that started or resumed the run last, by its `Journal.CurrentProcess`. Left out where unknown. */
  readonly processName?: string
  /** The session as the run found it. */
  readonly before: {
    /** The conversation. */
    readonly thread: Thread.Thread
    /** The open suspensions. */
    readonly suspensions: ReadonlyArray<Event.Suspension>
  }
}

/**
 * The facts that a server needs of a session beside its conversation.
 *
 * @category models
 * @since 0.1.0
 */
export interface View {
  /** The run without a recorded end, and what it took. Left out where there is none. */
  readonly run?: ViewedRun
  /** The last run that has ended. Left out where no run has ended. */
  readonly lastRun?: Records.LastRun & {
    /** The id of the run. Left out while the next run is open, and where a snapshot has replaced its records. */
    readonly requestId?: string
  }
  /** The calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InterruptedCall>
  /** The open suspensions, in call order. */
  readonly waiting: ReadonlyArray<Event.Suspension>
  /**
   * The run in which they began to wait. It is one for all of them, since no run starts while a call waits. Left out
   * where none waits, and where a program handed over the session as data.
   */
  readonly waitingSince?: string
  /** Submitted messages that no run has taken, oldest first. */
  readonly inbox: ReadonlyArray<Records.MessageSubmitted>
  /**
   * The receipts of commands, by their ids: of the last 1,000, and of each earlier one that has no outcome yet.
   */
  readonly receipts: ReadonlyMap<string, Records.Receipt>
  /** Number of times in a row that a run failed, since the last whole step. */
  readonly failures: number
  /** The tools of the client that the last run served. */
  readonly clientTools: Records.ClientTools
  /** The size of the session since its last snapshot. */
  readonly size: {
    /** Bytes of the records as JSON. */
    readonly bytes: number
    /** Turns of the model. */
    readonly turns: number
  }
}

const runIn = (run: States.Run): ViewedRun => ({
  requestId: run.requestId,
  operation: run.operation,
  startedAt: run.startedAt,
  ...(run.taken === undefined ? {} : { takes: takenBy(run.taken) }),
  steps: run.steps.length,
  usage: States.totalUsageOf(run),
  settled: run.settlements.map(({ id }) => id),
  ...(run.processName === undefined ? {} : { processName: run.processName }),
  before: {
    thread: SharedMessages.plain(States.threadOf(run.before)),
    suspensions: States.suspensionsOf(run.before)
  }
})

const takenBy = ({ id, message }: NonNullable<States.Run["taken"]>): NonNullable<ViewedRun["takes"]> => ({
  id,
  ...(message === undefined ? {} : { message: message.message })
})

/** Returns the facts that a server needs of a session. */
export const view = ({ state }: Pick<Kept, "state">): View => {
  const { clientTools, ended, failures, inbox, lastRun, receipts, run, size, turn } = state
  const asker = States.askerOf(state)
  return {
    ...(run === undefined ? {} : { run: runIn(run) }),
    ...(lastRun === undefined
      ? {}
      : { lastRun: { ...(ended === undefined ? {} : { requestId: ended.requestId }), ...lastRun } }),
    calls: callsIn(turn),
    waiting: States.suspensionsOf(state),
    ...(asker === undefined ? {} : { waitingSince: asker }),
    inbox,
    receipts: new Map(receipts),
    failures,
    clientTools,
    size
  }
}

/** Tells whether an owner can do the work that is left in a session. */
export const isUnfinished = ({ state }: Kept): boolean => Journals.isUnfinished(States.next(state))
