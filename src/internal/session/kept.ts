/**
 * Kept sessions: opened, loaded, claimed, and recorded while an operation runs. Each function reads the journal once
 * and folds its records. Public as `Session`.
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
import * as Accounts from "../permits/account.ts"
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
 * A call of the turn where a run was interrupted.
 *
 * @category models
 */
export interface InterruptedCall {
  /** The call, with its handler's arguments. */
  readonly toolCall: Message.ToolCall
  /**
   * Call state. `Asked`: nothing has begun. `Granted`: approved, or given the answers it waited for. `Started`: an
   * effect may have happened. `Waiting`: for an outside answer. `Answered`: `message` has its answer.
   */
  readonly state: States.Call["_tag"]
  /** Number of started attempts. */
  readonly attempt: number
  /** Key identifying the call to an idempotent tool. Left out if no run has asked for the call. */
  readonly idempotencyKey?: string
  /** Answer. Left out until available. */
  readonly message?: Message.Message
}

/**
 * A run with a recorded start and no recorded end: active elsewhere, interrupted, or killed with its process.
 *
 * @category models
 */
export interface Interrupted {
  /** Id of the run. */
  readonly requestId: string
  /** `Session` operation that started the run. */
  readonly operation: Records.RunStarted["operation"]
  /** Time of the first start, in milliseconds since 1970. */
  readonly startedAt: number
  /** Deadline, in milliseconds since 1970. Left out without a deadline. */
  readonly deadlineAt?: number
  /** Number of times the run was resumed by another process than before. */
  readonly resumptions: number
  /** Whole steps, in order. */
  readonly steps: ReadonlyArray<States.WholeStep>
  /** Reply message in the unfinished turn. Left out if absent. */
  readonly reply?: Message.Message
  /** Calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InterruptedCall>
}

/**
 * A session as stored.
 *
 * @category models
 */
export interface Kept {
  /** Session id. */
  readonly id: string
  /** Journal version the session was read at. The next operation appends after this version, or conflicts. */
  readonly version: number
  /** The session, including the whole steps of an interrupted run. */
  readonly session: SessionData.Session
  /** The run without a recorded end. Left out if absent. */
  readonly interrupted?: Interrupted
  /** Stop request for this run. Left out if absent. */
  readonly stop?: Records.StopRequested
  /** Submitted messages no run has taken, oldest first. Left out if empty. */
  readonly submitted?: ReadonlyArray<Records.MessageSubmitted>
  /** Owner of the claim it was loaded under (`Session.claim`). Left out without a claim. */
  readonly owner?: string
  /** Principal, agent and data with which a server created the session. `{}` elsewhere. */
  readonly origin: Records.Origin
  /** State folded from the records. Its fields are internal. */
  readonly state: States.State
}

/**
 * A claimed session: the result of `Session.open`, with its claim.
 *
 * @category models
 */
export interface Claimed extends Kept {
  /** Claim owner. */
  readonly owner: string
  /** Claim for the session's operations. */
  readonly claim: Claims.HeldClaim
}

/**
 * Result of a recorded operation: the session as now stored, under the same claim, and the operation's value.
 *
 * @category models
 */
export type Outcome<A, K extends Kept = Kept> =
  & Reloaded<K>
  & {
    /** Value the operation succeeded with. */
    readonly value: A
  }

/**
 * A reloaded session, under the same claim.
 *
 * @category models
 */
export type Reloaded<K extends Kept> = K extends Claimed ? Claimed : Kept

/** Returns a state's session as seen by programs. */
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
 * A journal's fold: the session at the version of the last applied record.
 *
 * @category models
 */
export interface Fold {
  /** Session id. */
  readonly id: string
  /** Version of the last applied record, 0 before the first. */
  readonly version: number
  /** Session at that version, as returned by `Session.load`. Later records do not change it here. */
  readonly kept: Kept
  /**
   * Whole turns of its conversation. `kept` copies the session; the other members cost little, for a reader checking
   * after each record.
   */
  readonly thread: Thread.Thread
  /** Calls of its unfinished turn, as in `Session.view`. */
  readonly calls: ReadonlyArray<InterruptedCall>
  /** Usage of its open run so far. `null` without a run, and if the models reported nothing. */
  readonly usage: Response.Usage | null
  /** The nested runs' part of `usage`. `null` if they used nothing. */
  readonly nestedUsage: Response.Usage | null
  /** Work left at that version, as returned by `Session.next`. */
  readonly next: States.Next
  /** Applies the journal's next record. A record in the wrong position changes nothing. */
  readonly apply: (entry: Records.Entry) => void
  /** Returns an independent fold at the same version. */
  readonly copy: () => Fold
}

/** Folds a journal's records. A state already handed out is copied before changes. */
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

/** Returns a journal's fold before its first record. */
export const fold = (id: string): Fold => new Folded(id, States.initial(id), 0)

/** Returns `true` if a call will not start again in its run. */
const isSettled = ({ state }: InterruptedCall): boolean => state === "Answered" || state === "Waiting"

// Recorded operations.

/** Returns an operation's writer, which checks for commands until the scope closes. */
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

/** Fails when an operation must end: it cannot write, or its claim is lost or given back. */
export const overOf = (
  { claim, failed }: Pick<Writers.Parent, "claim" | "failed">
): Effect.Effect<never, Writers.KeepError> =>
  claim === undefined ? Deferred.await(failed) : Effect.raceFirst(Deferred.await(failed), Deferred.await(claim.closing))

/** Runs an operation on a session, appending its records as it runs. */
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
 * Returns an operation's events, appending its records as it runs. Its scope closes when a pull ends, fails or is
 * interrupted: the run ends first, with its last appends, and then the writer leaves.
 */
const recordedBy = <A, E, R, RW>(
  writer: Effect.Effect<Writers.Writer, never, RW>,
  events: (writer: Writers.Writer) => Stream.Stream<A, E, R>
): Stream.Stream<A, E, R | Exclude<RW, Scope.Scope>> =>
  Pulled.stream((scope) =>
    Effect.flatMap(Scope.provide(writer, scope), (writer) =>
      Effect.flatMap(
        Scope.addFinalizer(scope, writer.leave),
        // A stream may fork the scope as soon as this is called: its additions must close before.
        () => Pulled.open(Stream.provideService(events(writer), Writers.CurrentWriter, writer), scope)
      ))
  )

/** Returns the events of a session operation, appending its records as it runs. */
export const keepStream = <A, E, R>(
  kept: Kept,
  operation: (session: SessionData.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | Writers.KeepError, R | Journals.Store> =>
  recordedBy(
    writerOf(kept),
    (writer) => Stream.interruptWhen(Stream.suspend(() => operation(kept.session)), overOf(writer))
  )

/**
 * Returns a nested run's events, recorded in a separate journal. If recording fails, its parent is stopped, and the run
 * waits for that.
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

/** Runs a store operation needed by a parent. If it fails, the parent is stopped. */
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

// Kept sessions.

/** State folded from a journal's records, and the version of the last record: 0 if empty. */
interface Read {
  readonly state: States.State
  readonly version: number
}

/** Folds the records after a state's version into the state. */
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

/** Returns the kept session with this id, if any. */
export const load = (id: string): Effect.Effect<Kept | undefined, Journals.StoreError, Journals.Store> =>
  Effect.map(read(id), ({ state, version }) => version === 0 ? undefined : keptOf(id, state, version))

/** Returns a journal's version. */
export const versionOf = (id: string): Effect.Effect<number, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) => store.version(id))

const left: Record<Exclude<States.Next, "wait" | "nothing">, string> = {
  resume: "a run is unfinished: call Session.resume, or Session.abandon",
  reply: "a message waits for a run: a worker takes it, or Session.reply with { takes }",
  continue: "calls were settled: call Session.continue"
}

/** Returns the error for an operation on a nested run, which only its parent continues. */
export const nestedIn = ({ id }: Records.Parent, instead: string): SessionData.SessionError =>
  new SessionData.SessionError({
    reason: "nested",
    detail: `the session is a run inside ${JSON.stringify(id)}: ${instead} that session`
  })

/**
 * Writes the session as one record, and removes earlier records and the journals of nested runs. Refuses a session with
 * work left, and a nested run: its next run, or its parent, needs these records.
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

/** Lists the ids of sessions with work left. */
export const unfinished: Stream.Stream<string, Journals.StoreError, Journals.Store> = Stream.unwrap(
  Effect.map(Journals.Store, (store) => store.unfinished)
)

/** Lists the kept sessions. */
export const list = (
  options?: Journals.ListOptions
): Stream.Stream<Journals.Listed, Journals.StoreError, Journals.Store> =>
  Stream.unwrap(Effect.map(Journals.Store, (store) => {
    checkListed("Session.list", options)
    return store.list(options)
  }))

/** Counts the kept sessions by status. */
export const count = (
  options?: Journals.ListOptions
): Effect.Effect<Journals.Counts, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(Journals.Store, (store) => {
    checkListed("Session.count", options)
    return store.count(options)
  })

/** Refuses unknown list options, and an unknown status. */
const checkListed = (operation: string, options: Journals.ListOptions | undefined): void => {
  checkNames(
    operation,
    options,
    { prefix: Values.text, status: Values.oneOf(...SessionData.Status.literals) } satisfies NamesOf<
      Journals.ListOptions
    >
  )
}

/** Removes a session. Nested runs go first, so a failed removal can be repeated. */
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
 * Reads the steps of nested runs started by some calls since a time, at any depth, from their journals. A call that
 * waited may have earlier runs, which belong to an earlier enclosing run.
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
    const requests: Array<RunJournal.Inside> = []
    for (const other of (yield* listWithin(store, id)).filter(isOurs)) {
      let isSince = false
      yield* Stream.runForEach(store.read(other), ({ record }) =>
        Effect.sync(() => {
          if (record._tag === "RunStarted" && record.resumes !== true) isSince = record.startedAt >= since
          if (!isSince) return
          if ("nestedSpent" in record) requests.push(Accounts.insideOf(record.nestedSpent))
          if (!("requestId" in record && "stepIndex" in record)) return
          const key = JSON.stringify([other, record.requestId, record.stepIndex])
          const before = steps.get(key) ?? { notes: {} }
          const notes = "notes" in record ? { ...before.notes, ...record.notes } : before.notes
          const usage = "response" in record ? record.response?.usage : before.usage
          // A further request of the step discards the reply.
          const isReplied = record._tag !== "StepPrepared" && usage !== undefined
          steps.set(key, isReplied ? { notes, usage } : { notes })
        }))
    }
    return [...steps.values(), ...requests]
  })

