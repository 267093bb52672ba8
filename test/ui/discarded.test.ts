/**
 * Replies that are discarded, of every shape and several in a row, on pages of the AI SDK: what is left is the run as if
 * they had never been, and a page that was cut anywhere, also again, comes to the same.
 */
import { describe } from "@effect/vitest"
import type { UIMessage } from "ai"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Event } from "heddle"
import { AgUi, UiStream } from "heddle/ui"
import { oneOf } from "../support/dimensions/dimension.ts"
import { property } from "../support/property.ts"
import { chunksOf, openIn, protocols, readMessage, refusedBy, withoutDiscarded } from "./support/page.ts"

type PublicEvent = Event.PublicEvent

/** Pieces of a reply. A call of a tool that does not exist has an answer and never starts. */
const pieceNames = [
  "text",
  "reasoning",
  "header",
  "half",
  "answered",
  "failed",
  "unknown tool",
  "progress",
  "nested",
  "provider's",
  "lost"
] as const

type PieceName = typeof pieceNames[number]

const piece = Arbitrary.all({
  name: oneOf<PieceName>("text", "text", ...pieceNames),
  /** Ids of the wire come again in other replies, and in other steps. */
  id: oneOf("own", "own", "d", "e", ""),
  delivery: oneOf("pieces", "pieces", "whole", "both")
})

const reply = Arbitrary.array(piece, { minLength: 0, maxLength: 3 })

type Reply = typeof reply extends Arbitrary.Arbitrary<infer A> ? A : never

const steps = Arbitrary.array(
  Arbitrary.all({
    discarded: Arbitrary.array(
      Arbitrary.all({
        reply,
        isBegun: oneOf(true, true, true, false),
        /** The number of events of calls that its end takes with it. */
        missing: oneOf(0, 1, 1, 2, 5)
      }),
      { minLength: 0, maxLength: 3 }
    ),
    reply
  }),
  { minLength: 1, maxLength: 3 }
)

const runs = Arbitrary.all({
  steps,
  end: oneOf("completed", "completed", "waits", "asks", "failed", "broken"),
  /** How often the reply at the end that waits is discarded before. */
  askedBefore: oneOf(0, 0, 1, 2),
  cut: oneOf(...Array.from({ length: 50 }, (_, at) => at)),
  again: oneOf(...Array.from({ length: 20 }, (_, at) => at))
})

type Run = typeof runs extends Arbitrary.Arbitrary<infer A> ? A : never

/** The least number from which on an id is free. */
const named = (wanted: string, taken: ReadonlySet<string>, first: number): string => {
  let number = first
  while (taken.has(`${wanted}_${number}`)) number++
  return `${wanted}_${number}`
}

/**
 * The events of a reply, with those of its calls behind it. A reply that is whole has only whole calls, and takes their
 * ids.
 */
const eventsOf = (
  reply: Reply,
  step: number,
  used: Set<string>,
  missing: number | undefined
): ReadonlyArray<PublicEvent> => {
  const isWhole = missing === undefined
  const taken = isWhole ? used : new Set(used)
  const behind: Array<object> = []
  let said = ""
  const events = reply.flatMap(({ delivery, id: wanted, name }, index): ReadonlyArray<object> => {
    if (name === "text") {
      const text = `t${step}.${index} `
      said += text
      // A text that comes whole has those before it: a reply has one text.
      return [
        ...(delivery === "whole" ? [] : [{ _tag: "TextDelta", id: null, delta: text }]),
        ...(delivery === "pieces" ? [] : [{ _tag: "TextCompleted", id: null, text: said }])
      ]
    }
    if (name === "reasoning") return [{ _tag: "ReasoningDelta", id: null, delta: `r${step}.${index} ` }]
    const own = wanted === "own" ? `c${step}_${index}` : wanted
    const id = own === "" ? named(`call_${step + 1}`, taken, 1) : taken.has(own) ? named(own, taken, 2) : own
    taken.add(id)
    const header = { _tag: "ToolCallStarted", id, name: "work" }
    const half = { _tag: "ToolCallDelta", id, argumentsDelta: "{\"a\":" }
    if (name === "header" && !isWhole) return [header]
    if (name === "half" && !isWhole) return [header, half]
    const lost = name === "lost" ? { argumentsLost: { reason: "invalid_json", text: "{" } } : {}
    const theirs = name === "provider's" ? { providerExecuted: true } : {}
    const isError = name === "failed" || name === "unknown tool" || name === "lost"
    if (name === "progress" || name === "nested") {
      behind.push({ _tag: "ToolExecutionStarted", id, name: "work" })
      if (name === "progress") behind.push({ _tag: "ToolProgress", id, name: "work", progress: { step } })
      else {
        behind.push({ _tag: "ToolProgress", id, name: "work", nested: { _tag: "MessageStarted" } })
        behind.push({ _tag: "ToolProgress", id, name: "work", nested: { _tag: "TextCompleted", id: null, text: "in" } })
      }
    }
    behind.push({
      _tag: "ToolResultEncoded",
      id,
      content: isError ? `broke ${step}.${index}` : `{"ok":"${step}.${index}"}`,
      ...(isError ? { isError: true } : {})
    })
    return [header, half, { _tag: "ToolCallDelta", id, argumentsDelta: "1}" }, {
      _tag: "ToolCallCompleted",
      id,
      name: "work",
      arguments: { a: 1 },
      ...lost,
      ...theirs
    }]
  })
  // Calls that only read have their answers while the reply comes.
  const ends = isWhole ? [{ _tag: "MessageCompleted" }] : []
  return [
    { _tag: "MessageStarted" },
    ...events,
    ...ends,
    ...behind.slice(0, Math.max(0, behind.length - (missing ?? 0)))
  ] as any
}

