/**
 * Law 6 on generated runs: what is awaited is the fold of what is streamed, and filters of the stream change nothing.
 */
import { describe } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { Collector, Event, Step, Thread } from "heddle"
import { Laws } from "heddle/testing"
import { type Case, cases } from "../support/cases.ts"
import * as Lawful from "../support/lawful.ts"
import { property } from "../support/property.ts"
import { play, type Trace } from "../support/worlds.ts"

/** A run that could not be started gives no result, and its stream no end. */
const resultOf = ({ exit }: Trace): Event.ChatResult | undefined =>
  exit !== undefined && Exit.isSuccess(exit) && exit.value !== undefined && "outcome" in exit.value
    ? exit.value
    : undefined

const isSameEnd = (streamed: Trace, awaited: Trace): boolean => {
  const last = streamed.events.at(-1)
  const isRefused = last?._tag === "ChatCompleted" && last.result.outcome._tag === "Failed"
  return awaited.exit?._tag === streamed.exit?._tag || (awaited.exit?._tag === "Failure" && isRefused)
}

/** Both are read as fast as they come: a slow reader sees more handlers stop in time. */
const withView = (played: Case, hidesDeltas: boolean): Case => ({
  ...played,
  driving: { ...played.driving, hidesDeltas, readerPause: 0 }
})

const fold = (played: Case, streamed: Trace, awaited: Trace): ReadonlyArray<string> => {
  const result = resultOf(awaited)
  const isCut = streamed.exit?._tag === "Failure"
  const known = { policy: played.driving.policy, isCut, ...(result === undefined ? {} : { result }) }
  return [
    ...Lawful.of(Laws.check(streamed.events, known), "fold", "frame"),
    ...(isSameEnd(streamed, awaited)
      ? []
      : [`the stream ends in ${streamed.exit?._tag}, the run in ${awaited.exit?._tag}`])
  ]
}

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
    "X-03: law 6, U-6: a run is the fold of its stream",
    cases,
    (played) =>
      Effect.gen(function*() {
        const { hidesDeltas } = played.driving
        const streamed = yield* play(withView(played, hidesDeltas), "stream")
        const awaited = yield* play(withView(played, !hidesDeltas), "run")
        return fold(played, streamed, awaited)
      }),
    10_000
  )

  property(
    "law 6, U-6: a step is the fold of its stream",
    cases,
    (played) =>
      Effect.gen(function*() {
        const { hidesDeltas } = played.driving
        const streamed = yield* play(withView(played, hidesDeltas), "stepStream")
        const awaited = yield* play(withView(played, !hidesDeltas), "step")
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
})
