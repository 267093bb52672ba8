/**
 * Law 6 on generated runs, as far as no law of whole runs shows it: steps, and events as data.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { Collector, Event, Message, Step, Thread } from "heddle"
import { type Case, cases, readAtOnce, stops } from "../support/cases.ts"
import * as Folds from "../support/folds.ts"
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

/** Events of a turn whose calls share ids, with and without names. */
const happenings = Arbitrary.schema(
  Schema.Array(Schema.Struct({
    kind: Schema.Literals([
      "text",
      "started",
      "delta",
      "completed",
      "answered",
      "asked",
      "settled",
      "halted",
      "updated",
      "reset",
      "ended"
    ]),
    id: Schema.Literals(["", "a", "b"]),
    name: Schema.Literals(["x", "y"]),
    word: Schema.Literals(["1", "2", "3"])
  })).check(Schema.isMaxLength(8))
)

type Happening = typeof happenings extends Arbitrary.Arbitrary<ReadonlyArray<infer A>> ? A : never

const eventOf = ({ id, kind, name, word }: Happening): Event.Event => {
  switch (kind) {
    case "text":
      return Folds.delta(word)
    case "started":
      return Folds.started(id, name)
    case "delta":
      return Folds.fragment(id, word)
    case "completed":
      return Folds.completed(id, name, { word })
    case "answered":
      return Folds.encoded(id, word)
    case "asked":
      return { _tag: "AskUserRequested", toolCallId: id, toolName: name, question: word, opts: [] }
    case "settled":
      return { ...Folds.encoded(id, word), settled: true } as Event.Event
    case "halted":
      return { _tag: "ToolHalt", toolCallId: id, reason: word, result: word, content: word }
    case "updated":
      return {
        _tag: "ToolExecutionCompleted",
        id,
        name,
        result: { _tag: "Ok", value: 1 },
        contextUpdate: { [name]: word }
      }
    case "ended":
      return Folds.stepEnd(Folds.respond([Folds.delta(word)]))
    case "reset":
      return { _tag: "StepReset" } as Event.Event
  }
}

/** Everything that can be read of a state. */
const read = (state: Collector.State): string => {
  const response = Collector.toResponse(state)
  const step = Collector.toStepResult(Collector.applyEvent(state, Folds.stepEnd(response)))
  return JSON.stringify([response, Collector.answers(state), Collector.halt(state), state.steps, step])
}

describe("law 6: the fold of events", () => {
  property(
    "R-290: two branches of a state do not see each other, nor does the state see them",
    Arbitrary.all([happenings, happenings, happenings]),
    ([before, left, right]) =>
      Effect.sync(() => {
        const [trunk, one, other] = [before, left, right].map((some) => some.map(eventOf)) as [
          Array<Event.Event>,
          Array<Event.Event>,
          Array<Event.Event>
        ]
        const state = Folds.fold(trunk)
        const told = read(state)
        // One event at a time, by turns: each is folded onto a state that the other branch was copied from, too.
        let [first, second] = [state, state]
        for (let at = 0; at < Math.max(one.length, other.length); at++) {
          first = Collector.applyAll(first, one.slice(at, at + 1))
          second = Collector.applyAll(second, other.slice(at, at + 1))
        }
        return [
          ...(read(state) === told ? [] : ["the state has changed"]),
          ...(read(first) === read(Folds.fold([...trunk, ...one])) ? [] : ["the first branch is another"]),
          ...(read(second) === read(Folds.fold([...trunk, ...other])) ? [] : ["the second branch is another"])
        ]
      }),
    10_000
  )

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
