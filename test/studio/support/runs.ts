/** Runs of the shop, as public events with times, for the tests of the picture. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"
import { Chat, Session } from "heddle"
import type * as Fold from "../../../src/studio/data/fold.ts"
import * as Shop from "./shop.ts"
import { tell } from "./told.ts"

const weave = tell(Chat.stream("weave", { ...Shop.options, cancel: Effect.sleep(8800) }), Shop.model)

/** A run with two sub-agents, waits of each kind, failures, a stop, and a call that it leaves running. */
export const weaving = Effect.map(weave, (events): ReadonlyArray<Fold.Told> => {
  const at = events[0]?.at ?? 0
  const stop: Fold.Told = { _tag: "StopAccepted", by: "ann", at: at + 8_800 }
  const ended = events.map((event) =>
    event._tag === "ChatCompleted"
      ? { ...event, abandoned: [{ id: "e01", name: "deaf", kind: "handler" as const, ageMillis: 2_314 }] }
      : event
  )
  return [...ended, stop].toSorted((left, right) => (left.at ?? 0) - (right.at ?? 0))
})

/** A run that waits for two approvals and for an answer. */
export const ordering = tell(Chat.stream("order both", Shop.options), Shop.model)

/** A run of a session whose sub-agent waits for an approval. */
export const delegating = tell(
  Stream.unwrap(
    Effect.map(
      Session.open("s"),
      (opened) => Session.keepStream(opened, (session) => Session.streamReply(session, "delegate", Shop.options))
    )
  ),
  Layer.merge(Shop.model, Session.Store.layerMemory)
)

/** Runs an effect on a clock of its own. */
export const onTestClock = <A, E>(effect: Effect.Effect<A, E>): Promise<A> =>
  Effect.runPromise(Effect.provide(effect, TestClock.layer()))
