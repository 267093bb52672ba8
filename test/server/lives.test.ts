/** Runs as pages show them: each the same from the log of the process that drives it and from its journal. */
import { describe } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Event } from "heddle"
import { UiStream } from "heddle/ui"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
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

/** Carries a program out, and returns its journal, and the events of each run as they lived. */
const livesOf = (program: Program) =>
  Effect.gen(function*() {
    const lives = new Map<string, Array<Event.PublicEvent>>()
    let calls = new Map<string, Event.PublicCall>()
    let runId = ""
    const entries = yield* journalOf(program, {
      onRun: (kept, id) =>
        Effect.gen(function*() {
          runId = id
          calls = new Map()
          const past = kept.interrupted === undefined
            ? []
            : yield* Effect.orDie(JournalEvents.eventsOf(kept.id, id, {}))
          lives.set(id, [...past])
        }),
      onEvent: (event) => {
        const shown = Event.toPublic(event, { runId, calls })
        if (shown !== undefined) lives.get(runId)?.push(shown)
      }
    })
    return { entries, lives }
  })

/** The runs of a program whose page differs. */
const differing = (program: Program) =>
  Effect.map(livesOf(program), ({ entries, lives }) => {
    const telling = new JournalEvents.Telling("s", {})
    const told = entries.flatMap((entry) => telling.take(entry))
    return Array.from(lives).flatMap(([id, live]) => {
      // A run that could not start has no end in the journal, and the next attempt follows it.
      if (live.at(-1)?._tag !== "ChatCompleted") return []
      const journal = told.flatMap(({ event, runId }) => runId === id ? [event] : [])
      const [one, other] = [shownOf(live), shownOf(journal)]
      return one === other ? [] : [`${one}\n${other}`]
    })
  })

/** What a page shows of all messages of the assistant: the texts of the steps, and the last state of each call. */
class Page {
  readonly texts: Array<string> = []
  readonly calls: Record<string, string> = {}

  push({ delta, errorText, input, output, preliminary, state, text, toolCallId, type }: Fields): void {
    const id = String(toolCallId)
    const isPart = state !== undefined
    if (type === "start-step" || type === "step-start" || type === "reset-step") this.texts.push("")
    else if (type === "text-delta" || type === "text") this.texts.push((this.texts.pop() ?? "") + String(delta ?? text))
    else if (type === "tool-input-available") this.calls[id] = `input ${JSON.stringify(input)}`
    else if (type === "tool-output-available" && preliminary !== true) {
      this.calls[id] = `output ${JSON.stringify(output)}`
    } else if (type === "tool-output-error") this.calls[id] = `error ${String(errorText)}`
    else if (type === "tool-output-denied") this.calls[id] = "denied"
    else if (type === "tool-approval-request") this.calls[id] = "approval"
    else if (isPart && type === "dynamic-tool") {
      this.calls[id] = state === "input-available"
        ? `input ${JSON.stringify(input)}`
        : state === "output-available"
        ? `output ${JSON.stringify(output)}`
        : state === "output-error"
        ? `error ${String(errorText)}`
        : state === "output-denied"
        ? "denied"
        : "approval"
    }
  }

  get shown(): string {
    return JSON.stringify([this.texts.filter((text) => text !== ""), Object.entries(this.calls).sort()])
  }
}

/** The difference between the page that saw all runs of a program and the page that is loaded after them. */
const reloaded = (program: Program) =>
  Effect.gen(function*() {
    // A thread does not keep a reply that failed, and has the answer to a question in words as a message of the user.
    const kept = program.map(({ calls, ...rest }) => ({
      ...rest,
      isFailing: false,
      calls: calls.filter((name) => name !== "ask")
    }))
    const { entries, lives } = yield* livesOf(kept)
    const telling = new JournalEvents.Telling("s", {})
    for (const entry of entries) telling.take(entry)
    const live = new Page()
    for (const events of lives.values()) for (const chunk of chunksOf(events)) live.push(chunk)
    const loaded = new Page()
    const { suspensions, thread } = telling.kept.session
    for (const { parts, role } of UiStream.messages(thread, { suspensions, runId: "r" })) {
      if (role === "assistant") { for (const part of parts) loaded.push(part) }
    }
    return live.shown === loaded.shown ? [] : [`${live.shown}\n${loaded.shown}`]
  })

describe("a run", () => {
  property("R-524: a loaded page shows a run like a page that saw the run live", programs, reloaded, 100)

  property("R-523: a run is shown from its journal as it was shown live", programs, differing, 100)
})
