/**
 * Does the work that is left in a session: resumes an interrupted run, replies to a submitted message, and continues
 * once all calls are settled, until no work is left or a call waits.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as SessionData from "../../internal/session/data.ts"
import type * as Journals from "../../internal/session/journal.ts"
import * as Keeping from "../../internal/session/kept.ts"
import * as Operations from "../../internal/session/operations.ts"
import * as SessionRun from "../../internal/session/run.ts"
import type * as Writers from "../../internal/session/writer.ts"
import type * as Tool from "../../Tool.ts"

type Tools = ReadonlyArray<Tool.Any>

/** Options of the runs of a session. */
export type RunOptions<T extends Tools, E, R, RHalt, REvent> =
  & Chat.Options<T, E, R, RHalt, REvent>
  & Operations.ResumeOptions

/** Errors of driving a session. */
export type Failure<T extends Tools, E> = Operations.Failure | Writers.Failure | Tool.Fatal<T[number]> | E

/**
 * Returns the events of the work that is left, if an owner can do it. A new message continues a session whose last
 * run failed.
 */
const eventsOf = <T extends Tools, E, R, RHalt, REvent>(
  kept: Keeping.Kept,
  options: RunOptions<T, E, R, RHalt, REvent>
) => {
  const operation = (checked: (session: SessionData.Session) => ReturnType<typeof Operations.continuing>) =>
    Keeping.keepStream(kept, (session) => SessionRun.stream(checked(session), options))
  switch (Keeping.next(kept)) {
    case "resume":
      return SessionRun.streamResumed(kept, options)
    case "reply": {
      const [next] = kept.submitted ?? []
      return next &&
        operation((session) =>
          Operations.replying(SessionData.recover(session), next.message.content, { takes: next.id })
        )
    }
    case "continue":
      return operation((session) => Operations.continuing(session, null))
    default:
      return undefined
  }
}

/**
 * Drives a session until no work is left, and returns it. `load` reads it from the store, under the claim of the
 * owner.
 */
export const drive = <T extends Tools, E, R, RHalt, REvent, ELoad, RLoad, RPublish>(
  load: Effect.Effect<Keeping.Kept, ELoad, RLoad>,
  run: (kept: Keeping.Kept) => RunOptions<T, E, R, RHalt, REvent>,
  publish: (event: Event.Event) => Effect.Effect<void, never, RPublish>
): Effect.Effect<
  Keeping.Kept,
  ELoad | Failure<T, E>,
  RLoad | RPublish | Journals.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent
> =>
  Effect.gen(function*() {
    let kept = yield* load
    while (true) {
      const { version } = kept
      const events = eventsOf(kept, run(kept))
      if (events === undefined) return kept
      yield* Stream.runForEach(events, publish)
      const isRepeated = Keeping.next(kept) === "continue"
      kept = yield* load
      // Settled calls that could not run, for example because their time was over, are not tried again at once.
      if (kept.version === version || isRepeated && Keeping.next(kept) === "continue") return kept
    }
  })
