/** The thread on a page of a test: runs are folded from events here, and answers are kept. */
import { StrictMode } from "react"
import { flushSync } from "react-dom"
import { createRoot } from "react-dom/client"
import type { Answer, Suspension, ToolFacts } from "../../../src/studio/chat/Approval.tsx"
import { Asks } from "../../../src/studio/chat/Asks.tsx"
import type { Actions, Said } from "../../../src/studio/chat/Message.tsx"
import { Waiting } from "../../../src/studio/chat/Sent.tsx"
import { type Shown, Thread } from "../../../src/studio/chat/Thread.tsx"
import * as Fold from "../../../src/studio/data/fold.ts"
import type { Letter, Unanswered } from "../../../src/studio/data/store.ts"
import { empty, parse } from "../../../src/studio/markdown/parse.ts"
import { Live } from "../../../src/studio/parts/Live.tsx"

type Event = Fold.Told

const root = createRoot(document.getElementById("studio")!)

const runs = new Map<string, { run: Fold.Run; message?: Said }>()
let suspensions: ReadonlyArray<Suspension> = []
let facts: ReadonlyArray<ToolFacts> = []
let waiting: ReadonlyArray<Letter> = []
/** `true` while a run is under way. */
let isRunning = false
let refusal: Unanswered | undefined
let older: Array<() => void> = []
const answers: Array<Answer> = []
const done: Array<string> = []

const actions: Actions = {
  onAgain: ({ id }) => void done.push(`again ${id}`),
  onEdit: async ({ id }, text) => {
    done.push(`edit ${id} ${text}`)
    return typeof refusal === "object" ? refusal.sentence : refusal
  },
  branches: ({ id }) =>
    id === "branched" ? { at: 2, of: 3, onStep: (places) => void done.push(`step ${places}`) } : undefined
}

const onAnswer = async (given: ReadonlyArray<Answer>) => {
  answers.push(...given)
  if (refusal === undefined) {
    suspensions = suspensions.filter(({ id }) => given.every((answer) => answer.id !== id))
    setTimeout(draw)
  }
  return refusal
}

const onOlder = () => {
  older.pop()?.()
  setTimeout(draw)
}

/** Draws at once, and returns the milliseconds. */
const draw = (): number => {
  const start = performance.now()
  const shown = Array.from(runs.values(), ({ message, run }): Shown => ({
    run,
    version: run.version,
    ...(message === undefined ? {} : { message })
  }))
  flushSync(() =>
    root.render(
      <StrictMode>
        <Thread
          shown={shown}
          waiting={
            <Waiting
              snapshot={{
                shown: shown as never,
                running: isRunning ? shown.at(-1)?.run : undefined,
                session: undefined,
                state: "ready",
                waiting
              }}
              onWithdraw={({ id }) => void done.push(`withdraw ${id}`)}
            />
          }
          actions={actions}
          hasOlder={older.length > 0}
          onOlder={onOlder}
        >
          {suspensions.length > 0 ? <Asks suspensions={suspensions} facts={facts} onAnswer={onAnswer} /> : undefined}
        </Thread>
        <Live />
      </StrictMode>
    )
  )
  return performance.now() - start
}

/** The events of a run that says a text. */
const saying = (text: string, at = 1_000): ReadonlyArray<Event> => [
  { _tag: "RunStarted", runId: "r", at } as Event,
  { _tag: "MessageStarted", at: at + 100 } as Event,
  { _tag: "TextDelta", id: null, delta: text, at: at + 200 } as Event,
  { _tag: "MessageCompleted", at: at + 300 } as Event,
  { _tag: "StepCompleted", usage: { inputTokens: 12, outputTokens: 34 }, at: at + 300 } as Event,
  { _tag: "ChatCompleted", outcome: { _tag: "Completed" }, at: at + 400 } as Event
]

