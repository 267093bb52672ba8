/**
 * Carries out a session's commands in its owner. The session runs under a claim: first the work an earlier owner left
 * unfinished, then the command unless the journal already contains it, then the resulting work. An owner asked to leave
 * starts nothing more, lets running calls end, and is then interrupted.
 */
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Owners from "../../durable/internal/ownerHealth.ts"
import * as Replies from "../../durable/internal/replies.ts"
import type * as Event from "../../Event.ts"
import * as Journal from "../../Journal.ts"
import * as Session from "../../Session.ts"
import type * as Tool from "../../Tool.ts"
import type * as Feeds from "./feed.ts"
import type * as Protocol from "./protocol.ts"

type Tools = ReadonlyArray<Tool.Any>

type Settling = Extract<Protocol.Input, { readonly _tag: "Answer" | "Approve" | "Deny" }>

type Saying = Extract<Protocol.Input, { readonly _tag: "Say" }>

/** Settings for session runs. */
export interface Settings<T extends Tools, E, R, RHalt, REvent> {
  /** Returns the options for a session's next run. */
  readonly run: (kept: Session.Kept) => Session.ResumeOptions<T, E, R, RHalt, REvent>
  /** Claim duration unless renewed. */
  readonly term: Duration.Input
  /** Collects the runner's health. */
  readonly runner: Owners.Owner
}

/** Driver of one session in one owner. */
interface Driver<R> {
  /** Carries a command out, once. A session's commands wait for each other. */
  readonly carryOut: (command: Protocol.Command) => Effect.Effect<Session.Kept, unknown, R>
  /** Makes the current run look for its stop, and waits for its end. */
  readonly stopped: Effect.Effect<void, Journal.StoreError, Session.Store>
  /** Makes the current run look for messages. */
  readonly look: Effect.Effect<void>
}

/** A session in one owner. */
export interface Owned {
  readonly id: string
  readonly owner: string
  /** Maximum time for running calls to end when the owner is asked to leave, in milliseconds. */
  readonly drainMillis: number
}

/** Creates a session's driver, which publishes its work to a feed. */
export type Make<R> = (session: Owned, feed: Pick<Feeds.Feed, "publish" | "settle">) => Driver<R | Session.Store>

/** Returns the session after answering a call. The same command counts once. */
const settled = (session: Session.Session, command: string, input: Settling, tools: Tools | undefined) => {
  switch (input._tag) {
    case "Answer":
      return Session.answer(session, input.id, input.value, { command })
    case "Approve":
      return Session.approve(session, input.id, {
        command,
        ...(input.arguments === undefined ? {} : { arguments: input.arguments, tools: tools ?? [] })
      })
    case "Deny":
      return Session.deny(session, input.id, input.reason, { command })
  }
}

/**
 * Returns the journal version at which a suspension opened. It reads the journal, since a message rarely meets a
 * suspension.
 */
const openSince = (id: string, { id: own, path: [outer] = [], toolCall }: Event.Suspension) =>
  Effect.flatMap(Session.Store, (store) =>
    Stream.runFold(
      store.read(id),
      () => 0,
      (since, { record, version }) =>
        record._tag === "CallWaits" && record.toolCallId === (outer ?? toolCall.id)
          || record._tag === "Opened" && record.session.suspensions.some((open) => open.id === own)
          ? version
          : since
    ))

/** Failure of a repeated command whose run failed, with the run's recorded error. */
export class RepeatedFailure extends Data.TaggedError("RepeatedFailure")<{ readonly error: Journal.RunError }> {}

/** Returns `true` if the store is unavailable. */
const isAway = (error: unknown): boolean => error instanceof Journal.StoreError && error.reason === "unavailable"

/**
 * Returns `true` for a transient error: the store is unavailable, another owner still holds the claim, or another
 * writer was faster. The session is then claimed and read again, and the command carried out unless already done.
 */
const isPassing = (error: unknown): boolean =>
  isAway(error) || error instanceof Journal.SessionClaimed || error instanceof Journal.SessionConflict

/** Claim for carrying out commands, and the end of the current run or command. */
class Turn {
  readonly claim: Journal.HeldClaim
  private end = Deferred.makeUnsafe<void>()

  constructor(claim: Journal.HeldClaim) {
    this.claim = claim
  }

  get ended(): Effect.Effect<void> {
    return Deferred.await(this.end)
  }

  readonly completeRun: Effect.Effect<void> = Effect.sync(() => {
    Deferred.doneUnsafe(this.end, Effect.void)
    this.end = Deferred.makeUnsafe()
  })
}