const reset = (code: "network_error" | "resumed"): PublicEvent => ({ _tag: "StepReset", error: { code, message: "" } })

/** The events of a run, with the replies that it discards or without. */
const runOf = ({ askedBefore, end, steps }: Run, hasDiscarded: boolean): ReadonlyArray<PublicEvent> => {
  const used = new Set<string>()
  const all = steps.flatMap(({ discarded, reply }, step): ReadonlyArray<PublicEvent> => [
    ...(hasDiscarded ? discarded : []).flatMap(({ isBegun, missing, reply }, index) => [
      ...(isBegun || index === 0 ? eventsOf(reply, step, used, missing) : []),
      reset(index % 2 === 0 ? "network_error" : "resumed")
    ]),
    ...eventsOf(reply, step, used, undefined),
    { _tag: "StepCompleted" }
  ])
  const kind = end === "waits" ? "approval" as const : "question" as const
  const waiting = { id: "r~w", kind, toolCall: { id: "w", name: "work", arguments: {} } }
  const asking: ReadonlyArray<PublicEvent> = [
    { _tag: "MessageStarted" },
    { _tag: "ToolCallCompleted", id: "w", name: "work", arguments: {} },
    {
      _tag: end === "waits" ? "ToolApprovalRequested" : "AskUserRequested",
      toolCallId: "w",
      toolName: "work",
      suspensions: [waiting]
    }
  ]
  const ending: ReadonlyArray<PublicEvent> = end === "waits" || end === "asks"
    ? [
      ...Array.from({ length: hasDiscarded ? askedBefore : 0 }, () => [...asking, reset("resumed")]).flat(),
      ...asking,
      { _tag: "StepCompleted" },
      { _tag: "ChatCompleted", outcome: { _tag: "ApprovalRequested" }, suspensions: [waiting] }
    ]
    : end === "failed"
    ? [{ _tag: "ChatCompleted", outcome: { _tag: "Failed", error: { code: "internal", message: "It broke." } } }]
    : end === "broken"
    ? []
    : [{ _tag: "ChatCompleted", outcome: { _tag: "Completed", finishReason: "stop" } }]
  return [...all, ...ending]
}

/** What a page shows of a message, without marks of steps: replies that say nothing leave none. */
const shownOf = (message: UIMessage | undefined): ReadonlyArray<string> =>
  (withoutDiscarded(message)?.parts ?? []).flatMap((part: any) =>
    part.type === "step-start" || part.type.startsWith("data-")
      ? []
      : [JSON.stringify([
        part.type,
        part.toolCallId,
        part.state,
        part.preliminary ?? false,
        part.input,
        part.text,
        part.output,
        part.errorText,
        part.approval?.id
      ])]
  )

/** The parts of the calls of a page by their ids: an older client keeps the place of one that comes again. */
const dataOf = (message: UIMessage | undefined, isShown: (part: any) => boolean): ReadonlyArray<string> =>
  (message?.parts ?? []).flatMap((part: any) =>
    part.type.startsWith("data-") && part.type !== "data-heddle-reset" && isShown(part)
      ? [JSON.stringify([part.type, part.id, part.data])]
      : []
  ).sort()