/** The events of a run that has a text in every place. */
const everywhere = (text: string): ReadonlyArray<Event> => {
  const call = (id: string, ...more: ReadonlyArray<object>) => [
    { _tag: "ToolCallStarted", id, name: text },
    { _tag: "ToolCallCompleted", id, name: text, arguments: { [text]: text, list: [text] } },
    { _tag: "ToolExecutionStarted", id, name: text },
    { _tag: "ToolProgress", id, name: text, progress: text },
    ...more
  ]
  return [
    { _tag: "RunStarted", runId: "r", at: 1_000 },
    { _tag: "MessageStarted" },
    { _tag: "ReasoningDelta", id: null, delta: text },
    { _tag: "TextDelta", id: null, delta: `${text}\n\n> ${text}\n\n- ${text}\n\n| a |\n|---|\n| ${text} |\n` },
    {
      _tag: "TextDelta",
      id: null,
      delta: `\n\`\`\`${text}\n${text}\n\`\`\`\n\n[${text}](${text}) ![${text}](${text})`
    },
    ...call("a", { _tag: "ToolResultEncoded", id: "a", content: text }),
    ...call("b", { _tag: "ToolResultEncoded", id: "b", content: JSON.stringify({ error: text }), isError: true }),
    ...call("c", {
      _tag: "ToolResultEncoded",
      id: "c",
      content: text,
      isError: true,
      code: "denied",
      by: text,
      detail: text
    }),
    ...call("d", {
      _tag: "ToolResultEncoded",
      id: "d",
      content: [{ type: "text", text }, { type: "image", mediaType: text }]
    }),
    ...call("e"),
    ...call("f", { _tag: "ToolQueued", id: "f", name: text, reason: "key", key: text }),
    { _tag: "Error", error: { code: "x", message: text } },
    { _tag: "MessageDelivered", id: "m", content: text, stepIndex: 0 },
    { _tag: "MessageRefused", id: "n", content: text, reason: text },
    { _tag: "StopAccepted", by: text },
    {
      _tag: "ChatCompleted",
      outcome: { _tag: "Cancelled", reason: text },
      abandoned: [{ id: "e", name: text, kind: "handler", ageMillis: 5 }],
      at: 2_000
    }
  ] as unknown as ReadonlyArray<Event>
}

/** Suspensions of each kind that have a text in every place. */
const asking = (text: string): ReadonlyArray<Suspension> => {
  const toolCall = { id: "c", name: text, arguments: { [text]: text } }
  const of = (id: string, kind: Suspension["kind"], more: object = {}) =>
    ({ id, kind, toolCall, ...more }) as unknown as Suspension
  return [
    of("1", "approval", { question: text }),
    of("2", "approval", { remember: "tool" }),
    of("3", "unknown", { question: text }),
    of("4", "question", { question: text, opts: [text, { [text]: text }] }),
    of("5", "question", { question: text, answerSchema: { enum: [text, 2] } }),
    of("6", "question", {
      answerSchema: { type: "object", properties: { [text]: { type: "string", description: text } } }
    }),
    of("7", "question", { answerSchema: { type: "string", description: text } }),
    of("8", "question", { answerSchema: { type: "array", items: { title: text } } }),
    of("9", "manual")
  ]
}

const add = (id: string, events: ReadonlyArray<Event>, said?: string): void => {
  const run = Fold.make(id)
  for (const event of events) Fold.take(run, event)
  runs.set(id, { run, ...(said === undefined ? {} : { message: { id, content: said } }) })
}

const frame = () => new Promise<void>((resolve) => requestAnimationFrame(() => setTimeout(resolve)))

const log = () => document.querySelector<HTMLElement>(".thread")!

const middle = (times: ReadonlyArray<number>) => [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)]!