/** Creates session drivers with these settings. */
export const make = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  { run, runner, term }: Settings<T, E, R, RHalt, REvent>
): Make<Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent> =>
({ drainMillis, id, owner }, { publish, settle }) => {
  const turns = Semaphore.makeUnsafe(1)
  const replies = new Replies.Unrecorded()
  let turn: Turn | undefined

  const published = (event: Event.Event) =>
    Effect.suspend(() =>
      event._tag === "ChatCompleted" && turn !== undefined
        ? Effect.andThen(publish(event), turn.completeRun)
        : publish(event)
    )

  /** Does the remaining work. A leaving owner does none of it: it waits to be interrupted. */
  const driven = (claimed: Session.Claimed) =>
    Effect.flatMap(
      Session.drive(claimed, { run, onEvent: published }),
      (kept) => kept.claim.isLeaving ? Effect.never : Effect.succeed(kept)
    )

  /** Runs work under a claim. Before interruption, running calls have the drain time to end. */
  const leaving = <A, E, R>(claim: Journal.HeldClaim, work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.flatMap(Effect.forkChild(restore(work)), (fiber) =>
        Effect.onInterrupt(
          restore(Fiber.join(fiber)),
          () => Effect.andThen(claim.leave(drainMillis), Fiber.interrupt(fiber))
        ))
    )

  /**
   * Returns `true` if a message must wait: a call is open that no message answers, or a question its sender has not
   * seen.
   */
  const mustWait = (kept: Session.Kept, { after = 0, pending }: Saying) => {
    const { suspensions } = kept.session
    if (suspensions.length === 0 || pending === "deny") return Effect.succeed(false)
    const question = suspensions.find(({ kind }) => kind === "question")
    return question === undefined
      ? Effect.succeed(true)
      : Effect.map(openSince(id, question), (since) => after < since)
  }

  /** Adds a message, recorded under the command id, which can be taken once. */
  const saying = (kept: Session.Kept, command: string, input: Saying) =>
    Effect.gen(function*() {
      const { message: { content }, pending } = input
      const known = Session.receipt(kept, command)
      if (known?.hash === Journal.hashOfContent(content)) {
        // A run that failed with a result is reported like any other.
        if (known.error !== undefined) yield* Effect.fail(new RepeatedFailure({ error: known.error }))
        return
      }
      const session = Session.recover(kept.session)
      const isApproving = session.suspensions.some(({ kind }) => kind === "approval")
      if (!isApproving && (yield* mustWait(kept, input))) {
        yield* Session.submit(id, content, { id: command })
        return
      }
      const said = { ...pending === undefined ? {} : { pending }, takes: command }
      const operation = (session: Session.Session) =>
        Session.streamReply(Session.recover(session), content, { ...run(kept), ...said })
      yield* Stream.runForEach(Session.keepStream(kept, operation), published)
    })

  const taken = (kept: Session.Kept, { command, input }: Protocol.Command) => {
    switch (input._tag) {
      case "Say":
        return saying(kept, command, input)
      case "Resume":
        return Effect.void
      default:
        return Session.keep(kept, (session) => settled(session, command, input, run(kept).tools))
    }
  }

  const once = (command: Protocol.Command) =>
    Effect.gen(function*() {
      const claimed = yield* Session.claim(id, { owner, term, onLost: runner.lose })
      const { claim } = claimed
      runner.answered(true)
      runner.begin(id)
      const own = new Turn(claim)
      turn = own
      yield* Effect.addFinalizer(() =>
        Effect.suspend(() => {
          runner.end(id)
          turn = undefined
          return own.completeRun
        })
      )
      const carriedOut = Effect.flatMap(driven(claimed), (kept) => taken(kept, command))
      return yield* replies.during(id, leaving(claim, Effect.andThen(carriedOut, driven(claimed))))
    }).pipe(
      Effect.scoped,
      Effect.tapError((error) =>
        Effect.sync(() => {
          if (isAway(error)) runner.answered(false)
        })
      )
    )

  return {
    carryOut: (command) =>
      Effect.retry(once(command), { while: isPassing, schedule: Schedule.spaced("250 millis") }).pipe(
        Effect.onExit((exit) => settle(Exit.isSuccess(exit) ? exit.value : undefined)),
        turns.withPermit
      ),
    look: Effect.suspend(() => turn === undefined ? Effect.void : turn.claim.look),
    stopped: Effect.suspend(() => {
      if (turn === undefined) return Effect.void
      const { claim, ended } = turn
      return Effect.gen(function*() {
        yield* claim.look
        const kept = yield* Session.load(id)
        if (kept?.interrupted !== undefined) yield* ended
      })
    })
  }
}
