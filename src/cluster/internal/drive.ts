/**
 * How the owner of a session carries out its commands. The session is run under a claim: first what an owner before this one
 * left unfinished, then the command, unless the journal has it already, and then what follows from it.
 *
 * @since 0.1.0
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import * as Durable from "../../durable/internal/drive.ts"
import type * as Event from "../../Event.ts"
import * as Json from "../../internal/json.ts"
import type * as Claims from "../../internal/session/claim.ts"
import * as Recorders from "../../internal/session/recorder.ts"
import type * as Records from "../../internal/session/records.ts"
import * as SessionRun from "../../internal/session/run.ts"
import * as SessionState from "../../internal/session/state.ts"
import * as Stores from "../../internal/session/store.ts"
import type * as Tool from "../../Tool.ts"
import type * as Protocol from "./protocol.ts"

type Tools = ReadonlyArray<Tool.Any>

type Settling = Extract<Protocol.Input, { readonly _tag: "Answer" | "Approve" | "Deny" }>

type Saying = Extract<Protocol.Input, { readonly _tag: "Say" }>

/** How sessions are driven. */
export interface Settings<T extends Tools, E, R, RHalt, REvent> {
  /** The options of the next run of a session. */
  readonly run: (kept: Records.Kept) => Durable.RunOptions<T, E, R, RHalt, REvent>
  /** How long a claim lasts that is not renewed. */
  readonly term: Duration.Input
}

/** What one owner does for one session. */
interface Driver<R> {
  /** Carries a command out, once. Those of a session wait for one another. */
  readonly carryOut: (command: Protocol.Command) => Effect.Effect<Records.Kept, unknown, R>
  /** Has the run that is under way look for its stop, and waits for its end. */
  readonly stopped: Effect.Effect<void, Stores.StoreError, Stores.Store>
}

/** How an owner drives one session. It shows the events of its runs. */
export type Make<R> = (
  id: string,
  owner: string,
  publish: (event: Event.Event) => Effect.Effect<void>
) => Driver<R | Stores.Store>

/** The session after a call has its answer. */
const settled = (session: SessionState.Session, input: Settling) => {
  switch (input._tag) {
    case "Answer":
      return SessionRun.answer(session, input.id, input.value)
    case "Approve":
      return SessionRun.approve(session, input.id, input)
    case "Deny":
      return SessionRun.deny(session, input.id, input.reason)
  }
}

const isSame = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right)

/** Whether an answer of the journal is the one that a command gives. A text may have been read as the JSON that it is. */
const isAnswerOf = (answer: SessionState.Answer, input: Settling): boolean => {
  switch (answer._tag) {
    case "Value":
      return input._tag === "Answer" && (isSame(answer.value, input.value)
        || typeof input.value === "string" && isSame(answer.value, Result.getOrUndefined(Json.parse(input.value))))
    case "Approved":
      return input._tag === "Approve" && isSame(answer.arguments, input.arguments)
    case "Denied":
      return input._tag === "Deny" && answer.reason === input.reason
    case "Expired":
      return false
  }
}

/** Whether a record of the journal is so. A command that has come twice is rare, and a journal is read in pages. */
const has = (id: string, isSo: (record: Records.Record) => boolean) =>
  Effect.flatMap(Stores.Store, (store) =>
    Effect.map(
      Stream.runHead(Stream.filter(store.read(id), ({ record }) => isSo(record))),
      (found) => found._tag === "Some"
    ))

const isFailure = (error: unknown): error is { readonly _tag: string; readonly reason?: unknown } =>
  typeof error === "object" && error !== null && "_tag" in error

/**
 * What passes by itself: the store is away, another owner still has the claim, or another writer was faster. The session is
 * claimed and read again then, and the command is carried out if it was not.
 */
const isPassing = (error: unknown): boolean =>
  isFailure(error) && (error._tag === "SessionClaimed" || error._tag === "SessionConflict"
    || error._tag === "StoreError" && error.reason === "unavailable")

/** A claim that commands are carried out under, and the end of the run that is under way, or of the command. */
class Turn {
  readonly claim: Claims.HeldClaim
  private end = Deferred.makeUnsafe<void>()

  constructor(claim: Claims.HeldClaim) {
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

/** How an owner drives a session with these settings. */
export const make = <const T extends Tools = [], E = never, R = never, RHalt = never, REvent = never>(
  { run, term }: Settings<T, E, R, RHalt, REvent>
): Make<Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent> =>
(id, owner, publish) => {
  const turns = Semaphore.makeUnsafe(1)
  let turn: Turn | undefined

  const published = (event: Event.Event) =>
    Effect.suspend(() =>
      event._tag === "ChatCompleted" && turn !== undefined
        ? Effect.andThen(publish(event), turn.completeRun)
        : publish(event)
    )

  const driven = (claim: Claims.HeldClaim) => Durable.drive(Recorders.reloaded(claim), run, published)

  /** Settles a call. A command that was carried out before its owner was killed finds its own answer. */
  const settling = (kept: Records.Kept, input: Settling) =>
    Recorders.keep(kept, (session) => settled(session, input)).pipe(
      Effect.catchTag("SessionError", (error) => {
        const isOwn = (record: Records.Record) =>
          record._tag === "Answered" && record.id === input.id && isAnswerOf(record.answer, input)
        return Effect.flatMap(has(id, isOwn), (isKnown) => isKnown ? Effect.void : Effect.fail(error))
      })
    )

  /** Says something. The run is recorded under the id of the command. */
  const saying = (kept: Records.Kept, command: string, { message: { content }, pending }: Saying) =>
    Effect.gen(function*() {
      if (yield* has(id, (record) => record._tag === "RunStarted" && record.submitted === command)) return
      const operation = (session: SessionState.Session) =>
        SessionRun.stream(
          Effect.map(
            SessionRun.replying(SessionState.recover(session), content, pending),
            (reply) => ({ ...reply, submitted: command })
          ),
          run(kept)
        )
      yield* Stream.runForEach(Recorders.keepStream(kept, operation), published)
    })

  const taken = (kept: Records.Kept, { command, input }: Protocol.Command) => {
    switch (input._tag) {
      case "Say":
        return saying(kept, command, input)
      case "Resume":
        return Effect.void
      default:
        return settling(kept, input)
    }
  }

  const once = (command: Protocol.Command) =>
    Effect.gen(function*() {
      const { claim } = yield* Recorders.claim(id, { owner, term })
      const own = new Turn(claim)
      turn = own
      yield* Effect.addFinalizer(() =>
        Effect.suspend(() => {
          turn = undefined
          return own.completeRun
        })
      )
      yield* taken(yield* driven(claim), command)
      return yield* driven(claim)
    }).pipe(Effect.scoped)

  return {
    carryOut: (command) =>
      turns.withPermit(Effect.retry(once(command), { while: isPassing, schedule: Schedule.spaced("250 millis") })),
    stopped: Effect.suspend(() => {
      if (turn === undefined) return Effect.void
      const { claim, ended } = turn
      return Effect.gen(function*() {
        yield* claim.look
        const kept = yield* Recorders.load(id)
        if (kept?.interrupted !== undefined) yield* ended
      })
    })
  }
}
