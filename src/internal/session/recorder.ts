/**
 * Sessions in a store: how one is opened, and how an operation on it is written down as it happens. What an operation
 * needs to be written before it goes on (that a run starts, that a call does) is written before it goes on; an operation
 * whose record is refused is stopped there. Public as `Session`.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import * as Settings from "../ask/options.ts"
import { Running } from "../stop/ownedFibers.ts"
import { Worker } from "../stop/worker.ts"
import * as Journal from "./record.ts"
import * as Conversation from "./state.ts"

/**
 * A session as a store has it: the version says which history it stands for. `interrupted` is a run that has no end.
 *
 * @category models
 * @since 0.1.0
 */
export interface Kept extends Journal.State {
  readonly id: string
  readonly version: number
}

type Records = Arr.NonEmptyReadonlyArray<Journal.Record>

/**
 * Where the records of an operation go: to nobody, unless the operation is kept.
 *
 * @category references
 * @since 0.1.0
 */
export interface Scribe {
  readonly session: Conversation.Session
  /** Writes as a part of a run, which stops waiting for it when its own stop does not let it finish. */
  readonly write: (records: Records, after: Conversation.Session, running?: Running) => Effect.Effect<void>
}

/**
 * @see {@link Scribe}
 *
 * @category references
 * @since 0.1.0
 */
export const Scribe: Context.Reference<Scribe | undefined> = Context.Reference<Scribe | undefined>(
  "heddle/Keeper/Scribe",
  { defaultValue: () => undefined }
)

/**
 * Writes down what happens to a session, and gives the state after it. A session that is not the one that was written so
 * far is written as a whole first.
 *
 * @category recording
 * @since 0.1.0
 */
export const note = (
  state: Journal.State,
  records: Records,
  scribe: Scribe | undefined,
  running?: Running
): Effect.Effect<Journal.State> => {
  const read = records.reduce(Journal.apply, state)
  const after = { ...read, session: Conversation.plain(read.session) }
  if (scribe === undefined) return Effect.succeed(after)
  const { session } = state
  const whole: Records = scribe.session === session ? records : [{ _tag: "Opened", session }, ...records]
  return Effect.as(scribe.write(whole, after.session, running), after)
}

/**
 * The session after something happened to it.
 *
 * @category recording
 * @since 0.1.0
 */
export const happened = (
  session: Conversation.Session,
  record: Journal.Record
): Effect.Effect<Conversation.Session> =>
  Effect.flatMap(Scribe, (scribe) => Effect.map(note({ session }, [record], scribe), (state) => state.session))

/**
 * The session with this id as the store has it, if there is one. Where it has `interrupted`, the calls that this names have
 * begun and may have had their effect: look at them before going on, since the next run forgets them.
 *
 * @category keeping
 * @since 0.1.0
 */
export const load = (id: string): Effect.Effect<Kept | undefined, Journal.StoreError, Journal.Store> =>
  Effect.gen(function*() {
    const store = yield* Journal.Store
    const first: { readonly state: Journal.State; readonly version: number } = {
      state: { session: Conversation.make({ id }) },
      version: 0
    }
    const { state, version } = yield* Stream.runFold(store.read(id), () => first, ({ state }, entry) => ({
      state: Journal.apply(state, entry.record),
      version: entry.version
    }))
    return version === 0 ? undefined : { ...state, session: Conversation.plain(Journal.atRest(state)), id, version }
  })

/**
 * The session with this id, begun with the options if there is none. Of two that begin it at once, one does, and both
 * have its session.
 *
 * @category keeping
 * @since 0.1.0
 */
export const open = (
  id: string,
  options: Omit<Conversation.Options, "id"> = {}
): Effect.Effect<Kept, Journal.StoreError, Journal.Store> =>
  Effect.gen(function*() {
    const store = yield* Journal.Store
    const known = yield* load(id)
    if (known !== undefined) return known
    const session = Conversation.make({ ...options, id })
    return yield* store.append(id, 0, [{ _tag: "Opened", session }]).pipe(
      Effect.map((version): Kept => ({ id, version, session })),
      Effect.catchTag("SessionConflict", (conflict) => begunBy(conflict))
    )
  })

/** The session that another one began at the same time. A store that has a version of it and no records is damaged. */
const begunBy = ({ actual, id }: Journal.SessionConflict): Effect.Effect<Kept, Journal.StoreError, Journal.Store> =>
  Effect.flatMap(load(id), (kept) =>
    kept === undefined
      ? new Journal.StoreError({
        reason: "unreadable",
        operation: "read",
        id,
        version: 1,
        cause: `the store is at version ${actual} and has no record`
      })
      : Effect.succeed(kept))