/** What the run itself says that is to be shown: the texts and the answers of the replies that it kept. */
const rightOf = ({ end, steps }: Run) => {
  const texts = steps.flatMap(({ reply }, step) =>
    reply.flatMap(({ name }, index) => name === "text" ? [`t${step}.${index} `] : [])
  )
  const calls = steps.flatMap(({ reply }) => reply.filter(({ name }) => name !== "text" && name !== "reasoning"))
  return { texts: texts.join(""), calls: calls.length + (end === "waits" || end === "asks" ? 1 : 0) }
}

/** The number of steps that a page asks for again, or nothing where it answers a call. */
const askedOf = (message: UIMessage | undefined): { readonly last: UIMessage; readonly known: number | undefined } => {
  const last = message ?? { id: "m1", role: "assistant" as const, parts: [] }
  const body = JSON.parse(JSON.stringify({ id: "s1", messageId: "m1", messages: [last] }))
  const [asked] = Result.getOrThrow(UiStream.read(body)).actions
  return { last, known: asked?._tag === "Retry" ? asked.steps : undefined }
}

/** Ids that are opened and ended. One that is over is not opened again. */
class Ids {
  readonly problems: Array<string> = []
  private readonly open = new Set<string>()
  private readonly over = new Set<string>()

  begin(kind: string, id: unknown): void {
    const name = `${kind} ${String(id)}`
    if (this.open.has(name) || this.over.has(name)) this.problems.push(`${name} is opened again`)
    this.open.add(name)
  }

  use(kind: string, id: unknown): void {
    if (this.over.has(`${kind} ${String(id)}`)) this.problems.push(`${kind} ${String(id)} is used again`)
  }

  end(kind: string, id: unknown): void {
    this.open.delete(`${kind} ${String(id)}`)
    this.over.add(`${kind} ${String(id)}`)
  }

  /** Takes what a client has forgotten: its ids are free. */
  forget(isLeft: (kind: string, id: string) => boolean): void {
    for (const ids of [this.open, this.over]) {
      for (const name of ids) {
        const [kind = ""] = name.split(" ", 1)
        if (!isLeft(kind, name.slice(kind.length + 1))) ids.delete(name)
      }
    }
  }
}

/** Returns the ids that events of AG-UI open again. */
const reopenedInAgUi = (events: ReadonlyArray<AgUi.AgEvent>): ReadonlyArray<string> => {
  const ids = new Ids()
  let message: string | undefined
  for (const event of events as ReadonlyArray<any>) {
    const { messageId, toolCallId } = event
    switch (event.type) {
      // All texts and calls of a step are of one message.
      case "TEXT_MESSAGE_START":
        ids.use("message", messageId)
        message = messageId
        break
      case "STEP_FINISHED":
        if (message !== undefined) ids.end("message", message)
        message = undefined
        break
      case "REASONING_START":
        ids.begin("reasoning", messageId)
        break
      case "REASONING_END":
        ids.end("reasoning", messageId)
        break
      case "TOOL_CALL_START":
        ids.use("message", event.parentMessageId)
        message = event.parentMessageId
        ids.begin("call", toolCallId)
        break
      case "TOOL_CALL_END":
        ids.end("call", toolCallId)
        break
      case "TOOL_CALL_RESULT":
        ids.begin("result", messageId)
        break
      case "ACTIVITY_SNAPSHOT":
        ids.use("activity", messageId)
        if (["done", "failed"].includes(event.content.state)) ids.end("activity", messageId)
        break
      case "CUSTOM":
        if (event.name !== "heddle.reset") break
        ids.use("message", event.value.messageId)
        ids.end("message", event.value.messageId)
        break
      case "MESSAGES_SNAPSHOT": {
        if (message !== undefined && !event.messages.some(({ id }: any) => id === message)) ids.end("message", message)
        // The client has these messages, and no call beside theirs.
        const calls = new Set(event.messages.flatMap(({ toolCalls = [] }: any) => toolCalls.map(({ id }: any) => id)))
        const ofCall = (id: string) => Array.from(calls).some((call) => id.endsWith(`-${String(call)}`))
        ids.forget((kind, id) =>
          kind === "call" ? calls.has(id) : kind === "result" || kind === "activity" ? ofCall(id) : true
        )
      }
    }
  }
  return ids.problems
}

