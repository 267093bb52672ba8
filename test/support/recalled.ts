/** Runs whose calls a journal knows from before: what a resumed run is to the loop and to its calls. */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { type Chat, Collector, type Message, type Tool, type ToolRunner } from "heddle"
import * as Fold from "../../src/internal/fold/fold.ts"
import * as Loop from "../../src/internal/loop/loop.ts"
import * as Pulled from "../../src/internal/loop/scopedPull.ts"
import * as Batches from "../../src/internal/run/batch.ts"
import type * as RunJournal from "../../src/internal/run/runJournal.ts"

/** The events of calls that a journal may know. */
export const streamCalls = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options<any>,
  journal: RunJournal.Journal
) =>
  Pulled.stream((scope) =>
    Effect.map(Batches.begin<any, never>(calls, tools, options, scope, { journal }), ({ pull }) => () => pull)
  )

/** The answers of such calls, in call order, and the halt that decides. */
export const runCalls = (
  calls: ReadonlyArray<Message.ToolCall>,
  tools: ReadonlyArray<Tool.Any>,
  options: ToolRunner.Options<any>,
  journal: RunJournal.Journal
) =>
  Effect.map(Stream.runCollect(streamCalls(calls, tools, options, journal)), (events) => {
    const answers = new Fold.ToolAnswers()
    for (const event of events) answers.add(event)
    const ids = calls.map(({ id }) => id)
    return { messages: answers.inOrder(ids), halt: answers.deciding(ids, "request") }
  })

/** The result of a run whose calls a journal may know. */
export const runChat = (input: string, options: Chat.Options<ReadonlyArray<Tool.Any>>, journal: RunJournal.Journal) => {
  const start: RunJournal.Start = {
    steps: [],
    settled: [],
    noted: {},
    attempt: 0,
    introduced: 0,
    spent: null,
    kept: {},
    turn: undefined,
    earlier: undefined,
    inside: undefined,
    hasBegun: false,
    ends: undefined
  }
  const events = Pulled.stream((scope, context: Context.Context<never>) =>
    Loop.enter<never, never>(input, options, true, scope, context, { start, journal, appends: undefined, given: {} })
  )
  return Effect.map(
    Stream.runCollect(events),
    (events) => Collector.toChatResult(Collector.applyAll(Collector.initial(), events.slice(-1)))
  )
}
