/**
 * The recorder of an operation: it appends the records of what happens, one append at a time, whichever fiber of the
 * operation writes. What cannot be written must not go on: the operation is stopped where an append fails. A session that
 * is opened or loaded here is what an operation is recorded behind. Public as `Session.keep`, `Session.open` and
 * `Session.load`.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import * as Settings from "../ask/options.ts"
import { Running, Worker } from "../stop/ownedFibers.ts"
import type * as Records from "./records.ts"
import * as Reducer from "./reducer.ts"
import * as SessionState from "./state.ts"
import * as Stores from "./store.ts"

/** Whether a record belongs to a run that has started. */
const isOfRun = (record: Records.Record): boolean => "requestId" in record && record._tag !== "RunStarted"

/** Appends the records of one operation, one append at a time, whichever of its fibers writes. */
export class Recorder {
  /** The session as the journal has it. */
  session: SessionState.Session
  version: number
  /** Fails when an append does. The operation is stopped then. */
  readonly failed = Deferred.makeUnsafe<never, Stores.SessionConflict | Stores.StoreError>()
  private readonly id: string
  private readonly store: Stores.Service
  private readonly lock = Semaphore.makeUnsafe(1)
  /** Owns the appends that belong to no run. */
  private readonly own: Running
  /** An append was abandoned: whether it has been written is unknown, and nothing may be written after it. */
  private isClosed = false

  constructor({ id, session, version }: Records.Kept, store: Stores.Service, context: Context.Context<never>) {
    this.own = new Running(Duration.toMillis(Settings.defaultGrace), context)
    this.id = id
    this.session = session
    this.version = version
    this.store = store
  }

  /**
   * Appends records, as a part of the run that owns `running`, which abandons the append where its own stop does not let it
   * finish. What cannot be written must not go on: where the append fails, the writer waits here until the operation is
   * stopped.
   */
  append(records: Records.Records, after: SessionState.Session, running = this.own): Effect.Effect<void> {
    return Effect.suspend(() => {
      const writer = new Worker(running, {
        kind: "store",
        id: this.id,
        name: "append",
        onSoftStop: "grace",
        once: true,
        onAbandoned: () => {
          this.isClosed = true
        }
      })
      return writer.do(this.lock.withPermit(this.appendNow(records, after)), Exit.void)
    }).pipe(
      Effect.catch((error) => Effect.andThen(Deferred.fail(this.failed, error), Effect.never))
    )
  }

  private appendNow(
    records: Records.Records,
    after: SessionState.Session
  ): Effect.Effect<void, Stores.SessionConflict | Stores.StoreError> {
    return Effect.suspend(() => {
      if (this.isClosed) {
        // The stopped run ends. Nothing else may begin.
        return records.every(isOfRun) ? Effect.void : Effect.fail(
          new Stores.StoreError({
            reason: "unavailable",
            operation: "append",
            id: this.id,
            cause: "an append before it did not end within the grace period; open the session again"
          })
        )
      }
      return this.store.append(this.id, this.version, records).pipe(
        Effect.map((version) => {
          if (this.isClosed) return
          this.version = version
          this.session = after
        }),
        Effect.uninterruptible
      )
    })
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
  const whole: Records.Records = recorder.session === session ? records : [{ _tag: "Opened", session }, ...records]
  return Effect.as(recorder.append(whole, after.session, running), after)
}

/** The session after something happened to it between runs. */
export const happened = (session: SessionState.Session, record: Records.Record): Effect.Effect<SessionState.Session> =>
  Effect.flatMap(
    CurrentRecorder,
    (recorder) => Effect.map(recorded({ session }, [record], recorder), (state) => state.session)
  )

const recorderOf = (kept: Records.Kept): Effect.Effect<Recorder, never, Stores.Store> =>
  Effect.gen(function*() {
    return new Recorder(kept, yield* Stores.Store, yield* Effect.context<never>())
  })

/** Runs an operation on a session and appends its records as it runs. */
export const keep = <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Effect.Effect<A, E, R>
): Effect.Effect<Records.Outcome<A>, E | Stores.SessionConflict | Stores.StoreError, R | Stores.Store> =>
  Effect.flatMap(recorderOf(kept), (recorder) =>
    Effect.raceFirst(
      Effect.provideService(Effect.suspend(() => operation(kept.session)), CurrentRecorder, recorder),
      Deferred.await(recorder.failed)
    ).pipe(
      Effect.ensuring(recorder.leave),
      Effect.map((value) => ({ id: kept.id, session: recorder.session, version: recorder.version, value }))
    ))

/** The same for the events of an operation. */
export const keepStream = <A, E, R>(
  kept: Records.Kept,
  operation: (session: SessionState.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | Stores.SessionConflict | Stores.StoreError, R | Stores.Store> =>
  Stream.unwrap(Effect.map(recorderOf(kept), (recorder) =>
    Stream.suspend(() => operation(kept.session)).pipe(
      Stream.provideService(CurrentRecorder, recorder),
      Stream.interruptWhen(Deferred.await(recorder.failed)),
      Stream.ensuring(recorder.leave)
    )))

/** The session with this id as the store has it, if there is one. */
export const load = (id: string): Effect.Effect<Records.Kept | undefined, Stores.StoreError, Stores.Store> =>
  Effect.gen(function*() {
    const store = yield* Stores.Store
    const first: { readonly state: Records.JournalState; readonly version: number } = {
      state: { session: SessionState.make({ id }) },
      version: 0
    }
    const { state, version } = yield* Stream.runFold(store.read(id), () => first, ({ state }, entry) => ({
      state: Reducer.apply(state, entry.record),
      version: entry.version
    }))
    if (version === 0) return undefined
    const session = SessionState.plain(Reducer.atRest(state))
    const cut = state.interrupted === undefined ? {} : { cut: SessionState.plain(state.session) }
    return { ...state, ...cut, session, id, version }
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
