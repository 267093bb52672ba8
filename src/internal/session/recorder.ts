/**
 * The recorder of an operation: it appends the records of what happens, one append at a time, whichever fiber of the
 * operation writes. What cannot be written must not go on: the operation is stopped where an append fails. Public as
 * `Session.keep`.
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
import type * as SessionState from "./state.ts"
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
