/**
 * What the owner of a session does for a command.
 *
 * @since 0.2.0
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Adapter from "../../Adapter.ts"
import type * as Chat from "../../Chat.ts"
import type * as Event from "../../Event.ts"
import * as Recorders from "../../internal/session/recorder.ts"
import type * as Records from "../../internal/session/records.ts"
import * as SessionRun from "../../internal/session/run.ts"
import type * as SessionState from "../../internal/session/state.ts"
import type * as Stores from "../../internal/session/store.ts"
import type * as Tool from "../../Tool.ts"
import type * as Owner from "./owner.ts"
import type * as Protocol from "./protocol.ts"

type Tools = ReadonlyArray<Tool.Any>

/** The session after what is settled, if the input settles anything. */
const settled = (session: SessionState.Session, input: Protocol.Input) => {
  switch (input._tag) {
    case "Answer":
      return SessionRun.answer(session, input.id, input.value)
    case "Approve":
      return SessionRun.approve(session, input.id, input)
    case "Deny":
      return SessionRun.deny(session, input.id, input.reason)
    default:
      return Effect.succeed(session)
  }
}

/** The function that drives sessions with the same options for every run. */
export const make = <T extends Tools, E, R, RHalt, REvent>(
  options: Chat.Options<T, E, R, RHalt, REvent>
): Owner.Drive<Stores.Store | Adapter.Adapter | Tool.Services<T[number]> | R | RHalt | REvent> =>
(id, { input }, publish) => {
  const operation = (session: SessionState.Session) =>
    Stream.unwrap(Effect.map(settled(session, input), (session) => {
      const isOpen = session.suspensions.length > 0
      return input._tag === "Say"
        ? SessionRun.stream(SessionRun.replying(session, input.message.content, undefined), options)
        : isOpen || input._tag === "Resume"
        ? Stream.empty as Stream.Stream<Event.Event>
        : SessionRun.stream(SessionRun.continuing(session, null), options)
    }))
  return Effect.gen(function*() {
    const kept: Records.Kept = yield* Recorders.open(id)
    yield* Stream.runForEach(Recorders.keepStream(kept, operation), publish)
    return yield* Recorders.open(id)
  })
}
