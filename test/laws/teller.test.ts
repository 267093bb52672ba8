/**
 * A reply becomes events in one function: what it tells of random replies folds to them, and a run shows the same on a
 * page while it lives, told from its journal, and loaded from its thread.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Collector, type Event, Message, Policy, type Response, Session, Thread, Tool } from "heddle"
import { UiStream } from "heddle/ui"
import * as Teller from "../../src/internal/answer/teller.ts"
import * as JournalEvents from "../../src/server/internal/journalEvents.ts"
import { published } from "../support/pages.ts"
import { check, property } from "../support/property.ts"
import { chunksOf, readMessage } from "../ui/support/page.ts"

/** The pieces of a reply, and the way in which it ends. */
const replies = Arbitrary.schema(Schema.Struct({
  pieces: Schema.Array(Schema.Struct({
    kind: Schema.Literals(["text", "text", "thought", "call", "lost", "providers", "open"]),
    word: Schema.Literals(["", "one ", "two "]),
    raw: Schema.Literals(["none", "", "{\"v\":1}", "{\"v\":"])
  })).check(Schema.isMaxLength(6)),
  isTold: Schema.Boolean,
  ends: Schema.Literals(["stop", "tool_calls", "length", "none", "error", "broken"]),
  word: Schema.Literals(["none", "end_turn"]),
  isPaused: Schema.Boolean,
  isCounted: Schema.Boolean
}))

type Reply = typeof replies extends Arbitrary.Arbitrary<infer A> ? A : never

const usage = { inputTokens: 3, outputTokens: 2 } as unknown as Response.Usage

const callOf = ({ kind, raw, word }: Reply["pieces"][number], id: string): Message.ToolCall => ({
  ...Message.toolCall(id, word === "two " ? "nosuch" : "echo", kind === "lost" ? {} : { v: word }),
  ...(raw === "none" ? {} : { rawArguments: raw }),
  ...(kind === "lost" ? { argumentsLost: "json_decode_error" as const } : {}),
  ...(kind === "providers" ? { providerExecuted: true } : {})
})

/** The events that an adapter emits for a reply. */
const eventsOf = ({ ends, isCounted, isPaused, isTold, pieces, word }: Reply): ReadonlyArray<Event.AdapterEvent> => {
  const text = pieces.filter(({ kind }) => kind === "text").map(({ word }) => word).join("")
  const calls: Array<Message.ToolCall> = []
  const events = pieces.flatMap((piece, index): ReadonlyArray<Event.AdapterEvent> => {
    const id = `c${index}`
    if (piece.kind === "text") return [{ _tag: "TextDelta", id: null, delta: piece.word }]
    if (piece.kind === "thought") return [{ _tag: "ReasoningDelta", id: null, delta: piece.word }]
    if (piece.kind === "open") {
      return [
        { _tag: "ToolCallStarted", id, name: "echo" },
        ...(piece.raw === "none" ? [] : [{ _tag: "ToolCallDelta", id, argumentsDelta: piece.raw } as const])
      ]
    }
    const call = callOf(piece, id)
    calls.push(call)
    return [
      { _tag: "ToolCallStarted", id, name: call.name },
      { _tag: "ToolCallCompleted", rawArguments: "", ...call }
    ]
  })
  const thoughts = pieces.filter(({ kind }) => kind === "thought")
  const message: Message.Message = {
    ...Message.assistant(text, calls),
    ...(thoughts.length === 0 ? {} : { reasoning: thoughts.map(({ word }) => ({ type: "reasoning", text: word })) })
  }
  const completed: Event.AdapterEvent = {
    _tag: "MessageCompleted",
    message,
    finishReason: ends === "broken" ? "error" : ends === "none" ? null : ends,
    ...(word === "none" ? {} : { rawFinishReason: word, responseId: "r1", model: "m", metadata: { trace: "t" } }),
    ...(isPaused ? { paused: true } : {}),
    ...(isCounted ? { usage } : {})
  }
  return [
    { _tag: "MessageStarted", message: Message.assistant("") },
    ...events,
    ...(isTold && text !== "" ? [{ _tag: "TextCompleted", id: null, text } as const] : []),
    ...(ends === "broken" ? [{ _tag: "Error", error: { code: "broken" } } as const] : [completed])
  ]
}

