/**
 * What Studio shows behind something else is what it shows alone: a reply behind one that was discarded, and a run
 * behind another one. The ids of calls return.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Fold from "../../src/studio/data/fold.ts"
import { sampleOf } from "../support/property.ts"

type Events = ReadonlyArray<{ readonly _tag: string; readonly [field: string]: unknown }>

/** Returns the pieces that a run shows, in order, with the runs inside its calls. */
const piecesOf = (run: Fold.Run, owner = ""): ReadonlyArray<unknown> =>
  run.turns.filter((turn) => turn.owner === owner).flatMap(({ parts }) =>
    parts.map((part) => {
      if (part.type !== "call") return [part.type, part.text]
      const call = run.calls.get(part.path)
      const { arguments: given, content, name, progress, state } = call ?? assert.fail(`${part.path} is no call`)
      return ["call", name, given, state, progress, content, piecesOf(run, part.path)]
    })
  )

/** Returns what Studio shows of the runs of a session. */
const shownBy = (events: Events): ReadonlyArray<ReadonlyArray<unknown>> => {
  const runs: Array<Fold.Run> = []
  for (const event of events) {
    if (event._tag === "RunStarted") runs.push(Fold.make(String(event["runId"])))
    const run = runs.at(-1)
    if (run !== undefined) Fold.take(run, event as unknown as Fold.Told)
  }
  return runs.map((run) => piecesOf(run))
}

const call = (id: string, name: string, value: string): Events => [
  { _tag: "ToolCallStarted", id, name },
  { _tag: "ToolCallDelta", id, argumentsDelta: `{"at":"${value}"}` },
  { _tag: "ToolCallCompleted", id, name, arguments: { at: value } }
]

const text = (delta: string): Events => [{ _tag: "TextDelta", id: null, delta }]

const thought = (delta: string): Events => [{ _tag: "ReasoningDelta", id: null, delta }]

/** The pieces of replies. Each call has one of two ids. */
const pieces: Readonly<Record<string, Events>> = {
  text: text("said"),
  thought: thought("hm"),
  look: call("c0", "look", "Oslo"),
  find: call("c0", "find", "Rome"),
  pay: call("c1", "pay", "here")
}

const started = { _tag: "MessageStarted" }

/** The calls of a reply are carried out, and answered. */
const carriedOut = (reply: Events): Events =>
  reply.flatMap((event) => {
    if (event._tag !== "ToolCallCompleted") return []
    const { id, name } = event
    return [
      { _tag: "ToolExecutionStarted", id, name, at: 1_000 },
      { _tag: "ToolProgress", id, name, progress: `${name} asks` },
      { _tag: "ToolExecutionCompleted", id, name, at: 2_000 },
      { _tag: "ToolResultEncoded", id, content: `${name} did`, at: 2_000 }
    ]
  })

const whole = (reply: Events): Events => [
  started,
  ...reply,
  { _tag: "MessageCompleted" },
  ...carriedOut(reply),
  { _tag: "StepCompleted" }
]

/** Events whose calls have ids of their own: no two calls of a session have one (O-05). */
const apart = (events: Events, turn: number): Events =>
  events.map((event) => typeof event["id"] === "string" ? { ...event, id: `${turn}-${event["id"]}` } : event)

const ended = { _tag: "ChatCompleted", result: {}, outcome: { _tag: "Completed" } }

const run = (runId: string, events: Events): Events => [
  { _tag: "RunStarted", runId },
  ...events,
  ended
]

/** Replies of one or two pieces, in which each call id is there once. */
const replies = Object.entries(pieces).flatMap(([name, piece]) => [
  { name, events: piece },
  ...Object.entries(pieces)
    .filter(([other]) => other !== name && ![name, other].every((each) => each === "look" || each === "find"))
    .map(([other, more]) => ({ name: `${name}, ${other}`, events: [...piece, ...more] }))
])

/** Where a reply is: in the run, or in the run of a sub-agent inside a call of it. */
const places: Readonly<Record<string, (events: Events) => Events>> = {
  "in a run": (events) => events,
  "in a nested run": (events) => [
    ...whole(call("outer", "digger", "deep")).slice(0, -4),
    ...events.map((nested) => ({ _tag: "ToolProgress", id: "outer", name: "digger", nested }))
  ]
}

/** What was shown before. */
const before: Readonly<Record<string, (events: Events) => Events>> = {
  nothing: (events) => run("r1", events),
  "a run": (events) => [...run("r0", whole(pieces["look"]!)), ...run("r1", events)],
  "a turn": (events) => run("r1", [...apart(whole(pieces["look"]!), 9), ...events])
}

/** Returns what the only run of a session shows. */
const inRun = ([shown]: ReadonlyArray<ReadonlyArray<unknown>>): ReadonlyArray<unknown> => shown ?? assert.fail("no run")

describe("Studio's picture of repeated turns, replies and runs", () => {
  it("W-19: Studio shows each turn of a run like the only turn", () => {
    const turns = (...names: ReadonlyArray<string>) =>
      inRun(shownBy(run("r1", names.flatMap((name, turn) => apart(whole(pieces[name]!), turn)))))
    for (const second of Object.keys(pieces)) {
      const alone = turns(second)
      assert.isNotEmpty(alone)
      for (const first of Object.keys(pieces)) {
        assert.deepStrictEqual(turns(first, second), [...turns(first), ...alone], `${second} behind ${first}`)
      }
    }
  })

  for (const [where, inPlace] of Object.entries(places)) {
    it(`V-07: Studio shows a text kept with its reply before calls that began early, ${where}`, () => {
      const [early, late] = [call("c0", "look", "Oslo"), call("c1", "pay", "here")]
      const live = [started, ...text("I "), ...text("look."), ...early, ...late, { _tag: "MessageCompleted" }]
      const kept = [
        started,
        ...early.slice(-1),
        { _tag: "TextCompleted", id: null, text: "I look." },
        ...late.slice(-1),
        { _tag: "MessageCompleted" }
      ]
      const shown = shownBy(run("r1", inPlace(live)))
      assert.include(JSON.stringify(shown), "I look.")
      assert.deepStrictEqual(shownBy(run("r1", inPlace(kept))), shown)
    })

    for (const [what, behind] of Object.entries(before)) {
      it(`W-19: Studio shows a repeated reply like an unbroken reply, after ${what}, ${where}`, () => {
        const reset = { _tag: "StepReset", error: { code: "resumed", message: "" } }
        for (const second of replies) {
          const alone = shownBy(behind(inPlace(whole(second.events))))
          assert.isNotEmpty(alone)
          for (const first of sampleOf(replies, 4)) {
            // The reply breaks at each of its places.
            for (let length = 0; length <= first.events.length; length++) {
              const broken = [started, ...first.events.slice(0, length), reset]
              const seen = shownBy(behind(inPlace([...broken, ...whole(second.events)])))
              assert.deepStrictEqual(seen, alone, `${second.name} behind ${length} events of ${first.name}`)
            }
          }
        }
      })
    }

    it(`W-19: Studio shows a run after another run like the only run, ${where}`, () => {
      for (const second of replies) {
        const alone = shownBy(run("r1", inPlace(whole(second.events))))
        assert.isNotEmpty(alone)
        for (const first of replies) {
          const other = run("r0", inPlace(whole(first.events)))
          const seen = shownBy([...other, ...run("r1", inPlace(whole(second.events)))])
          assert.deepStrictEqual(seen, [...shownBy(other), ...alone], `${second.name} behind ${first.name}`)
        }
      }
    })
  }
})