const api = {
  answers,
  done,
  frame,
  draw,
  /** Shows runs instead of others. */
  show: (list: ReadonlyArray<{ id: string; events: ReadonlyArray<Event>; said?: string }>) => {
    runs.clear()
    for (const { events, id, said } of list) add(id, events, said)
    return draw()
  },
  say: (list: ReadonlyArray<{ id: string; text: string; said?: string }>) =>
    api.show(list.map(({ text, ...each }) => ({ ...each, events: saying(text) }))),
  clear: () => {
    runs.clear()
    suspensions = []
    waiting = []
    isRunning = false
    older = []
    answers.length = done.length = 0
    refusal = undefined
    draw()
  },
  push: (id: string, events: ReadonlyArray<Event>) => {
    for (const event of events) Fold.take(runs.get(id)!.run, event)
    return draw()
  },
  ask: (list: ReadonlyArray<Suspension>, about: ReadonlyArray<ToolFacts> = []) => {
    suspensions = list
    facts = about
    return draw()
  },
  wait: (list: ReadonlyArray<Letter>, isUnderWay = false) => {
    waiting = list
    isRunning = isUnderWay
    return draw()
  },
  refuse: (given: Unanswered | undefined) => void (refusal = given),
  distance: () => log().scrollHeight - log().scrollTop - log().clientHeight,
  /** Milliseconds of the parse of a text at once. */
  parsing: (text: string) => {
    const start = performance.now()
    parse(empty, text, true)
    return performance.now() - start
  },
  /** A reply that grows by deltas behind its beginning: the milliseconds of the script of each. */
  grow: async (text: string, from: number, size: number) => {
    runs.clear()
    draw()
    add("grow", saying(text.slice(0, from)).slice(0, 3))
    draw()
    // The beginning is parsed in several tasks.
    for (let length = -1; length !== log().textContent.length;) {
      length = log().textContent.length
      for (let count = 0; count < 4; count++) await frame()
    }
    const times: Array<number> = []
    for (let at = from; at < text.length; at += size) {
      times.push(api.push("grow", [{ _tag: "TextDelta", id: null, delta: text.slice(at, at + size) } as Event]))
    }
    const end = api.push("grow", saying("").slice(3))
    return { median: middle(times), worst: Math.max(...times), end }
  },
  /** A reply that grows by deltas at a rate, as the network brings them, drawn once a frame. */
  stream: async (text: string, perSecond: number) => {
    runs.clear()
    add("stream", saying("").slice(0, 2))
    draw()
    const long: Array<number> = []
    const observer = new PerformanceObserver((list) => long.push(...list.getEntries().map(({ duration }) => duration)))
    observer.observe({ type: "longtask" })
    const size = Math.ceil(text.length / (perSecond * 10))
    let isDrawn = true
    for (let at = 0; at < text.length; at += size) {
      Fold.take(runs.get("stream")!.run, { _tag: "TextDelta", id: null, delta: text.slice(at, at + size) } as Event)
      if (isDrawn) {
        isDrawn = false
        requestAnimationFrame(() => {
          isDrawn = true
          draw()
        })
      }
      await new Promise((resolve) => setTimeout(resolve, 1000 / perSecond))
    }
    api.push("stream", saying("").slice(3))
    await frame()
    observer.disconnect()
    return { over50: long.length, longest: Math.max(0, ...long) }
  },
  /** Shows many runs: the milliseconds until they are drawn, and the number of elements. */
  many: async (count: number, length: number) => {
    runs.clear()
    draw()
    const text = "A line of an answer with **bold** and `code` that is about as long as one is.\n\n".repeat(
      Math.ceil(length / 80)
    ).slice(0, length)
    const events = saying(text)
    const start = performance.now()
    for (let index = 0; index < count; index++) add(`m${index}`, events, "A question of a user")
    draw()
    const drawn = performance.now() - start
    await frame()
    await frame()
    return { drawn, all: performance.now() - start, elements: document.querySelectorAll("#studio *").length }
  },
  /** Shows pages of runs, of which each newer one was there before: the milliseconds. */
  pages: async (pages: number, perPage: number, length: number) => {
    runs.clear()
    draw()
    const text = "A line of an answer with **bold** and `code` that is about as long as one is.\n\n".repeat(
      Math.ceil(length / 80)
    ).slice(0, length)
    const start = performance.now()
    for (let page = 0; page < pages; page++) {
      const later = Array.from(runs)
      runs.clear()
      for (let index = 0; index < perPage; index++) {
        // Each has a text of its own, as texts from a server do.
        const own: string = JSON.parse(JSON.stringify(`${page}-${index} ${text}`))
        add(`p${page}-${index}`, saying(own), "A question of a user")
      }
      for (const [id, each] of later) runs.set(id, each)
      draw()
    }
    return performance.now() - start
  },
  older: (pages: number, perPage: number) => {
    for (let page = pages - 1; page >= 0; page--) {
      older.push(() => {
        const later = Array.from(runs)
        runs.clear()
        for (let index = 0; index < perPage; index++) add(`o${page}-${index}`, saying(`Older ${page}-${index}.`), "Q")
        for (const [id, each] of later) runs.set(id, each)
      })
    }
    older.reverse()
    draw()
  },
  saying,
  everywhere,
  asking,
  /** Shows a text in one place after another: the milliseconds of the longest task in each. */
  placing: async (text: string) => {
    let longest = 0
    const found: Array<number> = []
    const observer = new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) longest = Math.max(longest, duration)
    })
    observer.observe({ type: "longtask" })
    const events = everywhere(text)
    const one = (...tags: ReadonlyArray<string>) =>
      events.filter(({ _tag }) => ["RunStarted", "MessageStarted", "ChatCompleted", ...tags].includes(_tag))
    const places: ReadonlyArray<() => void> = [
      () => void api.show([{ id: "said", said: text, events: saying("") }]),
      () => void api.show([{ id: "text", events: saying(text) }]),
      () => void api.show([{ id: "growing", events: saying(text).slice(0, 3) }]),
      () => void api.show([{ id: "reasoning", events: one("ReasoningDelta") }]),
      () =>
        void api.show([{
          id: "calls",
          events: one(
            "ToolCallStarted",
            "ToolCallCompleted",
            "ToolExecutionStarted",
            "ToolProgress",
            "ToolResultEncoded"
          )
        }]),
      () => void api.wait([{ id: "w", content: text }]),
      ...asking(text).map((suspension) => () => void api.ask([suspension]))
    ]
    for (const place of places) {
      const start = performance.now()
      place()
      for (const summary of document.querySelectorAll("summary")) summary.click()
      longest = Math.max(longest, performance.now() - start)
      for (let count = 0; count < 2; count++) await frame()
      found.push(longest)
      longest = 0
      api.clear()
    }
    observer.disconnect()
    return found
  }
}

/** What tests call. */
export type Chat = typeof api

Object.assign(globalThis, { chat: api })