type Tell = (reply: Response.Response) => ReadonlyArray<Event.AdapterEvent>

const policies = [Policy.standard, Policy.allm, Policy.falai]

/** The difference between a reply and the fold of its events. */
const unfolded = (tell: Tell) => (reply: Reply) =>
  Effect.sync(() =>
    policies.flatMap((policy) => {
      const fold = (events: ReadonlyArray<Event.AdapterEvent>) =>
        Collector.toResponse(Collector.applyAll(Collector.initial({ policy, thread: Thread.empty }), events))
      const response = fold(eventsOf(reply))
      const [once, again] = [response, fold(tell(response))].map((one) => JSON.stringify(sorted(one)))
      return once === again ? [] : [`${once}\n${again}`]
    })
  )

/** The value with its keys in order. */
const sorted = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== "object" || value === null) return value
  return Object.fromEntries(
    Object.entries(value).sort(([one], [other]) => one < other ? -1 : 1).map(([key, member]) => [key, sorted(member)])
  )
}

const echo = Tool.make("echo", {
  parameters: { type: "object" } as const,
  handler: (args) => Effect.succeed(args)
})

interface Shown {
  readonly type: string
  readonly text?: string
  readonly [name: string]: unknown
}

/** What a page shows of a message: of each step the text, the reasoning and the calls. */
const shownIn = (
  parts: ReadonlyArray<Shown>,
  { hasErrors = true, hasProviders = true }: { readonly hasErrors?: boolean; readonly hasProviders?: boolean } = {}
): ReadonlyArray<unknown> => {
  const steps: Array<{ text: string; thought: string; readonly calls: Array<unknown> }> = []
  for (const part of parts) {
    const { errorText, input, output, providerExecuted, rawInput, state, text = "", toolCallId, toolName, type } = part
    if (type === "step-start") steps.push({ text: "", thought: "", calls: [] })
    const step = steps.at(-1)
    if (type === "text" && step !== undefined) step.text += text
    if (type === "reasoning" && step !== undefined) step.thought += text
    if (type === "dynamic-tool" && (hasProviders || providerExecuted !== true)) {
      const error = hasErrors ? { errorText } : {}
      step?.calls.push({ toolCallId, toolName, state, input: rawInput ?? input, output, ...error })
    }
  }
  // A page does not show a step without anything, and does not keep one at the end of a message.
  return steps.filter(({ calls, text, thought }) => text !== "" || thought !== "" || calls.length > 0)
}

type Record = Parameters<JournalEvents.Telling["take"]>[0]["record"]

/** Runs a session whose model replies with a reply, and returns what pages show of it in three ways. */
const shows = (given: Reply, change: (record: Record) => Record) =>
  Effect.gen(function*() {
    // The adapters complete each call. Of another one a page knows its arguments from the journal alone.
    const pieces = given.pieces.map((piece) => piece.kind === "open" ? { ...piece, kind: "call" as const } : piece)
    const reply = { ...given, pieces }
    let requests = 0
    const model = Adapter.layer({
      stream: () =>
        Stream.fromIterable(
          ++requests === 1
            ? eventsOf(reply)
            : eventsOf({
              ...reply,
              pieces: [{ kind: "text", word: "one ", raw: "none" }],
              ends: "stop",
              isPaused: false
            })
        )
    })
    const events: Array<Event.Event> = []
    const opened = yield* Session.open("s")
    const kept = yield* Session.keep(opened, (session) =>
      Session.reply(session, "go", {
        tools: [echo],
        maxTurns: 3,
        onEvent: (event) => void events.push(event)
      })).pipe(
        Effect.provide(model)
      )
    const store = yield* Session.Store
    const options = { publishReasoning: true }
    const telling = new JournalEvents.Telling("s", options)
    const told = Array.from(yield* Stream.runCollect(store.read("s"))).flatMap((entry) =>
      telling.take({ ...entry, record: change(entry.record) }).map(({ event }) => event)
    )
    const page = (events: ReadonlyArray<Event.PublicEvent>) =>
      Effect.map(
        Effect.promise(() => readMessage(chunksOf(events))),
        ({ message }) => (message?.parts ?? []) as unknown as ReadonlyArray<Shown>
      )
    return {
      live: yield* page(published(events, options)),
      journal: yield* page(told),
      thread: UiStream.messages(kept.session.thread, options).flatMap(({ parts, role }) =>
        role === "user" ? [] : parts
      ) as ReadonlyArray<Shown>,
      isBroken: reply.ends === "broken" || reply.ends === "error"
    }
  }).pipe(Effect.provide(Session.Store.layerMemory))

