/**
 * What is left to do in a session, and doing it: a run that was cut is taken up, a message that was submitted is answered,
 * and a session whose calls have all been settled goes on, until nothing is left or a call waits.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as Claims from "../../internal/session/claim.ts"
import type * as Ledgers from "../../internal/session/ledger.ts"
import * as Recorders from "../../internal/session/recorder.ts"
import type * as Records from "../../internal/session/records.ts"
import * as SessionRun from "../../internal/session/run.ts"
import * as SessionState from "../../internal/session/state.ts"
import type * as Stores from "../../internal/session/store.ts"
import type * as Tool from "../../Tool.ts"

type Tools = ReadonlyArray<Tool.Any>

/** The options of the runs of a session. */
export type RunOptions<T extends Tools, E, R, RHalt, REvent> =
  & Chat.Options<T, E, R, RHalt, REvent>
  & SessionRun.ResumeOptions

/** Why a session could not be driven on. */
export type Failure<T extends Tools, E> =
  | Ledgers.ResumeError
  | SessionRun.Failure
  | Recorders.Failure
  | Tool.Fatal<T[number]>
  | E

/** A message can be said when nothing waits, or one question that it answers. */
const isSpeakable = ({ suspensions }: SessionState.Session): boolean =>
  suspensions.length === 0 || suspensions.length === 1 && suspensions[0]?.kind === "question"

type Operation = Effect.Effect<SessionRun.Operation<"chat">, SessionRun.Failure>

/** The next operation of a session in which no run was cut. A session whose last run broke goes on with a new message. */
const operationOf = (
  { session, submitted: [next] = [] }: Records.Kept
): ((session: SessionState.Session) => Operation) | undefined => {
  if (next !== undefined && isSpeakable(session)) {
    return (session) =>
      Effect.map(
        SessionRun.replying(SessionState.recover(session), next.message.content, undefined),
        (operation) => ({ ...operation, submitted: next.id })
      )
  }
  return Claims.isReady(session) ? (session) => SessionRun.continuing(session, null) : undefined
}

/** Whether a session has something that an owner can do now. */
export const hasWork = (kept: Records.Kept): boolean =>
  kept.interrupted !== undefined || operationOf(kept) !== undefined

/**
 * Drives a session until nothing is left to do, and returns it as it is then. `load` reads it as the store has it, under the
 * claim of the owner.
 */
export const drive = <T extends Tools, E, R, RHalt, REvent, ELoad, RLoad, RPublish>(
  load: Effect.Effect<Records.Kept, ELoad, RLoad>,
  run: (kept: Records.Kept) => RunOptions<T, E, R, RHalt, REvent>,
  publish: (event: Event.Event) => Effect.Effect<void, never, RPublish>
): Effect.Effect<
  Records.Kept,
  ELoad | Failure<T, E>,
  RLoad | RPublish | Stores.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> =>
  Effect.gen(function*() {
    let kept = yield* load
    while (true) {
      const { version } = kept
      const options = run(kept)
      const operation = operationOf(kept)
      if (kept.interrupted !== undefined) {
        yield* Stream.runForEach(SessionRun.streamResumed(kept, options), publish)
      } else if (operation !== undefined) {
        yield* Stream.runForEach(
          Recorders.keepStream(kept, (session) => SessionRun.stream(operation(session), options)),
          publish
        )
      } else return kept
      const isRepeated = Claims.isReady(kept.session)
      kept = yield* load
      // Calls that were settled and could not run, as where the time is up at once, are no reason to try at once again.
      if (kept.version === version || isRepeated && Claims.isReady(kept.session)) return kept
    }
  })
