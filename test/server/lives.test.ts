/** Runs as pages show them: each the same from the log of the process that drives it and from its journal. */
import { describe } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Event } from "heddle"
import type { UiStream } from "heddle/ui"
import * as Telling from "../../src/server/internal/journalEvents.ts"
import { property } from "../support/property.ts"
import { chunksOf } from "../ui/support/page.ts"
import { journalOf, type Program, programs } from "./support/programs.ts"

type Fields = Record<string, unknown>

/** What a page shows of a run: the text and the calls of each step, answers to calls of earlier runs, and its end. */
const shownOf = (events: ReadonlyArray<Event.PublicEvent>): string => {
  const steps: Array<{ text: string; calls: Record<string, Fields> }> = []
  const earlier: Record<string, Fields> = {}
  const questions: Array<unknown> = []
  let end: UiStream.Chunk | undefined
  const callOf = (id: string): Fields => steps.findLast(({ calls }) => id in calls)?.calls[id] ?? (earlier[id] ??= {})
  for (const chunk of chunksOf(events)) {
    const { data, delta, toolCallId, type, ...rest } = chunk
    const step = steps.at(-1)
    const id = String(toolCallId)
    if (type === "start-step") steps.push({ text: "", calls: {} })
    else if (type === "reset-step") steps[steps.length - 1] = { text: "", calls: {} }
    else if (type === "text-delta" && step !== undefined) step.text += String(delta)
    else if (type === "tool-input-start" && step !== undefined) step.calls[id] = { name: rest["toolName"] }
    else if (type.startsWith("tool-") && type !== "tool-input-delta" && rest["preliminary"] !== true) {
      callOf(id)[type] = rest
    } else if (type === "data-heddle-question") questions.push(data)
    else if (type === "finish" || type === "error") end = chunk
  }
  const shown = steps.flatMap(({ calls, text }) => {
    // A call that started early is recorded before those before it.
    const sorted = Object.entries(calls).sort(([one], [other]) => one < other ? -1 : 1)
    return text !== "" || sorted.length > 0 ? [{ text, calls: sorted }] : []
  })
  return JSON.stringify({ steps: shown, earlier, questions, end })
}

/** The runs of a program whose page differs. */
const differing = (program: Program) =>
  Effect.gen(function*() {
    const lives = new Map<string, Array<Event.PublicEvent>>()
    let calls = new Map<string, Event.PublicCall>()
    let runId = ""
    const entries = yield* journalOf(program, {
      onRun: (kept, id) =>
        Effect.gen(function*() {
          runId = id
          calls = new Map()
          const past = kept.interrupted === undefined ? [] : yield* Effect.orDie(Telling.eventsOf(kept.id, id, {}))
          lives.set(id, [...past])
        }),
      onEvent: (event) => {
        const shown = Event.toPublic(event, { runId, calls })
        if (shown !== undefined) lives.get(runId)?.push(shown)
      }
    })
    const telling = new Telling.Telling("s", {})
    const told = entries.flatMap((entry) => telling.take(entry))
    return Array.from(lives).flatMap(([id, live]) => {
      // A run that could not start has no end in the journal, and the next attempt follows it.
      if (live.at(-1)?._tag !== "ChatCompleted") return []
      const journal = told.flatMap(({ event, runId }) => runId === id ? [event] : [])
      const [one, other] = [shownOf(live), shownOf(journal)]
      return one === other ? [] : [`${one}\n${other}`]
    })
  })

describe("a run", () => {
  property("R-523: is shown from its journal as it was shown while it lived", programs, differing, 100)
})