const unlike = (change: (record: Record) => Record) => (reply: Reply) =>
  Effect.map(shows(reply, change), ({ isBroken, journal, live, thread }) => {
    const differing = (name: string, one: ReadonlyArray<unknown>, other: ReadonlyArray<unknown>) =>
      JSON.stringify(one) === JSON.stringify(other) ? [] : [`${name}: ${JSON.stringify(one)}\n${JSON.stringify(other)}`]
    const hasErrors = !isBroken
    const own = { hasProviders: false }
    return [
      // The journal does not record why the calls of a reply that ended in an error did not run.
      ...differing("live and journal", shownIn(live, { hasErrors }), shownIn(journal, { hasErrors })),
      // The thread does not keep such a reply, and keeps calls of the provider beside the content.
      ...isBroken ? [] : differing("live and thread", shownIn(live, own), shownIn(thread, own))
    ]
  })

const tellsReplayed: Tell = (reply) => Teller.ofReply(reply, { replayed: true })

const same = (record: Record): Record => record

describe("the teller of a reply", () => {
  property("R-520: the events of a recorded reply fold to that reply", replies, unfolded(tellsReplayed), 2000)
  property(
    "R-521: a page shows a reply live as told from the journal and loaded from the thread",
    replies,
    unlike(same),
    400
  )
})

// ---------------------------------------------------------------------------------------------------------------------
// planted mistakes

const changed = (change: (event: Event.AdapterEvent) => ReadonlyArray<Event.AdapterEvent>): Tell => (reply) =>
  tellsReplayed(reply).flatMap(change)

const whole = <A extends { readonly argumentsLost?: unknown }>(call: A): Omit<A, "argumentsLost"> => {
  const { argumentsLost: _, ...rest } = call
  return rest
}

const planted: { readonly [name: string]: Tell } = {
  "the text is left out": changed((event) => event._tag === "TextCompleted" ? [] : [event]),
  "lost arguments are whole": changed((event) => event._tag === "ToolCallCompleted" ? [whole(event)] : [event]),
  "the error is left out": changed((event) => event._tag === "Error" ? [] : [event]),
  "a broken reply is completed": (reply) =>
    tellsReplayed({ ...reply, message: reply.message ?? Message.assistant(reply.outputText ?? "") }),
  "the text of the arguments is made up": changed((event) =>
    event._tag === "ToolCallCompleted" && event.rawArguments === "" ? [{ ...event, rawArguments: "{}" }] : [event]
  )
}

const ofReply = (change: (reply: Response.Response) => Partial<Response.Response>) => (record: Record): Record =>
  (record._tag === "ReplyReceived" || record._tag === "StepCompleted") && record.response !== undefined
    ? { ...record, response: { ...record.response, ...change(record.response) } } as Record
    : record

const plantedInJournals: { readonly [name: string]: (record: Record) => Record } = {
  "the journal loses the reasoning": ofReply(() => ({ reasoning: "" })),
  "the journal loses a call": ofReply(({ toolCalls }) => ({ toolCalls: toolCalls.slice(1) })),
  "the journal trusts lost arguments": ofReply(({ toolCalls }) => ({
    toolCalls: toolCalls.map(whole)
  })),
  "the answer of a call is no error": (record) =>
    record._tag === "CallEnded" ? { ...record, message: { ...record.message, isError: false } } : record
}

describe("planted mistakes of the teller and the journal", () => {
  for (const [name, change] of Object.entries(plantedInJournals)) {
    it.effect(`a law finds the planted mistake: ${name}`, () =>
      Effect.map(
        check(name, replies, unlike(change), { seed: "planted", runs: 60 }),
        (found) => assert.isDefined(found)
      ))
  }
  for (const [name, tell] of Object.entries(planted)) {
    it.effect(`a law finds the planted mistake: ${name}`, () =>
      Effect.map(
        check(name, replies, unfolded(tell), { seed: "planted", runs: 200 }),
        (found) => assert.isDefined(found)
      ))
  }
})