/** Writes for one operation, record behind record, whoever of its fibers writes. */
class Pen implements Scribe {
  session: Conversation.Session
  version: number
  readonly failed = Deferred.makeUnsafe<never, Journal.SessionConflict | Journal.StoreError>()
  private readonly id: string
  private readonly store: Journal.Service
  private readonly turn = Semaphore.makeUnsafe(1)
  /** What writes outside of a run belongs to. */
  private readonly own: Running
  /** An append was left behind: what it has written is unknown, and nothing is written after it. */
  private isClosed = false

  constructor({ id, session, version }: Kept, store: Journal.Service, context: Context.Context<never>) {
    this.own = new Running(Duration.toMillis(Settings.defaultGrace), context)
    this.id = id
    this.session = session
    this.version = version
    this.store = store
  }

  /** What cannot be written down must not go on: whoever writes waits here until the operation is stopped. */
  write(records: Records, after: Conversation.Session, running = this.own): Effect.Effect<void> {
    return Effect.suspend(() => {
      const appended = Effect.suspend(() => this.append(records, after))
      const writer = new Worker(running, {
        kind: "store",
        id: this.id,
        name: "append",
        onSoftStop: "grace",
        once: true,
        onLeft: () => {
          this.isClosed = true
        }
      })
      return writer.do(this.turn.withPermit(appended), Exit.void)
    }).pipe(
      Effect.catch((error) => Effect.andThen(Deferred.fail(this.failed, error), Effect.never))
    )
  }

  private append(
    records: Records,
    after: Conversation.Session
  ): Effect.Effect<void, Journal.SessionConflict | Journal.StoreError> {
    if (this.isClosed) {
      // The run that was stopped comes to its end. Nothing else may begin.
      return records.every(isTail) ? Effect.void : Effect.fail(
        new Journal.StoreError({
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
  }

  /** What is still being written when its operation is left has the grace period to end. */
  readonly leave: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(this.own.end(Exit.void)))
}

/** Whether a record tells of a run that has begun. */
const isTail = (record: Journal.Record): boolean => "requestId" in record && record._tag !== "RunStarted"

/**
 * What a kept operation came to: its value, and the session as the store has it now.
 *
 * @category models
 * @since 0.1.0
 */
export interface Outcome<out A> extends Kept {
  readonly value: A
}

/**
 * Runs an operation on a session and writes down what happens as it does.
 *
 * **Details**
 *
 * The first thing that is written decides: if the session has been written to since it was read, it fails with
 * `SessionConflict` before anything has run, and so does every operation but one of those that begin at one version. An
 * operation that fails, or is interrupted, leaves what was written so far: the session as it was, with every whole step.
 * What was said stays where the operation was interrupted, and counts as not said where it failed before a whole step.
 * Either way the session has been written to: load it again before the next operation.
 *
 * @category keeping
 * @since 0.1.0
 */
export const keep = <A, E, R>(
  kept: Kept,
  operation: (session: Conversation.Session) => Effect.Effect<A, E, R>
): Effect.Effect<Outcome<A>, E | Journal.SessionConflict | Journal.StoreError, R | Journal.Store> =>
  Effect.gen(function*() {
    const pen = new Pen(kept, yield* Journal.Store, yield* Effect.context<never>())
    const value = yield* Effect.raceFirst(
      Effect.provideService(Effect.suspend(() => operation(kept.session)), Scribe, pen),
      Deferred.await(pen.failed)
    ).pipe(Effect.ensuring(pen.leave))
    return { id: kept.id, session: pen.session, version: pen.version, value }
  })

/**
 * The same for a stream. Read the session again when it has ended.
 *
 * @category keeping
 * @since 0.1.0
 */
export const keepStream = <A, E, R>(
  kept: Kept,
  operation: (session: Conversation.Session) => Stream.Stream<A, E, R>
): Stream.Stream<A, E | Journal.SessionConflict | Journal.StoreError, R | Journal.Store> =>
  Stream.unwrap(Effect.gen(function*() {
    const pen = new Pen(kept, yield* Journal.Store, yield* Effect.context<never>())
    return Stream.suspend(() => operation(kept.session)).pipe(
      Stream.provideService(Scribe, pen),
      Stream.interruptWhen(Deferred.await(pen.failed)),
      Stream.ensuring(pen.leave)
    )
  }))
