/** The fold, the layout and the words over generated runs: each says what the events of the run say. */
import { describe } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Event, Response } from "heddle"
import * as Words from "../../src/studio/chat/words.ts"
import * as Fold from "../../src/studio/data/fold.ts"
import * as Layouts from "../../src/studio/run/layout.ts"
import * as Phrases from "../../src/studio/run/phrases.ts"
import { cases } from "../support/cases.ts"
import { property } from "../support/property.ts"
import { play, type Trace } from "../support/worlds.ts"

/** Returns the public events of a run, with their times. */
const toldOf = ({ emitted }: Trace): ReadonlyArray<Fold.Told> => {
  const calls = new Map<string, Event.PublicCall>()
  const events = emitted.flatMap((entry) =>
    entry._tag === "Emitted" ? Event.toPublic(entry.event, { calls, runId: "r", at: 1_000 + entry.at }) ?? [] : []
  )
  return [{ _tag: "RunStarted", runId: "r", at: 1_000 }, ...events]
}

/** Returns the states that the events of the run itself say, by the ids of calls. */
const statesOf = (events: ReadonlyArray<Fold.Told>): ReadonlyMap<string, Fold.State> => {
  const states = new Map<string, Fold.State>()
  const isCancelled = events.some((event) => event._tag === "ChatCompleted" && event.outcome._tag === "Cancelled")
  const named = (code: string | undefined, isError: boolean | undefined): Fold.State => {
    if (code === "denied") return "denied"
    if (code === "cancelled" || code === "abandoned" && isCancelled) return "cancelled"
    return isError === true ? "failed" : "done"
  }
  for (const event of events) {
    if (event._tag === "ToolResultEncoded") states.set(event.id, named(event.code, event.isError))
    if (event._tag === "ToolHalt") states.set(event.toolCallId, named(event.code, event.isError))
    if (event._tag === "ChatCompleted") {
      for (const { toolCall } of event.suspensions ?? []) states.set(toolCall.id, "asks")
    }
  }
  return states
}

/** Returns the counts of a run that its calls do not have. */
const wrongCounts = ({ counts, list }: Fold.Run): ReadonlyArray<string> => {
  const expected = {
    early: list.filter(({ isEarly }) => isEarly).length,
    ...Object.fromEntries(
      (["failed", "denied", "cancelled", "asks", "running"] as const).map((
        state
      ) => [state, list.filter((call) => call.state === state).length])
    )
  }
  return Object.entries(expected).flatMap(([name, number]) =>
    counts[name as keyof Fold.Counts] === number ? [] : [`${counts[name as keyof Fold.Counts]} ${name}, not ${number}`]
  )
}

const shape = (layout: Layouts.Layout): string =>
  JSON.stringify(Array.from(layout.bars.values(), ({ call, depth, row }) => [call.path, row, depth]))

/** Returns what is wrong with the picture and the table of a run. */
const wrongIn = (run: Fold.Run, layout: Layouts.Layout): ReadonlyArray<string> => {
  const whole = Layouts.make(run)
  const now = run.end ?? run.now
  return [
    ...(shape(layout) === shape(whole) ? [] : [`the picture has ${shape(layout)}, and the whole run ${shape(whole)}`]),
    ...(whole.bars.size === run.list.length ? [] : [`${whole.bars.size} bars of ${run.list.length} calls`]),
    ...whole.rows.flatMap((bars, row) =>
      bars.flatMap((bar, index) => {
        const next = bars[index + 1]
        return next !== undefined && Layouts.endOf(bar, now) > next.call.asked ? [`row ${row}: ${bar.call.path}`] : []
      })
    ),
    ...run.list.flatMap((call) => {
      const [waited, ran] = [Phrases.waitedOf(call, now) ?? 0, Words.ranOf(call, now) ?? 0]
      const isSound = waited >= 0 && ran >= 0 && Phrases.readyOf(call) + waited <= now + 1e-6
      return isSound && !Phrases.about(run, call).includes("NaN") ? [] : [`${call.path}: ${Phrases.about(run, call)}`]
    })
  ]
}

describe("generated runs", () => {
  property(
    "V-08: the fold has the states, texts and usage of the events, and the picture and the table have its calls",
    cases,
    (played) =>
      Effect.map(play(played, "stream"), (trace) => {
        const told = toldOf(trace)
        const run = Fold.make("r")
        let layout = Layouts.make(run)
        const wrong: Array<string> = []
        told.forEach((event, index) => {
          Fold.take(run, event)
          if (index % 3 === 0) layout = Layouts.extend(layout, run)
          wrong.push(...wrongCounts(run).map((text) => `${event._tag}: ${text}`))
        })
        for (const [id, state] of statesOf(told)) {
          const call = run.calls.get(Fold.pathOf("", id))
          if (call?.state !== state) wrong.push(`${id} is ${call?.state}, not ${state}`)
        }
        const published = new Set(told.flatMap((event) => event._tag === "ToolCallStarted" ? [event.id] : []))
        const steps = trace.events.filter(Event.guards.StepCompleted)
        const turns = run.turns.filter(({ owner }) => owner === "")
        steps.forEach(({ response }, index) => {
          // The text of a reply that broke off may not have been published.
          if (response.message === null) return
          const [said, text] = [turns[index]?.text, Response.text(response) ?? ""]
          if (said !== text) wrong.push(`turn ${index} says ${JSON.stringify(said)}, not ${JSON.stringify(text)}`)
          // A call whose name comes late is published behind those that began after it.
          const calls = turns[index]?.calls.map((path) => run.calls.get(path)?.id).toSorted()
          // A call without a name is not published.
          const ids = response.toolCalls.flatMap(({ id }) => published.has(id) ? [id] : []).toSorted()
          if (JSON.stringify(calls) !== JSON.stringify(ids)) wrong.push(`turn ${index} has ${calls}, not ${ids}`)
        })
        return [...wrong, ...wrongIn(run, Layouts.extend(layout, run))].slice(0, 5)
      }),
    500
  )
})