/** Reads the steps of runs started by the open run's calls, and the cost of those calls' own requests. */
export const insideOf = (
  store: Journals.Service,
  { id = "", run, turn }: States.State
): Effect.Effect<ReadonlyArray<RunJournal.Inside>> => {
  const asked = run?.steps.flatMap(({ result: { response: { toolCalls } } }) => toolCalls) ?? []
  // An earlier run's turn is not a step of this run, and leaves the table when its last call is answered.
  const calls = new Set([...asked.map((call) => call.id), ...turn?.calls.keys() ?? [], ...run?.came.keys() ?? []])
  if (calls.size === 0) return Effect.succeed([])
  const own = Accounts.insideOf(run?.nestedSpent)
  return Effect.map(Effect.orDie(stepsWithin(store, id, calls, run?.startedAt ?? 0)), (steps) => [own, ...steps])
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
 * Options for a session created in a store.
 *
 * @category options
 */
export interface OpenOptions extends Omit<SessionData.Options, "id"> {
  /** Principal, agent and data from a server, kept with the session. None by default. */
  readonly origin?: Records.Origin
}

/** Returns the session with this id, or creates it from the options. Concurrent callers get the same session. */
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

/** Returns the session another writer created at the same time. A journal with a version but no records is damaged. */
const begunElsewhere = (
  { actual, id }: Journals.SessionConflict
): Effect.Effect<Kept, Journals.StoreError, Journals.Store> =>
  Effect.flatMap(load(id), (kept) =>
    kept === undefined
      ? Journals.damaged(id, 1, `the store is at version ${actual} and has no record`)
      : Effect.succeed(kept))

/** Returns the result of reading a claimed session, under the claim. */
const under = <R>(
  claim: Claims.OwnClaim,
  request: Effect.Effect<Kept, Journals.StoreError, R>
): Effect.Effect<Claimed, Claims.SessionClaimed | Journals.StoreError, R> =>
  Effect.map(
    Effect.raceFirst(claim.request("read", request), Deferred.await(claim.lost)),
    (kept) => ({ ...kept, owner: claim.owner, claim })
  )

/** Returns the session as now stored, under the same claim: at version 0 if removed. */
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
 * Claims a session, or adopts a claim already taken, and returns the session. The claim is renewed until the scope
 * closes, and then released.
 */
export const claim = (
  given: string | Claims.HeldClaim,
  options: Claims.Options = {}
): Effect.Effect<Claimed, Claims.SessionClaimed | Journals.StoreError, Journals.Store | Scope.Scope> =>
  Effect.gen(function*() {
    if (typeof given !== "string") return yield* readUnder(yield* held(given))
    yield* checkId(given)
    const claim = yield* Claims.make(given, options)
    // The claim may already be taken when this is interrupted.
    yield* Effect.addFinalizer(() => claim.release)
    yield* claim.take
    return yield* readUnder(yield* held(claim))
  })

const readUnder = (claim: Claims.OwnClaim) => under(claim, open(claim.id))

/** Renews a claim until the scope closes, then releases the claim. */
const held = (given: Claims.HeldClaim): Effect.Effect<Claims.OwnClaim, never, Scope.Scope> =>
  Effect.suspend(() => {
    const claim = Claims.own(given)
    return Effect.as(Effect.andThen(Effect.addFinalizer(() => claim.release), claim.hold), claim)
  })

/** Returns the parent of a program's runs, under a claim renewed until the scope closes. */
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
 * The wait of an unstarted call.
 *
 * @category models
 */
export interface WaitsFor extends Wait {
  /**
   * Reason: `"permit"` for a place in its run or in the application's `Limits`, `"key"` for a named permit,
   * `"exclusive"` for a call running alone, or until it may run alone itself.
   */
  readonly reason: Wait["reason"]
  /** Permit name, for reason `"key"`. Left out otherwise. */
  readonly key?: string
  /** Ids of the calls ahead in its run, at most three. Left out if empty. */
  readonly behind?: ReadonlyArray<string>
  /** `true` if another run holds the awaited permit, such as a run inside a handler. Left out otherwise. */
  readonly elsewhere?: boolean
  /** Time it began to wait for its place in the run or, with a place, for its permits, in milliseconds since 1970. */
  readonly since: number
}

/**
 * A call of the unfinished turn, with its wait.
 *
 * @category models
 */
export interface InspectedCall extends InterruptedCall {
  /**
   * The call's wait for its turn. Left out if not waiting, and if another process runs the session: waits are not
   * journaled.
   */
  readonly waitsFor?: WaitsFor
}

/**
 * Current activity of a session.
 *
 * @category models
 */
export interface Inspected {
  /** Session id. */
  readonly id: string
  /** Journal version. */
  readonly version: number
  /** Work left, naming the operation to call. */
  readonly next: States.Next
  /** Calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InspectedCall>
  /** Number of times the interrupted run was resumed by another process. 0 if nothing was interrupted. */
  readonly resumptions: number
  /** Session claim, possibly ended. Left out if absent. */
  readonly claim?: Journals.Claim
}

/** Reads a session's current activity, without changing anything. */
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

/** Returns the receipt of a message, a verdict or a stop, by id. */
export const receipt = ({ state }: Kept, id: string): Records.Receipt | undefined => state.receipts.get(id)

/** Returns the work left in a session. */
export const next = ({ state }: Kept): States.Next => States.next(state)

// The view of a server.

/**
 * The run without a recorded end, as in {@link View}.
 *
 * @category models
 */
export interface ViewedRun {
  /** Id of the run. */
  readonly requestId: string
  /** `Session` operation that started the run. */
  readonly operation: Records.RunStarted["operation"]
  /** Time of the first start, in milliseconds since 1970. */
  readonly startedAt: number
  /** Command taken by the run: a submitted message, or a message or an answer with an id. Left out if absent. */
  readonly takes?: {
    /** Command id. */
    readonly id: string
    /** Submitted message. Left out for other commands. */
    readonly message?: Message.Message
  }
  /** Number of whole steps. */
  readonly steps: number
  /** Usage of the whole steps, discarded replies and nested runs. `null` if the models reported nothing. */
  readonly usage: Response.Usage | null
  /** Ids of suspensions settled while the run was open. They count at its end. */
  readonly settled: ReadonlyArray<string>
  /** Process that last started or resumed the run, by its `Journal.CurrentProcess`. Left out if unknown. */
  readonly processName?: string
  /** The session as found by the run. */
  readonly before: {
    /** Conversation. */
    readonly thread: Thread.Thread
    /** Open suspensions. */
    readonly suspensions: ReadonlyArray<Event.Suspension>
  }
}

/**
 * Session facts for a server, beside its conversation.
 *
 * @category models
 */
export interface View {
  /** The run without a recorded end, and the command it took. Left out if absent. */
  readonly run?: ViewedRun
  /** The last ended run. Left out if no run has ended. */
  readonly lastRun?: Records.LastRun & {
    /** Id of the run. Left out while the next run is open, and after a snapshot has replaced its records. */
    readonly requestId?: string
  }
  /** The last run's typed answer. Left out if it gave none, and while another run is under way. */
  readonly output?: Records.LastRun["output"]
  /** Calls of the unfinished turn, in call order. */
  readonly calls: ReadonlyArray<InterruptedCall>
  /** Open suspensions, in call order. */
  readonly waiting: ReadonlyArray<Event.Suspension>
  /**
   * The run where they began to wait: a single run, since no run starts while a call waits. Left out if no call waits,
   * and if a program handed over the session as data.
   */
  readonly waitingSince?: string
  /** Submitted messages no run has taken, oldest first. */
  readonly inbox: ReadonlyArray<Records.MessageSubmitted>
  /** Command receipts, by id: the last 1,000, and all earlier receipts without an outcome. */
  readonly receipts: ReadonlyMap<string, Records.Receipt>
  /** Number of consecutive run failures since the last whole step. */
  readonly failures: number
  /** Client tools served by the last run. */
  readonly clientTools: Records.ClientTools
  /** Session size since its last snapshot. */
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

/** Returns the session facts for a server. */
export const view = ({ state }: Pick<Kept, "state">): View => {
  const { clientTools, ended, failures, inbox, lastRun, receipts, run, size, turn } = state
  const asker = States.askerOf(state)
  return {
    ...(run === undefined ? {} : { run: runIn(run) }),
    ...(lastRun === undefined
      ? {}
      : { lastRun: { ...(ended === undefined ? {} : { requestId: ended.requestId }), ...lastRun } }),
    ...(run === undefined && lastRun?.output !== undefined ? { output: lastRun.output } : {}),
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

/** Returns `true` if an owner can do the work left in a session. */
export const isUnfinished = ({ state }: Kept): boolean => Journals.isUnfinished(States.next(state))