/** Returns the ids that chunks of the AI SDK open again. A call id may come again: a page looks for it in its step. */
const reopenedIn = (chunks: ReadonlyArray<any>): ReadonlyArray<string> => {
  const ids = new Ids()
  for (const { id, type } of chunks) {
    if (type === "text-start" || type === "reasoning-start") ids.begin(type.slice(0, -6), id)
    if (type === "text-end" || type === "reasoning-end") ids.end(type.slice(0, -4), id)
  }
  return ids.problems
}

describe("discarded replies", () => {
  property(
    "W-01, O-29: a run with discarded replies is shown like a run without them, also to a page that was cut twice",
    runs,
    (run) =>
      Effect.promise(async () => {
        const problems: Array<string> = []
        for (const protocol of protocols) {
          const note = (what: string, seen: unknown, right: unknown) => {
            const [one, other] = [JSON.stringify(seen), JSON.stringify(right)]
            if (one !== other) problems.push(`ai ${protocol}: ${what}: ${one} in place of ${other}`)
          }
          const options = { protocol, messageId: "m1" }
          const chunks = chunksOf(runOf(run, true), options)
          note("refused", await refusedBy(protocol, chunks), [])
          const asks = chunks.filter(({ type }) => type === "tool-approval-request" || type === "data-heddle-question")
          note("asked", asks.length, run.end === "waits" || run.end === "asks" ? 1 + run.askedBefore : 0)
          const alone = await readMessage(chunksOf(runOf(run, false), options), undefined, protocol)
          const whole = await readMessage(chunks, undefined, protocol)
          const isBad = run.end === "failed" || run.end === "broken"
          note("error", whole.error === undefined, !isBad)
          note("open", openIn(whole.message), [])
          const compare = (where: string, message: UIMessage | undefined) => {
            note(`shown${where}`, shownOf(message), shownOf(alone.message))
            const ids = new Set(alone.message?.parts.map((part: any) => `${part.type} ${part.id}`))
            const isOwn = ({ id, type }: any) => ids.has(`${type} ${id}`)
            note(`data${where}`, dataOf(message, isOwn), dataOf(alone.message, () => true))
            // An older client cannot discard the others.
            const isLeft = (part: any) => !isOwn(part) && (protocol === 7 || part.data.state === "running")
            note(`left${where}`, dataOf(message, isLeft), [])
          }
          compare("", whole.message)
          const right = rightOf(run)
          const parts: ReadonlyArray<any> = withoutDiscarded(whole.message)?.parts ?? []
          note("texts", parts.flatMap(({ text, type }) => type === "text" ? [text] : []).join(""), right.texts)
          note("calls", parts.filter(({ type }) => type === "dynamic-tool").length, right.calls)

          let last: UIMessage | undefined
          let from = chunks
          for (const cut of [run.cut * 7, run.again * 3]) {
            const half = await readMessage(from.slice(0, cut % from.length), last, protocol)
            const asked = askedOf(half.message ?? last)
            if (asked.known === undefined) return problems
            last = asked.last
            from = chunksOf(runOf(run, true), { ...options, known: asked.known })
            note(`refused behind ${cut}`, await refusedBy(protocol, from), [])
            const rest = await readMessage(from, last, protocol)
            const where = ` behind ${cut % chunks.length}, with ${asked.known} steps`
            note(`error${where}`, rest.error === undefined, !isBad)
            compare(where, rest.message)
          }
        }
        return problems
      }),
    500
  )

  property(
    "W-01, W-02: no encoder opens an id again that was ended or named by a reset",
    runs,
    (run) => {
      const events = runOf(run, true)
      const history = [{ id: "u1", role: "user" as const, content: "Go" }]
      const agUi = (messages: ReadonlyArray<AgUi.AgMessage> | undefined) => {
        const encoder = AgUi.make({ threadId: "s1", runId: "r1", ...(messages === undefined ? {} : { messages }) })
        return [...events.flatMap(encoder.push), ...encoder.end()]
      }
      return Effect.succeed([
        ...reopenedInAgUi(agUi(undefined)).map((problem) => `AG-UI: ${problem}`),
        ...reopenedInAgUi(agUi(history)).map((problem) => `AG-UI with messages: ${problem}`),
        ...protocols.flatMap((protocol) =>
          reopenedIn(chunksOf(events, { protocol, messageId: "m1" })).map((problem) => `ai ${protocol}: ${problem}`)
        )
      ])
    },
    1000
  )
})
