/**
 * Law 6 on generated runs, as far as no law of whole runs shows it: steps, and events as data.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Collector, Event, Message, Step, Thread } from "heddle"
import { type Case, cases, readAtOnce, stops } from "../support/cases.ts"
import { property } from "../support/property.ts"
import { differing } from "../support/travelled.ts"
import { play, type Trace } from "../support/worlds.ts"

/** The step that a reader of the stream puts together, as text, and the one that was awaited. */
const steps = (played: Case, streamed: Trace, awaited: Trace): ReadonlyArray<string> => {
  if (awaited.exit?._tag !== "Success" || streamed.exit?._tag !== "Success") return []
  const initial = Collector.initial({ policy: played.driving.policy, thread: Thread.empty })
  const folded = Schema.encodeUnknownSync(Event.StepResult)(
    Collector.toStepResult(Collector.applyAll(initial, streamed.events))
  )
  const told = Schema.encodeUnknownSync(Event.StepResult)(awaited.exit.value)
  return JSON.stringify(folded) === JSON.stringify(told) ? [] : [JSON.stringify(folded), JSON.stringify(told)]
}

const encode = Schema.encodeUnknownSync(Event.Event)
const decode = Schema.decodeUnknownSync(Event.Event)

/** What a text says of an event, once and after a round trip. */
const isStable = (event: Event.Event): boolean => {
  const once = JSON.stringify(encode(event))
  return JSON.stringify(encode(decode(JSON.parse(once)))) === once
}

describe("law 6", () => {
  property(
    "law 6, U-6: a step is the fold of its stream",
    cases,
    (played) =>
      Effect.gen(function*() {
        const { hidesDeltas } = played.driving
        const streamed = yield* play(readAtOnce(played, hidesDeltas), "stepStream")
        const awaited = yield* play(readAtOnce(played, !hidesDeltas), "step")
        const refused = streamed.events.some((event) =>
          event._tag === "Error" && event.error instanceof Step.EngineError
        )
        const isSame = streamed.exit?._tag === awaited.exit?._tag || refused
        return [
          ...steps(played, streamed, awaited),
          ...(isSame ? [] : ["the stream and the step end differently"])
        ]
      }),
    500
  )

  property(
    "law 6: events round-trip through JSON",
    cases,
    (played) =>
      Effect.map(
        play(played, "stream"),
        ({ events }) => events.filter((event) => !isStable(event)).map(({ _tag }) => `${_tag} does not round-trip`)
      ),
    500
  )

  property(
    "M-21, law 6: the events of a run, sent elsewhere, fold to its result",
    cases,
    (played) =>
      Effect.map(play(played, "stream"), ({ events }) => {
        const last = events.at(-1)
        return last?._tag === "ChatCompleted" ? differing("go", events, last.result) : []
      }),
    1000
  )

  property(
    "M-21, law 6: the events of a run that was left, sent elsewhere, fold to what they fold to here",
    Arbitrary.all({ played: cases, stop: stops }),
    ({ played, stop }) =>
      Effect.map(play(played, "stream", stop), ({ events }) => {
        const initial = Collector.initial({ thread: Thread.fromMessages([Message.user("go")]) })
        return differing("go", events, Collector.toChatResult(Collector.applyAll(initial, events)))
      }),
    500
  )
})
